"""A lock that lets only one process use a run directory. The system releases it even if the process is killed."""

import errno
import fcntl
import json
import os
import secrets
import socket
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from rl_training.errors import RunDirectoryError
from rl_training.experiment.files import open_regular

LOCK_FILE = "run.lock"
_WAIT_SECONDS = 0.25
_LOCKED_ERRORS = (errno.EACCES, errno.EAGAIN)
_UNSUPPORTED_ERRORS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


class RunLock:
    """A lock on a run directory, held from `acquire` to `release`. Its file names the process that holds it."""

    # The system grants a record lock to the same process more than once, and releases it as soon as that process closes
    # any descriptor of the file. So the process records the locks that it holds. The key includes the process number,
    # because a forked child holds no lock.
    _held: ClassVar[set[tuple[int, int, int]]] = set()

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.path = run_dir / LOCK_FILE
        self._descriptor: int | None = None
        self._key = (0, 0, 0)
        self._token = ""

    def acquire(self) -> "RunLock":
        """Take the lock. Raise an error that names the holder if another process has it.

        Taking over a lock file that a killed process left behind gives a warning.
        """
        self._refuse_if_held_here()
        descriptor = self._open(os.O_RDWR | os.O_CREAT)
        try:
            holder = _read_holder(descriptor)
            self._lock(descriptor, holder)
            current = is_open_file(self.path, descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        if not current:  # the holder removed the file after this process had opened it
            os.close(descriptor)
            return self.acquire()
        self._record_ownership(descriptor)
        if holder:
            warnings.warn(
                f"process {holder.get('process')} on {holder.get('host')} ended without removing {self.path}; "
                "this process takes over the run",
                stacklevel=2,
            )
        return self

    def check_free(self) -> None:
        """Raise the error that `acquire` would raise if the lock is held. Change nothing."""
        self._refuse_if_held_here()
        if not os.path.lexists(self.path):
            return
        descriptor = self._open(os.O_RDWR)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _LOCKED_ERRORS:
                raise self._in_use(_read_holder(descriptor)) from None
        finally:
            os.close(descriptor)

    def wait_free(self, seconds: float) -> None:
        """Wait until the lock is free; if it is still held after these seconds, raise the error of `check_free`."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                self.check_free()
            except RunDirectoryError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_WAIT_SECONDS)
            else:
                return

    def check_held(self) -> None:
        """Raise an error if another process has taken the lock over.

        A network file server takes the lock away from a machine that it cannot reach. If that machine was only cut off,
        its process is still running; this check stops it from writing.
        """
        holder = self._new_holder()
        if holder is not None:
            by = f"process {holder.get('process')} on {holder.get('host')}"
            raise RunDirectoryError(f"{by} has taken over {self.run_dir}: this process stops without writing to it")

    def _new_holder(self) -> dict[str, Any] | None:
        """Return what the lock file says about a process that has taken the lock over; None if there is none."""
        if self._descriptor is None:
            return None
        try:
            if os.path.samestat(os.fstat(self._descriptor), self.path.lstat()):
                holder = _read_holder(self._descriptor)
                return None if holder.get("token", self._token) == self._token else holder
            other = open_regular(self.path, os.O_RDONLY)
        except OSError:  # the file was removed or cannot be reached, which does not mean that another process has it
            return None
        try:
            return _read_holder(other)
        finally:
            os.close(other)

    def _refuse_if_held_here(self) -> None:
        """Refuse a directory that this process has already locked; closing the file again would release that lock."""
        with suppress(FileNotFoundError):
            if _identity(self.path.lstat()) in RunLock._held:
                raise self._in_use({"process": os.getpid(), "host": socket.gethostname()})

    def _in_use(self, holder: dict[str, Any]) -> RunDirectoryError:
        return RunDirectoryError(
            f"{self.run_dir} is in use by process {holder.get('process')} on {holder.get('host')}: "
            "wait for it, or stop it first"
        )

    def _lock(self, descriptor: int, holder: dict[str, Any]) -> None:
        try:
            # A record lock, because forked worker processes do not inherit it.
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _LOCKED_ERRORS:
                raise self._in_use(holder) from None
            if error.errno not in _UNSUPPORTED_ERRORS:
                raise RunDirectoryError(f"{self.path} cannot be locked: {error.strerror}") from None
            warnings.warn(
                f"the file system of {self.run_dir} does not support locks ({error.strerror}): make sure that no "
                "other process uses this directory at the same time",
                stacklevel=3,
            )

    def _record_ownership(self, descriptor: int) -> None:
        self._descriptor, self._key = descriptor, _identity(os.fstat(descriptor))
        self._token = secrets.token_hex(8)
        RunLock._held.add(self._key)
        holder = {"process": os.getpid(), "host": socket.gethostname(), "token": self._token}
        with suppress(OSError):  # on a full disk the lock works, but its file does not name the holder
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(holder).encode(), 0)

    def _open(self, flags: int) -> int:
        try:
            return open_regular(self.path, flags)
        except OSError as error:
            raise RunDirectoryError(f"{self.path} cannot be opened: {error.strerror}") from None

    def release(self) -> None:
        """Release the lock; releasing it twice is fine."""
        if self._descriptor is None or self._key[0] != os.getpid():
            return
        if self._new_holder() is None:
            with suppress(OSError):  # the directory was removed or has become read-only
                self.path.unlink(missing_ok=True)
        RunLock._held.discard(self._key)
        os.close(self._descriptor)
        self._descriptor = None


def is_open_file(path: Path, descriptor: int) -> bool:
    """Return whether the path still names the open file; another process may have removed or replaced it."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def _identity(status: os.stat_result) -> tuple[int, int, int]:
    return os.getpid(), status.st_dev, status.st_ino


def _read_holder(descriptor: int) -> dict[str, Any]:
    try:
        holder = json.loads(os.pread(descriptor, 4096, 0) or b"{}")
    except (ValueError, RecursionError):
        return {}
    return holder if isinstance(holder, dict) else {}
