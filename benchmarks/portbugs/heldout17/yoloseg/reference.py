"""A one-stage detector with instance masks in PyTorch: C2f blocks, SPPF, PAFPN, a GFL head with prototypes, matrix NMS."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


def autopad(kernel, padding=None, dilation=1):
    """Padding for the same size."""
    if dilation > 1:
        kernel = dilation * (kernel - 1) + 1
    return kernel // 2 if padding is None else padding


def make_points(sizes, strides, offset=0.5, device=None):
    """The centres of all cells of all levels in pixels, (A, 2), and the strides, (A, 1)."""
    points, steps = [], []
    for (height, width), stride in zip(sizes, strides):
        xs = (torch.arange(width, dtype=torch.float32, device=device) + offset) * stride
        ys = (torch.arange(height, dtype=torch.float32, device=device) + offset) * stride
        ys, xs = torch.meshgrid(ys, xs, indexing="ij")
        points.append(torch.stack((xs, ys), dim=-1).view(-1, 2))
        steps.append(torch.full((height * width, 1), float(stride), device=device))
    return torch.cat(points), torch.cat(steps)


def distance2bbox(points, distance, max_shape=None):
    """Decode (left, top, right, bottom) around points to (x1, y1, x2, y2)."""
    lt, rb = distance.chunk(2, dim=-1)
    boxes = torch.cat((points - lt, points + rb), dim=-1)
    if max_shape is not None:
        height, width = max_shape
        boxes[..., 0::2] = boxes[..., 0::2].clamp(0, width)
        boxes[..., 1::2] = boxes[..., 1::2].clamp(0, height)
    return boxes


def pairwise_iou(a, b, eps=1e-6):
    """The IoU of each box of a (B, N, 4) with each box of b (B, M, 4)."""
    top_left = torch.maximum(a[:, :, None, :2], b[:, None, :, :2])
    bottom_right = torch.minimum(a[:, :, None, 2:], b[:, None, :, 2:])
    inter = (bottom_right - top_left).clamp(min=0).prod(dim=-1)
    area_a = (a[..., 2:] - a[..., :2]).prod(dim=-1)
    area_b = (b[..., 2:] - b[..., :2]).prod(dim=-1)
    return inter / (area_a[:, :, None] + area_b[:, None, :] - inter + eps)


def gather_rows(x, index):
    """x (B, N, ...) at index (B, K)."""
    shape = index.shape + (1,) * (x.dim() - 2)
    return x.gather(1, index.view(shape).expand(-1, -1, *x.shape[2:]))


def matrix_nms(scores, labels, boxes, kernel="gaussian", sigma=2.0):
    """Decay the scores, which are sorted, by the overlap with better boxes of the same class (SOLOv2)."""
    iou = pairwise_iou(boxes, boxes).triu(diagonal=1)
    same = (labels[:, :, None] == labels[:, None, :]).to(iou.dtype)
    decay_iou = iou * same
    compensate = decay_iou.max(dim=1).values[:, :, None]
    if kernel == "gaussian":
        decay = torch.exp(-sigma * decay_iou ** 2) / torch.exp(-sigma * compensate ** 2)
    elif kernel == "linear":
        decay = (1 - decay_iou) / (1 - compensate)
    else:
        raise NotImplementedError(kernel)
    return scores * decay.min(dim=1).values


def crop_masks(masks, boxes):
    """Zero the masks (B, N, h, w) outside of their boxes (B, N, 4), which are in the masks' pixels."""
    height, width = masks.shape[-2:]
    x1, y1, x2, y2 = boxes[:, :, :, None, None].unbind(dim=2)
    cols = torch.arange(width, device=masks.device, dtype=boxes.dtype)[None, None, None, :]
    rows = torch.arange(height, device=masks.device, dtype=boxes.dtype)[None, None, :, None]
    inside = (cols >= x1) & (cols < x2) & (rows >= y1) & (rows < y2)
    return masks * inside.to(masks.dtype)


class ConvBN(nn.Module):
    """Convolution, batch norm, SiLU."""

    def __init__(self, c1, c2, k=1, s=1, g=1, d=1, act=True):
        super().__init__()
        self.conv = nn.Conv2d(c1, c2, k, s, autopad(k, None, d), groups=g, dilation=d, bias=False)
        self.bn = nn.BatchNorm2d(c2, eps=1e-3, momentum=0.03)
        self.act = nn.SiLU() if act else nn.Identity()

    def forward(self, x):
        return self.act(self.bn(self.conv(x)))


