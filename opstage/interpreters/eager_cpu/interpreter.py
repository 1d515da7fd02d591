"""`NumpyOps`: runs each op at once on NumPy arrays. Under a tape it is the eager CPU interpreter.

Bodies of loops are prepared to run many times: kernels are looked up and types inferred once, not per iteration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any, final

import numpy as np
from typing_extensions import override

from ...compiler.codegen.composites import Expander, Keep, hoisted, in_runs, is_fixed
from ...compiler.codegen.cpu.kernels import FusedLoops, fused
from ...compiler.native import one_thread
from ...ops.body import Body, Equation, ScanParameters, WhileParameters
from ...ops.errors import LocatedError, OutOfMemoryError, RangeError, UsageError
from ...ops.host_arrays import Array, as_array
from ...ops.index_checks import require_indices
from ...ops.matmul import LINEAR
from ...ops.primitive import NO_STATIC, Effect, Kind, Primitive, Static, distinct
from ...ops.trees import no_ref
from ...ops.types import EXACT, INT64, DType, TensorType, as_dtype
from ...options import Options
from ...transforms.cond import SWITCH, chosen, get_branches
from ...transforms.interpreter import BaseInterpreter
from ...transforms.scan import SCAN, run_iterations
from ...transforms.tracer import constants
from ...transforms.while_loop import WHILE, iterate
from .kernels import kernel_table
from .memory import as_out_of_memory, out_of_memory, release_freed_memory, release_workspace, reuse_freed_memory

# The interpreter ------------------------------------------------------------------------------------------------------

_INFERRED: dict[Any, tuple[TensorType, ...]] = {}  # result types by (primitive, operand types, statics)
_INFERRED_LIMIT = 1 << 13  # some 6 MB

_NEW: Any = object()
_SHAPE, _DTYPE = attrgetter("shape"), attrgetter("dtype")  # a comprehension would be a Python call
_FUSED: dict[Any, FusedLoops | None] = {}  # generated kernels by the same keys, None if there is none
_FUSED_LIMIT = 1 << 11
_WORTH = 1 << 12  # elements; recording and calling generated code costs more than ops on fewer


def kernel_of(
    primitive: Primitive, types: tuple[TensorType, ...], static: Static, options: Options
) -> Callable[..., Any] | None:
    """Return the kernel of an op for operands of these types; None if it is decomposed."""
    kernel = kernel_table(options.dtype, options.fast_kernels).get(primitive)
    if kernel is None and options.fast_kernels and options.dtype != "exact":
        return _loops_of(primitive, types, static)
    return kernel


def _loops_of(primitive: Primitive, types: tuple[TensorType, ...], static: Static) -> FusedLoops | None:
    key = (primitive, *[t.shape for t in types], *[t.dtype for t in types], *static.values())
    return _generated(_distinguish_zeros(key, static), primitive, types, static)


def pays_fused(primitive: Primitive, types: tuple[TensorType, ...]) -> bool:
    """Return whether loops can be generated for a composite, and save more than their call costs."""
    return max([type_.size for type_ in types]) >= _WORTH and _loops_of(primitive, types, NO_STATIC) is not None


def _distinguish_zeros(key: Any, static: Static) -> Any:
    """Return a key that distinguishes -0.0 from 0.0, which need different loops."""
    return key if all(static.values()) else (*key, *distinct(static))


def _in_loops(primitive: Primitive, static: Static) -> bool:
    """Return whether loops may be generated for an op: not for composites that only move elements, nor with bodies."""
    return (
        is_fixed(primitive)
        and primitive.kind is not Kind.LAYOUT
        and not any(isinstance(value, Body) for value in static.values())
    )


def _generated(key: Any, primitive: Primitive, types: tuple[TensorType, ...], static: Static) -> FusedLoops | None:
    """Return the loops generated for a composite, or None if they cannot compute all of it."""
    kernel = _FUSED.get(key, _NEW)
    if kernel is _NEW:
        if not _in_loops(primitive, static):
            return None
        kernel = fused(primitive, types, static)
        if len(_FUSED) >= _FUSED_LIMIT:
            _FUSED.clear()
        _FUSED[key] = kernel
    return kernel  # type: ignore[no-any-return]


class HostArrays(BaseInterpreter[Array]):
    """A base interpreter whose values are host arrays, without conversion."""

    __slots__ = ()

    @override
    def put(self, value: Any, /) -> Array:
        if type(value) is np.ndarray:
            dtype = value.dtype
            if dtype is INT64 or (dtype is self.dtype and dtype.kind == "f"):
                return value
        return as_array(value, self.dtype)

    @override
    def get(self, ref: Array, /) -> Array:
        return ref

    @override
    def adopt(self, ref: Any, /) -> Array:
        if type(ref) is np.ndarray:
            return ref
        raise no_ref(ref)

    @override
    def const(self, value: Any, /, *, dtype: str | DType | None = None) -> Array:
        return as_array(value, self.dtype if dtype is None else as_dtype(dtype), force=dtype is not None)

    def sendable(self, x: Array) -> Array:
        """Return x as an array that is not overwritten while it is sent to other processes: a copy."""
        return np.array(x)


@final
class NumpyOps(HostArrays):
    """Computes on arrays as refs. Shapes and dtypes are checked by each op's rule, once per combination."""

    __slots__ = ("_kernels", "_fast", "_generated")

    def __init__(
        self,
        options: Options,
        kernels: Mapping[Primitive, Callable[..., Any]] | None = None,
        generated: bool | None = None,
    ):
        """`kernels` replaces the table chosen by the options; a composite without a kernel is decomposed.

        `generated` enables generated loops for composites; None enables them if `fast_kernels` is set and `kernels` is
        not.

        Raises UsageError for a `matmul_precision` that the CPU does not support.
        """
        if options.matmul_precision != "fp32":
            raise UsageError(
                f"matmul_precision {options.matmul_precision!r} needs device 'cuda'; the CPU multiplies in the dtype "
                "itself: leave it at 'fp32'"
            )
        super().__init__(as_dtype(options.dtype), options.seed)
        reuse_freed_memory()
        self._fast = options.fast_kernels
        self._kernels = kernels if kernels is not None else kernel_table(options.dtype, options.fast_kernels)
        if generated is None:
            generated = kernels is None and options.fast_kernels
        self._generated = generated and self.dtype != EXACT

    # Host interface -------------------------------------------------------------------------------------------------

    @override
    def has_kernel(self, primitive: Primitive) -> bool:
        return primitive in self._kernels or (self._generated and _in_loops(primitive, NO_STATIC))

    @property
    @override
    def fuses(self) -> bool:
        return self._generated

    @override
    def has_fused(self, primitive: Primitive, types: tuple[TensorType, ...]) -> bool:
        return self._generated and pays_fused(primitive, types)

    @override
    def execute_each(
        self, program: Callable[..., tuple[Array, ...]], refs: tuple[Array, ...], step: int = 0
    ) -> tuple[Array, ...]:
        # log 0 is -inf and sqrt -1 is nan, without a warning; fast kernels use their own threads for products
        with np.errstate(all="ignore"), one_thread if self._fast else nullcontext():
            try:
                return super().execute_each(program, refs, step)
            except MemoryError as error:  # of an op, if it is not one of Opstage's yet
                raise as_out_of_memory(error) from None

    @override
    def empty_cache(self) -> None:
        release_workspace()
        release_freed_memory()

    # Interpreter methods --------------------------------------------------------------------------------------------

    @override
    def bind1(self, primitive: Primitive, x: Array, /) -> Array:
        key = (primitive, x.shape, x.dtype)
        if key not in _INFERRED:
            self._infer(key, primitive, (x,), NO_STATIC)
        kernel = self._kernels.get(primitive)
        try:
            if kernel is None:
                return self._composed(key, primitive, (x,), NO_STATIC)[0]
            out: Array = kernel(x)
        except MemoryError as error:
            raise self._no_memory(error, primitive, (x,), NO_STATIC) from None
        return out if type(out) is np.ndarray else zero_dim(out)

    @override
    def bind2(self, primitive: Primitive, x: Array, y: Array, /) -> Array:
        key = (primitive, x.shape, x.dtype, y.shape, y.dtype)
        if key not in _INFERRED:
            self._infer(key, primitive, (x, y), NO_STATIC)
        kernel = self._kernels.get(primitive)
        try:
            if kernel is None:
                return self._composed(key, primitive, (x, y), NO_STATIC)[0]
            out: Array = kernel(x, y)
        except MemoryError as error:
            raise self._no_memory(error, primitive, (x, y), NO_STATIC) from None
        return out if type(out) is np.ndarray else zero_dim(out)

    @override
    def bind(self, primitive: Primitive, refs: tuple[Array, ...], static: Static, /) -> tuple[Array, ...]:
        key = (primitive, *map(_SHAPE, refs), *map(_DTYPE, refs), *static.values())
        if key not in _INFERRED:
            self._infer(key, primitive, refs, static)
        kernel = self._kernels.get(primitive)
        try:
            if kernel is None:
                return self._composed(key, primitive, refs, static)
            out = kernel(*refs, **static)
        except MemoryError as error:
            raise self._no_memory(error, primitive, refs, static) from None
        except LocatedError as error:  # an index or label out of range
            error.place(primitive.name, self.cursor.region.name)
            raise
        if type(out) is tuple:
            return tuple([o if type(o) is np.ndarray else zero_dim(o) for o in out])
        return (out,) if type(out) is np.ndarray else (zero_dim(out),)

    @override
    def infer(self, primitive: Primitive, types: tuple[TensorType, ...], static: Static, /) -> tuple[TensorType, ...]:
        key = (primitive, *[t.shape for t in types], *[t.dtype for t in types], *static.values())
        known = _INFERRED.get(key)
        return known if known is not None else super().infer(primitive, types, static)

    @override
    def row(self, x: Array, index: int, /) -> Array:
        row: Array = x[index, ...]  # a view, also for a vector
        return row

    @override
    def rows(self, entry: TensorType, length: int, /) -> Array:
        return np.empty((length, *entry.shape), entry.dtype)

    @override
    def stacked(self, rows: Array, entry: TensorType, /) -> Array:
        return rows

    def _infer(self, key: Any, primitive: Primitive, refs: tuple[Array, ...], static: Static) -> None:
        types = tuple(TensorType(r.shape, r.dtype) for r in refs)
        outputs = primitive.infer(types, static, self.cursor.region.name)
        if any(isinstance(value, Body) for value in static.values()):
            return  # scan creates a new body in every call, which the cache would keep alive
        if len(_INFERRED) >= _INFERRED_LIMIT:
            _INFERRED.clear()
        _INFERRED[key] = outputs

    @override
    def prepare_body(
        self, body: Body, varying: int, /, *, length: int = 0
    ) -> Callable[[Sequence[Array]], Callable[[Sequence[Array]], Sequence[Array]]]:
        if self.dtype == EXACT:  # decompositions are for floats
            return super().prepare_body(body, varying)
        return prepare_body(self, body, varying, length)

    def kernel(self, primitive: Primitive, types: tuple[TensorType, ...], static: Static) -> Callable[..., Any] | None:
        """Return the kernel of an op for operands of these types, to call with its static parameters; None without
        one."""
        kernel = self._kernels.get(primitive)
        if kernel is None and self._generated:
            loops = _loops_of(primitive, types, static)
            return None if loops is None else lambda *refs, **static: self._looped(loops, primitive, refs, static)
        return kernel

    def _composed(self, key: Any, primitive: Primitive, refs: tuple[Array, ...], static: Static) -> tuple[Array, ...]:
        """Run a composite without a kernel: by generated loops, or op by op."""
        kernel: FusedLoops | None = None
        if self._generated:
            key = _distinguish_zeros(key, static)
            kernel = _FUSED.get(key, _NEW)
            if kernel is _NEW:
                kernel = _generated(key, primitive, tuple([TensorType(r.shape, r.dtype) for r in refs]), static)
        if primitive.decomposition is None:
            raise self.unsupported(primitive)
        if kernel is not None:
            return self._looped(kernel, primitive, refs, static)
        self._require_indices(primitive, refs, static)
        return self.decompose(primitive, refs, static)

    def _looped(
        self, loops: FusedLoops, primitive: Primitive, refs: tuple[Array, ...], static: Static
    ) -> tuple[Array, ...]:
        try:
            return loops(*refs)
        except RangeError:  # the following calls raise with the index and tensor
            self._require_indices(primitive, refs, static)
            return self.decompose(primitive, refs, static)

    def _no_memory(
        self, error: MemoryError, primitive: Primitive, refs: tuple[Array, ...], static: Static
    ) -> OutOfMemoryError:
        """Return the error of an op whose results, or intermediate values, exceed the memory."""
        if isinstance(error, OutOfMemoryError):
            return error  # of a part of the op
        types = tuple(TensorType(r.shape, r.dtype) for r in refs)
        return out_of_memory(primitive, types, self.infer(primitive, types, static), self.cursor.region.name)

    def _require_indices(self, primitive: Primitive, refs: tuple[Array, ...], static: Static) -> None:
        if Effect.RAISES in primitive.effects:
            try:
                require_indices(primitive, refs, static)
            except LocatedError as error:
                error.place(primitive.name, self.cursor.region.name)
                raise


