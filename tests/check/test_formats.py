"""Reports as text for a terminal, JSON, GitHub's commands and SARIF."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import opstage
from opstage import Spec
from opstage.interpreters.shape_check.finding import Finding
from opstage.interpreters.shape_check.formats import FORMATS, render
from opstage.interpreters.shape_check.formats.document import (
    CheckOutcome,
    Section,
    Unusable,
    from_document,
    to_document,
)
from opstage.interpreters.shape_check.formats.terminal import render_unusable, suggestion
from opstage.interpreters.shape_check.report import Assumption
from opstage.interpreters.shape_check.rules import RULES
from opstage.ops.errors import SourceLine

SOURCE = """import opstage

def wrong(ops, params, x, y):
    h = ops.linear(params["w"], None, x)
    return ops.add(h, y)
"""


@pytest.fixture
def outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CheckOutcome:
    """A program with an error in it, in a file called mine.py."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "mine.py"
    file.write_text(SOURCE)
    namespace: dict[str, Any] = {}
    exec(compile(SOURCE, str(file), "exec"), namespace)
    report = opstage.check(namespace["wrong"], {"w": Spec("4 3")}, Spec("B 3"), Spec("B M"))
    return CheckOutcome.of(report, "mine.py:wrong", "the forward pass", [Section("note", {"a": 1}, "a note")])


def finding(**changes: Any) -> Finding:
    return Finding(**{"op": "add", "reason": "they differ", **changes})


def test_the_terminal_shows_the_line_and_what_is_meant_on_it(outcome: CheckOutcome) -> None:
    text = render("terminal", [outcome])
    lines = text.splitlines()
    assert lines[0] == "mine.py:wrong, the forward pass:"
    start = next(i for i, line in enumerate(lines) if line.startswith("error"))
    assert re.match(r"error\[shape\]: add: x is \(B, 4\) but y is \(B, M\)", lines[start])
    assert lines[start + 1 : start + 5] == [
        " --> mine.py:5:12",
        "  |",
        "5 |     return ops.add(h, y)",
        "  |            ^^^^^^^^^^^^^",
    ]
    assert any(line.startswith("  = note: y is y (B, M)") for line in lines)
    assert "\n1 error\n" in text and text.endswith("\na note\n")
    assert "\x1b" not in text


def test_colours_change_no_letter(outcome: CheckOutcome) -> None:
    coloured = render("terminal", [outcome], colour=True)
    assert "\x1b[1;31m" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == render("terminal", [outcome])


def test_wide_letters_and_tabs_keep_the_carets_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text("if True:\n\tgrün = ops.add(x, y)\n")
    text = render(
        "terminal", [CheckOutcome("a", findings=(finding(source=SourceLine(str(tmp_path / "a.py"), 2, 9, 22)),))]
    )
    line, carets = text.splitlines()[-5:-3] if "^" in text.splitlines()[-4] else text.splitlines()[-4:-2]
    assert line[carets.index("^") :][: carets.count("^")] == "ops.add(x, y)"


def test_conditions_and_several_programs_are_summed_up(outcome: CheckOutcome) -> None:
    condition = Assumption("N % 3 == 0", "reshape", SourceLine("/nowhere.py", 3))
    right = CheckOutcome("b.py:f", "the forward pass", conditions=(condition,), suggestions=("N % 3 == 0",))
    text = render("terminal", [outcome, right, CheckOutcome("c.py", unusable=Unusable("no such file"))])
    assert "right only if (every run is held to it):\n  N % 3 == 0, needed by reshape at /nowhere.py:3" in text
    assert text.endswith("1 of 3 programs right, 1 with errors, 1 not checked\n")
    assert suggestion([right, right, CheckOutcome("d", suggestions=("A == B",))]) == 'where=["N % 3 == 0", "A == B"]'
    assert suggestion([CheckOutcome("d")]) == ""


def test_what_could_not_be_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text("import torchh\n")
    unusable = CheckOutcome(
        "a.py", unusable=Unusable("cannot be imported", SourceLine(str(tmp_path / "a.py"), 1, 1, 14))
    )
    assert render_unusable(unusable) == (
        "opstage: a.py: cannot be imported\n --> a.py:1:1\n  |\n1 | import torchh\n  | ^^^^^^^^^^^^^\n"
    )


