"""ECAPA-TDNN speaker verification in MindSpore, from the waveforms to the error rates: the correct port."""

from __future__ import annotations

import math

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

SAMPLE_RATE = 16000
WIN, HOP, NFFT = 400, 160, 512
PREEMPH = 0.97
LOG_FLOOR = float(np.finfo(np.float32).eps)
# how many utterances each training speaker has
SPEAKER_COUNTS = [12, 40, 7, 160, 25, 90, 18, 60, 33, 10]


def mel(freq):
    return 1127.0 * np.log(1.0 + np.asarray(freq, np.float64) / 700.0)


def mel_matrix(n_mels, low, high):
    """(bins, n_mels) triangles like Kaldi's: the corners and the slopes both live on the mel axis."""
    corners = np.linspace(mel(low), mel(high), n_mels + 2)
    bins = mel(np.arange(NFFT // 2 + 1) * SAMPLE_RATE / NFFT)
    matrix = np.zeros((bins.size, n_mels), np.float32)
    for m in range(n_mels):
        left, center, right = corners[m : m + 3]
        rising = (bins - left) / (center - left)
        falling = (right - bins) / (right - center)
        matrix[:, m] = np.maximum(0.0, np.minimum(rising, falling))
    return matrix


def dft_matrices():
    """Real and imaginary part of the transform of WIN samples, padded with zeros to NFFT: (WIN, bins) each."""
    angle = 2.0 * np.pi / NFFT * (np.outer(np.arange(WIN), np.arange(NFFT // 2 + 1)) % NFFT)
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def unit(x, eps=1e-12):
    """Rows of length one."""
    return x / ops.clamp(ops.sqrt((x * x).sum(axis=-1, keepdims=True)), min=eps)


class LogMel(nn.Cell):
    """Waveforms (batch, samples) to normalised features (batch, mels, frames), mask (batch, 1, frames), counts."""

    def __init__(self, n_mels, low=20.0, high=7600.0):
        super().__init__()
        povey = (0.5 - 0.5 * np.cos(2.0 * np.pi * np.arange(WIN) / (WIN - 1))) ** 0.85
        self.window = Tensor(povey.astype(np.float32))
        real, imag = dft_matrices()
        self.real, self.imag = Tensor(real), Tensor(imag)
        self.mel = Tensor(mel_matrix(n_mels, low, high))

    def construct(self, waves, lengths):
        total = (waves.shape[1] - WIN) // HOP + 1
        place = np.arange(total)[:, None] * HOP + np.arange(WIN)[None, :]
        frames = ops.gather(waves, Tensor(place.astype(np.int32)), 1)
        frames = frames - frames.mean(axis=-1, keep_dims=True)
        first = frames[..., :1] * (1.0 - PREEMPH)
        rest = frames[..., 1:] - PREEMPH * frames[..., :-1]
        frames = ops.cat((first, rest), axis=-1) * self.window

        power = ops.square(ops.matmul(frames, self.real)) + ops.square(ops.matmul(frames, self.imag))
        feats = ops.log(ops.clamp(ops.matmul(power, self.mel), min=LOG_FLOOR)).swapaxes(1, 2)

        counts = (lengths.astype(ms.int32) - WIN) // HOP + 1
        mask = (ops.arange(total).reshape(1, 1, -1) < counts.reshape(-1, 1, 1)).astype(feats.dtype)
        mean = (feats * mask).sum(axis=2, keepdims=True) / mask.sum(axis=2, keepdims=True)
        feats = (feats - mean) * mask
        return feats, mask, counts


class ConvReluBn(nn.Cell):
    """The unit of everything here; the ends of the sequence are mirrored."""

    def __init__(self, in_channels, out_channels, kernel=1, dilation=1):
        super().__init__()
        side = (kernel - 1) // 2 * dilation
        self.pad = nn.Pad(paddings=((0, 0), (0, 0), (side, side)), mode="REFLECT") if side else None
        self.conv = nn.Conv1d(in_channels, out_channels, kernel, pad_mode="valid", dilation=dilation, has_bias=True)
        self.norm = nn.BatchNorm1d(out_channels)

    def construct(self, x):
        if self.pad is not None:
            x = self.pad(x)
        return self.norm(ops.relu(self.conv(x)))


class Se(nn.Cell):
    """Gates for the channels from their mean over time."""

    def __init__(self, channels, hidden):
        super().__init__()
        self.squeeze = nn.Dense(channels, hidden)
        self.excite = nn.Dense(hidden, channels)

    def construct(self, x, mask):
        mean = (x * mask).sum(axis=2) / mask.sum(axis=2)
        gate = ops.sigmoid(self.excite(ops.relu(self.squeeze(mean))))
        return x * gate.expand_dims(2)


class Stage(nn.Cell):
    """SE-Res2Net block."""

    def __init__(self, channels, groups, hidden, dilation):
        super().__init__()
        self.width = channels // groups
        self.groups = groups
        self.reduce = ConvReluBn(channels, channels)
        self.branches = nn.CellList([ConvReluBn(self.width, self.width, 3, dilation) for _ in range(groups - 1)])
        self.expand = ConvReluBn(channels, channels)
        self.se = Se(channels, hidden)

    def construct(self, x, mask):
        pieces = ops.split(self.reduce(x), self.width, axis=1)
        done = [pieces[0]]
        for branch, piece in zip(self.branches, pieces[1:]):
            if len(done) > 1:
                piece = piece + done[-1]
            done.append(branch(piece))
        y = self.expand(ops.cat(done, axis=1))
        return self.se(y, mask) + x


class AttentivePool(nn.Cell):
    """Mean and deviation over time, weighted for each channel by attention that knows the plain mean and deviation."""

    def __init__(self, channels, hidden):
        super().__init__()
        self.hidden = ConvReluBn(3 * channels, hidden)
        self.score = nn.Conv1d(hidden, channels, 1, pad_mode="valid", has_bias=True)

    def construct(self, x, mask):
        batch, channels, frames = x.shape
        share = mask / mask.sum(axis=2, keepdims=True)
        mean = (share * x).sum(axis=2, keepdims=True)
        var = (share * ops.square(x - mean)).sum(axis=2, keepdims=True)
        std = ops.sqrt(ops.clamp(var, min=1e-6))
        context = ops.cat((mean, std), axis=1)
        context = ops.cat((x, ops.broadcast_to(context, (batch, 2 * channels, frames))), axis=1)

        score = self.score(ops.tanh(self.hidden(context)))
        score = score + (1.0 - mask) * -1e9
        weight = ops.softmax(score, axis=2)
        mean = (weight * x).sum(axis=2, keepdims=True)
        var = (weight * ops.square(x - mean)).sum(axis=2, keepdims=True)
        std = ops.sqrt(ops.clamp(var, min=1e-6))
        return ops.cat((mean, std), axis=1).squeeze(2)


class Encoder(nn.Cell):
    """Features to embeddings."""

    def __init__(self, n_mels, channels, groups, se_hidden, fused, attn_hidden, embed, dilations=(2, 3, 4)):
        super().__init__()
        self.stem = ConvReluBn(n_mels, channels, 5)
        self.stages = nn.CellList([Stage(channels, groups, se_hidden, d) for d in dilations])
        self.fuse = ConvReluBn(len(dilations) * channels, fused)
        self.pool = AttentivePool(fused, attn_hidden)
        self.pool_norm = nn.BatchNorm1d(2 * fused)
        self.embed = nn.Dense(2 * fused, embed)
        self.embed_norm = nn.BatchNorm1d(embed)

    def construct(self, feats, mask):
        taken = [self.stem(feats)]
        for stage in self.stages:
            taken.append(stage(sum(taken), mask))
        fused = self.fuse(ops.cat(taken[1:], axis=1))
        pooled = self.pool_norm(self.pool(fused, mask))
        return self.embed_norm(self.embed(pooled))


class AamHead(nn.Cell):
    """AAM-softmax with K centres to a class, the margin of the class's size, and a penalty on its nearest rivals."""

    def __init__(self, embed, k=3, scale=30.0, margins=(0.15, 0.35), rivals=3, rival_margin=0.06):
        super().__init__()
        self.classes, self.k = len(SPEAKER_COUNTS), k
        self.scale = scale
        self.rivals = rivals
        self.rival_cos, self.rival_sin = math.cos(rival_margin), math.sin(rival_margin)
        self.centers = Parameter(Tensor(np.zeros((self.classes * k, embed), np.float32)), name="centers")
        rare = np.array(SPEAKER_COUNTS, np.float64) ** -0.25
        rare = (rare - rare.min()) / (rare.max() - rare.min())
        margin = margins[0] + (margins[1] - margins[0]) * rare
        self.cos_m = Tensor(np.cos(margin).astype(np.float32))
        self.sin_m = Tensor(np.sin(margin).astype(np.float32))
        self.limit = Tensor(np.cos(np.pi - margin).astype(np.float32))
        self.drop = Tensor((np.sin(np.pi - margin) * margin).astype(np.float32))
        self.loss = nn.CrossEntropyLoss(label_smoothing=0.1)

    def construct(self, embeddings, labels):
        similarity = ops.matmul(unit(embeddings), unit(self.centers).T)
        cos = similarity.reshape(-1, self.classes, self.k).max(axis=2)
        sin = ops.sqrt(ops.clamp(1.0 - cos * cos, min=1e-7))
        own = ops.one_hot(labels, self.classes) > 0

        # every class gets its own margin, only the label's column is kept
        with_margin = cos * self.cos_m - sin * self.sin_m
        with_margin = ops.where(cos > self.limit, with_margin, cos - self.drop)

        others = ops.masked_fill(cos, own, -2.0)
        last = ops.topk(others, self.rivals, dim=1)[0][:, -1:]
        near = others >= last
        penalised = cos * self.rival_cos + sin * self.rival_sin

        logits = ops.where(near, penalised, cos)
        logits = ops.where(own, with_margin, logits) * self.scale
        return logits, self.loss(logits, labels)


class SNormBackend(nn.Cell):
    """Cosine of models and tests, before and after adaptive s-norm."""

    def __init__(self, embed, speakers=18, per_speaker=3, top=8):
        super().__init__()
        self.speakers, self.per_speaker, self.top = speakers, per_speaker, top
        rows = np.zeros((speakers * per_speaker, embed), np.float32)
        self.cohort = Parameter(Tensor(rows), name="cohort", requires_grad=False)

    def impostors(self, center):
        rows = unit(self.cohort - center)
        return unit(rows.reshape(self.speakers, self.per_speaker, -1).mean(axis=1))

    def enrol(self, embeddings, index):
        """One row for each model: the direction of the mean of its utterances; index is filled up with -1."""
        models = []
        for i in range(index.shape[0]):
            own = [j for j in index[i].asnumpy().tolist() if j >= 0]
            models.append(embeddings[own].mean(axis=0))
        return unit(ops.stack(models))

    def normalise(self, score, side, impostors, axis):
        """Score (models, tests) relative to the side's best scores against the impostors."""
        against = ops.matmul(side, impostors.T)
        best = ops.topk(against, self.top, dim=1)[0]
        mean = best.mean(axis=1)
        std = best.std(axis=1, ddof=1)
        return (score - mean.expand_dims(axis)) / std.expand_dims(axis)

    def construct(self, embeddings, enroll_index, test_index):
        center = self.cohort.mean(axis=0)
        embeddings = unit(embeddings - center)
        impostors = self.impostors(center)
        models = self.enrol(embeddings, enroll_index)
        tests = ops.gather(embeddings, test_index, 0)
        cosine = ops.matmul(models, tests.T)
        z = self.normalise(cosine, models, impostors, 1)
        t = self.normalise(cosine, tests, impostors, 0)
        return cosine, (z + t) / 2


def error_rates(scores, targets, p_target=0.05, c_miss=1.0, c_fa=1.0):
    """EER with its threshold, and the normalised minimum of the detection cost."""
    scores, targets = scores.reshape(-1), targets.reshape(-1).astype(scores.dtype)
    ordered = ops.sort(scores)[0]
    cuts = ops.cat((ordered[:1] - 1.0, ordered))
    # a trial is rejected when its score is not above the cut
    rejected = (scores.expand_dims(0) <= cuts.expand_dims(1)).astype(scores.dtype)
    nontargets = 1.0 - targets
    miss = (rejected * targets).sum(axis=1) / targets.sum()
    fa = ((1.0 - rejected) * nontargets).sum(axis=1) / nontargets.sum()

    difference = miss - fa
    hi = int((difference < 0).sum())
    lo = hi - 1
    portion = difference[hi] / (difference[hi] - difference[lo])
    eer = miss[hi] + portion * (miss[lo] - miss[hi])
    threshold = cuts[hi] + portion * (cuts[lo] - cuts[hi])

    cost = c_miss * p_target * miss + c_fa * (1.0 - p_target) * fa
    best = cost.min() / min(c_miss * p_target, c_fa * (1.0 - p_target))
    return eer, threshold, best


class Verification(nn.Cell):
    """Everything from the waveforms to the error rates of the trials."""

    def __init__(self, n_mels=40, embed=24):
        super().__init__()
        self.features = LogMel(n_mels)
        self.encoder = Encoder(n_mels, channels=32, groups=4, se_hidden=12, fused=48, attn_hidden=16, embed=embed)
        self.head = AamHead(embed)
        self.backend = SNormBackend(embed)
        self.calibration = nn.Dense(3, 1)

    def quality(self, counts, enroll_index, test_index):
        """Log of the number of frames: of all utterances of a model, and of each test."""
        used = (enroll_index >= 0).astype(ms.int32)
        enrolled = (ops.gather(counts, ops.clamp(enroll_index, min=0), 0) * used).sum(axis=1)
        tested = ops.gather(counts, test_index, 0)
        return ops.log(enrolled.astype(ms.float32)), ops.log(tested.astype(ms.float32))

    def construct(self, waves, lengths, labels, enroll_index, test_index):
        labels, enroll_index, test_index = (i.astype(ms.int32) for i in (labels, enroll_index, test_index))
        feats, mask, counts = self.features(waves, lengths)
        embeddings = self.encoder(feats, mask)
        logits, loss = self.head(embeddings, labels)
        cosine, scores = self.backend(embeddings, enroll_index, test_index)

        enrolled, tested = self.quality(counts, enroll_index, test_index)
        enrolled = ops.broadcast_to(enrolled.expand_dims(1), scores.shape)
        tested = ops.broadcast_to(tested.expand_dims(0), scores.shape)
        llr = self.calibration(ops.stack((scores, enrolled, tested), axis=-1))[..., 0]

        model_speaker = ops.gather(labels, enroll_index[:, 0], 0)
        test_speaker = ops.gather(labels, test_index, 0)
        same = model_speaker.expand_dims(1) == test_speaker.expand_dims(0)
        eer, threshold, min_dcf = error_rates(llr, same)
        return embeddings, logits, loss, cosine, scores, llr, eer, threshold, min_dcf


def build():
    """The net alone, for evaluation: weights and inputs come from the reference's dump."""
    net = Verification()
    net.set_train(False)
    return net
