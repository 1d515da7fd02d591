"""Hints for errors in a user's program: names of other libraries, the keys of a tree, an op's keywords.

`other_names.toml` has the names of PyTorch, NumPy and TorchLean for things that Opstage names differently.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from inspect import Parameter, signature
from itertools import islice
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

from .errors import Place, UnknownNameError, is_library, is_user_file, nearest

# Names that Opstage spells differently --------------------------------------------------------------------------------

_NO_INPLACE = "nothing changes in place: a program returns what is new"


@cache
def load_names(table: str) -> dict[str, str]:
    """Return a table of names and Opstage's equivalents: `ops`, `refs`, `package` or `torchlean`.

    Those of TorchLean are squashed, since Lean's conventions of case are not Python's.
    """
    found: dict[str, str] = tomllib.loads(Path(__file__).with_name("other_names.toml").read_text("utf-8"))[table]
    return {_squashed(name): ours for name, ours in found.items()} if table == "torchlean" else found


def _squashed(name: str) -> str:
    return name.replace("_", "").lower()


def _respelled(name: str, holder: str, known: Iterable[str]) -> str | None:
    """Return Opstage's name for a name of TorchLean, or for one among `known` in another spelling, `trainSGD`."""
    squashed = _squashed(name)
    ours = load_names("torchlean").get(squashed)
    same = [each for each in known if _squashed(each) == squashed and not each.startswith("_")]
    return ours or (f"{holder}.{same[0]}" if same else None)


class Renamed:
    """The base of classes whose instances answer a name of TorchLean, or in another spelling, with their own."""

    __slots__ = ()

    if not TYPE_CHECKING:  # type checkers should report unknown names

        def __getattr__(self, name):
            kind = type(self).__name__
            ours = None if name.startswith("_") else _respelled(name, kind, dir(type(self)))
            raise (
                _plain(self, name)
                if ours is None
                else _renamed(f"{kind} does not have {name}: Opstage calls it {ours}")
            )


def no_such_op(ops: object, name: str, known: Collection[str]) -> UnknownNameError:
    """Return the error for `ops.name`, which is not an op."""
    if name.startswith("__"):
        return _plain(ops, name)
    ours = load_names("ops").get(name)
    if ours is None and name.endswith("_") and name[:-1] in known:
        ours = f"ops.{name[:-1]}: {_NO_INPLACE}"
    ours = ours or _derived(name) or _respelled(name, "ops", {*known, *dir(type(ops))})
    if ours is None:
        return _renamed(f"unknown op {name!r}{nearest(name, known)}; docs/reference.md lists all ops")
    return _renamed(f"ops.{name}: Opstage calls it {ours}")


def no_such_method(ref: object, name: str, known: Collection[str]) -> UnknownNameError:
    """Return the error for `ref.name`: a ref only has a shape, a dtype and operators."""
    if name.startswith("_"):
        return _plain(ref, name)
    ours, others = load_names("refs").get(name), load_names("ops")
    if ours is None and name in known:
        ours = f"ops.{name}(x, …)"
    if ours is None and name.endswith("_") and (name[:-1] in known or name[:-1] in others):
        ours = f"{others.get(name[:-1], f'ops.{name[:-1]}(x, …)')}; {_NO_INPLACE}"
    ours = ours or others.get(name) or _derived(name) or _respelled(name, "ops", known)
    if ours is None:
        return _renamed(f"a ref does not have {name}; ops are methods of the program's first argument, as ops.relu(x)")
    return _renamed(
        f"a ref does not have {name}; ops are methods of the program's first argument: Opstage calls it {ours}"
    )


def _derived(name: str) -> str | None:
    """Return the call of a derived function, which is written as if it were an op; None if there is none."""
    from . import derived as derived

    function = getattr(derived, name, None) if name in derived.__all__ else None
    if function is None:
        return None
    positions = [p.name for p in signature(function).parameters.values() if p.kind is not Parameter.KEYWORD_ONLY]
    return f"opstage.ops.derived.{name}({', '.join(positions)})"


def of_a_module(module: str, name: str, known: Collection[str]) -> str:
    """Return the replacement for `name` of a module that has `known`, as an addition to the error; empty if there is
    none."""
    ours = load_names("package").get(name) or _respelled(name, module, known)
    if ours is not None:
        return f"; use {ours}"
    ours = load_names("ops").get(name)
    return "" if ours is None else f"; in a program, of which ops is the first argument, it is {ours}"


def _renamed(message: str) -> UnknownNameError:
    """Return an error without `name` and `obj`, for which Python would suggest a similarly spelled name."""
    return UnknownNameError(message)


