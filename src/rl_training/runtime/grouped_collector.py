"""Collecting in groups of envs, each of which collects its share of an iteration by itself.

The division into groups affects the results of a run, because a network's outputs for three rows and for five may
differ in their last bits. The place of the groups does not, because every place carries out the same orders.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium import Space

from rl_training.algorithms.base import StoredPolicy
from rl_training.envs.access import EnvAccess
from rl_training.envs.guard import EnvCalls
from rl_training.envs.samples import KEPT_SAMPLES
from rl_training.envs.vector.process import WorkerError
from rl_training.errors import EnvironmentStepError
from rl_training.runtime.collector import (
    CollectResult,
    Episode,
    Transition,
    check_num_groups,
    episode_metrics,
    group_states,
)
from rl_training.runtime.shares import Access, Order, Share, Weights, join_shares, ready_to_send


@dataclass(frozen=True)
class GroupFailure:
    """The reason why a group did not carry out its order."""

    cause: str
    trace: str = ""
    """The traceback in the group's process, if an exception was raised there."""
    permanent: bool = False
    """Whether another attempt would fail in the same way."""


class Places(Protocol):
    """Where the groups of a run live; groups are numbered from 0."""

    calls: list[EnvCalls]
    """The env calls of this process, which a watchdog checks."""
    has_own_policies: bool
    """Whether the groups act with copies of the policy, which need its weights with every order."""

    def send(self, number: int, order: Order) -> None:
        """Give a group its next order."""

    def receive(self, numbers: Sequence[int], interrupted: Callable[[], bool]) -> dict[int, Share | GroupFailure]:
        """Return the answers of these groups that have arrived; if there is none, wait for a moment."""

    def replace(self, number: int) -> None:
        """Put a new group in the place of one that failed."""

    def close(self) -> None:
        """Close the envs of all groups."""


def split_envs(num_envs: int, num_groups: int) -> list[range]:
    """Divide the env indices into contiguous groups, the larger ones first."""
    size, larger = divmod(num_envs, num_groups)
    starts = [number * size + min(number, larger) for number in range(num_groups + 1)]
    return [range(*bounds) for bounds in pairwise(starts)]


