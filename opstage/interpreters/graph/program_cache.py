"""Compiled programs, cached by the types of their inputs and guarded by what they read, for any target."""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Generic, NamedTuple, NoReturn, Protocol, TypeVar, final
from weakref import proxy

import numpy as np
import numpy.typing as npt

from ...compiler.captures import Capture, Guard, at_line, generator_state, observed
from ...ops.body import Body
from ...ops.dispatch import Cursor
from ...ops.errors import LocatedError, ProgramError, ProgramWarning, SourceLine, warn_user
from ...ops.mesh import ALONE, Mesh
from ...ops.primitive import Primitive, Static
from ...ops.readable_amounts import parse_bytes, show_bytes
from ...ops.trees import Structure
from ...ops.types import DType, TensorType, dtype_name, show_shape
from ...threads import make_lock, paused_gc
from ...transforms.base_program import Action, BaseProgram, Finish
from ...transforms.control_flow import inner_bodies
from .graph import Graph
from .passes.cse import array_key, body_key, static_key
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

    def prepared(self, inputs: Sequence[T], varying: Sequence[int]) -> Callable[[Sequence[T]], Any] | None:
        """Return a fast call that binds `inputs` except at the positions `varying`, or None without such calls."""
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
@dataclass
class _Forms(Generic[E]):
    """The compiled versions of one program for some input types, each with what the program read; the latest comes
    last.

    changes     how often something that it reads had changed
    """

    entries: list[_Entry[E]]
    changes: int = 0


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
        self._cache: ProgramCache[_Forms[E]] = ProgramCache(limit, _nbytes, _marks)
        self.lock = make_lock()

    @property
    def executors(self) -> list[E]:
        """Return the executors of all cached programs, the most recently run last."""
        return [entry.executor for known in self._cache.entries.values() for entry in known.entries]

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
            call = entry.executor.prepared(refs, varying)
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
            known = self._cache.get(signature) if key is not None else None
        except TypeError:  # part of the key is not hashable
            key = None
        if known is not None:
            entry: _Entry[E]
            for entry in reversed(known.entries):
                if entry.guard.holds():
                    return entry
            self._report_change(known)
        types = tuple(map(TensorType, *signature[1:]))
        _log.debug("compiling%s for %s", what, ", ".join(f"{show_shape(t.shape)} {dtype_name(t.dtype)}" for t in types))
        how: Any = (types, self._ops.dtype, self._ops.seed, None, self._ops.mesh)
        with paused_gc():
            graph, guard = record_pure(program, *how) if key is not None else (record(program, *how), Guard([]))
            executor = _with_body(known, graph)
            if executor is None:
                if key is not None:
                    self._cache.compiling(_mark(signature, graph))
                executor = self._ops.compile(graph, donated)
        entry = _Entry(executor, program.result if isinstance(program, BaseProgram) else None, guard)
        if key is not None:
            known = known or _Forms([])
            others = [each for each in known.entries if each.executor is not executor]
            known.entries[:] = [*others[1 - _FORMS_KEPT :], entry]
            self._cache.add(signature, known)
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
            warn_user(ProgramWarning(message), where)


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


# What a program reads -------------------------------------------------------------------------------------------------

# A program is recorded twice. A difference (a random number, the time, a counter) could not be replayed correctly, so
# it is an error. Values that the program reads and that may change become a guard, which tells the cache when to record
# again.


_CURE = "Pass what changes as an argument, or keep it as state= of the trainer"


def record_pure(
    program: Callable[..., Any],
    types: Sequence[TensorType],
    dtype: DType,
    seed: int,
    input_names: Sequence[str] | None = None,
    mesh: Mesh = ALONE,
) -> tuple[Graph, Guard]:
    """Return the graph of a base program, and the guard under which a replay equals a run.

    Raises ProgramError where replay would be wrong: for a program that draws from a random generator of Python or
    NumPy, changes what it reads, or differs between two recordings; and for captured arrays too large to compare in
    every call.
    """
    with observed() as seen:
        graph = record(program, types, dtype, seed, input_names, mesh)
    if not seen.functions:  # only functions of the framework itself
        return graph, Guard([])
    read = Capture(program.base if isinstance(program, BaseProgram) else program, seen)
    guard = Guard(read.slots)
    before = {name: generator_state(generator) for name, generator in read.generators.items()}
    again = record(program, types, dtype, seed, input_names, mesh)
    for name, generator in read.generators.items():
        if generator_state(generator) != before[name]:
            raise ProgramError(
                f"the program draws random numbers from {name}; a compiled program would repeat those of its "
                "recording. Draw with ops (ops.rand_uniform, ops.rand_normal, ops.bernoulli_mask), which are random in "
                "every step, or pass the numbers as an argument"
            )
    if body_key(graph.body) != body_key(again.body):
        _refuse_difference(graph.body, again.body, seen.asked)
    changed = guard.changed()
    if changed:
        what, where = changed[0]
        raise ProgramError(
            f"the program changes {what}{at_line(where)}, which it reads; a compiled program would change it only when "
            f"it is recorded. {_CURE}"
        )
    for what, where in seen.asked.items():
        message = f"the program calls {what}{at_line(where)}; a compiled program keeps the result of its recording"
        warn_user(ProgramWarning(f"{message}. {_CURE}"), where)
    return graph, guard


