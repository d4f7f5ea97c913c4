"""PillarCenter: a small lidar detector in bird's eye view (pillars -> 2d convnet -> center heads)."""
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

PC_RANGE = (0.0, -16.0, -3.0, 32.0, 16.0, 1.0)
VOXEL = (0.8, 1.0)
OUT_STRIDE = 2
TASKS = (("truck",), ("pedestrian", "cyclist"))
HEADS = (("hm", None), ("reg", 2), ("height", 1), ("dim", 3), ("rot", 2), ("vel", 2), ("iou", 1))


def conv_bn_relu(cin, cout, kernel, stride=1, padding=0):
    return nn.Sequential(nn.Conv2d(cin, cout, kernel, stride=stride, padding=padding, bias=False),
                         nn.BatchNorm2d(cout, eps=1e-3, momentum=0.01), nn.ReLU(inplace=True))


def gather_feat(feat, ind):
    """feat (B, C, H, W), ind (B, K) -> (B, K, C)"""
    b, c = feat.shape[:2]
    feat = feat.permute(0, 2, 3, 1).reshape(b, -1, c)
    return feat.gather(1, ind.unsqueeze(-1).expand(-1, -1, c))


def limit_period(val, period=2 * math.pi):
    return val - torch.floor(val / period + 0.5) * period


class PFNLayer(nn.Module):
    def __init__(self, cin, cout, last):
        super().__init__()
        self.last = last
        cout = cout if last else cout // 2
        self.linear = nn.Linear(cin, cout, bias=False)
        self.norm = nn.BatchNorm1d(cout, eps=1e-3, momentum=0.01)

    def forward(self, x, flat, valid, num_cells):  # x (P, C), flat (P,); invalid points: cell `num_cells`
        x = F.relu(self.norm(self.linear(x)))
        x = x * valid.unsqueeze(-1).to(x.dtype)
        pooled = x.new_zeros(num_cells + 1, x.shape[1])
        pooled = pooled.scatter_reduce(0, flat.unsqueeze(-1).expand_as(x), x, reduce="amax", include_self=True)
        if self.last:
            return pooled
        return torch.cat([x, pooled[flat]], dim=1)


class PillarEncoder(nn.Module):
    def __init__(self, pc_range, voxel, in_dim=5, dims=(24, 20)):
        super().__init__()
        for name, val in (("low", pc_range[:3]), ("high", pc_range[3:]), ("voxel", voxel)):
            self.register_buffer(name, torch.tensor(val), persistent=False)
        self.nx = int(round((pc_range[3] - pc_range[0]) / voxel[0]))
        self.ny = int(round((pc_range[4] - pc_range[1]) / voxel[1]))
        cin = in_dim + 7
        self.pfn = nn.ModuleList()
        for i, d in enumerate(dims):
            self.pfn.append(PFNLayer(cin, d, last=i == len(dims) - 1))
            cin = d

    def forward(self, points, num_points):
        b, n, _ = points.shape
        xyz = points[..., :3]
        valid = torch.arange(n)[None, :] < num_points[:, None]
        valid = valid & ((xyz >= self.low) & (xyz < self.high)).all(-1)

        cell = torch.floor((xyz[..., :2] - self.low[:2]) / self.voxel).long()
        ix = cell[..., 0].clamp(0, self.nx - 1)
        iy = cell[..., 1].clamp(0, self.ny - 1)
        num_cells = b * self.ny * self.nx
        flat = (torch.arange(b)[:, None] * self.ny + iy) * self.nx + ix
        flat = torch.where(valid, flat, torch.full_like(flat, num_cells)).reshape(-1)

        pts = xyz.reshape(-1, 3)
        count = pts.new_zeros(num_cells + 1).index_add(0, flat, torch.ones(b * n))
        total = pts.new_zeros(num_cells + 1, 3).index_add(0, flat, pts)
        mean = total / count.clamp(min=1.0).unsqueeze(-1)
        f_cluster = xyz - mean[flat].view(b, n, 3)

        center = torch.stack([ix, iy], dim=-1).to(xyz.dtype) + 0.5
        center = center * self.voxel + self.low[:2]
        z_mid = 0.5 * (self.low[2] + self.high[2])
        f_center = torch.cat([xyz[..., :2] - center, xyz[..., 2:3] - z_mid], dim=-1)

        rel = (xyz - self.low) / (self.high - self.low)
        depth = xyz[..., :2].norm(dim=-1, keepdim=True) / self.high[0]
        intensity = torch.log1p(points[..., 3:4])
        feats = torch.cat([rel, intensity, points[..., 4:], f_cluster, f_center, depth], dim=-1)
        feats = feats * valid.unsqueeze(-1).to(feats.dtype)

        x = feats.reshape(b * n, -1)
        keep = valid.reshape(-1)
        for layer in self.pfn:
            x = layer(x, flat, keep, num_cells)

        bev = x[:num_cells].view(b, self.ny, self.nx, -1).permute(0, 3, 1, 2)
        count = count[:num_cells].view(b, 1, self.ny, self.nx)
        return torch.cat([bev, torch.log1p(count) / math.log(8.0)], dim=1), (count > 0).to(bev.dtype)


