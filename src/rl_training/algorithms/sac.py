"""Soft actor-critic (Haarnoja et al. 2018): its parameters, its losses, and the learner, in that order."""

import math
from collections.abc import Sequence
from dataclasses import replace
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
    HiddenSizes,
    LearnerSetup,
    LossGradients,
    Networks,
    OffPolicyParams,
    Settings,
    UpdateResult,
)
from rl_training.algorithms.optimizer import Optimizer, ScalarAdam, make_rule, mean_metrics
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.experiment.validation import Float, PositiveInt
from rl_training.policies.acting import Actor, SamplingActor, WarmUpActor
from rl_training.policies.networks.spec import NetworkSpec
from rl_training.policies.soft_actor_critic import SquashedActor, SquashedDraw, TwinCritics
from rl_training.streams import make_stream, make_torch_generator

CRITIC_STEP, ACTOR_STEP = "critic step", "actor step"


class SACParams(OffPolicyParams):
    """The parameters of this algorithm, in addition to those of every off-policy algorithm."""

    hidden_sizes: HiddenSizes = (256, 256)
    actor_hidden_sizes: HiddenSizes | None = None
    """Hidden layers of the actor; none: `hidden_sizes`."""
    critic_hidden_sizes: HiddenSizes | None = None
    """Hidden layers of each critic; none: `hidden_sizes`."""
    tau: Annotated[Float, Field(gt=0.0, le=1.0)] = 0.005
    """How far the targets of the critics move towards the critics after each update; 1: a copy."""
    alpha: Literal["auto"] | Annotated[Float, Field(gt=0.0)] = "auto"
    """Temperature of the entropy bonus; `auto`: learned towards `target_entropy`."""
    target_entropy: Float | None = None
    """Entropy that the learned temperature aims at; none: minus the number of action dimensions."""
    noise_correlation: Correlation = 0.0
    """Correlation of the exploration noise between two steps, for continuous actions; 0: new noise at every step."""
    policy_delay: PositiveInt = 1
    """Critic updates between two updates of actor and temperature, which then take as many steps each."""

    def network_spec(self, device: torch.device) -> NetworkSpec:
        """Return the settings that all networks of the algorithm share."""
        return replace(
            super().network_spec(device),
            actor_hidden_sizes=self.actor_hidden_sizes,
            critic_hidden_sizes=self.critic_hidden_sizes,
        )

    @property
    def graphs(self) -> int:
        """The number of different gradient steps: that of the critics and that of the actor."""
        return 2


def soft_targets(batch: Batch, next_values: Tensor, next_logprobs: Tensor, alpha: float | Tensor) -> Tensor:
    """Add to the reward the discounted soft value: the lower of the two target critics, plus the entropy bonus."""
    soft_values = next_values.min(dim=0).values - alpha * next_logprobs
    return batch["rewards"] + batch["discounts"] * soft_values


