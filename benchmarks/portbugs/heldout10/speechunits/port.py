"""Speech to units, voices and a forecast in MindSpore: the correct port."""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import Normal, initializer

NEVER = -3.4e38


def to_mel(hertz):
    """Mels of a frequency or of an array of them."""
    return 1127.0 * np.log(1.0 + np.asarray(hertz, np.float64) / 700.0)


def triangles(bins: int, count: int, rate: int, low: float = 60.0):
    """Mel filters as a matrix, (bins, count)."""
    edges = np.linspace(to_mel(low), to_mel(rate / 2), count + 2)
    places = to_mel(np.linspace(0, rate / 2, bins))[:, None]
    up = (places - edges[None, :-2]) / (edges[1:-1] - edges[:-2])
    down = (edges[None, 2:] - places) / (edges[2:] - edges[1:-1])
    return np.maximum(0.0, np.minimum(up, down)).astype(np.float32)


def sequence_mask(lengths, size: int):
    """One where there is speech, (batch, size), in float32."""
    return (ops.arange(size)[None, :] < lengths[:, None]).astype(ms.float32)


def after_stride(lengths):
    """What a convolution of kernel three, stride two and padding one leaves."""
    return (lengths - 1) // 2 + 1


def gated(x, axis: int):
    """The first half of the channels, gated by the second."""
    value, gate = ops.chunk(x, 2, axis=axis)
    return value * ops.sigmoid(gate)


def unit_length(x):
    """Each vector divided by its length."""
    return x / ops.maximum(ops.norm(x, dim=-1, keepdim=True), 1e-12)


def layer_norm(width: int):
    return nn.LayerNorm((width,), epsilon=1e-5)


