"""The command that writes a report, and the film of an agent that goes into it."""

import math
import time
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from rl_training.cli.options import TrustOption
from rl_training.output import show_line
from rl_training.trust import guarded_imports

if TYPE_CHECKING:
    from rl_training.results.loading import Run
    from rl_training.results.report.model import Animation

T = TypeVar("T")

_MOST_STEPS = 300  # of the episode that is shown
_MOST_FRAMES = 150
_MOST_SECONDS = 1.5  # for drawing; slow envs are shown for less long


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN_OR_GROUP", help="Run directories, or such that hold runs.")
    ],
    output: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    film: Annotated[bool, typer.Option(help="Play the best agent, and show it.")] = True,
    trust: TrustOption = False,
) -> int:
    """Write one HTML page about runs: curves, statistics, hints, config, versions, a film, how to rerun them."""
    from rl_training import __version__
    from rl_training.errors import RunDirectoryError
    from rl_training.experiment.files import write_text
    from rl_training.results.loading import load_groups
    from rl_training.results.report.model import best_run, build_report
    from rl_training.results.report.page import render_page

    groups = load_groups(runs, unfinished=True)
    best = best_run(groups)
    with guarded_imports(best.run_dir, trust=trust):
        animation = make_film(best) if film else "not asked for"
    created_at = time.strftime("%Y-%m-%d %H:%M")
    page = render_page(build_report(groups, animation=animation, created_at=created_at, version=__version__))
    try:
        write_text(output, page)
    except OSError as error:
        raise RunDirectoryError(f"{output} cannot be written: {error.strerror}") from None
    if isinstance(animation, str) and film:
        show_line(f"note: no film: {animation}", error=True)
    typer.echo(f"report: {output} ({len(page.encode()) / 1024:,.0f} KiB)")
    return 0


def make_film(run: "Run") -> "Animation | str":
    """The best agent of a run, or its newest, at work; or why it cannot be shown, in one line."""
    from rl_training.errors import RLTrainingError, told

    try:
        return _film(run)
    except RLTrainingError as error:
        return " ".join(str(error).split())
    except Exception as error:  # whatever an env raises must not cost the rest of the report
        return told(error)


def _film(run: "Run") -> "Animation":
    from rl_training.envs.rendering import prepare_headless, render_fps
    from rl_training.experiment.checkpointing import BEST_NAME
    from rl_training.experiment.runs import context_of
    from rl_training.recording.episodes import draw_episode, play_for_recording
    from rl_training.results.report.film import encode_film, image_size
    from rl_training.results.report.model import Animation
    from rl_training.runtime.evaluator import evaluation_seeds
    from rl_training.runtime.workflows import load_agent

    prepare_headless()
    best = (context_of(run.run_dir).checkpoints_dir / BEST_NAME).exists()
    agent = load_agent(run.run_dir, best=best)
    fps = render_fps(agent.config)
    seeds = evaluation_seeds(agent.config, agent.step, 1)
    (episode,) = play_for_recording(agent, seeds, _MOST_STEPS)
    every = math.ceil(episode.length / _MOST_FRAMES)
    frames = _taken_in_time(draw_episode(agent.config, episode, every))
    png, still = encode_film(frames, fps / every)
    saved = f"{'best' if best else 'newest'} checkpoint (env step {agent.step:,})"
    shown = min(every * (len(frames) - 1), episode.length)
    part = f"the first {shown:,} steps" if shown else "the first moment"
    caption = f"{run.env_id}, seed {run.seed}, {saved}: {part} of an episode with seed {seeds[0]}"
    return Animation(png, still, image_size(png), caption)


def _taken_in_time(frames: Iterable[T]) -> list[T]:
    """As many as come in time; the first, for which an env may have to load much, in any case."""
    taken: list[T] = []
    until = math.inf
    for frame in islice(frames, _MOST_FRAMES):
        taken.append(frame)
        until = min(until, time.monotonic() + _MOST_SECONDS)
        if time.monotonic() >= until:
            break
    return taken
