"""The `wrappers` of a config: Gymnasium's wrappers by their short name, others as `package.module:Name`."""

import inspect
from collections.abc import Callable
from typing import Any

from rl_training.experiment.validation import nearest_name, to_plain
from rl_training.plugins import is_object_path, object_path

WrapperEntry = str | dict[str, dict[str, Any]]
"""The name of a wrapper, or a map from the name to the keyword arguments."""

# Wrappers that break what a run relies on, and what to use in their place.
_REFUSED = {
    "NormalizeObservation": "its averages are in no checkpoint; use algo_kwargs.normalize_obs: true",
    "NormalizeReward": "its averages are in no checkpoint; use algo_kwargs.normalize_rewards: true",
    "Autoreset": "a run starts every episode itself, with its own seed; leave it out",
}


def read_wrapper(entry: Any) -> WrapperEntry:
    """Return an entry of `wrappers` in its plain form, and refuse one that cannot be applied.

    The wrapper may be given as a class, and its keyword arguments as `(wrapper, kwargs)` or `{wrapper: kwargs}`.
    Wrappers of other packages are imported when the first env is made.
    """
    wrapper, kwargs = _split(entry)
    name = _name_of(wrapper)
    if not isinstance(kwargs, dict) or not all(isinstance(key, str) for key in kwargs):
        raise ValueError(f"give the keyword arguments of {name} as a map of names to values")
    kwargs = to_plain(kwargs)
    if not is_object_path(name):
        check_arguments(name, find_gymnasium_wrapper(name), kwargs)
    return {name: kwargs} if kwargs else name


def split_entry(entry: WrapperEntry) -> tuple[str, dict[str, Any]]:
    """Return the name and the keyword arguments of a wrapper in its plain form."""
    return (entry, {}) if isinstance(entry, str) else next(iter(entry.items()))


def find_gymnasium_wrapper(name: str) -> Callable[..., Any]:
    """Return one of Gymnasium's own wrappers."""
    from gymnasium import wrappers

    known = [each for each in wrappers.__all__ if each[0].isupper()]
    if name in _REFUSED:
        raise ValueError(f"a run cannot use {name}: {_REFUSED[name]}")
    if name not in known:
        nearest = nearest_name(name, known)
        remedy = f"did you mean '{nearest}'?" if nearest else "give a wrapper of Gymnasium, or package.module:Name"
        raise ValueError(f"unknown wrapper '{name}'; {remedy}")
    try:
        found: Callable[..., Any] = getattr(wrappers, name)
    except ImportError as error:  # some need other packages, and are imported only now
        raise ValueError(f"the wrapper {name} cannot be imported ({error})") from None
    return found


def check_arguments(name: str, make: Callable[..., Any], kwargs: dict[str, Any]) -> None:
    """Refuse keyword arguments that a wrapper does not take, and missing ones."""
    signature = inspect.signature(make)
    try:
        signature.bind(None, **kwargs)
    except TypeError as error:
        taken = ", ".join(list(signature.parameters)[1:]) or "none"
        raise ValueError(f"the wrapper {name}: {error}; its arguments: {taken}") from None


def _split(entry: Any) -> tuple[Any, Any]:
    if isinstance(entry, tuple) and len(entry) == 2:
        return entry
    if isinstance(entry, dict) and len(entry) == 1:
        wrapper, kwargs = next(iter(entry.items()))
        return wrapper, {} if kwargs is None else kwargs  # YAML reads nothing after the colon as null
    if isinstance(entry, (str, type)) or inspect.isfunction(entry):
        return entry, {}
    raise ValueError("give the name of a wrapper, or a map with one key: the name, and its keyword arguments")


def _name_of(wrapper: Any) -> str:
    path = object_path(wrapper)
    if not isinstance(path, str) or not path:
        raise ValueError(f"give the name or the class of a wrapper, not {path!r}")
    module, _, name = path.rpartition(":")
    return name if module.partition(".wrappers")[0] == "gymnasium" else path
