"""Lane detection with line anchors that are refined over the levels of a feature pyramid, in PyTorch."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class Config:
    """What the file of the small model says."""

    pixel_mean, pixel_std = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
    img_h, img_w = 80, 160
    ori_img_h, cut_height = 120, 40
    stem_width, widths, depths = 12, (12, 16, 24, 32), (2, 1, 2, 1)
    fpn_channels, mid_channels, fc_hidden = 16, 12, 20
    num_points, num_priors, sample_points, refine_layers = 24, 32, 10, 3
    gather_size = (4, 9)
    loss_weights = (2.0, 0.2, 2.0)  # scores, start with angle and length, intersection over union
    focal_alpha, focal_gamma, smooth_beta, iou_length = (0.3, 0.7), 2.0, 4.0, 15.0
    conf_threshold, nms_threshold, max_lanes = 0.4, 24.0, 6


def draw_lines(start, prior_ys, img_w, img_h):
    """Where the lines from (start_y from the bottom, start_x, theta) cross the rows, as fractions of the width."""
    start_y, start_x, theta = start.unsqueeze(-1).unbind(-2)
    run = (1 - prior_ys - start_y) * img_h / torch.tan(theta * math.pi + 1e-5)
    return (start_x * (img_w - 1) + run) / (img_w - 1)


def line_iou(pred, target, img_w, length):
    """Intersection over union of two lines widened to both sides, over the rows in which the target has a point."""
    invalid = (target < 0) | (target >= img_w)
    overlap = torch.min(pred + length, target + length) - torch.max(pred - length, target - length)
    union = torch.max(pred + length, target + length) - torch.min(pred - length, target - length)
    return overlap.masked_fill(invalid, 0.0).sum(dim=-1) / (union.masked_fill(invalid, 0.0).sum(dim=-1) + 1e-9)


def conv_bn(cin, cout, kernel, relu=True, **kwargs):
    layers = [nn.Conv2d(cin, cout, kernel, bias=False, **kwargs), nn.BatchNorm2d(cout)] + [nn.ReLU()] * relu
    return nn.Sequential(*layers)


class BasicBlock(nn.Module):
    """Two convolutions; where the block strides the shortcut averages before it projects."""

    def __init__(self, inplanes, planes, stride):
        super().__init__()
        self.conv1 = conv_bn(inplanes, planes, 3, stride=stride, padding=1)
        self.conv2 = conv_bn(planes, planes, 3, relu=False, padding=1)
        self.downsample = None
        if stride != 1 or inplanes != planes:
            pool = nn.AvgPool2d(stride, stride, ceil_mode=True, count_include_pad=False)
            self.downsample = nn.Sequential(pool, conv_bn(inplanes, planes, 1, relu=False))

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        return F.relu(self.conv2(self.conv1(x)) + identity)


class ResNet(nn.Module):
    """A small residual net that gives the maps of its last three stages."""

    def __init__(self, stem_width, widths, depths):
        super().__init__()
        self.stem = conv_bn(3, stem_width, 7, stride=2, padding=3)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        inplanes, self.stages = stem_width, nn.ModuleList()
        for index, (planes, depth) in enumerate(zip(widths, depths)):
            blocks = []
            for i in range(depth):
                blocks.append(BasicBlock(inplanes, planes, 2 if i == 0 and index > 0 else 1))
                inplanes = planes
            self.stages.append(nn.Sequential(*blocks))

    def forward(self, x):
        x = self.maxpool(self.stem(x))
        outs = [x]
        for stage in self.stages:
            outs.append(stage(outs[-1]))
        return outs[2:]


class FPN(nn.Module):
    """Feature pyramid: lateral convolutions, a path from the top down, and a convolution on each level."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.lateral_convs = nn.ModuleList(nn.Conv2d(c, out_channels, 1) for c in in_channels)
        self.fpn_convs = nn.ModuleList(nn.Conv2d(out_channels, out_channels, 3, padding=1) for _ in in_channels)

    def forward(self, inputs):
        laterals = [conv(x) for conv, x in zip(self.lateral_convs, inputs)]
        for i in range(len(laterals) - 1, 0, -1):
            size = laterals[i - 1].shape[2:]
            laterals[i - 1] = laterals[i - 1] + F.interpolate(laterals[i], size=size, mode="nearest")
        return [conv(x) for conv, x in zip(self.fpn_convs, laterals)]


