"""The latent diffusion transformer for super-resolution in MindSpore: denoiser, hybrid loss, DDIM and Heun sampling."""

from __future__ import annotations

import math

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

SCALING_FACTOR = 0.18215  # of the autoencoder

CHANNELS = 4
CLASSES = 10
TRAIN_STEPS = 1000
LATENT_RANGE = 2.5
QUANTILE = 0.97


def grid_embedding(width, rows, cols, base):
    """The fixed sine-cosine table (rows * cols, width) of a grid, in places of the base grid."""
    frequencies = 10000.0 ** -(np.arange(width // 4) / (width / 4.0))
    y, x = np.meshgrid(np.arange(rows) * base / rows, np.arange(cols) * base / cols, indexing="ij")
    by_x = x.reshape(-1, 1) * frequencies
    by_y = y.reshape(-1, 1) * frequencies
    table = np.concatenate([np.sin(by_x), np.cos(by_x), np.sin(by_y), np.cos(by_y)], axis=1)
    return Tensor(table.astype(np.float32))


def rotary_table(head_width, rows, cols, base, registers, theta=100.0):
    """Cosine and sine of the angle of each channel of each token; registers are not turned."""
    per_axis = head_width // 2
    frequencies = theta ** -(np.arange(0, per_axis, 2) / per_axis)

    def turns(count):
        angle = np.arange(count)[:, None] * base / count * frequencies
        return np.repeat(angle, 2, axis=1)

    angle = np.zeros((registers + rows * cols, head_width))
    grid = angle[registers:].reshape(rows, cols, head_width)
    grid[:, :, :per_axis] = turns(rows)[:, None, :]
    grid[:, :, per_axis:] = turns(cols)[None, :, :]
    return Tensor(np.cos(angle).astype(np.float32)), Tensor(np.sin(angle).astype(np.float32))


def rotate(x, cos, sin):
    """Turn each pair of neighbouring channels by its angle."""
    pairs = x.reshape(*x.shape[:-1], x.shape[-1] // 2, 2)
    turned = ops.stack((-pairs[..., 1], pairs[..., 0]), axis=-1).reshape(x.shape)
    return x * cos + turned * sin


def scale_shift(x, scale, shift):
    return x * (1.0 + scale.expand_dims(1)) + shift.expand_dims(1)


class RMSNorm(nn.Cell):
    """Root mean square normalisation of the last axis."""

    def __init__(self, width, epsilon=1e-6):
        super().__init__()
        self.weight = Parameter(Tensor(np.ones(width, np.float32)), name="weight")
        self.epsilon = epsilon

    def construct(self, x):
        power = ops.mean(ops.square(x), axis=-1, keep_dims=True)
        return x * ops.rsqrt(power + self.epsilon) * self.weight


class PlainLayerNorm(nn.Cell):
    """Layer normalisation of the last axis without weights."""

    def __init__(self, width, epsilon=1e-6):
        super().__init__()
        self.layer_norm = ops.LayerNorm(begin_norm_axis=-1, begin_params_axis=-1, epsilon=epsilon)
        self.ones = Tensor(np.ones(width, np.float32))
        self.zeros = Tensor(np.zeros(width, np.float32))

    def construct(self, x):
        return self.layer_norm(x, self.ones, self.zeros)[0]


class TimeEmbedding(nn.Cell):
    """Timesteps, whole or not, to the width of the condition."""

    def __init__(self, width, frequencies, max_period=10000.0):
        super().__init__()
        half = frequencies // 2
        rates = np.exp(-math.log(max_period) * np.arange(half) / half)
        self.rates = Tensor(rates.astype(np.float32).reshape(1, half))
        self.mlp = nn.SequentialCell([nn.Dense(frequencies, width), nn.SiLU(), nn.Dense(width, width)])

    def construct(self, t):
        angle = t.astype(ms.float32).reshape(-1, 1) * self.rates
        return self.mlp(ops.cat((ops.cos(angle), ops.sin(angle)), axis=1))


class LabelEmbedding(nn.Cell):
    """Class labels; the last row of the table is for samples without one."""

    def __init__(self, classes, width):
        super().__init__()
        self.classes = classes
        self.embedding_table = nn.Embedding(classes + 1, width)

    def construct(self, labels, drop_ids=None):
        if drop_ids is not None:
            labels = ops.masked_fill(labels, drop_ids == 1, self.classes)
        return self.embedding_table(labels)


class Attention(nn.Cell):
    """Self-attention; queries and keys are normalised per head and turned by their places."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.head_width = width // heads
        self.scale = self.head_width**-0.5
        self.qkv = nn.Dense(width, 3 * width)
        self.q_norm = RMSNorm(self.head_width)
        self.k_norm = RMSNorm(self.head_width)
        self.proj = nn.Dense(width, width)

    def split_heads(self, x):
        b, n, _ = x.shape
        return x.reshape(b, n, self.heads, self.head_width).swapaxes(1, 2)

    def construct(self, x, cos, sin):
        query, key, value = (self.split_heads(part) for part in ops.chunk(self.qkv(x), 3, axis=-1))
        query = rotate(self.q_norm(query), cos, sin)
        key = rotate(self.k_norm(key), cos, sin)
        weights = ops.softmax(ops.matmul(query * self.scale, key.swapaxes(-1, -2)), axis=-1)
        return self.proj(ops.matmul(weights, value).swapaxes(1, 2).reshape(x.shape))


class Block(nn.Cell):
    """Attention and perceptron, each with a shift, a scale and a gate from the condition."""

    def __init__(self, width, heads, ratio, skip):
        super().__init__()
        self.skip = skip
        if skip:
            self.skip_norm = nn.LayerNorm((2 * width,), epsilon=1e-6)
            self.skip_linear = nn.Dense(2 * width, width)
        self.norm1 = PlainLayerNorm(width)
        self.attn = Attention(width, heads)
        self.norm2 = PlainLayerNorm(width)
        self.mlp = nn.SequentialCell(
            [nn.Dense(width, ratio * width), nn.GELU(approximate=True), nn.Dense(ratio * width, width)]
        )
        self.modulation = nn.SequentialCell([nn.SiLU(), nn.Dense(width, 6 * width)])

    def construct(self, x, condition, cos, sin, earlier=None):
        if self.skip:
            x = self.skip_linear(self.skip_norm(ops.cat((x, earlier), axis=-1)))
        shift1, scale1, gate1, shift2, scale2, gate2 = ops.chunk(self.modulation(condition), 6, axis=-1)
        attended = self.attn(scale_shift(self.norm1(x), scale1, shift1), cos, sin)
        x = x + gate1.expand_dims(1) * attended
        return x + gate2.expand_dims(1) * self.mlp(scale_shift(self.norm2(x), scale2, shift2))


class FinalLayer(nn.Cell):
    """Tokens to the values of a patch."""

    def __init__(self, width, values):
        super().__init__()
        self.norm = PlainLayerNorm(width)
        self.linear = nn.Dense(width, values)
        self.modulation = nn.SequentialCell([nn.SiLU(), nn.Dense(width, 2 * width)])

    def construct(self, x, condition):
        shift, scale = ops.chunk(self.modulation(condition), 2, axis=-1)
        return self.linear(scale_shift(self.norm(x), scale, shift))


class Denoiser(nn.Cell):
    """Predicts the noise and, in as many channels again, where the variance lies between its bounds."""

    def __init__(self, width=64, depth=4, heads=4, ratio=3, patch=2, registers=2, base_grid=4, frequencies=64):
        super().__init__()
        self.width, self.head_width = width, width // heads
        self.half = depth // 2
        self.patch = patch
        self.base_grid = base_grid
        self.num_registers = registers
        self.registers = Parameter(Tensor(np.zeros((1, registers, width), np.float32)), name="registers")
        self.upsample = nn.Upsample(
            scale_factor=2.0, mode="bilinear", align_corners=False, recompute_scale_factor=True
        )
        self.patch_embed = nn.Conv2d(2 * CHANNELS, width, patch, stride=patch, pad_mode="valid", has_bias=True)
        self.time_embed = TimeEmbedding(width, frequencies)
        self.label_embed = LabelEmbedding(CLASSES, width)
        self.blocks = nn.CellList([Block(width, heads, ratio, skip=i >= self.half) for i in range(depth)])
        self.final_layer = FinalLayer(width, patch * patch * 2 * CHANNELS)
        self.refine = nn.Conv2d(2 * CHANNELS, 2 * CHANNELS, 3, pad_mode="same", dilation=2, has_bias=True)
        self.tables = {}

    def places(self, rows, cols):
        if (rows, cols) not in self.tables:
            embedding = grid_embedding(self.width, rows, cols, self.base_grid)
            rotary = rotary_table(self.head_width, rows, cols, self.base_grid, self.num_registers)
            self.tables[rows, cols] = (embedding, *rotary)
        return self.tables[rows, cols]

    def construct(self, x, t, labels, low_res, drop_ids=None):
        x = self.patch_embed(ops.cat((x, self.upsample(low_res)), axis=1))
        batch, width, rows, cols = x.shape
        embedding, cos, sin = self.places(rows, cols)
        x = x.reshape(batch, width, rows * cols).swapaxes(1, 2) + embedding
        x = ops.cat((ops.broadcast_to(self.registers, (batch, self.num_registers, width)), x), axis=1)
        condition = self.time_embed(t) + self.label_embed(labels, drop_ids)

        earlier = []
        for block in self.blocks[: self.half]:
            x = block(x, condition, cos, sin)
            earlier.append(x)
        for block, kept in zip(self.blocks[self.half :], reversed(earlier)):
            x = block(x, condition, cos, sin, kept)

        x = self.final_layer(x, condition)[:, self.num_registers :]
        x = x.reshape(batch, rows, cols, self.patch, self.patch, 2 * CHANNELS).transpose(0, 5, 1, 3, 2, 4)
        x = x.reshape(batch, 2 * CHANNELS, rows * self.patch, cols * self.patch)
        return x + self.refine(x)


class Schedule:
    """The tables of the diffusion in double precision."""

    def __init__(self, beta_start=1e-4, beta_end=0.02):
        betas = np.linspace(beta_start, beta_end, TRAIN_STEPS)
        alpha_bar = np.cumprod(1.0 - betas)
        before = np.concatenate([[1.0], alpha_bar[:-1]])
        self.alpha_bar = alpha_bar
        self.signal_rate, self.noise_rate = np.sqrt(alpha_bar), np.sqrt(1.0 - alpha_bar)
        self.posterior_start = betas * np.sqrt(before) / (1.0 - alpha_bar)
        self.posterior_noisy = (1.0 - before) * np.sqrt(1.0 - betas) / (1.0 - alpha_bar)
        # the first posterior variance is zero, the second one stands in for it
        variance = betas * (1.0 - before) / (1.0 - alpha_bar)
        variance[0] = variance[1]
        self.log_posterior_variance = np.log(variance)
        self.log_betas = np.log(betas)
        self.log_sigma = np.log(self.noise_rate / self.signal_rate)

    def time_of(self, sigma):
        """The timestep, between two whole ones, of a deviation."""
        return float(np.interp(math.log(sigma), self.log_sigma, np.arange(TRAIN_STEPS)))


def at(table, t):
    """Values of a table at the timesteps of a batch, (batch, 1, 1, 1)."""
    return ops.gather(Tensor(table.astype(np.float32)), t, 0).reshape(-1, 1, 1, 1)


def normal_cdf(x):
    """The tanh approximation of the standard normal's distribution function."""
    return 0.5 * (1.0 + ops.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * ops.pow(x, 3))))


def bin_log_likelihood(x, mean, log_deviation, half_bin=1.0 / 255.0):
    """Log-probability of the bin around each value; the bins at the ends of the range are open."""
    precision = ops.exp(-log_deviation.astype(ms.float64))
    away = (x - mean).astype(ms.float64)
    upper = normal_cdf((away + half_bin) * precision)
    lower = normal_cdf((away - half_bin) * precision)
    inner = ops.log(ops.clamp(upper - lower, min=1e-12))
    first = ops.log(ops.clamp(upper, min=1e-12))
    last = ops.log(ops.clamp(1.0 - lower, min=1e-12))
    edge = LATENT_RANGE - 1e-3
    return ops.where(x < -edge, first, ops.where(x > edge, last, inner)).astype(ms.float32)


def squeeze_range(x):
    """Dynamic thresholding: what lies beyond a sample's quantile is cut, the rest scaled into the range."""
    values = ops.sort(ops.abs(x).reshape(x.shape[0], -1), axis=1)[0]
    place = QUANTILE * (values.shape[1] - 1)
    low = math.floor(place)
    bound = values[:, low] + (place - low) * (values[:, low + 1] - values[:, low])
    bound = ops.clamp(bound, min=LATENT_RANGE).reshape(-1, 1, 1, 1)
    return ops.maximum(ops.minimum(x, bound), -bound) * (LATENT_RANGE / bound)


class HybridLoss(nn.Cell):
    """Squared error of the noise and the variational bound, in bits per dimension."""

    def __init__(self, schedule):
        super().__init__()
        self.schedule = schedule

    def posterior_mean(self, x_start, x_t, t):
        return at(self.schedule.posterior_start, t) * x_start + at(self.schedule.posterior_noisy, t) * x_t

    def construct(self, output, x_start, x_t, t, noise):
        s = self.schedule
        eps, fraction = ops.chunk(output, 2, axis=1)
        mse = ops.square(noise - eps).mean(axis=(1, 2, 3))

        low, high = at(s.log_posterior_variance, t), at(s.log_betas, t)
        log_variance = low + 0.5 * (fraction + 1.0) * (high - low)
        guess = (x_t - at(s.noise_rate, t) * ops.stop_gradient(eps)) / at(s.signal_rate, t)
        mean, true_mean = self.posterior_mean(guess, x_t, t), self.posterior_mean(x_start, x_t, t)
        distance = ops.square(true_mean - mean) * ops.exp(-log_variance)
        kl = 0.5 * (log_variance - low - 1.0 + ops.exp(low - log_variance) + distance)
        nll = -bin_log_likelihood(x_start, mean, 0.5 * log_variance)
        bound = ops.where(t.reshape(-1, 1, 1, 1) == 0, nll, kl).mean(axis=(1, 2, 3)) / math.log(2.0)
        return mse, bound, (mse + bound * (TRAIN_STEPS / 1000.0)).mean()


class DDIM(nn.Cell):
    """Sampling in a few steps, part of whose noise is new."""

    def __init__(self, schedule, steps=4, eta=0.6):
        super().__init__()
        self.eta = eta
        times = np.linspace(0, TRAIN_STEPS - 1, steps).round().astype(np.int64)
        self.times = [int(time) for time in times[::-1]]
        alpha_bar = [float(schedule.alpha_bar[time]) for time in self.times]
        self.alpha_bar, self.alpha_bar_next = alpha_bar, alpha_bar[1:] + [1.0]

    def construct(self, x, noises, predict):
        for i, time in enumerate(self.times):
            now, after = self.alpha_bar[i], self.alpha_bar_next[i]
            eps = predict(x, float(time))
            start = squeeze_range((x - math.sqrt(1.0 - now) * eps) / math.sqrt(now))
            eps = (x - math.sqrt(now) * start) / math.sqrt(1.0 - now)
            variance = self.eta**2 * (1.0 - after) / (1.0 - now) * (1.0 - now / after)
            x = math.sqrt(after) * start + math.sqrt(1.0 - after - variance) * eps + math.sqrt(variance) * noises[i]
        return x


class Heun(nn.Cell):
    """The second order sampler of Karras et al. with churn in the middle of the chain."""

    def __init__(self, schedule, steps=3, smallest=0.1, largest=14.6, rho=7.0, churn=0.9, churn_between=(0.2, 10.0)):
        super().__init__()
        self.schedule = schedule
        self.gamma = min(churn / steps, math.sqrt(2.0) - 1.0)
        self.churn_between = churn_between
        roots = np.linspace(largest ** (1.0 / rho), smallest ** (1.0 / rho), steps)
        self.sigmas = [float(root**rho) for root in roots] + [0.0]

    def slope(self, x, sigma, predict):
        eps = predict(x / math.sqrt(1.0 + sigma**2), self.schedule.time_of(sigma))
        return (x - squeeze_range(x - sigma * eps)) / sigma

    def construct(self, x, noises, predict):
        x = x * self.sigmas[0]
        for i, (sigma, after) in enumerate(zip(self.sigmas[:-1], self.sigmas[1:])):
            if self.churn_between[0] <= sigma <= self.churn_between[1]:
                raised = sigma * (1.0 + self.gamma)
                x = x + math.sqrt(raised**2 - sigma**2) * noises[i]
                sigma = raised
            step = after - sigma
            first = self.slope(x, sigma, predict)
            if after == 0.0:
                x = x + step * first
            else:
                second = self.slope(x + step * first, after, predict)
                x = x + 0.5 * step * (first + second)
        return x


class SuperResolution(nn.Cell):
    """The loss of three latents and samples of two of them with both samplers."""

    def __init__(self, guidance=3.0, power=1.5, rescale=0.6):
        super().__init__()
        self.guidance, self.power, self.rescale = guidance, power, rescale
        self.schedule = Schedule()
        self.denoiser = Denoiser()
        self.loss = HybridLoss(self.schedule)
        self.ddim = DDIM(self.schedule)
        self.heun = Heun(self.schedule)

    def guided(self, x, time, labels, low_res):
        """The noise with classifier-free guidance, whose weight grows by a power-cosine schedule."""
        count = x.shape[0]
        t = ops.full((2 * count,), time, dtype=ms.float32)
        labels = ops.cat((labels, ops.full_like(labels, CLASSES)), axis=0)
        output = self.denoiser(ops.tile(x, (2, 1, 1, 1)), t, labels, ops.tile(low_res, (2, 1, 1, 1)))
        with_label, without = output[:count, :CHANNELS], output[count:, :CHANNELS]
        angle = math.pi * (1.0 - time / TRAIN_STEPS) ** self.power
        weight = 1.0 + (self.guidance - 1.0) * (1.0 - math.cos(angle)) / 2.0
        eps = without + weight * (with_label - without)
        ratio = with_label.std(axis=(1, 2, 3), keepdims=True) / eps.std(axis=(1, 2, 3), keepdims=True)
        return eps * (self.rescale * ratio + (1.0 - self.rescale))

    def construct(self, latents, low_res, labels, drop_ids, t, noise, start, ddim_noise, heun_noise):
        latents, low_res = latents * SCALING_FACTOR, low_res * SCALING_FACTOR
        x_t = at(self.schedule.signal_rate, t) * latents + at(self.schedule.noise_rate, t) * noise
        output = self.denoiser(x_t, t, labels, low_res, drop_ids)
        mse, bound, loss = self.loss(output, latents, x_t, t, noise)

        count = start.shape[0]

        def predict(x, time):
            return self.guided(x, time, labels[:count], low_res[:count])

        return output, mse, bound, loss, self.ddim(start, ddim_noise, predict), self.heun(start, heun_noise, predict)


def build():
    """The net for evaluation and the batch it is compared on."""
    net = SuperResolution()
    net.set_train(False)
    rng = np.random.default_rng(9748)

    def draw(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    low_res = 4.0 * draw(3, 4, 6, 8)
    latents = 0.8 * low_res.repeat(2, axis=2).repeat(2, axis=3) + 2.0 * draw(3, 4, 12, 16)
    labels, drop_ids, t = np.array([3, 7, 1]), np.array([0, 0, 1]), np.array([0, 417, 902])
    arrays = [latents, low_res, labels, drop_ids, t]
    arrays += [draw(3, 4, 12, 16), draw(2, 4, 12, 16), draw(4, 2, 4, 12, 16), draw(3, 2, 4, 12, 16)]
    return net, tuple(Tensor(array) for array in arrays)
