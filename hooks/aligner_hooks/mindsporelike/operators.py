"""Plain words for MindSpore's operators, and which of them compute nothing."""

from __future__ import annotations

import re

# Operators go by several names inside MindSpore; these are the words that users write.
_ENDINGS = re.compile(r"(Ext|View|Prim|V\d)+$")
_WORDS = {
    **{f"reduce{word}": word for word in ("mean", "sum", "max", "min", "std", "any", "all", "prod")},
    **{f"{word}s": word for word in ("add", "sub", "mul", "div")},
    "batchmatmul": "bmm",
    "reversev2": "flip",
}
# What MindSpore asks a tensor: nothing is computed.
_QUESTIONS = frozenset(("typeof", "shape", "dtype", "rank"))
# What crosses between tensors of MindTorch's, of MindSpore's and numbers, and what asks for shapes and types.
_CROSSINGS = (
    "getitem",
    "convertto",
    "tensorshape",
    "dynamicshape",
    "isshape",
    "scalarto",
    "tensortoscalar",
    "dtypeto",
    "stringto",
    "tupleto",
)
# What computes nothing: casts, and operators that move values or fill with them.
_MOVES = re.compile(
    r"cast|reshape|view|transpose|permute|expanddims|squeeze|flatten|concat|stack|split|chunk|slice|gather|index|select"
    r"|tile|repeat|broadcast|expand|copy|clone|contiguous|identity|pad|reverse|flip|roll|scatter|masked_?fill|tril|triu"
    r"|zeros|ones|fill|full|arange|range|eye|empty|dropout|depend|detach|narrow|unbind|diag|embedding|where|assign"
)


def word(name: str) -> str:
    """A plain word for MindSpore's name of an operator: "MatMulExt" is "matmul"."""
    plain = _ENDINGS.sub("", name).lower()
    return _WORDS.get(plain, plain)


def is_question(plain: str) -> bool:
    """Whether the operator of this word only asks a tensor for something."""
    return plain in _QUESTIONS


def is_crossing(plain: str) -> bool:
    """Whether it only crosses between tensors and numbers, or asks for shapes and types."""
    return plain.startswith(_CROSSINGS)


def is_move(plain: str) -> bool:
    """Whether the operator of this word computes nothing."""
    return _MOVES.match(plain) is not None
