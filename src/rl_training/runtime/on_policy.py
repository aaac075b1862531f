"""The on-policy loop: collect a rollout, compute its advantages, learn from it, and forget it."""

from rl_training.algorithms.base import OnPolicyLearner
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.envs.vector import EpisodeVectorEnv
from rl_training.runtime.collector import collect_rollout
from rl_training.runtime.session import TrainingSession


def run_on_policy(
    session: TrainingSession, envs: EpisodeVectorEnv, learner: OnPolicyLearner, rollout: RolloutBuffer
) -> None:
    """Train until the session is finished. The budget is used in whole rollouts, so the last one may pass it."""
    if len(rollout):  # resumed in mid-rollout: the episodes that were running are given up
        rollout.cut(session.last_obs)
    obs = session.first_obs
    while not session.finished:
        with session.collecting(obs) as collection:
            collect_rollout(envs, learner, rollout, collection, interrupted=session.interrupted)
        obs = collection.obs
        if not rollout.full:
            return
        started_at = session.state.global_step - len(rollout)
        learner.compute_advantages(rollout, obs)
        update = learner.update(rollout, started_at)
        rollout.reset()
        session.updated(update)
