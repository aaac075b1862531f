"""Environments from a config: single ones for evaluation, a vector for training. Errors say what would work."""

import sys
import tracemalloc
from contextlib import closing
from functools import partial
from types import ModuleType
from typing import Any

import gymnasium
from gymnasium import Env
from gymnasium.envs.registration import load_env_creator
from gymnasium.error import DependencyNotInstalled, Error, NameNotFound, NamespaceNotFound, VersionNotFound
from gymnasium.wrappers import RecordEpisodeStatistics

from rl_training.envs.choosing import choose_vectorization
from rl_training.envs.common import EnvFactory
from rl_training.envs.native import NativeEpisodeVectorEnv
from rl_training.envs.probes import register_probes
from rl_training.envs.vector import AnyEnv, EpisodeVectorEnv, SyncEpisodeVectorEnv
from rl_training.envs.workers import AsyncEpisodeVectorEnv
from rl_training.errors import EnvironmentSetupError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.validation import nearest_name
from rl_training.memory import check_memory
from rl_training.trust import admit_env_module

_SURELY_FIT = 64  # so many copies are built without being measured first
WORKER_STEP_TIMEOUT = 5.0  # seconds; a worker process that is only slow is started again at little cost
_WORKER_BYTES = 30 * 2**20  # an interpreter with NumPy and Gymnasium

# Which extra of this package brings the simulator that an environment's module needs.
_EXTRAS = {
    "box2d": "box2d",
    "mujoco": "mujoco",
    "ale_py": "atari",
    "atari": "atari",
    "classic_control": "classic",
    "toy_text": "classic",
}


def make_env(config: TrainConfig, env_index: int) -> AnyEnv:
    """One environment that reports return and length in `info["episode"]`; the caller closes it."""
    del env_index  # all copies are alike; an episode's seed comes with its reset
    return RecordEpisodeStatistics(make_single_env(config.env_id, config.env_kwargs))


def resolve_vectorization(config: TrainConfig) -> tuple[TrainConfig, str | None]:
    """The config with `vectorization: auto` decided, and why it was decided so."""
    if config.vectorization != "auto":
        return config, None
    chosen = choose_vectorization(config, env_factory(config))
    changes = {"vectorization": chosen.kind, "envs_per_worker": chosen.envs_per_worker}
    return config.model_copy(update=changes), f"{chosen.kind}: {chosen.reason}"


def make_vector_env(config: TrainConfig) -> EpisodeVectorEnv:
    """`num_envs` copies behind one interface, autoreset off; the caller closes it."""
    config, _ = resolve_vectorization(config)
    if config.num_envs > _SURELY_FIT:
        check_memory(config.num_envs * _env_bytes(config), f"lower num_envs={config.num_envs}")
    env_fn = env_factory(config)
    if config.vectorization == "sync":
        return SyncEpisodeVectorEnv([env_fn] * config.num_envs, config.seed)
    if config.vectorization == "native":
        with closing(env_fn()):  # says what is wrong with the arguments
            return NativeEpisodeVectorEnv(
                config.env_id, config.env_kwargs, env_fn, num_envs=config.num_envs, run_seed=config.seed
            )
    try:
        return AsyncEpisodeVectorEnv(
            [env_fn] * config.num_envs,
            config.seed,
            envs_per_worker=config.envs_per_worker,
            step_timeout=config.step_timeout or WORKER_STEP_TIMEOUT,
            max_restarts=config.env_restarts,
        )
    except (TypeError, ValueError, Error) as error:  # spaces that have no place in shared memory
        raise EnvironmentSetupError(
            f"{config.env_id} does not run in processes ({_first_line(error)}); "
            "supported observation spaces: Box and Discrete"
        ) from error


def env_factory(config: TrainConfig) -> EnvFactory:
    """Return a function that makes one environment of this config; it can be sent to other processes."""
    return partial(make_single_env, config.env_id, config.env_kwargs)


def _env_bytes(config: TrainConfig) -> int:
    """A lower bound: what one copy takes in Python's own memory, and its process if it gets one."""
    tracemalloc.start()
    try:
        with closing(make_single_env(config.env_id, config.env_kwargs)) as env:
            env.reset(seed=0)
            traced, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return traced + (_WORKER_BYTES if config.vectorization == "async" else 0)


def make_single_env(env_id: str, env_kwargs: dict[str, Any]) -> AnyEnv:
    """One environment as its registration describes it; the caller closes it."""
    register_probes()
    admit_env_module(env_id)
    try:
        return gymnasium.make(env_id, disable_env_checker=True, **env_kwargs)
    except DependencyNotInstalled as error:
        raise EnvironmentSetupError(f"{env_id}: {missing_dependency(env_id, error)}") from None
    except (NameNotFound, NamespaceNotFound, VersionNotFound) as error:
        raise EnvironmentSetupError(_unknown_env(env_id, error)) from None
    except ModuleNotFoundError as error:
        raise EnvironmentSetupError(f"{env_id}: {_first_line(error)}") from None
    except (TypeError, Error) as error:
        raise EnvironmentSetupError(f"{env_id} with env_kwargs {env_kwargs}: {_first_line(error)}") from error
    except (Exception, SystemExit) as error:  # the env's own constructor may raise anything
        reason = f"{type(error).__name__}: {_first_line(error)}"
        raise EnvironmentSetupError(f"{env_id} with env_kwargs {env_kwargs}: {reason}") from error


def env_packages(env_id: str) -> set[str]:
    """Return the top-level packages that an environment, which has been made, consists of and imports.

    Among them are its simulator and whatever its author's module uses; the standard library is left out.
    """
    spec = gymnasium.registry.get(env_id.rpartition(":")[2])
    if spec is None:
        return set()
    entry_points = [spec.entry_point, *(wrapper.entry_point for wrapper in spec.additional_wrappers)]
    creators = [load_env_creator(each) if isinstance(each, str) else each for each in entry_points if each is not None]
    homes = {kind.__module__ for creator in creators for kind in getattr(creator, "__mro__", (creator,))}
    # What the standard library and Gymnasium's base class import says nothing about this env.
    own = {home for home in homes if home.partition(".")[0] not in sys.stdlib_module_names and home != Env.__module__}
    modules = [sys.modules[home] for home in own if home in sys.modules]
    used = [value for module in modules for value in vars(module).values()]
    names = {value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None) for value in used}
    packages = {str(name).partition(".")[0] for name in names | own}
    return {name for name in packages if name in sys.modules and name not in sys.stdlib_module_names}


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


def _unknown_env(env_id: str, error: Error) -> str:
    nearest = nearest_name(env_id, gymnasium.registry)
    if nearest:
        return f"unknown environment '{env_id}'; did you mean '{nearest}'?"
    if env_id.startswith("ALE/"):
        return f"unknown environment '{env_id}': pip install 'rl-training[atari]', then use 'ale_py:{env_id}'"
    return f"unknown environment '{env_id}': {_first_line(error)}"


def missing_dependency(env_id: str, error: Error) -> str:
    """What to install for an environment whose simulator or drawing library is not there."""
    spec = gymnasium.registry.get(env_id)
    home = f"{spec.entry_point if spec else ''} {error}".lower()
    for module, extra in _EXTRAS.items():
        if module in home:
            return f"needs an extra: pip install 'rl-training[{extra}]'"
    return _first_line(error)
