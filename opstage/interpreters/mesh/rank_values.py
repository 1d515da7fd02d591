"""`RankValues`: a tensor on a mesh, as the values that the ranks of a process have."""

from __future__ import annotations

from typing import Any, NamedTuple, final

from ...ops.cursor import Quietly
from ...ops.errors import MeshError
from ...ops.types import TensorType
from ..interpreter import BaseInterpreter, Typed
from .buckets import Bucket

Values = tuple[Any, ...]


class Parts(NamedTuple):
    """Each rank's own rows of a tensor, cut along its first axis over an axis of the mesh."""

    axis: str
    values: Values


def in_parts(type_: TensorType, axis: str) -> MeshError:
    """The error of a program that reads all rows of a tensor of which each process has those of its ranks alone."""
    return MeshError(
        f"of a batch of {type_.shape[0]} rows each process has those of its ranks alone, and a program that shares out "
        f"no rows over mesh axis {axis!r} reads all of them; give it whole batches",
        op="shard",
    )


@final
class RankValues(Typed):
    """The ranks' values of one tensor, rank by rank; one and the same object where it is replicated.

    parts   what stands in their place where it is replicated, but each process has the rows of its ranks alone: those
            of each rank along the axis. Then `shard` over that axis is all that can be done with it
    """

    __slots__ = ("type", "ops", "parts", "_values", "_coming")

    def __init__(self, ops: BaseInterpreter[RankValues], values: Values):
        first = values[0]
        self.type = TensorType(tuple(first.shape), first.dtype)
        self.ops = ops
        self.parts: Parts | None = None
        self._values: Values | None = values
        self._coming: tuple[Bucket, int] | None = None

    @classmethod
    def of_parts(cls, ops: BaseInterpreter[RankValues], type_: TensorType, parts: Parts) -> RankValues:
        """A tensor of this type of which each rank here has its own rows."""
        made = cls.__new__(cls)
        made.type, made.ops, made.parts = type_, ops, parts
        made._values, made._coming = None, None
        return made

    @classmethod
    def coming(cls, ops: BaseInterpreter[RankValues], type_: TensorType, bucket: Bucket, number: int) -> RankValues:
        """A sum of a bucket, which is waited for when it is read."""
        made = cls.__new__(cls)
        made.type, made.ops, made.parts = type_, ops, None
        made._values, made._coming = None, (bucket, number)
        return made

    @property
    def held(self) -> Values:
        """The value of each rank that is here, or its own rows."""
        return self.values if self.parts is None else self.parts.values

    @property
    def values(self) -> Values:
        """The value of each rank that is here."""
        found = self._values
        if self.parts is not None:
            raise in_parts(self.type, self.parts.axis)
        if found is None:
            assert self._coming is not None
            bucket, number = self._coming
            with Quietly(self.ops.cursor):
                found = self._values = bucket.result(number)
        return found

    @property
    def axis(self) -> str | None:
        """The axis along which each rank has its own rows; None where each has a value."""
        return None if self.parts is None else self.parts.axis
