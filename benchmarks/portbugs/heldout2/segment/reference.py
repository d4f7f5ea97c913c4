"""Masks by queries: a small pixel decoder, queries with masked cross attention, refinement at uncertain points."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn


def sine_positions(h, w, num_feats, temperature=10000.0, scale=2 * math.pi):
    """(2 * num_feats, h, w), rows first, as DETR has it with normalize=True."""
    ones = torch.ones(h, w)
    y_embed = ones.cumsum(0)
    x_embed = ones.cumsum(1)
    eps = 1e-6
    y_embed = y_embed / (y_embed[-1:, :] + eps) * scale
    x_embed = x_embed / (x_embed[:, -1:] + eps) * scale
    dim_t = torch.arange(num_feats, dtype=torch.float32)
    dim_t = temperature ** (2 * torch.div(dim_t, 2, rounding_mode="floor") / num_feats)
    pos_x = x_embed[..., None] / dim_t
    pos_y = y_embed[..., None] / dim_t
    pos_x = torch.stack((pos_x[..., 0::2].sin(), pos_x[..., 1::2].cos()), dim=3).flatten(2)
    pos_y = torch.stack((pos_y[..., 0::2].sin(), pos_y[..., 1::2].cos()), dim=3).flatten(2)
    return torch.cat((pos_y, pos_x), dim=2).permute(2, 0, 1)


def point_sample(features, coords, align_corners=False):
    """features (N, C, H, W) read at coords (N, P, 2) in [0, 1], x first; gives (N, C, P)."""
    grid = 2.0 * coords.unsqueeze(2) - 1.0
    return F.grid_sample(features, grid, align_corners=align_corners).squeeze(3)


def uncertain_points(logits, num_points):
    """The num_points places of (N, 1, H, W) whose logit is nearest to zero: flat indices and their coordinates."""
    n, _, h, w = logits.shape
    uncertainty = -logits.abs().flatten(1)
    index = torch.topk(uncertainty, num_points, dim=1)[1]
    x = (index % w).float() * (1.0 / w) + 0.5 / w
    y = torch.div(index, w, rounding_mode="floor").float() * (1.0 / h) + 0.5 / h
    return index, torch.stack([x, y], dim=2)


def split_heads(x, heads):
    n, l, d = x.shape
    return x.view(n, l, heads, d // heads).permute(0, 2, 1, 3)


class PixelDecoder(nn.Module):
    def __init__(self, dim, mask_dim):
        super().__init__()
        self.stem = nn.Conv2d(3, dim // 2, 4, stride=4)
        self.stem_norm = nn.BatchNorm2d(dim // 2)
        self.down1 = nn.Conv2d(dim // 2, dim, 3, stride=2, padding=1)
        self.down2 = nn.Conv2d(dim, dim, 3, stride=2, padding=1)
        self.lateral = nn.ModuleList([nn.Conv2d(c, dim, 1) for c in (dim // 2, dim, dim)])
        self.smooth = nn.ModuleList([nn.Conv2d(dim, dim, 3, padding=1) for _ in range(2)])
        self.norms = nn.ModuleList([nn.GroupNorm(4, dim) for _ in range(2)])
        self.mask_proj = nn.Conv2d(dim, mask_dim, 1)

    def forward(self, images):
        x = self.stem_norm(self.stem(images))
        c2 = F.relu(x)
        c3 = F.relu(self.down1(c2))
        c4 = F.relu(self.down2(c3) + F.max_pool2d(c3, 3, stride=2, padding=1))
        y = self.lateral[2](c4)
        outs = [y]
        for i, skip in enumerate((c3, c2)):
            cur = self.lateral[1 - i](skip)
            up = F.interpolate(y, size=cur.shape[-2:], mode="bilinear", align_corners=False)
            y = cur + up
            y = F.relu(self.norms[i](self.smooth[i](y)))
            outs.append(y)
        mask_features = self.mask_proj(y)
        return mask_features, outs


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.scale = (dim // heads) ** -0.5
        self.q_proj = nn.Linear(dim, dim)
        self.k_proj = nn.Linear(dim, dim)
        self.v_proj = nn.Linear(dim, dim)
        self.out_proj = nn.Linear(dim, dim)

    def forward(self, query, key, value, blocked=None):
        n, l, d = query.shape
        q = split_heads(self.q_proj(query) * self.scale, self.heads)
        k = split_heads(self.k_proj(key), self.heads)
        v = split_heads(self.v_proj(value), self.heads)
        attn = torch.einsum("nhld,nhsd->nhls", q, k)
        if blocked is not None:
            attn = attn.masked_fill(blocked.unsqueeze(1), float("-inf"))
        attn = attn - attn.amax(dim=-1, keepdim=True)
        attn = attn.exp()
        attn = attn / attn.sum(dim=-1, keepdim=True)
        out = torch.einsum("nhls,nhsd->nhld", attn, v)
        out = out.permute(0, 2, 1, 3).reshape(n, l, d)
        return self.out_proj(out)


class DecoderLayer(nn.Module):
    def __init__(self, dim, heads, hidden):
        super().__init__()
        self.cross = Attention(dim, heads)
        self.norm1 = nn.LayerNorm(dim)
        self.self_attn = Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim)
        self.linear1 = nn.Linear(dim, hidden)
        self.linear2 = nn.Linear(hidden, dim)
        self.norm3 = nn.LayerNorm(dim)

    def forward(self, tgt, memory, pos, query_pos, blocked):
        tgt2 = self.cross(tgt + query_pos, memory + pos, memory, blocked)
        tgt = self.norm1(tgt + tgt2)
        q = k = tgt + query_pos
        tgt2 = self.self_attn(q, k, tgt)
        tgt = self.norm2(tgt + tgt2)
        tgt2 = self.linear2(F.relu(self.linear1(tgt)))
        return self.norm3(tgt + tgt2)


class PointHead(nn.Module):
    """Re-reads the masks at the points they are least sure of, from fine features and the coarse logit."""

    def __init__(self, fine_dim, hidden, num_points):
        super().__init__()
        self.num_points = num_points
        self.fc1 = nn.Linear(fine_dim + 1, hidden)
        self.fc2 = nn.Linear(hidden + 1, 1)

    def forward(self, masks, fine):
        b, q, h, w = masks.shape
        flat = masks.reshape(b * q, 1, h, w)
        index, coords = uncertain_points(flat, self.num_points)
        coarse = point_sample(flat, coords).transpose(1, 2)
        fine = fine.unsqueeze(1).expand(-1, q, -1, -1, -1).flatten(0, 1)
        detail = point_sample(fine, coords).transpose(1, 2)
        x = torch.cat([detail, coarse], dim=2)
        x = F.relu(self.fc1(x))
        x = torch.cat([x, coarse], dim=2)
        new = self.fc2(x).squeeze(2) + 0.5 * coarse.squeeze(2)
        flat = flat.reshape(b * q, h * w).scatter(1, index, new)
        return flat.view(b, q, h, w)


class Segmenter(nn.Module):
    def __init__(self, classes=7, dim=32, mask_dim=24, heads=4, queries=9, depth=3, points=40):
        super().__init__()
        self.dim = dim
        self.heads = heads
        self.num_levels = 3
        self.pixel_decoder = PixelDecoder(dim, mask_dim)
        self.level_embed = nn.Embedding(self.num_levels, dim)
        self.query_feat = nn.Embedding(queries, dim)
        self.query_embed = nn.Embedding(queries, dim)
        self.layers = nn.ModuleList([DecoderLayer(dim, heads, 2 * dim) for _ in range(depth)])
        self.decoder_norm = nn.LayerNorm(dim)
        self.class_embed = nn.Linear(dim, classes + 1)
        self.mask_embed1 = nn.Linear(dim, dim)
        self.mask_embed2 = nn.Linear(dim, mask_dim)
        self.point_head = PointHead(mask_dim, 24, points)

    def predict(self, output, mask_features, target_size):
        """Classes and masks of the queries, and what the next cross attention may not see."""
        x = self.decoder_norm(output)
        logits = self.class_embed(x)
        mask_embed = self.mask_embed2(F.relu(self.mask_embed1(x)))
        masks = torch.einsum("bqc,bchw->bqhw", mask_embed, mask_features)
        blocked = F.interpolate(masks, size=target_size, mode="bilinear", align_corners=False)
        blocked = (blocked.sigmoid().flatten(2) < 0.5).detach()
        # a query that may look nowhere looks everywhere
        nowhere = blocked.sum(-1, keepdim=True) == blocked.shape[-1]
        blocked = blocked & ~nowhere
        return logits, masks, blocked

    def forward(self, images):
        b, _, height, width = images.shape
        mask_features, features = self.pixel_decoder(images)
        memory, pos, sizes = [], [], []
        for i in range(self.num_levels):
            h, w = features[i].shape[-2:]
            sizes.append((h, w))
            p = sine_positions(h, w, self.dim // 2).flatten(1).t()
            pos.append(p.unsqueeze(0).repeat(b, 1, 1))
            src = features[i].flatten(2) + self.level_embed.weight[i][None, :, None]
            memory.append(src.permute(0, 2, 1))
        query_pos = self.query_embed.weight.unsqueeze(0).repeat(b, 1, 1)
        output = self.query_feat.weight.unsqueeze(0).repeat(b, 1, 1)
        logits, masks, blocked = self.predict(output, mask_features, sizes[0])
        for i, layer in enumerate(self.layers):
            level = i % self.num_levels
            output = layer(output, memory[level], pos[level], query_pos, blocked)
            logits, masks, blocked = self.predict(output, mask_features, sizes[(i + 1) % self.num_levels])
        masks = F.interpolate(masks, size=(height // 2, width // 2), mode="bilinear", align_corners=False)
        masks = self.point_head(masks, mask_features)
        probs = logits.softmax(-1)[..., :-1]
        semantic = torch.einsum("bqc,bqhw->bchw", probs, masks.sigmoid())
        return logits, masks, semantic


def build():
    torch.manual_seed(23)
    net = Segmenter()
    for name, module in net.named_modules():
        if isinstance(module, (nn.LayerNorm, nn.GroupNorm, nn.BatchNorm2d)):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.15)
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.3)
            module.running_var.uniform_(0.4, 1.3)
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight, gain=1.6)
            nn.init.normal_(module.bias, std=0.1)
    images = torch.randn(2, 3, 48, 64)
    images = 0.6 * images + F.interpolate(torch.randn(2, 3, 6, 8), scale_factor=8, mode="nearest")
    return net.eval(), (images,)
