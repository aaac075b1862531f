"""Groups of envs on a Ray cluster, one actor each."""

import pickle
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

from rl_training.envs.guard import EnvCalls
from rl_training.envs.vector.serving import SLICE_SECONDS, Countdown
from rl_training.errors import ClusterError, ConfigError, describe_error
from rl_training.experiment.config import TrainConfig
from rl_training.interpreters import module_places
from rl_training.runtime.grouped_collector import GroupFailure
from rl_training.runtime.places import GroupServer, MakeGroup, Patience, silence_seconds
from rl_training.runtime.ray_connection import RayConnection, connect
from rl_training.runtime.shares import Order, RemoteGroup, Share, Weights

_PROGRESS = "progress"
_START_SECONDS = 300.0  # for an actor to find a place in the cluster, and to start there
_START_NOTICE_SECONDS = 60.0  # until a line says that an actor has not started
_LOSS = re.compile(r"because (its [\w ]+ has died|it was [^.\n]+)")  # finds the reason in Ray's long error messages
_QUESTIONS = 8  # how often an actor is asked for its progress before it counts as lost


def _describe_loss(error: Exception) -> str:
    """Describe in a few words why an actor has not answered."""
    found = _LOSS.search(" ".join(str(error).split()))
    return found[1] if found else describe_error(error)


def _load_group(pickled_group: bytes, on_progress: Callable[[], None]) -> RemoteGroup:
    make_group: MakeGroup = pickle.loads(pickled_group)
    return make_group(on_progress)


class GroupActor:
    """An actor with one group; it serves orders like a worker process, and reports the number of steps taken."""

    def __init__(self, pickled_group: bytes, places: Sequence[str]) -> None:
        """`pickled_group` is a `MakeGroup`; its modules may lie in `places`, where the driver finds modules."""
        sys.path += [place for place in places if place not in sys.path]
        self._counter = SimpleNamespace(value=0)
        self._server = GroupServer(partial(_load_group, pickled_group), self._counter)

    def collect(self, order: Order, weights: Weights | None) -> Share | GroupFailure:
        """Carry out an order with these weights."""
        return self._server.collect(order._replace(weights=weights))

    def steps_taken(self) -> int:
        """Return a number that grows with every step, while an order is carried out."""
        return int(self._counter.value)


def _make_actor_class(ray: Any, cpus: float) -> Any:
    """Return the class of the actors. They report their progress in a separate thread, while they collect.

    The class names that thread, because a Ray client (`ray://`) cannot do so in a call.
    """

    class GroupActorOnRay(GroupActor):
        @ray.method(concurrency_group=_PROGRESS)  # type: ignore[untyped-decorator]
        def steps_taken(self) -> int:
            return super().steps_taken()

    return ray.remote(num_cpus=cpus, concurrency_groups={_PROGRESS: 1})(GroupActorOnRay)


class _Member:
    """The actor of a group, its newest order, and what is known about its progress."""

    def __init__(self, ray: Any, actor: Any, seconds: float) -> None:
        self.actor = actor
        self.answer: Any = None
        self.started = False
        """Whether the actor has answered anything yet."""
        self.announced = False
        """Whether a line has said that the actor has not started."""
        self.start_countdown = Countdown(_START_SECONDS)
        self._ray, self._seconds = ray, seconds
        self._known = SimpleNamespace(value=0)
        self._patience = Patience(self._known, seconds)
        self._until_question = Countdown(seconds / _QUESTIONS)
        self._asked: Any = None

    def send(self, order: Order, weights: Any) -> None:
        """Send the actor its next order, and a reference to the weights."""
        self.answer = self.actor.collect.remote(order, weights)
        self._patience = Patience(self._known, self._seconds)

    def is_hanging(self) -> bool:
        """Return whether the actor has started, and has taken no step for too long.

        A question takes a fraction of a millisecond, which adds up for hundreds of actors, so it is asked rarely.
        """
        if self._asked is None:
            if self.started and self._until_question.left():
                return self._patience.exhausted()
            self._until_question = Countdown(self._seconds / _QUESTIONS)
            self._asked = self.actor.steps_taken.remote()
        ready, _ = self._ray.wait([self._asked], timeout=0.0)
        if ready:
            self._asked = None
            try:
                self._known.value = self._ray.get(ready[0])
            except self._ray.exceptions.RayError:
                return False  # the answer to the order says what happened
            self.started = True
        return self.started and self._patience.exhausted()


