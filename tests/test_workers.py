import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
from conftest import MakeConfig, wait_until
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit

from rl_training.envs.factory import make_vector_env
from rl_training.envs.restore import same_values
from rl_training.envs.vector.process import AsyncEpisodeVectorEnv
from rl_training.envs.vector.protocol import VectorEnv
from rl_training.envs.vector.sync import SyncEpisodeVectorEnv
from rl_training.errors import CheckpointError, EnvironmentSetupError, EnvironmentStepError, TrainingStateError

SOON = 150.0  # seconds within which every accident is noticed, on a busy machine too
PATIENT = 600.0  # seconds that a step may take where no test waits for a timeout
ALWAYS = 100


class StubbornError(Exception):
    """Cannot be pickled."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.stubborn = lambda: None


class WalkEnv(gymnasium.Env[Any, Any]):
    """A random walk of random length. Does `mischief` at the planned steps of any episode (0 is its reset), in turn.

    What has been done is remembered in files below `memory`, so that a new process knows it too. The first
    `calm_episodes` of an env are without mischief.
    """

    action_space = spaces.Discrete(3)
    observation_space: spaces.Space[Any] = spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def __init__(
        self, mischief: str = "none", plan: Sequence[int] = (), memory: Path = Path(), calm_episodes: int = 0
    ) -> None:
        self.mischief, self.plan, self.memory, self.calm_episodes = mischief, plan, memory, calm_episodes
        self.walk, self.steps, self.episodes = np.zeros(2), 0, 0

    def due(self) -> bool:
        if not self.plan or self.episodes <= self.calm_episodes:
            return False
        number = len(list(self.memory.iterdir()))
        if number >= len(self.plan) or self.plan[number] != self.steps:
            return False
        try:
            (self.memory / str(number)).touch(exist_ok=False)
        except FileExistsError:  # another env was quicker
            return False
        return True

    def misbehave(self) -> None:
        if self.mischief == "exit":
            os._exit(3)
        if self.mischief == "hang":
            time.sleep(600.0)
        if self.mischief == "raise":
            raise RuntimeError("100% broken: %s %d")
        if self.mischief == "stubborn":
            raise StubbornError("stays here")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.walk, self.steps = self.np_random.normal(size=2), 0
        self.episodes += 1
        if self.due():
            self.misbehave()
        return self.walk, {"start": self.walk[0]}  # float64: batches are of the space's type

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.steps += 1
        due = self.due()
        if due:
            self.misbehave()
        self.walk = self.walk + self.np_random.normal(size=2) + action
        spoilt: dict[str, tuple[Any, float]] = {
            "nan": (np.array([0.0, np.nan]), 0.0),
            "inf": (self.walk, np.inf),
            "shape": (np.zeros((2, 1)), 0.0),
            "scalar": (0.0, 0.0),
            "type": (np.zeros(2, np.complex64), 0.0),
        }
        obs, reward = spoilt[self.mischief] if due and self.mischief in spoilt else (self.walk, self.walk[0])
        ended = bool(self.np_random.random() < 0.1)
        info = {"far": float(self.walk[1])} if self.walk[1] > 0 else {}
        return obs, reward, ended, False, info


class SavingEnv(WalkEnv):
    """Gives its state; the time limit around it does not."""

    def get_state(self) -> dict[str, Any]:
        return {"walk": self.walk, "steps": self.steps, "generator": json.dumps(self.np_random.bit_generator.state)}

    def set_state(self, state: dict[str, Any]) -> None:
        self.walk, self.steps = state["walk"], state["steps"]
        self.np_random.bit_generator.state = json.loads(state["generator"])


class OddStateEnv(SavingEnv):
    def get_state(self) -> dict[str, Any]:
        return {"odd": {1, 2}}


class DriftingEnv(WalkEnv):
    """Is no function of its seed and actions."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return super().reset(seed=None, options=options)


class OtherSpaceEnv(WalkEnv):
    """Has another space in every process but its first."""

    def __init__(self, owner: int) -> None:
        super().__init__()
        if os.getpid() != owner:
            self.action_space = spaces.Discrete(4)


class LateEnv(WalkEnv):
    """Hangs while it is made, in every process but its first."""

    def __init__(self, owner: int) -> None:
        super().__init__()
        if os.getpid() != owner:
            time.sleep(60.0)


