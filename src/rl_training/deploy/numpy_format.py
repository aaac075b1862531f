"""The format `numpy`: weights and a description in one `.npz` file, for machines without torch."""

import io
import json
from typing import Any

import numpy as np
from gymnasium import spaces
from torch import nn

from rl_training.deploy.numpy_agent import Agent
from rl_training.deploy.program import Input, PolicyProgram
from rl_training.errors import ExportError
from rl_training.packing import Array
from rl_training.policies.decoding import ActionPart
from rl_training.policies.features import CLIP, LeafEncoder
from rl_training.policies.networks.encoders import FlatEncoder
from rl_training.policies.networks.layers import ACTIVATIONS
from rl_training.policies.networks.spec import EncodedNetwork

_LARGEST = np.finfo(np.float64).max
_NAMES = {kind: name for name, kind in ACTIVATIONS.items()}


def write_numpy(program: PolicyProgram, action_space: spaces.Space[Any]) -> bytes:
    """Return the content of a file that `numpy_agent.py` reads; refuse networks that are not perceptrons."""
    arrays: dict[str, Array] = {}
    layers = _describe_layers(_flatten(program.network), arrays)
    arrays |= _normalization(program)
    parts = program.policy.action_parts
    encoders = program.policy.encoder.encoders
    spec = {
        "inputs": [_describe_input(*pair) for pair in zip(program.inputs, encoders, strict=True)],
        "mask": program.mask and {"path": list(program.mask.path), "size": program.mask.shape[0]},
        "layers": layers,
        "outputs": [_describe_output(part, masked=program.mask is not None) for part in parts],
        "action": _template(action_space, {part.path: index for index, part in enumerate(parts)}),
    }
    file = io.BytesIO()
    np.savez(file, spec=np.array(json.dumps(spec)), **arrays)  # type: ignore[arg-type]  # names of arrays
    return file.getvalue()


def run_numpy(content: bytes, inputs: dict[str, Array], names: list[str]) -> dict[str, Array]:
    """Run an exported policy on named inputs, and return the parts of its actions by name."""
    return dict(zip(names, Agent(io.BytesIO(content)).run(list(inputs.values())), strict=True))


def _flatten(module: nn.Module) -> list[nn.Module]:
    """Return the layers of a network in the order in which they are applied."""
    if isinstance(module, nn.Sequential):
        return [layer for inner in module for layer in _flatten(inner)]
    if isinstance(module, EncodedNetwork) and isinstance(module.encoder, FlatEncoder):
        return [*_flatten(module.trunk), *(layer for head in module.heads.values() for layer in _flatten(head))]
    if isinstance(module, EncodedNetwork):
        raise _unsupported(module.encoder)
    return [module]


def _unsupported(module: nn.Module) -> ExportError:
    return ExportError(
        f"the format numpy supports perceptrons only, and this network contains {type(module).__name__}: "
        "use the format onnx or torch"
    )


def _describe_layers(modules: list[nn.Module], arrays: dict[str, Array]) -> list[tuple[str, float]]:
    """Return the kind of every layer with its epsilon, and put its parameters into `arrays`."""
    layers: list[tuple[str, float]] = []
    for number, layer in enumerate(modules):
        if isinstance(layer, (nn.Linear, nn.LayerNorm)):
            kind = ("linear", 0.0) if isinstance(layer, nn.Linear) else ("norm", layer.eps)
            arrays |= {f"{number}.weight": layer.weight.numpy(), f"{number}.bias": layer.bias.numpy()}
        elif type(layer) in _NAMES:
            kind = (_NAMES[type(layer)], 0.0)
        else:
            raise _unsupported(layer)
        layers.append(kind)
    return layers


def _normalization(program: PolicyProgram) -> dict[str, Array]:
    """Return mean, scale and limit of every feature if observations are normalised; they change only vectors."""
    encoder = program.policy.encoder
    if not encoder.normalizer.enabled:
        return {}
    rest = (0, encoder.size - encoder.num_vector)
    clip = np.full(encoder.num_vector, CLIP, np.float32)
    mean, scale = encoder.normalizer.mean, encoder.normalizer.scale
    return {
        "mean": np.pad(mean, rest),
        "scale": np.pad(scale, rest, constant_values=1.0),
        "clip": np.pad(clip, rest, constant_values=np.inf),
    }


def _describe_input(given: Input, encoder: LeafEncoder) -> dict[str, Any]:
    numbers: dict[str, Any] = {"low": -_LARGEST, "high": _LARGEST}
    first, choices = encoder.leaf.first_choice, encoder.leaf.choices
    if choices is not None:
        numbers = {"low": np.asarray(first).tolist(), "high": (first + choices - 1).tolist()}
    if choices is not None and encoder.choices is not None:
        number = np.repeat(np.arange(len(encoder.choices)), encoder.choices)
        steps = np.concatenate([np.arange(count) for count in encoder.choices])
        numbers |= {
            "number": number.tolist(),
            "value": (np.broadcast_to(first, choices.shape)[number] + steps).tolist(),
        }
    return {
        "name": given.name,
        "path": list(given.path),
        "shape": list(given.shape),
        "scale": float(encoder.scale),
        "numbers": numbers,
    }


def _describe_output(part: ActionPart, *, masked: bool) -> dict[str, Any]:
    described = {
        "kind": part.kind,
        "outputs": [part.outputs.start, part.outputs.stop],
        "masks": [part.masks.start, part.masks.stop] if masked and part.masks else None,
        "shape": list(part.shape),
        "dtype": part.dtype.name,
        "squash": part.squash,
    }
    arrays = {"first": part.first, "middle": part.middle, "half_range": part.half_range, "low": part.low}
    arrays |= {"high": part.high, "ends": np.cumsum(part.choices)[:-1] if part.choices else None}
    return {**described, "numbers": {name: given.tolist() for name, given in arrays.items() if given is not None}}


def _template(space: spaces.Space[Any], places: dict[tuple[str | int, ...], int], path: Any = ()) -> Any:
    """Return the structure of an action, with the place of each part in the outputs."""
    original = getattr(space, "original", space)
    if isinstance(original, spaces.Dict):
        if not all(isinstance(name, str) for name in original.spaces):
            raise ExportError("the format numpy needs names of actions that are text: use the format onnx or torch")
        return {name: _template(inner, places, (*path, name)) for name, inner in original.spaces.items()}
    if isinstance(original, spaces.Tuple):
        return [_template(inner, places, (*path, index)) for index, inner in enumerate(original.spaces)]
    return places[path]
