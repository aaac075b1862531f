"""Environments with one fault each, and the sound one they are made from; importing this registers them."""

import os
import random
import threading
import time
import warnings
from multiprocessing import parent_process
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

LIMIT = 40


class WalkEnv(gymnasium.Env[Any, Any]):
    """A random walk with a goal on either side: a function of its seed, without any fault."""

    action_space: spaces.Space[Any] = spaces.Box(-1.0, 1.0, (1,), np.float32)
    observation_space: spaces.Space[Any] = spaces.Box(-10.0, 10.0, (2,), np.float32)

    def __init__(self) -> None:
        self.position = 0.0
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed, options=options)
        self.position, self.steps = float(self.np_random.uniform(-1.0, 1.0)), 0
        return self.observe(), {}

    def observe(self) -> Any:
        return np.array([self.position, min(self.steps / LIMIT, 1.0)], np.float32)

    def noise(self) -> float:
        return float(self.np_random.normal())

    def step(self, action: Any) -> Any:
        self.steps += 1
        self.position += 0.1 * float(action[0]) + 0.1 * self.noise()
        return self.observe(), -abs(self.position), abs(self.position) > 1.5, False, {}


class UnseededEnv(WalkEnv):
    """Has a generator of its own that no seed reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.own = np.random.default_rng()

    def noise(self) -> float:
        return float(self.own.normal())


class GlobalGeneratorEnv(WalkEnv):
    """Draws from Python's global generator."""

    def noise(self) -> float:
        return random.random() - 0.5


class GlobalSeedEnv(GlobalGeneratorEnv):
    """Seeds the global generator, so that two envs disturb each other."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        random.seed(seed)
        return super().reset(seed=seed, options=options)


class WallClockEnv(WalkEnv):
    """Moves with the time of day."""

    def noise(self) -> float:
        return time.perf_counter() % 1.0


class SharedStateEnv(WalkEnv):
    """Has one wind for all copies."""

    wind: ClassVar[list[float]] = [0.0]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.wind[0] = 0.0
        return super().reset(seed=seed, options=options)

    def noise(self) -> float:
        self.wind[0] = 0.9 * self.wind[0] + super().noise()
        return self.wind[0]


class KeepsPositionEnv(WalkEnv):
    """Goes on where the last episode ended."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        before = self.position
        super().reset(seed=seed, options=options)
        self.position = float(np.clip(0.5 * self.position + 0.5 * before, -1.0, 1.0))
        return self.observe(), {}


class HiddenWearEnv(WalkEnv):
    """Wears out over its whole life; observations show it only late."""

    wear = 0

    def step(self, action: Any) -> Any:
        self.wear += 1
        if self.wear > 250:
            action = 0.5 * action
        return super().step(action)


class NanObsEnv(WalkEnv):
    """Loses a component after some steps."""

    def observe(self) -> Any:
        obs = super().observe()
        obs[0] = np.nan if self.steps == 12 else obs[0]
        return obs


class InfRewardEnv(WalkEnv):
    """Divides by a distance that becomes zero."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, -np.inf if self.steps == 12 else reward, terminated, truncated, info


class OutsideEnv(WalkEnv):
    """Declares less than it shows."""

    observation_space = spaces.Box(-1.2, 1.2, (2,), np.float32)


class ShapeEnv(WalkEnv):
    """Shows one component more from some step on."""

    def observe(self) -> Any:
        return np.append(super().observe(), np.float32(0.0)) if self.steps > 5 else super().observe()


class KindEnv(WalkEnv):
    """Declares integers and shows fractions."""

    observation_space = spaces.Box(-10, 10, (2,), np.int64)


class DoubleEnv(WalkEnv):
    """Shows float64 and declares float32."""

    def observe(self) -> Any:
        return super().observe().astype(np.float64)


class DisguisedLimitEnv(WalkEnv):
    """Reports its time limit as the end of the task."""

    def step(self, action: Any) -> Any:
        obs, reward, _, truncated, info = super().step(action)
        return obs, reward, self.steps == LIMIT, truncated, info


class PiledUpLimitEnv(WalkEnv):
    """Reports its time limit as the end of the task too, but sometimes reaches its goal before."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated or self.steps == LIMIT, truncated, info


