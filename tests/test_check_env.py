"""`check-env`: faults are found by the check that is named after them, and sound environments are left in peace."""

import multiprocessing
import re
from pathlib import Path
from typing import Any

import bad_envs
import numpy as np
import pytest
import sample_envs  # noqa: F401  # registers its environments
from conftest import TINY, MakeConfig
from gymnasium import spaces

from rl_training.cli import main
from rl_training.envs.checks.checking import EnvReport, check_environment
from rl_training.envs.checks.contract import trainable_by
from rl_training.envs.checks.findings import Finding, Subject
from rl_training.envs.checks.recording import Recording
from rl_training.envs.checks.repeats import check_process, check_resume
from rl_training.envs.checks.values import check_scale, check_speed
from rl_training.errors import EnvironmentSetupError
from rl_training.packing import PackedActions, PackedObservations, describe_actions, is_packed_as_observation
from rl_training.runtime.registry import list_algorithm_specs

STEPS = 600

# The class of the env: the check that finds its fault, and how bad that is.
FAULTS = {
    "UnseededEnv": ("seed", "problem"),
    "GlobalGeneratorEnv": ("seed", "problem"),
    "WallClockEnv": ("seed", "problem"),
    "GlobalSeedEnv": ("copies", "problem"),
    "SharedStateEnv": ("copies", "problem"),
    "KeepsPositionEnv": ("reuse", "warning"),
    "HiddenWearEnv": ("reuse", "warning"),
    "NanObsEnv": ("observations", "problem"),
    "OutsideEnv": ("observations", "problem"),
    "ShapeEnv": ("observations", "problem"),
    "KindEnv": ("reset", "problem"),
    "DoubleEnv": ("observations", "warning"),
    "HugeObsEnv": ("observation scale", "warning"),
    "CodesEnv": ("observation scale", "warning"),
    "InfRewardEnv": ("rewards", "problem"),
    "ArrayRewardEnv": ("rewards", "problem"),
    "HugeRewardEnv": ("rewards", "warning"),
    "ZeroRewardEnv": ("rewards", "warning"),
    "SameReturnEnv": ("rewards", "warning"),
    "DisguisedLimitEnv": ("endings", "warning"),
    "PiledUpLimitEnv": ("endings", "warning"),
    "EndlessWalkEnv": ("endings", "warning"),
    "BothFlagsEnv": ("endings", "warning"),
    "NoneFlagEnv": ("endings", "problem"),
    "AliasedEnv": ("arrays", "warning"),
    "TwoBuffersEnv": ("arrays", "warning"),
    "ActionWriterEnv": ("arrays", "warning"),
    "BoundCrashEnv": ("action bounds", "problem"),
    "BoundNanEnv": ("action bounds", "problem"),
    "MissingActionEnv": ("action bounds", "problem"),
    "MainProcessEnv": ("process", "warning"),
    "DyingWorkerEnv": ("process", "warning"),
    "OtherInWorkerEnv": ("process", "warning"),
    "NoInfoEnv": ("reset", "problem"),
    "NoSeedEnv": ("reset", "problem"),
    "BadCloseEnv": ("reset", "problem"),
    "FourValuesEnv": ("step", "problem"),
    "RaisingEnv": ("random play", "problem"),
    "WarningEnv": ("warnings", "warning"),
    "ForgetfulStateEnv": ("exact resume", "warning"),
    "ObjectStateEnv": ("exact resume", "problem"),
    "SequenceObsEnv": ("spaces", "problem"),
    "UnboundedActionEnv": ("spaces", "warning"),
}

SOUND = [
    "CartPole-v1",
    "Pendulum-v1",
    "Acrobot-v1",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
    "FrozenLake-v1",
    "CliffWalking-v1",
    "Taxi-v4",
]


def check(env_id: str, steps: int = STEPS, seed: int = 1, **env_kwargs: Any) -> EnvReport:
    return check_environment(Subject(env_id, env_kwargs, steps, seed))


def by_name(report: EnvReport) -> dict[str, Finding]:
    return {finding.check: finding for finding in report.findings}


