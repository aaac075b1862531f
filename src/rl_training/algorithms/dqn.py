"""Deep Q-learning (Mnih et al. 2015) and its options: double, dueling, n-step, prioritised replay."""

from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from rl_training.algorithms.base import (
    Batch,
    ExperienceNormalizer,
    GradientStep,
    LearnerSetup,
    OffPolicyParams,
    UpdateResult,
)
from rl_training.algorithms.optim import Descent, Numbers, Settings
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.sampling import PrioritizedSampler
from rl_training.experiment.schedules import PositiveSchedule, Schedule, crosses
from rl_training.experiment.validation import Flag, Float, PositiveInt, UnitFloat
from rl_training.policies.base import Array
from rl_training.policies.host import pack_policy, unpack_policy
from rl_training.policies.q_network import QNetwork, explore


class DQNParams(OffPolicyParams):
    """What `algo_kwargs` may hold beside the parameters of every off-policy algorithm."""

    buffer_capacity: PositiveInt = 100_000
    batch_size: PositiveInt = 64
    hidden_sizes: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = (128, 128)
    learning_rate: PositiveSchedule = Schedule(start=1e-3)
    target_update_interval: PositiveInt = 500
    """Env steps between two synchronisations of the target network."""
    tau: Annotated[Float, Field(gt=0.0, le=1.0)] = 1.0
    """How much of the online network a synchronisation takes over; 1: a copy."""
    epsilon_start: UnitFloat = 1.0
    epsilon_end: UnitFloat = 0.05
    exploration_fraction: UnitFloat = 0.2
    """Share of the budget over which epsilon falls."""
    max_grad_norm: Annotated[Float, Field(gt=0.0)] = 10.0
    double: Flag = False
    """Choose the next action by the online network, value it by the target (van Hasselt et al. 2016)."""
    dueling: Flag = False
    prioritized: Flag = False
    priority_alpha: UnitFloat = 0.6
    priority_beta: PositiveSchedule = Schedule(schedule="linear", start=0.4, end=1.0)
    """Strength of the importance weights."""

    def epsilon(self, step: int, total_steps: int) -> float:
        """The share of random actions at env step `step`."""
        if self.exploration_fraction == 0.0:
            return self.epsilon_end
        progress = min(step / (self.exploration_fraction * total_steps), 1.0)
        return self.epsilon_start + progress * (self.epsilon_end - self.epsilon_start)


def q_targets(batch: Batch, target_values: Tensor, choosing_values: Tensor) -> Tensor:
    """Reward plus the discounted target value [batch] of the action that `choosing_values` prefer."""
    best = choosing_values.argmax(dim=1, keepdim=True)
    return batch["rewards"] + batch["discounts"] * target_values.gather(1, best).squeeze(1)


def huber_loss(errors: Tensor, weights: Tensor) -> Tensor:
    """Quadratic up to 1, linear beyond, weighted."""
    losses = torch.where(errors.abs() <= 1.0, 0.5 * errors.square(), errors.abs() - 0.5)
    return (weights * losses).mean()


class DQNLearner:
    """Explores by epsilon, learns from replayed transitions towards a target network."""

    def __init__(self, policy: QNetwork, params: DQNParams, setup: LearnerSetup) -> None:
        self.policy = policy
        self.params = params
        self.total_timesteps = setup.total_timesteps
        self._stream = setup.stream  # explores
        self._target = policy.params.flat.clone()
        self._descent = Descent(policy.params.flat, self._loss, max_norm=params.max_grad_norm, compiled=setup.compiled)
        self.normalizer = ExperienceNormalizer(policy.encoder, params)
        self._updated_at = 0  # env step of the newest update

    def act(self, obs: Array, step: int) -> Array:
        """Uniform actions in the warm-up, then greedy ones but for a share of epsilon."""
        if step < self.params.learning_starts:
            return self._stream.integers(self.policy.num_actions, size=len(obs))
        epsilon = self.params.epsilon(step, self.total_timesteps)
        return explore(self.policy.greedy(obs), self.policy.num_actions, epsilon, self._stream)

    def begin_episodes(self, begun: Array) -> None:
        """Nothing to forget: every step explores on its own."""

    def update(self, replay: ReplayBuffer, step: int, num_gradient_steps: int) -> UpdateResult:
        """Learn from replayed batches at env step `step`, and synchronise the target when it is due."""
        learning_rate = self.params.learning_rate.value(step, self.total_timesteps)
        if isinstance(replay.sampler, PrioritizedSampler):
            replay.sampler.beta = self.params.priority_beta.value(step, self.total_timesteps)
        watched = [self._learn(replay, learning_rate) for _ in range(num_gradient_steps)]
        self.policy.params.sync_host()
        if crosses(self.params.target_update_interval, self._updated_at, step):
            self._target.lerp_(self.policy.params.flat, self.params.tau)
        self._updated_at = step
        means = torch.stack(watched).mean(dim=0).tolist()
        metrics = dict(zip(("loss", "q_mean", "grad_norm"), means, strict=True))
        metrics |= {"learning_rate": learning_rate, "epsilon": self.params.epsilon(step, self.total_timesteps)}
        return UpdateResult(metrics, num_gradient_steps)

    def _learn(self, replay: ReplayBuffer, learning_rate: float) -> Tensor:
        batch = self._prepare(replay.sample(self.params.batch_size))
        errors, watched = self.take(GradientStep("temporal-difference step", batch, {"learning_rate": learning_rate}))
        if isinstance(replay.sampler, PrioritizedSampler):
            priorities = errors.abs().double().cpu().numpy() + 1e-6
            replay.sampler.update(batch["indices"].cpu().numpy(), priorities)
        return watched

    def _prepare(self, batch: Batch) -> Batch:
        """All that a step depends on: the batch, and the target network beside it."""
        return {**self.normalizer.prepare(batch, self._target.device), "target": self._target}

    def _loss(self, flat: Tensor, batch: Batch, settings: Settings) -> tuple[Tensor, Numbers]:
        del settings
        layout, q_values = self.policy.params.layout, self.policy.q_values
        online = layout.tensors(flat)
        with torch.no_grad():
            target_values = q_values(layout.tensors(batch["target"]), batch["next_obs"])
            choosing = q_values(online, batch["next_obs"]) if self.params.double else target_values
            targets = q_targets(batch, target_values, choosing)
        values = q_values(online, batch["obs"]).gather(1, batch["actions"].unsqueeze(1)).squeeze(1)
        errors = values - targets
        loss = huber_loss(errors, batch["weights"])
        return loss, (errors.detach(), torch.stack([loss.detach(), values.detach().mean()]))

    def take(self, step: GradientStep) -> tuple[Tensor, Tensor]:
        """One gradient step, on features in place of observations; the errors, and numbers to watch."""
        (errors, watched), norm = self._descent.take(step)
        return errors, torch.cat([watched, norm.reshape(1)])

    def state_dict(self) -> dict[str, Any]:
        """Both networks, optimizer moments, exploring stream, and when the target was looked at."""
        return {
            "policy": pack_policy(self.policy.params, self.policy.encoder, self._stream),
            "target": self._target.cpu().clone(),
            "optimizer": self._descent.adam.state_dict(),
            "rewards": self.normalizer.rewards.state_dict(),
            "updated_at": self._updated_at,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` stopped."""
        unpack_policy(state["policy"], self.policy.params, self.policy.encoder, self._stream)
        self._target.copy_(state["target"])
        self._descent.adam.load_state_dict(state["optimizer"])
        self.normalizer.rewards.load_state_dict(state["rewards"])
        self._updated_at = int(state["updated_at"])
