"""On-policy storage: one rollout of `num_steps` steps from `num_envs` envs, and its advantages."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

Shape = tuple[int, ...]

_BATCH_FIELDS = ("obs", "actions", "logprobs", "values", "advantages", "returns")


class RolloutBuffer:
    """One rollout in tensors shaped [step, env, ...].

    `dones[t]` means that the episode ended with step t, `truncated[t]` that a time limit ended it. The observations
    after truncated steps are stored separately, because their values still count (Pardo et al. 2018).

    `add` fills the rollout step by step. If it was never called, the tensors are assumed to be filled directly:
    advantages and minibatches then cover all `num_steps` steps.
    """

    def __init__(
        self,
        num_steps: int,
        num_envs: int,
        obs_shape: Shape,
        action_shape: Shape,
        device: str | torch.device = "cpu",
        *,
        obs_dtype: torch.dtype = torch.float32,
        action_dtype: torch.dtype = torch.float32,
    ) -> None:
        self.num_steps, self.num_envs = num_steps, num_envs
        self.device = torch.device(device)

        def allocate(shape: Shape = (), dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros((num_steps, num_envs, *shape), dtype=dtype, device=self.device)

        self.obs = allocate(obs_shape, obs_dtype)
        self.actions = allocate(action_shape, action_dtype)
        self.rewards, self.values, self.logprobs = allocate(), allocate(), allocate()
        self.advantages, self.returns = allocate(), allocate()
        self.dones, self.truncated = allocate(dtype=torch.bool), allocate(dtype=torch.bool)
        self.bootstrap_values = allocate()  # V(last observation) where truncated, else 0
        self._last_obs: dict[tuple[int, int], Tensor] = {}  # by (step, env), only truncated steps
        self.position = 0
        # Writing rows through NumPy takes a tenth of the time of tensor assignment.
        self._rows: dict[str, Any] = {
            name: getattr(self, name).numpy() if self.device.type == "cpu" else getattr(self, name)
            for name in ("obs", "actions", "rewards", "dones", "truncated", "values", "logprobs")
        }

    @property
    def full(self) -> bool:
        """Whether every step of the rollout is stored."""
        return self.position == self.num_steps

    def __len__(self) -> int:
        return self.position * self.num_envs

    @property
    def num_missing(self) -> int:
        """The number of transitions that are missing for a full rollout."""
        return (self.num_steps - self.position) * self.num_envs

    @property
    def _num_filled_steps(self) -> int:
        return self.position or self.num_steps

    @property
    def num_bytes(self) -> int:
        """Memory of all tensors in bytes; on the device "meta" nothing is allocated."""
        return sum(value.nbytes for value in vars(self).values() if isinstance(value, Tensor))

    def reset(self) -> None:
        """Clear the rollout; its memory is reused."""
        self.position = 0
        self.truncated.zero_()
        self.bootstrap_values.zero_()
        self._last_obs.clear()

    def add(
        self,
        *,
        obs: Any,
        actions: Any,
        rewards: Any,
        dones: Any,
        values: Any = None,
        logprobs: Any = None,
        truncated: Any = None,
        last_obs: Any = None,
    ) -> None:
        """Store one step of every env, [env, ...], or several at once, [step, env, ...].

        `values` and `logprobs` may be set later for the whole rollout. `truncated` marks endings by a time limit;
        `last_obs` must then contain the observations after the step. Without `truncated`, every ending is final.
        """
        several = np.ndim(rewards) > 1
        stop = self.position + (len(rewards) if several else 1)
        if stop > self.num_steps:
            raise IndexError(f"the rollout already holds its {self.num_steps} steps: reset() it first")
        where = slice(self.position, stop) if several else self.position
        given = (obs, actions, rewards, dones, truncated, values, logprobs)  # in the order of the rows
        for rows, value in zip(self._rows.values(), given, strict=True):
            if value is not None:
                rows[where] = value if type(rows) is np.ndarray else torch.as_tensor(value)
        if truncated is not None:
            self._keep_last_obs(truncated, last_obs)
        self.position = stop

    def _keep_last_obs(self, truncated: Any, last_obs: Any) -> None:
        if not np.count_nonzero(truncated):  # the usual case; the loop would take three times as long
            return
        after = torch.as_tensor(last_obs).reshape(-1, self.num_envs, *self.obs.shape[2:])
        for step, env in np.argwhere(np.reshape(truncated, (-1, self.num_envs))).tolist():
            self._last_obs[self.position + step, env] = after[step, env].to(self.device, self.obs.dtype, copy=True)

    def cut(self, envs: Sequence[int], last_obs: Any) -> None:
        """Treat the running episodes of `envs` as truncated after the newest step: they will not be continued.

        `last_obs` [env, ...] are the observations after that step.
        """
        if self.position == 0:
            return
        self.position -= 1
        cut = torch.zeros_like(self.dones[self.position])
        cut[list(envs)] = True
        cut &= ~self.dones[self.position]
        self.truncated[self.position] |= cut
        self.dones[self.position] |= cut
        self._keep_last_obs(cut.cpu().numpy(), last_obs)
        self.position += 1

    def truncated_last_obs(self) -> Tensor:
        """Return the observations after truncated steps, [ending, ...], in the order of `truncated.nonzero()`."""
        if not self._last_obs:
            return self.obs.new_empty((0, *self.obs.shape[2:]))
        return torch.stack([self._last_obs[key] for key in sorted(self._last_obs)])

    def compute_returns_and_advantages(
        self, *, last_values: Tensor, gamma: float, gae_lambda: float, rewards: Tensor | None = None
    ) -> None:
        """Compute generalised advantage estimates (Schulman et al. 2016).

        `last_values` [env] are the values after the newest step. `rewards`, if given, replace the stored raw rewards.
        """
        steps = self._num_filled_steps
        rewards = self.rewards if rewards is None else rewards
        next_values = torch.cat([self.values[1:steps], last_values.reshape(1, -1).to(self.values)])
        next_values = torch.where(self.dones[:steps], self.bootstrap_values[:steps], next_values)
        deltas = rewards[:steps] + gamma * next_values - self.values[:steps]
        carry = gamma * gae_lambda * (~self.dones[:steps]).float()
        self.advantages[:steps] = _discounted_sums(deltas, carry)
        self.returns[:steps] = self.advantages[:steps] + self.values[:steps]

    def iter_minibatches(
        self, *, minibatch_size: int, shuffle: bool, generator: np.random.Generator | None = None
    ) -> Iterator[dict[str, Tensor]]:
        """Yield flat batches that contain every stored transition once; the last batch may be smaller."""
        steps = self._num_filled_steps
        total = steps * self.num_envs
        fields = {name: getattr(self, name)[:steps].flatten(0, 1) for name in _BATCH_FIELDS}
        if shuffle:
            order = (generator or np.random.default_rng()).permutation(total)
            index = torch.from_numpy(order).to(self.device)
            # Indexing by brackets takes eight times as long for images.
            fields = {name: field.index_select(0, index) for name, field in fields.items()}
        for start in range(0, total, minibatch_size):
            yield {name: field[start : start + minibatch_size] for name, field in fields.items()}

    def state_dict(self, since: int = 0) -> dict[str, Any]:
        """Return the steps stored so far; `since` is not used, because a rollout is small and always saved whole."""
        del since
        if self.position == 0:
            return {"position": 0}
        stored = {name: getattr(self, name)[: self.position].clone() for name in self._rows}
        return {"position": self.position, "last_obs": self.truncated_last_obs(), **stored}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a partly filled rollout."""
        self.reset()
        self.position = int(state["position"])
        if self.position:
            for name in self._rows:
                stored, target = state[name], getattr(self, name)[: self.position]
                if stored.shape != target.shape:
                    raise ValueError(f"saved {name} have shape {tuple(stored.shape)}, expected {tuple(target.shape)}")
                target.copy_(stored)
            endings = [(int(step), int(env)) for step, env in self.truncated.nonzero()]
            self._last_obs = dict(zip(endings, state["last_obs"].to(self.device), strict=True))


def _discounted_sums(deltas: Tensor, carry: Tensor) -> Tensor:
    """Compute sums[t] = deltas[t] + carry[t] * sums[t + 1]; in NumPy, which is faster for small operations."""
    sums = deltas.cpu().numpy().copy()
    factors = carry.cpu().numpy()
    for step in range(len(sums) - 2, -1, -1):
        sums[step] += factors[step] * sums[step + 1]
    return torch.from_numpy(sums).to(deltas.device)
