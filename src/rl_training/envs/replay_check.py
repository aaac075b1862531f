"""Check that fresh envs reproduce the envs of a run. If they do not, no resume of the run is exact.

An env may depend on more than its seed and actions: a physics world that survives resets, a counter in a module, a
generator of its own. Its observations may not show this for many steps. So fresh envs are restored to the start of
recorded samples and must continue as recorded: first samples of random play, then samples of the run.
"""

import time
from collections.abc import Generator, Sequence
from contextlib import closing
from copy import deepcopy
from functools import partial
from itertools import chain, islice
from typing import Any

import numpy as np

from rl_training.envs.changes import ChangeLog, PendingChanges
from rl_training.envs.checks.findings import random_actions
from rl_training.envs.layers import AnyEnv
from rl_training.envs.packed import make_legal
from rl_training.envs.restore import restore_env, to_space_dtype
from rl_training.envs.samples import ReplaySample, add_checksum
from rl_training.envs.subprocesses import SubprocessError, call_in_process
from rl_training.envs.vector.protocol import EnvFactory
from rl_training.envs.vector.sync import SyncEpisodeVectorEnv
from rl_training.streams import make_stream

TARGET_SAMPLES = 20  # only about half of them show that BipedalWalker-v3 does not replay
MIN_SAMPLES = 8
_CPU_SECONDS = 30.0  # no further sample is compared afterwards; CPU time, so that a busy machine compares as many
_WALL_SECONDS = 120.0
_STEPS_BEFORE = 40  # at most, in the episode before a random sample begins
_STEPS_AFTER = 100  # at most, in a random sample


def replay_difference(
    make_env: EnvFactory, samples: Sequence[ReplaySample], seed: int, answer_seconds: float
) -> str | None:
    """Say why the env does not replay or could not be compared; none if no difference was found.

    The envs run in another process, so that they cannot affect those of this one, not even through a module's state.
    `answer_seconds` is the time limit for a single env call.
    """
    try:
        difference = call_in_process(partial(find_difference, make_env, samples, seed), _WALL_SECONDS + answer_seconds)
    except SubprocessError as error:
        return f"could not be compared with fresh envs ({error})"
    return None if difference is None else f"does not replay: {difference}"


def find_difference(make_env: EnvFactory, samples: Sequence[ReplaySample], seed: int) -> str | None:
    """Describe the first sample that a fresh env does not reproduce; none if there is no such sample.

    Random samples come first, then those of the run, the cheapest first. Slow envs may leave no time for all of them.
    Raises `TimeoutError` if too few samples could be compared.
    """
    with_past = sum(sample.episode_number > 0 for sample in samples)
    num_random = max(MIN_SAMPLES, TARGET_SAMPLES - with_past)
    compared, num_steps, began = 0, 0, time.process_time()
    with closing(play_samples(make_env, seed)) as played:
        for sample in chain(islice(played, num_random), sorted(samples, key=_num_steps)):
            used, cost = time.process_time() - began, _num_steps(sample)
            if num_steps and used + cost * used / num_steps > _CPU_SECONDS:
                break
            difference = sample_difference(make_env, sample)
            if difference is not None:
                return difference
            compared, num_steps = compared + 1, num_steps + cost
    if compared < MIN_SAMPLES:
        raise TimeoutError(f"only {compared} of {MIN_SAMPLES} samples fit into {_CPU_SECONDS:g} s of CPU time")
    return None


def _num_steps(sample: ReplaySample) -> int:
    return sample.start.length + len(sample.actions)


def play_samples(make_env: EnvFactory, seed: int) -> Generator[ReplaySample, None, None]:
    """Play random actions in one env, episode after episode, and yield samples without end."""
    lengths = make_stream(seed, "replay_check")
    with closing(SyncEpisodeVectorEnv([make_env], seed)) as envs:
        actions = random_actions(envs.single_action_space, seed, "replay_check")
        recorder = envs.tracker.recorder
        while True:
            obs, _ = envs.reset()  # a new episode each time: hidden state comes from earlier episodes
            for _ in range(lengths.integers(_STEPS_BEFORE + 1)):
                obs = _play_step(envs, next(actions), obs)
            envs.tracker.begin_samples(envs.state_dict()["states"], obs)
            for _ in range(_STEPS_AFTER):
                obs = _play_step(envs, next(actions), obs)
                if not recorder.recording:
                    break
            yield recorder.samples()[-1]
            recorder.stop()


def _play_step(envs: SyncEpisodeVectorEnv, action: Any, obs: Any) -> Any:
    legal = make_legal(action, obs[0], envs.single_observation_space, envs.single_action_space)
    obs, _, terminated, truncated, _ = envs.step(np.array([legal]))
    if terminated[0] or truncated[0]:
        obs, _ = envs.reset()
    return obs


def sample_difference(make_env: EnvFactory, sample: ReplaySample) -> str | None:
    """Say where a fresh env differs from a sample; none if it reproduces the sample."""
    with closing(make_env()) as env:
        restored = restore_env(env, sample.start, sample.obs)
        return restored.failure or _first_difference(env, sample)


def _first_difference(env: AnyEnv, sample: ReplaySample) -> str | None:
    checksum, next_seed = 0, sample.next_seed
    changes = PendingChanges(env, ChangeLog(during=sample.changes), env.reset)
    for step, (action, expected) in enumerate(zip(sample.actions, sample.checksums, strict=True), start=1):
        changes.make_before(step)
        obs, reward, terminated, truncated, _ = env.step(deepcopy(action))
        checksum = add_checksum(checksum, to_space_dtype(env, obs), float(reward), bool(terminated), bool(truncated))
        if (terminated or truncated) and next_seed is not None:
            obs, _ = env.reset(seed=next_seed)
            next_seed = None
            checksum = add_checksum(checksum, to_space_dtype(env, obs))
        if checksum != expected:
            return (
                f"a fresh env that was restored to step {sample.start.length} of an episode "
                f"behaved differently {step} steps later"
            )
    return None
