"""
Long-term forecasting with four branches on an instance-normalised series: a linear map of the trend (DLinear),
attention over patches of the season (PatchTST), the strongest frequencies carried on into the future (matrices, no
FFT), and the mixing of coarser and finer series (TimeMixer) with auto-correlation.
"""
import math
from argparse import Namespace

import torch
import torch.nn as nn
import torch.nn.functional as F

CONFIGS = Namespace(
    seq_len=60, pred_len=24, enc_in=5, mark_dim=4, d_model=32, d_ff=64, n_heads=4, e_layers=2,
    patch_len=10, stride=5, patch_layers=2, moving_avg=(12, 25), mix_avg=(5,), top_freq=4, factor=1.2, n_scales=3,
)


def moving_average(x, kernel_size):
    """x: [B, L, C]; the ends are padded with themselves, an even window looks further ahead than back."""
    left = (kernel_size - 1) // 2
    front = x[:, 0:1, :].repeat(1, left, 1)
    end = x[:, -1:, :].repeat(1, kernel_size - 1 - left, 1)
    x = torch.cat([front, x, end], dim=1).permute(0, 2, 1)
    return F.avg_pool1d(x, kernel_size=kernel_size, stride=1).permute(0, 2, 1)


def series_decomp(x, kernels, logits=None):
    """Season and trend; several windows are mixed."""
    means = torch.stack([moving_average(x, k) for k in kernels], dim=-1)
    if logits is None:
        trend = means.mean(dim=-1)
    else:
        trend = (means * torch.softmax(logits, dim=-1)).sum(dim=-1)
    return x - trend, trend


def position_table(length, d_model, step=1):
    """Sines on the even channels, cosines on the odd ones; coarser series take longer steps."""
    position = torch.arange(length).float().unsqueeze(1) * step
    div_term = (torch.arange(0, d_model, 2).float() * -(math.log(1000.0) / d_model)).exp()
    pe = torch.zeros(length, d_model)
    pe[:, 0::2] = torch.sin(position * div_term)
    pe[:, 1::2] = torch.cos(position * div_term)
    return pe.unsqueeze(0)


class AutoCorrelationLayer(nn.Module):
    """Autoformer's layer as at inference: the same delays for all heads and channels of a sample."""

    def __init__(self, d_model, n_heads, factor):
        super().__init__()
        self.n_heads, self.factor = n_heads, factor
        self.query_projection = nn.Linear(d_model, d_model)
        self.key_projection = nn.Linear(d_model, d_model)
        self.value_projection = nn.Linear(d_model, d_model)
        self.out_projection = nn.Linear(d_model, d_model)

    def correlation(self, queries, keys):
        corr = []
        for tau in range(queries.shape[1]):
            shifted = torch.roll(keys, shifts=tau, dims=1)
            corr.append((queries * shifted).sum(dim=-1).mean(dim=(1, 2)))
        return torch.stack(corr, dim=-1) / math.sqrt(queries.shape[-1])

    def time_delay_agg(self, values, corr):
        B, L, H, E = values.shape
        weights, delay = torch.topk(corr, max(1, int(self.factor * math.log(L))), dim=-1)
        tmp_corr = torch.softmax(weights * 3.0, dim=-1)
        init_index, delays_agg = torch.arange(L).unsqueeze(0), torch.zeros_like(values)
        for i in range(delay.shape[-1]):
            tmp_delay = (init_index + delay[:, i : i + 1]) % L
            tmp_delay = tmp_delay[:, :, None, None].expand(-1, -1, H, E)
            pattern = torch.gather(values, dim=1, index=tmp_delay)
            delays_agg = delays_agg + pattern * tmp_corr[:, i].view(B, 1, 1, 1)
        return delays_agg

    def forward(self, x):
        B, L, D = x.shape
        queries = self.query_projection(x).view(B, L, self.n_heads, -1)
        keys = self.key_projection(x).view(B, L, self.n_heads, -1)
        values = self.value_projection(x).view(B, L, self.n_heads, -1)
        out = self.time_delay_agg(values, self.correlation(queries, keys))
        return self.out_projection(out.reshape(B, L, D))


