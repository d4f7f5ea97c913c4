"""An anchor-free detector of the YOLOX family in PyTorch: CSP backbone, feature pyramid, decoupled heads, SimOTA."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

# Statistics of the training images, which are BGR in [0, 255].
PIXEL_MEAN = (103.53, 116.28, 123.675)
PIXEL_STD = (57.375, 57.12, 58.395)


class Config:
    num_classes = 7
    strides = (8, 16, 32)
    channels = (16, 24, 32, 48, 64)
    depths = (1, 2, 2, 1)
    head_channels = 32
    center_radius, candidate_topk = 2.5, 10
    iou_cost_weight, outside_cost, reg_weight = 3.0, 1000.0, 5.0
    test_conf, nms_thre, nms_pre, max_det = 0.25, 0.4, 120, 30


def cxcywh2xyxy(boxes):
    """Centres and sizes to corners."""
    half = boxes[..., 2:] / 2
    return torch.cat((boxes[..., :2] - half, boxes[..., :2] + half), dim=-1)


def pairwise_iou(boxes_a, boxes_b):
    """IoU of each box of the first set (N, 4) with each of the second (M, 4), both as corners."""
    tl = torch.max(boxes_a[:, None, :2], boxes_b[None, :, :2])
    br = torch.min(boxes_a[:, None, 2:], boxes_b[None, :, 2:])
    inter = (br - tl).clamp(min=0).prod(dim=2)
    area_a = (boxes_a[:, 2:] - boxes_a[:, :2]).prod(dim=1)
    area_b = (boxes_b[:, 2:] - boxes_b[:, :2]).prod(dim=1)
    return inter / (area_a[:, None] + area_b[None, :] - inter)


def giou_loss(pred, target, eps=1e-7):
    """1 - GIoU of boxes given by centre and size, one value for each pair."""
    pred, target = cxcywh2xyxy(pred), cxcywh2xyxy(target)
    inter = (torch.min(pred[:, 2:], target[:, 2:]) - torch.max(pred[:, :2], target[:, :2])).clamp(min=0).prod(dim=1)
    area_p = (pred[:, 2:] - pred[:, :2]).prod(dim=1)
    area_g = (target[:, 2:] - target[:, :2]).prod(dim=1)
    area_u = area_p + area_g - inter
    iou = inter / area_u.clamp(min=eps)
    hull = torch.max(pred[:, 2:], target[:, 2:]) - torch.min(pred[:, :2], target[:, :2])
    area_c = hull.prod(dim=1).clamp(min=eps)
    return 1 - (iou - (area_c - area_u) / area_c).clamp(min=-1.0, max=1.0)


def class_wise_nms(boxes, classes, threshold):
    """Greedy suppression among boxes of one class, which come best first; returns the kept indices."""
    # boxes of different classes are moved so far apart that they never meet
    offset = classes.to(boxes.dtype) * (boxes.max() - boxes.min() + 1)
    ious = pairwise_iou(boxes + offset[:, None], boxes + offset[:, None])
    order, keep = torch.arange(len(boxes)), []
    while order.numel() > 0:
        best, rest = order[0], order[1:]
        keep.append(best)
        order = rest[ious[best, rest] <= threshold]
    return torch.stack(keep)


class BaseConv(nn.Module):
    def __init__(self, in_channels, out_channels, ksize, stride, dilation=1, groups=1):
        super().__init__()
        pad = dilation * (ksize - 1) // 2
        self.conv = nn.Conv2d(in_channels, out_channels, ksize, stride, pad, dilation, groups, bias=False)
        self.bn = nn.BatchNorm2d(out_channels, eps=1e-3, momentum=0.03)
        self.act = nn.SiLU()

    def forward(self, x):
        return self.act(self.bn(self.conv(x)))


def dw_conv(channels, dilation=1):
    """Depthwise convolution, perhaps dilated, and a pointwise one."""
    depthwise = BaseConv(channels, channels, 3, 1, dilation, groups=channels)
    return nn.Sequential(depthwise, BaseConv(channels, channels, 1, 1))


class ChannelAttention(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.fc = nn.Conv2d(channels, channels, 1)
        self.act = nn.Hardsigmoid()

    def forward(self, x):
        return x * self.act(self.fc(x.mean(dim=(2, 3), keepdim=True)))


class Bottleneck(nn.Module):
    def __init__(self, channels, shortcut=True):
        super().__init__()
        self.conv1 = BaseConv(channels, channels, 1, 1)
        self.conv2 = BaseConv(channels, channels, 3, 1)
        self.use_add = shortcut

    def forward(self, x):
        y = self.conv2(self.conv1(x))
        return y + x if self.use_add else y


class CSPLayer(nn.Module):
    """Cross-stage partial layer with channel attention before the last convolution."""

    def __init__(self, in_channels, out_channels, n=1, shortcut=True):
        super().__init__()
        hidden = out_channels // 2
        self.conv1 = BaseConv(in_channels, hidden, 1, 1)
        self.conv2 = BaseConv(in_channels, hidden, 1, 1)
        self.conv3 = BaseConv(2 * hidden, out_channels, 1, 1)
        self.m = nn.Sequential(*[Bottleneck(hidden, shortcut) for _ in range(n)])
        self.attention = ChannelAttention(2 * hidden)

    def forward(self, x):
        x_1, x_2 = self.m(self.conv1(x)), self.conv2(x)
        return self.conv3(self.attention(torch.cat((x_1, x_2), dim=1)))


class SPPBottleneck(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_sizes=(5, 9, 13)):
        super().__init__()
        hidden = in_channels // 2
        self.conv1 = BaseConv(in_channels, hidden, 1, 1)
        self.m = nn.ModuleList([nn.MaxPool2d(k, stride=1, padding=k // 2) for k in kernel_sizes])
        self.conv2 = BaseConv(hidden * (len(kernel_sizes) + 1), out_channels, 1, 1)

    def forward(self, x):
        x = self.conv1(x)
        return self.conv2(torch.cat([x] + [m(x) for m in self.m], dim=1))


class Focus(nn.Module):
    def __init__(self, in_channels, out_channels, ksize=3):
        super().__init__()
        self.conv = BaseConv(in_channels * 4, out_channels, ksize, 1)

    def forward(self, x):
        top_left, top_right = x[..., ::2, ::2], x[..., ::2, 1::2]
        bot_left, bot_right = x[..., 1::2, ::2], x[..., 1::2, 1::2]
        return self.conv(torch.cat((top_left, bot_left, top_right, bot_right), dim=1))


class CSPDarknet(nn.Module):
    def __init__(self, channels, depths):
        super().__init__()
        c1, c2, c3, c4, c5 = channels
        self.stem = Focus(3, c1)
        self.dark2 = nn.Sequential(BaseConv(c1, c2, 3, 2), CSPLayer(c2, c2, depths[0]))
        self.dark3 = nn.Sequential(BaseConv(c2, c3, 3, 2), CSPLayer(c3, c3, depths[1]))
        self.dark4 = nn.Sequential(BaseConv(c3, c4, 3, 2), CSPLayer(c4, c4, depths[2]))
        self.dark5 = nn.Sequential(BaseConv(c4, c5, 3, 2), SPPBottleneck(c5, c5), CSPLayer(c5, c5, depths[3], False))

    def forward(self, x):
        x = self.dark2(self.stem(x))
        dark3 = self.dark3(x)
        dark4 = self.dark4(dark3)
        return dark3, dark4, self.dark5(dark4)


class PAFPN(nn.Module):
    def __init__(self, channels):
        super().__init__()
        c3, c4, c5 = channels
        self.upsample = nn.Upsample(scale_factor=2, mode="nearest")
        self.lateral_conv0 = BaseConv(c5, c4, 1, 1)
        self.C3_p4 = CSPLayer(2 * c4, c4, shortcut=False)
        self.reduce_conv1 = BaseConv(c4, c3, 1, 1)
        self.C3_p3 = CSPLayer(2 * c3, c3, shortcut=False)
        self.bu_conv2 = BaseConv(c3, c3, 3, 2)
        self.C3_n3 = CSPLayer(2 * c3, c4, shortcut=False)
        self.bu_conv1 = BaseConv(c4, c4, 3, 2)
        self.C3_n4 = CSPLayer(2 * c4, c5, shortcut=False)

    def forward(self, features):
        x2, x1, x0 = features
        fpn_out0 = self.lateral_conv0(x0)  # /32
        f_out0 = self.C3_p4(torch.cat([self.upsample(fpn_out0), x1], 1))
        fpn_out1 = self.reduce_conv1(f_out0)  # /16
        pan_out2 = self.C3_p3(torch.cat([self.upsample(fpn_out1), x2], 1))
        pan_out1 = self.C3_n3(torch.cat([self.bu_conv2(pan_out2), fpn_out1], 1))
        pan_out0 = self.C3_n4(torch.cat([self.bu_conv1(pan_out1), fpn_out0], 1))
        return pan_out2, pan_out1, pan_out0


class DecoupledHead(nn.Module):
    def __init__(self, in_channels, hidden, num_classes):
        super().__init__()
        self.stems, self.cls_convs, self.reg_convs = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        self.cls_preds, self.reg_preds, self.obj_preds = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for channels in in_channels:
            self.stems.append(BaseConv(channels, hidden, 1, 1))
            self.cls_convs.append(nn.Sequential(dw_conv(hidden), dw_conv(hidden, dilation=2)))
            self.reg_convs.append(nn.Sequential(dw_conv(hidden), dw_conv(hidden)))
            self.cls_preds.append(nn.Conv2d(hidden, num_classes, 1))
            self.reg_preds.append(nn.Conv2d(hidden, 4, 1))
            self.obj_preds.append(nn.Conv2d(hidden, 1, 1))
        self.scales = nn.Parameter(torch.ones(len(in_channels)))

    def forward(self, features):
        outputs, sizes = [], []
        for k, x in enumerate(features):
            x = self.stems[k](x)
            cls_feat, reg_feat = self.cls_convs[k](x), self.reg_convs[k](x)
            reg = self.reg_preds[k](reg_feat) * self.scales[k]
            output = torch.cat([reg, self.obj_preds[k](reg_feat), self.cls_preds[k](cls_feat)], 1)
            sizes.append(tuple(output.shape[-2:]))
            outputs.append(output.flatten(start_dim=2).permute(0, 2, 1))
        return torch.cat(outputs, dim=1), sizes


class GridDecoder(nn.Module):
    """Boxes in pixels of the network's input from offsets to the corner of a cell and logarithms of sizes."""

    def __init__(self, strides):
        super().__init__()
        self.strides = strides
        self.cache = {}

    def grid(self, sizes):
        key = tuple(sizes)
        if key not in self.cache:
            grids, strides = [], []
            for (height, width), stride in zip(sizes, self.strides):
                yv, xv = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
                grids.append(torch.stack((xv, yv), 2).view(-1, 2))
                strides.append(torch.full((height * width, 1), stride))
            self.cache[key] = torch.cat(grids).float(), torch.cat(strides).float()
        return self.cache[key]

    def forward(self, outputs, sizes):
        grids, strides = self.grid(sizes)
        xy = (outputs[..., :2] + grids) * strides
        return torch.cat((xy, torch.exp(outputs[..., 2:4]) * strides), dim=-1), grids, strides


