"""Interpreters that wrap another one and see every op: their base, the base of sessions, and a log of values."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from ..init.schemes import Elementary
from ..ops.array_conversion import as_numpy
from ..ops.errors import SourceLine, UnsupportedError, user_frame
from ..ops.host_arrays import require_numbers
from ..ops.mesh import Mesh
from ..ops.primitive import Primitive, R, Static
from ..ops.types import DType, TensorType
from .interpreter import BaseInterpreter


class Transparent(BaseInterpreter[R]):
    """A base interpreter with the refs of another one, `inner`, to which it forwards everything except ops.

    A subclass supplies `bind`, and computes there with `self.inner.bind`. It sees the ops that a tape above it binds,
    including those of derivative rules and optimizer updates; a composite that `inner` decomposes is one op to it.
    """

    __slots__ = ("inner",)

    def __init__(self, inner: BaseInterpreter[R]):
        super().__init__(inner.dtype, inner.seed, inner.cursor)
        self.inner = inner

    @property
    @override
    def mesh(self) -> Mesh:
        return self.inner.mesh

    @property
    @override
    def computes(self) -> bool:
        return self.inner.computes

    @property
    @override
    def executes(self) -> bool:
        return self.inner.executes

    @override
    def put(self, value: Any, /) -> R:
        return self.inner.put(value)

    @override
    def get(self, ref: R, /) -> Any:
        return self.inner.get(ref)

    @override
    def stored_dtype(self, dtype: DType, /) -> DType:
        return self.inner.stored_dtype(dtype)

    @override
    def fill(self, initialiser: Elementary, shape: tuple[int, ...], dtype: DType, /) -> R:
        return self.inner.fill(initialiser, shape, dtype)

    @override
    def raise_pending(self) -> None:
        self.inner.raise_pending()

    @override
    def empty_cache(self) -> None:
        self.inner.empty_cache()

    @override
    def has_kernel(self, primitive: Primitive) -> bool:
        return self.inner.has_kernel(primitive)

    @override
    def unsupported(self, primitive: Primitive) -> UnsupportedError:
        return self.inner.unsupported(primitive)

    @override
    def adopt(self, ref: Any, /) -> R:
        return self.inner.adopt(ref)

    @override
    def const(self, value: Any, /, *, dtype: str | DType | None = None) -> R:
        return self.inner.const(value, dtype=dtype)

    @override
    def step(self) -> R:
        return self.inner.step()

    @override
    def infer(self, primitive: Primitive, types: tuple[TensorType, ...], static: Static, /) -> tuple[TensorType, ...]:
        return self.inner.infer(primitive, types, static)

    @override
    def row(self, x: R, index: int, /) -> R:
        return self.inner.row(x, index)

    @override
    def rows(self, entry: TensorType, length: int, /) -> Any:
        return self.inner.rows(entry, length)

    @override
    def stacked(self, rows: Any, entry: TensorType, /) -> R:
        return self.inner.stacked(rows, entry)

    @override
    def execute_each(self, program: Callable[..., tuple[R, ...]], refs: tuple[R, ...], step: int = 0) -> tuple[R, ...]:
        def in_front(inner: BaseInterpreter[R], *inputs: R) -> tuple[R, ...]:
            self.cursor = inner.cursor
            return program(self, *inputs)

        return self.inner.execute_each(in_front, refs, step)


Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class BoundOp:
    """One op as it was bound: by whom, where, on what, and what came of it.

    ordinal     of the user's op that it is or serves
    serves      whether it belongs to a rule or a decomposition of that op
    source      the innermost line on the stack that is not Opstage's; the user's op only while it is being called
    operands    refs of the interpreter; `outputs` are arrays of the host, residuals included
    """

    primitive: Primitive
    static: Static
    region: str
    ordinal: int
    serves: bool
    source: SourceLine | None
    operands: tuple[Any, ...]
    outputs: tuple[Array, ...]


@final
class Trail(Transparent[R]):
    """Stores every op in `steps`, in order of computation."""

    __slots__ = ("steps",)

    def __init__(self, inner: BaseInterpreter[R]):
        super().__init__(inner)
        self.steps: list[BoundOp] = []

    @override
    def bind(self, primitive: Primitive, refs: tuple[R, ...], static: Static, /) -> tuple[R, ...]:
        outs = self.inner.bind(primitive, refs, static)
        cursor = self.cursor
        values = tuple(np.array(self.inner.get(out)) for out in outs)
        self.steps.append(
            BoundOp(primitive, static, cursor.region.name, cursor.ordinal, cursor.quiet, user_frame(), refs, values)
        )
        return outs

    def again(self, step: BoundOp, operands: Sequence[Array]) -> tuple[Array, ...]:
        """Return the outputs of one op, recomputed on operands from the host."""
        inner = self.inner
        refs = tuple(inner.put(operand) for operand in operands)
        outs = inner.execute(lambda ops, *inputs: ops.bind(step.primitive, inputs, step.static), refs)
        return tuple(np.array(inner.get(out)) for out in outs)


Moment: TypeAlias = "Mapping[int, Any]"
"""The values, at one time, of the numbers that may change between evaluations."""


class Imperative(Transparent[R]):
    """Accepts ops from any of the user's code, and provides the same results as `execute` does for a program.

    Its refs live as long as a tape. Values that outlive it, such as parameters and moments, belong to the `store`.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def store(self) -> BaseInterpreter[Any]:
        """Return the interpreter of the values that outlive a tape."""

    @abstractmethod
    def begin(self, step: int) -> None:
        """Restart, as for a new program: with a fresh cursor, at training step `step`."""

    def admit(self, what: str) -> None:
        """Raise a ProgramError if `what` can no longer be passed in from outside."""
        return

    def failed(self) -> None:
        """Discard the effects of an op that failed."""
        return

    @abstractmethod
    def lift(self, value: Any) -> R:
        """Return a value of the store as a ref."""

    @abstractmethod
    def live(self, read: Callable[[], Any]) -> R:
        """Return a ref to an array that may have been replaced when it is read again."""

    def moment(self) -> Moment:
        """Return the current values of the live refs."""
        return {}

    @abstractmethod
    def fetch(self, refs: Sequence[R], moment: Moment | None = None) -> Sequence[Any]:
        """Return refs as values of the store, at a moment, or now."""


def own_array(value: Any) -> np.ndarray[Any, Any]:
    """Return a copy of `value` as an array of numbers; a UsageError if it is not one."""
    return np.array(require_numbers(as_numpy(value)))
