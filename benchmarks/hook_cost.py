"""What observing costs for each layer besides copying values, next to the limit of 25 us for a whole capture.

Run it as `python benchmarks/hook_cost.py [--layers N]`. It times a net of many layers that do nothing, plain, observed
by callbacks that do nothing, and observed by callbacks that take the arguments apart as a capture does. Every figure is
the fastest of several rounds of CPU time, so that other programs on the machine do not count. Frameworks that are not
installed are left out.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from aligner import registry
from aligner.errors import AdapterError
from aligner.structure import flatten_arguments, flatten_result

LIMIT_US = 25.0
ROUNDS = 7


def torch_net(layers: int):
    from torch import nn

    return nn.Sequential(*(nn.Identity() for _ in range(layers)))


def mindspore_net(layers: int):
    from mindspore import nn

    return nn.SequentialCell([nn.Identity() for _ in range(layers)])


NETS = {"torch": torch_net, "mindspore": mindspore_net}


def fastest(run: Callable[[], object]) -> float:
    """CPU seconds of the fastest round."""
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.process_time()
        run()
        best = min(best, time.process_time() - start)
    return best


def observers(adapter):
    """Callbacks by name: nothing, and what a capture does besides copying."""

    def nothing(*_):
        pass

    def take_inputs_apart(args, kwargs):
        flatten_arguments(args, kwargs, adapter.is_tensor, [])

    def take_output_apart(args, kwargs, output):
        flatten_result(output, adapter.is_tensor, [])

    def show_inputs(args, kwargs):
        found = []
        flatten_arguments(args, kwargs, adapter.is_tensor, found)
        for _, tensor in found:
            adapter.to_numpy(tensor)

    def show_output(args, kwargs, output):
        found = []
        flatten_result(output, adapter.is_tensor, found)
        for _, tensor in found:
            adapter.to_numpy(tensor)

    return {
        "observed, callbacks do nothing": (nothing, nothing),
        "observed, values found": (take_inputs_apart, take_output_apart),
        "observed, values found and shown to numpy": (show_inputs, show_output),
    }


def measure(name: str, layers: int) -> bool:
    """Print the figures of one framework; whether they keep the limit."""
    adapter = registry.load(name)
    net = NETS[name](layers)
    x = adapter.from_numpy(np.zeros((2, 2), np.float32), "float32")

    def run():
        with adapter.running(net):
            net(x)

    run()
    plain = fastest(run)
    print(f"{name} {adapter.version()}, {layers} layers, plain: {plain / layers * 1e6:.2f} us a layer")
    watcher = adapter.watch_roots(lambda model: None)
    watched = fastest(run)
    watcher.remove()
    print(f"  roots watched: +{(watched - plain) / layers * 1e6:.2f} us a layer")
    good = True
    for what, (before, after) in observers(adapter).items():
        handles = [adapter.observe(layer, before, after) for _, layer in adapter.layers(net)]
        try:
            cost = (fastest(run) - plain) / layers * 1e6
        finally:
            for handle in handles:
                handle.remove()
        good = good and cost <= LIMIT_US
        print(f"  {what}: +{cost:.2f} us a layer, {cost / LIMIT_US:.2f} of the limit of {LIMIT_US:.0f} us")
    left = fastest(run) / plain
    print(f"  after removal: {left:.2f} of plain")
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=2000)
    layers = parser.parse_args().layers
    results = []
    for name in NETS:
        try:
            results.append(measure(name, layers))
        except AdapterError as error:
            print(f"{name}: left out: {error.text('en').splitlines()[0]}")
    return 0 if results and all(results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
