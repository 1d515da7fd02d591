"""Why an op refuses a call: by the words with which docstrings state it, the error and the message.

A word in braces is taken from the message: `{0} not a float tensor` of "x must be a float tensor but is …".
docs/api/errors.md explains the causes that many ops share.
"""

from __future__ import annotations

from typing import NamedTuple

from opstage import DtypeError, ProgramError, RangeError, ShapeError, UsageError


class Cause(NamedTuple):
    """Words of a docstring, and the error whose message matches."""

    words: str
    error: type[Exception]
    message: str


SHARED = (
    Cause("{0} not a float tensor", DtypeError, r"^(\w+) must be a float tensor but is "),
    Cause("{0} a mask", DtypeError, r"^(\w+) must be a tensor of numbers but is "),
    Cause("{0} not an integer tensor", DtypeError, r"^(\w+) must be an integer tensor but is "),
    Cause("{0} not a mask", DtypeError, r"^(\w+) must be a boolean mask but is "),
    Cause("dtypes differ", DtypeError, r"; cast one of them with ops\.cast$"),
    Cause("a dtype of no floats", DtypeError, r"^dtype must be float32, float64 or exact"),
    Cause("a number that the dtype does not hold", DtypeError, r"is (not a value of|the number) "),
    Cause("no such dtype", UsageError, r"^unknown dtype "),
    Cause("an index out of range, when it runs", RangeError, r"out of range"),
    Cause("shapes differ", ShapeError, r"(ranks \d+ and \d+ differ|axis \d+ has \d+ and \d+)"),
    Cause("no such axis", ShapeError, r"^ax[ei]s .*(out of range|must be an int|names an axis twice|exactly once)"),
    Cause(
        "an invalid argument",
        ShapeError,
        r"^(a size|\w+) (must be (an? (number|int|integer|sequence|value)|ints|one of|True or False|at least)\b"
        r"|must be (finite|less than|not|\"backward\")|must not be|is a tensor, and must be a number"
        r"|has \d+ entries but there are)",
    ),
    Cause("no such shape", ShapeError, r"^a shape (holds|has|must be)"),
    Cause(
        "windows do not fit",
        ShapeError,
        r"^(the kernel (covers|is empty)|spatial axis \d+ must have|padding \d+ |x is .* cell along spatial axis)",
    ),
    Cause(
        "an axis is empty",
        ShapeError,
        r"(at least one element|to normalise over|at least one class|to take a mean o)",
    ),
    Cause(
        "{0} of another shape",
        ShapeError,
        r"^(\w+) (must be \(|must have (a|at least|rank)|must be (a matrix|a scalar|complex)"
        r"|is \(.*\) but (must be|the windows make)|is \(.*\) of rank \d+ but the windows|must be \w+ \()",
    ),
)
"""Those of many ops."""

OWN = (
    Cause("x's columns are not y's rows", ShapeError, r"x has \d+ columns but y has \d+ rows"),
    Cause("x and y are stacks of other sizes", ShapeError, r"(stacks of matrices have one rank|batch axis \d+ has)"),
    Cause("b does not fit a", ShapeError, r"^a is .* but b is .*it must be"),
    Cause("x has other features than the weight", ShapeError, r"in=\d+ differs from|^x must be \(\.\.\., in\)"),
    Cause("the bias has another size than the weight's rows", ShapeError, r"^weight is .* but bias is"),
    Cause("the bias has another size than the output channels", ShapeError, r"^bias is .* output channels, so"),
    Cause("x has other channels than the kernel", ShapeError, r"channels? but kernel .* takes"),
    Cause("groups do not divide the channels", ShapeError, r"^groups=\d+ (does not|must) divide"),
    Cause("no output_padding below the stride or dilation", ShapeError, r"it must be smaller than the stride"),
    Cause(
        "kernel and shape of other spatial axes",
        ShapeError,
        r"^(kernel is .*; it must hold a size|shape .* spatial axes but kernel)",
    ),
    Cause("too few values for a variance", ShapeError, r"the batch variance needs at least"),
    Cause("q, k and v do not fit", ShapeError, r"^q is .*k is .*v is "),
    Cause("the mask does not broadcast", ShapeError, r"^mask (is|must).*attention"),
    Cause("the bias does not broadcast", ShapeError, r"^bias is .* but the attention weights"),
    Cause("the bias a mask", DtypeError, r"^bias is added to the scores but is"),
    Cause("num_heads do not divide the columns", ShapeError, r"^num_heads=\d+ must divide"),
    Cause("no position to attend to", ShapeError, r"at least one (position|key) to attend to"),
    Cause("labels do not fit the logits", ShapeError, r"^labels are .* but logits"),
    Cause("the logits a scalar", ShapeError, r"^logits must be .* but are a scalar"),
    Cause("x does not broadcast to the shape", ShapeError, r"which cannot become"),
    Cause(
        "another number of elements",
        ShapeError,
        r"with \d+ elements?(, which| but)|sizes open; only one|so -1 could be anything",
    ),
    Cause("start behind end", ShapeError, r"^start=\d+ lies behind end="),
    Cause("an axis of another size than 1", ShapeError, r"only an axis of size 1 can be dropped"),
    Cause("no axes depth and depth + 1", ShapeError, r"it must have axes depth and depth \+ 1"),
    Cause("no tensors", ShapeError, r"^at least one tensor is needed"),
    Cause("axes besides the joined one differ", ShapeError, r"all axes but axis \d+ must agree"),
    Cause("entries outside x", ShapeError, r"^start=.* on axis"),
    Cause("sizes that do not add up", ShapeError, r"^sizes .* add up to"),
    Cause(
        "not an entry for each axis of x",
        ShapeError,
        r"^(padding|interior) (has \d+ entries but x is|must be a sequence with a pair|.*to take cells away)",
    ),
    Cause("an index out of range", ShapeError, r"^index -?\d+ is out of range"),
    Cause("x has no first axis", ShapeError, r"^x must have a first axis to index"),
    Cause("v does not fit x and the index", ShapeError, r"^v is .* but (an index of shape|index \d+ into)"),
    Cause("n does not fit x", ShapeError, r"^(x is .* and n is|n must be at least)"),
    Cause(
        "a transform along the real and imaginary parts",
        ShapeError,
        r"holds real and imaginary parts; transform another",
    ),
    Cause("the axis left out", ShapeError, r"^the axis is missing"),
    Cause("p has no entries", ShapeError, r"^p is .* a matrix without entries"),
)
"""Those of few."""

OF_FUNCTIONS = (
    Cause(
        "an operand of another dtype", DtypeError, r"must be of dtype bool|must have one dtype|of integers|integers but"
    ),
    Cause("an operand of another dtype", DtypeError, r"must be a tensor of numbers"),
    Cause("a result that is a mask", DtypeError, r"^the result must be a tensor of numbers"),
    Cause("an operand that is no tensor", ProgramError, r"where it needs a ref"),
    Cause(
        "an invalid argument",
        ShapeError,
        r"^(a repeat|a size|a pair|the factor|the equation|interpolation|scale|size, scale|indexing|ord|p|gates"
        r"|kernel) (must|and)|is about \d+ operands",
    ),
    Cause("operands that do not fit each other", ShapeError, r"^(?!.*internal).* (is|are|needed|axes|has|have|be) "),
)
"""Those of derived functions, which say more in words of their own."""

CAUSES = OWN + SHARED + OF_FUNCTIONS
"""All of them: the first that matches is the cause."""
