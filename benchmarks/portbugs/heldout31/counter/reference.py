"""A crowd counter with a density head and a point head; points are matched by optimal transport. In PyTorch."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class Config:
    """The options of the small model."""

    image_mean, image_std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    grid = (64, 96)
    widths, gate_reduction = (10, 16, 24), 4
    neck_width, context_bins = 16, (1, 2, 3)
    density_width, density_dilations, density_factor = 14, (2, 3), 5.0
    anchor_rows, anchor_lines, offset_scale = 2, 1, 12.0
    sinkhorn_iters, eps_start, eps_end = 12, 1.0, 0.15
    cost_point, cost_class, match_threshold = 0.08, 1.5, 0.2
    sigma, background_ratio = 7.0, 0.25
    empty_weight, huber_beta = 0.4, 4.0
    peak_kernel, peak_sigma, peak_threshold = 5, 1.2, 0.25
    max_peaks, neighbours, radius_factor = 10, 2, 0.3


def cell_mask(sizes, h, w, stride):
    """(batch, 1, h, w): one where the centre of a cell lies in the picture, zero where it lies in the padding."""
    ys = (torch.arange(h) + 0.5) * stride
    xs = (torch.arange(w) + 0.5) * stride
    inside = (ys[None, :] < sizes[:, 0:1])[:, :, None] & (xs[None, :] < sizes[:, 1:2])[:, None, :]
    return inside.unsqueeze(1).float()


def coordinate_channels(sizes, h, w, stride):
    """(batch, 2, h, w): x and y of the cells, from -1 to 1 over the unpadded picture."""
    gy = 2.0 * (torch.arange(h) + 0.5) * stride / sizes[:, 0:1] - 1.0
    gx = 2.0 * (torch.arange(w) + 0.5) * stride / sizes[:, 1:2] - 1.0
    b = sizes.shape[0]
    return torch.stack((gx[:, None, :].expand(b, h, w), gy[:, :, None].expand(b, h, w)), dim=1)


def log_sinkhorn(scores, log_mu, log_nu, epsilons):
    """Sinkhorn's iterations in the log domain with a falling temperature; returns the logarithm of the plan."""
    f, g = torch.zeros_like(log_mu), torch.zeros_like(log_nu)
    for eps in epsilons:
        f = eps * (log_mu - torch.logsumexp((scores + g[:, None, :]) / eps, dim=2))
        g = eps * (log_nu - torch.logsumexp((scores + f[:, :, None]) / eps, dim=1))
    return (scores + f[:, :, None] + g[:, None, :]) / eps


