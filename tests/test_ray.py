"""Collectors on a Ray cluster of three nodes on this machine: equal weights, whatever is lost on the way."""

import builtins
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import yaml
from chaos import result_of as outcome
from chaos import start_process, wait_until_training
from conftest import MakeConfig, slow_except_first, wait_until
from ray_clusters import add_node, start_cluster, three_nodes
from test_collectors import always_faulty, faulty, grouped
from test_exact_resume import SignalAt, train

from rl_training.errors import ClusterError, ConfigError, EnvironmentStepError
from rl_training.experiment.config import TrainConfig, plain_config
from rl_training.experiment.runs import context_of, read_metadata
from rl_training.experiment.sources import Layer
from rl_training.runtime import ray_connection, ray_places
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.ray_connection import RayConnection, import_ray
from rl_training.runtime.trainer import TrainerState
from rl_training.runtime.workflows import prepare_resume, resume_training

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("default")]  # Ray's own warnings are not ours


def actors() -> list[psutil.Process]:
    """The actors of the clusters that this process has started."""
    found = psutil.Process().children(recursive=True)
    return [each for each in found if each.is_running() and each.name().startswith("ray::GroupActor")]


@pytest.fixture(scope="module")
def client_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture(scope="module")
def cluster(client_port: int) -> Iterator[Any]:
    with three_nodes(head_cpus=1, node_cpus=3, ray_client_server_port=client_port) as made:
        yield made


def on_ray(make_config: MakeConfig, cluster: Any, algo: str, **changes: Any) -> Any:
    return grouped(make_config, algo, collect_on="ray", ray_address=cluster.address, **changes)


class AfterCollections(Callback):
    """Calls one function after each of the first collections."""

    def __init__(self, *functions: Callable[[], Any]) -> None:
        self.functions = list(functions)

    def on_collect_end(self, trainer: TrainerState, result: Any) -> None:
        if self.functions:
            self.functions.pop(0)()


def remove_nodes(cluster: Any, nodes: list[Any]) -> None:
    for node in nodes:
        cluster.remove_node(node, allow_graceful=False)


@pytest.mark.slow
def test_weights_are_those_of_a_run_here_also_when_actors_and_nodes_are_killed_and_a_node_joins(
    make_config: MakeConfig, cluster: Any
) -> None:
    here = outcome(train(grouped(make_config, "dqn")))
    old = list(cluster.worker_nodes)
    disturb = AfterCollections(
        lambda: actors()[0].kill(),
        lambda: add_node(cluster, 3),
        lambda: remove_nodes(cluster, old),  # then two of the three groups have room on the new node only
        lambda: actors()[-1].kill(),
    )
    with pytest.warns(UserWarning, match="collector . .envs .* failed: its (worker process|node) has died; restarting"):
        assert outcome(train(on_ray(make_config, cluster, "dqn"), disturb)) == here
    assert not disturb.functions
    add_node(cluster, 3)


def on_cluster(config: TrainConfig, cluster: Any) -> TrainConfig:
    module = {"env_id": f"sample_envs:{config.env_id}"}  # which registers the env in the actors
    return config.model_copy(update={**module, "collect_on": "ray", "ray_address": cluster.address})


def resume_here(run_dir: Path) -> None:
    prepare_resume(run_dir, [Layer("test", {"collect_on": "here"})]).train()


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "client"), [("abort", False), ("sleep", True), ("C code with the GIL", False)])
def test_an_env_that_crashes_or_hangs_once_changes_nothing_but_a_warning(
    make_config: MakeConfig, cluster: Any, client_port: int, tmp_path: Path, fault: str, client: bool
) -> None:
    values = {"num_envs": 2, "step_timeout": 0.5}
    config = on_cluster(faulty(make_config, tmp_path, fault, **values), cluster)
    if client:
        config = config.model_copy(update={"ray_address": f"ray://127.0.0.1:{client_port}"})
    with pytest.warns(
        UserWarning, match="collector . .envs .* failed: (its worker process has died|no step within 12)"
    ):
        run_dir = train(config)
    undisturbed = on_cluster(faulty(make_config, tmp_path, fault, **values), cluster)
    (tmp_path / "armed").unlink()
    assert outcome(run_dir) == outcome(train(undisturbed.model_copy(update={"collect_on": "here"})))


