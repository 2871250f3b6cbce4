"""The exception for mistakes that a user can put right, shown without a traceback."""

from __future__ import annotations

import sys
from collections.abc import Callable


class FerrataError(Exception):
    """Something the user can put right: a parameter, a file, an environment.

    The message says, in this order and where known: what is wrong and where, what was found, what
    was expected and the next step. Stages and the command line print it without a traceback and
    exit with status 2; any other exception is a fault of the program and keeps its traceback.
    """

    def __init__(
        self,
        what: str,
        *,
        found: object | None = None,
        expected: object | None = None,
        hint: str | None = None,
    ) -> None:
        self.what = what
        self.found = found
        self.expected = expected
        self.hint = hint
        super().__init__(what)

    def __str__(self) -> str:
        parts = [self.what]
        for label, value in (
            ("found", self.found),
            ("expected", self.expected),
            ("next step", self.hint),
        ):
            if value is not None:
                parts.append(f"  {label}: {value}")
        return "\n".join(parts)


def run_main(fn: Callable[[], int | None]) -> int:
    """Run the body of a stage or command; a FerrataError ends it with `error: ...` and status 2.

    Returns the function's own status (None counts as 0), for `sys.exit(run_main(main))`.

    Raises:
        SystemExit: with status 2 after a FerrataError. Other exceptions pass through with their
        traceback.
    """
    try:
        return fn() or 0
    except FerrataError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
