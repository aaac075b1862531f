"""Kill the collectors and the nodes of training runs on a Ray cluster, and compare them with runs in one process.

`python benchmarks/chaos_cluster.py` trains every scenario with three collectors in five places: in one process, in
processes, on a Ray cluster of one node and of three nodes, and on one of three nodes while collectors and nodes are
killed with SIGKILL at random moments. A killed node is replaced by a new one. All nodes are on this machine. Weights,
optimizer states, replay buffers, random generators and metrics must be equal in all places. `--output` replaces the
section about clusters in a Markdown file. The exit code is 1 if a result differs.
"""

import argparse
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from chaos import result_of

from rl_training.experiment.config import TrainConfig
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.collector import CollectResult
from rl_training.runtime.registry import get_algorithm_spec
from rl_training.runtime.trainer import TrainerState

_HEADING = "## Collectors and nodes of a cluster"
_ROLLOUT = {"num_steps": 32, "minibatch_size": 64, "update_epochs": 2, "hidden_sizes": [32]}
_REPLAY = {"buffer_capacity": 2_000, "learning_starts": 240, "batch_size": 32, "hidden_sizes": [32]}
_OFTEN = {"train_frequency": 60, "normalize_obs": True}
SCENARIOS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "HalfCheetah-v5": ("ppo", 3_840, {**_ROLLOUT, "normalize_obs": True, "normalize_rewards": True}),
    "chaos_envs:PanelWalk-v0": ("ppo", 3_840, _ROLLOUT),
    "chaos_envs:HiddenWalk-v0": ("dqn", 2_400, {**_REPLAY, **_OFTEN, "prioritized": True, "n_step": 3}),
    "Pendulum-v1": ("sac", 2_400, {**_REPLAY, **_OFTEN}),
}
"""The algorithm, the env steps and the parameters, by env."""
_NODE_SHARE = 0.3  # of the kills
_LONGEST_DELAY = 0.5  # seconds from the end of a collection to a kill
_LAST_KILL = 0.9  # of the budget, so that the last kill comes before the end of the run
_STORE_BYTES = 100 * 2**20
_SYSTEM = {  # notice a lost node within some seconds, and do not let other programs hold up the collectors
    "health_check_period_ms": 1_000,
    "health_check_timeout_ms": 3_000,
    "health_check_failure_threshold": 3,
    "worker_niceness": 0,
}


class Cluster:
    """A Ray cluster on this machine, whose nodes can be killed; `close` it at the end."""

    def __init__(self, num_nodes: int) -> None:
        from ray.cluster_utils import Cluster as RayCluster

        head = {"include_dashboard": False, "_system_config": _SYSTEM, **self._node(3 if num_nodes == 1 else 1)}
        self._cluster = RayCluster(initialize_head=True, head_node_args=head)
        self.address: str = self._cluster.address
        self._num_nodes = num_nodes
        self.replace_nodes()

    def _node(self, num_cpus: int) -> dict[str, Any]:
        return {"num_cpus": num_cpus, "object_store_memory": _STORE_BYTES}

    def replace_nodes(self) -> None:
        """Start the nodes that are missing, each of which has room for two collectors; only for the main thread."""
        while self._is_incomplete:
            self._cluster.add_node(**self._node(2))

    @property
    def _is_incomplete(self) -> bool:
        return len(self._cluster.worker_nodes) < self._num_nodes - 1

    def kill_node(self, generator: random.Random) -> bool:
        """Kill a node other than the head; return False if one is missing already, because there must be room."""
        if self._is_incomplete:
            return False
        nodes = sorted(self._cluster.worker_nodes, key=lambda node: str(node.unique_id))
        self._cluster.remove_node(generator.choice(nodes), allow_graceful=False)
        return True

    def kill_collector(self, generator: random.Random) -> bool:
        """Kill a collector; return whether there was one."""
        found = [each for each in psutil.Process().children(recursive=True) if each.is_running()]
        collectors = [each for each in found if each.name().startswith("ray::GroupActor")]
        if collectors:
            generator.choice(collectors).kill()
        return bool(collectors)

    def close(self) -> None:
        """End all nodes."""
        self._cluster.shutdown()


class Killer(Callback):
    """Kills collectors and nodes of a cluster at random moments of a run; `close` waits for the last kill."""

    def __init__(self, cluster: Cluster, kills: int, budget: int, generator: random.Random) -> None:
        self._cluster, self._generator = cluster, generator
        self._steps = sorted(generator.uniform(0.0, _LAST_KILL * budget) for _ in range(kills))
        self._thread = ThreadPoolExecutor(1)
        self._kills: list[Future[None]] = []
        self.collectors = self.nodes = 0

    def on_collect_end(self, trainer: TrainerState, result: CollectResult) -> None:
        """Replace killed nodes, and let a thread carry out the kills that are due, in any part of an iteration."""
        del result
        self._cluster.replace_nodes()
        while self._steps and self._steps[0] <= trainer.global_step:
            self._steps.pop(0)
            self._kills.append(self._thread.submit(self._kill))

    def _kill(self) -> None:
        generator = self._generator
        time.sleep(generator.uniform(0.0, _LONGEST_DELAY))
        if generator.random() < _NODE_SHARE and self._cluster.kill_node(generator):
            self.nodes += 1
        else:
            self.collectors += self._cluster.kill_collector(generator)

    def close(self) -> None:
        """Wait for the kills that are under way."""
        self._thread.shutdown()
        for kill in self._kills:
            kill.result()


