"""Devices with published peak rates, to predict times on a device that was not measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from ..config.toml import toml_document
from ..ops.errors import UsageError, nearest
from ..options import Options
from .rates import GIVEN, PUBLISHED, Rates

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
        """The device's rates for the interpreter and dtype of `options`. Raises UsageError for a dtype without a
        peak."""
        kind = options.dtype if options.matmul_precision == "fp32" else options.matmul_precision
        if kind not in self.flops:
            raise UsageError(f"device {self.name}: no peak is known for {kind}, only for {', '.join(self.flops)}")
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


def device_called(word: str) -> tuple[DeviceSheet, str]:
    """The device of a name or of a TOML file, and the origin of its numbers. Raises UsageError."""
    if word in PUBLISHED_DEVICES:
        return PUBLISHED_DEVICES[word], PUBLISHED
    if word.endswith(".toml"):
        return _read(word), GIVEN
    known = ["cpu", *PUBLISHED_DEVICES]
    raise UsageError(
        f"unknown device {word!r}{nearest(word, known)}; known are {', '.join(known)}, and a device of your own is "
        "described by a TOML file: --on FILE.toml"
    )


def _read(path: str) -> DeviceSheet:
    document, _ = toml_document(path, "the device")
    names = [f.name for f in fields(DeviceSheet)]
    for name in document:
        if name not in names:
            raise UsageError(f"{path}: unknown key {name!r}{nearest(name, names)}; expected {', '.join(names)}")
    missing = [name for name in names if name not in document]
    if missing:
        raise UsageError(f"{path}: {', '.join(missing)} missing; a device has {', '.join(names)}")
    peaks = document["flops"]
    if not isinstance(peaks, dict) or not peaks or not all(map(_is_positive, peaks.values())):
        raise UsageError(f"{path}: flops is not a table of FLOPs a second, such as float32 = 67e12")
    for name in _NUMBERS:
        if not _is_positive(document[name]):
            raise UsageError(f"{path}: {name} = {document[name]!r} is not a number above 0")
    for name in ("name", "source"):
        if not isinstance(document[name], str):
            raise UsageError(f"{path}: {name} = {document[name]!r} is not a text")
    return DeviceSheet(**{**document, "memory": int(document["memory"])})


def _is_positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < float("inf")
