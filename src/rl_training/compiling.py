"""Whether compiling a run's updates pays: the gradient steps it plans against the time that compiling takes here."""

import json
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path

from rl_training.private import open_private, write_private

_SAVED_PER_STEP = 2e-4  # seconds per gradient step, measured on one core
_SAVED_PER_UNIT = 1.5e-8  # seconds per transition and unit of a layer, which fused operations touch less often
_MOST_BYTES = 1_000
_UNKNOWN_SECONDS = 20.0  # what compiling is taken to cost where it has not been seen yet


def compiling_pays(gradient_steps: int, units: int, graphs: int) -> bool:
    """Whether a run gets back the time that compiling took here the last time; later runs of its settings gain all.

    `units` is the size of a batch times that of a layer, `graphs` how many different steps are to be compiled.
    """
    return gradient_steps * (_SAVED_PER_STEP + units * _SAVED_PER_UNIT) > graphs * _seen_seconds()


def remember_compiling(seconds: float) -> None:
    """Keep what compiling took; a directory that cannot be written costs nothing but a worse guess."""
    with suppress(OSError):
        write_private(_memory_path(), json.dumps({"seconds": round(seconds, 2)}).encode())


def _seen_seconds() -> float:
    try:
        with os.fdopen(open_private(_memory_path()), "rb") as file:
            return float(json.loads(file.read(_MOST_BYTES))["seconds"])
    except (OSError, ValueError, KeyError, TypeError):
        return _UNKNOWN_SECONDS


def _memory_path() -> Path:
    return cache_dir() / "compiling.json"


def cache_dir() -> Path:
    """Where this machine keeps what a later run may use again; a user without a home is a `FileNotFoundError`."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        return (given if given.is_absolute() else Path.home() / ".cache") / "rl_training"
    except RuntimeError:
        raise FileNotFoundError("this user has no home directory: set HOME or XDG_CACHE_HOME") from None


def compiler_found() -> bool:
    """Whether there is a C++ compiler, where torch looks for one."""
    default = "clang++" if sys.platform == "darwin" else "g++"
    return shutil.which(os.environ.get("CXX", default)) is not None