class ChannelGate(nn.Module):  # squeeze and excitation over the occupied cells
    def __init__(self, dim):
        super().__init__()
        self.fc = nn.Conv2d(dim, dim, 1)

    def forward(self, x, occ):
        desc = (x * occ).sum((2, 3), keepdim=True) / occ.sum((2, 3), keepdim=True).clamp(min=1.0)
        return x * F.hardsigmoid(self.fc(desc))


class ResBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.conv1 = nn.Conv2d(dim, dim, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(dim, eps=1e-3, momentum=0.01)
        self.conv2 = nn.Conv2d(dim, dim, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(dim, eps=1e-3, momentum=0.01)
        self.gate = ChannelGate(dim)

    def forward(self, x, occ):
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y = self.gate(y, occ)
        return F.relu(x + y)


class BEVBackbone(nn.Module):
    def __init__(self, cin, dims=(16, 24, 32), depths=(1, 2, 1)):
        super().__init__()
        self.downs = nn.ModuleList()
        self.blocks = nn.ModuleList()
        for d, n in zip(dims, depths):
            self.downs.append(conv_bn_relu(cin, d, 3, stride=2, padding=1))
            self.blocks.append(nn.ModuleList([ResBlock(d) for _ in range(n)]))
            cin = d

    def forward(self, x, occ):
        outs = []
        for down, blocks in zip(self.downs, self.blocks):
            x = down(x)
            occ = F.max_pool2d(occ, 3, stride=2, padding=1)
            for blk in blocks:
                x = blk(x, occ)
            outs.append(x)
        return outs


class ScaleFusion(nn.Module):
    def __init__(self, dims=(16, 24, 32), out=18):
        super().__init__()
        self.lateral = conv_bn_relu(dims[0], out, 1)
        self.deconv = nn.Sequential(nn.ConvTranspose2d(dims[1], out, 2, stride=2, bias=False),
                                    nn.BatchNorm2d(out, eps=1e-3, momentum=0.01), nn.ReLU(inplace=True))
        self.coarse = conv_bn_relu(dims[2], out, 3, padding=1)
        self.level_logit = nn.ModuleList([nn.Conv2d(out, 1, 1) for _ in dims])

    def forward(self, feats):
        c2, c3, c4 = feats
        size = c2.shape[-2:]
        up = F.interpolate(self.coarse(c4), size=size, mode="bilinear", align_corners=False)
        levels = [self.lateral(c2), self.deconv(c3), up]
        logits = torch.cat([conv(f) for conv, f in zip(self.level_logit, levels)], dim=1)
        weight = logits.softmax(dim=1) * len(levels)
        return torch.cat([f * weight[:, i:i + 1] for i, f in enumerate(levels)], dim=1)


class SepHead(nn.Module):
    def __init__(self, cin, num_cls, mid=16):
        super().__init__()
        self.branches = nn.ModuleDict()
        for name, dim in HEADS:
            self.branches[name] = nn.Sequential(conv_bn_relu(cin, mid, 3, padding=1),
                                                nn.Conv2d(mid, dim or num_cls, 3, padding=1))

    def forward(self, x):
        return {name: branch(x) for name, branch in self.branches.items()}


class CenterHead(nn.Module):
    def __init__(self, cin, size, mid=28):
        super().__init__()
        h, w = size
        gy, gx = torch.meshgrid((torch.arange(h) + 0.5) / h * 2 - 1, (torch.arange(w) + 0.5) / w * 2 - 1, indexing="ij")
        self.register_buffer("coords", torch.stack([gx, gy])[None], persistent=False)
        self.shared = conv_bn_relu(cin + 2, mid, 3, padding=1)
        self.tasks = nn.ModuleList([SepHead(mid, len(t)) for t in TASKS])

    def forward(self, x):
        x = torch.cat([x, self.coords.expand(x.shape[0], -1, -1, -1)], dim=1)
        x = self.shared(x)
        return [task(x) for task in self.tasks]


class CenterDecoder(nn.Module):  # peaks of the heatmaps -> (x, y, z, l, w, h, yaw, vx, vy)
    def __init__(self, topk=14, score_thr=0.35, iou_alpha=((0.68,), (0.71, 0.55)),
                 post_range=(-1.0, -16.5, -4.0, 33.0, 15.5, 3.0)):
        super().__init__()
        self.topk, self.score_thr, self.iou_alpha = topk, score_thr, iou_alpha
        self.register_buffer("post_range", torch.tensor(post_range), persistent=False)

    def peaks(self, heat):
        b, c, h, w = heat.shape
        k = self.topk
        local = F.max_pool2d(heat, 3, stride=1, padding=1)
        heat = heat * (local == heat).to(heat.dtype)
        scores, inds = heat.view(b, c, h * w).topk(k, dim=-1)
        scores, order = scores.view(b, c * k).topk(k, dim=-1)
        cls = order // k
        inds = inds.view(b, c * k).gather(1, order)
        return scores, inds, cls, (inds // w).float(), (inds % w).float()

    def decode_task(self, pred, task):
        score, ind, cls, ys, xs = self.peaks(pred["hm"].sigmoid())
        reg, height, dim, rot, vel, iou = (gather_feat(pred[n], ind)
                                           for n in ("reg", "height", "dim", "rot", "vel", "iou"))
        ctr = torch.stack([(xs + reg[..., 0]) * OUT_STRIDE * VOXEL[0] + PC_RANGE[0],
                           (ys + reg[..., 1]) * OUT_STRIDE * VOXEL[1] + PC_RANGE[1], height[..., 0]], dim=-1)
        # the head speaks of (w, l, h) and of a yaw that is counted from the y axis
        size = dim.clamp(min=-3.0, max=3.0).exp()[..., [1, 0, 2]]
        yaw = limit_period(-torch.atan2(rot[..., 0], rot[..., 1]) - math.pi / 2)
        boxes = torch.cat([ctr, size, yaw.unsqueeze(-1), vel], dim=-1)

        quality = ((iou[..., 0] + 1) * 0.5).clamp(0.0, 1.0)
        alpha = torch.tensor(self.iou_alpha[task])[cls]
        score = score.pow(1 - alpha) * quality.pow(alpha)
        keep = (ctr >= self.post_range[:3]).all(-1) & (ctr <= self.post_range[3:]).all(-1)
        keep = keep & (score > self.score_thr)
        return boxes, torch.where(keep, score, torch.zeros_like(score)), cls

    def forward(self, preds):
        rets, start = [], 0
        for t, pred in enumerate(preds):
            boxes, score, cls = self.decode_task(pred, t)
            rets.append((boxes, score, cls + start))
            start += len(TASKS[t])
        return [torch.cat(r, dim=1) for r in zip(*rets)]


class DistanceSuppression(nn.Module):  # always `max_out` rows, padded with zeros / label -1
    def __init__(self, max_out=11, radius=(4.0, 1.5, 2.2)):
        super().__init__()
        self.max_out = max_out
        self.register_buffer("radius", torch.tensor(radius), persistent=False)

    def forward(self, boxes, scores, labels):
        rows = torch.arange(boxes.shape[0])
        left = scores.clone()
        out_b, out_s, out_l = [], [], []
        for _ in range(self.max_out):
            best, i = left.max(dim=1)
            box, label = boxes[rows, i], labels[rows, i]
            ok = best > 0
            out_b.append(torch.where(ok[:, None], box, torch.zeros_like(box)))
            out_s.append(torch.where(ok, best, torch.zeros_like(best)))
            out_l.append(torch.where(ok, label, torch.full_like(label, -1)))
            dist = (boxes[..., :2] - box[:, None, :2]).pow(2).sum(-1).sqrt()
            same = labels == label[:, None]
            r = self.radius[label][:, None] * torch.where(same, 1.0, 0.5)
            # same class: up to twice the radius only a part of the score is lost
            decay = ((dist - r) / r).clamp(0.0, 1.0)
            decay = torch.where(same, decay, (dist >= r).float())
            left = left * decay
            left[rows, i] = 0.0
        return torch.stack(out_b, 1), torch.stack(out_s, 1), torch.stack(out_l, 1)


def box_corners(boxes):
    """(..., 9) -> (..., 8, 3), counterclockwise, bottom first"""
    quad = [[1, 1], [-1, 1], [-1, -1], [1, -1]]
    sign = boxes.new_tensor([[*q, z] for z in (-1, 1) for q in quad]) / 2
    local = boxes[..., None, 3:6] * sign
    cos, sin = boxes[..., 6].cos(), boxes[..., 6].sin()
    zero, one = torch.zeros_like(cos), torch.ones_like(cos)
    rot = torch.stack([cos, -sin, zero, sin, cos, zero, zero, zero, one], dim=-1)
    rot = rot.view(*boxes.shape[:-1], 3, 3)
    return torch.einsum("...ij,...kj->...ki", rot, local) + boxes[..., None, :3]


class CenterLoss(nn.Module):
    def __init__(self, size, min_overlap=0.1, min_radius=1):
        super().__init__()
        self.h, self.w, self.min_overlap, self.min_radius = *size, min_overlap, min_radius
        self.register_buffer("code_weight", torch.tensor([1, 1, 1, 1, 1, 1, 1.5, 1.5, 0.2, 0.2]), persistent=False)

    def gaussian_radius(self, a, b):
        o = self.min_overlap
        b1, b2, b3 = a + b, 2 * (a + b), -2 * o * (a + b)
        r1 = (b1 + (b1 ** 2 - 4 * a * b * (1 - o) / (1 + o)).sqrt()) / 2
        r2 = (b2 + (b2 ** 2 - 16 * (1 - o) * a * b).sqrt()) / 8
        r3 = (b3 + (b3 ** 2 - 16 * o * (o - 1) * a * b).sqrt()) / (8 * o)
        return torch.minimum(torch.minimum(r1, r2), r3)

    def targets(self, boxes, labels, start, num_cls):
        cx = (boxes[..., 0] - PC_RANGE[0]) / (VOXEL[0] * OUT_STRIDE)
        cy = (boxes[..., 1] - PC_RANGE[1]) / (VOXEL[1] * OUT_STRIDE)
        ix, iy = cx.floor(), cy.floor()
        mask = (labels >= start) & (labels < start + num_cls) & (ix >= 0) & (ix < self.w) & (iy >= 0) & (iy < self.h)

        length, width = boxes[..., 3] / (VOXEL[0] * OUT_STRIDE), boxes[..., 4] / (VOXEL[1] * OUT_STRIDE)
        radius = self.gaussian_radius(length, width).floor().clamp(min=self.min_radius)
        sigma = ((2 * radius + 1) / 6)[..., None, None]
        dx = torch.arange(self.w)[None, None, None, :] - ix[..., None, None]
        dy = torch.arange(self.h)[None, None, :, None] - iy[..., None, None]
        blob = torch.exp(-(dx ** 2 + dy ** 2) / (2 * sigma ** 2))
        r = radius[..., None, None]
        blob = blob * ((dx.abs() <= r) & (dy.abs() <= r)).float()
        own = F.one_hot((labels - start).clamp(0, num_cls - 1), num_cls).float() * mask[..., None].float()
        heat = (blob[:, :, None] * own[..., None, None]).amax(dim=1)

        yaw = -boxes[..., 6] - math.pi / 2
        code = torch.cat([torch.stack([cx - ix, cy - iy], -1), boxes[..., 2:3],
                          boxes[..., [4, 3, 5]].clamp(min=1e-2).log(),
                          torch.stack([yaw.sin(), yaw.cos()], -1), boxes[..., 7:9]], dim=-1)
        ind = (iy * self.w + ix).long().clamp(0, self.h * self.w - 1)
        return heat, code, ind, mask

    def forward(self, preds, gt_boxes, gt_labels):
        hm_losses, reg_losses, start = [], [], 0
        for t, pred in enumerate(preds):
            num_cls = len(TASKS[t])
            heat, code, ind, mask = self.targets(gt_boxes, gt_labels, start, num_cls)
            p = pred["hm"].sigmoid().clamp(1e-4, 1 - 1e-4)
            pos = (heat == 1).float()
            pos_loss = -p.log() * (1 - p) ** 2 * pos
            neg_loss = -(1 - p).log() * p ** 2 * (1 - heat) ** 4 * (1 - pos)
            hm_losses.append((pos_loss.sum() + neg_loss.sum()) / pos.sum().clamp(min=1.0))

            out = torch.cat([gather_feat(pred[n], ind) for n in ("reg", "height", "dim", "rot", "vel")], dim=-1)
            m = mask.float().unsqueeze(-1)
            diff = ((out - code).abs() * m).sum((0, 1)) / (m.sum() + 1e-4)
            reg_losses.append((diff * self.code_weight).sum())
            start += num_cls
        return torch.stack(hm_losses), torch.stack(reg_losses)


class PillarCenter(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = PillarEncoder(PC_RANGE, VOXEL)
        size = (self.encoder.ny // OUT_STRIDE, self.encoder.nx // OUT_STRIDE)
        self.backbone = BEVBackbone(21)
        self.neck = ScaleFusion()
        self.head = CenterHead(54, size)
        self.decoder = CenterDecoder()
        self.suppress = DistanceSuppression()
        self.loss = CenterLoss(size)

    def forward(self, points, num_points, gt_boxes, gt_labels):
        bev, occ = self.encoder(points, num_points)
        preds = self.head(self.neck(self.backbone(bev, occ)))
        boxes, scores, labels = self.suppress(*self.decoder(preds))
        loss_hm, loss_reg = self.loss(preds, gt_boxes, gt_labels)
        return boxes, scores, labels, box_corners(boxes), loss_hm, loss_reg


def make_inputs(seed=7, b=2, n=260, m=9):
    rng = np.random.RandomState(seed)
    low, high = np.array(PC_RANGE[:3]), np.array(PC_RANGE[3:])
    boxes, labels = np.zeros((b, m, 9)), rng.randint(0, 3, (b, m))
    boxes[..., :3] = low + rng.uniform(0.08, 0.92, (b, m, 3)) * (high - low)
    sizes = np.array([[8.5, 2.8, 3.1], [0.7, 0.8, 1.75], [1.8, 0.6, 1.6]])
    boxes[..., 3:6] = sizes[labels] * rng.uniform(0.8, 1.6, (b, m, 3))
    boxes[..., 6] = rng.uniform(-np.pi, np.pi, (b, m))
    boxes[..., 7:] = rng.randn(b, m, 2) * 2
    own = rng.randint(0, m, (b, n))
    xyz = np.take_along_axis(boxes[..., :3], own[..., None], 1) + rng.randn(b, n, 3) * [1.1, 1.0, 0.5]
    far = rng.uniform(-0.05, 1.05, (b, n, 3)) * (high - low) + low
    xyz = np.where(rng.rand(b, n, 1) < 0.45, far, xyz)
    points = np.concatenate([xyz, rng.gamma(2.0, 1.5, (b, n, 1)), rng.randint(0, 5, (b, n, 1)) * 0.1], -1)
    labels[0, 7:], labels[1, 8:] = -1, -1
    boxes[labels < 0] = 0.0
    num = np.array([n, n - 47])
    return points.astype(np.float32), num.astype(np.int64), boxes.astype(np.float32), labels.astype(np.int64)


def build():
    torch.manual_seed(33)
    net = PillarCenter()
    with torch.no_grad():
        for mod in net.modules():
            if isinstance(mod, (nn.BatchNorm1d, nn.BatchNorm2d)):
                mod.weight.uniform_(0.6, 1.5)
                mod.bias.normal_(0.1, 0.3)
                mod.running_mean.normal_(0.0, 0.4)
                mod.running_var.uniform_(0.15, 1.6)
            elif isinstance(mod, (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)):
                fan_in = mod.weight[0].numel() if not isinstance(mod, nn.ConvTranspose2d) else mod.weight.shape[0]
                mod.weight.normal_(0.0, 1.2 / math.sqrt(fan_in))
                if mod.bias is not None:
                    mod.bias.normal_(0.0, 0.3)
        for task in net.head.tasks:
            for name, scale, shift in (("hm", 0.8, -1.2), ("reg", 0.3, 0.4), ("height", 0.4, -0.9), ("dim", 0.4, 0.6),
                                       ("rot", 0.5, 0.0), ("vel", 0.5, 0.0), ("iou", 0.25, 0.4)):
                conv = task.branches[name][1]
                conv.weight.sub_(conv.weight.mean((1, 2, 3), keepdim=True)).mul_(scale)
                conv.bias += shift
    return net.eval(), tuple(torch.from_numpy(a) for a in make_inputs())

