"""Functions of one number that loops call, in forms that a compiler turns into vector instructions.

The C library's exp is a call per element; these are arithmetic alone, and 5 to 8 times as fast.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...native.inlined import Function, inlined

_INVERSE_FACTORIALS = tuple(1 / math.factorial(n) for n in range(14))


@inlined()
def exp(real: Any) -> Function:
    """eˣ to 1 ulp: 2ᵏ·eʳ with k the integer nearest x/log 2 and a polynomial in the remainder r, |r| <= ½ log 2.

    Adding 1.5·2^(bits of the fraction) rounds to an integer and leaves it in the low bits. The product with log 2, in
    two parts, is exact in its first part (Cody & Waite 1980). 2ᵏ is 2·2ᵏ⁻¹, so that it reaches the greatest numbers.
    Results below the double of the least normal number are 0: where results are subnormal, processors take many times
    as long.
    """
    return _exp32() if real is np.float32 else _exp64()


def _exp32() -> Function:
    f = np.float32
    lowest, highest, per_log2, magic = f(-125 * math.log(2)), f(88.73), f(1 / math.log(2)), f(1.5 * 2**23)
    log2_high, log2_low = f(0.693359375), f(math.log(2) - 0.693359375)
    # Minimax on |r| <= ½ log 2: Moshier, Cephes (1989), expf.
    c2, c3, c4 = f(5.0000001201e-1), f(1.6666665459e-1), f(4.1665795894e-2)
    c5, c6, c7 = f(8.3334519073e-3), f(1.3981999507e-3), f(1.9875691500e-4)
    zero, one, two, offset, fraction = f(0), f(1), f(2), np.int32(0x4B400000 - 126), np.int32(23)

    def formula(x: Any) -> Any:
        z = lowest if x < lowest else x
        z = highest if z > highest else z
        shifted = z * per_log2 + magic
        k = shifted - magic
        r = z - k * log2_high - k * log2_low
        p = (((((c7 * r + c6) * r + c5) * r + c4) * r + c3) * r + c2) * (r * r) + r + one
        biased = np.int32(np.float32(shifted).view(np.int32) - offset)
        return zero if x < lowest else p * np.int32(biased << fraction).view(np.float32) * two

    return formula


def _exp64() -> Function:
    f = np.float64
    lowest, highest, per_log2, magic = f(-1021 * math.log(2)), f(709.79), f(1 / math.log(2)), f(1.5 * 2**52)
    log2_high, log2_low = f(6.93147180369123816490e-01), f(1.90821492927058770002e-10)
    _, one, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13 = (f(c) for c in _INVERSE_FACTORIALS)
    zero, two, offset, fraction = f(0), f(2), np.int64(0x4338000000000000 - 1022), np.int64(52)

    def formula(x: Any) -> Any:
        z = lowest if x < lowest else x
        z = highest if z > highest else z
        shifted = z * per_log2 + magic
        k = shifted - magic
        r = z - k * log2_high - k * log2_low
        p = ((((((c13 * r + c12) * r + c11) * r + c10) * r + c9) * r + c8) * r + c7) * r + c6
        p = ((((p * r + c5) * r + c4) * r + c3) * r + c2) * (r * r) + r + one
        biased = np.int64(np.float64(shifted).view(np.int64) - offset)
        return zero if x < lowest else p * np.int64(biased << fraction).view(np.float64) * two

    return formula


@inlined()
def log(real: Any) -> Function:
    """log x to 2 ulp: e·log 2 + log m with x = m·2ᵉ and ½√2 <= m < √2. Moshier, Cephes (1989), logf and log.

    log 2 is in two parts, so that e times the first one is exact. A subnormal x is multiplied by a power of 2 before.
    """
    if real is np.float32:
        return _log(real, np.int32, 23, 127, 2.0**25, 25)
    return _log(real, np.int64, 52, 1023, 2.0**54, 54)


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


def _log(real: Any, integer: Any, bits: int, bias: int, scale: float, doublings: int) -> Function:
    f = real
    shift, low = integer(bits), integer((1 << bits) - 1)
    half_bits = integer((bias - 1) << bits)  # those of ½
    least, enlarged, doubled = f(np.finfo(real).tiny), f(scale), f(doublings)
    zero, one, half, root = f(0), f(1), f(0.5), f(math.sqrt(0.5))
    log2_high, log2_low = f(0.693359375), f(-2.121944400546905827679e-4)
    infinite, none, offset = f(np.inf), f(np.nan), f(bias - 1)

    def formula(x: Any) -> Any:
        small = x < least
        z = x * enlarged if small else x
        b = real(z).view(integer)
        e = real(integer(b >> shift)) - offset
        e = e - doubled if small else e
        m = integer(integer(b & low) | half_bits).view(real)  # from ½ on, below 1
        lesser = m < root
        e = e - one if lesser else e
        r = (m + m if lesser else m) - one
        s = r * r
        y = r * s * log_series(r) + e * log2_low - half * s
        y = r + y + e * log2_high
        y = y if x < infinite else x  # infinity and nan are what they are
        return y if x > zero else -infinite if x == zero else none if x < zero else x

    return formula


@inlined()
def log1p(real: Any) -> Function:
    """log(1 + x) to 3 ulp: that of u = 1 + x, rounded, and what was rounded off (Kahan). For x >= 0, or nan."""
    one, most = real(1), real(np.finfo(real).max)

    def formula(x: Any) -> Any:
        u = one + x
        return log(u) + (x - (u - one)) / u if u <= most else u

    return formula


@inlined()
def erf(real: Any) -> Function:
    """The error function: in float32 to 2 ulp, in float64 the C library's.

    x·P(x²) up to 0.9277, beyond it 1 - e^Q(|x|), both minimax.
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
    """The hyperbolic tangent to 2 ulp: near 0 a rational function, beyond it 1 - 2/(e²ˣ + 1), which loses nothing.

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
            return (-far if x < zero else far) if t > border else near if s > zero else x  # of -0.0 it is -0.0

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


RUN = 1024
"""Terms that `add` should add up at most: what it adds at once are running sums, so that longer ones lose digits. The
sums of runs are added in float64, in a loop around that of the terms."""


@inlined(fastmath={"reassoc", "nsz"})
def add(real: Any) -> Function:
    """total + term, for a sum whose terms may be added in any order: only so can several be added at once."""
    return lambda total, term: total + term


@inlined()
def peak(real: Any) -> Function:
    """The greatest of the first n numbers, n > 0, of row i of a matrix; any number if there is a nan among them.

    Compared as integers of the same order, because a maximum of floats that minds nan is not a vector instruction.
    """
    if real is np.float32:
        sign, bits, least = np.int32(31), np.int32(0x7FFFFFFF), np.int32(-0x80000000)

        def formula(x: Any, i: int, n: int) -> Any:
            best = least
            for j in range(n):
                b = np.float32(x[i, j]).view(np.int32)
                b = np.int32(b ^ np.int32(np.int32(b >> sign) & bits))
                best = b if b > best else best
            return np.int32(best ^ np.int32(np.int32(best >> sign) & bits)).view(np.float32)

        return formula
    sign64, bits64, least64 = np.int64(63), np.int64(0x7FFFFFFFFFFFFFFF), np.int64(-0x8000000000000000)

    def formula64(x: Any, i: int, n: int) -> Any:
        best = least64
        for j in range(n):
            b = np.float64(x[i, j]).view(np.int64)
            b = b ^ ((b >> sign64) & bits64)
            best = b if b > best else best
        return np.int64(best ^ ((best >> sign64) & bits64)).view(np.float64)

    return formula64
