"""The protocols of vector envs, which the training loops call, and of batched envs from other packages."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from gymnasium import Space

from rl_training.envs.changes import Answer
from rl_training.envs.episodes import EpisodeTracker, ResetResult, Seeds, StepResult
from rl_training.envs.guard import EnvCalls
from rl_training.envs.layers import AnyEnv

EnvFactory = Callable[[], AnyEnv]


@dataclass(frozen=True)
class Restoration:
    """The observations after a restore. `failures` says, by index, why an env had to begin a new episode."""

    obs: Any
    failures: dict[int, str] = field(default_factory=dict)


class VectorEnv(Protocol):
    """Some of the envs of a run behind one interface, without automatic resets.

    Every episode has its own seed, a function of the run's seed, the env's index and the episode's number, so
    trajectories do not depend on how the envs are stepped.
    """

    num_envs: int
    single_observation_space: Space[Any]
    single_action_space: Space[Any]
    tracker: EpisodeTracker
    """Counts the episodes of every env."""
    calls: list[EnvCalls]
    """The env calls of this process, which a watchdog monitors; empty if the envs live in other processes."""

    def reset(self, *, seed: Seeds = None, options: dict[str, Any] | None = None) -> ResetResult:
        """Start the next episode of every env that `options["reset_mask"]` names, or of all."""

    def step(self, actions: Any) -> StepResult:
        """Step all envs; at the end of an episode, the observation is the true last one of that episode."""

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to restore every env to its current state."""

    def restore(self, state: dict[str, Any], last_obs: Any) -> Restoration:
        """Restore every env to `state`, in which it showed `last_obs` [env, ...]."""

    def visit(self, function: Callable[[Any], Answer]) -> list[Answer]:
        """Call a function with every env, in the process of the env, and return the answers [env].

        If the envs are one object, the function is called once, and its answer is that of every env.
        """

    def close(self) -> None:
        """Close the envs."""


class BatchedEnv(Protocol):
    """Envs of another package that are stepped together, as a `gymnasium.vector.VectorEnv` with autoreset disabled.

    It is made with `num_envs` and the config's `env_kwargs` as keyword arguments.
    """

    num_envs: int
    single_observation_space: Space[Any]
    single_action_space: Space[Any]

    def reset(self, *, seed: list[int | None], options: dict[str, Any]) -> ResetResult:
        """Begin a new episode in the envs that `options["reset_mask"]` [env] marks, each with its own seed.

        Return the observations [env, ...] of all envs; those of the other envs are unchanged.
        """

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all envs; return observations, rewards, terminated, truncated (all [env, ...]) and infos."""

    def close(self) -> None:
        """Close the envs."""