class LinePriors(nn.Module):
    """Learnt (start_y, start_x, theta) of the anchors."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.embeddings = nn.Embedding(cfg.num_priors, 3)
        self.register_buffer("prior_ys", torch.linspace(1, 0, cfg.num_points), persistent=False)
        # anchors from the left side, from the bottom, and from the right side
        bottom, side = cfg.num_priors * 3 // 4, cfg.num_priors // 8
        rows = [(i // 2 * 0.5 / (side // 2 - 1), 0.0, (0.16, 0.32)[i % 2]) for i in range(side)]
        rows += [(0.0, (i // 4 + 1) / (bottom // 4 + 1), 0.2 * (i % 4 + 1)) for i in range(bottom)]
        rows += [(i // 2 * 0.5 / (side // 2 - 1), 1.0, (0.68, 0.84)[i % 2]) for i in range(side)]
        self.embeddings.weight.data.copy_(torch.tensor(rows))

    def forward(self, batch_size):
        start = self.embeddings.weight
        xs = draw_lines(start, self.prior_ys, self.cfg.img_w, self.cfg.img_h)
        priors = torch.cat((torch.zeros_like(start[:, :2]), start, torch.zeros_like(start[:, :1]), xs), dim=1)
        return priors.repeat(batch_size, 1, 1)


class AnchorAttention(nn.Module):
    """Each anchor looks at all the others, with weights that come from its own features alone."""

    def __init__(self, channels, num_priors):
        super().__init__()
        self.num_priors = num_priors
        self.attention_layer = nn.Linear(channels, num_priors - 1)

    def forward(self, x):
        matrix = x.new_zeros((x.shape[0], self.num_priors, self.num_priors))
        others = ~torch.eye(self.num_priors, dtype=torch.bool)
        matrix[:, others] = self.attention_layer(x).softmax(dim=-1).flatten(1)
        attended = torch.bmm(x.transpose(1, 2), matrix.transpose(1, 2)).transpose(1, 2)
        return torch.cat((attended, x), dim=-1)


class ROIGather(nn.Module):
    """Features along the anchors on all levels so far, and a look at the whole map of this level."""

    def __init__(self, cfg):
        super().__init__()
        channels, mid, hidden, n = cfg.fpn_channels, cfg.mid_channels, cfg.fc_hidden, cfg.num_priors
        self.scale, self.num_priors, self.size = channels**-0.5, n, cfg.gather_size
        self.f_key = conv_bn(channels, hidden, 1)
        self.f_value = nn.Conv2d(channels, hidden, 1)
        self.f_query = nn.Sequential(nn.Conv1d(n, n, 1, groups=n), nn.ReLU())
        self.W = nn.Conv1d(n, n, 1, groups=n)
        self.dropout = nn.Dropout(0.1)
        self.convs, self.catconv = nn.ModuleList(), nn.ModuleList()
        for i in range(cfg.refine_layers):
            self.convs.append(conv_bn(channels, mid, (5, 1), padding=(4, 0), dilation=(2, 1)))
            self.catconv.append(conv_bn(mid * (i + 1), channels, (5, 1), padding=(2, 0)))
        self.fc = nn.Linear(cfg.sample_points * channels, hidden)
        self.fc_norm = nn.LayerNorm(hidden)

    def forward(self, roi_features, x, layer_index):
        """roi_features: one (batch * priors, channels, points, 1) for each level so far; x is this level's map."""
        roi = torch.cat([conv(feature) for conv, feature in zip(self.convs, roi_features)], dim=1)
        roi = self.catconv[layer_index](roi)
        roi = self.fc(roi.reshape(x.shape[0] * self.num_priors, -1))
        roi = F.relu(self.fc_norm(roi)).view(x.shape[0], self.num_priors, -1)
        query = self.f_query(roi)
        key = F.interpolate(self.f_key(x), size=self.size, mode="nearest").flatten(2)
        value = F.interpolate(self.f_value(x), size=self.size, mode="nearest").flatten(2).permute(0, 2, 1)
        similarity = torch.matmul(query, key) * self.scale
        context = torch.matmul(similarity.softmax(dim=-1), value)
        return roi + self.dropout(self.W(context))