class ChannelGate(nn.Module):
    """Squeeze and excitation, squeezing over the unpadded cells only."""

    def __init__(self, channels, reduction):
        super().__init__()
        self.fc1 = nn.Linear(channels, channels // reduction)
        self.fc2 = nn.Linear(channels // reduction, channels)

    def forward(self, x, mask):
        mean = (x * mask).sum(dim=(2, 3)) / mask.sum(dim=(2, 3)).clamp(min=1.0)
        gate = F.hardsigmoid(self.fc2(F.relu(self.fc1(mean))))
        return x * gate[:, :, None, None]


class ResBlock(nn.Module):
    """Two convolutions, a gate, and a skip that is projected where the shape changes."""

    def __init__(self, c_in, c_out, stride, reduction):
        super().__init__()
        self.conv1 = nn.Conv2d(c_in, c_out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(c_out)
        self.act = nn.SiLU()
        self.conv2 = nn.Conv2d(c_out, c_out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(c_out)
        self.gate = ChannelGate(c_out, reduction)
        self.skip = nn.Identity()
        if stride != 1 or c_in != c_out:
            self.skip = nn.Sequential(nn.Conv2d(c_in, c_out, 1, stride, bias=False), nn.BatchNorm2d(c_out))

    def forward(self, x, mask):
        y = self.act(self.bn1(self.conv1(x)))
        y = self.gate(self.bn2(self.conv2(y)), mask)
        return F.relu(self.skip(x) + y) * mask


class Backbone(nn.Module):
    """Features at a quarter and at an eighth of the picture."""

    def __init__(self, widths, reduction):
        super().__init__()
        w2, w4, w8 = widths
        self.stem = nn.Conv2d(3, w2, 3, 2, 1, bias=False)
        self.stem_bn = nn.BatchNorm2d(w2)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.stage4 = nn.ModuleList([ResBlock(w2, w4, 1, reduction), ResBlock(w4, w4, 1, reduction)])
        self.stage8 = nn.ModuleList([ResBlock(w4, w8, 2, reduction), ResBlock(w8, w8, 1, reduction)])

    def forward(self, x, mask4, mask8):
        x = self.pool(F.relu(self.stem_bn(self.stem(x)))) * mask4
        for block in self.stage4:
            x = block(x, mask4)
        c4 = x
        for block in self.stage8:
            x = block(x, mask8)
        return c4, x


class ContextModule(nn.Module):
    """Contrast of each cell with means over windows of several sizes; the means are weighted by it."""

    def __init__(self, channels, bins):
        super().__init__()
        self.bins = bins
        self.scales = nn.ModuleList([nn.Conv2d(channels, channels, 1, bias=False) for _ in bins])
        self.weight = nn.Conv2d(channels, channels, 1)
        self.bottleneck = nn.Conv2d(2 * channels, channels, 1)

    def forward(self, feats):
        total, norm = 0.0, 0.0
        for bins, conv in zip(self.bins, self.scales):
            pooled = conv(F.adaptive_avg_pool2d(feats, bins))
            spread = F.interpolate(pooled, size=feats.shape[2:], mode="bilinear", align_corners=False)
            weight = torch.sigmoid(self.weight(spread - feats))
            total = total + weight * spread
            norm = norm + weight
        return F.relu(self.bottleneck(torch.cat((total / norm, feats), dim=1)))


class Neck(nn.Module):
    """Joins the two scales."""

    def __init__(self, widths, width, bins):
        super().__init__()
        self.lateral4 = nn.Conv2d(widths[1], width, 1)
        self.lateral8 = nn.Conv2d(widths[2], width, 1)
        self.context = ContextModule(width, bins)
        self.smooth = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.GroupNorm(4, width)
        self.act = nn.GELU()

    def forward(self, c4, c8, mask4, mask8):
        p8 = self.context(self.lateral8(c8) * mask8) * mask8
        up = F.interpolate(p8, scale_factor=2, mode="bilinear", align_corners=False)
        p4 = self.act(self.norm(self.smooth(self.lateral4(c4) + up)))
        return p4 * mask4, p8


class DensityHead(nn.Module):
    """Dilated convolutions; the density is positive, and zero in the padding."""

    def __init__(self, c_in, width, dilations, factor):
        super().__init__()
        self.factor = factor
        layers = []
        for rate in dilations:
            conv = nn.Conv2d(c_in, width, 3, padding=rate, dilation=rate, bias=False)
            layers += [conv, nn.BatchNorm2d(width, eps=1e-3), nn.LeakyReLU()]
            c_in = width
        self.body = nn.Sequential(*layers)
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x, mask):
        return F.softplus(self.out(self.body(x))) / self.factor * mask


class PointHead(nn.Module):
    """Proposals: for each anchor of each cell an offset and two logits."""

    def __init__(self, c_in, cfg, stride=8):
        super().__init__()
        self.stride, self.offset_scale = stride, cfg.offset_scale
        self.anchors = cfg.anchor_rows * cfg.anchor_lines
        self.conv = nn.Conv2d(c_in + 2, c_in, 3, padding=1)
        self.norm = nn.LayerNorm(c_in)
        self.act = nn.GELU()
        self.offsets = nn.Conv2d(c_in, self.anchors * 2, 3, padding=1)
        self.logits = nn.Conv2d(c_in, self.anchors * 2, 3, padding=1)
        # the anchors' places within a cell, from its centre, as (x, y)
        rows = [(i + 0.5) * stride / cfg.anchor_rows - stride / 2 for i in range(cfg.anchor_rows)]
        lines = [(i + 0.5) * stride / cfg.anchor_lines - stride / 2 for i in range(cfg.anchor_lines)]
        self.pattern = torch.tensor([(x, y) for y in rows for x in lines])

    def forward(self, x, sizes, mask):
        b, _, h, w = x.shape
        x = torch.cat((x, coordinate_channels(sizes, h, w, self.stride) * mask), dim=1)
        x = self.norm(self.conv(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        x = self.act(x) * mask
        offsets = self.offsets(x).permute(0, 2, 3, 1).reshape(b, -1, 2)
        logits = self.logits(x).permute(0, 2, 3, 1).reshape(b, -1, 2)
        ys, xs = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        centres = (torch.stack((xs, ys), dim=-1).reshape(-1, 1, 2) + 0.5) * self.stride
        coords = (centres + self.pattern).reshape(1, -1, 2) + torch.tanh(offsets) * self.offset_scale
        # nobody stands outside the picture
        coords = torch.minimum(coords.clamp(min=0.0), sizes.flip(1)[:, None, :] - 1.0)
        valid = mask.flatten(1).repeat_interleave(self.anchors, dim=1) > 0.5
        return coords, logits, valid


class SinkhornMatcher(nn.Module):
    """Soft assignment of proposals to annotated points, with a bin for whatever remains alone."""

    def __init__(self, cfg):
        super().__init__()
        self.cost_point, self.cost_class = cfg.cost_point, cfg.cost_class
        self.threshold = cfg.match_threshold
        self.bin_score = nn.Parameter(torch.tensor(-1.0))
        ratio = (cfg.eps_end / cfg.eps_start) ** (1.0 / (cfg.sinkhorn_iters - 1))
        self.epsilons = [cfg.eps_start * ratio**i for i in range(cfg.sinkhorn_iters)]

    def forward(self, coords, probs, valid, points, point_mask):
        b, n, _ = coords.shape
        m = points.shape[1]
        cost = self.cost_point * torch.cdist(coords, points, compute_mode="donot_use_mm_for_euclid_dist")
        scores = self.cost_class * probs[:, :, None] - cost
        scores = torch.cat((scores, self.bin_score.expand(b, n, 1)), dim=2)
        scores = torch.cat((scores, self.bin_score.expand(b, 1, m + 1)), dim=1)

        # each proposal and each point has mass one; the bins could take all of the other side
        n_valid, m_valid = valid.float().sum(1, keepdim=True), point_mask.float().sum(1, keepdim=True)
        mu = torch.cat((valid.float(), m_valid), dim=1)
        nu = torch.cat((point_mask.float(), n_valid), dim=1)
        total = n_valid + m_valid
        log_mu = torch.where(mu > 0, (mu / total).clamp(min=1e-6).log(), torch.tensor(-1e4))
        log_nu = torch.where(nu > 0, (nu / total).clamp(min=1e-6).log(), torch.tensor(-1e4))
        plan = log_sinkhorn(scores, log_mu, log_nu, self.epsilons).exp() * total[:, :, None]

        inner = plan[:, :-1, :-1]
        best, proposal = inner.max(dim=1)  # for each point
        mutual = inner.argmax(dim=2).gather(1, proposal) == torch.arange(m)[None]
        matched = mutual & (best > self.threshold) & point_mask
        mean = inner.transpose(1, 2) @ coords / inner.sum(dim=1).clamp(min=1e-6)[..., None]
        return plan, proposal, matched, mean * point_mask[..., None]


class BayesianExpectation(nn.Module):
    """How many heads the density has at each annotated point in expectation, and how many in the background."""

    def __init__(self, cfg, stride=4):
        super().__init__()
        self.sigma, self.background_ratio = cfg.sigma, cfg.background_ratio
        self.register_buffer("ys", torch.arange(0, cfg.grid[0], stride) + stride / 2, persistent=False)
        self.register_buffer("xs", torch.arange(0, cfg.grid[1], stride) + stride / 2, persistent=False)

    def forward(self, density, points, point_mask, sizes):
        b, m = point_mask.shape
        expected = density.new_zeros(b, m + 1)
        losses = []
        for i in range(b):
            flat = density[i].reshape(1, -1)
            pts = points[i][point_mask[i]]
            if len(pts) == 0:  # only background
                expected[i, m] = flat.sum()
                losses.append(flat.sum())
                continue
            dx = (pts[:, 0:1] - self.xs[None, :]) ** 2
            dy = (pts[:, 1:2] - self.ys[None, :]) ** 2
            dis = (dy[:, :, None] + dx[:, None, :]).reshape(len(pts), -1)
            nearest = dis.min(dim=0, keepdim=True)[0]
            side = sizes[i].min() * self.background_ratio
            background = side**2 / (nearest + 1e-5)
            posterior = torch.softmax(-torch.cat((dis, background)) / (2.0 * self.sigma**2), dim=0)
            count = (posterior * flat).sum(dim=1)
            target = F.pad(torch.ones(len(pts)), (0, 1))
            losses.append((target - count).abs().sum())
            expected[i, :m][point_mask[i]] = count[:-1]
            expected[i, m] = count[-1]
        return expected, torch.stack(losses)


class Criterion(nn.Module):
    """What the proposals are punished for, and the distance of the density from the annotated cells."""

    def __init__(self, cfg, stride=4):
        super().__init__()
        self.stride, self.beta = stride, cfg.huber_beta
        self.class_weight = torch.tensor([cfg.empty_weight, 1.0])

    def forward(self, density, coords, logits, valid, proposal, matched, points, point_mask):
        target = torch.zeros(valid.shape, dtype=torch.long)
        for i in range(len(target)):
            target[i, proposal[i][matched[i]]] = 1
        loss_class = F.cross_entropy(logits[valid], target[valid], weight=self.class_weight)
        pairs = coords.gather(1, proposal[..., None].expand(-1, -1, 2))
        loss_point = F.smooth_l1_loss(pairs[matched], points[matched], beta=self.beta, reduction="sum")
        loss_point = loss_point / max(int(point_mask.sum()), 1)

        # total variation between the annotated cells and the density, both normalised
        cell = torch.div(points, self.stride, rounding_mode="floor").long()
        index = cell[..., 1] * density.shape[-1] + cell[..., 0]
        count = point_mask.float().sum(dim=1, keepdim=True)
        flat = density.flatten(1)
        truth = torch.zeros_like(flat).scatter_add_(1, index, point_mask.float()) / (count + 1e-6)
        apart = (truth - flat / (flat.sum(dim=1, keepdim=True) + 1e-6)).abs().sum(dim=1, keepdim=True)
        return torch.stack((loss_class, loss_point, (0.5 * apart * count).mean()))


class PeakFinder(nn.Module):
    """Local maxima of the smoothed density, refined within their neighbourhood, with a radius from their spacing."""

    def __init__(self, cfg, stride=4):
        super().__init__()
        self.cfg, self.stride = cfg, stride
        bell = torch.exp(-((torch.arange(cfg.peak_kernel) - cfg.peak_kernel // 2) ** 2) / (2 * cfg.peak_sigma**2))
        self.register_buffer("window", (bell[:, None] * bell / bell.sum() ** 2)[None, None], persistent=False)
        steps = torch.tensor([-1.0, 0.0, 1.0])
        self.step_x, self.step_y = steps.repeat(3)[None, :, None], steps.repeat_interleave(3)[None, :, None]

    def forward(self, density, mask):
        cfg = self.cfg
        b, _, _, w = density.shape
        half = cfg.peak_kernel // 2
        smooth = F.conv2d(F.pad(density, (half,) * 4, mode="reflect"), self.window) * mask
        highest = smooth.amax(dim=(1, 2, 3), keepdim=True)
        keep = (smooth == F.max_pool2d(smooth, 3, 1, 1)) & (smooth > cfg.peak_threshold * highest)
        score, index = torch.where(keep, smooth, torch.zeros_like(smooth)).flatten(1).topk(cfg.max_peaks, dim=1)
        found = score > 0

        near = F.unfold(F.pad(smooth, (1, 1, 1, 1), mode="replicate"), 3)  # (batch, 9, cells)
        near = near.gather(2, index[:, None, :].expand(-1, 9, -1))
        near = near - near.amin(dim=1, keepdim=True)
        near = near / near.sum(dim=1, keepdim=True).clamp(min=1e-8)
        x = index % w + (near * self.step_x).sum(dim=1)
        y = torch.div(index, w, rounding_mode="floor") + (near * self.step_y).sum(dim=1)
        peaks = (torch.stack((x, y), dim=-1) + 0.5) * self.stride

        apart = (peaks[:, :, None] - peaks[:, None, :]).pow(2).sum(-1).sqrt()
        apart = apart.masked_fill(~found[:, None, :], 1e3) + torch.eye(cfg.max_peaks) * 1e3
        radius = cfg.radius_factor * apart.topk(cfg.neighbours, dim=-1, largest=False)[0].mean(dim=-1)
        peaks = torch.where(found[..., None], peaks, torch.full_like(peaks, -1.0))
        return peaks, score / highest.reshape(b, 1), radius.clamp(max=16.0) * found


class CrowdCounter(nn.Module):
    """Pictures (batch, 3, height, width) from 0 to 255, their sizes before padding, and annotated points (x, y)."""

    def __init__(self, cfg):
        super().__init__()
        self.register_buffer("mean", torch.tensor(cfg.image_mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(cfg.image_std).view(1, 3, 1, 1), persistent=False)
        self.backbone = Backbone(cfg.widths, cfg.gate_reduction)
        self.neck = Neck(cfg.widths, cfg.neck_width, cfg.context_bins)
        self.density_head = DensityHead(cfg.neck_width, cfg.density_width, cfg.density_dilations, cfg.density_factor)
        self.point_head = PointHead(cfg.neck_width, cfg)
        self.matcher = SinkhornMatcher(cfg)
        self.bayes = BayesianExpectation(cfg)
        self.criterion = Criterion(cfg)
        self.peaks = PeakFinder(cfg)

    def forward(self, images, sizes, points, point_mask):
        h, w = images.shape[2:]
        x = (images / 255.0 - self.mean) / self.std * cell_mask(sizes, h, w, 1)
        mask4, mask8 = cell_mask(sizes, h // 4, w // 4, 4), cell_mask(sizes, h // 8, w // 8, 8)
        p4, p8 = self.neck(*self.backbone(x, mask4, mask8), mask4, mask8)

        density = self.density_head(p4, mask4)
        coords, logits, valid = self.point_head(p8, sizes, mask8)
        probs = logits.softmax(dim=-1)[..., 1] * valid
        # annotations outside the picture do not count
        point_mask = point_mask & (points >= 0).all(-1) & (points < sizes.flip(1)[:, None, :]).all(-1)
        points = torch.where(point_mask[..., None], points, torch.zeros_like(points))

        plan, proposal, matched, assigned = self.matcher(coords, probs, valid, points, point_mask)
        expected, loss_bayes = self.bayes(density, points, point_mask, sizes)
        losses = self.criterion(density, coords, logits, valid, proposal, matched, points, point_mask)
        losses = torch.cat((loss_bayes.mean()[None], losses))
        peaks, peak_scores, radius = self.peaks(density, mask4)
        regions = F.avg_pool2d(density, 4, 4, divisor_override=1)
        # the density counts dense regions better, the points sparse ones
        soft = (probs * (probs > 0.5)).reshape(len(images), h // 8, w // 8, -1).sum(-1)
        soft = F.avg_pool2d(soft[:, None], 2, 2, divisor_override=1)
        share = torch.sigmoid(4.0 * (regions - 0.5))
        count = (share * regions + (1.0 - share) * soft).sum(dim=(1, 2, 3))
        return {
            "density": density, "count": count, "regions": regions, "coords": coords * valid[..., None],
            "probs": probs, "plan": plan, "matched": matched.float(), "assigned": assigned, "expected": expected,
            "losses": losses, "peaks": peaks, "peak_scores": peak_scores, "radius": radius,
        }


def trained_like(net):
    """Values as after training."""
    for module in net.modules():
        if isinstance(module, (nn.BatchNorm2d, nn.GroupNorm, nn.LayerNorm)):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.2)
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, std=0.2)
            nn.init.uniform_(module.running_var, 0.5, 1.6)
        elif isinstance(module, (nn.Linear, nn.Conv2d)):
            nn.init.normal_(module.weight, std=(1.6 / module.weight[0].numel()) ** 0.5)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.2)
    net.neck.smooth.weight.data *= 1.5
    for index in (0, 3):  # the channels of the density head have become faint
        net.density_head.body[index].weight.data *= 0.06
        net.density_head.body[index + 1].running_mean *= 0.06
        net.density_head.body[index + 1].running_var *= 0.004
    net.density_head.out.weight.data *= 4.0
    return net


def build():
    """The net and three pictures: one whole, two padded, of which the last has nobody."""
    torch.manual_seed(0)
    net = trained_like(CrowdCounter(Config()))
    rng = np.random.RandomState(7)
    sizes = np.array([[64, 96], [44, 70], [56, 88]])
    points = (rng.rand(3, 10, 2) * np.array([96, 64])).astype(np.float32)
    point_mask = np.zeros((3, 10), bool)
    point_mask[0, [0, 1, 2, 4, 5, 6, 7, 8]] = True  # some are to be ignored, and the last picture is empty
    point_mask[1, 1:9] = True
    images = 40.0 + rng.rand(3, 3, 64, 96) * 50.0 + rng.rand(3, 3, 8, 12).repeat(8, axis=2).repeat(8, axis=3) * 60.0
    yy, xx = np.mgrid[:64, :96]
    for picture, heads in zip(images, points):
        for x, y in heads:
            picture += rng.rand(3, 1, 1) * 200.0 * np.exp(-((xx - x) ** 2 + (yy - y) ** 2) / 20.0)
    images = np.clip(images, 0, 255).astype(np.float32)
    return net.eval(), tuple(torch.from_numpy(array) for array in (images, sizes, points, point_mask))
