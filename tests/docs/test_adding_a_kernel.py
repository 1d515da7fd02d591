"""docs/adding-a-kernel.md, done literally: the kernel that it writes out runs on a device."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.blocks import DOCS, ROOT, blocks, run_python


def test_the_kernel_that_is_written_out_computes_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "1")
    (written,) = [block.text for block in blocks(DOCS / "adding-a-kernel.md") if not block.path]
    head = (
        "import numpy as np\n"
        "from opstage.compiler.gpu.language import steps\n"
        "from opstage.compiler.gpu.language import cuda, log\n"
        "ONE = np.float32(1)\n"
    )
    (tmp_path / "written.py").write_text(head + written)
    program = (
        "import numpy as np, written\n"
        "from opstage.compiler.gpu.probe import find_device\n"
        "from opstage.ops.types import FLOAT32, TensorType\n"
        "device = find_device()\n"
        "x = np.linspace(0.1, 0.9, 100, dtype=np.float32).reshape(4, 25)\n"
        "(out,) = written.logit(device, (TensorType(x.shape, FLOAT32),), device.upload(x))\n"
        "np.testing.assert_allclose(device.download(out), np.log(x / (1 - x)), rtol=1e-6, atol=1e-6)\n"
    )
    run_python("-c", program, cwd=tmp_path, path=[tmp_path, ROOT])