class LaneHead(nn.Module):
    """Refines the anchors level by level, from the coarsest map to the finest."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        n_strips, hidden = cfg.num_points - 1, cfg.fc_hidden
        indices = (torch.linspace(0, 1, steps=cfg.sample_points) * n_strips).long()
        self.register_buffer("sample_x_indices", indices, persistent=False)
        self.register_buffer("prior_feat_ys", torch.flip(1 - indices.float() / n_strips, dims=[-1]), persistent=False)
        self.priors = LinePriors(cfg)
        self.roi_gather = ROIGather(cfg)
        self.attention = AnchorAttention(hidden, cfg.num_priors)
        self.cls_head = nn.Sequential(nn.Linear(2 * hidden, hidden), nn.LeakyReLU(0.1), nn.Linear(hidden, 2))
        self.reg_head = nn.Sequential(nn.Linear(2 * hidden, hidden), nn.LeakyReLU(0.1))
        self.reg_layer = nn.Linear(hidden, 4 + cfg.num_points)

    def pool_prior_features(self, feature, prior_xs):
        """Features at the sampled points of each anchor, from the top of the image downwards."""
        batch_size, channels = feature.shape[:2]
        xs = torch.flip(prior_xs, dims=[2]).unsqueeze(-1) * 2.0 - 1.0
        ys = self.prior_feat_ys.view(1, 1, -1, 1).expand_as(xs) * 2.0 - 1.0
        pooled = F.grid_sample(feature, torch.cat((xs, ys), dim=-1), align_corners=True).permute(0, 2, 1, 3)
        return pooled.reshape(batch_size * self.cfg.num_priors, channels, -1, 1)

    def forward(self, features):
        cfg, batch_features = self.cfg, features[::-1]
        priors = self.priors(features[0].shape[0])
        outputs, pooled = [], []
        for stage in range(cfg.refine_layers):
            pooled.append(self.pool_prior_features(batch_features[stage], priors[..., 6 + self.sample_x_indices]))
            x = self.attention(self.roi_gather(pooled, batch_features[stage], stage))
            reg = self.reg_layer(self.reg_head(x))
            predictions = priors.clone()
            predictions[..., :2] = self.cls_head(x)
            predictions[..., 2:5] += reg[..., :3]
            predictions[..., 5] = reg[..., 3]
            predictions[..., 6:] = draw_lines(predictions[..., 2:5], self.priors.prior_ys, cfg.img_w, cfg.img_h)
            lines = predictions.clone()
            predictions[..., 6:] += reg[..., 4:]
            outputs.append(predictions)
            priors = lines.detach()  # straight, without the offsets
        return outputs


class FocalLoss(nn.Module):
    """Focal loss on a softmax, not reduced."""

    def __init__(self, alpha, gamma):
        super().__init__()
        self.gamma = gamma
        self.register_buffer("alpha", torch.tensor(alpha), persistent=False)

    def forward(self, logits, target):
        prob = F.softmax(logits, dim=1) + 1e-6
        one_hot = F.one_hot(target, logits.shape[1]).to(logits.dtype)
        focal = -self.alpha * torch.pow(1.0 - prob, self.gamma) * torch.log(prob)
        return torch.sum(one_hot * focal, dim=1)


class DynamicAssigner(nn.Module):
    """Matches anchors with lanes; a lane gets the more anchors the better they lie on it."""

    def __init__(self, cfg, candidates=4, distance_weight=3.0, cls_weight=1.0):
        super().__init__()
        self.cfg, self.candidates, self.distance_weight, self.cls_weight = cfg, candidates, distance_weight, cls_weight

    def dynamic_k(self, cost, ious):
        matching = torch.zeros_like(cost)
        top_ious, _ = torch.topk(ious.clamp(min=0.0), self.candidates, dim=0)
        ks = torch.clamp(top_ious.sum(0).int(), min=1)
        for gt in range(cost.shape[1]):
            _, index = torch.topk(cost[:, gt], k=ks[gt].item(), largest=False)
            matching[index, gt] = 1.0
        crowded = matching.sum(1) > 1
        if crowded.any():  # an anchor belongs to its cheapest lane only
            matching[crowded] = F.one_hot(cost[crowded].argmin(dim=1), cost.shape[1]).to(cost.dtype)
        rows = matching.sum(1).nonzero().flatten()
        return rows, matching[rows].argmax(dim=-1)

    @torch.no_grad()
    def forward(self, predictions, targets):
        img_w, img_h, pred_xs = self.cfg.img_w, self.cfg.img_h, predictions[:, 6:] * (self.cfg.img_w - 1)
        # mean distance in pixels over the rows in which the lane has a point
        valid = (targets[:, 6:] >= 0) & (targets[:, 6:] < img_w)
        distances = ((targets[None, :, 6:] - pred_xs[:, None]).abs() * valid).sum(dim=-1) / (valid.sum(dim=1) + 1e-9)
        pred_starts = predictions[:, 2:4] * predictions.new_tensor([img_h - 1, img_w - 1])
        target_starts = targets[:, 2:4] * targets.new_tensor([img_h - 1, 1])
        starts = torch.cdist(pred_starts, target_starts, p=2)
        thetas = torch.cdist(predictions[:, 4:5], targets[:, 4:5], p=1) * 180
        cls_cost = -F.log_softmax(predictions[:, :2], dim=1)[:, targets[:, 1].long()]
        distances, starts, thetas = (1 - d / d.max() + 1e-2 for d in (distances, starts, thetas))
        cost = -((distances * starts * thetas) ** 2) * self.distance_weight + cls_cost * self.cls_weight
        return self.dynamic_k(cost, line_iou(pred_xs[:, None], targets[None, :, 6:], img_w, self.cfg.iou_length))


class LaneCriterion(nn.Module):
    """Losses over all levels and all images."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.assigner = DynamicAssigner(cfg)
        self.focal = FocalLoss(cfg.focal_alpha, cfg.focal_gamma)
        self.smooth_l1 = nn.SmoothL1Loss(reduction="none", beta=cfg.smooth_beta)

    def forward(self, outputs, targets):
        cfg, n_strips = self.cfg, self.cfg.num_points - 1
        cls_loss, reg_loss, iou_loss = targets.new_zeros(3)
        for stage in outputs:
            for predictions, target in zip(stage, targets):
                target = target[target[:, 1] == 1]
                cls_target = torch.zeros(predictions.shape[0], dtype=torch.long)
                if len(target) == 0:
                    cls_loss = cls_loss + self.focal(predictions[:, :2], cls_target).sum()
                    continue
                rows, cols = self.assigner(predictions, target)
                cls_target[rows] = 1
                cls_loss = cls_loss + self.focal(predictions[:, :2], cls_target).sum() / len(target)
                reg_yxtl = predictions[rows, 2:6] * targets.new_tensor([n_strips, cfg.img_w - 1, 180, n_strips])
                target_yxtl = target[cols, 2:6] * targets.new_tensor([n_strips, 1, 180, 1])
                pred_starts = (predictions[rows, 2] * n_strips).round().clamp(0, n_strips)
                target_yxtl[:, 3] -= pred_starts - target_yxtl[:, 0].round()  # the end stays, the start may not
                reg_loss = reg_loss + self.smooth_l1(reg_yxtl, target_yxtl).mean()
                iou = line_iou(predictions[rows, 6:] * (cfg.img_w - 1), target[cols, 6:], cfg.img_w, cfg.iou_length)
                iou_loss = iou_loss + (1 - iou).mean()
        losses = torch.stack((cls_loss, reg_loss, iou_loss)) / (len(targets) * len(outputs))
        total = torch.dot(losses, losses.new_tensor(cfg.loss_weights))
        return {"loss": total, "cls_loss": losses[0], "reg_loss": losses[1], "iou_loss": losses[2]}


