"""IntentBasket for MindSpore (PYNATIVE): next-basket recommendation with interval attention and interest routing."""
import math

import numpy as np
import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import Normal

N_ITEMS, N_CATS, N_USERS = 67, 13, 19
MAX_LEN, BASKET, N_CAND = 11, 4, 9
DIM, HEADS, INTERESTS = 24, 3, 5
MASKED = -2.0 ** 15 + 1


def masked_softmax(logit, keep, axis):
    return ops.softmax(ops.masked_fill(logit, ops.logical_not(keep), MASKED), axis)


def squash(x, eps=1e-8):
    norm2 = ops.square(x).sum(axis=-1, keepdims=True)
    return x * (norm2 / (1.0 + norm2)) * ops.rsqrt(norm2 + eps)


def l2_normalize(x, eps=1e-12):
    norm = ops.sqrt(ops.square(x).sum(axis=-1, keepdims=True))
    return x / ops.maximum(norm, Tensor(eps, x.dtype))


def relative_buckets(max_len, n_buckets, n_exact):
    """Bucket of every (query, key) distance: exact when near, logarithmic when far."""
    pos = np.arange(max_len)
    dist = np.maximum(pos[:, None] - pos[None, :], 0)
    ratio = np.log(np.maximum(dist, 1) / n_exact) / np.log(max_len / n_exact)
    far = n_exact + np.trunc(ratio * (n_buckets - n_exact)).astype(np.int64)
    far = np.minimum(far, n_buckets - 1)
    return np.where(dist < n_exact, dist, far).astype(np.int32)


def log_uniform_logq(n_items, tries):
    """log of the expected count of every item under the log-uniform sampler; item 0 is padding."""
    rank = np.arange(n_items - 1, dtype=np.float64)
    p = np.log((rank + 2) / (rank + 1)) / np.log(n_items)
    expected = -np.expm1(tries * np.log1p(-p))
    return np.concatenate([np.zeros(1), np.log(expected)]).astype(np.float32)


class IntervalMatrix(nn.Cell):
    """Time gaps between baskets in units of the user's shortest gap."""

    def __init__(self, span):
        super().__init__()
        self.span = span

    def construct(self, times, mask):
        gap = ops.abs(times.expand_dims(2) - times.expand_dims(1))
        pair = ops.logical_and(mask.expand_dims(2), mask.expand_dims(1))
        usable = ops.logical_and(gap > 0, pair)
        unit = ops.where(usable, gap, ops.full_like(gap, 10 ** 6)).min(axis=(1, 2), keepdims=True)
        steps = ops.floor_div(gap, unit)
        return ops.minimum(steps, Tensor(self.span, steps.dtype)).astype(ms.int32)