def flagged(report: EnvReport) -> dict[str, str]:
    return {finding.check: finding.status for finding in report.findings if finding.status != "ok"}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_by_its_check_with_something_to_do(name: str) -> None:
    check_name, status = FAULTS[name]
    report = check(f"bad/{name}-v0")
    finding = by_name(report)[check_name]
    assert finding.status == status
    assert finding.found
    assert finding.remedy
    assert report.has_problem == ("problem" in flagged(report).values())


def test_an_env_without_a_fault_is_left_in_peace() -> None:
    report = check("bad/WalkEnv-v0")
    assert flagged(report) == {}
    assert report.exact_resume.startswith("will hold")


@pytest.mark.parametrize("env_id", SOUND)
def test_environments_of_gymnasium_have_no_problem_and_resume_exactly(env_id: str) -> None:
    report = check(env_id, steps=2_000)
    allowed = {"MountainCar-v0": {"rewards": "warning"}, "CliffWalking-v1": {"endings": "warning"}}
    assert flagged(report) == allowed.get(env_id, {})
    assert report.exact_resume.startswith("will hold")


def test_probes_have_no_problem() -> None:
    for env_id in ("rl_training/MatchProbe-v0", "rl_training/DiscountProbe-v0", "rl_training/ContinuousProbe-v0"):
        assert flagged(check(env_id)) == {}


def test_the_same_seed_finds_the_same() -> None:
    first, second = (check("bad/BoundNanEnv-v0", seed=3).findings for _ in range(2))
    assert first[-1].check == "speed"
    assert first[:-1] == second[:-1]


def test_what_reset_leaves_behind_spoils_exact_resume() -> None:
    assert check("bad/KeepsPositionEnv-v0").exact_resume.startswith("will not hold: replaying its actions led to")
    assert check("bad/HiddenWearEnv-v0").exact_resume.startswith("will not hold")


def test_an_env_that_offers_its_whole_state_resumes_by_it() -> None:
    report = check("bad/StateEnv-v0")
    assert flagged(report) == {}
    assert "get_state()" in report.exact_resume


@pytest.mark.parametrize("name", ["DoubleEnv", "AliasedEnv", "ActionWriterEnv", "EndlessWalkEnv", "MainProcessEnv"])
def test_what_training_copes_with_is_no_problem(name: str) -> None:
    assert flagged(check(f"bad/{name}-v0")) == {FAULTS[name][0]: "warning"}


def test_a_broken_contract_is_reported_once() -> None:
    report = check("bad/FourValuesEnv-v0")
    assert flagged(report) == {"step": "problem"}
    assert report.findings[-1].found == "returned a tuple of 4, not five values"
    assert report.exact_resume.startswith("not checked")


def test_a_fault_says_where_it_is() -> None:
    assert re.match(r"episode 0 \(seed \d+\), step 12: component \[0\] is nan", _found("NanObsEnv", "observations"))
    assert re.match(r"episode \d+ \(seed \d+\), step 34: IndexError: off the map", _found("RaisingEnv", "random play"))
    assert _found("BoundCrashEnv", "action bounds") == "action [1.0]: ValueError: too far"
    assert _found("DyingWorkerEnv", "process") == "the process ended with exit code 3"


def _found(name: str, check_name: str) -> str:
    return by_name(check(f"bad/{name}-v0"))[check_name].found


def test_an_env_that_ends_by_itself_without_a_registered_limit_is_fine() -> None:
    report = check("tests/Counting-v0", limit=5, ending="truncated")
    assert by_name(report)["endings"].status == "ok"


@pytest.mark.parametrize("name", ["CountedEnv", "CountedRaisingEnv"])
def test_every_env_is_closed_even_when_it_raises(name: str) -> None:
    check(f"bad/{name}-v0")
    assert bad_envs.CountedEnv.open_envs == [0]


def test_a_worker_that_does_not_answer_is_given_up_and_stopped() -> None:
    finding = check_process(Subject("bad/StuckWorkerEnv-v0", {}, STEPS, 1), timeout=0.3)
    assert (finding.status, finding.found) == ("warning", "no answer within 0.3 s")
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(("milliseconds", "remedy"), [(0.01, "sync"), (2.0, "async")])
def test_slow_steps_are_where_processes_may_pay(milliseconds: float, remedy: str) -> None:
    finding = check_speed(Recording(steps=100, step_seconds=0.1 * milliseconds, resets=1, reset_seconds=0.1))
    assert f"vectorization: {remedy}" in finding.remedy


