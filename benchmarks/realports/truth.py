"""The truth of a pair, found again without aligner.

    python benchmarks/realports/truth.py NAME... [--planted] [--layers]

Carries the reference's weights into the port and runs both. A right port's last outputs are the reference's. A wrong
one's are, once all its edits are made, and are not with any one of them left out: each edit is a true difference.
With --planted, each planted mistake must move the last output of the right (or mended) port.
"""

from __future__ import annotations

import argparse
import copy
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import carry
import numpy as np
import packages
import pairs
import seen

AGREE = 1e-4
ROUNDING = 5.0
"""So many times as far from float64 as the reference's own float32 the port may be, where that is more."""
SMALL = 1e-3


@dataclass(frozen=True)
class Reference:
    """A run of the reference in float32, and its last outputs in float64."""

    inputs: list[np.ndarray]
    run: seen.Seen
    exact: list[np.ndarray]
    eps: dict[str, float]

    @property
    def rounding(self) -> float:
        """How far its float32 is from float64."""
        return seen.furthest(self.exact, self.run.last) or 0.0

    @property
    def limit(self) -> float:
        """How far a right port may be from float64."""
        return max(AGREE, ROUNDING * self.rounding)

    def apart(self, last: Sequence[np.ndarray]) -> float:
        """How far the port's last outputs are from float64; infinite if they are others."""
        found = seen.furthest(self.exact, last)
        return float("inf") if found is None else found


def built(path: Path) -> Any:
    """What `build` of this file returns."""
    spec = spec_from_file_location(f"pair_{path.parent.name}_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} cannot be imported")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.build()


def reference_of(pair: pairs.Pair) -> Reference:
    """Run the pair's reference."""
    import torch

    net, *given = built(pair.folder / "reference.py")
    inputs = [value for item in given for value in (item if isinstance(item, tuple) else (item,))]
    with torch.no_grad():
        exact = seen.arrays(copy.deepcopy(net).double()(*[value.double() for value in inputs]))
    eps = {name: module.eps for name, module in net.named_modules() if isinstance(getattr(module, "eps", None), float)}
    return Reference([value.numpy() for value in inputs], seen.see_torch(net, inputs), exact, eps)


class Ports:
    """The pair's port, as published or edited, on the reference's weights."""

    def __init__(self, pair: pairs.Pair, reference: Reference, folder: Path):
        self.pair, self.reference, self.folder = pair, reference, folder
        self.source = packages.installed()
        self.made = 0
        self.mended = self._net(pair.mended)
        self.weights, self.origin = carry.carried(
            reference.run, seen.see_port(self.mended, reference.inputs), pair.carry
        )

    def run(self, edits: Sequence[pairs.Edit]) -> float:
        """How far the port with these edits is from the reference."""
        net = self._net(edits)
        carry.put(net, self.weights)
        return self.reference.apart(seen.compute(net, self.reference.inputs))

    def other_eps(self) -> list[str]:
        """Norms of the mended port whose eps is not the reference's, and that no difference speaks of."""
        from_port = {name.rpartition(".")[0]: place.rpartition(".")[0] for name, place in self.origin.items()}
        lines = []
        for path, cell in self.mended.cells_and_names():
            there = from_port.get(path)
            one = self.reference.eps.get(there) if there is not None else None
            other = getattr(cell, "epsilon", getattr(cell, "eps", None))
            if one is None or other is None or abs(one - other) <= 1e-3 * one:
                continue
            entry = {"layer": there, "port_layer": path}
            if not any(difference.is_at(entry) for difference in self.pair.differences):
                lines.append(f"eps of {there} is {one:g}, of {path} {other:g}")
        return lines

    def layers(self, edits: Sequence[pairs.Edit]) -> list[str]:
        """A line for each layer with weights: how far its output is from the reference's."""
        net = self._net(edits)
        carry.put(net, self.weights)
        run = seen.see_port(net, self.reference.inputs)
        from_port = {name.rpartition(".")[0]: place for name, place in self.origin.items()}
        lines = []
        for unit in run.units:
            there = from_port.get(unit.path, "").rpartition(".")[0]
            one, other = self.reference.run.outputs.get(there), run.outputs.get(unit.path)
            if one is not None and other is not None:
                far = seen.apart(one, other.reshape(one.shape) if one.size == other.size else other)
                lines.append(f"    {far:8.1e}  {there} {one.shape} | {unit.path} {other.shape}")
        return lines

    def _net(self, edits: Sequence[pairs.Edit]) -> Any:
        self.made += 1
        place = self.folder / f"{self.pair.name}{self.made}"
        packages.edited_copy(place, edits, self.source)
        for name in [name for name in sys.modules if name.partition(".")[0] == packages.PORT]:
            del sys.modules[name]
        sys.path.insert(0, str(place))
        try:
            return built(self.pair.folder / "port.py")
        finally:
            sys.path.remove(str(place))


def check(pair: pairs.Pair, folder: Path, planted: bool, layers: bool) -> list[str]:
    """Print what was found; what is not as the corpus says."""
    reference = reference_of(pair)
    ports = Ports(pair, reference, folder)
    wrong: list[str] = []
    far = ports.run(pair.mended)
    said = "right" if pair.right else f"{len(pair.told)} differences"
    print(f"{pair.name}: {said}; with all edits {far:.1e} (limit {reference.limit:.1e})", flush=True)
    if far > reference.limit:
        wrong.append(f"{pair.name}: {far:.1e} from the reference, which is more than {reference.limit:.1e}")
    for one in pair.told:
        rest = [edit for other in pair.differences if other is not one for edit in other.edits]
        far = ports.run(rest)
        print(f"  {far:8.1e}  {one.id}", flush=True)
        wrong += told(one, far)
    for one in pair.planted if planted else ():
        far = ports.run([*pair.mended, *one.edits])
        print(f"  {far:8.1e}  planted: {one.id}", flush=True)
        wrong += told(one, far)
    wrong += [f"{pair.name}: {line}" for line in ports.other_eps()]
    if layers:
        print("\n".join(ports.layers(pair.mended)))
    return wrong


def told(one: pairs.Difference, far: float) -> list[str]:
    """What is not as the corpus says of this difference."""
    if (far <= SMALL) != one.small:
        return [f"{one.pair}: {one.id} moves the last output by {far:.1e}, but small is {one.small}"]
    return []


def main() -> int:
    parser = argparse.ArgumentParser(description="The truth of pairs, without aligner.")
    parser.add_argument("name", nargs="*", help="a pair (all)")
    parser.add_argument("--planted", action="store_true", help="the planted mistakes too")
    parser.add_argument("--layers", action="store_true", help="each layer of the right (or mended) port")
    options = parser.parse_args()
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.name or pairs.names():
            try:
                wrong += check(pairs.pair(name), Path(folder), options.planted, options.layers)
            except (carry.CarryError, ValueError) as error:
                wrong.append(f"{name}: {error}")
    print("\n".join(["", *wrong]) if wrong else "all is as the corpus says")
    return 1 if wrong else 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # MindSpore's cells complain, one by one, when Python takes them down
