"""The words of reasoning: (trained on, never trained on), and names."""

Forms = tuple[list[str], list[str]]

START: Forms = (
    ["{a} has {n} {thing}.", "There are {n} {thing} in {a}'s box.", "{a} owns {n} {thing}."],
    ["{a} starts out with {n} {thing}.", "In the morning {a} counts {n} {thing}."],
)
STEPS: dict[str, Forms] = {
    "gain": (
        ["{a} gets {k} more.", "{a} buys another {k}.", "Then {a} finds {k} {thing}."],
        ["{a} is given {k} as a present.", "A friend hands {a} {k} of them."],
    ),
    "lose": (
        ["{a} gives {k} away.", "{a} loses {k} of them.", "Then {a} sells {k}."],
        ["{k} of {a}'s {thing} break.", "{a} leaves {k} of them on the bus."],
    ),
    "more": (
        ["{b} has {k} more than {a}.", "{b} has {k} {thing} more than {a} now has."],
        ["{b} is {k} {thing} ahead of {a}.", "{b} owns what {a} owns, and {k} on top."],
    ),
    "fewer": (
        ["{b} has {k} fewer than {a}.", "{b} has {k} {thing} fewer than {a} now has."],
        ["{b} is {k} {thing} behind {a}.", "{b} is {k} short of what {a} owns."],
    ),
    "times": (
        ["{b} has {k} times as many as {a}.", "{b} has {k} times as many {thing} as {a} now has."],
        ["{b} has {k} for each one that {a} owns.", "{b}'s {thing} are {k} times those of {a}."],
    ),
}
ASK: Forms = (
    ["How many does {b} have?", "How many {thing} does {b} have now?"],
    ["What is {b}'s number of {thing} in the end?", "Count the {thing} that {b} ends up with."],
)
TOGETHER: Forms = (
    ["How many do {a} and {b} have together?", "How many {thing} do {a} and {b} have in all?"],
    ["What is the total of {a} and {b}?", "If {a} and {b} pool their {thing}, how many are there?"],
)
THINGS = ["shells", "stamps", "beads", "pens", "cards", "coins", "nuts", "stones", "pins", "balls"]
NAMES = (
    "Ann Ben Carl Dora Emma Fred Gina Hans Ida Jack Kate Leo Mia Nick Olga Paul Rosa Sam Tina Uma "
    "Vera Will Zoe Adam Beth Clara David Ellen Frank Grace Henry Iris James Karen Laura Mark Nora"
).split()
NAMES_HELD_OUT = (
    "Alex Bill Cora Dan Eva Felix Greta Hugo Ivy John Kurt Lisa Max Nina Otto Peter Ruth Simon "
    "Tom Ursula Victor Wendy"
).split()
