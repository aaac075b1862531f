"""Off-policy training: a few env steps, then the updates that are due for them. Intervals count env steps."""

from collections.abc import Callable
from functools import partial

from torch import Tensor

from rl_training.algorithms.base import LearnerSetup, OffPolicyLearner, OffPolicyParams
from rl_training.data.replay_buffer import ReplayBuffer, transition_bytes
from rl_training.experiment.config import TrainConfig
from rl_training.memory import check_memory
from rl_training.packing import describe_observations
from rl_training.runtime.algorithm import AlgorithmSpec
from rl_training.runtime.collector import Collector, Transition
from rl_training.runtime.learners import ParamsT
from rl_training.runtime.plan import Stretch, TrainingPlan, count_events, round_up
from rl_training.runtime.session import TrainingParts, TrainingSession
from rl_training.runtime.training import define_algorithm
from rl_training.streams import make_stream
from rl_training.waits import announced


def off_policy_algorithm(
    name: str, params_model: type[ParamsT], make_learner: Callable[[ParamsT, LearnerSetup], OffPolicyLearner]
) -> AlgorithmSpec:
    """Define an algorithm that learns from replayed transitions."""
    return define_algorithm(name, params_model, make_learner, wire_off_policy, plan_off_policy)


def add_to_replay(replay: ReplayBuffer, learner: OffPolicyLearner, taken: Transition) -> None:
    """Store steps of every env, and add them to the learner's running statistics."""
    for step in taken.single_steps():
        rewards = learner.normalizer.clip(step.rewards)  # before storing: n-step returns sum what is stored
        replay.add(
            obs=step.obs,
            actions=step.actions,
            rewards=rewards,
            next_obs=step.next_obs,
            dones=step.terminated,
            truncated=step.truncated,
            goes_on=step.goes_on,
        )
        learner.normalizer.observe(step.obs, rewards, step.terminated | step.truncated)


def run_off_policy(session: TrainingSession, learner: OffPolicyLearner, replay: ReplayBuffer) -> None:
    """Train until the session is finished. A vector step is `num_envs` env steps, so the budget may be exceeded."""
    while not session.finished:
        before = session.iterated_at
        until = next_boundary(learner.params, session.config, before)
        session.collect(partial(add_to_replay, replay, learner), until)
        now = session.state.global_step
        if now < until:
            return
        learner.normalizer.refresh()
        owed = updates_owed(learner.params, before, now)
        if owed:
            undo = _undo_of_update(learner, replay) if session.may_compile else None
            session.learn(partial(learner.update, replay, now, owed), undo)
        else:
            session.skip_learning()


def _undo_of_update(learner: OffPolicyLearner, replay: ReplayBuffer) -> Callable[[], None]:
    """Return a function that undoes an update made after this call."""
    learnt, drawn = learner.state_dict(), replay.sampler.state_dict()

    def undo() -> None:
        learner.load_state_dict(learnt)
        replay.sampler.load_state_dict(drawn)

    return undo


def next_boundary(params: OffPolicyParams, config: TrainConfig, step: int) -> int:
    """Return the env step at which the iteration that begins at `step` ends, because an update or a log is due."""
    if step < params.learning_starts:
        return min(step + config.log_interval, params.learning_starts, config.total_timesteps)
    return min((step // params.train_frequency + 1) * params.train_frequency, config.total_timesteps)


def updates_owed(params: OffPolicyParams, before: int, after: int) -> int:
    """Return the gradient steps for the env steps in (before, after]; the ratio does not depend on `num_envs`."""
    if after <= params.learning_starts:
        return 0
    start = max(before, params.learning_starts)
    return (after // params.train_frequency - start // params.train_frequency) * params.gradient_steps


def build_replay(config: TrainConfig, learner: OffPolicyLearner) -> ReplayBuffer:
    """Build an empty replay buffer for the learner's spaces, if it fits into memory."""
    params, policy = learner.params, learner.policy
    check_replay_memory(learner)
    return ReplayBuffer(
        params.buffer_capacity,
        policy.encoder.shape,
        policy.action_shape,
        num_envs=config.num_envs,
        obs_dtype=policy.encoder.storage_dtype,
        action_dtype=policy.action_dtype,
        n_step=params.n_step,
        gamma=params.gamma,
        sampler=params.make_sampler(make_stream(config.seed, "replay")),
        num_frames=policy.encoder.num_frames,
    )


def wire_off_policy(config: TrainConfig, learner: OffPolicyLearner, collector: Collector) -> TrainingParts:
    """Connect a learner to a collector through a replay buffer."""
    with announced("making room for the replay buffer"):
        replay = build_replay(config, learner)
    return TrainingParts(learner, replay, collector, partial(run_off_policy, learner=learner, replay=replay))


def replay_bytes(learner: OffPolicyLearner) -> int:
    """Return the memory of the learner's replay buffer and its sampler in bytes."""
    encoder = learner.policy.encoder
    action_shape, num_frames = learner.policy.action_shape, encoder.num_frames
    row = transition_bytes(encoder.shape, action_shape, encoder.storage_dtype, num_frames)
    return learner.params.buffer_capacity * row + learner.params.sampler_bytes


def check_replay_memory(learner: OffPolicyLearner) -> None:
    """Refuse a replay buffer that does not fit into the free memory."""
    check_memory(replay_bytes(learner), "lower algo_kwargs.buffer_capacity")


def _tensor_bytes(state: object) -> int:
    """Return the memory of all tensors in a state in bytes."""
    if isinstance(state, Tensor):
        return state.nbytes
    return sum(map(_tensor_bytes, state.values())) if isinstance(state, dict) else 0


def plan_off_policy(config: TrainConfig, learner: OffPolicyLearner) -> TrainingPlan:
    """Count the steps, updates, evaluations and checkpoints of a run, with the same rules as the loop."""
    check_replay_memory(learner)
    params = learner.params
    warm_up, learning = iteration_stretches(params, config)
    env_steps = learning.limit
    return TrainingPlan(
        env_steps=env_steps,
        gradient_steps=updates_owed(params, 0, env_steps),
        evaluations=count_events(config.eval_interval, (warm_up, learning)) if config.eval_episodes else 0,
        checkpoints=1 + count_events(config.checkpoint_interval, (warm_up, learning)),
        memory_bytes=replay_bytes(learner) + _tensor_bytes(learner.state_dict()),
        details={
            "observations": describe_observations(learner.policy.encoder.space),
            "iterations": warm_up.num_iterations + learning.num_iterations,
            "warm-up env steps": min(params.learning_starts, env_steps),
            "updates": learning.num_full + (1 if updates_owed(params, 0, warm_up.limit) else 0),
            "replay capacity": params.buffer_capacity - params.buffer_capacity % config.num_envs,
        },
    )


def iteration_stretches(params: OffPolicyParams, config: TrainConfig) -> tuple[Stretch, Stretch]:
    """Return the iterations that `next_boundary` produces: those of the warm-up, then those with updates."""
    num_envs = config.num_envs
    end = round_up(config.total_timesteps, num_envs)
    warm_up_end = min(round_up(params.learning_starts, num_envs), end)
    warm_up = Stretch(0, warm_up_end, size=round_up(config.log_interval, num_envs), grid=num_envs)
    return warm_up, Stretch(warm_up_end, end, size=max(params.train_frequency, num_envs), grid=num_envs)
