"""Evaluate, resume, verify and replay runs on disk, for every registered algorithm."""

import math
import os
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rl_training.algorithms.base import GradientStep
from rl_training.envs.episodes import FailedEpisode
from rl_training.errors import (
    CheckpointError,
    ConfigError,
    EnvironmentStepError,
    NonFiniteUpdateError,
)
from rl_training.experiment.checkpointing import (
    CheckpointState,
    OpenedCheckpoint,
    load_checkpoint,
    load_without_experience,
    open_checkpoint,
    open_without_experience,
    step_checkpoints,
    step_of,
)
from rl_training.experiment.config import TrainConfig, describe_training_differences, plain_config
from rl_training.experiment.locking import RunLock
from rl_training.experiment.runs import (
    METADATA_FILE,
    RunContext,
    context_of,
    read_digests,
    read_intact_metadata,
    read_metadata,
    repair_metadata,
)
from rl_training.experiment.sources import Layer, read_yaml, resolve_config
from rl_training.runtime.agents import Agent, build_agent, with_evaluation
from rl_training.runtime.callbacks import Listener, StopAtStep
from rl_training.runtime.evaluator import check_num_episodes
from rl_training.runtime.registry import get_algorithm_spec, place_parameters
from rl_training.runtime.run_utils import limited_threads
from rl_training.runtime.saved import SKIPPED_ENV
from rl_training.runtime.trainer import TrainResult
from rl_training.runtime.types import MetricDict

_VERIFIED_DIGESTS = 3  # logged digests that a verification compares


@dataclass(frozen=True)
class Fork:
    """A checkpoint that is continued in a new run directory."""

    config: TrainConfig
    state: CheckpointState

    def train(self, run_suffix: str | None = None, callbacks: Iterable[Listener] | None = None) -> TrainResult:
        """Train to the end."""
        return get_algorithm_spec(self.config.algo).train_fn(
            self.config, run_suffix=run_suffix, checkpoint_state=self.state, callbacks=callbacks
        )


@dataclass(frozen=True)
class Finished:
    """A run that has used up its budget and has no work left."""

    result: TrainResult

    def train(self, run_suffix: str | None = None, callbacks: Iterable[Listener] | None = None) -> TrainResult:
        """Return the run's result; no callback receives an event, because nothing happens."""
        del run_suffix, callbacks
        return self.result


@dataclass(frozen=True)
class Continuation:
    """A run that is continued in its own directory; `train` reads its checkpoint while it holds the run's lock."""

    run_dir: Path
    changes: Sequence[Layer]
    force: bool
    skip_episode: bool = False
    """Whether the env in which the run failed begins its next episode."""

    def check(self) -> "Continuation | Finished":
        """Return self, or the result of a finished run; refuse a run in use, a damaged run and an invalid config."""
        RunLock(self.run_dir).check_free()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # `train` repeats them
            found = self._read(open_without_experience)
        return found if isinstance(found, Finished) else self

    def train(self, run_suffix: str | None = None, callbacks: Iterable[Listener] | None = None) -> TrainResult:
        """Train to the end if work is left; `run_suffix` is not used, because the directory exists."""
        del run_suffix
        lock = RunLock(self.run_dir).acquire()
        try:
            found = self._read(open_checkpoint)
            if isinstance(found, Finished):
                return found.result
            config, state = found
            context = context_of(self.run_dir)
            repair_metadata(context, _metadata_from(context, config, state))
            _warn_if_edited(context, state)
            train, failed_before = get_algorithm_spec(config.algo).train_fn, _failed_episode(context)
            try:
                return train(config, checkpoint_state=state, callbacks=callbacks, lock=lock)
            except EnvironmentStepError as error:
                if failed_before is not None and FailedEpisode.find(str(error)) == failed_before:
                    hint = f"`rl-training resume {self.run_dir} --skip-episode` begins the next episode instead"
                    error.args = (f"{error}; it failed at the same step before: {hint}",)
                raise
        finally:
            lock.release()

    def _read(self, read: Callable[[Path], OpenedCheckpoint]) -> tuple[TrainConfig, CheckpointState] | Finished:
        context = context_of(self.run_dir)
        context.check_files()
        opened = read(self.run_dir)
        state = _with_due_evaluation(opened.state, context)
        place = Layer("place", {"output_dir": str(_output_dir(state, self.run_dir))})
        config = _changed_config(state, [place, *self.changes], force=self.force)
        if self.skip_episode:
            state = replace(state, trainer_state={**state.trainer_state, SKIPPED_ENV: self._env_to_skip(context)})
        done = _steps_if_complete(state, config)
        if done is None:
            return config, state
        same_budget = config.total_timesteps in (done, checkpoint_config(state).total_timesteps)
        if not same_budget or read_intact_metadata(context).get("status") != "completed":
            raise _budget_error(config, done)
        return Finished(TrainResult(self.run_dir, opened.path, _final_metrics(context, done)))

    def _env_to_skip(self, context: RunContext) -> int:
        failed = _failed_episode(context)
        if failed is None:
            raise ConfigError(
                f"--skip-episode: {self.run_dir} did not fail in an episode; resume it without this option"
            )
        return failed.env


