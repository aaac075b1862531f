"""Nothing that a file or an environment says reaches the terminal as a command to it."""

import io
import re
import warnings
from pathlib import Path

import gymnasium
import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from rich.console import Console
from sample_runs import write_run
from test_cli import TINY, write_config

import rl_training
from rl_training.cli import main
from rl_training.cli.group_progress import GroupDisplay
from rl_training.experiment.groups import SeedRecord
from rl_training.groups.observer import SeedProgress
from rl_training.output import printable, printable_warnings

NASTY = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\u202eevil"
SHOWN = r"\x1b]0;owned\x07\x1b[2J\x9b31m\r\u202eevil"


def assert_harmless(printed: str) -> None:
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", printed), ascii(printed)


def test_control_characters_become_escapes_and_everything_else_stays() -> None:
    assert printable(NASTY) == SHOWN
    assert printable("Pøng ✓\n\tsecond line") == "Pøng ✓\n\tsecond line"
    assert printable("undecodable \udcff") == r"undecodable \udcff"


def test_list_and_compare_show_names_and_values_without_control_characters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / NASTY
    for seed in (1, 2):
        write_run(place, seed, [1.0, 2.0], env_id=NASTY)
        write_run(tmp_path / "b", seed, [1.0, 3.0], env_id=NASTY)
    assert main(["list", str(tmp_path)]) == 0
    assert main(["compare", str(place), str(tmp_path / "b")]) == 0
    assert main(["compare", str(tmp_path / "none" / NASTY), str(place)]) == 2
    printed = capsys.readouterr()
    assert SHOWN in printed.out.replace("\n", "")
    assert r"\x1b[2J\x9b31m" in printed.err
    assert_harmless(printed.out + printed.err)


def test_the_error_line_quotes_a_config_without_control_characters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path, **{NASTY: 1})
    assert main(["train", "--config", str(config)]) == 2
    assert main(["train", "--config", str(write_config(tmp_path, env_id=f"Odd{NASTY}-v0"))]) == 2
    printed = capsys.readouterr().err
    assert printed.count(r"\x1b]0;owned\x07") >= 2
    assert_harmless(printed)


class RudeEnv(CartPoleEnv):
    """Fails with a text that would clear the screen."""

    def step(self, action: int) -> object:  # type: ignore[override]  # it never returns
        raise ValueError(NASTY)


def test_what_an_environment_raises_is_shown_without_control_characters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gymnasium.register("tests/Rude-v0", "test_output:RudeEnv")
    try:
        config = write_config(tmp_path, **{**TINY, "env_id": "tests/Rude-v0", "output_dir": str(tmp_path / "runs")})
        assert main(["train", "--config", str(config)]) == 1
        assert main(["check-env", "tests/Rude-v0"]) == 1
    finally:
        gymnasium.registry.pop("tests/Rude-v0")
    printed = capsys.readouterr()
    assert r"\x1b[2J" in printed.err
    assert r"\x1b[2J" in printed.out
    assert_harmless(printed.out + printed.err)


def test_warnings_are_printed_without_control_characters() -> None:
    with printable_warnings():
        printed = warnings.formatwarning(NASTY, UserWarning, "file.py", 1)
    assert SHOWN in printed
    assert_harmless(printed)
    assert NASTY in warnings.formatwarning(NASTY, UserWarning, "file.py", 1)


def test_warnings_name_the_place_only_if_it_is_the_users_own_code() -> None:
    with printable_warnings():
        for module in (rl_training, pytest):
            printed = warnings.formatwarning("slow", UserWarning, str(module.__file__), 1)
            assert printed == "warning: slow\n"
        for own in ("/home/me/my_env.py", f"{Path(str(rl_training.__file__)).parent}_extra/my_env.py"):
            assert "my_env.py:7: UserWarning: slow" in warnings.formatwarning("slow", UserWarning, own, 7)


def test_group_progress_shows_reasons_without_control_characters() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=200, height=20, color_system=None)
    display = GroupDisplay(console)
    seed = SeedProgress.from_record(SeedRecord(seed=1, run_dir="run", status="failed", reason=NASTY), 100)
    display.on_seed_end(seed)
    console.print(display._table([seed]))
    assert isinstance(console.file, io.StringIO)
    printed = console.file.getvalue()
    assert printed.count(SHOWN) == 2
    assert_harmless(printed)
