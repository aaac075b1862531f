"""Checkpoints: equal values back, damage and code refused by name, nothing lost or left behind by a failed write."""

import errno
import hashlib
import json
import pickle
import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch

from rl_training.cli import load_config, main
from rl_training.errors import CheckpointError, ConfigError, RunDirectoryError
from rl_training.experiment.checkpointing import (
    CheckpointState,
    find_checkpoint,
    load_checkpoint,
    prune_checkpoints,
    save_checkpoint,
    step_checkpoints,
)
from rl_training.experiment.manifest import describe, manifest_path, write_manifest
from rl_training.experiment.runs import context_of, read_metadata, read_metrics
from rl_training.runtime.workflows import evaluate_checkpoint, resume_training

KEYS = {"algorithm_state", "buffer_state", "trainer_state", "config", "metadata"}


def make_state(step: int = 5) -> CheckpointState:
    return CheckpointState(
        algorithm_state={
            "weights": torch.arange(12, dtype=torch.float32).reshape(3, 4) * step,
            "flags": torch.tensor([True, False]),
            "counts": torch.tensor(2**40),
            "empty": torch.empty(0, 3),
            "stream": np.random.PCG64(step).state,
            "optimizer": {
                "state": {0: {"step": torch.tensor(3.0)}},
                "param_groups": [{"lr": 1e-3, "betas": (0.9, 0.999)}],
            },
        },
        buffer_state={},
        trainer_state={"global_step": step, "best_return": None, "episodes": [(1.5, 3), (2.5, 4)], "done": False},
        config={"algo": "ppo", "tags": ["a"], "algo_kwargs": {"hidden_sizes": [8], "gamma": 0.99}},
        metadata={"metrics": {"eval_return_mean": float("inf")}, "note": "ünïcode"},
    )


def same(first: Any, second: Any) -> bool:
    """Equal in type and value, tensors in shape and dtype too."""
    if type(first) is not type(second):
        return False
    if isinstance(first, torch.Tensor):
        return first.dtype == second.dtype and torch.equal(first, second)
    if isinstance(first, dict):
        return list(first) == list(second) and all(same(value, second[key]) for key, value in first.items())
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(same(one, two) for one, two in zip(first, second, strict=True))
    return bool(first == second)


def assert_same(first: CheckpointState, second: CheckpointState) -> None:
    assert same(vars(first), vars(second))


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_round_trip_gives_equal_values(tmp_path: Path) -> None:
    state = make_state()
    path = save_checkpoint(tmp_path / "deep" / "step_5.pt", state)
    assert_same(load_checkpoint(path), state)
    generator = np.random.PCG64(0)
    generator.state = load_checkpoint(str(path)).algorithm_state["stream"]
    assert generator.random_raw() == np.random.PCG64(5).random_raw()


def test_unequal_states_are_told_apart() -> None:
    assert same(vars(make_state()), vars(make_state()))
    assert not same(vars(make_state(5)), vars(make_state(6)))
    assert not same(1, 1.0)
    assert not same([1], (1,))


def test_the_file_is_one_safe_load_of_the_five_parts_with_a_manifest_beside_it(tmp_path: Path) -> None:
    state = make_state()
    path = save_checkpoint(tmp_path / "step_5.pt", state)
    content = torch.load(path, weights_only=True)
    assert set(content) == KEYS
    assert same(content, vars(state))
    assert names(tmp_path) == ["step_5.pt", "step_5.pt.manifest.json"]
    manifest = json.loads(manifest_path(path).read_text())
    data = path.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    assert manifest == {"format": 2, "sha256": digest, "size": len(data), "segments": []}


@pytest.mark.parametrize("percent", [0, 10, 50, 99])
def test_a_truncated_file_is_refused_by_name(percent: int, tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path / "step_5.pt", make_state())
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * percent // 100])
    with pytest.raises(CheckpointError, match=f"{re.escape(str(path))} is damaged"):
        load_checkpoint(path)
    manifest_path(path).unlink()
    with pytest.raises(CheckpointError, match=re.escape(str(path))):
        load_checkpoint(path)


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path / "step_5.pt", make_state())
    data = path.read_bytes()
    chooser = random.Random(0)
    for _ in range(30):
        flipped = bytearray(data)
        flipped[chooser.randrange(len(data))] ^= 1 << chooser.randrange(8)
        path.write_bytes(bytes(flipped))
        with pytest.raises(CheckpointError, match=f"{re.escape(str(path))} is damaged"):
            load_checkpoint(path)
    path.write_bytes(data)
    assert_same(load_checkpoint(path), make_state())


