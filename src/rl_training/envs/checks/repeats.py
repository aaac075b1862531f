"""Check that an environment is a function of its seed and its actions.

It is played repeatedly, next to a second env, in a separate process and after a resume.
"""

from collections.abc import Iterable, Iterator
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from itertools import islice, zip_longest
from typing import Any

import numpy as np

from rl_training.envs.checks.findings import Finding, Subject, random_actions
from rl_training.envs.layers import AnyEnv
from rl_training.envs.replay_check import find_difference
from rl_training.envs.restore import own_state, same_values
from rl_training.envs.subprocesses import SubprocessError, call_in_process
from rl_training.streams import derive_seed

_OTHER_EPISODES = 3
_PROCESS_STEPS = 20
_SEEDS = 5
_DRAW_FROM_SEED = "use only self.np_random for random numbers, after super().reset(seed=seed)"


@dataclass(frozen=True)
class EnvOutput:
    """The output of an env after a reset or a step."""

    place: str
    obs: Any
    reward: Any = 0.0
    ended: tuple[bool, bool] = (False, False)
    """(terminated, truncated)"""


def play(env: AnyEnv, actions: Iterable[Any], seed: int) -> Iterator[EnvOutput]:
    """Play the actions in as many episodes as needed; the seeds of the episodes are derived from `seed`."""
    episode, step = 0, 0
    yield _reset(env, episode, seed)
    for action in actions:
        obs, reward, terminated, truncated, _ = env.step(deepcopy(action))
        step += 1
        place = f"episode {episode}, step {step}"
        yield EnvOutput(place, deepcopy(obs), deepcopy(reward), (bool(terminated), bool(truncated)))
        if terminated or truncated:
            episode, step = episode + 1, 0
            yield _reset(env, episode, seed)


def _reset(env: AnyEnv, episode: int, seed: int) -> EnvOutput:
    obs, _ = env.reset(seed=derive_seed(seed, "check_env/played", episode))
    return EnvOutput(f"episode {episode}, reset", deepcopy(obs))


def find_mismatch(first: Iterable[EnvOutput], second: Iterable[EnvOutput]) -> str | None:
    """Describe the first difference between two sequences of outputs; none if they are equal."""
    for one, other in zip_longest(first, second):
        if one is None or other is None:
            return "one of them has fewer steps"
        if one.ended != other.ended:
            return f"{one.place}: the episode ends in only one of them"
        if not same_values(one.obs, other.obs):
            return f"{one.place}: {_obs_difference(one.obs, other.obs)}"
        if not same_values(one.reward, other.reward):
            return f"{one.place}: rewards {one.reward} and {other.reward}"
    return None


def _obs_difference(one: Any, other: Any) -> str:
    if not (isinstance(one, np.ndarray) and isinstance(other, np.ndarray) and one.shape == other.shape):
        return f"observations {one} and {other}"
    component = tuple(np.argwhere(one != other)[0].tolist())
    return f"component {list(component)} of the observations: {one[component]} and {other[component]}"


def _actions(subject: Subject, env: AnyEnv, purpose: str = "playing") -> list[Any]:
    return list(islice(random_actions(env.action_space, subject.seed, purpose), subject.short_steps))


def _play_for_process(subject: Subject) -> list[EnvOutput]:
    with closing(subject.make()) as env:
        return list(play(env, _actions(subject, env, "process")[:_PROCESS_STEPS], subject.seed))


def _play_fresh_env(subject: Subject, seed: int) -> list[EnvOutput]:
    with closing(subject.make()) as env:
        return list(play(env, _actions(subject, env), seed))


def check_seed(subject: Subject) -> Finding:
    """Check that two fresh envs behave the same for the same seed and actions."""
    mismatch = find_mismatch(_play_fresh_env(subject, subject.seed), _play_fresh_env(subject, subject.seed))
    if mismatch is None:
        return Finding("seed", "ok", f"the same seed and actions give the same {subject.short_steps} steps")
    return Finding("seed", "problem", f"same seed and actions, {mismatch}", _DRAW_FROM_SEED)


