"""timm's xcit_tiny_12_p16_224, with weights that hide nothing: the reference."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from packages import timm_net
from weights import hide_nothing, image


def build():
    """The net and its inputs."""
    net, inputs = timm_net("xcit_tiny_12_p16_224"), image(64)
    return hide_nothing(net, inputs), inputs
