"""Measure how fast a deployed agent starts and acts: in this package, and in every format of `rl-training export`.

The NumPy export acts in a new virtual environment that contains nothing but NumPy. Needs the extra `export`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

from rl_training import PPO, SAC

ROOT = Path(__file__).parents[1]
STARTS = 3  # of each program; the fastest one counts
LOADERS = {
    "rl_training": """
from rl_training import {algorithm}
act = {algorithm}.load("agent.pt").predict
""",
    "torch": """
import torch
program = torch.export.load("agent.pt2").module()
def act(obs):
    with torch.inference_mode():
        return program({{"obs": torch.from_numpy(obs[None])}})["action"].numpy()[0]
""",
    "onnx": """
import onnxruntime
session = onnxruntime.InferenceSession("agent.onnx")
def act(obs):
    return session.run(None, {{"obs": obs[None]}})[0][0]
""",
    "numpy": """
from numpy_agent import Agent
act = Agent("agent.npz").act
""",
}
MEASURE = """
import sys, time, re
from pathlib import Path
sys.path.insert(0, "")
import numpy as np
obs = np.full({size}, 0.1, np.float32)
{load}
act(obs)
first, cpu = time.time() - float(sys.argv[1]), time.process_time()
memory = int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024
def measure():
    started = time.process_time()
    for _ in range(500):
        act(obs)
    return (time.process_time() - started) / 500
import json
print(json.dumps([first, cpu, memory, 1e6 * min(measure() for _ in range(7))]))
"""


def make_bare_environment(folder: Path) -> Path:
    """Return the Python of a new virtual environment with NumPy."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--constraint", str(ROOT / "constraints.txt"), "numpy"], check=True)
    return python


def measure(python: Path | str, script: str, folder: Path) -> list[float]:
    """Return the best of some starts: seconds and CPU seconds to the first action, megabytes, microseconds per action.

    An action is measured in CPU time, which other programs disturb less.
    """
    results = []
    for _ in range(STARTS):
        command = [str(python), "-c", script, str(time.time())]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
        if str(python) != sys.executable:
            environment.pop("PYTHONPATH")
        answer = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
        results.append(json.loads(answer.stdout.splitlines()[-1]))
    return [min(values) for values in zip(*results, strict=True)]


def main() -> None:
    """Print a table in Markdown."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    print("| agent | acts in | first action (s) | of it CPU (s) | memory (MB) | one action (us) |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        bare = make_bare_environment(Path(name) / "venv")
        for algorithm, env_id, size in ((PPO, "CartPole-v1", 4), (SAC, "Pendulum-v1", 3)):
            folder = Path(name) / env_id
            model = algorithm.for_env(env_id, total_timesteps=2_000, output_dir=folder / "runs")
            model.learn()
            model.save(folder / "agent.pt")
            for format_name in ("torch", "onnx", "numpy"):
                model.export(folder / "agent", format=format_name)
            for kind, load in LOADERS.items():
                script = MEASURE.format(size=size, load=load.format(algorithm=algorithm.__name__))
                found = measure(bare if kind == "numpy" else sys.executable, script, folder)
                shown = "{:.2f} | {:.2f} | {:.0f} | {:.0f}".format(*found)
                print(f"| {algorithm.__name__}, {env_id} | {kind} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
