"""Sequences of launches that a device replays on the same memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ....options import MatmulPrecision
from .context import OpContext

if TYPE_CHECKING:
    from .interface import Device


class Call(NamedTuple):
    """One call: the method's name and arguments, its op, and the precision of products."""

    method: str
    arguments: tuple[Any, ...]
    more: Mapping[str, Any]
    op: str
    region: str
    precision: MatmulPrecision

    def context(self, device: Device) -> OpContext:
        """Return the op context of the call."""
        return OpContext(self.op, self.region, self.precision, device.context.watch)

    def ask(self, device: Device) -> None:
        device.serve(self.context(device), getattr(device, self.method), *self.arguments, **self.more)


class Script:
    """Calls that are repeated in order on memory that the caller keeps."""

    def __init__(self, device: Device, calls: Sequence[Call]):
        self.device = device
        self.calls = tuple(calls)

    def prepare(self) -> None:
        """Do everything in the next run that may fail."""

    def run(self) -> None:
        """Make all calls; returns before the work is done."""
        with self.device.lock:
            for call in self.calls:
                call.ask(self.device)
