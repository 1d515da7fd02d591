"""docs/adding-an-interpreter.md, done literally: its files are installed as a package, and models run on it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.docs.blocks import DOCS, ROOT, blocks, outputs, run_python

DOCUMENT = DOCS / "adding-an-interpreter.md"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the document's package is installed, without a network."""
    folder = tmp_path_factory.mktemp("interpreter")
    for block in blocks(DOCUMENT):
        if block.path:
            (folder / block.path).parent.mkdir(exist_ok=True)
            (folder / block.path).write_text(block.text)
    offline = ["--no-index", "--no-build-isolation", "--no-deps", "--disable-pip-version-check"]
    run_python(
        "-m", "pip", "install", "--quiet", *offline, "--target", "site", "./opstage-counter", cwd=folder, path=[]
    )
    return folder / "site"


@pytest.mark.parametrize("script", outputs(DOCUMENT))
def test_script_prints_what_the_document_says(script: str, site: Path) -> None:
    assert run_python(script, cwd=site.parent, path=[site, ROOT]) == outputs(DOCUMENT)[script]


COMMAND = """
import json, sys
from opstage.cli import main
from opstage_counter import COUNTS
sys.argv = ["opstage", "train", "mlp", "--backend", "counter", "--epochs", "1", "--batch-size", "128"]
try:
    main()
except SystemExit as stop:
    assert stop.code == 0, stop.code
print(json.dumps(COUNTS))
"""


def test_command_line_trains_on_it(site: Path) -> None:
    *lines, counted = run_python("-c", COMMAND, cwd=site.parent, path=[site, ROOT]).splitlines()
    counts = json.loads(counted)
    assert any("backend counter" in line for line in lines)
    # 11 steps of 128 among 1,438 samples, each an update of 3 weights and 3 biases
    assert counts["adamw_update"] == 11 * 6
    # once a step, and once for each of the 2 batches of the 359 held-out samples, which count the loss as well
    assert counts["cross_entropy"] == 11 + 2


def test_unknown_backend_suggests_it(site: Path) -> None:
    script = (
        "import opstage\n"
        "try: opstage.run(lambda ops, x: x, 1.0, options=opstage.Options(backend='countr'))\n"
        "except opstage.UsageError as error: print(error)"
    )
    message = run_python("-c", script, cwd=site.parent, path=[site, ROOT])
    assert "did you mean 'counter'?" in message


def test_refused_device_is_said(site: Path) -> None:
    script = (
        "import opstage\n"
        "options = opstage.Options(backend='counter', device='cuda')\n"
        "try: opstage.run(lambda ops, x: x, 1.0, options=options)\n"
        "except opstage.UsageError as error: print(error)"
    )
    message = run_python("-c", script, cwd=site.parent, path=[site, ROOT])
    assert "device 'cuda' needs" in message
