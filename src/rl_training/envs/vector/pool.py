"""The parent's side of the worker processes: send commands, receive answers or failures, never wait forever."""

import multiprocessing
import signal
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import wait
from typing import Any

from rl_training.envs.vector.protocol import EnvFactory
from rl_training.envs.vector.serving import (
    CLOSE,
    SLICE_SECONDS,
    Command,
    Countdown,
    EnvServer,
    Server,
    SharedArrays,
    SharedMemory,
    WorkerFailure,
    pack,
    receive,
    serve,
)
from rl_training.errors import describe_exit
from rl_training.interpreters import start_fork_server
from rl_training.processes import kill_group, kill_tree
from rl_training.signals import STOP_SIGNALS

_POLL_SECONDS = 0.01  # an answer that arrives sooner needs only one plain read
_KILL_SECONDS = 2.0  # for the system to end a killed process
_CLOSE_SECONDS = 2.0  # for the envs to close by themselves


Failures = dict[int, WorkerFailure]
"""Failures by worker number."""


class Worker:
    """A worker process, which the constructor starts."""

    def __init__(self, name: str, make_server: Callable[[], Server], siblings: Iterable["Worker"]) -> None:
        """`make_server` is called in the new process; `siblings` are the other workers of this process."""
        self.channel, worker_channel = socket.socketpair()
        owned = [worker.channel for worker in siblings if worker.channel.fileno() >= 0]
        self.process = multiprocessing.Process(
            target=serve,
            args=(worker_channel, [*owned, self.channel], make_server),
            name=name,
            daemon=True,
        )
        self._busy = False
        start_fork_server(multiprocessing.get_start_method())
        with worker_channel, _stop_signals_blocked():
            try:
                self.process.start()
            except BaseException:
                self.channel.close()
                raise
        assert self.process.pid is not None
        self._pid = self.process.pid

    def send(self, command: Command, countdown: Countdown) -> None:
        """Send a command. Raises `OSError` if the worker is gone or does not accept it."""
        if self._busy:
            raise TimeoutError
        self._busy = True
        self.channel.settimeout(SLICE_SECONDS)
        message = memoryview(pack(command))
        while message:
            try:
                message = message[self.channel.send(message) :]
            except TimeoutError:
                if not countdown.left():
                    raise
        self.channel.settimeout(_POLL_SECONDS)

    def receive(self, countdown: Countdown) -> Any:
        """Return the answer. Raises `TimeoutError` if there is none yet, `OSError` or `EOFError` if none will come."""
        answer = receive(self.channel, countdown)
        self._busy = False
        return answer

    def describe_end(self, otherwise: str) -> str:
        """Describe how the process ended; return `otherwise` if it is still running."""
        code = self.process.exitcode
        return otherwise if code is None else describe_exit(code)

    def describe_loss(self) -> str:
        """Describe how a process ended whose channel is closed."""
        self.process.join(_KILL_SECONDS)  # the channel is closed before the exit code is known
        return self.describe_end("it stopped in the middle of an answer")

    def kill(self) -> None:
        """Kill the process and all programs that its envs have started."""
        self.channel.close()
        if self.process.exitcode is None:
            kill_tree(self._pid)
            self.process.kill()  # it may not be the leader of its group yet
            self.process.join(_KILL_SECONDS)
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
    """Numbered workers, each with a contiguous range of envs."""

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

    def restart(self, number: int) -> None:
        """Replace a worker that failed by a new one."""
        self.workers[number].kill()
        self.workers[number] = self._start_worker(number)

    def _start_worker(self, number: int) -> Worker:
        envs = self.slices[number]
        make_server = partial(EnvServer, envs.start, self._env_fns[envs.start : envs.stop], self._memory)
        return Worker(f"envs-{number}", make_server, self.workers)

    def exchange(self, commands: dict[int, Command], seconds: float, answers: dict[int, Any]) -> Failures:
        """Send all commands, add the answers (by env index) to `answers`, and return the failures (by worker)."""
        countdown = Countdown(seconds)
        failures: Failures = {}
        for number, command in commands.items():
            first = self.slices[number].start
            self._arrays.current[first] = first
            try:
                self.workers[number].send(command, countdown)
            except TimeoutError:
                failures[number] = self._make_failure(number, "it does not accept commands")
            except OSError:
                failures[number] = self._disconnected(number)
        waiting = [number for number in commands if number not in failures]
        while waiting:
            expired = not countdown.left()  # before collecting: an answer may have come while this process was stopped
            waiting = [number for number in waiting if not self._collect(number, countdown, answers, failures)]
            if waiting and expired:
                silent = f"no answer within {seconds:g} s"
                return failures | {number: self._make_failure(number, silent) for number in waiting}
            if waiting:
                self._wait(waiting, countdown)
        return failures

    def _collect(self, number: int, countdown: Countdown, answers: dict[int, Any], failures: Failures) -> bool:
        """Collect the answer or the failure of a worker; return whether there was one."""
        worker = self.workers[number]
        try:
            answer = worker.receive(countdown)
        except TimeoutError:
            if worker.process.exitcode is None:
                return False
            failures[number] = self._make_failure(number, "")
        except (EOFError, OSError):
            failures[number] = self._disconnected(number)
        else:
            if isinstance(answer, WorkerFailure):
                failures[number] = answer
            else:
                answers |= answer
        return True

    def _wait(self, numbers: Sequence[int], countdown: Countdown) -> None:
        """Wait until one of these workers answers or ends, for at most `SLICE_SECONDS`.

        The end of a worker may go unnoticed, because a process that its env has forked keeps its descriptors open.
        """
        waiting = [self.workers[number] for number in numbers]
        handles = [handle for worker in waiting for handle in (worker.channel, worker.process.sentinel)]
        wait(handles, min(countdown.left(), SLICE_SECONDS))

    def _make_failure(self, number: int, otherwise: str) -> WorkerFailure:
        first = self.slices[number].start
        return WorkerFailure(int(self._arrays.current[first]), self.workers[number].describe_end(otherwise))

    def _disconnected(self, number: int) -> WorkerFailure:
        return self._make_failure(number, self.workers[number].describe_loss())

    def stop(self) -> None:
        """Ask the workers to close, wait briefly, then kill them. Returns within a few seconds."""
        stop_workers(self.workers)


def stop_workers(workers: Sequence[Worker]) -> None:
    """Ask workers to close, wait briefly, then kill them. Returns within a few seconds."""
    deadline = time.monotonic() + _CLOSE_SECONDS
    for worker in workers:
        try:
            worker.channel.settimeout(max(deadline - time.monotonic(), _POLL_SECONDS))
            worker.channel.sendall(pack(CLOSE))
        except OSError:
            pass  # gone, or does not read: killed below
    running = workers
    while running and time.monotonic() < deadline:
        wait([worker.process.sentinel for worker in running], _POLL_SECONDS)
        running = [worker for worker in running if worker.process.exitcode is None]
    for worker in workers:
        worker.kill()
