"""Rendering a report about runs as a single HTML page."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from rl_training.experiment.metrics import RETURN
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
from rl_training.results.report.markup import Content, Markup, element, join_markup
from rl_training.results.report.model import EnvPart, GroupPart, HintRow, Report, RunRow
from rl_training.results.report.svg import Chart, draw_chart, series_class
from rl_training.results.report.tables import (
    Column,
    describe_seeds,
    duration,
    number,
    table,
    time_bar,
)
from rl_training.results.statistics import format_score


def render_page(report: Report) -> str:
    """Render the whole page."""
    return render_document(f"{report.title}: report", _header(report), _sections(report))


def _header(report: Report) -> Markup:
    count = sum(len(group.rows) for group in report.groups)
    about = f"{count} run{'s' * (count != 1)} · {report.created_at} · rl-training {report.version}"
    return page_header(report.title, about, report.notes)


def _sections(report: Report) -> Iterator[Markup]:
    yield section("Result", [_result(env, report.metric) for env in report.envs])
    yield section("Diagnostics", _diagnostics(report.groups))
    yield section("Curves", [_curves(env, titled=len(report.envs) > 1) for env in report.envs])
    yield section("The agent", agent(report.animation))
    yield section("Runs", [_runs(group, report.metric) for group in report.groups])
    yield section("Time", _times(report.groups))
    yield section("Config", _config(report))
    yield section("Versions and machine", facts_table(report.facts))
    yield section("Run it again", [_rerun(group) for group in report.groups])


def _result(env: EnvPart, metric: str) -> Markup:
    columns = [Column(name) for name in ("group", "interquartile mean", "95 % interval", "runs", "algorithm")]
    rows = [[_group_label(group), *_score(group), _run_count(group), group.algo] for group in env.groups]
    scored = "final evaluations" if metric == RETURN else f"{metric} of the final evaluations"
    return join_markup([table(f"{env.env_id}: {scored} over seeds", columns, rows), _verdict(env)])


def _verdict(env: EnvPart) -> Markup | None:
    if env.verdict is None:
        return None
    sides = [f"{name} is {group.label}" for name, group in zip("AB", env.groups, strict=True)]
    about = "; ".join([*sides, *env.verdict.notes])
    return join_markup([element("p", env.verdict.sentence, class_="verdict"), element("p", about, ".", class_="quiet")])


def _swatch(number_of_group: int) -> Markup:
    line = element("path", class_="centre", d="M1 6H23")
    return element(
        "svg", line, viewBox="0 0 24 12", class_=f"swatch {series_class(number_of_group)}", aria_hidden="true"
    )


def _group_label(group: GroupPart) -> Markup:
    return join_markup([_swatch(group.number), group.label])


def _run_count(group: GroupPart) -> str:
    return f"{group.num_counted} of {len(group.rows)}" if group.is_partly_counted else str(group.num_counted)


def _score(group: GroupPart) -> tuple[str, str]:
    if group.score is None:
        return "no evaluations", ""
    interval = group.score.interval
    return format_score(group.score.value), str(interval) if interval.is_bounded else "unknown with one run"


def _diagnostics(groups: Sequence[GroupPart]) -> Markup:
    hints = [_hint(group, row) for group in groups for row in group.hints]
    if hints:
        return join_markup(hints)
    count = sum(len(group.rows) for group in groups)
    return element("p", f"No problems found in {count} run{'s' * (count != 1)}.")


def _hint(group: GroupPart, row: HintRow) -> Markup:
    hint = row.hint
    subject = f"{group.label}, {describe_seeds(row.seeds)}"
    observation = hint.observation if len(row.seeds) == 1 else f"seed {row.seeds[0]}: {hint.observation}"
    return element(
        "article",
        element("h3", hint.title, " ", element("span", subject, class_="quiet")),
        element("p", observation[0].upper(), observation[1:], "."),
        element("p", hint.consequence, class_="quiet"),
        element("p", element("strong", "Try: "), hint.advice),
        class_="hint",
    )


def _curves(env: EnvPart, *, titled: bool) -> Markup:
    title = element("h3", env.env_id) if titled else None
    if not env.charts:
        return join_markup([title, element("p", "Nothing has been logged yet.")])
    level = "h4" if titled else "h3"
    return join_markup([title, element("div", [_figure(chart, level) for chart in env.charts], class_="figures")])


def _figure(chart: Chart, level: str) -> Markup:
    labels = [
        element("li", _swatch(series.number), f"{series.label} (n = {len(series.seeds)})") for series in chart.series
    ]
    several = any(len(series.seeds) > 1 for series in chart.series)
    how = "interquartile mean over seeds, 95 % interval shaded, single seeds thin" if several else ""
    unfinished = "unfinished runs dotted" if any(series.others for series in chart.series) else ""
    words = "; ".join(filter(None, (chart.about, how, unfinished)))
    caption = element("figcaption", element(level, chart.title), element("p", words, class_="quiet"))
    readout = element("p", class_="readout", aria_live="polite")
    return element("figure", caption, draw_chart(chart), element("ul", labels, class_="legend"), readout)


def _runs(group: GroupPart, metric: str) -> Markup:
    numeric = ("env steps", f"final {metric}", f"best {metric}", "wall time", "steps/s")
    columns = [
        Column("seed", True),
        Column("status"),
        *(Column(name, True) for name in numeric),
        Column("directory"),
    ]
    places = {Path(row.directory).parent for row in group.rows}
    shared = places.pop() if len(places) == 1 else None
    caption = group.label if shared is None else f"{group.label}, in {shared}"
    reasons = [
        element("li", f"seed {row.seed}, {row.status}: ", element("span", row.reason, class_="quiet"))
        for row in group.rows
        if row.reason
    ]
    rows = [_run(row, shared) for row in group.rows]
    return join_markup(
        [
            table(caption, columns, rows, caption_mark=_swatch(group.number)),
            element("ul", reasons, class_="reasons") if reasons else None,
        ]
    )


def _run(row: RunRow, shared: Path | None) -> list[Content]:
    directory = row.directory if shared is None else Path(row.directory).name
    steps = f"{row.steps:,}" if row.steps >= row.budget else f"{row.steps:,} of {row.budget:,}"
    return [
        str(row.seed),
        status_text(row.status),
        steps,
        number(row.final),
        number(row.best),
        duration(row.wall_seconds),
        number(row.steps_per_second),
        element("code", directory, class_="path"),
    ]


def _times(groups: Sequence[GroupPart]) -> Markup:
    timed = [group for group in groups if group.times]
    if not timed:
        return element("p", "These runs did not log how their time was spent.")
    names = [share.name for share in timed[0].times]
    columns = [Column("group"), Column("wall time", True), *(Column(name, True) for name in names), Column("share")]
    rows = [_time_row(group) for group in timed]
    return table("Wall time of all runs, and how it was spent", columns, rows)


def _time_row(group: GroupPart) -> list[Content]:
    whole = sum(share.seconds for share in group.times)
    parts = [f"{100 * share.share:.0f} %" for share in group.times]
    return [_group_label(group), duration(whole), *parts, time_bar(group.times)]


def _config(report: Report) -> Markup:
    groups = report.groups
    several = sum(len(group.rows) for group in groups) > 1
    first = element("p", "All runs share one config, apart from the seed.") if several else None
    if report.differences:
        columns = [Column("setting"), *(Column(group.label) for group in groups)]
        rows = [
            [element("code", each.name), *(element("code", " or ".join(values)) for values in each.values)]
            for each in report.differences
        ]
        first = table("What differs", columns, rows)
    configs = [folded_text(f"Whole config of {each.label}, seed {each.config_seed}", each.config) for each in groups]
    return join_markup([first, configs])


def _rerun(group: GroupPart) -> Markup:
    original = [element("pre", element("code", row.command), tabindex=0) for row in group.rows]
    count = len(original)
    return join_markup(
        [
            element("h3", _swatch(group.number), group.label),
            list(map(command_box, group.commands)),
            element("details", element("summary", f"Original command{'s' * (count != 1)}"), original),
        ]
    )
