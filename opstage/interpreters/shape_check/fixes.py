"""Fixes of a failed call: small changes to it, tested with the op's own shape rule.

A change is suggested only if it makes the call valid for every allowed size, no other change of its kind does, and
something besides the shapes supports it: a name, a dtype, the position of an operand. Matching shapes alone are weak
evidence, and a wrong suggestion is worse than none.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...ops.convolution import CONV, CONV_TRANSPOSE
from ...ops.dims import UNKNOWN, Dim, DimScope, Verdict, equal, exact_div, is_one, prod
from ...ops.elementwise import ADD, DIV, MAXIMUM, MINIMUM, MUL, SUB
from ...ops.errors import DtypeError, LocatedError, OpstageError, SourceLine
from ...ops.indexing import GATHER_ROWS
from ...ops.layout import BROADCAST_TO, RESHAPE, SQUEEZE, UNSQUEEZE
from ...ops.loss import CROSS_ENTROPY, MSE_LOSS
from ...ops.matmul import BMM, LINEAR, MATMUL
from ...ops.normalization import BATCH_NORM, GROUP_NORM, LAYER_NORM
from ...ops.primitive import Kind, Primitive, Static
from ...ops.slicing import CONCAT
from ...ops.static_arguments import InvalidStatic
from ...ops.types import INT64, DType, Shape, TensorType, is_float, show_shape

_PARAMETERS = frozenset({"weight", "bias", "kernel", "gamma", "beta"})
_BINARY = frozenset({ADD, SUB, MUL, DIV, MAXIMUM, MINIMUM})
_ORDERED = frozenset({LINEAR, CONV, CONV_TRANSPOSE, CROSS_ENTROPY, GATHER_ROWS, LAYER_NORM, BATCH_NORM, GROUP_NORM})
"""Ops whose operands have distinct roles, so that another order can be recognised as the right one."""


@dataclass(frozen=True)
class FailedCall:
    """A call that its op's shape rule rejected.

    names     the names of the operands present; `origins` are the paths of program inputs, else empty
    source    the user's call
    dtype     the program's float dtype
    makers    the op that computed each operand, with its static parameters and place; None for inputs
    known     whether the origin of each operand is known; it is not for operands that a scan passes to its body
    """

    primitive: Primitive
    static: Static
    names: tuple[str, ...]
    types: tuple[TensorType, ...]
    origins: tuple[str, ...]
    source: SourceLine | None
    dtype: DType
    makers: Sequence[tuple[Primitive, Static, SourceLine | None] | None]
    known: tuple[bool, ...]

    def passes(self, scope: DimScope, types: Sequence[TensorType], static: Mapping[str, Any] | None = None) -> bool:
        """Whether the rule accepts these operands for every allowed size, without a further condition."""
        return self.primitive.accepts(tuple(types), self.static if static is None else static, scope)

    def with_type(self, i: int, shape: Shape | None = None, dtype: DType | None = None) -> list[TensorType]:
        """Return the operands, with another shape or dtype for one of them."""
        old = self.types[i]
        new = TensorType(old.shape if shape is None else shape, old.dtype if dtype is None else dtype)
        return [*self.types[:i], new, *self.types[i + 1 :]]


def suggest_fix(call: FailedCall, error: LocatedError, scope: DimScope) -> str:
    """Return one instruction that fixes the call, or "". `error` is the rule's error."""
    if any(isinstance(value, InvalidStatic) for value in call.static.values()):
        return ""
    if any(d is UNKNOWN for type_ in call.types for d in type_.shape):
        return ""
    written = WrittenCall.of(call.primitive, call.names, call.source)
    for tried in _FIXES:
        if tried is _casts and not isinstance(error, DtypeError):
            continue
        if tried is not _orders and "did you mean" in error.reason:
            break
        found = list(dict.fromkeys(tried(call, scope, written)))
        if found:
            return found[0] if len(found) == 1 else ""
    return ""


Fix = Callable[[FailedCall, DimScope, "WrittenCall"], Iterator[str]]

# Kinds of mistakes, most certain first -----------------------------------------------------------------------------


def _orders(call: FailedCall, scope: DimScope, written: WrittenCall) -> Iterator[str]:
    """The operands in another order, if each then matches the role that its path or dtype suggests."""
    if call.primitive not in _ORDERED:
        return

    def misplaced(order: Sequence[int]) -> int:
        return sum(_misplaced(name, call.types[i], call.origins[i]) for name, i in zip(call.names, order))

    given = range(len(call.types))
    fits = call.primitive.other_orders(call.types, call.static, scope)
    right = [order for order in fits if misplaced(order) == 0 < misplaced(given)]
    if not right and not any(origin.startswith("params") for origin in call.origins):
        right = fits if len(fits) == 1 else []  # nothing says what is a parameter
    named = [o for o in right if all(_named(call.origins[i], n) for n, i in zip(call.names, o) if n in _PARAMETERS)]
    for order in named or right:
        wanted = f"the operands of {call.primitive} are {', '.join(call.names)}, in this order"
        came = ", ".join(call.names[order.index(i)] for i in given)
        yield f"{wanted}: {written.reordered(order)}" if written.callee else f"{wanted}, but came as {came}"


