"""A small two-stage instance segmenter in the way of Mask R-CNN, in PyTorch: the reference."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

STRIDES = (4, 8, 16, 32)
LONGEST = math.log(1000.0 / 16)


def base_anchors(size: float, ratios):
    """The anchors (x1, y1, x2, y2) of one size around the origin; a ratio is height over width."""
    ratios = torch.tensor(ratios)
    heights = size * torch.sqrt(ratios)
    widths = size / torch.sqrt(ratios)
    return torch.stack([-widths, -heights, widths, heights], dim=1) / 2


def decode(deltas, boxes, weights):
    """Boxes moved and stretched by deltas (dx, dy, dw, dh)."""
    wx, wy, ww, wh = weights
    widths = boxes[..., 2] - boxes[..., 0]
    heights = boxes[..., 3] - boxes[..., 1]
    cx = boxes[..., 0] + 0.5 * widths
    cy = boxes[..., 1] + 0.5 * heights
    dx, dy, dw, dh = (deltas / deltas.new_tensor([wx, wy, ww, wh])).unbind(-1)
    cx = dx * widths + cx
    cy = dy * heights + cy
    widths = torch.exp(dw.clamp(max=LONGEST)) * widths
    heights = torch.exp(dh.clamp(max=LONGEST)) * heights
    return torch.stack([cx - 0.5 * widths, cy - 0.5 * heights, cx + 0.5 * widths, cy + 0.5 * heights], dim=-1)


def clip(boxes, sizes):
    """Boxes (B, N, 4) cut at the border of each picture; sizes (B, 2) are height and width."""
    height, width = sizes[:, 0, None].float(), sizes[:, 1, None].float()
    zero = torch.zeros_like(height)
    x1, y1, x2, y2 = boxes.unbind(-1)
    x1, x2 = (torch.maximum(torch.minimum(x, width), zero) for x in (x1, x2))
    y1, y2 = (torch.maximum(torch.minimum(y, height), zero) for y in (y1, y2))
    return torch.stack([x1, y1, x2, y2], dim=-1)


def take(values, index):
    """Rows of values (B, N, ...) at index (B, K)."""
    return values[torch.arange(len(values))[:, None], index]


def pairwise_iou(boxes):
    """The overlap of each box with each other: (B, N, N)."""
    area = (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])
    corner1 = torch.maximum(boxes[:, :, None, :2], boxes[:, None, :, :2])
    corner2 = torch.minimum(boxes[:, :, None, 2:], boxes[:, None, :, 2:])
    common = (corner2 - corner1).clamp(min=0).prod(dim=-1)
    return common / (area[:, :, None] + area[:, None, :] - common + 1e-6)


def sample(feature, ys, xs):
    """Values of a map (B, C, H, W) at all pairs of ys and xs (B, R, P): (B, R, P, P, C)."""
    height, width = feature.shape[-2:]
    inside = ((ys > -1) & (ys < height))[..., :, None] & ((xs > -1) & (xs < width))[..., None, :]
    ys, xs = ys.clamp(0, height - 1), xs.clamp(0, width - 1)
    top, left = ys.floor().long(), xs.floor().long()
    bottom, right = (top + 1).clamp(max=height - 1), (left + 1).clamp(max=width - 1)
    batch = torch.arange(len(feature))[:, None, None, None]
    channels_last = feature.permute(0, 2, 3, 1)

    def look(y, x):
        return channels_last[batch, y[..., :, None], x[..., None, :]]

    fy = (ys - top)[..., :, None, None]
    fx = (xs - left)[..., None, :, None]
    upper = look(top, left) * (1 - fx) + look(top, right) * fx
    lower = look(bottom, left) * (1 - fx) + look(bottom, right) * fx
    return (upper * (1 - fy) + lower * fy) * inside[..., None]


def paste(masks, boxes, height: int, width: int):
    """Masks (B, D, M, M) drawn into pictures at their boxes, bilinear, zero outside."""
    side = masks.shape[-1]
    places = torch.arange(side, dtype=torch.float32)

    def weights(length, low, high):
        pixels = torch.arange(length, dtype=torch.float32) + 0.5
        extent = (high - low).clamp(min=1.0)
        where = (pixels - low[..., None]) / extent[..., None] * side - 0.5
        return (1 - (where[..., None] - places).abs()).clamp(min=0)

    rows = weights(height, boxes[..., 1], boxes[..., 3])
    columns = weights(width, boxes[..., 0], boxes[..., 2])
    return rows @ masks @ columns.transpose(-1, -2)


class FrozenBatchNorm(nn.Module):
    """A batch norm whose statistics and weights are constants."""

    def __init__(self, channels: int, eps: float = 1e-5):
        super().__init__()
        self.eps = eps
        self.register_buffer("weight", torch.ones(channels))
        self.register_buffer("bias", torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x):
        scale = self.weight * (self.running_var + self.eps).rsqrt()
        shift = self.bias - self.running_mean * scale
        return x * scale[:, None, None] + shift[:, None, None]


class Residual(nn.Module):
    """Two convolutions and a shortcut; the second one may be dilated."""

    def __init__(self, inner: int, outer: int, stride: int = 1, dilation: int = 1):
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.norm1 = FrozenBatchNorm(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, dilation, dilation, bias=False)
        self.norm2 = FrozenBatchNorm(outer)
        self.shortcut = None
        if stride != 1 or inner != outer:
            self.shortcut = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), FrozenBatchNorm(outer))

    def forward(self, x):
        y = functional.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        if self.shortcut is not None:
            x = self.shortcut(x)
        return functional.relu(x + y)


class Backbone(nn.Module):
    """A stem and three stages; gives the maps at strides 4, 8 and 16."""

    def __init__(self, widths=(16, 24, 40)):
        super().__init__()
        self.conv = nn.Conv2d(3, widths[0], 7, 2, 3, bias=False)
        self.norm = FrozenBatchNorm(widths[0])
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.stages = nn.ModuleList(
            [
                nn.Sequential(Residual(widths[0], widths[0]), Residual(widths[0], widths[0])),
                nn.Sequential(Residual(widths[0], widths[1], 2), Residual(widths[1], widths[1])),
                nn.Sequential(Residual(widths[1], widths[2], 2), Residual(widths[2], widths[2], dilation=2)),
            ]
        )

    def forward(self, x):
        x = self.pool(functional.relu(self.norm(self.conv(x))))
        maps = []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        return maps


class Pyramid(nn.Module):
    """Maps of one width, each with what the coarser ones know; one coarser map on top."""

    def __init__(self, widths=(16, 24, 40), channels: int = 32):
        super().__init__()
        self.inner = nn.ModuleList([nn.Conv2d(width, channels, 1) for width in widths])
        self.outer = nn.ModuleList([nn.Conv2d(channels, channels, 3, padding=1) for _ in widths])

    def forward(self, maps):
        last = self.inner[-1](maps[-1])
        results = [self.outer[-1](last)]
        for i in range(len(maps) - 2, -1, -1):
            lateral = self.inner[i](maps[i])
            last = lateral + functional.interpolate(last, size=lateral.shape[-2:], mode="nearest")
            results.insert(0, self.outer[i](last))
        results.append(functional.max_pool2d(results[-1], 1, 2))
        return results


class Proposals(nn.Module):
    """Scores anchors on all maps and gives the best boxes of each picture."""

    def __init__(self, channels: int = 32, ratios=(0.5, 1.0, 2.0), before: int = 12, after: int = 16):
        super().__init__()
        self.before, self.after = before, after
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.score = nn.Conv2d(channels, len(ratios), 1)
        self.delta = nn.Conv2d(channels, 4 * len(ratios), 1)
        bases = torch.stack([base_anchors(6.0 * stride, ratios) for stride in STRIDES])
        self.register_buffer("bases", bases, persistent=False)

    def anchors(self, level: int, height: int, width: int):
        """Every base anchor around the middle of every cell: (H * W * A, 4)."""
        y = (torch.arange(height) + 0.5) * STRIDES[level]
        x = (torch.arange(width) + 0.5) * STRIDES[level]
        y, x = torch.meshgrid(y, x, indexing="ij")
        shifts = torch.stack([x, y, x, y], dim=-1).reshape(-1, 1, 4)
        return (shifts + self.bases[level]).reshape(-1, 4)

    def forward(self, maps, sizes):
        boxes, scores = [], []
        for level, x in enumerate(maps):
            batch, _, height, width = x.shape
            x = functional.relu(self.conv(x))
            score = self.score(x).permute(0, 2, 3, 1).flatten(1)
            delta = self.delta(x).view(batch, -1, 4, height, width).permute(0, 3, 4, 1, 2).reshape(batch, -1, 4)
            anchors = self.anchors(level, height, width).expand(batch, -1, -1)
            score, index = score.topk(self.before, dim=1)
            boxes.append(decode(take(delta, index), take(anchors, index), (1.0, 1.0, 1.0, 1.0)))
            scores.append(score)
        boxes = clip(torch.cat(boxes, dim=1), sizes)
        scores = torch.cat(scores, dim=1).sigmoid()
        large = ((boxes[..., 2] - boxes[..., 0]) >= 8) & ((boxes[..., 3] - boxes[..., 1]) >= 8)
        scores = torch.where(large, scores, scores - 1.0)
        scores, index = scores.topk(self.after, dim=1)
        return take(boxes, index), scores


class Pooler(nn.Module):
    """RoI align: each box is cut from the map that fits its size."""

    def __init__(self, side: int, ratio: int = 2, levels: int = 3, canonical: float = 28.0, middle: int = 1):
        super().__init__()
        self.side, self.ratio, self.levels = side, ratio, levels
        self.canonical, self.middle = canonical, middle

    def forward(self, maps, boxes):
        batch, count = boxes.shape[:2]
        extent = boxes[..., 2:] - boxes[..., :2]
        size = torch.sqrt(extent.prod(dim=-1))
        level = torch.floor(self.middle + torch.log2(size / self.canonical + 1e-6)).clamp(0, self.levels - 1)
        steps = self.side * self.ratio
        places = (torch.arange(steps) + 0.5) / steps
        pooled = torch.zeros(batch, count, steps, steps, maps[0].shape[1])
        for i in range(self.levels):
            corner = boxes[..., :2] / STRIDES[i] - 0.5
            length = extent / STRIDES[i]
            xs = corner[..., 0, None] + length[..., 0, None] * places
            ys = corner[..., 1, None] + length[..., 1, None] * places
            pooled = torch.where((level == i)[..., None, None, None], sample(maps[i], ys, xs), pooled)
        cells = pooled.view(batch * count, self.side, self.ratio, self.side, self.ratio, -1)
        return cells.mean(dim=(2, 4)).permute(0, 3, 1, 2)


class BoxHead(nn.Module):
    """The class of a cut-out and one refined box for each class."""

    def __init__(self, channels: int = 32, side: int = 6, width: int = 64, classes: int = 5):
        super().__init__()
        self.fc1 = nn.Linear(channels * side * side, width)
        self.fc2 = nn.Linear(width, width)
        self.label = nn.Linear(width, classes)
        self.delta = nn.Linear(width, 4 * classes)

    def forward(self, x):
        x = functional.relu(self.fc1(x.flatten(1)))
        x = functional.relu(self.fc2(x))
        return self.label(x), self.delta(x)


class MaskHead(nn.Module):
    """A mask of twice the cut-out's size for each class."""

    def __init__(self, channels: int = 32, classes: int = 5):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.GroupNorm(4, channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.up = nn.ConvTranspose2d(channels, channels, 2, 2)
        self.logits = nn.Conv2d(channels, classes, 1)

    def forward(self, x):
        x = functional.relu(self.norm(self.conv1(x)))
        x = x + functional.relu(self.conv2(x))
        return self.logits(functional.relu(self.up(x)))


class Heads(nn.Module):
    """Boxes, classes and masks of the proposals."""

    def __init__(self, keep: int = 5, sigma: float = 2.0):
        super().__init__()
        self.keep, self.sigma = keep, sigma
        self.box_pooler = Pooler(6)
        self.box = BoxHead()
        self.mask_pooler = Pooler(8)
        self.mask = MaskHead()

    def suppress(self, boxes, scores, labels):
        """Matrix NMS: the scores of boxes that repeat a better one decay."""
        scores, order = scores.sort(dim=1, descending=True)
        boxes, labels = take(boxes, order), take(labels, order)
        same = labels[:, :, None] == labels[:, None, :]
        overlap = (pairwise_iou(boxes) * same).triu(diagonal=1)
        most = overlap.amax(dim=1)
        decay = torch.exp(-self.sigma * (overlap**2 - most[:, :, None] ** 2)).amin(dim=1)
        return boxes, scores * decay, labels

    def forward(self, maps, boxes, objectness, sizes):
        batch, count = boxes.shape[:2]
        logits, deltas = self.box(self.box_pooler(maps, boxes))
        probabilities = logits.softmax(dim=-1).view(batch, count, -1)
        deltas = deltas.view(batch, count, -1, 4)
        best, labels = probabilities[..., 1:].max(dim=-1)
        labels = labels + 1
        delta = deltas.gather(2, labels[..., None, None].expand(-1, -1, 1, 4)).squeeze(2)
        boxes = clip(decode(delta, boxes, (10.0, 10.0, 5.0, 5.0)), sizes)
        boxes, scores, labels = self.suppress(boxes, torch.sqrt(best * objectness.clamp(min=0)), labels)
        scores, index = scores.topk(self.keep, dim=1)
        boxes, labels = take(boxes, index), take(labels, index)
        masks = self.mask(self.mask_pooler(maps, boxes))
        masks = masks[torch.arange(len(masks)), labels.flatten()].view(batch, self.keep, *masks.shape[-2:])
        return boxes, scores, labels, masks.sigmoid()


class Segmenter(nn.Module):
    """Pictures in, the best instances of each out: boxes (x, y, w, h), scores, classes and masks."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1), persistent=False)
        self.backbone = Backbone()
        self.pyramid = Pyramid()
        self.proposals = Proposals()
        self.heads = Heads()

    def forward(self, pictures, sizes):
        height, width = pictures.shape[-2:]
        inside = (torch.arange(height)[:, None] < sizes[:, 0, None, None]) & (
            torch.arange(width)[None, :] < sizes[:, 1, None, None]
        )
        inside = inside[:, None].float()
        x = (pictures - self.mean) / self.std * inside
        maps = self.pyramid(self.backbone(x))
        boxes, objectness = self.proposals(maps, sizes)
        boxes, scores, labels, masks = self.heads(maps, boxes, objectness, sizes)
        masks = paste(masks, boxes, height, width) * inside
        quality = (masks**2).sum(dim=(2, 3)) / masks.sum(dim=(2, 3)).clamp(min=1e-3)
        boxes = torch.cat([boxes[..., :2], boxes[..., 2:] - boxes[..., :2]], dim=-1)
        return boxes, scores * quality, labels, masks


def build():
    """The net with the same weights on every run, and two pictures of different size in one batch."""
    torch.manual_seed(82)
    net = Segmenter()
    for module in net.modules():
        if isinstance(module, FrozenBatchNorm):
            nn.init.uniform_(module.weight, 0.6, 1.2)
            nn.init.normal_(module.bias, std=0.2)
            nn.init.normal_(module.running_mean, std=0.3)
            nn.init.uniform_(module.running_var, 0.8, 2.0)
        elif isinstance(module, nn.GroupNorm):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.2)
        elif isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.1)
    for convolution in (*net.pyramid.inner, *net.pyramid.outer):
        nn.init.normal_(convolution.weight, std=0.6 / math.sqrt(convolution.weight[0].numel()))
    nn.init.normal_(net.proposals.delta.weight, std=0.03)
    nn.init.normal_(net.proposals.score.weight, std=0.25)
    nn.init.normal_(net.heads.mask.logits.weight, std=0.1)
    nn.init.normal_(net.heads.box.label.weight, std=0.12)
    nn.init.normal_(net.heads.box.delta.weight, std=0.07)
    rough = torch.rand(2, 3, 13, 15)
    pictures = functional.interpolate(rough, size=(100, 116), mode="bicubic").clamp(0, 1)
    pictures = (pictures + 0.1 * torch.rand(2, 3, 100, 116)).clamp(0, 1)
    sizes = torch.tensor([[100, 116], [84, 98]])
    seen = []
    hook = net.heads.box.label.register_forward_hook(lambda layer, given, logits: seen.append(logits))
    with torch.no_grad():
        net.eval()(pictures, sizes)
        net.heads.box.label.bias -= seen[0].mean(dim=0)  # no class is the common one, as after training
    hook.remove()
    return net, (pictures, sizes)
