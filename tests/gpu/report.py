"""What a GPU does with Opstage's kernels, as a page: `python -m tests.gpu.report` writes it into benchmarks/results/.

Versions; what a launch costs the host; the rate of products and of copies.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from opstage.cli.info import cuda_lines
from opstage.compiler.gpu.probe import find_device
from opstage.interpreters.eager_cuda.kernels.layout import fill_kernel
from opstage.ops.types import FLOAT32, TensorType

from .here import REHEARSAL, missing, stand_in

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
REPEATS = 7 if not REHEARSAL else 1
CALLS = 2000 if not REHEARSAL else 2


def seconds(work: Callable[[], Any], count: int) -> tuple[float, float]:
    """Of one of `count` calls, in the median of several runs: until they return, and until the device is done."""
    device = find_device()
    asked, done = [], []
    for _ in range(REPEATS):
        device.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            work()
        asked.append(time.perf_counter() - start)
        device.synchronize()
        done.append(time.perf_counter() - start)
    return median(asked) / count, median(done) / count


def launches() -> list[str]:
    device: Any = find_device()
    lines = ["| what | host, µs | until done, µs |", "|---|---:|---:|"]
    for count in (1, 1 << (6 if REHEARSAL else 20)):
        out = device.empty(TensorType((count,), FLOAT32))

        def fill(out: Any = out) -> None:
            device.each(fill_kernel, out.size, out, np.float32(1))

        fill()
        host, whole = seconds(fill, CALLS)
        lines.append(f"| fill {count:,} elements | {host * 1e6:.2f} | {whole * 1e6:.2f} |")
    a = device.upload(np.ones((16, 16), np.float32))
    c = device.empty(TensorType((16, 16), FLOAT32))
    device.context = device.context._replace(precision="fp32")
    device.product(c, a, a)
    host, whole = seconds(lambda: device.product(c, a, a), CALLS)
    lines.append(f"| product 16 x 16 | {host * 1e6:.2f} | {whole * 1e6:.2f} |")
    host, whole = seconds(lambda: device.empty(TensorType((1000,), FLOAT32)), CALLS)
    lines.append(f"| take memory and give it back | {host * 1e6:.2f} | {whole * 1e6:.2f} |")
    return lines


def products() -> list[str]:
    device: Any = find_device()
    lines = ["| n | fp32, TFLOP/s | tf32, TFLOP/s | bf16, TFLOP/s |", "|---:|---:|---:|---:|"]
    rng = np.random.default_rng(0)
    for n in (256, 1024, 4096, 8192) if not REHEARSAL else (16,):
        a = device.upload(rng.standard_normal((n, n)).astype(np.float32))
        c = device.empty(TensorType((n, n), FLOAT32))
        rates = []
        for precision in ("fp32", "tf32", "bf16"):
            device.context = device.context._replace(precision=precision)
            device.product(c, a, a)
            _, whole = seconds(lambda a=a, c=c: device.product(c, a, a), 3 if n >= 512 or REHEARSAL else 2048 // n)  # type: ignore[misc]
            rates.append(f"{2 * n**3 / whole / 1e12:.1f}")
        lines.append(f"| {n:,} | {' | '.join(rates)} |")
    return lines


def copies() -> list[str]:
    device = find_device()
    lines = ["| bytes | to the device, GB/s | back, GB/s |", "|---:|---:|---:|"]
    for nbytes in (1 << 12, 1 << 20, 1 << (28 if not REHEARSAL else 23)):
        array = np.ones(nbytes // 4, np.float32)
        there = device.upload(array)
        count = 100 if nbytes <= 1 << 20 else 3
        _, up = seconds(lambda array=array: device.upload(array), count)  # type: ignore[misc]
        _, down = seconds(lambda there=there: device.download(there), count)  # type: ignore[misc]
        lines.append(f"| {nbytes:,} | {nbytes / up / 1e9:.2f} | {nbytes / down / 1e9:.2f} |")
    return lines


def page() -> str:
    device: Any = find_device()
    parts = [
        f"# Opstage on {device.name}\n",
        "```\n" + "\n".join(cuda_lines()) + "\n```\n",
        "## Launches\n\n" + "\n".join(launches()) + "\n",
        "## Products of square matrices, float32 in memory\n\n" + "\n".join(products()) + "\n",
        "## Copies\n\n" + "\n".join(copies()) + "\n",
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    if missing():
        sys.exit(f"no report: {missing()}")
    with stand_in():
        text = page()
    print(text)
    if not REHEARSAL:
        RESULTS.mkdir(parents=True, exist_ok=True)
        path = RESULTS / f"{str(getattr(find_device(), 'name', 'gpu')).lower().replace(' ', '-')}.md"
        path.write_text(text)
        print(f"written to {path}")
