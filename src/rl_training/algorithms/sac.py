"""Soft actor-critic (Haarnoja et al. 2018): its parameters, its losses, and the learner, in that order."""

from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from rl_training.algorithms.base import (
    Batch,
    Correlation,
    ExperienceNormalizer,
    GradientStep,
    LearnerSetup,
    OffPolicyParams,
    UpdateResult,
)
from rl_training.algorithms.optim import Descent, FlatAdam, Numbers, Settings
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.experiment.schedules import PositiveSchedule, Schedule
from rl_training.experiment.validation import Float, PositiveInt
from rl_training.policies.base import Array
from rl_training.policies.soft_actor_critic import SquashedActor, TwinCritics

CRITIC_STEP, ACTOR_STEP = "critic step", "actor step"


class SACParams(OffPolicyParams):
    """What `algo_kwargs` may hold beside the parameters of every off-policy algorithm."""

    buffer_capacity: PositiveInt = 1_000_000
    batch_size: PositiveInt = 256
    hidden_sizes: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = (256, 256)
    learning_rate: PositiveSchedule = Schedule(start=3e-4)
    tau: Annotated[Float, Field(gt=0.0, le=1.0)] = 0.005
    """How much of the critics their targets take over after each update."""
    alpha: Literal["auto"] | Annotated[Float, Field(gt=0.0)] = "auto"
    """Temperature of the entropy bonus; `auto`: learned towards `target_entropy`."""
    target_entropy: Float | None = None
    """Of the learned temperature; none: minus the number of action dimensions."""
    noise_correlation: Correlation = 0.0
    """Of the exploration noise from one step to the next, continuous actions only; 0: new noise at every step."""
    policy_delay: PositiveInt = 1
    """Critic updates per update of actor and temperature, which is then repeated that often."""


def soft_targets(batch: Batch, next_values: Tensor, next_logprobs: Tensor, alpha: Tensor) -> Tensor:
    """Reward plus the discounted soft value: the lower of the two target critics, and the entropy bonus."""
    soft_values = next_values.min(dim=0).values - alpha * next_logprobs
    return batch["rewards"] + batch["discounts"] * soft_values


def critic_loss(values: Tensor, targets: Tensor) -> Tensor:
    """Half the mean squared error of each critic, summed; `values` are [critic, batch]."""
    return 0.5 * (values - targets).square().mean(dim=1).sum()


def actor_loss(values: Tensor, logprobs: Tensor, alpha: Tensor) -> Tensor:
    """What the actor minimises: temperature times log-prob, minus the lower critic."""
    return (alpha * logprobs - values.min(dim=0).values).mean()