def critic_loss(values: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Compute half the mean squared error of each critic, summed, and its gradient for the values [critic, batch]."""
    errors = values - targets
    size = errors.shape[1]
    return 0.5 * errors.square().sum() / size, errors / size


def actor_loss(values: Tensor, logprobs: Tensor, alpha: float | Tensor) -> tuple[Tensor, Tensor]:
    """Compute what the actor minimises, and its gradient for the values [critic, batch]; only the lower one counts.

    The loss is temperature times log-prob, minus the lower value, so its gradient for every log-prob is alpha / batch.
    """
    lowest, index = values.min(dim=0, keepdim=True)
    gradients = torch.zeros_like(values).scatter_(0, index, -1.0 / values.shape[1])
    return (alpha * logprobs - lowest.squeeze(0)).mean(), gradients


class SACLearner:
    """Learns critics, actor and temperature from replayed transitions."""

    def __init__(self, params: SACParams, setup: LearnerSetup) -> None:
        network = params.network_spec(setup.device)
        self.params = params
        self.policy = policy = SquashedActor(setup.observation_space, setup.action_space, network, setup.seed)
        self.critics = critics = TwinCritics(policy.encoder, policy.actions.size, network)
        generator = make_torch_generator(setup.seed, "initialisation")
        policy.initialise(generator)
        critics.initialise(generator)
        self.total_timesteps = setup.total_timesteps
        self.target_entropy = params.target_entropy if params.target_entropy is not None else -policy.actions.size
        self._setup = setup
        self._stream = make_stream(setup.seed, "update_noise")  # for the actions that are drawn in updates
        self._target = critics.params.twin()
        self._device = self._target.flat.device
        self._log_alpha = ScalarAdam(math.log(1.0 if params.alpha == "auto" else params.alpha))
        rule = make_rule(params)
        networks = {"actor": policy.params, "critics": critics.params}
        self._actor_optimizer = Optimizer(networks, self._actor_gradients, rule, compile_as=setup.compile_as)
        networks = {"critics": critics.params, "target": self._target, "actor": policy.params}
        self._critic_optimizer = Optimizer(networks, self._critic_gradients, rule, compile_as=setup.compile_as)
        self.normalizer = ExperienceNormalizer(policy.encoder, params)
        self._num_updates = 0

    @property
    def alpha(self) -> float:
        """The current temperature. If it diverges, it becomes too large for float32, and the next step is refused."""
        return math.exp(min(self._log_alpha.value, 700.0))

    def make_actor(self, envs: Sequence[int]) -> Actor:
        """Return an actor that acts uniformly at random in the warm-up, and samples from the policy afterwards."""
        size = self.policy.actions.size
        noise = self._setup.noise((("normal", size),), envs, self.params.noise_correlation)
        uniform = self._setup.draws("uniform", size, "warm_up", envs)
        return WarmUpActor(SamplingActor(self.policy, noise), uniform, self.params.learning_starts)

    def update(self, replay: ReplayBuffer, step: int, num_gradient_steps: int) -> UpdateResult:
        """Learn from replayed batches at env step `step`."""
        learning_rate = self.params.learning_rate.value(step, self.total_timesteps)
        critic_metrics: list[list[float]] = []
        actor_metrics: list[list[float]] = []
        for _ in range(num_gradient_steps):
            batch = self.normalizer.prepare(replay.sample(self.params.batch_size), self._device)
            critic_metrics.append(self._draw_and_apply(CRITIC_STEP, batch, learning_rate))
            self._num_updates += 1
            if self._num_updates % self.params.policy_delay == 0:
                repeats = range(self.params.policy_delay)
                actor_metrics += [self._draw_and_apply(ACTOR_STEP, batch, learning_rate) for _ in repeats]
        self.policy.params.sync_host()
        metrics: dict[str, int | float] = {"learning_rate": learning_rate, "ent_coef": self.alpha}
        metrics |= mean_metrics(("critic_loss", "q_mean", "critic_grad_norm"), critic_metrics)
        if actor_metrics:
            metrics |= mean_metrics(("actor_loss", "entropy", "actor_grad_norm"), actor_metrics)
        return UpdateResult(metrics, num_gradient_steps)

    def _draw_and_apply(self, name: str, batch: Batch, learning_rate: float) -> list[float]:
        noise = self._stream.standard_normal(batch["actions"].shape, dtype=np.float32)
        batch = {**batch, "noise": torch.from_numpy(noise).to(self._device)}
        settings = {"learning_rate": learning_rate, "alpha": self.alpha}
        return self.apply(GradientStep(name, batch, settings))

    @property
    def packages(self) -> list[str] | None:
        """The compiled packages of both gradient steps; none when one of them runs eagerly."""
        critic, actor = self._critic_optimizer.packages, self._actor_optimizer.packages
        return None if critic is None or actor is None else [*critic, *actor]

    def apply(self, step: GradientStep) -> list[float]:
        """Apply one gradient step, of the critics or of actor and temperature.

        Its metrics are the loss, the mean value or the entropy, and the gradient's norm.
        """
        if step.name == CRITIC_STEP:
            metrics = self._critic_optimizer.apply(step).metrics
            self._target.flat.lerp_(self.critics.params.flat, self.params.tau)
            return metrics
        metrics = self._actor_optimizer.apply(step).metrics
        if self.params.alpha == "auto":
            # The gradient of -log_alpha * (log-prob + target): alpha rises while the entropy is below its target.
            self._log_alpha.step(metrics[1] - self.target_entropy, step.settings["learning_rate"])
        return metrics

    def _critic_gradients(self, networks: Networks, batch: Batch, settings: Settings) -> LossGradients:
        """Differentiate the error of both critics against the soft targets."""
        critics = networks["critics"]
        following = self.policy.draw(networks["actor"], batch["next_obs"], batch["noise"])
        next_values = self.critics.forward(networks["target"], batch["next_obs"], following.actions)
        targets = soft_targets(batch, next_values, following.logprobs, settings["alpha"])
        trace = self.critics.trace(critics, batch["obs"], batch["actions"])
        values = trace.outputs.squeeze(2)
        loss, outer = critic_loss(values, targets)
        return LossGradients(self.critics.gradients(critics, trace, outer), torch.stack([loss, values.mean()]))

    def _actor_gradients(self, networks: Networks, batch: Batch, settings: Settings) -> LossGradients:
        """Differentiate the actor's loss through the critics; the second metric is the entropy."""
        actor, critics, alpha = networks["actor"], networks["critics"], settings["alpha"]
        actor_trace = self.policy.network.trace(actor, batch["obs"])
        draw = SquashedDraw(actor_trace.outputs, batch["noise"])
        critic_trace = self.critics.trace(critics, batch["obs"], draw.actions)
        loss, value_gradients = actor_loss(critic_trace.outputs.squeeze(2), draw.logprobs, alpha)
        action_gradients = self.critics.action_gradients(critics, critic_trace, value_gradients)
        outer = draw.backward(action_gradients, alpha / len(draw.logprobs))
        gradients = self.policy.network.backward(actor, actor_trace, outer)
        return LossGradients(gradients, torch.stack([loss, -draw.logprobs.mean()]))

    def state_dict(self) -> dict[str, Any]:
        """Return all networks, the temperature, every optimizer, and the streams."""
        return {
            "policy": self.policy.state_dict(),
            "critics": self.critics.params.state_dict(),
            "target": self._target.flat.cpu().clone(),
            "log_alpha": torch.tensor([self._log_alpha.value], dtype=torch.float64),
            "actor_optimizer": self._actor_optimizer.state_dict(),
            "critic_optimizer": self._critic_optimizer.state_dict(),
            "alpha_optimizer": self._log_alpha.state_dict(),
            "rewards": self.normalizer.rewards.state_dict(),
            "noise_stream": self._stream.bit_generator.state,
            "num_updates": self._num_updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        self.policy.load_state_dict(state["policy"])
        self.critics.params.load_state_dict(state["critics"])
        self._target.set(state["target"])
        self._log_alpha.value = state["log_alpha"].item()
        self._actor_optimizer.load_state_dict(state["actor_optimizer"])
        self._critic_optimizer.load_state_dict(state["critic_optimizer"])
        self._log_alpha.load_state_dict(state["alpha_optimizer"])
        self.normalizer.rewards.load_state_dict(state["rewards"])
        self._stream.bit_generator.state = state["noise_stream"]
        self._num_updates = int(state["num_updates"])
