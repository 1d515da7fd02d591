"""`python -m tests.docs.pictures`: the pictures of the guide's first page, made of what Opstage writes.

A run's report as Chromium shows it, the drawing of a graph, and a shape error on a terminal, in docs/pictures/.
"""

from __future__ import annotations

import re
import subprocess
import sys
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory

from opstage import Options, optim
from opstage.models import model
from opstage.runs import configure, train
from opstage.training.program_check import record_model
from tests.browser.test_report import looked_at

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"

MODEL = """import opstage


@opstage.shapes("x: B 64", "labels: B int64", "first: 64 32", "second: 64 10")
def loss(ops, x, labels, first, second):
    h = ops.relu(ops.matmul(x, first))
    return ops.cross_entropy(ops.matmul(h, second), labels)
"""

_STYLE = "text { font: 14px ui-monospace, monospace; fill: #e8eaed; white-space: pre; } .mark { fill: #ff8a80; }"


def terminal(text: str) -> str:
    """A text as a terminal shows it, as SVG; what underlines is red."""
    lines = text.rstrip().split("\n")
    width, height = 9 * max(map(len, lines)) + 40, 20 * len(lines) + 30
    rows = "".join(
        f'<text x="20" y="{32 + 20 * i}"{kind(line)} xml:space="preserve">{escape(line)}</text>'
        for i, line in enumerate(lines)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
        f'<style>{_STYLE}</style><rect width="100%" height="100%" rx="8" fill="#16191d"/>{rows}</svg>\n'
    )


def kind(line: str) -> str:
    """The class of a line."""
    return ' class="mark"' if re.search(r"\^|error", line) else ""


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "graph.svg").write_text(record_model(model("mlp"), Options(), optim.adamw(lr=1e-3)).to_svg())
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "model.py").write_text(MODEL)
        command = [sys.executable, "-c", "from opstage.cli import main; main()", "check", "model.py"]
        said = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert said.returncode == 1, said.stderr
        (FOLDER / "error.svg").write_text(terminal(f"$ opstage check model.py\n{said.stdout}"))
        run = {"epochs": 6, "log_every": 1, "plot": False, "out": str(folder / "run")}
        train(configure("cnn", values={"run": run}, environ={}))
        looked_at((folder / "run" / "report.html").read_text(), folder, width=1100, height=1000)
        (FOLDER / "report.png").write_bytes((folder / "shot.png").read_bytes())


if __name__ == "__main__":
    main()
