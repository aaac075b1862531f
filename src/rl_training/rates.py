"""The speed of a run over its last half minute, from which the time left is estimated."""

from collections import deque

_WINDOW_SECONDS = 30.0
_SPACING_SECONDS = 1.0


class RecentRate:
    """Env steps per second over the last half minute; over a longer time if the updates are further apart."""

    def __init__(self) -> None:
        self._kept: deque[tuple[float, int]] = deque()
        self._newest = (0.0, 0)

    def add(self, clock: float, step: int) -> None:
        """Add the env step that a run has reached at time `clock`, in seconds."""
        self._newest = (clock, step)
        if not self._kept or clock - self._kept[-1][0] >= _SPACING_SECONDS:
            self._kept.append(self._newest)
        while len(self._kept) > 2 and self._kept[1][0] <= clock - _WINDOW_SECONDS:
            self._kept.popleft()

    @property
    def value(self) -> float:
        """The rate; 0 until there are two updates."""
        if not self._kept:
            return 0.0
        (started_at, first_step), (clock, step) = self._kept[0], self._newest
        return max(step - first_step, 0) / max(clock - started_at, 1e-6)


def format_duration(seconds: float) -> str:
    """Format seconds as `1:02:03` or `2:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
