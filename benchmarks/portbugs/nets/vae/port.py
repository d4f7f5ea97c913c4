"""The conditional VAE-GAN in MindSpore: the correct port."""

from __future__ import annotations

import mindspore as ms
from mindspore import Parameter, nn, ops


class Encoder(nn.Cell):
    """An image to the mean and the logarithm of the variance of its code."""

    def __init__(self, code):
        super().__init__()
        self.layers = nn.SequentialCell(
            nn.Conv2d(1, 16, 4, stride=2, pad_mode="pad", padding=1, has_bias=True),
            nn.LeakyReLU(0.01),
            nn.Conv2d(16, 24, 3, stride=2, pad_mode="pad", padding=1),
            nn.BatchNorm2d(24, eps=0.8),
            nn.LeakyReLU(0.01),
            nn.Conv2d(24, 32, 3, stride=2, pad_mode="pad", padding=1, has_bias=True),
            nn.ELU(),
        )
        self.mean = nn.Dense(32 * 16, code)
        self.variance = nn.Dense(32 * 16, code)

    def construct(self, image):
        x = self.layers(image).flatten(start_dim=1)
        return self.mean(x), self.variance(x)


class PixelNorm(nn.Cell):
    """Every place gets channels of mean square one."""

    def construct(self, x):
        return x * ops.rsqrt(x.square().mean(1, keep_dims=True) + 1e-8)


class ScaledDense(nn.Cell):
    """A dense layer whose weight is scaled when it is used, so that all layers learn at one rate."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = Parameter(ops.zeros((outputs, inputs), ms.float32))
        self.bias = Parameter(ops.zeros((outputs,), ms.float32))
        self.scale = (2.0 / inputs) ** 0.5

    def construct(self, x):
        return ops.matmul(x, (self.weight * self.scale).T) + self.bias


class Decoder(nn.Cell):
    """A code and a class to an image from -1 to 1."""

    def __init__(self, code, classes):
        super().__init__()
        self.embed = nn.Embedding(classes, 6)
        self.fc = ScaledDense(code + 6, 24 * 16)
        self.norm = PixelNorm()
        self.up1 = nn.Conv2dTranspose(24, 24, 4, stride=2, pad_mode="pad", padding=1, has_bias=True)
        self.bn1 = nn.BatchNorm2d(24)
        self.up2 = nn.Conv2dTranspose(24, 16, 4, stride=2, pad_mode="pad", padding=1)
        self.bn2 = nn.BatchNorm2d(16)
        self.relu = nn.ReLU()
        self.enlarge = nn.Upsample(scale_factor=2.0, mode="bilinear", align_corners=False, recompute_scale_factor=True)
        self.out = nn.Conv2d(16, 1, 5, pad_mode="pad", padding=2, has_bias=True)

    def construct(self, code, label):
        x = self.fc(ops.cat((code, self.embed(label)), axis=1))
        x = self.norm(ops.leaky_relu(x, 0.2).reshape(-1, 24, 4, 4))
        x = self.relu(self.bn1(self.up1(x)))
        x = self.relu(self.bn2(self.up2(x)))
        return ops.tanh(self.out(self.enlarge(x)))


class Critic(nn.Cell):
    """A score for each image; a batch without variety shows in one more channel."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 12, 3, stride=2, pad_mode="pad", padding=1, has_bias=True)
        self.conv2 = nn.Conv2d(12, 16, 3, stride=2, pad_mode="pad", padding=1, has_bias=True)
        self.conv3 = nn.Conv2d(17, 16, 3, pad_mode="pad", padding=1, has_bias=True)
        self.fc = nn.Dense(16, 1)

    def construct(self, image):
        x = ops.leaky_relu(self.conv1(image), 0.2)
        x = ops.leaky_relu(self.conv2(x), 0.2)
        variety = ops.std(x, 0, ddof=0).mean()
        x = ops.cat((x, variety * ops.ones_like(x[:, :1])), axis=1)
        x = ops.softplus(self.conv3(x), beta=2.0, threshold=20.0)
        return self.fc(x.sum((2, 3)))


class Net(nn.Cell):
    """Encode, draw a code (the noise comes from outside), decode, judge."""

    def __init__(self, code=20, classes=5):
        super().__init__()
        self.encoder = Encoder(code)
        self.decoder = Decoder(code, classes)
        self.critic = Critic()

    def construct(self, image, label, noise):
        mean, variance = self.encoder(image)
        code = mean + ops.exp(0.5 * variance) * noise
        drawn = self.decoder(code, label)
        return {"image": drawn, "score": self.critic(drawn), "mean": mean, "variance": variance}


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return Net()


def build_float16():
    """The same in float16, but for the BatchNorms."""
    return ms.amp.auto_mixed_precision(Net(), "O2", ms.float16)
