"""The command that makes a video of a trained agent."""

from pathlib import Path
from typing import Annotated

import typer

from rl_training.cli.options import TrustOption
from rl_training.trust import guarded_imports


def record(
    source: Annotated[
        Path, typer.Argument(metavar="CHECKPOINT_OR_RUN", help="A checkpoint file, or a run directory (its newest).")
    ],
    output: Annotated[Path, typer.Option(help="The video, .mp4 or .gif.")] = Path("agent.mp4"),
    episodes: Annotated[int, typer.Option(min=1, help="Whole episodes, one after the other.")] = 1,
    best: Annotated[bool, typer.Option("--best", help="Of a run directory, the best checkpoint.")] = False,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Of the first episode, then counted up; else those of an evaluation.")
    ] = None,
    fps: Annotated[
        float | None, typer.Option(min=1.0, max=1000.0, help="Env steps per second; else the env's own rate.")
    ] = None,
    max_steps: Annotated[int | None, typer.Option(min=1, help="Cut episodes after so many steps.")] = None,
    trust: TrustOption = False,
) -> int:
    """Write a video of a trained agent, also where there is no screen."""
    from rl_training.cli.console import show_recording
    from rl_training.recording.episodes import record_video

    with guarded_imports(source, trust=trust):
        recording = record_video(
            source, output, num_episodes=episodes, best=best, seed=seed, fps=fps, max_steps=max_steps
        )
    show_recording(recording)
    return 0
