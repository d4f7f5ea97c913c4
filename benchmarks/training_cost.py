"""What capturing training steps costs, next to the plain steps and to writing the same bytes.

    python benchmarks/training_cost.py [--rounds N] [--long]

A ResNet of bottlenecks and a transformer (each about 14 million parameters, of benchmarks/whole) are trained in torch
and in MindSpore (PyNative). Plain steps, steps captured without tensors of layers (`--layers ''`), steps captured with
all of them, and the plain writing of as many bytes take turns in one process; CPU seconds, medians. A limit is on
what a captured step takes besides writing, in plain steps.

`--long` runs 50 steps of each in processes of their own instead: time, peak memory, size of the dump. Dumps of up
to 20 GB go into the folder for temporary files; what writing costs there depends on what else the disk does.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np

LIMITS = {"": 1.3, "*": 2.5}
"""By pattern of layers."""
NAMES = {"": "no layers", "*": "all layers"}
NETS = ("resnet", "transformer")
FRAMEWORKS = ("torch", "mindspore")
STEPS = 3
"""Of each kind in a round."""
LONG = 50
PIECE = 4 << 20
MEMORY = Path("/dev/shm")
"""Where dumps go that are measured against plain writing: on a disk that others use the same write takes now this long,
now that."""


def module(net: str, framework: str):
    """The nets of whole_nets.py, made smaller."""
    sys.path.insert(0, str(Path(__file__).parent / "whole"))
    found = importlib.import_module(f"{'resnet50' if net == 'resnet' else 'transformer12'}_{framework}")
    if net == "resnet":
        found.STAGES = ((64, 2, 1), (128, 2, 2), (256, 2, 2), (512, 2, 2))
    else:
        found.DEPTH, found.WIDTH, found.HEADS, found.WORDS = 4, 512, 8, 2000
    return found


def batch(net: str, images: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    if net == "resnet":
        return rng.standard_normal((images, 3, 64, 64)).astype(np.float32), rng.integers(0, 1000, images)
    return rng.integers(0, 2000, (8, 64)), rng.integers(0, 2000, 8 * 64)


def torch_training(net: str) -> tuple[object, Callable[[], float]]:
    """The net, and one step of its training: SGD with momentum for the ResNet, Adam for the transformer."""
    import torch

    torch.manual_seed(0)
    found = module(net, "torch")
    model = (found.ResNet if net == "resnet" else found.Transformer)().train()
    kinds = {"resnet": (torch.optim.SGD, {"momentum": 0.9}), "transformer": (torch.optim.Adam, {})}
    kind, more = kinds[net]
    optimizer = kind(model.parameters(), lr=1e-4, **more)
    x, y = (torch.from_numpy(one) for one in batch(net, 16))

    def step() -> float:
        optimizer.zero_grad()
        output = model(x)
        loss = torch.nn.functional.cross_entropy(output.reshape(-1, output.shape[-1]), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return model, step


def mindspore_training(net: str) -> tuple[object, Callable[[], float]]:
    """The same in MindSpore."""
    import mindspore as ms

    ms.set_context(mode=ms.PYNATIVE_MODE)
    ms.set_seed(0)
    found = module(net, "mindspore")
    model = (found.ResNet if net == "resnet" else found.Transformer)().set_train()
    owned = model.trainable_params()
    optimizer = ms.nn.Momentum(owned, 1e-4, 0.9) if net == "resnet" else ms.nn.Adam(owned, 1e-4)
    images, labels = batch(net, 4)
    x = ms.Tensor(images if net == "resnet" else images.astype(np.int32))
    y = ms.Tensor(labels.astype(np.int32))

    def forward(x, y):
        output = model(x)
        return ms.ops.cross_entropy(output.reshape(-1, output.shape[-1]), y)

    differentiated = ms.value_and_grad(forward, None, optimizer.parameters)

    def step() -> float:
        loss, gradients = differentiated(x, y)
        optimizer(gradients)
        return float(loss.asnumpy())

    return model, step


TRAININGS = {"torch": torch_training, "mindspore": mindspore_training}


def capture(model: object, path: Path, layers: str):
    from aligner import registry
    from aligner.capture.session import Capture, Options

    return Capture(registry.of(model), model, path, Options([layers], gradients=True, force=True))


def timed(run: Callable[[], object]) -> tuple[float, float]:
    """CPU and wall seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return time.process_time() - cpu, time.perf_counter() - wall


