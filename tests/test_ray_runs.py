"""Whole runs on a Ray cluster of three nodes on this machine: equal weights, whatever is lost on the way."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

import psutil
import pytest
from chaos import result_of
from conftest import MakeConfig, wait_until
from ray_clusters import add_node, start_cluster, three_nodes
from test_many_seeds import Place, Watched, results, statuses
from test_tuning import SPACE

from rl_training import TrainConfig, tune
from rl_training.cli import main
from rl_training.experiment.groups import read_group
from rl_training.experiment.runs import find_runs
from rl_training.groups.ray_executor import RayExecutor
from rl_training.groups.tuning import TuneResult
from rl_training.runtime import ray_connection
from rl_training.runtime.ray_connection import RayConnection

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("default")]  # Ray's own warnings are not ours

CPUS = 2
MARK = "RL_TRAINING_TESTS_OF_RAY"


@pytest.fixture(scope="module", autouse=True)
def mark() -> Iterator[str]:
    """A variable in the environment of all processes that these tests start."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(MARK, str(uuid4()))
        yield os.environ[MARK]


@pytest.fixture(scope="module")
def cluster(mark: str) -> Iterator[Any]:
    with three_nodes(head_cpus=0, node_cpus=CPUS) as made:
        yield made


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Any]:
    """The exact results of eight seeds in processes of this machine."""
    place = Place(tmp_path_factory.mktemp("here"))
    assert main(place.argv("--seeds", "1-8", "--jobs", "2")) == 0
    return results(place.group())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    yield
    wait_until(lambda: not run_processes())


def run_processes() -> list[psutil.Process]:
    """The processes of runs, and the servers that fork them, that actors of Ray have started."""
    found = []
    for process in psutil.process_iter(["environ", "cmdline"]):
        command, variables = " ".join(process.info["cmdline"] or ()), process.info["environ"] or {}
        is_ours = variables.get(MARK) == os.environ[MARK] and "RAY_RAYLET_PID" in variables
        if is_ours and "rl_training.groups.run_process" in command:
            found.append(process)
    return found


def on_ray(cluster: Any) -> list[str]:
    return ["--on", f"ray={cluster.address}"]


def run_dir(place: Place, seed: int) -> Path:
    return place.group() / next(each.run_dir for each in read_group(place.group()).seeds if each.seed == seed)


def ancestors(place: Place, seed: int) -> list[psutil.Process]:
    """The ancestors of the process of a run, its own fork server first."""
    return psutil.Process(json.loads((run_dir(place, seed) / "run.lock").read_text())["process"]).parents()


@pytest.mark.slow
def test_seeds_go_on_elsewhere_when_an_actor_and_a_node_are_killed(
    cluster: Any, place: Place, expected: dict[int, Any]
) -> None:
    place.hold(1, 2)

    def kill() -> None:
        held = place.catch(1, 2)
        ancestors(place, 2)[1].kill()
        actor = ancestors(place, 1)[1]
        raylets = [each.pid for each in ancestors(place, 1)]
        nodes = [each for each in cluster.worker_nodes if each.all_processes["raylet"][0].process.pid in raylets]
        cluster.remove_node(*nodes, allow_graceful=False)
        wait_until(lambda: not psutil.pid_exists(actor.pid) or actor.status() == psutil.STATUS_ZOMBIE)
        place.lift()
        for end in held:
            end.close()

    thread = threading.Thread(target=kill)
    thread.start()
    with pytest.warns(UserWarning, match=r"run [12]: it was lost on Ray node \w+ \(.*\); it goes on from ") as warned:
        assert main(place.argv("--seeds", "1-8", *on_ray(cluster))) == 0
    thread.join()
    add_node(cluster, CPUS)
    assert {"run 1: ", "run 2: "} <= {str(each.message)[:7] for each in warned}
    assert statuses(place.group()) == dict.fromkeys(range(1, 9), "completed")
    assert results(place.group()) == expected
    assert read_group(place.group()).on == "ray"
    assert "Training ppo" in (place.group() / "logs" / "seed1.log").read_text()


