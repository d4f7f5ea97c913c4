"""LinRec for MindSpore (PyNative): language model with linear recurrent attention.

Whole sequences run in chunks, generation runs token by token from a cache.  Batches are padded on the left.
"""
import math
from dataclasses import dataclass

import numpy as np
import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import Normal, initializer

ms.set_context(mode=ms.PYNATIVE_MODE)


@dataclass
class LinRecConfig:
    vocab_size: int = 53
    dim: int = 40
    n_layers: int = 3
    n_heads: int = 3
    head_key: int = 8
    head_value: int = 12
    hidden: int = 56
    lora_rank: int = 6
    conv_kernel: int = 3
    chunk: int = 5
    max_len: int = 64
    rotary_base: float = 1000.0
    rescale_every: int = 2
    norm_eps: float = 1e-5
    head_norm_eps: float = 64e-5
    logit_cap: float = 15.0
    label_smoothing: float = 0.05
    z_loss: float = 1e-2
    repetition_penalty: float = 1.3
    pad_id: int = 0
    eos_id: int = 8


def linear(in_channels, out_channels, bias=False):
    return nn.Dense(in_channels, out_channels, has_bias=bias)


def rotate_pairs(x):
    even, odd = x[..., 0::2], x[..., 1::2]
    return ops.stack((-odd, even), axis=-1).reshape(x.shape)


def rotate(x, cos, sin):
    # x (B, H, T, K), tables (B, T, K)
    return x * cos.expand_dims(1) + rotate_pairs(x) * sin.expand_dims(1)


class LinearAttention(nn.Cell):
    """The recurrence of all heads: holds the bonus of the current token, offers the chunked and the stepwise form.

    y_t = r_t (S_{t-1} + diag(bonus) k_t v_t^T),   S_t = w_t S_{t-1} + k_t v_t^T
    """

    def __init__(self, n_heads, head_key, chunk):
        super().__init__()
        self.chunk = chunk
        self.bonus = Parameter(initializer(Normal(0.5), (n_heads, head_key), ms.float32), name="bonus")
        self.strict = Tensor(np.tril(np.ones((chunk, chunk), dtype=bool), -1))

    def parallel(self, r, k, v, log_w, state):
        batch, heads, length, dk = r.shape
        dv = v.shape[-1]
        size = self.chunk
        n_chunks = (length + size - 1) // size
        extra = n_chunks * size - length
        if extra > 0:
            r = ops.cat((r, ops.zeros((batch, heads, extra, dk), r.dtype)), axis=2)
            k = ops.cat((k, ops.zeros((batch, heads, extra, dk), k.dtype)), axis=2)
            v = ops.cat((v, ops.zeros((batch, heads, extra, dv), v.dtype)), axis=2)
            log_w = ops.cat((log_w, ops.zeros((batch, heads, extra), log_w.dtype)), axis=2)
        r = r.reshape(batch, heads, n_chunks, size, dk)
        k = k.reshape(batch, heads, n_chunks, size, dk)
        v = v.reshape(batch, heads, n_chunks, size, dv)
        log_w = log_w.reshape(batch, heads, n_chunks, size)

        upto = ops.cumsum(log_w, -1)                     # decay of the chunk up to and with a position
        prior = upto - log_w                             # ... without it
        whole = upto[..., -1:]

        # positions of the same chunk
        gap = prior.expand_dims(-1) - upto.expand_dims(-2)
        weight = ops.exp(ops.masked_fill(gap, ops.logical_not(self.strict), -1e9))
        attn = ops.matmul(r, k.swapaxes(-1, -2)) * weight
        own = (r * self.bonus.reshape(1, heads, 1, 1, dk) * k).sum(-1)
        out = ops.matmul(attn, v) + own.expand_dims(-1) * v

        # the chunks before
        outgoing = k * ops.exp(whole - upto).expand_dims(-1)
        writes = ops.matmul(outgoing.swapaxes(-1, -2), v)
        incoming = r * ops.exp(prior).expand_dims(-1)
        pieces = []
        for i in range(n_chunks):
            pieces.append(out[:, :, i] + ops.matmul(incoming[:, :, i], state))
            state = state * ops.exp(whole[:, :, i]).expand_dims(-1) + writes[:, :, i]
        y = ops.cat(pieces, axis=2)
        return y[:, :, :length], state

    def step(self, r, k, v, log_w, state):
        # a single token: r, k (B, H, 1, K), v (B, H, 1, V), log_w (B, H, 1)
        write = ops.matmul(k.swapaxes(-1, -2), v)
        y = ops.matmul(r, state + self.bonus.expand_dims(0).expand_dims(-1) * write)
        state = state * ops.exp(log_w).expand_dims(-1) + write
        return y, state

    def construct(self, r, k, v, log_w, state):
        if r.shape[2] == 1:
            return self.step(r, k, v, log_w, state)
        return self.parallel(r, k, v, log_w, state)


