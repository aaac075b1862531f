"""Make environments from a config: single ones for evaluation, a vector of envs for training."""

import math
import time
import tracemalloc
import warnings
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

import psutil
from gymnasium.error import Error
from gymnasium.vector.utils import CloudpickleWrapper
from gymnasium.wrappers import RecordEpisodeStatistics, TimeLimit

from rl_training.envs.choosing import choose_vectorization, forks
from rl_training.envs.layers import AnyEnv
from rl_training.envs.making import first_line, make_raw_env, make_single_env, max_episode_steps
from rl_training.envs.packed import choices_of_actions, find_mask
from rl_training.envs.subprocesses import SubprocessError, call_in_process
from rl_training.envs.vector.batched import BatchedVectorEnv, SingleOfBatch
from rl_training.envs.vector.native import SeededCartPole
from rl_training.envs.vector.process import AsyncEpisodeVectorEnv
from rl_training.envs.vector.protocol import BatchedEnv, EnvFactory, VectorEnv
from rl_training.envs.vector.sync import SyncEpisodeVectorEnv
from rl_training.errors import (
    ConfigError,
    EnvironmentSetupError,
    EnvironmentStepError,
    RLTrainingError,
    describe_error,
)
from rl_training.experiment.config import TrainConfig, env_code
from rl_training.limits import check_open_files, check_processes
from rl_training.memory import check_memory
from rl_training.plugins import call_with_objects, import_object, is_object_path, local_objects

ANNOUNCED_SECONDS = 3.0  # a warning is shown if building the envs takes longer

_MAX_UNMEASURED_ENVS = 64  # up to this number, the memory of the envs is not estimated
_MASK_SECONDS = 20.0  # for making one env and resetting it
WORKER_STEP_TIMEOUT = 5.0  # seconds; restarting a worker process that is merely slow costs little
_MEASURED_COPIES = 16
_RSS_NOISE = 2**20  # growth of the process for other reasons
_BOOKKEEPING_BYTES = 400  # per env: seed, counters, last action
_OBS_COPIES = 4  # of each observation: in the env, in the vector env, twice in shared memory
_WORKER_BYTES = 30 * 2**20  # an interpreter with NumPy and Gymnasium
_FILES_PER_WORKER = 3
_THREADS_PER_WORKER = 2


def make_env(config: TrainConfig, env_index: int) -> AnyEnv:
    """Make one environment that reports return and length in `info["episode"]`; the caller closes it."""
    del env_index  # all copies are alike; an episode's seed comes with its reset
    return RecordEpisodeStatistics(env_factory(config)())


def resolve_vectorization(config: TrainConfig) -> tuple[TrainConfig, str | None]:
    """Return the config with `vectorization: auto` replaced by a choice, and the reason for the choice."""
    if config.vectorization != "auto":
        return config, None
    chosen = choose_vectorization(config, env_factory(config))
    changes = {"vectorization": chosen.kind, "envs_per_worker": chosen.envs_per_worker}
    return config.model_copy(update=changes), f"{chosen.kind}: {chosen.reason}"


def resolve_action_mask(config: TrainConfig, *, usable: bool) -> tuple[TrainConfig, str | None]:
    """Return the config with `action_mask: auto` decided, and what was found.

    One env is searched in a process of its own; if that fails, the second value says so. A warning names a mask that
    the algorithm cannot use.
    """
    found, unmasked = config.action_mask, config.model_copy(update={"action_mask": "off"})
    if found == "auto":
        try:
            look = partial(_find_mask, config)
            found, maskable = call_in_process(look, _MASK_SECONDS) if forks() else look()
            usable = usable and maskable
        except SubprocessError as error:
            return unmasked, f"off: one env could not be searched for a mask of legal actions ({error})"
    if found == "off":
        return unmasked, None
    if not usable:
        warnings.warn(
            f"{config.env_id} gives a mask of legal actions ({found}), which {config.algo} cannot use: it is ignored",
            stacklevel=2,
        )
        return unmasked, None
    reason = f"{found}: illegal actions are never taken" if config.action_mask == "auto" else None
    return config.model_copy(update={"action_mask": found}), reason


