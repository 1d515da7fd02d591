"""Failure injection: a signal's handler that raises, at each place of functions where Python runs handlers."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any


class Interrupt(BaseException):
    """What the handler raises."""


def interrupted(run: Callable[[], None], *functions: Callable[..., Any]) -> Iterator[int]:
    """Call `run` again and again, interrupted at the first, second … place within `functions`; yield its number.

    Python runs handlers behind calls, at jumps backward and at the beginning of a function.
    """
    places = {function.__code__: _places(function.__code__) for function in functions}
    at, reached = 0, True
    while reached:
        at, reached = at + 1, False
        left = at

        def trace(frame: Any, event: str, _: Any) -> Any:
            nonlocal left, reached
            frame.f_trace_opcodes = frame.f_code in places
            if event == "opcode" and frame.f_lasti in places.get(frame.f_code, ()):
                left -= 1
                if left == 0:
                    reached = True
                    raise Interrupt
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            run()
        except Interrupt:
            pass
        finally:
            sys.settrace(before)
        yield at


def _places(code: CodeType) -> set[int]:
    found, before = set(), "RESUME"
    for instruction in dis.get_instructions(code):
        if before.startswith(("CALL", "RESUME", "JUMP_BACKWARD")):
            found.add(instruction.offset)
        before = instruction.opname
    return found
