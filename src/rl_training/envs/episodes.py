"""Episode bookkeeping for a vector of envs: an explicit seed for every episode, and its return and length."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from rl_training.errors import TrainingStateError
from rl_training.streams import derive_seed

BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]
Seeds = int | list[int | None] | None
ResetResult = tuple[Any, dict[str, Any]]


class EpisodeTracker:
    """Counts episodes per env. An episode's seed is a function of (run seed, env index, episode number)."""

    def __init__(self, num_envs: int, run_seed: int) -> None:
        self.run_seed = run_seed
        self.episode_numbers = np.full(num_envs, -1, dtype=np.int64)  # -1 before the first reset
        self.returns = np.zeros(num_envs)
        self.lengths = np.zeros(num_envs, dtype=np.int64)
        self._started_at = np.zeros(num_envs)
        self._ended = np.zeros(num_envs, dtype=np.bool_)

    def reset(
        self, vector_reset: Callable[..., ResetResult], seed: Seeds, options: dict[str, Any] | None
    ) -> ResetResult:
        """Reset through `vector_reset`; without a `seed`, each concerned env starts its next episode with its own."""
        mask = _reset_mask(options, len(self.lengths))
        result = vector_reset(seed=self._next_seeds(mask) if seed is None else seed, options=options)
        self.episode_numbers[mask] += 1
        self.returns[mask] = 0.0
        self.lengths[mask] = 0
        self._ended[mask] = False
        self._started_at[mask] = time.perf_counter()
        return result

    def _next_seeds(self, mask: BoolArray) -> list[int | None]:
        return [
            derive_seed(self.run_seed, "episodes", index, int(self.episode_numbers[index]) + 1) if starts else None
            for index, starts in enumerate(mask)
        ]

    def check_running(self) -> None:
        """Refuse to step an env whose episode is over."""
        if self._ended.any():
            raise TrainingStateError(f"envs {np.flatnonzero(self._ended).tolist()} have ended: reset them first")

    def record(self, rewards: FloatArray, ended: BoolArray) -> dict[str, Any]:
        """Count one step of every env; the infos of the episodes that ended with it, if any did."""
        self.returns += rewards
        self.lengths += 1
        if not ended.any():
            return {}
        self._ended = ended.copy()
        elapsed = np.round(time.perf_counter() - self._started_at, 6)
        return {
            "episode": {
                "r": np.where(ended, self.returns, 0.0),
                "l": np.where(ended, self.lengths, 0),
                "t": np.where(ended, elapsed, 0.0),
            },
            "_episode": ended.copy(),
        }

    def state_dict(self) -> dict[str, Any]:
        """What the next episodes' seeds depend on."""
        return {"episode_numbers": self.episode_numbers.tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on counting episodes where `state` stopped."""
        numbers = np.array(state["episode_numbers"], dtype=np.int64)
        if numbers.shape != self.episode_numbers.shape:
            raise ValueError(f"{len(numbers)} envs were saved, {len(self.episode_numbers)} are here")
        self.episode_numbers = numbers


def _reset_mask(options: dict[str, Any] | None, num_envs: int) -> BoolArray:
    """Which envs a vector reset concerns: those of `options["reset_mask"]`, or all."""
    if options is None or "reset_mask" not in options:
        return np.ones(num_envs, dtype=np.bool_)
    return np.array(options["reset_mask"], dtype=np.bool_)
