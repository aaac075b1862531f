"""What is shown of a group while it trains, on a terminal and elsewhere."""

import io
from pathlib import Path

from rich.console import Console

from rl_training.cli.group_progress import GroupDisplay
from rl_training.experiment.groups import GroupRecord, SeedRecord
from rl_training.groups.observer import SeedProgress
from rl_training.runtime.progress import RecentRate, format_duration

SEEDS = tuple(SeedRecord(seed=seed, run_dir=f"run-{seed}") for seed in range(1, 5))
GROUP = GroupRecord(
    algo="ppo",
    env_id="CartPole-v1",
    total_timesteps=1_000,
    jobs=2,
    stop={},
    started_at="",
    command=[],
    versions={},
    git_commit=None,
    host={},
    seeds=SEEDS,
)


def some_progress() -> list[SeedProgress]:
    """One seed done, one failed, one at 100 steps per second, one waiting."""
    done, failed, running, waiting = (SeedProgress.from_record(record, 1_000) for record in SEEDS)
    metrics = {"eval_return_mean": 500.0}
    update = {"status": "completed", "global_step": 1_000, "wall_seconds": 12.3, "metrics": metrics}
    done.apply_record(SEEDS[0].model_copy(update=update))
    update = {"status": "failed", "global_step": 200, "reason": "OSError: [no] simulator"}
    failed.apply_record(SEEDS[1].model_copy(update=update))
    running.apply_record(SEEDS[2].model_copy(update={"status": "running"}))
    running.advance(100, {}, clock=10.0)
    running.advance(400, {"rollout/ep_rew_mean": 21.5, "eval/mean_reward": 33.0}, clock=13.0)
    return [done, failed, running, waiting]


def shown(console: Console, seconds_per_look: float) -> str:
    """Return what a display writes if it gets the same progress three times."""
    ticks = iter(range(1_000))
    display = GroupDisplay(console, clock=lambda: seconds_per_look * next(ticks))
    display.on_group_start(Path("group"), GROUP)
    seeds = some_progress()
    for _ in range(3):
        display.on_progress(seeds)
    display.on_seed_end(seeds[0])
    display.on_seed_end(seeds[1])
    display.on_group_end(seeds)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_file_gets_a_plain_line_now_and_then_and_one_per_seed_that_ends() -> None:
    text = shown(Console(file=io.StringIO(), width=40), seconds_per_look=5.0)
    summary = "1 completed, 1 failed, 1 running, 1 waiting  1,600/4,000 steps  100 steps/s  0:16 left"
    assert text.splitlines() == [
        "Training ppo on CartPole-v1, seeds 1-4, 2 at a time, in group",
        summary,
        "seed 1 completed at step 1,000 after 12.3 s, evaluation 500.0",
        "seed 2 failed at step 200 after 0.0 s: OSError: [no] simulator",
        summary,
    ]


def test_a_terminal_gets_a_line_per_seed_that_is_redrawn() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=120, height=20, color_system=None)
    text = shown(console, seconds_per_look=1.0)
    rows = [line.split() for line in text.splitlines()]
    assert ["1", "completed", "1,000/1,000", "500.0"] in rows
    assert ["2", "failed", "200/1,000", "OSError:", "[no]", "simulator"] in rows
    assert ["3", "running", "400/1,000", "100", "21.5", "33.0", "0:06"] in rows
    assert ["4", "waiting", "0/1,000"] in rows
    assert text.count("running ") >= 3
    assert "\x1b[2K" in text


def test_a_low_terminal_shows_the_seeds_that_train() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=120, height=6, color_system=None)
    text = shown(console, seconds_per_look=1.0)
    assert "400/1,000" in text
    assert "0/1,000  " not in text.replace("400/1,000", "").replace("1,000/1,000", "")


def test_durations_are_shown_in_hours_minutes_and_seconds() -> None:
    assert [format_duration(seconds) for seconds in (0.4, 59.6, 3_723.0)] == ["0:00", "1:00", "1:02:03"]


def test_the_time_left_follows_the_newest_speed_and_not_the_whole_run() -> None:
    rate = RecentRate()
    for clock in range(1_000):
        rate.add(float(clock), 10 * clock)
    assert rate.value == 10.0
    for clock in range(1_000, 1_060):
        rate.add(float(clock), 10_000 + 500 * (clock - 1_000))
    assert rate.value == 500.0


def test_updates_that_are_far_apart_still_give_a_rate() -> None:
    rate = RecentRate()
    assert rate.value == 0.0
    for clock in (0.0, 100.0, 200.0):
        rate.add(clock, round(3 * clock))
    assert rate.value == 3.0
