"""The small vision transformer in MindSpore, with other names and nesting: the correct port."""

from __future__ import annotations

import mindspore as ms
from mindspore import nn, ops


class ChannelScale(nn.Cell):
    """One learned factor for each channel."""

    def __init__(self, width: int):
        super().__init__()
        self.factor = ms.Parameter(ops.ones(width), name="factor")

    def construct(self, x):
        return x * self.factor


class EncoderLayer(nn.Cell):
    """Pre-norm attention and perceptron with layer scale, all in one cell."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.scale = (width // heads) ** -0.5
        self.ln_attention = nn.LayerNorm((width,), epsilon=1e-6)
        self.to_qkv = nn.Dense(width, 3 * width)
        self.drop = nn.Dropout(p=0.0)
        self.to_out = nn.Dense(width, width)
        self.scale_attention = ChannelScale(width)
        self.ln_mlp = nn.LayerNorm((width,), epsilon=1e-6)
        self.expand = nn.Dense(width, 3 * width)
        self.gelu = nn.GELU(approximate=False)
        self.contract = nn.Dense(3 * width, width)
        self.scale_mlp = ChannelScale(width)

    def attend(self, x):
        batch, length, width = x.shape
        qkv = self.to_qkv(x).reshape(batch, length, 3, self.heads, width // self.heads).transpose(2, 0, 3, 1, 4)
        query, key, value = qkv[0], qkv[1], qkv[2]
        weights = self.drop(ops.softmax(ops.matmul(query * self.scale, key.swapaxes(-2, -1)), axis=-1))
        return self.to_out(ops.matmul(weights, value).swapaxes(1, 2).reshape(batch, length, width))

    def construct(self, x):
        x = x + self.scale_attention(self.attend(self.ln_attention(x)))
        return x + self.scale_mlp(self.contract(self.gelu(self.expand(self.ln_mlp(x)))))


class ViT(nn.Cell):
    """Patches, class token, places, blocks, and a classifier on the class token."""

    def __init__(self, size: int = 32, patch: int = 8, width: int = 48, heads: int = 4, depth: int = 3):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch, pad_mode="valid", has_bias=True)
        self.class_token = ms.Parameter(ops.zeros((1, 1, width)), name="class_token")
        self.places = ms.Parameter(ops.zeros((1, (size // patch) ** 2 + 1, width)), name="places")
        self.encoder = nn.SequentialCell(*[EncoderLayer(width, heads) for _ in range(depth)])
        self.ln_final = nn.LayerNorm((width,), epsilon=1e-6)
        self.classifier = nn.Dense(width, 10)

    def construct(self, image):
        x = self.patches(image)
        x = x.reshape(x.shape[0], x.shape[1], -1).swapaxes(1, 2)
        token = ops.broadcast_to(self.class_token, (x.shape[0], 1, x.shape[2]))
        x = ops.cat([token, x], axis=1) + self.places
        x = self.ln_final(self.encoder(x))
        return self.classifier(x[:, 0])


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return ViT()


def build_float16():
    """The net with everything in float16."""
    return ms.amp.auto_mixed_precision(ViT(), "O3")
