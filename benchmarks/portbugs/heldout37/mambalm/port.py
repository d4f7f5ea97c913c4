"""MindSpore port of the hybrid state-space / attention language model (PYNATIVE)."""
import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

ms.set_context(mode=ms.PYNATIVE_MODE)

CONFIG = dict(
    vocab_size=59, hidden_size=36,
    layer_types=["ssm", "attn", "ssm", "attn", "ssm"],
    scan_modes=["loop", None, "chunk", None, "chunk"],
    windows=[None, 6, None, None, None],
    norm_eps=1e-5,
    d_inner=60, d_state=7, d_conv=4, dt_rank=5, chunk_size=5, norm_groups=4, mlp_dim=50,
    num_heads=6, num_kv_heads=2, head_dim=14, rotary_dim=8, rope_theta=500.0, attn_softcap=8.0,
    num_experts=5, top_k=2, expert_dim=22, shared_dim=18,
    balance_coef=0.05, z_coef=0.01, ignore_index=-100,
)


class RMSNorm(nn.Cell):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = Parameter(Tensor(np.ones(dim), ms.float32), name="weight")
        self.eps = eps

    def construct(self, x):
        variance = ops.square(x.astype(ms.float32)).mean(-1, keep_dims=True)
        return self.weight * (x * ops.rsqrt(variance + self.eps))


class RotaryTable(nn.Cell):
    def __init__(self, rotary_dim, theta):
        super().__init__()
        exponent = np.arange(0, rotary_dim, 2, dtype=np.float32) / rotary_dim
        self.inv_freq = Tensor(1.0 / theta ** exponent, ms.float32)

    def construct(self, positions):
        angles = positions.astype(ms.float32).expand_dims(-1) * self.inv_freq
        angles = ops.cat((angles, angles), axis=-1).expand_dims(1)  # (B, 1, L, R)
        return ops.cos(angles), ops.sin(angles)


def rotate(x, cos, sin):
    """Turns the leading channels of x, (B, H, L, D)."""
    rot = cos.shape[-1]
    half = rot // 2
    head, tail = x[..., :rot], x[..., rot:]
    turned = ops.cat((-head[..., half:], head[..., :half]), axis=-1)
    return ops.cat((head * cos + turned * sin, tail), axis=-1)


class GatedMLP(nn.Cell):
    def __init__(self, dim, hidden_dim):
        super().__init__()
        self.gate = nn.Dense(dim, hidden_dim, has_bias=False)
        self.up = nn.Dense(dim, hidden_dim, has_bias=False)
        self.down = nn.Dense(hidden_dim, dim, has_bias=False)

    def construct(self, x):
        return self.down(ops.silu(self.gate(x)) * self.up(x))


