"""How a program for one framework is worded: making tensors and reading them, loading parameters, building layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aligner.dtypes import DTYPES
from aligner.programs.building import Grammar
from aligner.programs.layer_classes import ACTIVATIONS, MINDSPORE, MINT, TORCH


@dataclass(frozen=True)
class Speech:
    """How one framework says what the program needs; `{}` stands for the value."""

    imports: str
    grammar: Grammar
    """What a layer may be built of, under these imports."""
    base: str
    """The class that all its layers come from."""
    tensor: str
    cast: str
    """`{}` is a tensor, `{dtype}` a word of aligner.dtypes."""
    numbers: str
    """A tensor as a numpy array."""
    mode: str
    load: tuple[str, ...]
    """Lines that give `layer` the values in `data`."""
    short: str
    """A line that puts the layer's parameters into `{dtype}`."""


_MINDSPORE_LOAD = (
    "for name, parameter in layer.parameters_and_names():",
    '    if f"parameter.{name}" in data:',
    '        value = data[f"parameter.{name}"].reshape(parameter.shape)',
    "        parameter.set_data(ms.Tensor(value).astype(parameter.dtype))",
    "    else:",
    '        print(f"{name} is shared with another layer: its values are missing here")',
)
_TORCH_LOAD = (
    'values = {name[len("parameter.") :]: data[name] for name in data if name.startswith("parameter.")}',
    "values = {name: torch.from_numpy(value) for name, value in values.items()}",
    "for name in layer.load_state_dict(values, strict=False).missing_keys:",
    '    print(f"{name} is shared with another layer: its values are missing here")',
)

# OpenI's MindTorch is imported with four entries that MindSpore 2.5 took out of a table; mindnlp's as it is.
_MINDTORCH_IMPORTS = """\
from importlib.util import find_spec

if Path(find_spec("mindtorch").origin).with_name("torch").is_dir():
    from mindspore.ops.composite.multitype_ops.pow_impl import pow_

    for pair in (("Tuple", "Tensor"), ("Tensor", "Tuple"), ("List", "Tensor"), ("Tensor", "List")):
        pow_.register(*pair)(lambda x, y: x)
    from mindtorch import torch
    from mindtorch.torch import nn
else:
    import mindtorch as torch
    from mindtorch import nn
"""

_WORDS = frozenset(DTYPES) | {"bool_"}
_MINDSPORE = Grammar(
    {"nn": MINDSPORE, "ms.nn": MINDSPORE, "mint.nn": MINT, "ms.mint.nn": MINT},
    dict.fromkeys(("ops", "ms.ops", "mint.nn.functional"), ACTIVATIONS),
    {"ms": _WORDS},
    casts=True,
)
_TORCH = Grammar({"nn": TORCH, "torch.nn": TORCH}, {}, {"torch": _WORDS})

SPEECHES: Mapping[str, Speech] = {
    "mindspore": Speech(
        "import mindspore as ms\nfrom mindspore import mint, nn, ops",
        _MINDSPORE,
        "nn.Cell",
        "ms.Tensor({})",
        "{}.astype(ms.{dtype})",
        "{}.asnumpy()",
        "layer.set_train({})",
        _MINDSPORE_LOAD,
        "for parameter in layer.get_parameters():\n    parameter.set_dtype(ms.{dtype})",
    ),
    "torch": Speech(
        "import torch\nfrom torch import nn",
        _TORCH,
        "nn.Module",
        "torch.from_numpy({})",
        "{}.to(torch.{dtype})",
        "{}.detach().numpy()",
        "layer.train({})",
        _TORCH_LOAD,
        "layer.to(torch.{dtype})",
    ),
    "mindtorch": Speech(
        _MINDTORCH_IMPORTS,
        _TORCH,
        "nn.Module",
        "torch.tensor({})",
        "{}.to(torch.{dtype})",
        "{}.asnumpy()",
        "layer.train({})",
        tuple(line.replace("torch.from_numpy", "torch.tensor") for line in _TORCH_LOAD),
        "layer.to(torch.{dtype})",
    ),
}
"""Framework -> its way of saying it."""
