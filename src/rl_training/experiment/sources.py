"""Reading and merging the sources of a config: YAML files, shipped presets and command-line options."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from rl_training.errors import ConfigError, Problem
from rl_training.experiment.config import TrainConfig, env_code
from rl_training.experiment.dialect import YAML_LIMIT, ConfigLoader
from rl_training.experiment.files import read_bytes
from rl_training.experiment.validation import config_error
from rl_training.plugins import split_entry

KeyPath = tuple[str, ...]

PRESETS_DIR = Path(__file__).parents[1] / "presets"

# Sections are merged key by key; any other value is replaced whole.
_SECTIONS = ("algo_kwargs", "env_kwargs", "eval_env_kwargs", "tracker_options")


@dataclass(frozen=True)
class Layer:
    """Config values from one source. If it is a file, `lines` holds the line number of each key."""

    source: str
    values: dict[str, Any]
    file: Path | None = None
    lines: dict[KeyPath, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ResolvedConfig:
    """A valid config, and the source of every value that is not a default."""

    config: TrainConfig
    sources: dict[KeyPath, str]

    @property
    def typed_code(self) -> list[str]:
        """The names of code that were given on the command line: environment, wrappers, encoder and others."""
        config, (env_id, *wrappers) = self.config, env_code(self.config)
        named: dict[KeyPath, list[Any]] = {
            ("env_id",): [env_id],
            ("wrappers",): wrappers,
            ("vectorization",): [config.vectorization],
            ("callbacks",): [split_entry(entry)[0] for entry in config.callbacks],
            ("algo_kwargs", "encoder"): [config.algo_kwargs.get("encoder")],
        }
        return [name for path, names in named.items() if self.sources.get(path) == "flag" for name in names]


def read_yaml(path: Path, source: str = "file") -> Layer:
    """Read a YAML file as a layer. Every error names the file, and the line if it is known."""
    try:
        text = read_bytes(Path(os.path.realpath(path)), YAML_LIMIT).decode()  # a config may be a link
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from None
    try:
        values, lines = _parse(text)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{path}:{line}: {error.problem}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path}:1: expected a map of config keys, got {type(values).__name__}")
    return Layer(source, values, path, lines)


def _parse(text: str) -> tuple[Any, dict[KeyPath, int]]:
    """Return the value of a document and the line of every key and list item. An empty document is `{}`."""
    loader = ConfigLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return {}, {}
        lines = dict(_key_lines(node))
        return loader.construct_document(node), lines
    except RecursionError:
        raise yaml.YAMLError("nested too deeply") from None
    finally:
        loader.dispose()


def _key_lines(node: yaml.Node, above: KeyPath = ()) -> Iterator[tuple[KeyPath, int]]:
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield (*above, str(index)), item.start_mark.line + 1
            yield from _key_lines(item, (*above, str(index)))
    if not isinstance(node, yaml.MappingNode):
        return
    seen: set[str] = set()
    for key, value in node.value:
        name = str(key.value)
        if name in seen:
            raise yaml.MarkedYAMLError(
                problem=f"'{'.'.join((*above, name))}' is given twice", problem_mark=key.start_mark
            )
        seen.add(name)
        yield (*above, name), key.start_mark.line + 1
        yield from _key_lines(value, (*above, name))


def read_assignments(assignments: Sequence[str], option: str = "--set") -> Layer:
    """Read `key=value` arguments of an option as a layer. Values are read as YAML, so `1e-3` is a number."""
    values: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        keys = name.strip().split(".")
        if not equals or not all(keys):
            raise ConfigError(f"{option} {assignment}: give key=value, such as algo_kwargs.learning_rate=1e-3")
        value = read_value(text, f"{option} {assignment}")
        target = values
        for key in keys[:-1]:
            target = target.setdefault(key, {})
            if not isinstance(target, dict):
                raise ConfigError(f"{option} {assignment}: '{key}' already has a plain value")
        target[keys[-1]] = value
    return Layer("flag", values)


def read_value(text: str, option: str) -> Any:
    """Read the value of a command-line option as YAML; errors start with `option`."""
    try:
        return _parse(text)[0] if text.strip() else None
    except yaml.YAMLError as error:
        reason = error.problem if isinstance(error, yaml.MarkedYAMLError) else error
        raise ConfigError(f"{option}: the value cannot be read ({reason})") from None


def find_preset(algo: str, env_id: str) -> Path | None:
    """Return the shipped preset for this algorithm and environment, if there is one."""
    for path in sorted((PRESETS_DIR / algo).glob("*.yaml")):
        if read_yaml(path).values.get("env_id") == env_id:
            return path
    return None


def resolve_config(layers: Iterable[Layer]) -> ResolvedConfig:
    """Merge the layers and validate the result. Later layers override earlier ones."""
    stack = list(layers)
    values: dict[str, Any] = {}
    sources: dict[KeyPath, str] = {}
    try:
        for layer in stack:
            for path, value in _settings(layer.values):
                _assign(values, path, value)
                sources[path] = layer.source
        return ResolvedConfig(TrainConfig(**values), sources)
    except ConfigError as error:
        raise located(error, stack) from None


def _settings(values: dict[str, Any]) -> Iterator[tuple[KeyPath, Any]]:
    for key, value in values.items():
        if key in _SECTIONS and isinstance(value, dict):
            yield from (((key, str(name)), inner) for name, inner in value.items())
        else:
            yield (str(key),), value


def _assign(values: dict[str, Any], path: KeyPath, value: Any) -> None:
    if len(path) == 1:
        values[path[0]] = value
        return
    section = values.setdefault(path[0], {})
    if not isinstance(section, dict):
        raise config_error([Problem(path[:1], f"{path[0]}={section!r}: give a map of names to values")])
    section[path[1]] = value


def located(error: ConfigError, layers: Sequence[Layer]) -> ConfigError:
    """Return the error with file and line in front of every problem whose value comes from a file."""
    problems = [Problem(problem.path, _place(problem.path, layers) + problem.text) for problem in error.problems]
    if not problems:
        return error
    return ConfigError("; ".join(problem.text for problem in problems), problems)


def _place(path: KeyPath, layers: Sequence[Layer]) -> str:
    for layer in reversed(layers):
        given = {where for where, _ in _settings(layer.values)}
        if path[:1] in given or path[:2] in given:
            line = layer.lines.get(path) or layer.lines.get(path[:2]) or layer.lines.get(path[:1])
            return f"{layer.file}:{line}: " if line else ""
    within = [layer for layer in layers if path[0] in layer.values]  # the problem is about a whole section
    return f"{within[-1].file}:{within[-1].lines[path]}: " if within and path in within[-1].lines else ""
