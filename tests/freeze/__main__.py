"""Searches of wide.yaml without a time limit, held to their digests: `make freeze`.

`python -m tests.freeze --write` takes today's digests of these and of the suite's small set as those to hold.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from tests.freeze.digests import FOLDER, digests, plan_set_digests

SMALL, WIDE = FOLDER / "digests.json", FOLDER / "wide.json"


def written(document: Any) -> str:
    """JSON text of digests, a name a line."""
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def main(arguments: list[str]) -> int:
    """Compare, or with `--write` renew; `--small` leaves out the wide searches. Exit code 1 on a difference."""
    if "--write" in arguments:
        SMALL.write_text(written(digests()), encoding="utf-8")
        if "--small" not in arguments:
            WIDE.write_text(written(plan_set_digests("wide.yaml")), encoding="utf-8")
        return 0
    held = json.loads(WIDE.read_text(encoding="utf-8"))
    found = plan_set_digests("wide.yaml")
    moved = sorted(name for name in held.keys() | found.keys() if held.get(name) != found.get(name))
    sys.stdout.write(f"{len(found)} searches, moved: {' '.join(moved) or 'none'}\n")
    return 1 if moved else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
