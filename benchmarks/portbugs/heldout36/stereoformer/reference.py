"""StereoFormer: a hierarchical window transformer with a DPT style decoder and adaptive bins for monocular depth."""
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def window_partition(x, ws):
    B, H, W, C = x.shape
    x = x.view(B, H // ws, ws, W // ws, ws, C)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, ws * ws, C)


def window_reverse(windows, ws, H, W):
    B = windows.shape[0] // ((H // ws) * (W // ws))
    x = windows.view(B, H // ws, W // ws, ws, ws, -1)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(B, H, W, -1)


class Mlp(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)))


class WindowAttention(nn.Module):
    def __init__(self, dim, window_size, num_heads):
        super().__init__()
        self.window_size, self.num_heads = window_size, num_heads
        self.scale = (dim // num_heads) ** -0.5
        ws = window_size
        self.relative_position_bias_table = nn.Parameter(torch.zeros((2 * ws - 1) * (2 * ws - 1), num_heads))
        coords = torch.stack(torch.meshgrid(torch.arange(ws), torch.arange(ws), indexing="ij")).flatten(1)
        rel = (coords[:, :, None] - coords[:, None, :]).permute(1, 2, 0).contiguous()
        rel += ws - 1
        rel[:, :, 0] *= 2 * ws - 1
        self.register_buffer("relative_position_index", rel.sum(-1), persistent=False)
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x, mask=None):
        Bw, N, C = x.shape
        qkv = self.qkv(x).reshape(Bw, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        attn = (q * self.scale) @ k.transpose(-2, -1)
        bias = self.relative_position_bias_table[self.relative_position_index.view(-1)]
        bias = bias.view(N, N, -1).permute(2, 0, 1).contiguous()
        attn = attn + bias.unsqueeze(0)
        if mask is not None:
            nW = mask.shape[0]
            attn = attn.view(Bw // nW, nW, self.num_heads, N, N) + mask[None, :, None]
            attn = attn.view(-1, self.num_heads, N, N)
        attn = attn.softmax(dim=-1)
        x = (attn @ v).transpose(1, 2).reshape(Bw, N, C)
        return self.proj(x)


class SwinBlock(nn.Module):
    def __init__(self, dim, num_heads, window_size, shift_size, mlp_ratio):
        super().__init__()
        self.window_size, self.shift_size = window_size, shift_size
        self.norm1 = nn.LayerNorm(dim)
        self.attn = WindowAttention(dim, window_size, num_heads)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = Mlp(dim, int(dim * mlp_ratio))
        self.gamma_1, self.gamma_2 = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.ones(dim))

    def forward(self, x):
        B, H, W, C = x.shape
        ws = self.window_size
        shortcut = x
        x = self.norm1(x)
        pad_b, pad_r = (ws - H % ws) % ws, (ws - W % ws) % ws
        x = F.pad(x, (0, 0, 0, pad_r, 0, pad_b))
        Hp, Wp = H + pad_b, W + pad_r
        # no shift along an axis that a single window covers
        sh = self.shift_size if Hp > ws else 0
        sw = self.shift_size if Wp > ws else 0
        mask = None
        if sh + sw > 0:
            x = torch.roll(x, shifts=(-sh, -sw), dims=(1, 2))
            region = x.new_zeros((Hp, Wp))
            count = 0
            for hs in (slice(0, -ws), slice(-ws, -sh if sh else None), slice(-sh, None) if sh else slice(0, 0)):
                for wsl in (slice(0, -ws), slice(-ws, -sw if sw else None), slice(-sw, None) if sw else slice(0, 0)):
                    region[hs, wsl] = count
                    count += 1
            region = window_partition(region[None, :, :, None], ws).squeeze(-1)
            mask = region.unsqueeze(1) - region.unsqueeze(2)
            mask = mask.masked_fill(mask != 0, -100.0).masked_fill(mask == 0, 0.0)
        x = self.attn(window_partition(x, ws), mask)
        x = window_reverse(x, ws, Hp, Wp)
        if sh + sw > 0:
            x = torch.roll(x, shifts=(sh, sw), dims=(1, 2))
        x = x[:, :H, :W, :]
        x = shortcut + self.gamma_1 * x
        return x + self.gamma_2 * self.mlp(self.norm2(x))


class PatchMerging(nn.Module):
    def __init__(self, dim, out_dim):
        super().__init__()
        self.norm = nn.LayerNorm(4 * dim)
        self.reduction = nn.Linear(4 * dim, out_dim, bias=False)

    def forward(self, x):
        H, W = x.shape[1:3]
        x = F.pad(x, (0, 0, 0, W % 2, 0, H % 2))
        x0 = x[:, 0::2, 0::2, :]
        x1 = x[:, 1::2, 0::2, :]
        x2 = x[:, 0::2, 1::2, :]
        x3 = x[:, 1::2, 1::2, :]
        return self.reduction(self.norm(torch.cat([x0, x1, x2, x3], dim=-1)))


class SwinStage(nn.Module):
    def __init__(self, dim, depth, num_heads, window_size, mlp_ratio, out_dim=None):
        super().__init__()
        self.blocks = nn.ModuleList([
            SwinBlock(dim, num_heads, window_size, 0 if i % 2 == 0 else window_size // 2, mlp_ratio)
            for i in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.downsample = PatchMerging(dim, out_dim) if out_dim else None

    def forward(self, x):
        for blk in self.blocks:
            x = blk(x)
        out = self.norm(x).permute(0, 3, 1, 2).contiguous()
        return out, (self.downsample(x) if self.downsample is not None else x)


class PatchEmbed(nn.Module):
    def __init__(self, dim, patch):
        super().__init__()
        self.patch = patch
        self.proj = nn.Conv2d(3, dim, patch, stride=patch)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        H, W = x.shape[-2:]
        x = F.pad(x, (0, -W % self.patch, 0, -H % self.patch))
        return self.norm(self.proj(x).permute(0, 2, 3, 1))


class GlobalBlock(nn.Module):
    """Pre-norm block with cosine attention over all tokens; padded keys are masked."""

    def __init__(self, dim, num_heads, hidden):
        super().__init__()
        self.num_heads = num_heads
        self.norm1 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.logit_scale = nn.Parameter(torch.log(10 * torch.ones(num_heads, 1, 1)))
        self.proj = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = Mlp(dim, hidden)

    def forward(self, x, key_valid):
        B, N, C = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(B, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        attn = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        attn = attn * self.logit_scale.clamp(max=math.log(100.0)).exp()
        attn = attn.masked_fill(~key_valid[:, None, None, :], float("-inf")).softmax(dim=-1)
        x = x + self.proj((attn @ v).transpose(1, 2).reshape(B, N, C))
        return x + self.mlp(self.norm2(x))


class BinTransformer(nn.Module):
    def __init__(self, dim, num_heads, depth, grid, stride):
        super().__init__()
        self.grid, self.stride = grid, stride
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + grid[0] * grid[1], dim))
        self.blocks = nn.ModuleList([GlobalBlock(dim, num_heads, 2 * dim) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim, eps=1e-6)

    def forward(self, feat, sizes):
        B, C, H, W = feat.shape
        pos = self.pos_embed[:, 1:].reshape(1, self.grid[0], self.grid[1], C).permute(0, 3, 1, 2)
        pos = F.interpolate(pos, size=(H, W), mode="bilinear", align_corners=False)
        tokens = feat.flatten(2).transpose(1, 2) + pos.flatten(2).transpose(1, 2)
        cls = (self.cls_token + self.pos_embed[:, :1]).expand(B, -1, -1)
        # a token is valid if any pixel of the image falls in it
        hw = (sizes + self.stride - 1) // self.stride
        valid = (torch.arange(H)[None, :, None] < hw[:, 0, None, None]) & \
                (torch.arange(W)[None, None, :] < hw[:, 1, None, None])
        valid = torch.cat([torch.ones(B, 1, dtype=torch.bool), valid.flatten(1)], dim=1)
        x = torch.cat([cls, tokens], dim=1)
        for blk in self.blocks:
            x = blk(x, valid)
        return self.norm(x)


class Reassemble(nn.Module):
    def __init__(self, in_dim, cls_dim, out_dim, mode):
        super().__init__()
        self.readout = nn.Linear(in_dim + cls_dim, in_dim)
        self.project = nn.Conv2d(in_dim, out_dim, 1)
        if mode == "up4":
            self.resample = nn.ConvTranspose2d(out_dim, out_dim, 2, stride=2)
        elif mode == "up2":
            self.resample = nn.ConvTranspose2d(out_dim, out_dim, 4, stride=2, padding=1)
        else:
            self.resample = nn.Conv2d(out_dim, out_dim, 3, stride=2, padding=1)

    def forward(self, feat, cls):
        B, C, H, W = feat.shape
        tokens = feat.flatten(2).transpose(1, 2)
        read = torch.cat([tokens, cls[:, None].expand(-1, H * W, -1)], dim=-1)
        tokens = F.gelu(self.readout(read))
        feat = tokens.transpose(1, 2).reshape(B, C, H, W)
        return self.resample(self.project(feat))


class ResidualConvUnit(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.conv1 = nn.Conv2d(dim, dim, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(dim, eps=1e-3)
        self.conv2 = nn.Conv2d(dim, dim, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(dim, eps=1e-3)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        out = self.relu(x)
        out = self.relu(self.bn1(self.conv1(out)))
        return self.bn2(self.conv2(out)) + x


class FeatureFusion(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.rcu1 = ResidualConvUnit(dim)
        self.rcu2 = ResidualConvUnit(dim)
        self.out_conv = nn.Conv2d(dim, dim, 1)

    def forward(self, path, lateral, size):
        x = self.rcu1(lateral)
        if path is not None:
            x = x + path
        x = self.rcu2(x)
        if size is not None:
            x = F.interpolate(x, size=size, mode="bilinear", align_corners=True)
        return self.out_conv(x)


class BinHead(nn.Module):
    def __init__(self, dim, hidden, n_bins, min_depth, max_depth):
        super().__init__()
        self.min_depth, self.max_depth = min_depth, max_depth
        self.regressor = nn.Sequential(nn.Linear(dim, hidden), nn.LeakyReLU(), nn.Linear(hidden, hidden),
                                       nn.LeakyReLU(), nn.Linear(hidden, n_bins))

    def forward(self, cls):
        widths = F.relu(self.regressor(cls)) + 0.1
        widths = (self.max_depth - self.min_depth) * widths / widths.sum(dim=1, keepdim=True)
        widths = F.pad(widths, (1, 0), mode="constant", value=self.min_depth)
        edges = torch.cumsum(widths, dim=1)
        centers = 0.5 * (edges[:, :-1] + edges[:, 1:])
        return edges, centers


class Attractor(nn.Module):
    def __init__(self, dim, hidden, n_points, alpha, min_depth, max_depth):
        super().__init__()
        self.alpha, self.min_depth, self.max_depth = alpha, min_depth, max_depth
        self.points = nn.Sequential(nn.Conv2d(dim, hidden, 1), nn.ReLU(), nn.Conv2d(hidden, n_points, 1))

    def forward(self, path, centers):
        points = F.softplus(self.points(path))
        points = points / (1.0 + points) * (self.max_depth - self.min_depth) + self.min_depth
        centers = F.interpolate(centers, size=path.shape[-2:], mode="bilinear", align_corners=True)
        delta = torch.zeros_like(centers)
        for i in range(points.shape[1]):
            d = points[:, i:i + 1] - centers
            delta = delta + d / (1.0 + self.alpha * d * d)
        centers = centers + delta / points.shape[1]
        return torch.sort(centers.clamp(self.min_depth, self.max_depth), dim=1)[0]


class DepthHead(nn.Module):
    def __init__(self, dim, cls_dim, n_queries, n_bins, factor):
        super().__init__()
        self.n_queries, self.factor = n_queries, factor
        self.query_proj = nn.Linear(cls_dim, dim)
        self.feat_conv = nn.Conv2d(dim, dim, 3, padding=1)
        self.to_bins = nn.Conv2d(n_queries, n_bins, 1)
        self.mask_conv = nn.Sequential(nn.Conv2d(dim, 2 * dim, 3, padding=1), nn.ReLU(),
                                       nn.Conv2d(2 * dim, 9 * factor * factor, 1))

    def forward(self, path, tokens, centers):
        queries = self.query_proj(tokens[:, 1:self.n_queries + 1])
        feats = self.feat_conv(path)
        maps = torch.einsum("bqc,bchw->bqhw", queries, feats) / math.sqrt(feats.shape[1])
        prob = torch.softmax(self.to_bins(maps), dim=1)
        depth = torch.sum(prob * centers, dim=1, keepdim=True)
        (B, _, H, W), r = depth.shape, self.factor
        mask = (0.25 * self.mask_conv(path)).view(B, 9, r, r, H, W)
        mask = torch.softmax(mask, dim=1)
        patches = F.unfold(F.pad(depth, (1, 1, 1, 1), mode="replicate"), 3).view(B, 9, 1, 1, H, W)
        up = torch.sum(mask * patches, dim=1)
        return up.permute(0, 3, 1, 4, 2).reshape(B, 1, r * H, r * W)


def silog_loss(pred, target, valid, lam=0.15):
    g = torch.log(pred[valid]) - torch.log(target[valid])
    return 10.0 * torch.sqrt(torch.var(g) + lam * torch.pow(torch.mean(g), 2))


class StereoFormer(nn.Module):
    def __init__(self, dims=(16, 32, 48), depths=(2, 2, 2), heads=(2, 4, 3), window_size=4, mlp_ratio=2.5, patch=4,
                 dec_dim=20, n_bins=14, n_queries=9, n_points=(8, 5, 3), min_depth=0.5, max_depth=10.0, ref_focal=518.8579):
        super().__init__()
        self.min_depth, self.max_depth, self.ref_focal = min_depth, max_depth, ref_focal
        self.patch_embed = PatchEmbed(dims[0], patch)
        self.stages = nn.ModuleList([
            SwinStage(dims[i], depths[i], heads[i], window_size, mlp_ratio,
                      dims[i + 1] if i + 1 < len(dims) else None) for i in range(len(dims))])
        self.bin_former = BinTransformer(dims[-1], 4, 2, (6, 7), patch * 2 ** (len(dims) - 1))
        self.reassemble = nn.ModuleList([
            Reassemble(d, dims[-1], dec_dim, m) for d, m in zip(dims, ("up4", "up2", "down"))])
        self.fusion = nn.ModuleList([FeatureFusion(dec_dim) for _ in dims])
        self.bin_head = BinHead(dims[-1], 40, n_bins, min_depth, max_depth)
        self.attractors = nn.ModuleList([
            Attractor(dec_dim, 24, n, 0.3, min_depth, max_depth) for n in n_points])
        self.depth_head = DepthHead(dec_dim, dims[-1], n_queries, n_bins, 2)

    def forward(self, image, sizes, focal, target):
        B, _, H, W = image.shape
        x = self.patch_embed(image)
        feats = []
        for stage in self.stages:
            out, x = stage(x)
            feats.append(out)
        tokens = self.bin_former(feats[-1], sizes)
        cls = tokens[:, 0]
        feats[-1] = feats[-1] + tokens[:, 1:].transpose(1, 2).reshape(feats[-1].shape)

        maps = [layer(f, cls) for layer, f in zip(self.reassemble, feats)]
        edges, centers = self.bin_head(cls)
        centers = centers[:, :, None, None].expand(-1, -1, *maps[-1].shape[-2:])
        path = None
        for level in reversed(range(len(maps))):
            size = maps[level - 1].shape[-2:] if level > 0 else None
            path = self.fusion[level](path, maps[level], size)
            centers = self.attractors[len(maps) - 1 - level](path, centers)

        depth = self.depth_head(path, tokens, centers)[:, :, :H, :W]
        depth = depth * (focal / self.ref_focal).view(B, 1, 1, 1)
        inside = (torch.arange(H)[None, :, None] < sizes[:, 0, None, None]) & \
                 (torch.arange(W)[None, None, :] < sizes[:, 1, None, None])
        valid = inside.unsqueeze(1) & (target > self.min_depth) & (target <= self.max_depth)
        return depth, edges, silog_loss(depth, target, valid)


@torch.no_grad()
def randomize(net):
    for mod in net.modules():
        if isinstance(mod, (nn.BatchNorm2d, nn.LayerNorm)):
            mod.weight.uniform_(0.5, 1.4), mod.bias.normal_(0.0, 0.3)
            if isinstance(mod, nn.BatchNorm2d):
                mod.running_mean.normal_(0.0, 0.3), mod.running_var.uniform_(0.02, 1.2)
        elif isinstance(mod, (nn.Linear, nn.Conv2d, nn.ConvTranspose2d)):
            fan_in = mod.weight.shape[0] if isinstance(mod, nn.ConvTranspose2d) else mod.weight[0].numel()
            mod.weight.normal_(0.0, 1.2 / math.sqrt(fan_in))
            if mod.bias is not None:
                mod.bias.normal_(0.0, 0.2)
    for name, p in net.named_parameters():
        if "bias_table" in name or "cls_token" in name or "pos_embed" in name:
            p.normal_(0.0, 0.7)
        elif "logit_scale" in name:
            p.uniform_(1.0, 2.5)
        elif "gamma_" in name:
            p.uniform_(0.3, 1.2)
    net.depth_head.mask_conv[2].weight.mul_(3.0)


def make_inputs():
    rng = np.random.RandomState(17)
    yy, xx = np.meshgrid(np.arange(54), np.arange(70), indexing="ij")
    image = rng.randn(2, 3, 54, 70) * 0.6 + np.stack([np.sin(yy / 7.0 + xx / 11.0), np.cos(yy / 5.0), xx / 40.0 - 1])
    sizes = np.array([[54, 70], [45, 59]], dtype=np.int64)
    image = image * np.stack([(yy < h) & (xx < w) for h, w in sizes])[:, None]
    focal = np.array([518.8579, 721.5377])
    target = np.clip(3.0 + yy / 20.0 + rng.randn(2, 1, 54, 70), 0.0, None) * (rng.rand(2, 1, 54, 70) > 0.3)
    return image.astype(np.float32), sizes, focal.astype(np.float32), target.astype(np.float32)


def build():
    torch.manual_seed(5)
    net = StereoFormer()
    randomize(net)
    return net.eval(), tuple(torch.from_numpy(a) for a in make_inputs())
