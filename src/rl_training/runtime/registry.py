"""The registered algorithms: built-in ones and plugins from installed packages."""

import warnings
from functools import cache
from importlib.metadata import entry_points

from rl_training.errors import Problem
from rl_training.experiment.validation import config_error, nearest_name
from rl_training.runtime.algorithm import AlgorithmSpec
from rl_training.runtime.dqn_trainer import DQN
from rl_training.runtime.ppo_trainer import PPO
from rl_training.runtime.sac_trainer import SAC

PLUGIN_GROUP = "rl_training.algorithms"


_BUILT_IN = (PPO, DQN, SAC)


@cache
def _specs() -> dict[str, AlgorithmSpec]:
    """Return the built-in algorithms and those that installed packages provide in the entry-point group."""
    specs = {spec.name: spec for spec in _BUILT_IN}
    for entry_point in entry_points(group=PLUGIN_GROUP):
        try:
            spec = entry_point.load()
        except Exception as error:  # a broken plugin must not affect the others
            warnings.warn(f"algorithm plugin {entry_point.value} cannot be loaded: {error!r}", stacklevel=2)
            continue
        if not isinstance(spec, AlgorithmSpec) or spec.name in specs:
            warnings.warn(f"algorithm plugin {entry_point.value} is not an AlgorithmSpec with a new name", stacklevel=2)
            continue
        specs[spec.name] = spec
    return specs


def list_algorithm_specs() -> list[AlgorithmSpec]:
    """Return all registered algorithms, sorted by name."""
    return [spec for _, spec in sorted(_specs().items())]


def get_algorithm_spec(name: str) -> AlgorithmSpec:
    """Return the algorithm of this name; the error for an unknown name suggests a registered one."""
    specs = _specs()
    if name in specs:
        return specs[name]
    nearest = nearest_name(name, specs)
    hint = f"did you mean '{nearest}'?" if nearest else f"registered: {', '.join(sorted(specs))}"
    raise config_error([Problem(("algo",), f"algo={name!r}: unknown algorithm; {hint}")])


__all__ = ["PLUGIN_GROUP", "AlgorithmSpec", "get_algorithm_spec", "list_algorithm_specs"]
