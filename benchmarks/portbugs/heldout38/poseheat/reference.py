"""PoseHeat: a small multi-resolution human pose net. Fused parallel branches,
heatmaps at two scales, part affinity fields, flip test, soft-argmax with a relation head
for one person (top-down), and a decoding of peaks and limbs into people (bottom-up).
"""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

# nose, neck, shoulders, wrists, pelvis, ankles; left before right
JOINTS, ROOT = 9, 1
FLIP_JOINTS = [0, 1, 3, 2, 5, 4, 6, 8, 7]
LIMBS = ((1, 0), (1, 2), (1, 3), (2, 4), (3, 5), (1, 6), (6, 7), (6, 8))
FLIP_LIMBS = [0, 2, 1, 4, 3, 5, 7, 6]
BN_EPS = 1e-3


class ConvBN(nn.Module):
    def __init__(self, cin, cout, k=3, stride=1, act=True):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, k, stride, padding=k // 2, bias=False)
        self.bn = nn.BatchNorm2d(cout, eps=BN_EPS, momentum=0.03)
        self.act = act

    def forward(self, x):
        x = self.bn(self.conv(x))
        return F.relu(x) if self.act else x


class ChannelGate(nn.Module):
    """Squeeze and excitation over the mean and the maximum of a channel."""

    def __init__(self, dim, hidden):
        super().__init__()
        self.fc1 = nn.Linear(2 * dim, hidden)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x):
        s = torch.cat([x.mean(dim=(2, 3)), x.amax(dim=(2, 3))], dim=1)
        s = self.fc2(self.act(self.fc1(s)))
        return x * torch.sigmoid(s)[:, :, None, None]


class BasicBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.conv1, self.conv2 = ConvBN(dim, dim), ConvBN(dim, dim, act=False)
        self.gate = ChannelGate(dim, dim // 2)

    def forward(self, x):
        return F.relu(x + self.gate(self.conv2(self.conv1(x))))


class FuseStage(nn.Module):
    """Parallel branches, then every resolution gets a mix of all of them."""

    def __init__(self, dims):
        super().__init__()
        self.branches = nn.ModuleList(nn.Sequential(BasicBlock(d), BasicBlock(d)) for d in dims)
        self.fuse = nn.ModuleList()
        for i, di in enumerate(dims):
            row = nn.ModuleList()
            for j, dj in enumerate(dims):
                steps = [ConvBN(dj, dj, 3, 2) for _ in range(i - j - 1)]
                if j != i:
                    k, stride = (1, 1) if j > i else (3, 2)
                    steps.append(ConvBN(dj, di, k, stride, act=False))
                row.append(nn.Sequential(*steps))
            self.fuse.append(row)
        self.mix = nn.Parameter(torch.zeros(len(dims), len(dims)))

    def forward(self, xs):
        feats = [branch(x) for branch, x in zip(self.branches, xs)]
        n = len(feats)
        weight = F.softmax(self.mix, dim=1) * n
        outs = []
        for i in range(n):
            total = 0.0
            for j in range(n):
                y = self.fuse[i][j](feats[j])
                if j > i:
                    y = F.interpolate(y, size=feats[i].shape[-2:], mode="bilinear",
                                      align_corners=False)
                total = total + weight[i, j] * y
            outs.append(F.relu(total))
        return outs


class Backbone(nn.Module):
    def __init__(self, dims=(20, 28, 36)):
        super().__init__()
        self.stem = nn.Sequential(ConvBN(3, 16, 3, 2), ConvBN(16, 32, 3, 2))
        self.split = nn.ModuleList([ConvBN(32, dims[0]), ConvBN(32, dims[1], 3, 2)])
        self.stage2 = FuseStage(dims[:2])
        self.grow = ConvBN(dims[1], dims[2], 3, 2)
        self.stage3 = FuseStage(dims)

    def forward(self, image):
        x = self.stem(image)
        xs = self.stage2([m(x) for m in self.split])
        return self.stage3(xs + [self.grow(xs[-1])])


class MergeHead(nn.Module):
    """All resolutions on the finest grid, with coordinates of the pixels."""

    def __init__(self, dims, out):
        super().__init__()
        self.proj = ConvBN(sum(dims) + 2, out, 1)
        self.conv = nn.Conv2d(out, out, 3, padding=1, groups=4)
        self.norm = nn.GroupNorm(4, out, eps=1e-5)
        self.act = nn.LeakyReLU(0.01)

    def forward(self, feats):
        B, _, H, W = feats[0].shape
        ups = [F.interpolate(f, size=(H, W), mode="bilinear", align_corners=True)
               for f in feats[1:]]
        ys, xs = torch.meshgrid(torch.linspace(-1, 1, H), torch.linspace(-1, 1, W),
                                indexing="ij")
        grid = torch.stack([xs, ys])[None].expand(B, -1, -1, -1)
        x = self.proj(torch.cat([feats[0], *ups, grid], dim=1))
        return x + self.act(self.norm(self.conv(x)))


class HeatmapHead(nn.Module):
    """Heatmaps at 1/4, and at 1/2 after a deconvolution; the two are averaged."""

    def __init__(self, dim, hidden, joints):
        super().__init__()
        self.low = nn.Conv2d(dim, joints, 1)
        self.deconv = nn.ConvTranspose2d(dim + joints, hidden, 4, 2, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(hidden, eps=BN_EPS)
        self.block = BasicBlock(hidden)
        self.high = nn.Conv2d(hidden, joints, 1)

    def forward(self, x):
        low = self.low(x)
        y = F.relu(self.bn(self.deconv(torch.cat([x, low], dim=1))))
        high = self.high(self.block(y))
        low = F.interpolate(low, scale_factor=2, mode="bilinear", align_corners=False)
        return torch.sigmoid(0.5 * (low + high))


class PafHead(nn.Module):
    def __init__(self, dim, hidden, limbs):
        super().__init__()
        self.limbs = limbs
        self.conv = nn.Conv2d(dim, hidden, 3, padding=2, dilation=2)
        self.act = nn.LeakyReLU(0.1)
        self.out = nn.Conv2d(hidden, 2 * limbs, 1)

    def forward(self, x):
        y = self.out(self.act(self.conv(x))).unflatten(1, (self.limbs, 2))
        return y / y.pow(2).sum(dim=2, keepdim=True).sqrt().clamp(min=1.0)


class SoftArgmax(nn.Module):
    """Expected position in a window around the peak, with its covariance."""

    def __init__(self, joints, radius=4):
        super().__init__()
        self.radius = radius
        self.beta = nn.Parameter(torch.zeros(joints))

    def forward(self, heat):
        B, J, H, W = heat.shape
        flat = heat.flatten(2)
        peak, idx = flat.max(dim=-1)
        px, py = idx % W, torch.div(idx, W, rounding_mode="floor")
        gx, gy = torch.arange(W), torch.arange(H)
        near_x, near_y = ((g - c[..., None]).abs() <= self.radius
                          for g, c in ((gx, px), (gy, py)))
        window = (near_y[..., :, None] & near_x[..., None, :]).flatten(2)
        logits = flat * (4.0 * F.softplus(self.beta) + 2.0)[None, :, None]
        prob = logits.masked_fill(~window, float("-inf")).softmax(dim=-1).view(B, J, H, W)
        mx, my = prob.sum(dim=2), prob.sum(dim=3)
        x, y = (mx * gx).sum(-1), (my * gy).sum(-1)
        spread = torch.sqrt((mx * (gx - x[..., None]) ** 2).sum(-1)
                            + (my * (gy - y[..., None]) ** 2).sum(-1))
        return torch.stack([x, y], dim=-1), peak * torch.exp(-0.5 * spread / self.radius), spread


class PeakFinder(nn.Module):
    """Non-maximum suppression, top K, and a second order step on the log heatmap."""

    def __init__(self, topk=4, sigma=1.2, ksize=5):
        super().__init__()
        self.topk = topk
        r = torch.arange(ksize, dtype=torch.float32) - (ksize - 1) / 2
        g = torch.exp(-(r[:, None] ** 2 + r ** 2) / (2 * sigma ** 2))
        self.register_buffer("kernel", (g / g.sum())[None, None], persistent=False)

    def forward(self, heat):
        B, J, H, W = heat.shape
        peaks = heat * (F.max_pool2d(heat, 3, stride=1, padding=1) == heat).float()
        score, idx = peaks.flatten(2).topk(self.topk, dim=-1)
        x, y = idx % W, idx // W
        r = self.kernel.shape[-1] // 2
        log = F.conv2d(F.pad(heat, (r, r, r, r), mode="reflect"),
                       self.kernel.expand(J, -1, -1, -1), groups=J).clamp(min=1e-4).log()
        log = F.pad(log, (1, 1, 1, 1), mode="replicate").flatten(2)

        def at(dx, dy):
            return log.gather(2, (y + 1 + dy) * (W + 2) + (x + 1 + dx))

        c = at(0, 0)
        gx, gy = 0.5 * (at(1, 0) - at(-1, 0)), 0.5 * (at(0, 1) - at(0, -1))
        hxx = at(1, 0) - 2 * c + at(-1, 0) - 0.05          # damped: no large steps
        hyy = at(0, 1) - 2 * c + at(0, -1) - 0.05
        hxy = 0.25 * (at(1, 1) - at(-1, 1) - at(1, -1) + at(-1, -1))
        det = hxx * hyy - hxy ** 2
        usable = (det > 1e-3) & (hxx < 0)
        safe = torch.where(usable, det, torch.ones_like(det))
        off = torch.stack([hxy * gy - hyy * gx, hxy * gx - hxx * gy], dim=-1) / safe[..., None]
        off = off.clamp(-0.75, 0.75) * usable[..., None].float()
        return torch.stack([x, y], dim=-1).float() + off, score


class JointRelation(nn.Module):
    """Joints look at one another; the bias depends on hops along the skeleton."""

    def __init__(self, joints, feat, dim=24, heads=3, hidden=40, max_hop=3):
        super().__init__()
        self.heads, self.dim = heads, dim
        self.embed = nn.Parameter(torch.zeros(joints, dim))
        self.inp = nn.Linear(feat + 2, dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.fc1, self.fc2 = nn.Linear(dim, hidden), nn.Linear(hidden, dim)
        self.delta, self.vis = nn.Linear(dim, 2), nn.Linear(dim, 1)
        self.hop_bias = nn.Parameter(torch.zeros(heads, max_hop + 1))

        hops = torch.full((joints, joints), 99)
        hops.fill_diagonal_(0)
        for a, b in LIMBS:
            hops[a, b] = hops[b, a] = 1
        for k in range(joints):
            hops = torch.minimum(hops, hops[:, k:k + 1] + hops[k:k + 1, :])
        self.register_buffer("hops", hops.clamp(max=max_hop), persistent=False)
        freq = 50.0 ** (-torch.arange(dim // 4, dtype=torch.float32) / (dim // 4))
        self.register_buffer("freq", freq * math.pi, persistent=False)

    def forward(self, feat, xy, conf, spread, size):
        B, J, _ = xy.shape
        unit = (xy + 0.5) / xy.new_tensor([size[1], size[0]])   # 0..1 over the map
        sampled = F.grid_sample(feat, (unit * 2 - 1)[:, :, None], mode="bilinear",
                                padding_mode="border", align_corners=False)
        sampled = sampled.squeeze(-1).transpose(1, 2)      # B J C
        x = self.inp(torch.cat([sampled, conf[..., None], spread[..., None]], dim=-1))
        ang = unit[..., None] * self.freq                  # B J 2 F
        x = x + self.embed + torch.cat([ang.sin(), ang.cos()], dim=-1).flatten(2)

        hd = self.dim // self.heads
        q, k, v = self.qkv(x).view(B, J, 3, self.heads, hd).permute(2, 0, 3, 1, 4)
        att = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(hd)
        att = att + self.hop_bias[:, self.hops]
        weak = conf < conf.mean(dim=1, keepdim=True) * 0.97
        att = att.masked_fill(weak[:, None, None, :], -1e9).softmax(dim=-1)
        y = torch.einsum("bhij,bhjd->bihd", att, v).reshape(B, J, self.dim)
        x = self.norm1(x + self.proj(y))
        x = self.norm2(x + self.fc2(F.gelu(self.fc1(x))))
        return torch.tanh(self.delta(x)) * 2.0, torch.sigmoid(self.vis(x)).squeeze(-1)


class LimbScorer(nn.Module):
    """Line integral of the part affinity field between all pairs of candidates."""

    def __init__(self, points=7, stride=2):
        super().__init__()
        self.points, self.stride = points, stride
        self.register_buffer("ends", torch.tensor(LIMBS).t(), persistent=False)
        self.prior = nn.Parameter(torch.zeros(len(LIMBS)))

    def forward(self, paf, xy, score):
        B, L, _, h, w = paf.shape
        K = xy.shape[2]
        src, dst = self.ends
        a, b = xy[:, src], xy[:, dst]                      # B L K 2
        vec = b[:, :, None] - a[:, :, :, None]             # B L Ka Kb 2
        norm = vec.norm(dim=-1, keepdim=True).clamp(min=1e-3)
        t = torch.linspace(0, 1, self.points)
        pts = a[:, :, :, None, None] + t[:, None] * vec[..., None, :]
        pts = (pts + 0.5) / self.stride - 0.5              # onto the grid of the fields
        px, py = torch.round(pts).long().unbind(dim=-1)
        lin = (py.clamp(0, h - 1) * w + px.clamp(0, w - 1)).view(B, L, 1, -1).expand(-1, -1, 2, -1)
        field = paf.flatten(3).gather(3, lin).view(B, L, 2, K, K, self.points)
        dot = (field * (vec / norm).permute(0, 1, 4, 2, 3)[..., None]).sum(dim=2)
        ratio = (dot > 0.05).float().mean(dim=-1)
        penalty = (0.5 * h * self.stride / norm.squeeze(-1) - 1.0).clamp(max=0.0)
        joint = 0.5 * (score[:, src][..., :, None] + score[:, dst][..., None, :])
        return dot.mean(-1) * ratio + penalty + joint * F.softplus(self.prior)[:, None, None]


class PoseHeat(nn.Module):
    def __init__(self, dims=(20, 28, 36), feat=32):
        super().__init__()
        J, L = JOINTS, len(LIMBS)
        self.backbone, self.merge = Backbone(dims), MergeHead(dims, feat)
        self.heat_head = HeatmapHead(feat, 22, J)
        self.paf_head = PafHead(feat, 26, L)
        self.soft, self.finder = SoftArgmax(J), PeakFinder()
        self.relation = JointRelation(J, feat)
        self.scorer = LimbScorer()

    def dense(self, image):
        feat = self.merge(self.backbone(image))
        return feat, self.heat_head(feat), self.paf_head(feat)

    def flip_test(self, image):
        feat, heat, paf = self.dense(image)
        _, heat_f, paf_f = self.dense(image.flip(3))
        heat_f = heat_f.flip(3)[:, FLIP_JOINTS]
        paf_f = paf_f.flip(4)[:, FLIP_LIMBS]
        paf_f = torch.cat([-paf_f[:, :, :1], paf_f[:, :, 1:]], dim=2)
        return feat, 0.5 * (heat + heat_f), 0.5 * (paf + paf_f)

    def match(self, score, accept):
        """Greedy one-to-one matching; for each limb, the partner of each source or -1."""
        B, L, K, _ = score.shape
        left, ids = score.clone(), torch.arange(K)
        partner = torch.full((B, L, K), -1, dtype=torch.long)
        value = torch.zeros(B, L, K)
        for _ in range(K):
            best, idx = left.flatten(2).max(dim=-1)
            row, col = ids == (idx // K)[..., None], ids == (idx % K)[..., None]
            hit = row & (best > accept)[..., None]
            partner = torch.where(hit, (idx % K)[..., None], partner)
            value = torch.where(hit, best[..., None], value)
            left = left.masked_fill(row[..., :, None] | col[..., None, :], -1e4)
        return partner, value

    def assemble(self, xy, score, partner, value):
        """Walk from each root candidate down the limbs of the skeleton."""
        B, J, K, _ = xy.shape
        slot = torch.full((B, J, K), -1, dtype=torch.long)
        slot[:, ROOT] = torch.arange(K)
        strength = torch.zeros(B, K)
        for l, (a, b) in enumerate(LIMBS):
            safe = slot[:, a].clamp(min=0)
            found = partner[:, l].gather(1, safe)
            alive = (slot[:, a] >= 0) & (found >= 0)
            slot[:, b] = found.masked_fill(~alive, -1)
            strength = strength + value[:, l].gather(1, safe) * alive.float()
        present = (slot >= 0).float()
        safe = slot.clamp(min=0)
        people = xy.gather(2, safe[..., None].expand(-1, -1, -1, 2)) * present[..., None]
        count = present.sum(dim=1)
        joint = (score.gather(2, safe) * present).sum(dim=1) / count
        total = joint + strength / (count - 1).clamp(min=1)
        return people.transpose(1, 2), present.transpose(1, 2), total

    def to_image(self, xy, center, scale, size):
        """Heatmap coordinates into the image that the box was cut from."""
        unit = (xy + 0.5) / xy.new_tensor([size[1], size[0]]) - 0.5
        shape = (-1,) + (1,) * (xy.dim() - 2) + (2,)
        return center.view(shape) + unit * (scale * 200.0).view(shape)

    def forward(self, image, center, scale, accept):
        feat, heat, paf = self.flip_test(image)
        size = heat.shape[-2:]
        xy, conf, spread = self.soft(heat)
        delta, vis = self.relation(feat, xy, conf, spread, size)
        joints = self.to_image(xy + delta * vis[..., None], center, scale, size)

        cand, score = self.finder(heat)
        limb = self.scorer(paf, cand, score)
        partner, value = self.match(limb, accept)
        people, present, total = self.assemble(cand, score, partner, value)
        people = self.to_image(people, center, scale, size) * present[..., None]
        order = total.argsort(dim=1, descending=True)
        people = people.gather(1, order[..., None, None].expand_as(people))
        return heat, paf, joints, conf * vis, limb, people, total.gather(1, order)


def build():
    torch.manual_seed(54)
    net = PoseHeat()
    i = torch.arange(2 * 3 * 72 * 56, dtype=torch.float64).view(2, 3, 72, 56)
    image = (torch.sin(i * 0.7311) + torch.cos(i * i * 0.0137) + torch.sin(i * 0.0021)).float()
    with torch.no_grad():
        for p in net.parameters():
            p.normal_(0, math.sqrt(0.2 / p[0].numel()) if p.dim() == 4 else 0.25)
            if p.dim() == 2:
                p.mul_(4.0 / math.sqrt(p.shape[1]))
        for m in net.modules():
            if isinstance(m, (nn.BatchNorm2d, nn.GroupNorm, nn.LayerNorm)):
                m.weight.uniform_(0.6, 1.4)
            elif isinstance(m, nn.Conv2d) and m.bias is not None:
                m.weight.mul_(2.5)
        net.train().dense(image)                 # statistics of the data
        for m in net.modules():
            if isinstance(m, nn.BatchNorm2d):
                m.running_mean.div_(m.momentum)
                m.running_var.sub_(1 - m.momentum).div_(m.momentum).mul_(
                    torch.empty_like(m.running_var).uniform_(0.7, 1.3))
    center, scale = torch.tensor([[[310, 242.5], [128.25, 407]], [[0.9, 1.15], [1.4, 1.8]]])
    return net.eval(), (image, center, scale, 0.45)
