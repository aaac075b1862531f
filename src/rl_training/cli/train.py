"""`train`: train an agent, or one agent per seed."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_training.cli.completion import complete_algorithm, complete_config, complete_env
from rl_training.cli.configs import resolve
from rl_training.cli.options import (
    BUDGET,
    MANY_SEEDS,
    OUTPUT,
    WHAT_TO_TRAIN,
    Assignments,
    JobsOption,
    OnOption,
    PatienceOption,
    StopAfterOption,
    StopAtOption,
    StopAtReturnOption,
    TrustOption,
    read_thresholds,
)
from rl_training.errors import ConfigError
from rl_training.trust import guarded_imports

if TYPE_CHECKING:
    from rl_training.algorithms.base import LearnerParams
    from rl_training.cli.seeds import ManySeeds
    from rl_training.experiment.sources import Layer, ResolvedConfig

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", rich_help_panel=WHAT_TO_TRAIN, autocompletion=complete_config, help="A YAML config file."
    ),
]
AlgorithmOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        rich_help_panel=WHAT_TO_TRAIN,
        autocompletion=complete_algorithm,
        help="The algorithm: ppo, dqn or sac. Replaces the one in the config.",
    ),
]
EnvOption = Annotated[
    str | None,
    typer.Option(
        metavar="ENV_ID",
        rich_help_panel=WHAT_TO_TRAIN,
        autocompletion=complete_env,
        help="The environment: a Gymnasium id, or module:Id-v0. Replaces the one in the config.",
    ),
]
SeedOption = Annotated[
    int | None, typer.Option(metavar="SEED", rich_help_panel=WHAT_TO_TRAIN, help="The seed of the run.")
]
TotalTimestepsOption = Annotated[
    int | None, typer.Option(metavar="STEPS", rich_help_panel=BUDGET, help="The budget in environment steps.")
]
SeedsOption = Annotated[
    str | None,
    typer.Option(metavar="SEEDS", rich_help_panel=MANY_SEEDS, help="Train one run per seed, such as 1-10 or 1-3,7."),
]
OutputDirOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        rich_help_panel=OUTPUT,
        help="Where to create the run directory: runs/ unless the config says otherwise.",
    ),
]
DryRunOption = Annotated[
    bool,
    typer.Option("--dry-run", rich_help_panel=OUTPUT, help="Show the config and the plan of the run without training."),
]


def train(
    config: ConfigOption = None,
    algo: AlgorithmOption = None,
    env: EnvOption = None,
    seed: SeedOption = None,
    assignments: Assignments = None,
    total_timesteps: TotalTimestepsOption = None,
    stop_at_return: StopAtReturnOption = None,
    stop_at: StopAtOption = None,
    stop_after: StopAfterOption = None,
    patience: PatienceOption = None,
    seeds: SeedsOption = None,
    jobs: JobsOption = None,
    on: OnOption = "here",
    output_dir: OutputDirOption = None,
    dry_run: DryRunOption = False,
    trust: TrustOption = False,
) -> int:
    """Train an agent from a YAML config, or from --algo and --env.

    Without a config, the values come from the shipped preset for this algorithm and environment, if there is one.

    Examples:
        rl-training train --algo ppo --env CartPole-v1
        rl-training train --config my.yaml --set learning_rate=5e-4
        rl-training train --algo ppo --env CartPole-v1 --seeds 1-10
    """
    from rl_training.cli.console import show_result
    from rl_training.cli.seeds import read_many_seeds, train_many
    from rl_training.experiment.sources import read_assignments
    from rl_training.runtime.callbacks import StopRules
    from rl_training.runtime.progress import ProgressDisplay
    from rl_training.runtime.registry import get_algorithm_spec

    flags = {"algo": algo, "env_id": env, "total_timesteps": total_timesteps, "seed": seed, "output_dir": output_dir}
    layers = [*read_config_file(config, algo, env), flag_layer(flags), read_assignments(assignments or [])]
    resolved, params = resolve(layers)
    many = read_many_seeds(seeds, jobs, on, resolved)
    stop = StopRules(stop_at_return, stop_after, patience, read_thresholds(stop_at))
    with guarded_imports(config, resolved.typed_code, trust=trust):
        if dry_run:
            return _show_plan(resolved, params, many)
        if many is not None:
            return train_many(resolved.config, many, stop)
        train_run = get_algorithm_spec(resolved.config.algo).train_fn
        show_result(train_run(resolved.config, callbacks=[ProgressDisplay(), *stop.callbacks()], params=params))
    return 0


def read_config_file(config: Path | None, algo: str | None, env: str | None) -> "list[Layer]":
    """Read the given config file, or else the shipped preset, if there is one."""
    from rl_training.experiment.sources import find_preset, read_yaml

    if config is not None:
        return [read_yaml(config)]
    if algo is None or env is None:
        raise ConfigError("give --config FILE, or --algo and --env")
    preset = find_preset(algo, env)
    return [read_yaml(preset, "preset")] if preset else []


def flag_layer(flags: dict[str, Any]) -> "Layer":
    """Return the config values that options of the command line give."""
    from rl_training.experiment.sources import Layer

    given = {name: value for name, value in flags.items() if value is not None}
    return Layer("flag", {name: str(value) if isinstance(value, Path) else value for name, value in given.items()})


def _show_plan(resolved: "ResolvedConfig", params: "LearnerParams", many: "ManySeeds | None") -> int:
    from rl_training.cli.console import show_plan
    from rl_training.cli.seeds import show_many_plan
    from rl_training.runtime.registry import get_algorithm_spec

    show_plan(resolved, params, get_algorithm_spec(resolved.config.algo).plan_fn(resolved.config))
    if many is not None:
        show_many_plan(resolved.config, many)
    return 0
