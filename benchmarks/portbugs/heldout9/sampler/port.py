"""Text to image by latent diffusion in MindSpore: the correct port."""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops


def conv(inside: int, outside: int, kernel: int = 3, stride: int = 1):
    """A convolution padded as PyTorch pads it, with a bias."""
    return nn.Conv2d(inside, outside, kernel, stride, pad_mode="pad", padding=kernel // 2, has_bias=True)


def norm2d(width: int, eps: float = 1e-5):
    return nn.GroupNorm(8, width, eps=eps)


def mlp(inside: int, outside: int):
    return nn.SequentialCell(nn.Dense(inside, outside), nn.SiLU(), nn.Dense(outside, outside))


def sinusoid_frequencies(width: int, period: float = 10000.0):
    """Frequencies that fall geometrically from one to almost 1 / period."""
    half = width // 2
    return Tensor(np.exp(-math.log(period) * np.arange(half, dtype=np.float64) / half), ms.float32)


def sinusoids(numbers, frequencies):
    """Cosines, then sines."""
    angles = numbers.astype(ms.float32).expand_dims(-1) * frequencies
    return ops.cat([ops.cos(angles), ops.sin(angles)], axis=-1)


def deviation(x, axes):
    """The standard deviation with Bessel's correction, the axes kept."""
    count = 1
    for axis in axes:
        count *= x.shape[axis]
    centred = x - x.mean(axes, keep_dims=True)
    return ops.sqrt((centred * centred).sum(axes, keepdims=True) / (count - 1))


def quantile(x, share: float):
    """Quantiles along the last axis, linear between two neighbours."""
    ordered, _ = ops.sort(x, axis=-1)
    place = share * (x.shape[-1] - 1)
    low = int(math.floor(place))
    high = min(low + 1, x.shape[-1] - 1)
    return ordered[..., low] + (ordered[..., high] - ordered[..., low]) * (place - low)


class AttentionCore(nn.Cell):
    """Softmax attention of (batch, heads, length, size); the bias is added to the scores."""

    def __init__(self, size: int):
        super().__init__()
        self.factor = 1.0 / math.sqrt(size)
        self.softmax = nn.Softmax(axis=-1)

    def construct(self, q, k, v, bias=None):
        scores = ops.matmul(q, k.swapaxes(-1, -2)) * self.factor
        if bias is not None:
            scores = scores + bias
        return ops.matmul(self.softmax(scores), v)


class TextBlock(nn.Cell):
    """Causal self-attention and a feed-forward with the sigmoid's GELU."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm((width,), epsilon=1e-5)
        self.qkv = nn.Dense(width, 3 * width)
        self.core = AttentionCore(width // heads)
        self.out = nn.Dense(width, width)
        self.norm2 = nn.LayerNorm((width,), epsilon=1e-5)
        self.fc1 = nn.Dense(width, 2 * width)
        self.fc2 = nn.Dense(2 * width, width)

    def construct(self, x, causal):
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).reshape(batch, length, 3, self.heads, -1).transpose(2, 0, 3, 1, 4)
        mixed = self.core(qkv[0], qkv[1], qkv[2], causal)
        x = x + self.out(mixed.swapaxes(1, 2).reshape(batch, length, width))
        h = self.fc1(self.norm2(x))
        return x + self.fc2(h * ops.sigmoid(1.702 * h))


class TextEncoder(nn.Cell):
    """A dict: the words' vectors, weighted by the user; the end's vector; the bias that hides what follows the end."""

    def __init__(self, vocabulary: int, length: int, width: int, heads: int, depth: int):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = Parameter(ops.zeros((length, width), ms.float32), name="places")
        self.blocks = nn.CellList([TextBlock(width, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm((width,), epsilon=1e-5)
        self.project = nn.Dense(width, width, has_bias=False)

    def construct(self, tokens, emphasis):
        batch, length = tokens.shape
        causal = Tensor(np.triu(np.full((length, length), -1e9, np.float32), 1))
        x = self.tokens(tokens) + self.places[:length]
        for block in self.blocks:
            x = block(x, causal)
        x = self.norm(x)
        end = tokens.argmax(axis=-1)
        pooled = self.project(x[ops.arange(batch), end])
        hidden = ops.arange(length) > end.expand_dims(1)
        bias = (hidden.astype(ms.float32) * -1e9).reshape(batch, 1, 1, length)
        weighted = x * emphasis.expand_dims(-1)
        before = ops.sqrt(ops.square(x).sum((1, 2), keepdims=True))
        after = ops.sqrt(ops.square(weighted).sum((1, 2), keepdims=True))
        return {"words": weighted * (before / ops.clamp(after, min=1e-6)), "pooled": pooled, "bias": bias}


class Attention(nn.Cell):
    """Attention with several heads over itself or over a context, of which some places may not count."""

    def __init__(self, width: int, context: int, heads: int):
        super().__init__()
        self.heads = heads
        self.to_q = nn.Dense(width, width, has_bias=False)
        self.to_k = nn.Dense(context, width, has_bias=False)
        self.to_v = nn.Dense(context, width, has_bias=False)
        self.core = AttentionCore(width // heads)
        self.to_out = nn.Dense(width, width)

    def split(self, x):
        batch, length, width = x.shape
        return x.reshape(batch, length, self.heads, width // self.heads).swapaxes(1, 2)

    def construct(self, x, context=None, bias=None):
        if context is None:
            context = x
        mixed = self.core(self.split(self.to_q(x)), self.split(self.to_k(context)), self.split(self.to_v(context)), bias)
        return self.to_out(mixed.swapaxes(1, 2).reshape(x.shape))


class GatedFeedForward(nn.Cell):
    """The first half is the value, the GELU of the second half its gate."""

    def __init__(self, width: int, times: int = 2):
        super().__init__()
        self.proj = nn.Dense(width, 2 * times * width)
        self.out = nn.Dense(times * width, width)

    def construct(self, x):
        value, gate = ops.split(self.proj(x), self.out.in_channels, axis=-1)
        return self.out(value * ops.gelu(gate, approximate="none"))


class SpatialTransformer(nn.Cell):
    """The picture's places as words: self-attention, attention over the text, feed-forward."""

    def __init__(self, width: int, context: int, heads: int):
        super().__init__()
        self.norm = norm2d(width, 1e-6)
        self.proj_in = nn.Dense(width, width)
        self.norm1 = nn.LayerNorm((width,), epsilon=1e-5)
        self.attn1 = Attention(width, width, heads)
        self.norm2 = nn.LayerNorm((width,), epsilon=1e-5)
        self.attn2 = Attention(width, context, heads)
        self.norm3 = nn.LayerNorm((width,), epsilon=1e-5)
        self.ff = GatedFeedForward(width)
        self.proj_out = nn.Dense(width, width)

    def construct(self, x, text):
        batch, width, height, breadth = x.shape
        h = self.norm(x).reshape(batch, width, height * breadth).transpose(0, 2, 1)
        h = self.proj_in(h)
        h = h + self.attn1(self.norm1(h))
        h = h + self.attn2(self.norm2(h), text["words"], text["bias"])
        h = h + self.ff(self.norm3(h))
        h = self.proj_out(h).transpose(0, 2, 1).reshape(batch, width, height, breadth)
        return x + h


class ResBlock(nn.Cell):
    """Two convolutions; the second norm is scaled and shifted by the embedding."""

    def __init__(self, inside: int, outside: int, embedding: int = 0):
        super().__init__()
        self.norm1 = norm2d(inside)
        self.conv1 = conv(inside, outside)
        self.emb = nn.Dense(embedding, 2 * outside) if embedding else None
        self.norm2 = norm2d(outside)
        self.conv2 = conv(outside, outside)
        self.skip = conv(inside, outside, 1) if inside != outside else nn.Identity()

    def construct(self, x, emb=None):
        h = self.norm2(self.conv1(ops.silu(self.norm1(x))))
        if emb is not None:
            scale, shift = ops.chunk(self.emb(ops.silu(emb))[:, :, None, None], 2, axis=1)
            h = h * (1 + scale) + shift
        h = self.conv2(ops.silu(h))
        return (self.skip(x) + h) * math.sqrt(0.5)


class Down(nn.Cell):
    """A residual block, attention where it is asked for, and half the size."""

    def __init__(self, inside, outside, embedding, context, heads):
        super().__init__()
        self.res = ResBlock(inside, outside, embedding)
        self.attn = SpatialTransformer(outside, context, heads) if heads else None
        self.down = nn.Conv2d(outside, outside, 3, 2, pad_mode="pad", padding=1, has_bias=True)

    def construct(self, x, emb, text):
        kept = self.res(x, emb)
        if self.attn is not None:
            kept = self.attn(kept, text)
        return self.down(kept), kept


class Up(nn.Cell):
    """Twice the size, the kept picture beside it, a residual block and attention where it is asked for."""

    def __init__(self, inside, kept, outside, embedding, context, heads):
        super().__init__()
        self.conv = conv(inside, inside)
        self.res = ResBlock(inside + kept, outside, embedding)
        self.attn = SpatialTransformer(outside, context, heads) if heads else None

    def construct(self, x, kept, emb, text):
        x = self.conv(ops.interpolate(x, size=kept.shape[-2:], mode="nearest"))
        x = self.res(ops.cat([x, kept], axis=1), emb)
        return x if self.attn is None else self.attn(x, text)


class UNet(nn.Cell):
    """What was mixed into the latent picture, given the time, the text and the sizes that are asked."""

    def __init__(self, latent: int, width: int, context: int, heads: int):
        super().__init__()
        embedding = 2 * width
        self.frequencies = sinusoid_frequencies(width)
        self.time_mlp = mlp(width, embedding)
        self.add_mlp = mlp(context + 2 * width, embedding)
        self.conv_in = conv(latent, width)
        stages = [(width, 0), (2 * width, heads)]
        down, up, inside = [], [], width
        for outside, count in stages:
            down.append(Down(inside, outside, embedding, context, count))
            inside = outside
        self.down = nn.CellList(down)
        self.mid = ResBlock(inside, inside, embedding)
        self.mid_attn = SpatialTransformer(inside, context, heads)
        for outside, count in stages[::-1]:
            up.append(Up(inside, outside, outside, embedding, context, count))
            inside = outside
        self.up = nn.CellList(up)
        self.norm_out = norm2d(width)
        self.conv_out = conv(width, latent)

    def construct(self, x, step, text, sizes):
        emb = self.time_mlp(sinusoids(step, self.frequencies))
        extra = sinusoids(sizes, self.frequencies).reshape(len(sizes), -1)
        emb = emb + self.add_mlp(ops.cat([text["pooled"], extra], axis=-1))
        h = self.conv_in(x)
        stack = []
        for stage in self.down:
            h, kept = stage(h, emb, text)
            stack.append(kept)
        h = self.mid_attn(self.mid(h, emb), text)
        for stage, kept in zip(self.up, stack[::-1]):
            h = stage(h, kept, emb, text)
        return self.conv_out(ops.silu(self.norm_out(h)))


def guide(both, scale: float, rescale: float):
    """Away from the empty prompt, towards the prompt, with the spread of the prompt's answer partly restored."""
    without, given = ops.chunk(both, 2, axis=0)
    guided = without + scale * (given - without)
    ratio = deviation(given, (1, 2, 3)) / deviation(guided, (1, 2, 3))
    return guided * (rescale * ratio + (1 - rescale))


class Solver:
    """DPM-Solver++ of second order with two steps' memory; its tables are plain numbers."""

    def __init__(self, count: int, train: int = 1000, first: float = 0.00085, last: float = 0.012):
        self.count = count
        betas = np.linspace(math.sqrt(first), math.sqrt(last), train) ** 2
        product = np.cumprod(1 - betas)
        self.steps = np.linspace(0, train - 1, count + 1).round().astype(np.int64)[::-1]
        self.alphas = np.sqrt(product[self.steps])
        self.sigmas = np.sqrt(1 - product[self.steps])
        self.lambdas = np.log(self.alphas) - np.log(self.sigmas)

    def clip(self, clean, share: float = 0.95):
        limit = ops.clamp(quantile(ops.abs(clean).reshape(len(clean), -1), share), min=1.0)
        limit = limit.reshape(-1, 1, 1, 1)
        return ops.minimum(ops.maximum(clean, -limit), limit) / limit

    def advance(self, x, velocity, previous, i: int):
        alpha, sigma = float(self.alphas[i]), float(self.sigmas[i])
        next_alpha, next_sigma = float(self.alphas[i + 1]), float(self.sigmas[i + 1])
        clean = self.clip(alpha * x - sigma * velocity)
        h = float(self.lambdas[i + 1] - self.lambdas[i])
        direction = clean
        if previous is not None and i < self.count - 1:
            ratio = float(self.lambdas[i] - self.lambdas[i - 1]) / h
            direction = clean + (0.5 / ratio) * (clean - previous)
        return (next_sigma / sigma) * x - next_alpha * math.expm1(-h) * direction, clean


class ReplicateConv(nn.Conv2d):
    """A convolution of 3 that repeats the picture's border."""

    def __init__(self, inside: int, outside: int):
        super().__init__(inside, outside, 3, pad_mode="valid", has_bias=True)

    def construct(self, x):
        x = ops.cat([x[:, :, :1], x, x[:, :, -1:]], axis=2)
        return super().construct(ops.cat([x[..., :1], x, x[..., -1:]], axis=3))


class Decoder(nn.Cell):
    """From the latent picture to colours: attention with one head, bilinear growth, and a shuffle of pixels."""

    def __init__(self, latent: int, width: int):
        super().__init__()
        self.conv_in = conv(latent, width)
        self.res1 = ResBlock(width, width)
        self.norm = norm2d(width)
        self.qkv = conv(width, 3 * width, 1)
        self.out = conv(width, width, 1)
        self.conv_up = conv(width, width)
        self.res2 = ResBlock(width, width)
        self.norm_out = norm2d(width, 1e-6)
        self.act = nn.LeakyReLU(0.01)
        self.conv_out = ReplicateConv(width, 12)

    def construct(self, z):
        h = self.res1(self.conv_in(z))
        batch, width, height, breadth = h.shape
        q, k, v = ops.chunk(self.qkv(self.norm(h)).reshape(batch, 3 * width, -1), 3, axis=1)
        weights = ops.softmax(ops.bmm(q.swapaxes(1, 2), k) * width**-0.5, axis=2)
        mixed = ops.bmm(v, weights.swapaxes(1, 2)).reshape(h.shape)
        h = h + self.out(mixed)
        h = ops.interpolate(h, size=(2 * height, 2 * breadth), mode="bilinear", align_corners=False)
        h = self.res2(self.conv_up(h))
        image = ops.pixel_shuffle(self.conv_out(self.act(self.norm_out(h))), 2)
        return (ops.tanh(image) + 1) / 2


class Sampler(nn.Cell):
    """Prompt and noise in, picture and latent picture out."""

    def __init__(self, vocabulary: int = 120, length: int = 12, width: int = 24, context: int = 24, heads: int = 4):
        super().__init__()
        self.latent_scale = 0.6
        self.guidance_scale, self.guidance_rescale = 3.0, 0.7
        self.text = TextEncoder(vocabulary, length, context, heads, 2)
        self.unet = UNet(4, width, context, heads)
        self.solver = Solver(3)
        self.decoder = Decoder(4, width)

    def normalise(self, x):
        """Each channel with a spread near one around its own mean, before it is decoded."""
        mean = x.mean((2, 3), keep_dims=True)
        spread = ops.clamp(deviation(x, (2, 3)), min=0.05)
        return mean + (x - mean) * ops.clamp(1.0 / spread, max=4.0)

    def construct(self, noise, prompt, negative, emphasis, sizes):
        tokens = ops.cat([negative, prompt], axis=0)
        text = self.text(tokens, ops.cat([ops.ones_like(emphasis), emphasis], axis=0))
        sizes = ops.tile(sizes, (2, 1))
        x, previous = noise, None
        for i in range(self.solver.count):
            step = ops.full((2 * len(x),), int(self.solver.steps[i]), dtype=ms.int64)
            both = self.unet(ops.tile(x, (2, 1, 1, 1)), step, text, sizes)
            velocity = guide(both, self.guidance_scale, self.guidance_rescale)
            x, previous = self.solver.advance(x, velocity, previous, i)
        return self.decoder(self.normalise(x) / self.latent_scale), x


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return Sampler()
