import math
import platform
import sys
from pathlib import Path

import pytest

from rl_training.cores import available_cores, cgroup_cores, cpu_features, cpu_name


@pytest.mark.parametrize(
    ("outer", "inner", "cores"),
    [
        ("max 100000", "max 100000", math.inf),
        ("max 100000", "150000 100000", 2),
        ("50000 100000", "max 100000", 1),
        ("400000 100000", "200000 100000", 2),
        (None, "nonsense", math.inf),
    ],
)
def test_the_tightest_control_group_says_how_many_cores_there_are(
    outer: str | None, inner: str, cores: float, tmp_path: Path
) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "cpu.max").write_text(f"{inner}\n")
    if outer is not None:
        (tmp_path / "cpu.max").write_text(f"{outer}\n")
    assert cgroup_cores(tmp_path / "job") == cores


def test_there_is_at_least_one_core() -> None:
    assert available_cores() >= 1


def test_the_processor_has_a_name_and_instructions() -> None:
    assert cpu_name()
    assert cpu_features() != cpu_name()
    if platform.machine() == "x86_64" and sys.platform == "linux":
        assert "sse2" in cpu_features().split()
