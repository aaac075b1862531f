"""Groups of envs on a Ray cluster, one actor each. Ray is imported only when a run asks for it."""

import os
import pickle
import re
import signal
import socket
import sys
import threading
import time
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
from rl_training.runtime.shares import Order, RemoteGroup, Share, Weights

_OBJECT_STORE_BYTES = 512 * 2**20  # of a local Ray, which would take a third of the memory by itself
_CONNECT_SECONDS = 5.0
_READ_BYTES = 4_096
_PROGRESS = "progress"
_HEAD_SECONDS = 20.0  # without the head of the cluster before the run ends
_HEAD_CHECK_SECONDS = 1.0  # between two checks
_HEAD_CONNECT_SECONDS = 1.0
_START_SECONDS = 300.0  # for an actor to find a place in the cluster, and to start there
_START_NOTICE_SECONDS = 60.0  # until a line says that an actor has not started
_RECONNECT = "RAY_gcs_rpc_server_reconnect_timeout_s"  # after which Ray ends a process that has lost the head
_RECONNECT_SECONDS = 3_600  # longer than an update, in which nobody looks at the cluster
_LOSS = re.compile(r"because (its [\w ]+ has died|it was [^.\n]+)")  # in the many sentences of Ray's errors
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
    with _set_reconnect_time():
        ray = import_ray()
        return ray, not ray.is_initialized() and _initialize(ray, address)


def _initialize(ray: Any, address: str) -> bool:
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
    return True


@contextmanager
def _set_reconnect_time() -> Iterator[None]:
    """Let Ray, which reads its options when it is imported, try longer to reconnect before it ends this process."""
    if _RECONNECT in os.environ:
        yield
        return
    os.environ[_RECONNECT] = str(_RECONNECT_SECONDS)
    try:
        yield
    finally:
        os.environ.pop(_RECONNECT, None)


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


class _Port:
    """A port on this machine, which is watched through an open connection: one per look would use up the ports."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._connection: socket.socket | None = None

    def is_closed(self) -> bool:
        """Return whether nobody listens at the port any more."""
        if self._connection is not None and _is_open(self._connection):
            return False
        self.release()
        try:
            self._connection = socket.create_connection(self._address, _CONNECT_SECONDS)
        except ConnectionRefusedError:
            return True
        except OSError:  # the machine is busy
            return False
        self._connection.setblocking(False)
        return False

    def release(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _is_open(connection: socket.socket) -> bool:
    try:
        while connection.recv(_READ_BYTES):  # what a server says first
            pass
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


class _Connection:
    """The connection to a cluster. It notices a loss before Ray does, which would end this process at once.

    Ray ends the process if it uses its object store after the Ray of this machine has ended, and some time after it
    has lost the head. A Ray client (`ray://`) does neither.
    """

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._node: _Port | None = None
        self._head: tuple[str, int] | None = None
        self._checked_at = time.monotonic()
        self._lost_at: float | None = None  # when the head did not answer for the first time in a row

    def open(self) -> None:
        """Find the ports to watch."""
        if not self._ray.util.client.ray.is_connected():
            context = self._ray.get_runtime_context()
            node = next(each for each in self._ray.nodes() if each["NodeID"] == context.get_node_id())
            host, _, port = context.gcs_address.rpartition(":")
            self._node = _Port((node["NodeManagerAddress"], node["NodeManagerPort"]))
            self._head = (host, int(port))

    def check(self) -> None:
        """Raise `ClusterError` if the cluster is lost."""
        if self._node is not None and self._node.is_closed():
            raise ClusterError("Ray has ended on this machine: start it again, and resume the run")
        if time.monotonic() - self._checked_at >= _HEAD_CHECK_SECONDS:
            self.reaches_head()
        if self._lost_at is not None and time.monotonic() - self._lost_at >= _HEAD_SECONDS:
            raise ClusterError(
                f"the head of the Ray cluster has not answered for {_HEAD_SECONDS:g} s: start the cluster again, and "
                "resume the run"
            )

    def reaches_head(self) -> bool:
        """Return whether the head accepts connections; without it, many calls of Ray wait for a long time."""
        self._checked_at = time.monotonic()
        try:
            if self._head is not None:
                socket.create_connection(self._head, _HEAD_CONNECT_SECONDS).close()
        except OSError:
            self._lost_at = self._lost_at or self._checked_at
            return False
        self._lost_at = None
        return True

    def close(self) -> None:
        """Stop watching the cluster."""
        if self._node is not None:
            self._node.release()

    def describe_cpus(self, needed: float) -> str:
        """Compare the CPUs of the cluster with what an actor needs."""
        if not self.reaches_head():
            return "the head of the cluster does not answer"
        free, total = (
            resources.get("CPU", 0.0) for resources in (self._ray.available_resources(), self._ray.cluster_resources())
        )
        return f"it needs {needed:g} CPUs, and {free:g} of the {total:g} CPUs of the cluster are free"


def _describe_loss(error: Exception) -> str:
    """Describe in a few words why an actor has not answered."""
    found = _LOSS.search(" ".join(str(error).split()))
    return found[1] if found else describe_error(error)


def _load_group(pickled_group: bytes, on_progress: Callable[[], None]) -> RemoteGroup:
    make_group: MakeGroup = pickle.loads(pickled_group)
    return make_group(on_progress)


class GroupActor:
    """A group in an actor: what a worker process serves, and the number of steps it has taken."""

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

        A question takes a fraction of a millisecond, which adds up for hundreds of actors, so there are few.
        """
        if self._asked is None:
            if self.started and self._until_question.left():
                return self._patience.exhausted()
            self._until_question = Countdown(self._seconds / _QUESTIONS)
            self._asked = self.actor.steps_taken.options(concurrency_group=_PROGRESS).remote()
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
    """Groups in actors of a Ray cluster. One that is lost, with its node or without, is made anew elsewhere.

    Ray itself neither restarts actors nor repeats calls, which is its default: a new actor needs a state first.
    """

    has_own_policies = True

    def __init__(self, groups: Sequence[MakeGroup], config: TrainConfig) -> None:
        self.calls: list[EnvCalls] = []  # none in this process
        self._groups, self._seconds, self._cpus = groups, silence_seconds(config), config.collector_cpus
        self._ray, self._owns_ray = connect(config.ray_address)
        self._actor_class = self._ray.remote(num_cpus=self._cpus, concurrency_groups={_PROGRESS: 1})(GroupActor)
        self._weights: Weights | None = None
        self._weights_ref: Any = None
        self._members: list[_Member] = []
        self._connection = _Connection(self._ray)
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
        available = self._ray.cluster_resources().get("CPU", 0.0)
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
            if others:  # one look at all of them: a look at one of many takes as long
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
        """Raise `ClusterError` if the cluster is lost, before Ray is used or while it is."""
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
        self._connection.close()
        if self._owns_ray:
            self._ray.shutdown()
