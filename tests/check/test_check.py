"""opstage.check: every independent error of a program, each with its place and its reason, and nothing computed."""

from __future__ import annotations

import inspect
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, Spec, check_step, derived, transform
from opstage.interpreters.shape_check.finding import Finding
from opstage.interpreters.shape_check.report import Report
from opstage.ops.dims import evaluate
from opstage.ops.errors import ValidationError
from opstage.ops.types import TensorType

FLOAT32 = np.dtype(np.float32)


def check(program: Callable[..., Any], *specs: Any, **more: Any) -> Report:
    return opstage.check(program, *specs, **more)


def line_of(program: Callable[..., Any], text: str) -> int:
    """The number of the one line of `program` that holds `text`."""
    lines, first = inspect.getsourcelines(program)
    (found,) = [first + i for i, line in enumerate(lines) if text in line]
    return found


def only(report: Report) -> Finding:
    assert len(report.errors) == 1, report
    return report.errors[0]


# Many errors, and which of them are reported ------------------------------------------------------------------------


def three_errors(ops: Any, params: Any, x: Any) -> Any:
    h = ops.linear(params["first"]["weight"], None, x)  # in=784 against 512
    y = ops.linear(params["second"], None, ops.relu(h))  # follows
    z = ops.exp(ops.iota(shape=(3,)))  # integers
    w = ops.matmul(x, x)  # 512 against B
    return ops.sum(y), ops.sum(z), w


@pytest.mark.parametrize(
    "wrong",
    [
        lambda ops, x: ops.argmax(ops.matmul(x, x), axis=1),
        lambda ops, x: ops.argmax(x, axis=2),
        lambda ops, x: ops.argmax(x < x, axis=1),
    ],
)
def test_indices_stay_indices_after_an_error(wrong: Any) -> None:
    def program(ops: Any, x: Any) -> Any:
        found = wrong(ops, x)
        assert found.dtype == np.int64 and len(found.shape) == 1
        return derived.one_hot(ops, found, 4), ops.gather_rows(x, found)

    assert len(opstage.check(program, Spec("B 8")).errors) == 1


class Foreign:
    """An array as PyTorch's are: of a dtype that NumPy has not, and with a gradient that would end in NumPy."""

    shape = (3, 4)

    def __init__(self, dtype: str):
        self.dtype = type("dtype", (), {"__str__": lambda self: f"torch.{dtype}"})()

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")


def test_an_array_that_refuses_numpy_is_checked_and_not_run() -> None:
    def double(ops: Any, x: Any) -> Any:
        return ops.add(x, x)

    found = {"float32": "float32", "bfloat16": "float32", "int64": "int64", "uint8": "int64", "int32": "int32"}
    for name, kept in found.items():
        assert str(opstage.check(double, Foreign(name)).outputs) == f"(3, 4) {kept}"
    assert "must hold numbers" in opstage.check(double, Foreign("complex64")).errors[0].reason
    tensor = Foreign("float32")
    with pytest.raises(opstage.UsageError, match=r"argument x: .*gives no NumPy array: .*detach"):
        opstage.run(double, tensor)
    with pytest.raises(opstage.UsageError, match=r"^w: .*gives no NumPy array: .*detach"):
        opstage.scalar_trainer(lambda ops, params, x: ops.sum(params["w"]), {"w": tensor}, Spec("3"))


