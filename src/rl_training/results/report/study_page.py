"""Rendering a report about a study of hyper-parameters as a single HTML page."""

import os
import shlex
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rl_training.errors import without_credentials
from rl_training.experiment.studies import BEST_FILE
from rl_training.results.report.axes import describe_values, parameter_text
from rl_training.results.report.document import (
    agent,
    command_box,
    facts_table,
    folded_text,
    page_header,
    render_document,
    section,
    status_text,
)
from rl_training.results.report.facts import original_command, yaml_text
from rl_training.results.report.markup import Content, Markup, element, join_markup
from rl_training.results.report.study_model import OVERSHOOT, Confirmation, ConfirmedSide, StudyReport, TrialPart
from rl_training.results.report.study_plots import (
    NUM_TONES,
    draw_confirmation,
    draw_history,
    draw_parallel,
    draw_rungs,
    draw_slice,
    trial_kind,
)
from rl_training.results.report.tables import Column, duration, number, share_bar, table

_SHOWN_TRIALS = 40  # in the first table; the rest is folded
_TIME_FORMAT = "%Y-%m-%dT%H:%M:%S%z"
_LONGEST_TEXT = 1_000  # characters of a text from the record


def render_study_page(report: StudyReport, place: Path) -> str:
    """Render the whole page. Its links to the runs are relative to `place`, the directory of the page."""
    title = _short(f"{report.record.algo.upper()} on {report.record.env_id}")
    return render_document(f"{title}: study", _header(report, title), _sections(report, place))


def _header(report: StudyReport, title: str) -> Markup:
    about = f"study of {_count(len(report.space.parameters), 'parameter')} · {report.created_at}"
    return page_header(f"{title}: study", f"{about} · rl-training {report.version}", _notes(report))


def _notes(report: StudyReport) -> Iterator[str]:
    begun = f"{len(report.trials):,} of {report.settings.trials:,} trials have begun"
    resume = f"continue it with: {_resume_command(report)}"
    if report.record.status == "running":
        yield f"the study has not ended: {begun}; if its process was killed, {resume}"
    elif report.record.status == "interrupted":
        yield f"the study was interrupted: {begun}; {resume}"
    elif report.record.status == "failed":
        yield f"the study failed: {begun}; {resume}"
    if report.best is not None and report.best.rung < report.settings.rungs:
        yield "no trial has been trained to the end yet, so the best trial may still change"
    if report.overshooting:
        yield (
            f"{report.overshooting:,} of {len(report.trials):,} trials trained more than {OVERSHOOT:g} times as long "
            "as their rung asks for, because a run only stops between rollouts; this favours them over the others"
        )


def _resume_command(report: StudyReport) -> str:
    return shlex.join(["rl-training", "tune", "resume", str(report.study_dir)])


def _sections(report: StudyReport, place: Path) -> Iterator[Markup]:
    yield section("Result", _result(report))
    yield section("Confirmation", _confirmation(report))
    if report.ranked:
        yield section("Trials", _trial_figures(report))
    yield section("Importance", _importance(report))
    if report.ranked:
        yield section("Slices", _slices(report))
        yield section("Parallel coordinates", _parallel(report))
    yield section("The agent", agent(report.animation))
    yield section("All trials", _failures(report), _all_trials(report, place))
    yield section("Config", _configs(report))
    yield section("Versions and machine", facts_table(report.facts))
    yield section("Run it again", _commands(report))


def _result(report: StudyReport) -> Markup:
    rows: list[list[Content]] = [[name, element("div", value)] for name, value in _summary(report)]
    summary = table("What was searched, and at what cost", [Column("quantity"), Column("value")], rows)
    return join_markup([summary, _best(report)])


