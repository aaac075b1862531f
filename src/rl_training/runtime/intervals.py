"""Intervals in env steps, so that they mean the same for any number of envs."""


def crosses(interval: int, before: int, after: int) -> bool:
    """Whether a multiple of `interval` lies in (before, after]; an interval of 0 never comes round."""
    return interval > 0 and after // interval > before // interval
