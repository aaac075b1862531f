"""The page about a study: what it says in every state of a study, where marks lie, and that no file can harm it."""

import json
import math
import re
import xml.etree.ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from sample_runs import write_group, write_run
from sample_studies import SPACE, confirmation_of, write_sample_study
from test_report_page import Words

from rl_training.cli import main
from rl_training.errors import RunDirectoryError
from rl_training.experiment.search_space import Choices, Range
from rl_training.results.loading import load_group, load_groups
from rl_training.results.report.axes import parameter_axis, parameter_text, step_axis
from rl_training.results.report.study_model import StudyReport, build_study_report, load_study
from rl_training.results.report.study_page import render_study_page
from rl_training.results.report.study_plots import draw_parallel, draw_rungs, draw_slice

IMPORTANCE = {"learning_rate": 0.75, "gamma": 0.25}


def reported(study_dir: Path) -> StudyReport:
    return build_study_report(load_study(study_dir), animation="not asked for", created_at="now", version="0.1.0")


def page_of(study_dir: Path) -> Words:
    return Words(render_study_page(reported(study_dir), study_dir))


def change_record(study_dir: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = study_dir / "study.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def marks(plot: str) -> list[tuple[str, str]]:
    """The trials that a plot shows, with the last of their CSS classes, in the order in which they are drawn."""
    elements = xml.etree.ElementTree.fromstring(plot).iter()
    return [
        (each.attrib["data-trial"], each.attrib["class"].split()[-1])
        for each in elements
        if "data-trial" in each.attrib
    ]


def test_the_page_says_what_was_searched_what_it_took_and_what_was_found(tmp_path: Path) -> None:
    study_dir = write_sample_study(tmp_path, importance=IMPORTANCE, confirmation=confirmation_of(1))
    report = reported(study_dir)
    assert report.best is not None
    assert (report.best.number, report.best.rung) == (1, 3)
    # 9 trials to 1,000 steps; 3 of them to 3,000; 1 to 9,000
    assert report.record.steps == 6 * 1_000 + 2 * 3_000 + 9_000
    text = page_of(study_dir).text
    assert "PPO on CartPole-v1: study" in text
    assert "21,000, 26 % of training all 9 trials to the end" in text
    assert "9 of 9 (1 completed, 8 paused)" in text
    assert "1,000, 3,000, 9,000 env steps" in text
    assert "Trial 1 is the best, with 402.6 at rung 3 of 3." in text
    assert "learning_ratelinear from 0.001 to 0.00.00071471e-05 to 0.01, logarithmic" in text
    assert "gamma75 %" not in text
    assert "learning_rate75 %" in text


def test_promoted_trials_are_drawn_over_others_and_the_best_on_top(tmp_path: Path) -> None:
    report = reported(write_sample_study(tmp_path))
    drawn = marks(draw_rungs(report))
    assert [kind for _, kind in drawn] == ["paused"] * 6 + ["promoted"] * 2 + ["best"]
    assert drawn[-1] == ("1", "best")
    for name in SPACE:
        assert sorted(marks(draw_slice(report, name))) == sorted(drawn)
    parallel = marks(draw_parallel(report))
    assert parallel[-1] == ("1", "best")
    assert [kind for _, kind in parallel[:-1]] == sorted(kind for _, kind in parallel[:-1])  # the worst trials first


def test_every_mark_lies_inside_its_picture(tmp_path: Path) -> None:
    report = reported(write_sample_study(tmp_path, trials=30))
    for plot in (draw_rungs(report), draw_parallel(report), *(draw_slice(report, name) for name in SPACE)):
        picture = xml.etree.ElementTree.fromstring(plot)
        width, height = (float(size) for size in picture.attrib["viewBox"].split()[2:])
        places = re.findall(r"([-\d.]+) ([-\d.]+)", " ".join(path.attrib["d"] for path in picture.iter("path")))
        assert len(places) > 30
        assert all(0.0 <= float(x) <= width and 0.0 <= float(y) <= height for x, y in places)


def test_axes_follow_the_scale_of_the_parameter() -> None:
    rate = parameter_axis("rate", Range(low=1e-5, high=1e-1, scale="log"), [])
    assert rate.share(1e-3) == pytest.approx(0.5)
    assert [text for _, text in rate.ticks] == ["1e-05", "0.0001", "0.001", "0.01", "0.1"]
    gamma = parameter_axis("gamma", Range(low=0.9, high=0.999, scale="one_minus_log"), [])
    assert gamma.share(0.99) == pytest.approx(0.5)
    assert [text for _, text in gamma.ticks] == ["0.9", "0.99", "0.999"]
    size = parameter_axis("size", Range(low=16, high=256, scale="powers_of_two"), [])
    assert size.share(64) == pytest.approx(0.5)
    assert [text for _, text in size.ticks] == ["16", "32", "64", "128", "256"]
    clip = parameter_axis("clip", Range(low=0.0, high=1.0), [])
    assert clip.share(0.25) < clip.share(0.5) == pytest.approx(0.5)
    net = parameter_axis("net", Choices(choices=([64], [64, 64], "relu")), [])
    assert [net.share(value) for value in ([64], [64, 64], "relu")] == pytest.approx([1 / 6, 3 / 6, 5 / 6])
    assert [text for _, text in net.ticks] == ["[64]", "[64, 64]", "relu"]
    assert [text for _, text in step_axis("steps", [1_111, 3_334, 10_000_000]).ticks] == ["1,111", "3,334", "10M"]


def test_an_axis_contains_values_outside_the_range_and_never_places_one_outside_itself() -> None:
    size = parameter_axis("size", Range(low=16, high=256, scale="powers_of_two"), [4])
    assert 0.0 < size.share(4) < size.share(16)
    assert size.share(0) == 0.0
    assert parameter_axis("gamma", Range(low=0.9, high=0.99, scale="one_minus_log"), []).share(1.0) == 1.0


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.99987010169, "0.99987"),
        (0.98, "0.98"),
        (3.9787409399e-05, "3.979e-05"),
        (4096, "4,096"),
        ([64, 64], "[64, 64]"),
        (True, "true"),
        (None, "-"),
        ({"schedule": "linear", "start": 0.1, "end": 0.0}, "linear from 0.1 to 0.0"),
    ],
)
def test_values_have_the_digits_that_tell_them_apart(value: Any, text: str) -> None:
    assert parameter_text(value) == text


