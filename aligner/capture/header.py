"""The header of a dump: what ran, where, and how."""

from __future__ import annotations

import datetime
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np

import aligner
from aligner.adapter import Adapter


def describe(
    adapter: Adapter, model: object, *, command: Optional[Sequence[str]] = None, seed: Optional[int] = None
) -> Mapping[str, Any]:
    """All that is known before the net runs; what the run adds is updated later."""
    return {
        "format": 1,
        "aligner": aligner.__version__,
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "framework": adapter.name,
        "framework_version": adapter.version(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "platform": platform.platform(),
        "command": list(sys.argv if command is None else command),
        "seed": seed,
        "rank": rank(os.environ),
        "model": adapter.type_name(model).rpartition(".")[2],
        "training": adapter.training(model),
        "amp": None,
        **adapter.environment(model),
    }


def rank(environ: Mapping[str, str]) -> int:
    """This process's rank in a distributed run, by the variables that launchers set."""
    for name in ("RANK", "RANK_ID", "OMPI_COMM_WORLD_RANK"):
        if environ.get(name, "").isdigit():
            return int(environ[name])
    return 0