def test_all_independent_errors_and_no_follow_ups() -> None:
    params = {"first": {"weight": Spec("256 784")}, "second": Spec("10 256")}
    report = check(three_errors, params, Spec("B 512"))  # bound here
    assert [finding.op for finding in report.errors] == ["linear", "exp", "matmul"]
    for finding, text in zip(report.errors, ["in=784 against", "# integers", "512 against B"]):
        assert finding.source is not None and finding.source.file == __file__
        assert finding.source.line == line_of(three_errors, text)
        assert finding.source.text.endswith(text) or text in finding.source.text
    assert report.outputs is None
    assert not report.ok
    first = str(report.errors[0]).splitlines()
    place = f"linear at {report.errors[0].source}"
    here = (
        f"{place.split()[-1].split(':')[0]}:{line_of(test_all_independent_errors_and_no_follow_ups, 'bound ' + 'here')}"
    )
    assert place.endswith(f"test_check.py:{line_of(three_errors, 'in=784')}")
    assert first == [
        f"{place}: weight is (out=256, in=784) but x is (B, 512): in=784 differs from 512; "
        "did you mean weight of shape (256, 512)?",
        '    h = ops.linear(params["first"]["weight"], None, x)  # in=784 against 512',
        "        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^",
        "  weight is params.first.weight (256, 784)",
        "  x is x (B, 512)",
        f'  B was bound at x: Spec("B 512"), written at {here}',
    ]
    text = str(report)
    assert text.count("error: ") == 3 and text.endswith("3 errors")


def test_what_follows_from_an_error_is_silent_to_the_end() -> None:
    def program(ops: Any, x: Any, y: Any) -> Any:
        z = ops.add(x, y)
        z = ops.reshape(ops.transpose2d(z), shape=(-1, 7))
        z = ops.softmax(ops.concat([z, z], axis=1), axis=1)
        if z.shape[0] > 3:  # nobody knows
            z = ops.neg(z)
        return ops.sum(z)

    assert only(check(program, Spec("B 3"), Spec("B 4"))).op == "add"


def test_an_error_in_a_loss_is_not_followed_by_one_about_the_loss() -> None:
    def loss(ops: Any, params: Any, x: Any, y: Any) -> Any:
        return ops.cross_entropy(ops.linear(params, None, x), y)

    with pytest.raises(ValidationError) as caught:
        opstage.scalar_trainer(loss, np.zeros((10, 4)), Spec("B 4"), Spec("B"))  # float labels
    report = caught.value.report
    assert isinstance(report, Report)
    assert only(report).op == "cross_entropy"
    assert "integer tensor" in only(report).reason


def test_independent_errors_around_a_follow_up() -> None:
    def program(ops: Any, x: Any) -> Any:
        a = ops.matmul(x, x)
        b = ops.add(a, ops.const(np.ones(3)))  # follows: a's size is unknown
        c = ops.transpose2d(ops.sum(x))  # rank 0
        return b, c

    assert [f.op for f in check(program, Spec("2 3")).errors] == ["matmul", "transpose2d"]


def test_the_same_mistake_on_two_lines_is_two_errors() -> None:
    def program(ops: Any, x: Any) -> Any:
        a = ops.matmul(x, x)
        b = ops.matmul(x, x)
        return a, b

    first, second = check(program, Spec("2 3")).errors
    assert first.source is not None and second.source is not None
    assert second.source.line == first.source.line + 1


def test_errors_of_the_backward_pass_name_the_line_of_the_op() -> None:
    def loss(ops: Any, params: Any, x: Any) -> Any:
        root = ops.sqrt(ops.mul(params, x))  # not rational
        return ops.sum(root)

    report = check(loss, Spec("3"), Spec("3"), options=Options(dtype="exact"))
    finding = only(report)
    assert finding.op == "sqrt" and "does not support sqrt in dtype exact" in finding.reason
    with pytest.raises(ValidationError, match=r"sqrt at .*test_check.py") as caught:
        opstage.scalar_trainer(loss, np.ones(3), Spec("3"), options=Options(dtype="exact"))
    found = caught.value.report
    assert isinstance(found, Report)
    assert {f.source.line for f in found.errors if f.source} == {line_of(loss, "# not rational")}


# Where: regions, paths, dims ----------------------------------------------------------------------------------------


