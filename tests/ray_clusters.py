"""Ray clusters on this machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil

_SYSTEM = {
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 500,
    "health_check_failure_threshold": 3,
    "worker_niceness": 0,  # with the default of 15, actors hardly start on a busy machine
    "prestart_worker_first_driver": False,  # an idle process per CPU, which takes the time of the actors
}
_STORE = {"object_store_memory": 100 * 2**20}


def start_cluster(cpus: int, **options: Any) -> Any:
    """Start a cluster that consists of its head."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": cpus, "include_dashboard": False, "_system_config": _SYSTEM, **_STORE, **options}
    return Cluster(initialize_head=True, head_node_args=head)


@contextmanager
def three_nodes(*, head_cpus: int, node_cpus: int, **head_options: Any) -> Iterator[Any]:
    """Start a cluster with a head and two more nodes, and shut it down."""
    made = start_cluster(head_cpus, **head_options)
    for _ in range(2):
        add_node(made, node_cpus)
    yield made
    made.shutdown()
    left = psutil.Process().children(recursive=True)
    assert not [each for each in left if each.name().startswith(("ray", "gcs_server"))]


def add_node(cluster: Any, cpus: int, **options: Any) -> Any:
    """Add a node, and wait until it is alive."""
    return cluster.add_node(num_cpus=cpus, **_STORE, **options)
