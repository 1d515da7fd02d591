"""Measures the rates of this machine in a second or two, and stores them in the kernel cache of this environment."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..compiler.native.kernel_cache import cache_folder, processor
from ..compiler.native.thread_pool import workers
from ..files import WriteError, write_file
from ..interpreters.graph.cpu.cost import works
from ..interpreters.graph.executor import CpuExecutor
from ..interpreters.graph.recorder import record
from ..ops.errors import UsageError
from ..ops.types import TensorType, as_dtype
from ..optim import adamw
from ..options import Options
from ..training.memory import StepMemory, step_memory
from ..training.trainer import scalar_trainer
from .probes import LOOPS, Probe, TimedStep, fastest, loop, probes, small_probes
from .rates import ANY, MEASURED, KernelPoint, Rates
from .roofline import CountedOp, count_op, lowered_op, step_kernels

_WORKING_SETS = (1 << 15, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26)
_LOOP = 8000
"""Elements of a vector in a loop of one thread."""
_SHARED = 1 << 14
"""Elements of a vector in a loop that the threads share."""
_REPEATED = 6
_ROUNDS = 6
_TURNS = 4
_LEAST = 0.05
"""The least fraction of a measured time that remains for its op after other measured times are subtracted."""

_PINNING = ("OPENBLAS_CORETYPE", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
VERSION = 7


def machine_rates(options: Options, *, remeasure: bool = False) -> Rates:
    """Return the rates of this machine for the interpreter and dtype of `options`: stored ones, or measured ones.

    They are measured if none are stored, or with `remeasure`, and then stored.

    Raises:
        UsageError: the interpreter is not supported.
    """
    require_measurable(options)
    place = _cache_file(options)
    if place is not None and not remeasure:
        with suppress(OSError, ValueError, UsageError):
            return Rates.from_data(json.loads(place.read_text()))
    rates = measure_rates(options)
    if place is not None:
        with suppress(OSError, WriteError):
            write_file(place, [json.dumps(rates.as_data()).encode()])
    return rates


def require_measurable(options: Options) -> None:
    """Raise UsageError unless kernels of these options can be measured on this machine's CPU."""
    if options.backend not in ("eager", "compiled") or options.device != "cpu":
        raise UsageError(
            f"calibration of backend {options.backend!r} on {options.device} is not supported, only of eager and "
            "compiled on the CPU. Predict a GPU's times from published peaks, as with --on h100."
        )
    if options.dtype == "exact":
        raise UsageError(
            "calibration of dtype 'exact' is not supported: the time of an operation on fractions depends on their "
            "numbers. Use float32."
        )


def _cache_file(options: Options) -> Path | None:
    """Return the file of the rates, whose name encodes everything they depend on; None without a cache."""
    folder = cache_folder()
    if folder is None:
        return None
    parts = [str(VERSION), options.backend, options.dtype, str(options.fast_kernels), str(workers()), platform.node()]
    parts += [f"{name}={os.environ.get(name)}" for name in _PINNING]
    return folder / f"rates-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:16]}.json"


def measure_rates(options: Options) -> Rates:
    """Measure the rates of this machine, which should be idle: each figure is the best of a few rounds."""
    require_measurable(options)
    threads, busy = workers(), _busy()
    bandwidths = tuple((n, _bandwidth(n, threads)) for n in _WORKING_SETS)
    one = tuple((n, _bandwidth(n, 1)) for n in _WORKING_SETS) if threads > 1 else bandwidths
    loops, sharing = _loops(options)
    found = _measured(options)
    return Rates(
        name=processor_name(),
        origin=MEASURED,
        source=f"measured on {time.strftime('%Y-%m-%d')} with {threads} threads, "
        f"backend {options.backend}, {options.dtype}{busy}",
        peak=max(point.flops / point.seconds for points in found.kernels.values() for point in points),
        bandwidths=bandwidths,
        one_thread=one,
        loops=loops,
        kernels=found.kernels,
        threads=threads,
        call=found.call,
        looped_call=_looped_call(options, found.call),
        parallel_call=sharing,
        step=found.step,
        per_parameter=found.per_parameter,
        memory=_memory(),
    )


