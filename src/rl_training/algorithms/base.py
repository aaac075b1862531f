"""The protocols of learners, and the parameters that all algorithms share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from gymnasium import spaces
from pydantic import AfterValidator, BeforeValidator, Field
from torch import Tensor

from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.data.sampling import Sampler, UniformSampler
from rl_training.errors import Problem
from rl_training.experiment.config import PlainDict
from rl_training.experiment.schedules import PositiveSchedule, Schedule
from rl_training.experiment.validation import Count, Flag, Float, PositiveInt, StrictModel, UnitFloat, config_error
from rl_training.plugins import is_object_path, object_path
from rl_training.policies.acting import Actor, CorrelatedDraws, Draws, JoinedDraws, Kind, Noise, NoiseParts
from rl_training.policies.base import Array, Policy
from rl_training.policies.features import Encoder, RewardNormalizer
from rl_training.policies.networks.encoders import BUILT_IN_ENCODERS, is_built_in
from rl_training.policies.networks.layers import Activation
from rl_training.policies.networks.module import Precision
from rl_training.policies.networks.spec import NetworkSpec
from rl_training.policies.params import HostedParams


@dataclass(frozen=True)
class UpdateResult:
    """The result of one call of a learner's `update`."""

    metrics: dict[str, int | float]
    num_gradient_steps: int


@dataclass(frozen=True)
class LearnerSetup:
    """The spaces, the device and the seed that a run gives to its learner."""

    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    device: torch.device
    seed: int
    num_envs: int
    total_timesteps: int
    """The budget that schedules refer to."""
    compile_as: str | None = None
    """A text that names everything compiled updates depend on, besides sizes and code; none: updates run eagerly."""

    def draws(self, kind: Kind, size: int, purpose: str, envs: Sequence[int]) -> Draws:
        """Return random numbers for acting in these envs."""
        return Draws(kind, size, seed=self.seed, purpose=purpose, num_envs=self.num_envs, envs=envs)

    def noise(self, parts: NoiseParts, envs: Sequence[int], correlation: float = 0.0) -> Noise:
        """Return the noise of a policy that acts in these envs; only noise of a single kind can be correlated."""
        if len(parts) > 1:
            return JoinedDraws([self.draws(*part, f"acting.{index}", envs) for index, part in enumerate(parts)])
        ((kind, size),) = parts
        draws = self.draws(kind, size, "acting", envs)
        return CorrelatedDraws(draws, correlation, (len(envs), size)) if correlation else draws


Batch = dict[str, Tensor]
Correlation = Annotated[Float, Field(ge=0.0, lt=1.0)]
HiddenSizes = Annotated[tuple[PositiveInt, ...], Field(max_length=1_000)]


def _check_encoder(name: str) -> str:
    if not is_built_in(name) and not is_object_path(name):
        raise ValueError(f"allowed: {', '.join(BUILT_IN_ENCODERS)}, or package.module:Name of your own encoder")
    return name


EncoderName = Annotated[str, BeforeValidator(object_path), AfterValidator(_check_encoder)]


Settings = Mapping[str, float | Tensor]
"""Numbers that a gradient step depends on besides its batch; scalar tensors in compiled updates."""
Networks = Mapping[str, Mapping[str, Tensor]]
"""The named parameters of every network that a loss depends on."""


class LossGradients(NamedTuple):
    """The gradients of a loss with respect to the parameters of one network, and the numbers to log."""

    gradients: Mapping[str, Tensor]
    metrics: Tensor
    """The numbers to log, the loss first."""
    errors: Tensor | None = None
    """One error per transition, if replay priorities depend on them."""


ComputeGradients = Callable[[Networks, Batch, Settings], LossGradients]
"""A function of its arguments only, which computes the gradients of a loss for the parameters of the first network."""


@dataclass(frozen=True)
class GradientStep:
    """One gradient step, ready to be applied: its name, its batch and its settings."""

    name: str
    batch: Batch
    settings: dict[str, float]


