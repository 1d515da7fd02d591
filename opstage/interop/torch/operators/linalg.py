"""Matrix products, linear layers, factorizations, attention and recurrent layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from ....ops.derived import dropout, einsum
from ....ops.dims import Verdict, equal, floor_div
from ....ops.errors import UnsupportedError
from ....ops.infix import broadcast_shapes, product_of_stacks
from ....ops.matmul import grouped_matmul
from ....ops.recurrent import gru, lstm, rnn
from ....ops.statistics import norm
from ....ops.types import BOOL
from ...operators import attention_scores, attention_weights, repeated_heads
from ...values import common_shape
from ..call import AtenCall, rule


@rule("linear.default")
def _linear(call: AtenCall[Any], x: Any, weight: Any, bias: Any) -> Any:
    ops = call.ops
    if len(weight.shape) == 1:
        return call.give(product_of_stacks(ops, x.ref, weight.ref))
    return call.give(ops.linear(weight.ref, None if bias is None else bias.ref, x.ref))


@rule("mm.default", "bmm.default", "matmul.default", "mv.default", "dot.default")
def _product(call: AtenCall[Any], x: Any, y: Any) -> Any:
    dtype = call.dtype()
    return call.give(product_of_stacks(call.ops, call.tensor(x, dtype), call.tensor(y, dtype)))


@rule("_grouped_mm.default", "transformers.grouped_mm_fallback.default")
def _grouped(call: AtenCall[Any], x: Any, w: Any, ends: Any, bias: Any = None, dtype: Any = None) -> Any:
    """Multiply rows by the matrix of their group; without ends, a product of stacks."""
    if bias is not None or (ends is not None and (len(x.shape) != 2 or len(w.shape) != 3)):
        raise UnsupportedError("of grouped products only those of rows by their matrices are known, without a bias")
    if ends is None:
        return call.give(product_of_stacks(call.ops, x.ref, w.ref))
    return call.give(grouped_matmul(call.ops, x.ref, w.ref, ends.ref))


@rule("addmm.default", "addbmm.default", "baddbmm.default", "addmv.default")
def _added(call: AtenCall[Any], added: Any, x: Any, y: Any, beta: Any, alpha: Any) -> Any:
    """Compute beta · added + alpha · x·y."""
    ops = call.ops
    product = product_of_stacks(ops, x.ref, y.ref)
    if call.name == "aten.addbmm":
        product = ops.reduce_sum(product, axis=0)
    product = product if alpha == 1 else ops.scale(product, c=alpha)
    if beta == 0:
        return call.give(product)
    term = added.ref if beta == 1 else ops.scale(added.ref, c=beta)
    return call.give(ops.add(call.stretched(term, product.shape), product))


@rule("einsum.default")
def _einsum(call: AtenCall[Any], equation: str, xs: Any, *_: Any) -> Any:
    return call.give(einsum(call.ops, equation, *[call.tensor(x, call.dtype()) for x in xs]))


@rule("outer.default")
def _outer(call: AtenCall[Any], x: Any, y: Any) -> Any:
    ops = call.ops
    shape = (x.shape[0], y.shape[0])
    dtype = call.dtype()
    column = ops.unsqueeze(call.tensor(x, dtype), axis=1)
    row = ops.unsqueeze(call.tensor(y, dtype), axis=0)
    return call.give(ops.mul(call.stretched(column, shape), call.stretched(row, shape)))


@rule("linalg_cholesky.default", "linalg_cholesky_ex.default")
def _cholesky(call: AtenCall[Any], x: Any, upper: bool, *_: Any) -> Any:
    ops = call.ops
    lower = ops.cholesky(x.ref)
    axes = [*range(len(x.shape) - 2), len(x.shape) - 1, len(x.shape) - 2]
    result = ops.permute(lower, axes=axes) if upper else lower
    if "_ex" not in call.name:
        return call.give(result)
    bad = ops.reduce_any(ops.isnan(lower), axis=(-2, -1))
    return [call.give(result, 0), call.give(ops.cast(bad, dtype="int64"), 1)]


@rule("_linalg_eigh.default", "linalg_eigh.default")
def _eigh(call: AtenCall[Any], x: Any, uplo: str = "L", *_: Any) -> Any:
    ops, rank = call.ops, len(x.shape)
    upper = [*range(rank - 2), rank - 1, rank - 2]
    values, vectors = ops.eigh(x.ref if uplo.upper() == "L" else ops.permute(x.ref, axes=upper))
    return [call.give(values, 0), call.give(vectors, 1)]


@rule("_linalg_det.default")
def _det(call: AtenCall[Any], x: Any) -> Any:
    return [call.give(call.ops.det(x.ref), 0), None, None]


@rule("slogdet.default", "linalg_slogdet.default", "_linalg_slogdet.default")
def _slogdet(call: AtenCall[Any], x: Any) -> Any:
    return [*(call.give(ref, i) for i, ref in enumerate(call.ops.slogdet(x.ref))), None, None]


@rule("logdet.default")
def _logdet(call: AtenCall[Any], x: Any) -> Any:
    """Compute log det, nan if it is negative."""
    ops = call.ops
    sign, logarithm = ops.slogdet(x.ref)
    return call.give(ops.select(ops.less(sign, 0), ops.full(shape=sign.shape, value=math.nan), logarithm))


@rule("linalg_solve.default")
def _solve(call: AtenCall[Any], a: Any, b: Any, left: bool) -> Any:
    """Solve a·x = b, also for vectors: b with one axis, or with the shape of a without its last axis."""
    ops, n = call.ops, len(a.shape)
    same = len(b.shape) == n - 1 and all(equal(*pair) is Verdict.proved for pair in zip(b.shape, a.shape))
    vector = len(b.shape) == 1 or same
    given = ops.unsqueeze(b.ref, axis=len(b.shape)) if vector else b.ref
    batch = common_shape([a.shape[:-2], given.shape[:-2]])
    matrix, given = (call.stretched(each, (*batch, *each.shape[-2:])) for each in (a.ref, given))
    turned = [*range(len(batch)), len(batch) + 1, len(batch)]
    if left or vector:
        found = ops.solve(matrix, given)
    else:
        found = ops.permute(ops.solve(*(ops.permute(each, axes=turned) for each in (matrix, given))), axes=turned)
    return call.give(ops.squeeze(found, axis=len(batch) + 1) if vector else found)


@rule("_trilinear.default")
def _trilinear(
    call: AtenCall[Any], x: Any, y: Any, z: Any, of_x: Any, of_y: Any, of_z: Any, summed: Any, *_: Any
) -> Any:
    """Sum products of three tensors, each without the axes in its own list."""
    letters = "abcdefgh"[: len(x.shape) + len(of_x)]
    own = ("".join(c for i, c in enumerate(letters) if i not in axes) for axes in (of_x, of_y, of_z))
    result = "".join(c for i, c in enumerate(letters) if i not in summed)
    return call.give(einsum(call.ops, f"{','.join(own)}->{result}", x.ref, y.ref, z.ref))


@rule("_cdist_forward.default", "cdist.default")
def _distances(call: AtenCall[Any], x: Any, y: Any, p: float, *_: Any) -> Any:
    """Return the p-norm of the difference of each row of x and each row of y."""
    ops, rank = call.ops, len(x.shape)
    if p not in (1, 2, math.inf):
        raise UnsupportedError(f"with p={p} it is not known; there are 1, 2 and inf")
    batch = common_shape([x.shape[:-2], y.shape[:-2]])
    shape = (*batch, x.shape[-2], y.shape[-2], x.shape[-1])
    rows = call.stretched(ops.unsqueeze(x.ref, axis=rank - 1), shape)
    others = call.stretched(ops.unsqueeze(y.ref, axis=len(y.shape) - 2), shape)
    return call.give(norm(ops, ops.sub(rows, others), ord=p, axis=-1))


@rule("linalg_qr.default")
def _qr(call: AtenCall[Any], x: Any, mode: str = "reduced", *_: Any) -> Any:
    if mode != "reduced":
        raise ValueError(f"mode={mode!r}; there is reduced")
    return [call.give(ref, i) for i, ref in enumerate(call.ops.qr(x.ref))]


@rule("_linalg_svd.default", "linalg_svd.default")
def _svd(call: AtenCall[Any], x: Any, full: bool = False, vectors: bool = True, *_: Any) -> Any:
    if full and vectors and equal(*x.shape[-2:]) is not Verdict.proved:
        raise ValueError("full_matrices=True of a matrix that is not square; there is full_matrices=False")
    return [call.give(ref, i) for i, ref in enumerate(call.ops.svd(x.ref))]


@rule("linalg_solve_triangular.default")
def _solve_triangular(call: AtenCall[Any], a: Any, b: Any, upper: bool, left: bool, unitriangular: bool) -> Any:
    if not left or unitriangular:
        raise ValueError("left=False and unitriangular=True")
    return call.give(call.ops.triangular_solve(a.ref, b.ref, lower=not upper))


# Attention ------------------------------------------------------------------------------------------------------------


@rule("scaled_dot_product_attention.default")
def _attention(
    call: AtenCall[Any], q: Any, k: Any, v: Any, mask: Any, p: float, causal: bool, scale: Any, grouped: bool
) -> Any:
    """Compute softmax(scale·q·kᵀ + bias)·v; by the fused op unless there is dropout."""
    ops = call.ops
    query, key, value = q.ref, k.ref, v.ref
    if grouped:
        key, value = (repeated_heads(ops, each, floor_div(query.shape[-3], each.shape[-3])) for each in (key, value))
    lead = broadcast_shapes(broadcast_shapes(query.shape[:-2], key.shape[:-2]), value.shape[:-2])
    query, key, value = (call.stretched(each, (*lead, *each.shape[-2:])) for each in (query, key, value))
    drops = p > 0 and call.around.trains(call.node)
    masks = (None, None) if mask is None else (mask.ref, None) if mask.dtype == BOOL else (None, call.floats(mask))
    if not drops:
        y = ops.scaled_dot_product_attention(query, key, value, *masks, causal=causal, scale=scale)
        return call.give(y)
    scores = attention_scores(ops, query, key, *masks, scale=scale, causal=causal)[1]
    return call.give(ops.bmm(dropout(ops, attention_weights(ops, scores), p=p, train=True), value))


# Recurrent layers -----------------------------------------------------------------------------------------------------

_LAYERS: dict[str, Callable[..., tuple[Any, Any]]] = {
    "lstm": lstm,
    "gru": gru,
    "rnn_tanh": rnn,
    "rnn_relu": partial(rnn, activation=lambda ops, x: ops.relu(x)),
}


@rule(*[f"{name}.input" for name in _LAYERS])
def _recurrent(call: AtenCall[Any], x: Any, states: Any, params: Any, *given: Any) -> Any:
    """Return all outputs of the last layer, and the last states of every layer and direction."""
    has_biases, layers, p, _, bidirectional, batch_first = given
    ops, layer = call.ops, _LAYERS[call.name.removeprefix("aten.")]
    first = [each.ref for each in (states if isinstance(states, list) else [states])]
    directions = 2 if bidirectional else 1
    names = ("input", "recurrent", "bias", "recurrent_bias")[: 4 if has_biases else 2]
    if len(params) != layers * directions * len(names):
        raise ValueError("projections of the state")
    y = ops.permute(x.ref, axes=(1, 0, 2)) if batch_first else x.ref
    lasts: list[tuple[Any, ...]] = []
    for depth in range(layers):
        outputs = []
        for direction in range(directions):
            at = depth * directions + direction
            weights = dict(zip(names, [each.ref for each in params[at * len(names) : (at + 1) * len(names)]]))
            state = [ops.squeeze(ops.slice(each, axis=0, start=at, length=1), axis=0) for each in first]
            steps, last = layer(
                ops, y, weights, state=tuple(state) if layer is lstm else state[0], reverse=direction == 1
            )
            outputs.append(steps)
            lasts.append(last if isinstance(last, tuple) else (last,))
        y = ops.concat(outputs, axis=2) if directions > 1 else outputs[0]
        if p and depth < layers - 1 and call.around.trains(call.node):
            y = dropout(ops, y, p=p, train=True)
    y = ops.permute(y, axes=(1, 0, 2)) if batch_first else y
    ends = [ops.stack([last[i] for last in lasts], axis=0) for i in range(len(first))]
    return [call.give(each, i) for i, each in enumerate((y, *ends))]
