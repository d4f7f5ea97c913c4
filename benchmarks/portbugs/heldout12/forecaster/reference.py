"""A probabilistic forecaster of several series: seasons by auto-correlation and periods, trends by patches, in PyTorch."""

import math

import torch
import torch.nn.functional as F
from torch import nn


def fft_for_period(x, k):
    """The k strongest periods of the batch, and how strong each is in each sample.  x: [B, T, D]"""
    amplitude = torch.fft.rfft(x, dim=1).abs()
    frequency_list = amplitude.mean(0).mean(-1)
    frequency_list[0] = 0
    top_list = torch.topk(frequency_list, k).indices.detach().cpu().numpy()
    return x.shape[1] // top_list, amplitude.mean(-1)[:, top_list]


class RevIN(nn.Module):
    def __init__(self, num_features: int, eps: float = 1e-5):
        super().__init__()
        self.eps = eps
        self.affine_weight = nn.Parameter(torch.ones(num_features))
        self.affine_bias = nn.Parameter(torch.zeros(num_features))

    def forward(self, x, mode: str, observed=None, stats=None):
        if mode == "norm":
            seen = observed.float()
            count = seen.sum(dim=1, keepdim=True).clamp(min=1.0)
            mean = (x * seen).sum(dim=1, keepdim=True) / count
            stdev = torch.sqrt((((x - mean) * seen) ** 2).sum(dim=1, keepdim=True) / count + self.eps)
            x = (x - mean) / stdev * self.affine_weight + self.affine_bias
            return x * seen, (mean, stdev)
        mean, stdev = stats
        x = (x - self.affine_bias.unsqueeze(-1)) / (self.affine_weight.unsqueeze(-1) + self.eps * self.eps)
        return x * stdev.unsqueeze(-1) + mean.unsqueeze(-1)


class MovingAvg(nn.Module):
    def __init__(self, kernel_size: int):
        super().__init__()
        self.kernel_size = kernel_size
        self.avg = nn.AvgPool1d(kernel_size=kernel_size, stride=1, padding=0)

    def forward(self, x):
        back = (self.kernel_size - 1) // 2
        front, end = x[:, 0:1, :].repeat(1, self.kernel_size - 1 - back, 1), x[:, -1:, :].repeat(1, back, 1)
        x = torch.cat([front, x, end], dim=1)
        return self.avg(x.permute(0, 2, 1)).permute(0, 2, 1)


class SeriesDecompMulti(nn.Module):
    def __init__(self, kernels):
        super().__init__()
        self.moving_avg = nn.ModuleList([MovingAvg(k) for k in kernels])
        self.layer = nn.Linear(1, len(kernels))

    def forward(self, x):
        means = torch.stack([avg(x) for avg in self.moving_avg], dim=-1)
        moving_mean = torch.sum(means * F.softmax(self.layer(x.unsqueeze(-1)), dim=-1), dim=-1)
        return x - moving_mean, moving_mean


class DataEmbedding(nn.Module):
    def __init__(self, c_in: int, d_model: int):
        super().__init__()
        self.token = nn.Conv1d(c_in, d_model, kernel_size=3, padding=1, padding_mode="circular", bias=False)
        self.hour = nn.Embedding(24, d_model)
        self.weekday = nn.Embedding(7, d_model)

    def temporal(self, calendar):
        return self.hour(calendar[..., 0]) + self.weekday(calendar[..., 1])

    def forward(self, x, calendar):
        return self.token(x.permute(0, 2, 1)).transpose(1, 2) + self.temporal(calendar)


class AutoCorrelation(nn.Module):
    def __init__(self, d_model: int, factor: float):
        super().__init__()
        self.factor = factor
        self.query_projection = nn.Linear(d_model, d_model)
        self.key_projection = nn.Linear(d_model, d_model)
        self.value_projection = nn.Linear(d_model, d_model)
        self.out_projection = nn.Linear(d_model, d_model)

    def time_delay_agg(self, values, corr):
        batch, channel, length = values.shape
        init_index = torch.arange(length).view(1, 1, -1).expand(batch, channel, -1)
        top_k = int(self.factor * math.log(length))
        weights, delay = torch.topk(torch.mean(corr, dim=1), top_k, dim=-1)
        tmp_corr = torch.softmax(weights, dim=-1)
        tmp_values, delays_agg = values.repeat(1, 1, 2), torch.zeros_like(values)
        for i in range(top_k):
            pattern = torch.gather(tmp_values, dim=-1, index=init_index + delay[:, i].view(-1, 1, 1))
            delays_agg = delays_agg + pattern * tmp_corr[:, i].view(-1, 1, 1)
        return delays_agg

    def forward(self, x):
        q_fft = torch.fft.rfft(self.query_projection(x).transpose(1, 2), dim=-1)
        k_fft = torch.fft.rfft(self.key_projection(x).transpose(1, 2), dim=-1)
        corr = torch.fft.irfft(q_fft * torch.conj(k_fft), n=x.shape[1], dim=-1)
        out = self.time_delay_agg(self.value_projection(x).transpose(1, 2), corr)
        return self.out_projection(out.transpose(1, 2))


