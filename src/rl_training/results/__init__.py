"""What runs amount to: read from their directories, summed up over seeds, compared and drawn. Nothing here trains."""

from typing import TYPE_CHECKING

from rl_training._lazy import lazy_attributes

if TYPE_CHECKING:
    from rl_training.results.loading import Run, RunGroup, load_group, load_groups, load_run

__all__ = ["Run", "RunGroup", "load_group", "load_groups", "load_run"]

__getattr__ = lazy_attributes(__name__, dict.fromkeys(__all__, "rl_training.results.loading"))
