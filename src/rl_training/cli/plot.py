"""`plot`: draw learning curves."""

from pathlib import Path
from typing import Annotated

import typer

from rl_training.output import show_line


def plot(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN_OR_GROUP", help="Run directories, or such that hold runs.")
    ],
    output: Annotated[Path, typer.Option(help="The picture, .png or .svg.")] = Path("curves.png"),
    metric: Annotated[str, typer.Option(help="What to draw, by its name in metrics.jsonl.")] = "eval/mean_reward",
    threshold: Annotated[float | None, typer.Option(help="Draw this level, and say who reached it when.")] = None,
    unfinished: Annotated[bool, typer.Option("--unfinished", help="Draw runs too that have not finished.")] = False,
) -> int:
    """Draw curves over env steps, one for each directory, with the spread over its seeds."""
    from rl_training.cli.console import show_notes
    from rl_training.results.curves import sample_efficiency
    from rl_training.results.drawing import plot_groups
    from rl_training.results.loading import load_groups

    groups = load_groups(runs, unfinished=unfinished)
    plot_groups(groups, output, metric=metric, threshold=threshold)
    show_notes(note for group in groups for note in group.notes)
    if threshold is not None:
        for group in groups:
            show_line(f"{group.label}: {sample_efficiency(group.curves(metric), threshold)}")
    typer.echo(f"curves: {output}")
    return 0