class HangingEnv(WalkEnv):
    def __init__(self, memory: str) -> None:
        super().__init__("hang", [1] * ALWAYS, Path(memory))


class StoppingEnv(WalkEnv):
    """Stops its owner, or itself too as Ctrl-Z does, for twice as long as a step may take, in the middle of a step."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if self.steps == 3:
            owner, worker = os.getppid(), os.getpid()
            self.waker = subprocess.Popen(["sh", "-c", f"sleep 3; kill -CONT {owner} {worker}"])
            os.kill(owner, signal.SIGSTOP)
            if self.mischief == "stop all":
                os.kill(worker, signal.SIGSTOP)
                time.sleep(0.5)
        return super().step(action)


Shown = list[Any]
Disturb = Callable[[int, VectorEnv], None]


def walks(kind: type[WalkEnv] = WalkEnv, count: int = 4, **env: Any) -> list[Callable[[], Any]]:
    return [lambda: TimeLimit(kind(**env), 30)] * count


def in_processes(count: int = 4, options: dict[str, Any] | None = None, **env: Any) -> AsyncEpisodeVectorEnv:
    return AsyncEpisodeVectorEnv(walks(count=count, **env), 7, **{"step_timeout": PATIENT, **(options or {})})


def in_process(count: int = 4, **env: Any) -> SyncEpisodeVectorEnv:
    return SyncEpisodeVectorEnv(walks(count=count, **env), 7)


def go_on(envs: VectorEnv, steps: range, disturb: Disturb = lambda step, envs: None) -> Shown:
    """All that a fixed sequence of actions shows; ended envs are reset."""
    shown: Shown = []
    for step in steps:
        disturb(step, envs)
        *result, infos = envs.step(np.random.default_rng(step).integers(2, size=envs.num_envs))
        infos.get("episode", {}).pop("t", None)  # wall time
        shown += [*result, infos]
        ended = result[2] | result[3]
        if ended.any():
            disturb(step, envs)
            shown += envs.reset(options={"reset_mask": ended})
    return shown


def play(envs: VectorEnv, steps: int = 40, disturb: Disturb = lambda step, envs: None) -> Shown:
    with closing(envs):
        return [*envs.reset(), *go_on(envs, range(steps), disturb)]


def assert_same(left: Shown, right: Shown) -> None:
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        assert getattr(one, "dtype", None) == getattr(other, "dtype", None)
        assert same_values(one, other)


def kill_at(*steps: int, number: int = 1) -> Disturb:
    """Kill a worker before it steps, or before it resets when the step ends an episode."""

    def kill(step: int, envs: VectorEnv) -> None:
        assert isinstance(envs, AsyncEpisodeVectorEnv)
        if step in steps:
            envs.processes[number].kill()
            envs.processes[number].join()

    return kill


@pytest.mark.parametrize("envs_per_worker", [1, 2, 3])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "walk"])
def test_trajectories_are_those_of_envs_in_this_process(env_id: str, envs_per_worker: int) -> None:
    env_fns = walks() if env_id == "walk" else [partial(gymnasium.make, env_id)] * 4
    in_workers = AsyncEpisodeVectorEnv(env_fns, 7, envs_per_worker=envs_per_worker)
    assert len(in_workers.processes) == {1: 4, 2: 2, 3: 2}[envs_per_worker]
    shown = play(SyncEpisodeVectorEnv(env_fns, 7), 220)
    assert len(shown) > 2 + 5 * 220
    assert_same(play(in_workers, 220), shown)


def test_it_describes_itself_as_the_other_kind_does() -> None:
    sync, envs = in_process(), in_processes()
    with closing(sync), closing(envs):
        for name in ("num_envs", "single_observation_space", "observation_space", "single_action_space"):
            assert getattr(envs, name) == getattr(sync, name)
        assert (envs.action_space, envs.metadata, envs.render_mode) == (
            sync.action_space,
            sync.metadata,
            sync.render_mode,
        )


@pytest.mark.parametrize("space", [spaces.Discrete(5), spaces.Dict({"a": spaces.Discrete(5)})])
def test_other_observations_travel_too(space: spaces.Space[Any]) -> None:
    class OtherEnv(WalkEnv):
        observation_space = space

        def shown(self) -> Any:
            number = int(abs(self.walk[0])) % 5
            return number if isinstance(space, spaces.Discrete) else {"a": number}

        def reset(self, **options: Any) -> Any:
            super().reset(**options)
            return self.shown(), {}

        def step(self, action: Any) -> Any:
            return self.shown(), *super().step(action)[1:]

    shown = play(in_process(kind=OtherEnv))
    with pytest.warns(UserWarning, match="SIGKILL"):
        assert_same(play(in_processes(kind=OtherEnv), disturb=kill_at(3)), shown)


@pytest.mark.parametrize("envs_per_worker", [1, 2])
def test_a_killed_worker_changes_nothing_but_time(envs_per_worker: int) -> None:
    shown = play(in_process())
    started = time.monotonic()
    with pytest.warns(UserWarning, match="restarting it") as warned:
        again = play(in_processes(options={"envs_per_worker": envs_per_worker}), disturb=kill_at(6, 20))
    assert time.monotonic() - started < SOON
    assert_same(again, shown)
    assert len(warned) in (2, 3, 4)  # a step that ends an episode is disturbed twice
    text = str(warned[0].message)
    named = "(env 1) failed at env 1" if envs_per_worker == 1 else "(envs 2 to 3) failed at env 2"
    assert text.startswith(f"worker 1 {named}, episode ")
    assert "(seed " in text
    assert ", step " in text
    assert "with action " in text
    assert "it was killed by SIGKILL; restarting it (1 of at most 3 times in a row)" in text


CAUSES = {
    "exit": "its process exited with code 3",
    "hang": "no answer within 2 s",
    "raise": "RuntimeError: 100% broken: %s %d",
    "stubborn": "StubbornError: stays here",
}


@pytest.mark.parametrize("envs_per_worker", [1, 2])
@pytest.mark.parametrize("mischief", CAUSES)
def test_an_env_that_fails_once_changes_nothing_but_time(tmp_path: Path, mischief: str, envs_per_worker: int) -> None:
    shown = play(in_process())
    options = {"envs_per_worker": envs_per_worker, "step_timeout": 2.0 if mischief == "hang" else PATIENT}
    envs = in_processes(options=options, mischief=mischief, plan=(5,), memory=tmp_path)
    started = time.monotonic()
    with pytest.warns(UserWarning, match="restarting it") as warned:
        again = play(envs)
    assert time.monotonic() - started < SOON
    assert_same(again, shown)
    assert [CAUSES[mischief] in str(warning.message) for warning in warned] == [True]
    assert ", step 5 with action " in str(warned[0].message)


@pytest.mark.parametrize("mischief", ["exit", "raise"])
def test_an_accident_in_a_reset_changes_nothing_but_time(tmp_path: Path, mischief: str) -> None:
    shown = play(in_process())
    options = {"envs_per_worker": 2}
    envs = in_processes(options=options, mischief=mischief, plan=(0,), memory=tmp_path, calm_episodes=2)
    with pytest.warns(UserWarning, match=r"failed at env \d, episode 2 \(seed \d+\), reset: ") as warned:
        again = play(envs)
    assert_same(again, shown)
    assert len(warned) == 1


def test_three_accidents_in_a_row_change_nothing_but_time(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"episode 0 .*, step 5 with action ") as warned:
        again = play(in_processes(count=1, mischief="exit", plan=(5, 0, 2), memory=tmp_path))
    assert_same(again, play(in_process(count=1)))
    assert len(warned) == 3


def test_the_first_reset_may_fail_too(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"env \d, episode 0 \(seed \d+\), reset: its process exited with code 3"):
        again = play(in_processes(mischief="exit", plan=(0,), memory=tmp_path))
    assert_same(again, play(in_process()))


def test_an_env_that_raises_while_it_is_brought_back_is_tried_again(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="100% broken") as warned:
        again = play(in_processes(mischief="raise", plan=(5, 3), memory=tmp_path))
    assert_same(again, play(in_process()))
    assert len(warned) == 2


def test_an_env_that_always_raises_is_named_with_the_workers_traceback(tmp_path: Path) -> None:
    envs = in_processes(count=1, mischief="raise", plan=(5,) * ALWAYS, memory=tmp_path)
    with pytest.warns(UserWarning, match="100% broken") as warned, pytest.raises(EnvironmentStepError) as caught:
        play(envs)
    seed, action = envs.tracker.seeds[0], np.random.default_rng(4).integers(2, size=1)[0]
    place = f"env 0, episode 0 (seed {seed}), step 5 with action {action}"
    assert str(caught.value) == f"{place}: RuntimeError: 100% broken: %s %d (tried 2 times)"
    assert 'raise RuntimeError("100% broken: %s %d")' in str(caught.value.__cause__)
    assert "in misbehave" in str(caught.value.__cause__)
    assert len(warned) == 1  # the same error would come again, however often the worker is restarted


def test_the_first_failure_is_the_last_when_no_restarts_are_allowed(tmp_path: Path) -> None:
    envs = in_processes(options={"max_restarts": 0}, mischief="exit", plan=(5,), memory=tmp_path)
    with pytest.raises(EnvironmentStepError, match=r"step 5 with action \d: its process exited with code 3$"):
        play(envs)


def test_restarts_are_counted_in_a_row() -> None:
    disturb = kill_at(2, 5, 8, 11, 14)
    with pytest.warns(UserWarning, match="1 of at most 1 times"):
        again = play(in_processes(options={"max_restarts": 1}), disturb=disturb)
    assert_same(again, play(in_process()))


def test_an_env_that_cannot_be_brought_back_ends_the_run() -> None:
    envs = in_processes(kind=DriftingEnv)
    told = "env 1 could not be restored, because it is not a function of its seed and the actions kept: "
    with pytest.warns(UserWarning, match="SIGKILL"), pytest.raises(EnvironmentStepError, match=told):
        play(envs, disturb=kill_at(3))


@pytest.mark.parametrize("make", [in_process, in_processes])
@pytest.mark.parametrize(
    ("mischief", "told"),
    [
        ("nan", r"component \[1\] of the observation is nan"),
        ("inf", "the reward is inf"),
        ("shape", r"expected an observation of shape \(2,\) and type float32, got shape \(2, 1\) and type float64"),
        ("scalar", r"expected an observation of shape \(2,\) and type float32, got shape \(\) and type float64"),
        ("type", r"expected an observation of shape \(2,\) and type float32, got shape \(2,\) and type complex64"),
    ],
)
def test_what_is_no_observation_or_reward_is_named(
    make: Callable[..., VectorEnv], mischief: str, told: str, tmp_path: Path
) -> None:
    place = r"env \d, episode \d+ \(seed \d+\), step 5 with action \d"
    with pytest.raises(EnvironmentStepError, match=f"^{place}: {told}$"):
        play(make(mischief=mischief, plan=(5,), memory=tmp_path))


def stop_worker(envs: AsyncEpisodeVectorEnv) -> None:
    os.kill(envs.processes[0].pid or 0, signal.SIGSTOP)


def kill_worker(envs: AsyncEpisodeVectorEnv) -> None:
    envs.processes[0].kill()


def make_worker_hang(envs: AsyncEpisodeVectorEnv) -> None:
    with pytest.raises(EnvironmentStepError, match="no answer within"):
        go_on(envs, range(40))


@pytest.mark.parametrize("spoil", [kill_worker, stop_worker, make_worker_hang])
def test_closing_never_hangs(spoil: Callable[[AsyncEpisodeVectorEnv], None], tmp_path: Path) -> None:
    options = {"step_timeout": 0.5, "max_restarts": 0}
    envs = in_processes(options=options, mischief="hang", plan=(3,), memory=tmp_path)
    envs.reset()
    spoil(envs)
    started = time.monotonic()
    envs.close()
    assert time.monotonic() - started < SOON
    assert not any(process.is_alive() for process in envs.processes)
    with pytest.raises(TrainingStateError, match="closed"):
        envs.reset()


def test_a_stopped_worker_is_replaced() -> None:
    def stop(step: int, envs: VectorEnv) -> None:
        assert isinstance(envs, AsyncEpisodeVectorEnv)
        if step == 5:
            stop_worker(envs)

    with pytest.warns(UserWarning, match="no answer within 0.5 s"):
        again = play(in_processes(options={"step_timeout": 0.5}), steps=8, disturb=stop)
    assert_same(again, play(in_process(), steps=8))


STOPPED = """
import sys, warnings
from test_workers import StoppingEnv, assert_same, in_process, in_processes, play
warnings.simplefilter("error")
envs = in_processes(count=1, options={"step_timeout": 1.5}, kind=StoppingEnv, mischief=sys.argv[1])
assert_same(play(envs, 8), play(in_process(count=1), 8))
"""


@pytest.mark.slow
@pytest.mark.usefixtures("importable")
@pytest.mark.parametrize("what", ["stop all", "stop owner"])
def test_time_in_which_the_owner_was_stopped_does_not_count(what: str) -> None:
    subprocess.run([sys.executable, "-c", STOPPED, what], check=True, timeout=120.0)


def test_envs_that_nobody_needs_any_more_leave_no_process() -> None:
    envs = in_processes()
    processes = envs.processes
    del envs
    gc.collect()
    assert not any(process.is_alive() for process in processes)


SCRIPT = """
import os, signal, sys, time
from pathlib import Path
from test_workers import in_processes, stop_worker
envs = in_processes(mischief="hang", plan=(1,), memory=Path(sys.argv[2]))
envs.reset()
print(*(process.pid for process in envs.processes), flush=True)
if sys.argv[1] == "idle":
    time.sleep(600.0)
