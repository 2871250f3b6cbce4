"""The words of planning: (trained on, never trained on), and names of things."""

FORMS = ("{item}: {parts}", "For one {item} you need {parts}.")
ASK = (
    [
        "You have {have}.\n{recipes}\nMake one {goal}.",
        "You have {have}.\n{recipes}\nGoal: {goal}.",
    ],
    ["In stock: {have}.\n{recipes}\nThe customer wants one {goal}."],
)
THINGS = (
    "plank rope wheel cart lamp stool ladder brick wall oven pipe valve pump tank bolt gear clock "
    "frame door gate box crate shelf desk board nail hook chain net bag tent sail mast boat oar "
    "drum bell horn flute harp brush broom bucket barrel bench bed pillow blanket curtain carpet"
).split()
THINGS_HELD_OUT = (
    "axle beam button cable candle cap coat cup dial fan fence flag glove handle hinge jar kite "
    "knob lens lock mirror mug needle panel peg plate pot ring roof sack screw spring string sword "
    "table tile tray vase whip wire"
).split()