def test_regions_are_named_with_their_occurrence() -> None:
    def block(ops: Any, weight: Any, x: Any) -> Any:
        return ops.region("mlp", lambda inner: inner.linear(weight, None, x))

    def program(ops: Any, params: Any, x: Any) -> Any:
        for weight in params["blocks"]:
            x = ops.region("block", block, weight, x)
        return x

    params = {"blocks": [Spec("4 4"), Spec("4 5"), Spec("6 4")]}
    report = check(program, params, Spec("B 4"))
    finding = only(report)
    assert finding.region == "block#1.mlp"
    assert "(block#1.mlp): weight is (out=4, in=5)" in str(finding)
    assert "  weight is params.blocks.1 (4, 5)" in str(finding).splitlines()


def test_dims_are_told_with_the_place_where_they_were_bound() -> None:
    def program(ops: Any, batch: Any, mask: Any) -> Any:
        return ops.select(mask, batch["x"], batch["y"])

    batch = {"x": Spec("B T"), "y": Spec("B S", where=["S <= 8"])}
    text = str(only(check(program, batch, Spec("B T", dtype="bool"))))
    assert "  x is batch.x (B, T)" in text and "  y is batch.y (B, S)" in text
    assert '  B and T were bound at batch.x: Spec("B T"), written at ' in text
    assert """  S was bound at batch.y: Spec("B S", where=['S <= 8'])""" in text
    assert 'add where=["S == T"]' in text


def test_arguments_are_named_as_the_program_names_them() -> None:
    report = check(lambda ops, images, labels: ops.sum(images), Spec("B 3"), [Spec("B", dtype="int64"), (2, 3)])
    assert report.inputs == (("images", "(B, 3) float32"), ("labels.0", "(B,) int64"), ("labels.1", "(2, 3) float32"))


# Named dims speak of every size -------------------------------------------------------------------------------------


