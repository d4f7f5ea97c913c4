"""Every benchmark after the other; the exit code says whether all limits were kept (`make bench`)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

NAMES = ("start_time", "hook_cost", "capture_cost", "training_cost", "dump_speed", "compare_speed", "weights_speed")


def main() -> int:
    failed = []
    for name in NAMES:
        print(f"== {name}", flush=True)
        if subprocess.run([sys.executable, Path(__file__).with_name(f"{name}.py")], check=False).returncode:
            failed.append(name)
    print(f"over a limit: {', '.join(failed)}" if failed else "all within their limits")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
