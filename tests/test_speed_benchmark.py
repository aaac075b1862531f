"""The speed benchmark gives both sides the same work, and its report says what the measurements say."""

import inspect
import math
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import speed
from speed_common import ROWS, Growth, Job, Measurement, Outcome, Report, Row, Side, Split
from speed_envs import FallingBall
from speed_ours import auto_compiles, make_config
from speed_parts import PARTS, gradient_passes, split
from speed_report import (
    break_even,
    compare,
    document,
    draw_chart,
    draw_growth,
    growth_chart,
    learns_as_well,
    load_report,
    missed_targets,
    row_named,
    row_table,
    save_report,
    summarise,
)

from rl_training.compiling import remember_compiling
from rl_training.runtime.registry import get_algorithm_spec


def measured(row: str, side: Side, speeds: tuple[float, ...], *, threads: int = 1, **changes: Any) -> list[Measurement]:
    """One measurement per round; by wall time twice as slow as by CPU time."""
    base = Measurement(
        row=row,
        side=side,
        round=0,
        threads=threads,
        seed=1,
        import_seconds=1.0,
        warmup_seconds=2.0,
        steady_steps=1_000,
        steady_wall_seconds=1.0,
        steady_cpu_seconds=1.0,
        steps_per_wall_second=1.0,
        steps_per_cpu_second=1.0,
        peak_memory_mb=300.0,
        episode_return=100.0,
    )
    return [
        replace(base, round=number, steps_per_cpu_second=speed, steps_per_wall_second=speed / 2, **changes)
        for number, speed in enumerate(speeds)
    ]


def report_of(*groups: list[Measurement], **changes: Any) -> Report:
    values: dict[str, Any] = {
        "date": "2026-01-01",
        "versions": {"torch": "2"},
        "machine": {"CPU": "model", "cores": 2},
        "rounds": 3,
        "steps_scale": 1.0,
        "measurements": [each for group in groups for each in group],
        **changes,
    }
    return Report(**values)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_row_is_a_valid_config_of_ours(row: Row, tmp_path: Path) -> None:
    config = make_config(Job("measure", row, "eager", row.budget(1.0)), tmp_path)
    params = get_algorithm_spec(row.algo).resolve_params_fn(config).model_dump()
    assert set(row.params) <= set(params)
    assert (config.eval_episodes, config.checkpoint_interval, config.checkpoint_seconds) == (0, 0, 0.0)
    assert row.budget(1.0) == row.steps  # whole updates already
    assert row.budget(1e-9) % row.steps_per_update == 0


def test_auto_compiles_the_rows_that_earn_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for seconds, compiled in ((1e-3, "A1 A2 B C D E F"), (15.0, "A2 B C D F"), (1e4, "")):
        remember_compiling(seconds)
        assert " ".join(row.name for row in ROWS if auto_compiles(row)) == compiled


def test_rows_with_images_are_also_measured_in_bfloat16(tmp_path: Path) -> None:
    assert [row.name for row in ROWS if "bfloat16" in row.sides] == ["E", "F"]
    for name in ("E", "F"):
        row = row_named(name)
        lower, exact = (
            make_config(Job("measure", row, side, row.steps), tmp_path) for side in ("bfloat16", "compiled")
        )
        assert lower.algo_kwargs == {**exact.algo_kwargs, "precision": "bfloat16"}
        assert lower.model_copy(update={"algo_kwargs": exact.algo_kwargs}) == exact


def test_the_rows_do_the_work_that_they_are_named_for() -> None:
    work = {
        row.name: (row.steps_per_update, row.batch_size, row.gradient_steps_per_update, row.params["hidden_sizes"])
        for row in ROWS
    }
    assert work == {
        "A1": (1_024, 256, 16, [64, 64]),
        "A2": (2_048, 64, 320, [64, 64]),
        "B": (1, 64, 1, [64, 64]),
        "C": (1, 256, 1, [256, 256]),
        "D": (2_048, 256, 80, [64, 64]),
        "E": (1_024, 256, 16, []),
        "F": (4, 32, 1, []),
    }


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_other_side_gets_every_parameter_of_ours(row: Row) -> None:
    stable_baselines3 = pytest.importorskip("stable_baselines3")
    from speed_sb3 import make_arguments

    given = make_arguments(row)
    accepted = inspect.signature(getattr(stable_baselines3, row.algo.upper())).parameters
    assert set(given) <= set(accepted)
    network = {"hidden_sizes", "activation", "encoder"} & set(row.params)
    assert len(given) == len(row.params) - len(network) + 1  # they make one argument
    assert given["batch_size"] == row.batch_size
    assert given["policy_kwargs"]["net_arch"] == row.params["hidden_sizes"]
    if row.algo == "ppo":
        assert (given["n_steps"] * row.num_envs, given["n_epochs"]) == (
            row.steps_per_update,
            row.params["update_epochs"],
        )
        assert given["vf_coef"] == accepted["vf_coef"].default == row.params["vf_coef"] / 2
    else:
        assert (given["train_freq"], given["gradient_steps"]) == (row.steps_per_update, 1)


