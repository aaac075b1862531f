"""`TrainConfig`: everything that defines a run. Algorithm values live in `algo_kwargs`, the env's in `env_kwargs`."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator

from rl_training.experiment.validation import (
    Count,
    Float,
    Int,
    PositiveInt,
    StrictModel,
    validate_section,
)
from rl_training.plugins import is_object_path

ParamsT = TypeVar("ParamsT", bound=StrictModel)

MAX_THREADS = 256
MAX_EPISODES = 1_000_000  # of one evaluation; their seeds are drawn before it begins


def _plain(value: Any) -> Any:
    """Refuse what could not be written to YAML and read back."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise ValueError(f"keys must be strings, got {list(value)}")
        return {key: _plain(item) for key, item in value.items()}
    raise ValueError(f"holds a {type(value).__name__}; only plain values (numbers, strings, lists, maps) are kept")


def _checked_plain(value: Any) -> Any:
    _plain(value)
    return value


def _known_vectorization(kind: str) -> str:
    if kind not in ("sync", "async", "native", "auto") and not is_object_path(kind):
        raise ValueError("allowed: auto, sync, async, native, or package.module:Name of a batched env")
    return kind


def _known_device(name: str) -> str:
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", name):
        raise ValueError("allowed: auto, cpu, cuda, cuda:N, mps")
    return name


def _expanded(path: Path) -> Path:
    """The path with its home directory written out, which not every user has."""
    try:
        return path.expanduser()
    except RuntimeError:
        raise ValueError("this home directory is not known: set HOME, or give a path without ~") from None


def _switch(value: Any) -> Any:
    """YAML takes a bare on or off for a truth value."""
    return ("on" if value else "off") if isinstance(value, bool) else value


def _known_threads(value: Any) -> Any:
    if value != "auto" and not (type(value) is int and 1 <= value <= MAX_THREADS):
        raise ValueError(f"give a number from 1 to {MAX_THREADS}, or auto")
    return value


def _each_once(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) < len(names):
        raise ValueError("name each tracker once")
    return names


def _without_password(uri: str) -> str:
    """What stands in a config is written to disk and sent to trackers."""
    if urlsplit(uri).password is not None:
        raise ValueError("keep the password out of it: MLflow reads MLFLOW_TRACKING_USERNAME and _PASSWORD")
    return uri


# What a resumed run may have otherwise than before without taking another course.
_FREE_TO_CHANGE = (
    "total_timesteps",
    "output_dir",
    "eval_episodes",
    "eval_interval",
    "eval_max_steps",
    "log_interval",
    "checkpoint_interval",
    "checkpoint_seconds",
    "keep_checkpoints",
    "step_timeout",
    "env_restarts",
    "envs_per_worker",
    "tags",
    "trackers",
    "tracker_options",
)

PlainDict = dict[str, Annotated[Any, AfterValidator(_checked_plain)]]
Name = Annotated[str, Field(strict=True, min_length=1, max_length=1_000)]
TrackerName = Literal["tensorboard", "csv", "wandb", "mlflow"]


class TrackerOptions(StrictModel):
    """Where trackers write; for what is left out, the environment variable of that name counts (`WANDB_PROJECT`)."""

    wandb_project: Name | None = None
    """In the end `rl-training`."""
    wandb_entity: Name | None = None
    wandb_run_group: Name | None = None
    wandb_mode: Literal["online", "offline"] | None = None
    """`offline` writes into the run directory, for `wandb sync`; so does a run that finds no login or no network."""
    mlflow_tracking_uri: Annotated[Name, AfterValidator(_without_password)] | None = None
    """A server (`https:...`) or a folder (`file:...`); in the end `mlruns` beside the run directories."""
    mlflow_experiment_name: Name | None = None
    """In the end `rl-training`."""


