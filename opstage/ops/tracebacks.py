"""Tracebacks that end at the user's line: frames of the framework between user frames are removed.

`OPSTAGE_TRACEBACK=full` keeps them. JAX and TensorFlow filter at the same point, where a user's call enters.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from types import FrameType, TracebackType
from typing import Any, ParamSpec, TypeVar, final

from .errors import DtypeError, OpstageError, UsageError, ValidationError, is_user_file, is_written, nearest

P = ParamSpec("P")
T = TypeVar("T")

VARIABLE = "OPSTAGE_TRACEBACK"
WHOLE = "full"


def fold(error: BaseException) -> None:
    """Remove the framework's frames from an error's traceback, and from those of the errors that led to it.

    An error that Opstage did not raise on purpose, and whose innermost frame is Opstage's, is a bug in Opstage; its
    traceback is kept. An interrupt comes wherever the framework is, and is folded.
    """
    if os.environ.get(VARIABLE) == WHOLE:
        return
    _fold(error, isinstance(error, (OpstageError, KeyboardInterrupt)))
    if isinstance(error, OpstageError):
        seen: set[int] = {id(error)}
        cause = _shown_cause(error)
        while cause is not None and id(cause) not in seen:  # chains made by hand may be circular
            seen.add(id(cause))
            _fold(cause, on_purpose=True)
            cause = _shown_cause(cause)


def _shown_cause(error: BaseException) -> BaseException | None:
    """Return the error that Python prints above this one."""
    if error.__cause__ is not None or error.__suppress_context__:
        return error.__cause__
    return error.__context__


def _fold(error: BaseException, on_purpose: bool) -> None:
    entries: list[TracebackType] = []
    traceback = error.__traceback__
    while traceback is not None:
        entries.append(traceback)
        traceback = traceback.tb_next
    codes = [(entry, entry.tb_frame.f_code) for entry in entries]
    own = [entry for entry, code in codes if is_user_file(code.co_filename) and is_written(code)]
    if len(own) == len(entries) or not (on_purpose or (own and own[-1] is entries[-1])):
        return
    folded: TracebackType | None = None
    for entry in reversed(own):
        folded = TracebackType(folded, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    error.__traceback__ = folded


def called_by_users(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a public function: errors that it raises only show user frames, below the frame of this call."""

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        __tracebackhide__ = True  # pytest leaves such frames out
        try:
            return function(*args, **kwargs)
        except (Exception, KeyboardInterrupt) as error:
            beneath = error.__traceback__
            if not isinstance(error, TypeError) or beneath is None or beneath.tb_next is not None:
                fold(error)
                note_widened(error, args, kwargs)
                raise
            problem = _arguments_problem(function.__name__, function, args, kwargs)
            if problem is None:
                raise
        try:
            raise ArgumentsError(problem)
        except ArgumentsError as refused:
            fold(refused)
            raise

    return called


def constructed_by_users(made: type[T]) -> type[T]:
    """Decorate a public class: errors of its constructor end at the user's frame.

    Invalid constructor arguments raise an `ArgumentsError` that names the nearest keyword. The class keeps its
    signature.
    """
    changed: Any = made
    init = changed.__init__

    @called_by_users
    @wraps(init)
    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            init(self, *args, **kwargs)
        except TypeError as error:
            beneath = error.__traceback__
            if beneath is None or beneath.tb_next is not None:
                raise  # raised within the constructor, which accepted the arguments
            problem = _arguments_problem(made.__name__, init, (self, *args), kwargs)
            if problem is None:
                raise
        else:
            return
        raise ArgumentsError(problem)

    changed.__init__ = checked
    return made


@final
class ArgumentsError(UsageError, TypeError):
    """A call with arguments that the function does not accept; also a TypeError, as in Python."""


def _arguments_problem(
    name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> str | None:
    """Return why these are not valid arguments of a function, or of a method, whose first is the object, or None."""
    signature = inspect.signature(function)
    own = list(signature.parameters.values())
    own = own[own[0].name == "self" :] if own else own
    keywords = [p.name for p in own if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    takes = f"; it takes {', '.join(f'{keyword}=' for keyword in keywords)}" if keywords else ""
    open_ended = any(p.kind is p.VAR_KEYWORD for p in own)
    for keyword in kwargs:
        if keyword not in keywords and not open_ended:
            return f"{name} does not have a keyword {keyword}={nearest(keyword, keywords)}{takes}"
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        return f"{name}: {error}{takes}"
    return None


def caller(frame: FrameType) -> FrameType | None:
    """Return the calling frame, skipping the wrapper that folds tracebacks."""
    above = frame.f_back
    return above.f_back if above is not None and above.f_code is _CALLED else above


_CALLED = called_by_users(fold).__code__  # a single code object, shared by all decorated functions


# What came in a dtype that a program does not have -------------------------------------------------------------------

_NOTE = "and is int64 in a program, whose integers are int32 and int64"

_WIDENED = ("uint8", "uint16", "uint32", "uint64", "int8", "int16")


def note_widened(error: BaseException, *given: Any) -> None:
    """Add a note to an error of dtypes that names the arrays among `given` whose integers became int64.

    Messages name the dtypes that a program has, which are not those of such arrays: pixels are uint8 where they are
    read, and int64 in the program.
    """
    if not isinstance(error, (DtypeError, ValidationError)) or "int64" not in str(error):
        return
    found: list[str] = []
    _search(given, found, 0)
    if not found or any(_NOTE in note for note in getattr(error, "__notes__", ())):  # calls may be nested
        return
    which = ", ".join(dict.fromkeys(found))
    error.add_note(f"{which} was given, {_NOTE}; where floats are meant, give them: x.astype('float32')")


def _search(value: Any, found: list[str], depth: int) -> None:
    dtype = str(getattr(value, "dtype", ""))
    if dtype in _WIDENED:
        shape = tuple(getattr(value, "shape", ()))
        found.append(f"an array {shape} of {dtype}")
    elif depth < 8 and not dtype:
        for inner in _parts(value):
            _search(inner, found, depth + 1)


def _parts(value: Any) -> Sequence[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (list, tuple)):
        return value
    arrays = getattr(value, "arrays", ())  # of a Dataset
    return arrays if isinstance(arrays, tuple) else ()
