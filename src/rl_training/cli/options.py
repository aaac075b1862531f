"""Options that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

TrustOption = Annotated[
    bool, typer.Option("--trust", help="Run the code of an environment's module in the working directory.")
]
CheckpointOption = Annotated[
    Path,
    typer.Option("--checkpoint", help="A checkpoint file, or a run directory (its newest intact checkpoint)."),
]
Assignments = Annotated[
    list[str] | None, typer.Option("--set", help="Any config value: key=value, algo_kwargs.gamma=0.98.")
]
StopAtReturnOption = Annotated[float | None, typer.Option(help="Stop once an evaluation reaches this.")]
StopAfterOption = Annotated[
    float | None, typer.Option(help="Stop after this many minutes of wall time, pauses (Ctrl-Z) included.")
]
JobsOption = Annotated[str | None, typer.Option(help="With many seeds: runs at once, auto (one per core) or a number.")]
PatienceOption = Annotated[int | None, typer.Option(help="Stop after this many evaluations without a better one.")]
