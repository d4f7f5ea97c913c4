"""SuperPoint on homographic pairs in MindSpore: detector, descriptors, their losses, keypoint extraction and matching."""

from __future__ import annotations

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

RGB_TO_GRAY = [0.299, 0.587, 0.114]
GRAY_MEAN = 0.449
GRAY_STD = 0.226
CELL = 8


# Points are (x, y) in pixels everywhere; the origin is the centre of the first pixel.


def grid_points(rows, cols):
    """(rows * cols, 2) coordinates in reading order, as numpy."""
    y, x = np.mgrid[:rows, :cols]
    return np.stack((x.ravel(), y.ravel()), axis=1).astype(np.float32)


def denormalise(homography, rows, cols):
    """Bring a homography from coordinates in [-1, 1] to pixels."""
    sx, sy = 0.5 * (cols - 1), 0.5 * (rows - 1)
    scale = np.array([[sx, 0, sx], [0, sy, sy], [0, 0, 1]], np.float32)
    unscale = np.array([[1 / sx, 0, -1], [0, 1 / sy, -1], [0, 0, 1]], np.float32)
    return ops.matmul(ops.matmul(Tensor(scale), homography), Tensor(unscale))


def transform_points(homography, points):
    """(batch, 3, 3) applied to (batch, n, 2), or to the same (n, 2) for the whole batch."""
    linear, shift = homography[:, :, :2], homography[:, :, 2]
    if points.ndim == 2:
        points = ops.broadcast_to(points.expand_dims(0), (homography.shape[0],) + points.shape)
    moved = ops.bmm(points, linear.swapaxes(1, 2)) + shift.expand_dims(1)
    return moved[:, :, :2] / moved[:, :, 2:3]


def homographic_view(image, inverse, mode="bilinear"):
    """The image as the other camera sees it; the inverse homography is one of coordinates in [-1, 1]."""
    b, _, rows, cols = image.shape
    y, x = np.meshgrid(np.linspace(-1, 1, rows), np.linspace(-1, 1, cols), indexing="ij")
    target = Tensor(np.stack((x, y), axis=-1).reshape(-1, 2).astype(np.float32))
    source = transform_points(inverse, target).reshape(b, rows, cols, 2)
    return ops.grid_sample(image, source, mode=mode, padding_mode="zeros", align_corners=True)


def shrink_mask(mask, radius):
    """Erosion as the minimum over a window, which is the maximum of the negative."""
    return -ops.max_pool2d(-mask, 2 * radius + 1, stride=1, padding=radius)


def frame_mask(sizes, rows, cols):
    """(batch, 1, rows, cols): one where a padded image has pixels."""
    height, width = sizes[:, 0].reshape(-1, 1, 1, 1), sizes[:, 1].reshape(-1, 1, 1, 1)
    y = ops.arange(rows).reshape(1, 1, rows, 1)
    x = ops.arange(cols).reshape(1, 1, 1, cols)
    return ops.logical_and(y < height, x < width).astype(ms.float32)