class SelectiveSSM(nn.Cell):
    def __init__(self, cfg, scan_mode):
        super().__init__()
        d_inner, d_state = cfg["d_inner"], cfg["d_state"]
        self.d_inner, self.d_state, self.dt_rank = d_inner, d_state, cfg["dt_rank"]
        self.scan_mode, self.chunk_size = scan_mode, cfg["chunk_size"]
        self.in_proj = nn.Dense(cfg["hidden_size"], 2 * d_inner, has_bias=False)
        self.conv = nn.Conv1d(d_inner, d_inner, cfg["d_conv"], pad_mode="pad", padding=cfg["d_conv"] - 1,
                              group=d_inner, has_bias=True)
        self.x_proj = nn.Dense(d_inner, self.dt_rank + 2 * d_state, has_bias=False)
        self.dt_norm = RMSNorm(self.dt_rank, cfg["norm_eps"])
        self.b_norm = RMSNorm(d_state, cfg["norm_eps"])
        self.c_norm = RMSNorm(d_state, cfg["norm_eps"])
        self.dt_proj = nn.Dense(self.dt_rank, d_inner)
        a = np.tile(np.arange(1, d_state + 1, dtype=np.float32), (d_inner, 1))
        self.A_log = Parameter(Tensor(np.log(a)), name="A_log")
        self.D = Parameter(Tensor(np.ones(d_inner), ms.float32), name="D")
        self.group_norm = nn.GroupNorm(cfg["norm_groups"], d_inner, eps=64e-5)
        self.out_proj = nn.Dense(d_inner, cfg["hidden_size"], has_bias=False)

    def scan_steps(self, u, delta, A, B, C):
        bsz, length, d = u.shape
        decay = ops.exp(delta.expand_dims(-1) * A)  # (B, L, D, N)
        update = (delta * u).expand_dims(-1) * B.expand_dims(2)
        h = ops.zeros((bsz, d, self.d_state), u.dtype)
        outputs = []
        for t in range(length):
            h = decay[:, t] * h + update[:, t]
            outputs.append((h * C[:, t].expand_dims(1)).sum(-1))
        return ops.stack(outputs, axis=1)

    def scan_chunks(self, u, delta, A, B, C):
        bsz, length, d = u.shape
        n, q = self.d_state, self.chunk_size
        num_chunks = (length + q - 1) // q
        pad = num_chunks * q - length
        if pad > 0:
            u, delta, B, C = [ops.cat((x, ops.zeros((bsz, pad, x.shape[-1]), x.dtype)), axis=1)
                              for x in (u, delta, B, C)]
        log_a = (delta.expand_dims(-1) * A).reshape(bsz, num_chunks, q, d, n)
        update = ((delta * u).expand_dims(-1) * B.expand_dims(2)).reshape(bsz, num_chunks, q, d, n)
        C = C.reshape(bsz, num_chunks, q, 1, n)
        cum = ops.cumsum(log_a, 2)

        # within a chunk
        diff = cum.expand_dims(3) - cum.expand_dims(2)  # (B, K, target, source, D, N)
        tril = Tensor(np.tril(np.ones((q, q), bool)).reshape(1, 1, q, q, 1, 1))
        diff = ops.masked_fill(diff, ops.logical_not(tril), -1e9)
        local = (ops.exp(diff) * update.expand_dims(2)).sum(3)  # (B, K, Q, D, N)
        y_local = (local * C).sum(-1)

        # between chunks
        remaining = ops.exp(cum[:, :, -1:] - cum)
        ends = (remaining * update).sum(2)
        total = ops.exp(cum[:, :, -1])
        h = ops.zeros((bsz, d, n), u.dtype)
        starts = []
        for c in range(num_chunks):
            starts.append(h)
            h = total[:, c] * h + ends[:, c]
        starts = ops.stack(starts, axis=1).expand_dims(2)
        y_carried = (ops.exp(cum) * starts * C).sum(-1)

        y = (y_local + y_carried).reshape(bsz, num_chunks * q, d)
        return y[:, :length]

    def construct(self, hidden, attention_mask, cos=None, sin=None):
        bsz, length, _ = hidden.shape
        keep = attention_mask.astype(hidden.dtype).expand_dims(-1)
        projected = self.in_proj(hidden)
        x, gate = projected[..., :self.d_inner], projected[..., self.d_inner:]

        x = (x * keep).swapaxes(1, 2)
        x = self.conv(x)[:, :, :length].swapaxes(1, 2)
        x = ops.silu(x) * keep

        params = self.x_proj(x)
        dt, B, C = ops.split(params, [self.dt_rank, self.d_state, self.d_state], axis=-1)
        dt = self.dt_norm(dt)
        B = self.b_norm(B)
        C = self.c_norm(C)
        delta = ops.softplus(self.dt_proj(dt))
        A = -ops.exp(self.A_log)
        scan = self.scan_steps if self.scan_mode == "loop" else self.scan_chunks
        y = scan(x, delta, A, B, C) + self.D * x

        y = y * ops.silu(gate)
        y = self.group_norm(y.reshape(bsz * length, self.d_inner, 1, 1)).reshape(bsz, length, self.d_inner)
        return self.out_proj(y)