def test_the_other_side_is_measured_like_ours() -> None:
    pytest.importorskip("stable_baselines3")
    taken = Measurement(**speed.run_job(Job("measure", row_named("A1"), "sb3", 3_072)))
    assert taken.steady_steps == 2_048
    assert taken.steps_per_wall_second > 0.0


@pytest.mark.slow
def test_a_measurement_in_a_fresh_process_has_every_number() -> None:
    taken = Measurement(**speed.run_job(Job("measure", row_named("A1"), "eager", 3_072, seed=5)))
    assert (taken.row, taken.side, taken.threads, taken.seed) == ("A1", "eager", 1, 5)
    assert taken.steady_steps == 2_048  # without the first of three updates
    for name in ("import_seconds", "warmup_seconds", "steps_per_wall_second", "steps_per_cpu_second", "peak_memory_mb"):
        assert getattr(taken, name) > 0.0
    assert taken.episode_return is not None
    assert taken.episode_return > 1.0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["A1", "B", "C", "F"])
def test_the_parts_of_our_time_make_a_whole(name: str) -> None:
    row = row_named(name)
    small = {"num_steps": 32} if row.algo == "ppo" else {"learning_starts": 64, "batch_size": 16}
    row = replace(row, params={**row.params, **small, "hidden_sizes": [16, 16]})
    parts = split(Job("split", row, "eager", row.budget(1e-9)))
    assert set(parts.shares) == set(PARTS)
    assert math.isclose(sum(parts.shares.values()), 100.0, abs_tol=0.5)
    assert all(share > 0.0 for share in parts.shares.values())
    assert min(parts.microseconds_per_step, parts.raw_env_microseconds, parts.products_microseconds) > 0.0


def test_matrix_products_of_a_gradient_step_by_hand() -> None:
    def shapes(algo: str) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        passes = gradient_passes(algo, (8,), 4, 2)
        return [
            (tuple(left.shape), tuple(right.shape)) for each in passes for left, right in each.products(batch_size=32)
        ]

    forward = [((32, 4), (4, 8)), ((32, 8), (8, 2))]
    backward = [((4, 32), (32, 8)), ((8, 32), (32, 2)), ((32, 2), (2, 8))]
    assert sorted(shapes("dqn")) == sorted([*forward, *forward, *backward])
    assert len(shapes("ppo")) == 10  # two networks of two layers: 2 forward, 2 to weights, 1 to the hidden layer each
    assert len(shapes("sac")) == 2 + 2 * 2 + 2 * 5 + 5 + 2 * 4


def test_the_ratio_is_the_median_of_the_rounds_at_the_better_number_of_threads() -> None:
    report = report_of(
        measured("A1", "sb3", (100.0, 200.0, 100.0)),
        measured("A1", "sb3", (50.0, 50.0, 50.0), threads=2),
        measured("A1", "eager", (10.0, 10.0, 10.0)),
        measured("A1", "eager", (300.0, 400.0, 500.0), threads=2),
    )
    summaries = summarise(report, "A1")
    assert (summaries["sb3"].threads, summaries["sb3"].cpu, summaries["sb3"].ratio) == (1, 100.0, None)
    eager = summaries["eager"]
    assert (eager.threads, eager.cpu, eager.wall) == (2, 400.0, 200.0)
    assert eager.ratio is not None
    assert asdict(eager.ratio) == {"median": 3.0, "lowest": 2.0, "highest": 5.0}


def test_row_c_is_compared_by_wall_time() -> None:
    ours = measured("C", "eager", (100.0,))
    theirs = [replace(each, steps_per_cpu_second=1.0) for each in measured("C", "sb3", (50.0,))]
    ratio = compare(row_named("C"), ours, theirs)
    assert ratio is not None
    assert ratio.median == 2.0


def test_learning_less_is_told_from_noise() -> None:
    assert learns_as_well([96.0, 96.0], [100.0, 100.0])
    assert not learns_as_well([94.0, 94.0], [100.0, 100.0])
    assert learns_as_well([-415.0, -415.0], [-400.0, -400.0])
    assert not learns_as_well([-425.0, -425.0], [-400.0, -400.0])
    assert learns_as_well([-20.0, -20.0], [-50.0, 70.0])  # 30 lower, with an error of 60
    assert not learns_as_well([-20.0, -20.0] * 40, [-50.0, 70.0] * 40)
    assert learns_as_well([], [1.0])


