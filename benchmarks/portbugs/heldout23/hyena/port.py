"""The long-convolution language model with local attention in MindSpore: the correct port."""

from __future__ import annotations

import math

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

BIGRAM_PRIMES = (36313, 27191)
PAD_TOKEN = 0
NEG = float(np.finfo(np.float32).min)


def as_float(mask, axis=None):
    """A mask as numbers, with one more axis if asked."""
    mask = mask.astype(ms.float32)
    return mask if axis is None else mask.expand_dims(axis)


def shift_right(x):
    """What stands one place before; nothing stands before the first place."""
    return ops.cat((ops.zeros_like(x[:, :1]), x[:, :-1]), axis=1)


class RMSNorm(nn.Cell):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = Parameter(Tensor(np.ones(dim, np.float32)), name="weight")

    def construct(self, x):
        mean_square = ops.square(x).mean(axis=-1, keep_dims=True)
        return self.weight * (x * ops.rsqrt(mean_square + self.eps))


class BigramEmbedding(nn.Cell):
    """Adds what a token and the one before it say together; pairs share buckets by a hash."""

    def __init__(self, buckets, bigram_dim, dim, eps):
        super().__init__()
        self.boundary = buckets - 1
        self.table = nn.Embedding(buckets, bigram_dim)
        self.norm = RMSNorm(bigram_dim, eps=eps)
        self.proj = nn.Dense(bigram_dim, dim, has_bias=False)
        self.scale = Parameter(Tensor(np.ones(dim, np.float32)), name="scale")

    def bucket(self, tokens, real):
        tokens = tokens.astype(ms.int32)
        before = shift_right(tokens)
        mixed = ops.bitwise_xor(tokens * BIGRAM_PRIMES[0], before * BIGRAM_PRIMES[1])
        flags = real.astype(ms.int32)
        no_pair = flags * shift_right(flags) == 0
        return ops.masked_fill(mixed % self.boundary, no_pair, self.boundary)

    def construct(self, tokens, real):
        rows = self.table(self.bucket(tokens, real))
        return self.scale * self.proj(self.norm(rows))


def long_conv(signal, kernel):
    """Causal convolution along the last axis by way of the frequencies."""
    n = signal.shape[-1]
    size = 2 * n
    product = ops.rfft(signal, size) * ops.rfft(kernel, size)
    return ops.irfft(product, size)[..., :n]


def positional_table(emb_dim, max_len):
    """(max_len, emb_dim): time from 0 to 1, then cosines, then sines with their sign turned."""
    bands = (emb_dim - 1) // 2
    time = np.linspace(0.0, 1.0, max_len)[:, None]
    angle = 2.0 * math.pi * np.arange(max_len)[:, None] / max_len
    angle = angle * np.linspace(1e-4, bands - 1, bands)[None, :]
    return np.concatenate((time, np.cos(angle), -np.sin(angle)), axis=1).astype(np.float32)


class Sin(nn.Cell):
    def __init__(self, dim):
        super().__init__()
        self.freq = Parameter(Tensor(np.ones((1, dim), np.float32)), name="freq")

    def construct(self, x):
        return ops.sin(x * self.freq)


class ExponentialModulation(nn.Cell):
    """Channels fade over time, the first ones slowly, the last ones fast."""

    def __init__(self, channels, fast_pct=0.3, slow_pct=1.5, target=0.01, shift=0.05):
        super().__init__()
        slow, fast = math.log(target) / slow_pct, math.log(target) / fast_pct
        self.rates = Tensor(np.abs(np.linspace(slow, fast, channels)).astype(np.float32))
        self.shift = shift

    def construct(self, time, h):
        return h * (ops.exp(-(time * self.rates)) + self.shift)


class HyenaFilter(nn.Cell):
    """The filters of all long convolutions of a block, from the places alone."""

    def __init__(self, dim, count, emb_dim, hidden, max_len):
        super().__init__()
        self.dim = dim
        self.count = count
        self.bias = Parameter(Tensor(np.zeros(dim * count, np.float32)), name="bias")
        self.places = Tensor(positional_table(emb_dim, max_len))
        self.implicit_filter = nn.SequentialCell(
            nn.Dense(emb_dim, hidden),
            Sin(hidden),
            nn.Dense(hidden, hidden),
            Sin(hidden),
            nn.Dense(hidden, dim * count, has_bias=False),
        )
        self.modulation = ExponentialModulation(dim * count)

    def construct(self, length):
        places = self.places[:length]
        h = self.implicit_filter(places)
        h = self.modulation(places[:, :1], h)
        h = h / ops.abs(h).sum(axis=0, keepdims=True)
        filters = h.reshape(length, self.dim, self.count).transpose(2, 1, 0)
        skips = self.bias.reshape(self.dim, self.count).T
        return filters, skips


