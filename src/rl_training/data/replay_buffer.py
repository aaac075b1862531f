"""Off-policy storage: the newest transitions in one ring, n-step returns at sampling."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rl_training.data.frames import FrameStore
from rl_training.data.sampling import Sampler, UniformSampler

Shape = tuple[int, ...]
Index = npt.NDArray[np.int64]


def transition_bytes(obs_shape: Shape, action_shape: Shape, obs_dtype: torch.dtype) -> int:
    """Memory of one stored transition."""
    obs_size, flags = int(np.prod(obs_shape)), 3  # reward and the two kinds of ending
    if obs_dtype is torch.uint8:
        return obs_size + 4 * (int(np.prod(action_shape)) + flags)
    return 4 * (2 * obs_size + int(np.prod(action_shape)) + flags)


class ReplayBuffer:
    """The newest `capacity` transitions, one packed float32 row each; images are kept apart, as uint8 and once.

    `dones` says that the episode terminated; a time limit is `truncated` and keeps its bootstrap. Rows of `num_envs`
    envs are interleaved, so that the successor of row i is row i + num_envs.
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
    ) -> None:
        self.capacity = capacity - capacity % num_envs  # whole steps of all envs, so that the ring stays in phase
        if self.capacity < 1:
            raise ValueError(f"capacity={capacity} cannot hold one step of {num_envs} envs")
        self.num_envs, self.n_step, self.gamma = num_envs, n_step, gamma
        self.obs_shape, self.action_shape = obs_shape, action_shape
        self.obs_dtype, self.action_dtype = obs_dtype, action_dtype
        self.sampler = sampler or UniformSampler(np.random.default_rng())
        self._frames = FrameStore(self.capacity, num_envs, obs_shape) if obs_dtype is torch.uint8 else None
        obs_size = 0 if self._frames else int(np.prod(obs_shape))
        sizes = {"obs": obs_size, "actions": int(np.prod(action_shape)), "rewards": 1}
        sizes |= {"dones": 1, "truncated": 1, "next_obs": obs_size}
        ends = np.cumsum(list(sizes.values()))
        self._columns = {name: slice(end - sizes[name], end) for name, end in zip(sizes, ends, strict=True)}
        self._rows = torch.zeros((self.capacity, int(ends[-1])))
        self._array = self._rows.numpy()  # the same memory
        self._head = 0  # where the next row is written
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def num_bytes(self) -> int:
        """Memory of the stored transitions."""
        return self._rows.nbytes + (self._frames.num_bytes if self._frames else 0)

    def add(self, *, obs: Any, actions: Any, rewards: Any, next_obs: Any, dones: Any, truncated: Any = False) -> None:
        """Store one transition, or one of every env when the arguments have a leading axis [env, ...]."""
        count = np.size(rewards)
        rows = (self._head + np.arange(count)) % self.capacity
        given = {"actions": actions, "rewards": rewards, "dones": dones}
        given["truncated"] = np.broadcast_to(np.asarray(truncated), (count,))
        if self._frames:
            ended = np.reshape(dones, count).astype(np.bool_) | given["truncated"].astype(np.bool_)
            self._frames.write(rows, np.asarray(obs), np.asarray(next_obs), ended)
        else:
            given |= {"obs": obs, "next_obs": next_obs}
        for name, value in given.items():
            self._array[rows, self._columns[name]] = np.reshape(np.asarray(value), (count, -1))
        self.sampler.added(rows)
        self._head = (self._head + count) % self.capacity
        self._size = min(self._size + count, self.capacity)

    def cut(self, envs: Sequence[int], last_obs: Any = None) -> None:
        """Treat the running episodes of `envs` as truncated after their newest step: they will not be continued.

        `last_obs` is stored with that step already.
        """
        del last_obs
        if not self._size:
            return
        newest = (self._head - self.num_envs + np.array(envs, dtype=np.int64)) % self.capacity
        columns = {name: self._array[:, self._columns[name]] for name in ("dones", "truncated")}
        columns["truncated"][newest] = np.maximum(columns["truncated"][newest], 1.0 - columns["dones"][newest])
        if self._frames:
            self._frames.cut(newest)

    def sample(self, batch_size: int) -> dict[str, Tensor]:
        """A batch drawn with replacement.

        `rewards` are sums over up to `n_step` steps, `next_obs` and `dones` belong to the last of them, and `discounts`
        is gamma to the power of their real number, 0 where the episode terminated.
        """
        drawn = self.sampler.draw(batch_size, self._size)
        batch = self._gather(drawn.rows)
        if self.n_step > 1:
            batch |= self._look_ahead(drawn.rows)
        else:
            batch["discounts"] = self.gamma * (1.0 - batch["dones"])
        batch["indices"] = torch.from_numpy(drawn.rows)
        batch["weights"] = torch.from_numpy(drawn.weights)
        return batch

    def _gather(self, rows: Index) -> dict[str, Tensor]:
        packed = self._rows[torch.from_numpy(rows)]
        fields = {name: packed[:, columns] for name, columns in self._columns.items()}
        batch = {name: fields[name].squeeze(1) for name in ("rewards", "dones", "truncated")}
        batch["actions"] = fields["actions"].reshape(len(rows), *self.action_shape).to(self.action_dtype)
        if self._frames:
            batch["obs"], batch["next_obs"] = self._frames.read(rows)
            return batch
        for name in ("obs", "next_obs"):
            batch[name] = fields[name].reshape(len(rows), *self.obs_shape).to(self.obs_dtype)
        return batch

    def _look_ahead(self, rows: Index) -> dict[str, Tensor]:
        """Rewards, endings and last observations of the n-step returns that begin at `rows`."""
        rewards, dones, truncated = (
            self._array[:, self._columns[name]][:, 0] for name in ("rewards", "dones", "truncated")
        )
        sums, lengths = np.zeros(len(rows), np.float32), np.zeros(len(rows), np.int64)
        alive, last, cursor = np.ones(len(rows), np.bool_), rows.copy(), rows.copy()
        for step in range(self.n_step):
            sums += np.where(alive, np.float32(self.gamma**step) * rewards[cursor], np.float32(0.0))
            last = np.where(alive, cursor, last)
            lengths += alive
            newest = (self._head - 1 - cursor) % self.capacity < self.num_envs  # its successor is not stored
            alive &= ~(newest | (dones[cursor] + truncated[cursor] > 0.0))
            cursor = (cursor + self.num_envs) % self.capacity
        ahead = self._gather(last)
        discounts = torch.from_numpy(np.power(self.gamma, lengths).astype(np.float32)) * (1.0 - ahead["dones"])
        names = ("next_obs", "dones", "truncated")
        return {"rewards": torch.from_numpy(sums), "discounts": discounts, **{name: ahead[name] for name in names}}

    def state_dict(self) -> dict[str, Any]:
        """What is stored, in place: rows keep their numbers, also in mid-wrap."""
        return {
            "rows": self._rows[: self._size].clone(),
            "head": self._head,
            "size": self._size,
            "sampler": self.sampler.state_dict(),
            "frames": self._frames.state_dict(self._size) if self._frames else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` stopped."""
        self._head, self._size = int(state["head"]), int(state["size"])
        self._rows[: self._size] = state["rows"]
        self.sampler.load_state_dict(state["sampler"])
        if self._frames:
            self._frames.load_state_dict(state["frames"])
