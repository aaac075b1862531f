"""Commands about runs that are there already: compare two groups, draw curves."""

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from rl_training.output import show_line


def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="A run directory, or one that holds runs.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="The other one; the verdict is about it.")],
    metric: Annotated[
        Literal["final", "best", "auc"],
        typer.Option(help="Of each run: the last evaluation, the best one, or the mean height of the curve."),
    ] = "final",
    confidence: Annotated[float, typer.Option(help="How sure the verdict must be.")] = 0.95,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Say whether the runs of B are better than those of A, worse or undecided, and how many seeds would decide."""
    from rl_training.console import show_comparison
    from rl_training.results.comparison import compare as compare_groups
    from rl_training.results.loading import labels_of, load_group

    first, second = (load_group(path, label=label) for path, label in zip((a, b), labels_of((a, b)), strict=True))
    comparison = compare_groups(first, second, score=metric, confidence=confidence)
    if as_json:
        typer.echo(json.dumps(comparison.to_json(), indent=2, allow_nan=False))
    else:
        show_comparison(comparison)
    return 0


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
    from rl_training.console import show_notes
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
