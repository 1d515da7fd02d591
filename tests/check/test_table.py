"""The table of costs: against counts made by hand, published formulas, arrays that a tape really keeps, and itself."""

from __future__ import annotations

import gc
import io
import json
import math
import re
import tracemalloc
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import opstage
from opstage import Options, Spec, optim
from opstage.init import build
from opstage.interpreters.graph.outline import Group
from opstage.interpreters.registry import make_interpreter
from opstage.interpreters.shape_check.cost_table import (
    Amounts,
    Row,
    Table,
    for_terminal,
    show_flops,
    show_formula,
    show_size,
)
from opstage.interpreters.shape_check.report import Report
from opstage.models import MODELS, Model, gpt, model
from opstage.ops.dims import DimScope, evaluate
from opstage.ops.errors import ShapeError, UsageError
from opstage.ops.spec import sized
from opstage.ops.trees import map_leaves
from opstage.program_arguments import with_train
from opstage.transforms.derivatives import run_on_tape
from tests.memory.measured import batch_of

PLAIN = Options(fast_kernels=False)  # what a compiled kernel allocates, NumPy does not report


def kept_bytes(model: Model, sizes: Mapping[str, int]) -> int:
    """Bytes of arrays that are alive after the forward pass of a training step, beside what was given."""
    ops: Any = make_interpreter(PLAIN)

    def put(tree: Any) -> Any:
        return map_leaves(ops.put, tree)

    given = [put(build(model.init, dtype=PLAIN.dtype, seed=0))]
    given += [] if model.state is None else [put(build(model.state, dtype=PLAIN.dtype, seed=0))]
    given += [put(array) for array in batch_of(model, sizes)]
    wanted = tuple(i == 0 for i in range(len(given)))

    def loss(ops: Any, *arguments: Any) -> Any:
        result = with_train(model.loss, True)(ops, *arguments)
        return result[0] if isinstance(result, tuple) else result

    tracemalloc.start()
    try:
        run_on_tape(ops, loss, tuple(given), wanted)  # memory that kernels keep is taken
        gc.collect()
        before = _live_bytes()
        _, _, outputs, _ = run_on_tape(ops, loss, tuple(given), wanted)
        gc.collect()
        return _live_bytes() - before - outputs[0].value.nbytes
    finally:
        tracemalloc.stop()


def _live_bytes() -> int:
    snapshot = tracemalloc.take_snapshot()
    arrays = tracemalloc.DomainFilter(inclusive=True, domain=np.lib.tracemalloc_domain)
    return sum(trace.size for trace in snapshot.filter_traces([arrays]).traces)


# The table of costs: against counts made by hand, published formulas, arrays that a tape really keeps, and itself -----

NAMES = sorted(MODELS)
XL = gpt.Config(length=1024, width=1600, depth=48, heads=25, hidden=6400)


def step(made: Model, *batch: Any, **options: Any) -> Report:
    report = opstage.check_step(made.loss, made.init, *(batch or made.batch), state=made.state, **options)
    assert report.ok, str(report)
    return report


def sizes_of(name: str, batch: int) -> dict[str, int]:
    return {"B": batch, "T": 2 * batch} if name == "gpt" else {"B": batch}


def only(report: Report) -> Row:
    (row,) = report.table.rows
    return row


# By hand --------------------------------------------------------------------------------------------------------------


def test_a_linear_layer() -> None:
    """y = x wᵀ + b: a multiplication and an addition for each of B·O·I, and B·O additions."""
    report = opstage.check(
        lambda ops, p, x: ops.linear(p["w"], p["b"], x), {"b": Spec("O"), "w": Spec("O I")}, Spec("B I")
    )
    row = only(report)
    assert str(row.amounts.forward) == "2*B*I*O + B*O"
    assert str(row.amounts.parameters) == "I*O + O"
    assert str(row.amounts.forward_bytes) == "4*B*I + 4*B*O + 4*I*O + 4*O"
    assert [str(operand) for operand in row.operands] == [
        "p.w (O, I) float32", "p.b (O,) float32", "x (B, I) float32",
    ]  # fmt: skip
    assert (row.amounts.backward, row.amounts.update, row.amounts.saved) == (0, 0, 0)


