"""Frame interpolation at any time in MindSpore: both frames of a pair travel as one batch, the first frames first."""

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

GRAY = (0.2989, 0.5870, 0.1140)
BINOMIAL = (1.0, 4.0, 6.0, 4.0, 1.0)


def stacked(first, second):
    """Two batches as one."""
    return ops.cat((first, second), axis=0)


def halves(batch):
    """The way back."""
    n = batch.shape[0] // 2
    return batch[:n], batch[n:]


def flow_pair(flow):
    """(n, 4, h, w), to the first and to the second frame -> (2n, 2, h, w)."""
    return stacked(flow[:, :2], flow[:, 2:])


def fit(x, height, width):
    return ops.interpolate(x, size=(height, width), mode="bilinear", align_corners=False)


def pixel_grid(height, width):
    """The coordinates of the pixels (1, 2, h, w), x first."""
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    return Tensor(np.stack([x, y])[None].astype(np.float32))


def sample_at(image, flow):
    """Backward warping: bilinear, the border goes on for ever."""
    height, width = image.shape[2:]
    place = pixel_grid(height, width) + flow
    grid_x = 2.0 * place[:, 0] / (width - 1) - 1.0
    grid_y = 2.0 * place[:, 1] / (height - 1) - 1.0
    grid = ops.stack((grid_x, grid_y), axis=-1)
    return ops.grid_sample(image, grid, mode="bilinear", padding_mode="border", align_corners=True)


def splat(values, flow):
    """Forward warping by summation into the four pixels around the place where each pixel lands."""
    n, c, height, width = values.shape
    place = pixel_grid(height, width) + flow
    corner = ops.floor(place)
    frac = place - corner
    fx, fy = frac[:, 0], frac[:, 1]
    rows = values.transpose(0, 2, 3, 1).reshape(-1, c)
    offset = Tensor((np.arange(n) * height * width).reshape(n, 1, 1).astype(np.int32))
    total = ops.zeros((n * height * width, c), values.dtype)
    corners = (
        (0, 0, (1.0 - fx) * (1.0 - fy)),
        (1, 0, fx * (1.0 - fy)),
        (0, 1, (1.0 - fx) * fy),
        (1, 1, fx * fy),
    )
    for dx, dy, weight in corners:
        x = corner[:, 0].astype(ms.int32) + dx
        y = corner[:, 1].astype(ms.int32) + dy
        hit = ops.logical_and(ops.logical_and(x >= 0, x < width), ops.logical_and(y >= 0, y < height))
        weight = ops.where(hit, weight, ops.zeros_like(weight))
        index = offset + ops.clamp(y, 0, height - 1) * width + ops.clamp(x, 0, width - 1)
        total = total + ops.unsorted_segment_sum(rows * weight.reshape(-1, 1), index.reshape(-1), n * height * width)
    return total.reshape(n, height, width, c).transpose(0, 3, 1, 2)


def conv3(c_in, c_out, stride=1, dilation=1, bias=True):
    return nn.Conv2d(c_in, c_out, 3, stride=stride, pad_mode="pad", padding=dilation, dilation=dilation, has_bias=bias)


def conv_act(c_in, c_out, stride=1, dilation=1):
    return nn.SequentialCell(conv3(c_in, c_out, stride, dilation), nn.PReLU(c_out))


def double_conv(c_in, c_out):
    """Half the size, then once more."""
    return nn.SequentialCell(conv_act(c_in, c_out, stride=2), conv_act(c_out, c_out))


def upconv(c_in, c_out):
    return nn.Conv2dTranspose(c_in, c_out, 4, stride=2, pad_mode="pad", padding=1, has_bias=True)