def test_the_confirmation_shows_every_seed_and_why_the_value_of_the_search_is_too_high(tmp_path: Path) -> None:
    text = page_of(write_sample_study(tmp_path, confirmation=confirmation_of(1))).text
    assert "B is better than A: its interquartile mean is 90.0 higher" in text
    assert "2300.0390.03310.0400.0" in text  # the rows of the seeds 2 and 3
    assert "a note about the comparison" in text
    assert "The value that trial 1 had in the search, 402.6, is not the result to expect" in text
    assert "no longer the best" not in text


def test_a_confirmation_of_an_earlier_best_trial_is_named(tmp_path: Path) -> None:
    text = page_of(write_sample_study(tmp_path, confirmation=confirmation_of(3))).text
    assert "B is trial 3, which is no longer the best trial." in text
    assert "diamond" not in text


@pytest.mark.parametrize(
    ("changes", "phrases"),
    [
        (
            {"trials": 0, "status": "running"},
            ["0 of 1 trials have begun", "No trial has a value yet", "No trial has begun"],
        ),
        ({"trials": 1}, ["9,000, 100 % of training the trial to the end", "is not the result to expect"]),
        (
            {"trials": 3, "failures": (0, 1, 2), "status": "failed"},
            ["trial 2 failed: trial 2 met NaN", "There is no best trial to confirm", "No trial has a value."],
        ),
        (
            {"trials": 5, "failures": (1,)},
            ["trial 1 failed: trial 1 met NaN", "5 of 5 (1 completed, 1 failed, 3 paused)"],
        ),
        ({"status": "interrupted"}, ["the study was interrupted", "continue it with: rl-training tune resume"]),
        ({"status": "running", "ended_at": None}, ["the study has not ended", "has not compared it"]),
        ({"rungs": 1}, ["9,000 env steps", "at rung 1 of 1"]),
    ],
)
def test_a_study_in_any_state_makes_a_page(tmp_path: Path, changes: dict[str, Any], phrases: list[str]) -> None:
    text = page_of(write_sample_study(tmp_path, **changes)).text
    for phrase in phrases:
        assert phrase in text
    assert "The importance is computed at the end" in text