class MixingBlock(nn.Module):
    """Past-decomposable mixing."""

    def __init__(self, configs):
        super().__init__()
        lengths = [configs.seq_len // 2**i for i in range(configs.n_scales)]
        self.kernels = configs.mix_avg
        self.auto = AutoCorrelationLayer(configs.d_model, configs.n_heads, configs.factor)
        self.down = nn.ModuleList([nn.Linear(a, b) for a, b in zip(lengths[:-1], lengths[1:])])
        self.norm = nn.LayerNorm(configs.d_model)
        self.fc1 = nn.Linear(configs.d_model, configs.d_ff)
        self.fc2 = nn.Linear(configs.d_ff, configs.d_model)

    def mix_seasons(self, season_list):
        out_high = season_list[0]
        out_season_list = [out_high]
        for out_low, layer in zip(season_list[1:], self.down):
            out_low_res = layer(out_high.permute(0, 2, 1)).permute(0, 2, 1)
            out_high = out_low + out_low_res
            out_season_list.append(out_high)
        return out_season_list

    def mix_trends(self, trend_list):
        trend_list = trend_list[::-1]
        out_trend_list = [out_low := trend_list[0]]
        for out_high in trend_list[1:]:
            res = F.interpolate(out_low.permute(0, 2, 1), out_high.shape[1], mode="linear", align_corners=False)
            out_low = out_high + 0.8 * res.permute(0, 2, 1)
            out_trend_list.append(out_low)
        return out_trend_list[::-1]

    def forward(self, x_list):
        parts = [series_decomp(x, self.kernels) for x in x_list]
        season_list, trend_list = [p[0] for p in parts], [p[1] for p in parts]
        season_list[0] = season_list[0] + self.auto(season_list[0])
        season_list = self.mix_seasons(season_list)
        trend_list = self.mix_trends(trend_list)
        out_list = []
        for ori, season, trend in zip(x_list, season_list, trend_list):
            out = self.fc1(self.norm(season + trend))
            out_list.append(ori + self.fc2(F.gelu(out)))
        return out_list


class MultiScale(nn.Module):
    def __init__(self, configs):
        super().__init__()
        self.n_scales, self.d_model = configs.n_scales, configs.d_model
        self.value_embedding = nn.Linear(configs.enc_in, configs.d_model, bias=False)
        self.mark_embedding = nn.Linear(configs.mark_dim, configs.d_model, bias=False)
        self.blocks = nn.ModuleList([MixingBlock(configs) for _ in range(configs.e_layers)])
        lengths = [configs.seq_len // 2**i for i in range(configs.n_scales)]
        self.predict = nn.ModuleList([nn.Linear(length, configs.pred_len) for length in lengths])
        self.scale_logits = nn.Parameter(torch.zeros(configs.n_scales))
        self.projection = nn.Linear(configs.d_model, configs.enc_in)

    def multi_scale_inputs(self, x_enc, x_mark_enc):
        x_list, mark_list = [x_enc], [x_mark_enc]
        for _ in range(self.n_scales - 1):
            x_enc = F.avg_pool1d(x_enc.permute(0, 2, 1), 2).permute(0, 2, 1)
            x_mark_enc = x_mark_enc[:, ::2, :]
            x_list.append(x_enc)
            mark_list.append(x_mark_enc)
        return x_list, mark_list

    def forward(self, x_enc, x_mark_enc):
        enc_list = []
        for i, (x, mark) in enumerate(zip(*self.multi_scale_inputs(x_enc, x_mark_enc))):
            enc = self.value_embedding(x) + self.mark_embedding(mark)
            enc_list.append(enc + position_table(x.shape[1], self.d_model, step=2**i))
        for block in self.blocks:
            enc_list = block(enc_list)
        dec_list = [layer(enc.permute(0, 2, 1)).permute(0, 2, 1) for layer, enc in zip(self.predict, enc_list)]
        dec_out = (torch.stack(dec_list, dim=-1) * torch.softmax(self.scale_logits, dim=0)).sum(-1)
        return self.projection(dec_out)


class PatchLayer(nn.Module):
    """A transformer's layer whose scores are handed on to the next one."""

    def __init__(self, d_model, n_heads, d_ff):
        super().__init__()
        self.n_heads = n_heads
        self.scale = (d_model // n_heads) ** -0.5
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)
        self.norm = nn.BatchNorm1d(d_model)
        self.ff1 = nn.Linear(d_model, d_ff)
        self.ff2 = nn.Linear(d_ff, d_model)

    def forward(self, x, prev=None):
        B, N, D = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.n_heads, D // self.n_heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        scores = torch.einsum("bhnd,bhmd->bhnm", q, k) * self.scale
        if prev is not None:
            scores = scores + prev
        attn = torch.softmax(scores, dim=-1)
        y = torch.einsum("bhnm,bhmd->bnhd", attn, v).reshape(B, N, D)
        x = x + self.out(y)
        x = self.norm(x.transpose(1, 2)).transpose(1, 2)
        x = x + self.ff2(F.gelu(self.ff1(x)))
        return x, scores


class PatchEncoder(nn.Module):
    def __init__(self, configs):
        super().__init__()
        self.patch_len, self.stride = configs.patch_len, configs.stride
        patches = (configs.seq_len - configs.patch_len) // configs.stride + 2
        layer_args = configs.d_model, configs.n_heads, configs.d_ff
        self.embedding = nn.Linear(configs.patch_len, configs.d_model)
        self.position = nn.Parameter(torch.zeros(patches, configs.d_model))
        self.layers = nn.ModuleList([PatchLayer(*layer_args) for _ in range(configs.patch_layers)])
        self.head = nn.Linear(patches * configs.d_model, configs.pred_len)

    def forward(self, x):
        B, _, C = x.shape
        x = F.pad(x.permute(0, 2, 1), (0, self.stride), mode="replicate")
        x = x.unfold(dimension=-1, size=self.patch_len, step=self.stride)
        x = (self.embedding(x) + self.position).flatten(0, 1)
        scores = None
        for layer in self.layers:
            x, scores = layer(x, prev=scores)
        x = x.reshape(B, C, -1, x.shape[-1]).permute(0, 1, 3, 2)
        return self.head(x.flatten(start_dim=-2)).permute(0, 2, 1)


class FrequencyBranch(nn.Module):
    def __init__(self, configs):
        super().__init__()
        L, P, self.top_freq = configs.seq_len, configs.pred_len, configs.top_freq
        n_freq = L // 2 + 1
        omega = 2 * math.pi * torch.arange(n_freq).double() / L
        past = torch.outer(torch.arange(L).double(), omega)
        future = torch.outer(torch.arange(L, L + P).double(), omega)
        scale = torch.full((n_freq,), 2.0 / L)
        scale[0] = scale[-1] = 1.0 / L
        for name, angle in (("past", past), ("future", future)):
            self.register_buffer("cos_" + name, angle.cos().float(), persistent=False)
            self.register_buffer("sin_" + name, angle.sin().float(), persistent=False)
        self.register_buffer("scale", scale, persistent=False)
        self.w_real = nn.Parameter(torch.zeros(configs.enc_in, n_freq))
        self.w_imag = nn.Parameter(torch.zeros(configs.enc_in, n_freq))
        self.out = nn.Linear(P, P)

    def forward(self, x):
        real = torch.einsum("blc,lf->bcf", x, self.cos_past)
        imag = -torch.einsum("blc,lf->bcf", x, self.sin_past)
        amplitude = torch.sqrt(real**2 + imag**2)
        _, index = torch.topk(amplitude, self.top_freq, dim=-1)
        mask = torch.zeros_like(amplitude).scatter_(-1, index, 1.0)
        real, imag = real * mask, imag * mask
        real, imag = real * self.w_real - imag * self.w_imag, real * self.w_imag + imag * self.w_real
        y = torch.einsum("bcf,pf->bcp", real * self.scale, self.cos_future)
        y = y - torch.einsum("bcf,pf->bcp", imag * self.scale, self.sin_future)
        y = y + self.out(y)
        return y.permute(0, 2, 1)


class Model(nn.Module):
    def __init__(self, configs):
        super().__init__()
        self.kernels = configs.moving_avg
        self.affine_weight = nn.Parameter(torch.ones(configs.enc_in))
        self.affine_bias = nn.Parameter(torch.zeros(configs.enc_in))
        self.kernel_logits = nn.Parameter(torch.zeros(len(configs.moving_avg)))
        self.trend_linear = nn.Linear(configs.seq_len, configs.pred_len)
        self.patch = PatchEncoder(configs)
        self.frequency = FrequencyBranch(configs)
        self.multiscale = MultiScale(configs)
        self.branch_logits = nn.Parameter(torch.zeros(4))

    def forward(self, x_enc, x_mark_enc):
        means = x_enc.mean(1, keepdim=True).detach()
        x_enc = x_enc - means
        stdev = torch.sqrt(torch.var(x_enc, dim=1, keepdim=True, unbiased=False) + 1e-5)
        x_enc = x_enc / stdev
        x_enc = x_enc * self.affine_weight + self.affine_bias

        season, trend = series_decomp(x_enc, self.kernels, self.kernel_logits)
        branches = [self.trend_linear(trend.permute(0, 2, 1)).permute(0, 2, 1), self.patch(season)]
        branches += [self.frequency(season), self.multiscale(x_enc, x_mark_enc)]
        gates = 2.0 * torch.sigmoid(self.branch_logits)
        dec_out = sum(gate * branch for gate, branch in zip(gates, branches))

        dec_out = (dec_out - self.affine_bias) / (self.affine_weight + 1e-10)
        return dec_out * stdev + means


def build():
    torch.manual_seed(17)
    model = Model(CONFIGS)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            nn.init.normal_(module.running_mean, std=0.3)
            nn.init.uniform_(module.running_var, 0.6, 1.6)
        if isinstance(module, (nn.BatchNorm1d, nn.LayerNorm)):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.1)
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=1.0 / math.sqrt(module.in_features))
    with torch.no_grad():
        model.affine_weight.uniform_(0.7, 1.3)
        spread = {"affine_bias": 0.2, "kernel_logits": 1.0, "branch_logits": 0.4, "patch.position": 0.3}
        for name, std in {**spread, "frequency.w_real": 0.6, "frequency.w_imag": 0.6}.items():
            model.get_parameter(name).normal_(0, std)
        model.multiscale.scale_logits.copy_(torch.tensor([0.5, -0.3, 0.9]))
    t = torch.arange(60).float()
    phase, period = 6.3 * torch.rand(2, 1, 5), 6 + 14 * torch.rand(2, 1, 5)
    x = torch.sin(2 * math.pi * t[None, :, None] / period + phase) + 0.02 * t[None, :, None] * torch.randn(2, 1, 5)
    x = (x + 0.3 * torch.randn(2, 60, 5)) * (0.5 + 2 * torch.rand(1, 1, 5)) + torch.randn(2, 1, 5)
    hours = torch.stack([(t % 24) / 23, (t // 24 % 7) / 6, (t % 30) / 29, t / 365], dim=-1) - 0.5
    return model.eval(), (x, hours.expand(2, -1, -1).contiguous())
