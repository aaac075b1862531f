"""The registered algorithms: built-in ones and plugins from installed packages."""

import warnings
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cache
from importlib.metadata import entry_points

from rl_training.errors import ConfigError, Problem
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.sources import Layer
from rl_training.experiment.validation import config_error, nearest_name, suggest
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
    hint = suggest(name, specs, f"registered: {', '.join(sorted(specs))}")
    raise config_error([Problem(("algo",), f"algo={name!r}: unknown algorithm; {hint}")])


def place_parameters(layers: Sequence[Layer]) -> list[Layer]:
    """Return the layers with the parameters of the algorithm that flags name without their section in `algo_kwargs`."""
    algo = next((layer.values["algo"] for layer in reversed(layers) if "algo" in layer.values), None)
    if not isinstance(algo, str) or algo not in _specs():
        return list(layers)  # the error for a missing or unknown algorithm comes first
    params = _specs()[algo].params_model.model_fields
    return [_place(layer, params) if layer.source == "flag" else layer for layer in layers]


def _place(layer: Layer, params: Collection[str]) -> Layer:
    fields, values = TrainConfig.model_fields, dict(layer.values)
    for name in [name for name in layer.values if name not in fields]:
        if name not in params:
            nearest = nearest_name(name, [*fields, *params])
            if nearest in params:  # the error for a name close to a field, or to no name, comes later
                raise ConfigError(f"{name}: unknown key; did you mean 'algo_kwargs.{nearest}'?")
            continue
        section = values.get("algo_kwargs", {})
        if not isinstance(section, dict) or name in section:
            raise ConfigError(f"{name} and algo_kwargs.{name} are the same: give only one of them")
        values["algo_kwargs"] = {**section, name: values.pop(name)}
    return replace(layer, values=values)


__all__ = ["PLUGIN_GROUP", "AlgorithmSpec", "get_algorithm_spec", "list_algorithm_specs", "place_parameters"]