class SimOTA(nn.Module):
    """Assigns boxes of one image to predictions by cost, a dynamic number for each."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg

    def get_geometry(self, gt_boxes, grids, strides):
        """Which predictions may be candidates at all, and which lie in a box and near its centre as well."""
        centers = (grids + 0.5) * strides
        corners = cxcywh2xyxy(gt_boxes)
        deltas = torch.cat((centers[None] - corners[:, None, :2], corners[:, None, 2:] - centers[None]), dim=-1)
        is_in_boxes = deltas.min(dim=-1).values > 0.0
        distance = (centers[None] - gt_boxes[:, None, :2]).abs().max(dim=-1).values
        is_in_centers = distance < self.cfg.center_radius * strides[:, 0]
        candidates = (is_in_boxes | is_in_centers).any(dim=0)
        return candidates, (is_in_boxes & is_in_centers)[:, candidates]

    def forward(self, boxes, obj_logits, cls_logits, gt_boxes, gt_classes, grids, strides):
        candidates, is_in_both = self.get_geometry(gt_boxes, grids, strides)
        ious = pairwise_iou(cxcywh2xyxy(gt_boxes), cxcywh2xyxy(boxes[candidates]))
        one_hot = F.one_hot(gt_classes, cls_logits.shape[1]).float()
        joint = (cls_logits[candidates].sigmoid() * obj_logits[candidates].sigmoid()).sqrt()
        joint = joint.unsqueeze(0).repeat(len(gt_boxes), 1, 1)
        cls_cost = F.binary_cross_entropy(joint, one_hot.unsqueeze(1).expand_as(joint), reduction="none").sum(dim=-1)
        cost = cls_cost + self.cfg.iou_cost_weight * -torch.log(ious + 1e-8) + self.cfg.outside_cost * (~is_in_both)

        # how many predictions a box gets is the sum of its best overlaps
        matching = torch.zeros_like(cost, dtype=torch.bool)
        topk = min(self.cfg.candidate_topk, ious.shape[1])
        dynamic_ks = torch.topk(ious, topk, dim=1).values.sum(dim=1).int().clamp(min=1)
        for gt_idx in range(len(gt_boxes)):
            matching[gt_idx, torch.topk(cost[gt_idx], dynamic_ks[gt_idx].item(), largest=False).indices] = True
        # a prediction that several boxes want goes to the cheapest of them
        crowded = matching.sum(dim=0) > 1
        cheapest = cost[:, crowded].argmin(dim=0)
        matching[:, crowded] = False
        matching[cheapest, crowded] = True

        fg = matching.any(dim=0)
        index = candidates.nonzero().squeeze(1)[fg]
        matched_gt = torch.full((boxes.shape[0],), -1, dtype=torch.long)
        matched_gt[index] = matching[:, fg].int().argmax(dim=0)
        matched_iou = torch.zeros(boxes.shape[0])
        matched_iou[index] = (matching * ious).sum(dim=0)[fg]
        return matched_gt >= 0, matched_gt, matched_iou


class DetectionLoss(nn.Module):
    """GIoU, objectness, classes and L1 over the assigned predictions of a batch."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.assigner = SimOTA(cfg)
        self.bce = nn.BCEWithLogitsLoss(reduction="none")
        self.l1 = nn.L1Loss(reduction="none")

    def forward(self, raw, boxes, grids, strides, labels):
        """labels is (batch, rows, 5): class, centre and size in pixels; rows of zeros fill up."""
        num_labels = (labels.sum(dim=2) > 0).sum(dim=1)
        fg_mask = torch.zeros(raw.shape[:2], dtype=torch.bool)
        box_target, cls_target = torch.zeros_like(boxes), torch.zeros_like(raw[..., 5:])
        for b, count in enumerate(num_labels.tolist()):
            if count == 0:
                continue
            gt_classes, gt_boxes = labels[b, :count, 0].long(), labels[b, :count, 1:5]
            pred = boxes[b].detach(), raw[b, :, 4:5].detach(), raw[b, :, 5:].detach()
            fg, matched_gt, matched_iou = self.assigner(*pred, gt_boxes, gt_classes, grids, strides)
            one_hot = F.one_hot(gt_classes[matched_gt[fg]], self.cfg.num_classes).float()
            fg_mask[b] = fg
            cls_target[b, fg] = one_hot * matched_iou[fg].unsqueeze(-1)
            box_target[b, fg] = gt_boxes[matched_gt[fg]]
        log_wh = torch.log(box_target[..., 2:] / strides + 1e-8)
        l1_target = torch.cat((box_target[..., :2] / strides - grids, log_wh), dim=-1)

        num_fg = fg_mask.sum().clamp(min=1)
        loss_iou = giou_loss(boxes[fg_mask], box_target[fg_mask]).sum() / num_fg
        loss_obj = self.bce(raw[..., 4], fg_mask.float()).sum() / num_fg
        loss_cls = self.bce(raw[fg_mask][:, 5:], cls_target[fg_mask]).sum() / num_fg
        loss_l1 = self.l1(raw[fg_mask][:, :4], l1_target[fg_mask]).sum() / num_fg
        loss = self.cfg.reg_weight * loss_iou + loss_obj + loss_cls + loss_l1
        return torch.stack((loss, loss_iou, loss_obj, loss_cls, loss_l1, num_fg / num_labels.sum().clamp(min=1)))


