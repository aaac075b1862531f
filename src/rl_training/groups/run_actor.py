"""Code for the nodes of a Ray cluster: the check of a node, and an actor that watches over the process of a run.

Nothing here imports torch, which only the processes of the runs need.
"""

import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from multiprocessing import spawn
from pathlib import Path

from rl_training.groups.jobs import Outcome, PackedJob, ProgressUpdate
from rl_training.groups.process_executor import ProcessExecutor
from rl_training.interpreters import module_places
from rl_training.provenance import package_versions

DRIVER_FILE = "driver"
"""The file by which a node finds out whether it sees the same folder as the driver."""
SILENCE_SECONDS = 60.0
"""How long the driver and an actor wait for each other."""
_POLL_SECONDS = 1.0
_PACKAGES = ("rl_training", "torch", "numpy", "gymnasium")


def node_versions() -> dict[str, str]:
    """Return the versions that must be the same on all nodes, because they affect the weights."""
    return {"python": platform.python_version(), **package_versions(_PACKAGES)}


def check_node(folder: Path, content: str, expected: Mapping[str, str], node_id: str) -> str | None:
    """Return why runs of the driver cannot be trained on this node; None if they can.

    `folder` is in the driver's output directory. The node reads the driver's file there, and writes one of its own.
    """
    try:
        found = (folder / DRIVER_FILE).read_text()
        (folder / node_id).write_text(content)
    except OSError as error:
        return f"does not share {folder.parent} with the driver ({error.strerror})"
    if found != content:
        return f"sees a different directory at {folder.parent} than the driver"
    for name, version in node_versions().items():
        if expected.get(name) != version:
            return f"has {name} {version}, and the driver has {expected.get(name)}"
    return None


@dataclass(frozen=True)
class Surroundings:
    """The properties of the driver that the processes of runs adopt, as if the driver itself had started them."""

    directory: str
    places: tuple[str, ...]
    """The directories in which modules are found."""
    command: tuple[str, ...]
    main_name: str | None
    """The name of the driver's main module, if it was started with `python -m`."""
    main_path: str | None
    """The path of the driver's script."""

    @classmethod
    def of_this_process(cls) -> "Surroundings":
        """Return the surroundings of this process."""
        main = spawn.get_preparation_data("run")
        name, path = main.get("init_main_from_name"), main.get("init_main_from_path")
        return cls(str(Path.cwd()), tuple(module_places()), tuple(sys.argv), name, path)

    def take_over(self) -> None:
        """Adopt these properties, so that processes started here find the same modules and script as on the driver.

        A directory or script that does not exist on this machine is left out.
        """
        sys.path += [place for place in self.places if place not in sys.path]
        sys.argv[:] = self.command
        with suppress(OSError):
            os.chdir(self.directory)
        main = sys.modules["__main__"]
        main.__spec__ = None if self.main_name is None else ModuleSpec(self.main_name, None)
        main.__file__ = self.main_path if self.main_path is not None and Path(self.main_path).exists() else None


class RunActor:
    """Trains one run at a time, in a process like those on the driver's machine.

    If the driver is silent for too long, the run saves its state and ends: this node may be cut off, and the run may
    continue elsewhere. If the actor itself is killed, the process of the run notices it and does the same.
    """

    def __init__(self, surroundings: Surroundings) -> None:
        surroundings.take_over()
        self._processes = ProcessExecutor()
        self._asked_at = time.monotonic()
        threading.Thread(target=self._end_if_forgotten, daemon=True).start()

    def node_id(self) -> str:
        """Return the id of the node; the answer comes once Ray has placed the actor on a node."""
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def start(self, job: PackedJob) -> None:
        """Start the process of a run."""
        self._asked_at = time.monotonic()
        self._processes.start_packed(job)

    def poll(self) -> list[ProgressUpdate | Outcome]:
        """Wait for a second and return the newest progress of the run; if the run ends, return its outcome at once."""
        self._asked_at = time.monotonic()
        latest: dict[type, ProgressUpdate | Outcome] = {}
        while Outcome not in latest and (left := self._asked_at + _POLL_SECONDS - time.monotonic()) > 0.0:
            latest |= {type(event): event for _, event in self._processes.poll(left)}
        return list(latest.values())

    def stop(self, number: int) -> None:
        """Send a stop signal to the process of the run."""
        self._processes.stop(number)

    def kill(self) -> None:
        """Kill the process of the run."""
        self._processes.kill()

    def _end_if_forgotten(self) -> None:
        while True:
            time.sleep(_POLL_SECONDS)
            silence = time.monotonic() - self._asked_at
            if silence > 2.0 * SILENCE_SECONDS:
                self._processes.kill()
            elif silence > SILENCE_SECONDS:
                self._processes.stop(signal.SIGTERM)
