"""MindSpore version of the multi-task feed ranker (LR + FM, CIN, DCN-Mix, HSTU blocks, DIN, AUGRU, MMoE)."""

import math

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import Normal, Uniform, initializer

SPARSE_FEATURES = (("user_id", 40), ("age", 9), ("city", 17), ("item_id", 60), ("cate_id", 13))
DENSE_STATS = ((2.1, 1.3), (3.4, 1.9), (0.9, 0.7))
NUM_TAGS = 21
SECONDS_PER_DAY = 24 * 60 * 60
MASK_VALUE = -float(2**32 - 1)


def recency_boundaries(count, first=60, last=30 * SECONDS_PER_DAY):
    return np.rint(np.geomspace(first, last, count)).astype(np.int64)


def decay_table(length, half_life):
    return np.exp2(-np.arange(length) / half_life).astype(np.float32)


def fm_interaction(fields):
    """Second order term of the factorization machine, (B, F, D) -> (B, 1)."""
    total = ops.sum(fields, dim=1)
    squares = ops.sum(ops.square(fields), dim=1)
    return ops.sum(ops.square(total) - squares, dim=-1, keepdim=True) / 2


class EmbeddingLayer(nn.Cell):
    def __init__(self, dim):
        super().__init__()
        self.tables = nn.CellList([nn.Embedding(size, dim, padding_idx=0) for _, size in SPARSE_FEATURES])
        self.tags = nn.Embedding(NUM_TAGS, dim, padding_idx=0)
        self.dense_factors = Parameter(initializer(Normal(0.4), (len(DENSE_STATS), dim), ms.float32))
        stats = np.array(DENSE_STATS, np.float32)
        self.mean = Tensor(stats[:, 0])
        self.std = Tensor(stats[:, 1])
        names = [name for name, _ in SPARSE_FEATURES]
        self.item_index, self.cate_index = names.index("item_id"), names.index("cate_id")

    def item_and_cate(self, items, cates):
        return ops.cat((self.tables[self.item_index](items), self.tables[self.cate_index](cates)), axis=-1)

    def pool_tags(self, tags):
        valid = (tags > 0).astype(ms.float32)
        total = ops.sum(self.tags(tags) * ops.expand_dims(valid, -1), dim=1)
        count = ops.sum(valid, dim=1, keepdim=True)
        return total / ops.maximum(count, Tensor(1.0, ms.float32))

    def scale_dense(self, dense):
        dense = ops.log1p(ops.relu(dense))
        dense = (dense - self.mean) / self.std
        return ops.clamp(dense, -3.0, 3.0)

    def construct(self, sparse, tags, dense):
        columns = ops.unstack(sparse, axis=1)
        features = [table(column) for table, column in zip(self.tables, columns)]
        features.append(self.pool_tags(tags))
        numeric = ops.expand_dims(self.scale_dense(dense), 2) * self.dense_factors
        return ops.cat((ops.stack(features, axis=1), numeric), axis=1)


