"""Replay segments: a checkpoint costs what is new, loads as a whole, and is refused by name when a part is damaged."""

import json
import os
import pickle
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import MakeConfig, stored_rows
from test_checkpointing import Payload, PowerCut, cut_power_before_the_data, names
from test_replay_buffer import add_steps, assert_equal_content

from rl_training import DQN
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.errors import CheckpointError
from rl_training.experiment.checkpointing import (
    BEST_NAME,
    CheckpointState,
    find_checkpoint,
    load_checkpoint,
    load_without_experience,
    open_checkpoint,
    prune_checkpoints,
    remove_newer_checkpoints,
    save_checkpoint,
    save_run_checkpoint,
    step_checkpoints,
)
from rl_training.experiment.manifest import describe, manifest_path, write_manifest
from rl_training.experiment.segments import SegmentStore, segment_files
from rl_training.runtime.dqn_trainer import train_dqn
from rl_training.runtime.workflows import evaluate_checkpoint, resume_training

NUM_ENVS, CAPACITY = 2, 20


class Run:
    """A run directory with a replay buffer that is saved into it."""

    def __init__(self, run_dir: Path, dtype: torch.dtype = torch.float32, capacity: int = CAPACITY) -> None:
        self.run_dir, self.checkpoints, self.replay = run_dir, run_dir / "checkpoints", run_dir / "replay"
        self.dtype, self.capacity, self.steps = dtype, capacity, 0
        self.store, self.buffer = SegmentStore(self.replay), self.empty_buffer()

    def empty_buffer(self) -> ReplayBuffer:
        return ReplayBuffer(self.capacity, (1,), (), num_envs=NUM_ENVS, obs_dtype=self.dtype, n_step=2, gamma=0.9)

    def play(self, steps: int) -> "Run":
        add_steps(self.buffer, range(self.steps, self.steps + steps))
        self.steps += steps
        return self

    def state(self, **parts: Any) -> CheckpointState:
        saved = self.buffer.state_dict(self.store.saved_until)
        return CheckpointState(parts, saved, {"global_step": self.buffer.added}, {}, {})

    def save(self, name: str | None = None) -> Path:
        path = self.checkpoints / (name or f"step_{self.buffer.added}.pt")
        return save_run_checkpoint(path, self.state(), self.store)

    def loaded(self, path: Path) -> ReplayBuffer:
        buffer = self.empty_buffer()
        buffer.load_state_dict(load_checkpoint(path).buffer_state)
        return buffer


def files(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8], ids=["rows", "images"])
def test_every_checkpoint_loads_as_the_whole_buffer_was(tmp_path: Path, dtype: torch.dtype) -> None:
    run = Run(tmp_path, dtype)
    for steps in (3, 1, 4, 2, 9, 1, 25, 2):
        path = run.play(steps).save()
        assert_equal_content(run.loaded(path), run.buffer)
    assert {path.name for path in run.replay.iterdir()} >= set(segment_files(load_checkpoint(path).buffer_state))
    assert torch.load(path, weights_only=True)["buffer_state"]["blocks"][-1].keys() == {"first", "count", "segment"}


def test_a_checkpoint_costs_what_is_new_and_not_what_is_stored(tmp_path: Path) -> None:
    written = {}
    for stored in (1_000, 100_000):
        run = Run(tmp_path / str(stored), capacity=200_000)
        numbers = np.arange(stored)
        run.buffer.add(obs=numbers, actions=numbers, rewards=numbers, next_obs=numbers, dones=numbers % 7 == 0)
        run.save()
        before = files(run.run_dir)
        assert sum(map(len, before.values())) > 20 * stored
        run.play(50).save()
        written[stored] = sum(len(content) for path, content in files(run.run_dir).items() if path not in before)
    assert written[100_000] == pytest.approx(written[1_000], abs=200)  # longer numbers in names
    assert written[100_000] < 10_000


