"""Graphs as text: what is printed, and that reading it back gives the same graph."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opstage.interpreters.graph import Graph, record
from opstage.interpreters.graph.checker import violations
from opstage.interpreters.graph.notation import (
    digest,
    read_array,
    read_region,
    read_statics,
    show_array,
    show_region,
    show_static,
)
from opstage.interpreters.graph.text import large_constants, parse, show_graph
from opstage.ops.body import Body
from opstage.ops.dims import DimFloat, DimScope, maximum, minimum, ratio, rsqrt
from opstage.ops.dispatch import Region
from opstage.ops.errors import UsageError
from opstage.ops.types import EXACT, FLOAT32, FLOAT64, INT64, TensorType
from tests.graph.recorded import NAMES, same_graphs, training_step, with_gradients
from tests.property.ops import MAKERS
from tests.property.programs import RandomProgram, programs


def fixed_point(graph: Graph) -> Graph:
    text = str(graph)
    again = parse(text, large_constants(graph))
    assert show_graph(again) == text
    same_graphs(again, graph)
    return again


@pytest.mark.parametrize("name", NAMES)
def test_a_training_step_of_every_shipped_model_survives(name: str, tmp_path: Path) -> None:
    graph = training_step(name)
    fixed_point(graph)
    graph.save(tmp_path / "step.graph")
    same_graphs(Graph.load(tmp_path / "step.graph"), graph)


@settings(max_examples=60)
@given(programs(MAKERS))
def test_random_programs_survive(program: RandomProgram) -> None:
    fixed_point(with_gradients(program))


def layer(ops: Any, w: Any, x: Any) -> tuple[Any, ...]:
    h = ops.region("layers.0", lambda ops, x: ops.matmul(x, w), ops.slice(x, axis=0, start=0, length=1))
    return (ops.mul(h, ops.const([[0.5, -1.0]])), h)


def test_what_a_graph_looks_like() -> None:
    types = [TensorType((3, 2), FLOAT32), TensorType((DimScope().dim("B"), 3), FLOAT32)]
    graph = record(layer, types, FLOAT32, 7, ["w", "x"])
    line, path = layer.__code__.co_firstlineno, Path(__file__)
    lines = [
        "graph 1: float32, seed 7",
        "size B",
        f'file {path.name} = "{path}"',
        "input 0 w: (3, 2) float32",
        "input 1 x: (B, 3) float32",
        "const %4: (1, 2) float32 = [0.5, -1.0]",
        f"%2: (1, 3) float32 = slice(%x, axis=0, start=0, length=1, step=1)  # @1 {path.name}:{line + 1}",
        f"%3: (1, 2) float32 = matmul(%2, %w)  # @2 {path.name}:{line + 1} layers.0",
        f"%5: (1, 2) float32 = mul(%3, %4)  # @3 {path.name}:{line + 2}",
        'output "output 0" = %5',
        'output "output 1" = %3',
    ]
    assert show_graph(graph).splitlines() == lines
    fixed_point(graph)


def test_a_closed_body_follows_its_equation() -> None:
    def program(ops: Any, xs: Any) -> tuple[Any, ...]:
        def step(ops: Any, total: Any, x: Any) -> Any:
            inner, _ = ops.scan(lambda ops, t, y: (ops.add(t, y), None), ops.const(0.0), x)
            return ops.add(total, inner), None

        return (ops.scan(step, ops.const(0.0), xs)[0],)

    graph = record(program, [TensorType((4, 3), FLOAT32)], FLOAT32, 0)
    text = show_graph(graph)
    assert "\n  body 0\n    input 0: () float32\n" in text
    assert "\n      body 0\n        input 0: () float32\n" in text
    fixed_point(graph)


def test_sizes_that_are_minima_and_maxima() -> None:
    scope = DimScope()
    t, s = scope.dim("T"), scope.dim("S")
    window = minimum(t, s, 16)

    def program(ops: Any, x: Any) -> tuple[Any, ...]:
        last = ops.slice(x, axis=0, start=t - window, length=window)
        return last, ops.scale(ops.pad(x, padding=[(0, maximum(t, 8) - t)]), c=ratio(1, window)), ops.sum(last)

    graph = fixed_point(record(program, [TensorType((t,), FLOAT32)], FLOAT32, 0))
    assert "length=min(S, T, 16)" in show_graph(graph) and "(max(T, 8),) float32" in show_graph(graph)


def test_an_input_that_is_an_output_and_a_program_without_inputs() -> None:
    fixed_point(record(lambda ops, x: (x, x), [TensorType((2,), FLOAT32)], FLOAT32, 0))
    fixed_point(record(lambda ops: (ops.const([1.0, 2.0]),), [], FLOAT32, 0))


@pytest.mark.parametrize("names", (["a b", 'say "%1 = x"  # y'], ["x", "x"], ["0", "1"], ["x.y[0]", "a#1"], ["é", ""]))
def test_inputs_of_any_name(names: list[str]) -> None:
    types = [TensorType((2,), FLOAT32)] * 2
    graph = record(lambda ops, x, y: (ops.add(x, y),), types, FLOAT32, 0, names)
    assert fixed_point(Graph(graph.body, names, [names[0]], FLOAT32, 0)).input_names == tuple(names)


def test_constants_stand_inline_or_beside() -> None:
    rng = np.random.default_rng(0)
    small = np.array([math.pi, -0.0, math.inf, 5e-324, 1 / 3])
    nan = np.array([0x7FF8000000000001], np.uint64).view(np.float64)
    large = rng.standard_normal((5, 5))
    graph = record(
        lambda ops: (ops.const(small), ops.const(nan), ops.const(large), ops.const([3, 4]), ops.const([True])),
        [],
        FLOAT64,
        0,
    )
    text = show_graph(graph)
    assert '[3.141592653589793, -0.0, float("inf"), 5e-324, 0.3333333333333333]' in text
    assert "[3, 4]" in text and "[True]" in text
    beside = large_constants(graph)
    assert set(beside) == {digest(large), digest(nan)}
    fixed_point(graph)
    with pytest.raises(UsageError, match="is missing; pass constants"):
        parse(text)
    with pytest.raises(UsageError, match="has other values"):
        parse(text, {name: array + 1 for name, array in beside.items()})


def test_exact_constants_are_written_out() -> None:
    values = np.array([[Fraction(1, 3), Fraction(2)]] * 20, object)
    graph = record(lambda ops, x: (ops.add(x, ops.const(values)),), [TensorType((20, 2), EXACT)], EXACT, 0)
    assert "[1/3, 2/1, 1/3" in show_graph(graph)
    assert large_constants(graph) == {}
    fixed_point(graph)


# Static parameters ----------------------------------------------------------------------------------------------------


def through(value: Any, scope: DimScope) -> Any:
    read = read_statics(f"v={show_static(value, [])}", scope, lambda position: None)  # type: ignore[arg-type, return-value]
    return read["v"]


PLAIN = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.fractions(), st.text()),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=6,
)


@given(PLAIN)
def test_plain_statics_are_read_exactly(value: Any) -> None:
    read = through(value, DimScope())
    assert repr(read) == repr(value)  # tells -0.0 from 0.0 and True from 1, in tuples as well
    assert "  # " not in show_static(value, [])


def test_a_loop_without_a_limit_is_read_back() -> None:
    def program(ops: Any, x: Any) -> Any:
        return (ops.while_loop(lambda own, x: own.sum(x) < 3.0, lambda own, x: x + 1.0, x),)

    graph = record(program, [TensorType((4,), FLOAT32)], FLOAT32, 0)
    assert "limit=None" in show_graph(graph)
    fixed_point(graph)


def test_a_float_that_is_no_number() -> None:
    assert math.isnan(through(math.nan, DimScope()))


SIZES = [
    "B",
    "B + 1",
    "2*B*T - 3",
    "B//2",
    "(B + T)//3",
    "B % 4",
    "(B*T)//(T + 1) + 1",
    "B**2",
    "(B//2)*(T//2)",
    "inf",
    "body",
]


@pytest.mark.parametrize("text", SIZES)
def test_sizes_and_reals_in_them_are_the_same_objects_again(text: str) -> None:
    scope = DimScope()
    size: Any = scope.parse(text)
    more = scope.dim("N")
    assert through(size, scope) is size
    assert through((size, size + 1), scope) == (size, size + 1)
    reals: list[Any] = [ratio(1, size), ratio(size, more), rsqrt(size), ratio(size - 1, size), rsqrt(size) * 0.1]
    reals += [ratio(size, 1) / 3 + Fraction(1, 7), 1 / (1 + rsqrt(more)), ratio(2, 3 * size) * rsqrt(more)]
    reals += [ratio(size, 1), rsqrt(2 * more) * 1e-3, ratio(1, size + 1) ** Fraction(1, 2), -ratio(1, size)]
    for real in reals:
        if isinstance(real, DimFloat):
            assert through(real, scope) is real, str(real)


@pytest.mark.parametrize(
    "path",
    (
        (),
        (("blocks.0", 0), ("attention", 0)),
        (("blocks", 0), ("0", 2)),
        (("backward", 0), ("opened", 1)),
        (("a b/c#1", 0), ('"', 3)),
        (("", 0),),
        (("model.py:3", 0),),
    ),
)
def test_regions_of_any_name(path: tuple[tuple[str, int], ...]) -> None:
    text = show_region(Region(path))
    assert " " not in text
    assert read_region(text).path == path


@given(st.lists(st.floats(width=32), max_size=8))
def test_small_arrays_are_read_exactly(values: list[float]) -> None:
    array = np.array(values, np.float32)
    text = show_array(array)
    if text is not None:
        assert read_array(text, array.shape, array.dtype).tobytes() == array.tobytes()


# What is not a graph ------------------------------------------------------------------------------------------------


TEXT = """graph 1: float32, seed 0
size B
file m.py = "/m.py"
input 0 x: (B, 3) float32
const %1: (2,) float32 = [1.0, 2.0]
%2: (B, 3) float32 = relu(%x)  # @1 m.py:3 block
output out = %2
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    (
        ("graph 1", "graph 2", "line 1 .* version 2 of the format, and this Opstage reads version 1; upgrade Opstage"),
        ("graph 1:", "digraph", "line 1 .*expected 'graph 1: DTYPE, seed N' first"),
        ("float32, seed", "float23, seed", "unknown dtype 'float23'.*did you mean 'float32'"),
        ("relu(%x)", "rely(%x)", "line 6 .*op 'rely' is not known .did you mean 'relu'"),
        ("relu(%x)", "relu(%z)", "line 6 .*input z is not defined"),
        ("relu(%x)", "relu(%7)", "typed: equation 0: %7 lacks a type: the body has 3 slots"),
        ("relu(%x)", 'full(shape=1/2, value=0.0, dtype="float32")', "static parameters are not those of full"),
        ("relu(%x)", "relu(%x, c=open(1))", r"line 6 .*'open\(1\)' is not a static parameter"),
        ("relu(%x)", "relu(%x, c=body(0))", "body 0 does not follow"),
        ("relu(%x)", "relu(%x", "is not an equation"),
        (
            "(B, 3) float32 = relu",
            "(B, 4) float32 = relu",
            "types: equation 0: %2 is .B, 4. float32, but the shape rule",
        ),
        ("@1 m.py", "m.py", "expected @ and the ordinal"),
        ("m.py:3", "n.py:3", "the file n.py is not declared"),
        ("block", "block other", "expected one region, got"),
        ("[1.0, 2.0]", "[1.0]", "line 5 .*does not fill"),
        ("[1.0, 2.0]", "[1.0, x]", "line 5 "),
        ("output out", "outputs out", "line 7 .*out of place"),
        ("input 0", "input 99999999", "beyond the limit of"),
        ("size B", "size 3", "cannot name a dim"),
        ("size B\n", "size B\nwhere B <\n", "line 3 .*constraint"),
    ),
)
def test_what_is_wrong_is_said_with_its_line(old: str, new: str, message: str) -> None:
    assert parse(TEXT).output_names == ("out",)
    with pytest.raises(UsageError, match=message):
        parse(TEXT.replace(old, new))


