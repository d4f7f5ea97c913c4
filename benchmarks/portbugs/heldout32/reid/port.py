"""Person re-identification with IBN-ResNet, stripes and re-ranking in MindSpore: the correct port."""

from __future__ import annotations

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

RGB_MEAN = [0.485, 0.456, 0.406]
RGB_STD = [0.229, 0.224, 0.225]

FAR = 1e9


def channel_constant(values):
    return Tensor(np.array(values, np.float32).reshape(1, -1, 1, 1))


def unit(x, axis):
    """Rows of length one."""
    return x / ops.clamp(ops.sqrt((x * x).sum(axis=axis, keepdims=True)), min=1e-12)


def equal_pairs(ids):
    """1.0 where two samples have the same id, (batch, batch)."""
    return (ids.expand_dims(1) == ids.expand_dims(0)).astype(ms.float32)


def rows_below(limit, count):
    """(batch, count): 1.0 for the rows before the limit of each sample."""
    return (ops.arange(count).expand_dims(0) < limit.expand_dims(1)).astype(ms.float32)


class MixedNorm(nn.Cell):
    """The first channels are normalised per image, the others with the running statistics."""

    def __init__(self, channels):
        super().__init__()
        self.half = channels // 2
        # nn.InstanceNorm2d has no CPU kernel, one group per channel is the same
        self.inst = nn.GroupNorm(self.half, self.half, eps=1e-5)
        self.batch = nn.BatchNorm2d(channels - self.half)

    def construct(self, x):
        inst = self.inst(x[:, : self.half])
        batch = self.batch(x[:, self.half :])
        return ops.cat((inst, batch), axis=1)


class ResidualUnit(nn.Cell):
    """1x1, 3x3, 1x1 with a shortcut."""

    def __init__(self, in_channels, channels, stride, mixed):
        super().__init__()
        out_channels = channels * 4
        self.conv1 = nn.Conv2d(in_channels, channels, 1)
        self.norm1 = MixedNorm(channels) if mixed else nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride=stride, pad_mode="pad", padding=1)
        self.norm2 = nn.BatchNorm2d(channels)
        self.conv3 = nn.Conv2d(channels, out_channels, 1)
        self.norm3 = nn.BatchNorm2d(out_channels)
        self.strided = stride > 1
        if self.strided:
            # "same" leaves the padding out of the average, as ceil_mode does
            self.shortcut_pool = nn.AvgPool2d(kernel_size=2, stride=stride, pad_mode="same")
        self.projected = self.strided or in_channels != out_channels
        if self.projected:
            self.shortcut = nn.SequentialCell([
                nn.Conv2d(in_channels, out_channels, 1),
                nn.BatchNorm2d(out_channels),
            ])

    def construct(self, x):
        y = ops.relu(self.norm1(self.conv1(x)))
        y = ops.relu(self.norm2(self.conv2(y)))
        y = self.norm3(self.conv3(y))
        if self.strided:
            x = self.shortcut_pool(x)
        if self.projected:
            x = self.shortcut(x)
        return ops.relu(y + x)


class Backbone(nn.Cell):
    """Stem and four stages; (batch, 3, h, w) -> (batch, 128, h / 16, w / 16)."""

    def __init__(self, widths=(8, 16, 24, 32), units=(2, 2, 2, 2), strides=(1, 2, 2, 1),
                 mixed=(True, True, True, False)):
        super().__init__()
        self.stem = nn.SequentialCell([
            nn.Conv2d(3, 16, 7, stride=2, pad_mode="pad", padding=3),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, pad_mode="pad", padding=1),
        ])
        stages, channels = [], 16
        for width, count, stride, mix in zip(widths, units, strides, mixed):
            cells = []
            for number in range(count):
                cells.append(ResidualUnit(channels, width, stride if number == 0 else 1, mix))
                channels = width * 4
            stages.append(nn.SequentialCell(cells))
        self.stages = nn.SequentialCell(stages)
        self.channels = channels

    def construct(self, x):
        return self.stages(self.stem(x))


