"""The rates of this machine: measured in a second or two, and kept beside the machine code of this environment."""

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
from typing import Any

import numpy as np

from ..atomic import WriteError, write_file
from ..interpreters.graph.cpu.cost import works
from ..interpreters.graph.executor import CpuExecutor
from ..interpreters.graph.recorder import record
from ..interpreters.native.blas import one_thread
from ..interpreters.native.folder import cache_folder
from ..interpreters.native.pool import workers
from ..interpreters.native.processor import processor
from ..ops.errors import UsageError
from ..ops.types import TensorType, as_dtype
from ..options import Options
from ..training.memory import step_memory
from ..training.optim import adamw
from ..training.trainer import scalar_trainer
from .kernels import StepKernels, kernels_of, op_of
from .probes import LOOPS, Probe, chain, loop, probes
from .rates import MEASURED, KernelPoint, Rates
from .timing import TimedStep, fastest

_WORKING_SETS = (1 << 15, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26)
_LOOP = 8000
"""Elements of a vector in a loop that one thread does by itself."""
_REPEATED = 6
_ROUNDS = 6
_LEAST = 0.05
"""The part of a measured time that is its kernel's at the least, when what a call takes is subtracted."""

_PINNING = ("OPENBLAS_CORETYPE", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
VERSION = 1


def machine_rates(options: Options, *, keep: bool = True) -> Rates:
    """The rates of this machine on the interpreter and in the dtype of `options`: those that are kept, or measured now.

    Raises UsageError for an interpreter that is not measured.
    """
    require_measurable(options)
    place = _kept_at(options) if keep else None
    if place is not None:
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
            f"there is no calibration for backend {options.backend!r} on {options.device}: the CPU is measured on "
            "backends eager and compiled; a GPU's times are predicted from published peaks, as in --on h100"
        )
    if options.dtype == "exact":
        raise UsageError(
            "there is no calibration for fractions, whose operations take as long as their numbers; use float32"
        )


def _kept_at(options: Options) -> Path | None:
    """The file of the rates; its name holds all that they depend on."""
    folder = cache_folder()
    if folder is None:
        return None
    parts = [str(VERSION), options.backend, options.dtype, str(options.fast_kernels), str(workers()), platform.node()]
    parts += [f"{name}={os.environ.get(name)}" for name in _PINNING]
    return folder / f"rates-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:16]}.json"


def measure_rates(options: Options) -> Rates:
    """Measure the rates of this machine, which should be quiet: of every figure the best of a few rounds counts."""
    require_measurable(options)
    threads = workers()
    compiled = options.backend == "compiled"
    bandwidths = tuple((n, _bandwidth(n, threads)) for n in _WORKING_SETS)
    one = tuple((n, _bandwidth(n, 1)) for n in _WORKING_SETS) if threads > 1 else bandwidths
    call, unit, step = _overheads(options)
    kernels = _kernels(options, unit)
    looped = _looped_call(options, call, step)
    rates = Rates(
        name=processor_name(),
        origin=MEASURED,
        source=f"measured on {time.strftime('%Y-%m-%d')} with {threads} threads, "
        f"backend {options.backend}, {options.dtype}",
        peak=max(p.flops / p.seconds for points in kernels.values() for p in points),
        bandwidths=bandwidths,
        one_thread=one,
        loops=_loops(options, unit if compiled else 0.0),
        kernels=kernels,
        threads=threads,
        call=call,
        looped_call=looped,
        parallel_call=0.0,
        step=step,
        memory=_memory(),
    )
    return rates


def processor_name() -> str:
    """The processor as the system calls it."""
    parts = processor()
    return parts[-2] if len(parts) > 3 and parts[-2] else " ".join(parts[:2])


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


# Bandwidth ------------------------------------------------------------------------------------------------------------


def _bandwidth(working_set: int, threads: int) -> float:
    """Bytes read and written in a second by threads that each copy their part of a working set again and again."""
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


