"""`Traffic`: the collectives of a checked program, and the bytes that a rank sends for them, as formulas."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, final

from ...ops.catalogue.collective import sent_bytes
from ...ops.closed import Body, Equation
from ...ops.dims import Dim
from ...ops.kinds import Kind
from ...ops.types import TensorType
from ..control import bodies_of
from ..formula import show_size
from .program import CheckedProgram


class Sending(NamedTuple):
    """Calls of one collective over one axis.

    calls    their number
    nbytes   bytes of all their operands on one rank
    sent     bytes that a rank sends for them
    """

    name: str
    axis: str
    calls: Dim
    nbytes: Dim
    sent: Dim

    def __str__(self) -> str:
        of = f"{self.calls} of {show_size(self.nbytes)}"
        return f"{self.name} over {self.axis}: {of}, a rank sends {show_size(self.sent)}"


@final
@dataclass(frozen=True)
class Traffic:
    """The bytes that a rank sends in one run of a program; all ranks make the same calls in order.

    sendings      the collectives that move bytes, by name and axis, in the order of first use
    sent          the total bytes that a rank sends
    fingerprint   a digest of the calls in order, with their axes and the types of their operands
    """

    sendings: tuple[Sending, ...]
    sent: Dim
    fingerprint: str

    @classmethod
    def of(cls, program: CheckedProgram) -> Traffic:
        """Return the traffic of a checked program, including ops on which no output depends."""
        body = program.body
        found: dict[tuple[str, str], Sending] = {}
        total: Dim = 0
        digest = hashlib.sha256()
        for equation, times, types in collectives(body, 1):
            inputs = tuple([types[slot] for slot in equation.inputs])
            axis: str = equation.static["axis"]
            digest.update(f"{equation.primitive.name} {axis} {[*map(str, inputs)]}\n".encode())
            if not inputs or equation.primitive.view:
                continue
            key = (equation.primitive.name, axis)
            before = found.get(key, Sending(*key, 0, 0, 0))
            nbytes = before.nbytes + inputs[0].nbytes * times
            sent = sent_bytes(equation.primitive, nbytes, equation.static["size"])  # calls are made in buckets
            found[key] = before._replace(calls=before.calls + times, nbytes=nbytes, sent=sent)
        for sending in found.values():
            total = total + sending.sent
        return cls(tuple(found.values()), total, digest.hexdigest()[:12])

    def __str__(self) -> str:
        return "\n".join([*map(str, self.sendings), f"in all a rank sends {show_size(self.sent)}"])


def collectives(body: Body, times: Dim) -> Iterator[tuple[Equation, Dim, tuple[TensorType, ...]]]:
    """Yield the collectives of a body and nested bodies, how often each is called, and the types of the body's
    slots."""
    for equation in body.equations:
        if equation.primitive.kind is Kind.COLLECTIVE:
            yield equation, times, body.types
        length = equation.static.get("length", 1)
        for _, inner in bodies_of(equation.static):
            yield from collectives(inner, times * length)
