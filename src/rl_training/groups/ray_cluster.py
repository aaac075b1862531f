"""A Ray cluster as the place of whole runs: connecting to it, and checking every node before runs go there."""

import secrets
import shutil
import tempfile
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

from rl_training.errors import ConfigError, RunDirectoryError, describe_error
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.records import PlaceName
from rl_training.groups.executor import Executor
from rl_training.groups.ray_executor import RayExecutor
from rl_training.groups.run_actor import DRIVER_FILE, check_node, node_versions
from rl_training.runtime.ray_connection import RayConnection, connect

_CHECK_SECONDS = 120.0
_REFRESH_SECONDS = 1.0


class NodeChecks:
    """Checks whether nodes see the directory of the runs, and have the same versions as this machine."""

    def __init__(self, ray: Any, directory: Path) -> None:
        self._ray, self._directory = ray, directory
        self._made = [path for path in (directory, *directory.parents) if not path.exists()]
        self._content, self._versions = secrets.token_hex(16), node_versions()
        self._answers: dict[Any, str] = {}
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._folder = Path(tempfile.mkdtemp(prefix=".check-", dir=directory))
            (self._folder / DRIVER_FILE).write_text(self._content)
        except OSError as error:
            raise RunDirectoryError(f"output directory {directory} cannot be used: {error.strerror}") from None

    def ask(self, node_id: str) -> None:
        """Start the check of a node."""
        strategy = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node_id, soft=False)
        check = self._ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=strategy)(check_node)
        self._answers[check.remote(self._folder, self._content, self._versions, node_id)] = node_id

    def receive(self, seconds: float) -> dict[str, str | None]:
        """Wait for answers for up to `seconds`; return what is wrong with each node that has answered."""
        references = list(self._answers)
        ready, _ = self._ray.wait(references, num_returns=len(references), timeout=seconds)
        return {node_id: self._read(node_id, each) for each in ready if (node_id := self._answers.pop(each))}

    def _read(self, node_id: str, reference: Any) -> str | None:
        try:
            problem: str | None = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            return f"cannot train runs ({describe_error(error)})"
        with suppress(OSError):
            if problem is not None or (self._folder / node_id).read_text() == self._content:
                return problem
        return f"writes files into {self._directory} that the driver does not see"

    @property
    def waits_for(self) -> list[str]:
        """The nodes that have not answered yet."""
        return list(self._answers.values())

    def close(self) -> None:
        """Remove the files of the checks, and directories that did not exist before."""
        shutil.rmtree(self._folder, ignore_errors=True)
        for path in self._made:
            with suppress(OSError):  # it is in use by now
                path.rmdir()


class RayCluster:
    """The nodes of a Ray cluster that may train runs. Nodes that join later are checked before runs go there."""

    name: PlaceName = "ray"

    def __init__(self, address: str, config: TrainConfig) -> None:
        self.cpus = 1 if config.num_threads == "auto" else config.num_threads
        self._address, self._collects_on = address, config.collect_on
        self._directory: Path | None = None
        self._ray: Any = None
        self._owns_ray = False
        self._connection: RayConnection | None = None
        self._alive: dict[str, dict[str, Any]] = {}
        self._addresses: dict[str, str] = {}
        self._problems: dict[str, str | None] = {}
        self._checks: NodeChecks | None = None
        self._refreshed_at = 0.0

    def check(self, directory: Path) -> None:
        """Connect to the cluster, and refuse it if one of its nodes cannot train runs in this directory."""
        if self._collects_on == "ray":
            raise ConfigError("collect_on=ray: a run on Ray cannot have collectors on Ray; set collect_on=processes")
        if self._ray is None:
            self._ray, self._owns_ray = connect(self._address)
            self._connection = RayConnection(self._ray)
            self._connection.open()
        if self._directory is None or not directory.is_relative_to(self._directory):
            self._directory, self._problems = directory, {}
        self._read_nodes()
        self._check_new_nodes(_CHECK_SECONDS)
        if self._checks is not None:
            late = self._describe(self._checks.waits_for[0])
            self._close_checks()
            raise ConfigError(f"{late} did not answer within {_CHECK_SECONDS:g} s: remove it from the Ray cluster")
        unfit = [(node_id, problem) for node_id, problem in self._problems.items() if problem is not None]
        if unfit:
            raise ConfigError(f"{self._describe(unfit[0][0])} {unfit[0][1]}")
        if self.capacity < 1:
            raise ConfigError(
                f"num_threads={self.cpus}: no node of the Ray cluster has {self.cpus} CPUs; lower it, or add a node"
            )

    def make_executor(self) -> Executor:
        """Return an executor that trains each run in an actor of its own."""
        return RayExecutor(self._ray, self)

    def refresh(self) -> None:
        """Look for nodes that have joined or gone, and read the answers of nodes that are being checked.

        Raise `ClusterError` if the cluster itself is lost.
        """
        assert self._connection is not None
        self._connection.check()
        if time.monotonic() - self._refreshed_at >= _REFRESH_SECONDS:
            self._refreshed_at = time.monotonic()
            self._read_nodes()
            for node_id, problem in self._check_new_nodes(0.0).items():
                if problem is not None and node_id in self._alive:
                    warnings.warn(f"{self._describe(node_id)} {problem}: no run is trained there", stacklevel=2)

    def _read_nodes(self) -> None:
        assert self._connection is not None
        nodes = {node["NodeID"]: node for node in self._connection.ask_head(self._ray.nodes)}
        self._addresses = {node_id: node["NodeManagerAddress"] for node_id, node in nodes.items()}
        self._alive = {node_id: node for node_id, node in nodes.items() if node["Alive"]}

    def _check_new_nodes(self, seconds: float) -> dict[str, str | None]:
        """Check the nodes that are not known yet; return what is wrong with those that answer within these seconds."""
        assert self._directory is not None
        asked = [] if self._checks is None else self._checks.waits_for
        new = [node_id for node_id in self._alive if node_id not in self._problems and node_id not in asked]
        if new and self._checks is None:
            self._checks = NodeChecks(self._ray, self._directory)
        if self._checks is None:
            return {}
        for node_id in new:
            self._checks.ask(node_id)
        found = self._checks.receive(seconds)
        self._problems |= found
        if not self._checks.waits_for:
            self._close_checks()
        return found

    def _close_checks(self) -> None:
        if self._checks is not None:
            self._checks.close()
            self._checks = None

    @property
    def fit_nodes(self) -> frozenset[str]:
        """The ids of the nodes that may train runs: alive, checked, and with enough CPUs."""
        checked = [node_id for node_id, problem in self._problems.items() if problem is None]
        return frozenset(node_id for node_id in checked if self._places_on(node_id))

    @property
    def capacity(self) -> int:
        """The number of runs that the fit nodes have CPUs for."""
        return sum(self._places_on(node_id) for node_id in self.fit_nodes)

    def _places_on(self, node_id: str) -> int:
        node = self._alive.get(node_id)
        return 0 if node is None else int(node["Resources"].get("CPU", 0.0) // self.cpus)

    def _describe(self, node_id: str) -> str:
        return f"Ray node {node_id[:12]} ({self._addresses.get(node_id, 'gone')})"

    def describe_loss(self, node_id: str) -> str:
        """Describe the loss of a run's actor on this node, whether or not the node is lost too."""
        return f"it was lost on {self._describe(node_id)}"

    def close(self) -> None:
        """Stop watching the cluster, and shut Ray down if this object has started it or connected to it."""
        self._close_checks()
        if self._connection is not None:
            self._connection.close(shut_down=self._owns_ray)
            self._owns_ray = False
