"""`Rates`: how fast a device computes, moves bytes and launches kernels, measured or published."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, final

from ..config import toml_document
from ..ops.errors import UsageError, nearest
from ..options import Options

MEASURED, PUBLISHED, GIVEN = "measured", "published", "given"
ANY = "any"
"""The name of the rate for ops in generated loops without their own rate."""


@dataclass(frozen=True)
class KernelPoint:
    """A kernel measured with its operands in the caches: the elements of its operands and results, its FLOPs, the bytes
    that it moves, and its seconds."""

    sizes: tuple[int, ...]
    flops: int
    nbytes: int
    seconds: float


@final
@dataclass(frozen=True)
class Rates:
    """The numbers on which predictions for a device are based.

    name             of the device
    origin           `measured`, `published` or `given` (in a file)
    source           the origin of the numbers, a sentence
    peak             FLOPs per second of all threads, the maximum of any kernel
    bandwidths       (working set in bytes, bytes per second) of all threads, in increasing order of working set
    one_thread       the same for one thread
    loops            FLOPs per second of one thread, by op, within a generated loop
    kernels          the measured kernels, by op
    threads          the number of threads that share a parallel loop
    call             overhead of each kernel of a step, in seconds
    looped_call      the same in the body of a loop
    parallel_call    additional overhead if threads share a kernel
    step             overhead of a step besides its kernels, in seconds
    per_parameter    additional overhead for each parameter that is updated
    watts            electrical power under load; None if unknown
    memory           bytes; None if unknown
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
        """Return the bytes per second for memory that is touched again after `working_set` bytes.

        It is interpolated in logarithms between measurements.
        """
        points = self.bandwidths if parallel or not self.one_thread else self.one_thread
        return _interpolate(points, working_set)

    def loop_rate(self, op: str) -> float:
        """Return the FLOPs per second of one thread for an op within a generated loop."""
        return self.loops.get(op) or self.loops.get(ANY) or self.peak / self.threads

    def as_data(self) -> dict[str, Any]:
        """Return plain data, for JSON."""
        return asdict(self)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Rates:
        """Return the rates from the result of `as_data`.

        Raises:
            UsageError: `data` is anything else.
        """
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
            raise UsageError(f"Rates.from_data: argument data: expected the result of as_data: {error}") from error


def hot_seconds(
    points: Sequence[KernelPoint], sizes: Sequence[int], flops: int, nbytes: int, contraction: bool
) -> float:
    """Return the seconds of a kernel whose operands are in the caches, from measured kernels of its op.

    The rate of a contraction is that of contractions with similar shapes. Any other kernel is interpolated by its
    bytes, in logarithms, between the next smaller and the next larger one. A kernel smaller than all costs as much as
    the smallest.
    """
    if contraction and flops:
        return flops / _rate_of_shape(points, sizes, flops)
    curve = sorted((max(1, p.nbytes), p.seconds) for p in points)
    if nbytes <= curve[0][0]:
        return curve[0][1]
    if nbytes >= curve[-1][0]:
        return curve[-1][1] * nbytes / curve[-1][0]
    return _interpolate(curve, nbytes)


def _rate_of_shape(points: Sequence[KernelPoint], sizes: Sequence[int], flops: int) -> float:
    """Return FLOPs per second: the mean in logarithms of the measured rates, with more weight on similar shapes."""
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
    """Return the largest operands, the result, and the FLOPs, as powers of two; biases are left out."""
    *operands, result = sizes
    most = sorted(sorted(operands)[-2:])
    return tuple([math.log2(max(1, n)) for n in (*most, result, flops)])


def _interpolate(points: Sequence[tuple[int, float]], at: float) -> float:
    """Interpolate in logarithms between neighbouring points; beyond them, the first or last value."""
    if at <= points[0][0]:
        return points[0][1]
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        if at <= x1:
            if x0 == x1:
                return y1
            share = math.log(at / x0) / math.log(x1 / x0)
            return float(y0 * (y1 / y0) ** share)
    return points[-1][1]


# Devices with published peak rates, to predict times on a device without measurements ---------------------------------

_LAUNCHES = "https://developer.nvidia.com/blog/cuda-graphs/"


