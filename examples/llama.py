"""A decoder as Llama's, its weights read from Hugging Face's files by their names, and text generated with a cache.

Touvron et al., LLaMA: Open and efficient foundation language models, 2023: rotary positions, grouped queries, RMS
normalisation, SwiGLU. A file to be copied and changed, and one that the commands take:

opstage check examples/llama.py                       its shapes, for every batch and length
opstage train examples/llama.py --out runs/llama      on bytes of Python's standard library; --data FILE for yours
python examples/llama.py                              a small one learns this file, and goes on from "def "
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import opstage
from opstage import Declaration, Model, Ops, Options, Recipe, Spec, UsageError, derived
from opstage.data import text
from opstage.init import normal, ones
from opstage.interop.weights import read_config, read_named, read_weights, write_named, write_weights

Tree = dict[str, Any]


@dataclass(frozen=True)
class Config:
    """Sizes of a model; `kv_heads` heads of keys and values, each for heads/kv_heads heads of queries."""

    vocabulary: int = 256
    length: int = 128  # the most positions that a text and its cache have
    width: int = 128
    depth: int = 4
    heads: int = 8
    kv_heads: int = 2
    head_size: int = 16
    hidden: int = 344
    theta: float = 10000.0
    stretch: tuple[float, ...] = ()  # of slow rotations as in Llama 3.1: by what, below and above which turns, length
    eps: float = 1e-5
    tie_weights: bool = False  # the table of tokens is the head's weight as well

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads or self.head_size % 2:
            raise UsageError(f"heads={self.heads} must be a multiple of kv_heads={self.kv_heads}, and head_size even")


def parameters(config: Config) -> Tree:
    """Declarations: shapes and initialisers, no memory yet. No layer has a bias."""

    def matrix(rows: int, columns: int, depth: int = 1) -> Declaration:
        return Declaration((rows, columns), normal(std=0.02 / math.sqrt(depth)))

    def block() -> Tree:
        queries, keys = config.heads * config.head_size, config.kv_heads * config.head_size
        return {
            "norm1": Declaration((config.width,), ones),
            "query": matrix(queries, config.width),
            "key": matrix(keys, config.width),
            "value": matrix(keys, config.width),
            "out": matrix(config.width, queries, depth=2 * config.depth),
            "norm2": Declaration((config.width,), ones),
            "gate": matrix(config.hidden, config.width),
            "up": matrix(config.hidden, config.width),
            "down": matrix(config.width, config.hidden, depth=2 * config.depth),
        }

    tree = {
        "tokens": matrix(config.vocabulary, config.width),
        "blocks": [block() for _ in range(config.depth)],
        "norm": Declaration((config.width,), ones),
    }
    return tree if config.tie_weights else {**tree, "head": matrix(config.vocabulary, config.width)}


# The program ----------------------------------------------------------------------------------------------------------


def logits(ops: Ops[Any], params: Tree, x: Any, *, config: Config) -> Any:
    """Tokens (B, T) -> (B, T, vocabulary): at each position the logits of the token after it."""
    return decode(ops, params, x, ops.iota(shape=(x.shape[1],)), None, config=config)[0]


def step(ops: Ops[Any], params: Tree, x: Any, start: Any, cache: list[Tree], *, config: Config) -> Any:
    """Logits (B, T, vocabulary) of tokens (B, T) that follow the `start` tokens of the cache, and the cache with them.

    start is an integer; the cache has rows for config.length tokens, 0 from `start` on, see `empty_cache`. More tokens
    than it has rows are an error. Every step of one token has the same shapes, so it is compiled once.
    """
    places = ops.iota(shape=(x.shape[1],))
    return decode(ops, params, x, ops.add(places, ops.broadcast_to(start, shape=places.shape)), cache, config=config)


def decode(
    ops: Ops[Any], params: Tree, x: Any, places: Any, cache: list[Tree] | None, *, config: Config
) -> tuple[Any, list[Tree]]:
    """Logits of tokens (B, T) at the places (T,), which see each other and the cache as far as it is before them."""
    h = derived.embedding(ops, params["tokens"], x)
    turn = angles(ops, places, config)
    kept = []
    for i, block in enumerate(params["blocks"]):
        past = None if cache is None else cache[i]
        h, now = ops.region(f"blocks.{i}", decoder_block, block, h, places, turn, past, config)
        kept.append(now)
    h = ops.rms_norm(h, params["norm"], eps=config.eps)
    head = params["tokens"] if config.tie_weights else params["head"]
    return ops.linear(head, None, h), kept


def decoder_block(
    ops: Ops[Any], params: Tree, x: Any, places: Any, turn: Any, past: Tree | None, config: Config
) -> tuple[Any, Tree]:
    """x + attention(norm(x)), then x + mlp(norm(x)), for x (B, T, width); and the keys and values attended to."""
    h = ops.rms_norm(x, params["norm1"], eps=config.eps)
    h, now = ops.region("attention", attention, params, h, places, turn, past, config)
    x = ops.add(x, h)
    h = ops.rms_norm(x, params["norm2"], eps=config.eps)
    return ops.add(x, ops.region("mlp", swiglu, params, h)), now


def attention(
    ops: Ops[Any], params: Tree, x: Any, places: Any, turn: Any, past: Tree | None, config: Config
) -> tuple[Any, Tree]:
    """Attention of queries in groups: each head of keys and values serves several of queries (Ainslie et al. 2023)."""
    batch, length, _ = x.shape
    query, key, value = (
        heads_of(ops, ops.linear(params[name], None, x), config.head_size) for name in ("query", "key", "value")
    )
    query, key = rotate(ops, query, turn), rotate(ops, key, turn)
    mask = None
    if past is not None:
        key = derived.index_add(ops, past["key"], places, key, axis=2)
        value = derived.index_add(ops, past["value"], places, value, axis=2)
        shape = (length, config.length)
        own = ops.broadcast_to(ops.unsqueeze(places, axis=1), shape=shape)
        mask = ops.less_equal(ops.iota(shape=shape, axis=1), own)
    group = config.heads // config.kv_heads
    keys, values = (derived.repeat_interleave(ops, h, repeats=group, axis=1) for h in (key, value))
    h = ops.scaled_dot_product_attention(query, keys, values, mask, causal=past is None)
    h = ops.reshape(ops.permute(h, axes=(0, 2, 1, 3)), shape=(batch, length, config.heads * config.head_size))
    return ops.linear(params["out"], None, h), {"key": key, "value": value}


def swiglu(ops: Ops[Any], params: Tree, x: Any) -> Any:
    """down(silu(gate(x)) · up(x)) (Shazeer, GLU variants improve transformer, 2020)."""
    gate, up = (ops.linear(params[name], None, x) for name in ("gate", "up"))
    return ops.linear(params["down"], None, ops.mul(ops.silu(gate), up))


def heads_of(ops: Ops[Any], x: Any, size: int) -> Any:
    """(B, T, heads·size) -> (B, heads, T, size)."""
    batch, length, width = x.shape
    return ops.permute(ops.reshape(x, shape=(batch, length, width // size, size)), axes=(0, 2, 1, 3))


def angles(ops: Ops[Any], places: Any, config: Config) -> tuple[Any, Any]:
    """Cosine and sine (T, size) of place · θ^(-2i/size), the i-th of both halves (Su et al., RoFormer, 2021)."""
    rates = config.theta ** (-np.arange(0, config.head_size, 2) / config.head_size)
    if config.stretch:  # those that turn less than `low` times in `length` places are slower by `factor`
        factor, low, high, length = config.stretch
        fast = np.clip((length * rates / (2 * math.pi) - low) / (high - low), 0, 1)
        rates = rates * (fast + (1 - fast) / factor)
    rate = ops.const(np.concatenate([rates, rates]))
    shape = (places.shape[0], config.head_size)
    place = ops.broadcast_to(ops.unsqueeze(ops.cast(places, dtype=rate.dtype), axis=1), shape=shape)
    angle = ops.mul(place, ops.broadcast_to(rate, shape=shape))
    return ops.cos(angle), ops.sin(angle)


def rotate(ops: Ops[Any], x: Any, turn: tuple[Any, Any]) -> Any:
    """Each pair (x[i], x[i + size/2]) turned by its angle, for x (B, heads, T, size)."""
    cos, sin = (ops.broadcast_to(h, shape=x.shape) for h in turn)
    first, second = ops.split(x, axis=-1, sizes=(x.shape[-1] // 2, x.shape[-1] // 2))
    return ops.add(ops.mul(x, cos), ops.mul(ops.concat([ops.neg(second), first], axis=-1), sin))


# Training -------------------------------------------------------------------------------------------------------------


def loss(ops: Ops[Any], params: Tree, x: Any, y: Any, *, config: Config) -> Any:
    """Mean cross-entropy, in nats a token; y is x one token on, -100 where there is nothing to learn."""
    out = logits(ops, params, x, config=config)
    return ops.cross_entropy(ops.flatten(out, end=1), ops.flatten(y))


def outputs(ops: Ops[Any], params: Tree, x: Any, *, config: Config) -> Tree:
    """`probabilities` of the token after each position."""
    return {"probabilities": ops.softmax(logits(ops, params, x, config=config), axis=-1)}


def make(config: Config) -> Model:
    """The model as the commands take it: `opstage check|train|graph|bench examples/llama.py`."""
    tokens = Spec("B T", dtype="int64", where=(f"T <= {config.length}",))
    return Model(
        name="llama",
        config=config,
        init=parameters(config),
        loss=partial(loss, config=config),
        metrics=None,
        outputs=partial(outputs, config=config),
        batch=(tokens, tokens),
        names=NAMES,
    )


def windows(file: Path | None, held_out: float, config: Config) -> Any:
    """Windows of bytes of a file, or of some of Python's standard library: (training, held out)."""
    parts = text.standard_library() if file is None else text.split_text(text.read_text(file), test=held_out)
    stride = config.length * (32 if file is None else 1)
    return tuple(text.windows(part, config.length, stride=stride) for part in parts)


