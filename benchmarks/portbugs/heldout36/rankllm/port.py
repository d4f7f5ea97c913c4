"""MindSpore port of RankLLM, a decoder-only language model with a pooling / reranking head (PYNATIVE mode)."""
import math
from dataclasses import dataclass

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

MASK_VALUE = -1e9


@dataclass
class Config:
    vocab_size: int = 89
    hidden_size: int = 40
    intermediate_size: int = 56
    num_layers: int = 4
    num_heads: int = 6
    num_kv_heads: int = 2
    head_dim: int = 12
    sliding_window: int = 5
    sliding_pattern: int = 2
    query_pre_attn_scalar: float = 20.0
    attn_softcap: float = 6.0
    final_softcap: float = 15.0
    rms_eps: float = 1e-6
    max_positions: int = 32
    rope_theta: float = 100.0
    rope_local_theta: float = 30.0
    rope_factor: float = 4.0
    rope_low_freq_factor: float = 1.0
    rope_high_freq_factor: float = 4.0
    rope_original_positions: int = 64
    mix_last: int = 3
    num_latents: int = 3
    conv_dim: int = 20
    pooled_dim: int = 32
    list_heads: int = 4
    max_candidates: int = 8
    yes_token: int = 17
    no_token: int = 42


def zeros_param(shape, name):
    return Parameter(Tensor(np.zeros(shape, np.float32)), name=name)


def softcap(x, cap):
    return ops.tanh(x / cap) * cap


class RMSNorm(nn.Cell):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = zeros_param((dim,), "weight")

    def construct(self, x):
        variance = ops.mean(ops.square(x), -1, keep_dims=True)
        return x * ops.rsqrt(variance + self.eps) * (self.weight + 1.0)


def llama3_inv_freq(inv_freq, cfg):
    """Slow frequencies are divided by the factor, fast ones are kept, those between are interpolated."""
    low, high, old = cfg.rope_low_freq_factor, cfg.rope_high_freq_factor, cfg.rope_original_positions
    wavelen = 2.0 * np.pi / inv_freq
    smooth = (old / wavelen - low) / (high - low)
    smooth = np.clip(smooth, 0.0, 1.0)
    return (1.0 - smooth) * inv_freq / cfg.rope_factor + smooth * inv_freq


def rope_tables(cfg, theta, scaled):
    exponent = np.arange(0, cfg.head_dim, 2, dtype=np.float64) / cfg.head_dim
    inv_freq = 1.0 / theta ** exponent
    if scaled:
        inv_freq = llama3_inv_freq(inv_freq, cfg)
    angles = np.outer(np.arange(cfg.max_positions), inv_freq)
    angles = np.concatenate([angles, angles], axis=-1)
    return Tensor(np.cos(angles).astype(np.float32)), Tensor(np.sin(angles).astype(np.float32))


def apply_rope(x, cos, sin):
    first, second = ops.chunk(x, 2, axis=-1)
    rotated = ops.concat([-second, first], axis=-1)
    return x * cos + rotated * sin


class Attention(nn.Cell):
    def __init__(self, cfg):
        super().__init__()
        self.n_head = cfg.num_heads
        self.n_kv = cfg.num_kv_heads
        self.head_dim = cfg.head_dim
        self.n_rep = self.n_head // self.n_kv
        self.scale = 1.0 / math.sqrt(cfg.query_pre_attn_scalar)
        self.cap = cfg.attn_softcap
        self.wq = nn.Dense(cfg.hidden_size, self.n_head * self.head_dim)
        self.wk = nn.Dense(cfg.hidden_size, self.n_kv * self.head_dim)
        self.wv = nn.Dense(cfg.hidden_size, self.n_kv * self.head_dim)
        self.wo = nn.Dense(self.n_head * self.head_dim, cfg.hidden_size, has_bias=False)

    def split_heads(self, x, heads):
        n, s, _ = x.shape
        return x.reshape(n, s, heads, self.head_dim).transpose(0, 2, 1, 3)

    def construct(self, x, cos, sin, mask):
        n, s, _ = x.shape
        q = apply_rope(self.split_heads(self.wq(x), self.n_head), cos, sin)
        k = apply_rope(self.split_heads(self.wk(x), self.n_kv), cos, sin)
        v = self.split_heads(self.wv(x), self.n_kv)
        k = ops.repeat_interleave(k, self.n_rep, axis=1)
        v = ops.repeat_interleave(v, self.n_rep, axis=1)

        att = ops.matmul(q, k.swapaxes(-1, -2)) * self.scale
        att = softcap(att, self.cap)
        att = ops.masked_fill(att, ops.logical_not(mask), MASK_VALUE)
        att = ops.softmax(att, axis=-1)
        ctx = ops.matmul(att, v)
        ctx = ctx.transpose(0, 2, 1, 3).reshape(n, s, -1)
        return self.wo(ctx)


