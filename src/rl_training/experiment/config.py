"""`TrainConfig`: everything that defines a run.

Parameters of the algorithm are in `algo_kwargs`, arguments of the environment in `env_kwargs`.
"""

import re
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, ValidationInfo

from rl_training.experiment.metrics import RETURN
from rl_training.experiment.validation import (
    Count,
    Flag,
    Float,
    Int,
    PositiveInt,
    StrictModel,
    to_plain,
    validate_section,
)
from rl_training.experiment.wrappers import read_wrapper
from rl_training.plugins import Entry, callable_path, is_local, is_object_path, object_path, split_entry

ParamsT = TypeVar("ParamsT", bound=StrictModel)

MAX_THREADS = 256
MAX_EPISODES = 1_000_000  # per evaluation; the seeds of all episodes are drawn before it begins
MAX_EVAL_SEED = 2**31 - 1 - MAX_EPISODES  # some simulators take their seed as a signed 32-bit integer


def _check_vectorization(kind: str) -> str:
    if kind not in ("sync", "async", "native", "auto") and not is_object_path(kind):
        raise ValueError("allowed: auto, sync, async, native, or package.module:Name of a batched env")
    return kind


def _check_wrapped(wrappers: tuple[Entry, ...], info: ValidationInfo) -> tuple[Entry, ...]:
    kind = info.data.get("vectorization", "auto")
    if wrappers and kind not in ("sync", "async", "auto"):
        raise ValueError(f"vectorization={kind!r} cannot apply wrappers: use sync, async or auto")
    return wrappers


def _env_path(env: Any) -> Any:
    if not isinstance(env, str) and not callable(env):
        raise ValueError("give the id of an environment, or a class or function that makes one")
    return env if isinstance(env, str) else callable_path(env)


def _check_action_mask(source: str) -> str:
    if source not in ("auto", "off", "info", "method") and not re.fullmatch(r"observation\.\S+", source):
        raise ValueError("allowed: auto, off, info, method, observation.NAME")
    return source


def _check_device(name: str) -> str:
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", name):
        raise ValueError("allowed: auto, cpu, cuda, cuda:N, mps")
    return name


def _expand_home(path: Path) -> Path:
    """Replace a leading `~` by the home directory. Refuse the path if that directory is not known."""
    try:
        return path.expanduser()
    except RuntimeError:
        raise ValueError("the home directory is not known: set HOME, or give a path without ~") from None


def _switch_to_text(value: Any) -> Any:
    """Turn a boolean back into `on` or `off`, because YAML reads these words as booleans."""
    return ("on" if value else "off") if isinstance(value, bool) else value


def _check_threads(value: Any) -> Any:
    if value != "auto" and not (type(value) is int and 1 <= value <= MAX_THREADS):
        raise ValueError(f"give a number from 1 to {MAX_THREADS}, or auto")
    return value


def _read_callback(entry: Any) -> Entry:
    """Return an entry of `callbacks` in its plain form: the name, or a map from the name to keyword arguments."""
    made, kwargs = split_entry(entry)
    name = object_path(made)
    if not isinstance(name, str) or not name:
        raise ValueError(f"give the name or the class of a callback, not {made!r}")
    if is_local(name):
        raise ValueError(
            f"the class {name.partition(':')[2]} was defined in a script or notebook: move it to a module, or give an "
            "object to learn(callbacks=[...])"
        )
    return {name: to_plain(kwargs)} if kwargs else name


def _check_unique(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) < len(names):
        raise ValueError("name each tracker once")
    return names


def _refuse_password(uri: str) -> str:
    """Refuse a password, because configs are written to disk and sent to trackers."""
    if urlsplit(uri).password is not None:
        raise ValueError("remove the password: MLflow reads MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD")
    return uri


# Settings that a resumed run may change without changing how it trains.
_CHANGEABLE_ON_RESUME = (
    "total_timesteps",
    "output_dir",
    "eval_episodes",
    "eval_interval",
    "eval_max_steps",
    "eval_deterministic",
    "eval_seed",
    "eval_env_kwargs",
    "best_metric",
    "log_interval",
    "checkpoint_interval",
    "checkpoint_seconds",
    "keep_checkpoints",
    "step_timeout",
    "env_restarts",
    "envs_per_worker",
    "collect_on",
    "collector_cpus",
    "ray_address",
    "tags",
    "trackers",
    "tracker_options",
)

PlainDict = dict[str, Annotated[Any, AfterValidator(to_plain)]]
ParamsDict = dict[str, Annotated[Any, BeforeValidator(object_path), AfterValidator(to_plain)]]
Name = Annotated[str, Field(strict=True, min_length=1, max_length=1_000)]
TrackerName = Literal["tensorboard", "csv", "wandb", "mlflow"]


