"""The inside of a worker process: its envs, the commands it knows, and the memory that it shares with its owner."""

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
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.vector.utils import create_shared_memory, read_from_shared_memory, write_to_shared_memory

from rl_training.envs.episodes import Array, misfit
from rl_training.envs.restore import AnyEnv, Restored, capture_state
from rl_training.envs.samples import RunningEpisode
from rl_training.envs.vector.protocol import EnvFactory
from rl_training.errors import describe_error
from rl_training.processes import kill_descendants, kill_group, kill_tree
from rl_training.signals import STOP_SIGNALS, handled_stop_signals

_HEADER_BYTES = 8
_READ_BYTES = 2**16
_ORPHAN_SECONDS = 1.0  # for a worker to end in good order when its owner is gone
SLICE_SECONDS = 0.25  # longer waits are cut into slices

BringBack = Callable[[AnyEnv, RunningEpisode, Any], Restored]
Command = tuple[str, Any]
"""A method of `EnvServer` and its argument, or `CLOSE`."""

CLOSE: Command = ("close", None)


@dataclass(frozen=True)
class Failure:
    """What an env raised, as text: not every exception can travel between processes."""

    index: int
    text: str
    trace: str
    permanent: bool
    """Whether another try would only show the same."""


class MisfitError(Exception):
    """An observation that is not of its space."""


def pack(message: Any) -> bytes:
    """A message as it travels: its length, then its pickle."""
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return len(data).to_bytes(_HEADER_BYTES, "little") + data


class Countdown:
    """Seconds that are left while this process runs; the time in which it was stopped (Ctrl-Z) does not count.

    Call `left()` at least every `SLICE_SECONDS`. Of a longer gap between two calls, only twice that counts.
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


def receive(end: socket.socket, countdown: Countdown | None = None) -> Any:
    """The message that has come; `TimeoutError` if none has begun within the socket's own timeout.

    `countdown` bounds the wait for its further pieces; `EOFError` says that none will come.
    """
    data = _read(end)
    if len(data) >= _HEADER_BYTES and len(data) == _HEADER_BYTES + int.from_bytes(data[:_HEADER_BYTES], "little"):
        return pickle.loads(data[_HEADER_BYTES:])
    end.settimeout(None if countdown is None else SLICE_SECONDS)
    message = bytearray(data)
    while len(message) < _HEADER_BYTES:
        message += _read_further(end, countdown)
    size = _HEADER_BYTES + int.from_bytes(message[:_HEADER_BYTES], "little")
    while len(message) < size:
        message += _read_further(end, countdown)
    return pickle.loads(memoryview(message)[_HEADER_BYTES:])


def _read_further(end: socket.socket, countdown: Countdown | None) -> bytes:
    while True:
        try:
            return _read(end)
        except TimeoutError:
            if countdown is None or not countdown.left():
                raise EOFError from None


def _read(end: socket.socket) -> bytes:
    data = end.recv(_READ_BYTES)
    if not data:
        raise EOFError
    return data


@dataclass(frozen=True)
class SharedMemory:
    """Memory that all processes write and read; `SharedArrays` is how."""

    space: Space[Any]
    num_envs: int
    blocks: tuple[Any, Any]
    rewards: Any
    endings: Any
    current: Any


def make_shared_memory(space: Space[Any], num_envs: int, context: BaseContext) -> SharedMemory:
    """Raises `TypeError` or `CustomSpaceError` for a space whose observations are not all of one size."""
    allocate: Any = context  # declared as the module, whose functions every context has
    return SharedMemory(
        space=space,
        num_envs=num_envs,
        blocks=(create_shared_memory(space, num_envs, allocate), create_shared_memory(space, num_envs, allocate)),
        rewards=context.RawArray(ctypes.c_double, num_envs),
        endings=context.RawArray(ctypes.c_bool, 2 * num_envs),
        current=context.RawArray(ctypes.c_int64, num_envs),
    )


class SharedArrays:
    """What the envs show, as every process sees it.

    There are two blocks of observations: a step writes the one that does not hold the newest, which so survive a
    step that fails.
    """

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory
        blocks: Any = [read_from_shared_memory(memory.space, block, memory.num_envs) for block in memory.blocks]
        self._blocks: list[Array] | None = blocks if isinstance(blocks[0], np.ndarray) else None  # [env, ...]
        self.rewards = np.frombuffer(memory.rewards, dtype=np.float64)
        endings = np.frombuffer(memory.endings, dtype=np.bool_)
        self.terminated, self.truncated = endings[: memory.num_envs], endings[memory.num_envs :]
        self.current = np.frombuffer(memory.current, dtype=np.int64)
        """Which env each worker is busy with, at the index of the worker's first env."""

    def read(self, block: int) -> Any:
        """All observations of a block, in fresh memory."""
        if self._blocks is not None:
            return self._blocks[block].copy()
        return deepcopy(read_from_shared_memory(self._memory.space, self._memory.blocks[block], self._memory.num_envs))

    def write(self, block: int, index: int, obs: Any) -> None:
        """One env's observation; `MisfitError` if it is not of the space."""
        space = self._memory.space
        try:
            if self._blocks is None:
                write_to_shared_memory(space, index, obs, self._memory.blocks[block])
                return
            if np.shape(obs) == space.shape:  # copyto() would stretch a smaller one
                np.copyto(self._blocks[block][index, ...], obs, casting="same_kind")
                return
        except (TypeError, ValueError) as error:
            raise MisfitError(misfit(space, obs) or str(error)) from error
        raise MisfitError(misfit(space, obs))


