"""What OpenI's MindTorch 0.3 and 0.4 need to be imported on the MindSpore they run on (2.5 before its release).

MindTorch replaces entries of the table by which compiled code picks a function for `**`. MindSpore 2.5 took four of
these entries out, for a tuple or list and a tensor, and MindTorch ends with an error where it does not find them. They
are put back, with a function that nothing calls: only code compiled by MindSpore looks at this table, and a tuple to
the power of a tensor is an error in Python. Nothing changes for what runs eagerly.

aligner does this by itself when it captures, and says so. A script that is to run without aligner begins with

    from aligner_hooks.mindtorch_ import shim
    shim.put_in()
"""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec
from typing import Any

_TAKEN_OUT = (("Tuple", "Tensor"), ("Tensor", "Tuple"), ("List", "Tensor"), ("Tensor", "List"))


class _State:
    """Whether the entries were put back by us."""

    put_in = False


def was_put_in() -> bool:
    """Whether this MindTorch would not have been imported without it."""
    return _State.put_in


def put_in() -> None:
    """Put the entries back where OpenI's MindTorch is installed and they are missing; once, and before its import."""
    if not _is_openi():
        return
    try:
        table: Any = import_module("mindspore.ops.composite.multitype_ops.pow_impl").pow_
        known = {tuple(_word(kind) for kind in signature) for signature, _ in table.entries}
    except (ImportError, AttributeError, TypeError, ValueError):
        return  # another MindSpore, which keeps it elsewhere: MindTorch's own error says what is wrong
    for signature in _TAKEN_OUT:
        if tuple(word.lower() for word in signature) not in known:
            table.register(*signature)(_left)
            _State.put_in = True


def _is_openi() -> bool:
    """Whether the mindtorch that would be imported is OpenI's; it is not imported for that."""
    try:
        spec = find_spec("mindtorch")
    except (ImportError, ValueError):
        return False
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    return any(os.path.isdir(os.path.join(folder, "torch")) for folder in folders)


def _word(kind: object) -> str:
    return str(kind).rpartition(".")[2].lower()


def _left(x: Any, y: Any) -> Any:
    return x
