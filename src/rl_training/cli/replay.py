"""`replay`: repeat a rejected gradient step."""

from pathlib import Path
from typing import Annotated

import typer

from rl_training.cli.options import TrustOption
from rl_training.cli.running import FAILED
from rl_training.trust import guarded_imports


def replay(
    run: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="A run that stopped at a bad update.")],
    trust: TrustOption = False,
) -> int:
    """Repeat the gradient step that a run refused because it was not finite."""
    from rl_training.cli.console import show_failed_step
    from rl_training.runtime.workflows import replay_failed_step

    with guarded_imports(run, trust=trust):
        failed = replay_failed_step(run)
    show_failed_step(failed)
    return FAILED if failed.message is None else 0