def _output_dir(state: CheckpointState, run_dir: Path) -> Path:
    """Return the parent of the run directory, spelled as in the checkpoint unless the run was moved."""
    saved = Path(str(state.config.get("output_dir", "")))
    return saved if saved.absolute() == run_dir.parent else run_dir.parent


def _metadata_from(context: RunContext, config: TrainConfig, state: CheckpointState) -> dict[str, Any]:
    """Return the entries of `metadata.json` that a checkpoint can restore."""
    return {
        "run_id": state.metadata.get("run_id", context.run_id),
        "algo": config.algo,
        "env_id": config.env_id,
        "seed": config.seed,
        "total_timesteps": config.total_timesteps,
        "global_step": state.trainer_state.get("global_step", 0),
        "best_return": state.trainer_state.get("best_return"),
        "versions": state.metadata.get("versions", {}),
        "tags": list(config.tags),
    }


def checkpoint_config(state: CheckpointState) -> TrainConfig:
    """Return the config that a checkpoint was trained with."""
    return TrainConfig(**state.config)


def load_agent(path: Path | str, *, best: bool = False) -> Agent:
    """Load the agent of a checkpoint file, or of a run directory's newest intact (or best) checkpoint."""
    return _agent_of(open_without_experience(path, best=best).state)


def _agent_of(state: CheckpointState) -> Agent:
    config = checkpoint_config(state)
    return build_agent(get_algorithm_spec(config.algo).build_learner_fn, config, state)


def evaluate_checkpoint(
    path: Path | str,
    num_episodes: int = 10,
    *,
    best: bool = False,
    deterministic: bool | None = None,
    seed: int | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
) -> MetricDict:
    """Play complete episodes with a saved agent and return the metrics.

    Arguments that are not given have the values of the run's own evaluations. `env_kwargs` are added to its
    `eval_env_kwargs`.
    """
    check_num_episodes(num_episodes)
    agent = load_agent(path, best=best)
    merged = {**agent.config.eval_env_kwargs, **env_kwargs} if env_kwargs else None
    agent = with_evaluation(agent, eval_deterministic=deterministic, eval_seed=seed, eval_env_kwargs=merged)
    return get_algorithm_spec(agent.config.algo).evaluate_fn(agent, num_episodes)


def continued_config(state: CheckpointState, changes: Sequence[Layer], *, force: bool = False) -> TrainConfig:
    """Return the checkpoint's config with `changes` applied in order; the budget must exceed the steps already done.

    Changes that affect the course of the run are refused unless `force` is true.
    """
    config = _changed_config(state, changes, force=force)
    done = _steps_if_complete(state, config)
    if done is not None:
        raise _budget_error(config, done)
    return config


