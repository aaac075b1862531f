"""Files that only this user can change, because what is read from them decides which code runs."""

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path


def make_private_folder(folder: Path) -> None:
    """Create a folder for this user alone; one that others own or can write is a `PermissionError`."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check(folder.stat(), folder)


def open_private(path: Path) -> int:
    """Open a regular file for reading; one that others own or can write, or a link, is an `OSError`."""
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


def write_private(path: Path, content: bytes) -> None:
    """Replace a file in one step, readable for this user alone, in a folder that is made private if it is new."""
    make_private_folder(path.parent)
    staged = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with suppress(FileNotFoundError):
        staged.unlink()
    descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        staged.replace(path)
    finally:
        staged.unlink(missing_ok=True)


def _check(status: os.stat_result, path: Path) -> None:
    if status.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "it belongs to another user", str(path))
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(errno.EPERM, "others can write it (chmod go-w)", str(path))
