"""Speaker verification with ECAPA-TDNN, sub-centre AAM-softmax and adaptive s-norm, in PyTorch."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn


class Config:
    """The small recipe."""

    # features
    sample_rate = 16000
    frame_length = 400
    frame_shift = 160
    n_fft = 512
    n_mels = 40
    low_freq = 20.0
    high_freq = 7600.0
    preemphasis = 0.97
    # encoder
    channels = 32
    res2net_scale = 4
    dilations = (2, 3, 4)
    se_channels = 12
    mfa_channels = 48
    attention_channels = 16
    embed_dim = 24
    # classifier: utterances per training speaker, from which the margins come
    class_counts = (12, 40, 7, 160, 25, 90, 18, 60, 33, 10)
    sub_centers = 3
    scale = 30.0
    margin_range = (0.15, 0.35)
    margin_power = -0.25
    penalty_top_k = 3
    penalty_margin = 0.06
    label_smoothing = 0.1
    # scoring
    cohort_speakers = 18
    cohort_utterances = 3
    cohort_top_n = 8
    # detection cost
    p_target = 0.05
    c_miss = 1.0
    c_fa = 1.0


def hz_to_mel(freq):
    return 1127.0 * torch.log(1.0 + freq / 700.0)


def mel_banks(num_mels, n_fft, sample_rate, low_freq, high_freq):
    """Triangles of equal width on the mel scale with slopes that are straight in mel: (num_mels, n_fft // 2 + 1)."""
    low, high = hz_to_mel(torch.tensor([low_freq, high_freq], dtype=torch.float64))
    width = (high - low) / (num_mels + 1)
    left = low + torch.arange(num_mels, dtype=torch.float64).unsqueeze(1) * width
    center, right = left + width, left + 2.0 * width
    mel = hz_to_mel(sample_rate / n_fft * torch.arange(n_fft // 2 + 1, dtype=torch.float64)).unsqueeze(0)
    up = (mel - left) / (center - left)
    down = (right - mel) / (right - center)
    return torch.clamp(torch.minimum(up, down), min=0.0).float()


def length_mask(lengths, max_len):
    """(batch, max_len), true within the length."""
    return torch.arange(max_len, device=lengths.device)[None, :] < lengths[:, None]


class FilterBank(nn.Module):
    """Log mel energies of a framed waveform as Kaldi computes them (edges snipped, no dither)."""

    def __init__(self, cfg):
        super().__init__()
        self.frame_length, self.frame_shift, self.n_fft = cfg.frame_length, cfg.frame_shift, cfg.n_fft
        self.preemphasis = cfg.preemphasis
        self.floor = torch.finfo(torch.float32).eps
        window = torch.hann_window(cfg.frame_length, periodic=False, dtype=torch.float64).pow(0.85)
        self.register_buffer("window", window.float(), persistent=False)
        banks = mel_banks(cfg.n_mels, cfg.n_fft, cfg.sample_rate, cfg.low_freq, cfg.high_freq)
        self.register_buffer("banks", banks, persistent=False)

    def num_frames(self, lengths):
        return 1 + torch.div(lengths - self.frame_length, self.frame_shift, rounding_mode="floor")

    def forward(self, waves, lengths):
        frames = waves.unfold(1, self.frame_length, self.frame_shift)
        frames = frames - frames.mean(dim=2, keepdim=True)
        previous = torch.cat((frames[:, :, :1], frames[:, :, :-1]), dim=2)
        frames = (frames - self.preemphasis * previous) * self.window
        spectrum = torch.fft.rfft(frames, n=self.n_fft)
        power = spectrum.real.square() + spectrum.imag.square()
        energies = power @ self.banks.t()
        return energies.clamp(min=self.floor).log(), self.num_frames(lengths)


class SentenceMeanNorm(nn.Module):
    """Takes the mean over the valid frames from each channel; frames of padding become zero."""

    def forward(self, feats, mask):
        weight = mask.unsqueeze(2).to(feats.dtype)
        mean = (feats * weight).sum(dim=1, keepdim=True) / weight.sum(dim=1, keepdim=True)
        return (feats - mean) * weight


class TDNNBlock(nn.Module):
    """Convolution over time with reflection at the ends, ReLU, batch norm (in this order)."""

    def __init__(self, in_channels, out_channels, kernel_size, dilation=1):
        super().__init__()
        padding = dilation * (kernel_size - 1) // 2
        self.conv = nn.Conv1d(in_channels, out_channels, kernel_size, 1, padding, dilation, padding_mode="reflect")
        self.activation = nn.ReLU()
        self.norm = nn.BatchNorm1d(out_channels)

    def forward(self, x):
        return self.norm(self.activation(self.conv(x)))


class Res2NetBlock(nn.Module):
    """The first group passes; each further one is convolved, from the third on with the previous result added."""

    def __init__(self, channels, scale, kernel_size, dilation):
        super().__init__()
        assert channels % scale == 0
        self.scale = scale
        self.blocks = nn.ModuleList(
            TDNNBlock(channels // scale, channels // scale, kernel_size, dilation) for _ in range(scale - 1)
        )

    def forward(self, x):
        out = []
        y_i = None
        for i, x_i in enumerate(torch.chunk(x, self.scale, dim=1)):
            if i == 0:
                y_i = x_i
            elif i == 1:
                y_i = self.blocks[i - 1](x_i)
            else:
                y_i = self.blocks[i - 1](x_i + y_i)
            out.append(y_i)
        return torch.cat(out, dim=1)


class SEBlock(nn.Module):
    """Squeeze (mean over valid frames) and excitation."""

    def __init__(self, channels, se_channels):
        super().__init__()
        self.conv1 = nn.Conv1d(channels, se_channels, 1)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv1d(se_channels, channels, 1)
        self.sigmoid = nn.Sigmoid()

    def forward(self, x, mask):
        weight = mask.unsqueeze(1).to(x.dtype)
        s = (x * weight).sum(dim=2, keepdim=True) / weight.sum(dim=2, keepdim=True)
        s = self.relu(self.conv1(s))
        return self.sigmoid(self.conv2(s)) * x


class SERes2NetBlock(nn.Module):
    """TDNN, Res2Net, TDNN, SE and the residual connection."""

    def __init__(self, channels, scale, se_channels, kernel_size, dilation):
        super().__init__()
        self.tdnn1 = TDNNBlock(channels, channels, 1)
        self.res2net_block = Res2NetBlock(channels, scale, kernel_size, dilation)
        self.tdnn2 = TDNNBlock(channels, channels, 1)
        self.se_block = SEBlock(channels, se_channels)

    def forward(self, x, mask):
        residual = x
        x = self.tdnn2(self.res2net_block(self.tdnn1(x)))
        x = self.se_block(x, mask)
        return x + residual


class AttentiveStatisticsPooling(nn.Module):
    """Attention per channel over the valid frames, with the utterance's own mean and deviation as context."""

    def __init__(self, channels, attention_channels):
        super().__init__()
        self.eps = 1e-6
        self.tdnn = TDNNBlock(3 * channels, attention_channels, 1)
        self.tanh = nn.Tanh()
        self.conv = nn.Conv1d(attention_channels, channels, 1)

    def _statistics(self, x, weight):
        mean = (weight * x).sum(dim=2)
        std = torch.sqrt((weight * (x - mean.unsqueeze(2)).pow(2)).sum(dim=2).clamp(min=self.eps))
        return mean, std

    def forward(self, x, mask):
        valid = mask.unsqueeze(1)
        uniform = valid.to(x.dtype) / valid.sum(dim=2, keepdim=True).to(x.dtype)
        mean, std = self._statistics(x, uniform)
        context = torch.cat((x, mean.unsqueeze(2).expand_as(x), std.unsqueeze(2).expand_as(x)), dim=1)
        attn = self.conv(self.tanh(self.tdnn(context)))
        attn = attn.masked_fill(~valid, float("-inf"))
        attn = F.softmax(attn, dim=2)
        mean, std = self._statistics(x, attn)
        return torch.cat((mean, std), dim=1)


class ECAPA(nn.Module):
    """Features (batch, channels, frames) to embeddings; every block is fed with the sum of all earlier outputs."""

    def __init__(self, cfg):
        super().__init__()
        self.layer1 = TDNNBlock(cfg.n_mels, cfg.channels, 5)
        self.blocks = nn.ModuleList(
            SERes2NetBlock(cfg.channels, cfg.res2net_scale, cfg.se_channels, 3, dilation) for dilation in cfg.dilations
        )
        self.mfa = TDNNBlock(cfg.channels * len(cfg.dilations), cfg.mfa_channels, 1)
        self.asp = AttentiveStatisticsPooling(cfg.mfa_channels, cfg.attention_channels)
        self.asp_bn = nn.BatchNorm1d(2 * cfg.mfa_channels)
        self.fc = nn.Linear(2 * cfg.mfa_channels, cfg.embed_dim)
        self.fc_bn = nn.BatchNorm1d(cfg.embed_dim)

    def forward(self, x, mask):
        x = self.layer1(x)
        total = x
        outputs = []
        for block in self.blocks:
            x = block(total, mask)
            total = total + x
            outputs.append(x)
        x = self.mfa(torch.cat(outputs, dim=1))
        x = self.asp(x, mask)
        return self.fc_bn(self.fc(self.asp_bn(x)))


class SubcenterAAM(nn.Module):
    """Additive angular margin with sub-centres, margins by class size, and a penalty on the nearest other classes."""

    def __init__(self, cfg):
        super().__init__()
        self.num_classes = len(cfg.class_counts)
        self.sub_centers = cfg.sub_centers
        self.scale = cfg.scale
        self.top_k = cfg.penalty_top_k
        self.penalty = cfg.penalty_margin
        self.weight = nn.Parameter(torch.zeros(self.num_classes * cfg.sub_centers, cfg.embed_dim))
        rarity = torch.tensor(cfg.class_counts, dtype=torch.float64).pow(cfg.margin_power)
        rarity = (rarity - rarity.min()) / (rarity.max() - rarity.min())
        low, high = cfg.margin_range
        self.register_buffer("margins", (low + (high - low) * rarity).float(), persistent=False)
        self.criterion = nn.CrossEntropyLoss(label_smoothing=cfg.label_smoothing)

    def forward(self, embeddings, labels):
        cosine = F.linear(F.normalize(embeddings), F.normalize(self.weight))
        cosine = cosine.view(-1, self.num_classes, self.sub_centers).amax(dim=2)
        sine = torch.sqrt((1.0 - cosine.pow(2)).clamp(min=1e-7))

        margin = self.margins[labels].unsqueeze(1)
        phi = cosine * torch.cos(margin) - sine * torch.sin(margin)
        # beyond pi - margin the angle would wrap: a straight line goes on from there
        phi = torch.where(cosine > torch.cos(math.pi - margin), phi, cosine - margin * torch.sin(math.pi - margin))

        target = F.one_hot(labels, self.num_classes).bool()
        nearest = cosine.masked_fill(target, -2.0).topk(self.top_k, dim=1).indices
        hard = torch.zeros_like(target).scatter(1, nearest, True)
        pushed = cosine * math.cos(self.penalty) + sine * math.sin(self.penalty)

        logits = torch.where(target, phi, torch.where(hard, pushed, cosine)) * self.scale
        return logits, self.criterion(logits, labels)


class AdaptiveSNorm(nn.Module):
    """Cosine scores of all models against all tests, normalised by the top of a cohort's scores on either side."""

    def __init__(self, cfg):
        super().__init__()
        self.top_n = cfg.cohort_top_n
        self.per_speaker = cfg.cohort_utterances
        rows = cfg.cohort_speakers * cfg.cohort_utterances  # the utterances of one speaker follow one another
        self.register_buffer("cohort", torch.zeros(rows, cfg.embed_dim))

    def _top_statistics(self, embeddings, cohort):
        top = (embeddings @ cohort.t()).topk(self.top_n, dim=1).values
        return top.mean(dim=1), top.std(dim=1)

    def forward(self, embeddings, enroll_index, test_index):
        """enroll_index is (models, most utterances), filled up with -1."""
        center = self.cohort.mean(dim=0)
        embeddings = F.normalize(embeddings - center)
        cohort = F.normalize(self.cohort - center).view(-1, self.per_speaker, self.cohort.shape[1])
        cohort = F.normalize(cohort.mean(dim=1))

        present = (enroll_index >= 0).unsqueeze(2).to(embeddings.dtype)
        models = embeddings[enroll_index.clamp(min=0)]
        models = F.normalize((models * present).sum(dim=1) / present.sum(dim=1))
        tests = embeddings[test_index]

        raw = models @ tests.t()
        mean, std = self._top_statistics(models, cohort)
        by_enroll = (raw - mean[:, None]) / std[:, None]
        mean, std = self._top_statistics(tests, cohort)
        by_test = (raw - mean[None, :]) / std[None, :]
        return raw, 0.5 * (by_enroll + by_test)


class DetectionMetrics(nn.Module):
    """Equal error rate (and where it lies) and the least normalised detection cost over a list of trials."""

    def __init__(self, cfg):
        super().__init__()
        self.p_target, self.c_miss, self.c_fa = cfg.p_target, cfg.c_miss, cfg.c_fa

    def forward(self, scores, targets):
        scores, order = torch.sort(scores.flatten())
        targets = targets.flatten()[order].to(scores.dtype)
        zero = scores.new_zeros(1)
        fnr = torch.cat((zero, torch.cumsum(targets, dim=0) / targets.sum()))
        fpr = 1.0 - torch.cat((zero, torch.cumsum(1.0 - targets, dim=0) / (1.0 - targets).sum()))
        cuts = torch.cat((scores[:1] - 1.0, scores))

        gap = fnr - fpr
        after = torch.nonzero(gap >= 0)[0, 0]
        before = after - 1
        step = gap[after] / (gap[after] - gap[before])
        eer = fnr[after] + step * (fnr[before] - fnr[after])
        threshold = cuts[after] + step * (cuts[before] - cuts[after])

        cost = self.c_miss * self.p_target * fnr + self.c_fa * (1.0 - self.p_target) * fpr
        min_dcf = cost.min() / min(self.c_miss * self.p_target, self.c_fa * (1.0 - self.p_target))
        return eer, threshold, min_dcf


class SpeakerVerifier(nn.Module):
    """Waveforms to embeddings, the training loss, and calibrated scores with their error rates."""

    def __init__(self, cfg):
        super().__init__()
        self.frontend = FilterBank(cfg)
        self.mean_norm = SentenceMeanNorm()
        self.encoder = ECAPA(cfg)
        self.classifier = SubcenterAAM(cfg)
        self.backend = AdaptiveSNorm(cfg)
        self.calibration = nn.Linear(3, 1)
        self.metrics = DetectionMetrics(cfg)

    def embed(self, waves, lengths):
        feats, num_frames = self.frontend(waves, lengths)
        mask = length_mask(num_frames, feats.shape[1])
        feats = self.mean_norm(feats, mask)
        return self.encoder(feats.transpose(1, 2), mask), num_frames

    def forward(self, waves, lengths, labels, enroll_index, test_index):
        embeddings, num_frames = self.embed(waves, lengths)
        logits, loss = self.classifier(embeddings, labels)
        raw, scores = self.backend(embeddings, enroll_index, test_index)

        # quality measures: how much speech there is on either side
        spoken = num_frames[enroll_index.clamp(min=0)] * (enroll_index >= 0)
        enroll_quality = torch.log(spoken.sum(dim=1).to(scores.dtype))
        test_quality = torch.log(num_frames[test_index].to(scores.dtype))
        measures = torch.stack(
            (scores, enroll_quality[:, None].expand_as(scores), test_quality[None, :].expand_as(scores)), dim=-1
        )
        llr = self.calibration(measures).squeeze(-1)

        targets = labels[enroll_index[:, 0]][:, None] == labels[test_index][None, :]
        eer, threshold, min_dcf = self.metrics(llr, targets)
        return embeddings, logits, loss, raw, scores, llr, eer, threshold, min_dcf


def trained_like(net, waves, lengths, labels):
    """Values as after training: the running statistics come from the clips, the centres lie near the speakers."""
    for module in net.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.momentum = None
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.2)
        elif isinstance(module, (nn.Conv1d, nn.Linear)):
            fan_in = module.weight[0].numel()
            nn.init.normal_(module.weight, std=1.4 * fan_in**-0.5)
            nn.init.normal_(module.bias, std=0.15)
    nn.init.normal_(net.encoder.asp.conv.weight, std=0.25)
    last = (net.encoder.asp_bn, net.encoder.fc_bn)
    with torch.no_grad():
        net.train().embed(waves, lengths)
        for module in net.eval().modules():
            if isinstance(module, nn.BatchNorm1d) and module not in last:
                module.running_mean += 0.2 * module.running_var.sqrt() * torch.randn_like(module.running_mean)
                module.running_var *= 0.8 + 0.4 * torch.rand_like(module.running_var)
        for module in last:
            module.train().reset_running_stats()
        net.embed(waves, lengths)
        embeddings, _ = net.eval().embed(waves, lengths)
        spread = embeddings.std(dim=0)
        centers = embeddings.mean(dim=0) + 0.9 * spread * torch.randn_like(net.classifier.weight)
        for label, embedding in zip(labels.tolist(), embeddings):
            centers[3 * label + label % 3] = embedding + 0.7 * spread * torch.randn_like(embedding)
        net.classifier.weight.copy_(centers * (0.5 + torch.rand(centers.shape[0], 1)))
        speakers = (spread * torch.randn(net.backend.cohort.shape[0] // 3, spread.numel())).repeat_interleave(3, dim=0)
        net.backend.cohort.copy_(embeddings.mean(dim=0) + speakers + 0.7 * spread * torch.randn_like(speakers))
        net.calibration.weight.copy_(torch.tensor([[1.1, 0.35, 0.2]]))
        net.calibration.bias.fill_(-2.3)
    return net


def build():
    """The net with the same weights on every run, and clips of six speakers: three enrol with six, eight are tests."""
    torch.manual_seed(1714)
    labels = torch.tensor([0, 0, 3, 5, 5, 5, 0, 3, 5, 0, 3, 8, 2, 6])
    lengths = torch.tensor([7600, 5210, 6333, 8000, 4444, 6995, 7123, 5802, 4810, 7777, 6460, 5555, 7000, 5060])
    filters = torch.randn(10, 2, 1, 24) * torch.exp(-0.2 * torch.arange(24.0))
    sounds = torch.stack([F.conv1d(torch.randn(1, 1, 8023), filters[label])[0] for label in labels])
    syllables = 0.5 * torch.rand(10, 2, 18)[labels] + 0.5 * torch.rand(14, 2, 18)  # a phrase in the speaker's way
    syllables = F.interpolate(syllables, size=8000, mode="linear").pow(3)
    hum = F.conv1d(torch.randn(14, 1, 8099), 0.95 ** torch.arange(100.0).view(1, 1, -1))[:, 0]
    waves = (0.1 * (sounds * (0.1 + syllables)).sum(dim=1) + 0.02 * hum + 0.02) * length_mask(lengths, 8000)
    enroll_index = torch.tensor([[0, 1, -1], [2, -1, -1], [3, 4, 5]])
    net = trained_like(SpeakerVerifier(Config()), waves, lengths, labels)
    return net.eval(), (waves, lengths, labels, enroll_index, torch.arange(6, 14))
