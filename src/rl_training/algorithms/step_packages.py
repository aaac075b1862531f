"""Gradient steps compiled ahead of time, in a process of their own, and kept on disk: this one holds no compiler.

Run as a module, this is that process: it reads a pickled step and inputs like those to come, and writes a package.
"""

import hashlib
import inspect
import os
import pickle
import platform
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from rl_training.algorithms.whole_step import SlopeFn, WholeStep
from rl_training.compiling import cache_dir, remember_compiling
from rl_training.errors import exit_told, told

_KEPT_PACKAGES = 100  # of about 2 MB


class CompiledStep(Protocol):
    """A loaded package."""

    def run(self, inputs: list[Tensor]) -> list[Tensor]:
        """Move the parameters and moments among `inputs` in place; the watched numbers, and errors if there are any."""


def load_step(step: WholeStep, inputs: Sequence[Tensor], compile_as: str) -> CompiledStep:
    """The compiled step for inputs like these; compiled now, unless a run that `compile_as` describes has done so."""
    package = cache_dir() / "steps" / f"{package_key(step, inputs, compile_as)}.pt2"
    if not package.exists():
        began = time.perf_counter()
        _compile_elsewhere(step, inputs, package)
        remember_compiling(time.perf_counter() - began)
    try:
        loaded: CompiledStep = torch._C._aoti.AOTIModelPackageLoader(str(package), "model", False, 1, -1)
    except Exception:
        package.unlink()  # damaged: the next run compiles it again
        raise
    return loaded


def package_key(step: WholeStep, inputs: Sequence[Tensor], compile_as: str) -> str:
    """Equal for steps whose packages are: same description, same inputs, same code, same processor."""
    layouts = [(name, layout.shapes) for name, layout in step.layouts.items()]
    like = [(tensor.shape, tensor.stride(), tensor.dtype, tensor.device) for tensor in inputs]
    versions = torch.__version__, torch.get_num_threads(), torch.backends.cpu.get_cpu_capability(), platform.machine()
    parts = compile_as, layouts, step.batch, step.settings, step.eps, step.max_norm, like, versions, _processor()
    summary = hashlib.sha256(repr(parts).encode())
    for path in _sources(step.slope):
        summary.update(path.read_bytes())
    return summary.hexdigest()[:32]


def _processor() -> str:
    """What the processor can do, since the compiler makes use of all of it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())


def _sources(slope: SlopeFn) -> Iterator[Path]:
    """The code that a step consists of: ours, and the file of a slope from elsewhere."""
    rooms = Path(__file__).parents[1]
    own = [*sorted(rooms.glob("algorithms/*.py")), *sorted(rooms.glob("policies/*.py"))]
    yield from own
    defined_in = getattr(inspect.getmodule(slope), "__file__", None)
    if defined_in and Path(defined_in) not in own:
        yield Path(defined_in)


def _compile_elsewhere(step: WholeStep, inputs: Sequence[Tensor], package: Path) -> None:
    """Let another process compile, which Ctrl-C does not reach: an update that has begun is finished."""
    package.parent.mkdir(parents=True, exist_ok=True)
    draft = package.with_name(f"{package.stem}.{os.getpid()}.pt2")
    command = [sys.executable, "-m", __name__, str(draft)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(place for place in sys.path if place)}
    order = pickle.dumps((step, tuple(inputs), torch.get_num_threads()))
    done = subprocess.run(command, input=order, capture_output=True, env=environment, start_new_session=True)
    if done.returncode != 0:
        draft.unlink(missing_ok=True)
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise RuntimeError(lines[-1].removeprefix("RuntimeError: ") if lines else exit_told(done.returncode))
    draft.replace(package)
    with suppress(FileNotFoundError):  # another process does the same
        for old in sorted(package.parent.glob("*.pt2"), key=os.path.getmtime)[:-_KEPT_PACKAGES]:
            old.unlink()


def _compile_here(order: bytes, package: Path) -> None:
    step, inputs, num_threads = pickle.loads(order)
    torch.set_num_threads(num_threads)  # the generated loops are split for that many

    class Graph(torch.nn.Module):
        """What the exporter takes."""

        def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
            """The step."""
            outputs: tuple[Tensor, ...] = step(*given)
            return outputs

    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # what the compiler thinks of itself
        exported = torch.export.export(Graph(), inputs, strict=False)
        if exported.constants:
            raise RuntimeError("the slope depends on tensors beside its networks, batch and settings")
        torch._inductor.aoti_compile_and_package(exported, package_path=str(package))


def main(arguments: Sequence[str]) -> int:
    """Compile what stdin orders; one line on stderr says why it failed."""
    try:
        _compile_here(sys.stdin.buffer.read(), Path(arguments[0]))
    except Exception as error:
        print(told(error), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
