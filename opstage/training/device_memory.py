"""The memory of a training step on a GPU, counted without one by running the step on a device that computes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..interpreters.base_program import BaseProgram
from ..interpreters.eager_cuda import CudaOps, DeviceBuffer
from ..interpreters.gpu.device.grid import GRID
from ..interpreters.gpu.device.tally import Tally
from ..interpreters.graph.cuda.compiled import CompiledCudaOps
from ..interpreters.graph.cuda.executor import CudaExecutor
from ..interpreters.shape_check.memory import MemoryKind, PeakMemory
from ..ops.trees import flatten
from ..ops.types import TensorType
from ..options import Options
from .step import UPDATE, TrainingStep

STEPS = 5
"""After this many steps, compiled steps reuse all memory of the step before."""


def device_memory(
    layout: TrainingStep, options: Options, types: Sequence[TensorType], kinds: Sequence[MemoryKind]
) -> PeakMemory:
    """Return the peak memory of a step with numeric inputs of these types and kinds.

    Raises ShapeError if a tensor is too large for a device.
    """
    tally = Tally(grid=GRID)
    ops: Any = CompiledCudaOps(options, tally) if options.backend == "compiled" else CudaOps(options, tally)
    held = {i: tally.taken(types[i], kind) for i, kind in enumerate(kinds) if kind is not MemoryKind.BATCH}

    def kind() -> MemoryKind:
        region = ops.cursor.region.path
        if options.backend == "compiled" or (region and region[0][0] == UPDATE):
            return MemoryKind.RESULTS
        return MemoryKind.GRADIENTS if ops.cursor.backward else MemoryKind.ACTIVATIONS

    tally.kind = kind
    for _ in range(STEPS):
        tally.begin()
        _advance(layout, ops, tally, types, kinds, held)
    found = {kind.name.lower(): tally.at_peak[kind] for kind in MemoryKind}
    if options.backend == "compiled":
        executor = ops.programs.executors[-1]
        found["arena"] = executor.plan.arena_bytes if isinstance(executor, CudaExecutor) else 0
        found["results"] -= found["arena"]
    return PeakMemory(**found, blocks=tally.blocks)


def _advance(
    layout: TrainingStep,
    ops: Any,
    tally: Tally,
    types: Sequence[TensorType],
    kinds: Sequence[MemoryKind],
    held: dict[int, DeviceBuffer],
) -> None:
    """Run a step as a trainer does, with the buffers in `held`, and update them with its results."""
    refs = [held[i] if i in held else tally.taken(type_, kinds[i]) for i, type_ in enumerate(types)]
    program = BaseProgram(layout.program, None, "step", layout.donated())
    outputs = ops.execute(program, tuple(refs))
    assert program.result is not None
    stepped = layout.unpack(outputs, program.result)
    program.finish(())
    for ref in (stepped.loss, *stepped.metrics.values()):
        ops.get(ref)
    state, slots = (
        [i for i, kind in enumerate(kinds) if kind is part] for part in (MemoryKind.STATE, MemoryKind.OPTIMIZER)
    )
    moved = layout.pack(flatten(stepped.state)[0], stepped.parameters, (), stepped.slots)
    for i, ref in zip((*state, *layout.trained_indices, *slots), moved):
        held[i] = ref
        tally.rename(ref.memory, kinds[i])