def test_a_convolution() -> None:
    """For each output number, a multiplication and an addition per entry of the kernel, and the bias."""
    report = opstage.check(
        lambda ops, p, x: ops.conv(p["w"], p["b"], x, stride=2, padding=1),
        {"b": Spec("16"), "w": Spec("16 3 5 5")},
        Spec("B 3 33 33"),
    )
    amounts = only(report.at(B=2)).amounts
    outputs = 2 * 16 * 16 * 16  # (33 + 2 - 5) // 2 + 1 = 16 rows and columns
    assert amounts.forward == outputs * (2 * 3 * 5 * 5 + 1)
    assert amounts.parameters == 16 * 3 * 5 * 5 + 16


def test_attention() -> None:
    """q kᵀ and its product with v, 2·B·H·T²·D each, and a softmax of five operations for each of B·H·T²."""
    report = opstage.check(lambda ops, x: ops.scaled_dot_product_attention(x, x, x), Spec("B H T 64"))
    assert str(only(report).amounts.forward) == "261*B*H*T**2"


def test_a_perceptron_and_its_step() -> None:
    """64 -> I -> 10 under SGD: the first layer's input needs no cotangent, everything else costs twice the forward."""
    params = {"b1": Spec("I"), "b2": Spec("10"), "w1": Spec("I 64"), "w2": Spec("10 I")}

    def loss(ops: Any, p: Any, x: Any, y: Any) -> Any:
        h = ops.region("hidden", lambda ops: ops.relu(ops.linear(p["w1"], p["b1"], x)))
        return ops.cross_entropy(ops.region("out", lambda ops: ops.linear(p["w2"], p["b2"], h)), y)

    report = opstage.check_step(loss, params, Spec("B 64"), Spec("B", "int64")).at(B=7, I=32)
    first, relu, second, loss_row = (row.amounts for row in report.table.rows)
    assert first.forward == 7 * 32 * (2 * 64 + 1)
    assert first.backward == 7 * 32 * (2 * 64 + 1)  # of the weight and of the bias
    assert second.backward == 2 * (2 * 7 * 32 * 10) + 7 * 10
    assert relu.forward == relu.backward == 7 * 32
    assert [a.parameters for a in (first, relu, second, loss_row)] == [32 * 64 + 32, 0, 10 * 32 + 10, 0]
    assert [a.update for a in (first, relu, second, loss_row)] == [
        2 * (32 * 64 + 32),
        0,
        2 * (10 * 32 + 10),
        0,
    ]  # a product and a difference for each element
    # x is given; relu keeps its result, which the second layer reads too; the loss its logits and two numbers each
    assert [a.saved for a in (first, relu, second, loss_row)] == [0, 4 * 7 * 32, 0, 4 * 7 * 10 + 2 * 4 * 7]
    assert report.table.total.parameters == report.parameters == 32 * 64 + 32 + 330


def test_gpt_2_xl_costs_what_is_published() -> None:
    """Chowdhery et al., PaLM, 2022, appendix B: per token 6·N + 12·L·H·Q·T FLOPs for a step without the update, a third
    of it forward; N counts the parameters that multiply, so not the two tables that are looked up."""
    made = model("gpt", XL)
    batch, length = 8, 1024
    total = step(made).at(B=batch, T=length).table.total
    multiplied = XL.depth * 12 * XL.width**2 + 256 * XL.width
    per_token = 2 * multiplied + 4 * XL.depth * XL.width * length
    assert total.forward == pytest.approx(batch * length * per_token, rel=0.02)
    assert total.forward + total.backward == pytest.approx(3 * batch * length * per_token, rel=0.02)
    assert total.parameters == pytest.approx(multiplied, rel=0.02)


