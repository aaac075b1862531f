"""The on-policy loop: collect a rollout, compute its advantages, learn from it, and forget it."""

from functools import partial

from rl_training.algorithms.base import OnPolicyLearner, UpdateResult
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.runtime.collector import collect_rollout
from rl_training.runtime.session import TrainingParts, TrainingSession


def run_on_policy(
    session: TrainingSession, parts: TrainingParts, learner: OnPolicyLearner, rollout: RolloutBuffer
) -> None:
    """Train until the session is finished. The budget is used in whole rollouts, so the last one may pass it."""

    def learn() -> UpdateResult:
        started_at = session.state.global_step - len(rollout)
        learner.compute_advantages(rollout, session.obs)
        update = learner.update(rollout, started_at)
        rollout.reset()
        return update

    while not session.finished:
        with session.collecting() as collection:
            start = session.state.global_step
            collect_rollout(parts.envs, parts.actor, rollout, collection, start, session.interrupted)
        if not rollout.full:
            return
        undo = partial(learner.load_state_dict, learner.state_dict()) if session.may_compile else None
        session.learn(learn, undo)
