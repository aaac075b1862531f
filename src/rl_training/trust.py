"""The command line imports a module of the working directory only if the user typed its name or trusted it.

An env id such as `my_module:MyEnv-v0` imports a module. A module that Python finds outside of the working directory is
imported as usual. These rules do not apply to the Python API, where the caller controls `sys.path`.
"""

import importlib.util
import os
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from importlib.machinery import PathFinder
from pathlib import Path

from rl_training.errors import UntrustedModuleError
from rl_training.private import read_private_json, write_private_json


class ModuleGate:
    """The rules for one command: which modules of the working directory it may import."""

    def __init__(self, source: Path | None, typed: Collection[str], *, trust: bool) -> None:
        self._source = source
        self._typed = typed
        self._trust = trust
        self._directory = ""  # the directory that was added to `sys.path`

    def admit(self, name: str, what: str) -> None:
        """Make the module of `name`, such as `my_module:MyEnv-v0`, importable, or raise `UntrustedModuleError`."""
        module, colon, _ = name.partition(":")
        file = self._find_here(module.partition(".")[0]) if colon else None
        if file is None:
            return
        if not (self._trust or name in self._typed or str(file) in _trusted_files()):
            raise UntrustedModuleError(
                f"{self._source} names the {what} {name}, whose module exists only in the working directory "
                f"({file}): read that code, then add --trust to run it"
            )
        _remember(file)
        if not self._directory:
            self._directory = str(Path.cwd())
            sys.path.append(self._directory)

    def _find_here(self, name: str) -> Path | None:
        """Return the file of a module that exists only in the working directory, or None."""
        if not name or name in sys.modules:
            return None
        if self._directory:
            sys.path.remove(self._directory)
        try:
            if importlib.util.find_spec(name) is not None:
                return None
        finally:
            if self._directory:
                sys.path.append(self._directory)
        spec = PathFinder.find_spec(name, [str(Path.cwd())])
        if spec is None:
            return None
        return Path(spec.origin or next(iter(spec.submodule_search_locations or [name]))).absolute()


_gates: list[ModuleGate] = []  # the last one applies; empty outside of the command line


@contextmanager
def guarded_imports(source: Path | None, typed: Collection[str] = (), *, trust: bool = False) -> Iterator[None]:
    """Inside the block, import modules of the working directory only if they were typed or trusted.

    `typed` contains the names of code that the user typed, such as an env id. All other names come from `source`, a
    file or directory.
    """
    _gates.append(ModuleGate(source, typed, trust=trust))
    try:
        yield
    finally:
        _gates.pop()


def admit_env_module(name: str, what: str = "environment") -> None:
    """Make the module of `name` importable, or raise `UntrustedModuleError`; do nothing outside `guarded_imports`."""
    if _gates:
        _gates[-1].admit(name, what)


def _list_path() -> Path | None:
    """Return the file that lists the trusted modules, or None if the user has no home directory."""
    state = os.environ.get("XDG_STATE_HOME", "")
    try:
        home = Path(state) if Path(state).is_absolute() else Path.home() / ".local" / "state"
    except RuntimeError:
        return None
    return home / "rl_training" / "trusted_modules.json"


def _trusted_files() -> list[str]:
    path = _list_path()
    if path is None:
        return []
    try:
        known = read_private_json(path)
    except (OSError, ValueError):  # missing, damaged, or not private
        return []
    return [name for name in known if isinstance(name, str)] if isinstance(known, list) else []


def _remember(file: Path) -> None:
    """Add a file to the trusted modules; if the list cannot be written, the user must use `--trust` again."""
    path, known = _list_path(), _trusted_files()
    if path is None or str(file) in known:
        return
    with suppress(OSError):
        write_private_json(path, [*known, str(file)])
