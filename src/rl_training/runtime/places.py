"""Where experience is collected: in this process, or in groups of envs here or in processes of their own."""

import ctypes
import multiprocessing
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from multiprocessing.connection import wait
from multiprocessing.util import Finalize
from typing import Any

from rl_training.algorithms.base import OffPolicyLearner, OnPolicyLearner
from rl_training.envs.factory import WORKER_STEP_TIMEOUT, check_num_envs, make_env, make_vector_env
from rl_training.envs.guard import RESET_PATIENCE, EnvCalls
from rl_training.envs.vector.pool import Worker, stop_workers
from rl_training.envs.vector.serving import SLICE_SECONDS, Command, Countdown, pack
from rl_training.errors import EnvironmentStepError, RLTrainingError, describe_error
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.collector import Collector, LocalCollector
from rl_training.runtime.grouped_collector import GroupedCollector, GroupFailure, Places, split_envs
from rl_training.runtime.learners import LearnerFactory, LearnerT, ParamsT
from rl_training.runtime.shares import EnvGroup, Order, RemoteGroup, Share

AnyLearner = OnPolicyLearner | OffPolicyLearner
MakeGroup = Callable[[Callable[[], None]], RemoteGroup]
"""Makes a group, given a function to call before every step; it can be sent to other processes."""

_COLLECT = "collect"
_SILENCE_PATIENCE = 2.0 * RESET_PATIENCE  # step timeouts without a step before a group counts as lost


@contextmanager
def open_collector(
    config: TrainConfig, factory: LearnerFactory[ParamsT, LearnerT]
) -> Iterator[tuple[LearnerT, Collector]]:
    """Make the learner and, in the place that the config names, what collects its experience."""
    if config.collectors == 1 and config.collect_on == "here":
        with closing(make_vector_env(config)) as envs:
            learner = factory.build(config, envs.single_observation_space, envs.single_action_space)
            yield learner, LocalCollector(envs, learner.make_actor(range(config.num_envs)))
        return
    check_num_envs(config)
    with closing(make_env(config, 0)) as env:  # raises a clear error for wrong arguments
        learner = factory.build(config, env.observation_space, env.action_space)
    groups = split_envs(config.num_envs, config.collectors)
    if config.collect_on == "processes":
        places: Places = GroupProcesses([partial(RemoteGroup, config, factory, envs) for envs in groups], config)
    else:
        places = _open_groups_here(config, learner, groups)
    with closing(places):
        yield learner, GroupedCollector(places, learner.policy, groups, config.env_restarts)


def _open_groups_here(config: TrainConfig, learner: AnyLearner, groups: Sequence[range]) -> "GroupsHere":
    with ExitStack() as opened:
        made = []
        for envs in groups:
            vector_env = opened.enter_context(closing(make_vector_env(config, envs)))
            made.append(EnvGroup(LocalCollector(vector_env, learner.make_actor(envs)), envs.start, learner.policy))
        return GroupsHere(made, opened.pop_all().close)


class GroupsHere:
    """Groups in this process, which act with the learner's own policy and work one after the other."""

    has_own_policies = False

    def __init__(self, groups: Sequence[EnvGroup], close: Callable[[], None]) -> None:
        self._groups = groups
        self._orders: dict[int, Order] = {}
        self.calls = [calls for group in groups for calls in group.calls]
        self.close = close

    def send(self, number: int, order: Order) -> None:
        """Keep the order until the answer is asked for."""
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
        """Carry out an order and return the encoded share, or a `GroupFailure`."""
        try:
            if self._group is None:
                self._group = self._make_group(self._count_step)
            return pack(self._group.collect(command[1]))
        except RLTrainingError as error:  # its message is clear already
            permanent = not isinstance(error, EnvironmentStepError)
            return pack(GroupFailure(str(error), traceback.format_exc(), permanent))
        except Exception as error:
            return pack(GroupFailure(describe_error(error), traceback.format_exc()))

    def close(self) -> None:
        """Close the envs."""
        if self._group is not None:
            self._group.close()


class _Patience:
    """Notices that a group takes no steps any more."""

    def __init__(self, steps_taken: Any, seconds: float) -> None:
        self._steps_taken, self._seconds = steps_taken, seconds
        self._seen, self.countdown = -1, Countdown(seconds)

    def exhausted(self) -> bool:
        """Return whether the group has taken no step for too long; call it at least every `SLICE_SECONDS`."""
        if self._steps_taken.value != self._seen:
            self._seen, self.countdown = self._steps_taken.value, Countdown(self._seconds)
        return not self.countdown.left()


class GroupProcesses:
    """Groups in worker processes. One that dies, hangs or raises is replaced, and its share repeated."""

    has_own_policies = True

    def __init__(self, groups: Sequence[MakeGroup], config: TrainConfig) -> None:
        self.calls: list[EnvCalls] = []  # none in this process
        self._groups = groups
        self._seconds = _SILENCE_PATIENCE * (config.step_timeout or WORKER_STEP_TIMEOUT)
        self._steps_taken = [multiprocessing.RawValue(ctypes.c_uint64) for _ in groups]
        self._patience: dict[int, _Patience] = {}
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
        patience = self._patience[number] = _Patience(self._steps_taken[number], self._seconds)
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
        exhausted = patience.exhausted()  # before looking: an answer may have come while this process was stopped
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