class SeasonEncoderLayer(nn.Module):
    def __init__(self, d_model: int, d_ff: int, factor: float, kernel: int):
        super().__init__()
        self.attention = AutoCorrelation(d_model, factor)
        self.conv1 = nn.Conv1d(d_model, d_ff, kernel_size=1, bias=False)
        self.conv2 = nn.Conv1d(d_ff, d_model, kernel_size=1, bias=False)
        self.moving_avg = MovingAvg(kernel)

    def forward(self, x):
        x = x + self.attention(x)
        x = x - self.moving_avg(x)
        y = self.conv2(F.gelu(self.conv1(x.transpose(-1, 1)))).transpose(-1, 1)
        return (x + y) - self.moving_avg(x + y)


class SeasonLayerNorm(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.layernorm = nn.LayerNorm(channels)

    def forward(self, x):
        x_hat = self.layernorm(x)
        return x_hat - torch.mean(x_hat, dim=1).unsqueeze(1).repeat(1, x.shape[1], 1)


class InceptionBlock(nn.Module):
    def __init__(self, c_in: int, c_out: int, num_kernels: int = 3):
        super().__init__()
        self.kernels = nn.ModuleList([nn.Conv2d(c_in, c_out, 2 * i + 1, padding=i) for i in range(num_kernels)])

    def forward(self, x):
        return torch.stack([conv(x) for conv in self.kernels], dim=-1).mean(-1)


class TimesBlock(nn.Module):
    def __init__(self, d_model: int, d_ff: int, top_k: int):
        super().__init__()
        self.k = top_k
        self.conv = nn.Sequential(InceptionBlock(d_model, d_ff), nn.GELU(), InceptionBlock(d_ff, d_model))

    def forward(self, x):
        b, total, n = x.shape
        period_list, period_weight = fft_for_period(x, self.k)
        res = []
        for i in range(self.k):
            period = int(period_list[i])
            length, out = total, x
            if total % period != 0:
                length = (total // period + 1) * period
                out = torch.cat([x, torch.zeros(b, length - total, n)], dim=1)
            out = out.reshape(b, length // period, period, n).permute(0, 3, 1, 2)
            out = self.conv(out)
            res.append(out.permute(0, 2, 3, 1).reshape(b, -1, n)[:, :total, :])
        res = torch.stack(res, dim=-1)
        period_weight = F.softmax(period_weight, dim=1).unsqueeze(1).unsqueeze(1).repeat(1, total, n, 1)
        return torch.sum(res * period_weight, -1) + x


class SeasonBranch(nn.Module):
    def __init__(self, c_in, seq_len, pred_len, d_model, d_ff, kernel):
        super().__init__()
        self.seq_len, self.pred_len = seq_len, pred_len
        self.embedding = DataEmbedding(c_in, d_model)
        self.layers = nn.ModuleList([SeasonEncoderLayer(d_model, d_ff, 1.5, kernel) for _ in range(2)])
        self.norm = SeasonLayerNorm(d_model)
        self.predict_linear = nn.Linear(seq_len, seq_len + pred_len)
        self.times = nn.ModuleList([TimesBlock(d_model, d_model, 4) for _ in range(2)])
        self.layer_norm = nn.LayerNorm(d_model)

    def forward(self, seasonal, calendar):
        h = self.embedding(seasonal, calendar[:, : self.seq_len])
        for layer in self.layers:
            h = layer(h)
        h = self.predict_linear(self.norm(h).permute(0, 2, 1)).permute(0, 2, 1)
        h = h + self.embedding.temporal(calendar)
        for block in self.times:
            h = self.layer_norm(block(h))
        return h[:, -self.pred_len :, :]


class PatchEncoderLayer(nn.Module):
    def __init__(self, d_model: int, n_heads: int, d_ff: int):
        super().__init__()
        self.n_heads = n_heads
        self.scale = (d_model // n_heads) ** -0.5
        self.W_QKV = nn.Linear(d_model, 3 * d_model)
        self.to_out = nn.Linear(d_model, d_model)
        self.norm_attn = nn.BatchNorm1d(d_model)
        self.ff = nn.Sequential(nn.Linear(d_model, d_ff), nn.GELU(), nn.Linear(d_ff, d_model))
        self.norm_ffn = nn.BatchNorm1d(d_model)

    def forward(self, src, empty, prev=None):
        bs, n, d = src.shape
        q, k, v = self.W_QKV(src).view(bs, n, 3, self.n_heads, d // self.n_heads).permute(2, 0, 3, 1, 4)
        scores = torch.matmul(q, k.transpose(-2, -1)) * self.scale
        if prev is not None:
            scores = scores + prev
        scores = scores.masked_fill(empty[:, None, None, :], -1e4)
        out = self.to_out(torch.matmul(F.softmax(scores, dim=-1), v).transpose(1, 2).reshape(bs, n, d))
        src = self.norm_attn((src + out).transpose(1, 2)).transpose(1, 2)
        return self.norm_ffn((src + self.ff(src)).transpose(1, 2)).transpose(1, 2), scores


class PatchBranch(nn.Module):
    def __init__(self, seq_len, patch_len, stride, d_model, n_heads, d_ff):
        super().__init__()
        self.patch_len, self.stride = patch_len, stride
        self.patch_num = (seq_len - patch_len) // stride + 2
        self.padding_patch_layer = nn.ReplicationPad1d((0, stride))
        self.W_P = nn.Linear(patch_len, d_model)
        self.W_pos = nn.Parameter(torch.empty(self.patch_num, d_model).uniform_(-0.4, 0.4))
        self.layers = nn.ModuleList([PatchEncoderLayer(d_model, n_heads, d_ff) for _ in range(3)])
        self.head = nn.Linear(self.patch_num * d_model, d_model)

    def patch(self, x):
        x = self.padding_patch_layer(x.permute(0, 2, 1))
        return x.unfold(dimension=-1, size=self.patch_len, step=self.stride)

    def forward(self, x, observed):
        b, _, c = x.shape
        z = self.W_P(self.patch(x)).reshape(b * c, self.patch_num, -1) + self.W_pos
        empty = (self.patch(observed.float()).sum(dim=-1) == 0).reshape(b * c, self.patch_num)
        scores = None
        for layer in self.layers:
            z, scores = layer(z, empty, scores)
        return self.head(z.reshape(b, c, self.patch_num, -1).permute(0, 1, 3, 2).flatten(start_dim=-2))


class Projector(nn.Module):
    def __init__(self, enc_in: int, seq_len: int, hidden: int, output_dim: int):
        super().__init__()
        self.series_conv = nn.Conv1d(seq_len, 1, kernel_size=3, padding=1, padding_mode="circular", bias=False)
        self.backbone = nn.Sequential(nn.Linear(2 * enc_in, hidden), nn.LeakyReLU(), nn.Linear(hidden, output_dim))

    def forward(self, x, stats):
        return self.backbone(torch.cat([self.series_conv(x), stats], dim=1).view(x.shape[0], -1))


class InvertedLayer(nn.Module):
    def __init__(self, d_model: int, n_heads: int, d_ff: int):
        super().__init__()
        self.n_heads = n_heads
        self.query = nn.Linear(d_model, d_model)
        self.key = nn.Linear(d_model, d_model)
        self.value = nn.Linear(d_model, d_model)
        self.out = nn.Linear(d_model, d_model)
        self.norm1 = nn.LayerNorm(d_model)
        self.conv1 = nn.Conv1d(d_model, d_ff, kernel_size=1)
        self.conv2 = nn.Conv1d(d_ff, d_model, kernel_size=1)
        self.norm2 = nn.LayerNorm(d_model)

    def forward(self, x, tau, delta, missing):
        b, n, d = x.shape
        q, k, v = (proj(x).view(b, n, self.n_heads, -1) for proj in (self.query, self.key, self.value))
        scores = torch.einsum("blhe,bshe->bhls", q, k) * tau.view(b, 1, 1, 1) + delta.view(b, 1, 1, n)
        scores = scores.masked_fill(missing[:, None, None, :], float("-inf"))
        attn = torch.softmax(scores / math.sqrt(d // self.n_heads), dim=-1)
        out = torch.einsum("bhls,bshd->blhd", attn, v).reshape(b, n, d)
        x = self.norm1(x + self.out(out))
        y = self.conv2(F.gelu(self.conv1(x.transpose(-1, 1)))).transpose(-1, 1)
        return self.norm2(x + y)


class QuantileHead(nn.Module):
    def __init__(self, d_model: int, c_out: int, pred_len: int, levels):
        super().__init__()
        self.pred_len, self.count, self.mid = pred_len, len(levels), len(levels) // 2
        self.projection = nn.Linear(d_model, pred_len * self.count)
        self.season = nn.Linear(d_model, c_out)
        self.gate = nn.Linear(d_model, pred_len)
        borders = [0.0] + [(low + high) / 2 for low, high in zip(levels, levels[1:])] + [1.0]
        self.register_buffer("masses", torch.diff(torch.tensor(borders)), persistent=False)

    def forward(self, tokens, season):
        b, c, _ = tokens.shape
        raw = self.projection(tokens).view(b, c, self.pred_len, self.count).permute(0, 2, 1, 3)
        gate = torch.sigmoid(self.gate(tokens)).transpose(1, 2)
        center = (raw[..., self.mid] + gate * self.season(season)).unsqueeze(-1)
        steps = F.softplus(raw)
        upper = center + steps[..., self.mid + 1 :].cumsum(dim=-1)
        lower = center - steps[..., : self.mid].flip(-1).cumsum(dim=-1).flip(-1)
        return torch.cat([lower, center, upper], dim=-1)


class Forecaster(nn.Module):
    """History with gaps and a calendar; quantiles of what comes, and the mean that they make."""

    def __init__(self, c_in=5, seq_len=48, pred_len=18, d_model=32, n_heads=4, d_ff=48):
        super().__init__()
        self.revin = RevIN(c_in)
        self.decomp = SeriesDecompMulti([5, 12, 24])
        self.season = SeasonBranch(c_in, seq_len, pred_len, d_model, d_ff, 12)
        self.patches = PatchBranch(seq_len, 8, 4, d_model, n_heads, d_ff)
        self.variate_embedding = nn.Linear(seq_len, d_model)
        self.calendar_embedding = nn.Linear(seq_len + pred_len, d_model)
        self.tau_learner = Projector(c_in, seq_len, 24, 1)
        self.delta_learner = Projector(c_in, seq_len, 24, c_in + 2)
        self.inverted = nn.ModuleList([InvertedLayer(d_model, n_heads, d_ff) for _ in range(2)])
        self.head = QuantileHead(d_model, c_in, pred_len, [0.05, 0.2, 0.5, 0.75, 0.9])

    def forward(self, history, observed, calendar):
        x, (mean, stdev) = self.revin(history, "norm", observed=observed)
        seasonal, trend = self.decomp(x)
        season = self.season(seasonal, calendar)
        tau, delta = self.tau_learner(x, stdev.log()).exp(), self.delta_learner(x, mean)
        marks = torch.stack([calendar[..., 0] / 23.0 - 0.5, calendar[..., 1] / 6.0 - 0.5], dim=1)
        variates = self.variate_embedding(x.permute(0, 2, 1)) + self.patches(trend, observed)
        tokens = torch.cat([variates, self.calendar_embedding(marks)], dim=1)
        missing = F.pad(~observed.any(dim=1), (0, marks.shape[1]), value=False)
        for layer in self.inverted:
            tokens = layer(tokens, tau, delta, missing)
        quantiles = self.revin(self.head(tokens[:, : x.shape[2]], season), "denorm", stats=(mean, stdev))
        return quantiles, torch.sum(quantiles * self.head.masses, dim=-1)


def build():
    """The net with the same weights on every run, and three histories of five series with gaps."""
    torch.manual_seed(29)
    net = Forecaster()
    for module in net.modules():
        if isinstance(module, (nn.LayerNorm, nn.BatchNorm1d)):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.1)
        if isinstance(module, nn.BatchNorm1d):
            module.running_mean.normal_(std=0.2)
            module.running_var.uniform_(1.0, 3.0)
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.4)
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        if isinstance(module, (nn.Linear, nn.Conv1d)) and module.weight.shape[0] > 1:
            nn.init.xavier_uniform_(module.weight, gain=1.2)
    nn.init.uniform_(net.revin.affine_weight, 0.6, 1.4)
    nn.init.normal_(net.revin.affine_bias, std=0.3)
    clock = torch.tensor([5, 50, 101]).view(-1, 1) + torch.arange(66)
    calendar = torch.stack([clock % 24, (clock // 24) % 7], dim=-1)
    steps, phase = torch.arange(48).float().view(1, -1, 1), torch.rand(3, 1, 5) * 6.28
    history = torch.sin(steps * 6.2832 / 12 + phase) + 0.6 * torch.cos(steps * 6.2832 / 7.3 + 2 * phase)
    history = history * (0.5 + torch.rand(3, 1, 5)) + 0.02 * steps * torch.randn(3, 1, 5)
    history = history + 0.3 * torch.randn(3, 48, 5) + torch.randn(3, 1, 5)
    observed = torch.rand(3, 48, 5) > 0.12
    observed[0, 20:33, 1] = False
    observed[2, :, 4] = False
    return net.eval(), (history * observed, observed, calendar)
