"""Refs of a session: a tensor of its own live tape, or a handle of natural numbers.

Natural numbers are indices and labels; they have no gradient and may be replaced between ops.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..interpreters.imperative import Imperative
from ..interpreters.tape import Node, Tape
from ..ops.dims import require_equal
from ..ops.errors import ProgramError, ShapeError, UsageError
from ..ops.lists import no_ref
from ..ops.numbers import plain
from ..ops.types import INT64, DType, show_shape
from ..ops.untrusted import a_type
from .param import Param

Words = npt.NDArray[np.int64]
_LARGEST = 2**63 - 1


class Nats:
    """A handle of natural numbers. Ops after `put` read the new numbers; ops already computed keep the old."""

    __slots__ = ("ops", "_numbers", "_staged", "__weakref__")

    def __init__(self, tape: Tape[Any], numbers: Words):
        self.ops = tape
        self._numbers = numbers
        self._staged: Any = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self._numbers.shape

    @property
    def dtype(self) -> DType:
        return INT64

    @property
    def numbers(self) -> Words:
        """The current numbers, as a copy."""
        return self._numbers.copy()

    def put(self, numbers: Words) -> None:
        """Replace the numbers; their count is fixed."""
        if numbers.shape != self.shape:
            raise ShapeError(
                f"it holds {len(self._numbers)} numbers but {len(numbers)} were given; its length is fixed: make "
                "another with nat_vec",
                op="set_nat_vec",
            )
        self._numbers, self._staged = numbers, None

    def forget(self) -> None:
        """Drop the copy on the interpreter."""
        self._staged = None

    def staged(self, base: Imperative[Any]) -> Any:
        """Return the numbers as a ref of the session's base interpreter, put there once until they change."""
        if self._staged is None:
            self._staged = base.live(lambda: self._numbers)
        return self._staged


class NatRef(Nats):
    """One natural number; an op reads it as an integer scalar."""

    __slots__ = ()


class NatVecRef(Nats):
    """A vector of natural numbers of fixed length; an op reads it as an integer vector."""

    __slots__ = ()


def natural(op: str, value: Any) -> Words:
    """Return `value` as one natural number, int64; raises UsageError for anything else."""
    value = plain(value)
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool) and 0 <= value <= _LARGEST:
        return np.array(value, dtype=np.int64)
    raise UsageError(f"{op} takes a natural number, an integer from 0 to 2^63 - 1, but got {value!r}")


def naturals(op: str, values: Any) -> Words:
    """Return `values` as a vector of natural numbers, int64; raises UsageError, with the entry, for anything else."""
    entries = list(values) if isinstance(values, (list, tuple, range, np.ndarray)) and np.ndim(values) == 1 else None
    if entries is None:
        raise UsageError(f"{op} takes a vector of natural numbers but got {values!r}")
    for i, entry in enumerate(entries):
        if not isinstance(entry, (int, np.integer)) or isinstance(entry, bool) or not 0 <= entry <= _LARGEST:
            raise UsageError(f"{op} takes natural numbers, integers from 0 to 2^63 - 1, but entry {i} is {entry!r}")
    return np.array(entries, dtype=np.int64)


def own_node(tape: Tape[Any], ref: Any, op: str) -> Node[Any]:
    """Return `ref` if it is a tensor of `tape` and the tape is live; else raise a ProgramError that says what it is."""
    owner: Any = getattr(ref, "ops", None)
    if getattr(owner, "closed", None):
        raise ProgramError(owner.closed)
    if isinstance(ref, Node):
        if owner is tape:
            return ref
        if owner.depth > tape.depth:
            raise ProgramError("a ref of an inner derivative was used outside of it; return it from the inner function")
        raise ProgramError(f"{op} got a ref of another session; a session computes with its own refs alone")
    if isinstance(ref, Nats):
        if owner is not tape:
            raise ProgramError(f"{op} got natural numbers of another session; a session reads its own alone")
        raise ProgramError(f"{op} takes a tensor but got natural numbers, which get_nat and get_nat_vec read")
    if isinstance(ref, Param):
        raise ProgramError(f"{op} got {ref} itself; session.use(param) gives its ref on this tape")
    raise no_ref(ref, "make one with session.input(…), leaf(…) or const(…)", op)


def own_nats(tape: Tape[Any], ref: Any, kind: type[Nats], op: str) -> Nats:
    """Return `ref` if it holds natural numbers of this kind on `tape`. Raises ProgramError for anything else."""
    if isinstance(ref, kind) and ref.ops is tape:
        return ref
    if isinstance(ref, Nats) and ref.ops is tape:
        raise ProgramError(f"{op} takes a {kind.__name__} but got {a_type(ref)}")
    own_node(tape, ref, op)
    raise ProgramError(f"{op} takes a {kind.__name__} but got the ref of a tensor")


def require_shape(op: str, what: str, shape: Sequence[Any], expected: Sequence[Any]) -> None:
    """Raise a ShapeError of `op` if `what` has another shape than expected."""
    message = f"{what} is {show_shape(tuple(shape))} where {show_shape(tuple(expected))} is expected"
    if len(shape) != len(expected):
        raise ShapeError(message, op=op)
    for a, b in zip(shape, expected):
        try:
            require_equal(a, b, lambda: message)
        except ShapeError as error:
            error.op = op
            raise
