"""Image observations of a replay ring, each stored once: the next observation is the successor's own."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Index = npt.NDArray[np.int64]
Images = npt.NDArray[np.uint8]


class FrameStore:
    """`capacity` images. Only where a row has no successor, at an ending or at the newest rows, a second is kept."""

    def __init__(self, capacity: int, num_envs: int, shape: tuple[int, ...]) -> None:
        self.capacity, self.num_envs = capacity, num_envs
        self._frames = torch.zeros((capacity, *shape), dtype=torch.uint8)
        self._array = self._frames.numpy()
        self._ended = np.zeros(capacity, dtype=np.bool_)
        self._beyond: dict[int, Images] = {}  # by row: the observation after it

    @property
    def num_bytes(self) -> int:
        """Memory of the images, the few second ones aside."""
        return self._frames.nbytes

    def write(self, rows: Index, obs: Images, next_obs: Images, ended: npt.NDArray[np.bool_]) -> None:
        """Store one step of every env."""
        shape = (len(rows), *self._array.shape[1:])
        self._array[rows] = obs.reshape(shape)
        self._ended[rows] = ended
        for row, following in zip(rows.tolist(), next_obs.reshape(shape), strict=True):
            self._beyond[row] = following.copy()
            before = (row - self.num_envs) % self.capacity
            if not self._ended[before]:  # this row now shows what came after it
                self._beyond.pop(before, None)

    def cut(self, rows: Index) -> None:
        """Note that these rows will have no successor of their own episode."""
        self._ended[rows] = True

    def read(self, rows: Index) -> tuple[Tensor, Tensor]:
        """Observations and next observations of `rows`."""
        index = torch.from_numpy(rows)
        following = self._frames[(index + self.num_envs) % self.capacity]
        for place, row in enumerate(rows.tolist()):
            if row in self._beyond:
                following[place] = torch.from_numpy(self._beyond[row])
        return self._frames[index], following

    def state_dict(self, size: int) -> dict[str, Any]:
        """The first `size` rows."""
        beyond = {row: torch.from_numpy(image.copy()) for row, image in self._beyond.items()}
        ended = torch.from_numpy(self._ended[:size].copy())
        return {"frames": self._frames[:size].clone(), "ended": ended, "beyond": beyond}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` stopped."""
        size = len(state["frames"])
        self._frames[:size] = state["frames"]
        self._ended[:size] = state["ended"].numpy()
        self._beyond = {int(row): image.numpy() for row, image in state["beyond"].items()}
