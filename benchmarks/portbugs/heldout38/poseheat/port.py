"""PoseHeat in MindSpore (PYNATIVE)."""
import math

import numpy as np
import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

NUM_JOINTS = 9
NECK = 1
BONES = ((1, 0), (1, 2), (1, 3), (2, 4), (3, 5), (1, 6), (6, 7), (6, 8))
SWAP_JOINTS = (0, 1, 3, 2, 5, 4, 6, 8, 7)
SWAP_BONES = (0, 2, 1, 4, 3, 5, 7, 6)
BN_EPS = 1e-3


def index_tensor(values):
    return Tensor(np.asarray(values), ms.int32)


def conv_bn(cin, cout, k=3, stride=1, relu=True):
    layers = [
        nn.Conv2d(cin, cout, k, stride, pad_mode="pad", padding=k // 2, has_bias=False),
        nn.BatchNorm2d(cout, eps=BN_EPS, momentum=0.97),
    ]
    if relu:
        layers.append(nn.ReLU())
    return nn.SequentialCell(layers)


class ChannelGate(nn.Cell):
    def __init__(self, dim, hidden):
        super().__init__()
        self.squeeze = nn.Dense(2 * dim, hidden)
        self.act = nn.GELU(approximate=False)
        self.excite = nn.Dense(hidden, dim)

    def construct(self, x):
        pooled = ops.cat((ops.mean(x, (2, 3)), ops.amax(x, (2, 3))), axis=1)
        gate = ops.sigmoid(self.excite(self.act(self.squeeze(pooled))))
        return x * gate.expand_dims(-1).expand_dims(-1)


class BasicBlock(nn.Cell):
    def __init__(self, dim):
        super().__init__()
        self.body = nn.SequentialCell([
            conv_bn(dim, dim),
            conv_bn(dim, dim, relu=False),
            ChannelGate(dim, dim // 2),
        ])
        self.relu = nn.ReLU()

    def construct(self, x):
        return self.relu(self.body(x) + x)


class FuseStage(nn.Cell):
    def __init__(self, dims):
        super().__init__()
        self.n = len(dims)
        self.branches = nn.CellList(
            [nn.SequentialCell([BasicBlock(d), BasicBlock(d)]) for d in dims])
        rows = []
        for i in range(self.n):
            rows.append(nn.CellList([self._path(dims, i, j) for j in range(self.n)]))
        self.fuse = nn.CellList(rows)
        self.mix = Parameter(ops.zeros((self.n, self.n), ms.float32), name="mix")
        self.relu = nn.ReLU()

    @staticmethod
    def _path(dims, i, j):
        """From resolution j to resolution i."""
        if i == j:
            return nn.Identity()
        if j > i:
            return nn.SequentialCell([conv_bn(dims[j], dims[i], 1, relu=False)])
        down = [conv_bn(dims[j], dims[j], 3, 2) for _ in range(i - j - 1)]
        down.append(conv_bn(dims[j], dims[i], 3, 2, relu=False))
        return nn.SequentialCell(down)

    def construct(self, xs):
        feats = []
        for branch, x in zip(self.branches, xs):
            feats.append(branch(x))
        weight = ops.softmax(self.mix, axis=1) * self.n
        outs = []
        for i, row in enumerate(self.fuse):
            size = feats[i].shape[2:]
            acc = ops.zeros_like(feats[i])
            for j, path in enumerate(row):
                y = path(feats[j])
                if j > i:
                    y = ops.interpolate(y, size=size, mode="bilinear", align_corners=False)
                acc = acc + y * weight[i, j]
            outs.append(self.relu(acc))
        return outs


class Backbone(nn.Cell):
    def __init__(self, dims):
        super().__init__()
        self.stem1 = conv_bn(3, 16, 3, 2)
        self.stem2 = conv_bn(16, 32, 3, 2)
        self.to_high = conv_bn(32, dims[0])
        self.to_mid = conv_bn(32, dims[1], 3, 2)
        self.stage2 = FuseStage(dims[:2])
        self.to_low = conv_bn(dims[1], dims[2], 3, 2)
        self.stage3 = FuseStage(dims)

    def construct(self, image):
        x = self.stem2(self.stem1(image))
        high, mid = self.stage2([self.to_high(x), self.to_mid(x)])
        return self.stage3([high, mid, self.to_low(mid)])


class MergeHead(nn.Cell):
    def __init__(self, dims, out):
        super().__init__()
        self.proj = conv_bn(sum(dims) + 2, out, 1)
        self.conv = nn.Conv2d(out, out, 3, pad_mode="pad", padding=1, group=4, has_bias=True)
        self.norm = nn.GroupNorm(4, out, eps=1e-5)
        self.act = nn.LeakyReLU(alpha=0.01)

    def construct(self, feats):
        batch, _, height, width = feats[0].shape
        maps = [feats[0]]
        for f in feats[1:]:
            maps.append(ops.interpolate(f, size=(height, width), mode="bilinear",
                                        align_corners=True))
        col = ops.linspace(-1.0, 1.0, width).reshape(1, 1, 1, width)
        row = ops.linspace(-1.0, 1.0, height).reshape(1, 1, height, 1)
        maps.append(ops.broadcast_to(col, (batch, 1, height, width)))
        maps.append(ops.broadcast_to(row, (batch, 1, height, width)))
        x = self.proj(ops.cat(maps, axis=1))
        return self.act(self.norm(self.conv(x))) + x


class HeatmapHead(nn.Cell):
    def __init__(self, dim, hidden, joints):
        super().__init__()
        self.low = nn.Conv2d(dim, joints, 1, has_bias=True)
        self.deconv = nn.Conv2dTranspose(dim + joints, hidden, 4, stride=2, pad_mode="pad",
                                         padding=1, has_bias=False)
        self.bn = nn.BatchNorm2d(hidden, eps=BN_EPS)
        self.relu = nn.ReLU()
        self.block = BasicBlock(hidden)
        self.high = nn.Conv2d(hidden, joints, 1, has_bias=True)

    def construct(self, x):
        low = self.low(x)
        y = self.relu(self.bn(self.deconv(ops.cat((x, low), axis=1))))
        high = self.high(self.block(y))
        up = ops.interpolate(low, size=high.shape[2:], mode="bilinear", align_corners=False)
        return ops.sigmoid((up + high) / 2)


class PafHead(nn.Cell):
    def __init__(self, dim, hidden, bones):
        super().__init__()
        self.bones = bones
        self.conv = nn.Conv2d(dim, hidden, 3, pad_mode="pad", padding=2, dilation=2,
                              has_bias=True)
        self.act = nn.LeakyReLU(alpha=0.1)
        self.out = nn.Conv2d(hidden, 2 * bones, 1, has_bias=True)

    def construct(self, x):
        y = self.out(self.act(self.conv(x)))
        b, _, h, w = y.shape
        y = y.reshape(b, self.bones, 2, h, w)
        length = ops.sqrt(ops.square(y).sum(axis=2, keepdims=True))
        return y / ops.maximum(length, Tensor(1.0, ms.float32))


class WindowSoftArgmax(nn.Cell):
    def __init__(self, joints, radius=4):
        super().__init__()
        self.radius = radius
        self.beta = Parameter(ops.zeros((joints,), ms.float32), name="beta")

    def construct(self, heat):
        b, j, h, w = heat.shape
        flat = heat.reshape(b, j, h * w)
        idx = ops.argmax(flat, dim=-1)
        peak = ops.amax(flat, -1)
        cols = ops.arange(w)
        rows = ops.arange(h)
        in_x = ops.abs(cols - (idx % w).expand_dims(-1)) <= self.radius
        in_y = ops.abs(rows - (idx // w).expand_dims(-1)) <= self.radius
        window = ops.logical_and(in_y.expand_dims(-1), in_x.expand_dims(-2))
        beta = 4.0 * ops.softplus(self.beta) + 2.0
        logits = heat * beta.reshape(1, j, 1, 1)
        logits = logits.masked_fill(ops.logical_not(window), -1e9)
        prob = ops.softmax(logits.reshape(b, j, h * w), axis=-1).reshape(b, j, h, w)

        cols = cols.astype(ms.float32)
        rows = rows.astype(ms.float32)
        px = prob.sum(axis=2)
        py = prob.sum(axis=3)
        x = (px * cols).sum(axis=-1)
        y = (py * rows).sum(axis=-1)
        var_x = (px * ops.square(cols - x.expand_dims(-1))).sum(axis=-1)
        var_y = (py * ops.square(rows - y.expand_dims(-1))).sum(axis=-1)
        spread = ops.sqrt(var_x + var_y)
        conf = peak * ops.exp(-spread / (2 * self.radius))
        return ops.stack((x, y), axis=-1), conf, spread


class PeakFinder(nn.Cell):
    def __init__(self, topk=4, sigma=1.2, ksize=5):
        super().__init__()
        self.topk = topk
        self.ksize = ksize
        self.pool = nn.MaxPool2d(kernel_size=3, stride=1, pad_mode="same")
        r = np.arange(ksize, dtype=np.float32) - ksize // 2
        line = np.exp(-r ** 2 / (2 * sigma ** 2))
        line = line / line.sum()
        self.kernel = Tensor(np.outer(line, line)[None, None], ms.float32)

    def smooth_log(self, heat):
        joints = heat.shape[1]
        r = self.ksize // 2
        x = ops.pad(heat, (r, r, r, r), mode="reflect")
        x = ops.conv2d(x, ops.tile(self.kernel, (joints, 1, 1, 1)), groups=joints)
        return ops.log(ops.clamp(x, min=1e-4))

    def construct(self, heat):
        b, j, h, w = heat.shape
        is_peak = ops.equal(self.pool(heat), heat)
        peaks = ops.where(is_peak, heat, ops.zeros_like(heat))
        score, idx = ops.topk(peaks.reshape(b, j, h * w), self.topk)
        x = idx % w
        y = idx // w

        padded = ops.pad(self.smooth_log(heat), (1, 1, 1, 1), mode="replicate")
        padded = padded.reshape(b, j, -1)
        base = (y + 1) * (w + 2) + (x + 1)

        def at(dx, dy):
            return ops.gather_elements(padded, 2, base + dy * (w + 2) + dx)

        c = at(0, 0)
        e, wst, s, n = at(1, 0), at(-1, 0), at(0, 1), at(0, -1)
        gx = (e - wst) / 2
        gy = (s - n) / 2
        hxx = e + wst - 2 * c - 0.05
        hyy = s + n - 2 * c - 0.05
        hxy = (at(1, 1) + at(-1, -1) - at(1, -1) - at(-1, 1)) / 4
        det = hxx * hyy - hxy * hxy
        usable = ops.logical_and(det > 1e-3, hxx < 0)
        det = ops.where(usable, det, ops.ones_like(det))
        ox = -(hyy * gx - hxy * gy) / det
        oy = -(hxx * gy - hxy * gx) / det
        off = ops.clamp(ops.stack((ox, oy), axis=-1), -0.75, 0.75)
        off = off * usable.expand_dims(-1).astype(ms.float32)
        return ops.stack((x, y), axis=-1).astype(ms.float32) + off, score


class SkeletonAttention(nn.Cell):
    """Self attention over joints with a bias per number of hops."""

    def __init__(self, joints, dim, heads, max_hop):
        super().__init__()
        self.heads = heads
        self.head_dim = dim // heads
        self.qkv = nn.Dense(dim, 3 * dim)
        self.proj = nn.Dense(dim, dim)
        self.hop_bias = Parameter(ops.zeros((heads, max_hop + 1), ms.float32), name="hop_bias")

        near = [[] for _ in range(joints)]
        for a, b in BONES:
            near[a].append(b)
            near[b].append(a)
        table = np.full((joints, joints), max_hop, np.int32)
        for start in range(joints):
            seen, ring, hop = {start}, [start], 0
            while ring and hop < max_hop:
                table[start, ring] = hop
                ring = [m for k in ring for m in near[k] if m not in seen]
                seen.update(ring)
                hop += 1
        self.hops = Tensor(table.reshape(-1))

    def construct(self, x, weak):
        b, j, d = x.shape
        qkv = self.qkv(x).reshape(b, j, 3, self.heads, self.head_dim)
        qkv = qkv.transpose(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        att = ops.matmul(q, k.swapaxes(-1, -2)) * (self.head_dim ** -0.5)
        bias = ops.gather(self.hop_bias, self.hops, 1).reshape(1, self.heads, j, j)
        att = att + bias
        att = att.masked_fill(weak.reshape(b, 1, 1, j), -1e9)
        att = ops.softmax(att, axis=-1)
        y = ops.matmul(att, v).swapaxes(1, 2).reshape(b, j, d)
        return self.proj(y)


class JointRelation(nn.Cell):
    def __init__(self, joints, feat, dim=24, heads=3, hidden=40, max_hop=3):
        super().__init__()
        self.embed = Parameter(ops.zeros((joints, dim), ms.float32), name="embed")
        self.inp = nn.Dense(feat + 2, dim)
        self.attn = SkeletonAttention(joints, dim, heads, max_hop)
        self.norm1 = nn.LayerNorm((dim,), epsilon=1e-5)
        self.norm2 = nn.LayerNorm((dim,), epsilon=1e-5)
        self.mlp = nn.SequentialCell([
            nn.Dense(dim, hidden), nn.GELU(approximate=False), nn.Dense(hidden, dim)])
        self.delta = nn.Dense(dim, 2)
        self.vis = nn.Dense(dim, 1)
        num = dim // 4
        self.freq = Tensor(math.pi * 50.0 ** (-np.arange(num) / num), ms.float32)

    def position(self, unit):
        b, j, _ = unit.shape
        ang = unit.expand_dims(-1) * self.freq
        return ops.cat((ops.sin(ang), ops.cos(ang)), axis=-1).reshape(b, j, -1)

    def construct(self, feat, xy, conf, spread, size):
        height, width = size
        unit = (xy + 0.5) / Tensor([width, height], ms.float32)
        grid = (2 * unit - 1).expand_dims(2)
        sampled = ops.grid_sample(feat, grid, mode="bilinear", padding_mode="border",
                                  align_corners=False)
        sampled = sampled.squeeze(-1).swapaxes(1, 2)
        x = ops.cat((sampled, conf.expand_dims(-1), spread.expand_dims(-1)), axis=-1)
        x = self.inp(x) + self.embed + self.position(unit)
        weak = conf < 0.97 * ops.mean(conf, 1, keep_dims=True)
        x = self.norm1(x + self.attn(x, weak))
        x = self.norm2(x + self.mlp(x))
        return 2.0 * ops.tanh(self.delta(x)), ops.sigmoid(self.vis(x)).squeeze(-1)


class LimbScorer(nn.Cell):
    def __init__(self, points=7, stride=2):
        super().__init__()
        self.points = points
        self.stride = stride
        self.src = index_tensor([a for a, _ in BONES])
        self.dst = index_tensor([b for _, b in BONES])
        self.t = Tensor(np.linspace(0, 1, points), ms.float32)
        self.prior = Parameter(ops.zeros((len(BONES),), ms.float32), name="prior")

    def construct(self, paf, xy, score):
        b, l, _, h, w = paf.shape
        k = xy.shape[2]
        head = ops.gather(xy, self.src, 1).expand_dims(3)          # b l k 1 2
        tail = ops.gather(xy, self.dst, 1).expand_dims(2)          # b l 1 k 2
        vec = tail - head
        norm = ops.clamp(ops.norm(vec, dim=-1), min=1e-3)
        unit = vec / norm.expand_dims(-1)

        t = self.t.reshape(-1, 1)
        pts = head.expand_dims(4) + t * vec.expand_dims(4)         # b l k k p 2
        pts = (pts + 0.5) / self.stride - 0.5
        pts = ops.round(pts).astype(ms.int32)
        col = ops.clamp(pts[..., 0], 0, w - 1)
        row = ops.clamp(pts[..., 1], 0, h - 1)
        lin = (row * w + col).reshape(b, l, -1)
        field_x = ops.gather_elements(paf[:, :, 0].reshape(b, l, -1), 2, lin)
        field_y = ops.gather_elements(paf[:, :, 1].reshape(b, l, -1), 2, lin)
        field_x = field_x.reshape(b, l, k, k, self.points)
        field_y = field_y.reshape(b, l, k, k, self.points)
        dot = field_x * unit[..., 0:1] + field_y * unit[..., 1:2]

        ratio = (dot > 0.05).astype(ms.float32).mean(-1)
        far = ops.clamp(0.5 * h * self.stride / norm - 1.0, max=0.0)
        s_head = ops.gather(score, self.src, 1).expand_dims(3)
        s_tail = ops.gather(score, self.dst, 1).expand_dims(2)
        prior = ops.softplus(self.prior).reshape(l, 1, 1)
        return dot.mean(-1) * ratio + far + (s_head + s_tail) / 2 * prior


class PoseHeat(nn.Cell):
    def __init__(self, dims=(20, 28, 36), feat=32):
        super().__init__()
        self.backbone = Backbone(dims)
        self.merge = MergeHead(dims, feat)
        self.heatmap = HeatmapHead(feat, 22, NUM_JOINTS)
        self.paf = PafHead(feat, 26, len(BONES))
        self.soft_argmax = WindowSoftArgmax(NUM_JOINTS)
        self.peaks = PeakFinder()
        self.relation = JointRelation(NUM_JOINTS, feat)
        self.limbs = LimbScorer()
        self.swap_joints = index_tensor(SWAP_JOINTS)
        self.swap_bones = index_tensor(SWAP_BONES)
        self.mirror = Tensor(np.array([-1, 1]).reshape(1, 1, 2, 1, 1), ms.float32)

    def predict(self, image):
        feat = self.merge(self.backbone(image))
        return feat, self.heatmap(feat), self.paf(feat)

    def predict_flip(self, image):
        feat, heat, paf = self.predict(image)
        _, heat_m, paf_m = self.predict(ops.flip(image, (3,)))
        heat_m = ops.gather(ops.flip(heat_m, (3,)), self.swap_joints, 1)
        paf_m = ops.gather(ops.flip(paf_m, (4,)), self.swap_bones, 1) * self.mirror
        return feat, (heat + heat_m) / 2, (paf + paf_m) / 2

    @staticmethod
    def match(score, accept):
        b, l, k, _ = score.shape
        ids = ops.arange(k)
        partner = ops.full((b, l, k), -1, dtype=ms.int64)
        value = ops.zeros((b, l, k), ms.float32)
        left = score
        for _ in range(k):
            flat = left.reshape(b, l, k * k)
            idx = ops.argmax(flat, dim=-1).expand_dims(-1)
            best = ops.gather_elements(flat, 2, idx)
            row, col = idx // k, idx % k
            is_row = ops.equal(ids, row)
            is_col = ops.equal(ids, col)
            hit = ops.logical_and(is_row, best > accept)
            partner = ops.where(hit, col, partner)
            value = ops.where(hit, best, value)
            used = ops.logical_or(is_row.expand_dims(3), is_col.expand_dims(2))
            left = left.masked_fill(used, -1e4)
        return partner, value

    @staticmethod
    def assemble(xy, score, partner, value):
        b, _, k, _ = xy.shape
        slot = [None] * NUM_JOINTS
        slot[NECK] = ops.broadcast_to(ops.arange(k), (b, k))
        strength = ops.zeros((b, k), ms.float32)
        for l, (parent, child) in enumerate(BONES):
            here = slot[parent]
            at = ops.clamp(here, min=0)
            found = ops.gather_elements(partner[:, l], 1, at)
            alive = ops.logical_and(here >= 0, found >= 0)
            slot[child] = ops.where(alive, found, ops.full_like(found, -1))
            gain = ops.gather_elements(value[:, l], 1, at)
            strength = strength + gain * alive.astype(ms.float32)
        slots = ops.stack(slot, axis=1)
        present = (slots >= 0).astype(ms.float32)
        at = ops.clamp(slots, min=0)
        x = ops.gather_elements(xy[..., 0], 2, at) * present
        y = ops.gather_elements(xy[..., 1], 2, at) * present
        joint = (ops.gather_elements(score, 2, at) * present).sum(axis=1)
        count = present.sum(axis=1)
        total = joint / count + strength / ops.clamp(count - 1, min=1)
        people = ops.stack((x, y), axis=-1).swapaxes(1, 2)
        return people, present.swapaxes(1, 2), total

    @staticmethod
    def to_image(xy, center, scale, size):
        height, width = size
        unit = (xy + 0.5) / Tensor([width, height], ms.float32) - 0.5
        while center.ndim < xy.ndim:
            center = center.expand_dims(1)
            scale = scale.expand_dims(1)
        return center + unit * (200.0 * scale)

    def construct(self, image, center, scale, accept):
        feat, heat, paf = self.predict_flip(image)
        size = heat.shape[2:]

        # one person: soft-argmax, then a correction from the relation of joints
        xy, conf, spread = self.soft_argmax(heat)
        delta, vis = self.relation(feat, xy, conf, spread, size)
        joints = self.to_image(xy + delta * vis.expand_dims(-1), center, scale, size)

        # several people: peaks, limbs, matching
        cand, score = self.peaks(heat)
        limb = self.limbs(paf, cand, score)
        partner, value = self.match(limb, accept)
        people, present, total = self.assemble(cand, score, partner, value)
        people = self.to_image(people, center, scale, size) * present.expand_dims(-1)
        total, order = ops.topk(total, total.shape[1])
        order = ops.broadcast_to(order.reshape(order.shape + (1, 1)), people.shape)
        people = ops.gather_elements(people, 1, order)
        return heat, paf, joints, conf * vis, limb, people, total


def build():
    ms.set_context(mode=ms.PYNATIVE_MODE)
    net = PoseHeat()
    net.set_train(False)
    i = np.arange(2 * 3 * 72 * 56, dtype=np.float64).reshape(2, 3, 72, 56)
    image = np.sin(i * 0.7311) + np.cos(i * i * 0.0137) + np.sin(i * 0.0021)
    center = Tensor([[310, 242.5], [128.25, 407]], ms.float32)
    scale = Tensor([[0.9, 1.15], [1.4, 1.8]], ms.float32)
    return net, (Tensor(image.astype(np.float32)), center, scale, 0.45)
