"""Shared code of the reference scripts: arguments, the shipped preset, and the final evaluation."""

import argparse
from collections.abc import Callable
from contextlib import closing

from rl_training.algorithms.base import Learner
from rl_training.cli import load_config
from rl_training.experiment.config import TrainConfig, plain_config
from rl_training.experiment.sources import PRESETS_DIR
from rl_training.runtime.evaluator import Evaluator
from rl_training.runtime.run_utils import limited_threads


def run(preset: str, train: Callable[[TrainConfig], Learner]) -> None:
    """Train with a shipped preset, such as `ppo/cartpole.yaml`, and evaluate."""
    config = load_config(PRESETS_DIR / preset)
    parser = argparse.ArgumentParser(description=f"Train {config.algo} on {config.env_id}, without the trainer.")
    parser.add_argument("--total-timesteps", type=int, default=config.total_timesteps)
    parser.add_argument("--eval-episodes", type=int, default=config.eval_episodes)
    parser.add_argument("--seed", type=int, default=config.seed)
    args = parser.parse_args()
    changes = {"total_timesteps": args.total_timesteps, "seed": args.seed, "eval_episodes": args.eval_episodes}
    config = TrainConfig(**{**plain_config(config), **changes})
    with limited_threads(config.num_threads), closing(Evaluator(config)) as evaluator:
        learner = train(config)
        metrics = evaluator.evaluate(learner.policy, config.eval_episodes, step=config.total_timesteps).metrics
    print(f"evaluation: {metrics['eval_return_mean']:.1f} +- {metrics['eval_return_std']:.1f}")