PARAMETERS = {
    "mlp": 64 * 256 + 256 + 256 * 256 + 256 + 256 * 10 + 10,
    "cnn": (9 * 32 + 32) + (9 * 32 * 32 + 32) + (9 * 32 * 64 + 64) + (9 * 64 * 64 + 64) + (256 * 128 + 128) + 1290,
    "gpt": 256 * 128 * 2 + 128 * 128 + 4 * (12 * 128**2 + 13 * 128) + 2 * 128,
    "lstm": (8 + 64) * 4 * 64 + 4 * 64 + 64 * 10 + 10,
    "pinn": 2 * 32 + 32 + 3 * (32 * 32 + 32) + 33,
}


@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_counted_once(name: str) -> None:
    made = model(name)
    leaves = opstage.ops.trees.flatten(made.init)[0]
    table = step(made).table
    assert table.total.parameters == sum(math.prod(leaf.shape) for leaf in leaves)
    assert table.total.parameters == PARAMETERS.get(name, table.total.parameters)
    assert table.unread == 0


# Against what runs, and against itself --------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [3, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", NAMES)
def test_saved_bytes_are_those_that_a_tape_keeps(name: str, batch: int) -> None:
    made, sizes = model(name), sizes_of(name, batch)
    assert step(made).at(**sizes).table.total.saved == kept_bytes(made, sizes)


@pytest.mark.parametrize("name", NAMES)
def test_blocks_add_up_to_the_cost_of_the_program(name: str) -> None:
    report = step(model(name))
    table = report.table
    assert (table.total.flops, table.total.moved) == (report.cost.flops, report.cost.bytes)
    for group in groups(table.root):
        inside = [table.amounts(member) for member in group.members]
        assert table.amounts(group) == Amounts(*[sum(column) for column in zip(*inside)])
    assert table.amounts(table.root) == Amounts(*[sum(column) for column in zip(*[r.amounts for r in table.rows])])


def groups(group: Group[Row]) -> Iterator[Group[Row]]:
    yield group
    for member in group.members:
        if isinstance(member, Group):
            yield from groups(member)


@pytest.mark.parametrize("name", NAMES)
def test_formulas_give_the_numbers_of_a_check_with_sizes(name: str) -> None:
    made, sizes = model(name), sizes_of(name, 6)
    symbolic = step(made, optimizer=optim.adamw())
    concrete = step(made, *sized(made.batch, sizes), optimizer=optim.adamw())
    there = symbolic.at(**sizes)
    assert there.cost == concrete.cost
    assert there.inputs == concrete.inputs and there.parameters == concrete.parameters
    assert there.outputs == concrete.outputs
    assert [described(row) for row in there.table.rows] == [described(row) for row in concrete.table.rows]
    assert there.table.total == evaluate(tuple(symbolic.table.total), sizes)


def described(row: Row) -> tuple[Any, ...]:
    return row.op, row.region_name, row.operands, row.results, row.amounts


@pytest.mark.parametrize("name", NAMES)
def test_the_forward_pass_of_a_step_costs_what_it_costs_alone(name: str) -> None:
    made = model(name)
    if made.state is not None or name == "pinn":
        pytest.skip("a loss with state returns more, and derivatives inside a loss are expanded for a second time")
    alone = opstage.check(made.loss, made.init, *made.batch).table.total
    whole = step(made).table.total
    assert (str(alone.forward), str(alone.parameters)) == (str(whole.forward), str(whole.parameters))
    assert (alone.backward, alone.update, alone.saved) == (0, 0, 0)


# To whom what belongs -------------------------------------------------------------------------------------------------


def test_a_tied_weight_counts_once_and_one_that_nothing_reads_stands_alone() -> None:
    def loss(ops: Any, p: Any, x: Any) -> Any:
        return ops.sum(ops.linear(p["w"], None, ops.linear(p["w"], None, x)))

    table = opstage.check_step(loss, {"spare": Spec("3"), "w": Spec("8 8")}, Spec("B 8")).table
    assert [(row.op, row.region_name, row.amounts.parameters) for row in table.rows] == [
        ("linear", "", 64),
        ("linear", "", 0),
        ("reduce_sum", "", 0),
        ("sgd_update", "update", 0),  # of the spare one; that of the other is the first op's
    ]
    assert (table.unread, table.total.parameters) == (3, 67)
    assert re.search(r"^read by no op +3$", str(table), re.MULTILINE)


