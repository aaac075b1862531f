"""Places for groups of envs on this machine: this process, or processes of their own."""

import ctypes
import multiprocessing
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import wait
from multiprocessing.util import Finalize
from typing import Any

from rl_training.envs.factory import WORKER_STEP_TIMEOUT
from rl_training.envs.guard import RESET_PATIENCE, EnvCalls
from rl_training.envs.vector.pool import Worker, stop_workers
from rl_training.envs.vector.serving import SLICE_SECONDS, Command, Countdown, pack
from rl_training.errors import EnvironmentStepError, RLTrainingError, describe_error
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.grouped_collector import GroupFailure
from rl_training.runtime.shares import EnvGroup, Order, RemoteGroup, Share

MakeGroup = Callable[[Callable[[], None]], RemoteGroup]
"""A factory that makes a group, given a function to call before every step; it can be pickled."""

_COLLECT = "collect"
_SILENCE_PATIENCE = 2.0 * RESET_PATIENCE  # step timeouts without a step before a group counts as lost


class GroupsHere:
    """Groups in this process, which act with the learner's own policy and work one after the other."""

    has_own_policies = False

    def __init__(self, groups: Sequence[EnvGroup], close: Callable[[], None]) -> None:
        self._groups = groups
        self._orders: dict[int, Order] = {}
        self.calls = [calls for group in groups for calls in group.calls]
        self.close = close

    def send(self, number: int, order: Order) -> None:
        """Store the order, which `receive` carries out."""
        self._orders[number] = order

    def receive(self, numbers: Sequence[int], interrupted: Callable[[], bool]) -> dict[int, Share | GroupFailure]:
        """Carry out the order of the first of these groups."""
        share = self._groups[numbers[0]].collect(self._orders[numbers[0]], interrupted)
        return {} if share is None else {numbers[0]: share}

    def replace(self, number: int) -> None:
        """Do nothing: a group here fails only with an exception, which ends the run."""


class GroupServer:
    """A group in a worker process."""

    def __init__(self, make_group: MakeGroup, steps_taken: Any) -> None:
        """`steps_taken` is a counter in shared memory."""
        self._make_group, self._steps_taken = make_group, steps_taken
        self._group: RemoteGroup | None = None

    def _count_step(self) -> None:
        self._steps_taken.value += 1

    def answer(self, command: Command) -> bytes:
        """Carry out the order of a command, and return the encoded answer."""
        return pack(self.collect(command[1]))

    def collect(self, order: Order) -> Share | GroupFailure:
        """Carry out an order, in a new group if there is none yet."""
        try:
            if self._group is None:
                self._group = self._make_group(self._count_step)
            return self._group.collect(order)
        except RLTrainingError as error:  # its message is clear already
            permanent = not isinstance(error, EnvironmentStepError)
            return GroupFailure(str(error), traceback.format_exc(), permanent)
        except Exception as error:
            return GroupFailure(describe_error(error), traceback.format_exc())

    def close(self) -> None:
        """Close the envs."""
        if self._group is not None:
            self._group.close()


def silence_seconds(config: TrainConfig) -> float:
    """Return the time without a step after which a group counts as lost."""
    return _SILENCE_PATIENCE * (config.step_timeout or WORKER_STEP_TIMEOUT)


class Patience:
    """Detects that a group has stopped taking steps."""

    def __init__(self, steps_taken: Any, seconds: float) -> None:
        self._steps_taken, self._seconds = steps_taken, seconds
        self._seen, self.countdown = -1, Countdown(seconds)

    def exhausted(self) -> bool:
        """Return whether the group has taken no step for too long; call it at least every `SLICE_SECONDS`."""
        if self._steps_taken.value != self._seen:
            self._seen, self.countdown = self._steps_taken.value, Countdown(self._seconds)
        return not self.countdown.left()


class GroupProcesses:
    """Groups in worker processes. A group that dies, hangs or raises is replaced, and its share is repeated."""

    has_own_policies = True

    def __init__(self, groups: Sequence[MakeGroup], config: TrainConfig) -> None:
        self.calls: list[EnvCalls] = []  # none in this process
        self._groups = groups
        self._seconds = silence_seconds(config)
        self._steps_taken = [multiprocessing.RawValue(ctypes.c_uint64) for _ in groups]
        self._patience: dict[int, Patience] = {}
        self._workers: list[Worker] = []
        # Runs before multiprocessing waits for its children at exit: a worker that hangs would block it forever.
        self.close = Finalize(self, stop_workers, (self._workers,), exitpriority=10)
        try:
            for number in range(len(groups)):
                self._workers.append(self._start(number))
        except BaseException:
            self.close()
            raise

    def _start(self, number: int) -> Worker:
        make_server = partial(GroupServer, self._groups[number], self._steps_taken[number])
        return Worker(f"collector-{number}", make_server, self._workers)

    def send(self, number: int, order: Order) -> None:
        """Send a group its next order."""
        patience = self._patience[number] = Patience(self._steps_taken[number], self._seconds)
        with suppress(OSError):  # the group is gone, which `receive` notices
            self._workers[number].send((_COLLECT, order), patience.countdown)

    def receive(self, numbers: Sequence[int], interrupted: Callable[[], bool]) -> dict[int, Share | GroupFailure]:
        """Return the answers that have come; wait up to `SLICE_SECONDS` if there is none."""
        del interrupted
        answers = {number: answer for number in numbers if (answer := self._poll(number)) is not None}
        if not answers:
            workers = [self._workers[number] for number in numbers]
            wait([handle for worker in workers for handle in (worker.channel, worker.process.sentinel)], SLICE_SECONDS)
        return answers

    def _poll(self, number: int) -> Share | GroupFailure | None:
        worker, patience = self._workers[number], self._patience[number]
        exhausted = patience.exhausted()  # before receiving: an answer may have come while this process was stopped
        try:
            answer: Share | GroupFailure = worker.receive(patience.countdown)
        except TimeoutError:
            if worker.process.exitcode is not None:
                return GroupFailure(worker.describe_end(""))
            return GroupFailure(f"no step within {self._seconds:g} s") if exhausted else None
        except (EOFError, OSError):
            return GroupFailure(worker.describe_loss())
        return answer

    def replace(self, number: int) -> None:
        """Start a new process for a group."""
        self._workers[number].kill()
        self._workers[number] = self._start(number)
