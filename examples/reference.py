"""What the reference scripts share: their arguments, the shipped preset, and the evaluation at the end."""

import argparse
from collections.abc import Callable

from rl_training.algorithms.base import Learner
from rl_training.cli import load_config
from rl_training.experiment.config import TrainConfig
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
    config = config.model_copy(update={"total_timesteps": args.total_timesteps, "seed": args.seed})
    with limited_threads(config.num_threads):
        learner = train(config)
        metrics = Evaluator(config).evaluate(learner.policy, args.eval_episodes, step=config.total_timesteps).metrics
    print(f"evaluation: {metrics['eval_return_mean']:.1f} +- {metrics['eval_return_std']:.1f}")
