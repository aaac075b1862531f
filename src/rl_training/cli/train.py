"""`train`: train an agent, or one per seed."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rl_training.cli.configs import resolve
from rl_training.cli.options import (
    Assignments,
    JobsOption,
    PatienceOption,
    StopAfterOption,
    StopAtReturnOption,
    TrustOption,
)
from rl_training.cli.running import run_to_end
from rl_training.errors import ConfigError
from rl_training.trust import guarded_imports

if TYPE_CHECKING:
    from rl_training.cli.seeds import ManySeeds
    from rl_training.experiment.config import TrainConfig
    from rl_training.experiment.sources import Layer, ResolvedConfig
    from rl_training.runtime.callbacks import StopRules


def train(
    config: Annotated[Path | None, typer.Option(help="A YAML config.")] = None,
    algo: Annotated[str | None, typer.Option(help="Algorithm; with --env instead of a config.")] = None,
    env: Annotated[str | None, typer.Option(help="Gymnasium environment id.")] = None,
    output_dir: Annotated[Path | None, typer.Option(help="Where run directories go.")] = None,
    total_timesteps: Annotated[int | None, typer.Option(help="Budget in env steps.")] = None,
    seed: Annotated[int | None, typer.Option(help="The run's seed.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Many seeds, a run each: 1-10 or 1-3,7.")] = None,
    jobs: JobsOption = None,
    assignments: Assignments = None,
    stop_at_return: StopAtReturnOption = None,
    stop_after: StopAfterOption = None,
    patience: PatienceOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show config and plan, train nothing.")] = False,
    trust: TrustOption = False,
) -> int:
    """Train an agent, or one per seed, from a YAML config, or from --algo and --env."""
    from rl_training.cli.seeds import read_many_seeds, train_many
    from rl_training.experiment.sources import Layer, read_assignments
    from rl_training.runtime.callbacks import StopRules

    flags = {"algo": algo, "env_id": env, "total_timesteps": total_timesteps, "seed": seed}
    flags["output_dir"] = str(output_dir) if output_dir is not None else None
    given = Layer("flag", {name: value for name, value in flags.items() if value is not None})
    resolved = resolve([*_files(config, algo, env), given, read_assignments(assignments or [])])
    many = read_many_seeds(seeds, jobs, resolved)
    stop = StopRules(stop_at_return, stop_after, patience)
    typed = resolved.config.env_id if resolved.sources[("env_id",)] == "flag" else None
    with guarded_imports(config, typed, trust=trust):
        if dry_run:
            return _show_plan(resolved, many)
        return _train(resolved.config, stop) if many is None else train_many(resolved.config, many, stop)


def _files(config: Path | None, algo: str | None, env: str | None) -> "list[Layer]":
    """The config file that was named, or the shipped preset if there is one."""
    from rl_training.experiment.sources import find_preset, read_yaml

    if config is not None:
        return [read_yaml(config)]
    if algo is None or env is None:
        raise ConfigError("give --config FILE, or --algo and --env")
    preset = find_preset(algo, env)
    return [read_yaml(preset, "preset")] if preset else []


def _show_plan(resolved: "ResolvedConfig", many: "ManySeeds | None") -> int:
    from rl_training.cli.console import show_plan
    from rl_training.cli.seeds import show_many_plan
    from rl_training.runtime.registry import get_algorithm_spec

    spec = get_algorithm_spec(resolved.config.algo)
    show_plan(resolved, spec.resolve_params_fn(resolved.config), spec.plan_fn(resolved.config))
    if many is not None:
        show_many_plan(resolved.config, many)
    return 0


def _train(config: "TrainConfig", stop: "StopRules") -> int:
    from rl_training.cli.progress import ProgressDisplay
    from rl_training.runtime.manager import DefaultExperimentManager

    return run_to_end(DefaultExperimentManager().setup(config, [ProgressDisplay(), *stop.callbacks()]).train)
