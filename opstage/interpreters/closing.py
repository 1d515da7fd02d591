"""Runs users' functions on a wrapper: one whose refs become invalid afterwards, or one whose refs have operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from typing_extensions import override

from ..ops.hints import add_hint
from ..ops.infix import Infix
from ..ops.primitive import Primitive, Static
from ..ops.trees import Structure, flatten, unflatten
from .interpreter import Holding, Interpreter, Wrapper

R = TypeVar("R", bound=Any)


def run_closed(
    wrapper: Wrapper[R, Any], f: Callable[..., Any], *arguments: Any, leaked: str
) -> tuple[list[R], Structure]:
    """The leaves of `f(wrapper, *arguments)` as refs of the wrapper, which is then closed, and their structure.

    `leaked` is the error for a ref that is used afterwards. A LookupError or TypeError gets a hint.
    """
    try:
        result = f(wrapper, *arguments)
    except (LookupError, TypeError) as error:
        add_hint(error)
        raise
    outputs, structure = flatten(result)
    found = [wrapper.adopt(output) for output in outputs]
    wrapper.close(leaked)
    return found, structure


class Held(Holding):
    """A ref of `Refs`."""

    __slots__ = ("value", "ops")

    def __init__(self, value: Any, ops: Refs):
        self.value = value
        self.ops = ops


class Refs(Wrapper[Held, Any]):
    """Passes ops on to an interpreter whose values are arrays or buffers, as refs that have operators."""

    __slots__ = ()
    ref_type = Held

    def __init__(self, inner: Interpreter[Any]):
        super().__init__(inner, differentiates=False)

    @override
    def adopt(self, ref: Any, /) -> Held:
        if type(ref) is Held and ref.ops is not self:
            other = ref.ops
            if other.inner is self.inner and other.cursor is self.cursor:  # of another function in the same run
                return Held(ref.value, self)
        return super().adopt(ref)

    @override
    def wrap(self, value: Any, /) -> Held:
        return Held(value, self)

    @override
    def bind(self, primitive: Primitive, refs: tuple[Held, ...], static: Static, /) -> tuple[Held, ...]:
        values = tuple([(r if type(r) is Held and r.ops is self else self.adopt(r)).value for r in refs])
        return tuple([Held(out, self) for out in self.inner.bind(primitive, values, static)])


def on_refs(ops: Interpreter[Any], f: Callable[..., Any], /, *trees: Any) -> Any:
    """`f(ops', *trees)` for a user's f and trees of refs of `ops`; the result in refs of `ops`.

    If those are arrays, f gets refs that hold them: operators of an array are NumPy's, with its dtypes, and `+=` would
    write to an array that others read.
    """
    leaves, structure = flatten(trees)
    if not leaves or isinstance(leaves[0], Infix):
        return f(ops, *trees)
    refs = Refs(ops)
    found, result = flatten(f(refs, *unflatten(structure, [refs.wrap(leaf) for leaf in leaves])))
    return unflatten(result, [refs.adopt(ref).value for ref in found])
