"""DQN wired together: Q-network, learner, replay buffer and the off-policy loop."""

from typing import Any

from gymnasium import spaces

from rl_training.algorithms.dqn import DQNLearner, DQNParams
from rl_training.data.sampling import PrioritizedSampler, Sampler, UniformSampler
from rl_training.envs.vector.protocol import VectorEnv
from rl_training.experiment.config import TrainConfig, resolve_params
from rl_training.memory import check_memory
from rl_training.policies.q_network import QNetwork
from rl_training.runtime.off_policy import plan_off_policy, wire_off_policy
from rl_training.runtime.plan import TrainingPlan
from rl_training.runtime.run_utils import resolve_device
from rl_training.runtime.wiring import Wiring, build_train_fn, learner_setup
from rl_training.streams import make_stream, make_torch_generator


def resolve_dqn_params(config: TrainConfig) -> DQNParams:
    """The validated parameters of a DQN config."""
    params = resolve_params(DQNParams, config)
    params.check_replay(config.num_envs)
    return params


def build_dqn_learner(
    config: TrainConfig, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]
) -> DQNLearner:
    """An untrained learner whose weights depend on the run's seed alone."""
    params = resolve_dqn_params(config)
    network = params.network_spec(resolve_device(config.device))
    policy = QNetwork(observation_space, action_space, network, dueling=params.dueling)
    policy.initialise(make_torch_generator(config.seed, "initialisation"))
    return DQNLearner(policy, params, learner_setup(config, observation_space, action_space))


def build_dqn_sampler(config: TrainConfig, params: DQNParams) -> Sampler:
    """Uniform or prioritised, by the parameters."""
    stream = make_stream(config.seed, "replay")
    if params.prioritized:
        check_memory(params.sampler_bytes, "lower algo_kwargs.buffer_capacity")
        return PrioritizedSampler(params.buffer_capacity, params.priority_alpha, stream)
    return UniformSampler(stream)


def wire_dqn(config: TrainConfig, envs: VectorEnv) -> Wiring:
    """Learner and replay buffer on these envs."""
    learner = build_dqn_learner(config, envs.single_observation_space, envs.single_action_space)
    return wire_off_policy(config, envs, learner, build_dqn_sampler(config, learner.params))


def plan_dqn(config: TrainConfig) -> TrainingPlan:
    """Count what `train_dqn` would do; makes one env, but no file."""
    return plan_off_policy(config, build_dqn_learner)


train_dqn = build_train_fn(resolve_dqn_params, wire_dqn, plan_dqn)
