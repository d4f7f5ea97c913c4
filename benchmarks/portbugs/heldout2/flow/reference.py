"""Optical flow in the manner of RAFT, with a global aggregation of motion. In PyTorch: the reference."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn


def coords_grid(batch, ht, wd):
    coords = torch.meshgrid(torch.arange(ht), torch.arange(wd), indexing="ij")
    return torch.stack(coords[::-1], dim=0).float()[None].repeat(batch, 1, 1, 1)


def bilinear_sampler(img, coords, mask=False):
    """Wrapper for grid_sample: pixel coordinates, (x, y) last."""
    H, W = img.shape[-2:]
    xgrid, ygrid = coords.split([1, 1], dim=-1)
    xgrid = 2 * xgrid / (W - 1) - 1
    ygrid = 2 * ygrid / (H - 1) - 1
    grid = torch.cat([xgrid, ygrid], dim=-1)
    img = F.grid_sample(img, grid, mode="bilinear", padding_mode="zeros", align_corners=True)
    if mask:
        mask = (xgrid > -1) & (ygrid > -1) & (xgrid < 1) & (ygrid < 1)
        return img, mask.float()
    return img


def instance_norm(x, eps=1e-5):
    mean = x.mean(dim=(2, 3), keepdim=True)
    var = x.var(dim=(2, 3), keepdim=True, unbiased=False)
    return (x - mean) * torch.rsqrt(var + eps)


class InputPadder:
    def __init__(self, dims, multiple=8):
        self.ht, self.wd = dims[-2:]
        pad_ht = (((self.ht // multiple) + 1) * multiple - self.ht) % multiple
        pad_wd = (((self.wd // multiple) + 1) * multiple - self.wd) % multiple
        self._pad = [pad_wd // 2, pad_wd - pad_wd // 2, pad_ht // 2, pad_ht - pad_ht // 2]

    def pad(self, *inputs):
        return [F.pad(x, self._pad, mode="replicate") for x in inputs]

    def unpad(self, x):
        ht, wd = x.shape[-2:]
        return x[..., self._pad[2]:ht - self._pad[3], self._pad[0]:wd - self._pad[1]]


class ResidualBlock(nn.Module):
    def __init__(self, in_planes, planes, norm="instance", stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(in_planes, planes, 3, padding=1, stride=stride)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1)
        self.norm = norm
        if norm == "batch":
            self.norm1 = nn.BatchNorm2d(planes)
            self.norm2 = nn.BatchNorm2d(planes)
        self.downsample = nn.Conv2d(in_planes, planes, 1, stride=stride) if stride > 1 else None

    def forward(self, x):
        y = self.conv1(x)
        y = self.conv2(torch.relu(self.norm1(y) if self.norm == "batch" else instance_norm(y)))
        y = torch.relu(self.norm2(y) if self.norm == "batch" else instance_norm(y))
        if self.downsample is not None:
            x = self.downsample(x)
            if self.norm == "instance":
                x = instance_norm(x)
        return torch.relu(x + y)


class Encoder(nn.Module):
    def __init__(self, output_dim, norm):
        super().__init__()
        self.norm = norm
        self.conv1 = nn.Conv2d(3, 24, 7, stride=2, padding=3)
        self.layer1 = ResidualBlock(24, 24, norm)
        self.layer2 = ResidualBlock(24, 32, norm, stride=2)
        self.conv2 = nn.Conv2d(32, output_dim, 1)

    def forward(self, x):
        is_list = isinstance(x, (tuple, list))
        if is_list:
            batch_dim = x[0].shape[0]
            x = torch.cat(x, dim=0)
        x = self.conv1(x)
        if self.norm == "instance":
            x = instance_norm(x)
        x = self.conv2(self.layer2(self.layer1(torch.relu(x))))
        if is_list:
            x = torch.split(x, [batch_dim, batch_dim], dim=0)
        return x


class MotionEncoder(nn.Module):
    def __init__(self, cor_planes, dim):
        super().__init__()
        self.convc1 = nn.Conv2d(cor_planes, 48, 1)
        self.convf1 = nn.Conv2d(2, 24, 7, padding=3)
        self.convf2 = nn.Conv2d(24, 16, 3, padding=1)
        self.conv = nn.Conv2d(48 + 16, dim - 2, 3, padding=1)

    def forward(self, flow, corr):
        cor = F.relu(self.convc1(corr))
        flo = F.relu(self.convf1(flow))
        flo = F.relu(self.convf2(flo))
        out = F.relu(self.conv(torch.cat([cor, flo], dim=1)))
        return torch.cat([out, flow], dim=1)


class Attention(nn.Module):
    def __init__(self, dim, heads, max_pos=16):
        super().__init__()
        self.heads, self.dim_head = heads, dim // heads
        self.scale = self.dim_head ** -0.5
        self.to_qk = nn.Conv2d(dim, dim * 2, 1, bias=False)
        self.rel_height = nn.Parameter(torch.zeros(2 * max_pos - 1, dim // heads))
        self.rel_width = nn.Parameter(torch.zeros(2 * max_pos - 1, dim // heads))
        deltas = torch.arange(max_pos)[None, :] - torch.arange(max_pos)[:, None]
        self.register_buffer("rel_ind", deltas + max_pos - 1, persistent=False)

    def position_scores(self, q, h, w):
        height = self.rel_height[self.rel_ind[:h, :h].reshape(-1)].view(h, h, -1)
        width = self.rel_width[self.rel_ind[:w, :w].reshape(-1)].view(w, w, -1)
        height_score = torch.einsum("bnxyd,xud->bnxyu", q, height)[..., None]
        width_score = torch.einsum("bnxyd,yvd->bnxyv", q, width)[..., None, :]
        return height_score + width_score

    def forward(self, fmap):
        b, _, h, w = fmap.shape
        q, k = self.to_qk(fmap).chunk(2, dim=1)
        q, k = (t.view(b, self.heads, self.dim_head, h, w).permute(0, 1, 3, 4, 2) for t in (q, k))
        q = self.scale * q
        sim = torch.einsum("bnxyd,bnuvd->bnxyuv", q, k)
        sim = sim + self.position_scores(q, h, w)
        return sim.reshape(b, self.heads, h * w, h * w).softmax(dim=-1)


class Aggregate(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.dim_head = heads, dim // heads
        self.to_v = nn.Conv2d(dim, dim, 1, bias=False)
        self.project = nn.Conv2d(dim, dim, 1, bias=False)
        self.gamma = nn.Parameter(torch.zeros(1))

    def forward(self, attn, fmap):
        b, c, h, w = fmap.shape
        v = self.to_v(fmap).view(b, self.heads, self.dim_head, h * w).transpose(2, 3)
        out = torch.matmul(attn, v).transpose(2, 3).reshape(b, c, h, w)
        return fmap + self.gamma * self.project(out)


class SepConvGRU(nn.Module):
    def __init__(self, hidden_dim, input_dim):
        super().__init__()
        both = hidden_dim + input_dim
        for gate in "zrq":
            setattr(self, f"conv{gate}1", nn.Conv2d(both, hidden_dim, (1, 5), padding=(0, 2)))
            setattr(self, f"conv{gate}2", nn.Conv2d(both, hidden_dim, (5, 1), padding=(2, 0)))

    def forward(self, h, x):
        hx = torch.cat([h, x], dim=1)
        z = torch.sigmoid(self.convz1(hx))
        r = torch.sigmoid(self.convr1(hx))
        q = torch.tanh(self.convq1(torch.cat([r * h, x], dim=1)))
        h = (1 - z) * h + z * q
        hx = torch.cat([h, x], dim=1)
        z = torch.sigmoid(self.convz2(hx))
        r = torch.sigmoid(self.convr2(hx))
        q = torch.tanh(self.convq2(torch.cat([r * h, x], dim=1)))
        return (1 - z) * h + z * q


class UpdateBlock(nn.Module):
    def __init__(self, cor_planes, dim, rate):
        super().__init__()
        self.encoder = MotionEncoder(cor_planes, dim)
        self.aggregator = Aggregate(dim, heads=2)
        self.gru = SepConvGRU(dim, 3 * dim)
        self.flow1 = nn.Conv2d(dim, 48, 3, padding=1)
        self.flow2 = nn.Conv2d(48, 2, 3, padding=1)
        self.mask1 = nn.Conv2d(dim, 48, 3, padding=1)
        self.mask2 = nn.Conv2d(48, rate * rate * 9, 1)

    def forward(self, net, inp, corr, flow, attn):
        motion = self.encoder(flow, corr)
        motion_global = self.aggregator(attn, motion)
        inp = torch.cat([inp, motion, motion_global], dim=1)
        net = self.gru(net, inp)
        delta_flow = self.flow2(F.relu(self.flow1(net)))
        mask = .25 * self.mask2(F.relu(self.mask1(net)))
        return net, mask, delta_flow


class RAFT(nn.Module):
    def __init__(self, dim=32, fdim=48, levels=3, radius=2, rate=4, iters=3):
        super().__init__()
        self.dim, self.levels, self.radius, self.rate, self.iters = dim, levels, radius, rate, iters
        self.fnet = Encoder(fdim, norm="instance")
        self.cnet = Encoder(2 * dim, norm="batch")
        self.att = Attention(dim, heads=2)
        self.update_block = UpdateBlock(levels * (2 * radius + 1) ** 2, dim, rate)

    def corr_pyramid(self, fmap1, fmap2):
        b, c, h, w = fmap1.shape
        corr = torch.matmul(fmap1.view(b, c, h * w).transpose(1, 2), fmap2.view(b, c, h * w))
        corr = (corr / math.sqrt(c)).reshape(b * h * w, 1, h, w)
        pyramid = [corr]
        for _ in range(self.levels - 1):
            corr = F.avg_pool2d(corr, 2, stride=2)
            pyramid.append(corr)
        return pyramid

    def lookup(self, pyramid, coords):
        r = self.radius
        coords = coords.permute(0, 2, 3, 1)
        b, h, w, _ = coords.shape
        d = torch.linspace(-r, r, 2 * r + 1)
        delta = torch.stack(torch.meshgrid(d, d, indexing="ij"), dim=-1).view(1, 2 * r + 1, 2 * r + 1, 2)
        out = []
        for i, corr in enumerate(pyramid):
            centroid = coords.reshape(b * h * w, 1, 1, 2) / 2 ** i
            out.append(bilinear_sampler(corr, centroid + delta).view(b, h, w, -1))
        return torch.cat(out, dim=-1).permute(0, 3, 1, 2).contiguous()

    def global_match(self, corr, coords0, temperature=1.5):
        """The expected place of each pixel under a softmax of the whole volume."""
        b, _, h, w = coords0.shape
        prob = torch.softmax(corr.view(b, h * w, h * w) / temperature, dim=-1)
        grid = coords0.flatten(2).transpose(1, 2)
        return torch.matmul(prob, grid).transpose(1, 2).reshape(b, 2, h, w)

    def upsample_flow(self, flow, mask):
        """Upsample flow field [H/4, W/4, 2] -> [H, W, 2] using convex combination."""
        N, _, H, W = flow.shape
        R = self.rate
        mask = torch.softmax(mask.view(N, 1, 9, R, R, H, W), dim=2)
        up_flow = F.unfold(R * flow, [3, 3], padding=1)
        up_flow = torch.sum(mask * up_flow.view(N, 2, 9, 1, 1, H, W), dim=2)
        return up_flow.permute(0, 1, 4, 2, 5, 3).reshape(N, 2, R * H, R * W)

    def confidence(self, fmap1, fmap2, coords1):
        warped, inside = bilinear_sampler(fmap2, coords1.permute(0, 2, 3, 1), mask=True)
        cosine = (F.normalize(fmap1, dim=1) * F.normalize(warped, dim=1)).sum(dim=1, keepdim=True)
        conf = torch.exp(3 * (cosine - 1)) * inside.permute(0, 3, 1, 2)
        return F.interpolate(conf, scale_factor=self.rate, mode="bilinear", align_corners=True)

    def forward(self, image1, image2):
        padder = InputPadder(image1.shape)
        image1, image2 = padder.pad(image1, image2)
        image1 = 2 * (image1 / 255.0) - 1.0
        image2 = 2 * (image2 / 255.0) - 1.0
        fmap1, fmap2 = self.fnet([image1, image2])
        pyramid = self.corr_pyramid(fmap1, fmap2)
        net, inp = torch.split(self.cnet(image1), [self.dim, self.dim], dim=1)
        net, inp = torch.tanh(net), torch.relu(inp)
        attn = self.att(inp)
        b, _, h, w = fmap1.shape
        coords0 = coords_grid(b, h, w)
        coords1 = 0.5 * coords0 + 0.5 * self.global_match(pyramid[0], coords0)
        for _ in range(self.iters):
            coords1 = coords1.detach()
            corr = self.lookup(pyramid, coords1)
            flow = coords1 - coords0
            net, mask, delta_flow = self.update_block(net, inp, corr, flow, attn)
            coords1 = coords1 + delta_flow
        flow_up = self.upsample_flow(coords1 - coords0, mask)
        return padder.unpad(torch.cat([flow_up, self.confidence(fmap1, fmap2, coords1)], dim=1))


def build():
    """The net with the same weights on every run, and two pairs of images."""
    torch.manual_seed(23)
    net = RAFT()
    for name, module in net.named_modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.2)
            nn.init.normal_(module.running_mean, std=0.2)
            nn.init.uniform_(module.running_var, 0.3, 1.2)
        if isinstance(module, nn.Conv2d) and ".gru." not in name:
            nn.init.kaiming_normal_(module.weight, mode="fan_in", nonlinearity="relu")
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.1)
    nn.init.normal_(net.att.rel_height, std=0.6)
    nn.init.normal_(net.att.rel_width, std=0.6)
    nn.init.constant_(net.update_block.aggregator.gamma, 0.7)
    with torch.no_grad():
        net.fnet.conv2.weight.mul_(0.4)
        net.update_block.flow2.weight.mul_(0.8)
        net.update_block.mask2.weight.mul_(2.0)
    base = F.interpolate(255 * torch.rand(2, 3, 10, 14), (40, 56), mode="bicubic", align_corners=False).clamp(0, 255)
    image1 = base[:, :, 4:34, 5:49] + 4 * torch.randn(2, 3, 30, 44)
    image2 = base[:, :, 6:36, 2:46] + 4 * torch.randn(2, 3, 30, 44)
    return net.eval(), (image1, image2)
