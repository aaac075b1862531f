"""The rooms of the package: which way imports point, how long functions are, which names are fixed."""

import ast
import inspect
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from rl_training.algorithms.base import UpdateResult
from rl_training.policies.base import PolicyOutput
from rl_training.runtime.callbacks import EVENTS, Callback, CallbackList
from rl_training.runtime.collector import CollectResult
from rl_training.runtime.evaluator import EvalResult
from rl_training.runtime.ppo_trainer import train_ppo
from rl_training.runtime.trainer import TrainerState, TrainResult

SOURCE = Path(__file__).parents[1] / "src" / "rl_training"

# From the bottom up: a module may import from its own layer and from those above it in this list.
LAYERS = [
    [
        *("", "_lazy", "compiling", "cores", "errors", "interpreters", "limits", "memory", "output", "private"),
        *("processes", "provenance", "signals", "streams", "trust"),
    ],
    [f"experiment.{name}" for name in ("validation", "schedules", "config", "files", "dialect", "sources")],
    [f"experiment.{name}" for name in ("payload", "manifest", "migration", "segments")],
    [f"experiment.{name}" for name in ("runs", "checkpointing", "digests", "locking", "groups")],
    ["experiment.trackers", "experiment.logging", "results"],
    ["envs", "policies", "data"],
    ["algorithms"],
    [f"runtime.{name}" for name in ("types", "plan", "collector", "evaluator", "saved", "timing", "video", "watchdog")],
    [f"runtime.{name}" for name in ("trainer", "callbacks", "progress", "group_progress")],
    ["runtime.run_utils"],
    ["runtime.exactness"],
    ["runtime.agents", "runtime.session", "runtime.threads"],
    ["runtime.lifecycle"],
    ["runtime.wiring"],
    ["runtime.on_policy", "runtime.off_policy"],
    ["runtime.ppo_trainer", "runtime.dqn_trainer", "runtime.sac_trainer"],
    ["experiment.registry"],
    ["runtime.workflows", "runtime.recording", "experiment.default_manager"],
    ["runtime.seed_process"],
    ["runtime.seed_pool"],
    ["runtime.many_seeds"],
    ["runtime.benchmarking"],
    ["api"],
    ["console"],
    ["commands"],
    ["cli", "__main__"],
]
LEAF_ROOMS = ("envs", "policies", "data")


def layer_of(module: str) -> int:
    """The layer of `experiment.runs`, or of the room that a module like `envs.vector` lies in."""
    for index, names in enumerate(LAYERS):
        if any(module == name or module.startswith(f"{name}.") for name in names):
            return index
    raise AssertionError(f"{module} has no layer: add it to LAYERS where its imports allow")


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in SOURCE.rglob("*.py"):
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        if not name.endswith("__init__"):
            yield name, ast.parse(path.read_text())


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def own_imports(tree: ast.Module) -> list[str]:
    prefix = "rl_training"
    return [name.removeprefix(prefix).lstrip(".") for name in imported(tree) if name.split(".")[0] == prefix]


def test_imports_point_down() -> None:
    upward = [
        f"{module} imports {target}"
        for module, tree in modules()
        for target in own_imports(tree)
        if layer_of(target) > layer_of(module)
    ]
    assert not upward


def test_leaf_rooms_do_not_know_each_other() -> None:
    crossing = [
        f"{module} imports {target}"
        for module, tree in modules()
        for target in own_imports(tree)
        if module.split(".")[0] in LEAF_ROOMS
        and target.split(".")[0] in LEAF_ROOMS
        and module.split(".")[0] != target.split(".")[0]
    ]
    assert not crossing


def test_no_function_is_longer_than_50_lines() -> None:
    long = [
        f"{module}.{node.name}"
        for module, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.end_lineno and node.end_lineno - node.lineno >= 50
    ]
    assert not long


def test_nothing_draws_from_a_global_generator() -> None:
    forbidden = ("np.random.seed", "np.random.rand", "torch.manual_seed", "random.seed", ".action_space.sample")
    found = [f"{path.name}: {name}" for path in SOURCE.rglob("*.py") for name in forbidden if name in path.read_text()]
    assert not found


@pytest.mark.parametrize(
    ("result", "names"),
    [
        (CollectResult, ["num_env_steps", "num_episodes", "metrics", "last_obs"]),
        (EvalResult, ["num_episodes", "metrics"]),
        (UpdateResult, ["metrics", "num_gradient_steps"]),
        (PolicyOutput, ["actions", "logprobs", "values", "entropy", "state"]),
        (TrainResult, ["run_dir", "checkpoint_path", "metrics"]),
        (TrainerState, ["algorithm", "run_dir"]),
    ],
)
def test_results_begin_with_their_fixed_fields(result: type, names: list[str]) -> None:
    assert [field.name for field in fields(result)][: len(names)] == names


def test_a_trainer_takes_the_four_fixed_arguments() -> None:
    parameters = inspect.signature(train_ppo).parameters
    assert list(parameters)[:4] == ["config", "run_suffix", "checkpoint_state", "callbacks"]
    assert all(parameters[name].kind is inspect.Parameter.KEYWORD_ONLY for name in list(parameters)[1:])


def test_callbacks_have_five_events() -> None:
    assert len(EVENTS) == 5
    assert all(event in vars(Callback) and event in vars(CallbackList) for event in EVENTS)
