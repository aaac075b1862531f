"""The part that both loops share: counting, logging, evaluation, checkpoints, callbacks and the end of a run."""

import math
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, Protocol

from rl_training.algorithms.base import Learner, UpdateResult
from rl_training.errors import CheckpointError, NonFiniteUpdateError, TrainingInterrupted, describe_error
from rl_training.experiment.checkpointing import (
    BEST_NAME,
    CheckpointState,
    prune_checkpoints,
    save_checkpoint,
    save_run_checkpoint,
    step_checkpoints,
)
from rl_training.experiment.config import TrainConfig, plain_config
from rl_training.experiment.digests import digest
from rl_training.experiment.metrics import describe_missing, logged_evaluation, result_name
from rl_training.experiment.runs import read_metadata
from rl_training.experiment.schedules import crosses
from rl_training.runtime.callbacks import CallbackList
from rl_training.runtime.collector import Collector, CollectResult, Episode, Transition, episode_metrics
from rl_training.runtime.evaluator import Evaluator
from rl_training.runtime.exactness import EAGER_NOW, packages_in_use
from rl_training.runtime.live import RunAccess
from rl_training.runtime.run_utils import TrainingRun, describe_checkpoint
from rl_training.runtime.saved import SavedProgress
from rl_training.runtime.trainer import Status, TrainerState, TrainResult
from rl_training.runtime.types import MetricDict
from rl_training.waits import announced

_RETURN_WINDOW = 100  # training episodes that `rollout/ep_rew_mean` averages over
_COMPILING_UPDATES = 8  # by then, steps that are not taken in every update have been compiled too


Part = Literal["collect", "update", "evaluate"]
_PARTS: tuple[Part, ...] = ("collect", "update", "evaluate")


class Buffer(Protocol):
    """Experience storage that can be saved."""

    def state_dict(self, since: int = 0) -> dict[str, Any]:
        """Return the state; if transitions are numbered, only those from number `since` on."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the result of `state_dict`."""

    def cut(self, envs: Sequence[int], last_obs: Any) -> None:
        """Treat the running episodes of these envs as truncated, because they will not be continued."""


@dataclass(frozen=True)
class TrainingParts:
    """The parts of a training run; a checkpoint contains the state of all of them."""

    learner: Learner
    buffer: Buffer
    collector: Collector
    loop: "Callable[[TrainingSession], None]"
    """A function that collects and learns until the session is finished."""
    spaces: dict[str, Any] | None = None
    """The spaces of observations and actions as plain values; none if they cannot be stored."""


class TimeSplit:
    """The seconds that a run has spent collecting, updating and evaluating, including the time before a resume."""

    def __init__(self) -> None:
        self._seconds: dict[Part, float] = dict.fromkeys(_PARTS, 0.0)

    def add(self, part: Part, since: float) -> None:
        """Count the time from `since`, a value of `perf_counter`, until now."""
        self._seconds[part] += perf_counter() - since

    def metrics(self) -> MetricDict:
        """Return all seconds so far, by the names under which they are logged."""
        return {f"time/{part}_seconds": round(seconds, 3) for part, seconds in self._seconds.items()}

    def load_metrics(self, metrics: MetricDict) -> None:
        """Load the seconds from logged metrics; a part that is missing there starts at 0."""
        self._seconds = {part: float(metrics.get(f"time/{part}_seconds", 0.0)) for part in _PARTS}


