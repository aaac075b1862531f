"""The seed processes of a group, as the main process sees them: starting, receiving events, passing on signals."""

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
from rl_training.groups.seed_process import Outcome, ProgressUpdate, SeedJob, process_name, run_seed
from rl_training.interpreters import start_fork_server
from rl_training.processes import kill_group, kill_tree
from rl_training.signals import handling_stop_signals

_POLL_SECONDS = 0.25
_EXIT_SECONDS = 5.0
_SAVING_SECONDS = 10.0
# The fork server imports these once; otherwise, each seed process would spend seconds on importing them.
_PRELOADED = ["rl_training.groups.seed_process", "torch.utils.tensorboard", "matplotlib.figure"]


@dataclass(frozen=True)
class Started:
    """The event that the process of a seed has started."""


SeedEvent = Started | ProgressUpdate | Outcome


class SeedProcess:
    """The process of one running seed."""

    def __init__(self, job: SeedJob) -> None:
        self.seed = job.config.seed
        self._outcome: Outcome | None = None
        self._stopping = False
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOADED)
        start_fork_server(context.get_start_method())
        self.connection, child_connection = context.Pipe()
        self._process = context.Process(target=run_seed, args=(job, child_connection), name=process_name(self.seed))
        with child_connection:
            self._process.start()
        assert self._process.pid is not None
        self._pid = self._process.pid

    def receive(self) -> ProgressUpdate | Outcome | None:
        """Wait for the next event; the outcome is returned only after the process has closed its connection."""
        try:
            event: ProgressUpdate | Outcome = self.connection.recv()
        except (EOFError, OSError):  # the process, and every child that inherited the connection, has closed it
            return self._finish()
        if isinstance(event, ProgressUpdate):
            return event
        self._outcome = event  # the process has not finished its clean-up yet
        return None

    def _finish(self) -> Outcome:
        self.connection.close()
        self._process.join(_EXIT_SECONDS)
        kill_group(self._pid)
        if self._outcome is not None:
            return self._outcome
        code = self._process.exitcode
        reason = "it closed its connection without exiting" if code is None else describe_exit(code)
        if self._stopping:
            return Outcome("interrupted", reason)
        return Outcome("failed", f"{reason} (out of memory?)" if code == -signal.SIGKILL else reason)

    def stop(self, number: int) -> None:
        """Send a signal to the process; further calls do nothing."""
        if not self._stopping:
            self._stopping = True
            self._send(number)

    def wait(self, seconds: float) -> None:
        """Wait for a stopping process to save its run and exit."""
        self._process.join(seconds)

    def kill(self) -> None:
        """Kill the process and all programs that its envs have started."""
        self._stopping = True
        kill_tree(self._pid)
        self._send(signal.SIGKILL)  # a process that has just started does not lead a process group yet

    def kill_orphans(self) -> None:
        """Kill the children of a process that no longer exists, because they keep its connection open."""
        if not psutil.pid_exists(self._pid):
            kill_group(self._pid)

    def _send(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._pid, number)


def run_processes(
    jobs: Iterable[SeedJob], max_running: int, signals: Sequence[int]
) -> Generator[tuple[int, SeedEvent] | None, None, None]:
    """Run each job in its own process, at most `max_running` at a time, and yield (seed, event) pairs.

    Yields None several times per second. The caller may append to `signals` meanwhile: the first entry is sent to
    the running processes, and no further job is started; the second entry kills them.
    """
    waiting = deque(jobs)
    running: list[SeedProcess] = []
    try:
        while running or (waiting and not signals):
            while waiting and len(running) < max_running and not signals:
                running.append(SeedProcess(waiting.popleft()))
                yield running[-1].seed, Started()
            for process in _wait_for_events(running):
                event = process.receive()
                if isinstance(event, Outcome):
                    running.remove(process)
                if event is not None:
                    yield process.seed, event
            for process in running:
                process.kill_orphans()
                _forward_signal(signals, process)
            yield None
    finally:
        for process in running:  # some still run only if the caller has failed
            process.stop(signal.SIGTERM)
        for process in running:
            process.wait(_SAVING_SECONDS)


def _wait_for_events(running: Sequence[SeedProcess]) -> list[SeedProcess]:
    ready = wait([process.connection for process in running], _POLL_SECONDS)
    return [process for process in running if process.connection in ready]


def _forward_signal(signals: Sequence[int], process: SeedProcess) -> None:
    if len(signals) > 1:
        process.kill()
    elif signals:
        process.stop(signals[0])


@contextmanager
def collected_signals() -> Iterator[list[int]]:
    """Collect the stop signals that arrive inside the block in a list."""
    received: list[int] = []

    def collect(number: int, frame: FrameType | None) -> None:
        del frame
        received.append(number)

    with handling_stop_signals(collect):
        yield received
