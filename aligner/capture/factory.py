"""The factory door: build the net, run it on its inputs (or on the reference's), and capture every step."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Optional, cast

import numpy as np

from aligner import registry
from aligner.adapter import Adapter, Trains
from aligner.capture.script import ImportWatcher
from aligner.capture.task import Arguments, Task, as_task
from aligner.dtypes import DTYPES
from aligner.errors import AdapterError, CaptureError
from aligner.patches import together
from aligner.source.constructing import noted

Lost = Callable[[object, object, object], object]
"""Is told of the net's output, the label, and the loss."""


@dataclass(frozen=True)
class Run:
    """A model with its adapter, ready to be called once per step."""

    adapter: Adapter
    model: Any
    steps: Sequence[Arguments]
    mode: Optional[str] = None
    """"pynative" or "graph"; None as the program has set it."""
    wanted: Optional[int] = None
    """How many steps to run, the arguments again from the first when they are through; None: each once."""
    task: Optional[Task] = None
    """The training that is captured, if it is one: then a step is an update."""

    @property
    def count(self) -> int:
        """How many steps there are; none without arguments."""
        batches = self.task.accumulate if self.task is not None else 1
        return -(-len(self.steps) // batches) if self.wanted is None or not self.steps else self.wanted

    def stepping(self, lost: Lost) -> Callable[[int], object]:
        """What makes a step of this number; `lost` is told of each loss."""
        task = self.task
        if task is None:
            return self.step
        train, size = cast(Trains, self.adapter).trained(self.model, task, lost), task.accumulate
        rows = self.steps
        return lambda index: train([rows[(index * size + n) % len(rows)] for n in range(size)])

    def surroundings(self) -> AbstractContextManager[object]:
        """What a step runs in."""
        return nullcontext() if self.task is not None else self.adapter.running(self.model, self.mode)

    def step(self, index: int, mode: Optional[str] = None) -> None:
        """Call the model on the arguments of one step, in its mode or another."""
        args, kwargs = self.steps[index % len(self.steps)]
        with self.adapter.running(self.model, mode or self.mode):
            self.model(*args, **kwargs)


def seed_everything(seed: int) -> None:
    """Seed what is seeded without a framework; the factory may build its inputs with it."""
    random.seed(seed)
    np.random.seed(seed % 2**32)


def build(load: Callable[[], Callable[[], object]], framework: Optional[str], seed: int) -> tuple[Adapter, Task]:
    """Load the factory, call it under a fixed seed, and find the framework of what it returned.

    Random numbers are seeded twice: when the file imports its framework (it may build the net while it is loaded)
    and again right before the factory is called.

    Raises:
        CaptureError: it returned something else, or a model of another framework than the one asked for.
    """
    if framework is not None:
        registry.load(framework)
    seed_everything(seed)
    imported: list[Adapter] = []

    def on_import(name: str) -> None:
        # One that the net does not need may not load: MindTorch brings a MindSpore with it, or stands for torch.
        with suppress(AdapterError):
            imported.append(registry.load(name))
            imported[-1].seed(seed)
            handle.add(noted(imported[-1]).remove)

    with together() as handle, ImportWatcher(sorted(registry.available()), on_import, registry.prepare):
        factory = load()
        for adapter in imported:
            adapter.seed(seed)
        seed_everything(seed)
        task = as_task(factory())
        handle.remove()
    adapter = registry.of(task.model)
    if framework is not None and adapter.name != framework:
        raise CaptureError("framework-wanted", found=adapter.name, wanted=framework)
    adapter.seed(seed)  # what the framework has only put off until now fails here: it is the factory's
    return adapter, task


def tensors(
    adapter: Adapter, value: object, move: Callable[[object], object], around: tuple[object, ...] = ()
) -> object:
    """Numpy arrays inside an argument as tensors of the framework, on the chosen device.

    Where a value stands in one of those `around` it, in itself that is, it is left as it is.
    """
    if isinstance(value, np.ndarray) or (isinstance(value, np.generic) and value.dtype.name in DTYPES):
        array = np.asarray(value)
        try:
            tensor = adapter.from_numpy(array, array.dtype.name)
        except (ValueError, KeyError) as error:
            raise CaptureError("input-dtype", dtype=array.dtype, framework=adapter.name) from error
        return move(tensor)
    if adapter.is_tensor(value):
        return move(value)
    if any(value is outer for outer in around):
        return value
    around = (*around, value)
    if type(value) is list:
        return [tensors(adapter, item, move, around) for item in value]
    if type(value) is tuple:
        return tuple(tensors(adapter, item, move, around) for item in value)
    if type(value) is dict:
        return {key: tensors(adapter, item, move, around) for key, item in value.items()}
    return value


def prepare(
    adapter: Adapter, task: Task, device: Optional[str], steps: Optional[int], mode: Optional[str] = None
) -> Run:
    """Put model and arguments on the device; the arguments are repeated for as many steps as asked."""
    move: Callable[[object], object] = (lambda value: value) if device is None else adapter.device(device)
    model = move(task.model)
    rows = [
        (
            tuple(tensors(adapter, value, move) for value in args),
            {name: tensors(adapter, value, move) for name, value in kwargs.items()},
        )
        for args, kwargs in task.arguments()
    ]
    wanted = max(task.steps, -(-len(rows) // task.accumulate)) if steps is None else steps
    return Run(adapter, model, rows, mode, wanted, task if task.trains else None)


def free_space(path: str) -> int:
    """Bytes free where `path` will be written."""
    import os

    return shutil.disk_usage(os.path.dirname(os.path.abspath(path))).free
