"""Self-supervised interest points: a SuperPoint-like detector and descriptor on homographic pairs, with losses and a matcher.

The network sees an image and a homographically warped copy of it. Pseudo labels (points with a confidence, as homographic
adaptation exports them) supervise the detector in both views, the known homography supervises the descriptors. The same forward
pass also extracts sparse keypoints from both views and matches them.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

# ITU-R 601 luma, and the statistics of the grey images of the training set
LUMA = (0.299, 0.587, 0.114)
GRAY_MEAN, GRAY_STD = 0.449, 0.226


class Config:
    cell = 8
    widths = (16, 24, 32, 48)
    head_width = 48
    descriptor_dim = 40
    # extraction
    nms_radius = 3
    nms_iterations = 2
    border = 4
    max_keypoints = 40
    detection_threshold = 0.08
    refine_radius = 2
    # supervision
    label_threshold = 0.3
    erosion_radius = 3
    positive_margin = 1.0
    negative_margin = 0.2
    lambda_d = 250.0
    lambda_loss = 0.02
    # matching
    ratio = 0.9


def pixel_homography(homography, rows, cols):
    """A homography of coordinates in [-1, 1] as one of pixels, (x, y) with the origin in the centre of the first pixel."""
    half_x, half_y = (cols - 1) / 2, (rows - 1) / 2
    to_pixels = homography.new_tensor([[half_x, 0.0, half_x], [0.0, half_y, half_y], [0.0, 0.0, 1.0]])
    return to_pixels @ homography @ torch.linalg.inv(to_pixels)


def warp_points(points, homography):
    """points is (batch, n, 2) or (n, 2) as (x, y), homography (batch, 3, 3)."""
    if points.ndim == 2:
        points = points.unsqueeze(0).expand(homography.shape[0], -1, -1)
    homogeneous = torch.cat((points, torch.ones_like(points[..., :1])), dim=-1)
    warped = homogeneous @ homography.transpose(1, 2)
    return warped[..., :2] / warped[..., 2:]


def pixel_grid(rows, cols, device=None):
    """The coordinates (x, y) of all pixels in reading order: (rows * cols, 2)."""
    y, x = torch.meshgrid(torch.arange(rows, device=device), torch.arange(cols, device=device), indexing="ij")
    return torch.stack((x, y), dim=-1).reshape(-1, 2).float()


def warp_image(image, inverse, mode="bilinear"):
    """Each pixel of the result looks up its place through the inverse homography, in [-1, 1]; zeros come from outside."""
    b, _, rows, cols = image.shape
    grid = pixel_grid(rows, cols, image.device) * 2 / image.new_tensor([cols - 1, rows - 1]) - 1
    source = warp_points(grid, inverse)
    return F.grid_sample(image, source.reshape(b, rows, cols, 2), mode=mode, padding_mode="zeros", align_corners=True)


def erode(mask, radius):
    """Shrink a mask of zeros and ones; what lies beyond the image does not count."""
    return 1 - F.max_pool2d(1 - mask, 2 * radius + 1, stride=1, padding=radius)


def size_mask(sizes, rows, cols):
    """(batch, 1, rows, cols), one inside of the true size (height, width) of each padded image."""
    y = torch.arange(rows, device=sizes.device)[None, :, None] < sizes[:, 0, None, None]
    x = torch.arange(cols, device=sizes.device)[None, None, :] < sizes[:, 1, None, None]
    return (y & x).unsqueeze(1).float()


def space_to_depth(x, cell):
    """(batch, rows, cols) -> (batch, cell * cell, rows / cell, cols / cell)."""
    b, rows, cols = x.shape
    x = x.reshape(b, rows // cell, cell, cols // cell, cell)
    return x.permute(0, 2, 4, 1, 3).reshape(b, cell * cell, rows // cell, cols // cell)


def cell_mask(mask, cell):
    """A cell counts if all of its pixels do: (batch, rows / cell, cols / cell)."""
    return space_to_depth(mask[:, 0], cell).prod(dim=1)


def rasterise(points, scores, mask):
    """Draw points (x, y) with their confidence into a map (batch, rows, cols); the most confident wins a pixel."""
    b, _, rows, cols = mask.shape
    x, y = points.round().long().unbind(dim=-1)
    inside = (x >= 0) & (x < cols) & (y >= 0) & (y < rows)
    index = torch.where(inside, y * cols + x, torch.zeros_like(x))
    scores = torch.where(inside, scores, torch.zeros_like(scores))
    heat = scores.new_zeros(b, rows * cols).scatter_reduce(1, index, scores, reduce="amax")
    return heat.reshape(b, rows, cols) * mask[:, 0]


class ConvBlock(nn.Module):
    """Convolution, batch norm, ReLU; reflecting at the border, where zeros would look like edges."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, 3, padding=1, padding_mode="reflect", bias=False)
        self.bn = nn.BatchNorm2d(out_channels, eps=1e-3)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.relu(self.bn(self.conv(x)))


