"""Shared parts of the speed benchmark: rows, records and clocks. Imports no module that loads slowly."""

import math
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Side = Literal["sb3", "eager", "compiled", "bfloat16"]
OURS: tuple[Side, ...] = ("eager", "compiled")
SIDE_NAMES: dict[Side, str] = {
    "sb3": "SB3",
    "eager": "ours, eager",
    "compiled": "ours, compiled",
    "bfloat16": "ours, compiled, bfloat16",
}

_PPO: dict[str, Any] = {
    "hidden_sizes": [64, 64],
    "activation": "tanh",
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "clip_coef": 0.2,
    "ent_coef": 0.0,
    "vf_coef": 1.0,  # of half the squared error, which equals Stable-Baselines3's default of 0.5
    "max_grad_norm": 0.5,
}
_REPLAY: dict[str, Any] = {
    "activation": "relu",
    "gamma": 0.99,
    "buffer_capacity": 100_000,
    "learning_starts": 1_000,
    "train_frequency": 1,
    "gradient_steps": 1,
    "learning_rate": 1e-3,
}
_DQN: dict[str, Any] = {
    **_REPLAY,
    "batch_size": 64,
    "target_update_interval": 250,
    "tau": 1.0,
    "epsilon_start": 1.0,
    "epsilon_end": 0.05,
    "exploration_fraction": 0.2,
    "max_grad_norm": 10.0,
}
_CNN: dict[str, Any] = {"encoder": "nature_cnn", "hidden_sizes": [], "activation": "relu"}
_IMAGES = "speed_envs:FallingBall-v0"


@dataclass(frozen=True)
class Row:
    """One task with all settings that both sides share; `params` are named as in `algo_kwargs`."""

    name: str
    algo: str
    env_id: str
    num_envs: int
    steps: int
    """The budget in env steps at scale 1."""
    params: dict[str, Any]
    by: Literal["cpu", "wall"] = "cpu"
    """Whether the ratio compares CPU time or wall time."""
    needs: str | None = None
    """A module that the env needs in addition to Gymnasium."""
    frame_stack: int = 1

    @property
    def steps_per_update(self) -> int:
        """The number of env steps between two updates of the learner."""
        return self.num_envs * int(self.params.get("num_steps", self.params.get("train_frequency", 1)))

    @property
    def batch_size(self) -> int:
        """The number of transitions in one gradient step."""
        return int(self.params.get("minibatch_size", self.params.get("batch_size", 0)))

    @property
    def gradient_steps_per_update(self) -> int:
        """The number of gradient steps per update of the learner."""
        if self.algo == "ppo":
            minibatches = math.ceil(self.steps_per_update / self.batch_size)
            return int(self.params["update_epochs"]) * minibatches
        return int(self.params["gradient_steps"])

    @property
    def has_images(self) -> bool:
        """Whether the network starts with a CNN."""
        return "encoder" in self.params

    @property
    def sides(self) -> tuple[Side, ...]:
        """The sides to measure. Small networks gain nothing from bfloat16."""
        return ("sb3", *OURS, "bfloat16") if self.has_images else ("sb3", *OURS)

    @property
    def short_env_id(self) -> str:
        """The id of the env without the module that registers it."""
        return self.env_id.rpartition(":")[2]

    def budget(self, scale: float) -> int:
        """Return the scaled budget, rounded up to whole updates and long enough to be measured."""
        shortest = int(self.params.get("learning_starts", 0)) + max(4 * self.steps_per_update, 200)
        return math.ceil(max(self.steps * scale, shortest) / self.steps_per_update) * self.steps_per_update

    def title(self) -> str:
        """Describe the row in words."""
        cnn = "Nature CNN" if self.has_images else ""
        network = "x".join(str(size) for size in self.params["hidden_sizes"]) or cnn
        task = f"{self.algo.upper()} {self.short_env_id}"
        if self.algo == "ppo":
            envs = f"{self.num_envs} env{'s' if self.num_envs > 1 else ''} x {self.params['num_steps']} steps"
            return f"{task}, {envs}, minibatch {self.batch_size}, {self.params['update_epochs']} epochs, {network}"
        frequency = int(self.params["train_frequency"])
        interval = "env step" if frequency == 1 else f"{frequency} env steps"
        return f"{task}, {network}, batch {self.batch_size}, one update per {interval}"