class PersonPooling(nn.Cell):
    """Generalised means of the visible rows: of the whole map, and of overlapping horizontal stripes."""

    def __init__(self, stripes, p=3.0, eps=1e-6):
        super().__init__()
        self.stripes = stripes
        self.eps = eps
        self.p = Parameter(Tensor(np.full((1,), p, np.float32)), name="p")
        self.stripe_p = Parameter(Tensor(np.full((stripes,), p, np.float32)), name="stripe_p")

    def mean_power(self, x, rows, p):
        """Mean of x ** p over the rows with weight one, (batch, channels)."""
        batch, height = rows.shape
        x = ops.pow(ops.clamp(x, min=self.eps), p) * rows.reshape(batch, 1, height, 1)
        cells = rows.sum(axis=1, keepdims=True) * x.shape[3]
        return x.sum(axis=(2, 3)) / ops.clamp(cells, min=1.0)

    def construct(self, x, rows):
        height = x.shape[2]
        whole = ops.pow(self.mean_power(x, rows, self.p), 1.0 / self.p)
        pooled, seen = [], []
        for i in range(self.stripes):
            top = i * height // self.stripes
            bottom = -(-(i + 1) * height // self.stripes)
            p = self.stripe_p[i]
            mean = self.mean_power(x[:, :, top:bottom], rows[:, top:bottom], p)
            pooled.append(ops.pow(ops.clamp(mean, min=self.eps), 1.0 / p))
            seen.append(rows[:, top:bottom].mean(axis=1))
        return whole, pooled, ops.stack(seen, axis=1)


class StripeHead(nn.Cell):
    """Reduction (a 1x1 convolution of a single place is a dense layer) and classifier of one stripe."""

    def __init__(self, in_channels, width, classes):
        super().__init__()
        self.reduce = nn.Dense(in_channels, width, has_bias=False)
        self.norm = nn.BatchNorm1d(width)
        self.act = nn.LeakyReLU(alpha=0.1)
        self.classifier = nn.Dense(width, classes)

    def construct(self, x):
        x = self.act(self.norm(self.reduce(x)))
        return x, self.classifier(x)


class SmoothedCrossEntropy(nn.Cell):
    """The soft targets come from a table with one row for each class."""

    def __init__(self, classes, smooth):
        super().__init__()
        table = np.full((classes, classes), smooth / classes, np.float32)
        table += (1.0 - smooth) * np.eye(classes, dtype=np.float32)
        self.table = Tensor(table)

    def construct(self, logits, target):
        """The loss of each sample."""
        return -(ops.gather(self.table, target, 0) * ops.log_softmax(logits, axis=1)).sum(axis=1)


class HardTriplet(nn.Cell):
    """Triplet loss with the hardest positive and negative in the batch."""

    def __init__(self, margin):
        super().__init__()
        self.margin = margin

    def construct(self, x, pids, usable):
        square = (x * x).sum(axis=1)
        dist = square.expand_dims(1) + square.expand_dims(0) - 2 * ops.matmul(x, x.T)
        dist = ops.sqrt(ops.clamp(dist, min=1e-12))
        pairs = usable.expand_dims(1) * usable.expand_dims(0)
        same = equal_pairs(pids)
        positive = same * (1 - ops.eye(x.shape[0], x.shape[0], ms.float32)) * pairs
        negative = (1 - same) * pairs
        furthest = (dist * positive).max(axis=1)
        nearest = (dist + FAR * (1 - negative)).min(axis=1)
        anchors = positive.max(axis=1) * negative.max(axis=1)
        count = anchors.sum()
        loss = (ops.relu(furthest - nearest + self.margin) * anchors).sum() / count
        right = ((nearest > furthest).astype(ms.float32) * anchors).sum() / count
        return loss, right


def moments(values, mask):
    """Mean and deviation of the masked values."""
    count = mask.sum()
    mean = (values * mask).sum() / count
    variance = (ops.square(values - mean) * mask).sum() / (count - 1)
    return mean, ops.sqrt(variance)


class CameraDistance(nn.Cell):
    """All distances in a batch, freed from the influence of the cameras."""

    def __init__(self, cameras, width, stripe_share=0.4, camera_share=0.06, prior=2.0, strength=0.7):
        super().__init__()
        self.cameras = cameras
        self.stripe_share = stripe_share
        self.camera_share = camera_share
        self.prior = prior
        self.strength = strength
        self.embed = nn.Embedding(cameras, width)

    def centre(self, x, member):
        """member is (cameras, batch), one where the sample is of the camera."""
        count = member.sum(axis=1, keepdims=True)
        means = ops.matmul(member, x) / ops.clamp(count, min=1.0)
        offset = (means - x.mean(axis=0, keep_dims=True)) * (count / (count + self.prior))
        return unit(x - ops.matmul(member.T, offset), axis=1)

    def stripe_distance(self, stripes, seen):
        stripes = unit(stripes, axis=2).transpose(1, 0, 2)
        cosine = ops.matmul(stripes, stripes.swapaxes(1, 2))
        seen = seen.T
        both = seen.expand_dims(2) * seen.expand_dims(1)
        return ((1 - cosine) * both).sum(axis=0) / ops.clamp(both.sum(axis=0), min=1e-6)

    def calibrate(self, dist, member, others):
        mean, deviation = moments(dist, others)
        result = dist
        for a in range(self.cameras):
            for b in range(self.cameras):
                block = member[a].expand_dims(1) * member[b].expand_dims(0) * others
                if float(block.sum()) < 3:
                    continue
                block_mean, block_deviation = moments(dist, block)
                moved = (dist - block_mean) / (block_deviation + 1e-6) * deviation + mean
                result = result + block * self.strength * (moved - dist)
        return result

    def construct(self, x, stripes, seen, cams):
        n = x.shape[0]
        member = (ops.arange(self.cameras).expand_dims(1) == cams.expand_dims(0)).astype(ms.float32)
        others = 1 - ops.eye(n, n, ms.float32)
        x = self.centre(x, member)
        dist = 2 - 2 * ops.matmul(x, x.T)
        dist = (1 - self.stripe_share) * dist + self.stripe_share * self.stripe_distance(stripes, seen)
        dist = self.calibrate(dist, member, others)
        views = unit(self.embed(cams), axis=1)
        dist = dist - self.camera_share * (1 - ops.matmul(views, views.T))
        return ops.relu(dist) * others


class ReciprocalRerank(nn.Cell):
    """k-reciprocal encoding with sets as rows of zeros and ones."""

    def __init__(self, k1=7, k2=3, mix=0.3):
        super().__init__()
        self.k1 = k1
        self.k2 = k2
        self.mix = mix

    def mutual(self, order, k):
        """(n, n): 1.0 where both are among the nearest k of the other, not counting themselves."""
        n = order.shape[0]
        near = ops.one_hot(order[:, : k + 1], n, Tensor(1.0, ms.float32), Tensor(0.0, ms.float32)).sum(axis=1)
        return near * near.T

    def construct(self, dist, queries):
        n = dist.shape[0]
        dist = (dist / dist.max(axis=0, keepdims=True)).T
        order = ops.sort(dist, axis=1)[1]

        sets = self.mutual(order, self.k1)
        half_sets = self.mutual(order, int(np.around(self.k1 / 2)))
        size = half_sets.sum(axis=1)
        overlap = ops.matmul(sets, half_sets.T)
        joined = sets * (3 * overlap > 2 * size.expand_dims(0)).astype(ms.float32)
        expanded = ((sets + ops.matmul(joined, half_sets)) > 0).astype(ms.float32)
        code = ops.exp(-dist) * expanded
        code = code / code.sum(axis=1, keepdims=True)

        if self.k2 > 1:
            blurred = ops.zeros_like(code)
            for i in range(n):
                blurred[i] = code[order[i, : self.k2]].mean(axis=0)
            code = blurred

        shared = ops.minimum(code[:queries].expand_dims(1), code.expand_dims(0)).sum(axis=2)
        jaccard = 1 - shared / (2 - shared)
        final = (1 - self.mix) * jaccard + self.mix * dist[:queries]
        return final[:, queries:]


def retrieval_scores(dist, pids, cams, max_rank):
    """AP, INP and matches up to max_rank of all queries at once; the same person in the same camera is passed over."""
    queries = dist.shape[0]
    order = ops.sort(dist, axis=1)[1]
    same = (pids[queries:][order] == pids[:queries].expand_dims(1)).astype(ms.float32)
    kept = 1 - same * (cams[queries:][order] == cams[:queries].expand_dims(1)).astype(ms.float32)
    hits = same * kept
    place = ops.cumsum(kept, axis=1)
    found = ops.cumsum(hits, axis=1)
    total = hits.sum(axis=1)
    ap = (found / ops.clamp(place, min=1.0) * hits).sum(axis=1) / ops.clamp(total, min=1.0)
    inp = total / ops.clamp((place * hits).max(axis=1), min=1.0)
    first = (place + FAR * (1 - hits)).min(axis=1, keepdims=True)
    cmc = (first <= ops.arange(1, max_rank + 1).expand_dims(0)).astype(ms.float32)
    return ap, inp, cmc


class PersonRetrieval(nn.Cell):
    """Losses of a batch, and its first samples looked for among the rest."""

    def __init__(self, classes=10, stripes=3, stripe_width=24, cameras=3, camera_width=6):
        super().__init__()
        self.mean = channel_constant(RGB_MEAN)
        self.std = channel_constant(RGB_STD)
        self.backbone = Backbone()
        channels = self.backbone.channels
        self.pooling = PersonPooling(stripes)
        self.neck = nn.BatchNorm1d(channels)
        self.classifier = nn.Dense(channels, classes, has_bias=False)
        self.heads = nn.CellList([StripeHead(channels, stripe_width, classes) for _ in range(stripes)])
        self.smooth_ce = SmoothedCrossEntropy(classes, 0.1)
        self.triplet = HardTriplet(0.3)
        self.distance = CameraDistance(cameras, camera_width)
        self.rerank = ReciprocalRerank()

    def extract(self, images, heights):
        maps = self.backbone(images)
        rows = rows_below((heights + 15) // 16, maps.shape[2])
        whole, pooled, seen = self.pooling(maps, rows)
        features, logits = [], []
        for head, stripe in zip(self.heads, pooled):
            feature, logit = head(stripe)
            features.append(feature)
            logits.append(logit)
        return whole, self.neck(whole), ops.stack(features, axis=1), ops.stack(logits, axis=1), seen

    def criterion(self, whole, logits, features, stripe_logits, seen, pids):
        stripes = seen.shape[1]
        id_loss = self.smooth_ce(logits, pids).mean()
        triplet_loss, right = self.triplet(whole, pids, ops.ones_like(seen[:, 0]))
        for i in range(stripes):
            weight = seen[:, i]
            each = self.smooth_ce(stripe_logits[:, i], pids)
            id_loss += 0.5 / stripes * (each * weight).sum() / ops.clamp(weight.sum(), min=1.0)
            usable = (weight >= 0.5).astype(ms.float32)
            triplet_loss += 0.5 / stripes * self.triplet(features[:, i], pids, usable)[0]
        return id_loss, triplet_loss, right

    def construct(self, images, heights, pids, cams, num_query):
        batch, _, height = images.shape[:3]
        images = (images - self.mean) / self.std
        images = images * rows_below(heights, height).reshape(batch, 1, height, 1)

        whole, neck, features, stripe_logits, seen = self.extract(images, heights)
        logits = self.classifier(neck)
        id_loss, triplet_loss, right = self.criterion(whole, logits, features, stripe_logits, seen, pids)

        mirrored = self.extract(ops.flip(images, (3,)), heights)
        embedding = unit(neck + mirrored[1], axis=1)
        dist = self.distance(embedding, 0.5 * (features + mirrored[2]), seen, cams)
        reranked = self.rerank(dist, num_query)
        ap, inp, cmc = retrieval_scores(reranked, pids, cams, 5)
        return {
            "logits": logits,
            "part_logits": stripe_logits,
            "id_loss": id_loss,
            "triplet_loss": triplet_loss,
            "loss": id_loss + 1.5 * triplet_loss,
            "precision": right,
            "embedding": embedding,
            "dist": dist[:num_query, num_query:],
            "reranked": reranked,
            "ap": ap,
            "inp": inp,
            "cmc": cmc,
        }


def build():
    """The net alone, for evaluation: weights and inputs come from the reference's dump."""
    net = PersonRetrieval()
    net.set_train(False)
    return net
