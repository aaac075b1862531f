"""Terminal output: short paths, no control characters, and streams that may be closed, full or without a reader."""

import errno
import io
import os
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from typing_extensions import Buffer


def shown_path(path: Path) -> Path:
    """Return the path relative to the working directory if it lies below it, and unchanged otherwise."""
    try:
        here = Path.cwd()
    except OSError:  # the working directory was removed
        return path
    return path.relative_to(here) if path.is_relative_to(here) else path


def printable(text: object) -> str:
    r"""Escape control characters such as `\x1b`, which a terminal would obey, but keep line breaks and tabs."""
    characters = str(text)
    if characters.isprintable():
        return characters
    return "".join(each if each.isprintable() or each in "\n\t" else _escape(each) for each in characters)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()


def show_line(text: object, *, error: bool = False) -> None:
    """Print text that may come from a file or an environment, without its control characters."""
    print(printable(text), file=sys.stderr if error else sys.stdout)


@contextmanager
def printable_warnings() -> Iterator[None]:
    """Print warnings without control characters, because they often quote files and environments.

    User warnings from this package and from installed packages are printed without file and line, which mean nothing
    to a user.
    """
    before = warnings.formatwarning
    libraries = tuple(f"{place}{os.sep}" for place in (Path(__file__).parent, sysconfig.get_path("purelib")))

    def format_warning(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        if category is UserWarning and filename.startswith(libraries):
            return printable(f"warning: {message}\n")
        return printable(before(message, category, filename, lineno, line))

    warnings.formatwarning = format_warning
    try:
        yield
    finally:
        warnings.formatwarning = before


class _DroppingFile(io.FileIO):
    """A file descriptor that silently drops the bytes that cannot be written."""

    failure: OSError | None = None
    """The first error of a write."""

    def write(self, data: Buffer, /) -> int:
        """Write the data, or drop it."""
        try:
            return super().write(data) or memoryview(data).nbytes  # None: the pipe is full
        except OSError as error:
            self.failure = self.failure or error
            return memoryview(data).nbytes


class DroppingStream(io.TextIOBase):
    """A text stream that forwards to another stream and silently drops what cannot be written."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the text, or drop it."""
        if self._stream is not None:
            with suppress(OSError, ValueError):  # OSError: full or without a reader; ValueError: closed
                self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush the other stream, if possible."""
        if self._stream is not None:
            with suppress(OSError, ValueError):
                self._stream.flush()

    def isatty(self) -> bool:
        """Return whether the other stream is a terminal."""
        return self._stream is not None and not self._stream.closed and self._stream.isatty()


def drop_lost_output() -> None:
    """Replace stdout and stderr by streams that drop what cannot be written, so that a run outlives its terminal."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # closed: the next opened file would get this number, and C libraries would write to it
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
    """Warn on stderr if stdout could not be written, except if its reader, such as `head`, closed the pipe."""
    sys.stdout.flush()
    file = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if isinstance(file, _DroppingFile) and file.failure and file.failure.errno != errno.EPIPE:
        print(f"warning: stdout could not be written: {file.failure.strerror}", file=sys.stderr)
