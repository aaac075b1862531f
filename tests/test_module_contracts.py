"""The layers of the package: the direction of imports, the length of functions, and the fixed names."""

import ast
import inspect
from collections.abc import Iterator
from dataclasses import fields
from graphlib import TopologicalSorter
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

# From the bottom up: a module may import from its own folder and from the folders above it in this list.
# The modules at the root of the package are the first layer: everybody may use them.
LAYERS = ["", "experiment", "results", "envs", "policies", "data", "algorithms"]
LAYERS += ["runtime", "recording", "groups", "deploy", "api", "cli", "__main__"]
LEAF_ROOMS = ("envs", "policies", "data")


def layer_of(module: str) -> int:
    """The layer of `experiment.runs` is that of its folder."""
    folder = module.split(".")[0]
    if (SOURCE / f"{folder}.py").exists() and folder not in LAYERS:
        return 0
    assert folder in LAYERS, f"{folder} has no layer: add it to LAYERS where its imports allow"
    return LAYERS.index(folder)


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in SOURCE.rglob("*.py"):
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        source = path.read_text()
        if (
            "__getattr__, __dir__ = lazy_attributes(" not in source
        ):  # offers names of other folders without importing them
            yield name.removesuffix(".__init__"), ast.parse(source)


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


def test_no_module_imports_itself_through_others() -> None:
    graph = {module: own_imports(tree) for module, tree in modules()}
    TopologicalSorter(graph).prepare()  # raises a CycleError that names the circle


def test_leaf_layers_do_not_import_each_other() -> None:
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