class TrackerOptions(StrictModel):
    """Where trackers write. A missing option is read from its environment variable, such as `WANDB_PROJECT`."""

    wandb_project: Name | None = None
    """Project name; `rl-training` if neither the option nor the variable is set."""
    wandb_entity: Name | None = None
    wandb_run_group: Name | None = None
    wandb_mode: Literal["online", "offline"] | None = None
    """`offline` writes into the run directory, for `wandb sync`. A run without login or network does the same."""
    mlflow_tracking_uri: Annotated[Name, AfterValidator(_refuse_password)] | None = None
    """A server (`https:...`) or a folder (`file:...`); `mlruns` beside the run directories if nothing is set."""
    mlflow_experiment_name: Name | None = None
    """Experiment name; `rl-training` if neither the option nor the variable is set."""


class TrainConfig(StrictModel):
    """One training run. Every interval counts env steps, all envs together."""

    algo: Name
    """Registered algorithm, such as `ppo`."""
    env_id: Annotated[Name, BeforeValidator(_env_path)]
    """Gymnasium id; `module:Id-v0` imports the module first. `module:name` may also be a class or function."""
    seed: Annotated[Int, Field(ge=0, le=2**63 - 1)] = 1
    """Seed of everything that is random in the run."""
    total_timesteps: PositiveInt = 100_000
    """Budget in env steps."""
    output_dir: Annotated[Path, AfterValidator(_expand_home)] = Path("runs")
    """Where the run directory is created."""
    device: Annotated[Name, AfterValidator(_check_device)] = "auto"
    """`cpu`, `cuda`, `cuda:N`, `mps`, or `auto` for CUDA if it works and the CPU otherwise."""
    num_envs: PositiveInt = 1
    """Number of environments that are stepped together."""
    vectorization: Annotated[Name, AfterValidator(_check_vectorization)] = "auto"
    """How the envs are stepped. The trajectories are the same in all cases.

    `sync` steps the envs in this process, `async` in worker processes, `native` through Gymnasium's vector version,
    which only some envs have (CartPole). `auto` times one env briefly and chooses the fastest. `package.module:Name` is
    a batched env of another package: a `gymnasium.vector.VectorEnv` without automatic resets.
    """
    action_mask: Annotated[Name, BeforeValidator(_switch_to_text), AfterValidator(_check_action_mask)] = "auto"
    """Where an env gives the mask of its legal actions; an illegal action is never taken.

    `info` is `info["action_mask"]` after every reset and step, `method` is `env.action_masks()`, `observation.NAME` is
    an entry of a Dict observation. `auto` finds out. `off` ignores masks.
    """
    wrappers: Annotated[
        tuple[Annotated[Entry, BeforeValidator(read_wrapper)], ...], AfterValidator(_check_wrapped)
    ] = ()
    """Wrappers around each env, in training and evaluation, the innermost first.

    An entry is the name of one of Gymnasium's wrappers or `package.module:Name`, or a map from the name to keyword
    arguments.
    """
    frame_stack: Annotated[PositiveInt, Field(le=1_000)] = 1
    """Number of newest frames in one observation; replay buffers store each frame of bytes once."""
    terminal_on_life_loss: Flag = False
    """Whether a lost life (`info["lives"]`) counts as a termination for the learner, although the episode goes on."""
    envs_per_worker: PositiveInt = 1
    """Number of envs in each worker process of `async`."""
    collectors: PositiveInt = 1
    """Number of groups into which the envs are divided; each collects its share of an iteration by itself.

    The number affects the last bits of a run, `collect_on` does not.
    """
    collect_on: Literal["here", "processes", "ray"] = "here"
    """Where the groups live: in this process, each in a process of its own, or each in an actor of a Ray cluster."""
    collector_cpus: Annotated[Float, Field(gt=0.0, le=1_024.0)] = 1.0
    """CPUs that Ray reserves for each collector."""
    ray_address: Name = "local"
    """The Ray cluster: `local` starts Ray on this machine, `auto` finds the one that runs here, or `host:port`."""
    step_timeout: Annotated[Float, Field(gt=0.0, le=86_400.0)] | None = None
    """Seconds after which a step counts as hung. Resets get twelve times as long.

    The default is 5 seconds in worker processes and 60 in this process. A worker process that hangs is restarted. If
    an env hangs in this process, in training or in an evaluation, the run is saved and ends. In this process, an env's
    first step gets as long as a reset.
    """
    env_restarts: Count = 3
    """How often in a row a worker process is restarted, and its envs restored, before the run ends."""
    compile: Annotated[Literal["auto", "on", "off"], BeforeValidator(_switch_to_text)] = "auto"
    """Whether updates are compiled. `auto` compiles if the planned gradient steps save more time than it takes."""
    num_threads: Annotated[int | Literal["auto"], PlainValidator(_check_threads)] = 1
    """Threads for matrix products; small networks are fastest on one. `auto` measures whether more are faster."""
    matmul_precision: Literal["highest", "high", "medium"] = "highest"
    """Precision of float32 matrix products. `medium` may use bfloat16, which is faster on CPUs that support it."""
    eval_episodes: Annotated[Count, Field(le=MAX_EPISODES)] = 5
    """Episodes per evaluation; 0 switches evaluation off."""
    eval_interval: Count = 10_000
    """Env steps between evaluations; 0 evaluates at the end only."""
    eval_max_steps: Count = 27_000
    """Env steps after which an evaluation episode is cut off (the default is half an hour of Atari); 0 for no limit."""
    eval_deterministic: Annotated[bool, Field(strict=True)] = True
    """Whether evaluations take the most likely actions; otherwise they draw them. DQN always takes the best ones."""
    eval_seed: Annotated[Int, Field(ge=0, le=MAX_EVAL_SEED)] | None = None
    """Seed of the first episode of every evaluation; each further episode adds 1. None: new episodes every time."""
    best_metric: Name = RETURN
    """Evaluation metric whose highest value decides which checkpoint is the best: `return`, or such as `success_rate`.

    `success_rate` is the mean of `info["is_success"]` at the end of episodes. Any other number there has its own name.
    """
    log_interval: PositiveInt = 1_000
    """Env steps between two lines of metrics."""
    checkpoint_interval: Count = 50_000
    """Env steps between checkpoints; 0 saves by wall time and at the end only."""
    checkpoint_seconds: Annotated[Float, Field(ge=0.0)] = 300.0
    """Wall time between checkpoints; 0 saves by env steps and at the end only."""
    keep_checkpoints: PositiveInt = 3
    """Number of newest checkpoints to keep on disk; the best one is always kept too."""
    tags: tuple[str, ...] = ()
    """Labels that are stored with the run and sent to trackers."""
    trackers: Annotated[tuple[TrackerName, ...], AfterValidator(_check_unique)] = ("tensorboard",)
    """Trackers that get the metrics in addition to `metrics.jsonl`. One that fails is left out, with a warning."""
    tracker_options: TrackerOptions = TrackerOptions()
    """Where trackers write."""
    callbacks: tuple[Annotated[Entry, BeforeValidator(_read_callback)], ...] = ()
    """Callbacks that take part in the run, also after a resume, with their saved state.

    An entry is a callback of this package, such as `StopAtReturn`, or `package.module:Name`, or a map from the name to
    keyword arguments.
    """
    algo_kwargs: ParamsDict = Field(default_factory=dict)
    """Parameters of the algorithm, such as `learning_rate`."""
    env_kwargs: PlainDict = Field(default_factory=dict)
    """Arguments of the environment's constructor."""
    eval_env_kwargs: PlainDict = Field(default_factory=dict)
    """Arguments of evaluation environments only; they replace those of the same name in `env_kwargs`."""


