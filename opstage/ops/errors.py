"""The errors that a user of Opstage can meet, and the search for the user's own line.

Every error is raised where the fault is found, and says where in the user's program that is: `user_frame` walks the
live stack to the first frame that is not Opstage's. Errors are rare, so the walk costs nothing in a program that is
right, and no interpreter has to remember source lines for the sake of its errors.
"""

from __future__ import annotations

import difflib
import linecache
import sys
from collections.abc import Iterable
from functools import cache
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

from .untrusted import printable

_PACKAGE = str(Path(__file__).resolve().parent.parent) + "/"
_PYTHON = str(Path(linecache.__file__).parent) + "/"
_COMMANDS = _PACKAGE + "cli/"
_USER_CODE_INSIDE = _PACKAGE + "models/"  # the shipped models are programs like any user's
_LAYERS_INSIDE = _USER_CODE_INSIDE + "parallel.py"  # which users call as they call ops


class SourceLine(NamedTuple):
    """A line of a user's program, and the part of it that is meant.

    column, end     the first character of that part, counted from 1, and the one behind it; 0 where it is not known
    """

    file: str
    line: int
    column: int = 0
    end: int = 0

    @property
    def text(self) -> str:
        return linecache.getline(self.file, self.line).strip()

    @property
    def carets(self) -> str:
        """A line to print beneath `text`: `^^^` under the part that is meant; empty where that is not known."""
        line = linecache.getline(self.file, self.line).rstrip()
        indent = len(line) - len(line.lstrip())
        start, end = self.column - 1 - indent, min(self.end - 1, len(line)) - indent
        return " " * start + "^" * (end - start) if 0 <= start < end else ""

    def __str__(self) -> str:
        path = Path(self.file)
        try:
            path = path.relative_to(Path.cwd())
        except ValueError:
            pass
        return f"{path}:{self.line}"


