"""`python -m rl_training` is the command line."""

from rl_training.cli import entry_point

if __name__ == "__main__":
    entry_point()
