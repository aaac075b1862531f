"""Environments that tests of several layers use; importing this registers them with Gymnasium."""

import ctypes
import faulthandler
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
from chaos_envs import HiddenWalk
from gymnasium import spaces


class CountingEnv(gymnasium.Env[Any, Any]):
    """Shows (episode number, step), reuses one array for every observation, and ends after `limit` steps.

    `ending` is "terminated", "truncated" or "both".
    """

    action_space = spaces.Discrete(2)
    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def __init__(self, limit: int = 3, ending: str = "terminated") -> None:
        self.limit, self.ending = limit, ending
        self.shown = np.array([-1.0, 0.0], np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.shown[:] = self.shown[0] + 1.0, 0.0
        return self.shown, {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.shown[1] += 1.0
        ended = bool(self.shown[1] == self.limit)
        terminated = ended and self.ending != "truncated"
        truncated = ended and self.ending != "terminated"
        return self.shown, 1.0 + float(action), terminated, truncated, {}


class SeedEnv(CountingEnv):
    """Shows the number its generator draws first in the episode; draws another with every step."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.shown[0] = self.np_random.random()
        return self.shown, {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.np_random.random()
        return super().step(action)


class ReportingEnv(SeedEnv):
    """Reports what it drew as numbers of several kinds, beside what cannot be logged; `extra` is how many more."""

    def __init__(self, limit: int = 3, extra: int = 0) -> None:
        super().__init__(limit)
        self.extra = extra

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, _ = super().step(action)
        drawn = float(self.shown[0])
        info = {"is_success": np.bool_(drawn > 0.5), "drawn": drawn if drawn > 0.5 else 0, "a/b c": np.float32(drawn)}
        ignored = {"nan": np.nan, "word": "x", "path": np.zeros(2), "_own": 1, "TimeLimit.truncated": True}
        return obs, reward, terminated, truncated, {**info, **ignored, **dict.fromkeys(map(str, range(self.extra)), 1)}


class DoubleEnv(SeedEnv):
    """Draws numbers that its space of single precision cannot hold."""

    def __init__(self) -> None:
        super().__init__(limit=9)
        self.shown = self.shown.astype(np.float64)


class EchoEnv(gymnasium.Env[Any, Any]):
    """Shows the action it received last: of `kind` "box" with asymmetric bounds, or "discrete" and counted from 5."""

    def __init__(self, kind: str = "box") -> None:
        box = spaces.Box(np.array([0.0, -3.0], np.float32), np.array([1.0, 10.0], np.float32))
        self.action_space: spaces.Space[Any] = box if kind == "box" else spaces.Discrete(3, start=5)
        self.observation_space = spaces.Box(-np.inf, np.inf, box.shape if kind == "box" else (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        return np.zeros(self.observation_space.shape or (), np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.array(action, np.float32).reshape(self.observation_space.shape or ()), 0.0, False, False, {}


gymnasium.register("tests/Counting-v0", f"{__name__}:CountingEnv")
gymnasium.register("tests/Echo-v0", f"{__name__}:EchoEnv")
gymnasium.register("tests/Seed-v0", f"{__name__}:SeedEnv")
gymnasium.register("tests/Reporting-v0", f"{__name__}:ReportingEnv")


class StepEnv(gymnasium.Env[Any, Any]):
    """Shows how many steps it has taken; its episodes never end."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return np.array([self.steps], np.float32), 1.0, False, False, {}


class FailingEnv(StepEnv):
    """Raises with its `fails_at`th step, or with its reset for 0, the first time that this happens in the process."""

    failed: ClassVar[set[int]] = set()

    def __init__(self, fails_at: int) -> None:
        self.fails_at = fails_at

    def fail_once(self) -> None:
        if self.fails_at not in self.failed:
            self.failed.add(self.fails_at)
            raise RuntimeError(f"broken at step {self.fails_at}")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if self.fails_at == 0:
            self.fail_once()
        return super().reset(seed=seed, options=options)

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.steps + 1 == self.fails_at:
            self.fail_once()
        obs, reward, terminated, _, info = super().step(action)
        return obs, reward, terminated, self.steps >= 50, info


class BadSeedEnv(StepEnv):
    """Raises with step `fails_at` of every episode with the seed `bad_seed`, or with its reset for 0."""

    def __init__(self, bad_seed: int, fails_at: int) -> None:
        self.bad_seed, self.fails_at = bad_seed, fails_at

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        result = super().reset(seed=seed, options=options)
        self.bad = seed == self.bad_seed
        self.fail_if_bad()
        return result

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, _, info = super().step(action)
        self.fail_if_bad()
        return obs, reward, terminated, self.steps >= 10, info

    def fail_if_bad(self) -> None:
        if self.bad and self.steps == self.fails_at:
            raise RuntimeError("a bad seed")


class EndlessEnv(StepEnv):
    """Sends SIGINT to its own process with its 100th step, which only an evaluation lets it reach in one go."""

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.steps == 99:
            os.kill(os.getpid(), signal.SIGINT)
        return super().step(action)


class SignallingEnv(HiddenWalk):
    """Sends SIGTERM to its process at the `signal_at`th step, counted over all envs of this class in the process."""

    signal_at: ClassVar[int] = -1
    steps_of_all: ClassVar[int] = 0

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        SignallingEnv.steps_of_all += 1
        if SignallingEnv.steps_of_all == SignallingEnv.signal_at:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().step(action)


class BreakingEnv(HiddenWalk):
    """Raises at the `breaks_at`th step, counted over all envs of this class in the process."""

    breaks_at: ClassVar[int] = -1
    steps_of_all: ClassVar[int] = 0

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        BreakingEnv.steps_of_all += 1
        if BreakingEnv.steps_of_all == BreakingEnv.breaks_at:
            raise OSError("lost its simulator")
        return super().step(action)


class OrderedEnv(HiddenWalk):
    """Obeys the file in `orders` that is named after its process, at the 40th step of all envs of this class there.

    The file may say "fail" or "kill". A FIFO there holds the env up until its writer closes it.
    """

    steps_of_all: ClassVar[int] = 0

    def __init__(self, orders: str) -> None:
        super().__init__()
        self.order = Path(orders) / multiprocessing.current_process().name

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        OrderedEnv.steps_of_all += 1
        if OrderedEnv.steps_of_all == 40 and self.order.exists():
            order = self.order.read_text()
            if order == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if order == "fail":
                raise OSError("lost its simulator")
        return super().step(action)


class WanderingEnv(CountingEnv):
    """Changes the working directory with every episode, first when it is made."""

    def __init__(self, away: str) -> None:
        super().__init__()
        self.away = away
        os.chdir(away)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        os.chdir(self.away)
        shown, info = super().reset(seed=seed, options=options)
        self.shown[0] = 0.0
        return shown, info


class PausedEnv(HiddenWalk):
    """Waits at the FIFO `gate`, if there is one, at the step whose number is in the file `gate`.at.

    The steps of all envs of this class in the process are counted. Step 0 is the env's construction. `starts` is a
    program that it starts and never ends: "child", or "session" for one in a session of its own, "orphan" for one whose
    parent ends at once, "fork" for a copy of the process itself.
    """

    steps_of_all: ClassVar[int] = 0

    def __init__(self, gate: str, starts: str = "") -> None:
        super().__init__()
        self.gate, self.at = Path(gate), Path(f"{gate}.at")
        self.wait_at(0)
        if starts in ("child", "session"):
            self.program = subprocess.Popen(["sleep", "600.125"], start_new_session=starts == "session")
        if starts == "orphan":
            subprocess.run("sleep 600.125 &", shell=True, check=True)
        if starts == "fork" and os.fork() == 0:
            time.sleep(600.125)

    def wait_at(self, number: int) -> None:
        if self.gate.exists() and int(self.at.read_text()) == number:
            self.gate.read_text()

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        PausedEnv.steps_of_all += 1
        self.wait_at(PausedEnv.steps_of_all)
        return super().step(action)


class UnrepeatableEnv(gymnasium.Env[Any, Any]):
    """Shows how many steps all envs of this class have taken in the process; episodes have five steps."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    steps_of_all: ClassVar[int] = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.steps = 0
        return np.array([UnrepeatableEnv.steps_of_all], np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        UnrepeatableEnv.steps_of_all += 1
        return np.array([UnrepeatableEnv.steps_of_all], np.float32), 1.0, self.steps == 5, False, {}


class StateEnv(HiddenWalk):
    """Gives and takes its state, and draws from a generator that no seed reaches: only its state brings it back."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = super().reset(seed=seed, options=options)
        if not hasattr(self, "noise"):
            self.noise = np.random.default_rng()
        return obs, info

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.hidden += float(self.noise.normal())
        return super().step(action)

    def get_state(self) -> dict[str, Any]:
        generators = [generator.bit_generator.state for generator in (self.np_random, self.noise)]
        return {"hidden": np.float64(self.hidden), "steps": self.steps, "generators": generators}

    def set_state(self, state: dict[str, Any]) -> None:
        self.hidden, self.steps = float(state["hidden"]), state["steps"]
        self.np_random.bit_generator.state, self.noise.bit_generator.state = state["generators"]


class RewardedEnv(CountingEnv):
    """Pays more once an episode of at least ten steps has had no action but 1."""

    def __init__(self) -> None:
        super().__init__(limit=12)
        self.bonus, self.ones = 0.0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.bonus, self.ones = (1.0 if self.ones >= 10 else self.bonus), 0
        self.shown[0] = -1.0
        return super().reset(seed=seed, options=options)

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.ones = self.ones + 1 if action == 1 else -100
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward + self.bonus, terminated, truncated, info


class SlowEnv(StepEnv):
    """Works for a while in every step."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        until = time.perf_counter() + self.seconds
        while time.perf_counter() < until:
            pass
        return super().step(action)


class FaultyEnv(gymnasium.Env[Any, Any]):
    """A random walk with one fault, at step `at` of the `episode`th episode of an env (0 is its reset).

    The fault happens once: the first env that comes there removes the file `armed`. Without that file there is none.
    With `always`, the file stays.
    """

    action_space = spaces.Discrete(2)
    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def __init__(
        self, fault: str, armed: str, at: int, episode: int = 1, limit: int = 20, always: bool = False
    ) -> None:
        self.fault, self.armed, self.at, self.episode, self.limit = fault, Path(armed), at, episode, limit
        self.always = always
        self.episodes = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.steps, self.episodes, self.walk = 0, self.episodes + 1, self.np_random.normal(size=2)
        return self.shown(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        self.walk = self.walk + self.np_random.normal(size=2) + 0.1 * action
        shown = self.shown()
        reward = float("nan") if self.fault == "nan reward" and shown is None else float(self.walk[0])
        return self.walk.astype(np.float32) if shown is None else shown, reward, False, self.steps >= self.limit, {}

    def shown(self) -> Any:
        """Return the observation: the walk, a wrong one at the planned step, or none if the fault is in the reward."""
        if (self.steps, self.episodes) == (self.at, self.episode) and self.armed.exists():
            if not self.always:
                self.armed.unlink()
            wrong = {
                "nan": np.array([0.0, np.nan], np.float32),
                "shape": np.zeros(3, np.float32),
                "dtype": np.zeros(2, "c8"),
            }
            if self.fault in wrong:
                return wrong[self.fault]
            if self.fault == "nan reward":
                return None
            misbehave(self.fault)
        return self.walk.astype(np.float32)


def misbehave(fault: str) -> None:
    """Do what an env should not do."""
    if fault == "raise":
        raise RuntimeError("lost its simulator")
    if fault == "sys.exit":
        sys.exit(0)
    if fault == "os._exit":
        os._exit(0)
    if fault == "abort":
        faulthandler.disable()  # pytest's would print the stacks of all threads
        os.abort()
    if fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if fault == "fork":
        child = os.fork()
        if child == 0:
            os._exit(0)
        assert os.waitpid(child, 0) == (child, 0)
    hang(fault)


def hang(fault: str) -> None:
    """Hang forever, in one of several ways."""
    if fault == "sleep":
        time.sleep(600.0)
    if fault == "lock":
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    while fault == "swallow":
        try:
            time.sleep(600.0)
        except Exception:
            continue
    while fault == "loop":
        pass
    if fault == "C code with the GIL":  # no other thread of the process runs either
        ctypes.PyDLL(None).sleep(600)
    if fault == "C code":  # a mutex that is locked twice; no signal ends that
        mutex, library = ctypes.create_string_buffer(64), ctypes.CDLL(None)
        library.pthread_mutex_lock(mutex)
        library.pthread_mutex_lock(mutex)


gymnasium.register("tests/Faulty-v0", f"{__name__}:FaultyEnv")
gymnasium.register("tests/Slow-v0", f"{__name__}:SlowEnv")
gymnasium.register("tests/Signalling-v0", f"{__name__}:SignallingEnv")
gymnasium.register("tests/Breaking-v0", f"{__name__}:BreakingEnv")
gymnasium.register("tests/Wandering-v0", f"{__name__}:WanderingEnv")
gymnasium.register("tests/Paused-v0", f"{__name__}:PausedEnv")
gymnasium.register("tests/Ordered-v0", f"{__name__}:OrderedEnv")
gymnasium.register("tests/Unrepeatable-v0", f"{__name__}:UnrepeatableEnv")
gymnasium.register("tests/State-v0", f"{__name__}:StateEnv", max_episode_steps=40)
gymnasium.register("tests/BadSeed-v0", f"{__name__}:BadSeedEnv")
gymnasium.register("tests/Failing-v0", f"{__name__}:FailingEnv")
gymnasium.register("tests/Endless-v0", f"{__name__}:EndlessEnv")
