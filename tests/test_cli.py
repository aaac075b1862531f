"""The command line: one line per user error and nothing made, plans that come true, and every way a run can go on."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from conftest import TINY_PPO, TINY_REPLAY
from typer.core import TyperGroup

import rl_training
from rl_training.cli import main
from rl_training.cli.app import Command, app
from rl_training.errors import TrainingInterrupted
from rl_training.experiment.checkpointing import load_checkpoint, save_checkpoint, step_checkpoints
from rl_training.experiment.runs import context_of, read_metadata, read_metrics

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(rl_training.__file__).parents[1])}

TINY: dict[str, Any] = {
    "algo": "ppo",
    "env_id": "CartPole-v1",
    "seed": 7,
    "total_timesteps": 128,
    "num_envs": 4,
    "eval_episodes": 2,
    "eval_interval": 64,
    "checkpoint_interval": 64,
    "algo_kwargs": TINY_PPO,
}
REPLAY = {"algo_kwargs": {**TINY_REPLAY, "train_frequency": 64}}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "ppo": {},
    "dqn": {"algo": "dqn", **REPLAY},
    "sac": {"algo": "sac", "env_id": "Pendulum-v1", **REPLAY},
}
"""What makes `TINY` a run of each algorithm. They all update at steps 64 and 128."""
EVERY_ALGORITHM = pytest.mark.parametrize("algo", ALGORITHMS)


def write_config(directory: Path, **changes: Any) -> Path:
    path = directory / "tiny.yaml"
    path.write_text(yaml.safe_dump({**TINY, **changes}))
    return path


def env_of(algo: str) -> str:
    return str({**TINY, **ALGORITHMS[algo]}["env_id"])


def train(directory: Path, **changes: Any) -> Path:
    """Train below `directory`, from a file, and give the run's directory."""
    output_dir = directory / "runs"
    known = set(output_dir.iterdir()) if output_dir.exists() else set()
    assert main(["train", "--config", str(write_config(directory, **changes)), "--output-dir", str(output_dir)]) == 0
    (run_dir,) = set(output_dir.iterdir()) - known
    return run_dir


@pytest.fixture(scope="module", params=list(ALGORITHMS))
def trained(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A finished run of each algorithm that tests only read."""
    return train(tmp_path_factory.mktemp("trained"), **ALGORITHMS[request.param])


@pytest.fixture
def own_run(trained: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may change."""
    return Path(shutil.copytree(trained, tmp_path / "runs" / trained.name))


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, below which the default output directory would appear."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def imported_modules(*arguments: str) -> set[str]:
    command = [sys.executable, "-X", "importtime", *arguments]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=ENVIRONMENT)
    return {line.rpartition("|")[2].strip() for line in answer.stderr.splitlines() if line.startswith("import time:")}


def test_help_answers_without_importing_torch() -> None:
    modules = imported_modules("-m", "rl_training", "--help")
    assert {"rl_training.cli", "typer"} <= modules
    assert not {"torch", "gymnasium", "numpy"} & modules


def test_importing_the_package_does_not_import_torch() -> None:
    modules = imported_modules("-c", "import rl_training; rl_training.__version__")
    assert "rl_training" in modules
    assert not {"torch", "gymnasium", "numpy", "pydantic"} & modules


PROGRAM = typer.main.get_command(app)
assert isinstance(PROGRAM, TyperGroup)
COMMANDS = dict(PROGRAM.commands)


