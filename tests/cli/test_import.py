"""`opstage import`: an ONNX file as a model of one's own, checked, trained and asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Command, assert_alone


def test_the_source_is_checked_drawn_and_trained(opstage: Command, net: str, tmp_path: Path) -> None:
    """Its run goes on without it: it keeps a copy, with the weights that it began from."""
    code, out, err = opstage("import", net, "--out", "mine.py", "--loss", "cross_entropy")
    assert code == 0 and out.startswith("wrote mine.py, "), err
    code, out, err = opstage("check", "mine.py")
    assert code == 0 and out.startswith("ok: mine.py, one training step:"), out + err
    assert opstage("graph", "mine.py", "-o", "mine.html")[0] == 0
    words = ("--data.file", "rows.csv", "--data.label", "kind", "--epochs", "2", "--batch-size", "16")
    code, out, err = opstage("train", "mine.py", *words, "--run.out", "run")
    assert code == 0, err
    assert_alone(opstage, tmp_path.glob("mine.*"))


def test_files_that_are_there_stay(opstage: Command, net: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("mine")
    code, _, err = opstage("import", net, "--out", "mine.py")
    assert code == 2 and "mine.py is there already" in err and (tmp_path / "mine.py").read_text() == "mine"
    assert opstage("import", net, "--out", "mine.py", "--force")[0] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("gone.onnx", "--out", "mine.py"), "cannot be read"),
        (("rows.csv", "--out", "mine.py"), "not an ONNX model"),
        (("net.onnx", "--out", "mine.txt"), "expected the name of a Python module"),
        (("net.onnx", "--out", "mine.py", "--fixed", "x"), "is not a name and its value"),
        (("net.onnx", "--out", "mine.py", "--output", "logit", "--loss", "mse"), "no output is called 'logit'"),
        (("net.onnx",), "--out"),
    ],
)
def test_bad_words_are_one_error(
    opstage: Command, net: str, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    code, _, err = opstage("import", *words)
    assert code == 2 and message in err and "Traceback" not in err
    assert not (tmp_path / "mine.py").exists()
