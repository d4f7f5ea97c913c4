"""mindcv's mobilenet_v1_100, as its maintainers published it: the port."""

import mindcv


def build():
    """The net, freshly made; its inputs come from the reference."""
    return mindcv.create_model("mobilenet_v1_100", num_classes=10)
