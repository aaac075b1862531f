"""The Markdown page with the results of all receipts."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from rl_training.experiment.files import write_text
from rl_training.results.receipts import (
    Receipt,
    Reference,
    format_interval,
    reaches_reference,
    read_references,
    read_searches,
)
from rl_training.results.statistics import format_score

_HEAD = """\
# Presets, measured

This page is written by `rl-training benchmark SUITE --document docs/benchmarks.md` from the receipts in
[`src/rl_training/receipts`](../src/rl_training/receipts). A receipt contains the result of every seed, versions,
hardware, commit and the SHA-256 of the preset. `rl-training benchmark --verify ppo/cartpole` trains a preset again and
says whether its receipt holds. Updates are compiled as in the receipt (last column), or as the preset says if the
column is empty.

Returns are those of the final agent, not of the best one during training. It plays the given number of episodes per
seed with the most likely actions, or with sampled ones if the preset has `eval_deterministic: false`. IQM is the
interquartile mean over seeds, with its 95 % bootstrap interval. RL Zoo's results are single runs with their deviation
over episodes. They use older versions of some environments (MuJoCo v3, LunarLander v2), so they are only a rough
reference. A row is marked **below** if its interval does not reach RL Zoo's mean minus the deviation. Time is the
median wall time over seeds, followed by the number of seeds that were trained at the same time.

| preset | env steps | seeds | IQM | 95 % interval | every seed | RL Zoo (steps) | time, jobs | episodes | compile |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""

_SEARCHES = """
## How settings were found

Settings that were chosen by their results on some seeds may do somewhat worse on others. To check this, run
`rl-training benchmark --verify PRESET --seeds 21-25`.

"""


def write_page(path: Path, receipts: Iterable[Receipt]) -> None:
    """Write a Markdown page with one row per receipt, RL Zoo's results, and how settings were found."""
    references, searches, shown = read_references(), read_searches(), list(receipts)
    rows = [_row(receipt, references.get(receipt.preset)) for receipt in shown]
    found = [f"- `{receipt.preset}`: {searches[receipt.preset]}." for receipt in shown if receipt.preset in searches]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, _HEAD + _lines(rows) + (_SEARCHES + _lines(found) if found else ""))


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _row(receipt: Receipt, reference: Reference | None) -> str:
    zoo, mark = "", ""
    if reference is not None:
        zoo = f"{format_score(reference.mean)} +- {format_score(reference.deviation)} ({reference.env_steps:,})"
        mark = "" if reaches_reference(receipt, reference) else " **below**"
    cells = (
        f"`{receipt.preset}`",
        f"{max(score.env_steps for score in receipt.scores):,}",
        str(len(receipt.scores)),
        format_score(receipt.iqm) + mark,
        "" if receipt.interval is None else format_interval(receipt),
        ", ".join(format_score(value) for value in receipt.returns),
        zoo,
        f"{np.median([score.wall_seconds for score in receipt.scores]):,.0f} s, {receipt.jobs}",
        str(receipt.eval_episodes),
        receipt.compile or "",
    )
    return f"| {' | '.join(cells)} |"
