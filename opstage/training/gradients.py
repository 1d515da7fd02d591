"""The gradients of one backward pass of a session."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, final
from weakref import ref

from typing_extensions import override

from ..api import owned
from ..interpreters.imperative import Imperative, own_array
from ..interpreters.tape import Node, Tape
from ..interpreters.tape_record import Record
from ..ops.cursor import Quietly
from ..ops.errors import DtypeError, OpstageError, ProgramError
from ..ops.other_names import Renamed
from ..ops.types import dtype_name, is_float
from .param import Param
from .refs import own_node, require_shape


@final
class Gradients(Renamed, Mapping[Any, Any]):
    """The gradient of a result for refs and parameters: `gradients[ref]`.

    It is a mapping whose keys are the parameters used on the tape that take a gradient, in the order of their first
    use, and the leaves that still exist. With `dense`, results of ops can be read as well.

    dense    whether every ref of the tape has one, or only leaves and parameters
    moment   the time of the backward pass: numbers set later are ignored
    """

    __slots__ = ("dense", "moment", "_tape", "_base", "_found", "_used", "_leaves", "__weakref__")

    def __init__(
        self,
        tape: Tape[Any],
        base: Imperative[Any],
        found: dict[Record[Any], list[Any]],
        used: Mapping[Param, Node[Any]],
        leaves: Iterable[Node[Any]],
        *,
        dense: bool,
    ):
        self.dense = dense
        self.moment = base.moment()
        self._tape = tape
        self._base = base
        self._found = found
        self._used = used
        of_parameters = set(used.values())
        self._leaves = [ref(leaf) for leaf in leaves if leaf not in of_parameters]

    def __iter__(self) -> Iterator[Param | Node[Any]]:
        if self._tape.closed:
            raise ProgramError(self._tape.closed)
        trained = [param for param, node in self._used.items() if node.record is not None]
        return iter([*trained, *[leaf for each in self._leaves if (leaf := each()) is not None]])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, of: object) -> bool:
        """Return whether `gradients[of]` can be read."""
        try:
            self.cotangent(self._node(of))
        except OpstageError:
            return False
        return True

    @override
    def get(self, of: Any, default: Any = None) -> Any:
        try:
            return self[of]
        except OpstageError:
            return default

    __eq__, __hash__ = object.__eq__, object.__hash__  # a mapping would compare arrays

    def __getitem__(self, of: Node[Any] | Param) -> Any:
        """Return an array that the caller owns, shaped like `of`; zeros if the result does not depend on it.

        Raises ProgramError for an intermediate ref after a sparse pass, for a ref of another session and for a
        parameter that was not used; DtypeError for integers and booleans, which have no gradient.
        """
        (value,) = self._base.fetch([self.cotangent(self._node(of))], self.moment)
        return owned(self._base.store.get(value))

    def cotangent(self, node: Node[Any]) -> Any:
        """Return the gradient as a value of the base interpreter."""
        if not is_float(node.dtype):
            raise DtypeError(f"the ref is {dtype_name(node.dtype)}: integers and booleans have no gradient", op="grad")
        record = node.record
        if record is not None:
            if not self.dense and record.primitive is not None:
                raise ProgramError(
                    "backward(…, dense=False) keeps the gradients of leaves and parameters alone, and this ref is the "
                    "result of an op; call backward(…, dense=True)"
                )
            cotangents = self._found.get(record)
            if cotangents is not None and cotangents[node.slot] is not None:
                return cotangents[node.slot]
        with Quietly(self._base.cursor):
            return self._base.full(shape=node.shape, value=0.0, dtype=node.dtype)

    def forget(self) -> None:
        """Drop the gradients and the values saved for the pass, which any ref still held would keep alive."""
        for record in self._found:
            record.forget()
        self._found.clear()
        self.moment = {}

    def _node(self, of: Any) -> Node[Any]:
        if isinstance(of, Param):
            if of not in self._used:
                raise ProgramError(f"{of} was not used on this tape, so it has no gradient")
            of = self._used[of]
        return own_node(self._tape, of, "grad")


def aligned(base: Imperative[Any], value: Any, node: Node[Any], op: str, what: str) -> Any:
    """Return a seed or tangent of a node as a value of `base`, with the node's shape and dtype."""
    array = own_array(value)
    if array.dtype.kind not in "fO":
        raise DtypeError(f"{what} must be float but is {array.dtype}", op=op)
    require_shape(op, what, tuple(array.shape), tuple(node.shape))
    return base.lift(base.store.const(array, dtype=node.dtype))
