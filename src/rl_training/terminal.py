"""Text on its way to a terminal, which would obey the control characters in it."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


def printable(text: object) -> str:
    r"""Write what is no letter, sign or space as an escape, such as `\x1b`; line breaks and tabs stay."""
    characters = str(text)
    if characters.isprintable():
        return characters
    return "".join(each if each.isprintable() or each in "\n\t" else _escaped(each) for each in characters)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def show_line(text: object, *, error: bool = False) -> None:
    """Print a text that may come from a file or an environment."""
    print(printable(text), file=sys.stderr if error else sys.stdout)


@contextmanager
def printable_warnings() -> Iterator[None]:
    """Print warnings, which often quote files and environments, without control characters."""
    before = warnings.formatwarning

    def format_warning(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        return printable(before(message, category, filename, lineno, line))

    warnings.formatwarning = format_warning
    try:
        yield
    finally:
        warnings.formatwarning = before
