"""Runs killed by SIGKILL at random moments end as if they had not been; `make chaos` does this on more envs."""

import random
from dataclasses import replace
from pathlib import Path

import chaos_cluster
import pytest
from chaos import Outcome, Scenario, all_scenarios, format_table, run_scenario

SHORT = [
    Scenario("ppo", "CartPole-v1", "async"),
    Scenario("dqn", "CartPole-v1", "sync"),
    Scenario("sac", "chaos_envs:HiddenWalk-v0", "async", (("continuous", True),)),
]


@pytest.fixture(autouse=True)
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of a second or two; the replay buffers still overflow."""
    monkeypatch.setattr("chaos._BUDGETS", {"ppo": 4_096, "dqn": 4_000, "sac": 2_400})


@pytest.mark.parametrize(
    "scenario",
    [pytest.param(each, id=each.algo, marks=[] if each.algo == "dqn" else pytest.mark.slow) for each in SHORT],
)
def test_a_killed_run_is_never_lost_and_ends_as_the_uninterrupted_one(scenario: Scenario, tmp_path: Path) -> None:
    outcome = run_scenario(scenario, kills=4, generator=random.Random(3), directory=tmp_path)
    assert (outcome.kills, outcome.lost, outcome.equal) == (4, 0, True)
    assert outcome.exact_resumes >= 2


@pytest.mark.slow
def test_a_killed_run_on_an_env_that_remembers_is_never_called_exact_and_different(tmp_path: Path) -> None:
    scenario = Scenario("ppo", "chaos_envs:WornWalk-v0", "sync", replays=False)
    outcome = run_scenario(scenario, kills=4, generator=random.Random(3), directory=tmp_path)
    assert (outcome.kills, outcome.lost, outcome.false_claims) == (4, 0, 0)
    assert outcome.exact_resumes == 0
    assert outcome.passed(scenario)


def test_a_false_claim_a_lost_run_and_a_difference_are_bad() -> None:
    repeatable, other = Scenario("ppo", "CartPole-v1", "sync"), Scenario("ppo", "BipedalWalker-v3", "sync", (), False)
    good = Outcome(kills=9, in_saves=0, lost=0, equal=True, resumes=9, exact_resumes=9, false_claims=0)
    assert good.passed(repeatable)
    assert not replace(good, lost=1).passed(repeatable)
    assert not replace(good, equal=False).passed(repeatable)
    assert replace(good, equal=False, exact_resumes=0).passed(other)
    assert not replace(good, equal=False, false_claims=1).passed(other)


def test_every_algorithm_is_killed_on_every_kind_of_env() -> None:
    scenarios = all_scenarios()
    for algo in ("ppo", "dqn", "sac"):
        kinds = {(scenario.env_id, scenario.vectorization) for scenario in scenarios if scenario.algo == algo}
        assert len(kinds) >= 6
        assert {("chaos_envs:HiddenWalk-v0", kind) for kind in ("sync", "async")} <= kinds
    assert sum(not scenario.replays for scenario in scenarios) >= 8
    assert 24 * len(scenarios) >= 1_000
    assert format_table([]).count("\n") == 1


def test_the_section_about_clusters_names_every_difference_and_replaces_the_older_one() -> None:
    same = chaos_cluster.Outcome("HalfCheetah-v5", (True,) * 4, killed_collectors=3, killed_nodes=2)
    other = chaos_cluster.Outcome("chaos_envs:PanelWalk-v0", (True, True, True, False), 4, 1)
    section = chaos_cluster.format_section([same, other])
    assert "7 collectors and 3 nodes were killed. In 1 of 2 scenarios" in section
    assert "| ppo | PanelWalk-v0 | 3,840 | yes | yes | yes | NO | 4 | 1 |" in section
    once = chaos_cluster.replace_section("# Killed\n\nRuns.\n", section)
    assert once.startswith("# Killed\n\nRuns.\n\n## ")
    assert chaos_cluster.replace_section(once, section) == once
