"""Image observations of a replay buffer. Each is stored once: the next observation of a row is its successor's."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Index = npt.NDArray[np.int64]
Images = npt.NDArray[np.uint8]


class FrameStore:
    """Storage for `capacity` images in a ring.

    A row has no successor if its episode ended or if it is among the newest. Only then its next image is kept too.
    """

    def __init__(self, capacity: int, num_envs: int, shape: tuple[int, ...]) -> None:
        self.capacity, self.num_envs = capacity, num_envs
        self._frames = torch.zeros((capacity, *shape), dtype=torch.uint8)
        self._array = self._frames.numpy()
        self._ended = np.zeros(capacity, dtype=np.bool_)
        self._next_images: dict[int, Images] = {}  # next observations, by row

    @property
    def num_bytes(self) -> int:
        """Memory of the images in bytes, without the few extra next images."""
        return self._frames.nbytes

    def write(self, rows: Index, obs: Images, next_obs: Images, ended: npt.NDArray[np.bool_]) -> None:
        """Store one step of every env."""
        shape = (len(rows), *self._array.shape[1:])
        self._array[rows] = obs.reshape(shape)
        self._ended[rows] = ended
        for row, following in zip(rows.tolist(), next_obs.reshape(shape), strict=True):
            self._next_images[row] = following.copy()
            before = (row - self.num_envs) % self.capacity
            if not self._ended[before]:  # the new row is now its successor
                self._next_images.pop(before, None)

    def cut(self, rows: Index) -> None:
        """Mark these rows as the last of their episodes."""
        self._ended[rows] = True

    def read(self, rows: Index) -> tuple[Images, Images]:
        """Return the observations and the next observations of `rows`."""
        following = self._array[(rows + self.num_envs) % self.capacity]
        for place, row in enumerate(rows.tolist()):
            if row in self._next_images:
                following[place] = self._next_images[row]
        return self._array[rows], following

    def block(self, rows: Index) -> dict[str, Tensor]:
        """Return the images of `rows` and, in the same order, the next images of the rows that ended an episode."""
        second = [self._next_images[row] for row in rows[self._ended[rows]].tolist()]
        return {
            "frames": self._frames[torch.from_numpy(rows)],
            "ended": torch.from_numpy(self._ended[rows]),
            "beyond": torch.from_numpy(np.array(second, np.uint8).reshape(-1, *self._array.shape[1:])),
        }

    def load_block(self, rows: Index, content: dict[str, Tensor]) -> None:
        """Load the newest `len(rows)` images of a block into `rows`."""
        skipped = len(content["frames"]) - len(rows)
        ended = content["ended"].numpy()
        self._frames[torch.from_numpy(rows)] = content["frames"][skipped:]
        self._ended[rows] = ended[skipped:]
        for row in rows.tolist():
            self._next_images.pop(row, None)  # belongs to the overwritten transition
        second = content["beyond"].numpy()[np.count_nonzero(ended[:skipped]) :]
        for row, image in zip(rows[ended[skipped:]].tolist(), second, strict=True):
            self._next_images[row] = image.copy()

    def open_ends(self) -> dict[int, Tensor]:
        """Return the next images of the newest rows, by row; they are dropped when the successors arrive."""
        return {row: torch.from_numpy(image.copy()) for row, image in self._next_images.items() if not self._ended[row]}

    def clear(self) -> None:
        """Clear all marks of ended rows and all extra next images."""
        self._ended[:] = False
        self._next_images.clear()

    def load_open_ends(self, images: dict[int, Tensor]) -> None:
        """Load the result of `open_ends`."""
        self._next_images |= {row: image.numpy().copy() for row, image in images.items()}
