"""`NumpyOps`: each op at once, on NumPy arrays. Beneath a tape it is the eager CPU interpreter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from operator import attrgetter
from typing import Any, final

import numpy as np
from typing_extensions import override

from ...ops.closed import Body
from ...ops.errors import LocatedError, RangeError, UsageError
from ...ops.kinds import Effect, Kind
from ...ops.lists import no_ref
from ...ops.primitive import NO_STATIC, Primitive, Static
from ...ops.types import EXACT, DType, TensorType, as_dtype
from ...options import Options
from ..codegen.cpu.fused import FusedLoops, fused
from ..codegen.decomposition import distinct, is_fixed
from ..host import Array, as_array
from ..indices import require_indices
from ..interpreter import BaseInterpreter
from ..native import one_thread
from .kernels import kernel_table
from .loop_body import prepare_body, zero_dim
from .loops.workspace import give_back_workspace
from .memory import give_back_freed_memory, keep_freed_memory

_INFERRED: dict[Any, tuple[TensorType, ...]] = {}  # result types by (primitive, operand types, statics)
_INFERRED_LIMIT = 1 << 13  # some 6 MB

_NEW: Any = object()
_SHAPE, _DTYPE = attrgetter("shape"), attrgetter("dtype")  # a comprehension is a call of Python's
_FUSED: dict[Any, FusedLoops | None] = {}  # generated kernels by the same keys, None where there can be none
_FUSED_LIMIT = 1 << 11
_WORTH = 1 << 12  # elements; ops on fewer take less than it takes to write them down and to call what was made of them


def kernel_of(
    primitive: Primitive, types: tuple[TensorType, ...], static: Static, options: Options
) -> Callable[..., Any] | None:
    """The kernel of an op for operands of these types; None if it is decomposed."""
    kernel = kernel_table(options.dtype, options.fast_kernels).get(primitive)
    if kernel is None and options.fast_kernels and options.dtype != "exact":
        return _loops_of(primitive, types, static)
    return kernel


def _loops_of(primitive: Primitive, types: tuple[TensorType, ...], static: Static) -> FusedLoops | None:
    key = (primitive, *[t.shape for t in types], *[t.dtype for t in types], *static.values())
    return _generated(_told_apart(key, static), primitive, types, static)


def pays_fused(primitive: Primitive, types: tuple[TensorType, ...]) -> bool:
    """Whether loops are generated from a composite, and save more than it costs to call them."""
    return max([type_.size for type_ in types]) >= _WORTH and _loops_of(primitive, types, NO_STATIC) is not None


def _told_apart(key: Any, static: Static) -> Any:
    """A key in which -0.0 is another number than 0.0, which have to have loops of their own."""
    return key if all(static.values()) else (*key, *distinct(static))


def _in_loops(primitive: Primitive, static: Static) -> bool:
    """Whether loops may be generated from an op: a composite that moves elements is a view, and bodies are no keys."""
    return (
        is_fixed(primitive)
        and primitive.kind is not Kind.LAYOUT
        and not any(isinstance(value, Body) for value in static.values())
    )


def _generated(key: Any, primitive: Primitive, types: tuple[TensorType, ...], static: Static) -> FusedLoops | None:
    """The loops that are generated from a composite, None where they cannot do all of it."""
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
    """A base interpreter whose values are arrays of the host, so that nothing is carried in or out."""

    __slots__ = ()

    @override
    def put(self, value: Any, /) -> Array:
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


@final
class NumpyOps(HostArrays):
    """Refs are arrays. Shapes and dtypes are checked by each op's rule, once per combination of them."""

    __slots__ = ("_kernels", "_fast", "_generated")

    def __init__(
        self,
        options: Options,
        kernels: Mapping[Primitive, Callable[..., Any]] | None = None,
        generated: bool | None = None,
    ):
        """`kernels` in place of the table that the options choose; a composite without a kernel is decomposed.

        With `generated` its loops are made where they can do all of it; None is as `fast_kernels`, without `kernels`.

        Raises UsageError for a `matmul_precision` that a CPU has not.
        """
        if options.matmul_precision != "fp32":
            raise UsageError(
                f"matmul_precision {options.matmul_precision!r} needs device 'cuda'; the CPU multiplies in the dtype "
                "itself: leave it at 'fp32'"
            )
        super().__init__(as_dtype(options.dtype), options.seed)
        keep_freed_memory()
        self._fast = options.fast_kernels
        self._kernels = kernels if kernels is not None else kernel_table(options.dtype, options.fast_kernels)
        if generated is None:
            generated = kernels is None and options.fast_kernels
        self._generated = generated and self.dtype != EXACT

    # The host's side ------------------------------------------------------------------------------------------------

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
        # log 0 is -inf and sqrt -1 is nan, without a warning; fast kernels divide products among their own threads
        with np.errstate(all="ignore"), one_thread if self._fast else nullcontext():
            return super().execute_each(program, refs, step)

    @override
    def trim(self) -> None:
        give_back_workspace()
        give_back_freed_memory()

    # The seam -------------------------------------------------------------------------------------------------------

    @override
    def bind1(self, primitive: Primitive, x: Array, /) -> Array:
        key = (primitive, x.shape, x.dtype)
        if key not in _INFERRED:
            self._infer(key, primitive, (x,), NO_STATIC)
        kernel = self._kernels.get(primitive)
        if kernel is None:
            return self._composed(key, primitive, (x,), NO_STATIC)[0]
        out: Array = kernel(x)
        return out if type(out) is np.ndarray else zero_dim(out)

    @override
    def bind2(self, primitive: Primitive, x: Array, y: Array, /) -> Array:
        key = (primitive, x.shape, x.dtype, y.shape, y.dtype)
        if key not in _INFERRED:
            self._infer(key, primitive, (x, y), NO_STATIC)
        kernel = self._kernels.get(primitive)
        if kernel is None:
            return self._composed(key, primitive, (x, y), NO_STATIC)[0]
        out: Array = kernel(x, y)
        return out if type(out) is np.ndarray else zero_dim(out)

    @override
    def bind(self, primitive: Primitive, refs: tuple[Array, ...], static: Static, /) -> tuple[Array, ...]:
        key = (primitive, *map(_SHAPE, refs), *map(_DTYPE, refs), *static.values())
        if key not in _INFERRED:
            self._infer(key, primitive, refs, static)
        kernel = self._kernels.get(primitive)
        if kernel is None:
            return self._composed(key, primitive, refs, static)
        try:
            out = kernel(*refs, **static)
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
        row: Array = x[index, ...]  # a view, also where x is a vector
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
            return  # a body is made anew by every call of scan, and would be kept alive here
        if len(_INFERRED) >= _INFERRED_LIMIT:
            _INFERRED.clear()
        _INFERRED[key] = outputs

    @override
    def prepare_body(
        self, body: Body, varying: int, /
    ) -> Callable[[Sequence[Array]], Callable[[Sequence[Array]], Sequence[Array]]]:
        if self.dtype == EXACT:  # decompositions are written out for floats
            return super().prepare_body(body, varying)
        return prepare_body(self, body, varying)

    def kernel(self, primitive: Primitive, types: tuple[TensorType, ...], static: Static) -> Callable[..., Any] | None:
        """The kernel of an op for operands of these types, called with its static parameters; None without one."""
        kernel = self._kernels.get(primitive)
        if kernel is None and self._generated:
            loops = _loops_of(primitive, types, static)
            return None if loops is None else lambda *refs, **static: self._looped(loops, primitive, refs, static)
        return kernel

    def _composed(self, key: Any, primitive: Primitive, refs: tuple[Array, ...], static: Static) -> tuple[Array, ...]:
        """A composite that has no kernel: by loops that are generated from it, or op by op."""
        kernel: FusedLoops | None = None
        if self._generated:
            key = _told_apart(key, static)
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
        except RangeError:  # which index, and of what, is said by what follows
            self._require_indices(primitive, refs, static)
            return self.decompose(primitive, refs, static)

    def _require_indices(self, primitive: Primitive, refs: tuple[Array, ...], static: Static) -> None:
        if Effect.RAISES in primitive.effects:
            try:
                require_indices(primitive, refs, static)
            except LocatedError as error:
                error.place(primitive.name, self.cursor.region.name)
                raise