class GroupedAttention(nn.Cell):
    def __init__(self, cfg, window):
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = cfg["num_heads"], cfg["num_kv_heads"], cfg["head_dim"]
        self.window = window
        self.softcap = cfg["attn_softcap"]
        dim = cfg["hidden_size"]
        self.q_proj = nn.Dense(dim, self.num_heads * self.head_dim)
        self.kv_proj = nn.Dense(dim, 2 * self.num_kv_heads * self.head_dim)  # keys, then values
        self.q_norm = nn.LayerNorm([self.head_dim], epsilon=1e-5)
        self.k_norm = nn.LayerNorm([self.head_dim], epsilon=1e-5)
        self.o_proj = nn.Dense(self.num_heads * self.head_dim, dim, has_bias=False)

    def construct(self, hidden, attention_mask, cos, sin):
        bsz, length, _ = hidden.shape
        q = self.q_proj(hidden).reshape(bsz, length, self.num_heads, self.head_dim)
        kv = self.kv_proj(hidden).reshape(bsz, length, 2, self.num_kv_heads, self.head_dim)
        q = self.q_norm(q).transpose(0, 2, 1, 3)
        k = self.k_norm(kv[:, :, 0]).transpose(0, 2, 1, 3)
        v = kv[:, :, 1].transpose(0, 2, 1, 3)
        q = rotate(q, cos, sin)
        k = rotate(k, cos, sin)

        repeats = self.num_heads // self.num_kv_heads
        k = ops.repeat_interleave(k, repeats, axis=1)
        v = ops.repeat_interleave(v, repeats, axis=1)

        scores = ops.matmul(q, k.swapaxes(-1, -2)) / math.sqrt(self.head_dim)
        scores = ops.tanh(scores / self.softcap) * self.softcap

        rows = np.arange(length).reshape(-1, 1)
        cols = np.arange(length).reshape(1, -1)
        visible = cols <= rows
        if self.window is not None:
            visible = visible & (cols > rows - self.window)
        visible = ops.logical_and(Tensor(visible)[None, None], (attention_mask > 0)[:, None, None, :])
        scores = ops.select(visible.broadcast_to(scores.shape), scores,
                            ops.full_like(scores, float(np.finfo(np.float32).min)))
        probs = ops.softmax(scores, axis=-1)

        context = ops.matmul(probs, v).transpose(0, 2, 1, 3)
        return self.o_proj(context.reshape(bsz, length, -1))


class SparseMoE(nn.Cell):
    def __init__(self, cfg):
        super().__init__()
        dim = cfg["hidden_size"]
        self.num_experts, self.top_k = cfg["num_experts"], cfg["top_k"]
        self.router = nn.Dense(dim, self.num_experts, has_bias=False)
        self.experts = nn.CellList([GatedMLP(dim, cfg["expert_dim"]) for _ in range(self.num_experts)])
        self.shared_expert = GatedMLP(dim, cfg["shared_dim"])
        self.shared_gate = nn.Dense(dim, 1, has_bias=False)

    def construct(self, hidden):
        shape = hidden.shape
        tokens = hidden.reshape(-1, shape[-1])
        router_logits = self.router(tokens)
        probs = ops.softmax(router_logits, axis=-1)
        weights, chosen = ops.topk(probs, self.top_k)
        weights = weights / weights.sum(-1, keepdims=True)

        output = ops.zeros_like(tokens)
        for e in range(self.num_experts):
            hits = ops.nonzero(chosen == e)  # rows of (token, slot)
            if hits.shape[0] == 0:
                continue
            token, slot = hits[:, 0], hits[:, 1]
            weight = weights[token, slot].expand_dims(-1)
            result = self.experts[e](tokens[token]) * weight
            output = ops.tensor_scatter_add(output, token.expand_dims(-1), result)

        shared = self.shared_expert(tokens) * ops.sigmoid(self.shared_gate(tokens))
        return (output + shared).reshape(shape), router_logits


class DecoderLayer(nn.Cell):
    def __init__(self, cfg, index):
        super().__init__()
        self.is_attention = cfg["layer_types"][index] == "attn"
        self.input_norm = RMSNorm(cfg["hidden_size"], cfg["norm_eps"])
        self.post_norm = RMSNorm(cfg["hidden_size"], cfg["norm_eps"])
        if self.is_attention:
            self.mixer = GroupedAttention(cfg, cfg["windows"][index])
            self.feed_forward = SparseMoE(cfg)
        else:
            self.mixer = SelectiveSSM(cfg, cfg["scan_modes"][index])
            self.feed_forward = GatedMLP(cfg["hidden_size"], cfg["mlp_dim"])

    def construct(self, hidden, attention_mask, cos, sin):
        mixed = self.mixer(self.input_norm(hidden), attention_mask, cos, sin)
        hidden = hidden + mixed
        normed = self.post_norm(hidden)
        if self.is_attention:
            update, router_logits = self.feed_forward(normed)
        else:
            update, router_logits = self.feed_forward(normed), None
        return hidden + update, router_logits


