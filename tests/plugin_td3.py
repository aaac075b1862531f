"""Twin delayed DDPG (Fujimoto et al. 2018) as another package would add it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from pydantic import Field

from rl_training.algorithms.base import (
    Batch,
    ExperienceNormalizer,
    GradientStep,
    LearnerSetup,
    LossGradients,
    Networks,
    OffPolicyParams,
    Settings,
    UpdateResult,
)
from rl_training.algorithms.optimizer import Optimizer, make_rule, mean_metrics
from rl_training.policies.acting import Actor, SamplingActor, WarmUpActor
from rl_training.policies.soft_actor_critic import SquashedActor, TwinCritics
from rl_training.runtime.off_policy import off_policy_algorithm
from rl_training.streams import make_stream, make_torch_generator


class TD3Params(OffPolicyParams):
    """What `algo_kwargs` may hold."""

    tau: float = Field(default=0.005, gt=0.0, le=1.0)
    policy_delay: int = Field(default=2, ge=1)
    exploration_noise: float = Field(default=0.1, ge=0.0)
    target_noise: float = Field(default=0.2, ge=0.0)
    noise_clip: float = Field(default=0.5, ge=0.0)

    @property
    def graphs(self) -> int:
        """The critics' step and the actor's."""
        return 2


class DeterministicActor(SquashedActor):
    """Acts with the squashed means of SAC's actor; its deviations are not used."""

    exploration_noise = 0.1

    def sample(self, obs: Any, noise: Any) -> Any:
        outputs = self.network.forward_array(self.params.arrays, self.encoder.encode_array(obs))
        means = np.tanh(outputs[:, : self.actions.size])
        return np.clip(means + np.float32(self.exploration_noise) * noise, -1.0, 1.0)


