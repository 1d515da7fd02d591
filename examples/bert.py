"""An encoder as BERT's, with a head that fills in masked tokens or one that classifies, and Hugging Face's weights.

Devlin et al., BERT: Pre-training of deep bidirectional transformers, 2019. A file to be copied and changed, and one
that the commands take:

opstage check examples/bert.py                        its shapes, for every batch and length
opstage train examples/bert.py --out runs/bert        to fill in masked bytes of Python's standard library
opstage check examples/bert.py --model.classes 2      with the other head
python examples/bert.py                               a small one learns words, and fills in what is masked
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import opstage
from opstage import Declaration, Model, Ops, Options, Recipe, Spec, UsageError, derived
from opstage.data import Dataset, from_arrays, text
from opstage.init import build, normal, ones, zeros
from opstage.interop.weights import read_config, read_named, read_weights, write_named, write_weights

Tree = dict[str, Any]


@dataclass(frozen=True)
class Config:
    """Sizes of a model. With `classes` a text is one of so many; with none, masked tokens are filled in."""

    vocabulary: int = 258  # the bytes, `padding` and `mask`
    length: int = 64
    width: int = 128
    depth: int = 4
    heads: int = 4
    hidden: int = 512
    types: int = 2  # kinds of positions: of a first and of a second text
    eps: float = 1e-12
    dropout: float = 0.1
    padding: int = 256  # the token at which nobody looks
    mask: int = 257
    classes: int = 0

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise UsageError(f"width={self.width} must be a multiple of heads={self.heads}")


def parameters(config: Config) -> Tree:
    """Declarations: shapes and initialisers, no memory yet."""
    width = config.width

    def matrix(rows: int, columns: int) -> Declaration:
        return Declaration((rows, columns), normal(std=0.02))

    def layer(inputs: int, units: int) -> Tree:
        return {"weight": matrix(units, inputs), "bias": Declaration((units,), zeros)}

    def norm() -> Tree:
        return {"gamma": Declaration((width,), ones), "beta": Declaration((width,), zeros)}

    def block() -> Tree:
        projections = {name: layer(width, width) for name in ("query", "key", "value", "out")}
        return {
            "attention": {**projections, "norm": norm()},
            "mlp": {"up": layer(width, config.hidden), "down": layer(config.hidden, width), "norm": norm()},
        }

    tree = {
        "tokens": matrix(config.vocabulary, width),
        "positions": matrix(config.length, width),
        "types": matrix(config.types, width),
        "norm": norm(),
        "blocks": [block() for _ in range(config.depth)],
    }
    if config.classes:
        return {**tree, "pool": layer(width, width), "classifier": layer(width, config.classes)}
    bias = Declaration((config.vocabulary,), zeros)  # the head's weight is the table of tokens
    return {**tree, "fill": {**layer(width, width), "norm": norm(), "vocabulary": bias}}


# The program ----------------------------------------------------------------------------------------------------------


def encode(ops: Ops[Any], params: Tree, x: Any, kinds: Any = None, *, config: Config, train: bool = False) -> Any:
    """Tokens (B, T), and of which kind each is, 0 or 1 -> (B, T, width); tokens `padding` are seen by none."""
    h = ops.region("embed", embed, params, x, kinds, config)
    h = derived.dropout(ops, h, p=config.dropout, train=train)
    there = ops.logical_not(ops.equal(x, ops.full(shape=x.shape, value=config.padding, dtype=x.dtype)))
    mask = ops.unsqueeze(ops.unsqueeze(there, axis=1), axis=1)
    for i, block in enumerate(params["blocks"]):
        h = ops.region(f"blocks.{i}", encoder_block, block, h, mask, config, train)
    return h


def embed(ops: Ops[Any], params: Tree, x: Any, kinds: Any, config: Config) -> Any:
    """The sum of a token's, its position's and its kind's vectors, normalised."""
    h = derived.embedding(ops, params["tokens"], x)
    where = ops.slice(params["positions"], axis=0, start=0, length=x.shape[1])
    h = ops.add(h, ops.broadcast_to(where, shape=h.shape))
    kinds = ops.full(shape=x.shape, value=0, dtype=x.dtype) if kinds is None else kinds
    return layer_norm(ops, params["norm"], ops.add(h, derived.embedding(ops, params["types"], kinds)), config)


def encoder_block(ops: Ops[Any], params: Tree, x: Any, mask: Any, config: Config, train: bool) -> Any:
    """norm(x + attention(x)), then norm(x + mlp(x)), for x (B, T, width)."""
    h = ops.region("attention", attention, params["attention"], x, mask, config)
    h = derived.dropout(ops, h, p=config.dropout, train=train)
    x = layer_norm(ops, params["attention"]["norm"], ops.add(x, h), config)
    h = linear(ops, params["mlp"]["down"], gelu(ops, linear(ops, params["mlp"]["up"], x)))
    h = derived.dropout(ops, h, p=config.dropout, train=train)
    return layer_norm(ops, params["mlp"]["norm"], ops.add(x, h), config)


