"""Rules of ranges by primitive; composites without one take that of their decomposition."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from ....ops.catalogue import (
    activation,
    attention,
    biased_attention,
    convolution,
    elementwise,
    fourier,
    indexing,
    layout,
    linalg,
    logic,
    loss,
    pooling,
    random,
    reduction,
    rounding,
    sequence,
    slicing,
    transcendental,
)
from ....ops.primitive import Primitive
from ...domain import Rule
from . import functions, masks, mixing, pointwise
from .functions import exponential, logarithm, rising


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


RULES: Final[Mapping[Primitive, Rule]] = {
    elementwise.ADD: pointwise.add,
    elementwise.SUB: pointwise.sub,
    elementwise.MUL: pointwise.mul,
    elementwise.DIV: pointwise.div,
    elementwise.INV: pointwise.inv,
    elementwise.NEG: pointwise.neg,
    elementwise.ABS: pointwise.absolute,
    elementwise.SCALE: pointwise.scale,
    elementwise.MAXIMUM: pointwise.extremum(larger=True),
    elementwise.MINIMUM: pointwise.extremum(larger=False),
    elementwise.EXP: exponential(math.exp),
    elementwise.LOG: logarithm(math.log, "log"),
    elementwise.SQRT: functions.root,
    elementwise.SIN: functions.wave(0.0),
    elementwise.COS: functions.wave(math.pi / 2),
    elementwise.TANH: rising(math.tanh),
    elementwise.SIGMOID: rising(_sigmoid),
    elementwise.SOFTPLUS: rising(_softplus),
    elementwise.ERF: rising(math.erf),
    elementwise.POW: functions.power_of,
    elementwise.POWER: functions.power,
    transcendental.ATAN: rising(math.atan),
    transcendental.ATAN2: functions.angle,
    transcendental.ASIN: functions.inverse_of_wave(math.asin, "asin"),
    transcendental.ACOS: functions.inverse_of_wave(math.acos, "acos"),
    transcendental.EXP2: exponential(lambda x: math.pow(2.0, x)),
    transcendental.EXPM1: exponential(math.expm1),
    transcendental.LOG1P: logarithm(math.log1p, "log1p", pole=-1.0),
    transcendental.LOG2: logarithm(math.log2, "log2"),
    transcendental.LOG10: logarithm(math.log10, "log10"),
    rounding.FLOOR: functions.whole,
    rounding.ROUND: functions.whole,
    rounding.MOD: functions.remainder,
    rounding.FLOOR_DIVIDE: functions.quotient,
    logic.LESS: masks.compared,
    logic.LESS_EQUAL: masks.compared,
    logic.EQUAL: masks.compared,
    logic.LOGICAL_AND: masks.both,
    logic.LOGICAL_NOT: masks.inverted,
    logic.SELECT: masks.select,
    logic.CAST: masks.cast,
    logic.DETACH: mixing.kept,
    logic.FULL: mixing.full,
    logic.IOTA: mixing.iota,
    random.RAND_UNIFORM: mixing.uniform,
    random.RAND_NORMAL: mixing.normal,
    layout.PERMUTE: mixing.moved,
    layout.RESHAPE: mixing.reshape,
    layout.BROADCAST_TO: mixing.broadcast_to,
    slicing.SLICE: mixing.moved,
    slicing.CONCAT: mixing.concat,
    slicing.PAD: mixing.pad,
    reduction.REDUCE_SUM: mixing.reduce_sum,
    reduction.REDUCE_MEAN: mixing.reduce_mean,
    reduction.REDUCE_MAX: mixing.reduce_max,
    reduction.ARGMAX: mixing.place,
    sequence.ARGSORT: mixing.place,
    sequence.LINEAR_RECURRENCE: mixing.recurrence,
    sequence.CUMSUM: mixing.cumsum,
    sequence.CUMPROD: mixing.product_of_all,
    sequence.REDUCE_PROD: mixing.product_of_all,
    linalg.MATMUL: mixing.matmul,
    linalg.BMM: mixing.matmul,
    activation.RELU: pointwise.relu,
    attention.SCALED_DOT_PRODUCT_ATTENTION: mixing.attention,
    attention.SCALED_DOT_PRODUCT_ATTENTION_GRAD: mixing.attention_grad,
    biased_attention.BIASED_ATTENTION: mixing.attention,
    biased_attention.BIASED_ATTENTION_GRAD: mixing.attention_grad,
    loss.CROSS_ENTROPY: mixing.cross_entropy,
    loss.CROSS_ENTROPY_GRAD: mixing.cross_entropy,
    convolution.CONV: mixing.conv,
    convolution.CONV_TRANSPOSE: mixing.linear_finite,
    convolution.CONV_KERNEL_GRAD: mixing.linear_finite,
    fourier.FFT: mixing.linear_finite,
    fourier.RFFT: mixing.linear_finite,
    fourier.IRFFT: mixing.linear_finite,
    pooling.MAX_POOL: mixing.max_pool,
    pooling.AVG_POOL: mixing.avg_pool,
    pooling.AVG_POOL_GRAD: mixing.linear_finite,
    pooling.MAX_POOL_SCATTER: mixing.linear_finite,
    pooling.MAX_POOL_GATHER: mixing.moved,
    indexing.GATHER_ROWS: mixing.gather_rows,
    indexing.SCATTER_ADD_ROWS: mixing.linear_finite,
}