def test_json_holds_all_of_it(outcome: CheckOutcome) -> None:
    document = json.loads(render("json", [outcome], 1))
    assert [document[name] for name in ("format", "version", "exit_code", "errors", "warnings")] == [
        "opstage check",
        1,
        1,
        1,
        0,
    ]
    (target,) = document["targets"]
    assert set(target) == {
        *("target", "what", "ok", "unusable", "findings", "conditions", "declarations", "suggestions", "inputs"),
        *("tied", "outputs", "ops", "parameters", "flops", "bytes", "sections", "printed", "suppressed"),
    }
    (found,) = target["findings"]
    assert set(found) == {
        *("rule", "severity", "op", "message", "region", "location", "operands", "bindings", "calls", "fix"),
        "constraint",
    }
    location = found["location"]
    assert (location["line"], location["column"], location["end_column"]) == (5, 12, 25)
    assert target["inputs"][0] == {"name": "params.w", "type": "(4, 3) float32"}


def test_json_can_be_read_back(outcome: CheckOutcome) -> None:
    full = CheckOutcome(
        "a.py:f",
        findings=(
            finding(
                calls=(SourceLine("/a.py", 1),), fix="mend it", severity="warning", region="blocks.0", constraint="N==1"
            ),
        ),
        conditions=(Assumption("N == 1", "add", None, reason="they differ"),),
        printed="hello",
        unusable=Unusable("no"),
    )
    for each in (outcome, full):
        assert from_document(json.loads(json.dumps(to_document(each)))) == each


def test_github_gets_one_command_for_each(outcome: CheckOutcome) -> None:
    condition = Assumption("N % 3 == 0", "reshape", SourceLine("/no,where.py", 3))
    unusable = CheckOutcome("c.py", unusable=Unusable("fails: 100 %\nhere"))
    lines = render("github", [outcome, CheckOutcome("b.py:f", conditions=(condition,)), unusable]).splitlines()
    assert len(lines) == 3
    assert lines[0].startswith(
        "::error file=mine.py,line=5,endLine=5,col=12,endColumn=25,title=opstage%3A shape::add: x is (B, 4) but y is"
    )
    assert "%0A" in lines[0] and "\n" not in lines[0]
    assert lines[1] == (
        "::notice file=/no%2Cwhere.py,line=3,endLine=3,title=opstage%3A undecided::"
        "b.py:f is right only if N %25 3 == 0; every run is held to it"
    )
    assert lines[2] == "::error title=opstage%3A not checked::c.py: fails: 100 %25%0Ahere"


def test_sarif_has_what_the_standard_requires(outcome: CheckOutcome) -> None:
    warned = CheckOutcome("b.py:f", findings=(finding(severity="warning", rule="a-lint", region="blocks.0"),))
    log = json.loads(render("sarif", [outcome, warned, CheckOutcome("c.py", unusable=Unusable("no such file"))], 2))
    assert log["version"] == "2.1.0" and log["$schema"].endswith("sarif-schema-2.1.0.json")
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "opstage" and driver["version"] == opstage.__version__
    rules = [rule["id"] for rule in driver["rules"]]
    assert len(set(rules)) == len(rules) and set(RULES) | {"a-lint"} == set(rules)
    assert all(rule["shortDescription"]["text"] for rule in driver["rules"])
    assert run["columnKind"] in ("utf16CodeUnits", "unicodeCodePoints")
    first, second = run["results"]
    for result in run["results"]:
        assert rules[result["ruleIndex"]] == result["ruleId"]
        assert result["level"] in ("none", "note", "warning", "error") and result["message"]["text"]
    region = first["locations"][0]["physicalLocation"]["region"]
    assert (region["startLine"], region["startColumn"], region["endColumn"]) == (5, 12, 25)
    assert first["locations"][0]["physicalLocation"]["artifactLocation"] == {"uri": "mine.py", "uriBaseId": "SRCROOT"}
    assert run["originalUriBaseIds"]["SRCROOT"]["uri"].startswith("file:///")
    assert run["originalUriBaseIds"]["SRCROOT"]["uri"].endswith("/")
    assert second["locations"][0]["logicalLocations"][0]["fullyQualifiedName"] == "blocks.0"
    (invocation,) = run["invocations"]
    assert (invocation["executionSuccessful"], invocation["exitCode"]) == (False, 2)
    assert invocation["toolExecutionNotifications"][0]["message"]["text"] == "c.py: no such file"


def test_nothing_is_a_text_in_every_format() -> None:
    texts = {form: render(form, []) for form in FORMATS}
    assert json.loads(texts["json"])["targets"] == [] and json.loads(texts["sarif"])["runs"][0]["results"] == []
