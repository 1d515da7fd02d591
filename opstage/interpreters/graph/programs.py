"""Programs that are compiled once for the types of their inputs, whatever they are compiled for."""

from __future__ import annotations

import logging
import warnings
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Sequence
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
_CHANGES_TOLD = 8

T = TypeVar("T")


class Executable(Protocol[T]):
    """A graph that is ready to run. `nbytes` is about what it keeps."""

    graph: Graph
    nbytes: int

    def run(self, inputs: Sequence[T], step: int = 0) -> tuple[T, ...]:
        """The outputs for `inputs`, at training step `step`. No input is written over."""
        ...

    def start(self, inputs: Sequence[T], step: int = 0, free: Collection[int] = ()) -> tuple[tuple[T, ...], Finish]:
        """The outputs, and a function that completes them: only then is anything in them, and nothing fails any more.

        Inputs at the positions `free` are written over by it if there is a result for them; until it is called they are
        as they were, also where `start` raised. Of any other input a copy takes its place.
        """
        ...


E = TypeVar("E", bound=Executable[Any])
E_co = TypeVar("E_co", bound=Executable[Any], covariant=True)


class Compiling(Protocol[E_co]):
    """An interpreter that has compiled programs."""

    cursor: Cursor
    dtype: DType
    seed: int

    @property
    def mesh(self) -> Mesh:
        """That of whose ranks each runs the program."""
        ...

    def compile(self, graph: Graph, donated: Collection[int] = ()) -> E_co:
        """Compile a graph; results may be written over the inputs at the positions `donated`."""
        ...


class _Entry(NamedTuple, Generic[E]):
    """A compiled program, the structure of its result, and what must hold for it to be that of a run."""

    executor: E
    result: Structure | None
    guard: Guard


@final
class _Forms(Generic[E]):
    """A program for inputs of some types, as it was with what it read at different times, the last one at the end.

    changes     how often what it read had changed
    """

    __slots__ = ("entries", "changes")

    def __init__(self, entries: list[_Entry[E]]):
        self.entries = entries
        self.changes = 0


@final
class Programs(Generic[E]):
    """The compiled programs of `ops`, whose part this is: one with an identity once per types of its inputs, any other
    each time.

    lock        is held while one of them runs
    """

    def __init__(self, ops: Compiling[E], limit: str):
        """The programs that ran last are kept, of `limit` in all, an amount such as "128MiB"."""
        # Not held: else an interpreter that nobody uses any more, and all its memory, would wait for the garbage
        # collector, which counts objects and not their bytes.
        self._ops: Compiling[E] = proxy(ops)
        self._bound = Bound(limit)
        self._entries: OrderedDict[Hashable, _Forms[E]] = OrderedDict()
        self.lock = make_lock()

    @property
    def executors(self) -> list[E]:
        """Those of the programs that are kept, the one that ran last at the end."""
        return [entry.executor for known in self._entries.values() for entry in known.entries]

    def bind(self, primitive: Primitive, refs: tuple[Any, ...], static: Static) -> tuple[Any, ...]:
        """An op that is bound outside of a program, as a program of one op."""
        try:
            with self.lock:
                key = (primitive, static_key(static))
                entry = self._entry(lambda ops, *x: ops.bind(primitive, x, static), _types(refs), key, f" {primitive}")
                results: tuple[Any, ...] = entry.executor.run(refs)
                return results
        except LocatedError as error:
            error.place(primitive.name, self._ops.cursor.region.name)
            raise

    def execute(self, program: Callable[..., tuple[Any, ...]], refs: tuple[Any, ...], step: int) -> tuple[Any, ...]:
        """The results of `program(ops, *refs)` at training step `step`."""
        outputs: tuple[Any, ...]
        with self.lock:
            types = _types(refs)
            if not isinstance(program, BaseProgram):
                outputs = self._entry(program, types, None).executor.run(refs, step)
                return outputs
            donated = frozenset(program.donated)
            entry = self._entry(
                program, types, None if program.key is None else (program.key, donated), donated=donated
            )
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
        """A call of a program on `refs` but for others at the positions `varying`; None where it has none such.

        Beside it whether what the program read still holds, which is to be asked before each call, and the structure of
        its results. See `CpuExecutor.prepared`.
        """
        with self.lock:
            entry = self._entry(program, _types(refs), (program.key, frozenset()))
            prepared = getattr(entry.executor, "prepared", None)
            call = None if prepared is None else prepared(refs, varying)
        return None if call is None or entry.result is None else (call, entry.guard.holds, entry.result)

    def _entry(
        self,
        program: Callable[..., Any],
        types: tuple[TensorType, ...],
        key: Hashable,
        what: str = "",
        donated: Collection[int] = (),
    ) -> _Entry[E]:
        known: _Forms[E] | None = None
        try:
            known = self._entries.get((key, types)) if key is not None else None
        except TypeError:  # something of the key cannot be hashed
            key = None
        if known is not None:
            self._entries.move_to_end((key, types))
            entry: _Entry[E]
            for entry in reversed(known.entries):
                if entry.guard.holds():
                    return entry
            self._tell_change(known)
        _log.debug("compiling%s for %s", what, ", ".join(f"{show_shape(t.shape)} {dtype_name(t.dtype)}" for t in types))
        how: Any = (types, self._ops.dtype, self._ops.seed, None, self._ops.mesh)
        with resting():
            graph, guard = record_pure(program, *how) if key is not None else (record(program, *how), Guard([]))
            executor = _with_body(known, graph)
            if executor is None:
                if key is not None:
                    self._bound.compiling(_mark((key, types), graph))
                executor = self._ops.compile(graph, donated)
        entry = _Entry(executor, program.result if isinstance(program, BaseProgram) else None, guard)
        if key is not None:
            known = self._entries.setdefault((key, types), _Forms([]))
            others = [each for each in known.entries if each.executor is not executor]
            known.entries[:] = [*others[1 - _FORMS_KEPT :], entry]
            self._bound.keep(self._entries, _nbytes, _marks)
        return entry

    def _tell_change(self, known: _Forms[E]) -> None:
        """Say why a program is recorded anew; aloud where that has become a habit."""
        known.changes += 1
        what, where = known.entries[-1].guard.changed()[0]
        _log.debug("recording anew: %s, read%s, has changed", what, at_line(where))
        if known.changes == _CHANGES_TOLD:
            message = (
                f"a compiled program has been recorded anew {known.changes} times, last because {what}, which it "
                f"reads{at_line(where)}, has changed; pass what changes as an argument, or keep it as state"
            )
            warnings.warn(ProgramWarning(message), stacklevel=2)


def _nbytes(known: _Forms[Any]) -> int:
    """About what a program keeps in all its forms."""
    return sum(each.executor.nbytes + each.guard.nbytes for each in known.entries)


def _marks(key: Hashable, known: _Forms[Any]) -> list[int]:
    return [_mark(key, each.executor.graph) for each in known.entries]


def _mark(key: Hashable, graph: Graph) -> int:
    """A fingerprint of a program: its key alone may be that of another one which has come in its place."""
    return hash((key, body_key(graph.body)))


def _with_body(known: _Forms[E] | None, graph: Graph) -> E | None:
    """The executable of a graph that computes the same."""
    if known is None:
        return None
    key = body_key(graph.body)
    return next((e.executor for e in known.entries if body_key(e.executor.graph.body) == key), None)


def _types(refs: tuple[Any, ...]) -> tuple[TensorType, ...]:
    return tuple([TensorType(r.shape, r.dtype) for r in refs])
