"""A local feature matcher (sampled descriptors, rotary positions, sparse attention, transport, fine refinement), in PyTorch."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

NEG = -1e9


def normalize_keypoints(kpts, size):
    """Pixels to about [-1, 1], the longer side of the image as the unit."""
    scale = size.max(-1, keepdim=True).values / 2
    return (kpts - (size / 2)[..., None, :]) / scale[..., None]


def sample_descriptors(kpts, dense, s: int):
    """Descriptors at keypoints (in pixels) of a dense map of stride s."""
    b, c, h, w = dense.shape
    kpts = kpts - s / 2 + 0.5
    kpts = kpts / torch.tensor([w * s - s / 2 - 0.5, h * s - s / 2 - 0.5], dtype=kpts.dtype)
    desc = F.grid_sample(dense, (kpts * 2 - 1).view(b, 1, -1, 2), mode="bilinear", align_corners=True)
    return F.normalize(desc.reshape(b, c, -1), p=2, dim=1).transpose(1, 2)


def apply_rotary(freqs, t):
    t1, t2 = t.unflatten(-1, (-1, 2)).unbind(dim=-1)
    return (t * freqs[0]) + (torch.stack((-t2, t1), dim=-1).flatten(start_dim=-2) * freqs[1])


def sigmoid_log_double_softmax(sim, z0, z1, pair):
    b, m, n = sim.shape
    sim = sim.masked_fill(~pair, NEG)
    certainties = F.logsigmoid(z0) + F.logsigmoid(z1).transpose(1, 2)
    scores0 = F.log_softmax(sim, 2)
    scores1 = F.log_softmax(sim.transpose(-1, -2).contiguous(), 2).transpose(-1, -2)
    scores = sim.new_full((b, m + 1, n + 1), 0)
    scores[:, :m, :n] = scores0 + scores1 + certainties
    scores[:, :-1, -1] = F.logsigmoid(-z0.squeeze(-1))
    scores[:, -1, :-1] = F.logsigmoid(-z1.squeeze(-1))
    return scores


def log_optimal_transport(sim, alpha, mask0, mask1, iters: int):
    b, m, n = sim.shape
    valid0, valid1 = F.pad(mask0, (0, 1), value=True), F.pad(mask1, (0, 1), value=True)
    couplings = torch.cat(
        [torch.cat([sim, alpha.expand(b, m, 1)], -1), torch.cat([alpha.expand(b, 1, n), alpha.expand(b, 1, 1)], -1)], 1
    )
    couplings = couplings.masked_fill(~(valid0[:, :, None] & valid1[:, None, :]), NEG)
    ms, ns = mask0.sum(1, keepdim=True).to(sim), mask1.sum(1, keepdim=True).to(sim)
    norm = -(ms + ns).log()
    log_mu = torch.cat([norm.expand(b, m), ns.log() + norm], 1).masked_fill(~valid0, NEG)
    log_nu = torch.cat([norm.expand(b, n), ms.log() + norm], 1).masked_fill(~valid1, NEG)
    u, v = torch.zeros_like(log_mu), torch.zeros_like(log_nu)
    for _ in range(iters):
        u = log_mu - torch.logsumexp(couplings + v.unsqueeze(1), dim=2)
        v = log_nu - torch.logsumexp(couplings + u.unsqueeze(2), dim=1)
    return couplings + u.unsqueeze(2) + v.unsqueeze(1) - norm[:, :, None]


def filter_matches(scores, th: float):
    max0, max1 = scores[:, :-1, :-1].max(2), scores[:, :-1, :-1].max(1)
    m0, m1 = max0.indices, max1.indices
    mutual0 = torch.arange(m0.shape[1])[None] == m1.gather(1, m0)
    mutual1 = torch.arange(m1.shape[1])[None] == m0.gather(1, m1)
    mscores0 = torch.where(mutual0, max0.values.exp(), 0.0)
    mscores1 = torch.where(mutual1, mscores0.gather(1, m1), 0.0)
    valid0 = mutual0 & (mscores0 > th)
    valid1 = mutual1 & valid0.gather(1, m1)
    return torch.where(valid0, m0, -1), torch.where(valid1, m1, -1), mscores0, mscores1


class ConvBN(nn.Module):
    def __init__(self, cin, cout, kernel=3, stride=1, act=True):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, kernel, stride, padding=kernel // 2, bias=False)
        self.bn = nn.BatchNorm2d(cout, eps=1e-3)
        self.act = nn.LeakyReLU(inplace=True) if act else nn.Identity()

    def forward(self, x):
        return self.act(self.bn(self.conv(x)))


class Backbone(nn.Module):
    def __init__(self, dims=(16, 32)):
        super().__init__()
        self.stem = ConvBN(1, dims[0], stride=2)
        self.down = ConvBN(dims[0], dims[1], stride=2)
        self.res1 = ConvBN(dims[1], dims[1])
        self.res2 = ConvBN(dims[1], dims[1], act=False)
        self.outer = nn.Conv2d(dims[1], dims[0], 1, bias=False)
        self.lateral = nn.Conv2d(dims[0], dims[0], 1, bias=False)
        self.smooth = ConvBN(dims[0], dims[0])

    def forward(self, image):
        x1 = self.stem(image)
        x2 = self.down(x1)
        x2 = x2 + self.res2(self.res1(x2))
        up = F.interpolate(self.outer(x2), size=x1.shape[-2:], mode="bilinear", align_corners=True)
        return x2, self.smooth(up + self.lateral(x1))


class LearnableFourierPositionalEncoding(nn.Module):
    def __init__(self, M: int, dim: int, gamma: float = 1.0):
        super().__init__()
        self.Wr = nn.Linear(M, dim // 2, bias=False)
        nn.init.normal_(self.Wr.weight.data, mean=0, std=gamma**-2)

    def forward(self, x):
        projected = self.Wr(x)
        emb = torch.stack([torch.cos(projected), torch.sin(projected)], 0).unsqueeze(-3)
        return emb.repeat_interleave(2, dim=-1)


def ffn(dim):
    return nn.Sequential(nn.Linear(2 * dim, 2 * dim), nn.LayerNorm(2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))


class SelfBlock(nn.Module):
    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads = heads
        self.Wqkv = nn.Linear(dim, 3 * dim)
        self.out_proj = nn.Linear(dim, dim)
        self.ffn = ffn(dim)

    def forward(self, x, encoding, bias):
        q, k, v = self.Wqkv(x).unflatten(-1, (self.heads, -1, 3)).transpose(1, 2).unbind(-1)
        q, k = apply_rotary(encoding, q), apply_rotary(encoding, k)
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=bias[:, None, None, :])
        message = self.out_proj(context.transpose(1, 2).flatten(start_dim=-2))
        return x + self.ffn(torch.cat([x, message], -1))


class CrossBlock(nn.Module):
    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads, self.scale = heads, (dim // heads) ** -0.5
        self.to_qk = nn.Linear(dim, dim)
        self.to_v = nn.Linear(dim, dim)
        self.to_out = nn.Linear(dim, dim)
        self.ffn = ffn(dim)

    def forward(self, x0, x1, bias0, bias1):
        parts = self.to_qk(x0), self.to_qk(x1), self.to_v(x0), self.to_v(x1)
        qk0, qk1, v0, v1 = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in parts)
        qk0, qk1 = qk0 * self.scale**0.5, qk1 * self.scale**0.5
        sim = torch.einsum("bhid,bhjd->bhij", qk0, qk1)
        attn01 = F.softmax(sim + bias1[:, None, None, :], dim=-1)
        attn10 = F.softmax(sim.transpose(-2, -1) + bias0[:, None, None, :], dim=-1)
        m0 = torch.einsum("bhij,bhjd->bhid", attn01, v1)
        m1 = torch.einsum("bhji,bhjd->bhid", attn10.transpose(-2, -1), v0)
        m0, m1 = (self.to_out(t.transpose(1, 2).flatten(start_dim=-2)) for t in (m0, m1))
        return x0 + self.ffn(torch.cat([x0, m0], -1)), x1 + self.ffn(torch.cat([x1, m1], -1))


class TransformerLayer(nn.Module):
    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.self_attn = SelfBlock(dim, heads)
        self.cross_attn = CrossBlock(dim, heads)

    def forward(self, desc0, desc1, enc0, enc1, bias0, bias1):
        desc0 = self.self_attn(desc0, enc0, bias0)
        desc1 = self.self_attn(desc1, enc1, bias1)
        return self.cross_attn(desc0, desc1, bias0, bias1)


class TokenHead(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.token = nn.Sequential(nn.Linear(dim, 1), nn.Sigmoid())
        self.matchability = nn.Linear(dim, 1)

    def forward(self, desc, keep, threshold, width_confidence):
        confidence = self.token(desc.detach()).squeeze(-1)
        z = self.matchability(desc).squeeze(-1)
        keep = keep & ((z.sigmoid() > 1 - width_confidence) | (confidence <= threshold))
        return confidence, keep, F.logsigmoid(z).masked_fill(~keep, NEG)


class MatchAssignment(nn.Module):
    def __init__(self, dim: int, iters: int):
        super().__init__()
        self.dim, self.iters = dim, iters
        self.matchability = nn.Linear(dim, 1)
        self.final_proj = nn.Linear(dim, dim)
        self.bin_score = nn.Parameter(torch.tensor(1.0))

    def forward(self, desc0, desc1, mask0, mask1):
        mdesc0, mdesc1 = self.final_proj(desc0) / self.dim**0.25, self.final_proj(desc1) / self.dim**0.25
        sim = torch.einsum("bmd,bnd->bmn", mdesc0, mdesc1)
        z0, z1 = self.matchability(desc0), self.matchability(desc1)
        scores = sigmoid_log_double_softmax(sim, z0, z1, mask0[:, :, None] & mask1[:, None, :])
        return scores, log_optimal_transport(sim, self.bin_score, mask0, mask1, self.iters)


class LinearAttentionLayer(nn.Module):
    def __init__(self, dim: int, heads: int, eps: float = 1e-6):
        super().__init__()
        self.heads, self.eps = heads, eps
        self.q_proj, self.k_proj = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.v_proj, self.merge = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.norm1 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(2 * dim, 2 * dim), nn.ReLU(True), nn.Linear(2 * dim, dim))
        self.norm2 = nn.LayerNorm(dim)

    def forward(self, x, source):
        length = source.shape[1]
        query = F.elu(self.q_proj(x).unflatten(-1, (self.heads, -1))) + 1
        key = F.elu(self.k_proj(source).unflatten(-1, (self.heads, -1))) + 1
        value = self.v_proj(source).unflatten(-1, (self.heads, -1))
        kv = torch.einsum("nshd,nshv->nhdv", key, value / length)
        z = 1 / (torch.einsum("nlhd,nhd->nlh", query, key.sum(dim=1)) + self.eps)
        message = torch.einsum("nlhd,nhdv,nlh->nlhv", query, kv, z) * length
        message = self.norm1(self.merge(message.flatten(-2)))
        return x + self.norm2(self.mlp(torch.cat([x, message], dim=2)))


class FineRefinement(nn.Module):
    def __init__(self, dim: int, fine: int, window: int = 5, stride: int = 2):
        super().__init__()
        self.W, self.stride = window, stride
        self.down_proj = nn.Linear(dim, fine)
        self.merge_feat = nn.Linear(2 * fine, fine)
        self.self_layer = LinearAttentionLayer(fine, 4)
        self.cross_layer = LinearAttentionLayer(fine, 4)
        ys, xs = torch.meshgrid(torch.linspace(-1, 1, window), torch.linspace(-1, 1, window), indexing="ij")
        self.register_buffer("grid", torch.stack([xs, ys], -1).reshape(-1, 2), persistent=False)

    def windows(self, feat, centers, desc):
        b, c, h, w = feat.shape
        cells = F.unfold(feat, kernel_size=self.W, padding=self.W // 2)
        cells = cells.view(b, c, self.W**2, h * w).permute(0, 3, 2, 1)
        index = (centers[..., 1] * w + centers[..., 0])[:, :, None, None].expand(-1, -1, self.W**2, c)
        picked = cells.gather(1, index).flatten(0, 1)
        coarse = self.down_proj(desc).flatten(0, 1)[:, None].expand(-1, self.W**2, -1)
        return self.merge_feat(torch.cat([picked, coarse], -1))

    def to_cells(self, kpts, feat):
        limit = torch.tensor([feat.shape[3] - 1, feat.shape[2] - 1])
        return torch.minimum(torch.round(kpts / self.stride).long().clamp(min=0), limit)

    def forward(self, feat0, feat1, kpts0, target, desc0, desc1):
        b, m = kpts0.shape[:2]
        centers1 = self.to_cells(target, feat1)
        win0 = self.windows(feat0, self.to_cells(kpts0, feat0), desc0)
        win1 = self.windows(feat1, centers1, desc1)
        win0, win1 = self.self_layer(win0, win0), self.self_layer(win1, win1)
        win0 = self.cross_layer(win0, win1)
        win1 = self.cross_layer(win1, win0)
        picked = win0[:, self.W**2 // 2]
        heat = torch.softmax(torch.einsum("mc,mrc->mr", picked, win1) / picked.shape[-1] ** 0.5, dim=1)
        coords = heat @ self.grid
        var = (self.grid[None] ** 2 * heat[:, :, None]).sum(1) - coords**2
        std = var.clamp(min=1e-10).sqrt().sum(-1).view(b, m)
        refined = (centers1 + coords.view(b, m, 2) * (self.W // 2)) * self.stride
        return refined, std


class Matcher(nn.Module):
    def __init__(self, dim: int = 48, heads: int = 4, n_layers: int = 3, iters: int = 10):
        super().__init__()
        self.n_layers, self.filter_threshold, self.width_confidence = n_layers, 0.04, 0.7
        self.backbone = Backbone()
        self.input_proj = nn.Linear(32, dim)
        self.kenc = nn.Sequential(nn.Linear(3, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, dim))
        self.posenc = LearnableFourierPositionalEncoding(2, dim // heads)
        self.transformers = nn.ModuleList([TransformerLayer(dim, heads) for _ in range(n_layers)])
        self.token_heads = nn.ModuleList([TokenHead(dim) for _ in range(n_layers - 1)])
        self.assignment = MatchAssignment(dim, iters)
        self.fine = FineRefinement(dim, 16)
        thresholds = [0.3 + 0.4 * math.exp(-4.0 * i / n_layers) for i in range(n_layers)]
        self.register_buffer("confidence_thresholds", torch.tensor(thresholds).clamp(0, 1), persistent=False)

    def forward(self, image0, image1, kpts0, kpts1, responses0, responses1, counts0, counts1):
        mask0 = torch.arange(kpts0.shape[1])[None] < counts0[:, None]
        mask1 = torch.arange(kpts1.shape[1])[None] < counts1[:, None]
        coarse, fine = self.backbone(torch.cat([image0, image1], 0))
        (coarse0, coarse1), (fine0, fine1) = coarse.chunk(2), fine.chunk(2)
        descs, encodings = [], []
        for image, dense, kpts, resp in ((image0, coarse0, kpts0, responses0), (image1, coarse1, kpts1, responses1)):
            size = torch.tensor(image.shape[-2:][::-1], dtype=kpts.dtype).expand(len(kpts), 2)
            normed = normalize_keypoints(kpts, size)
            desc = self.input_proj(sample_descriptors(kpts, dense, 4) * dense.shape[1] ** 0.5)
            descs.append(desc + self.kenc(torch.cat([normed, resp[..., None]], -1)))
            encodings.append(self.posenc(normed))
        (desc0, desc1), (enc0, enc1) = descs, encodings
        keep0, keep1, confidences = mask0, mask1, []
        bias0 = torch.zeros_like(responses0).masked_fill(~keep0, NEG)
        bias1 = torch.zeros_like(responses1).masked_fill(~keep1, NEG)
        for i in range(self.n_layers):
            desc0, desc1 = self.transformers[i](desc0, desc1, enc0, enc1, bias0, bias1)
            if i < self.n_layers - 1:
                th = self.confidence_thresholds[i]
                conf0, keep0, bias0 = self.token_heads[i](desc0, keep0, th, self.width_confidence)
                conf1, keep1, bias1 = self.token_heads[i](desc1, keep1, th, self.width_confidence)
                confidences.append(torch.cat([conf0 * mask0, conf1 * mask1], -1))
        scores, transport = self.assignment(desc0, desc1, mask0, mask1)
        m0, m1, mscores0, mscores1 = filter_matches(scores, self.filter_threshold)
        # a point without a match is refined at its barycentre
        plan = transport[:, :-1, :-1].exp()
        weight = plan / plan.sum(-1, keepdim=True).clamp(min=1e-6)
        best = m0.clamp(min=0)
        matched = kpts1.gather(1, best[..., None].expand(-1, -1, 2))
        target = torch.where((m0 > -1)[..., None], matched, weight @ kpts1)
        context = torch.where((m0 > -1)[..., None], desc1.gather(1, best[..., None].expand_as(desc0)), weight @ desc1)
        refined, std = self.fine(fine0, fine1, kpts0, target, desc0, context)

        border = F.pad(mask0, (0, 1), value=True)[:, :, None] & F.pad(mask1, (0, 1), value=True)[:, None]
        scores, transport = scores.masked_fill(~border, 0.0), transport.masked_fill(~border, 0.0)
        refined, std = refined * mask0[..., None], std * mask0
        return scores, transport, m0, m1, mscores0, mscores1, refined, std, torch.stack(confidences, 1)


def build():
    """The net with the same weights on every run, and two pairs of images that overlap, with padded lists of points."""
    torch.manual_seed(29)
    net = Matcher()
    for name, module in net.named_modules():
        if isinstance(module, nn.Linear) and name != "posenc.Wr":
            gain = {"qk": 1.4, ".3": 0.45, "final_proj": 1.4, "input_proj": 1.6, "out": 0.6, "merge_feat": 0.6}
            gain = next((value for key, value in gain.items() if key in name[-11:]), 0.9)
            nn.init.normal_(module.weight, std=gain * module.in_features**-0.5)
            if module.bias is not None:
                nn.init.normal_(module.bias, 0.6 if "matchability" in name else 0.0, std=0.1)
        elif isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)
        elif isinstance(module, (nn.LayerNorm, nn.BatchNorm2d)):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.1)
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, 0.5 if "down" in name else 0.0, std=0.2)
            nn.init.uniform_(module.running_var, 0.3, 1.6)
    scene = F.avg_pool2d(torch.randn(2, 1, 72, 90), 5, 1) * 5
    image0, image1 = scene[:, :, 6:54, 8:72].contiguous(), scene[:, :, 10:58, 16:80].contiguous()
    kpts0 = torch.rand(2, 22, 2) * torch.tensor([52.0, 40.0]) + torch.tensor([10.0, 6.0])
    kpts1 = kpts0[:, torch.randperm(22)[:18]] - torch.tensor([8.0, 4.0]) + 0.3 * torch.randn(2, 18, 2)
    responses0, responses1 = torch.rand(2, 22), torch.rand(2, 18)
    counts0, counts1 = torch.tensor([22, 19]), torch.tensor([16, 18])
    # the projection of the descriptors has its mean taken off, as training ends up with
    with torch.no_grad():
        dense = net.eval().backbone(torch.cat([image0, image1], 0))[0]
        mean = torch.cat([sample_descriptors(kpts0, dense[:2], 4), sample_descriptors(kpts1, dense[2:], 4)], 1)
        net.input_proj.bias -= net.input_proj.weight @ mean.mean((0, 1)) * 32**0.5
    return net, (image0, image1, kpts0, kpts1, responses0, responses1, counts0, counts1)