class TD3Learner:
    """Learns twin critics towards smoothed targets, and the actor in every second step."""

    def __init__(self, params: TD3Params, setup: LearnerSetup) -> None:
        self.params, self._setup = params, setup
        network = params.network_spec(setup.device)
        self.policy = DeterministicActor(setup.observation_space, setup.action_space, network, setup.seed)
        self.policy.exploration_noise = params.exploration_noise
        self.critics = TwinCritics(self.policy.encoder, self.policy.actions.size, network)
        generator = make_torch_generator(setup.seed, "initialisation")
        self.policy.initialise(generator)
        self.critics.initialise(generator)
        self._target_actor, self._target_critics = self.policy.params.twin(), self.critics.params.twin()
        self._stream = make_stream(setup.seed, "update_noise")
        actor, critics = self.policy.params, self.critics.params
        targets = {"target_actor": self._target_actor, "target_critics": self._target_critics}
        rule = make_rule(params)
        self._critic_optimizer = Optimizer(
            {"critics": critics, **targets}, self._critic_gradients, rule, compile_as=setup.compile_as
        )
        self._actor_optimizer = Optimizer(
            {"actor": actor, "critics": critics}, self._actor_gradients, rule, compile_as=setup.compile_as
        )
        self.normalizer = ExperienceNormalizer(self.policy.encoder, params)
        self._num_updates = 0

    def make_actor(self, envs: Sequence[int]) -> Actor:
        size = self.policy.actions.size
        actor = SamplingActor(self.policy, self._setup.draws("normal", size, "acting", envs))
        uniform = self._setup.draws("uniform", size, "warm_up", envs)
        return WarmUpActor(actor, uniform, self.params.learning_starts)

    def update(self, replay: Any, step: int, num_gradient_steps: int) -> UpdateResult:
        settings = {"learning_rate": self.params.learning_rate.value(step, self._setup.total_timesteps)}
        applied = [self._learn(replay, settings) for _ in range(num_gradient_steps)]
        self.policy.params.sync_host()
        return UpdateResult(mean_metrics(("critic_loss", "q_mean", "critic_grad_norm"), applied), num_gradient_steps)

    def _learn(self, replay: Any, settings: dict[str, float]) -> list[float]:
        batch = self.normalizer.prepare(replay.sample(self.params.batch_size), self._setup.device)
        noise = self._stream.standard_normal(batch["actions"].shape, dtype=np.float32) * self.params.target_noise
        clipped = np.clip(noise, -self.params.noise_clip, self.params.noise_clip)
        batch["noise"] = torch.from_numpy(clipped).to(self._setup.device)
        metrics = self.apply(GradientStep("critic step", batch, settings))
        self._num_updates += 1
        if self._num_updates % self.params.policy_delay == 0:
            self.apply(GradientStep("actor step", batch, settings))
        return metrics

    def apply(self, step: GradientStep) -> list[float]:
        if step.name == "critic step":
            return self._critic_optimizer.apply(step).metrics
        metrics = self._actor_optimizer.apply(step).metrics
        self._target_actor.flat.lerp_(self.policy.params.flat, self.params.tau)
        self._target_critics.flat.lerp_(self.critics.params.flat, self.params.tau)
        return metrics

    def _critic_gradients(self, networks: Networks, batch: Batch, settings: Settings) -> LossGradients:
        del settings
        size = self.policy.actions.size
        means = self.policy.network.forward(networks["target_actor"], batch["next_obs"])[:, :size]
        actions = (torch.tanh(means) + batch["noise"]).clamp(-1.0, 1.0)
        following = self.critics.forward(networks["target_critics"], batch["next_obs"], actions).amin(dim=0)
        targets = batch["rewards"] + batch["discounts"] * following
        trace = self.critics.trace(networks["critics"], batch["obs"], batch["actions"])
        errors = trace.outputs.squeeze(2) - targets
        gradients = self.critics.gradients(networks["critics"], trace, errors / len(targets))
        metrics = torch.stack([0.5 * errors.square().sum() / len(targets), trace.outputs.mean()])
        return LossGradients(gradients, metrics)

    def _actor_gradients(self, networks: Networks, batch: Batch, settings: Settings) -> LossGradients:
        del settings
        size = self.policy.actions.size
        actor_trace = self.policy.network.trace(networks["actor"], batch["obs"])
        actions = torch.tanh(actor_trace.outputs[:, :size])
        critic_trace = self.critics.trace(networks["critics"], batch["obs"], actions)
        values = critic_trace.outputs.squeeze(2)
        value_gradients = torch.zeros_like(values)
        value_gradients[0] = -1.0 / len(actions)  # the first critic's value is to rise
        action_gradients = self.critics.action_gradients(networks["critics"], critic_trace, value_gradients)
        means = action_gradients * (1.0 - actions.square())
        outer = torch.cat([means, torch.zeros_like(means)], dim=1)
        gradients = self.policy.network.backward(networks["actor"], actor_trace, outer)
        return LossGradients(gradients, -values[0].mean().reshape(1))

    @property
    def packages(self) -> list[str] | None:
        critic, actor = self._critic_optimizer.packages, self._actor_optimizer.packages
        return None if critic is None or actor is None else [*critic, *actor]

    def state_dict(self) -> dict[str, Any]:
        return {
            "policy": self.policy.state_dict(),
            "critics": self.critics.params.state_dict(),
            "targets": [self._target_actor.state_dict(), self._target_critics.state_dict()],
            "optimizers": [self._actor_optimizer.state_dict(), self._critic_optimizer.state_dict()],
            "rewards": self.normalizer.rewards.state_dict(),
            "stream": self._stream.bit_generator.state,
            "num_updates": self._num_updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.policy.load_state_dict(state["policy"])
        self.critics.params.load_state_dict(state["critics"])
        for target, saved in zip((self._target_actor, self._target_critics), state["targets"], strict=True):
            target.load_state_dict(saved)
        for one, saved in zip((self._actor_optimizer, self._critic_optimizer), state["optimizers"], strict=True):
            one.load_state_dict(saved)
        self.normalizer.rewards.load_state_dict(state["rewards"])
        self._stream.bit_generator.state = state["stream"]
        self._num_updates = int(state["num_updates"])


TD3 = off_policy_algorithm("td3", TD3Params, TD3Learner)
