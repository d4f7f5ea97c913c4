"""How a program for one framework is worded: making tensors and reading them, loading parameters, building layers."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Speech:
    """How one framework says what the program needs; `{}` stands for the value."""

    imports: str
    roots: frozenset[str]
    """Names under which its classes and constants are found."""
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

SPEECHES: Mapping[str, Speech] = {
    "mindspore": Speech(
        "import mindspore as ms\nfrom mindspore import mint, nn, ops",
        frozenset({"ms", "mindspore", "mint", "nn", "ops"}),
        "ms.Tensor({})",
        "{}.astype(ms.{dtype})",
        "{}.asnumpy()",
        "layer.set_train({})",
        _MINDSPORE_LOAD,
        "for parameter in layer.get_parameters():\n    parameter.set_dtype(ms.{dtype})",
    ),
    "torch": Speech(
        "import torch\nfrom torch import nn",
        frozenset({"torch", "nn"}),
        "torch.from_numpy({})",
        "{}.to(torch.{dtype})",
        "{}.detach().numpy()",
        "layer.train({})",
        _TORCH_LOAD,
        "layer.to(torch.{dtype})",
    ),
    "mindtorch": Speech(
        _MINDTORCH_IMPORTS,
        frozenset({"torch", "nn"}),
        "torch.tensor({})",
        "{}.to(torch.{dtype})",
        "{}.asnumpy()",
        "layer.train({})",
        tuple(line.replace("torch.from_numpy", "torch.tensor") for line in _TORCH_LOAD),
        "layer.to(torch.{dtype})",
    ),
}
"""Framework -> its way of saying it."""


def is_harmless(python: str, roots: frozenset[str]) -> bool:
    """Whether this builds layers and nothing else: calls of classes of these modules, constants, and `to_float`."""
    try:
        tree = ast.parse(python, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    plain = (ast.Expression, ast.Constant, ast.Tuple, ast.List, ast.Dict, ast.keyword, ast.UnaryOp, ast.USub, ast.Load)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if not _builds(node.func):
                return False
        elif isinstance(node, ast.Name):
            if node.id not in roots and node.id != "float":
                return False
        elif isinstance(node, ast.Attribute):
            if node.attr.startswith("_"):
                return False
        elif not isinstance(node, plain):
            return False
    return True


def _builds(function: ast.expr) -> bool:
    """`nn.Conv2d`, `mint.nn.Linear`, `float`, or `.to_float` of what was built."""
    if isinstance(function, ast.Name):
        return function.id == "float"
    return isinstance(function, ast.Attribute) and (function.attr[:1].isupper() or function.attr == "to_float")
