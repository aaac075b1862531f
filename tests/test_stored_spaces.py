"""Spaces survive the way through a checkpoint, and values that no space has are refused in one line."""

import io
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import Space, spaces

from rl_training.errors import CheckpointError
from rl_training.packing import PackedActions, PackedObservations, StackedFrames
from rl_training.stored_spaces import build_space, describe_space

NESTED = spaces.Dict(
    {
        "arm": spaces.Tuple((spaces.Box(-1.0, 1.0, (2, 3), np.float64), spaces.Discrete(3, start=-1))),
        "dials": spaces.MultiDiscrete(np.array([[3, 2], [4, 5]]), start=np.array([[1, 0], [0, -2]])),
        "bits": spaces.MultiBinary((2, 2)),
        "note": spaces.Text(5),
    }
)
SPACES: dict[str, Space[Any]] = {
    "scalar": spaces.Box(-1.0, 1.0, ()),
    "unbounded": spaces.Box(-np.inf, np.inf, (3,), np.float16),
    "bounds of their own": spaces.Box(np.array([0.1, -3.0]), np.array([1.0, np.inf]), dtype=np.float64),
    "image": spaces.Box(0, 255, (84, 84, 3), np.uint8),
    "bits of a box": spaces.Box(0, 1, (4,), np.bool_),
    "large numbers": spaces.Box(0, 2**63, (2,), np.uint64),
    "discrete": spaces.Discrete(5, start=-2, dtype=np.int32),
    "multi-binary": spaces.MultiBinary(3),
    "nested": NESTED,
    "ordered": spaces.Dict([("b", spaces.Discrete(2)), ("a", spaces.Discrete(3))]),
    "stacked images": StackedFrames(spaces.Box(0, 255, (8, 9, 3), np.uint8), 4),
    "stacked vectors": StackedFrames(spaces.Box(-1.0, 1.0, (2,)), 3),
    "packed": PackedObservations(NESTED, 7),
    "packed with its mask": PackedObservations(NESTED, 4, without="bits"),
    "packed actions": PackedActions(spaces.Tuple((spaces.Discrete(2), spaces.Box(-1.0, 1.0, (2,))))),
}


def stored(values: Any) -> Any:
    """The values after a file has held them."""
    file = io.BytesIO()
    torch.save(values, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("name", SPACES)
def test_a_space_is_equal_after_it_was_stored(name: str) -> None:
    space = SPACES[name]
    built = build_space(stored(describe_space(space)), "observation")
    assert type(built) is type(space)
    assert built == space
    assert (built.shape, built.dtype) == (space.shape, space.dtype)
    assert repr(built) == repr(space)


def test_the_order_of_parts_and_the_mask_survive() -> None:
    ordered = build_space(describe_space(SPACES["ordered"]), "observation")
    assert isinstance(ordered, spaces.Dict)
    assert list(ordered.spaces) == ["b", "a"]
    packed = build_space(describe_space(SPACES["packed with its mask"]), "observation")
    assert isinstance(packed, PackedObservations)
    assert packed.mask is not None
    assert (packed.mask.size, packed.without, packed.left_out) == (4, "bits", ["note"])


def test_a_space_of_another_kind_or_size_is_not_stored() -> None:
    assert describe_space(spaces.Sequence(spaces.Discrete(2))) is None
    assert describe_space(spaces.Dict({"a": spaces.Graph(spaces.Discrete(2), None)})) is None
    assert describe_space(spaces.Box(0, 255, (2**13, 2**13), np.uint8)) is None


BOX = {"kind": "box", "shape": [2], "dtype": "float32", "low": -1.0, "high": 1.0}


def deep(levels: int) -> Any:
    values: Any = BOX
    for _ in range(levels):
        values = {"kind": "tuple", "entries": [values]}
    return values


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([], "expected a dict whose kind is one of"),
        ({"kind": "sequence"}, "expected a dict whose kind is one of"),
        ({**BOX, "seed": 1}, "a space of kind box has the values shape, dtype, low, high"),
        ({**BOX, "shape": 2}, "shape of a box space must be list"),
        ({**BOX, "shape": [-1]}, "shape="),
        ({**BOX, "shape": [True]}, "shape="),
        ({**BOX, "shape": [2**40]}, "more than 33,554,432 bytes"),
        ({**BOX, "shape": [2] * 100}, "more than 33,554,432 bytes"),
        ({**BOX, "dtype": "object"}, "dtype='object': allowed are"),
        ({**BOX, "low": float("nan")}, "low is not a number"),
        ({**BOX, "low": 2.0}, "low exceeds high"),
        ({**BOX, "low": 0}, "low=0 is not of type float32"),
        ({**BOX, "low": b"123"}, "low has 3 bytes"),
        ({"kind": "discrete", "n": 0, "start": 0, "dtype": "int64"}, "n="),
        ({"kind": "discrete", "n": 2, "start": 2**70, "dtype": "int64"}, "start"),
        ({"kind": "discrete", "n": 300, "start": 0, "dtype": "int8"}, "300"),
        ({"kind": "discrete", "n": 3, "start": 0, "dtype": "float32"}, "dtype='float32': allowed are"),
        ({"kind": "multi_discrete", "shape": [2], "nvec": [2], "start": [0], "dtype": "int64"}, "reshape"),
        ({"kind": "multi_discrete", "shape": [1], "nvec": ["2"], "start": [0], "dtype": "int64"}, "nvec="),
        ({"kind": "multi_binary", "shape": 2**40}, "more than 33,554,432 bytes"),
        ({"kind": "dict", "entries": [["a", BOX, 1]]}, "pairs of a name and a space"),
        ({"kind": "dict", "entries": [[("a",), BOX]]}, "pairs of a name and a space"),
        ({"kind": "stacked_frames", "frame": BOX, "num_frames": 2**30}, "more than 33,554,432 bytes"),
        ({"kind": "stacked_frames", "frame": BOX, "num_frames": 0}, "num_frames="),
        ({"kind": "stacked_frames", "frame": deep(1), "num_frames": 2}, "must be a box"),
        ({"kind": "packed_observations", "original": BOX, "mask_size": 2**40, "without": None}, "more than"),
        (deep(60), "nested more than 50 levels"),
    ],
)
def test_other_values_are_refused_in_one_line(values: Any, reason: str) -> None:
    with pytest.raises(CheckpointError, match="the action space in the checkpoint is refused: ") as refusal:
        build_space(values, "action")
    assert reason in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 400