RECIPE = Recipe(data=lambda seed: windows(None, 0.1, Config()), read=windows, epochs=1, batch_size=32, clip_norm=1.0)


# Generation -----------------------------------------------------------------------------------------------------------


def empty_cache(config: Config, batch: int, dtype: str = "float32") -> list[Tree]:
    """Keys and values of no tokens yet, for each block."""
    shape = (batch, config.kv_heads, config.length, config.head_size)
    return [{"key": np.zeros(shape, dtype), "value": np.zeros(shape, dtype)} for _ in range(config.depth)]


def generate(config: Config, params: Tree, prompt: Any, count: int, options: Options | None = None) -> Any:
    """The `count` tokens after the prompts (B, T), each the likeliest: (B, count)."""
    found = np.asarray(prompt)
    batch, length = found.shape
    if length < 1 or count < 0 or length + count > config.length:
        raise UsageError(f"{length} tokens and {count} more do not go into the {config.length} places of the model")
    cache, new = empty_cache(config, batch), found
    program = partial(step, config=config)
    for start in range(length, length + count):
        out, cache = opstage.run(program, params, new, np.array(start - new.shape[1]), cache, options=options)
        new = out[:, -1:].argmax(axis=-1)
        found = np.concatenate([found, new], axis=1)
    return found[:, length:]


