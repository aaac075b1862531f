"""One class per algorithm: configure, learn, predict, evaluate, save, load."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

from typing_extensions import Self

from rl_training.errors import ConfigError, TrainingStateError
from rl_training.experiment.checkpointing import (
    CheckpointState,
    load_checkpoint,
    open_checkpoint,
    open_without_experience,
    save_checkpoint,
    with_experience,
)
from rl_training.experiment.config import TrainConfig, plain_config
from rl_training.experiment.sources import Layer, find_preset, read_yaml, resolve_config
from rl_training.experiment.validation import nearest_name
from rl_training.policies.base import Array
from rl_training.runtime.agents import Agent, build_agent
from rl_training.runtime.callbacks import Callback, Listener
from rl_training.runtime.manager import DefaultExperimentManager
from rl_training.runtime.registry import AlgorithmSpec, get_algorithm_spec
from rl_training.runtime.trainer import TrainerState, TrainResult
from rl_training.runtime.types import MetricDict
from rl_training.runtime.workflows import Fork, budget_layer, checkpoint_config, continued_config


class _HearResult(Callback):
    """Keeps the result of a run, however it ends."""

    def __init__(self, heard: list[TrainResult]) -> None:
        self._heard = heard

    def on_train_end(self, trainer: TrainerState, result: TrainResult) -> None:
        """Keep it."""
        del trainer
        self._heard.append(result)


class Algorithm:
    """What all algorithms offer; use one of the subclasses."""

    algo: ClassVar[str]

    def __init__(self, config: TrainConfig) -> None:
        if config.algo != self.algo:
            raise ConfigError(f"{type(self).__name__} cannot train algo={config.algo!r}")
        self.config = config
        self._spec: AlgorithmSpec = get_algorithm_spec(self.algo)
        self._spec.resolve_params_fn(config)
        self._state: CheckpointState | None = None
        self._loaded_from = Path()
        self._agent: Agent | None = None

    @classmethod
    def for_env(cls, env_id: str, **options: Any) -> Self:
        """From an environment's id: its shipped preset if there is one, else defaults, with `options` on top.

        Names of `TrainConfig` fields are taken as such, all others as parameters of the algorithm.
        """
        known = {*TrainConfig.model_fields, *get_algorithm_spec(cls.algo).params_model.model_fields}
        for name in options.keys() - known:
            nearest = nearest_name(name, known)
            raise ConfigError(f"unknown option '{name}'" + (f"; did you mean '{nearest}'?" if nearest else ""))
        own = {name: value for name, value in options.items() if name in TrainConfig.model_fields}
        params = {name: value for name, value in options.items() if name not in own}
        given = {"algo": cls.algo, "env_id": env_id, **own}
        given["algo_kwargs"] = {**own.get("algo_kwargs", {}), **params}
        preset = find_preset(cls.algo, env_id)
        layers = [read_yaml(preset, "preset")] if preset else []
        return cls(resolve_config([*layers, Layer("argument", given)]).config)

    def learn(self, callbacks: Iterable[Listener] | None = None, *, total_timesteps: int | None = None) -> TrainResult:
        """Train to the budget. A model that has learnt or was loaded goes on, which needs a larger budget."""
        heard: list[TrainResult] = []
        listeners = [*(callbacks or ()), _HearResult(heard)]
        try:
            if self._state is not None:
                self.config = continued_config(self._state, [budget_layer(total_timesteps)])
                self._state = with_experience(self._state, self._loaded_from)
                return Fork(self.config, self._state).train(callbacks=listeners)
            if total_timesteps is not None:
                self.config = TrainConfig(**{**plain_config(self.config), "total_timesteps": total_timesteps})
            return DefaultExperimentManager().setup(self.config, listeners).train()
        finally:  # an interrupted or failed run leaves a model too: the one that it saved
            if heard and heard[0].checkpoint_path.exists():
                self._state, self._agent = load_checkpoint(heard[0].checkpoint_path), None

    def save(self, path: Path | str) -> Path:
        """Write the trained model, from which `load`, the command line and resuming go on."""
        if self._state is None:
            raise TrainingStateError("there is nothing to save yet: call learn() first")
        target = Path(path)
        self._state = with_experience(self._state, self._loaded_from)
        return save_checkpoint(target if target.suffix else target.with_suffix(".pt"), self._state)

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """The model of a checkpoint file, or of a run directory's newest intact one."""
        # A file may have been copied without the run's replay folder, which only learn() and save() need.
        opened = open_checkpoint(path) if Path(path).is_dir() else open_without_experience(path)
        model = cls(checkpoint_config(opened.state))
        model._state, model._loaded_from = opened.state, opened.path
        model._live_agent()  # a checkpoint that does not fit is refused here, not at the first prediction
        return model

    def predict(self, obs: Any, deterministic: bool = True) -> int | Array:
        """An action for one observation (an `int` when discrete), or one per row of a batch."""
        return self._spec.predict_fn(self._live_agent(), obs, deterministic)

    def evaluate(self, num_episodes: int = 10) -> MetricDict:
        """Play whole episodes with the likeliest actions."""
        return self._spec.evaluate_fn(self._live_agent(), num_episodes)

    def _live_agent(self) -> Agent:
        if self._agent is None:
            self._agent = build_agent(self._spec.build_learner_fn, self.config, self._state)
        return self._agent


class DQN(Algorithm):
    """Deep Q-learning, for discrete actions."""

    algo = "dqn"


class PPO(Algorithm):
    """Proximal policy optimisation, for discrete and continuous actions."""

    algo = "ppo"


class SAC(Algorithm):
    """Soft actor-critic, for continuous actions with finite bounds."""

    algo = "sac"
