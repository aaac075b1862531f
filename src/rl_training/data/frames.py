"""Image observations of a replay buffer. Each frame is stored once; stacks of frames are built when they are read.

The next observation of a transition is the observation of its successor. A stack consists of the frame of its own
transition and those of the transitions before it. Where it reaches beyond the start of the episode, it repeats the
first frame.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Index = npt.NDArray[np.int64]
Images = npt.NDArray[np.uint8]


class FrameStore:
    """Storage for the frames of the newest `capacity` transitions, and of those before them that stacks still need.

    Transitions are numbered in the order of arrival; those of one env are `num_envs` apart. A transition has no
    successor if its episode ended or if it is among the newest. Only in these cases is its next frame stored too.
    """

    def __init__(self, capacity: int, num_envs: int, shape: tuple[int, ...], num_frames: int = 1) -> None:
        """`shape` is that of an observation, which stacks `num_frames` frames along its first axis."""
        self.num_envs, self.num_frames, self._shape = num_envs, num_frames, shape
        self._num_older = (num_frames - 1) * num_envs
        frame_shape = (shape[0] // num_frames, *shape[1:]) if shape else shape
        self._frames = torch.zeros((capacity + self._num_older, *frame_shape), dtype=torch.uint8)
        self._array = self._frames.numpy()
        self._ended = np.zeros(len(self._array), dtype=np.bool_)
        self._next_frames: dict[int, Images] = {}  # by slot

    @property
    def num_bytes(self) -> int:
        """Memory of the frames in bytes, without the few extra next frames."""
        return self._frames.nbytes

    def _slots(self, numbers: Index) -> Index:
        return numbers % len(self._array)

    def _newest_frames(self, obs: Images, count: int) -> Images:
        """Return the newest frame of each observation."""
        stacks = obs.reshape(count, self.num_frames, *self._array.shape[1:])
        newest: Images = stacks[:, -1]
        return newest

    def write(self, numbers: Index, obs: Images, next_obs: Images, ended: npt.NDArray[np.bool_]) -> None:
        """Store one step of every env."""
        slots = self._slots(numbers)
        self._array[slots] = self._newest_frames(obs, len(slots))
        self._ended[slots] = ended
        before = self._slots(numbers - self.num_envs)
        for slot, previous, following in zip(
            slots.tolist(), before.tolist(), self._newest_frames(next_obs, len(slots)), strict=True
        ):
            self._next_frames[slot] = following.copy()
            if not self._ended[previous]:  # the new transition is now its successor
                self._next_frames.pop(previous, None)

    def cut(self, numbers: Index) -> None:
        """Mark these transitions as the last of their episodes."""
        self._ended[self._slots(numbers)] = True

    def read(self, numbers: Index) -> tuple[Images, Images]:
        """Return the observations and the next observations of some transitions."""
        stacks = self._stacks(numbers)
        following = self._stacks(numbers + self.num_envs)
        for place, slot in enumerate(self._slots(numbers).tolist()):
            if slot in self._next_frames:
                following[place, :-1] = stacks[place, 1:]
                following[place, -1] = self._next_frames[slot]
        shape = (len(numbers), *self._shape)
        return stacks.reshape(shape), following.reshape(shape)

    def _stacks(self, numbers: Index) -> Images:
        """Return the frames [transition, frame, ...] of some observations, the newest last."""
        stacks = np.empty((len(numbers), self.num_frames, *self._array.shape[1:]), np.uint8)
        current = numbers
        stacks[:, -1] = self._array[self._slots(current)]
        for place in range(self.num_frames - 2, -1, -1):
            previous = current - self.num_envs
            continues = (previous >= 0) & ~self._ended[self._slots(previous)]
            current = np.where(continues, previous, current)
            stacks[:, place] = self._array[self._slots(current)]
        return stacks

    def block(self, numbers: Index) -> dict[str, Tensor]:
        """Return the frames of some transitions and, in the same order, the next frames of those that ended."""
        slots = self._slots(numbers)
        second = [self._next_frames[slot] for slot in slots[self._ended[slots]].tolist()]
        return {
            "frames": self._frames[torch.from_numpy(slots)],
            "ended": torch.from_numpy(self._ended[slots]),
            "beyond": torch.from_numpy(np.array(second, np.uint8).reshape(-1, *self._array.shape[1:])),
        }

    def load_block(self, numbers: Index, content: dict[str, Tensor]) -> None:
        """Load the newest `len(numbers)` frames of a block."""
        slots = self._slots(numbers)
        skipped = len(content["frames"]) - len(slots)
        ended = content["ended"].numpy()
        self._frames[torch.from_numpy(slots)] = content["frames"][skipped:]
        self._ended[slots] = ended[skipped:]
        for slot in slots.tolist():
            self._next_frames.pop(slot, None)  # belongs to the overwritten transition
        second = content["beyond"].numpy()[np.count_nonzero(ended[:skipped]) :]
        for slot, image in zip(slots[ended[skipped:]].tolist(), second, strict=True):
            self._next_frames[slot] = image.copy()

    def state_dict(self, oldest: int) -> dict[str, Any]:
        """Return what blocks do not hold: the next frames of the newest transitions, and frames before the oldest."""
        open_ends = {slot: image for slot, image in self._next_frames.items() if not self._ended[slot]}
        state: dict[str, Any] = {"open_ends": {slot: torch.from_numpy(each.copy()) for slot, each in open_ends.items()}}
        if self._num_older:
            slots = self._slots(self._older(oldest))
            state["older"] = {"frames": self._frames[torch.from_numpy(slots)], "ended": self._ended[slots].tolist()}
        return state

    def load_state_dict(self, state: dict[str, Any], oldest: int) -> None:
        """Load the result of `state_dict`, after all blocks."""
        self._next_frames |= {slot: image.numpy().copy() for slot, image in state["open_ends"].items()}
        if self._num_older:
            slots = self._slots(self._older(oldest))
            self._frames[torch.from_numpy(slots)] = state["older"]["frames"]
            self._ended[slots] = state["older"]["ended"]

    def _older(self, oldest: int) -> Index:
        """Return the numbers of the transitions that are no longer stored but whose frames are needed."""
        return np.arange(max(oldest - self._num_older, 0), oldest)

    def clear(self) -> None:
        """Clear all marks of ended episodes and all extra next frames."""
        self._ended[:] = False
        self._next_frames.clear()
