"""Files that anybody may have written: bombs, named pipes and giants are refused by name, in little memory."""

import io
import json
import os
import resource
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from test_cli import TINY, assert_one_error_line, write_config

import rl_training
from rl_training.cli import main
from rl_training.errors import CheckpointError, ConfigError, RunDirectoryError
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.files import JSON_LIMIT
from rl_training.experiment.groups import read_group
from rl_training.experiment.manifest import read_manifest
from rl_training.experiment.payload import unpack
from rl_training.experiment.runs import context_of, read_metadata, read_metrics
from rl_training.experiment.runs import write_config as write_run_config
from rl_training.experiment.sources import read_yaml
from rl_training.results.receipts import read_receipt

SOURCE = Path(rl_training.__file__).parents[1]
MEGABYTES = 2**20


def alias_bomb(levels: int = 9, width: int = 9) -> str:
    """A config whose aliases stand for `width ** levels` values."""
    lines = ["algo: ppo", "env_id: CartPole-v1", "env_kwargs:", f"  l0: &l0 [{', '.join('x' * width)}]"]
    lines += [f"  l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * width)}]" for n in range(1, levels)]
    return "\n".join(lines) + "\n"


def test_an_alias_bomb_is_refused_with_its_line_in_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "bomb.yaml"
    path.write_text(alias_bomb())
    script = (
        "import re, sys; from pathlib import Path; from rl_training.cli import load_config\n"
        "try: load_config(sys.argv[1])\n"
        "except Exception as error: print(error)\n"
        "print(re.search(r'VmHWM:\\s+(\\d+) kB', Path('/proc/self/status').read_text())[1])"
    )
    command = ["bash", "-c", 'ulimit -d 2000000; exec "$@"', "limited", sys.executable, "-c", script, str(path)]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    answer = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    message, kilobytes = answer.stdout.splitlines()
    assert message == f"{path}:7: aliases repeat more than 10,000 characters: write the values out"
    assert int(kilobytes) * 1024 < 200 * MEGABYTES


@pytest.mark.parametrize(
    "text",
    [
        alias_bomb(),
        "tags: [&long " + "x" * 9_000 + ", *long, *long]\n",
        "env_kwargs: {a: &a {b: 1}, c: {<<: [" + ", ".join(["*a"] * 4_000) + "]}}\n",
    ],
    ids=["lists of lists", "a long text", "merged maps"],
)
def test_aliases_that_repeat_much_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "bomb.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"bomb\.yaml:\d+: aliases repeat more than 10,000 characters"):
        read_yaml(path)


def test_a_config_that_could_not_be_read_again_is_not_written(tmp_path: Path) -> None:
    config = TrainConfig(algo="ppo", env_id="CartPole-v1", env_kwargs={"table": ["x" * 100] * 20_000})
    with pytest.raises(ConfigError, match="has more than 1,048,576 bytes"):
        write_run_config(context_of(tmp_path), config)
    assert list(tmp_path.iterdir()) == []


def read_group_directory(path: Path) -> Any:
    return read_group(path.parent)


def read_run_metadata(path: Path) -> Any:
    return read_metadata(context_of(path.parent))


def read_run_metrics(path: Path) -> Any:
    return read_metrics(context_of(path.parent))


def read_checkpoint_manifest(path: Path) -> Any:
    return read_manifest(path.with_name("step_5.pt"))


READERS: dict[str, Callable[[Path], Any]] = {
    "config.yaml": read_yaml,
    "metadata.json": read_run_metadata,
    "metrics.jsonl": read_run_metrics,
    "group.json": read_group_directory,
    "receipt.json": read_receipt,
    "step_5.pt": load_checkpoint,
    "step_5.pt.manifest.json": read_checkpoint_manifest,
}
REFUSALS = (CheckpointError, ConfigError, RunDirectoryError)