class EndlessWalkEnv(WalkEnv):
    """Never ends."""

    def step(self, action: Any) -> Any:
        obs, reward, _, truncated, info = super().step(action)
        self.position = float(np.clip(self.position, -1.5, 1.5))
        return obs, reward, False, truncated, info


class BothFlagsEnv(WalkEnv):
    """Does not tell a goal from a limit."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, _, info = super().step(action)
        return obs, reward, terminated, terminated, info


class NoneFlagEnv(WalkEnv):
    """Gives None in place of the flag `truncated`."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, _, info = super().step(action)
        return obs, reward, terminated, None, info


class AliasedEnv(WalkEnv):
    """Writes every observation into the same array."""

    def __init__(self) -> None:
        super().__init__()
        self.shown = np.zeros(2, np.float32)

    def observe(self) -> Any:
        self.shown[:] = super().observe()
        return self.shown


class TwoBuffersEnv(AliasedEnv):
    """Writes observations into two arrays in turn, as a new view each time."""

    def __init__(self) -> None:
        super().__init__()
        self.buffers = np.zeros((2, 2), np.float32)

    def observe(self) -> Any:
        self.buffers[self.steps % 2] = super().observe()
        return self.buffers[self.steps % 2]


class ActionWriterEnv(WalkEnv):
    """Clips its action in place."""

    def step(self, action: Any) -> Any:
        action *= 0.5
        return super().step(action)


class BoundCrashEnv(WalkEnv):
    """Takes every action but the highest."""

    def step(self, action: Any) -> Any:
        if action[0] >= 1.0:
            raise ValueError("too far")
        return super().step(action)


class BoundNanEnv(WalkEnv):
    """Takes the logarithm of what is left to the bound."""

    def step(self, action: Any) -> Any:
        obs, _, terminated, truncated, info = super().step(action)
        left = 1.0 - float(action[0])
        return obs, float(np.log(left)) if left else -np.inf, terminated, truncated, info


class MissingActionEnv(WalkEnv):
    """Declares an action that it does not know."""

    action_space = spaces.Discrete(300)

    def step(self, action: Any) -> Any:
        if action == 299:
            raise KeyError(int(action))
        return super().step([0.0])


class MainProcessEnv(WalkEnv):
    """Works in the main process only."""

    def __init__(self) -> None:
        super().__init__()
        if parent_process() is not None:
            raise RuntimeError("needs the main process")


class DyingWorkerEnv(WalkEnv):
    """Ends its process, unless that is the main one."""

    def step(self, action: Any) -> Any:
        if parent_process() is not None:
            os._exit(3)
        return super().step(action)


class StuckWorkerEnv(WalkEnv):
    """Waits for ever when it is closed in a worker."""

    def close(self) -> None:
        if parent_process() is not None:
            threading.Event().wait()


class OtherInWorkerEnv(WalkEnv):
    """Moves differently in a worker."""

    def noise(self) -> float:
        return super().noise() + (0.0 if parent_process() is None else 0.001)


class NoInfoEnv(WalkEnv):
    """Resets with the interface of old Gym versions."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=seed, options=options)[0]


class NoSeedEnv(WalkEnv):
    """Takes no seed."""

    def reset(self) -> Any:  # type: ignore[override]  # the fault
        return super().reset()


class FourValuesEnv(WalkEnv):
    """Steps with the interface of old Gym versions."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, _, info = super().step(action)
        return obs, reward, terminated, info


