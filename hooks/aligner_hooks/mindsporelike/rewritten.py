"""Classes that MindSpore's mixed precision writes, and the ones in whose place they stand.

To put casts between a net's operators, MindSpore rewrites the source of each class, saves it in a folder
`rewritten_network`, imports it, and makes a cell of the new class out of the old one. Level O1 does so; with MindTorch,
O2 and O3 too. For each net after the first it imports the files of the classes once more, as modules without their
package ("nn.modules.conv"): these copies are other classes for Python.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from typing import Any

# "Conv2dOpt" in a module called "NetOpt_1402820".
REWRITTEN = re.compile(r"Opt(_\d+)+$")


def written(kind: type) -> type:
    """The class the user wrote, where a rewritten one stands in its place."""
    if not is_rewritten(kind):
        return kind
    return first_import(kind.__mro__[1])


def is_rewritten(kind: type) -> bool:
    """Whether MindSpore wrote this class, to have casts in it."""
    return "Opt" in kind.__name__ and REWRITTEN.search(kind.__module__) is not None


def first_import(kind: type) -> type:
    """The class as it was imported first, with its package, where this one is a copy; else the class itself."""
    found: Any = sys.modules.get(_whole_name(kind.__module__))
    for name in kind.__qualname__.split("."):
        found = getattr(found, name, None)
    return found if isinstance(found, type) else kind


@cache
def _whole_name(module: str) -> str:
    """The name under which this file was imported first."""
    file = getattr(sys.modules.get(module), "__file__", None)
    names = [name for name, other in list(sys.modules.items()) if getattr(other, "__file__", None) == file]
    return next((name for name in names if file and name.endswith(f".{module}")), module)
