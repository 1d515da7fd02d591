"""Masks of finite numbers: proved to hide what they mask where the scores have bounds, and only then."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, Spec
from opstage.analysis.dependence import Dependence
from opstage.analysis.dependence.masks import in_every_row, misses_a_row
from opstage.analysis.dependence.regions import ANYWHERE, NONE, Region, region
from opstage.analysis.ranges.fact import float_limits
from opstage.facts import Interpretation, with_claims
from opstage.ops.errors import UsageError
from opstage.ops.spec import Causal
from tests.analysis.ranges.half import half
from tests.analysis.ranges.half import run as in_half

LOWEST = float(np.finfo(np.float32).min)
UNDERFLOW = {"float32": math.log(2.0**-149), "float64": -1074 * math.log(2.0)}
"""Below which an exponential rounds to 0, but for half of the least number."""


def attending(mask: float, how: str = "add", ahead: int = 0, scale: float = 1.0, dtype: str = "float32") -> Any:
    """Scores, a mask over all later positions but `ahead` of them, a softmax and the mean that it weighs."""

    def program(ops: Any, x: Any) -> Any:
        n = x.shape[1]
        scores = ops.scale(ops.bmm(x, ops.permute(x, axes=(0, 2, 1))), c=scale)
        rows, columns = ops.iota(shape=(n, n), axis=0), ops.iota(shape=(n, n), axis=1)
        seen = ops.less_equal(columns, rows + ahead)
        if how == "select":
            number = ops.full(shape=scores.shape, value=mask, dtype=dtype)
            masked = ops.select(ops.broadcast_to(seen, shape=scores.shape), scores, number)
        elif how == "multiply":
            masked = scores + ops.broadcast_to((ops.cast(seen, dtype=dtype) - 1) * -mask, shape=scores.shape)
        else:
            table = ops.select(seen, *[ops.full(shape=(n, n), value=v, dtype=dtype) for v in (0.0, mask)])
            masked = scores + ops.broadcast_to(table, shape=scores.shape)
        return ops.bmm(ops.softmax(masked, axis=-1), x)

    return program


def verdict(program: Any, ends: tuple[float, float] | None = (-1.0, 1.0), dtype: str = "float32", **more: Any) -> Any:
    spec = Spec("B T 8", dtype=dtype, range=ends) if ends else Spec("B T 8", dtype=dtype)
    report = opstage.check(program, spec, claims=["causal:T"], options=Options(dtype=dtype), **more)
    return report.claims[0]


@pytest.mark.parametrize("how", ["add", "select", "multiply"])
@pytest.mark.parametrize(
    ("mask", "state"), [(-1e9, "proved"), (LOWEST, "proved"), (-1e4, "proved"), (-200, "proved"), (-90, "undecided")]
)
def test_a_finite_mask_is_proved_where_the_scores_are_bounded(mask: float, how: str, state: str) -> None:
    """|x·x| <= 8, and so exp(8 + 8 + mask) has to round to 0."""
    if mask == LOWEST and how == "multiply":
        pytest.skip("0 times the lowest number is 0, and this times its negative is not")
    assert verdict(attending(mask, how)).state == state


@pytest.mark.parametrize("how", ["add", "select", "multiply"])
def test_a_mask_off_by_one_leaks_however_low_it_is(how: str) -> None:
    found = verdict(attending(-1e9, how, ahead=1))
    assert found.state == "refuted" and found.witness == (0, 1)


@pytest.mark.parametrize("how", ["add", "select", "multiply"])
def test_a_row_masked_as_a_whole_is_said_and_leaks(how: str) -> None:
    """All its scores are as low, so their softmax weighs the future like the rest."""
    spec = Spec("B T 8", range=(-1, 1))
    report = opstage.check(attending(-1e9, how, ahead=-1), spec, claims=["causal:T"])
    assert report.claims[0].state == "refuted"
    (found,) = [each for each in report.warnings if each.rule == "masked-row"]
    assert "-1e+09" in found.reason


@pytest.mark.parametrize("dtype", list(UNDERFLOW))
@pytest.mark.parametrize("how", ["add", "select"])
def test_a_bound_that_is_a_little_too_wide_is_not_proved(dtype: str, how: str) -> None:
    """Scores of |x| <= 1 are in [-8, 8]. A run at these ends shows the leak where the mask is too small."""
    spread = 16 if how == "add" else 8
    states = {}
    for more in (-4.0, -0.01, 6.0):
        mask = UNDERFLOW[dtype] - spread - more
        states[more] = verdict(attending(mask, how, dtype=dtype), dtype=dtype).state
        x = np.ones((1, 2, 8), dtype)
        x[0, 1] = -1 if how == "select" else 1
        x[0, 0] = -1
        scores = np.array([-8.0, mask + 8 if how == "add" else mask], dtype)
        weights = np.asarray(opstage.run(lambda ops, s: ops.softmax(s, axis=0), scores, options=Options(dtype=dtype)))
        assert (weights[1] == 0) == (more > 0) or more < 0, "the run does not show what the edge is"
        if weights[1] != 0:
            assert states[more] != "proved"
    assert states == {-4.0: "undecided", -0.01: "undecided", 6.0: "proved"}


@pytest.mark.parametrize("backend", ["eager", "compiled"])
@pytest.mark.parametrize("dtype", list(UNDERFLOW))
def test_exponentials_vanish_where_they_are_taken_to(dtype: str, backend: str) -> None:
    from opstage.analysis.dependence.masks import vanishing_below

    end = vanishing_below(float_limits(dtype), math.e)
    x = np.append(np.linspace(end - 3, end, 1001), [-1e3, -1e9, LOWEST, -np.inf]).astype(dtype)
    x = x[x <= end]
    options = Options(dtype=dtype, backend=backend)
    assert not np.asarray(opstage.run(lambda ops, x: ops.exp(x), x, options=options)).any()
    shifted = np.stack([x, np.zeros_like(x)])
    assert not np.asarray(opstage.run(lambda ops, x: ops.softmax(x, axis=0), shifted, options=options))[0].any()


def test_without_bounds_it_is_said_what_is_missing() -> None:
    found = verdict(attending(-1e9), None)
    assert found.state == "undecided"
    assert "-1e+09" in found.reason and "(-inf, inf)" in found.reason and "bounds" in found.reason


def test_bounds_are_stated_in_place_of_a_spec() -> None:
    program = attending(-1e9)
    assert verdict(program, None, bounds={"x": (-2, 2)}).state == "proved"
    assert verdict(program, None, bounds={"x": (-2e4, 2e4)}).state != "proved"
    (found,) = with_claims(opstage.check(program, Spec("B T 8")), [Causal("T")], {"x": (-1, 1)}).claims
    assert any("x is in [-1, 1], as stated" in each for each in found.assumptions)
    with pytest.raises(UsageError, match="bounds: 'y' matches no input"):
        verdict(program, None, bounds={"y": (0, 1)})


def test_a_run_that_refutes_keeps_the_bounds() -> None:
    """With scores this small nothing but the mask of -1 can leak, and inputs of another size would say no more."""
    found = verdict(attending(-1.0), (0.5, 0.75))
    assert found.state == "refuted"


def test_nan_among_what_is_masked_is_not_hidden() -> None:
    """sqrt of what may be negative is nan, and a nan in any place of a row is its maximum."""

    def program(ops: Any, x: Any) -> Any:
        return attending(-1e9)(ops, ops.sqrt(x))

    assert verdict(program).state != "proved"
    assert verdict(program, (0.0, 1.0)).state == "proved"


def test_a_normed_decoder_needs_no_bound_of_its_input() -> None:
    """|x / rms(x)| is at most the root of the number of features, whatever x is."""
    for norm in (
        lambda ops, x: ops.rms_norm(x, None),
        lambda ops, x: ops.layer_norm(x, None, None),
        lambda ops, x: x / ops.sqrt(ops.reduce_mean(x * x, axis=-1, keepdims=True) + 1e-6),
    ):
        assert verdict(lambda ops, x, norm=norm: attending(-1e9)(ops, norm(ops, x)), None).state == "proved"
        assert verdict(lambda ops, x, norm=norm: attending(-60.0)(ops, norm(ops, x)), None).state == "undecided"


def test_a_bias_of_attention_is_a_mask() -> None:
    def program(ops: Any, x: Any) -> Any:
        n = x.shape[1]
        seen = ops.less_equal(ops.iota(shape=(n, n), axis=1), ops.iota(shape=(n, n), axis=0))
        bias = ops.select(seen, *[ops.full(shape=(n, n), value=v) for v in (0.0, LOWEST)])
        return ops.scaled_dot_product_attention(x, x, x, None, bias)

    assert verdict(program).state == "proved"
    assert verdict(program, None).state == "undecided"


def test_a_mask_that_also_hides_padding_is_not_proved() -> None:
    """Which positions are padding the data say: a row may have nothing but padding."""

    def program(ops: Any, x: Any, pad: Any) -> Any:
        n = x.shape[1]
        seen = ops.less_equal(ops.iota(shape=(n, n), axis=1), ops.iota(shape=(n, n), axis=0))
        seen = ops.logical_and(seen, ops.broadcast_to(pad, shape=(n, n)))
        bias = ops.select(seen, *[ops.full(shape=(n, n), value=v) for v in (0.0, LOWEST)])
        scores = ops.bmm(x, ops.permute(x, axes=(0, 2, 1)))
        return ops.bmm(ops.softmax(scores + ops.broadcast_to(bias, shape=scores.shape), axis=-1), x)

    specs = Spec("B T 8", range=(-1, 1)), Spec("T", dtype="bool")
    (found,) = opstage.check(program, *specs, claims=["causal:T"]).claims
    assert found.state != "proved"


def test_a_decoder_of_an_onnx_file_is_causal(tmp_path: Any) -> None:
    """As exporters write decoders: a table of the positions seen, and the lowest number for the others."""
    from opstage import onnx

    loaded = onnx.load(_decoder_file(tmp_path), where=["T <= 32"])
    report = loaded.check()
    assert report.ok, report
    (found,) = with_claims(report, [Causal("T")]).claims
    assert found.state == "undecided" and "params" in found.reason or "bounds" in found.reason
    (found,) = with_claims(report, [Causal("T")], {"params.*": (-2, 2)}).claims
    assert found.state == "proved", found


def _decoder_file(folder: Any) -> Any:
    """Two layers of attention over the embeddings of tokens, each after a norm, with a table of the later positions."""
    import onnx
    from onnx import TensorProto, helper

    from tests.interop.onnx.models import model

    rng = np.random.default_rng(0)
    nodes, weights = [], {
        "embed": rng.normal(size=(32, 8)).astype(np.float32),
        "table": np.tril(np.ones((32, 32), bool)),
        "lowest": np.float32(LOWEST),
        "zero": np.array([0]), "one": np.array([1]), "two": np.array([2]), "root": np.float32(8**0.5),
    }  # fmt: skip

    def node(op: str, *operands: str, **attributes: Any) -> str:
        name = f"n{len(nodes)}"
        nodes.append(helper.make_node(op, operands, [name], **attributes))
        return name

    x = node("Gather", "embed", "ids")
    length = node("Slice", node("Shape", "ids"), "one", "two", "zero")
    seen = node("Slice", node("Slice", "table", "zero", length, "zero"), "zero", length, "one")
    for layer in range(2):
        for name in "qkvo":
            weights[f"{layer}.{name}"] = rng.normal(size=(8, 8)).astype(np.float32)
        weights[f"{layer}.gamma"], weights[f"{layer}.beta"] = np.ones(8, np.float32), np.zeros(8, np.float32)
        h = node("LayerNormalization", x, f"{layer}.gamma", f"{layer}.beta")
        q, k, v = (node("MatMul", h, f"{layer}.{name}") for name in "qkv")
        scores = node("Div", node("MatMul", q, node("Transpose", k, perm=[0, 2, 1])), "root")
        weighed = node("Softmax", node("Where", seen, scores, "lowest"), axis=-1)
        x = node("Add", x, node("MatMul", node("MatMul", weighed, v), f"{layer}.o"))
    path = folder / "decoder.onnx"
    onnx.save(model(nodes, {"ids": (TensorProto.INT64, ["B", "T"])}, [x], weights), path)
    return path


# Read in 16 bits ----------------------------------------------------------------------------------------------------


def read_in(dtype: str, program: Any, ends: tuple[float, float] | None = (-1.0, 1.0)) -> Any:
    spec = Spec("B T 8", range=ends) if ends else Spec("B T 8")
    return with_claims(opstage.check(program, spec), [Causal("T")], dtype=dtype).claims[0]


@pytest.mark.parametrize("how", ["add", "select"])
@pytest.mark.parametrize(
    ("dtype", "mask", "ends", "proved"),
    [
        ("float16", -1e9, None, True),  # -inf there, and so it needs no bound
        ("float16", LOWEST, None, True),
        ("float16", -65504.0, (-1.0, 1.0), True),
        ("float16", -1e4, (-1.0, 1.0), True),
        ("float16", -1e4, None, False),
        ("float16", -45.0, (-1.0, 1.0), True),  # e^-29 is 0 in float16, and not in float32
        ("float16", -20.0, (-1.0, 1.0), False),
        ("bfloat16", -1e9, (-1.0, 1.0), True),
        ("bfloat16", -1e9, None, False),
        ("bfloat16", -45.0, (-1.0, 1.0), False),
        ("float32", -45.0, (-1.0, 1.0), False),
    ],
)
def test_a_mask_is_read_in_the_dtype(how: str, dtype: str, mask: float, ends: Any, proved: bool) -> None:
    found = read_in(dtype, attending(mask, how), ends)
    assert (found.state == "proved") == proved, found
    assert not proved or f"each op is rounded to {dtype}, once" in found.assumptions


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("mask", [-1e9, -1e4, -45.0])
def test_what_is_proved_in_16_bits_holds_where_each_op_rounds_to_them(dtype: str, mask: float) -> None:
    program = attending(mask, "add")
    if read_in(dtype, program).state != "proved":
        return
    body = opstage.check(program, Spec("2 4 8")).program.body
    rng = np.random.default_rng(0)
    for x in (rng.uniform(-1, 1, (2, 4, 8)), np.where(rng.random((2, 4, 8)) < 0.5, -1.0, 1.0)):
        first = in_half(body, [x.astype("f4")], dtype)[0]
        for place in range(1, 4):
            other = x.copy()
            other[:, place] = -other[:, place]
            assert (in_half(body, [other.astype("f4")], dtype)[0][:, :place] == first[:, :place]).all()


def test_places_are_read_in_the_dtype() -> None:
    """float16 holds whole numbers up to 2048: of 4096 places, two are one."""

    def program(ops: Any, x: Any) -> Any:
        i = ops.iota(shape=(4096,), axis=0, dtype="float32")
        return ops.select(ops.less(i, ops.full(shape=(4096,), value=9.0)), x, 0 * x)

    report = opstage.check(program, Spec((4096,)))
    body = report.program.body
    for dtype, known in (("float32", True), ("float16", False)):
        domain = Dependence(None, dtype_limits=lambda each, dtype=dtype: float_limits(dtype))  # type: ignore[misc]
        facts = Interpretation([domain]).run(body, [(domain.source("x", body.types[body.inputs[0]]),)])
        assert (facts[body.outputs[0]][0].region(0) != ANYWHERE) == known


def test_numbers_are_rounded_to_the_nearest_of_a_dtype() -> None:
    rng = np.random.default_rng(0)
    values = rng.uniform(-1, 1, 4000) * 10.0 ** rng.uniform(-12, 6, 4000)
    values = np.append(values, [65519.9, 65520.0, 2.0**-25, 1.5 * 2.0**-24, 2049.0, 2051.0, 0.0, -1e9])
    with np.errstate(over="ignore"):
        assert [float_limits("float16").nearest(float(v)) for v in values] == values.astype("f2").astype("f8").tolist()
        assert [float_limits("float32").nearest(float(v)) for v in values] == values.astype("f4").astype("f8").tolist()
    rounded = half(values.astype("f4"), "bfloat16").astype("f8")
    assert [float_limits("bfloat16").nearest(float(v)) for v in values.astype("f4")] == rounded.tolist()


# Rows ---------------------------------------------------------------------------------------------------------------

ROWS: dict[str, tuple[Region, list[int]]] = {
    "later ones are outside": (region((0, 1, -1)), [4, 4]),
    "later ones and the own one are outside": (region((0, 1, 0)), [4, 4]),
    "a band": ((*region((0, 1, -1)), *region((1, 0, -3))), [5, 5]),
    "only the far past is left": (region((0, 1, 2)), [5, 5]),
    "more columns than rows": (region((0, 1, -3)), [2, 5]),
    "fewer columns than rows": (region((0, 1, -1)), [5, 2]),
    "the first column": (region((1, NONE, 0)), [3, 4]),
    "all but the last column": (region((1, NONE, 2)), [3, 4]),
    "all columns": (region((1, NONE, 3)), [3, 4]),
    "some rows as a whole": (region((0, NONE, 1)), [3, 4]),
    "no column": (region((0, 1, -1)), [3, 0]),
    "nothing": ((), [3, 4]),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_are_as_counting_them_says(name: str) -> None:
    where, sizes = ROWS[name]
    i, j = np.indices(sizes)
    inside = np.zeros(sizes, bool)
    for part in where:
        holds = np.ones(sizes, bool)
        for a, b, c in part:
            holds &= (0 if a == NONE else (i, j)[a]) - (0 if b == NONE else (i, j)[b]) <= c
        inside |= holds
    has_other, lacks = bool((~inside).any(axis=1).all()), bool((~inside.any(axis=1)).any())
    assert has_other or not in_every_row(sizes, where, [1])
    assert lacks or not misses_a_row(sizes, where, [1])
    if name not in ("fewer columns than rows", "only the far past is left"):
        assert in_every_row(sizes, where, [1]) == has_other
