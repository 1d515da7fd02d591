"""`vmap`: a program for one example runs on all examples of a batch at once.

`Batching` wraps an interpreter. Its refs hold inner values that either have an axis of examples in front, or are shared
by all examples. An op whose operands are all shared runs once. Any other op runs by its rule in `batching_rules`; a
composite without a rule is decomposed, and a core op without a rule runs in a scan over the examples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from types import SimpleNamespace
from typing import Any, final

from typing_extensions import override

from ..ops.arrangement import moveaxis
from ..ops.body import Body
from ..ops.dims import Dim, require_equal
from ..ops.dispatch import Quietly
from ..ops.errors import ProgramError, ShapeError, UnsupportedError, UsageError, a_type
from ..ops.primitive import ONCE_PER_RUN, Effect, Kind, Primitive, R, Row, Static
from ..ops.trees import flatten, leaves_of_prefix, structure_paths, unflatten
from ..ops.types import INT64, TensorType, show_shape
from .batching_rules import RULES, batched_as_is
from .interpreter import Holding, Interpreter, Wrapper, run_closed

_LEAKED = "a ref of a vmapped function was used outside of the function; return it from the function instead"


@final
class Batched(Holding):
    """A value of the inner interpreter: with the examples along its first axis if `batched`, else shared by all."""

    __slots__ = ("value", "ops", "batched")

    def __init__(self, value: Any, ops: Batching[Any], batched: bool = False):
        self.value = value
        self.ops = ops
        self.batched = batched

    @property
    @override
    def shape(self) -> Any:
        """Return the shape of one example."""
        shape = self.value.shape
        return shape[1:] if self.batched else shape


@final
class Batching(Wrapper[Batched, R]):
    """Runs the program of one example on `size` examples.

    numbers   the position of each example, an int64 tensor of shape (size,), made by the first draw: each example draws
              as it does in iteration `number` of a loop over the examples. None: all examples draw the same
    outside   how many of the inner interpreter's iterations belong to loops around the examples, and how many belong to
              those and the loop over chunks of examples
    """

    __slots__ = ("size", "_numbers", "outside")
    ref_type = Batched
    misplaced = _LEAKED

    def __init__(
        self,
        inner: Interpreter[R],
        size: Dim,
        numbers: Callable[[], R] | None = None,
        outside: tuple[int, int] = (0, 0),
    ):
        super().__init__(inner, differentiates=False)
        self.size = size
        self._numbers = numbers
        self.outside = outside

    @override
    def wrap(self, value: R, /) -> Batched:
        return Batched(value, self)

    def ref(self, value: Any, batched: bool = False) -> Batched:
        """Return an inner value as a ref."""
        return Batched(value, self, batched)

    def on(self, inner: Interpreter[Any]) -> Batching[Any]:
        """Return the same batching over another interpreter, which traces a body or runs a rule."""
        numbers = self._numbers
        return Batching(inner, self.size, None if numbers is None else lambda: inner.adopt(numbers()), self.outside)

    def stretched(self, ref: Batched) -> Any:
        """Return the value with the axis of examples first; broadcast a shared value along it."""
        value = ref.value
        return value if ref.batched else self.inner.broadcast_to(value, shape=(self.size, *value.shape))

    @override
    def iterations(self) -> tuple[Batched, ...]:
        every = super().iterations()
        before, after = self.outside
        number = () if self._numbers is None else (Batched(self._numbers(), self, True),)
        return (*every[:before], *number, *every[after:])

    @override
    def before_decompose(self, primitive: Primitive, refs: tuple[Any, ...], static: Static, /) -> None:
        """Check one example by the op's own rule, so that errors name its shapes."""
        if not self.cursor.quiet:
            self.infer(primitive, tuple([TensorType(ref.shape, ref.dtype) for ref in refs]), static)

    @override
    def bind(self, primitive: Primitive, refs: tuple[Batched, ...], static: Static, /) -> tuple[Batched, ...]:
        if self.closed:
            raise ProgramError(self.closed)
        refs = tuple([r if type(r) is Batched and r.ops is self else self.adopt(r) for r in refs])
        if not any(ref.batched for ref in refs) and (self._numbers is None or not _impure(primitive, static)):
            return tuple([Batched(v, self) for v in self.inner.bind(primitive, tuple([r.value for r in refs]), static)])
        rule = batched_as_is if primitive.kind is Kind.POINTWISE else RULES.get(primitive)
        if rule is None and primitive.decomposition is not None:
            if primitive.expandable or not primitive.differentiable or not self.inner.differentiates:
                return self.decompose(primitive, refs, static)
            rule = _bind_declared  # an interpreter beneath differentiates, and the op's own rules say how
        self.before_decompose(primitive, refs, static)
        with Quietly(self.cursor):
            found = rule(self, primitive, refs, static) if rule else self.one_by_one(primitive, refs, static)
        return tuple([out if type(out) is Batched and out.ops is self else Batched(out, self, True) for out in found])

    def one_by_one(self, primitive: Primitive, refs: Sequence[Batched], static: Static) -> Sequence[Any]:
        """Run the op on one example after the other, in a scan: right for every op, and slow."""
        self.inner.note_one_by_one(primitive)

        def step(inner: Any, carry: Any, xs: Any) -> Any:
            entries = iter(xs)
            operands = tuple([next(entries) if ref.batched else inner.adopt(ref.value) for ref in refs])
            return carry, list(inner.bind(primitive, operands, static))

        found: Sequence[Any] = self.inner.scan(step, (), [r.value for r in refs if r.batched], length=self.size)[1]
        return found


