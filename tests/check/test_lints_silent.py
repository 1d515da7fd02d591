"""The lints have nothing to say of the shipped models, and the documents and formats know every rule."""

from __future__ import annotations

import re

import pytest

import opstage
from opstage.interpreters.shape_check.rules import LINTS, RULES
from opstage.models import MODELS, model
from opstage.training.validate import check_step
from tests.docs.blocks import DOCS


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_shipped_model_trains_without_a_finding(name: str) -> None:
    shipped = model(name)
    assert check_step(shipped.loss, shipped.init, *shipped.batch, state=shipped.state).findings == ()


@pytest.mark.parametrize("train", [False, True], ids=["evaluated", "trained"])
@pytest.mark.parametrize("name", sorted(MODELS))
def test_its_programs_alone_neither(name: str, train: bool) -> None:
    shipped = model(name)
    state = () if shipped.state is None else (shipped.state,)
    for program in (shipped.loss, shipped.metrics):
        assert opstage.check(program, shipped.init, *state, *shipped.batch, train=train).findings == ()


GUIDE = (DOCS / "guide" / "check-reference.md").read_text()
_ROW = re.compile(r"^\| `([\w-]+)` \| (?:(error|warning) \| )?([A-Z`].+) \|$", re.MULTILINE)
RULE_ROWS = _ROW.findall(GUIDE.partition("\n## Rules\n")[2].partition("\n## ")[0])


def test_the_guide_has_every_lint_and_its_words() -> None:
    rows = [(rule, severity, about) for rule, severity, about in RULE_ROWS if severity]
    assert rows == [(lint.rule, lint.severity, lint.about) for lint in LINTS]


def test_the_guide_has_every_rule_and_its_words() -> None:
    assert {rule: about for rule, _, about in RULE_ROWS} == RULES
    assert len(RULE_ROWS) == len(RULES)


def test_every_lint_is_a_rule() -> None:
    assert {lint.rule: lint.about for lint in LINTS}.items() <= RULES.items()
    assert len({lint.rule for lint in LINTS}) == len(LINTS)