def test_a_study_without_confirmation_says_so(tmp_path: Path) -> None:
    study_dir = write_sample_study(tmp_path)
    settings = yaml.safe_load((study_dir / "study.yaml").read_text())
    (study_dir / "study.yaml").write_text(yaml.safe_dump({**settings, "confirm": 0}))
    assert "The study had no comparison with new seeds (--confirm 0)." in page_of(study_dir).text


def test_trials_that_trained_much_longer_than_others_are_noted(tmp_path: Path) -> None:
    study_dir = write_sample_study(tmp_path)

    def train_longer(record: dict[str, Any]) -> None:
        record["trials"][4]["runs"][0]["steps"] = 4_096  # at the first rung, which asks for 1,000

    change_record(study_dir, train_longer)
    assert "1 of 9 trials trained more than 1.5 times as long as their rung asks for" in page_of(study_dir).text


def test_three_hundred_trials_make_a_page_of_moderate_size(tmp_path: Path) -> None:
    study_dir = write_sample_study(tmp_path, trials=300, importance=IMPORTANCE)
    page = render_study_page(reported(study_dir), tmp_path)
    assert len(page) < 600_000
    assert "The other 260 trials" in page
    assert page.count("<tr data-trial=") == 300


def test_runs_are_linked_from_where_the_page_lies(tmp_path: Path) -> None:
    study_dir = write_sample_study(tmp_path / "runs", trials=1)
    page = Words(render_study_page(reported(study_dir), tmp_path / "elsewhere"))
    (address,) = page.addresses
    assert address == f"./../runs/{study_dir.name}/ppo__CartPole-v1__seed1__trial0000/"


