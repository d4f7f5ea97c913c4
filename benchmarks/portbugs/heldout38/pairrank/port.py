"""PairRank in MindSpore: two-tower retrieval with a late interaction head (PyNative)."""
import math

import numpy as np
import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import Normal, initializer

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_device("CPU")

VOCAB_SIZE, MAX_LEN, DIM, NUM_HEADS, EMB_DIM, FFN_DIM, OUT_DIM = 97, 11, 24, 3, 20, 44, 16
BATCH_SIZE, NUM_HARD = 5, 2
NUM_CATEGORIES, NUM_HISTORY, NUM_DENSE, ITEM_DIM, NUM_FACETS = 61, 71, 6, 18, 3
PRICE_EDGES = [5.0, 10.0, 20.0, 50.0, 100.0]
SKIP_IDS = [3, 4, 9, 17]
NEG_INF = float("-inf")


def l2_normalize(x, axis=-1, eps=1e-12):
    norm = ops.sqrt(ops.square(x).sum(axis=axis, keepdims=True))
    return x / ops.maximum(norm, Tensor(eps, x.dtype))


def t5_buckets(distance, num_buckets, max_distance):
    """Bucket numbers of signed distances (numpy), half of them for each direction."""
    half = num_buckets // 2
    exact = half // 2
    side = np.where(distance > 0, half, 0)
    distance = np.abs(distance)
    log_ratio = np.log(np.maximum(distance, 1) / exact) / np.log(max_distance / exact)
    far = exact + (log_ratio * (half - exact)).astype(np.int64)
    far = np.minimum(far, half - 1)
    return side + np.where(distance < exact, distance, far)


def param(*shape, name=None):
    return Parameter(initializer(Normal(0.02), shape, ms.float32), name=name)


class InputLayer(nn.Cell):
    def __init__(self, pad_id=1):
        super().__init__()
        self.pad_id = pad_id
        self.word_embedding = nn.Embedding(VOCAB_SIZE, EMB_DIM, padding_idx=pad_id)
        self.position_embedding = nn.Embedding(MAX_LEN + 2, EMB_DIM, padding_idx=pad_id)
        self.segment_embedding = nn.Embedding(2, EMB_DIM)
        self.layer_norm = nn.LayerNorm((EMB_DIM,), epsilon=1e-5)
        self.dense = nn.Dense(EMB_DIM, DIM)

    def construct(self, input_ids, segment_ids, mask):
        valid = mask.astype(ms.int32)
        position_ids = ops.cumsum(valid, 1) * valid + self.pad_id
        x = self.word_embedding(input_ids) * math.sqrt(EMB_DIM)
        x = x + self.position_embedding(position_ids)
        x = x + self.segment_embedding(segment_ids)
        x = self.dense(self.layer_norm(x))
        return x * mask.expand_dims(-1).astype(x.dtype)


class RelativePosition(nn.Cell):
    def __init__(self, num_buckets=12, max_distance=9):
        super().__init__()
        self.embedding = nn.Embedding(num_buckets, NUM_HEADS)
        query_pos = np.arange(MAX_LEN)[:, None]
        key_pos = np.arange(MAX_LEN)[None, :]
        self.index = Tensor(t5_buckets(key_pos - query_pos, num_buckets, max_distance), ms.int32)

    def construct(self):
        return self.embedding(self.index).transpose(2, 0, 1).expand_dims(0)


