"""PixelCNN++ with a class condition in MindSpore: likelihood of small images, and their completion."""

import math

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import Normal, initializer


def normal_parameter(shape, name, sigma=0.05):
    return Parameter(initializer(Normal(sigma), shape, ms.float32), name=name)


def ones_parameter(shape, name):
    return Parameter(Tensor(np.ones(shape, np.float32)), name=name)


def both_elu(x):
    """(batch, channels, ...) -> (batch, 2 * channels, ...): ELU of what comes in and of its negative."""
    return ops.elu(ops.cat((x, -x), axis=1))


def shift_down(x):
    """Rows move down by one; the first is zero then, the last is gone."""
    return ops.cat((ops.zeros_like(x[:, :, :1]), x[:, :, :-1]), axis=2)


def shift_right(x):
    """Columns move right by one; the first is zero then, the last is gone."""
    return ops.cat((ops.zeros_like(x[..., :1]), x[..., :-1]), axis=3)


class WeightNormConv(nn.Cell):
    """Convolution (valid) with filters given as direction and length."""

    def __init__(self, in_channels, out_channels, kernel, stride=1):
        super().__init__()
        self.stride = stride
        self.weight_v = normal_parameter((out_channels, in_channels) + tuple(kernel), "weight_v")
        self.weight_g = ones_parameter((out_channels, 1, 1, 1), "weight_g")
        self.bias = normal_parameter((out_channels,), "bias")

    def construct(self, x):
        length = ops.sqrt(ops.square(self.weight_v).sum((1, 2, 3), keepdims=True))
        weight = self.weight_v / length * self.weight_g
        return ops.conv2d(x, weight, self.bias, stride=self.stride, pad_mode="valid")


class WeightNormDeconv(nn.Cell):
    """Transposed convolution with stride two, without the extra row and column at the end."""

    def __init__(self, in_channels, out_channels, kernel):
        super().__init__()
        self.out_channels = out_channels
        self.kernel = tuple(kernel)
        self.weight_v = normal_parameter((in_channels, out_channels) + self.kernel, "weight_v")
        self.weight_g = ones_parameter((1, out_channels, 1, 1), "weight_g")
        self.bias = normal_parameter((out_channels,), "bias")
        self.spread = ops.Conv2DTranspose(out_channels, self.kernel, pad_mode="valid", stride=2)

    def construct(self, x):
        length = ops.sqrt(ops.square(self.weight_v).sum((0, 2, 3), keepdims=True))
        weight = self.weight_v / length * self.weight_g
        b, _, h, w = x.shape
        shape = (b, self.out_channels, 2 * (h - 1) + self.kernel[0], 2 * (w - 1) + self.kernel[1])
        return self.spread(x, weight, shape) + self.bias.reshape(1, -1, 1, 1)


class RasterConv(nn.Cell):
    """Convolution whose kernel is cut off behind its centre in raster order."""

    def __init__(self, in_channels, out_channels, kernel, padding, dilation, with_centre):
        super().__init__()
        self.padding = padding
        self.dilation = dilation
        self.weight = normal_parameter((out_channels, in_channels, kernel, kernel), "weight")
        self.bias = normal_parameter((out_channels,), "bias")
        before = np.arange(kernel * kernel) < kernel * kernel // 2 + int(with_centre)
        self.mask = Tensor(before.astype(np.float32).reshape(1, 1, kernel, kernel))

    def construct(self, x):
        return ops.conv2d(x, self.weight * self.mask, self.bias, pad_mode="pad", padding=self.padding,
                          dilation=self.dilation)


class DownConv(nn.Cell):
    """Sees the present row and those above."""

    def __init__(self, in_channels, out_channels, kernel=(2, 3), stride=1, shifted=False):
        super().__init__()
        side = kernel[1] // 2
        self.pads = (side, side, kernel[0] - 1, 0)
        self.shifted = shifted
        self.conv = WeightNormConv(in_channels, out_channels, kernel, stride)

    def construct(self, x):
        x = self.conv(ops.pad(x, self.pads))
        if self.shifted:
            x = shift_down(x)
        return x


