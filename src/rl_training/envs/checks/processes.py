"""Whether an environment runs in a process of its own, as `vectorization: async` wants it to."""

import multiprocessing
from contextlib import closing
from itertools import islice
from multiprocessing.connection import Connection

from rl_training.envs.checks.findings import Finding, Subject, random_actions
from rl_training.envs.checks.repeats import Moment, difference, play
from rl_training.errors import told

_STEPS = 20
_REMEDY = "use vectorization: sync"


def _moments(subject: Subject) -> list[Moment]:
    """What an env shows that is made, played and closed."""
    with closing(subject.make()) as env:
        actions = list(islice(random_actions(env.action_space, subject.seed, "process"), _STEPS))
        return list(play(env, actions, subject.seed))


def _work(subject: Subject, sender: Connection) -> None:
    try:
        sender.send((None, _moments(subject)))
    except Exception as error:  # an env may raise anything; the owner tells the user
        sender.send((told(error), []))


def check_process(subject: Subject, timeout: float = 30.0) -> Finding:
    """Whether an env can be made, played and closed in a process, and shows there what it shows here."""
    context = multiprocessing.get_context()
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(subject, sender), daemon=True)
    process.start()
    sender.close()  # so that the end of the process is the end of the pipe
    try:
        if not receiver.poll(timeout):
            text = f"no answer within {timeout:g} s"
            return Finding("process", "warning", text, _REMEDY)
        failure, moments = receiver.recv()
        process.join(timeout)
        ended = process.exitcode is not None
    except EOFError:
        process.join(timeout)
        text = f"the process ended with exit code {process.exitcode}"
        return Finding("process", "warning", text, _REMEDY)
    finally:
        process.kill()
        process.join()
        receiver.close()
    if failure or not ended:
        return Finding("process", "warning", failure or "the process does not end after close()", _REMEDY)
    parting = difference(_moments(subject), moments)
    if parting:
        return Finding("process", "warning", f"in a process of its own, {parting}", _REMEDY)
    return Finding("process", "ok", "starts, plays and closes in a process of its own")
