"""Ray clusters of three nodes on this machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil

_HEALTH = {"health_check_period_ms": 500, "health_check_timeout_ms": 500, "health_check_failure_threshold": 3}
_STORE = {"object_store_memory": 100 * 2**20}


@contextmanager
def three_nodes(*, head_cpus: int, node_cpus: int) -> Iterator[Any]:
    """Start a cluster with a head and two more nodes, and shut it down."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": head_cpus, "include_dashboard": False, "_system_config": _HEALTH, **_STORE}
    made = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(2):
        add_node(made, node_cpus)
    yield made
    made.shutdown()
    left = psutil.Process().children(recursive=True)
    assert not [each for each in left if each.name().startswith(("ray", "gcs_server"))]


def add_node(cluster: Any, cpus: int, **options: Any) -> Any:
    """Add a node, and wait until it is alive."""
    return cluster.add_node(num_cpus=cpus, **_STORE, **options)