@pytest.mark.slow
def test_a_client_connects_although_the_cluster_could_not_serve_it_at_once(
    cluster: Any, client_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect, failures = ray.util.client.ray.connect, [ConnectionAbortedError("the server could not start")]

    def fail_once(*args: Any, **kwargs: Any) -> Any:
        if failures:
            raise failures.pop()
        return connect(*args, **kwargs)

    monkeypatch.setattr(ray.util.client.ray, "connect", fail_once)
    ray_connection.connect(f"ray://127.0.0.1:{client_port}")
    try:
        assert ray.get(ray.remote(lambda: 3).remote()) == 3
    finally:
        ray.shutdown()


@pytest.mark.slow
def test_an_env_that_always_crashes_is_named_and_the_run_can_be_resumed(
    make_config: MakeConfig, cluster: Any, tmp_path: Path
) -> None:
    config = on_cluster(always_faulty(make_config, tmp_path, "abort", num_envs=2, env_restarts=1), cluster)
    text = r"^collector \d \(envs \d to \d\) failed: its worker process has died \(tried 2 times\)$"
    with pytest.warns(UserWarning, match="restarting it"), pytest.raises(EnvironmentStepError, match=text):
        train(config)
    (run_dir,) = config.output_dir.iterdir()
    assert read_metadata(context_of(run_dir))["status"] == "failed"
    (tmp_path / "armed").unlink()
    resume_here(run_dir)
    assert outcome(run_dir) == outcome(train(config.model_copy(update={"collect_on": "here"})))


@pytest.mark.slow
def test_a_driver_that_is_interrupted_or_killed_leaves_no_actor_and_is_resumed_exactly(
    make_config: MakeConfig, cluster: Any, tmp_path: Path
) -> None:
    values = {"env_id": "sample_envs:SlowEnv", "env_kwargs": {"seconds": 0.0005}, "num_envs": 2, "collectors": 2}
    values["eval_episodes"] = 0  # its episodes never end
    config = make_config(**values, collect_on="ray", ray_address=cluster.address, total_timesteps=2_400)
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(plain_config(config)))
    command = [sys.executable, "-m", "rl_training", "train", "--config", str(path), "--trust"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(place for place in sys.path if place)}
    driver = subprocess.Popen(command, env=environment)
    wait_until(lambda: list(config.output_dir.glob("*/metrics.jsonl")) and actors())
    driver.send_signal(signal.SIGINT)
    assert driver.wait() == 128 + signal.SIGINT
    wait_until(lambda: not actors())
    (run_dir,) = config.output_dir.iterdir()
    process = start_process(config, run_dir.name.rpartition("__")[2])
    wait_until_training(process, run_dir)
    wait_until(actors)
    process.kill()
    process.join()
    wait_until(lambda: not actors())
    resume_here(run_dir)
    assert outcome(run_dir) == outcome(train(config.model_copy(update={"collect_on": "here"})))


@pytest.mark.slow
def test_a_cluster_that_lost_its_cpus_is_waited_for_and_then_ends_the_run_with_a_checkpoint(
    make_config: MakeConfig, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose_nodes() -> None:
        monkeypatch.setattr(ray_places, "_START_SECONDS", 3.0)
        monkeypatch.setattr(ray_places, "_START_NOTICE_SECONDS", 1.0)
        remove_nodes(cluster, list(cluster.worker_nodes))

    text = r"collector \d has not started on the Ray cluster: it needs 1 CPUs, and [01] of the 1 CPUs .* are free; "
    config = on_ray(make_config, cluster, "dqn")
    with (
        pytest.warns(UserWarning, match=f"{text}waiting for at most 3 s"),
        pytest.raises(ClusterError, match=f"^{text}free CPUs or add nodes, and resume the run$"),
    ):
        train(config, AfterCollections(lose_nodes))
    monkeypatch.undo()
    for _ in range(2):
        add_node(cluster, 3)
    (run_dir,) = config.output_dir.iterdir()
    resume_training(run_dir)
    assert outcome(run_dir) == outcome(train(grouped(make_config, "dqn")))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("process", "text"),
    [("gcs_server", "the head of the Ray cluster has not answered"), ("raylet", "Ray has ended on this machine")],
)
def test_a_run_that_loses_the_head_is_saved_and_resumed_exactly(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, process: str, text: str
) -> None:
    for name in ("_HEAD_SECONDS", "_HEAD_CHECK_SECONDS"):
        monkeypatch.setattr(ray_connection, name, 0.0)
    cluster = start_cluster(3)
    (lost,) = cluster.head_node.all_processes[process]
    config = on_ray(make_config, cluster, "sac")

    def kill() -> None:
        lost.process.kill()
        lost.process.wait()

    try:
        with pytest.raises(ClusterError, match=text):
            train(config, AfterCollections(kill))
    finally:
        cluster.shutdown()
    (run_dir,) = config.output_dir.iterdir()
    resume_here(run_dir)
    assert outcome(run_dir) == outcome(train(grouped(make_config, "sac")))


