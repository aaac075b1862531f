"""Access to the training envs of a run, wherever they live, for callbacks."""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from gymnasium import Space

from rl_training.envs.changes import Answer, EnvChange, read_attr
from rl_training.envs.plain import plain_copy
from rl_training.envs.vector.protocol import VectorEnv
from rl_training.errors import ConfigError


class EnvAccess(Protocol):
    """Reads and changes attributes of all training envs, and calls their methods, through all wrappers.

    Changes are recorded: an env that is restored gets them again, in the same order and at the same steps.
    """

    @property
    def num_envs(self) -> int:
        """The number of envs."""

    @property
    def observation_space(self) -> Space[Any]:
        """The observation space of one env, as the policy sees it."""

    @property
    def action_space(self) -> Space[Any]:
        """The action space of one env, as the policy sees it."""

    def get_attr(self, name: str) -> list[Any]:
        """Return the value of an attribute, one per env; it must be plain values or arrays."""

    def set_attr(self, name: str, value: Any) -> None:
        """Set an existing attribute of all envs, from now on and in all later episodes."""

    def call(self, method: str, /, *args: Any, **kwargs: Any) -> list[Any]:
        """Call a method of all envs, and return its results, one per env."""


class VectorEnvAccess:
    """Access to the envs of a vector env."""

    def __init__(self, envs: VectorEnv) -> None:
        self._envs = envs

    @property
    def num_envs(self) -> int:
        """The number of envs."""
        return self._envs.num_envs

    @property
    def observation_space(self) -> Space[Any]:
        """The observation space of one env, as the policy sees it."""
        return self._envs.single_observation_space

    @property
    def action_space(self) -> Space[Any]:
        """The action space of one env, as the policy sees it."""
        return self._envs.single_action_space

    def get_attr(self, name: str) -> list[Any]:
        """Return the value of an attribute, one per env; it must be plain values or arrays."""
        return self._ask(partial(read_attr, name=name))

    def set_attr(self, name: str, value: Any) -> None:
        """Set an existing attribute of all envs, from now on and in all later episodes."""
        self._change(EnvChange(name, (_given(value, f"set_attr('{name}')"),)))

    def call(self, method: str, /, *args: Any, **kwargs: Any) -> list[Any]:
        """Call a method of all envs, and return its results, one per env."""
        what = f"call('{method}')"
        return self._change(EnvChange(method, _given(args, what), _given(kwargs, what)))

    def _change(self, change: EnvChange) -> list[Any]:
        self._ask(change.find_problem)
        self._envs.tracker.begin_change()
        answers = self._envs.visit(change.make)
        self._envs.tracker.finish_change(change)
        return self._values(answers)

    def _ask(self, question: Callable[[Any], Answer]) -> list[Any]:
        return self._values(self._envs.visit(question))

    def _values(self, answers: list[Answer]) -> list[Any]:
        for index, answer in enumerate(answers, start=self._envs.tracker.first_env):
            if answer.problem:
                raise ConfigError(f"env {index}: {answer.problem}")
        return [answer.value for answer in answers]


def _given(value: Any, what: str) -> Any:
    try:
        return plain_copy(value)
    except ConfigError as error:
        raise ConfigError(f"{what} was given {error}") from None
