"""Two groups compared: the verdict is about B, says what would decide, and names what makes it unfair."""

import json
from pathlib import Path

import numpy as np
import pytest
from sample_runs import write_group, write_run

from rl_training.errors import ConfigError, RunDirectoryError
from rl_training.results import Comparison, compare, load_group
from rl_training.results.permutation import permutation_p_value

LOW, HIGH = [10.0, 12.0, 14.0, 16.0, 18.0], [50.0, 52.0, 54.0, 56.0, 58.0]


def compared(tmp_path: Path, a: list[float], b: list[float], confidence: float = 0.95) -> Comparison:
    groups = [load_group(write_group(tmp_path / name, finals)) for name, finals in (("a", a), ("b", b))]
    return compare(groups[0], groups[1], confidence=confidence)


def test_a_clear_difference_is_decided_in_favour_of_the_higher(tmp_path: Path) -> None:
    found = compared(tmp_path, LOW, HIGH)
    assert found.verdict == "better"
    assert found.difference.value == found.mean_difference == 40.0
    assert 0.0 < found.difference.interval.low < 40.0 < found.difference.interval.high
    assert found.p_value == pytest.approx(2 / 252)  # this split and its mirror image
    assert found.probability_of_improvement.value == 1.0
    assert found.probability_of_improvement.interval.low < 1.0
    assert found.sentence.startswith("B is better than A: its interquartile mean is 40.00 higher than that of A (95 %")


def test_the_verdict_turns_with_the_sides(tmp_path: Path) -> None:
    found = compared(tmp_path, HIGH, LOW)
    assert found.verdict == "worse"
    assert found.difference.value == -40.0
    assert found.probability_of_improvement.value == 0.0
    assert "B is worse than A: its interquartile mean is 40.00 lower" in found.sentence


def test_each_side_is_summed_up(tmp_path: Path) -> None:
    side = compared(tmp_path, [1.0, 2.0, 3.0, 10.0], HIGH).a
    assert (side.label, side.algo, side.seeds, side.scores) == ("a", "ppo", (1, 2, 3, 4), (1.0, 2.0, 3.0, 10.0))
    assert (side.iqm.value, side.median, side.mean) == (2.5, 2.5, 4.0)
    assert 1.0 <= side.iqm.interval.low < 2.5 < side.iqm.interval.high <= 10.0


def test_three_seeds_decide_nothing_and_the_sentence_says_how_many_would(tmp_path: Path) -> None:
    found = compared(tmp_path, LOW[:3], HIGH[:3])
    assert found.verdict == "undecided"
    assert not found.difference.interval.is_bounded
    assert (
        "These seeds are too few for a verdict: train at least 4 per side. About 1 more seed per side" in found.sentence
    )
    assert compared(tmp_path / "single", LOW[:1], HIGH[:1]).seeds_needed == 4