@dataclass(frozen=True)
class Outcome:
    """The results of a scenario."""

    env_id: str
    equal: tuple[bool, ...]
    """Whether the result is that of the run in one process: in processes, on one node, on three nodes, with kills."""
    killed_collectors: int
    killed_nodes: int

    def row(self) -> str:
        """Return the row of the table."""
        algo, steps, _ = SCENARIOS[self.env_id]
        cells = [algo, self.env_id.rpartition(":")[2], f"{steps:,}", *("yes" if each else "NO" for each in self.equal)]
        return f"| {' | '.join(cells)} | {self.killed_collectors} | {self.killed_nodes} |"


def make_config(env_id: str, directory: Path, **changes: Any) -> TrainConfig:
    """Return the config of a short run with three collectors."""
    algo, steps, params = SCENARIOS[env_id]
    return TrainConfig(
        algo=algo,
        env_id=env_id,
        algo_kwargs=params,
        num_envs=6,
        collectors=3,
        seed=11,
        total_timesteps=steps,
        output_dir=directory,
        eval_episodes=1,
        eval_interval=steps // 3,
        log_interval=steps // 30,
        checkpoint_interval=steps // 10,
        vectorization="sync",
        compile="off",
        device="cpu",
        env_restarts=1_000,  # the kills of one collector may come in a row
        **changes,
    )


def train(config: TrainConfig, *callbacks: Callback) -> Any:
    """Train, and return everything that must be equal."""
    result = result_of(get_algorithm_spec(config.algo).train_fn(config, callbacks=callbacks).run_dir)
    print(f"{config.algo} {config.env_id} {config.collect_on}: {result[0]['algorithm'][:16]}", flush=True)
    return result


@contextmanager
def on_cluster(env_id: str, directory: Path, num_nodes: int) -> Iterator[tuple[Cluster, TrainConfig]]:
    """Start a cluster, and give a config that uses it."""
    with closing(Cluster(num_nodes)) as cluster:
        yield cluster, make_config(env_id, directory, collect_on="ray", ray_address=cluster.address)


def run_scenario(env_id: str, kills: int, generator: random.Random, directory: Path) -> Outcome:
    """Train in all places, and compare the results."""
    here = train(make_config(env_id, directory))
    equal = [train(make_config(env_id, directory, collect_on="processes")) == here]
    with on_cluster(env_id, directory, 1) as (_, config):
        equal.append(train(config) == here)
    with on_cluster(env_id, directory, 3) as (cluster, config):
        equal.append(train(config) == here)
        with closing(Killer(cluster, kills, config.total_timesteps, generator)) as killer:
            equal.append(train(config, killer) == here)
        return Outcome(env_id, tuple(equal), killer.collectors, killer.nodes)


def format_section(outcomes: list[Outcome]) -> str:
    """Return the heading, the description, a summary and the table."""
    collectors, nodes = (sum(getattr(each, f"killed_{name}") for each in outcomes) for name in ("collectors", "nodes"))
    equal = sum(all(each.equal) for each in outcomes)
    lines = [
        f"{collectors} collectors and {nodes} nodes were killed. In {equal} of {len(outcomes)} scenarios, all five "
        "results are equal to the last bit.",
        "",
        "| algorithm | env | env steps | processes | 1 node | 3 nodes | 3 nodes, kills | collectors killed "
        "| nodes killed |",
        "|---|---|---|---|---|---|---|---|---|",
        *(each.row() for each in outcomes),
    ]
    return "\n\n".join((_HEADING, (__doc__ or "").strip(), "\n".join(lines))) + "\n"


def replace_section(document: str, section: str) -> str:
    """Return a document whose last section is the one about clusters."""
    return f"{document.partition(_HEADING)[0].rstrip()}\n\n{section}"


def main() -> int:
    """Run all scenarios, or only those whose env contains a word."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("word", nargs="?", default="", help="run only scenarios whose env contains this word")
    parser.add_argument("--kills", type=int, default=5, help="kills per scenario")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random moments")
    parser.add_argument("--output", type=Path, help="replace the section about clusters in this Markdown file")
    args = parser.parse_args()
    warnings.simplefilter("ignore")  # every kill causes one, which is expected here
    outcomes = []
    for env_id in (each for each in SCENARIOS if args.word in each):
        with tempfile.TemporaryDirectory() as directory:
            generator = random.Random(f"{args.seed} {env_id}")
            outcomes.append(run_scenario(env_id, args.kills, generator, Path(directory)))
        print(outcomes[-1].row(), flush=True)
    if args.output:
        args.output.write_text(replace_section(args.output.read_text(), format_section(outcomes)))
    return 0 if all(all(each.equal) for each in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