def _find_mask(config: TrainConfig) -> tuple[str, bool]:
    """Return where an env gives its mask, and whether its actions can be masked."""
    with closing(make_raw_env(config.env_id, config.env_kwargs, config.wrappers)) as env:
        return find_mask(env), bool(choices_of_actions(env.action_space))


def make_vector_env(config: TrainConfig, envs: range | None = None) -> VectorEnv:
    """Make the envs of these indices, or all `num_envs`, behind one interface; the caller closes it."""
    config, _ = resolve_vectorization(config)
    check_num_envs(config)
    env_fn = env_factory(config)
    envs = range(config.num_envs) if envs is None else envs
    if config.vectorization == "sync":
        factory = AnnouncedFactory(env_fn, len(envs))
        return SyncEpisodeVectorEnv([factory] * len(envs), config.seed, first_env=envs.start)
    if config.vectorization != "async":
        limit = None if config.vectorization == "native" else max_episode_steps(config)  # the native env has its own
        batched = make_batched_env(config, len(envs))
        return BatchedVectorEnv(batched, config.seed, first_env=envs.start, max_episode_steps=limit)
    try:
        return AsyncEpisodeVectorEnv(
            [env_fn] * len(envs),
            config.seed,
            first_env=envs.start,
            envs_per_worker=config.envs_per_worker,
            step_timeout=config.step_timeout or WORKER_STEP_TIMEOUT,
            max_restarts=config.env_restarts,
        )
    except RLTrainingError:  # its message is clear already
        raise
    except (TypeError, ValueError, Error) as error:  # spaces that do not fit into shared memory
        raise EnvironmentSetupError(
            f"{config.env_id} cannot run in worker processes ({first_line(error)}); "
            "supported observation spaces: Box and Discrete"
        ) from error


def make_batched_env(config: TrainConfig, num_envs: int) -> BatchedEnv:
    """Make the batched env that `vectorization` names; its spaces must be those of the single env."""
    with closing(env_factory(config)()) as single:  # raises a clear error for wrong arguments
        expected = single.observation_space, single.action_space
    if config.vectorization == "native":
        env: BatchedEnv = SeededCartPole(config.env_id, num_envs, config.env_kwargs)
    else:
        env = _import_batched_env(config, num_envs)
    spaces = env.single_observation_space, env.single_action_space
    if spaces != expected or env.num_envs != num_envs:
        env.close()
        raise EnvironmentSetupError(
            f"vectorization={config.vectorization!r} gives {env.num_envs} envs with the spaces {spaces}; {num_envs} "
            f"envs with the spaces of {config.env_id} are needed: {expected}. Batched envs have neither nested spaces, "
            "nor masks, nor stacked frames"
        )
    return env


def _import_batched_env(config: TrainConfig, num_envs: int) -> BatchedEnv:
    make: Any = import_object(config.vectorization, "vectorization")
    kwargs = {name: value for name, value in config.env_kwargs.items() if name != "max_episode_steps"}
    try:
        env: BatchedEnv = make(num_envs=num_envs, **kwargs)
        _ = env.num_envs, env.single_observation_space, env.single_action_space
    except Exception as error:
        raise EnvironmentSetupError(
            f"vectorization={config.vectorization!r} cannot be made with num_envs={num_envs} and "
            f"env_kwargs {config.env_kwargs}: {describe_error(error)}"
        ) from error
    return env


def make_single_of_batch(config: TrainConfig) -> AnyEnv:
    """Make one env of the batched kind that `vectorization` names."""
    env, limit = SingleOfBatch(make_batched_env(config, 1)), max_episode_steps(config)
    return env if limit is None else TimeLimit(env, limit)


def env_factory(config: TrainConfig) -> EnvFactory:
    """Return a function that makes one environment of this config; it can be sent to other processes."""
    packing = config.action_mask, config.frame_stack
    make = partial(make_single_env, config.env_id, config.env_kwargs, *packing, config.wrappers)
    own = local_objects(env_code(config))
    return CloudpickleWrapper(partial(call_with_objects, own, make)) if own else make