class TrainConfig(StrictModel):
    """One training run. Every interval counts env steps, all envs together."""

    algo: Name
    """Registered algorithm, such as `ppo`."""
    env_id: Name
    """Gymnasium id; `module:Id-v0` imports the module first."""
    seed: Annotated[Int, Field(ge=0, le=2**63 - 1)] = 1
    total_timesteps: PositiveInt = 100_000
    """Budget in env steps."""
    output_dir: Annotated[Path, AfterValidator(_expanded)] = Path("runs")
    device: Annotated[Name, AfterValidator(_known_device)] = "auto"
    num_envs: PositiveInt = 1
    vectorization: Annotated[Name, AfterValidator(_known_vectorization)] = "sync"
    """How the envs are stepped; the trajectories are the same.

    `sync` steps the envs one by one in this process, `async` in others, `native` all at once where Gymnasium can
    (CartPole). `auto` plays one env for a moment and takes the fastest. `package.module:Name` is a batched env of
    another package: a `gymnasium.vector.VectorEnv` without automatic resets.
    """
    envs_per_worker: PositiveInt = 1
    """Of `async`: how many envs share a process."""
    step_timeout: Annotated[Float, Field(gt=0.0, le=86_400.0)] | None = None
    """Seconds after which a step counts as hung. Resets get twelve times as long.

    The default is 5 seconds in worker processes and 60 in this process. A worker process that hangs is started again.
    An env that hangs in this process, in training or in an evaluation, ends the run, which is saved first. In this
    process, an env's first step gets as long as a reset.
    """
    env_restarts: Count = 3
    """How often in a row a worker process is started again, and its envs brought back, before the run ends."""
    compile: Annotated[Literal["auto", "on", "off"], BeforeValidator(_switch)] = "auto"
    """Whether updates are compiled; `auto` does it where the planned gradient steps repay the time it takes."""
    num_threads: Annotated[int | Literal["auto"], PlainValidator(_known_threads)] = 1
    """Threads for matrix products; small networks are fastest on one. `auto` tries whether several pay."""
    matmul_precision: Literal["highest", "high", "medium"] = "highest"
    """Of float32 matrix products; `medium` may use bfloat16, which is faster where the CPU has units for it."""
    eval_episodes: Annotated[Count, Field(le=MAX_EPISODES)] = 5
    """Episodes per evaluation; 0 switches evaluation off."""
    eval_interval: Count = 10_000
    """Env steps between evaluations; 0 evaluates at the end only."""
    eval_max_steps: Count = 27_000
    """Env steps after which an evaluation episode is cut (half an hour of Atari); 0 plays every episode to its end."""
    log_interval: PositiveInt = 1_000
    checkpoint_interval: Count = 50_000
    """Env steps between checkpoints; 0 saves by wall time and at the end only."""
    checkpoint_seconds: Annotated[Float, Field(ge=0.0)] = 300.0
    """Wall time between checkpoints; 0 saves by env steps and at the end only."""
    keep_checkpoints: PositiveInt = 3
    """How many of the newest checkpoints stay on disk, the best one aside."""
    tags: tuple[str, ...] = ()
    trackers: Annotated[tuple[TrackerName, ...], AfterValidator(_each_once)] = ("tensorboard",)
    """Who gets the metrics beside `metrics.jsonl`; one that fails is left out, with a warning."""
    tracker_options: TrackerOptions = TrackerOptions()
    algo_kwargs: PlainDict = Field(default_factory=dict)
    env_kwargs: PlainDict = Field(default_factory=dict)


def plain_config(config: TrainConfig) -> dict[str, Any]:
    """The config as plain values, ready for YAML, JSON or a checkpoint."""
    plain: dict[str, Any] = _plain(config.model_dump(exclude={"output_dir"}))
    return {**plain, "output_dir": str(config.output_dir)}


def binding_changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Where two plain configs differ in what decides a run's course, in words."""
    return [f"{path}: {old} then, {new} now" for path, (old, new) in binding_differences(before, after).items()]


def binding_differences(before: dict[str, Any], after: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What decides a run's course and differs between two plain configs; budget, intervals and places are free."""
    found = config_differences(before, after)
    return {path: values for path, values in found.items() if not _is_free(path.partition(".")[0], values)}


def _is_free(field: str, values: tuple[Any, Any]) -> bool:
    if field == "vectorization":  # a batched env of another package may differ in its last bits
        return not any(is_object_path(str(kind)) for kind in values)
    return field in _FREE_TO_CHANGE


def config_differences(before: dict[str, Any], after: dict[str, Any], prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """Every value that differs between two plain configs, by its dotted path: (before, after)."""
    found: dict[str, tuple[Any, Any]] = {}
    for name in {**before, **after}:
        old, new = before.get(name), after.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            found |= config_differences(old, new, f"{prefix}{name}.")
        elif old != new:
            found[prefix + name] = (old, new)
    return found


def resolve_params(model: type[ParamsT], config: TrainConfig) -> ParamsT:
    """The algorithm's parameters out of `algo_kwargs`, validated."""
    return validate_section(model, config.algo_kwargs, "algo_kwargs")


def with_resolved_params(config: TrainConfig, params: StrictModel) -> TrainConfig:
    """The config with every algorithm parameter written out, defaults too."""
    return config.model_copy(update={"algo_kwargs": params.model_dump(mode="json")})
