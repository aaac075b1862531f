"""Which modules of the working directory the command line imports: those that the user typed or trusted.

An env id such as `my_module:MyEnv-v0` imports a module. A module that Python finds without the working directory is
imported as usual. From Python, nothing here applies: the caller decides what `sys.path` holds.
"""

import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path

from rl_training.errors import UntrustedModuleError
from rl_training.private import open_private, write_private

_MOST_BYTES = 2**20


class ModuleGate:
    """Decides about the modules of the working directory for one command."""

    def __init__(self, source: Path | None, typed: str | None, *, trust: bool) -> None:
        self._source = source
        self._typed = typed
        self._trust = trust
        self._directory = ""  # that was added to `sys.path`

    def admit(self, name: str, what: str) -> None:
        """Let Python find the module in `name`, such as `my_module:MyEnv-v0`, or raise `UntrustedModuleError`."""
        module, colon, _ = name.partition(":")
        file = self._find_here(module.partition(".")[0]) if colon else None
        if file is None:
            return
        if not (self._trust or name == self._typed or str(file) in _remembered()):
            raise UntrustedModuleError(
                f"{self._source} asks for the {what} {name}, whose module only the working directory has "
                f"({file}): look at that code, then add --trust to run it"
            )
        _remember(file)
        if not self._directory:
            self._directory = str(Path.cwd())
            sys.path.append(self._directory)

    def _find_here(self, name: str) -> Path | None:
        """Find a module that the working directory has and that nothing else has."""
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


_gates: list[ModuleGate] = []  # the newest is in force; none outside of the command line


@contextmanager
def guarded_imports(source: Path | None, typed: str | None = None, *, trust: bool = False) -> Iterator[None]:
    """Import from the working directory only what may run: the env id that was `typed`, or what is trusted.

    `source` is the file or the directory that names all other env ids.
    """
    _gates.append(ModuleGate(source, typed, trust=trust))
    try:
        yield
    finally:
        _gates.pop()


def admit_env_module(name: str, what: str = "environment") -> None:
    """Make sure that the module in `name` may be imported, if the command line guards imports."""
    if _gates:
        _gates[-1].admit(name, what)


def _memory_path() -> Path | None:
    """The file that lists trusted modules; none for a user without a home."""
    state = os.environ.get("XDG_STATE_HOME", "")
    try:
        home = Path(state) if Path(state).is_absolute() else Path.home() / ".local" / "state"
    except RuntimeError:
        return None
    return home / "rl_training" / "trusted_modules.json"


def _remembered() -> list[str]:
    path = _memory_path()
    if path is None:
        return []
    try:
        with os.fdopen(open_private(path), "rb") as file:
            known = json.loads(file.read(_MOST_BYTES))
    except (OSError, ValueError, RecursionError):  # none yet, damaged, or not private
        return []
    return [name for name in known if isinstance(name, str)] if isinstance(known, list) else []


def _remember(file: Path) -> None:
    """Trust a module from now on; where that cannot be written, the user is asked again."""
    path, known = _memory_path(), _remembered()
    if path is None or str(file) in known:
        return
    try:
        write_private(path, json.dumps([*known, str(file)], indent=1).encode())
    except OSError:
        return
