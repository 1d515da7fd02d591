"""Complex tensors: their parts, sums, products and Fourier transforms.

Ops that only move elements, or are linear over the reals, apply their real rule to both parts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....ops.errors import UnsupportedError
from ....ops.statistics import norm
from ...values import TensorValue
from ..call import COMPLEX_RULES, RULES, AtenCall, ComplexValue, Rule, joined, part_of, parts, rule

_APART = """
view.default reshape.default _unsafe_view.default view_copy.default permute.default permute_copy.default transpose.int
t.default transpose_copy.int numpy_T.default movedim.int unsqueeze.default unsqueeze_copy.default squeeze.default
squeeze.dim squeeze.dims squeeze_copy.dims expand.default expand_copy.default repeat.default
repeat_interleave.self_int split_with_sizes.default split_with_sizes_copy.default split.Tensor
split_copy.Tensor chunk.default unbind.int select.int select_copy.int slice.Tensor slice_copy.Tensor narrow.default
flip.default roll.default unfold.default unfold_copy.default tril.default triu.default diagonal.default
diagonal_copy.default index_select.default gather.default index.Tensor _unsafe_index.Tensor clone.default alias.default
contiguous.default lift_fresh_copy.default detach.default zeros_like.default sum.default sum.dim_IntList mean.default
mean.dim cumsum.default neg.default _to_copy.default
"""
_TOGETHER = "cat.default stack.default where.self add.Tensor add.Scalar sub.Tensor sub.Scalar rsub.Scalar"


def _complex(*ops: str) -> Callable[[Rule], Rule]:
    """Register the rule of ops with a complex argument."""

    def register(function: Rule) -> Rule:
        COMPLEX_RULES.update({f"aten.{op}": function for op in ops})
        return function

    return register


def _of_parts(call: AtenCall[Any], first: list[Any], second: list[Any]) -> Any:
    real = RULES[call.node.op]
    return joined(real(call, *first), real(call, *second))


@_complex(*_APART.split())
def _apart(call: AtenCall[Any], *args: Any) -> Any:
    return _of_parts(call, *([part_of(each, i) for each in args] for i in (0, 1)))


@_complex(*_TOGETHER.split())
def _together(call: AtenCall[Any], *args: Any) -> Any:
    """Apply to operands of which some may be real, with imaginary part 0."""
    first, end = {"aten.cat": (0, 1), "aten.stack": (0, 1), "aten.where": (1, 3)}.get(call.name, (0, 2))
    return _of_parts(
        call, *([*args[:first], *[_part(call, each, i) for each in args[first:end]], *args[end:]] for i in (0, 1))
    )


def _part(call: AtenCall[Any], value: Any, i: int) -> Any:
    if isinstance(value, list):
        return [_part(call, each, i) for each in value]
    if i and isinstance(value, TensorValue):
        return call.full(value.shape, 0.0)
    return parts(value)[i]


# Between real and complex ---------------------------------------------------------------------------------------------


def _pair(call: AtenCall[Any], x: TensorValue[Any]) -> ComplexValue:
    rank = len(x.shape)
    halves = call.ops.split(x.ref, sizes=[1, 1], axis=rank - 1)
    re, im = (call.give(call.ops.squeeze(half, axis=rank - 1)) for half in halves)
    return ComplexValue(re, im)


def _stacked(call: AtenCall[Any], z: Any) -> Any:
    re, im = (_part(call, z, i) for i in (0, 1))
    return call.ops.stack([call.tensor(re, call.dtype()), call.tensor(im, call.dtype())], axis=len(z.shape))


@rule("view_as_complex.default", "view_as_complex_copy.default")
def _view_as_complex(call: AtenCall[Any], x: Any) -> Any:
    return _pair(call, x)


@_complex("view_as_real.default", "view_as_real_copy.default")
def _view_as_real(call: AtenCall[Any], z: Any) -> Any:
    return call.give(_stacked(call, z))


@rule("complex.default")
def _of_both(call: AtenCall[Any], re: Any, im: Any) -> Any:
    re, im = call.together(re, im)
    return ComplexValue(call.give(re), call.give(im))


@rule("polar.default")
def _polar(call: AtenCall[Any], size: Any, angle: Any) -> Any:
    ops = call.ops
    r, a = call.together(size, angle)
    return ComplexValue(call.give(ops.mul(r, ops.cos(a))), call.give(ops.mul(r, ops.sin(a))))


@_complex("_conj.default", "conj_physical.default", "_conj_physical.default")
def _conjugate(call: AtenCall[Any], z: Any) -> Any:
    return ComplexValue(z.re, call.give(call.ops.neg(z.im.ref)))


@_complex("resolve_conj.default", "resolve_neg.default")
def _same(call: AtenCall[Any], z: Any) -> Any:
    return z


@_complex("abs.default")
def _size(call: AtenCall[Any], z: Any) -> Any:
    return call.give(norm(call.ops, _stacked(call, z), axis=len(z.shape)))


@_complex("angle.default")
def _angle(call: AtenCall[Any], z: Any) -> Any:
    return call.give(call.ops.atan2(z.im.ref, z.re.ref))


# Arithmetic -----------------------------------------------------------------------------------------------------------


def _bilinear(call: AtenCall[Any], product: Callable[[Any, Any], Any], z: Any, w: Any) -> ComplexValue:
    """Compute (a + bi)·(c + di) = (ac - bd) + (ad + bc)i for any product; parts that are the number 0 are skipped."""
    ops, (a, b), (c, d) = call.ops, parts(z), parts(w)
    absent = [isinstance(each, float) and each == 0 and not isinstance(whole, complex)
              for each, whole in ((b, z), (d, w))]  # fmt: skip
    re, im = product(a, c), None
    if not any(absent):
        re = ops.sub(re, product(b, d))
    if not absent[1]:
        im = product(a, d)
    if not absent[0]:
        other = product(b, c)
        im = other if im is None else ops.add(im, other)
    assert im is not None  # at least one is complex
    return ComplexValue(call.give(re), call.give(im))


@_complex("mul.Tensor", "mul.Scalar")
def _mul(call: AtenCall[Any], z: Any, w: Any) -> Any:
    return _bilinear(call, lambda x, y: call.ops.mul(*_spread(call, x, y)), z, w)


def _spread(call: AtenCall[Any], *values: Any) -> tuple[Any, ...]:
    """Return parts as tensors of one shape, also if one is a number."""
    return call.together(*[each if isinstance(each, TensorValue) else call.full((), each) for each in values])


@_complex("mm.default", "bmm.default", "mv.default", "matmul.default", "dot.default")
def _products(call: AtenCall[Any], z: Any, w: Any) -> Any:
    real = RULES[call.node.op]
    return _bilinear(call, lambda x, y: real(call, x, y).ref, z, w)


@_complex("div.Tensor", "div.Scalar")
def _div(call: AtenCall[Any], z: Any, w: Any) -> Any:
    """Compute z·w̄/|w|² with both divided by the larger part of w, so that no square overflows or underflows."""
    ops, (c, d) = call.ops, parts(w)
    if not isinstance(w, (ComplexValue, complex)):
        a, b = parts(z)
        return ComplexValue(*(call.give(ops.div(*_spread(call, part, w))) for part in (a, b)))
    c, d = _spread(call, c, d)
    larger = ops.detach(ops.maximum(ops.abs(c), ops.abs(d)))
    c, d = ops.div(c, larger), ops.div(d, larger)
    square = ops.add(ops.mul(c, c), ops.mul(d, d))
    size = TensorValue(ops.mul(square, larger), call.dtype())
    conjugate = ComplexValue(TensorValue(c, call.dtype()), TensorValue(ops.neg(d), call.dtype()))
    product = _mul(call, z, conjugate)
    return ComplexValue(*(call.give(ops.div(*_spread(call, part, size))) for part in product))


@_complex("reciprocal.default")
def _reciprocal(call: AtenCall[Any], z: Any) -> Any:
    return _div(call, call.full(z.shape, 1.0), z)


@_complex("square.default")
def _square(call: AtenCall[Any], z: Any) -> Any:
    return _mul(call, z, z)


@_complex("pow.Tensor_Scalar")
def _pow(call: AtenCall[Any], z: Any, exponent: Any) -> Any:
    if not isinstance(exponent, (int, float)) or exponent != int(exponent) or not 1 <= exponent <= 16:
        raise UnsupportedError(f"a complex tensor to the power {exponent} is not known; whole ones from 1 to 16 are")
    found = z
    for _ in range(int(exponent) - 1):
        found = _mul(call, found, z)
    return found


@_complex("exp.default")
def _exp(call: AtenCall[Any], z: Any) -> Any:
    ops, size = call.ops, call.ops.exp(z.re.ref)
    return ComplexValue(*(call.give(ops.mul(size, f(z.im.ref))) for f in (ops.cos, ops.sin)))


@_complex("log.default")
def _log(call: AtenCall[Any], z: Any) -> Any:
    return ComplexValue(call.give(call.ops.log(_size(call, z).ref)), _angle(call, z))


@_complex("constant_pad_nd.default")
def _pad(call: AtenCall[Any], z: Any, padding: Any, value: Any = 0) -> Any:
    return _of_parts(call, *([part, padding, number] for part, number in zip(parts(z), parts(value))))


@_complex("pad.default")
def _pad_by_mode(call: AtenCall[Any], z: Any, padding: Any, mode: str, value: Any = None) -> Any:
    values = parts(0.0 if value is None else value) if mode == "constant" else (None, None)
    return _of_parts(call, *([part, padding, mode, number] for part, number in zip(parts(z), values)))


@_complex("ones_like.default")
def _ones(call: AtenCall[Any], z: Any) -> Any:
    return call.full(z.shape, 1.0)


# Fourier transforms ---------------------------------------------------------------------------------------------------

_FORWARD = ("backward", "ortho", "forward")
"""The norms by ATen's number: no factor, 1/√n, 1/n."""
_INVERSE = ("forward", "ortho", "backward")


