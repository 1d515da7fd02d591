"""`Rates`: how fast a device computes, moves bytes and begins a kernel, measured or published."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, final

from ..ops.errors import UsageError

MEASURED, PUBLISHED, GIVEN = "measured", "published", "given"
ANY = "any"
"""The name of the rate of ops in generated loops that have none of their own."""


@dataclass(frozen=True)
class KernelPoint:
    """A kernel that was measured with its operands in the caches: the elements of its operands and results, its
    arithmetic, the bytes that it moves, and what it took."""

    sizes: tuple[int, ...]
    flops: int
    nbytes: int
    seconds: float


@final
@dataclass(frozen=True)
class Rates:
    """The numbers that predictions for a device are made from.

    name             of the device
    origin           `measured`, `published` or `given` (in a file)
    source           where the numbers are from, a sentence
    peak             FLOPs a second of all its threads, the most that any kernel reaches
    bandwidths       (working set in bytes, bytes a second) of all threads, from the smallest working set on
    one_thread       the same of one thread
    loops            FLOPs a second of one thread, by op, within a generated loop
    kernels          by op, kernels that were measured
    threads          how many share a loop that is divided
    call             seconds that each kernel of a step takes beside its work
    looped_call      the same in the body of a loop
    parallel_call    seconds more where threads share a kernel
    step             seconds that a step takes beside its kernels
    per_parameter    seconds more for each parameter that the update moves
    watts            electrical power while it computes; None where nobody says
    memory           bytes; None where nobody says
    """

    name: str
    origin: str
    source: str
    peak: float
    bandwidths: tuple[tuple[int, float], ...]
    call: float
    one_thread: tuple[tuple[int, float], ...] = ()
    loops: Mapping[str, float] = field(default_factory=dict)
    kernels: Mapping[str, tuple[KernelPoint, ...]] = field(default_factory=dict)
    threads: int = 1
    looped_call: float = 0.0
    parallel_call: float = 0.0
    per_parameter: float = 0.0
    step: float = 0.0
    watts: float | None = None
    memory: int | None = None

    def bandwidth(self, working_set: int, *, parallel: bool = True) -> float:
        """Bytes a second where memory is touched again after so many bytes, between what was measured on a line in
        logarithms."""
        points = self.bandwidths if parallel or not self.one_thread else self.one_thread
        return _between(points, working_set)

    def loop_rate(self, op: str) -> float:
        """FLOPs a second of one thread for an op within a generated loop."""
        return self.loops.get(op) or self.loops.get(ANY) or self.peak / self.threads

    def as_data(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Rates:
        """The rates of which `as_data` gave this. Raises UsageError for anything else."""
        try:
            known = dict(data)
            for name in ("bandwidths", "one_thread"):
                known[name] = tuple((int(n), float(rate)) for n, rate in known[name])
            known["kernels"] = {
                op: tuple(KernelPoint(tuple(p["sizes"]), p["flops"], p["nbytes"], p["seconds"]) for p in points)
                for op, points in known["kernels"].items()
            }
            return cls(**known)
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"these are no rates of a device: {error}") from error


def fastest_rates(found: Sequence[Rates]) -> Rates:
    """The best figures of several calibrations of one device: what another process took from one, it left to others."""
    first = found[0]
    points: dict[str, dict[tuple[Any, ...], KernelPoint]] = {}
    for rates in found:
        for op, each in rates.kernels.items():
            for point in each:
                known = points.setdefault(op, {})
                key = point.sizes, point.flops, point.nbytes
                known[key] = min(point, known.get(key, point), key=lambda p: p.seconds)
    beside = min(found, key=lambda rates: rates.step + _USUAL_CALLS * rates.call + _USUAL_UPDATES * rates.per_parameter)
    return replace(
        first,
        peak=max(rates.peak for rates in found),
        bandwidths=_best_curve([rates.bandwidths for rates in found]),
        one_thread=_best_curve([rates.one_thread for rates in found]),
        loops={op: max(rates.loops[op] for rates in found) for op in first.loops},
        kernels={op: tuple(each.values()) for op, each in points.items()},
        call=beside.call,
        per_parameter=beside.per_parameter,
        step=beside.step,
        looped_call=min(rates.looped_call for rates in found),
        parallel_call=min(rates.parallel_call for rates in found),
    )


_USUAL_CALLS, _USUAL_UPDATES = 50, 8  # of a small step, by which calibrations are compared


def _best_curve(curves: Sequence[tuple[tuple[int, float], ...]]) -> tuple[tuple[int, float], ...]:
    return tuple((points[0][0], max(rate for _, rate in points)) for points in zip(*curves))


def hot_seconds(
    points: Sequence[KernelPoint], sizes: Sequence[int], flops: int, nbytes: int, contraction: bool
) -> float:
    """The seconds of a kernel whose operands are in the caches, from kernels of its op that were measured.

    A contraction has the rate of those that are near in shape; any other kernel lies, by its bytes, on a line in
    logarithms between the next smaller and the next larger one. One smaller than all takes as long as the smallest.
    """
    if contraction and flops:
        return flops / _rate_of_shape(points, sizes, flops)
    curve = sorted((max(1, p.nbytes), p.seconds) for p in points)
    if nbytes <= curve[0][0]:
        return curve[0][1]
    if nbytes >= curve[-1][0]:
        return curve[-1][1] * nbytes / curve[-1][0]
    return _between(curve, nbytes)


def _rate_of_shape(points: Sequence[KernelPoint], sizes: Sequence[int], flops: int) -> float:
    """FLOPs a second, the mean in logarithms of what was measured, nearer shapes counting more."""
    here = _shape(sizes, flops)
    total = weighted = 0.0
    for point in points:
        there = _shape(point.sizes, point.flops)
        apart = sum((a - b) ** 2 for a, b in zip(here, there))
        rate = math.log(point.flops / point.seconds)
        if apart < 1e-9:
            return math.exp(rate)
        total += apart**-2
        weighted += rate * apart**-2
    return math.exp(weighted / total)


def _shape(sizes: Sequence[int], flops: int) -> tuple[float, ...]:
    """The largest operands and the result, and the arithmetic, in powers of two; biases are left out."""
    *operands, result = sizes
    most = sorted(sorted(operands)[-2:])
    return tuple([math.log2(max(1, n)) for n in (*most, result, flops)])


def _between(points: Sequence[tuple[int, float]], at: float) -> float:
    """On a line in logarithms between the points around; beyond them the first or the last."""
    if at <= points[0][0]:
        return points[0][1]
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        if at <= x1:
            if x0 == x1:
                return y1
            share = math.log(at / x0) / math.log(x1 / x0)
            return float(y0 * (y1 / y0) ** share)
    return points[-1][1]