class Learner(Protocol):
    """The weights, the optimizer and the random streams of one algorithm."""

    @property
    def policy(self) -> Policy:
        """The policy with the newest parameters."""

    def make_actor(self, envs: Sequence[int]) -> Actor:
        """Return an actor for the envs with these indices; it always uses the learner's newest parameters."""

    def state_dict(self) -> dict[str, Any]:
        """Return everything that changes while learning."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""

    def apply(self, step: GradientStep) -> Any:
        """Apply one gradient step and return its metrics.

        If its loss or its gradient is not finite, change no weight and raise `NonFiniteUpdateError`.
        """


@runtime_checkable
class CompilingLearner(Protocol):
    """A learner whose updates can be compiled."""

    @property
    def packages(self) -> list[str] | None:
        """The names of the compiled packages that were used so far; none when updates run eagerly."""


class LearnerParams(StrictModel):
    """The parameters of every algorithm, which `algo_kwargs` may hold."""

    uses_action_masks: ClassVar[bool] = False
    """Whether the algorithm never takes an action that a mask forbids."""
    hidden_sizes: HiddenSizes = (64, 64)
    """Hidden layers of each network, behind the encoder; empty: one linear layer from the encoder to the outputs."""
    activation: Activation = "tanh"
    """The activation after each hidden layer."""
    layer_norm: Flag = False
    """LayerNorm between each hidden layer and its activation."""
    encoder: EncoderName = "auto"
    """What turns observations into the inputs of the hidden layers.

    `mlp` flattens them. `nature_cnn`, `impala_cnn` and `small_cnn` put such a CNN behind every image. `auto` flattens
    observations without images, and otherwise uses `nature_cnn` for images of at least 36x36 pixels and `small_cnn`
    for smaller ones. `package.module:Name` is a `torch.nn.Module` of your own.
    """
    encoder_kwargs: PlainDict = Field(default_factory=dict)
    """Arguments of your own encoder, after the observation space."""
    precision: Precision = "float32"
    """The precision of products and convolutions in updates; parameters, losses, optimizer and acting are float32."""
    learning_rate: PositiveSchedule = Schedule(start=3e-4)
    """Size of a gradient step: a number or a schedule."""
    optimizer: Literal["adam", "adamw", "rmsprop"] = "adam"
    """The update rule."""
    weight_decay: Annotated[Float, Field(ge=0.0, le=1e6)] = 0.0  # squares of gradients must not overflow
    """Strength of weight decay: adam and rmsprop add it to the gradient, adamw applies it to the parameters."""
    gamma: UnitFloat = 0.99
    """Discount factor."""
    normalize_obs: Flag = False
    """Whether observations are normalised by their running mean and deviation, and clipped at 10 deviations."""
    normalize_rewards: Flag = False
    """Whether rewards are divided by the running deviation of the discounted return, clipped at 10; logs stay raw."""

    clip_rewards: Flag = False
    """Whether rewards are replaced by their signs, before any normalisation; logged returns stay raw."""

    def planned_gradient_steps(self, total_timesteps: int, num_envs: int) -> int:
        """Estimate how many gradient steps a run with this budget takes."""
        del total_timesteps, num_envs
        return 0

    @property
    def rows_per_step(self) -> int:
        """The number of transitions that one gradient step learns from."""
        return 1

    @property
    def graphs(self) -> int:
        """The number of different gradient steps, each of which is compiled separately."""
        return 1

    def check(self, num_envs: int) -> None:
        """Refuse parameters that contradict each other, or that do not work with this number of envs."""
        del num_envs
        if self.encoder_kwargs and is_built_in(self.encoder):
            text = f"algo_kwargs.encoder_kwargs={self.encoder_kwargs}: the encoder {self.encoder} takes no arguments"
            raise config_error([Problem(("algo_kwargs", "encoder_kwargs"), text)])

    def explain_ineffective(self, total_timesteps: int) -> dict[str, str]:
        """Return the parameters that have no effect, or an unexpected one, in a run with this budget, and why."""
        del total_timesteps
        return {}

    def scheduled_names(self) -> list[str]:
        """Return the names of the parameters whose values depend on the planned budget."""
        return [name for name, value in self if isinstance(value, Schedule) and value.schedule != "constant"]

    def network_spec(self, device: torch.device) -> NetworkSpec:
        """Return the settings that all networks of the algorithm share."""
        return NetworkSpec(
            self.hidden_sizes,
            self.activation,
            device,
            normalize_obs=self.normalize_obs,
            layer_norm=self.layer_norm,
            encoder=self.encoder,
            encoder_kwargs=self.encoder_kwargs,
            precision=self.precision,
        )

    @property
    def widest_layer(self) -> int:
        """The size of the largest hidden layer, 1 if there is none."""
        return self.network_spec(torch.device("cpu")).widest_layer


class OnPolicyParams(LearnerParams):
    """The parameters of every algorithm that learns from rollouts."""

    num_steps: PositiveInt = 128
    """Steps per env in one rollout."""
    gae_lambda: UnitFloat = 0.95
    """How far advantages look ahead: 0 for one step, 1 for the whole rollout."""
    actor_hidden_sizes: HiddenSizes | None = None
    """Hidden layers of the actor; none: `hidden_sizes`. Behind a shared trunk, these are further layers."""
    critic_hidden_sizes: HiddenSizes | None = None
    """Hidden layers of the critic; none: `hidden_sizes`. Behind a shared trunk, these are further layers."""
    shared_trunk: Flag | None = None
    """Whether actor and critic share the encoder and `hidden_sizes`; none: if the encoder looks at images."""

    def network_spec(self, device: torch.device) -> NetworkSpec:
        """Return the settings that all networks of the algorithm share."""
        return replace(
            super().network_spec(device),
            actor_hidden_sizes=self.actor_hidden_sizes,
            critic_hidden_sizes=self.critic_hidden_sizes,
            shared_trunk=self.shared_trunk,
        )

    def plan_details(self, rollout_size: int) -> dict[str, int | str]:
        """Return the details of a plan about the updates on one rollout of this many transitions."""
        del rollout_size
        return {}


class OffPolicyParams(LearnerParams):
    """The parameters of every algorithm that learns from replayed transitions; counts are env steps of all envs."""

    activation: Activation = "relu"
    buffer_capacity: PositiveInt = 1_000_000
    """The number of transitions that are kept."""
    batch_size: PositiveInt = 256
    """Transitions per gradient step."""
    learning_starts: Count = 1_000
    """Env steps with uniform actions before the first update."""
    train_frequency: PositiveInt = 1
    """Env steps between two updates."""
    gradient_steps: PositiveInt = 1
    """Gradient steps per update."""
    n_step: PositiveInt = 1
    """Steps whose rewards are summed before the target's value."""

    def planned_gradient_steps(self, total_timesteps: int, num_envs: int) -> int:
        """Return the number of gradient steps that all env steps after the warm-up lead to."""
        del num_envs
        return max(0, total_timesteps - self.learning_starts) // self.train_frequency * self.gradient_steps

    def explain_ineffective(self, total_timesteps: int) -> dict[str, str]:
        """Also name a warm-up that lasts until the end of the run."""
        found = super().explain_ineffective(total_timesteps)
        if self.learning_starts >= total_timesteps:
            found["learning_starts"] = f"{self.learning_starts:,}: nothing is learned in {total_timesteps:,} steps"
        return found

    @property
    def rows_per_step(self) -> int:
        """The size of a replayed batch."""
        return self.batch_size

    @property
    def sampler_bytes(self) -> int:
        """The memory of the sampler in bytes, besides the stored transitions."""
        return 0

    def make_sampler(self, stream: np.random.Generator) -> Sampler:
        """Return the sampler that draws batches from the replay buffer."""
        return UniformSampler(stream)

    def check(self, num_envs: int) -> None:
        """Also refuse a replay buffer that cannot hold a batch, or one step of all envs."""
        super().check(num_envs)
        smallest = max(self.batch_size, num_envs)
        if self.buffer_capacity < smallest:
            text = (
                f"algo_kwargs.buffer_capacity={self.buffer_capacity}: must hold a batch ({self.batch_size}) "
                f"and one step of all envs ({num_envs})"
            )
            raise config_error([Problem(("algo_kwargs", "buffer_capacity"), text)])


