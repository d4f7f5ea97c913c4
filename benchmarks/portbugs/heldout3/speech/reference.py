"""FastSpeech 2 in miniature, with Transformer-XL's relative attention. In PyTorch: the reference.

Tokens are batch first and padded with 0. The mel always has `max_frames` frames; those behind a sentence's end are zero.
"""
from __future__ import annotations

import math
from typing import List, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence


def lengths_to_keep(lengths: Tensor, max_len: int) -> Tensor:
    """[B] -> [B, max_len, 1], one where there is something."""
    ids = torch.arange(max_len, device=lengths.device)
    return (ids[None, :] < lengths[:, None]).float().unsqueeze(-1)


def masked_stats(x: Tensor, keep: Tensor, eps: float = 1e-5) -> Tuple[Tensor, Tensor]:
    """Mean and deviation of each channel over the valid steps: [B, 1, C] both."""
    count = keep.sum(dim=1, keepdim=True).clamp_min(1.0)
    mean = (x * keep).sum(dim=1, keepdim=True) / count
    var = ((x - mean) ** 2 * keep).sum(dim=1, keepdim=True) / count
    return mean, (var + eps).sqrt()


class RelativeAttention(nn.Module):
    """u and v as in Transformer-XL, positions from T - 1 down to -(T - 1)."""

    def __init__(self, width: int, heads: int, dropout: float = 0.1):
        super().__init__()
        self.h = heads
        self.d_k = width // heads
        self.width = width
        self.linear_qkv = nn.Linear(width, 3 * width)
        self.linear_pos = nn.Linear(width, width, bias=False)
        self.linear_out = nn.Linear(width, width)
        self.pos_bias_u = nn.Parameter(torch.zeros(heads, self.d_k))
        self.pos_bias_v = nn.Parameter(torch.zeros(heads, self.d_k))
        self.dropout = nn.Dropout(dropout)

    def position_table(self, length: int) -> Tensor:
        pos = torch.arange(length - 1, -length, -1.0).unsqueeze(1)
        div = torch.exp(torch.arange(0, self.width, 2).float() * -(math.log(10000.0) / self.width))
        pe = torch.zeros(2 * length - 1, self.width)
        pe[:, 0::2] = torch.sin(pos * div)
        pe[:, 1::2] = torch.cos(pos * div)
        return pe.unsqueeze(0)

    @staticmethod
    def rel_shift(x: Tensor) -> Tensor:
        """[B, H, T, 2T - 1] by distance -> [B, H, T, T] by key."""
        b, h, t, n = x.size()
        zero_pad = torch.zeros((b, h, t, 1), dtype=x.dtype, device=x.device)
        x_padded = torch.cat([zero_pad, x], dim=-1).view(b, h, n + 1, t)
        return x_padded[:, :, 1:].view(b, h, t, n)[:, :, :, : n // 2 + 1]

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        b, t, _ = x.size()
        q, k, v = self.linear_qkv(x).view(b, t, 3, self.h, self.d_k).unbind(dim=2)
        k = k.transpose(1, 2)
        v = v.transpose(1, 2)
        p = self.linear_pos(self.position_table(t)).view(1, -1, self.h, self.d_k).transpose(1, 2)

        q_with_bias_u = (q + self.pos_bias_u).transpose(1, 2)
        q_with_bias_v = (q + self.pos_bias_v).transpose(1, 2)
        matrix_ac = torch.matmul(q_with_bias_u, k.transpose(-2, -1))
        matrix_bd = self.rel_shift(torch.matmul(q_with_bias_v, p.transpose(-2, -1)))
        scores = (matrix_ac + matrix_bd) / math.sqrt(self.d_k)

        mask = keep.transpose(1, 2).unsqueeze(1).eq(0)  # [B, 1, 1, T]
        scores = scores.masked_fill(mask, torch.finfo(scores.dtype).min)
        attn = torch.softmax(scores, dim=-1).masked_fill(mask, 0.0)
        x = torch.matmul(self.dropout(attn), v)
        return self.linear_out(x.transpose(1, 2).contiguous().view(b, t, self.width))


class FFTBlock(nn.Module):
    """Attention and two convolutions, the norms behind the shortcuts."""

    def __init__(self, width: int, heads: int, hidden: int, kernel: int = 3, dropout: float = 0.1):
        super().__init__()
        self.attn = RelativeAttention(width, heads, dropout)
        self.norm1 = nn.LayerNorm(width)
        self.conv1 = nn.Conv1d(width, hidden, kernel, padding=kernel // 2)
        self.conv2 = nn.Conv1d(hidden, width, 1)
        self.norm2 = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        residual = x
        x = self.dropout(self.attn(x, keep))
        x = self.norm1(residual + x) * keep
        residual = x
        x = self.conv1(x.transpose(1, 2))
        x = F.gelu(x, approximate="tanh")
        x = self.conv2(x).transpose(1, 2)
        x = self.norm2(residual + self.dropout(x))
        return x * keep


class VariancePredictor(nn.Module):
    def __init__(self, width: int, hidden: int, kernel: int = 5):
        super().__init__()
        self.conv = nn.Conv1d(width, hidden, kernel, padding=(kernel - 1) // 2)
        self.gain = nn.Parameter(torch.ones(hidden))
        self.proj = nn.Linear(hidden, 1)

    def forward(self, x: Tensor, keep: Tensor, squash: Optional[float] = None) -> Tensor:
        h = F.relu(self.conv((x * keep).transpose(1, 2))).transpose(1, 2)
        mean, std = masked_stats(h, keep)
        h = (h - mean) / std * self.gain
        out = self.proj(h)
        if squash is not None:
            out = out / (1 + out.abs() / squash)
        return (out * keep).squeeze(-1)


class Postnet(nn.Module):
    """Tacotron's residual convolutions, the later ones dilated."""

    def __init__(self, n_mels: int, hidden: int, kernel: int = 5):
        super().__init__()
        sizes = [n_mels, hidden, n_mels]
        self.convs = nn.ModuleList()
        self.norms = nn.ModuleList()
        for i in range(2):
            d = 2**i
            self.convs.append(nn.Conv1d(sizes[i], sizes[i + 1], kernel, padding=d * (kernel - 1) // 2, dilation=d))
            self.norms.append(nn.BatchNorm1d(sizes[i + 1]))

    def forward(self, mel: Tensor, keep: Tensor) -> Tensor:
        x = mel
        last = len(self.convs) - 1
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms)):
            x = norm(conv((x * keep).transpose(1, 2))).transpose(1, 2)
            if i < last:
                x = F.silu(x)
        return (mel + x) * keep


def regulate(x: Tensor, durations: Tensor, max_frames: int) -> Tuple[Tensor, Tensor, Tensor]:
    """Repeats each token by its duration; also how far each frame is inside its token."""
    frames: List[Tensor] = []
    ramps: List[Tensor] = []
    for seq, dur in zip(x, durations):
        frames.append(torch.repeat_interleave(seq, dur, dim=0)[:max_frames])
        ramp = torch.cat([torch.arange(d, dtype=x.dtype) / d for d in dur.tolist() if d > 0])
        ramps.append(ramp[:max_frames])
    lengths = torch.tensor([len(f) for f in frames])
    frames = pad_sequence(frames, batch_first=True)
    ramps = pad_sequence(ramps, batch_first=True)
    extra = max_frames - frames.size(1)
    return F.pad(frames, (0, 0, 0, extra)), F.pad(ramps, (0, extra)), lengths


class LittleSpeech(nn.Module):
    def __init__(self, vocab: int = 40, speakers: int = 4, width: int = 48, heads: int = 4, n_mels: int = 20,
                 n_bins: int = 16, max_frames: int = 56):
        super().__init__()
        self.width = width
        self.max_frames = max_frames
        self.embed = nn.Embedding(vocab, width, padding_idx=0)
        self.speaker = nn.Embedding(speakers, width)
        self.encoder = nn.ModuleList([FFTBlock(width, heads, 2 * width) for _ in range(2)])
        self.duration_predictor = VariancePredictor(width, 32, kernel=3)
        self.pitch_predictor = VariancePredictor(width, 32)
        self.energy_predictor = VariancePredictor(width, 24)
        self.pitch_embed = nn.Embedding(n_bins, width)
        self.energy_embed = nn.Embedding(n_bins, width)
        self.ramp = nn.Parameter(torch.zeros(width))
        self.decoder = nn.ModuleList([FFTBlock(width, heads, 2 * width)])
        self.mel_linear = nn.Linear(width, n_mels)
        self.postnet = Postnet(n_mels, 32)
        # pitch is normalised when it leaves the predictor; the bins are in Hz, energy's are logarithmic
        self.pitch_mean, self.pitch_std = 190.0, 55.0
        pitch_bins = torch.linspace(80.0, 330.0, n_bins - 1)
        energy_bins = torch.exp(torch.linspace(math.log(0.05), math.log(6.0), n_bins - 1))
        self.register_buffer("pitch_bins", pitch_bins, persistent=False)
        self.register_buffer("energy_bins", energy_bins, persistent=False)

    def durations(self, x: Tensor, keep: Tensor, control: float) -> Tensor:
        log_d = self.duration_predictor(x, keep)
        d = torch.round((torch.exp(log_d) - 1) * control)
        return (torch.clamp(d, min=1, max=9) * keep.squeeze(-1)).long()

    def add_pitch(self, x: Tensor, keep: Tensor, control: float) -> Tensor:
        pitch = self.pitch_predictor(x, keep, squash=3.0)
        hertz = (pitch * self.pitch_std + self.pitch_mean) * control
        return x + self.pitch_embed(torch.bucketize(hertz, self.pitch_bins)) * keep

    def add_energy(self, x: Tensor, keep: Tensor, control: float) -> Tensor:
        energy = F.softplus(self.energy_predictor(x, keep, squash=4.0)) * control
        return x + self.energy_embed(torch.bucketize(energy, self.energy_bins)) * keep

    def forward(self, tokens: Tensor, speakers: Tensor, lengths: Tensor, d_control: float = 1.2,
                p_control: float = 1.1, e_control: float = 0.9) -> Tuple[Tensor, Tensor]:
        keep = lengths_to_keep(lengths, tokens.size(1))
        x = self.embed(tokens) * math.sqrt(self.width)
        x = x * keep
        for block in self.encoder:
            x = block(x, keep)

        voice = F.normalize(self.speaker(speakers), dim=-1).unsqueeze(1)
        durations = self.durations(x, keep, d_control)
        x = x + 2.0 * voice * keep
        x = self.add_pitch(x, keep, p_control)

        x, ramp, mel_lengths = regulate(x, durations, self.max_frames)
        mel_keep = lengths_to_keep(mel_lengths, self.max_frames)
        x = x + torch.sin(math.pi * ramp).unsqueeze(-1) * self.ramp * mel_keep
        x = self.add_energy(x, mel_keep, e_control)
        for block in self.decoder:
            x = block(x, mel_keep)
        mel = self.mel_linear(x) * mel_keep
        return mel, self.postnet(mel, mel_keep)


def build():
    torch.manual_seed(307)
    net = LittleSpeech()
    for module in net.modules():
        if isinstance(module, (nn.Linear, nn.Conv1d)):
            fan_in = module.weight[0].numel()
            nn.init.normal_(module.weight, std=1.2 / math.sqrt(fan_in))
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.15)
        elif isinstance(module, (nn.LayerNorm, nn.BatchNorm1d)):
            nn.init.uniform_(module.weight, 0.7, 1.3)
            nn.init.normal_(module.bias, std=0.1)
        elif isinstance(module, RelativeAttention):
            nn.init.normal_(module.pos_bias_u, std=0.5)
            nn.init.normal_(module.pos_bias_v, std=0.5)
        elif isinstance(module, VariancePredictor):
            nn.init.uniform_(module.gain, 0.7, 1.3)
    for norm in net.postnet.norms:
        nn.init.normal_(norm.running_mean, std=0.2)
        nn.init.uniform_(norm.running_var, 0.5, 1.5)
    nn.init.normal_(net.ramp, std=0.5)
    with torch.no_grad():
        net.embed.weight.mul_(0.3)
        net.duration_predictor.proj.weight.mul_(0.35)
        net.duration_predictor.proj.bias.fill_(1.5)
    lengths = torch.tensor([12, 9, 7])
    tokens = torch.randint(1, 40, (3, 12)) * (torch.arange(12)[None] < lengths[:, None])
    return net.eval(), (tokens, torch.tensor([2, 0, 3]), lengths)