class HyenaOperator(nn.Cell):
    def __init__(self, cfg, dilation):
        super().__init__()
        self.order = cfg["order"]
        dim, kernel = cfg["dim"], cfg["short_kernel"]
        inner = dim * (self.order + 1)
        self.in_proj = nn.Dense(dim, inner)
        # padded on both sides, the construct keeps the causal part
        self.short_filter = nn.Conv1d(inner, inner, kernel, pad_mode="pad", padding=(kernel - 1) * dilation,
                                      dilation=dilation, group=inner, has_bias=True)
        self.filter_fn = HyenaFilter(dim, self.order - 1, cfg["filter_emb_dim"], cfg["filter_hidden"], cfg["max_len"])
        self.dropout = nn.Dropout(p=cfg["dropout"])
        self.out_proj = nn.Dense(dim, dim)

    def short_convs(self, x, real):
        """The streams (batch, order + 1, dim, length) after projection and short convolution."""
        batch, length, dim = x.shape
        alive = as_float(real, 1)
        streams = self.in_proj(x).swapaxes(1, 2) * alive
        streams = self.short_filter(streams)[:, :, :length]
        streams = streams * alive
        return streams.reshape(batch, self.order + 1, dim, length)

    def construct(self, x, real):
        streams = self.short_convs(x, real)
        filters, skips = self.filter_fn(x.shape[1])
        state = streams[:, self.order]
        for step in range(self.order - 1):
            gate = streams[:, self.order - 1 - step]
            gated = self.dropout(state * gate)
            state = long_conv(gated, filters[step]) + gated * skips[step].expand_dims(1)
        state = state * streams[:, 0]
        return self.out_proj(state.swapaxes(1, 2))


def geometric_slopes(n):
    ratio = 2.0 ** (-8.0 / n)
    return ratio ** np.arange(1, n + 1)


def head_slopes(heads):
    """ALiBi's slopes; what is missing to a power of two is taken from the next finer series, every other one."""
    base = 1 << (heads.bit_length() - 1)
    slopes = geometric_slopes(base)
    if base < heads:
        slopes = np.concatenate((slopes, geometric_slopes(2 * base)[::2][: heads - base]))
    return slopes.astype(np.float32)


def with_previous(x):
    """(batch, chunks, size, ...) -> (batch, chunks, 2 * size, ...): each chunk after the one before it."""
    before = ops.cat((ops.zeros_like(x[:, :1]), x[:, :-1]), axis=1)
    return ops.cat((before, x), axis=2)