def test_an_update_belongs_to_the_op_that_reads_the_parameter_and_clipping_to_nobody() -> None:
    def loss(ops: Any, p: Any, x: Any) -> Any:
        return ops.sum(ops.linear(p["b"], None, ops.tanh(ops.linear(p["a"], None, x))))

    params = {"a": Spec("4 8"), "b": Spec("2 4")}
    plain, clipped = (
        opstage.check_step(loss, params, Spec("B 8"), clip=clip).table for clip in (None, optim.clip.ByGlobalNorm(1.0))
    )
    assert [row.amounts.update for row in plain.rows] == [2 * 32, 0, 2 * 8, 0]
    first, _, second, _, *shared = clipped.rows
    assert first.amounts.update > 2 * 32 and second.amounts.update > 2 * 8
    assert shared and all(row.region_name == "update" for row in shared)
    assert clipped.root.members[-1].name == "update"  # type: ignore[union-attr]


def test_frozen_parameters_take_no_update_and_their_layer_keeps_nothing() -> None:
    def loss(ops: Any, p: Any, x: Any) -> Any:
        return ops.sum(ops.linear(p["b"], None, ops.tanh(ops.linear(p["a"], None, x))))

    params = {"a": Spec("4 8"), "b": Spec("2 4")}
    table = opstage.check_step(loss, params, Spec("B 8"), requires_grad={"a": False, "b": True}).table
    first, tanh, second, _ = (row.amounts for row in table.rows)
    assert (first.backward, first.update, first.saved, tanh.backward, tanh.saved) == (0, 0, 0, 0, 0)
    assert str(second.saved) == "16*B"


def test_views_share_memory_and_two_that_keep_a_tensor_keep_it_once() -> None:
    def loss(ops: Any, p: Any, x: Any) -> Any:
        h = ops.exp(ops.mul(p, x))  # exp keeps its result
        return ops.sum(ops.mul(ops.reshape(h, shape=(12,)), ops.flatten(ops.permute(h, axes=(0, 1)))))

    table = opstage.check_step(loss, Spec("3 4"), Spec("3 4")).table
    assert table.total.saved == 4 * 12


def test_a_program_with_errors_still_has_a_table() -> None:
    def program(ops: Any, x: Any) -> Any:
        y = ops.region("right", lambda ops: ops.relu(x))
        return ops.relu(ops.matmul(y, y))

    report = opstage.check(program, Spec("B 3"))
    assert not report.ok
    assert [(row.op, str(row.amounts.flops)) for row in report.table.rows] == [
        ("relu", "3*B"),
        ("matmul", "0"),
        ("relu", "0"),
    ]
    assert str(report.at(B=2).table.rows[0].results[0].type) == "(2, 3) float32"


# Sizes ----------------------------------------------------------------------------------------------------------------


def test_sizes_must_be_whole_and_allowed() -> None:
    report = opstage.check(lambda ops, x: ops.relu(x), Spec("B T", where=["T <= 1024"]))
    for sizes, kind, said in (
        ({"B": 8}, UsageError, "no size was given for T: add T=… to B=8"),
        ({}, UsageError, "no size was given for B and T: add B=…, T=…"),
        ({"B": 8, "T": 8, "TT": 3}, UsageError, "unknown dim 'TT' (did you mean 'T'?); the dims are: B, T"),
        ({"B": 8, "T": 8.5}, UsageError, "T is 8.5 of type float, but a size is an int"),
        ({"B": True, "T": 8}, UsageError, "B is True of type bool"),
        ({"B": 0, "T": 8}, ShapeError, "B is 0, but a dim is at least 1"),
        ({"B": -1, "T": 8}, ShapeError, "B is -1, but a dim is never negative"),
        ({"B": 8, "T": 2048}, ShapeError, "T <= 1024, which was declared, does not hold at B=8, T=2048"),
    ):
        with pytest.raises(kind, match=re.escape(said)):
            report.at(**sizes)  # type: ignore[arg-type]
    there = report.at(B=np.int64(8), T=16)  # type: ignore[arg-type]
    assert there.sizes == {"B": 8, "T": 16}
    with pytest.raises(UsageError, match="has no named dims"):
        there.at(B=8)
    assert there.at() is there


