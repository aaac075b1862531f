"""Deep Q-learning (Mnih et al. 2015) and its options: double, dueling, n-step, prioritised replay."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from rl_training.algorithms.base import (
    Batch,
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
from rl_training.algorithms.optimizer import AppliedStep, Optimizer, make_rule, mean_metrics
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.sampling import PrioritizedSampler, Sampler, UniformSampler, tree_bytes
from rl_training.errors import Problem
from rl_training.experiment.schedules import PositiveSchedule, Schedule, crosses
from rl_training.experiment.validation import Flag, Float, PositiveInt, UnitFloat, config_error
from rl_training.policies.acting import Actor, Draws
from rl_training.policies.base import Array
from rl_training.policies.distributions import ILLEGAL
from rl_training.policies.networks.spec import NetworkSpec
from rl_training.policies.params import pack_policy, unpack_policy
from rl_training.policies.q_network import QNetwork
from rl_training.streams import make_torch_generator


class DQNParams(OffPolicyParams):
    """The parameters of this algorithm, in addition to those of every off-policy algorithm."""

    uses_action_masks = True
    buffer_capacity: PositiveInt = 100_000
    batch_size: PositiveInt = 64
    hidden_sizes: HiddenSizes = (128, 128)
    learning_rate: PositiveSchedule = Schedule(start=1e-3)
    target_update_interval: PositiveInt = 500
    """Env steps between two synchronisations of the target network."""
    tau: Annotated[Float, Field(gt=0.0, le=1.0)] = 1.0
    """How far a synchronisation moves the target towards the online network; 1: a copy."""
    epsilon_start: UnitFloat = 1.0
    """Share of random actions at the start."""
    epsilon_end: UnitFloat = 0.05
    """Share of random actions after `exploration_fraction` of the budget."""
    exploration_fraction: UnitFloat = 0.2
    """Share of the budget over which epsilon falls."""
    max_grad_norm: Annotated[Float, Field(gt=0.0)] = 10.0
    """Largest norm of a gradient; larger gradients are scaled down to it."""
    double: Flag = False
    """Choose the next action with the online network, and evaluate it with the target (van Hasselt et al. 2016)."""
    dueling: Flag = False
    """Estimate state values and advantages separately (Wang et al. 2016)."""
    shared_trunk: Flag | None = None
    """Whether the two parts of a dueling network share the encoder and all hidden layers.

    None: if the encoder looks at images.
    """
    prioritized: Flag = False
    """Replay transitions with large errors more often (Schaul et al. 2016)."""
    priority_alpha: UnitFloat = 0.6
    """Strength of the prioritisation; 0: uniform."""
    priority_beta: PositiveSchedule = Schedule(schedule="linear", start=0.4, end=1.0)
    """Strength of the importance weights."""

    def network_spec(self, device: torch.device) -> NetworkSpec:
        """Return the settings that all networks of the algorithm share."""
        return replace(super().network_spec(device), shared_trunk=self.shared_trunk)

    def check(self, num_envs: int) -> None:
        """Also refuse a shared trunk of a network that has only one part."""
        super().check(num_envs)
        if self.shared_trunk and not self.dueling:
            text = "algo_kwargs.shared_trunk=True: only the two parts of a dueling network share a trunk; add dueling"
            raise config_error([Problem(("algo_kwargs", "shared_trunk"), text)])

    def explain_ineffective(self, total_timesteps: int) -> dict[str, str]:
        """Also name settings of a prioritised replay that is switched off."""
        found = super().explain_ineffective(total_timesteps)
        for name in ("priority_alpha", "priority_beta"):
            if not self.prioritized and getattr(self, name) != type(self).model_fields[name].default:
                found[name] = "has no effect without prioritized"
        return found

    def scheduled_names(self) -> list[str]:
        """Return the names of the scheduled parameters in use, and `exploration_fraction` if epsilon changes."""
        names = [name for name in super().scheduled_names() if name != "priority_beta" or self.prioritized]
        explores = self.exploration_fraction > 0.0 and self.epsilon_start != self.epsilon_end
        return [*names, "exploration_fraction"] if explores else names

    def make_sampler(self, stream: np.random.Generator) -> Sampler:
        """Return a uniform or a prioritised sampler."""
        if not self.prioritized:
            return UniformSampler(stream)
        return PrioritizedSampler(self.buffer_capacity, self.priority_alpha, stream)

    @property
    def sampler_bytes(self) -> int:
        """The memory of the priorities in bytes."""
        return tree_bytes(self.buffer_capacity) if self.prioritized else 0

    def epsilon(self, step: int, total_steps: int) -> float:
        """Return the share of random actions at env step `step`."""
        if self.exploration_fraction == 0.0:
            return self.epsilon_end
        progress = min(step / (self.exploration_fraction * total_steps), 1.0)
        return self.epsilon_start + progress * (self.epsilon_end - self.epsilon_start)


def q_targets(batch: Batch, target_values: Tensor, choosing_values: Tensor | None = None) -> Tensor:
    """Compute the reward plus the discounted target value of the best next action, [batch].

    The best action has the highest of the `choosing_values` if they are given, else of the target values. Actions that
    `next_masks` forbids are never the best.
    """
    if "next_masks" in batch:
        target_values = torch.where(batch["next_masks"], target_values, ILLEGAL)
        if choosing_values is not None:
            choosing_values = torch.where(batch["next_masks"], choosing_values, ILLEGAL)
    if choosing_values is None:
        best = target_values.amax(dim=1)
    else:
        best = target_values.gather(1, choosing_values.argmax(dim=1, keepdim=True)).squeeze(1)
    return torch.addcmul(batch["rewards"], batch["discounts"], best)


def huber_loss(errors: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the weighted mean of losses that are quadratic up to 1 and linear beyond, and its gradient."""
    limited = errors.clamp(-1.0, 1.0)
    gradients = weights * limited / len(errors)
    return torch.dot(gradients, errors - 0.5 * limited), gradients


