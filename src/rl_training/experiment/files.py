"""Writing files so that a reader never sees half of one, whatever happens to the writer."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import IO

import psutil

REPLAY_FOLDER = "replay"  # beside `checkpoints/`; named here, since who reads a run needs no torch
_STAGED_NAME = re.compile(r"\..+\.(\d{1,9})\.tmp")


def write_atomically(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Stage beside the target, flush to disk, then rename into place; nothing is left behind on failure."""
    staged = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with staged.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        staged.replace(path)
        sync_directory(path.parent)
    finally:
        staged.unlink(missing_ok=True)


def remove_stale(directory: Path) -> None:
    """Remove what processes that are gone had staged in the directory."""
    for path in directory.glob(".*.tmp"):
        match = _STAGED_NAME.fullmatch(path.name)
        # In a container a process often has the number of the one that was killed: our own counts as gone.
        if match and (int(match[1]) == os.getpid() or not psutil.pid_exists(int(match[1]))):
            path.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Replace the file's text in one step."""
    write_atomically(path, lambda file: file.write(text.encode()))


def sync_directory(directory: Path) -> None:
    """Make renames inside the directory survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