def write(path: Path, size: int, source: list[np.ndarray]) -> None:
    """So many bytes as a program writes them that does nothing else, piece by piece from memory that is not at hand."""
    with open(path, "wb", buffering=0) as file:
        while size > 0:
            for array in source:
                flat = array.reshape(-1).view(np.uint8)
                for at in range(0, min(flat.size, size), PIECE):
                    os.write(file.fileno(), flat[at : min(at + PIECE, size)])
                size -= min(flat.size, size)
                if not size:
                    break
    path.unlink()


def child(framework: str, net: str, rounds: int) -> None:
    """All kinds of steps in turn, in this process."""
    model, step = TRAININGS[framework](net)
    source = [np.random.default_rng(1).standard_normal(1 << 22, dtype=np.float32) for _ in range(8)]
    found: dict[str, list[tuple[float, float]]] = {"plain": []}
    sizes: dict[str, int] = {}
    step(), step()
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        path = Path(folder) / "x.h5"
        for _ in range(rounds):
            found["plain"] += [timed(step) for _ in range(STEPS)]
            for layers in LIMITS:
                with capture(model, path, layers) as running:
                    found.setdefault(f"first {layers}", []).append(timed(step))
                    before = running._writer.bytes_written
                    found.setdefault(layers, []).extend(timed(step) for _ in range(STEPS))
                    sizes[layers] = (running._writer.bytes_written - before) // STEPS
                path.unlink()
                found.setdefault(f"write {layers}", []).append(
                    timed(lambda layers=layers: write(path, sizes[layers], source))
                )
    print(json.dumps({"times": found, "sizes": sizes}))


def long(framework: str, net: str, layers: str) -> None:
    """So many steps in this process, plain or captured."""
    model, step = TRAININGS[framework](net)
    size, times = 0, []
    with tempfile.TemporaryDirectory() as folder:
        step()
        if layers == "plain":
            times = [timed(step) for _ in range(LONG)]
        else:
            path = Path(folder) / "x.h5"
            with capture(model, path, layers):
                times = [timed(step) for _ in range(LONG)]
            size = path.stat().st_size
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"times": times, "peak": peak, "size": size}))


def of_child(*words: str) -> dict[str, object]:
    done = subprocess.run([sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def medians(rows: list[tuple[float, float]]) -> tuple[float, float]:
    return median(cpu for cpu, _ in rows), median(wall for _, wall in rows)


def tell(framework: str, net: str, rounds: int) -> bool:
    """Print the figures of one training; whether they keep the limits."""
    found = of_child("child", framework, net, str(rounds))
    times = {name: medians(rows) for name, rows in found["times"].items()}
    plain, good = times["plain"], True
    print(f"{framework} {net}: plain step {plain[0]:.2f} s of CPU, {plain[1]:.2f} s in all")
    for layers, limit in LIMITS.items():
        (cpu, wall), raw, first = times[layers], times[f"write {layers}"], times[f"first {layers}"]
        ratio = (cpu - raw[0]) / plain[0]
        good = good and ratio <= limit
        print(
            f"  {NAMES[layers]:<10} {cpu:.2f} s, of these {raw[0]:.2f} s to write {found['sizes'][layers] >> 20} MiB: "
            f"the rest is {ratio:.2f} plain steps (limit {limit}); in all {wall / plain[1]:.2f} of its time; "
            f"the first step {first[0]:.2f} s"
        )
    return good


def tell_long(framework: str, net: str) -> None:
    for layers in ("plain", *LIMITS):
        found = of_child("long", framework, net, layers)
        cpu, wall = (sum(row[i] for row in found["times"]) for i in (0, 1))
        early, late = (medians(found["times"][at])[0] for at in (slice(1, 11), slice(-10, None)))
        print(
            f"{framework} {net}, {LONG} steps, {NAMES.get(layers, layers)}: {cpu:.1f} s of CPU, {wall:.1f} s in all; "
            f"the last steps take {late / early:.2f} of the first; peak {found['peak'] >> 20} MiB; "
            f"dump {found['size'] >> 20} MiB",
            flush=True,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--framework", choices=FRAMEWORKS, action="append")
    parser.add_argument("--net", choices=NETS, action="append")
    options = parser.parse_args()
    results = []
    for framework in options.framework or FRAMEWORKS:
        if importlib.util.find_spec(framework) is None:
            print(f"{framework}: not installed")
            continue
        for net in options.net or NETS:
            if options.long:
                tell_long(framework, net)
            else:
                results.append(tell(framework, net, options.rounds))
    return 0 if all(results) else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(*sys.argv[2:4], int(sys.argv[4]))
    elif sys.argv[1:2] == ["long"]:
        long(*sys.argv[2:5])
    else:
        sys.exit(main())