def _changed_config(state: CheckpointState, changes: Sequence[Layer], *, force: bool) -> TrainConfig:
    config = resolve_config(place_parameters([Layer("checkpoint", state.config), *changes])).config
    get_algorithm_spec(config.algo).resolve_params_fn(config)
    differences = describe_training_differences(plain_config(checkpoint_config(state)), plain_config(config))
    if differences and not force:
        raise ConfigError(f"{'; '.join(differences)}: this changes the course of the run; add --force to do it anyway")
    return config


def _steps_if_complete(state: CheckpointState, config: TrainConfig) -> int | None:
    """Return the number of env steps done if they use up the budget and no work is due, else none."""
    try:
        done, due = int(state.trainer_state["iterated_at"]), state.trainer_state["due"]
    except (KeyError, TypeError, ValueError):
        raise CheckpointError("the checkpoint does not say how far it was trained") from None
    return done if done >= config.total_timesteps and not due else None


def _budget_error(config: TrainConfig, done: int) -> ConfigError:
    budget = config.total_timesteps
    return ConfigError(
        f"total_timesteps={budget}: already trained for {done} steps, which the budget includes; "
        f"to train {budget} more, give {done + budget}"
    )


def _final_metrics(context: RunContext, done: int) -> MetricDict:
    """Return the final metrics of a completed run; numbers that JSON cannot express become NaN."""
    stored = read_metadata(context).get("metrics")
    known = stored if isinstance(stored, dict) else {}
    return {**{name: math.nan if value is None else value for name, value in known.items()}, "global_step": done}


def budget_layer(total_timesteps: int | None) -> Layer:
    """Return a config layer with a new budget, or an empty one."""
    return Layer("budget", {} if total_timesteps is None else {"total_timesteps": total_timesteps})


def prepare_resume(
    path: Path | str, changes: Sequence[Layer], *, force: bool = False, skip_episode: bool = False
) -> Continuation | Finished | Fork:
    """Prepare to continue a run directory in place, or to fork a checkpoint file; refuse what cannot be resumed.

    With `skip_episode`, the env in which the run failed begins its next episode.
    """
    prepared = _find_resume(Path(path), changes, force=force, skip_episode=skip_episode)
    return prepared.check() if isinstance(prepared, Continuation) else prepared


def run_directory(path: Path) -> Path | None:
    """Return the run directory that `path` is, or whose `checkpoints` folder it is; none if it is neither."""
    run_dir = (path.parent if path.name == "checkpoints" else path).absolute()
    return run_dir if path.is_dir() and os.path.lexists(run_dir / METADATA_FILE) else None


def _find_resume(
    given: Path, changes: Sequence[Layer], *, force: bool, skip_episode: bool = False
) -> Continuation | Fork:
    if not given.is_dir():
        if skip_episode:
            raise ConfigError(f"--skip-episode: {given} does not say which env failed; give the run directory")
        state = open_checkpoint(given).state
        return Fork(continued_config(state, changes, force=force), state)
    run_dir = run_directory(given)
    if run_dir is None:
        open_without_experience(given)  # raises if there is no checkpoint
        raise CheckpointError(
            f"{given} contains checkpoints but is not a run directory; give one of the files to fork it"
        )
    return Continuation(run_dir, changes, force, skip_episode)


def _with_due_evaluation(state: CheckpointState, context: RunContext) -> CheckpointState:
    """Mark the final evaluation as due if the run was killed between its last checkpoint and its end."""
    progress = state.trainer_state
    used_up = progress.get("iterated_at", 0) >= state.config.get("total_timesteps", 0)
    if not used_up or progress.get("due") or read_intact_metadata(context).get("status") == "completed":
        return state
    return replace(state, trainer_state={**progress, "due": ["evaluate"]})


def _failed_episode(context: RunContext) -> FailedEpisode | None:
    """Return the episode in which an env ended the run; none if the run did not end that way."""
    return FailedEpisode.find(str(read_intact_metadata(context).get("error")))


