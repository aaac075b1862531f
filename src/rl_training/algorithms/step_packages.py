"""Gradient steps compiled ahead of time, in a process of their own, and kept on disk: this one holds no compiler.

Run as a module, this is that process: it reads a pickled step and inputs like those to come, and writes a package.
"""

import fcntl
import hashlib
import inspect
import io
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
from typing import Any, Protocol

import torch
from torch import Tensor

from rl_training.algorithms.whole_step import SlopeFn, WholeStep
from rl_training.compiling import cache_dir, remember_compiling
from rl_training.cores import cpu_features
from rl_training.errors import exit_told, told
from rl_training.policies.host import HostedParams

KEPT_PACKAGES = 100  # of about 2 MB


class CompiledStep(Protocol):
    """A loaded package."""

    def run(self, inputs: list[Tensor]) -> list[Tensor]:
        """Move the parameters and moments among `inputs` in place; the watched numbers, and errors if there are any."""


def load_step(step: WholeStep, inputs: Sequence[Tensor], compile_as: str) -> CompiledStep:
    """The compiled step for inputs like these; compiled now, unless a run that `compile_as` describes has done so."""
    package = _package_path(package_key(step, inputs, compile_as))
    package.parent.mkdir(parents=True, exist_ok=True)
    with package.with_suffix(".lock").open("w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)  # of several runs that begin together, one compiles
        if package.exists():
            os.utime(package)  # the packages used last are kept
            try:
                return _load(package)
            except Exception:
                package.unlink()  # damaged
        began = time.perf_counter()
        _compile_elsewhere(step, inputs, package)
        remember_compiling(time.perf_counter() - began)
        return _load(package)


def has_package(key: str) -> bool:
    """Whether the package with this key is kept on this machine."""
    return _package_path(key).exists()


def _package_path(key: str) -> Path:
    return cache_dir() / "steps" / f"{key}.pt2"


def _load(package: Path) -> CompiledStep:
    loaded: CompiledStep = torch._C._aoti.AOTIModelPackageLoader(str(package), "model", False, 1, -1)
    return loaded


def package_key(step: WholeStep, inputs: Sequence[Tensor], compile_as: str) -> str:
    """Equal for steps whose packages are: same description, same inputs, same code, same processor."""
    slope = getattr(step.slope, "__module__", ""), getattr(step.slope, "__qualname__", type(step.slope))
    layouts = [(name, layout.shapes) for name, layout in step.layouts.items()]
    like = [(tensor.shape, tensor.stride(), tensor.dtype, _device_name(tensor.device)) for tensor in inputs]
    run_by = torch.__version__, torch.get_num_threads(), torch.backends.cpu.get_cpu_capability()
    processor = platform.machine(), cpu_features()
    parts = compile_as, slope, layouts, step.batch, step.settings, step.eps, step.max_norm, like, run_by, processor
    summary = hashlib.sha256(repr(parts).encode())
    for path in _sources(step.slope):
        summary.update(path.read_bytes())
    return summary.hexdigest()[:32]


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def _sources(slope: SlopeFn) -> Iterator[Path]:
    """The code that a step consists of: ours, and the file of a slope from elsewhere with all of its package."""
    rooms = Path(__file__).parents[1]
    yield from sorted([*rooms.glob("algorithms/*.py"), *rooms.glob("policies/*.py")])
    module = inspect.getmodule(slope)
    if module and module.__file__ and not module.__name__.startswith(f"{rooms.name}."):
        package = sys.modules[module.__name__.partition(".")[0]]
        places = getattr(package, "__path__", ())
        yield from sorted({Path(module.__file__), *(path for place in places for path in Path(place).rglob("*.py"))})


class _Order(pickle.Pickler):
    """Pickles a step, with the learner whose method its slope is."""

    def reducer_override(self, obj: Any) -> Any:
        """Send parameters as their shapes: a step gets their values as inputs."""
        if isinstance(obj, HostedParams):
            return HostedParams, (obj.layout.shapes, obj.flat.device)
        return NotImplemented


def _compile_elsewhere(step: WholeStep, inputs: Sequence[Tensor], package: Path) -> None:
    """Let another process compile, which Ctrl-C does not reach: an update that has begun is finished."""
    draft = package.with_suffix(f".{os.getpid()}")
    command = [sys.executable, "-m", __name__, str(draft)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(place for place in sys.path if place)}
    order = io.BytesIO()
    _Order(order).dump((step, tuple(inputs), torch.get_num_threads()))
    try:
        done = subprocess.run(
            command, input=order.getvalue(), capture_output=True, env=environment, start_new_session=True
        )
        if done.returncode != 0:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            told_by_itself = lines[-1].removeprefix("RuntimeError: ") if lines and done.returncode > 0 else None
            raise RuntimeError(told_by_itself or exit_told(done.returncode))
        draft.replace(package)
    finally:
        draft.unlink(missing_ok=True)
    forget_old(package.parent)


def forget_old(packages: Path) -> None:
    """Keep the packages that were used last."""
    with suppress(FileNotFoundError):  # another process does the same
        for old in sorted(packages.glob("*.pt2"), key=os.path.getmtime)[:-KEPT_PACKAGES]:
            old.with_suffix(".lock").unlink(missing_ok=True)
            old.unlink(missing_ok=True)


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
        _set_up_compiler(on_cpu=inputs[0].is_cpu)
        made = torch._inductor.aoti_compile_and_package(exported, package_path=f"{package}.pt2")
        Path(made).replace(package)


def _set_up_compiler(*, on_cpu: bool) -> None:
    config = torch._inductor.config
    config.pattern_matcher = not on_cpu  # it would join products and sums again, and copy every bias
    config.cpp.vec_isa_ok = True  # torch knows the processor's vectors; to try the compiler's takes 6 s
    if hasattr(config.aot_inductor, "precompile_headers"):  # not in every torch
        config.aot_inductor.precompile_headers = False  # 8 s and 300 MB for the first package, to save 2 s in others


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
