"""Cells as star-convex polygons and as sinks of a flow field: one U-Net with a style vector, two decoders (PyTorch)."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class Config:
    in_channels, channels, head_channels = 2, (16, 20, 24, 32), 32  # cytoplasm and nuclei
    n_rays, grid = 16, 2
    prob_thresh, nms_thresh, max_candidates = 0.45, 0.5, 40
    cell_thresh, flow_scale, follow_steps, diffusion_steps = 0.0, 5.0, 10, 30
    min_count, min_size = 7, 48
    max_objects, match_thresh, background_reg = 20, 0.3, 0.05


def normalize_percentile(image, valid, low=1.0, high=99.8, eps=1e-6):
    """Each channel of each image to about [0, 1] by percentiles of its valid pixels; 0 in the padding."""
    out = torch.zeros_like(image)
    for i in range(len(image)):
        lo, hi = torch.quantile(image[i][:, valid[i]], torch.tensor([low, high]) / 100, dim=1)[..., None, None]
        out[i] = (image[i] - lo) / (hi - lo + eps)
    return out * valid[:, None].to(image.dtype)


def masks_to_flows(labels, n_iter):
    """Unit vectors towards the centre of each mask: heat is diffused from the centre within the mask, (b, 2, h, w)."""
    h, w = labels.shape[1:]
    flows = torch.zeros(len(labels), 2, h, w)
    for i, lab in enumerate(labels):
        source = torch.zeros(h, w)
        for k in lab[lab > 0].unique():
            ys, xs = torch.nonzero(lab == k, as_tuple=True)  # the centre is the pixel nearest to the median
            nearest = ((ys - ys.median()) ** 2 + (xs - xs.median()) ** 2).argmin()
            source[ys[nearest], xs[nearest]] = 1.0
        same = F.unfold(lab[None, None].float(), 3, padding=1)[0] == lab.reshape(1, -1)
        same = (same & (lab.reshape(1, -1) > 0)).float()
        heat = torch.zeros(h, w)
        for _ in range(n_iter):
            near = F.unfold((heat + source)[None, None], 3, padding=1)[0]
            heat = (near * same).mean(dim=0).reshape(h, w)
        near = F.unfold(torch.log1p(heat)[None, None], 3, padding=1)[0] * same
        grad = torch.stack((near[7] - near[1], near[5] - near[3])).reshape(2, h, w)
        flows[i] = grad / grad.norm(dim=0, keepdim=True).clamp(min=0.01)
    return flows


def polygon_masks(points, dist, shape):
    """Fill star-convex polygons: a pixel is inside if it is not beyond the chord of its sector, (n, h, w)."""
    n_rays = dist.shape[1]
    step = 2 * math.pi / n_rays
    dy = torch.arange(shape[0])[None, :, None] - points[:, 0, None, None]
    dx = torch.arange(shape[1])[None, None, :] - points[:, 1, None, None]
    phi = torch.atan2(dy, dx) % (2 * math.pi)
    sector = (phi / step).floor().long().clamp(max=n_rays - 1)
    first = dist.gather(1, sector.flatten(1)).view_as(phi)
    second = dist.gather(1, ((sector + 1) % n_rays).flatten(1)).view_as(phi)
    theta = phi - sector * step
    radius = first * second * math.sin(step) / (first * torch.sin(theta) + second * torch.sin(step - theta))
    return torch.sqrt(dy**2 + dx**2) <= radius


def batchconv0(c_in, c_out):
    return nn.Sequential(nn.BatchNorm2d(c_in, momentum=0.05), nn.Conv2d(c_in, c_out, 1))


def batchconv(c_in, c_out, size=3):
    return nn.Sequential(nn.BatchNorm2d(c_in, momentum=0.05), nn.ReLU(), nn.Conv2d(c_in, c_out, size, 1, size // 2))


class ResDown(nn.Module):
    def __init__(self, c_in, c_out):
        super().__init__()
        self.proj = batchconv0(c_in, c_out)
        self.conv = nn.ModuleList([batchconv(c_in if t == 0 else c_out, c_out) for t in range(4)])

    def forward(self, x):
        x = self.proj(x) + self.conv[1](self.conv[0](x))
        return x + self.conv[3](self.conv[2](x))


class StyleConv(nn.Module):
    def __init__(self, channels, style_channels):
        super().__init__()
        self.conv = batchconv(channels, channels)
        self.full = nn.Linear(style_channels, channels)

    def forward(self, x, style, skip=None):
        if skip is not None:
            x = x + skip
        return self.conv(x + self.full(style)[:, :, None, None])


class ResUp(nn.Module):
    def __init__(self, c_in, c_out, style_channels):
        super().__init__()
        self.upsample = nn.ConvTranspose2d(c_in, c_in, 3, stride=2, padding=1, output_padding=1)
        self.conv0 = batchconv(c_in, c_out)
        self.conv = nn.ModuleList([StyleConv(c_out, style_channels) for _ in range(3)])
        self.proj = batchconv0(c_in, c_out)

    def forward(self, x, skip, style):
        x = self.upsample(x)
        x = self.proj(x) + self.conv[0](self.conv0(x), style, skip)
        return x + self.conv[2](self.conv[1](x, style), style)


class MakeStyle(nn.Module):
    """The mean of the deepest features over the valid area, of length one."""

    def forward(self, x, valid):
        weight = F.interpolate(valid[:, None].float(), size=x.shape[-2:], mode="area")
        style = (x * weight).sum(dim=(2, 3)) / weight.sum(dim=(2, 3)).clamp(min=1e-6)
        return style / torch.sum(style**2, dim=1, keepdim=True) ** 0.5


class StyleUNet(nn.Module):
    def __init__(self, in_channels, channels):
        super().__init__()
        self.down = nn.ModuleList([ResDown(a, b) for a, b in zip((in_channels, *channels), channels)])
        self.pool = nn.MaxPool2d(2, 2)
        self.make_style = MakeStyle()
        self.up = nn.ModuleList([ResUp(a, b, channels[-1]) for a, b in zip(channels[:0:-1], channels[-2::-1])])

    def forward(self, x, valid):
        skips = []
        for block in self.down:
            x = block(self.pool(skips[-1]) if skips else x)
            skips.append(x)
        style = self.make_style(x, valid)
        for block, skip in zip(self.up, reversed(skips[:-1])):
            x = block(x, skip, style)
        return x, style


class StarHead(nn.Module):
    """Probability that a cell is here, and distances to its border along the rays, on a coarser grid."""

    def __init__(self, c_in, hidden, n_rays, grid):
        super().__init__()
        self.pool = nn.AvgPool2d(3, grid, padding=1, count_include_pad=False)
        self.features = nn.Conv2d(c_in, hidden, 3, padding=1)
        self.norm = nn.GroupNorm(4, hidden)
        self.act = nn.SiLU()
        self.context = nn.Conv2d(hidden, hidden, 3, padding=2, dilation=2)
        self.prob = nn.Conv2d(hidden, 1, 1)
        self.dist = nn.Conv2d(hidden, n_rays, 1)

    def trunk(self, x):
        x = self.act(self.norm(self.features(self.pool(x))))
        return x + F.relu(self.context(x))

    def forward(self, x):
        x = self.trunk(x)
        return torch.sigmoid(self.prob(x)).squeeze(1), self.dist(x)


class PolygonNMS(nn.Module):
    """Polygons of the most probable places that do not overlap a more probable one; padded to max_candidates."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        phi = torch.arange(cfg.n_rays) * (2 * math.pi / cfg.n_rays)
        self.register_buffer("directions", torch.stack((phi.sin(), phi.cos())), persistent=False)

    def suppress(self, masks):
        area = masks.sum(dim=1)
        shared = masks @ masks.T
        overlap = shared / torch.minimum(area[:, None], area[None, :]).clamp(min=1.0)
        alive = torch.ones(len(masks), dtype=torch.bool)
        for i in range(len(masks)):
            if alive[i]:
                alive[i + 1 :] &= ~(overlap[i, i + 1 :] > self.cfg.nms_thresh)
        return alive

    def forward(self, prob, dist, valid):
        cfg = self.cfg
        coords = torch.zeros(len(prob), cfg.max_candidates, 2, cfg.n_rays)
        scores = torch.zeros(len(prob), cfg.max_candidates)
        labels = torch.zeros(valid.shape, dtype=torch.long)
        inner = F.pad(torch.ones_like(prob[:, 1:-1, 1:-1], dtype=torch.bool), (1, 1, 1, 1))  # none at the border
        usable = (prob > cfg.prob_thresh) & inner & valid[:, :: cfg.grid, :: cfg.grid]
        for i in range(len(prob)):
            confidence, order = prob[i][usable[i]].sort(descending=True, stable=True)
            places = torch.nonzero(usable[i])[order[: cfg.max_candidates]]
            rays = dist[i][:, places[:, 0], places[:, 1]].T.clamp(min=1e-3)
            points = places * float(cfg.grid)  # from the grid to pixels
            masks = polygon_masks(points, rays, valid.shape[1:]) & valid[i]
            keep = torch.nonzero(self.suppress(masks.flatten(1).float()))[:, 0]
            n = len(keep)
            scores[i, :n] = confidence[keep]
            coords[i, :n] = points[keep][:, :, None] + rays[keep][:, None, :] * self.directions
            for rank in range(n - 1, -1, -1):  # the most probable is painted last
                labels[i][masks[keep[rank]]] = rank + 1
        return coords, scores, labels


