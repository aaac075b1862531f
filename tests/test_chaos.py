"""Runs killed by SIGKILL at random moments end as if they had not been; `make chaos` does this on more envs."""

import random
from pathlib import Path

import pytest
from chaos import Scenario, all_scenarios, table, try_scenario

SHORT = [
    Scenario("ppo", "CartPole-v1", "async"),
    Scenario("dqn", "CartPole-v1", "sync"),
    Scenario("sac", "chaos:HiddenWalk-v0", "async", (("continuous", True),)),
]


@pytest.mark.parametrize("scenario", SHORT, ids=lambda scenario: scenario.algo)
def test_a_killed_run_is_never_lost_and_ends_as_the_straight_one(scenario: Scenario, tmp_path: Path) -> None:
    outcome = try_scenario(scenario, kills=4, moments=random.Random(3), directory=tmp_path)
    assert (outcome.kills, outcome.lost, outcome.equal) == (4, 0, True)
    assert outcome.exact_resumes >= 2


def test_every_algorithm_is_killed_on_every_kind_of_env() -> None:
    scenarios = all_scenarios()
    for algo in ("ppo", "dqn", "sac"):
        kinds = {(scenario.env_id, scenario.vectorization) for scenario in scenarios if scenario.algo == algo}
        assert len(kinds) >= 6
        assert {("chaos:HiddenWalk-v0", kind) for kind in ("sync", "async")} <= kinds
    assert {scenario.extra for scenario in scenarios} == {None, "box2d", "mujoco"}
    assert table([]).count("\n") == 1