def test_further_runs_count_with_their_returns_alone() -> None:
    timed = report_of(measured("A1", "sb3", (100.0,)), measured("A1", "eager", (900.0,), episode_return=40.0))
    assert not summarise(timed, "A1")["eager"].counts
    further = [Outcome("A1", "eager", seed, 160.0) for seed in (1_001, 1_002)]
    further += [Outcome("A1", "sb3", 1_001, 100.0), Outcome("A2", "eager", 1_001, -1e6), Outcome("A1", "sb3", 1, None)]
    report = replace(timed, outcomes=further)
    eager = summarise(report, "A1")["eager"]
    assert (eager.episode_return, round(eager.return_error, 6), eager.runs, eager.counts) == (120.0, 40.0, 3, True)
    assert eager.ratio == summarise(timed, "A1")["eager"].ratio
    assert "| 120.0 +- 40.0 (3) | yes |" in row_table(report, "A1")


@pytest.mark.slow
def test_further_runs_are_trained_with_seeds_of_their_own() -> None:
    row = replace(row_named("A1"), steps=2_048)
    outcomes = list(speed.train_extra_runs([(row, "eager")], runs=2, scale=1e-9))
    assert [(each.row, each.side, each.seed) for each in outcomes] == [("A1", "eager", 1_001), ("A1", "eager", 1_002)]
    assert len({each.episode_return for each in outcomes}) == 2


def test_a_row_that_learns_less_does_not_count() -> None:
    lower = measured("A1", "eager", (900.0,), episode_return=10.0)
    marked = report_of(measured("A1", "sb3", (100.0,)), lower)
    assert row_table(marked, "A1").endswith("| 10.0 (1) | NO |")
    assert missed_targets(marked)[0] == "A1 eager: learns less than SB3, so its ratio does not count"
    short = report_of(measured("A1", "sb3", (100.0,)), lower, steps_scale=0.1)
    assert row_table(short, "A1").endswith("| 10.0 (1) | not judged |")


def test_the_gate_names_what_is_missed() -> None:
    report = report_of(
        measured("A1", "sb3", (100.0,)),
        measured("A1", "eager", (300.0,)),
        measured("A1", "compiled", (499.0,)),
        measured("D", "sb3", (100.0,)),
        measured("D", "eager", (101.0,)),
    )
    assert missed_targets(report) == [
        "A1 compiled: 4.99 times SB3, the target is 5",
        "D compiled: not measured, the target is 2.5",
    ]
    parts = Split("A1", "compiled", dict.fromkeys(PARTS, 20.0), 30.0, 0.4, 5.0, 24.0)
    assert missed_targets(replace(report, splits=[parts]))[0].endswith("the matrix products alone take 80% of the time")


def test_the_gate_compares_the_memory_of_a_full_replay_buffer() -> None:
    eager = measured("F", "eager", (300.0,), peak_memory_mb=160.0)
    compiled = measured("F", "compiled", (300.0,), peak_memory_mb=140.0)
    lower = measured("F", "bfloat16", (300.0,), peak_memory_mb=140.0)
    report = report_of(measured("F", "sb3", (100.0,)), eager, compiled, lower)
    assert missed_targets(report) == ["F eager: 0.53 of the memory of SB3, the target is at most 0.5"]