class Bottleneck(nn.Module):
    """A 3x3 convolution, a depthwise 5x5 one, and a shortcut."""

    def __init__(self, width, shortcut=True):
        super().__init__()
        self.cv1 = ConvBN(width, width, 3)
        self.cv2 = ConvBN(width, width, 5, g=width)
        self.add = shortcut

    def forward(self, x):
        y = self.cv2(self.cv1(x))
        return x + y if self.add else y


class ChannelAttention(nn.Module):
    """A factor for each channel from the mean of the map."""

    def __init__(self, width):
        super().__init__()
        self.fc = nn.Conv2d(width, width, 1)
        self.act = nn.Hardsigmoid()

    def forward(self, x):
        return x * self.act(self.fc(x.mean(dim=(2, 3), keepdim=True)))


class C2f(nn.Module):
    """CSP with two convolutions; all bottlenecks' results are kept."""

    def __init__(self, c1, c2, n=1, shortcut=True, attention=False, e=0.5):
        super().__init__()
        self.c = int(c2 * e)
        self.cv1 = ConvBN(c1, 2 * self.c, 1)
        self.m = nn.ModuleList(Bottleneck(self.c, shortcut) for _ in range(n))
        self.attention = ChannelAttention((2 + n) * self.c) if attention else None
        self.cv2 = ConvBN((2 + n) * self.c, c2, 1)

    def forward(self, x):
        y = list(self.cv1(x).chunk(2, 1))
        y.extend(m(y[-1]) for m in self.m)
        y = torch.cat(y, 1)
        if self.attention is not None:
            y = self.attention(y)
        return self.cv2(y)


