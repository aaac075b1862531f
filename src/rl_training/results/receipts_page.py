"""The page that shows all receipts, in Markdown."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from rl_training.experiment.files import write_text
from rl_training.results.receipts import (
    Receipt,
    Reference,
    is_at_least,
    read_references,
    read_searches,
    told_interval,
)
from rl_training.results.statistics import short

_HEAD = """\
# Presets, measured

Made by `rl-training benchmark SUITE --document docs/benchmarks.md` from the receipts in
[`src/rl_training/receipts`](../src/rl_training/receipts), which hold every seed, versions, hardware, commit and the
SHA-256 of the preset. `rl-training benchmark --verify ppo/cartpole` trains a preset again, with compiled updates if the
receipt's were (last column; by the preset where it is empty), and says whether it holds.

Returns are those of the final agent, not of the best one on the way, with the likeliest actions, over the given
number of episodes per seed. IQM is the interquartile mean over seeds, with its 95 % bootstrap interval. RL Zoo's
figures are single runs with their deviation over episodes (MuJoCo v3 and LunarLander v2 there), so they are bands to
compare with rather than a contest; a row is marked where its interval does not reach that band. Time is wall time, the
median over seeds, with as many of them trained at once as the number behind it says.

| preset | env steps | seeds | IQM | 95 % interval | every seed | RL Zoo (steps) | time, jobs | episodes | compile |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""

_SEARCHES = """
## How settings were found

Settings that were chosen by some seeds may do somewhat worse with others: `rl-training benchmark --verify PRESET
--seeds 21-25` tells.

"""


def write_page(path: Path, receipts: Iterable[Receipt]) -> None:
    """A Markdown page with one row per receipt, beside RL Zoo's figures, and how its settings were found."""
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
        zoo = f"{short(reference.mean)} +- {short(reference.deviation)} ({reference.env_steps:,})"
        mark = "" if is_at_least(receipt, reference) else " **below**"
    cells = (
        f"`{receipt.preset}`",
        f"{max(score.env_steps for score in receipt.scores):,}",
        str(len(receipt.scores)),
        short(receipt.iqm) + mark,
        "" if receipt.interval is None else told_interval(receipt),
        ", ".join(short(value) for value in receipt.returns),
        zoo,
        f"{np.median([score.wall_seconds for score in receipt.scores]):,.0f} s, {receipt.jobs}",
        str(receipt.eval_episodes),
        receipt.compile or "",
    )
    return f"| {' | '.join(cells)} |"
