"""onnx's own cases as source: each that is loaded is written, read again, and gives the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options
from opstage.onnx.source import write_source
from opstage.ops.errors import UnsupportedError
from tests.interop.test_source import module_of, trees_of
from tests.onnx_nodes.cases import cases, loaded
from tests.onnx_nodes.reasons import reason

GROUPS = 16


def outputs(program: Any, trees: tuple[Any, ...], each: Any) -> list[Any]:
    result = opstage.run(program, *trees, *each.inputs, options=Options(dtype=each.dtype))
    return [np.asarray(x) for x in (result if len(trees) == 1 else result[0]).values()]


@pytest.mark.parametrize("group", range(GROUPS))
def test_sources_give_the_same_bits(group: int, tmp_path: Path) -> None:
    tried = 0
    for name in sorted(cases())[group::GROUPS]:
        try:
            found = loaded(cases()[name])
        except UnsupportedError:
            continue
        for each in found:
            model, path = each.model, tmp_path / f"case_{tried}.py"  # a name of its own: Python keeps bytecode by name
            try:
                write_source(model, path, force=True)
            except UnsupportedError as error:  # as it would be where the model is run
                assert reason(str(error)) is not None, str(error)
                continue
            module = module_of(path)
            theirs = trees_of(module)
            ours = model.trees
            for a, b in zip(outputs(model, ours, each), outputs(module.program, theirs, each), strict=True):
                assert a.dtype == b.dtype and a.tobytes() == b.tobytes(), name
            tried += 1
    assert tried > 60