@pytest.mark.parametrize("algo", slow_except_first(["ppo", "sac"]))
def test_a_run_moves_between_here_and_the_cluster_when_it_is_resumed(
    make_config: MakeConfig, cluster: Any, algo: str
) -> None:
    straight = outcome(train(grouped(make_config, algo)))
    run_dir = train(on_ray(make_config, cluster, algo), SignalAt(100, "update"))
    resume_training(run_dir)
    assert outcome(run_dir) == straight


@pytest.mark.slow
def test_the_error_of_an_env_reaches_the_user_with_its_traceback(make_config: MakeConfig, cluster: Any) -> None:
    config = make_config(
        env_id="sample_envs:tests/Failing-v0",
        env_kwargs={"fails_at": 3},
        num_envs=2,
        collectors=2,
        collect_on="ray",
        ray_address=cluster.address,
    )
    text = r"^env \d, episode 0 .*, step 3 .*broken at step 3 \(tried 2 times\)"
    with pytest.warns(UserWarning, match="1 of at most 3"), pytest.raises(EnvironmentStepError, match=text) as raised:
        train(config)
    assert "in fail_once" in str(raised.value.__cause__)


def test_more_collectors_than_the_cluster_has_cpus_are_refused(make_config: MakeConfig, cluster: Any) -> None:
    config = on_ray(make_config, cluster, "dqn", collector_cpus=9.0)
    with pytest.raises(ConfigError, match="need 27 CPUs, and the Ray cluster has 7: lower collectors"):
        train(config)


def test_a_cluster_that_is_not_there_is_named(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    text = r"ray_address='127\.0\.0\.1:1': there is no Ray cluster .* asks for a token, set RAY_AUTH_MODE=token$"
    with pytest.raises(ConfigError, match=text):
        train(make_config(collectors=2, collect_on="ray", ray_address="127.0.0.1:1"))


def test_an_attempt_to_connect_after_a_failed_one_of_a_client_is_not_that_of_a_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ray = import_ray()

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise ConnectionAbortedError("the server could not start")

    monkeypatch.setattr(ray.util.client.ray, "connect", refuse)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(ConfigError, match=r"there is no Ray cluster to connect to .*the server could not start"):
            ray_connection.connect(f"ray://127.0.0.1:{port}")
    assert not ray._private.client_mode_hook.is_client_mode_enabled


def test_a_head_that_is_lost_while_it_is_asked_ends_the_wait_and_ray_is_not_shut_down_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ray_connection, "_HEAD_SECONDS", 0.2)
    monkeypatch.setattr(ray_connection, "_HEAD_CHECK_SECONDS", 0.0)
    shutdowns: list[str] = []
    connection = RayConnection(SimpleNamespace(shutdown=lambda: shutdowns.append("now")))
    lost, answered = threading.Event(), threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as head:
        monkeypatch.setattr(connection, "_head", head.getsockname())
        assert connection.ask_head(lambda: 7) == 7

        def lose_head() -> None:
            head.close()
            lost.set()
            answered.wait()

        with pytest.raises(ClusterError, match="the head of the Ray cluster has not answered"):
            connection.ask_head(lose_head)
    assert lost.is_set()
    connection.close(shut_down=True)
    assert shutdowns == []
    answered.set()

    def has_shut_down() -> bool:
        connection.close(shut_down=True)
        return bool(shutdowns)

    wait_until(has_shut_down)


def test_without_ray_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def refuse(name: str, *arguments: Any, **options: Any) -> Any:
        if name == "ray":
            raise ImportError(name)
        return original(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ConfigError, match=r"pip install 'rl-training\[ray\]'"):
        import_ray()
