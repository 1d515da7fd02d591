"""The Python state that a program has read, as places with their values."""

from __future__ import annotations

import builtins
import gc
import inspect
import os
import random
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import is_dataclass
from functools import lru_cache, partial
from typing import Any, NoReturn, final

import numpy as np

from ...ops.errors import ProgramError, SourceLine, a_type
from ...ops.infix import Infix
from ...ops.primitive import Primitive
from ...ops.protocol import Ops
from .bytecode import Read, imported, list_reads
from .guard import CapturedSlot, absent, at_line, attribute, bits, computed, elements, entry, is_plain, method
from .profiler import Observation, Ran, find_methods, is_program_file

LARGEST_ARRAY = 1 << 20
"""The largest array, in bytes, that is compared in every call; larger ones are rejected, unless read-only."""

_LARGEST_WITHIN = 1 << 26
"""The same limit for arrays in an object that is captured as a whole, of which the program may need other parts."""

_MOST_VALUES = 100_000

OF_THE_RUN = (Infix, Ops, Primitive)
_SEQUENCES = (list, deque, set, frozenset)
_KINDS = (types.FunctionType, types.MethodType, partial)
_REMEMBERING = type(lru_cache(len))
_TOOLS = {"_io", "_thread", "concurrent", "io", "logging", "multiprocessing", "queue", "socket", "threading"}
"""Modules with process-level objects that are not values of a program."""

_OWN = f"{__name__.partition('.')[0]}."
"""Modules of the framework, whose callable objects may wrap a user's function."""


