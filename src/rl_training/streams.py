"""Random streams: one per purpose, all derived from the seed of the run. No global generator is used."""

import zlib
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

_EPISODE_SEED_BITS = 31  # some simulators take their seed as a signed 32-bit integer


def _sequence(seed: int, name: str, *key: int) -> np.random.SeedSequence:
    return np.random.SeedSequence(seed, spawn_key=(zlib.crc32(name.encode()), *key))


def make_stream(seed: int, name: str) -> np.random.Generator:
    """Create the generator for one purpose; the same seed and name always give the same stream."""
    return np.random.Generator(np.random.PCG64(_sequence(seed, name)))


def derive_keys(seed: int, name: str, count: int) -> npt.NDArray[np.uint64]:
    """Return random 64-bit keys for one purpose; the same arguments always give the same keys."""
    return np.asarray(_sequence(seed, name).generate_state(count, np.uint64), dtype=np.uint64)


def make_torch_generator(seed: int, name: str) -> "torch.Generator":
    """Create a torch generator for one purpose, on the CPU so that every device gets the same numbers."""
    import torch

    return torch.Generator().manual_seed(derive_seed(seed, name))


def derive_seed(seed: int, name: str, *key: int) -> int:
    """Derive the seed of one item of a purpose; `key` identifies the item, such as (env index, episode number)."""
    state = _sequence(seed, name, *key).generate_state(1, np.uint64)
    return int(state[0] >> np.uint64(64 - _EPISODE_SEED_BITS))
