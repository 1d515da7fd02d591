"""The errors that users of Opstage can meet, the search for the user's own line, and values of any size in messages.

Every error is raised where the fault is found, and has the position in the user's program: `user_frame` walks the live
stack to the first frame outside of Opstage. Errors are rare, so correct programs pay nothing, and interpreters need not
track source lines for errors.
"""

from __future__ import annotations

import ast
import difflib
import linecache
import math
import reprlib
import sys
import warnings
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple


class OpstageError(Exception):
    """The base of all errors that Opstage raises on purpose.

    Messages may contain names and values from untrusted files; they are stored in `printable` form.
    """

    def __init__(self, *message: object):
        super().__init__(*[printable(part) if isinstance(part, str) else part for part in message])


class UsageError(OpstageError, ValueError):
    """Bad input to Opstage: an unknown option, a missing file, an invalid argument (exit code 2 on a command line)."""


def is_installed(package: str) -> bool:
    """Return whether `package` can be imported, found out without importing it."""
    return find_spec(package) is not None


def require_extra(package: str, extra: str, wanted_by: str, name: str = "") -> None:
    """Raise a UsageError that names the extra when `package`, installed under `name`, is not there."""
    if not is_installed(package):
        raise UsageError(f"{wanted_by} needs {name or package}, which is not installed; pip install 'opstage[{extra}]'")


class ValidationError(UsageError):
    """A program that the shape checker rejected before running it, with its `report`."""

    def __init__(self, message: str, report: object = None):
        super().__init__(message)
        self.report = report


class ProgramWarning(UserWarning):
    """A suspicious construct that the shape checker reports and allows; `finding` is its data."""

    def __init__(self, message: str, finding: object = None):
        super().__init__(message)
        self.finding = finding


class ProgramError(OpstageError, TypeError):
    """A program that breaks the rules of refs: mixes interpreters, uses a ref too late, or returns something else."""


class UnknownNameError(OpstageError, AttributeError):
    """A name that neither ops nor refs have; the message names Opstage's equivalent for names of other libraries.

    `name` and `obj` are as in any AttributeError: if they are set, Python suggests the nearest name.
    """

    def __init__(self, message: str, name: str | None = None, obj: object = None):
        super().__init__(message)
        self.name, self.obj = name, obj


class LocatedError(OpstageError):
    """An error at an op, with the op, the user's line, the region and the reason.

    `reason` is the same on every interpreter; `str()` prepends the position.
    """

    def __init__(self, reason: str, *, op: str | None = None, region: str = "", source: SourceLine | None = None):
        super().__init__(reason)
        self.reason: str = self.args[0]
        self.op = op
        self.region = region
        self.source = source if source is not None else _user_expression()
        self.about: object = None  # the tensor that the error is about, if not an op
        self._relocated = False

    def place(self, op: str, region: str) -> None:
        """Set the op, unless an inner op has set it, and the region."""
        if self.op is None:
            self.op = op
        if not self.region:
            self.region = region

    def relocate(self, source: SourceLine | None, region: str) -> None:
        """Set the position of an error in a running body to the op in the body; the innermost body takes precedence."""
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
    """A collective on a replicated value, or on one that unexpectedly varies; see `opstage.ops.mesh`."""


class RankError(LocatedError, RuntimeError):
    """Another process of a run has failed, died, hung, or is at another point of the program."""


class ShapeError(LocatedError, ValueError):
    """Shapes, ranks or static parameters that do not fit an op.

    `constraint` is a constraint on named dims that would avoid the error, in the form of a Spec's `where`, if there is
    one.
    """

    constraint: str | None = None


class DtypeError(LocatedError, TypeError):
    """An operand with a dtype that an op does not accept."""


class UnsupportedError(LocatedError, NotImplementedError):
    """An op, dtype or device that an interpreter does not support; nothing falls back silently.

    `every_op` says that no op at all works, for the same reason, so that a check reports it once.
    """

    every_op: bool = False


class RangeError(LocatedError, IndexError):
    """An index or label out of range, or data outside of a Spec's declared range, found when values are known."""


class OutOfMemoryError(LocatedError, MemoryError):
    """A device or the system is out of memory; the message has the requested size and, for a device, its usage."""


class DeviceError(LocatedError, RuntimeError):
    """A failure of a device's driver or of one of its libraries.

    lost    whether this process can no longer use the device
    """

    def __init__(self, reason: str, *, lost: bool = False):
        super().__init__(reason)
        self.lost = lost


