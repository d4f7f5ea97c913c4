"""The burst denoiser with predicted kernels in MindSpore: the correct port."""

from __future__ import annotations

import numpy as np

import mindspore as ms
from mindspore import Tensor, nn, ops

LUMA_WEIGHTS = np.array([0.2126, 0.7152, 0.0722], np.float32)
CAMERA_TO_SRGB = np.array(
    [
        [1.6605, -0.4876, -0.1729],
        [-0.1746, 1.4204, -0.2458],
        [-0.0182, -0.5283, 1.5465],
    ],
    np.float32,
)
BLACK = 64.0
BLUR = (1 / 16, 4 / 16, 6 / 16, 4 / 16, 1 / 16)


def luminance(x, axis):
    """Weighted sum over the colours; their axis goes."""
    shape = [1] * x.ndim
    shape[axis] = 3
    return (x * Tensor(LUMA_WEIGHTS.reshape(shape))).sum(axis=axis)


def to_srgb(x):
    """Camera colours (..., 3, height, width) to displayed ones."""
    h, w = x.shape[-2:]
    lead = x.shape[:-3]
    x = ops.matmul(Tensor(CAMERA_TO_SRGB), x.reshape(lead + (3, h * w))).reshape(lead + (3, h, w))
    x = ops.clamp(x, 0.0, 1.0)
    foot = 12.92 * x
    curve = 1.055 * ops.pow(ops.clamp(x, min=1e-6), 1.0 / 2.4) - 0.055
    return ops.where(x > 0.0031308, curve, foot)


def blur_and_halve(x):
    """(batch, height, width) at half the size: five taps along each axis, then every second pixel."""
    h, w = x.shape[1:]
    x = ops.pad(x.expand_dims(1), (2, 2, 2, 2), mode="replicate").squeeze(1)
    x = sum(tap * x[:, i : i + h : 2, :] for i, tap in enumerate(BLUR))
    return sum(tap * x[:, :, i : i + w : 2] for i, tap in enumerate(BLUR))


class TileSearch(nn.Cell):
    """Shift of each tile by the mean absolute difference, with a fraction of a pixel from a parabola."""

    def __init__(self, tile, radius, penalty):
        super().__init__()
        self.tile = tile
        self.radius = radius
        self.side = 2 * radius + 1
        steps = np.arange(-radius, radius + 1, dtype=np.int32)
        dy, dx = np.meshgrid(steps, steps, indexing="ij")
        self.dy = Tensor(dy.reshape(1, -1, 1, 1))
        self.dx = Tensor(dx.reshape(1, -1, 1, 1))
        self.cost_of_shift = Tensor((penalty * (dy**2 + dx**2)).reshape(1, -1, 1, 1).astype(np.float32))

    def costs(self, ref, alt, start):
        """(batch, shifts, rows, columns), all the shifts at once."""
        b, h, w = ref.shape
        rows, cols = h // self.tile, w // self.tile
        base = start.repeat_interleave(self.tile, 1).repeat_interleave(self.tile, 2)
        at_y = Tensor(np.arange(h, dtype=np.int32)).reshape(1, 1, h, 1)
        at_x = Tensor(np.arange(w, dtype=np.int32)).reshape(1, 1, 1, w)
        at_y = ops.clamp(at_y + base[:, None, :, :, 0] + self.dy, 0, h - 1)
        at_x = ops.clamp(at_x + base[:, None, :, :, 1] + self.dx, 0, w - 1)
        index = (at_y * w + at_x).reshape(b, -1)
        moved = ops.gather_elements(alt.reshape(b, h * w), 1, index).reshape(b, -1, h, w)
        difference = ops.abs(moved - ref.expand_dims(1))
        tiles = difference.reshape(b, -1, rows, self.tile, cols, self.tile)
        return tiles.mean(axis=(3, 5)) + self.cost_of_shift

    def fraction(self, costs, best, stride, place):
        last = self.side**2 - 1
        middle = ops.gather_elements(costs, 1, best)
        before = ops.gather_elements(costs, 1, ops.clamp(best - stride, 0, last))
        after = ops.gather_elements(costs, 1, ops.clamp(best + stride, 0, last))
        curve = ops.clamp(before + after - 2 * middle, min=1e-4)
        part = ops.clamp((before - after) / (2 * curve), -0.5, 0.5)
        interior = ops.logical_and(place > 0, place < self.side - 1)
        return ops.where(interior, part, ops.zeros_like(part)).squeeze(1)

    def construct(self, ref, alt, start):
        costs = self.costs(ref, alt, start)
        best = costs.argmin(axis=1).astype(ms.int32).expand_dims(1)
        row = best // self.side
        col = best - row * self.side
        whole = start + ops.stack((row.squeeze(1), col.squeeze(1)), axis=-1) - self.radius
        part = ops.stack((self.fraction(costs, best, self.side, row), self.fraction(costs, best, 1, col)), axis=-1)
        return whole, part


