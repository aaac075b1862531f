"""Groups of envs on a Ray cluster, one actor each. Ray is imported only when a run asks for it."""

import pickle
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from rl_training.envs.guard import EnvCalls
from rl_training.envs.vector.serving import SLICE_SECONDS, Countdown
from rl_training.errors import ConfigError, describe_error
from rl_training.experiment.config import TrainConfig
from rl_training.interpreters import module_places
from rl_training.runtime.grouped_collector import GroupFailure
from rl_training.runtime.places import GroupServer, MakeGroup, Patience, silence_seconds
from rl_training.runtime.shares import Order, Share, Weights

_OBJECT_STORE_BYTES = 512 * 2**20  # of a local Ray, which would take a third of the memory by itself
_CONNECT_SECONDS = 5.0
_PROGRESS = "progress"
_QUESTIONS = 8  # about the progress of an actor, within the time after which it counts as lost


def import_ray() -> Any:
    """Import Ray, or say how to install it."""
    try:
        import ray
    except ImportError:
        raise ConfigError("Ray is not installed: pip install 'rl-training[ray]'") from None
    return ray


def connect(address: str) -> tuple[Any, bool]:
    """Connect to the cluster at this address, unless this process is connected; return Ray, and whether it was not.

    `local` starts Ray on this machine.
    """
    ray = import_ray()
    if ray.is_initialized():
        return ray, False
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address == "local":
        options |= {"include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES}
    try:
        _check_reachable(address)
        with warnings.catch_warnings(), _keeping_signal_handler():
            warnings.simplefilter("ignore")  # advice about Ray's own future defaults
            ray.init(address=address, **options)
    except (ConnectionError, OSError, RuntimeError, TimeoutError, ValueError) as error:
        raise ConfigError(
            f"ray_address={address!r}: there is no Ray cluster to connect to ({describe_error(error)}); start one with "
            "'ray start --head', or use ray_address=local"
        ) from None
    return ray, True


def _check_reachable(address: str) -> None:
    """Raise `OSError` if nobody listens at `host:port`; Ray would try again and again for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()


@contextmanager
def _keeping_signal_handler() -> Iterator[None]:
    """Keep the handler of SIGTERM inside the context, where Ray installs its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class GroupActor:
    """A group in an actor: what a worker process serves, and the number of steps it has taken."""

    def __init__(self, pickled_group: bytes, places: Sequence[str]) -> None:
        """`pickled_group` is a `MakeGroup`; its modules may lie in `places`, where the driver finds modules."""
        sys.path += [place for place in places if place not in sys.path]
        self._counter = SimpleNamespace(value=0)
        self._server = GroupServer(pickle.loads(pickled_group), self._counter)

    def collect(self, order: Order, weights: Weights | None) -> Share | GroupFailure:
        """Carry out an order with these weights."""
        return self._server.collect(order._replace(weights=weights))

    def steps_taken(self) -> int:
        """Return a number that grows with every step, while an order is carried out."""
        return int(self._counter.value)


class GroupsOnRay:
    """Groups in actors of a Ray cluster. One that is lost, with its node or without, is made anew elsewhere."""

    has_own_policies = True

    def __init__(self, groups: Sequence[MakeGroup], config: TrainConfig) -> None:
        self.calls: list[EnvCalls] = []  # none in this process
        self._groups, self._seconds = groups, silence_seconds(config)
        self._ray, self._owns_ray = connect(config.ray_address)
        self._actor_class = self._ray.remote(num_cpus=config.collector_cpus, concurrency_groups={_PROGRESS: 1})(
            GroupActor
        )
        self._weights: Weights | None = None
        self._weights_ref: Any = None
        self._answers: dict[int, Any] = {}
        self._supervision: dict[int, _Supervision] = {}
        try:
            self._check_resources(len(groups) * config.collector_cpus)
            self._actors = [self._make_actor(make_group) for make_group in groups]
        except BaseException:
            self._disconnect()
            raise

    def _make_actor(self, make_group: MakeGroup) -> Any:
        return self._actor_class.remote(pickle.dumps(make_group), module_places())

    def _check_resources(self, cpus: float) -> None:
        """Refuse more actors than the cluster has cores for: they would wait forever."""
        available = self._ray.cluster_resources().get("CPU", 0.0)
        if cpus > available:
            raise ConfigError(
                f"the collectors need {cpus:g} CPUs, and the Ray cluster has {available:g}: lower collectors or "
                "collector_cpus, or add nodes"
            )

    def send(self, number: int, order: Order) -> None:
        """Send a group its next order; the weights are stored once for all groups."""
        if order.weights is not self._weights:
            self._weights, self._weights_ref = order.weights, self._ray.put(order.weights)
        actor = self._actors[number]
        self._answers[number] = actor.collect.remote(order._replace(weights=None), self._weights_ref)
        self._supervision[number] = _Supervision(self._ray, actor, self._seconds)

    def receive(self, numbers: Sequence[int], interrupted: Callable[[], bool]) -> dict[int, Share | GroupFailure]:
        """Return the answers that have come; wait up to `SLICE_SECONDS` if there is none."""
        del interrupted
        waiting = {self._answers[number]: number for number in numbers}
        ready, others = self._ray.wait(list(waiting), num_returns=1, timeout=SLICE_SECONDS, fetch_local=False)
        if not ready:
            hanging = [number for number in numbers if self._supervision[number].is_hanging()]
            return {number: GroupFailure(f"no step within {self._seconds:g} s") for number in hanging}
        if others:  # one look at all of them: a look at one of many takes as long
            ready += self._ray.wait(others, num_returns=len(others), timeout=0.0, fetch_local=False)[0]
        return {waiting[reference]: self._get(reference) for reference in ready}

    def _get(self, reference: Any) -> Share | GroupFailure:
        try:
            answer: Share | GroupFailure = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:  # the actor, its node or the answer is lost
            return GroupFailure(describe_error(error))
        return answer

    def replace(self, number: int) -> None:
        """Make a new actor for a group, wherever there is room."""
        self._ray.kill(self._actors[number])
        self._actors[number] = self._make_actor(self._groups[number])

    def close(self) -> None:
        """End all actors, and Ray itself if this object has started it or connected to it."""
        for actor in self._actors:
            self._ray.kill(actor)
        self._disconnect()

    def _disconnect(self) -> None:
        if self._owns_ray:
            self._ray.shutdown()


class _Supervision:
    """Asks an actor for its progress while it carries out an order."""

    def __init__(self, ray: Any, actor: Any, seconds: float) -> None:
        self._ray, self._actor = ray, actor
        self._known = SimpleNamespace(value=0)
        self._patience = Patience(self._known, seconds)
        self._pause = seconds / _QUESTIONS
        self._until_question = Countdown(self._pause)
        self._asked: Any = None

    def is_hanging(self) -> bool:
        """Return whether the actor has taken no step for too long.

        A question takes a fraction of a millisecond, which adds up for hundreds of actors, so there are few.
        """
        if self._asked is None:
            if self._until_question.left():
                return self._patience.exhausted()
            self._until_question = Countdown(self._pause)
            self._asked = self._actor.steps_taken.options(concurrency_group=_PROGRESS).remote()
        ready, _ = self._ray.wait([self._asked], timeout=0.0)
        if ready:
            self._asked = None
            try:
                self._known.value = self._ray.get(ready[0])
            except self._ray.exceptions.RayError:
                return False  # the answer to the order says what happened
        return self._patience.exhausted()