class GroupedCollector:
    """Joins the shares of several groups. It collects a whole iteration or nothing.

    After an interruption or an error, its state is the one before the iteration.
    """

    def __init__(
        self,
        places: Places,
        policy: StoredPolicy,
        groups: Sequence[range],
        spaces: tuple[Space[Any], Space[Any]],
        *,
        max_restarts: int,
    ) -> None:
        self._places, self._policy, self._groups, self._max_restarts = places, policy, groups, max_restarts
        self.env: EnvAccess = _GroupedEnvAccess(groups[-1].stop, spaces, self._access_envs)
        self.obs: Any = None
        self.calls = places.calls
        self.close = places.close
        self._states: list[dict[str, Any]] = [{}] * len(groups)  # before the next order; empty before the first
        self._in_place = [False] * len(groups)  # whether the group itself is in that state
        self._wants_samples = False
        self._samples: list[dict[str, Any]] = []
        self._num_env_steps = 0
        self._episodes: list[Episode] = []

    @property
    def has_all_samples(self) -> bool:
        """Whether the maximum number of env samples is kept."""
        return len(self._samples) == KEPT_SAMPLES

    def start(self) -> None:
        """Begin the first episode of every env."""
        self._carry_out(range(0), lambda: False)

    def collect(self, store: Callable[[Transition], None], steps: range, interrupted: Callable[[], bool]) -> None:
        """Take one step of every env at each of the env steps in `steps`; nothing is stored if interrupted."""
        joined = join_shares(self._carry_out(steps, interrupted) or ())
        if joined is not None:
            store(joined)
            self._num_env_steps += joined.rewards.size

    def take_result(self) -> CollectResult:
        """Return what was stored since the last call."""
        num_env_steps, self._num_env_steps = self._num_env_steps, 0
        episodes, self._episodes = tuple(self._episodes), []
        return CollectResult(num_env_steps, len(episodes), episode_metrics(episodes), self.obs, episodes)

    def _access_envs(self, access: Access) -> list[Any]:
        """Forward a callback's call to the envs of every group, and return one answer per env."""
        shares = self._carry_out(range(0), lambda: False, access)
        return [answer for share in shares or () for answer in share.answers or ()]

    def _carry_out(
        self, steps: range, interrupted: Callable[[], bool], access: Access | None = None
    ) -> list[Share] | None:
        """Let every group carry out its order for these steps; none if interrupted."""
        weights = None
        if self._places.has_own_policies:
            params = self._policy.params.flat.numpy(force=True)
            weights = Weights(params, ready_to_send(self._policy.encoder.normalizer.state_dict()))
        orders = [
            self._make_order(number, steps, weights)._replace(access=access) for number in range(len(self._groups))
        ]
        self._in_place = [False] * len(orders)  # until its share has come
        for number, order in enumerate(orders):
            self._places.send(number, order)
        shares = self._wait_for_shares(orders, interrupted)
        if shares is None:
            return None
        self._states, self._in_place = [share.state for share in shares], [True] * len(shares)
        self.obs = np.concatenate([share.obs for share in shares])
        self._episodes += [episode for share in shares for episode in share.episodes]
        self._samples, self._wants_samples = shares[0].samples or self._samples, False
        return shares

    def _make_order(self, number: int, steps: range, weights: Weights | None) -> Order:
        state = None if self._in_place[number] else self._state_for(number)
        return Order(steps, weights, state, records_samples=self._wants_samples and number == 0)

    def _state_for(self, number: int) -> dict[str, Any] | None:
        """Return the state before the next order for a group that is not in it; none before the first order."""
        state = self._states[number]
        return {**state, "samples": [] if number else self._samples} if state else None

    def _wait_for_shares(self, orders: Sequence[Order], interrupted: Callable[[], bool]) -> list[Share] | None:
        shares: dict[int, Share] = {}
        failures: list[list[GroupFailure]] = [[] for _ in orders]
        while len(shares) < len(orders):
            if interrupted():
                return None
            waiting = [number for number in range(len(orders)) if number not in shares]
            for number, answer in self._places.receive(waiting, interrupted).items():
                if isinstance(answer, GroupFailure):
                    failures[number].append(answer)
                    self._restart(number, orders[number], failures[number])
                else:
                    self._check_replacement(number, answer, len(failures[number]))
                    shares[number] = answer
        return [shares[number] for number in range(len(orders))]

    def _restart(self, number: int, order: Order, failures: Sequence[GroupFailure]) -> None:
        """Replace a group that failed and repeat its order from the state before it, unless that would not help."""
        failure, restarts = failures[-1], len(failures) - 1
        came_again = failure.trace and failures[-2:-1] == [failure]  # the same exception at the same place
        envs = self._groups[number]
        name = f"collector {number} (envs {envs[0]} to {envs[-1]})"
        if failure.permanent or came_again or restarts == self._max_restarts:
            cause = failure.cause if failure.trace else f"{name} failed: {failure.cause}"
            tried = f" (tried {restarts + 1} times)" if restarts else ""
            raise EnvironmentStepError(f"{cause}{tried}") from (WorkerError(failure.trace) if failure.trace else None)
        warnings.warn(
            f"{name} failed: {failure.cause}; restarting it "
            f"({restarts + 1} of at most {self._max_restarts} times in a row)",
            stacklevel=5,
        )
        self._places.replace(number)
        self._places.send(number, order._replace(state=self._state_for(number)))

    def _check_replacement(self, number: int, share: Share, restarts: int) -> None:
        """Raise an error if a replaced group could not be restored to the state before its order."""
        if restarts and share.given_up:
            index, why = next(iter(share.given_up.items()))
            raise EnvironmentStepError(
                f"collector {number} was lost, and env {index} could not be restored, because {why}"
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all groups, the current observations, and samples for `check_replays`."""
        return {"groups": self._states, "obs": torch.from_numpy(np.array(self.obs)), "samples": self._samples}

    def restore(self, state: dict[str, Any]) -> dict[int, str]:
        """Continue from `state`; return which envs had to begin a new episode, and why."""
        check_num_groups(state, len(self._groups))
        self._states = group_states(state)
        self._samples = list(state["samples"])
        self._in_place = [False] * len(self._groups)
        shares = self._carry_out(range(0), lambda: False)
        return {index: why for share in shares or () for index, why in share.given_up.items()}

    def begin_samples(self) -> None:
        """Let the first group record what some of its envs do next."""
        self._wants_samples = True


@dataclass(frozen=True)
class _GroupedEnvAccess:
    """Access to the envs of all groups, wherever they live."""

    num_envs: int
    spaces: tuple[Space[Any], Space[Any]]
    ask: Callable[[Access], list[Any]]

    @property
    def observation_space(self) -> Space[Any]:
        """The observation space of one env, as the policy sees it."""
        return self.spaces[0]

    @property
    def action_space(self) -> Space[Any]:
        """The action space of one env, as the policy sees it."""
        return self.spaces[1]

    def get_attr(self, name: str) -> list[Any]:
        """Return the value of an attribute, one per env."""
        return self.ask(Access("get_attr", (name,), {}))

    def set_attr(self, name: str, value: Any) -> None:
        """Set an attribute of all envs."""
        self.ask(Access("set_attr", (name, value), {}))

    def call(self, method: str, /, *args: Any, **kwargs: Any) -> list[Any]:
        """Call a method of all envs."""
        return self.ask(Access("call", (method, *args), kwargs))