def _warn_if_edited(context: RunContext, state: CheckpointState) -> None:
    """Warn if `config.yaml` was edited, because the config of the checkpoint is used."""
    try:
        edits = describe_training_differences(state.config, {**state.config, **read_yaml(context.config_path).values})
    except ConfigError:
        return  # missing or unreadable: it is written again
    if edits:
        warnings.warn(
            f"{context.config_path} differs from the checkpoint, whose values are used ({'; '.join(edits)})",
            stacklevel=3,
        )


def resume_training(
    path: Path | str,
    total_timesteps: int | None = None,
    run_suffix: str | None = None,
    callbacks: Iterable[Listener] | None = None,
) -> TrainResult:
    """Continue from a checkpoint to the old budget or a larger one; a complete run returns its result."""
    return _find_resume(Path(path), [budget_layer(total_timesteps)], force=False).train(run_suffix, callbacks)


@dataclass(frozen=True)
class Verification:
    """The steps at which recomputed digests of a run's state are equal to the stored ones, or different."""

    resumed_from: int
    equal: tuple[int, ...]
    different: tuple[int, ...]


def verify_resume(run_dir: Path) -> Verification:
    """Continue from a checkpoint in a temporary directory, and compare the digests with those that the run stored."""
    context = context_of(run_dir)
    context.check_files()
    stored = read_digests(context)
    for path in step_checkpoints(context.checkpoints_dir):
        following = sorted(step for step in stored if step > step_of(path))[:_VERIFIED_DIGESTS]
        if following:
            break
    else:
        raise CheckpointError(f"{run_dir} has no checkpoint with stored digests after it: there is nothing to verify")
    with tempfile.TemporaryDirectory() as directory:
        quiet = Layer(
            "verify",
            {
                "output_dir": directory,
                "checkpoint_interval": 0,
                "checkpoint_seconds": 0.0,
                "trackers": [],
            },
        )
        state = load_checkpoint(path)
        run_layer = Layer("run", _config_after(context, step_of(path), state))
        config = continued_config(state, [run_layer, quiet], force=True)
        if not config.callbacks:  # they may depend on evaluations
            config = config.model_copy(update={"eval_episodes": 0})
        result = Fork(config, state).train(callbacks=[StopAtStep(following[-1])])
        computed = read_digests(context_of(result.run_dir))
    equal = tuple(step for step in following if computed.get(step) == stored[step])
    return Verification(step_of(path), equal, tuple(step for step in following if step not in equal))


def _config_after(context: RunContext, step: int, state: CheckpointState) -> dict[str, Any]:
    """Return the config with which the run continued after its checkpoint at `step`.

    A resume from that checkpoint may have changed the budget or other values. The next checkpoint contains them; until
    it is written, only `config.yaml` does.
    """
    if step not in _resume_steps(context):
        return state.config
    later = [path for path in step_checkpoints(context.checkpoints_dir) if step_of(path) > step]
    return load_without_experience(later[-1]).config if later else read_yaml(context.config_path).values


def _resume_steps(context: RunContext) -> list[int]:
    """Return the env steps from which the run was resumed; empty if its metadata is damaged."""
    try:
        return [note["step"] for note in read_intact_metadata(context).get("resumed", [])]
    except (LookupError, TypeError):
        return []


@dataclass(frozen=True)
class FailedStep:
    """A rejected gradient step that was repeated; `message` is none if it is finite this time."""

    global_step: int
    step: GradientStep
    message: str | None


def replay_failed_step(run_dir: Path) -> FailedStep:
    """Repeat the newest rejected gradient step of a run, with the learner in its state before the step."""
    context = context_of(run_dir)
    context.check_files()
    path = context.failure_path
    if not path.exists():
        raise CheckpointError(f"{run_dir} has no rejected gradient step ({path.relative_to(run_dir)})")
    state = load_checkpoint(path)
    agent = _agent_of(state)
    step = GradientStep(**state.buffer_state["step"])
    message = None
    try:
        with limited_threads(agent.config.num_threads):
            agent.learner.apply(step)
    except NonFiniteUpdateError as error:
        message = str(error)
    return FailedStep(agent.step, step, message)