@final
class Capture:
    """The slots of everything that a program reads, and the random generators that it can reach.

    With an `Observation` of a run, these are the reads of the functions that ran. Without one, they are the reads of
    all functions that are visibly called, whether or not they would run. With `listing`, nothing will be compared, so
    the contents of arrays are not stored.

    slots       the places, each once
    generators  random generators by name
    changeable  captured state that may change between two runs: its name, its kind, and the line that reads it
    """

    def __init__(self, program: Callable[..., Any], seen: Observation | None = None, *, listing: bool = False):
        """`program` is the function that ran; functions that it wraps are found, however deep the framework has wrapped
        them."""
        self.slots: list[CapturedSlot] = []
        self.generators: dict[str, Any] = {}
        self.changeable: list[tuple[str, str, SourceLine | None]] = []
        self._listing = listing
        self._ran = None if seen is None else {id(each.code): each for each in seen.functions.values()}
        self._functions: dict[int, list[types.FunctionType]] = {}  # by id of the code object
        self._waiting: deque[tuple[types.FunctionType, Any]] = deque()
        self._remembered: list[types.FunctionType] = []  # by functools.cache: they may return without running
        self._places: set[tuple[Any, ...]] = set()
        self._entered: dict[int, Any] = {}  # objects that were captured as a whole, by id
        self._count = 0
        for function in _user_callables(program):
            self._capture_end(function, getattr(function, "__name__", "the program"), None, called=True)
        if seen is not None:
            self._read_seen(seen)
        self._read_found()

    def _add(self, slot: CapturedSlot, what: str, where: SourceLine | None) -> Any:
        """Add a slot, unless its place is known; return its value."""
        key = (slot.text, *map(id, slot.parts))
        if key not in self._places:
            slot.held, slot.what, slot.where = slot.read(), what, where
            self._places.add(key)
            self.slots.append(slot)
            return slot.held
        return slot.read()

    # Functions --------------------------------------------------------------------------------------------------------

    def _read_seen(self, seen: Observation) -> None:
        """Add the reads of functions that ran, and what an observation has seen besides."""
        ran = list(seen.functions.values())
        for each in ran:
            self._read(each)
        self._read_found()
        made_here = {id(code) for each in ran for code in _nested(each.code)}
        lost = []
        for each in ran:
            if not each.code.co_freevars or id(each.code) in self._functions or id(each.code) in made_here:
                continue
            if not each.methods:
                lost.append(each.code)
            for held in each.methods.values():
                function = held()
                if function is not None:  # else the program made it, as it did its class
                    self._function(function)
        if lost:
            gc.unfreeze()  # frozen objects, as before a fork, have no visible referrers
        for function in gc.get_referrers(*lost) if lost else ():
            if isinstance(function, types.FunctionType) and any(function.__code__ is code for code in lost):
                self._function(function)
        for name, where in seen.variables.items():
            self._add(
                computed(partial(os.environ.get, name), os.environ, name), f"the environment variable {name}", where
            )
        for name, where in seen.modules.items():
            self._whole(sys.modules.get(name), name, where)
        for names, where in seen.namespaces.values():
            for part, what in self._names(names, "globals()", where):
                self._whole(part, what, where)
        for array, owner, where in seen.arrays:
            outlives = array() if array() is not None else owner()
            self._whole(outlives, "an array that is given to ops.const", where)
        for function in self._remembered:  # neither it nor the functions that it calls need to have run
            known = Capture(function)
            self.slots += known.slots
            self.generators |= known.generators
            self.changeable += known.changeable

    def _function(self, function: types.FunctionType, bound: Any = None) -> None:
        """Record a function that may have been called, with `bound` as its first argument."""
        known = self._functions.setdefault(id(function.__code__), [])
        if function in known:
            return
        known.append(function)
        if id(function.__code__) in self._ran if self._ran is not None else not is_closed(function):
            self._waiting.append((function, bound))
        wrapped = getattr(function, "__wrapped__", None)
        if isinstance(wrapped, types.FunctionType):
            self._function(wrapped, bound)

    def _read_found(self) -> None:
        """Add what the functions that are found read, or are made of, and that of functions found in them."""
        while self._waiting:
            function, bound = self._waiting.popleft()
            code = function.__code__
            self._enclosed(function, code)
            if self._ran is None:
                values: dict[tuple[int, str], tuple[str, Callable[[], Any]]] = {}
                if bound is not None:
                    values = {(id(bound), name): (name, partial(_itself, bound)) for name in code.co_varnames[:1]}
                self._read(Ran(code, function.__globals__, values, {}))
                for inner in _nested(code):
                    self._read(Ran(inner, function.__globals__, {}, {}))
                    self._enclosed(function, inner)

    def _read(self, ran: Ran) -> None:
        """Capture what the chains in the code of a function read."""
        for read in list_reads(ran.code):
            where = SourceLine(ran.code.co_filename, read.line)
            if read.root == "global" and read.name in ran.globals:
                self._add(entry(ran.globals, read.name), read.name, where)
            elif read.root == "global" and hasattr(builtins, read.name):
                self._add(absent(ran.globals, read.name), read.name, where)
                continue
            for value in _values(ran, read):
                self._chain(value, read, where, ran)
                if read.root in ("local", "free"):
                    for function in find_methods(value, ran.code):  # whose code ran with it as its `self`
                        self._function(function, value)

    def _is_read_by_callee(self, value: Any, ran: Ran, read: Read) -> bool:
        """Whether the value at the end of a chain was passed to functions that read it, so that their reads count."""
        if self._ran is None or read.given_to is None or not _is_instance(value):
            return False
        callees = []
        for callee in _values(ran, read.given_to):
            for name in read.given_to.attributes:
                callee = inspect.getattr_static(callee, name, None)
            callees.append(getattr(callee, "__func__", callee))
        for callee in callees:
            if not isinstance(callee, types.FunctionType) or is_closed(callee):
                return False
            code = callee.__code__
            if id(code) not in self._ran or code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS):
                return False
            ran_in_it = [each for inner in (code, *_nested(code)) if (each := self._ran.get(id(inner))) is not None]
            seen = {key: get() for each in ran_in_it for (key, _), (_, get) in each.values.items()}
            if seen.get(id(value)) is not value:
                return False
        return bool(callees)

    def _enclosed(self, function: types.FunctionType, code: types.CodeType) -> None:
        """Add the enclosing variables that a code reads, and the defaults and the code of its function."""
        where, name = SourceLine(code.co_filename, code.co_firstlineno), function.__name__
        for part in ("__code__", "__defaults__", "__kwdefaults__"):
            if getattr(function, part) is not None:
                self._add(attribute(function, part), f"{name}.{part}", where)
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._whole(value, f"a default of {name}", where)
        ran = (self._ran or {}).get(id(code), Ran(code, function.__globals__, {}, {}))
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or ()))
        for read in list_reads(code):
            cell = cells.get(read.name) if read.root == "free" else None
            for value in _contents([cell] if cell is not None else []):
                if not isinstance(value, OF_THE_RUN):
                    where = SourceLine(code.co_filename, read.line)
                    self._add(attribute(cell, "cell_contents"), read.name, where)
                    self._chain(value, read, where, ran)

    # Chains -----------------------------------------------------------------------------------------------------------

    def _chain(self, value: Any, read: Read, where: SourceLine, ran: Ran) -> None:
        """Capture the attributes that a chain reads of `value`, and all of the value at its end, unless it is an object
        of which only functions read that it is passed to."""
        what = read.name
        for at, name in enumerate(read.attributes, 1):
            if isinstance(value, OF_THE_RUN) or is_plain(value):
                return
            if not (isinstance(value, type | types.ModuleType | types.FunctionType) or _has_attributes(value)):
                if not (read.writes and at == len(read.attributes)):
                    self._whole(value, what, where)
                return
            found = self._attribute(value, name, what, where)
            if found is None:
                return
            what, (value,) = f"{what}.{name}", found
        if not self._is_read_by_callee(value, ran, read):
            self._capture_end(value, what, where, called=read.called)

    def _capture_end(self, value: Any, what: str, where: SourceLine | None, *, called: bool) -> None:
        """Capture the value at the end of a chain. The reads of a called object are seen when its code runs."""
        call = getattr(type(value), "__call__", None) if called else None  # noqa: B004  # the function itself is wanted
        if isinstance(call, types.FunctionType) and not is_closed(call):
            self._function(call, value)
        else:
            self._whole(value, what, where)

    def _attribute(self, value: Any, name: str, holder: str, where: SourceLine | None) -> tuple[Any] | None:
        """Capture an attribute; return its value, in a tuple, or None if there is nothing more to follow."""
        what = f"{holder}.{name}"
        own = getattr(value, "__dict__", {})
        if isinstance(value, types.ModuleType):
            return (self._add(entry(own, name), what, where),) if name in own else None
        kind = value if isinstance(value, type) else type(value)
        defined = next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), _MISSING)
        function = defined.__func__ if isinstance(defined, staticmethod | classmethod) else defined
        if isinstance(value, type):
            if defined is _MISSING:
                return None
            self._add(method(kind, name), what, where)
            return (function,)
        if name in own and not isinstance(defined, property):
            if not is_frozen(value) and not isinstance(own[name], types.FunctionType):
                self.changeable.append((what, f"an attribute of {a_type(value)}", where))
            return (self._add(entry(own, name), what, where),)
        if defined is _MISSING:
            self._whole(value, holder, where)  # through __getattr__
            return None
        if isinstance(defined, types.MemberDescriptorType):
            return (self._add(attribute(value, name), what, where),) if hasattr(value, name) else None
        if isinstance(own, dict) and not isinstance(defined, property):
            self._add(absent(own, name), what, where)
        self._add(method(kind, name), what, where)
        getter = getattr(defined, "fget", None) or getattr(defined, "func", None)
        called = next((each for each in (function, getter) if isinstance(each, types.FunctionType)), None)
        if called is not None and (called is function or not is_closed(called)):
            self._function(called, value)
            if is_closed(called):
                self._whole(value, holder, where)  # a method whose code is not examined may read all of it
            return None
        if not hasattr(type(defined), "__get__"):
            return (function,)
        self._whole(value, holder, where)  # computed by a library
        try:
            result = getattr(value, name)
        except Exception:
            return None
        if is_plain(result):
            self._add(computed(partial(getattr, value, name), value, name), what, where)
            return None
        return None if callable(result) else (result,)

    # Contents of a value, recursively ---------------------------------------------------------------------------------

    def _whole(self, value: Any, what: str, where: SourceLine | None) -> None:
        """Add all contents of a value, recursively."""
        waiting = [(value, what, False)]
        named = len(self.changeable)
        while waiting:
            value, what, within = waiting.pop()
            if is_plain(value) or id(value) in self._entered or isinstance(value, OF_THE_RUN):
                continue
            self._entered[id(value)] = value
            if len(self.changeable) == named and _is_changeable(value):  # only the outermost is listed
                self.changeable.append((what, a_type(value), where))
            within = within or not isinstance(value, (np.ndarray, tuple, dict, *_SEQUENCES))
            for part in self._parts(value, what, where, within):
                self._count += 1
                if self._count > _MOST_VALUES:
                    _refuse(what, where, f"holds more than {_MOST_VALUES:,} values, too many to compare in every call")
                waiting.append((*part, within))

    def _parts(self, value: Any, what: str, where: SourceLine | None, within: bool) -> Iterator[tuple[Any, str]]:
        """Yield the values within a value, with their names, after adding its slots."""
        holder = what.rpartition(".")[0] or what
        if isinstance(value, types.FunctionType | types.MethodType):
            function = getattr(value, "__func__", value)
            if isinstance(function, types.FunctionType):
                self._function(function, getattr(value, "__self__", None))
            if not isinstance(function, types.FunctionType) or is_closed(function):
                if isinstance(value, types.MethodType):
                    yield value.__self__, holder
                else:
                    yield from self._state(value, what, where)  # the implementations of a functools.singledispatch
        elif isinstance(value, _REMEMBERING):
            function = value.__wrapped__
            if isinstance(function, types.FunctionType) and not is_closed(function):
                self._function(function)
                self._remembered.append(function)
                # with as many misses it has not run since, and returns the same values
                self._add(computed(lambda: value.cache_info().misses, value), f"{what}.cache_info().misses", where)
            yield from self._state(value, what, where)
        elif isinstance(value, types.BuiltinFunctionType):
            if not isinstance(value.__self__, types.ModuleType | type | None):
                yield value.__self__, holder
        elif isinstance(value, np.ndarray):
            yield from self._array(value, what, where, _LARGEST_WITHIN if within else LARGEST_ARRAY)
        elif isinstance(value, (tuple, *_SEQUENCES)):
            if not isinstance(value, tuple):
                self._add(elements(value), what, where)
                yield from self._state(value, what, where)
            yield from ((part, f"{what}[{i}]") for i, part in enumerate(value))
        elif isinstance(value, dict | types.MappingProxyType):
            yield from self._mapping(value, what, where)
            if type(value) is not dict:
                yield from self._state(value, what, where)
        elif isinstance(value, bytearray | memoryview):
            self._memory(value, what, where, float("inf"))
        elif is_generator(value):
            self.generators.setdefault(what, value)
        elif isinstance(value, partial):
            yield from ((value.func, what), (value.args, f"{what}.args"))
            yield from self._mapping(value.keywords, f"{what}.keywords", where)
        elif isinstance(value, weakref.ref | ContextVar):
            read = value if isinstance(value, weakref.ref) else partial(value.get, None)
            yield self._add(computed(read, value), what, where), what
        elif isinstance(value, type):
            yield from self._class(value, what, where)
        elif isinstance(value, types.ModuleType):
            if not is_library_module(value.__name__):
                yield from self._names(vars(value), what, where)
        elif not (value is os.environ or type(value).__module__.partition(".")[0] in _TOOLS):
            if hasattr(type(value), "__array__") or _shows_changeable_memory(value):
                self._memory(value, what, where, LARGEST_ARRAY)
            yield from self._state(value, what, where)
            yield type(value), what

    def _class(self, value: type, what: str, where: SourceLine | None) -> Iterator[tuple[Any, str]]:
        """Add what a class and its bases define, and yield the data."""
        for owner in value.__mro__:
            if not is_library_module(owner.__module__):
                data = [(name, part) for name, part in vars(owner).items() if _is_data(name, part)]
                for name, _ in data:
                    self._add(method(value, name), f"{what}.{name}", where)
                # behind its data, whose changes are reported by name; operators call by methods
                self._add(elements(vars(owner), "values"), f"the methods of {owner.__name__}", where)
                yield from ((part, f"{what}.{name}") for name, part in data)

    def _names(self, names: dict[str, Any], what: str, where: SourceLine | None) -> Iterator[tuple[Any, str]]:
        """Add the names of a module, and yield the data."""
        for name, part in list(names.items()):
            self._add(entry(names, name), f"{what}.{name}", where)
            if _is_data(name, part):
                yield part, f"{what}.{name}"

    def _array(self, value: Any, what: str, where: SourceLine | None, limit: int) -> Iterator[tuple[Any, str]]:
        owner, writeable = value, value.flags.writeable
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
            writeable = writeable or owner.flags.writeable
        if writeable or _shows_changeable_memory(owner.base):
            self._memory(value, what, where, limit)
            if value.dtype == object:
                yield from ((part, what) for part in value.flat)

    def _memory(self, value: Any, what: str, where: SourceLine | None, limit: float) -> None:
        """Add the memory of an array, or of an object that exposes it as one."""
        try:
            nbytes = np.asarray(value).nbytes
        except Exception as error:  # such as a tensor on a device
            _refuse(what, where, f"is {a_type(value)} that cannot be compared ({error})")
        if nbytes > limit:
            size = f"holds {nbytes / 2**20:.1f} MiB that can be changed in place, too much to compare in every call"
            array = isinstance(value, np.ndarray)
            _refuse(what, where, size, ", or make it read-only: `array.flags.writeable = False`" if array else "")
        if not self._listing:
            self._add(bits(value), what, where)

    def _state(self, value: Any, what: str, where: SourceLine | None) -> Iterator[tuple[Any, str]]:
        """Add the attributes of an object, but not __doc__, __annotations__, … of a library's function."""
        described = callable(value) and is_library_module(type(value).__module__)
        state = getattr(value, "__dict__", None)
        for name in slot_names(value):
            if hasattr(value, name) and not (described and name.startswith("__")):
                yield self._add(attribute(value, name), f"{what}.{name}", where), f"{what}.{name}"
        if isinstance(state, dict):
            for part, name in self._mapping(state, what, where, attributes=True):
                if not (described and name.startswith(f"{what}.__")):
                    yield part, name

    def _mapping(
        self, of: Mapping[Any, Any], what: str, where: SourceLine | None, *, attributes: bool = False
    ) -> Iterator[tuple[Any, str]]:
        """Add a mapping's keys and values, named as entries or as attributes, and yield them."""
        self._add(elements(of), what, where)
        self._add(elements(of, "values"), what, where)
        for key, part in of.items():
            yield key, what
            yield part, f"{what}.{key}" if attributes else f"{what}[{key!r}]" if is_plain(key) else what


