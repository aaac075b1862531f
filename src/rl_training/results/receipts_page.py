"""The page that shows all receipts, in Markdown."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from rl_training.experiment.files import write_text
from rl_training.results.receipts import Receipt, Reference, is_at_least, read_references, told_interval
from rl_training.results.statistics import short

_HEAD = """\
# Presets, measured

Made by `rl-training benchmark SUITE --document docs/benchmarks.md` from the receipts in
[`src/rl_training/receipts`](../src/rl_training/receipts), which hold every seed, versions, hardware, commit and the
SHA-256 of the preset. `rl-training benchmark --verify ppo/cartpole` trains a preset again and says whether it holds.

Returns are those of the final agent, not of the best one on the way, with the likeliest actions, over the given
number of episodes per seed. IQM is the interquartile mean over seeds, with its 95 % bootstrap interval. RL Zoo's
figures are single runs with their deviation over episodes (MuJoCo v3 and LunarLander v2 there), so they are bands to
compare with rather than a contest; a row is marked where its interval does not reach that band. Wall time is the
median over seeds, with as many of them trained at once as the number behind it says.

Some settings were chosen by what these same seeds gave: those of PPO on both landers, on MountainCar and on
MountainCarContinuous by seed 1 mostly, the learning rate of DQN on MountainCar by seeds 1 to 4, after five seeds with a
constant rate had come to an IQM of -154. Fresh seeds may do somewhat worse: `--seeds 11-15` with `--verify` tells.
Those of DQN on the lander were chosen by seeds 11 and 12: after 100,000 steps they gave 176 and 13 with RL Zoo's
settings and a falling rate, 62 and 266 (after 80,000) with double Q-learning too, 176 and 140 with a target that
follows slowly as well, which is shipped, for more steps. SAC on the continuous lander has no receipt: seed 11 came to
273, but of seeds 1 to 4 with the same settings (46, 193, 268, and -1 after 226,000 steps) two learn to hover without
landing.

| preset | env steps | seeds | IQM | 95 % interval | every seed | RL Zoo (steps) | wall time, jobs | episodes |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""


def write_page(path: Path, receipts: Iterable[Receipt]) -> None:
    """A Markdown page with one row per receipt, beside RL Zoo's figures."""
    references = read_references()
    rows = [_row(receipt, references.get(receipt.preset)) for receipt in receipts]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, _HEAD + "".join(f"{row}\n" for row in rows))


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
    )
    return f"| {' | '.join(cells)} |"
