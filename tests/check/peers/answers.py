"""The answers of JAX and PyTorch that `ask` has noted: a row for each mistake, with the verdict of each peer."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ANSWERS = Path(__file__).parent / "answers.tsv"
PEERS = {"eval_shape": "jax", "jax.export": "jax", "meta": "torch", "torch.export": "torch"}
"""How each is asked, and the library."""

_FORM: Any = {"delimiter": "\t", "lineterminator": "\n", "quoting": csv.QUOTE_NONE, "quotechar": None}


def noted() -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
    """The version of each library; and by mistake and peer what it says, empty where it accepts the program."""
    with ANSWERS.open(newline="") as file:
        versions, *rows = csv.DictReader(file, **_FORM)
    said = {row["mistake"]: {peer: _verdict(row, peer) for peer in PEERS} for row in rows}
    return {library: versions[f"{peer} says"] for peer, library in PEERS.items()}, said


def _verdict(row: Mapping[str, str], peer: str) -> dict[str, Any]:
    lines, before, says = (row[f"{peer} {what}"] for what in ("lines", "before", "says"))
    return {"says": says, "lines": int(lines), "before": int(before) if before else None} if lines else {}


def note(versions: Mapping[str, str], answers: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
    """Write what `noted` reads."""
    columns = [f"{peer} {what}" for peer in PEERS for what in ("lines", "before", "says")]
    with ANSWERS.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["mistake", *columns], **_FORM)
        writer.writeheader()
        writer.writerow(
            {"mistake": "version", **{f"{peer} says": versions[library] for peer, library in PEERS.items()}}
        )
        for name, each in answers.items():
            verdicts = {f"{peer} {what}": value for peer, verdict in each.items() for what, value in verdict.items()}
            writer.writerow({"mistake": name, **verdicts})
