"""`OnnxRule`: how an op is expressed in ONNX."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ....ops.primitive import Primitive
from ....ops.types import TensorType
from .nodes import OnnxValue

if TYPE_CHECKING:
    from .writer import Writer

Says: TypeAlias = "Callable[..., tuple[str, ...] | None]"
"""(writer, operands, types of outputs and residuals, **static) -> the names of outputs and residuals. None falls back
to the op's decomposition, where ONNX's operator differs."""


class OnnxRule(NamedTuple):
    """A rule that expresses an op in ONNX.

    says    adds the nodes
    note    behaviour that ONNX leaves undefined and Opstage defines
    """

    says: Says
    note: str = ""


Rules: TypeAlias = Mapping[Primitive, OnnxRule]


def broadcasting(op: str, *, note: str = "") -> OnnxRule:
    """Return the rule of an ONNX operator with broadcasting."""

    def says(writer: Writer, operands: tuple[OnnxValue, ...], results: tuple[TensorType, ...], /) -> tuple[str, ...]:
        return (writer.broadcasting(op, *operands),)

    return OnnxRule(says, note)


def direct(op: str, *statics: str, note: str = "") -> OnnxRule:
    """Return the rule of an ONNX operator on the same operands; static parameters named in `statics` become
    attributes."""

    def says(
        writer: Writer, operands: tuple[OnnxValue, ...], results: tuple[TensorType, ...], /, **static: Any
    ) -> tuple[str, ...]:
        return (writer.node(op, *operands, **{name: static[name] for name in statics}),)

    return OnnxRule(says, note)
