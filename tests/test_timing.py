"""Where the time of a run went: logged, kept over a resume, and begun anew in a fork."""

import itertools
from typing import Any

import pytest
from conftest import MakeConfig

from rl_training.experiment.runs import context_of, read_metadata, read_metrics
from rl_training.runtime.ppo_trainer import train_ppo
from rl_training.runtime.registry import get_algorithm_spec
from rl_training.runtime.trainer import TrainResult
from rl_training.runtime.workflows import resume_training


def logged_rows(result: TrainResult) -> list[dict[str, Any]]:
    return [row for row in read_metrics(context_of(result.run_dir)) if "time/fps" in row]


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_the_time_of_a_run_is_split_by_what_it_was_spent_on_also_after_resuming(
    make_config: MakeConfig, algo: str
) -> None:
    result = get_algorithm_spec(algo).train_fn(make_config(algo=algo))
    resume_training(result.run_dir, total_timesteps=256)
    rows = logged_rows(result)
    assert [row["step"] for row in rows] == [64, 128, 192, 256]
    names = ("time/collect_seconds", "time/update_seconds", "time/evaluate_seconds")
    for name in names:
        assert 0.0 < rows[1][name] <= rows[2][name] <= rows[3][name]
    assert sum(rows[3][name] for name in names) <= read_metadata(context_of(result.run_dir))["wall_seconds"]


def test_a_fork_counts_the_seconds_of_its_own_directory(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = itertools.count(step=10)  # every look at the clock takes ten seconds
    monkeypatch.setattr("rl_training.runtime.session.perf_counter", lambda: float(next(ticks)))
    parent = train_ppo(make_config())
    fork = resume_training(parent.checkpoint_path.parent / "step_64.pt")
    updates = [[row["time/update_seconds"] for row in logged_rows(result)] for result in (parent, fork)]
    assert updates == [[10.0, 20.0], [10.0]]
