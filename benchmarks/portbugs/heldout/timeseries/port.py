"""
Long-term forecasting with four branches on an instance-normalised series, in MindSpore.
"""
import math
from argparse import Namespace

import mindspore as ms
import mindspore.nn as nn
import mindspore.ops as ops
import numpy as np
from mindspore import Parameter, Tensor

CONFIGS = Namespace(
    seq_len=60, pred_len=24, enc_in=5, mark_dim=4, d_model=32, d_ff=64, n_heads=4, e_layers=2,
    patch_len=10, stride=5, patch_layers=2, moving_avg=(12, 25), mix_avg=(5,), top_freq=4, factor=1.2, n_scales=3,
)


def const(array):
    return Tensor(np.asarray(array, np.float32))


def moving_average(x, kernel_size):
    """x: [B, L, C]; the ends are padded with themselves, an even window looks further ahead than back."""
    left = (kernel_size - 1) // 2
    front = ops.tile(x[:, 0:1, :], (1, left, 1))
    end = ops.tile(x[:, -1:, :], (1, kernel_size - 1 - left, 1))
    x = ops.concat([front, x, end], axis=1)
    return ops.avg_pool1d(x.transpose(0, 2, 1), kernel_size=kernel_size, stride=1).transpose(0, 2, 1)


def series_decomp(x, kernels, logits=None):
    """Season and trend; several windows are mixed."""
    means = ops.stack([moving_average(x, k) for k in kernels], axis=-1)
    if logits is None:
        trend = means.mean(axis=-1)
    else:
        trend = (means * ops.softmax(logits, axis=-1)).sum(axis=-1)
    return x - trend, trend


def position_table(length, d_model, step=1):
    """Sines on the even channels, cosines on the odd ones; coarser series take longer steps."""
    position = np.arange(length)[:, None] * step
    div_term = np.exp(np.arange(0, d_model, 2) * -(math.log(1000.0) / d_model))
    pe = np.zeros((1, length, d_model))
    pe[0, :, 0::2] = np.sin(position * div_term)
    pe[0, :, 1::2] = np.cos(position * div_term)
    return const(pe)


class AutoCorrelationLayer(nn.Cell):
    """Autoformer's layer as at inference: the same delays for all heads and channels of a sample."""

    def __init__(self, d_model, n_heads, factor):
        super().__init__()
        self.n_heads, self.factor = n_heads, factor
        self.query_projection = nn.Dense(d_model, d_model)
        self.key_projection = nn.Dense(d_model, d_model)
        self.value_projection = nn.Dense(d_model, d_model)
        self.out_projection = nn.Dense(d_model, d_model)

    def correlation(self, queries, keys):
        L, E = queries.shape[1], queries.shape[-1]
        twice = ops.concat([keys, keys], axis=1)
        corr = []
        for tau in range(L):
            shifted = twice[:, L - tau : 2 * L - tau]
            corr.append((queries * shifted).sum(axis=-1).mean(axis=(1, 2)))
        return ops.stack(corr, axis=-1) / math.sqrt(E)

    def time_delay_agg(self, values, corr):
        B, L, H, E = values.shape
        weights, delay = ops.topk(corr, max(1, int(self.factor * math.log(L))), dim=-1)
        tmp_corr = ops.softmax(weights * 3.0, axis=-1)
        init_index = ops.arange(L).expand_dims(0)
        delays_agg = ops.zeros_like(values)
        for i in range(delay.shape[-1]):
            tmp_delay = (init_index + delay[:, i : i + 1]) % L
            tmp_delay = ops.broadcast_to(tmp_delay.reshape(B, L, 1, 1), (B, L, H, E))
            pattern = ops.gather_elements(values, 1, tmp_delay)
            delays_agg = delays_agg + pattern * tmp_corr[:, i].reshape(B, 1, 1, 1)
        return delays_agg

    def construct(self, x):
        B, L, D = x.shape
        queries = self.query_projection(x).reshape(B, L, self.n_heads, -1)
        keys = self.key_projection(x).reshape(B, L, self.n_heads, -1)
        values = self.value_projection(x).reshape(B, L, self.n_heads, -1)
        corr = self.correlation(queries, keys)
        out = self.time_delay_agg(values, corr)
        return self.out_projection(out.reshape(B, L, D))


