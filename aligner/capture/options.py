"""How a capture is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from aligner.capture.numbers import Turns
from aligner.capture.sink import Sink
from aligner.capture.steps import Holding


@dataclass
class Options:
    """How a capture is made; the command line's options, without where the model comes from."""

    layers: Sequence[str] = ("*",)
    steps: Optional[int] = None
    weights: bool = True
    silence_dropout: bool = False
    gradients: bool = False
    """Capture training steps: gradients, what optimizers are given, what they leave. A step ends with an update."""
    loss: Any = None
    """What makes the loss of a training, where it is known beforehand."""
    holding: Optional[Callable[[Callable[[str, Mapping[str, Any]], None]], Holding]] = None
    """Makes what holds the stages of training steps to those of another run; it gets what keeps a finding."""
    turns: Optional[Turns] = None
    """Numbers the calls of nets that are captured together as another run has them."""
    operations: bool = False
    """Note which operations run between the layers."""
    follow: Optional[bool] = None
    """Note of the first step what each operation makes, by its fingerprint, and the line that it stands in. None: where
    being watched changes no bit of what the net makes."""
    force: bool = False
    seed: Optional[int] = None
    header: Mapping[str, Any] = field(default_factory=dict)
    then: Optional[Callable[[Sink, int, float], None]] = None
    """What is done once the net has run and nothing is observed any more, while the dump is still open: it gets the
    dump, the last order number, and the seconds since the capture began."""
    search: float = 60.0
    """Seconds that edits of a port's code are looked for, with a forced pass; 0: not at all."""
    then_stopped: bool = False
    """It is done where the net raised as well."""