class SACLearner:
    """Draws its actions, learns critics, actor and temperature from replayed transitions."""

    def __init__(self, policy: SquashedActor, critics: TwinCritics, params: SACParams, setup: LearnerSetup) -> None:
        self.policy = policy
        self.critics = critics
        self.params = params
        self.total_timesteps = setup.total_timesteps
        self.target_entropy = params.target_entropy if params.target_entropy is not None else -policy.actions.size
        self._stream = setup.stream  # noise of the actions that the update imagines
        self._target = critics.params.flat.clone()
        start = 1.0 if params.alpha == "auto" else params.alpha
        self._log_alpha = torch.tensor([start], device=self._target.device).log()
        self._actor_descent = Descent(policy.params.flat, self._actor_loss, compiled=setup.compiled)
        self._critic_descent = Descent(critics.params.flat, self._critic_loss, compiled=setup.compiled)
        self._alpha_optimizer = FlatAdam(self._log_alpha)
        self.normalizer = ExperienceNormalizer(policy.encoder, params)
        self._num_updates = 0

    def act(self, obs: Array, step: int) -> Array:
        """Uniform actions in the warm-up, then the policy's own draws."""
        if step < self.params.learning_starts:
            return self.policy.act_uniformly(len(obs))
        return self.policy.act(obs)

    def begin_episodes(self, begun: Array) -> None:
        """Explore anew in the envs that `begun` [env] marks."""
        self.policy.begin_episodes(begun)

    def update(self, replay: ReplayBuffer, step: int, num_gradient_steps: int) -> UpdateResult:
        """Learn from replayed batches at env step `step`."""
        learning_rate = self.params.learning_rate.value(step, self.total_timesteps)
        critic_numbers: list[Tensor] = []
        actor_numbers: list[Tensor] = []
        for _ in range(num_gradient_steps):
            batch = self.normalizer.prepare(replay.sample(self.params.batch_size), self._target.device)
            critic_numbers.append(self._draw_and_take(CRITIC_STEP, batch, learning_rate))
            self._num_updates += 1
            if self._num_updates % self.params.policy_delay == 0:
                repeats = range(self.params.policy_delay)
                actor_numbers += [self._draw_and_take(ACTOR_STEP, batch, learning_rate) for _ in repeats]
        self.policy.params.sync_host()
        metrics: dict[str, int | float] = {"learning_rate": learning_rate, "ent_coef": self._log_alpha.exp().item()}
        metrics |= dict(zip(("critic_loss", "q_mean"), torch.stack(critic_numbers).mean(dim=0).tolist(), strict=True))
        if actor_numbers:
            means = torch.stack(actor_numbers).mean(dim=0).tolist()
            metrics |= dict(zip(("actor_loss", "entropy"), means, strict=True))
        return UpdateResult(metrics, num_gradient_steps)

    def _draw_and_take(self, name: str, batch: Batch, learning_rate: float) -> Tensor:
        noise = self._stream.standard_normal(batch["actions"].shape, dtype=np.float32)
        others = {"noise": torch.from_numpy(noise).to(self._target.device), "log_alpha": self._log_alpha}
        if name == CRITIC_STEP:
            others |= {"policy": self.policy.params.flat, "target": self._target}
        else:
            others["critics"] = self.critics.params.flat
        return self.take(GradientStep(name, {**batch, **others}, {"learning_rate": learning_rate}))

    def take(self, step: GradientStep) -> Tensor:
        """One gradient step, of the critics or of actor and temperature; its batch has all that it depends on."""
        if step.name == CRITIC_STEP:
            (watched,), _ = self._critic_descent.take(step)
            self._target.lerp_(self.critics.params.flat, self.params.tau)
            return watched
        (watched,), _ = self._actor_descent.take(step)
        if self.params.alpha == "auto":
            # The gradient of -log_alpha * (log-prob + target): alpha rises while the entropy is below its target.
            gradient = (watched[1] - self.target_entropy).reshape(1)
            self._alpha_optimizer.step(gradient, step.settings["learning_rate"])
        return watched

    def _critic_loss(self, flat: Tensor, batch: Batch, settings: Settings) -> tuple[Tensor, Numbers]:
        """The error of both critics against the soft targets."""
        del settings
        layout, actor = self.critics.params.layout, self.policy.params.layout.tensors(batch["policy"])
        with torch.no_grad():
            next_actions, next_logprobs = self.policy.sample(actor, batch["next_obs"], batch["noise"])
            next_values = self.critics.forward(layout.tensors(batch["target"]), batch["next_obs"], next_actions)
            targets = soft_targets(batch, next_values, next_logprobs, batch["log_alpha"].exp())
        values = self.critics.forward(layout.tensors(flat), batch["obs"], batch["actions"])
        loss = critic_loss(values, targets)
        return loss, (torch.stack([loss.detach(), values.detach().mean()]),)

    def _actor_loss(self, flat: Tensor, batch: Batch, settings: Settings) -> tuple[Tensor, Numbers]:
        """How far the actor is from the critics' maximum, and its entropy."""
        del settings
        actor, critics = self.policy.params.layout.tensors(flat), self.critics.params.layout.tensors(batch["critics"])
        actions, logprobs = self.policy.sample(actor, batch["obs"], batch["noise"])
        values = self.critics.forward(critics, batch["obs"], actions)
        loss = actor_loss(values, logprobs, batch["log_alpha"].exp())
        return loss, (torch.stack([loss.detach(), -logprobs.detach().mean()]),)

    def state_dict(self) -> dict[str, Any]:
        """All networks, the temperature, every optimizer, and the streams."""
        return {
            "policy": self.policy.state_dict(),
            "critics": self.critics.params.state_dict(),
            "target": self._target.cpu().clone(),
            "log_alpha": self._log_alpha.cpu().clone(),
            "actor_optimizer": self._actor_descent.adam.state_dict(),
            "critic_optimizer": self._critic_descent.adam.state_dict(),
            "alpha_optimizer": self._alpha_optimizer.state_dict(),
            "rewards": self.normalizer.rewards.state_dict(),
            "noise_stream": self._stream.bit_generator.state,
            "num_updates": self._num_updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` stopped."""
        self.policy.load_state_dict(state["policy"])
        self.critics.params.load_state_dict(state["critics"])
        self._target.copy_(state["target"])
        self._log_alpha.copy_(state["log_alpha"])
        self._actor_descent.adam.load_state_dict(state["actor_optimizer"])
        self._critic_descent.adam.load_state_dict(state["critic_optimizer"])
        self._alpha_optimizer.load_state_dict(state["alpha_optimizer"])
        self.normalizer.rewards.load_state_dict(state["rewards"])
        self._stream.bit_generator.state = state["noise_stream"]
        self._num_updates = int(state["num_updates"])
