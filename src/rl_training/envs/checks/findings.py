"""What the checks of an environment are given, what they give back, and the actions that they try."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal

from gymnasium import spaces

from rl_training.envs.factory import make_single_env
from rl_training.envs.restore import AnyEnv
from rl_training.errors import describe_error
from rl_training.streams import derive_seed

Status = Literal["ok", "warning", "problem"]

_SHORT = 200  # steps of the checks that play the same actions several times


@dataclass(frozen=True)
class Finding:
    """What one check found: a problem breaks training, a warning is worth a look before a long run."""

    check: str
    status: Status
    found: str
    remedy: str = ""


@dataclass(frozen=True)
class Subject:
    """The environment to check, and how much of it to look at."""

    env_id: str
    env_kwargs: dict[str, Any]
    steps: int
    seed: int

    @property
    def short_steps(self) -> int:
        """Steps for the checks that play the same actions several times."""
        return min(self.steps, _SHORT)

    @property
    def first_seed(self) -> int:
        """The seed of a single episode, small enough for every simulator."""
        return derive_seed(self.seed, "check_env/first")

    def make(self) -> AnyEnv:
        """A fresh copy; the caller closes it."""
        return make_single_env(self.env_id, self.env_kwargs)


Check = Callable[[Subject], Finding]


def guarded(name: str, check: Check, subject: Subject) -> Finding:
    """What `check` finds; an env that raises meanwhile is itself a problem."""
    try:
        return check(subject)
    except Exception as error:  # an env may raise anything
        return Finding(name, "problem", describe_error(error), "let the environment take this without raising")


def random_actions(space: spaces.Space[Any], seed: int, purpose: str) -> Iterator[Any]:
    """Actions without end, from a stream of their own; the env's own space draws nothing."""
    sampler = deepcopy(space)
    sampler.seed(derive_seed(seed, f"check_env/{purpose}"))
    while True:
        yield sampler.sample()
