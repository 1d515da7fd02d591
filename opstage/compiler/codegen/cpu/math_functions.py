"""Elementary functions for generated loops, in forms that compilers vectorize.

The C library's exp is a call per element; these are plain arithmetic, and 5 to 8 times as fast.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from ...native.access import Function, inlined
from ...scalar import splitmix64, uniform_integer
from ..formulas import scalar_formulas

# Functions ------------------------------------------------------------------------------------------------------------

_FUSED = ("contract",)
"""Products and sums of these functions, Horner's for the most part, are one instruction where a processor has it,
rounded once. There is no sum of two products in them, of which either might be the fused one: so elements of a vector
have the bits of a number by itself."""

_INVERSE_FACTORIALS = tuple(1 / math.factorial(n) for n in range(14))


@inlined(fastmath=_FUSED)
def exp(real: Any) -> Function:
    """eˣ to 1 ulp: 2ᵏ·eʳ, with k the integer nearest x/log 2 and a polynomial in the remainder r, |r| <= ½ log 2.

    Adding 1.5·2^(fraction bits) rounds to an integer and leaves it in the low bits. The product with log 2, split in
    two parts, is exact in its first part (Cody & Waite 1980). 2ᵏ is computed as 2·2ᵏ⁻¹ to reach the largest floats.
    Results below twice the smallest normal number are flushed to 0, since processors take many times as long for
    subnormals.
    """
    return _exp32() if real is np.float32 else _exp64()


@inlined(fastmath=_FUSED)
def exp2(real: Any) -> Function:
    """2ˣ in the same way, with k the integer nearest x and r = (x - k)·log 2; exact for integer x."""
    return _exp32(of_two=True) if real is np.float32 else _exp64(of_two=True)


def _rest(real: Any, high: float, low: float, of_two: bool) -> Function:
    """Return the function of z and k that computes r, with log 2 in two parts."""
    log2_high, log2_low, log2 = real(high), real(low), real(math.log(2))
    if of_two:
        return lambda z, k: (z - k) * log2
    return lambda z, k: z - k * log2_high - k * log2_low


def _exp32(of_two: bool = False) -> Function:
    f = np.float32
    lowest, highest, per_log2, magic = f(-125 * math.log(2)), f(88.73), f(1 / math.log(2)), f(1.5 * 2**23)
    if of_two:
        lowest, highest, per_log2 = f(-125), f(128), f(1)
    rest = _rest(f, 0.693359375, math.log(2) - 0.693359375, of_two)
    # Minimax on |r| <= ½ log 2: Moshier, Cephes (1989), expf.
    c2, c3, c4 = f(5.0000001201e-1), f(1.6666665459e-1), f(4.1665795894e-2)
    c5, c6, c7 = f(8.3334519073e-3), f(1.3981999507e-3), f(1.9875691500e-4)
    zero, one, two, offset, fraction = f(0), f(1), f(2), np.int32(0x4B400000 - 126), np.int32(23)

    def formula(x: Any) -> Any:
        z = lowest if x < lowest else x
        z = highest if z > highest else z
        shifted = z * per_log2 + magic
        k = shifted - magic
        r = rest(z, k)
        p = (((((c7 * r + c6) * r + c5) * r + c4) * r + c3) * r + c2) * (r * r) + r + one
        biased = np.int32(np.float32(shifted).view(np.int32) - offset)
        return zero if x < lowest else p * np.int32(biased << fraction).view(np.float32) * two

    return formula


def _exp64(of_two: bool = False) -> Function:
    f = np.float64
    lowest, highest, per_log2, magic = f(-1021 * math.log(2)), f(709.79), f(1 / math.log(2)), f(1.5 * 2**52)
    if of_two:
        lowest, highest, per_log2 = f(-1021), f(1024), f(1)
    rest = _rest(f, 6.93147180369123816490e-01, 1.90821492927058770002e-10, of_two)
    _, one, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13 = (f(c) for c in _INVERSE_FACTORIALS)
    zero, two, offset, fraction = f(0), f(2), np.int64(0x4338000000000000 - 1022), np.int64(52)

    def formula(x: Any) -> Any:
        z = lowest if x < lowest else x
        z = highest if z > highest else z
        shifted = z * per_log2 + magic
        k = shifted - magic
        r = rest(z, k)
        p = ((((((c13 * r + c12) * r + c11) * r + c10) * r + c9) * r + c8) * r + c7) * r + c6
        p = ((((p * r + c5) * r + c4) * r + c3) * r + c2) * (r * r) + r + one
        biased = np.int64(np.float64(shifted).view(np.int64) - offset)
        return zero if x < lowest else p * np.int64(biased << fraction).view(np.float64) * two

    return formula


@inlined()
def log(real: Any) -> Function:
    """log x to 2 ulp: e·log 2 + log m, with x = m·2ᵉ and ½√2 <= m < √2. Moshier, Cephes (1989), logf and log.

    log 2 is split in two parts, so that e times the first part is exact. A subnormal x is first scaled by a power of 2.
    """
    log2_high, log2_low = real(0.693359375), real(-2.121944400546905827679e-4)

    def joined(e: Any, r: Any, rest: Any) -> Any:
        y = rest + e * log2_low
        return r + y + e * log2_high

    return _log(real, joined)


@inlined()
def log2(real: Any) -> Function:
    """log₂ x in the same way: e + log m/log 2, exact for powers of 2; 1/log 2 is split into 1 and the rest. Moshier,
    Cephes (1989), log2."""
    more = real(0.44269504088896340735992)
    return _log(real, lambda e, r, rest: rest * more + r * more + rest + r + e)


_LOG32 = (7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1)
_LOG32_LAST = (-1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1)
_LOG64 = (1.01875663804580931796e-4, 4.97494994976747001425e-1, 4.70579119878881725854)
_LOG64_LAST = (1.44989225341610930846e1, 1.79368678507819816313e1, 7.70838733755885391666)
_LOG64_BELOW = (1.12873587189167450590e1, 4.52279145837532221105e1, 8.29875266912776603211e1)
_LOG64_BELOW_LAST = (7.11544750618563894466e1, 2.31251620126765340583e1)


@inlined()
def log_series(real: Any) -> Function:
    """(log(1 + r) - r + ½r²)/r³ for ½√2 - 1 <= r < √2 - 1."""
    f = real
    if real is np.float32:
        c0, c1, c2, c3, c4 = (f(c) for c in _LOG32)
        c5, c6, c7, c8 = (f(c) for c in _LOG32_LAST)
        return lambda r: (((((((c0 * r + c1) * r + c2) * r + c3) * r + c4) * r + c5) * r + c6) * r + c7) * r + c8
    p0, p1, p2 = (f(c) for c in _LOG64)
    p3, p4, p5 = (f(c) for c in _LOG64_LAST)
    q0, q1, q2 = (f(c) for c in _LOG64_BELOW)
    q3, q4 = (f(c) for c in _LOG64_BELOW_LAST)

    def quotient(r: Any) -> Any:
        above = ((((p0 * r + p1) * r + p2) * r + p3) * r + p4) * r + p5
        return above / (((((r + q0) * r + q1) * r + q2) * r + q3) * r + q4)

    return quotient


def _log(real: Any, joined: Function) -> Function:
    """Return the logarithm computed by `joined` from e, r = m - 1, and log(1 + r) - r."""
    f, single = real, real is np.float32
    integer, bits, bias, doublings = (np.int32, 23, 127, 25) if single else (np.int64, 52, 1023, 54)
    shift, low = integer(bits), integer((1 << bits) - 1)
    half_bits = integer((bias - 1) << bits)  # the bits of ½
    least, enlarged, doubled = f(np.finfo(real).tiny), f(2.0**doublings), f(doublings)
    zero, one, half, root = f(0), f(1), f(0.5), f(math.sqrt(0.5))
    infinite, none, offset = f(np.inf), f(np.nan), f(bias - 1)

    def formula(x: Any) -> Any:
        small = x < least
        z = x * enlarged if small else x
        b = real(z).view(integer)
        e = real(integer(b >> shift)) - offset
        e = e - doubled if small else e
        m = integer(integer(b & low) | half_bits).view(real)  # ½ <= m < 1
        lesser = m < root
        e = e - one if lesser else e
        r = (m + m if lesser else m) - one
        s = r * r
        y = joined(e, r, r * s * log_series(r) - half * s)
        y = y if x < infinite else x  # infinity and nan are returned
        return y if x > zero else -infinite if x == zero else none if x < zero else x

    return formula


@inlined()
def log1p(real: Any) -> Function:
    """log(1 + x) to 3 ulp: log u for u = 1 + x, rounded, with a correction for the rounding error (Kahan)."""
    zero, one, most = real(0), real(1), real(np.finfo(real).max)

    def formula(x: Any) -> Any:
        u = one + x
        whole = log(u)
        return whole + (x - (u - one)) / u if zero < u <= most else whole

    return formula


@inlined(fastmath=_FUSED)
def erf(real: Any) -> Function:
    """The error function: to 2 ulp in float32, the C library's in float64.

    x·P(x²) up to 0.9277, beyond that 1 - e^Q(|x|), both minimax.
    """
    if real is not np.float32:
        return lambda x: math.erf(x)
    f = np.float32
    one, zero, border = f(1), f(0), f(0.927734375)
    q0, q1, q2, q3 = f(-1.28717512e-1), f(-6.34846687e-1), f(-1.06777877e-1), f(2.42546219e-2)
    q4, q5, q6 = f(-3.88396438e-3), f(3.83197126e-4), f(-1.72853470e-5)
    p0, p1, p2 = f(1.28379166e-1), f(-3.76125336e-1), f(1.12819925e-1)
    p3, p4, p5 = f(-2.67681349e-2), f(4.99119423e-3), f(-5.96761703e-4)

    def formula(x: Any) -> Any:
        t = abs(x)
        s = x * x
        far = one - exp(((((((q6 * t + q5) * t + q4) * t + q3) * t + q2) * t + q1) * t + q0) * t - t)
        near = (((((p5 * s + p4) * s + p3) * s + p2) * s + p1) * s + p0) * x + x
        return (-far if x < zero else far) if t > border else near

    return formula


@inlined()
def tanh(real: Any) -> Function:
    """The hyperbolic tangent to 2 ulp: near 0 a rational function, elsewhere 1 - 2/(e²ˣ + 1), without cancellation.

    Moshier, Cephes (1989), tanhf and tanh.
    """
    if real is np.float32:
        return _tanh(real, 0.625, _TANH32, None)
    return _tanh(real, 0.625, _TANH64, _TANH64_BELOW)


_TANH32 = (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)
_TANH64 = (-9.64399179425052238628e-1, -9.92877231001918586564e1, -1.61468768441708447952e3)
_TANH64_BELOW = (1.12811678491632931402e2, 2.23548839060100448583e3, 4.84406305325125486048e3)


def _tanh(real: Any, limit: float, above: tuple[float, ...], below: tuple[float, ...] | None) -> Function:
    f = real
    one, two, zero, border = f(1), f(2), f(0), f(limit)
    if below is None:
        c0, c1, c2, c3, c4 = (f(c) for c in above)

        def formula(x: Any) -> Any:
            t = abs(x)
            s = x * x
            near = ((((c0 * s + c1) * s + c2) * s + c3) * s + c4) * s * x + x
            far = one - two / (exp(t + t) + one)
            return (-far if x < zero else far) if t > border else near if s > zero else x  # keeps -0.0

        return formula
    p0, p1, p2 = (f(c) for c in above)
    q0, q1, q2 = (f(c) for c in below)

    def formula64(x: Any) -> Any:
        t = abs(x)
        s = x * x
        near = x + x * s * (((p0 * s + p1) * s + p2) / (((s + q0) * s + q1) * s + q2))
        far = one - two / (exp(t + t) + one)
        return (-far if x < zero else far) if t > border else near if s > zero else x

    return formula64


@inlined()
def atan(real: Any) -> Function:
    """The arctangent to 2 ulp, with range reduction: π/2 - atan 1/|x| for large, π/4 + atan((|x|-1)/(|x|+1)) for medium
    |x|.

    Moshier, Cephes (1989), atanf and atan.
    """
    f, single = real, real is np.float32
    one, zero = f(1), f(0)
    border, far = f(math.sqrt(2) - 1 if single else 0.66), f(math.sqrt(2) + 1)
    half, quarter = f(math.pi / 2), f(math.pi / 4)
    # the rounding errors of the two constants
    half_more, quarter_more = (f(-4.371139000186243e-8), f(-2.1855695000931214e-8)) if single else _ATAN64_MORE
    series = _atan_series(real)

    def formula(x: Any) -> Any:
        t = abs(x)
        beyond, between = t > far, t > border
        z = -one / t if beyond else (t - one) / (t + one) if between else t
        s = z * z
        y = z * s * series(s)
        y = y + half_more if beyond else y + quarter_more if between else y
        y = z + y
        y = half + y if beyond else quarter + y if between else y
        return -y if x < zero else y if x > zero else x  # 0, -0.0 and nan are returned

    return formula


_ATAN64_MORE = (np.float64(6.123233995736765886130e-17), np.float64(3.061616997868382943065e-17))
_ATAN32 = (8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1)
_ATAN64 = (-8.750608600031904122785e-1, -1.615753718733365076637e1, -7.500855792314704667340e1)
_ATAN64_LAST = (-1.228866684490136173410e2, -6.485021904942025371773e1)
_ATAN64_BELOW = (2.485846490142306297962e1, 1.650270098316988542046e2, 4.328810604912902668951e2)
_ATAN64_BELOW_LAST = (4.853903996359136964868e2, 1.945506571482613964425e2)


def _atan_series(real: Any) -> Function:
    """Return the function of z² that computes (atan z - z)/z³."""
    f = real
    if real is np.float32:
        c0, c1, c2, c3 = (f(c) for c in _ATAN32)
        return lambda s: ((c0 * s + c1) * s + c2) * s + c3
    p0, p1, p2, p3, p4 = (f(c) for c in (*_ATAN64, *_ATAN64_LAST))
    q0, q1, q2, q3, q4 = (f(c) for c in (*_ATAN64_BELOW, *_ATAN64_BELOW_LAST))

    def quotient(s: Any) -> Any:
        return ((((p0 * s + p1) * s + p2) * s + p3) * s + p4) / (((((s + q0) * s + q1) * s + q2) * s + q3) * s + q4)

    return quotient


RUN = 1024
"""The largest number of terms for `add`: it keeps running sums, which lose digits when they are longer. The sums of
runs are added in float64 by an outer loop."""


@inlined(fastmath={"reassoc", "nsz"})
def add(real: Any) -> Function:
    """total + term, for sums in any order, which lets the compiler vectorize them."""
    return lambda total, term: total + term


@inlined()
def peak(real: Any) -> Function:
    """The maximum of the first n numbers, n > 0, of row i of a matrix; any number if there is a nan.

    Compared as integers with the same order, since a float maximum that respects nan is not a vector instruction.
    """
    ordered, unordered, least = _order(real)

    def formula(x: Any, i: int, n: int) -> Any:
        best = least
        for j in range(n):
            b = ordered(x[i, j])
            best = b if b > best else best
        return unordered(best)

    return formula


# The namespace --------------------------------------------------------------------------------------------------------


@cache
def namespace() -> dict[str, Any]:
    """Return the names that the source of a kernel may refer to."""
    from ...native.intrinsics import int64s

    names: dict[str, Any] = {
        "int64s": int64s,
        "float32": np.float32,
        "float64": np.float64,
        "int32": np.int32,
        "int64": np.int64,
        "uint8": np.uint8,
        "uint64": np.uint64,
        "mix": _mix,
        "uniform_integer": uniform_integer(np.uint64, _mix),
        "exp": exp,
        "erf": erf,
        "tanh": tanh,
        "add": add,
        "power": _power,
        "log": log,
        "log1p": log1p,
        "log2": log2,
        "log10": np.log10,
        "exp2": exp2,
        "atan": atan,
        "sqrt": math.sqrt,
        "sin": np.sin,
        "cos": np.cos,
        "floor": np.floor,
        "rint": np.rint,
    }
    for real in (np.float32, np.float64):
        ordered, unordered, least = _order(real)
        names[f"least_{real.__name__}"] = least
        names[f"nan_{real.__name__}"] = real(np.nan)
        formulas = {"ordered": ordered, "unordered": unordered, **scalar_formulas(real, exp, erf, math.fmod, np.floor)}
        names.update({f"{name}_{real.__name__}": formula for name, formula in formulas.items()})
    return names


_mix = splitmix64(np.uint64)


def _power(x: Any, c: Any) -> Any:
    return x**c


def _order(real: Any) -> tuple[Any, Any, Any]:
    """Return functions that map floats to integers of the same order and back, and the least such integer. A float
    maximum that respects nan is not a vector instruction."""
    integer = np.int32 if real is np.float32 else np.int64
    info = np.iinfo(integer)
    sign, rest = integer(info.bits - 1), integer(info.max)

    def ordered(x: Any) -> Any:
        b = real(x).view(integer)
        return integer(b ^ integer(integer(b >> sign) & rest))

    def unordered(b: Any) -> Any:
        return integer(b ^ integer(integer(b >> sign) & rest)).view(real)

    return ordered, unordered, integer(info.min)
