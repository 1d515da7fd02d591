"""Sequences of launches that a device replays on the same memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ....options import MatmulPrecision
from .context import OpContext

if TYPE_CHECKING:
    from .interface import Device


class Call(NamedTuple):
    """One call: the method's name and its arguments, the op that it serves, and the precision of products."""

    method: str
    arguments: tuple[Any, ...]
    more: Mapping[str, Any]
    op: str
    region: str
    precision: MatmulPrecision

    def context(self, device: Device) -> OpContext:
        """The op that it serves, for whoever asks the device for it."""
        return OpContext(self.op, self.region, self.precision, device.context.watch)

    def ask(self, device: Device) -> None:
        device.serve(self.context(device), getattr(device, self.method), *self.arguments, **self.more)


class Script:
    """Calls that are made one after the other whenever it is run, on memory that whoever runs it keeps."""

    def __init__(self, device: Device, calls: Sequence[Call]):
        self.device = device
        self.calls = tuple(calls)

    def prepare(self) -> None:
        """Do what may fail of the next run."""

    def run(self) -> None:
        """Ask for all of them; returns before they are done."""
        with self.device.lock:
            for call in self.calls:
                call.ask(self.device)
