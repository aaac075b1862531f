"""A vector of envs in supervised worker processes.

A worker that dies, hangs or raises is restarted, its envs are restored, and the interrupted command is repeated. The
trajectory is bit for bit that of an undisturbed run.
"""

import multiprocessing
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.util import Finalize
from typing import Any, NoReturn

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, iterate

from rl_training.envs.changes import Answer, repeat_changes
from rl_training.envs.episodes import BoolArray, EpisodeTracker, ResetResult, Seeds, StepResult
from rl_training.envs.guard import REPLAYED_STEP_PATIENCE, RESET_PATIENCE, EnvCalls
from rl_training.envs.restore import restore_env, restore_or_raise
from rl_training.envs.vector.pool import Failures, WorkerPool
from rl_training.envs.vector.protocol import EnvFactory, Restoration
from rl_training.envs.vector.serving import (
    Command,
    RestoreFunction,
    SharedArrays,
    WorkerFailure,
    make_shared_memory,
)
from rl_training.errors import CheckpointError, EnvironmentSetupError, EnvironmentStepError, TrainingStateError

_MAX_TIMEOUT = 2e6  # seconds; the system call takes milliseconds as a 32-bit integer


class WorkerError(Exception):
    """The traceback of an exception that an env raised in a worker."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


@dataclass(frozen=True)
class Task:
    """Commands for some workers, with what is needed to repeat them after a failure."""

    commands: dict[int, Command]
    seconds: float
    concerned: BoolArray
    """[env]; whether the commands concern the env."""
    must_restore: BoolArray
    """[env]; whether a new worker must restore the env before it gets the command."""
    locate: Callable[[int], str]
    """A function that describes what an env is doing, for messages."""
    must_repeat: BoolArray | None = None
    """[env]; whether a new worker must repeat the changes of the env, because the command begins a new episode."""


class AsyncEpisodeVectorEnv(VectorEnv[Any, Any, Any]):
    """Steps the envs in worker processes, and restarts a worker that fails.

    Only restarts in a row are counted: the count returns to 0 once the failed command succeeds. So a long run survives
    any number of rare failures, while an env that always fails at the same step soon ends it. An exception that is
    raised again after the first restart ends the run at once.
    """

    def __init__(
        self,
        env_fns: Sequence[EnvFactory],
        run_seed: int,
        *,
        first_env: int = 0,
        envs_per_worker: int = 1,
        step_timeout: float = 5.0,
        max_restarts: int = 3,
    ) -> None:
        self.num_envs = len(env_fns)
        self._read_description(env_fns[0])
        self.tracker = EpisodeTracker(self.num_envs, run_seed, self.single_observation_space, first_env=first_env)
        self.calls: list[EnvCalls] = []  # no env runs in this process
        self._step_timeout = step_timeout
        self._max_restarts = max_restarts
        memory = make_shared_memory(self.single_observation_space, self.num_envs, multiprocessing.get_context())
        self._arrays = SharedArrays(memory)
        self._block = 0  # which block of the shared memory holds the newest observations
        self._all = np.ones(self.num_envs, dtype=np.bool_)
        self._pool = WorkerPool(env_fns, envs_per_worker, memory)
        # Runs before multiprocessing waits for its children at exit: a worker that hangs would block it forever.
        self._stop = Finalize(self, self._pool.stop, exitpriority=10)
        self._start()

    def _read_description(self, env_fn: EnvFactory) -> None:
        """Read spaces and metadata from one env; one that cannot be made fails before any process starts."""
        env = env_fn()
        self.metadata = {**env.metadata, "autoreset_mode": AutoresetMode.DISABLED}
        self.render_mode = env.render_mode
        self.single_observation_space = env.observation_space
        self.single_action_space = env.action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        env.close()

    def _start(self) -> None:
        try:
            self._pool.start()
            self._run_task(
                Task(self._start_commands(), self._slow_timeout, self._all, ~self._all, "env {}, start".format)
            )
        except EnvironmentStepError as error:
            self.close()
            raise EnvironmentSetupError(str(error)) from error.__cause__
        except OSError as error:  # no process, socket or memory available
            self.close()
            raise EnvironmentSetupError(
                f"{len(self._pool.slices)} worker processes cannot be started ({error.strerror}): lower num_envs, "
                "raise envs_per_worker, or raise the limits of open files (ulimit -n) and processes (ulimit -u)"
            ) from error
        except BaseException:
            self.close()
            raise

    def _start_commands(self) -> dict[int, Command]:
        spaces = (self.single_observation_space, self.single_action_space)
        return dict.fromkeys(range(len(self._pool.slices)), ("start", spaces))

    @property
    def _slow_timeout(self) -> float:
        return RESET_PATIENCE * self._step_timeout

    @property
    def processes(self) -> list[multiprocessing.Process]:
        """The worker processes, in the order of their envs."""
        return [worker.process for worker in self._pool.workers]

    def reset(self, *, seed: Seeds = None, options: dict[str, Any] | None = None) -> ResetResult:
        """Start the next episode of every env that `options["reset_mask"]` names, or of all."""
        return self.tracker.reset(self._reset_envs, seed, options)

    def _reset_envs(self, mask: BoolArray, seeds: list[int | None], options: dict[str, Any] | None) -> ResetResult:
        commands: dict[int, Command] = {}
        for number, envs in enumerate(self._pool.slices):
            chosen = {index: seeds[index] for index in envs if mask[index]}
            if chosen:
                commands[number] = ("reset", (self._block, chosen, options))
        must_restore = ~mask & ~self.tracker.ended
        task = Task(
            commands,
            self._slow_timeout,
            mask,
            must_restore,
            lambda index: self.tracker.locate_reset(index, seeds[index]),
            must_repeat=~must_restore,
        )
        infos = self._merge_infos(self._run_task(task))
        return self._arrays.read(self._block), infos

    def step(self, actions: Any) -> StepResult:
        """Step all envs; at the end of an episode, the observation is the true last one of that episode."""
        taken = self.tracker.begin_step(actions)
        block = 1 - self._block
        commands: dict[int, Command] = {
            number: ("step", (block, taken[envs.start : envs.stop])) for number, envs in enumerate(self._pool.slices)
        }
        task = Task(
            commands, self._step_timeout, self._all, self._all, lambda index: self.tracker.locate(index, taken[index])
        )
        env_infos = self._run_task(task)
        infos = self._merge_infos(env_infos)
        arrays = self._arrays
        result = (arrays.read(block), arrays.rewards.copy(), arrays.terminated.copy(), arrays.truncated.copy(), infos)
        self.tracker.finish_step(taken, result, env_infos)
        self._block = block
        return result

    def _merge_infos(self, infos: dict[int, Any]) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        for index in sorted(infos):
            merged = self._add_info(merged, infos[index], index)
        return merged

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to restore every env to its current state."""
        if self.tracker.out_of_sync or self.closed:
            return self.tracker.state_dict()
        states: dict[int, Any] = {}
        commands: dict[int, Command] = dict.fromkeys(range(len(self._pool.slices)), ("state", None))
        for _, failure in sorted(self._pool.exchange(commands, self._step_timeout, states).items()):
            if failure.trace:
                raise CheckpointError(f"env {failure.index}: {failure.cause}") from WorkerError(failure.trace)
        return self.tracker.state_dict([states.get(index) for index in range(self.num_envs)])

    def restore(self, state: dict[str, Any], last_obs: Any) -> Restoration:
        """Restore every env to `state`, in which it showed `last_obs` [env, ...]."""
        tracker = self.tracker
        tracker.load_state_dict(state)
        running = ~tracker.ended
        locate = tracker.locate_restore
        self._run_task(Task(self._repeat_commands(~running), self._slow_timeout, ~running, ~self._all, locate))
        task = Task(
            self._restore_commands(running, last_obs, restore_env, state["states"]),
            self._restore_timeout(running),
            concerned=running,
            must_restore=~self._all,
            locate=locate,
            must_repeat=~running,
        )
        failures = self._run_task(task)
        obs = tracker.finish_restore(failures, self.reset, lambda: self._arrays.read(self._block))
        return Restoration(obs, failures)

    def _restore_commands(
        self, chosen: BoolArray, obs: Sequence[Any], restore_function: RestoreFunction, states: Sequence[Any]
    ) -> dict[int, Command]:
        commands: dict[int, Command] = {}
        for number, envs in enumerate(self._pool.slices):
            episodes = {
                index: (self.tracker.running(index, states[index]), obs[index]) for index in envs if chosen[index]
            }
            if episodes:
                commands[number] = ("restore", (self._block, episodes, restore_function))
        return commands

    def _repeat_commands(self, chosen: BoolArray) -> dict[int, Command]:
        """Return commands that repeat the changes of the chosen envs in new envs."""
        logs = self.tracker.changes
        repeats = {index: partial(repeat_changes, log=log) for index, log in enumerate(logs) if chosen[index]}
        return self._visit_commands(repeats)

    def _visit_commands(self, functions: Mapping[int, Callable[[Any], Any]]) -> dict[int, Command]:
        commands: dict[int, Command] = {}
        for number, envs in enumerate(self._pool.slices):
            chosen = {index: functions[index] for index in envs if index in functions}
            if chosen:
                commands[number] = ("visit", chosen)
        return commands

    def visit(self, function: Callable[[Any], Answer]) -> list[Answer]:
        """Call a function with every env in its worker process, and return the answers [env]."""
        commands = self._visit_commands(dict.fromkeys(range(self.num_envs), function))
        task = Task(commands, self._slow_timeout, self._all, self._all, self.tracker.locate_visit)
        answers = self._run_task(task)
        return [answers[index] for index in range(self.num_envs)]

    def _restore_timeout(self, chosen: BoolArray) -> float:
        replayed = int(self.tracker.lengths[chosen].sum())
        return min(self._slow_timeout + REPLAYED_STEP_PATIENCE * self._step_timeout * replayed, _MAX_TIMEOUT)

    def close_extras(self) -> None:
        """Stop the workers; never takes longer than a few seconds."""
        self._stop()

    def _run_task(self, task: Task) -> dict[int, Any]:
        """Return the answers of the envs, by index; restart the workers that fail until all have answered."""
        if self.closed:
            raise TrainingStateError("these envs are closed: make new ones")
        answers: dict[int, Any] = {}
        failures = self._pool.exchange(task.commands, task.seconds, answers)
        earlier: Failures = {}
        restarts = 0
        while failures:
            self._raise_or_warn(dict(sorted(failures.items())), earlier, task, restarts)
            restarts += 1
            earlier, failures = failures, self._restart_workers(failures, task, answers)
        return answers

    def _raise_or_warn(self, failures: Failures, earlier: Failures, task: Task, restarts: int) -> None:
        """Raise the first failure that a restart cannot solve, or else warn of all failures."""
        for number, failure in failures.items():
            came_again = failure.trace and failure == earlier.get(number)  # the same exception at the same place
            if failure.permanent or came_again or restarts == self._max_restarts:
                tried = f" (tried {restarts + 1} times)" if restarts else ""
                self._raise_failure(f"{self._place(number, failure, task)}: {failure.cause}{tried}", failure)
        for number, failure in failures.items():
            envs = self._pool.slices[number]
            named = f"env {envs[0]}" if len(envs) == 1 else f"envs {envs[0]} to {envs[-1]}"
            warnings.warn(
                f"worker {number} ({named}) failed at {self._place(number, failure, task)}: {failure.cause}; "
                f"restarting it ({restarts + 1} of at most {self._max_restarts} times in a row)",
                stacklevel=4,
            )

    def _place(self, number: int, failure: WorkerFailure, task: Task) -> str:
        if task.concerned[failure.index]:
            return task.locate(failure.index)
        # The worker died before it reached such an env: name the first one.
        return task.locate(next(index for index in self._pool.slices[number] if task.concerned[index]))

    def _raise_failure(self, message: str, failure: WorkerFailure) -> NoReturn:
        raise EnvironmentStepError(message) from (WorkerError(failure.trace) if failure.trace else None)

    def _restart_workers(self, failures: Failures, task: Task, answers: dict[int, Any]) -> Failures:
        """Restart the workers that failed, restore their envs, repeat their commands, and return the new failures."""
        for number in failures:
            self._pool.restart(number)
        starts = self._start_commands()
        failed = self._pool.exchange({number: starts[number] for number in failures}, self._slow_timeout, {})
        if task.must_repeat is not None:
            repeats = self._repeat_commands(task.must_repeat)
            repeats = {number: repeats[number] for number in failures if number in repeats and number not in failed}
            failed |= self._pool.exchange(repeats, self._slow_timeout, {})
        failed |= self._restore_envs({number: failures[number] for number in failures if number not in failed}, task)
        commands = {number: task.commands[number] for number in failures if number not in failed}
        return failed | self._pool.exchange(commands, task.seconds, answers)

    def _restore_envs(self, failures: Failures, task: Task) -> Failures:
        """Restore the envs of restarted workers to their state before the failure, and return the new failures."""
        chosen = np.zeros(self.num_envs, dtype=np.bool_)
        for number in failures:
            envs = self._pool.slices[number]
            chosen[envs.start : envs.stop] = task.must_restore[envs.start : envs.stop]
        last_obs = list(iterate(self.observation_space, self._arrays.read(self._block)))
        commands = self._restore_commands(chosen, last_obs, restore_or_raise, [None] * self.num_envs)
        reasons: dict[int, str] = {}
        failed = self._pool.exchange(commands, self._restore_timeout(chosen), reasons)
        for number, failure in failures.items():
            for index in self._pool.slices[number]:
                if index in reasons:
                    place = self._place(number, failure, task)
                    reason = f"it is not a function of its seed and the actions kept: {reasons[index]}"
                    self._raise_failure(
                        f"{place}: {failure.cause}; env {index} could not be restored, because {reason}", failure
                    )
        return failed
