"""`python -m tests.onnx_nodes.survey [pattern] [--compiled]`: what of onnx's node tests fails, and why."""

from __future__ import annotations

import sys
from collections import Counter
from fnmatch import fnmatchcase

import numpy as np

from opstage.ops.errors import OpstageError

from .cases import cases, loaded, require_equal


def main() -> None:
    pattern = next((word for word in sys.argv[1:] if not word.startswith("-")), "*")
    backend = "compiled" if "--compiled" in sys.argv else "eager"
    kinds = Counter[str]()
    with np.errstate(all="ignore"):
        for name, case in cases().items():
            if not fnmatchcase(name, pattern):
                continue
            try:
                for each in loaded(case):
                    require_equal(each.run(backend), each.outputs)
                kinds["right"] += 1
            except Exception as error:
                kind = (
                    type(error).__name__ if isinstance(error, (OpstageError, AssertionError)) else f"BARE {error!r:.40}"
                )
                kinds[kind] += 1
                print(f"{name}: {kind}: {' '.join(str(error).split())[:300]}")
    print(f"{kinds['right']} of {kinds.total()} right; {dict(kinds)}")


if __name__ == "__main__":
    main()
