"""The connection of a process to a Ray cluster. Ray is imported only when a run asks for it."""

import os
import signal
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any, TypeVar

from rl_training.errors import ClusterError, ConfigError, describe_error

_OBJECT_STORE_BYTES = 512 * 2**20  # for a local Ray; its own default is a third of the memory
_NICENESS = "RAY_worker_niceness"
_CLIENT_RETRIES = 2
_CONNECT_SECONDS = 5.0
_READ_BYTES = 4_096
_HEAD_SECONDS = 20.0  # how long the head of the cluster may be lost before the run ends
_HEAD_CHECK_SECONDS = 1.0  # between two checks
_HEAD_CONNECT_SECONDS = 1.0
_ANSWER_SECONDS = 0.1  # between two checks while the head is asked
_RECONNECT = "RAY_gcs_rpc_server_reconnect_timeout_s"  # after which Ray ends a process that has lost the head
_RECONNECT_SECONDS = 3_600  # longer than an update, during which the cluster is not checked

T = TypeVar("T")


def import_ray() -> Any:
    """Import Ray, or say how to install it."""
    try:
        import ray
    except ImportError:
        raise ConfigError("Ray is not installed: pip install 'rl-training[ray]'") from None
    return ray


def connect(address: str) -> tuple[Any, bool]:
    """Connect to the cluster at this address, unless this process is already connected; `local` starts Ray here.

    Return the module `ray`, and whether this call has connected to the cluster.
    """
    with _set_reconnect_time():
        ray = import_ray()
        return ray, not ray.is_initialized() and _initialize(ray, address)


def _initialize(ray: Any, address: str) -> bool:
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address == "local":
        options |= {"include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES}
        if _NICENESS not in os.environ:
            options["_system_config"] = {"worker_niceness": 0}  # the priority of a run here; Ray's default is 15
    try:
        _check_reachable(address)
        with warnings.catch_warnings(), _keeping_signal_handler():
            warnings.simplefilter("ignore")  # advice about Ray's own future defaults
            _init_with_retries(ray, address, options)
    except (ConnectionError, OSError, RuntimeError, TimeoutError, ValueError) as error:
        ray.util.client.ray.disconnect()  # or Ray would act as a client in the next attempt, whatever the address
        raise ConfigError(
            f"ray_address={address!r}: there is no Ray cluster to connect to ({describe_error(error)}); start one with "
            f"'ray start --head', or use ray_address=local{_token_hint(address)}"
        ) from None
    return True


def _init_with_retries(ray: Any, address: str, options: dict[str, Any]) -> None:
    """Call `ray.init`, and try again if the cluster could not start the process that serves a client (`ray://`).

    That process is forked from one with threads of gRPC, and sometimes crashes before it has started.
    """
    for is_last in (*[False] * _CLIENT_RETRIES, True):
        try:
            ray.init(address=address, **options)
            return
        except ConnectionAbortedError:
            if is_last:
                raise
            ray.util.client.ray.disconnect()


def _token_hint(address: str) -> str:
    """Return a hint about tokens, which Ray sends to an explicit address only if RAY_AUTH_MODE asks for it."""
    if address in ("local", "auto") or "RAY_AUTH_MODE" in os.environ:
        return ""
    return "; if the cluster asks for a token, set RAY_AUTH_MODE=token"


@contextmanager
def _set_reconnect_time() -> Iterator[None]:
    """Give Ray more time to reconnect before it ends this process; Ray reads this option when it is imported."""
    if _RECONNECT in os.environ:
        yield
        return
    os.environ[_RECONNECT] = str(_RECONNECT_SECONDS)
    try:
        yield
    finally:
        os.environ.pop(_RECONNECT, None)


def _check_reachable(address: str) -> None:
    """Raise `OSError` if nobody listens at `host:port`; Ray itself would retry for minutes."""
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
    """A port on this machine, watched through one open connection; a new one per check would use up the ports."""

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
        while connection.recv(_READ_BYTES):  # discards what the server sends
            pass
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


class RayConnection:
    """The connection to a cluster. It notices a loss before Ray does, because Ray would end this process at once.

    Ray ends a process that uses the object store after Ray has ended on this machine, and a process that lost the head
    some time ago. A Ray client (`ray://`) does neither.
    """

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._node: _Port | None = None
        self._head: tuple[str, int] | None = None
        self._checked_at = time.monotonic()
        self._lost_at: float | None = None  # when the head first did not answer; None if it answers
        self._answer: Future[Any] | None = None  # the head's answer to the newest question

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

    def ask_head(self, question: Callable[[], T]) -> T:
        """Return the answer of the cluster's head; raise `ClusterError` if the head is lost.

        Ray itself waits for a lost head, for up to `_RECONNECT_SECONDS`, so the question is asked in another thread.
        """
        while not self.reaches_head():
            self.check()
            time.sleep(_ANSWER_SECONDS)
        answer: Future[T] = Future()

        def ask() -> None:
            try:
                answer.set_result(question())
            except Exception as error:
                answer.set_exception(error)

        self._answer = answer
        threading.Thread(target=ask, daemon=True).start()
        while not wait([answer], _ANSWER_SECONDS).done:
            self.check()
        return answer.result()

    def close(self, *, shut_down: bool) -> None:
        """Stop watching the cluster, and shut Ray down if that is asked for.

        Ray is not shut down while a question waits for a lost head, because this would crash the process later.
        """
        if self._node is not None:
            self._node.release()
        if shut_down and (self._answer is None or self._answer.done()):
            self._ray.shutdown()

    def describe_cpus(self, needed: float) -> str:
        """Compare the CPUs of the cluster with what an actor needs."""
        if not self.reaches_head():
            return "the head of the cluster does not answer"
        free, total = (
            self.ask_head(resources).get("CPU", 0.0)
            for resources in (self._ray.available_resources, self._ray.cluster_resources)
        )
        return f"it needs {needed:g} CPUs, and {free:g} of the {total:g} CPUs of the cluster are free"
