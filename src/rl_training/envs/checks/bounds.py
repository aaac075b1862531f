"""Check that an environment accepts actions at the bounds of its action space."""

from collections.abc import Iterator
from contextlib import closing
from copy import deepcopy
from itertools import islice
from typing import Any

import numpy as np
from gymnasium import spaces

from rl_training.envs.checks.findings import Finding, LegalActions, Subject, random_actions
from rl_training.envs.checks.recording import obs_fault, reward_fault
from rl_training.errors import ActionMaskError, describe_error

_MAX_ACTIONS = 200  # tried from a Discrete space; a Box gets two per dimension, up to this number
_NUM_REPEATS = 5  # steps for which an action is repeated


def check_bounds(subject: Subject) -> Finding:
    """Check that the env accepts every discrete action, or Box actions whose components are at their bounds."""
    with closing(subject.make()) as env:
        actions = list(_edge_actions(env.action_space, subject.seed))
        for action in actions:
            fault = _repeat_action(env, action, subject.first_seed)
            if fault:
                text = f"action {np.asarray(action).tolist()}: {fault}"
                return Finding("action bounds", "problem", text, "accept every action of the declared space")
    where = " while the mask allows them" if env.masks else ""
    return Finding("action bounds", "ok", f"{len(actions)} actions at the bounds of the space are accepted{where}")


def _edge_actions(space: spaces.Space[Any], seed: int) -> Iterator[Any]:
    drawn = random_actions(space, seed, "bounds")
    if isinstance(space, spaces.Discrete):
        wanted = np.unique(np.linspace(0, int(space.n) - 1, min(int(space.n), _MAX_ACTIONS)).astype(np.int64))
        yield from wanted + space.start
    elif isinstance(space, spaces.Box):
        yield from _box_edges(space, next(drawn))
    else:
        yield from islice(drawn, _MAX_ACTIONS // 10)


def _box_edges(space: spaces.Box, inside: Any) -> Iterator[Any]:
    """Yield actions with all components at a bound, then with one at a time; unbounded components keep `inside`."""
    low = np.where(np.isfinite(space.low), space.low, inside).astype(space.dtype)
    high = np.where(np.isfinite(space.high), space.high, inside).astype(space.dtype)
    yield low.copy()
    yield high.copy()
    for index in range(min(inside.size, _MAX_ACTIONS // 2)):
        for bound in (low, high):
            action = inside.copy()
            action.flat[index] = bound.flat[index]
            yield action


def _repeat_action(env: LegalActions, action: Any, seed: int) -> str | None:
    """Repeat an action while it is legal, and return what went wrong; none if nothing did."""
    try:
        env.reset(seed=seed)
        for _ in range(_NUM_REPEATS):
            if env.legal(action) is not action:
                break
            obs, reward, terminated, truncated, _ = env.step(deepcopy(action))
            fault = obs_fault(env.observation_space, obs) or reward_fault(reward)
            if fault and fault.status == "problem":
                return fault.found
            if terminated or truncated:
                break
    except ActionMaskError:
        raise
    except Exception as error:  # an env may raise anything; the finding names the action
        return describe_error(error)
    return None
