"""Facts about runs that a report lists: times, config differences, versions and machine, and commands to rerun."""

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import yaml

from rl_training.experiment.config import config_differences
from rl_training.experiment.dialect import ConfigDumper
from rl_training.experiment.groups import GROUP_FILE, format_seeds
from rl_training.experiment.runs import CONFIG_FILE
from rl_training.results.loading import Run, RunGroup

_PARTS = ("collect", "update", "evaluate")
_NOT_SETTINGS = ("seed", "output_dir")  # they differ between runs by design, and the table of runs shows them


@dataclass(frozen=True)
class TimeShare:
    """The time that one part of the work took, summed over all runs of a group."""

    name: str
    seconds: float
    share: float


@dataclass(frozen=True)
class Difference:
    """A setting that is not the same in all runs. `values` holds the distinct values of each group."""

    name: str
    values: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Fact:
    """A fact about versions or machine, such as the version of torch."""

    name: str
    values: tuple[tuple[str, str], ...]
    """Each value with a description of its runs, which is empty if all runs have the same value."""


def wall_seconds(run: Run) -> float | None:
    """Return the wall time of the run. A killed run has not recorded one, so the sum of its parts is used."""
    recorded = float(run.metadata.get("wall_seconds") or 0.0)
    return max(recorded, sum(_part_seconds(run).values())) or None


def steps_per_second(run: Run) -> float | None:
    """Return env steps per second of wall time, evaluations included. A fork counts only its own steps."""
    seconds = wall_seconds(run)
    taken = run.global_step - int((run.metadata.get("parent") or {}).get("step", 0))
    return taken / seconds if seconds else None


def time_shares(runs: Iterable[Run]) -> list[TimeShare]:
    """Return how the wall time of all runs divides into parts; empty if it was not logged."""
    totals = dict.fromkeys((*_PARTS, "other"), 0.0)
    for run in runs:
        parts = _part_seconds(run)
        if not parts:
            continue
        totals["other"] += (wall_seconds(run) or 0.0) - sum(parts.values())
        for name, seconds in parts.items():
            totals[name] += seconds
    whole = sum(totals.values())
    return [TimeShare(name, seconds, seconds / whole) for name, seconds in totals.items()] if whole else []


def _part_seconds(run: Run) -> dict[str, float]:
    """Return the time of each part, from the newest line, which holds the sums so far."""
    newest: dict[str, Any] = next((row for row in reversed(run.rows) if f"time/{_PARTS[0]}_seconds" in row), {})
    return {name: float(newest.get(f"time/{name}_seconds") or 0.0) for name in _PARTS if newest}


def differing_settings(groups: Sequence[RunGroup]) -> list[Difference]:
    """Return every setting that is not the same in all runs, by its dotted name."""
    runs = [run for group in groups for run in group.runs]
    names = {name for run in runs for name in config_differences(runs[0].config, run.config)}
    return [
        Difference(name, tuple(_distinct(_setting(run.config, name) for run in group.runs) for group in groups))
        for name in sorted(names - set(_NOT_SETTINGS))
    ]


def _setting(config: Any, dotted: str) -> str:
    """Return a value as JSON, or a dash if the config does not have it."""
    for name in dotted.split("."):
        if not isinstance(config, dict) or name not in config:
            return "-"
        config = config[name]
    return json.dumps(config)


def _distinct(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))


def yaml_text(values: dict[str, Any]) -> str:
    """Return a config, or a search space, as YAML."""
    return yaml.dump(values, Dumper=ConfigDumper, sort_keys=False)


def machine_facts(origins: Iterable[tuple[str, Mapping[str, Any]]]) -> list[Fact]:
    """Return versions, commit and machine, as runs or studies recorded them; each origin is a name and a record."""
    described = [(name, _origin_facts(recorded)) for name, recorded in origins]
    names = _distinct(name for _, facts in described for name in facts)
    return [Fact(name, _holders_by_value(name, described)) for name in names]


def _origin_facts(recorded: Mapping[str, Any]) -> dict[str, str]:
    versions, host = recorded.get("versions") or {}, recorded.get("host") or {}
    facts = {
        **{name.replace("_", "-"): value for name, value in versions.items()},
        "git commit": recorded.get("git_commit"),
        "host": host.get("name"),
        "platform": host.get("platform"),
        "CPU": host.get("cpu"),
        "CPU cores": host.get("cpus"),
    }
    return {name: str(value) for name, value in facts.items() if value is not None}


def _holders_by_value(name: str, described: Sequence[tuple[str, dict[str, str]]]) -> tuple[tuple[str, str], ...]:
    holders: dict[str, list[str]] = {}
    for holder, facts in described:
        holders.setdefault(facts.get(name, "unknown"), []).append(holder)
    if len(holders) == 1:
        return ((next(iter(holders)), ""),)
    return tuple((value, _describe_runs(places)) for value, places in holders.items())


def _describe_runs(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} runs, {names[0]} first"


def rerun_commands(group: RunGroup) -> list[str]:
    """Return the commands that train the group again, one for all runs that differ only in their seed."""
    alike: list[list[Run]] = []
    for run in group.runs:
        for runs in alike:
            differing = set(config_differences(runs[0].config, run.config))
            if "seed" in differing and differing <= set(_NOT_SETTINGS):
                runs.append(run)
                break
        else:
            alike.append([run])
    return [_rerun_command(runs) for runs in alike]


def _rerun_command(runs: Sequence[Run]) -> str:
    seeds, run_dir = [run.seed for run in runs], runs[0].run_dir
    chosen = ["--seed", str(seeds[0])] if len(seeds) == 1 else ["--seeds", format_seeds(seeds)]
    # The `output_dir` in the config of such a run is the group directory; a new group belongs beside it.
    is_in_group = (run_dir.parent / GROUP_FILE).exists()
    place = ["--output-dir", str(run_dir.parent.parent)] if is_in_group else []
    return shlex.join(["rl-training", "train", "--config", str(run_dir / CONFIG_FILE), *chosen, *place])


def original_command(recorded: Iterable[Any] | None) -> str:
    """Return a recorded command as a user would type it."""
    arguments = [str(argument) for argument in recorded or ()]
    if not arguments:
        return "unknown"
    program = PurePath(arguments[0])
    if program.name == "__main__.py":
        return shlex.join(["python", "-m", program.parent.name, *arguments[1:]])
    return shlex.join([program.name, *arguments[1:]] if program.suffix != ".py" else ["python", *arguments])
