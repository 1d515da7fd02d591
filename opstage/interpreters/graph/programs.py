"""Compiled programs, cached by the types of their inputs, for any target."""

from __future__ import annotations

import logging
import warnings
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Sequence
from operator import attrgetter
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, final
from weakref import proxy

from ...forks import make_lock
from ...ops.cursor import Cursor
from ...ops.errors import LocatedError, ProgramWarning
from ...ops.mesh import Mesh
from ...ops.primitive import Primitive, Static
from ...ops.trees import Structure
from ...ops.types import DType, TensorType, dtype_name, show_shape
from ..at_once import Action
from ..base_program import BaseProgram, Finish
from ..captures import Guard, at_line
from ..resting import resting
from .bounds import Bound
from .graph import Graph
from .passes.keys import body_key, static_key
from .pure import record_pure
from .recorder import record

_log = logging.getLogger(__name__)

_FORMS_KEPT = 8
_CHANGES_BEFORE_WARNING = 8

T = TypeVar("T")


class Executable(Protocol[T]):
    """A graph that is ready to run. `nbytes` estimates the memory it keeps."""

    graph: Graph
    nbytes: int

    def run(self, inputs: Sequence[T], step: int = 0) -> tuple[T, ...]:
        """Return the outputs for `inputs` at training step `step`. Inputs are not overwritten."""
        ...

    def start(self, inputs: Sequence[T], step: int = 0, free: Collection[int] = ()) -> tuple[tuple[T, ...], Finish]:
        """Return the outputs and a function that completes them. The outputs are undefined until it is called, and it
        cannot fail.

        The function overwrites inputs at the positions `free` if results are aliased to them. Before it is called, and
        also if `start` raises, they are unchanged. Other aliased inputs are copied first.
        """
        ...


E = TypeVar("E", bound=Executable[Any])
E_co = TypeVar("E_co", bound=Executable[Any], covariant=True)


class Compiling(Protocol[E_co]):
    """An interpreter with compiled programs."""

    cursor: Cursor
    dtype: DType
    seed: int

    @property
    def mesh(self) -> Mesh:
        """The mesh for whose ranks programs are recorded."""
        ...

    def compile(self, graph: Graph, donated: Collection[int] = ()) -> E_co:
        """Compile a graph; results may overwrite the inputs at the positions `donated`."""
        ...


class _Entry(NamedTuple, Generic[E]):
    """A compiled program, the structure of its result, and the guard under which it is valid."""

    executor: E
    result: Structure | None
    guard: Guard


@final
class _Forms(Generic[E]):
    """The compiled versions of one program for some input types, each with what the program read; the latest comes
    last.

    changes     how often something that it reads had changed
    """

    __slots__ = ("entries", "changes")

    def __init__(self, entries: list[_Entry[E]]):
        self.entries = entries
        self.changes = 0


