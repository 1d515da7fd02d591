"""Normalisations with an ONNX operator. Its eps and statistics are float32, so programs in float64 and forms that it
lacks use the decompositions."""

from __future__ import annotations

from ....ops.catalogue import normalization
from ....ops.primitive import Primitive
from ....ops.types import FLOAT32, TensorType
from .nodes import OnnxValue
from .rules import OnnxRule
from .writer import Writer


def _layer_norm(
    writer: Writer,
    operands: tuple[OnnxValue, ...],
    results: tuple[TensorType, ...],
    /,
    *,
    has_gamma: bool,
    has_beta: bool,
    eps: float,
) -> tuple[str, ...] | None:
    x, *affine = operands
    if x.dtype != FLOAT32:
        return None
    if not has_gamma:
        affine = [_ones(writer, x, len(x.shape) - 1), *affine]
    return writer.outputs_of("LayerNormalization", x, *affine, count=3, axis=-1, epsilon=float(eps))


def _batch_norm_eval(
    writer: Writer,
    operands: tuple[OnnxValue, ...],
    results: tuple[TensorType, ...],
    /,
    *,
    has_gamma: bool,
    has_beta: bool,
    channel_axis: int,
    eps: float,
) -> tuple[str, ...] | None:
    x, *rest = operands
    if x.dtype != FLOAT32 or channel_axis != 1:
        return None
    *affine, mean, variance = rest
    gamma = affine[0] if has_gamma else _ones(writer, x, 1)
    beta = affine[-1] if has_beta else _along(writer, x, 1, 0.0)
    return (writer.node("BatchNormalization", x, gamma, beta, mean, variance, epsilon=float(eps)),)


def _ones(writer: Writer, x: OnnxValue, axis: int) -> OnnxValue:
    return _along(writer, x, axis, 1.0)


def _along(writer: Writer, x: OnnxValue, axis: int, value: float) -> OnnxValue:
    """Return a vector of one number along an axis of x."""
    type_ = TensorType((x.shape[axis],), x.dtype)
    return OnnxValue(writer.filled(type_.shape, value, x.dtype), type_, writer)


RULES: dict[Primitive, OnnxRule] = {
    normalization.LAYER_NORM: OnnxRule(_layer_norm),
    normalization.BATCH_NORM_EVAL: OnnxRule(_batch_norm_eval),
}
