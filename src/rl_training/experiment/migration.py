"""Conversion of older checkpoints to the current format.

Format 1 stored replay rows in the order of the ring buffer, and only the numbers of the running episodes. Before
`encoder` was a parameter, a parameter `network` had its place, and images were flattened.
"""

from typing import Any

import torch

State = dict[str, Any]


def migrate(values: dict[str, State]) -> dict[str, State]:
    """Return the parts of a checkpoint in the current format.

    The keys of each part decide whether it is converted, because only the manifest holds the format number, and it may
    be missing.
    """
    buffer, trainer = values["buffer_state"], values["trainer_state"]
    if "head" in buffer:
        buffer = _convert_buffer(buffer)
    learner = values["algorithm_state"]
    if "last_obs" in trainer:
        trainer = _convert_trainer(trainer)
        learner = {name: _extract_moments(part) for name, part in learner.items()}
    config = values["config"]
    if isinstance(config.get("algo_kwargs"), dict):
        config = {**config, "algo_kwargs": _convert_params(config["algo_kwargs"])}
    return {**values, "config": config, "algorithm_state": learner, "buffer_state": buffer, "trainer_state": trainer}


def _convert_params(params: State) -> State:
    """Keep the networks that observations had before encoders; a `network` of another package stays, and is refused."""
    if "network" not in params or params["network"] is not None:
        return params
    return {"encoder": "mlp", **{name: value for name, value in params.items() if name != "network"}}


def _extract_moments(part: Any) -> Any:
    """Extract Adam's moments from the state of a torch optimizer with one tensor; return anything else unchanged."""
    if not (isinstance(part, dict) and "param_groups" in part):
        return part
    return {
        name: moment
        for old in part["state"].values()  # empty before the first gradient step
        for name, moment in zip(
            ("mean", "square", "steps"), (old["exp_avg"], old["exp_avg_sq"], old["step"]), strict=True
        )
    }


def _convert_buffer(state: State) -> State:
    """Convert the ring buffer to one block of transitions in the order in which they were added."""
    head, size, frames = int(state["head"]), int(state["size"]), state["frames"]
    first = 0 if head == size else head  # the head is inside the stored rows only if the ring has wrapped around
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


def _convert_trainer(trainer: State) -> State:
    """Add running episodes without seeds; when the run continues, it abandons them and starts new ones."""
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