@dataclass(frozen=True)
class DeviceSheet:
    """A device with its published figures.

    flops        dense FLOPs per second, by dtype or precision of products: float64, float32, tf32, bf16
    bandwidth    bytes per second of its memory
    memory       bytes
    watts        its maximum electrical power
    call         seconds between one kernel of a step and the next, eager; graph: in a captured graph
    source       where these numbers are published
    """

    name: str
    flops: Mapping[str, float]
    bandwidth: float
    memory: int
    watts: float
    call: float
    graph: float
    source: str

    def rates(self, options: Options, origin: str = PUBLISHED) -> Rates:
        """Return the device's rates for the interpreter and dtype of `options`.

        Raises:
            UsageError: the device has no peak for this dtype.
        """
        kind = options.dtype if options.matmul_precision == "fp32" else options.matmul_precision
        if kind not in self.flops:
            raise UsageError(
                f"device {self.name}: the peak for {kind} is unknown; known are those for {', '.join(self.flops)}"
            )
        call = self.graph if options.backend == "compiled" else self.call
        bandwidths = ((1, self.bandwidth),)
        peak = self.flops[kind]
        return Rates(self.name, origin, self.source, peak, bandwidths, call, watts=self.watts, memory=self.memory)


# Dense rates: half of the rates with sparsity that NVIDIA lists for tensor cores. A launch: 3.8 µs for a kernel of 2.9
# µs where launches overlap, 3.4 µs for one in a graph (_LAUNCHES, on a V100).
_HOPPER = {"float64": 34e12, "float32": 67e12, "tf32": 494.7e12, "bf16": 989.4e12}
PUBLISHED_DEVICES: Mapping[str, DeviceSheet] = {
    "a100": DeviceSheet(
        "NVIDIA A100 80GB SXM",
        {"float64": 9.7e12, "float32": 19.5e12, "tf32": 156e12, "bf16": 312e12},
        *(2039e9, 80 * 10**9, 400.0, 0.9e-6, 0.5e-6),
        source="https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/"
        f"nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf; launches: {_LAUNCHES}",
    ),
    "h100": DeviceSheet(
        "NVIDIA H100 SXM",
        _HOPPER,
        *(3.35e12, 80 * 10**9, 700.0, 0.9e-6, 0.5e-6),
        source=f"https://www.nvidia.com/en-us/data-center/h100/; launches: {_LAUNCHES}",
    ),
    "h200": DeviceSheet(
        "NVIDIA H200 SXM",
        _HOPPER,
        *(4.8e12, 141 * 10**9, 700.0, 0.9e-6, 0.5e-6),
        source=f"https://www.nvidia.com/en-us/data-center/h200/; launches: {_LAUNCHES}",
    ),
}

_NUMBERS = ("bandwidth", "memory", "watts", "call", "graph")


def find_device(word: str) -> tuple[DeviceSheet, str]:
    """Return the device of a name or of a TOML file, and the origin of its numbers.

    Raises:
        UsageError: the name is unknown, or the file does not describe a device.
    """
    if word in PUBLISHED_DEVICES:
        return PUBLISHED_DEVICES[word], PUBLISHED
    if word.endswith(".toml"):
        return _read(word), GIVEN
    known = ["cpu", *PUBLISHED_DEVICES]
    raise UsageError(
        f"unknown device {word!r}{nearest(word, known)}; known are {', '.join(known)}. Describe another device in a "
        "TOML file: --on FILE.toml."
    )


def _read(path: str) -> DeviceSheet:
    document, _ = toml_document(path, "the device")
    names = [f.name for f in fields(DeviceSheet)]
    for name in document:
        if name not in names:
            raise UsageError(f"{path}: unknown key {name!r}{nearest(name, names)}; expected {', '.join(names)}")
    missing = [name for name in names if name not in document]
    if missing:
        raise UsageError(f"{path}: expected the keys {', '.join(names)}; missing: {', '.join(missing)}")
    peaks = document["flops"]
    if not isinstance(peaks, dict) or not peaks or not all(map(_is_positive, peaks.values())):
        raise UsageError(f"{path}: flops: expected a table of FLOPs per second (float32 = 67e12), got {peaks!r}")
    for name in _NUMBERS:
        if not _is_positive(document[name]):
            raise UsageError(f"{path}: {name}: expected a number above 0, got {document[name]!r}")
    for name in ("name", "source"):
        if not isinstance(document[name], str):
            raise UsageError(f"{path}: {name}: expected a string, got {document[name]!r}")
    return DeviceSheet(**{**document, "memory": int(document["memory"])})


def _is_positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < float("inf")
