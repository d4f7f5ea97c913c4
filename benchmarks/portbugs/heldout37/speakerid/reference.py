"""Speaker verification network: Kaldi-like fbank -> 2d conv front end -> SE-Res2 TDNN -> CAM dense TDNN ->
multi-head attentive statistics pooling -> embedding -> sub-centre AAM-softmax with inter-topk, plus AS-norm scoring."""
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


# --------------------------------------------------------------------------- features
def hz_to_mel(f):
    return 1127.0 * np.log(1.0 + np.asarray(f, dtype=np.float64) / 700.0)


def mel_banks(n_mels, n_fft, sample_rate, f_min, f_max):
    """Triangles that are linear on the mel axis, Nyquist bin left out (as in Kaldi)."""
    n_bins = n_fft // 2
    mel_lo, mel_hi = hz_to_mel(f_min), hz_to_mel(f_max)
    delta = (mel_hi - mel_lo) / (n_mels + 1)
    idx = np.arange(n_mels)[:, None]
    left, center, right = (mel_lo + (idx + k) * delta for k in range(3))
    mel = hz_to_mel(sample_rate / n_fft * np.arange(n_bins))[None, :]
    up = (mel - left) / (center - left)
    down = (right - mel) / (right - center)
    banks = np.maximum(0.0, np.minimum(up, down))
    return torch.from_numpy(np.pad(banks, ((0, 0), (0, 1)))).float()


class FbankFeatures(nn.Module):
    def __init__(self, sample_rate=8000, win_length=100, hop_length=44, n_fft=128, n_mels=18,
                 f_min=60.0, f_max=3700.0, preemph=0.97, log_floor=1e-6):
        super().__init__()
        self.win_length = win_length
        self.hop_length = hop_length
        self.n_fft = n_fft
        self.preemph = preemph
        self.log_floor = log_floor
        window = torch.hann_window(win_length, periodic=False) ** 0.85
        self.register_buffer("window", window, persistent=False)
        self.register_buffer("banks", mel_banks(n_mels, n_fft, sample_rate, f_min, f_max), persistent=False)

    def num_frames(self, lengths):
        return torch.div(lengths - self.win_length, self.hop_length, rounding_mode="floor") + 1

    def forward(self, wav, lengths):
        frames = wav.unfold(-1, self.win_length, self.hop_length)            # (B, T, W)
        frames = frames - frames.mean(dim=-1, keepdim=True)
        shifted = F.pad(frames, (1, 0), mode="replicate")[..., :-1]
        frames = frames - self.preemph * shifted
        frames = frames * self.window
        spec = torch.fft.rfft(frames, n=self.n_fft, dim=-1)
        power = spec.real.pow(2) + spec.imag.pow(2)                          # (B, T, n_fft/2+1)
        mel = torch.matmul(power, self.banks.t())
        feats = torch.log(mel.clamp(min=self.log_floor))
        n = self.num_frames(lengths)
        mask = torch.arange(feats.size(1), device=feats.device)[None, :] < n[:, None]
        return feats, mask, n


class MeanNorm(nn.Module):
    """Cepstral-style mean normalisation over the valid frames of each utterance; padding becomes zero."""

    def forward(self, feats, mask):
        m = mask.unsqueeze(-1).to(feats.dtype)
        mean = (feats * m).sum(dim=1, keepdim=True) / m.sum(dim=1, keepdim=True)
        return (feats - mean) * m