class MixingBlock(nn.Cell):
    """Past-decomposable mixing."""

    def __init__(self, configs):
        super().__init__()
        lengths = [configs.seq_len // 2**i for i in range(configs.n_scales)]
        self.kernels = configs.mix_avg
        self.auto = AutoCorrelationLayer(configs.d_model, configs.n_heads, configs.factor)
        self.down = nn.CellList([nn.Dense(a, b) for a, b in zip(lengths[:-1], lengths[1:])])
        self.norm = nn.LayerNorm((configs.d_model,), epsilon=1e-5)
        self.fc1 = nn.Dense(configs.d_model, configs.d_ff)
        self.fc2 = nn.Dense(configs.d_ff, configs.d_model)

    def mix_seasons(self, season_list):
        out_high = season_list[0]
        out_season_list = [out_high]
        for i, layer in enumerate(self.down):
            out_low = season_list[i + 1]
            out_low_res = layer(out_high.swapaxes(1, 2)).swapaxes(1, 2)
            out_high = out_low + out_low_res
            out_season_list.append(out_high)
        return out_season_list

    def mix_trends(self, trend_list):
        trend_list = trend_list[::-1]
        out_low = trend_list[0]
        out_trend_list = [out_low]
        for out_high in trend_list[1:]:
            size = out_high.shape[1]
            res = ops.interpolate(out_low.swapaxes(1, 2), size=size, mode="linear", align_corners=False)
            out_low = out_high + 0.8 * res.swapaxes(1, 2)
            out_trend_list.append(out_low)
        return out_trend_list[::-1]

    def construct(self, x_list):
        parts = [series_decomp(x, self.kernels) for x in x_list]
        season_list, trend_list = [p[0] for p in parts], [p[1] for p in parts]
        season_list[0] = season_list[0] + self.auto(season_list[0])
        season_list = self.mix_seasons(season_list)
        trend_list = self.mix_trends(trend_list)
        out_list = []
        for ori, season, trend in zip(x_list, season_list, trend_list):
            out = self.norm(season + trend)
            out = self.fc2(ops.gelu(self.fc1(out), approximate="none"))
            out_list.append(ori + out)
        return out_list


class MultiScale(nn.Cell):
    def __init__(self, configs):
        super().__init__()
        self.n_scales, self.d_model = configs.n_scales, configs.d_model
        self.value_embedding = nn.Dense(configs.enc_in, configs.d_model, has_bias=False)
        self.mark_embedding = nn.Dense(configs.mark_dim, configs.d_model, has_bias=False)
        self.blocks = nn.CellList([MixingBlock(configs) for _ in range(configs.e_layers)])
        self.predict = nn.CellList(
            [nn.Dense(configs.seq_len // 2**i, configs.pred_len) for i in range(configs.n_scales)]
        )
        self.scale_logits = Parameter(const(np.zeros(configs.n_scales)))
        self.projection = nn.Dense(configs.d_model, configs.enc_in)

    def multi_scale_inputs(self, x_enc, x_mark_enc):
        x_list, mark_list = [x_enc], [x_mark_enc]
        for _ in range(self.n_scales - 1):
            x_enc = ops.avg_pool1d(x_enc.swapaxes(1, 2), 2, 2).swapaxes(1, 2)
            x_mark_enc = x_mark_enc[:, ::2, :]
            x_list.append(x_enc)
            mark_list.append(x_mark_enc)
        return x_list, mark_list

    def construct(self, x_enc, x_mark_enc):
        x_list, mark_list = self.multi_scale_inputs(x_enc, x_mark_enc)
        enc_list = []
        for i, (x, mark) in enumerate(zip(x_list, mark_list)):
            enc = self.value_embedding(x) + self.mark_embedding(mark)
            enc_list.append(enc + position_table(x.shape[1], self.d_model, step=2**i))
        for block in self.blocks:
            enc_list = block(enc_list)
        dec_list = [layer(enc.swapaxes(1, 2)).swapaxes(1, 2) for layer, enc in zip(self.predict, enc_list)]
        dec_out = ops.stack(dec_list, axis=-1) * ops.softmax(self.scale_logits, axis=0)
        return self.projection(dec_out.sum(axis=-1))


class PatchLayer(nn.Cell):
    """A transformer's layer whose scores are handed on to the next one."""

    def __init__(self, d_model, n_heads, d_ff):
        super().__init__()
        self.n_heads = n_heads
        self.scale = (d_model // n_heads) ** -0.5
        self.qkv = nn.Dense(d_model, 3 * d_model)
        self.out = nn.Dense(d_model, d_model)
        self.norm = nn.BatchNorm1d(d_model, eps=1e-5)
        self.ff1 = nn.Dense(d_model, d_ff)
        self.ff2 = nn.Dense(d_ff, d_model)

    def construct(self, x, prev=None):
        B, N, D = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.n_heads, D // self.n_heads).transpose(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        scores = ops.matmul(q, k.swapaxes(-1, -2)) * self.scale
        if prev is not None:
            scores = scores + prev
        attn = ops.softmax(scores, axis=-1)
        y = ops.matmul(attn, v).swapaxes(1, 2).reshape(B, N, D)
        x = x + self.out(y)
        x = self.norm(x.swapaxes(1, 2)).swapaxes(1, 2)
        x = x + self.ff2(ops.gelu(self.ff1(x), approximate="none"))
        return x, scores


class PatchEncoder(nn.Cell):
    def __init__(self, configs):
        super().__init__()
        self.patch_len, self.stride = configs.patch_len, configs.stride
        patches = (configs.seq_len - configs.patch_len) // configs.stride + 2
        self.patches = patches
        self.embedding = nn.Dense(configs.patch_len, configs.d_model)
        self.position = Parameter(const(np.zeros((patches, configs.d_model))))
        self.layers = nn.CellList(
            [PatchLayer(configs.d_model, configs.n_heads, configs.d_ff) for _ in range(configs.patch_layers)]
        )
        self.head = nn.Dense(patches * configs.d_model, configs.pred_len)

    def construct(self, x):
        B, L, C = x.shape
        x = ops.pad(x.swapaxes(1, 2), (0, self.stride), mode="replicate")
        starts = [i * self.stride for i in range(self.patches)]
        x = ops.stack([x[:, :, s : s + self.patch_len] for s in starts], axis=2)
        x = self.embedding(x) + self.position
        x = x.reshape(B * C, x.shape[2], x.shape[3])
        scores = None
        for layer in self.layers:
            x, scores = layer(x, prev=scores)
        x = x.reshape(B, C, self.patches, -1).transpose(0, 1, 3, 2)
        return self.head(x.reshape(B, C, -1)).swapaxes(1, 2)


class FrequencyBranch(nn.Cell):
    def __init__(self, configs):
        super().__init__()
        L, P = configs.seq_len, configs.pred_len
        self.top_freq = configs.top_freq
        n_freq = L // 2 + 1
        omega = 2 * np.pi * np.arange(n_freq) / L
        past = np.outer(np.arange(L), omega)
        future = np.outer(np.arange(L, L + P), omega)
        scale = np.full(n_freq, 2.0 / L)
        scale[0] = scale[-1] = 1.0 / L
        self.cos_past, self.sin_past = const(np.cos(past)), const(np.sin(past))
        self.cos_future, self.sin_future = const(np.cos(future).T), const(np.sin(future).T)
        self.scale = const(scale)
        self.w_real = Parameter(const(np.zeros((configs.enc_in, n_freq))))
        self.w_imag = Parameter(const(np.zeros((configs.enc_in, n_freq))))
        self.out = nn.Dense(P, P)

    def construct(self, x):
        x = x.swapaxes(1, 2)
        real = ops.matmul(x, self.cos_past)
        imag = -ops.matmul(x, self.sin_past)
        amplitude = ops.sqrt(real**2 + imag**2)
        _, index = ops.topk(amplitude, self.top_freq, dim=-1)
        mask = ops.tensor_scatter_elements(ops.zeros_like(amplitude), index, ops.ones(index.shape, ms.float32), axis=2)
        real, imag = real * mask, imag * mask
        real, imag = real * self.w_real - imag * self.w_imag, real * self.w_imag + imag * self.w_real
        y = ops.matmul(real * self.scale, self.cos_future)
        y = y - ops.matmul(imag * self.scale, self.sin_future)
        y = y + self.out(y)
        return y.swapaxes(1, 2)


class Model(nn.Cell):
    def __init__(self, configs):
        super().__init__()
        self.kernels = configs.moving_avg
        self.affine_weight = Parameter(const(np.ones(configs.enc_in)))
        self.affine_bias = Parameter(const(np.zeros(configs.enc_in)))
        self.kernel_logits = Parameter(const(np.zeros(len(configs.moving_avg))))
        self.trend_linear = nn.Dense(configs.seq_len, configs.pred_len)
        self.patch = PatchEncoder(configs)
        self.frequency = FrequencyBranch(configs)
        self.multiscale = MultiScale(configs)
        self.branch_logits = Parameter(const(np.zeros(4)))

    def construct(self, x_enc, x_mark_enc):
        means = x_enc.mean(1, keep_dims=True)
        x_enc = x_enc - means
        stdev = ops.sqrt(ops.var(x_enc, axis=1, ddof=0, keepdims=True) + 1e-5)
        x_enc = x_enc / stdev
        x_enc = x_enc * self.affine_weight + self.affine_bias

        season, trend = series_decomp(x_enc, self.kernels, self.kernel_logits)
        branches = [
            self.trend_linear(trend.swapaxes(1, 2)).swapaxes(1, 2),
            self.patch(season),
            self.frequency(season),
            self.multiscale(x_enc, x_mark_enc),
        ]
        gates = 2.0 * ops.sigmoid(self.branch_logits)
        dec_out = gates[0] * branches[0]
        for i in range(1, 4):
            dec_out = dec_out + gates[i] * branches[i]

        dec_out = (dec_out - self.affine_bias) / (self.affine_weight + 1e-10)
        return dec_out * stdev + means


def build():
    return Model(CONFIGS)