def test_the_image_env_rewards_a_paddle_below_the_ball() -> None:
    env = FallingBall()
    image, _ = env.reset(seed=3)
    total, ended, steps = 0.0, False, 0
    while not ended:
        ball = (image == 255).any(axis=(0, 2)).nonzero()[0]
        image, reward, ended, _, _ = env.step(int(ball.mean()) // 28)
        total, steps = total + reward, steps + 1
    assert steps == 63
    assert total > 50.0


def test_the_gate_reads_a_file_and_answers_by_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for speed_of_ours, code in ((1_000.0, 0), (200.0, 1)):
        path = tmp_path / f"{code}.json"
        sides: tuple[Side, ...] = ("eager", "compiled")
        groups = [measured("A1", side, (speed_of_ours,)) for side in sides]
        save_report(path, report_of(measured("A1", "sb3", (100.0,)), *groups))
        page = tmp_path / f"{code}.md"
        monkeypatch.setattr(sys, "argv", ["speed.py", "--gate", str(path), "--document", str(page)])
        assert speed.main() == code
        assert ("every target is reached" in capsys.readouterr().out) == (code == 0)
        assert ("that are missed" in page.read_text()) == (code == 1)


def test_a_saved_report_is_read_back_and_holds_its_medians(tmp_path: Path) -> None:
    shares = dict.fromkeys(PARTS, 20.0)
    report = report_of(
        measured("A1", "sb3", (100.0, 100.0, 100.0)),
        measured("A1", "eager", (310.0, 320.0, 330.0)),
        splits=[Split("A1", "eager", shares, 30.0, 0.4, 5.0, 3.0)],
        growth=[Growth("PPO envs", 256, "eager", 54_321.0, "env steps per second")],
        outcomes=[Outcome("A1", "sb3", 1_001, 123.0)],
    )
    path = tmp_path / "results" / "speed.json"
    save_report(path, report)
    assert load_report(path) == report
    assert '"median": 3.2' in path.read_text()


def test_rows_that_are_not_measured_again_are_kept_and_the_page_says_when_they_were_measured() -> None:
    growth = [Growth("PPO envs", 256, "eager", 54_321.0, "env steps per second")]
    before = report_of(measured("A1", "sb3", (100.0,)), measured("B", "sb3", (50.0,)), growth=growth)
    middle = report_of(date="2026-02-02")
    middle.keep(before, [row_named("B")])
    middle.measurements += measured("B", "sb3", (60.0,))
    last = report_of(date="2026-03-03")
    last.keep(middle, [row_named("E")])
    last.measurements += measured("E", "sb3", (70.0,))
    assert last.row_names() == ["A1", "B", "E"]
    assert [summarise(last, name)["sb3"].cpu for name in last.row_names()] == [100.0, 60.0, 70.0]
    page = document(last)
    assert "\n2026-03-03. CPU: model" in page
    assert "Measured earlier: A1, growth. 2026-01-01. CPU: model, cores: 2. torch 2. Rounds: 3." in page
    assert "Measured earlier: B. 2026-02-02. " in page


def test_the_page_has_every_number_and_no_empty_section() -> None:
    bare = report_of(measured("A1", "sb3", (100.0,)), measured("A1", "eager", (320.0,)))
    page = document(bare)
    assert "| ours, eager | 1 | 160 | 320 | 3.20 | 3.20 to 3.20 | 1.0 | 2.0 (2.0) | 300 | 100.0 (1) | yes |" in page
    assert "- A1 compiled: not measured, the target is 5" in page
    assert "torch 2" in page
    assert not any(word in page for word in ("Where our time goes", "How the speed scales", "![", "{"))
    full = replace(
        bare,
        splits=[Split("A1", "eager", dict.fromkeys(PARTS, 20.0), 30.0, 0.4, 5.0, 3.0)],
        growth=[Growth("PPO envs", 256, "eager", 54_321.0, "env steps per second")],
    )
    page = document(full, ["speed.png", "speed_growth.png"])
    assert page.index("(speed.png)") < page.index("How the speed scales") < page.index("(speed_growth.png)")
    assert "| A1 | ours, eager | 20 | 20 | 20 | 20 | 20 | 30.0 | 5.0 | 3.0 |" in page
    assert "| PPO envs | 256 | ours, eager | 54,321 | env steps per second |" in page


def test_the_page_says_after_how_many_steps_compiling_pays() -> None:
    compiled = measured("A1", "compiled", (640.0,)) + measured("A1", "compiled", (640.0,), warmup_seconds=12.5)
    sides = measured("A1", "sb3", (100.0,)), measured("A1", "eager", (320.0,))
    unclear = measured("B", "sb3", (100.0,)), measured("B", "eager", (320.0,)), measured("B", "compiled", (320.0,))
    page = document(report_of(*sides, compiled, *unclear, compiled_by_auto=["A1"]))
    assert "of a million env steps, it compiles A1; all other" in page
    assert "about this many env steps: A1 3,400. Later" in page  # 10.5 s, at 1 / 160 - 1 / 320 s per step: 3,360
    assert break_even(summarise(report_of(*sides), "A1")) is None
    assert "this many env steps" not in document(report_of(*sides))


def test_the_chart_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    report = report_of(measured("A1", "sb3", (100.0,)), measured("A1", "eager", (320.0,)))
    chart = tmp_path / "docs" / "speed.png"
    draw_chart(chart, report)
    sides: tuple[Side, ...] = ("eager", "compiled")
    growth = [Growth("PPO envs", size, side, 9.0 * size, "steps/s") for size in (1, 256) for side in sides]
    draw_growth(growth_chart(chart), replace(report, growth=[*growth, Growth("replay", 10, "eager", 5.0, "us")]))
    assert all(path.stat().st_size > 1_000 for path in (chart, tmp_path / "docs" / "speed_growth.png"))


def test_unknown_rows_and_files_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, told in (
        (["G"], "unknown rows G"),
        (["--gate", "A1"], "name rows before --gate"),
        (["--further-runs", "-1"], "--further-runs at least 0"),
    ):
        monkeypatch.setattr(sys, "argv", ["speed.py", *arguments])
        with pytest.raises(SystemExit, match="2"):
            speed.main()
        assert told in capsys.readouterr().err
