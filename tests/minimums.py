"""`python -m tests.minimums` prints the oldest version of every requirement that setup.cfg allows, pinned for pip.

Those of the core, and those of the extra `test`, which names what other extras name, from the same version on: so an
environment of these tests the lower bounds of the extras too.
"""

from __future__ import annotations

import configparser
import re
from pathlib import Path

SETUP = Path(__file__).parents[1] / "setup.cfg"
_LOWEST = re.compile(r"([A-Za-z0-9_.-]+)(\[[a-z0-9,]+\])?\s*(?:>=|==)\s*([0-9][0-9.]*)")


def lowest(requirements: str) -> dict[str, str]:
    """The oldest version of each requirement, by name; one without a lower bound is a ValueError."""
    found = {}
    for line in filter(None, (line.partition("#")[0].strip() for line in requirements.splitlines())):
        if line.startswith("opstage["):  # another extra, which says its own
            continue
        match = _LOWEST.match(line)
        if match is None:
            raise ValueError(f"{line}: has no lower bound")
        found[match[1]] = match[3].removesuffix(".")
    return found


def declared() -> dict[str, dict[str, str]]:
    """The oldest versions of the core, under the name `core`, and of each extra."""
    config = configparser.ConfigParser()
    config.read(SETUP)
    extras = {name: lowest(text) for name, text in config["options.extras_require"].items()}
    return {"core": lowest(config["options"]["install_requires"]), **extras}


def pins() -> list[str]:
    """`name==version`, sorted."""
    known = declared()
    return [f"{name}=={version}" for name, version in sorted({**known["test"], **known["core"]}.items())]


if __name__ == "__main__":
    print("\n".join(pins()))