class Detector(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.register_buffer("pixel_mean", torch.tensor(PIXEL_MEAN).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("pixel_std", torch.tensor(PIXEL_STD).view(1, 3, 1, 1), persistent=False)
        self.backbone = CSPDarknet(cfg.channels, cfg.depths)
        self.neck = PAFPN(cfg.channels[2:])
        self.head = DecoupledHead(cfg.channels[2:], cfg.head_channels, cfg.num_classes)
        self.decoder = GridDecoder(cfg.strides)
        self.criterion = DetectionLoss(cfg)

    def postprocess(self, boxes, probs, image_info):
        """Rows of corners in the original image, objectness, class score and class; zeros fill up."""
        detections = boxes.new_zeros(boxes.shape[0], self.cfg.max_det, 7)
        for b in range(boxes.shape[0]):
            class_conf, class_pred = probs[b, :, 1:].max(dim=1)
            scores, index = (probs[b, :, 0] * class_conf).topk(self.cfg.nms_pre)
            index = index[scores >= self.cfg.test_conf]
            if len(index) == 0:
                continue
            corners = cxcywh2xyxy(boxes[b, index])
            keep = class_wise_nms(corners, class_pred[index], self.cfg.nms_thre)[: self.cfg.max_det]
            # as fractions of the image that was resized into the corner of the input
            height, width, ratio = image_info[b]
            corners = (corners[keep] / ratio / torch.stack((width, height, width, height))).clamp(min=0, max=1)
            index = index[keep]
            extra = torch.stack((probs[b, index, 0], class_conf[index], class_pred[index].float()), dim=1)
            detections[b, : len(keep)] = torch.cat((corners, extra), dim=1)
        return detections

    def extract(self, images):
        x = (images - self.pixel_mean) / self.pixel_std
        return self.head(self.neck(self.backbone(x)))

    def forward(self, images, labels, image_info):
        raw, sizes = self.extract(images)
        boxes, grids, strides = self.decoder(raw, sizes)
        losses = self.criterion(raw, boxes, grids, strides, labels)
        probs = raw[..., 4:].sigmoid()
        size = boxes.new_tensor(images.shape[:1:-1]).repeat(2)
        return torch.cat((boxes / size, probs), dim=-1), losses, self.postprocess(boxes, probs, image_info)


def set_statistics(norm, args):
    """Running statistics that are near those of what comes in."""
    std, mean = torch.std_mean(args[0], dim=(0, 2, 3))
    norm.running_mean.copy_(mean + 0.2 * std * torch.randn_like(mean))
    norm.running_var.copy_((std**2 + std.mean() ** 2) * (0.4 + 0.4 * torch.rand_like(std)))


@torch.no_grad()
def trained_like(net, images):
    """Values as after training, not as after the initialisation."""
    hooks = []
    for norm in (module for module in net.modules() if isinstance(module, nn.BatchNorm2d)):
        nn.init.uniform_(norm.weight, 0.5, 0.9)
        nn.init.normal_(norm.bias, 0.3, 0.2)
        hooks.append(norm.register_forward_pre_hook(set_statistics))
    for name, parameter in net.named_parameters():
        if parameter.ndim == 4:
            nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
        elif "fc" in name or "pred" in name:
            nn.init.normal_(parameter, std=0.3)
    for cls_pred, reg_pred, obj_pred in zip(net.head.cls_preds, net.head.reg_preds, net.head.obj_preds):
        cls_pred.weight *= 1.4
        obj_pred.weight *= 1.4
        obj_pred.bias -= 0.8
        reg_pred.weight *= 0.5
        reg_pred.bias += torch.tensor([0.5, 0.5, 1.2, 1.1])
    net.head.scales.copy_(torch.tensor([1.17, 0.94, 0.73]))
    net.eval().extract(images)
    for hook in hooks:
        hook.remove()
    return net


def example_inputs():
    """Three letterboxed images with five, three and no boxes, and height, width and ratio of the originals."""
    rng = np.random.RandomState(2107)
    coarse = rng.uniform(0, 255, (3, 3, 12, 16)).repeat(8, axis=2).repeat(8, axis=3)
    images = (0.6 * coarse + 0.4 * rng.uniform(0, 255, (3, 3, 96, 128))).astype(np.float32)
    images[1, :, 80:], images[2, :, :, 112:] = 114.0, 114.0
    labels = np.zeros((3, 6, 5), np.float32)
    labels[0, :4] = (2, 40.5, 36.2, 46, 40), (5, 47.3, 42.1, 38, 44), (0, 98.7, 30.4, 30, 33), (6, 92.2, 70.8, 58, 37)
    labels[0, 4] = 2, 19.1, 79.6, 21, 19
    labels[1, :3] = (3, 64.9, 42.3, 88, 60), (1, 84.4, 39.7, 26, 30), (4, 33.6, 27.5, 34, 25)
    image_info = np.array([[144, 192, 2 / 3], [100, 160, 0.8], [120, 140, 0.8]], np.float32)
    return images, labels, image_info


def build():
    """The net with the same weights on every run, and a small batch."""
    torch.manual_seed(65)
    images, labels, image_info = (torch.from_numpy(array) for array in example_inputs())
    return trained_like(Detector(Config()), images), (images, labels, image_info)
