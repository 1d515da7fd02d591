"""The rules of graphs, broken one at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from opstage.interpreters.graph import Graph, record
from opstage.interpreters.graph.checker import RULES, GraphError, check_graph, violations
from opstage.ops.body import Body, BodyConstant, Equation
from opstage.ops.pooling import MAX_POOL
from opstage.ops.types import FLOAT32, INT64, TensorType
from tests.graph.recorded import NAMES, training_step, with_gradients
from tests.property.ops import MAKERS
from tests.property.programs import RandomProgram, programs


def program(ops: Any, x: Any, w: Any) -> tuple[Any, ...]:
    h = ops.region("block", lambda ops, x: ops.softmax(ops.matmul(x, w), axis=1), x)
    total, _ = ops.scan(lambda ops, carry, row: (ops.add(carry, row), None), ops.const(np.zeros(3)), h)
    return (total, ops.relu(h))


@pytest.fixture
def graph() -> Graph:
    return record(program, [TensorType((4, 2), FLOAT32), TensorType((2, 3), FLOAT32)], FLOAT32, 0)


def position(body: Body, name: str) -> int:
    return next(i for i, e in enumerate(body.equations) if e.primitive.name == name)


def changed(body: Body, name: str, change: Callable[[Equation], Equation]) -> Body:
    at = position(body, name)
    return body.replace(equations=[change(e) if i == at else e for i, e in enumerate(body.equations)])


def retyped(body: Body, slot: int, type_: Any) -> Body:
    return body.replace(types=[type_ if i == slot else t for i, t in enumerate(body.types)])


def loop(body: Body, change: Callable[[Body], Body]) -> Body:
    return changed(body, "scan", lambda e: e._replace(static={**e.static, "body": change(e.static["body"])}))


Break = Callable[[Body], Body]


def with_field(name: str, **fields: Callable[[Body, Equation], Any]) -> Break:
    """The first equation of an op with other fields."""
    return lambda b: changed(b, name, lambda e: e._replace(**{field: f(b, e) for field, f in fields.items()}))


def with_axis(axis: Any) -> Break:
    return with_field("softmax", static=lambda b, e: {**e.static, "axis": axis})


def with_constants(array: Any) -> Break:
    return lambda b: b.replace(constants=[BodyConstant(c.slot, array, c.type) for c in b.constants])


def frozen(array: Any) -> Any:
    array.flags.writeable = False
    return array


BREAKS: dict[str, tuple[str, Break]] = {
    "an op that is no primitive": ("primitive", with_field("relu", primitive=lambda b, e: "relu")),
    "a slot beyond the types": ("typed", lambda b: b.replace(outputs=(*b.outputs, len(b.types)))),
    "a negative slot": ("typed", with_field("relu", inputs=lambda b, e: (-1,))),
    "a type that is a shape": ("typed", lambda b: retyped(b, b.inputs[0], (4, 2))),
    "an input twice": ("once", lambda b: b.replace(inputs=(*b.inputs, b.inputs[0]))),
    "a result that is an input": ("once", with_field("relu", outputs=lambda b, e: (b.inputs[0],))),
    "equations in another order": ("before use", lambda b: b.replace(equations=b.equations[::-1])),
    "an equation that reads itself": ("before use", with_field("relu", inputs=lambda b, e: e.outputs)),
    "an equation left out": ("before use", lambda b: b.replace(equations=b.equations[1:])),
    "an output that nothing defines": (
        "outputs",
        lambda b: b.replace(types=(*b.types, TensorType((), FLOAT32)), outputs=(len(b.types),)),
    ),
    "a list among the static parameters": ("canonical", with_axis([1])),
    "a number of NumPy's": ("canonical", with_axis(np.int64(1))),
    "a static parameter that cannot be hashed": ("hashable", with_axis(({},))),
    "a shape that the rule does not find": (
        "types",
        lambda b: retyped(b, b.equations[-1].outputs[0], TensorType((3, 4), FLOAT32)),
    ),
    "a dtype that the rule does not find": (
        "types",
        lambda b: retyped(b, b.equations[-1].outputs[0], TensorType((4, 3), INT64)),
    ),
    "operands that do not fit": ("types", with_field("matmul", inputs=lambda b, e: e.inputs[::-1])),
    "an operand too few": ("types", with_field("matmul", inputs=lambda b, e: e.inputs[:1])),
    "a result too few": ("types", with_field("softmax", outputs=lambda b, e: e.outputs[:0])),
    "a constant of another shape": ("constants", with_constants(frozen(np.zeros(4)))),
    "a constant of a wider kind": ("constants", with_constants(frozen(np.zeros(3, complex)))),
    "a constant that can be written to": ("constants", with_constants(np.zeros(3, np.float32))),
    "a constant of two types": (
        "constants",
        lambda b: b.replace(constants=[c._replace(type=TensorType((4,), FLOAT32)) for c in b.constants]),
    ),
    "a region by its name alone": ("place", with_field("relu", region=lambda b, e: "block")),
    "an ordinal of no op": ("place", with_field("relu", ordinal=lambda b, e: 999)),
    "a negative ordinal": ("place", with_field("relu", ordinal=lambda b, e: -1)),
    "a body that reads from outside": (
        "before use",
        lambda b: loop(b, lambda inner: inner.replace(inputs=inner.inputs[:1])),
    ),
}


@pytest.mark.parametrize("what", BREAKS)
def test_a_broken_rule_is_named_with_its_equation(what: str, graph: Graph) -> None:
    rule, break_ = BREAKS[what]
    with pytest.raises(GraphError) as error:
        check_graph(graph.with_body(break_(graph.body)))
    broken = {line.strip().split(":")[0] for line in str(error.value).splitlines()[1:] if not line.startswith(" " * 6)}
    assert rule in broken, str(error.value)


def test_every_rule_is_broken_by_some_test() -> None:
    assert {rule for rule, _ in BREAKS.values()} | {"opened"} == {rule.name for rule in RULES}


def test_a_residual_is_read_from_an_opened_equation_alone() -> None:
    def pooled(ops: Any, x: Any) -> tuple[Any, ...]:
        return ops.bind(MAX_POOL, (x,), static)

    types = [TensorType((1, 1, 4, 4), FLOAT32)]
    static = record(lambda ops, x: (ops.max_pool(x, kernel=(2, 2)),), types, FLOAT32, 0).body.equations[0].static
    graph = check_graph(record(pooled, types, FLOAT32, 0))
    assert graph.body.equations[0].opened
    shut = changed(graph.body, MAX_POOL.name, lambda e: e._replace(opened=False))
    with pytest.raises(GraphError, match="opened: equation 0"):
        check_graph(graph.with_body(shut))


def test_all_violations_are_listed_with_line_and_equation(graph: Graph) -> None:
    body = changed(graph.body, "relu", lambda e: e._replace(ordinal=999))
    body = changed(body, "softmax", lambda e: e._replace(static={**e.static, "axis": [1]}))
    with pytest.raises(GraphError) as error:
        check_graph(graph.with_body(body))
    text = str(error.value)
    assert "place: equation " in text and "canonical: equation " in text
    assert " = softmax(" in text and "axis=[1]" in text
    assert "test_checker.py:" in text


def test_names_are_as_many_as_inputs_and_outputs(graph: Graph) -> None:
    with pytest.raises(GraphError, match=r"names: 1 names for 2 inputs(?s:.)*names: 3 names for 2 outputs"):
        check_graph(Graph(graph.body, ["x"], ["a", "b", "c"], FLOAT32, 0))


@pytest.mark.parametrize("name", NAMES)
def test_recorded_models_keep_the_rules(name: str) -> None:
    assert check_graph(training_step(name)) is training_step(name)


@settings(max_examples=50)
@given(programs(MAKERS))
def test_recorded_random_programs_keep_the_rules(program: RandomProgram) -> None:
    assert violations(with_gradients(program).body) == []
