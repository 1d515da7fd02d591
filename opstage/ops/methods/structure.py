"""`Structure`: what an interpreter supplies; every op is a method made of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from fractions import Fraction
from typing import Any, Generic

import numpy.typing as npt

from ..cursor import Cursor
from ..dims import Dim
from ..primitive import Primitive, R, Static
from ..types import DType


class Structure(ABC, Generic[R]):
    """The seam and the methods that are no ops, over refs of type R."""

    __slots__ = ()

    dtype: DType
    """The float dtype in which this program computes (`Options.dtype`)."""
    cursor: Cursor
    """Where the program is; shared by a whole stack of interpreters."""
    seed: int
    """The seed of draws that name none (`Options.seed`)."""

    @abstractmethod
    def bind(self, primitive: Primitive, refs: tuple[R, ...], static: Static, /) -> tuple[R, ...]:
        """The seam: one op on refs; outputs, then residuals."""

    @abstractmethod
    def const(self, value: npt.ArrayLike | Fraction, /, *, dtype: str | DType | None = None) -> R:
        """A constant from a Python number or NumPy array; floats take the program's dtype unless one is given."""

    @abstractmethod
    def step(self) -> R:
        """The training step, an integer scalar that enters a program as a hidden input."""

    @abstractmethod
    def iterations(self) -> tuple[R, ...]:
        """Where each scan around this place stands along its xs, outermost first: integer scalars that a draw reads."""

    @abstractmethod
    def region(self, name: str, f: Callable[..., Any], /, *args: Any) -> Any:
        """`f(ops, *args)` as a named part of the program."""

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
        carry comes back unchanged. Raises ShapeError where xs disagree or the carry changes its type. As jax.lax.scan.
        """

    @abstractmethod
    def vjp_of(self, f: Callable[..., Any], /, *refs: R) -> tuple[Any, Callable[[Any], tuple[R | None, ...]]]:
        """Value of `f(ops, *refs)` and its pullback; see `opstage.transform.vjp`."""

    @abstractmethod
    def jvp_of(self, f: Callable[..., Any], refs: tuple[R, ...], tangents: tuple[R | None, ...], /) -> tuple[Any, Any]:
        """Value and tangent of `f(ops, *refs)`; see `opstage.transform.jvp`."""