class Encoder(nn.Module):
    """VGG-like: two convolutions at each of four scales, overlapping max pooling in between."""

    def __init__(self, widths):
        super().__init__()
        self.stages = nn.ModuleList()
        previous = 1
        for width in widths:
            self.stages.append(nn.Sequential(ConvBlock(previous, width), ConvBlock(width, width)))
            previous = width
        self.pools = nn.ModuleList(nn.MaxPool2d(3, stride=2, padding=1) for _ in widths[1:])

    def forward(self, x):
        for index, stage in enumerate(self.stages):
            x = stage(x)
            if index < len(self.pools):
                x = self.pools[index](x)
        return x


class DetectorHead(nn.Module):
    """For each cell the chances of its pixels and, last, of no point at all (the dustbin)."""

    def __init__(self, in_channels, width, cell):
        super().__init__()
        self.cell = cell
        self.conv_a = nn.Conv2d(in_channels, width, 3, padding=1)
        self.bn_a = nn.BatchNorm2d(width, eps=1e-3)
        self.relu = nn.ReLU(inplace=True)
        self.conv_b = nn.Conv2d(width, cell * cell + 1, 1)
        self.softmax = nn.Softmax(dim=1)

    def forward(self, x):
        logits = self.conv_b(self.relu(self.bn_a(self.conv_a(x))))
        prob = self.softmax(logits)[:, :-1]
        b, _, h, w = prob.shape
        prob = prob.permute(0, 2, 3, 1).reshape(b, h, w, self.cell, self.cell).transpose(2, 3)
        prob = prob.reshape(b, h * self.cell, w * self.cell)
        return logits, prob


class DescriptorHead(nn.Module):
    """Coarse descriptors of unit length, one for each cell."""

    def __init__(self, in_channels, width, dim):
        super().__init__()
        self.conv_a = nn.Conv2d(in_channels, width, 3, padding=2, dilation=2)
        self.bn_a = nn.BatchNorm2d(width, eps=1e-3)
        self.act = nn.GELU()
        self.conv_b = nn.Conv2d(width, dim, 1)

    def forward(self, x):
        x = self.conv_b(self.act(self.bn_a(self.conv_a(x))))
        return F.normalize(x, p=2, dim=1)


class KeypointExtractor(nn.Module):
    """From a dense map of chances to a fixed number of keypoints, padded with zeros where there are fewer."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.max_pool = nn.MaxPool2d(2 * cfg.nms_radius + 1, stride=1, padding=cfg.nms_radius)

    def suppress(self, scores):
        """Keep local maxima; a maximum that a higher one hid may come back once that one's surroundings are cleared."""
        zeros = torch.zeros_like(scores)
        keep = scores == self.max_pool(scores)
        for _ in range(self.cfg.nms_iterations):
            hidden = self.max_pool(keep.float()) > 0
            rest = torch.where(hidden, zeros, scores)
            again = rest == self.max_pool(rest)
            keep = keep | (again & ~hidden)
        return torch.where(keep, scores, zeros)

    def remove_borders(self, scores, sizes):
        """Nothing within the border of each image's own frame."""
        border = self.cfg.border
        rows, cols = scores.shape[-2:]
        y = torch.arange(rows, device=scores.device)[None, :]
        x = torch.arange(cols, device=scores.device)[None, :]
        good_y = (y >= border) & (y < sizes[:, :1] - border)
        good_x = (x >= border) & (x < sizes[:, 1:] - border)
        return scores * (good_y[:, :, None] & good_x[:, None, :]).to(scores.dtype)

    def refine(self, prob, index):
        """Offsets (x, y) of the centre of mass of the patch around each keypoint."""
        radius = self.cfg.refine_radius
        patches = F.unfold(prob.unsqueeze(1), 2 * radius + 1, padding=radius)
        patches = patches.gather(2, index[:, None, :].expand(-1, patches.shape[1], -1))
        steps = torch.arange(-radius, radius + 1, dtype=prob.dtype, device=prob.device)
        dy, dx = torch.meshgrid(steps, steps, indexing="ij")
        offsets = torch.stack((dx.reshape(-1), dy.reshape(-1)), dim=-1)
        weights = patches / patches.sum(dim=1, keepdim=True).clamp(min=1e-8)
        return weights.transpose(1, 2) @ offsets

    def forward(self, prob, mask, sizes):
        cols = prob.shape[-1]
        scores = self.remove_borders(self.suppress(prob.unsqueeze(1) * mask).squeeze(1), sizes)
        scores, index = scores.flatten(1).topk(self.cfg.max_keypoints, dim=1)
        valid = scores > self.cfg.detection_threshold
        keypoints = torch.stack((index % cols, torch.div(index, cols, rounding_mode="floor")), dim=-1).to(prob.dtype)
        keypoints = keypoints + self.refine(prob, index)
        return keypoints * valid.unsqueeze(-1), scores * valid, valid


