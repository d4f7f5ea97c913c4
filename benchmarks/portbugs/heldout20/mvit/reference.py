"""A multiscale vision transformer for clips of video (pooling attention, decomposed relative positions), in PyTorch."""

from __future__ import annotations

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

# Pixel statistics of the pre-training; clips come as RGB in [0, 1].
PIXEL_MEAN = (0.48145466, 0.4578275, 0.40821073)
PIXEL_STD = (0.26862954, 0.26130258, 0.27577711)


class Config:
    """What the yaml of the small model says."""

    # the clip that the tables were trained for
    train_frames = 8
    train_crop = 32
    in_channels = 3
    num_classes = 11
    # patches
    patch_kernel = (3, 7, 7)
    patch_stride = (2, 4, 4)
    patch_padding = (1, 3, 3)
    # transformer
    embed_dim = 24
    num_heads = 2
    depth = 6
    mlp_ratio = 3.0
    qkv_bias = True
    drop_path_rate = 0.2
    dropout_rate = 0.5
    dim_mul = ((2, 2.0), (4, 2.0))
    head_mul = ((2, 2.0), (4, 2.0))
    pool_kernel = (3, 3, 3)
    pool_q_stride = ((2, 1, 2, 2), (4, 2, 2, 2))
    pool_kv_stride_adaptive = (2, 4, 4)
    residual_pooling = True
    head_hidden = 40


def round_width(width, multiplier, min_width=1, divisor=1):
    """The width times the multiplier, as a multiple of the divisor."""
    if not multiplier:
        return width
    width *= multiplier
    min_width = min_width or divisor
    width_out = max(min_width, int(width + divisor / 2) // divisor * divisor)
    if width_out < 0.9 * width:
        width_out += divisor
    return int(width_out)


def stage_tables(cfg):
    """For each block: input width, output width, heads, and the strides of the queries and of the keys and values."""
    dim_mul, head_mul = [1.0] * (cfg.depth + 1), [1.0] * (cfg.depth + 1)
    for index, factor in cfg.dim_mul:
        dim_mul[index] = factor
    for index, factor in cfg.head_mul:
        head_mul[index] = factor
    stride_q = [(1, 1, 1) for _ in range(cfg.depth)]
    for index, *stride in cfg.pool_q_stride:
        stride_q[index] = tuple(stride)
    stride_kv = []
    current = list(cfg.pool_kv_stride_adaptive)
    for index in range(cfg.depth):
        current = [max(current[d] // stride_q[index][d], 1) for d in range(3)]
        stride_kv.append(tuple(current))
    rows = []
    dim, heads = cfg.embed_dim, cfg.num_heads
    for index in range(cfg.depth):
        heads = round_width(heads, head_mul[index])
        dim_out = round_width(dim, dim_mul[index], divisor=heads)
        rows.append((dim, dim_out, heads, stride_q[index], stride_kv[index]))
        dim = dim_out
    return rows


def pool_frame_mask(valid, kernel, stride):
    """Which frames remain valid after a convolution over time: those that saw a valid one."""
    if stride == 1:
        return valid
    pooled = F.max_pool1d(valid.float().unsqueeze(1), kernel, stride, kernel // 2)
    return pooled.squeeze(1) > 0.5


def attention_pool(tensor, pool, thw, norm=None, valid=None):
    """Pool the tokens of a clip as a volume; the class token, which comes first, goes past the pooling.

    tensor is (batch, heads, tokens, channels), or (batch, tokens, channels) for the residual path.
    """
    if pool is None:
        return tensor, thw
    ndim = tensor.ndim
    if ndim == 3:
        tensor = tensor.unsqueeze(1)
    cls_tok, tensor = tensor[:, :, :1, :], tensor[:, :, 1:, :]
    b, n, _, c = tensor.shape
    t, h, w = thw
    tensor = tensor.reshape(b, n, t, h, w, c)
    if valid is not None:
        tensor = tensor * valid[:, None, :, None, None, None].to(tensor.dtype)
    tensor = tensor.reshape(b * n, t, h, w, c).permute(0, 4, 1, 2, 3).contiguous()
    tensor = pool(tensor)
    thw = list(tensor.shape[2:])
    tensor = tensor.reshape(b, n, c, thw[0] * thw[1] * thw[2]).transpose(2, 3)
    tensor = torch.cat((cls_tok, tensor), dim=2)
    if norm is not None:
        tensor = norm(tensor)
    if ndim == 3:
        tensor = tensor.squeeze(1)
    return tensor, thw


def get_rel_pos(rel_pos, length):
    """The table of relative positions, stretched to another length if need be."""
    if rel_pos.shape[0] == length:
        return rel_pos
    resized = F.interpolate(
        rel_pos.reshape(1, rel_pos.shape[0], -1).permute(0, 2, 1), size=length, mode="linear", align_corners=False
    )
    return resized.reshape(-1, length).permute(1, 0)


def rel_pos_rows(rel_pos, q_size, k_size):
    """For each place of a query and of a key along one axis, the row of the table: (q_size, k_size, channels)."""
    q_ratio = max(k_size / q_size, 1.0)
    k_ratio = max(q_size / k_size, 1.0)
    dist = torch.arange(q_size)[:, None] * q_ratio - torch.arange(k_size)[None, :] * k_ratio
    dist = dist + (k_size - 1) * k_ratio
    table = get_rel_pos(rel_pos, 2 * max(q_size, k_size) - 1)
    return table[dist.long()]


def add_rel_pos(attn, q, q_shape, k_shape, rel_pos_h, rel_pos_w, rel_pos_t):
    """Decomposed relative positions over height, width and time; the class token has none."""
    q_t, q_h, q_w = q_shape
    k_t, k_h, k_w = k_shape
    rows_h = rel_pos_rows(rel_pos_h, q_h, k_h)
    rows_w = rel_pos_rows(rel_pos_w, q_w, k_w)
    rows_t = rel_pos_rows(rel_pos_t, q_t, k_t)

    b, n, _, c = q.shape
    r_q = q[:, :, 1:].reshape(b, n, q_t, q_h, q_w, c)
    rel_h = torch.einsum("bnthwc,hkc->bnthwk", r_q, rows_h)
    rel_w = torch.einsum("bnthwc,wkc->bnthwk", r_q, rows_w)
    rel_t = torch.einsum("bnthwc,tkc->bnthwk", r_q, rows_t)

    bias = (
        rel_h[:, :, :, :, :, None, :, None]
        + rel_w[:, :, :, :, :, None, None, :]
        + rel_t[:, :, :, :, :, :, None, None]
    ).reshape(b, n, q_t * q_h * q_w, k_t * k_h * k_w)
    return attn + F.pad(bias, (1, 0, 1, 0))


class DropPath(nn.Module):
    """Stochastic depth per sample."""

    def __init__(self, drop_prob: float):
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x):
        if self.drop_prob == 0.0 or not self.training:
            return x
        keep_prob = 1 - self.drop_prob
        shape = (x.shape[0],) + (1,) * (x.ndim - 1)
        mask = x.new_empty(shape).bernoulli_(keep_prob)
        return x.div(keep_prob) * mask


class Mlp(nn.Module):
    """Perceptron with GELU."""

    def __init__(self, dim, hidden):
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)))


