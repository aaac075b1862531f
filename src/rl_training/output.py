"""Output for people: short paths, no control characters, and streams that may be closed, full or without a reader."""

import errno
import io
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from typing_extensions import Buffer


def shown_path(path: Path) -> Path:
    """The path, relative to the working directory if it lies below that."""
    try:
        here = Path.cwd()
    except OSError:  # removed
        return path
    return path.relative_to(here) if path.is_relative_to(here) else path


def printable(text: object) -> str:
    r"""Escape control characters, which a terminal would obey, such as `\x1b`; line breaks and tabs stay."""
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


class _DroppingFile(io.FileIO):
    """A descriptor to write to; bytes that it does not take count as written."""

    failure: OSError | None = None
    """The first error."""

    def write(self, data: Buffer, /) -> int:
        """Write, or drop."""
        try:
            return super().write(data) or memoryview(data).nbytes  # none where a full pipe would have to be waited for
        except OSError as error:
            self.failure = self.failure or error
            return memoryview(data).nbytes


class DroppingStream(io.TextIOBase):
    """A text stream that forwards to another one and silently drops what cannot be written."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write, or drop."""
        if self._stream is not None:
            with suppress(OSError, ValueError):  # full or without a reader; closed
                self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush, if that is possible."""
        if self._stream is not None:
            with suppress(OSError, ValueError):
                self._stream.flush()

    def isatty(self) -> bool:
        """Whether the other stream is a terminal."""
        return self._stream is not None and not self._stream.closed and self._stream.isatty()


def drop_lost_output() -> None:
    """Replace stdout and stderr by streams that drop what cannot be written, so that a closed one ends no run."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # closed: a file of the run would get this number, and with it what C libraries print
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    sys.stdout, sys.stderr = _dropping(1, sys.stdout), _dropping(2, sys.stderr)


def _dropping(descriptor: int, like: TextIO | None) -> TextIO:
    if like is not None:
        with suppress(OSError):
            like.flush()
    buffer = io.BufferedWriter(_DroppingFile(descriptor, "w", closefd=False))
    encoding, errors = (like.encoding, like.errors) if like is not None else ("utf-8", "backslashreplace")
    return io.TextIOWrapper(buffer, encoding, errors, line_buffering=True)


def warn_of_lost_output() -> None:
    """Say on stderr that stdout could not be written, unless its reader has left."""
    sys.stdout.flush()
    file = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if isinstance(file, _DroppingFile) and file.failure and file.failure.errno != errno.EPIPE:
        print(f"warning: stdout could not be written: {file.failure.strerror}", file=sys.stderr)
