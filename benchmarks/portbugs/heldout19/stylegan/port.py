"""The small StyleGAN2 generator with its patch projection in MindSpore: the correct port."""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

TAPS = (1.0, 3.0, 3.0, 1.0)


def second_moment_norm(x):
    return x * ops.rsqrt(x.square().mean(axis=1, keep_dims=True) + 1e-8)


def bias_act(x, bias, slope=0.2, gain=math.sqrt(2.0)):
    """Bias on the axis of the channels, leaky ReLU, gain."""
    shape = [1] * x.ndim
    shape[1] = -1
    return ops.leaky_relu(x + bias.reshape(shape), slope) * gain


class FIR(nn.Cell):
    """Resampling by zeros between the samples and a low-pass filter, the same for each channel."""

    def __init__(self, taps=TAPS, up=1, down=1, pad=(0, 0), gain=1.0):
        super().__init__()
        self.up = up
        self.down = down
        self.pad = pad
        taps = np.asarray(taps, np.float32)
        taps = taps / taps.sum()
        # convolution proper, hence reversed
        self.filter = Tensor((np.outer(taps, taps)[::-1, ::-1] * gain).astype(np.float32))

    def spread(self, x):
        """Zeros behind each sample, along the columns and along the rows."""
        batch, channels, height, width = x.shape
        gaps = ops.zeros((batch, channels, height, width, self.up - 1), x.dtype)
        x = ops.cat([x.expand_dims(-1), gaps], axis=-1).reshape(batch, channels, height, 1, width * self.up)
        gaps = ops.zeros((batch, channels, height, self.up - 1, width * self.up), x.dtype)
        return ops.cat([x, gaps], axis=3).reshape(batch, channels, height * self.up, width * self.up)

    def construct(self, x):
        if self.up > 1:
            x = self.spread(x)
        first, last = self.pad
        x = ops.pad(x, (first, last, first, last))
        channels = x.shape[1]
        kernel = ops.broadcast_to(self.filter, (channels, 1) + self.filter.shape)
        return ops.conv2d(x, kernel, stride=self.down, pad_mode="valid", groups=channels)


class EqualDense(nn.Cell):
    """Dense layer with the weight's scale and the learning rate's factor applied at run time."""

    def __init__(self, in_dim, out_dim, bias_init=0.0, lr_mul=1.0, act=False):
        super().__init__()
        self.weight = Parameter(ops.randn(out_dim, in_dim) / lr_mul, name="weight")
        self.bias = Parameter(ops.full((out_dim,), bias_init / lr_mul, dtype=ms.float32), name="bias")
        self.weight_gain = lr_mul / math.sqrt(in_dim)
        self.bias_gain = lr_mul
        self.act = act

    def construct(self, x):
        weight = self.weight * self.weight_gain
        bias = self.bias * self.bias_gain
        y = ops.matmul(x, weight.T)
        if self.act:
            return bias_act(y, bias)
        return y + bias


class Mapping(nn.Cell):
    """Latent and label to one style for each layer, drawn towards the mean style in the first ones."""

    def __init__(self, z_dim, w_dim, num_classes, num_ws, depth=4, lr_mul=0.01, cutoff=5, psi=0.7):
        super().__init__()
        self.num_classes = num_classes
        self.num_ws = num_ws
        self.w_avg = Parameter(ops.zeros((w_dim,), ms.float32), name="w_avg", requires_grad=False)
        self.embed = EqualDense(num_classes, w_dim)
        dims = [z_dim + w_dim] + [w_dim] * depth
        self.layers = nn.CellList([EqualDense(dims[i], dims[i + 1], lr_mul=lr_mul, act=True) for i in range(depth)])
        psi_of_layer = np.where(np.arange(num_ws) < cutoff, psi, 1.0).astype(np.float32)
        self.psi = Tensor(psi_of_layer.reshape(1, num_ws, 1))

    def construct(self, z, labels):
        hot = ops.one_hot(labels, self.num_classes, 1.0, 0.0).astype(z.dtype)
        y = second_moment_norm(self.embed(hot))
        w = ops.cat((second_moment_norm(z), y), axis=1)
        for layer in self.layers:
            w = layer(w)
        ws = ops.broadcast_to(w.expand_dims(1), (w.shape[0], self.num_ws, w.shape[1]))
        center = ops.broadcast_to(self.w_avg, ws.shape)
        return ops.lerp(center, ws, ops.broadcast_to(self.psi, ws.shape))


