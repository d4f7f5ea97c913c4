"""Conformer encoder for speech: running normalisation, deltas, conv subsampling, relative positions, CTC log-probs."""

import math

import torch
import torch.nn.functional as F
from torch import nn


def make_pad_mask(lengths, maxlen):
    """True where a frame is padding: (batch, maxlen)."""
    return torch.arange(maxlen).unsqueeze(0) >= lengths.unsqueeze(1)


def band_mask(size, left, right):
    """True where a query at i may look at a key at j: i - left <= j <= i + right."""
    i = torch.arange(size)[:, None]
    j = torch.arange(size)[None, :]
    return (j >= i - left) & (j <= i + right)


def running_norm(feats, valid, floor=0.05):
    # mean and variance of everything heard so far, padding does not count
    weight = valid.unsqueeze(-1).to(feats.dtype)
    count = torch.cumsum(weight, dim=1).clamp(min=1.0)
    mean = torch.cumsum(feats * weight, dim=1) / count
    square = torch.cumsum(feats * feats * weight, dim=1) / count
    var = (square - mean * mean).clamp(min=floor)
    return (feats - mean) / torch.sqrt(var) * weight


def add_deltas(feats):
    """(b, t, f) -> (b, 2, t, f): the features and half the difference of their neighbours in time"""
    padded = torch.cat([feats[:, :1], feats, feats[:, -1:]], dim=1)
    delta = 0.5 * (padded[:, 2:] - padded[:, :-2])
    return torch.stack([feats, delta], dim=1)


def relative_table(d_model, max_len):
    """Sines and cosines for the relative places max_len-1 ... 0 ... -(max_len-1)."""
    position = torch.arange(0, max_len, dtype=torch.float32).unsqueeze(1)
    div_term = torch.exp(torch.arange(0, d_model, 2, dtype=torch.float32) * -(math.log(10000.0) / d_model))
    pe_positive = torch.zeros(max_len, d_model)
    pe_negative = torch.zeros(max_len, d_model)
    pe_positive[:, 0::2] = torch.sin(position * div_term)
    pe_positive[:, 1::2] = torch.cos(position * div_term)
    pe_negative[:, 0::2] = torch.sin(-1 * position * div_term)
    pe_negative[:, 1::2] = torch.cos(-1 * position * div_term)
    pe_positive = torch.flip(pe_positive, [0])
    return torch.cat([pe_positive, pe_negative[1:]], dim=0).unsqueeze(0)


class FeedForward(nn.Module):
    def __init__(self, d_model, d_ff):
        super().__init__()
        self.norm = nn.LayerNorm(d_model)
        self.w_1 = nn.Linear(d_model, d_ff)
        self.w_2 = nn.Linear(d_ff, d_model)

    def forward(self, x):
        x = self.w_1(self.norm(x))
        return self.w_2(x * torch.sigmoid(x))


