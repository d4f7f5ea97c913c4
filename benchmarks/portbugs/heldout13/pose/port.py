"""Top-down pose net (high-resolution branches, window attention, heatmaps and SimCC) in MindSpore: the correct port."""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

SWAPPED = (0, 2, 1, 4, 3, 6, 5, 8, 7, 10, 9, 12, 11)
MEAN = (123.675, 116.28, 103.53)
STD = (58.395, 57.12, 57.375)


def cyclic_shift(x, step, axis):
    """ops.roll has no CPU kernel: the first `step` go to the end (to the front, if negative)."""
    if step == 0:
        return x
    step = step % x.shape[axis]
    head, tail = mint.split(x, [step, x.shape[axis] - step], dim=axis)
    return mint.cat((tail, head), dim=axis)


class ConvNormAct(nn.Cell):
    """Convolution, batch norm and, if asked for, an activation."""

    def __init__(self, cin, cout, kernel_size=3, stride=1, group=1, act=None):
        super().__init__()
        self.conv = nn.Conv2d(
            cin, cout, kernel_size, stride, pad_mode="pad", padding=kernel_size // 2, group=group, has_bias=False
        )
        self.bn = nn.BatchNorm2d(cout, eps=1e-5)
        self.act = act

    def construct(self, x):
        x = self.bn(self.conv(x))
        return x if self.act is None else self.act(x)


class ResidualBlock(nn.Cell):
    def __init__(self, channels):
        super().__init__()
        self.conv1 = ConvNormAct(channels, channels, 3, act=ops.relu)
        self.conv2 = ConvNormAct(channels, channels, 3)

    def construct(self, x):
        return ops.relu(x + self.conv2(self.conv1(x)))


def relative_index(window):
    """Row of the bias table for every pair of places in a window."""
    rows, cols = np.divmod(np.arange(window * window), window)
    down = rows[:, None] - rows[None, :] + window - 1
    right = cols[:, None] - cols[None, :] + window - 1
    return down * (2 * window - 1) + right


