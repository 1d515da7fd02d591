"""The command as a person at a terminal sees it: words in, exit code and two streams out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

from opstage.cli.main import main

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def opstage(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Command:
    """Run the command in an empty directory; its exit code, output and error output."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("caches")))

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["opstage", *words])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        assert isinstance(end.value.code, int)
        return end.value.code, out, err

    return run


def refusal(result: tuple[int, str, str]) -> str:
    """The one line of a refusal: exit code 2, no traceback, nothing else."""
    code, out, err = result
    assert code == 2, (code, out, err)
    assert "Traceback" not in err
    assert err.startswith("opstage: ") and err.endswith("\n") and err.count("\n") == 1, err
    return err.removeprefix("opstage: ").rstrip("\n")


def assert_alone(opstage: Command, files: Iterable[Path]) -> None:
    """That the run of a model's files goes on without them, on the rows of `net`."""
    for each in files:
        each.unlink()
    code, out, err = opstage("evaluate", "run")
    assert code == 0 and "accuracy" in out, err
    code, _, err = opstage("predict", "run", "--data", "rows.csv", "--out", "p.csv")
    assert code == 0 and len(Path("p.csv").read_text().splitlines()) == 121, err


@pytest.fixture
def net(tmp_path: Path) -> str:
    """A classifier in ONNX, and a table of rows with labels beside it."""
    import onnx  # which most commands do without

    from tests.interop.onnx.models import classifier

    onnx.save(classifier(), tmp_path / "net.onnx")
    rng = np.random.default_rng(0)
    rows = ["a,b,c,d,kind"]
    for _ in range(120):
        x = rng.standard_normal(4)
        rows.append(",".join([*map(str, x), ("red", "green", "blue")[int((x[0] > 0) + (x[1] > 0))]]))
    (tmp_path / "rows.csv").write_text("\n".join(rows))
    return "net.onnx"
