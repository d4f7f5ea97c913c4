"""Clinical records and coded visits in MindSpore: the correct port."""

from __future__ import annotations

import math

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

VITAL_MEAN = np.array([86.2, 118.7, 19.4, 36.9, 96.8, 139.5, 1.9], np.float32)
VITAL_STD = np.array([17.8, 21.3, 5.6, 0.75, 2.9, 52.0, 1.4], np.float32)
PRIOR = np.array([-0.15, 0.22, -0.31, -0.08, 0.27, -0.4, -0.52], np.float32)
PRIOR_COUNT = 2.0
STAY = 48.0
GAP_DAYS = np.array([1, 3, 7, 14, 30, 90, 180, 365], np.float32)
HAZARD_DAYS = np.array([0, 7, 30, 60, 120, 240, 365, 730, 1095], np.float32)
NEG = -1e9


def zeros(name, *shape):
    return Parameter(Tensor(np.zeros(shape, np.float32)), name=name)


def inside(lengths, size):
    """(batch, size) of ones and zeros: ones before the end."""
    return (ops.arange(size).reshape(1, size) < lengths.reshape(-1, 1)).astype(ms.float32)


def turn_index(lengths, size):
    """Where each step is read from when the valid part is turned round."""
    steps, ends = ops.arange(size).reshape(1, size), lengths.reshape(-1, 1)
    return ops.select(steps < ends, ends - 1 - steps, ops.broadcast_to(steps, (ends.shape[0], size)))


def take_steps(x, index):
    if x.ndim == 3:
        index = ops.broadcast_to(index.expand_dims(-1), index.shape + (x.shape[-1],))
    return ops.gather_elements(x, 1, index)


class DecayCell(nn.Cell):
    """One GRU-D step."""
    def __init__(self, channels, hidden):
        super().__init__()
        self.hidden = hidden
        self.decay_x_weight = zeros("decay_x_weight", channels)
        self.decay_x_bias = zeros("decay_x_bias", channels)
        self.decay_h = nn.Dense(channels, hidden)
        self.gates = nn.Dense(2 * channels + hidden, 2 * hidden)
        self.candidate = nn.Dense(2 * channels + hidden, hidden)

    def construct(self, x, seen, since, last, mean, h):
        trust = ops.exp(-ops.relu(since * self.decay_x_weight + self.decay_x_bias))
        guess = mean + trust * (last - mean)
        x = ops.select(seen > 0, x, guess)
        h = h * ops.exp(-ops.relu(self.decay_h(since)))
        both = ops.sigmoid(self.gates(ops.concat((x, h, seen), axis=1)))
        update, reset = both[:, : self.hidden], both[:, self.hidden :]
        new = ops.tanh(self.candidate(ops.concat((x, reset * h, seen), axis=1)))
        return h + update * (new - h), x


class BiGRUD(nn.Cell):
    """Both directions over the record, and the mean of what they fill in."""
    def __init__(self, channels, hidden, out):
        super().__init__()
        self.hidden, self.prior = hidden, Tensor(PRIOR)
        self.forward_cell, self.backward_cell = DecayCell(channels, hidden), DecayCell(channels, hidden)
        self.dropout, self.merge = nn.Dropout(p=0.1), nn.Dense(2 * hidden, out)

    def since_seen(self, hours, seen):
        rows = [ops.zeros_like(seen[:, 0])]
        for i in range(1, hours.shape[1]):
            step = ops.abs(hours[:, i : i + 1] - hours[:, i - 1 : i]) / 6.0
            rows.append(step + rows[-1] * (1.0 - seen[:, i - 1]))
        return rows

    def sweep(self, cell, x, seen, hours, valid, mean):
        since = self.since_seen(hours, seen)
        h, last, filled = ops.zeros((x.shape[0], self.hidden), ms.float32), mean, []
        for i in range(x.shape[1]):
            new, full = cell(x[:, i], seen[:, i], since[i], last, mean, h)
            alive = valid[:, i : i + 1]
            h = ops.select(ops.broadcast_to(alive > 0, h.shape), new, h)
            last = ops.select(seen[:, i] > 0, x[:, i], last)
            filled.append(full * alive)
        return h, ops.stack(filled, axis=1)

    def construct(self, x, seen, hours, lengths):
        valid = inside(lengths, x.shape[1])
        turn = turn_index(lengths, x.shape[1])
        mean = ((x * seen).sum(axis=1) + PRIOR_COUNT * self.prior) / (seen.sum(axis=1) + PRIOR_COUNT)
        h_fwd, fwd = self.sweep(self.forward_cell, x, seen, hours, valid, mean)
        x_turned, seen_turned, hours_turned = take_steps(x, turn), take_steps(seen, turn), take_steps(hours, turn)
        h_bwd, bwd = self.sweep(self.backward_cell, x_turned, seen_turned, hours_turned, valid, mean)
        state = self.merge(self.dropout(ops.concat((h_fwd, h_bwd), axis=1)))
        return state, (fwd + take_steps(bwd, turn)) / 2


