"""A streaming transducer with a zipformer encoder, a stateless predictor and a CTC head, in PyTorch: the reference."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn


def make_pad_mask(lengths, max_len):
    """True where a frame lies beyond its utterance, (batch, max_len)."""
    return torch.arange(max_len, device=lengths.device).unsqueeze(0) >= lengths.unsqueeze(1)


def mel_scale(freq):
    return 1127.0 * torch.log(1.0 + freq / 700.0)


def get_mel_banks(num_bins, n_fft, sample_rate, low_freq, high_freq):
    """Kaldi's triangles, linear on the mel scale, (n_fft // 2 + 1, num_bins)."""
    if high_freq <= 0.0:
        high_freq += sample_rate / 2
    mel_low, mel_high = mel_scale(torch.tensor([low_freq, high_freq], dtype=torch.float64)).tolist()
    delta = (mel_high - mel_low) / (num_bins + 1)
    left = mel_low + torch.arange(num_bins, dtype=torch.float64).unsqueeze(0) * delta
    center, right = left + delta, left + 2 * delta
    mel = mel_scale(torch.arange(n_fft // 2 + 1, dtype=torch.float64) * sample_rate / n_fft).unsqueeze(1)
    up = (mel - left) / (center - left)
    down = (right - mel) / (right - center)
    return torch.clamp(torch.minimum(up, down), min=0.0).float()


class Fbank(nn.Module):
    """Log-mel features as kaldi computes them (no dither, snip edges)."""

    def __init__(self, sample_rate=8000, frame_length=200, frame_shift=80, n_fft=256, num_bins=40):
        super().__init__()
        self.frame_length, self.frame_shift, self.n_fft = frame_length, frame_shift, n_fft
        self.preemphasis = 0.97
        window = torch.hann_window(frame_length, periodic=False, dtype=torch.float64).pow(0.85).float()
        self.register_buffer("window", window, persistent=False)
        self.register_buffer("banks", get_mel_banks(num_bins, n_fft, sample_rate, 20.0, -200.0), persistent=False)

    def forward(self, wave, wave_lens):
        frames = wave.unfold(1, self.frame_length, self.frame_shift)
        frames = frames - frames.mean(dim=2, keepdim=True)
        previous = F.pad(frames, (1, 0), mode="replicate")[..., :-1]
        frames = (frames - self.preemphasis * previous) * self.window
        spectrum = torch.fft.rfft(frames, n=self.n_fft, dim=-1)
        power = spectrum.abs().pow(2.0)
        feats = torch.matmul(power, self.banks).clamp(min=1e-7).log()
        lens = torch.div(wave_lens - self.frame_length, self.frame_shift, rounding_mode="floor") + 1
        return feats, lens


class GlobalCMVN(nn.Module):
    """Mean and inverse deviation of the training set."""

    def __init__(self, mean, istd):
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("istd", istd)

    def forward(self, x):
        return (x - self.mean) * self.istd


class SwooshL(nn.Module):
    def forward(self, x):
        return torch.logaddexp(torch.zeros_like(x), x - 4.0) - 0.08 * x - 0.035


class SwooshR(nn.Module):
    def forward(self, x):
        return torch.logaddexp(torch.zeros_like(x), x - 1.0) - 0.08 * x - 0.313261687


class BiasNorm(nn.Module):
    """The zipformer's replacement of LayerNorm, which keeps some of the length."""

    def __init__(self, num_channels):
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(1.0))
        self.bias = nn.Parameter(torch.zeros(num_channels))

    def forward(self, x):
        scales = torch.mean((x - self.bias) ** 2, dim=-1, keepdim=True) ** -0.5 * self.log_scale.exp()
        return x * scales


class BypassModule(nn.Module):
    def __init__(self, embed_dim):
        super().__init__()
        self.bypass_scale = nn.Parameter(torch.full((embed_dim,), 0.5))

    def forward(self, src_orig, src):
        return src_orig + (src - src_orig) * self.bypass_scale


class Conv2dSubsampling(nn.Module):
    """(batch, T, num_mel) to (batch, (T - 7) // 2, out_channels)."""

    def __init__(self, in_channels, out_channels, layer1=6, layer2=10, layer3=12):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, layer1, kernel_size=3, padding=(0, 1)),
            SwooshR(),
            nn.Conv2d(layer1, layer2, kernel_size=3, stride=2, padding=0),
            SwooshR(),
            nn.Conv2d(layer2, layer3, kernel_size=3, stride=(1, 2)),
            SwooshR(),
        )
        out_width = (((in_channels - 1) // 2) - 1) // 2
        self.out = nn.Linear(out_width * layer3, out_channels)
        self.out_norm = BiasNorm(out_channels)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x, x_lens):
        x = self.conv(x.unsqueeze(1))
        b, c, t, f = x.size()
        x = self.out(x.transpose(1, 2).reshape(b, t, c * f))
        x = self.dropout(self.out_norm(x))
        return x, torch.div(x_lens - 7, 2, rounding_mode="floor")


class CompactRelPositionalEncoding(nn.Module):
    """Fourier features of the arctangent of compressed offsets, the offset 0 in the middle of the table."""

    def __init__(self, embed_dim, max_len=200, length_factor=1.0):
        super().__init__()
        self.embed_dim, self.length_factor = embed_dim, length_factor
        self.dropout = nn.Dropout(0.1)
        x = torch.arange(-(max_len - 1), max_len, dtype=torch.float32).unsqueeze(1)
        freqs = 1 + torch.arange(embed_dim // 2)
        compression = embed_dim**0.5
        x = compression * x.sign() * ((x.abs() + compression).log() - math.log(compression))
        x_atan = (x / (length_factor * embed_dim / (2.0 * math.pi))).atan()
        pe = torch.zeros(x.shape[0], embed_dim)
        pe[:, 0::2] = (x_atan * freqs).cos()
        pe[:, 1::2] = (x_atan * freqs).sin()
        pe[:, -1] = 1.0
        self.register_buffer("pe", pe, persistent=False)

    def forward(self, x):
        length, middle = x.size(0), self.pe.size(0) // 2
        return self.dropout(self.pe[middle - length + 1 : middle + length].unsqueeze(0))


class RelPositionMultiheadAttentionWeights(nn.Module):
    """The attention weights alone, (heads, batch, time, time)."""

    def __init__(self, embed_dim, pos_dim, num_heads, query_head_dim, pos_head_dim):
        super().__init__()
        self.num_heads, self.query_head_dim, self.pos_head_dim = num_heads, query_head_dim, pos_head_dim
        self.in_proj = nn.Linear(embed_dim, (2 * query_head_dim + pos_head_dim) * num_heads)
        self.linear_pos = nn.Linear(pos_dim, num_heads * pos_head_dim, bias=False)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x, pos_emb, attn_mask, key_padding_mask):
        x = self.in_proj(x)
        seq_len, batch_size, _ = x.shape
        query_dim = self.query_head_dim * self.num_heads
        q, k, p = x[..., :query_dim], x[..., query_dim : 2 * query_dim], x[..., 2 * query_dim :]
        q = q.reshape(seq_len, batch_size, self.num_heads, self.query_head_dim).permute(2, 1, 0, 3)
        k = k.reshape(seq_len, batch_size, self.num_heads, self.query_head_dim).permute(2, 1, 3, 0)
        p = p.reshape(seq_len, batch_size, self.num_heads, self.pos_head_dim).permute(2, 1, 0, 3)
        attn_scores = torch.matmul(q, k) * self.query_head_dim**-0.5

        pos_emb = self.linear_pos(pos_emb)
        pos_emb = pos_emb.reshape(-1, 2 * seq_len - 1, self.num_heads, self.pos_head_dim).permute(2, 0, 3, 1)
        pos_scores = torch.matmul(p, pos_emb).contiguous()
        # from (heads, batch, time1, 2 * time1 - 1) to (heads, batch, time1, time2)
        pos_scores = pos_scores.as_strided(
            (self.num_heads, batch_size, seq_len, seq_len),
            (
                pos_scores.stride(0),
                pos_scores.stride(1),
                pos_scores.stride(2) - pos_scores.stride(3),
                pos_scores.stride(3),
            ),
            storage_offset=pos_scores.stride(3) * (seq_len - 1),
        )
        attn_scores = attn_scores + pos_scores
        attn_scores = attn_scores.masked_fill(attn_mask, -1000)
        attn_scores = attn_scores.masked_fill(key_padding_mask.unsqueeze(1), -1000)
        return self.dropout(attn_scores.softmax(dim=-1))


class SelfAttention(nn.Module):
    def __init__(self, embed_dim, num_heads, value_head_dim):
        super().__init__()
        self.in_proj = nn.Linear(embed_dim, num_heads * value_head_dim)
        self.out_proj = nn.Linear(num_heads * value_head_dim, embed_dim)

    def forward(self, x, attn_weights):
        seq_len, batch_size, _ = x.shape
        num_heads = attn_weights.shape[0]
        x = self.in_proj(x).reshape(seq_len, batch_size, num_heads, -1).permute(2, 1, 0, 3)
        x = torch.matmul(attn_weights, x)
        return self.out_proj(x.permute(2, 1, 0, 3).reshape(seq_len, batch_size, -1))


class NonlinAttention(nn.Module):
    """A gated value, attended with few heads, gated again."""

    def __init__(self, channels, hidden_channels):
        super().__init__()
        self.in_proj = nn.Linear(channels, hidden_channels * 3)
        self.tanh = nn.Tanh()
        self.out_proj = nn.Linear(hidden_channels, channels)

    def forward(self, x, attn_weights):
        seq_len, batch_size, _ = x.shape
        s, x, y = self.in_proj(x).chunk(3, dim=2)
        x = x * self.tanh(s)
        num_heads = attn_weights.shape[0]
        x = x.reshape(seq_len, batch_size, num_heads, -1).permute(2, 1, 0, 3)
        x = torch.matmul(attn_weights, x)
        x = x.permute(2, 1, 0, 3).reshape(seq_len, batch_size, -1)
        return self.out_proj(x * y)


class FeedforwardModule(nn.Module):
    def __init__(self, embed_dim, feedforward_dim):
        super().__init__()
        self.in_proj = nn.Linear(embed_dim, feedforward_dim)
        self.activation = SwooshL()
        self.out_proj = nn.Linear(feedforward_dim, embed_dim)

    def forward(self, x):
        return self.out_proj(self.activation(self.in_proj(x)))


class ChunkCausalDepthwiseConv1d(nn.Module):
    """A causal convolution plus one that sees the whole of its own chunk, and no more."""

    def __init__(self, channels, kernel_size):
        super().__init__()
        self.kernel_size = kernel_size
        self.causal_conv = nn.Conv1d(channels, channels, (kernel_size + 1) // 2, groups=channels)
        self.chunkwise_conv = nn.Conv1d(channels, channels, kernel_size, groups=channels, padding=kernel_size // 2)
        self.chunkwise_conv_scale = nn.Parameter(torch.zeros(2, channels, kernel_size))

    def _get_chunk_scale(self, chunk_size):
        left_edge, right_edge = self.chunkwise_conv_scale[0], self.chunkwise_conv_scale[1]
        if chunk_size < self.kernel_size:
            left_edge, right_edge = left_edge[:, :chunk_size], right_edge[:, -chunk_size:]
        else:
            pad = torch.zeros(left_edge.shape[0], chunk_size - self.kernel_size)
            left_edge, right_edge = torch.cat((left_edge, pad), dim=1), torch.cat((pad, right_edge), dim=1)
        return 1.0 + (left_edge + right_edge)

    def forward(self, x, chunk_size):
        batch_size, channels, seq_len = x.shape
        left_pad = self.kernel_size // 2
        right_pad = chunk_size - 1 - ((seq_len - 1) % chunk_size)
        x = F.pad(x, (left_pad, right_pad))
        x_causal = self.causal_conv(x[..., : left_pad + seq_len])
        x_chunk = x[..., left_pad:]
        num_chunks = x_chunk.shape[2] // chunk_size
        x_chunk = x_chunk.reshape(batch_size, channels, num_chunks, chunk_size).permute(0, 2, 1, 3)
        x_chunk = self.chunkwise_conv(x_chunk.reshape(batch_size * num_chunks, channels, chunk_size))
        x_chunk = x_chunk * self._get_chunk_scale(chunk_size)
        x_chunk = x_chunk.reshape(batch_size, num_chunks, channels, chunk_size).permute(0, 2, 1, 3)
        return x_chunk.reshape(batch_size, channels, -1)[..., :seq_len] + x_causal


class ConvolutionModule(nn.Module):
    def __init__(self, channels, kernel_size):
        super().__init__()
        self.in_proj = nn.Linear(channels, 2 * channels)
        self.sigmoid = nn.Sigmoid()
        self.depthwise_conv = ChunkCausalDepthwiseConv1d(channels, kernel_size)
        self.norm = nn.BatchNorm1d(channels)
        self.activation = SwooshR()
        self.out_proj = nn.Linear(channels, channels)

    def forward(self, x, chunk_size, key_padding_mask):
        x, s = self.in_proj(x).chunk(2, dim=2)
        x = (x * self.sigmoid(s)).permute(1, 2, 0)
        x = x.masked_fill(key_padding_mask.unsqueeze(1), 0.0)
        x = self.norm(self.depthwise_conv(x, chunk_size))
        return self.out_proj(self.activation(x).permute(2, 0, 1))


class ZipformerEncoderLayer(nn.Module):
    def __init__(self, embed_dim, pos_dim, num_heads, feedforward_dim, kernel_size):
        super().__init__()
        self.self_attn_weights = RelPositionMultiheadAttentionWeights(embed_dim, pos_dim, num_heads, 6, 4)
        self.self_attn1 = SelfAttention(embed_dim, num_heads, 7)
        self.self_attn2 = SelfAttention(embed_dim, num_heads, 7)
        self.feed_forward1 = FeedforwardModule(embed_dim, (feedforward_dim * 3) // 4)
        self.feed_forward2 = FeedforwardModule(embed_dim, feedforward_dim)
        self.feed_forward3 = FeedforwardModule(embed_dim, (feedforward_dim * 5) // 4)
        self.nonlin_attention = NonlinAttention(embed_dim, 3 * embed_dim // 4)
        self.conv_module = ConvolutionModule(embed_dim, kernel_size)
        self.norm = BiasNorm(embed_dim)
        self.bypass_mid = BypassModule(embed_dim)
        self.bypass = BypassModule(embed_dim)

    def forward(self, src, pos_emb, chunk_size, attn_mask, key_padding_mask):
        src_orig = src
        attn_weights = self.self_attn_weights(src, pos_emb, attn_mask, key_padding_mask)
        src = src + self.feed_forward1(src)
        src = src + self.nonlin_attention(src, attn_weights[0:1])
        src = src + self.self_attn1(src, attn_weights)
        src = src + self.conv_module(src, chunk_size, key_padding_mask)
        src = src + self.feed_forward2(src)
        src = self.bypass_mid(src_orig, src)
        src = src + self.self_attn2(src, attn_weights)
        src = src + self.feed_forward3(src)
        return self.bypass(src_orig, self.norm(src))


class ZipformerEncoder(nn.Module):
    def __init__(self, num_layers, embed_dim, pos_dim, num_heads, feedforward_dim, kernel_size):
        super().__init__()
        self.encoder_pos = CompactRelPositionalEncoding(pos_dim)
        self.layers = nn.ModuleList(
            [ZipformerEncoderLayer(embed_dim, pos_dim, num_heads, feedforward_dim, kernel_size) for _ in range(num_layers)]
        )

    def forward(self, src, chunk_size, attn_mask, key_padding_mask):
        pos_emb = self.encoder_pos(src)
        for layer in self.layers:
            src = layer(src, pos_emb, chunk_size, attn_mask, key_padding_mask)
        return src


class SimpleDownsample(nn.Module):
    """A learned weighted mean of neighbouring frames; the last one is repeated to fill up."""

    def __init__(self, downsample):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(downsample))
        self.downsample = downsample

    def forward(self, src):
        seq_len, batch_size, channels = src.shape
        ds = self.downsample
        d_seq_len = (seq_len + ds - 1) // ds
        pad = d_seq_len * ds - seq_len
        src = torch.cat((src, src[-1:].expand(pad, batch_size, channels)), dim=0)
        src = src.reshape(d_seq_len, ds, batch_size, channels)
        weights = self.bias.softmax(dim=0).unsqueeze(-1).unsqueeze(-1)
        return (src * weights).sum(dim=1)


class SimpleUpsample(nn.Module):
    def __init__(self, upsample):
        super().__init__()
        self.upsample = upsample

    def forward(self, src):
        seq_len, batch_size, channels = src.shape
        src = src.unsqueeze(1).expand(seq_len, self.upsample, batch_size, channels)
        return src.reshape(seq_len * self.upsample, batch_size, channels)


class DownsampledEncoder(nn.Module):
    def __init__(self, encoder, embed_dim, downsample):
        super().__init__()
        self.downsample_factor = downsample
        self.downsample = SimpleDownsample(downsample)
        self.encoder = encoder
        self.upsample = SimpleUpsample(downsample)
        self.out_combiner = BypassModule(embed_dim)

    def forward(self, src, chunk_size, attn_mask, key_padding_mask):
        src_orig, ds = src, self.downsample_factor
        src = self.encoder(
            self.downsample(src), chunk_size // ds, attn_mask[::ds, ::ds], key_padding_mask[..., ::ds]
        )
        src = self.upsample(src)[: src_orig.shape[0]]
        return self.out_combiner(src_orig, src)


def convert_num_channels(x, num_channels):
    """Cut channels off, or fill up with zeros."""
    if num_channels <= x.shape[-1]:
        return x[..., :num_channels]
    shape = list(x.shape)
    shape[-1] = num_channels - shape[-1]
    return torch.cat((x, torch.zeros(shape, dtype=x.dtype, device=x.device)), dim=-1)


class Zipformer(nn.Module):
    def __init__(self, dims, layers=(1, 2, 1), downsampling=(1, 2, 1), heads=(2, 4, 3),
                 kernels=(3, 5, 3), chunk_size=4, left_context_frames=8, pos_dim=12):
        super().__init__()
        self.dims, self.downsampling = dims, downsampling
        self.chunk_size, self.left_context_frames = chunk_size, left_context_frames
        encoders = []
        for i, dim in enumerate(dims):
            encoder = ZipformerEncoder(layers[i], dim, pos_dim, heads[i], 48 + 8 * i, kernels[i])
            if downsampling[i] != 1:
                encoder = DownsampledEncoder(encoder, dim, downsampling[i])
            encoders.append(encoder)
        self.encoders = nn.ModuleList(encoders)
        self.downsample_output = SimpleDownsample(2)

    def _get_attn_mask(self, seq_len):
        """True where a frame may not look: chunks to come, and those too long ago."""
        left_context_chunks = self.left_context_frames // self.chunk_size
        c = torch.arange(seq_len) // self.chunk_size
        src_c, tgt_c = c, c.unsqueeze(-1)
        return torch.logical_or(src_c > tgt_c, src_c < tgt_c - left_context_chunks)

    def _get_full_dim_output(self, outputs):
        """The last output, widened by the channels that only earlier stacks have."""
        output_dim = max(self.dims)
        pieces, cur_dim = [outputs[-1]], self.dims[-1]
        for i in range(len(self.dims) - 2, -1, -1):
            if self.dims[i] > cur_dim:
                pieces.append(outputs[i][..., cur_dim : self.dims[i]])
                cur_dim = self.dims[i]
        assert cur_dim == output_dim
        return torch.cat(pieces, dim=-1)

    def forward(self, x, x_lens, key_padding_mask):
        attn_mask = self._get_attn_mask(x.shape[0])
        outputs = []
        for dim, encoder in zip(self.dims, self.encoders):
            x = convert_num_channels(x, dim)
            x = encoder(x, self.chunk_size, attn_mask, key_padding_mask)
            outputs.append(x)
        x = self.downsample_output(self._get_full_dim_output(outputs))
        return x, torch.div(x_lens + 1, 2, rounding_mode="floor")


class Decoder(nn.Module):
    """A stateless predictor: a convolution over the last few tokens."""

    def __init__(self, vocab_size, decoder_dim, context_size):
        super().__init__()
        self.context_size = context_size
        self.embedding = nn.Embedding(vocab_size, decoder_dim)
        self.conv = nn.Conv1d(decoder_dim, decoder_dim, context_size, groups=decoder_dim // 4, bias=False)

    def forward(self, y):
        embedding_out = self.embedding(y).permute(0, 2, 1)
        embedding_out = F.pad(embedding_out, pad=(self.context_size - 1, 0))
        return F.relu(self.conv(embedding_out).permute(0, 2, 1))


class Joiner(nn.Module):
    def __init__(self, encoder_dim, decoder_dim, joiner_dim, vocab_size):
        super().__init__()
        self.encoder_proj = nn.Linear(encoder_dim, joiner_dim)
        self.decoder_proj = nn.Linear(decoder_dim, joiner_dim)
        self.output_linear = nn.Linear(joiner_dim, vocab_size)

    def forward(self, encoder_out, decoder_out):
        logit = self.encoder_proj(encoder_out).unsqueeze(2) + self.decoder_proj(decoder_out).unsqueeze(1)
        return self.output_linear(torch.tanh(logit))


def transducer_score(lattice, targets, encoder_lens, target_lens, blank):
    """The log-probability of the targets, summed over all paths of the lattice."""
    batch, time, _, _ = lattice.shape
    blanks = lattice[..., blank]
    index = targets[:, None, :, None].expand(-1, time, -1, 1)
    labels = lattice[:, :, :-1].gather(3, index).squeeze(3)
    labels = F.pad(labels.cumsum(dim=2), (1, 0))
    alpha = labels[:, 0]
    alphas = [alpha]
    for t in range(1, time):
        alpha = torch.logcumsumexp(alpha + blanks[:, t - 1] - labels[:, t], dim=1) + labels[:, t]
        alphas.append(alpha)
    alphas = torch.stack(alphas, dim=1)
    rows = torch.arange(batch)
    return alphas[rows, encoder_lens - 1, target_lens] + blanks[rows, encoder_lens - 1, target_lens]


def ctc_greedy(log_probs, lens, blank):
    """The best path without repeats and blanks, filled up with -1, and its mean score."""
    batch, time, _ = log_probs.shape
    best, tokens = log_probs.max(dim=-1)
    pad = make_pad_mask(lens, time)
    previous = F.pad(tokens, (1, 0), value=-1)[:, :-1]
    keep = (tokens != blank) & (tokens != previous) & ~pad
    place = torch.where(keep, keep.long().cumsum(dim=1) - 1, torch.full_like(tokens, time))
    hyps = torch.full((batch, time + 1), -1, dtype=torch.long).scatter(1, place, tokens)[:, :time]
    return hyps, best.masked_fill(pad, 0.0).sum(dim=1) / lens


class Transducer(nn.Module):
    def __init__(self, vocab_size=29, num_bins=40, encoder_dims=(32, 40, 36), decoder_dim=24, joiner_dim=44, blank_id=0):
        super().__init__()
        self.blank_id = blank_id
        self.fbank = Fbank(num_bins=num_bins)
        self.cmvn = GlobalCMVN(torch.zeros(num_bins), torch.ones(num_bins))
        self.encoder_embed = Conv2dSubsampling(num_bins, encoder_dims[0])
        self.encoder = Zipformer(encoder_dims)
        encoder_dim = max(encoder_dims)
        self.decoder = Decoder(vocab_size, decoder_dim, context_size=2)
        self.joiner = Joiner(encoder_dim, decoder_dim, joiner_dim, vocab_size)
        self.ctc_output = nn.Sequential(nn.Dropout(0.1), nn.Linear(encoder_dim, vocab_size), nn.LogSoftmax(dim=-1))

    def forward_encoder(self, wave, wave_lens):
        x, x_lens = self.fbank(wave, wave_lens)
        x = self.cmvn(x)
        x = x.masked_fill(make_pad_mask(x_lens, x.size(1)).unsqueeze(-1), 0.0)
        x, x_lens = self.encoder_embed(x, x_lens)
        pad_mask = make_pad_mask(x_lens, x.size(1))
        x, x_lens = self.encoder(x.permute(1, 0, 2), x_lens, pad_mask)
        return x.permute(1, 0, 2), x_lens

    def forward(self, wave, wave_lens, tokens, token_lens):
        encoder_out, encoder_lens = self.forward_encoder(wave, wave_lens)
        ctc_log_probs = self.ctc_output(encoder_out)
        hyps, ctc_score = ctc_greedy(ctc_log_probs, encoder_lens, self.blank_id)

        tokens = tokens.masked_fill(make_pad_mask(token_lens, tokens.size(1)), self.blank_id)
        decoder_out = self.decoder(F.pad(tokens, (1, 0), value=self.blank_id))
        lattice = self.joiner(encoder_out, decoder_out).log_softmax(dim=-1)
        score = transducer_score(lattice, tokens, encoder_lens, token_lens, self.blank_id)
        return lattice, ctc_log_probs, score, ctc_score, hyps


def build():
    """The net with the same weights on every run; three utterances of different lengths and their tokens."""
    torch.manual_seed(1607)
    net = Transducer()
    for name, module in net.named_modules():
        if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d)):
            gain = 2.0 if isinstance(module, nn.Conv2d) else 1.1
            nn.init.normal_(module.weight, std=gain / module.weight[0].numel() ** 0.5)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.15)
        elif isinstance(module, nn.BatchNorm1d):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.2)
            nn.init.normal_(module.running_mean, std=0.3)
            nn.init.uniform_(module.running_var, 0.3, 1.5)
        elif isinstance(module, BiasNorm):
            nn.init.normal_(module.bias, std=0.3)
            nn.init.uniform_(module.log_scale, -0.2, 0.3)
        elif isinstance(module, BypassModule):
            nn.init.uniform_(module.bypass_scale, 0.3, 0.9)
        elif isinstance(module, ChunkCausalDepthwiseConv1d):
            nn.init.normal_(module.chunkwise_conv_scale, std=0.3)
        elif isinstance(module, SimpleDownsample):
            nn.init.normal_(module.bias, std=0.7)

    wave_lens = torch.tensor([4790, 4130, 3350])
    time = torch.arange(4790) / 8000.0
    pitch = torch.tensor([[130.0], [205.0], [170.0]])
    wave = 0.03 * torch.randn(3, 4790) + 0.02
    for harmonic in range(1, 12):
        phase = 6.28 * torch.rand(3, 1)
        swing = (1.0 + (2 * math.pi * (1.5 + harmonic / 3) * time + phase).sin()) / harmonic**0.7
        wave = wave + 0.08 * swing * (2 * math.pi * harmonic * pitch * time * (1 + 0.1 * time) + phase).sin()
    wave = wave.masked_fill(make_pad_mask(wave_lens, 4790), 0.0)
    with torch.no_grad():
        feats, lens = net.fbank(wave, wave_lens)
        valid = feats[~make_pad_mask(lens, feats.size(1))]
        net.cmvn.mean.copy_(valid.mean(0) + 0.2 * torch.randn(40))
        net.cmvn.istd.copy_(1.0 / (valid.std(0) * (0.8 + 0.5 * torch.rand(40))))
        # training leaves no token far ahead of the others everywhere
        encoder_out, _ = net.eval().forward_encoder(wave, wave_lens)
        net.ctc_output[1].weight.mul_(3.0)
        net.joiner.output_linear.weight.mul_(1.5)
        net.ctc_output[1].bias.sub_(net.ctc_output(encoder_out).mean((0, 1)))
        net.ctc_output[1].bias[0].add_(0.6)
    tokens = torch.randint(1, 29, (3, 6))
    token_lens = torch.tensor([5, 6, 3])
    tokens = tokens.masked_fill(make_pad_mask(token_lens, 6), -1)
    return net.eval(), (wave, wave_lens, tokens, token_lens)
