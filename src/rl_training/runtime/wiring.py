"""From an algorithm's wiring to its train function: what every trainer does around its own parts, written once."""

from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol

from gymnasium import spaces

from rl_training.algorithms.base import LearnerParams, LearnerSetup
from rl_training.compiling import compiling_pays
from rl_training.envs.factory import has_time_limit, make_vector_env, resolve_vectorization
from rl_training.envs.vector.protocol import VectorEnv
from rl_training.experiment.checkpointing import CheckpointState
from rl_training.experiment.config import TrainConfig, with_resolved_params
from rl_training.experiment.locking import RunLock
from rl_training.experiment.runs import check_output_dir
from rl_training.experiment.trackers.opening import check_trackers
from rl_training.experiment.validation import StrictModel
from rl_training.runtime.callbacks import CallbackList, Listener
from rl_training.runtime.lifecycle import RunOptions, run_training
from rl_training.runtime.plan import TrainingPlan
from rl_training.runtime.run_utils import tuned_for_training
from rl_training.runtime.session import TrainingParts, TrainingSession
from rl_training.runtime.threads import resolve_threads
from rl_training.runtime.trainer import TrainResult

_QUICKLY_BUILT = 64  # envs


def with_resolved_compile(config: TrainConfig, params: StrictModel) -> TrainConfig:
    """The config with `compile` decided once, so that a resumed run goes on in the mode it had."""
    if config.compile != "auto":
        return config
    pays = False
    if isinstance(params, LearnerParams):
        steps = params.planned_gradient_steps(config.total_timesteps, config.num_envs)
        pays = compiling_pays(steps, params.rows_per_step * max(params.hidden_sizes), params.graphs)
    return config.model_copy(update={"compile": "on" if pays else "off"})


def learner_setup(
    config: TrainConfig, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]
) -> LearnerSetup:
    """What a learner for these spaces gets from a run with this config."""
    described = repr((config.algo, sorted(config.algo_kwargs.items()), observation_space, action_space))
    compile_as = described if config.compile == "on" else None
    return LearnerSetup(config.total_timesteps, config.seed, config.num_envs, compile_as)


def _evaluation_limit(config: TrainConfig) -> str | None:
    """Describe how evaluation episodes end if the environment itself declares no limit; none if it does."""
    if not config.eval_episodes or has_time_limit(config):
        return None
    cut = f"{config.eval_max_steps}: evaluation episodes are cut after this many steps"
    how = cut if config.eval_max_steps else "0: an evaluation episode that does not end is played for ever"
    return f"{how}, because {config.env_id} declares no time limit"


class TrainFn(Protocol):
    """Trains from the start, or on from `checkpoint_state`: in a new directory, or in the one that `lock` holds."""

    def __call__(
        self,
        config: TrainConfig,
        *,
        run_suffix: str | None = None,
        checkpoint_state: CheckpointState | None = None,
        callbacks: Iterable[Listener] | None = None,
        lock: RunLock | None = None,
    ) -> TrainResult:
        """Train to the config's budget."""


@dataclass(frozen=True)
class Wiring:
    """What an algorithm adds: its learner and buffer on the given envs, and the loop that drives them."""

    parts: TrainingParts
    loop: Callable[[TrainingSession], None]


def build_train_fn(
    resolve_params: Callable[[TrainConfig], StrictModel],
    wire: Callable[[TrainConfig, VectorEnv], Wiring],
    plan: Callable[[TrainConfig], TrainingPlan] | None = None,
) -> TrainFn:
    """The train function of an algorithm. Nothing is written to disk before its parts are wired.

    With a `plan`, experience that does not fit into memory is refused before many envs are built.
    """

    def train(
        config: TrainConfig,
        *,
        run_suffix: str | None = None,
        checkpoint_state: CheckpointState | None = None,
        callbacks: Iterable[Listener] | None = None,
        lock: RunLock | None = None,
    ) -> TrainResult:
        params = resolve_params(config)
        config = with_resolved_compile(with_resolved_params(config, params), params)
        output_dir = config.output_dir.absolute()  # an env may change the working directory
        if lock is None:
            check_output_dir(config)
        check_trackers(config)
        config, threads = resolve_threads(config, params)
        config, vectorization = resolve_vectorization(config)
        if plan is not None and config.num_envs > _QUICKLY_BUILT:
            plan(config)
        scheduled = params.scheduled_names() if isinstance(params, LearnerParams) else []
        # From the first weight on: the number of threads decides the last bits of a matrix product.
        with tuned_for_training(config), closing(make_vector_env(config)) as envs:
            limit = _evaluation_limit(config)
            decisions = {"num_threads": threads, "vectorization": vectorization, "eval_max_steps": limit}
            options = RunOptions(
                run_suffix, checkpoint_state, CallbackList(callbacks), output_dir, lock, decisions, scheduled
            )
            wiring = wire(config, envs)
            return run_training(config, wiring.parts, wiring.loop, options)

    return train
