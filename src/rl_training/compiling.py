"""Decide whether compiling the updates of a run saves time, and remember how long compiling takes on this machine."""

import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path

from rl_training.private import read_private_json, write_private_json

_SAVED_PER_STEP = 2e-4  # seconds per gradient step, measured on one core
_SAVED_PER_UNIT = 1.5e-8  # seconds per transition and unit of a layer, saved by fused operations
_DEFAULT_SECONDS = 20.0  # assumed if compiling has not been measured on this machine yet


def compiling_pays(gradient_steps: int, units: int, graphs: int) -> bool:
    """Return whether compiled updates are expected to save more time than the compilation takes.

    `units` is the batch size times the layer size, and `graphs` the number of different steps to compile.
    """
    return gradient_steps * (_SAVED_PER_STEP + units * _SAVED_PER_UNIT) > graphs * _measured_seconds()


def remember_compiling(seconds: float) -> None:
    """Store how long compiling took; if the file cannot be written, later estimates are less precise."""
    with suppress(OSError):
        write_private_json(_memory_path(), {"seconds": round(seconds, 2)})


def _measured_seconds() -> float:
    try:
        return float(read_private_json(_memory_path())["seconds"])
    except (OSError, ValueError, KeyError, TypeError):
        return _DEFAULT_SECONDS


def _memory_path() -> Path:
    return cache_dir() / "compiling.json"


def cache_dir() -> Path:
    """Return the directory of the cache; raise `FileNotFoundError` if the user has no home directory."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        return (given if given.is_absolute() else Path.home() / ".cache") / "rl_training"
    except RuntimeError:
        raise FileNotFoundError("this user has no home directory: set HOME or XDG_CACHE_HOME") from None


def compiler_found() -> bool:
    """Return whether there is a C++ compiler where torch looks for one."""
    default = "clang++" if sys.platform == "darwin" else "g++"
    return shutil.which(os.environ.get("CXX", default)) is not None
