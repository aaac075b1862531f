"""`compare`: say which of two groups of runs is better."""

import json
from pathlib import Path
from typing import Annotated, Literal

import typer


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
    from rl_training.cli.console import show_comparison
    from rl_training.results.comparison import compare as compare_groups
    from rl_training.results.loading import labels_of, load_group

    first, second = (load_group(path, label=label) for path, label in zip((a, b), labels_of((a, b)), strict=True))
    comparison = compare_groups(first, second, score=metric, confidence=confidence)
    if as_json:
        typer.echo(json.dumps(comparison.to_json(), indent=2, allow_nan=False))
    else:
        show_comparison(comparison)
    return 0
