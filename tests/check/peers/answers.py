"""The answers of JAX and PyTorch that `ask` has noted: versions, and a verdict for each mistake and peer."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

ANSWERS = Path(__file__).parent / "answers.tsv"
FIELDS = ("mistake", "peer", "lines", "before", "says")


def noted() -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
    """The version of each library; and by mistake and peer what it says, empty where it accepts the program."""
    versions: dict[str, str] = {}
    answers: dict[str, dict[str, Any]] = {}
    with ANSWERS.open(newline="") as file:
        for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            if row["mistake"] == "version":
                versions[row["peer"]] = row["says"]
                continue
            before = int(row["before"]) if row["before"] else None
            said = {"says": row["says"], "lines": int(row["lines"]), "before": before} if row["lines"] else {}
            answers.setdefault(row["mistake"], {})[row["peer"]] = said
    return versions, answers