_MISSING: Any = object()


def _itself(value: Any) -> Any:
    return value


def _values(ran: Ran, read: Read) -> list[Any]:
    """Return the values of the name at the start of a chain."""
    if read.root == "global":
        return [ran.globals[read.name]] if read.name in ran.globals else []
    if read.root == "module":
        module = sys.modules.get(imported(read.name, ran.globals))
        return [module] if module is not None else []
    return [value for name, get in ran.values.values() if name == read.name and (value := get()) is not None]


def _is_data(name: str, value: Any) -> bool:
    """Whether a name of a class or module has a value with contents: not a function, class or module."""
    return not (name.startswith("__") or hasattr(value, "__get__") or isinstance(value, type | types.ModuleType))


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _nested(constant)


def _user_callables(program: Any) -> list[Any]:
    """Return the user's callables that a base program, made of the framework's own functions, can call."""
    found: list[Any] = []
    waiting, seen = [program], set()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        function = getattr(value, "__func__", value) if isinstance(value, types.MethodType) else value
        if isinstance(function, types.FunctionType) and is_closed(function):
            waiting += [value.__self__] if function is not value else _contents(value.__closure__ or ())
        elif callable(value) and (isinstance(value, _KINDS) or not is_library_module(type(value).__module__)):
            found.append(value)
        elif (callable(value) or is_dataclass(value)) and type(value).__module__.startswith(_OWN):
            waiting += [*getattr(value, "__dict__", {}).values(), *(getattr(value, n, None) for n in slot_names(value))]
    return found


