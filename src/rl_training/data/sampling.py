"""Samplers for the replay buffer: uniform, or by priority (Schaul et al. 2016)."""

from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

Index = npt.NDArray[np.int64]
Weights = npt.NDArray[np.float32]


class Draw(NamedTuple):
    """Rows of the replay buffer, with the weight of each in the loss."""

    rows: Index
    weights: Weights


class Sampler(Protocol):
    """Draws rows of a replay buffer."""

    def added(self, rows: Index) -> None:
        """Note that these rows hold new transitions."""

    def draw(self, batch_size: int, size: int) -> Draw:
        """Draw `batch_size` of the first `size` rows, with replacement."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the random stream and the priorities."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the result of `state_dict`."""


class UniformSampler:
    """Draws all stored rows with equal probability."""

    def __init__(self, stream: np.random.Generator) -> None:
        self._stream = stream
        self._weights: Weights = np.ones(0, np.float32)  # reused while the batch size stays the same

    def added(self, rows: Index) -> None:
        """Do nothing."""

    def draw(self, batch_size: int, size: int) -> Draw:
        """Draw uniform rows of weight 1."""
        if len(self._weights) != batch_size:
            self._weights = np.ones(batch_size, np.float32)
        return Draw(self._stream.integers(size, size=batch_size), self._weights)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the random stream."""
        return {"stream": self._stream.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the result of `state_dict`."""
        self._stream.bit_generator.state = state["stream"]


def tree_bytes(capacity: int) -> int:
    """Return the memory of a `SumTree` in bytes."""
    return 8 * 2 * _num_leaves(capacity)


def _num_leaves(capacity: int) -> int:
    return 1 << (capacity - 1).bit_length()


class SumTree:
    """Non-negative numbers with their sums in a binary tree: a change or a draw takes O(log(capacity)) time."""

    def __init__(self, capacity: int) -> None:
        self.leaves = _num_leaves(capacity)
        self.nodes = np.zeros(2 * self.leaves)  # node 1 is the root; the children of i are 2i and 2i + 1

    @property
    def total(self) -> float:
        """The sum of all numbers."""
        return float(self.nodes[1])

    def set(self, rows: Index, values: npt.NDArray[np.float64]) -> None:
        """Set the numbers of some rows; if a row is given twice, the last value counts."""
        nodes = rows + self.leaves
        self.nodes[nodes] = values
        while nodes[0] > 1:
            nodes = np.unique(nodes // 2)
            self.nodes[nodes] = self.nodes[2 * nodes] + self.nodes[2 * nodes + 1]

    def get(self, rows: Index) -> npt.NDArray[np.float64]:
        """Return the numbers of some rows."""
        return self.nodes[rows + self.leaves]

    def find(self, masses: npt.NDArray[np.float64]) -> Index:
        """Return for each mass in [0, total) the row whose part of the cumulative sum contains it."""
        nodes = np.ones(len(masses), dtype=np.int64)
        masses = masses.copy()
        while nodes[0] < self.leaves:
            nodes *= 2
            left = self.nodes[nodes]
            goes_right = masses >= left
            masses -= np.where(goes_right, left, 0.0)
            nodes += goes_right
        return nodes - self.leaves


class PrioritizedSampler:
    """Draws rows in proportion to priority ** alpha, with weights (size * probability) ** -beta, at most 1."""

    def __init__(self, capacity: int, alpha: float, stream: np.random.Generator) -> None:
        self.alpha = alpha
        self.beta = 0.4  # the learner's schedule changes it
        self._stream = stream
        self._tree = SumTree(capacity)
        self._highest = 1.0

    def added(self, rows: Index) -> None:
        """Give new transitions the highest priority seen, so that each is drawn soon."""
        self._tree.set(rows, np.full(len(rows), self._highest**self.alpha))

    def draw(self, batch_size: int, size: int) -> Draw:
        """Draw one row from each of `batch_size` equal parts of the total."""
        shares = (np.arange(batch_size) + self._stream.random(batch_size)) / batch_size
        rows = np.minimum(self._tree.find(shares * self._tree.total), size - 1)  # rounding may exceed the last row
        weights = (size * self._tree.get(rows) / self._tree.total) ** -self.beta
        return Draw(rows, (weights / weights.max()).astype(np.float32))

    def update(self, rows: Index, priorities: npt.NDArray[np.float64]) -> None:
        """Set the priorities of rows that were drawn."""
        self._highest = max(self._highest, float(priorities.max()))
        self._tree.set(rows, priorities**self.alpha)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the random stream and the priorities."""
        leaves = torch.from_numpy(self._tree.nodes[self._tree.leaves :].copy())
        return {"stream": self._stream.bit_generator.state, "priorities": leaves, "highest": self._highest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the result of `state_dict`."""
        self._stream.bit_generator.state = state["stream"]
        self._highest = float(state["highest"])
        self._tree.set(np.arange(self._tree.leaves), state["priorities"].numpy())
