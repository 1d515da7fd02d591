"""The collectives of a checked program: the bytes that a rank sends, and the time of a step on many ranks."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, final

from ...config import toml_document
from ...distributed.collectives import SMALL
from ...ops.body import Body
from ...ops.collective import ALL_GATHER, ALL_MAX, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER, SHIFT, sent_bytes
from ...ops.dims import Dim
from ...ops.errors import UsageError, brief, nearest
from ...ops.mesh import Mesh
from ...ops.primitive import Kind, Primitive, Static
from ...ops.readable_amounts import show_size
from ...ops.types import TensorType
from ...transforms.control_flow import get_bodies
from .program import CheckedProgram
from .report import Report, value_at


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
        for call in collectives(body, 1):
            name, axis = call.primitive.name, call.axis
            digest.update(f"{name} {axis} {[*map(str, call.operands)]}\n".encode())
            if not call.moves:
                continue
            before = found.get((name, axis), Sending(name, axis, 0, 0, 0))
            nbytes = before.nbytes + call.nbytes * call.times
            sent = sent_bytes(call.primitive, nbytes, call.size)  # calls are made in buckets
            found[name, axis] = before._replace(calls=before.calls + call.times, nbytes=nbytes, sent=sent)
        for sending in found.values():
            total = total + sending.sent
        return cls(tuple(found.values()), total, digest.hexdigest()[:12])

    def __str__(self) -> str:
        return "\n".join([*map(str, self.sendings), f"in all a rank sends {show_size(self.sent)}"])


class Collective(NamedTuple):
    """A collective over `axis`, with `size` ranks, that is called `times` times."""

    primitive: Primitive
    static: Static
    operands: tuple[TensorType, ...]
    times: Dim

    @property
    def axis(self) -> str:
        axis: str = self.static["axis"]
        return axis

    @property
    def size(self) -> Dim:
        size: Dim = self.static["size"]
        return size

    @property
    def moves(self) -> bool:
        """Whether it moves bytes."""
        return bool(self.operands) and not self.primitive.view

    @property
    def nbytes(self) -> Dim:
        """The bytes of its operand."""
        return self.operands[0].nbytes


def collectives(body: Body, times: Dim) -> Iterator[Collective]:
    """Yield the collectives of a body that runs `times` times, and those of nested bodies."""
    for equation in body.equations:
        if equation.primitive.kind is Kind.COLLECTIVE:
            operands = tuple([body.types[slot] for slot in equation.inputs])
            yield Collective(equation.primitive, equation.static, operands, times)
        length = equation.static.get("length", 1)
        for _, inner in get_bodies(equation.static):
            yield from collectives(inner, times * length)


# Machines -------------------------------------------------------------------------------------------------------------

# The alpha-beta model (Hockney 1994): a message of n bytes takes alpha + n/beta seconds, and a rank computes a
# constant number of FLOP per second. One process hosts each rank; a process sends its messages one after the other, as
# `distributed` does: to each other rank of the axis, in two rounds for a sum of more than 16 KiB and in one for
# any other collective. Nothing overlaps. This is a model and not a measurement: caches, memory and contention are
# ignored.


@final
@dataclass(frozen=True)
class Machines:
    """Identical machines.

    ranks_per_host   ranks, one a process, that share a host and its link
    alpha            seconds of latency per message
    beta             bytes per second that a host sends to others
    flops            FLOP per second of a rank
    alpha_within     latency of a message within a host; default: alpha
    beta_within      bytes per second that a rank sends within its host; default: beta
    """

    ranks_per_host: int
    alpha: float
    beta: float
    flops: float
    alpha_within: float | None = None
    beta_within: float | None = None

    @classmethod
    def read(cls, text: str) -> Machines:
        """Read `ranks_per_host=8,alpha=5e-6,beta=12e9,flops=1e12`, or a TOML file of such values. Raises UsageError."""
        if "=" in text:
            pairs = [entry.partition("=") for entry in text.split(",") if entry.strip()]
            return cls.of({name.strip(): value.strip() for name, _, value in pairs}, f"cluster {brief(text)}")
        return cls.of(toml_document(text, "the description of a cluster")[0], text)

    @classmethod
    def of(cls, values: Mapping[str, Any], origin: str | os.PathLike[str] = "cluster") -> Machines:
        """Build from values by name, which may be texts. Raises UsageError, naming the origin."""
        names = [field.name for field in fields(cls)]
        made: dict[str, Any] = {}
        for name, value in values.items():
            if name not in names:
                raise UsageError(f"{origin}: there is no {brief(name)}{nearest(name, names)}; {_ADVICE}")
            try:
                number = float(value) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else 0.0
            except ValueError:
                number = 0.0
            if not 0 < number < float("inf") or (name == "ranks_per_host" and number % 1):
                what = "a whole number from 1 on" if name == "ranks_per_host" else "a number above 0"
                raise UsageError(f"{origin}: {name} is {brief(str(value))}; expected {what}")
            made[name] = int(number) if name == "ranks_per_host" else number
        missing = [name for name in names[:4] if name not in made]
        if missing:
            raise UsageError(f"{origin}: {' and '.join(missing)} missing; {_ADVICE}")
        return cls(**made)


_ADVICE = (
    "expected ranks_per_host, alpha (s), beta (bytes/s) and flops (FLOP/s), and alpha_within and beta_within if known"
)


class Prediction(NamedTuple):
    """The predicted step of a rank of a mesh: seconds of computing, of message latency and of transfer."""

    ranks: int
    computing: float
    latency: float
    transfer: float

    @property
    def seconds(self) -> float:
        """The total time of the step."""
        return self.computing + self.latency + self.transfer


def predicted(report: Report, cluster: Machines, mesh: Mesh, sizes: Mapping[str, int]) -> Prediction:
    """Predict the step of a report on a mesh of numbers, with `sizes` for the names in its formulas."""
    latency = transfer = 0.0
    for call in collectives(report.program.body, 1):
        if not call.moves:
            continue
        nbytes, times = int(value_at(call.nbytes, sizes)), int(value_at(call.times, sizes))
        ranks = int(value_at(call.size, sizes))
        if ranks == 1:
            continue
        near = sum(rank < cluster.ranks_per_host for rank in mesh.group(0, call.axis)[1:])
        messages, sent = cost_of_call(call.primitive, nbytes, ranks)
        far = (ranks - 1 - near) / (ranks - 1)
        shared = min(cluster.ranks_per_host, mesh.ranks)  # all ranks of a host send at once, through its one link
        alpha_near = cluster.alpha if cluster.alpha_within is None else cluster.alpha_within
        beta_near = cluster.beta if cluster.beta_within is None else cluster.beta_within
        latency += times * messages * (far * cluster.alpha + (1 - far) * alpha_near)
        transfer += times * sent * (far * shared / cluster.beta + (1 - far) / beta_near)
    return Prediction(mesh.ranks, int(value_at(report.cost.flops, sizes)) / cluster.flops, latency, transfer)


def cost_of_call(primitive: Primitive, nbytes: int, ranks: int) -> tuple[int, float]:
    """Return the number and bytes of the messages that a rank sends for one collective of an operand of `nbytes`."""
    others = ranks - 1
    if primitive is SHIFT:
        return 1, nbytes
    if primitive is ALL_REDUCE and ranks > 2 and nbytes > SMALL:
        return 2 * others, 2 * nbytes * others / ranks
    if primitive in (ALL_REDUCE, ALL_MAX, ALL_GATHER):
        return others, nbytes * others
    assert primitive in (REDUCE_SCATTER, ALL_TO_ALL), primitive
    return others, nbytes * others / ranks


def messages_of(report: Report) -> Dim:
    """Return the number of messages of a rank in a step, a formula for a symbolic axis, assuming every sum to be
    large."""
    total: Dim = 0
    for call in collectives(report.program.body, 1):
        if call.moves:
            each: Dim = 1 if call.primitive is SHIFT else call.size - 1
            total = total + call.times * each * (2 if call.primitive is ALL_REDUCE else 1)
    return total
