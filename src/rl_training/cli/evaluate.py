"""`eval`: evaluate a trained agent."""

from pathlib import Path
from typing import Annotated

import typer

from rl_training.cli.completion import complete_run
from rl_training.cli.options import WHAT_TO_PLAY, BestOption, EpisodeSeedOption, TrustOption
from rl_training.errors import ConfigError
from rl_training.trust import guarded_imports

SourceArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="CHECKPOINT_OR_RUN",
        autocompletion=complete_run,
        help="A checkpoint file, or a run directory, whose newest intact checkpoint is used.",
    ),
]
CheckpointOption = Annotated[
    Path | None,
    typer.Option(
        metavar="PATH",
        rich_help_panel=WHAT_TO_PLAY,
        autocompletion=complete_run,
        help="The same as the argument.",
    ),
]
EpisodesOption = Annotated[
    int, typer.Option(metavar="N", rich_help_panel=WHAT_TO_PLAY, help="How many episodes to play.")
]
StochasticOption = Annotated[
    bool | None,
    typer.Option(
        "--stochastic/--deterministic",
        rich_help_panel=WHAT_TO_PLAY,
        help="Draw actions, or take the most likely ones. By default, as in the run's evaluations.",
    ),
]
EnvKwargsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--env-kwargs",
        metavar="KEY=VALUE",
        rich_help_panel=WHAT_TO_PLAY,
        help="Set an argument of the environment, such as size=8. May be repeated.",
    ),
]


def evaluate(
    source: SourceArgument = None,
    checkpoint: CheckpointOption = None,
    num_episodes: EpisodesOption = 10,
    best: BestOption = False,
    stochastic: StochasticOption = None,
    seed: EpisodeSeedOption = None,
    env_kwargs: EnvKwargsOption = None,
    trust: TrustOption = False,
) -> int:
    """Play episodes with a trained agent and show their returns.

    The table has the mean of every number that the environment reports at the end of an episode, too.

    Examples:
        rl-training eval runs/RUN_ID
        rl-training eval runs/RUN_ID --best --num-episodes 100
        rl-training eval runs/RUN_ID --stochastic --seed 1 --env-kwargs size=16
    """
    from rl_training.cli.console import show_metrics
    from rl_training.experiment.sources import read_assignments
    from rl_training.runtime.workflows import evaluate_checkpoint

    place = source or checkpoint
    if place is None or (source and checkpoint):
        raise ConfigError("give either CHECKPOINT_OR_RUN or --checkpoint")
    changed = read_assignments(env_kwargs or [], "--env-kwargs").values
    deterministic = None if stochastic is None else not stochastic
    with guarded_imports(place, trust=trust):
        metrics = evaluate_checkpoint(
            place, num_episodes, best=best, deterministic=deterministic, seed=seed, env_kwargs=changed
        )
    show_metrics("Evaluation", metrics)
    return 0
