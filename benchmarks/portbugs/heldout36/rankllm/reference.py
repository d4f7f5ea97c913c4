"""RankLLM: a small decoder-only language model used as a passage reranker.

Each (query, passage) pair is one left-padded prompt; the decoder reads all prompts, a pooler condenses the token states,
and a listwise head lets the candidates of one query look at each other before they are scored and ordered.
"""
import math
from dataclasses import dataclass, field

import torch
import torch.nn as nn
import torch.nn.functional as F

NEG = -1e9


@dataclass
class RankConfig:
    vocab_size: int = 89
    hidden_size: int = 40
    intermediate_size: int = 56
    num_layers: int = 4
    num_heads: int = 6
    num_kv_heads: int = 2
    head_dim: int = 12
    sliding_window: int = 5
    sliding_pattern: int = 2              # every n-th layer is global
    query_pre_attn_scalar: float = 20.0
    attn_softcap: float = 6.0
    final_softcap: float = 15.0
    rms_eps: float = 1e-6
    max_positions: int = 32
    rope_theta: float = 100.0             # global layers
    rope_local_theta: float = 30.0        # sliding layers
    rope_scaling: dict = field(default_factory=lambda: {
        "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_positions": 64})
    mix_last: int = 3
    num_latents: int = 3
    conv_dim: int = 20
    pooled_dim: int = 32
    list_heads: int = 4
    max_candidates: int = 8
    yes_token: int = 17
    no_token: int = 42


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        out = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)
        return (out * (1.0 + self.weight.float())).type_as(x)


class RotaryTable(nn.Module):
    """cos / sin tables: plain for the sliding layers, with the frequency dependent (llama 3) scaling for the global ones."""

    def __init__(self, head_dim, max_positions, theta, scaling=None):
        super().__init__()
        inv_freq = 1.0 / (theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim))
        if scaling is not None:
            inv_freq = self._scale(inv_freq, scaling)
        positions = torch.arange(max_positions, dtype=torch.float32)
        angles = torch.outer(positions, inv_freq)
        angles = torch.cat([angles, angles], dim=-1)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    @staticmethod
    def _scale(inv_freq, scaling):
        factor = scaling["factor"]
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        old = scaling["original_max_positions"]
        wavelen = 2 * math.pi / inv_freq
        scaled = torch.where(wavelen > old / low, inv_freq / factor, inv_freq)
        smooth = (old / wavelen - low) / (high - low)
        smoothed = (1 - smooth) * inv_freq / factor + smooth * inv_freq
        is_medium = (wavelen <= old / low) & (wavelen >= old / high)
        return torch.where(is_medium, smoothed, scaled)

    def forward(self, position_ids):
        return self.cos[position_ids].unsqueeze(1), self.sin[position_ids].unsqueeze(1)


def rotate_half(x):
    x1, x2 = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2:]
    return torch.cat([-x2, x1], dim=-1)


def repeat_kv(x, groups):
    n, kv, s, d = x.shape
    return x[:, :, None].expand(n, kv, groups, s, d).reshape(n, kv * groups, s, d)


