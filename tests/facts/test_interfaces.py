"""Claims where people write them: in Python, beside a program, on the command line, in a test; and what they get."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import opstage
from opstage import Spec, UsageError, shapes
from opstage.cli.check.checks import check_user
from opstage.cli.check.request import Asked, Request
from opstage.cli.main import cli
from opstage.interpreters.shape_check.formats import render
from opstage.interpreters.shape_check.formats.document import CheckOutcome
from opstage.ops.spec import Causal, Ignores, Independent, Uses, Window, declared, read_claims
from opstage.testing import assert_shapes

FILE = """
import opstage

@opstage.shapes("x: B T 4", claims=["causal:T"])
def right(ops, x):
    return ops.cumsum(x, axis=1)

@opstage.shapes("x: B T 4", claims=["causal:T", "independent:B"])
def wrong(ops, x):
    return ops.softmax(x, axis=1)

@opstage.shapes("x: B T 4", "unused: B")
def plain(ops, x, unused):
    return ops.tanh(x)
"""


def _outcomes(folder: Path, **asked: Any) -> Iterator[CheckOutcome]:
    file = folder / "models.py"
    file.write_text(FILE)
    return check_user(Request("models.py", str(file), None, None, Asked(**asked), 60.0, None))


def test_claims_are_read_from_texts() -> None:
    given = ["causal:T, independent:B", Uses("x"), "window:T:3,ignores:mask", Causal("T")]
    assert read_claims(given) == (Causal("T"), Independent("B"), Uses("x"), Window("T", 3), Ignores("mask"))
    assert read_claims(",".join(map(str, read_claims(given)))) == read_claims(given)


@pytest.mark.parametrize("text", ["", " , "])
def test_no_text_is_no_claim(text: str) -> None:
    assert read_claims(text) == ()


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        ("casual:T", "did you mean 'causal'"),
        ("causal", "expected causal:T"),
        ("causal:", "expected causal:T"),
        ("causal:T:3", "expected causal:T"),
        ("window:T", "window:T:3"),
        ("window:T:-1", "window:T:3"),
        (3, "3 is not a claim"),
        (None, "None is not a claim"),
    ],
)
def test_what_is_no_claim_is_refused(claim: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        opstage.check(lambda ops, x: x, Spec("B T"), claims=[claim])


def test_a_window_has_a_size() -> None:
    with pytest.raises(UsageError, match="at least 0"):
        Window("T", -1)


def test_what_is_not_proved_is_an_error_with_its_rule() -> None:
    report = opstage.check(
        lambda ops, x, y: ops.softmax(x, axis=1),
        Spec("B T 4"),
        Spec("B"),
        claims=["causal:T", "uses:y", "ignores:x", "independent:B", "window:S:1"],
    )
    assert [error.rule for error in report.errors] == ["causal", "uses", "ignores", "unproved"]
    assert not report.ok
    assert [verdict.state for verdict in report.claims] == ["refuted", "refuted", "refuted", "proved", "undecided"]
    assert report.errors[0].source is not None and report.errors[0].source.file == __file__
    assert "independent:B is proved" in str(report)


def test_a_program_that_is_wrong_has_no_claim_decided() -> None:
    report = opstage.check(lambda ops, x, y: ops.add(x, y), Spec("B T"), Spec("B 3"), claims=["causal:T"])
    assert [verdict.state for verdict in report.claims] == ["undecided"]
    assert [error.rule for error in report.errors] == ["shape"]


def test_claims_stand_beside_a_program() -> None:
    @shapes("x: B T", claims=["causal:T"])
    def program(ops: Any, x: Any) -> Any:
        return ops.cumsum(x, axis=1)

    found = declared(program)
    assert found is not None and found.claims == (Causal("T"),)
    with pytest.raises(UsageError, match="not a claim"):
        shapes("x: B T", claims=["causal"])


def test_a_file_is_held_to_its_claims(tmp_path: Path) -> None:
    right, wrong, plain = _outcomes(tmp_path)
    assert (right.ok, wrong.ok, plain.ok) == (True, False, True)
    assert [section.name for section in right.sections] == ["claims"]
    assert [(each["claim"], each["state"]) for each in wrong.sections[0].data] == [
        ("causal:T", "refuted"),
        ("independent:B", "proved"),
    ]
    assert wrong.sections[0].data[0]["witness"] == [0, 1]
    assert plain.sections == ()


def test_claims_of_the_command_line_come_to_those_of_the_file(tmp_path: Path) -> None:
    right, _, plain = _outcomes(tmp_path, prove=("independent:B", "ignores:x"))
    states = [(each["claim"], each["state"]) for each in right.sections[0].data]
    assert states == [("causal:T", "proved"), ("independent:B", "proved"), ("ignores:x", "refuted")]
    assert [error.rule for error in plain.errors] == ["ignores"]


@pytest.mark.parametrize("form", ["terminal", "json", "sarif", "github"])
def test_every_format_has_the_rule_and_the_line(form: str, tmp_path: Path) -> None:
    _, wrong, _ = _outcomes(tmp_path)
    text = render(form, [wrong], 1)
    assert "causal" in text and "models.py" in text and "10" in text and "T=1" in text
    if form == "json":
        (target,) = json.loads(text)["targets"]
        assert [finding["rule"] for finding in target["findings"]] == ["causal"]
        assert target["sections"]["claims"]["data"][0]["state"] == "refuted"
    if form == "sarif":
        (result,) = json.loads(text)["runs"][0]["results"]
        assert result["ruleId"] == "causal"


def test_a_shipped_model_is_proved_from_the_command_line() -> None:
    run = CliRunner().invoke(cli, ["check", "gpt", "--prove", "causal:T,independent:B"], standalone_mode=False)
    assert "causal:T is proved for every size" in run.output and "independent:B is proved" in run.output
    assert (run.exception, run.return_value) == (None, 0)


def test_a_claim_that_cannot_be_read_ends_with_a_usage_error() -> None:
    run = CliRunner().invoke(cli, ["check", "gpt", "--prove", "casual:T"])
    assert run.exit_code == 2 and "did you mean 'causal'" in run.output


def test_a_test_claims() -> None:
    def program(ops: Any, x: Any) -> Any:
        return ops.softmax(x, axis=1)

    assert_shapes(program, "x: B T", claims=["independent:B"])
    with pytest.raises(AssertionError, match="causal:T is refuted"):
        assert_shapes(program, "x: B T", claims=[Causal("T")])
