"""Regulatory tracks from DNA: convolutions with attention pooling and a relative transformer, in PyTorch.

The net reads a window of the genome and predicts, for each bin in the middle of it, the coverage of many experiments in
human and in mouse. In evaluation the predictions are averaged over small shifts and over the reverse complement.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

NUM_LETTERS = 4  # in the order ACGT
UNKNOWN = 4  # the letter N
PADDING = -1  # beyond the end of a contig


class Config:
    """The small model."""

    dim = 48
    num_downsamples = 4  # each halves the length
    stem_kernel, tower_kernel = 15, 5
    context_rates = (1, 2, 4)
    depth, heads, dim_key = 2, 4, 16
    num_rel_features = 24
    target_length = 24
    dropout, bn_eps = 0.4, 1e-3
    # plus and minus strand of the same experiment are next to each other; the others have no strand
    human_strand_pair = (1, 0, 3, 2, 5, 4, 6, 7, 8)
    human_track_weight = (2.0, 2.0, 2.0, 2.0, 1.0, 1.0, 0.5, 0.5, 0.5)
    mouse_strand_pair = (0, 2, 1, 4, 3)
    ensemble_shifts = (0, 3)
    soft_clip = 6.0  # coverage above this is compressed by a square root
    total_weight, mouse_weight = 0.2, 0.5


def exponential_widths(start, end, num, divisible_by=8):
    """Widths that grow by the same factor, rounded to a multiple."""
    base = math.exp(math.log(end / start) / (num - 1))
    return [int(round(start * base**i / divisible_by) * divisible_by) for i in range(num)]


def one_hot_letters(indices):
    """(batch, length) to (batch, length, 4): N is a quarter of each letter, padding is nothing at all."""
    one_hot = F.one_hot(indices.clamp(min=0), UNKNOWN + 1)[..., :UNKNOWN].float()
    one_hot = one_hot.masked_fill((indices == UNKNOWN).unsqueeze(-1), 1.0 / NUM_LETTERS)
    return one_hot.masked_fill((indices == PADDING).unsqueeze(-1), 0.0)


def shift_indices(indices, shift):
    """Move the window along the genome; what comes in from outside is not known."""
    if shift == 0:
        return indices
    outside = torch.full_like(indices[:, : abs(shift)], UNKNOWN)
    return torch.cat((outside, indices[:, :-shift]) if shift > 0 else (indices[:, -shift:], outside), dim=1)


def make_variants(indices, shifts):
    """All shifts, each with its reverse complement, one after the other along the batch."""
    letters, valid = [], []
    for shift in shifts:
        shifted = shift_indices(indices, shift)
        one_hot, known = one_hot_letters(shifted), shifted != PADDING
        # the letters are in such an order that the complement is the reversed one
        letters.extend([one_hot, torch.flip(one_hot, dims=(1, 2))])
        valid.extend([known, torch.flip(known, dims=(1,))])
    return torch.cat(letters, dim=0), torch.cat(valid, dim=0)


def merge_variants(tracks, num_shifts, strand_pair):
    """The mean over the variants; those of the other strand are turned back first, and so are stranded tracks."""
    forward, reverse = tracks.reshape(num_shifts, 2, -1, *tracks.shape[1:]).unbind(dim=1)
    reverse = torch.flip(reverse, dims=(2,)).index_select(-1, strand_pair)
    return torch.stack((forward, reverse)).mean(dim=(0, 1))


def exponential_features(positions, num_features, length, min_half_life=3.0):
    """Decay with the distance, with half lives between the shortest and the whole length."""
    half_life = 2 ** torch.linspace(min_half_life, math.log2(length), num_features, dtype=positions.dtype)
    return torch.exp(-math.log(2.0) / half_life[None, :] * positions.abs()[:, None])


def central_mask_features(positions, num_features, length):
    """One inside of windows that double in width, zero outside."""
    widths = 2 ** torch.arange(1, num_features + 1, dtype=positions.dtype) - 1
    return (widths[None, :] > positions.abs()[:, None]).to(positions.dtype)


def gamma_features(positions, num_features, length, eps=1e-8):
    """Densities of gamma distributions whose means go from near to far, each with a maximum of one."""
    stddev = length / (2 * num_features)
    mean = torch.linspace(length / num_features, length, num_features, dtype=positions.dtype)[None, :]
    concentration = (mean / stddev) ** 2
    rate = mean / stddev**2
    x = positions.abs()[:, None]
    log_density = torch.xlogy(concentration - 1.0, x) - rate * x
    density = torch.exp(log_density - (torch.lgamma(concentration) - concentration * torch.log(rate))) + eps
    return density / density.amax(dim=0, keepdim=True)


@lru_cache(maxsize=16)
def positional_features(length, num_features):
    """Features of all distances from -(length - 1) to length - 1: (2 * length - 1, num_features).

    Half of them see the distance only, the other half its sign as well.
    """
    kinds = (exponential_features, central_mask_features, gamma_features)
    per_kind = num_features // (2 * len(kinds))
    distances = torch.arange(-length + 1, length, dtype=torch.float64)
    embeddings = torch.cat([kind(distances, per_kind, length) for kind in kinds], dim=-1)
    embeddings = torch.cat((embeddings, torch.sign(distances)[:, None] * embeddings), dim=-1)
    return embeddings.float()


def relative_shift(x):
    """From (batch, heads, query, distance) to (batch, heads, query, key)."""
    x = torch.cat((torch.zeros_like(x[..., :1]), x), dim=-1)
    b, heads, t1, t2 = x.shape
    x = x.reshape(b, heads, t2, t1)[:, :, 1:, :]
    x = x.reshape(b, heads, t1, t2 - 1)
    return x[..., : (t2 + 1) // 2]


def squash_coverage(coverage, soft_clip):
    """Compress high coverage, continuous in value and slope up to a factor of two."""
    high = soft_clip - 1.0 + torch.sqrt((coverage - soft_clip + 1.0).clamp(min=1.0))
    return torch.where(coverage > soft_clip, high, coverage)


def poisson_loss(pred, target, mask, track_weight, eps=1e-6):
    """Negative log likelihood up to a constant, over the bins that count."""
    loss = (pred - target * torch.log(pred + eps)) * (track_weight / track_weight.mean())
    mask = mask.unsqueeze(-1).to(loss.dtype)
    return (loss * mask).sum() / (mask.sum() * loss.shape[-1]).clamp(min=1.0)


def poisson_multinomial_loss(pred, target, mask, total_weight, eps=1e-6):
    """Poisson for the sum of each track over the window, multinomial for how it is spread along the window."""
    mask = mask.unsqueeze(-1).to(pred.dtype)
    pred, target = (pred + eps) * mask, target * mask
    num_bins = mask.sum(dim=1, keepdim=True).clamp(min=1.0)
    pred_sum, target_sum = pred.sum(dim=1, keepdim=True), target.sum(dim=1, keepdim=True)
    poisson_term = (pred_sum - target_sum * torch.log(pred_sum)) / num_bins
    log_share = torch.log(pred / pred_sum + eps)
    multinomial_term = -(target * log_share * mask).sum(dim=1, keepdim=True) / num_bins
    return (multinomial_term + total_weight * poisson_term).mean()


def pearson_per_track(pred, target, mask, eps=1e-8):
    """Correlation along the window for each track: (batch, tracks)."""
    mask = mask.unsqueeze(-1).to(pred.dtype)
    count = mask.sum(dim=1, keepdim=True).clamp(min=1.0)
    pred = (pred - (pred * mask).sum(dim=1, keepdim=True) / count) * mask
    target = (target - (target * mask).sum(dim=1, keepdim=True) / count) * mask
    norm = pred.square().sum(dim=1).sqrt() * target.square().sum(dim=1).sqrt()
    return (pred * target).sum(dim=1) / (norm + eps)


class GELU(nn.Module):
    """The sigmoid form."""

    def forward(self, x):
        return torch.sigmoid(1.702 * x) * x


class ConvBlock(nn.Module):
    """Normalisation, activation, convolution."""

    def __init__(self, dim_in, dim_out, kernel, eps):
        super().__init__()
        self.norm = nn.BatchNorm1d(dim_in, eps=eps)
        self.act = GELU()
        self.conv = nn.Conv1d(dim_in, dim_out, kernel, padding=kernel // 2)

    def forward(self, x):
        return self.conv(self.act(self.norm(x)))


class AttentionPool(nn.Module):
    """Pools windows with weights that each channel computes from all channels; padding has no weight."""

    def __init__(self, dim, pool_size=2):
        super().__init__()
        self.pool_size = pool_size
        self.to_logits = nn.Linear(dim, dim, bias=False)

    def forward(self, x, valid):
        b, dim, length = x.shape
        remainder = -length % self.pool_size
        x, valid = F.pad(x, (0, remainder)), F.pad(valid, (0, remainder), value=False)
        x = x.reshape(b, dim, -1, self.pool_size).permute(0, 2, 3, 1)  # batch, windows, places, channels
        valid = valid.reshape(b, -1, self.pool_size)
        logits = self.to_logits(x)
        logits = logits.masked_fill(~valid.unsqueeze(-1), torch.finfo(logits.dtype).min)
        x = (x * logits.softmax(dim=2)).sum(dim=2)
        return x.transpose(1, 2), valid.any(dim=-1)


class Stage(nn.Module):
    """One stage of a tower: convolution, pointwise residual, pooling."""

    def __init__(self, conv, dim, eps):
        super().__init__()
        self.conv = conv
        self.pointwise = ConvBlock(dim, dim, 1, eps)
        self.pool = AttentionPool(dim)

    def forward(self, x, valid):
        x = self.conv(x)
        x = x + self.pointwise(x)
        return self.pool(x, valid)


class DilatedBlock(nn.Module):
    """A narrow dilated convolution, and a pointwise one back, as residual."""

    def __init__(self, dim, rate, dropout, eps):
        super().__init__()
        self.act1 = GELU()
        self.conv1 = nn.Conv1d(dim, dim // 2, 3, padding=rate, dilation=rate, bias=False)
        self.norm1 = nn.BatchNorm1d(dim // 2, eps=eps)
        self.act2 = GELU()
        self.conv2 = nn.Conv1d(dim // 2, dim, 1, bias=False)
        self.norm2 = nn.BatchNorm1d(dim, eps=eps)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, valid):
        keep = valid.unsqueeze(1).to(x.dtype)
        y = self.norm1(self.conv1(self.act1(x) * keep))
        y = self.norm2(self.conv2(self.act2(y)))
        return x + self.dropout(y)


class RelativeAttention(nn.Module):
    """Attention with biases for content and position, and keys of relative positions."""

    def __init__(self, dim, heads, dim_key, num_rel_features):
        super().__init__()
        self.heads = heads
        self.dim_value = dim // heads
        self.scale = dim_key**-0.5
        self.num_rel_features = num_rel_features
        self.rel_content_bias = nn.Parameter(torch.randn(1, heads, 1, dim_key))
        self.rel_pos_bias = nn.Parameter(torch.randn(1, heads, 1, dim_key))
        self.to_q = nn.Linear(dim, heads * dim_key, bias=False)
        self.to_k = nn.Linear(dim, heads * dim_key, bias=False)
        self.to_v = nn.Linear(dim, heads * self.dim_value, bias=False)
        self.to_rel_k = nn.Linear(num_rel_features, heads * dim_key, bias=False)
        self.attn_dropout = nn.Dropout(0.05)
        self.to_out = nn.Linear(heads * self.dim_value, dim)

    def split_heads(self, x):
        return x.reshape(*x.shape[:-1], self.heads, -1).transpose(-2, -3)

    def forward(self, x, valid):
        b, n, _ = x.shape
        q, k, v = (self.split_heads(project(x)) for project in (self.to_q, self.to_k, self.to_v))
        q = q * self.scale
        rel_k = self.split_heads(self.to_rel_k(positional_features(n, self.num_rel_features).to(x)))

        content_logits = torch.einsum("bhid,bhjd->bhij", q + self.rel_content_bias, k)
        rel_logits = torch.einsum("bhid,hjd->bhij", q + self.rel_pos_bias, rel_k)
        logits = content_logits + relative_shift(rel_logits)
        logits = logits.masked_fill(~valid[:, None, None, :], torch.finfo(logits.dtype).min)

        attn = self.attn_dropout(logits.softmax(dim=-1))
        out = torch.einsum("bhij,bhjd->bihd", attn, v)
        return self.to_out(out.reshape(b, n, -1))


class TransformerBlock(nn.Module):
    """Attention and perceptron, both with the norm in front."""

    def __init__(self, cfg):
        super().__init__()
        self.norm1 = nn.LayerNorm(cfg.dim)
        self.attn = RelativeAttention(cfg.dim, cfg.heads, cfg.dim_key, cfg.num_rel_features)
        self.dropout = nn.Dropout(cfg.dropout)
        self.norm2 = nn.LayerNorm(cfg.dim)
        self.fc1 = nn.Linear(cfg.dim, 2 * cfg.dim)
        self.act = nn.ReLU()
        self.fc2 = nn.Linear(2 * cfg.dim, cfg.dim)

    def forward(self, x, valid):
        x = x + self.dropout(self.attn(self.norm1(x), valid))
        hidden = self.dropout(self.act(self.fc1(self.norm2(x))))
        return x + self.dropout(self.fc2(hidden))


class Trunk(nn.Module):
    """From one-hot letters to embeddings of bins."""

    def __init__(self, cfg):
        super().__init__()
        widths = exponential_widths(cfg.dim // 2, cfg.dim, cfg.num_downsamples)
        stem_conv = nn.Conv1d(NUM_LETTERS, widths[0], cfg.stem_kernel, padding=cfg.stem_kernel // 2)
        self.stem = Stage(stem_conv, widths[0], cfg.bn_eps)
        self.tower = nn.ModuleList()
        for dim_in, dim_out in zip(widths[:-1], widths[1:]):
            conv = ConvBlock(dim_in, dim_out, cfg.tower_kernel, cfg.bn_eps)
            self.tower.append(Stage(conv, dim_out, cfg.bn_eps))
        self.context = nn.ModuleList([DilatedBlock(cfg.dim, rate, 0.2, cfg.bn_eps) for rate in cfg.context_rates])
        self.blocks = nn.ModuleList([TransformerBlock(cfg) for _ in range(cfg.depth)])
        self.target_length = cfg.target_length
        self.final = ConvBlock(cfg.dim, 2 * cfg.dim, 1, cfg.bn_eps)
        self.final_act = GELU()

    def forward(self, letters, valid):
        x, valid = self.stem(letters.transpose(1, 2), valid)
        for stage in self.tower:
            x, valid = stage(x, valid)
        for layer in self.context:
            x = layer(x, valid)
        x = x.transpose(1, 2)
        for block in self.blocks:
            x = block(x, valid)
        # bins at both ends see too little of what is around them
        start = (x.shape[1] - self.target_length) // 2
        x = x[:, start : start + self.target_length]
        x = self.final(x.transpose(1, 2)).transpose(1, 2)
        return self.final_act(x)


class TrackHead(nn.Module):
    """Non-negative coverage of the experiments of one organism."""

    def __init__(self, dim, strand_pair):
        super().__init__()
        self.linear = nn.Linear(dim, len(strand_pair))
        self.softplus = nn.Softplus()
        self.register_buffer("strand_pair", torch.tensor(strand_pair), persistent=False)

    def forward(self, x):
        return self.softplus(self.linear(x))


class GenomeTracks(nn.Module):
    """The trunk with a head for each organism, the average over variants, losses and correlations."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.trunk = Trunk(cfg)
        self.head_human = TrackHead(2 * cfg.dim, cfg.human_strand_pair)
        self.head_mouse = TrackHead(2 * cfg.dim, cfg.mouse_strand_pair)
        self.register_buffer("human_track_weight", torch.tensor(cfg.human_track_weight), persistent=False)

    def forward(self, indices, human_target, mouse_target, bin_mask):
        """indices (batch, length), targets (batch, bins, tracks), bin_mask (batch, bins), true where a bin counts."""
        cfg = self.cfg
        letters, valid = make_variants(indices, cfg.ensemble_shifts)
        embeddings = self.trunk(letters, valid)
        human, mouse = (
            merge_variants(head(embeddings), len(cfg.ensemble_shifts), head.strand_pair)
            for head in (self.head_human, self.head_mouse)
        )

        human_target, mouse_target = (squash_coverage(t, cfg.soft_clip) for t in (human_target, mouse_target))
        loss = poisson_loss(human, human_target, bin_mask, self.human_track_weight)
        loss = loss + cfg.mouse_weight * poisson_multinomial_loss(mouse, mouse_target, bin_mask, cfg.total_weight)
        return human, mouse, loss, pearson_per_track(human, human_target, bin_mask)


