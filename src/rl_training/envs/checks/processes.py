"""Whether an environment runs in a process of its own, as `vectorization: async` wants it to."""

from contextlib import closing
from functools import partial
from itertools import islice

from rl_training.envs.checks.findings import Finding, Subject, random_actions
from rl_training.envs.checks.repeats import Moment, difference, play
from rl_training.envs.subprocesses import SubprocessError, call_in_process

_STEPS = 20
_REMEDY = "use vectorization: sync"


def _moments(subject: Subject) -> list[Moment]:
    """What an env shows that is made, played and closed."""
    with closing(subject.make()) as env:
        actions = list(islice(random_actions(env.action_space, subject.seed, "process"), _STEPS))
        return list(play(env, actions, subject.seed))


def check_process(subject: Subject, timeout: float = 30.0) -> Finding:
    """Whether an env can be made, played and closed in a process, and shows there what it shows here."""
    try:
        moments = call_in_process(partial(_moments, subject), timeout)
    except SubprocessError as error:
        return Finding("process", "warning", str(error), _REMEDY)
    parting = difference(_moments(subject), moments)
    if parting:
        return Finding("process", "warning", f"in a process of its own, {parting}", _REMEDY)
    return Finding("process", "ok", "starts, plays and closes in a process of its own")