@pytest.mark.filterwarnings("ignore:.*has no manifest")
def test_without_a_manifest_damage_loads_or_is_refused_but_never_surprises(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path / "step_5.pt", make_state())
    data = path.read_bytes()
    manifest_path(path).unlink()
    chooser = random.Random(1)
    refused = []
    for _ in range(150):
        damaged = bytearray(data)
        for _ in range(3):
            damaged[chooser.randrange(len(data))] ^= 1 << chooser.randrange(8)
        path.write_bytes(bytes(damaged[: chooser.choice([len(data), chooser.randrange(len(data))])]))
        try:
            load_checkpoint(path)
        except CheckpointError as error:
            refused.append(str(error))
    assert len(refused) > 75
    assert all(str(path) in reason for reason in refused)


def test_a_missing_manifest_is_reported_but_the_file_loads(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path / "step_5.pt", make_state())
    manifest_path(path).unlink()
    with pytest.warns(UserWarning, match=r"step_5\.pt has no manifest beside it"):
        state = load_checkpoint(path)
    assert_same(state, make_state())


@pytest.mark.parametrize("name", ["missing.pt", ".", "missing/step_1.pt"])
def test_what_cannot_be_read_is_refused_by_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=re.escape(str(tmp_path / name))):
        load_checkpoint(tmp_path / name)


def test_a_newer_format_is_refused_with_its_version(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path / "step_5.pt", make_state())
    manifest_path(path).write_text(json.dumps({"format": 7}))
    with pytest.raises(CheckpointError, match=r"step_5\.pt has format 7, this version reads up to 2: upgrade"):
        load_checkpoint(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"null",
        b"[]",
        b'"text"',
        b"{}",
        b'{"format": 1}',
        b'{"format": "1", "sha256": ""}',
        b'{"format": true}',
        b'{"format": null, "sha256": null}',
        b'{"format": Infinity}',
        b'{"format": 1, "sha256": null, "replaces": null}',
        b"[" * 100_000,
    ],
    ids=lambda content: repr(content[:40]),
)
def test_a_damaged_manifest_is_refused_by_name(content: bytes, tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path / "step_5.pt", make_state())
    manifest_path(path).write_bytes(content)
    with pytest.raises(CheckpointError, match=re.escape(str(path))):
        load_checkpoint(path)


@pytest.mark.parametrize(
    "content",
    [3, [1, 2], {"weights": torch.zeros(2)}, {key: {} for key in (*KEYS, "more")}, dict.fromkeys(KEYS, 3)],
    ids=["number", "list", "weights", "six parts", "no maps"],
)
def test_a_file_that_torch_reads_but_is_not_ours_is_refused(content: Any, tmp_path: Path) -> None:
    path = tmp_path / "other.pt"
    torch.save(content, path)
    with pytest.raises(CheckpointError, match=r"other\.pt is not an rl_training checkpoint"):
        load_checkpoint(path)


class Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.marker,)


def pickled(path: Path, payload: Payload) -> None:
    path.write_bytes(pickle.dumps(payload))


def pickled_as_torch_does(path: Path, payload: Payload) -> None:
    path.write_bytes(pickle.dumps(payload, protocol=2))


def saved(path: Path, payload: Payload) -> None:
    torch.save(payload, path)


def saved_among_the_parts(path: Path, payload: Payload) -> None:
    torch.save({**vars(make_state()), "trainer_state": {"global_step": 5, "note": payload}}, path)


def saved_the_old_way(path: Path, payload: Payload) -> None:
    torch.save({**vars(make_state()), "metadata": payload}, path, _use_new_zipfile_serialization=False)


PLANTED = [pickled, pickled_as_torch_does, saved, saved_among_the_parts, saved_the_old_way]


def vouch_for(path: Path) -> None:
    """The manifest that an attacker would write as well."""
    write_manifest(path, describe(path.read_bytes(), segments=[]))


