"""Files that only this user can change, because their contents decide which code runs."""

import errno
import json
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

_JSON_LIMIT = 2**20  # bytes


def make_private_folder(folder: Path) -> None:
    """Create a folder that only this user can access; raise `PermissionError` if others own it or can write to it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check(folder.stat(), folder)


def open_private(path: Path) -> int:
    """Open a regular file for reading; raise `OSError` for a link, or if others own the file or can write to it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        _check(status, path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read_private_json(path: Path) -> Any:
    """Read a JSON file; raise `OSError` if it is missing or not private, and `ValueError` if it is damaged."""
    with os.fdopen(open_private(path), "rb") as file:
        try:
            return json.loads(file.read(_JSON_LIMIT))
        except RecursionError:
            raise ValueError("it is nested too deeply") from None


def write_private_json(path: Path, values: Any) -> None:
    """Replace a JSON file atomically; only this user can read it, and a missing folder is created as private."""
    make_private_folder(path.parent)
    staged = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with suppress(FileNotFoundError):
        staged.unlink()
    descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(json.dumps(values, indent=1).encode())
        staged.replace(path)
    finally:
        staged.unlink(missing_ok=True)


def _check(status: os.stat_result, path: Path) -> None:
    if status.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "it belongs to another user", str(path))
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(errno.EPERM, "others can write to it (chmod go-w)", str(path))
