"""Which of the packages called `mindtorch` is here, and how each says the same thing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import mindspore

from aligner.errors import AdapterError

OPENI = "OpenI"
MINDNLP = "mindnlp"


@dataclass(frozen=True, eq=False)
class Package:
    """One of the two. `torch` is the module that has torch's interface, `home` where its users find its layers."""

    maker: str
    version: str
    torch: Any
    nn: Any
    home: str
    preamble: str
    tensor: Any
    """The classes of its tensors; MindSpore's own are among them, as gradients are."""
    lowered: Callable[[Any], Any]
    """Its tensor as MindSpore's."""
    raised: Callable[[Any], Any]
    """MindSpore's tensor as its own."""
    compiles: bool
    """Whether GRAPH_MODE compiles a net as a whole, so that nothing inside it is seen."""


@cache
def package() -> Package:
    """The one that is installed.

    Raises:
        AdapterError: both are installed, in one folder, and neither is whole.
    """
    try:
        import_module("mindtorch")
        try:
            return _openi(import_module("mindtorch.torch"))
        except ModuleNotFoundError as error:
            if error.name != "mindtorch.torch":
                raise
            return _mindnlp(import_module("mindtorch"))
    except Exception:  # whatever a mixture of two packages raises
        if len(distributions()) > 1:
            raise AdapterError("mindtorch-twice", packages=" and ".join(distributions())) from None
        raise


def distributions() -> list[str]:
    """The installed distributions that bring a `mindtorch`; two of them overwrite each other's files."""
    return [f"{name} {found}" for name in ("mindtorch", "mindnlp") if (found := _installed(name))]


def _installed(name: str) -> str:
    try:
        found = version(name)
    except PackageNotFoundError:
        return ""
    if name == "mindnlp" and found < "0.5":  # it brings a mindtorch since 0.5
        return ""
    return found


def _openi(torch: Any) -> Package:
    tensors = import_module("mindtorch.torch.tensor")
    return Package(
        maker=OPENI,
        version=str(import_module("mindtorch").__version__),
        torch=torch,
        nn=torch.nn,
        home="mindtorch.torch.nn",
        preamble="from mindtorch import torch\nfrom mindtorch.torch import nn\n",
        tensor=(tensors.Tensor, mindspore.Tensor),
        lowered=tensors.cast_to_ms_tensor,
        raised=tensors.cast_to_adapter_tensor,
        compiles=True,
    )


def _mindnlp(torch: Any) -> Package:
    return Package(
        maker=MINDNLP,
        version=f"{_installed(MINDNLP) or '0'} ({MINDNLP})",
        torch=torch,
        nn=torch.nn,
        home="mindtorch.nn",
        preamble="import mindtorch as torch\nfrom mindtorch import nn\n",
        tensor=mindspore.Tensor,
        lowered=lambda tensor: tensor,
        raised=lambda tensor: tensor,
        compiles=False,
    )
