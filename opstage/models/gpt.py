"""A generative transformer over bytes: from the bytes so far, the distribution of the next one.

Radford et al., Language models are unsupervised multitask learners, 2019, without a tokenizer: the 256 bytes are the
vocabulary, so any file is a text.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from ..data import text as text_files
from ..init import Declaration, normal
from ..ops.derived import counted, dropout
from ..ops.protocol import Ops, R
from ..ops.spec import Spec
from .layers import Tree, layer_norm, norm_init
from .model import Model, Recipe, Split, of_programs
from .parallel import column_linear, cross_entropy, embedding
from .transformer_block import Block, block_init, transformer_block

BYTES = 256


@dataclass(frozen=True)
class Config:
    """At most `length` bytes of context; `depth` blocks of `width` numbers a position, `heads` heads and a hidden layer
    of `hidden` units. With `tie_weights` the table of bytes is the head's weight as well (Press and Wolf, Using the
    output embedding to improve language models, 2017)."""

    length: int = 128
    width: int = 128
    depth: int = 4
    heads: int = 4
    hidden: int = 512
    dropout: float = 0.0
    tie_weights: bool = False

    @property
    def block(self) -> Block:
        """Return the configuration shared by all blocks."""
        return Block(self.width, self.heads, self.hidden, causal=True, dropout=self.dropout)


def init(config: Config) -> Tree:
    """Return declarations of the parameters: `bytes` (256, width), `positions` (length, width), `blocks.0.norm1.gamma`,
    …, `norm.gamma`, `head.weight` (256, width), which has no bias and, with `tie_weights`, is not there."""
    head = {"head": {"weight": Declaration((BYTES, config.width), normal(std=0.02))}}
    return {
        "bytes": Declaration((BYTES, config.width), normal(std=0.02)),
        "positions": Declaration((config.length, config.width), normal(std=0.02)),
        "blocks": [block_init(config.block, depth=config.depth) for _ in range(config.depth)],
        "norm": norm_init(config.width),
        **({} if config.tie_weights else head),
    }


def logits(ops: Ops[R], params: Tree, x: R, *, config: Config, train: bool = False) -> R:
    """Map bytes (B, T), T at most `config.length`, to logits (B, T, 256) of the byte after each position."""
    return _head(ops, params, _trunk(ops, params, x, config, train), config)


def next_logits(ops: Ops[R], params: Tree, x: R, last: R, *, config: Config) -> R:
    """Map bytes (B, T) and the position of each text's last byte (B,) to (B, 256): the logits of the byte
    after it.

    What is behind that position is not seen, so texts can be filled up to one length.
    """
    h = _trunk(ops, params, x, config, False)
    length = ops.full(shape=last.shape, value=x.shape[1], dtype=last.dtype)
    rows = ops.add(last, ops.mul(length, ops.iota(shape=last.shape, dtype=last.dtype)))
    return _head(ops, params, ops.gather_rows(ops.flatten(h, end=1), rows), config)


def _trunk(ops: Ops[R], params: Tree, x: R, config: Config, train: bool) -> R:
    """(B, T) -> (B, T, width), everything except the head."""
    h: R = ops.region("embed", _embed, params["bytes"], params["positions"], x)
    h = dropout(ops, h, p=config.dropout, train=train)
    for i, block in enumerate(params["blocks"]):
        h = ops.region(f"blocks.{i}", transformer_block, block, h, config.block, train)
    return h


def _head(ops: Ops[R], params: Tree, h: R, config: Config) -> R:
    h = ops.region("norm", layer_norm, params["norm"], h)
    weight = params["bytes"] if config.tie_weights else params["head"]["weight"]
    out: R = ops.region("head", _unembed, weight, h)
    return out


def _unembed(ops: Ops[R], weight: R, h: R) -> R:
    return column_linear(ops, weight, None, h)


def _embed(ops: Ops[R], table: R, positions: R, x: R) -> R:
    """(B, T) -> (B, T, width): the embedding of each byte plus that of its position."""
    h = embedding(ops, table, x)
    where = ops.slice(positions, axis=0, start=0, length=x.shape[1])
    return ops.add(h, ops.broadcast_to(where, shape=h.shape))


def _flat(ops: Ops[R], out: R, y: R) -> tuple[R, R]:
    """Return logits and labels with all positions of all texts on one axis."""
    return ops.flatten(out, end=1), ops.flatten(y)


def loss(ops: Ops[R], params: Tree, x: R, y: R, *, config: Config, train: bool = False) -> R:
    """Mean cross-entropy, in nats a byte. The ranks of mesh axis `model` shard heads, hidden units and bytes."""
    return cross_entropy(ops, *_flat(ops, logits(ops, params, x, config=config, train=train), y), BYTES)


def metrics(ops: Ops[R], params: Tree, x: R, y: R, *, config: Config) -> dict[str, R]:
    """`loss` in nats, `bits_per_byte` = loss/log 2; every byte counts, also at the start of a window, except
    labels of -100, which cross_entropy ignores."""
    nats = ops.cross_entropy(*_flat(ops, logits(ops, params, x, config=config), y), reduction="sum")
    count = ops.sum(ops.cast(counted(ops, y), dtype=nats.dtype))
    return {"loss": nats, "bits_per_byte": ops.scale(nats, c=1 / math.log(2)), "count": count}


def outputs(ops: Ops[R], params: Tree, x: R, *, config: Config) -> dict[str, R]:
    """`probabilities` of the byte after each position, (B, T, 256)."""
    return {"probabilities": ops.softmax(logits(ops, params, x, config=config), axis=-1)}


def make(config: Config) -> Model:
    """Build the model for a config."""
    text = Spec("B T", dtype="int64", where=(f"T <= {config.length}",), range=(0, BYTES - 1))
    labels = text.changed(range=None)  # those that are ignore_index do not count
    return of_programs("gpt", config, (text, labels), init=init, loss=loss, metrics=metrics, outputs=outputs)


def text_windows(file: Path | None, held_out: float, config: Config) -> Split:
    """Return windows of `config.length` bytes of a text file, whose end is held out.

    Without a file, of Python's own standard library, some files of which are held out; of the rest every third window,
    which is as much as a few minutes allow.
    """
    length = config.length
    if file is None:
        training, testing = text_files.standard_library()
        name, stride = "the standard library", 3 * length
    else:
        name, stride = str(file), length
        training, testing = text_files.split_text(text_files.read_text(file), test=held_out, origin=name)
    return text_files.windows(training, length, stride=stride, origin=name), text_files.windows(
        testing, length, origin=name
    )


def library_windows(seed: int) -> Split:
    """Return the standard library in windows of the default length, the same for every seed."""
    return text_windows(None, 0.0, Config())


RECIPE = Recipe(
    data=library_windows,
    epochs=1,
    batch_size=32,
    lr=0.02,
    weight_decay=0.01,
    metric="bits_per_byte",
    goal=2.2,
    lower_is_better=True,
    clip_norm=1.0,
    optimizer="muon",
    read=text_windows,
)