# Loop bodies ----------------------------------------------------------------------------------------------------------

_LONG = 16
"""Iterations, from which on a loop is worth kernels of its own."""


def prepare_body(
    ops: NumpyOps, body: Body, varying: int, length: int = 0
) -> Callable[[Sequence[Array]], Callable[[Sequence[Array]], Sequence[Array]]]:
    """Implement `BaseInterpreter.prepare_body`. Loop invariants are computed once, in the layout that products
    prefer."""
    invariant, repeated = loop_parts(
        body, varying, length, lambda primitive, types, static: ops.kernel(primitive, types, static) is not None
    )
    prepared = _PreparedBody(ops, repeated)
    if invariant is None:
        return lambda captured: partial(prepared, captured)
    before = _PreparedBody(ops, invariant)
    return lambda captured: partial(prepared, (*captured, *map(_packed, before(captured, ()))))


def loop_parts(body: Body, varying: int, length: int, has_kernel: Keep) -> tuple[Body | None, Body]:
    """Return what a loop of `length` iterations runs before it, if anything, and in each of them.

    See `hoisted` for the operands of either. In a long loop each run of elementwise ops is one composite; a short loop
    is not worth the kernels. Only the length decides, so that equal programs compute equal bits.
    """
    body = expand_body(body, has_kernel)
    invariant, repeated = hoisted(body, varying) or (None, body)
    return invariant, in_runs(repeated, has_kernel) if length >= _LONG else repeated


