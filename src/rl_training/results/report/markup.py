"""Building HTML and SVG elements from Python values. All text that is not an element is escaped."""

from collections.abc import Iterable
from html import escape

_VOID = frozenset({"img", "meta", "source"})


class Markup(str):
    """A string that is already markup and must not be escaped."""

    __slots__ = ()


Content = str | float | None | Iterable["Content"]
"""The content of an element: text, a number, an element, nothing, or several of these."""


def element(tag: str, *content: Content, **attributes: str | float | bool | None) -> Markup:
    """Build an element. `class_` stands for `class`, `data_x` for `data-x`; False and None leave an attribute out."""
    named = "".join(_attribute(name, value) for name, value in attributes.items())
    if tag in _VOID:
        return Markup(f"<{tag}{named}>")
    return Markup(f"<{tag}{named}>{join_markup(content)}</{tag}>")


def join_markup(content: Content) -> Markup:
    """Join the content into markup, escaping text."""
    if content is None or isinstance(content, Markup):
        return Markup(content or "")
    if isinstance(content, (str, int, float)):
        return Markup(escape(str(content)))
    return Markup("".join(map(join_markup, content)))


def _attribute(name: str, value: str | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = name.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'