def _impure(primitive: Primitive, static: Static) -> bool:
    """Return whether every example needs its own run although all operands are shared: for a user's op with an effect,
    also inside a body. Random draws differ by their operands."""
    effects = primitive.effects.union(*[value.effects for value in static.values() if type(value) is Body])
    return not ONCE_PER_RUN.isdisjoint(effects)


# Ops whose rules define their derivative ------------------------------------------------------------------------------


def _bind_declared(ops: Batching[Any], primitive: Primitive, refs: Sequence[Batched], static: Static) -> Sequence[Any]:
    """Bind one op on the batch whose derivative is what the rules of the op define for each example."""
    draws = Effect.DRAWS in primitive.effects and ops._numbers is not None
    op = _declared(primitive, tuple([ref.batched for ref in refs]), draws)
    numbers = (ops._numbers(),) if ops._numbers is not None and draws else ()
    values = (*numbers, *[ref.value for ref in refs])
    return ops.inner.bind(op, values, {**static, "batch_size": ops.size, "outside": ops.outside})


@cache
def _declared(primitive: Primitive, flags: tuple[bool, ...], draws: bool) -> Primitive:
    """Return the op on a batch of the operands marked in `flags`; if it draws, behind the numbers of the examples."""
    first = int(draws)
    every = (True,) * (len(primitive.outputs) + len(primitive.residuals))

    def over(ops: Any, batch_size: Dim, outside: tuple[int, int], numbers: Any) -> Batching[Any]:
        return Batching(ops, batch_size, (lambda: numbers) if draws else None, outside)

    def of_one(types: Sequence[TensorType], flags: Sequence[bool]) -> tuple[TensorType, ...]:
        return tuple([TensorType(t.shape[1:], t.dtype) if flag else t for t, flag in zip(types, flags)])

    def refs_of(ops: Batching[Any], values: Sequence[Any], flags: Sequence[bool]) -> tuple[Any, ...]:
        return tuple([None if value is None else Batched(value, ops, flag) for value, flag in zip(values, flags)])

    def values_of(ops: Batching[Any], refs: Sequence[Any]) -> list[Any]:
        return [None if ref is None else ops.stretched(ops.adopt(ref)) for ref in refs]

    def shape(*types: TensorType, batch_size: Dim, outside: Any, **static: Any) -> tuple[TensorType, ...]:
        found = primitive.shape_rule(*of_one(types[first:], flags), **static)
        return tuple([TensorType((batch_size, *t.shape), t.dtype) for t in found])

    def decomposition(ops: Any, /, *values: Any, batch_size: Dim, outside: Any, **static: Any) -> Row[Any]:
        batching = over(ops, batch_size, outside, values[0])
        assert primitive.decomposition is not None
        refs = refs_of(batching, values[first:], flags)
        return tuple(values_of(batching, batching.decompose(primitive, refs, static)))

    def vjp(ops: Any, ctx: Any, cotangents: Any, /, *, batch_size: Dim, outside: Any, **static: Any) -> Row[Any]:
        batching = over(ops, batch_size, outside, ctx.saved[0] if draws else None)
        names = primitive.operand_names(static, len(flags))
        known = dict(zip(names, flags))
        one = SimpleNamespace(
            needs=ctx.needs[first:],
            saved=refs_of(batching, ctx.saved[first:], [known.get(name, True) for name in primitive.saves]),
            inputs=of_one(ctx.inputs[first:], flags),
            outputs=of_one(ctx.outputs, every),
        )
        assert primitive.vjp is not None
        found = values_of(batching, primitive.vjp(batching, one, refs_of(batching, cotangents, every), **static))
        own = [x if x is None or flag else ops.reduce_sum(x, axis=0) for x, flag in zip(found, flags)]
        return (*[None] * first, *own)

    def jvp(
        ops: Any, primals: Any, outputs: Any, tangents: Any, /, *, batch_size: Dim, outside: Any, **static: Any
    ) -> Row[Any]:
        batching = over(ops, batch_size, outside, primals[0])
        refs = [(primals[first:], flags), (outputs, every), (tangents[first:], flags)]
        assert primitive.jvp is not None
        return tuple(
            values_of(batching, primitive.jvp(batching, *[refs_of(batching, *each) for each in refs], **static))
        )

    return Primitive(
        f"batched_{primitive.name}",
        operands=(("number",) if draws else ()) + primitive.operands,
        outputs=primitive.outputs,
        residuals=primitive.residuals,
        shape=shape,
        vjp=vjp if primitive.vjp is not None else None,
        jvp=jvp if primitive.jvp is not None else None,
        saves={**({"number": primitive.operands} if draws else {}), **primitive.saves},
        decomposition=decomposition,
        differentiable=primitive.differentiable,
        effects=primitive.effects,
        declared=primitive.declared,
    )


