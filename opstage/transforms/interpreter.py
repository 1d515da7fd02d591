"""`Interpreter`: the common base of all interpreters, and the two kinds of them.

A *base* interpreter defines ops on its own values (arrays, shapes, graph variables). A *wrapping* interpreter (the
tape, forward mode, an op counter) adds something around another one, its `inner`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, TypeVar, final

import numpy.typing as npt
from typing_extensions import override

from ..init.schemes import Elementary
from ..ops.body import Body
from ..ops.dims import Dim
from ..ops.dispatch import Cursor, Quietly
from ..ops.errors import LocatedError, ProgramError, UnsupportedError, brief
from ..ops.hints import add_hint
from ..ops.infix import Infix
from ..ops.mesh import Mesh
from ..ops.primitive import Primitive, R, Static
from ..ops.protocol import Ops, is_ours
from ..ops.trees import Structure, flatten, no_ref, unflatten
from ..ops.types import EXACT, DType, Shape, TensorType, dtype_name

if TYPE_CHECKING:
    from .base_program import BaseProgram


Inner = TypeVar("Inner", bound=Any)


class Interpreter(Ops[R]):
    """The structural methods that all interpreters share.

    depth           the number of interpreters under this one
    differentiates  whether this one, or one that it wraps, takes derivatives; those above then expand composites,
                    because a fused kernel's residuals cannot take cotangents
    """

    __slots__ = ("cursor", "dtype", "seed", "depth", "differentiates", "__weakref__")

    def __init__(self, cursor: Cursor, dtype: DType, seed: int, depth: int, differentiates: bool):
        self.cursor = cursor
        self.dtype = dtype
        self.seed = seed
        self.depth = depth
        self.differentiates = differentiates

    @property
    def fuses(self) -> bool:
        """Return whether it may run a program of several ops faster as one op, see `fused_call`."""
        return False

    def has_fused(self, primitive: Primitive, types: tuple[TensorType, ...]) -> bool:
        """Return whether it has one kernel for a composite without static parameters, on operands of these types."""
        return False

    @abstractmethod
    def adopt(self, ref: Any, /) -> R:
        """Return `ref` as a ref of this interpreter: itself, or a constant of a ref of the wrapped one; else a
        ProgramError."""

    def decompose(self, primitive: Primitive, refs: tuple[R, ...], static: Static) -> tuple[R, ...]:
        """Return the outputs and residuals of a composite by its decomposition, run quietly on this interpreter."""
        parts = primitive.decomposition
        assert parts is not None, primitive
        self.before_decompose(primitive, refs, static)
        try:
            with Quietly(self.cursor):
                if is_ours(parts):
                    return parts(self, *refs, **static)

                return tuple(on_refs(self, partial(parts, **static), *refs))
        except LocatedError:
            # the composite's own rule says what is wrong in terms of the op that the user called
            primitive.infer(tuple(TensorType(r.shape, r.dtype) for r in refs), static, self.cursor.region.name)
            raise

    def before_decompose(self, primitive: Primitive, refs: tuple[Any, ...], static: Static, /) -> None:
        """Note a composite before it is decomposed, so that errors can name it and not one of its parts."""

    def note_one_by_one(self, primitive: Primitive) -> None:
        """Called when `vmap` runs an op on one example after the other, so that a checker can report it."""

    @override
    def region(self, name: str, f: Callable[..., Any], /, *args: Any) -> Any:
        if not isinstance(name, str) or not callable(f):
            raise ProgramError(f"a region is a name and a function of ops, but was given {brief(name)} and {brief(f)}")
        cursor = self.cursor
        outside = cursor.region
        cursor.region = outside.child(name)
        try:
            return f(self, *args)
        finally:
            cursor.region = outside

    @override
    def scan(
        self,
        f: Callable[..., tuple[Any, Any]],
        carry: Any,
        xs: Any,
        *,
        reverse: bool = False,
        length: Dim | None = None,
    ) -> tuple[Any, Any]:
        from .scan import scan

        return scan(self, f, carry, xs, reverse=reverse, length=length)

    @override
    def cond(self, pred: R, true_fn: Callable[..., Any], false_fn: Callable[..., Any], /, *operands: Any) -> Any:
        from .cond import cond

        return cond(self, pred, true_fn, false_fn, operands)

    @override
    def switch(self, index: R, branches: Sequence[Callable[..., Any]], /, *operands: Any) -> Any:
        from .cond import switch

        return switch(self, index, branches, operands)

    @override
    def while_loop(
        self, cond: Callable[..., R], body: Callable[..., Any], init: Any, *, max_iterations: Dim | None = None
    ) -> Any:
        from .while_loop import while_loop

        return while_loop(self, cond, body, init, max_iterations=max_iterations)

    @override
    def remat(self, f: Callable[..., Any], /, *operands: Any) -> Any:
        from .remat import remat

        return remat(self, f, operands)

    @override
    def iterations(self) -> tuple[R, ...]:
        return ()

    def infer(self, primitive: Primitive, types: tuple[TensorType, ...], static: Static, /) -> tuple[TensorType, ...]:
        """Return the types that `bind` would return, for an op in a body that is being traced."""
        return primitive.infer(types, static, self.cursor.region.name)

    @override
    def vjp_of(self, f: Callable[..., Any], /, *refs: Any) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
        from .derivatives import vjp

        return vjp(self, f, *refs)

    @override
    def jvp_of(self, f: Callable[..., Any], refs: tuple[Any, ...], tangents: tuple[Any, ...], /) -> tuple[Any, Any]:
        from .derivatives import jvp

        return jvp(self, f, refs, tangents)

    @override
    def vmap_of(self, f: Callable[..., Any], /, *trees: Any, **how: Any) -> Any:
        from .batching import vmap

        return vmap(self, f, *trees, **how)

    @override
    def bounds_of(self, f: Callable[..., Any], /, *trees: Any) -> Any:
        from ..analysis.intervals import bounds

        return bounds(self, f, *trees)


class BaseInterpreter(Interpreter[R]):
    """An interpreter with its own values.

    `put` and `get` transfer arrays in and out; `execute` runs a program that is written against this interpreter.
    """

    __slots__ = ("_step", "_number", "_part")

    def __init__(self, dtype: DType, seed: int, cursor: Cursor | None = None):
        super().__init__(cursor if cursor is not None else Cursor(), dtype, seed, depth=0, differentiates=False)
        self._step: R | None = None
        self._number = 0
        self._part: tuple[R, ...] = ()

    @override
    def iterations(self) -> tuple[R, ...]:
        return self._part

    @contextmanager
    def in_part(self, number: R) -> Iterator[None]:
        """Within it random ops draw as in iteration `number`, an integer scalar, so that each part of a step draws
        differently."""
        self._part = (number,)
        try:
            yield
        finally:
            self._part = ()

    @property
    def executes(self) -> bool:
        """Return whether its values have numbers; on shapes only, a training step changes nothing."""
        return True

    @property
    def computes(self) -> bool:
        """Return whether `get` returns computed numbers; if only memory is counted, every branch runs instead."""
        return True

    @abstractmethod
    def put(self, value: Any, /) -> R:
        """Return a host array (floats cast to this interpreter's dtype, integers and booleans kept) as a value."""

    @abstractmethod
    def get(self, ref: R, /) -> Any:
        """Return a value as a host array."""

    def stored_dtype(self, dtype: DType, /) -> DType:
        """Return the dtype that a host array of `dtype` has here."""
        return dtype

    def fill(self, initialiser: Elementary, shape: tuple[int, ...], dtype: DType, /) -> R:
        """Return the initial value of a parameter or moment. An interpreter with its own memory creates it there."""
        return self.put(initialiser.materialise(shape, dtype))

    def raise_pending(self) -> None:
        """Raise errors found so far, where ops run later than they are bound; otherwise do nothing."""
        return

    def prepared(
        self, program: BaseProgram, refs: tuple[R, ...], varying: Sequence[int]
    ) -> tuple[Callable[[Sequence[Any]], Any], Callable[[], bool], Structure] | None:
        """Return a fast call of a program on `refs`, with other values at the positions `varying`; None where there is
        none.

        The call takes host arrays of the same types as the refs they replace, and returns arrays that the caller owns;
        or None, in which case the program must be executed. Also returned are a function that says whether the Python
        state that the program read is unchanged, to be checked before each call, and the structure of the results.
        """
        return None

    def empty_cache(self) -> None:
        """Release memory that is cached for reuse."""
        return

    def has_kernel(self, primitive: Primitive) -> bool:
        """Return whether it computes `primitive` itself, in its dtype; a composite without a kernel is decomposed.

        The table of supported ops is this method over the catalogue; `opstage.check` calls it before anything runs.
        """
        return True

    @override
    def before_decompose(self, primitive: Primitive, refs: tuple[Any, ...], static: Static, /) -> None:
        """Run the op's own shape rule, since the rules of its parts might accept more."""
        if not self.cursor.quiet:
            self.infer(primitive, tuple([TensorType(ref.shape, ref.dtype) for ref in refs]), static)

    def unsupported(self, primitive: Primitive) -> UnsupportedError:
        """Return the error for a core primitive without a kernel."""
        hint = "; only rational ops can be computed exactly, use float64" if self.dtype == EXACT else ""
        if primitive.declared:
            hint = "; give its custom_op a decomposition=, or a kernel for this device in kernels="
        return UnsupportedError(
            f"{type(self).__name__} does not support {primitive} in dtype {dtype_name(self.dtype)}{hint}",
            op=primitive.name,
            region=self.cursor.region.name,
        )

    def execute(self, program: Callable[..., tuple[R, ...]], refs: tuple[R, ...], step: int = 0) -> tuple[R, ...]:
        """Return the results of `program(ops, *refs)` at training step `step`, in this interpreter's own way."""
        return self.execute_each(program, refs, step)

    def execute_each(self, program: Callable[..., tuple[R, ...]], refs: tuple[R, ...], step: int = 0) -> tuple[R, ...]:
        """Return `program(self, *refs)` from a fresh cursor, at training step `step`: each op runs when it is bound."""
        self.cursor = Cursor()
        self._step, self._number = None, step
        return program(self, *refs)

    @override
    def step(self) -> R:
        if self._step is None:  # few programs ask
            self._step = self.put(_step_array(self._number))
        return self._step

    # What a loop runs, reads and writes; an interpreter whose values have rows of their own overrides the last three.

    def prepare_body(
        self, body: Body, varying: int, /, *, length: int = 0
    ) -> Callable[[Sequence[R]], Callable[[Sequence[R]], Sequence[R]]]:
        """Prepare the body of a loop for any number of iterations, in which its first `varying` inputs change.

        `length` is the number of iterations if it is known, else 0.

        Returns a function of the other inputs, which returns one from the first inputs to the body's outputs.
        """
        from .tracer import constants, evaluate

        held = constants(self, body)
        return lambda captured: lambda inputs: evaluate(self, body, (*inputs, *captured), held)

    def row(self, x: R, index: int, /) -> R:
        """Return entry `index` of x along its leading axis."""
        return self.gather_row(x, index=index)

    def rows(self, entry: TensorType, length: int, /) -> Any:
        """Return storage for the results of `length` iterations, to be filled by `rows[i] = value`."""
        return [None] * length

    def stacked(self, rows: Any, entry: TensorType, /) -> R:
        """Return the filled rows as one tensor."""
        if not rows:
            return self.full(shape=(0, *entry.shape), value=0, dtype=entry.dtype)
        return self.stack(rows)


def _step_array(step: int) -> npt.NDArray[Any]:
    import numpy as np

    return np.asarray(step, dtype=np.int64)


class Holding(Infix):
    """A ref that holds a `value`, a ref of the wrapped interpreter, and has its shape and dtype."""

    __slots__ = ()
    value: Any

    @property
    @override
    def shape(self) -> Shape:
        shape: Shape = self.value.shape
        return shape

    @property
    @override
    def dtype(self) -> DType:
        dtype: DType = self.value.dtype
        return dtype


class Typed(Infix):
    """A ref that has a `type` and no value."""

    __slots__ = ()
    type: TensorType
    shape = property(attrgetter("type.shape"))  # without a call of Python
    dtype = property(attrgetter("type.dtype"))


@final
class Variable(Typed):
    """A ref of an interpreter that records a program: a numbered tensor of `ops`, with a type and no value."""

    __slots__ = ("slot", "type", "ops")

    def __init__(self, slot: int, type: TensorType, ops: Interpreter[Variable]):
        self.slot = slot
        self.type = type
        self.ops = ops


class Wrapper(Interpreter[R], Generic[R, Inner]):
    """An interpreter around `inner`, with its own refs that hold inner refs.

    A subclass supplies `bind`, `wrap` (an inner ref as a constant) and `ref_type`. After `close`, its refs cannot be
    used: a ref of an inner derivative must not leak out of it.
    """

    __slots__ = ("inner", "closed")
    ref_type: type[Any]
    misplaced = "a ref of an inner derivative was used outside of it; return it from the inner function instead"
    """The error when an op of an outer interpreter gets a ref of this one."""

    def __init__(self, inner: Interpreter[Inner], *, differentiates: bool):
        super().__init__(
            inner.cursor,
            inner.dtype,
            inner.seed,
            depth=inner.depth + 1,
            differentiates=differentiates or inner.differentiates,
        )
        self.inner = inner
        self.closed: str | None = None

    @property
    @override
    def mesh(self) -> Mesh:
        return self.inner.mesh

    @abstractmethod
    def wrap(self, value: Inner, /) -> R:
        """Return a constant of this interpreter from a ref of the inner one."""

    def close(self, reason: str) -> None:
        """Make every later use of this interpreter a ProgramError that says `reason`."""
        self.closed = reason

    @override
    def adopt(self, ref: Any, /) -> R:
        if self.closed is not None:
            raise ProgramError(self.closed)
        if isinstance(ref, self.ref_type) and ref.ops is self:
            return ref  # type: ignore[no-any-return]
        owner = getattr(ref, "ops", None)
        if owner is None:
            raise no_ref(ref, "make one with ops.const(…), or pass it to the program")
        if owner.depth > self.depth:
            raise ProgramError(getattr(owner, "misplaced", Wrapper.misplaced))
        if owner.depth == self.depth:
            why = getattr(owner, "closed", None) or "this one belongs to another run"
            raise ProgramError(f"refs of two interpreters were mixed: {why}")
        return self.wrap(self.inner.adopt(ref))

    @override
    def const(self, value: Any, /, *, dtype: str | DType | None = None) -> R:
        return self.wrap(self.inner.const(value, dtype=dtype))

    @override
    def step(self) -> R:
        return self.wrap(self.inner.step())

    @override
    def iterations(self) -> tuple[R, ...]:
        return tuple([self.wrap(iteration) for iteration in self.inner.iterations()])

    @override
    def before_decompose(self, primitive: Primitive, refs: tuple[Any, ...], static: Static, /) -> None:
        self.inner.before_decompose(primitive, refs, static)

    @override
    def infer(self, primitive: Primitive, types: tuple[TensorType, ...], static: Static, /) -> tuple[TensorType, ...]:
        return self.inner.infer(primitive, types, static)

    @override
    def note_one_by_one(self, primitive: Primitive) -> None:
        self.inner.note_one_by_one(primitive)


# Users' functions on a wrapper ----------------------------------------------------------------------------------------


def run_closed(
    wrapper: Wrapper[R, Any], f: Callable[..., Any], *arguments: Any, leaked: str
) -> tuple[list[R], Structure]:
    """Return the leaves of `f(wrapper, *arguments)` as refs of the wrapper, which is then closed, and their structure.

    `leaked` is the error for a ref that is used afterwards. A LookupError or TypeError gets a hint.
    """
    try:
        result = f(wrapper, *arguments)
    except (LookupError, TypeError) as error:
        add_hint(error)
        raise
    outputs, structure = flatten(result)
    found = [wrapper.adopt(output) for output in outputs]
    wrapper.close(leaked)
    return found, structure


class Held(Holding):
    """A ref of `Refs`."""

    __slots__ = ("value", "ops")

    def __init__(self, value: Any, ops: Refs):
        self.value = value
        self.ops = ops


class Refs(Wrapper[Held, Any]):
    """Passes ops on to an interpreter whose values are arrays or buffers, as refs that have operators."""

    __slots__ = ()
    ref_type = Held

    def __init__(self, inner: Interpreter[Any]):
        super().__init__(inner, differentiates=False)

    @override
    def adopt(self, ref: Any, /) -> Held:
        if type(ref) is Held and ref.ops is not self:
            other = ref.ops
            if other.inner is self.inner and other.cursor is self.cursor:  # of another function in the same run
                return Held(ref.value, self)
        return super().adopt(ref)

    @override
    def wrap(self, value: Any, /) -> Held:
        return Held(value, self)

    @override
    def bind(self, primitive: Primitive, refs: tuple[Held, ...], static: Static, /) -> tuple[Held, ...]:
        values = tuple([(r if type(r) is Held and r.ops is self else self.adopt(r)).value for r in refs])
        return tuple([Held(out, self) for out in self.inner.bind(primitive, values, static)])


def on_refs(ops: Interpreter[Any], f: Callable[..., Any], /, *trees: Any) -> Any:
    """Return `f(ops', *trees)` for a user's f and trees of refs of `ops`; the result in refs of `ops`.

    If those are arrays, f gets refs that hold them: operators of an array are NumPy's, with its dtypes, and `+=` would
    write to an array that others read.
    """
    leaves, structure = flatten(trees)
    if not leaves or isinstance(leaves[0], Infix):
        return f(ops, *trees)
    refs = Refs(ops)
    found, result = flatten(f(refs, *unflatten(structure, [refs.wrap(leaf) for leaf in leaves])))
    return unflatten(result, [refs.adopt(ref).value for ref in found])
