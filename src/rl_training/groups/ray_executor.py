"""Runs on a Ray cluster, as the driver sees them: each has an actor that watches over its process on some node."""

import signal
import time
import warnings
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from rl_training.errors import ClusterError, describe_error
from rl_training.experiment.checkpointing import step_checkpoints, step_of
from rl_training.groups.jobs import LOCK_SECONDS, Outcome, ProgressUpdate, RunJob
from rl_training.groups.run_actor import SILENCE_SECONDS, RunActor, Surroundings

_MAX_LOSSES = 3  # in a row, without a new checkpoint
_MAX_REFUSALS = 5
_REFUSAL_SECONDS = 5.0
_SAVING_SECONDS = 10.0
_KILLING_SECONDS = 10.0
_SENDING_SECONDS = 5.0
_MAX_COUNTED_SECONDS = 2.0  # a longer gap between two polls counts as this long: the driver was stopped (Ctrl-Z)
_CALLS_AT_ONCE = 3  # of an actor: one waits for events, one stops or kills, one is a reserve

Event = ProgressUpdate | Outcome
Phase = Literal["waiting", "placing", "starting", "training"]


class Nodes(Protocol):
    """The nodes that may train runs."""

    cpus: int
    """CPUs that each run needs."""

    @property
    def fit_nodes(self) -> frozenset[str]:
        """The ids of these nodes."""

    @property
    def capacity(self) -> int:
        """The number of runs that these nodes have CPUs for."""

    def refresh(self) -> None:
        """Look for nodes that have joined or gone. Raise `ClusterError` if the cluster is lost."""

    def describe_loss(self, node_id: str) -> str:
        """Describe the loss of a run's actor on this node, whether or not the node is lost too."""


@dataclass
class RemoteRun:
    """A run on the cluster: waiting for room, for its place, for its process, or in training."""

    job: RunJob
    saved_step: int
    """The env step of its newest checkpoint when it was last lost; -1 for none."""
    phase: Phase = "waiting"
    actor: Any = None
    answer: Any = None
    """A reference to the answer of the actor's current call."""
    silence: float = 0.0
    """Seconds since that call."""
    node_id: str = ""
    nodes: frozenset[str] = frozenset()
    """The nodes among which Ray was asked to choose."""
    losses: int = 0
    """How often it was lost in a row without a new checkpoint."""
    refusals: int = 0
    """How often in a row no actor could be created for it."""
    not_before: float = 0.0
    """The time at which to try again to create an actor."""

    def call(self, phase: Phase, answer: Any) -> None:
        """Note the next call of the actor."""
        self.phase, self.answer, self.silence = phase, answer, 0.0


