"""What a capture tells its dump of a net before it runs: every layer, observed or not; and which are observed."""

from __future__ import annotations

from collections.abc import Sequence

from aligner.adapter import Adapter
from aligner.capture.dropouts import Dropouts
from aligner.capture.sink import Sink
from aligner.errors import CaptureError
from aligner.record import Layer
from aligner.selection import matches
from aligner.words.training import LOSS


def selected(adapter: Adapter, model: object, patterns: Sequence[str]) -> list[tuple[str, object]]:
    """The layers to observe: those the patterns name, and always the top-level net, which counts the steps.

    Raises:
        CaptureError: the patterns name none.
    """
    layers = list(adapter.layers(model))
    wanted = [(path, layer) for path, layer in layers if path == "" or matches(path, patterns)]
    if len(wanted) == 1 and len(layers) > 1 and list(patterns) not in (["*"], [""]):
        some = ", ".join(path for path, _ in layers[1:6])
        raise CaptureError("no-layer-matched", patterns=", ".join(patterns) or "[]", count=len(layers) - 1, some=some)
    return wanted


def declare(adapter: Adapter, model: object, writer: Sink, dropouts: Dropouts, loss: object = None) -> int:
    """Tell the dump of every layer, and `dropouts` of those that drop; how many layers there are.

    A loss that is a layer is told of as one beside the net.
    """
    layers = list(adapter.layers(model))
    parents = {path.rpartition(".")[0] for path, _ in layers if path}
    for path, layer in layers:
        spec = adapter.spec(layer)
        if spec.kind == "Dropout":
            dropouts.watch(path)
        children = path in parents or any(parent.startswith(f"{path}.") for parent in parents) or path == ""
        writer.layer(Layer(path, adapter.type_name(layer), spec, children, adapter.training(layer)))
    if adapter.is_model(loss):
        writer.layer(Layer(LOSS, adapter.type_name(loss), adapter.spec(loss), False, adapter.training(loss)))
    return len(layers)
