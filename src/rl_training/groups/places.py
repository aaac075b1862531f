"""The places where the runs of groups and studies are trained: this machine, or a Ray cluster."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.records import PlaceName
from rl_training.groups.executor import Executor
from rl_training.groups.process_executor import ProcessExecutor
from rl_training.groups.ray_cluster import RayCluster


class Place(Protocol):
    """A place where runs are trained."""

    name: PlaceName

    def check(self, directory: Path) -> None:
        """Raise an error if runs cannot be trained in this directory."""

    def make_executor(self) -> Executor:
        """Return an executor, after the check."""


class Here:
    """This machine."""

    name: PlaceName = "here"

    def check(self, directory: Path) -> None:
        """Accept every directory."""

    def make_executor(self) -> Executor:
        """Return an executor that trains each run in a process of its own."""
        return ProcessExecutor()


def place_name(on: str) -> PlaceName:
    """Return the name of the place that `here`, `ray` or `ray=ADDRESS` means."""
    if on == "here":
        return "here"
    if on == "ray" or (on.startswith("ray=") and len(on) > len("ray=")):
        return "ray"
    raise ConfigError(f"on={on}: give here, ray, or ray=ADDRESS, such as ray=auto or ray=HOST:6379")


def describe_jobs(jobs: int, on: PlaceName) -> str:
    """Describe how many runs are trained at the same time."""
    return f"{jobs} at a time" if on == "here" else f"at most {jobs} at a time on Ray"


@contextmanager
def open_place(on: str, config: TrainConfig) -> Iterator[Place]:
    """Open the place that `here`, `ray` or `ray=ADDRESS` means; `ray` alone uses the config's `ray_address`."""
    if place_name(on) == "here":
        yield Here()
        return
    cluster = RayCluster(on.partition("=")[2] or config.ray_address, config)
    try:
        yield cluster
    finally:
        cluster.close()