@pytest.mark.parametrize("name", READERS)
def test_a_named_pipe_is_refused_at_once(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(REFUSALS, match="a named pipe, and only a regular file"):
        READERS[name](tmp_path / name)


@pytest.mark.parametrize("name", READERS)
def test_a_file_of_a_terabyte_is_refused_at_once(name: str, tmp_path: Path) -> None:
    with (tmp_path / name).open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(REFUSALS, match=r"it is larger than|bytes of memory are free"):
        READERS[name](tmp_path / name)


@pytest.mark.parametrize("name", ["metadata.json", "group.json", "receipt.json", "step_5.pt.manifest.json"])
def test_json_nested_too_deeply_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("[" * 100_000)
    with pytest.raises(REFUSALS, match="nested too deeply"):
        READERS[name](tmp_path / name)


def test_metrics_end_where_they_are_no_metrics_any_more(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n' + "[" * 100_000 + "\n")
    assert read_run_metrics(tmp_path / "metrics.jsonl") == [{"step": 1}]
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n5\n')
    assert read_run_metrics(tmp_path / "metrics.jsonl") == [{"step": 1}]


def test_list_names_runs_with_pipes_and_giants_as_unreadable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("pipe", "giant"):
        (tmp_path / name).mkdir()
    os.mkfifo(tmp_path / "pipe" / "metadata.json")
    (tmp_path / "giant" / "metadata.json").write_text(json.dumps({"algo": "x" * JSON_LIMIT}))
    assert main(["list", str(tmp_path)]) == 0
    rows = {line.split()[-1]: line for line in capsys.readouterr().out.splitlines() if line}
    assert "unreadable" in rows["pipe"]
    assert "unreadable" in rows["giant"]


@pytest.mark.parametrize("command", [["eval", "--checkpoint"], ["resume"], ["record"], ["compare", "."], ["report"]])
def test_no_command_waits_for_a_pipe(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    (run_dir / "checkpoints").mkdir(parents=True)
    for name in ("metadata.json", "metrics.jsonl", "config.yaml", "checkpoints/step_5.pt"):
        os.mkfifo(run_dir / name)
    monkeypatch.chdir(tmp_path)
    assert main([*command, str(run_dir)]) == 2
    assert_one_error_line(capsys.readouterr().err, "only a regular file")


def content_of(values: Any) -> bytes:
    memory = io.BytesIO()
    torch.save(values, memory)
    return memory.getvalue()


def rewritten(content: bytes, pickled: Callable[[bytes], bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """The archive with another pickle in it."""
    memory = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(memory, "w", compression) as new:
        for name in old.namelist():
            part = old.read(name)
            new.writestr(name, pickled(part) if name.endswith("data.pkl") else part)
    return memory.getvalue()


def compressed_zeros() -> bytes:
    return rewritten(content_of(torch.zeros(50 * MEGABYTES // 4)), lambda pickled: pickled, zipfile.ZIP_DEFLATED)


def entries_that_overlap() -> bytes:
    """The directory of the archive names the same bytes many times."""
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}.")
        archive.writestr("archive/data/0", bytes(MEGABYTES))
        (entry,) = (each for each in archive.infolist() if each.filename.endswith("0"))
        archive.filelist += [entry] * 100
    return memory.getvalue()


def stretched_tensor() -> bytes:
    def stretch(pickled: bytes) -> bytes:
        size = pickled.index(b"K\x04\x85")  # (4,)
        stretched = pickled[size + 3 :].replace(b"K\x01\x85", b"K\x00\x85", 1)  # stride (1,) becomes (0,)
        return pickled[:size] + b"J" + (10**9).to_bytes(4, "little") + b"\x85" + stretched

    return rewritten(content_of(torch.zeros(4)), stretch)


def declared_storage() -> bytes:
    def declare(pickled: bytes) -> bytes:
        return pickled.replace(b"K\x04", b"J" + (10**9).to_bytes(4, "little"))

    return rewritten(content_of(torch.zeros(4)), declare)


def bytes_made_of_a_number() -> bytes:
    call = b"\x80\x02cbuiltins\nbytearray\nJ" + (10**9).to_bytes(4, "little") + b"\x85R."
    return rewritten(content_of(0), lambda pickled: call)


def lists_of_lists() -> bytes:
    values: list[Any] = ["x"] * 10
    for _ in range(10):
        values = [values] * 10
    return content_of(values)


def list_in_itself() -> bytes:
    values: list[Any] = []
    values.append(values)
    return content_of(values)


BOMBS = {
    compressed_zeros: "compressed",
    entries_that_overlap: "entries of the archive are larger than the file",
    stretched_tensor: r"a tensor of shape \(1000000000,\) has only 16 bytes",
    declared_storage: "does not match expected size",
    bytes_made_of_a_number: "it refers to builtins bytearray",
    lists_of_lists: "take more memory than the file is large",
    list_in_itself: "take more memory than the file is large",
}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("bomb", BOMBS)
def test_a_checkpoint_that_unpacks_to_more_than_it_holds_is_refused(bomb: Callable[[], bytes], tmp_path: Path) -> None:
    path = tmp_path / "bomb.pt"
    path.write_bytes(bomb())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CheckpointError, match=rf"bomb\.pt is (damaged|refused): .*{BOMBS[bomb]}"):
        load_checkpoint(path)
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 200 * MEGABYTES


def test_values_that_share_parts_are_no_bomb() -> None:
    flat = torch.arange(1_000.0)
    shared = {"name": [1, 2.0, None]}
    views = {"flat": flat, "part": flat[10:20], "turned": flat.view(10, 100).T, "empty": torch.zeros(0), "one": flat[3]}
    values = {"views": views, "all": [shared] * 20, "text": b"bytes", "types": torch.zeros(2, dtype=torch.uint16)}
    found = unpack(content_of(values), "it")
    assert found["all"] == values["all"]
    assert torch.equal(found["views"]["turned"], views["turned"])


def test_a_config_from_a_pipe_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    assert main(["train", "--config", str(tmp_path / "pipe.yaml")]) == 2
    assert_one_error_line(capsys.readouterr().err, "pipe.yaml: cannot be read", "only a regular file")


def test_a_whole_run_is_not_taken_for_a_bomb(tmp_path: Path) -> None:
    replay = {"buffer_capacity": 200, "batch_size": 8, "learning_starts": 32, "hidden_sizes": [8]}
    config = write_config(tmp_path, **{**TINY, "algo": "dqn", "algo_kwargs": replay})
    assert main(["train", "--config", str(config), "--output-dir", str(tmp_path / "runs")]) == 0
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert main(["resume", str(run_dir), "--total-timesteps", "192"]) == 0
