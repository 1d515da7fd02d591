"""A longer sweep than the tests make: `python -m tests.fuzz --cases 100000 --seed 7 [--only npz]`."""

from __future__ import annotations

import argparse
import sys
import time

from .limits import Wrong
from .readers import BY_NAME, READERS, sweep


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", choices=sorted(BY_NAME))
    arguments = parser.parse_args()
    readers = [reader for reader in READERS if not arguments.only or reader.name in arguments.only]
    total, shares = 0, sum(reader.share for reader in readers)
    for reader in readers:
        since = time.perf_counter()
        cases = arguments.cases * reader.share // shares
        wrong = sweep(reader, arguments.seed, cases)
        total += len(wrong)
        print(f"{reader.name}: {cases} cases, {len(wrong)} wrong, {time.perf_counter() - since:.1f} s", flush=True)
        kinds: dict[tuple[str, str], list[Wrong]] = {}
        for found in wrong:
            kinds.setdefault((found.what[:30], found.where), []).append(found)
        for group in sorted(kinds.values(), key=len, reverse=True):
            print(f"  {len(group):4d} × case {group[0].case}: {group[0].what}  [{group[0].where}]", flush=True)
    print(f"{total} wrong")
    sys.exit(bool(total))


if __name__ == "__main__":
    main()
