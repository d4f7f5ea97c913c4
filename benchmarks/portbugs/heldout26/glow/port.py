"""Conditional Glow for small images in MindSpore: likelihoods, the way back, and samples from given noise."""

import math

import numpy as np
import scipy.linalg

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
LOGSCALE_FACTOR = 3.0
MAX_LOGS = 2.5
NUM_BITS = 8
ALPHA = 0.05


def parameter(value, name, trainable=True):
    return Parameter(Tensor(np.asarray(value, np.float32)), name=name, requires_grad=trainable)


def conv3x3(in_channels, out_channels):
    return nn.Conv2d(in_channels, out_channels, 3, pad_mode="pad", padding=1, has_bias=True)


def conv1x1(in_channels, out_channels):
    return nn.Conv2d(in_channels, out_channels, 1, pad_mode="valid", has_bias=True)


def flat_sum(x):
    """Sum over everything but the batch."""
    return x.reshape(x.shape[0], -1).sum(axis=1)


def halves(x):
    return ops.chunk(x, 2, axis=1)


def interleaved(x):
    return x[:, 0::2], x[:, 1::2]


def soft_limit(x, bound=1.0):
    """Into (-bound, bound), with a slope of 2 / pi at zero."""
    return (2.0 * bound / math.pi) * ops.atan(x / bound)


def log_normal(x, mean, logs):
    """Elementwise log-density; logs is the logarithm of the standard deviation."""
    scaled = (x - mean) * ops.exp(-logs)
    return -(HALF_LOG_2PI + logs + 0.5 * ops.square(scaled))


def to_channels(x):
    """Windows of 2x2 pixels become four channels each."""
    return ops.pixel_unshuffle(x, 2)


def to_space(x):
    """The way back from to_channels."""
    return ops.pixel_shuffle(x, 2)


class ScaledConv(nn.Cell):
    """3x3 convolution whose output channels carry a learned log-scale."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = conv3x3(in_channels, out_channels)
        self.logs = parameter(np.zeros((1, out_channels, 1, 1)), "logs")

    def construct(self, x):
        return self.conv(x) * ops.exp(LOGSCALE_FACTOR * self.logs)


class FilmBlock(nn.Cell):
    """Gated residual block that the label modulates."""

    def __init__(self, channels, embed_dim):
        super().__init__()
        self.norm = nn.GroupNorm(6, channels)
        self.film = nn.Dense(embed_dim, 2 * channels)
        self.conv1 = conv3x3(2 * channels, channels)
        self.act = nn.GELU(approximate=False)
        self.conv2 = conv1x1(channels, 2 * channels)

    def construct(self, x, embed):
        scale, shift = halves(self.film(embed).expand_dims(-1).expand_dims(-1))
        h = self.norm(x)
        h = h + h * scale + shift
        h = ops.cat((ops.elu(h), ops.elu(-h)), axis=1)
        h = self.conv2(self.act(self.conv1(h)))
        value, gate = halves(h)
        return x + ops.sigmoid(gate) * value


class CouplingNet(nn.Cell):
    """What a coupling's map depends on goes in, its raw parameters come out."""

    def __init__(self, in_channels, out_channels, hidden, context_dim, embed_dim):
        super().__init__()
        self.stem = conv3x3(in_channels + context_dim, hidden)
        self.block = FilmBlock(hidden, embed_dim)
        self.norm = nn.GroupNorm(1, hidden)
        self.relu = nn.ReLU()
        self.last = ScaledConv(hidden, out_channels)

    def construct(self, x, context, embed):
        h = self.stem(ops.cat((x, context), axis=1))
        h = self.relu(self.norm(self.block(h, embed)))
        return self.last(h)


