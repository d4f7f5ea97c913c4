"""mindcv's coat_lite_tiny, as its maintainers published it: the port."""

import mindcv


def build():
    """The net, freshly made; its inputs come from the reference."""
    return mindcv.create_model("coat_lite_tiny", num_classes=10, image_size=64)
