"""What does not fit into memory or under a limit of the system is refused in one line, before it is allocated."""

import multiprocessing
import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
import torch
from conftest import MakeConfig
from gymnasium import spaces
from sample_envs import StepEnv

from rl_training.cli import main
from rl_training.envs import factory
from rl_training.envs.factory import check_num_envs, make_vector_env
from rl_training.envs.making import make_single_env
from rl_training.envs.vector.process import AsyncEpisodeVectorEnv
from rl_training.errors import ConfigError, EnvironmentSetupError
from rl_training.experiment.config import TrainConfig
from rl_training.groups.many_seeds import prepare_group
from rl_training.limits import check_open_files
from rl_training.memory import check_memory
from rl_training.runtime.callbacks import StopRules
from rl_training.runtime.registry import get_algorithm_spec
from rl_training.runtime.threads import choose_threads

ALL = pytest.mark.parametrize("algo", ["ppo", "dqn", "sac"])
MOST = 2**53 - 1


class HeavyEnv(StepEnv):
    """Holds four megabytes that Python's own memory tracing does not see."""

    def __init__(self) -> None:
        self.heavy = torch.ones(2**20)


gymnasium.register("tests/Heavy-v0", f"{__name__}:HeavyEnv")


def refusal(config: TrainConfig) -> str:
    """The one message that planning and training give before anything is made."""
    spec = get_algorithm_spec(config.algo)
    messages = []
    for attempt in (spec.plan_fn, spec.train_fn):
        with pytest.raises(ConfigError) as caught:
            attempt(config)
        messages.append(str(caught.value))
    assert not config.output_dir.exists()
    remedies = {message.partition(" GiB free: ")[2] for message in messages}
    assert len(remedies) == 1  # what is needed is estimated anew, what is free changes
    return messages[0]


@ALL
@pytest.mark.parametrize("sizes", [[10**6, 10**6], [MOST], [MOST] * 3, [300_000] * 1_000])
@pytest.mark.parametrize("params", [{}, {"layer_norm": True}], ids=["mlp", "module"])
def test_networks_that_do_not_fit_are_refused_with_what_they_need(
    make_config: MakeConfig, algo: str, sizes: list[int], params: dict[str, bool]
) -> None:
    message = refusal(make_config(algo=algo, algo_kwargs={"hidden_sizes": sizes, **params}))
    assert "GiB needed" in message
    assert "GiB free: lower algo_kwargs.hidden_sizes" in message


def test_a_cnn_that_does_not_fit_is_refused_before_it_is_built(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = psutil.virtual_memory()._replace(available=2**30)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: fake)
    images = spaces.Box(0, 255, (400, 400), np.uint8)
    with pytest.raises(ConfigError, match=r"GiB needed.* \(a network has 69,[0-9]+,[0-9]+ parameters\)"):
        get_algorithm_spec("dqn").build_learner_fn(make_config(algo="dqn"), images, spaces.Discrete(2))


