"""Ops that read several elements: sums, maxima, products of matrices, convolutions, pools, and layout ops."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from ...ops.dims import Dim
from ...ops.splitmix import LARGEST_NORMAL
from ...ops.types import is_float
from ..dependence.regions import at_most_proved, largest
from ..domain import OpCall
from .elementwise import divided, number, squared_operand, stated, stored
from .fact import (
    ANYTHING,
    INFINITY,
    LARGEST_SIZE,
    Facts,
    Share,
    ShareKind,
    ValueRange,
    join_ranges,
    powered,
    product,
    same_shape,
    times_count,
)

if TYPE_CHECKING:
    from . import Ranges


_LIKELY = 2.0**20
"""Up to this number of terms the overflow of a sum is a warning."""
_ROUNDING = 1 / 64
"""The error of a sum relative to the sum of magnitudes, see `ASSUMPTIONS`."""


def counted(sizes: Sequence[Dim]) -> tuple[int, float]:
    """Return the least and the greatest product that the sizes may have."""
    least, most = 1, 1.0
    for size in sizes:
        least *= size if isinstance(size, int) else int(at_most_proved(1, size))
        most *= largest(size)
    return least, most


def summed(domain: Ranges, call: OpCall, terms: ValueRange, least: int, most: float, operands: Facts) -> ValueRange:
    """Return the range of a sum of at least `least` and at most `most` terms."""
    if overflows(domain, call, terms, most, operands):
        return ANYTHING
    if is_float(call.outputs[0].dtype):
        most = min(most, LARGEST_SIZE)
    low, high = times_count(terms, least, most)
    if most != 1 and not (_is_exact(domain, call, low, terms.low) and _is_exact(domain, call, high, terms.high)):
        low, high = rounded(low, high, terms)
    return domain.result(call, low, high, operands, nan=terms.minus and terms.plus, known=False)


def _is_exact(domain: Ranges, call: OpCall, total: float, term: float) -> bool:
    """Return whether every sum of equal terms up to this total is exact, so that no other sum rounds past the total."""
    digits = int(abs(math.frexp(term)[0]) * 2**53) if math.isfinite(term) else 0
    largest_exact = 1 / domain.dtype_limits(call.outputs[0].dtype).epsilon
    return not digits or total / term * (digits // (digits & -digits)) <= largest_exact


def overflows(domain: Ranges, call: OpCall, terms: ValueRange, most: float, operands: Facts) -> bool:
    """Return whether a sum of at most `most` terms may overflow on its way, with a remark; False without bounds."""
    if not is_float(call.outputs[0].dtype):
        return False
    limits = domain.dtype_limits(call.outputs[0].dtype)
    size = max(abs(terms.low), abs(terms.high))
    if not most or not size or not all(fact.bounded for fact in operands):
        return False
    if size * min(most, LARGEST_SIZE) * (1 + _ROUNDING) <= limits.largest:
        return False
    count = f"{most:g} numbers" if most < INFINITY else "numbers over a size without a bound,"
    fits = int(limits.largest / size / (1 + _ROUNDING))
    fix = f"declare a bound of the size, up to {fits}" if most == INFINITY and fits > 1 else ""
    text = f"a sum of {count} of sizes up to {size:.6g}, and {limits.name} ends at {limits.largest:.5g}"
    domain.remark("overflow", text, *operands, sure=size * min(most, _LIKELY) > limits.largest, fix=fix)
    return True


def rounded(low: float, high: float, terms: ValueRange) -> tuple[float, float]:
    """Return the bounds of a sum or mean, widened by its rounding, which is relative if all terms have one sign."""
    if terms.low >= 0:
        return low * (1 - _ROUNDING), high * (1 + _ROUNDING)
    if terms.high <= 0:
        return low * (1 + _ROUNDING), high * (1 - _ROUNDING)
    wide = max(abs(low), abs(high)) * _ROUNDING  # infinite if a bound is: then both are unknown
    return low - wide, high + wide


def reduce_sum(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    (x,) = facts
    axes = call.static["axes"]
    least, most = counted([call.inputs[0].shape[axis] for axis in axes])
    result = summed(domain, call, x, least, most, facts)
    if x.attained and set(x.attained) <= set(axes) and x.low >= 0:
        result = result._replace(low=max(result.low, x.peak * (1 - _ROUNDING)))  # one of the terms is that large
    return [result._replace(share=_share(call, x, "sum"))]


def reduce_mean(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    (x,) = facts
    _, most = counted([call.inputs[0].shape[axis] for axis in call.static["axes"]])
    if overflows(domain, call, x, most, facts):
        return [ANYTHING]
    ends = [_is_exact(domain, call, end * min(most, LARGEST_SIZE), end) for end in (x.low, x.high)]
    exact = all(ends) and x.bounded
    low, high = (x.low, x.high) if exact else rounded(x.low, x.high, x)
    # The division, or product by 1/n, does not enlarge a power of 2 or a smaller number.
    kept = exact and x.may_be_zero and all(math.frexp(abs(end))[0] in (0, 0.5) for end in (x.low, x.high))
    result = domain.result(call, low, high, facts, ulps=0 if kept else 2 if exact else 1, nan=x.minus and x.plus)
    root = squared_operand(domain, x)
    return [result if root is None else result._replace(share=_share(call, root, "squares"))]


def reduce_max(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    (x,) = facts
    return [x.alone._replace(share=_share(call, x, "maximum"))]


def _share(call: OpCall, x: ValueRange, kind: ShareKind) -> Share | None:
    return Share(x.value, kind, tuple(call.static["axes"]), call.inputs[0].shape) if x.value else None


def place(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    """Return the range of argmax and argsort: an index along the axis."""
    _, most = counted([call.inputs[0].shape[call.static["axis"]]])
    return [ValueRange(0, most - 1, integral=True)]


def product_of_all(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    """Return the range of reduce_prod and cumprod; products of magnitudes up to 1 shrink with their number."""
    (x,) = facts
    axes = call.static["axes"] if "axes" in call.static else (call.static["axis"],)
    _, most = counted([call.inputs[0].shape[axis] for axis in axes])
    if x.nan or x.infinite:
        return [ANYTHING]
    if not x.bounded:
        domain.remark("overflow", f"a product of {most:g} numbers without a known bound", x, sure=False)
        return [ANYTHING]
    greatest, smallest = x.sizes
    high = powered(greatest, most) * (1 + _ROUNDING) if greatest > 1 else 1.0
    low = powered(smallest, most) * (1 - _ROUNDING) if smallest < 1 else 1 - _ROUNDING
    infinite = high > domain.dtype_limits(call.outputs[0].dtype).largest
    nan = infinite and x.may_be_zero  # infinity times 0
    return [domain.result(call, low if x.low >= 0 else -high, high, facts, known=True, nan=nan)]


def recurrence(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    """Return the range of s[k] = a[k]·s[k - 1] + b[k], from s = 0."""
    a, b = facts
    _, most = counted([call.inputs[0].shape[call.static["axis"]]])
    if not (a.bounded and b.bounded) or a.nan or b.nan:
        return [domain.top(call.outputs[0], facts)]
    # A sum of elements of b, each times elements of a.
    count = min(most, LARGEST_SIZE) * (1 + _ROUNDING)
    size = b.sizes[0] and b.sizes[0] * count * powered(max(a.sizes[0], 1.0), count)
    infinite = size > domain.dtype_limits(call.outputs[0].dtype).largest
    return [domain.result(call, -size, size, facts, known=True, nan=infinite)]


def cumsum(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    (x,) = facts
    _, most = counted([call.inputs[0].shape[call.static["axis"]]])
    return [summed(domain, call, x, int(not call.static["exclusive"]), most, facts)]


# Products -----------------------------------------------------------------------------------------------------------


def matmul(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    x, y = facts
    return [_contracted(domain, call, x, y, [call.inputs[0].shape[-1]])]


def _contracted(
    domain: Ranges, call: OpCall, x: ValueRange, y: ValueRange, sizes: Sequence[Dim], padded: bool = False
) -> ValueRange:
    if x.infinite or y.infinite:
        return ANYTHING
    low, high = product(x, y)
    terms = ValueRange(min(low, 0.0), max(high, 0.0)) if padded else ValueRange(low, high)
    least, most = counted(sizes)
    return summed(domain, call, terms, least, most, (x, y))


def attention(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    """Return the range of means of v with weights that sum to 1, or zeros.

    Kernels subtract a maximum from the scores before their exponentials. They divide by the sum of the weights last, so
    sums may overflow sooner than the means.
    """
    q, k, v, *rest = facts
    scores = _contracted(domain, call, q, k, [call.inputs[0].shape[-1]])
    _, keys = counted([call.inputs[1].shape[-2]])
    for bias in [fact for fact, type_ in zip(rest, call.inputs[3:]) if is_float(type_.dtype)]:
        shifted = (scores, bias)
        scores = domain.result(call, scores.low + bias.low, scores.high + bias.high, shifted)._replace(minus=False)
    unknown = scores.nan or scores.infinite or v.nan or v.infinite or any(fact.nan or fact.plus for fact in rest)
    if unknown or overflows(domain, call, v, keys, (v,)):
        return [ANYTHING] * len(call.outputs)
    kept = [ANYTHING] * 2
    if not any(fact.minus for fact in rest):
        # For each query the greatest score, and the sum of exponentials, one of which is 1; 0 and 1 for a blank query.
        kept = [ValueRange(), ValueRange(1 - _ROUNDING, min(keys, LARGEST_SIZE) * (1 + _ROUNDING))]
        kept = [fact._replace(value=domain.fresh()) for fact in kept]
        domain.attended.add(_attended(call, (q, k, *rest, *kept)))
    return [mean_or_zero(domain, call, v), *kept]


def attention_grad(domain: Ranges, call: OpCall, facts: Facts) -> Facts | None:
    """Return the range of sums of products of weights between 0 and 1 with cotangents, if the residuals match the
    scores.
    """
    q, k, v, *rest, g = facts
    if not all(fact.value for fact in facts[:-1]) or _attended(call, (q, k, *rest)) not in domain.attended:
        return None
    domain.assumptions["scores of attention are the same when the backward pass computes them again"] = None
    # The weights of a sum over keys add up to 1; a sum over queries has one term for each.
    _, most = counted([call.inputs[0].shape[-2]])
    _, features = counted([call.inputs[2].shape[-1]])
    return _finite_sum(domain, call, (q, k, v, g), 2 * most * features)


def _attended(call: OpCall, facts: Facts) -> Hashable:
    """Return the tensors and static parameters by which a gradient belongs to its attention."""
    return (tuple(sorted(call.static.items())), tuple([fact.value for fact in facts]))


def mean_or_zero(domain: Ranges, call: OpCall, x: ValueRange) -> ValueRange:
    """Return the range of a mean over elements of x and zeros."""
    terms = join_ranges(x, ValueRange(0, 0))
    return domain.result(call, *rounded(terms.low, terms.high, terms), (x,))


def cross_entropy(domain: Ranges, call: OpCall, facts: Facts) -> Facts | None:
    """Return the range of a mean over the labels that count; the mean of none would be 0/0."""
    if call.static["reduction"] != "mean" or domain.run is None:
        return None
    totals = domain.run.apply(
        call.primitive, {**call.static, "reduction": "sum"}, call.inputs, [(fact,) for fact in facts]
    )
    labels = facts[1]
    if labels.low <= call.static["ignore_index"] <= labels.high:
        domain.assumptions["a label of each batch counts, so that a mean over labels is not 0/0"] = None
    _, most = counted(call.inputs[1].shape)
    loss, *rest = [known[0] for known in totals]
    return [divided(domain, call, (loss, ValueRange(1, most))), *rest]


def conv(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    kernel, x = facts[0], facts[-1]
    shape = call.inputs[0].shape
    result = _contracted(domain, call, x, kernel, shape[1:], padded=True)
    if len(facts) == 3:
        bias = facts[1]
        nan = (result.plus and bias.minus) or (result.minus and bias.plus)
        both = (result, bias)
        result = domain.result(call, result.low + bias.low, result.high + bias.high, both, nan=nan)
    return [result]


def linear_finite(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    """Return the range of sums of products of one element of each operand, each element of the largest operand at most
    once.

    Only finiteness is proved, without a bound.
    """
    most = max([counted(type_.shape)[1] for type_ in call.inputs])
    facts = [fact for fact, type_ in zip(facts, call.inputs) if type_.dtype == call.outputs[0].dtype]  # without indices
    return _finite_sum(domain, call, facts, 2 * most)  # two for the real and the imaginary part


def _finite_sum(domain: Ranges, call: OpCall, facts: Facts, most: float) -> Facts:
    """Return the range of a sum of at most `most` products: finite if the operands are and bounds exclude overflow."""
    if any(fact.nan or fact.infinite for fact in facts):
        return [ANYTHING] * len(call.outputs)
    size = math.prod(max(abs(fact.low), abs(fact.high), 1.0) for fact in facts)
    terms = ValueRange(-size, size)
    return [summed(domain, call, terms, 1, most, facts)] * len(call.outputs)


# Layout ---------------------------------------------------------------------------------------------------------------


def rearrange(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    """Return the range of the same elements at other places."""
    return [facts[0].alone]


def identity(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    return [facts[0]]


def reshape(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    (x,) = facts
    share, shape = x.share, call.outputs[0].shape
    if share is not None and not (
        same_shape(shape, share.keepdims_shape) and same_shape(call.inputs[0].shape, share.dropped_shape)
    ):
        share = share if same_shape(shape, call.inputs[0].shape) else None
    return [x.alone._replace(share=share)]


def broadcast_to(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    (x,) = facts
    before, after, share = call.inputs[0].shape, call.outputs[0].shape, x.share
    lies = share is not None and same_shape(before, share.keepdims_shape) and same_shape(after, share.shape)
    attained = x.attained if same_shape(before, after) else ()
    return [x.alone._replace(share=share if lies else None, attained=attained, peak=x.peak)]


def concat(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    found = facts[0].alone
    for fact in facts[1:]:
        found = join_ranges(found, fact)
    return [found]


def pad(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    return [join_ranges(facts[0], stated(domain, call, call.static["value"]))]


def avg_pool(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    """Return the range of means over windows, in which padding counts as zeros."""
    (x,) = facts
    if overflows(domain, call, x, math.prod(call.static["kernel"]), facts):
        return [ANYTHING]
    return [mean_or_zero(domain, call, x)]


def max_pool(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    index = [ValueRange(0, INFINITY, integral=True)] * (len(call.outputs) - 1)
    return [facts[0].alone, *index]


def gather_rows(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    x, index = facts
    rows = call.inputs[0].shape[0]
    raises = call.static["mode"] == "raise"
    if raises and index.bounded and (index.low < 0 or (isinstance(rows, int) and index.high > rows - 1)):
        domain.remark("index-out-of-range", f"indices are in {index}, and there are {rows} rows", sure=True)
    return [x.alone if raises else join_ranges(x, ValueRange(0, 0, integral=True))]


def full(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    value = call.static["value"]
    return [stated(domain, call, value) if is_float(call.outputs[0].dtype) else number(value)]


def iota(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    _, most = counted([call.static["shape"][call.static["axis"]]])
    return [stored(domain, call, ValueRange(0, most - 1, integral=True))]


def uniform(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    """Return the range of random numbers of 24 bits over 2^24."""
    return [ValueRange(0, 1 - 2.0**-24 if domain.dtype_limits(call.outputs[0].dtype).epsilon <= 2.0**-23 else 1.0)]


def normal(domain: Ranges, call: OpCall, facts: Facts) -> Facts:
    """Return the range of Box-Muller numbers, whose radius ends at that of the largest uniform number."""
    low, high = domain.dtype_limits(call.outputs[0].dtype).widened(-LARGEST_NORMAL, LARGEST_NORMAL, 8)
    return [ValueRange(low, high)]
