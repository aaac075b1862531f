"""Make one environment: by its id or factory, with its wrappers, and packed as training sees it."""

import sys
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from importlib.metadata import entry_points
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import gymnasium
from gymnasium import Env
from gymnasium.envs.registration import load_env_creator
from gymnasium.error import DependencyNotInstalled, Error, NameNotFound, NamespaceNotFound, VersionNotFound
from gymnasium.wrappers import TimeLimit

from rl_training.envs.layers import AnyEnv, layers_of
from rl_training.envs.objects import find_factory, make_from_factory, with_module
from rl_training.envs.packed import PackedEnv, StackedEnv, needs_packing
from rl_training.envs.probes import register_probes
from rl_training.errors import ConfigError, EnvironmentSetupError, RLTrainingError, describe_error
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.validation import nearest_name
from rl_training.experiment.wrappers import check_arguments, find_gymnasium_wrapper
from rl_training.plugins import Entry, import_object, innermost_function, is_object_path, split_entry
from rl_training.signals import SignalExit
from rl_training.trust import admit_env_module

# The extra of this package that installs the simulator, by a part of the environment's module name.
_EXTRAS = {
    "box2d": "box2d",
    "mujoco": "mujoco",
    "ale_py": "atari",
    "atari": "atari",
    "classic_control": "classic",
    "toy_text": "classic",
}


def make_single_env(
    env_id: str,
    env_kwargs: dict[str, Any],
    action_mask: str = "off",
    frame_stack: int = 1,
    wrappers: Sequence[Entry] = (),
) -> AnyEnv:
    """Make one environment whose observations and actions are arrays; the caller closes it."""
    env = make_raw_env(env_id, env_kwargs, wrappers)
    if frame_stack > 1:
        env = StackedEnv(env, frame_stack)
    return PackedEnv(env, action_mask) if needs_packing(env, action_mask) else env


def make_raw_env(env_id: str, env_kwargs: dict[str, Any], wrappers: Sequence[Entry] = ()) -> AnyEnv:
    """Make one environment by its id or factory, inside the wrappers; the caller closes it."""
    env = _make_inner(env_id, env_kwargs)
    try:
        for entry in wrappers:
            env = _wrap(env, *split_entry(entry))
    except BaseException:
        with suppress(Exception):
            env.close()
        raise
    return env


def _wrap(env: AnyEnv, name: str, kwargs: dict[str, Any]) -> AnyEnv:
    """Apply one wrapper; refuse wrong keyword arguments and a wrapper that fails."""
    try:
        if is_object_path(name):
            make = import_object(name, "wrappers")
            check_arguments(name, make, kwargs)
        else:
            make = find_gymnasium_wrapper(name)
            kwargs = {key: _with_tuples(value) for key, value in kwargs.items()}  # ResizeObservation takes no list
    except ValueError as error:
        raise ConfigError(f"wrappers: {error}") from None
    try:
        wrapped: AnyEnv = make(env, **kwargs)
    except Exception as error:
        raise EnvironmentSetupError(f"the wrapper {name} with {kwargs}: {describe_error(error)}") from error
    if not isinstance(wrapped, Env):
        raise EnvironmentSetupError(f"the wrapper {name} must return a gymnasium.Env, not {type(wrapped).__name__}")
    return wrapped


def _with_tuples(value: Any) -> Any:
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value


def _make_inner(env_id: str, env_kwargs: dict[str, Any]) -> AnyEnv:
    register_probes()
    admit_env_module(env_id)
    _register_declared_envs(env_id)
    try:
        factory = find_factory(env_id)
        if factory is not None:
            return make_from_factory(env_id, factory, env_kwargs)
        return gymnasium.make(env_id, disable_env_checker=True, **env_kwargs)
    except RLTrainingError:  # its message is clear already
        raise
    except (DependencyNotInstalled, ModuleNotFoundError) as error:
        raise EnvironmentSetupError(f"{env_id}: {missing_dependency(env_id, error)}") from None
    except (NameNotFound, NamespaceNotFound, VersionNotFound) as error:
        raise EnvironmentSetupError(_unknown_env(env_id, error)) from None
    except (TypeError, Error) as error:
        raise EnvironmentSetupError(f"{env_id} with env_kwargs {env_kwargs}: {first_line(error)}") from error
    except SignalExit:
        raise
    except (Exception, SystemExit) as error:  # the env's own constructor may raise anything
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise EnvironmentSetupError(f"{env_id} with env_kwargs {env_kwargs}: {reason}") from error


