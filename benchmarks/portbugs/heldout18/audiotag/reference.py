"""An audio tagger and event localizer in PyTorch: log mel patches, a BEATs encoder with a gated relative position
bias and deep norm, and a PANNs head that pools over time for each class. The reference."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

SAMPLE_RATE = 8000
WINDOW = 200
HOP = 80
N_FFT = 256
MELS = 32
FRAMES = 100
FBANK_MEAN = 15.41663
FBANK_STD = 6.55582


# ---------------------------------------------------------------------------------------------------------------------
# tables
# ---------------------------------------------------------------------------------------------------------------------


def hertz_to_mel(frequency):
    """Kaldi's mel scale."""
    return 1127.0 * torch.log(1.0 + frequency / 700.0)


def povey_window(size: int):
    """Kaldi's own window: Hann, symmetric, to the power of 0.85."""
    return torch.hann_window(size, periodic=False, dtype=torch.float64).pow(0.85)


def dft_tables(size: int):
    """Cosines and sines of the discrete Fourier transform, up to the Nyquist bin."""
    time = torch.arange(size, dtype=torch.float64)
    bins = torch.arange(size // 2 + 1, dtype=torch.float64)
    angle = 2.0 * math.pi * torch.outer(time, bins) / size
    return angle.cos(), -angle.sin()


def mel_filter_bank(mels: int, size: int, rate: int, low: float = 20.0, high: float = 0.0):
    """Triangles on the mel scale, [mels, size // 2 + 1]; as in Kaldi, the Nyquist bin belongs to none of them."""
    if high <= 0.0:
        high = rate / 2 + high
    low_mel = hertz_to_mel(torch.tensor(low, dtype=torch.float64))
    high_mel = hertz_to_mel(torch.tensor(high, dtype=torch.float64))
    delta = (high_mel - low_mel) / (mels + 1)
    number = torch.arange(mels, dtype=torch.float64).unsqueeze(1)
    left, center, right = (low_mel + (number + shift) * delta for shift in (0.0, 1.0, 2.0))
    mel = hertz_to_mel(rate / size * torch.arange(size // 2, dtype=torch.float64)).unsqueeze(0)
    up = (mel - left) / (center - left)
    down = (right - mel) / (right - center)
    bank = torch.minimum(up, down).clamp(min=0.0)
    return F.pad(bank, (0, 1))


def relative_position_bucket(relative, buckets: int, max_distance: int):
    """Buckets of T5, both directions: near distances exactly, far ones by logarithm."""
    buckets = buckets // 2
    result = (relative > 0).long() * buckets
    distance = relative.abs()
    max_exact = buckets // 2
    far = torch.log(distance.clamp(min=1).double() / max_exact) / math.log(max_distance / max_exact)
    far = max_exact + (far * (buckets - max_exact)).long()
    far = far.clamp(max=buckets - 1)
    return result + torch.where(distance < max_exact, distance, far)


def token_to_frame_map(frames: int, patch: int, stride: int):
    """[frames, tokens]: each frame is the mean of the tokens whose patch has it; frames after the last patch get it."""
    tokens = (frames - patch) // stride + 1
    table = torch.zeros(frames, tokens)
    for token in range(tokens):
        table[token * stride : token * stride + patch, token] = 1.0
    table[(tokens - 1) * stride + patch :, -1] = 1.0
    return table / table.sum(dim=1, keepdim=True)


def lengths_to_padding(lengths, frames: int):
    """True where a frame lies after the end of the clip."""
    count = torch.div(lengths - WINDOW, HOP, rounding_mode="floor") + 1
    count = count.clamp(min=1, max=frames)
    return torch.arange(frames, device=lengths.device).unsqueeze(0) >= count.unsqueeze(1)


# ---------------------------------------------------------------------------------------------------------------------
# front end
# ---------------------------------------------------------------------------------------------------------------------


class LogMel(nn.Module):
    """Kaldi's log mel energies as torchaudio.compliance.kaldi.fbank computes them, by matrix products."""

    def __init__(self, preemphasis: float = 0.97, floor: float = 1.1920928955078125e-07):
        super().__init__()
        self.preemphasis = preemphasis
        self.floor = floor
        cosine, sine = dft_tables(N_FFT)
        self.register_buffer("window", povey_window(WINDOW).float(), persistent=False)
        self.register_buffer("cosine", cosine.float(), persistent=False)
        self.register_buffer("sine", sine.float(), persistent=False)
        self.register_buffer("bank", mel_filter_bank(MELS, N_FFT, SAMPLE_RATE).float(), persistent=False)

    def frame(self, wave):
        """[batch, samples] to [batch, frames, N_FFT]: no mean, pre-emphasis, window, zeros."""
        frames = wave.unfold(-1, WINDOW, HOP)
        frames = frames - frames.mean(dim=-1, keepdim=True)
        before = F.pad(frames, (1, 0), mode="replicate")[..., :-1]
        frames = frames - self.preemphasis * before
        frames = frames * self.window
        return F.pad(frames, (0, N_FFT - WINDOW))

    def forward(self, wave):
        frames = self.frame(wave * 2**15)
        power = (frames @ self.cosine).square() + (frames @ self.sine).square()
        energy = torch.einsum("btk,mk->btm", power, self.bank)
        fbank = energy.clamp(min=self.floor).log()
        return (fbank - FBANK_MEAN) / (2 * FBANK_STD)


class PatchEmbed(nn.Module):
    """Patches of time and frequency that overlap, in the order of time, then frequency."""

    def __init__(self, patch, stride, embed: int, width: int):
        super().__init__()
        self.patch = patch
        self.stride = stride
        self.grid = ((FRAMES - patch[0]) // stride[0] + 1, (MELS - patch[1]) // stride[1] + 1)
        self.proj = nn.Conv2d(1, embed, patch, stride=stride)
        self.norm = nn.LayerNorm(embed)
        self.post_proj = nn.Linear(embed, width)
        self.freq_embed = nn.Parameter(torch.zeros(1, self.grid[1], width))

    def padding(self, frame_padding):
        """A token is padding if all of its frames are; [batch, time] and [batch, time * frequency]."""
        time = frame_padding.unfold(1, self.patch[0], self.stride[0]).all(dim=-1)
        return time, time.repeat_interleave(self.grid[1], dim=1)

    def forward(self, fbank, frame_padding):
        x = self.proj(fbank.unsqueeze(1))
        x = x.reshape(x.shape[0], x.shape[1], -1).transpose(1, 2)
        x = self.post_proj(self.norm(x))
        x = x + self.freq_embed.repeat(1, self.grid[0], 1)
        time_padding, token_padding = self.padding(frame_padding)
        x = x.masked_fill(token_padding.unsqueeze(-1), 0.0)
        return x, time_padding, token_padding


# ---------------------------------------------------------------------------------------------------------------------
# encoder
# ---------------------------------------------------------------------------------------------------------------------


class MultiheadAttention(nn.Module):
    """Attention with a relative position bias, which each query scales by a gate of its own."""

    def __init__(self, width: int, heads: int, grid, has_bias_table: bool, buckets: int = 16, max_distance: int = 21):
        super().__init__()
        self.heads = heads
        self.head_dim = width // heads
        self.scaling = self.head_dim**-0.5
        self.alpha = 32.0
        self.has_bias_table = has_bias_table
        self.q_proj = nn.Linear(width, width)
        self.k_proj = nn.Linear(width, width)
        self.v_proj = nn.Linear(width, width)
        self.out_proj = nn.Linear(width, width)
        self.grep_linear = nn.Linear(self.head_dim, 8)
        self.grep_a = nn.Parameter(torch.ones(1, heads, 1, 1))
        if has_bias_table:
            self.relative_attention_bias = nn.Embedding(buckets, heads)
            self.freq_bias_table = nn.Parameter(torch.zeros(2 * grid[1] - 1, heads))
            tokens = torch.arange(grid[0] * grid[1])
            time, freq = tokens // grid[1], tokens % grid[1]
            relative_time = time[None, :] - time[:, None]
            relative_freq = freq[None, :] - freq[:, None]
            bucket = relative_position_bucket(relative_time, buckets, max_distance)
            self.register_buffer("bucket", bucket, persistent=False)
            self.register_buffer("freq_index", relative_freq + grid[1] - 1, persistent=False)

    def compute_bias(self):
        """[1, heads, tokens, tokens]"""
        values = self.relative_attention_bias(self.bucket) + self.freq_bias_table[self.freq_index]
        return values.permute(2, 0, 1).unsqueeze(0)

    def split(self, x):
        return x.view(x.shape[0], x.shape[1], self.heads, self.head_dim).transpose(1, 2)

    def forward(self, x, key_padding_mask=None, position_bias=None):
        batch, length, width = x.shape
        if position_bias is None and self.has_bias_table:
            position_bias = self.compute_bias()

        # the scores are made small and large again, so that float16 does not overflow
        q = self.split(self.q_proj(x) * self.scaling * (1 / self.alpha))
        k = self.split(self.k_proj(x))
        v = self.split(self.v_proj(x))
        weights = q @ k.transpose(-2, -1)
        weights = (weights - weights.amax(dim=-1, keepdim=True)) * self.alpha
        if key_padding_mask is not None:
            weights = weights.masked_fill(key_padding_mask[:, None, None, :], float("-inf"))

        if position_bias is not None:
            query = q * self.alpha / self.scaling
            gate = self.grep_linear(query).view(batch, self.heads, length, 2, 4).sum(dim=-1)
            gate_a, gate_b = torch.sigmoid(gate).chunk(2, dim=-1)
            gate = gate_a * (gate_b * self.grep_a - 1.0) + 2.0
            weights = weights + gate * position_bias

        weights = weights.softmax(dim=-1)
        out = (weights @ v).transpose(1, 2).reshape(batch, length, width)
        return self.out_proj(out), position_bias


class GLULinear(nn.Module):
    """Linear layer whose second half gates the first."""

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.hidden = hidden
        self.linear = nn.Linear(width, 2 * hidden)
        self.act = nn.SiLU()

    def forward(self, x):
        x = self.linear(x)
        return x[..., : self.hidden] * self.act(x[..., self.hidden :])


class EncoderLayer(nn.Module):
    """Norm after the sum, with the shortcut scaled as in DeepNet."""

    def __init__(self, width: int, hidden: int, heads: int, grid, depth: int, has_bias_table: bool):
        super().__init__()
        self.deep_norm_alpha = math.pow(2 * depth, 1 / 4)
        self.self_attn = MultiheadAttention(width, heads, grid, has_bias_table)
        self.self_attn_layer_norm = nn.LayerNorm(width)
        self.fc1 = GLULinear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)
        self.final_layer_norm = nn.LayerNorm(width)

    def forward(self, x, padding_mask, position_bias):
        residual = x
        x, position_bias = self.self_attn(x, padding_mask, position_bias)
        x = residual * self.deep_norm_alpha + x
        x = self.self_attn_layer_norm(x)

        residual = x
        x = self.fc2(self.fc1(x))
        x = residual * self.deep_norm_alpha + x
        x = self.final_layer_norm(x)
        return x, position_bias


class SamePad(nn.Module):
    """Cuts what an even kernel leaves too much."""

    def __init__(self, kernel: int):
        super().__init__()
        self.remove = 1 if kernel % 2 == 0 else 0

    def forward(self, x):
        if self.remove > 0:
            x = x[:, :, : -self.remove]
        return x


class Encoder(nn.Module):
    """Convolutional positions, layers, and a learned mean over the states of all of them."""

    def __init__(self, width: int, hidden: int, heads: int, depth: int, grid, kernel: int = 8, groups: int = 4):
        super().__init__()
        self.pos_conv = nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=groups)
        self.same_pad = SamePad(kernel)
        self.act = nn.GELU()
        self.layer_norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(
            [EncoderLayer(width, hidden, heads, grid, depth, has_bias_table=i == 0) for i in range(depth)]
        )
        self.layer_weights = nn.Parameter(torch.zeros(depth + 1))

    def forward(self, x, padding_mask):
        position = self.act(self.same_pad(self.pos_conv(x.transpose(1, 2))))
        x = x + position.transpose(1, 2)
        x = self.layer_norm(x)

        states = [x]
        position_bias = None
        for layer in self.layers:
            x, position_bias = layer(x, padding_mask, position_bias)
            states.append(x)

        weights = self.layer_weights.softmax(dim=0)
        return torch.einsum("l,lbnd->bnd", weights, torch.stack(states))


# ---------------------------------------------------------------------------------------------------------------------
# head
# ---------------------------------------------------------------------------------------------------------------------


class AttentiveHead(nn.Module):
    """Mean and deviation over frequency, neighbours in time, and an attention over time for each class."""

    def __init__(self, width: int, hidden: int, classes: int, grid):
        super().__init__()
        self.grid = grid
        self.fc = nn.Linear(2 * width, hidden)
        self.act = nn.LeakyReLU()
        self.att = nn.Conv1d(hidden, classes, 1)
        self.cla = nn.Conv1d(hidden, classes, 1)

    def forward(self, x, time_padding):
        batch, _, width = x.shape
        x = x.view(batch, self.grid[0], self.grid[1], width)
        x = torch.cat([x.mean(dim=2), x.std(dim=2)], dim=-1)
        x = x.masked_fill(time_padding.unsqueeze(-1), 0.0).transpose(1, 2)
        x1 = F.max_pool1d(x, kernel_size=3, stride=1, padding=1)
        x2 = F.avg_pool1d(x, kernel_size=3, stride=1, padding=1)
        x = self.act(self.fc((x1 + x2).transpose(1, 2))).transpose(1, 2)

        attention = torch.tanh(self.att(x)) * 3.0
        attention = attention.masked_fill(time_padding.unsqueeze(1), float("-inf")).softmax(dim=-1)
        scores = torch.sigmoid(self.cla(x))
        clipwise = (attention * scores).sum(dim=2)
        return clipwise, scores


class AudioTagger(nn.Module):
    """Waveforms and their lengths to tags of the clip, scores of each frame, and begin and end of each class."""

    def __init__(self, width=48, hidden=56, heads=4, depth=3, embed=40, classes=9, patch=(8, 8), stride=(5, 6)):
        super().__init__()
        self.log_mel = LogMel()
        self.bn0 = nn.BatchNorm2d(MELS)
        self.patch_embed = PatchEmbed(patch, stride, embed, width)
        grid = self.patch_embed.grid
        self.encoder = Encoder(width, hidden, heads, depth, grid)
        self.head = AttentiveHead(width, 64, classes, grid)
        times = (torch.arange(FRAMES) * HOP + WINDOW / 2) / SAMPLE_RATE
        self.register_buffer("token_to_frame", token_to_frame_map(FRAMES, patch[0], stride[0]), persistent=False)
        self.register_buffer("times", times, persistent=False)

    def framewise(self, scores, clipwise, frame_padding):
        """Scores of tokens to scores of frames: spread, smoothed, cut at the end, and weighed with the clip's tag."""
        frames = torch.einsum("bct,ft->bcf", scores, self.token_to_frame)
        frames = F.avg_pool1d(frames, kernel_size=5, stride=1, padding=2, count_include_pad=False)
        frames = frames.transpose(1, 2).masked_fill(frame_padding.unsqueeze(-1), 0.0)
        return frames * clipwise.unsqueeze(1)

    def localize(self, frames):
        """Begin and end in seconds: the centre of the scores over time, less and plus their spread."""
        weights = frames / frames.sum(dim=1, keepdim=True).clamp(min=1e-6)
        centre = torch.einsum("btc,t->bc", weights, self.times)
        offset = self.times[None, :, None] - centre[:, None, :]
        spread = (weights * offset.square()).sum(dim=1).sqrt()
        return torch.stack([centre - spread, centre + spread], dim=-1)

    def forward(self, wave, lengths):
        frame_padding = lengths_to_padding(lengths, FRAMES)
        fbank = self.log_mel(wave)

        x = fbank.unsqueeze(1).transpose(1, 3)
        x = self.bn0(x)
        x = x.transpose(1, 3).squeeze(1)
        x = x.masked_fill(frame_padding.unsqueeze(-1), 0.0)

        x, time_padding, token_padding = self.patch_embed(x, frame_padding)
        x = self.encoder(x, token_padding)
        clipwise, scores = self.head(x, time_padding)
        frames = self.framewise(scores, clipwise, frame_padding)
        return clipwise, frames, self.localize(frames)


def clips(lengths, samples: int):
    """Chirps that come and go, over noise; silence after the end."""
    time = torch.arange(samples) / SAMPLE_RATE
    wave = torch.zeros(len(lengths), samples)
    for row, length in enumerate(lengths.tolist()):
        for _ in range(4):
            start, pitch, glide, width = torch.rand(4).tolist()
            shape = torch.exp(-((time - start * time[length - 1]) ** 2) / (0.02 + 0.03 * width))
            angle = 2 * math.pi * (150 + 2800 * pitch**2 + 300 * glide * time) * time
            wave[row] += 0.2 * shape * angle.sin()
        wave[row] += 0.01 * torch.randn(samples) + 0.02
        wave[row, length:] = 0.0
    return wave


def build():
    """The net with the same weights on every run, and three clips of different lengths."""
    torch.manual_seed(83)
    net = AudioTagger()
    for name, parameter in net.named_parameters():
        if name.endswith("bias") and parameter.ndim == 1:
            nn.init.normal_(parameter, std=0.1)
    for module in net.modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.uniform_(module.weight, 0.6, 1.4)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.running_mean, 0.2, 0.2)
            nn.init.uniform_(module.running_var, 0.05, 0.2)
        elif isinstance(module, MultiheadAttention):
            nn.init.xavier_uniform_(module.q_proj.weight, gain=1.3)
            nn.init.xavier_uniform_(module.k_proj.weight, gain=1.3)
            nn.init.xavier_uniform_(module.v_proj.weight, gain=1.4)
            nn.init.xavier_uniform_(module.out_proj.weight, gain=1.4)
            nn.init.normal_(module.grep_linear.weight, std=0.4)
            nn.init.uniform_(module.grep_a, 0.7, 1.8)
            if module.has_bias_table:
                nn.init.normal_(module.relative_attention_bias.weight, std=1.0)
                nn.init.normal_(module.freq_bias_table, std=0.6)
        elif isinstance(module, EncoderLayer):
            nn.init.xavier_uniform_(module.fc1.linear.weight, gain=1.4)
            nn.init.xavier_uniform_(module.fc2.weight, gain=1.4)
        elif isinstance(module, AttentiveHead):
            nn.init.normal_(module.fc.weight, std=0.15)
            nn.init.normal_(module.att.weight, std=0.2)
            nn.init.normal_(module.cla.weight, std=0.2)
    nn.init.normal_(net.patch_embed.freq_embed, std=0.3)
    nn.init.normal_(net.encoder.layer_weights, std=0.5)
    samples = WINDOW + (FRAMES - 1) * HOP
    lengths = torch.tensor([samples, 6230, 4410])
    return net.eval(), (clips(lengths, samples), lengths)