class TrainingSession:
    """One run in progress. The loop decides when to collect and to learn; the session does everything else."""

    def __init__(
        self,
        config: TrainConfig,
        parts: TrainingParts,
        run: TrainingRun,
        callbacks: CallbackList,
        progress: SavedProgress | None = None,
    ) -> None:
        self.config = config
        self.parts = parts
        self.callbacks = callbacks
        self.state = TrainerState(config.algo, run.run_context.run_dir, config)
        self.iterated_at = 0
        """The env step at which the newest complete iteration of the loop ended."""
        self.signal_number: int | None = None
        self._run = run
        self.evaluator = Evaluator(config)
        self.state.live = RunAccess(self.state, parts.learner, self.evaluator, parts.collector.env, self._checkpoint)
        self._collected = CollectResult(0, 0, {})  # not announced to callbacks yet
        self._episodes: deque[Episode] = deque(maxlen=_RETURN_WINDOW)
        self._evaluation: MetricDict = {}
        self._evaluated_at = -1
        self._intervals = (
            ("log", config.log_interval),
            ("evaluate", config.eval_interval),
            ("save", config.checkpoint_interval),
        )
        self._due: list[str] = []
        self._updating = False
        self._num_updates_in_process = 0
        self.was_compiled = False
        """Whether the updates were compiled before this run was resumed."""
        self.saving = False
        """Whether a checkpoint is being written."""
        self._checkpoint_path = run.run_context.checkpoints_dir / "step_0.pt"
        self._saved_at_step = -1
        self._saved_at_time = self._logged_at_time = self._started_at_time = time.monotonic()
        self._logged_at_step = self._timed_from_step = 0
        self._warned_of_best = False
        self._status: Status = "failed"
        self._announced_end = False
        self._failed_save: CheckpointError | None = None
        self._time_split = TimeSplit()
        self._earlier_seconds = float(read_metadata(run.run_context).get("wall_seconds", 0.0))
        if progress is not None:
            self._restore(progress)

    def note_decisions(self, decisions: Mapping[str, str | None]) -> None:
        """Store the values chosen for `auto`, with the reasons, in the trainer state and the metadata."""
        self.state.decisions = {name: decision for name, decision in decisions.items() if decision}
        if self.state.decisions:
            self._run.note(decisions=self.state.decisions)

    @property
    def finished(self) -> bool:
        """Whether complete iterations have used up the budget, or a stop was requested."""
        return self.iterated_at >= self.config.total_timesteps or self.state.stop_reason is not None

    def interrupted(self) -> bool:
        """Return whether a signal asks the run to stop between two env steps."""
        return self.signal_number is not None

    def begin(self) -> None:
        """Save a new run, so that it can always be resumed; do the work that was still due in a resumed run."""
        if not step_checkpoints(self._run.run_context.checkpoints_dir):
            self.save()
        self.do_due_work()

    def collect(self, store: Callable[[Transition], None], until: int) -> None:
        """Collect up to env step `until` and call the callbacks; count the steps even if an exception is raised.

        Callbacks receive a collection once it is complete, so that they do the same in a run that was interrupted.
        """
        steps = range(self.state.global_step, until, self.config.num_envs)
        started = perf_counter()
        try:
            self.parts.collector.collect(store, steps, self.interrupted)
        finally:
            self._time_split.add("collect", started)
            self._count_collected()
        if self.state.global_step >= until:  # otherwise a signal came, and the event follows after a resume
            result, self._collected = self._collected, CollectResult(0, 0, {})
            self.callbacks.on_collect_end(self.state, result)

    def _count_collected(self) -> None:
        result = self.parts.collector.take_result()
        self.state.global_step += result.num_env_steps
        self.state.num_episodes += result.num_episodes
        if result.episodes:
            self._episodes.extend(result.episodes)
            averages = episode_metrics(list(self._episodes))
            self._replace_metrics("rollout/", {f"rollout/{name}": value for name, value in averages.items()})
        self._collected = result.following(self._collected)

    def _replace_metrics(self, prefix: str, metrics: MetricDict) -> None:
        """Set the newest metrics of one kind, and drop those that an env no longer reports."""
        for name in [name for name in self.state.metrics if name.startswith(prefix) and name not in metrics]:
            del self.state.metrics[name]
        self.state.metrics |= metrics

    @property
    def may_compile(self) -> bool:
        """Whether the next update may wait for a compiler, because it is one of the first in this process."""
        return self.config.compile == "on" and self._num_updates_in_process < _COMPILING_UPDATES

    def learn(self, update: Callable[[], UpdateResult], undo: Callable[[], None] | None = None) -> None:
        """Run one update, which ends an iteration of the loop; if it is interrupted, the learner is not saved.

        `undo` restores the learner to its state before the update. An update that a signal interrupts is then repeated
        after a resume.
        """
        self._updating = True
        started = perf_counter()
        try:
            result = update()
        except TrainingInterrupted:
            if undo is None:
                raise
            undo()
            self._updating = False
            return
        self._time_split.add("update", started)
        self._updating = False
        self._num_updates_in_process += 1
        self.state.num_updates += result.num_gradient_steps
        self.state.metrics |= {f"train/{name}": value for name, value in result.metrics.items()}
        self.state.metrics["train/n_updates"] = self.state.num_updates
        self._end_iteration()
        self.callbacks.on_update_end(self.state, result)
        self.do_due_work()

    def skip_learning(self) -> None:
        """End an iteration of the loop without an update."""
        self._end_iteration()
        self.do_due_work()

    def _end_iteration(self) -> None:
        before, self.iterated_at = self.iterated_at, self.state.global_step
        self._due = [name for name, interval in self._intervals if crosses(interval, before, self.iterated_at)]

    def do_due_work(self) -> None:
        """Log, evaluate and save if due; work that a signal interrupts stays due in the checkpoint."""
        while self._due and not self.interrupted():
            {"log": self.log, "evaluate": self.evaluate, "save": self.save}[self._due[0]]()
        if self._checkpoint_overdue():
            self.save()

    def _mark_done(self, name: str) -> None:
        self._due = [other for other in self._due if other != name]

    def log(self) -> None:
        """Write the newest training metrics; evaluations are logged when they happen."""
        now, step = time.monotonic(), self.state.global_step
        elapsed = max(now - self._logged_at_time, 1e-6)
        self.state.metrics |= {
            "time/fps": round((step - self._timed_from_step) / elapsed),
            "time/total_timesteps": step,
            **self._time_split.metrics(),
        }
        self._logged_at_time = now
        self._logged_at_step = self._timed_from_step = step
        trained = {name: value for name, value in self.state.metrics.items() if not name.startswith("eval/")}
        self._run.lock.check_held()
        self._run.logger.log_metrics(trained, step=step)
        self._run.logger.log_digest(digest([self.parts.learner.state_dict(), self.parts.collector.obs]), step=step)
        self._mark_done("log")
        self._check_compile_mode()
        if not self.parts.collector.has_all_samples:
            self.parts.collector.begin_samples()

    def _check_compile_mode(self) -> None:
        """Correct the resume note if updates were compiled before the resume but cannot be compiled here."""
        note = self.state.resumed
        if note is None or not self.was_compiled or EAGER_NOW in note.reasons:
            return
        if packages_in_use(self.parts.learner) is None:
            self.state.resumed = note.with_reason(EAGER_NOW)
            self._run.amend_resume(self.state.resumed)
            warnings.warn(str(self.state.resumed), stacklevel=2)

    def evaluate(self) -> None:
        """Play evaluation episodes, unless this step was evaluated already, and keep the best checkpoint."""
        step = self.state.global_step
        if self.config.eval_episodes == 0 or self._evaluated_at == step:
            self._mark_done("evaluate")
            return
        started = perf_counter()
        episodes = self.config.eval_episodes
        with announced(f"playing {episodes} evaluation episodes"):
            result = self.evaluator.evaluate(self.parts.learner.policy, episodes, step, interrupted=self.interrupted)
        self._time_split.add("evaluate", started)
        if not result.metrics:
            return
        metrics = result.metrics
        self._evaluation, self._evaluated_at = metrics, step
        self._mark_done("evaluate")
        logged = logged_evaluation(metrics)
        self._run.lock.check_held()
        self._run.logger.log_metrics(logged, step=step)
        self._replace_metrics("eval/", logged)
        is_best = self._note_best(metrics)
        try:
            self.callbacks.on_eval_end(self.state, metrics)
        finally:
            if is_best:  # after the event, which a run that is resumed from this checkpoint does not repeat
                self._write_checkpoint(BEST_NAME)
            self._note_progress()

    def _note_best(self, metrics: MetricDict) -> bool:
        """Note the best values so far; return whether this evaluation is the best by the config's metric."""
        state, metric = self.state, self.config.best_metric
        if _is_higher(metrics["eval_return_mean"], state.best_return):
            state.best_return = float(metrics["eval_return_mean"])
        value = metrics.get(result_name(metric))
        if value is not None and _is_higher(value, state.best_value):
            state.best_value = float(value)
            return True
        if value is None and state.best_value is None and not self._warned_of_best:
            self._warned_of_best = True
            warnings.warn(f"no best checkpoint: best_metric {describe_missing(metric, metrics)}", stacklevel=2)
        return False

    def _checkpoint_overdue(self) -> bool:
        limit = self.config.checkpoint_seconds
        return limit > 0.0 and time.monotonic() - self._saved_at_time >= limit

    def save(self) -> None:
        """Write a checkpoint, unless this step is saved already, and remove old ones."""
        self._mark_done("save")
        if self._saved_at_step == self.state.global_step:
            return
        with announced("writing a checkpoint"):
            self._checkpoint_path = self._write_checkpoint(f"step_{self.state.global_step}.pt")
        self._saved_at_step, self._saved_at_time = self.state.global_step, time.monotonic()
        prune_checkpoints(self._checkpoint_path.parent, self.config.keep_checkpoints)
        self._note_progress()
        self.parts.collector.begin_samples()

    def _write_checkpoint(self, name: str) -> Path:
        path, segments = self._run.run_context.checkpoints_dir / name, self._run.segments
        self._run.lock.check_held()
        self.saving = True
        try:
            return save_run_checkpoint(path, self._checkpoint(since=segments.saved_until), segments)
        except CheckpointError as error:
            self._failed_save = error
            raise
        finally:
            self.saving = False

    def _checkpoint(self, since: int = 0) -> CheckpointState:
        """Return the state of the run; of its experience, only transitions from number `since` on."""
        context, packages = self._run.run_context, packages_in_use(self.parts.learner)
        return CheckpointState(
            algorithm_state=self.parts.learner.state_dict(),
            buffer_state=self.parts.buffer.state_dict(since),
            trainer_state=self._progress().state_dict(),
            config=plain_config(self.config),
            metadata=describe_checkpoint(context, self.config, self.final_metrics(), packages, self.parts.spaces),
        )

    def _progress(self) -> SavedProgress:
        return SavedProgress(
            global_step=self.state.global_step,
            num_updates=self.state.num_updates,
            num_episodes=self.state.num_episodes,
            best_return=self.state.best_return,
            best_metric=self.config.best_metric,
            best_value=self.state.best_value,
            metrics={**self.state.metrics, **self._time_split.metrics()},
            evaluation=dict(self._evaluation),
            evaluated_at=self._evaluated_at,
            logged_at=self._logged_at_step,
            due=list(self._due),
            iterated_at=self.iterated_at,
            episodes=tuple(self._episodes),
            callbacks=self.callbacks.state_dict(),
            collected=(self._collected.num_env_steps, self._collected.episodes),
            collector=self.parts.collector.state_dict(),
        )

    def _restore(self, saved: SavedProgress) -> None:
        self.state.global_step = self._timed_from_step = saved.global_step
        self.state.num_updates = saved.num_updates
        self.state.num_episodes = saved.num_episodes
        self.state.best_return = _finite(saved.best_return)
        self.state.best_value = _finite(saved.best_value) if saved.best_metric == self.config.best_metric else None
        self.state.metrics = dict(saved.metrics)
        self._time_split.load_metrics(saved.metrics)
        self._evaluation, self._evaluated_at = dict(saved.evaluation), saved.evaluated_at
        self._logged_at_step, self.iterated_at = saved.logged_at, saved.iterated_at
        self._due = list(saved.due)
        self._episodes.extend(saved.episodes)
        num_env_steps, episodes = saved.collected
        self._collected = CollectResult(num_env_steps, len(episodes), {}, episodes=episodes)
        self.callbacks.load_state_dict(saved.callbacks)

    def final_metrics(self) -> MetricDict:
        """Return the metrics of the `TrainResult`."""
        counts: MetricDict = {
            "global_step": self.state.global_step,
            "num_updates": self.state.num_updates,
            "num_episodes": self.state.num_episodes,
            "eval_episodes": 0,
        }
        return {**counts, **self._evaluation}

    def _note_progress(self) -> None:
        self._run.note(global_step=self.state.global_step, best_return=self.state.best_return)

    def finish(self) -> None:
        """End the run after its loop: evaluate, log, save, and call the callbacks."""
        cut_short = self.iterated_at < self.config.total_timesteps
        if not (cut_short and self.interrupted()):
            self._due += ["evaluate", "log"] if self._logged_at_step != self.state.global_step else ["evaluate"]
        self.do_due_work()
        self.save()
        status: Status = "stopped" if cut_short else "completed"
        self._end("interrupted" if self.interrupted() else status)

    def fail(self, error: BaseException) -> None:
        """End the run after an exception: save what can be saved, and call the callbacks; the caller re-raises."""
        note = describe_error(error)
        if isinstance(error, NonFiniteUpdateError):
            self._attempt(partial(self._save_failed_step, error))
        if not isinstance(error, KeyboardInterrupt):  # after a second Ctrl-C, end at once without saving
            if not self._updating and error is not self._failed_save:
                self._attempt(self.save)
            self._attempt(lambda: self._end("failed", error=note))
        else:
            self._attempt(lambda: self._end("interrupted", error=note))

    def rescue(self, error: BaseException) -> None:
        """End the run like `fail`, but from another thread while the run's own thread hangs in an env."""
        self._count_collected()
        self.fail(error)
        self._attempt(self._run.close)

    def _save_failed_step(self, error: NonFiniteUpdateError) -> None:
        """Save the inputs of the rejected gradient step so that it can be inspected later."""
        state = CheckpointState(
            algorithm_state=self.parts.learner.state_dict(),
            buffer_state={"step": vars(error.step)},
            trainer_state={"global_step": self.state.global_step},
            config=plain_config(self.config),
            metadata={"run_id": self._run.run_context.run_id, "error": str(error)},
        )
        save_checkpoint(self._run.run_context.failure_path, state)

    def _attempt(self, action: Callable[[], object]) -> None:
        """Run an action for a run that failed; warn if it fails too, because the first error is the one to raise."""
        try:
            action()
        except Exception as error:
            warnings.warn(f"while ending the failed run: {error!r}", stacklevel=3)

    def result(self) -> TrainResult:
        """Return the run directory, the newest checkpoint, the final metrics and the status."""
        return TrainResult(self.state.run_dir, self._checkpoint_path, self.final_metrics(), self._status)

    def _end(self, status: Status, **notes: str) -> None:
        self._status = status
        result = self.result()
        self._run.end(
            status=status,
            stop_reason=self.state.stop_reason,
            global_step=self.state.global_step,
            best_return=self.state.best_return,
            metrics=result.metrics,
            wall_seconds=round(self._earlier_seconds + time.monotonic() - self._started_at_time, 3),
            **notes,
        )
        self.state.ended = True
        if not self._announced_end:  # if a callback fails in on_train_end, the event must not be repeated
            self._announced_end = True
            self.callbacks.on_train_end(self.state, result)

    def close(self) -> None:
        """Release files and evaluation envs; callbacks can no longer use the run."""
        self.state.live = None
        try:
            self.evaluator.close()
        finally:
            self._run.close()


def _is_higher(value: float, best: float | None) -> bool:
    """Return whether a value is finite and the new best one; finite rewards may add up to an infinite return."""
    return math.isfinite(value) and (best is None or value > best)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
