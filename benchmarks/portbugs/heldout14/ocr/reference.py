"""A scene text recogniser: rectified by a thin-plate spline, read by mixing blocks, spelled by CTC and by permuted masks."""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

CHARSET = "0123456789abcdefghijklmnopqrstuvwxyz"
EOS, BOS, PAD = 0, len(CHARSET) + 1, len(CHARSET) + 2
BLANK = 0


def build_output_control_points(num_points: int, margins):
    """Points along the upper and the lower edge of the rectified image, as (x, y) in [0, 1]."""
    margin_x, margin_y = margins
    per_side = num_points // 2
    xs = np.linspace(margin_x, 1.0 - margin_x, per_side)
    top = np.stack([xs, np.ones(per_side) * margin_y], axis=1)
    bottom = np.stack([xs, np.ones(per_side) * (1.0 - margin_y)], axis=1)
    return torch.as_tensor(np.concatenate([top, bottom], axis=0), dtype=torch.float64)


def compute_partial_repr(points, control_points):
    """phi(x1, x2) = r^2 * log(r), of every point to every control point."""
    n, m = points.size(0), control_points.size(0)
    diff = points.view(n, 1, 2) - control_points.view(1, m, 2)
    square = diff * diff
    dist = square[:, :, 0] + square[:, :, 1]
    phi = 0.5 * dist * torch.log(dist)
    return phi.masked_fill(phi != phi, 0.0)


class TPSSpatialTransformer(nn.Module):
    def __init__(self, output_size, num_points: int, margins):
        super().__init__()
        self.output_size = output_size
        height, width = output_size
        target = build_output_control_points(num_points, margins)
        n = num_points
        forward_kernel = torch.zeros(n + 3, n + 3, dtype=torch.float64)
        forward_kernel[:n, :n] = compute_partial_repr(target, target)
        forward_kernel[:n, -3].fill_(1)
        forward_kernel[-3, :n].fill_(1)
        forward_kernel[:n, -2:] = target
        forward_kernel[-2:, :n] = target.transpose(0, 1)
        inverse_kernel = torch.inverse(forward_kernel)

        coordinate = torch.tensor(list(itertools.product(range(height), range(width))), dtype=torch.float64)
        y, x = coordinate.split(1, dim=1)
        y = y / (height - 1)
        x = x / (width - 1)
        coordinate = torch.cat([x, y], dim=1)
        partial = compute_partial_repr(coordinate, target)
        representation = torch.cat([partial, torch.ones(height * width, 1, dtype=torch.float64), coordinate], dim=1)

        self.register_buffer("inverse_kernel", inverse_kernel.float(), persistent=False)
        self.register_buffer("representation", representation.float(), persistent=False)
        self.register_buffer("padding_matrix", torch.zeros(3, 2), persistent=False)

    def forward(self, images, source_points):
        batch = source_points.size(0)
        padded = torch.cat([source_points, self.padding_matrix.expand(batch, 3, 2)], dim=1)
        mapping = torch.matmul(self.inverse_kernel, padded)
        source = torch.matmul(self.representation, mapping)
        grid = source.view(-1, self.output_size[0], self.output_size[1], 2)
        grid = torch.clamp(grid, 0, 1)
        grid = 2.0 * grid - 1.0
        return F.grid_sample(images, grid, mode="bilinear", align_corners=True)


def conv3x3_block(in_planes: int, out_planes: int):
    conv = nn.Conv2d(in_planes, out_planes, kernel_size=3, stride=1, padding=1)
    return nn.Sequential(conv, nn.BatchNorm2d(out_planes), nn.ReLU(inplace=True), nn.MaxPool2d(2, 2))


class STNHead(nn.Module):
    """Looks at a small copy of the image, says where the control points lie in it."""

    def __init__(self, num_points: int, in_planes: int = 3, hidden: int = 64):
        super().__init__()
        self.num_points = num_points
        self.input_size = (32, 64)
        blocks = [conv3x3_block(a, b) for a, b in ((in_planes, 8), (8, 16), (16, 32))]
        self.stn_convnet = nn.Sequential(*blocks)
        self.stn_fc1 = nn.Sequential(nn.Linear(4 * 8 * 32, hidden), nn.BatchNorm1d(hidden), nn.ReLU(inplace=True))
        self.stn_fc2 = nn.Linear(hidden, num_points * 2)

    def forward(self, images):
        x = F.interpolate(images, self.input_size, mode="bilinear", align_corners=True)
        x = self.stn_convnet(x)
        x = x.view(x.size(0), -1)
        x = self.stn_fc2(0.1 * self.stn_fc1(x))
        return x.view(-1, self.num_points, 2)


