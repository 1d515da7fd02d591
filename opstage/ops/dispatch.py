"""The dispatch interface: what an interpreter supplies, and `Cursor`: the position in the program that it runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, Generic

import numpy.typing as npt

from .dims import Dim
from .mesh import ALONE, Mesh
from .primitive import Kind, Primitive, R, Static
from .splitmix import draw_site
from .types import DType

# The position: the region path, the ordinal of the op, and the number of draws ----------------------------------------

# One cursor is shared by a whole stack of interpreters, so that all number the user's ops alike. Only ops that the
# user's program calls are counted: while a derivative rule or a decomposition runs, the cursor is quiet and stays at
# the op that the rule belongs to.


class Region:
    """A named part of a program; its path distinguishes occurrences of a name (`block`, `block#1`)."""

    __slots__ = ("path", "name", "draws", "_children")

    def __init__(self, path: tuple[tuple[str, int], ...] = ()):
        self.path = path
        self.name = ".".join(name if not occurrence else f"{name}#{occurrence}" for name, occurrence in path)
        self.draws = 0
        self._children: dict[str, int] = {}

    def child(self, name: str) -> Region:
        """Enter the next occurrence of `name` in this region."""
        occurrence = self._children.get(name, 0)
        self._children[name] = occurrence + 1
        return Region((*self.path, (name, occurrence)))

    def mark(self) -> tuple[int, dict[str, int]]:
        """Return a mark for `rewind`, which discards later draws and regions, such as those of a call that failed."""
        return self.draws, dict(self._children)

    def rewind(self, mark: tuple[int, dict[str, int]]) -> None:
        self.draws, self._children = mark


RULE = 2
"""The mark of what a declared rule computes: it recomputes what it asks for, rather than have it kept."""


class Cursor:
    """The position of a running program, shared by all interpreters of a stack.

    quiet       whether a rule or decomposition of the op at the cursor is running
    backward    1 while a tape runs a backward pass, `RULE` while it runs a rule in it that recomputes what it needs
    """

    __slots__ = ("region", "ordinal", "quiet", "backward")

    def __init__(self) -> None:
        self.region = Region()
        self.ordinal = 0
        self.quiet = False
        self.backward = 0

    def mark(self) -> tuple[int, tuple[int, dict[str, int]]]:
        """Return a mark for `rewind`, which restores the ops, draws and regions of a part that runs again."""
        return self.ordinal, self.region.mark()

    def rewind(self, mark: tuple[int, tuple[int, dict[str, int]]]) -> None:
        self.ordinal = mark[0]
        self.region.rewind(mark[1])

    def next_site(self) -> int:
        """Return the random site of the next draw: a hash of the region path and the draw's ordinal in the region."""
        region = self.region
        site = draw_site(region.path, region.draws)
        region.draws += 1
        return site


class Quietly:
    """Runs a rule or decomposition of the op at the cursor: `with Quietly(cursor):`."""

    __slots__ = ("cursor", "_quiet", "_region", "_ordinal")

    def __init__(self, cursor: Cursor):
        self.cursor = cursor

    def __enter__(self) -> None:
        cursor = self.cursor
        self._quiet, self._region, self._ordinal = cursor.quiet, cursor.region, cursor.ordinal
        cursor.quiet = True

    def __exit__(self, *exception: object) -> None:
        cursor = self.cursor
        cursor.quiet, cursor.region, cursor.ordinal = self._quiet, self._region, self._ordinal


# What an interpreter supplies -----------------------------------------------------------------------------------------

VARY_LIKE = Primitive(
    "vary_like",
    operands=("x", "like"),
    kind=Kind.LAYOUT,
    shape=lambda x, like: (x,),
    decomposition=lambda ops, x, like: (x,),
    vjp=lambda ops, ctx, cotangents: (cotangents[0], None),
    jvp=lambda ops, primals, outputs, tangents: (
        None if tangents[0] is None else ops.vary_like(tangents[0], primals[1]),
    ),
)
"""`DispatchInterface.vary_like` in a body that is being traced, before a mesh's `Varying` has found what varies."""


