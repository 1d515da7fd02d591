"""Where the ranks of a compiled program meet: a collective of the ranks that a process hosts, as one op.

A compiled program is that of one rank, done once for each rank that the process hosts. `meet` has the operands of all
of them side by side; the collective itself is that of `Ranks` on arrays, so its bits are those of the eager
interpreter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ...ops.catalogue.collective import BY_NAME
from ...ops.closed import Body
from ...ops.errors import MeshError
from ...ops.kinds import Effect, Kind
from ...ops.mesh import Mesh
from ...ops.primitive import Primitive, Static, no_flops
from ...ops.registered import register
from ...ops.types import TensorType
from ..host import Array
from .fabric import Fabric, handle_of, held_by
from .processes import require_hosted


class Hosting(NamedTuple):
    """A mesh, and the processes that host its ranks."""

    mesh: Mesh
    fabric: Fabric

    @property
    def ranks(self) -> range:
        """Those that this process hosts."""
        count = require_hosted(self.mesh, self.fabric.processes)
        return range(self.fabric.process * count, (self.fabric.process + 1) * count)

    def along(self, axis: str) -> tuple[int, ...]:
        """Where each of them stands along an axis."""
        return tuple([self.mesh.coordinate(rank, axis) for rank in self.ranks])

    def groups(self, axis: str) -> tuple[int, ...]:
        """The first rank of the group of each of them along an axis: those of one group differ along it alone."""
        return tuple([self.mesh.group(rank, axis)[0] for rank in self.ranks])


def meeting(ranks: Any, primitive: Primitive, static: Static, gives: Sequence[int]) -> Static:
    """The static parameters of `meet`, for `ranks` on arrays: a call of the collective, of whose results on the ranks
    here it gives those with these numbers."""
    return {
        "ranks": handle_of(ranks),
        "call": primitive.name,
        "given": tuple(sorted(static.items())),
        "gives": tuple(gives),
    }


def _shape(*values: TensorType, ranks: int, call: str, given: Any, gives: Sequence[int]) -> tuple[TensorType, ...]:
    return BY_NAME[call].infer(values[:1], dict(given)) * len(gives)


def _meet(*values: Array, ranks: int, call: str, given: Any, gives: Sequence[int]) -> tuple[Array, ...]:
    ops = held_by(ranks)
    found = ops.collective(BY_NAME[call], (ops.each(values),), dict(given)).values
    return tuple([found[number] for number in gives])


MEET = Primitive(
    "meet",
    operands=("x", "*more"),
    shape=_shape,
    differentiable=False,
    effects={Effect.EXTERNAL},
    flops=no_flops,
)

register("meet", MEET, {"cpu": _meet}, ())


def communicates(static: Static) -> bool:
    """Whether an op with these static parameters has bodies with collectives in them."""
    return any(
        e.primitive.kind is Kind.COLLECTIVE or communicates(e.static)
        for body in static.values()
        if isinstance(body, Body)
        for e in body.equations
    )


def apart(primitive: Primitive, region: str) -> MeshError:
    """The error of a choice or loop that ranks which send each other something may take in different ways."""
    return MeshError(
        "its bodies have collectives, which all ranks must reach alike, but what it decides by may differ between "
        "them; decide by what all ranks have, such as an all_reduce, or move the collectives out of it",
        op=primitive.name,
        region=region,
    )
