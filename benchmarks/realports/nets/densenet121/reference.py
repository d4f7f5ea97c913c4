"""torchvision's densenet121, with weights that hide nothing: the reference."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from packages import torchvision_net
from weights import hide_nothing, image


def build():
    """The net and its inputs."""
    net, inputs = torchvision_net("densenet121"), image(64)
    return hide_nothing(net, inputs), inputs
