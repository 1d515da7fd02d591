"""Functions that numba compiles when they are first called, once per dtype.

numba is imported then and not before. Machine code is kept on disk, so that the next process only loads it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import numpy as np

from ...host import Array, packed
from ...native.compiler import import_numba
from ...native.folder import compiling
from ...native.inlined import Function, register_formulas
from ...native.overloads import kept


def flat(x: Array) -> Array:
    """The elements of x in row-major order, as a vector."""
    return packed(x).reshape(-1)


def integers(x: Array) -> Array:
    """The elements of an integer array as a vector of int64."""
    return flat(x.astype(np.int64, copy=False))


def rows(x: Array) -> Array:
    """x as a matrix whose rows run along its last axis, which is not empty."""
    return packed(x).reshape(-1, x.shape[-1])


@final
class JitLoop:
    """A function of packed arrays and numbers; the last `results` arguments are the arrays that it writes.

    The dtype of the last one decides the types of all. Every operation is rounded as written and in its order, but for
    `functions.add`.
    """

    __slots__ = ("function", "__wrapped__", "_results", "_compiled")

    def __init__(self, function: Function, results: int):
        self.function = self.__wrapped__ = function
        self._results = results
        self._compiled: dict[Any, Function] = {}

    def __call__(self, *args: Any) -> Any:
        compiled = self._compiled.get(args[-1].dtype)
        if compiled is None:
            compiled = self._compiled[args[-1].dtype] = self._compile(args)
        return compiled(*args)

    def _compile(self, args: tuple[Any, ...]) -> Function:
        numba = import_numba()
        types = [numba.typeof(arg) for arg in args]
        for i, arg in enumerate(args):
            if isinstance(arg, np.ndarray):
                read = i < len(args) - self._results
                types[i] = numba.types.Array(types[i].dtype, arg.ndim, "C", readonly=read)

        def compile_with(keep: bool) -> Function:
            made = numba.njit(cache=keep, error_model="numpy")(self.function)
            made._compiler._customize_flags = _apart
            made.compile(tuple(types))
            made.disable_compile()
            return made  # type: ignore[no-any-return]

        compiled: Function = _compiled_with_formulas(compile_with)
        return compiled


def _apart(flags: Any) -> Any:
    """Flags of numba's compiler that say: no array is another one's memory.

    Else LLVM writes two loops: one with vector instructions, for arrays that are apart as far as it can tell, and one
    without for others. Sums have other bits in them, so a result would depend on where an array stands.
    """
    flags.noalias = True
    return flags


def loop(*, results: int = 1) -> Callable[[Function], JitLoop]:
    """Decorates a function that is to become a `JitLoop`."""
    return lambda function: JitLoop(function, results)


@final
class Elementwise:
    """A NumPy ufunc of a formula: it broadcasts, and takes arrays of any strides.

    numba makes it of the formula and a loop, and inlines the one into the other, without which there are no vector
    instructions, only if the formula is short: about the size of exp and ten operations. A longer one is a `JitLoop`.
    """

    __slots__ = ("_factory", "_functions", "_operands", "_compiled", "_owners")

    def __init__(self, factory: Function, *functions: Function, operands: int = 1):
        """`factory(real, *functions)` makes the formula of `operands` numbers of type `real`."""
        self._factory = factory
        self._functions = functions
        self._operands = operands
        self._compiled: dict[Any, Function] = {}
        self._owners: list[Any] = []  # of the machine code that the ufuncs point to

    def __call__(self, *operands: Array) -> Any:
        compiled = self._compiled.get(operands[0].dtype)
        if compiled is None:
            compiled = self._compiled[operands[0].dtype] = self._compile(operands[0].dtype)
        return compiled(*operands)

    def _compile(self, dtype: np.dtype[Any]) -> Function:
        numba = import_numba()
        kind = numba.from_dtype(dtype)
        formula = self._factory(dtype.type, *self._functions)
        signature = kind(*[kind] * self._operands)
        owner = _compiled_with_formulas(lambda keep: numba.vectorize([signature], cache=keep)(formula))
        self._owners.append(owner)
        ufunc: Function = owner.ufunc  # without the layer that compiles for other types, which costs 0.4 µs a call
        return ufunc


def _compiled_with_formulas(compile_with: Callable[[bool], Any]) -> Any:
    with compiling:
        register_formulas()
        return kept(compile_with)
