"""Blocks with consecutive numbers in their names, as one loop."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .blocks import RegionBlock
from .expressions import quoted


def counted_loop(run: Sequence[RegionBlock]) -> tuple[str, str, str | None] | None:
    """Return the head of a loop over regions with consecutive numbers, their name in it, and the text of their
    prefix."""
    names = _pattern([block.name for block in run])
    prefixes = _pattern([block.prefix or "" for block in run])
    if names is None or prefixes is None:
        return None
    numbers = names[1] or prefixes[1]
    if numbers is None or any(each not in (None, numbers) for each in (names[1], prefixes[1])):
        return None
    if numbers == list(range(numbers[0], numbers[0] + len(numbers))):
        over = f"range({numbers[0]}, {numbers[-1] + 1})" if numbers[0] else f"range({len(numbers)})"
    else:
        over = f"({', '.join(map(str, numbers))})"
    name = f'f"{names[0]}"' if names[1] is not None else quoted(names[0])
    return f"i in {over}", name, prefixes[0]


def _pattern(texts: Sequence[str]) -> tuple[str, list[int] | None] | None:
    """Return texts that differ in one number as one with `{i}`, and the numbers; None if they differ otherwise."""
    if len(set(texts)) == 1:
        return texts[0], None
    if any(re.search(r'[{}"\\]', text) for text in texts):
        return None
    split = [re.split(r"(\d+)", text) for text in texts]
    if len({len(parts) for parts in split}) > 1:
        return None
    differ = [j for j, parts in enumerate(zip(*split)) if len(set(parts)) > 1]
    if len(differ) != 1 or not all(parts[differ[0]].isdigit() for parts in split):
        return None
    numbers = [int(parts[differ[0]]) for parts in split]
    if any(str(n) != parts[differ[0]] for n, parts in zip(numbers, split)):
        return None
    first = list(split[0])
    first[differ[0]] = "{i}"
    return "".join(first), numbers
