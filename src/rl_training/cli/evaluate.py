"""`eval`: play episodes with a trained agent."""

from typing import Annotated

import typer

from rl_training.cli.options import CheckpointOption, TrustOption
from rl_training.trust import guarded_imports


def evaluate(
    checkpoint: CheckpointOption,
    num_episodes: Annotated[int, typer.Option(help="Whole episodes to play.")] = 10,
    best: Annotated[bool, typer.Option("--best", help="Of a run directory, the best checkpoint.")] = False,
    trust: TrustOption = False,
) -> int:
    """Play episodes with a trained agent."""
    from rl_training.cli.console import show_metrics
    from rl_training.runtime.workflows import evaluate_checkpoint

    with guarded_imports(checkpoint, trust=trust):
        metrics = evaluate_checkpoint(checkpoint, num_episodes, best=best)
    show_metrics("Evaluation", metrics)
    return 0
