"""Spaces as plain values, so that an agent can be loaded without its environment.

The values may come from a file that anybody wrote, so all of them are checked before anything large is allocated.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space, spaces

from rl_training.errors import CheckpointError
from rl_training.packing import PackedActions, PackedObservations, StackedFrames

Plain = dict[str, Any]

_MAX_BYTES = 2**25  # of one value of the whole space; an uncompressed 4K image has 24 MiB
_MAX_DEPTH = 50  # of Dict and Tuple spaces inside each other
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_DTYPES = ("bool", "float16", "float32", "float64", *_INTEGERS)
_LARGEST = 2**63 - 1


class _Kind(NamedTuple):
    """A kind of space: its class, the types of the values that describe it, and the functions to convert it."""

    space: type[Space[Any]]
    types: dict[str, tuple[type, ...]]
    describe: Callable[[Any], Plain]
    build: Callable[[Plain], Space[Any]]


def describe_space(space: Space[Any]) -> Plain | None:
    """Return a space as plain values; none if it has a part of an unknown kind, or is too large to be stored."""
    try:
        described = _describe(space)
        return described if _size_of(described) <= _MAX_BYTES else None
    except (LookupError, TypeError, ValueError):
        return None


def build_space(values: Any, name: str) -> Space[Any]:
    """Return the space that `describe_space` described; refuse other values in a message that contains `name`."""
    try:
        if _size_of(values) > _MAX_BYTES:
            raise ValueError(f"its values have more than {_MAX_BYTES:,} bytes")
        return _build(values)
    except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"the {name} space in the checkpoint is refused: {reason}") from None


def _describe(space: Space[Any]) -> Plain:
    # The order matters: spaces of this package are subclasses of Box, so they come before it.
    name = next((name for name, kind in _KINDS.items() if isinstance(space, kind.space)), None)
    if name is None:
        raise TypeError(f"{type(space).__name__} spaces cannot be stored")
    return {"kind": name, **_KINDS[name].describe(space)}


def _build(values: Plain) -> Space[Any]:
    return _KINDS[values["kind"]].build(values)


def _size_of(values: Any, depth: int = 0) -> int:
    """Check the types of all values, and return how many bytes a value of the space has."""
    if depth > _MAX_DEPTH:
        raise ValueError(f"it is nested more than {_MAX_DEPTH} levels deep")
    _check_types(values)
    shape = _shape_of(values)
    counts = {"shape": shape, **{name: [values[name]] for name in ("num_frames", "mask_size") if name in values}}
    for name, given in counts.items():
        _check_counts(name, given, least=0)
    inner = sum(_size_of(each, depth + 1) for each in _inner_spaces(values))
    own: int = math.prod(shape) * np.dtype(values.get("dtype", "int64")).itemsize
    return inner * int(values.get("num_frames", 1)) + int(values.get("mask_size", 0)) + own


def _check_types(values: Any) -> None:
    """Refuse values that do not have the names and types of their kind."""
    name = values.get("kind") if type(values) is dict else None
    kind = _KINDS.get(name) if type(name) is str else None
    if kind is None:
        raise ValueError(f"expected a dict whose kind is one of {', '.join(_KINDS)}, got {str(values)[:60]}")
    if values.keys() != {"kind", *kind.types}:
        names = ", ".join(kind.types)
        raise ValueError(f"a space of kind {name} has the values {names}, got {str(list(values))[:100]}")
    for field, types in kind.types.items():
        if type(values[field]) not in types:
            raise ValueError(f"{field} of a {name} space must be {types[0].__name__}")
    if "dtype" in values:
        allowed = _DTYPES if name == "box" else _INTEGERS
        if values["dtype"] not in allowed:
            raise ValueError(f"dtype={values['dtype'][:30]!r}: allowed are {', '.join(allowed)}")


def _shape_of(values: Plain) -> list[Any]:
    """Return the shape of a space that is not nested; a nested one counts as empty."""
    given = values.get("shape", [0] if _inner_spaces(values) else [])
    return given if type(given) is list else [given]


def _inner_spaces(values: Plain) -> list[Any]:
    if values["kind"] == "dict":
        if any(
            type(entry) is not list or len(entry) != 2 or type(entry[0]) not in (str, int)
            for entry in values["entries"]
        ):
            raise ValueError("entries of a dict space must be pairs of a name and a space")
        return [inner for _, inner in values["entries"]]
    if values["kind"] == "tuple":
        return list(values["entries"])
    return [values[name] for name in ("frame", "original") if name in values]


def _check_counts(name: str, given: list[Any], *, least: int) -> None:
    if any(type(number) is not int or not least <= number <= _LARGEST for number in given):
        raise ValueError(f"{name}={str(given)[:60]}: give whole numbers from {least} on")


def _describe_bound(bound: Any) -> Any:
    """Return the bounds of a Box as one number if all are equal, else as bytes."""
    first = bound.flat[0].item() if bound.size else 0
    return first if bound.size and (bound == first).all() else bound.tobytes()


def _build_bound(values: Plain, name: str) -> Any:
    given, shape, dtype = values[name], tuple(values["shape"]), np.dtype(values["dtype"])
    if type(given) is bytes:
        if len(given) != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"{name} has {len(given)} bytes, which do not fit {dtype} of shape {shape}")
        bound = np.frombuffer(given, dtype).reshape(shape)
    else:
        if type(given) is not {"f": float, "b": bool}.get(dtype.kind, int):
            raise ValueError(f"{name}={given!r} is not of type {dtype}")
        bound = np.full(shape, given, dtype)
    if np.isnan(bound).any():
        raise ValueError(f"{name} is not a number")
    return bound


def _build_box(values: Plain) -> spaces.Box:
    low, high = _build_bound(values, "low"), _build_bound(values, "high")
    if (low > high).any():
        raise ValueError("low exceeds high")
    return spaces.Box(low, high, tuple(values["shape"]), low.dtype.type)


def _build_discrete(values: Plain) -> spaces.Discrete:
    _check_counts("n", [values["n"]], least=1)
    _check_counts("start + n", [values["start"] + values["n"]], least=-_LARGEST)
    dtype: Any = np.dtype(values["dtype"]).type
    return spaces.Discrete(values["n"], start=values["start"], dtype=dtype)


def _build_multi_discrete(values: Plain) -> spaces.MultiDiscrete:
    _check_counts("nvec", values["nvec"], least=1)
    _check_counts("start", values["start"], least=-_LARGEST)
    dtype: Any = np.dtype(values["dtype"]).type
    nvec, start = (np.array(values[name], dtype).reshape(values["shape"]) for name in ("nvec", "start"))
    return spaces.MultiDiscrete(nvec, dtype, start=start)


def _build_stacked(values: Plain) -> StackedFrames:
    if values["frame"]["kind"] != "box":
        raise ValueError("frame of a stacked_frames space must be a box")
    _check_counts("num_frames", [values["num_frames"]], least=1)
    return StackedFrames(_build_box(values["frame"]), values["num_frames"])


_BOUND = (float, int, bool, bytes)
_KINDS: dict[str, _Kind] = {
    "packed_observations": _Kind(
        PackedObservations,
        {"original": (dict,), "mask_size": (int,), "without": (str, type(None))},
        lambda space: {
            "original": _describe(space.original),
            "mask_size": space.mask.size if space.mask else 0,
            "without": space.without,
        },
        lambda values: PackedObservations(_build(values["original"]), values["mask_size"], without=values["without"]),
    ),
    "packed_actions": _Kind(
        PackedActions,
        {"original": (dict,)},
        lambda space: {"original": _describe(space.original)},
        lambda values: PackedActions(_build(values["original"])),
    ),
    "stacked_frames": _Kind(
        StackedFrames,
        {"frame": (dict,), "num_frames": (int,)},
        lambda space: {"frame": _describe(space.frame), "num_frames": space.num_frames},
        _build_stacked,
    ),
    "box": _Kind(
        spaces.Box,
        {"shape": (list,), "dtype": (str,), "low": _BOUND, "high": _BOUND},
        lambda space: {
            "shape": list(space.shape),
            "dtype": space.dtype.name,
            "low": _describe_bound(space.low),
            "high": _describe_bound(space.high),
        },
        _build_box,
    ),
    "discrete": _Kind(
        spaces.Discrete,
        {"n": (int,), "start": (int,), "dtype": (str,)},
        lambda space: {"n": int(space.n), "start": int(space.start), "dtype": space.dtype.name},
        _build_discrete,
    ),
    "multi_discrete": _Kind(
        spaces.MultiDiscrete,
        {"shape": (list,), "nvec": (list,), "start": (list,), "dtype": (str,)},
        lambda space: {
            "shape": list(space.shape),
            "nvec": space.nvec.ravel().tolist(),
            "start": space.start.ravel().tolist(),
            "dtype": space.dtype.name,
        },
        _build_multi_discrete,
    ),
    "multi_binary": _Kind(
        spaces.MultiBinary,
        {"shape": (list, int)},
        lambda space: {"shape": space.n if isinstance(space.n, int) else list(space.n)},
        lambda values: spaces.MultiBinary(values["shape"]),
    ),
    "text": _Kind(
        spaces.Text,
        {"max_length": (int,), "min_length": (int,), "characters": (str,)},
        lambda space: {
            "max_length": space.max_length,
            "min_length": space.min_length,
            "characters": "".join(space.character_list),
        },
        lambda values: spaces.Text(values["max_length"], min_length=values["min_length"], charset=values["characters"]),
    ),
    "dict": _Kind(
        spaces.Dict,
        {"entries": (list,)},
        lambda space: {"entries": [[name, _describe(inner)] for name, inner in space.spaces.items()]},
        lambda values: spaces.Dict([(name, _build(inner)) for name, inner in values["entries"]]),
    ),
    "tuple": _Kind(
        spaces.Tuple,
        {"entries": (list,)},
        lambda space: {"entries": [_describe(inner) for inner in space.spaces]},
        lambda values: spaces.Tuple([_build(inner) for inner in values["entries"]]),
    ),
}
