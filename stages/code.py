"""Stage `code`: the fingerprint of every other stage's code, in code/NAME.json."""

from __future__ import annotations

import sys

from ferrata.config.fingerprint import write_fingerprints
from ferrata.config.loader import load
from ferrata.config.paths import project_root
from ferrata.errors import run_main


def main() -> None:
    root = project_root()
    own = [name for name in load(root).prepare.weights if ":" in name]
    changed = write_fingerprints(root, root / "code", own)
    print(f"code changed: {', '.join(changed) if changed else 'of no stage'}")


if __name__ == "__main__":
    # Run as `python -P`: without it this folder comes first on the path, and `code` is also a
    # standard module.
    sys.exit(run_main(main))
