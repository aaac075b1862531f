"""One process per run directory: a lock that the operating system gives back when its holder dies, however it dies."""

import fcntl
import json
import os
import socket
import warnings
from pathlib import Path
from typing import Any

from rl_training.errors import RunDirectoryError

LOCK_FILE = "run.lock"


class RunLock:
    """Held from `acquire` to `release`; the file says by whom."""

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir / LOCK_FILE
        self._descriptor: int | None = None

    def acquire(self) -> "RunLock":
        """Take the lock, or say who has it; one that a killed process left behind is taken over, with a warning."""
        descriptor = self._open()
        holder = _read(descriptor)
        try:
            # A record lock, because a forked worker process must not keep it alive.
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise RunDirectoryError(
                f"{self.path.parent} is in use by process {holder.get('process')} on {holder.get('host')}: "
                "wait for it, or stop it first"
            ) from None
        if not self._is_current(descriptor):  # released and removed by its holder while we waited for nothing
            os.close(descriptor)
            return self.acquire()
        if holder:
            warnings.warn(
                f"process {holder.get('process')} on {holder.get('host')} left {self.path} without ending its run; "
                "it is gone, so the run goes on here",
                stacklevel=2,
            )
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps({"process": os.getpid(), "host": socket.gethostname()}).encode(), 0)
        self._descriptor = descriptor
        return self

    def _open(self) -> int:
        try:
            return os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise RunDirectoryError(f"{self.path} cannot be opened: {error.strerror}") from None

    def _is_current(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), self.path.stat())
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Give the lock back; doing so twice is fine."""
        if self._descriptor is not None:
            self.path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None


def _read(descriptor: int) -> dict[str, Any]:
    try:
        holder = json.loads(os.pread(descriptor, 4096, 0) or b"{}")
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) else {}
