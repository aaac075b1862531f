"""Runs in processes of this machine, as the main process sees them: starting, receiving events, passing on signals."""

import multiprocessing
import os
import pickle
import signal
from contextlib import suppress
from multiprocessing.connection import Connection, wait

import psutil

from rl_training.errors import describe_exit
from rl_training.groups.jobs import Outcome, PackedJob, ProgressUpdate, RunJob
from rl_training.interpreters import start_fork_server
from rl_training.processes import kill_group, kill_tree

_EXIT_SECONDS = 5.0
_SAVING_SECONDS = 10.0
# The fork server imports these once; otherwise, the process of each run would spend seconds on importing them.
_PRELOADED = ["rl_training.groups.run_process", "torch.utils.tensorboard", "matplotlib.figure"]


def _train(job: PackedJob, connection: Connection) -> None:
    """Train a run: the main function of its process."""
    from rl_training.groups.run_process import train_job

    train_job(pickle.loads(job.content), connection)


class RunProcess:
    """The process of one run."""

    def __init__(self, job: PackedJob) -> None:
        self._outcome: Outcome | None = None
        self._stopping = False
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOADED)
        start_fork_server(context.get_start_method())
        self.connection, child_connection = context.Pipe()
        self._process = context.Process(target=_train, args=(job, child_connection), name=job.process_name)
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
        reason = f"{reason} (out of memory?)" if code == -signal.SIGKILL else reason
        return Outcome("failed", reason, is_lost=True)

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


class ProcessExecutor:
    """Trains each run in a process of its own on this machine."""

    def __init__(self) -> None:
        self._running: dict[str, RunProcess] = {}

    def has_room(self) -> bool:
        """Return True: the number of jobs alone limits how many processes run."""
        return True

    def start(self, job: RunJob) -> None:
        """Start the process of a run."""
        self.start_packed(job.pack())

    def start_packed(self, job: PackedJob) -> None:
        """Start the process of a run whose job came from another process."""
        self._running[job.name] = RunProcess(job)

    def poll(self, seconds: float) -> list[tuple[str, ProgressUpdate | Outcome]]:
        """Return new events as (name, event) pairs; if there is none, wait for one for up to `seconds`."""
        ready = wait([process.connection for process in self._running.values()], seconds)
        senders = {name: process for name, process in self._running.items() if process.connection in ready}
        received = [(name, process.receive()) for name, process in senders.items()]
        events = [(name, event) for name, event in received if event is not None]
        for name, event in events:
            if isinstance(event, Outcome):
                del self._running[name]
        for process in self._running.values():
            process.kill_orphans()
        return events

    def stop(self, number: int) -> None:
        """Send a signal to every process; further calls do nothing."""
        for process in list(self._running.values()):  # another thread may poll
            process.stop(number)

    def kill(self) -> None:
        """Kill every process and all programs that its envs have started."""
        for process in list(self._running.values()):
            process.kill()

    def close(self) -> None:
        """Stop the runs that still train, and wait until they have saved."""
        self.stop(signal.SIGTERM)
        for process in self._running.values():
            process.wait(_SAVING_SECONDS)