class LowResEncoder(nn.Cell):
    """One map of features for the pixels' grid and for each level, and their mean."""

    def __init__(self, width, grids):
        super().__init__()
        self.grids = grids
        self.conv1 = conv3x3(3, width)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, pad_mode="pad", padding=2, dilation=2, has_bias=True)
        self.bn2 = nn.BatchNorm2d(width)
        self.act = nn.GELU(approximate=False)
        self.pool = nn.AvgPool2d(3, stride=2, pad_mode="pad", padding=1, count_include_pad=False)
        self.heads = nn.CellList([conv1x1(width, width) for _ in grids])

    def resize(self, features, grid):
        height = features.shape[2]
        if grid[0] > height:
            return ops.interpolate(features, size=grid, mode="bilinear", align_corners=False)
        if grid[0] < height:
            return self.pool(features)
        return features

    def construct(self, low):
        h = self.act(self.bn1(self.conv1(2.0 * low - 1.0)))
        h = h + self.act(self.bn2(self.conv2(h)))
        maps = [head(self.resize(h, grid)) for head, grid in zip(self.heads, self.grids)]
        return maps, h.mean(axis=(2, 3))


class ActNorm(nn.Cell):
    """Affine map of each channel."""

    def __init__(self, channels):
        super().__init__()
        self.bias = parameter(np.zeros((1, channels, 1, 1)), "bias")
        self.logs = parameter(np.zeros((1, channels, 1, 1)), "logs")

    def construct(self, x, logdet, inverse=False):
        height, width = x.shape[-2:]
        volume = height * width * self.logs.sum()
        if inverse:
            return x * ops.exp(-self.logs) - self.bias, logdet - volume
        return (x + self.bias) * ops.exp(self.logs), logdet + volume


class LUConv(nn.Cell):
    """1x1 convolution with the matrix P L (U + diag(s)); the place says which one of the flow it is."""

    def __init__(self, channels, place):
        super().__init__()
        self.place = place
        rotation = np.linalg.qr(np.random.randn(channels, channels))[0]
        p, l, u = scipy.linalg.lu(rotation)
        diagonal = np.diag(u)
        self.l = parameter(l, "l")
        self.log_s = parameter(np.log(np.abs(diagonal)), "log_s")
        self.u = parameter(np.triu(u, 1), "u")
        self.p = parameter(p, "p", trainable=False)
        self.sign_s = parameter(np.sign(diagonal), "sign_s", trainable=False)
        self.below = Tensor(np.tri(channels, k=-1, dtype=np.float32))
        self.identity = Tensor(np.eye(channels, dtype=np.float32))

    def matrix(self, inverse):
        lower = self.l * self.below + self.identity
        upper = self.u * self.below.T + self.identity * (self.sign_s * ops.exp(self.log_s))
        if inverse:
            return ops.matmul(ops.matmul(ops.inverse(upper), ops.inverse(lower)), self.p.T)
        return ops.matmul(self.p, ops.matmul(lower, upper))

    def construct(self, x, logdet, matrices, inverse=False):
        b, c, height, width = x.shape
        key = (self.place, inverse)
        if key not in matrices:
            matrices[key] = self.matrix(inverse)
        volume = self.log_s.sum() * (height * width)
        x = ops.matmul(matrices[key], x.reshape(b, c, height * width)).reshape(b, c, height, width)
        return x, logdet + (-volume if inverse else volume)


class PixelCoupling(nn.Cell):
    """Coupling on the black or the white pixels of a checkerboard."""

    def __init__(self, channels, parity, size, **dims):
        super().__init__()
        rows, cols = np.indices(size)
        self.keep = Tensor(((rows + cols + parity) % 2).astype(np.float32)[None, None])
        self.net = CouplingNet(channels, 2 * channels, **dims)
        self.rescale = parameter(np.ones((channels, 1, 1)), "rescale")

    def construct(self, x, logdet, context, embed, inverse=False):
        raw, shift = halves(self.net(x * self.keep, context, embed))
        change = 1.0 - self.keep
        logs = change * self.rescale * soft_limit(raw)
        shift = change * shift
        if inverse:
            return (x - shift) * ops.exp(-logs), logdet - flat_sum(logs)
        return x * ops.exp(logs) + shift, logdet + flat_sum(logs)


