"""Versions of packages, and digests of source code that may change without a new version."""

import hashlib
import importlib.metadata
import sys
from collections.abc import Iterable
from pathlib import Path

_INSTALLED = ("site-packages", "dist-packages")
_DIGEST_LENGTH = 12


def package_versions(names: Iterable[str]) -> dict[str, str]:
    """Return the versions of imported top-level packages, by name.

    The source of a package outside of `site-packages`, such as a user's own file or a development install, may change
    without a new version. The result also contains a digest of such source.
    """
    found: dict[str, str] = {}
    for name in sorted(names):
        version, source = _version(name), _source_digest(name)
        if version is not None:
            found[name] = version
        if source is not None:
            found[f"{name} source"] = source
    return found


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        version = getattr(sys.modules.get(name), "__version__", None)
        return None if version is None else str(version)


def _source_digest(name: str) -> str | None:
    """Return a digest of the Python files of a package, or None if it is installed."""
    location = getattr(sys.modules.get(name), "__file__", None)
    if location is None or not set(_INSTALLED).isdisjoint(Path(location).parts):
        return None
    path = Path(location)
    summary = hashlib.sha256()
    for file in sorted(path.parent.rglob("*.py")) if path.name == "__init__.py" else [path]:
        summary.update(file.read_bytes())
    return summary.hexdigest()[:_DIGEST_LENGTH]
