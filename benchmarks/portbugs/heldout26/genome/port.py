"""Tracks of regulatory activity from DNA, in MindSpore: attention pooling, dilated context, relative transformer."""

from __future__ import annotations

import math

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

# codes of letters: A, C, G, T, then N; the end of a contig comes as -1 and is code 5 in here
CODE_N = 4
CODE_END = 5
COMPLEMENT = [3, 2, 1, 0, CODE_N, CODE_END]
LETTER_ROWS = np.concatenate((np.eye(4), np.full((1, 4), 0.25), np.zeros((1, 4)))).astype(np.float32)

BN_EPS = 1e-3
MIN_HALF_LIFE = 3.0
LOWEST = float(np.finfo(np.float32).min)

HUMAN_PAIRS = (1, 0, 3, 2, 5, 4, 6, 7, 8)
HUMAN_WEIGHTS = (2.0, 2.0, 2.0, 2.0, 1.0, 1.0, 0.5, 0.5, 0.5)
MOUSE_PAIRS = (0, 2, 1, 4, 3)


def tower_widths(first, last, count, multiple=8):
    """A geometric series from first to last, in multiples."""
    series = first * (last / first) ** (np.arange(count) / (count - 1))
    return [int(width) for width in np.round(series / multiple) * multiple]


def half_life_basis(distance, count, length):
    """exp decay of the distance, one column for each half life."""
    half_life = np.exp2(np.linspace(MIN_HALF_LIFE, np.log2(length), count))
    return np.exp2(-np.abs(distance)[:, None] / half_life)


def window_basis(distance, count):
    """Indicators of nested windows around zero."""
    edges = np.exp2(np.arange(1, count + 1)) - 1
    return (np.abs(distance)[:, None] < edges).astype(np.float64)


def gamma_basis(distance, count, length):
    """Densities of gamma distributions over the distance, each scaled to a maximum of one."""
    mean = np.linspace(length / count, length, count)
    std = length / (2 * count)
    shape = (mean / std) ** 2
    rate = mean / std**2
    distance = np.abs(distance)[:, None]
    with np.errstate(divide="ignore"):
        log_density = (shape - 1) * np.log(distance) - rate * distance
    log_density += shape * np.log(rate) - np.array([math.lgamma(s) for s in shape])
    density = np.exp(log_density) + 1e-8
    return density / density.max(axis=0, keepdims=True)


_POSITION_CACHE = {}


def distance_features(length, count):
    """(2 * length - 1, count) for the distances 1 - length to length - 1: unsigned columns, then signed ones."""
    if (length, count) not in _POSITION_CACHE:
        distance = np.arange(1 - length, length).astype(np.float64)
        each = count // 6
        unsigned = np.concatenate(
            (
                half_life_basis(distance, each, length),
                window_basis(distance, each),
                gamma_basis(distance, each, length),
            ),
            axis=1,
        )
        features = np.concatenate((unsigned, np.sign(distance)[:, None] * unsigned), axis=1)
        _POSITION_CACHE[length, count] = Tensor(features.astype(np.float32))
    return _POSITION_CACHE[length, count]


def key_minus_query(length):
    """(length, length): the row of the features for each query and key."""
    place = np.arange(length)
    return Tensor((place[None, :] - place[:, None] + length - 1).astype(np.int32))


def slide(codes, by):
    """The window moved along the genome; N comes in from outside."""
    if by == 0:
        return codes
    fill = ops.full((codes.shape[0], abs(by)), CODE_N, dtype=codes.dtype)
    if by > 0:
        return ops.cat((fill, codes[:, :-by]), axis=1)
    return ops.cat((codes[:, -by:], fill), axis=1)


class SigmoidGelu(nn.Cell):
    """x * sigmoid(1.702 x)."""

    def construct(self, x):
        return x * ops.sigmoid(1.702 * x)


