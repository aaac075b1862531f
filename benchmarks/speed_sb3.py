"""Stable-Baselines3's side of the speed benchmark: translate the settings of a row, and measure one training run."""

from typing import Any

import torch
from speed_common import Job, Measurement, Row, SteadyState, make_measurement, read_clocks
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack

_CLASSES = {"ppo": PPO, "dqn": DQN, "sac": SAC}
_ACTIVATIONS = {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU}
_NETWORK = ("hidden_sizes", "activation", "encoder")
_NAMES = {
    "num_steps": "n_steps",
    "minibatch_size": "batch_size",
    "update_epochs": "n_epochs",
    "clip_coef": "clip_range",
    "buffer_capacity": "buffer_size",
    "train_frequency": "train_freq",
    "epsilon_start": "exploration_initial_eps",
    "epsilon_end": "exploration_final_eps",
    "alpha": "ent_coef",
}


def make_arguments(row: Row) -> dict[str, Any]:
    """Return the row's parameters as keyword arguments; Stable-Baselines3 raises an error for unknown names."""
    network = {
        "net_arch": list(row.params["hidden_sizes"]),
        "activation_fn": _ACTIVATIONS[row.params["activation"]],
    }
    others = {name: value for name, value in row.params.items() if name not in _NETWORK}
    if "vf_coef" in others:
        others["vf_coef"] /= 2  # Stable-Baselines3 weighs the whole squared error, this package half of it
    return {**{_NAMES.get(name, name): value for name, value in others.items()}, "policy_kwargs": network}


class UpdateClock(BaseCallback):  # type: ignore[misc]  # mypy sees no types, because Stable-Baselines3 may not be installed
    """A callback that reads the clocks at the end of every update: when the next rollout starts or training ends."""

    def __init__(self, learning_starts: int) -> None:
        super().__init__()
        self.steady = SteadyState()
        self._learning_starts = learning_starts

    def _on_rollout_start(self) -> None:
        if self.num_timesteps > self._learning_starts:
            self.steady.mark(self.num_timesteps)

    def _on_training_end(self) -> None:
        self.steady.mark(self.num_timesteps)

    def _on_step(self) -> bool:
        return True


def measure(job: Job, import_seconds: float) -> Measurement:
    """Train once, with the vector env and the monitor of `make_vec_env`; `CnnPolicy` has the Nature CNN."""
    start, clock = read_clocks(), UpdateClock(int(job.row.params.get("learning_starts", 0)))
    torch.set_num_threads(job.threads)
    env = make_vec_env(job.row.env_id, n_envs=job.row.num_envs, seed=job.seed)
    if job.row.frame_stack > 1:
        env = VecFrameStack(env, job.row.frame_stack)
    policy = "CnnPolicy" if job.row.has_images else "MlpPolicy"
    model = _CLASSES[job.row.algo](policy, env, seed=job.seed, device="cpu", **make_arguments(job.row))
    model.learn(job.steps, callback=clock)
    returns = [float(episode["r"]) for episode in model.ep_info_buffer]
    episode_return = sum(returns) / len(returns) if returns else None
    return make_measurement(job, import_seconds, start, clock.steady, episode_return)