class WindowAttention(nn.Cell):
    """Cuts the map into windows, attends inside each of them, and puts the map together again."""

    def __init__(self, dim, num_heads, window):
        super().__init__()
        self.num_heads = num_heads
        self.window = window
        self.head_dim = dim // num_heads
        self.bias_table = Parameter(ops.zeros(((2 * window - 1) ** 2, num_heads), ms.float32))
        self.bias_index = Tensor(relative_index(window), ms.int32)
        self.qkv = nn.Dense(dim, dim * 3)
        self.proj = nn.Dense(dim, dim)

    def position_bias(self):
        area = self.window * self.window
        bias = ops.gather(self.bias_table, self.bias_index.reshape(-1), 0)
        return bias.reshape(area, area, self.num_heads).transpose(2, 0, 1)

    def construct(self, x, mask):
        b, h, w, c = x.shape
        win = self.window
        area = win * win
        x = x.reshape(b, h // win, win, w // win, win, c).transpose(0, 1, 3, 2, 4, 5)
        x = x.reshape(-1, area, c)
        qkv = self.qkv(x).reshape(-1, area, 3, self.num_heads, self.head_dim)
        q, k, v = mint.unbind(qkv.transpose(2, 0, 3, 1, 4), 0)
        score = mint.matmul(q, k.swapaxes(-1, -2)) / math.sqrt(self.head_dim)
        score = score + self.position_bias()
        score = score.reshape(b, -1, self.num_heads, area, area) + mask.expand_dims(1)
        prob = mint.softmax(score, dim=-1).reshape(-1, self.num_heads, area, area)
        x = mint.matmul(prob, v).transpose(0, 2, 1, 3).reshape(-1, area, c)
        x = self.proj(x)
        x = x.reshape(b, h // win, w // win, win, win, c)
        return x.transpose(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)


def attention_mask(height, width, window, shift):
    """-100 for keys of another region of the shifted map and for keys that are only padding."""
    full_h = math.ceil(height / window) * window
    full_w = math.ceil(width / window) * window
    top, left = (full_h - height) // 2, (full_w - width) // 2
    region = np.zeros((full_h, full_w), np.int64)
    if shift > 0:
        for axis, size in enumerate((full_h, full_w)):
            place = np.arange(size)
            band = (place >= size - window).astype(np.int64) + (place >= size - shift)
            region += band[:, None] * 3 if axis == 0 else band[None, :]
    real = np.zeros((full_h, full_w), bool)
    real[top : top + height, left : left + width] = True
    real = np.roll(real, (-shift, -shift), (0, 1))

    def windows(grid):
        grid = grid.reshape(full_h // window, window, full_w // window, window)
        return grid.transpose(0, 2, 1, 3).reshape(-1, window * window)

    region, real = windows(region), windows(real)
    blocked = (region[:, :, None] != region[:, None, :]) | ~real[:, None, :]
    return Tensor(np.where(blocked, -100.0, 0.0), ms.float32)


class HRFormerBlock(nn.Cell):
    """Window attention and a convolutional feed-forward, each behind a norm."""

    def __init__(self, dim, num_heads, resolution, window, shift, ratio=2):
        super().__init__()
        self.shift = shift
        self.norm1 = nn.LayerNorm((dim,), epsilon=1e-6)
        self.attn = WindowAttention(dim, num_heads, window)
        self.gamma1 = Parameter(ops.ones((dim,), ms.float32))
        self.norm2 = nn.LayerNorm((dim,), epsilon=1e-6)
        self.mlp = nn.SequentialCell(
            ConvNormAct(dim, dim * ratio, 1, act=ops.gelu),
            ConvNormAct(dim * ratio, dim * ratio, 3, group=dim * ratio, act=ops.gelu),
            ConvNormAct(dim * ratio, dim, 1, act=ops.gelu),
        )
        self.gamma2 = Parameter(ops.ones((dim,), ms.float32))
        height, width = resolution
        pad_h, pad_w = (window - height % window) % window, (window - width % window) % window
        self.top, self.left = pad_h // 2, pad_w // 2
        self.padding = (0, 0, self.left, pad_w - self.left, self.top, pad_h - self.top)
        self.mask = attention_mask(height, width, window, shift)

    def construct(self, x):
        b, c, h, w = x.shape
        shortcut = x.transpose(0, 2, 3, 1)
        y = ops.pad(self.norm1(shortcut), self.padding)
        y = cyclic_shift(cyclic_shift(y, self.shift, 1), self.shift, 2)
        y = self.attn(y, self.mask)
        y = cyclic_shift(cyclic_shift(y, -self.shift, 1), -self.shift, 2)
        y = y[:, self.top : self.top + h, self.left : self.left + w]
        x = shortcut + self.gamma1 * y
        y = self.norm2(x).transpose(0, 3, 1, 2)
        y = self.mlp(y)
        return x.transpose(0, 3, 1, 2) + self.gamma2.reshape(1, c, 1, 1) * y


class UpFuse(nn.Cell):
    """From a lower resolution: fewer channels, then larger."""

    def __init__(self, cin, cout):
        super().__init__()
        self.proj = ConvNormAct(cin, cout, 1)

    def construct(self, x, size):
        return ops.interpolate(self.proj(x), size=size, mode="bilinear", align_corners=False)


class DownFuse(nn.Cell):
    """From a higher resolution: strided convolutions, the last without activation."""

    def __init__(self, cin, cout, times):
        super().__init__()
        cells = [ConvNormAct(cin, cin, 3, 2, act=ops.relu) for _ in range(times - 1)]
        cells.append(ConvNormAct(cin, cout, 3, 2))
        self.steps = nn.SequentialCell(cells)

    def construct(self, x, size):
        return self.steps(x)


class Same(nn.Cell):
    def construct(self, x, size):
        return x


class MultiResolution(nn.Cell):
    """One stage: every branch by itself, then all to all."""

    def __init__(self, channels, base, transformer=False, window=5, num_heads=4):
        super().__init__()
        self.count = len(channels)
        self.branches = nn.CellList()
        for level, dim in enumerate(channels):
            if transformer and level > 0:
                resolution = (base[0] >> level, base[1] >> level)
                cells = [HRFormerBlock(dim, num_heads, resolution, window, shift) for shift in (0, window // 2)]
            else:
                cells = [ResidualBlock(dim)]
            self.branches.append(nn.SequentialCell(cells))
        self.fuse_layers = nn.CellList()
        for target in range(self.count):
            cells = nn.CellList()
            for source in range(self.count):
                if source == target:
                    cells.append(Same())
                elif source > target:
                    cells.append(UpFuse(channels[source], channels[target]))
                else:
                    cells.append(DownFuse(channels[source], channels[target], target - source))
            self.fuse_layers.append(cells)

    def construct(self, inputs):
        maps = [self.branches[i](inputs[i]) for i in range(self.count)]
        outputs = []
        for target in range(self.count):
            size = maps[target].shape[2:]
            merged = self.fuse_layers[target][0](maps[0], size)
            for source in range(1, self.count):
                merged = merged + self.fuse_layers[target][source](maps[source], size)
            outputs.append(ops.relu(merged))
        return outputs


class RMSScale(nn.Cell):
    """ScaleNorm: divided by the root of the mean square, with one gain."""

    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.dim = dim
        self.eps = eps
        self.g = Parameter(ops.ones((1,), ms.float32))

    def construct(self, x):
        norm = ops.norm(x, dim=-1, keepdim=True) / math.sqrt(self.dim)
        return x / mint.clamp(norm, min=self.eps) * self.g


class GatedAttentionUnit(nn.Cell):
    def __init__(self, tokens, dim, key_dim=32, expansion=2):
        super().__init__()
        self.key_dim = key_dim
        self.inner = dim * expansion
        self.ln = RMSScale(dim)
        self.uv = nn.Dense(dim, 2 * self.inner + key_dim)
        self.gamma = Parameter(ops.ones((2, key_dim), ms.float32))
        self.beta = Parameter(ops.zeros((2, key_dim), ms.float32))
        self.w = Parameter(ops.zeros((2 * tokens - 1,), ms.float32))
        self.o = nn.Dense(self.inner, dim)
        self.res_scale = Parameter(ops.ones((dim,), ms.float32))
        places = np.arange(tokens)
        self.offsets = Tensor(places[None, :] - places[:, None] + tokens - 1, ms.int32)
        half = key_dim // 2
        angles = places[:, None] * (10000.0 ** (-np.arange(half) / half))[None, :]
        self.sin = Tensor(np.sin(angles), ms.float32)
        self.cos = Tensor(np.cos(angles), ms.float32)

    def rotate(self, x):
        first, second = mint.chunk(x, 2, dim=-1)
        return mint.cat((first * self.cos - second * self.sin, second * self.cos + first * self.sin), dim=-1)

    def construct(self, x):
        uv = ops.silu(self.uv(self.ln(x)))
        u, v, base = mint.split(uv, [self.inner, self.inner, self.key_dim], dim=-1)
        q = self.rotate(base * self.gamma[0] + self.beta[0])
        k = self.rotate(base * self.gamma[1] + self.beta[1])
        n = x.shape[1]
        bias = ops.gather(self.w, self.offsets.reshape(-1), 0).reshape(n, n)
        qk = mint.bmm(q, k.swapaxes(1, 2)) + bias
        kernel = mint.square(ops.relu(qk / math.sqrt(self.key_dim)))
        gated = u * mint.bmm(kernel, v)
        return x * self.res_scale + self.o(gated)


class RTMHead(nn.Cell):
    """A vector for each keypoint; then its column and its row as classes."""

    def __init__(self, channels, resolution, keypoints, hidden, bins_x, bins_y):
        super().__init__()
        tokens = resolution[0] * resolution[1]
        self.final_layer = nn.Conv2d(
            channels[1] + channels[2] // 4, keypoints, 5, pad_mode="pad", padding=2, has_bias=True
        )
        self.norm = RMSScale(tokens)
        self.mlp = nn.Dense(tokens, hidden, has_bias=False)
        self.gau = GatedAttentionUnit(keypoints, hidden)
        self.cls_x = nn.Dense(hidden, bins_x, has_bias=False)
        self.cls_y = nn.Dense(hidden, bins_y, has_bias=False)

    def construct(self, mid, low):
        b, c, h, w = low.shape
        low = low.reshape(b, c // 4, 2, 2, h, w).transpose(0, 1, 4, 2, 5, 3)
        low = low.reshape(b, c // 4, h * 2, w * 2)
        x = self.final_layer(mint.cat((mid, low), dim=1))
        x = self.mlp(self.norm(mint.flatten(x, 2)))
        x = self.gau(x)
        return self.cls_x(x), self.cls_y(x)


class HeatmapHead(nn.Cell):
    def __init__(self, channels, keypoints, hidden=24):
        super().__init__()
        self.deconv = nn.Conv2dTranspose(
            channels[1], hidden, 4, stride=2, pad_mode="pad", padding=1, has_bias=False
        )
        self.bn = nn.BatchNorm2d(hidden, eps=1e-5)
        self.final_layer = nn.Conv2d(hidden + channels[0], keypoints, 1, has_bias=True)

    def construct(self, high, mid):
        x = ops.relu(self.bn(self.deconv(mid)))
        return self.final_layer(mint.cat((x, high), dim=1))


class Decoder(nn.Cell):
    """Heatmaps by DARK, SimCC with a quarter's shift; both in pixels of the crop, mixed by their scores."""

    def __init__(self, extent, split, kernel_size=7, sigma=1.4):
        super().__init__()
        self.extent = extent
        self.split = split
        self.radius = kernel_size // 2
        line = np.exp(-((np.arange(kernel_size) - self.radius) ** 2) / (2 * sigma**2))
        line = line / line.sum()
        self.blur = Tensor(np.outer(line, line)[None, None], ms.float32)

    def log_blurred(self, heatmaps):
        b, k, h, w = heatmaps.shape
        x = ops.conv2d(heatmaps.reshape(b * k, 1, h, w), self.blur, pad_mode="pad", padding=self.radius)
        x = x.reshape(b, k, h, w)
        ratio = mint.amax(heatmaps, (2, 3), True) / mint.amax(x, (2, 3), True)
        return mint.log(mint.clamp(x * ratio, 1e-2, 50.0))

    def refine(self, col, row, heatmaps):
        w = heatmaps.shape[-1]
        logs = self.log_blurred(heatmaps)
        logs = ops.pad(logs, (1, 1, 1, 1), mode="replicate")
        logs = mint.flatten(logs, 2)
        start = (row + 1) * (w + 2) + col + 1
        moves = [(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, -1)]
        index = mint.cat([(start + dx + dy * (w + 2)).expand_dims(-1) for dx, dy in moves], dim=-1)
        mid, right, left, down, up, diagonal, anti = mint.unbind(mint.gather(logs, 2, index), -1)
        gx = (right - left) / 2
        gy = (down - up) / 2
        hxx = right - 2 * mid + left - 1e-4
        hyy = down - 2 * mid + up - 1e-4
        hxy = (diagonal - right - down + 2 * mid - left - up + anti) / 2
        det = hxx * hyy - hxy * hxy
        step_x = (hyy * gx - hxy * gy) / det
        step_y = (hxx * gy - hxy * gx) / det
        return col - mint.clamp(step_x, -1.0, 1.0), row - mint.clamp(step_y, -1.0, 1.0)

    def best_bin(self, logits):
        prob = mint.softmax(logits, dim=-1)
        value, place = mint.max(prob, dim=-1)
        last = logits.shape[-1] - 1
        after = mint.gather(prob, 2, mint.clamp(place + 1, max=last).expand_dims(-1)).squeeze(-1)
        before = mint.gather(prob, 2, mint.clamp(place - 1, min=0).expand_dims(-1)).squeeze(-1)
        inner = ops.logical_and(place > 0, place < last).astype(ms.float32)
        place = place.astype(ms.float32) + 0.25 * ops.sign(after - before) * inner
        return place / self.split, value

    def construct(self, heatmaps, simcc_x, simcc_y):
        h, w = heatmaps.shape[-2:]
        value, place = mint.max(mint.flatten(heatmaps, 2), dim=-1)
        row = place // w
        col = place - row * w
        fine_x, fine_y = self.refine(col, row, heatmaps)
        fine_x = fine_x * self.extent[0] / (w - 1)
        fine_y = fine_y * self.extent[1] / (h - 1)
        bin_x, conf_x = self.best_bin(simcc_x)
        bin_y, conf_y = self.best_bin(simcc_y)
        dense = mint.clamp(value, 0.0, 1.0)
        sparse = ops.minimum(conf_x, conf_y)
        total = mint.clamp(dense + sparse, min=1e-6)
        x = (fine_x * dense + bin_x * sparse) / total
        y = (fine_y * dense + bin_y * sparse) / total
        return ops.stack((x, y), axis=-1), (dense + sparse) / 2


def crop_to_image(points, extent, center, scale, rotation):
    """Undoes the crop: points of the crop to points of the image."""
    x = (points[..., 0] / extent[0] - 0.5) * scale[:, 0:1]
    y = (points[..., 1] / extent[1] - 0.5) * scale[:, 1:2]
    angle = (rotation * (math.pi / 180.0)).expand_dims(-1)
    cos, sin = ops.cos(angle), ops.sin(angle)
    turned_x = x * cos - y * sin
    turned_y = x * sin + y * cos
    return ops.stack((turned_x + center[:, 0:1], turned_y + center[:, 1:2]), axis=-1)


class TopDownPose(nn.Cell):
    def __init__(self, size=(128, 96), channels=(16, 32, 48), keypoints=13, split=2.0):
        super().__init__()
        height, width = size
        self.extent = (width - 1, height - 1)
        base = (height // 4, width // 4)
        self.stem = nn.SequentialCell(
            ConvNormAct(3, 16, 3, 2, act=ops.relu),
            ConvNormAct(16, 16, 3, 2, act=ops.relu),
        )
        self.layer1 = ResidualBlock(16)
        self.transition1 = nn.CellList(
            [ConvNormAct(16, channels[0], 3, act=ops.relu), ConvNormAct(16, channels[1], 3, 2, act=ops.relu)]
        )
        self.stage2 = MultiResolution(channels[:2], base)
        self.transition2 = ConvNormAct(channels[1], channels[2], 3, 2, act=ops.relu)
        self.stage3 = MultiResolution(channels, base, transformer=True)
        self.heatmap_head = HeatmapHead(channels, keypoints)
        self.simcc_head = RTMHead(
            channels, (height // 8, width // 8), keypoints, 64, int(width * split), int(height * split)
        )
        self.decoder = Decoder(self.extent, split)
        self.swapped = Tensor(SWAPPED, ms.int32)
        self.mean = Tensor(np.reshape(MEAN, (1, 3, 1, 1)), ms.float32)
        self.std = Tensor(np.reshape(STD, (1, 3, 1, 1)), ms.float32)

    def predict(self, image):
        x = self.layer1(self.stem(image))
        maps = self.stage2([self.transition1[0](x), self.transition1[1](x)])
        maps.append(self.transition2(maps[1]))
        high, mid, low = self.stage3(maps)
        heatmaps = self.heatmap_head(high, mid)
        simcc_x, simcc_y = self.simcc_head(mid, low)
        return heatmaps, simcc_x, simcc_y

    def predict_mirrored(self, image):
        """The net on the mirrored image, its answers mirrored back: left is right again."""
        heatmaps, simcc_x, simcc_y = self.predict(mint.flip(image, (-1,)))
        heatmaps = ops.gather(mint.flip(heatmaps, (-1,)), self.swapped, 1)
        heatmaps = mint.cat((heatmaps[..., :1], heatmaps[..., :-1]), dim=-1)
        simcc_x = ops.gather(mint.flip(simcc_x, (-1,)), self.swapped, 1)
        simcc_y = ops.gather(simcc_y, self.swapped, 1)
        return heatmaps, simcc_x, simcc_y

    def construct(self, image, center, scale, rotation):
        image = (image - self.mean) / self.std
        straight = self.predict(image)
        mirrored = self.predict_mirrored(image)
        heatmaps, simcc_x, simcc_y = [(a + b) * 0.5 for a, b in zip(straight, mirrored)]
        points, scores = self.decoder(heatmaps, simcc_x, simcc_y)
        points = crop_to_image(points, self.extent, center, scale, rotation)
        return heatmaps, simcc_x, simcc_y, points, scores


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return TopDownPose()
