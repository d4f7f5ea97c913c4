"""`with aligner.capture(net, "ref.h5"): net(x)`: a capture of whatever a model does inside the block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Optional, Union

from aligner import registry
from aligner.capture.beside import whole
from aligner.capture.options import Options
from aligner.capture.session import Capture, Path
from aligner.errors import UsageError


def capture(
    model: object,
    path: Path,
    *,
    layers: Union[str, Sequence[str]] = "*",
    steps: Optional[int] = None,
    weights: bool = True,
    silence_dropout: bool = False,
    gradients: bool = False,
    force: bool = False,
) -> Capture:
    """Capture what `model` does inside a `with` block: `with aligner.capture(net, "ref.h5"): net(x)`.

    Args:
        model: a torch module or MindSpore cell; the framework is found from it. Nets that are trained beside each
            other are given by name: `{"generator": g, "discriminator": d}`.
        path: the dump to write; an existing one is refused unless `force`.
        layers: patterns of layer paths to record ("encoder.*").
        steps: stop observing after so many runs of the model; None takes all of the block.
        weights: record parameters and buffers too, so that a port can be run on them.
        silence_dropout: make dropout inactive in train mode while capturing.
        gradients: capture training steps: gradients, what optimizers are given, what they leave.
        force: overwrite an existing dump.

    Raises:
        UsageError: `steps` is no whole number from 1 on.
    """
    if steps is not None and (not isinstance(steps, int) or steps < 1):
        raise UsageError("steps-form", found=repr(steps))
    patterns = [layers] if isinstance(layers, str) else list(layers)
    options = Options(patterns, steps, weights, silence_dropout, gradients, force=force)
    if isinstance(model, Mapping):
        adapter, model, options.header = whole(model)
        return Capture(adapter, model, path, options)
    return Capture(registry.of(model), model, path, options)
