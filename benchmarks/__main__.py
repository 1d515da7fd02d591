"""`python -m benchmarks [NAME [OPTION …]]`: run one measurement, or all of them; NAME --help lists its options."""

from __future__ import annotations

import argparse
import sys

from benchmarks import (
    against_peers,
    checking,
    guards,
    import_time,
    imported_training,
    inference,
    predicted,
    proofs,
    recording,
    scaling,
    steady,
    step_memory,
    tape_overhead,
)
from benchmarks.architectures import measure as architectures
from benchmarks.each_op import measure as each_op

MEASUREMENTS = {
    "against_peers": against_peers,
    "architectures": architectures,
    "each_op": each_op,
    "recording": recording,
    "checking": checking,
    "guards": guards,
    "predicted": predicted,
    "proofs": proofs,
    "scaling": scaling,
    "steady": steady,
    "step_memory": step_memory,
    "tape_overhead": tape_overhead,
    "import_time": import_time,
    "inference": inference,
    "imported_training": imported_training,
}


def parser() -> argparse.ArgumentParser:
    """Of one measurement with its options."""
    made = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure Opstage.")
    commands = made.add_subparsers(dest="name", metavar="NAME", required=True)
    for name, module in MEASUREMENTS.items():
        doc = (module.__doc__ or "").strip()
        module.add_arguments(commands.add_parser(name, help=doc.splitlines()[0], description=doc))
    return made


def main(words: list[str]) -> int:
    for each in [words] if words else [[name] for name in MEASUREMENTS]:
        given = parser().parse_args(each)
        MEASUREMENTS[given.name].main(given)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