class TimeEmbedding(nn.Cell):
    def __init__(self, dim):
        super().__init__()
        self.linear = nn.Dense(1, 1)
        self.log_period, self.shift = zeros("log_period", dim - 1), zeros("shift", dim - 1)

    def construct(self, t):
        t = ops.expand_dims(t, -1)
        angle = t * (2 * math.pi * ops.exp(-self.log_period)) + self.shift
        return ops.concat((self.linear(t), ops.sin(angle)), axis=-1)


class TimeAttention(nn.Cell):
    """mTAND as two matrix products: the numerators and the denominators of all channels at once."""
    def __init__(self, channels, time_dim, heads, out):
        super().__init__()
        self.heads, self.width = heads, time_dim // heads
        self.embed = TimeEmbedding(time_dim)
        self.query, self.key = nn.Dense(time_dim, time_dim), nn.Dense(time_dim, time_dim)
        self.out = nn.Dense(heads * channels, out)

    def split(self, x):
        return x.reshape(x.shape[0], x.shape[1], self.heads, self.width).swapaxes(1, 2)

    def construct(self, refs, times, x, seen):
        b, _, channels = x.shape
        query = self.split(self.query(self.embed(refs.reshape(1, -1))))
        key = self.split(self.key(self.embed(times)))
        logits = ops.matmul(query, key.swapaxes(-1, -2)) / self.width**0.5
        weight = ops.exp(logits - logits.max(axis=-1, keepdims=True))
        seen = seen.expand_dims(1)
        total = ops.matmul(weight, seen)
        read = ops.matmul(weight, x.expand_dims(1) * seen) / ops.select(total > 0, total, ops.ones_like(total))
        return self.out(read.transpose(0, 2, 1, 3).reshape(b, refs.shape[0], self.heads * channels))


class ReferenceEncoder(nn.Cell):
    def __init__(self, hidden, out):
        super().__init__()
        self.conv1 = nn.Conv1d(hidden, hidden, 3, pad_mode="pad", padding=2, dilation=2, group=4, has_bias=True)
        self.norm1 = nn.GroupNorm(5, hidden, eps=1e-5)
        self.act1 = nn.LeakyReLU(alpha=0.1)
        self.conv2 = nn.Conv1d(hidden, out, 3, stride=2, pad_mode="pad", padding=1, has_bias=True)
        self.norm2 = nn.BatchNorm1d(out, eps=1e-3)
        self.act2 = nn.ELU()

    def construct(self, x, support):
        x = (x * support.expand_dims(-1)).swapaxes(1, 2)
        y = self.norm1(self.conv1(x).expand_dims(-1)).squeeze(-1)
        x = self.act2(self.norm2(self.conv2(x + self.act1(y))))
        support = support[:, ::2].expand_dims(1)
        return (x * support).sum(axis=2) / ops.clamp(support.sum(axis=2), min=1.0)


