"""The worker's side of a worker process: its envs, its commands, and the memory shared with the owner.

The owner is the process that started the worker.
"""

import ctypes
import os
import pickle
import select
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from types import FrameType
from typing import Any, Protocol

import numpy as np
from gymnasium import Space
from gymnasium.vector.utils import create_shared_memory, read_from_shared_memory, write_to_shared_memory

from rl_training.envs.episodes import Array, misfit
from rl_training.envs.layers import AnyEnv
from rl_training.envs.restore import Restored, capture_state
from rl_training.envs.samples import RunningEpisode
from rl_training.envs.vector.protocol import EnvFactory
from rl_training.errors import ObservationError, describe_error
from rl_training.processes import kill_descendants, kill_group, kill_tree
from rl_training.signals import STOP_SIGNALS, handled_stop_signals

_HEADER_BYTES = 8
_READ_BYTES = 2**16
_ORPHAN_SECONDS = 1.0  # for a worker to end by itself when its owner is gone
SLICE_SECONDS = 0.25  # longer waits are divided into slices of this length

RestoreFunction = Callable[[AnyEnv, RunningEpisode, Any], Restored]
Command = tuple[str, Any]
"""The name of a server's method and its argument, or `CLOSE`."""

CLOSE: Command = ("close", None)


@dataclass(frozen=True)
class WorkerFailure:
    """The reason why a worker did not execute its command, as text, because not every exception can be sent."""

    index: int
    """The env that the worker was working on."""
    cause: str
    trace: str = ""
    """The traceback in the worker, if its env raised an exception."""
    permanent: bool = False
    """Whether another attempt, in a new worker, would fail in the same way."""


class MisfitError(Exception):
    """An observation that does not fit its space."""


def pack(message: Any) -> bytes:
    """Encode a message for the channel: the length of its pickle, then the pickle."""
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return len(data).to_bytes(_HEADER_BYTES, "little") + data


class Countdown:
    """A timeout that does not count the time in which this process was stopped (Ctrl-Z).

    Call `left()` at least every `SLICE_SECONDS`. A longer gap between two calls counts as at most twice that.
    """

    def __init__(self, seconds: float) -> None:
        self._left = seconds
        self._looked_at = time.monotonic()

    def left(self) -> float:
        """Return the seconds that are left, at least 0."""
        now = time.monotonic()
        self._left -= min(now - self._looked_at, 2.0 * SLICE_SECONDS)
        self._looked_at = now
        return max(self._left, 0.0)


def receive(channel: socket.socket, countdown: Countdown | None = None) -> Any:
    """Receive one message. Raises `TimeoutError` if none begins within the socket's own timeout.

    `countdown` limits the wait for the rest of the message. Raises `EOFError` if the rest does not come.
    """
    data = _read(channel)
    if len(data) >= _HEADER_BYTES and len(data) == _HEADER_BYTES + int.from_bytes(data[:_HEADER_BYTES], "little"):
        return pickle.loads(data[_HEADER_BYTES:])
    channel.settimeout(None if countdown is None else SLICE_SECONDS)
    message = bytearray(data)
    while len(message) < _HEADER_BYTES:
        message += _read_more(channel, countdown)
    size = _HEADER_BYTES + int.from_bytes(message[:_HEADER_BYTES], "little")
    while len(message) < size:
        message += _read_more(channel, countdown)
    return pickle.loads(memoryview(message)[_HEADER_BYTES:])


def _read_more(channel: socket.socket, countdown: Countdown | None) -> bytes:
    while True:
        try:
            return _read(channel)
        except TimeoutError:
            if countdown is None or not countdown.left():
                raise EOFError from None


def _read(channel: socket.socket) -> bytes:
    data = channel.recv(_READ_BYTES)
    if not data:
        raise EOFError
    return data


@dataclass(frozen=True)
class SharedMemory:
    """Memory that all processes read and write through `SharedArrays`."""

    space: Space[Any]
    num_envs: int
    blocks: tuple[Any, Any]
    rewards: Any
    endings: Any
    current: Any


