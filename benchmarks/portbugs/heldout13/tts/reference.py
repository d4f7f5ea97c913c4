"""A multi-speaker acoustic model for text to speech: a phoneme encoder with windowed relative positions, predictors of
duration, pitch and energy, a hard alignment, and a decoder of invertible flows run backwards, with a postnet."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F


def sequence_mask(length, max_length=None):
    max_length = int(length.max()) if max_length is None else max_length
    x = torch.arange(max_length, dtype=length.dtype, device=length.device)
    return x.unsqueeze(0) < length.unsqueeze(1)


def generate_path(duration, mask):
    """duration: [b, t_x], mask: [b, t_y, t_x]; a path that is one where a frame belongs to a phoneme."""
    b, t_y, t_x = mask.shape
    cum_duration = torch.cumsum(duration, 1)
    path = sequence_mask(cum_duration.view(b * t_x), t_y).to(mask.dtype).view(b, t_x, t_y)
    path = path - F.pad(path, (0, 0, 1, 0))[:, :-1]
    return path.transpose(1, 2) * mask


def squeeze(x, x_mask, n_sqz=2):
    b, c, t = x.size()
    t = (t // n_sqz) * n_sqz
    x_sqz = x[:, :, :t].view(b, c, t // n_sqz, n_sqz)
    x_sqz = x_sqz.permute(0, 3, 1, 2).contiguous().view(b, c * n_sqz, t // n_sqz)
    x_mask = x_mask[:, :, n_sqz - 1 :: n_sqz]
    return x_sqz * x_mask, x_mask


def unsqueeze(x, x_mask, n_sqz=2):
    b, c, t = x.size()
    x_unsqz = x.view(b, n_sqz, c // n_sqz, t)
    x_unsqz = x_unsqz.permute(0, 2, 3, 1).contiguous().view(b, c // n_sqz, t * n_sqz)
    x_mask = x_mask.unsqueeze(-1).repeat(1, 1, 1, n_sqz).view(b, 1, t * n_sqz)
    return x_unsqz * x_mask, x_mask


def fused_add_tanh_sigmoid_multiply(input_a, input_b, n_channels):
    in_act = input_a + input_b
    return torch.tanh(in_act[:, :n_channels, :]) * torch.sigmoid(in_act[:, n_channels:, :])


class ChannelNorm(nn.Module):
    """Layer norm over the channels of [b, c, t]."""

    def __init__(self, channels, eps=1e-4):
        super().__init__()
        self.channels = channels
        self.eps = eps
        self.gamma = nn.Parameter(torch.ones(channels))
        self.beta = nn.Parameter(torch.zeros(channels))

    def forward(self, x):
        x = x.transpose(1, -1)
        x = F.layer_norm(x, (self.channels,), self.gamma, self.beta, self.eps)
        return x.transpose(1, -1)


class ConvReluNorm(nn.Module):
    def __init__(self, channels, kernel_size, n_layers):
        super().__init__()
        self.conv_layers = nn.ModuleList(
            [nn.Conv1d(channels, channels, kernel_size, padding=kernel_size // 2) for _ in range(n_layers)]
        )
        self.norm_layers = nn.ModuleList([ChannelNorm(channels) for _ in range(n_layers)])
        self.proj = nn.Conv1d(channels, channels, 1)

    def forward(self, x, x_mask):
        x_org = x
        for conv, norm in zip(self.conv_layers, self.norm_layers):
            x = torch.relu(norm(conv(x * x_mask)))
        return (x_org + self.proj(x)) * x_mask


class RelativeAttention(nn.Module):
    def __init__(self, channels, n_heads, window_size=4):
        super().__init__()
        self.n_heads = n_heads
        self.window_size = window_size
        self.k_channels = channels // n_heads
        self.conv_q = nn.Conv1d(channels, channels, 1)
        self.conv_k = nn.Conv1d(channels, channels, 1)
        self.conv_v = nn.Conv1d(channels, channels, 1)
        self.emb_rel_k = nn.Parameter(torch.randn(1, window_size * 2 + 1, self.k_channels) * 0.4)
        self.emb_rel_v = nn.Parameter(torch.randn(1, window_size * 2 + 1, self.k_channels) * 0.4)
        self.conv_o = nn.Conv1d(channels, channels, 1)

    def forward(self, x, attn_mask):
        q, k, v = self.conv_q(x), self.conv_k(x), self.conv_v(x)
        b, d, t = q.shape
        query = q.view(b, self.n_heads, self.k_channels, t).transpose(2, 3)
        key = k.view(b, self.n_heads, self.k_channels, t).transpose(2, 3)
        value = v.view(b, self.n_heads, self.k_channels, t).transpose(2, 3)

        scores = torch.matmul(query / math.sqrt(self.k_channels), key.transpose(-2, -1))
        key_relative = self._get_relative_embeddings(self.emb_rel_k, t)
        rel_logits = torch.matmul(query / math.sqrt(self.k_channels), key_relative.unsqueeze(0).transpose(-2, -1))
        scores = scores + self._relative_to_absolute(rel_logits)
        r = torch.arange(t, dtype=scores.dtype, device=scores.device)
        scores = scores - torch.log1p(torch.abs(r.unsqueeze(0) - r.unsqueeze(1)))
        scores = scores.masked_fill(attn_mask == 0, -1e4)
        p_attn = F.softmax(scores, dim=-1)

        value_relative = self._get_relative_embeddings(self.emb_rel_v, t)
        relative_weights = self._absolute_to_relative(p_attn)
        output = torch.matmul(p_attn, value) + torch.matmul(relative_weights, value_relative.unsqueeze(0))
        return self.conv_o(output.transpose(2, 3).contiguous().view(b, d, t))

    def _get_relative_embeddings(self, relative_embeddings, length):
        pad_length = max(length - (self.window_size + 1), 0)
        start = max((self.window_size + 1) - length, 0)
        return F.pad(relative_embeddings, (0, 0, pad_length, pad_length))[:, start : start + 2 * length - 1]

    def _relative_to_absolute(self, x):
        """[b, h, l, 2l-1] -> [b, h, l, l]"""
        b, h, length, _ = x.size()
        x_flat = F.pad(F.pad(x, (0, 1)).view(b, h, length * 2 * length), (0, length - 1))
        return x_flat.view(b, h, length + 1, 2 * length - 1)[:, :, :length, length - 1 :]

    def _absolute_to_relative(self, x):
        """[b, h, l, l] -> [b, h, l, 2l-1]"""
        b, h, length, _ = x.size()
        x_flat = F.pad(F.pad(x, (0, length - 1)).view(b, h, length * (2 * length - 1)), (length, 0))
        return x_flat.view(b, h, length, 2 * length)[:, :, :, 1:]


class EncoderLayer(nn.Module):
    def __init__(self, channels, filter_channels, n_heads, kernel_size):
        super().__init__()
        self.kernel_size = kernel_size
        self.attn = RelativeAttention(channels, n_heads)
        self.norm_1 = ChannelNorm(channels)
        self.conv_1 = nn.Conv1d(channels, filter_channels, kernel_size)
        self.conv_2 = nn.Conv1d(filter_channels, channels, kernel_size)
        self.norm_2 = ChannelNorm(channels)

    def _same_padding(self, x):
        return F.pad(x, ((self.kernel_size - 1) // 2, self.kernel_size // 2))

    def forward(self, x, x_mask, attn_mask):
        x = x * x_mask
        x = self.norm_1(x + self.attn(x, attn_mask))
        y = torch.relu(self.conv_1(self._same_padding(x * x_mask)))
        y = self.conv_2(self._same_padding(y * x_mask))
        return self.norm_2(x + y * x_mask)


class PhonemeEncoder(nn.Module):
    def __init__(self, n_vocab, n_stress, channels, filter_channels, n_heads, n_layers, kernel_size=3):
        super().__init__()
        self.channels = channels
        self.emb = nn.Embedding(n_vocab, channels)
        self.emb_stress = nn.Embedding(n_stress, channels)
        self.prenet = ConvReluNorm(channels, 5, 2)
        self.layers = nn.ModuleList(
            [EncoderLayer(channels, filter_channels, n_heads, kernel_size) for _ in range(n_layers)]
        )

    def forward(self, phonemes, stress, x_lengths):
        x = (self.emb(phonemes) + self.emb_stress(stress)) * math.sqrt(self.channels)
        x = x.transpose(1, -1)
        x_mask = sequence_mask(x_lengths, x.size(2)).unsqueeze(1).to(x.dtype)
        x = self.prenet(x, x_mask)
        attn_mask = x_mask.unsqueeze(2) * x_mask.unsqueeze(-1)
        for layer in self.layers:
            x = layer(x, x_mask, attn_mask)
        return x * x_mask, x_mask


class VariancePredictor(nn.Module):
    """One number for each phoneme, from [b, t, c]."""

    def __init__(self, channels, filter_channels, kernel_size=3):
        super().__init__()
        self.conv_1 = nn.Conv1d(channels, filter_channels, kernel_size, padding=(kernel_size - 1) // 2)
        self.act = nn.LeakyReLU(0.1)
        self.norm_1 = nn.LayerNorm(filter_channels)
        self.conv_2 = nn.Conv1d(filter_channels, filter_channels, kernel_size, padding=1)
        self.norm_2 = nn.LayerNorm(filter_channels)
        self.linear_layer = nn.Linear(filter_channels, 1)

    def forward(self, x, pad_mask):
        out = x.masked_fill(pad_mask.unsqueeze(-1), 0.0)
        out = self.norm_1(self.act(self.conv_1(out.transpose(1, 2)).transpose(1, 2)))
        out = self.norm_2(self.act(self.conv_2(out.transpose(1, 2)).transpose(1, 2)))
        out = self.linear_layer(out).squeeze(-1)
        return out.masked_fill(pad_mask, 0.0)


class VarianceAdaptor(nn.Module):
    def __init__(self, channels, gin_channels, n_bins=24, max_frames=160):
        super().__init__()
        self.max_frames = max_frames
        self.cond = nn.Linear(gin_channels, channels)
        self.duration_predictor = VariancePredictor(channels, channels)
        self.pitch_predictor = VariancePredictor(channels, channels)
        self.energy_predictor = VariancePredictor(channels, channels)
        self.register_buffer("pitch_bins", torch.linspace(-2.4, 2.4, n_bins - 1), persistent=False)
        energy_bins = torch.exp(torch.linspace(math.log(0.15), math.log(3.5), n_bins - 1))
        self.register_buffer("energy_bins", energy_bins, persistent=False)
        self.pitch_embedding = nn.Embedding(n_bins, channels)
        self.energy_embedding = nn.Embedding(n_bins, channels)
        self.progress = nn.Linear(2, channels)

    def forward(self, x, x_mask, g, d_control=1.0):
        pad_mask = x_mask.squeeze(1) == 0
        x = x.transpose(1, 2) + self.cond(g).unsqueeze(1)
        log_duration = self.duration_predictor(x, pad_mask)

        pitch = self.pitch_predictor(x, pad_mask)
        x = x + self.pitch_embedding(torch.bucketize(pitch, self.pitch_bins))
        energy = F.softplus(self.energy_predictor(x, pad_mask))
        x = x + self.energy_embedding(torch.bucketize(energy, self.energy_bins))

        duration = torch.clamp(torch.round(torch.exp(log_duration) - 1) * d_control, min=0)
        duration = duration.masked_fill(pad_mask, 0.0)
        y_lengths = torch.clamp(duration.sum(1), 2, self.max_frames).long()
        y_lengths = (y_lengths // 2) * 2
        y_mask = sequence_mask(y_lengths).unsqueeze(1).to(x.dtype)
        path = generate_path(duration, y_mask.transpose(1, 2) * x_mask)
        frames = torch.matmul(path, x)

        starts = torch.cumsum(duration, 1) - duration
        places = torch.arange(path.shape[1], dtype=x.dtype, device=x.device).unsqueeze(0)
        inside = places - torch.matmul(path, starts.unsqueeze(-1)).squeeze(-1)
        total = torch.matmul(path, duration.unsqueeze(-1)).squeeze(-1).clamp(min=1.0)
        ratio = (inside / total) * y_mask.squeeze(1)
        frames = frames + self.progress(torch.stack([ratio, 1.0 - ratio], dim=-1))
        return frames.transpose(1, 2) * y_mask, y_mask, path, log_duration, pitch, energy


class WaveNet(nn.Module):
    def __init__(self, channels, kernel_size, dilation_rate, n_layers, gin_channels):
        super().__init__()
        self.channels, self.n_layers = channels, n_layers
        self.in_layers, self.res_skip_layers = nn.ModuleList(), nn.ModuleList()
        self.cond_layer = nn.Conv1d(gin_channels, 2 * channels * n_layers, 1)
        for i in range(n_layers):
            dilation = dilation_rate**i
            padding = (kernel_size * dilation - dilation) // 2
            self.in_layers.append(nn.Conv1d(channels, 2 * channels, kernel_size, dilation=dilation, padding=padding))
            res_skip_channels = 2 * channels if i < n_layers - 1 else channels
            self.res_skip_layers.append(nn.Conv1d(channels, res_skip_channels, 1))

    def forward(self, x, x_mask, g):
        output = torch.zeros_like(x)
        g = self.cond_layer(g)
        for i in range(self.n_layers):
            x_in = self.in_layers[i](x)
            offset = i * 2 * self.channels
            g_l = g[:, offset : offset + 2 * self.channels, :]
            acts = fused_add_tanh_sigmoid_multiply(x_in, g_l, self.channels)
            res_skip_acts = self.res_skip_layers[i](acts)
            if i < self.n_layers - 1:
                x = (x + res_skip_acts[:, : self.channels, :]) * x_mask
                output = output + res_skip_acts[:, self.channels :, :]
            else:
                output = output + res_skip_acts
        return output * x_mask


class ActNorm(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.logs = nn.Parameter(torch.randn(1, channels, 1) * 0.2)
        self.bias = nn.Parameter(torch.randn(1, channels, 1) * 0.2)

    def forward(self, x, x_mask, g=None):
        return (x - self.bias) * torch.exp(-self.logs) * x_mask


class InvConvNear(nn.Module):
    def __init__(self, n_split=4):
        super().__init__()
        self.n_split = n_split
        w_init = torch.linalg.qr(torch.randn(n_split, n_split))[0]
        self.weight = nn.Parameter(w_init + 0.1 * torch.randn(n_split, n_split))

    def forward(self, x, x_mask, g=None):
        b, c, t = x.size()
        x = x.view(b, 2, c // self.n_split, self.n_split // 2, t)
        x = x.permute(0, 1, 3, 2, 4).contiguous().view(b, self.n_split, c // self.n_split, t)
        z = F.conv2d(x, torch.inverse(self.weight).view(self.n_split, self.n_split, 1, 1))
        z = z.view(b, 2, self.n_split // 2, c // self.n_split, t)
        return z.permute(0, 1, 3, 2, 4).contiguous().view(b, c, t) * x_mask


class CouplingBlock(nn.Module):
    def __init__(self, in_channels, hidden, n_layers, gin_channels):
        super().__init__()
        self.in_channels = in_channels
        self.start = nn.Conv1d(in_channels // 2, hidden, 1)
        self.wn = WaveNet(hidden, 3, 2, n_layers, gin_channels)
        self.end = nn.Conv1d(hidden, in_channels, 1)

    def forward(self, x, x_mask, g):
        x_0, x_1 = x[:, : self.in_channels // 2], x[:, self.in_channels // 2 :]
        h = self.start(x_0) * x_mask
        out = self.end(self.wn(h, x_mask, g))
        m, logs = out[:, : self.in_channels // 2, :], out[:, self.in_channels // 2 :, :]
        logs = torch.log(1e-6 + torch.sigmoid(logs + 2))
        z_1 = (x_1 - m) * torch.exp(-logs) * x_mask
        return torch.cat([x_0, z_1], 1)


class FlowDecoder(nn.Module):
    """From a sample of the prior to a mel spectrogram: the flows of training, each inverted, in reversed order."""

    def __init__(self, n_mels, hidden, n_blocks, n_layers, gin_channels, n_sqz=2):
        super().__init__()
        self.n_sqz = n_sqz
        self.flows = nn.ModuleList()
        for _ in range(n_blocks):
            self.flows.extend([ActNorm(n_mels * n_sqz), InvConvNear()])
            self.flows.append(CouplingBlock(n_mels * n_sqz, hidden, n_layers, gin_channels))

    def forward(self, z, z_mask, g):
        x, x_mask = squeeze(z, z_mask, self.n_sqz)
        for flow in reversed(self.flows):
            x = flow(x, x_mask, g)
        return unsqueeze(x, x_mask, self.n_sqz)[0]


class PostNet(nn.Module):
    def __init__(self, n_mels, channels, kernel_size=5, n_convolutions=4):
        super().__init__()
        sizes = [n_mels] + [channels] * (n_convolutions - 1) + [n_mels]
        self.convolutions = nn.ModuleList()
        for i in range(n_convolutions):
            conv = nn.Conv1d(sizes[i], sizes[i + 1], kernel_size, padding=(kernel_size - 1) // 2)
            self.convolutions.append(nn.Sequential(conv, nn.BatchNorm1d(sizes[i + 1], eps=1e-3)))

    def forward(self, x, mask):
        for convolution in self.convolutions[:-1]:
            x = torch.tanh(convolution(x)) * mask
        return self.convolutions[-1](x) * mask


class AcousticModel(nn.Module):
    def __init__(self, n_vocab=70, n_stress=4, n_speakers=5, channels=48, n_mels=20, gin_channels=24):
        super().__init__()
        self.emb_g = nn.Embedding(n_speakers, gin_channels)
        self.encoder = PhonemeEncoder(n_vocab, n_stress, channels, 2 * channels, n_heads=2, n_layers=2)
        self.adaptor = VarianceAdaptor(channels, gin_channels)
        self.proj_m = nn.Conv1d(channels, n_mels, 1)
        self.proj_s = nn.Conv1d(channels, n_mels, 1)
        self.decoder = FlowDecoder(n_mels, 32, n_blocks=3, n_layers=3, gin_channels=gin_channels)
        self.postnet = PostNet(n_mels, 40)

    def forward(self, phonemes, stress, lengths, speaker, noise, noise_scale=0.667):
        g = F.normalize(self.emb_g(speaker))
        x, x_mask = self.encoder(phonemes, stress, lengths)
        y, y_mask, path, log_duration, pitch, energy = self.adaptor(x, x_mask, g)
        z_m, z_logs = self.proj_m(y) * y_mask, self.proj_s(y) * y_mask
        z = (z_m + torch.exp(z_logs) * noise[:, :, : y.shape[2]] * noise_scale) * y_mask
        mel = self.decoder(z, y_mask, g.unsqueeze(-1))
        mel_post = mel + self.postnet(mel, y_mask)
        return mel, mel_post, log_duration, pitch, energy, path


def build():
    """The net with the same weights on every run, and three utterances of different length by different speakers."""
    torch.manual_seed(31)
    net = AcousticModel()
    for name, module in net.named_modules():
        if isinstance(module, (ChannelNorm, nn.LayerNorm, nn.BatchNorm1d)):
            weight, bias = list(module.parameters())
            nn.init.uniform_(weight, 0.6, 1.4)
            nn.init.normal_(bias, std=0.1)
        if isinstance(module, nn.BatchNorm1d):
            nn.init.normal_(module.running_mean, std=0.2)
            nn.init.uniform_(module.running_var, 0.05, 0.4)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.5 if "adaptor" in name or name == "emb_g" else 0.12)
        elif isinstance(module, nn.Conv1d):
            nn.init.normal_(module.weight, std=0.8 / math.sqrt(module.weight[0].numel()))
            nn.init.normal_(module.bias, std=0.1)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=1.0 / math.sqrt(module.in_features))
        if isinstance(module, CouplingBlock):
            module.end.weight.data *= 0.4
    predictor = net.adaptor.duration_predictor.linear_layer
    nn.init.normal_(predictor.weight, std=0.5 / math.sqrt(predictor.in_features))
    nn.init.constant_(predictor.bias, 1.3)
    net.adaptor.pitch_predictor.linear_layer.bias.data.fill_(0.0)
    net.adaptor.energy_predictor.linear_layer.bias.data.fill_(0.5)
    lengths = torch.tensor([17, 11, 14])
    phonemes = torch.randint(1, 70, (3, 17)).masked_fill(~sequence_mask(lengths), 0)
    stress = torch.randint(0, 4, (3, 17)).masked_fill(~sequence_mask(lengths), 0)
    noise = torch.randn(3, 20, 160)
    return net.eval(), (phonemes, stress, lengths, torch.tensor([3, 0, 4]), noise)