class SideResidual(nn.Cell):
    """Residual block; the last channels pass one more convolution in the middle."""

    def __init__(self, channels, side):
        super().__init__()
        self.main = channels - side
        self.first = conv_act(channels, channels)
        self.side_conv = conv_act(side, side)
        self.last = conv3(channels, channels)
        self.act = nn.PReLU(channels)

    def construct(self, x):
        y = self.first(x)
        y = ops.cat((y[:, : self.main], self.side_conv(y[:, self.main :])), axis=1)
        return self.act(self.last(y) + x)


class Encoder(nn.Cell):
    """Three levels of features, and a few channels at the size of the frame."""

    def __init__(self, widths, full_width):
        super().__init__()
        levels = []
        previous = 3
        for width in widths:
            levels.append(
                nn.SequentialCell(
                    conv3(previous, width, stride=2, bias=False),
                    nn.BatchNorm2d(width, eps=1e-3),
                    nn.LeakyReLU(alpha=0.1),
                    conv_act(width, width),
                )
            )
            previous = width
        self.levels = nn.CellList(levels)
        self.to_full = upconv(widths[0], full_width)

    def construct(self, frames):
        half = self.levels[0](frames)
        return self.to_full(half), self.levels[2](self.levels[1](half))


class MatchingFlow(nn.Cell):
    """Flow between the frames of a pair, both ways, from how alike neighbours are."""

    def __init__(self, width, reach=2):
        super().__init__()
        self.reach = reach
        self.embed = conv_act((2 * reach + 1) ** 2 + width, 32)
        self.wide = conv_act(32, 32, dilation=2)
        self.to_flow = conv3(32, 2)

    def construct(self, features):
        height, width = features.shape[2:]
        unit = features / ops.sqrt((features * features).sum(axis=1, keepdims=True)).clamp(min=1e-12)
        one, two = halves(unit)
        other = ops.pad(stacked(two, one), (self.reach, self.reach, self.reach, self.reach))
        costs = []
        for i in range(2 * self.reach + 1):
            for j in range(2 * self.reach + 1):
                costs.append((unit * other[:, :, i : i + height, j : j + width]).sum(axis=1))
        cost = ops.leaky_relu(ops.stack(costs, axis=1), 0.1)
        x = self.embed(ops.cat((cost, features), axis=1))
        return self.to_flow(x + self.wide(x))


class TimeCode(nn.Cell):
    """The time as a vector."""

    def __init__(self, octaves, width):
        super().__init__()
        self.freqs = Tensor((np.pi * 2.0 ** (np.arange(octaves) / 2)).reshape(1, -1).astype(np.float32))
        self.hidden = nn.Dense(2 * octaves + 1, width)
        self.act = nn.GELU(approximate=False)
        self.out = nn.Dense(width, width)

    def construct(self, time):
        time = time.reshape(-1, 1)
        phase = time * self.freqs
        code = ops.cat((time, ops.sin(phase), ops.cos(phase)), axis=1)
        return self.out(self.act(self.hidden(code)))