def _refuse_difference(one: Body, two: Body, asked: dict[str, SourceLine | None]) -> NoReturn:
    """Raise an error that shows the first difference between two recordings."""
    asks = ", ".join(f"{what}{at_line(where)}" for what, where in asked.items())
    begin = "two recordings of the program differ, so a compiled program cannot replay it: "
    constants = {c.slot: c.value for c in one.constants}, {c.slot: c.value for c in two.constants}
    for a, b in zip(one.equations, two.equations):
        place = f"{a.primitive}{at_line(one.lines.get(a.ordinal))}"
        if a.primitive is not b.primitive:
            difference = f"{place} was {b.primitive} the second time"
        elif static_key(a.static) != static_key(b.static):
            name = next(n for n in a.static if static_key({n: a.static[n]}) != static_key({n: b.static.get(n)}))
            difference = f"{name} of {place} is {a.static[name]}, and was {b.static.get(name)} the second time"
        else:
            pairs = [(constants[0].get(i), constants[1].get(j)) for i, j in zip(a.inputs, b.inputs)]
            found = next((p for p in pairs if _differ(*p)), None)
            if found is None:
                continue
            difference = f"a constant of {place} is {_shown(found[0])}, and was {_shown(found[1])} the second time"
        raise ProgramError(f"{begin}{difference}. {f'It calls {asks}. ' if asks else ''}{_CURE}")
    raise ProgramError(f"{begin}{len(one.equations)} ops, and {len(two.equations)} the second time. {_CURE}")


def _differ(a: Any, b: Any) -> bool:
    return (a is None) != (b is None) or (a is not None and array_key(a) != array_key(b))


def _shown(value: Any) -> str:
    array = np.asarray(value)
    return str(array.item()) if array.ndim == 0 else f"an array of shape {array.shape}"


# The cache's bound ----------------------------------------------------------------------------------------------------


_EQUATION = 1100
"""Bytes of one equation of a graph or plan in Python, with its types, places and addresses; a test measures it."""

_REMEMBERED = 256

Array = npt.NDArray[Any]
V = TypeVar("V")


@final
class ProgramCache(Generic[V]):
    """Values by key, the most recently used last, within a limit of bytes; the most recent one stays whatever its size.

    marks   returns numbers that identify the programs of an entry if they are compiled again
    """

    def __init__(self, limit: str, nbytes: Callable[[V], int], marks: Callable[[Hashable, V], Iterable[int]]):
        """`limit` is an amount such as "128MiB"."""
        self.entries: OrderedDict[Hashable, V] = OrderedDict()
        self._text, self._limit = limit, parse_bytes(limit)
        self._nbytes, self._marks = nbytes, marks
        self._dropped: deque[int] = deque(maxlen=_REMEMBERED)
        self._warned = False

    def get(self, key: Hashable) -> V | None:
        """Return the value of a key, which becomes the most recent one. Raises TypeError for one without a hash."""
        found = self.entries.get(key)
        if found is not None and found is not next(reversed(self.entries.values())):  # hashing takes microseconds
            self.entries.move_to_end(key)
        return found

    def add(self, key: Hashable, value: V) -> None:
        """Add a value, or note that it has grown; then evict the least recently used ones until the rest fits."""
        self.entries[key] = value
        taken = sum(map(self._nbytes, self.entries.values()))
        while taken > self._limit and len(self.entries) > 1:
            old, dropped = self.entries.popitem(last=False)
            taken -= self._nbytes(dropped)
            self._dropped.extend(self._marks(old, dropped))

    def compiling(self, mark: int) -> None:
        """Warn, once, if the program being compiled is one that was evicted before."""
        if not self._warned and mark in self._dropped:
            self._warned = True
            more = show_bytes(4 * self._limit).replace(" bytes", "B").replace(" ", "")
            message = (
                f"a compiled program is compiled again, since the cache has evicted it: the programs in use need more "
                f"than option program_memory, {self._text}; raise it, "
                f"Options(program_memory={more!r}), or use batches of fewer shapes"
            )
            warn_user(ProgramWarning(message))


def walk_bodies(body: Body) -> Iterator[Body]:
    """Yield a body and the bodies of its loops."""
    yield body
    for inner in inner_bodies(body):
        yield from walk_bodies(inner.body)


def kept_bytes(graph: Body, planned: int, constants: Iterable[Array] = ()) -> int:
    """Estimate the bytes that a program keeps: its graph, a plan of `planned` equations or calls, and all constants."""
    bodies = list(walk_bodies(graph))
    arrays = [*(np.asarray(constant.value) for body in bodies for constant in body.constants), *constants]
    count = sum(len(body.equations) for body in bodies) + planned
    return _EQUATION * count + sum({id(array): array.nbytes for array in arrays}.values())
