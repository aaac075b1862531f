"""What may change when a run goes on, what is said about it, and whether this machine repeats it."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import MakeConfig

from rl_training.cli import load_config, main
from rl_training.errors import ConfigError, TrainingInterrupted
from rl_training.experiment.checkpointing import find_checkpoint, load_checkpoint, save_checkpoint
from rl_training.experiment.config import TrainConfig, describe_training_differences, plain_config
from rl_training.experiment.files import write_text
from rl_training.experiment.runs import context_of, read_digests, read_metadata, read_metrics, update_metadata
from rl_training.runtime.callbacks import Callback, StopAtReturn
from rl_training.runtime.ppo_trainer import train_ppo
from rl_training.runtime.registry import get_algorithm_spec
from rl_training.runtime.trainer import TrainerState, TrainResult
from rl_training.runtime.workflows import Verification, resume_training, verify_resume

FREE = {
    "total_timesteps": 192,
    "eval_episodes": 1,
    "eval_interval": 32,
    "log_interval": 32,
    "checkpoint_interval": 32,
    "checkpoint_seconds": 1.0,
    "keep_checkpoints": 1,
    "tags": ["other"],
    "trackers": ["csv"],
}
BINDING = {
    "seed": 8,
    "env_id": "Acrobot-v1",
    "num_envs": 2,
    "num_threads": 2,
    "algo_kwargs.learning_rate": 0.5,
    "algo_kwargs.gamma": 0.5,
    "env_kwargs.sutton_barto_reward": True,
}


@pytest.fixture
def finished(make_config: MakeConfig) -> TrainResult:
    return train_ppo(make_config())


def resume(run_dir: Path, **changes: Any) -> int:
    assignments = [f"{name}={json.dumps(value)}" for name, value in changes.items()]
    return main(["resume", str(run_dir), *(part for each in assignments for part in ("--set", each))])


@pytest.mark.parametrize("name", FREE)
def test_budget_intervals_and_logging_may_change(finished: TrainResult, name: str) -> None:
    assert resume(finished.run_dir, **{"total_timesteps": 192, name: FREE[name]}) == 0
    config = load_config(finished.run_dir / "config.yaml")
    assert plain_config(config)[name] == FREE[name]
    assert read_metadata(context_of(finished.run_dir))["resumed"][0]["exact"]


@pytest.mark.parametrize("name", BINDING)
def test_what_decides_the_runs_course_changes_only_by_force(
    finished: TrainResult, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert resume(finished.run_dir, **{"total_timesteps": 192, name: BINDING[name]}) == 2
    message = capsys.readouterr().err
    assert f"{name}: " in message
    assert f"then, {BINDING[name]} now" in message
    assert "resumed" not in read_metadata(context_of(finished.run_dir))


def test_a_forced_change_is_used_and_noted(finished: TrainResult) -> None:
    command = ["resume", str(finished.run_dir), "--total-timesteps", "192", "--force"]
    assert main([*command, "--set", "algo_kwargs.gamma=0.5"]) == 0
    assert load_config(finished.run_dir / "config.yaml").algo_kwargs["gamma"] == 0.5
    (note,) = read_metadata(context_of(finished.run_dir))["resumed"]
    assert (note["exact"], note["reasons"]) == (False, ["algo_kwargs.gamma: 0.99 then, 0.5 now"])


def test_a_misspelt_change_is_refused_with_the_nearest_name(
    finished: TrainResult, capsys: pytest.CaptureFixture[str]
) -> None:
    assert resume(finished.run_dir, total_timestep=192) == 2
    assert "did you mean 'total_timesteps'" in capsys.readouterr().err


def test_an_edited_config_file_is_noticed_and_not_used(finished: TrainResult) -> None:
    path = finished.run_dir / "config.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "seed": 99}))
    with pytest.warns(UserWarning, match=r"config.yaml differs .* \(seed: 7 then, 99 now\)"):
        resume_training(finished.run_dir, total_timesteps=192)
    assert load_config(path).seed == 7


def test_another_version_is_named(finished: TrainResult, capsys: pytest.CaptureFixture[str]) -> None:
    state = load_checkpoint(finished.checkpoint_path)
    state.metadata["versions"]["torch"] = "1.0"
    save_checkpoint(finished.checkpoint_path, state)
    assert main(["resume", str(finished.run_dir), "--total-timesteps", "192"]) == 0
    assert "resumed from step 128 (not exact: torch 1.0 then, " in capsys.readouterr().err


def resumed_note(run_dir: Path, total_timesteps: int, changed: dict[str, Any]) -> dict[str, Any]:
    """Change the metadata of the newest checkpoint, resume, and return what the run noted about the resume."""
    path = find_checkpoint(run_dir)
    state = load_checkpoint(path)
    state.metadata.update(changed)
    save_checkpoint(path, state)
    resume_training(run_dir, total_timesteps)
    note: dict[str, Any] = read_metadata(context_of(run_dir))["resumed"][-1]
    return note


def test_another_simulator_or_another_source_of_the_env_is_named(make_config: MakeConfig) -> None:
    run_dir = train_ppo(make_config(env_id="chaos_envs:HiddenWalk-v0")).run_dir
    stored = load_checkpoint(find_checkpoint(run_dir)).metadata["versions"]
    assert {"chaos_envs source", "rl_training source"} <= set(stored)
    note = resumed_note(run_dir, 192, {"versions": {**stored, "mujoco": "1.0", "chaos_envs source": "0123"}})
    assert note["reasons"] == [
        f"chaos_envs source 0123 then, {stored['chaos_envs source']} now",
        "mujoco 1.0 then, unknown now",
    ]


def test_another_processor_is_named(finished: TrainResult) -> None:
    stored = load_checkpoint(finished.checkpoint_path).metadata["hardware"]
    note = resumed_note(finished.run_dir, 192, {"hardware": {**stored, "vector instructions": "AVX9"}})
    assert note["reasons"] == [f"vector instructions AVX9 then, {stored['vector instructions']} now"]
    assert not note["exact"]


@pytest.mark.slow
def test_other_vector_instructions_are_noticed_in_another_process(finished: TrainResult) -> None:
    stored = load_checkpoint(finished.checkpoint_path).metadata["hardware"]["vector instructions"]
    command = [sys.executable, "-m", "rl_training", "resume", str(finished.run_dir), "--total-timesteps", "192"]
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": "default"}
    resumed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert f"not exact: vector instructions {stored} then, DEFAULT now" in resumed.stderr


@pytest.mark.parametrize(
    ("algo", "params", "expected"),
    [
        ("ppo", {}, []),
        ("ppo", {"learning_rate": {"schedule": "linear", "start": 1e-3}}, ["learning_rate"]),
        ("dqn", {}, ["exploration_fraction"]),
        ("dqn", {"prioritized": True, "epsilon_start": 0.05}, ["priority_beta"]),
        ("sac", {}, []),
    ],
)
def test_a_larger_budget_is_named_when_a_schedule_follows_it(
    make_config: MakeConfig, algo: str, params: dict[str, Any], expected: list[str]
) -> None:
    config = make_config(algo=algo, algo_kwargs=params)
    run_dir = get_algorithm_spec(algo).train_fn(config).run_dir
    note = resumed_note(run_dir, 192, {})
    changed = f"total_timesteps 128 then, 192 now, which changes {', '.join(expected)}"
    assert note["reasons"] == ([changed] if expected else [])


@pytest.mark.parametrize(
    ("compiler", "packages", "named"),
    [
        ("no-such-compiler", ["0" * 32], True),
        ("no-such-compiler", [], True),
        ("no-such-compiler", None, False),
        # found, but no compiler: noticed at the first update
        pytest.param("true", ["0" * 32], True, marks=pytest.mark.slow),
    ],
)
def test_updates_that_were_compiled_and_run_eagerly_now_are_named(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, compiler: str, packages: list[str] | None, named: bool
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.warns(UserWarning, match="compiling failed"):
        run_dir = train_ppo(make_config(compile="on")).run_dir
    assert load_checkpoint(find_checkpoint(run_dir)).metadata["packages"] is None
    monkeypatch.setenv("CXX", compiler)
    with pytest.warns(UserWarning, match="compiling failed|cannot be compiled here"):
        note = resumed_note(run_dir, 192, {"packages": packages})
    assert note["reasons"] == (["updates were compiled before but cannot be compiled here"] if named else [])
    assert note["exact"] != named


def test_an_exact_resume_says_so(finished: TrainResult, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resume", str(finished.run_dir), "--total-timesteps", "192"]) == 0
    assert "resumed from step 128 (exact)" in capsys.readouterr().err


def test_a_run_that_was_moved_goes_on_where_it_is(finished: TrainResult, tmp_path: Path) -> None:
    moved = tmp_path / "other" / finished.run_dir.name
    shutil.copytree(finished.run_dir, moved)
    shutil.rmtree(finished.run_dir.parent)
    finished.run_dir.parent.write_text("the old output directory is no directory here")
    assert resume(moved, total_timesteps=192) == 0
    assert load_config(moved / "config.yaml").output_dir == tmp_path / "other"
    assert load_checkpoint(find_checkpoint(moved)).config["output_dir"] == str(tmp_path / "other")


def test_a_relative_output_directory_stays_as_it_was_given(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_dir = train_ppo(make_config(output_dir=Path("here"))).run_dir
    assert run_dir.parent == tmp_path / "here"
    assert resume(run_dir.relative_to(tmp_path), total_timesteps=192) == 0
    assert load_config(run_dir / "config.yaml").output_dir == Path("here")
    monkeypatch.chdir(run_dir)
    assert resume(Path(), total_timesteps=256) == 0
    assert load_config(run_dir / "config.yaml").output_dir == tmp_path / "here"


def test_an_env_that_changes_the_working_directory_does_not_split_its_run(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = tmp_path / "away"
    away.mkdir()
    wandering = {"env_id": "sample_envs:tests/Wandering-v0", "env_kwargs": {"away": str(away)}}
    monkeypatch.chdir(tmp_path)
    config = make_config(output_dir=Path("here"), trackers=["tensorboard", "csv"], **wandering)
    run_dir = train_ppo(config).run_dir
    monkeypatch.chdir(tmp_path)
    assert resume(run_dir.relative_to(tmp_path), total_timesteps=192) == 0
    assert list(away.iterdir()) == []
    assert [path.name for path in (tmp_path / "here").iterdir()] == [run_dir.name]
    assert read_metadata(context_of(run_dir))["global_step"] == 192


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff", b"[" * 99_999, b'{"wall_seconds": "long"}', b'{"resumed": null}']
)
def test_damaged_metadata_is_set_aside_and_written_anew_from_the_checkpoint(
    content: bytes, finished: TrainResult, capsys: pytest.CaptureFixture[str]
) -> None:
    context = context_of(finished.run_dir)
    before = read_metadata(context)
    context.metadata_path.write_bytes(content)
    with pytest.warns(UserWarning, match=r"is renamed to metadata\.json\.damaged-1") as caught:
        assert resume(finished.run_dir, total_timesteps=192) == 0
    assert len(caught) == 1
    assert (finished.run_dir / "metadata.json.damaged-1").read_bytes() == content
    after = read_metadata(context)
    for name in ("run_id", "algo", "env_id", "seed", "versions", "tags"):
        assert after[name] == before[name]
    assert (after["status"], after["global_step"], after["total_timesteps"]) == ("completed", 192, 192)
    assert [note["step"] for note in after["resumed"]] == [128]
    capsys.readouterr()
    assert main(["list", str(finished.run_dir)]) == 0
    assert "completed" in capsys.readouterr().out
    assert main(["report", str(finished.run_dir), "--no-film", "--output", str(finished.run_dir / "r.html")]) == 0


def test_damaged_logs_do_not_stop_a_resume_and_keep_what_is_readable(finished: TrainResult) -> None:
    context = context_of(finished.run_dir)
    rows, digests = read_metrics(context), read_digests(context)
    content = context.metrics_path.read_bytes()
    context.metrics_path.write_bytes(b"\x00" + content[1:])
    with pytest.warns(UserWarning, match=r"metrics\.jsonl has damaged lines"):
        assert resume(finished.run_dir, total_timesteps=192) == 0
    assert read_metrics(context)[: len(rows) - 1] == rows[1:]
    assert digests.items() <= read_digests(context).items()


def test_nested_differences_are_found_and_free_ones_left_out() -> None:
    before = plain_config(TrainConfig(algo="ppo", env_id="a", algo_kwargs={"x": 1, "deep": {"y": [1]}}))
    after = plain_config(TrainConfig(algo="ppo", env_id="a", total_timesteps=5, algo_kwargs={"deep": {"y": [2]}}))
    assert describe_training_differences(before, after) == [
        "algo_kwargs.x: 1 then, None now",
        "algo_kwargs.deep.y: [1] then, [2] now",
    ]
    assert describe_training_differences(before, before) == []


@pytest.mark.parametrize("algo", ["ppo", "dqn", "sac"])
def test_verifying_repeats_the_stored_digests_and_changes_nothing(
    make_config: MakeConfig, capsys: pytest.CaptureFixture[str], algo: str
) -> None:
    config = make_config(algo=algo, total_timesteps=256, num_envs=2, log_interval=32)
    run_dir = get_algorithm_spec(algo).train_fn(config).run_dir
    before = {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}
    assert main(["resume", str(run_dir), "--verify"]) == 0
    assert "2 of 2 stored digests are equal" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("content", ["{", '{"resumed": null}', '{"resumed": [1, {}]}'])
def test_verifying_needs_no_metadata(make_config: MakeConfig, content: str) -> None:
    run_dir = train_ppo(make_config(total_timesteps=192)).run_dir
    context_of(run_dir).metadata_path.write_text(content)
    assert verify_resume(run_dir) == Verification(128, equal=(192,), different=())


def test_verifying_finds_a_run_that_went_otherwise(make_config: MakeConfig, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = train_ppo(make_config(total_timesteps=256)).run_dir
    context = context_of(run_dir)
    rows = [{"step": step, "sha256": "0" * 64 if step == 256 else sha} for step, sha in read_digests(context).items()]
    context.digests_path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert verify_resume(run_dir).different == (256,)
    assert main(["resume", str(run_dir), "--verify"]) == 1
    assert "first difference at step 256" in capsys.readouterr().out


LINEAR = {"learning_rate": {"schedule": "linear", "start": 1e-2}}
BUDGETED = pytest.mark.parametrize(("algo", "params"), [("ppo", {}), ("ppo", LINEAR), ("dqn", {}), ("sac", LINEAR)])


@BUDGETED
def test_verifying_repeats_what_a_run_did_after_its_budget_was_raised(
    make_config: MakeConfig, capsys: pytest.CaptureFixture[str], algo: str, params: dict[str, Any]
) -> None:
    config = make_config(algo=algo, algo_kwargs=params, checkpoint_interval=0)
    run_dir = get_algorithm_spec(algo).train_fn(config).run_dir
    assert resume(run_dir, total_timesteps=256) == 0
    capsys.readouterr()
    assert main(["resume", str(run_dir), "--verify"]) == 0
    assert "resumed from step 128: 2 of 2 stored digests are equal" in capsys.readouterr().out
    for path in context_of(run_dir).checkpoints_dir.glob("step_256.pt*"):
        path.unlink()  # as if the run had been killed before it saved
    assert verify_resume(run_dir) == Verification(128, equal=(192, 256), different=())


@BUDGETED
def test_verifying_repeats_what_a_run_did_before_its_budget_was_raised(
    make_config: MakeConfig, algo: str, params: dict[str, Any]
) -> None:
    class StopAtOnce(Callback):
        def on_train_start(self, trainer: TrainerState) -> None:
            trainer.request_stop("the newest checkpoint is written again, with the larger budget")

    config = make_config(algo=algo, algo_kwargs=params, checkpoint_interval=0)
    result = get_algorithm_spec(algo).train_fn(config)
    resume_training(result.run_dir, total_timesteps=256, callbacks=[StopAtOnce()])
    assert load_checkpoint(result.checkpoint_path).config["total_timesteps"] == 256
    assert verify_resume(result.run_dir) == Verification(0, equal=(64, 128), different=())


def test_verifying_uses_the_values_that_a_resume_changed(make_config: MakeConfig) -> None:
    run_dir = train_ppo(make_config(checkpoint_interval=0, log_interval=128)).run_dir
    changes = ["--set", "log_interval=64", "--set", "gamma=0.5", "--force"]
    assert main(["resume", str(run_dir), "--total-timesteps", "256", *changes]) == 0
    assert verify_resume(run_dir) == Verification(128, equal=(192, 256), different=())


def test_there_is_nothing_to_verify_where_nothing_was_logged_after_a_checkpoint(
    make_config: MakeConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = train_ppo(make_config(keep_checkpoints=1)).run_dir
    assert main(["resume", str(run_dir), "--verify"]) == 2
    assert "nothing to verify" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_a_signal_in_the_middle_of_a_save_ends_the_run_with_a_whole_checkpoint(
    make_config: MakeConfig, number: int
) -> None:
    class InSave(Callback):
        """Its state is asked for while a checkpoint is written."""

        asked = 0

        def state_dict(self) -> dict[str, Any]:
            self.asked += 1
            if self.asked == 3:
                os.kill(os.getpid(), number)
            return {}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            raise AssertionError("never resumed")

    config = make_config(total_timesteps=10_000, eval_interval=0)
    with pytest.raises(TrainingInterrupted):
        train_ppo(config, callbacks=[InSave()])
    (run_dir,) = config.output_dir.iterdir()
    assert load_checkpoint(find_checkpoint(run_dir)).trainer_state["global_step"] == 128


# Python ignores exceptions in some of its own callbacks, such as those of the garbage collector. The timer that raises
# this one repeats it a moment later.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_update_that_takes_too_long_is_given_up_and_can_be_repeated(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr("rl_training.runtime.stop_signals._MAX_WORK_SECONDS", 0.2)

    class BeforeUpdate(Callback):
        def on_collect_end(self, trainer: Any, result: Any) -> None:
            os.kill(os.getpid(), number)

    config = make_config(compile="off", algo_kwargs={"update_epochs": 1_000_000})
    with pytest.raises(
        TrainingInterrupted, match=r"did not end within 0.2 s; resume continues from step_0\.pt"
    ) as caught:
        train_ppo(config, callbacks=[BeforeUpdate()])
    assert caught.value.signal_number == number
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    (run_dir,) = config.output_dir.iterdir()
    assert read_metadata(context_of(run_dir))["status"] == "interrupted"
    assert find_checkpoint(run_dir).name == "step_0.pt"  # nothing half learnt is kept


def files_of(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("options", [[], ["--total-timesteps", "128"], ["--set", "total_timesteps=128"]])
def test_resuming_a_complete_run_says_so_in_one_line_and_changes_nothing(
    finished: TrainResult, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    before = files_of(finished.run_dir)
    for source in ([str(finished.run_dir)], ["--checkpoint", str(finished.run_dir)]):
        assert main(["resume", *source, *options]) == 0
        shown = capsys.readouterr()
        (line,) = shown.out.splitlines()
        assert f"{finished.run_dir} is complete after 128 steps: there is nothing left to do" in line
        assert "--total-timesteps" in line
        assert shown.err == ""
    assert files_of(finished.run_dir) == before


def test_resuming_a_complete_run_from_python_returns_its_result(finished: TrainResult) -> None:
    before = files_of(finished.run_dir)
    assert finished.status == "completed"
    assert resume_training(finished.run_dir) == finished
    assert resume_training(finished.run_dir, total_timesteps=128) == finished
    with pytest.raises(ConfigError, match="total_timesteps=100: already trained for 128 steps"):
        resume_training(finished.run_dir, total_timesteps=100)
    with pytest.raises(ConfigError, match="already trained for 128 steps"):
        resume_training(finished.checkpoint_path)
    assert files_of(finished.run_dir) == before


def test_a_run_whose_last_rollout_passed_the_budget_is_complete(make_config: MakeConfig) -> None:
    result = train_ppo(make_config(total_timesteps=100))
    assert result.metrics["global_step"] == 128
    for budget in (None, 100, 128):
        assert resume_training(result.run_dir, budget) == result


def test_a_run_stopped_before_its_budget_is_not_complete(make_config: MakeConfig) -> None:
    config = make_config(env_id="rl_training/ConstantRewardProbe-v0")  # every return is 1
    stopped = train_ppo(config, callbacks=[StopAtReturn(1.0)])
    assert (stopped.status, stopped.metrics["global_step"]) == ("stopped", 64)
    with pytest.raises(ConfigError, match="total_timesteps=64: already trained for 64 steps"):
        resume_training(stopped.run_dir, total_timesteps=64)
    resumed = resume_training(stopped.run_dir)
    assert (resumed.status, resumed.metrics["global_step"]) == ("completed", 128)


def test_a_run_killed_after_its_last_checkpoint_still_comes_to_its_end(make_config: MakeConfig) -> None:
    result = train_ppo(make_config(eval_interval=0))  # the last checkpoint is older than the only evaluation
    context = context_of(result.run_dir)
    rows = read_metrics(context)
    write_text(context.metrics_path, "".join(json.dumps(row) + "\n" for row in rows if "eval/mean_reward" not in row))
    update_metadata(context, status="running", metrics=None)
    ended = resume_training(result.run_dir)
    assert (ended.status, ended.metrics) == ("completed", result.metrics)
    assert read_metadata(context)["metrics"] == result.metrics
    assert [row["step"] for row in read_metrics(context) if "eval/mean_reward" in row] == [128]
    assert resume_training(result.run_dir) == ended
