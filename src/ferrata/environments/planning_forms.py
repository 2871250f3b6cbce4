"""The words of planning: (trained on, never trained on), and names of things."""

from ferrata.environments.tool_use_forms import ITEMS, ITEMS_HELD_OUT

FORMS = ("{item}: {parts}", "For one {item} you need {parts}.")
ASK = (
    [
        "You have {have}.\n{recipes}\nMake one {goal}.",
        "You have {have}.\n{recipes}\nGoal: {goal}.",
    ],
    ["In stock: {have}.\n{recipes}\nThe customer wants one {goal}."],
)
# Many, so that a model learns to copy a name and not which names there are.
THINGS = ITEMS
THINGS_HELD_OUT = ITEMS_HELD_OUT
