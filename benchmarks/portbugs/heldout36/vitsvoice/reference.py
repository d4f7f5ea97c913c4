"""A small multi-speaker VITS-like text-to-speech model (inference path, static number of frames).

text -> relative-attention encoder -> duration / pitch adaptor -> frame prior -> inverse flow -> HiFi-GAN generator
"""
import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

LRELU_SLOPE = 0.1


def get_padding(kernel_size, dilation=1):
    return int((kernel_size * dilation - dilation) / 2)


def sequence_mask(length, max_length):
    x = torch.arange(max_length, dtype=length.dtype, device=length.device)
    return x.unsqueeze(0) < length.unsqueeze(1)


def generate_path(duration, y_lengths, max_frames):
    """duration [b, t_x] -> hard monotonic alignment [b, t_y, t_x]."""
    b, t_x = duration.shape
    cum_flat = torch.cumsum(duration, 1).reshape(b * t_x)
    path = sequence_mask(cum_flat, max_frames).to(torch.float32).view(b, t_x, max_frames)
    path = path - F.pad(path, (0, 0, 1, 0, 0, 0))[:, :-1]
    return path.transpose(1, 2) * sequence_mask(y_lengths, max_frames).unsqueeze(-1)


def fused_add_tanh_sigmoid_multiply(a, b, n_channels):
    in_act = a + b
    return torch.tanh(in_act[:, :n_channels]) * torch.sigmoid(in_act[:, n_channels:])


class LayerNorm(nn.Module):
    """Layer norm over the channels of [b, c, t]."""

    def __init__(self, channels, eps=1e-5):
        super().__init__()
        self.channels, self.eps = channels, eps
        self.gamma = nn.Parameter(torch.ones(channels))
        self.beta = nn.Parameter(torch.zeros(channels))

    def forward(self, x):
        x = F.layer_norm(x.transpose(1, -1), (self.channels,), self.gamma, self.beta, self.eps)
        return x.transpose(1, -1)


