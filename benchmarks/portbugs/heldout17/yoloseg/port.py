"""The one-stage instance segmenter in MindSpore: the correct port."""

from __future__ import annotations

import numpy as np
import mindspore as ms
from mindspore import mint, nn, ops


def conv2d(cin, cout, kernel=1, stride=1, group=1, bias=False):
    """A convolution padded as in PyTorch."""
    return nn.Conv2d(cin, cout, kernel, stride, pad_mode="pad", padding=kernel // 2, group=group, has_bias=bias)


def cell_centres(sizes, strides, offset=0.5):
    """The centres of the cells of all levels in pixels and, as a column, their strides."""
    centres, steps = [], []
    for (h, w), stride in zip(sizes, strides):
        ys = (ops.arange(h).astype(ms.float32) + offset) * stride
        xs = (ops.arange(w).astype(ms.float32) + offset) * stride
        ys, xs = ops.meshgrid(ys, xs, indexing="ij")
        centres.append(ops.stack([xs.reshape(-1), ys.reshape(-1)], axis=1))
        steps.append(ops.full((h * w, 1), float(stride), dtype=ms.float32))
    return ops.cat(centres, axis=0), ops.cat(steps, axis=0)


def decode_boxes(centres, distances, size):
    """Corners from the distances to the four sides, clipped to the image."""
    h, w = size
    x, y = centres[:, 0], centres[:, 1]
    left, top, right, bottom = ops.unbind(distances, dim=-1)
    x1, x2 = ops.clamp(x - left, 0, w), ops.clamp(x + right, 0, w)
    y1, y2 = ops.clamp(y - top, 0, h), ops.clamp(y + bottom, 0, h)
    return ops.stack([x1, y1, x2, y2], axis=-1)


def box_overlaps(boxes, eps=1e-6):
    """IoU of every pair of boxes of an image."""
    x1, y1, x2, y2 = ops.unbind(boxes, dim=-1)
    area = (x2 - x1) * (y2 - y1)
    w = mint.minimum(x2[:, :, None], x2[:, None]) - mint.maximum(x1[:, :, None], x1[:, None])
    h = mint.minimum(y2[:, :, None], y2[:, None]) - mint.maximum(y1[:, :, None], y1[:, None])
    inter = ops.relu(w) * ops.relu(h)
    return inter / (area[:, :, None] + area[:, None] - inter + eps)


def take_rows(x, index):
    """Rows of x (B, N, ...) by index (B, K), as one flat gather."""
    b, n = x.shape[:2]
    flat = index + ops.arange(b).astype(index.dtype)[:, None] * n
    return ops.gather(x.reshape((b * n,) + x.shape[2:]), flat, 0)


def matrix_nms(scores, labels, boxes, sigma=2.0):
    """Matrix NMS with the gaussian kernel; the scores are in falling order."""
    k = scores.shape[1]
    upper = ms.Tensor(np.triu(np.ones((k, k), np.float32), 1))
    same = ops.equal(labels[:, None, :], labels[:, :, None]).astype(ms.float32)
    iou = box_overlaps(boxes) * upper * same
    worst = ops.amax(iou, axis=1)
    decay = ops.exp(-sigma * (iou ** 2 - worst[:, :, None] ** 2))
    return scores * ops.amin(decay, axis=1)


def crop(masks, boxes):
    """Masks without what is outside of their boxes."""
    h, w = masks.shape[-2:]
    x1, y1, x2, y2 = [c[:, :, None, None] for c in ops.unbind(boxes, dim=-1)]
    col = ops.arange(w).astype(boxes.dtype).reshape(1, 1, 1, w)
    row = ops.arange(h).astype(boxes.dtype).reshape(1, 1, h, 1)
    across = ops.logical_and(col >= x1, col < x2)
    down = ops.logical_and(row >= y1, row < y2)
    return masks * ops.logical_and(across, down).astype(masks.dtype)


class ConvModule(nn.Cell):
    """Convolution, norm, SiLU."""

    def __init__(self, cin, cout, kernel=1, stride=1, group=1):
        super().__init__()
        self.conv = conv2d(cin, cout, kernel, stride, group)
        self.norm = nn.BatchNorm2d(cout, eps=1e-3, momentum=0.97)

    def construct(self, x):
        return mint.nn.functional.silu(self.norm(self.conv(x)))


class ResUnit(nn.Cell):
    """Convolution and depthwise convolution, with or without the shortcut."""

    def __init__(self, width, shortcut):
        super().__init__()
        self.conv1 = ConvModule(width, width, 3)
        self.conv2 = ConvModule(width, width, 5, group=width)
        self.shortcut = shortcut

    def construct(self, x):
        out = self.conv2(self.conv1(x))
        if self.shortcut:
            out = out + x
        return out


class CSPLayer(nn.Cell):
    """C2f, with the channel attention written inside."""

    def __init__(self, cin, cout, depth=1, shortcut=True, attention=False):
        super().__init__()
        mid = cout // 2
        self.main_conv = ConvModule(cin, 2 * mid)
        self.blocks = nn.CellList([ResUnit(mid, shortcut) for _ in range(depth)])
        self.attention = attention
        if attention:
            self.fc = nn.Conv2d((2 + depth) * mid, (2 + depth) * mid, 1, has_bias=True)
            self.gate = nn.HSigmoid()
        self.final_conv = ConvModule((2 + depth) * mid, cout)

    def construct(self, x):
        skip, last = ops.chunk(self.main_conv(x), 2, axis=1)
        parts = [skip, last]
        for block in self.blocks:
            last = block(last)
            parts.append(last)
        x = ops.cat(parts, axis=1)
        if self.attention:
            x = x * self.gate(self.fc(ops.mean(x, (2, 3), keep_dims=True)))
        return self.final_conv(x)


class SPPF(nn.Cell):
    """Three poolings, one after the other."""

    def __init__(self, cin, cout, kernel=5):
        super().__init__()
        self.conv1 = ConvModule(cin, cin // 2)
        self.pool = nn.MaxPool2d(kernel, stride=1, pad_mode="same")
        self.conv2 = ConvModule(cin // 2 * 4, cout)

    def construct(self, x):
        x = self.conv1(x)
        once = self.pool(x)
        twice = self.pool(once)
        return self.conv2(ops.cat([x, once, twice, self.pool(twice)], axis=1))


class Backbone(nn.Cell):
    """The stem and the stages to strides 4, 8, 16 and 32."""

    def __init__(self):
        super().__init__()
        self.stem_conv = nn.Conv2d(3, 16, 3, stride=2, pad_mode="pad", padding=1)
        self.stem_norm = nn.BatchNorm2d(16, eps=1e-3, momentum=0.97)
        self.stage1 = nn.SequentialCell(ConvModule(16, 24, 3, 2), CSPLayer(24, 24, 1))
        self.stage2 = nn.SequentialCell(ConvModule(24, 40, 3, 2), CSPLayer(40, 40, 2))
        self.stage3 = nn.SequentialCell(ConvModule(40, 56, 3, 2), CSPLayer(56, 56, 2, attention=True))
        self.stage4 = nn.SequentialCell(
            ConvModule(56, 72, 3, 2), SPPF(72, 72), CSPLayer(72, 72, 1, shortcut=False, attention=True))

    def construct(self, x):
        x = mint.nn.functional.silu(self.stem_norm(self.stem_conv(x)))
        c3 = self.stage2(self.stage1(x))
        c4 = self.stage3(c3)
        return c3, c4, self.stage4(c4)


class Neck(nn.Cell):
    """PAFPN of three levels, written out."""

    def __init__(self, w3=40, w4=56, w5=72, out=32):
        super().__init__()
        self.up = nn.Upsample(scale_factor=2.0, mode="nearest", recompute_scale_factor=True)
        self.reduce5 = ConvModule(w5, w4)
        self.reduce4 = ConvModule(w4, w3)
        self.down_csp4 = CSPLayer(2 * w4, w4, shortcut=False)
        self.down_csp3 = CSPLayer(2 * w3, w3, shortcut=False)
        self.stride3 = ConvModule(w3, w3, 3, 2)
        self.stride4 = ConvModule(w4, w4, 3, 2)
        self.up_csp4 = CSPLayer(2 * w3, w4, shortcut=False)
        self.up_csp5 = CSPLayer(2 * w4, w5, shortcut=False)
        self.out3 = ConvModule(w3, out, 3)
        self.out4 = ConvModule(w4, out, 3)
        self.out5 = ConvModule(w5, out, 3)

    def construct(self, c3, c4, c5):
        r5 = self.reduce5(c5)
        r4 = self.reduce4(self.down_csp4(ops.cat([self.up(r5), c4], axis=1)))
        p3 = self.down_csp3(ops.cat([self.up(r4), c3], axis=1))
        p4 = self.up_csp4(ops.cat([self.stride3(p3), r4], axis=1))
        p5 = self.up_csp5(ops.cat([self.stride4(p4), r5], axis=1))
        return [self.out3(p3), self.out4(p4), self.out5(p5)]


class DetectionHead(nn.Cell):
    """Towers with shared convolutions, distributions of distances and the quality that is read from them."""

    def __init__(self, num_classes, width=32, stacked=2, levels=3, reg_max=8, protos=10, best=4):
        super().__init__()
        self.num_classes = num_classes
        self.bins = reg_max + 1
        self.best = best
        self.cls_convs = nn.CellList([conv2d(width, width, 3) for _ in range(stacked)])
        self.reg_convs = nn.CellList([conv2d(width, width, 3) for _ in range(stacked)])
        self.cls_norms = nn.CellList(
            [nn.CellList([nn.BatchNorm2d(width, eps=1e-3) for _ in range(stacked)]) for _ in range(levels)])
        self.reg_norms = nn.CellList(
            [nn.CellList([nn.BatchNorm2d(width, eps=0.001) for _ in range(stacked)]) for _ in range(levels)])
        self.to_cls = conv2d(width, num_classes, bias=True)
        self.to_reg = conv2d(width, 4 * self.bins, 3, bias=True)
        self.to_coef = conv2d(width, protos, bias=True)
        self.level_scale = ms.Parameter(ops.ones(levels, ms.float32), name="level_scale")
        self.quality1 = conv2d(4 * (best + 1), 24, bias=True)
        self.quality2 = conv2d(24, 1, bias=True)
        self.project = ms.Tensor(np.arange(self.bins, dtype=np.float32))

    def tower(self, x, convs, norms):
        for conv, norm in zip(convs, norms):
            x = mint.nn.functional.silu(norm(conv(x)))
        return x

    def quality(self, prob):
        b, _, _, h, w = prob.shape
        # ops.topk wants the axis at the end
        top, _ = ops.topk(prob.transpose(0, 1, 3, 4, 2), self.best)
        top = top.transpose(0, 1, 4, 2, 3)
        stat = ops.cat([top, ops.mean(top, 2, keep_dims=True)], axis=2).reshape(b, -1, h, w)
        return ops.sigmoid(self.quality2(ops.relu(self.quality1(stat))))

    def construct(self, feats):
        scores, distances, coefs = [], [], []
        for i, feat in enumerate(feats):
            cls_feat = self.tower(feat, self.cls_convs, self.cls_norms[i])
            reg_feat = self.tower(feat, self.reg_convs, self.reg_norms[i])
            reg = self.to_reg(reg_feat) * self.level_scale[i]
            b, _, h, w = reg.shape
            prob = ops.softmax(reg.reshape(b, 4, self.bins, h, w), axis=2)
            score = ops.sigmoid(self.to_cls(cls_feat)) * self.quality(prob)
            distance = (prob * self.project.reshape(1, 1, -1, 1, 1)).sum(axis=2)
            coef = self.to_coef(reg_feat)
            scores.append(score.reshape(b, self.num_classes, h * w))
            distances.append(distance.reshape(b, 4, h * w))
            coefs.append(coef.reshape(b, -1, h * w))
        return [ops.cat(x, axis=2).swapaxes(1, 2) for x in (scores, distances, coefs)]


class MaskBranch(nn.Cell):
    """The prototypes."""

    def __init__(self, width=32, levels=3, protos=10):
        super().__init__()
        self.fuse = nn.Conv2d(width * levels, width, 1, has_bias=True)
        self.conv1 = ConvModule(width + 2, width, 3)
        self.conv2 = ConvModule(width, width, 3)
        self.upsample = nn.Conv2dTranspose(width, width, 2, stride=2, pad_mode="valid", has_bias=True)
        self.leaky = nn.LeakyReLU(0.1)
        self.project = nn.Conv2d(width, protos, 1, has_bias=True)

    def construct(self, feats):
        b, _, h, w = feats[0].shape
        maps = [feats[0]] + [ops.interpolate(f, size=(h, w), mode="bilinear") for f in feats[1:]]
        x = self.fuse(ops.cat(maps, axis=1))
        cols = ops.broadcast_to(ops.linspace(-1, 1, w).reshape(1, 1, 1, w), (b, 1, h, w))
        rows = ops.broadcast_to(ops.linspace(-1, 1, h).reshape(1, 1, h, 1), (b, 1, h, w))
        x = self.conv2(self.conv1(ops.cat([x, cols, rows], axis=1)))
        return self.project(self.leaky(self.upsample(x)))


class InstanceSegmenter(nn.Cell):
    """Pictures and their letterboxes in, the best instances out."""

    def __init__(self, num_classes=7, pre_nms=40, max_det=12, score_thr=0.29):
        super().__init__()
        self.num_classes = num_classes
        self.pre_nms = pre_nms
        self.max_det = max_det
        self.score_thr = score_thr
        self.strides = (8, 16, 32)
        self.backbone = Backbone()
        self.neck = Neck()
        self.bbox_head = DetectionHead(num_classes)
        self.mask_branch = MaskBranch()
        # for pictures as BGR
        self.mean = ms.Tensor(np.array([103.53, 116.28, 123.675], np.float32).reshape(1, 3, 1, 1))
        self.std = ms.Tensor(np.array([57.375, 57.12, 58.395], np.float32).reshape(1, 3, 1, 1))

    def on_picture(self, centres, meta):
        """Whether a point is in the picture rather than in the border of the letterbox."""
        low = meta[:, None, 1:3]
        high = low + meta[:, None, 3:5] * meta[:, None, 0:1]
        both = ops.logical_and(centres[None] >= low, centres[None] < high)
        return ops.prod(both.astype(ms.float32), axis=-1, keep_dims=True)

    def instance_masks(self, coefs, protos, boxes, size):
        """Soft masks in their boxes, and the mean of each, weighted by itself."""
        b, c, h, w = protos.shape
        masks = ops.bmm(coefs, protos.reshape(b, c, h * w)).reshape(b, -1, h, w)
        to_proto = ms.Tensor([w / size[1], h / size[0], w / size[1], h / size[0]], ms.float32)
        masks = crop(ops.sigmoid(masks), boxes * to_proto)
        sureness = ops.square(masks).sum(axis=(2, 3)) / ops.clamp(masks.sum(axis=(2, 3)), min=1.0)
        return masks, sureness

    def to_original(self, boxes, meta):
        """Undo the letterbox; 1 is the whole width or height."""
        shift = ops.tile(meta[:, 1:3], (1, 2))[:, None]
        limit = ops.tile(meta[:, 3:5], (1, 2))[:, None]
        boxes = (boxes - shift) / meta[:, 0].reshape(-1, 1, 1)
        return ops.clamp(boxes / limit, 0.0, 1.0)

    def construct(self, images, meta):
        size = images.shape[2:]
        x = (ops.flip(images, (1,)) - self.mean) / self.std
        feats = self.neck(*self.backbone(x))
        scores, distances, coefs = self.bbox_head(feats)
        protos = self.mask_branch(feats)
        centres, steps = cell_centres([f.shape[2:] for f in feats], self.strides)
        boxes = decode_boxes(centres, distances * steps, size)
        scores = scores * self.on_picture(centres, meta)

        scores, flat = ops.topk(scores.reshape(scores.shape[0], -1), self.pre_nms)
        labels = flat % self.num_classes
        rows = flat // self.num_classes
        boxes, coefs = take_rows(boxes, rows), take_rows(coefs, rows)
        masks, sureness = self.instance_masks(coefs, protos, boxes, size)

        scores, order = ops.sort(scores * sureness, axis=1, descending=True)
        boxes = take_rows(boxes, order)
        labels = take_rows(labels, order)
        masks = take_rows(masks, order)
        scores = matrix_nms(scores, labels, boxes)

        scores, keep = ops.topk(scores, self.max_det)
        boxes, labels, masks = take_rows(boxes, keep), take_rows(labels, keep), take_rows(masks, keep)
        valid = (scores > self.score_thr).astype(ms.float32)
        masks = ops.interpolate(masks, size=size, mode="bilinear", align_corners=False)
        boxes = self.to_original(boxes, meta)
        dets = ops.cat([boxes, scores.expand_dims(-1)], axis=-1) * valid[..., None]
        labels = ops.where(valid > 0, labels, ops.full_like(labels, -1)).astype(ms.int64)
        return dets, labels, masks * valid[..., None, None]


def build():
    """The net alone; weights and inputs come from the reference."""
    return InstanceSegmenter()
