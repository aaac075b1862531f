"""A curriculum: the goal moves away, step by step, as soon as the agent reaches it in most episodes.

The callback is named in the config, so a run that was killed has it again when it is resumed with
`rl-training resume`, and continues to the last bit. Evaluations play the full distance from the start.
"""

import argparse
from collections import deque
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rl_training import PPO, TrainConfig
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.collector import CollectResult
from rl_training.runtime.trainer import TrainerState

FULL_DISTANCE = 24


class Corridor(gymnasium.Env[Any, Any]):
    """Walk to a goal on slippery ground; the sign of the goal's position says on which side it is."""

    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self.distance = FULL_DISTANCE

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Place the goal to the left or to the right."""
        super().reset(seed=seed, options=options)
        self.goal = self.distance * (1 if self.np_random.random() < 0.5 else -1)
        self.steps_left = 2 * self.distance
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Walk, or slip in the other direction."""
        move = 1 if (action == 1) != (self.np_random.random() < 0.1) else -1
        self.goal -= move
        self.steps_left -= 1
        return self._observe(), float(self.goal == 0), self.goal == 0, self.steps_left == 0, {}

    def _observe(self) -> Any:
        return np.array([np.clip(self.goal / (3 * FULL_DISTANCE), -1.0, 1.0)], np.float32)


class RaiseDistance(Callback):
    """Moves the goal one step away once the agent has reached it in `rate` of the newest `episodes` episodes."""

    def __init__(self, rate: float = 0.8, episodes: int = 40) -> None:
        self.rate = rate
        self.distance = 1
        self.successes: deque[bool] = deque(maxlen=episodes)

    def on_train_start(self, trainer: TrainerState) -> None:
        """Begin with an easy task; the envs of a resumed run already have theirs."""
        if trainer.resumed is None:
            self._set_distance(trainer)

    def on_collect_end(self, trainer: TrainerState, result: CollectResult) -> None:
        """Count successes, and make the task harder if there are enough."""
        self.successes += [episode.episode_return > 0.0 for episode in result.episodes]
        if len(self.successes) == self.successes.maxlen and np.mean(self.successes) >= self.rate:
            self.distance = min(self.distance + 1, FULL_DISTANCE)
            self._set_distance(trainer)

    def _set_distance(self, trainer: TrainerState) -> None:
        trainer.env.set_attr("distance", self.distance)
        trainer.log("curriculum/distance", self.distance)
        self.successes.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint stores."""
        return {"distance": self.distance, "successes": list(self.successes)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where a checkpoint was written."""
        self.distance = state["distance"]
        self.successes.extend(state["successes"])


if "Corridor-v0" not in gymnasium.registry:  # a script that is run is imported once more, by its name
    gymnasium.register("Corridor-v0", "curriculum:Corridor")


def make_config(**options: Any) -> TrainConfig:
    """Return the config of a run with the curriculum."""
    params = {"num_steps": 64, "minibatch_size": 128, "learning_rate": 1e-3}
    callbacks = [{"curriculum:RaiseDistance": {"rate": 0.8, "episodes": 40}}]
    values = {"num_envs": 8, "eval_episodes": 20, "algo_kwargs": params, "callbacks": callbacks, **options}
    return TrainConfig(algo="ppo", env_id="curriculum:Corridor-v0", **values)


def main() -> None:
    """Train, and print how far the curriculum came."""
    parser = argparse.ArgumentParser(description="Train PPO with a curriculum.")
    parser.add_argument("--total-timesteps", type=int, default=30_000)
    parser.add_argument("--output-dir", type=Path, default=Path("runs"))
    args = parser.parse_args()
    result = PPO(make_config(total_timesteps=args.total_timesteps, output_dir=args.output_dir)).learn()
    print(f"evaluation at the full distance: {result.metrics['eval_return_mean']:.2f}")
    print(result.run_dir)


if __name__ == "__main__":
    main()