_LONGEST_NAME = 200


def nearest(name: str, choices: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)` for the closest of `choices`, or an empty text if none is close.

    Comparison takes quadratic time, so names longer than any plausible typo are skipped.
    """
    short = [text for choice in choices if len(text := str(choice)) <= _LONGEST_NAME]
    close = difflib.get_close_matches(str(name), short, n=1, cutoff=0.5) if len(str(name)) <= _LONGEST_NAME else []
    return f" (did you mean {close[0]!r}?)" if close else ""


# Errors of symbolic dims ----------------------------------------------------------------------------------------------


class SymbolicDimError(OpstageError, TypeError):
    """A symbolic dim was used where a number is required, such as `range(T)` or `float(T)`."""

    def __init__(self, text: str, use: str):
        super().__init__(
            f"{text} is symbolic: it stands for every allowed size, so it has no single value for {use}. "
            "Keep it in shape arithmetic (+ - * // %), or give the input a fixed size there"
        )


class TooComplexError(ShapeError):
    """An expression of sizes exceeds a complexity limit; the limits are in `polynomial`."""

    def __init__(self, what: str):
        super().__init__(
            f"an expression of sizes grows too large: {what}; write it with fewer names, powers or nested parts"
        )


class MissingSizeError(UsageError, KeyError):
    """An expression was evaluated without a value for one of its names."""

    def __init__(self, name: str, given: Iterable[str]):
        super().__init__(f"the value of dim {name} is missing; values were given for: {', '.join(given) or 'none'}")

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would quote it


class UndecidedDimError(LocatedError, TypeError):
    """A relation of dims was used as a truth value, but holds for some allowed values and possibly not for others."""


def unhashable(text: str) -> UndecidedDimError:
    """Return the error for a user's set or dict that looks up a size that is not decided."""
    return UndecidedDimError(
        f"{text} is symbolic: it stands for every allowed size, so a set or dict, which looks up one number, would not "
        "find it. Compare it, as in `size in (224, 256)`, which asks ==; give the input a fixed size there; or use "
        "str(size) as the key"
    )


class UnknownDimError(UndecidedDimError):
    """The value of `?` was requested: a consequence of an error that was already reported."""


# Values in messages ---------------------------------------------------------------------------------------------------

# Python's own limits do not suffice: an integer of 5,000 digits cannot be printed, one of 4,000 fills the screen; a
# syntax tree may be too deep to walk; a string may contain terminal control sequences.

_MOST_SHOWN = 80
_LONGEST_MESSAGE = 5000


class _Brief(reprlib.Repr):
    """A `repr` that is truncated; very long integers are shown by their number of digits."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxstring = self.maxother = _MOST_SHOWN
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = 8

    def repr_int(self, value: int, level: int) -> str:
        digits = int(value.bit_length() * math.log10(2)) + 1
        return repr(value) if digits <= _MOST_SHOWN else f"an integer of about {digits:,} digits"

    def repr_str(self, value: str, level: int) -> str:
        return repr(value if len(value) <= self.maxstring else f"{value[: self.maxstring - 3]}...")


_BRIEF = _Brief()


def brief(value: Any) -> str:
    """Return `repr(value)` truncated to about 80 characters, for messages about values of any size."""
    return _BRIEF.repr(value)


def a_type(value: Any) -> str:
    """Return the name of a value's type after its article: `a list`, `an int`; for None that itself."""
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeiouAEIOU' or name == 'ndarray' else 'a'} {name}"


def printable(message: str) -> str:
    """Escape control and unprintable characters of a message, and cut the middle of a very long one."""
    if len(message) > _LONGEST_MESSAGE:
        kept = _LONGEST_MESSAGE // 2
        left_out = len(message) - 2 * kept
        message = f"{message[:kept]} … ({left_out:,} characters are left out) … {message[-kept:]}"
    return escaped(message)


def escaped(text: str) -> str:
    """Escape control and unprintable characters of a text, without cutting it."""
    if text.isprintable():
        return text
    return "".join([c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text])


def syntax_depth(tree: ast.AST) -> int:
    """Return the depth of a syntax tree, where a sum of any number of terms counts as one level. Not recursive."""
    deepest = 0
    waiting: list[tuple[ast.AST, int]] = [(tree, 1)]
    while waiting:
        node, depth = waiting.pop()
        deepest = max(deepest, depth)
        for child in ast.iter_child_nodes(node):
            is_chain = isinstance(node, ast.BinOp) and child is node.left and isinstance(child, ast.BinOp)
            waiting.append((child, depth if is_chain else depth + 1))
    return deepest


def shown(names: Iterable[str], most: int = 20) -> str:
    """Join names by commas, the first ones if there are many."""
    listed = list(names)
    rest = f" … and {len(listed) - most:,} more" if len(listed) > most else ""
    return (
        ", ".join(name if len(name) <= _MOST_SHOWN else f"{name[: _MOST_SHOWN - 3]}..." for name in listed[:most])
        + rest
    )


_PACKAGE = str(Path(__file__).resolve().parent.parent) + "/"
_PYTHON = str(Path(linecache.__file__).parent) + "/"
_COMMANDS = _PACKAGE + "cli/"
_USER_CODE_INSIDE = _PACKAGE + "models/"  # the shipped models are programs like any user's
_LAYERS_INSIDE = _USER_CODE_INSIDE + "parallel.py"  # which users call as they call ops


class SourceLine(NamedTuple):
    """A line of a user's program, and the expression on it.

    column, end     the first column of the expression, from 1, and the column after it; 0 if unknown
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
        """Return a line to print below `text`, with `^^^` under the expression; empty if it is unknown."""
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
    """An instruction of a user's program. It is cheap to record for every op; `source` resolves it on demand."""

    code: CodeType
    instruction: int
    number: int

    @property
    def source(self) -> SourceLine:
        """Return the line, and the expression on it, which for an op is its call."""
        code, file = self.code, self.code.co_filename
        line, end_line, column, end = next(islice(code.co_positions(), self.instruction // 2, None), (None,) * 4)
        if line != self.number or column is None or end is None:
            return SourceLine(file, self.number)
        text = linecache.getline(file, self.number)  # columns count bytes of the line
        start = len(text.encode()[:column].decode(errors="replace"))
        stop = len(text.encode()[:end].decode(errors="replace")) if end_line == line else len(text.rstrip())
        return SourceLine(file, self.number, start + 1, stop + 1)


@cache  # called for every frame of every op that a check places
def is_user_file(file: str) -> bool:
    """Return whether code from `file` belongs to a program rather than to the framework."""
    return not file.startswith(_PACKAGE) or (file.startswith(_USER_CODE_INSIDE) and file != _LAYERS_INSIDE)


@cache
def _is_command(file: str) -> bool:
    return file.startswith(_COMMANDS)


def is_library(file: str) -> bool:
    """Return whether `file` belongs to an installed package or to Python, where users do not look for mistakes
    first."""
    return file.startswith((_PYTHON, "<")) or any(f"{folder}/" in file for folder in ("site-packages", "dist-packages"))


def is_written(code: CodeType) -> bool:
    """Return whether code was written by a person: not frozen, nor generated by a dataclass."""
    file = code.co_filename
    return not (file.startswith("<frozen") or (file == "<string>" and code.co_name.startswith("__")))


def is_called_by_user() -> bool:
    """Return whether the operator that calls the calling method, such as `==` or `in`, is in the user's code, directly
    or through Python's library."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and (frame.f_code.co_filename.startswith(_PYTHON) or not is_written(frame.f_code)):
        frame = frame.f_back
    return frame is not None and is_user_file(frame.f_code.co_filename)


def _innermost() -> FrameType | None:
    """Return the innermost frame outside of the framework; None under a command."""
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
    """Return the innermost line on the stack outside of the framework; None under a command."""
    frame = _innermost()
    return None if frame is None else SourceLine(frame.f_code.co_filename, frame.f_lineno)


_warned: dict[Any, int] = {}


def warn_user(warning: Warning, source: SourceLine | None = None) -> None:
    """Issue a warning at a line of the program, or at the user's line that called the framework."""
    source = user_frame() if source is None else source
    if source is None:
        warnings.warn(warning, stacklevel=2)
    else:
        warnings.warn_explicit(warning, None, source.file, source.line, registry=_warned)


def user_place() -> Place | None:
    """Return the same as `user_frame`, with the instruction."""
    frame = _innermost()
    return None if frame is None else Place(frame.f_code, frame.f_lasti, frame.f_lineno)


def user_calls(until: CodeType) -> tuple[SourceLine, ...]:
    """Return the user's lines that called the innermost one, innermost first, up to the frame that runs `until`."""
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
