import os
import signal
import subprocess
import sys
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import curriculum
import pytest
from chaos import result_of as outcome

from rl_training.experiment.runs import context_of, read_metadata, read_metrics
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.ppo_trainer import train_ppo
from rl_training.runtime.trainer import TrainerState
from rl_training.runtime.workflows import resume_training


class KillAt(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_collect_end(self, trainer: TrainerState, result: Any) -> None:
        if trainer.global_step >= self.step:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*lock")  # of the killed process
def test_a_curriculum_killed_among_its_workers_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    config = curriculum.make_config(
        output_dir=tmp_path,
        total_timesteps=3_072,
        num_envs=4,
        vectorization="async",
        envs_per_worker=2,
        checkpoint_interval=1_024,
        eval_interval=0,
        trackers=[],
        callbacks=[{"curriculum:RaiseDistance": {"rate": 0.3, "episodes": 10}}],
    )
    straight = train_ppo(config).run_dir
    killed = get_context("fork").Process(target=train_ppo, args=(config,), kwargs={"callbacks": [KillAt(1_800)]})
    killed.start()
    killed.join()
    assert killed.exitcode == -signal.SIGKILL
    (run_dir,) = set(tmp_path.iterdir()) - {straight}
    distances = [row["curriculum/distance"] for row in read_metrics(context_of(run_dir))]
    resume_training(run_dir)
    assert outcome(run_dir) == outcome(straight)
    assert read_metadata(context_of(run_dir))["resumed"][0]["exact"]
    assert 1 < distances[-1] < read_metrics(context_of(run_dir))[-2]["curriculum/distance"]


@pytest.mark.slow
def test_the_script_runs_and_fits_on_one_page(tmp_path: Path) -> None:
    path = Path(curriculum.__file__)
    assert len(path.read_text().splitlines()) < 120
    command = [sys.executable, str(path), "--total-timesteps", "512", "--output-dir", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(path.parents[1] / "src")}
    answer = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert "evaluation at the full distance:" in answer.stdout
    assert not answer.stderr
