"""A small two-stage detector with a feature pyramid (in the manner of Faster R-CNN), in PyTorch."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

PIXEL_MEAN = (0.485, 0.456, 0.406)
PIXEL_STD = (0.229, 0.224, 0.225)
BBOX_XFORM_CLIP = math.log(1000.0 / 16)  # the regressed sizes are kept from growing without bound


class Config:
    """Settings of the small model."""

    num_classes = 5  # with the background, which is class 0
    stem_width, widths, fpn_width = 16, (24, 32, 48), 32
    # sizes for each level of the pyramid, the same ratios (height / width) everywhere
    anchor_sizes, anchor_ratios = ((10, 14), (20, 28), (40, 56), (70, 90)), (0.5, 1.0, 2.0)
    # first stage
    rpn_pre_nms_top_n, rpn_post_nms_top_n, rpn_nms_thresh, rpn_min_size = 60, 28, 0.6, 3.0
    rpn_weights, rpn_fg_iou, rpn_bg_iou, rpn_batch, rpn_fraction = (1.0, 1.0, 1.0, 1.0), 0.6, 0.3, 64, 0.5
    # second stage
    roi_levels, roi_output, roi_sampling, head_width = 3, 5, 2, 96
    canonical_size, canonical_level, roi_weights = 12.0, 3, (10.0, 10.0, 5.0, 5.0)
    roi_fg_iou, roi_bg_iou, roi_batch, roi_fraction = 0.5, 0.5, 24, 0.25
    score_thresh, box_nms_thresh, detections = 0.15, 0.4, 16


def box_area(boxes):
    return (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])


def box_iou(a, b):
    """Overlap of each box of a (n, 4) with each box of b (m, 4)."""
    wh = torch.min(a[:, None, 2:], b[None, :, 2:]) - torch.max(a[:, None, :2], b[None, :, :2])
    inter = wh.clamp(min=0).prod(dim=-1)
    return inter / (box_area(a)[:, None] + box_area(b)[None, :] - inter).clamp(min=1e-6)


def clip_boxes(boxes, size):
    """Clip boxes (..., 4) to an image of the size (height, width)."""
    return boxes.clamp(min=0).minimum(size.flip(0).repeat(2).to(boxes.dtype))


def centers(boxes):
    """Centres and sizes of boxes."""
    width, height = boxes[..., 2] - boxes[..., 0], boxes[..., 3] - boxes[..., 1]
    return boxes[..., 0] + 0.5 * width, boxes[..., 1] + 0.5 * height, width, height


def encode_boxes(targets, boxes, weights):
    """What has to be regressed for the boxes to become the targets."""
    wx, wy, ww, wh = weights
    x, y, w, h = centers(boxes)
    tx, ty, tw, th = centers(targets)
    deltas = (wx * (tx - x) / w, wy * (ty - y) / h, ww * torch.log(tw / w), wh * torch.log(th / h))
    return torch.stack(deltas, dim=-1)


def decode_boxes(deltas, boxes, weights):
    """Apply the regressed deltas (..., 4) to the boxes (..., 4)."""
    x, y, w, h = centers(boxes)
    dx, dy, dw, dh = (deltas[..., i] / weight for i, weight in enumerate(weights))
    x, y = dx * w + x, dy * h + y
    w, h = dw.clamp(max=BBOX_XFORM_CLIP).exp() * w, dh.clamp(max=BBOX_XFORM_CLIP).exp() * h
    return torch.stack((x - 0.5 * w, y - 0.5 * h, x + 0.5 * w, y + 0.5 * h), dim=-1)


def nms(boxes, scores, groups, thresh):
    """Greedy suppression within each group; the indices of what is kept, the best first."""
    # the groups are moved apart, so that boxes of two groups never overlap
    boxes = boxes + groups[:, None].to(boxes.dtype) * (boxes.max() + 1)
    order = scores.argsort(descending=True)
    keep = []
    while order.numel() > 0:
        keep.append(order[0])
        overlap = box_iou(boxes[order[:1]], boxes[order[1:]])[0]
        order = order[1:][overlap <= thresh]
    return torch.stack(keep)


def match(iou, valid, high, low, allow_low_quality):
    """For each box (columns of iou) its target's index, or -1 for background, or -2 between the thresholds.

    Rows whose valid is false are padding. With allow_low_quality each target also gets the boxes that overlap it most.
    """
    iou = iou.masked_fill(~valid[:, None], -1.0)
    best, index = iou.max(dim=0)
    matches = index.clone()
    matches[best < low] = -1
    matches[(best >= low) & (best < high)] = -2
    if allow_low_quality:
        low_quality = (iou == iou.max(dim=1, keepdim=True).values) & valid[:, None]
        matches = torch.where(low_quality.any(dim=0), index, matches)
    return matches


def sample_hard(loss, positive, negative, batch, fraction):
    """The positives and negatives with the highest loss: at most the fraction of the batch is positive."""
    n_pos = min(int(positive.sum()), int(batch * fraction))
    n_neg = min(int(negative.sum()), batch - n_pos)
    pos = loss.masked_fill(~positive, -1.0).topk(n_pos).indices
    return pos, loss.masked_fill(~negative, -1.0).topk(n_neg).indices


class ResidualBlock(nn.Module):
    """Two convolutions; the shortcut is averaged before it is projected."""
    def __init__(self, c_in, c_out, stride=1, dilation=1):
        super().__init__()
        self.conv1 = nn.Conv2d(c_in, c_out, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(c_out)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, padding=dilation, dilation=dilation, bias=False)
        self.bn2 = nn.BatchNorm2d(c_out)
        self.relu = nn.ReLU()
        self.pool = nn.AvgPool2d(3, stride, padding=1, count_include_pad=False) if stride > 1 else nn.Identity()
        self.proj = nn.Conv2d(c_in, c_out, 1, bias=False)
        self.proj_bn = nn.BatchNorm2d(c_out)

    def forward(self, x):
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(out + self.proj_bn(self.proj(self.pool(x))))


class Backbone(nn.Module):
    """Three stages, of strides 4, 8 and 16; the last one is dilated."""
    def __init__(self, stem_width, widths):
        super().__init__()
        self.stem = nn.Conv2d(3, stem_width, 7, stride=2, padding=3, bias=False)
        self.stem_bn = nn.BatchNorm2d(stem_width)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = ResidualBlock(stem_width, widths[0])
        self.layer2 = ResidualBlock(widths[0], widths[1], stride=2)
        self.layer3 = ResidualBlock(widths[1], widths[2], stride=2, dilation=2)

    def forward(self, x):
        c2 = self.layer1(self.maxpool(self.relu(self.stem_bn(self.stem(x)))))
        c3 = self.layer2(c2)
        return c2, c3, self.layer3(c3)


class FeaturePyramid(nn.Module):
    """Top-down pathway with lateral connections, and one more level by subsampling."""
    def __init__(self, widths, width):
        super().__init__()
        self.lateral = nn.ModuleList(nn.Conv2d(c, width, 1) for c in widths)
        self.output = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in widths)

    def forward(self, features):
        inner = self.lateral[-1](features[-1])
        results = [self.output[-1](inner)]
        for i in range(len(features) - 2, -1, -1):
            inner = F.interpolate(inner, size=features[i].shape[-2:], mode="nearest") + self.lateral[i](features[i])
            results.insert(0, self.output[i](inner))
        return results + [F.max_pool2d(results[-1], 1, 2, 0)]


class AnchorGenerator(nn.Module):
    """Anchors of all levels in one tensor (anchors, 4): level by level, row by row, then ratios, then sizes."""
    def __init__(self, sizes, ratios):
        super().__init__()
        self.per_location = len(ratios) * len(sizes[0])
        self.cell_anchors = []
        for size in sizes:
            size, tall = torch.tensor(size)[None, :], torch.tensor(ratios).sqrt()[:, None]
            half = torch.stack((size / tall, size * tall), dim=-1).reshape(-1, 2) / 2
            self.cell_anchors.append(torch.cat((-half, half), dim=1).round())
        self._cache = {}

    def forward(self, image_shape, grids):
        key = (tuple(image_shape), tuple(grids))
        if key not in self._cache:
            anchors = []
            for (gh, gw), cell in zip(grids, self.cell_anchors):
                # the stride is what the grid of this level makes of the batch's height and width
                stride_h, stride_w = image_shape[0] // gh, image_shape[1] // gw
                ys, xs = torch.meshgrid(torch.arange(gh) * stride_h, torch.arange(gw) * stride_w, indexing="ij")
                shifts = torch.stack((xs, ys, xs, ys), dim=-1).reshape(-1, 1, 4)
                anchors.append((shifts + cell[None]).reshape(-1, 4))
            self._cache[key] = torch.cat(anchors)
        return self._cache[key]


def permute_and_flatten(x, anchors, channels):
    """(batch, anchors * channels, h, w) -> (batch, h * w * anchors, channels)."""
    n, _, h, w = x.shape
    return x.reshape(n, anchors, channels, h, w).permute(0, 3, 4, 1, 2).reshape(n, -1, channels)


class RegionProposal(nn.Module):
    """Proposals of the first stage and its losses."""
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.anchor_generator = AnchorGenerator(cfg.anchor_sizes, cfg.anchor_ratios)
        self.conv = nn.Conv2d(cfg.fpn_width, cfg.fpn_width, 3, padding=1)
        self.relu = nn.ReLU()
        self.cls_logits = nn.Conv2d(cfg.fpn_width, self.anchor_generator.per_location, 1)
        self.bbox_pred = nn.Conv2d(cfg.fpn_width, self.anchor_generator.per_location * 4, 1)

    def filter_proposals(self, boxes, logits, level_sizes, image_sizes):
        """The best boxes of each level, clipped and without small ones, after suppression within the levels."""
        cfg = self.cfg
        levels = torch.cat([torch.full((n,), i) for i, n in enumerate(level_sizes)])
        n, r = boxes.shape[0], cfg.rpn_post_nms_top_n
        proposals, scores, valid = torch.zeros(n, r, 4), torch.zeros(n, r), torch.zeros(n, r, dtype=torch.bool)
        for i in range(n):
            top, start = [], 0
            for size in level_sizes:
                best = logits[i, start : start + size].topk(min(size, cfg.rpn_pre_nms_top_n))
                top.append(best.indices + start)
                start += size
            top = torch.cat(top)
            prob, lvl = logits[i, top].sigmoid(), levels[top]
            box = clip_boxes(boxes[i, top], image_sizes[i])
            large = (box[:, 2:] - box[:, :2] >= cfg.rpn_min_size).all(dim=1)
            box, prob, lvl = box[large], prob[large], lvl[large]
            keep = nms(box, prob, lvl, cfg.rpn_nms_thresh)[:r]
            k = len(keep)
            proposals[i, :k], scores[i, :k], valid[i, :k] = box[keep], prob[keep], True
        return proposals, scores, valid

    def losses(self, anchors, logits, deltas, gt_boxes, gt_valid):
        """Objectness and regression on the hard anchors of the batch."""
        cfg = self.cfg
        loss_cls = loss_box = count = 0
        for gt, ok, logit, delta in zip(gt_boxes, gt_valid, logits, deltas):
            matches = match(box_iou(gt, anchors), ok, cfg.rpn_fg_iou, cfg.rpn_bg_iou, allow_low_quality=True)
            bce = F.binary_cross_entropy_with_logits(logit, (matches >= 0).to(logit.dtype), reduction="none")
            pos, neg = sample_hard(bce.detach(), matches >= 0, matches == -1, cfg.rpn_batch, cfg.rpn_fraction)
            targets = encode_boxes(gt[matches[pos]], anchors[pos], cfg.rpn_weights)
            loss_cls = loss_cls + bce[pos].sum() + bce[neg].sum()
            loss_box = loss_box + F.smooth_l1_loss(delta[pos], targets, beta=1 / 9, reduction="sum")
            count += len(pos) + len(neg)
        return loss_cls / count, loss_box / count

    def forward(self, features, image_shape, image_sizes, gt_boxes, gt_valid):
        a = self.anchor_generator.per_location
        grids = [tuple(f.shape[-2:]) for f in features]
        level_sizes = [gh * gw * a for gh, gw in grids]
        anchors = self.anchor_generator(image_shape, grids)
        hidden = [self.relu(self.conv(f)) for f in features]
        logits = torch.cat([permute_and_flatten(self.cls_logits(x), a, 1) for x in hidden], dim=1).squeeze(-1)
        deltas = torch.cat([permute_and_flatten(self.bbox_pred(x), a, 4) for x in hidden], dim=1)
        boxes = decode_boxes(deltas.detach(), anchors[None], self.cfg.rpn_weights)
        proposals, scores, valid = self.filter_proposals(boxes, logits.detach(), level_sizes, image_sizes)
        return proposals, scores, valid, self.losses(anchors, logits, deltas, gt_boxes, gt_valid)


def bilinear_axis(start, end, steps, size):
    """The samples along one axis: their lower and upper neighbours, and the weight of the upper ones."""
    coord = start[:, None] + steps[None, :] * (end - start)[:, None]
    coord = coord.clamp(min=0.0, max=size - 1.0)
    low = coord.floor().long()
    return low, (low + 1).clamp(max=size - 1), coord - low.to(coord.dtype)


def roi_align(feature, image, boxes, scale, output, sampling):
    """Aligned pooling of boxes (k, 4) in the images of these indices (k,); returns (k, channels, output, output)."""
    k, (_, channels, height, width) = len(boxes), feature.shape
    x1, y1, x2, y2 = (boxes * scale - 0.5).unbind(dim=1)
    steps = (torch.arange(output * sampling, dtype=feature.dtype) + 0.5) / (output * sampling)
    y_low, y_high, fy = bilinear_axis(y1, y2, steps, height)
    x_low, x_high, fx = bilinear_axis(x1, x2, steps, width)
    image, y_low, y_high, fy = image[:, None, None], y_low[:, :, None], y_high[:, :, None], fy[:, :, None, None]
    x_low, x_high, fx = x_low[:, None, :], x_high[:, None, :], fx[:, None, :, None]
    grid = feature.permute(0, 2, 3, 1)
    upper = grid[image, y_low, x_low] * (1 - fx) + grid[image, y_low, x_high] * fx
    lower = grid[image, y_high, x_low] * (1 - fx) + grid[image, y_high, x_high] * fx
    value = upper * (1 - fy) + lower * fy
    return value.reshape(k, output, sampling, output, sampling, channels).mean(dim=(2, 4)).permute(0, 3, 1, 2)


class BoxHead(nn.Module):
    """A convolution and two linear layers on the pooled regions."""
    def __init__(self, width, output, hidden):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.GroupNorm(8, width)
        self.act = nn.GELU()
        self.fc1 = nn.Linear(width * output * output, hidden)
        self.fc2 = nn.Linear(hidden, hidden)

    def forward(self, x):
        x = self.act(self.norm(self.conv(x)))
        return self.act(self.fc2(self.act(self.fc1(x.flatten(1)))))


class RoIHeads(nn.Module):
    """Classes and refined boxes of the proposals, the losses on them, and the detections."""
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.box_head = BoxHead(cfg.fpn_width, cfg.roi_output, cfg.head_width)
        self.cls_score = nn.Linear(cfg.head_width, cfg.num_classes)
        self.bbox_pred = nn.Linear(cfg.head_width, cfg.num_classes * 4)

    def pool(self, features, boxes, image_shape):
        """Each box is pooled from the level that fits its size."""
        cfg = self.cfg
        n, r, _ = boxes.shape
        image, boxes = torch.arange(n).repeat_interleave(r), boxes.reshape(-1, 4)
        size = box_area(boxes).clamp(min=1e-3).sqrt()
        level = torch.floor(cfg.canonical_level + torch.log2(size / cfg.canonical_size) + 1e-6)
        level = level.clamp(2, 1 + cfg.roi_levels).long() - 2
        result = boxes.new_zeros(n * r, features[0].shape[1], cfg.roi_output, cfg.roi_output)
        for i, feature in enumerate(features[: cfg.roi_levels]):
            k = torch.nonzero(level == i).squeeze(1)
            scale = 2.0 ** round(math.log2(feature.shape[-1] / image_shape[1]))
            result[k] = roi_align(feature, image[k], boxes[k], scale, cfg.roi_output, cfg.roi_sampling)
        return result

    def losses(self, boxes, valid, logits, deltas, gt_boxes, gt_labels, gt_valid):
        """Classification and regression, which is on the deltas of the target's class, over the hard proposals."""
        cfg = self.cfg
        loss_cls = loss_box = count = 0
        for i in range(boxes.shape[0]):
            matches = match(box_iou(gt_boxes[i], boxes[i]), gt_valid[i], cfg.roi_fg_iou, cfg.roi_bg_iou, False)
            positive, negative = (matches >= 0) & valid[i], (matches == -1) & valid[i]
            labels = torch.where(positive, gt_labels[i][matches.clamp(min=0)], torch.zeros_like(matches))
            ce = F.cross_entropy(logits[i], labels, reduction="none")
            pos, neg = sample_hard(ce.detach(), positive, negative, cfg.roi_batch, cfg.roi_fraction)
            targets = encode_boxes(gt_boxes[i][matches[pos]], boxes[i, pos], cfg.roi_weights)
            loss_cls = loss_cls + ce[pos].sum() + ce[neg].sum()
            loss_box = loss_box + F.smooth_l1_loss(deltas[i, pos, labels[pos]], targets, reduction="sum")
            count += len(pos) + len(neg)
        return loss_cls / count, loss_box / count

    def detect(self, boxes, valid, logits, deltas, image_sizes):
        """Detections of each image, padded with zeros: boxes, scores and labels."""
        cfg = self.cfg
        n, r, c = logits.shape
        out_boxes, out_scores = torch.zeros(n, cfg.detections, 4), torch.zeros(n, cfg.detections)
        out_labels = torch.zeros(n, cfg.detections, dtype=torch.long)
        for i in range(n):
            refined = clip_boxes(decode_boxes(deltas[i], boxes[i, :, None], cfg.roi_weights), image_sizes[i])
            box, score = refined[:, 1:].reshape(-1, 4), logits[i].softmax(dim=-1)[:, 1:].reshape(-1)
            label = torch.arange(1, c).repeat(r)  # without the background, whose column is the first
            good = (score > cfg.score_thresh) & valid[i].repeat_interleave(c - 1)
            box, score, label = box[good], score[good], label[good]
            keep = nms(box, score, label, cfg.box_nms_thresh)[: cfg.detections]
            k = len(keep)
            out_boxes[i, :k], out_scores[i, :k], out_labels[i, :k] = box[keep], score[keep], label[keep]
        return out_boxes, out_scores, out_labels

    def forward(self, features, proposals, valid, image_shape, image_sizes, gt_boxes, gt_labels, gt_valid):
        n, r, _ = proposals.shape
        # the annotated boxes join the proposals for the losses; detections come from the proposals alone
        boxes, box_valid = torch.cat((proposals, gt_boxes), dim=1), torch.cat((valid, gt_valid), dim=1)
        hidden = self.box_head(self.pool(features, boxes, image_shape))
        logits = self.cls_score(hidden).reshape(n, -1, self.cfg.num_classes)
        deltas = self.bbox_pred(hidden).reshape(n, -1, self.cfg.num_classes, 4)
        losses = self.losses(boxes, box_valid, logits, deltas, gt_boxes, gt_labels, gt_valid)
        logits, deltas = logits[:, :r], deltas[:, :r]
        return (logits, deltas), losses, self.detect(proposals, valid, logits, deltas, image_sizes)


