"""Module attributes that are imported on first use, so that importing a package stays fast.

`python -m rl_training` imports this module while the working directory is still first on the path. Therefore, this
module imports only modules that Python has already imported at that point.
"""

import sys
from importlib import import_module

TYPE_CHECKING = False  # type checkers treat this name like `typing.TYPE_CHECKING`, without an import of `typing`
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def lazy_attributes(
    package: str, modules: "Mapping[str, str]"
) -> "tuple[Callable[[str], Any], Callable[[], list[str]]]":
    """Return a `__getattr__` for `package` that imports each name from its module in `modules`, and a `__dir__`."""

    def __getattr__(name: str) -> "Any":  # noqa: N807  (it becomes the module's hook)
        if name in modules:
            return getattr(import_module(modules[name]), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def __dir__() -> "list[str]":  # noqa: N807  (tab completion asks it for names)
        return sorted({*vars(sys.modules[package]), *modules})

    return __getattr__, __dir__
