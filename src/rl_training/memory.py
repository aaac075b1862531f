"""Memory: check that a run fits into the free memory, and let the C library keep freed blocks."""

import ctypes
import sys

import psutil

from rl_training.errors import ConfigError

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # options of mallopt(3), as glibc numbers them


def check_memory(num_bytes: int, remedy: str) -> None:
    """Raise `ConfigError` if `num_bytes` do not fit into the memory that is free now."""
    free = psutil.virtual_memory().available
    if num_bytes > free:
        raise ConfigError(f"{num_bytes // 2**20 / 2**10:,.1f} GiB needed, {free / 2**30:.1f} GiB free: {remedy}")


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