def _misplaced(name: str, type_: TensorType, origin: str) -> bool:
    """Whether a parameter is in a data position, data in a parameter position, or floats in an integer position."""
    if name in ("labels", "idx", "logits"):
        return is_float(type_.dtype) != (name == "logits")
    return name in _PARAMETERS and not origin.startswith("params")


def _named(origin: str, name: str) -> bool:
    return origin.rpartition(".")[2] == name


def _casts(call: FailedCall, scope: DimScope, written: WrittenCall) -> Iterator[str]:
    """Cast integers to floats; declare float labels and indices as integers."""
    for i, (type_, origin, name) in enumerate(zip(call.types, call.origins, call.names)):
        if call.known[i] and type_.dtype.kind in "iu" and call.passes(scope, call.with_type(i, dtype=call.dtype)):
            yield f"cast {written.operands[i]}: ops.cast({written.operands[i]}, dtype=ops.dtype)"
        whole = name in ("labels", "idx") and is_float(type_.dtype)
        if whole and origin and not origin.startswith("params") and call.passes(scope, call.with_type(i, dtype=INT64)):
            shape = " ".join(map(str, type_.shape))
            yield f'declare {origin} as integers: Spec("{shape}", dtype="int64")'


def _classes(call: FailedCall, scope: DimScope, written: WrittenCall) -> Iterator[str]:
    """Logits with the classes last; labels that are one-hot, in a column, or not flattened like the logits."""
    if call.primitive is not CROSS_ENTROPY:
        return
    (logits, labels), (x, y) = call.types, written.operands
    rank = len(logits.shape)
    if labels.dtype.kind in "iu" and rank > 1 and len(labels.shape) == rank:
        if call.passes(scope, call.with_type(1, (*labels.shape[:1], *labels.shape[2:]))):
            if is_one(labels.shape[1]):
                yield f"labels are one integer for each position: ops.squeeze({y}, axis=1)"
            elif _same(labels.shape[1], logits.shape[1]):
                yield f"labels are one integer for each position: ops.argmax({y}, axis=1)"
    elif rank > 2 and len(labels.shape) == rank - 1:
        axes = (0, rank - 1, *range(1, rank - 1))
        if call.passes(scope, call.with_type(0, tuple(logits.shape[a] for a in axes))):
            yield f"move the classes to axis 1: ops.permute({x}, axes={axes})"
    elif rank == 2 and len(labels.shape) > 1 and call.passes(scope, call.with_type(1, (labels.size,))):
        yield f"flatten the labels as the logits are: ops.flatten({y})"


def _transposes(call: FailedCall, scope: DimScope, written: WrittenCall) -> Iterator[str]:
    """A matrix that must be transposed."""
    if call.primitive not in (MATMUL, BMM):
        return
    for i, type_ in enumerate(call.types):
        maker = call.makers[i]
        if maker is not None and maker[0] is UNSQUEEZE and maker[2] == call.source:
            continue  # a vector, which infix converted to a matrix
        *lead, a, b = range(len(type_.shape)) if len(type_.shape) > 1 else (0, 0)
        turned = (*lead, b, a)
        if a != b and call.passes(scope, call.with_type(i, tuple(type_.shape[axis] for axis in turned))):
            text = written.operands[i]
            how = f"ops.transpose2d({text})" if turned == (1, 0) else f"ops.permute({text}, axes={turned})"
            yield f"transpose {text}: {how}"


def _layouts(call: FailedCall, scope: DimScope, written: WrittenCall) -> Iterator[str]:
    """Images with channels last, and kernels with swapped channel axes."""
    if call.primitive not in (CONV, CONV_TRANSPOSE):
        return
    x, i = call.types[-1], len(call.types) - 1
    rank = len(x.shape)
    if call.origins[i] and rank == len(call.types[0].shape):
        axes = (0, rank - 1, *range(1, rank - 1))
        if call.passes(scope, call.with_type(i, tuple(x.shape[axis] for axis in axes))):
            yield f"move the channels to axis 1: ops.permute({written.operands[i]}, axes={axes})"
    if call.static["has_bias"]:  # the bias determines the number of output channels
        kernel = call.types[0].shape
        axes = (1, 0, *range(2, len(kernel)))
        if len(kernel) > 2 and call.passes(scope, call.with_type(0, tuple(kernel[axis] for axis in axes))):
            order = "(out, in, …)" if call.primitive is CONV else "(in, out, …)"
            yield f"a kernel is {order}: ops.permute({written.operands[0]}, axes={axes})"