class RotaryTable(nn.Cell):
    def __init__(self, dim, max_len, base):
        super().__init__()
        inv_freq = 1.0 / (base ** (np.arange(0, dim, 2, dtype=np.float32) / dim))
        angles = np.outer(np.arange(max_len, dtype=np.float32), inv_freq)
        angles = np.repeat(angles, 2, axis=-1)
        self.cos = Tensor(np.cos(angles).astype(np.float32))
        self.sin = Tensor(np.sin(angles).astype(np.float32))

    def construct(self, positions):
        return self.cos[positions], self.sin[positions]


class TokenShift(nn.Cell):
    def __init__(self, dim, n):
        super().__init__()
        self.n = n
        self.mix = Parameter(Tensor(np.random.rand(n, dim).astype(np.float32)), name="mix")

    def construct(self, x, last=None):
        if last is None:
            last = ops.zeros_like(x[:, 0])
        shifted = ops.cat((last.expand_dims(1), x[:, :-1]), axis=1) if x.shape[1] > 1 else last.expand_dims(1)
        diff = shifted - x
        return [x + diff * self.mix[i] for i in range(self.n)], x[:, -1]


class ShortConv(nn.Cell):
    """depthwise causal convolution; the cache keeps the inputs that the next tokens still see"""

    def __init__(self, channels, kernel, dilation):
        super().__init__()
        self.kernel = kernel
        self.dilation = dilation
        self.span = (kernel - 1) * dilation
        self.conv = nn.Conv1d(channels, channels, kernel, pad_mode="pad", padding=self.span, dilation=dilation,
                              group=channels, has_bias=True)

    def construct(self, x, cache=None):
        batch, length, channels = x.shape
        h = x.swapaxes(1, 2)
        if cache is None:
            y = self.conv(h)[:, :, :length]
            seen = ops.cat((ops.zeros((batch, channels, self.span), h.dtype), h), axis=-1)
        else:
            seen = ops.cat((cache, h), axis=-1)
            taps = self.conv.weight.reshape(channels, self.kernel)
            y = self.conv.bias.reshape(1, channels, 1)
            for j in range(self.kernel):
                begin = j * self.dilation
                y = y + seen[:, :, begin:begin + length] * taps[:, j].reshape(1, channels, 1)
        return ops.silu(y).swapaxes(1, 2), seen[:, :, -self.span:]


class HeadDecay(nn.Cell):
    def __init__(self, dim, n_heads, rank):
        super().__init__()
        gamma = 1.0 - np.exp(np.linspace(math.log(1 / 2), math.log(1 / 24), n_heads))
        self.log_gamma = Tensor(np.log(gamma), ms.float32)
        self.down = linear(dim, rank)
        self.up = linear(rank, n_heads, bias=True)

    def construct(self, x):
        bend = self.up(ops.tanh(self.down(x)))
        return self.log_gamma * ops.exp(ops.clamp(bend, -2.0, 2.0))


