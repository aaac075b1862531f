"""Nested spaces as single arrays: an observation becomes one row of bytes, an action one row of numbers.

A Dict or Tuple is packed where it leaves the environment and unpacked in front of the network, so that vector envs,
buffers, checkpoints and workers only see arrays. Every part is aligned, so that unpacking a batch copies nothing.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from gymnasium import Space, spaces

from rl_training.errors import EnvironmentSetupError, ObservationError

Array = npt.NDArray[Any]
Path = tuple[str | int, ...]
LeafSpace = spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary

LEAF_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
MASK_NAME = "action_mask"
SUPPORTED_OBSERVATIONS = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these"

_SMALLEST_IMAGE = 7  # pixels of a side: a smaller array of bytes is a table of numbers
_ALIGNMENT = 8  # bytes: every type of a leaf can be viewed at a multiple of it


@dataclass(frozen=True)
class Leaf:
    """One array within a nested space."""

    path: Path
    """The keys and positions that lead to the leaf; empty for a space that is not nested."""
    space: LeafSpace
    start: int
    """The leaf's first byte in the row of an observation, or its first column in the row of an action."""

    @property
    def name(self) -> str:
        """The path in dotted form, such as `camera.front`."""
        return ".".join(map(str, self.path))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of its value; Discrete values are single numbers."""
        return self.space.shape or ()

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type in which its values are kept."""
        return np.dtype(np.int64) if isinstance(self.space, spaces.Discrete) else np.dtype(self.space.dtype)

    @property
    def size(self) -> int:
        """The number of elements of its value."""
        return int(np.prod(self.shape))

    @property
    def num_bytes(self) -> int:
        """The size of its value in bytes."""
        return self.size * self.dtype.itemsize

    @property
    def choices(self) -> Array | None:
        """The number of values that each element may take, [size]; none for a Box."""
        if isinstance(self.space, spaces.Discrete):
            return np.array([self.space.n])
        if isinstance(self.space, spaces.MultiDiscrete):
            return np.asarray(self.space.nvec).ravel()
        return np.full(self.size, 2) if isinstance(self.space, spaces.MultiBinary) else None

    @property
    def first_choice(self) -> Array | int:
        """The lowest value of each number of a Discrete or MultiDiscrete space."""
        return np.asarray(getattr(self.space, "start", 0)).ravel()

    def value_in(self, nested: Any) -> Any:
        """Return its value in an observation of the nested space."""
        for key in self.path:
            nested = nested[key]
        return nested


def nested_spaces(space: Space[Any], path: Path = ()) -> Iterator[tuple[Path, Space[Any]]]:
    """Yield the spaces within a Dict or Tuple, at any depth, or the space itself."""
    if isinstance(space, spaces.Dict):
        for key, inner in space.spaces.items():
            yield from nested_spaces(inner, (*path, key))
    elif isinstance(space, spaces.Tuple):
        for index, inner in enumerate(space.spaces):
            yield from nested_spaces(inner, (*path, index))
    else:
        yield path, space


def _is_text(space: Space[Any]) -> bool:
    return isinstance(space, spaces.Text) or (space.dtype is not None and space.dtype.kind == "U")


