"""Check that an environment works in a separate process, as `vectorization: async` requires."""

from contextlib import closing
from functools import partial
from itertools import islice

from rl_training.envs.checks.findings import Finding, Subject, random_actions
from rl_training.envs.checks.repeats import EnvOutput, find_mismatch, play
from rl_training.envs.subprocesses import SubprocessError, call_in_process

_STEPS = 20
_REMEDY = "use vectorization: sync"


def _play_in_fresh_env(subject: Subject) -> list[EnvOutput]:
    """Make an env, play it, close it, and return its outputs."""
    with closing(subject.make()) as env:
        actions = list(islice(random_actions(env.action_space, subject.seed, "process"), _STEPS))
        return list(play(env, actions, subject.seed))


def check_process(subject: Subject, timeout: float = 30.0) -> Finding:
    """Check that an env can be made, played and closed in another process, and behaves there as it does here."""
    try:
        outputs = call_in_process(partial(_play_in_fresh_env, subject), timeout)
    except SubprocessError as error:
        return Finding("process", "warning", str(error), _REMEDY)
    mismatch = find_mismatch(_play_in_fresh_env(subject), outputs)
    if mismatch:
        return Finding("process", "warning", f"in a separate process, {mismatch}", _REMEDY)
    return Finding("process", "ok", "starts, plays and closes in a separate process")
