"""Generate text with a trained gpt, byte by byte: sampling by temperature and `top_k`."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt

from ..api import run
from ..models import gpt as gpt
from ..ops.errors import UsageError
from ..ops.splitmix import draw_site, require_seed, stream_key, uniform_bits
from ..ops.trees import flatten, paths, unflatten
from ..options import Options, options_of
from ..safetensors_files import read_tensors
from ..training import checkpoint as checkpoint
from ..training.finite import NotFiniteError, first_not_finite
from ..training.snapshot import require_fit
from .directory import CHECKPOINT
from .settings import configure

_SITE = draw_site((("opstage.generate", 0),), 0)


@final
@dataclass(frozen=True)
class Sampling:
    """How the next byte is drawn from the logits z: with probability softmax(z/temperature), among the `top_k` most
    likely ones (None: all). Temperature 0 selects the most likely byte, the first of equals."""

    temperature: float = 0.8
    top_k: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise UsageError(f"temperature must be finite and at least 0 but is {self.temperature}")
        if self.top_k is not None and not 1 <= self.top_k <= gpt.BYTES:
            raise UsageError(f"top_k must be from 1 to {gpt.BYTES}, the number of bytes, but is {self.top_k}")
        require_seed(self.seed)

    def draw(self, logits: npt.NDArray[Any], position: int) -> int:
        """Return the byte at `position` of the text, a function of logits, seed and position only."""
        z = np.asarray(logits, np.float64)
        if first_not_finite(z) is not None:
            raise NotFiniteError(f"the logits of the byte at position {position} are not all finite")
        if self.temperature == 0:
            return int(np.argmax(z))
        order = np.argsort(-z, kind="stable")[: self.top_k]
        weights = np.exp((z[order] - z[order[0]]) / self.temperature)
        total = np.cumsum(weights)
        u = uniform_bits(stream_key(self.seed, position, _SITE), 1, np.float64)[0]
        return int(order[np.searchsorted(total, u * total[-1], side="right")])


def load_gpt(source: str | os.PathLike[str], config: gpt.Config | None = None) -> tuple[gpt.Config, Any]:
    """Return config and parameters from a run directory, or from a safetensors file of parameters by dotted path.

    A file has no config, so `config` or the default is used. Raises `UsageError` if weights are missing, or
    belong to another model or config.
    """
    path = Path(source)
    if path.is_dir():
        if not (path / "config.toml").is_file():
            raise UsageError(
                f"{path}: is not a run directory: config.toml is missing; create one with opstage train gpt --out"
            )
        settings = configure(file=path / "config.toml", environ={}).settings
        if settings.run.model != "gpt":
            raise UsageError(f"{path}: holds a run of {settings.run.model}; only gpt generates text")
        config = settings.model if config is None else config
        found: Mapping[str, Any] = checkpoint.load(path / CHECKPOINT).trainer.params
    else:
        config = gpt.Config() if config is None else config
        found = read_tensors(path)
    declared = gpt.init(config)
    leaves, structure = flatten(declared)
    names = paths(declared)
    dtypes = {name: found[name].dtype if name in found else np.dtype(np.float32) for name in names}
    require_fit(f"the weights in {path}", {n: (leaf.shape, dtypes[n]) for n, leaf in zip(names, leaves)}, found)
    for name in names:
        at = first_not_finite(found[name])
        if at is not None:
            raise UsageError(f"{path}: {name} is {found[name][at]} at index {at}; expected finite weights")
    return config, unflatten(structure, [found[name] for name in names])


def generate(
    config: gpt.Config, params: Any, prompt: bytes, length: int, sampling: Sampling, *, options: Options | None = None
) -> Iterator[int]:
    """Yield `length` bytes after `prompt`, one by one as they are drawn; each sees the last `config.length` bytes
    before it.

    The window has a fixed size, padded after the text, where the padding is masked, so that all steps have the same
    shapes. An empty prompt stands for a newline.
    """
    if length < 0:
        raise UsageError(f"length must be at least 0 but is {length}")
    options = options_of(options)
    program = partial(gpt.next_logits, config=config)
    text = bytearray(prompt or b"\n")
    start = len(text)
    window = np.zeros((1, config.length), np.int64)
    for position in range(start, start + length):
        recent = np.frombuffer(bytes(text[-config.length :]), np.uint8)
        window[0, : len(recent)] = recent
        logits = run(program, params, window, np.array([len(recent) - 1]), options=options)
        if not isinstance(logits, np.ndarray):
            raise UsageError(f"backend {options.backend!r} computes no values, so it cannot generate text; try 'eager'")
        text.append(sampling.draw(logits[0], position))
        yield text[-1]