class RefineStep(nn.Cell):
    """Changes of the flows and the mask, found on images smaller by a factor."""

    def __init__(self, c_in, width, time_width, memory, side, factor):
        super().__init__()
        self.factor = factor
        self.shrink = nn.SequentialCell(conv_act(c_in, width // 2, stride=2), conv_act(width // 2, width, stride=2))
        self.norm = nn.GroupNorm(4, width)
        self.film = nn.Dense(time_width, 2 * width)
        self.body = nn.SequentialCell(SideResidual(width, side), SideResidual(width, side))
        self.head = upconv(width, 4 * (5 + memory))

    def construct(self, images, flow, code):
        height, width = flow.shape[2:]
        small = (height // self.factor, width // self.factor)
        x = ops.cat((fit(images, *small), fit(flow, *small) / self.factor), axis=1)
        x = self.norm(self.shrink(x))
        gain, shift = ops.chunk(self.film(code).expand_dims(-1).expand_dims(-1), 2, axis=1)
        x = self.body(x + x * gain + shift)
        x = self.head(x)
        # pixel shuffle by hand
        n, c, h, w = x.shape
        x = x.reshape(n, c // 4, 2, 2, h, w).transpose(0, 1, 4, 2, 5, 3).reshape(n, c // 4, 2 * h, 2 * w)
        x = fit(x, height, width)
        return self.factor * x[:, :4], x[:, 4:5], x[:, 5:]


class MotionEstimator(nn.Cell):
    """From the stacked frames and the time to flows and mask, from coarse to fine."""

    def __init__(self, widths, full_width, step_widths, factors, memory, side, time_width):
        super().__init__()
        self.memory = memory
        self.encoder = Encoder(widths, full_width)
        self.matching = MatchingFlow(widths[-1])
        self.time_code = TimeCode(6, time_width)
        c_in = 6 + 2 * full_width + 1 + 1 + memory + 4
        self.steps = nn.CellList(
            [RefineStep(c_in, c, time_width, memory, side, f) for c, f in zip(step_widths, factors)]
        )

    def initial(self, coarse, time, height, width):
        """Both flows from the time asked for, at full size."""
        forth, back = halves(coarse)
        to_first = time * time * back - time * (1.0 - time) * forth
        to_second = (1.0 - time) ** 2 * forth - time * (1.0 - time) * back
        flow = ops.cat((to_first, to_second), axis=1)
        return fit(flow, height, width) * (height // flow.shape[2])

    def construct(self, frames, time):
        height, width = frames.shape[2:]
        n = time.shape[0]
        full, deep = self.encoder(frames)
        code = self.time_code(time)
        time = time.reshape(n, 1, 1, 1)
        flow = self.initial(self.matching(deep), time, height, width)
        plane = ops.broadcast_to(time, (n, 1, height, width))
        mask = ops.zeros((n, 1, height, width), frames.dtype)
        memory = ops.zeros((n, self.memory, height, width), frames.dtype)
        # frames and features are warped in one go
        known = ops.cat((frames, full), axis=1)
        blends = []
        for step in self.steps:
            warped = sample_at(known, flow_pair(flow))
            first, second = halves(warped)
            x = ops.cat((first[:, :3], second[:, :3], first[:, 3:], second[:, 3:], plane, mask, memory), axis=1)
            flow_change, mask_change, memory = step(x, flow, code)
            flow = flow + flow_change
            mask = mask + mask_change
            warped = sample_at(frames, flow_pair(flow))
            first, second = halves(warped)
            share = ops.sigmoid(mask)
            blends.append(share * first + (1.0 - share) * second)
        return flow, mask, warped, blends


class Visibility(nn.Cell):
    """Splats to see which pixels compete for one place of a frame, and corrects the mask."""

    def __init__(self, sharpness):
        super().__init__()
        self.sharpness = sharpness
        self.strength = Parameter(Tensor(np.zeros(1, np.float32)), name="strength")
        self.correct = nn.SequentialCell(conv_act(5, 8), conv3(8, 1))

    def construct(self, warped, flow, mask):
        first, second = halves(warped)
        error = ops.abs(first - second).mean(axis=1, keep_dims=True)
        weight = ops.exp(-self.sharpness * error)
        weight = stacked(weight, weight)
        flow = flow_pair(flow)
        landed = splat(ops.cat((weight, ops.ones_like(weight)), axis=1), flow)
        crowd = sample_at(landed[:, :1], flow)
        seen = ops.minimum(weight / (crowd + 0.05), Tensor(1.0, ms.float32))
        empty = 1.0 - ops.clamp(landed[:, 1:], 0.0, 1.0)
        seen = ops.cat(halves(seen), axis=1)
        empty = ops.cat(halves(empty), axis=1)
        logs = ops.log(seen + 0.1)
        mask = mask + self.strength * (logs[:, 0:1] - logs[:, 1:2])
        mask = mask + self.correct(ops.cat((seen, empty, error), axis=1))
        return mask, seen, empty


class Refiner(nn.Cell):
    """Context of both frames, warped, into a U whose outcome is added to the blend."""

    def __init__(self, context, width):
        super().__init__()
        self.context = nn.CellList(
            [double_conv(3, context), double_conv(context, 2 * context), double_conv(2 * context, 4 * context)]
        )
        self.down = nn.CellList(
            [
                double_conv(19, width),
                double_conv(width + 2 * context, 2 * width),
                double_conv(2 * width + 4 * context, 4 * width),
            ]
        )
        self.up = nn.CellList(
            [
                nn.SequentialCell(upconv(4 * width + 8 * context, 2 * width), nn.PReLU(2 * width)),
                nn.SequentialCell(upconv(4 * width, width), nn.PReLU(width)),
                nn.SequentialCell(upconv(2 * width, width), nn.PReLU(width)),
            ]
        )
        self.to_rgb = conv3(width, 3)

    def contexts(self, frames, flow):
        """For each level both frames' warped features side by side in the channels."""
        flow = flow_pair(flow)
        levels = []
        x = frames
        for stage in self.context:
            x = stage(x)
            flow = fit(flow, x.shape[2], x.shape[3]) * 0.5
            levels.append(ops.cat(halves(sample_at(x, flow)), axis=1))
        return levels

    def construct(self, frames, warped, share, flow, empty):
        levels = self.contexts(frames, flow)
        x = ops.cat((*halves(frames), *halves(warped), share, flow, empty), axis=1)
        skips = []
        for down, level in zip(self.down, levels):
            x = down(x)
            skips.append(x)
            x = ops.cat((x, level), axis=1)
        x = self.up[0](x)
        x = self.up[1](ops.cat((x, skips[1]), axis=1))
        x = self.up[2](ops.cat((x, skips[0]), axis=1))
        return 2.0 * ops.sigmoid(self.to_rgb(x)) - 1.0


class LaplacianDistance(nn.Cell):
    """L1 between Laplacian pyramids."""

    def __init__(self, levels):
        super().__init__()
        self.levels = levels
        kernel = np.outer(BINOMIAL, BINOMIAL) / np.sum(BINOMIAL) ** 2
        self.kernel = Tensor(np.tile(kernel, (3, 1, 1, 1)).astype(np.float32))

    def smooth(self, x):
        x = ops.pad(x, (2, 2, 2, 2), mode="reflect")
        return ops.conv2d(x, self.kernel, pad_mode="valid", groups=3)

    def enlarge(self, x, height, width):
        """Zeros between the pixels, then the blur, four times as strong."""
        n, c, h, w = x.shape
        zeros = ops.zeros_like(x)
        x = ops.stack((x, zeros), axis=4).reshape(n, c, h, 2 * w)
        x = ops.stack((x, ops.zeros_like(x)), axis=3).reshape(n, c, 2 * h, 2 * w)
        return 4.0 * self.smooth(x[:, :, :height, :width])

    def construct(self, a, b):
        # everything before the absolute value is linear: one pyramid of the difference is enough
        x = a - b
        loss = 0.0
        for level in range(self.levels - 1):
            small = self.smooth(x)[:, :, ::2, ::2]
            band = x - self.enlarge(small, x.shape[2], x.shape[3])
            loss = loss + 2**level * ops.abs(band).mean(axis=(1, 2, 3))
            x = small
        return loss + 2 ** (self.levels - 1) * ops.abs(x).mean(axis=(1, 2, 3))


def census_distance(a, b, weight, reach=2):
    """Both images' soft census, compared inside the border only, on the average over the weight."""
    height, width = a.shape[2:]
    gray = Tensor(np.array(GRAY, np.float32).reshape(1, 3, 1, 1))
    side = 2 * reach + 1
    codes = []
    for image in (a, b):
        center = (image * gray).sum(axis=1) * 255.0
        padded = ops.pad(center, (reach, reach, reach, reach))
        around = [padded[:, k // side : k // side + height, k % side : k % side + width] for k in range(side * side)]
        diff = ops.stack(around, axis=1) - center.expand_dims(1)
        codes.append(diff / ops.sqrt(diff * diff + 0.81))
    gap = ops.square(codes[0] - codes[1])
    gap = (gap / (gap + 0.1)).mean(axis=1)[:, reach:-reach, reach:-reach]
    weight = weight[:, 0, reach:-reach, reach:-reach]
    return (gap * weight).sum(axis=(1, 2)) / (weight.sum(axis=(1, 2)) + 1e-6)


def teacher_distance(flow, label):
    """Generalised Charbonnier, gentler where the student is far from its teacher."""
    n, _, height, width = flow.shape
    square = ops.square(flow - label)
    far = ops.sqrt(square.reshape(n, 2, 2, height, width).sum(axis=2, keepdims=True))
    trust = ops.stop_gradient(ops.exp(-0.3 * far))
    power = trust / 2.0
    floor = ops.pow(Tensor(10.0, ms.float32), (1.0 - 10.0 * trust) / 3.0)
    loss = ops.pow(square.reshape(n, 2, 2, height, width) + floor * floor, power)
    return loss.mean(axis=(1, 2, 3, 4))


class InterpolationNet(nn.Cell):
    """Two frames and a time to the frame in between, and the losses against the true one."""

    def __init__(self, widths=(12, 16, 24), full_width=4, step_widths=(32, 24, 16), factors=(4, 2, 1), memory=3, side=6,
                 time_width=20, context=6, unet_width=8):
        super().__init__()
        self.motion = MotionEstimator(widths, full_width, step_widths, factors, memory, side, time_width)
        self.visibility = Visibility(2.5)
        self.refiner = Refiner(context, unet_width)
        self.laplacian = LaplacianDistance(3)

    def construct(self, img0, img1, timestep, target, label):
        height, width = img0.shape[2:]
        extra_h, extra_w = (16 - height % 16) % 16, (16 - width % 16) % 16
        top, left = extra_h // 2, extra_w // 2
        mean = 0.5 * (img0.mean(axis=(1, 2, 3), keep_dims=True) + img1.mean(axis=(1, 2, 3), keep_dims=True))
        frames = stacked(img0 - mean, img1 - mean)
        frames = ops.pad(frames, (left, extra_w - left, top, extra_h - top), mode="replicate")

        flow, mask, warped, blends = self.motion(frames, timestep)
        mask, seen, empty = self.visibility(warped, flow, mask)
        share = ops.sigmoid(mask)
        first, second = halves(warped)
        frame = share * first + (1.0 - share) * second + self.refiner(frames, warped, share, flow, empty)

        def cut(x):
            return x[:, :, top : top + height, left : left + width]

        pred = ops.clamp(cut(frame) + mean, 0.0, 1.0)
        flow, seen = cut(flow), cut(seen)
        error = ops.maximum(ops.square(pred - target).mean(axis=(1, 2, 3)), Tensor(1e-8, ms.float32))
        psnr = -10.0 * ops.log10(error)

        lap = self.laplacian(pred, target)
        census = census_distance(pred, target, seen.max(axis=1, keepdims=True))
        deep = 0.0
        for blend in blends:
            deep = 0.8 * deep + self.laplacian(cut(blend) + mean, target)
        distill = teacher_distance(flow, label)
        total = lap + 0.5 * census + 0.3 * deep + 0.2 * distill
        return {
            "pred": pred,
            "flow": flow,
            "blend": cut(share),
            "visible": seen,
            "psnr": psnr,
            "lap": lap,
            "census": census,
            "deep": deep,
            "distill": distill,
            "total": total,
        }


def build():
    """The net alone, for evaluation: weights and inputs come from the reference's dump."""
    net = InterpolationNet()
    net.set_train(False)
    return net
