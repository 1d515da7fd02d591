"""Files in installed wheels, found without importing what is in them; and what is measured against them."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

import opstage
from opstage import Options
from opstage.interop.onnx.export import model_of
from opstage.onnx import OnnxModel

TOLERANCE = 1e-5
"""Of the largest value of an output; and 1e-7, which is how exact onnxruntime's sigmoid is where it is small."""


def file_in(wheel: str, ending: str) -> Path:
    """The one file of an installed wheel whose path ends so."""
    try:
        found = [each for each in files(wheel) or () if str(each).endswith(ending)]
    except PackageNotFoundError:
        raise RuntimeError(f"the wheel {wheel} is not installed; `make networks` does that") from None
    (file,) = found
    return Path(str(file.locate()))


class Runtime:
    """A model in onnxruntime."""

    def __init__(self, source: Path | bytes):
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        data = source if isinstance(source, bytes) else str(source)
        self.session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])

    def __call__(self, **inputs: Any) -> list[Any]:
        return list(self.session.run(None, inputs))


def values(model: OnnxModel, params: Any, *inputs: Any, backend: str) -> list[Any]:
    """The outputs of an imported model."""
    return list(opstage.run(model, params, *inputs, options=Options(backend=backend)).values())


def require_close(found: list[Any], expected: list[Any], tolerance: float = TOLERANCE) -> None:
    """Raise AssertionError where outputs differ by more than that of the largest value."""
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected):
        assert mine.shape == theirs.shape
        difference, largest = np.max(np.abs(mine - theirs)), np.max(np.abs(theirs))
        assert difference <= tolerance * largest + 1e-7, f"{difference:.2g} of {largest:.2g}"


def exported(model: OnnxModel, params: Any) -> Runtime:
    """The model, written to ONNX by Opstage for every size, in onnxruntime."""
    graph = opstage.record(model, params, *model.batch)
    return Runtime(model_of(graph, {"params": params}).SerializeToString())


def fine_tuned(loss: Any, params: Any, specs: Any, data: Any, *, rate: float, steps: int) -> tuple[Any, list[float]]:
    """(arrays of the parameters, losses) after steps of Adam on one batch."""
    trainer = opstage.scalar_trainer(loss, params, *specs, options=Options(backend="compiled"))
    optimizer = opstage.optim.adam(lr=rate)
    state = trainer.init_optim(optimizer)
    losses = [float(trainer.advance(optimizer, state, *data).loss) for _ in range(steps)]
    return {name: getattr(param, "value", param) for name, param in trainer.params.items()}, losses