class SENetLayer(nn.Cell):
    def __init__(self, num_fields, reduction=3):
        super().__init__()
        self.excite = nn.SequentialCell(
            nn.Dense(num_fields, num_fields // reduction), nn.ReLU(), nn.Dense(num_fields // reduction, num_fields), nn.ReLU()
        )

    def construct(self, fields):
        weights = self.excite(ops.mean(fields, -1))
        return fields + fields * weights[:, :, None]


class LinearPart(nn.Cell):
    def __init__(self):
        super().__init__()
        self.tables = nn.CellList([nn.Embedding(size, 1, padding_idx=0) for _, size in SPARSE_FEATURES])
        self.bias = Parameter(Tensor(np.zeros(1, np.float32)))

    def construct(self, sparse):
        logit = self.bias
        for i, table in enumerate(self.tables):
            logit = logit + table(sparse[:, i])
        return logit


class CompressedInteraction(nn.Cell):
    def __init__(self, num_fields, layer_sizes):
        super().__init__()
        self.layer_sizes = layer_sizes
        convs, width = [], num_fields
        for size in layer_sizes:
            convs.append(nn.Conv1d(width * num_fields, size, 1, pad_mode="valid", has_bias=True))
            width = size // 2
        self.convs = nn.CellList(convs)
        self.out_dim = sum(size // 2 for size in layer_sizes[:-1]) + layer_sizes[-1]
        self.fc = nn.Dense(self.out_dim, 1)

    def construct(self, x0):
        b, _, d = x0.shape
        state, pooled = x0, []
        for size, conv in zip(self.layer_sizes[:-1], self.convs):
            outer = ops.expand_dims(state, 2) * ops.expand_dims(x0, 1)
            feature = ops.relu(conv(outer.reshape(b, -1, d)))
            state = feature[:, : size // 2]
            pooled.append(ops.sum(feature[:, size // 2 :], dim=2))
        outer = ops.expand_dims(state, 2) * ops.expand_dims(x0, 1)
        pooled.append(ops.sum(ops.relu(self.convs[-1](outer.reshape(b, -1, d))), dim=2))
        pooled = ops.cat(pooled, axis=1)
        return pooled, self.fc(pooled)


class LowRankCross(nn.Cell):
    """All experts of a layer in one matmul; the gate is shared by the layers."""

    def __init__(self, dim, rank, num_experts, depth):
        super().__init__()
        self.depth = depth
        self.u = Parameter(initializer(Normal(0.1), (depth, num_experts, dim, rank), ms.float32))
        self.v = Parameter(initializer(Normal(0.1), (depth, num_experts, dim, rank), ms.float32))
        self.c = Parameter(initializer(Normal(0.1), (depth, num_experts, rank, rank), ms.float32))
        self.gate = nn.Dense(dim, num_experts)
        self.bias = Parameter(initializer(Normal(0.1), (depth, dim, 1), ms.float32))

    def construct(self, x0):
        x = x0
        for i in range(self.depth):
            gate = ops.softmax(self.gate(x), axis=-1)
            low = ops.tanh(ops.matmul(self.v[i].swapaxes(-1, -2), x[:, None, :, None]))
            low = ops.tanh(ops.matmul(self.c[i], low))
            high = (ops.matmul(self.u[i], low) + self.bias[i]).squeeze(-1)
            experts = x0[:, None] * high
            x = x + ops.sum(experts * gate[:, :, None], dim=1)
        return x


class HSTULayer(nn.Cell):
    def __init__(self, dim, num_heads, max_len, num_buckets):
        super().__init__()
        self.num_heads = num_heads
        self.num_buckets = num_buckets
        self.norm_in = nn.LayerNorm((dim,), epsilon=1e-6)
        self.uvqk = nn.Dense(dim, 4 * dim)
        self.time_weight = Parameter(initializer(Normal(0.02), (num_buckets + 1,), ms.float32))
        self.pos_weight = Parameter(initializer(Normal(0.02), (2 * max_len - 1,), ms.float32))
        self.norm_attn = nn.LayerNorm((dim,), epsilon=1e-6)
        self.out = nn.Dense(dim, dim)
        place = np.arange(max_len)
        offset = place[None, :] - place[:, None]
        self.pos_index = Tensor(offset + max_len - 1, ms.int32)

    def relative_bias(self, times, now):
        n = times.shape[1]
        following = ops.cat((times[:, 1:], now[:, None]), axis=1)
        gaps = ops.abs(following[:, :, None] - times[:, None, :]).astype(ms.float32)
        scaled = ops.log(ops.clamp(gaps, min=1.0)) / 0.301
        bucket = ops.clamp(ops.floor(scaled).astype(ms.int32), 0, self.num_buckets)
        by_time = ops.gather(self.time_weight, bucket, 0)
        by_place = ops.gather(self.pos_weight, self.pos_index[:n, :n], 0)
        return by_time + by_place

    def construct(self, x, times, now, mask):
        b, n, d = x.shape
        fused = ops.silu(self.uvqk(self.norm_in(x)))
        u, v, q, k = ops.chunk(fused, 4, axis=-1)
        v = v.reshape(b, n, self.num_heads, -1).swapaxes(1, 2)
        q = q.reshape(b, n, self.num_heads, -1).swapaxes(1, 2)
        k = k.reshape(b, n, self.num_heads, -1).transpose(0, 2, 3, 1)
        attn = ops.matmul(q, k) + self.relative_bias(times, now)[:, None]
        attn = ops.silu(attn) * mask[:, None] / n
        out = ops.matmul(attn, v).swapaxes(1, 2).reshape(b, n, d)
        return x + self.out(self.norm_attn(out) * u)


class Dice(nn.Cell):
    def __init__(self, num_features):
        super().__init__()
        self.alpha = Parameter(Tensor(np.zeros(num_features, np.float32)))
        self.bn = nn.BatchNorm1d(num_features, eps=1e-8)

    def construct(self, x):
        gate = ops.sigmoid(self.bn(x.reshape(-1, x.shape[-1]))).reshape(x.shape)
        return x * (gate + self.alpha * (1 - gate))


class AttentionUnit(nn.Cell):
    def __init__(self, dim, hidden):
        super().__init__()
        self.fc1, self.act1 = nn.Dense(4 * dim, hidden[0]), Dice(hidden[0])
        self.fc2, self.act2 = nn.Dense(hidden[0], hidden[1]), Dice(hidden[1])
        self.fc3 = nn.Dense(hidden[1], 1)

    def construct(self, target, keys, mask):
        target = ops.broadcast_to(target[:, None], keys.shape)
        x = ops.cat((target, keys, target - keys, target * keys), axis=-1)
        x = self.act2(self.fc2(self.act1(self.fc1(x))))
        scores = self.fc3(x).squeeze(-1)
        scores = ops.masked_fill(scores, ops.logical_not(mask), MASK_VALUE)
        return ops.softmax(scores, axis=1)


class AUGRU(nn.Cell):
    """Runs over the whole sequence; the projections of the inputs are taken out of the loop."""

    def __init__(self, input_size, hidden_size):
        super().__init__()
        self.hidden_size = hidden_size
        init = Uniform(1.0 / math.sqrt(hidden_size))
        self.x2h = nn.Dense(input_size, 3 * hidden_size, weight_init=init, bias_init=init)
        self.h2h = nn.Dense(hidden_size, 3 * hidden_size, weight_init=init, bias_init=init)

    def construct(self, x, att):
        h = ops.zeros((x.shape[0], self.hidden_size), x.dtype)
        gates = self.x2h(x)
        for t in range(x.shape[1]):
            x_r, x_z, x_n = ops.chunk(gates[:, t], 3, axis=-1)
            h_r, h_z, h_n = ops.chunk(self.h2h(h), 3, axis=-1)
            r, z = ops.sigmoid(x_r + h_r), ops.sigmoid(x_z + h_z)
            z = z * att[:, t : t + 1]
            n = ops.tanh(x_n + r * h_n)
            h = h + z * (n - h)
        return h


class InterestLayer(nn.Cell):
    def __init__(self, dim, max_len, num_recency=10, half_life=3.0, hidden=(24, 12)):
        super().__init__()
        self.recency = nn.Embedding(num_recency, dim)
        self.boundaries = Tensor(recency_boundaries(num_recency - 1))
        self.decay = Tensor(decay_table(max_len, half_life))
        self.attention = AttentionUnit(dim, hidden)
        self.augru = AUGRU(dim, dim)

    def construct(self, target, states, age, mask):
        bucket = (ops.expand_dims(age, -1) > self.boundaries).astype(ms.int32).sum(-1)
        scores = self.attention(target, states + self.recency(bucket), mask)
        evolved = self.augru(states, scores)
        pooled = ops.sum(ops.expand_dims(scores, -1) * states, dim=1)
        valid = mask.astype(ms.float32)
        newest = mask.astype(ms.int32).sum(1, keepdims=True) - 1
        rank = ops.clamp(newest - ops.arange(states.shape[1]).astype(ms.int32), min=0)
        weight = ops.gather(self.decay, rank, 0) * valid
        weight = weight / ops.clamp(ops.sum(weight, dim=1, keepdim=True), min=1e-6)
        aged = ops.matmul(ops.expand_dims(weight, 1), states).squeeze(1)
        return ops.cat((evolved, pooled, aged), axis=-1), scores


def dense_block(in_dim, units, out_dim=None):
    cells = []
    for size in units:
        cells.extend([nn.Dense(in_dim, size), nn.BatchNorm1d(size, eps=1e-5), nn.LeakyReLU(alpha=0.01)])
        in_dim = size
    if out_dim is not None:
        cells.append(nn.Dense(in_dim, out_dim))
    return nn.SequentialCell(cells)


class MultiTaskHead(nn.Cell):
    """Experts, gates of all tasks in one layer, and the towers."""

    def __init__(self, in_dim, num_tasks=2, num_experts=4, units=(32, 16), tower_units=(12,)):
        super().__init__()
        self.num_tasks, self.num_experts = num_tasks, num_experts
        self.experts = nn.CellList([dense_block(in_dim, units) for _ in range(num_experts)])
        self.gate = nn.Dense(in_dim, num_tasks * num_experts)
        self.towers = nn.CellList([dense_block(units[-1], tower_units, 1) for _ in range(num_tasks)])

    def construct(self, x):
        experts = ops.stack([expert(x) for expert in self.experts], axis=1)
        gates = self.gate(x).reshape(-1, self.num_tasks, self.num_experts)
        gates = ops.softmax(gates, axis=2)
        mixed = ops.matmul(gates, experts)
        return [tower(mixed[:, i]) for i, tower in enumerate(self.towers)]


class FeedRanker(nn.Cell):
    def __init__(self, embed_dim=8, max_len=14, num_heads=2, num_layers=2, num_buckets=40, sampling_rate=0.2, utc_offset=8):
        super().__init__()
        num_fields = len(SPARSE_FEATURES) + 1 + len(DENSE_STATS)
        dim = 2 * embed_dim
        width = num_fields * embed_dim + 3 * dim + 4
        self.seq_scale = dim**0.5
        self.sampling_rate = sampling_rate
        self.utc_offset = utc_offset
        self.embedding = EmbeddingLayer(embed_dim)
        self.senet = SENetLayer(num_fields)
        self.linear = LinearPart()
        self.cin = CompressedInteraction(num_fields, (10, 8))
        self.encoder = nn.CellList([HSTULayer(dim, num_heads, max_len, num_buckets) for _ in range(num_layers)])
        self.interest = InterestLayer(dim, max_len)
        self.cross = LowRankCross(width, 5, 3, 2)
        self.head = MultiTaskHead(width + self.cin.out_dim)
        self.frequency = Tensor(2 * np.pi / 24 * np.array([1, 2]), ms.float32)

    def time_of_day(self, now):
        hour = (now // 3600 + self.utc_offset) % 24
        angle = hour.astype(ms.float32)[:, None] * self.frequency
        return ops.cat((ops.sin(angle), ops.cos(angle)), axis=1)

    def encode(self, items, cates, times, now, valid):
        x = self.embedding.item_and_cate(items, cates) * self.seq_scale
        times = ops.where(valid, times, now[:, None])
        keep = valid.astype(ms.float32)
        n = items.shape[1]
        mask = Tensor(np.tril(np.ones((n, n), np.float32))) * keep[:, None, :]
        for layer in self.encoder:
            x = layer(x, times, now, mask)
            x = x * keep[:, :, None]
        return x, now[:, None] - times

    def construct(self, sparse, tags, dense, hist_items, hist_cates, hist_times, now):
        b = sparse.shape[0]
        fields = self.embedding(sparse, tags, dense)
        cin_out, cin_logit = self.cin(fields)
        wide = self.linear(sparse) + fm_interaction(fields) + cin_logit
        valid = hist_items > 0
        states, age = self.encode(hist_items, hist_cates, hist_times, now, valid)
        target = fields[:, 3:5].reshape(b, -1)
        interest, scores = self.interest(target, states, age, valid)
        flat = ops.cat((self.senet(fields).reshape(b, -1), interest, self.time_of_day(now)), axis=1)
        ctr, cvr = self.head(ops.cat((self.cross(flat), cin_out), axis=1))
        ctr = ctr + wide
        p = ops.sigmoid(ctr)
        p_ctr = self.sampling_rate * p / (self.sampling_rate * p + 1 - p)
        p_cvr = ops.sigmoid(cvr)
        probs = ops.cat((p_ctr, p_cvr, p_ctr * p_cvr), axis=1)
        return probs, ops.cat((ctr, cvr), axis=1), scores


def sample_inputs(batch=4, length=14, tags=5):
    """The same samples as the PyTorch net's."""
    rng = np.random.RandomState(11)
    sizes = (40, 9, 17, 60, 13)
    sparse = np.stack([rng.randint(1, size, batch) for size in sizes], axis=1).astype(np.int64)
    tag_ids = rng.randint(1, 21, (batch, tags)) * (np.arange(tags) < np.array([[3], [5], [1], [2]]))
    dense = np.floor(np.exp(rng.normal((2.1, 3.4, 0.9), (1.0, 1.2, 0.6), (batch, 3)))).astype(np.float32)
    dense[1, 0] = dense[3, 2] = -1.0
    real = np.arange(length) < np.array([[14], [9], [5], [11]])
    items = rng.randint(1, 60, (batch, length)) * real
    cates = rng.randint(1, 13, (batch, length)) * real
    now = 1_600_000_000 + rng.randint(0, 3_000_000, batch)
    gaps = np.floor(np.exp(rng.uniform(3.0, 12.0, (batch, length)))).astype(np.int64)
    age = np.cumsum((gaps * real)[:, ::-1], axis=1)[:, ::-1]
    times = (now[:, None] - age) * real
    integers = [x.astype(np.int64) for x in (items, cates, times, now)]
    return (sparse, tag_ids.astype(np.int64), dense, *integers)


def build():
    net = FeedRanker()
    net.set_train(False)
    return net, tuple(Tensor(np.ascontiguousarray(x)) for x in sample_inputs())
