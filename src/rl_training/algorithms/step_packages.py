"""Compile gradient steps ahead of time and keep the packages on disk.

Another process compiles, so that this one does not have to import the compiler. That process runs `main`, which reads
a pickled step and example inputs and writes a package.
"""

import fcntl
import hashlib
import io
import os
import pickle
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FunctionType
from typing import Any, Protocol

import torch
from torch import Tensor

from rl_training.compiling import cache_dir, compiler_found, remember_compiling
from rl_training.cores import cpu_features
from rl_training.errors import describe_error, describe_exit
from rl_training.experiment.locking import is_open_file
from rl_training.interpreters import isolated_command
from rl_training.policies.params import HostedParams
from rl_training.private import make_private_folder, open_private
from rl_training.processes import kill_tree

KEPT_PACKAGES = 100  # about 2 MB each
_PACKAGE, _LOCK = ".pt2", ".lock"
_LIBRARIES = ("torch", "numpy", "gymnasium", "pydantic")  # too large to hash; the key has the version of torch


class Step(Protocol):
    """A gradient step to compile: a picklable function of tensors, some of which it changes in place."""

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Compute the step."""

    def describe(self) -> str:
        """Describe everything that the step depends on, except its code and the shapes of its inputs."""


class CompiledStep(Protocol):
    """A loaded package."""

    def run(self, inputs: list[Tensor]) -> list[Tensor]:
        """Move the parameters and moments among `inputs` in place; return the metrics, and errors if there are any."""


def load_step(key: str, step: Step, inputs: Sequence[Tensor]) -> CompiledStep:
    """Load the compiled step for inputs like these; compile it now, unless a package with this key is kept."""
    try:
        packages = _private_cache()
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        warnings.warn(f"compiled updates are not kept for later runs ({reason})", stacklevel=2)
        with tempfile.TemporaryDirectory() as folder:
            return _make(step, inputs, Path(folder) / f"{key}{_PACKAGE}")
    with _locked(packages / f"{key}{_LOCK}"):  # if several runs start together, only one of them compiles
        kept = _load_kept(packages / f"{key}{_PACKAGE}")
        return kept or _make(step, inputs, packages / f"{key}{_PACKAGE}")


def _private_cache() -> Path:
    """Return the folder of packages. Only its owner can write to it, because its files are loaded as code."""
    for folder in (cache_dir(), cache_dir() / "steps"):
        make_private_folder(folder)
    return folder


@contextmanager
def _locked(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold a lock and yield True; without `wait`, yield False if another process holds it."""
    descriptor = _acquire(path, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _acquire(path: Path, operation: int) -> int | None:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, operation)
        except BlockingIOError:
            os.close(descriptor)
            return None
        if is_open_file(path, descriptor):
            return descriptor
        os.close(descriptor)


def _load_kept(package: Path) -> CompiledStep | None:
    """Load the package of an earlier run, unless it is missing, damaged or could have been written by another user."""
    try:
        descriptor = open_private(package)
    except FileNotFoundError:
        return None
    except OSError as error:
        warnings.warn(f"{package} is not loaded, because {error.strerror}: compiling again", stacklevel=3)
        _discard(package)
        return None
    try:
        os.utime(descriptor)  # `forget_old` keeps the packages that were used last
        opened = Path("/dev/fd", str(descriptor))
        return _load(opened if opened.exists() else package)
    except Exception:
        _discard(package)  # damaged
        return None
    finally:
        os.close(descriptor)


def has_package(key: str) -> bool:
    """Return whether the package with this key is kept on this machine."""
    try:
        return (_private_cache() / f"{key}{_PACKAGE}").exists()
    except OSError:
        return False


def _load(package: Path) -> CompiledStep:
    # The loader unpacks into a new folder of mode 0700, and loads the library from there.
    loaded: CompiledStep = torch._C._aoti.AOTIModelPackageLoader(str(package), "model", False, 1, -1)
    return loaded


