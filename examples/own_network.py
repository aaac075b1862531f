"""A network of your own: it treats every point of an observation alike, whatever their order.

The module gets the observation space, and says how many features it gives. Actor and critic follow behind it.
"""

import argparse
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from rl_training import PPO


class NearestPoint(gymnasium.Env[Any, Any]):
    """Choose the point that is nearest to the origin. An episode has ten choices."""

    action_space = gymnasium.spaces.Discrete(4)
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4, 2), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Draw the first points."""
        super().reset(seed=seed, options=options)
        self.choices = 0
        return self._draw(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Reward the nearest point, and draw new ones."""
        self.choices += 1
        reward = float(action == np.linalg.norm(self.points, axis=1).argmin())
        return self._draw(), reward, self.choices == 10, False, {}

    def _draw(self) -> Any:
        self.points = self.np_random.uniform(-1.0, 1.0, (4, 2)).astype(np.float32)
        return self.points


class PointNetwork(nn.Module):
    """Applies the same layers to every point [batch, point, coordinate], and appends the mean over all points."""

    def __init__(self, observation_space: gymnasium.spaces.Box, width: int = 16) -> None:
        super().__init__()
        num_points, num_coordinates = observation_space.shape
        self.features_dim = (num_points + 1) * width
        self.layers = nn.Sequential(nn.Linear(num_coordinates, width), nn.GELU(), nn.Linear(width, width), nn.GELU())

    def forward(self, points: Tensor) -> Tensor:
        """Return the features [batch, feature]."""
        each = self.layers(points)
        return torch.cat([each, each.mean(dim=1, keepdim=True)], dim=1).flatten(1)


def main() -> None:
    """Train, save, and load the agent again."""
    parser = argparse.ArgumentParser(description="Train ppo with a network of your own.")
    parser.add_argument("--total-timesteps", type=int, default=60_000)
    parser.add_argument("--eval-episodes", type=int, default=20)
    parser.add_argument("--output-dir", type=Path, default=Path("runs"))
    args = parser.parse_args()
    model = PPO(
        env=NearestPoint,
        encoder=PointNetwork,
        encoder_kwargs={"width": 16},
        num_envs=8,
        num_steps=256,
        learning_rate=1e-3,
        eval_episodes=args.eval_episodes,
        output_dir=args.output_dir,
    )
    result = model.learn(args.total_timesteps)
    print(f"evaluation: {result.metrics['eval_return_mean']:.1f} of 10 points were the nearest")
    saved = model.save(result.run_dir / "agent.pt")
    # A class of a script must be given again; one of a module is found by its name.
    loaded = PPO.load(saved, env=NearestPoint, encoder=PointNetwork)
    points = np.array([[0.9, 0.9], [0.1, -0.2], [-0.8, 0.4], [0.7, -0.7]], np.float32)
    print(f"nearest of four points: number {loaded.predict(points)}")


if __name__ == "__main__":
    main()
