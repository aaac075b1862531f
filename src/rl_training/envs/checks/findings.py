"""The input and output of environment checks, and the random actions that they try."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from gymnasium import Wrapper, spaces

from rl_training.envs.layers import AnyEnv
from rl_training.envs.making import make_raw_env, make_single_env
from rl_training.envs.packed import ActionMasks, choices_of_actions, find_mask, legal_action
from rl_training.errors import ActionMaskError, describe_error
from rl_training.packing import MASK_NAME, Array
from rl_training.plugins import Entry
from rl_training.streams import derive_seed

Status = Literal["ok", "warning", "problem"]

_MAX_SHORT_STEPS = 200


@dataclass(frozen=True)
class Finding:
    """The result of one check. A problem breaks training; a warning should be looked at before a long run."""

    check: str
    status: Status
    found: str
    remedy: str = ""


class LegalActions(Wrapper[Any, Any, Any, Any]):
    """Takes a legal action in place of an illegal one; an env without a mask gets every action as it is."""

    def __init__(self, env: AnyEnv, source: str) -> None:
        """`source` says where the mask comes from, as the config field `action_mask` does."""
        super().__init__(env)
        self.source = source
        usable = source != "off" and choices_of_actions(env.action_space)
        self.masks = ActionMasks(env, source) if usable else None
        """None if there is no mask, or if actions of this space cannot be masked."""
        self._mask: Array | None = None

    def legal(self, action: Any) -> Any:
        """Return the action if it is legal now, else a legal one."""
        return action if self._mask is None else legal_action(action, self._mask, self.action_space)

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; `check_api` reports an env that does not take all arguments of `reset`."""
        obs, info = self.env.reset(**arguments)
        self._read(obs, info, terminated=False)
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take one step, with a legal action."""
        obs, reward, terminated, truncated, info = self.env.step(self.legal(action))
        self._read(obs, info, terminated=terminated)
        return obs, reward, terminated, truncated, info

    def _read(self, obs: Any, info: dict[str, Any], *, terminated: bool) -> None:
        unexpected = self.source == "off" and isinstance(info, dict) and MASK_NAME in info
        if self.masks is not None:
            self._mask = self.masks.read(obs, info, terminated=bool(terminated))
        elif unexpected and choices_of_actions(self.action_space):
            raise ActionMaskError(
                f'info has "{MASK_NAME}" now, but not after reset(seed=0), where training looks for it: '
                "training would not use it"
            )


@dataclass(frozen=True)
class Subject:
    """The environment to check, with the number of steps to play and the seed."""

    env_id: str
    env_kwargs: dict[str, Any]
    steps: int
    seed: int
    wrappers: Sequence[Entry] = ()

    @property
    def short_steps(self) -> int:
        """The number of steps in checks that play the same actions several times."""
        return min(self.steps, _MAX_SHORT_STEPS)

    @property
    def first_seed(self) -> int:
        """The seed of a single episode, small enough for every simulator."""
        return derive_seed(self.seed, "check_env/first")

    @cached_property
    def mask_source(self) -> str:
        """The place where `action_mask: auto` finds the mask of legal actions; `off` if the env gives none."""
        env = make_raw_env(self.env_id, self.env_kwargs, self.wrappers)
        try:
            with warnings.catch_warnings(), closing(env):
                warnings.simplefilter("ignore")  # the checks report them
                return find_mask(env)
        except Exception:  # an env that cannot be reset or closed is reported by the checks
            return "off"

    def make(self) -> LegalActions:
        """Make a fresh env; the caller closes it."""
        source = self.mask_source
        return LegalActions(make_raw_env(self.env_id, self.env_kwargs, self.wrappers), source)

    def make_for_training(self, action_mask: str) -> AnyEnv:
        """Make a fresh env whose observations and actions are arrays, as training does; the caller closes it."""
        return make_single_env(self.env_id, self.env_kwargs, action_mask, wrappers=self.wrappers)


Check = Callable[[Subject], Finding]


def run_check(name: str, check: Check, subject: Subject) -> Finding:
    """Return the finding of `check`; an exception is reported as a problem."""
    try:
        return check(subject)
    except ActionMaskError as error:
        return mask_problem(error)
    except Exception as error:  # an env may raise anything
        return Finding(name, "problem", describe_error(error), "make sure that the environment does not raise here")


def mask_problem(error: ActionMaskError) -> Finding:
    """Return the finding for a mask that training would refuse."""
    remedy = "give one entry per choice, at least one of them 1, after every reset and step"
    return Finding("action mask", "problem", str(error), remedy)


def random_actions(space: spaces.Space[Any], seed: int, purpose: str) -> Iterator[Any]:
    """Yield random actions without end; the generator of the env's own space is not used."""
    sampler = deepcopy(space)
    sampler.seed(derive_seed(seed, f"check_env/{purpose}"))
    while True:
        yield sampler.sample()
