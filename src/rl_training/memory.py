"""Memory that will be needed against memory that is free, before anything is allocated."""

import psutil

from rl_training.errors import ConfigError


def check_memory(num_bytes: int, remedy: str) -> None:
    """Refuse what does not fit into the memory that is free now."""
    free = psutil.virtual_memory().available
    if num_bytes > free:
        raise ConfigError(f"{num_bytes / 2**30:,.1f} GiB needed, {free / 2**30:.1f} GiB free: {remedy}")