def _loops(options: Options, unit: float) -> dict[str, float]:
    """FLOPs a second of one thread within generated loops, of ops that take more than an addition and of all others."""
    dtype = as_dtype(options.dtype)
    type_ = TensorType((_LOOP,), dtype)
    vectors = [np.linspace(0.5, 1.5, _LOOP).astype(dtype) for _ in range(2)]
    found: dict[str, float] = {}
    for name, op in LOOPS.items():

        def program(ops: Any, x: Any, y: Any, op: Callable[[Any, Any, Any], Any] = op) -> tuple[Any, ...]:
            for _ in range(_REPEATED):
                x = op(ops, x, y)
            return (x,)

        executor = CpuExecutor(record(program, [type_, type_], dtype, 0), options.replace(backend="compiled"))
        assert executor.plan is not None
        flops = sum(int(work.cost.flops) for work in works(executor.plan))

        def run(executor: CpuExecutor = executor) -> float:
            assert executor.plan is not None
            executor.seconds = seconds = [0.0] * len(executor.plan.steps)
            executor.run(vectors)
            return sum(seconds)

        taken = min(run() for _ in range(40))
        found[name] = flops / max(taken - unit, _LEAST * taken)
    return found


# Kernels and overheads ------------------------------------------------------------------------------------------------


def _made(probe: Probe, options: Options) -> tuple[TimedStep, StepKernels]:
    params, batch = probe.made(options.dtype)
    optimizer = adamw(lr=1e-3)
    trainer = scalar_trainer(probe.loss, params, options=options.replace(validate=False))
    memory = step_memory(probe.loss, params, *batch, optimizer=optimizer, options=options)
    return TimedStep(trainer, optimizer, batch), kernels_of(memory, {})


def _overheads(options: Options) -> tuple[float, float, float]:
    """Seconds of a call beside its work; what a timed kernel seems to take that does nothing; seconds of a step."""
    (short, few), (long, many) = (_made(chain(length), options) for length in (6, 60))
    times = [fastest(made.step, 0.03) for made in (short, long)]
    calls = [sum(call.times for call in found.kernels) for found in (few, many)]
    call = max(1e-8, (times[1] - times[0]) / (calls[1] - calls[0]))
    step = max(0.0, times[0] - call * calls[0])
    if options.backend == "compiled":
        unit = float(np.median(long.kernels(_ROUNDS)))
    else:
        unit = float(np.median([op.seconds for op in long.ops(_ROUNDS)]))
    return call, unit, step


def _looped_call(options: Options, call: float, step: float) -> float:
    """Seconds that an op takes in the body of a loop beside its work."""
    times, counts, outside = [], [], []
    for length in (4, 64):
        made, found = _made(loop(length), options)
        times.append(fastest(made.step, 0.03))
        counts.append(sum(c.times for c in found.kernels if c.looped))
        outside.append(sum(c.times for c in found.kernels if not c.looped))
    rest = (outside[1] - outside[0]) * call
    return max(1e-8, (times[1] - times[0] - rest) / max(1, counts[1] - counts[0]))


def _kernels(options: Options, unit: float) -> dict[str, tuple[KernelPoint, ...]]:
    """Kernels of single ops in the steps of the probes; of calls of one form the fastest counts."""
    found: dict[tuple[str, tuple[int, ...], int, int], float] = {}
    with one_thread:
        for probe in probes():
            made, _ = _made(probe, options)
            for name, sizes, flops, nbytes, seconds in _timed(made):
                key = (name, sizes, flops, nbytes)
                found[key] = min(found.get(key, float("inf")), max(seconds - unit, _LEAST * seconds))
    points: dict[str, list[KernelPoint]] = {}
    for (name, sizes, flops, nbytes), seconds in found.items():
        points.setdefault(name, []).append(KernelPoint(sizes, flops, nbytes, seconds))
    return {name: tuple(each) for name, each in points.items()}


def _timed(made: TimedStep) -> Sequence[tuple[str, tuple[int, ...], int, int, float]]:
    if made.executor is None:
        return [
            (op.name, op.sizes, op.flops, nbytes, timed.seconds)
            for timed in made.ops(_ROUNDS)
            if timed.moves
            for op in [op_of(timed.primitive, (timed.inputs, timed.outputs), timed.static)]
            for nbytes in [_nbytes(timed.inputs) + _nbytes(timed.outputs)]
        ]
    plan = made.executor.plan
    assert plan is not None
    rows = []
    for work, seconds in zip(works(plan), made.kernels(_ROUNDS)):
        if len(work.ops) == 1 and work.detail:
            (e,) = work.ops
            types = plan.lowered.types
            op = op_of(
                e.primitive, (tuple([types[s] for s in e.inputs]), tuple([types[s] for s in e.outputs])), e.static
            )
            rows.append((op.name, op.sizes, op.flops, int(work.cost.bytes), seconds))
    return rows


def _nbytes(types: Sequence[TensorType]) -> int:
    total: Any = sum(type_.nbytes for type_ in types)
    return int(total)
