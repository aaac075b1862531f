"""On-policy training: collect a rollout, compute its advantages, learn from it, and forget it."""

import math
from collections.abc import Callable
from functools import partial

from rl_training.algorithms.base import LearnerSetup, OnPolicyLearner, OnPolicyParams, UpdateResult
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.experiment.config import TrainConfig
from rl_training.memory import check_memory
from rl_training.packing import describe_observations
from rl_training.runtime.algorithm import AlgorithmSpec
from rl_training.runtime.collector import Collector, Transition
from rl_training.runtime.learners import ParamsT
from rl_training.runtime.plan import Stretch, TrainingPlan, count_events, round_up
from rl_training.runtime.session import TrainingParts, TrainingSession
from rl_training.runtime.training import define_algorithm


def on_policy_algorithm(
    name: str, params_model: type[ParamsT], make_learner: Callable[[ParamsT, LearnerSetup], OnPolicyLearner]
) -> AlgorithmSpec:
    """Define an algorithm that learns once from each rollout."""
    return define_algorithm(name, params_model, make_learner, wire_on_policy, plan_on_policy)


def run_on_policy(session: TrainingSession, learner: OnPolicyLearner, rollout: RolloutBuffer) -> None:
    """Train until the session is finished. The budget is used in whole rollouts, so the last one may pass it."""

    def learn() -> UpdateResult:
        started_at = session.state.global_step - len(rollout)
        learner.compute_advantages(rollout, session.parts.collector.obs)
        update = learner.update(rollout, started_at)
        rollout.reset()
        return update

    while not session.finished:
        session.collect(partial(add_to_rollout, rollout), session.state.global_step + rollout.num_missing)
        if not rollout.full:
            return
        undo = partial(learner.load_state_dict, learner.state_dict()) if session.may_compile else None
        session.learn(learn, undo)


def add_to_rollout(rollout: RolloutBuffer, step: Transition) -> None:
    """Store steps of every env; only a time limit that is not a termination counts as truncation."""
    rollout.add(
        obs=step.obs,
        actions=step.actions,
        rewards=step.rewards,
        dones=step.terminated | step.truncated,
        truncated=step.truncated & ~step.terminated,
        last_obs=step.next_obs,
    )


def wire_on_policy(config: TrainConfig, learner: OnPolicyLearner, collector: Collector) -> TrainingParts:
    """Connect a learner to a collector through a rollout, if that fits into memory."""
    rollout = build_rollout(config, learner)
    return TrainingParts(learner, rollout, collector, partial(run_on_policy, learner=learner, rollout=rollout))


def build_rollout(config: TrainConfig, learner: OnPolicyLearner) -> RolloutBuffer:
    """Build an empty rollout for the learner's spaces, on the CPU where the envs are, if it fits into memory."""
    check_memory(rollout_bytes(config, learner), "lower num_envs or algo_kwargs.num_steps")
    return _make_rollout(learner, learner.params.num_steps, config.num_envs)


def _make_rollout(learner: OnPolicyLearner, num_steps: int, num_envs: int) -> RolloutBuffer:
    policy = learner.policy
    return RolloutBuffer(
        num_steps,
        num_envs,
        policy.encoder.shape,
        policy.action_shape,
        obs_dtype=policy.encoder.storage_dtype,
        action_dtype=policy.action_dtype,
    )


def rollout_bytes(config: TrainConfig, learner: OnPolicyLearner) -> int:
    """Return the memory of the rollout, and of its shuffled copy while learning."""
    return 2 * learner.params.num_steps * config.num_envs * _make_rollout(learner, 1, 1).num_bytes


def plan_on_policy(config: TrainConfig, learner: OnPolicyLearner) -> TrainingPlan:
    """Count what a run would do, by the rules of the loop."""
    params: OnPolicyParams = learner.params
    num_bytes = rollout_bytes(config, learner)
    check_memory(num_bytes, "lower num_envs or algo_kwargs.num_steps")
    rollout_size = params.num_steps * config.num_envs
    env_steps = round_up(config.total_timesteps, rollout_size)
    rollouts = [Stretch(0, env_steps, size=rollout_size, grid=rollout_size)]
    weights = learner.policy.params
    return TrainingPlan(
        env_steps=env_steps,
        gradient_steps=params.planned_gradient_steps(config.total_timesteps, config.num_envs),
        evaluations=count_events(config.eval_interval, rollouts) if config.eval_episodes else 0,
        checkpoints=1 + count_events(config.checkpoint_interval, rollouts),
        memory_bytes=num_bytes + 4 * weights.flat.nbytes,  # parameters, gradient, two moments
        details={
            "observations": describe_observations(learner.policy.encoder.space),
            "rollouts": env_steps // rollout_size,
            "env steps per rollout": rollout_size,
            **params.plan_details(rollout_size),
            "parameters": sum(math.prod(shape) for shape in weights.layout.shapes.values()),
        },
    )
