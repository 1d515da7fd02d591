"""Every way into Opstage from outside: what it is given, and how that is changed."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from . import corpus, onnx_models, reading
from .containers import gzipped, mutate_graph_file, mutate_npy, mutate_safetensors, mutate_signed, mutate_zip
from .limits import Wrong, run_cases
from .mutations import Mutate, mutate_bytes, mutate_json, mutate_text
from .onnx_messages import mutate_model

Files: TypeAlias = "dict[str, bytes]"

LARGEST = 2**21
"""The longest file of a case, in bytes."""


class Reader(NamedTuple):
    """A way into Opstage.

    seeds     valid inputs: files by name; a folder of several is read, or the one; a text has the name ""
    mutate    a mutation for each file, by what its name ends with; files without one stay as they are
    read      what is to be tried, of a path or a text
    share     how many cases it gets, beside the others
    named     whether errors begin with the path; else the caller puts it before them
    """

    name: str
    seeds: Callable[[], Sequence[Files]]
    mutate: Mapping[str, Mutate]
    read: Callable[[Any], Any]
    share: int
    named: bool = True

    def case(self, seed: int, number: int, folder: Path) -> tuple[Callable[[], Any], int, str]:
        """What `limits.judge` takes, of a case by its number."""
        files = self.mutated(seed, number)
        if list(files) == [""]:
            text = files[""].decode("utf-8", "surrogateescape")
            return lambda: self.read(text), len(text), ""
        for name, data in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
        target = folder if len(files) > 1 else folder / next(iter(files))
        return lambda: self.read(target), sum(map(len, files.values())), str(target) if self.named else ""

    def mutated(self, seed: int, number: int) -> Files:
        """The files of a case."""
        rng = random.Random(f"{seed} {self.name} {number}")
        files = dict(rng.choice(_seeds(self.name)))
        name = rng.choice([name for name in files if any(name.endswith(end) for end in self.mutate)])
        mutate = next(change for end, change in self.mutate.items() if name.endswith(end))
        files[name] = mutate(rng, files[name])[:LARGEST]
        return files


@cache
def _seeds(name: str) -> Sequence[Files]:
    return BY_NAME[name].seeds()


def _files(name: str, made: Callable[[], Sequence[bytes]]) -> Callable[[], list[Files]]:
    return lambda: [{name: data} for data in made()]


def _drawn(name: str, made: Callable[[], Sequence[bytes]]) -> Callable[[], list[Files]]:
    def seeds() -> list[Files]:
        reading.draw_all()
        return [{name: data} for data in made()]

    return seeds


def _checkpoints() -> list[Files]:
    files = corpus.run_directory()
    names = sorted(name for name in files if name.startswith("checkpoint/"))
    return [{name.removeprefix("checkpoint/"): files[name] for name in names}]


NPZ = {".npz": mutate_zip(mutate_npy, corpus.npy())}
TEXT = {"": mutate_text}
TENSORS = {"": mutate_safetensors}
CHECKPOINT = {".json": mutate_signed, ".safetensors": mutate_safetensors}
RUN = {"checkpoint.json": mutate_signed, ".json": mutate_json, ".toml": mutate_text, ".jsonl": mutate_text}
WEIGHTS = _files("w.safetensors", corpus.safetensors)

READERS: tuple[Reader, ...] = (
    Reader("npy", _files("x.npy", corpus.npy), {".npy": mutate_npy}, reading.npy_, 90),
    Reader("npz", _files("d.npz", corpus.npz), NPZ, reading.npz, 110),
    Reader("npz headers", _files("d.npz", corpus.npz), NPZ, reading.npz_headers, 40),
    Reader("csv", _files("d.csv", corpus.csv), TEXT, reading.csv_, 50),
    Reader("csv of classes", _files("d.csv", corpus.named_csv), TEXT, reading.csv_, 20),
    Reader("csv of categories", _files("d.csv", corpus.category_csv), TEXT, reading.categories, 20),
    Reader("csv, separated", _files("d.csv", corpus.separated_csv), TEXT, reading.csv_, 20),
    Reader("parquet", _files("d.parquet", corpus.parquet), {"": mutate_bytes}, reading.parquet, 30),
    Reader("image", _files("i.png", corpus.images), {"": mutate_bytes}, reading.image, 30),
    Reader("preparation", _files("p.json", corpus.preparation), {"": mutate_json}, reading.preparation, 20),
    Reader("idx", _files("images-idx3", lambda: corpus.idx()[:2]), {"": mutate_bytes}, reading.idx_, 40),
    Reader(
        "idx, gzipped", _files("images-idx3", lambda: corpus.idx()[2:]), {"": gzipped(mutate_bytes)}, reading.idx_, 40
    ),
    Reader("text", _files("t.txt", lambda: [b"some text\nof two lines\n"]), TEXT, reading.text, 10),
    Reader("safetensors", WEIGHTS, TENSORS, reading.safetensors_, 70),
    Reader("safetensors header", WEIGHTS, TENSORS, reading.safetensors_header, 50),
    Reader("safetensors, mapped", WEIGHTS, TENSORS, reading.mapped, 30),
    Reader("weights in several files", lambda: [corpus.sharded()], {".json": mutate_json}, reading.sharded, 30),
    Reader("import", WEIGHTS, TENSORS, reading.imported, 20, named=False),
    Reader("gpt", lambda: [corpus.gpt_weights()], TENSORS, reading.generated, 10, named=False),
    Reader("checkpoint", _checkpoints, CHECKPOINT, reading.checkpoint_, 50),
    Reader("checkpoint used", _checkpoints, {".json": mutate_signed}, reading.checkpoint_used, 20, named=False),
    Reader("run directory", lambda: [corpus.run_directory()], RUN, reading.run_directory, 20),
    Reader("resumed run", lambda: [corpus.run_directory()], RUN, reading.resumed, 10, named=False),
    Reader("graph text", _drawn("", corpus.graph_texts), TEXT, reading.graph_text, 90),
    Reader("graph explained", _drawn("", lambda: corpus.graph_texts()[1:3]), TEXT, reading.graph_explained, 5),
    Reader("graph file", _drawn("g.graph", corpus.graph_files), {"": mutate_graph_file}, reading.graph_file, 50),
    Reader("onnx", onnx_models.networks, {".onnx": mutate_model}, reading.onnx_model, 130, named=False),
    Reader("onnx operators", onnx_models.operators, {".onnx": mutate_model}, reading.onnx_model, 130, named=False),
)

BY_NAME = {reader.name: reader for reader in READERS}


def sweep(reader: Reader, seed: int, cases: int) -> list[Wrong]:
    """The first cases of a reader that go wrong, of so many."""
    folder = Path(tempfile.mkdtemp(prefix="opstage-fuzz-"))
    try:
        reader.mutated(seed, 0)  # valid inputs are made here, once, and not in every fork
        return run_cases(lambda number: reader.case(seed, number, folder), range(cases))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
