"""The tasks and the results of the scale benchmark, and a model of the time of one iteration with collectors.

The model's constants come from the measured points with few collectors: what a step takes, what an exchange with N
collectors takes, and what an update takes. It predicts the other points, and numbers of collectors that one machine
cannot run.
"""

import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from speed_common import ROWS

PLACES = ("here", "processes", "ray")
TOLERANCE = 0.2
"""How far a prediction may be from the measured time of an iteration, as a share of it."""
MOST_FITTED = 8
"""The model's constants come from points with at most so many collectors; it predicts the others."""
_HALF = 0.5
_MOST_COLLECTORS = 1_000_000

Line = tuple[float, float]
"""A fixed part, and a part per unit."""


@dataclass(frozen=True)
class Task:
    """What is trained in a measurement."""

    name: str
    algo: str
    env_id: str
    params: dict[str, Any]
    collectors: tuple[int, ...]
    places: tuple[str, ...] = PLACES
    envs: int | None = None
    """The number of envs; none for one per collector."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    iterations: int = 8
    compile: str = "off"
    vectorization: str = "sync"

    @property
    def steps_per_env(self) -> int:
        """The steps of each env in one iteration."""
        if self.algo == "ppo":
            return int(self.params["num_steps"])
        return int(self.params["train_frequency"]) // self.num_envs(1)

    def num_envs(self, collectors: int) -> int:
        """Return the number of envs of a run."""
        return self.envs or collectors

    def steps_per_iteration(self, collectors: int) -> int:
        """Return the env steps of one iteration."""
        return self.steps_per_env * self.num_envs(collectors)

    def params_for(self, collectors: int) -> dict[str, Any]:
        """Return the algorithm's parameters; a minibatch is at most as large as the rollout."""
        if self.algo != "ppo":
            return self.params
        minibatch_size = min(int(self.params["minibatch_size"]), self.steps_per_iteration(collectors))
        return {**self.params, "minibatch_size": minibatch_size}

    def total_steps(self, collectors: int, iterations: int) -> int:
        """Return the budget of a run with so many updates."""
        return int(self.params.get("learning_starts", 0)) + iterations * self.steps_per_iteration(collectors)

    def has_point(self, place: str, collectors: int) -> bool:
        """Return whether this number of collectors is measured in this place: here, envs sleep one after the other."""
        return place != "here" or collectors <= 2


def _row_params(name: str) -> dict[str, Any]:
    return next(row.params for row in ROWS if row.name == name)


def _sleeper(milliseconds: float, steps: int, iterations: int) -> Task:
    params = {**_row_params("A1"), "num_steps": steps}
    kwargs = {"milliseconds": milliseconds}
    name = f"sleep-{milliseconds:g}-ms"
    counts = (1, 2, 8, 32, 64)
    return Task(name, "ppo", "speed_envs:Sleeper-v0", params, counts, env_kwargs=kwargs, iterations=iterations)


def _off_policy(algo: str, frequency: int, milliseconds: float) -> Task:
    row = _row_params("B" if algo == "dqn" else "C")
    params = {**row, "train_frequency": frequency, "learning_starts": frequency, "buffer_capacity": 10_000}
    kwargs = {"milliseconds": milliseconds, "continuous": algo == "sac"}
    return Task(
        f"{algo}-{frequency}x{milliseconds:g}-ms",
        algo,
        "speed_envs:Sleeper-v0",
        params,
        collectors=(2,),
        places=("here", "processes"),
        envs=2,
        env_kwargs=kwargs,
        iterations=40,
    )


SLEEPERS = (_sleeper(5, 128, 6), _sleeper(50, 32, 4))
ON_POLICY = (
    Task("cartpole", "ppo", "CartPole-v1", _row_params("A1"), (1, 2), envs=8, iterations=60, compile="on"),
    Task("halfcheetah", "ppo", "HalfCheetah-v5", _row_params("D"), (1, 2), envs=8, iterations=16, compile="on"),
    *SLEEPERS,
)
OFF_POLICY = tuple(
    _off_policy(algo, frequency, milliseconds)
    for algo in ("dqn", "sac")
    for frequency, milliseconds in ((4, 0.1), (16, 0.1), (64, 0.1), (4, 1.0), (16, 1.0))
)
TASKS = (*ON_POLICY, *OFF_POLICY)


def task_named(name: str) -> Task:
    """Return the task with this name."""
    return next(task for task in TASKS if task.name == name)


@dataclass(frozen=True)
class Job:
    """One measurement for a separate process."""

    task: Task
    place: str
    collectors: int
    iterations: int

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> "Job":
        """Create a job from JSON values."""
        return cls(**{**plain, "task": Task(**plain["task"])})


