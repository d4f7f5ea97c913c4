"""EEND-EDA with a power-set head and stitched speaker embeddings, ported to MindSpore."""

from __future__ import annotations

from itertools import combinations, permutations

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

FLOOR = 1e-6
MIN_CLEAN_FRAMES = 2.5
NEG_INF = float(np.finfo(np.float32).min)


def length_mask(lengths, size):
    return ops.arange(size).expand_dims(0) < lengths.expand_dims(1)


def take_rows(x, rows):
    """x (B, T, D) at rows (B, N)."""
    return ops.gather_elements(x, 1, ops.tile(rows.expand_dims(-1), (1, 1, x.shape[-1])))


def unit(x):
    return x / ops.clamp(ops.sqrt(ops.square(x).sum(axis=-1, keepdims=True)), min=1e-12)


class FrontEnd(nn.Cell):
    """Mean normalisation, context, subsampling, projection."""

    def __init__(self, n_mels, context, factor, dim):
        super().__init__()
        self.context = context
        self.factor = factor
        self.linear = nn.Dense(n_mels * (2 * context + 1), dim)
        self.norm = nn.LayerNorm((dim,), epsilon=1e-5)
        self.dropout = nn.Dropout(p=0.1)

    def construct(self, feats, lengths):
        _, n_frames, _ = feats.shape
        keep = length_mask(lengths, n_frames).astype(feats.dtype).expand_dims(-1)
        average = (feats * keep).sum(axis=1, keepdims=True) / ops.clamp(keep.sum(axis=1, keepdims=True), min=1.0)
        feats = (feats - average) * keep

        side = self.context
        padded = ops.pad(feats, (0, 0, side, side))
        shifted = [padded[:, k : k + n_frames] for k in range(2 * side + 1)]
        spliced = ops.cat(shifted, axis=-1)[:, :: self.factor]
        new_lengths = (lengths + self.factor - 1) // self.factor
        return self.dropout(self.norm(self.linear(spliced))), new_lengths


def coarse_labels(labels, factor):
    """Majority over each group of frames; the last group is filled with silence."""
    batch, n_frames, n_spk = labels.shape
    missing = -n_frames % factor
    if missing:
        labels = ops.cat((labels, ops.zeros((batch, missing, n_spk), labels.dtype)), axis=1)
    share = labels.reshape(batch, -1, factor, n_spk).mean(axis=2)
    return (share >= 0.5).astype(labels.dtype)


def sinusoid_table(dim, max_len):
    """One row for each distance, from max_len - 1 down to 1 - max_len."""
    distance = np.arange(max_len - 1, -max_len, -1, dtype=np.float64)[:, None]
    angle = distance / np.power(10000.0, np.arange(0, dim, 2) / dim)[None, :]
    table = np.zeros((2 * max_len - 1, dim), np.float32)
    table[:, 0::2] = np.sin(angle)
    table[:, 1::2] = np.cos(angle)
    return table


