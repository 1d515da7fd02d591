"""`opstage verify`: verdicts against dense sampling, counterexamples that were run, and properties of any text."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from opstage.certified.verify import rows_of
from opstage.certified.verify import verify as branch_and_bound
from opstage.certified.vnnlib import parse, read
from opstage.cli.commands import cli
from opstage.ops.errors import UsageError

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
        (DECLARED + "(assert (<= Z_0 1))", "property:4: 'Z_0' is neither a variable nor a finite number"),
        (DECLARED + "\n(assert (<= X_0 nan))", "property:5: 'nan' is neither a variable nor a finite number"),
        (DECLARED + "(assert (<= X_0 1_0))", "'1_0' is neither a variable nor a finite number"),
        (DECLARED + "(assert (<= (* X_0 X_1) 1))", "a product of two variables is not linear"),
        (DECLARED + "(assert (<= (+ X_0 X_1) 1))", "bounds that input alone"),
        (DECLARED + "(assert (<= X_0 Y_0))", "bounds that input alone"),
        (DECLARED + "(assert (not (<= X_0 1)))", "'not' is no condition"),
        (DECLARED + "(assert (<= X_0 1)", r"property:4: a '\(' is never closed"),
        (DECLARED + ")", r"property:4: a '\)' closes nothing"),
        (DECLARED + "word", "'word' stands outside of any command"),
        (DECLARED + "(launch)", "'launch' is no command"),
        (DECLARED + "(declare-const X_0 Real)", "X_0 is declared twice"),
        (DECLARED + "(declare-const X_2 Int)", "a declaration reads"),
        (DECLARED + "(declare-const X_7 Real)", "without a gap"),
        (DECLARED + "(assert (<= X_0 1))", "the input X_0 has no bound from both sides"),
        ("(" * 100, "nested more than 64 deep"),
        (DECLARED + "(assert (and " + "(or (<= X_0 0) (<= X_0 1)) " * 20 + "))", "makes more than 10,000 cases"),
        ("", "without a gap, at least one"),
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
    with pytest.raises(UsageError, match="has one input and one output"):
        rows_of(two)


def test_a_run_is_verified_by_the_model_that_it_exports(tmp_path: Path) -> None:
    words = ["train", "mlp", "--epochs", "1", "--model.hidden", "8", "--out", str(tmp_path / "run")]
    assert CliRunner().invoke(cli, words).exit_code == 0
    for limit, outcome in ((1.5, (0, "holds")), (0.0, (1, "violated"))):
        prop = property_of(tmp_path / "p", [0.0] * 64, [0.01] * 64, 10, f"(assert (>= Y_0 {limit}))")
        code, said = run_command(tmp_path / "run", prop, "--output", "probabilities")
        assert (code, said.splitlines()[0]) == outcome
    with pytest.raises(UsageError, match="name one of several outputs by --output"):
        run_command(tmp_path / "run", prop)
