"""A torch net and its torch port, captured in this process and compared."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import aligner  # noqa: E402 - only after torch is known to be there
from aligner.capture.session import Options  # noqa: E402 - as above


def telling(net):
    """The net in evaluation mode, with weights that hide nothing."""
    torch.manual_seed(0)
    for name, value in net.state_dict().items():
        if name.endswith("running_var"):
            value.uniform_(0.5, 1.5)
        elif value.is_floating_point() and not name.endswith("table"):
            value.normal_(1.0 if value.ndim == 1 and name.endswith("weight") else 0.0, 0.3)
    return net.eval()


def replayed(folder, net, port, *inputs, **given):
    """A replay that has given the port the weights of the net, whose capture lies beside."""
    with torch.no_grad(), aligner.capture(net.eval(), folder / "ref.h5"):
        net(*inputs)
    return aligner.replay(folder / "ref.h5", port.eval(), **given)


def compared(folder, net, port, *inputs, spoil=None, **given):
    """What comes of the port on the net's weights and inputs; `spoil` changes the port after it was given them."""
    replay = replayed(folder, net, port, *inputs, **given)
    with torch.no_grad():
        if spoil is not None:
            spoil(port)
        with replay.capture(folder / "port.h5", Options()):
            port(*replay.inputs(0))
    replay.close()
    return aligner.compare(folder / "ref.h5", folder / "port.h5")


def places(result):
    return [(origin.layer, origin.where, origin.between) for origin in result.origins]
