"""Plain values and arrays, which a run and its envs exchange, and their form in checkpoints."""

from typing import Any

import numpy as np
import torch

from rl_training.errors import CheckpointError, ConfigError

_PLAIN = (type(None), bool, int, float, str, bytes)


def plain_copy(value: Any) -> Any:
    """Copy a tree of plain values and arrays; NumPy scalars become Python numbers. Refuse any other value."""
    if isinstance(value, np.generic):
        value = value.item()
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is np.ndarray and value.dtype.kind in "biuf":
        return value.copy()
    if kind is dict:
        return {plain_copy(key): plain_copy(item) for key, item in value.items()}
    if kind in (list, tuple):
        return kind(plain_copy(item) for item in value)
    raise ConfigError(f"a {kind.__name__}: only plain values (numbers, strings, lists, dicts) and arrays are allowed")


def pack_state(state: Any) -> Any:
    """Convert arrays to tensors, for a checkpoint; refuse values that are not plain."""
    if isinstance(state, (np.ndarray, np.generic)):
        return torch.from_numpy(np.array(state))
    if isinstance(state, dict):
        return {key: pack_state(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        parts = [pack_state(value) for value in state]
        return tuple(parts) if isinstance(state, tuple) else parts
    if state is None or isinstance(state, (bool, int, float, str, bytes)):
        return state
    raise CheckpointError(
        f"get_state() of the environment contains a {type(state).__name__}: return only arrays and plain values"
    )


def unpack_state(state: Any) -> Any:
    """Undo `pack_state`."""
    if isinstance(state, torch.Tensor):
        return state.numpy().copy()
    if isinstance(state, dict):
        return {key: unpack_state(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(unpack_state(value) for value in state)
    return state
