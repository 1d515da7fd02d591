"""`opstage verify`: verdicts against dense sampling, counterexamples that were run, and properties of any text."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from opstage.api import run
from opstage.cli.commands import cli
from opstage.interop.onnx.model import load
from opstage.ops.errors import UsageError
from opstage.verification.branch_and_bound import as_row_network
from opstage.verification.branch_and_bound import verify as branch_and_bound
from opstage.verification.vnnlib import parse, read

onnx = pytest.importorskip("onnx")

DECLARED = "(declare-const X_0 Real)\n(declare-const X_1 Real)\n(declare-const Y_0 Real)\n"
BOXED = DECLARED + "".join(f"(assert (>= X_{i} -1))(assert (<= X_{i} 1))\n" for i in range(2))


def relu_net(path: Path, sizes: list[int], seed: int, relu: str = "Relu") -> list[Any]:
    """A file of a network of affine layers; its weights and biases, in turn."""
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(seed)
    weights: list[Any] = []
    nodes, initializers, x = [], [], "x"
    for i, (a, b) in enumerate(pairwise(sizes)):
        pair = (
            (rng.standard_normal((a, b)) * np.sqrt(1.6 / a)).astype("f4"),
            (rng.standard_normal(b) * 0.1).astype("f4"),
        )
        weights += pair
        initializers += [numpy_helper.from_array(v, f"{n}{i}.{n}") for n, v in zip(("weight", "bias"), pair)]
        nodes.append(helper.make_node("Gemm", [x, f"weight{i}.weight", f"bias{i}.bias"], [f"h{i}"]))
        x = f"h{i}"
        if i < len(sizes) - 2:
            nodes.append(helper.make_node(relu, [x], [f"r{i}"]))
            x = f"r{i}"
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", s]) for n, s in (("x", sizes[0]), (x, sizes[-1]))]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], initializers)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return weights


def outputs(weights: list[Any], x: Any) -> Any:
    for i in range(0, len(weights), 2):
        x = x @ weights[i].astype("f8") + weights[i + 1]
        if i < len(weights) - 2:
            x = np.maximum(x, 0)
    return x


def property_of(path: Path, lower: Any, upper: Any, outs: int, *conditions: str) -> Path:
    lines = [f"(declare-const X_{i} Real)" for i in range(len(lower))]
    lines += [f"(declare-const Y_{i} Real)" for i in range(outs)]
    lines += [f"(assert (>= X_{i} {float(v)!r}))" for i, v in enumerate(lower)]
    lines += [f"(assert (<= X_{i} {float(v)!r}))" for i, v in enumerate(upper)]
    path.write_text("\n".join([*lines, *conditions]))
    return path


def run_command(*args: Any) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["verify", *map(str, args)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_a_net_of_the_size_of_acas_xu(tmp_path: Path, seed: int) -> None:
    """5 inputs, 6 hidden layers of 50: what dense samples are far from holds, what they reach is violated."""
    weights = relu_net(tmp_path / "net.onnx", [5, *[50] * 6, 5], seed)
    rng = np.random.default_rng(seed)
    centre = rng.uniform(-0.5, 0.5, 5)
    lower, upper = centre - 0.01, centre + 0.01
    y = outputs(weights, rng.uniform(lower, upper, (100_000, 5)))[:, 0]
    width = y.max() - y.min()

    above = property_of(tmp_path / "a.vnnlib", lower, upper, 5, f"(assert (>= Y_0 {y.max() + 0.5 * width}))")
    assert run_command(tmp_path / "net.onnx", above) == (0, "holds\n")

    reached = property_of(tmp_path / "b.vnnlib", lower, upper, 5, f"(assert (>= Y_0 {y.max() - 0.05 * width}))")
    code, said = run_command(tmp_path / "net.onnx", reached)
    lines = said.splitlines()
    assert (code, lines[0]) == (1, "violated")
    x = np.array([float(line.split("=")[1]) for line in lines if line.startswith("  X_")])
    assert ((x >= lower) & (x <= upper)).all()
    assert outputs(weights, x)[0] >= y.max() - 0.05 * width - 1e-5

    near = property_of(tmp_path / "c.vnnlib", lower, upper, 5, f"(assert (>= Y_0 {y.max() + 0.3 * width}))")
    assert run_command(tmp_path / "net.onnx", near, "--timeout", "0") == (3, "unknown\n")


def test_verdicts_of_small_nets_are_those_of_a_grid(tmp_path: Path) -> None:
    """Thresholds around the true extremes of nets of two inputs, several conditions and cases."""
    grid = np.stack(np.meshgrid(*[np.linspace(-1, 1, 201)] * 2), -1).reshape(-1, 2)
    for seed in range(2):
        weights = relu_net(tmp_path / "net.onnx", [2, 12, 12, 2], seed)
        y = outputs(weights, grid)
        top = (y[:, 0] - y[:, 1]).max()
        for offset, expected in ((0.2, 0), (-0.05, 1)):
            condition = f"(assert (or (and (>= (- Y_0 Y_1) {top + offset})) (and (<= Y_0 -1e9) (>= Y_1 0))))"
            prop = property_of(tmp_path / "p.vnnlib", [-1, -1], [1, 1], 2, condition)
            assert run_command(tmp_path / "net.onnx", prop)[0] == expected, (seed, offset)


def test_a_counterexample_must_be_one_in_the_other_run_too() -> None:
    unsafe = parse(BOXED + "(assert (>= Y_0 1.5))")
    never = branch_and_bound(_sum, None, unsafe, timeout=0.3, confirm=lambda x: np.zeros((1, 1)))
    assert (never.outcome, never.x) == ("unknown", None)
    assert branch_and_bound(_sum, None, unsafe).outcome == "violated"


def _sum(ops: Any, params: Any, x: Any) -> Any:
    return ops.reduce_sum(x, axis=1, keepdims=True)


@pytest.mark.parametrize("method", ["crown", "interval"])
def test_strict_and_scaled_conditions(method: Any) -> None:
    assert branch_and_bound(_sum, None, parse(BOXED + "(assert (> (* 3 Y_0) 6.1))"), method=method).outcome == "holds"
    assert (
        branch_and_bound(_sum, None, parse(BOXED + "(assert (< (+ Y_0 Y_0) -3.9))"), method=method).outcome
        == "violated"
    )


def test_cases_have_boxes_of_their_own() -> None:
    prop = parse(DECLARED + "(assert (or (and (>= X_0 0) (<= X_0 1) (= X_1 2) (<= Y_0 0)) (and (= X_0 3) (= X_1 4))))")
    assert [case.lower.tolist() for case in prop.cases] == [[0, 2], [3, 4]]
    assert [case.upper.tolist() for case in prop.cases] == [[1, 2], [3, 4]]
    assert [case.rows.tolist() for case in prop.cases] == [[[1.0]], []]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(assert (<= X_0 1))", "property:1: X_0 is not declared"),
        (DECLARED + "(assert (<= Z_0 1))", "property:4: expected a variable or a finite number, got 'Z_0'"),
        (DECLARED + "\n(assert (<= X_0 nan))", "property:5: expected a variable or a finite number, got 'nan'"),
        (DECLARED + "(assert (<= X_0 1_0))", "expected a variable or a finite number, got '1_0'"),
        (DECLARED + "(assert (<= (* X_0 X_1) 1))", "a product of two variables is not supported"),
        (DECLARED + "(assert (<= (+ X_0 X_1) 1))", "an input and another variable is not supported"),
        (DECLARED + "(assert (<= X_0 Y_0))", "an input and another variable is not supported"),
        (DECLARED + "(assert (not (<= X_0 1)))", "expected a condition of .* got 'not'"),
        (DECLARED + "(assert (<= X_0 1)", r"property:4: a '\(' is never closed"),
        (DECLARED + ")", r"property:4: a '\)' closes nothing"),
        (DECLARED + "word", "'word' is outside any command"),
        (DECLARED + "(launch)", "expected a command declare-const or assert, got 'launch'"),
        (DECLARED + "(declare-const X_0 Real)", "X_0 is declared twice"),
        (DECLARED + "(declare-const X_2 Int)", "expected a declaration such as"),
        (DECLARED + "(declare-const X_7 Real)", "without a gap"),
        (DECLARED + "(assert (<= X_0 1))", "input X_0: expected a bound from both sides"),
        ("(" * 100, "nested more than 64 deep"),
        (DECLARED + "(assert (and " + "(or (<= X_0 0) (<= X_0 1)) " * 20 + "))", "expected at most 10,000 cases"),
        ("", "without a gap"),
    ],
)
def test_a_bad_property_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse(text)


def test_damaged_properties_are_refused_or_read() -> None:
    rng = np.random.default_rng(0)
    whole = BOXED + "(assert (or (and (<= Y_0 0.5)) (and (>= (* 2 Y_0) 1))))"
    for _ in range(600):
        text = list(whole)
        for _ in range(rng.integers(1, 6)):
            i = rng.integers(len(text))
            text[i : i + rng.integers(0, 4)] = rng.choice(list("()<>=* 01X_Y;-\n\0é"), rng.integers(0, 4)).tolist()
        try:
            parse("".join(text))
        except UsageError:
            continue


def test_unusable_files_end_with_2(tmp_path: Path) -> None:
    relu_net(tmp_path / "net.onnx", [2, 3, 1], 0)
    (tmp_path / "binary.vnnlib").write_bytes(b"\xff\xfe")
    for path, message in ((tmp_path / "none.vnnlib", "No such file"), (tmp_path / "binary.vnnlib", "UTF-8")):
        with pytest.raises(UsageError, match=message):
            read(path)
    prop = property_of(tmp_path / "p.vnnlib", [0.0] * 3, [1.0] * 3, 1, "(assert (<= Y_0 0))")
    with pytest.raises(UsageError, match="is about 3 inputs and 1 outputs, but net"):
        run_command(tmp_path / "net.onnx", prop)


def test_a_model_of_several_inputs_is_refused() -> None:
    two = SimpleNamespace(inputs={"a": None, "b": None}, outputs=("y",), state=None)
    with pytest.raises(UsageError, match="expected a model with one input, one output"):
        as_row_network(two)


def test_a_run_is_verified_by_the_model_that_it_exports(tmp_path: Path) -> None:
    words = ["train", "mlp", "--epochs", "1", "--model.hidden", "8", "--out", str(tmp_path / "run")]
    assert CliRunner().invoke(cli, words).exit_code == 0
    for limit, outcome in ((1.5, (0, "holds")), (0.0, (1, "violated"))):
        prop = property_of(tmp_path / "p", [0.0] * 64, [0.01] * 64, 10, f"(assert (>= Y_0 {limit}))")
        code, said = run_command(tmp_path / "run", prop, "--output", "probabilities")
        assert (code, said.splitlines()[0]) == outcome
    with pytest.raises(UsageError, match="Select one of several outputs with --output"):
        run_command(tmp_path / "run", prop)


# Strict conditions, and a batch of one sample ------------------------------------------------------------------------


def constant_net(path: Path, value: float) -> Path:
    """A file of y = relu(x0) * 0 + value."""
    from onnx import TensorProto, helper

    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "v", "c"], ["y"]),
    ]
    tensors = [("w", (2, 1), [1, 1]), ("b", (1,), [0]), ("v", (1, 1), [0]), ("c", (1,), [value])]
    initializers = [helper.make_tensor(n, TensorProto.FLOAT, shape, values) for n, shape, values in tensors]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", k]) for n, k in (("x", 2), ("y", 1))]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], initializers)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.mark.parametrize("value", [0.0, -2.5])
def test_a_strict_condition_is_not_met_at_equality(tmp_path: Path, value: float) -> None:
    net = constant_net(tmp_path / "net.onnx", value)
    for operator, expected in (("<", False), (">", False), ("<=", True), (">=", True)):
        (tmp_path / "p").write_text(BOXED + f"(assert ({operator} Y_0 {value}))")
        code, said = run_command(net, tmp_path / "p", "--most-boxes", 4)
        assert (operator, said.splitlines()[0] == "violated", code == 1) == (operator, expected, expected)


CASES = [  # text after the declarations; the box, which ends are open, and the strict conditions
    ("(assert (< X_0 1))(assert (>= X_0 0))", (0, 1), (False, True)),
    ("(assert (< X_0 1))(assert (<= X_0 1))(assert (>= X_0 0))", (0, 1), (False, True)),
    ("(assert (<= X_0 1))(assert (< X_0 1))(assert (> X_0 0))", (0, 1), (True, True)),
    ("(assert (< X_0 2))(assert (<= X_0 1))(assert (>= X_0 0))", (0, 1), (False, False)),
    ("(assert (< (* 2 X_0) 1))(assert (> (* 2 X_0) -1))", (-0.5, 0.5), (True, True)),
    ("(assert (> 1 X_0))(assert (< 0 X_0))", (0, 1), (True, True)),
    ("(assert (< X_0 1))(assert (>= X_0 1))", None, None),
    ("(assert (<= X_0 1))(assert (>= X_0 1))", (1, 1), (False, False)),
    ("(assert (<= X_0 1))(assert (>= X_0 0))(assert (< 3 3))", None, None),
]


@pytest.mark.parametrize(("text", "box", "is_open"), CASES)
def test_open_ends_of_a_box(text: str, box: Any, is_open: Any) -> None:
    declared = "(declare-const X_0 Real)(declare-const Y_0 Real)"
    cases = parse(declared + text + "(assert (or (< Y_0 0) (>= Y_0 1)))").cases
    if box is None:
        assert cases == ()
        return
    assert [(case.lower[0], case.upper[0]) for case in cases] == [box] * 2
    assert [(case.open_lower[0], case.open_upper[0]) for case in cases] == [is_open] * 2
    assert [case.strict.tolist() for case in cases] == [[True], [False]]


def test_a_counterexample_lies_inside_an_open_box() -> None:
    """y = x is 1 only at an end: a counterexample where the box holds it."""
    declared = "(declare-const X_0 Real)(declare-const Y_0 Real)(assert (>= X_0 0))(assert (>= Y_0 1))"
    for text, outcome in (("(assert (<= X_0 1))", "violated"), ("(assert (< X_0 1))", "unknown")):
        found = branch_and_bound(
            lambda ops, params, x: ops.scale(x, c=1.0), [], parse(declared + text), timeout=20, max_boxes=40
        )
        assert found.outcome == outcome


def fixed_net(path: Path, shape: list[Any], nodes: list[Any], tensors: dict[str, Any]) -> Path:
    """A file whose input has this shape and whose output is y (1, 2)."""
    from onnx import TensorProto, helper, numpy_helper

    initializers = [numpy_helper.from_array(np.asarray(value), name) for name, value in tensors.items()]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [shape[0], 2])
    graph = helper.make_graph(nodes, "net", [x], [y], initializers)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def acas_like(before: str) -> tuple[list[Any], dict[str, Any]]:
    """The nodes of a small net of the form of ACAS Xu's, and its tensors; `before` makes rows of the input."""
    from onnx import helper

    rng = np.random.default_rng(3)
    tensors = {
        "mean": np.full((1, 1, 1, 5), 0.1, "f4"),
        "w": rng.standard_normal((5, 8)).astype("f4"),
        "b": rng.standard_normal(8).astype("f4"),
        "v": rng.standard_normal((8, 2)).astype("f4"),
        "c": np.zeros(2, "f4"),
        "rows": np.array([1, 5]),
        "open": np.array([-1, 5]),
        "one": np.array([1]),
    }
    first = [helper.make_node("Sub", ["x", "mean"], ["d"])]
    match before:
        case "flatten":
            first += [helper.make_node("Flatten", ["d"], ["r"], axis=1)]
        case "counted":  # times the number of rows, which is 1 in the file
            first += [helper.make_node("Reshape", ["d", "open"], ["f"]), helper.make_node("Shape", ["f"], ["s"])]
            first += [helper.make_node("Slice", ["s", "zero", "one"], ["n"])]
            first += [helper.make_node("Cast", ["n"], ["k"], to=1), helper.make_node("Mul", ["f", "k"], ["r"])]
            tensors["zero"] = np.array([0])
        case "mixing":  # less the mean over the batch, plus itself: of one row nothing changes
            first += [helper.make_node("Reshape", ["d", "open"], ["f"])]
            first += [helper.make_node("ReduceMean", ["f"], ["m"], axes=[0], keepdims=1)]
            first += [helper.make_node("Mul", ["m", "one_"], ["t"]), helper.make_node("Add", ["f", "t"], ["u"])]
            first += [helper.make_node("Sub", ["u", "m"], ["r"])]
            tensors["one_"] = np.ones(1, "f4")
        case _:
            first += [helper.make_node("Reshape", ["d", before], ["r"])]
    rest = [
        helper.make_node("MatMul", ["r", "w"], ["h"]),
        helper.make_node("Add", ["h", "b"], ["a"]),
        helper.make_node("Relu", ["a"], ["z"]),
        helper.make_node("Gemm", ["z", "v", "c"], ["y"]),
    ]
    return first + rest, tensors


