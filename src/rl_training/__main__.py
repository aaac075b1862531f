"""`python -m rl_training` is the command line."""

import os
import sys

if __name__ == "__main__":
    # `python -m` puts the working directory first, so that a file named like any module would be imported in its place.
    # `safe_path` (Python 3.11) says that it has not done so.
    if sys.path[0] in ("", os.getcwd()) and not getattr(sys.flags, "safe_path", sys.flags.isolated):  # noqa: PTH109
        del sys.path[0]

    from rl_training.cli import entry_point

    entry_point()