def _summary(report: StudyReport) -> Iterator[tuple[str, Content]]:
    settings, record = report.settings, report.record
    statuses = [trial.status for trial in report.trials]
    counts = ", ".join(f"{statuses.count(status):,} {status}" for status in dict.fromkeys(sorted(statuses)))
    yield "status", status_text(record.status)
    yield "trials", f"{len(report.trials):,} of {settings.trials:,}" + (f" ({counts})" if counts else "")
    yield "sampler", f"{settings.sampler}, search seed {settings.seed}"
    yield "rungs", f"{', '.join(f'{budget:,}' for budget in settings.budgets)} env steps"
    evaluated = f"{_metric_name(report)} of {_count(settings.episodes, 'evaluation episode')}"
    runs = "" if settings.seeds_per_trial == 1 else f", mean of {settings.seeds_per_trial} runs"
    yield "value of a trial", evaluated + runs
    if report.trials:
        share = record.steps / report.full_steps
        every = "the trial" if len(report.trials) == 1 else f"all {len(report.trials):,} trials"
        yield "env steps", f"{record.steps:,}, {_percent(share)} of training {every} to the end"
    yield "time", f"{_time(record.started_at, record.ended_at)}, {_count(record.jobs, 'run')} at a time"


def _time(started_at: str, ended_at: str | None) -> str:
    try:
        begin, end = (datetime.strptime(text, _TIME_FORMAT) for text in (started_at, ended_at or started_at))
    except ValueError:
        return _short(f"from {started_at} to {ended_at}", 100)
    took = "" if ended_at is None else f"{duration((end - begin).total_seconds())} "
    return f"{took}since {begin:%Y-%m-%d %H:%M}"


def _metric_name(report: StudyReport) -> str:
    return "mean return" if report.metric == "return" else _short(report.metric)


def _best(report: StudyReport) -> Markup:
    best = report.best
    if best is None:
        return element(
            "p", "No trial has a value yet." if report.record.status == "running" else "No trial has a value."
        )
    head = f"Trial {best.number} is the best, with {number(best.value)} at rung {best.rung} of {report.settings.rungs}."
    columns = [Column("parameter"), Column("start", True), Column(f"trial {best.number}", True), Column("searched")]
    rows = [_best_row(report, best, name) for name in report.space.parameters]
    scheduled = any(isinstance(value, dict) for value in report.start.values())
    about = "A number in place of a schedule is its start; the whole schedule is scaled." if scheduled else None
    return join_markup(
        [
            element("p", head, class_="verdict"),
            table("Parameters of the starting config and of the best trial", columns, rows),
            element("p", about, class_="quiet") if about else None,
        ]
    )


def _best_row(report: StudyReport, best: TrialPart, name: str) -> list[Content]:
    values = report.space.parameters[name]
    found = _param(best.params.get(name))
    start = _param(report.start.get(name))
    shown = element("strong", found) if found != start else found
    return [element("code", name), start, shown, _short(describe_values(values), 200)]


def _param(value: Any) -> str:
    return _short(parameter_text(value), 60)


def _confirmation(report: StudyReport) -> Markup:
    best, found = report.best, report.confirmation
    if best is None:
        return element("p", "There is no best trial to confirm.")
    why = (
        f"The value that trial {best.number} had in the search, {number(best.value)}, is not the result to expect: "
        "values depend on chance, and the highest of several values is usually too high. New runs with new seeds show "
        "what to expect."
    )
    if found is None:
        asked = report.settings.confirm
        text = (
            "The study has not compared it with the starting config yet."
            if asked
            else "The study had no comparison with new seeds (--confirm 0)."
        )
        return join_markup([element("p", text, class_="verdict"), element("p", why, class_="quiet")])
    return join_markup([_confirmed(report, found), element("p", why, class_="quiet")])