class DispatchInterface(ABC, Generic[R]):
    """`bind`, and the methods that are not ops, over refs of type R."""

    __slots__ = ()

    dtype: DType
    """The float dtype of this program (`Options.dtype`)."""
    cursor: Cursor
    """The position in the program, shared by a whole stack of interpreters."""
    seed: int
    """The seed of draws without their own (`Options.seed`)."""

    @property
    def mesh(self) -> Mesh:
        """Return the mesh whose rank runs the program; by default a mesh of one rank."""
        return ALONE

    def vary_like(self, x: R, like: R, /) -> R:
        """Return x, varying over the mesh axes over which `like` varies; x itself without a mesh."""
        return self.bind(VARY_LIKE, (x, like), {})[0] if self.mesh.axes else x

    @abstractmethod
    def bind(self, primitive: Primitive, refs: tuple[R, ...], static: Static, /) -> tuple[R, ...]:
        """Bind one op on refs; return outputs, then residuals."""

    @abstractmethod
    def const(self, value: npt.ArrayLike | Fraction, /, *, dtype: str | DType | None = None) -> R:
        """Return a constant from a Python number or NumPy array; floats get the program's dtype by default.

        Raises:
            DtypeError: a number that the dtype does not hold.
            UsageError: no such dtype; a value that is not an array of numbers, or has masked entries.
        """

    @abstractmethod
    def step(self) -> R:
        """Return the training step, an integer scalar that is a hidden input of the program."""

    @abstractmethod
    def iterations(self) -> tuple[R, ...]:
        """Return the iteration numbers of the enclosing scans, outermost first: integer scalars that draws depend
        on."""

    @abstractmethod
    def region(self, name: str, f: Callable[..., Any], /, *args: Any) -> Any:
        """Run `f(ops, *args)` as a named part of the program; return its result.

        Raises:
            ProgramError: a name that is not a string; f that is not a function.
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
        """Loop `carry, y = f(ops, carry, x)` over the entries x of xs; return the last carry and the stacked y's.

        f         traced once, with its own ops, which it must use; outer refs are constants of
                  the loop, with gradients. Returns a pair (carry, y)
        carry     a pytree of refs; f returns one of the same structure, shapes and dtypes
        xs        a pytree of refs with a common leading axis, along which the loop runs; None if `length` is given
        reverse   run from the last entry to the first; the y's stay in the order of xs
        length    the number of iterations, if not given by xs

        The y's are a pytree of refs (or None), stacked along a new leading axis. Reverse mode keeps xs, the carry of
        every iteration and, if the body has a product, the values that its derivatives read; other bodies are
        recomputed. Random ops draw again in each iteration, by its position along xs. Without iterations the
        carry is returned unchanged. As jax.lax.scan.

        Raises:
            ProgramError: f that does not return a pair of refs.
            ShapeError: xs that disagree in their leading axis or have none; a carry that changes its structure or type.
        """

    @abstractmethod
    def cond(self, pred: R, true_fn: Callable[..., Any], false_fn: Callable[..., Any], /, *operands: Any) -> Any:
        """Return `true_fn(ops, *operands)` if pred is True, else `false_fn(ops, *operands)`, as one op.

        pred       a boolean scalar
        true_fn    both are traced once, with their own ops, which they must use; outer refs
        false_fn   may be read, with gradients. They return pytrees of the same structure and types
        operands   pytrees of refs, passed to the function

        Only the chosen branch runs, and derivatives are those of that branch: results of the other,
        such as nan, have no effect. The backward pass recomputes the branch. The cost is that of the most
        expensive branch. As jax.lax.cond and torch.cond.

        Raises:
            DtypeError: pred not a mask.
            ShapeError: pred that is not a scalar; branches whose results differ in structure or type.
        """

    @abstractmethod
    def switch(self, index: R, branches: Sequence[Callable[..., Any]], /, *operands: Any) -> Any:
        """Call one of the branches, by number: `cond` with any number of branches.

        index   an integer scalar from 0 to len(branches) - 1; jax.lax.switch clamps it instead

        Raises:
            ProgramError: no branches.
            RangeError: an index without a branch, when it runs.
            ShapeError: index that is not an integer scalar; branches whose results differ in structure or type.
        """

    @abstractmethod
    def while_loop(
        self, cond: Callable[..., R], body: Callable[..., Any], init: Any, *, max_iterations: Dim | None = None
    ) -> Any:
        """Loop `while cond(ops, carry): carry = body(ops, carry)` from `carry = init`; return the last carry.

        cond             both are traced once, with their own ops, which they must use; outer refs are
        body             constants of the loop, with gradients. cond returns a boolean
                         scalar, body a carry of the same structure, shapes and dtypes
        init             a pytree of refs
        max_iterations   the largest number of iterations

        Forward mode carries tangents along. Reverse mode needs `max_iterations`, and recomputes the loop as a scan
        of that length whose iterations do nothing after the last one; it keeps a carry for each. Random ops draw
        again in each iteration. The cost is that of `max_iterations` iterations, or of one if no bound is
        declared. As jax.lax.while_loop.

        Raises:
            RangeError: a condition that still holds after max_iterations, when it runs.
            ShapeError: a condition that is not a boolean scalar; a carry that changes its structure or type.
            UnsupportedError: reverse mode without max_iterations.
        """

    @abstractmethod
    def remat(self, f: Callable[..., Any], /, *operands: Any) -> Any:
        """`f(ops, *operands)`, of which the backward pass keeps the operands alone and runs f again.

        f          traced once, with its own ops, which it must use; outer refs that it reads count as operands
        operands   pytrees of refs; leaves that are not refs, such as numbers, are passed on unchanged

        It trades time for memory: values, gradients and random draws are those of f. Use it for a block of a deep
        model. As jax.checkpoint and torch.utils.checkpoint.

        Raises:
            ProgramError: f that is not a function, or returns anything but refs.
        """

    @abstractmethod
    def vjp_of(self, f: Callable[..., Any], /, *refs: R) -> tuple[Any, Callable[[Any], tuple[R | None, ...]]]:
        """Return the value of `f(ops, *refs)` and its pullback; see `opstage.transform.vjp`."""

    @abstractmethod
    def jvp_of(self, f: Callable[..., Any], refs: tuple[R, ...], tangents: tuple[R | None, ...], /) -> tuple[Any, Any]:
        """Return the value and tangent of `f(ops, *refs)`; see `opstage.transform.jvp`."""

    @abstractmethod
    def vmap_of(self, f: Callable[..., Any], /, *trees: Any, **how: Any) -> Any:
        """Return the results of f on all examples of a batch; see `opstage.transform.vmap`."""

    @abstractmethod
    def bounds_of(self, f: Callable[..., Any], /, *trees: Any) -> Any:
        """Return boxes of `f(ops, *trees)` over the boxes among its arguments; see `opstage.transform.bounds`."""
