"""Parameters that never reach the loss, inputs that are never used, gradients that end on the way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Aux, Spec
from opstage.interpreters.shape_check.finding import Finding
from opstage.training.validate import check_step
from tests.check.linted import checked, found, specs, stands_at, stepped

PARAMETER, INPUT, BLOCKED = "unused-parameter", "unused-input", "blocked-gradient"
X, LABELS = Spec("B 8"), Spec("B", "int64")


def only(findings: list[Finding]) -> Finding:
    assert len(findings) == 1, findings
    return findings[0]


# Parameters -----------------------------------------------------------------------------------------------------------


def linear(ops: Any, params: Any, x: Any) -> Any:
    return ops.sum(ops.linear(params["w"], params.get("b"), x))


def test_a_parameter_that_nobody_reads() -> None:
    params = specs(w="4 8", b="4", v="3 5")
    for finding in (only(stepped(PARAMETER, linear, params, X)), only(checked(PARAMETER, linear, params, X))):
        assert finding.op == "params.v" and finding.severity == "warning"
        assert finding.reason == "(3, 5) float32, never reaches the loss: no op reads it"
        assert stands_at(finding, linear, "ops.sum")  # what makes the loss, for want of a line of its own
    assert stepped(PARAMETER, linear, specs(w="4 8", b="4"), X) == []


def test_an_underscore_says_that_it_lies_idle() -> None:
    assert stepped(PARAMETER, linear, {"w": Spec("4 8"), "_v": Spec("3"), "_head": specs(w="3")}, X) == []


def attention(ops: Any, params: Any, x: Any) -> Any:
    q = ops.linear(params["wq"], None, x)  # first
    k = ops.linear(params["wq"], None, x)  # second
    return ops.sum(ops.mul(q, k))


def test_its_twin_is_read_twice() -> None:
    finding = only(stepped(PARAMETER, attention, specs(wq="8 8", wk="8 8"), X))
    assert "while params.wq, of the same type, is read here and at" in finding.reason
    assert stands_at(finding, attention, "# second")
    assert finding.fix == "read params.wk in one of the two places"
    assert "while" not in only(stepped(PARAMETER, attention, specs(wq="8 8", wk="8 9"), X)).reason


def with_head(ops: Any, params: Any, x: Any) -> Any:
    ops.linear(params["head"]["w"], params["head"]["b"], x)  # in vain
    return ops.sum(ops.linear(params["body"]["w"], params["body"]["b"], x))


def test_a_branch_is_one_finding_at_the_op_that_reads_it_in_vain() -> None:
    params = {"head": specs(w="4 8", b="4"), "body": specs(w="4 8", b="4")}
    finding = only(stepped(PARAMETER, with_head, params, X))
    assert finding.op == "params.head"
    assert finding.reason == "2 tensors, never reaches the loss: linear reads it, whose result goes nowhere"
    assert stands_at(finding, with_head, "# in vain")


def with_metric(ops: Any, params: Any, state: Any, x: Any) -> Any:
    return ops.sum(ops.mul(params["w"], x)), Aux(state=state, metrics={"norm": ops.sum(params["v"])})


def test_what_goes_into_metrics_alone_is_not_trained() -> None:
    params, state, x = specs(w="8", v="8"), Spec("8"), Spec("8")
    assert "into metrics or state alone" in only(stepped(PARAMETER, with_metric, params, x, state=state)).reason
    frozen = {"requires_grad": {"w": True, "v": False}}
    assert stepped(PARAMETER, with_metric, params, x, state=state, **frozen) == []


def test_a_frozen_parameter_that_nobody_reads() -> None:
    finding = only(stepped(PARAMETER, linear, specs(w="4 8", v="3"), X, requires_grad={"w": True, "v": False}))
    assert finding.op == "params.v" and finding.fix == "use it, or take it out of the parameters"


def test_used_in_a_loop_is_used() -> None:
    def recurrent(ops: Any, params: Any, xs: Any) -> Any:
        def turn(ops: Any, h: Any, x: Any) -> Any:
            ops.mul(params["idle"], x)
            return ops.tanh(ops.add(ops.mul(params["w"], x), h)), None

        return ops.sum(ops.scan(turn, params["start"], xs)[0])

    finding = only(stepped(PARAMETER, recurrent, specs(w="8", start="8", idle="8"), Spec("T 8")))
    assert finding.op == "params.idle" and "scan reads it" in finding.reason


def test_a_carry_that_only_feeds_itself_reaches_nothing() -> None:
    def program(ops: Any, params: Any, xs: Any) -> Any:
        def turn(ops: Any, carry: Any, x: Any) -> Any:
            a, b = carry
            return (ops.add(a, x), ops.mul(b, x)), None

        a, _ = ops.scan(turn, (params["a"], params["b"]), xs)[0]
        return ops.sum(a)

    assert only(stepped(PARAMETER, program, specs(a="8", b="8"), Spec("T 8"))).op == "params.b"


def test_used_through_a_derivative_is_used() -> None:
    def slope(ops: Any, params: Any, x: Any) -> Any:
        def energy(ops: Any, x: Any) -> Any:
            return ops.sum(ops.mul(params["w"], ops.mul(x, x)))

        g = opstage.transform.grad(ops, energy, x)
        return ops.sum(ops.mul(g, g))

    assert stepped(PARAMETER, slope, specs(w="8"), Spec("8")) == []


def test_one_tensor_is_an_input_unless_it_is_called_params() -> None:
    def first(ops: Any, x: Any, y: Any) -> Any:
        return ops.exp(y)

    def bare(ops: Any, params: Any, y: Any) -> Any:
        return ops.exp(y)

    assert only(checked(INPUT, first, Spec("3"), Spec("3"))).op == "x"
    finding = only(checked(PARAMETER, bare, Spec("3"), Spec("3")))
    assert finding.op == "params" and "never reaches any result" in finding.reason


# Inputs ---------------------------------------------------------------------------------------------------------------


def test_a_batch_argument_that_nobody_reads() -> None:
    def loss(ops: Any, params: Any, x: Any, weights: Any) -> Any:
        return ops.sum(ops.mul(params["w"], x))

    finding = only(stepped(INPUT, loss, specs(w="8"), Spec("8"), Spec("8")))
    assert finding.op == "weights" and finding.severity == "warning"
    assert finding.reason == "(8,) float32, is never used: no op reads it"
    assert "call it _weights" in finding.fix
    assert str(finding).startswith("weights at ")


def test_an_underscore_says_that_it_is_not_wanted() -> None:
    def loss(ops: Any, params: Any, x: Any, _weights: Any) -> Any:
        return ops.sum(ops.mul(params["w"], x))

    assert stepped(INPUT, loss, specs(w="8"), Spec("8"), Spec("8")) == []


SIZED: list[Any] = [
    lambda ops, x, m: ops.broadcast_to(x, shape=m.shape),
    lambda ops, x, m: ops.scale(x, c=1 / m.shape[0]),
    lambda ops, x, m: x * m.shape[0],
    lambda ops, x, m: [x for _ in range(m.shape[1])],
    lambda ops, x, m: x if m.shape[1] == 3 else -x,
    lambda ops, x, m: ops.add(x, ops.full(shape=m.shape[1:], value=1.0)),
]


@pytest.mark.parametrize("spec", ["B 3", "3 3"])
@pytest.mark.parametrize("program", SIZED)
def test_an_input_may_be_given_for_its_size(program: Any, spec: str) -> None:
    assert checked(INPUT, program, Spec("3"), Spec(spec)) == []


@pytest.mark.parametrize("spec", [Spec("B 3"), Spec("3 3"), Spec("B T", where=["T >= 2"])])
@pytest.mark.parametrize(
    "program", [lambda ops, x, m: ops.exp(x), lambda ops, x, m: (ops.exp(x), m.shape, ops.exp(m))[0]]
)
def test_a_size_that_is_read_and_not_needed_is_no_use(program: Any, spec: Spec) -> None:
    assert only(checked(INPUT, program, Spec("3"), spec)).op == "m"


def helper(ops: Any, x: Any) -> Any:
    return ops.exp(x)


def delegates(
    ops: Any,
    x: Any,
    mask: Any,  # idle
    train: bool = False,
) -> Any:
    return helper(ops, x)


def test_what_is_never_read_stands_in_the_signature() -> None:
    finding = only(checked(INPUT, delegates, Spec("3"), Spec("3")))
    assert stands_at(finding, delegates, "# idle")
    assert str(finding).splitlines()[2] == "    ^^^^"


def test_the_rest_of_the_arguments_has_its_name() -> None:
    def program(ops: Any, x: Any, *rest: Any) -> Any:
        return ops.exp(x)

    def silent(ops: Any, x: Any, *_rest: Any) -> Any:
        return ops.exp(x)

    three = (Spec("3"),) * 3
    assert [finding.op for finding in checked(INPUT, program, *three)] == ["rest[0]", "rest[1]"]
    assert checked(INPUT, silent, *three) == []


def test_a_leaf_of_the_state() -> None:
    def loss(ops: Any, params: Any, state: Any, x: Any) -> Any:
        fresh = ops.full(shape=(8,), value=0.0)
        return ops.sum(ops.mul(params["w"], x)), Aux(state={"kept": state["kept"], "lost": fresh})

    finding = only(stepped(INPUT, loss, specs(w="8"), Spec("8"), state=specs(kept="8", lost="8")))
    assert finding.op == "state.lost" and finding.fix == "use it, or take it out"


def test_randomness_is_no_argument() -> None:
    def loss(ops: Any, params: Any, x: Any) -> Any:
        ops.rand_uniform(shape=(3,))
        return ops.sum(ops.mul(params["w"], opstage.derived.dropout(ops, x, 0.5, True)))

    assert stepped(INPUT, loss, specs(w="8"), Spec("8")) == []


# Gradients ------------------------------------------------------------------------------------------------------------


def detached(ops: Any, params: Any, x: Any, y: Any) -> Any:
    h = ops.detach(ops.linear(params["encoder"], None, x))  # cut
    return ops.cross_entropy(ops.linear(params["decoder"], None, h), y)


def test_a_detach_on_the_only_way() -> None:
    params = specs(encoder="8 8", decoder="3 8")
    for finding in (
        only(stepped(BLOCKED, detached, params, X, LABELS)),
        only(checked(BLOCKED, detached, params, X, LABELS)),
    ):
        assert finding.op == "detach" and finding.severity == "warning"
        assert "params.encoder reaches the loss only through detach, which ends a gradient" in finding.reason
        assert stands_at(finding, detached, "# cut")
    frozen = {"requires_grad": {"encoder": False, "decoder": True}}
    assert stepped(BLOCKED, detached, params, X, LABELS, **frozen) == []


@pytest.mark.parametrize(
    ("op", "why"),
    [
        (lambda ops, h: ops.cast(ops.cast(h, dtype="int32"), dtype="float32"), "cast, whose result is int32"),
        (lambda ops, h: ops.cast(ops.less(h, h), dtype="float32"), "less, whose result is bool"),
    ],
    ids=["cast", "less"],
)
def test_a_way_through_integers_or_masks(op: Any, why: str) -> None:
    def loss(ops: Any, params: Any, x: Any) -> Any:
        return ops.sum(ops.mul(op(ops, ops.mul(params["v"], x)), params["w"]))

    finding = only(stepped(BLOCKED, loss, specs(v="8", w="8"), Spec("8")))
    assert f"params.v reaches the loss only through {why}" in finding.reason


def test_a_second_way_is_enough() -> None:
    def straight_through(ops: Any, params: Any, x: Any) -> Any:
        soft = ops.mul(params["v"], x)
        hard = ops.cast(ops.less(ops.full(shape=(8,), value=0.0), soft), dtype="float32")
        return ops.sum(ops.add(soft, ops.detach(ops.sub(hard, soft))))

    assert stepped(BLOCKED, straight_through, specs(v="8"), Spec("8")) == []


def test_many_behind_one_op_are_one_finding() -> None:
    def loss(ops: Any, params: Any, x: Any) -> Any:
        h = x
        for name in "abcde":
            h = ops.mul(params[name], h)
        return ops.sum(ops.mul(params["w"], ops.detach(h)))

    finding = only(stepped(BLOCKED, loss, specs(a="8", b="8", c="8", d="8", e="8", w="8"), Spec("8")))
    assert "params.a, params.b, params.c and 2 more reach the loss only" in finding.reason


def test_a_detach_inside_a_loop() -> None:
    def loss(ops: Any, params: Any, xs: Any) -> Any:
        def turn(ops: Any, h: Any, x: Any) -> Any:
            stopped = ops.detach(ops.mul(params["v"], x))  # inside
            return ops.add(ops.mul(h, params["w"]), stopped), None

        return ops.sum(ops.scan(turn, ops.full(shape=(8,), value=0.0), xs)[0])

    finding = only(stepped(BLOCKED, loss, specs(v="8", w="8"), Spec("T 8")))
    assert "params.v" in finding.reason and "params.w" not in finding.reason
    assert stands_at(finding, loss, "# inside")


def test_a_gradient_that_needs_several_iterations_arrives() -> None:
    """A parameter goes from carry to carry, one in each iteration, into the last, which alone the loss reads."""

    def loss(ops: Any, params: Any, xs: Any) -> Any:
        def turn(ops: Any, h: Any, x: Any) -> Any:
            a, b, c, d, e = h
            return (ops.mul(params["v"], x), a, b, c, ops.add(d, ops.detach(e))), None

        zero = ops.full(shape=(8,), value=0.0)
        return ops.sum(ops.mul(ops.scan(turn, (zero,) * 5, xs)[0][4], params["w"]))

    assert stepped(BLOCKED, loss, specs(v="8", w="8"), Spec("T 8")) == []


def accuracy(ops: Any, params: Any, x: Any, y: Any) -> Any:
    guess = ops.argmax(ops.linear(params["w"], None, x), axis=1)  # whole numbers
    return ops.reduce_mean(ops.cast(ops.equal(guess, y), dtype="float32"))


def test_a_step_in_which_nothing_can_move_is_an_error() -> None:
    finding = only(stepped(BLOCKED, accuracy, specs(w="3 8"), X, LABELS))
    assert finding.severity == "error"
    assert "no gradient for params.w: it depends on it only through argmax, whose result is int64" in finding.reason
    assert stands_at(finding, accuracy, "# whole numbers")
    assert checked(BLOCKED, accuracy, specs(w="3 8"), X, LABELS) == []  # as a program, nothing is wrong with it


def test_parameters_that_a_loop_without_carry_reads_move() -> None:
    def loss(ops: Any, params: Any, xs: Any) -> Any:
        return ops.sum(ops.scan(lambda own, carry, x: (carry, own.sum(own.mul(x, params["w"]))), (), xs)[1])

    assert stepped(BLOCKED, loss, specs(w="8"), Spec("T 8")) == []


def test_a_step_that_looks_at_no_parameter_is_an_error() -> None:
    def loss(ops: Any, params: Any, x: Any) -> Any:
        return ops.sum(x)

    finding = only(stepped(BLOCKED, loss, specs(w="3 8", b="3"), X))
    assert finding.severity == "error" and "does not depend on any of the 2 parameters" in finding.reason
    assert stepped(PARAMETER, loss, {}, X) == []
    assert found(check_step(loss, specs(w="3"), X, requires_grad=False), BLOCKED) == []


# Silence --------------------------------------------------------------------------------------------------------------


def test_after_an_error_nothing_is_said_of_what_is_used() -> None:
    def broken(ops: Any, params: Any, x: Any, y: Any) -> Any:
        h = ops.linear(params["w"], None, x)
        return ops.sum(ops.detach(h))

    report = check_step(broken, specs(w="4 9", v="3"), X, Spec("B"))
    assert [finding.rule for finding in report.findings] == ["shape"]


def test_after_an_exception_neither() -> None:
    def broken(ops: Any, params: Any, x: Any) -> Any:
        raise ValueError("no")

    report = opstage.check(broken, specs(w="4 9"), X)
    assert [finding.rule for finding in report.findings] == ["program"]


def test_results_that_are_arguments() -> None:
    def same(ops: Any, params: Any, x: Any) -> Any:
        return params["w"], x

    assert checked(PARAMETER, same, specs(w="3"), X) == []


def test_a_trainer_warns_once_at_the_line_of_the_user() -> None:
    params = {name: np.zeros((8, 8), np.float32) for name in ("wq", "wk")}
    with pytest.warns(opstage.ProgramWarning, match="read params.wk in one of the two places") as caught:
        trainer = opstage.scalar_trainer(attention, params)
        trainer.step(0.1, np.ones((2, 8), np.float32))
        trainer.step(0.1, np.ones((3, 8), np.float32))
    (warning,) = caught
    assert warning.filename == __file__
    assert isinstance(warning.message, opstage.ProgramWarning)
    finding = warning.message.finding
    assert isinstance(finding, Finding) and finding.source is not None
    assert finding.rule == PARAMETER and warning.lineno == finding.source.line


def test_symbolic_parameters_are_compared_by_their_names() -> None:
    params = specs(wq="M 8", wk="M 8", wo="N 8")
    first, second = checked(PARAMETER, attention, params, X)
    assert "while params.wq" in first.reason and "while" not in second.reason


# Inputs that a program makes nothing of: however many there are, the program is looked through once more for them -----


def test_idle_inputs_are_found_in_one_more_run() -> None:
    runs = []

    def program(ops: Any, x: Any, idle: Any, scalars: Any, template: Any) -> Any:
        runs.append(1)
        return ops.broadcast_to(ops.sum(x), shape=template.shape)

    idle, scalars = [Spec("K", dtype="int64")] * 20, [Spec("")] * 20
    report = opstage.check(program, Spec("B"), idle, scalars, Spec("N M"))
    assert report.ok and len(runs) == 2
    named = {warning.op for warning in report.warnings}
    assert named == {f"idle.{i}" for i in range(20)} | {f"scalars.{i}" for i in range(20)}


def test_where_the_sizes_of_one_end_it_the_others_are_still_found() -> None:
    def program(ops: Any, x: Any, idle: Any, rounds: Any) -> Any:
        for _ in range(int(rounds.shape[0])):
            x = ops.scale(x, c=2.0)
        return x

    report = opstage.check(program, Spec("B"), Spec("K"), Spec("3"))
    assert report.ok and [warning.op for warning in report.warnings] == ["idle"]
