"""Every kind of Gymnasium space, as observation and as action: it trains, or the error lists what would."""

from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from conftest import MakeConfig
from gymnasium import spaces

from rl_training import PPO, SAC
from rl_training.errors import EnvironmentSetupError
from rl_training.packing import SUPPORTED_OBSERVATIONS
from rl_training.policies.distributions import SUPPORTED_ACTIONS
from rl_training.runtime.manager import DefaultExperimentManager
from rl_training.runtime.ppo_trainer import train_ppo
from rl_training.runtime.registry import get_algorithm_spec

AnySpace = spaces.Space[Any]
Register = Callable[[AnySpace, AnySpace], str]

EPISODE_LENGTH = 5
VECTOR = spaces.Box(-1.0, 1.0, (3,), np.float32)
CHOICE = spaces.Discrete(3)

ACTIONS: dict[str, AnySpace] = {
    "scalar": spaces.Box(-1.0, 1.0, (), np.float32),
    "vector": VECTOR,
    "matrix": spaces.Box(-1.0, 1.0, (2, 2), np.float32),
    "float64": spaces.Box(-1.0, 1.0, (2,), np.float64),
    "unbounded": spaces.Box(-np.inf, np.inf, (2,), np.float32),
    "half bounded": spaces.Box(0.0, np.inf, (2,), np.float32),
    "discrete": CHOICE,
    "discrete from -2": spaces.Discrete(3, start=-2),
    "discrete from 7": spaces.Discrete(2, start=7),
}
COMPOSITE_ACTIONS: dict[str, AnySpace] = {
    "multi discrete": spaces.MultiDiscrete([2, 3], start=[4, -1]),
    "multi discrete matrix": spaces.MultiDiscrete(np.array([[2, 3], [3, 2]])),
    "multi binary": spaces.MultiBinary(3),
    "multi binary matrix": spaces.MultiBinary((2, 2)),
}
NESTED: dict[str, AnySpace] = {
    "dict": spaces.Dict({"vector": VECTOR, "inner": spaces.Dict({"choice": CHOICE})}),
    "tuple": spaces.Tuple((VECTOR, CHOICE)),
}
OBSERVATIONS: dict[str, AnySpace] = {
    **ACTIONS,
    "image": spaces.Box(0, 255, (4, 4, 3), np.uint8),
    "integers": spaces.Box(-5, 5, (2,), np.int32),
}
UNSUPPORTED: dict[str, AnySpace] = {
    "Text": spaces.Text(4),
    "Sequence": spaces.Sequence(VECTOR),
    "Graph": spaces.Graph(VECTOR, None),
    "OneOf": spaces.OneOf((VECTOR, CHOICE)),
}