def check_reuse(subject: Subject) -> Finding:
    """Check that an env that has played other episodes behaves like a fresh one."""
    with closing(subject.make()) as env:
        for other in range(1, _OTHER_EPISODES + 1):
            for _ in play(env, _actions(subject, env, f"before/{other}"), subject.seed + other):
                pass
        mismatch = find_mismatch(
            _play_fresh_env(subject, subject.seed), play(env, _actions(subject, env), subject.seed)
        )
    if mismatch is None:
        return Finding("reuse", "ok", "an env that has played other episodes behaves like a fresh one")
    remedy = "reset everything that earlier episodes changed"
    return Finding("reuse", "warning", f"after other episodes, {mismatch}", remedy)


def check_copies(subject: Subject) -> Finding:
    """Check that two envs in one process do not affect each other."""
    with closing(subject.make()) as env, closing(subject.make()) as neighbour:
        actions, others = _actions(subject, env), _actions(subject, env, "neighbour")
        side_by_side = zip(
            play(env, actions, subject.seed), _play_forever(neighbour, others, subject.seed), strict=False
        )
        mismatch = find_mismatch(_play_fresh_env(subject, subject.seed), (output for output, _ in side_by_side))
    if mismatch is None:
        return Finding("copies", "ok", "two envs in one process do not affect each other")
    remedy = "share no state and no generator between envs (global, class or module)"
    return Finding("copies", "problem", f"with a second env beside it, {mismatch}", remedy)


def _play_forever(env: AnyEnv, actions: list[Any], seed: int) -> Iterator[EnvOutput]:
    """Play the actions again and again, so that this env outlasts the one beside it."""
    while True:
        seed += 1
        yield from play(env, actions, seed)


def check_process(subject: Subject, timeout: float = 30.0) -> Finding:
    """Check that an env can be made, played and closed in another process, and behaves there as it does here."""
    remedy = "use vectorization: sync"
    try:
        outputs = call_in_process(partial(_play_for_process, subject), timeout)
    except SubprocessError as error:
        return Finding("process", "warning", str(error), remedy)
    mismatch = find_mismatch(_play_for_process(subject), outputs)
    if mismatch:
        return Finding("process", "warning", f"in a separate process, {mismatch}", remedy)
    return Finding("process", "ok", "starts, plays and closes in a separate process")


def check_seeds_differ(subject: Subject) -> Finding:
    """Report whether different seeds give different episodes; both answers are fine."""
    first = _play_fresh_env(subject, subject.seed)
    if any(find_mismatch(first, _play_fresh_env(subject, subject.seed + number)) for number in range(1, _SEEDS)):
        return Finding("seeds", "ok", "different seeds give different episodes")
    return Finding("seeds", "ok", f"{_SEEDS} seeds give the same episode: the env is deterministic")


def check_resume(subject: Subject) -> Finding:
    """Check that a fresh env, restored to the middle of an episode, continues bit for bit like the original."""
    with closing(subject.make()) as env:
        mask = "off" if env.masks is None else env.source
    try:
        difference = find_difference(partial(subject.make_for_training, mask), (), subject.seed)
    except TimeoutError as error:
        return Finding(
            "exact resume", "warning", f"the env is too slow to check: {error}", "resume reports whether it was exact"
        )
    if difference is not None:
        remedy = "fix what the rows seed and reuse report, or provide get_state() and set_state(state)"
        return Finding("exact resume", "warning", difference, remedy)
    with closing(subject.make()) as env:
        env.reset(seed=subject.first_seed)
        means = (
            "by replaying the actions of its episode"
            if own_state(env.env) is None
            else "with the env's own get_state()"
        )
    return Finding("exact resume", "ok", f"a fresh env continues bit for bit, {means}")
