"""Claims about whole models: the shipped ones, the examples, decoders that leak as real ones did, backward passes."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import opstage
from opstage import Spec, derived
from opstage.analysis.dependence import Dependence
from opstage.facts import Causal, ClaimVerdict, Independent, Interpretation, Uses, Window
from opstage.models import MODELS, resnet
from opstage.runs.settings import configure
from opstage.source_files import load_file
from opstage.training.predictor import input_specs
from opstage.training.validate import check_step

EXAMPLES = Path(opstage.__file__).parents[1] / "examples"


def _of(model: Any, *claims: Any) -> tuple[ClaimVerdict, ...]:
    """The verdicts on what a model predicts, in evaluation form."""
    held = [tree for tree in (model.init, model.state) if tree is not None]
    specs = input_specs(model).values()
    return opstage.check(model.outputs, *held, *specs, train=False, claims=claims).claims


@pytest.mark.parametrize("name", list(MODELS))
def test_a_shipped_model_keeps_samples_apart_in_evaluation(name: str) -> None:
    settings = configure(name).settings
    verdicts = _of(settings.defined.make(settings.model), Independent("B"), Uses("x"))
    assert [verdict.state for verdict in verdicts] == ["proved", "proved"], verdicts


@pytest.mark.parametrize(("name", "causal"), [("llama", "proved"), ("bert", "refuted")])
def test_an_example_is_causal_or_shown_not_to_be(name: str, causal: str) -> None:
    module = load_file(EXAMPLES / f"{name}.py")
    model = module.make(module.Config())
    assert [verdict.state for verdict in _of(model, Causal("T"), Independent("B"))] == [causal, "proved"]


def test_gpt_is_causal_for_every_length() -> None:
    settings = configure("gpt").settings
    (verdict,) = _of(settings.defined.make(settings.model), Causal("T"))
    assert verdict.state == "proved"
    assert any("finite" in assumption for assumption in verdict.assumptions)


def test_batch_norm_in_training_form_mixes_samples() -> None:
    config = resnet.Config()
    model = resnet.make(config)

    def logits(ops: Any, params: Any, state: Any, x: Any, train: bool) -> Any:
        return resnet.logits(ops, params, state, x, config=config, train=train)[0]

    states = {}
    for train in (False, True):
        report = opstage.check(logits, model.init, model.state, model.batch[0], train=train, claims=[Independent("B")])
        (states[train],) = report.claims
    assert (states[False].state, states[True].state, states[True].op) == ("proved", "refuted", "batch_norm")
    assert states[True].witness is not None and states[True].source is not None


# Decoders that leak ---------------------------------------------------------------------------------------------------


def _decoder(*, ahead: int = 0, norm: str = "rms", keys: str = "own", smear: int = 1, mask: float = -math.inf) -> Any:
    """A decoder block over (B, T, 8), written out; its options are the leaks."""

    def program(ops: Any, x: Any) -> Any:
        h = x
        if norm == "time":  # the scale of a position is that of the whole text
            mean = ops.reduce_mean(ops.mul(x, x), axis=(1, 2), keepdims=True)
            h = ops.div(
                x, ops.broadcast_to(ops.sqrt(ops.add(mean, ops.full(shape=mean.shape, value=1e-5))), shape=x.shape)
            )
        else:
            h = ops.rms_norm(x, None)
        # A little of the embedding of the position before, as in models that smear tokens; smear=-1 takes the next one.
        h = ops.add(h, ops.scale(_moved(ops, h, smear), c=0.1))
        k = h if keys == "own" else _moved(ops, h, -1)
        scores = ops.bmm(h, ops.permute(k, axes=(0, 2, 1)))
        n = x.shape[1]
        rows, columns = ops.iota(shape=(n, n), axis=0), ops.iota(shape=(n, n), axis=1)
        seen = ops.less(columns, ops.add(rows, ops.full(shape=rows.shape, value=1 + ahead, dtype=rows.dtype)))
        seen = ops.broadcast_to(seen, shape=scores.shape)
        masked = ops.select(seen, scores, ops.full(shape=scores.shape, value=mask))
        return ops.add(x, ops.bmm(ops.softmax(masked, axis=-1), h if keys == "own" else k))

    return program


def _moved(ops: Any, x: Any, distance: int) -> Any:
    sides = (distance, 0) if distance > 0 else (0, -distance)
    padded = ops.pad(x, padding=((0, 0), sides, (0, 0)))
    return ops.slice(padded, axis=1, start=max(0, -distance), length=x.shape[1])


X = Spec("B T 8")
LEAKS = {
    "a mask that is off by one": (_decoder(ahead=1), "softmax", 1),
    "a norm over the text": (_decoder(norm="time"), "reduce_mean", None),
    "keys and values read ahead": (_decoder(keys="ahead"), "slice", 1),
    "tokens smeared the wrong way": (_decoder(smear=-1), "slice", 1),
}


@pytest.mark.parametrize("name", LEAKS)
def test_a_leak_is_refuted_at_its_op(name: str) -> None:
    program, op, distance = LEAKS[name]
    causal, batch = opstage.check(program, X, claims=[Causal("T"), Independent("B")]).claims
    assert (causal.state, causal.op, batch.state) == ("refuted", op, "proved"), causal
    assert causal.source is not None and causal.source.file == __file__
    assert causal.witness is not None
    t, s = causal.witness
    assert s > t and (distance is None or s - t <= distance + 1)


def test_the_decoder_without_a_leak_is_causal() -> None:
    verdicts = opstage.check(_decoder(), X, claims=[Causal("T"), Independent("B"), Independent("T")]).claims
    assert [verdict.state for verdict in verdicts] == ["proved", "proved", "refuted"]


def test_targets_that_are_not_shifted_are_seen() -> None:
    """The loss of each position, of a model that is given its own targets: they must lie behind what it reads."""

    def losses(shift: int) -> Callable[..., Any]:
        def program(ops: Any, x: Any) -> Any:
            out = _decoder()(ops, _moved(ops, x, shift) if shift else x)
            return ops.reduce_sum(ops.mul(out, out), axis=2)

        return program

    window = [Causal("T"), Window("T", 1)]
    states = [[v.state for v in opstage.check(losses(shift), X, claims=window).claims] for shift in (1, 0, -1)]
    assert states == [["proved", "refuted"], ["proved", "refuted"], ["refuted", "refuted"]]


def test_a_finite_mask_hides_scores_that_are_normed() -> None:
    """|x / rms(x)| is at most the root of 8, whatever x is, so the scores have bounds."""
    assert opstage.check(_decoder(mask=-1e9), X, claims=[Causal("T")]).claims[0].state == "proved"


def test_a_finite_mask_that_is_small_is_undecided_and_says_so() -> None:
    report = opstage.check(_decoder(mask=-100), X, claims=[Causal("T")])
    (verdict,) = report.claims
    assert verdict.state == "undecided" and "-100" in verdict.reason and "bounds" in verdict.reason
    assert [finding.rule for finding in report.errors] == ["unproved"]


def test_a_row_that_sees_nothing_is_said() -> None:
    report = opstage.check(_decoder(ahead=-1), X, claims=[Causal("T")])
    assert [finding.rule for finding in report.warnings] == ["masked-row"]
    assert report.claims[0].state == "proved"


def test_a_mask_that_is_an_input_does_not_prove_anything() -> None:
    def program(ops: Any, x: Any, mask: Any) -> Any:
        return ops.scaled_dot_product_attention(x, x, x, mask)

    (verdict,) = opstage.check(program, X, Spec("T T", dtype="bool"), claims=[Causal("T")]).claims
    assert verdict.state == "refuted"


def test_a_triangle_held_by_the_program_is_a_mask() -> None:
    import numpy as np

    def program(ops: Any, x: Any) -> Any:
        n = x.shape[1]
        table = ops.const(np.tril(np.ones((16, 16), bool)))
        seen = ops.slice(ops.slice(table, axis=0, start=0, length=n), axis=1, start=0, length=n)
        return ops.scaled_dot_product_attention(x, x, x, ops.broadcast_to(seen, shape=(x.shape[0], n, n)))

    (verdict,) = opstage.check(program, Spec("B T 8", where=("T <= 16",)), claims=[Causal("T")]).claims
    assert verdict.state == "proved", verdict


# Backward passes and loops --------------------------------------------------------------------------------------------


def test_dependence_goes_through_a_training_step() -> None:
    """Every parameter after a step of the gpt depends on its input, on its labels and on its gradients' scale."""
    settings = configure("gpt").settings
    model = settings.defined.make(settings.model)
    report = check_step(model.loss, model.init, *model.batch)
    assert report.ok
    program = report.program
    domain = Dependence(None, program.names)
    sources = [(domain.source(n, program.body.types[s]),) for n, s in zip(program.names, program.body.inputs)]
    facts = Interpretation([domain], program.scope).run(program.body, sources)
    read = 1 << program.names.index(next(n for n in program.names if n.startswith("x")))
    assert all(facts[slot][0].inputs & read for slot in program.body.outputs)


def test_an_op_of_which_nothing_is_known_is_never_proved() -> None:
    def program(ops: Any, x: Any) -> Any:
        (y,) = ops.callback(lambda a: a, x) if hasattr(ops, "callback") else (ops.argsort(x, axis=1),)
        return y

    (verdict,) = opstage.check(program, X, claims=[Causal("T")]).claims
    assert verdict.state != "proved"


def test_dropout_keeps_a_decoder_causal() -> None:
    (verdict,) = opstage.check(
        lambda ops, x: derived.dropout(ops, ops.cumsum(x, axis=1), 0.5, train=True), X, claims=[Causal("T")]
    ).claims
    assert verdict.state == "proved"
