"""Irregular clinical records and coded visits: GRU-D, mTAND, sets of codes, a causal transformer (PyTorch)."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

# heart rate, systolic pressure, respiration, temperature, saturation, glucose, lactate
CHANNEL_MEAN = (86.2, 118.7, 19.4, 36.9, 96.8, 139.5, 1.9)
CHANNEL_STD = (17.8, 21.3, 5.6, 0.75, 2.9, 52.0, 1.4)
# where unseen channels tend to lie, in standardised units (what is not measured is mostly normal)
PRIOR_MEAN = (-0.15, 0.22, -0.31, -0.08, 0.27, -0.4, -0.52)
PRIOR_WEIGHT = 2.0
HOURS_PER_UNIT = 6.0
STAY_HOURS = 48.0

GAP_EDGES = (1.0, 3.0, 7.0, 14.0, 30.0, 90.0, 180.0, 365.0)  # days
HAZARD_EDGES = (0.0, 7.0, 30.0, 60.0, 120.0, 240.0, 365.0, 730.0, 1095.0)  # days
HAZARD_UNIT = 365.0
AGE_STEP = 5.0  # years between two rows of the table of ages
DAYS_PER_YEAR = 365.25


class Config:
    channels, grud_hidden = 7, 18
    time_dim, time_heads, references = 12, 2, 11
    ref_hidden, ref_out = 20, 22
    num_codes, num_groups, code_dim, set_hidden = 37, 9, 16, 21  # codes and groups with the padding at 0
    dim, heads, depth, ffn = 24, 4, 2, 50
    age_rows, max_visits = 20, 10
    head_hidden, bin_dim = 26, 5
    dropout = 0.1


def length_mask(lengths, size):
    return torch.arange(size, device=lengths.device)[None, :] < lengths[:, None]


def masked_softmax(scores, mask, dim):
    """Softmax over the unmasked entries; zeros where there is none."""
    scores = scores.masked_fill(~mask, -1e9)
    return scores.softmax(dim=dim) * mask.any(dim=dim, keepdim=True).to(scores.dtype)


def reverse_by_length(x, lengths):
    """Reverse the valid part of each sequence in time, leave the padding where it is."""
    size = x.shape[1]
    steps = torch.arange(size, device=x.device)[None, :].expand(x.shape[0], -1)
    index = torch.where(steps < lengths[:, None], lengths[:, None] - 1 - steps, steps)
    return torch.gather(x, 1, index.view(*index.shape, *[1] * (x.ndim - 2)).expand_as(x))


def time_since_observed(times, mask):
    """For each channel the time since it was last seen before this step: (batch, steps, channels)."""
    delta = torch.zeros_like(mask)
    for t in range(1, times.shape[1]):
        step = (times[:, t] - times[:, t - 1]).abs()[:, None]
        delta[:, t] = step + (1.0 - mask[:, t - 1]) * delta[:, t - 1]
    return delta


def record_mean(x, mask):
    """Mean of each channel over its observations, shrunk to the prior."""
    prior = x.new_tensor(PRIOR_MEAN)
    total = (x * mask).sum(dim=1) + PRIOR_WEIGHT * prior
    return total / (mask.sum(dim=1) + PRIOR_WEIGHT)


def first_of_each(codes):
    """A visit is a set: of equal codes only the first counts. Zero is the padding."""
    size = codes.shape[-1]
    same = codes.unsqueeze(-1) == codes.unsqueeze(-2)
    earlier = torch.tril(torch.ones(size, size, dtype=torch.bool, device=codes.device), diagonal=-1)
    repeated = (same & earlier).any(dim=-1)
    return (codes != 0) & ~repeated


class GRUDCell(nn.Module):
    """One step of a GRU whose inputs and state decay with the time since the last observation."""
    def __init__(self, channels, hidden):
        super().__init__()
        self.decay_x_weight = nn.Parameter(torch.zeros(channels))
        self.decay_x_bias = nn.Parameter(torch.zeros(channels))
        self.decay_h = nn.Linear(channels, hidden)
        self.gates = nn.Linear(2 * channels + hidden, 2 * hidden)
        self.candidate = nn.Linear(2 * channels + hidden, hidden)

    def forward(self, x, m, delta, x_last, x_mean, h):
        gamma_x = torch.exp(-F.relu(self.decay_x_weight * delta + self.decay_x_bias))
        gamma_h = torch.exp(-F.relu(self.decay_h(delta)))
        x_hat = m * x + (1 - m) * (gamma_x * x_last + (1 - gamma_x) * x_mean)
        h = gamma_h * h
        z, r = torch.sigmoid(self.gates(torch.cat([x_hat, h, m], dim=-1))).chunk(2, dim=-1)
        h_tilde = torch.tanh(self.candidate(torch.cat([x_hat, r * h, m], dim=-1)))
        return (1 - z) * h + z * h_tilde, x_hat


class BiGRUD(nn.Module):
    """GRU-D in both directions; gives a state of the record and the imputed values."""
    def __init__(self, channels, hidden, out, dropout):
        super().__init__()
        self.hidden = hidden
        self.forward_cell, self.backward_cell = GRUDCell(channels, hidden), GRUDCell(channels, hidden)
        self.dropout = nn.Dropout(dropout)
        self.merge = nn.Linear(2 * hidden, out)

    def run(self, cell, x, mask, times, lengths, x_mean):
        b, steps, _ = x.shape
        delta = time_since_observed(times / HOURS_PER_UNIT, mask)
        valid = length_mask(lengths, steps).to(x.dtype)
        h, x_last, filled = x.new_zeros(b, self.hidden), x_mean, []
        for t in range(steps):
            m = mask[:, t]
            new_h, x_hat = cell(x[:, t], m, delta[:, t], x_last, x_mean, h)
            keep = valid[:, t : t + 1]
            h = keep * new_h + (1 - keep) * h
            x_last = m * x[:, t] + (1 - m) * x_last
            filled.append(x_hat * keep)
        return h, torch.stack(filled, dim=1)

    def forward(self, x, mask, times, lengths):
        x_mean = record_mean(x, mask)
        h_fwd, fill_fwd = self.run(self.forward_cell, x, mask, times, lengths, x_mean)
        turned = [reverse_by_length(part, lengths) for part in (x, mask, times)]
        h_bwd, fill_bwd = self.run(self.backward_cell, *turned, lengths, x_mean)
        fill_bwd = reverse_by_length(fill_bwd, lengths)
        state = self.merge(self.dropout(torch.cat([h_fwd, h_bwd], dim=-1)))
        return state, 0.5 * (fill_fwd + fill_bwd)


class TimeEmbedding(nn.Module):
    """One linear feature and sines whose periods and phases are learnt."""
    def __init__(self, dim):
        super().__init__()
        self.linear = nn.Linear(1, 1)
        self.log_period = nn.Parameter(torch.zeros(dim - 1))
        self.shift = nn.Parameter(torch.zeros(dim - 1))

    def forward(self, t):
        t = t.unsqueeze(-1)
        waves = torch.sin(2 * math.pi * t / self.log_period.exp() + self.shift)
        return torch.cat([self.linear(t), waves], dim=-1)


class TimeAttention(nn.Module):
    """mTAND: the irregular observations of each channel are read at reference times."""
    def __init__(self, channels, time_dim, heads, out):
        super().__init__()
        self.heads, self.head_dim = heads, time_dim // heads
        self.embed = TimeEmbedding(time_dim)
        self.query = nn.Linear(time_dim, time_dim)
        self.key = nn.Linear(time_dim, time_dim)
        self.out = nn.Linear(heads * channels, out)

    def forward(self, refs, times, x, mask):
        b, steps, channels = x.shape
        q = self.query(self.embed(refs)).view(1, -1, self.heads, self.head_dim).transpose(1, 2)
        k = self.key(self.embed(times)).view(b, steps, self.heads, self.head_dim).transpose(1, 2)
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)
        # (batch, heads, references, steps, channels): every channel has its own observations
        scores = scores.unsqueeze(-1).expand(-1, -1, -1, -1, channels)
        attn = masked_softmax(scores, mask.bool()[:, None, None], dim=-2)
        read = (attn * x[:, None, None]).sum(dim=-2)
        return self.out(read.transpose(1, 2).reshape(b, refs.shape[0], self.heads * channels))


class ReferenceEncoder(nn.Module):
    """Convolutions over the reference times and a mean over those within the record."""
    def __init__(self, hidden, out):
        super().__init__()
        self.conv1 = nn.Conv1d(hidden, hidden, 3, padding=2, dilation=2, groups=4)
        self.norm1 = nn.GroupNorm(5, hidden)
        self.act1 = nn.LeakyReLU(0.1)
        self.conv2 = nn.Conv1d(hidden, out, 3, stride=2, padding=1)
        self.norm2 = nn.BatchNorm1d(out, eps=1e-3)
        self.act2 = nn.ELU()

    def forward(self, x, support):
        x = x.transpose(1, 2) * support[:, None]
        x = x + self.act1(self.norm1(self.conv1(x)))
        x = self.act2(self.norm2(self.conv2(x)))
        support = support[:, ::2]
        return (x * support[:, None]).sum(dim=-1) / support.sum(dim=-1, keepdim=True).clamp(min=1.0)


class CodeTable(nn.Module):
    """Vectors of codes: their own and those of their groups in the hierarchy."""
    def __init__(self, num_codes, num_groups, dim):
        super().__init__()
        self.code = nn.Embedding(num_codes, dim, padding_idx=0)
        self.group = nn.Embedding(num_groups, dim, padding_idx=0)
        # four codes or so to a group; the padding has its own
        group_of = torch.tensor([0] + [1 + (c * 5 + c // 7) % (num_groups - 1) for c in range(1, num_codes)])
        self.register_buffer("group_of", group_of, persistent=False)

    def all_vectors(self):
        return self.code.weight + self.group(self.group_of)

    def forward(self, codes):
        return self.code(codes) + self.group(self.group_of[codes])


class VisitSetPool(nn.Module):
    """Sets of codes to one vector for each visit: attention, a mean weighted by rarity, and a maximum."""
    def __init__(self, num_codes, code_dim, hidden, dim):
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(code_dim, hidden), nn.LeakyReLU(0.1), nn.Linear(hidden, hidden))
        self.score = nn.Linear(code_dim, hidden)
        self.score_out = nn.Linear(hidden, 1, bias=False)
        self.rho = nn.Linear(3 * hidden, dim)
        self.norm = nn.LayerNorm(dim)
        seen = 3200.0 / np.arange(1, num_codes) ** 1.3  # of 5000 patients
        idf = np.concatenate([[0.0], np.log((1.0 + 5000.0) / (1.0 + seen)) + 1.0])
        self.register_buffer("idf", torch.tensor(idf, dtype=torch.float32), persistent=False)

    def forward(self, vectors, codes):
        keep = first_of_each(codes)
        hidden = self.phi(vectors)
        score = self.score_out(torch.tanh(self.score(vectors))).squeeze(-1)
        attn = masked_softmax(score, keep, dim=-1)
        attended = torch.einsum("bvk,bvkc->bvc", attn, hidden)
        weight = self.idf[codes] * keep
        mean = (hidden * weight.unsqueeze(-1)).sum(dim=2) / weight.sum(dim=2, keepdim=True).clamp(min=1e-6)
        largest = hidden.masked_fill(~keep.unsqueeze(-1), float("-inf")).amax(dim=2)
        largest = torch.where(keep.any(dim=-1, keepdim=True), largest, torch.zeros_like(largest))
        return self.norm(self.rho(torch.cat([attended, mean, largest], dim=-1)))


class VisitEmbedding(nn.Module):
    """Adds age, gap to the visit before, and place counted back from the last visit."""
    def __init__(self, dim, age_rows, max_visits, dropout):
        super().__init__()
        self.age = nn.Embedding(age_rows, dim)
        self.gap = nn.Embedding(len(GAP_EDGES) + 1, dim)
        self.place = nn.Embedding(max_visits, dim)
        self.register_buffer("gap_edges", torch.tensor(GAP_EDGES), persistent=False)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, age_days, lengths):
        b, visits, _ = x.shape
        row = (age_days / DAYS_PER_YEAR / AGE_STEP).clamp(0, self.age.num_embeddings - 1 - 1e-4)
        low = row.floor().long()
        frac = (row - low).unsqueeze(-1)
        age = (1 - frac) * self.age(low) + frac * self.age(low + 1)
        gap_days = torch.cat([torch.zeros_like(age_days[:, :1]), age_days[:, 1:] - age_days[:, :-1]], dim=1)
        gap = self.gap(torch.bucketize(gap_days.clamp(min=0), self.gap_edges, right=True))
        place = (lengths[:, None] - 1 - torch.arange(visits)[None, :]).clamp(min=0)
        x = x + age + gap + self.place(place)
        return self.dropout(self.norm(x))


class VisitAttention(nn.Module):
    """Causal attention; each head forgets with the time between two visits at its own learnt rate."""
    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.heads, self.head_dim = heads, dim // heads
        self.in_proj = nn.Linear(dim, 3 * dim)
        self.out_proj = nn.Linear(dim, dim)
        self.rate = nn.Parameter(torch.zeros(heads))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, apart, allowed):
        b, n, d = x.shape
        q, k, v = self.in_proj(x).chunk(3, dim=-1)
        q, k, v = (t.reshape(b, n, self.heads, self.head_dim).transpose(1, 2) for t in (q, k, v))
        scores = torch.einsum("bhqc,bhkc->bhqk", q, k) * self.head_dim**-0.5
        forget = F.softplus(self.rate)[None, :, None, None] * torch.log1p(apart / 30.0)[:, None]
        scores = (scores - forget).masked_fill(~allowed[:, None], -1e9)
        attn = self.dropout(scores.softmax(dim=-1))
        return self.out_proj((attn @ v).transpose(1, 2).reshape(b, n, d))


class VisitBlock(nn.Module):
    def __init__(self, dim, heads, ffn, dropout):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = VisitAttention(dim, heads, dropout)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.fc1, self.act, self.fc2 = nn.Linear(dim, ffn), nn.GELU(), nn.Linear(ffn, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, apart, allowed):
        x = x + self.dropout(self.attn(self.norm1(x), apart, allowed))
        return x + self.dropout(self.fc2(self.act(self.fc1(self.norm2(x)))))


class MortalityHead(nn.Module):
    """Reads the last visit, the mean of the visits, and the state of the stay."""
    def __init__(self, dim, hidden):
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(3 * dim, hidden), nn.SiLU(), nn.Linear(hidden, 1)

    def forward(self, visits, lengths, context):
        last = visits[torch.arange(visits.shape[0]), lengths - 1]
        weight = length_mask(lengths, visits.shape[1]).to(visits.dtype).unsqueeze(-1)
        mean = (visits * weight).sum(dim=1) / weight.sum(dim=1)
        summary = torch.cat([last, mean, context], dim=-1)
        return self.fc2(self.act(self.fc1(summary))).squeeze(-1), summary


class NextCodeHead(nn.Module):
    """Scores of the next visit's codes against the table of codes."""
    def __init__(self, dim, code_dim, num_codes):
        super().__init__()
        self.proj = nn.Linear(dim, code_dim)
        self.bias = nn.Parameter(torch.zeros(num_codes))

    def forward(self, visits, table):
        logits = F.linear(F.normalize(self.proj(visits), dim=-1), table) * math.sqrt(table.shape[1]) + self.bias
        return logits[..., 1:]  # nobody predicts the padding


