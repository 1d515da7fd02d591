"""How one op is said in ONNX: a rule, by which the writer adds nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ....ops.primitive import Primitive
from ....ops.types import TensorType
from .nodes import OnnxValue

if TYPE_CHECKING:
    from .writer import Writer

Says: TypeAlias = "Callable[..., tuple[str, ...] | None]"
"""(writer, operands, types of outputs and residuals, **static) -> the names of outputs and residuals; None leaves the
call to the op's decomposition, where ONNX's own operator means something else."""


class OnnxRule(NamedTuple):
    """says    what adds the nodes
    note    where ONNX leaves open what Opstage fixes
    """

    says: Says
    note: str = ""


Rules: TypeAlias = Mapping[Primitive, OnnxRule]


def broadcasting(op: str, *, note: str = "") -> OnnxRule:
    """One ONNX operator on operands of one shape, of which it can repeat those that are smaller."""

    def says(writer: Writer, operands: tuple[OnnxValue, ...], results: tuple[TensorType, ...], /) -> tuple[str, ...]:
        return (writer.broadcasting(op, *operands),)

    return OnnxRule(says, note)


def direct(op: str, *statics: str, note: str = "") -> OnnxRule:
    """One ONNX operator on the same operands; static parameters called `statics` are attributes of the same name."""

    def says(
        writer: Writer, operands: tuple[OnnxValue, ...], results: tuple[TensorType, ...], /, **static: Any
    ) -> tuple[str, ...]:
        return (writer.node(op, *operands, **{name: static[name] for name in statics}),)

    return OnnxRule(says, note)