class DownRightConv(nn.Cell):
    """Sees what is above and to the left."""

    def __init__(self, in_channels, out_channels, kernel=(2, 2), stride=1, shifted=False):
        super().__init__()
        self.pads = (kernel[1] - 1, 0, kernel[0] - 1, 0)
        self.shifted = shifted
        self.conv = WeightNormConv(in_channels, out_channels, kernel, stride)

    def construct(self, x):
        x = self.conv(ops.pad(x, self.pads))
        if self.shifted:
            x = shift_right(x)
        return x


class Deconv(nn.Cell):
    """Twice the resolution; `left` columns are cut off in front, what is too much behind."""

    def __init__(self, in_channels, out_channels, kernel, left):
        super().__init__()
        self.left = left
        self.deconv = WeightNormDeconv(in_channels, out_channels, kernel)

    def construct(self, x):
        rows, cols = 2 * x.shape[2], 2 * x.shape[3]
        return self.deconv(x)[:, :, :rows, self.left : self.left + cols]


class GatedBlock(nn.Cell):
    """Residual block with a gate; `extra` is the number of maps that come in from the side."""

    def __init__(self, conv, width, cond_width, extra=0, dropout=0.5):
        super().__init__()
        self.conv_in = conv(2 * width, width)
        self.has_side = extra > 0
        if self.has_side:
            self.side = WeightNormConv(2 * extra * width, width, (1, 1))
        self.dropout = nn.Dropout(p=dropout)
        self.conv_out = conv(2 * width, 2 * width)
        self.cond = nn.Dense(cond_width, 2 * width, has_bias=False)

    def construct(self, x, cond, side=None):
        y = self.conv_in(both_elu(x))
        if self.has_side:
            y = y + self.side(both_elu(side))
        y = self.dropout(both_elu(y))
        y = self.conv_out(y) + self.cond(cond).expand_dims(-1).expand_dims(-1)
        value, gate = ops.chunk(y, 2, axis=1)
        return x + value * ops.sigmoid(gate)


class Descent(nn.Cell):
    """The blocks of one scale on the way to the coarse ones."""

    def __init__(self, blocks, width, cond_width):
        super().__init__()
        self.u_stream = nn.CellList([GatedBlock(DownConv, width, cond_width) for _ in range(blocks)])
        self.ul_stream = nn.CellList([GatedBlock(DownRightConv, width, cond_width, extra=1) for _ in range(blocks)])

    def construct(self, u, ul, cond):
        kept_u, kept_ul = [], []
        for on_u, on_ul in zip(self.u_stream, self.ul_stream):
            u = on_u(u, cond)
            ul = on_ul(ul, cond, u)
            kept_u.append(u)
            kept_ul.append(ul)
        return kept_u, kept_ul


class Ascent(nn.Cell):
    """The blocks of one scale on the way back; each takes one of the kept maps, the latest first."""

    def __init__(self, blocks, width, cond_width):
        super().__init__()
        self.u_stream = nn.CellList([GatedBlock(DownConv, width, cond_width, extra=1) for _ in range(blocks)])
        self.ul_stream = nn.CellList([GatedBlock(DownRightConv, width, cond_width, extra=2) for _ in range(blocks)])

    def construct(self, u, ul, kept_u, kept_ul, cond):
        for on_u, on_ul, old_u, old_ul in zip(self.u_stream, self.ul_stream, kept_u[::-1], kept_ul[::-1]):
            u = on_u(u, cond, old_u)
            ul = on_ul(ul, cond, ops.cat((u, old_ul), axis=1))
        return u, ul


