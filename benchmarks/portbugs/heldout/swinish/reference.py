"""A two-stage shifted-window transformer with a small top-down neck and attention pooling. In PyTorch: the reference."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn


def window_partition(x, window_size):
    """(B, H, W, C) -> (num_windows*B, window_size*window_size, C)"""
    B, H, W, C = x.shape
    x = x.view(B, H // window_size, window_size, W // window_size, window_size, C)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, window_size * window_size, C)


def window_reverse(windows, window_size, H, W):
    """(num_windows*B, window_size*window_size, C) -> (B, H, W, C)"""
    B = int(windows.shape[0] / (H * W / window_size / window_size))
    x = windows.view(B, H // window_size, W // window_size, window_size, window_size, -1)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(B, H, W, -1)


def pad_to_window(x, window_size):
    _, H, W, _ = x.shape
    pad_b = (window_size - H % window_size) % window_size
    pad_r = (window_size - W % window_size) % window_size
    x = F.pad(x, (0, 0, 0, pad_r, 0, pad_b))
    return x, H + pad_b, W + pad_r


def region_labels(H, W, Hp, Wp, window_size, shift):
    """Which region each place of the padded, rolled map comes from; the padding is a region of its own."""
    labels = torch.zeros(1, Hp, Wp, 1)
    slices = (slice(0, -window_size), slice(-window_size, -shift), slice(-shift, None))
    count = 0
    for hs in slices:
        for ws in slices:
            labels[:, hs, ws, :] = count
            count += 1
    inside = torch.zeros(1, Hp, Wp, 1)
    inside[:, :H, :W] = 1
    inside = torch.roll(inside, (-shift, -shift), dims=(1, 2))
    return torch.where(inside > 0, labels, torch.full_like(labels, 99.0))


def relative_position_index(window_size):
    coords = torch.stack(torch.meshgrid(torch.arange(window_size), torch.arange(window_size), indexing="ij"))
    coords = torch.flatten(coords, 1)
    relative = coords[:, :, None] - coords[:, None, :]
    relative = relative.permute(1, 2, 0).contiguous()
    relative[:, :, 0] += window_size - 1
    relative[:, :, 1] += window_size - 1
    relative[:, :, 0] *= 2 * window_size - 1
    return relative.sum(-1)


class WindowAttention(nn.Module):
    """Scaled cosine attention inside windows with a learned bias for each relative place."""

    def __init__(self, dim, window_size, num_heads):
        super().__init__()
        self.window_size = window_size
        self.num_heads = num_heads
        self.max_scale = math.log(1.0 / 0.08)
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)
        self.logit_scale = nn.Parameter(torch.zeros(num_heads, 1, 1))
        self.bias_table = nn.Parameter(torch.zeros((2 * window_size - 1) ** 2, num_heads))
        self.register_buffer("bias_index", relative_position_index(window_size), persistent=False)

    def relative_bias(self):
        N = self.window_size ** 2
        bias = self.bias_table[self.bias_index.view(-1)].view(N, N, -1)
        bias = bias.permute(2, 0, 1).contiguous()
        return 4 * torch.sigmoid(bias)

    def forward(self, x, mask=None):
        B_, N, C = x.shape
        qkv = self.qkv(x).reshape(B_, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        attn = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        scale = torch.clamp(self.logit_scale, max=self.max_scale).exp()
        attn = attn * scale + self.relative_bias().unsqueeze(0)
        if mask is not None:
            nW = mask.shape[0]
            attn = attn.view(B_ // nW, nW, self.num_heads, N, N) + mask.unsqueeze(1).unsqueeze(0)
            attn = attn.view(-1, self.num_heads, N, N)
        attn = attn.softmax(dim=-1)
        x = (attn @ v).transpose(1, 2).reshape(B_, N, C)
        return self.proj(x)


class GatedMlp(nn.Module):
    """Two branches: one looks at its neighbours (depthwise), the other gates it."""

    def __init__(self, dim, hidden):
        super().__init__()
        self.fc1 = nn.Linear(dim, 2 * hidden)
        self.dwconv = nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden)
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x, H, W):
        B, L, _ = x.shape
        x, gate = self.fc1(x).chunk(2, dim=-1)
        grid = x.transpose(1, 2).reshape(B, -1, H, W)
        grid = grid + self.dwconv(grid)
        x = grid.flatten(2).transpose(1, 2)
        x = F.gelu(x) * torch.sigmoid(gate + 1.0)
        return self.fc2(x)


class SwinBlock(nn.Module):
    """Residual post-norm around the window attention and around the gated perceptron, with layer scale."""

    def __init__(self, dim, num_heads, window_size, shift_size, mlp_ratio=2):
        super().__init__()
        self.window_size = window_size
        self.shift_size = shift_size
        self.attn = WindowAttention(dim, window_size, num_heads)
        self.norm1 = nn.LayerNorm(dim)
        self.mlp = GatedMlp(dim, mlp_ratio * dim)
        self.norm2 = nn.LayerNorm(dim)
        self.gamma_1 = nn.Parameter(torch.ones(dim))
        self.gamma_2 = nn.Parameter(torch.ones(dim))

    def window_attention(self, x, H, W, attn_mask):
        B, L, C = x.shape
        x = x.view(B, H, W, C)
        x, Hp, Wp = pad_to_window(x, self.window_size)
        if self.shift_size > 0:
            shifted = torch.roll(x, shifts=(-self.shift_size, -self.shift_size), dims=(1, 2))
        else:
            shifted, attn_mask = x, None
        windows = window_partition(shifted, self.window_size)
        windows = self.attn(windows, mask=attn_mask)
        shifted = window_reverse(windows, self.window_size, Hp, Wp)
        if self.shift_size > 0:
            x = torch.roll(shifted, shifts=(self.shift_size, self.shift_size), dims=(1, 2))
        else:
            x = shifted
        return x[:, :H, :W, :].reshape(B, L, C)

    def forward(self, x, H, W, attn_mask):
        shortcut = x
        x = self.norm1(self.window_attention(x, H, W, attn_mask))
        x = shortcut + self.gamma_1 * x
        return x + self.gamma_2 * self.norm2(self.mlp(x, H, W))


class PatchMerging(nn.Module):
    """Each 2x2 neighbourhood becomes one token of twice the width."""

    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(4 * dim)
        self.reduction = nn.Linear(4 * dim, 2 * dim, bias=False)

    def forward(self, x, H, W):
        B, L, C = x.shape
        x = x.view(B, H, W, C)
        if H % 2 == 1 or W % 2 == 1:
            x = F.pad(x, (0, 0, 0, W % 2, 0, H % 2))
        x0 = x[:, 0::2, 0::2, :]
        x1 = x[:, 1::2, 0::2, :]
        x2 = x[:, 0::2, 1::2, :]
        x3 = x[:, 1::2, 1::2, :]
        x = torch.cat([x0, x1, x2, x3], -1)
        H, W = x.shape[1:3]
        x = self.reduction(self.norm(x.view(B, -1, 4 * C)))
        return x, H, W


class Stage(nn.Module):
    """A pair of blocks (plain, shifted); the mask of the shifted one is computed for the map at hand."""

    def __init__(self, dim, num_heads, window_size):
        super().__init__()
        self.window_size = window_size
        self.shift_size = window_size // 2
        self.blocks = nn.ModuleList(
            [SwinBlock(dim, num_heads, window_size, 0 if i % 2 == 0 else self.shift_size) for i in range(2)]
        )

    def build_mask(self, H, W):
        Hp = int(math.ceil(H / self.window_size)) * self.window_size
        Wp = int(math.ceil(W / self.window_size)) * self.window_size
        labels = region_labels(H, W, Hp, Wp, self.window_size, self.shift_size)
        windows = window_partition(labels, self.window_size).squeeze(-1)
        different = windows.unsqueeze(1) != windows.unsqueeze(2)
        return torch.zeros(different.shape).masked_fill(different, -100.0)

    def forward(self, x, H, W):
        attn_mask = self.build_mask(H, W)
        for blk in self.blocks:
            x = blk(x, H, W, attn_mask)
        return x


class Swinish(nn.Module):
    """Patches with an interpolated place grid, two stages, a top-down sum, pooling by learned attention."""

    def __init__(self, patch=4, dim=24, window_size=4, num_heads=(2, 4), neck=32, classes=20, grid=8):
        super().__init__()
        self.patch_size = patch
        self.patch_embed = nn.Conv2d(3, dim, patch, stride=patch)
        self.patch_norm = nn.LayerNorm(dim)
        self.pos_embed = nn.Parameter(torch.zeros(1, dim, grid, grid))
        self.stages = nn.ModuleList([Stage(dim * 2 ** i, num_heads[i], window_size) for i in range(2)])
        self.merge = PatchMerging(dim)
        self.lateral = nn.ModuleList([nn.Linear(dim, neck), nn.Linear(2 * dim, neck)])
        self.norm = nn.LayerNorm(neck)
        self.pool_score = nn.Linear(neck, 4)
        self.head = nn.Linear(2 * neck, classes)

    def embed(self, img):
        _, _, H, W = img.shape
        p = self.patch_size
        img = F.pad(img, (0, -W % p, 0, -H % p))
        x = self.patch_embed(img)
        H, W = x.shape[-2:]
        pos = F.interpolate(self.pos_embed, size=(H, W), mode="bilinear", align_corners=False)
        x = self.patch_norm(x.flatten(2).transpose(1, 2))
        return x + pos.flatten(2).transpose(1, 2), H, W

    def top_down(self, low, high, low_size, high_size):
        B = low.shape[0]
        fine = self.lateral[0](low)
        coarse = self.lateral[1](high).transpose(1, 2).reshape(B, -1, *high_size)
        coarse = F.interpolate(coarse, size=low_size, mode="nearest")
        return fine + 0.5 * coarse.flatten(2).transpose(1, 2)

    def pool(self, x):
        """Four heads of attention, one for each quarter of the channels, beside the tokens' deviation."""
        B, L, C = x.shape
        weights = torch.softmax(self.pool_score(x), dim=1)
        quarters = x.view(B, L, 4, C // 4)
        mean = torch.einsum("blq,blqc->bqc", weights, quarters)
        spread = torch.einsum("blq,blqc->bqc", weights, (quarters - mean.unsqueeze(1)) ** 2)
        return torch.cat([mean.flatten(1), torch.sqrt(spread + 1e-4).flatten(1)], dim=-1)

    def forward(self, img):
        x, H, W = self.embed(img)
        low = self.stages[0](x, H, W)
        x, h, w = self.merge(low, H, W)
        high = self.stages[1](x, h, w)
        x = self.norm(self.top_down(low, high, (H, W), (h, w)))
        return self.head(self.pool(x))


def build():
    """The net with the same weights on every run, and two pictures whose sides fit neither patch nor window."""
    torch.manual_seed(23)
    net = Swinish()
    for name, parameter in net.named_parameters():
        if name.endswith("bias_table"):
            nn.init.normal_(parameter, std=1.0)
        elif name.endswith("logit_scale"):
            nn.init.uniform_(parameter, 1.8, 3.2)
        elif name.endswith("pos_embed"):
            nn.init.normal_(parameter, std=0.7)
        elif "gamma_" in name:
            nn.init.uniform_(parameter, 0.5, 1.1)
        elif "pool_score.weight" in name or "qkv.weight" in name:
            nn.init.normal_(parameter, std=0.25)
    for module in net.modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.2)
    ramp = torch.linspace(-1, 1, 54).view(1, 1, 1, 54)
    return net.eval(), (torch.randn(2, 3, 42, 54) + ramp,)