def _plain(holder: Any, name: str) -> UnknownNameError:
    return UnknownNameError(f"{type(holder).__name__!r} object has no attribute {name!r}", name, holder)


# Hints where a function of Python, NumPy, PyTorch … or an operator of polars got a ref: the equivalent op -------------

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
    found = _expression(error.__traceback__)
    if found is None:
        return None
    node, frame = found
    if isinstance(node, (ast.BinOp, ast.Compare)):
        if str(error).startswith("unsupported operand"):
            return None  # an operator that refs lack; a polars Series computes those that it has without asking the ref
        left = ast.unparse(node.left)
        return f"{left} does not support refs in its operators: write np.asarray({left})"
    if not isinstance(node, ast.Call) or not isinstance(node.func, (ast.Name, ast.Attribute)):
        return None
    written = ast.unparse(node.func)
    root, _, rest = written.partition(".")
    function = frame.f_locals.get(root, frame.f_globals.get(root))
    if not rest and function is None:
        hint = _BUILTINS.get(getattr(builtins, written, None))
        return None if hint is None else f"{written}(…) does not support refs: {hint}"
    home = function.__name__ if isinstance(function, ModuleType) else getattr(function, "__module__", None)
    if str(home).partition(".")[0] not in _MODULES:
        return None
    return f"{written} does not support refs: {suggest_op(written.rpartition('.')[2])}"


def suggest_op(name: str, owner: str = "the program's first argument") -> str:
    """Return the hint for a function of another library that was called with refs of `owner`, whose methods are ops."""
    from .protocol import OPS

    if name in _OF_REFS:
        return _OF_REFS[name]
    if name in OPS:
        return f"it is ops.{name}, a method of {owner}"
    if name in load_names("ops"):
        return f"Opstage calls it {load_names('ops')[name]}"
    return f"tensors are computed with by ops, the methods of {owner}"


def _about_a_ref(error: TypeError) -> bool:
    """Return whether the message names a type of refs, or comes from a ref."""
    from .infix import Infix  # stands above this module, which it asks for hints

    kinds, text = [Infix], str(error)
    while kinds:
        kind = kinds.pop()
        if kind.__name__ in text or text.startswith(
            ("a ref is not", "a ref cannot", "the truth value of a ref", "the number of a ref")
        ):
            return True
        kinds.extend(kind.__subclasses__())
    return False


def _expression(traceback: TracebackType | None) -> tuple[ast.expr, Any] | None:
    """Return the expression that the innermost user line was computing, and the frame."""
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
    return ast.parse(b"(" + b"".join(lines) + b")", mode="eval").body, own.tb_frame


# Hints for a missing key or entry, an unknown keyword, and an argument that is a keyword ------------------------------

_KEYWORD = re.compile(r"(\w+)\(\) got an unexpected keyword argument '(\w+)'")
_POSITIONS = re.compile(r"(\w+)\(\) takes \d+ positional arguments? but \d+ (?:was|were) given")
_OTHER_KEYWORDS = {"dim": "axis", "dims": "axes", "keepdim": "keepdims", "min": "lo", "max": "hi", "size": "shape"}

_ALONG = "ops.sum is of all elements; along axes it is ops.reduce_sum(x, axis=…, keepdims=…)"
_ELSEWHERE = {("sum", "dim"): _ALONG, ("sum", "axis"): _ALONG, ("sum", "keepdim"): _ALONG, ("sum", "keepdims"): _ALONG}


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
    found = _find_subscript(error)
    if found is None or not isinstance(found[1], (list, tuple)):
        return None
    text, tree = found
    if len(tree) < 2:
        return f"{text} has one entry, {text}[0]" if tree else f"{text} is empty"
    return f"{text} has {len(tree)} entries, {text}[0] … {text}[{len(tree) - 1}]"


def _find_subscript(error: Exception) -> tuple[str, Any] | None:
    """Return the text and value of the container in which a line of the user's found nothing."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None or not is_user_file(traceback.tb_frame.f_code.co_filename):
        return None
    return _subscripted(traceback)


def _of_key(error: KeyError) -> str | None:
    found = _find_subscript(error)
    if found is None:
        return None
    (key,) = error.args
    text, tree = found
    if not isinstance(tree, Mapping) or key in tree:
        return None
    names = ", ".join(repr(name) for name in list(tree)[:20]) or "none"
    return f"{text} does not have the key {key!r}{nearest(str(key), map(str, tree))}; its keys are {names}"


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
        return f"ops.{op} takes only tensors, not keywords"
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
    return f"pass what is not a tensor by keyword: ops.{op}({call})"