class FeedForward(nn.Cell):
    def __init__(self, cfg):
        super().__init__()
        self.gate = nn.Dense(cfg.hidden_size, cfg.intermediate_size, has_bias=False)
        self.up = nn.Dense(cfg.hidden_size, cfg.intermediate_size, has_bias=False)
        self.down = nn.Dense(cfg.intermediate_size, cfg.hidden_size, has_bias=False)

    def construct(self, x):
        return self.down(ops.gelu(self.gate(x), approximate="tanh") * self.up(x))


class Block(nn.Cell):
    def __init__(self, cfg, layer_id):
        super().__init__()
        self.sliding = (layer_id + 1) % cfg.sliding_pattern != 0
        self.attention = Attention(cfg)
        self.feed_forward = FeedForward(cfg)
        self.attention_norm = RMSNorm(cfg.hidden_size, cfg.rms_eps)
        self.attention_post_norm = RMSNorm(cfg.hidden_size, cfg.rms_eps)
        self.ffn_norm = RMSNorm(cfg.hidden_size, cfg.rms_eps)
        self.ffn_post_norm = RMSNorm(cfg.hidden_size, cfg.rms_eps)

    def construct(self, x, local_ctx, global_ctx):
        cos, sin, mask = local_ctx if self.sliding else global_ctx
        h = self.attention(self.attention_norm(x), cos, sin, mask)
        x = x + self.attention_post_norm(h)
        h = self.feed_forward(self.ffn_norm(x))
        return x + self.ffn_post_norm(h)


class Backbone(nn.Cell):
    def __init__(self, cfg):
        super().__init__()
        self.window = cfg.sliding_window
        self.embed_scale = math.sqrt(cfg.hidden_size)
        self.mix_last = cfg.mix_last
        self.wte = nn.Embedding(cfg.vocab_size, cfg.hidden_size)
        self.blocks = nn.CellList([Block(cfg, i) for i in range(cfg.num_layers)])
        self.final_norm = RMSNorm(cfg.hidden_size, cfg.rms_eps)
        self.layer_mix = zeros_param((cfg.mix_last,), "layer_mix")
        self.global_cos, self.global_sin = rope_tables(cfg, cfg.rope_theta, True)
        self.local_cos, self.local_sin = rope_tables(cfg, cfg.rope_local_theta, False)

    def attention_masks(self, attention_mask):
        s = attention_mask.shape[1]
        rows = ops.arange(s).reshape(s, 1)
        cols = ops.arange(s).reshape(1, s)
        causal = cols <= rows
        window = ops.logical_and(causal, cols > rows - self.window)
        keys = attention_mask.astype(ms.bool_).expand_dims(1).expand_dims(1)
        return ops.logical_and(window, keys), ops.logical_and(causal, keys)

    def construct(self, input_ids, attention_mask):
        local_mask, global_mask = self.attention_masks(attention_mask)
        pos = ops.cumsum(attention_mask.astype(ms.int32), 1) - 1
        pos = ops.maximum(pos, Tensor(0, ms.int32))
        local_ctx = (self.local_cos[pos].expand_dims(1), self.local_sin[pos].expand_dims(1), local_mask)
        global_ctx = (self.global_cos[pos].expand_dims(1), self.global_sin[pos].expand_dims(1), global_mask)

        x = self.wte(input_ids) * self.embed_scale
        hidden = []
        for block in self.blocks:
            x = block(x, local_ctx, global_ctx)
            hidden.append(x)
        weights = ops.softmax(self.layer_mix, axis=0).reshape(-1, 1, 1, 1)
        mixed = (ops.stack(hidden[-self.mix_last:], axis=0) * weights).sum(axis=0)
        return self.final_norm(x), self.final_norm(mixed)


