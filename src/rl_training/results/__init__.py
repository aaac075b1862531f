"""Results of finished runs: loading them, statistics over seeds, comparisons, curves, reports and receipts."""

from typing import TYPE_CHECKING

from rl_training._lazy import lazy_attributes

if TYPE_CHECKING:
    from rl_training.results.comparison import Comparison, compare
    from rl_training.results.loading import Run, RunGroup, load_group, load_groups, load_run

__all__ = ["Comparison", "Run", "RunGroup", "compare", "load_group", "load_groups", "load_run"]

__getattr__, __dir__ = lazy_attributes(
    __name__,
    {
        "Comparison": "rl_training.results.comparison",
        "Run": "rl_training.results.loading",
        "RunGroup": "rl_training.results.loading",
        "compare": "rl_training.results.comparison",
        "load_group": "rl_training.results.loading",
        "load_groups": "rl_training.results.loading",
        "load_run": "rl_training.results.loading",
    },
)
