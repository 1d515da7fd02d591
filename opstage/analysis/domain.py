"""Abstract domains: facts about tensors, and the transfer rules of ops on facts.

A fact describes one tensor for every allowed size. A domain defines the facts of inputs and constants, the join of two
facts, and a transfer rule for each op that matters. A domain is sound if each value of a run agrees with its fact. An
op without a rule takes the facts of its decomposition; an op without either takes the domain's `top`. So a missing rule
costs precision and never soundness.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, TypeAlias, TypeVar

from ..ops.body import Body, BodyConstant
from ..ops.dims import Dim
from ..ops.primitive import Kind, Primitive, Static
from ..ops.types import TensorType

F = TypeVar("F")


class OpCall(NamedTuple):
    """An op as its transfer rule receives it.

    inputs, outputs   the types of operands, and of outputs and then residuals
    known             facts of the operands in the domains that this one reads, by the names of those domains
    """

    primitive: Primitive
    static: Static
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    known: Mapping[str, Sequence[Any]]


Rule: TypeAlias = Callable[[Any, OpCall, Sequence[Any]], "Sequence[Any] | None"]
"""(domain, call, facts of the operands) -> facts of outputs and residuals; None to use the op's decomposition."""


class LoopFacts(NamedTuple, Generic[F]):
    """A loop as `limits_of_carries` receives it.

    body        of an iteration: reads the carries first, then the other inputs; the new carries are its first outputs
    init        facts of the initial carries
    carried     facts of the carries before any iteration
    others      facts of the other inputs of the body
    iterations  the number of iterations; None if it is unknown
    """

    body: Body
    init: Sequence[F]
    carried: Sequence[F]
    others: Sequence[F]
    iterations: Dim | None


class Trips(NamedTuple, Generic[F]):
    """The iterations of a while loop.

    most      the largest number of iterations; None without a bound
    counters  the fact of each carry that counts, by the index of the carry
    """

    most: int | None
    counters: Mapping[int, F]


class Domain(ABC, Generic[F]):
    """An abstract domain. Facts are hashable and compared by value, since the results of rules are cached by them.

    name    the name by which other domains read its facts
    asks    the names of the domains whose facts its rules read; they precede it in a run
    rules   transfer rules by primitive; `kinds` for the ops of a kind without a rule
    """

    name: ClassVar[str]
    asks: ClassVar[tuple[str, ...]] = ()
    rules: ClassVar[Mapping[Primitive, Rule]]
    kinds: ClassVar[Mapping[Kind, Rule]] = {}

    @abstractmethod
    def anything(self, type: TensorType) -> F:
        """Return the fact that holds for every tensor of a type, whatever computed it."""

    def source(self, name: str, type: TensorType) -> F:
        """Return the fact of the program's input `name`."""
        return self.anything(type)

    def constant(self, constant: BodyConstant) -> F:
        """Return the fact of a tensor whose value the program contains."""
        return self.anything(constant.type)

    def top(self, type: TensorType, operands: Sequence[F]) -> F:
        """Return the fact that holds for every result that is a function of these operands alone."""
        return self.anything(type)

    @abstractmethod
    def join(self, a: F, b: F) -> F:
        """Return a fact that holds for a tensor if `a` or `b` does."""

    def widen(self, before: F, after: F) -> F:
        """Return a fact that both imply, such that every chain of widened facts ends."""
        return self.join(before, after)

    def leq(self, a: F, b: F) -> bool:
        """Return whether `a` is at least as precise as `b`."""
        return self.join(a, b) == b

    def finish(self, call: OpCall, facts: Sequence[F], results: Sequence[F]) -> Sequence[F]:
        """Return the facts of an op's results, given those of its rule or decomposition."""
        return results

    def renew(self, fact: F) -> F:
        """Return the fact of a new tensor from a loop, a branch or an external call, distinct from other tensors."""
        return fact

    def alone(self, fact: F) -> F:
        """Return the fact without relations to other tensors."""
        return fact

    # Loops over the leading axis of xs. Facts inside the body are those of any of `length` iterations.

    @property
    def context(self) -> Hashable:
        """Return the position of the run in loops, if facts depend on it."""
        return None

    def enter(self, length: Dim) -> None:
        """Enter a loop of `length` iterations."""

    def leave(self) -> None:
        """Leave the innermost loop; calls of `last` and `stacked` follow."""

    def invariant(self, fact: F, length: Dim) -> F:
        """Return the fact, inside an iteration, of a tensor from outside the loop."""
        return fact

    def entry(self, fact: F, type: TensorType, length: Dim) -> F:
        """Return the fact, inside an iteration, of its slice along the leading axis of a tensor of type `type`."""
        return fact

    def next_carry(self, fact: F, length: Dim, reverse: bool) -> F:
        """Return the fact of an iteration's result as the next iteration receives it."""
        return self.alone(fact)

    def last(self, fact: F, length: Dim) -> F:
        """Return the fact, after the loop, of a carry that some iteration computed."""
        return self.alone(fact)

    def stacked(self, fact: F, length: Dim) -> F:
        """Return the fact of the results of all iterations, stacked along a new leading axis."""
        return self.alone(fact)

    def mark(self) -> object:
        """Return a position in the remarks, to which `forget` returns."""
        return None

    def forget(self, mark: object) -> None:
        """Drop the remarks after a position: they describe facts that were only tried."""

    def note_growth(self, before: F, after: F) -> None:
        """Record that a loop's carry has no known bound: `before` is the fact of its initial value, `after` of all
        values.
        """

    def bound_trips(
        self, body: Body, init: Sequence[F], iteration: Callable[[], tuple[Sequence[F], Sequence[F | None]]]
    ) -> Trips[F]:
        """Bound the iterations of a while loop, given the facts of its initial carries.

        iteration   returns the facts of the carries that satisfy the test, and of all slots of the body then
        """
        return Trips(None, {})

    def limits_of_carries(self, loop: LoopFacts[F]) -> Sequence[F | None]:
        """Return for each carry a fact that holds after any number of iterations; None without one.

        The domain proves these facts in another way than by a fixpoint.
        """
        return [None] * len(loop.init)

    def limit(self, fact: F, limit: F) -> F:
        """Return the fact of a carry after an iteration that started within the limit."""
        return fact

    def refine(self, facts: Sequence[F], test: F, holds: bool) -> Sequence[F]:
        """Return the facts of tensors where a scalar with the fact `test`, computed from them, is True, or False."""
        return facts

    def influence(self, fact: F, by: F) -> F:
        """Return the fact of a tensor whose choice, or number of iterations, depends on a scalar with the fact `by`."""
        return self.alone(fact)
