"""File systems that can do less: without locks, or without a sync of directories, a run goes on with one warning."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from test_full_disk import TINY, only_run

from rl_training.experiment.runs import context_of, read_metadata

PRELOADED = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/stat.h>

int fsync(int descriptor) {
    struct stat status;
    if (getenv("NO_DIRECTORY_SYNC") && fstat(descriptor, &status) == 0 && S_ISDIR(status.st_mode)) {
        errno = EINVAL;
        return -1;
    }
    int (*original)(int) = dlsym(RTLD_NEXT, "fsync");
    return original(descriptor);
}

static int locking(const char *name, int descriptor, int command, void *argument) {
    if (getenv("NO_LOCKS") && (command == F_SETLK || command == F_SETLKW)) {
        errno = atoi(getenv("NO_LOCKS"));
        return -1;
    }
    int (*original)(int, int, ...) = dlsym(RTLD_NEXT, name);
    return original(descriptor, command, argument);
}

int fcntl(int descriptor, int command, ...) {
    va_list arguments;
    va_start(arguments, command);
    void *argument = va_arg(arguments, void *);
    va_end(arguments);
    return locking("fcntl", descriptor, command, argument);
}

int fcntl64(int descriptor, int command, ...) {
    va_list arguments;
    va_start(arguments, command);
    void *argument = va_arg(arguments, void *);
    va_end(arguments);
    return locking("fcntl64", descriptor, command, argument);
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that takes abilities away from the file system, as environment variables say."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs a C compiler, and a loader that preloads libraries")
    directory = tmp_path_factory.mktemp("preloaded")
    (directory / "less.c").write_text(PRELOADED)
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", directory / "less.so", directory / "less.c", "-ldl"], check=True
    )
    return directory / "less.so"


def run(library: Path, lacks: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LD_PRELOAD": str(library), **lacks}
    command = [sys.executable, "-W", "always", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.slow
def test_a_run_trains_and_goes_on_with_one_warning_for_each_ability(library: Path, tmp_path: Path) -> None:
    lacks = {"NO_LOCKS": str(errno.ENOLCK), "NO_DIRECTORY_SYNC": "1"}
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(TINY))
    train = ["train", "--config", str(path), "--output-dir", str(tmp_path / "runs")]
    trained = run(library, lacks, "-m", "rl_training", *train)
    run_dir = only_run(tmp_path)
    resumed = run(library, lacks, "-m", "rl_training", "resume", str(run_dir), "--total-timesteps", "512")
    for done in (trained, resumed):
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("does not support locks (No locks available)") == 1
        assert done.stderr.count("cannot sync directories") == 1
    assert read_metadata(context_of(run_dir))["global_step"] == 512
    assert not (run_dir / "run.lock").exists()


LOCK = """
import sys
from pathlib import Path
from rl_training.experiment.locking import RunLock
RunLock(Path(sys.argv[1])).check_free()
RunLock(Path(sys.argv[1])).acquire().release()
print("went on")
"""


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK])
def test_without_locks_a_directory_is_taken_with_a_warning(number: int, library: Path, tmp_path: Path) -> None:
    done = run(library, {"NO_LOCKS": str(number)}, "-c", LOCK, str(tmp_path))
    assert done.stdout == "went on\n", done.stderr
    assert done.stderr.count("does not support locks") == 1


def test_a_lock_that_fails_for_another_reason_is_reported_with_its_path(library: Path, tmp_path: Path) -> None:
    done = run(library, {"NO_LOCKS": str(errno.EIO)}, "-c", LOCK, str(tmp_path))
    assert "run.lock cannot be locked: Input/output error" in done.stderr