class StoredPolicy(Policy, Protocol):
    """A policy that also has what storing its transitions needs: its encoder, and the shape and type of its actions."""

    encoder: Encoder
    params: HostedParams
    action_shape: tuple[int, ...]
    action_dtype: torch.dtype


class ExperienceNormalizer:
    """The running normalisation of observations and rewards for an off-policy learner."""

    def __init__(self, encoder: Encoder, params: LearnerParams) -> None:
        self._encoder = encoder
        self._clips_rewards = params.clip_rewards
        self.rewards = RewardNormalizer(params.gamma, enabled=params.normalize_rewards)

    def clip(self, rewards: Array) -> Array:
        """Return the rewards as the learner stores them: raw, or only their signs."""
        return np.sign(rewards) if self._clips_rewards else rewards

    def observe(self, obs: Array, rewards: Array, ended: Array) -> None:
        """Update the statistics with one step of every env; new statistics of observations apply after `refresh`."""
        self._encoder.observe(obs)
        self.rewards.update(rewards[None], ended[None])

    def refresh(self) -> None:
        """Normalise observations with the newest statistics from now on."""
        self._encoder.refresh()

    def prepare(self, batch: Batch, device: torch.device) -> Batch:
        """Move a replayed batch to the learner's device, encode its observations and normalise its rewards."""
        if device.type != "cpu":
            batch = {name: field.to(device) for name, field in batch.items()}
        next_masks = self._encoder.masks_tensor(batch["next_obs"])
        if next_masks is not None:
            batch["next_masks"] = next_masks
        for name in ("obs", "next_obs"):
            batch[name] = self._encoder.encode_tensor(batch[name])
        batch["rewards"] = self.rewards.apply(batch["rewards"])
        return batch


class OnPolicyLearner(Learner, Protocol):
    """A learner that learns once from each rollout."""

    @property
    def policy(self) -> StoredPolicy:
        """The policy with the newest parameters."""

    @property
    def params(self) -> OnPolicyParams:
        """The parameters, among them the size of rollouts."""

    def compute_advantages(self, rollout: RolloutBuffer, last_obs: Array) -> None:
        """Fill in values, log-probs, advantages and returns; `last_obs` [env, ...] follows the newest step."""

    def update(self, rollout: RolloutBuffer, step: int) -> UpdateResult:
        """Learn from the rollout that began at env step `step`."""


class OffPolicyLearner(Learner, Protocol):
    """A learner that learns from replayed transitions."""

    @property
    def policy(self) -> StoredPolicy:
        """The policy with the newest parameters."""

    @property
    def params(self) -> OffPolicyParams:
        """The parameters, among them how often it learns."""

    @property
    def normalizer(self) -> ExperienceNormalizer:
        """The running statistics, which every step updates."""

    def update(self, replay: ReplayBuffer, step: int, num_gradient_steps: int) -> UpdateResult:
        """Learn from the replay buffer at env step `step`."""
