"""ai.onnx.ml: trees, linear models and scalers of scikit-learn, LightGBM and XGBoost, on tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....ops.advanced_indexing import take_along_axis
from ....ops.arrangement import take
from ....ops.errors import UnsupportedError
from ....ops.types import FLOAT32, INT64
from ...values import TensorValue, Value, stretched
from ..graph import NodeCall, rule

ML = "ai.onnx.ml."


def _floats(call: NodeCall[Any], name: str) -> Any:
    """Return an attribute of floats as a constant vector, or None."""
    given = call.attribute(name)
    return None if given is None else call.ops.const(np.asarray(given, np.float64), dtype=call.ops.dtype)


def _number(call: NodeCall[Any], x: Any, name: str, default: float) -> Any:
    given = _floats(call, name)
    return stretched(call.ops, call.ops.full(shape=(1,), value=default) if given is None else given, x.shape)


@rule(f"{ML}Scaler")
def _scaler(call: NodeCall[Any]) -> Value:
    ops, x = call.ops, call.floats(call.value(0))
    shifted = ops.sub(x, _number(call, x, "offset", 0.0))
    return call.give(ops.mul(shifted, _number(call, x, "scale", 1.0)), FLOAT32)


@rule(f"{ML}Normalizer")
def _normalizer(call: NodeCall[Any]) -> Value:
    ops, x, kind = call.ops, call.floats(call.value(0)), call.attribute("norm", "MAX")
    axis = len(x.shape) - 1
    if kind == "L2":
        size = ops.sqrt(ops.reduce_sum(ops.mul(x, x), axis=axis, keepdims=True))
    else:
        size = (
            ops.reduce_sum(ops.abs(x), axis=axis, keepdims=True)
            if kind == "L1"
            else ops.reduce_max(x, axis=axis, keepdims=True)
        )
    size = ops.select(ops.equal(size, 0.0), 1.0, size)
    return call.give(ops.div(x, stretched(ops, size, x.shape)), FLOAT32)


def _transformed(call: NodeCall[Any], scores: Any) -> Any:
    """Apply the attribute `post_transform` to scores (examples, classes)."""
    kind, ops = call.attribute("post_transform", "NONE"), call.ops
    if kind in ("NONE", "LOGISTIC"):
        return scores if kind == "NONE" else ops.sigmoid(scores)
    if kind == "SOFTMAX":
        return ops.softmax(scores, axis=1)
    raise UnsupportedError(f"its post_transform {kind} is not known")


def _classified(call: NodeCall[Any], scores: Any) -> tuple[Value, Value]:
    """Return the label of the greatest score, and the scores; one score of two classes is that of the second."""
    ops, labels = call.ops, call.attribute("classlabels_int64s", call.attribute("classlabels_ints"))
    if labels is None:
        raise UnsupportedError("its labels are texts; export the model with integer labels")
    if len(labels) == 2 and scores.shape[1] == 1:
        kind, half = call.attribute("post_transform", "NONE"), 0.0
        first = ops.neg(scores) if kind != "NONE" else ops.sub(1.0, scores)
        half = 0.5 if kind == "NONE" else half
        above = ops.less(half, ops.squeeze(scores, axis=1))
        scores = ops.concat([first, scores], axis=1)
        best = ops.cast(above, dtype="int64")
    else:
        best = ops.argmax(scores, axis=1)
    found = take(ops, ops.const(np.asarray(labels, np.int64)), best)
    return TensorValue(found, INT64), call.give(_transformed(call, scores), FLOAT32)


def _linear(call: NodeCall[Any], count: int) -> Any:
    ops, x = call.ops, call.floats(call.value(0))
    weight = ops.reshape(_floats(call, "coefficients"), shape=(count, x.shape[1]))
    y = ops.matmul(x, ops.permute(weight, axes=(1, 0)))
    return ops.add(y, _number(call, y, "intercepts", 0.0))


@rule(f"{ML}LinearRegressor")
def _linear_regressor(call: NodeCall[Any]) -> Value:
    return call.give(_transformed(call, _linear(call, int(call.attribute("targets", 1)))), FLOAT32)


@rule(f"{ML}LinearClassifier")
def _linear_classifier(call: NodeCall[Any]) -> tuple[Value, Value]:
    call.attribute("multi_class")
    width = call.shape()[1]
    return _classified(call, _linear(call, len(call.attribute("coefficients")) // int(width)))


_MODES = {"BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "LEAF"}


def _trees(call: NodeCall[Any], kind: str, count: int) -> Any:
    """Return the sums of leaves (examples, targets): all trees walk down one level at a time, from their roots."""
    ops, x = call.ops, call.floats(call.value(0))
    names = ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids")
    trees, numbers, features, limits, modes, yes, no = (call.attribute(f"nodes_{name}") for name in names)
    call.attribute("nodes_hitrates")
    place = {at: i for i, at in enumerate(zip(trees, numbers))}
    if not {*modes} <= _MODES or len({*modes} - {"LEAF"}) > 1:
        raise UnsupportedError(f"its modes {', '.join(sorted({*modes}))} are not known together")
    leaf = np.array([mode == "LEAF" for mode in modes])
    own = np.arange(len(modes))
    turns = [
        np.where(leaf, own, [place.get((t, n), 0) for t, n in zip(trees, side)]).astype(np.int64) for side in (yes, no)
    ]
    roots = np.array([i for i, t in enumerate(trees) if i == 0 or trees[i - 1] != t])
    depth, level = 0, roots
    while not leaf[level].all():
        depth, level = depth + 1, np.unique(np.concatenate([turn[level] for turn in turns]))
    table = np.zeros((len(modes), count))
    ids, weights = call.attribute(f"{kind}_ids"), call.attribute(f"{kind}_weights")
    for t, n, target, weight in zip(call.attribute(f"{kind}_treeids"), call.attribute(f"{kind}_nodeids"), ids, weights):
        table[place[t, n], target] += weight
    missing = np.array(call.attribute("nodes_missing_value_tracks_true", [0] * len(modes)), bool)
    columns = [ops.const(np.asarray(each)) for each in (np.asarray(features, np.int64), *turns, missing)]
    bounds = ops.const(np.asarray(limits, np.float64), dtype=ops.dtype)
    compare = next((mode for mode in modes if mode != "LEAF"), "BRANCH_LEQ")
    at = ops.broadcast_to(ops.const(roots.astype(np.int64)), shape=(x.shape[0], len(roots)))
    for _ in range(depth):
        feature, true, false, tracks = (take(ops, each, at) for each in columns)
        value, bound = take_along_axis(ops, x, feature, axis=1), take(ops, bounds, at)
        test = {
            "BRANCH_LEQ": lambda a, b: ops.less_equal(a, b),
            "BRANCH_LT": lambda a, b: ops.less(a, b),
            "BRANCH_GTE": lambda a, b: ops.less_equal(b, a),
            "BRANCH_GT": lambda a, b: ops.less(b, a),
            "BRANCH_EQ": lambda a, b: ops.equal(a, b),
            "BRANCH_NEQ": lambda a, b: ops.logical_not(ops.equal(a, b)),
        }[compare](value, bound)
        at = ops.select(ops.logical_or(test, ops.logical_and(ops.isnan(value), tracks)), true, false)
    leaves = take(ops, ops.const(table, dtype=ops.dtype), at)
    how = call.attribute("aggregate_function", "SUM")
    reduce = {"SUM": ops.reduce_sum, "AVERAGE": ops.reduce_mean, "MIN": ops.reduce_min, "MAX": ops.reduce_max}[how]
    total = reduce(leaves, axis=1)
    return ops.add(total, _number(call, total, "base_values", 0.0))


@rule(f"{ML}TreeEnsembleRegressor")
def _tree_regressor(call: NodeCall[Any]) -> Value:
    return call.give(_transformed(call, _trees(call, "target", int(call.attribute("n_targets", 1)))), FLOAT32)


@rule(f"{ML}TreeEnsembleClassifier")
def _tree_classifier(call: NodeCall[Any]) -> tuple[Value, Value]:
    return _classified(call, _trees(call, "class", max(call.attribute("class_ids")) + 1))


@rule(f"{ML}ZipMap")
def _zip_map(call: NodeCall[Any]) -> Value:
    """Return the scores as a tensor with a column for each class, in the order of the labels."""
    call.attribute("classlabels_int64s")
    return call.value(0)
