"""Run the command line with `python -m rl_training`."""

import os
import sys

if __name__ == "__main__":
    # `python -m` puts the working directory first on the path, so a file there could replace any module.
    # With `safe_path` (Python 3.11), it does not.
    if sys.path[0] in ("", os.getcwd()) and not getattr(sys.flags, "safe_path", sys.flags.isolated):  # noqa: PTH109
        del sys.path[0]

    from rl_training.cli import entry_point

    entry_point()
