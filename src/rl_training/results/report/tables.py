"""Tables of a report, and the format of numbers in them."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from rl_training.results.report.facts import TimeShare
from rl_training.results.report.markup import Content, Markup, element
from rl_training.results.statistics import format_score

_MAX_LISTED = 10  # seeds that are listed by number


@dataclass(frozen=True)
class Column:
    """The head of a column. Numeric columns are right-aligned."""

    name: str
    numeric: bool = False


def table(
    caption: str,
    columns: Sequence[Column],
    rows: Sequence[Sequence[Content]],
    *,
    caption_mark: Markup | None = None,
    trials: Sequence[int] = (),
) -> Markup:
    """Build a table inside a box that scrolls if the page is too narrow. `trials` are the trials that rows describe."""
    classes = ["number" if column.numeric else None for column in columns]
    heads = [
        element("th", column.name, scope="col", class_=name) for column, name in zip(columns, classes, strict=True)
    ]
    lines = [
        element(
            "tr", [element("td", cell, class_=name) for cell, name in zip(row, classes, strict=True)], data_trial=trial
        )
        for row, trial in zip_longest(rows, trials)
    ]
    content = element(
        "table",
        element("caption", caption_mark, caption),
        element("thead", element("tr", heads)),
        element("tbody", lines),
    )
    return element("div", content, class_="scroll", role="region", aria_label=caption, tabindex=0)


def number(value: float | None) -> str:
    """Format a number as `format_score` does, or a dash for None."""
    return "-" if value is None else format_score(value)


def duration(seconds: float | None) -> str:
    """Format a duration, such as 3.2 s, 4 min 10 s or 2 h 05 min."""
    if seconds is None:
        return "-"
    if seconds < 60.0:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def describe_seeds(seeds: Sequence[int]) -> str:
    """Describe the seeds in words; if there are many, list only the first ones."""
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    named = ", ".join(map(str, seeds[:_MAX_LISTED]))
    return f"seeds {named}" if len(seeds) <= _MAX_LISTED else f"{len(seeds)} seeds ({named}, …)"


def time_bar(times: Sequence[TimeShare]) -> Markup:
    """Draw the shares as a bar; the table shows them as numbers too."""
    parts, start = [], 0.0
    for index, each in enumerate(times):
        title = element("title", f"{each.name}: {100 * each.share:.0f} %")
        width = 100.0 * each.share
        parts.append(element("rect", title, class_=f"part-{index}", x=f"{start:.2f}", width=f"{width:.2f}", height=8))
        start += width
    return element("svg", parts, class_="bar", viewBox="0 0 100 8", preserveAspectRatio="none", aria_hidden="true")


def share_bar(share: float) -> Markup:
    """Draw a share of 1 as a bar; a table shows it as a number too."""
    bar = element("rect", class_="part-0", width=f"{100.0 * share:.2f}", height=8)
    return element("svg", bar, class_="bar", viewBox="0 0 100 8", preserveAspectRatio="none", aria_hidden="true")