class GroupedQueryAttention(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = cfg.num_heads, cfg.num_kv_heads, cfg.head_dim
        self.groups = cfg.num_heads // cfg.num_kv_heads
        self.scaling = cfg.query_pre_attn_scalar ** -0.5
        self.softcap = cfg.attn_softcap
        self.q_proj = nn.Linear(cfg.hidden_size, self.num_heads * self.head_dim, bias=True)
        self.k_proj = nn.Linear(cfg.hidden_size, self.num_kv_heads * self.head_dim, bias=True)
        self.v_proj = nn.Linear(cfg.hidden_size, self.num_kv_heads * self.head_dim, bias=True)
        self.o_proj = nn.Linear(self.num_heads * self.head_dim, cfg.hidden_size, bias=False)

    def forward(self, x, rope, mask):
        n, s, _ = x.shape
        cos, sin = rope
        q = self.q_proj(x).view(n, s, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(n, s, self.num_kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(n, s, self.num_kv_heads, self.head_dim).transpose(1, 2)
        q = q * cos + rotate_half(q) * sin
        k = k * cos + rotate_half(k) * sin
        k, v = repeat_kv(k, self.groups), repeat_kv(v, self.groups)

        scores = torch.matmul(q, k.transpose(2, 3)) * self.scaling
        scores = torch.tanh(scores / self.softcap) * self.softcap
        scores = scores.masked_fill(~mask, NEG)
        probs = F.softmax(scores, dim=-1, dtype=torch.float32).type_as(q)
        out = torch.matmul(probs, v).transpose(1, 2).reshape(n, s, self.num_heads * self.head_dim)
        return self.o_proj(out)


class GatedMLP(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.gate_proj = nn.Linear(cfg.hidden_size, cfg.intermediate_size, bias=False)
        self.up_proj = nn.Linear(cfg.hidden_size, cfg.intermediate_size, bias=False)
        self.down_proj = nn.Linear(cfg.intermediate_size, cfg.hidden_size, bias=False)

    def forward(self, x):
        return self.down_proj(F.gelu(self.gate_proj(x), approximate="tanh") * self.up_proj(x))


class DecoderLayer(nn.Module):
    def __init__(self, cfg, layer_idx):
        super().__init__()
        self.is_sliding = (layer_idx + 1) % cfg.sliding_pattern != 0
        self.self_attn = GroupedQueryAttention(cfg)
        self.mlp = GatedMLP(cfg)
        self.input_norm = RMSNorm(cfg.hidden_size, cfg.rms_eps)
        self.post_attn_norm = RMSNorm(cfg.hidden_size, cfg.rms_eps)
        self.pre_mlp_norm = RMSNorm(cfg.hidden_size, cfg.rms_eps)
        self.post_mlp_norm = RMSNorm(cfg.hidden_size, cfg.rms_eps)

    def forward(self, x, ropes, masks):
        kind = "sliding" if self.is_sliding else "global"
        residual = x
        x = self.self_attn(self.input_norm(x), ropes[kind], masks[kind])
        x = residual + self.post_attn_norm(x)
        residual = x
        x = self.mlp(self.pre_mlp_norm(x))
        return residual + self.post_mlp_norm(x)


class Decoder(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.embed_tokens = nn.Embedding(cfg.vocab_size, cfg.hidden_size)
        self.layers = nn.ModuleList([DecoderLayer(cfg, i) for i in range(cfg.num_layers)])
        self.norm = RMSNorm(cfg.hidden_size, cfg.rms_eps)
        self.layer_mix = nn.Parameter(torch.zeros(cfg.mix_last))
        self.rope_global = RotaryTable(cfg.head_dim, cfg.max_positions, cfg.rope_theta, cfg.rope_scaling)
        self.rope_local = RotaryTable(cfg.head_dim, cfg.max_positions, cfg.rope_local_theta)

    def build_masks(self, attention_mask):
        s = attention_mask.shape[1]
        idx = torch.arange(s, device=attention_mask.device)
        dist = idx[:, None] - idx[None, :]
        causal = dist >= 0
        window = causal & (dist < self.cfg.sliding_window)
        keys = attention_mask.bool()[:, None, None, :]
        return {"global": causal[None, None] & keys, "sliding": window[None, None] & keys}

    def forward(self, input_ids, attention_mask):
        # left padding: the first real token of each prompt has position 0
        position_ids = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)
        ropes = {"global": self.rope_global(position_ids), "sliding": self.rope_local(position_ids)}
        masks = self.build_masks(attention_mask)
        x = self.embed_tokens(input_ids) * self.cfg.hidden_size ** 0.5
        states = []
        for layer in self.layers:
            x = layer(x, ropes, masks)
            states.append(x)
        weights = torch.softmax(self.layer_mix, dim=0)
        mixed = 0
        for w, h in zip(weights, states[-self.cfg.mix_last:]):
            mixed = mixed + w * h
        return self.norm(x), self.norm(mixed)


class PassagePooler(nn.Module):
    """[last token ; passage mean ; latent attention ; strided conv + max] -> pooled vector of one prompt."""

    def __init__(self, cfg):
        super().__init__()
        d = cfg.hidden_size
        self.latents = nn.Parameter(torch.zeros(cfg.num_latents, d))
        self.key = nn.Linear(d, d)
        self.value = nn.Linear(d, d, bias=False)
        self.conv = nn.Conv1d(d, cfg.conv_dim, kernel_size=3, stride=2, padding=1)
        self.act = nn.LeakyReLU()
        width = d + d + cfg.num_latents * d + cfg.conv_dim
        self.bn = nn.BatchNorm1d(width, eps=1e-3)
        self.proj = nn.Linear(width, cfg.pooled_dim)

    def forward(self, last_hidden, mixed, attention_mask, token_type_ids):
        n, s, d = mixed.shape
        valid = attention_mask.to(mixed.dtype)

        # 1. the last token: position s - 1 for left padding, otherwise by the prompt's length
        if bool(attention_mask[:, -1].all()):
            last = last_hidden[:, -1]
        else:
            lengths = attention_mask.sum(-1) - 1
            last = last_hidden[torch.arange(n, device=mixed.device), lengths]

        # 2. mean over the passage's tokens only, the query's tokens are left out
        passage = valid * (token_type_ids == 1).to(mixed.dtype)
        mean = (mixed * passage.unsqueeze(-1)).sum(1) / passage.sum(1, keepdim=True).clamp(min=1.0)

        # 3. learned latents attend over all valid tokens
        att = torch.einsum("ld,nsd->nls", self.latents, self.key(mixed)) / math.sqrt(d)
        att = att.masked_fill(~attention_mask.bool()[:, None, :], NEG)
        att = torch.softmax(att, dim=-1)
        latent = torch.einsum("nls,nsd->nld", att, self.value(mixed)).reshape(n, -1)

        # 4. strided convolution over time, then the maximum over frames that saw at least one valid token
        frames = self.act(self.conv((mixed * valid.unsqueeze(-1)).transpose(1, 2)))
        frame_mask = F.max_pool1d(valid.unsqueeze(1), kernel_size=3, stride=2, padding=1) > 0
        peak = frames.masked_fill(~frame_mask, NEG).amax(dim=-1)

        feats = torch.cat([last, mean, latent, peak], dim=-1)
        return self.proj(self.bn(feats))


class CandidateMixer(nn.Module):
    """Self-attention over the candidates of one query, with the retriever's rank as position."""

    def __init__(self, cfg):
        super().__init__()
        d = cfg.pooled_dim
        self.heads, self.head_dim = cfg.list_heads, d // cfg.list_heads
        self.max_candidates = cfg.max_candidates
        self.rank_embed = nn.Embedding(cfg.max_candidates, d)
        self.rank_bias = nn.Parameter(torch.zeros(cfg.list_heads, 2 * cfg.max_candidates - 1))
        self.norm1 = nn.LayerNorm(d, eps=1e-5)
        self.qkv = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)
        self.norm2 = nn.LayerNorm(d, eps=1e-5)
        self.fc1 = nn.Linear(d, 2 * d)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(2 * d, d)

    def forward(self, x, retriever_rank, candidate_mask):
        b, c, d = x.shape
        x = x + self.rank_embed(retriever_rank)
        q, k, v = self.qkv(self.norm1(x)).view(b, c, 3, self.heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        scores = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(self.head_dim)
        offset = retriever_rank[:, :, None] - retriever_rank[:, None, :] + self.max_candidates - 1
        scores = scores + self.rank_bias[:, offset].transpose(0, 1)
        scores = scores.masked_fill(~candidate_mask[:, None, None, :], NEG)
        ctx = torch.einsum("bhij,bhjd->bihd", scores.softmax(-1), v).reshape(b, c, d)
        x = x + self.out(ctx)
        return x + self.fc2(self.act(self.fc1(self.norm2(x))))


class ListDecoder(nn.Module):
    """Greedy pointer decoding of the order: at every step take the best candidate that is left, then update the state."""

    def __init__(self, cfg):
        super().__init__()
        d = cfg.pooled_dim
        self.norm = nn.LayerNorm(d)
        self.start = nn.Linear(d, d)
        self.gate = nn.Linear(2 * d, d)
        self.cand = nn.Linear(2 * d, d)
        self.pointer = nn.Linear(d, d, bias=False)

    def forward(self, x, scores, candidate_mask):
        b, c, d = x.shape
        x, m = self.norm(x), candidate_mask.to(x.dtype).unsqueeze(-1)
        state = torch.tanh(self.start((x * m).sum(1) / m.sum(1)))
        left = candidate_mask.clone()
        step_logp, order = [], []
        for _ in range(c):
            logits = torch.einsum("bd,bcd->bc", self.pointer(state), x) / math.sqrt(d) + scores
            logp = F.log_softmax(logits.masked_fill(~left, -1e4), dim=-1)
            alive = left.any(dim=-1)
            pick = logp.argmax(dim=-1)
            step_logp.append(torch.where(alive, logp.gather(1, pick[:, None]).squeeze(1), torch.zeros_like(logp[:, 0])))
            order.append(torch.where(alive, pick, torch.full_like(pick, -1)))
            chosen = x[torch.arange(b, device=x.device), pick]
            both = torch.cat([state, chosen], dim=-1)
            z = torch.sigmoid(self.gate(both))
            new = z * state + (1 - z) * torch.tanh(self.cand(both))
            state = torch.where(alive[:, None], new, state)
            left = left.scatter(1, pick[:, None], False)
        return torch.stack(step_logp, dim=1), torch.stack(order, dim=1), state


def list_mle(scores, labels, mask):
    """Plackett-Luce negative log-likelihood of the order given by the labels."""
    order = labels.float().masked_fill(~mask, -1.0).argsort(dim=-1, descending=True, stable=True)
    s = scores.masked_fill(~mask, NEG).gather(1, order)
    m = mask.gather(1, order)
    tail = torch.logcumsumexp(s.flip(1), dim=1).flip(1)
    return ((tail - s) * m).sum(1) / m.sum(1)


def rank_net(scores, labels, mask):
    """Pairwise logistic loss, every pair weighted by the difference of its gains."""
    gain = 2.0 ** labels.float() - 1
    diff = scores[:, :, None] - scores[:, None, :]
    weight = (gain[:, :, None] - gain[:, None, :]).clamp(min=0) * (mask[:, :, None] & mask[:, None, :])
    return (F.softplus(-diff) * weight).sum((1, 2)) / weight.sum((1, 2)).clamp(min=1e-6)


class RankLLM(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.decoder = Decoder(cfg)
        self.pooler = PassagePooler(cfg)
        self.mixer = CandidateMixer(cfg)
        self.list_decoder = ListDecoder(cfg)
        self.score = nn.Linear(cfg.pooled_dim, 1)
        self.yes_scale = nn.Parameter(torch.zeros(1))

    def yes_log_prob(self, last_token):
        """log p(yes | yes or no) under the tied language model head."""
        logits = F.linear(last_token, self.decoder.embed_tokens.weight)
        logits = torch.tanh(logits / self.cfg.final_softcap) * self.cfg.final_softcap
        pair = torch.stack([logits[:, self.cfg.no_token], logits[:, self.cfg.yes_token]], dim=1)
        return F.log_softmax(pair, dim=1)[:, 1]

    def forward(self, input_ids, attention_mask, token_type_ids, retriever_rank, candidate_mask, labels, beta=0.5):
        b, c, s = input_ids.shape
        candidate_mask = candidate_mask.bool()
        flat_mask = attention_mask.reshape(b * c, s)
        last_hidden, mixed = self.decoder(input_ids.reshape(b * c, s), flat_mask)

        pooled = self.pooler(last_hidden, mixed, flat_mask, token_type_ids.reshape(b * c, s))
        yes = self.yes_log_prob(last_hidden[:, -1]).view(b, c)

        listed = self.mixer(pooled.view(b, c, -1), retriever_rank, candidate_mask)
        scores = self.score(listed).squeeze(-1) + self.yes_scale.exp() * yes
        step_logp, order, state = self.list_decoder(listed, scores, candidate_mask)
        # scores are centred over the real candidates of a query; the rest of the row is set to the row's minimum
        m = candidate_mask.to(scores.dtype)
        centred = scores - (scores * m).sum(1, keepdim=True) / m.sum(1, keepdim=True)
        floor = centred.masked_fill(~candidate_mask, 1e4).amin(dim=1, keepdim=True)
        centred = torch.where(candidate_mask, centred, floor.expand_as(centred))
        discount = 1.0 / torch.log2(torch.arange(c, dtype=scores.dtype, device=scores.device) + 2.0)
        gains = (2.0 ** labels.float() - 1) * m
        dcg = (gains.gather(1, order.clamp(min=0)) * (order >= 0) * discount).sum(1)
        ideal = (gains.sort(dim=1, descending=True).values * discount).sum(1)

        loss = beta * list_mle(scores, labels, candidate_mask) + (1 - beta) * rank_net(scores, labels, candidate_mask)
        return centred, step_logp, listed, state, dcg / ideal, loss.mean()


def make_inputs(cfg):
    b, c, s = 2, 5, 18
    flat = torch.arange(b * c)
    lengths = 8 + (flat * 7) % 11                       # 8 .. 18, the prompts are padded on the left
    pos = torch.arange(s)[None, :]
    attention_mask = (pos >= (s - lengths)[:, None]).long()
    query_len = 3 + (flat // c)
    token_type_ids = (pos >= (s - lengths + query_len)[:, None]).long()
    token_type_ids[:, -1] = 0                           # the closing "answer:" token belongs to the prompt
    input_ids = (3 + (flat[:, None] * 31 + pos * 13 + (pos * pos) * 5 + flat[:, None] * pos * 3) % (cfg.vocab_size - 3))
    input_ids = input_ids * attention_mask
    retriever_rank = torch.tensor([[0, 1, 2, 3, 4], [2, 0, 3, 1, 4]])
    candidate_mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 1, 0]])
    labels = torch.tensor([[1, 3, 0, 2, 0], [0, 1, 2, 0, 3]])
    return (input_ids.view(b, c, s), attention_mask.view(b, c, s), token_type_ids.view(b, c, s), retriever_rank,
            candidate_mask, labels)


def build():
    torch.manual_seed(1234)
    cfg = RankConfig()
    net = RankLLM(cfg)
    with torch.no_grad():
        for name, p in net.named_parameters():
            table = any(k in name for k in ("embed", "rank_bias", "latents"))
            p.normal_(0, 0.3 if p.dim() == 1 else 0.6 if table else 1.2 / math.sqrt(p[0].numel()))
        for m in net.modules():
            if isinstance(m, (nn.LayerNorm, nn.BatchNorm1d)):
                m.weight.uniform_(0.6, 1.5)
                m.bias.normal_(0, 0.3)
            if isinstance(m, nn.BatchNorm1d):
                m.running_mean.normal_(0, 0.4)
                m.running_var.uniform_(0.02, 0.9)
    return net.eval(), make_inputs(cfg)
