"""One number for a whole state: equal digests mean equal to the last bit."""

import hashlib
import struct
from typing import Any

import numpy as np
import torch

from rl_training.experiment.checkpointing import CheckpointState


def digest(value: Any) -> str:
    """The SHA-256 of a tree of tensors, arrays and plain values."""
    summary = hashlib.sha256()
    _feed(summary, value)
    return summary.hexdigest()


def _feed(summary: "hashlib._Hash", value: Any) -> None:
    if isinstance(value, dict):
        for key in sorted(value, key=str):
            summary.update(f"{{{key}".encode())
            _feed(summary, value[key])
    elif isinstance(value, (list, tuple)):
        summary.update(f"[{len(value)}".encode())
        for item in value:
            _feed(summary, item)
    elif isinstance(value, float):
        summary.update(struct.pack("<d", value))
    elif value is None or isinstance(value, (bool, int, str, bytes)):
        summary.update(repr(value).encode())
    else:
        array = np.ascontiguousarray(value.cpu() if isinstance(value, torch.Tensor) else value)
        summary.update(f"{array.dtype}{array.shape}".encode())
        summary.update(array.tobytes())


def state_digests(state: CheckpointState) -> dict[str, str]:
    """One digest for each part of a checkpoint that decides how the run goes on; what clocks decide is left out."""
    trainer = {name: value for name, value in state.trainer_state.items() if name not in ("callbacks", "samples")}
    metrics = trainer.get("metrics", {})
    trainer["metrics"] = {name: value for name, value in metrics.items() if not name.startswith("time/")}
    return {
        "algorithm": digest(state.algorithm_state),
        "buffer": digest(_joined(state.buffer_state)),
        "trainer": digest(trainer),
    }


def _joined(buffer_state: dict[str, Any]) -> dict[str, Any]:
    """A replay buffer's state with its blocks in one piece, because how often it was saved says nothing of it."""
    if "blocks" not in buffer_state:
        return buffer_state
    pieces: dict[str, list[torch.Tensor]] = {}
    for block in buffer_state["blocks"]:
        content = block["content"]
        outdated = max(0, buffer_state["added"] - buffer_state["size"] - block["first"])
        for name, field in content.items():
            # Second images exist for ended rows only.
            skipped = int(content["ended"][:outdated].sum()) if name == "beyond" else outdated
            pieces.setdefault(name, []).append(field[skipped:])
    return {**buffer_state, "blocks": {name: torch.cat(fields) for name, fields in pieces.items()}}
