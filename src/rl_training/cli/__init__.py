"""The command line: one file per command, and everything that the terminal shows."""

from rl_training.cli.app import entry_point, main
from rl_training.cli.configs import load_config

__all__ = ["entry_point", "load_config", "main"]
