"""What every trainer needs around its loop: the device, the run directory with its files, its checkpoints."""

import json
import math
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import gymnasium
import numpy as np
import pytest
import torch
from conftest import MakeConfig

import rl_training
from rl_training.algorithms.ppo import PPOParams
from rl_training.algorithms.sac import SACParams
from rl_training.cli import load_config
from rl_training.cores import cpu_name
from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.locking import RunLock
from rl_training.experiment.runs import context_of, read_metadata, read_metrics
from rl_training.runtime.ppo_trainer import train_ppo
from rl_training.runtime.run_utils import (
    create_training_run,
    limited_threads,
    reopen_training_run,
    resolve_device,
    save_training_checkpoint,
    serialize_train_config,
    tuned_for_training,
)
from rl_training.runtime.saved import ResumeNote
from rl_training.runtime.threads import choose_threads, resolve_threads

GIT = ["git", "-c", "user.name=test", "-c", "user.email=test@example.org"]


def refuse(*args: Any, **kwargs: Any) -> NoReturn:
    del args, kwargs
    raise RuntimeError("CUDA error: out of memory")


def test_auto_falls_back_to_the_cpu_when_the_tiny_allocation_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "empty", refuse)
    assert resolve_device("auto") == torch.device("cpu")


def test_auto_is_cuda_when_the_tiny_allocation_works(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "empty", lambda *size, device: asked.append((size, device)))
    assert resolve_device("auto") == torch.device("cuda")
    assert asked == [((1,), "cuda")]


def test_auto_does_not_touch_cuda_when_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch, "empty", pytest.fail)
    assert resolve_device("auto") == torch.device("cpu")


@pytest.mark.parametrize("name", ["cuda", "cuda:1", "mps"])
def test_a_named_device_that_does_not_work_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "empty", refuse)
    with pytest.raises(ConfigError, match=f"device='{name}': not usable on this machine; use 'auto' or 'cpu'"):
        resolve_device(name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="here CUDA works")
def test_cuda_is_refused_where_torch_has_none() -> None:
    with pytest.raises(ConfigError, match="device='cuda'"):
        resolve_device("cuda")


def test_the_cpu_is_the_cpu() -> None:
    assert resolve_device("cpu") == torch.device("cpu")


def test_a_serialized_config_is_plain(make_config: MakeConfig) -> None:
    config = make_config(tags=["a", "b"])
    serialized = serialize_train_config(config)
    assert serialized["output_dir"] == str(config.output_dir)
    assert serialized["tags"] == ["a", "b"]
    assert json.loads(json.dumps(serialized)) == serialized
    assert type(config)(**serialized) == config


def test_thread_counts_are_given_back_even_after_an_error() -> None:
    before = torch.get_num_threads()
    with limited_threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
    with pytest.raises(RuntimeError, match="out of memory"), limited_threads(before + 1):
        refuse()
    assert torch.get_num_threads() == before


def test_a_new_run_has_its_files(make_config: MakeConfig) -> None:
    config = make_config(tags=["tag"])
    run = create_training_run(config, "first")
    run.close()
    context = run.run_context
    assert context.run_dir == config.output_dir / "ppo__CartPole-v1__seed7__first"
    assert {path.name for path in context.run_dir.iterdir()} == {
        "checkpoints",
        "config.yaml",
        "digests.jsonl",
        "metadata.json",
        "metrics.jsonl",
        "tensorboard",
    }
    assert load_config(context.config_path) == config


def test_metadata_says_who_what_where_when_and_with_which_versions(make_config: MakeConfig) -> None:
    config = make_config(tags=["tag"])
    run = create_training_run(config)
    run.close()
    metadata = read_metadata(run.run_context)
    assert metadata["run_id"] == run.run_context.run_id
    assert metadata["status"] == "running"
    assert (metadata["algo"], metadata["env_id"], metadata["seed"]) == ("ppo", "CartPole-v1", 7)
    assert (metadata["total_timesteps"], metadata["global_step"]) == (128, 0)
    assert metadata["tags"] == ["tag"]
    assert metadata["command"] == sys.argv
    assert metadata["host"]["process"] == os.getpid()
    assert metadata["host"]["name"] == platform.node()
    assert metadata["host"]["cpu"] == cpu_name()
    assert metadata["started_at"]
    assert metadata["ended_at"] is None
    sources = metadata["versions"].pop("rl_training source")  # tests run on a development install
    assert re.fullmatch(r"[0-9a-f]{12}", sources)
    assert metadata["versions"] == {
        "rl_training": rl_training.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "gymnasium": gymnasium.__version__,
    }


def recorded_commit(make_config: MakeConfig) -> object:
    run = create_training_run(make_config())
    run.close()
    return read_metadata(run.run_context)["git_commit"]


