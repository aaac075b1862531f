"""Reading and writing files in run and group directories.

Links are never followed, and files are replaced atomically, so that a reader never sees half of one.
"""

import errno
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import IO, Any

import psutil

from rl_training.errors import RunDirectoryError

REPLAY_FOLDER = "replay"  # beside `checkpoints/`; defined here so that reading a run does not import torch
JSON_LIMIT = 4 * 2**20  # bytes; the parsed values take up to twenty times as much memory
_TEMPORARY_NAME = re.compile(r"\..+\.(\d{1,9})(?:-[0-9a-f]+)?\.tmp")
_LARGEST_LOG = 2**30  # bytes
_LONGEST_LINE = 2**20  # bytes
_NO_DIRECTORY_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)

_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def open_regular(path: Path, flags: int) -> int:
    """Open a regular file and return its descriptor; a link, a pipe or a device raises an `OSError` that says so."""
    try:
        # Without O_NONBLOCK, opening a pipe would wait for its other end.
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError:
        check_regular(path)
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        check_regular(path)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return descriptor


def check_regular(path: Path) -> None:
    """Raise an `OSError` if `path` exists and is not a regular file."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return
    for is_kind, name in _KINDS:
        if is_kind(mode):
            raise OSError(errno.EINVAL, f"it is {name}, and only a regular file is allowed here", str(path))


def check_folder(path: Path) -> None:
    """Refuse a folder that is a link, because files would be written and removed outside the run or group directory."""
    if path.is_symlink():
        raise RunDirectoryError(f"{path} is a symbolic link, which is not followed: replace it by the folder itself")


def read_bytes(path: Path, limit: int) -> bytes:
    """Read a regular file of at most `limit` bytes; anything else, such as a link or a pipe, is an `OSError`."""
    descriptor = open_regular(path, os.O_RDONLY)
    with os.fdopen(descriptor, "rb") as file:
        content = file.read(limit + 1) if os.fstat(descriptor).st_size <= limit else None
    if content is None or len(content) > limit:
        raise OSError(errno.EFBIG, f"it is larger than {limit:,} bytes", str(path))
    return content


def read_json(path: Path, limit: int = JSON_LIMIT) -> Any:
    """Read a JSON file of at most `limit` bytes; invalid JSON raises a `ValueError`."""
    return parse_json(read_bytes(path, limit).decode())


def parse_json(text: str | bytes) -> Any:
    """Parse JSON; nesting that is too deep raises a `ValueError`, as any other mistake does."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a log with their line breaks; lines longer than 1 MiB are split."""
    descriptor = open_regular(path, os.O_RDONLY)
    with os.fdopen(descriptor, "rb") as file:
        if os.fstat(descriptor).st_size > _LARGEST_LOG:
            raise OSError(errno.EFBIG, f"it is larger than {_LARGEST_LOG:,} bytes", str(path))
        while line := file.readline(_LONGEST_LINE):
            yield line


def write_atomically(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write to a temporary file beside the target, flush it to disk and rename it; leave nothing behind on failure."""
    # The random part prevents others from placing a link at the name of the temporary file.
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "wb", opener=_open_new) as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_directory(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _open_new(path: str, flags: int) -> int:
    return open_regular(Path(path), flags | os.O_EXCL)


def remove_stale(directory: Path) -> None:
    """Remove temporary files in the directory whose processes no longer exist."""
    for path in directory.glob(".*.tmp"):
        match = _TEMPORARY_NAME.fullmatch(path.name)
        # In a container, this process often gets the number of the killed one, so its own number counts as gone.
        if match and (int(match[1]) == os.getpid() or not psutil.pid_exists(int(match[1]))):
            path.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Replace the file's content atomically."""
    write_atomically(path, lambda file: file.write(content))


def write_text(path: Path, text: str) -> None:
    """Replace the file's text atomically."""
    write_bytes(path, text.encode())


def sync_directory(directory: Path) -> bool:
    """Make renames in the directory survive a power cut. Return False if the file system cannot sync directories."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_DIRECTORY_SYNC:
            raise
        return False
    finally:
        os.close(descriptor)
    return True


def set_aside(path: Path, label: str) -> Path:
    """Rename a file or directory to a free name beside it, such as `metadata.json.damaged-1`. Return the new path."""
    target = _free_name(path, label)
    path.rename(target)
    return target


def keep_copy(path: Path, label: str) -> Path:
    """Copy a file to a free name beside it, such as `metrics.jsonl.damaged-1`. Return the path of the copy."""
    target = _free_name(path, label)
    with os.fdopen(open_regular(path, os.O_RDONLY), "rb") as source:
        write_atomically(target, lambda file: shutil.copyfileobj(source, file))
    return target


def _free_name(path: Path, label: str) -> Path:
    names = (path.with_name(f"{path.name}.{label}-{number}") for number in count(1))
    return next(name for name in names if not os.path.lexists(name))