@pytest.mark.slow
def test_a_group_that_loses_the_head_ends_with_a_clear_line_and_is_resumed_here(
    place: Place, expected: dict[int, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ray_connection, "_HEAD_SECONDS", 3.0)  # longer than the time between two looks at the nodes
    place.hold(1, 2)
    cluster = start_cluster(2)
    (head,) = cluster.head_node.all_processes["gcs_server"]
    held: list[IO[str]] = []
    asking = threading.Lock()  # the head is killed between two questions: Ray is not shut down while one waits
    ask_head = RayConnection.ask_head

    def ask_with_lock(connection: RayConnection, question: Any) -> Any:
        with asking:
            return ask_head(connection, question)

    def kill_head() -> None:
        held.extend(place.catch(1, 2))
        with asking:
            head.process.kill()
            head.process.wait()

    close = RayExecutor.close

    def let_runs_go_on_and_close(executor: RayExecutor) -> None:
        place.lift()
        for end in held:
            end.close()
        close(executor)

    monkeypatch.setattr(RayConnection, "ask_head", ask_with_lock)
    monkeypatch.setattr(RayExecutor, "close", let_runs_go_on_and_close)
    thread = threading.Thread(target=kill_head)
    thread.start()
    try:
        assert main(place.argv("--seeds", "1-2", *on_ray(cluster))) == 1
    finally:
        cluster.shutdown()
    thread.join()
    assert "error: the head of the Ray cluster has not answered" in capsys.readouterr().err
    wait_until(lambda: not run_processes())
    assert main(["resume", str(place.group())]) == 0
    assert results(place.group()) == {seed: expected[seed] for seed in (1, 2)}


@pytest.mark.slow
def test_a_signal_saves_all_runs_and_the_group_goes_on_here(
    cluster: Any, place: Place, expected: dict[int, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    place.hold(1, 2)
    stderr = Watched("save and stop")

    def interrupt() -> None:
        held = place.catch(1, 2)
        os.kill(os.getpid(), signal.SIGINT)
        stderr.seen.wait(150.0)
        for end in held:
            end.close()

    thread = threading.Thread(target=interrupt)
    thread.start()
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", stderr)
        assert main(place.argv("--seeds", "1-3", "--jobs", "2", *on_ray(cluster))) == 130
    thread.join()
    group_dir = place.group()
    assert statuses(group_dir) == {1: "interrupted", 2: "interrupted", 3: "waiting"}
    for record in read_group(group_dir).seeds[:2]:
        assert record.reason == "SIGINT"
        assert record.global_step > 0
        assert (group_dir / record.run_dir / "checkpoints" / f"step_{record.global_step}.pt").exists()
    place.lift()
    assert main(["resume", str(group_dir), "--jobs", "2"]) == 0
    assert results(group_dir) == {seed: expected[seed] for seed in (1, 2, 3)}


@pytest.mark.slow
def test_runs_end_with_a_driver_that_is_killed_and_the_group_goes_on(
    cluster: Any, place: Place, expected: dict[int, Any]
) -> None:
    place.hold(1, 2)
    command = [sys.executable, "-m", "rl_training", *place.argv("--seeds", "1-3", "--jobs", "2", *on_ray(cluster))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as driver:
        held = place.catch(1, 2)
        driver.kill()
    group_dir = place.group()
    place.lift()
    for end in held:
        end.close()
    wait_until(lambda: not run_processes())
    assert main(["resume", str(group_dir), *on_ray(cluster)]) == 0
    assert results(group_dir) == {seed: expected[seed] for seed in (1, 2, 3)}


@pytest.mark.slow
def test_the_error_of_an_env_is_that_of_a_run_here_and_a_run_that_never_gets_on_fails(
    cluster: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reasons = []
    for name, options in {"here": [], "ray": on_ray(cluster)}.items():
        (tmp_path / name).mkdir()
        place = Place(tmp_path / name)
        place.order(1, "fail")
        place.order(2, "kill")
        assert main(place.argv("--seeds", "1-2", *options)) == 1
        assert statuses(place.group()) == {1: "failed", 2: "failed"}
        reasons.append([record.reason for record in read_group(place.group()).seeds])
    here, on_cluster = reasons
    assert here[0] == on_cluster[0]
    assert on_cluster[1] == f"{here[1]}; this happened 3 times without a new checkpoint"


@pytest.mark.slow
def test_a_directory_that_the_nodes_do_not_see_is_refused(
    cluster: Any, place: Place, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place.orders)
    argv = place.argv("--seeds", "1-2", *on_ray(cluster))
    argv[argv.index("--output-dir") + 1] = "/proc/self/cwd/new/runs"  # another directory for every process
    assert main(argv) == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert "Ray node " in printed
    assert "does not share /proc/self/cwd/new/runs with the driver (No such file or directory)" in printed
    assert not list(place.orders.iterdir())


@pytest.mark.slow
def test_a_node_with_another_torch_is_refused_and_gets_no_run_if_it_joins_later(
    cluster: Any, place: Place, expected: dict[int, Any], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    info = tmp_path / "other" / "torch-9.9.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Name: torch\nVersion: 9.9\n")
    place.hold(1)
    argv = place.argv("--seeds", "1", "--set", "step_timeout=600", *on_ray(cluster))

    def add_while_training() -> Any:
        thread = threading.Thread(target=main, args=(argv,))  # only the main thread can add a node
        thread.start()
        (held,) = place.catch(1)
        node = add_node(cluster, CPUS, env_vars={"PYTHONPATH": str(info.parent)})
        wait_until(lambda: list(place.runs.glob(".check-*")))
        wait_until(lambda: not list(place.runs.glob(".check-*")))
        held.close()
        thread.join()
        return node

    with pytest.warns(UserWarning, match=r"Ray node \w+ \(.*\) has torch 9\.9, and the driver has .*: no run is"):
        added = add_while_training()
    assert results(place.group()) == {1: expected[1]}
    capsys.readouterr()
    groups = list(place.runs.iterdir())
    assert main(place.argv("--seeds", "1-2", *on_ray(cluster))) == 2
    assert "has torch 9.9, and the driver has" in capsys.readouterr().err
    assert list(place.runs.iterdir()) == groups
    cluster.remove_node(added)


USER_ERRORS: dict[str, tuple[list[str], str]] = {
    "an unknown place": (["--on", "mars"], "on=mars: give here, ray, or ray=ADDRESS"),
    "a place without an address": (["--on", "ray="], "on=ray=: give here, ray, or ray=ADDRESS"),
    "collectors on Ray": (["--on", "ray", "--set", "collect_on=ray"], "set collect_on=processes"),
    "no cluster": (["--on", "ray=127.0.0.1:1"], "ray_address='127.0.0.1:1': there is no Ray cluster"),
}


@pytest.mark.parametrize("name", USER_ERRORS)
def test_a_user_error_is_one_line_and_makes_nothing(
    name: str, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    options, text = USER_ERRORS[name]
    assert main(place.argv("--seeds", "1-2", *options)) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert text in printed.err
    assert not place.runs.exists()


def test_one_run_is_not_trained_on_ray(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(place.argv("--on", "ray")) == 2
    assert "--on ray is for many seeds: use it with --seeds" in capsys.readouterr().err


@pytest.mark.slow
def test_more_threads_than_a_node_has_are_refused(
    cluster: Any, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(place.argv("--seeds", "1-2", "--set", "num_threads=3", *on_ray(cluster))) == 2
    assert "num_threads=3: no node of the Ray cluster has 3 CPUs" in capsys.readouterr().err
    assert not place.runs.exists()


@pytest.mark.slow
def test_a_study_on_a_ray_of_its_own_finds_what_one_job_here_finds(make_config: MakeConfig) -> None:
    here, on_cluster = (run_study(make_config(compile="off", trackers=()), on) for on in ("here", "ray"))
    assert not ray.is_initialized()
    assert here.trials == on_cluster.trials
    assert len(here.trials) == 2
    first, second = (
        [result_of(context.run_dir) for context in find_runs(each.study_dir)] for each in (here, on_cluster)
    )
    assert first == second


@pytest.mark.slow
@pytest.mark.parametrize(("variable", "niceness"), [(None, 0), ("3", 3)])
def test_a_ray_of_its_own_has_the_priority_of_this_process_unless_the_user_chose_another(
    variable: str | None, niceness: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_worker_niceness", raising=False)
    if variable is not None:
        monkeypatch.setenv("RAY_worker_niceness", variable)
    _, is_ours = ray_connection.connect("local")
    try:
        assert is_ours
        assert ray.get(ray.remote(lambda: os.nice(0)).remote()) == os.nice(0) + niceness
    finally:
        ray.shutdown()


def run_study(config: TrainConfig, on: str) -> TuneResult:
    return tune(config, SPACE, jobs=1, on=on, trials=2, rungs=1, episodes=2, confirm=0)
