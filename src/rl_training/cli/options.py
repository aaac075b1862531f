"""Options that several commands share, and the headings that the help shows options under."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from rl_training.cli.completion import complete_run
from rl_training.errors import ConfigError

WHAT_TO_TRAIN = "What to train"
BUDGET = "Budget and stopping"
MANY_SEEDS = "Many seeds"
OUTPUT = "Output"
SAFETY = "Safety"
WHAT_TO_PLAY = "What to play"

AUTO_JOBS = "auto for one per core, or on Ray for as many as it has CPUs for"

TrustOption = Annotated[
    bool,
    typer.Option(
        "--trust",
        rich_help_panel=SAFETY,
        help="Allow a config or checkpoint to import its environment's module from the working directory.",
    ),
]
BestOption = Annotated[
    bool,
    typer.Option(
        "--best", rich_help_panel=WHAT_TO_PLAY, help="Use the best checkpoint of a run directory instead of the newest."
    ),
]
EpisodeSeedOption = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="SEED",
        rich_help_panel=WHAT_TO_PLAY,
        help="The seed of the first episode; each further episode adds 1. By default, as in the run's evaluations.",
    ),
]
RunsArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN_OR_GROUP",
        autocompletion=complete_run,
        help="Run directories, or directories that contain runs.",
    ),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        rich_help_panel=WHAT_TO_TRAIN,
        help="Set any config value or parameter of the algorithm, such as gamma=0.98. May be repeated.",
    ),
]
StopAtReturnOption = Annotated[
    float | None,
    typer.Option(metavar="RETURN", rich_help_panel=BUDGET, help="Stop when an evaluation reaches this mean return."),
]
StopAtOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="METRIC=VALUE",
        rich_help_panel=BUDGET,
        help="Stop when an evaluation metric reaches this value, such as eval/success_rate=0.95. May be repeated.",
    ),
]
StopAfterOption = Annotated[
    float | None,
    typer.Option(
        metavar="MINUTES",
        rich_help_panel=BUDGET,
        help="Stop after this many minutes of wall time, pauses (Ctrl-Z) included.",
    ),
]
PatienceOption = Annotated[
    int | None,
    typer.Option(
        metavar="N", rich_help_panel=BUDGET, help="Stop after this many evaluations in a row without a new best one."
    ),
]
JobsOption = Annotated[
    str | None,
    typer.Option(
        metavar="N",
        rich_help_panel=MANY_SEEDS,
        help=f"How many seeds to train at the same time: a number, or {AUTO_JOBS} (the default).",
    ),
]


def on_option(panel: str) -> Any:
    """Return the option of commands that train several runs: where to train them."""
    text = "Where to train the runs: here, ray for the Ray cluster at the config's ray_address, or ray=ADDRESS."
    return typer.Option(metavar="PLACE", rich_help_panel=panel, help=text)


OnOption = Annotated[str, on_option(MANY_SEEDS)]


def read_thresholds(given: Sequence[str] | None) -> dict[str, float]:
    """Read the values of `--stop-at`: the name of a metric and a number each."""
    thresholds: dict[str, float] = {}
    for text in given or ():
        metric, _, value = text.rpartition("=")
        try:
            thresholds[metric.strip()] = float(value)
        except ValueError:
            metric = ""
        if not metric.strip():
            raise ConfigError(f"--stop-at {text}: give METRIC=VALUE, such as eval/success_rate=0.95")
    return thresholds