@final
class Programs(Generic[E]):
    """The compiled programs of the interpreter `ops`. Programs with an identity are cached by input types, others are
    compiled on every call.

    lock        held while one of them runs
    """

    def __init__(self, ops: Compiling[E], limit: str):
        """`limit` bounds the cache of recently run programs, as an amount such as "128MiB"."""
        # A weak reference: otherwise an unused interpreter, with all its memory, would wait for the cyclic garbage
        # collector, which counts objects and not their bytes.
        self._ops: Compiling[E] = proxy(ops)
        self._bound = Bound(limit)
        self._entries: OrderedDict[Hashable, _Forms[E]] = OrderedDict()
        self.lock = make_lock()

    @property
    def executors(self) -> list[E]:
        """Return the executors of all cached programs, the most recently run last."""
        return [entry.executor for known in self._entries.values() for entry in known.entries]

    def bind(self, primitive: Primitive, refs: tuple[Any, ...], static: Static) -> tuple[Any, ...]:
        """Run an op that is bound outside of a program, as a program of one op."""
        try:
            with self.lock:
                key = (primitive, static_key(static))
                entry = self._entry(lambda ops, *x: ops.bind(primitive, x, static), refs, key, f" {primitive}")
                results: tuple[Any, ...] = entry.executor.run(refs)
                return results
        except LocatedError as error:
            error.place(primitive.name, self._ops.cursor.region.name)
            raise

    def execute(self, program: Callable[..., tuple[Any, ...]], refs: tuple[Any, ...], step: int) -> tuple[Any, ...]:
        """Return the results of `program(ops, *refs)` at training step `step`."""
        outputs: tuple[Any, ...]
        with self.lock:
            if not isinstance(program, BaseProgram):
                outputs = self._entry(program, refs, None).executor.run(refs, step)
                return outputs
            donated = frozenset(program.donated)
            entry = self._entry(program, refs, None if program.key is None else (program.key, donated), donated=donated)
            program.result = entry.result
            if not donated:
                outputs = entry.executor.run(refs, step)
                return outputs
            outputs, finish = entry.executor.start(refs, step, {i for i, free in program.donated.items() if free})

            def finish_alone(then: Sequence[Action]) -> None:
                with self.lock:
                    finish(then)

            program.finish = finish_alone
            return outputs

    def prepared(
        self, program: BaseProgram, refs: tuple[Any, ...], varying: Sequence[int]
    ) -> tuple[Callable[[Sequence[Any]], Any], Callable[[], bool], Structure] | None:
        """Return a call of a program that binds `refs` except at the positions `varying`, or None if that is not
        possible.

        The call comes with a function that returns whether what the program read is unchanged, to be checked before
        each call, and with the structure of the results. See `CpuExecutor.prepared`.
        """
        with self.lock:
            entry = self._entry(program, refs, (program.key, frozenset()))
            prepared = getattr(entry.executor, "prepared", None)
            call = None if prepared is None else prepared(refs, varying)
        return None if call is None or entry.result is None else (call, entry.guard.holds, entry.result)

    def _entry(
        self,
        program: Callable[..., Any],
        refs: tuple[Any, ...],
        key: Hashable,
        what: str = "",
        donated: Collection[int] = (),
    ) -> _Entry[E]:
        known: _Forms[E] | None = None
        signature = key, tuple(map(_SHAPE, refs)), tuple(map(_DTYPE, refs))
        try:
            known = self._entries.get(signature) if key is not None else None
        except TypeError:  # part of the key is not hashable
            key = None
        if known is not None:
            if known is not next(reversed(self._entries.values())):  # hashing the key once more takes microseconds
                self._entries.move_to_end(signature)
            entry: _Entry[E]
            for entry in reversed(known.entries):
                if entry.guard.holds():
                    return entry
            self._report_change(known)
        types = tuple(map(TensorType, *signature[1:]))
        _log.debug("compiling%s for %s", what, ", ".join(f"{show_shape(t.shape)} {dtype_name(t.dtype)}" for t in types))
        how: Any = (types, self._ops.dtype, self._ops.seed, None, self._ops.mesh)
        with resting():
            graph, guard = record_pure(program, *how) if key is not None else (record(program, *how), Guard([]))
            executor = _with_body(known, graph)
            if executor is None:
                if key is not None:
                    self._bound.compiling(_mark(signature, graph))
                executor = self._ops.compile(graph, donated)
        entry = _Entry(executor, program.result if isinstance(program, BaseProgram) else None, guard)
        if key is not None:
            known = self._entries.setdefault(signature, _Forms([]))
            others = [each for each in known.entries if each.executor is not executor]
            known.entries[:] = [*others[1 - _FORMS_KEPT :], entry]
            self._bound.keep(self._entries, _nbytes, _marks)
        return entry

    def _report_change(self, known: _Forms[E]) -> None:
        """Log why a program is recorded again, and warn if that keeps happening."""
        known.changes += 1
        what, where = known.entries[-1].guard.changed()[0]
        _log.debug("recording again: %s, read%s, has changed", what, at_line(where))
        if known.changes == _CHANGES_BEFORE_WARNING:
            message = (
                f"a compiled program has been recorded again {known.changes} times, last because {what}, which it "
                f"reads{at_line(where)}, has changed; pass what changes as an argument, or keep it as state"
            )
            warnings.warn(ProgramWarning(message), stacklevel=2)


def _nbytes(known: _Forms[Any]) -> int:
    """Estimate the bytes of all versions of a program."""
    return sum(each.executor.nbytes + each.guard.nbytes for each in known.entries)


def _marks(key: Hashable, known: _Forms[Any]) -> list[int]:
    return [_mark(key, each.executor.graph) for each in known.entries]


def _mark(key: Hashable, graph: Graph) -> int:
    """Return a fingerprint of a program and its graph, since its key alone may have been reused."""
    return hash((key, body_key(graph.body)))


def _with_body(known: _Forms[E] | None, graph: Graph) -> E | None:
    """Return the executable among the versions whose graph computes the same."""
    if known is None:
        return None
    key = body_key(graph.body)
    return next((e.executor for e in known.entries if body_key(e.executor.graph.body) == key), None)


_SHAPE, _DTYPE = attrgetter("shape"), attrgetter("dtype")  # not calls of Python