def to_cells(x):
    """(batch, rows, cols) -> (batch, 64, rows / 8, cols / 8), a cell's pixels in reading order."""
    b, rows, cols = x.shape
    x = x.reshape(b, rows // CELL, CELL, cols // CELL, CELL)
    return x.transpose(0, 2, 4, 1, 3).reshape(b, CELL * CELL, rows // CELL, cols // CELL)


def whole_cells(mask):
    """One for the cells without a masked pixel."""
    return to_cells(mask[:, 0]).min(axis=1)


def draw_points(points, confidence, mask):
    """A map (batch, rows, cols) of the highest confidence at each pixel, zero where the mask is."""
    b, _, rows, cols = mask.shape
    points = ops.round(points).astype(ms.int32)
    x, y = points[..., 0], points[..., 1]
    inside = ops.logical_and(ops.logical_and(x >= 0, x < cols), ops.logical_and(y >= 0, y < rows))
    place = ops.where(inside, y * cols + x, -1)
    hit = place.expand_dims(2) == ops.arange(rows * cols).astype(ms.int32).reshape(1, 1, -1)
    drawn = (hit.astype(ms.float32) * confidence.expand_dims(2)).max(axis=1)
    return drawn.reshape(b, rows, cols) * mask[:, 0]


def unit(x, axis):
    """To length one along an axis."""
    length = ops.sqrt((x * x).sum(axis=axis, keepdims=True))
    return x / ops.clamp(length, min=1e-12)


class ConvBnRelu(nn.Cell):
    """3 x 3 convolution with a reflected border, batch norm, ReLU."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, 3, pad_mode="valid")
        self.bn = nn.BatchNorm2d(out_channels, eps=1e-3)
        self.relu = nn.ReLU()

    def construct(self, x):
        x = ops.pad(x, (1, 1, 1, 1), mode="reflect")
        return self.relu(self.bn(self.conv(x)))


class VGGEncoder(nn.Cell):
    """Eight convolutions, an eighth of the resolution."""

    def __init__(self, widths):
        super().__init__()
        channels = (1,) + tuple(widths)
        self.stages = nn.CellList(
            [nn.SequentialCell(ConvBnRelu(a, b), ConvBnRelu(b, b)) for a, b in zip(channels[:-1], channels[1:])]
        )
        self.pools = nn.CellList(
            [nn.MaxPool2d(3, stride=2, pad_mode="pad", padding=1) for _ in range(len(widths) - 1)]
        )

    def construct(self, x):
        x = self.stages[0](x)
        for pool, stage in zip(self.pools, self.stages[1:]):
            x = stage(pool(x))
        return x


class Detector(nn.Cell):
    """Logits (batch, 65, rows / 8, cols / 8) and the map of chances (batch, rows, cols)."""

    def __init__(self, in_channels, width):
        super().__init__()
        self.conv_a = nn.Conv2d(in_channels, width, 3, pad_mode="pad", padding=1, has_bias=True)
        self.bn_a = nn.BatchNorm2d(width, eps=1e-3)
        self.relu = nn.ReLU()
        self.conv_b = nn.Conv2d(width, CELL * CELL + 1, 1, has_bias=True)
        self.softmax = nn.Softmax(axis=1)

    def construct(self, features):
        hidden = self.relu(self.bn_a(self.conv_a(features)))
        logits = self.conv_b(hidden)
        chances = self.softmax(logits)
        pixels = ops.pixel_shuffle(chances[:, : CELL * CELL], CELL)
        return logits, pixels.squeeze(1)


class Descriptor(nn.Cell):
    """A unit vector for each cell."""

    def __init__(self, in_channels, width, dim):
        super().__init__()
        self.conv_a = nn.Conv2d(in_channels, width, 3, pad_mode="pad", padding=2, dilation=2, has_bias=True)
        self.bn_a = nn.BatchNorm2d(width, eps=1e-3)
        self.act = nn.GELU(approximate=False)
        self.conv_b = nn.Conv2d(width, dim, 1, has_bias=True)

    def construct(self, features):
        hidden = self.act(self.bn_a(self.conv_a(features)))
        return unit(self.conv_b(hidden), 1)

    def at(self, coarse, keypoints):
        """Bilinear samples of the coarse map at keypoints (batch, n, 2): (batch, n, dim)."""
        _, _, h, w = coarse.shape
        # the centre of the first cell, and from there to the last pixel
        start = 0.5 * CELL - 0.5
        extent = Tensor(np.array([w * CELL - 1 - start, h * CELL - 1 - start], np.float32))
        grid = 2.0 * ((keypoints - start) / extent) - 1.0
        sampled = ops.grid_sample(coarse, grid.expand_dims(1), mode="bilinear", align_corners=True)
        return unit(sampled[:, :, 0], 1).swapaxes(1, 2)


class Extractor(nn.Cell):
    """Non-maximum suppression, removal of the border, the best keypoints and their places between pixels."""

    def __init__(self, radius=3, rounds=2, border=4, capacity=40, threshold=0.08, patch_radius=2):
        super().__init__()
        self.rounds = rounds
        self.border = border
        self.capacity = capacity
        self.threshold = threshold
        self.patch_radius = patch_radius
        self.max_pool = nn.MaxPool2d(2 * radius + 1, stride=1, pad_mode="pad", padding=radius)

    def nms(self, scores):
        """Local maxima, and those that remain as such when the surroundings of the former are taken away."""
        peaks = ops.equal(scores, self.max_pool(scores))
        for _ in range(self.rounds):
            near = self.max_pool(peaks.astype(ms.float32)) > 0.5
            rest = ops.masked_fill(scores, near, 0.0)
            fresh = ops.equal(rest, self.max_pool(rest))
            peaks = ops.logical_or(peaks, ops.logical_and(fresh, ops.logical_not(near)))
        return scores * peaks.astype(scores.dtype)

    def crop(self, scores, sizes):
        """Zero within the border of the true frame of each image."""
        rows, cols = scores.shape[-2:]
        y, x = ops.arange(rows).reshape(1, rows, 1), ops.arange(cols).reshape(1, 1, cols)
        height, width = sizes[:, 0].reshape(-1, 1, 1), sizes[:, 1].reshape(-1, 1, 1)
        good_y = ops.logical_and(y >= self.border, y < height - self.border)
        good_x = ops.logical_and(x >= self.border, x < width - self.border)
        return scores * ops.logical_and(good_y, good_x).astype(scores.dtype)

    def subpixel(self, chances, place):
        """The centre of mass of the patch around each place (a pixel's number), relative to it."""
        b, capacity = place.shape
        r = self.patch_radius
        windows = ops.unfold(chances.expand_dims(1), 2 * r + 1, padding=r).swapaxes(1, 2)
        taps = windows.shape[2]
        patch = ops.gather_elements(windows, 1, ops.broadcast_to(place.expand_dims(2), (b, capacity, taps)))
        dy, dx = ops.meshgrid(ops.arange(-r, r + 1), ops.arange(-r, r + 1), indexing="ij")
        dy, dx = dy.reshape(1, 1, taps).astype(patch.dtype), dx.reshape(1, 1, taps).astype(patch.dtype)
        total = ops.clamp(patch.sum(axis=2), min=1e-8)
        shift_x = (patch * dx).sum(axis=2) / total
        shift_y = (patch * dy).sum(axis=2) / total
        return shift_x, shift_y

    def construct(self, chances, mask, sizes):
        b, _, cols = chances.shape
        peaks = self.nms(chances.expand_dims(1) * mask)[:, 0]
        scores, place = ops.topk(self.crop(peaks, sizes).reshape(b, -1), self.capacity)
        y = ops.floor_divide(place, cols)
        x = place - y * cols
        shift_x, shift_y = self.subpixel(chances, place)
        found = scores > self.threshold
        keypoints = ops.stack((x.astype(ms.float32) + shift_x, y.astype(ms.float32) + shift_y), axis=2)
        alive = found.astype(ms.float32)
        return keypoints * alive.expand_dims(2), scores * alive, found


class CellCrossEntropy(nn.Cell):
    """The detector's loss: which pixel of a cell has the point, or none."""

    def __init__(self, threshold=0.3):
        super().__init__()
        self.threshold = threshold
        self.cross_entropy = nn.CrossEntropyLoss(reduction="none")

    def construct(self, logits, heat, mask):
        cells = to_cells(heat)
        nothing = ops.full_like(cells[:, :1], self.threshold)
        target = ops.cat((cells, nothing), axis=1).argmax(axis=1).astype(ms.int32)
        losses = self.cross_entropy(logits, target)
        weight = whole_cells(mask)
        return (losses * weight).sum() / ops.clamp(weight.sum(), min=1.0)


class PairHinge(nn.Cell):
    """The descriptors' loss: cells that see the same place should be alike, all others not."""

    def __init__(self, positive_margin=1.0, negative_margin=0.2, balance=250.0):
        super().__init__()
        self.positive_margin = positive_margin
        self.negative_margin = negative_margin
        self.balance = balance
        self.reach = CELL - 0.5

    def construct(self, first, second, homography, second_mask):
        b, dim, h, w = first.shape
        n = h * w
        centres = Tensor(grid_points(h, w) * CELL + CELL // 2)
        moved = transform_points(homography, centres)
        gap = moved.reshape(b, n, 1, 2) - centres.reshape(1, 1, n, 2)
        same = ((gap * gap).sum(axis=3) <= self.reach**2).astype(first.dtype)

        first, second = first.reshape(b, dim, n), second.reshape(b, dim, n)
        alike = ops.relu(ops.bmm(first.swapaxes(1, 2), second))
        alike = unit(unit(alike, 2), 1)

        pull = ops.relu(self.positive_margin - alike)
        push = ops.relu(alike - self.negative_margin)
        losses = self.balance * same * pull + (1.0 - same) * push
        weight = whole_cells(second_mask).reshape(b, 1, n)
        return (losses * weight).sum() / ops.clamp(weight.sum() * n, min=1.0)


class Matcher(nn.Cell):
    """Mutual nearest neighbours, the ratio test, and the confidence of the pairs."""

    def __init__(self, ratio=0.9):
        super().__init__()
        self.ratio = ratio
        self.log_scale = Parameter(Tensor(np.zeros(1, np.float32)), name="log_scale")

    def construct(self, first, second, first_found, second_found):
        k = first.shape[1]
        both = ops.logical_and(first_found.expand_dims(2), second_found.expand_dims(1))
        cosine = ops.bmm(first, second.swapaxes(1, 2))
        cosine = ops.masked_fill(cosine, ops.logical_not(both), -1e4)

        logits = ops.exp(self.log_scale) * cosine
        confidence = ops.softmax(logits, axis=1) * ops.softmax(logits, axis=2)

        top, partner = ops.topk(cosine, 2, dim=2)
        squared = 2.0 - 2.0 * top
        clear = squared[:, :, 0] <= self.ratio**2 * squared[:, :, 1]
        partner = partner[:, :, 0]
        returned = ops.gather_elements(cosine.argmax(axis=1), 1, partner)
        mutual = ops.equal(returned, ops.arange(k).reshape(1, k))

        matched = ops.logical_and(ops.logical_and(clear, mutual), first_found)
        sure = ops.gather_elements(confidence, 2, partner.expand_dims(2)).squeeze(2)
        return ops.where(matched, partner, -1), sure * matched.astype(sure.dtype)


class SuperPoint(nn.Cell):
    """An image and its homographic copy through detector and descriptor, with losses and matches."""

    def __init__(self, widths=(16, 24, 32, 48), head_width=48, dim=40, loss_weight=0.02, erosion=3):
        super().__init__()
        self.loss_weight = loss_weight
        self.erosion = erosion
        self.encoder = VGGEncoder(widths)
        self.detector = Detector(widths[-1], head_width)
        self.descriptor = Descriptor(widths[-1], head_width, dim)
        self.extractor = Extractor()
        self.detector_loss = CellCrossEntropy()
        self.descriptor_loss = PairHinge()
        self.matcher = Matcher()

    def construct(self, image, sizes, points, point_scores, homography):
        rows, cols = image.shape[-2:]
        weights = Tensor(np.array(RGB_TO_GRAY, np.float32).reshape(1, 3, 1, 1))
        gray = (image * weights).sum(axis=1, keepdims=True)
        mask = frame_mask(sizes, rows, cols)
        gray = (gray - GRAY_MEAN) / GRAY_STD * mask

        forward = denormalise(homography, rows, cols)
        backward = ops.inverse(homography)
        other = homographic_view(gray, backward)
        other_mask = shrink_mask(homographic_view(mask, backward, "nearest"), self.erosion)
        heat = draw_points(points, point_scores, mask)
        other_heat = draw_points(transform_points(forward, points), point_scores, other_mask)

        features, other_features = self.encoder(gray), self.encoder(other)
        logits, chances = self.detector(features)
        coarse = self.descriptor(features)
        other_logits, other_chances = self.detector(other_features)
        other_coarse = self.descriptor(other_features)

        loss_first = self.detector_loss(logits, heat, mask)
        loss_second = self.detector_loss(other_logits, other_heat, other_mask)
        loss_pairs = self.descriptor_loss(coarse, other_coarse, forward, other_mask)
        loss = loss_first + loss_second + self.loss_weight * loss_pairs

        other_sizes = Tensor(np.array([[rows, cols]] * image.shape[0], np.int64))
        keypoints, scores, found = self.extractor(chances, mask, sizes)
        other_keypoints, other_scores, other_found = self.extractor(other_chances, other_mask, other_sizes)
        vectors = self.descriptor.at(coarse, keypoints) * found.astype(ms.float32).expand_dims(2)
        other_vectors = self.descriptor.at(other_coarse, other_keypoints)
        other_vectors = other_vectors * other_found.astype(ms.float32).expand_dims(2)

        matches, confidence = self.matcher(vectors, other_vectors, found, other_found)
        return (
            loss, loss_first, loss_second, loss_pairs, keypoints, scores, vectors, other_keypoints, other_scores,
            other_vectors, matches, confidence,
        )


def example_pair(rows=64, cols=80, points=30):
    """Two pictures of blocks and noise with labels and homographies; the second is smaller and padded."""
    rng = np.random.RandomState(7)
    sizes = np.array([[rows, cols], [rows - 10, cols - 18]], np.int64)
    image = np.zeros((2, 3, rows, cols), np.float32)
    labels = np.zeros((2, points, 2), np.float32)
    scores = np.zeros((2, points), np.float32)
    for i, (height, width) in enumerate(sizes):
        picture = np.full((3, rows, cols), 0.4)
        for _ in range(14):
            y, x = rng.randint(0, height - 6), rng.randint(0, width - 6)
            h, w = rng.randint(5, 22), rng.randint(5, 26)
            picture[:, y : y + h, x : x + w] = rng.rand(3, 1, 1)
        picture = np.clip(picture + 0.08 * rng.randn(3, rows, cols), 0, 1)
        image[i, :, :height, :width] = picture[:, :height, :width]
        count = points - 6 * i
        labels[i, :count] = rng.rand(count, 2) * [width - 1, height - 1]
        scores[i, :count] = rng.uniform(0.15, 1.0, count)
    homography = np.eye(3) + rng.uniform(-1, 1, (2, 3, 3)) * [[0.12, 0.12, 0.12], [0.12, 0.12, 0.12], [0.06, 0.06, 0.0]]
    return image, sizes, labels, scores, homography.astype(np.float32)


def build():
    """The net for evaluation and a pair of images."""
    net = SuperPoint()
    net.set_train(False)
    return net, tuple(Tensor(array) for array in example_pair())
