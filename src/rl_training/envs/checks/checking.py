"""All checks of an environment, to be run before a long training run."""

import warnings
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass

from rl_training.envs.checks import bounds, contract, repeats, values
from rl_training.envs.checks.findings import Check, Finding, Subject, run_check
from rl_training.envs.checks.recording import Recording, record

_CONTRACT: dict[str, Check] = {"reset": contract.check_reset, "step": contract.check_step}


@dataclass(frozen=True)
class EnvReport:
    """The findings of all checks, in the order in which the checks ran."""

    subject: Subject
    findings: list[Finding]
    steps_per_second: float | None

    @property
    def has_problem(self) -> bool:
        """Whether any finding would break training."""
        return any(finding.status == "problem" for finding in self.findings)

    @property
    def exact_resume(self) -> str:
        """Whether a resumed run would continue exactly like an uninterrupted one, and why."""
        for finding in self.findings:
            if finding.check == "exact resume":
                verdict = "will hold" if finding.status == "ok" else "will not hold"
                return f"{verdict}: {finding.found}"
        return "not checked: fix the problems first"


def check_environment(subject: Subject) -> EnvReport:
    """Run every check. Raises `EnvironmentSetupError` if the env cannot be made."""
    env = subject.make()
    time_limit = env.spec.max_episode_steps if env.spec else None
    with suppress(Exception):  # the checks close their envs too, and report a failure
        env.close()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        findings: list[Finding] = []
        for name, check in _CONTRACT.items():
            findings.append(run_check(name, check, subject))
            if findings[-1].status == "problem":  # every later check would report the same problem
                return EnvReport(subject, findings, None)
        recording = record(subject)
        if mask_fault := recording.notes.get(("action mask", "problem")):
            return EnvReport(subject, [*findings, mask_fault], None)
        findings.append(run_check("api", contract.check_api, subject))
        findings.append(run_check("spaces", contract.check_spaces, subject))
        trainable = findings[-1].status != "problem"
        findings += _check_recording(recording, time_limit)
        findings += _check_behaviour(subject, trainable=trainable)
        if subject.mask_source != "off" and all(each.check != "action mask" for each in findings):
            findings.append(run_check("action mask", contract.check_mask, subject))
    findings += [_check_warnings(caught), values.check_speed(recording)]
    speed = recording.steps / recording.step_seconds if recording.step_seconds else None
    return EnvReport(subject, findings, speed)


def _check_recording(recording: Recording, time_limit: int | None) -> list[Finding]:
    return [
        values.check_run(recording),
        values.check_endings(recording, time_limit),
        values.check_observations(recording),
        values.check_scale(recording),
        values.check_rewards(recording),
        values.check_arrays(recording),
    ]


def _check_behaviour(subject: Subject, *, trainable: bool) -> list[Finding]:
    """Run the checks that play their own episodes; skip those that an earlier finding has decided."""
    findings = [
        run_check("action bounds", bounds.check_bounds, subject),
        run_check("seed", repeats.check_seed, subject),
    ]
    if findings[-1].status == "ok":
        findings += [
            run_check("reuse", repeats.check_reuse, subject),
            run_check("copies", repeats.check_copies, subject),
            run_check("seeds", repeats.check_seeds_differ, subject),
        ]
    findings.append(run_check("process", repeats.check_process, subject))
    if trainable:
        findings.append(run_check("exact resume", repeats.check_resume, subject))
    return findings


def _check_warnings(caught: list[warnings.WarningMessage]) -> Finding:
    """Report the warnings that were raised during the checks."""
    deprecations = (DeprecationWarning, PendingDeprecationWarning)
    texts = [f"{each.category.__name__}: {each.message}" for each in caught if each.category not in deprecations]
    if not texts:
        return Finding("warnings", "ok", "none")
    most_common, count = Counter(texts).most_common(1)[0]
    text = f"{most_common} ({count} times)"
    others = len(set(texts)) - 1
    return Finding("warnings", "warning", f"{text}, and {others} others" if others else text, "fix their cause")