class PixelNorm(nn.Cell):
    """Layer norm over the channels of an image."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm((width,), epsilon=1e-3)

    def construct(self, x):
        return self.norm(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


class Rescale(nn.Cell):
    """To another resolution in both streams, each with a norm behind."""

    def __init__(self, width, on_u, on_ul):
        super().__init__()
        self.on_u = on_u
        self.on_ul = on_ul
        self.norm_u = PixelNorm(width)
        self.norm_ul = PixelNorm(width)

    def construct(self, u, ul):
        return self.norm_u(self.on_u(u)), self.norm_ul(self.on_ul(ul))


class ClassVector(nn.Cell):
    """Labels (batch,) to vectors; the last row of the table is for images whose label is negative."""

    def __init__(self, num_classes, embed_width, cond_width):
        super().__init__()
        self.no_class = num_classes
        self.table = nn.Embedding(num_classes + 1, embed_width)
        self.fc1 = nn.Dense(embed_width, cond_width)
        self.norm = nn.BatchNorm1d(cond_width, eps=1e-5)
        self.act = nn.GELU(approximate=False)
        self.fc2 = nn.Dense(cond_width, cond_width)

    def construct(self, labels):
        row = ops.where(labels < 0, ops.full_like(labels, self.no_class), labels)
        hidden = self.norm(self.fc1(self.table(row)))
        return self.fc2(self.act(hidden))


class TwoStreams(nn.Cell):
    """Images in [-1, 1] to the mixture's parameters at each pixel, (batch, 10 * mixtures, height, width)."""

    def __init__(self, width=16, cond_width=20, scales=3, blocks=1, mixtures=4):
        super().__init__()
        self.blocks = blocks
        self.first_u = DownConv(6, width, (2, 3), shifted=True)
        self.first_ul_above = DownConv(6, width, (1, 3), shifted=True)
        self.first_ul_left = DownRightConv(6, width, (2, 1), shifted=True)
        self.descents = nn.CellList([Descent(blocks, width, cond_width) for _ in range(scales)])
        self.ascents = nn.CellList([Ascent(blocks + min(i, 1), width, cond_width) for i in range(scales)])
        self.halve = nn.CellList(
            [
                Rescale(width, DownConv(width, width, stride=2), DownRightConv(width, width, stride=2))
                for _ in range(scales - 1)
            ]
        )
        self.double = nn.CellList(
            [
                Rescale(width, Deconv(width, width, (2, 3), left=1), Deconv(width, width, (2, 2), left=0))
                for _ in range(scales - 1)
            ]
        )
        self.refine = RasterConv(width, width, 3, padding=2, dilation=2, with_centre=True)
        self.head = WeightNormConv(width, 10 * mixtures, (1, 1))

    def places(self, x, full_height):
        """Row and column in [-1, 1] as two planes; rows count in the full height even if x is only its upper part."""
        b, _, h, w = x.shape
        rows = np.arange(h, dtype=np.float32) * np.float32(2.0 / (full_height - 1)) - 1
        cols = np.arange(w, dtype=np.float32) * np.float32(2.0 / (w - 1)) - 1
        planes = np.stack((np.repeat(rows[:, None], w, axis=1), np.repeat(cols[None, :], h, axis=0)))
        return ops.tile(Tensor(planes.astype(np.float32)).expand_dims(0), (b, 1, 1, 1))

    def construct(self, x, valid, cond, full_height):
        x = ops.cat((x, valid, self.places(x, full_height)), axis=1)
        u, ul = self.first_u(x), self.first_ul_above(x) + self.first_ul_left(x)

        # what is kept at each scale: the map that enters it, and those behind its blocks
        kept = []
        for i, descent in enumerate(self.descents):
            more_u, more_ul = descent(u, ul, cond)
            kept.append(([u] + more_u, [ul] + more_ul))
            u, ul = more_u[-1], more_ul[-1]
            if i < len(self.halve):
                u, ul = self.halve[i](u, ul)

        # the coarsest scale starts with its last map, which is no skip connection then
        kept[-1] = (kept[-1][0][:-1], kept[-1][1][:-1])
        for i, ascent in enumerate(self.ascents):
            u, ul = ascent(u, ul, *kept[-1 - i], cond)
            if i < len(self.double):
                u, ul = self.double[i](u, ul)

        ul = ul + self.refine(ops.elu(ul))
        return self.head(ops.elu(ul))


