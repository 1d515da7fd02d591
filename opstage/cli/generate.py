"""`opstage generate SOURCE`: generate text with a trained gpt."""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Callable
from pathlib import Path

import click

from ..distributed.processes import is_terminal
from ..experiment.generate import Sampling, load_gpt
from ..experiment.generate import generate as generated
from ..experiment.settings import configure
from ..models import gpt
from ..ops.untrusted import escaped
from .flags import OPTION_PATHS, DottedCommand, flag_layer, with_option_flags


@click.command(cls=DottedCommand)
@click.argument("source", type=click.Path(path_type=Path))
@click.option("--prompt", default="", metavar="TEXT", help="What the text begins with (default: a new line).")
@click.option("--length", type=int, default=500, show_default=True, metavar="N", help="Bytes to generate.")
@click.option(
    "--temperature", type=float, default=0.8, show_default=True, metavar="T", help="0 takes the likeliest byte."
)
@click.option("--top-k", type=int, metavar="K", help="Draw from the K likeliest bytes alone (default: from all).")
@with_option_flags
def generate(
    source: Path,
    prompt: str,
    length: int,
    temperature: float,
    top_k: int | None,
    **flags: str | int | None,
) -> None:
    """Print PROMPT and what the gpt in SOURCE makes of it.

    SOURCE is a run directory, as `opstage train gpt --out DIR` leaves it, or a safetensors file of its parameters,
    whose config is the default one but for flags such as --model.depth 6. A file or a pipe gets the bytes as they are.
    On a terminal bytes that are no UTF-8 are shown as �, and what it would obey, such as colours, as \\x1b….
    """
    layer = flag_layer(OPTION_PATHS, flags)
    settings = configure("gpt", flags=[layer]).settings
    told = any(path.startswith("model.") for path in layer.values)
    config: gpt.Config | None = settings.model if told or not source.is_dir() else None
    config, params = load_gpt(source, config)
    sampling = Sampling(temperature, top_k, settings.options.seed)
    text = os.fsencode(prompt)
    write = _to_terminal() if is_terminal(sys.stdout) else _to_file
    write(text)
    for byte in generated(config, params, text, length, sampling, options=settings.options):
        write(bytes([byte]))
    write(b"", final=True)


def _to_file(data: bytes, final: bool = False) -> None:
    """Write the bytes unchanged, and a newline at the end."""
    click.echo(data, nl=final)


def _to_terminal() -> Callable[..., None]:
    """Return a function that writes bytes to a terminal as UTF-8, with control codes escaped."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def write(data: bytes, final: bool = False) -> None:
        click.echo(escaped(decoder.decode(data, final)), nl=final)

    return write
