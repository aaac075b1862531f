"""`export`: write the policy of a trained agent as a file that acts without this package."""

from pathlib import Path
from typing import Annotated

import typer

from rl_training.cli.completion import complete_format
from rl_training.cli.options import OUTPUT, BestOption, TrustOption
from rl_training.cli.record import SourceArgument
from rl_training.trust import guarded_imports


def export(
    source: SourceArgument,
    format_name: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="FORMAT",
            rich_help_panel=OUTPUT,
            autocompletion=complete_format,
            help="One of onnx, torch (a program of torch.export), or numpy (needs nothing but NumPy to act).",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(metavar="FILE", rich_help_panel=OUTPUT, help="The file to write; the format gives it its suffix."),
    ] = Path("agent"),
    best: BestOption = False,
    trust: TrustOption = False,
) -> int:
    """Write a trained agent to ONNX, torch or NumPy.

    The file is written only if the policy acts like the agent on 1,000 observations.

    Examples:
        rl-training export runs/RUN_ID --format onnx
        rl-training export runs/RUN_ID --format numpy --best --output robot/agent.npz
    """
    from rl_training.cli.console import show_export
    from rl_training.deploy.export import export_agent
    from rl_training.runtime.workflows import load_agent

    with guarded_imports(source, trust=trust):
        exported = export_agent(load_agent(source, best=best), output, format_name)
    show_export(exported)
    return 0