class PackedObservations(spaces.Box):
    """The space of packed observations: rows of bytes, with the masks of legal actions at their end if there are any.

    Parts that are text have no place in a row. They are left out, and `left_out` names them.
    """

    def __init__(self, original: Space[Any], mask_size: int = 0, *, without: str | None = None) -> None:
        """`without` names the entry of a Dict that is the mask, which networks do not see."""
        self.original, self.without = original, without
        self.left_out: list[str] = []
        leaves: list[Leaf] = []
        end = 0
        for path, space in nested_spaces(original):
            leaf = Leaf(path, cast(LeafSpace, space), end)
            if path[:1] == (without,):
                continue
            if _is_text(space):
                self.left_out.append(leaf.name)
                continue
            if not isinstance(space, LEAF_SPACES):
                raise unsupported_observations(space, leaf.name)
            leaves.append(leaf)
            end = leaf.start + _aligned(leaf.num_bytes)
        if not leaves:
            raise unsupported_observations(original, ", ".join(self.left_out))
        self.leaves = tuple(leaves)
        self.mask = Leaf((MASK_NAME,), spaces.MultiBinary(mask_size), end) if mask_size else None
        super().__init__(0, 255, (end + _aligned(mask_size),), np.uint8)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, PackedObservations)
            and self.original == other.original
            and (self.mask is None) == (other.mask is None)
        )

    def __repr__(self) -> str:
        return f"Packed({self.original}{', action_mask' if self.mask else ''})"

    def pack(self, obs: Any, mask: Any = None) -> Array:
        """Return an observation as a row; the error for one that does not fit its space names the part."""
        row = np.zeros(self.shape, np.uint8)
        for leaf in self.leaves:
            self._write(row, leaf, leaf.value_in(obs))
        if self.mask is not None:
            self._write(row, self.mask, np.asarray(mask, np.bool_).ravel())
        return row

    def _write(self, row: Array, leaf: Leaf, value: Any) -> None:
        given = np.asarray(value)
        if given.shape != leaf.shape or not np.can_cast(given.dtype, leaf.dtype, "same_kind"):
            raise ObservationError(
                f"expected {_part(leaf)} of shape {leaf.shape} and type {leaf.dtype}, "
                f"got shape {given.shape} and type {given.dtype}"
            )
        if given.dtype.kind == "f" and not np.isfinite(given).all():
            place = np.argwhere(~np.isfinite(given))[0].tolist()
            raise ObservationError(f"component {place} of {_part(leaf)} is {given[tuple(place)]}")
        choices = leaf.choices
        if choices is not None:
            numbers = given.ravel() - leaf.first_choice
            if ((numbers < 0) | (numbers >= choices)).any():
                raise ObservationError(f"{_part(leaf)} is {given.tolist()}, which {leaf.space} does not contain")
        row[leaf.start : leaf.start + leaf.num_bytes] = np.frombuffer(given.astype(leaf.dtype).tobytes(), np.uint8)

    def read(self, rows: Array, leaf: Leaf) -> Array:
        """Return the values of one part in rows [batch, bytes], as [batch, *shape]."""
        values: Array = rows[:, leaf.start : leaf.start + leaf.num_bytes].view(leaf.dtype)
        return values.reshape(len(rows), *leaf.shape)


def unsupported_observations(space: Space[Any], name: str = "") -> EnvironmentSetupError:
    """Return the error for an observation space, or a part of one, that no network can see."""
    return EnvironmentSetupError(
        f"observation space {type(space).__name__}{f' ({name})' if name else ''} is not supported; supported: "
        f"{SUPPORTED_OBSERVATIONS}. Wrap the env with a gymnasium.ObservationWrapper"
    )


def _part(leaf: Leaf) -> str:
    return f"part '{leaf.name}' of the observation" if leaf.path else "the observation"


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT


class StackedFrames(spaces.Box):
    """The space of observations that stack the newest frames along their first axis; images have channels first."""

    def __init__(self, frame: spaces.Box, num_frames: int) -> None:
        self.frame, self.num_frames = frame, num_frames
        low, high = (self.to_frame(bound) for bound in (frame.low, frame.high))
        super().__init__(
            np.concatenate([low] * num_frames), np.concatenate([high] * num_frames), dtype=frame.dtype.type
        )

    @staticmethod
    def to_frame(obs: Array) -> Array:
        """Return an observation with a first axis to stack along: images as [channel, height, width]."""
        if obs.ndim == 2:
            return obs[None]
        if obs.ndim == 3 and obs.shape[2] < min(obs.shape[:2]):
            return np.moveaxis(obs, 2, 0)
        return obs.reshape(1) if obs.ndim == 0 else obs


class PackedActions(spaces.Box):
    """The space of packed actions: rows of float32 numbers, one or more for every part of a Dict or Tuple."""

    def __init__(self, original: Space[Any]) -> None:
        self.original = original
        leaves: list[Leaf] = []
        end = 0
        for path, space in nested_spaces(original):
            if not isinstance(space, LEAF_SPACES):
                name = ".".join(map(str, path))
                raise EnvironmentSetupError(
                    f"action space {type(space).__name__} ({name}) is not supported; supported: Box, Discrete, "
                    "MultiDiscrete, MultiBinary, and Dict and Tuple of these"
                )
            leaves.append(Leaf(path, space, end))
            end += leaves[-1].size
        self.leaves = tuple(leaves)
        super().__init__(-np.inf, np.inf, (end,), np.float32)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PackedActions) and self.original == other.original

    def __repr__(self) -> str:
        return f"Packed({self.original})"

    def sample(self, *arguments: Any, **options: Any) -> Array:
        """Draw a row from the original space."""
        action = self.original.sample(*arguments, **options)
        return np.concatenate([np.ravel(leaf.value_in(action)) for leaf in self.leaves]).astype(np.float32)

    def seed(self, seed: Any = None) -> Any:
        """Seed the original space."""
        return self.original.seed(seed)

    def unpack(self, row: Array) -> Any:
        """Return a row as the environment expects the action."""
        values = {leaf.path: self._value(leaf, row) for leaf in self.leaves}
        return nest(self.original, values)

    def _value(self, leaf: Leaf, row: Array) -> Any:
        numbers = row[leaf.start : leaf.start + leaf.size]
        if isinstance(leaf.space, spaces.Discrete):
            return int(numbers[0])
        return numbers.reshape(leaf.shape).astype(leaf.dtype)


