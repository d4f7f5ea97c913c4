"""What a whole capture costs a layer besides copying, and how much memory it takes above the net.

    python benchmarks/capture_cost.py

Time: a net of layers that do nothing, plain and under a capture whose values go to a sink that only counts; CPU time,
fastest of several rounds. Memory: peak resident size of a process that runs a deep net of 16 MiB activations, plain
and captured into a dump; the difference must stay near one tensor, whatever the dump's size.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMIT_US = 25.0
LAYERS = 2000
DEPTH = 64
TENSOR = 16 << 20


def layer_cost(framework: str) -> float:
    """Microseconds per layer."""
    from aligner import registry
    from aligner.capture.session import Capture, Options
    from aligner.capture.tally import Tally

    class Nothing(Tally):
        """Values go nowhere: storing them is measured by dump_speed.py."""

        def write(self, record: object) -> None:
            self.records += 1

    if framework == "torch":
        import torch as library

        net, x = library.nn.Sequential(*(library.nn.Identity() for _ in range(LAYERS))).eval(), library.ones(4)
    else:
        import mindspore as library

        net, x = library.nn.SequentialCell([library.nn.Identity() for _ in range(LAYERS)]), library.ops.ones(4)

    def fastest() -> float:
        best = float("inf")
        for _ in range(7):
            start = time.process_time()
            net(x)
            best = min(best, time.process_time() - start)
        return best

    plain = fastest()
    with Capture(registry.of(net), net, "", Options(), sink=Nothing()):
        captured = fastest()
    return (captured - plain) / LAYERS * 1e6


def peak(captured: bool) -> int:
    """Peak resident bytes of a process that runs the deep net once."""
    done = subprocess.run(
        [sys.executable, __file__, "peak", str(int(captured))], capture_output=True, text=True, check=True
    )
    return int(done.stdout.split()[-1])


def run_deep_net(captured: bool) -> None:
    """The child: DEPTH layers, each making a tensor of TENSOR bytes and letting go of its input."""
    import torch

    import aligner

    class Add(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    net = torch.nn.Sequential(*(Add() for _ in range(DEPTH))).eval()
    x = torch.zeros(TENSOR // 4)
    with torch.no_grad():
        net(x)
        # The small capture brings in what a capture imports, so that only tensors are counted below.
        with tempfile.TemporaryDirectory() as folder:
            with aligner.capture(net, Path(folder) / "small.h5"):
                net(torch.zeros(4))
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            if captured:
                with aligner.capture(net, Path(folder) / "x.h5"):
                    net(x)
            else:
                net(x)
    print(before * 1024, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def main() -> int:
    good = True
    for framework in ("torch", "mindspore"):
        try:
            cost = layer_cost(framework)
        except ImportError:
            print(f"{framework:<10} not installed")
            continue
        good = good and cost <= LIMIT_US
        print(f"{framework:<10} {cost:6.1f} us a layer, {cost / LIMIT_US:.2f} of the limit {LIMIT_US:.0f}")
    plain, captured = peak(False), peak(True)
    above = (captured - plain) / TENSOR
    good = good and above <= 1.5
    print(
        f"memory     {DEPTH} layers of {TENSOR >> 20} MiB, dump of {DEPTH * TENSOR >> 20} MiB: "
        f"{(captured - plain) / 2**20:.0f} MiB above the net = {above:.2f} tensors (limit 1, and half a one for noise)"
    )
    return 0 if good else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["peak"]:
        run_deep_net(sys.argv[2] == "1")
    else:
        sys.exit(main())