class ItemEncoder(nn.Cell):
    def __init__(self, dim, cat_dim=10):
        super().__init__()
        self.item_table = nn.Embedding(N_ITEMS, dim, embedding_table=Normal(0.02), padding_idx=0)
        self.cat_table = nn.Embedding(N_CATS, cat_dim, embedding_table=Normal(0.02), padding_idx=0)
        self.dense = nn.Dense(dim + cat_dim, dim)
        ids = np.arange(N_ITEMS)
        item2cat = 1 + (ids * 5 + ids // 7) % (N_CATS - 1)
        item2cat[0] = 0
        self.item2cat = Tensor(item2cat, ms.int32)
        self.scale = math.sqrt(dim)

    def construct(self, ids):
        item = self.item_table(ids)
        cat = self.cat_table(self.item2cat[ids])
        mixed = self.dense(ops.cat((item, cat), axis=-1))
        return ops.tanh(mixed) + 0.25 * self.scale * item


class BasketPool(nn.Cell):
    def __init__(self, dim):
        super().__init__()
        self.qty = Parameter(Tensor(np.zeros(dim), ms.float32), name="qty")
        self.scorer = nn.SequentialCell(
            nn.Dense(dim, 16),
            nn.LeakyReLU(alpha=0.01),
            nn.Dense(16, 1, has_bias=False),
        )
        self.gate = nn.Dense(3 * dim, dim)
        self.norm = nn.LayerNorm((dim,), epsilon=1e-6)

    def construct(self, x, qty, item_mask):
        x = x + ops.log1p(qty).expand_dims(-1) * self.qty
        keep = item_mask.astype(x.dtype)
        weight = masked_softmax(self.scorer(x).squeeze(-1), item_mask, axis=2) * keep
        att = (weight.expand_dims(-1) * x).sum(axis=2)
        count = ops.maximum(keep.sum(axis=2, keepdims=True), Tensor(1.0, x.dtype))
        mean = (x * keep.expand_dims(-1)).sum(axis=2) / count
        top = ops.masked_fill(x, ops.logical_not(item_mask).expand_dims(-1), MASKED).max(axis=2)
        filled = item_mask.any(axis=2, keep_dims=True)
        top = ops.where(filled, top, ops.zeros_like(top))
        gate = ops.sigmoid(self.gate(ops.cat((att, mean, top), axis=-1)))
        return self.norm(mean + gate * (att - mean))


class IntervalAttention(nn.Cell):
    def __init__(self, dim, num_heads, max_len, span, n_buckets=7, n_exact=3):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.query = nn.Dense(dim, dim)
        self.key_value = nn.Dense(dim, 2 * dim)
        self.interval_key = nn.Embedding(span + 1, dim)
        self.interval_value = nn.Embedding(span + 1, dim)
        self.position_bias = nn.Embedding(n_buckets, num_heads)
        self.proj = nn.Dense(dim, dim, has_bias=False)
        self.buckets = Tensor(relative_buckets(max_len, n_buckets, n_exact))
        self.past = Tensor(np.tril(np.ones((max_len, max_len), np.bool_)))

    def construct(self, x, steps, mask):
        bs, n, dim = x.shape
        heads, hd = self.num_heads, self.head_dim
        q = self.query(x).reshape(bs, n, heads, hd).transpose(0, 2, 1, 3)
        kv = self.key_value(x).reshape(bs, n, 2, heads, hd).transpose(2, 0, 3, 1, 4)
        k, v = kv[0], kv[1]
        rel_k = self.interval_key(steps).reshape(bs, n, n, heads, hd).transpose(0, 3, 1, 2, 4)
        rel_v = self.interval_value(steps).reshape(bs, n, n, heads, hd).transpose(0, 3, 1, 2, 4)

        content = ops.matmul(q, k.swapaxes(-1, -2))
        timing = ops.matmul(rel_k, q.expand_dims(-1)).squeeze(-1)
        score = (content + timing) / math.sqrt(hd)
        score = score + self.position_bias(self.buckets[:n, :n]).transpose(2, 0, 1)
        visible = ops.logical_and(self.past[:n, :n], mask.reshape(bs, 1, 1, n))
        attn = masked_softmax(score, visible, axis=-1)

        ctx = ops.matmul(attn, v) + ops.matmul(attn.expand_dims(3), rel_v).squeeze(3)
        return self.proj(ctx.transpose(0, 2, 1, 3).reshape(bs, n, dim))


class CausalMixer(nn.Cell):
    def __init__(self, dim, kernel=3, dilation=2):
        super().__init__()
        self.conv = nn.Conv1d(dim, 2 * dim, kernel, pad_mode="pad", padding=(kernel - 1) * dilation,
                              dilation=dilation, group=2, has_bias=True)
        self.fc = nn.Dense(dim, dim)

    def construct(self, x):
        n = x.shape[1]
        y = self.conv(x.transpose(0, 2, 1))[:, :, :n]
        value, gate = ops.split(y, y.shape[1] // 2, axis=1)
        y = value * ops.sigmoid(gate)
        return self.fc(y.transpose(0, 2, 1))


class FeedForward(nn.Cell):
    def __init__(self, dim, hidden):
        super().__init__()
        self.fc1 = nn.Dense(dim, hidden)
        self.act = nn.GELU(approximate=False)
        self.fc2 = nn.Dense(hidden, dim)

    def construct(self, x):
        return self.fc2(self.act(self.fc1(x)))


class EncoderLayer(nn.Cell):
    def __init__(self, dim, num_heads, max_len, span):
        super().__init__()
        self.attn_norm = nn.LayerNorm((dim,), epsilon=1e-5)
        self.attn = IntervalAttention(dim, num_heads, max_len, span)
        self.mixer_norm = nn.LayerNorm((dim,), epsilon=1e-5)
        self.mixer = CausalMixer(dim)
        self.ffn_norm = nn.LayerNorm((dim,), epsilon=1e-5)
        self.ffn = FeedForward(dim, 40)

    def construct(self, x, steps, mask):
        keep = mask.expand_dims(-1).astype(x.dtype)
        query = self.attn_norm(x)
        x = (query + self.attn(query, steps, mask)) * keep
        x = x + self.mixer(self.mixer_norm(x))
        x = x + self.ffn(self.ffn_norm(x))
        return x * keep


class Dice(nn.Cell):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.BatchNorm1d(dim, eps=1e-2, momentum=0.99)
        self.alpha = Parameter(Tensor(np.zeros(dim), ms.float32), name="alpha")

    def construct(self, x):
        p = ops.sigmoid(self.norm(x.reshape(-1, x.shape[-1]))).reshape(x.shape)
        return x * (p + (1.0 - p) * self.alpha)


class TargetAttention(nn.Cell):
    def __init__(self, dim, hidden=20):
        super().__init__()
        self.hidden = nn.Dense(4 * dim, hidden)
        self.dice = Dice(hidden)
        self.logit = nn.Dense(hidden, 1)
        self.decay = Parameter(Tensor(np.zeros(1), ms.float32), name="decay")

    def construct(self, query, keys, times, mask):
        bs, c, dim = query.shape
        n = keys.shape[1]
        q = ops.broadcast_to(query.expand_dims(2), (bs, c, n, dim))
        k = ops.broadcast_to(keys.expand_dims(1), (bs, c, n, dim))
        act = self.dice(self.hidden(ops.cat((q, k, q - k, q * k), axis=-1)))
        logit = self.logit(act).squeeze(-1)

        newest = ops.masked_fill(times, ops.logical_not(mask), 0).max(axis=1, keepdims=True)
        age = ops.relu((newest - times).astype(ms.float32)) / 24.0
        rate = ops.log1p(ops.exp(self.decay))
        logit = logit - rate * ops.log1p(age).expand_dims(1)
        weight = masked_softmax(logit, mask.expand_dims(1), axis=-1)
        return ops.bmm(weight, keys), weight


class InterestRouting(nn.Cell):
    def __init__(self, dim, n_interests, max_len, iters=3):
        super().__init__()
        self.n_interests = n_interests
        self.iters = iters
        self.bilinear = nn.Dense(dim, n_interests * dim, has_bias=False)
        self.fc = nn.Dense(dim, dim)
        self.norm = nn.LayerNorm((dim,), epsilon=1e-3)
        k = np.arange(n_interests, dtype=np.float32)[:, None]
        t = np.arange(max_len, dtype=np.float32)[None, :]
        start = np.sin((k + 1) * (t + 1) * 0.7) + 0.5 * np.cos(t * 0.3 - k)
        self.start = Tensor(start, ms.float32)

    def construct(self, x, mask):
        bs, n, dim = x.shape
        votes = self.bilinear(x).reshape(bs, n, self.n_interests, dim).transpose(0, 2, 1, 3)
        logit = ops.broadcast_to(self.start[:, :n], (bs, self.n_interests, n))
        keep = mask.expand_dims(1).astype(x.dtype)
        caps = None
        for i in range(self.iters):
            if i > 0:
                logit = logit + ops.matmul(votes, caps.expand_dims(-1)).squeeze(-1)
            weight = ops.softmax(logit, axis=1) * keep
            caps = squash(ops.matmul(weight.expand_dims(2), votes).squeeze(2))
        return self.norm(caps + 0.1 * ops.relu(self.fc(caps)))


class LabelAwareAttention(nn.Cell):
    def __init__(self, power=2.0):
        super().__init__()
        self.power = power

    def construct(self, caps, query):
        sim = ops.bmm(query, caps.swapaxes(1, 2)) / math.sqrt(query.shape[-1])
        weight = ops.softmax(ops.sign(sim) * ops.pow(ops.abs(sim), self.power), axis=-1)
        return ops.bmm(weight, caps)


class FeatureCross(nn.Cell):
    def __init__(self, dim, n_dense=6, n_fields=6, small=7, rank=9, depth=2):
        super().__init__()
        self.user_table = nn.Embedding(N_USERS, dim)
        self.hour_table = nn.Embedding(8, dim)
        self.weekday_table = nn.Embedding(7, dim)
        self.dense_fc = nn.Dense(n_dense, dim)
        self.pair_fc = nn.Dense(dim, 12, activation="relu")
        self.pair_score = nn.Dense(12, 1, has_bias=False)
        self.reduce = nn.Dense(dim, small)
        width = n_fields * small
        self.down = nn.CellList([nn.Dense(width, rank, has_bias=False) for _ in range(depth)])
        self.up = nn.CellList([nn.Dense(rank, width) for _ in range(depth)])
        self.out = nn.Dense(width + dim, dim)
        row, col = np.triu_indices(n_fields, k=1)
        self.row = Tensor(row, ms.int32)
        self.col = Tensor(col, ms.int32)

    def construct(self, user, dense, last_time, last, avg):
        hour = ops.floor_div(last_time % 24, 3)
        weekday = (ops.floor_div(last_time, 24) + 4) % 7
        centred = dense - dense.mean(axis=1, keep_dims=True)
        dense = centred / (dense.std(axis=1, ddof=1, keepdims=True) + 1e-6)
        fields = ops.stack((self.user_table(user), self.hour_table(hour), self.weekday_table(weekday),
                            self.dense_fc(dense), last, avg), axis=1)

        pairs = ops.gather(fields, self.row, 1) * ops.gather(fields, self.col, 1)
        weight = ops.softmax(self.pair_score(self.pair_fc(pairs)), axis=1)
        second = (weight * pairs).sum(axis=1)

        x0 = self.reduce(fields).reshape(fields.shape[0], -1)
        x = x0
        for down, up in zip(self.down, self.up):
            x = x + x0 * up(ops.tanh(down(x)))
        return self.out(ops.cat((x, second), axis=-1))


class RepeatHead(nn.Cell):
    def __init__(self, dim):
        super().__init__()
        self.item_fc = nn.Dense(dim, 14)
        self.state_fc = nn.Dense(dim, 14, has_bias=False)
        self.score = nn.Dense(14, 1, has_bias=False)
        self.mode = nn.Dense(dim, 2)

    def construct(self, x, item_ids, basket_weight, state):
        bs, n, m, _ = x.shape
        hidden = ops.tanh(self.item_fc(x) + self.state_fc(state).reshape(bs, 1, 1, -1))
        prior = ops.log(basket_weight.mean(axis=1) + 1e-6)
        logit = self.score(hidden).squeeze(-1) + prior.expand_dims(-1)
        ids = item_ids.reshape(bs, n * m)
        prob = masked_softmax(logit.reshape(bs, n * m), ids != 0, axis=-1)
        vocab = ops.zeros((bs, N_ITEMS), x.dtype)
        vocab = ops.tensor_scatter_elements(vocab, ids, prob, axis=1, reduction="add")
        return vocab, ops.softmax(self.mode(state), axis=-1)


class ScaledELU(nn.Cell):
    """nn.ELU takes alpha 1.0 only."""

    def __init__(self, alpha):
        super().__init__()
        self.alpha = alpha

    def construct(self, x):
        return ops.where(x > 0, x, self.alpha * ops.elu(x))


class SampledScorer(nn.Cell):
    def __init__(self, dim, tries=20):
        super().__init__()
        self.fuse = nn.SequentialCell(nn.Dense(4 * dim, 32), ScaledELU(0.5), nn.Dense(32, dim))
        self.log_temp = Parameter(Tensor(0.0, ms.float32), name="log_temp")
        self.log_q = Tensor(log_uniform_logq(N_ITEMS, tries))

    def construct(self, interest, local, cross, state, cand_vec, cand_ids):
        bs, c, _ = cand_vec.shape
        ctx = ops.cat((cross, state), axis=-1)
        ctx = ops.broadcast_to(ctx.expand_dims(1), (bs, c, ctx.shape[-1]))
        user = l2_normalize(self.fuse(ops.cat((interest, local, ctx), axis=-1)))
        item = l2_normalize(cand_vec)
        temp = ops.clamp(ops.exp(self.log_temp), 0.05, 2.0)
        score = (user * item).sum(axis=-1) / temp - self.log_q[cand_ids]
        # accidental hits: a sampled negative that is the positive
        negative = ops.arange(c) > 0
        hit = ops.logical_and(cand_ids == cand_ids[:, :1], negative)
        return ops.masked_fill(score, hit, MASKED), item


class GreedyComposer(nn.Cell):
    """Maximal marginal relevance."""

    def __init__(self, picks, trade):
        super().__init__()
        self.picks = picks
        self.trade = trade

    def construct(self, utility, item):
        bs, c = utility.shape
        sim = ops.bmm(item, item.swapaxes(1, 2))
        rows = ops.arange(bs)
        redundancy = ops.zeros_like(utility)
        taken = ops.zeros((bs, c), ms.bool_)
        gains = []
        for _ in range(self.picks):
            value = self.trade * utility - (1.0 - self.trade) * redundancy
            value = ops.masked_fill(value, taken, MASKED)
            idx = value.argmax(axis=1)
            gains.append(value[rows, idx])
            taken = ops.logical_or(taken, ops.arange(c) == idx.expand_dims(1))
            redundancy = ops.maximum(redundancy, sim[rows, idx])
        return ops.stack(gains, axis=1)


class IntentBasket(nn.Cell):
    def __init__(self, dim=DIM, num_heads=HEADS, span=16, depth=2, picks=4, trade=0.6):
        super().__init__()
        self.intervals = IntervalMatrix(span)
        self.item_encoder = ItemEncoder(dim)
        self.basket_pool = BasketPool(dim)
        self.position = nn.Embedding(MAX_LEN + 1, dim)
        self.layers = nn.CellList([EncoderLayer(dim, num_heads, MAX_LEN, span) for _ in range(depth)])
        self.target = TargetAttention(dim)
        self.routing = InterestRouting(dim, INTERESTS, MAX_LEN)
        self.label_attn = LabelAwareAttention()
        self.cross = FeatureCross(dim)
        self.repeat = RepeatHead(dim)
        self.scorer = SampledScorer(dim)
        self.composer = GreedyComposer(picks, trade)

    def construct(self, item_ids, qty, times, user, dense, cand_ids):
        bs, n, _ = item_ids.shape
        item_mask = item_ids != 0
        mask = item_mask.any(axis=2)
        keep = mask.expand_dims(-1).astype(ms.float32)
        length = mask.astype(ms.int32).sum(axis=1)

        vec = self.item_encoder(item_ids)
        basket = self.basket_pool(vec, qty, item_mask)
        age = ops.maximum(length.expand_dims(1) - ops.arange(n).astype(ms.int32), Tensor(0, ms.int32))
        x = (basket + self.position(age)) * keep

        steps = self.intervals(times, mask)
        for layer in self.layers:
            x = layer(x, steps, mask)

        rows = ops.arange(bs)
        last = length - 1
        state = x[rows, last]
        last_time = times[rows, last]
        avg = (basket * keep).sum(axis=1) / length.expand_dims(1)

        cand = self.item_encoder(cand_ids)
        local, weight = self.target(cand, x, times, mask)
        interest = self.label_attn(self.routing(x, mask), cand)
        cross = self.cross(user, dense, last_time, state, avg)
        score, item = self.scorer(interest, local, cross, state, cand, cand_ids)

        loss = ops.cross_entropy(score, ops.zeros((bs,), ms.int32))
        explore = ops.softmax(score, axis=1)
        vocab, mode = self.repeat(vec, item_ids, weight, state)
        again = ops.gather_elements(vocab, 1, cand_ids)
        mixed = mode[:, :1] * again + mode[:, 1:] * explore
        utility = ops.log(mixed + 1e-4)
        return utility, loss, self.composer(utility, item)


def make_inputs(seed=5):
    rng = np.random.RandomState(seed)
    lengths, b = [11, 8, 6], 3
    items = np.zeros((b, MAX_LEN, BASKET), np.int64)
    times = np.zeros((b, MAX_LEN), np.int64)
    for i, n in enumerate(lengths):
        for j in range(n):
            m = rng.randint(1, BASKET + 1)
            items[i, j, :m] = rng.choice(np.arange(1, N_ITEMS), m, replace=False)
        times[i, :n] = 411000 + 37 * i + np.cumsum(rng.randint(9, 75, n))
    qty = np.where(items > 0, rng.randint(1, 6, items.shape), 0).astype(np.float32)
    user = rng.randint(0, N_USERS, b).astype(np.int64)
    dense = (rng.randn(b, 6) * 2 + 1).astype(np.float32)
    cand = rng.randint(1, N_ITEMS, (b, N_CAND)).astype(np.int64)
    cand[0, 3], cand[1, 5] = items[0, 10, 0], items[1, 6, 0]
    cand[1, 0], cand[2, 2] = items[1, 3, 0], items[2, 5, 0]
    cand[2, 7] = cand[2, 0]
    return items, qty, times, user, dense, cand


def build():
    ms.set_context(mode=ms.PYNATIVE_MODE)
    net = IntentBasket()
    net.set_train(False)
    return net, tuple(Tensor(a) for a in make_inputs())