class GroupsOnRay:
    """Groups in actors of a Ray cluster. A lost group is created again elsewhere, whether or not its node is lost too.

    By default, Ray itself neither restarts actors nor repeats calls. This is kept, because a new actor needs a state.
    """

    has_own_policies = True

    def __init__(self, groups: Sequence[MakeGroup], config: TrainConfig) -> None:
        self.calls: list[EnvCalls] = []  # none in this process
        self._groups, self._seconds, self._cpus = groups, silence_seconds(config), config.collector_cpus
        self._ray, self._owns_ray = connect(config.ray_address)
        self._actor_class = _make_actor_class(self._ray, self._cpus)
        self._weights: Weights | None = None
        self._weights_ref: Any = None
        self._members: list[_Member] = []
        self._connection = RayConnection(self._ray)
        try:
            self._connection.open()
            self._check_resources(len(groups) * self._cpus)
            self._members += [self._make_member(make_group) for make_group in groups]
        except BaseException:
            self.close()
            raise

    def _make_member(self, make_group: MakeGroup) -> _Member:
        actor = self._actor_class.remote(pickle.dumps(make_group), module_places())
        return _Member(self._ray, actor, self._seconds)

    def _check_resources(self, cpus: float) -> None:
        """Refuse more actors than the cluster has cores for: they would wait forever."""
        available = self._connection.ask_head(self._ray.cluster_resources).get("CPU", 0.0)
        if cpus > available:
            raise ConfigError(
                f"the collectors need {cpus:g} CPUs, and the Ray cluster has {available:g}: lower collectors or "
                "collector_cpus, or add nodes"
            )

    def send(self, number: int, order: Order) -> None:
        """Send a group its next order; the weights are stored once for all groups."""
        with self._noticing_loss():
            if order.weights is not self._weights:
                self._weights, self._weights_ref = order.weights, self._ray.put(order.weights)
            self._members[number].send(order._replace(weights=None), self._weights_ref)

    def receive(self, numbers: Sequence[int], interrupted: Callable[[], bool]) -> dict[int, Share | GroupFailure]:
        """Return the answers that have come; wait up to `SLICE_SECONDS` if there is none."""
        del interrupted
        with self._noticing_loss():
            waiting = {self._members[number].answer: number for number in numbers}
            ready, others = self._ray.wait(list(waiting), num_returns=1, timeout=SLICE_SECONDS)
            if not ready:
                return self._find_hanging(numbers)
            if others:  # one call for all of them, because a call for one of many takes as long
                ready += self._ray.wait(others, num_returns=len(others), timeout=0.0)[0]
            return {waiting[reference]: self._get(self._members[waiting[reference]]) for reference in ready}

    def _find_hanging(self, numbers: Sequence[int]) -> dict[int, Share | GroupFailure]:
        failures: dict[int, Share | GroupFailure] = {}
        for number in numbers:
            if self._members[number].is_hanging():
                failures[number] = GroupFailure(f"no step within {self._seconds:g} s")
            else:
                self._check_start(number)
        return failures

    @contextmanager
    def _noticing_loss(self) -> Iterator[None]:
        """Raise `ClusterError` if the cluster is already lost, or is lost while the block uses Ray."""
        self._connection.check()
        try:
            yield
        except ConnectionError as error:  # of a Ray client
            raise ClusterError(f"the Ray cluster is lost ({describe_error(error)}): resume the run") from None

    def _get(self, member: _Member) -> Share | GroupFailure:
        try:
            answer: Share | GroupFailure = self._ray.get(member.answer, timeout=self._seconds)
        except self._ray.exceptions.RayError as error:  # the actor, its node or the answer is lost
            return GroupFailure(_describe_loss(error))
        member.started = True
        return answer

    def _check_start(self, number: int) -> None:
        """Say that an actor has not started, and raise `ClusterError` if that takes too long."""
        member = self._members[number]
        left = 0.0 if member.started else member.start_countdown.left()
        if member.started or (left and (member.announced or left > _START_SECONDS - _START_NOTICE_SECONDS)):
            return
        text = f"collector {number} has not started on the Ray cluster: {self._connection.describe_cpus(self._cpus)}"
        if not left:
            raise ClusterError(f"{text}; free CPUs or add nodes, and resume the run")
        member.announced = True
        warnings.warn(f"{text}; waiting for at most {_START_SECONDS:g} s", stacklevel=5)

    def replace(self, number: int) -> None:
        """Make a new actor for a group, wherever there is room."""
        self._ray.kill(self._members[number].actor)
        self._members[number] = self._make_member(self._groups[number])

    def close(self) -> None:
        """End all actors, and Ray itself if this object has started it or connected to it."""
        with suppress(ConnectionError):  # a Ray client whose cluster is lost
            for member in self._members:
                self._ray.kill(member.actor)
        self._connection.close(shut_down=self._owns_ray)