class SPPF(nn.Module):
    """Spatial pyramid pooling, fast."""

    def __init__(self, c1, c2, k=5):
        super().__init__()
        self.cv1 = ConvBN(c1, c1 // 2, 1)
        self.m = nn.MaxPool2d(kernel_size=k, stride=1, padding=k // 2)
        self.cv2 = ConvBN(c1 // 2 * 4, c2, 1)

    def forward(self, x):
        y = [self.cv1(x)]
        for _ in range(3):
            y.append(self.m(y[-1]))
        return self.cv2(torch.cat(y, 1))


class Backbone(nn.Module):
    """The stem and four stages; the last three give the features."""

    # out, bottlenecks, attention, SPPF
    arch = [(24, 1, False, False), (40, 2, False, False), (56, 2, True, False), (72, 1, True, True)]

    def __init__(self, stem=16, out_indices=(1, 2, 3)):
        super().__init__()
        self.stem = ConvBN(3, stem, 3, 2)
        self.stages = nn.ModuleList()
        self.out_indices = out_indices
        width = stem
        for out, n, attention, spp in self.arch:
            stage = [ConvBN(width, out, 3, 2)]
            if spp:
                stage.append(SPPF(out, out))
            stage.append(C2f(out, out, n, shortcut=not spp, attention=attention))
            self.stages.append(nn.Sequential(*stage))
            width = out

    def forward(self, x):
        x = self.stem(x)
        outs = []
        for i, stage in enumerate(self.stages):
            x = stage(x)
            if i in self.out_indices:
                outs.append(x)
        return tuple(outs)


class PAFPN(nn.Module):
    """Path aggregation: top-down, bottom-up, and one width for all levels."""

    def __init__(self, in_channels=(40, 56, 72), out_channels=32, n=1):
        super().__init__()
        self.in_channels = in_channels
        self.upsample = nn.Upsample(scale_factor=2, mode="nearest")
        self.reduce_layers = nn.ModuleList()
        self.top_down_blocks = nn.ModuleList()
        for idx in range(len(in_channels) - 1, 0, -1):
            self.reduce_layers.append(ConvBN(in_channels[idx], in_channels[idx - 1], 1))
            self.top_down_blocks.append(C2f(in_channels[idx - 1] * 2, in_channels[idx - 1], n, shortcut=False))
        self.downsamples = nn.ModuleList()
        self.bottom_up_blocks = nn.ModuleList()
        for idx in range(len(in_channels) - 1):
            self.downsamples.append(ConvBN(in_channels[idx], in_channels[idx], 3, 2))
            self.bottom_up_blocks.append(C2f(in_channels[idx] * 2, in_channels[idx + 1], n, shortcut=False))
        self.out_convs = nn.ModuleList(ConvBN(c, out_channels, 3) for c in in_channels)

    def forward(self, inputs):
        inner_outs = [inputs[-1]]
        for idx in range(len(self.in_channels) - 1, 0, -1):
            feat_high, feat_low = inner_outs[0], inputs[idx - 1]
            feat_high = self.reduce_layers[len(self.in_channels) - 1 - idx](feat_high)
            inner_outs[0] = feat_high
            merged = torch.cat([self.upsample(feat_high), feat_low], 1)
            inner_outs.insert(0, self.top_down_blocks[len(self.in_channels) - 1 - idx](merged))
        outs = [inner_outs[0]]
        for idx in range(len(self.in_channels) - 1):
            feat = self.downsamples[idx](outs[-1])
            outs.append(self.bottom_up_blocks[idx](torch.cat([feat, inner_outs[idx + 1]], 1)))
        return tuple(conv(x) for conv, x in zip(self.out_convs, outs))


class MaskFeat(nn.Module):
    """Prototypes at stride 4 from all levels and from the places in the picture."""

    def __init__(self, width=32, levels=3, protos=10):
        super().__init__()
        self.fusion = nn.Conv2d(width * levels, width, 1)
        self.convs = nn.Sequential(ConvBN(width + 2, width, 3), ConvBN(width, width, 3))
        self.up = nn.ConvTranspose2d(width, width, 2, 2, 0, bias=True)
        self.act = nn.LeakyReLU(0.1)
        self.projection = nn.Conv2d(width, protos, 1)

    @staticmethod
    def coordinates(x):
        batch, _, height, width = x.shape
        ys = torch.linspace(-1, 1, height, device=x.device, dtype=x.dtype)
        xs = torch.linspace(-1, 1, width, device=x.device, dtype=x.dtype)
        xs = xs.view(1, 1, 1, -1).expand(batch, 1, height, width)
        ys = ys.view(1, 1, -1, 1).expand(batch, 1, height, width)
        return torch.cat([xs, ys], dim=1)

    def forward(self, feats):
        size = feats[0].shape[-2:]
        x = [feats[0]]
        x += [F.interpolate(f, size=size, mode="bilinear", align_corners=False) for f in feats[1:]]
        x = self.fusion(torch.cat(x, dim=1))
        x = self.convs(torch.cat([x, self.coordinates(x)], dim=1))
        return self.projection(self.act(self.up(x)))


class SegHead(nn.Module):
    """Decoupled towers, whose convolutions are shared by the levels and whose norms are not; boxes as distributions."""

    def __init__(self, num_classes=7, width=32, stacked=2, strides=(8, 16, 32), reg_max=8, protos=10, topk=4):
        super().__init__()
        self.num_classes = num_classes
        self.strides = strides
        self.reg_max = reg_max
        self.topk = topk
        self.act = nn.SiLU()
        self.cls_convs = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(stacked))
        self.reg_convs = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(stacked))
        self.cls_bns = nn.ModuleList()
        self.reg_bns = nn.ModuleList()
        for _ in strides:
            self.cls_bns.append(nn.ModuleList(nn.BatchNorm2d(width, eps=1e-3) for _ in range(stacked)))
            self.reg_bns.append(nn.ModuleList(nn.BatchNorm2d(width, eps=1e-3) for _ in range(stacked)))
        self.cls_pred = nn.Conv2d(width, num_classes, 1)
        self.reg_pred = nn.Conv2d(width, 4 * (reg_max + 1), 3, padding=1)
        self.coef_pred = nn.Conv2d(width, protos, 1)
        self.scales = nn.Parameter(torch.ones(len(strides)))
        self.reg_conf = nn.Sequential(
            nn.Conv2d(4 * (topk + 1), 24, 1), nn.ReLU(inplace=True), nn.Conv2d(24, 1, 1), nn.Sigmoid())
        self.mask_feat = MaskFeat(width, len(strides), protos)
        self.register_buffer("project", torch.linspace(0, reg_max, reg_max + 1), persistent=False)

    def forward_single(self, x, level):
        cls_feat = reg_feat = x
        for conv, bn in zip(self.cls_convs, self.cls_bns[level]):
            cls_feat = self.act(bn(conv(cls_feat)))
        for conv, bn in zip(self.reg_convs, self.reg_bns[level]):
            reg_feat = self.act(bn(conv(reg_feat)))
        cls = self.cls_pred(cls_feat)
        reg = self.reg_pred(reg_feat) * self.scales[level]
        coef = self.coef_pred(reg_feat)

        batch, _, height, width = reg.shape
        prob = F.softmax(reg.reshape(batch, 4, self.reg_max + 1, height, width), dim=2)
        prob_topk, _ = prob.topk(self.topk, dim=2)
        stat = torch.cat([prob_topk, prob_topk.mean(dim=2, keepdim=True)], dim=2)
        quality = self.reg_conf(stat.reshape(batch, -1, height, width))
        score = cls.sigmoid() * quality
        distance = torch.einsum("bkrhw,r->bhwk", prob, self.project)
        return (
            score.permute(0, 2, 3, 1).reshape(batch, -1, self.num_classes),
            distance.reshape(batch, -1, 4),
            coef.flatten(2).transpose(1, 2),
        )

    def forward(self, feats, image_size):
        scores, distances, coefs = [], [], []
        for level, x in enumerate(feats):
            score, distance, coef = self.forward_single(x, level)
            scores.append(score)
            distances.append(distance)
            coefs.append(coef)
        sizes = [tuple(x.shape[-2:]) for x in feats]
        points, steps = make_points(sizes, self.strides, device=feats[0].device)
        boxes = distance2bbox(points, torch.cat(distances, 1) * steps, image_size)
        return torch.cat(scores, 1), boxes, torch.cat(coefs, 1), self.mask_feat(feats), points


class YoloSeg(nn.Module):
    """From pictures (B, 3, H, W) in 0..255, letterboxed, to the best instances with boxes and masks.

    meta is (B, 5): ratio, padding at the left, padding at the top, width and height before the letterbox.
    """

    def __init__(self, num_classes=7, pre_nms=40, max_det=12, score_thr=0.29):
        super().__init__()
        self.num_classes = num_classes
        self.pre_nms = pre_nms
        self.max_det = max_det
        self.score_thr = score_thr
        self.backbone = Backbone()
        self.neck = PAFPN()
        self.head = SegHead(num_classes)
        # BGR
        self.register_buffer("mean", torch.tensor([103.53, 116.28, 123.675]).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor([57.375, 57.12, 58.395]).view(1, 3, 1, 1), persistent=False)

    def inside_picture(self, points, meta):
        """1 for the points in the picture, 0 for those in the letterbox's border, (B, A, 1)."""
        ratio, pad_x, pad_y, width, height = [m[:, None] for m in meta.unbind(dim=1)]
        x, y = points[None, :, 0], points[None, :, 1]
        inside = (x >= pad_x) & (x < pad_x + width * ratio) & (y >= pad_y) & (y < pad_y + height * ratio)
        return inside.to(points.dtype)[..., None]

    def select(self, scores, boxes, coefs):
        """The best pairs of place and class."""
        best, index = scores.flatten(1).topk(self.pre_nms, dim=1)
        labels = index % self.num_classes
        rows = torch.div(index, self.num_classes, rounding_mode="floor")
        return best, labels, gather_rows(boxes, rows), gather_rows(coefs, rows)

    def assemble(self, coefs, protos, boxes, image_size):
        """The masks at the prototypes' size, and how sure they are, by their own weighted mean."""
        masks = torch.einsum("bnc,bchw->bnhw", coefs, protos).sigmoid()
        ratio_y, ratio_x = protos.shape[2] / image_size[0], protos.shape[3] / image_size[1]
        masks = crop_masks(masks, boxes * boxes.new_tensor([ratio_x, ratio_y, ratio_x, ratio_y]))
        maskness = masks.square().sum(dim=(2, 3)) / masks.sum(dim=(2, 3)).clamp(min=1)
        return masks, maskness

    def unletterbox(self, boxes, meta):
        """Boxes as parts of the width and height of the picture before the letterbox."""
        ratio, pad_x, pad_y, width, height = [m[:, None, None] for m in meta.unbind(dim=1)]
        boxes = (boxes - torch.cat([pad_x, pad_y, pad_x, pad_y], dim=-1)) / ratio
        limit = torch.cat([width, height, width, height], dim=-1)
        return torch.minimum(boxes.clamp(min=0), limit) / limit

    def forward(self, images, meta):
        image_size = tuple(images.shape[-2:])
        x = (images.flip(1) - self.mean) / self.std
        scores, boxes, coefs, protos, points = self.head(self.neck(self.backbone(x)), image_size)
        scores = scores * self.inside_picture(points, meta)
        scores, labels, boxes, coefs = self.select(scores, boxes, coefs)
        masks, maskness = self.assemble(coefs, protos, boxes, image_size)

        scores, order = (scores * maskness).sort(dim=1, descending=True)
        boxes, labels, masks = gather_rows(boxes, order), gather_rows(labels, order), gather_rows(masks, order)
        scores = matrix_nms(scores, labels, boxes)

        scores, keep = scores.topk(self.max_det, dim=1)
        boxes, labels, masks = gather_rows(boxes, keep), gather_rows(labels, keep), gather_rows(masks, keep)
        valid = scores > self.score_thr
        masks = F.interpolate(masks, size=image_size, mode="bilinear", align_corners=False)
        boxes = self.unletterbox(boxes, meta)
        dets = torch.cat([boxes, scores[..., None]], dim=-1) * valid[..., None].to(boxes.dtype)
        return dets, labels.masked_fill(~valid, -1), masks * valid[..., None, None].to(masks.dtype)


def settle(net, inputs):
    """Give the norms statistics near those of these inputs, as after training."""

    def measure(norm, args):
        var, mean = torch.var_mean(args[0], dim=(0, 2, 3))
        var = 0.4 * var + 0.6 * args[0].square().mean()  # the data is more varied than these pictures
        mean = 0.8 * mean + 0.15 * var.sqrt() * torch.randn_like(mean)
        var = var * torch.empty_like(var).uniform_(0.7, 1.4)
        norm.running_mean.copy_(mean.bfloat16())
        norm.running_var.copy_(var.bfloat16())

    hooks = [m.register_forward_pre_hook(measure) for m in net.modules() if isinstance(m, nn.BatchNorm2d)]
    with torch.no_grad():
        net(*inputs)
    for hook in hooks:
        hook.remove()


def build():
    """The net with the same weights on every run, two letterboxed pictures and how they were letterboxed."""
    torch.manual_seed(38)
    net = YoloSeg().eval()
    for module in net.modules():
        if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
            fan_in = module.weight[0].numel()
            nn.init.normal_(module.weight, std=(2.0 / fan_in) ** 0.5)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.2)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.7, 1.4)
            nn.init.normal_(module.bias, std=0.2)
    head = net.head
    for conv in (*head.cls_convs, *head.reg_convs):
        nn.init.normal_(conv.weight, std=0.01)
    nn.init.normal_(head.cls_pred.bias, mean=-0.5, std=0.4)
    nn.init.normal_(head.reg_pred.weight, std=0.15)
    nn.init.normal_(head.reg_pred.bias, std=0.6)
    nn.init.normal_(head.reg_conf[0].weight, std=0.8)
    nn.init.normal_(head.reg_conf[2].weight, std=0.8)
    nn.init.uniform_(head.scales, 0.7, 1.5)
    nn.init.normal_(head.mask_feat.projection.weight, std=0.2)
    images = F.interpolate(torch.rand(2, 3, 24, 32), size=(96, 128), mode="bicubic", align_corners=False) * 255
    tint = torch.tensor([25.0, 0.0, -25.0]).view(1, 3, 1, 1)
    images = (images + tint + torch.randn(2, 3, 96, 128) * 12).clamp(0, 255)
    images[0, :, :8] = images[0, :, 88:] = 114.0
    images[1, :, :, :14] = images[1, :, :, 114:] = 114.0
    meta = torch.tensor([[128 / 240, 0.0, 8.0, 240.0, 150.0], [0.8, 14.0, 0.0, 125.0, 120.0]])
    settle(net, (images, meta))
    return net, (images, meta)
