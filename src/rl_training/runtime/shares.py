"""A group of envs with its own actor, which collects its whole share of an iteration when it gets an order.

A share depends only on the order and on the state that the group had before. A lost group can therefore be created
again anywhere, and the new group repeats its share bit for bit.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.base import StoredPolicy
from rl_training.envs.factory import WORKER_STEP_TIMEOUT, make_vector_env
from rl_training.envs.guard import EnvCalls
from rl_training.experiment.config import TrainConfig
from rl_training.policies.base import Array
from rl_training.runtime.collector import Episode, LocalCollector, Transition, make_collector
from rl_training.runtime.learners import LearnerFactory
from rl_training.runtime.run_utils import limited_threads, tuned_for_training
from rl_training.runtime.watchdog import Watchdog

_ACTING_THREADS = 1  # the same everywhere, because it decides the last bits of a network's outputs


class Weights(NamedTuple):
    """The parameters of a policy and the state of its normalisation, on which its actions depend."""

    params: Array
    """The flat vector of all parameters."""
    normalizer: dict[str, Any]
    """The state of the normalisation of observations."""


class Access(NamedTuple):
    """A call of a method of `EnvAccess`."""

    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Order(NamedTuple):
    """What a group is asked to do."""

    steps: range
    """The env steps, counted over all envs of the run, at which it takes one step of each of its envs."""
    weights: Weights | None = None
    """The policy to act with; none if the group acts with the learner's own policy."""
    state: dict[str, Any] | None = None
    """The state to begin from; if None, a group continues after its last order, and a new group starts its episodes."""
    records_samples: bool = False
    """Whether to record what some of the envs do next, and to return the samples recorded before."""
    access: Access | None = None
    """What a callback does with the envs before the steps."""


class Steps(NamedTuple):
    """Consecutive steps of all envs of a group.

    The observation after a step is usually the one before the next step, so it is kept only once.
    """

    obs: Array
    """[step + 1, env, ...]: the observations that the policy saw, then the current ones."""
    last_obs: Array
    """[ending, ...]: the true last observation of every episode that ended, in the order of (step, env)."""
    actions: Array  # [step, env, ...]
    rewards: Array  # [step, env]
    terminated: Array  # [step, env]
    truncated: Array  # [step, env]
    goes_on: Array  # [step, env]

    @classmethod
    def stack(cls, taken: Sequence[Transition], obs_now: Array) -> "Steps":
        """Stack single steps, of which there is at least one."""
        obs, actions, rewards, next_obs, terminated, truncated, goes_on = zip(*taken, strict=True)
        endings = _stack(terminated), _stack(truncated)
        ended = [next_obs[step][env] for step, env in np.argwhere(endings[0] | endings[1]).tolist()]
        return cls(
            obs=_stack([*obs, obs_now]),
            last_obs=np.array(ended, obs_now.dtype).reshape(len(ended), *obs_now.shape[1:]),
            actions=_stack(actions),
            rewards=_stack(rewards),
            terminated=endings[0],
            truncated=endings[1],
            goes_on=_stack(goes_on),
        )

    def unstack(self) -> Transition:
        """Return one transition whose fields are [step, env, ...]."""
        next_obs = self.obs[1:].copy()
        next_obs[self.terminated | self.truncated] = self.last_obs
        endings = self.terminated, self.truncated, self.goes_on
        return Transition(self.obs[:-1], self.actions, self.rewards, next_obs, *endings)


def _stack(rows: Sequence[Array]) -> Array:
    """Return arrays of the same shape as one array; `np.stack` takes three times as long for many small ones."""
    stacked: Array = np.concatenate(rows).reshape(len(rows), *rows[0].shape)
    return stacked


class Share(NamedTuple):
    """What a group collected on one order, and its state afterwards."""

    steps: Steps | None
    """None if the order was for no step."""
    obs: Array
    """[env, ...]: the current observations."""
    episodes: tuple[Episode, ...]
    state: dict[str, Any]
    samples: list[dict[str, Any]] | None
    """The samples of the group's envs, if the order asked for them."""
    given_up: dict[int, str]
    """The envs that could not be restored to the state of the order, so that they began a new episode, and why."""
    answers: list[Any] | None
    """What the access of the order returned, one value per env."""


class SentTensor:
    """A tensor that is pickled as an array, which takes a tenth of the time, and unpickled as a tensor."""

    def __init__(self, tensor: Tensor) -> None:
        self._array = tensor.numpy()

    def __reduce__(self) -> tuple[Any, ...]:
        return torch.tensor, (self._array,)