class LanePostProcess(nn.Module):
    """Scores, suppression of lanes by their distance, and points of the lanes that are kept."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg, self.n_strips = cfg, cfg.num_points - 1
        ys = torch.linspace(1, 0, cfg.num_points) * (cfg.ori_img_h - cfg.cut_height) + cfg.cut_height
        self.register_buffer("ys", ys / cfg.ori_img_h, persistent=False)

    def suppress(self, lanes, scores):
        """Greedy: a lane whose mean distance in common rows to a better one is small is dropped."""
        starts = (lanes[:, 2] * self.n_strips).round().clamp(min=0).long()
        ends = (starts + (lanes[:, 5] * self.n_strips).round().long() - 1).clamp(max=self.n_strips)
        xs = lanes[:, 6:] * (self.cfg.img_w - 1)
        order = torch.argsort(scores, descending=True).tolist()
        keep = []
        while order and len(keep) < self.cfg.max_lanes:
            best, *others = order
            keep.append(best)
            order = []
            for other in others:
                first, last = max(starts[best], starts[other]), min(ends[best], ends[other]) + 1
                gap = (xs[best, first:last] - xs[other, first:last]).abs()
                if first >= last or gap.mean() >= self.cfg.nms_threshold:
                    order.append(other)
        return keep

    def decode(self, lane):
        """Points (x, y) of one lane in fractions of the original image; -2 where there is none."""
        xs = lane[6:].clone()
        start = min(max(0, int(round(lane[2].item() * self.n_strips))), self.n_strips)
        end = min(start + int(round(lane[5].item() * self.n_strips)) - 1, self.n_strips)
        # below its start the lane goes on until it leaves the image
        inside = ((xs[:start] >= 0.0) & (xs[:start] <= 1.0)).flip(0).long().cumprod(0).flip(0).bool()
        xs[end + 1 :] = -2
        xs[:start][~inside] = -2
        points = torch.stack((xs, self.ys), dim=-1)
        points[xs < 0] = -2
        return points.flip(0)

    def forward(self, predictions):
        cfg, batch_size = self.cfg, predictions.shape[0]
        scores = predictions[..., :2].softmax(dim=-1)[..., 1]
        lanes = predictions.new_full((batch_size, cfg.max_lanes, cfg.num_points, 2), -2.0)
        lane_scores = lanes.new_zeros(lanes.shape[:2])
        for b in range(batch_size):
            confident = scores[b] >= cfg.conf_threshold
            prediction, score = predictions[b, confident], scores[b, confident]
            for i, index in enumerate(self.suppress(prediction, score)):
                lanes[b, i], lane_scores[b, i] = self.decode(prediction[index]), score[index]
        return lanes, lane_scores


class LaneNet(nn.Module):
    """Detector of lanes with its losses."""

    def __init__(self, cfg):
        super().__init__()
        self.register_buffer("pixel_mean", torch.tensor(cfg.pixel_mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("pixel_std", torch.tensor(cfg.pixel_std).view(1, 3, 1, 1), persistent=False)
        self.backbone = ResNet(cfg.stem_width, cfg.widths, cfg.depths)
        self.neck = FPN(cfg.widths[1:], cfg.fpn_channels)
        self.head = LaneHead(cfg)
        self.criterion = LaneCriterion(cfg)
        self.postprocess = LanePostProcess(cfg)

    def forward(self, images, targets):
        """targets (batch, lanes, 6 + points): no, yes, start_y, start_x, theta, length, x of each row in pixels."""
        outputs = self.head(self.neck(self.backbone((images - self.pixel_mean) / self.pixel_std)))
        lanes, lane_scores = self.postprocess(outputs[-1])
        losses = self.criterion(outputs, targets)
        return {"predictions": torch.stack(outputs), "lanes": lanes, "lane_scores": lane_scores, **losses}


def trained_like(net):
    """Values as after training, not as after the initialisation."""
    for module in net.modules():
        if isinstance(module, (nn.BatchNorm2d, nn.LayerNorm)):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.2)
            if isinstance(module, nn.BatchNorm2d):
                nn.init.normal_(module.running_mean, std=0.3)
                nn.init.uniform_(module.running_var, 0.5, 1.5)
        elif hasattr(module, "weight") and not isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=(1.1 / module.weight[0].numel()) ** 0.5)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.1)
    head = net.head
    head.priors.embeddings.weight.data += torch.randn(32, 3) * 0.02
    head.cls_head[2].weight.data *= 1.5
    head.reg_layer.weight.data *= torch.tensor([0.04, 0.04, 0.012, 0.12] + [0.03] * 24)[:, None]
    head.reg_layer.bias.data = 0.1 * head.reg_layer.bias.data + 0.62 * (torch.arange(28) == 3)
    return net


def lane_labels(lanes, slots, cfg):
    """Labels of one image from (first row, last row, x at the bottom, slope, bend) of each lane."""
    labels = torch.tensor([1.0, 0.0] + [-1e5] * (4 + cfg.num_points)).repeat(slots, 1)
    rows = torch.arange(cfg.num_points)
    for label, (first, last, bottom, slope, bend) in zip(labels, lanes):
        up = rows / (cfg.num_points - 1)
        xs = bottom + slope * up * cfg.img_h + bend * up**2
        inside = (rows >= first) & (rows <= last) & (xs >= 0) & (xs < cfg.img_w)
        label[:6] = torch.tensor([0, 1, up[inside][0], xs[inside][0], math.atan2(1, slope) / math.pi, inside.sum()])
        label[6:][inside] = xs[inside]
    return labels


def build():
    """The net with the same weights on every run, and three images: three lanes, two lanes, and none."""
    cfg = Config()
    torch.manual_seed(1721)
    net = trained_like(LaneNet(cfg))
    images = 80 * torch.rand(3, 3, 80, 160)
    images = images + 150 * F.interpolate(torch.rand(3, 3, 8, 16), size=(80, 160), mode="bilinear")
    lanes = [(0, 19, 40.0, 0.45, -12.0), (0, 20, 118.0, -0.5, 6.0), (5, 15, 128.0, 0.3, 0.0)]
    lanes = (lanes, [(2, 18, 65.0, 0.15, 9.0), (0, 16, 80.0, 0.2, 4.0)], [])
    return net.eval(), (images, torch.stack([lane_labels(lines, 4, cfg) for lines in lanes]))
