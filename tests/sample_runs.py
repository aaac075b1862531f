"""Run directories with known numbers, written as training writes them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_training.experiment.config import TrainConfig
from rl_training.experiment.logging import RunLogger
from rl_training.experiment.runs import create_run_context, update_metadata, write_config

INTERVAL = 1_000
"""Env steps between two evaluations."""


def write_run(output_dir: Path, seed: int, evaluations: Sequence[float], **changes: Any) -> Path:
    """A run that was evaluated every 1,000 steps with these returns; keywords change its config or its `status`.

    `reported` are other metrics of these evaluations, by name.
    """
    status = changes.pop("status", "completed")
    reported: Mapping[str, Sequence[float]] = changes.pop("reported", {})
    steps = INTERVAL * max(len(evaluations), 1)
    values: Mapping[str, Any] = {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": steps, **changes}
    config = TrainConfig(seed=seed, output_dir=output_dir, **values)
    context = create_run_context(config)
    write_config(context, config)
    logger = RunLogger(context)
    for number, value in enumerate(evaluations, start=1):
        others = {f"eval/{name}": values[number - 1] for name, values in reported.items()}
        logger.log_metrics({"rollout/ep_rew_mean": value - 1.0}, step=INTERVAL * number)
        logger.log_metrics({"eval/mean_reward": value, "eval/std_reward": 1.0, **others}, step=INTERVAL * number)
    logger.close()
    update_metadata(
        context,
        algo=config.algo,
        env_id=config.env_id,
        seed=seed,
        status=status,
        global_step=steps,
        total_timesteps=config.total_timesteps,
        started_at=f"2026-01-01T00:00:{seed % 60:02}+0000",
        metrics={
            **({"eval_return_mean": evaluations[-1]} if evaluations else {}),
            **{f"eval_{name}": values[-1] for name, values in reported.items()},
        },
    )
    return context.run_dir


def write_group(output_dir: Path, finals: Sequence[float], **changes: Any) -> Path:
    """One run per final return, seeds counted from 1; each was at 0 before."""
    for seed, final in enumerate(finals, start=1):
        write_run(output_dir, seed, [0.0, final], **changes)
    return output_dir
