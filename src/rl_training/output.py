"""What people read: paths as they know them, on streams that may be closed, full or without a reader."""

import errno
import io
import os
import sys
from contextlib import suppress
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
    """Text for another stream; what that one refuses is dropped, and nobody hears of it."""

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
    """Let this process go on, whatever becomes of its standard output and error."""
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