def make_shared_memory(space: Space[Any], num_envs: int, context: BaseContext) -> SharedMemory:
    """Allocate the shared memory. Raises `TypeError` or `CustomSpaceError` if observations vary in size."""
    allocate: Any = context  # Gymnasium declares the module here, but every context has its functions
    return SharedMemory(
        space=space,
        num_envs=num_envs,
        blocks=(create_shared_memory(space, num_envs, allocate), create_shared_memory(space, num_envs, allocate)),
        rewards=context.RawArray(ctypes.c_double, num_envs),
        endings=context.RawArray(ctypes.c_bool, 2 * num_envs),
        current=context.RawArray(ctypes.c_int64, num_envs),
    )


class SharedArrays:
    """The outputs of all envs in shared memory.

    There are two blocks of observations. A step writes to the block that does not contain the newest observations, so
    that these survive a step that fails.
    """

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory
        blocks: Any = [read_from_shared_memory(memory.space, block, memory.num_envs) for block in memory.blocks]
        self._blocks: list[Array] | None = blocks if isinstance(blocks[0], np.ndarray) else None  # [env, ...]
        self.rewards = np.frombuffer(memory.rewards, dtype=np.float64)
        endings = np.frombuffer(memory.endings, dtype=np.bool_)
        self.terminated, self.truncated = endings[: memory.num_envs], endings[memory.num_envs :]
        self.current = np.frombuffer(memory.current, dtype=np.int64)
        """The env that each worker is working on, stored at the index of the worker's first env."""

    def read(self, block: int) -> Any:
        """Return a copy of all observations of a block."""
        if self._blocks is not None:
            return self._blocks[block].copy()
        return deepcopy(read_from_shared_memory(self._memory.space, self._memory.blocks[block], self._memory.num_envs))

    def write(self, block: int, index: int, obs: Any) -> None:
        """Write one env's observation. Raises `MisfitError` if it does not fit the space."""
        space = self._memory.space
        try:
            if self._blocks is None:
                write_to_shared_memory(space, index, obs, self._memory.blocks[block])
                return
            if np.shape(obs) == space.shape:  # copyto() would broadcast a smaller one
                np.copyto(self._blocks[block][index, ...], obs, casting="same_kind")
                return
        except (TypeError, ValueError) as error:
            raise MisfitError(misfit(space, obs) or str(error)) from error
        raise MisfitError(misfit(space, obs))


