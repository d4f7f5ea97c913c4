"""A multi-task ranker for a feed: click and conversion, from fields, counts and a user's behaviours. In PyTorch.

Fields meet in LR + FM, CIN and a low-rank cross network; behaviours go through pointwise attention with biases of time
and place, are weighed against the target (DIN) and rolled up by an AUGRU; two tasks share experts (MMoE, ESMM).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Dict, List, Tuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

DAY = 86400


@dataclass
class RankerConfig:
    sparse: Dict[str, int] = field(
        default_factory=lambda: OrderedDict(user_id=40, age=9, city=17, item_id=60, cate_id=13)
    )
    num_tags: int = 21
    dense_stats: Tuple[Tuple[float, float], ...] = ((2.1, 1.3), (3.4, 1.9), (0.9, 0.7))
    embed_dim: int = 8
    max_len: int = 14
    num_heads: int = 2
    num_blocks: int = 2
    num_time_buckets: int = 40
    num_recency: int = 10
    half_life: float = 3.0
    att_units: Tuple[int, ...] = (24, 12)
    cin_units: Tuple[int, ...] = (10, 8)
    cross_layers: int = 2
    cross_experts: int = 3
    low_rank: int = 5
    expert_units: Tuple[int, ...] = (32, 16)
    num_experts: int = 4
    tasks: Tuple[str, ...] = ("ctr", "cvr")
    sampling_rate: float = 0.2
    utc_offset: int = 8

    @property
    def seq_dim(self) -> int:
        return 2 * self.embed_dim

    @property
    def num_fields(self) -> int:
        return len(self.sparse) + 1 + len(self.dense_stats)


# ---------------------------------------------------------------------------------------------------------- embeddings


def masked_mean(values, mask):
    """Mean over axis 1 of what the mask lets through; zeros if there is nothing."""
    weight = mask.to(values.dtype).unsqueeze(-1)
    return (values * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1.0)


class FeatureEmbedding(nn.Module):
    """All fields of a sample as (B, F, D); behaviours share the tables of the target's item and category."""

    def __init__(self, cfg: RankerConfig):
        super().__init__()
        self.names = list(cfg.sparse)
        self.embedding_layer = nn.ModuleDict(
            {name: nn.Embedding(size, cfg.embed_dim, padding_idx=0) for name, size in cfg.sparse.items()}
        )
        self.tag_embedding = nn.Embedding(cfg.num_tags, cfg.embed_dim, padding_idx=0)
        self.dense_embedding = nn.Parameter(torch.randn(len(cfg.dense_stats), cfg.embed_dim) * 0.4)
        stats = torch.tensor(cfg.dense_stats)
        self.register_buffer("dense_mean", stats[:, 0].clone(), persistent=False)
        self.register_buffer("dense_std", stats[:, 1].clone(), persistent=False)

    def normalize(self, dense):
        dense = torch.log1p(dense.clamp(min=0.0))
        return ((dense - self.dense_mean) / self.dense_std).clamp(-3.0, 3.0)

    def behaviours(self, items, cates):
        return torch.cat((self.embedding_layer["item_id"](items), self.embedding_layer["cate_id"](cates)), dim=-1)

    def forward(self, sparse, tags, dense) -> Dict[str, torch.Tensor]:
        out = OrderedDict()
        for column, name in enumerate(self.names):
            out[name] = self.embedding_layer[name](sparse[:, column])
        out["tags"] = masked_mean(self.tag_embedding(tags), tags > 0)
        dense = self.normalize(dense).unsqueeze(-1) * self.dense_embedding
        for column in range(dense.shape[1]):
            out[f"dense_{column}"] = dense[:, column]
        return out


