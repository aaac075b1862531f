"""`compare` and `plot` as a user calls them, on runs that were really trained and on bad input."""

import json
from pathlib import Path

import pytest
from conftest import TINY_PPO
from sample_runs import write_group, write_run
from test_progress import PNG_MAGIC

from rl_training.cli import main
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.ppo_trainer import train_ppo


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two groups of two seeds each, `first` and `second`, with different learning rates."""
    root = tmp_path_factory.mktemp("trained")
    for name, rate in (("first", 1e-3), ("second", 1e-4)):
        for seed in (1, 2):
            settings = {"num_envs": 4, "eval_episodes": 2, "eval_interval": 64, "total_timesteps": 128}
            algo_kwargs = {**TINY_PPO, "learning_rate": rate}
            config = {"algo": "ppo", "env_id": "CartPole-v1", "seed": seed, **settings, "algo_kwargs": algo_kwargs}
            train_ppo(TrainConfig(**config, output_dir=root / name))
    return root


def test_compare_shows_both_sides_every_seed_and_a_verdict(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(trained / "first"), str(trained / "second")]) == 0
    text = capsys.readouterr().out
    for words in ("Final evaluation on CartPole-v1", "A  first", "B  second", "IQM", "95 % interval", "median"):
        assert words in text
    assert [line.split()[0] for line in text.splitlines() if line[:1].isdigit()] == ["1", "2"]
    assert "a run of B beats a run of A with probability" in text
    assert "Undecided whether B is better or worse than A" in text
    assert "train at least 4 per side" in text


@pytest.mark.parametrize("metric", ["final", "best", "auc"])
def test_compare_prints_nothing_but_json_if_asked(
    trained: Path, metric: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(trained / "first"), str(trained / "second"), "--metric", metric, "--confidence", "0.9", "--json"]
    assert main(["compare", *arguments]) == 0
    values = json.loads(capsys.readouterr().out)
    assert (values["score"], values["confidence"], values["verdict"]) == (metric, 0.9, "undecided")
    assert values["a"]["seeds"] == values["b"]["seeds"] == [1, 2]


def test_plot_draws_what_was_trained(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "curves.png"
    places = [str(trained / "first"), str(next((trained / "second").iterdir()))]
    assert main(["plot", *places, "--output", str(output), "--threshold", "1e9"]) == 0
    assert output.read_bytes().startswith(PNG_MAGIC)
    text = capsys.readouterr().out
    assert "first: 0 of 2 runs reached 1,000,000,000\n" in text
    assert f"curves: {output}\n" in text


def test_notes_go_to_standard_error_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = write_group(tmp_path / "a", [1.0] * 4), write_group(tmp_path / "b", [2.0] * 4, total_timesteps=9_000)
    running = write_run(a, 7, [1.0], status="running")
    assert main(["compare", str(a), str(b)]) == 0
    captured = capsys.readouterr()
    assert "B is better than A" in captured.out
    assert captured.err.splitlines() == [
        f"note: left out: {running} (running)",
        "note: budgets differ: 2,000 env steps for A, 9,000 for B",
    ]
    output = str(tmp_path / "curves.svg")
    assert main(["plot", str(a), str(a), "--output", output]) == 0
    assert capsys.readouterr().err == f"note: left out: {running} (running)\n"
    assert main(["plot", str(running), "--output", output, "--unfinished"]) == 0


def test_a_mistake_is_one_line_and_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = write_group(tmp_path / "a", [1.0]), write_group(tmp_path / "b", [1.0])
    other = write_group(tmp_path / "other", [1.0], env_id="Acrobot-v1")
    empty = tmp_path / "empty"
    empty.mkdir()
    for arguments, reason in (
        (["compare", str(a), str(other)], "compare runs of one environment"),
        (["compare", str(a), str(a)], "is on both sides"),
        (["compare", str(a), str(empty)], "no finished runs below"),
        (["compare", str(a), str(tmp_path / "nowhere")], "nowhere is not a directory"),
        (["compare", str(a)], "Missing argument 'B'"),
        (["compare", str(a), str(b), "--metric", "median"], "have no 'median'; known: return, mean_reward, std_reward"),
        (["compare", str(a), str(b), "--metric", "return:median"], "--metric return:median: give final, best, auc, or"),
        (["compare", str(a), str(other), "--confidence", "95"], "confidence=95.0: give a number"),
        (["plot"], "Missing argument"),
        (["plot", str(a), str(other)], "make a plot for each environment"),
        (["plot", str(a), "--metric", "loss"], "has no metric 'eval/loss'"),
        (["report", str(a), "--metric", "loss"], "no run has it; choose from return, mean_reward, std_reward"),
        (["plot", str(a), "--output", "curves.gif"], "ends with one of .png, .svg"),
    ):
        assert main(arguments) == 2
        captured = capsys.readouterr()
        assert reason in captured.err
        assert captured.err.count("\n") == 1
        assert captured.out == ""