@dataclass(frozen=True)
class Point:
    """The measured values of one run, without its first iteration; times are medians over iterations, in seconds."""

    task: str
    place: str
    collectors: int
    steps_per_iteration: int
    iteration_seconds: float
    """The mean of whole iterations."""
    collect_seconds: float
    collect_cpu_seconds: float
    """The CPU time of the learner's process while it collects."""
    collector_cpu_seconds: float
    """The CPU time of all processes that collect, per iteration; 0 if the learner's process collects."""
    update_seconds: float
    exchange_seconds: float
    """An order without env steps for every collector, and the answers."""
    start_seconds: float
    """From the start of the run to its first step."""
    memory_mb: float
    """The memory of one collector's process, in which shared pages are divided evenly; 0 if it has none."""

    @property
    def key(self) -> tuple[str, str, int]:
        """What distinguishes the point from others."""
        return self.task, self.place, self.collectors

    @property
    def steps_per_second(self) -> float:
        """The env steps per second of wall time."""
        return self.steps_per_iteration / self.iteration_seconds


@dataclass
class Results:
    """All points, and where they were measured."""

    origin: dict[str, Any] = field(default_factory=dict)
    handling_seconds_per_step: float = 0.0
    """How long the learner's process takes to decode and join the shares, per env step."""
    points: dict[tuple[str, str, int], Point] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path | None) -> "Results":
        """Read results from a JSON file; empty results if there is no file."""
        if path is None or not path.is_file():
            return cls()
        plain = json.loads(path.read_text())
        points = [Point(**point) for point in plain.pop("points")]
        return cls(**plain, points={point.key: point for point in points})

    def save(self, path: Path) -> None:
        """Write the results as JSON, in the order of the tasks."""
        order = [task.name for task in TASKS]
        points = sorted(
            self.points.values(), key=lambda each: (order.index(each.task), PLACES.index(each.place), each.collectors)
        )
        plain = {**vars(self), "points": [asdict(point) for point in points]}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(plain, indent=2) + "\n")


def fit_line(pairs: Iterable[tuple[float, float]]) -> Line:
    """Fit y = fixed + x * slope with the smallest sum of squared relative errors; one pair gives a slope only."""
    pairs = [(x, y) for x, y in pairs if y > 0.0]
    if len({x for x, _ in pairs}) == 1:
        return 0.0, statistics.fmean(y / x for x, y in pairs)
    weights = [1.0 / y**2 for _, y in pairs]
    total = sum(weights)
    mean_x = sum(weight * x for weight, (x, _) in zip(weights, pairs, strict=True)) / total
    mean_y = sum(weight * y for weight, (_, y) in zip(weights, pairs, strict=True)) / total
    spread = sum(weight * (x - mean_x) ** 2 for weight, (x, _) in zip(weights, pairs, strict=True))
    slope = sum(weight * (x - mean_x) * (y - mean_y) for weight, (x, y) in zip(weights, pairs, strict=True)) / spread
    return mean_y - slope * mean_x, slope


def on_line(line: Line, units: float) -> float:
    """Return the value of a line, at least 0."""
    return max(line[0] + units * line[1], 0.0)


@dataclass(frozen=True)
class StepCost:
    """The CPU time of one step of a group: acting, stepping, storing."""

    fixed: float
    per_env: float = 0.0
    per_second: float = 0.0
    """For every second that the step takes: caches get cold while an env sleeps, and threads of Ray wake up."""

    def wall_seconds(self, envs: float, wait: float, groups_per_core: float) -> float:
        """Return how long a step takes if each env sleeps for `wait` seconds and several groups share each core."""
        work = self.fixed + envs * self.per_env
        alone = (wait + work) / (1.0 - self.per_second)
        crowded = groups_per_core * work / (1.0 - groups_per_core * self.per_second)
        return max(alone, crowded)


@dataclass(frozen=True)
class TaskCosts:
    """What the work itself takes, in seconds."""

    step: dict[str, StepCost]
    """What a step of a group costs, by place."""
    step_wait: float
    """The time in which an env waits without using the processor, per step."""
    update: Line
    """The time of an update, fixed and per env step."""


@dataclass(frozen=True)
class Costs:
    """All constants of the model, in seconds."""

    cores: int
    handling: float
    """The time that the learner's process needs for one env step of a share."""
    exchange: dict[str, Line]
    """The time of an exchange without env steps, fixed and per collector, by place."""
    tasks: dict[str, TaskCosts]


@dataclass(frozen=True)
class Prediction:
    """The parts of one iteration, in seconds."""

    env_steps: int
    collect: float
    exchange: float
    handling: float
    update: float

    @property
    def total(self) -> float:
        """The time of the whole iteration."""
        return self.collect + self.exchange + self.handling + self.update

    @property
    def steps_per_second(self) -> float:
        """The env steps per second."""
        return self.env_steps / self.total


