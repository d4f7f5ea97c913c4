"""mindcv's regnet_x_200mf, as its maintainers published it: the port."""

import mindcv


def build():
    """The net, freshly made; its inputs come from the reference."""
    return mindcv.create_model("regnet_x_200mf", num_classes=10)
