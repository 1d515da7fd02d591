"""`Trail`: an interpreter in front of another one that stores everything it computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from ..ops.errors import SourceLine, user_frame
from ..ops.primitive import Primitive, R, Static
from .interpreter import BaseInterpreter
from .transparent import Transparent

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
        """The outputs of one op, recomputed on operands from the host."""
        inner = self.inner
        refs = tuple(inner.put(operand) for operand in operands)
        outs = inner.execute(lambda ops, *inputs: ops.bind(step.primitive, inputs, step.static), refs)
        return tuple(np.array(inner.get(out)) for out in outs)
