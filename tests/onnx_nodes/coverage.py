"""`python -m tests.onnx_nodes.coverage`: docs/onnx-coverage.md, which of onnx's operators Opstage imports."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import onnx

from opstage.ops.errors import OpstageError, UnsupportedError

from .cases import DRAWS, cases, loaded, reason, require_equal

PAGE = Path(__file__).parents[2] / "docs" / "onnx-coverage.md"

HEAD = """# ONNX operators that are imported

The node tests of onnx {version}, {total:,} models of one operator each, or of the operators that it stands for:
{right:,} are imported and give the values that onnx gives; of {draws} that draw random numbers the shapes alone are
compared. The others are refused when they are loaded, for a reason that stands beside their operator.
`make onnx-tests` writes this page.

| reason | cases |
|---|---|
{reasons}

| operator | imported | refused |
|---|---|---|
{rows}
"""


def main() -> None:
    right, refused = Counter[str](), defaultdict[str, Counter[str]](Counter)
    with np.errstate(all="ignore"):
        for name, case in cases().items():
            operator = case.model.graph.node[0].op_type if not name.endswith("_expanded") else "parts of operators"
            try:
                for each in loaded(case):
                    outputs = each.run("eager")
                    if name not in DRAWS:
                        require_equal(outputs, each.outputs)
                right[operator] += 1
            except UnsupportedError as error:
                refused[operator][reason(str(error)) or str(error)] += 1
            except (OpstageError, AssertionError) as error:
                raise SystemExit(f"{name}: {error}") from error
    whole = sum(refused.values(), Counter[str]())
    rows = [
        f"| {operator} | {right[operator]} | {'; '.join(f'{n}: {why}' for why, n in refused[operator].items())} |"
        for operator in sorted({*right, *refused})
    ]
    PAGE.write_text(
        HEAD.format(
            version=onnx.__version__,
            total=right.total() + whole.total(),
            right=right.total(),
            draws=len(DRAWS),
            reasons="\n".join(f"| {why} | {count} |" for why, count in whole.most_common()),
            rows="\n".join(rows),
        )
    )


if __name__ == "__main__":
    main()
