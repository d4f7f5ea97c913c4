"""MindSpore port of CodeEdit (tree-aware encoder-decoder for program repair, pointer-generator output)."""
import math

import numpy as np
import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

PAD_ID, BOS_ID, EOS_ID, UNK_ID = 0, 1, 2, 3
MASK_VALUE = -1e9
LN_EPS = 1e-5


def layer_norm(dim, epsilon=LN_EPS):
    return nn.LayerNorm((dim,), epsilon=epsilon)


def build_rank_table(count, dim):
    position = np.arange(count, dtype=np.float32)[:, None]
    div = np.exp(np.arange(0, dim, 2, dtype=np.float32) * (-math.log(10000.0) / dim))
    angle = position * div
    return np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(count, dim).astype(np.float32)


def build_bucket_table(num_buckets, max_distance):
    exact = num_buckets // 2
    dist = np.arange(2 * max_distance)
    ratio = np.log(np.maximum(dist, exact) / exact) / math.log(max_distance / exact)
    coarse = exact + (ratio * (num_buckets - exact)).astype(np.int64)
    table = np.where(dist < exact, dist, np.minimum(coarse, num_buckets - 1))
    return table.astype(np.int64)


class TreeRelations(nn.Cell):
    """Everything that follows from the parent indices of a padded batch of trees."""

    def __init__(self, num_buckets, max_distance):
        super().__init__()
        self.per_side = num_buckets // 2
        self.bucket_of = Tensor(build_bucket_table(self.per_side, max_distance))
        self.furthest = self.bucket_of.shape[0] - 1

    def construct(self, parent, valid):
        num = parent.shape[1]
        index = ops.arange(num)
        # edge[b, i, p] = 1 where p is the parent of i; the root points to itself and has none
        edge = ops.one_hot(parent, num, Tensor(1.0, ms.float32), Tensor(0.0, ms.float32))
        edge = edge * (index > 0).astype(ms.float32).reshape(1, num, 1)
        reach = ops.broadcast_to(ops.eye(num, num, ms.float32).expand_dims(0), edge.shape)
        ancestor = reach
        for _ in range(num - 1):
            reach = ops.matmul(reach, edge)
            ancestor = ancestor + reach
        ancestor = ancestor * valid.expand_dims(2).astype(ms.float32)

        depth = ops.clamp(ancestor.sum(-1).astype(ms.int64) - 1, min=0)
        common = ops.matmul(ancestor, ancestor.swapaxes(1, 2)).astype(ms.int64)
        distance = depth.expand_dims(2) + depth.expand_dims(1) - 2 * (common - 1)
        distance = ops.clamp(distance, min=0, max=self.furthest)
        after = (index.expand_dims(0) > index.expand_dims(1)).astype(ms.int64)
        bucket = self.bucket_of[distance] + after * self.per_side
        both = ops.logical_and(valid.expand_dims(1), valid.expand_dims(2))
        bucket = bucket * both.astype(ms.int64)

        siblings = parent.expand_dims(2) == parent.expand_dims(1)
        before = ops.logical_and(index.expand_dims(0) < index.expand_dims(1), (index > 0).expand_dims(0))
        rank = ops.logical_and(siblings, before.expand_dims(0)).astype(ms.int64).sum(-1) * valid.astype(ms.int64)

        subtree_size = ancestor.sum(1)
        is_leaf = ops.logical_and(subtree_size == 1, valid)
        return ancestor, depth, rank, is_leaf, bucket