def test_nothing_in_a_study_becomes_markup_or_an_address(tmp_path: Path) -> None:
    nasty = "<script>alert(1)</script>"
    study_dir = write_sample_study(tmp_path, trials=2, failures=(1,), confirmation=confirmation_of(0))

    def plant(record: dict[str, Any]) -> None:
        record |= {"algo": nasty, "env_id": nasty, "command": [nasty], "versions": {nasty: nasty}, "started_at": nasty}
        record["trials"][0]["params"]["activation"] = nasty
        record["trials"][0]["runs"][0]["run_dir"] = "javascript:alert(1)"
        record["trials"][1]["failure"] = f"{nasty} \x1b[31m {'long ' * 100_000}"
        record["importance"] = {nasty: 0.5, "x" * 100_000: 0.1, "not a number": math.nan}
        record["confirmation"] |= {"sentence": nasty, "notes": [nasty]}

    change_record(study_dir, plant)
    page = page_of(study_dir)
    assert page.tags.count("script") == 1  # our own
    assert page.text.count(nasty) >= 8
    assert len(page.text) < 40_000
    assert sorted(page.addresses) == ["./javascript%3Aalert%281%29/", "./ppo__CartPole-v1__seed1__trial0001/"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda record: record["trials"][0]["params"].update(learning_rate="much"), "trial 0 has learning_rate='much'"),
        (lambda record: record["trials"][0]["params"].update(gamma=True), "trial 0 has gamma='True'"),
        (lambda record: record["trials"][0]["params"].update(num_steps=1e999), "trial 0 has num_steps='inf'"),
        (lambda record: record["trials"].reverse(), "the trials are not numbered from 0"),
        (lambda record: record["trials"][1].update(runs=[]), "a trial has no run"),
        (lambda record: record.update(best_trial=77), "best_trial=77 does not exist"),
        (lambda record: record["confirmation"].pop("a"), "'a'"),
        (
            lambda record: record["confirmation"]["b"].update(scores=[1.0, None, "x", 2.0]),
            "'None' in place of a number",
        ),
        (lambda record: record["confirmation"]["b"].update(scores=[1.0]), "one score per seed"),
        (lambda record: record["trials"][0]["runs"][0].update(run_dir="../outside"), "without a path"),
        (lambda record: record["trials"][0].update(number="zero"), "number"),
    ],
)
def test_a_record_that_no_study_writes_is_refused_by_name(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    study_dir = write_sample_study(tmp_path, trials=3, confirmation=confirmation_of(0))
    change_record(study_dir, change)
    output = tmp_path / "page.html"
    assert main(["report", str(study_dir), "--no-film", "--output", str(output)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {study_dir / 'study.json'} is damaged: ")
    assert reason in line
    assert not output.exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("space", {"learning_rate": {"low": 2.0, "high": 1.0}}),
        ("space", {"no_parameter": [1, 2]}),
        ("config", {"algo": "ppo"}),
        ("rungs", 99),
    ],
)
def test_settings_that_no_study_writes_are_refused_by_name(
    tmp_path: Path, name: str, value: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    study_dir = write_sample_study(tmp_path)
    settings = yaml.safe_load((study_dir / "study.yaml").read_text())
    (study_dir / "study.yaml").write_text(yaml.safe_dump({**settings, name: value}))
    assert main(["report", str(study_dir), "--no-film", "--output", str(tmp_path / "page.html")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {study_dir / 'study.yaml'}")


@pytest.mark.parametrize("name", ["study.json", "study.yaml", "ppo__CartPole-v1__seed1__trial0001", "best.yaml"])
def test_a_link_in_a_study_is_refused_by_name(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    study_dir = write_sample_study(tmp_path / "runs")
    outside = tmp_path / "outside"
    if (study_dir / name).exists():
        (study_dir / name).rename(outside)
    (study_dir / name).symlink_to(outside)
    assert main(["report", str(study_dir), "--no-film", "--output", str(tmp_path / "page.html")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert name in line
    assert "a symbolic link" in line


def test_a_study_has_a_page_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study_dir, output = write_sample_study(tmp_path), tmp_path / "page.html"
    assert main(["report", str(study_dir), "--output", str(output)]) == 0
    captured = capsys.readouterr()
    assert re.fullmatch(rf"report: {re.escape(str(output))} \(\d+ KiB\)\n", captured.out)
    assert captured.err.startswith("note: no film: ")  # the trials of the sample have no run directories
    assert "Parallel coordinates" in output.read_text()
    group = write_group(tmp_path / "group", [1.0])
    for arguments in ([str(study_dir), str(group)], [str(study_dir), "--metric", "success_rate"]):
        assert main(["report", *arguments, "--output", str(output)]) == 2
        assert "give its directory alone, without --metric" in capsys.readouterr().err


def test_trials_do_not_count_as_runs_of_the_folder_that_contains_their_study(tmp_path: Path) -> None:
    group = write_group(tmp_path / "group", [1.0, 2.0])
    study_dir = write_sample_study(tmp_path)
    write_run(study_dir, 1, [9.0])
    write_group(study_dir / "confirmation" / "start", [5.0, 6.0])
    (loaded,) = load_groups([tmp_path])
    assert {run.run_dir.parent for run in loaded.runs} == {group}
    assert any(f"left out: {study_dir} (a study" in note for note in loaded.notes)
    with pytest.raises(RunDirectoryError, match="is a study, whose runs differ in their parameters"):
        load_group(study_dir)
    assert load_group(study_dir / "confirmation" / "start").seeds == (1, 2)


def test_list_shows_a_study_in_one_row_and_its_trials_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_group(tmp_path / "group", [1.0])
    study_dir = write_sample_study(tmp_path, failures=(2,))
    write_group(study_dir / "confirmation" / "start", [5.0])
    damaged = write_sample_study(tmp_path / "damaged")
    (damaged / "study.json").write_text("{")
    assert main(["list", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    rows = {line.split()[-1]: line for line in printed.splitlines() if line.strip()}
    assert re.match(r"ppo +CartPole-v1 +9 of 9 +[\d,]+ +402\.6 \(trial 1\) +completed", rows[study_dir.name])
    assert "unreadable" in rows[str(damaged.relative_to(tmp_path))]
    assert "trial0000" not in printed
    assert "confirmation" not in printed
    assert main(["list", str(study_dir)]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^1 +completed +3 of 3 +9,000 +402\.6 +ppo__CartPole-v1__seed1__trial0001", printed, re.MULTILINE)
    assert re.search(r"^2 +failed +0 of 3 +0 +- ", printed, re.MULTILINE)
    assert "Runs of the confirmation" in printed