class EpsilonGreedyActor:
    """Acts uniformly at random in the warm-up, then greedily except with probability epsilon."""

    def __init__(self, policy: QNetwork, params: DQNParams, total_timesteps: int, draws: Draws) -> None:
        self._policy, self._params, self._total_timesteps = policy, params, total_timesteps
        self._draws = draws  # [env, 2], uniform: whether to explore, and how
        self.to_env = policy.to_env
        self.begin_episodes = draws.begin_episodes
        self.state_dict = draws.state_dict
        self.load_state_dict = draws.load_state_dict

    def act(self, obs: Array, step: int) -> Array:
        """Return actions for observations [env, ...] at env step `step`, counted from 0."""
        chances, choices = self._draws.at(step).T
        epsilon = 1.0
        if step >= self._params.learning_starts:
            epsilon = self._params.epsilon(step, self._total_timesteps)
        explores = chances < epsilon
        num_exploring = np.count_nonzero(explores)  # `any` and `all` take several times as long
        if num_exploring == 0:
            return self._policy.greedy(obs)
        uniform = self._policy.choose(obs, choices)
        return uniform if num_exploring == len(obs) else np.where(explores, uniform, self._policy.greedy(obs))


class DQNLearner:
    """Learns from replayed transitions towards a target network."""

    def __init__(self, params: DQNParams, setup: LearnerSetup) -> None:
        network = params.network_spec(setup.device)
        self.params = params
        self.policy = policy = QNetwork(setup.observation_space, setup.action_space, network, dueling=params.dueling)
        policy.initialise(make_torch_generator(setup.seed, "initialisation"))
        self.total_timesteps = setup.total_timesteps
        self._setup = setup
        self._target = policy.params.twin()
        networks = {"online": policy.params, "target": self._target}
        self._optimizer = Optimizer(
            networks,
            self._gradients,
            make_rule(params),
            max_norm=params.max_grad_norm,
            compile_as=setup.compile_as,
        )
        self.normalizer = ExperienceNormalizer(policy.encoder, params)
        self._updated_at = 0  # env step of the newest update

    def make_actor(self, envs: Sequence[int]) -> Actor:
        """Return an epsilon-greedy actor."""
        draws = self._setup.draws("uniform", 2, "acting", envs)
        return EpsilonGreedyActor(self.policy, self.params, self.total_timesteps, draws)

    def update(self, replay: ReplayBuffer, step: int, num_gradient_steps: int) -> UpdateResult:
        """Learn from replayed batches at env step `step`, and synchronise the target when it is due."""
        learning_rate = self.params.learning_rate.value(step, self.total_timesteps)
        if isinstance(replay.sampler, PrioritizedSampler):
            replay.sampler.beta = self.params.priority_beta.value(step, self.total_timesteps)
        applied = [self._learn(replay, learning_rate) for _ in range(num_gradient_steps)]
        self.policy.params.sync_host()
        if crosses(self.params.target_update_interval, self._updated_at, step):
            self._target.flat.lerp_(self.policy.params.flat, self.params.tau)
        self._updated_at = step
        metrics = mean_metrics(("loss", "q_mean", "grad_norm"), applied)
        metrics |= {"learning_rate": learning_rate, "epsilon": self.params.epsilon(step, self.total_timesteps)}
        return UpdateResult(metrics, num_gradient_steps)

    def _learn(self, replay: ReplayBuffer, learning_rate: float) -> list[float]:
        batch = self.normalizer.prepare(replay.sample(self.params.batch_size), self._target.flat.device)
        applied = self.apply(GradientStep("temporal-difference step", batch, {"learning_rate": learning_rate}))
        if isinstance(replay.sampler, PrioritizedSampler) and applied.errors is not None:
            priorities = applied.errors.abs().double().cpu().numpy() + 1e-6
            replay.sampler.update(batch["indices"].cpu().numpy(), priorities)
        return applied.metrics

    def _gradients(self, networks: Networks, batch: Batch, settings: Settings) -> LossGradients:
        del settings
        network, online = self.policy, networks["online"]
        target_values = network.q_values(networks["target"], batch["next_obs"])
        choosing = network.q_values(online, batch["next_obs"]) if self.params.double else None
        actions = batch["actions"].unsqueeze(1)
        trace = network.trace(online, batch["obs"])
        values = trace.values.gather(1, actions).squeeze(1)
        errors = values - q_targets(batch, target_values, choosing)
        loss, chosen = huber_loss(errors, batch["weights"])
        outer = torch.zeros_like(trace.values).scatter_(1, actions, chosen.unsqueeze(1))
        metrics = torch.stack([loss, values.mean()])
        return LossGradients(network.gradients(online, trace, outer), metrics, errors)

    @property
    def packages(self) -> list[str] | None:
        """The names of the compiled packages of the gradient step."""
        return self._optimizer.packages

    def apply(self, step: GradientStep) -> AppliedStep:
        """Apply one gradient step; its metrics are the loss, the mean value and the gradient's norm."""
        return self._optimizer.apply(step)

    def state_dict(self) -> dict[str, Any]:
        """Return both networks, the optimizer state, and the env step of the newest update."""
        return {
            "policy": pack_policy(self.policy.params, self.policy.encoder),
            "target": self._target.flat.cpu().clone(),
            "optimizer": self._optimizer.state_dict(),
            "rewards": self.normalizer.rewards.state_dict(),
            "updated_at": self._updated_at,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        unpack_policy(state["policy"], self.policy.params, self.policy.encoder)
        self._target.set(state["target"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.normalizer.rewards.load_state_dict(state["rewards"])
        self._updated_at = int(state["updated_at"])