class SubtokenEncoder(nn.Cell):
    def __init__(self, vocab_size, dim, stride=2):
        super().__init__()
        self.stride = stride
        self.embedding = nn.Embedding(vocab_size, dim)
        self.conv = nn.Conv2d(dim, dim, kernel_size=(1, 3), stride=(1, stride), pad_mode="pad",
                              padding=(0, 0, 1, 1), has_bias=True)
        self.bn = nn.BatchNorm2d(dim, eps=1e-3, momentum=0.9)
        self.act = nn.LeakyReLU(alpha=0.01)
        self.pool = nn.Dense(dim, 1)

    def construct(self, ids):
        present = ids != PAD_ID
        x = self.embedding(ids) * present.astype(ms.float32).expand_dims(-1)
        x = self.conv(x.transpose(0, 3, 1, 2))
        x = self.act(self.bn(x)).transpose(0, 2, 3, 1)
        present = present[:, :, ::self.stride]
        score = self.pool(x).squeeze(-1).masked_fill(ops.logical_not(present), MASK_VALUE)
        weight = ops.softmax(score, axis=-1) * present.astype(ms.float32)
        return (weight.expand_dims(-1) * x).sum(2)


class NodeEmbedding(nn.Cell):
    def __init__(self, vocab_size, sub_vocab_size, dim, max_depth, max_rank):
        super().__init__()
        self.max_depth = max_depth
        self.max_rank = max_rank
        self.rank_scale = dim ** -0.5
        self.token = nn.Embedding(vocab_size, dim)
        self.subtoken = SubtokenEncoder(sub_vocab_size, dim)
        self.depth = nn.Embedding(max_depth + 1, dim)
        self.norm = layer_norm(dim, epsilon=1e-3)
        self.rank_table = Tensor(build_rank_table(max_rank, dim))

    def construct(self, tokens, subtokens, depth, rank, valid):
        token = self.token(tokens)
        sub = self.subtoken(subtokens)
        level = self.depth(ops.clamp(depth, min=0, max=self.max_depth))
        order = self.rank_table[ops.clamp(rank, min=0, max=self.max_rank - 1)] * self.rank_scale
        return self.norm(token + sub + level + order) * valid.astype(ms.float32).expand_dims(-1)


class TreeSelfAttention(nn.Cell):
    def __init__(self, dim, num_heads, num_buckets):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.scale = 1.0 / math.sqrt(self.head_dim)
        self.qkv = nn.Dense(dim, 3 * dim)
        self.rel_key = nn.Embedding(num_buckets, self.head_dim)
        self.rel_value = nn.Embedding(num_buckets, self.head_dim)
        self.rel_bias = nn.Embedding(num_buckets, num_heads)
        self.proj = nn.Dense(dim, dim)

    def split_heads(self, x):
        b, n, _ = x.shape
        return x.reshape(b, n, self.num_heads, self.head_dim).transpose(0, 2, 1, 3)

    def construct(self, x, bucket, valid):
        b, n, d = x.shape
        query, key, value = ops.split(self.qkv(x), d, axis=-1)
        query, key, value = self.split_heads(query), self.split_heads(key), self.split_heads(value)

        logits = ops.matmul(query, key.swapaxes(-1, -2))
        # relative keys are shared by the heads: [b, i, h, dk] x [b, i, dk, j] -> [b, i, h, j]
        by_query = query.transpose(0, 2, 1, 3)
        rel_key = self.rel_key(bucket).swapaxes(2, 3)
        logits = logits + ops.matmul(by_query, rel_key).transpose(0, 2, 1, 3)
        logits = logits * self.scale + self.rel_bias(bucket).transpose(0, 3, 1, 2)
        hidden_keys = ops.logical_not(valid).reshape(b, 1, 1, n)
        prob = ops.softmax(logits.masked_fill(hidden_keys, MASK_VALUE), axis=-1)

        context = ops.matmul(prob, value).transpose(0, 2, 1, 3)
        context = context + ops.matmul(prob.transpose(0, 2, 1, 3), self.rel_value(bucket))
        return self.proj(context.reshape(b, n, d))


