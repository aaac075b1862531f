"""Environments that are given as Python objects, or named as a class or function, train like registered ones."""

import pickle
import runpy
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from chaos import result_of as outcome
from chaos_envs import HiddenWalk
from conftest import MakeConfig
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.wrappers import FlattenObservation, TimeLimit
from test_exact_resume import SignalAt, train

from rl_training import DQN, PPO, SAC
from rl_training.cli import main
from rl_training.envs.factory import env_factory, make_env, make_vector_env
from rl_training.envs.making import has_time_limit, make_raw_env
from rl_training.envs.rendering import make_rendered_env
from rl_training.errors import ConfigError, EnvironmentSetupError
from rl_training.experiment.config import TrainConfig, plain_config
from rl_training.experiment.runs import context_of, read_metadata
from rl_training.runtime.run_utils import versions
from rl_training.runtime.workflows import resume_training

EXAMPLE = Path(__file__).parents[1] / "examples" / "own_environment.py"


def make_cart(sutton_barto_reward: bool = False) -> CartPoleEnv:
    return CartPoleEnv(sutton_barto_reward)


def make_limited(**kwargs: Any) -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1", **kwargs)


def time_limits(env: gymnasium.Env[Any, Any]) -> list[int]:
    """The time limits around an env, the outermost first."""
    found, layer = [], env
    while isinstance(layer, gymnasium.Wrapper):
        found += [layer._max_episode_steps] if isinstance(layer, TimeLimit) else []
        layer = layer.env
    return found


@pytest.fixture
def forget(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Forget all objects of this process, as another process does not know them."""
    return lambda: monkeypatch.setattr("rl_training.plugins._local_objects", {})


def test_a_factory_a_class_and_a_spec_become_plain_config_values() -> None:
    assert PPO.for_env(make_cart).config.env_id == "test_own_envs:make_cart"
    assert SAC(env=HiddenWalk, env_kwargs={"continuous": True}).config.env_id == "chaos_envs:HiddenWalk"
    assert PPO(env="CartPole-v1").config == PPO.for_env("CartPole-v1").config
    made = gymnasium.make("CartPole-v1", max_episode_steps=9, sutton_barto_reward=True, render_mode="rgb_array")
    config = DQN(env=FlattenObservation(made), seed=3).config
    assert (config.env_id, config.wrappers, config.seed) == ("CartPole-v1", ("FlattenObservation",), 3)
    assert config.env_kwargs == {"max_episode_steps": 9, "sutton_barto_reward": True, "render_mode": "rgb_array"}
    assert DQN(env=gymnasium.make("chaos_envs:HiddenWalk-v0")).config.env_id == "chaos_envs:HiddenWalk-v0"


class Nameless(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper that does not record its arguments."""


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (CartPoleEnv(), "give the class CartPoleEnv, or a function that makes the environment"),
        (TimeLimit(CartPoleEnv(), 5), "give the class CartPoleEnv"),
        (Nameless(gymnasium.make("CartPole-v1")), "Nameless does not record its arguments; give a function"),
        (gymnasium.wrappers.NormalizeReward(gymnasium.make("CartPole-v1")), "normalize_rewards"),
        (3, "env=3: give a registered id, a class"),
    ],
)
def test_what_cannot_be_copied_is_refused_with_what_to_give_instead(env: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        PPO.for_env(env)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {}),
        (("CartPole-v1",), {}),
        (("MlpPolicy", "CartPole-v1"), {"verbose": 1}),
        ((None, "MlpPolicy"), {"env": "CartPole-v1"}),
        ((), {"gamma": 0.9}),
    ],
)
def test_a_model_needs_a_config_or_an_env(args: Any, kwargs: Any) -> None:
    with pytest.raises(ConfigError, match=r"give either PPO\(config\) with a TrainConfig, or PPO\(env=\.\.\.\)"):
        PPO(*args, **kwargs)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"wrappers": TimeLimit}, "wrappers=<class .*TimeLimit'>: give a list of wrappers"),
        ({"wrappers": "TimeLimit"}, "wrappers='TimeLimit': give a list of wrappers"),
        ({"env_kwargs": [1]}, r"env_kwargs=\[1\]: give a map of names to values"),
        ({"algo_kwargs": 3}, "algo_kwargs=3: give a map of names to values"),
    ],
)
def test_options_of_another_type_are_refused(option: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PPO(env="CartPole-v1", **option)


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (dict, "builtins:dict must return a gymnasium.Env, not dict"),
        (gymnasium.Env, "gymnasium.core:Env has no observation_space: set it to a space of gymnasium.spaces"),
        (lambda: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda: sys.exit(3), "SystemExit: 3"),
        (lambda: gymnasium.make("CartPol-v1"), "NameNotFound: Environment `CartPol`"),
        ("test_own_envs:make_crt", "did you mean 'test_own_envs:make_cart'"),
        ("no_such_module:make", "No module named 'no_such_module'"),
    ],
)
def test_a_factory_that_fails_is_one_line(make_config: MakeConfig, factory: Any, message: str) -> None:
    with pytest.raises(EnvironmentSetupError, match=message) as caught:
        make_env(make_config(env_id=factory), 0)
    assert "\n" not in str(caught.value)