class Place(NamedTuple):
    """An instruction of a user's program: what is quick to note for every op, and `SourceLine` tells when asked for."""

    code: CodeType
    instruction: int
    number: int

    @property
    def source(self) -> SourceLine:
        """The line, and the expression on it, which for an op is its call."""
        code, file = self.code, self.code.co_filename
        line, end_line, column, end = next(islice(code.co_positions(), self.instruction // 2, None), (None,) * 4)
        if line != self.number or column is None or end is None:
            return SourceLine(file, self.number)
        text = linecache.getline(file, self.number)  # the columns are those of its bytes
        start = len(text.encode()[:column].decode(errors="replace"))
        stop = len(text.encode()[:end].decode(errors="replace")) if end_line == line else len(text.rstrip())
        return SourceLine(file, self.number, start + 1, stop + 1)


@cache  # called for every frame of every op that a check places
def is_user_file(file: str) -> bool:
    """Whether code from `file` belongs to a program rather than to the framework."""
    return not file.startswith(_PACKAGE) or (file.startswith(_USER_CODE_INSIDE) and file != _LAYERS_INSIDE)


@cache
def _is_command(file: str) -> bool:
    return file.startswith(_COMMANDS)


def is_library(file: str) -> bool:
    """Whether code from `file` was installed, or came with Python, so that nobody looks for a mistake there first."""
    return file.startswith((_PYTHON, "<")) or any(f"{folder}/" in file for folder in ("site-packages", "dist-packages"))


def is_written(code: CodeType) -> bool:
    """Whether somebody wrote it: not the interpreter's own, nor what a dataclass generates."""
    file = code.co_filename
    return not (file.startswith("<frozen") or (file == "<string>" and code.co_name == "__init__"))


def _innermost() -> FrameType | None:
    """The innermost frame that is not the framework's own; None beneath a command, where nobody's is."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if is_user_file(file):
            if is_written(frame.f_code):
                return frame
        elif _is_command(file):
            return None
        frame = frame.f_back
    return None


def user_frame() -> SourceLine | None:
    """The innermost line on the stack that is not the framework's own; None beneath a command, where nobody's is."""
    frame = _innermost()
    return None if frame is None else SourceLine(frame.f_code.co_filename, frame.f_lineno)


def user_place() -> Place | None:
    """The same as `user_frame`, with the instruction on that line."""
    frame = _innermost()
    return None if frame is None else Place(frame.f_code, frame.f_lasti, frame.f_lineno)


def user_calls(until: CodeType) -> tuple[SourceLine, ...]:
    """The user's lines that led to the innermost one, innermost first, up to the frame that runs `until`."""
    calls: list[SourceLine] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not until:
        file = frame.f_code.co_filename
        if is_user_file(file) and is_written(frame.f_code):
            calls.append(Place(frame.f_code, frame.f_lasti, frame.f_lineno).source)
        frame = frame.f_back
    return tuple(calls[1:])


def _user_expression() -> SourceLine | None:
    place = user_place()
    return None if place is None else place.source


class OpstageError(Exception):
    """The base of every error that Opstage raises on purpose.

    Its message may hold names and values from files that anybody can have made; it is kept as `printable` gives it.
    """

    def __init__(self, *message: object):
        super().__init__(*[printable(part) if isinstance(part, str) else part for part in message])


class UsageError(OpstageError, ValueError):
    """Bad input to Opstage: an unknown option, a missing file, a wrong argument (exit code 2 on a command line)."""


class ValidationError(UsageError):
    """A program that the shape checker found wrong before it ran; `report` is what it found."""

    def __init__(self, message: str, report: object = None):
        super().__init__(message)
        self.report = report


class ProgramWarning(UserWarning):
    """A suspicious construct that the shape checker reports and lets run; `finding` is the same as data."""

    def __init__(self, message: str, finding: object = None):
        super().__init__(message)
        self.finding = finding


class ProgramError(OpstageError, TypeError):
    """A program that breaks the rules of refs: mixes interpreters, uses a ref too late, returns what is not a ref."""


class UnknownNameError(OpstageError, AttributeError):
    """A name that neither the ops nor refs have; it says what ours is for those of other libraries.

    `name` and `obj` are as in any AttributeError: where they are given, Python adds the nearest name.
    """

    def __init__(self, message: str, name: str | None = None, obj: object = None):
        super().__init__(message)
        self.name, self.obj = name, obj


class LocatedError(OpstageError):
    """An error at an op: which op, on which line of the user's program, in which region, and why.

    `reason` alone is the same on every interpreter; `str()` puts the place before it.
    """

    def __init__(self, reason: str, *, op: str | None = None, region: str = "", source: SourceLine | None = None):
        super().__init__(reason)
        self.reason: str = self.args[0]
        self.op = op
        self.region = region
        self.source = source if source is not None else _user_expression()
        self.about: object = None  # the tensor that the error is about, where no op is at fault
        self._relocated = False

    def place(self, op: str, region: str) -> None:
        """Fill in the op, unless an inner one already did, and the region."""
        if self.op is None:
            self.op = op
        if not self.region:
            self.region = region

    def relocate(self, source: SourceLine | None, region: str) -> None:
        """Move an error that appears while a body runs to the op in the body; the innermost body knows best."""
        if not self._relocated:
            self.source, self.region, self._relocated = source, region, True

    def __str__(self) -> str:
        place = self.op or ""
        if self.source is not None:
            place += f" at {self.source}" if place else f"at {self.source}"
        if self.region:
            place += f" ({self.region})"
        return printable(f"{place}: {self.reason}" if place else self.reason)


class MeshError(LocatedError, ValueError):
    """A collective on what all ranks have alike, or on what they have not; see `opstage.ops.mesh`."""


class RankError(LocatedError, RuntimeError):
    """Another process of a run has failed, died, stands still or is elsewhere; says which, where, and in what."""


class ShapeError(LocatedError, ValueError):
    """Shapes, ranks or static parameters that do not fit an op.

    `constraint` is one on the named dims that would rule the error out, as a Spec's `where` takes it, if there is any.
    """

    constraint: str | None = None


class DtypeError(LocatedError, TypeError):
    """An operand of a dtype that an op does not take."""


class UnsupportedError(LocatedError, NotImplementedError):
    """An op, dtype or device that an interpreter does not support; it is never worked around silently.

    `every_op` says that it can do no op at all, for the same reason: then a check says so once.
    """

    every_op: bool = False


class RangeError(LocatedError, IndexError):
    """An index or label out of range, or data outside of what a Spec declares, found when the values are known."""


class OutOfMemoryError(LocatedError, MemoryError):
    """A device, or the system, has no room for a tensor; says what was asked for, and of a device what is held and what
    is free."""


class DeviceError(LocatedError, RuntimeError):
    """A failure of a device's driver or of one of its libraries.

    lost    whether this process can use the device no more; otherwise it can go on
    """

    def __init__(self, reason: str, *, lost: bool = False):
        super().__init__(reason)
        self.lost = lost


_LONGEST_NAME = 200


def nearest(name: str, choices: Iterable[str]) -> str:
    """` (did you mean 'x'?)` for the closest of `choices`, or nothing when none is close.

    Comparing takes time in the square of their lengths, so longer ones than anybody mistypes are left out.
    """
    short = [text for choice in choices if len(text := str(choice)) <= _LONGEST_NAME]
    close = difflib.get_close_matches(str(name), short, n=1, cutoff=0.5) if len(str(name)) <= _LONGEST_NAME else []
    return f" (did you mean {close[0]!r}?)" if close else ""
