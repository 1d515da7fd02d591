"""`opstage train` reaches what is stated of its two classifiers, just as a user runs it: from one seed, and in
`make soak` from each of five."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from opstage.cli.main import main
from opstage.models import MODELS
from tests.searches import share


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("seed", range(share(5)))
@pytest.mark.parametrize("model", ["cnn", "mlp"])
def test_seeds_reach_the_stated_accuracy(
    model: str, seed: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert (MODELS[model].RECIPE.metric, MODELS[model].RECIPE.goal) == ("accuracy", 0.98)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["opstage", "train", model, "--seed", str(seed)])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0
    told = re.search(r"^held-out accuracy [\d.]+ % \((\d+) of 359\)", capsys.readouterr().out, re.MULTILINE)
    assert told is not None
    assert int(told[1]) / 359 >= 0.98
