"""Off-policy storage: a ring of the newest transitions; n-step returns are computed when sampling."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rl_training.data.frames import FrameStore
from rl_training.data.sampling import Sampler, UniformSampler

Shape = tuple[int, ...]
Array = npt.NDArray[Any]
Index = npt.NDArray[np.int64]


def transition_bytes(obs_shape: Shape, action_shape: Shape, obs_dtype: torch.dtype, num_frames: int = 1) -> int:
    """Return the memory of one stored transition in bytes, if its observation stacks `num_frames` frames."""
    obs_size, flags = int(np.prod(obs_shape)), 3  # reward and the two kinds of ending
    if obs_dtype is torch.uint8:
        return obs_size // num_frames + 4 * (int(np.prod(action_shape)) + flags)
    return 4 * (2 * obs_size + int(np.prod(action_shape)) + flags)


class ReplayBuffer:
    """Storage for the newest `capacity` transitions, each a packed float32 row; images are stored separately as uint8.

    `dones` means that the episode terminated; a time limit is `truncated` and keeps its bootstrap. Transitions are
    numbered in the order of arrival, and number n is stored in row n modulo `capacity`. Rows of `num_envs` envs are
    interleaved, so that the successor of row i is row i + num_envs.
    """

    def __init__(
        self,
        capacity: int,
        obs_shape: Shape,
        action_shape: Shape,
        *,
        num_envs: int = 1,
        obs_dtype: torch.dtype = torch.float32,
        action_dtype: torch.dtype = torch.float32,
        n_step: int = 1,
        gamma: float = 1.0,
        sampler: Sampler | None = None,
        num_frames: int = 1,
    ) -> None:
        """`num_frames` is the number of frames that a byte observation stacks along its first axis."""
        self.capacity = capacity - capacity % num_envs  # whole vector steps, so that each env keeps its rows
        if self.capacity < 1:
            raise ValueError(f"capacity={capacity} cannot hold one step of {num_envs} envs")
        self.num_envs, self.n_step, self.gamma = num_envs, n_step, gamma
        self.obs_shape, self.action_shape = obs_shape, action_shape
        self.obs_dtype, self.action_dtype = obs_dtype, action_dtype
        self.sampler = sampler or UniformSampler(np.random.default_rng())
        self._frames = FrameStore(self.capacity, num_envs, obs_shape, num_frames) if obs_dtype is torch.uint8 else None
        obs_size = 0 if self._frames else int(np.prod(obs_shape))
        sizes = {"obs": obs_size, "actions": int(np.prod(action_shape)), "rewards": 1}
        sizes |= {"dones": 1, "truncated": 1, "next_obs": obs_size}
        ends = np.cumsum(list(sizes.values()))
        self._columns = {name: slice(end - sizes[name], end) for name, end in zip(sizes, ends, strict=True)}
        self._rows = torch.zeros((self.capacity, int(ends[-1])))
        self._array = self._rows.numpy()  # the same memory
        self.added = 0
        """The number of transitions added so far, which is also the number of the next one."""
        self._size = 0
        self._cut_at = -1  # the value of `added` at the last cut

    def __len__(self) -> int:
        return self._size

    @property
    def num_bytes(self) -> int:
        """Memory of the storage in bytes."""
        return self._rows.nbytes + (self._frames.num_bytes if self._frames else 0)

    def add(
        self,
        *,
        obs: Any,
        actions: Any,
        rewards: Any,
        next_obs: Any,
        dones: Any,
        truncated: Any = False,
        goes_on: Any = False,
    ) -> None:
        """Store one transition, or one of every env when the arguments have a leading axis [env, ...].

        `goes_on` marks where the episode continues although `dones` says otherwise, as after a lost life. Stacks of
        frames then continue too.
        """
        count = np.size(rewards)
        rows = self._rows_of(self.added, self.added + count)
        given = {"actions": actions, "rewards": rewards, "dones": dones, "truncated": truncated}
        if self._frames:
            ended = np.reshape(dones, count).astype(np.bool_) | np.asarray(truncated, dtype=np.bool_)
            ended &= ~np.asarray(goes_on, dtype=np.bool_)
            numbers = np.arange(self.added, self.added + count)
            self._frames.write(numbers, np.asarray(obs), np.asarray(next_obs), ended)
        else:
            given |= {"obs": obs, "next_obs": next_obs}
        packed = np.empty((count, self._array.shape[1]), np.float32)
        for name, value in given.items():
            array = np.asarray(value)
            packed[:, self._columns[name]] = array.reshape(count, -1) if array.size > 1 else array
        self._array[rows] = packed
        self.sampler.added(rows)
        self.added += count
        self._size = min(self._size + count, self.capacity)

    def _rows_of(self, first: int, end: int) -> Index:
        """Return the rows of the transitions numbered from `first` up to, but not including, `end`."""
        return np.arange(first, end) % self.capacity

    def _numbers_of(self, rows: Index) -> Index:
        """Return the numbers of the transitions in these rows."""
        numbers: Index = self.added - 1 - (self.added - 1 - rows) % self.capacity
        return numbers

    def cut(self, envs: Sequence[int], last_obs: Any = None) -> None:
        """Treat the running episodes of `envs` as truncated after their newest step: they will not be continued.

        `last_obs` is not used, because it is already stored with that step.
        """
        del last_obs
        if not self._size:
            return
        newest = self._rows_of(self.added - self.num_envs, self.added)[list(envs)]
        self._cut_at = self.added
        columns = {name: self._array[:, self._columns[name]] for name in ("dones", "truncated")}
        columns["truncated"][newest] = np.maximum(columns["truncated"][newest], 1.0 - columns["dones"][newest])
        if self._frames:
            self._frames.cut(self._numbers_of(newest))

    def sample(self, batch_size: int) -> dict[str, Tensor]:
        """Draw a batch with replacement.

        `rewards` are discounted sums over up to `n_step` steps, and `next_obs` and `dones` belong to the last of these
        steps. `discounts` is gamma to the power of their actual number, or 0 where the episode terminated.
        """
        drawn = self.sampler.draw(batch_size, self._size)
        batch = self._gather(drawn.rows)
        if self.n_step > 1:
            batch |= self._n_step_fields(drawn.rows)
        else:
            batch["discounts"] = np.float32(self.gamma) * (1.0 - batch["dones"])
        batch["indices"], batch["weights"] = drawn
        return {name: torch.from_numpy(field) for name, field in batch.items()}

    def _gather(self, rows: Index) -> dict[str, Array]:
        """Return the fields of some rows; in NumPy, which is much faster than torch for small batches."""
        packed, columns = self._array.take(rows, axis=0), self._columns
        batch: dict[str, Array] = {name: packed[:, columns[name].start] for name in ("rewards", "dones", "truncated")}
        batch["actions"] = self._unpack(packed, columns["actions"], self.action_shape, self.action_dtype)
        if self._frames:
            batch["obs"], batch["next_obs"] = self._frames.read(self._numbers_of(rows))
            return batch
        for name in ("obs", "next_obs"):
            batch[name] = self._unpack(packed, columns[name], self.obs_shape, self.obs_dtype)
        return batch

    def _unpack(self, packed: Array, columns: slice, shape: Shape, dtype: torch.dtype) -> Array:
        field = packed[:, columns] if shape else packed[:, columns.start]
        if len(shape) > 1:
            field = field.reshape(len(packed), *shape)
        return field if dtype is torch.float32 else field.astype(np.int64)

    def _n_step_fields(self, rows: Index) -> dict[str, Array]:
        """Return the fields of the n-step transitions that begin at `rows`."""
        rewards, dones, truncated = (
            self._array[:, self._columns[name]][:, 0] for name in ("rewards", "dones", "truncated")
        )
        sums, lengths = np.zeros(len(rows), np.float32), np.zeros(len(rows), np.int64)
        alive, last, cursor = np.ones(len(rows), np.bool_), rows.copy(), rows.copy()
        for step in range(self.n_step):
            sums += np.where(alive, np.float32(self.gamma**step) * rewards[cursor], np.float32(0.0))
            last = np.where(alive, cursor, last)
            lengths += alive
            newest = (self.added - 1 - cursor) % self.capacity < self.num_envs  # its successor is not stored
            alive &= ~(newest | (dones[cursor] + truncated[cursor] > 0.0))
            if not np.count_nonzero(alive):  # `any` takes several times as long
                break
            cursor = (cursor + self.num_envs) % self.capacity
        ahead = self._gather(last)
        discounts = np.power(self.gamma, lengths).astype(np.float32) * (1.0 - ahead["dones"])
        names = ("next_obs", "dones", "truncated")
        return {"rewards": sums, "discounts": discounts, **{name: ahead[name] for name in names}}

    def state_dict(self, since: int = 0) -> dict[str, Any]:
        """Return the state, with only the transitions numbered from `since` on; the earlier ones are saved already.

        To load a state, put the blocks of all increments, in order, into the newest increment.
        """
        if since <= self._cut_at:  # the newest row of every env may have been saved before the cut
            since -= self.num_envs
        first = max(since, self.added - self._size)
        places = self._rows_of(first, self.added)
        block: dict[str, Any] = {"first": first, "content": self._block(places)}
        return {
            "added": self.added,
            "size": self._size,
            "blocks": [block] if len(places) else [],
            "sampler": self.sampler.state_dict(),
            **(self._frames.state_dict(self.added - self._size) if self._frames else {"open_ends": {}}),
        }

    def _block(self, places: Index) -> dict[str, Tensor]:
        frames = self._frames.block(self._numbers_of(places)) if self._frames else {}
        return {"rows": self._rows[torch.from_numpy(places)], **frames}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state; if several blocks contain a transition, the last one counts."""
        added, size = int(state["added"]), int(state["size"])
        if size != min(added, self.capacity):
            raise ValueError(
                f"the saved buffer has {size} of {added} transitions, which does not fit a capacity of {self.capacity}"
            )
        self.added, self._size, self._cut_at = added, size, -1
        if self._frames:
            self._frames.clear()
        known = added - size
        for block in state["blocks"]:
            known = self._load_block(int(block["first"]), block["content"], known)
        if known != added:
            raise ValueError(f"transitions {known} to {added - 1} are missing")
        self.sampler.load_state_dict(state["sampler"])
        if self._frames:
            self._frames.load_state_dict(state, added - size)

    def _load_block(self, first: int, content: dict[str, Tensor], known: int) -> int:
        """Load the transitions of a block that are not too old.

        All transitions before number `known` are loaded already; the result is the new value of `known`.
        """
        rows, oldest = content["rows"], self.added - self._size
        end = first + len(rows)
        if first > known or end > self.added or rows.shape[1:] != self._rows.shape[1:]:
            raise ValueError(f"rows {first} to {end - 1} of shape {tuple(rows.shape[1:])} do not fit")
        places = self._rows_of(max(first, oldest), max(end, oldest))
        self._rows[torch.from_numpy(places)] = rows[len(rows) - len(places) :]
        if self._frames:
            self._frames.load_block(np.arange(max(first, oldest), max(end, oldest)), content)
        return max(known, end)
