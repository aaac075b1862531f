"""Acts with an agent that rl_training exported with `--format numpy`. Needs nothing but NumPy.

In Python: `Agent("agent.npz").act(observation)`. In a shell: `python numpy_agent.py agent.npz JSON [MASK_AS_JSON]`."""

import json
import math
import sys
from functools import reduce
from operator import getitem
from typing import Any

import numpy as np

_ERF, _HALF, _ILLEGAL = np.frompyfunc(math.erf, 1, 1), np.float32(0.5), np.float32(-1e30)
_ACTIVATIONS: dict[str, Any] = {
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, np.float32(0.0)),
    "elu": lambda x: np.where(x > 0.0, x, np.expm1(np.minimum(x, np.float32(0.0)))),
    "gelu": lambda x: x * _HALF * (1.0 + _ERF(x * np.sqrt(_HALF)).astype(np.float32)),
    "silu": lambda x: x * _HALF * (1.0 + np.tanh(_HALF * x)),
    "leaky_relu": lambda x: np.where(x > 0.0, x, np.float32(0.01) * x),
}


class Agent:
    """A deterministic policy, read from a file."""

    def __init__(self, file: Any) -> None:
        with np.load(file, allow_pickle=False) as stored:
            self._arrays: dict[str, Any] = dict(stored)
        self._spec: dict[str, Any] = json.loads(str(self._arrays["spec"]))
        for part in [*self._spec["inputs"], *self._spec["outputs"]]:
            part |= {name: np.array(numbers) for name, numbers in part["numbers"].items()}

    def act(self, obs: Any, action_mask: Any = None) -> Any:
        """Return the action for one observation, or one per row of a batch: an array, or a list if it is nested."""
        inputs, mask = self._spec["inputs"], self._spec["mask"]
        values = [np.asarray(reduce(getitem, each["path"], obs)) for each in inputs]
        single = list(values[0].shape) == inputs[0]["shape"]
        if mask is not None:
            given = np.asarray(reduce(getitem, mask["path"], obs) if mask["path"] else action_mask)
            if given.size != mask["size"] * (1 if single else len(values[0])):
                raise ValueError(f"give action_mask=, with {mask['size']} entries for each observation")
            values.append(given.ravel() if single else given.reshape(len(values[0]), -1))
        parts = self.run([value[None] for value in values] if single else values)
        if not single and self._spec["action"] == 0:
            return parts[0]
        actions = [_nest(self._spec["action"], row) for row in zip(*parts, strict=True)]
        return actions[0] if single else actions

    def run(self, values: list[Any]) -> list[Any]:
        """Return the parts of the actions [batch, ...]; `values` are those of observations, then masks if needed."""
        x = np.hstack([_encode(*pair) for pair in zip(self._spec["inputs"], values, strict=False)])
        if "mean" in self._arrays:
            x = np.clip((x - self._arrays["mean"]) * self._arrays["scale"], -self._arrays["clip"], self._arrays["clip"])
        for number, (kind, epsilon) in enumerate(self._spec["layers"]):
            if kind == "linear":
                x = x @ self._arrays[f"{number}.weight"].T + self._arrays[f"{number}.bias"]
            elif kind == "norm":
                x = (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + np.float32(epsilon))
                x = x * self._arrays[f"{number}.weight"] + self._arrays[f"{number}.bias"]
            else:
                x = _ACTIVATIONS[kind](x)
        return [_decode(part, x[:, slice(*part["outputs"])], values[-1]) for part in self._spec["outputs"]]


def _nest(template: Any, values: Any) -> Any:
    if isinstance(template, (dict, list)):
        parts = [_nest(each, values) for each in (template.values() if isinstance(template, dict) else template)]
        return dict(zip(template, parts, strict=True)) if isinstance(template, dict) else tuple(parts)
    return values[template] if values[template].shape or values[template].dtype.kind == "f" else int(values[template])


def _encode(part: dict[str, Any], values: Any) -> Any:
    flat = values.reshape(len(values), -1)
    if list(values.shape[1:]) != part["shape"] or not ((flat >= part["low"]) & (flat <= part["high"])).all():
        raise ValueError(f"{part['name']} must have shape {part['shape']}, or a batch of it, with finite legal values")
    if "number" in part:  # one-hot: for every column, the number that it belongs to and the value that it stands for
        return (flat[:, part["number"]] == part["value"]).astype(np.float32)
    return flat.astype(np.float32) / np.float32(part["scale"])


def _decode(part: dict[str, Any], x: Any, masks: Any) -> Any:
    if part["kind"] == "choices":
        if part["masks"] is not None:
            x = np.where(masks[:, slice(*part["masks"])].astype(bool), x, _ILLEGAL)
        scores = np.split(x, part["ends"], axis=1) if len(part["ends"]) else [x]
        if min(own.max(axis=1).min() for own in scores) <= _ILLEGAL:
            raise ValueError("the action mask allows no action")
        x = np.stack([own.argmax(axis=1) for own in scores], axis=1) + part["first"]
    elif part["kind"] == "bits":
        x = x > 0.0
    else:
        x = part["middle"] + (np.tanh(x) if part["squash"] else x) * part["half_range"]
        x = np.minimum(np.maximum(x, part["low"]), part["high"])
    return x.reshape(len(x), *part["shape"]).astype(part["dtype"])


if __name__ == "__main__":
    print(json.dumps(Agent(sys.argv[1]).act(*map(json.loads, sys.argv[2:4])), default=lambda value: value.tolist()))
