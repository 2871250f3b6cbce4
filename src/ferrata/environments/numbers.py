"""Reading a claimed number out of a final message: one strict rule for every environment that asks
for one."""

from __future__ import annotations

import re
from collections.abc import Collection
from decimal import Decimal, InvalidOperation

MARK = re.compile(r"^[ \t]*answer:[ \t]*(.*?)[ \t]*$", re.IGNORECASE | re.MULTILINE)
NUMBER = r"[-+]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?"
CLAIM = re.compile(rf"^(?P<number>{NUMBER})(?:[ \t]*(?P<unit>[A-Za-z]+))?\.?$")
SUM = re.compile(r"^[0-9+*/().,x \t-]*$")  # what may stand left of an equals sign
MAX_CLAIM = 80  # characters: no honest claim is longer, and matching stays cheap


def claimed_number(content: str, units: Collection[str] = ()) -> Decimal | None:
    """The number that a final message claims, or None.

    A claim is a line that *starts* with `Answer:` and goes on with one number (thousands separators
    allowed), a unit of `units` at most, and a full stop at most. Of several such lines the last
    counts, so that a model may correct itself, and naming many answers never pays. `Answer: 24 + 48
    = 72` claims what is right of the last `=`.
    """
    claims = MARK.findall(content)
    if not claims:
        return None
    text = claims[-1]
    if len(text) > MAX_CLAIM:
        return None
    sum_, equals, result = text.rpartition("=")
    if equals and not SUM.match(sum_):
        return None
    match = CLAIM.match(result.strip())
    if match is None or (match["unit"] is not None and match["unit"].lower() not in units):
        return None
    try:
        return Decimal(match["number"].replace(",", ""))
    except InvalidOperation:  # cannot happen for NUMBER; a grader still must not raise
        return None
