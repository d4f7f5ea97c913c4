"""How long `aligner --help` takes, in CPU time, next to an empty Python and to the limit of 60 ms.

python benchmarks/start_time.py
"""

from __future__ import annotations

import os
import subprocess
import sys

LIMIT_MS = 60.0
ROUNDS = 15


def cpu(*arguments: str) -> float:
    """Milliseconds of user and system time of the fastest run."""
    best = float("inf")
    for _ in range(ROUNDS):
        before = os.times()
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
        after = os.times()
        spent = after.children_user - before.children_user + after.children_system - before.children_system
        best = min(best, spent * 1000)
    return best


def main() -> int:
    empty, help_, import_ = cpu("-c", "pass"), cpu("-m", "aligner", "--help"), cpu("-c", "import aligner")
    print(f"python -c pass   {empty:6.0f} ms")
    print(f"import aligner   {import_:6.0f} ms")
    print(f"aligner --help   {help_:6.0f} ms   {help_ / LIMIT_MS:.2f} of the limit {LIMIT_MS:.0f} ms")
    return 0 if help_ < LIMIT_MS else 1


if __name__ == "__main__":
    sys.exit(main())