def _ppo_row(name: str, env_id: str, *, num_envs: int, steps: int, needs: str | None = None, **params: Any) -> Row:
    return Row(name, "ppo", env_id, num_envs, steps, {**_PPO, **params}, needs=needs)


ROWS = (
    _ppo_row(
        "A1",
        "CartPole-v1",
        num_envs=8,
        steps=204_800,
        num_steps=128,
        minibatch_size=256,
        update_epochs=4,
        learning_rate=1e-3,
    ),
    _ppo_row(
        "A2",
        "CartPole-v1",
        num_envs=1,
        steps=61_440,
        num_steps=2_048,
        minibatch_size=64,
        update_epochs=10,
        learning_rate=3e-4,
    ),
    Row(
        "B",
        "dqn",
        "CartPole-v1",
        num_envs=1,
        steps=15_000,
        params={**_DQN, "hidden_sizes": [64, 64]},
    ),
    Row(
        "C",
        "sac",
        "Pendulum-v1",
        num_envs=1,
        steps=4_000,
        params={
            **_REPLAY,
            "hidden_sizes": [256, 256],
            "batch_size": 256,
            "tau": 0.005,
            "alpha": "auto",
            "learning_starts": 500,
        },
        by="wall",
    ),
    _ppo_row(
        "D",
        "HalfCheetah-v5",
        num_envs=4,
        steps=61_440,
        needs="mujoco",
        num_steps=512,
        minibatch_size=256,
        update_epochs=10,
        learning_rate=3e-4,
    ),
    Row(
        "E",
        "ppo",
        _IMAGES,
        num_envs=8,
        steps=15_360,
        params={
            **_PPO,
            **_CNN,
            "num_steps": 128,
            "minibatch_size": 256,
            "update_epochs": 4,
            "learning_rate": 2.5e-4,
            "clip_coef": 0.1,
            "ent_coef": 0.01,
        },
        by="wall",
        frame_stack=4,
    ),
    Row(
        "F",
        "dqn",
        _IMAGES,
        num_envs=1,
        steps=60_000,
        params={
            **_DQN,
            **_CNN,
            "batch_size": 32,
            "buffer_capacity": 50_000,
            "learning_starts": 50_000,  # the replay buffer is full before the first update
            "train_frequency": 4,
            "learning_rate": 1e-4,
            "target_update_interval": 1_000,
            "epsilon_end": 0.01,
            "exploration_fraction": 0.1,
        },
        by="wall",
        frame_stack=4,
    ),
)


@dataclass(frozen=True)
class Job:
    """One measurement for a separate process."""

    kind: Literal["measure", "split", "replay"]
    row: Row
    side: Side
    steps: int
    threads: int = 1
    seed: int = 1

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> "Job":
        """Create a job from JSON values."""
        return cls(**{**plain, "row": Row(**plain["row"])})


@dataclass(frozen=True)
class Measurement:
    """The measured values of one training run; its steady state lasts from the first to the last end of an update."""

    row: str
    side: Side
    round: int
    threads: int
    seed: int
    import_seconds: float
    warmup_seconds: float
    """From the end of the imports to the end of the first update."""
    steady_steps: int
    steady_wall_seconds: float
    steady_cpu_seconds: float
    steps_per_wall_second: float
    steps_per_cpu_second: float
    peak_memory_mb: float
    episode_return: float | None
    """The mean return of the last training episodes, up to 100; None if no episode ended."""
    children_memory_mb: float = 0.0
    """The peak memory of the largest child process, such as a compiler."""


@dataclass(frozen=True)
class Outcome:
    """The return of an extra training run, whose speed is not measured."""

    row: str
    side: Side
    seed: int
    episode_return: float | None
    """The same mean as in a measurement."""


@dataclass(frozen=True)
class Split:
    """The parts of the wall time of our steady state, and two lower limits that our code cannot change."""

    row: str
    side: Side
    shares: dict[str, float]
    """The share of each part, in per cent."""
    microseconds_per_step: float
    update_milliseconds: float
    """The update time per gradient step."""
    raw_env_microseconds: float
    """The time per env step with random actions and without training."""
    products_microseconds: float
    """The time of the update's matrix products alone, per env step."""


@dataclass(frozen=True)
class Growth:
    """One measured point of a quantity that grows with a size."""

    quantity: str
    size: int
    side: Side
    value: float
    unit: str