class EncoderBlock(nn.Cell):
    def __init__(self, dim, num_heads, hidden, num_buckets):
        super().__init__()
        self.attn_norm = layer_norm(dim)
        self.attn = TreeSelfAttention(dim, num_heads, num_buckets)
        self.ffn_norm = layer_norm(dim)
        self.fc1 = nn.Dense(dim, hidden)
        self.gelu = nn.GELU(approximate=False)
        self.fc2 = nn.Dense(hidden, dim)

    def construct(self, x, bucket, valid):
        residual = x
        x = self.attn_norm(x)
        x = residual + self.attn(x, bucket, valid)
        residual = x
        x = self.fc2(self.gelu(self.fc1(self.ffn_norm(x))))
        return residual + x


class TreeEncoder(nn.Cell):
    def __init__(self, cfg):
        super().__init__()
        dim = cfg["dim"]
        self.relations = TreeRelations(cfg["buckets"], cfg["max_distance"])
        self.embed = NodeEmbedding(cfg["vocab"], cfg["sub_vocab"], dim, cfg["max_depth"], cfg["max_rank"])
        self.blocks = nn.CellList(
            [EncoderBlock(dim, cfg["heads"], cfg["hidden"], cfg["buckets"]) for _ in range(cfg["enc_layers"])])
        self.norm = layer_norm(dim)

    def construct(self, tokens, subtokens, parent):
        valid = tokens != PAD_ID
        ancestor, depth, rank, is_leaf, bucket = self.relations(parent, valid)
        x = self.embed(tokens, subtokens, depth, rank, valid)
        for block in self.blocks:
            x = block(x, bucket, valid)
        memory = self.norm(x) * valid.astype(ms.float32).expand_dims(-1)
        return memory, valid, is_leaf, ancestor


class FaultLocator(nn.Cell):
    def __init__(self, dim, hidden):
        super().__init__()
        self.proj = nn.Dense(3 * dim, hidden)
        self.act = nn.LeakyReLU(alpha=0.1)
        self.score = nn.Dense(hidden, 1)

    def construct(self, memory, ancestor, parent, valid):
        b, n, d = memory.shape
        parent_index = ops.broadcast_to(parent.expand_dims(-1), (b, n, d))
        parent_state = ops.gather_elements(memory, 1, parent_index)
        subtree_size = ops.clamp(ancestor.sum(1), min=1.0).expand_dims(-1)
        subtree_mean = ops.matmul(ancestor.swapaxes(1, 2), memory) / subtree_size
        features = ops.concat((memory, parent_state - memory, subtree_mean), axis=-1)
        padding = ops.logical_not(valid)
        score = self.score(self.act(self.proj(features))).squeeze(-1)
        log_prob = ops.log_softmax(score.masked_fill(padding, MASK_VALUE), axis=-1)
        return log_prob.masked_fill(padding, 0.0)


class CausalSelfAttention(nn.Cell):
    """Self-attention of the decoder; returns the keys and values for the next step."""

    def __init__(self, dim, num_heads, window):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.window = window
        self.query = nn.Dense(dim, dim)
        self.key = nn.Dense(dim, dim, has_bias=False)
        self.value = nn.Dense(dim, dim)
        self.distance_bias = Parameter(Tensor(np.zeros((num_heads, window + 1)), ms.float32), name="distance_bias")
        self.proj = nn.Dense(dim, dim)

    def split_heads(self, x):
        b, t, _ = x.shape
        return x.reshape(b, t, self.num_heads, self.head_dim).transpose(0, 2, 1, 3)

    def construct(self, x, past=None):
        b, t, d = x.shape
        query = self.split_heads(self.query(x))
        key = self.split_heads(self.key(x))
        value = self.split_heads(self.value(x))
        if past is not None:
            key = ops.concat((past[0], key), axis=2)
            value = ops.concat((past[1], value), axis=2)
        total = key.shape[2]
        offset = total - t
        distance = (ops.arange(t) + offset).expand_dims(1) - ops.arange(total).expand_dims(0)
        bias = self.distance_bias[:, ops.clamp(distance, min=0, max=self.window)]
        logits = ops.matmul(query, key.swapaxes(-1, -2)) / math.sqrt(self.head_dim) + bias
        prob = ops.softmax(logits.masked_fill(distance < 0, MASK_VALUE), axis=-1)
        context = ops.matmul(prob, value).transpose(0, 2, 1, 3).reshape(b, t, d)
        return self.proj(context), (key, value)


