"""MindSpore version of FlowPyr: RAFT-style optical flow with sine positions, global matching for the first flow, global
motion aggregation and both directions computed as one batch."""
import math

import numpy as np
import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

ms.set_context(mode=ms.PYNATIVE_MODE)


def conv2d(in_channels, out_channels, kernel_size, stride=1, padding=0, dilation=1, has_bias=True):
    """Convolution with explicit padding."""
    return nn.Conv2d(in_channels, out_channels, kernel_size, stride=stride, pad_mode='pad', padding=padding,
                     dilation=dilation, has_bias=has_bias)


def pad_amounts(height, width, divisor):
    """(left, right, top, bottom) such that both sides become divisible by `divisor`."""
    dh, dw = (-height) % divisor, (-width) % divisor
    left, top = dw // 2, dh // 2
    return left, dw - left, top, dh - top


def crop(x, pads):
    left, right, top, bottom = pads
    height, width = x.shape[-2:]
    return x[..., top:height - bottom, left:width - right]


def pixel_grid(height, width):
    """Pixel coordinates, x in the first channel: (1, 2, height, width)."""
    ys, xs = np.meshgrid(np.arange(height), np.arange(width), indexing='ij')
    return Tensor(np.stack([xs, ys], axis=0)[None].astype(np.float32))


def sample_pixels(img, points):
    """Bilinear samples of `img` at pixel positions (N, h, w, 2); also tells which of them lie inside."""
    height, width = img.shape[-2:]
    x = points[..., 0] * (2 / (width - 1)) - 1
    y = points[..., 1] * (2 / (height - 1)) - 1
    out = ops.grid_sample(img, ops.stack((x, y), axis=-1), mode='bilinear', padding_mode='zeros', align_corners=True)
    inside = ops.logical_and(ops.abs(x) < 1, ops.abs(y) < 1)
    return out, inside.astype(ms.float32)


class InstanceNorm2d(nn.Cell):
    """Instance norm without parameters (nn.InstanceNorm2d has no CPU kernel)."""

    def __init__(self, eps=1e-5):
        super().__init__()
        self.eps = eps

    def construct(self, x):
        mean = x.mean(axis=(2, 3), keep_dims=True)
        centred = x - mean
        var = ops.mean(centred * centred, axis=(2, 3), keep_dims=True)
        return centred / ops.sqrt(var + self.eps)


def norm_layer(kind, channels):
    if kind == 'instance':
        return InstanceNorm2d()
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.9)


class ResBlock(nn.Cell):
    def __init__(self, in_channels, channels, norm, stride):
        super().__init__()
        self.conv1 = conv2d(in_channels, channels, 3, stride=stride, padding=1)
        self.bn1 = norm_layer(norm, channels)
        self.conv2 = conv2d(channels, channels, 3, padding=1)
        self.bn2 = norm_layer(norm, channels)
        self.has_shortcut = stride != 1 or in_channels != channels
        if self.has_shortcut:
            self.shortcut = nn.SequentialCell(
                conv2d(in_channels, channels, 1, stride=stride), norm_layer(norm, channels))

    def construct(self, x):
        out = ops.relu(self.bn1(self.conv1(x)))
        out = ops.relu(self.bn2(self.conv2(out)))
        identity = self.shortcut(x) if self.has_shortcut else x
        return ops.relu(identity + out)


class Encoder(nn.Cell):
    """Features at a quarter of the resolution."""

    def __init__(self, out_channels, channels=(16, 24, 32), norm='batch'):
        super().__init__()
        self.conv1 = conv2d(3, channels[0], 7, stride=2, padding=3)
        self.bn1 = norm_layer(norm, channels[0])
        self.blocks = nn.CellList([
            ResBlock(channels[0], channels[1], norm, 1),
            ResBlock(channels[1], channels[1], norm, 1),
            ResBlock(channels[1], channels[2], norm, 2),
            ResBlock(channels[2], channels[2], norm, 1),
        ])
        self.conv2 = conv2d(channels[2], out_channels, 1)

    def construct(self, x):
        x = ops.relu(self.bn1(self.conv1(x)))
        for block in self.blocks:
            x = block(x)
        return self.conv2(x)