def replay_factory(config: TrainConfig) -> EnvFactory:
    """Return a function that makes one environment as training does; it can be sent to other processes."""
    return partial(make_single_of_batch, config) if is_object_path(config.vectorization) else env_factory(config)


class AnnouncedFactory:
    """Makes envs one after the other, and warns once with an estimate if that takes more than a few seconds."""

    def __init__(self, env_fn: EnvFactory, num_envs: int) -> None:
        self._env_fn = env_fn
        self._num_envs = num_envs
        self._num_made = 0
        self._announced = False
        self._started_at = 0.0

    def __call__(self) -> AnyEnv:
        """Make the next env."""
        if self._num_made == 0:
            self._started_at = time.monotonic()
        env = self._env_fn()
        self._num_made += 1
        elapsed, num_left = time.monotonic() - self._started_at, self._num_envs - self._num_made
        if elapsed > ANNOUNCED_SECONDS and num_left and not self._announced:
            self._announced = True
            warnings.warn(
                f"building envs: {self._num_made:,} of {self._num_envs:,} after {elapsed:.0f} s, "
                f"about {elapsed / self._num_made * num_left:,.0f} s left",
                stacklevel=2,
            )
        return env


def check_num_envs(config: TrainConfig) -> None:
    """Refuse more envs than memory, processes or open files allow, before they are built."""
    _check_collectors(config)
    remedy = f"lower num_envs={config.num_envs}"
    if config.vectorization == "async":
        workers = -(-config.num_envs // config.envs_per_worker)
        remedy = f"{remedy} or raise envs_per_worker={config.envs_per_worker}"
        _check_workers(workers, "worker processes", remedy)
    if config.num_envs > _MAX_UNMEASURED_ENVS:
        check_memory(_vector_bytes(config), remedy)


def _check_collectors(config: TrainConfig) -> None:
    if config.collectors > config.num_envs:
        raise ConfigError(f"collectors={config.collectors}: at most one per env, and num_envs={config.num_envs}")
    if config.collect_on != "here" and config.vectorization == "async":
        raise ConfigError(
            f"vectorization='async': with collect_on={config.collect_on!r}, each collector steps its own envs; use auto"
        )
    if config.collect_on == "processes":
        _check_workers(config.collectors, "collector processes", f"lower collectors={config.collectors}")


def _check_workers(count: int, what: str, remedy: str) -> None:
    """Refuse more processes than the system allows."""
    purpose = f"{count:,} {what}"
    check_processes(count, _THREADS_PER_WORKER, purpose, remedy)
    check_open_files(_FILES_PER_WORKER * count, purpose, remedy)


def _vector_bytes(config: TrainConfig) -> int:
    """Estimate the memory of all envs, their shared arrays and their worker processes."""
    with closing(env_factory(config)()) as env:
        space = env.observation_space
    obs_bytes = 0 if space.shape is None or space.dtype is None else math.prod(space.shape) * space.dtype.itemsize
    total = config.num_envs * (_BOOKKEEPING_BYTES + _OBS_COPIES * obs_bytes)
    if config.vectorization in ("sync", "async"):
        total += config.num_envs * _env_bytes(config)
    if config.vectorization == "async":
        total += -(-config.num_envs // config.envs_per_worker) * _WORKER_BYTES
    return total


def _env_bytes(config: TrainConfig) -> int:
    """Measure the memory of one env: Python's allocations, or the growth of the process if that is larger.

    The growth of the process includes the memory of C libraries.
    """
    with ExitStack() as opened:
        tracemalloc.start()
        try:
            _open_env(config, opened)
            traced, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        before = psutil.Process().memory_info().rss
        for _ in range(_MEASURED_COPIES):
            _open_env(config, opened)
        grown = psutil.Process().memory_info().rss - before
    return max(traced, (grown - _RSS_NOISE) // _MEASURED_COPIES)


def _open_env(config: TrainConfig, opened: ExitStack) -> None:
    env = opened.enter_context(closing(env_factory(config)()))
    try:
        env.reset(seed=0)
    except Exception as error:
        raise EnvironmentStepError(f"{config.env_id}, reset with seed 0: {describe_error(error)}") from error
