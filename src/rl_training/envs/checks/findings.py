"""The input and output of environment checks, and the random actions that they try."""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal

from gymnasium import spaces

from rl_training.envs.layers import AnyEnv
from rl_training.envs.making import make_raw_env, make_single_env
from rl_training.errors import describe_error
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

    def make(self) -> AnyEnv:
        """Make a fresh env; the caller closes it."""
        return make_raw_env(self.env_id, self.env_kwargs, self.wrappers)

    def make_for_training(self, action_mask: str) -> AnyEnv:
        """Make a fresh env whose observations and actions are arrays, as training does; the caller closes it."""
        return make_single_env(self.env_id, self.env_kwargs, action_mask, wrappers=self.wrappers)


Check = Callable[[Subject], Finding]


def run_check(name: str, check: Check, subject: Subject) -> Finding:
    """Return the finding of `check`; an exception is reported as a problem."""
    try:
        return check(subject)
    except Exception as error:  # an env may raise anything
        return Finding(name, "problem", describe_error(error), "make sure that the environment does not raise here")


def random_actions(space: spaces.Space[Any], seed: int, purpose: str) -> Iterator[Any]:
    """Yield random actions without end; the generator of the env's own space is not used."""
    sampler = deepcopy(space)
    sampler.seed(derive_seed(seed, f"check_env/{purpose}"))
    while True:
        yield sampler.sample()