class SqueezeExcitation(nn.Module):
    """SENET of FiBiNET: fields are reweighed by what all fields say."""

    def __init__(self, num_fields: int, reduction: int = 3):
        super().__init__()
        self.squeeze = nn.Linear(num_fields, num_fields // reduction)
        self.expand = nn.Linear(num_fields // reduction, num_fields)

    def forward(self, fields):
        z = fields.mean(dim=-1)
        a = F.relu(self.expand(F.relu(self.squeeze(z))))
        return fields * (1.0 + a).unsqueeze(-1)


# ---------------------------------------------------------------------------------------------------------- wide parts


class LogisticRegression(nn.Module):
    def __init__(self, cfg: RankerConfig):
        super().__init__()
        self.weights = nn.ModuleList([nn.Embedding(size, 1, padding_idx=0) for size in cfg.sparse.values()])
        self.bias = nn.Parameter(torch.full((1,), 0.15))

    def forward(self, sparse):
        logits = [table(sparse[:, column]) for column, table in enumerate(self.weights)]
        return torch.cat(logits, dim=-1).sum(dim=-1, keepdim=True) + self.bias


class FactorizationMachine(nn.Module):
    def forward(self, fields):
        square_of_sum = fields.sum(dim=1).pow(2)
        sum_of_square = fields.pow(2).sum(dim=1)
        return 0.5 * (square_of_sum - sum_of_square).sum(dim=-1, keepdim=True)


class CIN(nn.Module):
    """Compressed interactions (xDeepFM): all but the last layer hand one half on and keep the other."""

    def __init__(self, num_fields: int, units: Tuple[int, ...]):
        super().__init__()
        self.units = units
        self.conv1ds = nn.ModuleList()
        previous, kept = num_fields, 0
        for index, size in enumerate(units):
            self.conv1ds.append(nn.Conv1d(previous * num_fields, size, 1))
            last = index == len(units) - 1
            kept += size if last else size // 2
            previous = size // 2
        self.fc = nn.Linear(kept, 1)
        self.kept = kept

    def forward(self, x0):
        batch, fields, dim = x0.shape
        hidden, finals = x0, []
        for index, conv in enumerate(self.conv1ds):
            cross = torch.einsum("bhd,bmd->bhmd", hidden, x0).reshape(batch, hidden.shape[1] * fields, dim)
            current = F.relu(conv(cross))
            if index != len(self.conv1ds) - 1:
                hidden, direct = torch.split(current, 2 * [self.units[index] // 2], dim=1)
            else:
                direct = current
            finals.append(direct)
        pooled = torch.cat(finals, dim=1).sum(dim=-1)
        return pooled, self.fc(pooled)


class CrossNetMix(nn.Module):
    """DCN-V2 with a mixture of low-rank experts; all layers share the gates."""

    def __init__(self, in_features: int, low_rank: int, num_experts: int, layer_num: int):
        super().__init__()
        self.num_experts, self.layer_num = num_experts, layer_num
        self.U_list = nn.Parameter(torch.randn(layer_num, num_experts, in_features, low_rank) * 0.3)
        self.V_list = nn.Parameter(torch.randn(layer_num, num_experts, in_features, low_rank) * 0.15)
        self.C_list = nn.Parameter(torch.randn(layer_num, num_experts, low_rank, low_rank) * 0.6)
        self.gating = nn.ModuleList([nn.Linear(in_features, 1) for _ in range(num_experts)])
        self.bias = nn.Parameter(torch.randn(layer_num, in_features, 1) * 0.2)

    def forward(self, inputs):
        x_0 = inputs.unsqueeze(2)
        x_l = x_0
        for i in range(self.layer_num):
            output_of_experts, gating_score = [], []
            for expert in range(self.num_experts):
                gating_score.append(self.gating[expert](x_l.squeeze(2)))
                v_x = torch.tanh(torch.matmul(self.V_list[i][expert].t(), x_l))
                v_x = torch.tanh(torch.matmul(self.C_list[i][expert], v_x))
                dot_ = x_0 * (torch.matmul(self.U_list[i][expert], v_x) + self.bias[i])
                output_of_experts.append(dot_.squeeze(2))
            output_of_experts = torch.stack(output_of_experts, dim=2)
            gating_score = torch.stack(gating_score, dim=1)
            x_l = torch.matmul(output_of_experts, gating_score.softmax(dim=1)) + x_l
        return x_l.squeeze(2)


# ---------------------------------------------------------------------------------------------------------- behaviours


class RelativeBucketedTimeAndPositionBias(nn.Module):
    """A bias for each pair: one by the distance of the places, one by the time from a key to what came after the query."""

    def __init__(self, max_len: int, num_buckets: int):
        super().__init__()
        self.max_len, self.num_buckets = max_len, num_buckets
        self.ts_w = nn.Parameter(torch.randn(num_buckets + 1) * 0.8)
        self.pos_w = nn.Parameter(torch.randn(2 * max_len - 1) * 0.8)

    def bucketize(self, gaps):
        return (torch.log(gaps.abs().clamp(min=1).float()) / 0.301).long().clamp(0, self.num_buckets)

    def forward(self, timestamps, now):
        n = self.max_len
        t = F.pad(self.pos_w, [0, n]).repeat(n)[:-n].reshape(1, n, 3 * n - 2)
        r = n - 1
        ext = torch.cat((timestamps, now.unsqueeze(1)), dim=1)
        buckets = self.bucketize(ext[:, 1:].unsqueeze(2) - ext[:, :-1].unsqueeze(1))
        return t[:, :, r:-r] + self.ts_w[buckets.view(-1)].view(-1, n, n)


class SequentialTransductionUnit(nn.Module):
    """Pointwise attention of HSTU: SiLU in place of a softmax, and a gate u on what is gathered."""

    def __init__(self, cfg: RankerConfig):
        super().__init__()
        dim = cfg.seq_dim
        self.heads, self.max_len = cfg.num_heads, cfg.max_len
        self.input_norm = nn.LayerNorm(dim, eps=1e-6)
        self.u_proj = nn.Linear(dim, dim)
        self.v_proj = nn.Linear(dim, dim)
        self.q_proj = nn.Linear(dim, dim)
        self.k_proj = nn.Linear(dim, dim)
        self.rel_attn_bias = RelativeBucketedTimeAndPositionBias(cfg.max_len, cfg.num_time_buckets)
        self.attn_norm = nn.LayerNorm(dim, eps=1e-6)
        self.o_proj = nn.Linear(dim, dim)

    def forward(self, x, timestamps, now, attn_mask):
        batch, n, dim = x.shape
        normed = self.input_norm(x)
        u, v = F.silu(self.u_proj(normed)), F.silu(self.v_proj(normed))
        q, k = F.silu(self.q_proj(normed)), F.silu(self.k_proj(normed))
        q, k, v = (part.view(batch, n, self.heads, -1) for part in (q, k, v))
        qk = torch.einsum("bnhd,bmhd->bhnm", q, k)
        qk = qk + self.rel_attn_bias(timestamps, now).unsqueeze(1)
        qk = F.silu(qk) / n * attn_mask.unsqueeze(1)
        gathered = torch.einsum("bhnm,bmhd->bnhd", qk, v).reshape(batch, n, dim)
        return x + self.o_proj(u * self.attn_norm(gathered))


class Dice(nn.Module):
    def __init__(self, units: int, epsilon: float = 1e-8):
        super().__init__()
        self.bn = nn.BatchNorm1d(units, eps=epsilon)
        self.alpha = nn.Parameter(torch.rand(units) * 0.6 - 0.1)

    def forward(self, x):
        p = torch.sigmoid(self.bn(x.flatten(0, 1)).view_as(x))
        return p * x + self.alpha * (1.0 - p) * x


class LocalActivationUnit(nn.Module):
    """DIN: how much each behaviour matters to the target; the scores sum to one over the real behaviours."""

    def __init__(self, dim: int, units: Tuple[int, ...]):
        super().__init__()
        layers: List[nn.Module] = []
        before = 4 * dim
        for size in units:
            layers += [nn.Linear(before, size), Dice(size)]
            before = size
        self.mlp = nn.Sequential(*layers)
        self.dense = nn.Linear(before, 1)

    def forward(self, query, keys, mask):
        queries = query.unsqueeze(1).expand(-1, keys.shape[1], -1)
        hidden = self.mlp(torch.cat((queries, keys, queries - keys, queries * keys), dim=-1))
        scores = self.dense(hidden).squeeze(-1)
        scores = torch.where(mask, scores, torch.full_like(scores, -(2.0**32) + 1))
        return scores.softmax(dim=-1)


class AUGRUCell(nn.Module):
    def __init__(self, input_size: int, hidden_size: int):
        super().__init__()
        bound = 2.0 / math.sqrt(hidden_size)
        self.weight_ih = nn.Parameter(torch.empty(3 * hidden_size, input_size).uniform_(-bound, bound))
        self.weight_hh = nn.Parameter(torch.empty(3 * hidden_size, hidden_size).uniform_(-bound, bound))
        self.bias_ih = nn.Parameter(torch.empty(3 * hidden_size).uniform_(-bound, bound))
        self.bias_hh = nn.Parameter(torch.empty(3 * hidden_size).uniform_(-bound, bound))

    def forward(self, x, hx, att):
        i_r, i_z, i_n = F.linear(x, self.weight_ih, self.bias_ih).chunk(3, dim=1)
        h_r, h_z, h_n = F.linear(hx, self.weight_hh, self.bias_hh).chunk(3, dim=1)
        reset = torch.sigmoid(i_r + h_r)
        update = att.view(-1, 1) * torch.sigmoid(i_z + h_z)
        new = torch.tanh(i_n + reset * h_n)
        return (1.0 - update) * hx + update * new


class InterestEvolution(nn.Module):
    """What of the behaviours concerns the target: evolved by AUGRU, pooled by DIN, and pooled by age alone."""

    def __init__(self, cfg: RankerConfig):
        super().__init__()
        dim = cfg.seq_dim
        self.recency_embedding = nn.Embedding(cfg.num_recency, dim)
        edges = torch.logspace(math.log10(60.0), math.log10(30.0 * DAY), cfg.num_recency - 1, dtype=torch.float64)
        self.register_buffer("recency_edges", edges.round().long(), persistent=False)
        decay = torch.pow(0.5, torch.arange(cfg.max_len, dtype=torch.float32) / cfg.half_life)
        self.register_buffer("decay", decay, persistent=False)
        self.attention = LocalActivationUnit(dim, cfg.att_units)
        self.cell = AUGRUCell(dim, dim)

    def pool_by_age(self, states, mask):
        place = torch.arange(states.shape[1], device=states.device)
        rank = (mask.sum(dim=1, keepdim=True) - 1 - place).clamp(min=0)
        weight = self.decay[rank] * mask
        weight = weight / weight.sum(dim=1, keepdim=True).clamp(min=1e-6)
        return torch.einsum("bl,bld->bd", weight, states)

    def forward(self, target, states, age, mask):
        keys = states + self.recency_embedding(torch.bucketize(age, self.recency_edges))
        scores = self.attention(target, keys, mask)
        hidden = torch.zeros_like(target)
        for step in range(states.shape[1]):
            hidden = self.cell(states[:, step], hidden, scores[:, step])
        pooled = torch.matmul(scores.unsqueeze(1), states).squeeze(1)
        return {"evolved": hidden, "pooled": pooled, "aged": self.pool_by_age(states, mask)}, scores


# --------------------------------------------------------------------------------------------------------------- tasks


class MLPBlock(nn.Sequential):
    def __init__(self, in_features: int, units: Tuple[int, ...], out_features: int = 0):
        layers: List[nn.Module] = []
        for size in units:
            layers += [nn.Linear(in_features, size), nn.BatchNorm1d(size), nn.LeakyReLU()]
            in_features = size
        if out_features:
            layers.append(nn.Linear(in_features, out_features))
        super().__init__(*layers)


class MMoE(nn.Module):
    def __init__(self, in_features: int, cfg: RankerConfig):
        super().__init__()
        self.experts = nn.ModuleList([MLPBlock(in_features, cfg.expert_units) for _ in range(cfg.num_experts)])
        self.gates = nn.ModuleList([nn.Linear(in_features, cfg.num_experts) for _ in cfg.tasks])

    def forward(self, x):
        stacked = torch.stack([expert(x) for expert in self.experts], dim=1)
        mixed = []
        for gate in self.gates:
            weight = F.softmax(gate(x), dim=-1).unsqueeze(-1)
            mixed.append((stacked * weight).sum(dim=1))
        return mixed


class FeedRanker(nn.Module):
    def __init__(self, cfg: RankerConfig):
        super().__init__()
        self.cfg = cfg
        self.embedding = FeatureEmbedding(cfg)
        self.senet = SqueezeExcitation(cfg.num_fields)
        self.lr = LogisticRegression(cfg)
        self.fm = FactorizationMachine()
        self.cin = CIN(cfg.num_fields, cfg.cin_units)
        self.blocks = nn.ModuleList([SequentialTransductionUnit(cfg) for _ in range(cfg.num_blocks)])
        self.interest = InterestEvolution(cfg)
        width = cfg.num_fields * cfg.embed_dim + 3 * cfg.seq_dim + 4
        self.crossnet = CrossNetMix(width, cfg.low_rank, cfg.cross_experts, cfg.cross_layers)
        self.mmoe = MMoE(width + self.cin.kept, cfg)
        self.towers = nn.ModuleDict({task: MLPBlock(cfg.expert_units[-1], (12,), 1) for task in cfg.tasks})

    def hour_features(self, now):
        hour = (torch.div(now, 3600, rounding_mode="floor") + self.cfg.utc_offset) % 24
        angle = hour.float().unsqueeze(-1) * torch.tensor([1.0, 2.0]) * (2.0 * math.pi / 24)
        return torch.cat((angle.sin(), angle.cos()), dim=-1)

    def encode_history(self, items, cates, times, now, mask):
        states = self.embedding.behaviours(items, cates) * math.sqrt(self.cfg.seq_dim)
        times = torch.where(mask, times, now.unsqueeze(1))
        n = states.shape[1]
        causal = torch.ones(n, n, dtype=torch.bool).tril()
        attn_mask = (causal.unsqueeze(0) & mask.unsqueeze(1)).to(states.dtype)
        for block in self.blocks:
            states = block(states, times, now, attn_mask) * mask.unsqueeze(-1)
        return states, now.unsqueeze(1) - times

    def calibrate(self, p):
        """Negatives were sampled: back to the rate of all impressions."""
        return p / (p + (1.0 - p) / self.cfg.sampling_rate)

    def forward(self, sparse, tags, dense, hist_items, hist_cates, hist_times, now):
        embeds = self.embedding(sparse, tags, dense)
        fields = torch.stack(list(embeds.values()), dim=1)
        weighed = self.senet(fields)
        cin_features, cin_logit = self.cin(fields)
        wide = self.lr(sparse) + self.fm(fields) + cin_logit
        mask = hist_items > 0
        states, age = self.encode_history(hist_items, hist_cates, hist_times, now, mask)
        target = torch.cat((embeds["item_id"], embeds["cate_id"]), dim=-1)
        interests, scores = self.interest(target, states, age, mask)
        flat = torch.cat([weighed.flatten(1), *interests.values(), self.hour_features(now)], dim=-1)
        shared = self.mmoe(torch.cat((self.crossnet(flat), cin_features), dim=-1))
        logits = {task: tower(part) for (task, tower), part in zip(self.towers.items(), shared)}
        logits["ctr"] = logits["ctr"] + wide
        p_ctr = self.calibrate(torch.sigmoid(logits["ctr"]))
        p_cvr = torch.sigmoid(logits["cvr"])
        probs = torch.cat((p_ctr, p_cvr, p_ctr * p_cvr), dim=-1)
        return probs, torch.cat(list(logits.values()), dim=-1), scores


def make_inputs(batch=4, length=14, tags=5):
    """Samples of a log: behaviours oldest first and padded behind, times in whole seconds, counts with a few unknown (-1)."""
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
    return (sparse, tag_ids.astype(np.int64), dense, items.astype(np.int64), cates.astype(np.int64),
            times.astype(np.int64), now.astype(np.int64))


def build():
    torch.manual_seed(3)
    net = FeedRanker(RankerConfig())
    for module in net.modules():
        if isinstance(module, (nn.LayerNorm, nn.BatchNorm1d)):
            nn.init.uniform_(module.weight, 0.6, 1.5)
            nn.init.uniform_(module.bias, -0.4, 0.4)
        if isinstance(module, nn.BatchNorm1d):
            module.running_mean.uniform_(-0.3, 0.3)
            module.running_var.uniform_(0.2, 1.2)
        elif isinstance(module, (nn.Linear, nn.Conv1d)):
            nn.init.normal_(module.weight, std=1.1 / math.sqrt(module.weight[0].numel()))
            nn.init.uniform_(module.bias, -0.3, 0.3)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.35)
            if module.padding_idx is not None:
                module.weight.data[module.padding_idx] = 0.0
    net.eval()
    return net, tuple(torch.from_numpy(np.ascontiguousarray(x)) for x in make_inputs())
