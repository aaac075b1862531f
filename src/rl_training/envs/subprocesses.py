"""Calling a function in a process of its own, because what it does to an env must not touch this one."""

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
    """Why a function gave no result in its process."""


def call_in_process(function: Callable[[], T], seconds: float) -> T:
    """Return what `function` returns in a process of its own, which is gone afterwards; wait `seconds` at most."""
    context = multiprocessing.get_context()
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_call, args=(function, sender), daemon=True)
    try:
        start_fork_server(context.get_start_method())
        process.start()
    except (AssertionError, OSError) as error:  # a daemonic process may have no children; others may be too many
        raise SubprocessError(f"no process can be started: {describe_error(error)}") from None
    sender.close()  # so that the end of the process is the end of the pipe
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
        kill_tree(process.pid)  # with whatever an env has started
        process.kill()
        process.join()
        receiver.close()
    if failure:
        raise SubprocessError(failure)
    value: T = result
    return value


def _call(function: Callable[[], Any], sender: Connection) -> None:
    os.setpgid(0, 0)  # Ctrl-C is for the owner, which then ends this process and its group
    _silence()
    try:
        sender.send((None, function()))
    except Exception as error:  # an env may raise anything; the owner tells the user
        sender.send((describe_error(error), None))


def _silence() -> None:
    """Drop what is printed from here on, by C libraries too: simulators repeat their notices for every env."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)