def test_a_refuted_relation_shows_a_counterexample_and_the_missing_declaration() -> None:
    def program(ops: Any, x: Any) -> Any:
        return ops.reshape(x, shape=(x.shape[0] // 2, 2))

    finding = only(check(program, Spec("T")))
    assert 'fails at T=1; add where=["T % 2 == 0"]' in finding.reason
    report = check(program, Spec("T", where=["T % 2 == 0"]))
    assert report.ok and str(report.outputs) == "(T//2, 2) float32"


def test_where_of_one_spec_speaks_of_the_names_of_another() -> None:
    def program(ops: Any, x: Any, y: Any) -> Any:
        return ops.slice(x, axis=0, start=0, length=y.shape[0])

    assert "fails at" in only(check(program, Spec("T"), Spec("S"))).reason
    assert check(program, Spec("T", where=["S <= T"]), Spec("S")).ok
    assert check(program, Spec("T"), Spec("S", where=["S <= T"])).ok


def test_a_branch_on_an_undecided_size_is_an_error_at_its_line() -> None:
    def program(ops: Any, x: Any) -> Any:
        if x.shape[0] > 128:
            return ops.neg(x)
        return x

    finding = only(check(program, Spec("T")))
    assert finding.source is not None and finding.source.line == line_of(program, "128")
    assert "whether T > 128 is not decided" in finding.reason
    assert 'where=["T > 128"] or its opposite' in finding.reason
    assert check(program, Spec("T", where=["T <= 128"])).ok
    assert check(program, Spec("T", where=["T > 128"])).ops == 1


def test_a_size_used_as_a_number_is_explained() -> None:
    finding = only(check(lambda ops, x: [ops.gather_row(x, index=i) for i in range(x.shape[0])], Spec("T 3")))
    assert "T is symbolic: it stands for every allowed size" in finding.reason


UNDECIDED = Spec("X", where=["X*X*X + Y*Y*Y == 4104", "X < Y"])  # 2³ + 16³ = 9³ + 15³, which no small search finds


def nine(ops: Any, x: Any) -> Any:
    return ops.reshape(x, shape=(9,))


def test_what_is_neither_proved_nor_refuted_is_a_condition() -> None:
    report = check(lambda ops, x, y: nine(ops, x), UNDECIDED, Spec("Y"))
    assert report.ok
    (condition,) = report.conditions
    assert condition.relation == "X == 9" and condition.op == "reshape"
    assert condition.source is not None and condition.source.line == line_of(nine, "reshape")
    assert condition.holds is not None
    assert condition.holds({"X": 9, "Y": 15}) and not condition.holds({"X": 2, "Y": 16})
    text = str(report)
    assert "This program is right only if:\n  X == 9, needed by reshape at " in text


# Dtypes, names, user code -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "specs", "op", "reason"),
    [
        (lambda ops, x, y: x + y, [Spec("B"), Spec("B", dtype="int64")], "+", "x is float32 but y is int64; cast one"),
        (
            lambda ops, x, y: ops.exp(y),
            [Spec("B"), Spec("B", dtype="int64")],
            "exp",
            "must be a float tensor but is (B,) int64",
        ),
        (lambda ops, x, y: y * 0.5, [Spec("B"), Spec("B", dtype="int64")], "*", "x is int64 but y is float32"),
        (lambda ops, x, y: ops.gather_vec(x, y), [Spec("B"), Spec("K")], "gather_vec", "must be an integer tensor"),
        (lambda ops, x, y: ops.select(y, x, x), [Spec("B"), Spec("B")], "select", "mask must be a boolean mask"),
        (lambda ops, x, y: ops.sum(y), [Spec("B"), Spec("B", dtype="bool")], "sum", "bool"),
        (lambda ops, x, y: ops.reduce_max(x, axis=2), [Spec("B"), Spec("")], "reduce_max", "axis 2 is out of range"),
        (lambda ops, x, y: ops.reduce_max(x), [Spec("0"), Spec("")], "reduce_max", "needs at least one element"),
    ],
)
def test_dtypes_axes_and_empty_tensors(program: Any, specs: Any, op: str, reason: str) -> None:
    finding = only(check(program, *specs))
    assert finding.op == op
    assert reason in finding.reason
    assert finding.source is not None and finding.source.file == __file__


def test_what_user_code_raises_is_a_finding() -> None:
    def lookup(ops: Any, params: Any) -> Any:
        return params["wieght"]

    finding = only(check(lookup, {"weight": Spec("3")}))
    assert (
        finding.reason
        == "KeyError: 'wieght'; params does not have the key 'wieght' (did you mean 'weight'?); its keys are 'weight'"
    )
    assert finding.source is not None and finding.source.line == line_of(lookup, "wieght")

    finding = only(check(lambda ops, x: ops.sofmax(x), Spec("3")))
    assert "unknown op 'sofmax' (did you mean 'softmax'?)" in finding.reason
    assert "ZeroDivisionError" in only(check(lambda ops, x: 1 / 0, Spec("3"))).reason
    assert "RecursionError" in only(check(recursive, Spec("3"))).reason
    assert "missing 1 required positional argument: 'y'" in only(check(lambda ops, x, y: x, Spec("3"))).reason
    assert "an op got a float where it needs a ref" in only(check(lambda ops, x: 3.0, Spec("3"))).reason
    finding = only(check(lambda ops, x: x if x > 0 else -x, Spec("")))
    assert "the truth value of a ref is not supported" in finding.reason


def recursive(ops: Any, x: Any) -> Any:
    return recursive(ops, x)


@pytest.mark.parametrize(
    ("specs", "reason"),
    [
        ([Spec("B 3+")], "cannot read the dim expression '3+'"),
        ([Spec("B class")], "cannot read the dim expression 'class'"),
        ([Spec("B T/2")], "sizes divide with // "),
        ([Spec("B", where=["C <= 3"])], "unknown dim 'C'"),
        ([Spec("Batch", where=["Bacth <= 3"])], "unknown dim 'Bacth' (did you mean 'Batch'?)"),
        ([Spec("B", where=["B <= 3", "B > 4"])], "the constraint 'B > 4' cannot be satisfied"),
        ([Spec("B", where=["B"])], "a relation is wanted"),
        ([Spec(("B", -1))], "a dim is an int that is at least 0"),
        ([Spec(("B", 1.5))], "a dim is an int that is at least 0"),
        (["B 3"], "a tensor must hold numbers"),
        ([np.array(["a"])], "a tensor must hold numbers"),
        ([{"a.b": Spec("3"), "a": {"b": Spec("3")}}], "two leaves have the path 'a.b'"),
    ],
)
def test_bad_specs_are_findings_too(specs: Any, reason: str) -> None:
    report = check(lambda ops, x: x, *specs)
    finding = only(report)
    assert finding.op == "Spec"
    assert reason in finding.reason
    assert str(report)


def test_options_that_name_no_interpreter_are_a_finding() -> None:
    assert only(check(lambda ops, x: x, Spec("3"), options=Options(backend="eagre"))).op == "Options"
    assert "cuda" in only(check(lambda ops, x: x, Spec("3"), options=Options(device="cuda"))).reason


# Nothing is computed ------------------------------------------------------------------------------------------------


def test_nothing_is_allocated() -> None:
    huge = 10**9

    def program(ops: Any, w: Any, x: Any) -> Any:
        def loss(inner: Any, v: Any) -> Any:
            h = inner.linear(w, None, v)
            noise = inner.rand_normal(shape=(huge, huge))
            return inner.sum(inner.softmax(h + noise, axis=-1) * inner.full(shape=(huge, huge), value=1.0))

        return opstage.transform.grad(ops, loss, x)

    tracemalloc.start()
    try:
        report = check(program, Spec((huge, huge)), Spec((huge, huge)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert report.ok, report
    assert report.outputs == TensorType((huge, huge), FLOAT32)
    assert peak < 5e6
    assert report.parameters == huge**2


def test_cost_of_a_linear_model_is_a_formula() -> None:
    def model(ops: Any, params: Any, x: Any) -> Any:
        return ops.linear(params["weight"], params["bias"], x)

    report = check(model, {"weight": Spec("O I"), "bias": Spec("O")}, Spec("B I"))
    assert str(report.cost.flops) == "2*B*I*O + B*O"
    assert str(report.cost.bytes) == "4*B*I + 4*B*O + 4*I*O + 4*O"
    assert str(report.parameters) == "I*O + O"
    sizes = {"B": 32, "I": 784, "O": 10}
    assert evaluate(report.cost.flops, sizes) == 2 * 32 * 784 * 10 + 32 * 10
    assert evaluate(report.cost.bytes, sizes) == 4 * (32 * 784 + 784 * 10 + 10 + 32 * 10)
    assert str(report) == "ok: 1 ops, 2*B*I*O + B*O flops, 4*B*I + 4*B*O + 4*I*O + 4*O bytes moved"
    double = check(model, {"weight": Spec("O I"), "bias": Spec("O")}, Spec("B I"), options=Options(dtype="float64"))
    assert evaluate(double.cost.bytes, sizes) == 2 * evaluate(report.cost.bytes, sizes)


def test_train_is_passed_to_a_program_that_declares_it() -> None:
    def program(ops: Any, x: Any, *, train: bool) -> Any:
        return ops.matmul(x, x) if train else x

    assert not check(program, Spec("2 3")).ok
    assert check(program, Spec("2 3"), train=False).ok


def test_reports_are_the_same_from_run_to_run() -> None:
    params = {"first": {"weight": Spec("256 784")}, "second": Spec("10 256")}
    assert str(check(three_errors, params, Spec("B 512"))) == str(check(three_errors, params, Spec("B 512")))


def test_a_loop_that_gives_nothing() -> None:
    def program(ops: Any, w: Any, xs: Any) -> Any:
        def loss(ops: Any, w: Any) -> Any:
            ops.scan(lambda inner, carry, x: ((), ()), (), xs)
            return ops.sum(w * w * xs)

        return opstage.transform.grad(ops, loss, w)

    report = opstage.check(program, Spec("3"), Spec("4 3"))
    assert report.ok, report
    assert report.table.rows[0].op == "scan"
    assert report.graph.output_types == opstage.record(program, Spec("3"), Spec("4 3")).output_types
    w, xs = np.arange(3.0), np.ones((4, 3))
    np.testing.assert_array_equal(opstage.run(program, w, xs), 8 * w)


def test_a_derivative_within_a_loop_may_decompose_what_it_likes() -> None:
    """A tape over the trace of a body once handed its refs to the checker, which took them for those of another run."""

    def program(ops: Any, params: Any, x: Any) -> Any:
        def row(ops: Any, total: Any, row: Any) -> Any:
            g = transform.grad(ops, lambda ops, w: ops.sum(ops.gelu(ops.mul(row, w))), params["w"])
            return ops.add(total, ops.sum(ops.mul(g, g))), None

        return ops.scan(row, ops.full(shape=(), value=0.0), x)[0]

    params = {"w": np.ones(6)}
    assert opstage.check(program, {"w": (6,)}, Spec("B 6")).ok
    assert check_step(program, params, Spec("B 6")).ok
    wrong = opstage.check(program, {"w": (6,)}, Spec("B 7"))
    assert not wrong.ok and "7" in str(wrong)


# Sizes as numbers -----------------------------------------------------------------------------------------------------


def test_a_size_below_0_is_found_with_the_missing_constraint() -> None:
    def program(ops: Any, x: Any) -> Any:
        return ops.full(shape=(x.shape[0] - 2,), value=1.0)

    (error,) = opstage.check(program, Spec("T")).errors
    assert error.op == "full" and error.constraint == "T >= 2"
    assert "a size must be at least 0 but the result is (T - 2,); fails at T=1" in error.reason
    assert opstage.check(program, Spec("T", where=["T >= 2"])).ok


def test_a_size_of_a_custom_op_is_at_least_0() -> None:
    shrink = opstage.custom_op(
        "shrink_by_two",
        operands=("x",),
        shape=lambda x: (TensorType((x.shape[0] - 2,), x.dtype),),
        decomposition=lambda ops, x: (ops.full(shape=(x.shape[0] - 2,), value=0.0, dtype=x.dtype),),
        differentiable=False,
    )
    report = opstage.check(lambda ops, x: shrink(ops, x), Spec("T"))
    assert any("the result is (T - 2,)" in error.reason for error in report.errors)


@pytest.mark.parametrize("value", [lambda t: t, lambda t: t - 1, lambda t: t / 2, lambda t: [t, 1], np.array])
def test_a_constant_of_an_open_size_says_what_to_write(value: Any) -> None:
    (error,) = opstage.check(lambda ops, x: ops.const(value(x.shape[0])), Spec("T")).errors
    assert "stands for every allowed size; write ops.full(shape=(), value=size" in error.reason


def test_what_that_error_says_to_write_is_right() -> None:
    def program(ops: Any, x: Any) -> Any:
        sizes = [ops.full(shape=(), value=size, dtype="int64") for size in (x.shape[0], x.shape[0] + 1)]
        return ops.stack(sizes)

    assert opstage.check(program, Spec("T")).ok
    assert opstage.run(program, np.zeros(3)).tolist() == [3, 4]


def test_a_set_of_sizes_is_an_error_at_its_line() -> None:
    def program(ops: Any, x: Any) -> Any:
        return ops.relu(x) if x.shape[0] in {224, 256} else x

    (error,) = opstage.check(program, Spec("T")).errors
    assert "Compare it, as in `size in (224, 256)`" in error.reason and error.source is not None
    assert opstage.check(program, (224,)).ok