def _register_declared_envs(env_id: str) -> None:
    """Register the envs of an id's namespace if an installed package declares how (entry-point group `gymnasium.envs`).

    Gymnasium itself no longer reads these declarations, on which packages such as MinAtar rely.
    """
    namespace = env_id.rpartition("/")[0]
    if namespace and ":" not in namespace and env_id not in gymnasium.registry:
        for declared in entry_points(group="gymnasium.envs", name=namespace):
            declared.load()()


def env_packages(code: Iterable[str]) -> set[str]:
    """Return the top-level packages that contain envs and wrappers, and those that their modules import.

    `code` holds names of envs and wrappers as `env_code` returns them; these must have been made before. The packages
    include simulators, but not the standard library.
    """
    creators = [creator for name in code for creator in _creators(name)]
    homes = {str(kind.__module__) for creator in creators for kind in getattr(creator, "__mro__", (creator,))}
    # The imports of the standard library and of Gymnasium's base class say nothing about this env.
    own = {home for home in homes if home.partition(".")[0] not in sys.stdlib_module_names and home != Env.__module__}
    modules = [sys.modules[home] for home in own if home in sys.modules]
    used = [value for module in modules for value in vars(module).values()]
    names = {value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None) for value in used}
    packages = {str(name).partition(".")[0] for name in names | own}
    return {name for name in packages if name in sys.modules and name not in sys.stdlib_module_names}


def _creators(name: str) -> list[Any]:
    """Return the classes and functions that make an env, or the wrapper of this name."""
    factory = find_factory(name)
    if factory is not None:
        return [innermost_function(factory)]
    spec = gymnasium.registry.get(name.rpartition(":")[2])
    if spec is None:
        return []
    entry_points = [spec.entry_point, *(wrapper.entry_point for wrapper in spec.additional_wrappers)]
    return [load_env_creator(each) if isinstance(each, str) else each for each in entry_points if each is not None]


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message."""
    return str(error).partition("\n")[0]


def _unknown_env(env_id: str, error: Error) -> str:
    module, _, name = env_id.rpartition(":")
    if module and is_object_path(env_id):
        factories = [each for each, value in vars(sys.modules[module]).items() if callable(value)]
        nearest = nearest_name(name, factories)
        return f"{module} has no {name}" + (f"; did you mean '{module}:{nearest}'?" if nearest else "")
    nearest = nearest_name(name, gymnasium.registry)
    if nearest:
        home = with_module(gymnasium.registry[nearest]).rpartition(":")[0]
        place = f"{module or home.partition('.')[0]}:" if home else ""
        return f"unknown environment '{env_id}'; did you mean '{place}{nearest}'?"
    if env_id.startswith("ALE/"):
        remedy = "" if find_spec("ale_py") else "pip install 'rl-training[atari]', then "
        return f"unknown environment '{env_id}': {remedy}use 'ale_py:{env_id}'"
    reason = first_line(error).partition(" Did you mean")[0]  # Gymnasium's own guess may be far off
    return f"unknown environment '{env_id}': {reason}"


def missing_dependency(env_id: str, error: Exception) -> str:
    """Say what to install for an environment whose simulator or drawing library is missing."""
    spec = gymnasium.registry.get(env_id)
    home = f"{spec.entry_point if spec else ''} {error}".lower()
    for module, extra in _EXTRAS.items():
        if module in home:
            return f"needs an extra: pip install 'rl-training[{extra}]'"
    remedy = "; install the env's package" if isinstance(error, ModuleNotFoundError) else ""
    return f"{first_line(error)}{remedy}"


def max_episode_steps(config: TrainConfig) -> int | None:
    """Return the time limit that the single env is made with; none if there is none."""
    if find_factory(config.env_id) is not None:
        return _factory_limit(config)
    spec = gymnasium.registry.get(config.env_id.rpartition(":")[2])
    limit = config.env_kwargs.get("max_episode_steps", spec.max_episode_steps if spec else None)
    return None if limit in (None, -1) else int(limit)


def _factory_limit(config: TrainConfig) -> int | None:
    """Make an env with its factory, and return the time limit of a wrapper around it."""
    with closing(make_raw_env(config.env_id, config.env_kwargs, config.wrappers)) as env:
        limits = (int(layer._max_episode_steps) for layer in layers_of(env) if isinstance(layer, TimeLimit))
        return next(limits, None)


def has_time_limit(config: TrainConfig) -> bool:
    """Return whether an environment declares a time limit; it must have been made before."""
    spec = gymnasium.registry.get(config.env_id.rpartition(":")[2])
    declared = {**(spec.kwargs if spec else {}), **config.env_kwargs}
    wrapped = any(split_entry(entry)[0] == "TimeLimit" for entry in config.wrappers)
    return max_episode_steps(config) is not None or wrapped or bool(declared.get("max_num_frames_per_episode"))  # Atari
