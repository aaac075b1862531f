"""Train an agent, export it, and let it act where neither torch nor this package nor the environment is installed."""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import gymnasium
import numpy as np

from rl_training import PPO

# What the other machine runs. It has NumPy and the two files of the export, so everything else is blocked here.
ACT = """
import json, sys
sys.modules.update(torch=None, gymnasium=None, rl_training=None)
sys.path.insert(0, sys.argv[1])
from numpy_agent import Agent
agent = Agent(sys.argv[1] + "/agent.npz")
for line in sys.stdin:
    print(agent.act(json.loads(line)), flush=True)
"""


def play(folder: Path, seed: int) -> float:
    """Play one episode in which another process chooses the actions, and return its return."""
    command = [sys.executable, "-c", ACT, str(folder)]
    total, ended = 0.0, False
    with (
        gymnasium.make("CartPole-v1") as env,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as agent,
    ):
        assert agent.stdin is not None
        assert agent.stdout is not None
        obs, _ = env.reset(seed=seed)
        while not ended:
            print(json.dumps(np.asarray(obs).tolist()), file=agent.stdin, flush=True)
            obs, reward, terminated, truncated, _ = env.step(int(agent.stdout.readline()))
            total += float(reward)
            ended = terminated or truncated
        agent.stdin.close()
    return total


def main() -> None:
    """Train, save, export and play."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--total-timesteps", type=int, default=50_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = PPO.for_env("CartPole-v1", total_timesteps=args.total_timesteps, output_dir=folder / "runs")
        model.learn()
        model.save(folder / "agent.pt")
        exported = PPO.load(folder / "agent.pt").export(folder / "agent.npz", format="numpy")
        print("exported:", *(path.name for path in exported.files))
        print(f"largest difference: {exported.check.largest_difference:.1e}, ties: {exported.check.num_ties}")
        print(f"return without torch: {play(folder, seed=1):.0f}")


if __name__ == "__main__":
    main()
