"""Exporting agents: the deterministic policy as a file that acts without this package."""

import io
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from rl_training.deploy import numpy_agent
from rl_training.deploy.checking import ExportCheck, check_export, sample_observations
from rl_training.deploy.numpy_format import run_numpy, write_numpy
from rl_training.deploy.program import PolicyProgram, make_program
from rl_training.errors import ExportError, RLTrainingError, describe_error
from rl_training.experiment.files import write_bytes
from rl_training.packing import Array
from rl_training.runtime.agents import Agent

FormatName = Literal["onnx", "torch", "numpy"]
FORMATS: tuple[str, ...] = get_args(FormatName)
SUFFIXES = {"onnx": ".onnx", "torch": ".pt2", "numpy": ".npz"}
_MODULE = Path(numpy_agent.__file__)
"""The module that reads exports of the format numpy; it is copied beside them."""
_ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")


@dataclass(frozen=True)
class Export:
    """The files of an export, and the result of its check; the first file holds the policy."""

    files: tuple[Path, ...]
    check: ExportCheck


def export_agent(agent: Agent, path: Path | str, format_name: str) -> Export:
    """Check that the exported policy acts like the agent, then write it to `path` with the suffix of the format."""
    target = _check_target(Path(path), format_name)
    program = make_program(agent)
    try:
        content, run = _build(agent, program, format_name)
        check = check_export(agent, program, run)
    except RLTrainingError:
        raise
    except Exception as error:  # torch, its exporters and the runtimes may raise anything
        raise ExportError(f"the network cannot be exported as {format_name}: {describe_error(error)[:300]}") from error
    module = target.with_name(_MODULE.name)
    others = {module: _MODULE.read_bytes()} if format_name == "numpy" else {}
    _write({**others, target: content})
    return Export((target, *others), check)


def _write(contents: dict[Path, bytes]) -> None:
    for path, content in contents.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(path, content)
        except OSError as error:
            raise ExportError(f"{path} cannot be written: {error}") from error


def _check_target(target: Path, format_name: str) -> Path:
    """Return the file to write; refuse what cannot work before anything is built."""
    if format_name not in FORMATS:
        raise ExportError(f"format={format_name!r}: allowed are {', '.join(FORMATS)}")
    suffix = SUFFIXES[format_name]
    if target.suffix not in ("", suffix):
        raise ExportError(f"{target}: the name of a file of the format {format_name} ends in {suffix}")
    target = target.with_suffix(suffix)
    if target.is_dir():
        raise ExportError(f"{target} is a directory; give the name of a file")
    if format_name == "onnx":
        missing = [name for name in _ONNX_PACKAGES if find_spec(name) is None]
        if missing:
            raise ExportError(f"the format onnx needs {', '.join(missing)}: pip install 'rl-training[export]'")
    module = target.with_name(_MODULE.name)
    if format_name == "numpy" and module.exists() and not _is_own(module):
        raise ExportError(f"{module} exists and would be replaced by the module that reads exports: rename it")
    return target


def _is_own(module: Path) -> bool:
    """Return whether a file is the module that is copied beside exports, maybe of another version."""
    first_line = str(numpy_agent.__doc__).partition("\n")[0]
    with module.open(encoding="utf-8", errors="replace") as file:
        return file.readline().strip().strip('"') == first_line


def _build(
    agent: Agent, program: PolicyProgram, format_name: str
) -> tuple[bytes, Callable[[dict[str, Array]], dict[str, Array]]]:
    """Return the content of the exported file, and a function that runs it."""
    names = [part.name for part in program.policy.action_parts]
    if format_name == "numpy":
        content = write_numpy(program, agent.action_space)
        return content, lambda inputs: run_numpy(content, inputs, names)
    with _quiet():
        exported = _trace(program, sample_observations(agent, program, 2))
        if format_name == "torch":
            file = io.BytesIO()
            torch.export.save(exported, file)
            file.seek(0)
            loaded = torch.export.load(file).module()
            return file.getvalue(), lambda inputs: _run_torch(loaded, inputs)
        content = _to_onnx(exported, program, names)
    return content, _onnx_runner(content, names)


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide what exporters log about packages that are not needed, and warnings that no user can act on."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


def _trace(program: PolicyProgram, rows: Array) -> torch.export.ExportedProgram:
    """Return the policy as a graph in which the size of the batch is open."""
    example = {name: torch.from_numpy(values) for name, values in program.split(rows).items()}
    batch = torch.export.Dim("batch", min=1)
    return torch.export.export(program.module(), (example,), dynamic_shapes=({name: {0: batch} for name in example},))


def _run_torch(module: Any, inputs: dict[str, Array]) -> dict[str, Array]:
    with torch.inference_mode():
        found = module({name: torch.from_numpy(values) for name, values in inputs.items()})
    return {name: values.numpy() for name, values in found.items()}


def _to_onnx(exported: torch.export.ExportedProgram, program: PolicyProgram, names: list[str]) -> bytes:
    import onnx

    inputs = [each.name for each in program.all_inputs]
    found = torch.onnx.export(exported, (), dynamo=True, input_names=inputs, output_names=names, verbose=False)
    assert found is not None
    proto = found.model_proto
    for value in [*proto.graph.input, *proto.graph.output]:
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.checker.check_model(proto)
    content: bytes = proto.SerializeToString()
    return content


def _onnx_runner(content: bytes, names: list[str]) -> Callable[[dict[str, Array]], dict[str, Array]]:
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return lambda inputs: dict(zip(names, session.run(names, inputs), strict=True))
