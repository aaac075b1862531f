"""Module attributes imported on first use, so that packages can offer names without paying for them.

`python -m rl_training` imports this while the working directory is first on its path. So it imports no module that
Python has not imported by then.
"""

from importlib import import_module

TYPE_CHECKING = False  # typing's own would have to be imported
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def lazy_attributes(package: str, homes: "Mapping[str, str]") -> "Callable[[str], Any]":
    """A module `__getattr__` for `package` that fetches each name from the module `homes` gives for it."""

    def __getattr__(name: str) -> "Any":  # noqa: N807  (it becomes the module's hook)
        if name in homes:
            return getattr(import_module(homes[name]), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return __getattr__
