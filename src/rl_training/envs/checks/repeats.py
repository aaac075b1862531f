"""Whether an environment is a function of its seed and its actions: the same again, elsewhere, and after a resume."""

from collections.abc import Iterable, Iterator
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass
from itertools import islice, zip_longest
from typing import Any

import numpy as np

from rl_training.envs.checks.findings import Finding, Subject, random_actions
from rl_training.envs.replay_check import find_difference
from rl_training.envs.restore import AnyEnv, own_state, same_values
from rl_training.streams import derive_seed

_OTHER_EPISODES = 3
_SEEDS = 5
_DRAW_FROM_SEED = "draw from self.np_random alone, after super().reset(seed=seed)"


@dataclass(frozen=True)
class Moment:
    """What an env showed after a reset or a step."""

    place: str
    obs: Any
    reward: Any = 0.0
    ended: tuple[bool, bool] = (False, False)
    """Terminated, truncated."""


def play(env: AnyEnv, actions: Iterable[Any], seed: int) -> Iterator[Moment]:
    """Play the actions, through as many episodes as they take; the seeds of all episodes follow from `seed`."""
    episode, step = 0, 0
    yield _begin(env, episode, seed)
    for action in actions:
        obs, reward, terminated, truncated, _ = env.step(deepcopy(action))
        step += 1
        place = f"episode {episode}, step {step}"
        yield Moment(place, deepcopy(obs), deepcopy(reward), (bool(terminated), bool(truncated)))
        if terminated or truncated:
            episode, step = episode + 1, 0
            yield _begin(env, episode, seed)


def _begin(env: AnyEnv, episode: int, seed: int) -> Moment:
    obs, _ = env.reset(seed=derive_seed(seed, "check_env/played", episode))
    return Moment(f"episode {episode}, reset", deepcopy(obs))


def difference(first: Iterable[Moment], second: Iterable[Moment]) -> str | None:
    """Where two ways of playing the same actions part, and in what."""
    for one, other in zip_longest(first, second):
        if one is None or other is None:
            return "one of them ended earlier"
        if one.ended != other.ended:
            return f"{one.place}: the episode ends in one of them"
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


def _played(subject: Subject, seed: int) -> list[Moment]:
    with closing(subject.make()) as env:
        return list(play(env, _actions(subject, env), seed))


def check_seed(subject: Subject) -> Finding:
    """Whether two fresh envs show the same for the same seed and actions."""
    parting = difference(_played(subject, subject.seed), _played(subject, subject.seed))
    if parting is None:
        return Finding("seed", "ok", f"the same seed and actions give the same {subject.short_steps} steps")
    return Finding("seed", "problem", f"same seed and actions, {parting}", _DRAW_FROM_SEED)


def check_reuse(subject: Subject) -> Finding:
    """Whether an env that has played other episodes shows the same as a fresh one."""
    with closing(subject.make()) as env:
        for other in range(1, _OTHER_EPISODES + 1):
            for _ in play(env, _actions(subject, env, f"before/{other}"), subject.seed + other):
                pass
        parting = difference(_played(subject, subject.seed), play(env, _actions(subject, env), subject.seed))
    if parting is None:
        return Finding("reuse", "ok", "an env that has played other episodes is as good as a fresh one")
    remedy = "let reset put back everything that earlier episodes changed"
    return Finding("reuse", "warning", f"after other episodes, {parting}", remedy)


def check_copies(subject: Subject) -> Finding:
    """Whether two envs in one process leave each other alone."""
    with closing(subject.make()) as env, closing(subject.make()) as neighbour:
        actions, others = _actions(subject, env), _actions(subject, env, "neighbour")
        side_by_side = zip(play(env, actions, subject.seed), _endless(neighbour, others, subject.seed), strict=False)
        parting = difference(_played(subject, subject.seed), (moment for moment, _ in side_by_side))
    if parting is None:
        return Finding("copies", "ok", "two envs in one process leave each other alone")
    remedy = "share no state and no generator between envs (global, class or module)"
    return Finding("copies", "problem", f"with a second env beside it, {parting}", remedy)


def _endless(env: AnyEnv, actions: list[Any], seed: int) -> Iterator[Moment]:
    """A neighbour that never stops before the env it is beside."""
    while True:
        seed += 1
        yield from play(env, actions, seed)


def check_seeds_differ(subject: Subject) -> Finding:
    """Whether different seeds give different episodes; a fixed start is legitimate."""
    first = _played(subject, subject.seed)
    if any(difference(first, _played(subject, subject.seed + number)) for number in range(1, _SEEDS)):
        return Finding("seeds", "ok", "different seeds give different episodes")
    return Finding("seeds", "ok", f"{_SEEDS} seeds give the same episode: the env is deterministic")


def check_resume(subject: Subject) -> Finding:
    """Whether a fresh env, brought back to the middle of an episode, goes on to the last bit as the stopped one."""
    try:
        difference = find_difference(subject.make, (), subject.seed)
    except TimeoutError as error:
        return Finding("exact resume", "warning", f"the env is too slow to tell: {error}", "resume says what it found")
    if difference is not None:
        remedy = "mend what the rows on seed and reuse say, or offer get_state() and set_state(state)"
        return Finding("exact resume", "warning", difference, remedy)
    with closing(subject.make()) as env:
        env.reset(seed=subject.first_seed)
        means = "by replaying the actions of its episode" if own_state(env) is None else "by the env's own get_state()"
    return Finding("exact resume", "ok", f"a fresh env goes on to the last bit, {means}")
