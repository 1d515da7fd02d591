"""`Transparent`: the base of interpreters that are in front of another one and see every op that is bound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from typing_extensions import override

from ..init.schemes import Elementary
from ..ops.errors import UnsupportedError
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
    def trim(self) -> None:
        self.inner.trim()

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
