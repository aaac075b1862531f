"""What a study shows while it trains and at its end: on a terminal, in a file, and after an interruption."""

import io
from pathlib import Path

import pytest
from rich.console import Console
from sample_studies import confirmation_of, write_sample_study

from rl_training.cli.tune_progress import StudyDisplay, show_study
from rl_training.experiment.studies import StudyRecord, StudySettings, make_trial, read_settings, read_study
from rl_training.groups.observer import SeedProgress


@pytest.fixture
def study(tmp_path: Path) -> tuple[Path, StudySettings, StudyRecord]:
    """Eight trials have reached the first rung, three of them the second, one of those the last; a ninth trains."""
    study_dir = write_sample_study(tmp_path, trials=8, status="running", ended_at=None)
    settings = read_settings(study_dir).model_copy(update={"trials": 18})
    record = read_study(study_dir)
    return study_dir, settings, record.with_trial(make_trial(settings, 8, record.trials[0].params))


def shown(console: Console, study: tuple[Path, StudySettings, StudyRecord], seconds: float) -> list[str]:
    """The lines that a display writes while the ninth trial takes 100 env steps per second, looked at three times."""
    _, settings, record = study
    now = 0.0
    display = StudyDisplay(console, clock=lambda: now)
    display.on_study_start(Path("study"), settings, record)
    progress = SeedProgress(1, settings.budgets[0])
    for look in range(3):
        now = seconds * look
        progress.advance(int(100 * now), {"rollout/ep_rew_mean": 21.5}, now)
        display.on_progress(record, {"trial8-seed1": progress})
    display.on_study_end(record)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_a_file_gets_a_plain_line_now_and_then(study: tuple[Path, StudySettings, StudyRecord]) -> None:
    first, *lines, last = shown(Console(file=io.StringIO(), width=40), study, seconds=2.5)
    what = "Tuning ppo on CartPole-v1: 18 trials, 1 run at a time"
    assert first == f"{what}, compared after 1,000, 3,000, 9,000 env steps, in study"
    assert lines == []  # nothing within ten seconds
    begun = "9 of 18 trials (1 completed, 7 paused, 1 training)  best 402.6 (trial 1)"
    assert last == f"{begun}  20,000 steps"
    _, line, _ = shown(Console(file=io.StringIO(), width=40), study, seconds=5.0)
    # 18 trials to the first rung, 6 to the second, 2 to the last: 10, 3 and 1 are left, of which 1,000 steps are
    # trained, and then ten runs of the confirmation.
    left = 10 * 1_000 + 3 * 2_000 + 1 * 6_000 - 1_000 + 2 * 5 * 9_000
    assert left / 100 == 18 * 60 + 30
    assert line == f"{begun}  21,000 steps  100 steps/s  about 18:30 left"
    study_dir, settings, record = study
    confirmed = record.model_copy(update={"confirmation": confirmation_of(1)})
    _, line, _ = shown(Console(file=io.StringIO(), width=40), (study_dir, settings, confirmed), seconds=5.0)
    assert line == f"{begun}  21,000 steps  100 steps/s  about 3:30 left"


def test_new_values_are_lines_of_a_file(study: tuple[Path, StudySettings, StudyRecord]) -> None:
    console = Console(file=io.StringIO(), width=40)
    display = StudyDisplay(console, clock=lambda: 0.0)
    _, settings, record = study
    display.on_study_start(Path("study"), settings, record.model_copy(update={"trials": record.trials[:7]}))
    for _ in range(2):
        display.on_progress(record, {})
    assert isinstance(console.file, io.StringIO)
    (line,) = console.file.getvalue().splitlines()[1:]
    assert line == f"trial 7: {record.trials[7].values[0]:.1f} at rung 1 of 3"


@pytest.mark.parametrize("width", [80, 120])
def test_a_terminal_gets_what_trains_the_rungs_and_the_best_trial_and_is_left_clean(
    study: tuple[Path, StudySettings, StudyRecord], width: int
) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=width, height=24, color_system=None)
    text = "\n".join(shown(console, study, seconds=5.0))
    assert "trial8-seed1   1/3  1,000/1,000      100   21.50" in text
    assert "   1      1,000        8         1  202.6" in text
    assert "   3      9,000        1         0  402.6" in text
    assert "best: trial 1 with num_steps 64, minibatch_size 32, learning_rate 0.0007147," in text
    *_, last = text.splitlines()
    assert last.endswith("9 of 18 trials (1 completed, 7 paused, 1 training)  best 402.6 (trial 1)  20,000 steps")
    assert "\x1b[?25h" in text  # the cursor is visible again
    assert max(len(line) for line in text.splitlines() if "\x1b" not in line) <= max(width, len(last))


def test_a_low_terminal_shows_only_as_many_runs_as_fit(study: tuple[Path, StudySettings, StudyRecord]) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80, height=14, color_system=None)
    now = 0.0
    display = StudyDisplay(console, clock=lambda: now)
    _, settings, record = study
    display.on_study_start(Path("study"), settings, record)
    now = 1.0
    display.on_progress(record, {f"trial{number}-seed1": SeedProgress(1, 1_000) for number in range(8, 50)})
    assert isinstance(console.file, io.StringIO)
    shown_lines = console.file.getvalue()
    assert "trial10-seed1" in shown_lines
    assert "trial11-seed1" not in shown_lines
    display.on_study_end(record)


def test_the_result_lists_trials_parameters_and_what_new_seeds_say(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study_dir = write_sample_study(tmp_path, trials=12, confirmation=confirmation_of(1))
    show_study(study_dir, read_settings(study_dir), read_study(study_dir))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["trial", "rung", "steps", "value", "status"]
    assert lines[1].split() == ["1", "3/3", "9,000", "402.6", "completed"]
    assert lines[11].split() == ["..."]
    assert "minibatch_size                        64         32" in lines
    assert "learning_rate   linear from 0.001 to 0.0  0.0007147" in lines
    assert "on new seeds: 392.5 for the best trial (B), 302.5 for the starting config (A)" in lines
    assert f"page:            rl-training report {study_dir}" in lines


def test_an_interrupted_study_has_no_trial_that_trains(
    study: tuple[Path, StudySettings, StudyRecord], capsys: pytest.CaptureFixture[str]
) -> None:
    study_dir, settings, record = study
    show_study(study_dir, settings, record.model_copy(update={"status": "interrupted"}))
    printed = capsys.readouterr().out
    assert "unfinished" in printed
    assert "training\n" not in printed