def _packed(x: Array) -> Array:
    return np.asarray(x, order="C")


def expand_body(body: Body, has_kernel: Keep) -> Body:
    """Decompose the body into ops with kernels, with products separate from biases: a weight is then transposed only
    once."""
    keep: Keep = lambda primitive, types, static: primitive is not LINEAR and has_kernel(primitive, types, static)  # noqa: E731
    return Expander(keep, loops=False).written_out(body)


@final
class _PreparedBody:
    """Evaluates a body of ops with kernels, without other overhead.

    Slots are numbered in order: inputs, constants, results.
    """

    __slots__ = ("_ops", "_body", "_constants", "_steps", "_results")

    def __init__(self, ops: NumpyOps, body: Body):
        self._ops = ops
        self._body = body = body.renumbered()
        self._constants = constants(ops, body)
        self._steps = [
            (_kernel(ops, body, equation), _operands(equation.inputs), last)
            for equation, last in zip(body.equations, body.last_reads())
        ]
        self._results = _operands(body.outputs)

    def __call__(self, captured: Sequence[Array], inputs: Sequence[Array]) -> Sequence[Array]:
        values: list[Any] = [*inputs, *captured, *self._constants]
        append = values.append
        done = 0
        try:
            for kernel, operands, last in self._steps:
                out = kernel(*operands(values))
                if type(out) is np.ndarray:
                    append(out)
                elif type(out) is tuple:
                    values += [o if type(o) is np.ndarray else zero_dim(o) for o in out]
                else:
                    append(zero_dim(out))
                for slot in last:
                    values[slot] = None
                done += 1
        except LocatedError as error:  # an index or label out of range
            equation = self._body.equations[done]
            error.place(equation.primitive.name, equation.region.name)
            error.relocate(self._body.lines.get(equation.ordinal), equation.region.name)
            raise
        return self._results(values)