class Pooler(nn.Cell):
    def __init__(self, cfg):
        super().__init__()
        d = cfg.hidden_size
        width = (2 + cfg.num_latents) * d + cfg.conv_dim
        self.latents = zeros_param((cfg.num_latents, d), "latents")
        self.key = nn.Dense(d, d)
        self.value = nn.Dense(d, d, has_bias=False)
        self.conv = nn.Conv1d(d, cfg.conv_dim, 3, stride=2, pad_mode="pad", padding=1, has_bias=True)
        self.act = nn.LeakyReLU(alpha=0.01)
        self.bn = nn.BatchNorm1d(width, eps=1e-3, momentum=0.9)
        self.proj = nn.Dense(width, cfg.pooled_dim)

    def last_token(self, hidden, attention_mask):
        if bool(attention_mask[:, -1].min() > 0):
            return hidden[:, -1]
        lengths = attention_mask.sum(axis=-1) - 1
        return hidden[ops.arange(hidden.shape[0]), lengths]

    def passage_mean(self, mixed, valid, token_type_ids):
        passage = valid * (token_type_ids == 1).astype(ms.float32)
        total = ops.matmul(passage.expand_dims(1), mixed).squeeze(1)
        count = passage.sum(axis=1, keepdims=True)
        return total / ops.maximum(count, Tensor(1.0, ms.float32))

    def latent_attention(self, mixed, valid):
        n, _, d = mixed.shape
        att = ops.matmul(self.latents, self.key(mixed).swapaxes(1, 2)) / math.sqrt(d)
        att = ops.masked_fill(att, valid.expand_dims(1) == 0, MASK_VALUE)
        att = ops.softmax(att, axis=-1)
        return ops.matmul(att, self.value(mixed)).reshape(n, -1)

    def conv_peak(self, mixed, valid):
        n, s = valid.shape
        x = (mixed * valid.expand_dims(-1)).transpose(0, 2, 1)
        frames = self.act(self.conv(x))
        # frame t has seen the tokens 2t-1, 2t, 2t+1
        padded = ops.concat([ops.zeros((n, 1), ms.float32), valid, ops.zeros((n, 1), ms.float32)], axis=1)
        seen = padded[:, 0:s:2] + padded[:, 1:s + 1:2] + padded[:, 2:s + 2:2]
        frames = ops.masked_fill(frames, seen.expand_dims(1) == 0, MASK_VALUE)
        return frames.max(axis=-1)

    def construct(self, last_hidden, mixed, attention_mask, token_type_ids):
        valid = attention_mask.astype(ms.float32)
        feats = ops.concat([
            self.last_token(last_hidden, attention_mask),
            self.passage_mean(mixed, valid, token_type_ids),
            self.latent_attention(mixed, valid),
            self.conv_peak(mixed, valid),
        ], axis=-1)
        return self.proj(self.bn(feats))


class ListwiseLayer(nn.Cell):
    def __init__(self, cfg):
        super().__init__()
        d = cfg.pooled_dim
        self.heads = cfg.list_heads
        self.head_dim = d // cfg.list_heads
        self.max_candidates = cfg.max_candidates
        self.rank_embed = nn.Embedding(cfg.max_candidates, d)
        self.rank_bias = zeros_param((cfg.list_heads, 2 * cfg.max_candidates - 1), "rank_bias")
        self.ln_1 = nn.LayerNorm((d,), epsilon=1e-5)
        self.qkv = nn.Dense(d, 3 * d)
        self.out = nn.Dense(d, d)
        self.ln_2 = nn.LayerNorm((d,), epsilon=1e-5)
        self.ffn = nn.SequentialCell(nn.Dense(d, 2 * d), nn.GELU(approximate=False), nn.Dense(2 * d, d))

    def construct(self, x, retriever_rank, candidate_mask):
        b, c, d = x.shape
        x = x + self.rank_embed(retriever_rank)
        qkv = self.qkv(self.ln_1(x)).reshape(b, c, 3, self.heads, self.head_dim)
        q, k, v = ops.unbind(qkv.transpose(2, 0, 3, 1, 4), 0)

        att = ops.matmul(q, k.swapaxes(-1, -2)) / math.sqrt(self.head_dim)
        offset = retriever_rank.expand_dims(2) - retriever_rank.expand_dims(1) + (self.max_candidates - 1)
        bias = ops.gather(self.rank_bias, offset, 1)
        att = att + bias.transpose(1, 0, 2, 3)
        att = ops.masked_fill(att, ops.logical_not(candidate_mask).reshape(b, 1, 1, c), MASK_VALUE)
        att = ops.softmax(att, axis=-1)
        ctx = ops.matmul(att, v).transpose(0, 2, 1, 3).reshape(b, c, d)
        x = x + self.out(ctx)
        return x + self.ffn(self.ln_2(x))


