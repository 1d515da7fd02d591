"""A domain: the values of an abstract run, *facts* about tensors, and what each op makes of them.

A fact is about one tensor and holds for every allowed size. A domain says what is known of inputs and constants, how
two facts join, and by a rule for each op that matters what is known of its results. It is sound if whatever a run
computes is as its fact says; an op without a rule takes that of its decomposition, and without either the domain's
`top`, so a missing rule costs precision and never truth.
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
    """An op as a rule sees it.

    inputs, outputs   the types of operands, and of outputs and then residuals
    known             facts of the operands in the domains that this one asks, by the names of those domains
    """

    primitive: Primitive
    static: Static
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    known: Mapping[str, Sequence[Any]]


Rule: TypeAlias = Callable[[Any, OpCall, Sequence[Any]], "Sequence[Any] | None"]
"""(domain, call, facts of the operands) -> facts of outputs and residuals; None where the rule does not know, which
leaves the op to its decomposition."""


class LoopFacts(NamedTuple, Generic[F]):
    """A loop as `limits_of_carries` sees it.

    body        of an iteration: carries first, then what else it reads; the new carries first among its outputs
    init        facts of the first carries
    carried     facts of the carries of any iteration
    others      facts of what else the body reads
    iterations  how many there are; None where that is not known
    """

    body: Body
    init: Sequence[F]
    carried: Sequence[F]
    others: Sequence[F]
    iterations: Dim | None


class Domain(ABC, Generic[F]):
    """Facts are hashable and compared by value: what a rule gives is kept by what it was given.

    name    by which other domains ask for its facts
    asks    the names of domains whose facts of the operands its rules read; they stand before it in a run
    rules   by primitive; `kinds` for the ops of a kind that have none
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
        """A fact that holds of a tensor of which `a` or `b` does."""

    def widen(self, before: F, after: F) -> F:
        """A fact that both imply, such that a chain of these ends: for loops."""
        return self.join(before, after)

    def leq(self, a: F, b: F) -> bool:
        """Whether `a` says at least as much as `b`."""
        return self.join(a, b) == b

    def finish(self, call: OpCall, facts: Sequence[F], results: Sequence[F]) -> Sequence[F]:
        """The facts of an op's results, from those that its rule or its decomposition gave."""
        return results

    def renew(self, fact: F) -> F:
        """The fact of a tensor that a loop, a choice or the world outside gave, each time another one."""
        return fact

    def alone(self, fact: F) -> F:
        """The part of a fact that names no other tensors that the tensor goes with."""
        return fact

    # A loop over the leading axis of its xs. Facts of its body are those of any iteration, of which there are `length`.

    @property
    def context(self) -> Hashable:
        """Where a run is, as far as facts depend on it."""
        return None

    def enter(self, length: Dim) -> None:
        """A loop begins."""

    def leave(self) -> None:
        """It ends; `last` and `stacked` follow."""

    def invariant(self, fact: F, length: Dim) -> F:
        """In an iteration: a tensor from outside of the loop."""
        return fact

    def entry(self, fact: F, type: TensorType, length: Dim) -> F:
        """In an iteration: its entry of a tensor, of type `type`, along the leading axis."""
        return fact

    def next_carry(self, fact: F, length: Dim, reverse: bool) -> F:
        """A result of an iteration, as the next one takes it."""
        return self.alone(fact)

    def last(self, fact: F, length: Dim) -> F:
        """A result of an iteration, behind the loop: it is that of some iteration."""
        return self.alone(fact)

    def stacked(self, fact: F, length: Dim) -> F:
        """The results of all iterations, stacked along a new leading axis."""
        return self.alone(fact)

    def mark(self) -> object:
        """The place in the remarks so far to which `forget` returns."""
        return None

    def forget(self, mark: object) -> None:
        """Drop the remarks since then: they are about facts that were tried."""

    def note_growth(self, before: F, after: F) -> None:
        """Note what is not known of what a loop carries: `before` of its first value, `after` of all of them."""

    def limits_of_carries(self, loop: LoopFacts[F]) -> Sequence[F | None]:
        """For each carry a fact that holds of it after any number of iterations, proved in another way than by one that
        stays as it is; None where there is none."""
        return [None] * len(loop.init)

    def limit(self, fact: F, limit: F) -> F:
        """The fact of a carry after an iteration that began with one within the limit."""
        return fact

    def refine(self, facts: Sequence[F], test: F, holds: bool) -> Sequence[F]:
        """The facts of tensors where a scalar of the fact `test`, computed from them, is True, or is False."""
        return facts

    def influence(self, fact: F, by: F) -> F:
        """A tensor that was chosen, or computed as often as was chosen, by a scalar of the fact `by`."""
        return self.alone(fact)
