"""The parameters of a net among what a training script saves: under a key of its own, beside an optimizer's state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from aligner.errors import Reason
from aligner.weights.rebuilt import Opaque, Tensor
from aligner.weights.stored import Left, Weight
from aligner.words.optimizers import STATE

KEYS = (
    *("state_dict", "model_state_dict", "model_state", "model", "net", "network", "module", "net_state_dict"),
    *("state", "weights", "params", "params_ema", "model_ema", "ema", "teacher", "generator"),
)
"""Under what people save a net's parameters, the likeliest first."""

DEEPEST = 4

_NUMBERS = (
    "epoch epoch_num step step_num global_step cur_epoch_num cur_step_num learning_rate lr loss loss_scale "
    "scale_sense current_iterator_step last_overflow_iterator_step beta1_power beta2_power momentum weight_decay "
    "best_acc acc scale_window sens"
)
TRAINING = frozenset(_NUMBERS.split())
"""Names of single numbers that a training saves beside the weights."""

_COPIES = "m v mom rms linear stat accum_update mean_gradient accu_grads delta accumulator adam_m adam_v"
OPTIMIZER = frozenset({*STATE, *_COPIES.split()})
"""What MindSpore's optimizers put before the name of the parameter that they keep something of."""


@dataclass(frozen=True)
class Found:
    """Entries by name, `inside` the key that they stood under ("" for none), and what was left out."""

    entries: Mapping[str, Any]
    left: tuple[Left, ...]
    inside: str


def parameters(top: Any, depth: int = 0, inside: str = "") -> Found:
    """The table of parameters in what a file holds.

    Raises:
        Reason: there is none.
    """
    if isinstance(top, Opaque):
        raise Reason("why-no-table", top.name)
    if not isinstance(top, dict):
        raise Reason("why-no-table", "tensor" if isinstance(top, Tensor) else type(top).__name__)
    nested = {str(key): value for key, value in top.items() if _holds(value) and not str(key).startswith("optim")}
    direct = [key for key, value in top.items() if isinstance(value, Tensor)]
    chosen = next((key for key in KEYS if key in nested), None)
    if chosen is None and len(nested) == 1 and not direct:
        chosen = next(iter(nested))
    if chosen is not None and depth < DEEPEST:
        below = parameters(nested[chosen], depth + 1, f"{inside}.{chosen}".lstrip("."))
        others = tuple(Left(str(key), "left-beside") for key in top if str(key) != chosen)
        return Found(below.entries, (*below.left, *others), below.inside)
    if direct or not nested:
        if not direct:
            raise Reason("why-no-tensors")
        flat = {str(key): value for key, value in top.items() if not isinstance(value, dict)}
        tables = tuple(Left(str(key), "left-beside") for key, value in top.items() if isinstance(value, dict))
        return Found(flat, tables, inside)
    several = {f"{key}.{name}": value for key, table in nested.items() for name, value in table.items()}
    others = tuple(Left(str(key), "left-beside") for key in top if str(key) not in nested)
    return Found({name: value for name, value in several.items() if isinstance(value, Tensor)}, others, inside)


def _holds(value: Any) -> bool:
    """Whether it is a table with tensors in it, or a table around such a one."""
    if not isinstance(value, dict):
        return False
    if any(isinstance(item, Tensor) for item in value.values()):
        return not all(isinstance(key, int) for key in value)  # an optimizer numbers what it keeps
    tables = (item for key, item in value.items() if isinstance(item, dict) and key in KEYS)
    return any(isinstance(each, Tensor) for table in tables for each in table.values())


def without_training(weights: Iterable[Weight]) -> tuple[tuple[Weight, ...], tuple[Left, ...]]:
    """The parameters of a flat list, and what a training saved beside them: an optimizer's copies, single numbers."""
    every = list(weights)
    shapes = {weight.name: weight.shape for weight in every}
    kept: list[Weight] = []
    left: list[Left] = []
    for weight in every:
        first, _, rest = weight.name.partition(".")
        copied = first in OPTIMIZER and rest in shapes and shapes[rest] == weight.shape
        number = weight.name in TRAINING and weight.shape in ((), (1,))
        if copied or number:
            left.append(Left(weight.name, "left-optimizer" if copied else "left-training"))
        else:
            kept.append(weight)
    return tuple(kept), tuple(left)
