"""The `wrappers` of a config: Gymnasium's wrappers by their short name, others as `package.module:Name`."""

from collections.abc import Callable
from typing import Any

from rl_training.experiment.validation import suggest, to_plain
from rl_training.plugins import Entry, find_argument_problem, is_object_path, object_path, split_entry

# Wrappers that break what a run relies on, and what to use in their place.
_REFUSED = {
    "NormalizeObservation": "its averages are in no checkpoint; use algo_kwargs.normalize_obs: true",
    "NormalizeReward": "its averages are in no checkpoint; use algo_kwargs.normalize_rewards: true",
    "Autoreset": "a run starts every episode itself, with its own seed; leave it out",
}


def read_wrapper(entry: Any) -> Entry:
    """Return an entry of `wrappers` in its plain form, and refuse one that cannot be applied.

    The wrapper may be given as a class, and its keyword arguments as `(wrapper, kwargs)` or `{wrapper: kwargs}`.
    Wrappers of other packages are imported when the first env is made.
    """
    wrapper, kwargs = split_entry(entry)
    name, kwargs = _name_of(wrapper), to_plain(kwargs)
    if not is_object_path(name):
        check_arguments(name, find_gymnasium_wrapper(name), kwargs)
    return {name: kwargs} if kwargs else name


def find_gymnasium_wrapper(name: str) -> Callable[..., Any]:
    """Return one of Gymnasium's own wrappers."""
    from gymnasium import wrappers

    known = [each for each in wrappers.__all__ if each[0].isupper()]
    if name in _REFUSED:
        raise ValueError(f"a run cannot use {name}: {_REFUSED[name]}")
    if name not in known:
        remedy = suggest(name, known, "give a wrapper of Gymnasium, or package.module:Name")
        raise ValueError(f"unknown wrapper '{name}'; {remedy}")
    try:
        found: Callable[..., Any] = getattr(wrappers, name)
    except ImportError as error:  # some need other packages, and are imported only now
        raise ValueError(f"the wrapper {name} cannot be imported ({error})") from None
    return found


def check_arguments(name: str, make: Callable[..., Any], kwargs: dict[str, Any]) -> None:
    """Refuse keyword arguments that a wrapper does not take, and missing ones."""
    problem = find_argument_problem(make, (None,), kwargs)  # the env comes first
    if problem:
        raise ValueError(f"the wrapper {name}: {problem}")


def _name_of(wrapper: Any) -> str:
    path = object_path(wrapper)
    if not isinstance(path, str) or not path:
        raise ValueError(f"give the name or the class of a wrapper, not {path!r}")
    module, _, name = path.rpartition(":")
    return name if module.partition(".wrappers")[0] == "gymnasium" else path
