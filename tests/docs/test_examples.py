"""Every program in examples/ runs and prints what it is there to show."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, run_python

EXAMPLES = ROOT / "examples"
SHOWN = {
    "quickstart.py": r"held-out accuracy 9[5-9]\.\d %",
    "hessian_vector_product.py": r"minimum at \[1\. 1\. 1\. 1\. 1\. 1\.\]\nreverse over reverse agrees: True",
    "llama.py": r"held-out loss [12]\.\d\d nats a byte\n(?s:.{10,})",
    "bert.py": r"for x in\ndef f\(x\)\nimport x\nreturn x",
    "certified.py": r"accuracy 9[5-9]\.\d %\n.* interval bounds: [78]\d\.\d %\n.* crown bounds: 8\d\.\d %",
    "session.py": r"accuracy (9[7-9]\.\d|100\.0) %(?s:.*)ProgramError: this ref was made before reset_tape\(\)",
}


def test_every_example_is_run() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SHOWN)


LONG = ("llama.py",)
"""Those that take seconds, and whose parts have tests of their own."""


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n in LONG else ()) for n in SHOWN])
def test_example(name: str, tmp_path: Path) -> None:
    assert re.search(SHOWN[name], run_python(str(EXAMPLES / name), cwd=tmp_path, path=[ROOT]))
