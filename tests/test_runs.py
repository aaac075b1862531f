"""Run directories: names that stay inside, creation that only one process wins, files that survive a crash."""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import MakeConfig
from hypothesis import given, settings
from hypothesis import strategies as st

import rl_training
from rl_training.cli import main
from rl_training.errors import RunDirectoryError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.logging import RunLogger
from rl_training.experiment.runs import (
    RunContext,
    context_of,
    create_run_context,
    find_runs,
    read_digests,
    read_metadata,
    read_metrics,
    slug,
    truncate_logs,
    update_metadata,
)
from rl_training.runtime.ppo_trainer import train_ppo

COMPONENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")

ODD_NAMES = {
    "..": "unnamed",
    ".": "unnamed",
    "": "unnamed",
    "/": "unnamed",
    "/etc/passwd": "etc-passwd",
    "a/../../b": "a-..-..-b",
    "..\\..\\b": "b",
    "nul\0byte": "nul-byte",
    "~root": "root",
    "$(touch x)": "touch-x",
    "new\nline": "new-line",
    "Pøng-v0 ✓": "P-ng-v0",
    "中文": "unnamed",
    ".hidden": "hidden",
    "--flag": "flag",
    "rl_training/Probe-v0": "rl_training-Probe-v0",
}


def listing(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def test_a_run_id_names_algorithm_env_seed_and_suffix(make_config: MakeConfig) -> None:
    context = create_run_context(make_config(), "abc")
    assert context.run_id == "ppo__CartPole-v1__seed7__abc"
    assert context.run_dir == make_config().output_dir / context.run_id
    assert context.checkpoints_dir.is_dir()
    assert context.tensorboard_dir.is_dir()
    assert context.config_path == context.run_dir / "config.yaml"
    assert context.metadata_path == context.run_dir / "metadata.json"


def test_without_a_suffix_every_run_has_its_own(make_config: MakeConfig) -> None:
    ids = {create_run_context(make_config()).run_id for _ in range(20)}
    assert len(ids) == 20
    assert all(run_id.startswith("ppo__CartPole-v1__seed7__") for run_id in ids)


def test_a_suffix_that_is_taken_is_refused_with_what_to_do(make_config: MakeConfig) -> None:
    context = create_run_context(make_config(), "abc")
    with pytest.raises(RunDirectoryError, match="abc exists: choose another suffix, or continue it"):
        create_run_context(make_config(), "abc")
    assert context.run_dir.is_dir()


@pytest.mark.parametrize(("name", "expected"), ODD_NAMES.items(), ids=map(repr, ODD_NAMES))
def test_odd_names_become_one_plain_component(name: str, expected: str) -> None:
    assert slug(name) == expected


@pytest.mark.parametrize("name", [*ODD_NAMES, "x" * 300, "é" * 300, "../" * 100], ids=lambda name: repr(name[:12]))
def test_odd_names_stay_inside_the_output_directory(name: str, tmp_path: Path) -> None:
    root = tmp_path / "runs"
    config = TrainConfig(algo=name or "ppo", env_id=name or "CartPole-v1", seed=2**63 - 1, output_dir=root)
    context = create_run_context(config, name)
    assert context.run_dir.is_dir()
    assert context.run_dir.resolve().parent == root.resolve()
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    assert [path.name for path in root.iterdir()] == [context.run_id]


@settings(deadline=None)
@given(name=st.text(max_size=400))
def test_a_slug_is_one_visible_component_and_its_own_slug(name: str) -> None:
    cleaned = slug(name)
    assert COMPONENT.fullmatch(cleaned)
    assert len(cleaned) <= 80
    assert slug(cleaned) == cleaned


_NAMES = st.text(min_size=1, max_size=300) | st.text("./\\\0~-_a", min_size=1, max_size=120)


@settings(max_examples=60, deadline=None)
@given(algo=_NAMES, env_id=_NAMES, suffix=st.none() | _NAMES, seed=st.integers(0, 2**63 - 1))
def test_whatever_the_names_a_run_lies_directly_below_its_output_directory(
    algo: str, env_id: str, suffix: str | None, seed: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "runs"
        config = TrainConfig(algo=algo, env_id=env_id, seed=seed, output_dir=root)
        context = create_run_context(config, suffix)
        assert context.run_dir.parent == root
        assert listing(Path(directory)) == [
            "runs",
            f"runs/{context.run_id}",
            f"runs/{context.run_id}/checkpoints",
            f"runs/{context.run_id}/tensorboard",
        ]


def test_a_link_that_leads_outside_is_not_followed(make_config: MakeConfig, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    config = make_config()
    config.output_dir.mkdir()
    (config.output_dir / "ppo__CartPole-v1__seed7__abc").symlink_to(outside)
    with pytest.raises(RunDirectoryError, match="would be outside"):
        create_run_context(config, "abc")
    assert list(outside.iterdir()) == []


RACE = """
import os, sys
from pathlib import Path
from rl_training.errors import RunDirectoryError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.runs import create_run_context

config = TrainConfig(algo="ppo", env_id="CartPole-v1", output_dir=Path(sys.argv[1]))
gate_out, gate_in = os.pipe()
children = []
for _ in range(8):
    child = os.fork()
    if child == 0:
        os.close(gate_in)
        os.read(gate_out, 1)  # returns for all at once, when the parent closes its end
        try:
            create_run_context(config, "same")
        except RunDirectoryError:
            os._exit(3)
        os._exit(0)
    children.append(child)
os.close(gate_in)
print(*sorted(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""


def test_of_eight_processes_that_race_for_one_directory_one_wins(tmp_path: Path) -> None:
    command = [sys.executable, "-c", RACE, str(tmp_path / "runs")]
    environment = {**os.environ, "PYTHONPATH": str(Path(rl_training.__file__).parents[1])}
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=environment)
    assert answer.stdout.split() == ["0"] + ["3"] * 7
    assert len(list((tmp_path / "runs").iterdir())) == 1


def a_file(root: Path) -> Path:
    (root / "taken").write_text("mine")
    return root / "taken"


def below_a_file(root: Path) -> Path:
    return a_file(root) / "deep" / "runs"


def not_writable(root: Path) -> Path:
    del root
    return Path("/proc/nope")


def too_long(root: Path) -> Path:
    return root / ("x" * 300)


def with_nul(root: Path) -> Path:
    return root / "nul\0byte"


def a_link_to_itself(root: Path) -> Path:
    (root / "loop").symlink_to(root / "loop")
    return root / "loop" / "runs"


UNUSABLE = [a_file, below_a_file, not_writable, too_long, with_nul, a_link_to_itself]


@pytest.mark.parametrize("make_output_dir", UNUSABLE)
def test_an_unusable_output_directory_is_named_before_anything_is_made(
    make_output_dir: Callable[[Path], Path], make_config: MakeConfig, tmp_path: Path
) -> None:
    output_dir = make_output_dir(tmp_path)
    before = listing(tmp_path)
    config = make_config(output_dir=output_dir)
    for attempt in (create_run_context, train_ppo):
        with pytest.raises(RunDirectoryError) as caught:
            attempt(config)
        assert str(output_dir) in str(caught.value)
    assert listing(tmp_path) == before


def test_the_command_line_answers_an_output_directory_that_is_a_file_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output_dir = a_file(tmp_path)
    assert main(["train", "--algo", "ppo", "--env", "CartPole-v1", "--output-dir", str(output_dir)]) == 2
    assert capsys.readouterr().err == f"error: output directory {output_dir}: {output_dir} is a file\n"
    assert output_dir.read_text() == "mine"


@pytest.fixture
def context(tmp_path: Path) -> RunContext:
    """A run directory with three lines of metrics."""
    context = context_of(tmp_path)
    logger = RunLogger(context)
    for step in (10, 20, 30):
        logger.log_metrics({"loss": step / 2}, step=step)
    logger.close()
    return context


def steps(context: RunContext) -> list[int]:
    return [row["step"] for row in read_metrics(context)]


def test_a_torn_last_line_is_left_out(context: RunContext) -> None:
    whole = context.metrics_path.read_bytes()
    last = whole.rindex(b"\n", 0, -1) + 1
    for end in range(last, len(whole) - 1):
        context.metrics_path.write_bytes(whole[:end])
        assert steps(context) == [10, 20]
    context.metrics_path.write_bytes(whole[:-1])  # only the line break is missing
    assert steps(context) == [10, 20, 30]


def test_bytes_that_are_no_text_end_the_metrics(context: RunContext) -> None:
    with context.metrics_path.open("ab") as file:
        file.write(b"\xff\x00\xfe")
    assert steps(context) == [10, 20, 30]


def test_a_run_without_metrics_has_none(tmp_path: Path) -> None:
    assert read_metrics(context_of(tmp_path)) == []


@pytest.mark.parametrize(
    ("step", "kept"), [(0, []), (10, [10]), (25, [10, 20]), (30, [10, 20, 30]), (99, [10, 20, 30])]
)
def test_metrics_are_cut_back_to_a_step_and_go_on_from_there(context: RunContext, step: int, kept: list[int]) -> None:
    with context.metrics_path.open("a") as file:
        file.write('{"step": 40, "lo')
    truncate_logs(context, step)
    logger = RunLogger(context)
    logger.log_metrics({"loss": 1.0}, step=100)
    logger.close()
    assert steps(context) == [*kept, 100]
    assert all(json.loads(line) for line in context.metrics_path.read_text().splitlines())


def flip(path: Path, position: int) -> bytes:
    """Flip a bit of the file, and give what it was."""
    content = path.read_bytes()
    path.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
    return content


def test_a_flipped_bit_in_the_middle_of_a_log_costs_one_line_and_is_reported(context: RunContext) -> None:
    with context.digests_path.open("w") as file:
        for step in (10, 20, 30):
            file.write(json.dumps({"step": step, "sha256": str(step)}) + "\n")
    for path in (context.metrics_path, context.digests_path):
        before = flip(path, path.read_bytes().index(b"\n") + 1)
        damaged = path.read_bytes()
        with pytest.warns(UserWarning, match=rf"{path.name} has damaged lines.*kept as {path.name}\.damaged-1"):
            truncate_logs(context, 99)
        assert path.with_name(f"{path.name}.damaged-1").read_bytes() == damaged
        assert path.read_bytes() == b"".join(before.splitlines(keepends=True)[::2])
    assert steps(context) == [10, 30]
    assert read_digests(context) == {10: "10", 30: "30"}
    truncate_logs(context, 99)  # nothing is said a second time: warnings are errors here


def test_a_log_that_was_overwritten_is_kept_beside_and_reported(context: RunContext) -> None:
    context.metrics_path.write_bytes(b"\x80\x04\x95 no line break")
    with pytest.warns(UserWarning, match="damaged lines"):
        truncate_logs(context, 99)
    assert context.metrics_path.with_name("metrics.jsonl.damaged-1").read_bytes() == b"\x80\x04\x95 no line break"


@pytest.mark.parametrize("line", ["5", "[]", "null", '{"time": 1}', '{"step": "20"}', '{"step": true}', "[" * 9_999])
def test_a_line_without_an_env_step_is_left_out_and_the_later_ones_stay(line: str, context: RunContext) -> None:
    first, *rest = context.metrics_path.read_text().splitlines()
    context.metrics_path.write_text("\n".join([first, line, *rest]) + "\n")
    assert steps(context) == [10, 20, 30]
    with pytest.warns(UserWarning, match="damaged lines"):
        truncate_logs(context, 20)
    assert steps(context) == [10, 20]


def test_metadata_is_json_whatever_the_numbers(tmp_path: Path) -> None:
    context = context_of(tmp_path)
    update_metadata(context, best_return=float("nan"), metrics={"best": float("inf"), "steps": [1, float("-inf")]})
    text = context.metadata_path.read_text()
    values = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert values == {"best_return": None, "metrics": {"best": None, "steps": [1, None]}}


def test_metadata_changes_keep_the_rest(tmp_path: Path) -> None:
    context = context_of(tmp_path)
    update_metadata(context, a=1, b=2)
    update_metadata(context, b=3)
    assert read_metadata(context) == {"a": 1, "b": 3}
    assert listing(tmp_path) == ["metadata.json"]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"3", b"\xff\xfe", b"[" * 100_000],
    ids=["empty", "torn", "list", "int", "bin", "deep"],
)
def test_metadata_that_is_no_object_is_refused_by_name(content: bytes, tmp_path: Path) -> None:
    context = context_of(tmp_path)
    context.metadata_path.write_bytes(content)
    with pytest.raises(RunDirectoryError, match=re.escape(str(tmp_path))):
        read_metadata(context)


def test_runs_are_found_at_any_depth(make_config: MakeConfig, tmp_path: Path) -> None:
    made = []
    for place in ("a", "b/c"):
        context = create_run_context(make_config(output_dir=tmp_path / place), "x")
        update_metadata(context, status="running")
        made.append(context)
    assert list(find_runs(tmp_path)) == made