class TimeMix(nn.Cell):
    def __init__(self, cfg, layer_id):
        super().__init__()
        self.layer_id = layer_id
        self.n_heads, self.head_key, self.head_value = cfg.n_heads, cfg.head_key, cfg.head_value
        self.key_dim = cfg.n_heads * cfg.head_key
        self.value_dim = cfg.n_heads * cfg.head_value
        self.scale = self.head_key ** -0.5
        self.shift = TokenShift(cfg.dim, 5)
        self.receptance = linear(cfg.dim, self.key_dim)
        self.key = linear(cfg.dim, self.key_dim)
        self.value = linear(cfg.dim, self.value_dim)
        self.gate = linear(cfg.dim, self.value_dim)
        self.conv = ShortConv(self.key_dim + self.value_dim, cfg.conv_kernel, 1 + layer_id % 2)
        self.decay = HeadDecay(cfg.dim, cfg.n_heads, cfg.lora_rank)
        self.value_gate = linear(cfg.dim, self.value_dim, bias=True) if layer_id > 0 else None
        self.core = LinearAttention(cfg.n_heads, cfg.head_key, cfg.chunk)
        self.head_norm = nn.GroupNorm(cfg.n_heads, self.value_dim, eps=cfg.head_norm_eps)
        self.output = linear(self.value_dim, cfg.dim)

    def split_heads(self, x, width):
        batch, length, _ = x.shape
        return x.reshape(batch, length, self.n_heads, width).transpose(0, 2, 1, 3)

    def construct(self, x, mask, tables, v_first, cache):
        batch, length, _ = x.shape
        last, conv_cache, state = cache

        (x_r, x_k, x_v, x_g, x_w), last = self.shift(x, last)
        r = self.receptance(x_r)
        kv = ops.cat((self.key(x_k), self.value(x_v)), axis=-1)
        kv, conv_cache = self.conv(kv, conv_cache)
        k = kv[..., :self.key_dim] * mask.expand_dims(-1)
        v = kv[..., self.key_dim:]
        g = ops.silu(self.gate(x_g))
        log_w = self.decay(x_w).swapaxes(1, 2)
        if self.layer_id == 0:
            v_first = v
        else:
            v = ops.lerp(v, v_first, ops.sigmoid(self.value_gate(x_v)))

        cos, sin = tables
        r = rotate(self.split_heads(r, self.head_key), cos, sin) * self.scale
        k = rotate(self.split_heads(k, self.head_key), cos, sin)
        v = self.split_heads(v, self.head_value)
        if state is None:
            state = ops.zeros((batch, self.n_heads, self.head_key, self.head_value), x.dtype)
        y, state = self.core(r, k, v, log_w, state)

        y = y.transpose(0, 2, 1, 3).reshape(batch * length, self.value_dim)
        y = self.head_norm(y).reshape(batch, length, self.value_dim)
        return self.output(y * g), v_first, (last, conv_cache, state)


class ChannelMix(nn.Cell):
    def __init__(self, dim, hidden):
        super().__init__()
        self.shift = TokenShift(dim, 2)
        self.key = linear(dim, hidden)
        self.receptance = linear(dim, dim)
        self.value = linear(hidden, dim)

    def construct(self, x, last=None):
        (x_k, x_r), last = self.shift(x, last)
        k = ops.square(ops.relu(self.key(x_k)))
        return ops.sigmoid(self.receptance(x_r)) * self.value(k), last


class GatedFFN(nn.Cell):
    def __init__(self, dim, hidden):
        super().__init__()
        self.inp = linear(dim, 2 * hidden, bias=True)
        self.act = nn.GELU(approximate=False)
        self.out = linear(hidden, dim, bias=True)

    def construct(self, x, last=None):
        value, gate = ops.chunk(self.inp(x), 2, axis=-1)
        return self.out(value * self.act(gate)), None


class Block(nn.Cell):
    def __init__(self, cfg, layer_id):
        super().__init__()
        self.ln1 = nn.LayerNorm((cfg.dim,), epsilon=cfg.norm_eps)
        self.ln2 = nn.LayerNorm((cfg.dim,), epsilon=cfg.norm_eps)
        self.att = TimeMix(cfg, layer_id)
        self.ffn = GatedFFN(cfg.dim, cfg.hidden) if layer_id % 2 == 1 else ChannelMix(cfg.dim, cfg.hidden)

    def construct(self, x, mask, tables, v_first, cache):
        att_cache, ffn_cache = cache
        keep = mask.expand_dims(-1)
        h, v_first, att_cache = self.att(self.ln1(x) * keep, mask, tables, v_first, att_cache)
        x = x + h
        h, ffn_cache = self.ffn(self.ln2(x) * keep, ffn_cache)
        x = x + h
        return x, v_first, (att_cache, ffn_cache)


