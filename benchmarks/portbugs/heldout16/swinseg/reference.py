"""Segmentation of medical volumes with a 3D Swin encoder, a convolutional decoder and sliding windows, in PyTorch.

Windows and shifts are those of Swin UNETR, the overlapping stem and the supervised heads those of nnFormer.
Volumes are (batch, modality, depth, height, width), tokens are (batch, depth, height, width, channel) all the way.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

PATCH = 2


def window_partition(x, window_size):
    """(b, d, h, w, c) to (b * windows, voxels of a window, c)."""
    b, d, h, w, c = x.shape
    wd, wh, ww = window_size
    x = x.view(b, d // wd, wd, h // wh, wh, w // ww, ww, c)
    return x.permute(0, 1, 3, 5, 2, 4, 6, 7).contiguous().view(-1, wd * wh * ww, c)


def window_reverse(windows, window_size, dims):
    """The inverse of window_partition."""
    b, d, h, w = dims
    wd, wh, ww = window_size
    x = windows.view(b, d // wd, h // wh, w // ww, wd, wh, ww, -1)
    return x.permute(0, 1, 4, 2, 5, 3, 6, 7).contiguous().view(b, d, h, w, -1)


def get_window_size(x_size, window_size, shift_size=None):
    """A window is never larger than the volume, and along an axis that it fills nothing is shifted."""
    use_window_size = list(window_size)
    use_shift_size = list(shift_size) if shift_size is not None else None
    for i in range(len(x_size)):
        if x_size[i] <= window_size[i]:
            use_window_size[i] = x_size[i]
            if use_shift_size is not None:
                use_shift_size[i] = 0
    if use_shift_size is None:
        return tuple(use_window_size)
    return tuple(use_window_size), tuple(use_shift_size)


def compute_mask(dims, window_size, shift_size, device):
    """Pairs of voxels in a shifted window that come from different regions get -100."""
    d, h, w = dims
    cnt = 0
    img_mask = torch.zeros((1, d, h, w, 1), device=device)
    for ds in slice(-window_size[0]), slice(-window_size[0], -shift_size[0]), slice(-shift_size[0], None):
        for hs in slice(-window_size[1]), slice(-window_size[1], -shift_size[1]), slice(-shift_size[1], None):
            for ws in slice(-window_size[2]), slice(-window_size[2], -shift_size[2]), slice(-shift_size[2], None):
                img_mask[:, ds, hs, ws, :] = cnt
                cnt += 1
    mask_windows = window_partition(img_mask, window_size).squeeze(-1)
    attn_mask = mask_windows.unsqueeze(1) - mask_windows.unsqueeze(2)
    return attn_mask.masked_fill(attn_mask != 0, -100.0).masked_fill(attn_mask == 0, 0.0)


class Mlp(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)))


class WindowAttention(nn.Module):
    """Attention inside the windows, with a bias for each relative position and head."""

    def __init__(self, dim, num_heads, window_size):
        super().__init__()
        self.num_heads = num_heads
        self.window_size = window_size
        self.scale = (dim // num_heads) ** -0.5
        wd, wh, ww = window_size
        self.relative_position_bias_table = nn.Parameter(
            torch.zeros((2 * wd - 1) * (2 * wh - 1) * (2 * ww - 1), num_heads)
        )
        coords = torch.stack(torch.meshgrid(torch.arange(wd), torch.arange(wh), torch.arange(ww), indexing="ij"))
        coords = torch.flatten(coords, 1)
        relative_coords = (coords[:, :, None] - coords[:, None, :]).permute(1, 2, 0).contiguous()
        relative_coords[:, :, 0] += wd - 1
        relative_coords[:, :, 1] += wh - 1
        relative_coords[:, :, 2] += ww - 1
        relative_coords[:, :, 0] *= (2 * wh - 1) * (2 * ww - 1)
        relative_coords[:, :, 1] *= 2 * ww - 1
        self.register_buffer("relative_position_index", relative_coords.sum(-1))
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)
        self.softmax = nn.Softmax(dim=-1)

    def forward(self, x, mask=None):
        b, n, c = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.num_heads, c // self.num_heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        attn = (q * self.scale) @ k.transpose(-2, -1)
        index = self.relative_position_index[:n, :n].reshape(-1)
        bias = self.relative_position_bias_table[index].reshape(n, n, -1).permute(2, 0, 1).contiguous()
        attn = attn + bias.unsqueeze(0)
        if mask is not None:
            nw = mask.shape[0]
            attn = attn.view(b // nw, nw, self.num_heads, n, n) + mask.unsqueeze(1).unsqueeze(0)
            attn = attn.view(-1, self.num_heads, n, n)
        attn = self.softmax(attn)
        x = (attn @ v).transpose(1, 2).reshape(b, n, c)
        return self.proj(x)


class SwinBlock(nn.Module):
    def __init__(self, dim, num_heads, window_size, shift_size, mlp_ratio):
        super().__init__()
        self.window_size = window_size
        self.shift_size = shift_size
        self.norm1 = nn.LayerNorm(dim)
        self.attn = WindowAttention(dim, num_heads, window_size)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = Mlp(dim, int(dim * mlp_ratio))

    def forward_part1(self, x, mask_matrix):
        b, d, h, w, c = x.shape
        window_size, shift_size = get_window_size((d, h, w), self.window_size, self.shift_size)
        x = self.norm1(x)
        pad_d = (window_size[0] - d % window_size[0]) % window_size[0]
        pad_h = (window_size[1] - h % window_size[1]) % window_size[1]
        pad_w = (window_size[2] - w % window_size[2]) % window_size[2]
        x = F.pad(x, (0, 0, 0, pad_w, 0, pad_h, 0, pad_d))
        dims = x.shape[:4]
        if any(s > 0 for s in shift_size):
            x = torch.roll(x, shifts=(-shift_size[0], -shift_size[1], -shift_size[2]), dims=(1, 2, 3))
            attn_mask = mask_matrix
        else:
            attn_mask = None
        x = window_partition(x, window_size)
        x = self.attn(x, mask=attn_mask)
        x = window_reverse(x, window_size, dims)
        if any(s > 0 for s in shift_size):
            x = torch.roll(x, shifts=shift_size, dims=(1, 2, 3))
        return x[:, :d, :h, :w, :].contiguous()

    def forward(self, x, mask_matrix):
        x = x + self.forward_part1(x, mask_matrix)
        return x + self.mlp(self.norm2(x))


class PatchMerging(nn.Module):
    """The eight voxels of a 2 x 2 x 2 cube become one with twice the channels."""

    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(8 * dim)
        self.reduction = nn.Linear(8 * dim, 2 * dim, bias=False)

    def forward(self, x):
        b, d, h, w, c = x.shape
        if d % 2 or h % 2 or w % 2:
            x = F.pad(x, (0, 0, 0, w % 2, 0, h % 2, 0, d % 2))
        x = torch.cat([x[:, i::2, j::2, k::2, :] for i, j, k in itertools.product(range(2), range(2), range(2))], -1)
        return self.reduction(self.norm(x))


class BasicLayer(nn.Module):
    """One stage: blocks with and without shift in turn, then the merging."""

    def __init__(self, dim, depth, num_heads, window_size, mlp_ratio, downsample):
        super().__init__()
        self.window_size = window_size
        self.shift_size = tuple(i // 2 for i in window_size)
        self.no_shift = tuple(0 for _ in window_size)
        self.blocks = nn.ModuleList(
            [
                SwinBlock(dim, num_heads, window_size, self.no_shift if i % 2 == 0 else self.shift_size, mlp_ratio)
                for i in range(depth)
            ]
        )
        self.downsample = PatchMerging(dim) if downsample else None

    def forward(self, x):
        b, d, h, w, c = x.shape
        window_size, shift_size = get_window_size((d, h, w), self.window_size, self.shift_size)
        padded = [int(math.ceil(s / i)) * i for s, i in zip((d, h, w), window_size)]
        attn_mask = compute_mask(padded, window_size, shift_size, x.device)
        for blk in self.blocks:
            x = blk(x, attn_mask)
        if self.downsample is not None:
            return x, self.downsample(x)
        return x, x


class PatchEmbed(nn.Module):
    """A stem of two overlapping convolutions; the first halves every axis."""

    def __init__(self, in_chans, embed_dim):
        super().__init__()
        self.proj1 = nn.Conv3d(in_chans, embed_dim // 2, kernel_size=3, stride=PATCH, padding=1)
        self.norm1 = nn.LayerNorm(embed_dim // 2)
        self.act = nn.GELU()
        self.proj2 = nn.Conv3d(embed_dim // 2, embed_dim, kernel_size=3, stride=1, padding=1)
        self.norm2 = nn.LayerNorm(embed_dim)

    def forward(self, x):
        _, _, d, h, w = x.shape
        if w % PATCH != 0:
            x = F.pad(x, (0, PATCH - w % PATCH))
        if h % PATCH != 0:
            x = F.pad(x, (0, 0, 0, PATCH - h % PATCH))
        if d % PATCH != 0:
            x = F.pad(x, (0, 0, 0, 0, 0, PATCH - d % PATCH))
        x = self.proj1(x)
        x = self.act(self.norm1(x.permute(0, 2, 3, 4, 1)))
        x = self.proj2(x.permute(0, 4, 1, 2, 3))
        return self.norm2(x.permute(0, 2, 3, 4, 1))


class SwinTransformer(nn.Module):
    """The encoder; gives the normed features of every stage as (b, c, d, h, w)."""

    def __init__(self, in_chans, embed_dim, window_size, depths, num_heads, mlp_ratio):
        super().__init__()
        self.num_layers = len(depths)
        self.patch_embed = PatchEmbed(in_chans, embed_dim)
        self.pos_drop = nn.Dropout(0.0)
        self.layers = nn.ModuleList()
        for i in range(self.num_layers):
            self.layers.append(
                BasicLayer(
                    embed_dim * 2**i, depths[i], num_heads[i], window_size, mlp_ratio, i < self.num_layers - 1
                )
            )
        for i in range(self.num_layers):
            self.add_module(f"norm{i}", nn.LayerNorm(embed_dim * 2**i))

    def forward(self, x):
        x = self.pos_drop(self.patch_embed(x))
        outs = []
        for i, layer in enumerate(self.layers):
            x_out, x = layer(x)
            x_out = getattr(self, f"norm{i}")(x_out)
            outs.append(x_out.permute(0, 4, 1, 2, 3).contiguous())
        return outs


class UnetResBlock(nn.Module):
    """Two convolutions with instance norms and a shortcut."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv1 = nn.Conv3d(in_channels, out_channels, 3, padding=1)
        self.conv2 = nn.Conv3d(out_channels, out_channels, 3, padding=1)
        self.lrelu = nn.LeakyReLU(negative_slope=0.01)
        self.norm1 = nn.InstanceNorm3d(out_channels, affine=True)
        self.norm2 = nn.InstanceNorm3d(out_channels, affine=True)
        self.downsample = in_channels != out_channels
        if self.downsample:
            self.conv3 = nn.Conv3d(in_channels, out_channels, 1)
            self.norm3 = nn.InstanceNorm3d(out_channels, affine=True)

    def forward(self, inp):
        residual = inp
        out = self.lrelu(self.norm1(self.conv1(inp)))
        out = self.norm2(self.conv2(out))
        if self.downsample:
            residual = self.norm3(self.conv3(residual))
        return self.lrelu(out + residual)