class MemoryAttention(nn.Cell):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.query = nn.Dense(dim, dim)
        self.key_value = nn.Dense(dim, 2 * dim)
        self.proj = nn.Dense(dim, dim)
        self.head_gate = nn.Dense(dim, num_heads)

    def construct(self, x, memory, valid):
        b, t, d = x.shape
        n = memory.shape[1]
        query = self.query(x).reshape(b, t, self.num_heads, self.head_dim).transpose(0, 2, 1, 3)
        key_value = self.key_value(memory).reshape(b, n, 2, self.num_heads, self.head_dim)
        key, value = key_value.transpose(2, 0, 3, 1, 4)
        logits = ops.matmul(query, key.swapaxes(-1, -2)) / math.sqrt(self.head_dim)
        prob = ops.softmax(logits.masked_fill(ops.logical_not(valid).reshape(b, 1, 1, n), MASK_VALUE), axis=-1)
        context = ops.matmul(prob, value)
        gate = ops.sigmoid(self.head_gate(x)).transpose(0, 2, 1).expand_dims(-1)
        context = (context * gate).transpose(0, 2, 1, 3).reshape(b, t, d)
        return self.proj(context)


class GatedFeedForward(nn.Cell):
    def __init__(self, dim, hidden):
        super().__init__()
        self.wi = nn.Dense(dim, 2 * hidden)
        self.wo = nn.Dense(hidden, dim)
        self.silu = nn.SiLU()

    def construct(self, x):
        value, gate = ops.chunk(self.wi(x), 2, axis=-1)
        return self.wo(value * self.silu(gate))


class DecoderBlock(nn.Cell):
    def __init__(self, dim, num_heads, hidden, window):
        super().__init__()
        self.self_norm = layer_norm(dim)
        self.self_attn = CausalSelfAttention(dim, num_heads, window)
        self.memory_norm = layer_norm(dim)
        self.memory_attn = MemoryAttention(dim, num_heads)
        self.ffn_norm = layer_norm(dim)
        self.ffn = GatedFeedForward(dim, hidden)

    def construct(self, x, memory, valid, past=None):
        attended, present = self.self_attn(self.self_norm(x), past)
        x = x + attended
        x = x + self.memory_attn(self.memory_norm(x), memory, valid)
        x = x + self.ffn(self.ffn_norm(x))
        return x, present


class PointerGenerator(nn.Cell):
    """Output distribution over vocabulary + names of the source for one decoder state."""

    def __init__(self, dim, att_dim, vocab_size):
        super().__init__()
        self.memory_proj = nn.Dense(dim, att_dim, has_bias=False)
        self.state_proj = nn.Dense(dim, att_dim)
        self.coverage_proj = nn.Dense(1, att_dim, has_bias=False)
        self.score = nn.Dense(att_dim, 1, has_bias=False)
        self.mix = nn.Dense(2 * dim, dim)
        self.switch = nn.Dense(3 * dim, 1)
        self.vocab_bias = Parameter(Tensor(np.zeros(vocab_size), ms.float32), name="vocab_bias")
        self.never = Tensor(np.arange(vocab_size) == PAD_ID)

    def construct(self, state, emb, memory, is_leaf, coverage, source_ext, num_oov, table):
        energy = self.memory_proj(memory) + self.state_proj(state).expand_dims(1)
        energy = energy + self.coverage_proj(coverage.expand_dims(-1))
        energy = self.score(ops.tanh(energy)).squeeze(-1)
        copy_attn = ops.softmax(energy.masked_fill(ops.logical_not(is_leaf), MASK_VALUE), axis=-1)
        context = (copy_attn.expand_dims(-1) * memory).sum(1)

        hidden = ops.tanh(self.mix(ops.concat((state, context), axis=-1)))
        logits = ops.matmul(hidden, table.swapaxes(0, 1)) + self.vocab_bias
        vocab_prob = ops.softmax(logits.masked_fill(self.never, MASK_VALUE), axis=-1)

        p_gen = ops.sigmoid(self.switch(ops.concat((context, state, emb), axis=-1)))
        extra = ops.zeros((state.shape[0], num_oov), ms.float32)
        prob = ops.concat((p_gen * vocab_prob, extra), axis=-1)
        prob = ops.tensor_scatter_elements(prob, source_ext, (1 - p_gen) * copy_attn, axis=1, reduction="add")
        return prob, copy_attn


