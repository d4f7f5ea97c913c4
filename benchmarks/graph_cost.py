"""What capturing costs where MindSpore compiles the net, next to an eager capture of the same net.

    python benchmarks/graph_cost.py

Time: a transformer of 4 layers. The whole command, as a user types it, in which the graph is compiled with taps in it;
the first captured run alone, and the compilation of the net's own graph; further captured runs; and runs after the
capture has ended, against those of before.
Memory: peak resident size of a process that runs a net of 16 layers with activations of 64 MiB in a graph, captured
against plain, in activations.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

LIMIT = 2.0
AFTER = 1.1
"""A run after the capture may take this many times a run of before: noise."""
KEPT = 1.0
"""So many activations more than the net itself a capture may take."""
DEPTH = 16
TENSOR = 64 << 20
RUNS = 15


def net_and_words() -> tuple[object, tuple[object]]:
    """The transformer of whole_nets.py with 4 layers, and its input."""
    import mindspore as ms
    import numpy as np

    sys.path.insert(0, str(Path(__file__).parent / "whole"))
    import transformer12_mindspore as nets

    nets.DEPTH, nets.WIDTH, nets.HEADS, nets.WORDS = 4, 256, 4, 1000
    ms.set_seed(0)
    return nets.Transformer(), (ms.Tensor(np.arange(4 * 64).reshape(4, 64) % 1000, ms.int32),)


def timed(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def child(mode: str) -> None:
    """Everything in one mode, in a process of its own."""
    from aligner import registry
    from aligner.capture.session import Capture, Options

    net, (words,) = net_and_words()
    adapter = registry.of(net)
    found = {}
    with tempfile.TemporaryDirectory() as folder, adapter.running(net, mode):
        if mode == "graph":
            found["compile"] = timed(lambda: net(words).asnumpy())
            before = min(timed(lambda: net(words).asnumpy()) for _ in range(RUNS))
        with Capture(adapter, net, Path(folder) / "x.h5", Options()):
            found["first"] = timed(lambda: net(words).asnumpy())
            found["run"] = min(timed(lambda: net(words).asnumpy()) for _ in range(RUNS))
        if mode == "graph":
            found["after"] = min(timed(lambda: net(words).asnumpy()) for _ in range(RUNS)) / before
    print(json.dumps(found))


def deep(captured: bool) -> None:
    """The child that is measured for memory."""
    import mindspore as ms
    from mindspore import nn

    import aligner

    class Add(nn.Cell):
        def construct(self, x: ms.Tensor) -> ms.Tensor:
            return x + 1

    ms.set_context(mode=ms.GRAPH_MODE)
    net, x = nn.SequentialCell([Add() for _ in range(DEPTH)]), ms.ops.zeros(TENSOR // 4)
    net(x).asnumpy()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory() as folder:
        small = nn.SequentialCell([Add() for _ in range(DEPTH)])  # what a capture and a compilation bring in
        with aligner.capture(small, Path(folder) / "small.h5"):
            small(ms.ops.zeros(4)).asnumpy()
        if captured:
            with aligner.capture(net, Path(folder) / "x.h5"):
                net(x).asnumpy()
        else:
            net(x).asnumpy()
    print(json.dumps([before * 1024, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024]))


def command(mode: str) -> float:
    """Seconds of `aligner capture` in this mode."""
    with tempfile.TemporaryDirectory() as folder:
        target = f"{__file__}:net_and_words"
        words = ["-m", "aligner", "capture", "-q", target, "-o", f"{folder}/x.h5", "--mode", mode]
        return timed(lambda: subprocess.run([sys.executable, *words], stderr=subprocess.DEVNULL, check=True))


def of_child(*words: str) -> object:
    done = subprocess.run([sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> int:
    rounds = [(of_child("pynative"), of_child("graph")) for _ in range(3)]
    first = sorted(g["first"] / e["first"] for e, g in rounds)[1]
    run = sorted(g["run"] / e["run"] for e, g in rounds)[1]
    after = sorted(g["after"] for _, g in rounds)[1]
    eager, graph = rounds[1]
    commands = [(command("pynative"), command("graph")) for _ in range(5)]
    whole = sorted(g / e for e, g in commands)[2]
    print(
        f"capture command      graph {commands[0][1]:.1f} s, eager {commands[0][0]:.1f} s: {whole:.2f} (limit {LIMIT})"
    )
    print(f"first captured run   graph {graph['first']:.2f} s, eager {eager['first']:.2f} s: {first:.2f}")
    print(f"  (to compile the net as it is takes {graph['compile']:.2f} s)")
    times = f"graph {graph['run'] * 1e3:.1f} ms, eager {eager['run'] * 1e3:.1f} ms"
    print(f"further runs         {times}: {run:.2f} (limit {LIMIT})")
    print(f"after the capture    {after:.2f} of a run before it (limit {AFTER})")
    peaks = [[of_child("deep", word) for word in ("0", "1")] for _ in range(3)]
    above = sorted((captured[1] - plain[1]) / TENSOR for plain, captured in peaks)[1]
    of = f"activations of {TENSOR >> 20} MiB above the net, {DEPTH} layers recorded"
    print(f"memory               {above:.2f} {of} (limit {KEPT:g})")
    return 0 if max(whole, run) <= LIMIT and after <= AFTER and above <= KEPT else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["deep"]:
        deep(sys.argv[2] == "1")
    elif sys.argv[1:]:
        child(sys.argv[1])
    else:
        sys.exit(main())
