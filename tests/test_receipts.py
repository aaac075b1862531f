"""Receipts, the measured results of presets: written, read, checked against the presets, and trained again."""

import json
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml

from rl_training.cli import main
from rl_training.cores import cpu_name
from rl_training.errors import ConfigError, RunDirectoryError
from rl_training.groups.benchmarking import SUITES, presets_of
from rl_training.results import receipts
from rl_training.results.receipts import (
    RECEIPTS_DIR,
    Receipt,
    ReceiptCheck,
    Reference,
    SeedScore,
    preset_digest,
    preset_names,
    reaches_reference,
    read_receipt,
    read_receipts,
    read_references,
    read_searches,
    summarize,
    write_receipt,
)
from rl_training.results.receipts_page import write_page

TINY = """
algo: ppo
env_id: CartPole-v1
total_timesteps: 128
num_envs: 2
eval_episodes: 2
algo_kwargs: {num_steps: 32, minibatch_size: 32, update_epochs: 2, hidden_sizes: [8]}
"""


def make_receipt(*returns: float, preset: str = "ppo/cartpole") -> Receipt:
    scores = tuple(
        SeedScore(seed=seed, return_mean=value, return_std=1.0, env_steps=1_000, wall_seconds=2.0)
        for seed, value in enumerate(returns, start=1)
    )
    iqm, interval = summarize(scores)
    return Receipt(
        preset=preset,
        preset_sha256="0" * 64,
        env_id="CartPole-v1",
        eval_episodes=10,
        scores=scores,
        iqm=iqm,
        interval=interval,
        compile="off",
        versions={"rl_training": "0.1.0"},
        git_commit=None,
        hardware={"cpu": "some", "cores": 2},
        jobs=2,
        created_at="2026-01-01T00:00:00+0000",
    )


def test_every_suite_has_presets_and_every_gymnasium_preset_is_in_one() -> None:
    by_suite = {suite: presets_of(suite) for suite in SUITES}
    assert "ppo/cartpole" in by_suite["classic"]
    assert "dqn/lunarlander" in by_suite["box2d"]
    assert "sac/halfcheetah" in by_suite["mujoco"]
    assert "ppo/taxi" in by_suite["toy_text"]
    assert "ppo/minatar_breakout" in by_suite["third_party"]
    assert sorted(chain(*by_suite.values())) == preset_names()


def test_references_are_those_of_presets_that_exist() -> None:
    references = read_references()
    assert set(references) <= set(preset_names())
    assert references["dqn/lunarlander"] == Reference(154.0, 79.0, 100_000)


def test_searches_are_those_of_presets_that_exist_and_shown_with_their_receipts(tmp_path: Path) -> None:
    assert set(read_searches()) <= set(preset_names())
    write_page(tmp_path / "page.md", [make_receipt(1.0, preset="ppo/lunarlander")])
    assert f"- `ppo/lunarlander`: {read_searches()['ppo/lunarlander']}." in (tmp_path / "page.md").read_text()


@pytest.mark.parametrize("receipt", read_receipts(RECEIPTS_DIR), ids=lambda receipt: receipt.preset)
def test_a_shipped_receipt_is_that_of_the_shipped_preset(receipt: Receipt) -> None:
    assert receipt.preset_sha256 == preset_digest(receipt.preset)
    assert (receipt.iqm, receipt.interval) == summarize(receipt.scores)
    assert not (receipt.git_commit or "").endswith("-dirty")


def test_the_page_shows_the_shipped_receipts(tmp_path: Path) -> None:
    write_page(tmp_path / "page.md", read_receipts(RECEIPTS_DIR))
    shown = Path(__file__).parents[1] / "docs" / "benchmarks.md"
    assert shown.read_text() == (tmp_path / "page.md").read_text()


def test_a_receipt_is_read_as_it_was_written(tmp_path: Path) -> None:
    receipt = make_receipt(450.0, 500.0, 480.0)
    path = write_receipt(tmp_path, receipt)
    assert path == tmp_path / "ppo" / "cartpole.json"
    assert read_receipt(path) == receipt
    assert read_receipts(tmp_path) == [receipt]
    plain = json.loads(path.read_text())
    del plain["compile"]
    path.write_text(json.dumps(plain))
    assert read_receipt(path).compile is None  # written before it was recorded
    path.write_text('{"preset": 3}')
    with pytest.raises(RunDirectoryError, match=r"cartpole\.json is not a receipt"):
        read_receipt(path)


def test_one_seed_has_no_interval() -> None:
    assert make_receipt(450.0).interval is None
    interval = make_receipt(450.0, 500.0, 480.0).interval
    assert interval is not None
    assert 450.0 <= interval[0] < 478.0 < interval[1] <= 500.0


def test_a_repetition_holds_inside_the_interval_or_where_intervals_overlap() -> None:
    stored = make_receipt(100.0, 110.0, 120.0, 130.0, 140.0)
    inside = ReceiptCheck(stored, make_receipt(118.0, 119.0, 121.0))
    assert (inside.is_inside, inside.holds) == (True, True)
    assert inside.sentence.startswith("holds: 119.3 is inside the stored interval, 1")
    near = ReceiptCheck(stored, make_receipt(139.0, 150.0, 160.0))
    assert (near.is_inside, near.holds) == (False, True)
    assert "overlaps it" in near.sentence
    far = ReceiptCheck(stored, make_receipt(1.0, 2.0, 3.0))
    assert (far.is_inside, far.holds) == (False, False)
    assert far.sentence.startswith("does not hold: 2.00 is outside the stored interval")
    single = ReceiptCheck(make_receipt(500.0), make_receipt(500.0))
    assert single.is_inside


