"""Observation of a recording: which functions outside the framework ran, and what they read from outside.

`sys.setprofile` reports which functions run, so nothing is guessed: a helper is found however it was reached, and code
that did not run is ignored.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple, final

import numpy as np

from ...ops.errors import SourceLine, is_user_file, user_frame
from ...ops.host_arrays import find_owner
from ...ops.infix import Infix
from ...ops.protocol import Ops
from ...ops.trees import Scalars
from ...threads import paused_gc
from .bytecode import list_reads
from .guard import is_plain


class Ran(NamedTuple):
    """A function that ran: its code, its globals, and weak references to values of its names, such as `self`.

    methods     weak references to the functions, by id, if it is a generated method; see `_Kind`
    """

    code: CodeType
    globals: dict[str, Any]
    values: dict[tuple[int, str], tuple[str, Callable[[], Any]]]
    methods: dict[int, weakref.ref[FunctionType]]


@final
class Observation:
    """The functions that ran in one thread while this was active, and what they read; see `observed`.

    functions   by code and globals
    asked       external inputs that were read, such as a clock or a file, and where
    arrays      the owners of the memory of arrays that became constants, and where
    variables   the environment variables that were read
    modules     the modules that were imported by importlib.import_module
    namespaces  the globals that were read as a whole, by id
    """

    def __init__(self) -> None:
        self.functions: dict[tuple[int, int], Ran] = {}
        self.asked: dict[str, SourceLine | None] = {}
        self.arrays: list[tuple[Callable[[], Any], Callable[[], Any], SourceLine | None]] = []
        self.variables: dict[str, SourceLine | None] = {}
        self.modules: dict[str, SourceLine | None] = {}
        self.namespaces: dict[int, tuple[dict[str, Any], SourceLine | None]] = {}
        self._kinds: dict[int, _Kind] = {}  # by the id of the code

    def profiler(self) -> Callable[[FrameType, str, Any], None]:
        """The callback for `sys.setprofile`, which is called four times for a call: so it looks at little."""
        kinds, asks, called, built_in = self._kinds, _ASKS, self._record_call, self._record_builtin

        def note(frame: FrameType, event: str, arg: Any) -> None:
            if event == "call":
                kind = kinds.get(id(frame.f_code))
                if kind is None:
                    kind = kinds[id(frame.f_code)] = _Kind(frame.f_code, frame.f_globals)
                if kind.watched:
                    called(frame, kind)
            elif event == "c_call" and arg.__name__ in asks:
                built_in(frame, arg)

        return note

    def _record_call(self, frame: FrameType, kind: _Kind) -> None:
        """A function of a program was called, or one that reads Python's state by a name."""
        if kind.program:
            if not _is_importing(frame):
                self._record_function(frame, kind)
            return
        where = _program_line(frame)
        if where is not None:
            noted = self.variables if kind.argument == "key" else self.modules
            noted.setdefault(frame.f_locals[kind.argument], where)

    def _record_builtin(self, frame: FrameType, function: Any) -> None:
        """A function written in C was called that has the name of one that reads Python's state, or the world's."""
        if function is globals:
            if is_program_file(frame.f_code.co_filename):
                self.namespaces[id(frame.f_globals)] = frame.f_globals, _program_line(frame)
            return
        owners = _WORLD.get(function.__name__)
        known = self._kinds.get(id(frame.f_code))
        if owners is not None and (known is None or known.outside):
            owner = getattr(function, "__self__", None)
            name = getattr(owner, "__name__", type(owner).__name__)
            where = _program_line(frame)
            if name in owners and where is not None:
                self.asked.setdefault(f"{name.lstrip('_')}.{function.__name__}", where)

    def _record_function(self, frame: FrameType, kind: _Kind) -> None:
        code = kind.code
        key = (id(code), id(frame.f_globals))
        ran = self.functions.get(key)
        if ran is None:
            ran = self.functions[key] = Ran(code, frame.f_globals, {}, {})
        if kind.generated and not ran.methods:
            for method in find_methods(frame.f_locals[code.co_varnames[0]], code):
                ran.methods[id(method)] = weakref.ref(method)
        if kind.names:
            values = frame.f_locals
            for name in kind.names:
                value = values.get(name)
                if not (is_plain(value) or type(value) in _TREES or isinstance(value, _REFS)):
                    ran.values.setdefault((id(value), name), (name, _weak_reference(value)))

    def constant(self, value: Any) -> None:
        """Record an array that became a constant, if it may outlive the recording."""
        if isinstance(value, np.ndarray):
            owner = find_owner(value)
            if owner.base is None:
                self.arrays.append((weakref.ref(value), weakref.ref(owner), user_frame()))
            elif owner.flags.writeable:  # in memory owned by another object
                self.arrays.append((lambda: value, lambda: owner, user_frame()))


def find_methods(value: Any, code: CodeType) -> Iterator[FunctionType]:
    """Return the functions of that code which are methods of an object."""
    for base in type(value).__mro__:
        defined = vars(base).get(code.co_name)
        function = getattr(defined, "__func__", None) or getattr(defined, "fget", None) or defined
        if isinstance(function, FunctionType) and function.__code__ is code:
            yield function


