"""Checkpoints of older formats, brought to today's shape.

Format 1 kept replay rows as they lay in the ring, and of the running episodes nothing but their numbers.
"""

from typing import Any

import torch
from torch import Tensor

State = dict[str, Any]


def migrate(values: dict[str, State]) -> dict[str, State]:
    """The parts of a checkpoint in today's shape.

    Each part is told by its own looks, because a file whose manifest was lost does not say its format.
    """
    buffer, trainer = values["buffer_state"], values["trainer_state"]
    if "head" in buffer:
        buffer = _number_rows(buffer)
    envs = trainer.get("envs")
    if isinstance(envs, dict) and "episode_numbers" in envs and "seeds" not in envs:
        buffer = _cut(buffer, trainer.get("last_obs"))
        trainer = {**trainer, "envs": _between_episodes(envs["episode_numbers"])}
    return {**values, "buffer_state": buffer, "trainer_state": trainer}


def _number_rows(state: State) -> State:
    """The ring as one block of transitions in the order in which they came."""
    head, size, frames = int(state["head"]), int(state["size"]), state["frames"]
    first = 0 if head == size else head  # only in a ring that has come round the head lies within the stored rows
    content = {"rows": state["rows"].roll(-first, 0)}
    open_ends = {}
    if frames is not None:
        ended, beyond = frames["ended"], frames["beyond"]
        rows = [(first + index) % size for index in range(size)]
        second = [beyond[row] for row in rows if ended[row]]
        content |= {"frames": frames["frames"].roll(-first, 0), "ended": ended.roll(-first)}
        content["beyond"] = torch.stack(second) if second else frames["frames"][:0]
        open_ends = {row: image for row, image in beyond.items() if not ended[row]}
    return {
        "added": first + size,
        "size": size,
        "blocks": [{"first": first, "content": content}] if size else [],
        "sampler": state["sampler"],
        "open_ends": open_ends,
    }


def _cut(buffer: State, last_obs: Tensor | None) -> State:
    """End the episodes that were running, since nothing was kept to bring them back."""
    if "blocks" in buffer:
        return {**buffer, "cut": True}  # the replay buffer knows which columns to change
    if not buffer.get("position") or last_obs is None:
        return buffer
    dones, truncated = buffer["dones"].clone(), buffer["truncated"].clone()
    running = ~dones[-1]
    known = dict(zip(map(tuple, truncated.nonzero().tolist()), buffer["last_obs"], strict=True))
    known |= {(len(dones) - 1, env): last_obs[env] for env in running.nonzero().flatten().tolist()}
    dones[-1] = True
    truncated[-1] |= running
    endings = [known[key].to(buffer["obs"].dtype) for key in sorted(known)]
    kept = torch.stack(endings) if endings else buffer["last_obs"]
    return {**buffer, "dones": dones, "truncated": truncated, "last_obs": kept}


def _between_episodes(episode_numbers: list[int]) -> State:
    """Envs of which each is about to begin its next episode."""
    count = len(episode_numbers)
    return {
        "episode_numbers": episode_numbers,
        "seeds": [None] * count,
        "lengths": [0] * count,
        "returns": [0.0] * count,
        "ended": [True] * count,
        "actions": [None] * count,
        "states": [None] * count,
    }
