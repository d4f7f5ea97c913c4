"""What a factory hands over: the model, and what to call it with."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Optional, Union

from aligner.errors import CaptureError, Reason, because

Arguments = tuple[tuple[object, ...], dict[str, object]]


@dataclass(frozen=True)
class Task:
    """A model and its inputs, and for training steps the loss, the optimizer and their settings.

    `inputs` is one tuple of arguments, or a list with one tuple per step; a dict in a tuple's place is passed as
    keyword arguments. `keywords` are given by name in every step besides. Arrays may be numpy's: they are turned into
    the framework's tensors.

    With a loss, the last item of each tuple is the label, and `loss(output, label)` gives a scalar. A training step is
    one update of the optimizer: for each of `accumulate` tuples forward, loss times `loss_scale`, gradients of the
    optimizer's parameters, divided by `loss_scale` and scaled down to a norm of `clip_norm` in all; their sum goes to
    the optimizer, and then `lr_schedule.step()` is called if there is one. `steps` are made, with the tuples in turn.
    """

    model: Any
    inputs: Any = None
    loss: Any = None
    optimizer: Any = None
    steps: int = 1
    clip_norm: Optional[float] = None
    accumulate: int = 1
    loss_scale: Optional[float] = None
    lr_schedule: Any = None
    keywords: Mapping[str, Any] = field(default_factory=dict)

    @property
    def trains(self) -> bool:
        """Whether training steps are asked for."""
        return self.loss is not None

    def arguments(self) -> list[Arguments]:
        """The arguments of each step."""
        if self.inputs is None:
            return []
        rows = self.inputs if isinstance(self.inputs, list) else [self.inputs]
        return [(given, {**self.keywords, **named}) for given, named in map(_arguments, rows)]


def _arguments(row: object) -> Arguments:
    if isinstance(row, Mapping):
        return (), {str(name): value for name, value in row.items()}
    if isinstance(row, tuple) and not hasattr(row, "_fields"):
        return row, {}
    return (row,), {}


def as_task(made: object) -> Task:
    """What a factory returned, as a Task: a Task, a model, `(model, inputs)`, or `(model, inputs, keywords)`.

    Raises:
        CaptureError: for None, for tuples of another length, and for a training that lacks something.
    """
    if isinstance(made, Task):
        task = made
    elif isinstance(made, tuple) and not hasattr(made, "_fields"):
        by_name = made[2] if len(made) == 3 else {}
        if not 2 <= len(made) <= 3 or not isinstance(by_name, Mapping):
            raise CaptureError("factory-tuple", length=len(made))
        task = Task(made[0], made[1], keywords={str(name): value for name, value in by_name.items()})
    else:
        task = Task(made)
    if task.model is None:
        raise CaptureError("factory-none")
    if task.optimizer is not None and task.loss is None:
        raise CaptureError("training-without-loss")
    if task.trains and any(not args or len(args) + len(named) < 2 for args, named in task.arguments()):
        raise CaptureError("training-without-label")
    if type(task.accumulate) is not int or task.accumulate < 1:
        raise CaptureError("training-accumulate", found=repr(task.accumulate))
    return task


def from_npz(path: str) -> Union[tuple[object, ...], dict[str, object]]:
    """The inputs that a .npz file holds: arr_0, arr_1, ... in order, or by their names as keyword arguments."""
    try:
        arrays = _read_npz(path)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise CaptureError("inputs-not-npz", path=path, reason=because(error)) from error
    if not arrays:
        raise CaptureError("inputs-not-npz", path=path, reason="why-no-arrays")
    if all(name.startswith("arr_") for name in arrays):
        return tuple(arrays[f"arr_{i}"] for i in range(len(arrays)))
    return dict(arrays)


def _read_npz(path: str) -> dict[str, object]:
    import numpy as np

    with open(path, "rb") as stream:  # numpy leaves a file open that it cannot read
        file = np.load(stream, allow_pickle=False)
        if not hasattr(file, "files"):
            raise Reason("why-single-array")
        with file:
            return {name: file[name] for name in file.files}