def test_wrong_arguments_and_an_object_that_is_given_twice_are_refused(make_config: MakeConfig) -> None:
    with pytest.raises(EnvironmentSetupError, match="unexpected keyword argument 'size'"):
        make_env(make_config(env_id=make_cart, env_kwargs={"size": 3}), 0)
    shared = CartPoleEnv()
    with pytest.raises(EnvironmentSetupError, match="returned the same object twice"):
        make_vector_env(make_config(env_id=lambda: TimeLimit(shared, 5)))


def test_a_time_limit_is_passed_to_a_factory_that_takes_one_and_applied_around_any_other(
    make_config: MakeConfig,
) -> None:
    for factory, limits in ((make_cart, [7]), (make_limited, [7])):
        config = make_config(env_id=factory, env_kwargs={"max_episode_steps": 7})
        with closing(make_env(config, 0)) as env:
            assert time_limits(env) == limits
        assert has_time_limit(config)
    assert not has_time_limit(make_config(env_id=make_cart, env_kwargs={"max_episode_steps": -1}))
    assert has_time_limit(make_config(env_id=make_limited))


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_a_run_by_factory_is_resumed_exactly(make_config: MakeConfig, vectorization: str) -> None:
    config = make_config(env_id="chaos_envs:HiddenWalk", vectorization=vectorization, num_envs=2)
    straight = outcome(train(config))
    run_dir = train(config, SignalAt(50, "collect"))
    resume_training(run_dir)
    assert outcome(run_dir) == straight
    assert [note["exact"] for note in read_metadata(context_of(run_dir))["resumed"]] == [True]


def test_a_class_trains_like_its_registered_id(make_config: MakeConfig) -> None:
    by_id, by_class = (train(make_config(env_id=env)) for env in ("chaos_envs:HiddenWalk-v0", HiddenWalk))
    assert outcome(by_id) == outcome(by_class)


