"""HTML and SVG elements from Python values. Text is escaped unless it is an element already, so nothing can slip in."""

from collections.abc import Iterable
from html import escape

_VOID = frozenset({"img", "meta", "source"})


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


Content = str | float | None | Iterable["Content"]
"""What an element may hold: text, numbers, elements, nothing, or several of these."""


def element(tag: str, *content: Content, **attributes: str | float | bool | None) -> Markup:
    """An element. `class_` stands for `class`, `data_x` for `data-x`; false and none leave an attribute out."""
    named = "".join(_attribute(name, value) for name, value in attributes.items())
    if tag in _VOID:
        return Markup(f"<{tag}{named}>")
    return Markup(f"<{tag}{named}>{joined(content)}</{tag}>")


def joined(content: Content) -> Markup:
    """All of the content in a row."""
    if content is None or isinstance(content, Markup):
        return Markup(content or "")
    if isinstance(content, (str, int, float)):
        return Markup(escape(str(content)))
    return Markup("".join(map(joined, content)))


def _attribute(name: str, value: str | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = name.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'
