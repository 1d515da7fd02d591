"""A list of numbers is a tensor, also for a Spec; one of scalar arrays is a tree, or an error says what to do."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest

import opstage
from opstage import DtypeError, Options, Session, Spec
from opstage.compiler.captures.profiler import observed
from opstage.ops.errors import OpstageError, ProgramError, UsageError

NUMBERS = [1.0, 2.0]
SCALARS = [np.array(1.0), np.array(2.0)]
ARRAY = np.array([3.0, 4.0])
CURE = r"np\.asarray\(…\)"

# Programs of x and a tensor y. If x is a tensor, each is another tensor; a list that stays one must not give it a
# meaning of its own.
PROGRAMS: dict[str, Callable[..., Any]] = {
    "neg": lambda ops, x, y: ops.neg(x),
    "sum": lambda ops, x, y: ops.sum(x),
    "add": lambda ops, x, y: ops.add(x, y),
    "add, second": lambda ops, x, y: ops.add(y, x),
    "matmul": lambda ops, x, y: ops.matmul(x, y),
    "linear": lambda ops, x, y: ops.linear(y, x, y),
    "reduce": lambda ops, x, y: ops.reduce_mean(x, axis=0),
    "labels": lambda ops, x, y: ops.cross_entropy(y, x),
    "index": lambda ops, x, y: ops.gather_rows(y, x),
    "select": lambda ops, x, y: ops.select(x, y, y),
    "transform": lambda ops, x, y: opstage.transform.grad(ops, lambda ops, x: ops.sum(x), x),
    "x + x": lambda ops, x, y: x + x,
    "x + y": lambda ops, x, y: x + y,
    "y + x": lambda ops, x, y: y + x,
    "x + [1]": lambda ops, x, y: x + [1.0],  # noqa: RUF005
    "[y] + x": lambda ops, x, y: [y] + x,  # noqa: RUF005
    "x += x": lambda ops, x, y: added(x),
    "x * 2": lambda ops, x, y: x * 2,
    "2 * x": lambda ops, x, y: 2 * x,
    "x *= 2": lambda ops, x, y: doubled(x),
    "x * 2.0": lambda ops, x, y: x * 2.0,
    "x * y": lambda ops, x, y: x * y,
    "y * x": lambda ops, x, y: y * x,
    "x - y": lambda ops, x, y: x - y,
    "1 - x": lambda ops, x, y: 1 - x,
    "x / 2": lambda ops, x, y: x / 2,
    "x ** 2": lambda ops, x, y: x**2,
    "x @ y": lambda ops, x, y: x @ y,
    "y @ x": lambda ops, x, y: y @ x,
    "-x": lambda ops, x, y: -x,
    "abs": lambda ops, x, y: abs(x),
    "x < y": lambda ops, x, y: x < y,
    "x <= x": lambda ops, x, y: x <= x,
    "x > x": lambda ops, x, y: x > x,
    "x >= [0]": lambda ops, x, y: x >= [0.0],
}


def added(x: Any) -> Any:
    x += x
    return x


def doubled(x: Any) -> Any:
    x *= 2
    return x


QUESTIONS: dict[str, Callable[..., Any]] = {
    "run": opstage.run,
    "compiled": lambda program, *args: opstage.run(program, *args, options=Options(backend="compiled")),
    "value_and_grad": opstage.value_and_grad,
    "vjp": opstage.vjp,
    "jvp": lambda program, *args: opstage.jvp(program, args, args),
    "hvp": lambda program, *args: opstage.hvp(program, args, args),
    "record": opstage.record,
    "compile": opstage.compile,
}


# What a list of numbers means ----------------------------------------------------------------------------------------


def found(question: Callable[..., Any], *args: Any) -> Any:
    """What is answered, or the type of the error."""
    try:
        return question(*args)
    except OpstageError as error:
        return type(error)


@pytest.mark.parametrize(
    "given", [NUMBERS, [NUMBERS, NUMBERS], [1, 2], [np.float32(1), 2.0], [True, False], [Fraction(1, 2), 3]], ids=str
)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_list_of_numbers_is_the_array_of_it(program: str, given: Any) -> None:
    array = np.asarray(given, np.float64 if isinstance(given[0], Fraction) else None)
    answer = found(opstage.run, PROGRAMS[program], given, ARRAY)
    assert same(answer, found(opstage.run, PROGRAMS[program], array, ARRAY))


@pytest.mark.parametrize("question", ["run", "compiled", "value_and_grad", "vjp", "jvp", "hvp"])
@pytest.mark.parametrize("program", ["sum", "transform", "x * y", "x @ y"])
def test_whatever_is_asked_of_numbers(question: str, program: str) -> None:
    expected, answer = [found(QUESTIONS[question], PROGRAMS[program], x, ARRAY) for x in (np.array(NUMBERS), NUMBERS)]
    if question == "vjp" and isinstance(expected, tuple):
        (first, expected), (second, answer) = [(value, pullback(value)) for value, pullback in (expected, answer)]
        assert same(first, second)
    assert same(answer, expected)


def test_recordings_and_checks_of_numbers() -> None:
    program = PROGRAMS["x @ y"]
    recorded = [str(opstage.record(program, x, ARRAY).output_types) for x in (NUMBERS, np.array(NUMBERS))]
    assert recorded[0] == recorded[1]
    assert same(opstage.compile(program, NUMBERS, ARRAY).forward([3, 4], [5.0, 6.0]), 39.0)
    assert opstage.check(program, NUMBERS, ARRAY).ok and not opstage.check(program, [1.0, 2.0, 3.0], ARRAY).ok


def test_jacobians_of_numbers() -> None:
    assert same(opstage.jacobian(lambda ops, x: x * x, NUMBERS), np.diag([2.0, 4.0]))
    assert same(opstage.hessian(lambda ops, x: ops.sum(x * x), NUMBERS), 2 * np.eye(2))
    rows = [[1.0, 2.0], [3.0, 4.0]]
    assert same(opstage.per_sample_gradients(lambda ops, p, x: ops.sum(p * x), NUMBERS, rows), np.array(rows))


def test_tangents_and_cotangents_of_numbers() -> None:
    def squares(ops: Any, x: Any) -> Any:
        return x * x

    assert same(opstage.vjp(squares, ARRAY)[1](NUMBERS), (np.array([6.0, 16.0]),))
    assert same(opstage.jvp(squares, (ARRAY,), (NUMBERS,))[1], np.array([6.0, 16.0]))


@pytest.mark.parametrize("tree", [{"w": ARRAY, "b": NUMBERS}, (ARRAY, NUMBERS), [ARRAY, NUMBERS]], ids=type)
def test_a_list_of_numbers_within_a_tree(tree: Any) -> None:
    def program(ops: Any, tree: Any) -> Any:
        w, b = (tree["w"], tree["b"]) if isinstance(tree, dict) else tree
        return w * b

    assert same(opstage.run(program, tree), np.array([3.0, 8.0]))


def test_a_tuple_of_numbers_stays_a_tree() -> None:
    def program(ops: Any, x: Any) -> Any:
        a, b = x
        return a * b

    assert same(opstage.value_and_grad(program, (3.0, 2.0)), (6.0, (2.0, 3.0)))
    with pytest.raises(ProgramError, match="a tuple of them a tree"):
        opstage.run(program, [3.0, 2.0])


def test_where_a_list_of_tensors_is_declared_it_stays_one() -> None:
    @opstage.shapes("x.0: ", "x.1: ")
    def program(ops: Any, x: Any) -> Any:
        assert isinstance(x, list)
        return x[0] * x[1]

    compiled = opstage.compile(program, [Spec(""), Spec("")])
    assert compiled.forward([3.0, 2.0]) == 6.0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([[1, 2], [3]], "rows of different lengths; a tuple of them is a tree"),
        ([-1, 2**63], "integers are at most"),  # of which NumPy makes floats
        ([2**63], "integers are at most"),
        (["a", "b"], "a tensor must hold numbers"),
    ],
)
def test_lists_that_are_no_tensor(given: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        opstage.run(lambda ops, x: x, given)


def test_what_is_empty_is_an_empty_tree() -> None:
    assert opstage.run(lambda ops, x: x, [[]]) == [[]]
    with pytest.raises(ProgramError, match=r"np\.asarray"):
        opstage.run(lambda ops, x: ops.neg(x), [])


# A list of scalar arrays where a tensor is needed ---------------------------------------------------------------------


@pytest.mark.parametrize("given", [SCALARS, [SCALARS, SCALARS], [np.array(1), 2.0], [np.array(1.0)]], ids=str)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_list_where_a_tensor_is_needed_says_what_to_do(program: str, given: Any) -> None:
    with pytest.raises((ProgramError, AttributeError), match=CURE):
        opstage.run(PROGRAMS[program], given, ARRAY)


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("program", ["neg", "x + x", "x * 2", "y * x"])
def test_whatever_is_asked(question: str, program: str) -> None:
    with pytest.raises(ProgramError, match=CURE):
        QUESTIONS[question](PROGRAMS[program], SCALARS, ARRAY)


@pytest.mark.parametrize("program", ["neg", "x + x", "x * 2", "y * x"])
def test_a_check_says_so(program: str) -> None:
    for given in (SCALARS, [Spec(""), Spec("")]):
        (finding,) = opstage.check(PROGRAMS[program], given, ARRAY).errors
        assert "np.asarray(…)" in finding.reason


class Pair(NamedTuple):
    w: Any
    b: Any


@pytest.mark.parametrize(
    "tree", [{"w": ARRAY, "b": SCALARS}, Pair(ARRAY, SCALARS), (ARRAY, SCALARS), [ARRAY, SCALARS]], ids=type
)
def test_a_list_within_a_tree_too(tree: Any) -> None:
    def program(ops: Any, tree: Any) -> Any:
        w, b = (tree["w"], tree["b"]) if isinstance(tree, dict) else tree
        return b * 2, w

    with pytest.raises(ProgramError, match=CURE):
        opstage.run(program, tree)


def test_an_attribute_of_a_tensor() -> None:
    for name in ("shape", "dtype", "ndim", "T"):
        with pytest.raises(AttributeError, match=CURE):
            opstage.run(lambda ops, x, name=name: getattr(x, name), SCALARS)
    assert opstage.run(lambda ops, x: x[0] if not hasattr(x, "shape") else x[1], SCALARS) == 1


@pytest.mark.parametrize("take", ["jvp", "hvp", "vjp"])
def test_tangents_and_cotangents(take: str) -> None:
    def program(ops: Any, x: Any) -> Any:
        y = ops.mul(x, x)
        return ops.sum(y) if take == "hvp" else y

    with pytest.raises(OpstageError, match=CURE):
        if take == "vjp":
            opstage.vjp(program, ARRAY)[1](SCALARS)
        else:
            getattr(opstage, take)(program, (ARRAY,), (SCALARS,))


# What a list does mean ------------------------------------------------------------------------------------------------

TREES: dict[str, tuple[Callable[..., Any], Any]] = {
    "entries": (lambda ops, x: x[0] + x[1], 3.0),
    "loop": (lambda ops, x: sum(2 * each for each in x), 6.0),
    "joined": (lambda ops, x: [*x, *x], [1.0, 2.0, 1.0, 2.0]),
    "itself": (lambda ops, x: x, [1.0, 2.0]),
    "nested": (lambda ops, x: {"a": x, "b": (x,)}, {"a": [1.0, 2.0], "b": ([1.0, 2.0],)}),
    "slice": (lambda ops, x: x[1:] + x[:1], [2.0, 1.0]),
    "reversed": (lambda ops, x: list(reversed(x)), [2.0, 1.0]),
    "appended": (lambda ops, x: appended(x), [1.0, 2.0, 1.0]),
    "stacked": (lambda ops, x: ops.stack(x, axis=0), np.array([1.0, 2.0])),
    "copied": (lambda ops, x: copy.copy(x) + x.copy(), [1.0, 2.0, 1.0, 2.0]),
    "scan": (
        lambda ops, x: ops.scan(lambda ops, c, _: ([c[0] + c[1], c[1]], c[0]), x, None, length=3),
        ([7.0, 2.0], np.array([1.0, 3.0, 5.0])),
    ),
    "gradient": (lambda ops, x: opstage.transform.grad(ops, lambda ops, x: x[0] * x[1], x), [2.0, 1.0]),
}


def appended(x: Any) -> Any:
    x.append(x[0])
    return x


def same(a: Any, b: Any) -> bool:
    if isinstance(b, dict):
        return type(a) is dict and a.keys() == b.keys() and all(same(a[name], b[name]) for name in b)
    if isinstance(b, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return bool(np.array_equal(a, b))


@pytest.mark.parametrize("backend", ["eager", "compiled"])
@pytest.mark.parametrize("case", TREES)
def test_a_list_is_a_tree_of_scalars(case: str, backend: str) -> None:
    program, expected = TREES[case]
    assert same(opstage.run(program, SCALARS, options=Options(backend=backend)), expected)
    assert opstage.check(program, SCALARS).ok


def test_derivatives_are_lists() -> None:
    def program(ops: Any, x: Any) -> Any:
        return x[0] * x[0] * x[1]

    at, move = [np.array(3.0), np.array(2.0)], [np.array(1.0), np.array(0.0)]
    assert same(opstage.value_and_grad(program, at), (18.0, [12.0, 9.0]))
    assert same(opstage.hvp(program, (at,), (move,)), ([4.0, 6.0],))
    assert same(opstage.jvp(program, (at,), (move,)), (18.0, 12.0))
    assert same(opstage.vjp(lambda ops, x: x, at)[1]([5.0, 7.0]), ([5.0, 7.0],))


def test_a_list_of_tensors_is_a_list() -> None:
    kept: list[Any] = []

    def program(ops: Any, x: Any, empty: Any) -> Any:
        kept.extend([type(x), type(empty), type(x + x)])
        return x + x, empty + empty

    assert same(opstage.run(program, [ARRAY], []), ([ARRAY, ARRAY], []))
    assert kept == [list] * 3


def test_it_is_copied_and_pickled_as_a_list() -> None:
    def program(ops: Any, x: Any) -> Any:
        assert isinstance(x, list) and type(copy.copy(x)) is list
        assert type(pickle.loads(pickle.dumps(x[:0]))) is list
        return x[0]

    assert opstage.run(program, SCALARS) == 1


def test_a_list_of_arguments_is_no_state_that_a_program_captures() -> None:
    def program(ops: Any, x: Any) -> Any:
        def inner() -> Any:
            return x[0] * x[1]

        return inner() + x[0]

    with observed() as seen:
        opstage.run(program, SCALARS)
    assert seen.functions
    assert not [name for ran in seen.functions.values() for name, _ in ran.values.values() if name == "x"]


def test_a_session_takes_lists_for_arrays_and_never_for_refs() -> None:
    session = Session(Options(dtype="float64"))
    y = session.input(NUMBERS)
    assert session.get_value(session.add(y, session.input(NUMBERS))).tolist() == [2.0, 4.0]
    with pytest.raises(ProgramError, match=CURE):
        session.add(y, NUMBERS)


# A list of numbers is an array where one Spec is declared, and a tree where a list of them is -------------------------

ROWS = [[1, 2], [3, 4], [5, 6]]
ROWS_OF_TWO = np.array(ROWS, np.float64)
MOVE = [[0.5, 0.0], [1.0, 2.0], [0.0, -1.0]]


@opstage.shapes("x: n 2")
def squares(ops: Any, x: Any) -> Any:
    return ops.sum(x * x)


def test_a_declared_program_takes_lists() -> None:
    assert opstage.run(squares, ROWS) == np.sum(ROWS_OF_TWO**2)
    value, gradient = opstage.value_and_grad(squares, ROWS)
    assert value == 91 and np.array_equal(gradient, 2 * ROWS_OF_TWO)
    assert np.array_equal(opstage.vjp(squares, ROWS)[1](1.0)[0], 2 * ROWS_OF_TWO)
    assert opstage.jvp(squares, (ROWS,), (MOVE,))[1] == np.sum(2 * ROWS_OF_TWO * MOVE)
    assert np.array_equal(opstage.hvp(squares, (ROWS,), (MOVE,))[0], 2 * np.array(MOVE))


def test_a_compiled_program_takes_lists() -> None:
    compiled: Any = opstage.compile(squares, Spec("n 2"))
    assert compiled.forward(ROWS) == 91
    assert np.array_equal(compiled.backward(ROWS)[0], 2 * ROWS_OF_TWO)
    assert np.array_equal(compiled.vjp(ROWS)[1](1.0)[0], 2 * ROWS_OF_TWO)
    assert compiled.jvp((ROWS,), (MOVE,))[1] == np.sum(2 * ROWS_OF_TWO * MOVE)
    assert np.array_equal(compiled.hvp((ROWS,), (MOVE,))[0], 2 * np.array(MOVE))
    assert compiled.forward(ROWS_OF_TWO[:2]) == 30


def test_a_list_of_specs_stays_a_tree() -> None:
    compiled = opstage.compile(
        lambda ops, parts, x: parts[0] * parts[1] + x, [Spec(""), Spec("")], {"x": Spec("2")}["x"]
    )
    assert np.array_equal(compiled.forward([2.0, 3.0], [1, 4]), [7.0, 10.0])


def test_numbers_of_labels_stay_whole() -> None:
    compiled = opstage.compile(lambda ops, y: y + y, Spec("n", "int64"))
    found = compiled.forward([1, 2**53 + 1])
    assert found.dtype == np.int64 and found.tolist() == [2, 2**54 + 2]
    with pytest.raises(DtypeError):
        compiled.forward([1.5, 2.0])


@pytest.mark.parametrize("bad", [[1, 2], [[1, 2, 3]], [[1, 2], [3]], [["a", "b"]], [[1, None]]])
def test_lists_that_do_not_fit(bad: Any) -> None:
    with pytest.raises(OpstageError):
        opstage.compile(squares, Spec("n 2")).forward(bad)


def test_rows_of_different_lengths_are_an_error_of_a_declared_program() -> None:
    with pytest.raises(UsageError, match="rows of different lengths"):
        opstage.run(squares, [[1, 2], [3]])
