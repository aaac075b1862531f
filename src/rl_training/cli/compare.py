"""`compare`: decide which of two groups of runs is better."""

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from rl_training.cli.completion import complete_run

FirstArgument = Annotated[
    Path,
    typer.Argument(
        metavar="A", autocompletion=complete_run, help="A run directory, or a directory that contains runs."
    ),
]
SecondArgument = Annotated[
    Path,
    typer.Argument(metavar="B", autocompletion=complete_run, help="The directory that is compared with A."),
]
MetricOption = Annotated[
    Literal["final", "best", "auc"],
    typer.Option(
        help="The score of a run: its last evaluation, its best one, or the mean height of its learning curve."
    ),
]
ConfidenceOption = Annotated[
    float, typer.Option(metavar="SHARE", help="The confidence that the verdict needs, between 0 and 1.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the comparison as JSON.")]


def compare(
    a: FirstArgument,
    b: SecondArgument,
    metric: MetricOption = "final",
    confidence: ConfidenceOption = 0.95,
    as_json: JsonOption = False,
) -> int:
    """Decide whether the runs in B are better than the runs in A.

    The verdict is better, worse or undecided. If it is undecided, the output says how many seeds are needed.

    Examples:
        rl-training compare runs/GROUP_A runs/GROUP_B
        rl-training compare runs/GROUP_A runs/GROUP_B --metric auc --json
    """
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