class FlowDynamics(nn.Module):
    """Pixels that flow to the same place are one cell."""

    def __init__(self, cfg, radius=5):
        super().__init__()
        self.cfg = cfg
        self.radius = radius
        self.peaks = nn.MaxPool2d(5, stride=1, padding=2)

    def follow(self, flow):
        b, _, h, w = flow.shape
        field = flow.flip(1) * torch.tensor([2 / (w - 1), 2 / (h - 1)]).view(1, 2, 1, 1)
        yy, xx = torch.meshgrid(torch.linspace(-1, 1, h), torch.linspace(-1, 1, w), indexing="ij")
        points = torch.stack((xx, yy), dim=-1).expand(b, h, w, 2)
        for _ in range(self.cfg.follow_steps):
            step = F.grid_sample(field, points, mode="bilinear", align_corners=True)
            points = (points + step.permute(0, 2, 3, 1)).clamp(-1.0, 1.0)
        ends = (points.flip(-1) + 1) / 2 * torch.tensor([h - 1, w - 1])
        return ends.permute(0, 3, 1, 2)

    def group(self, ends, inside):
        r = self.radius
        h, w = inside.shape
        height, width = h + 2 * r, w + 2 * r
        index = (ends[0].round().long() + r) * width + ends[1].round().long() + r
        hist = torch.bincount(index[inside], minlength=height * width).view(height, width).float()
        seeds = torch.nonzero((hist == self.peaks(hist[None, None])[0, 0]) & (hist > self.cfg.min_count))
        seeds = seeds[torch.argsort(hist[seeds[:, 0], seeds[:, 1]], stable=True)]
        sinks = torch.zeros(height, width, dtype=torch.long)
        for rank, (y, x) in enumerate(seeds.tolist(), start=1):
            window = (slice(y - r, y + r + 1), slice(x - r, x + r + 1))
            occupied = (hist[window] > 2).float()
            region = torch.zeros_like(occupied)
            region[r, r] = 1.0
            for _ in range(r):
                region = F.max_pool2d(region[None, None], 3, 1, 1)[0, 0] * occupied
            sinks[window] = torch.where(region > 0, rank, sinks[window])
        labels = torch.where(inside, sinks.flatten()[index], 0)
        values, inverse, counts = torch.unique(labels, return_inverse=True, return_counts=True)
        keep = (values > 0) & (counts >= self.cfg.min_size)
        return torch.where(keep, keep.cumsum(0), 0)[inverse]

    def forward(self, flow, valid):
        inside = (flow[:, 2] > self.cfg.cell_thresh) & valid
        vectors = flow[:, :2] * inside[:, None] / self.cfg.flow_scale
        ends = self.follow(vectors)
        labels = torch.stack([self.group(e, m) for e, m in zip(ends, inside)])
        error = (masks_to_flows(labels, self.cfg.diffusion_steps) - vectors).square().sum(dim=1)
        return ends, labels, error


