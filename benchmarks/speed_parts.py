"""Measure where the time of our training goes, the limits that our code cannot change, and replay sampling."""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.spaces.utils import flatdim
from speed_common import Job, Split
from speed_ours import UpdateClock, make_config
from torch import Tensor, nn

from rl_training.algorithms.base import ExperienceNormalizer, UpdateResult
from rl_training.algorithms.dqn import DQNLearner, EpsilonGreedyActor
from rl_training.algorithms.ppo import PPOLearner
from rl_training.algorithms.sac import SACLearner
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.envs.making import make_single_env
from rl_training.envs.vector.batched import BatchedVectorEnv
from rl_training.envs.vector.sync import SyncEpisodeVectorEnv
from rl_training.policies.acting import SamplingActor, WarmUpActor
from rl_training.policies.networks.cnn import ImageSize, NatureCNN
from rl_training.policies.networks.mlp import product
from rl_training.policies.soft_actor_critic import NUM_CRITICS
from rl_training.runtime.registry import get_algorithm_spec
from rl_training.runtime.run_utils import limited_threads
from rl_training.runtime.trainer import TrainerState

PARTS = ("env", "act", "store", "update", "rest")
_LIMIT_SECONDS = 0.5  # how long each limit is measured
_IMAGE_SIDES = (84, 84)

_ENV = tuple((kind, name, "env") for kind in (SyncEpisodeVectorEnv, BatchedVectorEnv) for name in ("step", "reset"))
_TRANSITIONS = ((ReplayBuffer, "add", "store"), (ExperienceNormalizer, "observe", "store"))
_METHODS: dict[str, tuple[tuple[type, str, str], ...]] = {
    "ppo": (
        *_ENV,
        (SamplingActor, "act", "act"),
        (RolloutBuffer, "add", "store"),
        (PPOLearner, "compute_advantages", "update"),
        (PPOLearner, "update", "update"),
    ),
    "dqn": (
        *_ENV,
        *_TRANSITIONS,
        (EpsilonGreedyActor, "act", "act"),
        (DQNLearner, "update", "update"),
    ),
    "sac": (
        *_ENV,
        *_TRANSITIONS,
        (WarmUpActor, "act", "act"),
        (SACLearner, "update", "update"),
    ),
}


