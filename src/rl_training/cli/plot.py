"""`plot`: draw learning curves."""

from pathlib import Path
from typing import Annotated

import typer

from rl_training.cli.completion import complete_metric
from rl_training.cli.options import RunsArgument
from rl_training.output import show_line


def plot(
    runs: RunsArgument,
    metric: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            autocompletion=complete_metric,
            help="The metric to draw, by its name in metrics.jsonl; success_rate stands for eval/success_rate.",
        ),
    ] = "eval/mean_reward",
    threshold: Annotated[
        float | None,
        typer.Option(metavar="VALUE", help="Draw a line at this value, and print when each group reached it."),
    ] = None,
    unfinished: Annotated[bool, typer.Option("--unfinished", help="Include runs that have not finished.")] = False,
    output: Annotated[Path, typer.Option(metavar="FILE", help="The picture to write: .png or .svg.")] = Path(
        "curves.png"
    ),
) -> int:
    """Draw learning curves over environment steps.

    Each directory becomes one curve. A directory with several seeds also shows their spread.

    Examples:
        rl-training plot runs/GROUP_A runs/GROUP_B --output curves.svg
        rl-training plot runs/GROUP --threshold 475
    """
    from rl_training.cli.console import show_notes
    from rl_training.experiment.metrics import logged_name
    from rl_training.results.curves import sample_efficiency
    from rl_training.results.drawing import plot_groups
    from rl_training.results.loading import load_groups

    metric = metric if "/" in metric else logged_name(metric)
    groups = load_groups(runs, unfinished=unfinished)
    plot_groups(groups, output, metric=metric, threshold=threshold)
    show_notes(note for group in groups for note in group.notes)
    if threshold is not None:
        for group in groups:
            show_line(f"{group.label}: {sample_efficiency(group.curves(metric), threshold)}")
    typer.echo(f"curves: {output}")
    return 0
