"""A vector of envs in supervised worker processes.

A worker that dies, hangs or raises is started again, its envs are brought back to where they were, and the
interrupted command is repeated: the trajectory is that of an undisturbed run, to the last bit.
"""

import multiprocessing
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.util import Finalize
from typing import Any, NoReturn

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, iterate

from rl_training.envs.episodes import BoolArray, EpisodeTracker, ResetResult, Seeds, StepResult
from rl_training.envs.guard import REPLAYED_STEP, RESET_PATIENCE, EnvCalls
from rl_training.envs.restore import bring_back, restore_env
from rl_training.envs.vector.pool import Failures, WorkerFailure, WorkerPool
from rl_training.envs.vector.protocol import EnvFactory, Restoration
from rl_training.envs.vector.serving import BringBack, Command, SharedArrays, make_shared_memory
from rl_training.errors import CheckpointError, EnvironmentSetupError, EnvironmentStepError, TrainingStateError

_LONGEST_TIMEOUT = 2e6  # seconds; the system's own wait takes milliseconds in 32 bits


class WorkerError(Exception):
    """What an env raised in a worker, with its traceback there."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


@dataclass(frozen=True)
class Task:
    """A command for each of some workers, and what is needed to give it once more."""

    commands: dict[int, Command]
    seconds: float
    concerned: BoolArray
    """The envs [env] that the commands are about."""
    resumed: BoolArray
    """The envs [env] to be brought back in a new worker before it gets the command."""
    locate: Callable[[int], str]
    """What an env is doing, for messages."""


class AsyncEpisodeVectorEnv(VectorEnv[Any, Any, Any]):
    """Steps the envs in worker processes, and starts a worker again when it fails.

    The restarts are counted in a row: once a worker has done what it failed at, the count begins anew. So a run of
    days outlives any number of rare failures, while an env that cannot get past one step ends it soon.
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
        self._adopt_description(env_fns[0])
        self.tracker = EpisodeTracker(self.num_envs, run_seed, self.single_observation_space, first_env=first_env)
        self.calls: list[EnvCalls] = []  # none in this process: the workers are supervised here
        self._step_timeout = step_timeout
        self._max_restarts = max_restarts
        memory = make_shared_memory(self.single_observation_space, self.num_envs, multiprocessing.get_context())
        self._arrays = SharedArrays(memory)
        self._block = 0  # which block of the shared memory holds the newest observations
        self._all = np.ones(self.num_envs, dtype=np.bool_)
        self._pool = WorkerPool(env_fns, envs_per_worker, memory)
        # Runs before multiprocessing itself waits for its children at exit, which a hung one would make endless.
        self._stop = Finalize(self, self._pool.stop, exitpriority=10)
        self._start()

    def _adopt_description(self, env_fn: EnvFactory) -> None:
        """Look at one env, so that what cannot be made fails before any process starts."""
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
            self._ask(Task(self._starts(), self._slow_timeout, self._all, ~self._all, "env {}, start".format))
        except EnvironmentStepError as error:
            self.close()
            raise EnvironmentSetupError(str(error)) from error.__cause__
        except OSError as error:  # no process, no socket or no memory to be had
            self.close()
            raise EnvironmentSetupError(
                f"{len(self._pool.slices)} worker processes cannot be started ({error.strerror}): lower num_envs, "
                "raise envs_per_worker, or raise the limits of open files (ulimit -n) and processes (ulimit -u)"
            ) from error
        except BaseException:
            self.close()
            raise

    def _starts(self) -> dict[int, Command]:
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
        resumed = ~mask & ~self.tracker.ended
        task = Task(
            commands, self._slow_timeout, mask, resumed, lambda index: self.tracker.locate_reset(index, seeds[index])
        )
        infos = self._merge_infos(self._ask(task))
        return self._arrays.read(self._block), infos

    def step(self, actions: Any) -> StepResult:
        """Step all envs. At an episode's end the observation is that episode's true last one."""
        taken = self.tracker.begin_step(actions)
        block = 1 - self._block
        commands: dict[int, Command] = {
            number: ("step", (block, taken[envs.start : envs.stop])) for number, envs in enumerate(self._pool.slices)
        }
        task = Task(
            commands, self._step_timeout, self._all, self._all, lambda index: self.tracker.locate(index, taken[index])
        )
        infos = self._merge_infos(self._ask(task))
        arrays = self._arrays
        result = (arrays.read(block), arrays.rewards.copy(), arrays.terminated.copy(), arrays.truncated.copy(), infos)
        self.tracker.finish_step(taken, result)
        self._block = block
        return result

    def _merge_infos(self, infos: dict[int, Any]) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        for index in sorted(infos):
            merged = self._add_info(merged, infos[index], index)
        return merged

    def state_dict(self) -> dict[str, Any]:
        """What brings every env back to where it is."""
        if self.tracker.out_of_step or self.closed:
            return self.tracker.state_dict()
        states: dict[int, Any] = {}
        commands: dict[int, Command] = dict.fromkeys(range(len(self._pool.slices)), ("state", None))
        for failure in self._pool.exchange(commands, self._step_timeout, states).values():
            if failure.trace:
                raise CheckpointError(f"env {failure.index}: {failure.cause}") from WorkerError(failure.trace)
        return self.tracker.state_dict([states.get(index) for index in range(self.num_envs)])

    def restore(self, state: dict[str, Any], last_obs: Any) -> Restoration:
        """Bring every env back to where `state` was taken, when it showed `last_obs` [env, ...]."""
        tracker = self.tracker
        tracker.load_state_dict(state)
        running = ~tracker.ended
        task = Task(
            self._restore_commands(running, last_obs, restore_env, state["states"]),
            self._restore_timeout(running),
            concerned=running,
            resumed=~self._all,
            locate=tracker.locate_restore,
        )
        failures = self._ask(task)
        obs = tracker.finish_restore(failures, self.reset, lambda: self._arrays.read(self._block))
        return Restoration(obs, failures)

    def _restore_commands(
        self, chosen: BoolArray, obs: Sequence[Any], how: BringBack, states: Sequence[Any]
    ) -> dict[int, Command]:
        commands: dict[int, Command] = {}
        for number, envs in enumerate(self._pool.slices):
            episodes = {
                index: (self.tracker.running(index, states[index]), obs[index]) for index in envs if chosen[index]
            }
            if episodes:
                commands[number] = ("restore", (self._block, episodes, how))
        return commands

    def _restore_timeout(self, chosen: BoolArray) -> float:
        replayed = int(self.tracker.lengths[chosen].sum())
        return min(self._slow_timeout + REPLAYED_STEP * self._step_timeout * replayed, _LONGEST_TIMEOUT)

    def close_extras(self) -> None:
        """Stop the workers; never takes longer than a few seconds."""
        self._stop()

    def _ask(self, task: Task) -> dict[int, Any]:
        """What the envs answer, by index; workers that fail are started again until they answer too."""
        if self.closed:
            raise TrainingStateError("these envs are closed: make new ones")
        answers: dict[int, Any] = {}
        failures = self._pool.exchange(task.commands, task.seconds, answers)
        restarts = 0
        while failures:
            self._raise_or_warn(dict(sorted(failures.items())), task, restarts)
            restarts += 1
            failures = self._start_again(failures, task, answers)
        return answers

    def _raise_or_warn(self, failures: Failures, task: Task, restarts: int) -> None:
        """Raise the first failure, in the order of workers, that a new start cannot help; warn of the others."""
        for number, failure in failures.items():
            if failure.permanent or restarts == self._max_restarts:
                tried = f" (tried {restarts + 1} times)" if restarts else ""
                self._give_up(f"{self._place(number, failure, task)}: {failure.cause}{tried}", failure)
        for number, failure in failures.items():
            envs = self._pool.slices[number]
            named = f"env {envs[0]}" if len(envs) == 1 else f"envs {envs[0]} to {envs[-1]}"
            warnings.warn(
                f"worker {number} ({named}) failed at {self._place(number, failure, task)}: {failure.cause}; "
                f"it is started again ({restarts + 1} of at most {self._max_restarts} times in a row)",
                stacklevel=4,
            )

    def _place(self, number: int, failure: WorkerFailure, task: Task) -> str:
        if task.concerned[failure.index]:
            return task.locate(failure.index)
        # The worker died before it came to an env: name the first one that it was to work on.
        return task.locate(next(index for index in self._pool.slices[number] if task.concerned[index]))

    def _give_up(self, message: str, failure: WorkerFailure) -> NoReturn:
        raise EnvironmentStepError(message) from (WorkerError(failure.trace) if failure.trace else None)

    def _start_again(self, failures: Failures, task: Task, answers: dict[int, Any]) -> Failures:
        """Replace the workers that failed, bring their envs back, and give their commands again; what fails now."""
        for number in failures:
            self._pool.start_again(number)
        starts = self._starts()
        failed = self._pool.exchange({number: starts[number] for number in failures}, self._slow_timeout, {})
        failed |= self._bring_back({number: failures[number] for number in failures if number not in failed}, task)
        commands = {number: task.commands[number] for number in failures if number not in failed}
        return failed | self._pool.exchange(commands, task.seconds, answers)

    def _bring_back(self, failures: Failures, task: Task) -> Failures:
        """Bring the envs of new workers to where they were before the failures; what fails now."""
        chosen = np.zeros(self.num_envs, dtype=np.bool_)
        for number in failures:
            envs = self._pool.slices[number]
            chosen[envs.start : envs.stop] = task.resumed[envs.start : envs.stop]
        last_obs = list(iterate(self.observation_space, self._arrays.read(self._block)))
        commands = self._restore_commands(chosen, last_obs, bring_back, [None] * self.num_envs)
        reasons: dict[int, str] = {}
        failed = self._pool.exchange(commands, self._restore_timeout(chosen), reasons)
        for number, failure in failures.items():
            for index in self._pool.slices[number]:
                if index in reasons:
                    place = self._place(number, failure, task)
                    reason = f"it is no function of its seed and the actions kept: {reasons[index]}"
                    self._give_up(
                        f"{place}: {failure.cause}; env {index} could not be brought back, since {reason}", failure
                    )
        return failed