def fit_costs(results: Results) -> Costs:
    """Derive the constants from the measured points with few collectors."""
    names = {task.name for task in ON_POLICY}
    points = [each for each in results.points.values() if each.task in names and each.collectors <= MOST_FITTED]
    exchange = {
        place: fit_line((point.collectors, point.exchange_seconds) for point in points if point.place == place)
        for place in PLACES
        if any(point.place == place for point in points)
    }
    tasks = {
        task.name: _fit_task(task, points)
        for task in ON_POLICY
        if any((point.task, point.place) == (task.name, "here") for point in points)
    }
    return Costs(int(results.origin["host"]["cpus"]), results.handling_seconds_per_step, exchange, tasks)


def _fit_task(task: Task, points: Sequence[Point]) -> TaskCosts:
    own = [point for point in points if point.task == task.name]
    waits = [_wall_per_step(point) - _cpu_per_step(point) for point in own if point.place == "here"]
    alike = own if task.envs else [point for point in points if task_named(point.task) in SLEEPERS]
    step = {
        place: _fit_step(task, [point for point in alike if point.place == place])
        for place in {point.place for point in own}
    }
    update = fit_line((point.steps_per_iteration, point.update_seconds) for point in own)
    return TaskCosts(step, max(statistics.fmean(waits), 0.0), update)


def _fit_step(task: Task, points: Sequence[Point]) -> StepCost:
    """Fit the cost of a step in one place: over the envs of a group, or, if each has one env, over the sleep."""
    if task.envs:
        fixed, per_env = fit_line((task.envs / point.collectors, _cpu_per_step(point)) for point in points)
        return StepCost(fixed, per_env=per_env)
    fixed, per_second = fit_line((_wall_per_step(point), _cpu_per_step(point)) for point in points)
    return StepCost(fixed, per_second=per_second)


def _group_steps(point: Point) -> int:
    """Return the steps of all groups in one iteration."""
    return task_named(point.task).steps_per_env * point.collectors


def _cpu_per_step(point: Point) -> float:
    """Return the CPU time of one step of a group."""
    used = point.collect_cpu_seconds if point.place == "here" else point.collector_cpu_seconds
    return used / _group_steps(point)


def _wall_per_step(point: Point) -> float:
    """Return the time of one step of a group; here, the groups work one after the other."""
    side_by_side = 1 if point.place == "here" else point.collectors
    return side_by_side * point.collect_seconds / _group_steps(point)


def predict(costs: Costs, task: Task, place: str, collectors: int, *, cores: int | None = None) -> Prediction:
    """Predict one iteration; `cores` instead of those of the measured machine."""
    own, cores = costs.tasks[task.name], cores or costs.cores
    num_envs, env_steps = task.num_envs(collectors), task.steps_per_iteration(collectors)
    is_here = place == "here"
    step = own.step[place].wall_seconds(num_envs / collectors, own.step_wait, 1.0 if is_here else collectors / cores)
    collect = task.steps_per_env * step * (collectors if is_here else 1)
    handling = 0.0 if is_here else env_steps * costs.handling
    exchange = on_line(costs.exchange[place], collectors)
    return Prediction(env_steps, collect, exchange, handling, on_line(own.update, env_steps))


def error_of(costs: Costs, point: Point) -> float:
    """Return how far the prediction is from a measured iteration, as a share of it."""
    predicted = predict(costs, task_named(point.task), point.place, point.collectors).total
    return predicted / point.iteration_seconds - 1.0


def efficiency(costs: Costs, task: Task, collectors: int) -> float:
    """Return the speed of so many collectors on Ray, each on a core of its own, as a share of N times one of them."""
    one = predict(costs, task, "ray", 1, cores=1).steps_per_second
    return predict(costs, task, "ray", collectors, cores=collectors).steps_per_second / (collectors * one)


def last_number(holds: Callable[[int], bool]) -> int:
    """Return the largest number for which a condition holds that is true up to some number; at least 1."""
    low, high = 1, 2
    while high < _MOST_COLLECTORS and holds(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def half_efficiency(costs: Costs, task: Task) -> int:
    """Return the largest number of collectors that are at least half as efficient as one."""
    return last_number(lambda collectors: efficiency(costs, task, collectors) >= _HALF)


def break_even_seconds(results: Results, algo: str) -> float | None:
    """Return how long the env steps of one iteration must take for two collectors in processes to pay off.

    Two processes halve this time and add an exchange. They pay off if the exchange takes less than half of it.
    """
    extra = []
    for task in OFF_POLICY:
        here, apart = (results.points.get((task.name, place, 2)) for place in ("here", "processes"))
        if task.algo == algo and here is not None and apart is not None:
            extra.append(apart.collect_seconds - here.collect_seconds / 2.0)
    return 2.0 * statistics.median(extra) if extra else None
