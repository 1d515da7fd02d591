"""`python -m benchmarks [NAME …]`: run the named measurements, or all."""

from __future__ import annotations

import sys

from benchmarks import against_peers, import_time, tape_overhead

MEASUREMENTS = {
    "against_peers": against_peers.main,
    "tape_overhead": tape_overhead.main,
    "import_time": import_time.main,
}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in MEASUREMENTS]
    if unknown:
        print(f"unknown measurement {unknown[0]!r}; there are {', '.join(MEASUREMENTS)}", file=sys.stderr)
        return 2
    for name in names or MEASUREMENTS:
        MEASUREMENTS[name]()
    return 0


sys.exit(main(sys.argv[1:]))