class SpaceEnv(gymnasium.Env[Any, Any]):
    """Shows samples of one space, insists on actions from another, and rewards every step with 1."""

    def __init__(self, observation_space: AnySpace, action_space: AnySpace) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.observation_space.seed(seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        nested = isinstance(action, (dict, tuple))
        if not self.action_space.contains(action if nested else np.asarray(action)):
            raise ValueError(f"{action!r} is not in {self.action_space}")
        self.steps += 1
        return self.observation_space.sample(), 1.0, False, self.steps >= EPISODE_LENGTH, {}


@pytest.fixture
def register() -> Iterator[Register]:
    """Registers an env with the given spaces for the length of a test."""
    env_id = "tests/Space-v0"

    def register(observation_space: AnySpace, action_space: AnySpace) -> str:
        def make(**kwargs: Any) -> SpaceEnv:
            return SpaceEnv(observation_space, action_space, **kwargs)

        gymnasium.register(env_id, entry_point=make)
        return env_id

    yield register
    gymnasium.registry.pop(env_id, None)


def train(env_id: str, make_config: MakeConfig) -> PPO:
    config = make_config(
        env_id=env_id, total_timesteps=32, num_envs=2, algo_kwargs={"num_steps": 8, "minibatch_size": 16}
    )
    result = DefaultExperimentManager().setup(config).train()
    assert result.metrics["global_step"] == 32
    assert result.metrics["eval_return_mean"] == EPISODE_LENGTH
    return PPO.load(result.checkpoint_path)


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_ppo_trains_on_these_observations(name: str, register: Register, make_config: MakeConfig) -> None:
    space = OBSERVATIONS[name]
    model = train(register(space, CHOICE), make_config)
    space.seed(1)
    assert model.predict(space.sample()) in range(3)
    batch = np.stack([np.asarray(space.sample()) for _ in range(4)])
    assert np.shape(model.predict(batch)) == (4,)


@pytest.mark.parametrize("name", [*COMPOSITE_ACTIONS, *NESTED])
@pytest.mark.parametrize(("algo", "action_space"), [("ppo", CHOICE), ("dqn", CHOICE), ("sac", VECTOR)])
def test_every_algorithm_trains_on_composite_observations(
    name: str, algo: str, action_space: AnySpace, register: Register, make_config: MakeConfig
) -> None:
    space = {**COMPOSITE_ACTIONS, **NESTED}[name]
    config = make_config(algo=algo, env_id=register(space, action_space), num_envs=2)
    assert get_algorithm_spec(algo).train_fn(config).metrics["eval_return_mean"] == EPISODE_LENGTH


@pytest.mark.parametrize("name", list(NESTED))
def test_ppo_trains_with_nested_actions(name: str, register: Register, make_config: MakeConfig) -> None:
    space = NESTED[name]
    model = train(register(VECTOR, space), make_config)
    for deterministic in (True, False):
        assert space.contains(model.predict(np.ones(3, np.float32), deterministic))


@pytest.mark.parametrize("name", [*ACTIONS, *COMPOSITE_ACTIONS])
def test_ppo_trains_with_these_actions(name: str, register: Register, make_config: MakeConfig) -> None:
    space = {**ACTIONS, **COMPOSITE_ACTIONS}[name]
    model = train(register(VECTOR, space), make_config)
    for deterministic in (True, False):
        action = model.predict(np.ones(3, np.float32), deterministic)
        assert space.contains(np.asarray(action, dtype=space.dtype))
        assert np.shape(action) == space.shape


def refusal(env_id: str, make_config: MakeConfig, algo: str = "ppo", **changes: Any) -> str:
    """The one message that planning and training both give, before any directory is made."""
    config = make_config(algo=algo, env_id=env_id, **changes)
    spec = get_algorithm_spec(algo)
    messages = set()
    for attempt in (spec.train_fn, spec.plan_fn):
        with pytest.raises(EnvironmentSetupError) as caught:
            attempt(config)
        messages.add(str(caught.value))
    (message,) = messages
    assert not config.output_dir.exists()
    return message


@pytest.mark.parametrize("kind", UNSUPPORTED)
def test_other_observations_are_refused_with_what_is_supported(
    kind: str, register: Register, make_config: MakeConfig
) -> None:
    message = refusal(register(UNSUPPORTED[kind], CHOICE), make_config)
    assert f"observation space {kind} is not supported" in message
    assert SUPPORTED_OBSERVATIONS in message
    assert "Wrap the env" in message


@pytest.mark.parametrize("kind", UNSUPPORTED)
def test_other_actions_are_refused_with_what_is_supported(
    kind: str, register: Register, make_config: MakeConfig
) -> None:
    message = refusal(register(VECTOR, UNSUPPORTED[kind]), make_config)
    assert f"action space {kind} is not supported here" in message
    assert SUPPORTED_ACTIONS in message
    assert "Wrap the env" in message


@pytest.mark.parametrize("dtype", [np.int32, np.uint8])
def test_a_box_of_integers_is_no_action_space(
    dtype: type[np.integer[Any]], register: Register, make_config: MakeConfig
) -> None:
    message = refusal(register(VECTOR, spaces.Box(0, 9, (2,), dtype)), make_config)
    assert f"action space Box is not supported here; supported: {SUPPORTED_ACTIONS}" in message


def test_a_space_that_processes_cannot_share_is_refused_too(register: Register, make_config: MakeConfig) -> None:
    config = make_config(env_id=register(UNSUPPORTED["Sequence"], CHOICE), vectorization="async")
    with pytest.raises(EnvironmentSetupError, match="observation space Sequence is not supported; supported: Box"):
        train_ppo(config)
    assert not config.output_dir.exists()


@pytest.mark.parametrize("name", OBSERVATIONS)
@pytest.mark.parametrize(("algo", "action_space"), [("dqn", CHOICE), ("sac", VECTOR)])
def test_off_policy_algorithms_train_on_these_observations(
    algo: str, action_space: AnySpace, name: str, register: Register, make_config: MakeConfig
) -> None:
    config = make_config(algo=algo, env_id=register(OBSERVATIONS[name], action_space), num_envs=2, total_timesteps=48)
    result = get_algorithm_spec(algo).train_fn(config)
    assert result.metrics["num_updates"] == 4
    assert result.metrics["eval_return_mean"] == EPISODE_LENGTH


@pytest.mark.parametrize("kind", UNSUPPORTED)
@pytest.mark.parametrize(("algo", "action_space"), [("dqn", CHOICE), ("sac", VECTOR)])
def test_off_policy_algorithms_refuse_other_observations(
    algo: str, action_space: AnySpace, kind: str, register: Register, make_config: MakeConfig
) -> None:
    message = refusal(register(UNSUPPORTED[kind], action_space), make_config, algo)
    assert f"observation space {kind} is not supported" in message
    assert SUPPORTED_OBSERVATIONS in message


REFUSED = {**UNSUPPORTED, **NESTED}
DISCRETE_ONLY = {name: space for name, space in ACTIONS.items() if not isinstance(space, spaces.Discrete)}
BOUNDED_ONLY = {
    **{name: space for name, space in ACTIONS.items() if isinstance(space, spaces.Discrete)},
    **{name: ACTIONS[name] for name in ("unbounded", "half bounded")},
    "integers": OBSERVATIONS["integers"],
}


@pytest.mark.parametrize(
    ("algo", "space"),
    [
        *[
            pytest.param("dqn", space, id=f"dqn {name}")
            for name, space in {**UNSUPPORTED, **NESTED, **DISCRETE_ONLY}.items()
        ],
        *[
            pytest.param("sac", space, id=f"sac {name}")
            for name, space in {**UNSUPPORTED, **NESTED, **BOUNDED_ONLY}.items()
        ],
    ],
)
def test_off_policy_algorithms_refuse_actions_they_cannot_take(
    algo: str, space: AnySpace, register: Register, make_config: MakeConfig
) -> None:
    message = refusal(register(VECTOR, space), make_config, algo)
    assert f"is not supported by {algo}; supported: " in message
    assert "Use ppo" in message


@pytest.mark.parametrize("name", ["scalar", "vector", "matrix", "float64"])
def test_sac_trains_with_these_actions(name: str, register: Register, make_config: MakeConfig) -> None:
    space = ACTIONS[name]
    config = make_config(algo="sac", env_id=register(VECTOR, space), num_envs=2, total_timesteps=48)
    model = SAC(config)
    model.learn()
    action = np.asarray(model.predict(np.ones(3, np.float32)))
    assert space.contains(action.astype(space.dtype))
    assert action.shape == space.shape
