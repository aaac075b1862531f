"""`replay`: repeat the gradient step that stopped a run."""

from pathlib import Path
from typing import Annotated

import typer

from rl_training.cli.command import FAILED
from rl_training.cli.completion import complete_run
from rl_training.cli.options import TrustOption
from rl_training.trust import guarded_imports


def replay(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN_DIR",
            autocompletion=complete_run,
            help="A run that stopped because an update was not finite (NaN or infinite).",
        ),
    ],
    trust: TrustOption = False,
) -> int:
    """Repeat the gradient step that stopped a run with NaN or infinity.

    The output describes the batch of that step. The exit code is 1 if the step is finite this time.

    Examples:
        rl-training replay runs/RUN_ID
    """
    from rl_training.cli.console import show_failed_step
    from rl_training.runtime.workflows import replay_failed_step

    with guarded_imports(run, trust=trust):
        failed = replay_failed_step(run)
    show_failed_step(failed)
    return FAILED if failed.message is None else 0