@dataclass
class Report:
    """All measurements, with versions and machine."""

    date: str
    versions: dict[str, str]
    machine: dict[str, Any]
    rounds: int
    steps_scale: float
    measurements: list[Measurement] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    splits: list[Split] = field(default_factory=list)
    growth: list[Growth] = field(default_factory=list)
    compiled_by_auto: list[str] = field(default_factory=list)
    """The rows that `compile: auto` would compile for a run of a million env steps on this machine."""
    earlier: dict[str, str] = field(default_factory=dict)
    """When and with which versions the rows of earlier calls were measured, and `growth`, by name."""

    @property
    def origin(self) -> str:
        """When, where and with which versions the rows of this call are measured."""
        machine = ", ".join(f"{name}: {value}" for name, value in self.machine.items())
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return f"{self.date}. {machine}. {versions}. Rounds: {self.rounds}"

    def keep(self, before: "Report", rows: Sequence[Row]) -> None:
        """Take over from an earlier report what is not measured again: other rows, and growth."""
        again = {row.name for row in rows}
        for name in ("measurements", "outcomes", "splits"):
            getattr(self, name).extend(each for each in getattr(before, name) if each.row not in again)
        self.growth += before.growth
        self.compiled_by_auto += [name for name in before.compiled_by_auto if name not in again]
        names = [*before.row_names(), *(["growth"] if before.growth else [])]
        self.earlier = {name: before.earlier.get(name, before.origin) for name in names if name not in again}

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> "Report":
        """Create a report from JSON values; stored medians are ignored, because they can be computed again."""
        values = {name: value for name, value in plain.items() if name != "medians"}
        records = {"measurements": Measurement, "outcomes": Outcome, "splits": Split, "growth": Growth}
        for name, record in records.items():
            values[name] = [record(**each) for each in values[name]]
        return cls(**values)

    def returns(self, row: str, side: Side) -> list[float]:
        """Return the returns of all runs of a side in which an episode ended."""
        runs: list[Measurement | Outcome] = [*self.measurements, *self.outcomes]
        found = [each.episode_return for each in runs if (each.row, each.side) == (row, side)]
        return [value for value in found if value is not None]

    def row_names(self) -> list[str]:
        """Return the names of the measured rows, in the order of `ROWS`."""
        measured = {each.row for each in self.measurements}
        return [row.name for row in ROWS if row.name in measured]


@dataclass(frozen=True)
class ClockReading:
    """Wall and CPU time, in seconds, after `step` env steps."""

    step: int
    wall: float
    cpu: float


def read_clocks(step: int = 0) -> ClockReading:
    """Read the wall time, and the CPU time of this process and of its children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ClockReading(step, time.perf_counter(), time.process_time() + children.ru_utime + children.ru_stime)


class SteadyState:
    """The clocks at the first and at the last end of an update."""

    def __init__(self) -> None:
        self.first: ClockReading | None = None
        self.last: ClockReading | None = None

    def mark(self, step: int) -> None:
        """Record that an update has just ended after `step` env steps."""
        self.last = read_clocks(step)
        self.first = self.first or self.last


def make_measurement(
    job: Job, import_seconds: float, start: ClockReading, steady: SteadyState, episode_return: float | None
) -> Measurement:
    """Compute the measured values of a finished run."""
    first, last = steady.first, steady.last
    if first is None or last is None or first.step == last.step:
        raise RuntimeError(f"{job.steps} env steps have fewer than two updates: raise --steps-scale")
    steps, wall, cpu = last.step - first.step, last.wall - first.wall, last.cpu - first.cpu
    return Measurement(
        row=job.row.name,
        side=job.side,
        round=0,
        threads=job.threads,
        seed=job.seed,
        import_seconds=round(import_seconds, 3),
        warmup_seconds=round(first.wall - start.wall, 3),
        steady_steps=steps,
        steady_wall_seconds=round(wall, 4),
        steady_cpu_seconds=round(cpu, 4),
        steps_per_wall_second=round(steps / wall, 1),
        steps_per_cpu_second=round(steps / cpu, 1),
        peak_memory_mb=_peak_memory_mb(resource.RUSAGE_SELF),
        episode_return=None if episode_return is None else round(episode_return, 2),
        children_memory_mb=_peak_memory_mb(resource.RUSAGE_CHILDREN),
    )


def _peak_memory_mb(who: int) -> float:
    peak = resource.getrusage(who).ru_maxrss
    return round((peak if sys.platform == "darwin" else peak * 1024) / 2**20, 1)  # bytes on macOS, kilobytes elsewhere