class RelSelfAttention(nn.Cell):
    """Transformer-XL attention; the position scores are picked by distance instead of shifted."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.size = dim // heads
        self.scale = self.size**-0.5
        self.linear_q = nn.Dense(dim, dim)
        self.linear_k = nn.Dense(dim, dim)
        self.linear_v = nn.Dense(dim, dim)
        self.linear_pos = nn.Dense(dim, dim, has_bias=False)
        self.linear_out = nn.Dense(dim, dim)
        self.pos_bias_u = Parameter(ops.zeros((heads, self.size), ms.float32), name="pos_bias_u")
        self.pos_bias_v = Parameter(ops.zeros((heads, self.size), ms.float32), name="pos_bias_v")
        self.dropout = nn.Dropout(p=0.1)

    def heads_first(self, x):
        return x.reshape(x.shape[0], x.shape[1], self.heads, self.size).transpose(0, 2, 1, 3)

    def construct(self, x, pos, mask):
        batch, steps, dim = x.shape
        query = self.heads_first(self.linear_q(x))
        key = self.heads_first(self.linear_k(x))
        value = self.heads_first(self.linear_v(x))
        rel = self.heads_first(self.linear_pos(pos).expand_dims(0))

        by_content = ops.matmul(query + self.pos_bias_u.expand_dims(1), key.swapaxes(-1, -2))
        by_place = ops.matmul(query + self.pos_bias_v.expand_dims(1), rel.swapaxes(-1, -2))
        column = (steps - 1) - np.arange(steps)[:, None] + np.arange(steps)[None, :]
        column = ops.broadcast_to(Tensor(column.astype(np.int32)), (batch, self.heads, steps, steps))
        by_place = ops.gather_elements(by_place, 3, column)
        scores = (by_content + by_place) * self.scale

        hidden = ops.logical_not(mask).reshape(batch, 1, 1, steps)
        scores = ops.masked_fill(scores, hidden, NEG_INF)
        probs = ops.masked_fill(ops.softmax(scores, axis=-1), hidden, 0.0)
        mixed = ops.matmul(self.dropout(probs), value).transpose(0, 2, 1, 3)
        return self.linear_out(mixed.reshape(batch, steps, dim))


class EncoderLayer(nn.Cell):
    def __init__(self, dim, heads, hidden):
        super().__init__()
        self.norm1 = nn.LayerNorm((dim,), epsilon=1e-5)
        self.self_attn = RelSelfAttention(dim, heads)
        self.norm2 = nn.LayerNorm((dim,), epsilon=1e-5)
        self.ff1 = nn.Dense(dim, hidden)
        self.act = nn.GELU(approximate=False)
        self.ff2 = nn.Dense(hidden, dim)
        self.dropout = nn.Dropout(p=0.1)

    def construct(self, x, pos, mask):
        x = x + self.dropout(self.self_attn(self.norm1(x), pos, mask))
        residual, x = x, self.norm2(x)
        x = self.ff2(self.dropout(self.act(self.ff1(x))))
        return residual + self.dropout(x)


class Encoder(nn.Cell):
    def __init__(self, dim, heads, hidden, depth, max_len):
        super().__init__()
        self.max_len = max_len
        self.table = Tensor(sinusoid_table(dim, max_len))
        self.layers = nn.CellList([EncoderLayer(dim, heads, hidden) for _ in range(depth)])
        self.after_norm = nn.LayerNorm((dim,), epsilon=1e-5)

    def construct(self, x, mask):
        steps = x.shape[1]
        first = self.max_len - steps
        pos = self.table[first : first + 2 * steps - 1]
        for layer in self.layers:
            x = layer(x, pos, mask)
        return self.after_norm(x) * mask.astype(x.dtype).expand_dims(-1)


class AttractorEDA(nn.Cell):
    """LSTM encoder over the shuffled frames, LSTM decoder fed with zeros."""

    def __init__(self, dim, n_spk, threshold):
        super().__init__()
        self.n_spk = n_spk
        self.threshold = threshold
        self.encoder = nn.LSTM(dim, dim, batch_first=True)
        self.decoder = nn.LSTM(dim, dim, batch_first=True)
        self.exist = nn.Dense(dim, 1)

    def construct(self, frames, lengths, order):
        batch, _, dim = frames.shape
        start = ops.zeros((1, batch, dim), frames.dtype)
        shuffled = take_rows(frames, order)
        _, (hidden, cell) = self.encoder(shuffled, (start, start), lengths.astype(ms.int32))
        blanks = ops.zeros((batch, self.n_spk + 1, dim), frames.dtype)
        attractors, _ = self.decoder(blanks, (hidden, cell))
        chance = ops.sigmoid(self.exist(attractors)).squeeze(-1)
        alive = ops.cumprod((chance >= self.threshold).astype(frames.dtype), 1)
        return attractors[:, : self.n_spk], chance, alive[:, : self.n_spk]


class PitAssigner(nn.Cell):
    """Which attractor is which labelled speaker: the cheapest of all permutations."""

    def __init__(self, n_spk):
        super().__init__()
        self.n_spk = n_spk
        self.perms = list(permutations(range(n_spk)))

    def pair_costs(self, probs, labels, mask):
        """costs[p][l]: cross entropy (batch,) of prediction p against label l."""
        probs = ops.clamp(probs, FLOOR, 1.0 - FLOOR)
        weight = mask.astype(probs.dtype)
        count = weight.sum(axis=1)
        costs = [[None] * self.n_spk for _ in range(self.n_spk)]
        for p in range(self.n_spk):
            for l in range(self.n_spk):
                guess, truth = probs[:, :, p], labels[:, :, l]
                bce = -(truth * ops.log(guess) + (1.0 - truth) * ops.log(1.0 - guess))
                costs[p][l] = (bce * weight).sum(axis=1) / count
        return costs

    def construct(self, probs, labels, mask):
        costs = self.pair_costs(probs, labels, mask)
        totals = [sum(costs[p][l] for l, p in enumerate(perm)) / self.n_spk for perm in self.perms]
        totals = ops.stack(totals, axis=1)
        best = ops.argmin(totals, axis=1)
        return totals.min(axis=1), ops.gather(Tensor(np.array(self.perms, np.int32)), best, 0)


def powerset_table(n_spk, most):
    """Rows of zeros and ones: nobody, each alone, each pair, ..."""
    sets = [members for size in range(most + 1) for members in combinations(range(n_spk), size)]
    return np.array([[s in members for s in range(n_spk)] for members in sets], np.float32)


class PowersetHead(nn.Cell):
    def __init__(self, dim, n_spk, most):
        super().__init__()
        table = powerset_table(n_spk, most)
        self.mapping = Tensor(table)
        self.size = Tensor(table.sum(axis=1))
        self.norm = nn.LayerNorm((dim,), epsilon=1e-3)
        self.linear = nn.Dense(dim, len(table))

    def construct(self, frames, logits, exist):
        member = self.mapping.T
        log_on, log_off = -ops.softplus(-logits), -ops.softplus(logits)
        evidence = ops.matmul(log_on, member) + ops.matmul(log_off, 1.0 - member)
        scores = evidence + self.linear(self.norm(frames))
        absent = ops.matmul(1.0 - exist, member) > 0.5
        scores = ops.masked_fill(scores, absent.expand_dims(1), -1e4)
        posterior = ops.softmax(scores, axis=-1)
        marginal = ops.matmul(posterior, self.mapping)
        count = ops.gather(self.size, posterior.argmax(axis=-1), 0)
        return posterior, marginal, count


def running_median(x, width):
    """Over time, (B, T, S); the first and last frames are repeated."""
    half = width // 2
    steps = x.shape[1]
    padded = ops.cat([x[:, :1]] * half + [x] + [x[:, -1:]] * half, axis=1)
    stacked = ops.stack([padded[:, k : k + steps] for k in range(width)], axis=-1)
    return ops.sort(stacked, axis=-1)[0][..., half]


def pick_speakers(smoothed, count):
    """Rank the speakers of each frame; those whose rank is below count are active."""
    order = ops.argsort(smoothed, axis=-1, descending=True)
    rank = ops.argsort(order.astype(ms.float32), axis=-1)
    return (rank.astype(ms.float32) < count.expand_dims(-1)).astype(smoothed.dtype)


def pooling_weights(smoothed, active):
    """(B, S, T)."""
    weights = smoothed * active
    alone = (active.sum(axis=-1, keepdims=True) < 1.5).astype(weights.dtype)
    clean = weights * alone
    enough = clean.sum(axis=1, keepdims=True) >= MIN_CLEAN_FRAMES
    return ops.select(ops.broadcast_to(enough, clean.shape), clean, weights).swapaxes(1, 2)


class StatsPool(nn.Cell):
    """x (B, C, T), weights (B, S, T) -> (B, S, 2C)."""

    def __init__(self, eps=1e-4):
        super().__init__()
        self.eps = eps

    def construct(self, x, weights):
        x = x.expand_dims(1)
        weights = weights.expand_dims(2)
        total = weights.sum(axis=-1) + self.eps
        squares = (weights * weights).sum(axis=-1)
        mean = (x * weights).sum(axis=-1) / total
        centred = x - mean.expand_dims(-1)
        var = (centred * centred * weights).sum(axis=-1) / (total - squares / total + self.eps)
        return ops.cat((mean, ops.sqrt(var + self.eps)), axis=-1)


class SpeakerEncoder(nn.Cell):
    """Two windows per recording, the first at its start, the second at its end."""

    def __init__(self, dim, tdnn_dim, emb_dim, window):
        super().__init__()
        self.window = window
        self.tdnn1 = nn.Conv1d(dim, tdnn_dim, 5, pad_mode="pad", padding=2, group=4, has_bias=True)
        self.bn1 = nn.BatchNorm1d(tdnn_dim, eps=1e-3)
        self.act = nn.LeakyReLU(alpha=0.01)
        self.tdnn2 = nn.Conv1d(tdnn_dim, tdnn_dim, 3, pad_mode="pad", padding=3, dilation=3, has_bias=True)
        self.bn2 = nn.BatchNorm1d(tdnn_dim, eps=1e-5)
        self.pool = StatsPool()
        self.linear_emb = nn.Dense(2 * tdnn_dim, emb_dim)
        self.linear_frame = nn.Dense(tdnn_dim, emb_dim)
        self.score_scale = Parameter(Tensor(1.0, ms.float32), name="score_scale")
        # torch's window is periodic
        self.taper = Tensor(np.hamming(window + 1)[:-1].astype(np.float32))

    def tdnn(self, frames):
        x = frames.swapaxes(1, 2)
        x = self.act(self.bn1(self.tdnn1(x)))
        return self.act(self.bn2(self.tdnn2(x)))

    def construct(self, frames, weights, lengths):
        batch, steps, _ = frames.shape
        n_spk = weights.shape[1]
        by_time = weights.swapaxes(1, 2)
        last_start = ops.maximum(lengths - self.window, ops.zeros_like(lengths))
        score_sum = ops.zeros((batch, steps, n_spk), frames.dtype)
        taper_sum = ops.zeros((batch, steps, 1), frames.dtype)
        embs, masses = [], []
        for begin in (ops.zeros_like(lengths), last_start):
            place = begin.expand_dims(1) + ops.arange(self.window).astype(begin.dtype)
            inside = (place < lengths.expand_dims(1)).astype(frames.dtype).expand_dims(-1)
            place = ops.clamp(place, max=steps - 1)
            x = self.tdnn(take_rows(frames, place) * inside)
            w = (take_rows(by_time, place) * inside).swapaxes(1, 2)
            emb = self.linear_emb(self.pool(x, w))
            local = self.linear_frame(x.swapaxes(1, 2))
            cosine = ops.matmul(unit(local), unit(emb).swapaxes(1, 2)) * self.score_scale

            # overlap-add: a matrix of zeros and ones brings the window's frames to their places
            fade = self.taper.reshape(1, -1, 1) * inside
            scatter = (place.expand_dims(1) == ops.arange(steps).reshape(1, steps, 1)).astype(frames.dtype)
            score_sum = score_sum + ops.matmul(scatter, cosine * fade)
            taper_sum = taper_sum + ops.matmul(scatter, fade)
            embs.append(emb)
            masses.append(w.sum(axis=-1, keepdims=True))
        stitched = score_sum / ops.clamp(taper_sum, min=1e-8)
        mixed = sum(e * m for e, m in zip(embs, masses)) / ops.clamp(sum(masses), min=1e-3)
        return unit(mixed), stitched


class Diarizer(nn.Cell):
    def __init__(self, n_mels=11, context=3, factor=5, dim=36, heads=3, hidden=52, depth=3, max_len=40, n_spk=3,
                 most=2, threshold=0.5, median=5, window=18, tdnn_dim=28, emb_dim=20):
        super().__init__()
        self.factor = factor
        self.median = median
        self.frontend = FrontEnd(n_mels, context, factor, dim)
        self.encoder = Encoder(dim, heads, hidden, depth, max_len)
        self.eda = AttractorEDA(dim, n_spk, threshold)
        self.pit = PitAssigner(n_spk)
        self.powerset = PowersetHead(dim, n_spk, most)
        self.speaker = SpeakerEncoder(dim, tdnn_dim, emb_dim, window)

    def construct(self, feats, lengths, order, labels):
        x, lengths = self.frontend(feats, lengths)
        mask = length_mask(lengths, x.shape[1])
        keep = mask.astype(x.dtype).expand_dims(-1)
        frames = self.encoder(x, mask)

        attractors, chance, exist = self.eda(frames, lengths, order)
        logits = ops.matmul(frames, attractors.swapaxes(1, 2))
        probs = ops.sigmoid(logits) * exist.expand_dims(1)
        loss, perm = self.pit(probs, coarse_labels(labels, self.factor), mask)

        along = ops.tile(perm.expand_dims(1), (1, logits.shape[1], 1))
        logits = ops.gather_elements(logits, 2, along)
        activity = ops.gather_elements(probs, 2, along) * keep
        exist = ops.gather_elements(exist, 1, perm)

        posterior, marginal, count = self.powerset(frames, logits, exist)
        smoothed = running_median(marginal * keep, self.median)
        active = pick_speakers(smoothed, count) * keep
        embeddings, stitched = self.speaker(frames, pooling_weights(smoothed, active), lengths)
        embeddings = embeddings * exist.expand_dims(-1)
        posterior = posterior * keep
        return dict(exist_probs=chance, activity=activity, loss=loss, posterior=posterior, smoothed=smoothed,
                    active=active, embeddings=embeddings, stitched=stitched)


def build():
    """The net alone, for evaluation: weights and inputs come from the reference's dump."""
    net = Diarizer()
    net.set_train(False)
    return net
