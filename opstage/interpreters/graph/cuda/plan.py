"""The plan of a graph on a device: its calls, and the layout of its memory in one block."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, final

import numpy as np

from ....compiler.codegen.arena import Item, arrange
from ....compiler.gpu.buffer import DeviceBuffer
from ....compiler.gpu.device import Device
from ....compiler.gpu.launches import Call
from ....ops.body import Body
from ....options import MatmulPrecision
from ...eager_cuda.kernels.layout import fill_kernel
from ..rank_lowering import Hosted
from .lowering import LaunchRecorder, Lowering, Spot, spots

ALIGNMENT = 256
"""Bytes, as required by cuBLASLt and by vectorized loads."""


@final
class CudaPlan:
    """The launches of a graph, on numbered blocks of memory.

    calls, split    all calls, and the number of calls before the first that overwrites an input
    host_calls      ops that the host runs between those two parts, in order
    inputs          the block of each input
    outputs         each output on its block
    aliased         outputs that overwrite a donated input, and that input, by position
    constants       blocks with constant content
    offsets         of blocks in the arena, which has `arena_bytes`
    sent            bytes that a run sends to other processes
    flag            a word on the device, nonzero after an index was out of range; None if no call checks indices
    """

    def __init__(
        self, program: Body | Hosted, device: Device, precision: MatmulPrecision, donated: Collection[int] = ()
    ):
        recorder = LaunchRecorder(device)
        lowering = Lowering(program, recorder, precision, donated)
        taken = lowering.inputs()
        self.inputs = [_block(buffer) for buffer in taken]
        self.split, self.outputs = lowering.record()
        self.calls: list[Call] = recorder.calls
        self.sent = sum(call.arguments[1].sent for call in self.calls if call.method == "aside")
        self.constants = {_block(buffer): value for buffer, value in lowering.constants}
        self.blocks = recorder.blocks
        self.aliased = lowering.aliased
        self.flag = recorder.flag if recorder.watches else None
        if self.flag is not None:  # an interrupted run may have set it
            recorder.each(fill_kernel, 1, self.flag, np.int32(0))
            self.calls.insert(0, self.calls.pop())
            self.split += 1
        results = {_block(buffer) for buffer in self.outputs}
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for i, call in enumerate(self.calls):
            for spot in spots((call.arguments, call.more)):
                first.setdefault(spot.block, i)
                last[spot.block] = i
        self.host_calls = lowering.host_calls
        for spot in spots([call.operands for call in self.host_calls]):  # read after the first part
            first.setdefault(spot.block, 0)
            last[spot.block] = max(last.get(spot.block, 0), self.split)
        fixed = {*self.inputs, *self.constants, *results}
        items = [Item(b, self.blocks[b], at, last[b]) for b, at in first.items() if b not in fixed]
        offsets, self.arena_bytes = arrange(items, ALIGNMENT)
        self.offsets: dict[Any, int] = dict(offsets)


def _block(buffer: DeviceBuffer) -> int:
    spot: Spot = buffer.handle
    return spot.block
