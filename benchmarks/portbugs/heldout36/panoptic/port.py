"""MindSpore port of the bottom-up panoptic segmentation net (PyNative)."""
import math

import numpy as np
import mindspore as ms
from mindspore import nn, ops, Parameter, Tensor


def shrink_mask(mask, size):
    """Strided mask of a feature map of the given (h, w)."""
    sh = -(-mask.shape[2] // size[0])
    sw = -(-mask.shape[3] // size[1])
    return mask[:, :, ::sh, ::sw]


def valid_mean(x, mask):
    """Spatial mean over the valid pixels, mask is float (n, 1, h, w)."""
    area = ops.clamp(mask.sum(axis=(2, 3), keepdims=True), min=1.0)
    return (x * mask).sum(axis=(2, 3), keepdims=True) / area


def conv1x1(cin, cout, has_bias=True):
    return nn.Conv2d(cin, cout, 1, pad_mode='pad', padding=0, has_bias=has_bias)


class ConvBN(nn.Cell):
    def __init__(self, cin, cout, kernel=1, stride=1, dilation=1, group=1, act=None):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, kernel, stride, pad_mode='pad', padding=dilation * (kernel // 2),
                              dilation=dilation, group=group, has_bias=False)
        self.bn = nn.BatchNorm2d(cout, eps=1e-3, momentum=0.99)
        self.act = act

    def construct(self, x):
        x = self.bn(self.conv(x))
        return x if self.act is None else self.act(x)


class SEBlock(nn.Cell):
    def __init__(self, channels, hidden):
        super().__init__()
        self.down = conv1x1(channels, hidden)
        self.up = conv1x1(hidden, channels)

    def construct(self, x, mask):
        gate = self.down(valid_mean(x, mask))
        gate = self.up(ops.silu(gate))
        return x * ops.hardsigmoid(gate)


class InvertedResidual(nn.Cell):
    def __init__(self, cin, cout, kernel, stride, dilation, expansion=2):
        super().__init__()
        hidden = expansion * cin
        self.residual = (cin == cout and stride == 1)
        self.expand = ConvBN(cin, hidden, act=nn.SiLU())
        self.dw = ConvBN(hidden, hidden, kernel, stride, dilation, group=hidden, act=nn.SiLU())
        self.se = SEBlock(hidden, max(4, cin // 4))
        self.linear = ConvBN(hidden, cout)

    def construct(self, x, mask):
        out = self.dw(self.expand(x))
        mask = shrink_mask(mask, out.shape[2:])
        out = self.linear(self.se(out, mask))
        if self.residual:
            out = x + out
        return out * mask


class Backbone(nn.Cell):
    # cout, kernel, stride, dilation, depth
    settings = ((20, 3, 2, 1, 2), (28, 5, 2, 1, 2), (36, 3, 1, 2, 2))

    def __init__(self, width=16):
        super().__init__()
        self.stem = ConvBN(3, width, 3, 2, act=nn.SiLU())
        blocks, self.out_channels, self.stage_ends = [], [width], []
        cin = width
        for cout, kernel, stride, dilation, depth in self.settings:
            for i in range(depth):
                blocks.append(InvertedResidual(cin, cout, kernel, 1 if i else stride, dilation))
                cin = cout
            self.stage_ends.append(len(blocks) - 1)
            self.out_channels.append(cout)
        self.blocks = nn.CellList(blocks)

    def construct(self, image, mask):
        x = self.stem(image * mask)
        mask = shrink_mask(mask, x.shape[2:])
        x = x * mask
        features = [(x, mask)]
        for i, block in enumerate(self.blocks):
            x = block(x, mask)
            mask = shrink_mask(mask, x.shape[2:])
            if i in self.stage_ends:
                features.append((x, mask))
        return features


class WSConv(nn.Cell):
    """Convolution with standardised weights, then group norm and relu."""

    def __init__(self, cin, cout, kernel=1, rate=1):
        super().__init__()
        self.rate = rate
        self.padding = rate if kernel > 1 else 0
        self.fan_in = cin * kernel * kernel
        self.weight = Parameter(Tensor(np.random.randn(cout, cin, kernel, kernel).astype(np.float32)))
        self.bias = Parameter(Tensor(np.zeros(cout, np.float32)))
        self.norm = nn.GroupNorm(4, cout)

    def construct(self, x):
        w = self.weight.reshape(self.weight.shape[0], -1)
        w = w - w.mean(axis=1, keep_dims=True)
        var = ops.square(w).mean(axis=1, keep_dims=True)
        w = w * ops.rsqrt(var + 1e-6) * (1.0 / math.sqrt(self.fan_in))
        w = w.reshape(self.weight.shape)
        x = ops.conv2d(x, w, self.bias, stride=1, pad_mode='pad', padding=self.padding, dilation=self.rate)
        return ops.relu(self.norm(x))


class AtrousPyramid(nn.Cell):
    def __init__(self, cin, cout, rates=(2, 3)):
        super().__init__()
        self.local = WSConv(cin, cout)
        self.atrous = nn.CellList([WSConv(cin, cout, 3, r) for r in rates])
        self.global_conv = conv1x1(cin, cout)
        self.project = ConvBN((2 + len(rates)) * cout, cout, act=nn.ReLU())

    def construct(self, x, mask):
        branches = [self.local(x)]
        for conv in self.atrous:
            branches.append(conv(x))
        pooled = ops.relu(self.global_conv(valid_mean(x, mask)))
        branches.append(ops.broadcast_to(pooled, branches[0].shape))
        return self.project(ops.concat(branches, axis=1))


class PositionEncoder(nn.Cell):
    """Projected Fourier features of the pixel positions, appended to the channels."""

    def __init__(self, out_dim, bands=3, max_freq=5.0):
        super().__init__()
        freqs = np.pi * np.power(max_freq, np.linspace(0.0, 1.0, bands))
        self.freqs = Tensor(freqs.astype(np.float32))
        self.proj = nn.Dense(3 + 4 * bands, out_dim)

    @staticmethod
    def axis_coords(length, extent, stride):
        pos = (ops.arange(length).astype(ms.float32) + 0.5) * stride
        return ops.clamp(2.0 * pos.expand_dims(0) / extent.expand_dims(1) - 1.0, max=1.5)

    def fourier(self, coord):
        angle = coord.expand_dims(-1) * self.freqs
        return ops.concat((ops.sin(angle), ops.cos(angle)), axis=-1)

    def construct(self, x, sizes, stride):
        n, _, h, w = x.shape
        y = self.axis_coords(h, sizes[:, 0], stride).reshape(n, h, 1)
        x_pos = self.axis_coords(w, sizes[:, 1], stride).reshape(n, 1, w)
        y = ops.broadcast_to(y, (n, h, w))
        x_pos = ops.broadcast_to(x_pos, (n, h, w))
        radius = ops.sqrt(y * y + x_pos * x_pos)
        coords = ops.concat((ops.stack((y, x_pos, radius), axis=-1), self.fourier(y), self.fourier(x_pos)), axis=-1)
        coords = ops.tanh(self.proj(coords)).transpose(0, 3, 1, 2)
        return ops.concat((x, coords), axis=1)


class TopDown(nn.Cell):
    """Feature pyramid with fast normalised fusion."""

    def __init__(self, channels, top_dim, dim):
        super().__init__()
        self.entry = conv1x1(top_dim, dim)
        self.lateral = nn.CellList([conv1x1(c, dim) for c in channels])
        self.smooth = nn.CellList([ConvBN(dim, dim, 3, group=dim) for _ in channels])
        self.fusion = Parameter(ops.ones((len(channels), 2), ms.float32))

    def construct(self, features, top):
        fusion = ops.relu(self.fusion)
        fusion = fusion / (fusion.sum(axis=1, keepdims=True) + 1e-4)
        x = self.entry(top)
        pyramid = []
        for level in range(len(features) - 1, -1, -1):
            side = self.lateral[level](features[level])
            if side.shape != x.shape:
                x = ops.interpolate(x, size=side.shape[2:], mode='bilinear', align_corners=False)
            x = ops.silu(fusion[level, 0] * side + fusion[level, 1] * x)
            pyramid.append(x + self.smooth[level](x))
        return pyramid


class DecoderStage(nn.Cell):
    """Upsample, join with the projected skip, 5x5 separable convolution."""

    def __init__(self, cin, skip_dim, low, cout):
        super().__init__()
        width = cin + low
        self.squeeze = conv1x1(skip_dim, low)
        self.dw = nn.Conv2d(width, width, 5, pad_mode='pad', padding=2, group=width)
        self.pw = conv1x1(width, cout, has_bias=False)
        self.gn = nn.GroupNorm(3, cout)
        self.act = nn.LeakyReLU(alpha=0.01)

    def construct(self, x, skip):
        x = ops.interpolate(x, size=skip.shape[2:], mode='bilinear', align_corners=True)
        side = ops.leaky_relu(self.squeeze(skip), 0.1)
        x = ops.concat((x, side), axis=1)
        return self.act(self.gn(self.pw(self.dw(x))))


class Decoder(nn.Cell):
    def __init__(self, top_dim, skip_dim, low_dims, dim):
        super().__init__()
        inputs = [top_dim] + [dim] * (len(low_dims) - 1)
        self.stages = nn.CellList([DecoderStage(c, skip_dim, low, dim) for c, low in zip(inputs, low_dims)])

    def construct(self, x, skips):
        for stage, skip in zip(self.stages, skips):
            x = stage(x, skip)
        return x


class PeakFinder(nn.Cell):
    def __init__(self, top_k=6, nms=5, threshold=0.4, sigma=0.8):
        super().__init__()
        self.top_k = top_k
        self.nms = nms
        self.threshold = threshold
        g = np.exp(-np.arange(-1, 2) ** 2 / (2.0 * sigma ** 2))
        g = np.outer(g, g) / g.sum() ** 2
        self.kernel = Tensor(g[None, None].astype(np.float32))

    @staticmethod
    def sample(flat, y, x, h, w):
        index = ops.clamp(y, 0, h - 1) * w + ops.clamp(x, 0, w - 1)
        return ops.gather_elements(flat, 1, index)

    def construct(self, heat, mask):
        n, _, h, w = heat.shape
        heat = ops.conv2d(heat * mask, self.kernel, pad_mode='pad', padding=1) * mask
        pooled = ops.max_pool2d(heat, self.nms, stride=1, padding=self.nms // 2)
        keep = ops.logical_and(heat == pooled, heat > self.threshold)
        peaks = (heat * keep.astype(ms.float32)).reshape(n, h * w)
        scores, index = ops.topk(peaks, self.top_k, dim=1)
        valid = scores > self.threshold
        index = ops.where(valid, index, ops.zeros_like(index))
        row = index // w
        col = index % w
        flat = heat.reshape(n, h * w)
        step_y = ops.sign(self.sample(flat, row + 1, col, h, w) - self.sample(flat, row - 1, col, h, w))
        step_x = ops.sign(self.sample(flat, row, col + 1, h, w) - self.sample(flat, row, col - 1, h, w))
        centers = ops.stack((row + 0.25 * step_y, col + 0.25 * step_x), axis=-1)
        return centers, index, scores, valid


class PixelGrouping(nn.Cell):
    """Soft assignment of pixels to centers with mean-shift refinement."""

    def __init__(self, dim, num_classes, steps=2):
        super().__init__()
        self.steps = steps
        self.log_sigma = Parameter(Tensor(np.ones(2, np.float32)))
        self.to_key = conv1x1(dim, 12)
        self.to_query = nn.Dense(dim, 12)
        self.norm = nn.LayerNorm((dim,), epsilon=1e-5)
        self.fc1 = nn.Dense(dim, 2 * dim)
        self.fc2 = nn.Dense(2 * dim, dim)
        self.gelu = nn.GELU(approximate=False)
        self.classifier = nn.Dense(dim, num_classes)

    def construct(self, feat, offset, centers, index, scores, valid, mask):
        n, c, h, w = feat.shape
        gy, gx = ops.meshgrid(ops.arange(h), ops.arange(w), indexing='ij')
        grid = ops.stack((gy, gx)).astype(ms.float32)
        points = (offset + grid).reshape(n, 2, h * w).transpose(0, 2, 1)
        pixels = feat.reshape(n, c, h * w).transpose(0, 2, 1)                    # (n, hw, c)
        keys = ops.L2Normalize(axis=1, epsilon=1e-12)(self.to_key(feat).reshape(n, -1, h * w))
        index = ops.broadcast_to(index.expand_dims(-1), (n, index.shape[1], c))
        slots = ops.gather_elements(pixels, 1, index)                            # (n, k, c)
        inside = mask.reshape(n, 1, h * w)
        log_prior = ops.log(ops.clamp(scores, min=1e-3)).expand_dims(-1)
        precision = ops.exp(-2.0 * self.log_sigma)
        invalid = ops.logical_not(valid).expand_dims(-1)

        for _ in range(self.steps):
            delta = centers.expand_dims(2) - points.expand_dims(1)               # (n, k, hw, 2)
            dist = (ops.square(delta) * precision).sum(axis=-1)
            query = ops.L2Normalize(axis=-1, epsilon=1e-12)(self.to_query(slots))
            logits = 4.0 * ops.bmm(query, keys) - 0.5 * dist + log_prior
            logits = ops.masked_fill(logits, invalid, -1e4)
            assign = ops.softmax(logits, axis=1) * inside
            share = assign / (assign.sum(axis=-1, keepdims=True) + 1e-6)
            centers = 0.5 * (centers + ops.bmm(share, points))
            pooled = self.norm(ops.bmm(share, pixels))
            slots = slots + self.fc2(self.gelu(self.fc1(pooled)))

        class_logits = self.classifier(slots)
        refined = ops.bmm(class_logits.swapaxes(1, 2), assign).reshape(n, -1, h, w)
        return assign.reshape(n, -1, h, w), centers, class_logits, refined


class PanopticNet(nn.Cell):
    label_divisor = 100

    def __init__(self, num_classes=7, num_things=4, dim=24):
        super().__init__()
        self.num_classes = num_classes
        self.num_things = num_things
        self.backbone = Backbone()
        channels = self.backbone.out_channels
        self.aspp = AtrousPyramid(channels[-1], 32)
        self.position = PositionEncoder(10)
        self.fpn = TopDown(channels[:3], 42, dim)
        self.sem_decoder = Decoder(42, dim, (16, 12, 8), 30)
        self.ins_decoder = Decoder(42, dim, (14, 10, 6), 27)
        self.sem_out = conv1x1(30, num_classes)
        self.center_out = nn.Conv2d(27, 1, 3, pad_mode='pad', padding=1, has_bias=True)
        self.offset_out = nn.Conv2d(27, 2, 3, pad_mode='pad', padding=1, has_bias=True)
        self.peaks = PeakFinder()
        self.grouping = PixelGrouping(27, num_classes)

    def fuse(self, sem, assign, valid, mask, min_area=6):
        n, _, h, w = sem.shape
        k = assign.shape[1]
        inside = mask[:, 0] > 0
        label = sem.argmax(axis=1)
        things = ops.logical_and(label < self.num_things, inside)
        owner = assign.argmax(axis=1) + 1
        owner = ops.where(things, owner, ops.zeros_like(owner))                  # (n, h, w), 0 is stuff
        probs = ops.softmax(sem[:, :self.num_things], axis=1).reshape(n, self.num_things, h * w)
        member = ops.one_hot(owner.reshape(n, h * w), k + 1, Tensor(1.0, ms.float32), Tensor(0.0, ms.float32))
        votes = ops.bmm(member.swapaxes(1, 2), probs.swapaxes(1, 2))[:, 1:]
        winner = votes.argmax(axis=-1).asnumpy()
        ok = valid.asnumpy()

        maps = []
        for b in range(n):
            ids = np.zeros((h, w), np.int64)
            lab, own, ins = label[b].asnumpy(), owner[b].asnumpy(), inside[b].asnumpy()
            rank = np.zeros(self.num_things, np.int64)
            for j in range(k):
                region = own == j + 1
                if ok[b, j] and region.sum() >= min_area:
                    cls = winner[b, j]
                    rank[cls] += 1
                    ids[region] = self.label_divisor * (cls + 1) + rank[cls]
            for cls in range(self.num_things, self.num_classes):
                region = (lab == cls) & ins & (ids == 0)
                if region.sum() >= min_area:
                    ids[region] = self.label_divisor * (cls + 1)
            maps.append(ids)
        return Tensor(np.stack(maps)), votes

    def construct(self, image, sizes):
        n, _, height, width = image.shape
        rows = ops.arange(height).reshape(1, height, 1) < sizes[:, 0].reshape(n, 1, 1)
        cols = ops.arange(width).reshape(1, 1, width) < sizes[:, 1].reshape(n, 1, 1)
        mask = ops.logical_and(rows, cols).expand_dims(1).astype(ms.float32)

        features = self.backbone(image, mask)
        deep, deep_mask = features[-1]
        top = self.position(self.aspp(deep, deep_mask), sizes.astype(ms.float32), 8)
        skips = self.fpn([f for f, _ in features[:3]], top)
        sem_feat = self.sem_decoder(top, skips)
        ins_feat = self.ins_decoder(top, skips)

        fine = features[0][1]
        heat = ops.sigmoid(self.center_out(ins_feat))
        offset = self.offset_out(ins_feat) * fine
        centers, index, scores, valid = self.peaks(heat, fine)
        assign, centers, class_logits, refined = self.grouping(ins_feat, offset, centers, index, scores, valid, fine)
        sem = ops.log_softmax(self.sem_out(sem_feat) + refined, axis=1)
        panoptic, votes = self.fuse(sem, assign, valid, fine)
        sem = ops.interpolate(sem, size=(height, width), mode='bilinear', align_corners=False)
        return sem, heat, offset, assign, centers, class_logits, votes, panoptic


def make_inputs():
    rng = np.random.RandomState(7)
    image = rng.randn(2, 3, 46, 58).astype(np.float32)
    y = np.linspace(0, 3, 46)[:, None]
    x = np.linspace(0, 4, 58)[None, :]
    for b in range(2):
        for c in range(3):
            image[b, c] = 0.5 * image[b, c] + np.sin(2.1 * y + c + b) * np.cos(1.7 * x - 0.6 * c + 0.4 * b)
    sizes = np.array([[46, 51], [37, 58]], dtype=np.int64)
    return image, sizes


def build():
    ms.set_context(mode=ms.PYNATIVE_MODE)
    net = PanopticNet()
    net.set_train(False)
    image, sizes = make_inputs()
    return net, (Tensor(image), Tensor(sizes))


if __name__ == "__main__":
    model, inputs = build()
    print([out.shape for out in model(*inputs)])