class PointerDecoder(nn.Cell):
    def __init__(self, cfg):
        super().__init__()
        d = cfg.pooled_dim
        self.norm = nn.LayerNorm((d,), epsilon=1e-5)
        self.start = nn.Dense(d, d)
        self.gate = nn.Dense(2 * d, d)
        self.cand = nn.Dense(2 * d, d)
        self.pointer = nn.Dense(d, d, has_bias=False)

    def construct(self, x, scores, candidate_mask):
        b, c, d = x.shape
        x = self.norm(x)
        weight = candidate_mask.astype(ms.float32).expand_dims(-1)
        state = ops.tanh(self.start((x * weight).sum(axis=1) / weight.sum(axis=1)))
        remaining = candidate_mask
        step_logp, order = [], []
        for _ in range(c):
            logits = ops.matmul(x, self.pointer(state).expand_dims(-1)).squeeze(-1) / math.sqrt(d) + scores
            logits = ops.masked_fill(logits, ops.logical_not(remaining), -1e4)
            logp = ops.log_softmax(logits, axis=-1)
            alive = remaining.astype(ms.int32).sum(axis=-1) > 0
            pick = ops.argmax(logits, dim=-1)
            one_hot = ops.arange(c).reshape(1, c) == pick.expand_dims(1)
            hit = one_hot.astype(ms.float32)
            step_logp.append((logp * hit).sum(axis=-1) * alive.astype(ms.float32))
            order.append(ops.where(alive, pick, ops.full_like(pick, -1)))
            chosen = (x * hit.expand_dims(-1)).sum(axis=1)
            both = ops.concat([state, chosen], axis=-1)
            z = ops.sigmoid(self.gate(both))
            new_state = z * state + (1 - z) * ops.tanh(self.cand(both))
            state = ops.where(alive.expand_dims(-1), new_state, state)
            remaining = ops.logical_and(remaining, ops.logical_not(one_hot))
        return ops.stack(step_logp, axis=1), ops.stack(order, axis=1), state


def plackett_luce_loss(scores, labels, mask):
    keys = ops.masked_fill(labels.astype(ms.float32), ops.logical_not(mask), -1.0)
    # small offset by position, so that equal labels keep their order
    keys = keys - ops.arange(scores.shape[1]).astype(ms.float32) * 1e-3
    _, order = ops.sort(keys, axis=-1, descending=True)
    s = ops.gather_elements(ops.masked_fill(scores, ops.logical_not(mask), MASK_VALUE), 1, order)
    m = ops.gather_elements(mask.astype(ms.float32), 1, order)
    top = s.max(axis=1, keepdims=True)
    tail = ops.cumsum(ops.flip(ops.exp(s - top), (1,)), 1)
    tail = ops.flip(ops.log(ops.maximum(tail, Tensor(1e-37, ms.float32))), (1,)) + top
    return ((tail - s) * m).sum(axis=1) / m.sum(axis=1)


def pairwise_loss(scores, labels, mask):
    gain = ops.pow(2.0, labels.astype(ms.float32)) - 1.0
    mask = mask.astype(ms.float32)
    diff = scores.expand_dims(2) - scores.expand_dims(1)
    weight = ops.relu(gain.expand_dims(2) - gain.expand_dims(1))
    weight = weight * mask.expand_dims(2) * mask.expand_dims(1)
    total = (ops.softplus(-diff) * weight).sum(axis=(1, 2))
    return total / ops.maximum(weight.sum(axis=(1, 2)), Tensor(1e-6, ms.float32))


