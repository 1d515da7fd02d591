"""Networks of other exporters: a detector by PyTorch, an audio network by tf2onnx, recurrent and quantised ones."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest

import opstage
import opstage.onnx
from opstage import Options
from opstage.ops.errors import ShapeError

from .test_silero import speech
from .wheels import TOLERANCE, Runtime, file_in, require_close

RNG = np.random.default_rng(0)


class Net(NamedTuple):
    """A file of a wheel, the constraints that its sizes need, and inputs of two sizes.

    tolerance  of the largest value; greater for logarithms of sums near 0, of which float32 knows little: onnxruntime
               is as far from the numbers of float64
    """

    wheel: str
    ending: str
    where: tuple[str, ...]
    inputs: tuple[tuple[Any, ...], ...]
    tolerance: float = TOLERANCE


def image(rows: int, height: int, width: int) -> Any:
    return RNG.random((rows, 3, height, width), np.float32)


def sounds(rows: int, length: int) -> Any:
    return np.stack([speech(length / 16_000 + 0.1, seed)[:length] for seed in range(rows)])


NETS = {
    "YOLOv8": Net("nudenet", "320n.onnx", ("height % 32 == 0", "width % 32 == 0"),
                  ((image(1, 320, 320),), (image(2, 64, 96),))),
    "basic-pitch": Net("basic-pitch", "icassp_2022/nmp.onnx", (),
                       ((sounds(1, 43844)[..., None],), (sounds(3, 43844)[..., None],))),
    "DNSMOS": Net("speechmos", "dnsmos_models/model_v8.onnx", (),
                  tuple((RNG.random((n, 900, 120), np.float32),) for n in (1, 2))),
    "PLCMOS, bidirectional GRU": Net("speechmos", "plcmos_models/plcmos_v2.onnx", ("frames >= 30",), tuple(
        (RNG.random((n, 1, frames, 257), np.float32), RNG.random((n, 64), np.float32))
        for n, frames in ((1, 40), (2, 61)))),
    "NeMo's features": Net("onnx-asr", "data/nemo80.onnx", (), (
        (sounds(1, 4000), np.array([4000])), (sounds(2, 7001), np.array([7001, 3000]))), 1e-3),
    "Kaldi's features": Net("onnx-asr", "data/kaldi.onnx", ("N >= 1000",), (
        (sounds(1, 4000), np.array([4000])), (sounds(2, 7001), np.array([7001, 3000]))), 1e-4),
}  # fmt: skip


@cache
def model(name: str) -> Any:
    net = NETS[name]
    return opstage.onnx.load(file_in(net.wheel, net.ending), where=net.where)


@pytest.mark.parametrize("name", NETS)
def test_its_sizes_are_proved_and_its_numbers_are_those_of_onnxruntime(name: str) -> None:
    loaded = model(name)
    report = loaded.check()
    assert report.ok, report
    session = Runtime(file_in(NETS[name].wheel, NETS[name].ending))
    names = [each.name for each in session.session.get_inputs()]
    for inputs in NETS[name].inputs:
        expected = session(**dict(zip(names, inputs)))
        for backend in ("eager", "compiled"):
            found = opstage.run(loaded, *loaded.trees, *inputs, options=Options(backend=backend))
            outputs = found if loaded.state is None else found[0]
            require_close(list(outputs.values()), expected, NETS[name].tolerance)


def test_a_size_that_the_file_fixes_is_no_other() -> None:
    loaded = model("DNSMOS")
    with pytest.raises(ShapeError, match="axis 1 must have 900"):
        opstage.run(loaded, *loaded.trees, RNG.random((1, 901, 120), np.float32))
