"""Call a function in a separate process, so that what it does to an env does not affect this process."""

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from rl_training.errors import describe_error
from rl_training.interpreters import start_fork_server
from rl_training.processes import kill_tree

T = TypeVar("T")


class SubprocessError(Exception):
    """The reason why a function returned no result in its process."""


def call_in_process(function: Callable[[], T], seconds: float) -> T:
    """Call `function` in a new process and return its result; wait at most `seconds`, then kill the process."""
    context = multiprocessing.get_context()
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_call, args=(function, sender), daemon=True)
    try:
        start_fork_server(context.get_start_method())
        process.start()
    except (
        AssertionError,
        OSError,
    ) as error:  # daemonic processes may not have children; the system limits their number
        raise SubprocessError(f"no process can be started: {describe_error(error)}") from None
    sender.close()  # so that the pipe is closed when the process ends
    try:
        if not receiver.poll(seconds):
            raise SubprocessError(f"no answer within {seconds:g} s")
        failure, result = receiver.recv()
        process.join(seconds)
        if process.exitcode is None:
            raise SubprocessError("the process does not end after close()")
    except EOFError:
        process.join(seconds)
        raise SubprocessError(f"the process ended with exit code {process.exitcode}") from None
    finally:
        assert process.pid is not None
        kill_tree(process.pid)  # and everything that an env has started
        process.kill()
        process.join()
        receiver.close()
    if failure:
        raise SubprocessError(failure)
    value: T = result
    return value


def _call(function: Callable[[], Any], sender: Connection) -> None:
    os.setpgid(0, 0)  # Ctrl-C reaches only the parent, which then ends this process and its group
    _discard_output()
    try:
        sender.send((None, function()))
    except Exception as error:  # an env may raise anything; the parent reports it
        sender.send((describe_error(error), None))


def _discard_output() -> None:
    """Discard all further output, including that of C libraries: simulators print notices for every env."""
    null_device = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(null_device, descriptor)
    os.close(null_device)
