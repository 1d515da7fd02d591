"""The Python state that a program has read, as places with their values."""

from __future__ import annotations

import builtins
import gc
import os
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, final

import numpy as np

from ...ops.errors import SourceLine, a_type
from .contents import OF_THE_RUN, Contents, is_closed, is_frozen, is_generator, is_library_module, slots_of
from .observation import Observation, Ran, methods_of
from .reads import Read, imported, reads_of
from .slots import Absent, Attribute, CapturedSlot, Cell, Computed, DictEntry, Method, is_plain


@final
class Capture:
    """The slots of everything that a program reads, and the random generators that it can reach.

    With an `Observation` of a run, these are the reads of the functions that ran. Without one, they are the reads of
    all functions that are visibly called, whether or not they would run. With `listing`, the contents of arrays are not
    stored.
    """

    def __init__(self, program: Callable[..., Any], seen: Observation | None = None, *, listing: bool = False):
        """`program` is the function that ran; functions that it wraps are found, however deep the framework has wrapped
        them."""
        self._contents = Contents(self._function, listing=listing)
        self._functions: dict[int, list[types.FunctionType]] = {}  # by id of the code object
        self._ran: deque[Ran] | None = deque() if seen is None else None
        for function in _user_callables(program):
            self._ends_in(function, getattr(function, "__name__", "the program"), None, called=True)
        if seen is None:
            self._read_reachable()
        else:
            self._read_all(seen)

    @property
    def slots(self) -> list[CapturedSlot]:
        """The places, each once."""
        return self._contents.slots

    @property
    def generators(self) -> dict[str, Any]:
        """Random generators by name."""
        return self._contents.generators

    @property
    def changeable(self) -> list[tuple[str, str, SourceLine | None]]:
        """Captured state that may change between two runs: its name, its kind, and the line that reads it."""
        return self._contents.changeable

    # Functions --------------------------------------------------------------------------------------------------------

    def _read_all(self, seen: Observation) -> None:
        """Add the reads of functions that ran. Reading one may reveal variables of another."""
        ran = list(seen.functions.values())
        made_here = {id(code) for each in ran for code in _nested(each.code)}
        for each in ran:
            self._read(each)
        done: set[int] = set()
        while True:
            found = [(f, each) for each in ran for f in self._functions.get(id(each.code), ()) if id(f) not in done]
            for function, each in found:
                done.add(id(function))
                self._enclosed(function, each)
            if not found:
                break
        lost = []
        for each in ran:
            if not each.code.co_freevars or id(each.code) in self._functions or id(each.code) in made_here:
                continue
            if not each.methods:
                lost.append(each)
            for held in each.methods.values():
                method = held()
                if method is not None:  # else the program made it, as it did its class
                    self._enclosed(method, each)
        if lost:
            gc.unfreeze()  # frozen objects, as before a fork, have no visible referrers
        for function in gc.get_referrers(*[each.code for each in lost]) if lost else ():
            for each in lost:
                if isinstance(function, types.FunctionType) and function.__code__ is each.code:
                    self._enclosed(function, each)
        for name, where in seen.variables.items():
            read = partial(os.environ.get, name)
            self._contents.add(Computed(read, f"the environment variable {name}", where), os.environ, name)
        for name, where in seen.modules.items():
            self._contents.whole(sys.modules.get(name), name, where)
        for namespace, where in seen.namespaces.values():
            self._namespace(namespace, where)
        for array, owner, where in seen.arrays:
            outlives = next((kept for kept in (array(), owner()) if kept is not None), None)
            if outlives is not None:
                self._contents.whole(outlives, "an array that is given to ops.const", where)
        for function in self._contents.remembered:  # neither it nor the functions that it calls need to have run
            self._contents.take(Capture(function)._contents)

    def _namespace(self, names: dict[str, Any], where: SourceLine | None) -> None:
        """Add all names of a module, any of which may be read, and the containers among their values."""
        for name, value in list(names.items()):
            self._contents.add(DictEntry(names, name, f"globals()[{name!r}]", where), names, name)
            if isinstance(value, dict | list | set | np.ndarray) and not name.startswith("__"):
                self._contents.whole(value, f"globals()[{name!r}]", where)

    def _read_reachable(self) -> None:
        """Add the reads of the functions that are found, and those found in them."""
        assert self._ran is not None
        done: set[int] = set()  # many functions share one code object, such as those made by a factory
        while self._ran:
            each = self._ran.popleft()
            self._read(each)
            functions = self._functions.get(id(each.code), ())
            for code in _nested(each.code) if functions else ():
                self._read(Ran(code, each.globals, each.values, {}))
            for function in functions:
                if id(function) in done:
                    continue
                done.add(id(function))
                self._enclosed(function, each)
                for code in _nested(each.code):
                    self._enclosed(function, Ran(code, each.globals, {}, {}))

    def _function(self, function: types.FunctionType, bound: Any = None) -> None:
        """Record a function that may have been called, with `bound` as its first argument."""
        known = self._functions.setdefault(id(function.__code__), [])
        if function in known:
            return
        known.append(function)
        if self._ran is not None and not is_closed(function):
            names = function.__code__.co_varnames[:1] if bound is not None else ()
            values = {(id(bound), name): (name, lambda: bound) for name in names}
            self._ran.append(Ran(function.__code__, function.__globals__, values, {}))
        wrapped = getattr(function, "__wrapped__", None)
        if isinstance(wrapped, types.FunctionType):
            self._function(wrapped, bound)

    def _read(self, ran: Ran) -> None:
        for read in reads_of(ran.code):
            self._begin(ran, read)

    def _begin(self, ran: Ran, read: Read) -> None:
        """Start one chain in the code of a function."""
        where = SourceLine(ran.code.co_filename, read.line)
        if read.root == "global":
            if read.name in ran.globals:
                self._contents.add(DictEntry(ran.globals, read.name, read.name, where), ran.globals, read.name)
                self._chain(ran.globals[read.name], read, read.name, where)
            elif hasattr(builtins, read.name):
                self._contents.add(Absent(ran.globals, read.name, read.name, where), ran.globals, read.name)
        elif read.root == "module":
            module = sys.modules.get(imported(read.name, ran.globals))
            if module is not None:
                self._chain(module, read, read.name, where)
        else:
            for name, reference in ran.values.values():
                value = reference()
                if name == read.name and value is not None:
                    self._chain(value, read, read.name, where)
                    self._method_of(value, ran.code)

    def _method_of(self, value: Any, code: types.CodeType) -> None:
        """Find the function whose code ran with an object as its `self`, however it was called."""
        for function in methods_of(value, code):
            self._function(function, value)

    def _enclosed(self, function: types.FunctionType, ran: Ran) -> None:
        """Add the enclosing variables, the defaults and the code of a function that ran."""
        where, name = SourceLine(ran.code.co_filename, ran.code.co_firstlineno), function.__name__
        for part in ("__code__", "__defaults__", "__kwdefaults__"):
            if getattr(function, part) is not None:
                self._contents.add(Attribute(function, part, f"{name}.{part}", where), function, part)
        given = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        for value in given:
            self._contents.whole(value, f"a default of {name}", where)
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or ()))
        for read in reads_of(ran.code):
            cell = cells.get(read.name) if read.root == "free" else None
            if cell is None:
                continue
            where = SourceLine(ran.code.co_filename, read.line)
            try:
                slot = Cell(cell, read.name, where)
            except ValueError:  # an empty cell
                continue
            if not isinstance(slot.held, OF_THE_RUN):
                self._contents.add(slot, cell)
                self._chain(slot.held, read, read.name, where)

    # Chains -----------------------------------------------------------------------------------------------------------

    def _chain(self, value: Any, read: Read, what: str, where: SourceLine) -> None:
        """Capture the attributes that a chain reads of `value`, and all of the value at its end."""
        last = len(read.attributes) - 1
        for at, name in enumerate(read.attributes):
            if isinstance(value, OF_THE_RUN) or is_plain(value):
                return
            if is_generator(value) or isinstance(value, np.ndarray) or not (
                isinstance(value, type | types.ModuleType | types.FunctionType) or hasattr(value, "__dict__")
                or slots_of(value)
            ):  # fmt: skip
                if not (read.writes and at == last):
                    self._contents.whole(value, what, where)
                return
            before, what = what, f"{what}.{name}"
            found = self._attribute(value, name, before, what, where)
            if found is None:
                return
            (value,) = found
        self._ends_in(value, what, where, called=read.called)

    def _ends_in(self, value: Any, what: str, where: SourceLine | None, *, called: bool) -> None:
        """Capture the value at the end of a chain. The reads of a called object are seen when its code runs."""
        call = getattr(type(value), "__call__", None) if called else None  # noqa: B004  # the function itself is wanted
        if isinstance(call, types.FunctionType) and not is_closed(call):
            self._function(call, value)
        else:
            self._contents.whole(value, what, where)

    def _attribute(self, value: Any, name: str, holder: str, what: str, where: SourceLine) -> tuple[Any] | None:
        """Return the value of an attribute, in a tuple; None if there is nothing more to follow."""
        if isinstance(value, types.ModuleType):
            if name not in vars(value):
                return None
            self._contents.add(DictEntry(vars(value), name, what, where), vars(value), name)
            return (vars(value)[name],)
        kind = value if isinstance(value, type) else type(value)
        owner = next((base for base in kind.__mro__ if name in vars(base)), None)
        defined = vars(owner)[name] if owner is not None else None
        own = getattr(value, "__dict__", {})
        if isinstance(value, type):
            if owner is None:
                return None
            self._contents.add(Method(kind, name, what, where), kind, name)
            return (defined.__func__ if isinstance(defined, staticmethod | classmethod) else defined,)
        if name in own and not isinstance(defined, property):
            if not is_frozen(value) and not isinstance(own[name], types.FunctionType):
                self._contents.changeable.append((what, f"an attribute of {a_type(value)}", where))
            self._contents.add(DictEntry(own, name, what, where), own, name)
            return (own[name],)
        if owner is None:
            self._contents.whole(value, holder, where)  # through __getattr__
            return None
        if isinstance(own, dict) and not isinstance(defined, property | types.MemberDescriptorType):
            self._contents.add(Absent(own, name, what, where), own, name)
        if isinstance(defined, types.MemberDescriptorType):
            try:
                self._contents.add(Attribute(value, name, what, where), value, name)
                return (getattr(value, name),)
            except AttributeError:
                return None
        self._contents.add(Method(kind, name, what, where), kind, name)
        if isinstance(defined, staticmethod | classmethod):
            defined = defined.__func__
        if isinstance(defined, types.FunctionType):
            self._function(defined, value)
            if is_closed(defined):
                self._contents.whole(value, holder, where)  # a method whose code is not examined may read all of it
            return None
        getter = getattr(defined, "fget", None) or getattr(defined, "func", None)
        if isinstance(getter, types.FunctionType) and not is_closed(getter):
            self._function(getter, value)
            return None
        if hasattr(type(defined), "__get__"):
            self._contents.whole(value, holder, where)
            return self._computed(value, name, what, where)
        return (defined,)

    def _computed(self, value: Any, name: str, what: str, where: SourceLine) -> tuple[Any] | None:
        """Follow an attribute that a library computes: a plain value is compared, others are followed."""
        try:
            result = getattr(value, name)
        except Exception:
            return None
        if is_plain(result):
            self._contents.add(Computed(partial(getattr, value, name), what, where), value, name)
            return None
        return None if callable(result) else (result,)


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _nested(constant)


_OWN = f"{__name__.partition('.')[0]}."
"""Modules of the framework, whose callable objects may wrap a user's function."""


def _user_callables(program: Any) -> list[Any]:
    """Return the user's callables that a base program, made of the framework's own functions, can call."""
    found: list[Any] = []
    waiting, seen = [program], set()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, types.FunctionType) and is_closed(value):
            waiting += _outer_values(value)
        elif isinstance(value, types.MethodType) and isinstance(value.__func__, types.FunctionType):
            if is_closed(value.__func__):
                waiting.append(value.__self__)
            else:
                found.append(value)
        elif isinstance(value, types.FunctionType | types.MethodType | partial):
            found.append(value)
        elif is_dataclass(value) and not isinstance(value, type) and is_library_module(type(value).__module__):
            waiting += [getattr(value, field.name) for field in fields(value)]
        elif callable(value) and not is_library_module(type(value).__module__):
            found.append(value)
        elif callable(value) and type(value).__module__.startswith(_OWN):
            waiting += [*getattr(value, "__dict__", {}).values(), *(getattr(value, n, None) for n in slots_of(value))]
    return found


def _outer_values(function: types.FunctionType) -> Iterator[Any]:
    """Yield the values of a function's enclosing variables that are set."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            continue
