"""Collectors on a Ray cluster of three nodes on this machine: equal weights, also when actors and nodes are lost."""

import builtins
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from chaos import result_of as outcome
from conftest import MakeConfig
from ray_clusters import add_node, three_nodes
from test_collectors import grouped
from test_exact_resume import SignalAt, train

from rl_training.errors import ConfigError, EnvironmentStepError
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.ray_places import import_ray
from rl_training.runtime.trainer import TrainerState
from rl_training.runtime.workflows import resume_training

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("default")]  # Ray's own warnings are not ours


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with three_nodes(head_cpus=1, node_cpus=3) as made:
        yield made


def on_ray(make_config: MakeConfig, cluster: Any, algo: str, **changes: Any) -> Any:
    return grouped(make_config, algo, collect_on="ray", ray_address=cluster.address, **changes)


class KillActors(Callback):
    """Kills an actor's process after each of the first collections, and then a whole node."""

    def __init__(self, cluster: Any) -> None:
        self.cluster, self.killed = cluster, 0

    def on_collect_end(self, trainer: TrainerState, result: Any) -> None:
        self.killed += 1
        if self.killed == 3:
            self.cluster.remove_node(sorted(self.cluster.worker_nodes, key=id)[0], allow_graceful=False)
        elif self.killed < 3:
            actors = [each for each in psutil.process_iter() if each.name().startswith("ray::GroupActor")]
            actors[self.killed % len(actors)].kill()


def test_weights_are_those_of_a_run_here_also_when_actors_and_a_node_are_killed(
    make_config: MakeConfig, cluster: Any
) -> None:
    here = outcome(train(grouped(make_config, "dqn")))
    killer = KillActors(cluster)
    with pytest.warns(UserWarning, match="collector . .envs .* failed: .*; restarting it"):
        assert outcome(train(on_ray(make_config, cluster, "dqn"), killer)) == here
    assert killer.killed >= 4
    add_node(cluster, 3)


@pytest.mark.parametrize("algo", ["ppo", "sac"])
def test_a_run_moves_between_here_and_the_cluster_when_it_is_resumed(
    make_config: MakeConfig, cluster: Any, algo: str
) -> None:
    straight = outcome(train(grouped(make_config, algo)))
    run_dir = train(on_ray(make_config, cluster, algo), SignalAt(100, "update"))
    resume_training(run_dir)
    assert outcome(run_dir) == straight


def test_the_error_of_an_env_reaches_the_user(make_config: MakeConfig, cluster: Any) -> None:
    config = make_config(
        env_id="sample_envs:tests/Failing-v0",
        env_kwargs={"fails_at": 3},
        collectors=2,
        collect_on="ray",
        ray_address=cluster.address,
        env_restarts=0,
    )
    with pytest.raises(EnvironmentStepError, match=r"env \d, episode 0 .*, step 3 .*broken at step 3"):
        train(config)


def test_more_collectors_than_the_cluster_has_cpus_are_refused(make_config: MakeConfig, cluster: Any) -> None:
    config = on_ray(make_config, cluster, "dqn", collector_cpus=9.0)
    with pytest.raises(ConfigError, match="need 27 CPUs, and the Ray cluster has 7: lower collectors"):
        train(config)


def test_a_cluster_that_is_not_there_is_named(make_config: MakeConfig) -> None:
    with pytest.raises(ConfigError, match=r"ray_address='127\.0\.0\.1:1': there is no Ray cluster"):
        train(make_config(collectors=2, collect_on="ray", ray_address="127.0.0.1:1"))


def test_without_ray_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def refuse(name: str, *arguments: Any, **options: Any) -> Any:
        if name == "ray":
            raise ImportError(name)
        return original(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ConfigError, match=r"pip install 'rl-training\[ray\]'"):
        import_ray()