def sample_descriptors(keypoints, descriptors, cell):
    """Descriptors at keypoints (batch, n, 2) by bilinear sampling of the coarse map, of unit length again: (batch, n, dim)."""
    b, _, h, w = descriptors.shape
    keypoints = keypoints - cell / 2 + 0.5
    keypoints = keypoints / keypoints.new_tensor([w * cell - cell / 2 - 0.5, h * cell - cell / 2 - 0.5]) * 2 - 1
    sampled = F.grid_sample(descriptors, keypoints.unsqueeze(1), mode="bilinear", align_corners=True)
    return F.normalize(sampled.squeeze(2), p=2, dim=1).transpose(1, 2)


class DetectorLoss(nn.Module):
    """Cross entropy over the pixels of each cell and the dustbin, averaged over the cells that the mask allows."""

    def __init__(self, cell, label_threshold):
        super().__init__()
        self.cell = cell
        self.label_threshold = label_threshold
        self.cross_entropy = nn.CrossEntropyLoss(reduction="none")

    def forward(self, logits, heat, mask):
        labels = space_to_depth(heat, self.cell)
        target = F.pad(labels, (0, 0, 0, 0, 0, 1), value=self.label_threshold).argmax(dim=1)
        valid = cell_mask(mask, self.cell)
        loss = self.cross_entropy(logits, target)
        return (loss * valid).sum() / valid.sum().clamp(min=1.0)


class DescriptorLoss(nn.Module):
    """Hinge loss over all pairs of cells of the two views."""

    def __init__(self, cfg):
        super().__init__()
        self.cell = cfg.cell
        self.positive_margin, self.negative_margin, self.lambda_d = cfg.positive_margin, cfg.negative_margin, cfg.lambda_d
        self._centres = {}

    def centres(self, h, w, device):
        """The middles of the cells in pixels, kept for each size of the map."""
        if (h, w) not in self._centres:
            self._centres[h, w] = pixel_grid(h, w, device) * self.cell + self.cell // 2
        return self._centres[h, w]

    def forward(self, first, second, homography, second_mask):
        b, _, h, w = first.shape
        centres = self.centres(h, w, first.device)
        warped = warp_points(centres, homography)
        distance = torch.norm(warped[:, :, None, :] - centres[None, None, :, :], dim=-1)
        same = (distance <= self.cell - 0.5).to(first.dtype)

        product = F.relu(torch.einsum("bdn,bdm->bnm", first.flatten(2), second.flatten(2)))
        # a cell should be like few others: normalise over the second view's cells, then over the first's
        product = F.normalize(product, p=2, dim=2)
        product = F.normalize(product, p=2, dim=1)

        positive = F.relu(self.positive_margin - product)
        negative = F.relu(product - self.negative_margin)
        loss = self.lambda_d * same * positive + (1 - same) * negative

        valid = cell_mask(second_mask, self.cell).reshape(b, 1, h * w)
        return (loss * valid).sum() / (valid.sum() * h * w).clamp(min=1.0)


class MutualMatcher(nn.Module):
    """Mutual nearest neighbours that pass Lowe's ratio test, with a dual softmax as their confidence."""

    def __init__(self, ratio):
        super().__init__()
        self.ratio = ratio
        self.log_scale = nn.Parameter(torch.zeros(1))

    def forward(self, first, second, first_valid, second_valid):
        similarity = first @ second.transpose(1, 2)
        pairs = first_valid[:, :, None] & second_valid[:, None, :]
        similarity = similarity.masked_fill(~pairs, -1e4)

        logits = similarity * self.log_scale.exp()
        confidence = logits.softmax(dim=1) * logits.softmax(dim=2)

        best, nearest = similarity.topk(2, dim=2)
        squared = 2 - 2 * best  # distances of unit vectors
        distinct = squared[..., 0] <= self.ratio**2 * squared[..., 1]
        nearest = nearest[..., 0]
        back = similarity.argmax(dim=1).gather(1, nearest)
        mutual = back == torch.arange(nearest.shape[1], device=nearest.device)

        matched = distinct & mutual & first_valid
        confidence = confidence.gather(2, nearest.unsqueeze(-1)).squeeze(-1)
        return torch.where(matched, nearest, -torch.ones_like(nearest)), confidence * matched