def ready_to_send(tree: Any) -> Any:
    """Return a tree of dicts and lists in which every tensor is a `SentTensor`."""
    if isinstance(tree, Tensor):
        return SentTensor(tree)
    if isinstance(tree, dict):
        return {key: ready_to_send(value) for key, value in tree.items()}
    return [ready_to_send(value) for value in tree] if isinstance(tree, list) else tree


def join_shares(shares: Sequence[Share]) -> Transition | None:
    """Return the steps of all groups side by side, [step, env, ...]; none if the orders were for no step."""
    parts = [share.steps.unstack() for share in shares if share.steps is not None]
    if not parts:
        return None
    return Transition(*(np.concatenate(fields, axis=1) for fields in zip(*parts, strict=True)))


class EnvGroup:
    """Some of the envs of a run, and an actor for them."""

    def __init__(self, collector: LocalCollector, first_env: int, policy: StoredPolicy) -> None:
        self._collector, self._first_env, self._policy = collector, first_env, policy
        self._begun = False

    @property
    def calls(self) -> list[EnvCalls]:
        """The env calls of this process, which a watchdog checks."""
        return self._collector.calls

    def collect(self, order: Order, interrupted: Callable[[], bool]) -> Share | None:
        """Carry out an order; none if it was interrupted, after which the next order must have a state."""
        if order.weights is not None:
            self._policy.params.set(torch.tensor(order.weights.params))
            self._policy.encoder.normalizer.load_state_dict(order.weights.normalizer)
        given_up = self._begin(order.state)
        answers = self._access_envs(order.access) if order.access else None
        if order.records_samples:
            self._collector.begin_samples()
        taken: list[Transition] = []
        with _acting_threads():
            self._collector.collect(taken.append, order.steps, interrupted)
        episodes = self._collector.take_result().episodes
        if len(taken) < len(order.steps):
            return None
        obs, state = self._collector.obs, self._collector.state_dict()
        samples = state.pop("samples")
        steps = Steps.stack(taken, obs) if taken else None
        return Share(steps, obs, episodes, state, samples if order.records_samples else None, given_up, answers)

    def _access_envs(self, access: Access) -> list[Any] | None:
        answers: list[Any] | None = getattr(self._collector.env, access.method)(*access.args, **access.kwargs)
        return answers

    def _begin(self, state: dict[str, Any] | None) -> dict[int, str]:
        """Restore a state, or begin the first episodes; return the envs that could not be restored, and why."""
        begun, self._begun = self._begun, True
        if state is not None:
            failures = self._collector.restore(state)
            return {self._first_env + index: why for index, why in failures.items()}
        if not begun:
            self._collector.start()
        return {}


def _acting_threads() -> AbstractContextManager[None]:
    """Act with one thread inside the context; setting the number again would take a millisecond each time."""
    return nullcontext() if torch.get_num_threads() == _ACTING_THREADS else limited_threads(_ACTING_THREADS)


class RemoteGroup:
    """A group with envs and a policy of its own, for a process other than the learner's; `close` it at the end."""

    def __init__(
        self,
        config: TrainConfig,
        factory: LearnerFactory[Any, Any],
        envs: range,
        on_progress: Callable[[], None],
    ) -> None:
        """`on_progress` is called before every step."""
        changes = {"device": "cpu", "num_threads": _ACTING_THREADS, "compile": "off"}
        timeout = config.step_timeout or WORKER_STEP_TIMEOUT
        config = config.model_copy(update={**changes, "step_timeout": timeout})
        self._on_progress = on_progress
        with ExitStack() as opened:
            opened.enter_context(tuned_for_training(config))
            vector_env = opened.enter_context(closing(make_vector_env(config, envs)))
            spaces = vector_env.single_observation_space, vector_env.single_action_space
            learner = factory.build(config, *spaces)
            collector = make_collector(config, learner, vector_env)
            self._group = EnvGroup(collector, envs.start, learner.policy)
            opened.enter_context(Watchdog(config, collector.calls))
            self._opened = opened.pop_all()

    def collect(self, order: Order) -> Share:
        """Carry out an order; return the share, ready to be sent."""
        share = self._group.collect(order, self._note_progress)
        assert share is not None
        return share._replace(state=ready_to_send(share.state), samples=ready_to_send(share.samples))

    def _note_progress(self) -> bool:
        """Report progress. Return False, because a share is never interrupted: a run that stops just does not wait."""
        self._on_progress()
        return False

    def close(self) -> None:
        """Close the envs."""
        self._opened.close()