def _contents(cells: Iterable[types.CellType]) -> Iterator[Any]:
    """Yield the values of enclosing variables that are set."""
    for cell in cells:
        try:
            yield cell.cell_contents
        except ValueError:
            continue


def _shows_changeable_memory(value: Any) -> bool:
    """Whether a value exposes memory that can change: a bytearray, an array.array."""
    try:
        with memoryview(value) as view, memoryview(view.obj) as owner:
            return not owner.readonly
    except (TypeError, BufferError, ValueError):
        return False


def is_frozen(value: Any) -> bool:
    """Whether a value is an instance of a frozen dataclass."""
    parameters = getattr(type(value), "__dataclass_params__", None)
    return parameters is not None and bool(parameters.frozen)


def _is_changeable(value: Any) -> bool:
    """Whether a value is mutable, other than the built-in types."""
    if isinstance(value, np.ndarray):
        return bool(value.flags.writeable)
    if isinstance(value, list | dict | set | deque | bytearray):
        return True
    kind = type(value)
    if callable(value) or isinstance(value, tuple | frozenset | types.ModuleType | type) or is_generator(value):
        return False
    return not is_library_module(kind.__module__) and not is_frozen(value) and hasattr(value, "__dict__")


def is_generator(value: Any) -> bool:
    """Whether a value is a random generator; this does not import numpy.random."""
    if "numpy.random" not in sys.modules or isinstance(value, random.Random):
        return isinstance(value, random.Random)
    return isinstance(value, np.random.Generator | np.random.RandomState | np.random.BitGenerator)


