"""The classes `PPO`, `DQN` and `SAC`: configure, learn, predict, evaluate, save and load."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from typing_extensions import Self

from rl_training.algorithms.base import LearnerParams
from rl_training.algorithms.dqn import DQNParams
from rl_training.algorithms.ppo import PPOParams
from rl_training.algorithms.sac import SACParams
from rl_training.deploy.export import Export, FormatName, export_agent
from rl_training.envs.objects import describe_env
from rl_training.errors import ConfigError, TrainingStateError
from rl_training.experiment.checkpointing import (
    CheckpointState,
    load_checkpoint,
    open_checkpoint,
    open_without_experience,
    save_model,
    with_experience,
)
from rl_training.experiment.config import TrainConfig, plain_config
from rl_training.experiment.sources import Layer, find_preset, located, read_yaml, resolve_config
from rl_training.experiment.validation import describe_fields, suggest
from rl_training.runtime.agents import Agent, build_agent, with_evaluation, with_spaces
from rl_training.runtime.callbacks import Callback, Listener
from rl_training.runtime.manager import DefaultExperimentManager
from rl_training.runtime.registry import AlgorithmSpec, get_algorithm_spec
from rl_training.runtime.trainer import TrainerState, TrainResult
from rl_training.runtime.types import MetricDict
from rl_training.runtime.workflows import (
    Fork,
    budget_layer,
    checkpoint_config,
    continued_config,
    prepare_resume,
    run_directory,
)
from rl_training.waits import shown_waits

Callbacks = Listener | Iterable[Listener]
AlgorithmT = TypeVar("AlgorithmT", bound="Algorithm")


class _RunObserver(Callback):
    """A callback that keeps the run in progress, and its result even if it fails or is interrupted."""

    def __init__(self) -> None:
        self.trainer: TrainerState | None = None
        self.result: TrainResult | None = None

    def on_train_start(self, trainer: TrainerState) -> None:
        """Keep the run in progress."""
        self.trainer = trainer

    def on_train_end(self, trainer: TrainerState, result: TrainResult) -> None:
        """Keep the result."""
        del trainer
        self.result = result


def _read_arguments(
    first: int | Callbacks | None, callbacks: Callbacks | None, total_timesteps: int | None
) -> tuple[int | None, list[Listener]]:
    """Return the budget and the callbacks of `learn`, whose first argument may be either of them."""
    if isinstance(first, (int, float)):
        if total_timesteps is not None:
            raise ConfigError(f"learn({first}, total_timesteps={total_timesteps}): give only one budget")
        total_timesteps = first
    elif first is not None:
        if callbacks is not None:
            raise ConfigError("learn() was given callbacks twice: give all of them in one list")
        callbacks = first
    if callbacks is None:
        return total_timesteps, []
    return total_timesteps, list(callbacks) if isinstance(callbacks, Iterable) else [callbacks]


class Algorithm:
    """The methods that all algorithms share; use one of the subclasses."""

    algo: ClassVar[str]

    def __init__(self, config: TrainConfig | None = None, *others: Any, env: Any = None, **options: Any) -> None:
        """Create a model from a config, or for an environment as `for_env` does; `others` are refused."""
        name = type(self).__name__
        layers: list[Layer] = []
        if config is None and env is not None and not others:
            layers = self._layers_for(env, options)
            config = resolve_config(layers).config
        elif env is not None or options or others or not isinstance(config, TrainConfig):
            raise ConfigError(f"give either {name}(config) with a TrainConfig, or {name}(env=...) with options")
        if config.algo != self.algo:
            raise ConfigError(f"{name} cannot train algo={config.algo!r}")
        self.config = config
        self._spec: AlgorithmSpec = get_algorithm_spec(self.algo)
        try:
            self._spec.resolve_params_fn(config)
        except ConfigError as error:
            raise located(error, layers) from None
        self._state: CheckpointState | None = None
        self._loaded_from = Path()
        self._run_dir: Path | None = None
        """The directory in which learning continues; none if learning starts in a new one."""
        self._agent: Agent | None = None
        self._observer = _RunObserver()

    @classmethod
    def for_env(cls, env: Any, **options: Any) -> Self:
        """Create a model for an environment from its shipped preset, or from the defaults if there is none.

        `env` is an id, a class, a function that makes the environment, or an environment that `gymnasium.make`
        returned, which is then made anew from its spec. `options` replace values of the preset. They are fields of
        `TrainConfig` or parameters of the algorithm.
        """
        return cls(env=env, **options)

    @classmethod
    def _layers_for(cls, env: Any, options: dict[str, Any]) -> list[Layer]:
        """Return the values of the preset, if there is one, and those that were given."""
        known = {*TrainConfig.model_fields, *get_algorithm_spec(cls.algo).params_model.model_fields}
        for name in options.keys() - known:
            raise ConfigError(f"unknown option '{name}'; {suggest(name, known, f'see help({cls.__name__})')}")
        own = {name: value for name, value in options.items() if name in TrainConfig.model_fields}
        params = {name: value for name, value in options.items() if name not in own}
        described = describe_env(env)
        for name in ("env_kwargs", "algo_kwargs"):
            if not isinstance(own.get(name, {}), Mapping):
                raise ConfigError(f"{name}={own[name]!r}: give a map of names to values")
        if not isinstance(own.get("wrappers", []), (list, tuple)):
            raise ConfigError(f"wrappers={own['wrappers']!r}: give a list of wrappers")
        given = {"algo": cls.algo, **described, **own}
        given["env_kwargs"] = {**described.get("env_kwargs", {}), **own.get("env_kwargs", {})}
        if "wrappers" in own or described.get("wrappers"):  # otherwise those of the preset stay
            given["wrappers"] = [*described.get("wrappers", ()), *own.get("wrappers", ())]
        given["algo_kwargs"] = {**own.get("algo_kwargs", {}), **params}
        preset = find_preset(cls.algo, given["env_id"])
        layers = [read_yaml(preset, "preset")] if preset else []
        return [*layers, Layer("argument", given)]

    def learn(
        self,
        budget: int | Callbacks | None = None,
        /,
        callbacks: Callbacks | None = None,
        *,
        total_timesteps: int | None = None,
        progress: bool = False,
    ) -> TrainResult:
        """Train until the budget is used up: `learn(100_000)` and `learn(total_timesteps=100_000)` are the same.

        The budget counts all env steps of the run. A model that has already learned, or that was loaded from a run
        directory, continues in its run directory and needs a larger budget. A model that was loaded from a file, or
        with another environment, wrappers or encoder, continues in a new run directory. `callbacks` is one callback
        or several, and may also be the first argument. `progress` shows a progress display.
        """
        total_timesteps, given = _read_arguments(budget, callbacks, total_timesteps)
        self._observer = _RunObserver()
        listeners = [self._observer, *given]
        try:
            with ExitStack() as display:
                if progress:
                    from rl_training.runtime.progress import ProgressDisplay  # imports rich

                    display.enter_context(shown_waits())
                    listeners = [ProgressDisplay(), *listeners]
                self._observer.result = self._train(budget_layer(total_timesteps), listeners)
                return self._observer.result
        finally:  # after an interrupted or failed run, the model is the one that the run saved
            result = self._observer.result
            self._observer = _RunObserver()
            if result is not None and result.checkpoint_path.exists():
                self._state, self._agent = load_checkpoint(result.checkpoint_path), None
                self._run_dir = result.run_dir

    def _train(self, change: Layer, listeners: Sequence[Listener]) -> TrainResult:
        """Train in a new run directory, or continue in the directory of this model or in a fork of its checkpoint."""
        if self._state is None:
            self.config = resolve_config([Layer("model", plain_config(self.config)), change]).config
            return DefaultExperimentManager().setup(self.config, listeners).train()
        self.config = continued_config(self._state, [change])
        if self._run_dir is not None:
            return prepare_resume(self._run_dir, [change]).train(callbacks=listeners)
        self._state = with_experience(self._state, self._loaded_from)
        return Fork(self.config, self._state).train(callbacks=listeners)

    def save(self, path: Path | str) -> Path:
        """Write the trained model to a checkpoint file that `load` and the command line can read."""
        if self._observer.trainer is not None:
            return self._observer.trainer.save(path)
        if self._state is None:
            raise TrainingStateError("there is nothing to save yet: call learn() first")
        self._state = with_spaces(with_experience(self._state, self._loaded_from), self._live_agent())
        return save_model(path, self._state)

    @classmethod
    def load(
        cls, path: Path | str, *, env: Any = None, wrappers: Iterable[Any] | None = None, encoder: type | None = None
    ) -> Self:
        """Load a checkpoint file, or the newest intact checkpoint of a run directory.

        The environment need not be installed to predict and to export; `evaluate` and `learn` need it. `env`,
        `wrappers` and `encoder` replace those of the checkpoint. They are needed if they were defined in a script or
        notebook.
        """
        # A file may have been copied without the run's replay folder, which only learn() and save() need.
        opened = open_checkpoint(path) if Path(path).is_dir() else open_without_experience(path)
        given = {} if env is None else describe_env(env)
        given |= {} if wrappers is None else {"wrappers": list(wrappers)}
        given |= {} if encoder is None else {"algo_kwargs": {"encoder": encoder}}
        state = opened.state
        if given:
            replaced = resolve_config([Layer("checkpoint", state.config), Layer("argument", given)]).config
            state = replace(state, config=plain_config(replaced))
        model = cls(checkpoint_config(state))
        model._state, model._loaded_from = state, opened.path
        model._run_dir = run_directory(Path(path)) if state.config == opened.state.config else None
        model._live_agent()  # refuses a checkpoint that does not fit, before the first prediction
        return model

    def predict(self, obs: Any, deterministic: bool = True, action_masks: Any = None) -> Any:
        """Return the action for one observation (an `int` if it is discrete), or one action per row of a batch.

        An agent that was trained with masks of legal actions needs `action_masks`, unless the masks are part of the
        observations. While `learn` runs, callbacks that call `predict` get actions from the current weights.
        """
        if self._observer.trainer is not None:
            return self._observer.trainer.predict(obs, deterministic, action_masks)
        return self._spec.predict_fn(self._live_agent(), obs, deterministic, action_masks)

    def export(self, path: Path | str, *, format: FormatName) -> Export:  # noqa: A002  (as the command line calls it)
        """Check the deterministic policy and write it as a file that acts without this package."""
        return export_agent(self._live_agent(), path, format)

    def evaluate(
        self, num_episodes: int = 10, *, deterministic: bool | None = None, seed: int | None = None
    ) -> MetricDict:
        """Play whole episodes, and return statistics of returns, lengths and what the environment reports.

        `deterministic` and `seed` replace the config's `eval_deterministic` and `eval_seed`.
        """
        if self._observer.trainer is not None:
            return self._observer.trainer.evaluate(num_episodes, deterministic=deterministic, seed=seed)
        agent = with_evaluation(self._live_agent(), eval_deterministic=deterministic, eval_seed=seed)
        return self._spec.evaluate_fn(agent, num_episodes)

    def _live_agent(self) -> Agent:
        if self._agent is None:
            self._agent = build_agent(self._spec.build_learner_fn, self.config, self._state)
        return self._agent


def _with_parameters(params: type[LearnerParams]) -> Callable[[type[AlgorithmT]], type[AlgorithmT]]:
    """Return a decorator that adds the parameters of an algorithm to the docstring of its class."""

    def document(algorithm: type[AlgorithmT]) -> type[AlgorithmT]:
        algorithm.__doc__ = f"{algorithm.__doc__}\n\nParameters, besides the fields of `TrainConfig`:\n\n"
        algorithm.__doc__ += describe_fields(params)
        return algorithm

    return document


@_with_parameters(DQNParams)
class DQN(Algorithm):
    """Deep Q-learning, for discrete actions."""

    algo = "dqn"


@_with_parameters(PPOParams)
class PPO(Algorithm):
    """Proximal policy optimisation, for discrete and continuous actions."""

    algo = "ppo"


@_with_parameters(SACParams)
class SAC(Algorithm):
    """Soft actor-critic, for continuous actions with finite bounds."""

    algo = "sac"