class PartClock(UpdateClock):
    """A callback that sums the wall time of the methods of each part, within the steady state."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._inside = False

    def on_update_end(self, trainer: TrainerState, result: UpdateResult) -> None:
        """Read the clocks; discard everything before the end of the first update."""
        if self.steady.first is None:
            self.seconds = dict.fromkeys(PARTS, 0.0)
        super().on_update_end(trainer, result)

    @contextmanager
    def installed(self, algo: str) -> Iterator[None]:
        """Measure the methods of one algorithm inside the block, in the whole process."""
        with ExitStack() as patches:
            for owner, name, part in _METHODS[algo]:
                patches.enter_context(patch.object(owner, name, self._timed(getattr(owner, name), part)))
            yield

    def _timed(self, method: Callable[..., Any], part: str) -> Callable[..., Any]:
        @wraps(method)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._inside:  # a nested call, which the outer call already measures
                return method(*args, **kwargs)
            self._inside, started_at = True, time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                self._inside = False
                self.seconds[part] += time.perf_counter() - started_at

        return timed


def split(job: Job) -> Split:
    """Measure the parts of a short run, then the limits in the same process."""
    clock, row = PartClock(), job.row
    with tempfile.TemporaryDirectory() as directory:
        config = make_config(job, Path(directory))
        with clock.installed(row.algo):
            get_algorithm_spec(row.algo).train_fn(config, callbacks=[clock])
    first, last = clock.steady.first, clock.steady.last
    if first is None or last is None or first.step == last.step:
        raise RuntimeError(f"{job.steps} env steps have fewer than two updates")
    steps, wall = last.step - first.step, last.wall - first.wall
    clock.seconds["rest"] = wall - sum(clock.seconds.values())
    gradient_steps_per_step = row.gradient_steps_per_update / row.steps_per_update
    with limited_threads(job.threads):
        raw_env, products = _raw_env_seconds(job), _products_seconds(job)
    return Split(
        row=row.name,
        side=job.side,
        shares={part: round(100.0 * seconds / wall, 1) for part, seconds in clock.seconds.items()},
        microseconds_per_step=round(1e6 * wall / steps, 2),
        update_milliseconds=round(1e3 * clock.seconds["update"] / (steps * gradient_steps_per_step), 4),
        raw_env_microseconds=round(1e6 * raw_env, 2),
        products_microseconds=round(1e6 * products * gradient_steps_per_step, 2),
    )


def _seconds_per_call(call: Callable[[], object]) -> float:
    """Return the mean wall time of a call; the first call is not measured."""
    call()
    calls, started_at = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started_at) < _LIMIT_SECONDS:
        call()
        calls += 1
    return elapsed / calls


def _raw_env_seconds(job: Job) -> float:
    """Return the time per step of one env, including resets."""
    with closing(make_single_env(job.row.env_id, {})) as env:
        env.action_space.seed(job.seed)
        actions = [env.action_space.sample() for _ in range(1_000)]
        env.reset(seed=job.seed)

        def play() -> None:
            for action in actions:
                _, _, terminated, truncated, _ = env.step(action)
                if terminated or truncated:
                    env.reset()

        return _seconds_per_call(play) / len(actions)


@dataclass(frozen=True)
class Pass:
    """A pass through one network: always forward, optionally backward to its weights or inputs."""

    sizes: tuple[int, ...]
    copies: int = 1
    to_weights: bool = False
    to_inputs: bool = False

    def products(self, batch_size: int) -> list[tuple[Tensor, Tensor]]:
        """Return the factors of every matrix product."""
        pairs: list[tuple[Tensor, Tensor]] = []
        for layer, (inputs, outputs) in enumerate(zip(self.sizes[:-1], self.sizes[1:], strict=True)):
            hidden, weights, gradient = (
                torch.rand(shape) for shape in ((batch_size, inputs), (inputs, outputs), (batch_size, outputs))
            )
            pairs.append((hidden, weights))
            if self.to_weights:
                pairs.append((hidden.T, gradient))
            if self.to_inputs or (self.to_weights and layer > 0):
                pairs.append((gradient, weights.T))
        return pairs * self.copies


def gradient_passes(algo: str, hidden: tuple[int, ...], num_features: int, num_actions: int) -> list[Pass]:
    """Return the passes that the losses of one gradient step need."""
    if algo == "ppo":
        actor, critic = (num_features, *hidden, num_actions), (num_features, *hidden, 1)
        return [Pass(actor, to_weights=True), Pass(critic, to_weights=True)]
    if algo == "dqn":
        network = (num_features, *hidden, num_actions)
        return [Pass(network), Pass(network, to_weights=True)]
    actor, critic = (num_features, *hidden, 2 * num_actions), (num_features + num_actions, *hidden, 1)
    critic_step = [Pass(actor), Pass(critic, NUM_CRITICS), Pass(critic, NUM_CRITICS, to_weights=True)]
    return [*critic_step, Pass(actor, to_weights=True), Pass(critic, NUM_CRITICS, to_inputs=True)]


def _products_seconds(job: Job) -> float:
    """Return the time of the matrix products, or of the convolutions, of one gradient step."""
    if job.row.has_images:
        return _seconds_per_call(partial(_run_cnn, _bare_cnn(job), job))
    with closing(make_single_env(job.row.env_id, {})) as env:
        num_features, actions = flatdim(env.observation_space), env.action_space
        num_actions = int(actions.n) if isinstance(actions, spaces.Discrete) else flatdim(actions)
    passes = gradient_passes(job.row.algo, tuple(job.row.params["hidden_sizes"]), num_features, num_actions)
    pairs = [pair for each in passes for pair in each.products(job.row.batch_size)]

    def multiply() -> None:
        for left, right in pairs:
            product(left, right)

    return _seconds_per_call(multiply)


def _bare_cnn(job: Job) -> nn.Sequential:
    """Return the layers of the row's CNN that multiply, without activations and heads."""
    cnn = NatureCNN(ImageSize(job.row.frame_stack, *_IMAGE_SIDES))
    layers = [layer for layer in cnn.layers if not isinstance(layer, nn.ReLU)]
    return nn.Sequential(*layers)


def _run_cnn(cnn: nn.Sequential, job: Job) -> None:
    """Run the passes of one gradient step: forward and backward, for DQN also forward through the target network."""
    images = torch.ones(job.row.batch_size, job.row.frame_stack, *_IMAGE_SIDES)
    images = images.contiguous(memory_format=torch.channels_last)
    if job.row.algo == "dqn":
        with torch.no_grad():
            cnn(images)
    features = cnn(images)
    torch.autograd.grad(features, list(cnn.parameters()), torch.ones_like(features))


def replay_microseconds(job: Job) -> float:
    """Return the time to sample one batch from a full replay buffer of the row's size."""
    capacity, stream = int(job.row.params["buffer_capacity"]), np.random.default_rng(job.seed)
    replay = ReplayBuffer(capacity, (4,), (), action_dtype=torch.int64)
    chunk = min(capacity, 10_000)
    for _ in range(capacity // chunk):
        obs = stream.standard_normal((chunk, 4), dtype=np.float32)
        flags = np.zeros(chunk, np.bool_)
        replay.add(obs=obs, actions=flags, rewards=np.ones(chunk), next_obs=obs, dones=flags, truncated=flags)
    with limited_threads(job.threads):
        return round(1e6 * _seconds_per_call(lambda: replay.sample(job.row.batch_size)), 2)
