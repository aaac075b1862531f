"""SHA-256 digests of a run's state. Equal digests mean that two states are equal to the last bit."""

import hashlib
import struct
from typing import Any

import numpy as np
import torch


def digest(value: Any) -> str:
    """Return the SHA-256 of a tree of tensors, arrays and plain values."""
    summary = hashlib.sha256()
    _update_hash(summary, value)
    return summary.hexdigest()


def _update_hash(summary: "hashlib._Hash", value: Any) -> None:
    if isinstance(value, dict):
        for key in sorted(value, key=str):
            summary.update(f"{{{key}".encode())
            _update_hash(summary, value[key])
    elif isinstance(value, (list, tuple)):
        summary.update(f"[{len(value)}".encode())
        for item in value:
            _update_hash(summary, item)
    elif isinstance(value, float):
        summary.update(struct.pack("<d", value))
    elif value is None or isinstance(value, (bool, int, str, bytes)):
        summary.update(repr(value).encode())
    else:
        array = np.ascontiguousarray(value.cpu() if isinstance(value, torch.Tensor) else value)
        summary.update(f"{array.dtype}{array.shape}".encode())
        summary.update(array.tobytes())
