"""Announcements of what a command is doing while nothing else is shown, such as compiling.

They are log messages of level INFO, so that a Python program shows none of them unless it asks for them.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Timer

from rl_training.output import show_line

_PATIENCE_SECONDS = 2.0
_LOGGER = logging.getLogger(__name__)


@contextmanager
def announced(activity: str) -> Iterator[None]:
    """Announce the activity of the block if it takes longer than two seconds."""
    timer = Timer(_PATIENCE_SECONDS, _LOGGER.info, [activity])
    timer.daemon = True
    with suppress(RuntimeError):  # no thread can be started, which must not end a run
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


class _LineHandler(logging.Handler):
    """Prints each announcement once."""

    def __init__(self) -> None:
        super().__init__()
        self._printed: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Print the announcement to stderr, unless it was printed before."""
        text = record.getMessage()
        if text not in self._printed:
            self._printed.add(text)
            show_line(f"{text} ...", error=True)


@contextmanager
def shown_waits() -> Iterator[None]:
    """Print the announcements of the block to stderr."""
    handler, level = _LineHandler(), _LOGGER.level
    _LOGGER.addHandler(handler)
    _LOGGER.setLevel(logging.INFO)
    try:
        yield
    finally:
        _LOGGER.setLevel(level)
        _LOGGER.removeHandler(handler)