class EnvServer:
    """Some neighbouring envs of the vector; each method but `close` answers one command."""

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
        }

    def answer(self, command: Command) -> bytes:
        """What goes back to the owner: results by env index, or a `Failure`."""
        name, argument = command
        try:
            return pack(self._commands[name](argument))
        except MisfitError as error:
            return pack(Failure(self._current, str(error), traceback.format_exc(), permanent=True))
        except Exception as error:
            return pack(Failure(self._current, describe_error(error), traceback.format_exc(), permanent=False))

    @property
    def _current(self) -> int:
        return int(self._arrays.current[self._first])

    def _env(self, index: int) -> AnyEnv:
        """The env that is worked on from now on."""
        self._arrays.current[self._first] = index
        return self._envs[index - self._first]

    def start(self, spaces: tuple[Space[Any], Space[Any]]) -> dict[int, Any]:
        """Make the envs that are not there yet; all must have these observation and action spaces."""
        for index in range(self._first + len(self._envs), self._first + len(self._env_fns)):
            self._arrays.current[self._first] = index
            env = self._env_fns[index - self._first]()
            self._envs.append(env)
            if (env.observation_space, env.action_space) != spaces:
                given = f"{env.observation_space} and {env.action_space}"
                raise ValueError(f"all envs must have the same spaces: {spaces[0]} and {spaces[1]}, got {given}")
        return {}

    def reset(self, argument: tuple[int, dict[int, int | None], dict[str, Any] | None]) -> dict[int, Any]:
        """Begin an episode of each env that a seed is given for; the infos."""
        block, seeds, options = argument
        infos = {}
        for index, seed in seeds.items():
            obs, infos[index] = self._env(index).reset(seed=seed, options=options)
            self._arrays.write(block, index, obs)
        return infos

    def step(self, argument: tuple[int, Array]) -> dict[int, Any]:
        """Step every env; the infos that say anything."""
        block, actions = argument
        infos, arrays = {}, self._arrays
        for index, action in enumerate(actions, start=self._first):
            obs, reward, terminated, truncated, info = self._env(index).step(action)
            arrays.write(block, index, obs)
            arrays.rewards[index], arrays.terminated[index], arrays.truncated[index] = reward, terminated, truncated
            if info:
                infos[index] = info
        return infos

    def restore(self, argument: tuple[int, dict[int, tuple[RunningEpisode, Any]], BringBack]) -> dict[int, Any]:
        """Bring envs back to where their episodes were; why that failed, by env."""
        block, episodes, bring_back = argument
        failures = {}
        for index, (episode, expected_obs) in episodes.items():
            restored = bring_back(self._env(index), episode, expected_obs)
            if restored.failure:
                failures[index] = restored.failure
            else:
                self._arrays.write(block, index, restored.obs)
        return failures

    def state(self, _: None) -> dict[int, Any]:
        """The envs' own states, where they offer them."""
        return {index: capture_state(self._env(index)) for index in range(self._first, self._first + len(self._envs))}

    def close(self) -> None:
        """Close all envs."""
        for env in self._envs:
            env.close()


def serve(
    end: socket.socket,
    foreign_ends: Sequence[socket.socket],
    server_args: tuple[int, Sequence[EnvFactory], SharedMemory],
) -> None:
    """Answer commands until told to close, or until the owner is gone."""
    os.setpgid(0, 0)  # so that the programs which an env starts can be killed with this process
    _leave_signals_to_owner()
    for foreign in foreign_ends:  # an end that lives on in a forked sibling would hide that the owner is gone
        foreign.close()
    threading.Thread(target=_end_with_owner, args=(end, os.getppid()), daemon=True).start()
    server = EnvServer(*server_args)
    orphaned = not _answer_commands(end, server)
    try:
        server.close()
    finally:
        kill_descendants(os.getpid())
        if orphaned:  # nobody else is left to kill the rest of the group
            kill_group(os.getpid())


def _answer_commands(end: socket.socket, server: EnvServer) -> bool:
    """Answer until the owner says that this is all, or until it is gone; tell the two apart."""
    try:
        while (command := receive(end)) != CLOSE:
            end.sendall(server.answer(command))
    except (EOFError, OSError):
        return False
    return True


def _leave_signals_to_owner() -> None:
    """Let the owner decide what a signal to all of its processes means."""
    for number in handled_stop_signals():
        # Handlers, other than SIG_IGN, do not pass to programs that an env starts and may want to terminate.
        signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else _do_nothing)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)  # the owner blocks them while it starts a process


def _do_nothing(number: int, frame: FrameType | None) -> None:
    del number, frame


def _end_with_owner(end: socket.socket, parent: int) -> None:
    """End this process when its owner is gone, even if an env hangs; an idle one ends by itself before that.

    The owner's end of the channel may live on in a process that the owner has forked, so the parent is looked at too.
    """
    hangup = select.poll()
    hangup.register(end, 0)  # a hangup is reported without being asked for
    while not hangup.poll(1e3 * _ORPHAN_SECONDS) and os.getppid() == parent:
        pass
    time.sleep(_ORPHAN_SECONDS)
    kill_tree(os.getpid())