@pytest.mark.parametrize("argv", [[], ["--help"], *([name, "--help"] for name in COMMANDS)], ids=str)
def test_help_is_plain_text_that_fits_a_terminal_and_exits_with_0(
    argv: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert main(argv) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("Usage: rl-training")
    assert "\nExamples:\n  rl-training " in printed.out
    assert printed.out.isascii()
    assert "\x1b" not in printed.out
    assert max(map(len, printed.out.splitlines())) < 80
    assert printed.err == ""


def test_help_shows_every_command_under_a_heading_with_a_whole_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    headings = [line for line in printed.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert headings == ["Train:", "Look at results:", "Deploy:", "Check:", "Options:", "Examples:"]
    for name, command in COMMANDS.items():
        sentence = (command.help or "").splitlines()[0].partition(". ")[0].rstrip(".")
        assert re.search(rf"^  {name} +{re.escape(sentence)}\.$", printed, re.MULTILINE)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_explains_every_option_in_sentences(name: str) -> None:
    for parameter in COMMANDS[name].params:
        assert re.fullmatch(r"[A-Z].*[.]", getattr(parameter, "help", "")), parameter.name


def test_help_groups_the_options_of_a_long_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--help"]) == 0
    sections = re.split(r"^(\S.*):\n", capsys.readouterr().out, flags=re.MULTILINE)
    options = {
        heading: re.findall(r"--[a-z-]+", text) for heading, text in zip(sections[1::2], sections[2::2], strict=True)
    }
    assert options["What to train"][:3] == ["--config", "--algo", "--env"]
    assert options["Many seeds"] == ["--seeds", "--jobs", "--on"]
    assert options["Safety"] == ["--trust"]
    assert options["Options"] == ["--help"]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_examples_in_the_help_are_valid(name: str) -> None:
    examples = [line.split() for line in (COMMANDS[name].help or "").splitlines() if "    rl-training" in line]
    assert examples
    for program, command, *arguments in examples:
        assert (program, command) == ("rl-training", name)
        COMMANDS[name].make_context(name, arguments)


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_every_command_ends_with_the_exit_code_of_the_signal_that_interrupted_it(
    number: signal.Signals, exit_code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> int:
        raise TrainingInterrupted("interrupted at step 3", number)

    program = typer.Typer(rich_markup_mode=None)
    program.command(cls=Command)(interrupted)
    assert typer.main.get_command(program).main([], standalone_mode=False) == exit_code
    assert capsys.readouterr().err == "interrupted at step 3\n"


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"{rl_training.__version__}\n"


CARTPOLE = ["train", "--algo", "ppo", "--env", "CartPole-v1"]

USER_ERRORS: dict[str, tuple[list[str], list[str]]] = {
    "unknown command": (["tain"], ["tain"]),
    "unknown option": (["train", "--sed", "3"], ["--sed"]),
    "missing option": (["eval"], ["--checkpoint"]),
    "missing value": (["train", "--config"], ["--config"]),
    "text for a number": ([*CARTPOLE, "--seed", "three"], ["--seed", "integer"]),
    "neither config nor algorithm": (["train"], ["--config FILE", "--algo and --env"]),
    "algorithm without env": (["train", "--algo", "ppo"], ["--config FILE", "--algo and --env"]),
    "missing file": (["train", "--config", "missing.yaml"], ["missing.yaml: cannot be read"]),
    "bad yaml": (["train", "--config", "bad.yaml"], ["bad.yaml:2: "]),
    "unknown key": (["train", "--config", "key.yaml"], ["key.yaml:3: sed: unknown key; did you mean 'seed'?"]),
    "unknown parameter": ([*CARTPOLE, "--set", "algo_kwargs.gama=0.9"], ["algo_kwargs.gama", "did you mean 'gamma'?"]),
    "unknown name": ([*CARTPOLE, "--set", "learning_rat=1"], ["did you mean 'algo_kwargs.learning_rate'?"]),
    "unknown field": ([*CARTPOLE, "--set", "num_env=1"], ["num_env: unknown key; did you mean 'num_envs'?"]),
    "a name of nothing": ([*CARTPOLE, "--set", "zzz=1"], ["zzz: unknown key; known here: action_mask, algo"]),
    "another algorithm's parameter": ([*CARTPOLE, "--set", "buffer_capacity=9"], ["buffer_capacity: unknown key"]),
    "parameter given twice": (
        [*CARTPOLE, "--set", "gamma=0.9", "--set", "algo_kwargs.gamma=0.8"],
        ["gamma and algo_kwargs.gamma are the same: give only one of them"],
    ),
    "malformed assignment": ([*CARTPOLE, "--set", "seed"], ["--set seed: give key=value"]),
    "value out of range": ([*CARTPOLE, "--total-timesteps", "0"], ["total_timesteps=0"]),
    "unknown algorithm": (["train", "--algo", "pppo", "--env", "CartPole-v1"], ["algo='pppo'", "did you mean 'ppo'?"]),
    "unknown env": (
        ["train", "--algo", "ppo", "--env", "CartPol-v1"],
        ["unknown environment 'CartPol-v1'; did you mean 'CartPole-v1'?"],
    ),
    "unknown version of an env": (["train", "--algo", "ppo", "--env", "CartPole-v77"], ["did you mean 'CartPole-v1'?"]),
    "malformed env id": (["train", "--algo", "ppo", "--env", "Cart Pole"], ["Cart Pole"]),
    "unknown module of an env": (["train", "--algo", "ppo", "--env", "nowhere:Env-v0"], ["No module named 'nowhere'"]),
    "env arguments it does not take": (
        [*CARTPOLE, "--set", "env_kwargs.gravity=3"],
        ["CartPole-v1 with env_kwargs {'gravity': 3}", "unexpected keyword argument 'gravity'"],
    ),
    "env arguments it chokes on": (
        ["train", "--algo", "ppo", "--env", "FrozenLake-v1", "--set", "env_kwargs.map_name=9x9"],
        ["FrozenLake-v1 with env_kwargs {'map_name': '9x9'}", "KeyError: '9x9'"],
    ),
    "unusable device": ([*CARTPOLE, "--set", "device=cuda:99"], ["device='cuda:99'"]),
    "output directory is a file": ([*CARTPOLE, "--output-dir", "bad.yaml"], ["bad.yaml is a file"]),
    "resume of nothing": (["resume"], ["RUN_DIR or --checkpoint"]),
    "resume of two things": (["resume", "a", "--checkpoint", "b"], ["either RUN_DIR or --checkpoint"]),
    "resume of a missing run": (["resume", "missing"], ["checkpoint missing cannot be read"]),
    "resume of nonsense": (["resume", "--checkpoint", "bad.yaml"], ["checkpoint bad.yaml is"]),
    "resume of a directory without checkpoints": (["resume", "."], ["no intact checkpoint"]),
    "eval of nonsense": (["eval", "--checkpoint", "bad.yaml"], ["checkpoint bad.yaml is"]),
    "eval of an empty file": (["eval", "--checkpoint", "empty.pt"], ["checkpoint empty.pt is damaged"]),
    "eval of a missing file": (["eval", "--checkpoint", "missing.pt"], ["missing.pt cannot be read"]),
    "eval of no episodes": (["eval", "--checkpoint", "missing.pt", "--num-episodes", "0"], ["num_episodes=0"]),
    "list of a missing directory": (["list", "missing"], ["missing is not a directory"]),
}


def assert_one_error_line(printed: str, *expected: str) -> None:
    assert printed.startswith("error: ")
    assert printed.endswith("\n")
    assert printed.count("\n") == 1
    for text in expected:
        assert text in printed


@pytest.mark.parametrize("argv", [["eval", "--checkpoint"], ["resume"], ["list"], ["plot"], ["replay"]])
def test_a_path_that_is_too_long_is_refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*argv, "x" * 5_000]) == 2
    printed = capsys.readouterr().err
    assert_one_error_line(printed, "too long")
    assert len(printed) < 200


def test_a_name_of_an_algorithm_that_is_too_long_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--env", "e", "--algo", "x" * 5_000]) == 2
    printed = capsys.readouterr().err
    # Before Python 3.12, looking for a preset of that name already fails.
    reason = "at most 1000 characters" if sys.version_info >= (3, 12) else "name is too long"
    assert_one_error_line(printed, "xxx...: ", reason)
    assert len(printed) < 200


@pytest.mark.parametrize("name", USER_ERRORS)
def test_a_user_error_is_one_line_and_makes_nothing(
    name: str, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (workplace / "bad.yaml").write_text("algo: ppo\nenv_id: a: b\n")
    (workplace / "key.yaml").write_text("algo: ppo\nenv_id: CartPole-v1\nsed: 1\n")
    (workplace / "empty.pt").touch()
    argv, expected = USER_ERRORS[name]
    assert main(argv) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert_one_error_line(printed.err, *expected)
    assert sorted(path.name for path in workplace.iterdir()) == ["bad.yaml", "empty.pt", "key.yaml"]


@pytest.mark.parametrize(
    ("env_id", "simulator", "extra"),
    [
        ("LunarLander-v3", "Box2D", "box2d"),
        ("HalfCheetah-v5", "mujoco", "mujoco"),
        ("ALE/Pong-v5", "ale_py", "atari"),
        ("ale_py:ALE/Pong-v5", "ale_py", "atari"),
    ],
)
def test_a_missing_simulator_is_answered_with_the_command_that_installs_it(
    env_id: str,
    simulator: str,
    extra: str,
    workplace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for module in [name for name in sys.modules if name.startswith(("gymnasium.envs.box2d", "gymnasium.envs.mujoco"))]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, simulator, None)
    assert main(["train", "--algo", "ppo", "--env", env_id]) == 2
    assert_one_error_line(capsys.readouterr().err, env_id, f"pip install 'rl-training[{extra}]'")
    assert list(workplace.iterdir()) == []


def test_resuming_to_a_smaller_budget_is_refused_and_changes_nothing(
    own_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.read_bytes() for path in own_run.rglob("*") if path.is_file()}
    for source in ([str(own_run)], ["--checkpoint", str(own_run / "checkpoints" / "step_128.pt")]):
        assert main(["resume", *source, "--total-timesteps", "100"]) == 2
        assert_one_error_line(capsys.readouterr().err, "total_timesteps=100: already trained for 128 steps")
    assert {path: path.read_bytes() for path in own_run.rglob("*") if path.is_file()} == before
    assert list(own_run.parent.iterdir()) == [own_run]


def test_checkpoints_outside_a_run_directory_are_not_resumed_in_place(
    own_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (own_run / "metadata.json").unlink()
    assert main(["resume", str(own_run), "--total-timesteps", "256"]) == 2
    assert_one_error_line(capsys.readouterr().err, "is not a run directory; give one of the files to fork it")


def test_a_finished_run_says_so_and_holds_its_files(trained: Path) -> None:
    metadata = read_metadata(context_of(trained))
    assert (metadata["status"], metadata["global_step"]) == ("completed", 128)
    assert {path.name for path in (trained / "checkpoints").glob("*.pt")} == {
        f"step_{step}.pt" for step in (0, 64, 128)
    } | {"best.pt"}
    assert load_checkpoint(trained / "checkpoints" / "step_128.pt").trainer_state["global_step"] == 128
    assert {row["step"] for row in read_metrics(context_of(trained))} == {64, 128}


@EVERY_ALGORITHM
def test_training_reports_its_result_and_where_it_lies(
    algo: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = train(tmp_path, **ALGORITHMS[algo])
    printed = capsys.readouterr()
    assert f"Training {algo} on {env_of(algo)}, seed 7, in {run_dir}" in printed.err
    assert re.search(r"global_step +128", printed.out)
    assert f"{run_dir}\n" in printed.out
    assert f"{run_dir / 'checkpoints' / 'step_128.pt'}\n" in printed.out


@EVERY_ALGORITHM
def test_flags_override_the_file(algo: str, tmp_path: Path) -> None:
    config = write_config(tmp_path, **ALGORITHMS[algo])
    argv = ["train", "--config", str(config), "--output-dir", str(tmp_path / "runs")]
    assert main([*argv, "--seed", "3", "--total-timesteps", "64", "--set", "gamma=0.5"]) == 0
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert run_dir.name.startswith(f"{algo}__{env_of(algo)}__seed3__")
    written = yaml.safe_load((run_dir / "config.yaml").read_text())
    assert (written["seed"], written["total_timesteps"], written["algo_kwargs"]["gamma"]) == (3, 64, 0.5)


@pytest.mark.parametrize("source", [".", "checkpoints", "checkpoints/step_64.pt"])
def test_eval_plays_the_episodes_of_a_file_or_a_run(
    source: str, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", "--checkpoint", str(trained / source), "--num-episodes", "3"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"eval_episodes +3 *\n", printed)
    assert re.search(r"eval_return_mean +-?[\d,]+\.\d\d", printed)


def test_eval_takes_the_best_checkpoint_when_asked(own_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in step_checkpoints(own_run / "checkpoints"):
        path.unlink()
    assert main(["eval", "--checkpoint", str(own_run), "--num-episodes", "1"]) == 2
    assert_one_error_line(capsys.readouterr().err, "no intact checkpoint")
    assert main(["eval", "--checkpoint", str(own_run), "--num-episodes", "1", "--best"]) == 0


def test_list_shows_every_run_the_unreadable_ones_too(own_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = own_run.parent
    for name, content in {"torn": "{", "odd": '{"global_step": "many", "best_return": []}'}.items():
        (root / name).mkdir()
        (root / name / "metadata.json").write_text(content)
    assert main(["list", str(root)]) == 0
    rows = {line.split()[-1]: line for line in capsys.readouterr().out.splitlines() if line}
    algo, env_id, *_ = own_run.name.split("__")
    assert re.match(rf"{algo} +{env_id} +7 +128 +-?[\d,]+\.\d +completed +{own_run.name}", rows[own_run.name])
    assert "unreadable" in rows["torn"]
    assert "unreadable" in rows["odd"]


def test_list_says_when_there_is_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"no runs below {tmp_path}\n"


def test_resuming_a_file_forks_a_new_run_that_names_its_parent(own_run: Path) -> None:
    before = {path: path.read_bytes() for path in own_run.rglob("*") if path.is_file()}
    moved = write_output_dir(own_run / "checkpoints" / "step_64.pt", own_run.parent)
    assert main(["resume", "--checkpoint", str(moved), "--total-timesteps", "192"]) == 0
    (fork,) = set(own_run.parent.iterdir()) - {own_run}
    metadata = read_metadata(context_of(fork))
    assert metadata["parent"] == {"run_id": own_run.name, "step": 64}
    assert (metadata["status"], metadata["global_step"]) == ("completed", 192)
    assert {row["step"] for row in read_metrics(context_of(fork))} == {128, 192}
    assert {path: path.read_bytes() for path in own_run.rglob("*") if path.is_file()} == before


def write_output_dir(checkpoint: Path, output_dir: Path) -> Path:
    """The same checkpoint, elsewhere, of a run whose output directory was this one."""
    state = load_checkpoint(checkpoint)
    changed = replace(state, config={**state.config, "output_dir": str(output_dir)})
    return save_checkpoint(output_dir.parent / checkpoint.name, changed)


def test_resuming_a_run_directory_goes_on_in_place(own_run: Path) -> None:
    assert main(["resume", str(own_run), "--total-timesteps", "256"]) == 0
    assert list(own_run.parent.iterdir()) == [own_run]
    metadata = read_metadata(context_of(own_run))
    assert (metadata["status"], metadata["global_step"]) == ("completed", 256)
    assert [entry["step"] for entry in metadata["resumed"]] == [128]
    assert "parent" not in metadata
    assert load_checkpoint(own_run / "checkpoints" / "step_256.pt").trainer_state["global_step"] == 256
    evaluated = [row["step"] for row in read_metrics(context_of(own_run)) if "eval/mean_reward" in row]
    assert evaluated == [64, 128, 192, 256]
    assert yaml.safe_load((own_run / "config.yaml").read_text())["total_timesteps"] == 256


def test_a_fork_that_goes_on_in_place_still_names_its_parent(own_run: Path) -> None:
    moved = write_output_dir(own_run / "checkpoints" / "step_64.pt", own_run.parent)
    assert main(["resume", "--checkpoint", str(moved)]) == 0
    (fork,) = set(own_run.parent.iterdir()) - {own_run}
    assert main(["resume", str(fork), "--total-timesteps", "192"]) == 0
    assert read_metadata(context_of(fork))["parent"] == {"run_id": own_run.name, "step": 64}


def test_a_dry_run_shows_where_every_value_comes_from_and_makes_nothing(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*CARTPOLE, "--seed", "3", "--set", "algo_kwargs.gamma=0.5", "--dry-run"]) == 0
    rows = {cells[0]: cells[1:] for cells in table(capsys.readouterr().out)}
    assert rows["seed"] == ["3", "flag"]
    assert rows["algo_kwargs.gamma"] == ["0.5", "flag"]
    assert rows["num_envs"] == ["8", "preset"]
    assert rows["algo_kwargs.num_steps"] == ["32", "preset"]
    assert rows["num_threads"] == ["1", "default"]
    assert rows["algo_kwargs.vf_coef"] == ["0.5", "default"]
    assert rows["env steps"] == ["98,304"]
    assert list(workplace.iterdir()) == []


def table(printed: str) -> list[list[str]]:
    return [re.split(r" {2,}", line.strip()) for line in printed.splitlines() if line.strip()]


def planned_counts(argv: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, int]:
    capsys.readouterr()
    assert main([*argv, "--dry-run"]) == 0
    rows = {cells[0]: cells[-1] for cells in table(capsys.readouterr().out)}
    names = ("rollouts", "env steps", "gradient steps", "evaluations", "checkpoints")
    return {name: int(rows[name].replace(",", "")) for name in names if name in rows}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"total_timesteps": 100, "num_envs": 2, "eval_interval": 50, "checkpoint_interval": 30},
        {"total_timesteps": 65, "num_envs": 2, "eval_interval": 0, "checkpoint_interval": 0},
        {"total_timesteps": 1, "num_envs": 3, "eval_interval": 7, "checkpoint_interval": 1000},
        {"total_timesteps": 96, "num_envs": 3, "eval_episodes": 0, "checkpoint_interval": 48},
        {"algo_kwargs": {**TINY_PPO, "minibatch_size": 24, "update_epochs": 3}, "eval_interval": 1},
        ALGORITHMS["dqn"],
        ALGORITHMS["sac"],
        {**ALGORITHMS["sac"], "total_timesteps": 100, "num_envs": 3, "eval_interval": 50, "checkpoint_interval": 30},
    ],
    ids=str,
)
def test_what_a_dry_run_counts_is_what_the_run_does(
    changes: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = {**changes, "keep_checkpoints": 1000, "log_interval": 1}
    planned = planned_counts(["train", "--config", str(write_config(tmp_path, **kept))], capsys)
    run_dir = train(tmp_path, **kept)
    metadata, rows = read_metadata(context_of(run_dir)), read_metrics(context_of(run_dir))
    rollouts = {} if "algo" in changes else {"rollouts": sum("train/loss" in row for row in rows)}  # PPO alone has them
    assert planned == {
        **rollouts,
        "env steps": metadata["global_step"],
        "gradient steps": metadata["metrics"]["num_updates"],
        "evaluations": sum("eval/mean_reward" in row for row in rows),
        "checkpoints": len(step_checkpoints(run_dir / "checkpoints")),
    }


def runs_on(process: "subprocess.Popen[str]") -> bool:
    """Whether the process is alive, after giving it a moment."""
    try:
        process.wait(timeout=0.02)
    except subprocess.TimeoutExpired:
        return True
    return False


def metrics_written(output_dir: Path) -> bool:
    return any(path.stat().st_size for path in output_dir.glob("*/metrics.jsonl"))


@pytest.mark.slow
def test_a_signal_saves_the_run_before_it_ends(tmp_path: Path) -> None:
    endless = {"total_timesteps": 10**9, "log_interval": 1, "eval_interval": 0, "compile": "off"}
    config = write_config(tmp_path, **ALGORITHMS["dqn"], **endless)
    arguments = ["train", "--config", str(config), "--output-dir", str(tmp_path / "r")]
    command = [sys.executable, "-m", "rl_training", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT) as process:
        deadline = threading.Timer(150.0, process.kill)
        deadline.start()
        assert process.stderr is not None
        first_line = process.stderr.readline()
        while runs_on(process) and not metrics_written(tmp_path / "r"):
            pass
        process.send_signal(signal.SIGTERM)
        rest = process.stderr.read()
        process.wait()
        deadline.cancel()
    assert first_line.startswith("Training dqn on CartPole-v1")
    assert process.returncode == 143
    (run_dir,) = (tmp_path / "r").iterdir()
    metadata = read_metadata(context_of(run_dir))
    assert metadata["status"] == "interrupted"
    assert metadata["stop_reason"] == "SIGTERM"
    newest = step_checkpoints(run_dir / "checkpoints")[0]
    assert load_checkpoint(newest).trainer_state["global_step"] == metadata["global_step"] > 0
    assert rest.splitlines()[-1] == f"interrupted at step {metadata['global_step']}; saved {newest}"
    assert "Traceback" not in rest
    logged = json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1])["step"]
    assert 0 < logged <= metadata["global_step"]  # the signal may come between two logs
