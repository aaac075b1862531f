"""Configs from files and flags, merged and validated."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rl_training.errors import ConfigError

if TYPE_CHECKING:
    from rl_training.algorithms.base import LearnerParams
    from rl_training.experiment.config import TrainConfig
    from rl_training.experiment.sources import Layer, ResolvedConfig


def load_config(path: Path | str) -> "TrainConfig":
    """Read a YAML config, and validate it together with the algorithm's parameters."""
    from rl_training.experiment.sources import read_yaml

    return resolve([read_yaml(Path(path))])[0].config


def resolve(layers: "Sequence[Layer]") -> "tuple[ResolvedConfig, LearnerParams]":
    """Merge the layers into one config, and validate it together with the algorithm's parameters; return both."""
    from rl_training.experiment.sources import located, resolve_config
    from rl_training.runtime.registry import get_algorithm_spec, place_parameters

    layers = place_parameters(layers)
    resolved = resolve_config(layers)
    try:
        return resolved, get_algorithm_spec(resolved.config.algo).resolve_params_fn(resolved.config)
    except ConfigError as error:
        raise located(error, layers) from None