def trained_like(net, inputs):
    """Values as after training, not as after the initialisation."""
    for module in net.modules():
        if isinstance(module, (nn.LayerNorm, nn.BatchNorm1d)):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.25)
            if isinstance(module, nn.BatchNorm1d):
                module.momentum = 0.7
                nn.init.uniform_(module.running_var, 0.01, 0.2)
        elif isinstance(module, (nn.Linear, nn.Conv1d)):
            gain = 0.5 if isinstance(module, nn.Conv1d) else 1.2
            nn.init.normal_(module.weight, std=gain * module.weight[0].numel() ** -0.5)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.1)
        elif isinstance(module, RelativeAttention):
            nn.init.normal_(module.rel_content_bias, std=0.5)
            nn.init.normal_(module.rel_pos_bias, std=0.5)
    for module in net.modules():
        if isinstance(module, AttentionPool):
            # pooling starts as a soft maximum of each channel
            module.to_logits.weight.data.mul_(0.8).add_(2.0 * torch.eye(module.to_logits.in_features))
        elif isinstance(module, TrackHead):
            module.linear.weight.data.mul_(5.0)
        elif isinstance(module, DilatedBlock):
            module.norm2.weight.data.mul_(0.4)
    with torch.no_grad():
        net.train()(*inputs)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.momentum = 0.1
            module.running_mean.copy_(module.running_mean.round(decimals=3))
            module.running_var.copy_(module.running_var.round(decimals=3))
    return net.eval()


def build():
    """The net with the same weights on every run, and two windows of which the second runs over the end of a contig."""
    torch.manual_seed(1953)
    cfg = Config()
    rng = np.random.RandomState(38)
    rows = ["".join(rng.choice(list("ACGT"), size=520, p=(0.3, 0.2, 0.2, 0.3))) for _ in range(2)]
    rows[0] = rows[0][:200] + "N" * 24 + rows[0][224:]
    rows[1] = "NNNNNNNN" + rows[1][8:393] + "." * 127
    indices = torch.tensor([["ACGTN".find(letter) for letter in row] for row in rows])
    human_target, mouse_target = (
        torch.from_numpy(rng.gamma(0.8, 3.0, size=(2, 24, num_tracks)).astype(np.float32)) for num_tracks in (9, 5)
    )
    bin_mask = torch.from_numpy(rng.rand(2, 24) > 0.15)
    bin_mask[1, -5:] = False
    inputs = (indices, human_target, mouse_target, bin_mask)
    return trained_like(GenomeTracks(cfg), inputs), inputs