def attention(ops: Ops[Any], params: Tree, x: Any, mask: Any, config: Config) -> Any:
    """Each position looks at all that `mask` (B, 1, 1, T) has."""
    batch, length, width = x.shape
    split = (batch, length, config.heads, width // config.heads)
    query, key, value = (
        ops.permute(ops.reshape(linear(ops, params[name], x), shape=split), axes=(0, 2, 1, 3))
        for name in ("query", "key", "value")
    )
    h = ops.permute(ops.scaled_dot_product_attention(query, key, value, mask), axes=(0, 2, 1, 3))
    return linear(ops, params["out"], ops.reshape(h, shape=x.shape))


def linear(ops: Ops[Any], params: Tree, x: Any) -> Any:
    return ops.linear(params["weight"], params["bias"], x)


def gelu(ops: Ops[Any], x: Any) -> Any:
    return ops.gelu(x, approximate="none")


def layer_norm(ops: Ops[Any], params: Tree, x: Any, config: Config) -> Any:
    return ops.layer_norm(x, params["gamma"], params["beta"], eps=config.eps)


def fill(ops: Ops[Any], params: Tree, h: Any, config: Config) -> Any:
    """(B, T, width) -> (B, T, vocabulary): the logits of the token at each position."""
    own = params["fill"]
    h = layer_norm(ops, own["norm"], gelu(ops, linear(ops, own, h)), config)
    return ops.linear(params["tokens"], own["vocabulary"], h)


def pooled(ops: Ops[Any], params: Tree, h: Any) -> Any:
    """(B, T, width) -> (B, width): a layer on the first position of each text."""
    first = ops.squeeze(ops.slice(h, axis=1, start=0, length=1), axis=1)
    return ops.tanh(linear(ops, params["pool"], first))


def logits(ops: Ops[Any], params: Tree, x: Any, kinds: Any = None, *, config: Config, train: bool = False) -> Any:
    """Tokens (B, T) -> (B, classes), or (B, T, vocabulary) where there are none."""
    h = encode(ops, params, x, kinds, config=config, train=train)
    if not config.classes:
        return ops.region("fill", fill, params, h, config)
    h = derived.dropout(ops, pooled(ops, params, h), p=config.dropout, train=train)
    return linear(ops, params["classifier"], h)


# Training -------------------------------------------------------------------------------------------------------------


def loss(ops: Ops[Any], params: Tree, x: Any, y: Any, *, config: Config, train: bool = False) -> Any:
    """Mean cross-entropy, of the classes (B,) or of tokens (B, T), -100 where a token was not masked."""
    out = logits(ops, params, x, config=config, train=train)
    return ops.cross_entropy(out, y) if config.classes else ops.cross_entropy(ops.flatten(out, end=1), ops.flatten(y))


def outputs(ops: Ops[Any], params: Tree, x: Any, *, config: Config) -> Tree:
    """`class` and `probabilities` of each text, or of each position."""
    out = logits(ops, params, x, config=config)
    return {"class": ops.argmax(out, axis=-1), "probabilities": ops.softmax(out, axis=-1)}


def make(config: Config) -> Model:
    """The model as the commands take it: `opstage check|train|graph|bench examples/bert.py`."""
    tokens = Spec("B T", dtype="int64", where=(f"T <= {config.length}",))
    return Model(
        name="bert",
        config=config,
        init=parameters(config),
        loss=partial(loss, config=config),
        metrics=None,
        outputs=partial(outputs, config=config),
        batch=(tokens, Spec("B", dtype="int64") if config.classes else tokens),
        names=names("bert."),
    )


def masked(windows: Dataset, config: Config, seed: int) -> Dataset:
    """Texts of which 15 % of the tokens are masked, and those tokens as labels."""
    tokens = np.asarray(windows["x"], np.int64)
    hidden = np.random.default_rng(seed).random(tokens.shape) < 0.15
    return from_arrays(x=np.where(hidden, config.mask, tokens), y=np.where(hidden, tokens, -100))


def example(seed: int) -> tuple[Dataset, Dataset]:
    """Bytes of Python's standard library: (training, held out)."""
    config = Config()
    parts = [text.windows(part, config.length, stride=32 * config.length) for part in text.standard_library()]
    return masked(parts[0], config, seed), masked(parts[1], config, seed + 1)


RECIPE = Recipe(data=example, epochs=1, batch_size=32, clip_norm=1.0)


# Hugging Face's files -------------------------------------------------------------------------------------------------


def names(prefix: str) -> dict[str, str]:
    """The names of tensors by the paths of parameters; `prefix` is "bert." in a model with a head, "" in BertModel."""
    embeddings, layers = f"{prefix}embeddings", f"{prefix}encoder.layer.{{}}"
    layer_names = {
        "norm": f"{embeddings}.LayerNorm",
        "blocks.{}.attention.query": f"{layers}.attention.self.query",
        "blocks.{}.attention.key": f"{layers}.attention.self.key",
        "blocks.{}.attention.value": f"{layers}.attention.self.value",
        "blocks.{}.attention.out": f"{layers}.attention.output.dense",
        "blocks.{}.attention.norm": f"{layers}.attention.output.LayerNorm",
        "blocks.{}.mlp.up": f"{layers}.intermediate.dense",
        "blocks.{}.mlp.down": f"{layers}.output.dense",
        "blocks.{}.mlp.norm": f"{layers}.output.LayerNorm",
        "pool": f"{prefix}pooler.dense",
        "classifier": "classifier",
        "fill": "cls.predictions.transform.dense",
        "fill.norm": "cls.predictions.transform.LayerNorm",
    }
    table = {
        "tokens": f"{embeddings}.word_embeddings.weight",
        "positions": f"{embeddings}.position_embeddings.weight",
        "types": f"{embeddings}.token_type_embeddings.weight",
        "fill.vocabulary": "cls.predictions.bias",
    }
    for path, name in layer_names.items():
        weight, bias = ("gamma", "beta") if path.endswith("norm") else ("weight", "bias")
        table |= {f"{path}.{weight}": f"{name}.weight", f"{path}.{bias}": f"{name}.bias"}
    return table


HEADS = ("pool", "classifier", "fill")


def config_in(folder: Path, classes: int = 0) -> Config:
    """The sizes in a folder's config.json. Raises UsageError for what this file does not compute."""
    found = read_config(folder)
    for key, only in (("hidden_act", "gelu"), ("position_embedding_type", "absolute")):
        if (other := found.get(key)) and other.value != only:
            raise other.expected(f"{only!r}, which is what is computed here,")
    return Config(
        vocabulary=found["vocab_size"].count(),
        length=found["max_position_embeddings"].count(),
        width=found["hidden_size"].count(),
        depth=found["num_hidden_layers"].count(),
        heads=found["num_attention_heads"].count(),
        hidden=found["intermediate_size"].count(),
        types=found["type_vocab_size"].count(),
        eps=found["layer_norm_eps"].number(),
        dropout=found["hidden_dropout_prob"].number(),
        padding=found["pad_token_id"].count(),
        mask=103,  # the tokenizer knows it; this is the one of the published models
        classes=classes,
    )


def load(folder: Path, classes: int = 0, seed: int = 0) -> tuple[Config, Tree, list[str]]:
    """Config and parameters of a folder that `save_pretrained` wrote, and which heads it has not: those are new."""
    config = config_in(folder, classes)
    tensors = {old_name(name): array for name, array in read_weights(folder).items()}
    table = names("bert." if any(name.startswith("bert.") for name in tensors) else "")
    declared = parameters(config)
    new = [head for head in HEADS if head in declared and table.get(f"{head}.weight") not in tensors]
    kept = {name: part for name, part in declared.items() if name not in new}
    ignore = ["position_ids", "cls.seq_relationship", "cls.predictions.decoder"]
    ignore += ["cls.", "classifier"] if new else []
    ignore += ["cls."] if classes else ["pooler"]
    params = read_named(kept, tensors, table, ignore=ignore)
    return config, {**params, **build({head: declared[head] for head in new}, seed=seed)}, new


def old_name(name: str) -> str:
    """Norms had TensorFlow's names in the first files."""
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def save(folder: Path, params: Tree) -> None:
    """Write the weights as Hugging Face's classes with a head read them, to a new folder."""
    write_weights(folder, write_named(params, names("bert.")))


def main() -> None:
    config = Config(length=8, width=32, depth=1, heads=4, hidden=64, dropout=0.0)
    rows = np.frombuffer(b"for x indef f(x)import xreturn x", np.uint8).reshape(4, 8).astype(np.int64)
    data = masked(from_arrays(x=np.tile(rows, (400, 1))), config, 0)
    options = Options(backend="compiled")
    trained = opstage.fit(make(config), data, epochs=4, batch_size=32, lr=5e-3, options=options, progress=False)
    found = trained.predict(np.where(np.arange(8) == 3, config.mask, rows))["class"]
    print(*(bytes(row.tolist()).decode() for row in np.where(np.arange(8) == 3, found, rows)), sep="\n")


if __name__ == "__main__":
    main()
