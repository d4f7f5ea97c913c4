"""Of which kind values are: which may stand in the place of another, as far as that is seen without a run."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from aligner.adapter import Adapter
from aligner.fingerprint import Fingerprint
from aligner.words.spelling import bracketed, unshaped

LARGEST = 4096
"""Larger numbers are no sizes that another is divided by."""

CASTS = ("astype", "to", "float", "half", "double", "int", "long")
"""Methods by which true and false become numbers."""

PLAIN = (bool, int, float, str, tuple, list, type(None))
"""Values that are told from others by what they are."""


def is_same(one: object, other: object) -> bool:
    both = isinstance(one, PLAIN) and isinstance(other, PLAIN)
    return one is other or (both and str(one).strip("()[]") == str(other).strip("()[]"))


def is_mask(value: Optional[Fingerprint]) -> bool:
    """Whether all of it is true or false."""
    return value is not None and value.whole and value.size > 1 and {*value.plain[3:]} <= {0.0, 1.0}


def hides(value: Optional[Fingerprint]) -> bool:
    """Whether all of it is nought or one, whatever its type."""
    if value is None or value.size < 2 or not 0.0 <= value.plain[3] < value.plain[4] <= 1.0:
        return False
    return math.isclose(value.plain[1] ** 2, value.plain[0], rel_tol=1e-5)  # the squares are the numbers


def is_factor(value: object) -> bool:
    return type(value) is int and 1 < value <= LARGEST


def alike(owner: object) -> Mapping[str, Sequence[str]]:
    """By the name of each layer, parameter or table that a layer keeps, the others of its class and shape."""
    own = vars(owner) if hasattr(owner, "__dict__") else {}
    tables = [own.get(table) or {} for table in ("_cells", "_params", "_modules", "_parameters", "_buffers")]
    kept = {name: one for table in tables for name, one in table.items() if one is not None}
    kept.update({name: one for name, one in own.items() if hasattr(one, "shape")})
    forms = {name: (type(one), getattr(one, "shape", None)) for name, one in kept.items()}
    return {
        name: [other for other, its in forms.items() if other != name and its == form] for name, form in forms.items()
    }


def as_condition(text: str, names: Mapping[str, Any], adapter: Adapter) -> str:
    """True and false, where what is said has them as numbers."""
    said = unshaped(text)
    try:
        node = ast.parse(said, mode="eval").body
    except SyntaxError:
        return text
    known = names.get(said)
    if known is not None and adapter.is_tensor(known):
        counts = adapter.dtype(known) != "bool"
    else:
        counts = isinstance(node, ast.Call) and getattr(node.func, "attr", "") in CASTS and "bool" not in said
    return f"{bracketed(text)} > 0" if counts else text


def as_index(text: str, names: Mapping[str, Any], adapter: Adapter) -> str:
    """Whole numbers, where what is said has them as broken ones."""
    known = names.get(text)
    is_broken = known is not None and adapter.is_tensor(known) and "float" in adapter.dtype(known)
    return text + (".int()" if adapter.name == "mindspore" else ".long()") * is_broken