@pytest.mark.parametrize(("largest", "status"), [(25, "warning"), (26, "ok"), (255, "ok")])
def test_bytes_below_a_tenth_of_their_upper_bound_are_noticed(largest: int, status: str) -> None:
    assert check_scale(Recording(bytes_seen={"": (largest, 255)})).status == status


OBSERVATION_SPACES: list[spaces.Space[Any]] = [
    spaces.Box(-1.0, 1.0, (2, 3)),
    spaces.Box(0, 255, (4, 4), np.uint8),
    spaces.Discrete(3),
    spaces.MultiDiscrete([2, 2]),
    spaces.Dict({"a": spaces.Discrete(2)}),
]
ACTION_SPACES: list[spaces.Space[Any]] = [
    spaces.Discrete(3, start=1),
    spaces.Box(-1.0, 1.0, (2,)),
    spaces.Box(-np.inf, np.inf, (2,)),
    spaces.Box(0, 3, (2,), np.int64),
    spaces.MultiBinary(3),
    spaces.MultiDiscrete([2, 3]),
    spaces.Dict({"gear": spaces.Discrete(3), "wheel": spaces.Box(-1.0, 1.0, (1,))}),
    spaces.Graph(spaces.Discrete(2), None),
]


@pytest.mark.parametrize("action_space", ACTION_SPACES, ids=str)
@pytest.mark.parametrize("observation_space", OBSERVATION_SPACES, ids=str)
def test_the_algorithms_named_are_those_that_take_the_spaces(
    observation_space: spaces.Space[Any], action_space: spaces.Space[Any], make_config: MakeConfig
) -> None:
    taking = []
    for spec in list_algorithm_specs():
        if spec.name not in TINY:
            continue
        try:
            seen = PackedObservations(observation_space) if is_packed_as_observation(observation_space) else None
            acting = PackedActions(action_space) if isinstance(action_space, spaces.Dict) else action_space
            spec.build_learner_fn(make_config(algo=spec.name), seen or observation_space, acting)
        except EnvironmentSetupError:
            continue
        taking.append(spec.name)
    assert trainable_by(observation_space, action_space) == taking


def test_the_command_shows_every_check_and_exits_with_0_when_there_is_no_problem(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["check-env", "CartPole-v1", "--steps", "300"]) == 0
    printed = capsys.readouterr()
    rows = {cells[0]: cells[1] for cells in _cells(printed.out)}
    assert rows["seed"] == rows["endings"] == rows["process"] == rows["exact resume"] == "ok"
    assert "exact resume:     will hold: " in printed.out
    assert re.search(r"steps per second: [\d,]+\n", printed.out)
    assert printed.err == ""


def _cells(printed: str) -> list[list[str]]:
    return [re.split(r" {2,}", line.strip()) for line in printed.splitlines() if "  " in line.strip()]