def _confirmed(report: StudyReport, found: Confirmation) -> Markup:
    best = report.best
    is_current = best is not None and found.trial == best.number
    searched = best.value if best is not None and is_current else None
    seeds = sorted({*found.start.seeds, *found.best.seeds})
    columns = [Column("seed"), Column("A: start", True), Column(f"B: {found.trial_name}", True)]
    rows: list[list[Content]] = [
        [str(seed), _score_of(found.start, seed), _score_of(found.best, seed)] for seed in seeds
    ]
    rows.append(
        [
            element("strong", "interquartile mean"),
            *(element("strong", number(side.iqm.value)) for side in (found.start, found.best)),
        ]
    )
    rows.append(["95 % interval", *(str(side.iqm.interval) for side in (found.start, found.best))])
    about = "dots are seeds, bars are interquartile means with their 95 % intervals"
    about += "; the diamond is the value in the search" if searched is not None else ""
    chart = draw_confirmation(found, report.metric, searched)
    notes = [*found.notes, *([] if is_current else [f"B is {found.trial_name}, which is no longer the best trial."])]
    return join_markup(
        [
            element("p", _short(found.sentence), class_="verdict"),
            [element("p", _short(note), class_="quiet") for note in notes],
            element(
                "div",
                [_figure("Results on new seeds", about, chart), table("Per seed", columns, rows)],
                class_="figures",
            ),
        ]
    )


def _score_of(side: ConfirmedSide, seed: int) -> str:
    return next((number(score) for own, score in zip(side.seeds, side.scores, strict=True) if own == seed), "-")


def _figure(title: str, about: str, plot: Markup, legend: Markup | None = None, *, linked: bool = False) -> Markup:
    """Return a plot with its caption; if `linked`, with a line for the trial that the reader points at."""
    caption = element("figcaption", element("h3", title), element("p", about, class_="quiet") if about else None)
    readout = element("p", class_="readout", aria_live="polite") if linked else None
    return element("figure", caption, plot, legend, readout)


def _trial_figures(report: StudyReport) -> Markup:
    first = f"value at the first rung ({report.settings.budgets[0]:,} env steps)"
    by_rung = _figure("Values by rung", "each line is a trial", draw_rungs(report), _legend(report), linked=True)
    history = _figure(
        "Values in the order of the trials",
        f"{first}; the line is the best so far",
        draw_history(report),
        _legend(report),
        linked=True,
    )
    shown = [by_rung, history] if report.settings.rungs > 1 else [history]
    return element("div", shown, class_="figures")


def _legend(report: StudyReport) -> Markup:
    names = {"paused": "not promoted", "promoted": "promoted", "best": "the best trial"}
    kinds = {trial_kind(report, trial) for trial in report.ranked}
    items = [element("li", _trial_swatch(kind), name) for kind, name in names.items() if kind in kinds]
    return element("ul", items, class_="legend")


def _trial_swatch(kind: str) -> Markup:
    dot = element("g", element("path", class_="dots", d="M12 6h0"), class_=f"trial {kind}")
    return element("svg", dot, viewBox="0 0 24 12", class_="swatch", aria_hidden="true")


def _importance(report: StudyReport) -> Markup:
    shares = report.importance
    if not shares:
        return element("p", "The importance is computed at the end of a study, if at least ten trials have a value.")
    largest = max(shares.values()) or 1.0
    rows: list[list[Content]] = [
        [element("code", _short(name, 60)), _percent(share), share_bar(share / largest)]
        for name, share in shares.items()
    ]
    columns = [Column("parameter"), Column("share", True), Column("")]
    caption = "Share of each parameter in what separates good trials from others at the first rung (PED-ANOVA)"
    few = "With few trials, these shares are rough." if len(report.ranked) < 50 else None
    return join_markup([table(caption, columns, rows), element("p", few, class_="quiet") if few else None])


def _slices(report: StudyReport) -> Markup:
    budget = report.settings.budgets[0]
    order = " The most important parameters come first." if report.importance else ""
    about = (
        f"Each dot is a trial: its value at the first rung ({budget:,} env steps), which all trials reach, over one "
        f"parameter. The dashed line is the starting config.{order}"
    )
    names = sorted(report.space.parameters, key=lambda name: -report.importance.get(name, 0.0))
    figures = [_figure(name, "", draw_slice(report, name)) for name in names]
    readout = element("p", class_="readout", aria_live="polite")
    return join_markup(
        [
            element("p", about, class_="quiet"),
            element("div", _legend(report), element("div", figures, class_="figures slices"), readout, class_="linked"),
        ]
    )