class MultiScaleAttention(nn.Module):
    """Attention whose queries, keys and values are pooled by depthwise convolutions."""

    def __init__(self, dim, dim_out, num_heads, input_size, kernel, stride_q, stride_kv, qkv_bias, residual_pooling,
                 norm_layer):
        super().__init__()
        self.num_heads = num_heads
        self.dim_out = dim_out
        head_dim = dim_out // num_heads
        self.scale = head_dim**-0.5
        self.stride_kv = stride_kv
        self.residual_pooling = residual_pooling
        padding = tuple(k // 2 for k in kernel)

        self.qkv = nn.Linear(dim, dim_out * 3, bias=qkv_bias)
        self.proj = nn.Linear(dim_out, dim_out)
        pool = partial(nn.Conv3d, head_dim, head_dim, kernel, padding=padding, groups=head_dim, bias=False)
        self.pool_q = pool(stride=stride_q)
        self.norm_q = norm_layer(head_dim)
        self.pool_k = pool(stride=stride_kv)
        self.norm_k = norm_layer(head_dim)
        self.pool_v = pool(stride=stride_kv)
        self.norm_v = norm_layer(head_dim)

        q_size = [size // s for size, s in zip(input_size, stride_q)]
        k_size = [size // s for size, s in zip(input_size, stride_kv)]
        length_t, length_h, length_w = (2 * max(q, k) - 1 for q, k in zip(q_size, k_size))
        self.rel_pos_h = nn.Parameter(torch.zeros(length_h, head_dim))
        self.rel_pos_w = nn.Parameter(torch.zeros(length_w, head_dim))
        self.rel_pos_t = nn.Parameter(torch.zeros(length_t, head_dim))

    def forward(self, x, thw, valid):
        b, length, _ = x.shape
        qkv = self.qkv(x).reshape(b, length, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]

        q, q_shape = attention_pool(q, self.pool_q, thw, self.norm_q, valid)
        k, k_shape = attention_pool(k, self.pool_k, thw, self.norm_k, valid)
        v, _ = attention_pool(v, self.pool_v, thw, self.norm_v, valid)

        attn = (q * self.scale) @ k.transpose(-2, -1)
        attn = add_rel_pos(attn, q, q_shape, k_shape, self.rel_pos_h, self.rel_pos_w, self.rel_pos_t)

        k_valid = pool_frame_mask(valid, self.pool_k.kernel_size[0], self.stride_kv[0])
        k_valid = k_valid.repeat_interleave(k_shape[1] * k_shape[2], dim=1)
        k_valid = F.pad(k_valid, (1, 0), value=True)  # everybody may look at the class token
        attn = attn.masked_fill(~k_valid[:, None, None, :], torch.finfo(attn.dtype).min)
        attn = attn.softmax(dim=-1)

        x = attn @ v
        if self.residual_pooling:
            x = torch.cat((x[:, :, :1], x[:, :, 1:] + q[:, :, 1:]), dim=2)
        x = x.transpose(1, 2).reshape(b, -1, self.dim_out)
        return self.proj(x), q_shape


class MultiScaleBlock(nn.Module):
    """A block whose attention may shrink the grid and widen the channels."""

    def __init__(self, dim, dim_out, num_heads, input_size, mlp_ratio, qkv_bias, drop_path, kernel, stride_q, stride_kv,
                 residual_pooling, norm_layer):
        super().__init__()
        self.dim, self.dim_out = dim, dim_out
        self.stride_q = stride_q
        self.mask_kernel = kernel[0]
        self.norm1 = norm_layer(dim)
        self.attn = MultiScaleAttention(
            dim, dim_out, num_heads, input_size, kernel, stride_q, stride_kv, qkv_bias, residual_pooling, norm_layer
        )
        self.drop_path = DropPath(drop_path) if drop_path > 0.0 else nn.Identity()
        self.norm2 = norm_layer(dim_out)
        self.mlp = Mlp(dim_out, int(dim_out * mlp_ratio))
        self.proj = nn.Linear(dim, dim_out) if dim != dim_out else None
        if math.prod(stride_q) > 1:
            kernel_skip = [s + 1 if s > 1 else s for s in stride_q]
            self.pool_skip = nn.MaxPool3d(kernel_skip, stride_q, [k // 2 for k in kernel_skip])
        else:
            self.pool_skip = None

    def forward(self, x, thw, valid):
        x_norm = self.norm1(x)
        x_block, thw_new = self.attn(x_norm, thw, valid)
        if self.proj is not None:
            x = self.proj(x_norm)
        x_res, _ = attention_pool(x, self.pool_skip, thw)
        x = x_res + self.drop_path(x_block)
        x = x + self.drop_path(self.mlp(self.norm2(x)))
        return x, thw_new, pool_frame_mask(valid, self.mask_kernel, self.stride_q[0])


class PatchEmbed(nn.Module):
    """Overlapping patches in space and time as a sequence of tokens."""

    def __init__(self, in_channels, dim, kernel, stride, padding):
        super().__init__()
        self.proj = nn.Conv3d(in_channels, dim, kernel, stride, padding)

    def forward(self, x):
        x = self.proj(x)
        return x.flatten(2).transpose(1, 2), list(x.shape[2:])


class AverageHead(nn.Module):
    """Classifier on the mean of the tokens of valid frames."""

    def __init__(self, dim, hidden, num_classes, dropout):
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.bn = nn.BatchNorm1d(hidden, eps=1e-3)
        self.act = nn.LeakyReLU()
        self.dropout = nn.Dropout(dropout)
        self.fc2 = nn.Linear(hidden, num_classes)

    def forward(self, tokens, thw, valid):
        t, h, w = thw
        tokens = tokens.reshape(tokens.shape[0], t, h * w, -1).mean(dim=2)
        weight = valid.to(tokens.dtype)
        pooled = (tokens * weight.unsqueeze(-1)).sum(dim=1) / weight.sum(dim=1, keepdim=True).clamp(min=1.0)
        return self.fc2(self.dropout(self.act(self.bn(self.fc1(pooled)))))


class ClassHead(nn.Module):
    """Classifier on the class token."""

    def __init__(self, dim, num_classes, dropout):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.projection = nn.Linear(dim, num_classes)

    def forward(self, token):
        return self.projection(self.dropout(token))


class MViT(nn.Module):
    """Multiscale vision transformer with two heads."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        norm_layer = partial(nn.LayerNorm, eps=1e-6)
        dim = cfg.embed_dim
        self.register_buffer("pixel_mean", torch.tensor(PIXEL_MEAN).view(1, -1, 1, 1, 1), persistent=False)
        self.register_buffer("pixel_std", torch.tensor(PIXEL_STD).view(1, -1, 1, 1, 1), persistent=False)
        self.patch_embed = PatchEmbed(cfg.in_channels, dim, cfg.patch_kernel, cfg.patch_stride, cfg.patch_padding)

        clip = (cfg.train_frames, cfg.train_crop, cfg.train_crop)
        self.patch_dims = [size // s for size, s in zip(clip, cfg.patch_stride)]
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed_spatial = nn.Parameter(torch.zeros(1, self.patch_dims[1] * self.patch_dims[2], dim))
        self.pos_embed_temporal = nn.Parameter(torch.zeros(1, self.patch_dims[0], dim))
        self.pos_embed_class = nn.Parameter(torch.zeros(1, 1, dim))

        dpr = [rate.item() for rate in torch.linspace(0, cfg.drop_path_rate, cfg.depth)]
        size = list(self.patch_dims)
        self.blocks = nn.ModuleList()
        for index, (dim_in, dim_out, heads, stride_q, stride_kv) in enumerate(stage_tables(cfg)):
            self.blocks.append(
                MultiScaleBlock(
                    dim_in, dim_out, heads, size, cfg.mlp_ratio, cfg.qkv_bias, dpr[index], cfg.pool_kernel, stride_q,
                    stride_kv, cfg.residual_pooling, norm_layer,
                )
            )
            size = [n // s for n, s in zip(size, stride_q)]
            dim = dim_out
        self.norm = norm_layer(dim)
        self.head_avg = AverageHead(dim, cfg.head_hidden, cfg.num_classes, cfg.dropout_rate)
        self.head_cls = ClassHead(dim, cfg.num_classes, cfg.dropout_rate)

    def _get_pos_embed(self, thw):
        """The separable tables for this grid, the class token's row first."""
        t, h, w = thw
        spatial, temporal = self.pos_embed_spatial, self.pos_embed_temporal
        if (h, w) != tuple(self.patch_dims[1:]):
            grid = spatial.reshape(1, self.patch_dims[1], self.patch_dims[2], -1).permute(0, 3, 1, 2)
            grid = F.interpolate(grid, size=(h, w), mode="bilinear", align_corners=False)
            spatial = grid.flatten(2).transpose(1, 2)
        if t != self.patch_dims[0]:
            temporal = F.interpolate(temporal.transpose(1, 2), size=t, mode="linear", align_corners=False)
            temporal = temporal.transpose(1, 2)
        pos = spatial.repeat(1, t, 1) + torch.repeat_interleave(temporal, h * w, dim=1)
        return torch.cat([self.pos_embed_class, pos], dim=1)

    def forward(self, video, frame_mask):
        """video is (batch, 3, frames, height, width), frame_mask (batch, frames), true where a frame is one."""
        x = (video - self.pixel_mean) / self.pixel_std
        x = x * frame_mask[:, None, :, None, None].to(x.dtype)
        x, thw = self.patch_embed(x)
        valid = pool_frame_mask(frame_mask, self.cfg.patch_kernel[0], self.cfg.patch_stride[0])

        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1)
        x = x + self._get_pos_embed(thw)
        for block in self.blocks:
            x, thw, valid = block(x, thw, valid)
        x = self.norm(x)

        cls_logits = self.head_cls(x[:, 0])
        avg_logits = self.head_avg(x[:, 1:], thw, valid)
        scores = (cls_logits.softmax(dim=-1) + avg_logits.softmax(dim=-1)) / 2
        return cls_logits, avg_logits, scores


def trained_like(net):
    """Values as after training, not as after the initialisation."""
    for name, parameter in net.named_parameters():
        if "rel_pos" in name:
            nn.init.normal_(parameter, std=0.3)
        elif "pos_embed" in name or "cls_token" in name:
            nn.init.normal_(parameter, std=0.4)
    for module in net.modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.15)
        elif isinstance(module, nn.BatchNorm1d):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.3)
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.004, 0.03)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=module.in_features**-0.5)
            nn.init.normal_(module.bias, std=0.1)
        elif isinstance(module, nn.Conv3d):
            fan_in = module.weight[0].numel()
            nn.init.normal_(module.weight, std=fan_in**-0.5)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.1)
            else:
                module.weight.data[:, :, 1, 1, 1] += 0.5
    # the batch norm's statistics are those of a narrow layer
    net.head_avg.fc1.weight.data *= 0.2
    net.head_avg.fc1.bias.data *= 0.5
    return net


def build():
    """The net with the same weights on every run, and three clips of which two are padded."""
    torch.manual_seed(2020)
    net = trained_like(MViT(Config()))
    video = torch.rand(3, 3, 12, 32, 48)
    video = 0.6 * video + 0.4 * F.interpolate(torch.rand(3, 3, 4, 4, 6), size=(12, 32, 48), mode="trilinear")
    frame_mask = torch.arange(12)[None, :] < torch.tensor([12, 4, 8])[:, None]
    return net.eval(), (video, frame_mask)
