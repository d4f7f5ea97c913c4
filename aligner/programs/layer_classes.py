"""The layer classes whose constructors a program may call because a dump says so, under the names that users write.

Written down here, not looked up in a framework: what a name leads to there is no proof that it is a layer, and the
dump may be read where there is no framework. A test holds that what our adapters spell is among them.
"""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _each(*stems: str, axes: tuple[int, ...] = (1, 2, 3)) -> frozenset[str]:
    """Conv -> Conv1d, Conv2d, Conv3d."""
    return frozenset(f"{stem}{n}d" for stem in stems for n in axes)


_BOTH = (
    _each("Conv", "MaxPool", "AvgPool", "AdaptiveAvgPool", "AdaptiveMaxPool", "BatchNorm")
    | _each("ConstantPad", "ZeroPad", "ReflectionPad", "ReplicationPad", "Dropout")
    | _words(
        "SyncBatchNorm LayerNorm GroupNorm Embedding Dropout Identity Flatten Unflatten Unfold Fold Upsample "
        "PixelShuffle PixelUnshuffle ReLU ReLU6 LeakyReLU PReLU RReLU ELU CELU GELU SiLU Mish Softsign Sigmoid "
        "LogSigmoid Tanh Tanhshrink Hardtanh Threshold GLU Softmax Softmax2d LogSoftmax Softmin "
        "L1Loss MSELoss BCELoss BCEWithLogitsLoss SoftMarginLoss SmoothL1Loss HuberLoss CrossEntropyLoss NLLLoss "
        "KLDivLoss CTCLoss CosineEmbeddingLoss MarginRankingLoss HingeEmbeddingLoss TripletMarginLoss "
        "MultiMarginLoss MultiLabelSoftMarginLoss GaussianNLLLoss PoissonNLLLoss"
    )
)
_TOGETHER = (
    _each("InstanceNorm")
    | _each("LPPool", "MaxUnpool")
    | _each("FractionalMaxPool", axes=(2, 3))
    | _words(
        "LSTM GRU RNN LSTMCell GRUCell RNNCell MultiheadAttention TransformerEncoderLayer TransformerDecoderLayer "
        "TransformerEncoder TransformerDecoder Transformer ChannelShuffle"
    )
)

TORCH = (
    _BOTH
    | _TOGETHER
    | _each("ConvTranspose", "CircularPad", "LazyConv", "LazyConvTranspose", "LazyBatchNorm", "LazyInstanceNorm")
    | _words(
        "Linear LazyLinear Bilinear EmbeddingBag RMSNorm LocalResponseNorm CrossMapLRN2d AlphaDropout "
        "FeatureAlphaDropout SELU Hardshrink Hardsigmoid Hardswish Softplus Softshrink CosineSimilarity "
        "PairwiseDistance UpsamplingBilinear2d UpsamplingNearest2d AdaptiveLogSoftmaxWithLoss LinearCrossEntropyLoss "
        "MultiLabelMarginLoss NLLLoss2d TripletMarginWithDistanceLoss Sequential ModuleList ModuleDict"
    )
)
"""Of torch.nn, and of MindTorch's torch.nn."""

MINDSPORE = (
    _BOTH
    | _TOGETHER
    | {f"Conv{n}dTranspose" for n in (1, 2, 3)}
    | _words(
        "Dense BiDense LRN EmbeddingLookup SeLU HSwish HSigmoid HShrink SoftShrink Pad FastGelu MAELoss "
        "MultilabelMarginLoss SequentialCell CellList CellDict"
    )
)
"""Of mindspore.nn."""

MINT = (
    _BOTH
    | _each("ConvTranspose")
    | _words("Linear SELU Hardswish Hardsigmoid Hardshrink Softshrink UpsamplingBilinear2d UpsamplingNearest2d")
)
"""Of mindspore.mint.nn."""

ACTIVATIONS = _words(
    "relu relu6 leaky_relu prelu rrelu elu celu selu gelu silu mish sigmoid logsigmoid tanh hardtanh hardswish "
    "hardsigmoid hardshrink softshrink softplus softsign"
)
"""Functions that a layer is built with, and that nothing calls but the layer."""