def _busy() -> str:
    """Return a remark if the machine was busy, by its load in the last minute."""
    try:
        load, cores = os.getloadavg()[0], os.cpu_count() or 1
    except (AttributeError, OSError):
        return ""
    if load <= 1 + cores / 4:
        return ""
    return f", while it was busy (load {load:.1f} of {cores} cores), which makes predictions longer: repeat --calibrate"


def processor_name() -> str:
    """Return the name of the processor as reported by the system."""
    parts = processor()
    return parts[-2] if len(parts) > 3 and parts[-2] else " ".join(parts[:2])


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


# Bandwidth ------------------------------------------------------------------------------------------------------------


def _bandwidth(working_set: int, threads: int) -> float:
    """Return the bytes that threads read and write per second when each copies its part of a working set repeatedly."""
    each = working_set // (2 * threads)
    arrays = [(np.ones(each, np.uint8), np.ones(each, np.uint8)) for _ in range(threads)]
    turns = max(1, (1 << 22) // working_set)

    def copy(worker: int) -> None:
        source, target = arrays[worker]
        for _ in range(turns):
            np.copyto(target, source)

    if threads == 1:
        return 2 * each * turns / fastest(lambda: copy(0), 0.004)
    with ThreadPoolExecutor(threads) as pool:
        seconds = fastest(lambda: list(pool.map(copy, range(threads))), 0.004)
    return 2 * each * threads * turns / seconds


# Loops ----------------------------------------------------------------------------------------------------------------


def _loops(options: Options) -> tuple[dict[str, float], float]:
    """Return the FLOPs per second of one thread in generated loops, by op, and the seconds to distribute a loop over
    threads.

    Ops that cost more than an addition have their own rates, all others a common one.
    """
    vectors = [np.linspace(0.5, 1.5, _LOOP).astype(options.dtype) for _ in range(2)]
    many = [np.linspace(0.5, 1.5, _SHARED).astype(options.dtype) for _ in range(2)]

    def cheap(ops: Any, x: Any, y: Any) -> tuple[Any, ...]:
        for _ in range(4 * _REPEATED):
            x = ops.mul(ops.add(x, y), y)
        return (x,)

    def one(ops: Any, x: Any, y: Any) -> tuple[Any, ...]:
        return (ops.add(x, y),)

    nothing = _time_program(one, vectors, options)[0]
    seconds, flops = _time_program(cheap, vectors, options)
    any_rate = flops / max(seconds - nothing, _LEAST * seconds)
    shared, flops = _time_program(cheap, many, options)
    sharing = max(0.0, shared - nothing - flops / any_rate / workers()) if workers() > 1 else 0.0
    found = {ANY: any_rate}
    for name, op in LOOPS.items():

        def program(ops: Any, x: Any, y: Any, op: Callable[[Any, Any, Any], Any] = op) -> tuple[Any, ...]:
            total = y
            for i in range(_REPEATED):  # independent of each other
                total = ops.add(total, op(ops, ops.scale(x, c=1.0 + i / 64), y))
            return (total,)

        seconds, flops = _time_program(program, vectors, options)
        added = 2 * _REPEATED * _LOOP
        own = max(seconds - nothing - added / any_rate, _LEAST * seconds)
        found[name] = max(1, flops - added) / own
    return found, sharing


def _time_program(
    program: Callable[..., tuple[Any, ...]], vectors: Sequence[Any], options: Options
) -> tuple[float, int]:
    """Return the seconds of a compiled program with one loop, and its FLOPs."""
    dtype = as_dtype(options.dtype)
    types = [TensorType(x.shape, dtype) for x in vectors]
    executor = CpuExecutor(record(program, types, dtype, 0), options.replace(backend="compiled"))
    assert executor.plan is not None
    best = float("inf")
    for _ in range(60):
        executor.seconds = seconds = [0.0] * len(executor.plan.steps)
        executor.run(vectors)
        best = min(best, sum(seconds))
    return best, sum(int(work.cost.flops) for work in works(executor.plan))


# Kernels and overheads ------------------------------------------------------------------------------------------------


class _StepRates(NamedTuple):
    """The kernels of the probes, and the overhead in seconds of a kernel, a step and each updated parameter."""

    kernels: dict[str, tuple[KernelPoint, ...]]
    call: float
    step: float
    per_parameter: float


def _build_step(probe: Probe, options: Options) -> tuple[TimedStep, StepMemory]:
    params, batch = probe.build(options.dtype)
    optimizer = adamw(lr=1e-3)
    trainer = scalar_trainer(probe.loss, params, options=options.replace(validate=False))
    memory = step_memory(probe.loss, params, *batch, optimizer=optimizer, options=options)
    return TimedStep(trainer, optimizer, batch), memory


def _measured(options: Options) -> _StepRates:
    """Return the fastest kernels of single ops in the steps of the probes, and the overheads of a step."""
    step, slope, update = _overheads(options)
    extra = max(0.0, -slope)  # timing single kernels may cost more than launching them
    fastest_of: dict[tuple[str, tuple[int, ...], int, int], float] = {}
    for probe in probes():
        for op, nbytes, seconds in _timed(_build_step(probe, options)[0]):
            if op is not None:
                key = (op.name, op.sizes, op.flops, nbytes)
                own = max(seconds - extra, _LEAST * seconds)
                fastest_of[key] = min(fastest_of.get(key, float("inf")), own)
    points: dict[str, list[KernelPoint]] = {}
    for (name, sizes, flops, nbytes), seconds in fastest_of.items():
        points.setdefault(name, []).append(KernelPoint(sizes, flops, nbytes, seconds))
    return _StepRates({name: tuple(each) for name, each in points.items()}, max(0.0, slope), step, update)


def _overheads(options: Options) -> tuple[float, float, float]:
    """Return the overhead in seconds of a step, of each kernel and of each updated parameter, besides the kernels' own
    time.

    It is a least-squares fit to small steps; negative for a kernel if timing single kernels costs more than launching
    them.
    """
    made = [_build_step(probe, options) for probe in small_probes(options.backend)]
    for _ in range(_TURNS):  # interleaved, so that a brief disturbance affects only one measurement
        for step, _ in made:
            _timed(step)
            step.run(0.01)
    rows, seconds = [], []
    for step, memory in made:
        timed = _timed(step)
        rows.append((1.0, len(timed), len(memory.step.layout.trained_indices)))
        seconds.append(step.whole - sum(took for _, _, took in timed))
    terms = np.array(rows)
    fitted = np.linalg.lstsq(terms, seconds, rcond=None)[0]
    if fitted[2] < 0:
        fitted = [*np.linalg.lstsq(terms[:, :2], seconds, rcond=None)[0], 0.0]
    fixed, slope, update = map(float, fitted)
    return max(0.0, fixed), slope, update


def _timed(made: TimedStep) -> list[tuple[CountedOp | None, int, float]]:
    """Return the kernels of a step: the op if the kernel is a single op, its bytes, and its seconds."""
    if made.executor is None:
        return [
            (count_op(op.primitive, (op.inputs, op.outputs), op.static), op.nbytes, seconds)
            for op, seconds in made.ops(_ROUNDS)
        ]
    plan = made.executor.plan
    assert plan is not None
    rows: list[tuple[CountedOp | None, int, float]] = []
    for work, seconds in made.kernels(_ROUNDS):
        alone = len(work.ops) == 1 and work.detail
        rows.append((lowered_op(plan.lowered, work.ops[0]) if alone else None, int(work.cost.bytes), seconds))
    return rows


def _looped_call(options: Options, call: float) -> float:
    """Return the overhead in seconds of an op in the body of a loop."""
    times, counts, outside = [], [], []
    for length in (4, 64):
        made, memory = _build_step(loop(length), options)
        found = step_kernels(memory, {})
        times.append(fastest(made.step, 0.03))
        counts.append(sum(kernel.times for kernel in found.kernels if kernel.looped))
        outside.append(sum(kernel.times for kernel in found.kernels if not kernel.looped))
    rest = (outside[1] - outside[0]) * call
    return max(1e-8, (times[1] - times[0] - rest) / max(1, counts[1] - counts[0]))
