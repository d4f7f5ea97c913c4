"""torchvision's mobilenet_v3_small, with weights that hide nothing: the reference."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from packages import torchvision_net
from weights import hide_nothing, image


def build():
    """The net and its inputs."""
    net, inputs = torchvision_net("mobilenet_v3_small"), image(64)
    return hide_nothing(net, inputs), inputs
