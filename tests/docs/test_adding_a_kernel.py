"""docs/adding-a-kernel.md, done literally after docs/adding-an-op.md: the copy's samples of the op run on a device."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.docs.blocks import DOCS, ROOT, blocks, run_python
from tests.docs.test_adding_an_op import COPIED, DOCUMENT, put


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("kernel")
    for folder in (*COPIED, "tests/cuda"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("setup.cfg", "tests/__init__.py", "tests/conftest.py"):
        shutil.copy(ROOT / file, root / file)
    for document in (DOCUMENT, DOCS / "adding-a-kernel.md"):
        for block in blocks(document):
            if block.path:
                put(block, root)
    return root


def test_the_op_runs_on_a_device(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "1")
    chosen = "logit or every_core_op"
    words = ("-m", "pytest", "-v", "-p", "no:cacheprovider", "-k", chosen, "tests/cuda/test_conformance.py")
    output = run_python(*words, cwd=copy, path=[copy])
    for ran in (
        "test_values[logit-edges-eager]",
        "test_values[logit-edges-compiled]",
        "test_first_derivatives[logit-inside-eager]",
        "test_first_derivatives[logit-inside-compiled]",
        "test_bad_call[logit-integers-eager]",
        "test_bad_call[logit-integers-compiled]",
        "test_every_core_op_has_a_kernel",
    ):
        assert f"{ran} PASSED" in output, output


def test_the_kernel_that_is_written_out_computes_the_same(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "1")
    (written,) = [block.text for block in blocks(DOCS / "adding-a-kernel.md") if not block.path]
    head = (
        "import numpy as np\n"
        "from opstage.interpreters.gpu.counting import steps\n"
        "from opstage.interpreters.gpu.language import cuda, log\n"
        "ONE = np.float32(1)\n"
    )
    (copy / "written.py").write_text(head + written)
    program = (
        "import numpy as np, written\n"
        "from opstage.interpreters.gpu.device import find_device\n"
        "from opstage.ops.types import FLOAT32, TensorType\n"
        "device = find_device()\n"
        "x = np.linspace(0.1, 0.9, 100, dtype=np.float32).reshape(4, 25)\n"
        "(out,) = written.logit(device, (TensorType(x.shape, FLOAT32),), device.upload(x))\n"
        "np.testing.assert_allclose(device.download(out), np.log(x / (1 - x)), rtol=1e-6, atol=1e-6)\n"
    )
    run_python("-c", program, cwd=copy, path=[copy])