def test_the_suggested_number_of_seeds_finds_the_difference_in_most_trials(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    a, b = (np.array([-1.35, -0.6, 0.0, 0.6, 1.35]) + shift for shift in (0.0, 1.0))  # spread of a standard normal
    found = compared(tmp_path, a.tolist(), b.tolist())
    assert found.verdict == "undecided"
    assert found.seeds_needed is not None
    assert found.more_seeds == (found.seeds_needed - 5, found.seeds_needed - 5)
    assert f"About {found.seeds_needed - 5} more seeds per side would likely decide" in found.sentence
    pairs = rng.normal(size=(100, 2, found.seeds_needed))
    assert 65 <= sum(permutation_p_value(first, second + 1.0) <= 0.03 for first, second in pairs) <= 95


def test_sides_of_different_size_are_told_apart(tmp_path: Path) -> None:
    found = compared(tmp_path, LOW, [20.0, 22.0])
    assert found.verdict == "undecided"
    assert "These seeds are too few for a verdict" in found.sentence  # this split is one of 21
    assert "About 2 more of B would" in found.sentence
    assert compared(tmp_path / "more", [*LOW, 19.0, 20.0, 21.0], HIGH[:3]).verdict == "better"  # one of 165
    overlapping = compared(tmp_path / "overlapping", LOW, [13.0, 15.0, 17.0, 19.0])
    assert overlapping.more_seeds is not None
    assert overlapping.more_seeds[1] == overlapping.more_seeds[0] + 1
    assert f"{overlapping.more_seeds[0]} more of A and {overlapping.more_seeds[1]} more of B" in overlapping.sentence


@pytest.mark.parametrize("b", [[10.0, 12.0, 14.0, 16.0, 18.0], [10.0, 12.0, 14.1, 16.0, 18.0]], ids=["none", "tiny"])
def test_no_or_a_tiny_difference_is_not_soon_decided(tmp_path: Path, b: list[float]) -> None:
    found = compared(tmp_path, LOW, b)
    assert found.verdict == "undecided"
    assert found.seeds_needed is None
    assert "More seeds would hardly help: a verdict would need over 1,000 per side." in found.sentence
    assert ("their interquartile means are equal" in found.sentence) == (b == LOW)


def test_more_confidence_asks_for_more(tmp_path: Path) -> None:
    assert compared(tmp_path / "usual", LOW, HIGH, 0.95).verdict == "better"
    assert compared(tmp_path / "strict", LOW, HIGH, 0.999).verdict == "undecided"
    for confidence in (0.1, 1.0, 95.0):
        with pytest.raises(ConfigError, match=r"give a number from 0.5 to 0.999"):
            compared(tmp_path / str(confidence), LOW, HIGH, confidence)


def test_best_and_area_are_other_scores(tmp_path: Path) -> None:
    for seed in range(1, 6):
        write_run(tmp_path / "a", seed, [100.0 + seed, 0.0, 50.0])
        write_run(tmp_path / "b", seed, [seed, 40.0 + seed, 50.0])
    a, b = load_group(tmp_path / "a"), load_group(tmp_path / "b")
    assert compare(a, b).verdict == "undecided"
    assert compare(a, b, score="best").a.scores == (101.0, 102.0, 103.0, 104.0, 105.0)
    assert compare(a, b, score="best").verdict == "worse"
    assert compare(a, b, score="auc").b.scores[0] == (0.5 * 1.0 + 41.0 + 0.5 * 50.0) / 2.0


def test_different_environments_and_shared_runs_are_refused(tmp_path: Path) -> None:
    here = load_group(write_group(tmp_path / "here", LOW))
    there = load_group(write_group(tmp_path / "there", LOW, env_id="Acrobot-v1"))
    with pytest.raises(RunDirectoryError, match="here is on CartPole-v1, there on Acrobot-v1: compare runs of one"):
        compare(here, there)
    with pytest.raises(RunDirectoryError, match="is on both sides"):
        compare(here, load_group(here.runs[0].run_dir))


def test_what_makes_the_comparison_unfair_is_noted(tmp_path: Path) -> None:
    a = load_group(write_group(tmp_path / "a", LOW, total_timesteps=5_000))
    b = load_group(write_group(tmp_path / "b", HIGH, status="stopped", env_kwargs={"sutton_barto_reward": True}))
    assert compare(a, b).notes == (
        "budgets differ: 5,000 env steps for A, 2,000 for B",
        "env_kwargs differ: the environments may not be the same",
        "5 of 5 runs of B stopped before their budget was used up",
    )


def test_json_says_null_where_an_end_is_unknown(tmp_path: Path) -> None:
    values = json.loads(json.dumps(compared(tmp_path, LOW[:2], HIGH[:2]).to_json(), allow_nan=False))
    assert values["verdict"] == "undecided"
    assert values["difference"] == {"value": 40.0, "interval": {"low": None, "high": None, "confidence": 0.95}}
    assert values["a"]["scores"] == [10.0, 12.0]
    assert values["more_seeds"] == [2, 2]
    assert values["sentence"].startswith("Undecided")
