"""The contents of a value, recursively: the slots of lists, dicts, arrays and objects that may be changed in place."""

from __future__ import annotations

import os
import random
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import lru_cache, partial
from typing import Any, NoReturn, final

import numpy as np

from ...ops.errors import ProgramError, SourceLine, a_type
from ...ops.infix import Infix
from ...ops.primitive import Primitive
from ...ops.protocol import Ops
from .observation import is_program_file
from .slots import Attribute, Bits, CapturedSlot, Computed, DictEntry, Elements, Method, at_line, is_plain

LARGEST_ARRAY = 1 << 20
"""The largest array, in bytes, that is compared in every call; larger ones are rejected, unless read-only."""

_LARGEST_WITHIN = 1 << 26
"""The same limit for arrays in an object that is captured as a whole, of which the program may need other parts."""

_MOST_VALUES = 100_000

OF_THE_RUN = (Infix, Ops, Primitive)
_SEQUENCES = (list, deque, set, frozenset)
_REMEMBERING = type(lru_cache(len))
_TOOLS = {"_io", "_thread", "concurrent", "io", "logging", "multiprocessing", "queue", "socket", "threading"}
"""Modules with process-level objects that are not values of a program."""


@final
class Contents:
    """The slots added so far, each once.

    slots       the places
    generators  generators of random numbers, with their names
    changeable  captured state that may change: its name, its kind, and the line that reads it
    function    called with each function found, and the object it is bound to or None
    listing     nothing will be compared, so the bits of arrays are not stored
    remembered  functions wrapped by functools.cache or lru_cache, which may return without running
    """

    def __init__(self, function: Callable[[types.FunctionType, Any], None], *, listing: bool):
        self.slots: list[CapturedSlot] = []
        self.generators: dict[str, Any] = {}
        self.changeable: list[tuple[str, str, SourceLine | None]] = []
        self.function = function
        self.listing = listing
        self.remembered: list[types.FunctionType] = []
        self._places: set[tuple[Any, ...]] = set()
        self._entered: dict[int, Any] = {}  # objects that were captured as a whole, by id
        self._count = 0

    def add(self, slot: CapturedSlot, *place: Any) -> None:
        """Add a slot, unless its place is known: an object, and which part of it."""
        key = (type(slot), *[part if isinstance(part, str) else id(part) for part in place])
        if key not in self._places:
            self._places.add(key)
            self.slots.append(slot)

    def take(self, other: Contents) -> None:
        """Add the slots and generators of another one."""
        self.slots += other.slots
        self.generators |= other.generators
        self.changeable += other.changeable

    def whole(self, value: Any, what: str, where: SourceLine | None) -> None:
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
            for entry in self._parts(value, what, where, within):
                self._count += 1
                if self._count > _MOST_VALUES:
                    _refuse(what, where, f"holds more than {_MOST_VALUES:,} values, too many to compare in every call")
                waiting.append((*entry, within))

    def _parts(self, value: Any, what: str, where: SourceLine | None, within: bool) -> Iterator[tuple[Any, str]]:
        """Yield the values within a value, with their names, after adding its slots."""
        if isinstance(value, types.FunctionType):
            self.function(value, None)
            if is_closed(value):
                yield from self._state(value, what, where)  # the implementations of a functools.singledispatch
        elif isinstance(value, types.MethodType):
            if isinstance(value.__func__, types.FunctionType):
                self.function(value.__func__, value.__self__)
            if not isinstance(value.__func__, types.FunctionType) or is_closed(value.__func__):
                yield value.__self__, what.rpartition(".")[0] or what
        elif isinstance(value, _REMEMBERING):
            yield from self._remembering(value, what, where)
        elif isinstance(value, types.BuiltinFunctionType):
            if not isinstance(value.__self__, types.ModuleType | type | None):
                yield value.__self__, what.rpartition(".")[0] or what
        elif isinstance(value, np.ndarray):
            yield from self._array(value, what, where, within)
        elif isinstance(value, tuple):
            yield from ((entry, f"{what}[{i}]") for i, entry in enumerate(value))
        elif isinstance(value, _SEQUENCES):
            self.add(Elements(value, what, where), value)
            yield from ((entry, f"{what}[{i}]") for i, entry in enumerate(value))
            yield from self._state(value, what, where)
        elif isinstance(value, dict | types.MappingProxyType):
            yield from self._mapping(value, what, where)
            if type(value) is not dict:
                yield from self._state(value, what, where)
        elif isinstance(value, bytearray | memoryview):
            self._bits(value, what, where)
        elif is_generator(value):
            self.generators.setdefault(what, value)
        elif isinstance(value, partial):
            yield from ((value.func, what), (value.args, f"{what}.args"))
            yield from self._mapping(value.keywords, f"{what}.keywords", where)
        elif isinstance(value, weakref.ref):
            self.add(Computed(value, what, where), value)
            yield value(), what
        elif isinstance(value, ContextVar):
            self.add(Computed(partial(value.get, None), what, where), value)
            yield value.get(None), what
        elif isinstance(value, type):
            for base in value.__mro__:
                if not is_library_module(base.__module__):
                    for name, entry in _data(vars(base)):
                        self.add(Method(value, name, f"{what}.{name}", where), value, name)
                        yield entry, f"{what}.{name}"
        elif isinstance(value, types.ModuleType):
            if not is_library_module(value.__name__):
                for name, entry in _data(vars(value)):
                    self.add(DictEntry(vars(value), name, f"{what}.{name}", where), vars(value), name)
                    yield entry, f"{what}.{name}"
        elif not (value is os.environ or type(value).__module__.partition(".")[0] in _TOOLS):
            yield from self._instance(value, what, where)
            yield type(value), what

    def _remembering(self, value: Any, what: str, where: SourceLine | None) -> Iterator[tuple[Any, str]]:
        """Add a cached function. If its misses are unchanged, it has not run since and returns the same values."""
        function = value.__wrapped__
        if isinstance(function, types.FunctionType) and not is_closed(function):
            self.function(function, None)
            self.remembered.append(function)
            self.add(Computed(lambda: value.cache_info().misses, f"{what}.cache_info().misses", where), value)
        yield from self._state(value, what, where)

    def _mapping(self, value: Mapping[Any, Any], what: str, where: SourceLine | None) -> Iterator[tuple[Any, str]]:
        self.add(Elements(value, what, where), value)
        self.add(Elements(value, what, where, "values"), value, "values")
        for key, entry in value.items():
            yield key, what
            yield entry, f"{what}[{key!r}]" if is_plain(key) else what

    def _array(self, value: Any, what: str, where: SourceLine | None, within: bool) -> Iterator[tuple[Any, str]]:
        owner, writeable = value, value.flags.writeable
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
            writeable = writeable or owner.flags.writeable
        if not writeable and not _shows_changeable_memory(owner.base):
            return
        if value.nbytes > (_LARGEST_WITHIN if within else LARGEST_ARRAY):
            _refuse(
                what,
                where,
                f"is an array of {value.nbytes / 2**20:.1f} MiB that can be changed in place, which is too much to "
                "compare in every call",
                ", or make it read-only: `array.flags.writeable = False`",
            )
        self._bits(value, what, where)
        if value.dtype == object:
            yield from ((entry, what) for entry in value.flat)

    def _instance(self, value: Any, what: str, where: SourceLine | None) -> Iterator[tuple[Any, str]]:
        """Add an object of any class: its memory if it exposes an array, and its attributes."""
        if hasattr(type(value), "__array__") or _shows_changeable_memory(value):
            try:
                size = np.asarray(value).nbytes
            except Exception as error:  # such as a tensor on a device
                _refuse(what, where, f"is {a_type(value)} that cannot be compared ({error})")
            if size > LARGEST_ARRAY:
                _refuse(what, where, f"holds {size / 2**20:.1f} MiB, too much to compare in every call")
            self._bits(value, what, where)
        yield from self._state(value, what, where)

    def _bits(self, value: Any, what: str, where: SourceLine | None) -> None:
        if not self.listing:
            self.add(Bits(value, what, where), value)

    def _state(self, value: Any, what: str, where: SourceLine | None) -> Iterator[tuple[Any, str]]:
        described = callable(value) and is_library_module(type(value).__module__)

        def is_description(name: str) -> bool:  # __doc__, __annotations__, … of a library's function, such as np.sqrt
            return described and name.startswith("__") and name.endswith("__")

        for name in slots_of(value):
            if hasattr(value, name) and not is_description(name):
                self.add(Attribute(value, name, f"{what}.{name}", where), value, name)
                yield getattr(value, name), f"{what}.{name}"
        state = getattr(value, "__dict__", None)
        if isinstance(state, dict):
            self.add(Elements(state, what, where), state)
            self.add(Elements(state, what, where, "values"), state, "values")
            yield from ((entry, f"{what}.{name}") for name, entry in state.items() if not is_description(name))


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


def _data(names: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the names and values that a class or module defines, without functions, classes and modules."""
    return [
        (name, value)
        for name, value in names.items()
        if not name.startswith("__")
        and not hasattr(value, "__get__")
        and not isinstance(value, type | types.ModuleType)
    ]


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


def slots_of(value: Any) -> list[str]:
    """Return the names of an object's attributes in __slots__."""
    return [
        name
        for base in type(value).__mro__
        for name, entry in vars(base).items()
        if isinstance(entry, types.MemberDescriptorType) and base.__module__ != "builtins"
    ]


def _refuse(what: str, where: SourceLine | None, why: str, more: str = "") -> NoReturn:
    raise ProgramError(
        f"the program reads {what}{at_line(where)}, which {why}; a compiled program would keep what it held when it "
        f"was recorded. Pass it as an argument or as state{more}"
    )
