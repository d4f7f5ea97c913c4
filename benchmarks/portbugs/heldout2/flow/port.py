"""The optical flow net in MindSpore: the correct port."""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import nn, ops


def conv(cin, cout, kernel, stride=1, padding=0, has_bias=True):
    if isinstance(padding, tuple):
        padding = (padding[0], padding[0], padding[1], padding[1])
    return nn.Conv2d(cin, cout, kernel, stride=stride, pad_mode="pad", padding=padding, has_bias=has_bias)


def coords_grid(batch, ht, wd):
    xs, ys = np.meshgrid(np.arange(wd), np.arange(ht))
    coords = ms.Tensor(np.stack([xs, ys]).astype(np.float32))
    return ops.tile(coords.expand_dims(0), (batch, 1, 1, 1))


def bilinear_sampler(img, coords, mask=False):
    """Wrapper for grid_sample, uses pixel coordinates; coords has (x, y) last."""
    H, W = img.shape[-2:]
    xgrid, ygrid = coords[..., :1], coords[..., 1:]
    xgrid = 2 * xgrid / (W - 1) - 1
    ygrid = 2 * ygrid / (H - 1) - 1
    grid = ops.concat((xgrid, ygrid), axis=-1)
    img = ops.grid_sample(img, grid, mode="bilinear", padding_mode="zeros", align_corners=True)
    if mask:
        inside = ops.logical_and(xgrid.abs() < 1, ygrid.abs() < 1)
        return img, inside.astype(ms.float32)
    return img


def instance_norm(x, eps=1e-5):
    mean = x.mean(axis=(2, 3), keep_dims=True)
    var = ops.square(x - mean).mean(axis=(2, 3), keep_dims=True)
    return (x - mean) * ops.rsqrt(var + eps)


def normalize(x, axis=1, eps=1e-12):
    norm = ops.sqrt(ops.square(x).sum(axis=axis, keepdims=True))
    return x / ops.maximum(norm, ms.Tensor(eps, ms.float32))


