"""Training a run: from a config to its learner, buffer and collector, and from its directory to its last callback."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gymnasium import Space

from rl_training.algorithms.base import LearnerParams, LearnerSetup
from rl_training.compiling import compiling_pays
from rl_training.envs.factory import (
    check_num_envs,
    make_env,
    resolve_action_mask,
    resolve_vectorization,
)
from rl_training.envs.making import has_time_limit
from rl_training.envs.samples import ReplaySample
from rl_training.errors import RLTrainingError, TrainingInterrupted
from rl_training.experiment.checkpointing import CheckpointState
from rl_training.experiment.config import TrainConfig, evaluation_config, resolve_params, with_resolved_params
from rl_training.experiment.locking import RunLock
from rl_training.experiment.runs import check_output_dir, update_metadata
from rl_training.experiment.trackers.opening import check_trackers
from rl_training.runtime.agents import describe_spaces, evaluate_agent, predict_action
from rl_training.runtime.algorithm import AlgorithmSpec, TrainFn
from rl_training.runtime.callbacks import CallbackList, Listener, make_callbacks
from rl_training.runtime.collecting import open_collector
from rl_training.runtime.collector import Collector, group_states, without_episode
from rl_training.runtime.evaluator import check_evaluation_env
from rl_training.runtime.exactness import check_replays, find_differences
from rl_training.runtime.learners import LearnerFactory, LearnerT, ParamsT
from rl_training.runtime.plan import TrainingPlan
from rl_training.runtime.run_utils import (
    create_training_run,
    note_resume,
    refusing_misfits,
    reopen_training_run,
    tuned_for_training,
)
from rl_training.runtime.saved import SKIPPED_ENV, ResumeNote, SavedProgress
from rl_training.runtime.session import TrainingParts, TrainingSession
from rl_training.runtime.stop_signals import stop_signals
from rl_training.runtime.threads import resolve_threads
from rl_training.runtime.trainer import TrainResult
from rl_training.runtime.watchdog import Watchdog
from rl_training.waits import announced

_QUICKLY_BUILT = 64  # envs


@dataclass(frozen=True)
class RunOptions:
    """The directory of a run, the state it starts from, and the callbacks that receive its events."""

    run_suffix: str | None
    checkpoint_state: CheckpointState | None
    callbacks: CallbackList
    output_dir: Path
    """The absolute path of the directory in which a new run directory is created."""
    lock: RunLock | None
    """Continue in the directory that this lock holds instead of creating one; needs `checkpoint_state`."""
    decisions: dict[str, str | None]
    """The values chosen for config fields that said `auto`, and why, by field."""
    scheduled: Sequence[str]
    """The parameters of the algorithm whose values depend on the planned budget."""


def define_algorithm(
    name: str,
    params_model: type[ParamsT],
    make_learner: Callable[[ParamsT, LearnerSetup], LearnerT],
    wire: Callable[[TrainConfig, LearnerT, Collector], TrainingParts],
    plan: Callable[[TrainConfig, LearnerT], TrainingPlan],
) -> AlgorithmSpec:
    """Define an algorithm by its parameters and its learner, and by the buffer and the loop of its kind.

    `wire` connects a learner to a collector; `plan` counts what a run would do, and refuses experience that does not
    fit into memory.
    """

    def resolve(config: TrainConfig) -> ParamsT:
        return resolve_learner_params(params_model, config)

    def build_learner(config: TrainConfig, observation_space: Space[Any], action_space: Space[Any]) -> Any:
        return LearnerFactory(make_learner, resolve(config)).build(config, observation_space, action_space)

    def make_plan(config: TrainConfig, params: ParamsT | None = None) -> TrainingPlan:
        make_callbacks(config)  # refuses what cannot be made
        factory = LearnerFactory(make_learner, resolve(config) if params is None else params)
        with closing(make_env(config, 0)) as env:
            spaces = env.observation_space, env.action_space
        check_num_envs(config)
        return plan(config, factory.build(config, *spaces))

    @contextmanager
    def open_parts(config: TrainConfig, params: ParamsT) -> Iterator[TrainingParts]:
        with open_collector(config, LearnerFactory(make_learner, params)) as (learner, collector):
            spaces = collector.env.observation_space, collector.env.action_space
            yield replace(wire(config, learner, collector), spaces=describe_spaces(*spaces))

    return AlgorithmSpec(
        name=name,
        train_fn=_build_train_fn(resolve, open_parts, make_plan),
        evaluate_fn=evaluate_agent,
        predict_fn=predict_action,
        params_model=params_model,
        resolve_params_fn=resolve,
        build_learner_fn=build_learner,
        plan_fn=make_plan,
    )


def resolve_learner_params(params_model: type[ParamsT], config: TrainConfig) -> ParamsT:
    """Validate the parameters in a config's `algo_kwargs`, also against the rest of the config."""
    params = resolve_params(params_model, config)
    params.check(config.num_envs)
    return params


