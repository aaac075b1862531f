"""Which kind of vector env suits a run: `vectorization: auto` plays one env for a moment and compares."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from rl_training.cores import available_cores
from rl_training.envs.restore import AnyEnv
from rl_training.envs.vector.native import has_native
from rl_training.experiment.config import TrainConfig

_TRIALS = 5
_TRIAL_SECONDS = 0.04
_PASSING_SECONDS = 2e-6  # of handing one env its action and taking in what it gives
_VECTOR_SECONDS = 50e-6  # a native step of all envs, whatever their number
_EXCHANGE_SECONDS = 200e-6  # asking all workers and hearing from them
_WORTH = 1.3  # how many times as fast another kind must be, for the simplest one to be left


@dataclass(frozen=True)
class Vectorization:
    """A kind of vector env, and why."""

    kind: str
    envs_per_worker: int
    reason: str


def choose_vectorization(config: TrainConfig, make_env: Callable[[], AnyEnv]) -> Vectorization:
    """The fastest kind by what one env's steps take, what this machine's cores are, and how many envs there are."""
    cores, count = available_cores(), config.num_envs
    if count == 1:
        return Vectorization("sync", 1, "one env")
    with closing(make_env()) as env:
        seconds = step_seconds(env)
    per_worker = math.ceil(count / min(cores, count))
    vector_seconds = {"sync": count * (seconds + _PASSING_SECONDS)}
    if has_native(config.env_id):
        vector_seconds["native"] = _VECTOR_SECONDS
    if cores > 1:
        vector_seconds["async"] = per_worker * seconds + _EXCHANGE_SECONDS
    fastest = min(vector_seconds, key=lambda kind: vector_seconds[kind])
    if vector_seconds[fastest] * _WORTH > vector_seconds["sync"]:
        fastest = "sync"
    reason = f"a step of one env takes {1e6 * seconds:.0f} us, {count} envs, {cores} cores"
    return Vectorization(fastest, per_worker if fastest == "async" else 1, reason)


def step_seconds(env: AnyEnv) -> float:
    """What a step takes under random actions, resets included: the best of several trials on a machine with others."""
    space = env.action_space
    space.seed(0)
    actions = [space.sample() for _ in range(64)]
    env.reset(seed=0)
    return min(_trial(env, actions) for _ in range(_TRIALS))


def _trial(env: AnyEnv, actions: Sequence[Any]) -> float:
    steps, began = 0, time.perf_counter()
    while time.perf_counter() - began < _TRIAL_SECONDS:
        _, _, terminated, truncated, _ = env.step(actions[steps % len(actions)])
        if terminated or truncated:
            env.reset()
        steps += 1
    return (time.perf_counter() - began) / steps
