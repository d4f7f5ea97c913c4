"""A small net that segments what a prompt points at, in the manner of SAM, in PyTorch: the reference.

One image, several prompts: points with labels, a box, and for some an earlier mask. Of the masks for a prompt one is
chosen by its stability and the predicted quality, and brought back to the image's own size.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

SIZE = 64
PATCH = 8
GRID = SIZE // PATCH
PIXEL_MEAN = (123.675, 116.28, 103.53)
PIXEL_STD = (58.395, 57.12, 57.375)
STABILITY_DELTA = 0.4
STABILITY_LIMIT = 0.7
MASK_THRESHOLD = 0.8


class LayerNorm2d(nn.Module):
    """Layer normalisation over the channels of a map."""

    def __init__(self, channels: int, eps: float = 1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.eps = eps

    def forward(self, x):
        mean = x.mean(1, keepdim=True)
        variance = (x - mean).pow(2).mean(1, keepdim=True)
        x = (x - mean) / torch.sqrt(variance + self.eps)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class MLP(nn.Module):
    """Linear layers with an activation between them."""

    def __init__(self, sizes, act=nn.ReLU):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(a, b) for a, b in zip(sizes[:-1], sizes[1:])])
        self.act = act()

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = self.act(layer(x)) if i < len(self.layers) - 1 else layer(x)
        return x


def window_partition(x, window: int):
    """(batch, height, width, channels) padded at bottom and right, cut into windows."""
    batch, height, width, channels = x.shape
    pad_h, pad_w = (-height) % window, (-width) % window
    x = F.pad(x, (0, 0, 0, pad_w, 0, pad_h))
    high, wide = height + pad_h, width + pad_w
    x = x.view(batch, high // window, window, wide // window, window, channels)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, window, window, channels), (high, wide)


def window_unpartition(windows, window: int, padded, size):
    high, wide = padded
    batch = windows.shape[0] // (high * wide // window // window)
    x = windows.view(batch, high // window, wide // window, window, window, -1)
    x = x.permute(0, 1, 3, 2, 4, 5).reshape(batch, high, wide, -1)
    return x[:, : size[0], : size[1]]


def relative_positions(length: int, table):
    """(length, length, channels): the table's rows by query's place less key's; stretched if its length is another."""
    rows = 2 * length - 1
    if table.shape[0] != rows:
        table = F.interpolate(table.T[None], size=rows, mode="linear")[0].T
    places = torch.arange(length)
    return table[places[:, None] - places[None, :] + length - 1]


