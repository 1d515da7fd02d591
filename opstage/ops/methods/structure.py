"""`Structure`: what an interpreter supplies; every op is a method made of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, Generic

import numpy.typing as npt

from ..cursor import Cursor
from ..dims import Dim
from ..mesh import ALONE, Mesh
from ..primitive import Primitive, R, Static
from ..types import DType


class Structure(ABC, Generic[R]):
    """The seam and the methods that are not ops, over refs of type R."""

    __slots__ = ()

    dtype: DType
    """The float dtype in which this program computes (`Options.dtype`)."""
    cursor: Cursor
    """Where the program is; shared by a whole stack of interpreters."""
    seed: int
    """The seed of draws that name none (`Options.seed`)."""

    @property
    def mesh(self) -> Mesh:
        """The mesh of which a rank runs the program; one of a single rank where nobody has said otherwise."""
        return ALONE

    def vary_like(self, x: R, like: R, /) -> R:
        """x, varying over the axes of the mesh over which `like` does: x itself where no mesh is."""
        return x

    @abstractmethod
    def bind(self, primitive: Primitive, refs: tuple[R, ...], static: Static, /) -> tuple[R, ...]:
        """The seam: one op on refs; outputs, then residuals."""

    @abstractmethod
    def const(self, value: npt.ArrayLike | Fraction, /, *, dtype: str | DType | None = None) -> R:
        """A constant from a Python number or NumPy array; floats take the program's dtype unless one is given.

        Raises:
            DtypeError: a number that the dtype does not hold.
            UsageError: no such dtype; what is no array of numbers, or has masked entries.
        """

    @abstractmethod
    def step(self) -> R:
        """The training step, an integer scalar that enters a program as a hidden input."""

    @abstractmethod
    def iterations(self) -> tuple[R, ...]:
        """Where each scan around this place stands along its xs, outermost first: integer scalars that a draw reads."""

    @abstractmethod
    def region(self, name: str, f: Callable[..., Any], /, *args: Any) -> Any:
        """`f(ops, *args)` as a named part of the program.

        Raises:
            ProgramError: a name that is no text; f that is no function.
        """

    @abstractmethod
    def scan(
        self,
        f: Callable[..., tuple[Any, Any]],
        carry: Any,
        xs: Any,
        *,
        reverse: bool = False,
        length: Dim | None = None,
    ) -> tuple[Any, Any]:
        """The loop `carry, y = f(ops, carry, x)` over the entries x of xs: the last carry, and the y's stacked.

        f         called once, to trace it, with ops of its own, which it must use; refs from outside are constants of
                  the loop, and have gradients all the same. Returns a pair (carry, y)
        carry     a pytree of refs; f returns one of the same structure, shapes and dtypes
        xs        a pytree of refs that share their leading axis, along which the loop runs; None with `length` given
        reverse   run from the last entry to the first; the y's stay in the order of xs
        length    how many iterations, where xs does not say it

        The y's are a pytree of refs (or None), stacked along a new leading axis. Reverse mode keeps xs, the carry of
        every iteration and, if the body has a product, what the derivatives of its ops read; a body without one it
        computes anew. A random op draws afresh in each iteration, by its position along xs. Without iterations the
        carry comes back unchanged. As jax.lax.scan.

        Raises:
            ProgramError: f that does not return a pair of refs.
            ShapeError: xs that disagree in their leading axis or have none; a carry that changes its structure or type.
        """

    @abstractmethod
    def cond(self, pred: R, true_fn: Callable[..., Any], false_fn: Callable[..., Any], /, *operands: Any) -> Any:
        """`true_fn(ops, *operands)` where pred is True, else `false_fn(ops, *operands)`: a choice that is one op.

        pred       a boolean scalar
        true_fn    both are called once, to be traced, with ops of their own, which they must use; refs from outside
        false_fn   may be read, and have gradients all the same. They give pytrees of the same structure and types
        operands   pytrees of refs, passed on

        Only the branch that is chosen runs, and derivatives are those of that branch: what the other would have given,
        nan among it, reaches nothing. The backward pass computes the branch anew. The cost is counted as that of the
        dearest branch. As jax.lax.cond and torch.cond.

        Raises:
            DtypeError: pred not a mask.
            ShapeError: pred that is no scalar; branches whose results differ in structure or type.
        """

    @abstractmethod
    def switch(self, index: R, branches: Sequence[Callable[..., Any]], /, *operands: Any) -> Any:
        """One of the branches, by its number: `cond` of any number of them.

        index   an integer scalar from 0 to len(branches) - 1; jax.lax.switch takes the nearest where it is another

        Raises:
            ProgramError: no branches.
            RangeError: an index without a branch, when it runs.
            ShapeError: index that is no integer scalar; branches whose results differ in structure or type.
        """

    @abstractmethod
    def while_loop(
        self, cond: Callable[..., R], body: Callable[..., Any], init: Any, *, max_iterations: Dim | None = None
    ) -> Any:
        """The loop `while cond(ops, carry): carry = body(ops, carry)` from `carry = init`: the last carry.

        cond             both are called once, to be traced, with ops of their own, which they must use; refs from
        body             outside are constants of the loop, and have gradients all the same. cond gives a boolean
                         scalar, body a carry of the same structure, shapes and dtypes
        init             a pytree of refs
        max_iterations   the most iterations that there may be

        Forward mode carries tangents along. Reverse mode needs `max_iterations`, and computes the loop anew as a scan
        of that length whose iterations do nothing after the last one: it keeps a carry for each. A random op draws
        afresh in each iteration. The cost is counted for `max_iterations` iterations; for one where no bound is
        declared. As jax.lax.while_loop.

        Raises:
            RangeError: a condition that still holds after max_iterations, when it runs.
            ShapeError: a condition that is no boolean scalar; a carry that changes its structure or type.
            UnsupportedError: reverse mode without max_iterations.
        """

    @abstractmethod
    def vjp_of(self, f: Callable[..., Any], /, *refs: R) -> tuple[Any, Callable[[Any], tuple[R | None, ...]]]:
        """Value of `f(ops, *refs)` and its pullback; see `opstage.transform.vjp`."""

    @abstractmethod
    def jvp_of(self, f: Callable[..., Any], refs: tuple[R, ...], tangents: tuple[R | None, ...], /) -> tuple[Any, Any]:
        """Value and tangent of `f(ops, *refs)`; see `opstage.transform.jvp`."""

    @abstractmethod
    def bounds_of(self, f: Callable[..., Any], /, *trees: Any) -> Any:
        """Boxes of `f(ops, *trees)` over the boxes among its arguments; see `opstage.transform.bounds`."""