def _kernel(ops: NumpyOps, body: Body, e: Equation) -> Callable[..., Any]:
    """Return the kernel of an equation, as a function of its operands only."""
    if e.primitive is SCAN:
        loop = ScanParameters(**e.static)
        return partial(
            run_iterations, ops, loop, ops.prepare_body(loop.body, loop.carries + loop.entries, length=int(loop.length))
        )
    if e.primitive is WHILE:
        turns = WhileParameters(**e.static)
        varying = len(turns.body.outputs)
        return partial(
            iterate, ops, turns, ops.prepare_body(turns.test, varying), ops.prepare_body(turns.body, varying)
        )
    if e.primitive is SWITCH:
        bodies = get_branches(e.static)
        return partial(_branch, [ops.prepare_body(body, len(body.inputs))(()) for body in bodies])
    types = tuple([body.types[slot] for slot in e.inputs])
    kernel = ops.kernel(e.primitive, types, e.static)
    if kernel is None:
        return partial(_bound, ops, e)
    return partial(kernel, **e.static) if e.static else kernel


def _branch(branches: Sequence[Any], index: Array, /, *operands: Array) -> tuple[Array, ...]:
    found: Sequence[Array] = branches[chosen(int(index), len(branches))](operands)
    return tuple(found)


def _bound(ops: NumpyOps, e: Equation, /, *refs: Array) -> tuple[Array, ...]:
    """Run an op without a kernel through `bind`."""
    ops.cursor.region = e.region
    return ops.bind(e.primitive, refs, e.static)


def _operands(slots: Sequence[int]) -> Callable[[list[Any]], Sequence[Array]]:
    if len(slots) > 1:
        return itemgetter(*slots)
    first = slots[0] if slots else 0
    return itemgetter(slice(first, first + len(slots)))


def zero_dim(value: Any) -> Array:
    """Convert to an array: NumPy returns scalars for zero-dimensional results."""
    return np.asarray(value) if isinstance(value, np.generic) else np.array(value, dtype=object)