class EnvServer:
    """A contiguous range of envs of the vector; each method except `close` executes one command."""

    def __init__(self, first: int, env_fns: Sequence[EnvFactory], memory: SharedMemory) -> None:
        self._first = first
        self._env_fns = env_fns
        self._arrays = SharedArrays(memory)
        self._envs: list[AnyEnv] = []
        self._commands: dict[str, Callable[[Any], dict[int, Any]]] = {
            "start": self.start,
            "reset": self.reset,
            "step": self.step,
            "restore": self.restore,
            "state": self.state,
            "visit": self.visit,
        }

    def answer(self, command: Command) -> bytes:
        """Execute a command and return the encoded answer: results by env index, or a `WorkerFailure`."""
        name, argument = command
        try:
            return pack(self._commands[name](argument))
        except (MisfitError, ObservationError) as error:
            return pack(WorkerFailure(self._current, str(error), traceback.format_exc(), permanent=True))
        except Exception as error:
            return pack(WorkerFailure(self._current, describe_error(error), traceback.format_exc()))

    @property
    def _current(self) -> int:
        return int(self._arrays.current[self._first])

    def _env(self, index: int) -> AnyEnv:
        """Return an env, and note that the worker is working on it."""
        self._arrays.current[self._first] = index
        return self._envs[index - self._first]

    def start(self, spaces: tuple[Space[Any], Space[Any]]) -> dict[int, Any]:
        """Make the envs that do not exist yet; all must have these observation and action spaces."""
        for index in range(self._first + len(self._envs), self._first + len(self._env_fns)):
            self._arrays.current[self._first] = index
            env = self._env_fns[index - self._first]()
            self._envs.append(env)
            if (env.observation_space, env.action_space) != spaces:
                given = f"{env.observation_space} and {env.action_space}"
                raise ValueError(f"all envs must have the same spaces: {spaces[0]} and {spaces[1]}, got {given}")
        return {}

    def reset(self, argument: tuple[int, dict[int, int | None], dict[str, Any] | None]) -> dict[int, Any]:
        """Begin an episode in each env that has an entry in the seeds; return the infos."""
        block, seeds, options = argument
        infos = {}
        for index, seed in seeds.items():
            obs, infos[index] = self._env(index).reset(seed=seed, options=options)
            self._arrays.write(block, index, obs)
        return infos

    def step(self, argument: tuple[int, Array]) -> dict[int, Any]:
        """Step every env; return the infos that are not empty."""
        block, actions = argument
        infos, arrays = {}, self._arrays
        for index, action in enumerate(actions, start=self._first):
            obs, reward, terminated, truncated, info = self._env(index).step(action)
            arrays.write(block, index, obs)
            arrays.rewards[index], arrays.terminated[index], arrays.truncated[index] = reward, terminated, truncated
            if info:
                infos[index] = info
        return infos

    def restore(self, argument: tuple[int, dict[int, tuple[RunningEpisode, Any]], RestoreFunction]) -> dict[int, Any]:
        """Restore envs to their episodes; return the reasons for failures, by env."""
        block, episodes, restore_function = argument
        failures = {}
        for index, (episode, expected_obs) in episodes.items():
            restored = restore_function(self._env(index), episode, expected_obs)
            if restored.failure:
                failures[index] = restored.failure
            else:
                self._arrays.write(block, index, restored.obs)
        return failures

    def state(self, _: None) -> dict[int, Any]:
        """Return the envs' own states; none for envs that do not offer one."""
        return {index: capture_state(self._env(index)) for index in range(self._first, self._first + len(self._envs))}

    def visit(self, functions: dict[int, Callable[[AnyEnv], Any]]) -> dict[int, Any]:
        """Call functions with the envs; return their results, by env."""
        return {index: function(self._env(index)) for index, function in functions.items()}

    def close(self) -> None:
        """Close all envs."""
        for env in self._envs:
            env.close()


class Server(Protocol):
    """The object in a worker process that executes the commands of its owner."""

    def answer(self, command: Command) -> bytes:
        """Execute a command and return the encoded answer."""

    def close(self) -> None:
        """Release what the server holds."""


def serve(channel: socket.socket, other_channels: Sequence[socket.socket], make_server: Callable[[], Server]) -> None:
    """Answer commands until the owner sends `CLOSE` or is gone."""
    os.setpgid(0, 0)  # so that programs started by an env can be killed together with this process
    _leave_signals_to_owner()
    for other in other_channels:  # a copy that stays open in a forked sibling would hide that the owner is gone
        other.close()
    threading.Thread(target=_exit_with_owner, args=(channel, os.getppid()), daemon=True).start()
    server = make_server()
    orphaned = not _answer_commands(channel, server)
    try:
        server.close()
    finally:
        kill_descendants(os.getpid())
        if orphaned:  # no other process will kill the rest of the group
            kill_group(os.getpid())


def _answer_commands(channel: socket.socket, server: Server) -> bool:
    """Answer commands until `CLOSE`, and return True; return False if the owner is gone."""
    try:
        while (command := receive(channel)) != CLOSE:
            channel.sendall(server.answer(command))
    except (EOFError, OSError):
        return False
    return True


def _leave_signals_to_owner() -> None:
    """Ignore stop signals, because the owner decides what they mean for its workers."""
    for number in handled_stop_signals():
        # Programs started by an env inherit SIG_IGN but not handlers, so that the env can still terminate them.
        signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else _do_nothing)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)  # the owner blocks them while it starts a process


def _do_nothing(number: int, frame: FrameType | None) -> None:
    del number, frame


def _exit_with_owner(channel: socket.socket, parent: int) -> None:
    """End this process when its owner is gone, even if an env hangs. An idle worker ends by itself before that.

    A process that the owner has forked may keep the channel open, so the parent's process id is checked too.
    """
    hangup = select.poll()
    hangup.register(channel, 0)  # a hangup is always reported
    while not hangup.poll(1e3 * _ORPHAN_SECONDS) and os.getppid() == parent:
        pass
    time.sleep(_ORPHAN_SECONDS)
    kill_tree(os.getpid())
