"""The processes of a group, seen from the one that owns them: so many at once, what they tell, and how they end."""

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from types import FrameType

import psutil

from rl_training.errors import describe_exit
from rl_training.groups.seed_process import Beat, Ending, SeedJob, live, process_name
from rl_training.interpreters import start_fork_server
from rl_training.processes import kill_group, kill_tree
from rl_training.signals import handled

_LOOK_SECONDS = 0.25
_DYING_SECONDS = 5.0
_SAVING_SECONDS = 10.0
# Imported once, by a server that then forks a process per seed: each would take seconds to import them itself.
_PRELOADED = ["rl_training.groups.seed_process", "torch.utils.tensorboard", "matplotlib.figure"]


@dataclass(frozen=True)
class Start:
    """A seed has got its process."""


SeedEvent = Start | Beat | Ending


class SeedProcess:
    """One running seed."""

    def __init__(self, job: SeedJob) -> None:
        self.seed = job.config.seed
        self._ending: Ending | None = None
        self._stopping = False
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOADED)
        start_fork_server(context.get_start_method())
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=live, args=(job, theirs), name=process_name(self.seed))
        with theirs:
            self._process.start()
        assert self._process.pid is not None
        self._pid = self._process.pid

    def receive(self) -> Beat | Ending | None:
        """What the process says, or that it has ended; waits if it says nothing."""
        try:
            event: Beat | Ending = self.connection.recv()
        except (EOFError, OSError):  # every copy of its end is closed
            return self._end()
        if isinstance(event, Beat):
            return event
        self._ending = event  # it still has to clear up
        return None

    def _end(self) -> Ending:
        self.connection.close()
        self._process.join(_DYING_SECONDS)
        kill_group(self._pid)
        if self._ending is not None:
            return self._ending
        code = self._process.exitcode
        reason = "it went silent" if code is None else describe_exit(code)
        if self._stopping:
            return Ending("interrupted", reason)
        return Ending("failed", f"{reason} (out of memory?)" if code == -signal.SIGKILL else reason)

    def stop(self, number: int) -> None:
        """Pass a signal on, once."""
        if not self._stopping:
            self._stopping = True
            self._send(number)

    def wait(self, seconds: float) -> None:
        """Let a process that was asked to stop save its run."""
        self._process.join(seconds)

    def kill(self) -> None:
        """End the process, whatever it is doing, and the programs that its envs have started."""
        self._stopping = True
        kill_tree(self._pid)
        self._send(signal.SIGKILL)  # it may not lead a group yet

    def sweep(self) -> None:
        """Kill what a process that is gone has left behind; a child that it forked keeps the connection open."""
        if not psutil.pid_exists(self._pid):
            kill_group(self._pid)

    def _send(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._pid, number)


def run_at_once(
    jobs: Iterable[SeedJob], most: int, signals: Sequence[int]
) -> Generator[tuple[int, SeedEvent] | None, None, None]:
    """Give every job a process, `most` at a time; what becomes of them, by seed, or none when time has passed.

    `signals` grows: its first entry is passed on, and no further job begins; its second kills.
    """
    waiting = deque(jobs)
    running: list[SeedProcess] = []
    try:
        while running or (waiting and not signals):
            while waiting and len(running) < most and not signals:
                running.append(SeedProcess(waiting.popleft()))
                yield running[-1].seed, Start()
            for process in _speaking(running):
                event = process.receive()
                if isinstance(event, Ending):
                    running.remove(process)
                if event is not None:
                    yield process.seed, event
            for process in running:
                process.sweep()
                _pass_on(signals, process)
            yield None
    finally:
        for process in running:  # whoever listened has failed
            process.stop(signal.SIGTERM)
        for process in running:
            process.wait(_SAVING_SECONDS)


def _speaking(running: Sequence[SeedProcess]) -> list[SeedProcess]:
    ready = wait([process.connection for process in running], _LOOK_SECONDS)
    return [process for process in running if process.connection in ready]


def _pass_on(signals: Sequence[int], process: SeedProcess) -> None:
    if len(signals) > 1:
        process.kill()
    elif signals:
        process.stop(signals[0])


@contextmanager
def collected_signals() -> Iterator[list[int]]:
    """The signals that ask to stop, as they come."""
    received: list[int] = []

    def collect(number: int, frame: FrameType | None) -> None:
        del frame
        received.append(number)

    with handled(collect):
        yield received