class SinePosition(nn.Cell):
    def __init__(self, num_feats, temperature=10000, scale=2 * math.pi):
        super().__init__()
        self.scale = scale
        self.eps = 1e-6
        exponent = 2 * (np.arange(num_feats) // 2) / num_feats
        self.dim_t = Tensor((temperature ** exponent).astype(np.float32))

    def _embed(self, length):
        """(length, num_feats): sine in the even, cosine in the odd channels."""
        steps = ops.arange(1, length + 1).astype(ms.float32)
        steps = steps / (steps[-1] + self.eps) * self.scale
        angle = steps.expand_dims(-1) / self.dim_t
        return ops.stack((ops.sin(angle[:, 0::2]), ops.cos(angle[:, 1::2])), axis=2).reshape(length, -1)

    def construct(self, x):
        height, width = x.shape[-2:]
        emb_y, emb_x = self._embed(height), self._embed(width)
        emb_y = ops.tile(emb_y.expand_dims(1), (1, width, 1))
        emb_x = ops.tile(emb_x.expand_dims(0), (height, 1, 1))
        pos = ops.concat((emb_y, emb_x), axis=-1)
        return pos.transpose(2, 0, 1).expand_dims(0)


class CorrVolume(nn.Cell):
    """All-pairs correlation and its pyramid over the target positions."""

    def __init__(self, num_levels):
        super().__init__()
        self.num_levels = num_levels

    def construct(self, src, tgt):
        batch, dim, height, width = src.shape
        src = src.reshape(batch, dim, height * width).swapaxes(1, 2)
        tgt = tgt.reshape(batch, dim, height * width)
        corr = ops.matmul(src, tgt) / math.sqrt(dim)
        level = corr.reshape(batch * height * width, 1, height, width)
        pyramid = [level]
        for _ in range(1, self.num_levels):
            level = ops.avg_pool2d(level, kernel_size=2, stride=2)
            pyramid.append(level)
        return corr, pyramid


class CorrLookup(nn.Cell):
    """Samples a window around the current match in every level."""

    def __init__(self, radius):
        super().__init__()
        steps = np.arange(-radius, radius + 1)
        # the first axis of the window moves along x, as in the original code
        window = np.stack(np.meshgrid(steps, steps, indexing='ij'), axis=-1)
        self.window = Tensor(window[None].astype(np.float32))

    def construct(self, pyramid, coords):
        batch, _, height, width = coords.shape
        centre = coords.transpose(0, 2, 3, 1).reshape(batch * height * width, 1, 1, 2)
        samples = []
        for i, level in enumerate(pyramid):
            points = centre / (2 ** i) + self.window
            values, _ = sample_pixels(level, points)
            samples.append(values.reshape(batch, height, width, -1))
        return ops.concat(samples, axis=-1).transpose(0, 3, 1, 2)


class GlobalMatching(nn.Cell):
    """The first flow: expected position under the softmax of the correlations in a window."""

    def __init__(self, scale=1.2, window=3):
        super().__init__()
        self.scale, self.window = scale, window

    def construct(self, corr, grid):
        _, _, height, width = grid.shape
        points = grid.reshape(1, 2, height * width).swapaxes(1, 2)
        dist = ops.abs(points.expand_dims(2) - points.expand_dims(1)).max(axis=-1)
        prob = ops.softmax(ops.select(dist > self.window, Tensor(-1e9, ms.float32), self.scale * corr), axis=-1)
        match = ops.matmul(prob, points)
        match = match.swapaxes(1, 2).reshape(-1, 2, height, width)
        return match - grid


class RelativePosition(nn.Cell):
    def __init__(self, max_size, head_dim):
        super().__init__()
        self.rel_height = nn.Embedding(2 * max_size - 1, head_dim)
        self.rel_width = nn.Embedding(2 * max_size - 1, head_dim)
        pos = np.arange(max_size)
        self.index = Tensor(pos[None, :] - pos[:, None] + max_size - 1, ms.int32)

    def construct(self, q):
        """q: (b, heads, h, w, d) -> (b, heads, h, w, h, w)"""
        height, width = q.shape[2:4]
        table_h = self.rel_height(self.index[:height, :height])
        table_w = self.rel_width(self.index[:width, :width])
        # (b, heads, x, y, d) @ (x, d, u) -> (b, heads, x, y, u)
        score_h = ops.matmul(q, table_h.swapaxes(1, 2))
        # (b, heads, y, x, d) @ (y, d, v) -> (b, heads, y, x, v)
        score_w = ops.matmul(q.swapaxes(2, 3), table_w.swapaxes(1, 2)).swapaxes(2, 3)
        return score_h.expand_dims(5) + score_w.expand_dims(4)


class MotionAttention(nn.Cell):
    def __init__(self, dim, num_heads=3, head_dim=10, max_size=16):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, head_dim
        self.scale = head_dim ** -0.5
        self.to_qk = conv2d(dim, num_heads * head_dim * 2, 1, has_bias=False)
        self.rel_pos = RelativePosition(max_size, head_dim)

    def construct(self, x):
        batch, _, height, width = x.shape
        area = height * width
        qk = self.to_qk(x).reshape(batch, 2, self.num_heads, self.head_dim, area)
        q = qk[:, 0].swapaxes(2, 3) * self.scale
        sim = ops.matmul(q, qk[:, 1])
        bias = self.rel_pos(q.reshape(batch, self.num_heads, height, width, self.head_dim))
        sim = sim + bias.reshape(batch, self.num_heads, area, area)
        return ops.softmax(sim, axis=-1)


class MotionAggregate(nn.Cell):
    def __init__(self, dim, num_heads=3, head_dim=8):
        super().__init__()
        self.num_heads = num_heads
        self.to_v = conv2d(dim, num_heads * head_dim, 1, has_bias=False)
        self.gamma = Parameter(Tensor(np.zeros(1), ms.float32), name='gamma')
        self.project = conv2d(num_heads * head_dim, dim, 1, has_bias=False)

    def construct(self, attn, x):
        batch, _, height, width = x.shape
        v = self.to_v(x).reshape(batch, self.num_heads, -1, height * width).swapaxes(2, 3)
        out = ops.matmul(attn, v)
        out = out.swapaxes(2, 3).reshape(batch, -1, height, width)
        return x + self.gamma * self.project(out)


class MotionEncoder(nn.Cell):
    def __init__(self, corr_channels, out_channels):
        super().__init__()
        self.convc1 = conv2d(corr_channels, 40, 1)
        self.convc2 = conv2d(40, 32, 3, padding=1)
        self.normc = nn.GroupNorm(4, 32)
        self.convf1 = conv2d(2, 24, 7, padding=3)
        self.convf2 = conv2d(24, 16, 3, padding=2, dilation=2)
        self.conv = conv2d(48, out_channels - 2, 3, padding=1)

    def construct(self, flow, corr):
        c = ops.relu(self.convc1(corr))
        c = ops.relu(self.normc(self.convc2(c)))
        f = ops.relu(self.convf1(flow))
        f = ops.relu(self.convf2(f))
        out = ops.relu(self.conv(ops.concat((c, f), axis=1)))
        return ops.concat((out, flow), axis=1)


class ConvGRU(nn.Cell):
    def __init__(self, hidden_dim, input_dim, kernel_size, padding):
        super().__init__()
        self.convz = conv2d(hidden_dim + input_dim, hidden_dim, kernel_size, padding=padding)
        self.convr = conv2d(hidden_dim + input_dim, hidden_dim, kernel_size, padding=padding)
        self.convq = conv2d(hidden_dim + input_dim, hidden_dim, kernel_size, padding=padding)

    def construct(self, h, x):
        hx = ops.concat((h, x), axis=1)
        update = ops.sigmoid(self.convz(hx))
        reset = ops.sigmoid(self.convr(hx))
        cand = ops.tanh(self.convq(ops.concat((reset * h, x), axis=1)))
        return h + update * (cand - h)


class SepConvGRU(nn.Cell):
    def __init__(self, hidden_dim, input_dim):
        super().__init__()
        # padding: top, bottom, left, right
        self.horizontal = ConvGRU(hidden_dim, input_dim, (1, 5), (0, 0, 2, 2))
        self.vertical = ConvGRU(hidden_dim, input_dim, (5, 1), (2, 2, 0, 0))

    def construct(self, h, x):
        h = self.horizontal(h, x)
        return self.vertical(h, x)


class UpdateBlock(nn.Cell):
    def __init__(self, corr_channels, hidden_dim, context_dim, motion_dim=30, factor=4):
        super().__init__()
        self.encoder = MotionEncoder(corr_channels, motion_dim)
        self.aggregator = MotionAggregate(motion_dim)
        self.gru = SepConvGRU(hidden_dim, context_dim + 2 * motion_dim)
        self.flow_head = nn.SequentialCell(
            conv2d(hidden_dim, 36, 3, padding=1), nn.LeakyReLU(alpha=0.1), conv2d(36, 2, 3, padding=1))
        self.mask_head = nn.SequentialCell(
            conv2d(hidden_dim, 40, 3, padding=1), nn.GELU(approximate=False), conv2d(40, factor ** 2 * 9, 1))

    def construct(self, hidden, context, corr, flow, attn):
        motion = self.encoder(flow, corr)
        motion_global = self.aggregator(attn, motion)
        hidden = self.gru(hidden, ops.concat((context, motion, motion_global), axis=1))
        return hidden, 0.25 * self.mask_head(hidden), self.flow_head(hidden)


class FlowPyr(nn.Cell):
    def __init__(self, feature_dim=48, hidden_dim=28, context_dim=20, corr_levels=3, corr_radius=2, iters=3):
        super().__init__()
        self.hidden_dim, self.context_dim = hidden_dim, context_dim
        self.iters, self.factor = iters, 4
        self.fnet = Encoder(feature_dim, norm='instance')
        self.cnet = Encoder(hidden_dim + context_dim, norm='batch')
        self.pos = SinePosition(feature_dim // 2)
        self.corr_volume = CorrVolume(corr_levels)
        self.corr_lookup = CorrLookup(corr_radius)
        self.matching = GlobalMatching()
        self.attention = MotionAttention(context_dim)
        self.update_block = UpdateBlock(corr_levels * (2 * corr_radius + 1) ** 2, hidden_dim, context_dim)

    def convex_upsample(self, flow, mask):
        batch, _, height, width = flow.shape
        k = self.factor
        weights = ops.softmax(mask.reshape(batch, 1, 9, k, k, height, width), axis=2)
        patches = ops.unfold(k * flow, kernel_size=3, padding=1)
        patches = patches.reshape(batch, 2, 9, 1, 1, height, width)
        up = (weights * patches).sum(axis=2)
        # (batch, 2, k, k, height, width) -> (batch, 2, height, k, width, k)
        up = up.transpose(0, 1, 4, 2, 5, 3)
        return up.reshape(batch, 2, height * k, width * k)

    def consistency(self, flow_fw, flow_bw, alpha=0.05, beta=10.0):
        target = pixel_grid(*flow_fw.shape[-2:]) + flow_fw
        warped, inside = sample_pixels(flow_bw, target.transpose(0, 2, 3, 1))
        norms = [ops.sqrt(ops.square(f).sum(axis=1)) for f in (flow_fw, warped, flow_fw + warped)]
        conf = ops.exp(-norms[2] / (alpha * (norms[0] + norms[1]) + beta))
        return conf * inside

    def sequence_loss(self, preds, flow_gt, valid, gamma=0.8, max_flow=7.0):
        mag = ops.sqrt(ops.square(flow_gt).sum(axis=1))
        valid = ops.logical_and(valid >= 0.5, mag < max_flow).astype(ms.float32)
        loss = 0.0
        for i, pred in enumerate(preds[::-1]):
            error = valid.expand_dims(1) * ops.abs(pred - flow_gt)
            loss = loss + gamma ** i * error.mean()
        epe = ops.sqrt(ops.square(preds[-1] - flow_gt).sum(axis=1))
        epe = (epe * valid).sum() / ops.maximum(valid.sum(), Tensor(1.0, ms.float32))
        return loss, epe

    def construct(self, image1, image2, flow_gt, valid):
        batch = image1.shape[0]
        pads = pad_amounts(image1.shape[2], image1.shape[3], self.factor)
        images = ops.concat((image1, image2), axis=0) / 255.0 * 2.0 - 1.0
        images = ops.pad(images, pads, mode='replicate')

        # the second half of the batch is the backward direction
        src = self.fnet(images)
        src = src + self.pos(src)
        tgt = ops.concat((src[batch:], src[:batch]), axis=0)
        corr, pyramid = self.corr_volume(src, tgt)

        hidden, context = ops.split(self.cnet(images), [self.hidden_dim, self.context_dim], axis=1)
        hidden, context = ops.tanh(hidden), ops.relu(context)
        attn = self.attention(context)

        grid = pixel_grid(src.shape[2], src.shape[3])
        flow = self.matching(corr, grid)
        preds = []
        for _ in range(self.iters):
            flow = ops.stop_gradient(flow)
            sampled = self.corr_lookup(pyramid, grid + flow)
            hidden, mask, delta = self.update_block(hidden, context, sampled, flow, attn)
            flow = flow + delta
            preds.append(crop(self.convex_upsample(flow, mask), pads))

        forward_preds = [p[:batch] for p in preds]
        conf = self.consistency(preds[-1][:batch], preds[-1][batch:])
        loss, epe = self.sequence_loss(forward_preds, flow_gt, valid)
        return ops.stack(forward_preds, axis=1), flow, conf, loss, epe


def make_inputs(b=2, h=41, w=58):
    rng = np.random.RandomState(11)
    yy, xx = np.meshgrid(np.arange(h), np.arange(w), indexing='ij')
    im1, im2, flow = np.zeros((b, 3, h, w)), np.zeros((b, 3, h, w)), np.zeros((b, 2, h, w))
    for n in range(b):
        flow[n, 0], flow[n, 1] = 2.5 - 3.0 * n + 0.09 * yy, -1.5 + 5.0 * n + 0.07 * xx
        for c in range(3):
            for _ in range(5):
                fy, fx, ph = rng.uniform(0.1, 0.7), rng.uniform(0.1, 0.7), rng.uniform(0, 6.28)
                im1[n, c] += np.sin(fy * yy + fx * xx + ph)
                im2[n, c] += np.sin(fy * (yy - flow[n, 1]) + fx * (xx - flow[n, 0]) + ph)
    im1, im2 = [np.clip(127.5 + 40 * im + rng.normal(0, 4, im.shape), 0, 255) for im in (im1, im2)]
    valid = rng.uniform(size=(b, h, w)) < 0.8
    return [a.astype(np.float32) for a in (im1, im2, flow, valid)]


def build():
    net = FlowPyr()
    net.set_train(False)
    return net, tuple(Tensor(a) for a in make_inputs())