class HybridModel(nn.Cell):
    """The trunk: embeddings, layers and the last norm."""

    def __init__(self, cfg):
        super().__init__()
        self.embed_tokens = nn.Embedding(cfg["vocab_size"], cfg["hidden_size"])
        self.rotary = RotaryTable(cfg["rotary_dim"], cfg["rope_theta"])
        self.layers = nn.CellList([DecoderLayer(cfg, i) for i in range(len(cfg["layer_types"]))])
        self.norm = RMSNorm(cfg["hidden_size"], cfg["norm_eps"])

    def construct(self, input_ids, attention_mask):
        hidden = self.embed_tokens(input_ids)
        positions = ops.cumsum(attention_mask, -1) - 1
        positions = ops.maximum(positions, ops.zeros_like(positions))
        cos, sin = self.rotary(positions)
        router_logits = []
        for layer in self.layers:
            hidden, logits = layer(hidden, attention_mask, cos, sin)
            if logits is not None:
                router_logits.append(logits)
        return self.norm(hidden), router_logits


class HybridForCausalLM(nn.Cell):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.model = HybridModel(cfg)

    def router_losses(self, router_logits, attention_mask):
        num_experts = self.cfg["num_experts"]
        logits = ops.cat(router_logits, axis=0)
        probs = ops.softmax(logits, axis=-1)
        _, chosen = ops.topk(probs, self.cfg["top_k"])
        assigned = ops.one_hot(chosen, num_experts, Tensor(1.0, ms.float32), Tensor(0.0, ms.float32))
        keep = ops.tile(attention_mask.reshape(-1), (len(router_logits),)).astype(ms.float32)
        count = keep.sum()
        load = (assigned * keep[:, None, None]).sum(0) / count  # (K, E)
        importance = (probs * keep[:, None]).sum(0) / count  # (E,)
        balance = num_experts * (load * importance).sum()
        z = (ops.square(ops.logsumexp(logits, -1)) * keep).sum() / count
        return balance, z

    def token_loss(self, logits, labels, attention_mask):
        ignore = self.cfg["ignore_index"]
        vocab = logits.shape[-1]
        logits = logits[:, :-1].reshape(-1, vocab)
        targets = labels[:, 1:].reshape(-1).astype(ms.int32)
        valid = ops.logical_and(targets != ignore, attention_mask[:, 1:].reshape(-1) > 0)
        nll = ops.cross_entropy(logits, targets, ignore_index=ignore, reduction="none")
        valid = valid.astype(nll.dtype)
        return (nll * valid).sum() / ops.maximum(valid.sum(), Tensor(1.0, nll.dtype))

    def construct(self, input_ids, attention_mask, labels):
        hidden, router_logits = self.model(input_ids, attention_mask)
        logits = ops.matmul(hidden, self.model.embed_tokens.embedding_table.T)
        balance, z = self.router_losses(router_logits, attention_mask)
        loss = self.token_loss(logits, labels, attention_mask)
        loss = loss + self.cfg["balance_coef"] * balance + self.cfg["z_coef"] * z
        return logits, loss, balance


def make_inputs(vocab_size, batch=3, length=19):
    rng = np.random.RandomState(11)
    input_ids = rng.randint(1, vocab_size, size=(batch, length)).astype(np.int64)
    attention_mask = np.ones((batch, length), dtype=np.int64)
    attention_mask[1, :4] = 0
    attention_mask[2, -5:] = 0
    input_ids[attention_mask == 0] = 0
    labels = input_ids.copy()
    labels[0, :3] = -100
    labels[2, 6:8] = -100
    return input_ids, attention_mask, labels


def build():
    net = HybridForCausalLM(CONFIG)
    net.set_train(False)
    inputs = tuple(Tensor(a) for a in make_inputs(CONFIG["vocab_size"]))
    return net, inputs


if __name__ == "__main__":
    network, args = build()
    out_logits, out_loss, out_balance = network(*args)
    print(out_logits.shape, float(out_loss), float(out_balance))
