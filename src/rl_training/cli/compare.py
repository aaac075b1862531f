"""`compare`: decide which of two groups of runs is better."""

import json
from pathlib import Path
from typing import Annotated

import typer

from rl_training.cli.completion import complete_run, complete_score

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
    str,
    typer.Option(
        metavar="SCORE",
        autocompletion=complete_score,
        help="The score of a run: final (its last evaluation), best or auc (the mean height of its learning curve). "
        "Another evaluation metric is named as success_rate or success_rate:auc.",
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
        rl-training compare runs/GROUP_A runs/GROUP_B --metric success_rate
    """
    from rl_training.cli.console import show_comparison
    from rl_training.results.comparison import compare as compare_groups
    from rl_training.results.loading import labels_of, load_group, parse_score

    name, score = parse_score(metric)
    first, second = (load_group(path, label=label) for path, label in zip((a, b), labels_of((a, b)), strict=True))
    comparison = compare_groups(first, second, score=score, metric=name, confidence=confidence)
    if as_json:
        typer.echo(json.dumps(comparison.to_json(), indent=2, allow_nan=False))
    else:
        show_comparison(comparison)
    return 0
