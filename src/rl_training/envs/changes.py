"""Changes that callbacks make to running envs, recorded so that a restored env gets them again at the same steps."""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from rl_training.envs.plain import pack_state, plain_copy, unpack_state
from rl_training.errors import ConfigError
from rl_training.experiment.validation import suggest

_OF_THE_TRAINER = ("reset", "step", "close")
_BEFORE = -1  # in place of a step: before the running episode began


class Answer(NamedTuple):
    """The value that an env returned, or the reason why there is none."""

    value: Any = None
    problem: str | None = None


@dataclass(frozen=True)
class EnvChange:
    """An attribute that was set in an env, or a method that was called."""

    name: str
    args: tuple[Any, ...]
    """The arguments of the method, or the value of the attribute alone."""
    kwargs: dict[str, Any] | None = None
    """The keyword arguments of the method; none for an attribute."""

    @property
    def is_call(self) -> bool:
        """Whether a method was called."""
        return self.kwargs is not None

    def find_problem(self, env: Any) -> Answer:
        """Return why an env cannot be changed in this way, without changing it; an empty answer if it can."""
        if self.is_call and self.name in _OF_THE_TRAINER:
            return Answer(problem=f"{self.name}() is called by the trainer alone")
        owner = find_owner(env, self.name)
        if owner is None:
            return Answer(problem=_no_attribute(env, self.name))
        if self.is_call and not callable(getattr(owner, self.name)):
            return Answer(problem=f"'{self.name}' is not a method: read it with get_attr")
        return Answer()

    def make(self, env: Any) -> Answer:
        """Change an env; return the value that the method returned."""
        owner = find_owner(env, self.name)
        if self.kwargs is None:
            setattr(owner, self.name, plain_copy(self.args[0]))
            return Answer()
        result = getattr(owner, self.name)(*plain_copy(self.args), **plain_copy(self.kwargs))
        return _plain_answer(result, f"{self.name}() returned")

    def state_dict(self) -> dict[str, Any]:
        """Return the change as tensors and plain values."""
        state: dict[str, Any] = pack_state(vars(self))
        return state

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "EnvChange":
        """Rebuild a change from the result of `state_dict`."""
        return cls(**unpack_state(state))


def find_owner(env: Any, name: str) -> Any:
    """Return the outermost layer of a wrapped env that has an attribute; none if no layer has it."""
    layer = env
    # `hasattr(layer, name)` is also true for a wrapper that only forwards reads to the env inside.
    while not (name in getattr(layer, "__dict__", ()) or hasattr(type(layer), name)):
        if not hasattr(layer, "env"):
            return layer if hasattr(layer, name) else None
        layer = layer.env
    return layer


def _no_attribute(env: Any, name: str) -> str:
    innermost = env
    while hasattr(innermost, "env"):
        innermost = innermost.env
    hint = suggest(name, [known for known in dir(innermost) if not known.startswith("_")])
    return f"{type(innermost).__name__} has no attribute '{name}'" + (f"; {hint}" if hint else "")


def read_attr(env: Any, name: str) -> Answer:
    """Read an attribute of an env, through its wrappers, if its value is plain."""
    owner = find_owner(env, name)
    if owner is None:
        return Answer(problem=_no_attribute(env, name))
    return _plain_answer(getattr(owner, name), f"'{name}' is")


def _plain_answer(value: Any, what: str) -> Answer:
    try:
        return Answer(plain_copy(value))
    except ConfigError as error:
        return Answer(problem=f"{what} {error}")


@dataclass(frozen=True)
class ChangeLog:
    """All changes of one env that a new env in its place must get."""

    before: tuple[EnvChange, ...] = ()
    """The changes made before the running episode began, in order."""
    during: tuple[tuple[int, EnvChange], ...] = ()
    """The changes made in the running episode, in order, each with the number of steps taken until then."""

    @property
    def num_calls(self) -> int:
        """The number of methods that were called."""
        return sum(change.is_call for change in self._all())

    def _all(self) -> tuple[EnvChange, ...]:
        return (*self.before, *(change for _, change in self.during))

    def add(self, step: int, change: EnvChange) -> "ChangeLog":
        """Return the log with a change after `step` steps of the running episode."""
        return replace(self, during=(*self.during, (step, change)))

    def next_episode(self) -> "ChangeLog":
        """Return the log for the next episode; only the newest of the values set for an attribute is kept.

        A method may depend on the values set before it was called, so those are all kept.
        """
        kept: list[EnvChange] = []
        replaceable: dict[str, EnvChange] = {}  # what was set after the last call
        for change in self._all():
            if change.is_call:
                kept += [*replaceable.values(), change]
                replaceable = {}
            else:
                replaceable.pop(change.name, None)
                replaceable[change.name] = change
        return ChangeLog((*kept, *replaceable.values()))

    def state_dict(self) -> dict[str, Any]:
        """Return the log as tensors and plain values."""
        return {
            "before": [change.state_dict() for change in self.before],
            "during": [(step, change.state_dict()) for step, change in self.during],
        }

    @classmethod
    def from_state(cls, state: dict[str, Any] | None) -> "ChangeLog":
        """Rebuild a log from the result of `state_dict`; older checkpoints have none."""
        if state is None:
            return cls()
        return cls(
            tuple(EnvChange.from_state(change) for change in state["before"]),
            tuple((step, EnvChange.from_state(change)) for step, change in state["during"]),
        )


class PendingChanges:
    """The changes that a new env still has to get while it is restored."""

    def __init__(self, env: Any, log: ChangeLog, reset: Callable[[], object]) -> None:
        """`reset` begins any episode, because methods of an env may fail before its first one."""
        self._env, self._reset = env, reset
        self._waiting = deque([*((_BEFORE, change) for change in log.before), *log.during])

    def make_before_episode(self) -> None:
        """Make the changes that came before the episode's reset."""
        self._make_until(_BEFORE)

    def make_before(self, step: int) -> None:
        """Make the changes that came before this step of the episode, counted from 1."""
        if self._waiting:
            self._make_until(step - 1)

    def make_all(self) -> None:
        """Make all changes that are left."""
        self._make_until(math.inf)

    def _make_until(self, last: float) -> None:
        if self._waiting and self._waiting[0][0] == _BEFORE:
            self._reset()
        while self._waiting and self._waiting[0][0] <= last:
            self._waiting.popleft()[1].make(self._env)


def repeat_changes(env: Any, log: ChangeLog) -> None:
    """Make all changes of a log in a new env that is about to begin an episode."""
    settled = log.next_episode()
    PendingChanges(env, settled, partial(env.reset, seed=0)).make_all()
