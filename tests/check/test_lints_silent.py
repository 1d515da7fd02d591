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


def test_the_guide_has_every_lint_and_its_words() -> None:
    guide = (DOCS / "guide" / "checking-shapes.md").read_text()
    rows = re.findall(r"^\| `([\w-]+)` \| (error|warning) \| (.+) \|$", guide, re.MULTILINE)
    assert rows == [(lint.rule, lint.severity, lint.about) for lint in LINTS]


def test_the_guide_has_every_rule_and_its_words() -> None:
    guide = (DOCS / "guide" / "checking-in-ci.md").read_text()
    table = guide.partition("| rule | finds |")[2].partition("\n\n")[0]
    assert dict(re.findall(r"^\| `([\w-]+)` \| (.+) \|$", table, re.MULTILINE)) == RULES


def test_every_lint_is_a_rule() -> None:
    assert {lint.rule: lint.about for lint in LINTS}.items() <= RULES.items()
    assert len({lint.rule for lint in LINTS}) == len(LINTS)