def test_a_constant_of_an_open_size_is_refused() -> None:
    large = np.ones((5, 5))
    text = TEXT.replace("(2,) float32 = [1.0, 2.0]", f"(B, 5) float64 = sha256:{digest(large)}")
    with pytest.raises(UsageError, match=r"constant %1 is \(B, 5\) float64, but its value has the shape \(5, 5\)"):
        parse(text, {digest(large): large})


def test_an_empty_text_is_no_graph() -> None:
    with pytest.raises(UsageError, match="line 1 "):
        parse("")


def test_damaged_text_never_raises_anything_else() -> None:
    graph = training_step("lstm")
    text, constants = show_graph(graph), large_constants(graph)
    rng = random.Random(0)
    for _ in range(150):
        at, length = rng.randrange(len(text)), rng.randrange(1, 6)
        noise = "".join(rng.choice('(),%#=" B0@:\n/*-[]x') for _ in range(rng.randrange(4)))
        try:
            parse(text[:at] + noise + text[at + length :], constants)
        except UsageError:
            pass


def test_a_broken_loop_is_shown_in_what_is_said_of_it() -> None:
    """Its body names a tensor that it does not have."""
    graph = training_step("lstm")
    loop, name, body = next(
        (equation, name, value)
        for equation in graph.body.equations
        for name, value in equation.static.items()
        if type(value) is Body
    )
    broken = loop._replace(static={**loop.static, name: body.replace(outputs=[len(body.types) + 7])})
    equations = [broken if e is loop else e for e in graph.body.equations]
    assert any(f"%{len(body.types) + 7}" in line for line in violations(graph.body.replace(equations=equations)))


def test_declared_sizes_stay_declared() -> None:
    graph = training_step("gpt")
    again = fixed_point(graph)
    assert "where T <= 128" in show_graph(again)


def test_types_are_read_in_one_scope() -> None:
    """So that sizes of different operands can be compared."""
    again = fixed_point(training_step("mlp"))
    x, y = (again.body.types[slot] for slot in again.body.inputs[6:8])
    assert x.shape[0] is y.shape[0] and y.dtype == INT64