def test_a_row_is_marked_where_it_stays_below_the_reference(tmp_path: Path) -> None:
    assert reaches_reference(make_receipt(90.0, 100.0, 110.0), Reference(120.0, 15.0, 1_000))
    assert not reaches_reference(make_receipt(90.0, 91.0, 92.0), Reference(120.0, 15.0, 1_000))
    write_page(tmp_path / "page.md", [make_receipt(90.0, 91.0, 92.0), make_receipt(1.0, preset="ppo/unknown")])
    rows = (tmp_path / "page.md").read_text().splitlines()[-2:]
    assert rows[0].startswith("| `ppo/cartpole` | 1,000 | 3 | 91.00 **below** |")
    assert rows[1] == "| `ppo/unknown` | 1,000 | 1 | 1.00 |  | 1.00 |  | 2 s, 2 | 10 | off |"


@pytest.fixture
def tiny_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    folder = tmp_path / "presets" / "ppo"
    folder.mkdir(parents=True)
    (folder / "tiny.yaml").write_text(TINY)
    monkeypatch.setattr(receipts, "PRESETS_DIR", tmp_path / "presets")
    monkeypatch.chdir(tmp_path)
    return "ppo/tiny"


def run(*arguments: str) -> int:
    return main(["benchmark", *arguments, "--seeds", "1-2", "--episodes", "3"])


@pytest.mark.slow
def test_a_preset_is_measured_once_and_verified(tiny_preset: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tiny_preset, "--document", "page.md") == 0
    receipt = read_receipt(Path("receipts/ppo/tiny.json"))
    assert [score.seed for score in receipt.scores] == [1, 2]
    assert {score.env_steps for score in receipt.scores} == {128}
    assert receipt.preset_sha256 == preset_digest(tiny_preset)
    assert receipt.hardware["cpu"] == cpu_name()
    assert "| `ppo/tiny` | 128 | 2 |" in Path("page.md").read_text()
    capsys.readouterr()
    assert run(tiny_preset) == 0
    assert "its receipt is up to date" in capsys.readouterr().out
    assert main(["benchmark", tiny_preset, "--seeds", "1-2", "--episodes", "4"]) == 0
    assert read_receipt(Path("receipts/ppo/tiny.json")).eval_episodes == 4
    assert run(tiny_preset, "--again") == 0
    capsys.readouterr()
    assert run("--verify", tiny_preset, "--receipts", "receipts") == 0
    assert f"holds: {receipt.iqm:.2f} is inside" in capsys.readouterr().out  # the same seeds give the same agents
    stored: dict[str, Any] = json.loads(Path("receipts/ppo/tiny.json").read_text())
    stored |= {"iqm": 1e6, "interval": [1e6, 1e6], "preset_sha256": "0" * 64}
    Path("receipts/ppo/tiny.json").write_text(json.dumps(stored))
    assert run("--verify", tiny_preset, "--receipts", "receipts") == 1
    printed = capsys.readouterr()
    assert "does not hold" in printed.out
    assert "has changed since its receipt was written" in printed.err


def test_a_preset_is_verified_in_the_mode_of_its_receipt(tiny_preset: str, tmp_path: Path) -> None:
    assert run(tiny_preset) == 0
    assert read_receipt(Path("receipts/ppo/tiny.json")).compile == "off"  # so short a run does not earn compiling
    (tmp_path / "presets" / "ppo" / "tiny.yaml").write_text(TINY + "compile: on\n")
    assert run("--verify", tiny_preset, "--receipts", "receipts", "--output-dir", "repeated") == 0
    configs = [yaml.safe_load(path.read_text()) for path in Path("repeated").glob("*/*/config.yaml")]
    assert [config["compile"] for config in configs] == ["off", "off"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give a suite"),
        (["classic", "--verify", "ppo/cartpole"], "give a suite"),
        (["clasic"], "there is no suite 'clasic': give classic, toy_text, box2d, mujoco, atari, third_party"),
        (["ppo/cartpol"], "no preset 'ppo/cartpol': did you mean 'ppo/cartpole'?"),
        (["--verify", "ppo/../ppo/cartpole"], "no preset"),
        (["--verify", "ppo/cartpole", "--receipts", "nowhere"], "has no receipt in nowhere"),
        (["classic", "--seeds", "3-1"], "the range 3-1 is empty"),
        (["classic", "--jobs", "many"], "give auto"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["benchmark", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_seed_that_fails_leaves_no_receipt(
    tiny_preset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = TINY.replace("CartPole-v1", "sample_envs:tests/Failing-v0") + "env_kwargs: {fails_at: 5}\n"
    (tmp_path / "presets" / "ppo" / "tiny.yaml").write_text(broken)
    with pytest.raises(ConfigError):
        presets_of("ppo/other")
    assert run(tiny_preset) == 2
    assert "seed 1 failed" in capsys.readouterr().err
    assert not Path("receipts").exists()
