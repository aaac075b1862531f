"""PPO wired together: policy, learner, rollout and the on-policy loop."""

import math
from contextlib import closing
from typing import Any

from gymnasium import spaces

from rl_training.algorithms.ppo import PPOLearner, PPOParams
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.envs.factory import check_num_envs, make_env
from rl_training.envs.vector.protocol import VectorEnv
from rl_training.errors import EnvironmentSetupError
from rl_training.experiment.config import TrainConfig, resolve_params
from rl_training.memory import check_memory
from rl_training.policies.actor_critic import ActorCritic
from rl_training.runtime.collector import LocalCollector
from rl_training.runtime.on_policy import run_on_policy
from rl_training.runtime.plan import Stretch, TrainingPlan, count_events, round_up
from rl_training.runtime.run_utils import resolve_device
from rl_training.runtime.session import TrainingParts
from rl_training.runtime.wiring import Wiring, build_train_fn, learner_setup
from rl_training.streams import make_stream, make_torch_generator


def resolve_ppo_params(config: TrainConfig) -> PPOParams:
    """The validated parameters of a PPO config."""
    params = resolve_params(PPOParams, config)
    params.check_rollout(config.num_envs)
    return params


def build_ppo_learner(
    config: TrainConfig, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]
) -> PPOLearner:
    """An untrained learner whose weights depend on the run's seed alone."""
    params = resolve_ppo_params(config)
    network = params.network_spec(resolve_device(config.device))
    if params.noise_correlation and not isinstance(action_space, spaces.Box):
        raise EnvironmentSetupError(
            f"noise_correlation={params.noise_correlation} needs continuous actions, the action space is "
            f"{action_space}; leave it out"
        )
    policy = ActorCritic(observation_space, action_space, network, make_stream(config.seed, "predictions"))
    policy.initialise(make_torch_generator(config.seed, "initialisation"), params.log_std_init)
    return PPOLearner(policy, params, learner_setup(config, observation_space, action_space))


def build_rollout(config: TrainConfig, learner: PPOLearner) -> RolloutBuffer:
    """An empty rollout that fits the learner's spaces, on the CPU where the envs are."""
    return _make_rollout(learner, learner.params.num_steps, config.num_envs)


def _make_rollout(learner: PPOLearner, num_steps: int, num_envs: int) -> RolloutBuffer:
    policy = learner.policy
    return RolloutBuffer(
        num_steps,
        num_envs,
        policy.encoder.shape,
        policy.distribution.action_shape,
        obs_dtype=policy.encoder.storage_dtype,
        action_dtype=policy.distribution.action_dtype,
    )


def rollout_bytes(config: TrainConfig, learner: PPOLearner) -> int:
    """Memory of the rollout, and of its shuffled copy while learning."""
    return 2 * learner.params.num_steps * config.num_envs * _make_rollout(learner, 1, 1).num_bytes


def check_rollout_memory(config: TrainConfig, learner: PPOLearner) -> None:
    """Refuse a rollout that does not fit into the memory that is free."""
    check_memory(rollout_bytes(config, learner), "lower num_envs or algo_kwargs.num_steps")


def plan_ppo(config: TrainConfig) -> TrainingPlan:
    """Count what `train_ppo` would do; makes one env, but no file."""
    with closing(make_env(config, 0)) as env:
        learner = build_ppo_learner(config, env.observation_space, env.action_space)
    check_num_envs(config)
    check_rollout_memory(config, learner)
    params = learner.params
    rollout_size = params.num_steps * config.num_envs
    env_steps = round_up(config.total_timesteps, rollout_size)
    rollouts = [Stretch(0, env_steps, size=rollout_size, grid=rollout_size)]
    state = 4 * learner.policy.params.flat.nbytes  # parameters, gradient, two moments
    early_stop: dict[str, int | str] = {} if params.target_kl is None else {"gradient steps are": "at most (target_kl)"}
    return TrainingPlan(
        env_steps=env_steps,
        gradient_steps=params.planned_gradient_steps(config.total_timesteps, config.num_envs),
        evaluations=count_events(config.eval_interval, rollouts) if config.eval_episodes else 0,
        checkpoints=1 + count_events(config.checkpoint_interval, rollouts),
        memory_bytes=rollout_bytes(config, learner) + state,
        details={
            "rollouts": env_steps // rollout_size,
            "env steps per rollout": rollout_size,
            "minibatches per epoch": -(-rollout_size // params.minibatch_size),
            "last minibatch": rollout_size % params.minibatch_size or params.minibatch_size,
            **early_stop,
            "parameters": sum(math.prod(shape) for shape in learner.policy.params.layout.shapes.values()),
        },
    )


def wire_ppo(config: TrainConfig, envs: VectorEnv) -> Wiring:
    """Learner and rollout on these envs."""
    learner = build_ppo_learner(config, envs.single_observation_space, envs.single_action_space)
    check_rollout_memory(config, learner)
    rollout = build_rollout(config, learner)
    parts = TrainingParts(learner, rollout, LocalCollector(envs, learner.make_actor(range(config.num_envs))))
    return Wiring(parts, lambda session: run_on_policy(session, learner, rollout))


train_ppo = build_train_fn(resolve_ppo_params, wire_ppo, plan_ppo)