class CodeTable(nn.Cell):
    def __init__(self, num_codes, num_groups, dim):
        super().__init__()
        self.code = nn.Embedding(num_codes, dim, padding_idx=0)
        self.group = nn.Embedding(num_groups, dim, padding_idx=0)
        c = np.arange(1, num_codes)
        self.group_of = Tensor(np.concatenate([[0], 1 + (c * 5 + c // 7) % (num_groups - 1)]).astype(np.int32))
        self.every = Tensor(np.arange(num_codes, dtype=np.int32))

    def construct(self, codes):
        return self.code(codes) + self.group(ops.gather(self.group_of, codes, 0))

    def table(self):
        return self.construct(self.every)


class VisitSetPool(nn.Cell):
    """The set of a visit's codes: attention, mean weighted by rarity, maximum."""
    def __init__(self, num_codes, code_dim, hidden, dim):
        super().__init__()
        self.phi = nn.SequentialCell(nn.Dense(code_dim, hidden), nn.LeakyReLU(alpha=0.1), nn.Dense(hidden, hidden))
        self.score, self.score_out = nn.Dense(code_dim, hidden), nn.Dense(hidden, 1, has_bias=False)
        self.rho = nn.Dense(3 * hidden, dim)
        self.norm = nn.LayerNorm((dim,), epsilon=1e-5)
        prevalence = 3200.0 / np.arange(1, num_codes) ** 1.3
        idf = np.log(5001.0 / (prevalence + 1.0)) + 1.0
        self.idf = Tensor(np.concatenate([[0.0], idf]).astype(np.float32))

    def unique(self, codes):
        flags = []
        for j in range(codes.shape[-1]):
            flag = codes[..., j] != 0
            for i in range(j):
                flag = ops.logical_and(flag, codes[..., i] != codes[..., j])
            flags.append(flag)
        return ops.stack(flags, axis=-1).astype(ms.float32)

    def construct(self, vectors, codes):
        keep = self.unique(codes)
        mask = keep.expand_dims(-1)
        hidden = self.phi(vectors)
        score = self.score_out(ops.tanh(self.score(vectors)))
        attn = ops.softmax(score + (1 - mask) * NEG, axis=2) * mask
        attended = (attn * hidden).sum(axis=2)
        rarity = ops.gather(self.idf, codes, 0).expand_dims(-1) * mask
        mean = (hidden * rarity).sum(axis=2) / ops.clamp(rarity.sum(axis=2), min=1e-6)
        top = ops.masked_fill(hidden, mask == 0, NEG).max(axis=2) * mask.max(axis=2)
        return self.norm(self.rho(ops.concat((attended, mean, top), axis=-1)))


class VisitEmbedding(nn.Cell):
    def __init__(self, dim, age_rows, max_visits):
        super().__init__()
        self.dim, self.age_rows = dim, age_rows
        self.age = nn.Embedding(age_rows, dim)
        self.gap, self.place = nn.Embedding(len(GAP_DAYS) + 1, dim), nn.Embedding(max_visits, dim)
        self.edges = Tensor(GAP_DAYS)
        self.norm = nn.LayerNorm((dim,), epsilon=1e-6)
        self.dropout = nn.Dropout(p=0.1)

    def age_vector(self, days):
        row = ops.clamp(days / 365.25 / 5.0, 0.0, self.age_rows - 1 - 1e-4)
        below = ops.floor(row)
        share, below = (row - below).expand_dims(-1), below.astype(ms.int32)
        return ops.lerp(self.age(below), self.age(below + 1), ops.tile(share, (1, 1, self.dim)))

    def gap_vector(self, days):
        since = ops.concat((ops.zeros_like(days[:, :1]), days[:, 1:] - days[:, :-1]), axis=1)
        bucket = (ops.relu(since).expand_dims(-1) >= self.edges).astype(ms.int32).sum(axis=-1)
        return self.gap(bucket)

    def construct(self, x, days, lengths):
        place = lengths.reshape(-1, 1) - 1 - ops.arange(x.shape[1]).reshape(1, -1)
        place = ops.maximum(place, ops.zeros_like(place))
        x = x + self.age_vector(days) + self.gap_vector(days) + self.place(place.astype(ms.int32))
        return self.dropout(self.norm(x))


class VisitAttention(nn.Cell):
    def __init__(self, dim, heads):
        super().__init__()
        self.dim, self.heads, self.head_dim = dim, heads, dim // heads
        self.in_proj, self.out_proj = nn.Dense(dim, 3 * dim), nn.Dense(dim, dim)
        self.rate = zeros("rate", heads)
        self.dropout = nn.Dropout(p=0.1)

    def construct(self, x, log_apart, blocked):
        b, n, _ = x.shape
        qkv = self.in_proj(x).reshape(b, n, 3, self.heads, self.head_dim).transpose(2, 0, 3, 1, 4)
        scores = ops.matmul(qkv[0] / math.sqrt(self.head_dim), qkv[1].swapaxes(2, 3))
        rate = ops.log1p(ops.exp(self.rate)).reshape(1, self.heads, 1, 1)
        scores = scores - rate * log_apart.expand_dims(1)
        scores = ops.masked_fill(scores, blocked.expand_dims(1), NEG)
        mixed = ops.matmul(self.dropout(ops.softmax(scores, axis=-1)), qkv[2])
        return self.out_proj(mixed.swapaxes(1, 2).reshape(b, n, self.dim))


class VisitBlock(nn.Cell):
    def __init__(self, dim, heads, ffn):
        super().__init__()
        self.norm1 = nn.LayerNorm((dim,), epsilon=1e-6)
        self.attn = VisitAttention(dim, heads)
        self.norm2 = nn.LayerNorm((dim,), epsilon=1e-6)
        self.fc1, self.act, self.fc2 = nn.Dense(dim, ffn), nn.GELU(approximate=False), nn.Dense(ffn, dim)
        self.dropout = nn.Dropout(p=0.1)

    def construct(self, x, log_apart, blocked):
        x = x + self.dropout(self.attn(self.norm1(x), log_apart, blocked))
        return x + self.dropout(self.fc2(self.act(self.fc1(self.norm2(x)))))


class MortalityHead(nn.Cell):
    def __init__(self, dim, hidden):
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Dense(3 * dim, hidden), nn.SiLU(), nn.Dense(hidden, 1)

    def construct(self, visits, lengths, context):
        size = visits.shape[1]
        is_last = (ops.arange(size).reshape(1, size) == lengths.reshape(-1, 1) - 1).astype(ms.float32)
        last = (visits * is_last.expand_dims(-1)).sum(axis=1)
        present = inside(lengths, size).expand_dims(-1)
        mean = (visits * present).sum(axis=1) / present.sum(axis=1)
        summary = ops.concat((last, mean, context), axis=1)
        return self.fc2(self.act(self.fc1(summary)))[:, 0], summary


class NextCodeHead(nn.Cell):
    def __init__(self, dim, code_dim, num_codes):
        super().__init__()
        self.scale, self.proj = code_dim**0.5, nn.Dense(dim, code_dim)
        self.bias = zeros("bias", num_codes)

    def construct(self, visits, table):
        q = self.proj(visits)
        q = q / ops.clamp(ops.sqrt((q * q).sum(axis=-1, keepdims=True)), min=1e-12)
        return (ops.matmul(q, table.T) * self.scale + self.bias)[:, :, 1:]


class HazardHead(nn.Cell):
    def __init__(self, dim, bin_dim, hidden):
        super().__init__()
        self.width = Tensor(np.diff(HAZARD_DAYS) / 365.0)
        self.count = len(HAZARD_DAYS) - 1
        self.bins = nn.Embedding(self.count, bin_dim)
        self.fc1, self.fc2 = nn.Dense(3 * dim + bin_dim, hidden), nn.Dense(hidden, 1)

    def construct(self, summary):
        b = summary.shape[0]
        bins = self.bins(ops.arange(self.count).astype(ms.int32))
        joint = ops.concat((ops.tile(summary.expand_dims(1), (1, self.count, 1)), ops.tile(bins, (b, 1, 1))), axis=-1)
        rate = ops.log1p(ops.exp(self.fc2(ops.tanh(self.fc1(joint))).squeeze(-1)))
        load = rate * self.width
        alive = ops.exp(-ops.cumsum(load, 1))
        start = ops.concat((ops.ones((b, 1), ms.float32), alive[:, :-1]), axis=1)
        return 1 - ops.exp(-load), alive, ((start - alive) / rate).sum(axis=1)


class RecordNet(nn.Cell):
    def __init__(self, channels=7, dim=24, num_codes=37, code_dim=16):
        super().__init__()
        self.mean, self.std = Tensor(VITAL_MEAN), Tensor(VITAL_STD)
        self.refs = Tensor(np.linspace(0, STAY, 11).astype(np.float32))
        self.grud = BiGRUD(channels, 18, dim)
        self.mtand = TimeAttention(channels, 12, 2, 20)
        self.ref_encoder, self.ref_proj = ReferenceEncoder(20, 22), nn.Dense(22, dim)
        self.gate = nn.Dense(2 * dim, dim)
        self.codes = CodeTable(num_codes, 9, code_dim)
        self.set_pool = VisitSetPool(num_codes, code_dim, 21, dim)
        self.visit_embed = VisitEmbedding(dim, 20, 10)
        self.blocks = nn.CellList([VisitBlock(dim, 4, 50) for _ in range(2)])
        self.norm = nn.LayerNorm((dim,), epsilon=1e-6)
        self.mortality = MortalityHead(dim, 26)
        self.next_codes = NextCodeHead(dim, code_dim, num_codes)
        self.hazard = HazardHead(dim, 5, 26)

    def stay(self, values, observed, times, lengths):
        valid = inside(lengths, values.shape[1]).expand_dims(-1)
        seen = observed * valid
        x = ops.clamp((values - self.mean) / self.std, -4.0, 4.0) * seen
        state, filled = self.grud(x, seen, times, lengths)
        imputed = (filled * self.std + self.mean) * valid
        reached = ops.gather_elements(times, 1, lengths.reshape(-1, 1) - 1)
        support = (self.refs.reshape(1, -1) <= reached).astype(ms.float32)
        at_refs = self.mtand(self.refs / STAY, times / STAY, x, seen)
        series = self.ref_proj(self.ref_encoder(at_refs, support))
        gate = ops.sigmoid(self.gate(ops.concat((state, series), axis=1)))
        return series + gate * (state - series), imputed

    def token_masks(self, days, lengths):
        b, n = days.shape
        months = ops.pad(ops.abs(days.reshape(b, n, 1) - days.reshape(b, 1, n)) / 30.0, (1, 0, 1, 0))
        later = Tensor(np.triu(np.ones((1, n + 1, n + 1), np.float32), 1))
        absent = 1 - inside(lengths + 1, n + 1)
        return ops.log1p(months), (later + absent.reshape(b, 1, n + 1)) > 0

    def construct(self, values, observed, times, record_lengths, codes, days, visit_lengths):
        context, imputed = self.stay(values, observed, times, record_lengths)
        visits = self.visit_embed(self.set_pool(self.codes(codes), codes), days, visit_lengths)
        x = ops.concat((context.expand_dims(1), visits), axis=1)
        log_apart, blocked = self.token_masks(days, visit_lengths)
        for block in self.blocks:
            x = block(x, log_apart, blocked)
        x = self.norm(x)
        visits = x[:, 1:]
        mortality, summary = self.mortality(visits, visit_lengths, x[:, 0])
        logits = self.next_codes(visits, self.codes.table())
        logits = logits * inside(visit_lengths, logits.shape[1]).expand_dims(-1)
        hazard, survival, rmst = self.hazard(summary)
        return mortality, logits, hazard, survival, rmst, imputed


def build():
    net = RecordNet()
    net.set_train(False)
    return net