class ModConv(nn.Cell):
    """Modulated, demodulated 3x3 convolution; all images of the batch in one grouped call."""

    def __init__(self, in_channels, out_channels, kernel, w_dim, up=False):
        super().__init__()
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel = kernel
        self.up = up
        self.gain = 1.0 / math.sqrt(in_channels * kernel * kernel)
        self.weight = Parameter(ops.randn(out_channels, in_channels, kernel, kernel), name="weight")
        self.modulation = EqualDense(w_dim, in_channels, bias_init=1.0)
        if up:
            self.blur = FIR(pad=(1, 1), gain=4.0)

    def weights_of_batch(self, w):
        style = self.modulation(w)
        weight = self.gain * self.weight.expand_dims(0) * style.reshape(style.shape[0], 1, -1, 1, 1)
        power = weight.square().sum(axis=(2, 3, 4), keepdims=True)
        return weight * ops.rsqrt(power + 1e-8)

    def construct(self, x, w):
        batch, _, height, width = x.shape
        weight = self.weights_of_batch(w)
        x = x.reshape(1, batch * self.in_channels, height, width)
        if self.up:
            weight = weight.swapaxes(1, 2).reshape(
                batch * self.in_channels, self.out_channels, self.kernel, self.kernel
            )
            rows, cols = (height - 1) * 2 + self.kernel, (width - 1) * 2 + self.kernel
            transposed = ops.Conv2DTranspose(
                self.out_channels, self.kernel, pad_mode="valid", stride=2, group=batch
            )
            y = transposed(x, weight, (1, batch * self.out_channels, rows, cols))
            return self.blur(y.reshape(batch, self.out_channels, rows, cols))
        weight = weight.reshape(batch * self.out_channels, self.in_channels, self.kernel, self.kernel)
        y = ops.conv2d(x, weight, pad_mode="pad", padding=self.kernel // 2, groups=batch)
        return y.reshape(batch, self.out_channels, height, width)


class NoiseBiasAct(nn.Cell):
    """What follows a convolution: the noise with its strength, the bias, the activation."""

    def __init__(self, channels):
        super().__init__()
        self.strength = Parameter(ops.zeros((1,), ms.float32), name="strength")
        self.bias = Parameter(ops.zeros((channels,), ms.float32), name="bias")

    def construct(self, x, noise):
        return bias_act(x + noise * self.strength, self.bias)


class SynthesisLayer(nn.Cell):
    def __init__(self, in_channels, out_channels, w_dim, up=False):
        super().__init__()
        self.conv = ModConv(in_channels, out_channels, 3, w_dim, up=up)
        self.finish = NoiseBiasAct(out_channels)

    def construct(self, x, w, noise):
        return self.finish(self.conv(x, w), noise)


class ToRGB(nn.Cell):
    """The 1x1 convolution to three channels as a product of matrices; modulated, not demodulated."""

    def __init__(self, in_channels, w_dim, up=True):
        super().__init__()
        self.bias = Parameter(ops.zeros((1, 3, 1, 1), ms.float32), name="bias")
        self.weight = Parameter(ops.randn(3, in_channels, 1, 1), name="weight")
        self.modulation = EqualDense(w_dim, in_channels, bias_init=1.0)
        self.gain = 1.0 / math.sqrt(in_channels)
        if up:
            self.upsample = FIR(up=2, pad=(2, 1), gain=4.0)

    def construct(self, x, w, skip=None):
        batch, channels, height, width = x.shape
        style = self.modulation(w) * self.gain
        weight = self.weight.reshape(1, 3, channels) * style.expand_dims(1)
        rgb = ops.bmm(weight, x.reshape(batch, channels, height * width)).reshape(batch, 3, height, width)
        rgb = rgb + self.bias
        if skip is None:
            return rgb
        return self.upsample(skip) + rgb


class NoiseBank(nn.Cell):
    """The fixed noise maps as parameters without a gradient."""

    def __init__(self, height, width, levels):
        super().__init__()
        self.count = 2 * levels - 1
        for i in range(self.count):
            factor = 2 ** ((i + 1) // 2)
            noise = Parameter(ops.randn(1, 1, height * factor, width * factor), requires_grad=False)
            self.insert_param_to_cell(f"noise_{i}", noise)

    def construct(self):
        return [getattr(self, f"noise_{i}") for i in range(self.count)]


class PatchProjection(nn.Cell):
    """Inner product of two images' patches in a feature space, under random directions and a window."""

    def __init__(self, height, width, num_proj=9, patch=4, stride=2):
        super().__init__()
        self.patch = patch
        self.stride = stride
        self.rows = (height // 4 - patch) // stride + 1
        self.cols = (width // 4 - patch) // stride + 1
        self.directions = Parameter(ops.randn(num_proj, 7 * patch * patch), name="directions", requires_grad=False)
        self.down = FIR(down=2, pad=(1, 1))
        self.conv1 = nn.Conv2d(3, 10, 3, stride=2, pad_mode="pad", padding=1, has_bias=True)
        self.bn1 = nn.BatchNorm2d(10)
        self.act1 = nn.LeakyReLU(0.1)
        self.conv2 = nn.Conv2d(10, 7, 3, pad_mode="pad", padding=2, dilation=2, has_bias=True)
        self.bn2 = nn.BatchNorm2d(7, eps=1e-3)
        self.act2 = nn.LeakyReLU(0.1)
        # without the zeros at both ends
        window = np.outer(np.hanning(self.rows + 2)[1:-1], np.hanning(self.cols + 2)[1:-1])
        self.window = Tensor((window / window.sum()).reshape(1, -1).astype(np.float32))

    def unfold(self, x):
        """All patches as columns, their values with the channel first, then row and column."""
        batch, channels = x.shape[:2]
        height = (self.rows - 1) * self.stride + 1
        width = (self.cols - 1) * self.stride + 1
        parts = []
        for i in range(self.patch):
            for j in range(self.patch):
                parts.append(x[:, :, i : i + height : self.stride, j : j + width : self.stride])
        return ops.stack(parts, axis=2).reshape(batch, channels * self.patch**2, self.rows * self.cols)

    def embed(self, image):
        x = self.act1(self.bn1(self.conv1(self.down(image))))
        x = self.act2(self.bn2(self.conv2(x)))
        patches = self.unfold(x)
        mean = patches.mean(axis=1, keep_dims=True)
        std = patches.std(axis=1, ddof=1, keepdims=True)
        patches = (patches - mean) / (std + 1e-5)
        length = self.directions.square().sum(axis=1, keepdims=True).sqrt()
        return ops.matmul(self.directions / length, patches)

    def construct(self, image, target):
        a, b = self.embed(image), self.embed(target)
        product = (a * b).sum(axis=1) / math.sqrt(a.shape[1])
        return (product * self.window).sum(axis=1)


class StyleGenerator(nn.Cell):
    """Latents and labels to images, with the styles that made them and their score against a target."""

    def __init__(self, z_dim=20, w_dim=28, num_classes=5, base=(4, 6), channels=(24, 20, 16, 12), mix_at=3):
        super().__init__()
        levels = len(channels)
        self.mix_at = mix_at
        self.mapping = Mapping(z_dim, w_dim, num_classes, 2 * levels)
        self.const = Parameter(ops.randn(1, channels[0], base[0], base[1]), name="const")
        self.first = SynthesisLayer(channels[0], channels[0], w_dim)
        self.first_rgb = ToRGB(channels[0], w_dim, up=False)
        layers, rgbs = [], []
        for c_in, c_out in zip(channels[:-1], channels[1:]):
            layers.append(SynthesisLayer(c_in, c_out, w_dim, up=True))
            layers.append(SynthesisLayer(c_out, c_out, w_dim))
            rgbs.append(ToRGB(c_out, w_dim))
        self.layers = nn.CellList(layers)
        self.rgbs = nn.CellList(rgbs)
        self.noises = NoiseBank(base[0], base[1], levels)
        final = 2 ** (levels - 1)
        self.projection = PatchProjection(base[0] * final, base[1] * final)

    def construct(self, z1, z2, labels, target):
        ws1 = self.mapping(z1, labels)
        ws2 = self.mapping(z2, labels)
        ws = ops.cat((ws1[:, : self.mix_at], ws2[:, self.mix_at :]), axis=1)

        noise = self.noises()
        x = ops.tile(self.const, (ws.shape[0], 1, 1, 1))
        x = self.first(x, ws[:, 0], noise[0])
        image = self.first_rgb(x, ws[:, 1])
        for level, to_rgb in enumerate(self.rgbs):
            k = 2 * level + 1
            x = self.layers[k - 1](x, ws[:, k], noise[k])
            x = self.layers[k](x, ws[:, k + 1], noise[k + 1])
            image = to_rgb(x, ws[:, k + 2], image)

        return image, ws, self.projection(image, target)


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return StyleGenerator().set_train(False)