class WindowAttention(nn.Module):
    """Attention over a map with relative positions split into rows and columns."""

    def __init__(self, width: int, heads: int, trained: int):
        super().__init__()
        self.heads = heads
        self.scale = (width // heads) ** -0.5
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.rel_pos_h = nn.Parameter(torch.empty(2 * trained - 1, width // heads))
        self.rel_pos_w = nn.Parameter(torch.empty(2 * trained - 1, width // heads))

    def forward(self, x):
        batch, height, width, _ = x.shape
        qkv = self.qkv(x).reshape(batch, height * width, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = qkv.reshape(3, batch * self.heads, height * width, -1).unbind(0)
        scores = (query * self.scale) @ key.transpose(-2, -1)
        grid = query.view(-1, height, width, query.shape[-1])
        by_row = torch.einsum("bhwc,hkc->bhwk", grid, relative_positions(height, self.rel_pos_h))
        by_column = torch.einsum("bhwc,wkc->bhwk", grid, relative_positions(width, self.rel_pos_w))
        scores = scores.view(-1, height, width, height, width) + by_row[..., None] + by_column[..., None, :]
        weights = scores.view(-1, height * width, height * width).softmax(dim=-1)
        x = (weights @ value).view(batch, self.heads, height, width, -1)
        return self.proj(x.permute(0, 2, 3, 1, 4).reshape(batch, height, width, -1))


class EncoderBlock(nn.Module):
    def __init__(self, width: int, heads: int, window: int, trained: int):
        super().__init__()
        self.window = window
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attn = WindowAttention(width, heads, trained)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = MLP((width, 2 * width, width), nn.GELU)

    def forward(self, x):
        shortcut, size = x, x.shape[1:3]
        x = self.norm1(x)
        if self.window:
            x, padded = window_partition(x, self.window)
        x = self.attn(x)
        if self.window:
            x = window_unpartition(x, self.window, padded, size)
        x = shortcut + x
        return x + self.mlp(self.norm2(x))


class ImageEncoder(nn.Module):
    """Patches, windowed blocks around a global one, and a neck of convolutions."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.patch_embed = nn.Conv2d(3, width, PATCH, stride=PATCH)
        self.pos_embed = nn.Parameter(torch.empty(1, GRID, GRID, width))
        self.blocks = nn.ModuleList([EncoderBlock(width, heads, w, t) for w, t in ((3, 3), (0, 7), (3, 3))])
        self.neck = nn.Sequential(
            nn.Conv2d(width, width, 1, bias=False), LayerNorm2d(width),
            nn.Conv2d(width, width, 3, padding=1, bias=False), LayerNorm2d(width),
        )

    def forward(self, image):
        x = self.patch_embed(image).permute(0, 2, 3, 1) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        return self.neck(x.permute(0, 3, 1, 2))


class PromptEncoder(nn.Module):
    """Points, boxes and masks as vectors; the places by random Fourier features."""

    def __init__(self, width: int):
        super().__init__()
        self.register_buffer("gaussian", torch.empty(2, width // 2))
        self.point_embeddings = nn.Embedding(4, width)
        self.not_a_point = nn.Parameter(torch.empty(width))
        self.no_mask = nn.Parameter(torch.empty(width))
        self.mask_downscaling = nn.Sequential(
            nn.Conv2d(1, 4, 2, stride=2), LayerNorm2d(4), nn.GELU(),
            nn.Conv2d(4, 8, 2, stride=2), LayerNorm2d(8), nn.GELU(), nn.Conv2d(8, width, 1),
        )

    def fourier(self, places):
        """places in 0..1, x first."""
        angle = 2 * math.pi * ((2 * places - 1) @ self.gaussian)
        return torch.cat([torch.sin(angle), torch.cos(angle)], dim=-1)

    def dense_places(self):
        centres = (torch.arange(GRID) + 0.5) / GRID
        y, x = torch.meshgrid(centres, centres, indexing="ij")
        return self.fourier(torch.stack([x, y], dim=-1)).permute(2, 0, 1)[None]

    def forward(self, points, labels, boxes, masks, has_mask):
        embedded = self.fourier((points + 0.5) / SIZE)
        known = (labels >= 0)[..., None]
        embedded = torch.where(known, embedded, 0.0)
        embedded = embedded + torch.where(known, self.point_embeddings(labels.clamp(min=0)), self.not_a_point)
        corners = self.fourier((boxes.view(-1, 2, 2) + 0.5) / SIZE) + self.point_embeddings.weight[2:]
        dense = torch.where(has_mask[:, None, None, None], self.mask_downscaling(masks), self.no_mask[:, None, None])
        return torch.cat([embedded, corners], dim=1), dense


class Attention(nn.Module):
    """Attention in a smaller width."""

    def __init__(self, width: int, heads: int, shrink: int = 1):
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(width, width // shrink)
        self.k_proj = nn.Linear(width, width // shrink)
        self.v_proj = nn.Linear(width, width // shrink)
        self.out_proj = nn.Linear(width // shrink, width)

    def split(self, x):
        return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)

    def forward(self, q, k, v):
        q, k, v = self.split(self.q_proj(q)), self.split(self.k_proj(k)), self.split(self.v_proj(v))
        weights = (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).softmax(dim=-1)
        return self.out_proj((weights @ v).transpose(1, 2).flatten(2))


class TwoWayBlock(nn.Module):
    """Tokens among themselves, tokens to image, perceptron, image to tokens."""

    def __init__(self, width: int, heads: int, first: bool):
        super().__init__()
        self.first = first
        self.self_attn = Attention(width, heads)
        self.norm1 = nn.LayerNorm(width)
        self.token_to_image = Attention(width, heads, 2)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = MLP((width, 2 * width, width))
        self.norm3 = nn.LayerNorm(width)
        self.image_to_token = Attention(width, heads, 2)
        self.norm4 = nn.LayerNorm(width)

    def forward(self, tokens, image, token_places, image_places):
        if self.first:
            tokens = self.norm1(self.self_attn(tokens, tokens, tokens))
        else:
            placed = tokens + token_places
            tokens = self.norm1(tokens + self.self_attn(placed, placed, tokens))
        tokens = self.norm2(tokens + self.token_to_image(tokens + token_places, image + image_places, image))
        tokens = self.norm3(tokens + self.mlp(tokens))
        image = self.norm4(image + self.image_to_token(image + image_places, tokens + token_places, tokens))
        return tokens, image


class TwoWayTransformer(nn.Module):
    def __init__(self, width: int, heads: int, depth: int):
        super().__init__()
        self.layers = nn.ModuleList([TwoWayBlock(width, heads, i == 0) for i in range(depth)])
        self.final_attn = Attention(width, heads, 2)
        self.norm_final = nn.LayerNorm(width)

    def forward(self, image, image_places, prompts):
        image, image_places = image.flatten(2).transpose(1, 2), image_places.flatten(2).transpose(1, 2)
        tokens = prompts
        for layer in self.layers:
            tokens, image = layer(tokens, image, prompts, image_places)
        attended = self.final_attn(tokens + prompts, image + image_places, image)
        return self.norm_final(tokens + attended), image


class MaskDecoder(nn.Module):
    """Masks as products of an upscaled image with what small nets make of the mask tokens."""

    def __init__(self, width: int, heads: int, count: int = 4):
        super().__init__()
        self.count = count
        self.transformer = TwoWayTransformer(width, heads, 2)
        self.iou_token = nn.Parameter(torch.empty(1, width))
        self.mask_tokens = nn.Parameter(torch.empty(count, width))
        self.upscaling = nn.Sequential(
            nn.ConvTranspose2d(width, width // 4, 2, stride=2), LayerNorm2d(width // 4), nn.GELU(),
            nn.ConvTranspose2d(width // 4, width // 8, 2, stride=2), nn.GELU(),
        )
        self.hypernetworks = nn.ModuleList([MLP((width, width, width, width // 8)) for _ in range(count)])
        self.iou_head = MLP((width, width, width, count))

    def forward(self, image, image_places, sparse, dense):
        own = torch.cat([self.iou_token, self.mask_tokens])
        tokens = torch.cat([own.expand(len(sparse), -1, -1), sparse], dim=1)
        source = image + dense
        places = image_places.expand(len(sparse), -1, -1, -1)
        batch, channels, height, width = source.shape
        tokens, source = self.transformer(source, places, tokens)
        upscaled = self.upscaling(source.transpose(1, 2).view(batch, channels, height, width))
        factors = [net(tokens[:, 1 + i]) for i, net in enumerate(self.hypernetworks)]
        masks = (torch.stack(factors, dim=1) @ upscaled.flatten(2)).view(batch, self.count, *upscaled.shape[2:])
        return masks, torch.sigmoid(self.iou_head(tokens[:, 0]))


def stability(masks, delta: float):
    """How little a mask's area changes if its threshold does."""
    inner = (masks > delta).flatten(-2).sum(dim=-1).float()
    outer = (masks > -delta).flatten(-2).sum(dim=-1).float()
    return torch.where(outer > 0, inner / outer.clamp(min=1), 1.0)


def boxes_of(on):
    """The corners x, y, x, y of what is on, the last pixel included; zeros for nothing."""
    height, width = on.shape[-2:]
    rows, columns = on.any(dim=-1), on.any(dim=-2)
    y, x = torch.arange(height), torch.arange(width)
    top, bottom = torch.where(rows, y, height).amin(-1), torch.where(rows, y, -1).amax(-1)
    left, right = torch.where(columns, x, width).amin(-1), torch.where(columns, x, -1).amax(-1)
    corners = torch.stack([left, top, right, bottom], dim=-1)
    return torch.where(on.flatten(-2).any(-1)[..., None], corners, 0)


class Segmenter(nn.Module):
    def __init__(self, width: int = 32, heads: int = 4):
        super().__init__()
        self.image_encoder = ImageEncoder(width, heads)
        self.prompt_encoder = PromptEncoder(width)
        self.mask_decoder = MaskDecoder(width, heads)

    def prepare(self, image):
        """The image with its longest side at SIZE, normalised, padded at bottom and right; and its size before that."""
        scale = SIZE / max(image.shape[-2:])
        size = tuple(int(side * scale + 0.5) for side in image.shape[-2:])
        image = F.interpolate(image, size=size, mode="bilinear", align_corners=False)
        image = (image - torch.tensor(PIXEL_MEAN)[:, None, None]) / torch.tensor(PIXEL_STD)[:, None, None]
        return F.pad(image, (0, SIZE - size[1], 0, SIZE - size[0])), size

    def choose(self, masks, quality):
        """The first mask if it is stable, else the best of the others."""
        steady = stability(masks[:, 0], STABILITY_DELTA)
        best = 1 + quality[:, 1:].argmax(dim=1)
        index = torch.where(steady >= STABILITY_LIMIT, 0, best)
        row = torch.arange(len(masks))
        return masks[row, index], quality[row, index], steady

    def forward(self, image, points, labels, boxes, masks, has_mask):
        original = image.shape[-2:]
        prepared, size = self.prepare(image)
        ratio = torch.tensor([size[1] / original[1], size[0] / original[0]])
        points, boxes = points * ratio, boxes * ratio.repeat(2)
        embedding = self.image_encoder(prepared)
        sparse, dense = self.prompt_encoder(points, labels, boxes, masks, has_mask)
        low, quality = self.mask_decoder(embedding, self.prompt_encoder.dense_places(), sparse, dense)
        mask, score, steady = self.choose(low, quality)
        full = F.interpolate(mask[:, None], size=(SIZE, SIZE), mode="bilinear", align_corners=False)
        full = full[..., : size[0], : size[1]]
        full = F.interpolate(full, size=original, mode="bilinear", align_corners=False)[:, 0]
        on = full > MASK_THRESHOLD
        area = on.flatten(1).float().mean(dim=1)
        return full, low, quality, score, steady, boxes_of(on), area


def build():
    """The net with the same weights on every run; one image and three prompts."""
    torch.manual_seed(26)
    net = Segmenter()
    for name, parameter in net.named_parameters():
        if "rel_pos" in name or "token" in name.split(".")[-1] or "not_a" in name or "no_mask" in name:
            nn.init.normal_(parameter, std=0.6)
        elif "pos_embed" in name:
            nn.init.normal_(parameter, std=0.4)
        elif "q_proj.weight" in name or "k_proj.weight" in name or "qkv.weight" in name:
            nn.init.normal_(parameter, std=0.25)
        elif "v_proj.weight" in name or "out_proj.weight" in name or "iou_head" in name:
            nn.init.normal_(parameter, std=0.25)
        elif "upscaling" in name or "hypernetworks" in name:
            nn.init.normal_(parameter, std=0.3)
    nn.init.normal_(net.prompt_encoder.gaussian, std=0.7)
    for module in net.modules():
        if isinstance(module, (nn.LayerNorm, LayerNorm2d)):
            nn.init.uniform_(module.weight, 0.7, 1.4)
            nn.init.normal_(module.bias, std=0.2)
    draw = np.random.RandomState(620)
    image = draw.uniform(0, 90, (1, 3, 38, 52))
    image[:, :, 8:27, 10:31] += np.array([120.0, 70.0, 20.0])[:, None, None]
    image[:, :, 20:36, 28:49] += np.array([10.0, 60.0, 130.0])[:, None, None]
    points = np.array([[[18, 14], [40, 30]], [[35, 26], [0, 0]], [[12, 33], [22, 9]]], np.float32)
    labels = np.array([[1, 0], [1, -1], [0, 1]])
    boxes = np.array([[9, 7, 31, 28], [27, 19, 49, 37], [3, 2, 47, 35]], np.float32)
    masks = draw.randn(3, 1, 32, 32).astype(np.float32) * 0.5
    masks[:, :, 10:24, 8:20] += 2.0
    arrays = image.astype(np.float32), points, labels, boxes, masks, np.array([True, False, True])
    return net.eval(), tuple(torch.from_numpy(array) for array in arrays)
