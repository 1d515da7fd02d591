"""Hints for errors in a user's program: the keys of a tree, an op's keywords, the op that replaces a function."""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import re
from collections.abc import Mapping
from itertools import islice
from types import ModuleType, TracebackType
from typing import Any

from .errors import Place, is_library, is_user_file, nearest
from .infix import Infix
from .other_names import names_of

# Hints where a function of Python, NumPy, PyTorch … was called on a ref: the equivalent op ----------------------------

# The error is raised by that function, or by a ref that refuses conversion to an array or number. The user's line
# identifies the function.

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


# Hints for errors in a user's program: the keys of a tree, an op's keywords, the op that replaces a function ----------

_KEYWORD = re.compile(r"(\w+)\(\) got an unexpected keyword argument '(\w+)'")
_POSITIONS = re.compile(r"(\w+)\(\) takes \d+ positional arguments? but \d+ (?:was|were) given")
_OTHER_KEYWORDS = {"dim": "axis", "dims": "axes", "keepdim": "keepdims", "min": "lo", "max": "hi", "size": "shape"}

_ALONG = "ops.sum is of all elements; along axes it is ops.reduce_sum(x, axis=…, keepdims=…)"
_ELSEWHERE = {
    ("sum", "dim"): _ALONG,
    ("sum", "axis"): _ALONG,
    ("sum", "keepdim"): _ALONG,
    ("sum", "keepdims"): _ALONG,
}


def add_hint(error: Exception) -> None:
    """Add a note to an error that left a program, for a missing key or entry, an unknown keyword of an op, an argument
    of an op that is a keyword, or a function of another library called on a ref."""
    try:
        if isinstance(error, KeyError):
            hint = _of_key(error)
        elif isinstance(error, IndexError):
            hint = _of_index(error)
        else:
            hint = (
                _of_keyword(error)
                or _of_position(error)
                or (of_a_call(error) if isinstance(error, TypeError) else None)
            )
    except Exception:  # a hint must never hide the error itself
        return
    if hint is not None and hint not in getattr(error, "__notes__", ()):
        error.add_note(hint)


def _of_index(error: IndexError) -> str | None:
    found = _looked_up(error)
    if found is None or not isinstance(found[1], (list, tuple)):
        return None
    text, tree = found
    if len(tree) < 2:
        return f"{text} has one entry, {text}[0]" if tree else f"{text} is empty"
    return f"{text} has {len(tree)} entries, {text}[0] … {text}[{len(tree) - 1}]"


def _looked_up(error: Exception) -> tuple[str, Any] | None:
    """Return the text and value of the container in which a line of the user's found nothing."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None or not is_user_file(traceback.tb_frame.f_code.co_filename):
        return None
    return _subscripted(traceback)


def _of_key(error: KeyError) -> str | None:
    found = _looked_up(error)
    if found is None:
        return None
    (key,) = error.args
    text, tree = found
    if not isinstance(tree, Mapping) or key in tree:
        return None
    names = ", ".join(repr(name) for name in list(tree)[:20]) or "none"
    return f"{text} has no key {key!r}{nearest(str(key), map(str, tree))}; its keys are {names}"


def _subscripted(traceback: TracebackType) -> tuple[str, Any] | None:
    """Return the text and value of the container that a key is looked up in, if names and constant keys lead to it."""
    frame = traceback.tb_frame
    source = Place(frame.f_code, traceback.tb_lasti, traceback.tb_lineno).source
    line = source.text
    start = len(source.carets) - len(source.carets.lstrip())
    node = ast.parse(line[start : len(source.carets)], mode="eval").body if source.carets else None
    if not isinstance(node, ast.Subscript):
        return None

    def value(part: ast.expr) -> Any:
        if isinstance(part, ast.Name):
            return frame.f_locals[part.id] if part.id in frame.f_locals else frame.f_globals[part.id]
        if isinstance(part, ast.Constant):
            return part.value
        if isinstance(part, ast.Subscript):
            held = value(part.value)
            if isinstance(held, (dict, list, tuple)):
                return held[value(part.slice)]
        raise LookupError

    return ast.unparse(node.value), value(node.value)


def _of_keyword(error: Exception) -> str | None:
    from .protocol import OPS, Ops

    found = _KEYWORD.search(str(error))
    if found is None or found[1] not in OPS:
        return None
    op, given = found.groups()
    parameters = inspect.signature(getattr(Ops, op)).parameters.values()
    keywords = [p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
    ours = _OTHER_KEYWORDS.get(given)
    if ours in keywords:
        return f"Opstage calls it {ours}=: ops.{op} takes {', '.join(f'{name}=' for name in keywords)}"
    if (op, given) in _ELSEWHERE:
        return _ELSEWHERE[op, given]
    if not keywords:
        return f"ops.{op} takes no keywords, only tensors"
    return f"ops.{op} takes {', '.join(f'{name}=' for name in keywords)}{nearest(given, keywords)}"


def _of_position(error: Exception) -> str | None:
    from .protocol import OPS, Ops

    found = _POSITIONS.search(str(error))
    if found is None or found[1] not in OPS:
        return None
    op = found[1]
    parameters = inspect.signature(getattr(Ops, op)).parameters.values()
    tensors = [p.name for p in list(parameters)[1:] if p.kind is not inspect.Parameter.KEYWORD_ONLY]
    keywords = [p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
    if not keywords:
        return _ELSEWHERE.get((op, "axis")) or f"ops.{op} takes {', '.join(tensors) or 'nothing'}"
    call = ", ".join([*tensors, *(f"{name}=…" for name in keywords)])
    return f"what is no tensor goes by its name: ops.{op}({call})"
