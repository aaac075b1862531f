"""Tiny environments with a known value and policy. A correct algorithm solves each in seconds.

They isolate one thing at a time: value only, value by observation, discounting, policy, policy by observation, time
limits, continuous actions. Ids are `rl_training/Probe...-v0`; any command takes them.
"""

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

Obs = npt.NDArray[np.float32]
Step = tuple[Obs, float, bool, bool, dict[str, Any]]

# Asymmetric on purpose: an algorithm that assumes symmetric bounds cannot reach the optimum.
CONTINUOUS_LOW, CONTINUOUS_HIGH = (0.0, -3.0), (1.0, 10.0)
CONTINUOUS_OPTIMUM = (0.75, 5.0)


class ProbeEnv(gymnasium.Env[Obs, Any]):
    """Base class of the probes: an observation of one number, and episodes of known length."""

    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space: spaces.Space[Any] = spaces.Discrete(2)
    random_start = False
    """Whether episodes start at -1 or +1, drawn with their seed; otherwise they start at 0."""

    def __init__(self) -> None:
        self.value = 0.0

    def observe(self) -> Obs:
        """Return the current number in a new array."""
        return np.array([self.value], dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed, options=options)
        self.value = float(self.np_random.integers(2) * 2 - 1) if self.random_start else 0.0
        return self.observe(), {}


class ConstantRewardProbe(ProbeEnv):
    """One step, reward 1: V(0) = 1."""

    def step(self, action: Any) -> Step:
        """End the episode."""
        del action
        return self.observe(), 1.0, True, False, {}


class ObservedRewardProbe(ProbeEnv):
    """One step, reward equal to the observation: V(o) = o."""

    random_start = True

    def step(self, action: Any) -> Step:
        """End the episode."""
        del action
        return self.observe(), self.value, True, False, {}


class DiscountProbe(ProbeEnv):
    """Two steps, reward 1 after the second: V(1) = 1, V(0) = gamma."""

    def step(self, action: Any) -> Step:
        """Move from 0 to 1, then end."""
        del action
        if self.value == 1.0:
            return self.observe(), 1.0, True, False, {}
        self.value = 1.0
        return self.observe(), 0.0, False, False, {}


class ActionRewardProbe(ProbeEnv):
    """One step, reward +1 for action 1 and -1 for action 0: the best return is 1."""

    def step(self, action: Any) -> Step:
        """Reward the action and end."""
        return self.observe(), 1.0 if action == 1 else -1.0, True, False, {}


class MatchProbe(ProbeEnv):
    """One step, reward +1 if the action matches the sign of the observation, else -1: the best return is 1."""

    random_start = True

    def step(self, action: Any) -> Step:
        """Reward the match and end."""
        return self.observe(), 1.0 if (action == 1) == (self.value > 0) else -1.0, True, False, {}


class TimeLimitProbe(ProbeEnv):
    """Reward 1 for ever, cut by a time limit of 5 steps that the observation does not show: V = 1 / (1 - gamma)."""

    def __init__(self) -> None:
        super().__init__()
        self.elapsed = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        """Start an episode and the count of its steps."""
        self.elapsed = 0
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Step:
        """Count towards the limit."""
        del action
        self.elapsed += 1
        return self.observe(), 1.0, False, self.elapsed == 5, {}


class ContinuousTimeLimitProbe(TimeLimitProbe):
    """`TimeLimitProbe` with a continuous action that changes nothing."""

    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)


class ContinuousProbe(ProbeEnv):
    """One step, asymmetric bounds, reward = -(squared distance to a point inside): the best return is 0."""

    action_space = spaces.Box(np.array(CONTINUOUS_LOW, np.float32), np.array(CONTINUOUS_HIGH, np.float32))

    def step(self, action: Any) -> Step:
        """Reward closeness to the optimum, in units of half of each dimension's range."""
        half_range = (np.array(CONTINUOUS_HIGH) - np.array(CONTINUOUS_LOW)) / 2
        distance = (np.asarray(action) - np.array(CONTINUOUS_OPTIMUM)) / half_range
        return self.observe(), -float(np.square(distance).sum()), True, False, {}


class ContinuousMatchProbe(ContinuousProbe):
    """`ContinuousProbe` in which only the first dimension counts, with optimum 0.25 or 0.75 by observation."""

    random_start = True

    def step(self, action: Any) -> Step:
        """Reward closeness to the optimum in the first dimension."""
        distance = (float(action[0]) - (0.5 + 0.25 * self.value)) / 0.5
        return self.observe(), -(distance**2), True, False, {}


PROBES: dict[str, type[ProbeEnv]] = {
    f"rl_training/{probe.__name__}-v0": probe
    for probe in (
        ConstantRewardProbe,
        ObservedRewardProbe,
        DiscountProbe,
        ActionRewardProbe,
        MatchProbe,
        TimeLimitProbe,
        ContinuousTimeLimitProbe,
        ContinuousProbe,
        ContinuousMatchProbe,
    )
}


def register_probes() -> None:
    """Register the probes with Gymnasium; further calls change nothing."""
    for env_id, probe in PROBES.items():
        if env_id not in gymnasium.registry:
            gymnasium.register(env_id, entry_point=f"{__name__}:{probe.__name__}")