class ObjectStatistics(nn.Module):
    """Area, centroid, box, mean intensities, error of the flow and second moments of each object; and its polygon."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg

    def one_hot(self, labels):
        count = self.cfg.max_objects
        return F.one_hot(labels.clamp(max=count), count + 1)[..., 1:].flatten(1, 2).transpose(1, 2).float()

    def forward(self, labels, star_labels, image, error):
        member = self.one_hot(labels)
        area = member.sum(dim=2)
        safe = area.clamp(min=1.0)
        place = torch.ones(labels.shape[1:]).nonzero().T.float()
        centroid = member @ place.T / safe[..., None]
        shown = member[:, :, None, :] > 0
        box = torch.where(shown, place, math.inf).amin(dim=3), torch.where(shown, place, -math.inf).amax(dim=3) + 1
        box = torch.where(area[..., None] > 0, torch.cat(box, dim=2), 0.0)
        intensity = torch.einsum("bop,bcp->boc", member, image.flatten(2)) / safe[..., None]
        flow_error = (member * error.flatten(1)[:, None]).sum(dim=2) / safe
        off = (place - centroid[..., None]) * member[:, :, None, :]
        moments = torch.einsum("boip,bojp->boij", off, off).flatten(2) / safe[..., None]
        stars = self.one_hot(star_labels)
        shared = stars @ member.transpose(1, 2)
        iou = shared / (stars.sum(dim=2)[:, :, None] + area[:, None, :] - shared).clamp(min=1.0)
        best, partner = iou.max(dim=1)
        partner = torch.where(best > self.cfg.match_thresh, partner + 1, 0)
        rows = torch.cat((area[..., None], centroid, box, intensity, flow_error[..., None], moments), dim=2)
        return rows, best, partner


class Targets(nn.Module):
    def __init__(self, cfg, max_steps=20):
        super().__init__()
        self.cfg = cfg
        self.max_steps = max_steps
        phi = torch.arange(cfg.n_rays) * (2 * math.pi / cfg.n_rays)
        self.register_buffer("directions", torch.stack((phi.sin(), phi.cos())), persistent=False)

    def star_distances(self, labels):
        """Walk along the rays from each place of the grid until the label is another one."""
        (h, w), grid = labels.shape[1:], self.cfg.grid
        here = labels[:, None, ::grid, ::grid]
        yy, xx = torch.arange(0, h, grid)[None, :, None], torch.arange(0, w, grid)[None, None, :]
        sin, cos = self.directions[:, :, None, None]
        overshoot = 1 - 0.5 / torch.maximum(sin.abs(), cos.abs())
        walking = (here > 0).expand(-1, self.cfg.n_rays, -1, -1)
        dist = torch.zeros(walking.shape)
        for t in range(1, self.max_steps + 1):
            y, x = torch.round(yy + t * sin).long(), torch.round(xx + t * cos).long()
            inside = (y >= 0) & (y < h) & (x >= 0) & (x < w)
            same = inside & (labels[:, y.clamp(0, h - 1), x.clamp(0, w - 1)] == here)
            dist = torch.where(walking & ~same, t - overshoot, dist)
            walking = walking & same
        return torch.where(walking, float(self.max_steps), dist)

    def forward(self, labels):
        dist = self.star_distances(labels)
        ids = labels[:, :: self.cfg.grid, :: self.cfg.grid].clamp(min=0).flatten(1)
        edge = dist.amin(dim=1).flatten(1)
        peak = torch.zeros(len(ids), int(labels.max()) + 1).scatter_reduce(1, ids, edge, "amax")
        prob = (edge / peak.gather(1, ids).clamp(min=1e-6)).reshape(dist[:, 0].shape)
        return dist, prob, masks_to_flows(labels, self.cfg.diffusion_steps)


class Criterion(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.log_vars = nn.Parameter(torch.zeros(5))

    def forward(self, prob, dist, flow, labels, valid, targets):
        cfg, (dist_true, prob_true, flow_true) = self.cfg, targets
        known = ((labels >= 0) & valid).to(dist.dtype)
        known_grid = known[:, :: cfg.grid, :: cfg.grid]
        weight = (prob_true * known_grid)[:, None]  # the distances count as much as the place is central
        loss_dist = ((dist - dist_true).abs() * weight).sum() / (weight.sum() * dist.shape[1]).clamp(min=1.0)
        background = ((prob_true == 0) * known_grid)[:, None]
        loss_dist = loss_dist + cfg.background_reg * (dist.abs() * background).mean()
        bce = F.binary_cross_entropy(prob, prob_true, reduction="none")
        loss_prob = (bce * known_grid).sum() / known_grid.sum()
        cell = (labels > 0).to(dist.dtype)
        squared = (flow[:, :2] - cfg.flow_scale * flow_true).square().mean(dim=1)
        loss_flow = 0.5 * (squared * known).sum() / known.sum()
        bce = F.binary_cross_entropy_with_logits(flow[:, 2], cell, reduction="none")
        loss_cell = (bce * known).sum() / known.sum()
        guess, cell = (torch.sigmoid(flow[:, 2]) * known).flatten(1), (cell * known).flatten(1)
        dice = (2 * (guess * cell).sum(dim=1) + 1.0) / (guess.sum(dim=1) + cell.sum(dim=1) + 1.0)
        losses = torch.stack((loss_dist, loss_prob, loss_flow, loss_cell, (1 - dice).mean()))
        return losses, (torch.exp(-self.log_vars) * losses + self.log_vars).sum()


class CellStarFlow(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.backbone = StyleUNet(cfg.in_channels, cfg.channels)
        hidden = cfg.head_channels
        self.star_head = StarHead(cfg.channels[0], hidden, cfg.n_rays, cfg.grid)
        self.flow_head = nn.Sequential(batchconv(cfg.channels[0], hidden), batchconv(hidden, 3, size=1))
        self.polygons = PolygonNMS(cfg)
        self.dynamics = FlowDynamics(cfg)
        self.statistics = ObjectStatistics(cfg)
        self.targets = Targets(cfg)
        self.criterion = Criterion(cfg)

    def forward(self, image, labels, valid):
        features, style = self.backbone(normalize_percentile(image, valid), valid)
        prob, dist = self.star_head(features)
        flow = self.flow_head(features)
        coords, scores, star_labels = self.polygons(prob, dist, valid)
        ends, flow_labels, error = self.dynamics(flow, valid)
        rows, iou, partner = self.statistics(flow_labels, star_labels, image, error)
        losses, total = self.criterion(prob, dist, flow, labels, valid, self.targets(labels))
        return {
            "style": style, "prob": prob, "dist": dist, "flow": flow, "coords": coords, "scores": scores,
            "star_labels": star_labels, "ends": ends, "flow_labels": flow_labels, "rows": rows, "iou": iou,
            "partner": partner, "losses": losses, "total": total,
        }


def draw_cells(count, h, w):
    """Wobbly cells on a jittered lattice of four columns: labels (h, w) and an image of two channels."""
    labels, image = torch.zeros(h, w, dtype=torch.long), torch.zeros(2, h, w)
    for k, rnd in enumerate(torch.rand(count, 5)):
        dy = torch.arange(h)[:, None] - (k // 4 + 0.5) * h / (count // 4) - 5 * (rnd[0] - 0.5)
        dx = torch.arange(w)[None, :] - (k % 4 + 0.5) * w / 4 - 4 * (rnd[1] - 0.5)
        rim = 4.4 + 1.8 * rnd[2] + torch.cos(2 * torch.atan2(dy, dx) + 6 * rnd[3])
        ratio = torch.sqrt(dy**2 + dx**2) / rim
        labels[(ratio < 1) & (labels == 0)] = k + 1
        image += torch.stack(((0.6 + 0.8 * rnd[4]) * torch.exp(-(ratio**2)), torch.exp(-4 * ratio**2)))
    return labels, 20 + 60 * (image + 0.06 * torch.randn(2, h, w))


@torch.no_grad()
def trained_like(net, image, labels, valid):
    """Norms as after training, and last layers that fit the drawn cells by least squares."""
    for tensor in (*net.parameters(), *net.buffers()):
        if tensor.ndim == 1:  # norms with their statistics, biases, uncertainties
            tensor.add_(tensor.clamp(0.3, 0.6) * torch.empty_like(tensor).uniform_(-0.7, 0.7))

    def fit(conv, inputs, wanted, weight):
        a, y = (x.double().permute(0, 2, 3, 1).flatten(0, 2) for x in (inputs, wanted))
        a = F.pad(a, (0, 1), value=1.0)
        left = (a * weight.reshape(-1, 1)).T
        solution = torch.linalg.solve(left @ a + 3.0 * torch.eye(a.shape[1]), left @ y).T
        solution = torch.round(solution * 256) / 256  # the same on every machine
        conv.weight.copy_(solution[:, :-1, None, None])
        conv.bias.copy_(solution[:, -1])

    features, _ = net.eval().backbone(normalize_percentile(image, valid), valid)
    trunk = net.star_head.trunk(features)
    hidden = net.flow_head[1][:2](net.flow_head[0](features))
    cell, (dist, prob, flow) = (labels > 0).float()[:, None], net.targets(labels)
    fit(net.star_head.prob, trunk, 6 * prob[:, None] - 3, prob * 0 + 1)
    fit(net.star_head.dist, trunk, dist, (prob > 0) + 0.02)
    fit(net.flow_head[1][2], hidden, torch.cat((5 * flow, 6 * cell - 3), dim=1), cell + 0.2)
    return net


def build():
    """The net with the same weights on every run, and two images: one padded, one with a part of unknown label."""
    torch.manual_seed(30)
    labels, image = (torch.stack(pair) for pair in zip(draw_cells(12, 40, 48), draw_cells(8, 40, 48)))
    valid = F.pad(torch.ones(2, 36, 42), (0, 6, 0, 4)) + torch.tensor([1, 0])[:, None, None] > 0
    net = trained_like(CellStarFlow(Config()), image, labels, valid)
    labels[0, 30:34, 5:9] = -1
    return net, (image, labels, valid)
