"""The handwriting synthesiser and scorer in MindSpore: the correct port."""

from __future__ import annotations

import string

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

CHARSET = " abcdefghijklmnopqrstuvwxyzABCDEHIMST0123456789.,;'-?"
PEN_MEAN = [0.41, -0.07]
PEN_STD = [2.12, 1.37]


def valid_steps(lengths, size):
    """float32 (batch, size): one where a step belongs to the row."""
    return (ops.arange(size).expand_dims(0) < lengths.expand_dims(1)).astype(ms.float32)


def class_table():
    """Id of a character -> class of the character; id 0 is the padding."""
    groups = [" ", string.ascii_lowercase, string.ascii_uppercase, string.digits]
    table = np.full(len(CHARSET) + 1, len(groups) + 1, np.int32)
    table[0] = 0
    for i, char in enumerate(CHARSET):
        for k, group in enumerate(groups):
            if char in group:
                table[i + 1] = k + 1
    return Tensor(table)


def mix_groups(x, groups):
    """ShuffleNet's exchange of channels."""
    batch, channels, steps = x.shape
    x = x.reshape(batch, groups, channels // groups, steps)
    return x.swapaxes(1, 2).reshape(batch, channels, steps)


def pool_steps(x, valid):
    """(batch, channels, steps) -> (batch, 3 * channels): mean, deviation, maximum of the valid steps."""
    valid = valid.expand_dims(1)
    n = ops.maximum(valid.sum(axis=-1, keepdims=True), Tensor(1.0, ms.float32))
    mean = ops.sum(x * valid, -1, keepdim=True) / n
    centred = (x - mean) * valid
    std = ops.sqrt(ops.sum(centred * centred, -1, keepdim=True) / n + 1e-5)
    top = ops.masked_fill(x, valid == 0, -1e9).max(axis=-1, keepdims=True)
    return ops.cat((mean, std, top), axis=1).squeeze(-1)


def softplus(x):
    return ops.relu(x) + ops.log1p(ops.exp(-ops.abs(x)))


def freeze(alive, new, old):
    """alive is a float (batch,): rows at their end keep the old state."""
    alive = alive.reshape((-1,) + (1,) * (new.ndim - 1))
    return alive * new + (1 - alive) * old


class PeepholeCell(nn.Cell):
    """One step of an LSTM with peepholes."""

    def __init__(self, in_width, width, clip=3.0, forget_bias=1.0):
        super().__init__()
        self.width = width
        self.clip = clip
        self.forget_bias = forget_bias
        self.x2h = nn.Dense(in_width, 4 * width)
        self.h2h = nn.Dense(width, 4 * width, has_bias=False)
        self.peep_i = Parameter(ops.zeros((width,), ms.float32), name="peep_i")
        self.peep_f = Parameter(ops.zeros((width,), ms.float32), name="peep_f")
        self.peep_o = Parameter(ops.zeros((width,), ms.float32), name="peep_o")
        self.norm = nn.LayerNorm((width,), epsilon=1e-2)

    def construct(self, x, h, cell):
        gates = (self.x2h(x) + self.h2h(h)).reshape(-1, 4, self.width)
        gate_in, gate_forget, fresh, gate_out = gates[:, 0], gates[:, 1], gates[:, 2], gates[:, 3]
        gate_in = ops.sigmoid(gate_in + cell * self.peep_i)
        gate_forget = ops.sigmoid(gate_forget + self.forget_bias + cell * self.peep_f)
        updated = gate_forget * cell + gate_in * ops.tanh(fresh)
        updated = ops.clamp(updated, -self.clip, self.clip)
        gate_out = ops.sigmoid(gate_out + updated * self.peep_o)
        return gate_out * ops.tanh(self.norm(updated)), updated


class SoftWindow(nn.Cell):
    """Where the pen is in the text."""

    def __init__(self, width, mixtures=5, kappa_scale=0.32):
        super().__init__()
        self.mixtures = mixtures
        self.kappa_scale = kappa_scale
        self.linear = nn.Dense(width, 3 * mixtures)

    def construct(self, h, kappa, chars, char_valid):
        raw = self.linear(h).reshape(h.shape[0], 3, self.mixtures, 1)
        height = softplus(raw[:, 0])
        sharpness = ops.clamp(ops.exp(raw[:, 1]), min=0.01)
        kappa = kappa + self.kappa_scale * ops.exp(raw[:, 2, :, 0])
        places = ops.arange(chars.shape[1]).astype(h.dtype) + 1
        gap = places.reshape(1, 1, -1) - kappa.expand_dims(-1)
        phi = ops.sum(height * ops.exp(-sharpness * gap * gap), 1) * char_valid
        read = ops.bmm(phi.expand_dims(1), chars).squeeze(1)
        return read, kappa, phi


class TextEncoder(nn.Cell):
    """Characters with their classes and neighbours."""

    def __init__(self, text_dim=14, class_dim=6, kernel=3):
        super().__init__()
        both = text_dim + class_dim
        self.scale = text_dim ** 0.5
        self.chars = nn.Embedding(len(CHARSET) + 1, text_dim, padding_idx=0)
        self.classes = nn.Embedding(6, class_dim)
        self.conv = nn.Conv1d(both, both, kernel, pad_mode="pad", padding=kernel // 2, has_bias=True)
        self.norm = nn.LayerNorm((both,), epsilon=1e-5)
        self.table = class_table()

    def construct(self, text, valid):
        kinds = self.classes(ops.gather(self.table, text, 0))
        x = ops.cat((self.scale * self.chars(text), kinds), axis=2)
        x = x * valid.expand_dims(2)
        near = self.conv(x.swapaxes(1, 2))
        near = ops.gelu(near, approximate="none").swapaxes(1, 2)
        return self.norm(x + near)


class StyleEncoder(nn.Cell):
    """Reference sample -> vector of style."""

    def __init__(self, channels=(8, 12), groups=4, out=10):
        super().__init__()
        low, high = channels
        self.groups = groups
        self.conv1 = nn.Conv1d(3, low, 5, pad_mode="pad", padding=2, has_bias=True)
        self.bn1 = nn.BatchNorm1d(low, eps=1e-3, momentum=0.9)
        self.act1 = nn.LeakyReLU(alpha=0.1)
        self.conv2 = nn.Conv1d(low, high, 3, stride=2, pad_mode="pad", padding=1, has_bias=True)
        self.bn2 = nn.BatchNorm1d(high, eps=1e-3, momentum=0.9)
        self.act2 = nn.LeakyReLU(alpha=0.1)
        self.conv3 = nn.Conv1d(high, high, 3, pad_mode="pad", padding=2, dilation=2, group=groups, has_bias=True)
        self.norm3 = nn.GroupNorm(3, high, eps=1e-5)
        self.proj = nn.Dense(3 * high, out)

    def batch_norm(self, norm, x):
        """BatchNorm1d here takes (batch, channels) only."""
        b, c, t = x.shape
        flat = norm(x.swapaxes(1, 2).reshape(b * t, c))
        return flat.reshape(b, t, c).swapaxes(1, 2)

    def group_norm(self, x):
        return self.norm3(x.expand_dims(-1)).squeeze(-1)

    def construct(self, strokes, lengths):
        valid = valid_steps(lengths, strokes.shape[1])
        x = (strokes * valid.expand_dims(2)).swapaxes(1, 2)
        x = self.act1(self.batch_norm(self.bn1, self.conv1(x))) * valid.expand_dims(1)

        x = self.act2(self.batch_norm(self.bn2, self.conv2(x)))
        valid = valid_steps((lengths + 1) // 2, x.shape[2])
        x = x * valid.expand_dims(1)

        mixed = mix_groups(self.conv3(x), self.groups)
        x = x + ops.gelu(self.group_norm(mixed), approximate="none")
        return ops.tanh(self.proj(pool_steps(x, valid)))


class MixtureHead(nn.Cell):
    """The next point's distribution."""

    def __init__(self, width, hidden=34, mixtures=4, rho_limit=0.96, sigma_range=(-4.0, 2.5)):
        super().__init__()
        self.mixtures = mixtures
        self.rho_limit = rho_limit
        self.sigma_range = sigma_range
        self.norm = nn.LayerNorm((width,), epsilon=1e-5)
        self.fc1 = nn.Dense(width, hidden)
        self.act = nn.GELU(approximate=True)
        self.fc2 = nn.Dense(hidden, 6 * mixtures + 1)

    def construct(self, features, bias=0.0):
        """The logit of the lift (...), log weights and rho (..., m), means and log deviations (..., 2, m)."""
        raw = self.fc2(self.act(self.fc1(self.norm(features))))
        lift = raw[..., 0]
        raw = raw[..., 1:].reshape(raw.shape[:-1] + (6, self.mixtures))
        log_weights = ops.log_softmax(raw[..., 0, :] * (1.0 + bias), -1)
        means = raw[..., 1:3, :]
        log_sigmas = ops.clamp(raw[..., 3:5, :], self.sigma_range[0], self.sigma_range[1]) - bias
        rho = self.rho_limit * ops.tanh(raw[..., 5, :])
        return lift, log_weights, means, log_sigmas, rho


def log_gaussians(offsets, means, log_sigmas, rho):
    """offsets (batch, steps, 2) under every component: (batch, steps, m)."""
    z = (offsets.expand_dims(-1) - means) / ops.exp(log_sigmas)
    zx, zy = z[..., 0, :], z[..., 1, :]
    free = 1.0 - rho * rho
    quad = (zx * zx + zy * zy - 2.0 * rho * zx * zy) / free
    log_det = ops.sum(log_sigmas, -2) + 0.5 * ops.log(free)
    return -0.5 * quad - log_det - float(np.log(2 * np.pi))


class Scribe(nn.Cell):
    """Scores strokes for a text, in the hand of a sample, and continues them."""

    def __init__(self, hidden=26, layers=3, steps=13, bias=0.6, margin=0.9, length_power=0.7, coverage_weight=0.3):
        super().__init__()
        self.hidden = hidden
        self.layers = layers
        self.steps = steps
        self.bias = bias
        self.margin = margin
        self.length_power = length_power
        self.coverage_weight = coverage_weight
        self.mean = Tensor(PEN_MEAN, ms.float32)
        self.std = Tensor(PEN_STD, ms.float32)
        self.text = TextEncoder()
        self.style = StyleEncoder()
        self.style_h = nn.Dense(10, layers * hidden, has_bias=False)
        self.style_c = nn.Dense(10, layers * hidden)
        self.stack = nn.CellList([PeepholeCell(23 + (hidden if i else 0), hidden) for i in range(layers)])
        self.window = SoftWindow(hidden)
        self.head = MixtureHead(layers * hidden)

    def standardise(self, strokes):
        return ops.cat(((strokes[..., :2] - self.mean) / self.std, strokes[..., 2:]), axis=-1)

    def advance(self, point, state, style_h, chars, char_valid):
        """The state is (h of each layer, c of each layer, kappa, what the window reads)."""
        all_h, all_c, kappa, read = state
        h, c = self.stack[0](ops.cat((point, read), axis=1), all_h[0] + style_h[0], all_c[0])
        read, kappa, phi = self.window(h, kappa, chars, char_valid)
        new_h, new_c = [h], [c]
        for i in range(1, self.layers):
            below = ops.cat((point, new_h[i - 1], read), axis=1)
            h, c = self.stack[i](below, all_h[i] + style_h[i], all_c[i])
            new_h.append(h)
            new_c.append(c)
        return (new_h, new_c, kappa, read), phi

    def keep(self, alive, new, old):
        """Freeze the state of the rows which are over."""
        h = [freeze(alive, n, o) for n, o in zip(new[0], old[0])]
        c = [freeze(alive, n, o) for n, o in zip(new[1], old[1])]
        kappa = freeze(alive, new[2], old[2])
        read = freeze(alive, new[3], old[3])
        return h, c, kappa, read

    def follow(self, strokes, alive, state, style_h, chars, char_valid):
        """Teacher forcing."""
        outputs, attention = [], []
        for t in range(alive.shape[1]):
            on = alive[:, t]
            new, phi = self.advance(strokes[:, t], state, style_h, chars, char_valid)
            state = self.keep(on, new, state)
            outputs.append(ops.cat(new[0], axis=1))
            attention.append(phi * on.expand_dims(1))
        return ops.stack(outputs, axis=1), ops.stack(attention, axis=1), state

    def likelihood(self, features, target, alive):
        lift, log_weights, means, log_sigmas, rho = self.head(features)
        parts = log_weights + log_gaussians(target[..., :2], means, log_sigmas, rho)
        top = parts.max(axis=-1, keepdims=True)
        offsets = top.squeeze(-1) + ops.log(ops.sum(ops.exp(parts - top), -1))
        offsets = offsets - ops.log(self.std).sum()  # per unit of the pen, not of the normalised plane
        pen = target[..., 2] * lift - softplus(lift)
        return (offsets + pen) * alive

    def row_scores(self, points, alive, attention, char_valid):
        covered = ops.log(ops.clamp(attention.sum(axis=1), 1e-3, 1.0))
        covered = (covered * char_valid).sum(axis=1) / char_valid.sum(axis=1)
        penalty = ops.pow(alive.sum(axis=1), self.length_power)
        return points.sum(axis=1) / penalty + self.coverage_weight * covered

    def write(self, point, state, style_h, chars, char_valid):
        """Free running; rows stop where the window has left the text."""
        end = char_valid.sum(axis=1) + self.margin
        going = ops.ones((point.shape[0],), ms.float32)
        written, count = [], ops.zeros((point.shape[0],), ms.int32)
        for _ in range(self.steps):
            new, _ = self.advance(point, state, style_h, chars, char_valid)
            state = self.keep(going, new, state)
            lift, log_weights, means, log_sigmas, _ = self.head(ops.cat(state[0], axis=1), self.bias)
            best = ops.one_hot(ops.argmax(log_weights, dim=-1), log_weights.shape[-1]).astype(ms.float32)
            best = best.expand_dims(1)
            offset = ops.sum(means * best, -1)
            spread = ops.exp(ops.sum(log_sigmas * best, (1, 2)))
            point = ops.cat((offset, ops.sigmoid(lift).expand_dims(1)), axis=1)
            written.append(ops.cat((point, spread.expand_dims(1)), axis=1) * going.expand_dims(1))
            count = count + going.astype(ms.int32)
            going = going * (state[2].mean(axis=1) <= end).astype(ms.float32)
        return ops.stack(written, axis=1), count

    def construct(self, strokes, stroke_lengths, text, text_lengths, sample, sample_lengths):
        batch, total = strokes.shape[:2]
        strokes = self.standardise(strokes)
        char_valid = valid_steps(text_lengths, text.shape[1])
        chars = self.text(text, char_valid)

        style = self.style(self.standardise(sample), sample_lengths)
        style_h = self.style_h(style).reshape(batch, self.layers, self.hidden).swapaxes(0, 1)
        first_c = ops.tanh(self.style_c(style)).reshape(batch, self.layers, self.hidden).swapaxes(0, 1)
        first_h = ops.zeros_like(first_c)
        kappa = ops.zeros((batch, self.window.mixtures), ms.float32)
        state = (list(first_h), list(first_c), kappa, chars[:, 0])

        alive = valid_steps(stroke_lengths - 1, total - 1)
        features, attention, state = self.follow(strokes, alive, state, style_h, chars, char_valid)
        points = self.likelihood(features, strokes[:, 1:], alive)
        rows = self.row_scores(points, alive, attention, char_valid)

        at_end = ops.one_hot(stroke_lengths - 1, total).astype(strokes.dtype)
        last = ops.bmm(at_end.expand_dims(1), strokes).squeeze(1)
        written, count = self.write(last, state, style_h, chars, char_valid)

        own = self.style(written[..., :3], count)
        lengths = ops.sqrt((style * style).sum(axis=1) * (own * own).sum(axis=1))
        likeness = (style * own).sum(axis=1) / ops.clamp(lengths, min=1e-8)

        moved = (written[..., :2] * self.std + self.mean) * valid_steps(count, self.steps).expand_dims(2)
        path = ops.cat((ops.cumsum(moved, 1), written[..., 2:]), axis=2)
        return points, rows, attention, path, likeness


def build():
    """The net alone, for evaluation: weights and inputs come from the reference's dump."""
    net = Scribe()
    net.set_train(False)
    return net
