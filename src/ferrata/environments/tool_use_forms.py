"""The words of tool use: surface forms of each kind of question, (trained on, never trained on),
and names."""

FORMS: dict[str, tuple[list[str], list[str]]] = {
    "product": (
        [
            "What is {a} times {b}?",
            "Multiply {a} by {b}.",
            "{a} * {b} = ?",
            "Give the product of {a} and {b}.",
            "A hall has {a} rows of {b} seats. How many seats are there?",
        ],
        [
            "Each of {a} crates holds {b} apples. How many apples is that?",
            "Work out {b} lots of {a}.",
            "A train makes {a} trips with {b} passengers each. How many passengers in all?",
        ],
    ),
    "sum": (
        [
            "What is {a} plus {b}?",
            "Add {b} to {a}.",
            "{a} + {b} = ?",
            "Give the sum of {a} and {b}.",
            "Ana has {a} stamps and gets {b} more. How many has she now?",
        ],
        [
            "Put {a} and {b} together: what do you get?",
            "A bus drives {a} miles, then another {b}. How far is that in all?",
            "There were {a} guests and {b} came later. How many guests were there in the end?",
        ],
    ),
    "difference": (
        [
            "What is {a} minus {b}?",
            "Subtract {b} from {a}.",
            "{a} - {b} = ?",
            "By how much is {a} larger than {b}?",
            "Of {a} tickets {b} are sold. How many are left?",
        ],
        [
            "Take {b} away from {a}.",
            "A book has {a} pages and Tom has read {b}. How many pages remain?",
            "How far is it from {b} up to {a}?",
        ],
    ),
    "price": (
        [
            "What is the price of the {x}?",
            "How many coins is a {x}?",
            "How much does the {x} cost?",
            "Tell me the price of a {x}.",
        ],
        ["I want to buy one {x}. What do I pay?", "What does the shop ask for a {x}?"],
    ),
    "stock": (
        [
            "How many of the {x} are in stock?",
            "What is the stock of the {x}?",
            "How many pieces of the {x} does the shop have?",
            "Tell me the stock of {x}.",
        ],
        ["How often could the shop still sell the {x}?", "Count the {x} on the shelf."],
    ),
    "convert": (
        [
            "How many {v} are {a} {u}?",
            "Convert {a} {u} to {v}.",
            "What is {a} {u} in {v}?",
            "{a} {u} = ? {v}",
        ],
        ["Express {a} {u} in {v}.", "I have {a} {u}. How much is that in {v}?"],
    ),
    "given": (
        [
            "Ana paid {b} coins for the {x}, not {a}. How many coins did Ana pay?",
            "Last year Tom bought a {x} for {b} coins and a coat for {a}. How much was his {x}?",
            "My old {x} cost {b} coins and the repair {a}. What did my old {x} cost?",
        ],
        [
            "Eva sold her own {x} for {b} coins after asking {a}. For how many coins did it go?",
            "The ticket of Ben says {b}, that of Eva says {a}. What does the ticket of Ben say?",
        ],
    ),
    "cost": (
        [
            "What do {n} of the {x} cost?",
            "How many coins are {n} of the {x}?",
            "I buy {n} of the {x}. What do I pay?",
            "Tell me the cost of {n} pieces of {x}.",
        ],
        [
            "A school orders the {x} {n} times. How large is the bill?",
            "How much money leaves my purse for {n} of the {x}?",
        ],
    ),
    "grams": (
        [
            "What does the {x} weigh in g?",
            "How many g does the {x} weigh?",
            "Give the weight of the {x} in g.",
            "Tell me how heavy a {x} is, in g.",
        ],
        [
            "I put one {x} on a scale that shows g. What does it show?",
            "In g, how heavy is the {x}?",
        ],
    ),
    "basket": (
        [
            "What do {n} of the {x} and {m} of the {y} cost together?",
            "I buy {n} of the {x} and {m} of the {y}. What do I pay?",
            "How many coins are {n} of the {x} plus {m} of the {y}?",
            "Tell me the cost of {n} pieces of {x} and {m} pieces of {y}.",
        ],
        [
            "The bill lists the {x} {n} times and the {y} {m} times. What is its total?",
            "How much money do I need for {n} of the {x} and also {m} of the {y}?",
        ],
    ),
    "load": (
        [
            "What do {n} of the {x} weigh in g?",
            "How many g do {n} of the {x} weigh?",
            "Give the weight of {n} pieces of {x} in g.",
            "I carry {n} of the {x}. How heavy is that in g?",
        ],
        [
            "A parcel holds the {x} {n} times. What does the content weigh, in g?",
            "In g, how heavy are {n} of the {x}?",
        ],
    ),
    "big_basket": (
        [
            "What do {n} of the {x}, {m} of the {y} and {k} of the {z} cost together?",
            "I buy {n} of the {x}, {m} of the {y} and {k} of the {z}. What do I pay?",
            "How many coins are {n} of the {x} plus {m} of the {y} plus {k} of the {z}?",
        ],
        ["The bill lists {n} of the {x}, {m} of the {y}, {k} of the {z}. What is its total?"],
    ),
    "two_loads": (
        [
            "What do {n} of the {x} and {m} of the {y} weigh together in g?",
            "How many g do {n} of the {x} and {m} of the {y} weigh?",
            "I carry {n} of the {x} and {m} of the {y}. How heavy is that in g?",
        ],
        ["A parcel holds the {x} {n} times and the {y} {m} times. What does it weigh, in g?"],
    ),
}

# Many, so that a model has to learn to copy a name, not to know it.
ITEMS = """anchor arrow axe badge bag ball balloon banner basket bat bead bed bell belt bench
bicycle
binder blade blanket block board boat bolt book bottle bow box bracelet brick bridle broom
bucket button cabinet cage cake calendar camera candle cane cap card carpet cart chain chair
chalk chest chisel clock collar compass cork cot crayon crown cube cushion dart dial dish doll
door drawer dress drum easel envelope feeder fence file flag flask folder frame funnel gate gem
goblet gong grill guitar hammer hanger helmet hinge hoe hook horn hose jacket jar jug kayak
kennel kettle key kite knife knot label ladder lamp lens lever lid lock locket loom mallet mask
mast mat mirror mug nail napkin net notebook oar organ oven paddle pan parasol pedal pen pencil
pillow pin pipe pitcher plank plug pot pouch pump puzzle quilt rack raft rake razor ring robe
rod roller rope ruler sack saddle sail sandal screen screw seal shirt shoe sieve sign sock spade
sponge spoon spring stand statue stool stove strap string sword table tablet tape tent tile
torch towel toy trolley trumpet trunk tube umbrella valve vase veil violin wagon wallet watch
whistle wig wrench yoke zipper""".split()

ITEMS_HELD_OUT = """desk shelf hat boot glove scarf fan plate cup bowl fork drill saw shovel barrel
wheel flute harp piano radio phone map globe tray sofa curtain racket skate sled canoe brush comb
needle ribbon cradle lantern magnet marble medal whip""".split()

CITIES = ("Oslo", "Lima", "Cairo", "Perth")
SKIES = ("sunny", "cloudy", "rain", "snow", "windy")
