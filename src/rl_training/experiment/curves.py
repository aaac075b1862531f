"""The learning curve of a run as a picture, from its metrics file."""

from pathlib import Path
from typing import Any

from rl_training.experiment.runs import CURVE_FILE, RunContext, read_metadata, read_metrics


def plot_run(context: RunContext) -> Path | None:
    """The learning curve under the name of the run; None when matplotlib is not installed."""
    metadata = read_metadata(context)
    return plot_learning_curve(context, f"{metadata['algo']} on {metadata['env_id']}, seed {metadata['seed']}")


def plot_learning_curve(context: RunContext, title: str) -> Path | None:
    """Draw training and evaluation returns over env steps; None when matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        return None
    rows = read_metrics(context)
    figure = Figure(figsize=(7.0, 4.0), layout="constrained")  # no pyplot: nothing global is touched
    axes = figure.subplots()
    training = _series(rows, "rollout/ep_rew_mean")
    if training:
        axes.plot(*zip(*training, strict=True), color="tab:blue", label="training, mean of 100 episodes")
    evaluation = [
        (row["step"], row["eval/mean_reward"], row["eval/std_reward"]) for row in rows if "eval/mean_reward" in row
    ]
    if evaluation:
        steps, means, deviations = zip(*evaluation, strict=True)
        axes.errorbar(
            steps,
            means,
            deviations,
            color="tab:orange",
            marker="o",
            markersize=4,
            capsize=2,
            label="evaluation",
        )
    axes.set(xlabel="env steps", ylabel="return", title=title)
    axes.grid(alpha=0.3)
    if training or evaluation:
        axes.legend(loc="lower right")
    path = context.run_dir / CURVE_FILE
    figure.savefig(path, dpi=120)
    return path


def _series(rows: list[dict[str, Any]], name: str) -> list[tuple[int, float]]:
    return [(row["step"], row[name]) for row in rows if row.get(name) is not None]
