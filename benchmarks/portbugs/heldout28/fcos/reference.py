"""An anchor-free detector (FCOS) whose targets are assigned by ATSS, with losses and soft-NMS decoding, in PyTorch."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

# Caffe-style pixel statistics; images come as BGR in [0, 255].
PIXEL_MEAN = (103.53, 116.28, 123.675)
PIXEL_STD = (57.375, 57.12, 58.395)

INF = 1e8


class Config:
    """What the yaml of the small model says."""

    num_classes = 5
    widths = (16, 32, 48, 64)
    fpn_width = 32
    strides = (8, 16, 32, 64, 128)
    num_convs, gn_groups = 2, 8
    # targets and losses
    atss_topk, anchor_scale = 6, 4
    focal_alpha, focal_gamma = 0.25, 2.0
    bbox_weight = 2.0
    # decoding
    score_thr, nms_pre, max_per_img = 0.05, 40, 12
    soft_sigma, soft_min_score = 0.5, 0.02


def box_area(boxes):
    return (boxes[..., 2] - boxes[..., 0]).clamp(min=0) * (boxes[..., 3] - boxes[..., 1]).clamp(min=0)


def pairwise_iou(boxes1, boxes2, eps=1e-6):
    """IoU of each of boxes1 (..., M, 4) with each of boxes2 (N, 4): (..., M, N)."""
    lt = torch.max(boxes1[..., :, None, :2], boxes2[None, :, :2])
    rb = torch.min(boxes1[..., :, None, 2:], boxes2[None, :, 2:])
    wh = (rb - lt).clamp(min=0)
    inter = wh[..., 0] * wh[..., 1]
    union = box_area(boxes1)[..., :, None] + box_area(boxes2)[None, :] - inter
    return inter / union.clamp(min=eps)


def distance2bbox(points, distance):
    """Distances to the left, top, right and bottom side, seen from the points, to boxes."""
    return torch.cat((points - distance[..., :2], points + distance[..., 2:]), dim=-1)


def bbox2distance(points, boxes):
    """The way back."""
    return torch.cat((points - boxes[..., :2], boxes[..., 2:] - points), dim=-1)


def centerness_target(ltrb):
    """sqrt(min(l, r) / max(l, r) * min(t, b) / max(t, b)) of points inside their boxes."""
    sides = ltrb.reshape(-1, 2, 2)  # left and top, right and bottom
    ratio = sides.min(dim=1)[0] / sides.max(dim=1)[0]
    return ratio.prod(dim=-1).sqrt()


def soft_nms(boxes, scores, labels, sigma, min_score, max_num):
    """Gaussian soft-NMS, class by class: the indices of what is kept, best first, and their decayed scores."""
    # boxes of different classes are moved apart so that they never overlap
    offsets = labels.to(boxes.dtype) * (boxes.max() + 1.0)
    overlaps = pairwise_iou(boxes + offsets[:, None], boxes + offsets[:, None])
    scores = scores.clone()
    keep, kept_scores = [], []
    while len(keep) < min(max_num, boxes.shape[0]):
        top = int(scores.argmax())
        if scores[top] < min_score:
            break
        keep.append(top)
        kept_scores.append(scores[top].clone())
        scores *= torch.exp(-overlaps[top].square() / sigma)
        scores[keep] = -1.0
    return torch.tensor(keep, device=boxes.device), torch.stack(kept_scores)


class ConvBN(nn.Module):
    def __init__(self, in_ch, out_ch, kernel_size, stride=1, act=True):
        super().__init__()
        self.conv = nn.Conv2d(in_ch, out_ch, kernel_size, stride, kernel_size // 2, bias=False)
        self.bn = nn.BatchNorm2d(out_ch)
        self.act = nn.ReLU(inplace=True) if act else None

    def forward(self, x):
        x = self.bn(self.conv(x))
        return x if self.act is None else self.act(x)


class EffectiveSE(nn.Module):
    """Channel attention with a single fully connected layer (VoVNetV2)."""

    def __init__(self, channels):
        super().__init__()
        self.fc = nn.Conv2d(channels, channels, 1)
        self.gate = nn.Hardsigmoid()

    def forward(self, x):
        return x * self.gate(self.fc(x.mean(dim=(2, 3), keepdim=True)))


class BasicBlock(nn.Module):
    """Residual block; the shortcut of a strided one averages first, then projects (ResNet-D)."""

    def __init__(self, in_ch, out_ch, stride):
        super().__init__()
        self.conv1 = ConvBN(in_ch, out_ch, 3, stride)
        self.conv2 = ConvBN(out_ch, out_ch, 3, act=False)
        self.ese = EffectiveSE(out_ch)
        self.downsample = nn.Identity()
        if stride > 1:
            pool = nn.AvgPool2d(3, stride, padding=1, count_include_pad=False)
            self.downsample = nn.Sequential(pool, ConvBN(in_ch, out_ch, 1, act=False))

    def forward(self, x):
        out = self.ese(self.conv2(self.conv1(x)))
        return F.relu(out + self.downsample(x))


class Backbone(nn.Module):
    """Small residual net; gives the maps of strides 8, 16 and 32."""

    def __init__(self, widths):
        super().__init__()
        self.stem = ConvBN(3, widths[0], 3, stride=2)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.stages = nn.ModuleList([BasicBlock(widths[0], widths[0], 1)])
        for in_ch, out_ch in zip(widths[:-1], widths[1:]):
            self.stages.append(BasicBlock(in_ch, out_ch, 2))

    def forward(self, x):
        features = [self.pool(self.stem(x))]
        for stage in self.stages:
            features.append(stage(features[-1]))
        return features[2:]


class FPN(nn.Module):
    """Feature pyramid with two extra levels on top of P5."""

    def __init__(self, in_channels, width):
        super().__init__()
        self.lateral_convs = nn.ModuleList(nn.Conv2d(c, width, 1) for c in in_channels)
        self.output_convs = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in in_channels)
        self.p6 = nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.p7 = nn.Conv2d(width, width, 3, stride=2, padding=1)

    def forward(self, features):
        laterals = [conv(feature) for conv, feature in zip(self.lateral_convs, features)]
        for i in range(len(laterals) - 1, 0, -1):
            size = laterals[i - 1].shape[-2:]
            laterals[i - 1] = laterals[i - 1] + F.interpolate(laterals[i], size=size, mode="nearest")
        outs = [conv(lateral) for conv, lateral in zip(self.output_convs, laterals)]
        outs.append(self.p6(outs[-1]))
        outs.append(self.p7(F.relu(outs[-1])))
        return outs


class Scale(nn.Module):
    """A learnable factor, one for each level."""

    def __init__(self, init_value=1.0):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([init_value]))

    def forward(self, x):
        return x * self.scale


class FCOSHead(nn.Module):
    """Towers that all levels share; centre-ness is predicted by the regression tower."""

    def __init__(self, width, num_classes, num_levels, num_convs, gn_groups):
        super().__init__()
        self.cls_tower = self._tower(width, num_convs, gn_groups)
        self.reg_tower = self._tower(width, num_convs, gn_groups)
        self.cls_logits = nn.Conv2d(width, num_classes, 3, padding=1)
        self.bbox_pred = nn.Conv2d(width, 4, 3, padding=1)
        self.centerness = nn.Conv2d(width, 1, 3, padding=1)
        self.scales = nn.ModuleList(Scale(1.0) for _ in range(num_levels))

    def _tower(self, width, num_convs, gn_groups):
        layers = []
        for _ in range(num_convs):
            layers += [nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(gn_groups, width), nn.ReLU(inplace=True)]
        return nn.Sequential(*layers)

    def forward(self, features):
        cls_scores, bbox_preds, centernesses = [], [], []
        for level, feature in enumerate(features):
            cls_feat = self.cls_tower(feature)
            reg_feat = self.reg_tower(feature)
            cls_scores.append(self.cls_logits(cls_feat))
            # in units of the level's stride
            bbox_preds.append(torch.exp(self.scales[level](self.bbox_pred(reg_feat))))
            centernesses.append(self.centerness(reg_feat))
        return cls_scores, bbox_preds, centernesses


class ATSSAssigner(nn.Module):
    """Adaptive training sample selection (https://arxiv.org/abs/1912.02424), for a batch of padded boxes."""

    def __init__(self, topk, anchor_scale, num_classes):
        super().__init__()
        self.topk, self.anchor_scale, self.num_classes = topk, anchor_scale, num_classes

    def _candidates(self, distances, level_sizes):
        """The indices of the closest points of each level: (B, M, candidates)."""
        indices, start = [], 0
        for level_distances in distances.split(level_sizes, dim=-1):
            topk = min(self.topk, level_distances.shape[-1])
            indices.append(level_distances.topk(topk, dim=-1, largest=False)[1] + start)
            start += level_distances.shape[-1]
        return torch.cat(indices, dim=-1)

    @torch.no_grad()
    def forward(self, points, strides, level_sizes, gt_boxes, gt_labels, inside):
        """Labels (B, N), num_classes where nothing is assigned, and the assigned boxes (B, N, 4)."""
        half = 0.5 * self.anchor_scale * strides[:, None]
        anchors = torch.cat((points - half, points + half), dim=-1)
        overlaps = pairwise_iou(gt_boxes, anchors)  # (B, M, N)

        gt_centers = (gt_boxes[..., :2] + gt_boxes[..., 2:]) / 2
        distances = (gt_centers[:, :, None] - points[None, None]).pow(2).sum(dim=-1).sqrt()
        candidates = self._candidates(distances, level_sizes)
        is_candidate = torch.zeros_like(overlaps, dtype=torch.bool).scatter_(-1, candidates, True)

        # the threshold of a box is what its candidates' overlaps say
        candidate_overlaps = overlaps.gather(-1, candidates)
        threshold = candidate_overlaps.mean(dim=-1, keepdim=True) + candidate_overlaps.std(dim=-1, keepdim=True)

        in_box = bbox2distance(points[None, None], gt_boxes[:, :, None]).min(dim=-1)[0] > 0.01
        real = (gt_labels >= 0)[..., None]
        positive = is_candidate & (overlaps >= threshold) & in_box & real & inside[:, None]

        # a point that several boxes want belongs to the one that its anchor overlaps the most
        best, box_index = overlaps.masked_fill(~positive, -INF).max(dim=1)
        labels = gt_labels.gather(1, box_index)
        labels[best < 0] = self.num_classes
        return labels, gt_boxes.gather(1, box_index[..., None].expand(-1, -1, 4))


class SigmoidFocalLoss(nn.Module):
    def __init__(self, alpha, gamma):
        super().__init__()
        self.alpha, self.gamma = alpha, gamma

    def forward(self, logits, targets, weight, avg_factor):
        prob = logits.sigmoid()
        ce = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
        p_t = prob * targets + (1 - prob) * (1 - targets)
        alpha_t = self.alpha * targets + (1 - self.alpha) * (1 - targets)
        return (alpha_t * (1 - p_t).pow(self.gamma) * ce * weight).sum() / avg_factor


class GIoULoss(nn.Module):
    def __init__(self, loss_weight=1.0, eps=1e-6):
        super().__init__()
        self.loss_weight, self.eps = loss_weight, eps

    def forward(self, pred, target, weight, avg_factor):
        wh = (torch.min(pred[:, 2:], target[:, 2:]) - torch.max(pred[:, :2], target[:, :2])).clamp(min=0)
        inter = wh[:, 0] * wh[:, 1]
        union = box_area(pred) + box_area(target) - inter + self.eps
        wh_hull = torch.max(pred[:, 2:], target[:, 2:]) - torch.min(pred[:, :2], target[:, :2])
        hull = wh_hull[:, 0] * wh_hull[:, 1] + self.eps
        giou = inter / union - (hull - union) / hull
        return self.loss_weight * ((1 - giou) * weight).sum() / avg_factor


class FCOS(nn.Module):
    """Fully convolutional one-stage detector; gives the losses and the detections of a batch."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.register_buffer("pixel_mean", torch.tensor(PIXEL_MEAN).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("pixel_std", torch.tensor(PIXEL_STD).view(1, 3, 1, 1), persistent=False)
        self.backbone = Backbone(cfg.widths)
        self.fpn = FPN(cfg.widths[1:], cfg.fpn_width)
        self.head = FCOSHead(cfg.fpn_width, cfg.num_classes, len(cfg.strides), cfg.num_convs, cfg.gn_groups)
        self.assigner = ATSSAssigner(cfg.atss_topk, cfg.anchor_scale, cfg.num_classes)
        self.loss_cls = SigmoidFocalLoss(cfg.focal_alpha, cfg.focal_gamma)
        self.loss_bbox = GIoULoss(cfg.bbox_weight)
        self._grids = {}

    def _level_points(self, size, stride, device):
        """The centres of a level's cells, row by row; grids are made once for each size."""
        key = (tuple(size), stride, device)
        if key not in self._grids:
            shift_y = (torch.arange(size[0], dtype=torch.float32, device=device) + 0.5) * stride
            shift_x = (torch.arange(size[1], dtype=torch.float32, device=device) + 0.5) * stride
            grid_y, grid_x = torch.meshgrid(shift_y, shift_x, indexing="ij")
            self._grids[key] = torch.stack((grid_x.reshape(-1), grid_y.reshape(-1)), dim=-1)
        return self._grids[key]

    def preprocess(self, images, image_sizes):
        """Normalise, and set what lies beyond the size (height, width) of each image to zero."""
        images = (images - self.pixel_mean) / self.pixel_std
        rows = torch.arange(images.shape[2], device=images.device)[None, :] < image_sizes[:, 0:1]
        columns = torch.arange(images.shape[3], device=images.device)[None, :] < image_sizes[:, 1:2]
        return images * (rows[:, None, :, None] & columns[:, None, None, :]).to(images.dtype)

    def _flatten(self, maps):
        """(B, C, H, W) of each level to (B, points of all levels, C)."""
        return torch.cat([m.permute(0, 2, 3, 1).reshape(m.shape[0], -1, m.shape[1]) for m in maps], dim=1)

    def losses(self, logits, boxes, centerness, grid, gt_boxes, gt_labels, inside):
        """Focal loss over the points inside of the images; GIoU and centre-ness losses over the positive ones."""
        labels, box_targets = self.assigner(*grid, gt_boxes, gt_labels, inside)
        positive = labels < self.cfg.num_classes
        num_pos = positive.sum().clamp(min=1).to(logits.dtype)
        onehot = F.one_hot(labels, self.cfg.num_classes + 1)[..., :-1].to(logits.dtype)
        loss_cls = self.loss_cls(logits, onehot, inside[..., None].to(logits.dtype), num_pos)

        pos_points = grid[0].expand(labels.shape[0], -1, -1)[positive]
        pos_targets = box_targets[positive]
        pos_centerness = centerness[..., 0][positive]
        soft = centerness_target(bbox2distance(pos_points, pos_targets))
        loss_bbox = self.loss_bbox(boxes[positive], pos_targets, soft, soft.sum().clamp(min=1e-6))
        loss_ctr = F.binary_cross_entropy_with_logits(pos_centerness, soft, reduction="sum") / num_pos
        return loss_cls, loss_bbox, loss_ctr

    def decode_single(self, level_sizes, logits, boxes, centerness, inside, image_size, scale_factor):
        """The best detections of one image in the pixels of the original image, padded to max_per_img."""
        cfg = self.cfg
        scores = torch.sqrt(logits.sigmoid() * centerness.sigmoid()) * inside[:, None].to(logits.dtype)
        picked, start = [], 0
        for size in level_sizes:
            level = scores[start : start + size].reshape(-1)
            above = torch.nonzero(level > cfg.score_thr).squeeze(-1)
            order = level[above].topk(min(cfg.nms_pre, above.numel()))[1]
            picked.append(above[order] + start * cfg.num_classes)
            start += size
        picked = torch.cat(picked)
        scores = scores.reshape(-1)[picked]
        labels = picked % cfg.num_classes
        boxes = boxes[torch.div(picked, cfg.num_classes, rounding_mode="floor")]

        height, width = image_size[0].to(boxes.dtype), image_size[1].to(boxes.dtype)
        x = torch.minimum(boxes[:, 0::2].clamp(min=0), width)
        y = torch.minimum(boxes[:, 1::2].clamp(min=0), height)
        boxes = torch.stack((x[:, 0], y[:, 0], x[:, 1], y[:, 1]), dim=-1)
        boxes = boxes / scale_factor.repeat(2)

        out = logits.new_zeros(cfg.max_per_img, 5)
        out_labels = labels.new_full((cfg.max_per_img,), -1)
        if picked.numel() > 0:
            keep, kept = soft_nms(boxes, scores, labels, cfg.soft_sigma, cfg.soft_min_score, cfg.max_per_img)
            out[: len(keep)] = torch.cat((boxes[keep], kept[:, None]), dim=-1)
            out_labels[: len(keep)] = labels[keep]
        return out, out_labels

    def forward(self, images, image_sizes, scale_factors, gt_boxes, gt_labels):
        """image_sizes are (height, width) without padding, scale_factors (x, y); labels of padded gt_boxes are -1."""
        features = self.fpn(self.backbone(self.preprocess(images, image_sizes)))
        cls_scores, bbox_preds, centernesses = self.head(features)

        sizes = [tuple(feature.shape[-2:]) for feature in features]
        level_sizes = [h * w for h, w in sizes]
        level_points = [self._level_points(hw, s, images.device) for hw, s in zip(sizes, self.cfg.strides)]
        points = torch.cat(level_points)
        strides = torch.cat([p.new_full((len(p),), float(s)) for p, s in zip(level_points, self.cfg.strides)])
        inside = (points[None, :, 0] < image_sizes[:, 1:2]) & (points[None, :, 1] < image_sizes[:, 0:1])

        logits, centerness = self._flatten(cls_scores), self._flatten(centernesses)
        boxes = distance2bbox(points, self._flatten(bbox_preds) * strides[:, None])

        grid = (points, strides, level_sizes)
        losses = self.losses(logits, boxes, centerness, grid, gt_boxes, gt_labels, inside)
        per_image = (logits, boxes, centerness, inside, image_sizes, scale_factors)
        detections, labels = zip(*(self.decode_single(level_sizes, *args) for args in zip(*per_image)))
        return *losses, torch.stack(detections), torch.stack(labels)


def trained_like(net):
    """Values as after training, not as after the initialisation."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.normal_(module.weight, std=(1.6 / module.weight[0].numel()) ** 0.5)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.1)
        elif isinstance(module, (nn.BatchNorm2d, nn.GroupNorm)):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.2)
            if isinstance(module, nn.BatchNorm2d):
                nn.init.normal_(module.running_mean, std=0.2)
                nn.init.uniform_(module.running_var, 0.5, 1.5)
        elif isinstance(module, Scale):
            nn.init.uniform_(module.scale, 0.7, 1.3)
    head = net.head
    nn.init.normal_(head.cls_logits.weight, std=0.1)
    head.cls_logits.weight.data -= head.cls_logits.weight.data.mean(dim=(1, 2, 3), keepdim=True)
    nn.init.normal_(head.cls_logits.bias, mean=-1.8, std=0.1)
    nn.init.normal_(head.bbox_pred.weight, std=0.03)
    nn.init.normal_(head.bbox_pred.bias, mean=0.4, std=0.2)
    nn.init.normal_(head.centerness.weight, std=0.06)
    return net


def build():
    """The net with the same weights on every run, and two resized images of which one is padded."""
    torch.manual_seed(2011)
    net = trained_like(FCOS(Config()))
    rng = np.random.default_rng(1904)
    images = 0.7 * rng.random((2, 3, 13, 17)).repeat(8, axis=2).repeat(8, axis=3) + 0.3 * rng.random((2, 3, 104, 136))
    images = torch.from_numpy((255.0 * images).astype(np.float32))
    image_sizes = torch.tensor([[104, 136], [88, 117]])
    scale_factors = torch.tensor([[2.72, 2.6], [2.106, 2.2]])
    # x1, y1, x2, y2 in the resized images; the second image has three boxes
    boxes = [[39.6, 12.3, 62.9, 99.0], [22.8, 21.1, 68.3, 45.2], [77.6, 51.8, 108.0, 83.0], [39.7, 33.2, 106.5, 67.8],
             [70.7, 8.9, 89.0, 98.3], [41.3, 21.8, 111.0, 83.1], [34.3, 3.1, 110.2, 83.1], [31.5, 4.0, 84.4, 82.4]]
    gt_boxes = torch.cat((torch.tensor(boxes), torch.zeros(2, 4))).reshape(2, 5, 4)
    gt_labels = torch.tensor([[2, 0, 4, 1, 3], [1, 3, 0, -1, -1]])
    return net.eval(), (images, image_sizes, scale_factors, gt_boxes, gt_labels)