class RankLLM(nn.Cell):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.backbone = Backbone(cfg)
        self.pooler = Pooler(cfg)
        self.listwise = ListwiseLayer(cfg)
        self.pointer_decoder = PointerDecoder(cfg)
        self.score_head = nn.Dense(cfg.pooled_dim, 1)
        self.yes_scale = zeros_param((1,), "yes_scale")

    def yes_log_prob(self, last_token):
        """The two rows of the tied head that are needed, instead of the logits of the whole vocabulary."""
        rows = self.backbone.wte.embedding_table[Tensor([self.cfg.no_token, self.cfg.yes_token], ms.int32)]
        logits = softcap(ops.matmul(last_token, rows.T), self.cfg.final_softcap)
        return ops.log_softmax(logits, axis=-1)[:, 1]

    def construct(self, input_ids, attention_mask, token_type_ids, retriever_rank, candidate_mask, labels, beta=0.5):
        b, c, s = input_ids.shape
        real = candidate_mask.astype(ms.bool_)
        real_f = candidate_mask.astype(ms.float32)
        tokens_mask = attention_mask.reshape(b * c, s)
        last_hidden, mixed = self.backbone(input_ids.reshape(b * c, s), tokens_mask)

        pooled = self.pooler(last_hidden, mixed, tokens_mask, token_type_ids.reshape(b * c, s))
        yes = self.yes_log_prob(last_hidden[:, -1]).reshape(b, c)

        listed = self.listwise(pooled.reshape(b, c, -1), retriever_rank, real)
        scores = self.score_head(listed).squeeze(-1) + ops.exp(self.yes_scale) * yes
        step_logp, order, state = self.pointer_decoder(listed, scores, real)

        center = (scores * real_f).sum(axis=1, keepdims=True) / real_f.sum(axis=1, keepdims=True)
        centred = scores - center
        floor = ops.masked_fill(centred, ops.logical_not(real), 1e4).min(axis=1, keepdims=True)
        centred = ops.where(real, centred, floor)

        discount = 1.0 / ops.log2(ops.arange(c).astype(ms.float32) + 2.0)
        gains = (ops.pow(2.0, labels.astype(ms.float32)) - 1.0) * real_f
        picked = ops.gather_elements(gains, 1, ops.maximum(order, Tensor(0, order.dtype)))
        dcg = (picked * (order >= 0).astype(ms.float32) * discount).sum(axis=1)
        best, _ = ops.sort(gains, axis=1, descending=True)
        ideal = (best * discount).sum(axis=1)

        loss = beta * plackett_luce_loss(scores, labels, real) + (1 - beta) * pairwise_loss(scores, labels, real)
        return centred, step_logp, listed, state, dcg / ideal, loss.mean()


def make_inputs(cfg):
    b, c, s = 2, 5, 18
    flat = np.arange(b * c)
    lengths = 8 + (flat * 7) % 11
    pos = np.arange(s)[None, :]
    attention_mask = (pos >= (s - lengths)[:, None]).astype(np.int64)
    query_len = 3 + flat // c
    token_type_ids = (pos >= (s - lengths + query_len)[:, None]).astype(np.int64)
    token_type_ids[:, -1] = 0
    input_ids = 3 + (flat[:, None] * 31 + pos * 13 + pos * pos * 5 + flat[:, None] * pos * 3) % (cfg.vocab_size - 3)
    input_ids = input_ids * attention_mask
    retriever_rank = np.array([[0, 1, 2, 3, 4], [2, 0, 3, 1, 4]])
    candidate_mask = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 1, 0]])
    labels = np.array([[1, 3, 0, 2, 0], [0, 1, 2, 0, 3]])
    arrays = (input_ids.reshape(b, c, s), attention_mask.reshape(b, c, s), token_type_ids.reshape(b, c, s),
              retriever_rank, candidate_mask, labels)
    return tuple(Tensor(a.astype(np.int64)) for a in arrays)


def build():
    ms.set_context(mode=ms.PYNATIVE_MODE)
    ms.set_seed(1234)
    cfg = Config()
    net = RankLLM(cfg)
    net.set_train(False)
    return net, make_inputs(cfg)
