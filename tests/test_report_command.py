"""`report` as a user calls it: on runs that were really trained, with a film or one line about why there is none."""

import base64
import html
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import MakeConfig
from sample_runs import write_group, write_run
from test_recording import painted  # noqa: F401  (a fixture: runs on envs that paint as they are told)
from test_report_film import decoded

from rl_training.cli import main
from rl_training.cli import report as report_command
from rl_training.experiment.runs import context_of, read_digests
from rl_training.runtime.ppo_trainer import train_ppo

Painted = Callable[..., Path]


def film_of(page: Path) -> bytes:
    found = re.search(r'<img src="data:image/png;base64,([^"]+)"', page.read_text())
    assert found is not None
    return base64.b64decode(found[1])


def test_a_trained_run_becomes_one_small_page_with_a_film(
    painted: Painted,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = tmp_path / "mine.html"
    run_dir = painted()
    assert main(["report", str(run_dir), "--output", str(page)]) == 0
    assert re.fullmatch(rf"report: {re.escape(str(page))} \(\d+ KiB\)\n", capsys.readouterr().out)
    frames = decoded(film_of(page))  # the first moment of an episode and its four steps, each in its own grey
    greys = [int(frame.mean()) for frame in frames]
    assert greys == pytest.approx([0, 40, 80, 120, 160], abs=8)
    text = page.read_text()
    assert len(text) < 3_000_000
    for words in (
        "PPO on tests/Painted-v0",
        "best checkpoint (env step 64): the first 4 steps",
        "gymnasium",
        str(run_dir),
    ):
        assert words in text
    assert "http://" not in text
    assert "https://" not in text


def test_the_command_to_rerun_trains_the_same_run_again(make_config: MakeConfig, tmp_path: Path) -> None:
    first = train_ppo(make_config()).run_dir
    page = tmp_path / "report.html"
    assert main(["report", str(first), "--output", str(page), "--no-film"]) == 0
    found = re.search(r'<pre class="command"[^>]*><code>([^<]+)</code>', page.read_text())
    assert found is not None
    program, *arguments = shlex.split(html.unescape(found[1]))
    assert program == "rl-training"
    assert main(arguments) == 0
    (again,) = (path for path in first.parent.iterdir() if path != first)
    assert read_digests(context_of(again)) == read_digests(context_of(first))


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ({"name": "Unpainted"}, "tests/Unpainted-v0 cannot be recorded: it needs the render mode rgb_array"),
        ({"paint": "broken"}, "tests/Painted-v0 cannot be drawn here (RuntimeError: no colours left)"),
    ],
)
def test_an_env_that_cannot_be_drawn_costs_the_film_alone(
    painted: Painted,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    kind: dict[str, str],
    reason: str,
) -> None:
    page = tmp_path / "report.html"
    assert main(["report", str(painted(**kind)), "--output", str(page)]) == 0
    told = capsys.readouterr().err
    assert told.startswith(f"note: no film: {reason}")
    assert told.count("\n") == 1
    assert f"No film: {reason}" in page.read_text()


def test_a_report_without_pillow_has_no_film_and_names_the_extra(
    painted: Painted,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_dir, page = painted(), tmp_path / "report.html"
    capsys.readouterr()
    monkeypatch.setitem(sys.modules, "PIL", None)  # as Python marks what cannot be imported
    assert main(["report", str(run_dir), "--output", str(page)]) == 0
    reason = "a film needs an extra: pip install 'rl-training[video]'"
    assert capsys.readouterr().err == f"note: no film: {reason}\n"
    assert f"No film: {reason}" in html.unescape(page.read_text())


def test_a_slow_env_is_shown_for_less_long(
    painted: Painted,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(report_command, "_MAX_SECONDS", 0.0)
    page = tmp_path / "report.html"
    assert main(["report", str(painted()), "--output", str(page)]) == 0
    assert len(decoded(film_of(page))) == 1


def test_runs_without_checkpoints_are_reported_and_no_film_need_be_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = [str(write_group(tmp_path / name, [1.0, 2.0])) for name in ("a", "b")]
    write_run(tmp_path / "a", 3, [], status="failed")
    page = tmp_path / "report.html"
    assert main(["report", *places, "--output", str(page)]) == 0
    assert "note: no film: " in capsys.readouterr().err
    assert main(["report", *places, "--output", str(page), "--no-film"]) == 0
    assert capsys.readouterr().err == ""
    assert "No film: not asked for" in page.read_text()


def test_a_mistake_is_one_line_and_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = str(write_group(tmp_path / "a", [1.0]))
    empty = tmp_path / "empty"
    empty.mkdir()
    for arguments, reason in (
        (["report"], "Missing argument"),
        (["report", str(tmp_path / "nowhere")], "nowhere is not a directory"),
        (["report", str(empty)], "no finished runs below"),
        (
            ["report", place, "--no-film", "--output", str(tmp_path / "no" / "x.html")],
            "cannot be written: No such file",
        ),
        (["report", place, "--no-film", "--output", str(empty)], "cannot be written: Is a directory"),
    ):
        assert main(arguments) == 2
        captured = capsys.readouterr()
        assert reason in captured.err
        assert captured.err.count("\n") == 1
        assert captured.out == ""