def test_a_condition_left_undecided_is_decided_by_sizes() -> None:
    """2³ + 16³ = 9³ + 15³, which no small search finds."""
    x = Spec("X", where=["X*X*X + Y*Y*Y == 4104", "X < Y"])
    report = opstage.check(lambda ops, x, y: ops.reshape(x, shape=(9,)), x, Spec("Y"))
    assert [condition.relation for condition in report.conditions] == ["X == 9"]
    assert report.at(X=9, Y=15).conditions == ()
    with pytest.raises(ShapeError, match=r"X == 9, needed by reshape at .* does not hold at X=2, Y=16"):
        report.at(X=2, Y=16)


def test_a_table_is_made_when_it_is_asked_for() -> None:
    report = opstage.check(lambda ops, x: ops.relu(x), Spec("B"))
    assert "table" not in vars(report)
    assert report.table is report.table


# What is shown --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("7", "7"),
        ("1234567", "1,234,567"),
        ("B", "B"),
        ("24*B*T", "24*B*T"),
        ("932400*B*T**2 + 8855541248*B*T", "16*B*T*(58,275*T + 553,471,328)"),
        ("6064*B + 74764", "6,064*B + 74,764"),
        ("B*T - 12", "B*T - 12"),
        ("3*B + 2*T", "3*B + 2*T"),
        ("6*B*T - 4*B", "2*B*(3*T - 2)"),
        ("B**2*T + B**2", "B²*(T + 1)"),
        ("5*(T//2)*B", "5*B*(T//2)"),
    ],
)
def test_formulas_show_what_their_terms_share(text: str, shown: str) -> None:
    assert show_formula(DimScope().parse(text)) == shown


@given(
    st.dictionaries(
        st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 1)), st.integers(-5000, 5000), max_size=5
    ),
    st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9)),
)
def test_formulas_mean_what_they_say(terms: dict[tuple[int, int, int], int], sizes: tuple[int, int, int]) -> None:
    scope = DimScope()
    names = ("B", "T", "V")
    dim: Any = 0
    for powers, coefficient in terms.items():
        dim = dim + coefficient * math.prod(scope.dim(n) ** p for n, p in zip(names, powers))
    text = show_formula(dim).replace(",", "").replace("²", "**2").replace("³", "**3")
    values = dict(zip(names, sizes))
    assert eval(text, {}, values) == evaluate(dim, values)


def test_numbers_have_units() -> None:
    assert [show_flops(n) for n in (0, 999, 1000, 9_994, 99_949, 1_234_567, 2 * 10**9, 987 * 10**12)] == [
        "0 FLOP", "999 FLOP", "1.00 kFLOP", "9.99 kFLOP", "99.9 kFLOP", "1.23 MFLOP", "2.00 GFLOP", "987 TFLOP",
    ]  # fmt: skip
    assert [show_size(n) for n in (512, 3 * 2**29)] == ["512 bytes", "1.5 GiB"]


def test_blocks_of_one_form_are_one_line() -> None:
    table = step(model("gpt", XL), optimizer=optim.adamw()).table
    lines = {line.name: line for line in table.lines()}
    blocks, block = lines["blocks.0 … blocks.47"], lines["blocks.0"]
    assert (blocks.times, block.each, block.depth) == (48, True, 1)
    assert blocks.amounts == block.amounts.times(48)
    assert sum(1 for _ in table.lines()) < 40
    assert "blocks.0 … blocks.47 (48 x)" in str(table)
    assert "blocks.1" not in lines


