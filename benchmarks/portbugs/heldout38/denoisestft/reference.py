"""Complex-mask speech enhancement on a matrix STFT (DCCRN / DPCRN / DeepFilterNet flavoured), small version."""
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

def fourier_tables(n_fft, win_len):
    """Analysis / synthesis bases, both with a sqrt-hann window that is centred in the fft frame."""
    window = torch.hann_window(win_len, periodic=True, dtype=torch.float64).sqrt()
    left = (n_fft - win_len) // 2
    window = F.pad(window, (left, n_fft - win_len - left))
    k, n = torch.arange(n_fft // 2 + 1).double(), torch.arange(n_fft).double()
    angle = 2 * math.pi * torch.outer(k, n) / n_fft
    analysis = torch.cat([torch.cos(angle), -torch.sin(angle)], dim=0) * window
    fold = torch.full((n_fft // 2 + 1, 1), 2.0, dtype=torch.float64)
    fold[0] = fold[-1] = 1.0
    synthesis = torch.cat([fold * torch.cos(angle), -fold * torch.sin(angle)], dim=0) * window / n_fft
    return analysis.float(), synthesis.float(), window.float()

def erb_widths(sr, n_fft, nb_bands, min_bins=1):
    """Widths (in bins) of ERB spaced bands, as libDF computes them."""
    step = 9.265 * math.log1p(sr / 2 / (24.7 * 9.265)) / nb_bands
    widths, prev, over = [], 0, 0
    for i in range(1, nb_bands + 1):
        edge = round(24.7 * 9.265 * (math.exp(i * step / 9.265) - 1.0) * n_fft / sr)
        width = edge - prev - over
        over = max(min_bins - width, 0)
        widths.append(max(width, min_bins))
        prev = edge
    widths[-1] += n_fft // 2 + 1 - sum(widths)
    return widths

def frame_mask(lengths, num_frames):
    t = torch.arange(num_frames, device=lengths.device)
    return (t[None, :] < lengths[:, None]).float()

class STFT(nn.Module):
    def __init__(self, n_fft, win_len, hop):
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        analysis, _, _ = fourier_tables(n_fft, win_len)
        self.register_buffer("basis", analysis, persistent=False)

    def forward(self, wav):
        wav = F.pad(wav, (0, -wav.shape[-1] % self.hop))
        half = self.n_fft // 2
        wav = F.pad(wav.unsqueeze(1), (half, half), mode="reflect").squeeze(1)
        frames = wav.unfold(-1, self.n_fft, self.hop)                    # B, T, N
        return torch.einsum("btn,fn->bft", frames, self.basis).chunk(2, dim=1)   # 2 x (B, F, T)

class ISTFT(nn.Module):
    def __init__(self, n_fft, win_len, hop):
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        _, synthesis, window = fourier_tables(n_fft, win_len)
        self.register_buffer("basis", synthesis, persistent=False)
        self.register_buffer("window_sq", window ** 2, persistent=False)

    def forward(self, real, imag, length):
        num_frames = real.shape[-1]
        total = (num_frames - 1) * self.hop + self.n_fft
        frames = torch.einsum("bft,fn->bnt", torch.cat([real, imag], dim=1), self.basis)
        wav = F.fold(frames, (1, total), (1, self.n_fft), stride=(1, self.hop))[:, 0, 0]
        norm = self.window_sq[None, :, None].expand(1, -1, num_frames)
        norm = F.fold(norm, (1, total), (1, self.n_fft), stride=(1, self.hop))[:, 0, 0]
        wav = wav / norm.clamp(min=1e-3)
        return wav[:, self.n_fft // 2:self.n_fft // 2 + length]

class ComplexConv2d(nn.Module):
    """Causal in time, 'same' in frequency up to the stride. Works on (B, C, F, T) pairs."""
    def __init__(self, in_ch, out_ch, kernel=(3, 2), stride=(2, 1)):
        super().__init__()
        self.time_pad = kernel[1] - 1
        self.real_conv = nn.Conv2d(in_ch, out_ch, kernel, stride, padding=(kernel[0] // 2, 0))
        self.imag_conv = nn.Conv2d(in_ch, out_ch, kernel, stride, padding=(kernel[0] // 2, 0))

    def forward(self, real, imag):
        real, imag = F.pad(real, (self.time_pad, 0)), F.pad(imag, (self.time_pad, 0))
        return self.real_conv(real) - self.imag_conv(imag), self.real_conv(imag) + self.imag_conv(real)

class ComplexConvTranspose2d(nn.Module):
    def __init__(self, in_ch, out_ch, kernel=(3, 2), stride=(2, 1)):
        super().__init__()
        self.crop = kernel[1] - 1                                        # keeps it causal
        self.real_conv = nn.ConvTranspose2d(in_ch, out_ch, kernel, stride, padding=(kernel[0] // 2, 0))
        self.imag_conv = nn.ConvTranspose2d(in_ch, out_ch, kernel, stride, padding=(kernel[0] // 2, 0))

    def forward(self, real, imag):
        out_real = self.real_conv(real) - self.imag_conv(imag)
        out_imag = self.real_conv(imag) + self.imag_conv(real)
        return out_real[..., :-self.crop], out_imag[..., :-self.crop]

class ComplexBatchNorm2d(nn.Module):
    """Whitening batch norm of Trabelsi et al. with running statistics (inference path only)."""
    def __init__(self, ch, eps=1e-5):
        super().__init__()
        self.eps = eps
        for name, value in (("Wrr", 1.0), ("Wri", 0.0), ("Wii", 1.0), ("Br", 0.0), ("Bi", 0.0)):
            setattr(self, name, nn.Parameter(torch.full((ch,), value)))
        for name, value in (("RMr", 0.0), ("RMi", 0.0), ("RVrr", 1.0), ("RVri", 0.0), ("RVii", 1.0)):
            self.register_buffer(name, torch.full((ch,), value))

    def forward(self, real, imag):
        shape = (1, -1, 1, 1)
        real, imag = real - self.RMr.view(shape), imag - self.RMi.view(shape)
        vrr, vri, vii = self.RVrr + self.eps, self.RVri, self.RVii + self.eps
        # inverse square root of the 2x2 covariance
        s = (vrr * vii - vri * vri).sqrt()
        t = (vrr + vii + 2 * s).sqrt()
        rst = 1.0 / (s * t)
        urr, uii, uri = (s + vii) * rst, (s + vrr) * rst, -vri * rst
        zrr = self.Wrr * urr + self.Wri * uri
        zri = self.Wrr * uri + self.Wri * uii
        zir = self.Wri * urr + self.Wii * uri
        zii = self.Wri * uri + self.Wii * uii
        out_real = zrr.view(shape) * real + zri.view(shape) * imag + self.Br.view(shape)
        out_imag = zir.view(shape) * real + zii.view(shape) * imag + self.Bi.view(shape)
        return out_real, out_imag

class EncoderLayer(nn.Module):
    def __init__(self, in_ch, out_ch):
        super().__init__()
        self.conv = ComplexConv2d(in_ch, out_ch)
        self.norm = ComplexBatchNorm2d(out_ch)
        self.act = nn.PReLU(out_ch)

    def forward(self, real, imag):
        real, imag = self.norm(*self.conv(real, imag))
        return self.act(real), self.act(imag)

class DecoderLayer(nn.Module):
    def __init__(self, in_ch, out_ch, last=False):
        super().__init__()
        self.gate_conv = nn.Conv2d(in_ch, in_ch, 1)
        self.gate_norm = nn.BatchNorm2d(in_ch, eps=1e-3)
        self.conv = ComplexConvTranspose2d(2 * in_ch, out_ch)
        self.last = last
        if not last:
            self.norm = ComplexBatchNorm2d(out_ch)
            self.act = nn.PReLU(out_ch)

    def forward(self, real, imag, skip_real, skip_imag):
        # the gate sees the magnitude of the skip only, the phase passes untouched
        skip_mag = torch.sqrt(skip_real ** 2 + skip_imag ** 2 + 1e-8)
        gate = torch.sigmoid(self.gate_norm(self.gate_conv(skip_mag)))
        real = torch.cat([real, skip_real * gate], dim=1)
        imag = torch.cat([imag, skip_imag * gate], dim=1)
        real, imag = self.conv(real, imag)
        if self.last:
            return real, imag
        real, imag = self.norm(real, imag)
        return self.act(real), self.act(imag)

class IntraGRU(nn.Module):
    """Bidirectional GRU along frequency."""
    def __init__(self, dim, hidden, bins):
        super().__init__()
        self.rnn = nn.GRU(dim, hidden, batch_first=True, bidirectional=True)
        self.proj = nn.Linear(2 * hidden, dim)
        self.norm = nn.LayerNorm([bins, dim], eps=1e-5)

    def forward(self, x):
        b, t, f, c = x.shape
        y, _ = self.rnn(x.reshape(b * t, f, c))
        y = self.proj(y).view(b, t, f, c)
        return x + self.norm(y)

class InterAttention(nn.Module):
    """Causal local self-attention along time with a clipped relative position bias."""
    def __init__(self, dim, heads, bins, context, max_rel):
        super().__init__()
        self.heads, self.context, self.max_rel = heads, context, max_rel
        self.qkv = nn.Linear(dim, 3 * dim)
        self.rel_bias = nn.Embedding(max_rel + 1, heads)
        self.proj = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm([bins, dim], eps=1e-5)

    def forward(self, x, valid):
        b, t, f, c = x.shape
        h, d = self.heads, c // self.heads
        y = x.permute(0, 2, 1, 3).reshape(b * f, t, c)
        q, k, v = self.qkv(y).view(b * f, t, 3, h, d).permute(2, 0, 3, 1, 4)
        scores = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(d)
        pos = torch.arange(t, device=x.device)
        dist = pos[:, None] - pos[None, :]
        bias = self.rel_bias(dist.clamp(0, self.max_rel))                # T, T, H
        scores = scores + bias.permute(2, 0, 1)
        allowed = (dist >= 0) & (dist < self.context)
        # a padded query still sees itself, so no row is empty
        allowed = allowed[None] & ((valid[:, None, :] > 0) | (dist == 0)[None])
        allowed = allowed.repeat_interleave(f, dim=0).unsqueeze(1)
        attn = scores.masked_fill(~allowed, -1e9).softmax(dim=-1)
        y = torch.einsum("bhij,bhjd->bihd", attn, v).reshape(b * f, t, c)
        y = self.proj(y).view(b, f, t, c).permute(0, 2, 1, 3)
        return x + self.norm(y)

class ConvFeedForward(nn.Module):
    """GLU, a dilated depthwise convolution along time and a projection back."""
    def __init__(self, dim, inner, dilation):
        super().__init__()
        self.pad = 2 * dilation
        self.expand = nn.Linear(dim, 2 * inner)
        self.depthwise = nn.Conv1d(inner, inner, 3, dilation=dilation, groups=inner)
        self.act = nn.LeakyReLU()
        self.reduce = nn.Linear(inner, dim)

    def forward(self, x, valid):
        b, t, f, c = x.shape
        value, gate = self.expand(x).chunk(2, dim=-1)
        y = value * torch.sigmoid(gate) * valid[:, :, None, None]
        y = y.permute(0, 2, 3, 1).reshape(b * f, -1, t)
        y = self.act(self.depthwise(F.pad(y, (self.pad, 0))))
        y = y.view(b, f, -1, t).permute(0, 3, 1, 2)
        return x + 0.5 * self.reduce(y)

class DualPathBlock(nn.Module):
    def __init__(self, dim, hidden, heads, bins, context, max_rel, dilation):
        super().__init__()
        self.intra = IntraGRU(dim, hidden, bins)
        self.inter = InterAttention(dim, heads, bins, context, max_rel)
        self.ffn = ConvFeedForward(dim, 20, dilation)

    def forward(self, x, valid):
        return self.ffn(self.inter(self.intra(x), valid), valid)

class BandContext(nn.Module):
    """ERB log energies, exponential mean subtraction over time, and a FiLM of the bottleneck."""
    def __init__(self, sr, n_fft, hop, bands, dim, tau=0.02):
        super().__init__()
        widths = erb_widths(sr, n_fft, bands)
        table = torch.zeros(n_fft // 2 + 1, bands)
        for i, w in enumerate(widths):
            table[sum(widths[:i]):sum(widths[:i + 1]), i] = 1.0 / w
        self.register_buffer("table", table, persistent=False)
        self.register_buffer("init_mean", torch.linspace(-0.5, -2.5, bands), persistent=False)
        self.alpha = round(math.exp(-hop / (sr * tau)), 3)
        self.fc1 = nn.Linear(bands, 18)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(18, 2 * dim)

    def forward(self, real, imag, x):
        power = real ** 2 + imag ** 2                                    # B, F, T
        bands = torch.log10(torch.einsum("bft,fe->bte", power, self.table) + 1e-5)
        state = self.init_mean.expand(bands.shape[0], -1)
        feats = []
        for t in range(bands.shape[1]):
            state = bands[:, t] * (1 - self.alpha) + state * self.alpha
            feats.append(bands[:, t] - state)
        feats = torch.stack(feats, dim=1)
        feats = feats / (feats.std(dim=-1, keepdim=True) + 0.1)
        scale, shift = self.fc2(self.act(self.fc1(feats))).chunk(2, dim=-1)
        return x * (1 + torch.tanh(scale))[:, :, None, :] + shift[:, :, None, :]

class DeepFilter(nn.Module):
    """Complex multi-frame filter of the lowest bins."""
    def __init__(self, in_dim, bins, order, lookahead):
        super().__init__()
        self.bins, self.order, self.lookahead = bins, order, lookahead
        self.coefs = nn.Linear(in_dim, order * bins * 2)
        self.alpha = nn.Linear(in_dim, 1)

    def forward(self, noisy_real, noisy_imag, est_real, est_imag, feat):
        b, t = feat.shape[:2]
        feat = feat.reshape(b, t, -1)
        coefs = torch.tanh(self.coefs(feat)).view(b, t, self.order, self.bins, 2)
        alpha = torch.sigmoid(self.alpha(feat)).transpose(1, 2)          # B, 1, T
        pad = (self.order - 1 - self.lookahead, self.lookahead)
        low_real = F.pad(noisy_real[:, :self.bins], pad)
        low_imag = F.pad(noisy_imag[:, :self.bins], pad)
        out_real = out_imag = torch.zeros_like(noisy_real[:, :self.bins])
        for k in range(self.order):
            c_real = coefs[:, :, k, :, 0].transpose(1, 2)
            c_imag = coefs[:, :, k, :, 1].transpose(1, 2)
            s_real, s_imag = low_real[..., k:k + t], low_imag[..., k:k + t]
            out_real = out_real + s_real * c_real - s_imag * c_imag
            out_imag = out_imag + s_real * c_imag + s_imag * c_real
        out_real = alpha * out_real + (1 - alpha) * est_real[:, :self.bins]
        out_imag = alpha * out_imag + (1 - alpha) * est_imag[:, :self.bins]
        return (torch.cat([out_real, est_real[:, self.bins:]], dim=1),
                torch.cat([out_imag, est_imag[:, self.bins:]], dim=1))

def si_snr(est, ref, mask, eps=1e-8):
    """Scale invariant SNR in dB over the valid samples, one value per utterance."""
    count = mask.sum(dim=-1, keepdim=True)
    est = (est - (est * mask).sum(-1, keepdim=True) / count) * mask
    ref = (ref - (ref * mask).sum(-1, keepdim=True) / count) * mask
    proj = (est * ref).sum(-1, keepdim=True) / (ref.pow(2).sum(-1, keepdim=True) + eps) * ref
    noise = est - proj
    return 10 * torch.log10(proj.pow(2).sum(-1) / (noise.pow(2).sum(-1) + eps) + eps)

class DenoiseNet(nn.Module):
    def __init__(self, sr=8000, n_fft=40, win_len=32, hop=12, channels=(1, 8, 12), bands=7,
                 heads=3, hidden=10, blocks=2, power=0.6, atten_db=18.0, beta=0.05):
        super().__init__()
        self.hop, self.power, self.beta = hop, power, beta
        self.floor = 10 ** (-abs(atten_db) / 20)
        self.stft = STFT(n_fft, win_len, hop)
        self.istft = ISTFT(n_fft, win_len, hop)
        self.encoder = nn.ModuleList(EncoderLayer(i, o) for i, o in zip(channels[:-1], channels[1:]))
        bins = n_fft // 2 + 1
        for _ in self.encoder:
            bins = (bins - 1) // 2 + 1
        dim = 2 * channels[-1]
        self.context = BandContext(sr, n_fft, hop, bands, dim)
        self.blocks = nn.ModuleList(
            DualPathBlock(dim, hidden, heads, bins, context=9, max_rel=6, dilation=i + 1) for i in range(blocks))
        self.decoder = nn.ModuleList(
            DecoderLayer(i, o, last=o == channels[0]) for o, i in list(zip(channels[:-1], channels[1:]))[::-1])
        self.deep_filter = DeepFilter(bins * dim, bins=9, order=5, lookahead=1)

    def forward(self, noisy, clean, lengths):
        length = noisy.shape[-1]
        sample_mask = frame_mask(lengths, length)
        noisy, clean = noisy * sample_mask, clean * sample_mask
        level = torch.sqrt(noisy.pow(2).sum(-1, keepdim=True) / lengths[:, None] + 1e-8)
        real, imag = self.stft(noisy / level)
        frames = torch.div(lengths + self.hop - 1, self.hop, rounding_mode="floor") + 1
        valid = frame_mask(frames, real.shape[-1])
        # power-law compressed spectrum, the phase is kept
        mag = torch.sqrt(real ** 2 + imag ** 2 + 1e-8)
        comp_real = real / mag * mag ** self.power
        comp_imag = imag / mag * mag ** self.power
        # complex encoder
        x_real, x_imag = comp_real.unsqueeze(1), comp_imag.unsqueeze(1)
        skips = []
        for layer in self.encoder:
            x_real, x_imag = layer(x_real, x_imag)
            skips.append((x_real, x_imag))
        # dual path over (B, T, F, 2C)
        x = torch.cat([x_real, x_imag], dim=1).permute(0, 3, 2, 1)
        x = self.context(real, imag, x)
        for block in self.blocks:
            x = block(x, valid)
        feat = x
        x_real, x_imag = x.permute(0, 3, 2, 1).chunk(2, dim=1)
        # complex decoder
        for layer, (s_real, s_imag) in zip(self.decoder, reversed(skips)):
            x_real, x_imag = layer(x_real, x_imag, s_real, s_imag)
        m_real, m_imag = x_real.squeeze(1), x_imag.squeeze(1)
        # bounded polar mask with the post filter of Valin et al.
        mask_mag = torch.tanh(torch.sqrt(m_real ** 2 + m_imag ** 2 + 1e-8))
        mask_sin = mask_mag * torch.sin(math.pi * mask_mag / 2)
        mask_mag = (1 + self.beta) * mask_mag / (1 + self.beta * (mask_mag / mask_sin.clamp(min=1e-4)) ** 2)
        phase = torch.atan2(imag, real) + torch.atan2(m_imag, m_real)
        est_mag = (mask_mag * mag ** self.power) ** (1 / self.power)
        est_real, est_imag = est_mag * torch.cos(phase), est_mag * torch.sin(phase)

        est_real, est_imag = self.deep_filter(real, imag, est_real, est_imag, feat)
        # attenuation limit: a little of the noisy signal stays in
        est_real = self.floor * real + (1 - self.floor) * est_real
        est_imag = self.floor * imag + (1 - self.floor) * est_imag
        enhanced = self.istft(est_real, est_imag, length) * level * sample_mask
        # measures
        snr = si_snr(enhanced, clean, sample_mask)
        gain = snr - si_snr(noisy, clean, sample_mask)
        c_real, c_imag = self.stft(clean / level)
        c_mag = (c_real ** 2 + c_imag ** 2 + 1e-8) ** (self.power / 2)
        e_mag = (est_real ** 2 + est_imag ** 2 + 1e-8) ** (self.power / 2)
        dist = (c_mag - e_mag).abs() * valid[:, None, :]
        mag_loss = dist.sum() / (valid.sum() * c_mag.shape[1])
        loss = -snr.mean() + 10.0 * mag_loss
        return enhanced, mask_mag, snr, gain, loss

def make_inputs():
    rng = np.random.RandomState(7)
    n = np.arange(463)
    clean = np.stack([
        sum(np.sin(2 * np.pi * 210 * h * n / 8000 + h) / h for h in range(1, 7)) * (0.6 + 0.4 * np.sin(n / 50)),
        sum(np.sin(2 * np.pi * 145 * h * n / 8000 + 2 * h) / h for h in range(1, 9)) * (0.5 + 0.5 * np.cos(n / 70)),
    ]) * np.array([[0.20], [0.11]])
    noisy = clean + rng.randn(2, 463) * np.array([[0.09], [0.06]]) + 0.01
    return clean.astype(np.float32), noisy.astype(np.float32), np.array([463, 371])

def randomise(net):
    """Stands for a training run: no parameter keeps its initial constant."""
    with torch.no_grad():
        for p in net.parameters():
            p.add_((0.04 if p.dim() > 1 else 0.15) * torch.randn_like(p))
        for m in (net.context.fc2, net.deep_filter, net.decoder[-1].conv):   # their outputs go into a tanh
            for p in m.parameters():
                p.mul_(0.25)
        for m in net.modules():
            if isinstance(m, ComplexBatchNorm2d):
                m.RMr.normal_(0, 0.3), m.RMi.normal_(0, 0.3)
                m.RVrr.uniform_(0.4, 1.4), m.RVii.uniform_(0.3, 1.1)
                m.RVri.uniform_(-0.5, 0.5).mul_((m.RVrr * m.RVii).sqrt())
            elif isinstance(m, nn.BatchNorm2d):
                m.running_mean.normal_(0, 0.3)
                m.running_var.uniform_(0.005, 0.3)
            elif isinstance(m, nn.Embedding):
                m.weight.normal_()

def build():
    torch.manual_seed(20)
    net = DenoiseNet()
    randomise(net)
    clean, noisy, lengths = make_inputs()
    return net.eval(), (torch.from_numpy(noisy), torch.from_numpy(clean), torch.from_numpy(lengths))
