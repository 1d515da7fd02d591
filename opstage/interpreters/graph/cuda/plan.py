"""A graph made ready for a device: the calls that it takes, and where in one block of memory everything lies."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, final

import numpy as np

from ....ops.closed import Body
from ....options import MatmulPrecision
from ...codegen.arena import Item, arrange
from ...eager_cuda.kernels.logic import fill_kernel
from ...gpu.buffer import DeviceBuffer
from ...gpu.device import Device
from ...gpu.device.script import Call
from ..hosted import Hosted
from .lower import Lowering
from .recorder import LaunchRecorder, Spot, spots

ALIGNMENT = 256
"""Bytes: what cuBLASLt and wide loads take for granted."""


@final
class CudaPlan:
    """The launches of a graph, on numbered blocks of memory.

    calls, split    all calls, and how many come before the first that writes over an input
    host_calls      ops that the host does between those two parts, in their order
    inputs          the block of each input
    outputs         each output on its block
    aliased         outputs that are written over a donated input: their places, and that input's
    constants       blocks that hold what never changes
    offsets         of blocks that are in the arena, of `arena_bytes` in all
    sent            bytes that a run sends to other processes
    flag            a number on the device, not 0 once an index was out of range; None if no call has indices
    """

    def __init__(
        self, program: Body | Hosted, device: Device, precision: MatmulPrecision, donated: Collection[int] = ()
    ):
        recorder = LaunchRecorder(device)
        lowering = Lowering(program, recorder, precision, donated)
        taken = lowering.inputs()
        self.inputs = [_block(buffer) for buffer in taken]
        self.split, self.outputs = lowering.ask()
        self.calls: list[Call] = recorder.calls
        self.sent = sum(call.arguments[1].sent for call in self.calls if call.method == "aside")
        self.constants = {_block(buffer): value for buffer, value in lowering.constants}
        self.blocks = recorder.blocks
        self.aliased = lowering.aliased
        self.flag = recorder.flag if recorder.watches else None
        if self.flag is not None:  # a run that was broken off may have set it
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
        for spot in spots([call.operands for call in self.host_calls]):  # they are read when the first part is done
            first.setdefault(spot.block, 0)
            last[spot.block] = max(last.get(spot.block, 0), self.split)
        fixed = {*self.inputs, *self.constants, *results}
        items = [Item(b, self.blocks[b], at, last[b]) for b, at in first.items() if b not in fixed]
        offsets, self.arena_bytes = arrange(items, ALIGNMENT)
        self.offsets: dict[Any, int] = dict(offsets)


def _block(buffer: DeviceBuffer) -> int:
    spot: Spot = buffer.handle
    return spot.block
