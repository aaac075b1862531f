"""Choose the kind of vector env for `vectorization: auto`, by measuring the steps of one env."""

import math
import multiprocessing
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

from rl_training.cores import available_cores
from rl_training.envs.layers import AnyEnv
from rl_training.envs.packed import make_legal
from rl_training.envs.subprocesses import SubprocessError, call_in_process
from rl_training.envs.vector.native import has_native
from rl_training.experiment.config import TrainConfig

_PATIENCE_SECONDS = 20.0  # for making one env and timing it
_TRIALS = 5
_TRIAL_SECONDS = 0.04
_SYNC_OVERHEAD_SECONDS = 2e-6  # overhead of one env step in this process
_NATIVE_STEP_SECONDS = 50e-6  # a native step of all envs, however many there are
_ASYNC_OVERHEAD_SECONDS = 200e-6  # sending a command to all workers and receiving their answers
_MIN_SPEEDUP = 1.3  # another kind is used instead of "sync" only if it is this many times as fast


@dataclass(frozen=True)
class Vectorization:
    """The chosen kind of vector env, and the reason."""

    kind: str
    envs_per_worker: int
    reason: str


def choose_vectorization(config: TrainConfig, make_env: Callable[[], AnyEnv]) -> Vectorization:
    """Choose the fastest kind by the time that a step of one env takes, the cores, and the number of envs.

    The env is timed in a process of its own. If it fails or hangs there, choose "sync" and leave the failure to the
    run, which names the step and saves its state.
    """
    cores, count = available_cores(), math.ceil(config.num_envs / config.collectors)
    if count == 1:
        return Vectorization("sync", 1, "one env")
    if not forks():
        kind = "native" if _can_be_native(config) else "sync"
        return Vectorization(kind, 1, "processes do not start by fork here")
    try:
        seconds = call_in_process(partial(_time_env, make_env), _PATIENCE_SECONDS)
    except SubprocessError as error:
        return Vectorization("sync", 1, f"one env could not be timed ({error})")
    per_worker = math.ceil(count / min(cores, count))
    vector_seconds = {"sync": count * (seconds + _SYNC_OVERHEAD_SECONDS)}
    if _can_be_native(config):
        vector_seconds["native"] = _NATIVE_STEP_SECONDS
    if cores > 1 and config.collect_on == "here":  # otherwise, each group of envs already has a process
        vector_seconds["async"] = per_worker * seconds + _ASYNC_OVERHEAD_SECONDS
    fastest = min(vector_seconds, key=lambda kind: vector_seconds[kind])
    if vector_seconds[fastest] * _MIN_SPEEDUP > vector_seconds["sync"]:
        fastest = "sync"
    reason = f"a step of one env takes {1e6 * seconds:.0f} us, {count} envs, {cores} cores"
    return Vectorization(fastest, per_worker if fastest == "async" else 1, reason)


def _can_be_native(config: TrainConfig) -> bool:
    plain = config.frame_stack == 1 and config.action_mask in ("auto", "off") and not config.wrappers
    return plain and has_native(config.env_id)


def forks() -> bool:
    """Return whether processes start as copies of this one; otherwise they may run the user's script again."""
    methods = multiprocessing.get_all_start_methods()  # the default is the first
    return (multiprocessing.get_start_method(allow_none=True) or methods[0]) == "fork"


def _time_env(make_env: Callable[[], AnyEnv]) -> float:
    with closing(make_env()) as env:
        return measure_step_seconds(env)


def measure_step_seconds(env: AnyEnv) -> float:
    """Measure an env step under random actions, resets included.

    The result is the fastest of several trials, because other programs may slow some of them down.
    """
    space = env.action_space
    space.seed(0)
    actions = [space.sample() for _ in range(64)]
    return min(_trial(env, actions) for _ in range(_TRIALS))


def _trial(env: AnyEnv, actions: Sequence[Any]) -> float:
    obs, _ = env.reset(seed=0)
    steps, began = 0, time.perf_counter()
    while steps == 0 or time.perf_counter() - began < _TRIAL_SECONDS:  # a busy machine may stop this process meanwhile
        action = make_legal(actions[steps % len(actions)], obs, env.observation_space, env.action_space)
        obs, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            obs, _ = env.reset()
        steps += 1
    return (time.perf_counter() - began) / steps
