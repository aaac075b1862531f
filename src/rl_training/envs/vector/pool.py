"""Worker processes as their owner sees them: commands out, answers or failures back, no endless wait."""

import multiprocessing
import signal
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any

from rl_training.envs.vector.protocol import EnvFactory
from rl_training.envs.vector.serving import (
    CLOSE,
    SLICE_SECONDS,
    Command,
    Countdown,
    Failure,
    SharedArrays,
    SharedMemory,
    pack,
    receive,
    serve,
)
from rl_training.errors import describe_exit
from rl_training.interpreters import start_fork_server
from rl_training.processes import kill_group, kill_tree
from rl_training.signals import STOP_SIGNALS

_PATIENCE = 0.01  # seconds; an answer that comes sooner needs no more than a plain read
_DYING_SECONDS = 2.0  # for the system to clear away a process
_CLOSING_SECONDS = 2.0  # for envs to close in good order


@dataclass(frozen=True)
class WorkerFailure:
    """Why a worker did not do what it was told, and which env it was busy with."""

    index: int
    cause: str
    trace: str = ""
    """The worker's own traceback, if its env raised."""
    permanent: bool = False
    """Whether a new start cannot help."""


Failures = dict[int, WorkerFailure]
"""By the number of the worker."""


class Worker:
    """One worker process; it is running when this has been made."""

    def __init__(
        self, name: str, envs: range, env_fns: Sequence[EnvFactory], memory: SharedMemory, siblings: Iterable["Worker"]
    ) -> None:
        self.envs = envs
        self.end, theirs = socket.socketpair()
        owned = [worker.end for worker in siblings if worker.end.fileno() >= 0]
        self.process = multiprocessing.Process(
            target=serve, args=(theirs, [*owned, self.end], (envs.start, env_fns, memory)), name=name, daemon=True
        )
        self._busy = False
        start_fork_server(multiprocessing.get_start_method())
        with theirs, _stop_signals_blocked():
            try:
                self.process.start()
            except BaseException:
                self.end.close()
                raise
        assert self.process.pid is not None
        self._pid = self.process.pid

    def send(self, command: Command, countdown: Countdown) -> None:
        """Raises `OSError` if the worker is gone or does not listen."""
        if self._busy:
            raise TimeoutError
        self._busy = True
        self.end.settimeout(SLICE_SECONDS)
        message = memoryview(pack(command))
        while message:
            try:
                message = message[self.end.send(message) :]
            except TimeoutError:
                if not countdown.left():
                    raise
        self.end.settimeout(_PATIENCE)

    def receive(self, countdown: Countdown) -> Any:
        """The answer; `TimeoutError` if there is none yet, `OSError` or `EOFError` if there will be none."""
        answer = receive(self.end, countdown)
        self._busy = False
        return answer

    def describe_end(self, otherwise: str) -> str:
        """How the process ended; `otherwise` if it goes on."""
        code = self.process.exitcode
        return otherwise if code is None else describe_exit(code)

    def kill(self) -> None:
        """End the process, whatever it is doing, and the programs that its envs have started and not ended."""
        self.end.close()
        if self.process.exitcode is None:
            kill_tree(self._pid)
            self.process.kill()  # it may not lead a group yet
            self.process.join(_DYING_SECONDS)
        else:
            kill_group(self._pid)


@contextmanager
def _stop_signals_blocked() -> Iterator[None]:
    """Block the stop signals while a process starts, until it has installed handlers of its own."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class WorkerPool:
    """Workers by number, each with some neighbouring envs."""

    def __init__(self, env_fns: Sequence[EnvFactory], envs_per_worker: int, memory: SharedMemory) -> None:
        self.slices = [
            range(first, min(first + envs_per_worker, len(env_fns)))
            for first in range(0, len(env_fns), envs_per_worker)
        ]
        self.workers: list[Worker] = []
        self._env_fns = env_fns
        self._memory = memory
        self._arrays = SharedArrays(memory)

    def start(self) -> None:
        """Start all workers."""
        for number in range(len(self.slices)):
            self.workers.append(self._start_worker(number))

    def start_again(self, number: int) -> None:
        """Put a new worker in the place of one that failed."""
        self.workers[number].kill()
        self.workers[number] = self._start_worker(number)

    def _start_worker(self, number: int) -> Worker:
        envs = self.slices[number]
        return Worker(f"envs-{number}", envs, self._env_fns[envs.start : envs.stop], self._memory, self.workers)

    def exchange(self, commands: dict[int, Command], seconds: float, answers: dict[int, Any]) -> Failures:
        """Send all commands, then add what the envs answer (by their index) to `answers`; the failures, by worker."""
        countdown = Countdown(seconds)
        failures: Failures = {}
        for number, command in commands.items():
            worker = self.workers[number]
            self._arrays.current[worker.envs.start] = worker.envs.start
            try:
                worker.send(command, countdown)
            except TimeoutError:
                failures[number] = self._failure_of(worker, "it takes no commands")
            except OSError:
                failures[number] = self._gone(worker)
        waiting = [number for number in commands if number not in failures]
        while waiting:
            expired = not countdown.left()  # before the look: an answer may have come while this process was stopped
            waiting = [number for number in waiting if not self._collect(number, countdown, answers, failures)]
            if waiting and expired:
                silent = f"no answer within {seconds:g} s"
                return failures | {number: self._failure_of(self.workers[number], silent) for number in waiting}
            if waiting:
                self._wait(waiting, countdown)
        return failures

    def _collect(self, number: int, countdown: Countdown, answers: dict[int, Any], failures: Failures) -> bool:
        """Whether a worker's answer, or the news of its end, has come."""
        worker = self.workers[number]
        try:
            answer = worker.receive(countdown)
        except TimeoutError:
            if worker.process.exitcode is None:
                return False
            failures[number] = self._failure_of(worker, "")
        except (EOFError, OSError):
            failures[number] = self._gone(worker)
        else:
            if isinstance(answer, Failure):
                failures[number] = WorkerFailure(answer.index, answer.text, answer.trace, answer.permanent)
            else:
                answers |= answer
        return True

    def _wait(self, numbers: Sequence[int], countdown: Countdown) -> None:
        """Wait for a sign of any of these workers, but no longer than a slice.

        The sign of a worker that died may not come: a process that its env has forked keeps its descriptors open.
        """
        waiting = [self.workers[number] for number in numbers]
        signs = [sign for worker in waiting for sign in (worker.end, worker.process.sentinel)]
        wait(signs, min(countdown.left(), SLICE_SECONDS))

    def _failure_of(self, worker: Worker, otherwise: str) -> WorkerFailure:
        return WorkerFailure(int(self._arrays.current[worker.envs.start]), worker.describe_end(otherwise))

    def _gone(self, worker: Worker) -> WorkerFailure:
        worker.process.join(_DYING_SECONDS)  # its end of the channel is closed before its exit code is known
        return self._failure_of(worker, "it went silent in the middle of an answer")

    def stop(self) -> None:
        """Ask politely, wait a little, then kill: returns within seconds, whatever the workers do."""
        deadline = time.monotonic() + _CLOSING_SECONDS
        for worker in self.workers:
            try:
                worker.end.settimeout(max(deadline - time.monotonic(), _PATIENCE))
                worker.end.sendall(pack(CLOSE))
            except OSError:
                pass  # gone or deaf: killed below
        running = self.workers
        while running and time.monotonic() < deadline:
            wait([worker.process.sentinel for worker in running], _PATIENCE)
            running = [worker for worker in running if worker.process.exitcode is None]
        for worker in self.workers:
            worker.kill()
