"""Lists of scalar tensors as arguments of a program: these are trees, but may be mistaken for tensors.

A list of numbers becomes an array before a program sees it; a list of arrays without axes, or of such Specs, is a tree.
For a Python list, `x + x` and `x * 2` make longer lists; for a tensor they compute other numbers. So the list that a
program gets has no operators: ambiguous uses raise an error.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NoReturn, final

import optree

from .errors import ProgramError
from .infix import Infix
from .untrusted import a_type

_EVERYWHERE: Any = vars(optree.registry)["__GLOBAL_NAMESPACE"]

apart = object()
"""Another object each time that `Scalars` are flattened: only where it has changed does a tree contain them."""

_CURE = "a list of scalar arrays is a tree of them; pass np.asarray(…) of it for one tensor"

_OPERATORS = {
    **{
        f"__{way}{name}__": symbol
        for name, symbol in (("add", "+"), ("sub", "-"), ("mul", "*"), ("truediv", "/"), ("matmul", "@"), ("pow", "**"))
        for way in ("", "r", "i")
    },
    "__lt__": "<",
    "__le__": "<=",
    "__gt__": ">",
    "__ge__": ">=",
    "__neg__": "-",
    "__abs__": "abs",
}


def _refusing(symbol: str) -> Callable[..., Any]:
    def method(self: Any, *_: Any) -> NoReturn:
        raise ProgramError(
            f"{symbol} of a list of {len(self)} would not be what it is of a tensor: {_CURE}, or write [*x, *y] for a "
            "longer list"
        )

    return method


@final
class Scalars(list[Any]):
    """A list of scalar refs, or of such lists, as passed to a program: a list without operators."""

    __slots__ = ()

    for _name, _symbol in _OPERATORS.items():
        locals()[_name] = _refusing(_symbol)
    del _name, _symbol

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a list has no {name}: {_CURE}", name=name, obj=self)

    def __reduce_ex__(self, _: Any) -> tuple[Any, ...]:
        return list, (list(self),)


def _entries(scalars: Collection[Any]) -> tuple[list[Any], None]:
    global apart
    apart = object()
    return list(scalars), None


# optree treats it as a tree, like any list, and not as a leaf.
optree.register_pytree_node(Scalars, _entries, lambda _, entries: list(entries), namespace=_EVERYWHERE)


def all_scalars(tree: Any) -> bool:
    """Return whether a tree of refs is a nonempty list of scalars or of such lists."""
    return type(tree) in (list, Scalars) and bool(tree) and all(map(_is_scalar, tree))


def _is_scalar(entry: Any) -> bool:
    return isinstance(entry, Infix) and len(entry.shape) == 0 or all_scalars(entry)


def as_scalars(tree: Any) -> Any:
    """Convert a list for which `all_scalars` holds to `Scalars`; return anything else unchanged."""
    if not all_scalars(tree):
        return tree
    return Scalars(map(as_scalars, tree))


def as_list(tree: Any) -> Any:
    """Convert `Scalars` to a list; return anything else unchanged."""
    return [as_list(entry) for entry in tree] if type(tree) is Scalars else tree


def no_ref(value: Any, cure: str = "make one with ops.const(…)", op: str = "an op") -> ProgramError:
    """Return the error for an argument of an op that is not a ref."""
    return ProgramError(f"{op} got {a_kind_of(value)} where it needs a ref; {cure}{if_list(value)}")


def a_kind_of(value: Any) -> str:
    return "a list" if type(value) is Scalars else a_type(value)


def if_list(value: Any) -> str:
    """Return the continuation of a message about a non-tensor, if the value is a list."""
    return f"; {_CURE}" if isinstance(value, (list, tuple)) else ""