class NormActConv(nn.Cell):
    """Batch norm, activation and convolution on (batch, channels, length)."""

    def __init__(self, in_width, out_width, kernel=1):
        super().__init__()
        self.bn = nn.BatchNorm1d(in_width, eps=BN_EPS)
        self.act = SigmoidGelu()
        self.conv = nn.Conv1d(in_width, out_width, kernel, pad_mode="pad", padding=kernel // 2, has_bias=True)

    def construct(self, x):
        return self.conv(self.act(self.bn(x)))


class SoftPool(nn.Cell):
    """Weighted mean over windows along the length; the weights are a softmax within each window and channel."""

    def __init__(self, width, size=2):
        super().__init__()
        self.size = size
        self.logits = nn.Dense(width, width, has_bias=False)

    def construct(self, x, alive):
        batch, width, length = x.shape
        x = x.swapaxes(1, 2)
        missing = -length % self.size
        if missing:
            x = ops.cat((x, ops.zeros((batch, missing, width), x.dtype)), axis=1)
            alive = ops.cat((alive, ops.zeros((batch, missing), ms.bool_)), axis=1)
        x = x.reshape(batch, -1, self.size, width)
        alive = alive.reshape(batch, -1, self.size)
        logits = ops.select(alive.expand_dims(-1), self.logits(x), LOWEST)
        pooled = (ops.softmax(logits, axis=2) * x).sum(axis=2)
        return pooled.swapaxes(1, 2), alive.any(axis=-1)


class PooledStage(nn.Cell):
    """A convolution, a pointwise one around which x goes as well, and the pooling."""

    def __init__(self, conv, width):
        super().__init__()
        self.conv = conv
        self.pointwise = NormActConv(width, width)
        self.pool = SoftPool(width)

    def construct(self, x, alive):
        x = self.conv(x)
        x = x + self.pointwise(x)
        return self.pool(x, alive)


class ContextLayer(nn.Cell):
    """Residual with a dilated convolution at half of the width."""

    def __init__(self, width, rate, dropout=0.2):
        super().__init__()
        self.act_in = SigmoidGelu()
        self.conv_in = nn.Conv1d(
            width, width // 2, 3, pad_mode="pad", padding=rate, dilation=rate, has_bias=False
        )
        self.bn_in = nn.BatchNorm1d(width // 2, eps=1e-3)
        self.act_out = SigmoidGelu()
        self.conv_out = nn.Conv1d(width // 2, width, 1, has_bias=False)
        self.bn_out = nn.BatchNorm1d(width, eps=1e-3)
        self.dropout = nn.Dropout(p=dropout)

    def construct(self, x, alive):
        active = self.act_in(x)
        inner = self.conv_in(active * alive.astype(x.dtype).expand_dims(1))
        inner = self.act_out(self.bn_in(inner))
        return x + self.dropout(self.bn_out(self.conv_out(inner)))


class RelativeSelfAttention(nn.Cell):
    """Self attention whose logits have a part for the content of the key and a part for its distance."""

    def __init__(self, width, heads, key_width, features):
        super().__init__()
        self.heads = heads
        self.key_width = key_width
        self.value_width = width // heads
        self.features = features
        self.scale = 1.0 / math.sqrt(key_width)
        self.content_bias = Parameter(Tensor(np.zeros((1, heads, 1, key_width), np.float32)), name="content_bias")
        self.position_bias = Parameter(Tensor(np.zeros((1, heads, 1, key_width), np.float32)), name="position_bias")
        self.query = nn.Dense(width, heads * key_width, has_bias=False)
        self.key = nn.Dense(width, heads * key_width, has_bias=False)
        self.value = nn.Dense(width, heads * self.value_width, has_bias=False)
        self.relative_key = nn.Dense(features, heads * key_width, has_bias=False)
        self.dropout = nn.Dropout(p=0.05)
        self.out = nn.Dense(heads * self.value_width, width)

    def distance_keys(self, length):
        """(heads, query, key, channels): what the distance of each pair has for a key."""
        keys = self.relative_key(distance_features(length, self.features))
        keys = keys.reshape(2 * length - 1, self.heads, self.key_width).swapaxes(0, 1)
        return ops.gather(keys, key_minus_query(length), 1)

    def construct(self, x, alive):
        batch, length, _ = x.shape
        query = self.query(x).reshape(batch, length, self.heads, self.key_width).swapaxes(1, 2)
        key = self.key(x).reshape(batch, length, self.heads, self.key_width).transpose(0, 2, 3, 1)
        value = self.value(x).reshape(batch, length, self.heads, self.value_width).swapaxes(1, 2)

        query = query * self.scale
        by_content = ops.matmul(query + self.content_bias, key)
        # each query has its own keys here, so it is a batch of products of one row
        far = self.distance_keys(length).swapaxes(-1, -2)
        by_distance = ops.matmul((query + self.position_bias).expand_dims(-2), far).squeeze(-2)
        logits = by_content + by_distance
        logits = ops.masked_fill(logits, ops.logical_not(alive).reshape(batch, 1, 1, length), LOWEST)

        mixed = ops.matmul(self.dropout(ops.softmax(logits, axis=-1)), value)
        return self.out(mixed.swapaxes(1, 2).reshape(batch, length, -1))


class EncoderLayer(nn.Cell):
    """Pre-norm attention and perceptron."""

    def __init__(self, width, heads, key_width, features, dropout=0.4):
        super().__init__()
        self.norm1 = nn.LayerNorm((width,), epsilon=1e-5)
        self.attn = RelativeSelfAttention(width, heads, key_width, features)
        self.norm2 = nn.LayerNorm((width,), epsilon=1e-5)
        self.fc1 = nn.Dense(width, 2 * width)
        self.act = nn.ReLU()
        self.fc2 = nn.Dense(2 * width, width)
        self.dropout = nn.Dropout(p=dropout)

    def construct(self, x, alive):
        x = x + self.dropout(self.attn(self.norm1(x), alive))
        normed = self.norm2(x)
        hidden = self.dropout(self.act(self.fc1(normed)))
        return x + self.dropout(self.fc2(hidden))


class SequenceTrunk(nn.Cell):
    """Letters (batch, length, 4) to embeddings of bins (batch, bins, 2 * width)."""

    def __init__(self, width, target_length, downsamples=4, depth=2):
        super().__init__()
        self.target_length = target_length
        widths = tower_widths(width // 2, width, downsamples)
        self.stem = PooledStage(
            nn.Conv1d(4, widths[0], 15, pad_mode="pad", padding=7, has_bias=True), widths[0]
        )
        self.tower = nn.CellList(
            [PooledStage(NormActConv(a, b, kernel=5), b) for a, b in zip(widths[:-1], widths[1:])]
        )
        self.context = nn.CellList([ContextLayer(width, rate) for rate in (1, 2, 4)])
        self.blocks = nn.CellList([EncoderLayer(width, 4, 16, 24) for _ in range(depth)])
        self.final = NormActConv(width, 2 * width)
        self.final_act = SigmoidGelu()

    def construct(self, letters, alive):
        x, alive = self.stem(letters.swapaxes(1, 2), alive)
        for stage in self.tower:
            x, alive = stage(x, alive)
        for layer in self.context:
            x = layer(x, alive)
        x = x.swapaxes(1, 2)
        for block in self.blocks:
            x = block(x, alive)
        trim = (x.shape[1] - self.target_length) // 2
        x = x[:, trim : trim + self.target_length].swapaxes(1, 2)
        return self.final_act(self.final(x)).swapaxes(1, 2)


class CoverageHead(nn.Cell):
    """Softplus of a linear map, and which track is the other strand of which."""

    def __init__(self, width, pairs):
        super().__init__()
        self.linear = nn.Dense(width, len(pairs))
        self.other_strand = Tensor(np.array(pairs, np.int32))

    def construct(self, x):
        return ops.softplus(self.linear(x))


class TrackPredictor(nn.Cell):
    """Predictions for human and mouse as means over variants of the window, the training loss, and correlations."""

    def __init__(self, width=48, target_length=24, shifts=(0, 3), soft_clip=6.0, total_weight=0.2, mouse_weight=0.5):
        super().__init__()
        self.shifts = shifts
        self.soft_clip = soft_clip
        self.total_weight = total_weight
        self.mouse_weight = mouse_weight
        self.letter_rows = Tensor(LETTER_ROWS)
        self.complement = Tensor(np.array(COMPLEMENT, np.int32))
        weights = np.array(HUMAN_WEIGHTS, np.float32)
        self.human_weights = Tensor(weights / weights.mean())
        self.trunk = SequenceTrunk(width, target_length)
        self.head_human = CoverageHead(2 * width, HUMAN_PAIRS)
        self.head_mouse = CoverageHead(2 * width, MOUSE_PAIRS)

    def reverse_complement(self, codes):
        return ops.flip(ops.gather(self.complement, codes, 0), (1,))

    def variants(self, codes):
        """Every shift, and for every shift both strands, along the batch."""
        rows = []
        for by in self.shifts:
            moved = slide(codes, by)
            rows += [moved, self.reverse_complement(moved)]
        return ops.cat(rows, axis=0)

    def average(self, tracks, other_strand):
        """Back to one prediction for each window."""
        length, count = tracks.shape[1:]
        tracks = tracks.reshape(len(self.shifts), 2, -1, length, count)
        plus, minus = tracks[:, 0], tracks[:, 1]
        minus = ops.gather(ops.flip(minus, (2,)), other_strand, -1)
        return ((plus + minus) / 2).mean(axis=0)

    def squash(self, coverage):
        excess = ops.relu(coverage - self.soft_clip)
        return ops.minimum(coverage, Tensor(self.soft_clip, ms.float32)) + ops.sqrt(excess + 1.0) - 1.0

    def poisson(self, rate, count, counted):
        """counted is (batch, bins, 1), one where a bin counts."""
        nll = (rate - count * ops.log(rate + 1e-6)) * self.human_weights
        per_bin = nll.mean(axis=-1, keep_dims=True)
        return (per_bin * counted).sum() / ops.clamp(counted.sum(), min=1.0)

    def poisson_multinomial(self, rate, count, counted):
        """A Poisson term for the totals of tracks, a multinomial term for their shapes."""
        rate, count = (rate + 1e-6) * counted, count * counted
        bins = ops.clamp(counted.sum(axis=1), min=1.0)
        rate_total, count_total = rate.sum(axis=1), count.sum(axis=1)
        totals = (rate_total - count_total * ops.log(rate_total)) / bins
        log_share = ops.log(rate / rate.sum(axis=1, keepdims=True) + 1e-6)
        shapes = -(count * log_share).sum(axis=1) / bins
        return (shapes + self.total_weight * totals).mean()

    def correlation(self, predicted, measured, counted):
        """Pearson's, along the bins that count: (batch, tracks)."""
        bins = ops.clamp(counted.sum(axis=1, keepdims=True), min=1.0)
        predicted = (predicted - (predicted * counted).sum(axis=1, keepdims=True) / bins) * counted
        measured = (measured - (measured * counted).sum(axis=1, keepdims=True) / bins) * counted
        spread = ops.sqrt((predicted * predicted).sum(axis=1)) * ops.sqrt((measured * measured).sum(axis=1))
        return (predicted * measured).sum(axis=1) / (spread + 1e-8)

    def construct(self, indices, human_target, mouse_target, bin_mask):
        codes = indices.astype(ms.int32)
        codes = self.variants(ops.masked_fill(codes, codes < 0, CODE_END))
        bins = self.trunk(ops.gather(self.letter_rows, codes, 0), codes != CODE_END)
        human = self.average(self.head_human(bins), self.head_human.other_strand)
        mouse = self.average(self.head_mouse(bins), self.head_mouse.other_strand)

        human_target, mouse_target = self.squash(human_target), self.squash(mouse_target)
        counted = bin_mask.astype(human.dtype).expand_dims(-1)
        loss_human = self.poisson(human, human_target, counted)
        loss_mouse = self.poisson_multinomial(mouse, mouse_target, counted)
        loss = loss_human + self.mouse_weight * loss_mouse
        return human, mouse, loss, self.correlation(human, human_target, counted)


def example_windows():
    """Two windows with targets; the second runs over the end of a contig."""
    rng = np.random.RandomState(38)
    rows = ["".join(rng.choice(list("ACGT"), size=520, p=(0.3, 0.2, 0.2, 0.3))) for _ in range(2)]
    rows[0] = rows[0][:200] + "N" * 24 + rows[0][224:]
    rows[1] = "N" * 8 + rows[1][8:393] + "." * 127
    indices = np.array([["ACGTN".find(letter) for letter in row] for row in rows], np.int64)
    human_target = rng.gamma(0.8, 3.0, size=(2, 24, len(HUMAN_PAIRS))).astype(np.float32)
    mouse_target = rng.gamma(0.8, 3.0, size=(2, 24, len(MOUSE_PAIRS))).astype(np.float32)
    bin_mask = rng.rand(2, 24) > 0.15
    bin_mask[1, -5:] = False
    return tuple(Tensor(array) for array in (indices, human_target, mouse_target, bin_mask))


def build():
    """The net for evaluation, with inputs."""
    net = TrackPredictor()
    net.set_train(False)
    return net, example_windows()