def evaluation_config(config: TrainConfig) -> TrainConfig:
    """Return the config of the evaluation environments, whose `env_kwargs` include `eval_env_kwargs`."""
    return config.model_copy(update={"env_kwargs": {**config.env_kwargs, **config.eval_env_kwargs}})


def plain_config(config: TrainConfig) -> dict[str, Any]:
    """Return the config as plain values, ready for YAML, JSON or a checkpoint."""
    plain: dict[str, Any] = to_plain(config.model_dump(exclude={"output_dir"}))
    return {**plain, "output_dir": str(config.output_dir)}


def env_code(config: TrainConfig) -> tuple[str, ...]:
    """Return the names of the code that an env consists of: its `env_id`, and the wrappers of other packages."""
    wrappers = (split_entry(entry)[0] for entry in config.wrappers)
    return config.env_id, *filter(is_object_path, wrappers)


def describe_training_differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Describe each training difference of two plain configs, such as `seed: 1 then, 2 now`."""
    return [f"{path}: {old} then, {new} now" for path, (old, new) in training_differences(before, after).items()]


def training_differences(before: dict[str, Any], after: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the differences of two plain configs that change the training: not budget, intervals or directories."""
    found = config_differences(before, after)
    return {path: values for path, values in found.items() if not _may_change(path.partition(".")[0], values)}


def _may_change(field: str, values: tuple[Any, Any]) -> bool:
    if field == "vectorization":  # a batched env of another package may differ in its last bits
        return not any(is_object_path(str(kind)) for kind in values)
    return field in _CHANGEABLE_ON_RESUME


def config_differences(before: dict[str, Any], after: dict[str, Any], prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """Return every value that differs between two plain configs as (before, after), by its dotted path."""
    found: dict[str, tuple[Any, Any]] = {}
    for name in {**before, **after}:
        old, new = before.get(name), after.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            found |= config_differences(old, new, f"{prefix}{name}.")
        elif old != new:
            found[prefix + name] = (old, new)
    return found


def resolve_params(model: type[ParamsT], config: TrainConfig) -> ParamsT:
    """Validate `algo_kwargs` and return them as the algorithm's parameters."""
    return validate_section(model, config.algo_kwargs, "algo_kwargs")


def with_resolved_params(config: TrainConfig, params: StrictModel) -> TrainConfig:
    """Return the config with every algorithm parameter in `algo_kwargs`, including the defaults."""
    return config.model_copy(update={"algo_kwargs": params.model_dump(mode="json")})