elif sys.argv[1] == "hung":
    envs.step([0, 0, 0, 0])
else:
    stop_worker(envs)
"""


def start_owner(does: str, memory: Path) -> tuple["subprocess.Popen[str]", list[psutil.Process]]:
    owner = subprocess.Popen([sys.executable, "-c", SCRIPT, does, str(memory)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    return owner, [psutil.Process(int(pid)) for pid in owner.stdout.readline().split()]


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))


@pytest.mark.slow
@pytest.mark.usefixtures("importable")
@pytest.mark.parametrize("does", ["idle", "hung"])
def test_workers_end_when_their_owner_is_killed(does: str, tmp_path: Path) -> None:
    owner, workers = start_owner(does, tmp_path)
    with owner:
        if does == "hung":
            wait_until(lambda: any(tmp_path.iterdir()))
        owner.kill()
        _, alive = psutil.wait_procs(workers, timeout=SOON)
    assert len(workers) == 4
    assert not alive


@pytest.mark.slow
@pytest.mark.usefixtures("importable")
def test_an_owner_that_ends_without_closing_is_not_held_up(tmp_path: Path) -> None:
    owner, workers = start_owner("end", tmp_path)
    with owner:
        assert owner.wait(timeout=2 * SOON) == 0
    assert not psutil.wait_procs(workers, timeout=SOON)[1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_workers_leave_signals_to_their_owner(number: signal.Signals) -> None:
    def send(step: int, envs: VectorEnv) -> None:
        assert isinstance(envs, AsyncEpisodeVectorEnv)
        for process in envs.processes:
            os.kill(process.pid or 0, number)

    assert_same(play(in_processes(), steps=5, disturb=send), play(in_process(), steps=5))


@pytest.mark.parametrize("kind", [WalkEnv, SavingEnv])
def test_a_saved_vector_goes_on_as_the_other_kind_does(kind: type[WalkEnv]) -> None:
    straight, first, second = in_process(kind=kind), in_processes(kind=kind), in_processes(kind=kind)
    with closing(straight), closing(first), closing(second):
        for envs in (straight, first):
            envs.reset()
            shown = go_on(envs, range(17))
        last_obs = shown[-2] if len(shown[-1]) and "start" in shown[-1] else shown[-5]
        state = first.state_dict()
        assert same_values(state, straight.state_dict())
        assert all((each is None) == (kind is WalkEnv) for each in state["states"])
        restored = second.restore(state, last_obs)
        assert (restored.failures, same_values(restored.obs, last_obs)) == ({}, True)
        assert_same(go_on(second, range(17, 60)), go_on(straight, range(17, 60)))


def test_envs_that_cannot_be_brought_back_begin_anew() -> None:
    with closing(in_processes(kind=DriftingEnv)) as first, closing(in_processes(kind=DriftingEnv)) as second:
        obs, _ = first.reset()
        restored = second.restore(first.state_dict(), obs)
        assert sorted(restored.failures) == [0, 1, 2, 3]
        assert second.tracker.episode_numbers.tolist() == [1, 1, 1, 1]
        go_on(second, range(3))


def test_a_worker_that_cannot_be_asked_has_no_states_in_a_saved_vector() -> None:
    with closing(in_processes(kind=SavingEnv)) as envs:
        shown: Shown = [*envs.reset()]
        kill_at(0)(0, envs)
        states = envs.state_dict()["states"]
        assert [each is None for each in states] == [False, True, False, False]
        with pytest.warns(UserWarning, match="worker 1 .* SIGKILL"):
            shown += go_on(envs, range(5))
    assert_same(shown, play(in_process(), 5))


def test_a_state_that_cannot_be_saved_is_named() -> None:
    with closing(in_processes(kind=OddStateEnv)) as envs:
        envs.reset()
        with pytest.raises(CheckpointError, match=r"^env 0: CheckpointError: get_state\(\) .* contains a set"):
            envs.state_dict()


@pytest.mark.parametrize("make", [in_process, partial(in_processes, options={"max_restarts": 0})])
@pytest.mark.parametrize("mischief", ["raise", "nan"])
@pytest.mark.parametrize("kind", [WalkEnv, SavingEnv])
def test_what_is_saved_after_a_failed_step_goes_on_from_before_it(
    make: Callable[..., VectorEnv], mischief: str, kind: type[WalkEnv], tmp_path: Path
) -> None:
    straight, failing, second = in_process(), make(mischief=mischief, plan=(4,), memory=tmp_path, kind=kind), make()
    with closing(straight), closing(failing), closing(second):
        shown = [*straight.reset(), *go_on(straight, range(3))]
        failing.reset()
        go_on(failing, range(3))
        with pytest.raises(EnvironmentStepError, match="step 4"):
            go_on(failing, range(3, 4))
        with pytest.raises(TrainingStateError, match="reset or restore all envs"):
            failing.step(np.zeros(4, dtype=np.int64))
        last_obs = shown[-5]
        assert not second.restore(failing.state_dict(), last_obs).failures
        expected = go_on(straight, range(3, 30))
        assert_same(go_on(second, range(3, 30)), expected)
        failing.reset()
        go_on(failing, range(5))


def test_an_interrupted_step_leaves_no_stale_answer(tmp_path: Path) -> None:
    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    def interrupt_the_hang() -> None:
        wait_until(lambda: any(tmp_path.iterdir()))
        os.kill(os.getpid(), signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, interrupt)
    options = {"envs_per_worker": 4}
    with closing(in_processes(options=options, mischief="hang", plan=(1,), memory=tmp_path)) as envs:
        envs.reset()
        interrupter = threading.Thread(target=interrupt_the_hang)
        interrupter.start()
        with pytest.raises(KeyboardInterrupt):
            envs.step(np.zeros(4, dtype=np.int64))
        interrupter.join()
        signal.signal(signal.SIGALRM, before)
        with pytest.warns(UserWarning, match="it does not accept commands"):
            obs, _ = envs.reset()
    with closing(in_process()) as sync:
        sync.reset()
        assert np.array_equal(sync.reset()[0], obs)


def test_envs_of_different_spaces_are_refused() -> None:
    env_fns = [partial(OtherSpaceEnv, os.getpid())] * 2
    with pytest.raises(EnvironmentSetupError, match=r"env 0, start: ValueError: all envs must have the same spaces"):
        AsyncEpisodeVectorEnv(env_fns, 7, max_restarts=0)


def test_the_first_env_that_fails_is_named_whichever_answers_first() -> None:
    env_fns: list[Callable[[], WalkEnv]] = [partial(kind, os.getpid()) for kind in (LateEnv, OtherSpaceEnv)]
    with pytest.raises(EnvironmentSetupError, match=r"env 0, start: no answer within 1\.2 s"):
        AsyncEpisodeVectorEnv(env_fns, 7, step_timeout=0.1, max_restarts=0)


def test_the_config_sets_timeout_and_restarts(make_config: MakeConfig, tmp_path: Path) -> None:
    gymnasium.register("tests/Hanging-v0", f"{__name__}:HangingEnv")
    config = make_config(
        env_id="tests/Hanging-v0",
        env_kwargs={"memory": str(tmp_path)},
        vectorization="async",
        step_timeout=1.0,
        env_restarts=1,
    )
    with (
        closing(make_vector_env(config)) as envs,
        pytest.warns(UserWarning, match="no answer within 1 s"),
        pytest.raises(EnvironmentStepError, match=r"no answer within 1 s \(tried 2 times\)"),
    ):
        play(envs)
