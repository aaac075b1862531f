"""Tensors and plain values as bytes: what could not be read again is refused at writing, and reading runs no code."""

import io
import pickle
from collections import OrderedDict
from typing import Any

import torch

from rl_training.errors import CheckpointError

# Exactly these: a subclass, such as NumPy's float64 of float, is stored by its name and refused when it is read.
_PLAIN = {bool, int, float, str, bytes, type(None), torch.Tensor, torch.nn.Parameter}
_MAPS = {dict, OrderedDict}
_LISTS = {list, tuple}


def find_foreign(values: Any, name: str = "") -> str | None:
    """Where inside `values` something is neither a tensor nor a plain value, and what; none if nothing is."""
    kind = type(values)
    if kind in _PLAIN:
        return None
    if kind in _MAPS:
        for key, value in values.items():
            inner = f"{name}.{key}".lstrip(".") if isinstance(key, str) else f"{name}[{key!r}]"
            found = find_foreign(key, f"{name}: key {key!r}") or find_foreign(value, inner)
            if found:
                return found
        return None
    if kind in _LISTS:
        return next(filter(None, (find_foreign(value, f"{name}[{index}]") for index, value in enumerate(values))), None)
    return f"{name} is a {kind.__name__}"


def pack(values: Any) -> bytes:
    """The values as the content of a file."""
    memory = io.BytesIO()
    torch.save(values, memory)
    return memory.getvalue()


def unpack(content: bytes, file: str) -> Any:
    """The values in a file's content; `file` names it if it is damaged or holds code."""
    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        reason = str(error).partition("\n")[0]
        raise CheckpointError(f"{file} is refused: it is damaged or holds code ({reason})") from None
    except Exception as error:  # what the unpickler meets in a damaged file shows as almost any error
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise CheckpointError(f"{file} is damaged: {reason}") from None
