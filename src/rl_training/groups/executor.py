"""Training several runs at the same time: the protocol of executors, which train runs, and the loop over jobs."""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Protocol

from rl_training.groups.jobs import Outcome, ProgressUpdate, RunJob
from rl_training.signals import handling_stop_signals

_POLL_SECONDS = 0.25


@dataclass(frozen=True)
class Started:
    """The event that the process of a run has started."""


RunEvent = Started | ProgressUpdate | Outcome


class Executor(Protocol):
    """Trains runs. Each run is identified by the name of its job until its outcome has been returned."""

    def has_room(self) -> bool:
        """Return whether another run can start now."""

    def start(self, job: RunJob) -> None:
        """Start a run."""

    def poll(self, seconds: float) -> list[tuple[str, ProgressUpdate | Outcome]]:
        """Return new events as (name, event) pairs; if there is none, wait for one for up to `seconds`."""

    def stop(self, number: int) -> None:
        """Send a stop signal to every run, which then saves its state and ends; further calls do nothing."""

    def kill(self) -> None:
        """Kill every run and all programs that its envs have started."""

    def close(self) -> None:
        """Stop the runs that still train, and wait until they have saved."""


def run_jobs(
    next_job: Callable[[], RunJob | None], executor: Executor, max_running: int, signals: Sequence[int]
) -> Generator[tuple[str, RunEvent] | None, None, None]:
    """Train the jobs that `next_job` returns, at most `max_running` at a time, and yield (name, event) pairs.

    `next_job` returns None if nothing can start before another run has ended. The loop ends when `next_job` returns
    None and no run is left. It yields None several times per second. The caller may append to `signals` at any time:
    the first entry is sent to all runs, and no further job is started; the second entry kills them.
    """
    running: set[str] = set()
    chosen: RunJob | None = None
    try:
        while True:
            while len(running) < max_running and not signals:
                has_room = executor.has_room()
                if chosen is None and (has_room or not running):  # as late as possible, when more results are known
                    chosen = next_job()
                if chosen is None or not has_room:
                    break
                executor.start(chosen)
                running.add(chosen.name)
                yield chosen.name, Started()
                chosen = None
            if not running and (chosen is None or signals):
                return
            for name, event in executor.poll(_POLL_SECONDS):
                if isinstance(event, Outcome):
                    running.remove(name)
                yield name, event
            if len(signals) > 1:
                executor.kill()
            elif signals:
                executor.stop(signals[0])
            yield None
    finally:
        executor.close()


@contextmanager
def collected_signals() -> Iterator[list[int]]:
    """Collect the stop signals that arrive inside the block in a list."""
    received: list[int] = []

    def collect(number: int, frame: FrameType | None) -> None:
        del frame
        received.append(number)

    with handling_stop_signals(collect):
        yield received
