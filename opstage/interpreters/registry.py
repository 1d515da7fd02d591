"""Which interpreter a config flag means: `Options(backend=, device=)` -> a base interpreter.

A third party adds one from its own package by an entry point in the group `opstage.interpreters`: its name is the
backend, its value a factory that takes `Options` and returns a `BaseInterpreter` (or raises UsageError for options that
it cannot serve). `register_interpreter` adds one for this process. Opstage's own interpreters stand in a table here, so
that finding them reads no package metadata.
"""

from __future__ import annotations

import ctypes.util
from collections.abc import Callable
from functools import cache, lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from os import PathLike
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias
from weakref import WeakSet

from ..ops.errors import UsageError, nearest
from ..options import Options
from ..transforms.interpreter import BaseInterpreter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..ops.primitive import Primitive
    from .graph.graph import Graph

Factory: TypeAlias = Callable[[Options], BaseInterpreter[Any]]

GROUP = "opstage.interpreters"

_OWN: dict[tuple[str, str], str] = {
    ("eager", "cpu"): "opstage.interpreters.eager_cpu:NumpyOps",
    ("eager", "cuda"): "opstage.interpreters.eager_cuda:CudaOps",
    ("compiled", "cpu"): "opstage.interpreters.graph.compiled:CompiledOps",
    ("compiled", "cuda"): "opstage.interpreters.graph.cuda.executor:CompiledCudaOps",
    ("shape_check", "cpu"): "opstage.interpreters.shape_check.interpreter:ShapeOps",
    ("shape_check", "cuda"): "opstage.interpreters.shape_check.interpreter:ShapeOps",
}


_IN_PROCESS: dict[str, Factory] = {}


def register_interpreter(name: str, factory: Factory) -> None:
    """Make `Options(backend=name)` mean `factory(options)` in this process, without an entry point.

    Raises UsageError where the name is taken, by Opstage, an installed package or an earlier call.

    Raises:
        UsageError: a name that is taken; no factory.
    """
    if not isinstance(name, str) or not name or not callable(factory):
        raise UsageError(f"register_interpreter takes a name and a factory, not {name!r} and {factory!r}")
    if name in backends():
        raise UsageError(f"backend {name!r} exists already; give this one another name")
    _IN_PROCESS[name] = factory


@cache
def _third_party() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def backends() -> list[str]:
    """Return the names that `Options.backend` may have here."""
    return sorted({backend for backend, _ in _OWN} | set(_third_party()) | set(_IN_PROCESS))


@cache
def _own_factory(backend: str, device_kind: str) -> Factory | None:
    own = _OWN.get((backend, device_kind))
    if own is None:
        return None
    module, _, name = own.partition(":")
    factory: Factory = getattr(import_module(module), name)
    return factory


def make_interpreter(options: Options) -> BaseInterpreter[Any]:
    """Return the base interpreter for `options`. Raises UsageError when there is none; never falls back."""
    own = _own_factory(options.backend, options.device_kind)
    if own is not None:
        return own(options)
    registered = _IN_PROCESS.get(options.backend)
    if registered is not None:
        return registered(options)
    entry = _third_party().get(options.backend)
    if entry is not None:
        return _load(entry)(options)
    if options.backend not in backends():
        here = backends()
        close = nearest(options.backend, here)
        raise UsageError(f"unknown backend {options.backend!r}{close}; here are {', '.join(here)}")
    devices = ", ".join(device for backend, device in _OWN if backend == options.backend)
    missing = _missing_for_cuda() if options.use_gpu else ""
    raise UsageError(
        f"backend {options.backend!r} does not run on device {options.device!r}, only on {devices}{missing}"
    )


_SHARED: WeakSet[BaseInterpreter[Any]] = WeakSet()


@lru_cache(maxsize=16)
def _shared(options: Options) -> BaseInterpreter[Any]:
    made = make_interpreter(options)
    _SHARED.add(made)
    return made


def shared_interpreter(options: Options) -> BaseInterpreter[Any]:
    """Return one interpreter for all callers with these options, if it caches compiled programs; else a new one."""
    return _shared(options) if options.backend == "compiled" else make_interpreter(options)


def empty_shared_caches() -> None:
    """Make all of those release the memory that they cache."""
    for interpreter in list(_SHARED):
        interpreter.empty_cache()


def _load(entry: EntryPoint) -> Factory:
    try:
        factory: Factory = entry.load()
    except Exception as error:
        raise UsageError(
            f"backend {entry.name!r} ({entry.value}) cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    return factory


def _missing_for_cuda() -> str:
    if ctypes.util.find_library("cuda") is None:
        return "; for CUDA this machine also lacks the NVIDIA driver (libcuda was not found)"
    return ""


# Formats of graphs ----------------------------------------------------------------------------------------------------


class GraphFormat(Protocol):
    """A file format in which other libraries read graphs.

    name     as reports print it
    dtypes   the dtypes of floats that it has
    """

    name: str
    dtypes: tuple[str, ...]

    def expresses(self, primitive: Primitive) -> bool:
        """Return whether it has an op; others are written by their decomposition."""

    def write(self, graph: Graph, path: str | PathLike[str], values: Mapping[str, Any] | None) -> None:
        """Write a graph to a file, with values for inputs that become constants."""


_FORMATS = {"onnx": "opstage.interop.onnx.export:FORMAT"}


def graph_formats() -> list[str]:
    """Return the names of the formats."""
    return list(_FORMATS)


@cache
def graph_format(name: str) -> GraphFormat:
    """Return a format, whose module is imported when it is first asked for."""
    module, _, attribute = _FORMATS[name].partition(":")
    found: GraphFormat = getattr(import_module(module), attribute)
    return found