class LinRecLM(nn.Cell):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.embed = nn.Embedding(cfg.vocab_size, cfg.dim)
        self.ln_in = nn.LayerNorm((cfg.dim,), epsilon=cfg.norm_eps)
        self.rotary = RotaryTable(cfg.head_key, cfg.max_len, cfg.rotary_base)
        self.blocks = nn.CellList([Block(cfg, i) for i in range(cfg.n_layers)])
        self.ln_out = nn.LayerNorm((cfg.dim,), epsilon=cfg.norm_eps)
        self.head = linear(cfg.dim, cfg.vocab_size)

    def empty_cache(self):
        return [((None, None, None), None)] * self.cfg.n_layers

    def backbone(self, ids, mask, positions, caches):
        x = self.ln_in(self.embed(ids))
        tables = self.rotary(positions)
        v_first = None
        new_caches = []
        for i, block in enumerate(self.blocks):
            x, v_first, cache = block(x, mask, tables, v_first, caches[i])
            new_caches.append(cache)
            if (i + 1) % self.cfg.rescale_every == 0:
                x = x * 0.5
        logits = self.head(self.ln_out(x))
        cap = self.cfg.logit_cap
        return cap * ops.tanh(logits / cap), new_caches

    def loss(self, logits, ids, mask):
        cfg = self.cfg
        vocab = logits.shape[-1]
        labels = ops.masked_fill(ids, mask == 0, -100)[:, 1:].reshape(-1).astype(ms.int32)
        flat = logits[:, :-1].reshape(-1, vocab)
        ce = ops.cross_entropy(flat, labels, ignore_index=-100, label_smoothing=cfg.label_smoothing)
        valid = (labels != -100).astype(flat.dtype)
        log_z = ops.logsumexp(flat, -1)
        z = (ops.square(log_z) * valid).sum() / ops.clamp(valid.sum(), min=1.0)
        return ce + cfg.z_loss * z

    def penalize(self, logits, seen):
        penalty = self.cfg.repetition_penalty
        lowered = ops.where(logits > 0, logits / penalty, logits * penalty)
        return ops.where(seen > 0, lowered, logits)

    def generate(self, logits, ids, mask, caches, max_new):
        cfg = self.cfg
        batch = ids.shape[0]
        next_logits = logits[:, -1]
        lengths = mask.sum(axis=1).astype(ms.int32)
        is_pad = ops.arange(cfg.vocab_size) == cfg.pad_id
        seen = (ops.one_hot(ids, cfg.vocab_size, 1.0, 0.0) * mask.expand_dims(-1)).sum(1)
        alive = ops.ones((batch,), ms.float32)
        score = ops.zeros((batch,), ms.float32)
        tokens, step_logits = [], []
        for step in range(max_new):
            scores = ops.masked_fill(self.penalize(next_logits, seen), is_pad, -1e4)
            log_probs = ops.log_softmax(scores, -1)
            best = ops.argmax(scores, dim=-1).astype(ms.int32)
            chosen = ops.gather_elements(log_probs, 1, best.expand_dims(-1)).squeeze(-1)
            score = score + chosen * alive
            token = ops.where(alive > 0, best, ops.full_like(best, cfg.pad_id))
            tokens.append(token)
            step_logits.append(next_logits)
            seen = seen + ops.one_hot(token, cfg.vocab_size, 1.0, 0.0) * alive.expand_dims(-1)
            alive = alive * (token != cfg.eos_id).astype(ms.float32)
            positions = (lengths + step).expand_dims(-1)
            out, caches = self.backbone(token.expand_dims(-1), alive.expand_dims(-1), positions, caches)
            next_logits = out[:, 0]
        tokens = ops.stack(tokens, axis=1)
        score = score / (tokens != cfg.pad_id).astype(ms.float32).sum(axis=1)
        states = ops.stack([att_cache[2] for att_cache, _ in caches], axis=1)
        return tokens, ops.stack(step_logits, axis=1), score, states

    def construct(self, ids, mask, max_new):
        positions = ops.clamp(ops.cumsum(mask, 1) - 1, min=0).astype(ms.int32)
        logits, caches = self.backbone(ids, mask, positions, self.empty_cache())
        loss = self.loss(logits, ids, mask)
        tokens, step_logits, score, states = self.generate(logits, ids, mask, caches, max_new)
        return logits, loss, step_logits, score, states, tokens


def make_inputs():
    rng = np.random.RandomState(11)
    ids = rng.randint(3, 53, size=(2, 18))
    mask = np.ones((2, 18), dtype=np.float32)
    mask[1, :4] = 0
    ids[mask == 0] = 0
    return ids, mask


def build():
    ms.set_seed(5)
    np.random.seed(5)
    net = LinRecLM(LinRecConfig())
    net.set_train(False)
    ids, mask = make_inputs()
    return net, (Tensor(ids, ms.int32), Tensor(mask, ms.float32), 5)
