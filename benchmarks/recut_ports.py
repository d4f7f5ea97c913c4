"""Whether the weights of ports that are cut otherwise find their places: every net of portbugs, cut by a program.

    python benchmarks/recut_ports.py [--seeds 6] [--first 0]

Other names, joined and split layers of queries, keys and values, flattened Sequentials, blocks as rows of twice as
many, layers in one that holds nothing else: several at once (tests/unit/replay/recut.py), asked either way round.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from aligner import registry  # noqa: E402 - as above
from aligner.replay.transfer import Transfer, plan  # noqa: E402 - as above
from tests.unit.replay import recut  # noqa: E402 - only after the path is known


def nets() -> Iterator[tuple[str, list[recut.Layer]]]:
    """By the net's folder, its layers with parameters; buffers that a port works out anew are left out."""
    for file in sorted((HERE / "portbugs").glob("*/*/reference.py")):
        name = "_".join(file.parts[-3:-1])
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        yield name, [*layers(module.build()[0])]


def layers(model: Any) -> Iterator[recut.Layer]:
    """In order of definition."""
    adapter = registry.of(model)
    kinds = {path: adapter.spec(layer).kind for path, layer in adapter.layers(model)}
    found: dict[str, dict[str, tuple[int, ...]]] = {}
    for one in adapter.parameters(model):
        if not one.buffer or one.role in ("running_mean", "running_var", "weight", "bias"):
            found.setdefault(one.layer, {})[one.role] = one.shape
    yield from (recut.Layer(path, kinds.get(path, ""), shapes) for path, shapes in found.items())


def places(transfer: Transfer) -> set[tuple[object, object, object, object]]:
    """Which rows of which parameter are which rows of which."""
    return {(one.reference.slot, rows(one.reference), one.port.slot, rows(one.port)) for one in transfer.matches}


def rows(item: Any) -> object:
    """None for all of them."""
    return (item.view.start, item.view.stop) if item.view.stop else None


def main() -> int:
    parser = argparse.ArgumentParser(description="Weights of ports that are cut otherwise.")
    parser.add_argument("--seeds", type=int, default=6, help="ports of each net (6)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (0)")
    options = parser.parse_args()
    asked = refused = wrong = 0
    for name, reference in nets():
        for seed in range(options.first, options.first + options.seeds):
            try:
                port = recut.port(reference, Random(f"{name}{seed}"))
            except AssertionError:  # two layers of one name: no such port
                continue
            truth = recut.truth(port)
            turned = {(one, own, other, its) for other, its, one, own in truth}
            sides = recut.items(reference), recut.items(port)
            for pair, wanted in ((sides, truth), (sides[::-1], turned)):
                found = plan(*pair, {})
                asked += 1
                refused += any(found.failing)
                if not any(found.failing) and places(found) != wanted:
                    wrong += 1
                    print(f"WRONG {name} {seed}")
    print(f"{asked} ports: {refused} refused, {wrong} wrong")
    return 0


if __name__ == "__main__":
    sys.exit(main())
