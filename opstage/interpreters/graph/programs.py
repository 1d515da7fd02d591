"""Programs that are compiled once for the types of their inputs, whatever they are compiled for."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, final

from ...ops.errors import LocatedError
from ...ops.primitive import Primitive, Static
from ...ops.trees import Structure
from ...ops.types import TensorType, dtype_name, show_shape
from ..base_program import BaseProgram
from ..interpreter import BaseInterpreter
from .graph import Graph
from .passes.keys import static_key
from .recorder import record

_log = logging.getLogger(__name__)

_PROGRAMS_KEPT = 1024

T = TypeVar("T")


class Compiled(Protocol[T]):
    """A graph that is ready to run."""

    graph: Graph

    def run(self, inputs: Sequence[T], step: int = 0) -> tuple[T, ...]:
        """The outputs for `inputs`, at training step `step`. No input is written over."""
        ...

    def start(
        self, inputs: Sequence[T], step: int = 0, free: Collection[int] = ()
    ) -> tuple[tuple[T, ...], Callable[[], None]]:
        """The outputs, and a function that completes them: only then is anything in them, and nothing fails any more.

        Inputs at the positions `free` are written over by it if there is a result for them; until it is called they are
        as they were, also where `start` raised. Of any other input a copy takes its place.
        """
        ...


E = TypeVar("E", bound=Compiled[Any])


class _Entry(NamedTuple, Generic[E]):
    """A compiled program, and the structure of its result."""

    executor: E
    result: Structure | None


@final
class Programs(Generic[E]):
    """What `ops` has compiled: a program with an identity once per types of its inputs, any other each time.

    compile     makes a graph ready to run; results may be written over the inputs at some positions
    lock        is held while one of them runs
    """

    def __init__(self, ops: BaseInterpreter[Any], compile: Callable[[Graph, Collection[int]], E]):
        self._ops = ops
        self._compile = compile
        self._entries: OrderedDict[Hashable, _Entry[E]] = OrderedDict()
        self.lock = threading.RLock()

    @property
    def executors(self) -> list[E]:
        """Those of the programs that are kept, the one that ran last at the end."""
        return [entry.executor for entry in self._entries.values()]

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
            spare = frozenset(program.spare)
            entry = self._entry(program, types, None if program.key is None else (program.key, spare), spare=spare)
            program.result = entry.result
            if not spare:
                outputs = entry.executor.run(refs, step)
                return outputs
            outputs, finish = entry.executor.start(refs, step, {i for i, free in program.spare.items() if free})

            def finish_alone() -> None:
                with self.lock:
                    finish()

            program.finish = finish_alone
            return outputs

    def _entry(
        self,
        program: Callable[..., Any],
        types: tuple[TensorType, ...],
        key: Hashable,
        what: str = "",
        spare: Collection[int] = (),
    ) -> _Entry[E]:
        try:
            entry = self._entries.get((key, types)) if key is not None else None
        except TypeError:  # something of the key cannot be hashed
            key = entry = None
        if entry is not None:
            self._entries.move_to_end((key, types))
            return entry
        _log.debug("compiling%s for %s", what, ", ".join(f"{show_shape(t.shape)} {dtype_name(t.dtype)}" for t in types))
        graph = record(program, types, self._ops.dtype, self._ops.seed)
        entry = _Entry(self._compile(graph, spare), program.result if isinstance(program, BaseProgram) else None)
        if key is not None:
            self._entries[key, types] = entry
            while len(self._entries) > _PROGRAMS_KEPT:
                self._entries.popitem(last=False)
        return entry


def _types(refs: tuple[Any, ...]) -> tuple[TensorType, ...]:
    return tuple([TensorType(r.shape, r.dtype) for r in refs])