def _axes(call: AtenCall[Any], axes: Any, x: Any) -> list[int]:
    return [axis % len(x.shape) for axis in axes]


@rule("_fft_r2c.default")
def _of_real(call: AtenCall[Any], x: Any, axes: Any, factor: int, onesided: bool) -> Any:
    ops, places = call.ops, _axes(call, axes, x)
    *others, last = places
    ref = call.tensor(x, call.dtype())
    if onesided:
        z = ops.rfft(ref, axis=last, norm=_FORWARD[factor])
    else:
        z, others = ops.stack([ref, call.full(x.shape, 0.0).ref], axis=len(x.shape)), places
    for axis in others:
        z = ops.fft(z, axis=axis, norm=_FORWARD[factor])
    return _pair(call, TensorValue(z, call.dtype()))


@_complex("_fft_c2c.default")
def _of_complex(call: AtenCall[Any], z: Any, axes: Any, factor: int, forward: bool) -> Any:
    ops, ref = call.ops, _stacked(call, z)
    transform, norms = (ops.fft, _FORWARD) if forward else (ops.ifft, _INVERSE)
    for axis in _axes(call, axes, z):
        ref = transform(ref, axis=axis, norm=norms[factor])
    return _pair(call, TensorValue(ref, call.dtype()))


@_complex("_fft_c2r.default")
def _to_real(call: AtenCall[Any], z: Any, axes: Any, factor: int, size: Any) -> Any:
    ops, ref = call.ops, _stacked(call, z)
    *others, last = _axes(call, axes, z)
    for axis in others:
        ref = ops.ifft(ref, axis=axis, norm=_INVERSE[factor])
    return call.give(ops.irfft(ref, n=size, axis=last, norm=_INVERSE[factor]))