# The transformation as a program calls it -----------------------------------------------------------------------------


def vmap(
    ops: Interpreter[Any],
    f: Callable[..., Any],
    *trees: Any,
    in_axes: Any = 0,
    out_axes: Any = 0,
    chunk: int | None = None,
    draws: str = "each",
) -> Any:
    """See `opstage.transform.vmap`."""
    require_settings(f, chunk, draws)
    leaves, structure = flatten(trees)
    axes = leaves_of_prefix("vmap: in_axes", in_axes, trees, _is_axis)
    refs = [ops.adopt(leaf) for leaf in leaves]
    with Quietly(ops.cursor):
        values, size = _with_examples_in_front(ops, refs, axes, structure_paths(structure))
    program = _OneExample(f, structure, [axis is not None for axis in axes], out_axes, draws, len(ops.iterations()))
    if chunk is None or (isinstance(size, int) and size <= chunk):
        results = program.run(ops, size, values)
    else:
        results = _in_chunks(ops, program, values, size, chunk)
    with Quietly(ops.cursor):
        moved = [
            out if axis is None else moveaxis(ops, out, source=0, target=axis)
            for out, axis in zip(results, program.out_axes)
        ]
    return unflatten(program.built, moved)


def require_settings(f: Any, chunk: Any, draws: Any) -> None:
    """Raise UsageError for settings of `vmap` that have no meaning, whatever the arguments."""
    if draws not in ("each", "shared"):
        raise UsageError(f'vmap: draws is {draws!r}, expected "each" or "shared"')
    if chunk is not None and (not isinstance(chunk, int) or isinstance(chunk, bool) or chunk < 1):
        raise UsageError(f"vmap: chunk is {chunk!r}, expected a number of examples, at least 1, or None")
    if not callable(f):
        raise UsageError(f"vmap: f is {a_type(f)}, expected a function f(ops, *examples)")


def _is_axis(axis: Any) -> bool:
    return axis is None or isinstance(axis, int) and not isinstance(axis, bool)


def _with_examples_in_front(
    ops: Interpreter[Any], refs: Sequence[Any], axes: Sequence[int | None], paths: Sequence[str]
) -> tuple[list[Any], Dim]:
    """Return the refs with their axes of examples first, and the number of examples."""
    size: Any = None
    first: tuple[str, Any, int] | None = None
    values = []
    for ref, axis, path in zip(refs, axes, paths):
        if axis is None:
            values.append(ref)
            continue
        rank = len(ref.shape)
        if not -rank <= axis < rank:
            raise ShapeError(
                f"argument {path} is {show_shape(ref.shape)}, expected an axis {axis} of examples; change in_axes",
                op="vmap",
            )
        axis %= rank
        here = path, ref, axis
        if first is None:
            size, first = ref.shape[axis], here
        require_equal(size, ref.shape[axis], partial(_different_sizes, first, here))
        values.append(moveaxis(ops, ref, source=axis, target=0))
    if size is None:
        raise ShapeError("in_axes is None for every argument, so nothing says how many examples there are", op="vmap")
    return values, size


def _different_sizes(first: tuple[str, Any, int], second: tuple[str, Any, int]) -> str:
    """Return the message about two arguments, each a path, a ref and its axis of examples."""
    (path, ref, axis), (other_path, other, other_axis) = first, second
    return (
        f"vmap: argument {path} is {show_shape(ref.shape)} with {ref.shape[axis]} examples on axis {axis}, but "
        f"argument {other_path} is {show_shape(other.shape)} with {other.shape[other_axis]} on axis {other_axis}: all "
        "arguments need the same number of examples"
    )