class CodeEdit(nn.Cell):
    def __init__(self, cfg):
        super().__init__()
        dim = cfg["dim"]
        self.vocab_size = cfg["vocab"]
        self.embed_scale = math.sqrt(dim)
        self.smoothing = cfg["smooth"]
        self.coverage_weight = cfg["cov_weight"]
        self.max_steps = cfg["steps"]
        self.length_power = cfg["alpha"]
        self.encoder = TreeEncoder(cfg)
        self.locator = FaultLocator(dim, cfg["hidden"])
        self.position = nn.Embedding(cfg["max_target"], dim)
        self.blocks = nn.CellList(
            [DecoderBlock(dim, cfg["heads"], cfg["hidden"], cfg["window"]) for _ in range(cfg["dec_layers"])])
        self.final_norm = layer_norm(dim)
        self.pointer = PointerGenerator(dim, cfg["att"], cfg["vocab"])

    def token_table(self):
        return self.encoder.embed.token.embedding_table

    def embed_target(self, ids, start=0):
        in_vocab = ids.masked_fill(ids >= self.vocab_size, UNK_ID)
        position = ops.arange(start, start + ids.shape[1])
        return self.encoder.embed.token(in_vocab) * self.embed_scale + self.position(position)

    def decode(self, x, memory, valid, caches=None):
        new_caches = []
        for i, block in enumerate(self.blocks):
            past = caches[i] if caches is not None else None
            x, present = block(x, memory, valid, past)
            new_caches.append(present)
        return self.final_norm(x), new_caches

    def forced_steps(self, memory, valid, is_leaf, source_ext, target, num_oov):
        b, t = target.shape
        start = ops.full((b, 1), BOS_ID, dtype=target.dtype)
        emb = self.embed_target(ops.concat((start, target[:, :-1]), axis=1))
        states, _ = self.decode(emb, memory, valid)
        coverage = ops.zeros(source_ext.shape, ms.float32)
        prob_steps, attn_steps, coverage_steps = [], [], []
        for step in range(t):
            prob, attn = self.pointer(states[:, step], emb[:, step], memory, is_leaf, coverage, source_ext,
                                      num_oov, self.token_table())
            prob_steps.append(prob)
            attn_steps.append(attn)
            coverage_steps.append(coverage)
            coverage = coverage + attn
        return ops.stack(prob_steps, axis=1), ops.stack(attn_steps, axis=1), ops.stack(coverage_steps, axis=1)

    def compute_loss(self, prob, attn, coverage, target):
        mask = (target != PAD_ID).astype(ms.float32)
        log_prob = ops.log(ops.clamp(prob, min=1e-8))
        nll = -ops.gather_elements(log_prob, 2, target.expand_dims(-1)).squeeze(-1)
        uniform = -log_prob[..., 1:self.vocab_size].mean(-1)
        token_loss = ((1.0 - self.smoothing) * nll + self.smoothing * uniform) * mask
        overlap = ops.minimum(attn, coverage).sum(-1) * mask
        coverage_loss = (overlap.sum(1) / ops.clamp(mask.sum(1), min=1.0)).mean()
        loss = token_loss.sum() / ops.clamp(mask.sum(), min=1.0) + self.coverage_weight * coverage_loss
        return loss, token_loss, coverage_loss

    def greedy(self, memory, valid, is_leaf, source_ext, num_oov):
        b = memory.shape[0]
        token = ops.full((b, 1), BOS_ID, dtype=ms.int64)
        running = ops.ones((b,), ms.float32)
        score = ops.zeros((b,), ms.float32)
        length = ops.zeros((b,), ms.float32)
        coverage = ops.zeros(source_ext.shape, ms.float32)
        caches = None
        sequence = []
        for step in range(self.max_steps):
            emb = self.embed_target(token, step)
            state, caches = self.decode(emb, memory, valid, caches)
            prob, attn = self.pointer(state[:, -1], emb[:, -1], memory, is_leaf, coverage, source_ext,
                                      num_oov, self.token_table())
            best, choice = ops.max(prob, axis=-1)
            score = score + ops.log(ops.clamp(best, min=1e-8)) * running
            length = length + running
            coverage = coverage + attn * running.expand_dims(1)
            choice = choice.astype(ms.int64).masked_fill(running == 0, PAD_ID)
            sequence.append(choice)
            running = running * (choice != EOS_ID).astype(ms.float32)
            token = choice.expand_dims(1)
        penalty = ops.pow((5.0 + length) / 6.0, self.length_power)
        return ops.stack(sequence, axis=1), score / penalty, coverage

    def construct(self, tokens, subtokens, parent, source_ext, target, num_oov):
        memory, valid, is_leaf, ancestor = self.encoder(tokens, subtokens, parent)
        fault = self.locator(memory, ancestor, parent, valid)
        prob, attn, coverage = self.forced_steps(memory, valid, is_leaf, source_ext, target, num_oov)
        loss, token_loss, coverage_loss = self.compute_loss(prob, attn, coverage, target)
        ids, score, final_coverage = self.greedy(memory, valid, is_leaf, source_ext, num_oov)
        return loss, token_loss, coverage_loss, prob, fault, ids, score, final_coverage