@pytest.mark.parametrize("plant", PLANTED)
def test_a_malicious_pickle_is_refused_and_not_executed(plant: Callable[[Path, Payload], None], tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    path = tmp_path / "run" / "checkpoints" / "step_5.pt"
    path.parent.mkdir(parents=True)
    plant(path, Payload(marker))
    vouch_for(path)
    for read in (load_checkpoint, evaluate_checkpoint, resume_training):
        with pytest.raises(CheckpointError, match=r"step_5\.pt is (refused|damaged)"):
            read(path)
    with pytest.raises(CheckpointError, match=r"no intact checkpoint.*step_5\.pt is (refused|damaged)"):
        find_checkpoint(tmp_path / "run")
    manifest_path(path).unlink()
    with pytest.raises(CheckpointError, match=r"step_5\.pt is (refused|damaged)"):
        load_checkpoint(path)
    assert not marker.exists()


def test_the_payload_would_have_worked(tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    pickle.loads(pickle.dumps(Payload(marker)))
    assert marker.exists()


def test_a_payload_in_any_other_file_of_a_run_is_not_executed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    marker, context = tmp_path / "executed", context_of(tmp_path / "run")
    path = save_checkpoint(context.checkpoints_dir / "step_5.pt", make_state())
    for planted in (context.metadata_path, context.metrics_path, manifest_path(path)):
        pickled(planted, Payload(marker))
    context.config_path.write_text(f"algo: !!python/object/apply:os.mkdir ['{marker}']\n")
    with pytest.raises(RunDirectoryError, match="is not a run directory"):
        read_metadata(context)
    assert read_metrics(context) == []
    with pytest.raises(CheckpointError, match=r"manifest .* is damaged"):
        load_checkpoint(path)
    with pytest.raises(ConfigError, match=r"config\.yaml:1: "):
        load_config(context.config_path)
    assert main(["list", str(tmp_path)]) == 0
    assert "unreadable" in capsys.readouterr().out
    assert not marker.exists()


def test_a_checkpoint_that_says_nothing_of_a_run_is_refused(tmp_path: Path) -> None:
    config = {"algo": "ppo", "env_id": "CartPole-v1"}
    state = CheckpointState({}, {}, {}, config, {})
    path = save_checkpoint(tmp_path / "odd.pt", state)
    with pytest.raises(CheckpointError, match="does not fit ppo on CartPole-v1"):
        evaluate_checkpoint(path)
    with pytest.raises(CheckpointError, match="does not say how far it was trained"):
        resume_training(path)
    path = save_checkpoint(path, replace(state, trainer_state={"iterated_at": 1, "due": []}))
    with pytest.raises(CheckpointError, match="does not fit ppo on CartPole-v1"):
        resume_training(path)


class PowerCut(BaseException):
    """Nothing after it is carried out, as far as the files can tell."""


def cut_power_before_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """The manifest's rename is the last thing that happens."""
    rename = Path.replace

    def rename_manifests_only(self: Path, target: Path) -> Path:
        if target.suffix == ".pt" and not target.name.startswith("rows_"):
            raise PowerCut
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", rename_manifests_only)


def test_the_old_content_loads_when_only_the_new_manifest_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save_checkpoint(tmp_path / "best.pt", make_state(1))
    for step in (2, 3):  # twice: the second crash must not forget what the first one left
        with monkeypatch.context() as patch:
            cut_power_before_the_data(patch)
            with pytest.raises(PowerCut):
                save_checkpoint(path, make_state(step))
        assert_same(load_checkpoint(path), make_state(1))
    save_checkpoint(path, make_state(4))
    assert_same(load_checkpoint(path), make_state(4))


def test_a_new_manifest_does_not_vouch_for_old_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_checkpoint(tmp_path / "best.pt", make_state(1))
    weights = make_state(1).algorithm_state["weights"].numpy().tobytes()
    assert weights in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(weights, bytes(len(weights))))  # torch alone would not notice
    cut_power_before_the_data(monkeypatch)
    with pytest.raises(PowerCut):
        save_checkpoint(path, make_state(2))
    with pytest.raises(CheckpointError, match="is damaged"):
        load_checkpoint(path)


def full_disk(*args: Any) -> NoReturn:
    raise OSError(errno.ENOSPC, "No space left on device", *args[1:])


def fail_at_flush(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Let the disk fill up at the `number`-th flush: the manifest has two, its directory's included, then the data."""
    calls = iter(range(1, 100))

    def flush(descriptor: int) -> None:
        del descriptor
        if next(calls) == number:
            full_disk()

    monkeypatch.setattr("os.fsync", flush)


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_failed_write_leaves_nothing_behind(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_at_flush(monkeypatch, number)
    with pytest.raises(CheckpointError, match=r"step_5\.pt cannot be written: .*No space left on device"):
        save_checkpoint(tmp_path / "step_5.pt", make_state())
    assert names(tmp_path) == []


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_failed_write_keeps_what_was_there(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_checkpoint(tmp_path / "best.pt", make_state(1))
    fail_at_flush(monkeypatch, number)
    with pytest.raises(CheckpointError, match=r"best\.pt cannot be written"):
        save_checkpoint(path, make_state(2))
    assert names(tmp_path) == ["best.pt", "best.pt.manifest.json"]
    assert_same(load_checkpoint(path), make_state(1))


def test_a_failed_serialisation_touches_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_checkpoint(tmp_path / "best.pt", make_state(1))
    monkeypatch.setattr(torch, "save", full_disk)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(path, make_state(2))
    assert names(tmp_path) == ["best.pt", "best.pt.manifest.json"]
    assert_same(load_checkpoint(path), make_state(1))


def test_a_checkpoint_below_a_file_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    path = tmp_path / "taken" / "step_5.pt"
    with pytest.raises(CheckpointError, match=f"{re.escape(str(path))} cannot be written"):
        save_checkpoint(path, make_state())


def test_overwriting_leaves_one_file_and_one_manifest(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        path = save_checkpoint(tmp_path / "best.pt", make_state(step))
        assert_same(load_checkpoint(path), make_state(step))
    assert names(tmp_path) == ["best.pt", "best.pt.manifest.json"]


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run with the checkpoints of three steps, whose names sort otherwise, and the best one."""
    for step in (900, 1000, 20000):
        save_checkpoint(tmp_path / "checkpoints" / f"step_{step}.pt", make_state(step))
    save_checkpoint(tmp_path / "checkpoints" / "best.pt", make_state(7))
    return tmp_path


def test_a_run_directory_means_its_newest_checkpoint(run_dir: Path) -> None:
    newest = run_dir / "checkpoints" / "step_20000.pt"
    assert find_checkpoint(run_dir) == newest
    assert find_checkpoint(run_dir / "checkpoints") == newest
    assert find_checkpoint(str(run_dir), best=True) == run_dir / "checkpoints" / "best.pt"


def test_a_file_means_itself(run_dir: Path) -> None:
    path = run_dir / "checkpoints" / "step_900.pt"
    assert find_checkpoint(path) == path
    assert find_checkpoint(path, best=True) == path


def test_a_damaged_newest_checkpoint_is_skipped_with_a_warning(run_dir: Path) -> None:
    newest = run_dir / "checkpoints" / "step_20000.pt"
    newest.write_bytes(newest.read_bytes()[:100])
    with pytest.warns(UserWarning, match=r"step_20000\.pt is damaged.*using step_1000\.pt instead"):
        found = find_checkpoint(run_dir)
    assert found == run_dir / "checkpoints" / "step_1000.pt"


def test_a_checkpoint_whose_data_never_came_is_no_candidate(run_dir: Path) -> None:
    (run_dir / "checkpoints" / "step_20000.pt").unlink()
    (run_dir / "checkpoints" / ".step_30000.pt.1.tmp").write_bytes(b"half")
    assert find_checkpoint(run_dir) == run_dir / "checkpoints" / "step_1000.pt"


def test_a_run_without_an_intact_checkpoint_is_refused_with_every_reason(run_dir: Path) -> None:
    for path in step_checkpoints(run_dir / "checkpoints"):
        path.write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"no intact checkpoint in .*step_20000\.pt.*step_1000\.pt.*step_900\.pt"):
        find_checkpoint(run_dir)


def test_an_empty_directory_holds_no_checkpoint(tmp_path: Path) -> None:
    where = re.escape(str(tmp_path))
    with pytest.raises(CheckpointError, match=f"^no intact checkpoint in {where}: it is not the directory of a run"):
        find_checkpoint(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(CheckpointError, match=f"^no intact checkpoint in {where}.*: the run has saved nothing yet"):
        find_checkpoint(tmp_path)


def test_a_missing_best_checkpoint_is_refused(run_dir: Path) -> None:
    (run_dir / "checkpoints" / "best.pt").unlink()
    with pytest.raises(CheckpointError, match=r"no intact checkpoint in .*best\.pt"):
        find_checkpoint(run_dir, best=True)


@pytest.mark.parametrize(("keep", "steps"), [(1, [20000]), (2, [20000, 1000]), (5, [20000, 1000, 900])])
def test_pruning_keeps_the_newest_and_the_best(keep: int, steps: list[int], run_dir: Path) -> None:
    directory = run_dir / "checkpoints"
    (directory / "step_final.pt").write_bytes(b"the user's own")
    prune_checkpoints(directory, keep)
    assert step_checkpoints(directory) == [directory / f"step_{step}.pt" for step in steps]
    kept = ["best.pt", *(f"step_{step}.pt" for step in steps)]
    assert names(directory) == sorted([*kept, *(f"{name}.manifest.json" for name in kept), "step_final.pt"])