def test_a_forward_pass_has_no_columns_for_what_it_does_not_do() -> None:
    report = opstage.check(lambda ops, x: ops.scale(x, c=2.0), Spec("B 3"))
    assert str(report.table) == (
        "block / op  result  parameters  forward FLOPs  bytes moved\n"
        "----------------------------------------------------------\n"
        "scale       (B, 3)         3*B            3*B         24*B\n"
        "----------------------------------------------------------\n"
        "total                      3*B            3*B         24*B"
    )
    assert str(report.at(B=1000).table).splitlines()[2].split() == [
        "scale", "(1000,", "3)", "3,000", "3.00", "kFLOP", "100.0", "%", "23.4", "KiB", "0.1",
    ]  # fmt: skip


def shown_with_rich(table: Table, width: int) -> str:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_a_terminal_shows_the_same() -> None:
    table = step(model("cnn")).at(B=64).table
    wide = shown_with_rich(table, 200)
    for line in str(table).splitlines()[2:]:
        for cell in re.split(r" {2,}", line.strip("- ")):
            assert cell in wide
    narrow = shown_with_rich(step(model("gpt")).at(B=64, T=128).table, 80)
    assert all(len(line) <= 80 for line in narrow.splitlines())
    assert "scaled_dot_product_attention" in narrow and re.search("bytes *$", narrow, re.MULTILINE)
    assert "result" not in narrow  # what is spared first
    assert re.sub(r"\x1b\[[0-9;]*m", "", for_terminal(table, 200)) == wide


def test_json_holds_the_whole_table() -> None:
    report = step(model("gpt"))
    document = json.loads(report.at(B=2, T=16).to_json())
    assert document["ok"] and document["findings"] == []
    data = document["sections"]["table"]["data"]
    assert data["sizes"] == {"B": 2, "T": 16}
    fields = ("parameters", "forward_flops", "backward_flops", "update_flops", "saved_bytes", "forward_bytes")
    for field in fields:
        assert sum(block["amounts"][field] for block in data["blocks"]) == data["totals"][field]
    blocks = next(block for block in data["blocks"] if block["name"] == "blocks.0 … blocks.3")
    assert (blocks["kind"], blocks["count"], blocks["path"]) == ("block", 4, "blocks.0")
    for field in fields:
        assert 4 * sum(member["amounts"][field] for member in blocks["members"]) == blocks["amounts"][field]
    first = data["blocks"][0]["members"][0]
    assert first["operands"][0] == {"path": "params.bytes", "shape": [256, 128], "dtype": "float32"}
    assert first["location"]["file"].endswith("gpt.py")
    formulas = json.loads(report.to_json())["sections"]["table"]["data"]
    scope = DimScope()
    assert (
        evaluate(scope.parse(formulas["totals"]["forward_flops"]), {"B": 2, "T": 16}) == data["totals"]["forward_flops"]
    )


class Balanced(HTMLParser):
    """Complains about tags that are not closed in order, and gathers the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1] != "style":
            self.text += data + "\n"


def read(html: str) -> str:
    parser = Balanced()
    parser.feed(html)
    assert parser.open == []
    return parser.text


@pytest.mark.parametrize("name", NAMES)
def test_html_is_well_formed_and_needs_nothing(name: str) -> None:
    html = step(model(name)).at(**sizes_of(name, 4))._repr_html_()
    assert "http" not in html and "<script" not in html
    assert "total" in read(html)


def test_html_shows_findings_first_and_escapes() -> None:
    def program(ops: Any, x: Any, y: Any) -> Any:
        h = ops.region("<b>bold</b>", lambda ops: ops.relu(x))
        return ops.add(h, y) if x.shape[1] else "<i>"

    html = opstage.check(program, Spec("B 3"), Spec("B 4"))._repr_html_()
    assert "<b>bold" not in html and "<i>" not in html
    text = read(html)
    assert text.index("error: add") < text.index("^^^") < text.index("1 error") < text.index("<b>bold</b>")


def test_a_notebook_shows_what_a_table_alone_holds() -> None:
    table = step(model("mlp")).table
    assert "total" in read(table._repr_html_())