@final
class _Kind:
    """How a function is observed: not at all if it is the framework's or a library's, else by what it reads.

    names     those of its arguments and outer variables whose values matter
    argument  of functions that read Python's state by a name, what the name is called
    watched   whether a call of it is noted
    generated whether it is a method that `dataclasses` made for one class, so that no other function has its code, and
              it is found in its first argument, which may be gone when what was read is looked for
    code      held, so that its id stays its own
    """

    __slots__ = ("code", "program", "outside", "argument", "names", "watched", "generated")

    def __init__(self, code: CodeType, globals: dict[str, Any]):
        self.code = code
        file = code.co_filename
        if file == "<string>":  # generated code of a dataclass or named tuple belongs to its module
            named_tuple = str(globals.get("__name__")).startswith("namedtuple_")
            file = "<frozen>" if named_tuple else str(globals.get("__file__", file))
        self.outside = is_user_file(file)
        self.program = is_program_file(file)
        self.argument = _BY_NAME.get(code, "")
        roots = dict.fromkeys(r.name for r in list_reads(code) if r.root in ("local", "free")) if self.program else ()
        self.names = tuple(roots)
        self.watched = self.program or bool(self.argument)
        made_by = code.co_qualname.partition(".")[0] if code.co_filename == "<string>" else ""
        self.generated = made_by == "__create_fn__" and code.co_argcount > 0


def _weak_reference(value: Any) -> Callable[[], Any]:
    """Return a weak reference to the value if possible: what only the program held was made by it."""
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: value


_REFS = (Infix, Ops, tuple)
_TREES = (dict, list, Scalars)
"""The trees that a program receives or builds, of refs or interpreters; a subclass of dict may hold more."""

_WORLD = {
    name: frozenset(owners.split())
    for owners, names in {
        "time": "time time_ns monotonic monotonic_ns perf_counter perf_counter_ns process_time localtime gmtime ctime "
        "strftime",
        "datetime date": "now today utcnow",
        "posix nt": "urandom getrandom",
        "_io io builtins posix nt": "open input __import__",
    }.items()
    for name in names.split()
}

_ASKS = frozenset({"globals", *_WORLD})

_BY_NAME = {type(os.environ).__getitem__.__code__: "key", import_module.__code__: "name"}


@cache
def _folders() -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Return the folders of Python, the site folders in them, and in these the dependencies of Opstage."""
    python = [f"{sysconfig.get_path(key)}/" for key in ("stdlib", "platstdlib")]
    installed = [f"{sysconfig.get_path(key)}/" for key in ("purelib", "platlib")]
    ours = [spec for name in ("numpy", "numba", "llvmlite", "optree") if (spec := find_spec(name)) is not None]
    folders = [f"{Path(spec.origin).parent}/" for spec in ours if spec.origin is not None]
    return ("<frozen", "<__array_function__", *python), tuple(installed), tuple(folders)


@cache
def _is_library(file: str) -> bool:
    """Whether a file belongs to Python or a dependency of Opstage; other installed packages may be programs."""
    python, installed, ours = _folders()
    return file.startswith(ours) or file.startswith(python) and not file.startswith(installed)


def is_program_file(file: str) -> bool:
    """Whether the functions of a file belong to a program, whose reads are recorded, and not to a library or
    Opstage."""
    return is_user_file(file) and not _is_library(file)


def _program_line(frame: FrameType | None) -> SourceLine | None:
    """Return the line of the program that a call comes from, through libraries; None if the framework's comes first."""
    while frame is not None:
        file = frame.f_code.co_filename
        if not is_user_file(file):
            return None
        if not _is_library(file):
            return SourceLine(file, frame.f_lineno)
        frame = frame.f_back
    return None


def _is_importing(frame: FrameType | None) -> bool:
    """Whether a call comes from an import: the import system's hooks and the code of a module run once, so they are no
    part of what a program reads in each run."""
    while frame is not None and is_user_file(frame.f_code.co_filename):
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


_here = threading.local()


def observation() -> Observation | None:
    """Return the observation that is active in this thread."""
    return getattr(_here, "current", None)


@contextmanager
def observed() -> Iterator[Observation]:
    """Record what runs in this thread. An active profiler is still called, if Python allows it."""
    found, outer = Observation(), observation()
    before: Any = sys.getprofile()

    def note_both(frame: FrameType, event: Any, arg: Any) -> None:
        note(frame, event, arg)
        before(frame, event, arg)

    note = found.profiler()
    with paused_gc():  # the collector's finalizers and callbacks are no part of a program
        _here.current = found
        sys.setprofile(note_both if callable(before) else note)
        try:
            yield found
        finally:
            _restore(before)
            _here.current = outer


def _restore(profiler: Any) -> None:
    if profiler is None or callable(profiler):
        sys.setprofile(profiler)
    else:  # cProfile's own, which is not a function and restarts itself
        sys.setprofile(None)
        profiler.enable()
