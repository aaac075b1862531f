"""Lost lives and clipped rewards change what a learner sees; the env, its episodes and its scores stay as they are."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from chaos import result_of as outcome
from conftest import MakeConfig
from gymnasium import Env, register, registry, spaces
from test_exact_resume import SignalAt, train

from rl_training.algorithms.dqn import DQNLearner
from rl_training.envs.factory import make_vector_env
from rl_training.errors import EnvironmentSetupError
from rl_training.experiment.checkpointing import find_checkpoint, load_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.collector import CollectResult, make_collector
from rl_training.runtime.off_policy import add_to_replay, build_replay
from rl_training.runtime.on_policy import add_to_rollout, build_rollout
from rl_training.runtime.registry import get_algorithm_spec
from rl_training.runtime.workflows import evaluate_checkpoint, resume_training


class LivesEnv(Env[Any, Any]):
    """Three lives of two steps each. Every step is worth 10; an image shows the number of the step."""

    observation_space = spaces.Box(0, 255, (8, 8, 1), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self._show(), {"lives": 3}

    def _show(self) -> Any:
        return np.full((8, 8, 1), self._steps, np.uint8)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        return self._show(), 10.0, self._steps == 6, False, {"lives": 3 - self._steps // 2}


if "Lives-v0" not in registry:
    register("Lives-v0", f"{__name__}:LivesEnv")

PARAMS = {
    "ppo": {"num_steps": 8, "minibatch_size": 8, "gamma": 0.5, "gae_lambda": 0.5},
    "dqn": {"buffer_capacity": 64, "batch_size": 8, "learning_starts": 8, "n_step": 3, "gamma": 0.5},
}


@pytest.fixture
def config(make_config: MakeConfig, request: pytest.FixtureRequest) -> TrainConfig:
    algo = request.param
    kwargs = {**PARAMS[algo], "clip_rewards": True}
    return make_config(
        algo=algo,
        env_id="Lives-v0",
        num_envs=2,
        frame_stack=2,
        terminal_on_life_loss=True,
        total_timesteps=64,
        eval_episodes=1,
        algo_kwargs=kwargs,
    )


each_algorithm = pytest.mark.parametrize("config", list(PARAMS), indirect=True)
ppo = pytest.mark.parametrize("config", ["ppo"], indirect=True)
dqn = pytest.mark.parametrize("config", ["dqn"], indirect=True)


def collect(config: TrainConfig, num_steps: int) -> tuple[Any, Any, CollectResult]:
    """The learner, its rollout or replay buffer after `num_steps` steps of both envs, and the result."""
    envs = make_vector_env(config)
    build: Any = get_algorithm_spec(config.algo).build_learner_fn
    learner = build(config, envs.single_observation_space, envs.single_action_space)
    collector = make_collector(config, learner, envs)
    if isinstance(learner, DQNLearner):
        buffer: Any = build_replay(config, learner)
        store: Any = partial(add_to_replay, buffer, learner)
    else:
        buffer = build_rollout(config, learner)
        store = partial(add_to_rollout, buffer)
    collector.start()
    collector.collect(store, range(0, 2 * num_steps, 2), lambda: False)
    envs.close()
    return learner, buffer, collector.take_result()


@pytest.mark.parametrize("vectorization", ["sync", "async"])
@ppo
def test_advantages_do_not_look_beyond_a_lost_life(config: TrainConfig, vectorization: str) -> None:
    config = config.model_copy(update={"vectorization": vectorization})
    _, rollout, result = collect(config, 8)
    assert rollout.dones[:, 0].tolist() == [False, True] * 4
    assert not rollout.truncated.any()
    assert rollout.obs[:, 0, :, 0, 0].tolist() == [[0, 0], [0, 1], [1, 2], [2, 3], [3, 4], [4, 5], [0, 0], [0, 1]]
    rollout.values[:] = 2.0
    rollout.compute_returns_and_advantages(
        last_values=torch.full((2,), 2.0), gamma=0.5, gae_lambda=0.5, rewards=torch.ones(8, 2)
    )
    # 1 + 0.5 * 2 - 2 = 0 in the middle of a life; 1 - 2 = -1 at its end, of which the step before gets a quarter.
    assert rollout.advantages[:, 1].tolist() == [-0.25, -1.0] * 4
    assert [episode[:2] for episode in result.episodes] == [(60.0, 6)] * 2  # the scores are raw and whole


@ppo
def test_ppo_learns_from_the_signs_of_rewards(config: TrainConfig) -> None:
    learner, rollout, _ = collect(config, 8)
    learner.compute_advantages(rollout, rollout.obs[-1].numpy())
    assert rollout.rewards.unique().tolist() == [10.0]
    assert rollout.returns[1::2].flatten().tolist() == pytest.approx([1.0] * 8)  # the last reward of each life


@dqn
def test_replayed_targets_do_not_look_beyond_a_lost_life_but_stacks_do(config: TrainConfig) -> None:
    _, replay, _ = collect(config, 8)
    steps = np.arange(0, 12, 2)  # of the first env
    fields = {**replay._gather(steps), **replay._n_step_fields(steps)}
    assert fields["rewards"].tolist() == [1.5, 1.0] * 3  # 1 + 0.5 * 1; three steps are cut short by the lost life
    assert fields["discounts"].tolist() == [0.0] * 6
    first, following = replay._frames.read(steps)
    assert first[:, :, 0, 0].tolist() == [[0, 0], [0, 1], [1, 2], [2, 3], [3, 4], [4, 5]]
    assert following[:, :, 0, 0].tolist() == [[0, 1], [1, 2], [2, 3], [3, 4], [4, 5], [5, 6]]


@each_algorithm
def test_a_run_stopped_right_after_a_lost_life_continues_exactly(config: TrainConfig) -> None:
    config = config.model_copy(update={"num_envs": 1, "log_interval": 2})
    straight = train(config)
    stopped = train(config, SignalAt(8, "collect"))
    assert load_checkpoint(find_checkpoint(stopped)).trainer_state["lives"] == [2]
    resume_training(stopped)
    assert outcome(stopped) == outcome(straight)
    assert outcome(train(config.model_copy(update={"vectorization": "async"}))) == outcome(straight)
    assert evaluate_checkpoint(stopped, 2)["eval_return_mean"] == 60.0


@ppo
def test_an_env_without_lives_is_refused_before_the_first_step(config: TrainConfig) -> None:
    with pytest.raises(EnvironmentSetupError, match=r'the env gives no info\["lives"\]'):
        train(config.model_copy(update={"env_id": "CartPole-v1", "frame_stack": 1}))
    assert not config.output_dir.exists()
