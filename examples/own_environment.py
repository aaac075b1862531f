"""Train PPO on an environment of your own, given as a function, with wrappers around it."""

import argparse
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import TimeAwareObservation, TimeLimit

from rl_training import PPO


class Drone(gymnasium.Env[Any, Any]):
    """A drone that must hover at height 0 while gusts push it up and down."""

    observation_space = spaces.Box(-10.0, 10.0, (2,), np.float32)  # height and speed
    action_space = spaces.Discrete(3)  # down, nothing, up

    def __init__(self, wind: float) -> None:
        self.wind = wind
        self.state = np.zeros(2, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode near height 0."""
        super().reset(seed=seed, options=options)
        self.state = self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32)
        return self.state.copy(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Push the drone, and blow."""
        height, speed = self.state
        speed += 0.1 * (int(action) - 1) + self.wind * self.np_random.normal()
        self.state = np.clip([height + 0.1 * speed, speed], -10.0, 10.0).astype(np.float32)
        return self.state.copy(), -abs(float(self.state[0])), bool(abs(self.state[0]) > 5.0), False, {}


def make_drone(wind: float = 0.02) -> Drone:
    """Make one drone; a run calls this once for each of its environments."""
    return Drone(wind)


class SmallRewards(gymnasium.RewardWrapper[Any, Any]):
    """Divides the rewards."""

    def __init__(self, env: gymnasium.Env[Any, Any], divisor: float) -> None:
        super().__init__(env)
        self.divisor = divisor

    def reward(self, reward: Any) -> float:
        """Divide one reward."""
        return float(reward) / self.divisor


WRAPPERS = [(TimeLimit, {"max_episode_steps": 100}), TimeAwareObservation, (SmallRewards, {"divisor": 10.0})]


def main() -> None:
    """Train, load and evaluate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--total-timesteps", type=int, default=50_000)
    parser.add_argument("--output-dir", default="runs")
    args = parser.parse_args()
    model = PPO.for_env(
        make_drone,
        env_kwargs={"wind": 0.05},
        wrappers=WRAPPERS,
        num_envs=4,
        total_timesteps=args.total_timesteps,
        output_dir=args.output_dir,
    )
    result = model.learn()
    # The classes of a script are known only while it runs, so they are given to `load`. Those of a module are found.
    loaded = PPO.load(result.run_dir, env=make_drone, wrappers=WRAPPERS)
    print(f"evaluation: {loaded.evaluate(num_episodes=10)['eval_return_mean']:.1f}")


if __name__ == "__main__":
    main()
