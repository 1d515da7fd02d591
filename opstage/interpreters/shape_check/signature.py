"""Locate a program's arguments in its source."""

from __future__ import annotations

import functools
import inspect
import linecache
import re
from typing import Any

from ...ops.errors import SourceLine

_LONGEST = 100  # lines of a signature, including decorators


def argument_line(program: Any, path: str) -> SourceLine | None:
    """Return the line of the argument with a path such as `x`, `batch.x` or `rest[0]`; None if it is not found."""
    while isinstance(program, functools.partial) or hasattr(program, "__wrapped__"):
        program = program.func if isinstance(program, functools.partial) else inspect.unwrap(program)
    code = getattr(program, "__code__", None)
    name = re.split(r"[.\[]", path)[0]
    if code is None or name not in code.co_varnames:
        return None
    begin = re.compile(r"\blambda\b" if code.co_name == "<lambda>" else rf"\bdef\s+{code.co_name}\b")
    begun = False
    for number in range(code.co_firstlineno, code.co_firstlineno + _LONGEST):
        line = linecache.getline(code.co_filename, number)
        start = None if begun else begin.search(line)
        begun = begun or start is not None
        found = re.compile(rf"\b{name}\b").search(line, start.end() if start else 0) if begun else None
        if found:
            return SourceLine(code.co_filename, number, found.start() + 1, found.end() + 1)
    return None