class UnetrUpBlock(nn.Module):
    """Doubles the grid, cuts it to the skip's, and joins the two."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.transp_conv = nn.ConvTranspose3d(in_channels, out_channels, kernel_size=2, stride=2)
        self.conv_block = UnetResBlock(2 * out_channels, out_channels)

    def forward(self, inp, skip):
        out = self.transp_conv(inp)
        d, h, w = skip.shape[2:]
        out = out[:, :, :d, :h, :w]
        out = torch.cat((out, skip), dim=1)
        return self.conv_block(out)


class SwinSeg(nn.Module):
    """Encoder, skips, decoder, and a head at every scale of the decoder (finest first)."""

    def __init__(self, in_chans, num_classes, feature_size, window_size, depths, num_heads, mlp_ratio=2.5):
        super().__init__()
        self.swin = SwinTransformer(in_chans, feature_size, window_size, depths, num_heads, mlp_ratio)
        widths = [feature_size * 2**i for i in range(len(depths))]
        self.encoder0 = UnetResBlock(in_chans, feature_size)
        self.encoders = nn.ModuleList([UnetResBlock(c, c) for c in widths])
        self.decoders = nn.ModuleList(
            [UnetrUpBlock(widths[i], widths[max(i - 1, 0)]) for i in reversed(range(len(widths)))]
        )
        self.heads = nn.ModuleList([nn.Conv3d(c, num_classes, 1) for c in [feature_size] + widths[:-1]])

    def forward(self, x):
        hidden = self.swin(x)
        skips = [self.encoder0(x)]
        for enc, feat in zip(self.encoders, hidden):
            skips.append(enc(feat))
        out = skips.pop()
        seg_outputs = []
        for i, decoder in enumerate(self.decoders):
            out = decoder(out, skips.pop())
            seg_outputs.append(self.heads[len(self.decoders) - 1 - i](out))
        return seg_outputs[::-1]


def get_scan_starts(image_size, roi_size, overlap):
    """The first voxels of the windows along each axis; the last one ends at the border."""
    starts = []
    for size, roi in zip(image_size, roi_size):
        interval = roi if size == roi else max(int(roi * (1 - overlap)), 1)
        number = int(math.ceil((size - roi) / interval)) + 1
        starts.append([min(n * interval, size - roi) for n in range(number)])
    return starts


def compute_importance_map(patch_size, sigma_scale=0.125):
    """A gaussian over the patch, with its peak in the middle."""
    importance = torch.ones(())
    for size in patch_size:
        x = torch.arange(-(size - 1) / 2.0, (size - 1) / 2.0 + 1, dtype=torch.float32)
        line = torch.exp(x**2 / (-2 * (sigma_scale * size) ** 2))
        importance = importance.unsqueeze(-1) * line
    floor = max(importance[importance != 0].min().item(), 1e-3)
    return torch.clamp(importance, min=floor)


class SlidingWindowSegmenter(nn.Module):
    """The whole program: intensities, windows, heads, blending, and what is measured at the end."""

    def __init__(self, net, roi_size, num_heads, sw_batch_size=5, overlap=0.5):
        super().__init__()
        self.net = net
        self.roi_size = roi_size
        self.sw_batch_size = sw_batch_size
        self.overlap = overlap
        weights = np.array([1 / (2**i) for i in range(num_heads)])
        self.ds_weights = (weights / weights.sum()).tolist()
        self.register_buffer("importance_map", compute_importance_map(roi_size), persistent=False)

    def normalize_intensity(self, volume):
        """z-scores over the voxels that are not background, each case and modality by itself."""
        foreground = (volume != 0).to(volume.dtype)
        count = foreground.sum(dim=(2, 3, 4), keepdim=True).clamp(min=1.0)
        mean = (volume * foreground).sum(dim=(2, 3, 4), keepdim=True) / count
        var = ((volume - mean) ** 2 * foreground).sum(dim=(2, 3, 4), keepdim=True) / count
        z = (volume - mean) / torch.sqrt(var + 1e-8)
        return torch.clamp(z, -2.5, 2.5) * foreground

    def predict_patches(self, patches):
        """Probabilities of the patches, from the weighted logits of all heads."""
        seg_outputs = self.net(patches)
        size = patches.shape[2:]
        logits = self.ds_weights[0] * seg_outputs[0]
        for weight, seg in zip(self.ds_weights[1:], seg_outputs[1:]):
            logits = logits + weight * F.interpolate(seg, size=size, mode="trilinear", align_corners=False)
        return torch.softmax(logits, dim=1)

    def sliding_window(self, volume):
        batch = volume.shape[0]
        image_size_ = list(volume.shape[2:])
        roi = self.roi_size
        image_size = tuple(max(s, r) for s, r in zip(image_size_, roi))
        pad_size = []
        for k in range(volume.dim() - 1, 1, -1):
            diff = max(roi[k - 2] - volume.shape[k], 0)
            half = diff // 2
            pad_size.extend([half, diff - half])
        volume = F.pad(volume, pad=pad_size, mode="constant", value=0.0)

        starts = get_scan_starts(image_size, roi, self.overlap)
        slices = [tuple(slice(s, s + r) for s, r in zip(first, roi)) for first in itertools.product(*starts)]
        num_win = len(slices)
        total = num_win * batch
        output, count_map = None, None
        for slice_g in range(0, total, self.sw_batch_size):
            slice_range = range(slice_g, min(slice_g + self.sw_batch_size, total))
            unravel = [(slice(idx // num_win, idx // num_win + 1), slice(None)) + slices[idx % num_win] for idx in slice_range]
            prob = self.predict_patches(torch.cat([volume[win] for win in unravel]))
            if output is None:
                output = torch.zeros((batch, prob.shape[1]) + image_size, dtype=prob.dtype, device=prob.device)
                count_map = torch.zeros((batch, 1) + image_size, dtype=prob.dtype, device=prob.device)
            for idx, win in enumerate(unravel):
                output[win] += self.importance_map * prob[idx : idx + 1]
                count_map[win] += self.importance_map
        output = output / count_map

        final_slicing = [slice(None), slice(None)]
        for sp in range(3):
            first = pad_size[2 * (2 - sp)]
            final_slicing.append(slice(first, first + image_size_[sp]))
        return output[tuple(final_slicing)]

    def measure(self, prob, spacing):
        """Millilitres and centres (mm from the middle of the volume) of the soft classes, without the background."""
        organs = prob[:, 1:]
        mass = organs.sum(dim=(2, 3, 4))
        volumes = mass * spacing.prod(dim=1, keepdim=True) / 1000.0
        axes = [torch.arange(s, dtype=prob.dtype, device=prob.device) - (s - 1) / 2.0 for s in prob.shape[2:]]
        centre = torch.stack(
            [
                torch.einsum("bkdhw,d->bk", organs, axes[0]),
                torch.einsum("bkdhw,h->bk", organs, axes[1]),
                torch.einsum("bkdhw,w->bk", organs, axes[2]),
            ],
            dim=-1,
        )
        centre = centre / mass.unsqueeze(-1).clamp(min=1e-6)
        return volumes, centre * spacing.unsqueeze(1)

    def forward(self, volume, spacing):
        prob = self.sliding_window(self.normalize_intensity(volume))
        volumes, centres = self.measure(prob, spacing)
        return prob, volumes, centres


def build():
    """The program with the same weights on every run, two cases of two modalities, and their spacings (d, h, w)."""
    torch.manual_seed(1603)
    net = SwinSeg(2, 5, 12, window_size=(3, 4, 4), depths=(2, 2, 2), num_heads=(2, 3, 4))
    model = SlidingWindowSegmenter(net, roi_size=(11, 16, 20), num_heads=len(net.heads))
    for module in model.modules():
        if isinstance(module, (nn.LayerNorm, nn.InstanceNorm3d)):
            nn.init.uniform_(module.weight, 0.6, 1.5)
            nn.init.normal_(module.bias, std=0.2)
        elif isinstance(module, (nn.Linear, nn.Conv3d, nn.ConvTranspose3d)):
            weight = module.weight
            fan_in = weight.shape[0] if isinstance(module, nn.ConvTranspose3d) else weight[0].numel()
            nn.init.normal_(weight, std=1.2 * fan_in**-0.5)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.15)
        elif isinstance(module, WindowAttention):
            nn.init.normal_(module.relative_position_bias_table, std=1.0)
    size = (9, 22, 28)
    grid = torch.stack(torch.meshgrid(*[torch.linspace(-1, 1, s) for s in size], indexing="ij"))
    coarse = F.interpolate(torch.randn(2, 2, 4, 7, 9), size=size, mode="trilinear", align_corners=True)
    body = ((grid / torch.tensor([1.4, 1.1, 0.95]).view(3, 1, 1, 1)) ** 2).sum(0) < 1.0
    volume = (3.0 + 1.2 * coarse + 0.4 * torch.randn(2, 2, *size)) * body
    spacing = torch.tensor([[3.0, 0.8, 1.1], [2.5, 1.2, 0.9]])
    return model.eval(), (volume, spacing)
