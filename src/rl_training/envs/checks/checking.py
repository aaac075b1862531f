"""The checks that tell what to know of an environment before a long run."""

import warnings
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass

from rl_training.envs.checks import bounds, contract, processes, repeats, values
from rl_training.envs.checks.findings import Check, Finding, Subject, guarded
from rl_training.envs.checks.recording import Recording, record

_CONTRACT: dict[str, Check] = {"reset": contract.check_reset, "step": contract.check_step}


@dataclass(frozen=True)
class EnvReport:
    """One finding per check, in the order in which they were made."""

    subject: Subject
    findings: list[Finding]
    steps_per_second: float | None

    @property
    def has_problem(self) -> bool:
        """Whether anything would break training."""
        return any(finding.status == "problem" for finding in self.findings)

    @property
    def exact_resume(self) -> str:
        """Whether a stopped run would go on as if it had never been stopped."""
        for finding in self.findings:
            if finding.check == "exact resume":
                verdict = "will hold" if finding.status == "ok" else "will not hold"
                return f"{verdict}: {finding.found}"
        return "not checked: mend the problems first"


def check_environment(subject: Subject) -> EnvReport:
    """Run every check; an env that cannot be made is an `EnvironmentSetupError`."""
    env = subject.make()
    time_limit = env.spec.max_episode_steps if env.spec else None
    with suppress(Exception):  # the checks close their envs too, and tell when that fails
        env.close()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        findings: list[Finding] = []
        for name, check in _CONTRACT.items():
            findings.append(guarded(name, check, subject))
            if findings[-1].status == "problem":  # every later check would only repeat this
                return EnvReport(subject, findings, None)
        findings.append(guarded("api", contract.check_api, subject))
        findings.append(guarded("spaces", contract.check_spaces, subject))
        trainable = findings[-1].status != "problem"
        recording = record(subject)
        findings += _recorded(recording, time_limit)
        findings += _repeated(subject, trainable=trainable)
    findings += [_caught(caught), values.check_speed(recording)]
    speed = recording.steps / recording.step_seconds if recording.step_seconds else None
    return EnvReport(subject, findings, speed)


def _recorded(recording: Recording, time_limit: int | None) -> list[Finding]:
    return [
        values.check_run(recording),
        values.check_endings(recording, time_limit),
        values.check_observations(recording),
        values.check_scale(recording),
        values.check_rewards(recording),
        values.check_arrays(recording),
    ]


def _repeated(subject: Subject, *, trainable: bool) -> list[Finding]:
    """The checks that play on their own; those whose answer is known by then are left out."""
    findings = [
        guarded("action bounds", bounds.check_bounds, subject),
        guarded("seed", repeats.check_seed, subject),
    ]
    if findings[-1].status == "ok":
        findings += [
            guarded("reuse", repeats.check_reuse, subject),
            guarded("copies", repeats.check_copies, subject),
            guarded("seeds", repeats.check_seeds_differ, subject),
        ]
    findings.append(guarded("process", processes.check_process, subject))
    if trainable:
        findings.append(guarded("exact resume", repeats.check_resume, subject))
    return findings


def _caught(caught: list[warnings.WarningMessage]) -> Finding:
    """The warnings that the env gave while it was checked."""
    deprecations = (DeprecationWarning, PendingDeprecationWarning)
    texts = [f"{each.category.__name__}: {each.message}" for each in caught if each.category not in deprecations]
    if not texts:
        return Finding("warnings", "ok", "none")
    most_common, count = Counter(texts).most_common(1)[0]
    text = f"{most_common} ({count} times)"
    others = len(set(texts)) - 1
    return Finding("warnings", "warning", f"{text}, and {others} others" if others else text, "mend their cause")
