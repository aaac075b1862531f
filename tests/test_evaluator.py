import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sample_envs  # noqa: F401  (registers the envs)
from conftest import TINY, MakeConfig
from gymnasium.utils import seeding

from rl_training.api import PPO
from rl_training.cli import load_config, main
from rl_training.envs.factory import make_env, make_vector_env
from rl_training.envs.guard import EnvCalls
from rl_training.errors import ConfigError
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.digests import digest
from rl_training.experiment.runs import context_of, read_metrics
from rl_training.experiment.sources import Layer
from rl_training.policies.base import Streams
from rl_training.recording.episodes import play_for_recording
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.evaluator import EpisodePlayer, Evaluator, evaluation_seeds
from rl_training.runtime.ppo_trainer import train_ppo
from rl_training.runtime.registry import get_algorithm_spec
from rl_training.runtime.trainer import TrainerState
from rl_training.runtime.workflows import evaluate_checkpoint, load_agent, prepare_resume


class AlwaysOne:
    """Plays action 1 and remembers what it saw."""

    def __init__(self) -> None:
        self.batches: list[np.ndarray[Any, Any]] = []
        self.deterministic: set[bool] = set()

    def predict(
        self, obs: np.ndarray[Any, Any], *, deterministic: bool = True, streams: Streams | None = None
    ) -> np.ndarray[Any, Any]:
        self.batches.append(obs)
        self.deterministic.add(deterministic)
        return np.ones(len(obs), dtype=np.int64)

    def to_env(self, actions: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return actions


def test_statistics_are_over_whole_raw_episodes_with_the_likeliest_actions(make_config: MakeConfig) -> None:
    policy = AlwaysOne()
    result = Evaluator(make_config(env_id="tests/Counting-v0")).evaluate(policy, 20, step=0)
    assert policy.deterministic == {True}
    assert result.num_episodes == 20
    assert result.metrics == {
        "eval_return_mean": 6.0,
        "eval_return_std": 0.0,
        "eval_return_min": 6.0,
        "eval_return_max": 6.0,
        "eval_length_mean": 3.0,
        "eval_episodes": 20,
    }


def test_long_and_short_episodes_count_alike(make_config: MakeConfig) -> None:
    lengths = [2, 9]
    envs = [make_env(make_config(env_id="tests/Counting-v0", env_kwargs={"limit": limit}), 0) for limit in lengths]
    finished = EpisodePlayer(envs, EnvCalls(), "evaluation").play(AlwaysOne(), [1, 2], lambda: False)
    assert sorted(episode.length for episode in finished) == [2, 9]


def episode_numbers(evaluator: Evaluator, step: int) -> list[float]:
    """What `tests/Seed-v0` draws in the 20 episodes of an evaluation, which are more than its envs."""
    policy = AlwaysOne()
    evaluator.evaluate(policy, 20, step)
    return sorted({float(number) for batch in policy.batches for number in batch[:, 0]})


def test_an_evaluation_repeats_itself_and_differs_from_one_at_another_step(make_config: MakeConfig) -> None:
    evaluator = Evaluator(make_config(env_id="tests/Seed-v0"))
    numbers = episode_numbers(evaluator, step=100)
    assert len(numbers) == 20
    assert episode_numbers(evaluator, step=100) == numbers
    assert episode_numbers(Evaluator(make_config(env_id="tests/Seed-v0")), step=100) == numbers
    assert not set(episode_numbers(evaluator, step=101)) & set(numbers)
    longer = Evaluator(make_config(env_id="tests/Seed-v0", env_kwargs={"limit": 5}))
    assert episode_numbers(longer, step=100) == numbers  # whatever the episodes before drew


def test_evaluation_episodes_are_neither_those_of_training_nor_those_of_another_run(make_config: MakeConfig) -> None:
    config = make_config(env_id="tests/Seed-v0", num_envs=20)
    numbers = set(episode_numbers(Evaluator(config), step=0))
    envs = make_vector_env(config)
    trained = {float(number) for _ in range(20) for number in envs.reset()[0][:, 0]}
    assert not trained & numbers
    assert not set(episode_numbers(Evaluator(make_config(env_id="tests/Seed-v0", seed=8)), step=0)) & numbers


@pytest.mark.parametrize("episodes", [1, 16, 17, 40])
def test_any_number_of_episodes_is_played_exactly(make_config: MakeConfig, episodes: int) -> None:
    result = Evaluator(make_config(env_id="tests/Counting-v0")).evaluate(AlwaysOne(), episodes, step=0)
    assert result.metrics["eval_episodes"] == episodes
    assert result.metrics["eval_return_mean"] == 6.0


@pytest.fixture
def endless(make_config: MakeConfig) -> TrainConfig:
    """A run on an env without a time limit whose episodes do not end."""
    return make_config(env_id="tests/Counting-v0", env_kwargs={"limit": 10**6}, eval_max_steps=40)


def test_an_episode_without_an_end_is_cut_and_counts_with_the_return_it_had(endless: TrainConfig) -> None:
    evaluator = Evaluator(endless)
    with pytest.warns(UserWarning, match=r"3 of 3 evaluation episodes were cut after eval_max_steps=40 env steps"):
        metrics = evaluator.evaluate(AlwaysOne(), 3, step=0).metrics
    assert metrics["eval_cut_episodes"] == 3
    assert metrics["eval_length_mean"] == 40
    assert metrics["eval_return_mean"] == 80.0
    assert evaluator.evaluate(AlwaysOne(), 3, step=1).metrics["eval_cut_episodes"] == 3  # warned of already


@pytest.mark.parametrize(("limit", "most"), [(5, 5), (5, 6), (28_000, 0)])
def test_an_episode_that_ends_by_itself_is_not_cut(make_config: MakeConfig, limit: int, most: int) -> None:
    config = make_config(env_id="tests/Counting-v0", env_kwargs={"limit": limit}, eval_max_steps=most)
    metrics = Evaluator(config).evaluate(AlwaysOne(), 1, step=0).metrics
    assert metrics["eval_length_mean"] == limit
    assert "eval_cut_episodes" not in metrics


def test_episodes_are_cut_by_default(make_config: MakeConfig) -> None:
    evaluator = Evaluator(make_config(env_id="tests/Counting-v0", env_kwargs={"limit": 10**6}))
    with pytest.warns(UserWarning, match="eval_max_steps=27,000"):
        assert evaluator.evaluate(AlwaysOne(), 1, step=0).metrics["eval_length_mean"] == 27_000


@pytest.mark.parametrize(
    ("env_id", "env_kwargs", "max_steps", "said"),
    [
        ("CartPole-v1", {}, 1_000, None),
        (
            "tests/Counting-v0",
            {"limit": 3},
            40,
            "40: evaluation episodes are cut after this many steps, because",
        ),
        (
            "tests/Counting-v0",
            {"limit": 3},
            0,
            "0: an evaluation episode that does not end is played for ever, because",
        ),
        ("tests/Counting-v0", {"limit": 3, "max_episode_steps": 9}, 40, None),
    ],
)
def test_a_run_says_at_its_start_that_its_env_declares_no_time_limit(
    make_config: MakeConfig, env_id: str, env_kwargs: dict[str, Any], max_steps: int, said: str | None
) -> None:
    heard: list[str | None] = []

    class Listen(Callback):
        def on_train_start(self, trainer: TrainerState) -> None:
            heard.append(trainer.decisions.get("eval_max_steps"))

    config = make_config(env_id=env_id, env_kwargs=env_kwargs, eval_max_steps=max_steps)
    train_ppo(config, callbacks=[Listen()])
    assert [None if text is None else text[: len(said or "")] for text in heard] == [said]


def test_a_run_warns_once_and_logs_how_many_episodes_were_cut(endless: TrainConfig) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = train_ppo(endless)
    assert ["eval_max_steps" in str(warning.message) for warning in caught] == [True]
    rows = [row for row in read_metrics(context_of(result.run_dir)) if "eval/mean_reward" in row]
    assert [row["eval/cut_episodes"] for row in rows] == [2, 2]
    assert result.metrics["eval_cut_episodes"] == 2


def test_a_saved_agent_is_evaluated_and_recorded_with_the_same_limit(endless: TrainConfig) -> None:
    run_dir = train_ppo(endless.model_copy(update={"eval_episodes": 0})).run_dir
    with pytest.warns(UserWarning, match="eval_max_steps"):
        assert evaluate_checkpoint(run_dir, 2)["eval_cut_episodes"] == 2
    with pytest.warns(UserWarning, match="eval_max_steps"):
        assert PPO.load(run_dir).evaluate(2)["eval_length_mean"] == 40
    agent = load_agent(run_dir)
    seeds = evaluation_seeds(agent.config, agent.step, 2)
    assert [(episode.length, episode.cut) for episode in play_for_recording(agent, seeds)] == [(40, True)] * 2
    assert [episode.length for episode in play_for_recording(agent, seeds, max_steps=50)] == [50, 50]


def test_the_limit_may_change_when_a_run_goes_on(endless: TrainConfig) -> None:
    run_dir = train_ppo(endless.model_copy(update={"eval_episodes": 0})).run_dir
    changes = Layer("test", {"eval_max_steps": 7, "total_timesteps": 192})
    with pytest.warns(UserWarning, match="tests/Counting-v0 does not replay|eval_max_steps"):
        prepare_resume(run_dir, [changes]).train()
    assert load_config(run_dir / "config.yaml").eval_max_steps == 7


def test_with_an_eval_seed_every_evaluation_of_every_run_plays_the_same_episodes(make_config: MakeConfig) -> None:
    evaluator = Evaluator(make_config(env_id="tests/Seed-v0", eval_seed=5))
    numbers = episode_numbers(evaluator, step=100)
    other_run = Evaluator(make_config(env_id="tests/Seed-v0", eval_seed=5, seed=8))
    assert episode_numbers(evaluator, step=101) == episode_numbers(other_run, step=100) == numbers
    drawn = {float(np.float32(seeding.np_random(seed)[0].random())) for seed in range(5, 25)}
    assert set(numbers) == drawn


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of each algorithm that can draw its actions, by name."""
    root = tmp_path_factory.mktemp("runs")
    for algo, env_id in (("ppo", "CartPole-v1"), ("sac", "Pendulum-v1")):
        values = {"total_timesteps": 64, "num_envs": 2, "vectorization": "sync", "eval_episodes": 0}
        config = TrainConfig(algo=algo, env_id=env_id, algo_kwargs=TINY[algo], output_dir=root, **values)
        get_algorithm_spec(algo).train_fn(config).run_dir.rename(root / algo)
    return root


@pytest.mark.parametrize("algo", ["ppo", "sac"])
def test_drawn_actions_depend_on_the_episode_and_not_on_its_neighbours(
    algo: str, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = evaluate_checkpoint(trained / algo, 3, deterministic=False)
    assert drawn == evaluate_checkpoint(trained / algo, 3, deterministic=False)
    assert drawn["eval_return_mean"] != evaluate_checkpoint(trained / algo, 3)["eval_return_mean"]
    monkeypatch.setattr("rl_training.runtime.evaluator.MAX_ENVS", 1)
    alone = evaluate_checkpoint(trained / algo, 3, deterministic=False)
    assert alone == pytest.approx(drawn, rel=1e-3)  # a product of other rows may differ in its last bit


def test_a_model_is_evaluated_as_asked_and_its_predictions_are_not_disturbed(trained: Path) -> None:
    model, other = PPO.load(trained / "ppo"), PPO.load(trained / "ppo")
    drawn = model.evaluate(3, deterministic=False, seed=4)
    assert drawn == model.evaluate(3, deterministic=False, seed=4) != model.evaluate(3, deterministic=False, seed=5)
    obs = np.zeros((50, 4), np.float32)
    assert model.predict(obs, deterministic=False).tolist() == other.predict(obs, deterministic=False).tolist()
    with pytest.raises(ConfigError, match="eval_seed=-1"):
        model.evaluate(1, seed=-1)


def test_evaluations_that_draw_actions_leave_the_training_as_it_is(make_each: MakeConfig) -> None:
    weights = []
    for changes in ({"eval_episodes": 0}, {"eval_deterministic": False}):
        config = make_each(**changes)
        saved = load_checkpoint(get_algorithm_spec(config.algo).train_fn(config).checkpoint_path)
        weights.append(digest(saved.algorithm_state))
    assert weights[0] == weights[1]


def test_eval_takes_a_run_and_the_settings_of_its_episodes(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = str(trained / "ppo")

    def printed(*options: str) -> str:
        assert main(["eval", run_dir, "--num-episodes", "2", *options]) == 0
        return capsys.readouterr().out

    assert printed("--seed", "3") == printed("--seed", "3", "--deterministic") != printed("--seed", "3", "--stochastic")
    short = printed("--env-kwargs", "max_episode_steps=4")
    assert re.search(r"eval_length_mean +4\.00", short)
    for options, said in (
        (["--checkpoint", run_dir], "give either CHECKPOINT_OR_RUN or --checkpoint"),
        (["--env-kwargs", "size"], "--env-kwargs size: give key=value"),
        (["--env-kwargs", "size=8"], "unexpected keyword argument 'size'"),
    ):
        assert main(["eval", run_dir, *options]) == 2
        assert said in capsys.readouterr().err