def is_closed(function: types.FunctionType) -> bool:
    """Whether a function belongs to a library or the framework, whose own reads are ignored."""
    return not is_program_file(function.__code__.co_filename)


def is_library_module(name: str) -> bool:
    """Whether a module, by name, belongs to a library; one without a file may belong to a program."""
    if name.partition(".")[0] in sys.stdlib_module_names and name != "__main__":
        return True
    module = sys.modules.get(name.partition(".")[0])
    file = getattr(module, "__file__", None)
    return file is not None and not is_program_file(file)


def slot_names(value: Any) -> list[str]:
    """Return the names of an object's attributes in __slots__."""
    return [
        name
        for base in type(value).__mro__
        for name, entry in vars(base).items()
        if isinstance(entry, types.MemberDescriptorType) and base.__module__ != "builtins"
    ]


def _has_attributes(value: Any) -> bool:
    """Whether chains are followed into a value, rather than comparing all of it."""
    if is_generator(value) or isinstance(value, np.ndarray):
        return False
    return hasattr(value, "__dict__") or bool(slot_names(value))


def _is_instance(value: Any) -> bool:
    """Whether a value is an object of a program's class, of which a function reads attributes by their names."""
    container = isinstance(value, (tuple, dict, type, *_SEQUENCES))
    return not container and _has_attributes(value) and not is_library_module(type(value).__module__)


def _refuse(what: str, where: SourceLine | None, why: str, more: str = "") -> NoReturn:
    raise ProgramError(
        f"the program reads {what}{at_line(where)}, which {why}; a compiled program would use its value from "
        f"the recording. Pass it as an argument or as state{more}"
    )