class HazardHead(nn.Module):
    """A piecewise constant hazard: rates of the bins, survival at their ends, restricted mean survival (years)."""
    def __init__(self, dim, bin_dim, hidden):
        super().__init__()
        edges = torch.tensor(HAZARD_EDGES) / HAZARD_UNIT
        self.register_buffer("width", edges[1:] - edges[:-1], persistent=False)
        self.bins = nn.Embedding(len(HAZARD_EDGES) - 1, bin_dim)
        self.fc1 = nn.Linear(3 * dim + bin_dim, hidden)
        self.fc2 = nn.Linear(hidden, 1)

    def forward(self, summary):
        bins = self.bins.weight.expand(summary.shape[0], -1, -1)
        joint = torch.cat([summary[:, None].expand(-1, bins.shape[1], -1), bins], dim=-1)
        rate = F.softplus(self.fc2(torch.tanh(self.fc1(joint))).squeeze(-1))
        hazard = 1 - torch.exp(-rate * self.width)
        survival = torch.exp(-torch.cumsum(rate * self.width, dim=1))
        before = torch.cat([torch.ones_like(survival[:, :1]), survival[:, :-1]], dim=1)
        rmst = ((before - survival) / rate).sum(dim=1)
        return hazard, survival, rmst


class RecordNet(nn.Module):
    """The stay's measurements give a context token, after which the visits come in their order."""
    def __init__(self, cfg):
        super().__init__()
        self.register_buffer("mean", torch.tensor(CHANNEL_MEAN), persistent=False)
        self.register_buffer("std", torch.tensor(CHANNEL_STD), persistent=False)
        self.register_buffer("refs", torch.linspace(0, STAY_HOURS, cfg.references), persistent=False)
        self.grud = BiGRUD(cfg.channels, cfg.grud_hidden, cfg.dim, cfg.dropout)
        self.mtand = TimeAttention(cfg.channels, cfg.time_dim, cfg.time_heads, cfg.ref_hidden)
        self.ref_encoder = ReferenceEncoder(cfg.ref_hidden, cfg.ref_out)
        self.ref_proj = nn.Linear(cfg.ref_out, cfg.dim)
        self.gate = nn.Linear(2 * cfg.dim, cfg.dim)
        self.codes = CodeTable(cfg.num_codes, cfg.num_groups, cfg.code_dim)
        self.set_pool = VisitSetPool(cfg.num_codes, cfg.code_dim, cfg.set_hidden, cfg.dim)
        self.visit_embed = VisitEmbedding(cfg.dim, cfg.age_rows, cfg.max_visits, cfg.dropout)
        self.blocks = nn.ModuleList(VisitBlock(cfg.dim, cfg.heads, cfg.ffn, cfg.dropout) for _ in range(cfg.depth))
        self.norm = nn.LayerNorm(cfg.dim, eps=1e-6)
        self.mortality = MortalityHead(cfg.dim, cfg.head_hidden)
        self.next_codes = NextCodeHead(cfg.dim, cfg.code_dim, cfg.num_codes)
        self.hazard = HazardHead(cfg.dim, cfg.bin_dim, cfg.head_hidden)

    def read_stay(self, values, observed, times, record_lengths):
        valid = length_mask(record_lengths, values.shape[1])
        mask = observed * valid.unsqueeze(-1).to(values.dtype)
        x = ((values - self.mean) / self.std).clamp(-4.0, 4.0) * mask
        state, filled = self.grud(x, mask, times, record_lengths)
        imputed = (filled * self.std + self.mean) * valid.unsqueeze(-1)
        at_refs = self.mtand(self.refs / STAY_HOURS, times / STAY_HOURS, x, mask)
        end = times.gather(1, record_lengths[:, None] - 1)
        support = (self.refs[None, :] <= end).to(x.dtype)
        series = self.ref_proj(self.ref_encoder(at_refs, support))
        gate = torch.sigmoid(self.gate(torch.cat([state, series], dim=-1)))
        return gate * state + (1 - gate) * series, imputed

    def visit_masks(self, age_days, lengths):
        """Days between tokens, none to or from the context, and who may look at whom."""
        visits = age_days.shape[1]
        apart = F.pad((age_days[:, :, None] - age_days[:, None, :]).abs(), (1, 0, 1, 0))
        causal = torch.ones(visits + 1, visits + 1, dtype=torch.bool).tril()
        present = F.pad(length_mask(lengths, visits), (1, 0), value=True)
        return apart, causal[None] & present[:, None, :]

    def forward(self, values, observed, times, record_lengths, codes, age_days, visit_lengths):
        context, imputed = self.read_stay(values, observed, times, record_lengths)
        x = self.set_pool(self.codes(codes), codes)
        x = self.visit_embed(x, age_days, visit_lengths)
        x = torch.cat([context[:, None], x], dim=1)
        apart, allowed = self.visit_masks(age_days, visit_lengths)
        for block in self.blocks:
            x = block(x, apart, allowed)
        x = self.norm(x)
        visits = x[:, 1:]
        mortality, summary = self.mortality(visits, visit_lengths, x[:, 0])
        present = length_mask(visit_lengths, visits.shape[1])
        next_codes = self.next_codes(visits, self.codes.all_vectors()) * present.unsqueeze(-1)
        hazard, survival, rmst = self.hazard(summary)
        return mortality, next_codes, hazard, survival, rmst, imputed


