"""One process per run directory: a lock that the operating system gives back when its holder dies, however it dies."""

import errno
import fcntl
import json
import os
import socket
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from rl_training.errors import RunDirectoryError
from rl_training.experiment.files import open_regular

LOCK_FILE = "run.lock"
_HELD = (errno.EACCES, errno.EAGAIN)
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


class RunLock:
    """Held from `acquire` to `release`; the file says by whom."""

    # The system gives a record lock to every part of a process that asks, and takes it back from all of them when one
    # closes the file. So the process remembers what it holds: by process number, because a forked child holds nothing.
    _held: ClassVar[set[tuple[int, int, int]]] = set()

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.path = run_dir / LOCK_FILE
        self._descriptor: int | None = None
        self._key = (0, 0, 0)

    def acquire(self) -> "RunLock":
        """Take the lock, or say who has it; one that a killed process left behind is taken over, with a warning."""
        self._refuse_own()
        descriptor = self._open(os.O_RDWR | os.O_CREAT)
        try:
            holder = _read(descriptor)
            self._lock(descriptor, holder)
            current = self._is_current(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        if not current:  # its holder released and removed it after we had opened it
            os.close(descriptor)
            return self.acquire()
        self._own(descriptor)
        if holder:
            warnings.warn(
                f"process {holder.get('process')} on {holder.get('host')} left {self.path} without ending its run; "
                "it is gone, so the run goes on here",
                stacklevel=2,
            )
        return self

    def check_free(self) -> None:
        """Refuse, as `acquire` would, if somebody holds the lock; changes nothing."""
        self._refuse_own()
        if not os.path.lexists(self.path):
            return
        descriptor = self._open(os.O_RDWR)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _HELD:
                raise self._in_use(_read(descriptor)) from None
        finally:
            os.close(descriptor)

    def _refuse_own(self) -> None:
        """Refuse a directory that another part of this process holds; opening the file would end its lock."""
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
            # A record lock, because a forked worker process must not keep it alive.
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _HELD:
                raise self._in_use(holder) from None
            if error.errno not in _NO_LOCKS:
                raise RunDirectoryError(f"{self.path} cannot be locked: {error.strerror}") from None
            warnings.warn(
                f"the file system of {self.run_dir} has no locks ({error.strerror}), so nothing keeps a second "
                "process out: do not use this directory twice at a time",
                stacklevel=3,
            )

    def _own(self, descriptor: int) -> None:
        self._descriptor, self._key = descriptor, _identity(os.fstat(descriptor))
        RunLock._held.add(self._key)
        with suppress(OSError):  # on a full disk the lock holds without a name
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps({"process": os.getpid(), "host": socket.gethostname()}).encode(), 0)

    def _open(self, flags: int) -> int:
        try:
            return open_regular(self.path, flags)
        except OSError as error:
            raise RunDirectoryError(f"{self.path} cannot be opened: {error.strerror}") from None

    def _is_current(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), self.path.lstat())
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Give the lock back; doing so twice is fine."""
        if self._descriptor is None or self._key[0] != os.getpid():
            return
        with suppress(OSError):  # a directory that was removed or became read-only
            self.path.unlink(missing_ok=True)
        RunLock._held.discard(self._key)
        os.close(self._descriptor)
        self._descriptor = None


def _identity(status: os.stat_result) -> tuple[int, int, int]:
    return os.getpid(), status.st_dev, status.st_ino


def _read(descriptor: int) -> dict[str, Any]:
    try:
        holder = json.loads(os.pread(descriptor, 4096, 0) or b"{}")
    except (ValueError, RecursionError):
        return {}
    return holder if isinstance(holder, dict) else {}
