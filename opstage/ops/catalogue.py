"""Primitives by name: those of Opstage, by family, and those declared outside of it, with their kernels."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from threading import Lock
from types import MappingProxyType
from typing import Any

from .activation import RELU, RELU_GRAD
from .collective import CollectiveOps
from .elementwise import ABS, ADD, MAXIMUM, MINIMUM, MUL, NEG, SCALE, SUB
from .errors import UsageError
from .logic import CAST, EQUAL, LESS, LESS_EQUAL, LOGICAL_AND, LOGICAL_NOT, SELECT
from .primitive import Primitive
from .protocol import Ops

FAMILIES = tuple(base.__module__.rpartition(".")[2] for base in Ops.__bases__ if base is not CollectiveOps)
"""The families whose primitives have kernels."""


@cache
def primitives() -> dict[str, Primitive]:
    """Return all primitives by name."""
    found: dict[str, Primitive] = {}
    for family in (*FAMILIES, "collective"):
        for value in vars(import_module(f".{family}", __package__)).values():
            if isinstance(value, Primitive):
                known = found.setdefault(value.name, value)
                assert known is value, f"two primitives are called {value.name}"
    return found


@cache
def own() -> frozenset[Primitive]:
    """Return the same as a set: those that always do the same, whatever Python state another package's read."""
    return frozenset(primitives().values())


# Ops that are cheaper to recompute than to store and load -------------------------------------------------------------

CHEAP = frozenset({
    ABS, ADD, CAST, EQUAL, LESS, LESS_EQUAL, LOGICAL_AND, LOGICAL_NOT, MAXIMUM, MINIMUM, MUL, NEG, RELU, RELU_GRAD,
    SCALE, SELECT, SUB,
})  # fmt: skip
"""Ops of one or two cycles, far less than the latency of memory."""


# Ops declared outside of Opstage --------------------------------------------------------------------------------------

# An op is found by name among the ops declared in this process, or through an entry point in the group `opstage.ops`,
# whose value is the result of `opstage.custom_op`; importing its module declares the op.

GROUP = "opstage.ops"

_NAMED: dict[str, Primitive] = {}
_KERNELS: dict[str, dict[Primitive, Callable[..., Any]]] = {}
_TABLES: dict[str, list[dict[Primitive, Callable[..., Any]]]] = {}
_LOCK = Lock()


def register(
    name: str, primitive: Primitive, kernels: Mapping[str, Callable[..., Any]], taken: Collection[str]
) -> None:
    """Register an op and its kernels. Raises UsageError for a name that is known or in `taken`."""
    with _LOCK:
        if name in _NAMED or name in taken:
            raise UsageError(f"op {name!r} exists already; give this one another name, such as 'my_{name}'")
        _NAMED[name] = primitive
        for kind, kernel in kernels.items():
            _KERNELS.setdefault(kind, {})[primitive] = kernel
            for table in _TABLES.get(kind, ()):
                table[primitive] = kernel


def unregister(name: str) -> None:
    """Remove the op of this name and its kernels, for tests."""
    with _LOCK:
        primitive = _NAMED.pop(name, None)
        if primitive is not None:
            for kind in _KERNELS:
                for table in (_KERNELS[kind], *_TABLES.get(kind, ())):
                    table.pop(primitive, None)


def has_kernel(kind: str, primitive: Primitive) -> bool:
    """Return whether the op was declared outside of Opstage with a kernel of this kind."""
    return primitive in _KERNELS.get(kind, ())


def table_with_registered(
    kind: str, own: Mapping[Primitive, Callable[..., Any]]
) -> Mapping[Primitive, Callable[..., Any]]:
    """Return a kernel table of Opstage's `own` entries and those of other packages, including later declarations."""
    with _LOCK:
        table = {**own, **_KERNELS.get(kind, {})}
        _TABLES.setdefault(kind, []).append(table)
    return MappingProxyType(table)


def registered(name: str) -> Primitive | None:
    """Return the op of this name that was declared outside, loading its entry point if needed; None if there is none.

    Raises UsageError for an entry point that cannot be loaded or is not an op, and for a name that two packages
    declare.
    """
    found = () if name in _NAMED else _entries().get(name, ())
    if len(found) > 1:
        packages = " and ".join(f"{_package(entry)} ({entry.value})" for entry in found)
        raise UsageError(f"op {name!r} is declared by {packages}; uninstall one of them, or have one rename its op")
    if found:
        _load(name, found[0])
    return _NAMED.get(name)


def _load(name: str, entry: EntryPoint) -> None:
    before = set(_NAMED)
    try:
        entry.load()
    except Exception as error:
        if entry.module not in sys.modules:  # declarations of a partially executed module must not be found later
            for declared in set(_NAMED) - before:
                unregister(declared)
        where = f"{entry.value} of {_package(entry)}"
        raise UsageError(f"op {name!r} ({where}) cannot be loaded: {type(error).__name__}: {error}") from error
    if name not in _NAMED:
        raise UsageError(f"op {name!r}: {entry.value} declares no op of this name; declare it with custom_op there")


def _package(entry: EntryPoint) -> str:
    """Return the name of an entry point's distribution."""
    return "a package" if entry.dist is None else str(entry.dist.metadata["Name"])


@cache
def _entries() -> dict[str, tuple[EntryPoint, ...]]:
    """Return entry points by name, without duplicates for packages that are found repeatedly."""
    found: dict[str, dict[str, EntryPoint]] = {}
    for entry in entry_points(group=GROUP):
        found.setdefault(entry.name, {}).setdefault(entry.value, entry)
    return {name: tuple(entries.values()) for name, entries in found.items()}