def trained_like(net):
    for module in net.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=1.2 * module.in_features**-0.5)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.2)
        elif isinstance(module, nn.Conv1d):
            nn.init.normal_(module.weight, std=module.weight[0].numel() ** -0.5)
            nn.init.normal_(module.bias, std=0.1)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.6)
        elif isinstance(module, (nn.LayerNorm, nn.GroupNorm, nn.BatchNorm1d)):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.2)
            if isinstance(module, nn.BatchNorm1d):
                nn.init.normal_(module.running_mean, std=0.3)
                nn.init.uniform_(module.running_var, 0.3, 1.5)
        elif isinstance(module, GRUDCell):
            nn.init.uniform_(module.decay_x_weight, 0.1, 0.9)
            nn.init.uniform_(module.decay_x_bias, -0.2, 0.3)
        elif isinstance(module, TimeEmbedding):
            nn.init.uniform_(module.log_period, math.log(0.2), math.log(2.0))
            nn.init.uniform_(module.shift, -2.0, 2.0)
        elif isinstance(module, VisitAttention):
            nn.init.normal_(module.rate, mean=-0.3, std=0.6)
        elif isinstance(module, NextCodeHead):
            nn.init.normal_(module.bias, std=0.5)
    return net


def build():
    """The net with the same weights on every run; three patients, two with padded records and visits."""
    torch.manual_seed(417)
    cfg = Config()
    net = trained_like(RecordNet(cfg))
    steps, visits, per_visit = 13, 9, 6
    record_lengths = torch.tensor([13, 6, 10])
    visit_lengths = torch.tensor([5, 9, 2])
    mean, std = torch.tensor(CHANNEL_MEAN), torch.tensor(CHANNEL_STD)
    values = mean + std * (0.7 * torch.randn(3, 1, cfg.channels) + torch.randn(3, steps, cfg.channels))
    observed = (torch.rand(3, steps, cfg.channels) < torch.tensor([0.8, 0.7, 0.6, 0.45, 0.6, 0.35, 0.25])).float()
    observed[1, :, 6] = 0.0  # no lactate was taken
    times = torch.cumsum(0.4 + 5.5 * torch.rand(3, steps), dim=1).clamp(max=STAY_HOURS)
    codes = torch.randint(1, cfg.num_codes, (3, visits, per_visit))
    sizes = torch.randint(1, per_visit + 1, (3, visits))
    sizes[1, 2], sizes[0, 0], sizes[2, 1], sizes[1, 7] = 0, 6, 5, 4
    codes[0, 0, 3], codes[2, 1, 4], codes[1, 7, 1] = codes[0, 0, 1], codes[2, 1, 0], codes[1, 7, 0]
    visit_mask = length_mask(visit_lengths, visits)
    codes = codes * (torch.arange(per_visit) < sizes[..., None]) * visit_mask[..., None]
    gaps = torch.tensor([[0, 7, 45, 30, 400] + [0] * 4, [0, 2, 12, 90, 5, 200, 14, 1, 40], [0, 61] + [0] * 7])
    age_days = torch.tensor([[24411.0], [14890.0], [29103.0]]) + torch.cumsum(gaps, dim=1)
    age_days = age_days * visit_mask
    return net.eval(), (values, observed, times, record_lengths, codes, age_days, visit_lengths)
