"""Count what a reader passes on the way from the command line to a gradient step of PPO.

Prints three numbers, and the files and calls behind them:
- the calls from the command line down to the loss;
- the files that these calls lie in, or that run between the start of a rollout and its first gradient step;
- the files that run in one gradient step, from the batch to the new parameters.
"""

import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import rl_training
from rl_training.cli import main

SOURCE = Path(rl_training.__file__).parent
_PREFIX = f"{SOURCE.as_posix()}/"
ARGUMENTS = ["train", "--algo", "ppo", "--env", "CartPole-v1", "--total-timesteps", "512", "--set", "num_envs=1"]
SETTINGS = ["algo_kwargs.num_steps=256", "algo_kwargs.minibatch_size=64", "eval_episodes=0", "compile=off"]


@dataclass
class Trace:
    """What ran, as (file, function) in the package."""

    calls: list[tuple[str, str]] = field(default_factory=list)
    """The functions on the stack when the loss is computed for the first time, from the command line down."""
    iteration_files: set[str] = field(default_factory=set)
    step_files: set[str] = field(default_factory=set)
    validations: int = 0
    """How often the parameters of the algorithm were validated."""

    @property
    def files(self) -> list[str]:
        """All files on the way."""
        return sorted(self.iteration_files | {file for file, _ in self.calls})


class Tracer:
    """Follows calls between the start of the first rollout and the end of its first gradient step."""

    def __init__(self) -> None:
        self.trace = Trace()
        self._collecting = False
        self._step: FrameType | None = None

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """Receive what `sys.setprofile` reports."""
        del argument
        if event == "return" and frame is self._step:
            sys.setprofile(None)
        place = _place(frame)
        if event != "call" or place is None:
            return
        file, function = place
        self.trace.validations += place == ("experiment/config.py", "resolve_params")
        self._collecting = self._collecting or place == ("runtime/session.py", "collect")
        if self._collecting:
            self.trace.iteration_files.add(file)
        if place == ("algorithms/optimizer.py", "apply") and self._step is None:
            self._step = frame
        if self._step is not None:
            self.trace.step_files.add(file)
        if function == "ppo_loss":
            self.trace.calls = _stack(frame.f_back)


def _place(frame: FrameType) -> tuple[str, str] | None:
    """Return the file and the function of a frame; none outside of the package."""
    file = frame.f_code.co_filename  # a path object would take most of the time: this runs for every call
    return (file[len(_PREFIX) :], frame.f_code.co_name) if file.startswith(_PREFIX) else None


def _stack(frame: FrameType | None) -> list[tuple[str, str]]:
    places = []
    while frame is not None:
        places.append(_place(frame))
        frame = frame.f_back
    return [place for place in reversed(places) if place is not None]


def trace_update() -> Trace:
    """Train for one update through the command line, and trace it."""
    tracer = Tracer()
    before = sys.getprofile()
    with tempfile.TemporaryDirectory() as directory:
        arguments = [*ARGUMENTS, *(word for each in SETTINGS for word in ("--set", each)), "--output-dir", directory]
        sys.setprofile(tracer)
        try:
            code = main(arguments)
        finally:
            sys.setprofile(before)
    if code != 0 or not tracer.trace.calls:
        raise SystemExit("the traced run failed")
    return tracer.trace


if __name__ == "__main__":
    found = trace_update()
    lines = sum(1 for name in found.files for line in (SOURCE / name).read_text().splitlines() if line.strip())
    print(f"{len(found.calls)} calls before the loss:")
    print(*(f"  {file}: {function}" for file, function in found.calls), sep="\n")
    print(f"{len(found.files)} files ({lines:,} lines that are not blank):")
    print(*(f"  {file}" for file in found.files), sep="\n")
    print(f"{len(found.step_files)} files in one gradient step:")
    print(*(f"  {file}" for file in sorted(found.step_files)), sep="\n")
    print(f"parameters are validated {found.validations} time(s)")