class LogMel(nn.Cell):
    """Logarithms of mel energies; the spectrum is a product with cosines and sines."""

    def __init__(self, rate: int = 8000, window: int = 200, hop: int = 80, fft: int = 256, mels: int = 40):
        super().__init__()
        self.window, self.hop = window, hop
        self.emphasis = 0.97
        angles = 2.0 * np.pi * np.outer(np.arange(window), np.arange(fft // 2 + 1)) / fft
        self.cosines = Tensor(np.cos(angles), ms.float32)
        self.sines = Tensor(np.sin(angles), ms.float32)
        self.taper = Tensor(np.hanning(window + 1)[:-1], ms.float32)
        self.filters = Tensor(triangles(fft // 2 + 1, mels, rate))

    def construct(self, wave, samples):
        before = ops.concat((wave[:, :1], wave[:, :-1]), axis=1)
        wave = wave - self.emphasis * before
        count = (wave.shape[1] - self.window) // self.hop + 1
        index = ops.arange(count)[:, None] * self.hop + ops.arange(self.window)[None, :]
        frames = ops.gather(wave, index, 1)
        frames = (frames - frames.mean(axis=-1, keep_dims=True)) * self.taper
        power = ops.square(ops.matmul(frames, self.cosines)) + ops.square(ops.matmul(frames, self.sines))
        logs = ops.log(ops.clamp(ops.matmul(power, self.filters), min=1e-5))
        counts = (samples - self.window) // self.hop + 1
        valid = sequence_mask(counts, count)[:, :, None]
        total = counts.astype(ms.float32).reshape(-1, 1, 1)
        mean = (logs * valid).sum(axis=1, keepdims=True) / total
        offset = logs - mean
        variance = (ops.square(offset) * valid).sum(axis=1, keepdims=True) / (total - 1.0)
        return offset * valid * ops.rsqrt(variance + 1e-5), counts


class Subsample(nn.Cell):
    """Two strided convolutions over time and frequency; gives the mask of what is left as well."""

    def __init__(self, mels: int, channels: int, width: int):
        super().__init__()
        self.conv1 = nn.Conv2d(1, channels, 3, stride=2, pad_mode="pad", padding=1, has_bias=True)
        self.conv2 = nn.Conv2d(
            channels, channels, kernel_size=3, stride=2, pad_mode="pad", padding=1, has_bias=True
        )
        self.project = nn.Dense(channels * (mels // 4), width)
        self.norm = layer_norm(width)

    def construct(self, features, lengths):
        x = ops.gelu(self.conv1(features[:, None]))
        lengths = after_stride(lengths)
        x = x * sequence_mask(lengths, x.shape[2])[:, None, :, None]
        x = ops.gelu(self.conv2(x))
        lengths = after_stride(lengths)
        valid = sequence_mask(lengths, x.shape[2])
        x = x * valid[:, None, :, None]
        x = x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)
        return self.norm(self.project(x)) * valid[:, :, None], lengths, valid


class FeedForward(nn.Cell):
    """Norm, wider, SiLU, narrower."""

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.norm = layer_norm(width)
        self.up = nn.Dense(width, hidden)
        self.down = nn.Dense(hidden, width)

    def construct(self, x):
        return self.down(ops.silu(self.up(self.norm(x))))


class RelativeAttention(nn.Cell):
    """Self-attention with Shaw's distances; the caller has the distances and the mask ready."""

    def __init__(self, width: int, heads: int, distances: int):
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.scale = self.size**-0.5
        self.norm = layer_norm(width)
        self.query = nn.Dense(width, width)
        self.key = nn.Dense(width, width)
        self.value = nn.Dense(width, width)
        self.out = nn.Dense(width, width)
        self.distance = nn.Embedding(distances, self.size)

    def construct(self, x, context):
        batch, steps, width = x.shape
        x = self.norm(x)
        shape = (batch, steps, self.heads, self.size)
        query = self.query(x).reshape(shape).transpose(0, 2, 1, 3)
        key = self.key(x).reshape(shape).transpose(0, 2, 3, 1)
        value = self.value(x).reshape(shape).transpose(0, 2, 1, 3)
        places = self.distance(context["indices"]).swapaxes(1, 2)
        by_place = ops.matmul(query.expand_dims(3), places).squeeze(3)
        scores = (ops.matmul(query, key) + by_place) * self.scale
        scores = ops.select(context["allowed"], scores, ops.full_like(scores, NEVER))
        weights = ops.softmax(scores, axis=-1) * context["allowed"].astype(ms.float32)
        mixed = ops.matmul(weights, value).transpose(0, 2, 1, 3)
        return self.out(mixed.reshape(batch, steps, width))


class ConvolutionModule(nn.Cell):
    """Gate, causal depthwise convolution, norm, SiLU."""

    def __init__(self, width: int, kernel: int):
        super().__init__()
        self.reach = kernel - 1
        self.norm = layer_norm(width)
        self.expand = nn.Conv1d(width, 2 * width, 1, pad_mode="valid")
        self.depthwise = nn.Conv1d(width, width, kernel, pad_mode="valid", group=width)
        self.inner_norm = layer_norm(width)
        self.contract = nn.Conv1d(width, width, 1, pad_mode="valid")
        self.act = nn.SiLU()

    def construct(self, x, valid):
        x = (self.norm(x) * valid[:, :, None]).swapaxes(1, 2)
        x = gated(self.expand(x), 1)
        past = ops.zeros((x.shape[0], x.shape[1], self.reach), x.dtype)
        x = self.depthwise(ops.concat((past, x), axis=-1))
        x = self.act(self.inner_norm(x.swapaxes(1, 2)))
        return self.contract(x.swapaxes(1, 2)).swapaxes(1, 2)


class Block(nn.Cell):
    """A conformer's block; what it may see comes in a dictionary."""

    def __init__(self, width: int, heads: int, kernel: int, distances: int):
        super().__init__()
        self.ffn1 = FeedForward(width, 2 * width)
        self.attention = RelativeAttention(width, heads, distances)
        self.conv = ConvolutionModule(width, kernel)
        self.ffn2 = FeedForward(width, 2 * width)
        self.norm = layer_norm(width)

    def construct(self, x, context):
        x = x + self.ffn1(x) * 0.5
        x = x + self.attention(x, context)
        x = x + self.conv(x, context["valid"])
        x = x + self.ffn2(x) * 0.5
        return self.norm(x) * context["valid"][:, :, None]


class Encoder(nn.Cell):
    """Blocks that see their own chunk and some chunks before it; gives every state on the way."""

    def __init__(self, width: int, heads: int, depth: int, kernel: int, left: int = 8, right: int = 3):
        super().__init__()
        self.left, self.right = left, right
        self.chunk, self.before = 6, 1
        self.blocks = nn.CellList([Block(width, heads, kernel, left + right + 1) for _ in range(depth)])

    def visible(self, size: int, valid):
        """Where a query may look: valid keys of its own chunk and of those just before it."""
        chunks = ops.arange(size) // self.chunk
        rows, columns = chunks[:, None], chunks[None, :]
        near = ops.logical_and(columns <= rows, columns >= rows - self.before)
        return ops.logical_and(near[None, None], valid[:, None, None, :] > 0)

    def construct(self, x, valid):
        batch, size, _ = x.shape
        steps = ops.arange(size)
        indices = ops.clamp(steps[None, :] - steps[:, None], -self.left, self.right) + self.left
        allowed = self.visible(size, valid).broadcast_to((batch, self.blocks[0].attention.heads, size, size))
        context = {"indices": indices, "allowed": allowed, "valid": valid}
        states = (x,)
        for block in self.blocks:
            x = block(x, context)
            states += (x,)
        return x, states


class ProductQuantizer(nn.Cell):
    """The best entry of each group's codebook; how many entries are in use."""

    def __init__(self, width: int, groups: int, entries: int, size: int):
        super().__init__()
        self.groups, self.entries, self.size = groups, entries, size
        self.score = nn.Dense(width, groups * entries)
        self.codebook = Parameter(initializer(Normal(1.0), (groups * entries, size)), name="codebook")

    def construct(self, x, valid):
        batch, steps, _ = x.shape
        scores = self.score(x).reshape(batch, steps, self.groups, self.entries)
        best = ops.argmax(scores, dim=-1)
        rows = best + ops.arange(self.groups) * self.entries
        codes = ops.gather(self.codebook, rows, 0).reshape(batch, steps, self.groups * self.size)
        hard = ops.one_hot(best, self.entries, Tensor(1.0, ms.float32), Tensor(0.0, ms.float32))
        chances = ops.stack((hard, ops.softmax(scores, axis=-1)))
        mean = (chances * valid[None, :, :, None, None]).sum(axis=(1, 2)) / valid.sum()
        return codes, ops.exp(-(mean * ops.log(mean + 1e-7)).sum(axis=-1))


class Forecast(nn.Cell):
    """How likely the code that comes some steps later is among all codes of the utterance."""

    def __init__(self, width: int, codes: int, ahead: int = 3, temperature: float = 0.2):
        super().__init__()
        self.temperature = temperature
        self.predictors = nn.CellList([nn.Dense(width, codes) for _ in range(ahead)])

    def construct(self, context, codes, valid):
        codes = unit_length(codes)
        size = codes.shape[1]
        results = []
        for index, predictor in enumerate(self.predictors):
            shift = index + 1
            guess = unit_length(predictor(context[:, : size - shift]))
            real = valid[:, shift:]
            similar = ops.matmul(guess, codes[:, shift:].swapaxes(1, 2)) / self.temperature
            similar = ops.masked_fill(similar, real[:, None, :] == 0, -1e4)
            chances = ops.log_softmax(similar, axis=-1)
            right = (chances * ops.eye(size - shift, size - shift, ms.float32)).sum(axis=-1)
            results.append((right * real).sum(axis=1) / real.sum(axis=1))
        return ops.stack(results, axis=1)


class MarginScore(nn.Cell):
    """Cosines to the voices; the right voice must win by an angle."""

    def __init__(self, width: int, voices: int, margin: float = 0.4, scale: float = 16.0):
        super().__init__()
        self.scale = scale
        self.weight = Parameter(initializer(Normal(1.0), (voices, width)), name="weight")
        self.cos_margin, self.sin_margin = math.cos(margin), math.sin(margin)
        self.threshold = math.cos(math.pi - margin)
        self.slip = math.sin(math.pi - margin) * margin

    def construct(self, embedding, voice):
        cosine = ops.matmul(unit_length(embedding), unit_length(self.weight).T)
        sine = ops.sqrt(ops.clamp(1.0 - cosine * cosine, min=0.0))
        turned = cosine * self.cos_margin - sine * self.sin_margin
        turned = ops.where(cosine > self.threshold, turned, cosine - self.slip)
        target = ops.arange(cosine.shape[1])[None, :] == voice[:, None]
        return self.scale * ops.where(target, turned, cosine)


def moments(x, weight):
    """Mean and deviation over time for weights of sum one."""
    mean = (x * weight).sum(axis=1)
    variance = (x * x * weight).sum(axis=1) - mean * mean
    return mean, ops.sqrt(ops.clamp(variance, min=1e-5))


class Voice(nn.Cell):
    """Attentive statistics over time, and the score of each known voice."""

    def __init__(self, width: int, hidden: int, size: int, voices: int):
        super().__init__()
        self.look = nn.Dense(3 * width, hidden)
        self.act = nn.LeakyReLU(alpha=0.01)
        self.weigh = nn.Dense(hidden, width)
        self.norm = nn.BatchNorm1d(2 * width)
        self.embed = nn.Dense(2 * width, size)
        self.margin = MarginScore(size, voices)

    def construct(self, x, valid, voice):
        real = valid[:, :, None]
        mean, deviation = moments(x, real / real.sum(axis=1, keepdims=True))
        whole = ops.concat((mean, deviation), axis=1)[:, None, :]
        whole = whole.broadcast_to((x.shape[0], x.shape[1], whole.shape[2]))
        scores = self.weigh(self.act(self.look(ops.concat((x, whole), axis=2))))
        weight = ops.softmax(ops.masked_fill(scores, real == 0, -1e4), axis=1)
        embedding = self.embed(self.norm(ops.concat(moments(x, weight), axis=1)))
        return embedding, self.margin(embedding, voice)


class Adapter(nn.Cell):
    """Half the steps: means of pairs, and a gated strided convolution beside them."""

    def __init__(self, width: int):
        super().__init__()
        self.norm = layer_norm(width)
        self.conv = nn.Conv1d(width, 2 * width, 3, stride=2, pad_mode="pad", padding=1, has_bias=True)
        self.ffn = FeedForward(width, 2 * width)

    def construct(self, x, lengths, valid):
        batch, steps, width = x.shape
        real = valid[:, :, None]
        beside = self.conv((self.norm(x) * real).swapaxes(1, 2))
        inner, gate = ops.chunk(beside, 2, axis=1)
        beside = (inner * ops.sigmoid(gate)).swapaxes(1, 2)
        both = ops.concat((x * real, real), axis=2)
        if steps % 2:
            both = ops.concat((both, ops.zeros((batch, 1, width + 1), x.dtype)), axis=1)
        both = both[:, 0::2] + both[:, 1::2]
        x = both[:, :, :width] / ops.clamp(both[:, :, width:], min=1.0) + beside
        return x + self.ffn(x), after_stride(lengths)


class SpeechUnits(nn.Cell):
    """Waves to log-probabilities of units, the units, a forecast of codes, and voices."""

    def __init__(self, width: int = 64, heads: int = 4, depth: int = 3, units: int = 14, voices: int = 10):
        super().__init__()
        mels, self.slots, self.blank = 40, 12, 0
        self.features = LogMel(mels=mels)
        self.subsample = Subsample(mels, 16, width)
        self.encoder = Encoder(width, heads, depth, 7)
        self.quantizer = ProductQuantizer(width, 2, 20, 16)
        self.forecast = Forecast(width, 2 * 16)
        self.layer_weights = Parameter(initializer("zeros", (depth + 1,)), name="layer_weights")
        self.voice = Voice(width, 32, 48, voices)
        self.adapter = Adapter(width)
        self.head_norm = layer_norm(width)
        self.head = nn.Dense(width, 32)
        self.unit_table = Parameter(initializer(Normal(1.0), (units, 32)), name="unit_table")
        self.unit_bias = Parameter(initializer("zeros", (units,)), name="unit_bias")

    def mix(self, states):
        """The states of all layers, each normalised, weighted by a softmax that is learned."""
        shares = ops.softmax(self.layer_weights, axis=0)
        mixed = 0.0
        for index, state in enumerate(states):
            offset = state - state.mean(axis=-1, keep_dims=True)
            variance = ops.square(offset).mean(axis=-1, keep_dims=True)
            mixed = mixed + shares[index] * offset / ops.sqrt(variance + 1e-5)
        return mixed

    def collapse(self, scores, lengths):
        """Walks over time: a unit is noted when it begins; blanks part equal units."""
        best = ops.argmax(scores, dim=-1)
        value = scores.max(axis=-1)
        batch, steps = best.shape
        slots = ops.arange(self.slots)[None, :]
        units = ops.full((batch, self.slots), self.blank, dtype=ms.int64)
        begun = ops.zeros((batch, self.slots), ms.float32)
        count = ops.zeros((batch,), ms.int64)
        last = ops.full((batch,), self.blank, dtype=ms.int64)
        for step in range(steps):
            now = best[:, step].astype(ms.int64)
            fresh = ops.logical_and(now != self.blank, now != last)
            fresh = ops.logical_and(fresh, step < lengths)
            here = ops.logical_and(slots == count[:, None], fresh[:, None])
            units = ops.where(here, now[:, None], units)
            begun = ops.where(here, value[:, step][:, None], begun)
            count = count + fresh.astype(ms.int64)
            last = now
        return units, begun

    def construct(self, wave, samples, voice):
        features, frames = self.features(wave, samples)
        x, lengths, valid = self.subsample(features, frames)
        codes, used = self.quantizer(x, valid)
        context, states = self.encoder(x, valid)
        foreseen = self.forecast(context, codes, valid)
        mixed = self.mix(states)
        embedding, voices = self.voice(mixed, valid, voice)
        pooled, short = self.adapter(mixed, lengths, valid)
        guess = unit_length(self.head(self.head_norm(pooled)))
        cosine = ops.matmul(guess, unit_length(self.unit_table).T)
        scores = ops.log_softmax(cosine / 0.1 + self.unit_bias, axis=-1)
        scores = scores * sequence_mask(short, scores.shape[1])[:, :, None]
        units, begun = self.collapse(scores, short)
        return scores, units, begun, codes, used, foreseen, embedding, voices


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return SpeechUnits()