class Registration(nn.Cell):
    """Frames of a burst onto the first of them."""

    def __init__(self, tile, penalty):
        super().__init__()
        self.tile = tile
        self.search_half = TileSearch(tile // 2, 2, penalty)
        self.search = TileSearch(tile, 2, penalty)
        self.local_mean = nn.AvgPool2d(3, stride=1, pad_mode="pad", padding=1, count_include_pad=False)

    def sample(self, frame, shifts):
        """Bilinear samples of the frame (batch, 3, height, width) at the shifts of the tiles, themselves blended."""
        h, w = frame.shape[-2:]
        shifts = ops.interpolate(shifts.transpose(0, 3, 1, 2), size=(h, w), mode="bilinear", align_corners=False)
        y = shifts[:, 0] + Tensor(np.arange(h, dtype=np.float32)[:, None])
        x = shifts[:, 1] + Tensor(np.arange(w, dtype=np.float32)[None, :])
        grid = ops.stack((x * (2.0 / (w - 1)), y * (2.0 / (h - 1))), axis=-1) - 1.0
        return ops.grid_sample(frame, grid, mode="bilinear", padding_mode="border", align_corners=True)

    def fit(self, aligned, variance):
        grey = luminance(aligned, 2)
        weights = Tensor((LUMA_WEIGHTS**2).reshape(1, 3, 1, 1))
        noise = 2.0 * (variance * weights).sum(axis=1, keepdims=True)
        error = self.local_mean(ops.square(grey - grey[:, 0:1]))
        return 1.0 / (1.0 + ops.relu(error / noise - 1.0))

    def construct(self, frames, variance, valid):
        b, t, _, h, w = frames.shape
        grey = luminance(frames, 2)
        halves = blur_and_halve(grey.reshape(b * t, h, w)).reshape(b, t, h // 2, w // 2)
        known = ops.zeros((b, h // self.tile, w // self.tile, 2), ms.int32)
        shifts = [known.astype(frames.dtype)]
        aligned = [frames[:, 0]]
        for i in range(1, t):
            start = ops.floor_divide(known, 2)
            whole, _ = self.search_half(halves[:, 0], halves[:, i], start)
            whole, part = self.search(grey[:, 0], grey[:, i], 2 * whole)
            present = valid[:, i].astype(ms.int32).reshape(b, 1, 1, 1)
            known = present * whole + (1 - present) * known
            shift = known.astype(part.dtype) + part * present.astype(part.dtype)
            shifts.append(shift)
            aligned.append(self.sample(frames[:, i], shift))
        present = valid.astype(frames.dtype)
        aligned = ops.stack(aligned, axis=1) * present.reshape(b, t, 1, 1, 1)
        fits = self.fit(aligned, variance) * present.reshape(b, t, 1, 1)
        return aligned, fits, ops.stack(shifts, axis=1)


class ConvNormAct(nn.Cell):
    def __init__(self, cin, cout):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 3, pad_mode="pad", padding=1, has_bias=False)
        self.norm = nn.BatchNorm2d(cout, eps=1e-3)
        self.act = nn.LeakyReLU(alpha=0.1)

    def construct(self, x):
        return self.act(self.norm(self.conv(x)))


class GatedBlock(nn.Cell):
    """Convolution, then one that is gated by channel and by place before it is added."""

    def __init__(self, cin, cout):
        super().__init__()
        self.first = ConvNormAct(cin, cout)
        self.second = nn.Conv2d(cout, cout, 3, pad_mode="pad", padding=1, has_bias=True)
        self.squeeze = nn.Conv2d(cout, cout // 4, 1, has_bias=True)
        self.excite = nn.Conv2d(cout // 4, cout, 1, has_bias=True)
        self.place = nn.Conv2d(2, 1, 7, pad_mode="pad", padding=3, has_bias=True)
        self.act = nn.PReLU(cout)

    def channel_logits(self, pooled):
        return self.excite(ops.relu(self.squeeze(pooled)))

    def construct(self, x):
        x = self.first(x)
        y = self.second(x)
        mean = ops.mean(y, (2, 3), keep_dims=True)
        peak = ops.amax(y, (2, 3), keepdims=True)
        y = y * ops.sigmoid(self.channel_logits(mean) + self.channel_logits(peak))
        summary = ops.cat((ops.amax(y, 1, keepdims=True), ops.mean(y, 1, keep_dims=True)), axis=1)
        y = y * ops.sigmoid(self.place(summary))
        return self.act(x + y)


class Encoder(nn.Cell):
    def __init__(self, cin, widths):
        super().__init__()
        w1, w2, w3 = widths
        self.stem = ConvNormAct(cin, w1)
        self.fine = GatedBlock(w1, w1)
        self.to_middle = nn.AvgPool2d(kernel_size=2, stride=2)
        self.middle = GatedBlock(w1, w2)
        self.to_deep = nn.MaxPool2d(kernel_size=2, stride=2)
        self.deep = GatedBlock(w2, w3)
        self.wide = nn.Conv2d(w3, w3, 3, pad_mode="pad", padding=2, dilation=2, has_bias=True)
        self.wide_norm = nn.GroupNorm(4, w3)

    def construct(self, x):
        fine = self.fine(self.stem(x))
        middle = self.middle(self.to_middle(fine))
        deep = self.deep(self.to_deep(middle))
        context = self.wide_norm(self.wide(deep))
        return fine, middle, deep + ops.gelu(context, approximate="none")


class Decoder(nn.Cell):
    def __init__(self, widths):
        super().__init__()
        w1, w2, w3 = widths
        self.up = nn.Conv2dTranspose(w3, w2, 4, stride=2, pad_mode="pad", padding=1, has_bias=True)
        self.middle = GatedBlock(2 * w2, w2)
        self.fine = GatedBlock(w2 + w1, w1)

    def construct(self, fine, middle, deep):
        x = self.middle(ops.cat((self.up(deep), middle), axis=1))
        x = ops.interpolate(x, size=fine.shape[-2:], mode="bilinear", align_corners=False)
        return self.fine(ops.cat((x, fine), axis=1))


class KernelPredictor(nn.Cell):
    """The heads; columns and rows of the separable kernels come from one convolution."""

    def __init__(self, width, frames, full_size, line_size):
        super().__init__()
        self.frames = frames
        self.line_size = line_size
        self.hidden = ConvNormAct(width, width)
        self.full = nn.Conv2d(width, frames * full_size * full_size, 1, has_bias=True)
        self.lines = nn.Conv2d(width, 2 * frames * line_size, 1, has_bias=True)
        self.mix = nn.Conv2d(width, frames, 1, has_bias=True)
        self.blend = nn.Conv2d(width, frames, 1, has_bias=True)
        self.offset = nn.Conv2d(width, frames * 3, 1, has_bias=True)

    def construct(self, x):
        b, _, h, w = x.shape
        x = self.hidden(x)
        full = ops.softmax(self.full(x).reshape(b, self.frames, -1, h, w), axis=2)
        lines = self.lines(x).reshape(b, 2, self.frames, self.line_size, h, w)
        lines = lines / ops.clamp(ops.abs(lines).sum(axis=3, keepdims=True), min=1e-3)
        mix = ops.sigmoid(self.mix(x)).expand_dims(2)
        offset = ops.tanh(self.offset(x)).reshape(b, self.frames, 3, h, w)
        return full, lines[:, 0], lines[:, 1], mix, self.blend(x), offset


def edge_pad(frames, side):
    """Frames (batch, frames, 3, height, width) with their borders repeated."""
    b, t, c, h, w = frames.shape
    padded = ops.pad(frames.reshape(b * t, c, h, w), (side, side, side, side), mode="replicate")
    return padded.reshape(b, t, c, h + 2 * side, w + 2 * side)


def filter_full(frames, kernels):
    b, t, c, h, w = frames.shape
    taps = kernels.shape[2]
    size = int(taps**0.5)
    padded = edge_pad(frames, size // 2).reshape(b * t, c, h + size - 1, w + size - 1)
    patches = ops.unfold(padded, kernel_size=size)
    patches = patches.reshape(b, t, c, taps, h, w)
    return (patches * kernels.expand_dims(2)).sum(axis=3)


def filter_lines(frames, columns, rows):
    """Row by row: the taps along x first, then what the column says of the row."""
    h, w = frames.shape[-2:]
    size = rows.shape[2]
    padded = edge_pad(frames, size // 2)
    out = ops.zeros_like(frames)
    for i in range(size):
        row = ops.zeros_like(frames)
        for j in range(size):
            row = row + rows[:, :, j : j + 1] * padded[..., i : i + h, j : j + w]
        out = out + columns[:, :, i : i + 1] * row
    return out


class BurstLoss(nn.Cell):
    """The merged frame's loss, and that of the single frames, which fades."""

    def __init__(self, start=10.0, decay=0.9998, linear_weight=4.0, gradient_weight=0.5, saturation=0.85, border=2):
        super().__init__()
        self.start = start
        self.decay = decay
        self.linear_weight = linear_weight
        self.gradient_weight = gradient_weight
        self.saturation = saturation
        self.border = border

    def usable(self, target):
        """One for pixels that count, (batch, 1, height, width)."""
        h, w = target.shape[-2:]
        n = self.border
        inner = np.zeros((1, 1, h, w), np.float32)
        inner[..., n : h - n, n : w - n] = 1.0
        dark = ops.amax(target, 1, keepdims=True) < self.saturation
        return dark.astype(target.dtype) * Tensor(inner)

    def average(self, error, mask):
        """Over colours and pixels."""
        total = (error * mask).sum(axis=(1, 2, 3))
        count = mask.sum(axis=(1, 2, 3)) * error.shape[1]
        return total / ops.clamp(count, min=1.0)

    def image_loss(self, image, target, mask):
        linear = self.average(ops.square(image - target), mask)
        error = to_srgb(image) - to_srgb(target)
        gamma = self.average(ops.square(error), mask)
        along_x = ops.abs(error[:, :, :, 1:] - error[:, :, :, :-1])
        along_y = ops.abs(error[:, :, 1:, :] - error[:, :, :-1, :])
        slope = self.average(along_x, mask[:, :, :, 1:] * mask[:, :, :, :-1])
        slope = slope + self.average(along_y, mask[:, :, 1:, :] * mask[:, :, :-1, :])
        return self.linear_weight * linear + gamma + self.gradient_weight * slope

    def construct(self, merged, single, target, valid, step):
        b, t, c, h, w = single.shape
        mask = self.usable(target)
        final = self.image_loss(merged, target, mask)
        targets, masks = target.repeat_interleave(t, 0), mask.repeat_interleave(t, 0)
        each = self.image_loss(single.reshape(b * t, c, h, w), targets, masks).reshape(b, t)
        present = valid.astype(each.dtype)
        each = (each * present).sum(axis=1) / present.sum(axis=1)
        fading = self.start * ops.pow(self.decay, step)
        loss = ops.mean(final + fading * each)
        squares = self.average(ops.square(to_srgb(merged) - to_srgb(target)), mask)
        psnr = -10.0 * ops.log10(ops.clamp(squares, min=1e-10))
        return loss, final, each, psnr


class KernelPredictionNet(nn.Cell):
    """From a noisy burst and its noise to the first frame without noise; the loss comes along."""

    def __init__(self, frames=5, widths=(16, 24, 32), full_size=3, line_size=7, tile=8):
        super().__init__()
        self.tile = tile
        self.registration = Registration(tile, 2e-4)
        self.encoder = Encoder(3 * frames + frames + 3, widths)
        self.decoder = Decoder(widths)
        self.predictor = KernelPredictor(widths[0], frames, full_size, line_size)
        self.burst_loss = BurstLoss()

    def prepare(self, burst, white_level):
        """Black at zero, white at one, and whole tiles."""
        b, t, c, h, w = burst.shape
        frames = (burst - BLACK) / (white_level - BLACK).reshape(b, 1, 1, 1, 1)
        more_h, more_w = (self.tile - h % self.tile) % self.tile, (self.tile - w % self.tile) % self.tile
        frames = ops.pad(frames.reshape(b * t, c, h, w), (0, more_w, 0, more_h), mode="reflect")
        return frames.reshape(b, t, c, h + more_h, w + more_w)

    def construct(self, burst, white_level, noise, valid, target, step):
        b, t, _, h, w = burst.shape
        frames = self.prepare(burst, white_level)
        read, shot = noise[:, 0].reshape(b, 1, 1, 1), noise[:, 1].reshape(b, 1, 1, 1)
        variance = ops.square(read) + shot * ops.relu(frames[:, 0])
        sigma = ops.sqrt(variance)

        aligned, fits, shifts = self.registration(frames, variance, valid)
        inputs = ops.cat((aligned.reshape(b, t * 3, *aligned.shape[-2:]), fits, sigma), axis=1)
        features = self.decoder(*self.encoder(inputs))
        full, columns, rows, mix, blend, offset = self.predictor(features)

        by_full = filter_full(aligned, full)
        by_lines = filter_lines(aligned, columns, rows)
        single = by_lines + mix * (by_full - by_lines) + offset * sigma.expand_dims(1)
        blend = blend + ops.log(fits + 0.01)
        blend = ops.masked_fill(blend, ops.logical_not(valid).reshape(b, t, 1, 1), -1e30)
        blend = ops.softmax(blend, axis=1)
        merged = ops.sum(single * blend.expand_dims(2), dim=1)

        merged, single, blend = merged[..., :h, :w], single[..., :h, :w], blend[..., :h, :w]
        loss, final, each, psnr = self.burst_loss(merged, single, target, valid, step)
        return merged, single, shifts, blend, loss, final, each, psnr


def build():
    """The net alone, for evaluation: weights and inputs come from the reference's dump."""
    net = KernelPredictionNet()
    net.set_train(False)
    return net