def unpack(out, mixtures, floor):
    """(batch, 10 * mixtures, ...) to logits (batch, K, ...) and means, log scales, couplings (batch, 3, K, ...)."""
    logits, rest = out[:, :mixtures], out[:, mixtures:]
    rest = rest.reshape((out.shape[0], 3, 3, mixtures) + tuple(out.shape[2:]))
    means, log_scales, coupling = rest[:, :, 0], rest[:, :, 1], rest[:, :, 2]
    return logits, means, ops.clamp(log_scales, min=floor), ops.tanh(coupling)


def log_likelihood(x, out, bits, mixtures, floor):
    """x and the parameters of its mixtures to the logarithm of each pixel's probability, (batch, height, width)."""
    levels = 2**bits
    half = 1.0 / (levels - 1)
    logits, means, log_scales, coupling = unpack(out, mixtures, floor)
    x = x.expand_dims(2)
    red, green = x[:, 0], x[:, 1]
    mean_red = means[:, 0]
    mean_green = means[:, 1] + coupling[:, 0] * red
    mean_blue = means[:, 2] + coupling[:, 1] * red + coupling[:, 2] * green
    off = x - ops.stack((mean_red, mean_green, mean_blue), axis=1)

    sharp = ops.exp(-log_scales)
    upper, lower = sharp * (off + half), sharp * (off - half)
    below = upper - ops.softplus(upper)
    above = -ops.softplus(lower)
    # by symmetry the difference of the two distribution functions is taken in the tail near zero
    tail = -ops.abs(off)
    mass = ops.sigmoid(sharp * (tail + half)) - ops.sigmoid(sharp * (tail - half))
    middle = sharp * off
    density = middle - log_scales - 2.0 * ops.softplus(middle)
    inside = ops.where(mass > 1e-5, ops.log(ops.clamp(mass, min=1e-12)), density - math.log(0.5 * (levels - 1)))
    # black and white take all that is beyond them
    by_channel = ops.where(x > 0.999, above, inside)
    by_channel = ops.where(x < -0.999, below, by_channel)

    log_weights = ops.log_softmax(logits, axis=1)
    return ops.logsumexp(by_channel.sum(axis=1) + log_weights, 1)


def draw_pixel(out, gumbel_u, logistic_u, mixtures, floor, mix_temperature, scale_temperature):
    """One pixel (batch, 3) by parameters (batch, 10 * mixtures) and uniforms (batch, mixtures), (batch, 3)."""
    logits, means, log_scales, coupling = unpack(out, mixtures, floor)
    gumbel_u = ops.clamp(gumbel_u, 1e-5, 1.0 - 1e-5)
    logistic_u = ops.clamp(logistic_u, 1e-5, 1.0 - 1e-5)
    noisy = logits / mix_temperature - ops.log(-ops.log(gumbel_u))
    index = ops.argmax(noisy, -1).astype(ms.int32).reshape(-1, 1, 1)
    index = ops.tile(index, (1, 3, 1))
    mean = ops.gather_elements(means, 2, index)[..., 0]
    log_scale = ops.gather_elements(log_scales, 2, index)[..., 0]
    factor = ops.gather_elements(coupling, 2, index)[..., 0]

    noise = ops.log(logistic_u) - ops.log(1.0 - logistic_u)
    raw = mean + scale_temperature * ops.exp(log_scale) * noise
    red = ops.clamp(raw[:, 0], -1.0, 1.0)
    green = ops.clamp(raw[:, 1] + factor[:, 0] * red, -1.0, 1.0)
    blue = ops.clamp(raw[:, 2] + factor[:, 1] * red + factor[:, 2] * green, -1.0, 1.0)
    return ops.stack((red, green, blue), axis=1)