class ConvBNPrenet(nn.Module):
    def __init__(self, channels, kernel_size, n_layers):
        super().__init__()
        self.convs = nn.ModuleList()
        self.bns = nn.ModuleList()
        for _ in range(n_layers):
            self.convs.append(nn.Conv1d(channels, channels, kernel_size, padding=kernel_size // 2, bias=False))
            self.bns.append(nn.BatchNorm1d(channels, eps=1e-3, momentum=0.01))
        self.proj = nn.Conv1d(channels, channels, 1)

    def forward(self, x, x_mask):
        x_org = x
        for conv, bn in zip(self.convs, self.bns):
            x = torch.relu(bn(conv(x * x_mask)))
        return (x_org + self.proj(x)) * x_mask


class MultiHeadAttention(nn.Module):
    def __init__(self, channels, n_heads, window_size, proximal_bias=False):
        super().__init__()
        self.n_heads = n_heads
        self.window_size = window_size
        self.proximal_bias = proximal_bias
        self.k_channels = channels // n_heads
        self.conv_q = nn.Conv1d(channels, channels, 1)
        self.conv_k = nn.Conv1d(channels, channels, 1)
        self.conv_v = nn.Conv1d(channels, channels, 1)
        self.conv_o = nn.Conv1d(channels, channels, 1)
        self.emb_rel_k = nn.Parameter(torch.zeros(1, window_size * 2 + 1, self.k_channels))
        self.emb_rel_v = nn.Parameter(torch.zeros(1, window_size * 2 + 1, self.k_channels))

    def forward(self, x, attn_mask):
        q, k, v = self.conv_q(x), self.conv_k(x), self.conv_v(x)
        b, d, t = q.shape
        q, k, v = (y.view(b, self.n_heads, self.k_channels, t).transpose(2, 3) for y in (q, k, v))
        q = q / math.sqrt(self.k_channels)
        scores = torch.matmul(q, k.transpose(-2, -1))
        rel_k = self._get_relative_embeddings(self.emb_rel_k, t)
        rel_logits = torch.matmul(q, rel_k.unsqueeze(0).transpose(-2, -1))
        scores = scores + self._relative_position_to_absolute_position(rel_logits)
        if self.proximal_bias:
            r = torch.arange(t, dtype=scores.dtype)
            scores = scores - torch.log1p(torch.abs(r.unsqueeze(0) - r.unsqueeze(1)))
        scores = scores.masked_fill(attn_mask == 0, -1e4)
        p_attn = F.softmax(scores, dim=-1)
        out = torch.matmul(p_attn, v)
        rel_weights = self._absolute_position_to_relative_position(p_attn)
        rel_v = self._get_relative_embeddings(self.emb_rel_v, t)
        out = out + torch.matmul(rel_weights, rel_v.unsqueeze(0))
        out = out.transpose(2, 3).contiguous().view(b, d, t)
        return self.conv_o(out)

    def _get_relative_embeddings(self, emb, length):
        # positions further away than the window get a zero embedding
        pad_length = max(length - (self.window_size + 1), 0)
        start = max((self.window_size + 1) - length, 0)
        if pad_length > 0:
            emb = F.pad(emb, (0, 0, pad_length, pad_length, 0, 0))
        return emb[:, start:start + 2 * length - 1]

    @staticmethod
    def _relative_position_to_absolute_position(x):
        b, h, t, _ = x.shape
        x = F.pad(x, (0, 1)).view(b, h, t * 2 * t)
        x = F.pad(x, (0, t - 1))
        return x.view(b, h, t + 1, 2 * t - 1)[:, :, :t, t - 1:]

    @staticmethod
    def _absolute_position_to_relative_position(x):
        b, h, t, _ = x.shape
        x = F.pad(x, (0, t - 1)).view(b, h, t * t + t * (t - 1))
        x = F.pad(x, (t, 0))
        return x.view(b, h, t, 2 * t)[:, :, :, 1:]


class FFN(nn.Module):
    def __init__(self, channels, filter_channels, kernel_size):
        super().__init__()
        self.kernel_size = kernel_size
        self.conv_1 = nn.Conv1d(channels, filter_channels, kernel_size)
        self.conv_2 = nn.Conv1d(filter_channels, channels, kernel_size)
        self.act = nn.GELU()

    def forward(self, x, x_mask):
        x = self.act(self.conv_1(self._same_padding(x * x_mask)))
        x = self.conv_2(self._same_padding(x * x_mask))
        return x * x_mask

    def _same_padding(self, x):
        return F.pad(x, ((self.kernel_size - 1) // 2, self.kernel_size // 2))


class Encoder(nn.Module):
    def __init__(self, channels, filter_channels, n_heads, n_layers, kernel_size, window_size, proximal_bias=False):
        super().__init__()
        self.attn_layers = nn.ModuleList([MultiHeadAttention(channels, n_heads, window_size, proximal_bias)
                                          for _ in range(n_layers)])
        self.norm_layers_1 = nn.ModuleList([LayerNorm(channels) for _ in range(n_layers)])
        self.ffn_layers = nn.ModuleList([FFN(channels, filter_channels, kernel_size) for _ in range(n_layers)])
        self.norm_layers_2 = nn.ModuleList([LayerNorm(channels) for _ in range(n_layers)])

    def forward(self, x, x_mask):
        attn_mask = x_mask.unsqueeze(2) * x_mask.unsqueeze(-1)
        x = x * x_mask
        for attn, norm_1, ffn, norm_2 in zip(self.attn_layers, self.norm_layers_1, self.ffn_layers,
                                             self.norm_layers_2):
            x = norm_1(x + attn(x, attn_mask))
            x = norm_2(x + ffn(x, x_mask))
        return x * x_mask


class TextEncoder(nn.Module):
    def __init__(self, n_vocab, channels, filter_channels, n_heads, n_layers, kernel_size, window_size):
        super().__init__()
        self.channels = channels
        self.emb = nn.Embedding(n_vocab, channels)
        self.prenet = ConvBNPrenet(channels, 5, 2)
        self.encoder = Encoder(channels, filter_channels, n_heads, n_layers, kernel_size, window_size)

    def forward(self, tokens, lengths):
        x = self.emb(tokens) * math.sqrt(self.channels)
        x_mask = sequence_mask(lengths, x.size(1)).unsqueeze(1).to(x.dtype)
        x = self.prenet(x.transpose(1, 2), x_mask)
        return self.encoder(x, x_mask), x_mask


class VariancePredictor(nn.Module):
    def __init__(self, channels, filter_channels, kernel_size, gin_channels):
        super().__init__()
        self.conv_1 = nn.Conv1d(channels, filter_channels, kernel_size, padding=kernel_size // 2)
        self.norm_1 = LayerNorm(filter_channels)
        self.conv_2 = nn.Conv1d(filter_channels, filter_channels, kernel_size, padding=kernel_size // 2)
        self.norm_2 = LayerNorm(filter_channels)
        self.proj = nn.Conv1d(filter_channels, 1, 1)
        self.cond = nn.Conv1d(gin_channels, channels, 1)

    def forward(self, x, x_mask, g):
        x = x + self.cond(g)
        x = self.norm_1(torch.relu(self.conv_1(x * x_mask)))
        x = self.norm_2(torch.relu(self.conv_2(x * x_mask)))
        return (self.proj(x * x_mask) * x_mask).squeeze(1)


class VarianceAdaptor(nn.Module):
    def __init__(self, channels, filter_channels, gin_channels, n_bins, pitch_min, pitch_max):
        super().__init__()
        self.dp = VariancePredictor(channels, filter_channels, 3, gin_channels)
        self.pp = VariancePredictor(channels, filter_channels, 5, gin_channels)
        self.register_buffer('pitch_bins', torch.linspace(pitch_min, pitch_max, n_bins - 1), persistent=False)
        self.pitch_emb = nn.Embedding(n_bins, channels)

    def forward(self, x, x_mask, g, max_frames, length_scale):
        # pitch per token
        pitch = self.pp(x, x_mask, g)
        x = x + self.pitch_emb(torch.bucketize(pitch, self.pitch_bins)).transpose(1, 2) * x_mask
        # durations in frames
        log_dur = self.dp(x, x_mask, g)
        dur = torch.clamp(torch.round((torch.exp(log_dur) - 1.0) * length_scale), min=1.0) * x_mask[:, 0]
        dur = dur.long()
        y_lengths = torch.clamp(dur.sum(1), min=1, max=max_frames)
        y_mask = sequence_mask(y_lengths, max_frames).unsqueeze(1).to(x.dtype)
        # length regulation
        path = generate_path(dur, y_lengths, max_frames)
        frames = torch.matmul(path, x.transpose(1, 2))
        return frames.transpose(1, 2) * y_mask, y_mask, y_lengths, pitch, log_dur


class FramePrior(nn.Module):
    def __init__(self, channels, out_channels, filter_channels, n_heads, kernel_size, window_size, max_len=200):
        super().__init__()
        self.out_channels = out_channels
        position = torch.arange(max_len, dtype=torch.float32).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, channels, 2, dtype=torch.float32) * -(math.log(10000.0) / channels))
        pe = torch.zeros(max_len, channels)
        pe[:, 0::2] = torch.sin(position * div_term)
        pe[:, 1::2] = torch.cos(position * div_term)
        self.register_buffer('pe', pe.t().unsqueeze(0), persistent=False)
        self.encoder = Encoder(channels, filter_channels, n_heads, 1, kernel_size, window_size, proximal_bias=True)
        self.proj = nn.Conv1d(channels, out_channels * 2, 1)

    def forward(self, x, x_mask):
        x = self.encoder(x + self.pe[:, :, :x.size(2)], x_mask)
        return torch.split(self.proj(x) * x_mask, self.out_channels, dim=1)


class WN(nn.Module):
    def __init__(self, hidden, kernel_size, dilation_rate, n_layers, gin_channels):
        super().__init__()
        self.hidden = hidden
        self.n_layers = n_layers
        self.cond_layer = nn.Conv1d(gin_channels, 2 * hidden * n_layers, 1)
        self.in_layers = nn.ModuleList()
        self.res_skip_layers = nn.ModuleList()
        for i in range(n_layers):
            dilation = dilation_rate ** i
            self.in_layers.append(nn.Conv1d(hidden, 2 * hidden, kernel_size, dilation=dilation,
                                            padding=get_padding(kernel_size, dilation)))
            # the last one needs no residual
            self.res_skip_layers.append(nn.Conv1d(hidden, 2 * hidden if i < n_layers - 1 else hidden, 1))

    def forward(self, x, x_mask, g):
        output = torch.zeros_like(x)
        g = self.cond_layer(g)
        for i in range(self.n_layers):
            x_in = self.in_layers[i](x)
            offset = i * 2 * self.hidden
            g_l = g[:, offset:offset + 2 * self.hidden, :]
            acts = fused_add_tanh_sigmoid_multiply(x_in, g_l, self.hidden)
            res_skip = self.res_skip_layers[i](acts)
            if i < self.n_layers - 1:
                x = (x + res_skip[:, :self.hidden]) * x_mask
                output = output + res_skip[:, self.hidden:]
            else:
                output = output + res_skip
        return output * x_mask


class ResidualCouplingLayer(nn.Module):
    def __init__(self, channels, hidden, kernel_size, dilation_rate, n_layers, gin_channels):
        super().__init__()
        self.half = channels // 2
        self.pre = nn.Conv1d(self.half, hidden, 1)
        self.enc = WN(hidden, kernel_size, dilation_rate, n_layers, gin_channels)
        self.post = nn.Conv1d(hidden, self.half * 2, 1)

    def forward(self, x, x_mask, g, reverse=False):
        x0, x1 = torch.split(x, [self.half] * 2, 1)
        h = self.enc(self.pre(x0) * x_mask, x_mask, g)
        m, logs = torch.split(self.post(h) * x_mask, [self.half] * 2, 1)
        if not reverse:
            x1 = m + x1 * torch.exp(logs) * x_mask
        else:
            x1 = (x1 - m) * torch.exp(-logs) * x_mask
        return torch.cat([x0, x1], 1)


class Flip(nn.Module):
    def forward(self, x, *args, **kwargs):
        return torch.flip(x, [1])


class ResidualCouplingBlock(nn.Module):
    def __init__(self, channels, hidden, kernel_size, dilation_rate, n_layers, n_flows, gin_channels):
        super().__init__()
        self.flows = nn.ModuleList()
        for _ in range(n_flows):
            self.flows.append(ResidualCouplingLayer(channels, hidden, kernel_size, dilation_rate, n_layers,
                                                    gin_channels))
            self.flows.append(Flip())

    def forward(self, x, x_mask, g, reverse=False):
        for flow in (reversed(self.flows) if reverse else self.flows):
            x = flow(x, x_mask, g, reverse=reverse)
        return x


class ResBlock(nn.Module):
    def __init__(self, channels, kernel_size, dilations):
        super().__init__()
        self.convs1 = nn.ModuleList([nn.Conv1d(channels, channels, kernel_size, dilation=d,
                                               padding=get_padding(kernel_size, d)) for d in dilations])
        self.convs2 = nn.ModuleList([nn.Conv1d(channels, channels, kernel_size,
                                               padding=get_padding(kernel_size, 1)) for _ in dilations])

    def forward(self, x):
        for c1, c2 in zip(self.convs1, self.convs2):
            xt = c1(F.leaky_relu(x, LRELU_SLOPE))
            xt = c2(F.leaky_relu(xt, LRELU_SLOPE))
            x = xt + x
        return x


class Generator(nn.Module):
    def __init__(self, in_channels, channels, rates, kernels, res_kernels, res_dilations, gin_channels):
        super().__init__()
        self.num_kernels = len(res_kernels)
        self.conv_pre = nn.Conv1d(in_channels, channels, 7, padding=3)
        self.cond = nn.Conv1d(gin_channels, channels, 1)
        self.ups = nn.ModuleList()
        self.resblocks = nn.ModuleList()
        for i, (u, k) in enumerate(zip(rates, kernels)):
            ch = channels // (2 ** (i + 1))
            self.ups.append(nn.ConvTranspose1d(2 * ch, ch, k, u, padding=(u // 2 + u % 2), output_padding=u % 2))
            for rk, rd in zip(res_kernels, res_dilations):
                self.resblocks.append(ResBlock(ch, rk, rd))
        self.conv_post = nn.Conv1d(ch, 1, 7, padding=3, bias=False)

    def forward(self, x, g):
        x = self.conv_pre(x) + self.cond(g)
        for i, up in enumerate(self.ups):
            x = up(F.leaky_relu(x, LRELU_SLOPE))
            xs = None
            for j in range(self.num_kernels):
                y = self.resblocks[i * self.num_kernels + j](x)
                xs = y if xs is None else xs + y
            x = xs / self.num_kernels
        x = F.leaky_relu(x)
        return torch.tanh(self.conv_post(x))


class VitsVoice(nn.Module):
    def __init__(self, n_vocab=37, n_speakers=5, hidden=24, inter=20, gin=16):
        super().__init__()
        self.emb_g = nn.Embedding(n_speakers, gin)
        self.enc_p = TextEncoder(n_vocab, hidden, 40, n_heads=3, n_layers=2, kernel_size=4, window_size=4)
        self.adaptor = VarianceAdaptor(hidden, 32, gin, n_bins=12, pitch_min=-1.5, pitch_max=2.0)
        self.prior = FramePrior(hidden, inter, 36, n_heads=2, kernel_size=3, window_size=5)
        self.flow = ResidualCouplingBlock(inter, 28, 5, 2, 3, 3, gin)
        self.dec = Generator(inter, 32, (4, 3), (8, 6), (3, 5, 7), ((1, 3), (1, 2), (2, 3)), gin)

    def forward(self, tokens, lengths, sid, noise, noise_scale, length_scale):
        g = F.normalize(self.emb_g(sid)).unsqueeze(-1)
        x, x_mask = self.enc_p(tokens, lengths)
        frames, y_mask, y_lengths, pitch, log_dur = self.adaptor(x, x_mask, g, noise.size(2), length_scale)
        m_p, logs_p = self.prior(frames, y_mask)
        z_p = (m_p + noise * torch.exp(logs_p) * noise_scale) * y_mask
        z = self.flow(z_p, y_mask, g, reverse=True)
        wav = self.dec(z * y_mask, g)
        return wav, y_lengths, z, log_dur, pitch


def build():
    torch.manual_seed(20)
    net = VitsVoice()
    gen = torch.Generator().manual_seed(21)
    with torch.no_grad():
        for name, p in net.named_parameters():
            r = torch.randn(p.shape, generator=gen)
            if p.dim() == 1:  # biases, and the weights of norms
                p.copy_(1.0 + 0.25 * r if name.endswith('gamma') or 'bns.' in name and 'weight' in name else 0.2 * r)
            elif 'emb' in name:
                p.copy_((0.25 if 'enc_p.emb' in name else 0.6) * r)
            else:
                fan_in = p.shape[0] * p.shape[2] / 3.5 if '.ups.' in name else p[0].numel()
                scale = 0.3 if 'post.' in name else 0.5 if 'prior.proj' in name else 0.9 if name[:3] in ('dec', 'flo') else 1.2
                p.copy_(scale * r / math.sqrt(fan_in))
        net.adaptor.dp.proj.bias.fill_(1.43)
        for bn in net.enc_p.prenet.bns:
            bn.running_mean.copy_(0.3 * torch.randn(bn.running_mean.shape, generator=gen))
            bn.running_var.copy_(0.02 + 1.2 * torch.rand(bn.running_var.shape, generator=gen))
    rng = np.random.RandomState(22)
    tokens = rng.randint(1, 37, (3, 11))
    lengths = np.array([11, 8, 9])
    tokens[np.arange(11)[None, :] >= lengths[:, None]] = 0
    sid = np.array([4, 0, 2])
    noise = rng.randn(3, 20, 53).astype(np.float32)
    inputs = (torch.from_numpy(tokens).long(), torch.from_numpy(lengths).long(), torch.from_numpy(sid).long(),
              torch.from_numpy(noise), 0.667, 1.1)
    return net.eval(), inputs
