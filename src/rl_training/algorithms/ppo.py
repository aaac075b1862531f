"""Proximal policy optimisation (Schulman et al. 2017): its parameters, its losses, and the learner, in that order."""

import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import torch
from gymnasium import spaces
from pydantic import Field
from torch import Tensor

from rl_training.algorithms.base import (
    Batch,
    Correlation,
    GradientStep,
    LearnerSetup,
    LossGradients,
    Networks,
    OnPolicyParams,
    Settings,
    UpdateResult,
)
from rl_training.algorithms.optimizer import Optimizer, make_rule, mean_metrics
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.errors import EnvironmentSetupError, Problem
from rl_training.experiment.schedules import PositiveSchedule, Schedule
from rl_training.experiment.validation import (
    Flag,
    Float,
    NonNegativeFloat,
    PositiveInt,
    config_error,
)
from rl_training.packing import PackedActions
from rl_training.policies.acting import Actor, SamplingActor
from rl_training.policies.actor_critic import ActorCritic, OutputGradients
from rl_training.policies.base import Array, PolicyOutput
from rl_training.policies.features import RewardNormalizer
from rl_training.streams import make_stream


class PPOParams(OnPolicyParams):
    """The parameters of PPO. The defaults are those of the paper's continuous-control experiments."""

    uses_action_masks = True
    num_steps: PositiveInt = 2048
    update_epochs: PositiveInt = 10
    """Passes over each rollout."""
    minibatch_size: PositiveInt = 64
    """Transitions per gradient step."""
    clip_coef: PositiveSchedule = Schedule(start=0.2)
    """How far the probability ratio may move from 1."""
    clip_vf_coef: Annotated[Float, Field(gt=0.0)] | None = None
    """How far a value may move from the old one; none: unclipped."""
    ent_coef: NonNegativeFloat = 0.0
    """Weight of the entropy bonus, which keeps the policy exploring."""
    vf_coef: NonNegativeFloat = 0.5
    """Weight of half the squared error of the values; Stable-Baselines3 takes the whole, so its 0.5 is 1.0 here."""
    normalize_advantages: Flag = True
    """Whether advantages are brought to mean 0 and deviation 1 within each minibatch."""
    max_grad_norm: Annotated[Float, Field(gt=0.0)] = 0.5
    """Largest norm of a gradient; larger gradients are scaled down to it."""
    target_kl: Annotated[Float, Field(gt=0.0)] | None = None
    """Stop a rollout's updates once the approximate KL divergence exceeds 1.5 times this; none: never."""
    log_std_init: Float = 0.0
    """Initial log standard deviation of continuous actions."""
    noise_correlation: Correlation = 0.0
    """Correlation of the exploration noise between two steps, for continuous actions; 0: new noise at every step."""
    adam_eps: Annotated[Float, Field(gt=0.0)] = 1e-5
    """Epsilon of the optimizer, whichever it is."""

    def planned_gradient_steps(self, total_timesteps: int, num_envs: int) -> int:
        """Return the number of gradient steps: the minibatches of all epochs of all rollouts."""
        rollout = self.num_steps * num_envs
        rollouts, minibatches = -(-total_timesteps // rollout), -(-rollout // self.minibatch_size)  # rounded up
        return rollouts * self.update_epochs * minibatches

    @property
    def rows_per_step(self) -> int:
        """The size of a minibatch."""
        return self.minibatch_size

    def plan_details(self, rollout_size: int) -> dict[str, int | str]:
        """Return the minibatches of an epoch, and whether `target_kl` may end the updates early."""
        early_stop: dict[str, int | str] = {"gradient steps are": "at most (target_kl)"} if self.target_kl else {}
        return {
            "minibatches per epoch": -(-rollout_size // self.minibatch_size),
            "last minibatch": rollout_size % self.minibatch_size or self.minibatch_size,
            **early_stop,
        }

    def check(self, num_envs: int) -> None:
        """Also refuse a minibatch that no rollout could fill."""
        super().check(num_envs)
        total = self.num_steps * num_envs
        if self.minibatch_size > total:
            text = (
                f"algo_kwargs.minibatch_size={self.minibatch_size}: exceeds the rollout of {total} "
                f"({self.num_steps} steps x {num_envs} envs); lower it, or raise num_steps or num_envs"
            )
            raise config_error([Problem(("algo_kwargs", "minibatch_size"), text)])


_BULK_ROWS, _BULK_FEATURES = 16_384, 2**24  # most that is evaluated at once after a rollout, to limit memory

LOSS_METRICS = ("loss", "policy_gradient_loss", "value_loss", "entropy_loss", "approx_kl", "clip_fraction")
_APPROX_KL = LOSS_METRICS.index("approx_kl")


def normalize(advantages: Tensor) -> Tensor:
    """Bring advantages to mean 0 and deviation 1; a single one has no deviation and stays as it is."""
    if len(advantages) == 1:
        return advantages
    return (advantages - advantages.mean()) / (advantages.std() + 1e-8)


def clipped_policy_loss(ratios: Tensor, advantages: Tensor, clip_coef: Any) -> tuple[Tensor, Tensor]:
    """Compute the negated clipped surrogate (equation 7) of every transition, and its gradient for the log-prob.

    `clip_coef` is a number, or a scalar tensor in compiled updates.
    """
    free = ratios * advantages
    clipped = ratios.clamp(1.0 - clip_coef, 1.0 + clip_coef) * advantages
    # A ratio is its own derivative by the log-prob; where the clipped surrogate is the lower one, it is constant.
    return -torch.minimum(free, clipped), torch.where(free <= clipped, -free, 0.0)


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, clip_vf_coef: float | None
) -> tuple[Tensor, Tensor]:
    """Compute half the squared error of every value, and its gradient.

    With `clip_vf_coef`, the error is the larger of two: that of the value, and that of the value clipped around the
    old one.
    """
    errors = values - returns
    if clip_vf_coef is None:
        return 0.5 * errors.square(), errors
    moves = values - old_values
    limited = old_values + moves.clamp(-clip_vf_coef, clip_vf_coef) - returns
    # Where the limited error is the worse one and the limit holds, the value itself no longer matters.
    constant = (limited.abs() > errors.abs()) & (moves.abs() > clip_vf_coef)
    return 0.5 * torch.maximum(errors.square(), limited.square()), torch.where(constant, 0.0, errors)


def ppo_loss(
    output: PolicyOutput, batch: Batch, params: PPOParams, clip_coef: float | Tensor
) -> tuple[Tensor, OutputGradients]:
    """Compute `LOSS_METRICS` of one minibatch (equation 9), and the gradients for the policy's output."""
    advantages = normalize(batch["advantages"]) if params.normalize_advantages else batch["advantages"]
    log_ratios = output.logprobs - batch["logprobs"]
    ratios = log_ratios.exp()
    policy_losses, policy_gradients = clipped_policy_loss(ratios, advantages, clip_coef)
    value_losses, value_gradients = value_loss(output.values, batch["values"], batch["returns"], params.clip_vf_coef)
    totals = policy_losses - params.ent_coef * output.entropy + params.vf_coef * value_losses
    kl_divergences = ratios - 1.0 - log_ratios  # Schulman's low-variance estimator
    clipped = ((ratios - 1.0).abs() > clip_coef).float()
    metrics = torch.stack([totals, policy_losses, value_losses, -output.entropy, kl_divergences, clipped]).mean(dim=1)
    size = len(ratios)
    return metrics, OutputGradients(
        policy_gradients / size, value_gradients * (params.vf_coef / size), -params.ent_coef / size
    )


def explained_variance(values: Tensor, returns: Tensor) -> float:
    """Return 1 if the values predict the returns exactly, and 0 or less if a constant predicts them as well or better.

    If the returns are constant, return 0.
    """
    variance = returns.var(correction=0)
    if variance == 0.0:
        return 0.0
    return float(1.0 - (returns - values).var(correction=0) / variance)


class AdvantageEstimator:
    """Computes values, log-probs and advantages of whole rollouts, with the same code as the update."""

    def __init__(self, policy: ActorCritic, params: OnPolicyParams) -> None:
        self._policy, self._params = policy, params
        self.rewards = RewardNormalizer(params.gamma, enabled=params.normalize_rewards)

    @torch.inference_mode()
    def compute(self, rollout: RolloutBuffer, last_obs: Array) -> None:
        """Fill in values, log-probs, advantages and returns; `last_obs` [env, ...] follows the newest step."""
        policy, params = self._policy, self._policy.params.tensors
        device = policy.params.flat.device
        steps = max(1, min(_BULK_ROWS, _BULK_FEATURES // policy.encoder.size) // rollout.num_envs)
        for part in (slice(start, start + steps) for start in range(0, rollout.num_steps, steps)):
            obs, actions = rollout.obs[part].flatten(0, 1).to(device), rollout.actions[part].flatten(0, 1).to(device)
            output = policy.score(params, policy.encoder.encode_tensor(obs), actions, policy.masks(obs))
            rollout.values[part] = output.values.view(-1, rollout.num_envs)
            rollout.logprobs[part] = output.logprobs.view(-1, rollout.num_envs)
        following = torch.as_tensor(last_obs).to(rollout.obs.dtype)
        beyond = torch.cat([following, rollout.truncated_last_obs().to(following.device)]).to(device)
        values = policy.values(params, policy.encoder.encode_tensor(beyond)).to(rollout.device)
        rollout.bootstrap_values[rollout.truncated] = values[rollout.num_envs :]
        rewards = rollout.rewards.sign() if self._params.clip_rewards else rollout.rewards
        self.rewards.update(rewards.cpu().numpy(), rollout.dones.cpu().numpy())
        rollout.compute_returns_and_advantages(
            last_values=values[: rollout.num_envs],
            gamma=self._params.gamma,
            gae_lambda=self._params.gae_lambda,
            rewards=self.rewards.apply(rewards),
        )


class PPOLearner:
    """Learns from rollouts: advantages first, then epochs of minibatches."""

    def __init__(self, params: PPOParams, setup: LearnerSetup) -> None:
        continuous = isinstance(setup.action_space, spaces.Box) and not isinstance(setup.action_space, PackedActions)
        if params.noise_correlation and not continuous:
            raise EnvironmentSetupError(
                f"noise_correlation={params.noise_correlation} needs continuous actions, the action space is "
                f"{setup.action_space}; leave it out"
            )
        self.params = params
        self.policy = ActorCritic(
            setup.observation_space,
            setup.action_space,
            params.network_spec(setup.device),
            setup.seed,
            log_std=params.log_std_init,
        )
        self._advantages = AdvantageEstimator(self.policy, params)
        self.total_timesteps = setup.total_timesteps
        self._setup = setup
        self._stream = make_stream(setup.seed, "minibatches")
        self._optimizer = Optimizer(
            {"policy": self.policy.params},
            self._gradients,
            make_rule(params, params.adam_eps),
            max_norm=params.max_grad_norm,
            compile_as=setup.compile_as,
        )

    def make_actor(self, envs: Sequence[int]) -> Actor:
        """Return an actor that only picks actions; values and log-probs follow in `compute_advantages`."""
        noise = self._setup.noise(self.policy.distribution.noise, envs, self.params.noise_correlation)
        return SamplingActor(self.policy, noise)

    def compute_advantages(self, rollout: RolloutBuffer, last_obs: Array) -> None:
        """Fill in values, log-probs, advantages and returns; `last_obs` [env, ...] follows the newest step."""
        self._advantages.compute(rollout, last_obs)

    def update(self, rollout: RolloutBuffer, step: int) -> UpdateResult:
        """Learn from the rollout that began at env step `step`, in epochs of minibatches."""
        learning_rate = self.params.learning_rate.value(step, self.total_timesteps)
        clip_coef = self.params.clip_coef.value(step, self.total_timesteps)
        settings = {"learning_rate": learning_rate, "clip_coef": clip_coef}
        limit = math.inf if self.params.target_kl is None else 1.5 * self.params.target_kl
        applied: list[list[float]] = []
        for batch in self._minibatches(rollout):
            applied.append(self._optimizer.apply(GradientStep("minibatch", batch, settings)).metrics)
            if applied[-1][_APPROX_KL] > limit:
                break
        self.policy.params.sync_host()
        # Not earlier: an observation must have the same features while a rollout is collected, scored and learnt from.
        self.policy.encoder.observe(rollout.obs.flatten(0, 1).cpu().numpy())
        self.policy.encoder.refresh()
        metrics = mean_metrics((*LOSS_METRICS, "grad_norm"), applied)
        metrics |= {"learning_rate": learning_rate, "clip_range": clip_coef}
        metrics["explained_variance"] = explained_variance(rollout.values, rollout.returns)
        return UpdateResult(metrics, num_gradient_steps=len(applied))

    def _minibatches(self, rollout: RolloutBuffer) -> Iterator[Batch]:
        """Yield the minibatches of all epochs on the learner's device.

        `obs` are already encoded as features. There are `masks` if the policy uses masks.
        """
        device = self.policy.params.flat.device
        size = self.params.minibatch_size
        for _ in range(self.params.update_epochs):
            for batch in rollout.iter_minibatches(minibatch_size=size, shuffle=True, generator=self._stream):
                moved = {name: field.to(device) for name, field in batch.items()}
                masks = self.policy.masks(moved["obs"])
                if masks is not None:
                    moved["masks"] = masks
                moved["obs"] = self.policy.encoder.encode_tensor(moved["obs"])
                yield moved

    def _gradients(self, networks: Networks, batch: Batch, settings: Settings) -> LossGradients:
        params = networks["policy"]
        evaluation = self.policy.evaluate(params, batch["obs"], batch["actions"], batch.get("masks"))
        metrics, outer = ppo_loss(evaluation.output, batch, self.params, settings["clip_coef"])
        return LossGradients(self.policy.gradients(params, evaluation, outer), metrics)

    @property
    def packages(self) -> list[str] | None:
        """The names of the compiled packages of the gradient step."""
        return self._optimizer.packages

    def apply(self, step: GradientStep) -> list[float]:
        """Apply one gradient step; return `LOSS_METRICS` and the gradient's norm."""
        return self._optimizer.apply(step).metrics

    def state_dict(self) -> dict[str, Any]:
        """Return the policy, the optimizer state and the stream of minibatches."""
        return {
            "policy": self.policy.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "rewards": self._advantages.rewards.state_dict(),
            "minibatch_stream": self._stream.bit_generator.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        self.policy.load_state_dict(state["policy"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._advantages.rewards.load_state_dict(state["rewards"])
        self._stream.bit_generator.state = state["minibatch_stream"]
