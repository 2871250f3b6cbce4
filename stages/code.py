"""Stage `code`: the fingerprint of every other stage's code, in code/NAME.json."""

from __future__ import annotations

import sys

from ferrata.config.fingerprint import write_fingerprints
from ferrata.config.loader import load
from ferrata.config.paths import params_folder, project_root
from ferrata.errors import run_main


def main() -> None:
    own = [name for name in load().prepare.weights if ":" in name]
    changed = write_fingerprints(project_root(), params_folder() / "code", own)
    print(f"code changed: {', '.join(changed) if changed else 'of no stage'}")


if __name__ == "__main__":
    # Run as `python -P`: without it this folder comes first on the path, and `code` is also a
    # standard module.
    sys.exit(run_main(main))