# --------------------------------------------------------------------------- 2d front end
class BasicResBlock(nn.Module):
    def __init__(self, in_planes, planes, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(in_planes, planes, 3, stride=(stride, 1), padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride=1, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.act = nn.LeakyReLU()
        self.shortcut = nn.Sequential()
        if stride != 1 or in_planes != planes:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_planes, planes, 1, stride=(stride, 1), bias=False), nn.BatchNorm2d(planes))

    def forward(self, x):
        out = self.act(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out = out + self.shortcut(x)
        return self.act(out)


class FCM(nn.Module):
    """Front-end convolution module; the frequency axis is reduced by four and folded into the channels."""

    def __init__(self, n_mels=18, planes=6):
        super().__init__()
        self.conv1 = nn.Conv2d(1, planes, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.layer1 = nn.Sequential(BasicResBlock(planes, planes, stride=2), BasicResBlock(planes, planes))
        self.conv2 = nn.Conv2d(planes, planes, 3, stride=(2, 1), padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.out_channels = planes * (((n_mels + 1) // 2 + 1) // 2)

    def forward(self, feats):
        x = feats.transpose(1, 2).unsqueeze(1)                               # (B, 1, F, T)
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.layer1(out)
        out = F.relu(self.bn2(self.conv2(out)))
        b, c, f, t = out.shape
        return out.reshape(b, c * f, t)


# --------------------------------------------------------------------------- TDNN blocks
class TDNNLayer(nn.Module):
    """conv -> relu -> bn, the order of ECAPA-TDNN."""

    def __init__(self, in_channels, out_channels, kernel_size=1, stride=1, dilation=1):
        super().__init__()
        padding = (kernel_size - 1) // 2 * dilation
        self.conv = nn.Conv1d(in_channels, out_channels, kernel_size, stride=stride, padding=padding,
                              dilation=dilation)
        self.bn = nn.BatchNorm1d(out_channels)

    def forward(self, x):
        return self.bn(F.relu(self.conv(x)))


class Res2Block(nn.Module):
    def __init__(self, channels, scale=4, kernel_size=3, dilation=1):
        super().__init__()
        assert channels % scale == 0
        self.scale = scale
        width = channels // scale
        self.blocks = nn.ModuleList(
            [TDNNLayer(width, width, kernel_size, dilation=dilation) for _ in range(scale - 1)])

    def forward(self, x):
        outs = []
        for i, chunk in enumerate(torch.chunk(x, self.scale, dim=1)):
            if i == 0:
                y = chunk
            elif i == 1:
                y = self.blocks[i - 1](chunk)
            else:
                y = self.blocks[i - 1](chunk + y)
            outs.append(y)
        return torch.cat(outs, dim=1)


class SqueezeExcite(nn.Module):
    def __init__(self, channels, bottleneck):
        super().__init__()
        self.fc1 = nn.Conv1d(channels, bottleneck, 1)
        self.fc2 = nn.Conv1d(bottleneck, channels, 1)

    def forward(self, x, mask):
        s = (x * mask).sum(dim=2, keepdim=True) / mask.sum(dim=2, keepdim=True)
        s = torch.sigmoid(self.fc2(F.relu(self.fc1(s))))
        return x * s


class SERes2Block(nn.Module):
    def __init__(self, channels, dilation, scale=4, se_bottleneck=12):
        super().__init__()
        self.tdnn1 = TDNNLayer(channels, channels)
        self.res2 = Res2Block(channels, scale, 3, dilation)
        self.tdnn2 = TDNNLayer(channels, channels)
        self.se = SqueezeExcite(channels, se_bottleneck)

    def forward(self, x, mask):
        residual = x
        x = self.tdnn1(x)
        x = self.res2(x * mask)
        x = self.tdnn2(x)
        x = self.se(x, mask)
        return x + residual


class CAMLayer(nn.Module):
    """Context-aware masking: a local convolution gated by global plus segment context."""

    def __init__(self, in_channels, out_channels, kernel_size=3, dilation=1, reduction=2, seg_len=5):
        super().__init__()
        self.seg_len = seg_len
        self.linear_local = nn.Conv1d(in_channels, out_channels, kernel_size,
                                      padding=(kernel_size - 1) // 2 * dilation, dilation=dilation, bias=False)
        self.linear1 = nn.Conv1d(in_channels, in_channels // reduction, 1)
        self.linear2 = nn.Conv1d(in_channels // reduction, out_channels, 1)

    def seg_pooling(self, x):
        seg = F.avg_pool1d(x, kernel_size=self.seg_len, stride=self.seg_len, ceil_mode=True)
        b, c, n = seg.shape
        seg = seg.unsqueeze(-1).expand(b, c, n, self.seg_len).reshape(b, c, n * self.seg_len)
        return seg[..., :x.shape[-1]]

    def forward(self, x, mask):
        y = self.linear_local(x * mask)
        context = (x * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True) + self.seg_pooling(x)
        context = F.relu(self.linear1(context))
        gate = torch.sigmoid(self.linear2(context))
        return y * gate


class CAMDenseTDNNLayer(nn.Module):
    def __init__(self, in_channels, growth, bn_channels, dilation):
        super().__init__()
        self.bn1 = nn.BatchNorm1d(in_channels)
        self.linear1 = nn.Conv1d(in_channels, bn_channels, 1, bias=False)
        self.bn2 = nn.BatchNorm1d(bn_channels)
        self.cam = CAMLayer(bn_channels, growth, 3, dilation)

    def forward(self, x, mask):
        y = self.linear1(F.relu(self.bn1(x)))
        return self.cam(F.relu(self.bn2(y)), mask)


class CAMDenseTDNNBlock(nn.ModuleList):
    def __init__(self, num_layers, in_channels, growth, bn_channels, dilation):
        super().__init__([
            CAMDenseTDNNLayer(in_channels + i * growth, growth, bn_channels, dilation) for i in range(num_layers)
        ])

    def forward(self, x, mask):
        for layer in self:
            x = torch.cat([x, layer(x, mask)], dim=1)
        return x


class TransitLayer(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.bn = nn.BatchNorm1d(in_channels)
        self.linear = nn.Conv1d(in_channels, out_channels, 1, bias=False)

    def forward(self, x):
        return self.linear(F.relu(self.bn(x)))


# --------------------------------------------------------------------------- pooling
class AttentiveStatsPool(nn.Module):
    """Multi-head attentive statistics pooling with global context; a head serves channels // heads neighbours."""

    def __init__(self, channels, attention_channels=16, heads=5, eps=1e-5):
        super().__init__()
        self.heads, self.eps = heads, eps
        self.tdnn = TDNNLayer(channels * 3, attention_channels)
        self.conv = nn.Conv1d(attention_channels, heads, 1)

    def forward(self, x, mask):
        b, c, t = x.shape
        uniform = mask / mask.sum(dim=2, keepdim=True)
        mean = (uniform * x).sum(dim=2, keepdim=True)
        std = torch.sqrt((uniform * (x - mean).pow(2)).sum(dim=2, keepdim=True).clamp(min=self.eps))
        context = torch.cat([x, mean.expand_as(x), std.expand_as(x)], dim=1)
        logits = self.conv(torch.tanh(self.tdnn(context)))                   # (B, H, T)
        logits = logits.masked_fill(mask == 0, float("-inf"))
        attn = F.softmax(logits, dim=2)
        xh = x.view(b, self.heads, c // self.heads, t)
        mean = torch.einsum("bht,bhct->bhc", attn, xh)
        diff = xh - mean.unsqueeze(-1)
        var = torch.einsum("bht,bhct->bhc", attn, diff * diff)
        std = torch.sqrt(var.clamp(min=self.eps))
        return torch.cat([mean.reshape(b, c), std.reshape(b, c)], dim=1)


# --------------------------------------------------------------------------- heads
class SubCenterAAM(nn.Module):
    """Additive angular margin with sub-centres and an inter-topk penalty on the hardest negatives."""

    def __init__(self, emb_dim, n_classes, sub_centers=2, scale=16.0, margin=0.2, k_top=2, mp=0.06):
        super().__init__()
        self.n_classes, self.sub_centers = n_classes, sub_centers
        self.scale, self.k_top = scale, k_top
        self.weight = nn.Parameter(torch.randn(n_classes * sub_centers, emb_dim))
        self.cos_m, self.sin_m = math.cos(margin), math.sin(margin)
        self.th = math.cos(math.pi - margin)
        self.mm = math.sin(math.pi - margin) * margin
        self.cos_mp, self.sin_mp = math.cos(mp), math.sin(mp)

    def cosine(self, emb):
        cos = F.linear(F.normalize(emb), F.normalize(self.weight))
        cos = cos.view(-1, self.n_classes, self.sub_centers)
        return cos.max(dim=2).values

    def forward(self, emb, labels):
        cos = self.cosine(emb)
        sin = torch.sqrt((1.0 - cos.pow(2)).clamp(min=0.0))
        phi = cos * self.cos_m - sin * self.sin_m
        phi = torch.where(cos > self.th, phi, cos - self.mm)
        phi_mp = cos * self.cos_mp + sin * self.sin_mp
        one_hot = torch.zeros_like(cos).scatter_(1, labels.view(-1, 1), 1.0)
        _, hard = torch.topk(cos - 2.0 * one_hot, self.k_top, dim=1)
        hard_hot = torch.zeros_like(cos).scatter_(1, hard, 1.0)
        logits = one_hot * phi + hard_hot * phi_mp + (1.0 - one_hot - hard_hot) * cos
        logits = logits * self.scale
        loss = F.cross_entropy(logits, labels, label_smoothing=0.05)
        return cos, logits, loss


class ASNorm(nn.Module):
    """Adaptive symmetric score normalisation of all trials in the batch against a cohort."""

    def __init__(self, top_n=4):
        super().__init__()
        self.top_n = top_n

    def forward(self, emb, cohort_scores):
        e = F.normalize(emb, dim=1)
        scores = e @ e.t()
        top = torch.topk(cohort_scores, self.top_n, dim=1).values
        mu, sd = top.mean(dim=1), top.std(dim=1)
        enroll = (scores - mu[:, None]) / sd[:, None]
        test = (scores - mu[None, :]) / sd[None, :]
        return 0.5 * (enroll + test)


# --------------------------------------------------------------------------- the net
class SpeakerNet(nn.Module):
    def __init__(self, n_mels=18, channels=36, growth=14, cam_layers=2, mfa_channels=40, emb_dim=20, n_classes=7):
        super().__init__()
        self.fbank = FbankFeatures(n_mels=n_mels)
        self.norm = MeanNorm()
        self.head = FCM(n_mels)
        self.stem = TDNNLayer(self.head.out_channels, channels, kernel_size=5, stride=2)
        self.blocks = nn.ModuleList([SERes2Block(channels, d) for d in (2, 3)])
        self.cam_block = CAMDenseTDNNBlock(cam_layers, channels, growth, bn_channels=24, dilation=2)
        self.transit = TransitLayer(channels + cam_layers * growth, 28)
        self.mfa = TDNNLayer(2 * channels + 28, mfa_channels)
        self.pool = AttentiveStatsPool(mfa_channels)
        self.pool_bn = nn.BatchNorm1d(2 * mfa_channels)
        self.fc = nn.Linear(2 * mfa_channels, emb_dim)
        self.emb_bn = nn.BatchNorm1d(emb_dim, eps=1e-3)
        self.aam = SubCenterAAM(emb_dim, n_classes)
        self.asnorm = ASNorm()

    def embed(self, wav, lengths):
        feats, frame_mask, n = self.fbank(wav, lengths)
        feats = self.norm(feats, frame_mask)
        x = self.stem(self.head(feats))                                      # (B, C, ceil(T/2))
        n = torch.div(n - 1, 2, rounding_mode="floor") + 1
        steps = torch.arange(x.size(-1), device=x.device)
        mask = (steps[None, :] < n[:, None]).unsqueeze(1).to(x.dtype)        # (B, 1, T')
        x = x * mask
        outs = []
        running = x
        for block in self.blocks:
            x = block(running, mask)
            outs.append(x)
            running = running + x
        y = self.transit(self.cam_block(running, mask))
        outs.append(y)
        x = self.mfa(torch.cat(outs, dim=1))
        stats = self.pool(x, mask)
        return self.emb_bn(self.fc(self.pool_bn(stats)))

    def forward(self, wav, lengths, labels):
        emb = self.embed(wav, lengths)
        cos, logits, loss = self.aam(emb, labels)
        scores = self.asnorm(emb, cos)
        return emb, logits, loss, scores


def make_inputs():
    rng = np.random.RandomState(7)
    lengths = np.array([1750, 1311, 935])
    t = np.arange(1750) / 8000.0
    wav = np.zeros((3, 1750))
    for i, f0 in enumerate((110.0, 173.0, 221.0)):
        glide = f0 * (1.0 + 0.3 * np.sin(2 * np.pi * (4 + i) * t))
        phase = 2 * np.pi * np.cumsum(glide) / 8000.0
        for h in range(1, 9):
            wav[i] += 0.2 / h * np.sin(h * phase + i * h) * (1 + 0.5 * np.cos(2 * np.pi * (7 + 2 * h) * t))
        wav[i] += 0.02 * rng.randn(1750) + 0.05
        wav[i, lengths[i]:] = 0.0
    labels = np.array([4, 0, 6])
    return wav.astype(np.float32), lengths.astype(np.int64), labels.astype(np.int64)


def build():
    torch.manual_seed(1234)
    net = SpeakerNet()
    args = tuple(torch.from_numpy(a) for a in make_inputs())
    norms = [m for m in net.modules() if isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d))]
    with torch.no_grad():
        for m in net.modules():
            if isinstance(m, (nn.Conv1d, nn.Conv2d, nn.Linear)):
                m.weight.mul_(1.5)
                if m.bias is not None:
                    m.bias.normal_(0.0, 0.3)
        net.fc.weight.mul_(0.4)
        for m in norms:
            m.weight.uniform_(0.6, 1.4)
            m.bias.normal_(0.0, 0.3)
            m.momentum = 1.0                     # one pass gives the statistics, then a bit of drift
        net.train()(*args)
        for m in norms:
            m.momentum = 0.1
            m.num_batches_tracked.zero_()
            m.running_mean.mul_(torch.empty_like(m.running_mean).uniform_(0.8, 1.0))
            m.running_var.mul_(torch.empty_like(m.running_var).uniform_(0.7, 1.5)).add_(0.01)
    return net.eval(), args
