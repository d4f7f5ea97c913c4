"""A small WavLM-style speech encoder with an utterance embedding head and a CTC head."""
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


CONV_LAYERS = ((20, 10, 5), (24, 3, 2), (24, 3, 2), (28, 2, 2))   # (dim, kernel, stride)
EMBED_DIM = 36
NUM_HEADS = 3
FFN_DIM = 60
NUM_LAYERS = 4
POS_KERNEL = 16
POS_GROUPS = 4
NUM_BUCKETS = 16
MAX_DISTANCE = 40
TDNN_DIM = 40
XVECTOR_DIM = 22
VOCAB = 13


class ConvFeatureExtractor(nn.Module):
    """Strided convolutions over the raw waveform; only the first one is followed by a group norm."""

    def __init__(self, conv_layers):
        super().__init__()
        self.conv_layers = conv_layers
        convs = []
        in_dim = 1
        for dim, kernel, stride in conv_layers:
            convs.append(nn.Conv1d(in_dim, dim, kernel, stride=stride, bias=False))
            in_dim = dim
        self.convs = nn.ModuleList(convs)
        self.norm = nn.GroupNorm(conv_layers[0][0], conv_layers[0][0])
        self.act = nn.GELU()

    def output_lengths(self, lengths):
        for _, kernel, stride in self.conv_layers:
            lengths = torch.div(lengths - kernel, stride, rounding_mode="floor") + 1
        return lengths

    def forward(self, wav):
        x = wav.unsqueeze(1)
        for i, conv in enumerate(self.convs):
            x = conv(x)
            if i == 0:
                x = self.norm(x)
            x = self.act(x)
        return x.transpose(1, 2)


class FeatureProjection(nn.Module):
    def __init__(self, in_dim, out_dim):
        super().__init__()
        self.layer_norm = nn.LayerNorm(in_dim, eps=1e-5)
        self.projection = nn.Linear(in_dim, out_dim)

    def forward(self, x):
        return self.projection(self.layer_norm(x))


