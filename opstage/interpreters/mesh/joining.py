"""How a process meets those that were started with it, and ends with them."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ...ops.errors import UsageError


def wait_until_all_processes_have_started(seconds: float) -> Any:
    """Return MPI once all processes have initialised it. Raises UsageError without mpi4py.

    If a process died before, the others wait for it in C and cannot receive messages. After `seconds` this process is
    terminated, with a traceback that shows the name of this function.
    """
    with at_most(seconds):
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            raise UsageError(
                "this process was started together with others, but mpi4py, by which they meet, cannot be used "
                f"({error}): pip install 'opstage[mpi]'"
            ) from None
    return MPI


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Terminate the process if the block takes longer: it waits for something, with Python's lock held, that never
    comes."""
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def end_at_last(seconds: float) -> None:
    """Let this process exit even if another one has died and will not take part in MPI's finalisation."""
    faulthandler.dump_traceback_later(seconds, exit=True)


def pause_to_the_microsecond() -> None:
    """Reduce the kernel's timer slack for this thread."""
    if sys.platform == "linux":
        timer_slack, nanoseconds = 29, 1000
        ctypes.CDLL(None).prctl(timer_slack, nanoseconds)


def end_with_launcher() -> None:
    """Have the kernel kill this process when its parent, the launcher, ends."""
    if sys.platform == "linux":
        parent_death_signal = 1
        ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGKILL)
        if os.getppid() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