class RelPositionAttention(nn.Module):
    """Transformer-XL's attention: content and place are scored apart, each query with its own bias."""

    def __init__(self, d_model, n_head):
        super().__init__()
        self.h = n_head
        self.d_k = d_model // n_head
        self.norm = nn.LayerNorm(d_model)
        self.linear_qkv = nn.Linear(d_model, 3 * d_model)
        self.linear_pos = nn.Linear(d_model, d_model, bias=False)
        self.linear_out = nn.Linear(d_model, d_model)
        self.pos_bias_u = nn.Parameter(torch.zeros(self.h, self.d_k))
        self.pos_bias_v = nn.Parameter(torch.zeros(self.h, self.d_k))

    def rel_shift(self, x):
        b, h, t, p = x.size()
        zero_pad = torch.zeros((b, h, t, 1), dtype=x.dtype)
        x_padded = torch.cat([zero_pad, x], dim=-1)
        x_padded = x_padded.view(b, h, p + 1, t)
        x = x_padded[:, :, 1:].view_as(x)
        return x[:, :, :, : p // 2 + 1]

    def forward(self, x, pos_emb, allowed):
        n_batch, t, _ = x.shape
        q, k, v = self.linear_qkv(self.norm(x)).view(n_batch, t, 3, self.h, self.d_k).unbind(dim=2)
        k = k.transpose(1, 2)
        v = v.transpose(1, 2)
        p = self.linear_pos(pos_emb).view(1, -1, self.h, self.d_k).transpose(1, 2)
        q_with_bias_u = (q + self.pos_bias_u).transpose(1, 2)
        q_with_bias_v = (q + self.pos_bias_v).transpose(1, 2)
        matrix_ac = torch.matmul(q_with_bias_u, k.transpose(-2, -1))
        matrix_bd = torch.matmul(q_with_bias_v, p.transpose(-2, -1))
        matrix_bd = self.rel_shift(matrix_bd)
        scores = (matrix_ac + matrix_bd) / math.sqrt(self.d_k)
        forbidden = ~allowed.unsqueeze(1)
        scores = scores.masked_fill(forbidden, -1e4)
        attn = torch.softmax(scores, dim=-1).masked_fill(forbidden, 0.0)
        x = torch.matmul(attn, v).transpose(1, 2).contiguous().view(n_batch, t, self.h * self.d_k)
        return self.linear_out(x)


class ConvModule(nn.Module):
    """Gate, depthwise filter with more past than future, batch norm, swish, and a gate per channel and utterance."""

    def __init__(self, d_model, past=4, future=2):
        super().__init__()
        self.past, self.future = past, future
        self.norm = nn.LayerNorm(d_model)
        self.pointwise_1 = nn.Linear(d_model, 2 * d_model)
        self.depthwise = nn.Parameter(torch.zeros(d_model, past + future + 1))
        self.batch_norm = nn.BatchNorm1d(d_model)
        self.squeeze = nn.Linear(d_model, d_model)
        self.pointwise_2 = nn.Linear(d_model, d_model)

    def filter(self, x):
        """(b, t, c), each channel with its own taps"""
        x = F.pad(x.transpose(1, 2), (self.past, self.future))
        frames = x.unfold(-1, self.past + self.future + 1, 1)
        return torch.einsum("bctk,ck->btc", frames, self.depthwise)

    def channel_gate(self, x, keep):
        mean = (x * keep).sum(dim=1) / keep.sum(dim=1)
        return torch.sigmoid(self.squeeze(mean)).unsqueeze(1)

    def forward(self, x, pad_mask):
        b, t, c = x.shape
        keep = (~pad_mask).unsqueeze(-1).float()
        x = F.glu(self.pointwise_1(self.norm(x)), dim=-1)
        x = x * keep
        x = self.filter(x)
        x = self.batch_norm(x.reshape(b * t, c)).view(b, t, c)
        x = F.silu(x)
        x = x * self.channel_gate(x, keep)
        return self.pointwise_2(x)


class ConformerBlock(nn.Module):
    def __init__(self, d_model, n_head, d_ff):
        super().__init__()
        self.ff_scale = 0.5
        self.feed_forward_macaron = FeedForward(d_model, d_ff)
        self.self_attn = RelPositionAttention(d_model, n_head)
        self.conv_module = ConvModule(d_model)
        self.feed_forward = FeedForward(d_model, d_ff)
        self.norm_final = nn.LayerNorm(d_model)

    def forward(self, x, pos_emb, allowed, pad_mask):
        x = x + self.ff_scale * self.feed_forward_macaron(x)
        x = x + self.self_attn(x, pos_emb, allowed)
        x = x + self.conv_module(x, pad_mask)
        x = x + self.ff_scale * self.feed_forward(x)
        return self.norm_final(x)


class Conformer(nn.Module):
    def __init__(self, n_mels=20, d_model=32, n_head=4, d_ff=64, n_blocks=2, channels=12, vocab=24, max_len=40):
        super().__init__()
        self.left_context, self.right_context = 7, 3
        self.xscale = math.sqrt(d_model)
        self.conv_1 = nn.Conv2d(2, channels, 3, stride=2)
        self.conv_2 = nn.Conv2d(channels, channels, 3, stride=2)
        self.embed_out = nn.Linear(channels * (((n_mels - 1) // 2 - 1) // 2), d_model)
        self.blocks = nn.ModuleList([ConformerBlock(d_model, n_head, d_ff) for _ in range(n_blocks)])
        self.layer_weights = nn.Parameter(torch.zeros(n_blocks))
        self.ctc = nn.Linear(d_model, vocab)
        self.blank_penalty = 0.7
        self.register_buffer("pe", relative_table(d_model, max_len), persistent=False)

    def subsample(self, x, lengths):
        x = F.relu(self.conv_1(x))
        x = F.relu(self.conv_2(x))
        b, c, t, f = x.size()
        x = self.embed_out(x.transpose(1, 2).contiguous().view(b, t, c * f))
        lengths = ((lengths - 1) // 2 - 1) // 2
        return x, lengths

    def positions(self, x):
        t = x.size(1)
        center = self.pe.size(1) // 2
        return x * self.xscale, self.pe[:, center - t + 1 : center + t]

    def forward(self, feats, lengths):
        valid = ~make_pad_mask(lengths, feats.size(1))
        feats = running_norm(feats, valid)
        x, lengths = self.subsample(add_deltas(feats), lengths)
        x, pos_emb = self.positions(x)

        t = x.size(1)
        pad_mask = make_pad_mask(lengths, t)
        allowed = (~pad_mask).unsqueeze(1) & band_mask(t, self.left_context, self.right_context)

        hidden = []
        for block in self.blocks:
            x = block(x, pos_emb, allowed, pad_mask)
            hidden.append(x)
        mix = torch.softmax(self.layer_weights, dim=0)
        x = (torch.stack(hidden, dim=0) * mix.view(-1, 1, 1, 1)).sum(dim=0)

        logits = self.ctc(x)
        logits = torch.cat([logits[..., :1] - self.blank_penalty, logits[..., 1:]], dim=-1)
        return F.log_softmax(logits, dim=-1).masked_fill(pad_mask.unsqueeze(-1), 0.0)


def build():
    torch.manual_seed(5)
    net = Conformer()
    for module in net.modules():
        if isinstance(module, (nn.LayerNorm, nn.BatchNorm1d)):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.2)
        if isinstance(module, nn.BatchNorm1d):
            module.running_mean.normal_(0.0, 0.3)
            module.running_var.uniform_(0.2, 0.8)
        if isinstance(module, RelPositionAttention):
            nn.init.normal_(module.pos_bias_u, std=0.6)
            nn.init.normal_(module.pos_bias_v, std=0.6)
            nn.init.normal_(module.linear_qkv.weight, std=0.25)
            nn.init.normal_(module.linear_pos.weight, std=0.3)
        if isinstance(module, ConvModule):
            nn.init.normal_(module.depthwise, std=0.5)
            nn.init.normal_(module.squeeze.weight, std=0.8)
    with torch.no_grad():
        net.layer_weights.copy_(torch.tensor([0.4, -0.3]))
    lengths = torch.tensor([72, 53, 64])
    feats = torch.randn(3, 72, 20) + 1.5 * torch.sin(torch.arange(72) / 6.0).view(1, 72, 1) + torch.linspace(-1, 2, 20)
    return net.eval(), (feats, lengths)
