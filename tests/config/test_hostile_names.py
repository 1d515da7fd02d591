"""Names that come from files or programs: shown as they are, never obeyed as markup or by a terminal."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

import opstage
from opstage.cli.train import Voice
from opstage.interpreters.shape_check.cost_table import for_terminal, plain
from opstage.interpreters.shape_check.formats import FORMATS, render
from opstage.interpreters.shape_check.formats.document import CheckOutcome
from opstage.runs.progress import Bar
from opstage.training.fit import EpochResult

ESCAPES = "\x1b]0;title\x07\x1b[31m\x9b2J"
NAMES = [
    ESCAPES,
    "[red]x[/red]",
    "[/]",
    "a\n::error file=x::injected",
    "a\r::warning::b",
    "x%0Ay",
    "\u202etxt",
    "$\\frac$",
]


def program(name: str) -> Any:
    def loss(ops: Any, p: Any, x: Any) -> Any:
        return ops.reduce_sum(ops.region(name, lambda ops, w, x: ops.matmul(x, w), p[name], x))

    return loss


def harmless(text: str, *, coloured: bool = False) -> bool:
    controls = set(text) & {"\x1b", "\x07", "\x9b", "\r", "\u202e"}
    return not controls if not coloured else not controls - {"\x1b"} and "\x1b]" not in text and "[2J" not in text


@pytest.mark.parametrize("name", NAMES, ids=ascii)
@pytest.mark.parametrize("form", [*FORMATS, "coloured"])
@pytest.mark.parametrize("good", [True, False])
def test_the_check_shows_names_as_they_are(name: str, form: str, good: bool) -> None:
    shapes = opstage.Spec("3 4"), opstage.Spec("2 3" if good else "2 5")
    try:
        report = opstage.check(program(name), {name: shapes[0]}, shapes[1])
    except opstage.OpstageError as error:  # such a name may be refused, in words that are harmless
        assert harmless(str(error))
        return
    text = render(
        "terminal" if form == "coloured" else form, [CheckOutcome.of(report, name, name)], colour=form == "coloured"
    )
    assert harmless(text, coloured=form == "coloured")
    if form == "github":
        assert all(line.startswith(("::error ", "::notice ", "::warning ")) for line in text.splitlines())
        assert "\n::error file=x" not in text
    for shown in (plain(report.table), for_terminal(report.table, 100)):
        assert harmless(shown, coloured=True)


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_progress_shows_names_as_they_are(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    Voice(None).say(f"epoch {name}")
    assert harmless(capsys.readouterr().out)
    screen = io.StringIO()
    result = EpochResult(epoch=0, train_loss=1.0, held_out={name: 1.0}, seconds=1.0, samples=2)
    with Bar(2, 0, 4, console=Console(file=screen, width=300, force_terminal=False)) as bar:
        bar.epoch(result)
        bar.step(0, 1, 1.0, 2)
    assert harmless(screen.getvalue())


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_errors_show_names_as_they_are(name: str) -> None:
    with pytest.raises(opstage.OpstageError) as caught:
        opstage.run(program(name), {name: np.ones((3, 4))}, np.ones((2, 5)))
    assert harmless(str(caught.value))
