"""Nested spaces as single arrays: every part comes back, and what does not fit is refused by name."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.errors import EnvironmentSetupError, ObservationError
from rl_training.packing import (
    PackedActions,
    PackedObservations,
    describe_observations,
    is_image,
    select_row,
)
from rl_training.policies.features import Encoder

LEAVES = st.sampled_from(
    [
        spaces.Box(-1.0, 1.0, (3,), np.float32),
        spaces.Box(-1.0, 1.0, (), np.float64),
        spaces.Box(0, 255, (8, 9, 3), np.uint8),
        spaces.Box(0, 1, (7, 7, 2), np.bool_),  # type: ignore[arg-type]  # as MinAtar has it
        spaces.Box(-5, 5, (2, 2), np.int16),
        spaces.Discrete(4, start=-1),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])),
        spaces.MultiBinary(5),
    ]
)
NESTED = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from("abcd"), inner, min_size=1, max_size=3).map(spaces.Dict),
        st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple),
    ),
    max_leaves=5,
)


def same(space: spaces.Space[Any], left: Any, right: Any) -> bool:
    if isinstance(space, spaces.Dict):
        return all(same(inner, left[key], right[key]) for key, inner in space.spaces.items())
    if isinstance(space, spaces.Tuple):
        return all(same(inner, left[index], right[index]) for index, inner in enumerate(space.spaces))
    return np.array_equal(left, right)


@settings(max_examples=60, deadline=None)
@given(space=NESTED, seed=st.integers(0, 1_000))
def test_every_part_of_an_observation_comes_back(space: Any, seed: int) -> None:
    space.seed(seed)
    packed = PackedObservations(space)
    observations = [space.sample() for _ in range(3)]
    rows = np.stack([packed.pack(obs) for obs in observations])
    assert rows.dtype == np.uint8
    assert packed.contains(rows[0])
    for leaf in packed.leaves:
        values = packed.read(rows, leaf)
        assert values.dtype == leaf.dtype
        for value, obs in zip(values, observations, strict=True):
            assert np.array_equal(value, leaf.value_in(obs))


@settings(max_examples=60, deadline=None)
@given(space=NESTED, seed=st.integers(0, 1_000))
def test_features_are_the_same_in_numpy_and_torch(space: Any, seed: int) -> None:
    space.seed(seed)
    encoder = Encoder(PackedObservations(space))
    rows = np.stack([encoder.space.pack(space.sample()) for _ in range(4)])  # type: ignore[attr-defined]  # packed
    features = encoder.encode_array(rows)
    assert features.shape == (4, encoder.size)
    assert features.dtype == np.float32
    assert encoder.encode_tensor(torch.from_numpy(rows)).numpy() == pytest.approx(features, abs=1e-7)
    kinds = [part.kind for part in encoder.parts]
    assert kinds == sorted(kinds, key=["vector", "one_hot", "image"].index)


@settings(max_examples=60, deadline=None)
@given(space=st.one_of(NESTED), seed=st.integers(0, 1_000))
def test_every_part_of_an_action_comes_back(space: Any, seed: int) -> None:
    space.seed(seed)
    packed, action = PackedActions(space), space.sample()
    row = np.zeros(packed.shape, np.float32)
    for leaf in packed.leaves:
        row[leaf.start : leaf.start + leaf.size] = np.ravel(leaf.value_in(action))
    assert space.contains(packed.unpack(row))
    assert same(space, packed.unpack(row), action) or "float64" in str(space)  # which float32 rounds


DICT = spaces.Dict({"camera": spaces.Box(0, 255, (8, 8, 3), np.uint8), "arm": spaces.Tuple([spaces.Discrete(3)] * 2)})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"camera": np.zeros((8, 8), np.uint8)}, r"part 'camera' of the observation of shape \(8, 8, 3\) .*\(8, 8\)"),
        ({"camera": np.zeros((8, 8, 3), np.float32)}, "part 'camera' .* type uint8, got .* type float32"),
        ({"arm": (0, 3)}, r"part 'arm.1' of the observation is 3, which Discrete\(3\) does not contain"),
        ({"arm": (0, -1)}, "part 'arm.1'"),
    ],
)
def test_a_part_that_does_not_fit_is_refused_by_name(wrong: dict[str, Any], message: str) -> None:
    obs = {"camera": np.zeros((8, 8, 3), np.uint8), "arm": (0, 1), **wrong}
    with pytest.raises(ObservationError, match=message):
        PackedObservations(DICT).pack(obs)


def test_a_number_that_is_not_finite_is_refused_by_name() -> None:
    space = spaces.Dict({"pose": spaces.Box(-1.0, 1.0, (2, 2))})
    with pytest.raises(ObservationError, match=r"component \[1, 0\] of part 'pose' of the observation is nan"):
        PackedObservations(space).pack({"pose": np.array([[0.0, 0.0], [np.nan, 0.0]], np.float32)})


def test_text_is_left_out_and_named() -> None:
    packed = PackedObservations(spaces.Dict({"mission": spaces.Text(10), "cell": spaces.Discrete(4)}))
    assert packed.left_out == ["mission"]
    assert [leaf.name for leaf in packed.leaves] == ["cell"]
    assert Encoder(packed).encode_array(packed.pack({"mission": "go", "cell": 2})[None]).tolist() == [[0, 0, 1, 0]]


@pytest.mark.parametrize("space", [spaces.Dict({"x": spaces.Graph(spaces.Discrete(2), None)}), spaces.Text(3)])
def test_a_space_without_a_place_in_a_row_is_refused(space: spaces.Space[Any]) -> None:
    with pytest.raises(EnvironmentSetupError, match=r"observation space (Graph \(x\)|Text) is not"):
        PackedObservations(space)


def test_masks_lie_at_the_end_of_a_row() -> None:
    packed = PackedObservations(spaces.Box(-1.0, 1.0, (3,), np.float32), mask_size=5)
    encoder = Encoder(packed)
    masks = np.array([[1, 0, 1, 0, 1], [0, 1, 0, 0, 0]])
    rows = np.stack([packed.pack(np.full(3, 0.5, np.float32), mask) for mask in masks])
    found = encoder.masks_array(rows)
    assert found is not None
    assert found.dtype == np.bool_
    assert found.tolist() == masks.astype(bool).tolist()
    in_torch = encoder.masks_tensor(torch.from_numpy(rows))
    assert in_torch is not None
    assert in_torch.tolist() == found.tolist()
    assert encoder.encode_array(rows).tolist() == [[0.5] * 3] * 2


def test_only_vectors_are_normalised() -> None:
    space = spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Box(-99.0, 99.0, (1,)), "c": DICT["camera"]})
    packed = PackedObservations(space)
    encoder = Encoder(packed, normalize=True)
    camera = np.full((8, 8, 3), 51, np.uint8)
    rows = np.stack([packed.pack({"a": 1, "b": np.array([b], np.float32), "c": camera}) for b in (0.0, 20.0)])
    encoder.observe(rows)
    encoder.refresh()
    features = encoder.encode_array(rows)
    assert features[:, 0] == pytest.approx([-1.0, 1.0])
    assert features[:, 1:3].tolist() == [[0.0, 1.0]] * 2
    assert features[:, 3:] == pytest.approx(np.full((2, 192), 0.2))
    assert encoder.encode_tensor(torch.from_numpy(rows)).numpy() == pytest.approx(features, abs=1e-6)


def test_a_row_of_a_batch_is_found_in_every_part() -> None:
    batch = {"camera": np.arange(2 * 192).reshape(2, 8, 8, 3), "arm": (np.array([0, 1]), np.array([2, 1]))}
    assert select_row(DICT, batch, 1)["arm"] == (1, 1)
    assert np.array_equal(select_row(DICT, batch, 1)["camera"], batch["camera"][1])  # type: ignore[index]


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        ((84, 84, 4), np.uint8, True),
        ((4, 84, 84), np.uint8, True),
        ((10, 10, 6), np.bool_, True),
        ((84, 84), np.uint8, True),
        ((128,), np.uint8, False),  # the memory of a console
        ((84, 84, 3), np.float32, False),
        ((3, 4, 5), np.uint8, False),
    ],
)
def test_images_are_recognised_by_type_and_shape(shape: tuple[int, ...], dtype: type, expected: bool) -> None:
    assert is_image(spaces.Box(0, 1, shape, dtype)) is expected


def test_what_a_network_sees_of_each_part_is_said() -> None:
    inner = spaces.Tuple([spaces.Discrete(3), spaces.MultiBinary(2), spaces.Text(4)])
    space = spaces.Dict({"camera": DICT["camera"], "arm": inner, "memory": spaces.Box(0, 255, (128,), np.uint8)})
    expected = "arm.0: one-hot 3, arm.1: 2 bits, arm.2: text, left out, camera: image 8x8x3, "
    assert describe_observations(space) == expected + "memory: 128 numbers, scaled to 0..1"
    assert describe_observations(spaces.Box(-1.0, 1.0, (4,))) == "4 numbers"
