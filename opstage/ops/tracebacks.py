"""Tracebacks that end at the user's line: the frames of the framework between the user's own are folded away.

`OPSTAGE_TRACEBACK=full` keeps them. JAX and TensorFlow filter theirs at the same place, where a user's call comes in.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from types import FrameType, TracebackType
from typing import ParamSpec, TypeVar

from .errors import OpstageError, is_user_file

P = ParamSpec("P")
T = TypeVar("T")

VARIABLE = "OPSTAGE_TRACEBACK"
WHOLE = "full"


def fold(error: BaseException) -> None:
    """Keep of an error's traceback the frames of files that are not the framework's.

    An error that Opstage did not raise on purpose, and whose innermost frame is its own, is a mistake of Opstage: that
    traceback stays whole.
    """
    if os.environ.get(VARIABLE) == WHOLE:
        return
    entries: list[TracebackType] = []
    traceback = error.__traceback__
    while traceback is not None:
        entries.append(traceback)
        traceback = traceback.tb_next
    own = [entry for entry in entries if is_user_file(entry.tb_frame.f_code.co_filename)]
    if len(own) == len(entries) or not (isinstance(error, OpstageError) or (own and own[-1] is entries[-1])):
        return
    folded: TracebackType | None = None
    for entry in reversed(own):
        folded = TracebackType(folded, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    error.__traceback__ = folded


def called_by_users(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that users call: what it raises has their frames alone, behind the one of this call."""

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        __tracebackhide__ = True  # pytest leaves such frames out
        try:
            return function(*args, **kwargs)
        except Exception as error:
            fold(error)
            raise

    return called


def caller(frame: FrameType) -> FrameType | None:
    """The frame that called, leaving out the one in which tracebacks are folded."""
    above = frame.f_back
    return above.f_back if above is not None and above.f_code is _CALLED else above


_CALLED = called_by_users(fold).__code__  # one code object, whatever is decorated