class SuperPointPair(nn.Module):
    """Detector, descriptor, their losses and the matcher on an image and its homographic copy."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.encoder = Encoder(cfg.widths)
        self.detector = DetectorHead(cfg.widths[-1], cfg.head_width, cfg.cell)
        self.descriptor = DescriptorHead(cfg.widths[-1], cfg.head_width, cfg.descriptor_dim)
        self.extractor = KeypointExtractor(cfg)
        self.detector_loss = DetectorLoss(cfg.cell, cfg.label_threshold)
        self.descriptor_loss = DescriptorLoss(cfg)
        self.matcher = MutualMatcher(cfg.ratio)

    def dense(self, gray):
        """Logits of the cells, chances of the pixels, coarse descriptors."""
        features = self.encoder(gray)
        logits, prob = self.detector(features)
        return logits, prob, self.descriptor(features)

    def forward(self, image, sizes, points, point_scores, homography):
        """image (batch, 3, rows, cols) in [0, 1]; sizes (batch, 2), the true height and width; points (batch, n, 2) as (x, y)
        with point_scores (batch, n), zero for padding; homography (batch, 3, 3) from this view to the other, in [-1, 1]."""
        cfg = self.cfg
        rows, cols = image.shape[-2:]
        gray = (image * image.new_tensor(LUMA)[None, :, None, None]).sum(dim=1, keepdim=True)
        mask = size_mask(sizes, rows, cols)
        gray = (gray - GRAY_MEAN) / GRAY_STD * mask

        # the other view
        inverse = torch.linalg.inv(homography)
        homography = pixel_homography(homography, rows, cols)
        warped = warp_image(gray, inverse)
        warped_mask = erode(warp_image(mask, inverse, mode="nearest"), cfg.erosion_radius)
        heat = rasterise(points, point_scores, mask)
        warped_heat = rasterise(warp_points(points, homography), point_scores, warped_mask)

        logits, prob, coarse = self.dense(gray)
        warped_logits, warped_prob, warped_coarse = self.dense(warped)

        loss_first = self.detector_loss(logits, heat, mask)
        loss_second = self.detector_loss(warped_logits, warped_heat, warped_mask)
        loss_pairs = self.descriptor_loss(coarse, warped_coarse, homography, warped_mask)
        loss = loss_first + loss_second + cfg.lambda_loss * loss_pairs

        full = torch.tensor([[rows, cols]], device=sizes.device).expand_as(sizes)
        keypoints, scores, valid = self.extractor(prob, mask, sizes)
        warped_keypoints, warped_scores, warped_valid = self.extractor(warped_prob, warped_mask, full)
        descriptors = sample_descriptors(keypoints, coarse, cfg.cell) * valid.unsqueeze(-1)
        warped_descriptors = sample_descriptors(warped_keypoints, warped_coarse, cfg.cell) * warped_valid.unsqueeze(-1)

        matches, confidence = self.matcher(descriptors, warped_descriptors, valid, warped_valid)
        return (
            loss, loss_first, loss_second, loss_pairs, keypoints, scores, descriptors, warped_keypoints, warped_scores,
            warped_descriptors, matches, confidence,
        )


def trained_like(net):
    """Values as after training, not as after the initialisation."""
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.7, 1.3)
            nn.init.normal_(module.bias, std=0.2)
            nn.init.normal_(module.running_mean, std=0.2)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
        elif isinstance(module, nn.Conv2d):
            nn.init.normal_(module.weight, std=(2 / module.weight[0].numel()) ** 0.5)
            if module.in_channels > 1:
                module.weight.data -= 0.8 * module.weight.data.mean(dim=(1, 2, 3), keepdim=True)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.1)
    net.detector.conv_b.weight.data *= 2.5
    net.detector.conv_b.bias.data[-1] += 4.0  # most cells have no point
    net.matcher.log_scale.data.fill_(3.0)
    return net


def make_inputs(rows=64, cols=80, points=30):
    """Two pictures of blocks and noise, of which the second is smaller and padded, with labels and homographies."""
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
    """The net with the same weights on every run, and its inputs."""
    torch.manual_seed(1712)
    net = trained_like(SuperPointPair(Config()))
    return net.eval(), tuple(torch.from_numpy(array) for array in make_inputs())