class _OneExample:
    """The program of one example, and how its arguments and results are batched.

    built, out_axes   the structure of the results and the axis of examples in each, None for one that all share; known
                      when the program has run
    """

    def __init__(
        self,
        f: Callable[..., Any],
        structure: Any,
        batched: Sequence[bool],
        out_axes: Any,
        draws: str,
        before: int,
    ):
        self.f, self.structure, self.batched, self.draws, self.before = f, structure, batched, draws, before
        self._wanted = out_axes
        self.built: Any = None
        self.out_axes: list[int | None] = []

    def run(
        self, ops: Interpreter[Any], count: Dim, values: Sequence[Any], start: Any = None, *, loops: int = 0
    ) -> list[Any]:
        """Return the results for `count` examples, with the examples first, unless all share the result.

        start   the number of the first example, a ref; None for 0
        loops   how many loops over chunks `ops` is in
        """

        @cache
        def numbers() -> Any:
            with Quietly(ops.cursor):
                own = ops.iota(shape=(count,))
                return own if start is None else ops.add(own, ops.broadcast_to(start, shape=(count,)))

        each = numbers if self.draws == "each" else None
        batching = Batching(ops, count, each, (self.before, self.before + loops))
        refs = [Batched(ops.adopt(value), batching, flag) for value, flag in zip(values, self.batched)]
        found, self.built = run_closed(batching, self.f, *unflatten(self.structure, refs), leaked=_LEAKED)
        axes = leaves_of_prefix("vmap: out_axes", self._wanted, unflatten(self.built, found), _is_axis)
        self.out_axes = []
        for path, ref, axis in zip(structure_paths(self.built), found, axes):
            rank = len(ref.shape) + 1
            name = f"result {path}" if path else "the result"
            if axis is None and ref.batched:
                raise ShapeError(f"{name} differs from example to example, so out_axes cannot be None", op="vmap")
            if axis is not None and not -rank <= axis < rank:
                raise ShapeError(
                    f"{name} of all examples has {rank} axes and none is axis {axis} of out_axes", op="vmap"
                )
            self.out_axes.append(None if axis is None else axis % rank)
        with Quietly(ops.cursor):
            return [r.value if axis is None else batching.stretched(r) for r, axis in zip(found, self.out_axes)]


def _in_chunks(ops: Interpreter[Any], program: _OneExample, values: Sequence[Any], size: Dim, chunk: int) -> list[Any]:
    """Run `chunk` examples at a time, in a scan, in the memory of one chunk; then the remaining ones."""
    if not isinstance(size, int):
        raise UnsupportedError(
            f"chunk={chunk} is not supported for {size} examples, whose number of chunks is unknown; give the "
            "batch a fixed size, or leave chunk out",
            op="vmap",
        )
    count, rest = divmod(size, chunk)
    split = count * chunk

    def part(x: Any, start: int, length: int) -> Any:
        return ops.slice(x, axis=0, start=start, length=length) if length != size else x

    def step(inner: Any, carry: Any, xs: Any) -> Any:
        start, *entries = xs
        entry = iter(entries)
        here = [next(entry) if flag else value for value, flag in zip(values, program.batched)]
        return carry, program.run(inner, chunk, here, start, loops=1)

    with Quietly(ops.cursor):
        examples = [part(x, 0, split) for x, flag in zip(values, program.batched) if flag]
        stacked = [ops.reshape(x, shape=(count, chunk, *x.shape[1:])) for x in examples]
        starts = ops.mul(ops.iota(shape=(count,)), ops.full(shape=(count,), value=chunk, dtype=INT64))
    region = ops.cursor.region
    before = region.mark()
    _, found = ops.scan(step, (), [starts, *stacked])
    with Quietly(ops.cursor):
        results = [
            ops.gather_row(y, index=0) if axis is None else ops.reshape(y, shape=(split, *y.shape[2:]))
            for y, axis in zip(found, program.out_axes)
        ]
    if not rest:
        return results
    last = [part(x, split, rest) if flag else x for x, flag in zip(values, program.batched)]
    with Quietly(ops.cursor):
        start = ops.const(split, dtype=INT64)
    region.rewind(before)  # the program that runs here draws at the same sites
    more = program.run(ops, rest, last, start)
    with Quietly(ops.cursor):
        return [x if a is None else ops.concat([x, y], axis=0) for x, y, a in zip(results, more, program.out_axes)]