def _columns(call: FailedCall, scope: DimScope, written: WrittenCall) -> Iterator[str]:
    """An axis of size 1 that only one of two operands has."""
    if call.primitive not in _BINARY | {MSE_LOSS}:
        return
    x, y = call.types
    longer = 0 if len(x.shape) > len(y.shape) else 1
    shape = call.types[longer].shape
    if len(shape) != len(call.types[1 - longer].shape) + 1:
        return
    for axis, d in enumerate(shape):
        if is_one(d) and call.passes(scope, call.with_type(longer, (*shape[:axis], *shape[axis + 1 :]))):
            text = written.operands[longer]
            yield f"drop the axis of size 1 of {text}: ops.squeeze({text}, axis={axis})"


def _repeats(call: FailedCall, scope: DimScope, written: WrittenCall) -> Iterator[str]:
    """A parameter that should be broadcast to every position."""
    if call.primitive not in _BINARY:
        return
    for i, (type_, origin) in enumerate(zip(call.types, call.origins)):
        whole = call.types[1 - i].shape
        if origin.startswith("params") and 0 < len(type_.shape) < len(whole) and _fits_last(type_.shape, whole):
            text, other = written.operands[i], written.operands[1 - i]
            yield f"repeat {text}: ops.broadcast_to({text}, shape={_shape_of(other, whole)})"


def _shape_of(text: str, shape: Shape) -> str:
    """Return the shape of an operand, by its name if that is short."""
    return f"{text}.shape" if text.isidentifier() else show_shape(shape)


def _fits_last(shape: Shape, whole: Shape) -> bool:
    """Whether the axes match, counted from the last."""
    return all(_same(a, b) for a, b in zip(reversed(shape), reversed(whole)))


def _kept_axes(call: FailedCall, scope: DimScope, written: WrittenCall) -> Iterator[str]:
    """A reduction without keepdims whose result is combined by infix with its operand."""
    maker = call.makers[0] if call.primitive is BROADCAST_TO else None
    if maker is None or maker[0].kind is not Kind.REDUCTION or maker[1].get("keepdims") is not False:
        return
    primitive, static, source = maker
    axes = static.get("axes") or ((static["axis"],) if "axis" in static else ())
    shape = list(call.types[0].shape)
    whole = call.static["shape"]
    if len(shape) + len(axes) != len(whole):
        return
    for axis in axes:
        shape.insert(axis, 1)
    if call.passes(scope, call.with_type(0, tuple(shape))):
        text, node = call_at(source)
        if not isinstance(node, ast.Call) or any(keyword.arg == "keepdims" for keyword in node.keywords):
            yield f"let {primitive} keep the axis, by keepdims=True"
        else:
            yield f"keep the axis: {text[:-1]}, keepdims=True)"


def _axes(call: FailedCall, scope: DimScope, written: WrittenCall) -> Iterator[str]:
    """The only axis along which tensors can be joined, or that can be dropped."""
    if call.primitive is CONCAT:
        for axis in range(len(call.types[0].shape)):
            if axis != call.static["axis"] and call.passes(scope, call.types, {**call.static, "axis": axis}):
                yield f"join them along axis={axis}, where alone they differ"
    elif call.primitive is SQUEEZE and len(call.static["axes"]) == 1:
        for axis, d in enumerate(call.types[0].shape):
            if is_one(d):
                yield f"the axis of size 1 is axis={axis}: ops.squeeze({written.operands[0]}, axis={axis})"


def _sizes(call: FailedCall, scope: DimScope, written: WrittenCall) -> Iterator[str]:
    """The only size of a reshape, other than the batch, that could be another number."""
    if call.primitive is not RESHAPE or any(_same(d, -1) for d in call.static["shape"]):
        return
    x, shape = call.types[0], call.static["shape"]
    if len(shape) < len(x.shape) and x.shape and _same(x.shape[0] * prod(shape), x.size) and not _is_int(x.shape[0]):
        sizes = [_size_text(written, x.shape, d) for d in (x.shape[0], *shape)]
        if written.shape:
            sizes[1:] = written.shape
        yield f"keep axis 0{_reshape_text(written, sizes)}"
        return
    own = [i < len(x.shape) and _same(d, x.shape[i]) for i, d in enumerate(shape)]
    found = []
    for i in (i for i, kept in enumerate(own) if not kept):
        size = _quotient(x.size, prod(shape[:i] + shape[i + 1 :]), scope)
        if size is not None and not is_one(size):
            found.append((i, size))
    exact = [(i, size) for i, size in found if i < len(x.shape) and _same(size, x.shape[i]) and not _is_int(size)]
    for i, size in exact or found:
        right, wrong = _size_text(written, x.shape, size), written.shape[i] if written.shape else shape[i]
        sizes = [*written.shape] if written.shape else [_size_text(written, x.shape, d) for d in shape]
        sizes[i] = right
        yield f"axis {i} is {right}, not {wrong}{_reshape_text(written, sizes)}"