class RayExecutor:
    """Trains each run in a process on a node of a Ray cluster. A lost run continues from its last checkpoint."""

    def __init__(self, ray: Any, cluster: Nodes) -> None:
        self._ray, self._cluster = ray, cluster
        self._runs: dict[str, RemoteRun] = {}
        self._idle: list[Any] = []  # actors whose run has just ended: the next run need not wait for a new one
        self._actor_class = ray.remote(num_cpus=cluster.cpus, max_restarts=0, max_concurrency=_CALLS_AT_ONCE)(RunActor)
        self._surroundings = Surroundings.of_this_process()
        self._signal: int | None = None
        self._killed_at: float | None = None
        self._polled_at = time.monotonic()

    def has_room(self) -> bool:
        """Return whether the cluster has CPUs for another run."""
        self._cluster.refresh()
        return len(self._runs) < self._cluster.capacity

    def start(self, job: RunJob) -> None:
        """Start a run on some node."""
        job = replace(job, lock_seconds=LOCK_SECONDS)
        self._runs[job.name] = RemoteRun(job, _newest_step(job))
        self._place(self._runs[job.name])

    def _place(self, run: RemoteRun) -> None:
        run.nodes = self._cluster.fit_nodes
        if self._idle:
            run.actor = self._idle.pop()
        else:
            selector = {"ray.io/node-id": f"in({','.join(sorted(run.nodes))})"}
            run.actor = self._actor_class.options(label_selector=selector).remote(self._surroundings)
        run.call("placing", run.actor.node_id.remote())

    def poll(self, seconds: float) -> list[tuple[str, Event]]:
        """Return new events as (name, event) pairs; if there is none, wait for one for up to `seconds`."""
        self._kill_actors(self._idle)
        self._cluster.refresh()
        events = [event for run in list(self._runs.values()) for event in self._advance(run)]
        waiting = {run.answer: run for run in self._runs.values() if run.answer is not None}
        if events:
            return events
        if not waiting:
            time.sleep(seconds)
            return []
        self._ray.wait(list(waiting), num_returns=1, timeout=seconds, fetch_local=False)
        ready, _ = self._ray.wait(list(waiting), num_returns=len(waiting), timeout=0.0, fetch_local=False)
        events = [event for reference in ready for event in self._receive(waiting[reference], reference)]
        return events + self._count_silence([waiting[each] for each in waiting if each not in ready])

    def _advance(self, run: RemoteRun) -> list[tuple[str, Event]]:
        """Place a waiting run, or place a run again if the nodes have changed; end the run if all runs are stopping."""
        if run.phase not in ("waiting", "placing"):
            return []
        if self._signal is not None:
            return self._end(run, Outcome("interrupted", signal.Signals(self._signal).name), reusable=False)
        nodes = self._cluster.fit_nodes
        if run.phase == "placing" and run.nodes != nodes:
            self._discard(run)
        num_placed = sum(each.phase != "waiting" for each in self._runs.values())
        if run.phase == "waiting" and num_placed < self._cluster.capacity and time.monotonic() >= run.not_before:
            self._place(run)
        return []

    def _receive(self, run: RemoteRun, reference: Any) -> list[tuple[str, Event]]:
        try:
            answer = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            if run.phase == "placing":
                return self._refuse(run, describe_error(error))
            return self._lose(run, self._cluster.describe_loss(run.node_id))
        if run.phase == "placing":
            run.node_id, run.refusals = answer, 0
            run.call("starting", run.actor.start.remote(run.job.pack()))
            return []
        if run.phase == "starting" and self._signal is not None:
            run.actor.stop.remote(self._signal)
        return self._handle(run, answer or [])

    def _handle(self, run: RemoteRun, events: list[Event]) -> list[tuple[str, Event]]:
        """Pass on what the actor reports, and ask it again unless the run has ended."""
        updates: list[tuple[str, Event]] = [(run.job.name, event) for event in events if not isinstance(event, Outcome)]
        outcome = next((event for event in events if isinstance(event, Outcome)), None)
        if outcome is None:
            run.call("training", run.actor.poll.remote())
            return updates
        if self._signal is None and (outcome.is_lost or outcome.status == "interrupted"):
            return updates + self._lose(run, outcome.reason or outcome.status)
        return updates + self._end(run, outcome, reusable=True)

    def _refuse(self, run: RemoteRun, reason: str) -> list[tuple[str, Event]]:
        """Schedule another attempt to create an actor, because Ray may not know yet that a node is gone."""
        run.refusals += 1
        if run.refusals >= _MAX_REFUSALS:
            return self._end(run, Outcome("failed", f"no node can train it: {reason}"), reusable=False)
        self._discard(run)
        run.not_before = time.monotonic() + _REFUSAL_SECONDS
        return []

    def _lose(self, run: RemoteRun, reason: str) -> list[tuple[str, Event]]:
        """Let a lost run continue elsewhere, unless it was lost too often."""
        if self._signal is not None:
            return self._end(run, Outcome("interrupted", reason), reusable=False)
        step = _newest_step(run.job)
        run.losses = 1 if step > run.saved_step else run.losses + 1
        run.saved_step = step
        if run.losses >= _MAX_LOSSES:
            reason = f"{reason}; this happened {run.losses} times without a new checkpoint"
            return self._end(run, Outcome("failed", reason), reusable=False)
        where = f"its checkpoint of step {step}" if step >= 0 else "the beginning"
        warnings.warn(f"run {run.job.name}: {reason}; it goes on from {where}", stacklevel=2)
        self._discard(run)
        return []

    def _count_silence(self, silent: list[RemoteRun]) -> list[tuple[str, Event]]:
        """Treat runs whose actors hang as lost, because Ray does not notice that an actor hangs."""
        now = time.monotonic()
        elapsed, self._polled_at = min(now - self._polled_at, _MAX_COUNTED_SECONDS), now
        for run in silent:
            run.silence += elapsed if run.phase == "training" else 0.0
        hanging = [run for run in silent if run.silence > SILENCE_SECONDS]
        reason = f"its actor did not answer within {SILENCE_SECONDS:g} s"
        return [event for run in hanging for event in self._lose(run, reason)]

    def _end(self, run: RemoteRun, outcome: Outcome, *, reusable: bool) -> list[tuple[str, Event]]:
        del self._runs[run.job.name]
        if reusable:
            self._idle.append(run.actor)
        else:
            self._discard(run)
        return [(run.job.name, outcome)]

    def _discard(self, run: RemoteRun) -> None:
        """End the actor of a run; the run then waits for another actor."""
        self._kill_actors([] if run.actor is None else [run.actor])
        run.actor, run.node_id = None, ""
        run.call("waiting", None)

    def _kill_actors(self, actors: list[Any]) -> None:
        while actors:
            self._ray.kill(actors.pop())

    def stop(self, number: int) -> None:
        """Send a stop signal to every run; further calls do nothing."""
        if self._signal is None:
            self._signal = number
            sent = [run.actor.stop.remote(number) for run in self._runs.values() if run.phase == "training"]
            if sent:
                self._ray.wait(sent, num_returns=len(sent), timeout=_SENDING_SECONDS)

    def kill(self) -> None:
        """Kill every run; a later call gives up the runs that have not ended within some seconds."""
        self.stop(signal.SIGTERM)
        now = time.monotonic()
        if self._killed_at is None:
            self._killed_at = now
            for run in self._runs.values():
                if run.actor is not None:
                    run.actor.kill.remote()
        elif now - self._killed_at > _KILLING_SECONDS:
            for run in self._runs.values():
                self._discard(run)

    def close(self) -> None:
        """Stop the runs that still train, and wait until they have saved."""
        self.stop(signal.SIGTERM)
        deadline = time.monotonic() + _SAVING_SECONDS
        with suppress(ClusterError):  # the runs save by themselves
            while self._runs and time.monotonic() < deadline:
                self.poll(0.25)
        for run in self._runs.values():
            self._discard(run)
        self._kill_actors(self._idle)


def _newest_step(job: RunJob) -> int:
    saved = step_checkpoints(job.run_dir / "checkpoints")
    return step_of(saved[0]) if saved else -1