def _make(step: Step, inputs: Sequence[Tensor], package: Path) -> CompiledStep:
    """Compile in a temporary folder and remove it afterwards, as well as one that a killed process left behind."""
    if not compiler_found():  # the compiling process would only notice this after several seconds
        raise RuntimeError("there is no C++ compiler; install g++, or set CXX to the path of another one")
    began = time.perf_counter()
    build = package.with_suffix(".build")
    _discard(build)
    build.mkdir(mode=0o700)
    try:
        _compile_elsewhere(step, inputs, build / package.name)
        (build / package.name).chmod(0o600)
        (build / package.name).replace(package)
    finally:
        _discard(build)
    remember_compiling(time.perf_counter() - began)
    forget_old(package.parent)
    return _load(package)


def _discard(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def package_key(step: Step, inputs: Sequence[Tensor], compile_as: str) -> str:
    """Compute a key from everything that a package depends on: settings, form of the inputs, code and processor."""
    like = [(tensor.shape, tensor.stride(), tensor.dtype, _device_name(tensor.device)) for tensor in inputs]
    run_by = torch.__version__, torch.get_num_threads(), torch.backends.cpu.get_cpu_capability()
    parts = compile_as, step.describe(), like, run_by, platform.machine(), cpu_features()
    summary = hashlib.sha256(repr(parts).encode())
    contents = _StepPickler.read(step)
    for network in contents.networks:
        summary.update(repr(network).encode())
        for buffer in network.buffers():
            summary.update(buffer.numpy(force=True).tobytes())
    for path in _sources(contents.modules):
        summary.update(path.read_bytes())
    return summary.hexdigest()[:32]


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def _sources(modules: Iterable[str]) -> list[Path]:
    """Find the source files that a step depends on, in this package and in others whose modules it uses."""
    root = Path(__file__).parents[1]
    found = {*root.glob("algorithms/**/*.py"), *root.glob("policies/**/*.py")}
    for module in modules:
        package = sys.modules[module.partition(".")[0]]
        if package.__name__ in (root.name, *_LIBRARIES):
            continue
        files = [Path(getattr(sys.modules[module], "__file__", None) or "")]
        found |= {path for place in getattr(package, "__path__", ()) for path in Path(place).rglob("*.py")}
        found |= {file for file in files if file.suffix == ".py"}
    return sorted(found)


class _StepPickler(pickle.Pickler):
    """Pickles a step with the learner whose method it calls, and notes what code and modules it consists of."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.modules: set[str] = set()
        """The Python modules of all classes and functions."""
        self.networks: list[torch.nn.Module] = []

    @classmethod
    def read(cls, step: Step) -> "_StepPickler":
        """Find out what a step consists of."""
        pickler = cls(io.BytesIO())
        pickler.dump(step)
        return pickler

    def reducer_override(self, obj: Any) -> Any:
        """Pickle only the shapes of parameters: a step gets their values as inputs."""
        if isinstance(obj, torch.nn.Module):
            self.networks.append(obj)
        if isinstance(obj, (type, FunctionType)):
            self.modules.add(obj.__module__)
        if isinstance(obj, HostedParams):
            return HostedParams, (obj.layout.shapes, obj.flat.device)
        return NotImplemented


def _compile_elsewhere(step: Step, inputs: Sequence[Tensor], package: Path) -> None:
    """Compile in another process. Ctrl-C does not reach it; an exception here, or the end of this process, kills it."""
    command = isolated_command(f"from {__name__} import main; sys.exit(main(sys.argv[1:]))", [str(package)])
    build = package.parent
    # By default, the compiler's files have predictable names below /tmp, where another user may have put files before.
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(build / "inductor"), "TMPDIR": str(build)}
    order = io.BytesIO()
    _StepPickler(order).dump((step, tuple(inputs), torch.get_num_threads()))
    compiler = subprocess.Popen(
        command,
        cwd=build,
        env=environment,
        start_new_session=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    errors = _order_and_wait(compiler, order.getvalue())
    if compiler.returncode != 0:
        lines = errors.decode(errors="replace").strip().splitlines()
        reason = lines[-1].removeprefix("RuntimeError: ") if lines and compiler.returncode > 0 else None
        raise RuntimeError(reason or describe_exit(compiler.returncode))


def _order_and_wait(compiler: "subprocess.Popen[bytes]", order: bytes) -> bytes:
    """Send the order and return the compiler's stderr; its stdin stays open to show that this process is alive."""
    assert compiler.stdin is not None
    assert compiler.stderr is not None
    with suppress(BrokenPipeError), compiler:  # a compiler that ends before it has read everything tells why on stderr
        try:
            with suppress(BrokenPipeError):
                compiler.stdin.write(order)
                compiler.stdin.flush()
            errors = compiler.stderr.read()
            compiler.wait()
        finally:
            if compiler.poll() is None:
                kill_tree(compiler.pid)  # the C++ compiler too
    return errors


def forget_old(packages: Path) -> None:
    """Remove all but the most recently used packages, and the locks and build folders that no process holds."""
    with suppress(FileNotFoundError):  # another process may remove the same files
        files = sorted(packages.iterdir(), key=os.path.getmtime)
        kept = [path.stem for path in files if path.suffix == _PACKAGE and "." not in path.stem][-KEPT_PACKAGES:]
        for key in {path.name.partition(".")[0] for path in files}:
            wanted = {f"{key}{_PACKAGE}", f"{key}{_LOCK}"} if key in kept else set()
            unwanted = [path for path in files if path.name.partition(".")[0] == key and path.name not in wanted]
            if unwanted:
                _forget(packages / f"{key}{_LOCK}", unwanted, keep_lock=bool(wanted))


def _forget(lock: Path, unwanted: Sequence[Path], *, keep_lock: bool) -> None:
    with _locked(lock, wait=False) as held:
        if not held:
            return
        for path in unwanted:
            _discard(path)
        if not keep_lock:
            lock.unlink(missing_ok=True)


def _end_with_owner() -> None:
    """End this process and its C++ compiler when the process that ordered the compilation is gone."""
    os.read(0, 1)  # returns when no process can write to stdin any more
    kill_tree(os.getpid())


def _compile_here(order: Any, package: Path) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx  # takes a second to import

    step, inputs, num_threads = order
    torch.set_num_threads(num_threads)  # the generated loops are split for this number of threads

    class Graph(torch.nn.Module):
        """The step as a module, which is what the exporter accepts."""

        def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
            """Compute the step."""
            outputs: tuple[Tensor, ...] = step(*given)
            return outputs

    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # the compiler's warnings about its own code
        try:
            exported = torch.export.export(Graph(), inputs, strict=False)
        except Exception:  # it refuses automatic differentiation, but accepts what is traced to plain operations first
            exported = torch.export.export(make_fx(step)(*inputs), inputs, strict=False)
        buffers = [buffer for network in _StepPickler.read(step).networks for buffer in network.buffers()]
        for constant in exported.constants.values():
            if not any(buffer is constant or torch.equal(buffer, constant) for buffer in buffers):
                raise RuntimeError("the loss depends on tensors besides its networks, batch and settings")
        _set_up_compiler(on_cpu=inputs[0].is_cpu)
        torch._inductor.aoti_compile_and_package(exported, package_path=str(package))


def _set_up_compiler(*, on_cpu: bool) -> None:
    config = torch._inductor.config
    config.pattern_matcher = not on_cpu  # it would join products and sums again, and copy every bias
    config.cpp.vec_isa_ok = True  # skips a test of the compiler's vector instructions, which takes 6 s
    if hasattr(config.aot_inductor, "precompile_headers"):  # not in every torch
        config.aot_inductor.precompile_headers = False  # costs 8 s and 300 MB once, and saves 2 s for later packages


def main(arguments: Sequence[str]) -> int:
    """Compile the step that stdin describes; if this fails, print the reason to stderr in one line and return 1."""
    try:
        order = pickle.load(sys.stdin.buffer)
        threading.Thread(target=_end_with_owner, daemon=True).start()
        _compile_here(order, Path(arguments[0]))
    except Exception as error:
        print(describe_error(error), file=sys.stderr)
        return 1
    return 0