def _reshape_text(written: WrittenCall, sizes: Sequence[str]) -> str:
    """Return the call with these sizes, if the program has a name for each of them."""
    if not written.shape and any(not size.isdigit() and ".shape[" not in size for size in sizes):
        return ""
    return f": ops.reshape({written.operands[0]}, shape=({', '.join(sizes)}{',' if len(sizes) == 1 else ''}))"


def _size_text(written: WrittenCall, shape: Shape, size: Dim) -> str:
    """Return a size in the user's program: from the operand's shape if symbolic, since dim names are not Python
    names."""
    if _is_int(size) or not written.operands[0].isidentifier():
        return str(size)
    return next((f"{written.operands[0]}.shape[{i}]" for i, d in enumerate(shape) if _same(d, size)), str(size))


def _quotient(a: Dim, b: Dim, scope: DimScope) -> Dim | None:
    """Return a / b if b divides a for every allowed size, else None."""
    noted = len(scope.conditions)
    try:
        size = exact_div(a, b, "")
        return size if len(scope.conditions) == noted else None
    except OpstageError:
        return None
    finally:
        del scope.conditions[noted:]


def _same(a: Dim, b: Dim) -> bool:
    return equal(a, b) is Verdict.proved


def _is_int(d: Dim) -> bool:
    return isinstance(d, int)


_FIXES: tuple[Fix, ...] = (
    _orders,
    _casts,
    _classes,
    _transposes,
    _layouts,
    _columns,
    _repeats,
    _kept_axes,
    _axes,
    _sizes,
)


# The source of an op's call, so that a fix can use the user's own names -----------------------------------------------


@dataclass(frozen=True)
class WrittenCall:
    """The texts of a call's operands and keywords; names of the operands if the call cannot be parsed."""

    operands: tuple[str, ...]
    positional: tuple[str, ...] = ()
    keywords: tuple[tuple[str, str], ...] = ()
    callee: str = ""
    shape: tuple[str, ...] = ()

    @staticmethod
    def of(primitive: Primitive, names: tuple[str, ...], source: SourceLine | None) -> WrittenCall:
        """Return the call of an op at a line; `names` are those of the operands present."""
        unread = WrittenCall(names)
        text, node = call_at(source)
        if isinstance(node, ast.BinOp) and len(names) == 2:
            return WrittenCall((_text(text, node.left), _text(text, node.right)))
        if (
            not isinstance(node, ast.Call)
            or not isinstance(node.func, ast.Attribute)
            or node.func.attr != primitive.name
        ):
            return unread
        args = node.args
        if len(args) == 1 and isinstance(args[0], (ast.List, ast.Tuple)):
            args = args[0].elts
        texts = tuple([_text(text, arg) for arg in args])
        present = tuple([word for word in texts if word != "None"])
        if any(isinstance(arg, ast.Starred) for arg in args) or len(present) != len(names):
            return unread
        keywords = tuple([(k.arg, _text(text, k.value)) for k in node.keywords if k.arg])
        shape = next((k.value for k in node.keywords if k.arg == "shape"), None)
        sizes = shape.elts if isinstance(shape, ast.Tuple) else []
        whole = not any(isinstance(size, ast.Starred) for size in sizes)
        return WrittenCall(
            present, texts, keywords, _text(text, node.func), tuple([_text(text, s) for s in sizes]) if whole else ()
        )

    def reordered(self, order: Sequence[int]) -> str:
        """Return the call with its operands in another order."""
        texts = [self.operands[i] for i in order]
        for i in [i for i, text in enumerate(self.positional) if text == "None"]:
            texts.insert(i, "None")
        return f"{self.callee}({', '.join([*texts, *(f'{k}={v}' for k, v in self.keywords)])})"


def _text(text: str, node: ast.expr) -> str:
    return ast.get_source_segment(text, node) or ast.unparse(node)


def call_at(source: SourceLine | None) -> tuple[str, ast.Call | ast.BinOp | None]:
    """Return the call or operator that a line underlines; None if it continues on the next line."""
    if source is None or not source.carets:
        return "", None
    start = len(source.carets) - len(source.carets.lstrip())
    text = source.text[start : len(source.carets)]
    try:
        node = ast.parse(text, mode="eval").body
    except SyntaxError:
        return text, None
    return text, node if isinstance(node, (ast.Call, ast.BinOp)) else None