class TwoStageDetector(nn.Module):
    """Images with their annotations in, proposals, predictions, detections and the four losses out."""
    def __init__(self, cfg):
        super().__init__()
        self.register_buffer("pixel_mean", torch.tensor(PIXEL_MEAN).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("pixel_std", torch.tensor(PIXEL_STD).view(1, 3, 1, 1), persistent=False)
        self.backbone = Backbone(cfg.stem_width, cfg.widths)
        self.fpn = FeaturePyramid(cfg.widths, cfg.fpn_width)
        self.rpn = RegionProposal(cfg)
        self.roi_heads = RoIHeads(cfg)

    def forward(self, images, image_sizes, gt_boxes, gt_labels):
        """images (n, 3, h, w) in [0, 1], image_sizes (n, 2) as height and width, gt_boxes (n, g, 4), 0 pads labels."""
        image_shape, gt_valid = tuple(images.shape[-2:]), gt_labels > 0
        # normalise, then pad with zeros below and to the right of each image
        images = (images - self.pixel_mean) / self.pixel_std
        rows = torch.arange(image_shape[0])[None, :] < image_sizes[:, :1]
        cols = torch.arange(image_shape[1])[None, :] < image_sizes[:, 1:]
        images = images * (rows[:, None, :, None] & cols[:, None, None, :]).to(images.dtype)
        features = self.fpn(self.backbone(images))
        proposals, scores, valid, rpn_losses = self.rpn(features, image_shape, image_sizes, gt_boxes, gt_valid)
        predicted, roi_losses, found = self.roi_heads(
            features, proposals, valid, image_shape, image_sizes, gt_boxes, gt_labels, gt_valid
        )
        # boxes come back as fractions of the width and the height of the batch
        unit = torch.tensor(image_shape[::-1] * 2, dtype=images.dtype)
        return (proposals / unit, scores, *predicted, found[0] / unit, *found[1:], *rpn_losses, *roi_losses)


def trained_like(net, images):
    """Values as after training, not as after the initialisation."""
    for module in net.modules():
        if isinstance(module, (nn.BatchNorm2d, nn.GroupNorm)):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.2)
        elif isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.normal_(module.weight, std=module.weight[0].numel() ** -0.5)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.1)
    with torch.no_grad():
        for _ in range(20):  # the running statistics follow the data
            net.train().backbone((images - net.pixel_mean) / net.pixel_std)
        net.rpn.bbox_pred.weight *= 0.4
        net.roi_heads.cls_score.weight *= 2.5
        net.roi_heads.cls_score.bias -= torch.tensor([0.0, 0.3, -0.5, -0.2, 0.4])
        net.roi_heads.bbox_pred.weight *= 2.0
    return net.eval()


def build():
    """The net with the same weights on every run, and two annotated images, the second smaller than the batch."""
    torch.manual_seed(1510)
    rng = np.random.RandomState(7)
    images = 0.4 * rng.rand(2, 3, 104, 136) + 0.6 * rng.rand(2, 3, 13, 17).repeat(8, axis=2).repeat(8, axis=3)
    images = torch.from_numpy(images.astype(np.float32))
    net = trained_like(TwoStageDetector(Config()), images)
    image_sizes, gt_labels = torch.tensor([[104, 136], [86, 112]]), torch.tensor([[2, 4, 1], [3, 1, 0]])
    gt_boxes = [[31.9, 30.2, 48.1, 53.6], [38.8, 74.2, 59.5, 92.1], [60.2, 20.5, 118.7, 77.3]]
    gt_boxes += [[43.2, 27.5, 72.6, 60.1], [64.3, 49.8, 110.6, 84.1], [0.0, 0.0, 0.0, 0.0]]
    return net, (images, image_sizes, torch.tensor(gt_boxes).reshape(2, 3, 4), gt_labels)