def with_resolved_compile(config: TrainConfig, params: LearnerParams) -> TrainConfig:
    """Return the config with `compile` decided once, so that a resumed run keeps its mode."""
    if config.compile != "auto":
        return config
    steps = params.planned_gradient_steps(config.total_timesteps, config.num_envs)
    pays = compiling_pays(steps, params.rows_per_step * params.widest_layer, params.graphs)
    return config.model_copy(update={"compile": "on" if pays else "off"})


def _build_train_fn(
    resolve: Callable[[TrainConfig], ParamsT],
    open_parts: Callable[[TrainConfig, ParamsT], AbstractContextManager[TrainingParts]],
    plan: Callable[[TrainConfig, ParamsT], TrainingPlan],
) -> TrainFn:
    """Return the train function of an algorithm. Nothing is written to disk before its parts are wired."""

    def train(
        config: TrainConfig,
        *,
        run_suffix: str | None = None,
        checkpoint_state: CheckpointState | None = None,
        callbacks: Iterable[Listener] | None = None,
        lock: RunLock | None = None,
        params: Any = None,
    ) -> TrainResult:
        params = resolve(config) if params is None else params
        listeners = CallbackList([*make_callbacks(config), *(callbacks or ())])
        config = with_resolved_compile(with_resolved_params(config, params), params)
        output_dir = config.output_dir.absolute()  # an env may change the working directory
        if lock is None:
            check_output_dir(config)
        check_trackers(config)
        config, threads = resolve_threads(config, params)
        with announced(f"trying out {config.env_id}"):
            config, mask = resolve_action_mask(config, usable=params.uses_action_masks)
            config, vectorization = resolve_vectorization(config)
        if config.num_envs > _QUICKLY_BUILT:
            plan(config, params)
        # From the first weight on: the number of threads decides the last bits of a matrix product.
        with tuned_for_training(config), open_parts(config, params) as parts:
            if config.eval_episodes:
                envs = parts.collector.env
                check_evaluation_env(config, envs.observation_space, envs.action_space)
            limit = _evaluation_limit(config)
            decisions = {"num_threads": threads, "vectorization": vectorization, "action_mask": mask}
            decisions |= {"eval_max_steps": limit, **params.explain_ineffective(config.total_timesteps)}
            scheduled = params.scheduled_names()
            options = RunOptions(run_suffix, checkpoint_state, listeners, output_dir, lock, decisions, scheduled)
            with _running_session(config, parts, options) as session:
                parts.loop(session)
        return session.result()

    return train


def _evaluation_limit(config: TrainConfig) -> str | None:
    """Describe how evaluation episodes end if the environment itself declares no limit; none if it does."""
    if not config.eval_episodes or has_time_limit(evaluation_config(config)):
        return None
    cut = f"{config.eval_max_steps}: evaluation episodes are cut after this many steps"
    how = cut if config.eval_max_steps else "0: an evaluation episode that does not end is played for ever"
    return f"{how}, because {config.env_id} declares no time limit"


