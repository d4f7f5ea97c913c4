"""What may stand in a program that `compare --repro` writes, said once more and in another way than aligner says it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

IMPORTS = {
    "import sys", "from pathlib import Path", "import numpy as np", "import torch", "from torch import nn",
    "import mindspore as ms", "from mindspore import mint, nn, ops", "from importlib.util import find_spec",
    "from mindspore.ops.composite.multitype_ops.pow_impl import pow_", "from mindtorch import torch",
    "from mindtorch.torch import nn", "import mindtorch as torch", "from mindtorch import nn",
}  # fmt: skip
OURS = re.compile(
    r"Path|Path\(__file__\)\.with_suffix|np\.(load|abs|argmax|result_type|unravel_index)|np\.linalg\.norm|dict|print|int|float"
    r"|sys\.exit|isinstance|issubclass|apart\.max|wanted\.astype|made\.items|layer|layer\.\w+|data\[[^]]*\]\.reshape"
    r"|torch\.(from_numpy|tensor)|ms\.Tensor|parameter\.(set_data|set_dtype)|find_spec|pow_\.register|name\.startswith"
    r"|(nn|kind)\.(Module\.|Cell\.)?__module__\.partition|len|values\.items"
)
"""Functions that every program calls, as `ast.unparse` writes them."""
VALUES = re.compile(
    r"(torch\.(from_numpy|tensor)\(data\['[^']*'\]\)|ms\.Tensor\((value|data\['[^']*'\])\)|result[\w\[\]'.]*)"
    r"(\.(to|astype)\((torch|ms)\.\w+\))?(\.detach\(\)|\.detach\(\)\.numpy|\.asnumpy)?(\.(to|astype|detach))?"
)
LAYER = re.compile(r"(nn|torch\.nn|ms\.nn|mint\.nn|ms\.mint\.nn)\.[A-Z][A-Za-z0-9]*")
BUILT = re.compile(r"nn\.\w+\(.*\)\.to_float")
FORBIDDEN = (ast.Lambda, ast.JoinedStr, ast.Starred, ast.Subscript, ast.BinOp, ast.ListComp, ast.GeneratorExp)


def check(script: Path) -> None:
    """Raise ValueError at anything that aligner's own text does not have, the layer's constructor call aside."""
    text = script.read_text(encoding="utf-8")
    tree = ast.parse(text)
    compile(tree, str(script), "exec")
    if not re.fullmatch(r'"""[^"\\\n]*\n\nExit code 1: [^"\\\n]*\n"""', text[: text.index('"""', 3) + 3]):
        raise ValueError(f"{script}: another heading")
    built = [node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "layer"]
    inside = {id(inner) for node in built for inner in ast.walk(node.value)}
    for node in ast.walk(tree):
        what = ast.unparse(node) if isinstance(node, ast.expr) or "Import" in type(node).__name__ else ""
        if isinstance(node, (ast.Import, ast.ImportFrom)) and what not in IMPORTS:
            raise ValueError(f"{script}: {what}")
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Await, ast.NamedExpr, ast.Yield)):
            raise TypeError(f"{script}: {type(node).__name__}")
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if id(node) in inside:
                good = LAYER.fullmatch(name) or BUILT.fullmatch(name) or name == "float"
            else:
                good = OURS.fullmatch(name) or VALUES.fullmatch(name)
            if not good:
                raise ValueError(f"{script}: calls {name}")
        if id(node) in inside and isinstance(node, FORBIDDEN):
            raise ValueError(f"{script}: {what}")
        if isinstance(node, ast.Attribute) and node.attr.startswith("__") and node.attr != "__module__":
            raise ValueError(f"{script}: {what}")