def test_metadata_names_the_commit_and_marks_changes(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert recorded_commit(make_config) is None
    source = tmp_path / "source.txt"
    source.write_text("one")
    for command in (["init", "-q"], ["add", "source.txt"], ["commit", "-qm", "first"]):
        subprocess.run([*GIT, *command], check=True)
    head = subprocess.run([*GIT, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    assert recorded_commit(make_config) == head
    source.write_text("two")
    assert recorded_commit(make_config) == f"{head}-dirty"


def test_no_program_that_a_repository_names_is_run(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, marker, program = tmp_path / "repository", tmp_path / "executed", tmp_path / "program"
    program.write_text(f"#!/bin/sh\necho $0 $* >> '{marker}'\ncat\n")
    program.chmod(0o755)
    (place / "hooks").mkdir(parents=True)
    (place / "hooks" / "post-index-change").symlink_to(program)
    monkeypatch.chdir(place)
    (place / "source.txt").write_text("one")
    (place / ".gitattributes").write_text("*.txt filter=evil diff=evil\n")
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*GIT, *command], check=True)
    head = subprocess.run([*GIT, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    settings = {"core.fsmonitor": program, "core.hooksPath": place / "hooks", "diff.external": program}
    settings |= dict.fromkeys(("filter.evil.clean", "filter.evil.process", "diff.evil.textconv"), program)
    for name, value in settings.items():
        subprocess.run([*GIT, "config", name, str(value)], check=True)
    (place / "source.txt").write_text("one")  # the same content, but git has to look at it
    assert recorded_commit(make_config) == head
    (place / "source.txt").write_text("two")
    assert recorded_commit(make_config) == f"{head}-dirty"
    assert not marker.exists(), marker.read_text()


def test_credentials_in_the_command_are_not_recorded(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train", "--set", "env_kwargs.url=https://me:secret@example.org/x?y=1@2"])
    run = create_training_run(make_config())
    run.close()
    command = read_metadata(run.run_context)["command"]
    assert command == ["train", "--set", "env_kwargs.url=https://example.org/x?y=1@2"]


def test_closing_a_run_twice_is_fine(make_config: MakeConfig) -> None:
    run = create_training_run(make_config())
    run.logger.log_metrics({"loss": 1.0}, step=1)
    run.close()
    run.close()
    assert [(row["step"], row["loss"]) for row in read_metrics(run.run_context)] == [(1, 1.0)]


def test_numbers_that_json_does_not_know_are_logged_as_null(make_config: MakeConfig) -> None:
    run = create_training_run(make_config())
    run.logger.log_metrics({"nan": float("nan"), "inf": float("inf")}, step=1)
    run.close()
    (row,) = read_metrics(run.run_context)
    assert (row["nan"], row["inf"]) == (None, None)


def test_the_end_of_a_run_is_added_to_its_metadata(make_config: MakeConfig) -> None:
    run = create_training_run(make_config())
    run.end(status="completed", best_return=3.5)
    run.close()
    metadata = read_metadata(run.run_context)
    assert (metadata["status"], metadata["best_return"], metadata["seed"]) == ("completed", 3.5, 7)
    assert metadata["ended_at"] >= metadata["started_at"]


def test_a_reopened_run_drops_what_was_measured_after_the_checkpoint(make_config: MakeConfig) -> None:
    config = make_config()
    run = create_training_run(config)
    for step in (10, 20, 30):
        run.logger.log_metrics({"loss": float(step)}, step=step)
    run.end(status="interrupted")
    run.close()
    longer = config.model_copy(update={"total_timesteps": 256})
    lock = RunLock(run.run_context.run_dir).acquire()
    again = reopen_training_run(lock, longer, ResumeNote(20, ("torch 1 then, 2 now",)))
    again.logger.log_metrics({"loss": 0.0}, step=25)
    again.close()
    assert [row["step"] for row in read_metrics(run.run_context)] == [10, 20, 25]
    metadata = read_metadata(run.run_context)
    assert (metadata["status"], metadata["ended_at"]) == ("running", None)
    (note,) = metadata["resumed"]
    assert (note["step"], note["exact"], note["reasons"]) == (20, False, ["torch 1 then, 2 now"])
    assert load_config(run.run_context.config_path) == longer


def save(make_config: MakeConfig, **options: Any) -> Path:
    config = make_config()
    run = create_training_run(config)
    run.close()
    states = {"buffer_state": {"position": 0}, "trainer_state": {"global_step": 42}}
    return save_training_checkpoint(
        run_context=run.run_context,
        config=config,
        algorithm_state={"weights": torch.arange(3)},
        metrics={"eval_return_mean": 1.5},
        **{**states, **options},
    )


def test_a_training_checkpoint_is_named_by_its_step_and_loads(make_config: MakeConfig) -> None:
    path = save(make_config)
    assert (path.name, path.parent.name) == ("step_42.pt", "checkpoints")
    state = load_checkpoint(path)
    assert state.algorithm_state["weights"].tolist() == [0, 1, 2]
    assert (state.buffer_state, state.trainer_state) == ({"position": 0}, {"global_step": 42})
    assert state.config == serialize_train_config(make_config())
    assert state.metadata["metrics"] == {"eval_return_mean": 1.5}
    assert state.metadata["run_id"] == path.parents[1].name
    assert state.metadata["versions"]["torch"] == torch.__version__


def test_a_training_checkpoint_may_have_another_name(make_config: MakeConfig) -> None:
    path = save(make_config, name="best.pt")
    assert path.name == "best.pt"
    assert load_checkpoint(path).trainer_state == {"global_step": 42}


def test_a_training_checkpoint_without_a_buffer_loads_with_an_empty_one(make_config: MakeConfig) -> None:
    state = load_checkpoint(save(make_config, buffer_state=None))
    assert (state.buffer_state, state.trainer_state) == ({}, {"global_step": 42})


@pytest.mark.parametrize("name", [None, "best.pt"])
def test_a_trainer_state_without_its_step_is_refused(make_config: MakeConfig, name: str | None) -> None:
    with pytest.raises(
        CheckpointError, match="trainer_state has no 'global_step'; give the number of env steps"
    ) as told:
        save(make_config, trainer_state={"updates": 3}, name=name)
    assert "\n" not in str(told.value)
    assert not list(make_config().output_dir.glob("*/checkpoints/*"))


def test_precision_and_threads_hold_for_the_run_only(make_config: MakeConfig) -> None:
    before = (torch.get_float32_matmul_precision(), torch.get_num_threads())
    with tuned_for_training(make_config(matmul_precision="medium", num_threads=2)):
        assert (torch.get_float32_matmul_precision(), torch.get_num_threads()) == ("medium", 2)
    assert (torch.get_float32_matmul_precision(), torch.get_num_threads()) == before


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs the C library of Linux")
def test_freed_memory_is_kept_for_the_next_step() -> None:
    """A block of one megabyte that is freed and asked for again is not mapped anew, page by page."""
    code = (
        "import resource, torch\n"
        "from rl_training.memory import keep_freed_memory\n"
        "def faults():\n"
        "    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "    for _ in range(50): torch.empty(2**18).fill_(1.0)\n"
        "    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before\n"
        "first = faults(); keep_freed_memory(); faults(); print(first, faults())"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    first, later = map(int, answer.split())
    assert later < 50 < first


def test_threads_are_tried_where_the_config_leaves_them_open(make_config: MakeConfig) -> None:
    large = make_config(algo="sac", env_id="Pendulum-v1", num_threads="auto", algo_kwargs={"hidden_sizes": [512]})
    resolved, reason = resolve_threads(large, SACParams(hidden_sizes=(512,)))
    assert resolved.num_threads in {1, len(os.sched_getaffinity(0))}
    assert reason is not None
    assert reason.startswith(f"{resolved.num_threads}: ")
    fixed = make_config(num_threads=3)
    assert resolve_threads(fixed, PPOParams()) == (fixed, None)
    assert choose_threads(256, 256, cores=1) == (1, "one core")


def test_threads_are_tried_with_the_work_of_a_cnn(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[tuple[int, int]] = []

    def choose(rows: int, width: int, cores: int) -> tuple[int, str]:
        tried.append((rows, width))
        return 1, f"{cores} cores"

    monkeypatch.setattr("rl_training.runtime.threads.choose_threads", choose)
    images = make_config(env_id="speed_envs:FallingBall-v0", frame_stack=4, num_threads="auto")
    for encoder in ("auto", "mlp"):
        resolve_threads(images, PPOParams(minibatch_size=32, hidden_sizes=(64,), encoder=encoder))
    products = 20 * 20 * 32 * 256 + 9 * 9 * 64 * 512 + 7 * 7 * 64 * 576 + 3136 * 512  # Mnih et al. 2015
    assert tried == [(32, math.isqrt(products)), (32, 64)]


@pytest.mark.parametrize(("on_two", "chosen"), [(1e-5, 1), (0.8e-5, 1), (0.7e-5, 2)])
def test_products_stay_on_one_thread_unless_several_are_much_faster(
    monkeypatch: pytest.MonkeyPatch, on_two: float, chosen: int
) -> None:
    monkeypatch.setattr(
        "rl_training.runtime.threads._product_seconds", lambda rows, width, threads: {1: 1e-5, 2: on_two}[threads]
    )
    threads, reason = choose_threads(1, 8, cores=2)
    assert threads == chosen
    assert reason.startswith("a product of 1x8 with 8x8 takes 10 us on 1 thread, ")


def test_the_number_of_threads_that_was_chosen_stays_with_the_run(make_config: MakeConfig) -> None:
    result = train_ppo(make_config(num_threads="auto"))
    context = context_of(result.run_dir)
    decision = read_metadata(context)["decisions"]["num_threads"]
    assert load_checkpoint(result.checkpoint_path).config["num_threads"] == int(decision.partition(":")[0])