class ConvBNLayer(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, stride: int):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(out_channels, eps=1e-3)
        self.act = nn.GELU()

    def forward(self, x):
        return self.act(self.norm(self.conv(x)))


class PatchEmbed(nn.Module):
    """A quarter of the size by two convolutions, then places that were learned on a grid of another size."""

    def __init__(self, dim: int, base=(8, 16)):
        super().__init__()
        self.base = base
        self.proj = nn.Sequential(ConvBNLayer(3, dim // 2, 2), ConvBNLayer(dim // 2, dim, 2))
        self.pos_embed = nn.Parameter(torch.zeros(1, base[0] * base[1], dim))

    def interpolate_pos(self, height: int, width: int):
        dim = self.pos_embed.shape[-1]
        grid = self.pos_embed.reshape(1, self.base[0], self.base[1], dim).permute(0, 3, 1, 2)
        grid = F.interpolate(grid, size=(height, width), mode="bilinear", align_corners=False)
        return grid.permute(0, 2, 3, 1).reshape(1, height * width, dim)

    def forward(self, x):
        x = self.proj(x)
        height, width = x.shape[-2:]
        x = x.flatten(2).permute(0, 2, 1)
        return x + self.interpolate_pos(height, width), (height, width)


class ConvMixer(nn.Module):
    def __init__(self, dim: int, heads: int, hw, local_k):
        super().__init__()
        self.hw = hw
        padding = (local_k[0] // 2, local_k[1] // 2)
        self.local_mixer = nn.Conv2d(dim, dim, local_k, stride=1, padding=padding, groups=heads)

    def forward(self, x):
        height, width = self.hw
        x = x.permute(0, 2, 1).reshape(x.shape[0], -1, height, width)
        return self.local_mixer(x).flatten(2).permute(0, 2, 1)


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int, mixer: str, hw, local_k):
        super().__init__()
        self.num_heads = heads
        self.head_dim = dim // heads
        self.scale = self.head_dim**-0.5
        self.mixer = mixer
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)
        if mixer == "Local":
            height, width = hw
            hk, wk = local_k
            mask = torch.ones(height * width, height + hk - 1, width + wk - 1)
            for h in range(height):
                for w in range(width):
                    mask[h * width + w, h : h + hk, w : w + wk] = 0.0
            mask = mask[:, hk // 2 : height + hk // 2, wk // 2 : width + wk // 2].flatten(1)
            mask = torch.where(mask < 1, torch.zeros_like(mask), torch.full_like(mask, -torch.inf))
            self.register_buffer("mask", mask[None, None], persistent=False)

    def forward(self, x):
        batch, n, dim = x.shape
        qkv = self.qkv(x).reshape(batch, n, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0] * self.scale, qkv[1], qkv[2]
        attn = q.matmul(k.permute(0, 1, 3, 2))
        if self.mixer == "Local":
            attn = attn + self.mask
        attn = F.softmax(attn, dim=-1)
        x = attn.matmul(v).permute(0, 2, 1, 3).reshape(batch, n, dim)
        return self.proj(x)


class Block(nn.Module):
    """Mixes, then thinks; norms after the sums."""

    def __init__(self, dim: int, heads: int, mixer: str, hw, local_k=(5, 7)):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        if mixer == "Conv":
            self.mixer = ConvMixer(dim, heads, hw, (3, 3))
        else:
            self.mixer = Attention(dim, heads, mixer, hw, local_k)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.fc1 = nn.Linear(dim, 2 * dim)
        self.fc2 = nn.Linear(2 * dim, dim)
        self.gamma = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        x = self.norm1(x + self.gamma * self.mixer(x))
        return self.norm2(x + self.fc2(F.gelu(self.fc1(x))))


class RowMerging(nn.Module):
    """Halves the rows by putting each odd row behind the even one above it."""

    def __init__(self, dim: int, out_dim: int):
        super().__init__()
        self.norm = nn.LayerNorm(2 * dim, eps=1e-6)
        self.reduction = nn.Linear(2 * dim, out_dim, bias=False)

    def forward(self, x, hw):
        height, width = hw
        x = x.view(x.shape[0], height, width, -1)
        x = torch.cat([x[:, 0::2], x[:, 1::2]], dim=-1).flatten(1, 2)
        return self.reduction(self.norm(x)), (height // 2, width)


class SVTREncoder(nn.Module):
    def __init__(self, size, dims=(32, 48, 64), heads=(2, 3, 4)):
        super().__init__()
        height, width = size[0] // 4, size[1] // 4
        mixers = (("Conv", "Local"), ("Local", "Global"), ("Global",))
        self.patch_embed = PatchEmbed(dims[0])
        self.stages = nn.ModuleList()
        self.merges = nn.ModuleList()
        for i, kinds in enumerate(mixers):
            hw = (height // 2**i, width)
            self.stages.append(nn.Sequential(*[Block(dims[i], heads[i], kind, hw) for kind in kinds]))
            if i + 1 < len(mixers):
                self.merges.append(RowMerging(dims[i], dims[i + 1]))
        self.norm = nn.LayerNorm(dims[-1], eps=1e-6)

    def forward(self, images):
        x, hw = self.patch_embed(images)
        for i, stage in enumerate(self.stages):
            x = stage(x)
            if i < len(self.merges):
                x, hw = self.merges[i](x, hw)
        return self.norm(x), hw


class CTCBranch(nn.Module):
    """Weighs the rows of every column, then one letter or the blank for each column."""

    def __init__(self, dim: int, num_classes: int):
        super().__init__()
        self.score = nn.Linear(dim, 1)
        self.neck = nn.Conv1d(dim, dim, 3, padding=1)
        self.fc = nn.Linear(dim, num_classes)

    def forward(self, x, hw):
        height, width = hw
        x = x.reshape(x.shape[0], height, width, -1)
        weight = self.score(x).softmax(dim=1)
        x = (weight * x).sum(dim=1)
        x = x + F.hardswish(self.neck(x.transpose(1, 2))).transpose(1, 2)
        return F.log_softmax(self.fc(x), dim=-1).permute(1, 0, 2)


def ctc_confidence(log_probs):
    """The mean probability of the letters that are left when repeats and blanks are taken out."""
    best, ids = log_probs.exp().max(dim=-1)
    previous = F.pad(ids[:-1], (0, 0, 1, 0), value=-1)
    keep = (ids != BLANK) & (ids != previous)
    return (best * keep).sum(0) / keep.sum(0).clamp(min=1)


class DecoderLayer(nn.Module):
    """A layer of two streams: queries that know only their place, and content."""

    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.cross_attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.linear1 = nn.Linear(dim, 2 * dim)
        self.linear2 = nn.Linear(2 * dim, dim)
        self.norm1 = nn.LayerNorm(dim)
        self.norm2 = nn.LayerNorm(dim)
        self.norm_q = nn.LayerNorm(dim)
        self.norm_c = nn.LayerNorm(dim)

    def forward_stream(self, tgt, tgt_norm, tgt_kv, memory, tgt_mask, tgt_key_padding_mask):
        masks = {"attn_mask": tgt_mask, "key_padding_mask": tgt_key_padding_mask}
        tgt = tgt + self.self_attn(tgt_norm, tgt_kv, tgt_kv, need_weights=False, **masks)[0]
        tgt = tgt + self.cross_attn(self.norm1(tgt), memory, memory, need_weights=False)[0]
        return tgt + self.linear2(F.gelu(self.linear1(self.norm2(tgt))))

    def forward(self, query, content, memory, query_mask, content_mask, content_key_padding_mask, update_content):
        query_norm = self.norm_q(query)
        content_norm = self.norm_c(content)
        query = self.forward_stream(query, query_norm, content_norm, memory, query_mask, content_key_padding_mask)
        if update_content:
            args = (content_norm, content_norm, memory, content_mask, content_key_padding_mask)
            content = self.forward_stream(content, *args)
        return query, content


class Decoder(nn.Module):
    def __init__(self, dim: int, heads: int, depth: int):
        super().__init__()
        self.layers = nn.ModuleList([DecoderLayer(dim, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)

    def forward(self, query, content, memory, query_mask, content_mask, content_key_padding_mask=None):
        for i, layer in enumerate(self.layers):
            more = i < len(self.layers) - 1
            query, content = layer(query, content, memory, query_mask, content_mask, content_key_padding_mask, more)
        return self.norm(query)


def gen_tgt_perms(max_num_chars: int, num_pairs: int, seed: int = 5):
    """Orders in which the letters are read: left to right and others, each with its mirror; BOS first, EOS last."""
    rng = np.random.RandomState(seed)
    perms = [np.arange(max_num_chars)] + [rng.permutation(max_num_chars) for _ in range(num_pairs - 1)]
    perms = torch.as_tensor(np.stack(perms), dtype=torch.long)
    perms = torch.stack([perms, perms.flip(-1)]).transpose(0, 1).reshape(-1, max_num_chars)
    bos = perms.new_zeros((len(perms), 1))
    eos = perms.new_full((len(perms), 1), max_num_chars + 1)
    perms = torch.cat([bos, perms + 1, eos], dim=1)
    perms[1, 1:] = max_num_chars + 1 - torch.arange(max_num_chars + 1)
    return perms


def generate_attn_masks(perm):
    """True where a place may not look: at all that come later in the order (and, for queries, at itself)."""
    sz = perm.shape[0]
    mask = torch.zeros((sz, sz), dtype=torch.bool)
    for i in range(sz):
        mask[perm[i], perm[i + 1 :]] = True
    content_mask = mask[:-1, :-1].clone()
    mask[torch.eye(sz, dtype=torch.bool)] = True
    query_mask = mask[1:, :-1]
    return content_mask, query_mask


class Recognizer(nn.Module):
    def __init__(self, max_label_length: int = 8, dim: int = 64, heads: int = 4, depth: int = 2, refine_iters: int = 1):
        super().__init__()
        self.max_label_length = max_label_length
        self.refine_iters = refine_iters
        self.stn_head = STNHead(num_points=12)
        self.tps = TPSSpatialTransformer((32, 80), num_points=12, margins=(0.05, 0.1))
        self.encoder = SVTREncoder((32, 80), dims=(32, 48, dim))
        self.ctc = CTCBranch(dim, len(CHARSET) + 1)
        self.embedding = nn.Embedding(len(CHARSET) + 3, dim)
        self.pos_queries = nn.Parameter(torch.zeros(1, max_label_length + 1, dim))
        self.decoder = Decoder(dim, heads, depth)
        self.head = nn.Linear(dim, len(CHARSET) + 1)
        self.register_buffer("perms", gen_tgt_perms(max_label_length, num_pairs=3), persistent=False)

    def decode(self, tgt, memory, tgt_mask, tgt_padding_mask=None, tgt_query=None, tgt_query_mask=None):
        n, length = tgt.shape
        scale = math.sqrt(self.embedding.embedding_dim)
        null_ctx = scale * self.embedding(tgt[:, :1])
        tgt_emb = self.pos_queries[:, : length - 1] + scale * self.embedding(tgt[:, 1:])
        tgt_emb = torch.cat([null_ctx, tgt_emb], dim=1)
        if tgt_query is None:
            tgt_query = self.pos_queries[:, :length].expand(n, -1, -1)
        return self.decoder(tgt_query, tgt_emb, memory, tgt_query_mask, tgt_mask, tgt_padding_mask)

    def read(self, memory):
        """Letter after letter, then once more with all the others in sight."""
        bs = memory.shape[0]
        num_steps = self.max_label_length + 1
        pos_queries = self.pos_queries[:, :num_steps].expand(bs, -1, -1)
        tgt_mask = query_mask = torch.triu(torch.ones((num_steps, num_steps), dtype=torch.bool), 1)
        tgt_in = torch.full((bs, num_steps), PAD, dtype=torch.long)
        tgt_in[:, 0] = BOS
        logits = []
        for i in range(num_steps):
            j = i + 1
            query, row = pos_queries[:, i:j], query_mask[i:j, :j]
            tgt_out = self.decode(tgt_in[:, :j], memory, tgt_mask[:j, :j], tgt_query=query, tgt_query_mask=row)
            p_i = self.head(tgt_out)
            logits.append(p_i)
            if j < num_steps:
                tgt_in[:, j] = p_i.squeeze(1).argmax(-1)
        draft = logits = torch.cat(logits, dim=1)

        query_mask = query_mask.clone()
        query_mask[torch.triu(torch.ones(num_steps, num_steps, dtype=torch.bool), 2)] = False
        bos = torch.full((bs, 1), BOS, dtype=torch.long)
        for _ in range(self.refine_iters):
            tgt_in = torch.cat([bos, logits[:, :-1].argmax(-1)], dim=1)
            tgt_padding_mask = (tgt_in == EOS).int().cumsum(-1) > 0
            tgt_out = self.decode(tgt_in, memory, tgt_mask, tgt_padding_mask, pos_queries, query_mask)
            logits = self.head(tgt_out)
        return draft, logits

    def rescore(self, memory, words):
        """Log-probability of given words, by every order of reading; mean over the orders and how far they disagree."""
        tgt_in, tgt_out = words[:, :-1], words[:, 1:]
        tgt_padding_mask = (tgt_in == PAD) | (tgt_in == EOS)
        valid = (tgt_out != PAD).float()
        scores, total = [], 0.0
        for perm in self.perms:
            content_mask, query_mask = generate_attn_masks(perm)
            out = self.decode(tgt_in, memory, content_mask, tgt_padding_mask, tgt_query_mask=query_mask)
            log_probs = F.log_softmax(self.head(out), dim=-1)
            picked = log_probs.gather(2, tgt_out.clamp(max=len(CHARSET)).unsqueeze(-1)).squeeze(-1)
            scores.append((picked * valid).sum(1) / valid.sum(1))
            total = total + log_probs
        scores = torch.stack(scores)
        return total / len(self.perms), scores.mean(0), scores.std(dim=0)

    def forward(self, images, words):
        images = (images - 0.5) / 0.5
        rectified = self.tps(images, self.stn_head(images))
        memory, hw = self.encoder(rectified)
        ctc = self.ctc(memory, hw)
        draft, logits = self.read(memory)
        spelled, score, spread = self.rescore(memory, words)
        return ctc, ctc_confidence(ctc), draft, logits, spelled, score, spread


def make_inputs(batch: int = 3, height: int = 48, width: int = 128):
    """Strokes of several slopes with a little noise; words as BOS, letters, EOS, and PAD up to the same length."""
    y = torch.linspace(0, 1, height).view(1, 1, height, 1)
    x = torch.linspace(0, 1, width).view(1, 1, 1, width)
    freq, phase = torch.rand(2, batch, 3, 1, 1) * 30 + 10
    slope = torch.randn(batch, 3, 1, 1) * 8
    images = 0.5 + 0.35 * torch.sin(freq * x + slope * y * (1 + x) + phase)
    images = (images + 0.08 * torch.randn(batch, 3, height, width)).clamp(0, 1)
    words = [[BOS] + [CHARSET.index(c) + 1 for c in word] + [EOS] for word in ("coffee", "7up", "exit2nd4")]
    return images, torch.tensor([tokens + [PAD] * (10 - len(tokens)) for tokens in words])


def build():
    """The net with the same weights on every run, three images and three words to be looked for in them."""
    torch.manual_seed(14)
    net = Recognizer()
    for name, param in net.named_parameters():
        if "norm" in name or param.dim() == 1:
            nn.init.normal_(param, mean=1.0 if name.endswith("weight") else 0.0, std=0.15)
        elif "in_proj" in name or "qkv" in name:
            nn.init.normal_(param, std=0.22)
    for module in net.modules():
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.1, 0.6)
        elif isinstance(module, Block):
            nn.init.uniform_(module.gamma, 0.4, 1.1)
    nn.init.normal_(net.embedding.weight, std=0.12)
    nn.init.normal_(net.encoder.patch_embed.pos_embed, std=0.4)
    nn.init.normal_(net.pos_queries, std=0.8)
    nn.init.normal_(net.head.weight, std=0.4)
    nn.init.normal_(net.ctc.fc.weight, std=0.4)
    with torch.no_grad():
        net.head.bias[EOS] += 2.0
        net.ctc.fc.bias[BLANK] += 1.5
        net.ctc.score.weight *= 6.0
        net.stn_head.stn_fc2.weight.normal_(std=0.3)
        net.stn_head.stn_fc2.bias.copy_(build_output_control_points(12, (0.02, 0.04)).reshape(-1))
    return net.eval(), make_inputs()
