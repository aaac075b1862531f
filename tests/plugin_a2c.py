"""Advantage actor-critic (Mnih et al. 2016) as another package would add it: one gradient step per rollout."""

from collections.abc import Sequence
from typing import Any

import torch
from pydantic import Field

from rl_training.algorithms.base import (
    Batch,
    GradientStep,
    LearnerSetup,
    LossGradients,
    Networks,
    OnPolicyParams,
    Settings,
    UpdateResult,
)
from rl_training.algorithms.optimizer import Optimizer, make_rule
from rl_training.algorithms.ppo import AdvantageEstimator
from rl_training.policies.acting import Actor, SamplingActor
from rl_training.policies.actor_critic import ActorCritic, OutputGradients
from rl_training.runtime.on_policy import on_policy_algorithm

METRICS = ("loss", "value_loss", "entropy", "grad_norm")


class A2CParams(OnPolicyParams):
    """What `algo_kwargs` may hold."""

    num_steps: int = Field(default=8, ge=1)
    gae_lambda: float = Field(default=1.0, ge=0.0, le=1.0)
    ent_coef: float = Field(default=0.0, ge=0.0)
    vf_coef: float = Field(default=0.5, ge=0.0)
    max_grad_norm: float = Field(default=0.5, gt=0.0)

    def planned_gradient_steps(self, total_timesteps: int, num_envs: int) -> int:
        """One per rollout."""
        return -(-total_timesteps // (self.num_steps * num_envs))


class A2CLearner:
    """Follows the policy gradient of each rollout once."""

    def __init__(self, params: A2CParams, setup: LearnerSetup) -> None:
        self.params, self._setup = params, setup
        network = params.network_spec(setup.device)
        self.policy = ActorCritic(setup.observation_space, setup.action_space, network, setup.seed)
        self._advantages = AdvantageEstimator(self.policy, params)
        self._optimizer = Optimizer(
            {"policy": self.policy.params},
            self._gradients,
            make_rule(params, eps=1e-5),
            max_norm=params.max_grad_norm,
            compile_as=setup.compile_as,
        )

    def make_actor(self, envs: Sequence[int]) -> Actor:
        return SamplingActor(self.policy, self._setup.noise(self.policy.distribution.noise, envs))

    def compute_advantages(self, rollout: Any, last_obs: Any) -> None:
        self._advantages.compute(rollout, last_obs)

    def update(self, rollout: Any, step: int) -> UpdateResult:
        learning_rate = self.params.learning_rate.value(step, self._setup.total_timesteps)
        (batch,) = rollout.iter_minibatches(minibatch_size=len(rollout), shuffle=False)
        batch = {name: field.to(self._setup.device) for name, field in batch.items()}
        masks = self.policy.masks(batch["obs"])
        batch |= {} if masks is None else {"masks": masks}
        batch["obs"] = self.policy.encoder.encode_tensor(batch["obs"])
        metrics = self.apply(GradientStep("gradient step", batch, {"learning_rate": learning_rate}))
        self.policy.params.sync_host()
        self.policy.encoder.observe(rollout.obs.flatten(0, 1).numpy())
        self.policy.encoder.refresh()
        return UpdateResult(dict(zip(METRICS, metrics, strict=True)), num_gradient_steps=1)

    def _gradients(self, networks: Networks, batch: Batch, settings: Settings) -> LossGradients:
        del settings
        params, size = networks["policy"], len(batch["advantages"])
        evaluation = self.policy.evaluate(params, batch["obs"], batch["actions"], batch.get("masks"))
        output, errors = evaluation.output, evaluation.output.values - batch["returns"]
        policy_losses = -batch["advantages"] * output.logprobs
        totals = policy_losses + self.params.vf_coef * 0.5 * errors.square() - self.params.ent_coef * output.entropy
        metrics = torch.stack([totals, 0.5 * errors.square(), output.entropy]).mean(dim=1)
        outer = OutputGradients(
            -batch["advantages"] / size, errors * (self.params.vf_coef / size), -self.params.ent_coef / size
        )
        return LossGradients(self.policy.gradients(params, evaluation, outer), metrics)

    @property
    def packages(self) -> list[str] | None:
        return self._optimizer.packages

    def apply(self, step: GradientStep) -> list[float]:
        return self._optimizer.apply(step).metrics

    def state_dict(self) -> dict[str, Any]:
        return {
            "policy": self.policy.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "rewards": self._advantages.rewards.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.policy.load_state_dict(state["policy"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._advantages.rewards.load_state_dict(state["rewards"])


A2C = on_policy_algorithm("a2c", A2CParams, A2CLearner)