CFG = dict(vocab=53, sub_vocab=31, dim=24, heads=3, hidden=40, att=18, enc_layers=2, dec_layers=2, buckets=12,
           max_distance=9, max_depth=5, max_rank=4, max_target=16, window=4, smooth=0.1, cov_weight=0.7,
           steps=5, alpha=0.8)


def make_inputs(seed=11):
    rng = np.random.RandomState(seed)
    b, n, s, t, n_oov, vocab = 3, 13, 6, 9, 4, CFG["vocab"]
    tokens, parent, src_ext = (np.zeros((b, n), np.int64) for _ in range(3))
    subs, target = np.zeros((b, n, s), np.int64), np.zeros((b, t), np.int64)
    for i, (size, out) in enumerate(zip((13, 10, 11), (9, 6, 7))):
        tokens[i, :size] = rng.randint(4, vocab, size)
        for j in range(1, size):
            parent[i, j] = rng.randint(max(0, j - 4), j)
        for j in range(size):
            k = rng.randint(1, s + 1)
            subs[i, j, :k] = rng.randint(1, CFG["sub_vocab"], k)
        src_ext[i] = tokens[i]
        leaves = [j for j in range(1, size) if j not in parent[i, 1:size]]
        oov = rng.choice(n_oov, 2, replace=False)
        for j, o in zip(leaves, (oov[0], oov[1], oov[0])):                # one unknown name occurs twice
            tokens[i, j], src_ext[i, j] = UNK_ID, vocab + o
        pool = np.concatenate([src_ext[i, leaves], rng.randint(4, vocab, 4)])
        target[i, :out - 1] = rng.choice(pool, out - 1)
        target[i, out - 1] = EOS_ID
    return tokens, subs, parent, src_ext, target, n_oov


def build():
    ms.set_context(mode=ms.PYNATIVE_MODE)
    net = CodeEdit(CFG)
    net.set_train(False)
    inputs = tuple(Tensor(a) if isinstance(a, np.ndarray) else a for a in make_inputs())
    return net, inputs
