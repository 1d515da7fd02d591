"""Hints where a function of Python, NumPy, PyTorch … was called on a ref: the equivalent op.

The error is raised by that function, or by a ref that refuses conversion to an array or number. The user's line
identifies the function.
"""

from __future__ import annotations

import ast
import builtins
import linecache
from itertools import islice
from types import ModuleType, TracebackType
from typing import Any

from .errors import is_library, is_user_file
from .infix import Infix
from .other_names import names_of

_MODULES = frozenset({"numpy", "math", "cmath", "torch", "jax", "scipy", "tensorflow", "cupy"})

_BUILTINS: dict[Any, str] = {
    max: "the larger of two is ops.maximum(x, y), the largest along axes ops.reduce_max(x, axis=…)",
    min: "the smaller of two is ops.minimum(x, y)",
    sum: "the sum of all elements is ops.sum(x), along axes ops.reduce_sum(x, axis=…)",
    range: "a loop along an axis is range(x.shape[0]), or ops.scan where the length is data",
    int: 'another dtype is ops.cast(x, dtype="int64"); a number leaves a program as its result',
    float: "another dtype is ops.cast(x, dtype=ops.dtype); a number leaves a program as its result",
    bool: 'another dtype is ops.cast(x, dtype="bool"); branches are ops.select(mask, x, y)',
}
_ITSELF = "a ref is a tensor already, and leaves a program as its result"
_OF_REFS = dict.fromkeys(("array", "asarray", "ascontiguousarray", "tensor", "as_tensor", "from_numpy"), _ITSELF) | {
    "fabs": "it is ops.abs(x)",
    "full_like": "it is ops.full(shape=x.shape, value=…, dtype=x.dtype)",
}


def of_a_call(error: TypeError) -> str | None:
    """Return a hint for an error from a call on a ref; None if the error has another cause."""
    if not _about_a_ref(error):
        return None
    found = _call(error.__traceback__)
    if found is None:
        return None
    written, frame = found
    root, _, rest = written.partition(".")
    function = frame.f_locals.get(root, frame.f_globals.get(root))
    if not rest and function is None:
        hint = _BUILTINS.get(getattr(builtins, written, None))
        return None if hint is None else f"{written}(…) takes no refs: {hint}"
    home = function.__name__ if isinstance(function, ModuleType) else getattr(function, "__module__", None)
    if str(home).partition(".")[0] not in _MODULES:
        return None
    return f"{written} takes no refs: {op_for(written.rpartition('.')[2])}"


def op_for(name: str, owner: str = "the program's first argument") -> str:
    """Return the hint for a function of another library that was called with refs of `owner`, whose methods are ops."""
    from .protocol import OPS

    if name in _OF_REFS:
        return _OF_REFS[name]
    if name in OPS:
        return f"it is ops.{name}, a method of {owner}"
    if name in names_of("ops"):
        return f"Opstage calls it {names_of('ops')[name]}"
    return f"tensors are computed with by ops, the methods of {owner}"


def _about_a_ref(error: TypeError) -> bool:
    """Return whether the message names a type of refs, or comes from a ref."""
    kinds, text = [Infix], str(error)
    while kinds:
        kind = kinds.pop()
        if kind.__name__ in text or text.startswith(("a ref is not", "a ref has no", "a ref cannot")):
            return True
        kinds.extend(kind.__subclasses__())
    return False


def _call(traceback: TracebackType | None) -> tuple[str, Any] | None:
    """Return the dotted name of what the innermost user line called, and the frame."""
    own: TracebackType | None = None
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if is_user_file(file) and not is_library(file):
            own = traceback
        traceback = traceback.tb_next
    if own is None:
        return None
    code = own.tb_frame.f_code
    line, end_line, start, end = next(islice(code.co_positions(), own.tb_lasti // 2, None), (None,) * 4)
    if line is None or end_line is None or start is None or end is None:
        return None
    lines = [linecache.getline(code.co_filename, number).encode() for number in range(line, end_line + 1)]
    if not lines:
        return None
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    node = ast.parse(b"(" + b"".join(lines) + b")", mode="eval").body
    if not isinstance(node, ast.Call) or not isinstance(node.func, (ast.Name, ast.Attribute)):
        return None
    return ast.unparse(node.func), own.tb_frame
