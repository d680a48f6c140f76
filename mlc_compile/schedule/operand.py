"""What a parameter of a kernel holds: for whoever calls the kernel without a model."""

from typing import Final, Literal

import msgspec

# float32 around zero, above it, or made of what was rounded to bfloat16; int8 codes, four an
# int32; pairs of bfloat16; offsets of groups; words of INT4 weights with their scales; keys, with
# their scales and those of values where a cache has such (see artifact.FlatKV), and values;
# numbers of pages; one count of tokens; one number of a layer.
Values = Literal[
    "normal",
    "positive",
    "coarse",
    "codes",
    "pairs",
    "offsets",
    "packed",
    "keys",
    "values",
    "pages",
    "length",
    "layer",
]
# Weights are cold, since a model has read others since; results are compared; a state is
# read and written, and which part of it by one call is the layer's number.
Role = Literal["input", "weights", "state", "result"]


class Operand(msgspec.Struct, frozen=True):
    """One parameter of a kernel."""

    values: Values = "normal"
    role: Role = "input"


INPUT: Final = Operand()
PACKED: Final = Operand("packed", "weights")
DENSE: Final = Operand("normal", "weights")
KEYS: Final = Operand("keys", "state")
VALUES: Final = Operand("values", "state")
RESULT: Final = Operand("normal", "result")
PAIRS: Final = Operand("pairs")
ROUNDED: Final = Operand("pairs", "result")
COARSE: Final = Operand("coarse", "result")