def test_the_command_exits_with_1_when_there_is_a_problem(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-env", "bad/NanObsEnv-v0", "--steps", "300", "--seed", "5"]) == 1
    printed = capsys.readouterr()
    assert re.search(r"observations +problem +episode 0", printed.out)
    assert "Traceback" not in printed.out + printed.err


def test_arguments_reach_the_environment(capsys: pytest.CaptureFixture[str]) -> None:
    main(["check-env", "tests/Echo-v0", "--steps", "30", "--set", "kind=discrete"])
    assert "Box observations, Discrete actions: trainable with dqn and ppo" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["CartPol-v1"], "unknown environment 'CartPol-v1'; did you mean 'CartPole-v1'?"),
        (["CartPole-v1", "--set", "gravity=3"], "unexpected keyword argument 'gravity'"),
        (["CartPole-v1", "--set", "gravity"], "--set gravity: give key=value"),
        (["CartPole-v1", "--steps", "0"], "--steps"),
        ([], "ENV_ID"),
    ],
    ids=str,
)
def test_a_user_error_is_one_line_and_exit_code_2(
    argv: list[str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["check-env", *argv]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    assert expected in printed.err


def test_the_report_says_what_happens_to_each_part_of_the_spaces() -> None:
    assert by_name(check("CartPole-v1"))["spaces"].found.endswith("a network sees 4 numbers; it chooses one of 2")
    found = by_name(check("bad/UnboundedActionEnv-v0"))["spaces"].found
    assert "numbers, without bounds" in found
    found = by_name(check("bad/SequenceObsEnv-v0"))["spaces"].found
    assert found.endswith("no algorithm supports Sequence (observation)")


def test_each_part_of_an_action_is_described() -> None:
    space = spaces.Dict(
        {
            "gear": spaces.Discrete(3),
            "keys": spaces.MultiBinary(4),
            "lights": spaces.MultiDiscrete([2, 3]),
            "wheel": spaces.Box(-1.0, 1.0, (2,)),
        }
    )
    expected = "gear: one of 3, keys: 4 bits, lights: one each of 2, 3, wheel: 2 numbers, scaled to their bounds"
    assert describe_actions(space) == describe_actions(PackedActions(space)) == expected


@pytest.mark.parametrize("name", ["NestedEnv", "TupleEnv", "NestedActionEnv", "MaskedEnv", "MaskMethodEnv"])
def test_exact_resume_is_checked_in_nested_and_masked_envs_too(name: str) -> None:
    finding = check_resume(Subject(f"sample_spaces:{name}", {}, 100, 1))
    assert finding == Finding(
        "exact resume", "ok", "a fresh env continues bit for bit, by replaying the actions of its episode"
    )


@pytest.mark.parametrize(
    ("env_id", "env_kwargs", "place", "entries"),
    [
        ("sample_spaces:MaskedEnv", {}, 'info["action_mask"]', 4),
        ("sample_spaces:MaskMethodEnv", {}, "action_masks()", 4),
        ("sample_spaces:MaskedEnv", {"source": "observation"}, 'observation["action_mask"]', 4),
        ("sample_spaces_envs:MaskedDialsEnv", {}, "action_masks()", 9),
    ],
)
def test_an_env_that_refuses_illegal_actions_is_played_with_legal_ones(
    env_id: str, env_kwargs: dict[str, Any], place: str, entries: int
) -> None:
    report = check(env_id, **env_kwargs)
    assert flagged(report) == {}
    expected = f"{place} gives a mask with {entries} entries, and only legal actions were played"
    assert by_name(report)["action mask"] == Finding("action mask", "ok", expected)
    assert report.exact_resume.startswith("will hold")


def test_a_mask_in_the_observation_is_not_what_a_network_sees() -> None:
    found = by_name(check("sample_spaces:MaskedEnv", source="observation"))["spaces"].found
    assert found.endswith("a network sees cell: 1 numbers; it chooses one of 4")


@pytest.mark.parametrize(
    ("name", "env_kwargs", "found"),
    [
        ("ShortMaskEnv", {}, "the action mask has 3 entries, the actions have 4"),
        ("BrokenMaskEnv", {"fault": "short"}, "step 2: the action mask has 3 entries, the actions have 4"),
        ("BrokenMaskEnv", {"fault": "none"}, "step 2: the action mask is None"),
        ("BrokenMaskEnv", {"fault": "missing"}, 'step 2: info has no "action_mask"'),
        ("MaskedEnv", {"no_action_at": 2}, "step 2: the action mask allows no action"),
        ("LateMaskEnv", {}, 'step 1: info has "action_mask" now, but not after reset(seed=0)'),
    ],
)
def test_a_broken_mask_is_reported_once_and_by_its_own_row(name: str, env_kwargs: dict[str, Any], found: str) -> None:
    report = check(f"sample_spaces:{name}", **env_kwargs)
    assert flagged(report) == {"action mask": "problem"}
    finding = by_name(report)["action mask"]
    assert found in finding.found
    assert finding.remedy == "give one entry per choice, at least one of them 1, after every reset and step"
    assert report.exact_resume.startswith("not checked")


def test_a_mask_of_continuous_actions_is_no_problem() -> None:
    report = check("sample_spaces:MaskedBoxEnv")
    assert flagged(report) == {"action mask": "warning"}
    assert "which is not used" in by_name(report)["action mask"].found
    assert report.exact_resume.startswith("will hold")


def test_an_env_without_a_mask_has_no_row_for_it() -> None:
    assert "action mask" not in by_name(check("CartPole-v1"))
