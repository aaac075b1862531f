"""Tensors and plain values as bytes, read without running code."""

import io
import pickle
from typing import Any

import torch

from rl_training.errors import CheckpointError


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