def nest(space: Space[Any], values: dict[Path, Any], path: Path = ()) -> Any:
    """Arrange values, given by path, in the structure of a nested space; parts without a value are left out."""
    if isinstance(space, spaces.Dict):
        inner_values = {key: nest(inner, values, (*path, key)) for key, inner in space.spaces.items()}
        return {key: value for key, value in inner_values.items() if value is not None}
    if isinstance(space, spaces.Tuple):
        return tuple(nest(inner, values, (*path, index)) for index, inner in enumerate(space.spaces))
    return values.get(path)


def select_row(space: Space[Any], batch: Any, row: int) -> Any:
    """Return one observation out of a batch of nested observations, whose parts have a leading axis."""
    if isinstance(space, spaces.Dict):
        return {key: select_row(inner, batch[key], row) for key, inner in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(select_row(inner, batch[index], row) for index, inner in enumerate(space.spaces))
    return batch[row]


def is_packed_as_observation(space: Space[Any]) -> bool:
    """Return whether observations of this space are packed; plain arrays of numbers and single numbers are not."""
    return not isinstance(space, (spaces.Box, spaces.Discrete)) or space.dtype == np.bool_


def is_image(space: Space[Any]) -> bool:
    """Return whether a space holds images: bytes or bits, with one axis of few channels, first or last, or none."""
    if not isinstance(space, spaces.Box) or space.dtype not in (np.uint8, np.bool_):
        return False
    if len(space.shape) == 2:
        return min(space.shape) >= _SMALLEST_IMAGE
    if len(space.shape) != 3:
        return False
    first, middle, last = space.shape
    channels, sides = (last, (first, middle)) if last < min(first, middle) else (first, (middle, last))
    return channels < min(sides) and min(sides) >= _SMALLEST_IMAGE


def describe_observations(space: Space[Any]) -> str:
    """Say what a network sees of each part of an observation."""
    return _describe_parts(space.original if isinstance(space, PackedObservations) else space, _describe_part)


def describe_actions(space: Space[Any]) -> str:
    """Say how a policy chooses each part of an action."""
    return _describe_parts(space.original if isinstance(space, PackedActions) else space, _describe_choice)


def _describe_parts(space: Space[Any], describe: Callable[[Space[Any]], str]) -> str:
    parts = [(".".join(map(str, path)), describe(inner)) for path, inner in nested_spaces(space)]
    return ", ".join(f"{name}: {text}" if name else text for name, text in parts)


def _describe_choice(space: Space[Any]) -> str:
    if isinstance(space, spaces.Discrete):
        return f"one of {space.n}"
    if isinstance(space, spaces.MultiDiscrete):
        return f"one each of {', '.join(map(str, np.ravel(space.nvec)))}"
    shape = "x".join(map(str, space.shape or (1,)))
    if isinstance(space, spaces.MultiBinary):
        return f"{shape} bits"
    bounded = isinstance(space, spaces.Box) and space.is_bounded()
    return f"{shape} numbers, {'scaled to their bounds' if bounded else 'without bounds'}"


def _describe_part(space: Space[Any]) -> str:
    if _is_text(space):
        return "text, left out"
    shape = "x".join(map(str, space.shape or (1,)))
    if is_image(space):
        return f"image {shape}"
    if isinstance(space, spaces.MultiBinary):
        return f"{shape} bits"
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        return f"one-hot {int(np.sum(np.asarray(Leaf((), space, 0).choices)))}"
    scaled = isinstance(space, spaces.Box) and space.dtype == np.uint8
    return f"{shape} numbers{', scaled to 0..1' if scaled else ''}"