def test_the_names_of_segments_say_what_they_hold(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.play(3).save()
    run.play(2).save()
    run.save()
    assert [name[:-15] for name in names(run.replay)] == ["rows_0_6_", "rows_6_4_"]
    assert all(re.fullmatch(r"rows_\d+_\d+_[0-9a-f]{12}\.pt", name) for name in names(run.replay))
    manifest = json.loads(manifest_path(run.checkpoints / "step_10.pt").read_text())
    assert sorted(manifest["segments"]) == names(run.replay)


def test_a_rollout_passes_through_and_makes_no_folder(tmp_path: Path) -> None:
    store, rollout = SegmentStore(tmp_path / "replay"), {"position": 0}
    assert store.externalize(rollout) is rollout
    store.adopt(rollout)
    assert (store.saved_until, names(tmp_path)) == (0, [])


def test_pruning_keeps_the_segments_that_a_checkpoint_needs_and_no_other(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.play(4).save(BEST_NAME)
    for _ in range(6):
        run.play(4).save()
    assert len(names(run.replay)) == 7
    prune_checkpoints(run.checkpoints, keep=2)
    kept = [*step_checkpoints(run.checkpoints), run.checkpoints / BEST_NAME]
    assert len(kept) == 3
    needed = {name for path in kept for name in segment_files(load_checkpoint(path).buffer_state)}
    assert names(run.replay) == sorted(needed)
    assert any(name.startswith("rows_0_8_") for name in needed)  # of the best one
    assert not any(name.startswith("rows_8_8_") for name in needed)
    run.play(1).save(BEST_NAME)
    prune_checkpoints(run.checkpoints, keep=1)
    assert not any(name.startswith("rows_0_8_") for name in names(run.replay))
    assert_equal_content(run.loaded(run.checkpoints / BEST_NAME), run.buffer)


@pytest.mark.parametrize("content", [b"", None], ids=["unreadable", "missing"])
def test_no_segment_goes_while_a_checkpoint_does_not_say_what_it_needs(tmp_path: Path, content: bytes | None) -> None:
    run = Run(tmp_path)
    run.play(4).save(BEST_NAME)
    place = manifest_path(run.checkpoints / BEST_NAME)
    place.unlink() if content is None else place.write_bytes(content)
    for _ in range(4):
        run.play(10).save()
    prune_checkpoints(run.checkpoints, keep=1)
    assert len(step_checkpoints(run.checkpoints)) == 1
    assert len(names(run.replay)) == 5


def test_a_run_continued_in_place_builds_upon_its_segments(tmp_path: Path) -> None:
    run = Run(tmp_path)
    path = run.play(4).save()
    again = Run(tmp_path)
    saved = load_checkpoint(path)
    again.buffer.load_state_dict(saved.buffer_state)
    again.store.adopt(saved.buffer_state)
    assert again.store.saved_until == 8
    again.buffer.cut([1])
    again.steps = 4
    path = again.play(2).save()
    assert [name[:-15] for name in names(run.replay)] == ["rows_0_8_", "rows_6_6_"]  # with the rows that were cut
    assert_equal_content(again.loaded(path), again.buffer)


def test_segments_that_vanish_are_written_again(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.play(4).save()
    shutil.rmtree(run.replay)
    path = run.play(1).save()
    assert_equal_content(run.loaded(path), run.buffer)
    state = run.play(1).state()
    shutil.rmtree(run.replay)
    with pytest.raises(CheckpointError, match=r"transitions from 0 on are missing in .*replay"):
        save_run_checkpoint(run.checkpoints / "step_12.pt", state, run.store)
    assert not (run.checkpoints / "step_12.pt").exists()


def test_a_whole_state_takes_the_place_of_what_was_saved(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.play(2).save()
    run.play(2).save()
    whole = run.store.externalize(run.buffer.state_dict())
    assert [(block["first"], block["count"]) for block in whole["blocks"]] == [(0, 8)]
    run.store.adopt(load_checkpoint(save_checkpoint(tmp_path / "one.pt", load_checkpoint(run.save()))).buffer_state)
    assert run.store.saved_until == 0  # nothing to refer to in a file that has everything in itself


def test_one_file_with_everything_needs_the_experience(tmp_path: Path) -> None:
    lean = load_without_experience(Run(tmp_path).play(2).save())
    with pytest.raises(CheckpointError, match="loaded without its replay segments"):
        save_checkpoint(tmp_path / "one.pt", lean)


def test_giving_up_a_checkpoint_keeps_the_segments_of_others(tmp_path: Path) -> None:
    run = Run(tmp_path)
    path = run.play(2).save()
    again = run.store.externalize(run.buffer.state_dict())
    assert segment_files(again) == names(run.replay)
    run.store.discard()
    assert_equal_content(run.loaded(path), run.buffer)


def test_the_segments_of_a_checkpoint_stay_until_it_is_really_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path)
    best = run.play(4).save(BEST_NAME)
    run.play(20).save()
    with monkeypatch.context() as patch:
        cut_power_before_the_data(patch)
        with pytest.raises(PowerCut):
            run.save(BEST_NAME)
    prune_checkpoints(run.checkpoints, keep=1)
    assert run.loaded(best).added == 8


def test_a_manifest_is_damaged_whatever_it_lacks(tmp_path: Path) -> None:
    run = Run(tmp_path)
    path = run.play(2).save()
    place = manifest_path(path)
    text, values = place.read_text(), json.loads(place.read_text())
    altered = [text[:length] for length in range(len(text))]
    for name, wrong in (("size", values["size"] + 1), ("sha256", "0" * 64), ("segments", []), ("segments", [1])):
        altered.append(json.dumps({**values, name: wrong}))
        altered.append(json.dumps({key: value for key, value in values.items() if key != name}))
    for content in altered:
        place.write_text(content)
        with pytest.raises(CheckpointError, match=r"step_4\.pt.* is damaged"):
            load_checkpoint(path)


def damage(path: Path, chooser: random.Random) -> None:
    data = bytearray(path.read_bytes())
    if chooser.random() < 0.3:
        path.write_bytes(data[: chooser.randrange(len(data))])
        return
    data[chooser.randrange(len(data))] ^= 1 << chooser.randrange(8)
    path.write_bytes(data)


def test_every_damage_is_found_and_the_checkpoint_before_is_used(tmp_path: Path) -> None:
    run = Run(tmp_path)
    previous = run.play(3).save()
    newest = run.play(2).save()
    segment = run.replay / segment_files(load_without_experience(newest).buffer_state)[-1]
    chooser, intact = random.Random(0), files(tmp_path)
    for _ in range(100):
        path = chooser.choice([newest, manifest_path(newest), segment])
        damage(path, chooser)
        with pytest.warns(UserWarning, match=rf"{re.escape(newest.name)}.*using {re.escape(previous.name)} instead"):
            opened = open_checkpoint(tmp_path)
        assert opened.path == previous
        assert stored_rows(opened.state).shape[0] == 6
        path.write_bytes(intact[path])
    assert open_checkpoint(tmp_path).path == newest


@pytest.mark.parametrize("harm", [lambda path: damage(path, random.Random(1)), Path.unlink], ids=["damaged", "missing"])
def test_a_shared_segment_that_is_damaged_is_refused_by_name(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    run = Run(tmp_path)
    checkpoints = [run.play(2).save() for _ in range(2)]
    segment = run.replay / names(run.replay)[0]
    harm(segment)
    with pytest.raises(CheckpointError, match="no intact checkpoint") as caught:
        find_checkpoint(tmp_path)
    for path in checkpoints:
        told = rf"segment {re.escape(str(segment))} of checkpoint {re.escape(str(path))} is (damaged|missing)"
        assert re.search(told, str(caught.value))
        assert load_without_experience(path).trainer_state["global_step"] > 0


def point_to(path: Path, segment: dict[str, Any]) -> Path:
    """Let a checkpoint refer to another file, as somebody would who can write its manifest too."""
    values = torch.load(path, weights_only=True)
    values["buffer_state"]["blocks"][0]["segment"] |= segment
    torch.save(values, path)
    write_manifest(path, describe(path.read_bytes(), segment_files(values["buffer_state"])))
    return path


def test_a_malicious_segment_is_refused_and_not_executed(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    path, marker = run.play(2).save(), tmp_path / "executed"
    planted = run.replay / "rows_0_4_0123456789ab.pt"
    for content in (pickle.dumps(Payload(marker)), pickle.dumps(Payload(marker), protocol=2)):
        planted.write_bytes(content)
        told = describe(content, [])
        point_to(path, {"file": planted.name, "sha256": told.sha256, "size": told.size})
        with pytest.raises(CheckpointError, match=rf"segment .*{planted.name} of checkpoint .* is (refused|damaged)"):
            load_checkpoint(path)
    assert not marker.exists()


@pytest.mark.parametrize("name", ["../checkpoints/step_4.pt", "/etc/passwd", "rows_0_4.pt", ""])
def test_a_reference_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    path = Run(tmp_path).play(2).save()
    with pytest.raises(CheckpointError, match=f"{re.escape(repr(name))} is not the name of a segment"):
        load_checkpoint(point_to(path, {"file": name}))


@pytest.mark.parametrize("blocks", [3, [3], [{"first": 0}], [{"segment": {}}], [{"segment": 3}]], ids=str)
def test_references_that_make_no_sense_are_refused(tmp_path: Path, blocks: Any) -> None:
    path = Run(tmp_path).play(2).save()
    values = torch.load(path, weights_only=True)
    values["buffer_state"]["blocks"] = blocks
    torch.save(values, path)
    write_manifest(path, describe(path.read_bytes(), []))
    with pytest.raises(CheckpointError, match=r"step_4\.pt is not an rl_training checkpoint"):
        load_checkpoint(path)


def test_a_checkpoint_is_found_and_loaded_with_one_read_of_every_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path)
    for _ in range(3):
        run.play(2).save()
    open_file, seen = os.open, []

    def count(path: Path, *arguments: int) -> int:
        seen.append(Path(path).name)
        return open_file(path, *arguments)

    monkeypatch.setattr(os, "open", count)
    open_checkpoint(tmp_path)
    assert sorted(seen) == sorted([*names(run.replay), "step_12.pt", "step_12.pt.manifest.json"])


class Foo:
    """Nothing that a checkpoint takes."""


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({"callbacks": [{"x": Foo()}]}, r"algorithm_state\.callbacks\[0\]\.x is a Foo"),
        ({"scale": np.float64(1.0)}, r"algorithm_state\.scale is a float64"),
        ({"moments": {0: (1, np.zeros(2))}}, r"algorithm_state\.moments\[0\]\[1\] is a ndarray"),
        ({"by": {Foo: 1}}, r"algorithm_state\.by: key .* is a type"),
        ({"names": {"a"}}, r"algorithm_state\.names is a set"),
        ({"shape": torch.Size([1])}, r"algorithm_state\.shape is a Size"),
    ],
    ids=["object", "number", "array", "key", "set", "size"],
)
def test_what_could_not_be_loaded_again_is_refused_before_anything_is_written(
    tmp_path: Path, value: dict[str, Any], where: str
) -> None:
    run = Run(tmp_path)
    state = run.play(2).state(**value)
    with pytest.raises(CheckpointError, match=where):
        save_checkpoint(tmp_path / "model.pt", state)
    with pytest.raises(CheckpointError, match=where):
        save_run_checkpoint(run.checkpoints / "step_4.pt", state, run.store)
    assert files(tmp_path) == {}


def in_a_process_of_its_own(trial: Callable[[Path], None], run_dir: Path) -> None:
    command = f"from pathlib import Path; import {__name__}; {__name__}.{trial.__name__}(Path({str(run_dir)!r}))"
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, env=paths, check=False)
    assert done.returncode == 0, done.stderr


@contextmanager
def small_disk(size: int) -> Iterator[None]:
    """No file may grow beyond `size` bytes."""
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, unlimited[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)


def fill_the_disk(run_dir: Path) -> None:
    """Let the segment be too large, then the checkpoint; by its own name, then in place of the best one."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    run = Run(run_dir, capacity=20_000)
    run.play(2).save()
    run.play(2).save()
    run.play(2).save(BEST_NAME)
    newest = run.save()
    kept = {path: content for path, content in files(run_dir).items() if "step_4." not in path.name}
    del kept[run.checkpoints / "step_8.pt"], kept[manifest_path(run.checkpoints / "step_8.pt")]
    for steps, weights, name in ((2_000, 10, "step_9999.pt"), (1, 10_000, "step_9999.pt"), (1, 10_000, BEST_NAME)):
        state = run.play(steps).state(weights=torch.zeros(weights))
        told = pytest.warns(UserWarning, match="removing older checkpoints and trying again")
        refused = pytest.raises(CheckpointError, match=rf"{name} cannot be written.*File too large.*free disk space")
        with small_disk(20_000), told, refused:
            save_run_checkpoint(run.checkpoints / name, state, run.store)
        left = files(run_dir)
        assert left.keys() == kept.keys()
        assert all(left[path] == content for path, content in kept.items() if path.suffix == ".pt")
        assert run.loaded(newest).added == run.loaded(run.checkpoints / BEST_NAME).added == 12
        run.buffer, run.steps = run.loaded(newest), 6
    with small_disk(20_000):
        assert_equal_content(run.loaded(run.play(3).save()), run.buffer)


def test_a_full_disk_keeps_the_checkpoint_before_and_leaves_no_litter(tmp_path: Path) -> None:
    in_a_process_of_its_own(fill_the_disk, tmp_path / "run")


def kill_savers(run_dir: Path) -> None:
    """Go on from what is there and be killed while saving: twenty times, and until a new checkpoint was left."""
    chooser = random.Random(0)
    Run(run_dir).play(1).save()
    for number in range(1, 200):
        opened, run, expected = open_checkpoint(run_dir), Run(run_dir), Run(run_dir)
        run.buffer.load_state_dict(opened.state.buffer_state)
        run.store.adopt(opened.state.buffer_state)
        run.steps = run.buffer.added // NUM_ENVS
        remove_newer_checkpoints(run.checkpoints, run.buffer.added)
        assert_equal_content(run.buffer, expected.play(run.steps).buffer)
        assert not list(run_dir.rglob("*.tmp"))
        child = os.fork()
        while child == 0:
            run.play(1 + run.steps % 3).save()
            run.save(BEST_NAME)
            prune_checkpoints(run.checkpoints, keep=2)
        time.sleep(chooser.uniform(0.0, 0.01 * number))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        if number >= 20 and run.steps > 1:
            return
    pytest.fail("no process got as far as a new checkpoint")


@pytest.mark.slow
def test_a_process_killed_at_any_moment_leaves_an_intact_checkpoint(tmp_path: Path) -> None:
    in_a_process_of_its_own(kill_savers, tmp_path / "run")


def test_what_a_killed_process_has_staged_is_removed(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.play(2).save()
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    stale = [run.checkpoints / f".step_9.pt.{gone.pid}.tmp", run.replay / f".rows_0_4_0123456789ab.pt.{gone.pid}.tmp"]
    stale.append(run.checkpoints / f".step_9.pt.{os.getpid()}.tmp")  # a killed one that had our number
    stale.append(manifest_path(run.checkpoints / "step_9.pt"))
    kept = [run.checkpoints / ".step_9.pt.1.tmp", run.replay / ".mine.tmp"]  # of a process that runs; of nobody
    for path in (*stale, *kept):
        path.write_bytes(b"half")
    prune_checkpoints(run.checkpoints, keep=1)
    assert [path for path in (*stale, *kept) if path.exists()] == kept


def test_what_lies_beyond_the_step_to_go_on_from_is_dropped(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for _ in range(3):
        run.play(2).save()
    run.play(1).save(BEST_NAME)
    remove_newer_checkpoints(run.checkpoints, 8)
    assert [path.name for path in step_checkpoints(run.checkpoints)] == ["step_8.pt", "step_4.pt"]
    assert len(names(run.replay)) == 4  # the best one, though of a later step, still needs all
    run.store.adopt(load_checkpoint(run.checkpoints / "step_8.pt").buffer_state)
    run.save(BEST_NAME)
    (run.checkpoints / BEST_NAME).unlink()
    remove_newer_checkpoints(run.checkpoints, 4)
    assert [name[:-15] for name in names(run.replay)] == ["rows_0_4_"]


@pytest.fixture
def trained(make_config: MakeConfig) -> Path:
    return train_dqn(make_config(algo="dqn")).run_dir


def test_a_run_keeps_its_replay_in_segments(trained: Path) -> None:
    assert [name[:-15] for name in names(trained / "replay")] == ["rows_0_64_", "rows_64_64_"]
    assert stored_rows(load_checkpoint(trained / "checkpoints" / "step_128.pt")).shape[0] == 128


def test_a_run_resumed_in_place_saves_only_what_is_new(trained: Path) -> None:
    before = files(trained / "replay")
    result = resume_training(trained, total_timesteps=192)
    after = files(trained / "replay")
    assert before.items() <= after.items()
    (new,) = after.keys() - before.keys()
    assert new.name.startswith("rows_128_64_")
    assert stored_rows(load_checkpoint(result.checkpoint_path)).shape[0] == 192


def test_a_fork_has_all_its_replay_for_itself(trained: Path) -> None:
    result = resume_training(trained / "checkpoints" / "step_128.pt", total_timesteps=192)
    before = stored_rows(load_checkpoint(trained / "checkpoints" / "step_128.pt"))
    shutil.rmtree(trained)
    assert stored_rows(load_checkpoint(result.checkpoint_path))[:124].equal(before[:124])


def test_a_damaged_newest_segment_resumes_from_the_checkpoint_before(trained: Path) -> None:
    damage(trained / "replay" / names(trained / "replay")[1], random.Random(2))
    with pytest.warns(UserWarning, match=r"segment .*rows_64_64_.* is damaged.*using step_64\.pt instead"):
        result = resume_training(trained, total_timesteps=96)
    assert stored_rows(load_checkpoint(result.checkpoint_path)).shape[0] == 96
    # The future that was given up is gone, but for the best one if it was of that time.
    assert [path.name for path in step_checkpoints(trained / "checkpoints")] == [
        "step_96.pt",
        "step_64.pt",
        "step_0.pt",
    ]


def test_a_checkpoint_copied_without_its_segments_acts_but_does_not_go_on(trained: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere" / "checkpoints"
    elsewhere.mkdir(parents=True)
    for path in (trained / "checkpoints").glob("step_128.pt*"):
        shutil.copy(path, elsewhere)
    copy = elsewhere / "step_128.pt"
    assert evaluate_checkpoint(copy, num_episodes=1)["eval_episodes"] == 1
    model = DQN.load(copy)
    assert model.predict(np.zeros(4, np.float32)) in (0, 1)
    told = rf"step_128\.pt is missing: .* copy the `replay` folder of its run to {re.escape(str(elsewhere.parent))}"
    with pytest.raises(CheckpointError, match=told):
        resume_training(copy, total_timesteps=192)
    with pytest.raises(CheckpointError, match=told):
        model.save(tmp_path / "model.pt")
    with pytest.raises(CheckpointError, match=told):
        model.learn(total_timesteps=192)
    shutil.copytree(trained / "replay", elsewhere.parent / "replay")
    assert model.learn(total_timesteps=192).metrics["global_step"] == 192
    assert resume_training(copy, total_timesteps=192).metrics["global_step"] == 192


def test_a_saved_model_is_one_file_with_everything(trained: Path, tmp_path: Path) -> None:
    for source in (trained, trained / "checkpoints" / "step_128.pt"):
        DQN.load(source).save(tmp_path / f"{source.name}.pt")
    rows = stored_rows(load_checkpoint(trained / "checkpoints" / "step_128.pt"))
    shutil.rmtree(trained)
    for name in (trained.name, "step_128.pt"):
        path = tmp_path / f"{name}.pt"
        assert stored_rows(load_checkpoint(path)).equal(rows)
        assert json.loads(manifest_path(path).read_text())["segments"] == []
        assert DQN.load(path).learn(total_timesteps=192).metrics["global_step"] == 192