@contextmanager
def _running_session(config: TrainConfig, parts: TrainingParts, options: RunOptions) -> Iterator[TrainingSession]:
    """Open a session for a loop, from the run directory's creation to the last callback, however the loop ends."""
    with Watchdog(config, parts.collector.calls) as watchdog:
        session = _open_session(config, parts, options)
        watchdog.watch(session.evaluator.calls)
        watchdog.rescue = session.rescue
        try:
            with stop_signals(session):
                session.note_decisions(options.decisions)
                options.callbacks.on_train_start(session.state)
                session.begin()
                yield session
                session.finish()
        except BaseException as error:
            session.fail(error)
            if isinstance(error, RLTrainingError):
                error.ended_run = True
            raise
        finally:
            session.close()
    if session.result().status == "interrupted" and session.signal_number is not None:
        message = f"interrupted at step {session.state.global_step}; saved {session.result().checkpoint_path}"
        raise TrainingInterrupted(message, session.signal_number)


def _open_session(config: TrainConfig, parts: TrainingParts, options: RunOptions) -> TrainingSession:
    """Do everything that can fail first, and then create or reopen the run directory."""
    saved = options.checkpoint_state
    if saved is None:
        parts.collector.start()
        run = create_training_run(config, options.run_suffix, output_dir=options.output_dir)
        return TrainingSession(config, parts, run, options.callbacks)
    progress, note = _restore(config, parts, saved, options)
    with refusing_misfits(config):
        parent = {"run_id": saved.metadata["run_id"], "step": progress.global_step}
    if options.lock is not None:
        run = reopen_training_run(options.lock, config, note)
        run.segments.adopt(saved.buffer_state)
    else:
        run = create_training_run(config, options.run_suffix, output_dir=options.output_dir)
        update_metadata(run.run_context, parent=parent)
        note_resume(run.run_context, note)
        progress = progress.forked()
    session = TrainingSession(config, parts, run, options.callbacks, progress)
    session.state.resumed = note
    session.was_compiled = config.compile == "on" and saved.metadata.get("packages") is not None
    return session


def _restore(
    config: TrainConfig, parts: TrainingParts, saved: CheckpointState, options: RunOptions
) -> tuple[SavedProgress, ResumeNote]:
    """Restore learner, buffer and envs from the checkpoint, and note why the resume may not be exact."""
    with refusing_misfits(config):
        progress = SavedProgress.from_state(saved.trainer_state)
        parts.learner.load_state_dict(saved.algorithm_state)
        with announced("loading the stored experience"):
            parts.buffer.load_state_dict(saved.buffer_state)
        samples = [ReplaySample.from_state(sample) for sample in progress.collector["samples"]]
        with announced("comparing fresh envs with recorded steps, to tell whether this resume is exact"):
            unrepeatable = check_replays(config, samples)  # before the envs of this process do anything
        skipped = saved.trainer_state.get(SKIPPED_ENV)
        if skipped is not None:
            progress = replace(progress, collector=without_episode(progress.collector, skipped))
        with announced("replaying the running episodes"):
            given_up = parts.collector.restore(progress.collector)
    reasons = {index: f"env {index} began a new episode, because {why}" for index, why in given_up.items()}
    if skipped is not None:
        reasons[skipped] = f"env {skipped} skipped the episode in which it had failed"
    missing = _missing_callbacks(progress, options.callbacks)
    notable = [*reasons.values(), *unrepeatable, *missing]
    note = ResumeNote(progress.global_step, (*notable, *find_differences(config, saved, options.scheduled)))
    if notable:
        warnings.warn(str(note), stacklevel=2)
    if given_up:
        parts.buffer.cut(list(given_up), progress.collector["obs"].numpy())
    return progress, note


def _missing_callbacks(progress: SavedProgress, callbacks: CallbackList) -> list[str]:
    """Name the callbacks that are missing in a resumed run whose envs they may have changed."""
    if not any("changes" in group["envs"] for group in group_states(progress.collector)):
        return []
    return [
        f"callback {name} is missing, and callbacks have changed the envs"
        for name in callbacks.find_missing(progress.callbacks)
    ]