class LocalAttention(nn.Cell):
    """Each token looks at the last few, itself included; keys and values are shared by groups of heads."""

    def __init__(self, cfg):
        super().__init__()
        self.heads, self.kv_heads, self.width = cfg["num_heads"], cfg["num_kv_heads"], cfg["head_dim"]
        self.window = cfg["window"]
        dim, inner = cfg["dim"], self.heads * self.width
        self.q_proj = nn.Dense(dim, inner, has_bias=False)
        self.kv_proj = nn.Dense(dim, 2 * self.kv_heads * self.width, has_bias=False)
        self.out_proj = nn.Dense(inner, dim)
        self.dropout = nn.Dropout(p=cfg["dropout"])
        size = self.window
        offset = size + np.arange(size)[:, None] - np.arange(2 * size)[None, :]
        self.inside = Tensor((offset >= 0) & (offset < self.window))
        self.bias = Tensor((-head_slopes(self.heads)[:, None, None] * offset).astype(np.float32))

    def grouped(self, x):
        """Keys or values (batch, chunks, size, kv heads, width) with the chunk before, one for each head, heads first."""
        x = with_previous(x)
        x = x.repeat_interleave(self.heads // self.kv_heads, 3)
        return x.transpose(0, 1, 3, 2, 4)

    def construct(self, x, real):
        batch, length, _ = x.shape
        size = self.window
        chunks = -(-length // size)
        missing = chunks * size - length
        flags = real.astype(ms.int32)
        if missing > 0:
            x = ops.cat((x, ops.zeros((batch, missing, x.shape[2]), x.dtype)), axis=1)
            flags = ops.cat((flags, ops.zeros((batch, missing), ms.int32)), axis=1)

        query = self.q_proj(x).reshape(batch, chunks, size, self.heads, self.width).transpose(0, 1, 3, 2, 4)
        pairs = self.kv_proj(x).reshape(batch, chunks, size, 2, self.kv_heads, self.width)
        key, value = self.grouped(pairs[:, :, :, 0]), self.grouped(pairs[:, :, :, 1])

        key_flags = with_previous(flags.reshape(batch, chunks, size))
        visible = ops.logical_and(self.inside, key_flags.expand_dims(2) > 0)

        logits = ops.matmul(query, key.swapaxes(-1, -2)) / math.sqrt(self.width)
        logits = logits + self.bias
        logits = ops.masked_fill(logits, ops.logical_not(visible).expand_dims(2), NEG)
        mixed = ops.matmul(self.dropout(ops.softmax(logits, axis=-1)), value)
        mixed = mixed.transpose(0, 1, 3, 2, 4).reshape(batch, chunks * size, self.heads * self.width)
        return self.out_proj(mixed[:, :length]) * as_float(real, -1)


class GatedMLP(nn.Cell):
    def __init__(self, dim, hidden, dropout):
        super().__init__()
        self.hidden = hidden
        self.fc1 = nn.Dense(dim, 2 * hidden)
        self.act = nn.GELU(approximate=False)
        self.dropout = nn.Dropout(p=dropout)
        self.fc2 = nn.Dense(hidden, dim)

    def construct(self, x):
        both = self.fc1(x)
        opened = both[..., : self.hidden] * self.act(both[..., self.hidden :])
        return self.fc2(self.dropout(opened))


class Block(nn.Cell):
    def __init__(self, cfg, mixer):
        super().__init__()
        self.norm1 = RMSNorm(cfg["dim"], eps=cfg["norm_eps"])
        self.mixer = mixer
        self.norm2 = RMSNorm(cfg["dim"], eps=cfg["norm_eps"])
        self.mlp = GatedMLP(cfg["dim"], cfg["mlp_hidden"], cfg["dropout"])

    def construct(self, x, real):
        x = x + self.mixer(self.norm1(x), real)
        return x + self.mlp(self.norm2(x))


class ClassifierHead(nn.Cell):
    def __init__(self, dim, hidden, classes, dropout):
        super().__init__()
        self.fc1 = nn.Dense(dim, hidden)
        self.bn = nn.BatchNorm1d(hidden, eps=1e-5)
        self.act = nn.LeakyReLU(alpha=0.05)
        self.dropout = nn.Dropout(p=dropout)
        self.fc2 = nn.Dense(hidden, classes)

    def construct(self, hidden, real):
        batch, length, dim = hidden.shape
        last = (real.astype(ms.int32) * ops.arange(length).astype(ms.int32)).argmax(axis=1)
        chosen = ops.broadcast_to(last.reshape(batch, 1, 1), (batch, 1, dim))
        pooled = ops.gather_elements(hidden, 1, chosen).squeeze(1)
        return self.fc2(self.dropout(self.act(self.bn(self.fc1(pooled)))))


DEFAULTS = dict(
    vocab_size=61, dim=36, depth=6, attention_every=3, bigram_buckets=89, bigram_dim=14, order=3, short_kernel=3,
    short_dilations=(1, 2), max_len=48, filter_emb_dim=9, filter_hidden=16, num_heads=6, num_kv_heads=2, head_dim=10,
    window=7, mlp_hidden=52, head_hidden=23, num_classes=11, dropout=0.1, norm_eps=1e-5, logit_cap=6.0,
)


def make_blocks(cfg):
    """Hyena operators with growing dilation, then an attention, and so on."""
    period = cfg["attention_every"]
    blocks = []
    for i in range(cfg["depth"]):
        if i % period == period - 1:
            mixer = LocalAttention(cfg)
        else:
            mixer = HyenaOperator(cfg, cfg["short_dilations"][i % period])
        blocks.append(Block(cfg, mixer))
    return blocks


class HyenaLM(nn.Cell):
    """Tokens (batch, length) with padding on the left -> scores of classes, logits, scores of the next tokens."""

    def __init__(self, **changes):
        super().__init__()
        cfg = {**DEFAULTS, **changes}
        self.cap = cfg["logit_cap"]
        self.tok_emb = nn.Embedding(cfg["vocab_size"], cfg["dim"])
        self.bigram = BigramEmbedding(cfg["bigram_buckets"], cfg["bigram_dim"], cfg["dim"], cfg["norm_eps"])
        self.drop = nn.Dropout(p=cfg["dropout"])
        self.blocks = nn.CellList(make_blocks(cfg))
        self.norm_f = RMSNorm(cfg["dim"], eps=cfg["norm_eps"])
        self.head = ClassifierHead(cfg["dim"], cfg["head_hidden"], cfg["num_classes"], cfg["dropout"])

    def token_logits(self, hidden, alive):
        logits = ops.matmul(hidden, self.tok_emb.embedding_table.T)
        return ops.tanh(logits / self.cap) * self.cap * alive

    def construct(self, input_ids, attention_mask):
        real = attention_mask.astype(ms.bool_)
        alive = as_float(real, -1)
        x = self.drop(self.tok_emb(input_ids) + self.bigram(input_ids, real)) * alive
        for block in self.blocks:
            x = block(x, real)
        x = self.norm_f(x)

        logits = self.token_logits(x, alive)
        targets = input_ids[:, 1:].expand_dims(-1)
        likely = ops.gather_elements(ops.log_softmax(logits[:, :-1], -1), 2, targets).squeeze(-1)
        counted = as_float(real)[:, 1:] * as_float(real)[:, :-1]
        return self.head(x, real), logits, likely * counted


def build():
    """The net alone, for evaluation: weights and inputs come from the reference's dump."""
    net = HyenaLM()
    net.set_train(False)
    return net
