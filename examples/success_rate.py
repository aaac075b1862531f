"""An environment that reports whether an episode succeeded, and a run that ends once almost all episodes do.

The mean of `info["is_success"]` at the end of episodes is logged as `rollout/success_rate` and `eval/success_rate`. Any
other number there is logged under its own name.
"""

import argparse
from typing import Any

import gymnasium
import numpy as np

from rl_training import PPO
from rl_training.runtime.callbacks import StopAt


class Corridor(gymnasium.Env[Any, Any]):
    """Find the door in a corridor within 20 steps. The observation is the way that is left to it."""

    action_space = gymnasium.spaces.Discrete(2)
    observation_space = gymnasium.spaces.Box(-2.5, 2.5, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Place the door up to 15 steps away, on either side."""
        super().reset(seed=seed, options=options)
        self.way = int(self.np_random.integers(1, 16)) * int(self.np_random.choice([-1, 1]))
        return self._observe(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Go one step to the left or to the right."""
        self.way -= 1 if action == 1 else -1
        found = self.way == 0
        reward = 1.0 if found else -0.05
        return self._observe(), reward, found, False, {"is_success": found, "distance": abs(self.way)}

    def _observe(self) -> Any:
        return np.array([self.way / 16.0], np.float32)


def main() -> None:
    """Train until an evaluation reaches the threshold, or until the budget is used up."""
    parser = argparse.ArgumentParser(description="Train ppo until it succeeds.")
    parser.add_argument("--total-timesteps", type=int, default=50_000)
    parser.add_argument("--eval-episodes", type=int, default=50)
    parser.add_argument("--threshold", type=float, default=0.95)
    args = parser.parse_args()
    gymnasium.register("Corridor-v0", f"{__name__}:Corridor", max_episode_steps=20)
    model = PPO.for_env(
        "Corridor-v0",
        total_timesteps=args.total_timesteps,
        num_envs=8,
        num_steps=64,
        eval_episodes=args.eval_episodes,
        eval_interval=2_000,
        best_metric="success_rate",
    )
    result = model.learn(callbacks=[StopAt("success_rate", args.threshold)])
    rate, distance = result.metrics["eval_success_rate"], result.metrics["eval_distance"]
    print(f"{result.status} after {result.metrics['global_step']:,} steps")
    print(f"evaluation: {100 * rate:.0f} % of the episodes succeeded, the mean distance at their end is {distance:.1f}")


if __name__ == "__main__":
    main()