class PixelCNN(nn.Cell):
    """Bits per dimension of images, map of log probabilities, and completions."""

    def __init__(self, bits=5, num_classes=7, width=16, embed_width=12, cond_width=20, scales=3, mixtures=4, floor=-3.0,
                 given=46, mix_temperature=0.9, scale_temperature=0.8):
        super().__init__()
        self.bits = bits
        self.mixtures = mixtures
        self.floor = floor
        self.given = given
        self.stride = 2 ** (scales - 1)
        self.temperatures = (mix_temperature, scale_temperature)
        self.classes = ClassVector(num_classes, embed_width, cond_width)
        self.streams = TwoStreams(width, cond_width, scales, 1, mixtures)

    def complete(self, x, valid, cond, gumbel_u, logistic_u):
        b, c, height, width = x.shape
        place = np.arange(height * width).reshape(1, 1, height, width)
        canvas = x * Tensor((place < self.given).astype(np.float32))
        for k in range(gumbel_u.shape[0]):
            at = self.given + k
            row, col = at // width, at % width
            # only the upper rows go through the net, as many as can be halved
            top = -(-(row + 1) // self.stride) * self.stride
            out = self.streams(canvas[:, :, :top], valid[:, :, :top], cond, height)
            pixel = draw_pixel(out[:, :, row, col], gumbel_u[k], logistic_u[k], self.mixtures, self.floor,
                               *self.temperatures)
            canvas = ops.where(Tensor(place == at), pixel.reshape(b, c, 1, 1) * valid, canvas)
        return canvas

    def construct(self, image, sizes, labels, gumbel_u, logistic_u):
        b, c, height, width = image.shape
        rows = Tensor(np.arange(height).reshape(1, 1, height, 1)) < sizes[:, 0].reshape(b, 1, 1, 1)
        cols = Tensor(np.arange(width).reshape(1, 1, 1, width)) < sizes[:, 1].reshape(b, 1, 1, 1)
        valid = ops.logical_and(rows, cols).astype(ms.float32)

        levels = 2**self.bits
        x = ops.floor(image / (256 // levels)) * (2.0 / (levels - 1)) - 1.0
        x = x * valid

        cond = self.classes(labels)
        out = self.streams(x, valid, cond, height)
        log_prob = log_likelihood(x, out, self.bits, self.mixtures, self.floor) * valid[:, 0]
        count = c * valid.sum(axis=(1, 2, 3))
        bits_per_dim = -log_prob.sum(axis=(1, 2)) / count / math.log(2.0)
        completed = self.complete(x, valid, cond, gumbel_u, logistic_u)
        return bits_per_dim, log_prob, completed


def build():
    """The net for evaluation and its inputs: images in bytes, their sizes, labels, and the uniforms for four pixels."""
    net = PixelCNN()
    net.set_train(False)
    rng = np.random.RandomState(5)
    coarse = np.kron(rng.rand(3, 3, 4, 6), np.ones((1, 1, 2, 2)))
    image = np.floor(np.clip(1.5 * (0.7 * coarse + 0.3 * rng.rand(3, 3, 8, 12)) - 0.25, 0.0, 1.0) * 255.0)
    sizes = np.array([[8, 12], [6, 9], [7, 11]])
    labels = np.array([4, -1, 2])
    gumbel_u = rng.rand(4, 3, 4).astype(np.float32)
    logistic_u = rng.rand(4, 3, 3).astype(np.float32)
    inputs = (Tensor(image.astype(np.float32)), Tensor(sizes), Tensor(labels), Tensor(gumbel_u), Tensor(logistic_u))
    return net, inputs