def test_a_local_factory_trains_and_is_asked_for_later(
    make_config: MakeConfig, forget: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    def make_walk() -> HiddenWalk:
        return HiddenWalk()

    config = make_config(env_id=make_walk, vectorization="async", num_envs=2)
    assert config.env_id == "local:make_walk"
    straight = train(config)
    short = train(config.model_copy(update={"total_timesteps": 64}))
    forget()
    remedy = r"define it again and give it to load\(\), as in PPO.load\(path, env=make_walk\)"
    with pytest.raises(ConfigError, match=remedy):
        PPO.load(short).evaluate(1)
    with pytest.raises(ConfigError, match=remedy):
        PPO.load(short).learn(128)
    for command in (["eval", "--checkpoint", str(short)], ["resume", str(short), "--total-timesteps", "128"]):
        assert main(command) == 2
        assert "PPO.load(path, env=make_walk)" in capsys.readouterr().err
    result = PPO.load(short, env=make_walk).learn(total_timesteps=128)
    assert outcome(result.run_dir)[0] == outcome(straight)[0]


def test_different_objects_never_share_a_name(make_config: MakeConfig, forget: Callable[[], None]) -> None:
    def make() -> Any:
        return CartPoleEnv()

    first, again = make, lambda: make

    def make() -> Any:  # type: ignore[no-redef]  # as in a cell that runs twice
        return HiddenWalk()

    names = [make_config(env_id=each).env_id for each in (first, make, first)]
    assert names == ["local:make", "local2:make", "local:make"]
    lambdas = [lambda: CartPoleEnv(), lambda: HiddenWalk(), again]
    named = [make_config(env_id=each).env_id for each in lambdas]
    assert len(set(named)) == 3
    assert all(name.startswith("local:lambda_") for name in named)
    forget()
    assert [make_config(env_id=each).env_id for each in lambdas] == named
    assert make_config(env_id=partial(make_cart, sutton_barto_reward=True)).env_id == "local:make_cart"


def test_a_local_factory_and_wrapper_reach_processes_that_do_not_fork(
    make_config: MakeConfig, forget: Callable[[], None]
) -> None:
    class Renamed(gymnasium.Wrapper[Any, Any, Any, Any]):
        pass

    sent = pickle.dumps(env_factory(make_config(env_id=lambda: CartPoleEnv(), wrappers=[Renamed])))
    forget()
    with closing(pickle.loads(sent)()) as env:
        assert str(env) == "<Renamed<CartPoleEnv instance>>"


def test_the_source_of_a_factory_is_a_part_of_the_versions() -> None:
    assert "test_own_envs source" in versions("test_own_envs:make_cart")


def test_an_env_by_factory_is_recorded_if_it_can_render(make_config: MakeConfig) -> None:
    with closing(make_rendered_env(make_config(env_id=CartPoleEnv))) as env:
        assert env.render_mode == "rgb_array"
    with closing(make_rendered_env(make_config(env_id=lambda: CartPoleEnv(render_mode="rgb_array")))) as env:
        assert env.render_mode == "rgb_array"
    with pytest.raises(EnvironmentSetupError, match="its factory must take render_mode"):
        make_rendered_env(make_config(env_id=make_cart))


def test_check_env_takes_a_factory(capsys: pytest.CaptureFixture[str]) -> None:
    main(["check-env", "test_own_envs:make_cart", "--steps", "50", "--set", "sutton_barto_reward=true"])
    assert "will hold" in capsys.readouterr().out


def test_numbers_of_numpy_are_plain_in_a_config(make_config: MakeConfig) -> None:
    given = {"goal": [np.float32(0.5), (np.int8(2),)], "flag": np.bool_(True), "name": np.str_("x")}
    config = make_config(env_kwargs=given, algo_kwargs={"gamma": np.float64(0.5)})
    assert repr(config.env_kwargs) == "{'goal': [0.5, [2]], 'flag': True, 'name': 'x'}"
    assert type(config.algo_kwargs["gamma"]) is float
    assert TrainConfig(**plain_config(config)) == config
    for value, message in ((np.zeros(2), r"NumPy array; give array.tolist\(\)"), (np.longdouble(1), "a longdouble")):
        with pytest.raises(ConfigError, match=message):
            make_config(env_kwargs={"goal": value})


def test_a_guess_for_an_env_names_the_module_that_it_needs() -> None:
    gymnasium.make("chaos_envs:HiddenWalk-v0").close()
    for env_id in ("chaos_envs:HiddenWalk-v7", "HiddenWlak-v0"):
        with pytest.raises(EnvironmentSetupError, match="did you mean 'chaos_envs:HiddenWalk-v0'"):
            make_raw_env(env_id, {})
    with pytest.raises(EnvironmentSetupError, match="use 'ale_py:ALE/Pong-v5'"):
        make_raw_env("ALE/Pong-v5", {})


def test_the_example_with_an_own_environment_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [EXAMPLE.name, "--total-timesteps", "2048", "--output-dir", str(tmp_path)])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert "evaluation: " in capsys.readouterr().out
    assert len(EXAMPLE.read_text().splitlines()) < 100
