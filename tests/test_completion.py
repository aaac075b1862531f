"""Shell completion, driven through the environment variables and scripts that the shells use."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from test_cli import ENVIRONMENT, imported_modules, train

from rl_training.cli import completion, main
from rl_training.cli.completion import ALGORITHMS, FORMATS, METRICS, SUITES
from rl_training.deploy import export
from rl_training.experiment.runs import context_of, read_metrics
from rl_training.groups import benchmarking
from rl_training.results.receipts import preset_names
from rl_training.runtime.registry import list_algorithm_specs


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def complete(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> "Complete":
    return Complete(monkeypatch, capsys)


class Complete:
    """Answers what the shell would offer at the end of a command line."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, line: str, shell: str = "bash") -> list[str]:
        words = line.split(" ")
        variables = {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1), "_TYPER_COMPLETE_ARGS": line}
        variables |= {"_RL_TRAINING_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
        with self._monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            with pytest.raises(SystemExit) as ended:
                main([])
        assert ended.value.code == 0
        printed = self._capsys.readouterr()
        assert printed.err == ""
        return printed.out.split("\n")[:-1] if printed.out.strip() else []


def test_commands_and_options_are_completed(complete: Complete) -> None:
    assert complete("rl-training re") == ["resume", "record", "report", "replay"]
    stops = ["--stop-at-return", "--stop-at", "--stop-after"]
    assert complete("rl-training train --s") == ["--seed", "--set", *stops, "--seeds"]
    assert complete("rl-training resume --ver") == ["--verify"]
    assert complete("rl-training --version ") != []


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("train --algo ", list(ALGORITHMS)),
        ("train --algo p", ["ppo"]),
        ("train --algo dqn --env C", ["CartPole-v1"]),
        ("train --algo dqn --env P", []),
        ("train --env Pend", ["Pendulum-v1"]),
        ("compare a b --metric ", ["final", "best", "auc"]),
        ("plot runs --metric eval/", ["eval/mean_ep_length", "eval/mean_reward"]),
        ("benchmark ", [*SUITES, *preset_names()]),
        ("benchmark --verify ppo/cart", ["ppo/cartpole"]),
        ("check-env ", []),
    ],
)
def test_values_are_completed(line: str, offered: list[str], complete: Complete) -> None:
    assert complete(f"rl-training {line}") == offered


def test_configs_and_run_directories_are_completed(workplace: Path, complete: Complete) -> None:
    for file in ("configs/own.yaml", "configs/ppo/cartpole.yaml", "runs/one/metadata.json", "runs/many/group.json"):
        (workplace / file).parent.mkdir(parents=True, exist_ok=True)
        (workplace / file).touch()
    (workplace / "runs" / "other").mkdir()
    assert complete("rl-training train --config ") == ["configs/own.yaml", "configs/ppo/cartpole.yaml"]
    for command in (
        "resume",
        "replay",
        "plot",
        "report",
        "record",
        "compare",
        "compare a",
        "eval",
        "eval --checkpoint",
    ):
        assert complete(f"rl-training {command} ") == ["runs/many", "runs/one"]


@pytest.mark.parametrize("name", ["a b", "$(touch owned)", "`touch owned`", "a;touch owned", "a'b", "\x1b[2J", "a\nb"])
def test_a_name_that_a_shell_would_obey_is_not_offered(name: str, workplace: Path, complete: Complete) -> None:
    run_dir = workplace / "runs" / name
    run_dir.mkdir(parents=True)
    (run_dir / "metadata.json").touch()
    assert complete("rl-training resume ") == []


@pytest.mark.parametrize(
    ("shell", "answer"),
    [
        ("bash", ["check-env"]),
        ("zsh", ["""_arguments '*: :(("check-env":"Check an environment before a long run."))'"""]),
        ("fish", ["check-env\tCheck an environment before a long run."]),
    ],
)
def test_every_shell_gets_its_own_format(shell: str, answer: list[str], complete: Complete) -> None:
    assert complete("rl-training check", shell) == answer


def test_what_is_offered_is_what_the_package_has(workplace: Path) -> None:
    assert list(ALGORITHMS) == [spec.name for spec in list_algorithm_specs()]
    assert set(SUITES) == set(benchmarking.SUITES)
    assert set(FORMATS) == set(export.FORMATS)
    assert completion.complete_preset() == preset_names()
    rows = read_metrics(context_of(train(workplace)))
    assert set(METRICS) <= {name for row in rows for name in row}


def write_script(path: Path) -> Path:
    """Write the console script as an installer does."""
    path.write_text(f"#!{sys.executable}\nfrom rl_training.cli import entry_point\nentry_point()\n")
    path.chmod(0o755)
    return path


def test_bash_completes_with_the_script_that_the_command_prints(workplace: Path) -> None:
    folder = workplace / "bin"
    folder.mkdir()
    write_script(folder / "rl-training")
    for module in ("typer", "rl_training", "json"):
        (workplace / f"{module}.py").write_text("raise SystemExit('code of the working directory ran')")
    session = (
        'eval "$(_RL_TRAINING_COMPLETE=source_bash rl-training)"\n'
        "COMP_WORDS=(rl-training train --algo p); COMP_CWORD=3\n"
        '_rl_training_completion rl-training; echo "${COMPREPLY[@]}"\n'
    )
    environment = {**ENVIRONMENT, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    answer = subprocess.run(
        ["bash", "--norc", "-c", session], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert (answer.stdout, answer.stderr) == ("ppo\n", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_of_a_shell_is_installed_in_the_home_directory(
    shell: str, workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(workplace))
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")  # the options then take the shell's name
    for option in ("--show-completion", "--install-completion"):
        with pytest.raises(SystemExit) as ended:
            main([option, shell])
        assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert f"_RL_TRAINING_COMPLETE=complete_{shell}" in printed
    (line,) = re.findall(rf"{shell} completion installed in (.*)", printed)
    assert f"_RL_TRAINING_COMPLETE=complete_{shell}" in Path(line).read_text()
    assert Path(line).is_relative_to(workplace)


def test_completion_does_not_import_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    for line in ("train --algo ", "train --env ", "resume ", "benchmark "):
        words = ["rl-training", *shlex.split(line), ""]
        monkeypatch.setitem(ENVIRONMENT, "COMP_WORDS", "\n".join(words))
        monkeypatch.setitem(ENVIRONMENT, "COMP_CWORD", str(len(words) - 1))
        monkeypatch.setitem(ENVIRONMENT, "_RL_TRAINING_COMPLETE", "complete_bash")
        modules = imported_modules("-m", "rl_training")
        assert "rl_training.cli.completion" in modules
        assert not {"torch", "gymnasium", "numpy"} & modules