class HugeObsEnv(WalkEnv):
    """Shows metres and nanometres."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def observe(self) -> Any:
        return super().observe() * np.array([1e9, 1.0], np.float32)


class CodesEnv(WalkEnv):
    """Shows codes of kinds of things as bytes, and allows all bytes."""

    observation_space = spaces.Dict(codes=spaces.Box(0, 255, (9,), np.uint8), place=WalkEnv.observation_space)

    def observe(self) -> Any:
        return {"codes": np.full(9, 4 + self.steps % 3, np.uint8), "place": super().observe()}


class HugeRewardEnv(WalkEnv):
    """Rewards in millions."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, 1e6 * reward, terminated, truncated, info


class ZeroRewardEnv(WalkEnv):
    """Gives a reward that random actions never find."""

    def step(self, action: Any) -> Any:
        obs, _, terminated, truncated, info = super().step(action)
        return obs, 0.0, terminated, truncated, info


class SameReturnEnv(EndlessWalkEnv):
    """Rewards every step alike, in episodes that are all as long."""

    def step(self, action: Any) -> Any:
        obs, _, terminated, truncated, info = super().step(action)
        return obs, 1.0, terminated, truncated, info


class ArrayRewardEnv(WalkEnv):
    """Rewards with an array."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, np.array([reward]), terminated, truncated, info


class RaisingEnv(WalkEnv):
    """Raises now and then."""

    def step(self, action: Any) -> Any:
        if self.steps == 33:
            raise IndexError("off the map")
        return super().step(action)


class WarningEnv(WalkEnv):
    """Warns where it should not."""

    def step(self, action: Any) -> Any:
        warnings.warn("the solver did not converge", RuntimeWarning, stacklevel=2)
        return super().step(action)


class StateEnv(KeepsPositionEnv):
    """Offers its state, all of it, so that what reset leaves behind does not matter in an episode."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.position = 0.0
        return super().reset(seed=seed, options=options)

    def get_state(self) -> Any:
        return {"position": self.position, "steps": self.steps, "generator": str(self.generator_state())}

    def generator_state(self) -> Any:
        return self.np_random.bit_generator.state["state"]["state"]

    def set_state(self, state: Any) -> None:
        self.position, self.steps = state["position"], state["steps"]
        full = dict(self.np_random.bit_generator.state)
        full["state"] = {**full["state"], "state": int(state["generator"])}
        self.np_random.bit_generator.state = full


class ForgetfulStateEnv(StateEnv):
    """Offers a state without its generator's."""

    def get_state(self) -> Any:
        return {"position": self.position, "steps": self.steps}

    def set_state(self, state: Any) -> None:
        self.position, self.steps = state["position"], state["steps"]


class ObjectStateEnv(StateEnv):
    """Offers a state that no checkpoint takes."""

    def get_state(self) -> Any:
        return self.np_random


class SequenceObsEnv(WalkEnv):
    """Shows a sequence, which no network takes."""

    observation_space = spaces.Sequence(WalkEnv.observation_space)

    def observe(self) -> Any:
        return (super().observe(),)


class UnboundedActionEnv(WalkEnv):
    """Declares actions without bounds."""

    action_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)


class BadCloseEnv(WalkEnv):
    """Cannot be closed."""

    def close(self) -> None:
        raise RuntimeError("still busy")


class CountedEnv(WalkEnv):
    """Counts how many copies are open."""

    open_envs: ClassVar[list[int]] = [0]

    def __init__(self) -> None:
        super().__init__()
        self.open_envs[0] += 1

    def close(self) -> None:
        self.open_envs[0] -= 1


class CountedRaisingEnv(CountedEnv):
    """Counts how many copies are open, and raises with every step from the third on."""

    def step(self, action: Any) -> Any:
        if self.steps == 2:
            raise RuntimeError("broken")
        return super().step(action)


UNLIMITED = (DisguisedLimitEnv, PiledUpLimitEnv, EndlessWalkEnv, BothFlagsEnv)


def _register() -> None:
    for env in [each for each in globals().values() if isinstance(each, type) and issubclass(each, WalkEnv)]:
        limit = None if env in UNLIMITED else LIMIT
        gymnasium.register(f"bad/{env.__name__}-v0", f"{__name__}:{env.__name__}", max_episode_steps=limit)


_register()
