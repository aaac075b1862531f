"""SHA-256 digests of a run's state. Equal digests mean that two states are equal to the last bit."""

import hashlib
import struct
from typing import Any

import numpy as np
import torch

from rl_training.experiment.checkpointing import CheckpointState


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


def state_digests(state: CheckpointState) -> dict[str, str]:
    """Return a digest for each part of a checkpoint that decides how the run continues; measured times are left out."""
    trainer = {name: value for name, value in state.trainer_state.items() if name not in ("callbacks", "samples")}
    metrics = trainer.get("metrics", {})
    trainer["metrics"] = {name: value for name, value in metrics.items() if not name.startswith("time/")}
    return {
        "algorithm": digest(state.algorithm_state),
        "buffer": digest(_join_blocks(state.buffer_state)),
        "trainer": digest(trainer),
    }


def _join_blocks(buffer_state: dict[str, Any]) -> dict[str, Any]:
    """Join the blocks of a replay buffer's state, so that the digest does not depend on how often it was saved."""
    if "blocks" not in buffer_state:
        return buffer_state
    pieces: dict[str, list[torch.Tensor]] = {}
    for block in buffer_state["blocks"]:
        content = block["content"]
        outdated = max(0, buffer_state["added"] - buffer_state["size"] - block["first"])
        for name, field in content.items():
            # `beyond` has an entry only for rows that ended an episode.
            skipped = int(content["ended"][:outdated].sum()) if name == "beyond" else outdated
            pieces.setdefault(name, []).append(field[skipped:])
    return {**buffer_state, "blocks": {name: torch.cat(fields) for name, fields in pieces.items()}}