def _parallel(report: StudyReport) -> Markup:
    about = "Each line is a trial, coloured by its rank at the first rung; the last axis is the value there."
    tones = [element("rect", class_=f"tone-{tone}", x=12 * tone, width=12, height=12) for tone in range(NUM_TONES)]
    scale = element("svg", tones, viewBox=f"0 0 {12 * NUM_TONES} 12", class_="tones", aria_hidden="true")
    best = element(
        "svg",
        element("path", class_="parallel best", d="M1 6H23"),
        viewBox="0 0 24 12",
        class_="swatch",
        aria_hidden="true",
    )
    legend = element(
        "ul",
        element("li", "worst ", scale, " best"),
        element("li", best, "the best trial of the study"),
        class_="legend",
    )
    box = element(
        "div", draw_parallel(report), class_="scroll", role="region", aria_label="Parallel coordinates", tabindex=0
    )
    readout = element("p", class_="readout", aria_live="polite")
    return element("div", element("p", about, class_="quiet"), legend, box, readout, class_="linked")


def _failures(report: StudyReport) -> Markup | None:
    failed = [trial for trial in report.trials if trial.failure is not None]
    if not failed:
        return None
    items = [
        element(
            "li", f"trial {trial.number} failed: ", element("span", _short(trial.failure or "", 300), class_="quiet")
        )
        for trial in failed
    ]
    return element("ul", items, class_="reasons")


def _all_trials(report: StudyReport, place: Path) -> Markup:
    if not report.trials:
        return element("p", "No trial has begun.")
    ordered = sorted(report.trials, key=lambda trial: (trial.is_ranked, trial.rung, trial.value or 0.0), reverse=True)
    names = list(report.space.parameters)
    columns = [
        Column("trial", True),
        Column("status"),
        Column("rung", True),
        Column("env steps", True),
        Column("value", True),
        *(Column(name, True) for name in names),
        Column("run"),
    ]
    rows = [_trial_row(report, trial, names, place) for trial in ordered]
    marks = [trial.number for trial in ordered]
    caption = f"Trials in {report.study_dir}, those at the highest rungs first"
    first = table(caption, columns, rows[:_SHOWN_TRIALS], trials=marks[:_SHOWN_TRIALS])
    if len(rows) <= _SHOWN_TRIALS:
        return first
    rest = table("", columns, rows[_SHOWN_TRIALS:], trials=marks[_SHOWN_TRIALS:])
    return join_markup(
        [first, element("details", element("summary", f"The other {len(rows) - _SHOWN_TRIALS:,} trials"), rest)]
    )


def _trial_row(report: StudyReport, trial: TrialPart, names: Sequence[str], place: Path) -> list[Content]:
    return [
        str(trial.number),
        status_text(trial.status),
        f"{trial.rung} of {report.settings.rungs}",
        f"{trial.steps:,}",
        number(trial.value),
        *(_param(trial.params.get(name)) for name in names),
        [_run_link(report.study_dir / run_dir, seed, place) for seed, run_dir in trial.runs.items()],
    ]


def _run_link(run_dir: Path, seed: int, place: Path) -> Markup:
    address = quote(os.path.relpath(run_dir.absolute(), place.absolute()))
    return element("a", f"seed {seed}", href=f"./{address}/", title=run_dir.name, class_="run")


def _configs(report: StudyReport) -> Markup:
    return join_markup(
        [
            folded_text("Search space", yaml_text(report.space.plain())),
            folded_text("Starting config", yaml_text(report.settings.config)),
        ]
    )


def _commands(report: StudyReport) -> Markup:
    best_path = report.study_dir / BEST_FILE
    train = shlex.join(["rl-training", "train", "--config", str(best_path)])
    return join_markup(
        [
            [element("h3", "Train the best config"), command_box(train)] if best_path.exists() else None,
            element("h3", "Search again"),
            command_box(_short(without_credentials(original_command(report.record.command)))),
        ]
    )


def _percent(share: float) -> str:
    return f"{100.0 * share:.0f} %"


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"


def _short(text: str, limit: int = _LONGEST_TEXT) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
