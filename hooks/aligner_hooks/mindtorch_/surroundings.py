"""What stands around a run of MindTorch: devices, modes, the facts of the header, and what the doctor says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Optional

import mindspore
import numpy as np

from aligner.adapter import Finding
from aligner.devices import KINDS, parse
from aligner.errors import AdapterError
from aligner.record import Scalar
from aligner_hooks.mindsporelike import modes
from aligner_hooks.mindtorch_ import precision, shim
from aligner_hooks.mindtorch_.calls import CALLS
from aligner_hooks.mindtorch_.graphs import in_graph_mode
from aligner_hooks.mindtorch_.package import OPENI, distributions, package

# The kind of a device -> MindSpore's. Only "CPU" was ever run; the others are written from MindSpore's manual.
_TARGETS = {"cpu": "CPU", "gpu": "GPU", "ascend": "Ascend"}


def device(name: str) -> Callable[[object], object]:
    """Select the device for everything that runs from now on; nets and tensors go there by themselves.

    Raises:
        AdapterError: MindSpore has no such device here.
    """
    wanted = parse(name)
    if wanted is None:
        raise AdapterError("mindspore-device", name=name, reason="why-unknown-name", known=", ".join(sorted(KINDS)))
    try:
        if mindspore.get_context("device_target") != _TARGETS[wanted.kind]:
            mindspore.set_context(device_target=_TARGETS[wanted.kind])
        if wanted.index is not None and wanted.kind != "cpu":
            mindspore.set_context(device_id=wanted.index)
    except (RuntimeError, ValueError, TypeError) as error:
        reason = f"{error}".strip().splitlines()[0]
        here = str(mindspore.get_context("device_target")).lower()
        raise AdapterError("mindspore-device", name=name, reason=reason, known=here) from error
    return lambda value: value


@contextmanager
def running(mode: Optional[str]) -> Iterator[None]:
    """ "pynative": eagerly and layer by layer. "graph": compiled as a whole. None: as the program has set it.

    MindSpore records gradients only for what asks for them.
    """
    if mode == "graph" and not package().compiles:
        raise AdapterError("mindtorch-no-graph-mode")
    with modes.held(mode):
        yield


def seed(number: int) -> None:
    """MindSpore's random numbers, numpy's (from which initial values are drawn) and the package's own."""
    mindspore.set_seed(number)
    package().torch.manual_seed(number)


def environment(model: Any) -> Mapping[str, Scalar]:
    """Facts for the header."""
    return {
        "device": str(mindspore.get_context("device_target")),
        "mode": "graph" if in_graph_mode() else "pynative",
        "mindtorch": package().maker,
        "mindspore": str(mindspore.__version__),
        "shim": shim.was_put_in(),
        "amp": precision.level(model) or None,
    }


def doctor() -> Iterator[Finding]:
    """What is usable here and what is wrong."""
    facts = {"maker": package().maker, "version": package().version, "mindspore": str(mindspore.__version__)}
    yield Finding(True, "mindtorch-found", facts)
    if len(distributions()) > 1:
        yield Finding(False, "mindtorch-twice", {"packages": " and ".join(distributions())})
    if shim.was_put_in():
        yield Finding(True, "mindtorch-shim-put-in", {"version": package().version})
    if int(np.__version__.partition(".")[0]) >= 2:
        yield Finding(False, "mindspore-numpy", {"version": str(mindspore.__version__), "numpy": np.__version__})
    try:
        with running("pynative"):
            own, ours = _fired()
    except Exception as error:  # whatever a broken installation raises is the finding
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        yield Finding(False, "mindtorch-broken", {"reason": reason})
        return
    yield Finding(ours == 2, "mindtorch-observed" if ours == 2 else "mindtorch-unobserved", {})
    if own != 2:
        yield Finding(True, "mindtorch-hooks-silent", {"version": package().version})
    if package().maker != OPENI:
        problem = _batch_norm()
        if problem:
            yield Finding(True, "mindtorch-batch-norm", {"made": problem, "version": package().version})


def _fired() -> tuple[int, int]:
    """How many of two layers that ran were told of by the package's own hooks, and by us."""
    nn = package().nn
    net = nn.Sequential(nn.ReLU())
    own: list[str] = []
    ours: list[str] = []

    def hook(module: Any, inputs: Any, output: Any) -> None:
        own.append(type(module).__name__)

    handles: list[Any] = [layer.register_forward_hook(hook) for layer in (net, net[0])]
    handles += [
        CALLS.observe(layer, lambda *_: None, lambda *_: ours.append(type(net).__name__)) for layer in (net, net[0])
    ]
    try:
        net(_tensor([[1.0, -2.0]]))
    finally:
        for handle in handles:
            handle.remove()
    return len(own), len(ours)


def _batch_norm() -> str:
    """What a fresh BatchNorm in eval mode makes of 3, where that is not 3 (but for eps); else ""."""
    layer = package().nn.BatchNorm1d(1).eval()
    made = float(layer(_tensor([[3.0]])).asnumpy()[0, 0])
    return "" if abs(made - 3.0) < 1e-3 else f"{made:g}"


def _tensor(values: Any) -> Any:
    return package().raised(mindspore.Tensor(np.array(values, np.float32)))
