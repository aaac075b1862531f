"""`eval`: evaluate a trained agent."""

from pathlib import Path
from typing import Annotated

import typer

from rl_training.cli.completion import complete_run
from rl_training.cli.options import WHAT_TO_PLAY, BestOption, TrustOption
from rl_training.trust import guarded_imports


def evaluate(
    checkpoint: Annotated[
        Path,
        typer.Option(
            metavar="PATH",
            rich_help_panel=WHAT_TO_PLAY,
            autocompletion=complete_run,
            help="A checkpoint file, or a run directory, whose newest intact checkpoint is used.",
        ),
    ],
    num_episodes: Annotated[
        int, typer.Option(metavar="N", rich_help_panel=WHAT_TO_PLAY, help="How many episodes to play.")
    ] = 10,
    best: BestOption = False,
    trust: TrustOption = False,
) -> int:
    """Play episodes with a trained agent and show their returns.

    Examples:
        rl-training eval --checkpoint runs/RUN_ID
        rl-training eval --checkpoint runs/RUN_ID --best --num-episodes 100
    """
    from rl_training.cli.console import show_metrics
    from rl_training.runtime.workflows import evaluate_checkpoint

    with guarded_imports(checkpoint, trust=trust):
        metrics = evaluate_checkpoint(checkpoint, num_episodes, best=best)
    show_metrics("Evaluation", metrics)
    return 0
