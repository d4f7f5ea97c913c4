"""One word for one operation, whatever a framework calls it, and what one of them runs in place of a single one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

_MOVES = re.compile(
    r"(cast|to|type|typeas|float|half|double|long|int|bool|bfloat16|reshape|view|flatten|unflatten|transpose|permute|t|mt"
    r"|expanddims|squeeze|unsqueeze|cat|stack|hstack|vstack|split|chunk|tensorsplit|unbind|getitem|setitem|slice"
    r"|stridedslice|narrow|index|indexselect|gather|gatherd|gathernd|take|takealongdim|tile|repeat"
    r"|repeatinterleave|broadcast|broadcastto|broadcasttensors|expand|expandas|copy|clone|contiguous|identity|detach"
    r"|item|tolist|flip|reverse|range|numpy|cpu|zeros|zeroslike|ones|oneslike|fill|full|fulllike|new\w*|arange|range|makerange|linspace"
    r"|eye|empty|emptylike|tensor|astensor|meshgrid|pixelshuffle|pixelunshuffle|onehot|depend|size|dropout"
    r"|requiresgrad|movedim|moveaxis|swapdims|gatherelements|tensorscatterupdate|scatterndupdate)_?"
)
"""What computes nothing and goes by many ways: no evidence, for right ports have other ones than their references."""

_ALIASES: Mapping[str, str] = {
    "add": "add_ addext iadd radd adds",
    "sub": "subtract isub rsub subext",
    "mul": "multiply imul rmul muls",
    "div": "truedivide truediv divide realdiv rtruediv itruediv rdiv divs",
    "floordiv": "floordivide rfloordiv ifloordiv",
    "neg": "negative",
    "pow": "square rpow tensorpow",
    "matmul": "bmm mm batchmatmul rmatmul mv",
    "linear": "dense",
    "sum": "reducesum sumext",
    "mean": "reducemean meanext",
    "max": "amax reducemax argmaxwithvalue maxdim",
    "min": "amin reducemin argminwithvalue mindim",
    "norm": "lpnorm linalgvectornorm vectornorm linalgnorm",
    "clamp": "clampscalar clamptensor clampmin clampmax clip clipbyvalue",
    "where": "maskedfill maskedfillscalar select",
    "not": "logicalnot bitwisenot invert",
    "and": "logicaland bitwiseand rand iand",
    "or": "logicalor bitwiseor ror ior",
    "eq": "equal",
    "ne": "notequal",
    "gt": "greater",
    "ge": "greaterequal",
    "lt": "less",
    "le": "lessequal",
    "interpolate": "upsample resizebilinear resizenearestneighbor resizebicubic resizelinear1d upsamplebilinear2d"
    " upsamplenearest2d upsamplenearest1d resizebilinearv2",
    "hardsigmoid": "hsigmoid",
    "hardswish": "hswish",
    "silu": "swish siluext",
    "avgpool": "avgpool1d avgpool2d avgpool3d",
    "maxpool": "maxpool1d maxpool2d maxpoolwithargmax maxpoolwithindices maxpoolwithmask",
    "cumsum": "cumsumext",
    "scatter_max": "scatterreduce tensorscattermax",
    "scatter_add": "indexadd scatteradd tensorscatteradd tensorscatterelements unsortedsegmentsum",
}
_WORDS = {alias: word for word, aliases in _ALIASES.items() for alias in aliases.split()}

COMPOSED: Mapping[str, str] = {
    "gelu": "erf add mul mul div sqrt",
    "leakyrelu": "mul maximum",
    "glu": "sigmoid mul",
    "silu": "sigmoid mul",
    "std": "mean sub pow sum div sqrt",
    "var": "mean sub pow sum div",
    "normalize": "pow sum sqrt clamp div",
    "cosinesimilarity": "mul sum norm norm clamp div mul",
    "scaleddotproductattention": "matmul matmul softmax div not where",
    "logsumexp": "max sub exp sum log add",
    "rsqrt": "sqrt reciprocal",
    "norm": "pow sum sqrt",
    "einsum": "matmul mul sum",
    "div": "reciprocal mul",
}
"""What runs as one operation in one framework and as these in another; not all of them need to."""

NEEDED: Mapping[str, str] = {
    **{name: parts for name, parts in COMPOSED.items() if name not in ("scaleddotproductattention", "einsum")},
    "normalize": "clamp div",
    "cosinesimilarity": "sum norm clamp div",
    "scaleddotproductattention": "matmul matmul softmax",
    "einsum": "",
}
"""Those of them without which it is not that operation."""


def plain(name: str) -> str:
    """The word for an operation's name; "" for what computes nothing."""
    bare = name.lower().rsplit(".", 1)[-1].replace("_", "")
    if _WORDS.get(bare) is None and _MOVES.fullmatch(bare):
        return ""
    return _WORDS.get(bare, bare)


_KINDS_OF_MOVES: Mapping[str, str] = {
    "transpose": "transpose permute t mt swapaxes swapdims movedim moveaxis",
    "reshape": "reshape view flatten unflatten squeeze unsqueeze expanddims",
    "slice": "getitem slice stridedslice narrow index indexselect gather gatherd take split chunk unbind tensorsplit",
    "cat": "cat concat concatenate stack hstack vstack",
    "expand": "expand broadcastto tile repeat repeatinterleave expandas",
    "flip": "flip reverse",
    "fill": "zeros zeroslike ones oneslike full fulllike",
    "range": "arange range linspace",
}
_MOVED = {alias: word for word, aliases in _KINDS_OF_MOVES.items() for alias in aliases.split()}


def moved(name: str) -> str:
    """The word for what an operation does that computes nothing."""
    bare = name.lower().rsplit(".", 1)[-1].replace("_", "")
    return _MOVED.get(bare, bare)


def apart(ours: Iterable[str], theirs: Iterable[str]) -> tuple[Counter[str], Counter[str]]:
    """Words that only one of two lists has, where they mean other computations."""
    one, other = Counter(ours), Counter(theirs)
    missing, extra = one - other, other - one
    for name in COMPOSED:
        for whole, parts in ((missing, extra), (extra, missing)):
            while whole[name] and not Counter(NEEDED[name].split()) - parts:
                whole[name] -= 1
                parts.subtract(Counter(COMPOSED[name].split()) & parts)
    for rest in (missing, extra):
        if rest["erf"]:
            rest.subtract(Counter(COMPOSED["gelu"].split()) & rest)
            rest["gelu"] += 1
    for added in (missing, extra):  # an index_add scales what it adds
        added["mul"] -= min(added["mul"], min(one["scatter_add"], other["scatter_add"]))
    return +missing, +extra