class PositionalConvEmbedding(nn.Module):
    """Grouped convolution with a weight norm over the kernel axis (dim=2), as in wav2vec 2.0."""

    def __init__(self, dim, kernel_size, groups):
        super().__init__()
        self.kernel_size = kernel_size
        self.groups = groups
        self.weight_g = nn.Parameter(torch.empty(1, 1, kernel_size))
        self.weight_v = nn.Parameter(torch.empty(dim, dim // groups, kernel_size))
        self.bias = nn.Parameter(torch.empty(dim))

    def forward(self, x):
        norm = self.weight_v.pow(2).sum(dim=(0, 1), keepdim=True).sqrt()
        weight = self.weight_g * self.weight_v / norm
        y = F.conv1d(x.transpose(1, 2), weight, self.bias, padding=self.kernel_size // 2, groups=self.groups)
        if self.kernel_size % 2 == 0:
            y = y[:, :, :-1]
        return F.gelu(y).transpose(1, 2)


class GatedRelPosAttention(nn.Module):
    def __init__(self, dim, num_heads, num_buckets, max_distance, has_relative_position_bias):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.scaling = self.head_dim ** -0.5
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.q_proj = nn.Linear(dim, dim)
        self.k_proj = nn.Linear(dim, dim)
        self.v_proj = nn.Linear(dim, dim)
        self.out_proj = nn.Linear(dim, dim)
        self.gru_rel_pos_const = nn.Parameter(torch.ones(1, num_heads, 1, 1))
        self.gru_rel_pos_linear = nn.Linear(self.head_dim, 8)
        if has_relative_position_bias:
            self.rel_attn_embed = nn.Embedding(num_buckets, num_heads)

    def _relative_positions_bucket(self, relative_positions):
        num_buckets = self.num_buckets // 2
        buckets = (relative_positions > 0).to(torch.long) * num_buckets
        distance = relative_positions.abs()
        max_exact = num_buckets // 2
        is_small = distance < max_exact
        large = torch.log(distance.clamp(min=1).float() / max_exact)
        large = large / math.log(self.max_distance / max_exact)
        large = large * (num_buckets - max_exact)
        large = (max_exact + large).to(torch.long)
        large = torch.min(large, torch.full_like(large, num_buckets - 1))
        return buckets + torch.where(is_small, distance, large)

    def compute_bias(self, query_length, key_length, device):
        context = torch.arange(query_length, device=device)[:, None]
        memory = torch.arange(key_length, device=device)[None, :]
        bucket = self._relative_positions_bucket(memory - context)
        values = self.rel_attn_embed(bucket)
        return values.permute(2, 0, 1)

    def forward(self, x, frame_mask, position_bias=None):
        bsz, length, dim = x.shape
        if position_bias is None:
            position_bias = self.compute_bias(length, length, x.device)

        # gate of the relative position bias, from the input of the attention split into heads
        gated = x.view(bsz, length, self.num_heads, -1).permute(0, 2, 1, 3)
        proj = self.gru_rel_pos_linear(gated)
        proj = proj.view(bsz, self.num_heads, length, 2, 4).sum(-1)
        gate_a, gate_b = torch.sigmoid(proj).chunk(2, dim=-1)
        gate = gate_a * (gate_b * self.gru_rel_pos_const - 1.0) + 2.0
        gated_bias = gate * position_bias.unsqueeze(0)

        q = self.q_proj(x) * self.scaling
        k = self.k_proj(x)
        v = self.v_proj(x)
        q = q.view(bsz, length, self.num_heads, self.head_dim)
        k = k.view(bsz, length, self.num_heads, self.head_dim)
        v = v.view(bsz, length, self.num_heads, self.head_dim)
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) + gated_bias
        scores = scores.masked_fill(~frame_mask[:, None, None, :], float("-inf"))
        probs = F.softmax(scores, dim=-1)
        context = torch.einsum("bhqk,bkhd->bqhd", probs, v).reshape(bsz, length, dim)
        return self.out_proj(context), position_bias


class FeedForward(nn.Module):
    def __init__(self, dim, ffn_dim):
        super().__init__()
        self.intermediate = nn.Linear(dim, ffn_dim)
        self.act = nn.GELU()
        self.output = nn.Linear(ffn_dim, dim)

    def forward(self, x):
        return self.output(self.act(self.intermediate(x)))


class EncoderLayer(nn.Module):
    def __init__(self, dim, num_heads, ffn_dim, num_buckets, max_distance, has_relative_position_bias):
        super().__init__()
        self.attention = GatedRelPosAttention(dim, num_heads, num_buckets, max_distance, has_relative_position_bias)
        self.layer_norm = nn.LayerNorm(dim, eps=1e-5)
        self.feed_forward = FeedForward(dim, ffn_dim)
        self.final_layer_norm = nn.LayerNorm(dim, eps=1e-5)

    def forward(self, x, frame_mask, position_bias=None):
        attn, position_bias = self.attention(self.layer_norm(x), frame_mask, position_bias)
        x = x + attn
        x = x + self.feed_forward(self.final_layer_norm(x))
        return x, position_bias


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.pos_conv_embed = PositionalConvEmbedding(EMBED_DIM, POS_KERNEL, POS_GROUPS)
        self.layers = nn.ModuleList([
            EncoderLayer(EMBED_DIM, NUM_HEADS, FFN_DIM, NUM_BUCKETS, MAX_DISTANCE, i == 0)
            for i in range(NUM_LAYERS)
        ])
        self.layer_norm = nn.LayerNorm(EMBED_DIM, eps=1e-5)

    def forward(self, x, frame_mask):
        x = x.masked_fill(~frame_mask.unsqueeze(-1), 0.0)
        x = x + self.pos_conv_embed(x)
        hidden_states = []
        position_bias = None
        for layer in self.layers:
            hidden_states.append(x)
            x, position_bias = layer(x, frame_mask, position_bias)
        x = self.layer_norm(x)
        hidden_states.append(x)
        return x, hidden_states


class WeightedLayerSum(nn.Module):
    """SUPERB-style featurizer: every layer is standardised, then a softmax-weighted sum is taken."""

    def __init__(self, num_states):
        super().__init__()
        self.layer_weights = nn.Parameter(torch.zeros(num_states))

    def forward(self, hidden_states):
        stacked = torch.stack(hidden_states, dim=1)                       # B, N, T, C
        mean = stacked.mean(dim=-1, keepdim=True)
        std = stacked.std(dim=-1, keepdim=True)
        stacked = (stacked - mean) / (std + 1e-6)
        weights = F.softmax(self.layer_weights, dim=0)
        return (stacked * weights.view(1, -1, 1, 1)).sum(dim=1)


class TDNNBlock(nn.Module):
    def __init__(self, in_dim, out_dim, kernel_size, dilation):
        super().__init__()
        self.conv = nn.Conv1d(in_dim, out_dim, kernel_size, dilation=dilation,
                              padding=dilation * (kernel_size - 1) // 2)
        self.act = nn.ReLU()
        self.norm = nn.BatchNorm1d(out_dim)

    def forward(self, x):
        return self.norm(self.act(self.conv(x)))


class AttentiveStatisticsPooling(nn.Module):
    """ECAPA-TDNN pooling with global context; frames past the end of the utterance take no part."""

    def __init__(self, channels, attention_channels):
        super().__init__()
        self.eps = 1e-6
        self.tdnn = TDNNBlock(channels * 3, attention_channels, 1, 1)
        self.tanh = nn.Tanh()
        self.conv = nn.Conv1d(attention_channels, channels, 1)

    def _statistics(self, x, weights):
        mean = (weights * x).sum(dim=2)
        var = (weights * (x - mean.unsqueeze(2)).pow(2)).sum(dim=2)
        return mean, torch.sqrt(var.clamp(min=self.eps))

    def forward(self, x, frame_mask):
        length = x.shape[-1]
        mask = frame_mask.unsqueeze(1)                                    # B, 1, T
        uniform = mask.to(x.dtype)
        uniform = uniform / uniform.sum(dim=2, keepdim=True)
        mean, std = self._statistics(x, uniform)
        mean = mean.unsqueeze(2).repeat(1, 1, length)
        std = std.unsqueeze(2).repeat(1, 1, length)
        attn = torch.cat([x, mean, std], dim=1)
        attn = self.conv(self.tanh(self.tdnn(attn)))
        attn = attn.masked_fill(~mask, float("-inf"))
        attn = F.softmax(attn, dim=2)
        mean, std = self._statistics(x, attn)
        return torch.cat([mean, std], dim=1)


class XVectorHead(nn.Module):
    def __init__(self, in_dim, tdnn_dim, out_dim):
        super().__init__()
        self.projector = nn.Linear(in_dim, 32)
        self.tdnn = TDNNBlock(32, tdnn_dim, 3, dilation=2)
        self.pooling = AttentiveStatisticsPooling(tdnn_dim, 16)
        self.norm = nn.BatchNorm1d(tdnn_dim * 2)
        self.fc = nn.Linear(tdnn_dim * 2, out_dim)

    def forward(self, x, frame_mask):
        x = self.projector(x)
        x = x * frame_mask.unsqueeze(-1).to(x.dtype)
        x = self.tdnn(x.transpose(1, 2))
        x = self.norm(self.pooling(x, frame_mask))
        return F.normalize(self.fc(x), dim=-1)


class CTCHead(nn.Module):
    def __init__(self, dim, vocab, blank=0):
        super().__init__()
        self.blank = blank
        self.dense = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim, eps=1e-5)
        self.lm_head = nn.Linear(dim, vocab)

    def sequence_score(self, log_probs, frame_lengths, targets, target_lengths):
        """log p(targets | x) by the CTC forward recursion, per target symbol."""
        neg_inf = -1e30
        bsz, num_frames, _ = log_probs.shape
        size = 2 * targets.shape[1] + 1
        ext = targets.new_full((bsz, size), self.blank)
        ext[:, 1::2] = targets
        emit = log_probs.gather(2, ext.unsqueeze(1).expand(-1, num_frames, -1))

        can_skip = torch.zeros(bsz, size, dtype=torch.bool, device=log_probs.device)
        can_skip[:, 2:] = (ext[:, 2:] != self.blank) & (ext[:, 2:] != ext[:, :-2])

        alpha = torch.full_like(emit[:, 0], neg_inf)
        alpha[:, :2] = emit[:, 0, :2]
        for t in range(1, num_frames):
            stay = alpha
            step = F.pad(alpha, (1, 0), value=neg_inf)[:, :-1]
            skip = F.pad(alpha, (2, 0), value=neg_inf)[:, :-2]
            skip = torch.where(can_skip, skip, torch.full_like(skip, neg_inf))
            new = torch.logsumexp(torch.stack([stay, step, skip], dim=0), dim=0) + emit[:, t]
            active = (t < frame_lengths).unsqueeze(1)
            alpha = torch.where(active, new, alpha)

        end = 2 * target_lengths.unsqueeze(1)
        total = torch.logaddexp(alpha.gather(1, end), alpha.gather(1, end - 1)).squeeze(1)
        return total / target_lengths.to(total.dtype)

    def greedy_score(self, log_probs, frame_mask):
        """Mean log-probability of the frames that emit a symbol in the best path."""
        best, ids = log_probs.max(dim=-1)
        previous = F.pad(ids, (1, 0), value=self.blank)[:, :-1]
        emits = (ids != previous) & (ids != self.blank) & frame_mask
        emits = emits.to(best.dtype)
        return (best * emits).sum(dim=1) / emits.sum(dim=1).clamp(min=1.0)

    def forward(self, x, frame_mask, frame_lengths, targets, target_lengths):
        x = self.norm(F.gelu(self.dense(x)))
        log_probs = F.log_softmax(self.lm_head(x), dim=-1)
        score = self.sequence_score(log_probs, frame_lengths, targets, target_lengths)
        greedy = self.greedy_score(log_probs, frame_mask)
        log_probs = log_probs.masked_fill(~frame_mask.unsqueeze(-1), 0.0)
        return log_probs, score, greedy


class WavLMForSpeech(nn.Module):
    def __init__(self):
        super().__init__()
        self.feature_extractor = ConvFeatureExtractor(CONV_LAYERS)
        self.feature_projection = FeatureProjection(CONV_LAYERS[-1][0], EMBED_DIM)
        self.encoder = Encoder()
        self.featurizer = WeightedLayerSum(NUM_LAYERS + 1)
        self.xvector = XVectorHead(EMBED_DIM, TDNN_DIM, XVECTOR_DIM)
        self.ctc_head = CTCHead(EMBED_DIM, VOCAB)

    def forward(self, wav, wav_lengths, targets, target_lengths):
        features = self.feature_extractor(wav)
        frame_lengths = self.feature_extractor.output_lengths(wav_lengths)
        # a one at the last valid frame of every row, then everything before it
        frame_mask = torch.zeros(features.shape[:2], dtype=torch.long, device=wav.device)
        frame_mask[torch.arange(wav.shape[0], device=wav.device), frame_lengths - 1] = 1
        frame_mask = frame_mask.flip([-1]).cumsum(-1).flip([-1]).bool()

        hidden = self.feature_projection(features)
        last, hidden_states = self.encoder(hidden, frame_mask)
        log_probs, score, greedy = self.ctc_head(last, frame_mask, frame_lengths, targets, target_lengths)
        embedding = self.xvector(self.featurizer(hidden_states), frame_mask)
        return log_probs, score, greedy, embedding


def make_inputs():
    rng = np.random.RandomState(7)
    lengths = np.array([1730, 1313, 897], dtype=np.int64)
    time = np.arange(1730) / 1600.0
    rows = []
    for i, n in enumerate(lengths):
        tone = 0.05 * np.sin(2 * np.pi * (23 + 9 * i) * time ** 1.2) + 0.03 * np.sin(2 * np.pi * (61 - 7 * i) * time)
        row = tone * (0.55 + 0.45 * np.cos(31 * time + i)) + 0.012 * rng.randn(1730)
        row[n:] = 0.0
        rows.append(row)
    wav = np.stack(rows).astype(np.float32)
    targets = np.array([[3, 3, 7, 1, 12, 5, 5], [9, 2, 2, 4, 8, 0, 0], [6, 11, 6, 6, 0, 0, 0]], dtype=np.int64)
    target_lengths = np.array([7, 5, 4], dtype=np.int64)
    return wav, lengths, targets, target_lengths


def build():
    torch.manual_seed(12)
    net = WavLMForSpeech()
    norms = (nn.LayerNorm, nn.GroupNorm, nn.BatchNorm1d)
    with torch.no_grad():
        for module in net.modules():
            for name, p in module.named_parameters(recurse=False):
                noise = torch.randn(p.shape)
                if isinstance(module, norms):
                    p.copy_(1.0 + 0.25 * noise if name == "weight" else 0.25 * noise)
                elif name == "bias":
                    p.copy_(0.1 * noise)
                elif name in ("weight_g", "gru_rel_pos_const"):
                    p.copy_(1.2 + 0.3 * noise)
                elif p.dim() >= 2 and not isinstance(module, nn.Embedding):
                    p.copy_(noise * (1.0 / math.sqrt(p[0].numel())))
                else:
                    p.copy_(0.7 * noise)
            if isinstance(module, nn.BatchNorm1d):
                module.running_mean.copy_(0.3 * torch.randn(module.num_features))
                module.running_var.copy_(0.3 + torch.rand(module.num_features))
        for conv in net.feature_extractor.convs:
            conv.weight.mul_(0.7)
        net.ctc_head.lm_head.weight.mul_(1.8)
    return net.eval(), tuple(torch.from_numpy(a) for a in make_inputs())


if __name__ == "__main__":
    model, args = build()
    with torch.no_grad():
        for out in model(*args):
            print(tuple(out.shape), out.flatten()[:6])
