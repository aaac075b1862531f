"""The on-policy loop: collect a rollout, compute its advantages, learn from it, and forget it."""

from functools import partial

from rl_training.algorithms.base import OnPolicyLearner, UpdateResult
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.runtime.collector import Transition
from rl_training.runtime.session import TrainingSession


def add_to_rollout(rollout: RolloutBuffer, step: Transition) -> None:
    """Store one step of every env; only a time limit that is not a termination counts as truncation."""
    rollout.add(
        obs=step.obs,
        actions=step.actions,
        rewards=step.rewards,
        dones=step.terminated | step.truncated,
        truncated=step.truncated & ~step.terminated,
        last_obs=step.next_obs,
    )


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
