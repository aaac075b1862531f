"""`record`: write a video of a trained agent."""

from pathlib import Path
from typing import Annotated

import typer

from rl_training.cli.completion import complete_run
from rl_training.cli.options import OUTPUT, WHAT_TO_PLAY, BestOption, EpisodeSeedOption, TrustOption
from rl_training.trust import guarded_imports

SourceArgument = Annotated[
    Path,
    typer.Argument(
        metavar="CHECKPOINT_OR_RUN",
        autocompletion=complete_run,
        help="A checkpoint file, or a run directory, whose newest intact checkpoint is used.",
    ),
]
EpisodesOption = Annotated[
    int, typer.Option(min=1, metavar="N", rich_help_panel=WHAT_TO_PLAY, help="How many episodes to record.")
]
MaxStepsOption = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", rich_help_panel=WHAT_TO_PLAY, help="Cut each episode after this many steps."),
]
OutputOption = Annotated[
    Path, typer.Option(metavar="FILE", rich_help_panel=OUTPUT, help="The video to write: .mp4 or .gif.")
]
FpsOption = Annotated[
    float | None,
    typer.Option(
        min=1.0,
        max=1000.0,
        metavar="N",
        rich_help_panel=OUTPUT,
        help="Environment steps per second of video. By default, the environment's own rate.",
    ),
]


def record(
    source: SourceArgument,
    best: BestOption = False,
    episodes: EpisodesOption = 1,
    seed: EpisodeSeedOption = None,
    max_steps: MaxStepsOption = None,
    output: OutputOption = Path("agent.mp4"),
    fps: FpsOption = None,
    trust: TrustOption = False,
) -> int:
    """Write a video of a trained agent. No screen is needed.

    Examples:
        rl-training record runs/RUN_ID --best
        rl-training record runs/RUN_ID --episodes 3 --output agent.gif
    """
    from rl_training.cli.console import show_recording
    from rl_training.recording.episodes import record_video

    with guarded_imports(source, trust=trust):
        recording = record_video(
            source, output, num_episodes=episodes, best=best, seed=seed, fps=fps, max_steps=max_steps
        )
    show_recording(recording)
    return 0