def test_what_a_network_needs_counts_its_moments_and_targets(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    for algo in ("ppo", "dqn", "sac"):
        config = make_config(algo=algo, algo_kwargs={"hidden_sizes": [2_000, 2_000]})
        available = 4 * 4_000_000 * 4  # weights, gradient and one moment of the largest layer: too little
        fake = psutil.virtual_memory()._replace(available=available)
        with monkeypatch.context() as patched:
            patched.setattr(psutil, "virtual_memory", lambda fake=fake: fake)
            assert "lower algo_kwargs.hidden_sizes" in refusal(config)


def test_trying_threads_takes_little_memory_and_time_whatever_the_sizes() -> None:
    threads, reason = choose_threads(MOST, MOST, cores=2)
    assert threads in (1, 2)
    assert "product of 2048x1024" in reason


def test_a_discrete_space_of_absurd_size_is_refused(make_config: MakeConfig) -> None:
    for algo, actions in (("ppo", spaces.Discrete(2)), ("dqn", spaces.Discrete(2)), ("sac", spaces.Box(-1.0, 1.0))):
        build_learner = get_algorithm_spec(algo).build_learner_fn
        with pytest.raises(ConfigError, match=r"GiB needed.*the observations of Discrete\(10+\) are too large"):
            build_learner(make_config(algo=algo), spaces.Discrete(10**15), actions)


def test_a_rollout_that_does_not_fit_is_refused(make_config: MakeConfig) -> None:
    message = refusal(make_config(algo_kwargs={"num_steps": MOST}))
    assert "GiB free: lower num_envs or algo_kwargs.num_steps" in message


def test_a_rollout_that_does_not_fit_is_refused_before_many_envs_are_built(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    monkeypatch.setattr(factory.AnnouncedFactory, "__call__", lambda self: made.append("env"))
    assert "algo_kwargs.num_steps" in refusal(make_config(num_envs=10_000, algo_kwargs={"num_steps": 10**8}))
    assert made == []


@pytest.mark.parametrize("prioritized", [False, True])
def test_a_replay_buffer_of_any_capacity_is_refused_before_it_is_allocated(
    make_config: MakeConfig, prioritized: bool
) -> None:
    kwargs = {"buffer_capacity": MOST, "prioritized": prioritized}
    config = make_config(algo="dqn", algo_kwargs=kwargs)
    spec = get_algorithm_spec("dqn")
    for attempt in (spec.plan_fn, spec.train_fn):
        with pytest.raises(ConfigError, match=r"GiB needed.*lower algo_kwargs\.buffer_capacity"):
            attempt(config)
    assert not config.output_dir.exists()


@ALL
@pytest.mark.parametrize("num_envs", [10**9, MOST])
def test_more_envs_than_memory_holds_are_refused_before_they_are_built(
    make_config: MakeConfig, algo: str, num_envs: int
) -> None:
    kwargs = {} if algo == "ppo" else {"buffer_capacity": MOST}
    message = refusal(make_config(algo=algo, num_envs=num_envs, algo_kwargs=kwargs))
    assert "GiB free: lower num_envs=" in message


def test_native_envs_are_measured_by_their_arrays(make_config: MakeConfig) -> None:
    check_num_envs(make_config(num_envs=100_000, vectorization="native"))
    with pytest.raises(ConfigError, match=r"GiB needed.*lower num_envs"):
        check_num_envs(make_config(num_envs=10**10, vectorization="native"))


@pytest.mark.slow
def test_memory_that_python_does_not_trace_counts_too() -> None:
    """In a process of its own: one that has freed much memory takes that before it grows."""
    fitting = psutil.virtual_memory().available // 2**22
    code = (
        "import sys, test_limits; from rl_training import TrainConfig; from rl_training.errors import ConfigError\n"
        "from rl_training.envs.factory import check_num_envs\n"
        "config = TrainConfig(algo='ppo', env_id='tests/Heavy-v0', vectorization='sync', num_envs=int(sys.argv[1]))\n"
        "try:\n    check_num_envs(config)\nexcept ConfigError as error:\n    print(error)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    answers = [
        subprocess.run(
            [sys.executable, "-c", code, str(count)], capture_output=True, text=True, check=True, env=environment
        ).stdout
        for count in (2 * fitting, fitting // 4)
    ]
    assert re.search(r"GiB needed.*lower num_envs", answers[0])
    assert answers[1] == ""


def test_envs_that_take_long_to_build_are_announced_once(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_vector_env(make_config(num_envs=3)).close()  # without a warning, which would be an error here
    monkeypatch.setattr(factory, "ANNOUNCED_SECONDS", 0.0)
    make_vector_env(make_config(num_envs=1)).close()  # none is left when the first is built
    with pytest.warns(UserWarning, match=r"building envs: 1 of 3 after 0 s, about 0 s left") as warned:
        make_vector_env(make_config(num_envs=3)).close()
    assert len(warned) == 1


@ALL
def test_more_processes_than_the_system_allows_are_refused(make_config: MakeConfig, algo: str) -> None:
    kwargs = {} if algo == "ppo" else {"buffer_capacity": MOST}
    config = make_config(algo=algo, num_envs=10**8, vectorization="async", algo_kwargs=kwargs)
    with pytest.raises(ConfigError, match=r"worker processes have 200,000,000 threads, but the .*envs_per_worker"):
        get_algorithm_spec(algo).train_fn(config)
    assert not config.output_dir.exists()


@pytest.fixture
def few_files() -> Iterator[int]:
    """A limit of open files that leaves room for 40 more."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = psutil.Process().num_fds() + 40
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    yield limit
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_workers_that_need_more_open_files_than_allowed_are_refused(
    few_files: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--algo", "ppo", "--env", "CartPole-v1", "--output-dir", str(tmp_path / "runs")]
    many = ["--set", "num_envs=64", "--set", "vectorization=async"]
    for command in (["train", *flags, *many], ["train", *flags, *many, "--dry-run"]):
        assert main(command) == 2
        (line,) = capsys.readouterr().err.splitlines()
        needed = re.search(r"64 worker processes need about (\d+) open files", line)
        assert needed is not None
        # Files that other tests left open may be closed in between.
        assert few_files - 40 + 3 * 64 <= int(needed[1]) <= few_files - 40 + 3 * 64 + 16
        assert f"the limit is {few_files} (ulimit -n)" in line
        assert "lower num_envs=64 or raise envs_per_worker=1" in line
    assert not (tmp_path / "runs").exists()
    assert multiprocessing.active_children() == []


def test_a_few_workers_fit_under_a_low_limit(few_files: int, make_config: MakeConfig) -> None:
    with closing(make_vector_env(make_config(num_envs=8, envs_per_worker=2, vectorization="async"))) as envs:
        envs.reset()


def test_workers_that_cannot_be_started_leave_nothing_behind(few_files: int) -> None:
    env_fn = partial(make_single_env, "CartPole-v1", {})
    with pytest.raises(EnvironmentSetupError, match=r"64 worker processes cannot be started \(Too many open files\)"):
        AsyncEpisodeVectorEnv([env_fn] * 64, 1)
    assert multiprocessing.active_children() == []


def test_many_seeds_that_need_more_open_files_than_allowed_are_refused(few_files: int, make_config: MakeConfig) -> None:
    config = make_config()
    with pytest.raises(
        ConfigError, match=r"30 runs at once need about \d+ open files.*ulimit -n.*lower --jobs \(now 30\)"
    ):
        prepare_group(config, range(1, 41), 30, StopRules())
    assert not config.output_dir.exists()


def test_no_limit_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    unlimited: Any = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda kind: unlimited)
    check_open_files(10**12, "they", "do not")


def test_a_note_says_if_more_than_half_of_the_memory_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = SimpleNamespace(total=16 * 2**30, available=12 * 2**30)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: sizes)
    check_memory(8 * 2**30, "lower num_envs")
    expected = "9.0 GiB needed, more than half of the 16.0 GiB of this machine: lower num_envs, if that is too much"
    with pytest.warns(UserWarning, match=re.escape(expected)):
        check_memory(9 * 2**30, "lower num_envs")
    with pytest.raises(ConfigError, match=r"13.0 GiB needed, 12.0 GiB free: lower num_envs"):
        check_memory(13 * 2**30, "lower num_envs")
