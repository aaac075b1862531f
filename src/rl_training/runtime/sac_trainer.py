"""SAC wired together: actor, twin critics, learner, replay buffer and the off-policy loop."""

from typing import Any

from gymnasium import spaces

from rl_training.algorithms.sac import SACLearner, SACParams
from rl_training.data.sampling import UniformSampler
from rl_training.envs.vector.protocol import VectorEnv
from rl_training.experiment.config import TrainConfig, resolve_params
from rl_training.policies.soft_actor_critic import SquashedActor, TwinCritics
from rl_training.runtime.off_policy import plan_off_policy, wire_off_policy
from rl_training.runtime.plan import TrainingPlan
from rl_training.runtime.run_utils import resolve_device
from rl_training.runtime.wiring import Wiring, build_train_fn, learner_setup
from rl_training.streams import make_stream, make_torch_generator


def resolve_sac_params(config: TrainConfig) -> SACParams:
    """The validated parameters of a SAC config."""
    params = resolve_params(SACParams, config)
    params.check_replay(config.num_envs)
    return params


def build_sac_learner(
    config: TrainConfig, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]
) -> SACLearner:
    """An untrained learner whose weights depend on the run's seed alone."""
    params = resolve_sac_params(config)
    network = params.network_spec(resolve_device(config.device))
    policy = SquashedActor(observation_space, action_space, network, make_stream(config.seed, "predictions"))
    critics = TwinCritics(policy.encoder.size, policy.actions.size, network)
    generator = make_torch_generator(config.seed, "initialisation")
    policy.initialise(generator)
    critics.initialise(generator)
    return SACLearner(policy, critics, params, learner_setup(config, observation_space, action_space))


def build_sac_sampler(config: TrainConfig) -> UniformSampler:
    """Every stored transition is as likely as any other."""
    return UniformSampler(make_stream(config.seed, "replay"))


def wire_sac(config: TrainConfig, envs: VectorEnv) -> Wiring:
    """Learner and replay buffer on these envs."""
    learner = build_sac_learner(config, envs.single_observation_space, envs.single_action_space)
    return wire_off_policy(config, envs, learner, build_sac_sampler(config))


def plan_sac(config: TrainConfig) -> TrainingPlan:
    """Count what `train_sac` would do; makes one env, but no file."""
    return plan_off_policy(config, build_sac_learner)


train_sac = build_train_fn(resolve_sac_params, wire_sac, plan_sac)