class SelfAttention(nn.Cell):
    """Multi-head attention with fused projections and a head mixing matrix after the softmax."""

    def __init__(self):
        super().__init__()
        self.head_dim = DIM // NUM_HEADS
        self.qkv = nn.Dense(DIM, 3 * DIM)
        self.head_mix = param(NUM_HEADS, NUM_HEADS, name="head_mix")
        self.proj = nn.Dense(DIM, DIM)

    def construct(self, x, mask, bias):
        b, n, _ = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, NUM_HEADS, self.head_dim).transpose(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        scores = ops.matmul(q, k.swapaxes(-1, -2)) / math.sqrt(self.head_dim)
        scores = scores + bias
        hidden_keys = ops.logical_not(mask).expand_dims(1).expand_dims(1)
        scores = scores.masked_fill(hidden_keys, float(np.finfo(np.float32).min))
        probs = ops.softmax(scores, axis=-1)
        probs = ops.matmul(self.head_mix.T, probs.reshape(b, NUM_HEADS, n * n)).reshape(b, NUM_HEADS, n, n)
        context = ops.matmul(probs, v)
        context = context.transpose(0, 2, 1, 3).reshape(b, n, DIM)
        return self.proj(context)


class ConvModule(nn.Cell):
    def __init__(self, kernel_size=3, dilation=2):
        super().__init__()
        self.pointwise_in = nn.Dense(DIM, 2 * DIM)
        self.depthwise = nn.Conv1d(DIM, DIM, kernel_size, pad_mode="pad", padding=dilation * (kernel_size - 1) // 2,
                                   dilation=dilation, group=DIM, has_bias=True)
        self.pointwise_out = nn.Dense(DIM, DIM)
        self.activation = nn.SiLU()

    def construct(self, x, mask):
        value, gate = ops.chunk(self.pointwise_in(x), 2, axis=-1)
        x = value * ops.sigmoid(gate)
        x = x * mask.expand_dims(-1).astype(x.dtype)
        x = self.depthwise(x.swapaxes(1, 2)).swapaxes(1, 2)
        return self.pointwise_out(self.activation(x))


class GEGLU(nn.Cell):
    def __init__(self):
        super().__init__()
        self.wi = nn.Dense(DIM, 2 * FFN_DIM, has_bias=False)
        self.wo = nn.Dense(FFN_DIM, DIM)
        self.gelu = nn.GELU(approximate=False)

    def construct(self, x):
        x = self.wi(x)
        value, gate = x[..., :FFN_DIM], x[..., FFN_DIM:]
        return self.wo(value * self.gelu(gate))


class EncoderLayer(nn.Cell):
    def __init__(self):
        super().__init__()
        self.attention_norm = nn.LayerNorm((DIM,), epsilon=1e-5)
        self.attention = SelfAttention()
        self.conv_norm = nn.LayerNorm((DIM,), epsilon=1e-5)
        self.conv = ConvModule()
        self.ffn_norm = nn.LayerNorm((DIM,), epsilon=1e-5)
        self.ffn = GEGLU()
        self.layer_scale = param(3, DIM, name="layer_scale")

    def construct(self, x, mask, bias):
        x = x + self.layer_scale[0] * self.attention(self.attention_norm(x), mask, bias)
        x = x + self.layer_scale[1] * self.conv(self.conv_norm(x), mask)
        x = x + self.layer_scale[2] * self.ffn(self.ffn_norm(x))
        return x


class SequencePooler(nn.Cell):
    def __init__(self):
        super().__init__()
        self.key = nn.Dense(DIM, DIM)
        self.query = param(NUM_HEADS, DIM // NUM_HEADS, name="query")
        self.dense = nn.Dense(3 * DIM, OUT_DIM)

    def construct(self, x, mask):
        b, n, d = x.shape
        mask = mask.expand_dims(-1)
        padded = ops.logical_not(mask)
        valid = mask.astype(x.dtype)
        mean = (x * valid).sum(axis=1) / ops.maximum(valid.sum(axis=1), Tensor(1.0, x.dtype))
        peak = ops.amax(x.masked_fill(padded, NEG_INF), axis=1)

        key = ops.tanh(self.key(x)).reshape(b, n, NUM_HEADS, d // NUM_HEADS)
        logits = (key * self.query).sum(axis=-1)
        logits = logits.masked_fill(padded, NEG_INF)
        weights = ops.softmax(logits, axis=1)
        heads = x.reshape(b, n, NUM_HEADS, d // NUM_HEADS)
        attended = (weights.expand_dims(-1) * heads).sum(axis=1).reshape(b, d)
        return self.dense(ops.cat((mean, peak, attended), axis=-1))


class QueryEncoder(nn.Cell):
    def __init__(self, num_layers=3):
        super().__init__()
        self.embeddings = InputLayer()
        self.relative_position = RelativePosition()
        self.layers = nn.CellList([EncoderLayer() for _ in range(num_layers)])
        self.mix_logits = param(num_layers + 1, name="mix_logits")
        self.mix_gamma = param(1, name="mix_gamma")
        self.final_norm = nn.LayerNorm((DIM,), epsilon=1e-5)
        self.pooler = SequencePooler()
        self.token_proj = nn.Dense(DIM, OUT_DIM, has_bias=False)
        self.token_weight = nn.Dense(DIM, 1)
        skip = np.zeros(VOCAB_SIZE, np.bool_)
        skip[SKIP_IDS] = True
        self.skip_table = Tensor(skip)

    def construct(self, input_ids, segment_ids, mask):
        x = self.embeddings(input_ids, segment_ids, mask)
        bias = self.relative_position()
        hidden_states = [x]
        for layer in self.layers:
            x = layer(x, mask, bias)
            hidden_states.append(x)
        mix = ops.softmax(self.mix_logits, axis=0)
        mixed = (mix.reshape(-1, 1, 1, 1) * ops.stack(hidden_states, axis=0)).sum(axis=0)
        mixed = self.final_norm(self.mix_gamma * mixed)

        pooled = l2_normalize(self.pooler(mixed, mask))
        keep = ops.logical_and(mask, ops.logical_not(self.skip_table[input_ids])).astype(mixed.dtype)
        tokens = l2_normalize(self.token_proj(mixed)) * keep.expand_dims(-1)
        weight = ops.softplus(self.token_weight(mixed)).squeeze(-1) * keep
        return pooled, tokens, weight


class HashEmbeddingBag(nn.Cell):
    def __init__(self, num_buckets=23, prime=10007):
        super().__init__()
        self.num_buckets = num_buckets
        self.prime = prime
        self.embedding = nn.Embedding(num_buckets, ITEM_DIM)
        self.importance = nn.Embedding(NUM_CATEGORIES, 2, padding_idx=0)
        self.mul = Tensor([5741, 7919], ms.int64)
        self.add = Tensor([913, 2477], ms.int64)

    def construct(self, ids, confidence):
        hashed = ids.expand_dims(-1) * self.mul + self.add
        slots = ops.floor_mod(ops.floor_mod(hashed, self.prime), self.num_buckets)
        vectors = self.importance(ids).expand_dims(-1) * self.embedding(slots)
        vectors = vectors.sum(axis=2)
        weights = confidence * (ids != 0).astype(confidence.dtype)
        norm = ops.sqrt(ops.clamp(ops.square(weights).sum(axis=1, keepdims=True), min=1e-6))
        bag = (vectors * weights.expand_dims(-1)).sum(axis=1) / norm
        return bag, weights.sum(axis=1) > 0


class HistoryEncoder(nn.Cell):
    """Attention inside ragged bags; the score of an entry decays with its age."""

    def __init__(self, half_life=3.0):
        super().__init__()
        self.half_life = half_life
        self.embedding = nn.Embedding(NUM_HISTORY, ITEM_DIM)
        self.scorer = nn.SequentialCell(nn.Dense(ITEM_DIM, 10), nn.LeakyReLU(alpha=0.01), nn.Dense(10, 1))

    def construct(self, flat_ids, offsets):
        num_bags, total = offsets.shape[0], flat_ids.shape[0]
        place = ops.arange(total)
        # number of the bag = how many bags start at this place or before it, less one
        bag = (offsets.expand_dims(0) <= place.expand_dims(1)).astype(ms.int32).sum(axis=1) - 1
        bag = bag.astype(ms.int32)
        ends = ops.cat((offsets[1:], Tensor([total], offsets.dtype)))
        age = (ends[bag] - 1 - place).astype(ms.float32)

        vectors = self.embedding(flat_ids)
        logits = self.scorer(vectors).squeeze(-1) - math.log(2.0) * age / self.half_life
        peak = ops.unsorted_segment_max(logits, bag, num_bags)
        exp = ops.exp(logits - peak[bag])
        norm = ops.unsorted_segment_sum(exp, bag, num_bags)
        weights = exp / norm[bag]
        pooled = ops.unsorted_segment_sum(weights.expand_dims(-1) * vectors, bag, num_bags)
        return pooled, norm > 0


class NumericEncoder(nn.Cell):
    def __init__(self, num_freqs=4, sigma=0.3):
        super().__init__()
        self.batch_norm = nn.BatchNorm1d(NUM_DENSE, eps=1e-3)
        self.freqs = Tensor(2 * np.pi * sigma * np.arange(1, num_freqs + 1), ms.float32)
        self.weight = param(NUM_DENSE, 2 * num_freqs, ITEM_DIM, name="weight")
        self.bias = param(NUM_DENSE, ITEM_DIM, name="bias")
        self.price_embedding = nn.Embedding(len(PRICE_EDGES) + 1, ITEM_DIM)

    def construct(self, dense):
        price_bucket = ops.bucketize(dense[:, 0], PRICE_EDGES, right=True)
        x = self.batch_norm(ops.sign(dense) * ops.log1p(ops.abs(dense)))
        phase = x.expand_dims(-1) * self.freqs
        wave = ops.cat((ops.sin(phase), ops.cos(phase)), axis=-1)
        per_feature = ops.matmul(wave.swapaxes(0, 1), self.weight).swapaxes(0, 1)
        token = ops.relu(per_feature + self.bias).mean(axis=1)
        return token + self.price_embedding(price_bucket)


class CrossNetwork(nn.Cell):
    def __init__(self, dim, rank=7, depth=2):
        super().__init__()
        self.down = nn.CellList([nn.Dense(dim, rank, has_bias=False) for _ in range(depth)])
        self.up = nn.CellList([nn.Dense(rank, dim) for _ in range(depth)])

    def construct(self, x0):
        x = x0
        for down, up in zip(self.down, self.up):
            x = x0 * up(down(x)) + x
        return x


class FacetHead(nn.Cell):
    def __init__(self):
        super().__init__()
        self.facet_query = param(NUM_FACETS, OUT_DIM, name="facet_query")
        self.kv = nn.Dense(ITEM_DIM, 2 * OUT_DIM)
        self.layer_norm = nn.LayerNorm((OUT_DIM,), epsilon=1e-5)

    def construct(self, fields, present):
        key, value = ops.split(self.kv(fields), OUT_DIM, axis=-1)
        logits = ops.matmul(self.facet_query, key.swapaxes(1, 2)) * OUT_DIM ** -0.5
        logits = logits.masked_fill(ops.logical_not(present).expand_dims(1), -1e4)
        facets = ops.matmul(ops.softmax(logits, axis=-1), value)
        return self.layer_norm(facets + self.facet_query)


class ItemEncoder(nn.Cell):
    def __init__(self, num_fields=3):
        super().__init__()
        self.category_bag = HashEmbeddingBag()
        self.history = HistoryEncoder()
        self.numeric = NumericEncoder()
        self.cross = CrossNetwork(num_fields * ITEM_DIM)
        rows, cols = np.triu_indices(num_fields, k=1)
        self.pair_index = Tensor(rows * num_fields + cols, ms.int32)
        self.head = nn.Dense(num_fields * ITEM_DIM + len(rows), OUT_DIM)
        self.facet_head = FacetHead()

    def construct(self, categories, confidence, flat_ids, offsets, dense):
        category, has_category = self.category_bag(categories, confidence)
        history, has_history = self.history(flat_ids, offsets)
        fields = ops.stack((category, history, self.numeric(dense)), axis=1)
        present = ops.stack((has_category, has_history, ops.ones_like(has_category)), axis=1)
        n = fields.shape[0]

        gram = ops.bmm(fields, fields.swapaxes(1, 2)) / math.sqrt(ITEM_DIM)
        inner = gram.reshape(n, -1)[:, self.pair_index]
        crossed = self.cross(fields.reshape(n, -1))
        item_vec = l2_normalize(self.head(ops.cat((crossed, inner), axis=-1)))

        facets = l2_normalize(self.facet_head(fields, present))
        optional = present[:, :2].astype(ms.int32).sum(axis=1, keepdims=True)
        alive = ops.arange(NUM_FACETS).expand_dims(0) <= optional
        return item_vec, facets, alive


class MaxSimScorer(nn.Cell):
    def __init__(self, chunk_size=4):
        super().__init__()
        self.chunk_size = chunk_size
        self.balance = Parameter(Tensor(0.0, ms.float32), name="balance")

    def construct(self, pooled, tokens, weight, item_vec, facets, alive):
        num_items = facets.shape[0]
        b, n, d = tokens.shape
        late = []
        for start in range(0, num_items, self.chunk_size):
            stop = min(start + self.chunk_size, num_items)
            block = facets[start:stop].reshape(-1, d)
            sim = ops.matmul(tokens.reshape(b * n, d), block.T).reshape(b, n, stop - start, NUM_FACETS)
            dead = ops.logical_not(alive[start:stop]).expand_dims(0).expand_dims(0)
            best = ops.amax(sim.masked_fill(dead, -1.0), axis=-1)
            late.append((best * weight.expand_dims(-1)).sum(axis=1))
        late = ops.cat(late, axis=1) / ops.clamp(weight.sum(axis=-1, keepdims=True), min=1e-6)
        alpha = ops.sigmoid(self.balance)
        return alpha * late + (1 - alpha) * ops.matmul(pooled, item_vec.T)


class TopReranker(nn.Cell):
    def __init__(self, depth=3):
        super().__init__()
        self.depth = depth
        self.fc1 = nn.Dense(4 * OUT_DIM + 1, 13)
        self.prelu = nn.PReLU()
        self.fc2 = nn.Dense(13, 1)

    def construct(self, scores, pooled, item_vec):
        top_scores, top_index = ops.topk(scores, self.depth, dim=1)
        item = item_vec[top_index]
        query = ops.broadcast_to(pooled.expand_dims(1), item.shape)
        features = ops.cat((query, item, query * item, ops.abs(query - item), top_scores.expand_dims(-1)), axis=-1)
        hidden = self.fc1(features).reshape(-1, 13)
        delta = self.fc2(self.prelu(hidden)).reshape(-1, self.depth)
        delta = delta - delta.mean(axis=1, keep_dims=True)
        return ops.tensor_scatter_elements(scores, top_index, delta, axis=1, reduction="add")


class PairLoss(nn.Cell):
    def __init__(self, label_smoothing=0.1, hard_weight=1.5, margin=0.35):
        super().__init__()
        self.log_scale = Parameter(Tensor(math.log(1 / 0.07), ms.float32), name="log_scale")
        self.label_smoothing = label_smoothing
        self.hard_weight = hard_weight
        self.margin = margin

    def construct(self, scores, item_ids, popularity):
        b = scores.shape[0]
        num_hard = scores.shape[1] // b - 1
        scale = ops.clamp(ops.exp(self.log_scale), max=100.0)
        logits = scores * scale
        hard_index = b + ops.arange(b * num_hard).reshape(b, num_hard)

        log_q = ops.log(popularity / popularity.sum())
        in_batch = logits[:, :b] - log_q[:b].expand_dims(0)
        hard = ops.gather_elements(logits, 1, hard_index) + math.log(self.hard_weight)

        # the same item under another query is no negative, nor is a suspiciously good hard one
        pos_ids = item_ids[:b]
        eye = ops.eye(b, b, ms.bool_)
        duplicate = ops.logical_and(pos_ids.expand_dims(0) == pos_ids.expand_dims(1), ops.logical_not(eye))
        pos_scores = scores[:, :b].diagonal().expand_dims(1)
        too_good = ops.gather_elements(scores, 1, hard_index) > pos_scores + self.margin
        false_hard = ops.logical_or(item_ids[hard_index] == pos_ids.expand_dims(1), too_good)

        all_logits = ops.cat((in_batch.masked_fill(duplicate, NEG_INF), hard.masked_fill(false_hard, NEG_INF)), axis=1)
        log_prob = ops.log_softmax(all_logits, axis=1)
        nll = -log_prob[:, :b].diagonal()
        invalid = ops.cat((duplicate, false_hard), axis=1)
        num_valid = ops.logical_not(invalid).astype(ms.float32).sum(axis=1)
        smooth = -log_prob.masked_fill(invalid, 0.0).sum(axis=1) / num_valid
        query_loss = ((1 - self.label_smoothing) * nll + self.label_smoothing * smooth).mean()

        item_logits = logits[:, :b].masked_fill(duplicate, NEG_INF).T
        item_loss = -ops.log_softmax(item_logits, axis=1).diagonal().mean()
        return 0.5 * (query_loss + item_loss)


class PairRank(nn.Cell):
    def __init__(self):
        super().__init__()
        self.query_encoder = QueryEncoder()
        self.item_encoder = ItemEncoder()
        self.scorer = MaxSimScorer()
        self.reranker = TopReranker()
        self.criterion = PairLoss()

    def construct(self, input_ids, segment_ids, mask, categories, confidence, flat_ids, offsets, dense, item_ids,
                  popularity):
        pooled, tokens, weight = self.query_encoder(input_ids, segment_ids, mask.astype(ms.bool_))
        item_vec, facets, alive = self.item_encoder(categories, confidence, flat_ids, offsets, dense)
        scores = self.scorer(pooled, tokens, weight, item_vec, facets, alive)
        scores = self.reranker(scores, pooled, item_vec)
        loss = self.criterion(scores, item_ids, popularity)
        return loss, scores, pooled, item_vec


def make_inputs():
    r = np.random.RandomState(11)
    lengths = np.array([11, 7, 9, 4, 10])
    mask = (np.arange(MAX_LEN)[None] < lengths[:, None]).astype(np.int64)
    ids = np.where(mask == 1, r.randint(2, VOCAB_SIZE, (BATCH_SIZE, MAX_LEN)), 1)
    ids[0, 3], ids[1, 2], ids[2, 5], ids[3, 3], ids[4, 7] = 3, 9, 17, 4, 9
    segments = ((np.arange(MAX_LEN)[None] >= (lengths // 2)[:, None]) * mask).astype(np.int64)
    n = BATCH_SIZE * (1 + NUM_HARD)
    cats = r.randint(1, NUM_CATEGORIES, (n, 5)) * (np.arange(5)[None] < r.randint(1, 6, (n, 1)))
    cats[6] = 0
    confidence = r.uniform(0.2, 1.0, (n, 5)).astype(np.float32)
    sizes = r.randint(1, 6, n)
    sizes[[2, 9]] = 0
    offsets = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    flat = r.randint(0, NUM_HISTORY, sizes.sum())
    dense = (r.randn(n, NUM_DENSE) * 3).astype(np.float32)
    dense[:, 0] = np.array([4, 5, 12, 20, 75, 100, 33, 7.5, 10, 260, 18, 50, 3, 20, 61], np.float32)
    item_ids = np.array([7, 12, 7, 30, 18, 44, 7, 9, 12, 51, 3, 30, 62, 25, 40])
    popularity = r.randint(1, 90, n).astype(np.float32)
    return ids, segments, mask, cats, confidence, flat, offsets, dense, item_ids, popularity


def build():
    net = PairRank()
    net.set_train(False)
    return net, tuple(Tensor(a) for a in make_inputs())