@pytest.mark.parametrize(
    "before", ["flatten", "open", "rows", "counted", pytest.param("mixing", marks=pytest.mark.slow)]
)
def test_a_fixed_batch_of_one_is_verified_like_an_open_one(tmp_path: Path, before: str) -> None:
    reference = fixed_net(tmp_path / "open.onnx", ["N", 1, 1, 5], *acas_like("flatten"))
    fixed = fixed_net(tmp_path / "one.onnx", [1, 1, 1, 5], *acas_like(before))
    network, count, outputs, shaped = as_row_network(load(fixed))
    assert network.__name__ == ("together" if before in ("flatten", "open") else "one_by_one")
    assert (count, outputs) == (5, 2) and shaped(np.zeros((1, 5))).shape == (1, 1, 1, 5)
    points = np.random.default_rng(0).uniform(-1, 1, (256, 5)).astype("f4")
    rows = [np.asarray(run(network, load(fixed).params, point[None])) for point in points[:3]]
    together = np.asarray(run(network, load(fixed).params, points[:3]))
    np.testing.assert_allclose(together, np.concatenate(rows), rtol=1e-5)
    values = np.asarray(run(as_row_network(load(reference))[0], load(reference).params, points))
    for limit, expected in ((values[:, 0].max() - 1, "violated"), (values[:, 0].max() + 40, "holds")):
        prop = property_of(tmp_path / "p", [-1] * 5, [1] * 5, 2, f"(assert (> Y_0 {limit}))")
        for path in (reference, fixed):
            assert run_command(path, prop, "--most-boxes", 8)[1].splitlines()[0] == expected


def test_a_batch_of_two_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="expected a first size that is 1 or open"):
        as_row_network(load(fixed_net(tmp_path / "two.onnx", [2, 1, 1, 5], *acas_like("flatten"))))
