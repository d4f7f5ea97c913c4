"""mindcv's pit_ti, as its maintainers published it: the port."""

import mindcv


def build():
    """The net, freshly made; its inputs come from the reference."""
    return mindcv.create_model("pit_ti", num_classes=10)