class ChannelCoupling(nn.Cell):
    """One half of the channels is scaled and shifted by what the other half says."""

    def __init__(self, channels, second_first, **dims):
        super().__init__()
        self.second_first = second_first
        self.net = CouplingNet(channels // 2, channels, **dims)

    def construct(self, x, logdet, context, embed, inverse=False):
        first, second = halves(x)
        if self.second_first:
            first, second = second, first
        shift, raw = interleaved(self.net(first, context, embed))
        scale = ops.sigmoid(raw + 2.0)
        volume = flat_sum(ops.log(scale))
        if inverse:
            second, volume = second / scale - shift, -volume
        else:
            second = (second + shift) * scale
        joined = (second, first) if self.second_first else (first, second)
        return ops.cat(joined, axis=1), logdet + volume


class Step(nn.Cell):
    """One step of the flow."""

    def __init__(self, channels, place, **dims):
        super().__init__()
        self.actnorm = ActNorm(channels)
        self.invconv = LUConv(channels, place)
        self.coupling = ChannelCoupling(channels, place[1] % 2 == 1, **dims)

    def construct(self, x, logdet, context, embed, matrices, inverse=False):
        if not inverse:
            x, logdet = self.actnorm(x, logdet)
            x, logdet = self.invconv(x, logdet, matrices)
            return self.coupling(x, logdet, context, embed)
        x, logdet = self.coupling(x, logdet, context, embed, inverse=True)
        x, logdet = self.invconv(x, logdet, matrices, inverse=True)
        return self.actnorm(x, logdet, inverse=True)


class FactorOut(nn.Cell):
    """Half of the channels leaves the flow, as standardised residuals of a conditional normal."""

    def __init__(self, channels, context_dim):
        super().__init__()
        self.prior = ScaledConv(channels // 2 + context_dim, channels)

    def stats(self, kept, context):
        mean, logs = interleaved(self.prior(ops.cat((kept, context), axis=1)))
        return mean, soft_limit(logs, MAX_LOGS)

    def construct(self, x, logp, context, residual=None, tau=1.0):
        if residual is None:
            kept, out = halves(x)
            mean, logs = self.stats(kept, context)
            return kept, logp + flat_sum(log_normal(out, mean, logs)), (out - mean) / ops.exp(logs)
        mean, logs = self.stats(x, context)
        out = mean + tau * ops.exp(logs) * residual
        return ops.cat((x, out), axis=1), logp + flat_sum(log_normal(out, mean, logs))


class TopPrior(nn.Cell):
    """Mixture of diagonal normals for what is left at the coarsest level."""

    def __init__(self, shape, components, hidden, context_dim, embed_dim):
        super().__init__()
        self.shape = shape
        self.components = components
        self.fc1 = nn.Dense(embed_dim + context_dim, hidden)
        self.norm = nn.LayerNorm((hidden,), epsilon=1e-5)
        self.silu = nn.SiLU()
        self.fc2 = nn.Dense(hidden, components * (1 + 2 * shape[0]))
        self.place = parameter(np.zeros((1, 1) + shape), "place")

    def mixture(self, embed, pooled):
        h = self.silu(self.norm(self.fc1(ops.cat((embed, pooled), axis=1))))
        h = self.fc2(h)
        weights = ops.log_softmax(h[:, : self.components], axis=1)
        stats = h[:, self.components :].reshape(-1, self.components, 2, self.shape[0], 1, 1)
        mean = stats[:, :, 0] + self.place
        return weights, mean, ops.broadcast_to(soft_limit(stats[:, :, 1], MAX_LOGS), mean.shape)

    def score(self, z, weights, mean, logs):
        logp = log_normal(z.expand_dims(1), mean, logs)
        logp = logp.reshape(logp.shape[0], self.components, -1).sum(axis=2)
        return ops.logsumexp(weights + logp, 1)

    def construct(self, embed, pooled, z):
        return self.score(z, *self.mixture(embed, pooled))

    def sample(self, embed, pooled, residual, choice, tau):
        """The component is the first whose cumulated weight is not below the choice."""
        weights, mean, logs = self.mixture(embed, pooled)
        steps = ops.cumsum(ops.exp(weights), 1)
        chosen = (choice.expand_dims(1) > steps).astype(ms.int32).sum(axis=1)
        chosen = ops.clamp(chosen, max=self.components - 1)
        picked = ops.one_hot(chosen, self.components).astype(mean.dtype).reshape(-1, self.components, 1, 1, 1)
        z = (picked * mean).sum(axis=1) + tau * ops.exp((picked * logs).sum(axis=1)) * residual
        return z, self.score(z, weights, mean, logs)


class Glow(nn.Cell):
    """The flow over images, its conditions and its prior."""

    def __init__(self, size=(16, 24), classes=5, depth=3, steps=2, hidden=24, context_dim=12, embed_dim=10,
                 components=3, prior_hidden=32, upscale=4, tau_top=0.85, tau_split=0.7):
        super().__init__()
        self.depth, self.classes, self.upscale = depth, classes, upscale
        self.tau_top, self.tau_split = tau_top, tau_split
        self.dims = 3 * size[0] * size[1]
        dims = dict(hidden=hidden, context_dim=context_dim, embed_dim=embed_dim)
        grids = [(size[0] // 2**i, size[1] // 2**i) for i in range(depth + 1)]

        self.labels = nn.Embedding(classes, embed_dim)
        self.context = LowResEncoder(context_dim, grids)
        self.pixels = nn.CellList([PixelCoupling(3, parity, size, **dims) for parity in range(2)])
        levels, splits, self.shapes = [], [], []
        channels = 3
        for i in range(depth):
            channels = 4 * channels
            levels.append(nn.CellList([Step(channels, (i, j), **dims) for j in range(steps)]))
            if i + 1 < depth:
                splits.append(FactorOut(channels, context_dim))
                channels = channels // 2
            self.shapes.append((channels,) + grids[i + 1])
        self.levels = nn.CellList(levels)
        self.splits = nn.CellList(splits)
        self.prior = TopPrior(self.shapes[-1], components, prior_hidden, context_dim, embed_dim)

    def volume_of_pixels(self):
        return self.dims * (math.log(1.0 - 2.0 * ALPHA) - NUM_BITS * math.log(2.0))

    def to_logits(self, image, dequant):
        p = ALPHA + (1.0 - 2.0 * ALPHA) * (image + dequant) / 2**NUM_BITS
        log_p, log_q = ops.log(p), ops.log(1.0 - p)
        return log_p - log_q, self.volume_of_pixels() - flat_sum(log_p + log_q)

    def to_pixels(self, y):
        p = ops.sigmoid(y)
        volume = flat_sum(ops.log(p) + ops.log(1.0 - p)) - self.volume_of_pixels()
        return (p - ALPHA) / (1.0 - 2.0 * ALPHA), volume

    def encode(self, x, logdet, maps, embed, matrices):
        for coupling in self.pixels:
            x, logdet = coupling(x, logdet, maps[0], embed)
        logp, residuals = ops.zeros_like(logdet), []
        for i in range(self.depth):
            x = to_channels(x)
            for step in self.levels[i]:
                x, logdet = step(x, logdet, maps[i + 1], embed, matrices)
            if i + 1 < self.depth:
                x, logp, residual = self.splits[i](x, logp, maps[i + 1])
                residuals.append(residual)
        return x, logdet, logp, residuals

    def decode(self, z, residuals, maps, embed, matrices, tau=1.0):
        logdet = logp = ops.zeros((z.shape[0],), z.dtype)
        for i in range(self.depth - 1, -1, -1):
            if i + 1 < self.depth:
                z, logp = self.splits[i](z, logp, maps[i + 1], residuals[i], tau)
            for step in list(self.levels[i])[::-1]:
                z, logdet = step(z, logdet, maps[i + 1], embed, matrices, inverse=True)
            z = to_space(z)
        for coupling in list(self.pixels)[::-1]:
            z, logdet = coupling(z, logdet, maps[0], embed, inverse=True)
        return z, logdet, logp

    def deal(self, noise):
        """Flat noise to one piece for each level; the flat one starts with the coarsest."""
        pieces, start = {}, 0
        for i in range(self.depth - 1, -1, -1):
            count = math.prod(self.shapes[i])
            pieces[i] = noise[:, start : start + count].reshape((-1,) + self.shapes[i])
            start += count
        return [pieces[i] for i in range(self.depth)]

    def label_scores(self, top, pooled):
        """(batch, labels): how likely the coarsest latent is under each label, per dimension."""
        batch = top.shape[0]
        table = ops.tile(self.labels.embedding_table, (batch, 1))
        top = ops.repeat_interleave(top, self.classes, 0)
        pooled = ops.repeat_interleave(pooled, self.classes, 0)
        return self.prior(table, pooled, top).reshape(batch, self.classes) / math.prod(self.shapes[-1])

    def bits(self, loglik):
        return -loglik / (self.dims * math.log(2.0))

    def construct(self, image, low, labels, dequant, noise, choice):
        maps, pooled = self.context(low)
        embed = self.labels(labels)
        matrices = {}

        x, logdet = self.to_logits(image, dequant)
        top, logdet, logp, residuals = self.encode(x, logdet, maps, embed, matrices)
        bits = self.bits(logdet + logp + self.prior(embed, pooled, top))
        scores = self.label_scores(top, pooled)
        latents = ops.cat([z.reshape(z.shape[0], -1) for z in residuals + [top]], axis=1)

        back, _, _ = self.decode(top, residuals, maps, embed, matrices)
        rebuilt, _ = self.to_pixels(back)

        pieces = self.deal(noise)
        z, logp_top = self.prior.sample(embed, pooled, pieces[-1], choice, self.tau_top)
        y, logdet, logp = self.decode(z, pieces[:-1], maps, embed, matrices, tau=self.tau_split)
        sample, volume = self.to_pixels(y)
        sample_bits = self.bits(logp_top + logp - logdet - volume)
        sample = ops.clamp(sample, 0.0, 1.0)
        small = ops.avg_pool2d(sample, self.upscale, self.upscale)
        drift = ops.abs(small - low).mean(axis=(1, 2, 3))
        return bits, scores, latents, rebuilt, sample, sample_bits, drift


def example_inputs(size, dims):
    """Three images with their low-resolution versions, labels, and the noise of everything that is random."""
    rng = np.random.default_rng(1807)
    (height, width), shape = size, (3, 3) + size
    phase = rng.uniform(0.0, 2.0 * np.pi, (2, 3, 3, 1, 1))
    waves = np.sin(0.3 * np.arange(height)[:, None] + phase[0]) + np.sin(0.25 * np.arange(width) + phase[1])
    image = np.rint(np.clip(128.0 + 48.0 * waves + 20.0 * rng.standard_normal(shape), 0.0, 255.0))
    low = image.reshape(3, 3, height // 4, 4, width // 4, 4).mean(axis=(3, 5)) / 255.0
    dequant, noise = rng.random(shape), rng.standard_normal((3, dims))
    floats = [image, low, dequant, noise, np.array([0.12, 0.55, 0.91])]
    image, low, dequant, noise, choice = (Tensor(a.astype(np.float32)) for a in floats)
    return image, low, Tensor(np.array([3, 0, 2], np.int64)), dequant, noise, choice


def build():
    """The net for evaluation and its example inputs."""
    net = Glow()
    net.set_train(False)
    return net, example_inputs((16, 24), net.dims)
