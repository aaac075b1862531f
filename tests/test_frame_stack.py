"""Stacked frames: made at the env's door, stored once in the replay buffer, and equal to the naive layout."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sample_networks  # noqa: F401  (registers Side-v0)
import torch
from chaos import result_of as outcome
from conftest import MakeConfig
from gymnasium import Env, register, registry, spaces
from test_exact_resume import SignalAt, train

from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.envs.making import make_single_env
from rl_training.errors import EnvironmentSetupError
from rl_training.experiment.runs import context_of, read_metadata
from rl_training.runtime.workflows import evaluate_checkpoint, prepare_resume

FRAMES, SHAPE = 4, (4, 7, 8)


class MovingEnv(Env[Any, Any]):
    """A dot moves left or right: one frame does not show where to. The action that names the direction earns 1."""

    observation_space = spaces.Box(0, 255, (8, 8, 1), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._place, self._steps = 4, 0
        self._way = 1 if self.np_random.random() < 0.5 else -1
        return self._show(), {}

    def _show(self) -> Any:
        image = np.zeros((8, 8, 1), np.uint8)
        image[3, self._place % 8] = 255
        return image

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        right = self._steps > 0 and (action == 1) == (self._way == 1)
        self._place += self._way
        self._steps += 1
        if self._steps == 3 and self.np_random.random() < 0.5:
            self._way = -self._way
        return self._show(), float(right), False, self._steps >= 8, {}


if "Moving-v0" not in registry:
    register("Moving-v0", f"{__name__}:MovingEnv")


class Episodes:
    """Random frames of several envs, stacked as an env would."""

    def __init__(self, num_envs: int) -> None:
        self.rng, self.num_envs = np.random.default_rng(0), num_envs
        self.stacks = np.stack([self._first() for _ in range(num_envs)])

    def _first(self) -> Any:
        return np.repeat(self.rng.integers(256, size=(1, *SHAPE[1:]), dtype=np.uint8), FRAMES, axis=0)

    def step(self) -> dict[str, Any]:
        obs = self.stacks
        frames = self.rng.integers(256, size=(self.num_envs, 1, *SHAPE[1:]), dtype=np.uint8)
        following = np.concatenate([obs[:, 1:], frames], axis=1)
        dones = self.rng.random(self.num_envs) < 0.15
        truncated = ~dones & (self.rng.random(self.num_envs) < 0.1)
        goes_on = dones & (self.rng.random(self.num_envs) < 0.5)  # only a life was lost
        ended = (dones & ~goes_on | truncated)[:, None, None, None]
        self.stacks = np.where(ended, np.stack([self._first() for _ in range(self.num_envs)]), following)
        actions, rewards = self.rng.integers(3, size=self.num_envs), self.rng.normal(size=self.num_envs)
        return {
            "obs": obs,
            "actions": actions,
            "rewards": rewards,
            "next_obs": following,
            "dones": dones,
            "truncated": truncated,
            "goes_on": goes_on,
        }


def make_replay(num_envs: int, capacity: int, num_frames: int, n_step: int = 1) -> ReplayBuffer:
    return ReplayBuffer(
        capacity,
        SHAPE,
        (),
        num_envs=num_envs,
        obs_dtype=torch.uint8,
        action_dtype=torch.int64,
        n_step=n_step,
        gamma=0.9,
        num_frames=num_frames,
    )


def assert_equal(left: ReplayBuffer, right: ReplayBuffer) -> None:
    rows = np.arange(len(left))
    for one, other in (
        (left._gather(rows), right._gather(rows)),
        (left._n_step_fields(rows), right._n_step_fields(rows)),
    ):
        assert one.keys() == other.keys()
        assert all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("steps", [5, 30, 75, 200])  # before, at and long after the ring has come round
def test_stacks_from_single_frames_equal_the_naive_layout(num_envs: int, steps: int) -> None:
    episodes = Episodes(num_envs)
    naive, stacked = (make_replay(num_envs, 90, frames, n_step=3) for frames in (1, FRAMES))
    for _ in range(steps):
        transition = episodes.step()
        naive.add(**transition)
        stacked.add(**transition)
    assert_equal(naive, stacked)
    assert stacked._frames is not None
    assert stacked._frames.num_bytes <= naive._frames.num_bytes / FRAMES * 1.2  # type: ignore[union-attr]  # bytes


@pytest.mark.parametrize("saved_at", [10, 33, 70])
def test_a_saved_buffer_continues_in_the_middle_of_the_ring(saved_at: int) -> None:
    episodes = Episodes(2)
    straight, resumed = make_replay(2, 60, FRAMES), make_replay(2, 60, FRAMES)
    for _ in range(saved_at):
        straight.add(**episodes.step())
    straight.cut([1])
    episodes.stacks[1] = episodes._first()
    resumed.load_state_dict(straight.state_dict())
    assert_equal(straight, resumed)
    for _ in range(20):
        transition = episodes.step()
        straight.add(**transition)
        resumed.add(**transition)
        assert_equal(straight, resumed)


def test_a_hundred_thousand_stacks_take_the_bytes_of_their_frames() -> None:
    replay = ReplayBuffer(100_000, (4, 84, 84), (), num_envs=8, obs_dtype=torch.uint8, num_frames=4)
    assert replay.num_bytes <= 1.1 * 100_000 * 84 * 84


def test_an_env_shows_its_newest_frames_and_repeats_the_first() -> None:
    env = make_single_env("Moving-v0", {}, frame_stack=3)
    obs, _ = env.reset(seed=1)
    assert obs.shape == env.observation_space.shape == (3, 8, 8)
    assert env.observation_space.dtype == np.uint8
    assert [int(frame[3].argmax()) for frame in obs] == [4, 4, 4]
    places = [int(frame[3].argmax()) for frame in env.step(0)[0]]
    assert places[:2] == [4, 4]
    assert places[2] in (3, 5)
    assert env.reset(seed=2)[0][0, 3].argmax() == 4


def test_frames_that_are_no_arrays_are_refused() -> None:
    with pytest.raises(EnvironmentSetupError, match="frame_stack=4 needs Box observations"):
        make_single_env("Taxi-v4", {}, frame_stack=4)


SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": {"num_steps": 32, "minibatch_size": 64, "learning_rate": 3e-3, "update_epochs": 6},
    "dqn": {
        "buffer_capacity": 2_000,
        "batch_size": 64,
        "learning_starts": 200,
        "train_frequency": 4,
        "learning_rate": 2e-3,
        "target_update_interval": 100,
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("algo", list(SETTINGS))
def test_a_task_that_one_frame_does_not_show_is_learnt(make_config: MakeConfig, algo: str) -> None:
    config = make_config(
        algo=algo,
        env_id="Moving-v0",
        frame_stack=2,
        total_timesteps=4_000,
        eval_episodes=0,
        checkpoint_interval=0,
        algo_kwargs={**SETTINGS[algo], "hidden_sizes": [64]},
    )
    returns = evaluate_checkpoint(train(config), 40)["eval_return_mean"]
    assert returns >= 5.5  # at best 6.5: half of the turns cannot be foreseen; by chance 3.5


@pytest.mark.parametrize("algo", list(SETTINGS))
def test_a_killed_run_with_stacked_frames_continues_exactly(make_config: MakeConfig, algo: str, tmp_path: Path) -> None:
    config = make_config(algo=algo, env_id="Moving-v0", frame_stack=3)
    straight, run_dir = train(config), train(config, SignalAt(70, "collect"))
    prepare_resume(run_dir, []).train()
    assert outcome(run_dir) == outcome(straight)
    assert "not exact" not in str(read_metadata(context_of(run_dir))["resumed"])
    assert outcome(train(config.model_copy(update={"vectorization": "async"}))) == outcome(straight)
