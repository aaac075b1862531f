"""Memory: check that a run fits into the free memory, and let the C library keep freed blocks."""

import ctypes
import sys
import warnings

import psutil

from rl_training.errors import ConfigError

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # options of mallopt(3), as glibc numbers them


def check_memory(num_bytes: int, remedy: str) -> None:
    """Raise `ConfigError` if `num_bytes` exceed the memory that is free now; warn if they exceed half of all memory."""
    memory, needed = psutil.virtual_memory(), f"{num_bytes // 2**20 / 2**10:,.1f} GiB needed"
    if num_bytes > memory.available:
        raise ConfigError(f"{needed}, {memory.available / 2**30:.1f} GiB free: {remedy}")
    if num_bytes > memory.total / 2:
        total = f"{memory.total / 2**30:.1f} GiB"
        note = f"{needed}, more than half of the {total} of this machine: {remedy}, if that is too much"
        warnings.warn(note, stacklevel=3)


def keep_freed_memory() -> None:
    """Let the C library keep freed blocks, instead of returning them to the system and requesting them in every step.

    Otherwise, activations of some hundred kilobytes are mapped again in every step, with one page fault per 4 KB.
    """
    if sys.platform != "linux":
        return
    library = ctypes.CDLL(None)
    try:
        mallopt = library.mallopt
    except AttributeError:  # a C library without mallopt
        return
    for option, value in ((_MMAP_THRESHOLD, 2**30), (_TRIM_THRESHOLD, 2**30), (_TOP_PAD, 2**24)):
        mallopt(option, value)
