"""Environments that are given as Python objects: a class, a function that makes one, or an instance with a spec."""

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any
from weakref import WeakValueDictionary

import gymnasium
from gymnasium import Env, Space
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import TimeLimit

from rl_training.envs.layers import AnyEnv
from rl_training.errors import ConfigError, EnvironmentSetupError, describe_error
from rl_training.plugins import callable_path, import_object, is_local, is_object_path
from rl_training.signals import SignalExit
from rl_training.trust import admit_env_module

_LIMIT = "max_episode_steps"
_NO_LIMIT = -1  # the value with which `gymnasium.make` leaves out a registered time limit

_made: WeakValueDictionary[int, AnyEnv] = WeakValueDictionary()


def describe_env(env: Any) -> dict[str, Any]:
    """Return the config values that stand for an id, a class, a factory, or an environment with a spec."""
    if isinstance(env, Env):
        if env.spec is None:
            name = type(env.unwrapped).__name__
            raise ConfigError(
                f"env={name}(...): a run needs several copies of an environment, and this one has no spec to make them "
                f"from; give the class {name}, or a function that makes the environment"
            )
        return _describe_spec(env.spec)
    if isinstance(env, EnvSpec):
        return _describe_spec(env)
    if isinstance(env, str):
        return {"env_id": env}
    if not callable(env):
        raise ConfigError(
            f"env={env!r}: give a registered id, a class, a function that makes the environment, or an environment "
            "of gymnasium.make"
        )
    return {"env_id": callable_path(env)}


def _describe_spec(spec: EnvSpec) -> dict[str, Any]:
    """Return the config values with which `gymnasium.make` gives the same environment, with the same wrappers."""
    registered = gymnasium.registry.get(spec.id)
    own_wrappers = spec.additional_wrappers[len(registered.additional_wrappers) :] if registered else ()
    unknown = [wrapper.name for wrapper in own_wrappers if wrapper.kwargs is None]
    if registered is None or registered.entry_point != spec.entry_point or unknown:
        reason = f"the wrapper {unknown[0]} does not record its arguments" if unknown else "its id is not registered"
        raise ConfigError(
            f"env={spec.id}: it cannot be copied, because {reason}; give a function that makes the environment"
        )
    usual = registered.kwargs
    kwargs = {name: value for name, value in spec.kwargs.items() if name not in usual or usual[name] != value}
    if kwargs.get("render_mode") == "human":  # copies need no windows
        del kwargs["render_mode"]
    if spec.max_episode_steps != registered.max_episode_steps:
        kwargs[_LIMIT] = _NO_LIMIT if spec.max_episode_steps is None else spec.max_episode_steps
    wrappers = [(wrapper.entry_point, wrapper.kwargs) for wrapper in own_wrappers]
    return {"env_id": with_module(registered), "env_kwargs": kwargs, "wrappers": wrappers}


def with_module(spec: EnvSpec) -> str:
    """Return the id of an environment with the module that registers it, if it must be imported first."""
    home = str(spec.entry_point) if isinstance(spec.entry_point, str) else getattr(spec.entry_point, "__module__", "")
    module = home.partition(":")[0]
    return (
        spec.id if module.partition(".")[0] in ("", "__main__", "gymnasium", "rl_training") else f"{module}:{spec.id}"
    )


def find_factory(env_id: str) -> Callable[..., Any] | None:
    """Return the class or function that `package.module:name` names; none if this is the id of a registered env."""
    if not is_object_path(env_id):
        return None
    if is_local(env_id):
        return import_object(env_id, "env_id")  # type: ignore[no-any-return]  # only callables are local
    admit_env_module(env_id)
    module, _, name = env_id.partition(":")
    found = getattr(import_module(module), name, None)
    return found if callable(found) else None


def make_from_factory(env_id: str, factory: Callable[..., Any], env_kwargs: dict[str, Any]) -> AnyEnv:
    """Make an environment with a class or function, and apply a time limit that the factory does not take itself."""
    kwargs = dict(env_kwargs)
    limit = None if accepts(factory, _LIMIT) else kwargs.pop(_LIMIT, None)
    try:
        env = factory(**kwargs)
        limited = env if limit in (None, _NO_LIMIT) or not isinstance(env, Env) else TimeLimit(env, limit)
    except SignalExit:
        raise
    except (Exception, SystemExit) as error:  # a factory may raise anything
        raise EnvironmentSetupError(f"{env_id} with env_kwargs {env_kwargs}: {describe_error(error)}") from error
    if not isinstance(env, Env):
        raise EnvironmentSetupError(f"{env_id} must return a gymnasium.Env, not {type(env).__name__}")
    for name in ("observation_space", "action_space"):
        if not isinstance(getattr(env, name, None), Space):
            raise EnvironmentSetupError(f"{env_id} has no {name}: set it to a space of gymnasium.spaces")
    if _made.get(id(env.unwrapped)) is env.unwrapped:
        raise EnvironmentSetupError(f"{env_id} returned the same object twice: it must make a new one in every call")
    _made[id(env.unwrapped)] = env.unwrapped
    return limited


def accepts(factory: Callable[..., Any], name: str) -> bool:
    """Return whether a factory takes a keyword argument of this name."""
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):  # some callables that are written in C have no signature
        return False
    return name in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())
