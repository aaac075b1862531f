"""`report`: write an HTML page about runs or about a study, with a film of the best agent."""

import math
import time
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from rl_training.cli.options import OUTPUT, RunsArgument, TrustOption
from rl_training.output import show_line
from rl_training.trust import guarded_imports

if TYPE_CHECKING:
    from rl_training.results.loading import Run
    from rl_training.results.report.model import Animation

T = TypeVar("T")

_MAX_STEPS = 300  # length of the filmed episode
_MAX_FRAMES = 150
_NO_FILM = "not asked for"
_MAX_SECONDS = 1.5  # for drawing, so the film of a slow env is shorter


def report(
    runs: RunsArgument,
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The evaluation metric that scores runs, such as success_rate (default return)."
        ),
    ] = None,
    film: Annotated[
        bool, typer.Option(rich_help_panel=OUTPUT, help="Whether to include a film of the best agent.")
    ] = True,
    output: Annotated[Path, typer.Option(metavar="FILE", rich_help_panel=OUTPUT, help="The page to write.")] = Path(
        "report.html"
    ),
    trust: TrustOption = False,
) -> int:
    """Write an HTML page about runs, or about a study.

    The page about runs has learning curves, statistics, hints, configs, versions, a film of the best agent, and the
    commands that train the runs again. The page about a study has its trials and what they show about the parameters.

    Examples:
        rl-training report runs/RUN_ID
        rl-training report runs/GROUP_A runs/GROUP_B --output report.html
        rl-training report runs/STUDY
    """
    from rl_training.errors import ConfigError, RunDirectoryError
    from rl_training.experiment.files import write_text
    from rl_training.experiment.studies import is_study

    if any(map(is_study, runs)):
        if len(runs) > 1 or metric is not None:
            raise ConfigError("a study has a report of its own: give its directory alone, without --metric")
        page, animation = _study_page(runs[0], output, film=film, trust=trust)
    else:
        page, animation = _runs_page(runs, metric or "return", film=film, trust=trust)
    try:
        write_text(output, page)
    except OSError as error:
        raise RunDirectoryError(f"{output} cannot be written: {error.strerror}") from None
    if isinstance(animation, str) and film:
        show_line(f"note: no film: {animation}", error=True)
    typer.echo(f"report: {output} ({len(page.encode()) / 1024:,.0f} KiB)")
    return 0


def _runs_page(runs: Sequence[Path], metric: str, *, film: bool, trust: bool) -> tuple[str, "Animation | str"]:
    from rl_training import __version__
    from rl_training.results.loading import load_groups
    from rl_training.results.report.model import best_run, build_report
    from rl_training.results.report.page import render_page

    groups = load_groups(runs, unfinished=True)
    best = best_run(groups, metric)
    animation = _make_trusted_film(best, trust=trust) if film else _NO_FILM
    content = build_report(groups, animation=animation, created_at=_now(), version=__version__, metric=metric)
    return render_page(content), animation


def _study_page(study_dir: Path, output: Path, *, film: bool, trust: bool) -> tuple[str, "Animation | str"]:
    from rl_training import __version__
    from rl_training.errors import RunDirectoryError
    from rl_training.results.loading import load_run
    from rl_training.results.report.study_model import build_study_report, load_study
    from rl_training.results.report.study_page import render_study_page

    study = load_study(study_dir)
    animation: Animation | str = _NO_FILM
    if film and study.best_run_dir is None:
        animation = "no trial has a value"
    elif film and study.best_run_dir is not None:
        try:
            animation = _make_trusted_film(load_run(study.best_run_dir), trust=trust)
        except RunDirectoryError as error:
            animation = str(error)
    content = build_study_report(study, animation=animation, created_at=_now(), version=__version__)
    return render_study_page(content, output.parent), animation


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M")


def _make_trusted_film(run: "Run", *, trust: bool) -> "Animation | str":
    with guarded_imports(run.run_dir, trust=trust):
        return make_film(run)


def make_film(run: "Run") -> "Animation | str":
    """Film the best agent of a run, or else its newest one; where that fails, return the reason in one line."""
    from rl_training.errors import RLTrainingError, describe_error

    try:
        return _film(run)
    except RLTrainingError as error:
        return " ".join(str(error).split())
    except Exception as error:  # an env may raise anything, and the report is still worth having
        return describe_error(error)


def _film(run: "Run") -> "Animation":
    from rl_training.envs.rendering import prepare_headless, render_fps
    from rl_training.experiment.checkpointing import BEST_NAME
    from rl_training.experiment.runs import context_of
    from rl_training.recording.episodes import draw_episode, play_for_recording
    from rl_training.results.report.film import check_film, encode_film, image_size
    from rl_training.results.report.model import Animation
    from rl_training.runtime.evaluator import evaluation_seeds
    from rl_training.runtime.workflows import load_agent

    check_film()
    prepare_headless()
    best = (context_of(run.run_dir).checkpoints_dir / BEST_NAME).exists()
    agent = load_agent(run.run_dir, best=best)
    fps = render_fps(agent.config)
    seeds = evaluation_seeds(agent.config, agent.step, 1)
    (episode,) = play_for_recording(agent, seeds, _MAX_STEPS)
    every = math.ceil(episode.length / _MAX_FRAMES)
    frames = _take_until_deadline(draw_episode(agent.config, episode, every))
    png, still = encode_film(frames, fps / every)
    saved = f"{'best' if best else 'newest'} checkpoint (env step {agent.step:,})"
    shown = min(every * (len(frames) - 1), episode.length)
    part = f"the first {shown:,} steps" if shown else "the first moment"
    caption = f"{run.env_id}, seed {run.seed}, {saved}: {part} of an episode with seed {seeds[0]}"
    return Animation(png, still, image_size(png), caption)


def _take_until_deadline(frames: Iterable[T]) -> list[T]:
    """Take frames until a deadline; the clock starts after the first frame, for which an env may load a lot."""
    taken: list[T] = []
    until = math.inf
    for frame in islice(frames, _MAX_FRAMES):
        taken.append(frame)
        until = min(until, time.monotonic() + _MAX_SECONDS)
        if time.monotonic() >= until:
            break
    return taken
