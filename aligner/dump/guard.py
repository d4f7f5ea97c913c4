"""What is wrong with an HDF5 file that is not as aligner writes it. (See inspect.)"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

from aligner.errors import DumpError


def inspect(path: Path) -> Optional[dict[str, Any]]:
    return None


def refusal(path: Path, found: dict[str, Any]) -> DumpError:
    return DumpError("dump-changed", path=path)
