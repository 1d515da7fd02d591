"""Literal indices, results that are constant or not what their reader takes, infix that stretches both operands."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Spec, derived
from opstage.interpreters.shape_check.rules import LINTS, RULES
from opstage.models import MODELS, model
from opstage.ops.errors import RangeError
from opstage.training.validate import check_step
from tests.check.linted import checked, found, specs, stands_at, stepped
from tests.docs.blocks import DOCS

RANGE = "index-range"


def reads(op: str, index: Any, **static: Any) -> Callable[..., Any]:
    """A program that passes a literal index to an op."""

    def program(ops: Any, x: Any) -> Any:
        at = ops.const(np.asarray(index))
        if op.startswith("gather"):
            return getattr(ops, op)(x, at, **static)
        updates = ops.full(shape=(*at.shape, *x.shape[1:]), value=1.0)
        return getattr(ops, op)(x, updates, at, **static)  # here

    return program


READERS = [("gather_rows", "5 2"), ("gather_vec", "5"), ("scatter_add_row", "5 2"), ("scatter_add_vec", "5")]


@pytest.mark.parametrize(("op", "shape"), READERS, ids=[op for op, _ in READERS])
@pytest.mark.parametrize(("index", "wrong"), [([4, 0], None), ([0, 5], 5), ([[0], [-1]], -1), ([], None)])
def test_a_literal_index_is_held_to_the_axis(op: str, shape: str, index: Any, wrong: int | None) -> None:
    program = reads(op, np.asarray(index, np.int64))
    findings = checked(RANGE, program, Spec(shape))
    rows = np.zeros([int(size) for size in shape.split()])
    if wrong is None:
        opstage.run(program, rows)
        assert findings == []
    else:
        with pytest.raises(RangeError):  # the run agrees
            opstage.run(program, rows)
        (finding,) = findings
        assert finding.severity == "error"
        assert f"index {wrong} is out of range: x is {tuple(rows.shape)}, so it must be 0 … 4" in finding.reason


def test_mode_zero_takes_any_index() -> None:
    assert checked(RANGE, reads("gather_rows", [7, -1], mode="zero"), Spec("5 2")) == []


def test_symbolic_extents() -> None:
    program = reads("gather_rows", [0, 5])
    (finding,) = checked(RANGE, program, Spec("V 2"))
    assert finding.constraint == "V >= 6"
    assert "index 5 is out of range: x is (V, 2), so it must be 0 … V - 1; fails at V=" in finding.reason
    assert checked(RANGE, program, Spec("V 2", where=["V >= 6"])) == []
    assert len(checked(RANGE, program, Spec("V 2", where=["V >= 5"]))) == 1


def positions(ops: Any, params: Any, x: Any) -> Any:
    places = ops.iota(shape=(x.shape[1],))
    return ops.add(
        derived.embedding(ops, params["token"], x),
        ops.broadcast_to(derived.embedding(ops, params["position"], places), shape=(*x.shape, 4)),  # table
    )


def test_positions_that_outgrow_their_table() -> None:
    params = specs(token="50 4", position="16 4")
    (finding,) = checked(RANGE, positions, params, Spec("B T", "int64"))
    assert finding.constraint == "T <= 16" and "fails at T=17" in finding.reason
    assert stands_at(finding, positions, "# table")
    assert finding.operands == ("x is params.position (16, 4)",)
    assert checked(RANGE, positions, params, Spec("B T", "int64", where=["T <= 16"])) == []


@pytest.mark.parametrize(
    ("wrong", "constraint", "index"),
    [
        ("T", None, lambda ops, i, t: i + 1),
        ("-1", None, lambda ops, i, t: i - 1),
        ("T", None, lambda ops, i, t: t - i),
        ("2*T - 2", "T <= 1", lambda ops, i, t: 2 * i),
        ("3", "T >= 4", lambda ops, i, t: ops.maximum(ops.minimum(i, 3), 3)),
        ("1 - T", "T <= 1", lambda ops, i, t: -1 * i),
        ("T", None, lambda ops, i, t: ops.select(i + 1 < 0, i, i + 1)),
        ("T", None, lambda ops, i, t: ops.slice(i + 1, axis=0, start=0, length=t)),
        (None, None, lambda ops, i, t: ops.select(i < 1, i, i + 1)),  # what is selected is not known
        (None, None, lambda ops, i, t: ops.slice(i + 1, axis=0, start=0, length=t // 2 + 1)),  # an end may be cut off
        (None, None, lambda ops, i, t: t - 1 - i),
        (None, None, lambda ops, i, t: ops.minimum(i + 1, t - 1)),
        (None, None, lambda ops, i, t: i - i),  # the ends of a difference of two open ranges are not attained
    ],
)
def test_arithmetic_on_positions(wrong: str | None, constraint: str | None, index: Callable[..., Any]) -> None:
    def program(ops: Any, x: Any) -> Any:
        return ops.gather_rows(x, index(ops, ops.iota(shape=x.shape[:1]), x.shape[0]))

    findings = checked(RANGE, program, Spec("T 2"))
    if wrong is None:
        assert findings == []
    else:
        (finding,) = findings
        assert f"index {wrong} is out of range: x is (T, 2)" in finding.reason and finding.constraint == constraint
        with pytest.raises(RangeError):
            opstage.run(program, np.zeros((2, 2)))


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize(
    "read",
    [
        lambda ops, x, i: x[i],
        lambda ops, x, i: x[-1 * i - 1],
        lambda ops, x, i: derived.take(ops, x, i, axis=0),
        lambda ops, x, i: derived.gather_nd(ops, x, ops.unsqueeze(i, axis=1)),
        lambda ops, x, i: derived.scatter_nd(ops, x, ops.unsqueeze(i, axis=1), x),
    ],
)
def test_whatever_reads_at_positions(read: Callable[..., Any], shift: int) -> None:
    def program(ops: Any, x: Any) -> Any:
        return read(ops, x, ops.iota(shape=x.shape[:1]) + shift)

    assert len(checked(RANGE, program, Spec("T 2"))) == shift
    with pytest.raises(RangeError) if shift else nullcontext():
        opstage.run(program, np.zeros((3, 2)))


def test_positions_that_may_be_none_are_not_judged() -> None:
    def program(ops: Any, x: Any) -> Any:
        return ops.gather_rows(x, ops.iota(shape=(x.shape[0] - 1,)) + 2)

    assert checked(RANGE, program, Spec("T 2")) == []
    assert len(checked(RANGE, program, Spec("T 2", where=["T >= 2"]))) == 1


def test_a_literal_that_was_laid_out_anew() -> None:
    def program(ops: Any, x: Any) -> Any:
        at = ops.cast(ops.reshape(ops.const(np.array([[1, 2], [3, 9]])), shape=(4,)), dtype="int32")
        return ops.gather_rows(x, at)

    (finding,) = checked(RANGE, program, Spec("5 2"))
    assert "index 9" in finding.reason


def labelled(labels: Any, **static: Any) -> Callable[..., Any]:
    def program(ops: Any, x: Any) -> Any:
        return ops.cross_entropy(x, ops.const(np.asarray(labels)), **static)

    return program


def test_literal_labels() -> None:
    assert checked(RANGE, labelled([0, 3, -100]), Spec("3 4")) == []
    assert checked(RANGE, labelled([0, 3, 9], ignore_index=9), Spec("3 4")) == []
    (finding,) = checked(RANGE, labelled([0, 4, 1]), Spec("3 4"))
    assert "label 4 is out of range: logits are (3, 4), with classes on axis 1, so it must be 0 … 3" in finding.reason
    (finding,) = checked(RANGE, labelled([0, -1, 1]), Spec("3 4"))
    assert finding.fix == "ignore_index=-1 leaves such positions out"


def test_one_hot_of_a_label_out_of_range_is_only_a_warning() -> None:
    def program(ops: Any, x: Any) -> Any:
        return x * derived.one_hot(ops, ops.const(np.array([1, 4])), classes=x.shape[1])

    (finding,) = checked(RANGE, program, Spec("2 4"))
    assert finding.severity == "warning" and "label 4 is out of range: there are 4 classes" in finding.reason
    assert checked(RANGE, program, Spec("2 5")) == []
    assert checked(RANGE, program, Spec("2 C")) == []  # right for some sizes, and a row of zeros for the others


def test_labels_counted_from_one() -> None:
    def labels(ops: Any, x: Any) -> Any:
        return ops.iota(shape=x.shape[:1]) + 1

    (finding,) = checked(RANGE, lambda ops, x: ops.cross_entropy(x, labels(ops, x)), Spec("T T"))
    assert "label T is out of range" in finding.reason
    (finding,) = checked(
        RANGE, lambda ops, x: x * derived.one_hot(ops, labels(ops, x), classes=x.shape[0]), Spec("T T")
    )
    assert finding.severity == "warning" and "label T is out of range: there are T classes" in finding.reason


def test_an_index_in_a_loop() -> None:
    def program(ops: Any, table: Any, xs: Any) -> Any:
        def turn(ops: Any, carry: Any, x: Any) -> Any:
            row = ops.gather_rows(table, ops.const(np.int64(3)))  # row 3
            return ops.add(carry, ops.mul(row, x)), None

        return ops.scan(turn, ops.full(shape=(4,), value=0.0), xs)[0]

    (finding,) = checked(RANGE, program, Spec("3 4"), Spec("T 4"))
    assert stands_at(finding, program, "# row 3") and finding.operands == ("x is table (3, 4)",)
    assert checked(RANGE, program, Spec("4 4"), Spec("T 4")) == []


def test_what_comes_at_run_time_is_not_judged() -> None:
    def program(ops: Any, x: Any, at: Any) -> Any:
        return ops.gather_rows(x, at)

    assert checked(RANGE, program, Spec("5 2"), Spec("B", "int64")) == []


# Constant results -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
def test_softmax_of_one(op: str) -> None:
    def program(ops: Any, x: Any) -> Any:
        return getattr(ops, op)(x, axis=-1)  # over the last

    (finding,) = checked("softmax-of-one", program, Spec("B 1"))
    value = {"softmax": 1, "log_softmax": 0}[op]
    assert finding.reason == f"x is (B, 1): over axis 1, of size 1, it is {value} always"
    assert stands_at(finding, program, "# over the last")
    for shape in ("B 2", "1 C", "B C"):
        assert checked("softmax-of-one", program, Spec(shape)) == []


def test_cross_entropy_of_one_class() -> None:
    def loss(ops: Any, params: Any, x: Any, y: Any) -> Any:
        return ops.cross_entropy(ops.linear(params["w"], None, x), y)

    (finding,) = stepped("softmax-of-one", loss, specs(w="1 8"), Spec("B 8"), Spec("B", "int64"))
    assert "of one class, on axis 1, the loss is 0 always" in finding.reason
    assert stepped("softmax-of-one", loss, specs(w="2 8"), Spec("B 8"), Spec("B", "int64")) == []


@pytest.mark.parametrize(
    ("norm", "single", "several"),
    [
        (lambda ops, x: ops.layer_norm(x, None, None), "B 1", "B 2"),
        (lambda ops, x: ops.rms_norm(x, None), "B 1", "B 2"),
        (lambda ops, x: ops.group_norm(x, None, None, groups=4), "B 4", "B 8"),
        (lambda ops, x: ops.group_norm(x, None, None, groups=4), "B 4 1 1", "B 4 2 1"),
    ],
)
def test_norm_of_one(norm: Any, single: str, several: str) -> None:
    def program(ops: Any, x: Any) -> Any:
        return norm(ops, x)

    (finding,) = checked("norm-of-one", program, Spec(single))
    assert "each element is normalised alone" in finding.reason
    assert checked("norm-of-one", program, Spec(several)) == []


def test_dropout_that_keeps_nothing() -> None:
    def program(p: float) -> Callable[..., Any]:
        return lambda ops, x: derived.dropout(ops, x, p, True)

    (finding,) = checked("dropout-all", program(1.0), Spec("B"))
    assert finding.op == "bernoulli_mask" and "p is the probability" in finding.fix
    assert checked("dropout-all", program(0.9), Spec("B")) == []


# Probabilities --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["softmax", "sigmoid"])
def test_probabilities_where_logits_are_expected(op: str) -> None:
    def program(ops: Any, x: Any, y: Any) -> Any:
        p = getattr(ops, op)(x)
        return ops.cross_entropy(ops.permute(p, axes=(0, 2, 1)), y)  # loss

    (finding,) = checked("probabilities-as-logits", program, Spec("B T C"), Spec("B T", "int64"))
    assert finding.reason == f"logits are the result of {op}: probabilities, where scores are expected"
    assert stands_at(finding, program, "# loss")


def test_a_softmax_of_a_softmax() -> None:
    def program(axis: int, op: str) -> Callable[..., Any]:
        return lambda ops, x: getattr(ops, op)(ops.softmax(x, axis=1), axis=axis)

    for op in ("softmax", "log_softmax"):
        (finding,) = checked("probabilities-as-logits", program(-1, op), Spec("B C"))
        assert finding.op == op
        assert checked("probabilities-as-logits", program(0, op), Spec("B C")) == []


def test_scores_are_no_probabilities() -> None:
    def program(ops: Any, x: Any, y: Any) -> Any:
        return ops.cross_entropy(ops.mul(x, ops.sigmoid(x)), y), ops.softmax(ops.sigmoid(x))

    assert checked("probabilities-as-logits", program, Spec("B C"), Spec("B", "int64")) == []


@pytest.mark.parametrize(("op", "stable"), [("softmax", "ops.log_softmax(x)"), ("sigmoid", "-ops.softplus(-x)")])
def test_the_logarithm_of_a_probability(op: str, stable: str) -> None:
    def program(ops: Any, x: Any) -> Any:
        return ops.log(getattr(ops, op)(x))

    (finding,) = checked("log-of-probability", program, Spec("B C"))
    assert stable in finding.fix

    def guarded(ops: Any, x: Any) -> Any:
        return ops.safe_log(getattr(ops, op)(x), eps=1e-6), ops.log(ops.exp(x))

    assert checked("log-of-probability", guarded, Spec("B C")) == []


# What shape and dtype rules say already -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "op",
    [
        lambda ops, x: ops.reduce_mean(x, axis=1),
        lambda ops, x: ops.reduce_max(x, axis=1),
        lambda ops, x: ops.argmax(x, axis=1),
        lambda ops, x: ops.layer_norm(x, None, None),
        lambda ops, x: ops.mse_loss(x, x),
    ],
    ids=["mean", "max", "argmax", "layer_norm", "mse"],
)
def test_a_reduction_over_nothing_is_an_error_of_its_op(op: Any) -> None:
    def program(ops: Any, x: Any) -> Any:
        return op(ops, x)

    (finding,) = checked("shape", program, Spec("B 0"))
    assert finding.severity == "error"


def test_a_sum_over_nothing_is_zero() -> None:
    assert checked("shape", lambda ops, x: ops.reduce_sum(x, axis=1), Spec("B 0")) == []


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
def test_a_softmax_over_nothing_is_nothing(op: str) -> None:
    assert checked("shape", lambda ops, x: getattr(ops, op)(x, axis=1), Spec("B 0")) == []


@pytest.mark.parametrize(
    ("program", "args"),
    [
        (lambda ops, x, n: x + n, ("3", "int64")),
        (lambda ops, x, n: x * n, ("3", "bool")),
        (lambda ops, x, n: ops.exp(x) + ops.sum(n * 0.5), ("3", "int64")),
        (lambda ops, x, n: ops.add(x, ops.cast(n + 0.5, dtype="float32")), ("3", "int32")),
        (lambda ops, x, n: x + ops.const(np.ones(3), dtype="float64") * ops.cast(n, dtype="float64"), ("3", "int32")),
        (lambda ops, x, n: ops.add(x, ops.cast(n / 2, dtype="float32")), ("3", "int64")),
    ],
    ids=["int + float", "float * mask", "int * 0.5", "int + 0.5", "float64 + float32", "int / 2"],
)
def test_mixed_dtypes_are_one_error_that_names_the_cast(program: Any, args: tuple[str, str]) -> None:
    (finding,) = checked("dtype", program, Spec(args[0]), Spec(*args))
    assert finding.severity == "error" and "ops.cast" in str(finding)


# Infix arithmetic that stretches both operands ------------------------------------------------------------------------

RULE = "stretched-both"
OPERATORS: list[Callable[[Any, Any], Any]] = [
    lambda x, y: x + y,
    lambda x, y: x - y,
    lambda x, y: x * y,
    lambda x, y: x / y,
    lambda x, y: x < y,
    lambda x, y: x >= y,
    lambda x, y: x == y,
    lambda x, y: x != y,
]


@pytest.mark.parametrize("op", OPERATORS)
def test_every_operator(op: Callable[[Any, Any], Any]) -> None:
    def program(ops: Any, x: Any, y: Any) -> Any:
        return op(x, y)

    (finding,) = checked(RULE, program, Spec("B"), Spec("B 1"))
    assert finding.severity == "warning"
    assert "both operands are stretched" in finding.reason
    assert checked(RULE, program, Spec("B"), Spec("B")) == []


def residual(ops: Any, params: Any, x: Any, y: Any) -> Any:
    guess = ops.linear(params["w"], None, x)
    off = guess - y  # the usual one
    return ops.reduce_mean(off * off)


def test_a_regression_whose_targets_lack_an_axis() -> None:
    (finding,) = stepped(RULE, residual, specs(w="1 8"), Spec("B 8"), Spec("B"))
    assert finding.reason == "both operands are stretched: (B, 1) and (B,) become (B, B)"
    assert finding.operands == ("the right is y (B,)",)
    assert finding.fix.startswith("give both one shape, (B,)")
    assert stands_at(finding, residual, "# the usual one")
    assert str(finding).splitlines()[2].strip() == "^" * len("guess - y")
    assert stepped(RULE, residual, specs(w="1 8"), Spec("B 8"), Spec("B 1")) == []


@pytest.mark.parametrize(
    ("x", "y"), [("B T", "T"), ("B T", "1"), ("B T", "B 1"), ("B 1", "B T"), ("1 T", "B T"), ("", "B T"), ("1", "1 1")]
)
def test_one_stretched_operand_is_what_broadcasting_is_for(x: str, y: str) -> None:
    assert checked(RULE, lambda ops, x, y: x + y, Spec(x), Spec(y)) == []


def test_operand_that_all_examples_of_a_batch_share_is_not_stretched_by_the_user() -> None:
    program = opstage.vmap(lambda ops, x, y: x * y, in_axes=(0, None))
    assert checked(RULE, program, Spec("B 4 1"), Spec("4 5")) == []


def test_a_number_is_no_operand_to_stretch() -> None:
    assert checked(RULE, lambda ops, x: 2 * x + 1.5 - x / 3, Spec("B T")) == []


def test_an_array_of_numpy_is_an_operand() -> None:
    (finding,) = checked(RULE, lambda ops, x: np.ones((4, 1), np.float32) * x, Spec("B"))
    assert finding.reason == "both operands are stretched: (B,) and (4, 1) become (4, B)"
    assert finding.fix == "write ops.broadcast_to where the larger shape is meant"


def test_said_by_broadcast_to_it_is_meant() -> None:
    def program(ops: Any, x: Any, y: Any) -> Any:
        shape = (y.shape[0], x.shape[0])
        wide = ops.broadcast_to(x, shape=shape) * ops.broadcast_to(y, shape=shape)
        return wide + ops.mul(ops.broadcast_to(x, shape=shape), ops.broadcast_to(y, shape=shape))

    assert checked(RULE, program, Spec("B"), Spec("A 1")) == []


@pytest.mark.parametrize(
    ("program", "silent"),
    [
        (lambda ops, x, y: ops.unsqueeze(x, axis=0) * ops.unsqueeze(y, axis=1), True),
        (lambda ops, x, y: ops.unsqueeze(x, axis=0) - ops.unsqueeze(x, axis=1), True),  # distances of pairs
        (lambda ops, x, y: x * ops.unsqueeze(y, axis=1), True),  # sizes that could never be one
        (lambda ops, x, y: x * (2 * ops.exp(ops.unsqueeze(y, axis=1)) + 1), True),
        (lambda ops, x, y: x - ops.unsqueeze(x, axis=1), False),
        (lambda ops, x, y: x * ops.reshape(y, shape=(y.shape[0], 1)), False),
    ],
)
def test_said_by_unsqueeze_it_is_meant(program: Callable[..., Any], silent: bool) -> None:
    assert (found(opstage.check(program, Spec("A"), Spec("B")), RULE) == []) is silent


def test_ops_that_broadcast_by_themselves_are_not_meant() -> None:
    def program(ops: Any, x: Any, y: Any) -> Any:
        return derived.einsum(ops, "i,j->ij", x, y), x @ y

    assert checked(RULE, program, Spec("N"), Spec("N")) == []


def test_at_a_call_there_is_no_operator() -> None:
    assert checked(RULE, lambda ops, x, y: operator.add(x, y), Spec("B"), Spec("B 1")) == []


def test_a_line_that_runs_often_is_one_finding() -> None:
    def program(ops: Any, x: Any, y: Any) -> Any:
        total = ops.full(shape=(), value=0.0)
        for _ in range(3):
            total = total + ops.sum(x * y)
        return total

    assert len(checked(RULE, program, Spec("B"), Spec("B 1"))) == 1


def test_in_a_loop() -> None:
    def program(ops: Any, xs: Any, y: Any) -> Any:
        def turn(ops: Any, carry: Any, x: Any) -> Any:
            return carry + ops.sum(x * y), None  # outer

        return ops.scan(turn, ops.full(shape=(), value=0.0), xs)[0]

    (finding,) = checked(RULE, program, Spec("T B"), Spec("B 1"))
    assert stands_at(finding, program, "# outer")


def test_a_shape_that_an_error_left_open_is_not_judged() -> None:
    def program(ops: Any, x: Any, y: Any) -> Any:
        return ops.sum(ops.matmul(x, x) + y)

    assert checked("shape", program, Spec("3 4"), Spec("B 1 1"))[0].op == "matmul"


# The lints have nothing to say of the shipped models, and the documents and formats know every rule -------------------


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_shipped_model_trains_without_a_finding(name: str) -> None:
    shipped = model(name)
    assert check_step(shipped.loss, shipped.init, *shipped.batch, state=shipped.state).findings == ()


@pytest.mark.parametrize("train", [False, True], ids=["evaluated", "trained"])
@pytest.mark.parametrize("name", sorted(MODELS))
def test_its_programs_alone_neither(name: str, train: bool) -> None:
    shipped = model(name)
    state = () if shipped.state is None else (shipped.state,)
    for program in (shipped.loss, shipped.metrics):
        assert opstage.check(program, shipped.init, *state, *shipped.batch, train=train).findings == ()


GUIDE = (DOCS / "guide" / "check-reference.md").read_text()
_ROW = re.compile(r"^\| `([\w-]+)` \| (?:(error|warning) \| )?([A-Z`].+) \|$", re.MULTILINE)
RULE_ROWS = _ROW.findall(GUIDE.partition("\n## Rules\n")[2].partition("\n## ")[0])


def test_the_guide_has_every_lint_and_its_words() -> None:
    rows = [(rule, severity, about) for rule, severity, about in RULE_ROWS if severity]
    assert rows == [(lint.rule, lint.severity, lint.about) for lint in LINTS]


def test_the_guide_has_every_rule_and_its_words() -> None:
    assert {rule: about for rule, _, about in RULE_ROWS} == RULES
    assert len(RULE_ROWS) == len(RULES)


def test_every_lint_is_a_rule() -> None:
    assert {lint.rule: lint.about for lint in LINTS}.items() <= RULES.items()
    assert len({lint.rule for lint in LINTS}) == len(LINTS)