class InputPadder:
    """Pads images such that dimensions are divisible by 8."""

    def __init__(self, dims, multiple=8):
        self.ht, self.wd = dims[-2:]
        pad_ht = (((self.ht // multiple) + 1) * multiple - self.ht) % multiple
        pad_wd = (((self.wd // multiple) + 1) * multiple - self.wd) % multiple
        self._pad = [pad_wd // 2, pad_wd - pad_wd // 2, pad_ht // 2, pad_ht - pad_ht // 2]

    def pad(self, *inputs):
        return [ops.pad(x, self._pad, mode="replicate") for x in inputs]

    def unpad(self, x):
        ht, wd = x.shape[-2:]
        left, right, top, bottom = self._pad
        return x[:, :, top:ht - bottom, left:wd - right]


class ResidualBlock(nn.Cell):
    def __init__(self, in_planes, planes, norm="instance", stride=1):
        super().__init__()
        self.conv1 = conv(in_planes, planes, 3, stride=stride, padding=1)
        self.conv2 = conv(planes, planes, 3, padding=1)
        self.norm = norm
        if norm == "batch":
            self.norm1 = nn.BatchNorm2d(planes)
            self.norm2 = nn.BatchNorm2d(planes)
        self.downsample = conv(in_planes, planes, 1, stride=stride) if stride > 1 else None

    def construct(self, x):
        y = self.conv1(x)
        y = ops.relu(self.norm1(y) if self.norm == "batch" else instance_norm(y))
        y = self.conv2(y)
        y = ops.relu(self.norm2(y) if self.norm == "batch" else instance_norm(y))
        if self.downsample is not None:
            x = self.downsample(x)
            if self.norm == "instance":
                x = instance_norm(x)
        return ops.relu(x + y)


class Encoder(nn.Cell):
    def __init__(self, output_dim, norm):
        super().__init__()
        self.norm = norm
        self.conv1 = conv(3, 24, 7, stride=2, padding=3)
        self.layer1 = ResidualBlock(24, 24, norm)
        self.layer2 = ResidualBlock(24, 32, norm, stride=2)
        self.conv2 = conv(32, output_dim, 1)

    def construct(self, x):
        # if input is list, combine batch dimension
        is_list = isinstance(x, (tuple, list))
        if is_list:
            batch_dim = x[0].shape[0]
            x = ops.concat(x, axis=0)
        x = self.conv1(x)
        if self.norm == "instance":
            x = instance_norm(x)
        x = self.conv2(self.layer2(self.layer1(ops.relu(x))))
        if is_list:
            return x[:batch_dim], x[batch_dim:]
        return x


class MotionEncoder(nn.Cell):
    def __init__(self, cor_planes, dim):
        super().__init__()
        self.convc1 = conv(cor_planes, 48, 1)
        self.convf1 = conv(2, 24, 7, padding=3)
        self.convf2 = conv(24, 16, 3, padding=1)
        self.conv = conv(48 + 16, dim - 2, 3, padding=1)

    def construct(self, flow, corr):
        cor = ops.relu(self.convc1(corr))
        flo = ops.relu(self.convf1(flow))
        flo = ops.relu(self.convf2(flo))
        out = ops.relu(self.conv(ops.concat((cor, flo), axis=1)))
        return ops.concat((out, flow), axis=1)


class Attention(nn.Cell):
    def __init__(self, dim, heads, max_pos=16):
        super().__init__()
        self.heads, self.dim_head = heads, dim // heads
        self.scale = self.dim_head ** -0.5
        self.to_qk = conv(dim, dim * 2, 1, has_bias=False)
        self.rel_height = ms.Parameter(ops.zeros((2 * max_pos - 1, dim // heads)), name="rel_height")
        self.rel_width = ms.Parameter(ops.zeros((2 * max_pos - 1, dim // heads)), name="rel_width")
        places = np.arange(max_pos)
        self.rel_ind = ms.Tensor(places[None, :] - places[:, None] + max_pos - 1, ms.int32)

    def position_scores(self, q, h, w):
        # q: b heads h w d, the two scores: from each pixel to each row, and to each column
        height = ops.gather(self.rel_height, self.rel_ind[:h, :h], 0)
        width = ops.gather(self.rel_width, self.rel_ind[:w, :w], 0)
        height_score = ops.matmul(q, height.swapaxes(1, 2))
        width_score = ops.matmul(q.swapaxes(2, 3), width.swapaxes(1, 2)).swapaxes(2, 3)
        return height_score.expand_dims(-1) + width_score.expand_dims(-2)

    def construct(self, fmap):
        b, _, h, w = fmap.shape
        qk = self.to_qk(fmap).reshape(b, 2, self.heads, self.dim_head, h * w)
        q, k = qk[:, 0].swapaxes(-1, -2), qk[:, 1]
        q = self.scale * q
        sim = ops.matmul(q, k).reshape(b, self.heads, h, w, h, w)
        sim = sim + self.position_scores(q.reshape(b, self.heads, h, w, self.dim_head), h, w)
        return ops.softmax(sim.reshape(b, self.heads, h * w, h * w), axis=-1)


class Aggregate(nn.Cell):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.dim_head = heads, dim // heads
        self.to_v = conv(dim, dim, 1, has_bias=False)
        self.project = conv(dim, dim, 1, has_bias=False)
        self.gamma = ms.Parameter(ops.zeros((1,)), name="gamma")

    def construct(self, attn, fmap):
        b, c, h, w = fmap.shape
        v = self.to_v(fmap).reshape(b, self.heads, self.dim_head, h * w).swapaxes(2, 3)
        out = ops.matmul(attn, v)
        out = out.swapaxes(2, 3).reshape(b, c, h, w)
        return fmap + self.gamma * self.project(out)


class SepConvGRU(nn.Cell):
    def __init__(self, hidden_dim, input_dim):
        super().__init__()
        both = hidden_dim + input_dim
        self.convz1 = conv(both, hidden_dim, (1, 5), padding=(0, 2))
        self.convr1 = conv(both, hidden_dim, (1, 5), padding=(0, 2))
        self.convq1 = conv(both, hidden_dim, (1, 5), padding=(0, 2))
        self.convz2 = conv(both, hidden_dim, (5, 1), padding=(2, 0))
        self.convr2 = conv(both, hidden_dim, (5, 1), padding=(2, 0))
        self.convq2 = conv(both, hidden_dim, (5, 1), padding=(2, 0))

    def construct(self, h, x):
        # horizontal
        hx = ops.concat((h, x), axis=1)
        z = ops.sigmoid(self.convz1(hx))
        r = ops.sigmoid(self.convr1(hx))
        q = ops.tanh(self.convq1(ops.concat((r * h, x), axis=1)))
        h = (1 - z) * h + z * q
        # vertical
        hx = ops.concat((h, x), axis=1)
        z = ops.sigmoid(self.convz2(hx))
        r = ops.sigmoid(self.convr2(hx))
        q = ops.tanh(self.convq2(ops.concat((r * h, x), axis=1)))
        return (1 - z) * h + z * q


class UpdateBlock(nn.Cell):
    def __init__(self, cor_planes, dim, rate):
        super().__init__()
        self.encoder = MotionEncoder(cor_planes, dim)
        self.aggregator = Aggregate(dim, heads=2)
        self.gru = SepConvGRU(dim, 3 * dim)
        self.flow1 = conv(dim, 48, 3, padding=1)
        self.flow2 = conv(48, 2, 3, padding=1)
        self.mask1 = conv(dim, 48, 3, padding=1)
        self.mask2 = conv(48, rate * rate * 9, 1)

    def construct(self, net, inp, corr, flow, attn):
        motion = self.encoder(flow, corr)
        motion_global = self.aggregator(attn, motion)
        inp = ops.concat((inp, motion, motion_global), axis=1)
        net = self.gru(net, inp)
        delta_flow = self.flow2(ops.relu(self.flow1(net)))
        # scale mask to balance gradients
        mask = .25 * self.mask2(ops.relu(self.mask1(net)))
        return net, mask, delta_flow


class RAFT(nn.Cell):
    def __init__(self, dim=32, fdim=48, levels=3, radius=2, rate=4, iters=3):
        super().__init__()
        self.dim, self.levels, self.radius, self.rate, self.iters = dim, levels, radius, rate, iters
        self.fnet = Encoder(fdim, norm="instance")
        self.cnet = Encoder(2 * dim, norm="batch")
        self.att = Attention(dim, heads=2)
        self.update_block = UpdateBlock(levels * (2 * radius + 1) ** 2, dim, rate)
        d = np.arange(-radius, radius + 1, dtype=np.float32)
        rows, cols = np.meshgrid(d, d, indexing="ij")
        self.delta = ms.Tensor(np.stack([rows, cols], axis=-1)[None])

    def corr_pyramid(self, fmap1, fmap2):
        b, c, h, w = fmap1.shape
        corr = ops.bmm(fmap1.reshape(b, c, h * w).swapaxes(1, 2), fmap2.reshape(b, c, h * w))
        corr = (corr / math.sqrt(c)).reshape(b * h * w, 1, h, w)
        pyramid = [corr]
        for _ in range(self.levels - 1):
            corr = ops.avg_pool2d(corr, kernel_size=2, stride=2)
            pyramid.append(corr)
        return pyramid

    def lookup(self, pyramid, coords):
        coords = coords.transpose(0, 2, 3, 1)
        b, h, w, _ = coords.shape
        out = []
        for i, corr in enumerate(pyramid):
            centroid = coords.reshape(b * h * w, 1, 1, 2) / 2 ** i
            corr = bilinear_sampler(corr, centroid + self.delta)
            out.append(corr.reshape(b, h, w, -1))
        return ops.concat(out, axis=-1).transpose(0, 3, 1, 2)

    def global_match(self, corr, coords0, temperature=1.5):
        """The expected place of each pixel under a softmax of the whole volume."""
        b, _, h, w = coords0.shape
        prob = ops.softmax(corr.reshape(b, h * w, h * w) / temperature, axis=-1)
        grid = coords0.reshape(b, 2, h * w).swapaxes(1, 2)
        return ops.bmm(prob, grid).swapaxes(1, 2).reshape(b, 2, h, w)

    def upsample_flow(self, flow, mask):
        """Upsample flow field [H/4, W/4, 2] -> [H, W, 2] using convex combination."""
        N, _, H, W = flow.shape
        R = self.rate
        mask = mask.reshape(N, 1, 9, R, R, H, W)
        mask = ops.softmax(mask, axis=2)
        padded = ops.pad(R * flow, (1, 1, 1, 1))
        patches = [padded[:, :, i:i + H, j:j + W] for i in range(3) for j in range(3)]
        up_flow = ops.stack(patches, axis=2).reshape(N, 2, 9, 1, 1, H, W)
        up_flow = (mask * up_flow).sum(axis=2)
        up_flow = up_flow.transpose(0, 1, 4, 2, 5, 3)
        return up_flow.reshape(N, 2, R * H, R * W)

    def confidence(self, fmap1, fmap2, coords1):
        warped, inside = bilinear_sampler(fmap2, coords1.transpose(0, 2, 3, 1), mask=True)
        cosine = (normalize(fmap1) * normalize(warped)).sum(axis=1, keepdims=True)
        conf = ops.exp(3 * (cosine - 1)) * inside.transpose(0, 3, 1, 2)
        size = (conf.shape[2] * self.rate, conf.shape[3] * self.rate)
        return ops.interpolate(conf, size=size, mode="bilinear", align_corners=True)

    def construct(self, image1, image2):
        padder = InputPadder(image1.shape)
        image1, image2 = padder.pad(image1, image2)
        image1 = 2 * (image1 / 255.0) - 1.0
        image2 = 2 * (image2 / 255.0) - 1.0
        fmap1, fmap2 = self.fnet([image1, image2])
        pyramid = self.corr_pyramid(fmap1, fmap2)
        net, inp = ops.split(self.cnet(image1), [self.dim, self.dim], axis=1)
        net, inp = ops.tanh(net), ops.relu(inp)
        attn = self.att(inp)
        b, _, h, w = fmap1.shape
        coords0 = coords_grid(b, h, w)
        coords1 = 0.5 * coords0 + 0.5 * self.global_match(pyramid[0], coords0)
        mask = None
        for _ in range(self.iters):
            coords1 = ops.stop_gradient(coords1)
            corr = self.lookup(pyramid, coords1)
            flow = coords1 - coords0
            net, mask, delta_flow = self.update_block(net, inp, corr, flow, attn)
            coords1 = coords1 + delta_flow
        flow_up = self.upsample_flow(coords1 - coords0, mask)
        conf = self.confidence(fmap1, fmap2, coords1)
        return padder.unpad(ops.concat((flow_up, conf), axis=1))


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return RAFT()
