"""Checkpoints of older formats, brought to today's shape.

Format 1 kept replay rows as they lay in the ring, and of the running episodes nothing but their numbers.
"""

from typing import Any

import torch

State = dict[str, Any]


def migrate(values: dict[str, State]) -> dict[str, State]:
    """The parts of a checkpoint in today's shape.

    Each part is told by its own looks, because a file whose manifest was lost does not say its format.
    """
    buffer, trainer = values["buffer_state"], values["trainer_state"]
    if "head" in buffer:
        buffer = _number_rows(buffer)
    learner = values["algorithm_state"]
    if "last_obs" in trainer:
        trainer = _with_unknown_episodes(trainer)
        learner = {name: _moments(part) for name, part in learner.items()}
    return {**values, "algorithm_state": learner, "buffer_state": buffer, "trainer_state": trainer}


def _moments(part: Any) -> Any:
    """The moments out of a torch optimizer's state over one tensor; anything else stays as it is."""
    if not (isinstance(part, dict) and "param_groups" in part):
        return part
    return {
        name: moment
        for old in part["state"].values()  # none before the first step
        for name, moment in zip(
            ("mean", "square", "steps"), (old["exp_avg"], old["exp_avg_sq"], old["step"]), strict=True
        )
    }


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


def _with_unknown_episodes(trainer: State) -> State:
    """Running episodes whose seeds were not kept: they are given up when the run goes on."""
    numbers = trainer["envs"]["episode_numbers"]
    count = len(numbers)
    envs = {
        "episode_numbers": numbers,
        "seeds": [None] * count,
        "lengths": [0] * count,
        "returns": [0.0] * count,
        "ended": [False] * count,
        "actions": [None] * count,
        "states": [None] * count,
    }
    obs = {"obs": trainer["last_obs"], "actions": None}
    return {**trainer, "envs": envs, **obs, "due": [], "logged_at": trainer["global_step"], "callbacks": []}
