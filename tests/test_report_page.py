"""What a report says, for every state that runs may be in, and that nothing in it can become markup."""

import shlex
from html.parser import HTMLParser
from pathlib import Path

import pytest
from sample_runs import write_group, write_run

from rl_training.experiment.runs import context_of, update_metadata
from rl_training.results.loading import load_groups
from rl_training.results.report.markup import Markup, element
from rl_training.results.report.model import Report, best_run, build_report
from rl_training.results.report.page import render_page


def reported(*places: Path) -> Report:
    groups = load_groups(places, unfinished=True)
    return build_report(groups, animation="not asked for", created_at="2026-01-01 00:00", version="0.1.0")


class Words(HTMLParser):
    """The text of a page, the tags in it, and the addresses they name."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text = ""
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action")]

    def handle_data(self, data: str) -> None:
        self.text += data


def words(*places: Path) -> str:
    return Words(render_page(reported(*places))).text


def test_text_is_escaped_unless_it_is_an_element() -> None:
    inner = element("b", "a < b")
    assert element("p", inner, " & ", None, 3, ["<i>"], title='"') == Markup(
        '<p title="&quot;"><b>a &lt; b</b> &amp; 3&lt;i&gt;</p>'
    )
    assert element("img", alt="", hidden=True, width=None, data_x=1.5) == '<img alt="" hidden data-x="1.5">'


def test_names_that_look_like_markup_are_shown_as_they_are(tmp_path: Path) -> None:
    nasty = "<script>alert(1)</script>"
    place = tmp_path / "<img src=x onerror=alert(1)>"
    run_dir = write_run(place, 1, [1.0, 2.0], tags=[nasty], env_kwargs={nasty: '"><b>'}, env_id=f"Odd-v0{nasty}")
    host = {"name": nasty, "platform": "'\"><b>"}
    told = {"status": "failed", "error": nasty, "command": ["rl-training", nasty], "host": host, "git_commit": nasty}
    update_metadata(context_of(run_dir), **told)
    found = Words(render_page(reported(place, write_group(tmp_path / "b", [1.0], env_id=nasty))))
    assert found.tags.count("script") == 1  # our own
    assert not {"img", "b"} & set(found.tags)
    assert found.text.count(nasty) >= 6
    assert found.addresses == []


def test_one_group_has_a_score_with_its_interval_and_a_row_per_seed(tmp_path: Path) -> None:
    report = reported(write_group(tmp_path / "tuned", [10.0, 20.0, 30.0, 40.0]))
    (group,) = report.groups
    assert report.title == "PPO on CartPole-v1"
    assert group.score is not None
    assert group.score.value == 25.0
    assert [(row.seed, row.final, row.best) for row in group.rows][:2] == [(1, 10.0, 10.0), (2, 20.0, 20.0)]
    assert [chart.title for chart in report.envs[0].charts] == ["Evaluation return", "Training return"]
    text = words(tmp_path / "tuned")
    assert "tuned (n = 4)" in text
    assert "No problems found in 4 runs." in text
    assert "All runs share one config, apart from the seed." in text


def test_two_groups_on_one_environment_get_a_verdict_and_what_differs(tmp_path: Path) -> None:
    a = write_group(tmp_path / "a", [1.0, 2.0, 1.5, 1.2, 1.1])
    b = write_group(tmp_path / "b", [5.0, 6.0, 5.5, 5.2, 5.1], algo_kwargs={"gamma": 0.9})
    report = reported(a, b)
    assert report.envs[0].verdict is not None
    assert report.envs[0].verdict.sentence.startswith("B is better than A: its interquartile mean is")
    assert [(each.name, each.values) for each in report.differences] == [("algo_kwargs.gamma", (("-",), ("0.9",)))]
    text = words(a, b)
    assert "A is a; B is b." in text
    assert "What differs" in text


def test_environments_are_told_apart(tmp_path: Path) -> None:
    report = reported(write_group(tmp_path / "a", [1.0]), write_group(tmp_path / "b", [1.0], env_id="Acrobot-v1"))
    assert [env.env_id for env in report.envs] == ["CartPole-v1", "Acrobot-v1"]
    assert [env.verdict for env in report.envs] == [None, None]
    assert [group.number for group in report.groups] == [0, 1]


def test_the_same_runs_twice_are_not_compared(tmp_path: Path) -> None:
    place = write_group(tmp_path / "a", [1.0, 2.0])
    assert "Not compared: " in words(place, place)


def test_runs_that_have_not_finished_are_shown_but_not_counted(tmp_path: Path) -> None:
    write_group(tmp_path, [10.0, 20.0])
    write_run(tmp_path, 3, [1.0], status="running", total_timesteps=9_000)
    failed = write_run(tmp_path, 4, [], status="failed")
    update_metadata(context_of(failed), error="EnvironmentStepError: it broke")
    (group,) = reported(tmp_path).groups
    assert (group.num_counted, len(group.rows)) == (2, 4)
    assert group.score is not None
    assert group.score.value == 15.0
    text = words(tmp_path)
    assert "2 of 4 runs have not finished; they are shown, not counted" in text
    assert "EnvironmentStepError: it broke" in text
    assert "1,000 of 9,000" in text
    assert "unfinished runs dotted" in text


@pytest.mark.parametrize("evaluations", [[], [7.0]], ids=["no evaluation", "one evaluation"])
@pytest.mark.parametrize("status", ["completed", "running", "failed", "interrupted"])
def test_a_single_run_in_any_state_makes_a_page(tmp_path: Path, evaluations: list[float], status: str) -> None:
    text = words(write_run(tmp_path, 1, evaluations, status=status))
    assert status in text
    assert ("no evaluations" in text) == (not evaluations)
    assert ("unknown with one run" in text) == bool(evaluations)
    assert ("no run has finished" in text) == (status != "completed")


def test_twenty_runs_fit_into_a_small_page(tmp_path: Path) -> None:
    write_group(tmp_path, [float(number) for number in range(20)])
    page = render_page(reported(tmp_path))
    assert len(page) < 100_000
    assert page.count('class="seed"') == 2 * 20


def test_versions_and_machine_are_shown_once_or_per_run_if_they_differ(tmp_path: Path) -> None:
    first, second = (write_run(tmp_path, seed, [1.0]) for seed in (1, 2))
    for run_dir, torch in ((first, "2.12"), (second, "2.13")):
        host = {"name": "here", "cpus": 2}
        update_metadata(context_of(run_dir), versions={"torch": torch, "numpy": "2.4"}, git_commit="abc", host=host)
    facts = {fact.name: fact.values for fact in reported(tmp_path).facts}
    assert facts["torch"] == (("2.12", first.name), ("2.13", second.name))
    assert facts["numpy"] == (("2.4", ""),)
    assert (facts["git commit"], facts["host"], facts["CPU cores"]) == ((("abc", ""),), (("here", ""),), (("2", ""),))


def test_the_time_of_a_group_is_split_and_adds_up(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path, 1, [1.0])
    update_metadata(context_of(run_dir), wall_seconds=10.0)
    with context_of(run_dir).metrics_path.open("a") as file:
        parts = '"time/collect_seconds": 2.0, "time/update_seconds": 5.0, "time/evaluate_seconds": 1.0'
        file.write(f'{{"step": 1000, {parts}}}\n')
    (group,) = reported(tmp_path).groups
    assert [(share.name, share.seconds) for share in group.times] == [
        ("collect", 2.0),
        ("update", 5.0),
        ("evaluate", 1.0),
        ("other", 2.0),
    ]
    assert group.rows[0].steps_per_second == 100.0
    assert "50 %" in words(tmp_path)


def test_runs_that_are_alike_are_rerun_by_one_command_and_others_by_their_own(tmp_path: Path) -> None:
    place = write_group(tmp_path / "a b", [1.0, 2.0])
    first = next(path for path in sorted(place.iterdir()) if "seed1__" in path.name)
    (command,) = reported(place).groups[0].commands
    config = str(first / "config.yaml")
    assert shlex.split(command) == ["rl-training", "train", "--config", config, "--seeds", "1-2"]
    (place / "group.json").touch()
    assert shlex.split(reported(place).groups[0].commands[0])[-2:] == ["--output-dir", str(tmp_path)]
    (place / "group.json").unlink()
    other = write_run(place, 3, [1.0, 2.0], num_envs=2)
    assert write_run(place, 4, [1.0, 2.0]).exists()
    alike, odd = reported(place).groups[0].commands
    assert shlex.split(alike)[-3:] == [config, "--seeds", "1-2,4"]
    assert shlex.split(odd)[-3:] == [str(other / "config.yaml"), "--seed", "3"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["/usr/bin/rl-training", "train", "--set", "a b"], "rl-training train --set 'a b'"),
        (["/x/rl_training/__main__.py", "train"], "python -m rl_training train"),
        (["examples/mine.py", "--fast"], "python examples/mine.py --fast"),
        (None, "unknown"),
    ],
)
def test_the_first_command_is_shown_as_one_types_it(tmp_path: Path, arguments: list[str] | None, told: str) -> None:
    update_metadata(context_of(write_run(tmp_path, 1, [1.0])), command=arguments)
    assert reported(tmp_path).groups[0].rows[0].command == told


def test_the_agent_shown_is_the_best_of_the_finished_ones(tmp_path: Path) -> None:
    write_group(tmp_path / "a", [10.0, 30.0])
    write_run(tmp_path / "a", 3, [99.0], status="running")
    write_group(tmp_path / "b", [20.0, 40.0], env_id="Acrobot-v1")
    assert best_run(load_groups([tmp_path / "a", tmp_path / "b"], unfinished=True)).seed == 2


def test_a_hint_names_its_seeds_and_what_to_try(tmp_path: Path) -> None:
    for seed in (1, 2):
        write_run(tmp_path, seed, [100.0, 500.0, 500.0, 100.0])
    text = words(tmp_path)
    assert "Ends far below its best" in text
    assert "seeds 1, 2" in text
    assert "Seed 1: the last evaluation is 100.0, the best was 500.0 at env step 2,000." in text
    assert "Try: Use checkpoints/best.pt" in text


def test_an_evaluation_that_is_no_number_is_left_out(tmp_path: Path) -> None:
    a, b = write_group(tmp_path / "a", [1.0, float("nan")]), write_group(tmp_path / "b", [1.0, 2.0])
    report = reported(a, b)
    assert [row.final for row in report.groups[0].rows] == [1.0, None]
    assert report.groups[0].score is not None
    assert report.groups[0].score.value == 1.0
    assert "Not compared: a final evaluation is not a finite number." in words(a, b)
    assert best_run(load_groups([a])).seed == 1
