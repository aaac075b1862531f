"""Image observations of a replay ring, each stored once: the next observation is the successor's own."""

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

    def read(self, rows: Index) -> tuple[Images, Images]:
        """Observations and next observations of `rows`."""
        following = self._array[(rows + self.num_envs) % self.capacity]
        for place, row in enumerate(rows.tolist()):
            if row in self._beyond:
                following[place] = self._beyond[row]
        return self._array[rows], following

    def block(self, rows: Index) -> dict[str, Tensor]:
        """The images of `rows`, and in their order the second images of those that ended."""
        second = [self._beyond[row] for row in rows[self._ended[rows]].tolist()]
        return {
            "frames": self._frames[torch.from_numpy(rows)],
            "ended": torch.from_numpy(self._ended[rows]),
            "beyond": torch.from_numpy(np.array(second, np.uint8).reshape(-1, *self._array.shape[1:])),
        }

    def load_block(self, rows: Index, content: dict[str, Tensor]) -> None:
        """Take over the newest `len(rows)` images of a block."""
        skipped = len(content["frames"]) - len(rows)
        ended = content["ended"].numpy()
        self._frames[torch.from_numpy(rows)] = content["frames"][skipped:]
        self._ended[rows] = ended[skipped:]
        for row in rows.tolist():
            self._beyond.pop(row, None)  # of the transition that was here before
        second = content["beyond"].numpy()[np.count_nonzero(ended[:skipped]) :]
        for row, image in zip(rows[ended[skipped:]].tolist(), second, strict=True):
            self._beyond[row] = image.copy()

    def open_ends(self) -> dict[int, Tensor]:
        """By row, the second images of the newest rows, which their successors will make superfluous."""
        return {row: torch.from_numpy(image.copy()) for row, image in self._beyond.items() if not self._ended[row]}

    def clear(self) -> None:
        """Forget which rows ended, and all second images."""
        self._ended[:] = False
        self._beyond.clear()

    def load_open_ends(self, images: dict[int, Tensor]) -> None:
        """Take over what `open_ends` gave."""
        self._beyond |= {row: image.numpy().copy() for row, image in images.items()}