# Hugging Face's files -------------------------------------------------------------------------------------------------

NAMES = {
    "tokens": "model.embed_tokens.weight",
    "blocks.{}.norm1": "model.layers.{}.input_layernorm.weight",
    "blocks.{}.query": "model.layers.{}.self_attn.q_proj.weight",
    "blocks.{}.key": "model.layers.{}.self_attn.k_proj.weight",
    "blocks.{}.value": "model.layers.{}.self_attn.v_proj.weight",
    "blocks.{}.out": "model.layers.{}.self_attn.o_proj.weight",
    "blocks.{}.norm2": "model.layers.{}.post_attention_layernorm.weight",
    "blocks.{}.gate": "model.layers.{}.mlp.gate_proj.weight",
    "blocks.{}.up": "model.layers.{}.mlp.up_proj.weight",
    "blocks.{}.down": "model.layers.{}.mlp.down_proj.weight",
    "norm": "model.norm.weight",
    "head": "lm_head.weight",
}


STRETCH = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


def config_in(folder: Path) -> Config:
    """The sizes in a folder's config.json. Raises UsageError for what this file does not compute."""
    found = read_config(folder)
    rope = found.get("rope_parameters") or found.get("rope_scaling")
    kind = (rope.get("rope_type") or rope.get("type")) if rope else None
    theta = (rope and rope.get("rope_theta")) or found.get("rope_theta")
    act, values = found.get("hidden_act"), found.object()
    rotary, activation = kind.text() if kind else "default", act.text() if act else "silu"
    if (
        rotary not in ("default", "llama3")
        or activation != "silu"
        or values.get("attention_bias")
        or values.get("mlp_bias")
    ):
        raise found.error(f"rope_type {rotary!r}, hidden_act {activation!r} or a bias is not what is computed here")
    heads, keys, size = found["num_attention_heads"], found.get("num_key_value_heads"), found.get("head_dim")
    return Config(
        vocabulary=found["vocab_size"].count(),
        length=found["max_position_embeddings"].count(),
        width=found["hidden_size"].count(),
        depth=found["num_hidden_layers"].count(),
        heads=heads.count(),
        kv_heads=(keys or heads).count(),
        head_size=size.count() if size else found["hidden_size"].count() // heads.count(),
        hidden=found["intermediate_size"].count(),
        theta=theta.number() if theta else 10000.0,
        stretch=tuple(rope[key].number() for key in STRETCH) if rope and rotary == "llama3" else (),
        eps=found["rms_norm_eps"].number(),
        tie_weights=values.get("tie_word_embeddings") is True,
    )


def load(folder: Path) -> tuple[Config, Tree]:
    """Config and parameters of a folder that `save_pretrained` wrote, in one file or several; the files are mapped."""
    config = config_in(folder)
    ignore = ["rotary_emb.inv_freq", *(["lm_head.weight"] if config.tie_weights else [])]
    return config, read_named(parameters(config), read_weights(folder), NAMES, ignore=ignore)


def save(folder: Path, params: Tree) -> None:
    """Write the weights as Hugging Face's classes read them, to a new folder."""
    write_weights(folder, write_named(params, NAMES))


def main() -> None:
    config = Config(length=64, width=48, depth=2, heads=4, kv_heads=2, head_size=12, hidden=96)
    options = Options(backend="compiled")
    part = text.windows(text.read_text(__file__), config.length, stride=16)
    trained = opstage.fit(make(config), part, epochs=6, batch_size=16, lr=5e-3, options=options, progress=False)
    print(f"held-out loss {trained.results[-1].held_out['loss']:.2f} nats a byte")
    prompt = np.frombuffer(b"def ", np.uint8)[np.newaxis].astype(np.int64)
    print(bytes(generate(config, trained.trainer.get_params(), prompt, 40, options)[0].tolist()).decode("latin-1"))


if __name__ == "__main__":
    main()
