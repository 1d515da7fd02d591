"""Imported ONNX models, compiled, against onnxruntime: both in one process, in turn, so that a ratio is of one moment.

ResNet-50 and BERT-base in shape, with weights drawn at random, and the networks of the extra `networks`, where they are
installed. A figure is the median over rounds of onnxruntime's time over ours, and their spread; above 1 ours is faster.
Then what loading and checking a model of 100 MB takes. Variables that pin libraries (OPENBLAS_* and the like) are to be
cleared before: `env -u OPENBLAS_CORETYPE python -m benchmarks inference`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.choices import names_of, positive
from benchmarks.onnx_networks import bert_base, many_weights, resnet50


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--networks", type=names_of(NETWORKS), default=list(NETWORKS), metavar="A,B")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32], metavar="N")
    parser.add_argument("--rounds", type=positive(int), default=5, metavar="N", help="of both in turn (5)")
    parser.add_argument("--seconds", type=positive(float), default=1.0, metavar="S", help="of each in a round (1)")
    parser.add_argument("--threads", type=positive(int), default=2, metavar="N", help="of onnxruntime (2)")


def main(given: argparse.Namespace) -> None:
    print(f"{'network':<14}{'batch':>6}{'runtime':>12}{'ours':>12}{'ratio':>8}  {'of rounds':<14}{'difference':>10}")
    for name in given.networks:
        source = NETWORKS[name]()
        if source is None:
            print(f"{name:<14} is not installed: pip install --no-deps 'opstage[networks]' names it")
            continue
        for batch in given.batches:
            print(_line(name, batch, *source, given), flush=True)
    print(_loading())


def _line(name: str, batch: int, source: Any, inputs: Any, options: Any, given: argparse.Namespace) -> str:
    x = inputs(batch)
    theirs, ours = _runtime(source, options, given.threads), _compiled(source, options)
    expected, found = theirs(x), ours(x)
    difference = max(float(np.max(np.abs(a - b)) / np.max(np.abs(a))) for a, b in zip(expected, found))
    ratios, times = [], ([], [])  # type: ignore[var-annotated]
    for _ in range(given.rounds):
        round_ = [median_time(lambda run=run: run(x), given.seconds) for run in (theirs, ours)]  # type: ignore[misc]
        ratios.append(round_[0] / round_[1])
        for kept, taken in zip(times, round_):
            kept.append(1e3 * taken)
    a, b = (statistics.median(each) for each in times)
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
    figures = f"{a:>9.2f} ms{b:>9.2f} ms{statistics.median(ratios):>8.2f}"
    return f"{name:<14}{batch:>6}{figures}  {spread:<14}{difference:>10.1e}"


def median_time(run: Callable[[], Any], seconds: float) -> float:
    """The median time of calls, those of so many seconds, at least three, after one that nobody counts."""
    run()
    taken: list[float] = []
    stop = time.perf_counter() + seconds
    while time.perf_counter() < stop or len(taken) < 3:
        begin = time.perf_counter()
        run()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def _runtime(source: Any, options: Any, threads: int) -> Callable[[Any], Any]:
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads, settings.log_severity_level = threads, 3
    settings.add_session_config_entry("session.intra_op.allow_spinning", "1")
    settings.add_session_config_entry("session.force_spinning_stop", "1")  # not into the other one's turn
    session = onnxruntime.InferenceSession(source, settings, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    fixed = options.get("fixed", {})

    def run(x: Any) -> Any:
        free = iter(x)
        return session.run(None, {name: fixed[name] if name in fixed else next(free) for name in names})

    return run


def _compiled(source: Any, options: Any) -> Callable[[Any], Any]:
    import opstage
    import opstage.onnx

    model = opstage.onnx.load(source, **options)
    compiled = opstage.Options(backend="compiled")
    return lambda x: list(opstage.run(model, model.params, *x, options=compiled).values())


def _loading() -> str:
    import opstage.onnx

    data = many_weights()
    began = time.perf_counter()
    model = opstage.onnx.load(data)
    loaded = time.perf_counter()
    model.check()
    checked = time.perf_counter()
    return f"a model of {len(data) / 1e6:.0f} MB: loaded in {loaded - began:.2f} s, checked in {checked - loaded:.2f} s"


def _wheel(name: str, ending: str) -> str | None:
    try:
        found = [each for each in files(name) or () if str(each).endswith(ending)]
    except PackageNotFoundError:
        return None
    return str(Path(str(found[0].locate()))) if found else None


def _images(batch: int) -> Any:
    return (np.random.default_rng(1).standard_normal((batch, 3, 224, 224)).astype(np.float32),)


def _tokens(batch: int) -> Any:
    return (np.random.default_rng(1).integers(0, 30522, (batch, 128)),)


def _silero() -> Any:
    path = _wheel("silero-vad", "silero_vad_16k_op15.onnx")
    where = ["sequence >= 192", "sequence <= 703"]

    def inputs(batch: int) -> Any:
        x = 0.1 * np.random.default_rng(1).standard_normal((batch, 576)).astype(np.float32)
        return x, np.zeros((2, batch, 128), np.float32)

    return path and (path, inputs, {"fixed": {"sr": np.array(16_000)}, "where": where})


def _magika() -> Any:
    path = _wheel("magika", "model.onnx")
    inputs = lambda batch: (np.random.default_rng(1).integers(0, 257, (batch, 2048)).astype(np.int32),)  # noqa: E731
    return path and (path, inputs, {"where": ["unk__214 <= 1000000000"]})


NETWORKS: dict[str, Callable[[], Any]] = {
    "resnet50": lambda: (resnet50(), _images, {}),
    "bert-base": lambda: (bert_base(), _tokens, {}),
    "silero-vad": _silero,
    "magika": _magika,
}
