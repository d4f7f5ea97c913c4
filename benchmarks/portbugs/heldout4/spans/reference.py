"""Coreference over spans, with an encoder in the manner of DeBERTa (disentangled attention)."""

import math

import torch
import torch.nn.functional as F
from torch import nn


def log_buckets(relative, buckets, farthest):
    """Near offsets keep their own bucket, far ones share logarithmic ones."""
    sign = torch.sign(relative)
    mid = buckets // 2
    absolute = torch.where((relative < mid) & (relative > -mid), torch.full_like(relative, mid - 1), relative.abs())
    log_place = torch.ceil(torch.log(absolute / mid) / math.log((farthest - 1) / mid) * (mid - 1)) + mid
    return torch.where(absolute <= mid, relative, (log_place * sign).long())


def masked_softmax(scores, mask, dim=-1):
    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    probs = torch.softmax(scores, dim)
    return probs.masked_fill(~mask, 0.0)


def batched_select(x, index):
    """x: (batch, n, d), index: (batch, m) or (m,) -> (batch, m, d)."""
    if index.dim() == 1:
        index = index[None].expand(x.shape[0], -1)
    return x.gather(1, index[..., None].expand(*index.shape, x.shape[-1]))


class DisentangledAttention(nn.Module):
    def __init__(self, hidden_size, num_heads, att_span):
        super().__init__()
        self.num_heads = num_heads
        self.att_span = att_span
        self.query_proj = nn.Linear(hidden_size, hidden_size)
        self.key_proj = nn.Linear(hidden_size, hidden_size)
        self.value_proj = nn.Linear(hidden_size, hidden_size)

    def transpose_for_scores(self, x):
        x = x.view(x.shape[0], x.shape[1], self.num_heads, -1)
        return x.permute(0, 2, 1, 3).contiguous().view(-1, x.shape[1], x.shape[-1])

    def disentangled_bias(self, query, key, relative_pos, rel_embeddings, scale_factor):
        batch = query.shape[0] // self.num_heads
        span = self.att_span
        rel_embeddings = rel_embeddings[:2 * span].unsqueeze(0)
        pos_query = self.transpose_for_scores(self.query_proj(rel_embeddings)).repeat(batch, 1, 1)
        pos_key = self.transpose_for_scores(self.key_proj(rel_embeddings)).repeat(batch, 1, 1)
        scale = math.sqrt(query.shape[-1] * scale_factor)
        # content to position
        c2p_att = torch.bmm(query, pos_key.transpose(-1, -2))
        c2p_pos = torch.clamp(relative_pos + span, 0, span * 2 - 1)
        c2p_att = torch.gather(c2p_att, -1, c2p_pos.unsqueeze(0).expand(query.shape[0], -1, -1))
        score = c2p_att / scale
        # position to content
        p2c_pos = torch.clamp(-relative_pos + span, 0, span * 2 - 1)
        p2c_att = torch.bmm(key, pos_query.transpose(-1, -2))
        p2c_att = torch.gather(p2c_att, -1, p2c_pos.unsqueeze(0).expand(key.shape[0], -1, -1)).transpose(-1, -2)
        return score + p2c_att / scale

    def forward(self, hidden_states, attention_mask, relative_pos, rel_embeddings):
        query = self.transpose_for_scores(self.query_proj(hidden_states))
        key = self.transpose_for_scores(self.key_proj(hidden_states))
        value = self.transpose_for_scores(self.value_proj(hidden_states))
        scale_factor = 3
        scale = math.sqrt(query.shape[-1] * scale_factor)
        scores = torch.bmm(query, key.transpose(-1, -2)) / scale
        scores = scores + self.disentangled_bias(query, key, relative_pos, rel_embeddings, scale_factor)
        scores = scores.view(-1, self.num_heads, scores.shape[-2], scores.shape[-1])
        # each head's scores are taken relative to the row's mean over the words that exist
        weight = attention_mask.float()
        centre = (scores * weight).sum(-1, keepdim=True) / weight.sum(-1, keepdim=True).clamp(min=1)
        probs = masked_softmax((scores - centre).clamp(-6, 6), attention_mask)
        context = torch.bmm(probs.view(-1, *probs.shape[-2:]), value)
        context = context.view(-1, self.num_heads, context.shape[-2], context.shape[-1]).permute(0, 2, 1, 3)
        return context.reshape(context.shape[0], context.shape[1], -1)


class EncoderLayer(nn.Module):
    def __init__(self, hidden_size, num_heads, att_span):
        super().__init__()
        self.attention = DisentangledAttention(hidden_size, num_heads, att_span)
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.attention_norm = nn.LayerNorm(hidden_size, eps=1e-7)
        self.intermediate = nn.Linear(hidden_size, 2 * hidden_size)
        self.output = nn.Linear(2 * hidden_size, hidden_size)
        self.output_norm = nn.LayerNorm(hidden_size, eps=1e-7)

    def forward(self, x, mask, relative_pos, rel_embeddings):
        pair_mask = mask[:, None, :, None] & mask[:, None, None, :]
        attended = self.attention(x, pair_mask, relative_pos, rel_embeddings)
        x = self.attention_norm(x + self.dense(attended))
        y = F.gelu(self.intermediate(x), approximate="tanh")
        # tokens that are shifted by one give a little context to the wide layer
        left = F.pad(y, (0, 0, 1, 0))[:, :-1]
        y = y + 0.5 * left * mask[..., None]
        return self.output_norm(x + self.output(y)) * mask[..., None]


class Encoder(nn.Module):
    def __init__(self, vocab, hidden_size, num_heads, layers, buckets, farthest):
        super().__init__()
        self.buckets, self.farthest = buckets, farthest
        self.word_embeddings = nn.Embedding(vocab, hidden_size)
        self.speaker_embeddings = nn.Embedding(4, hidden_size)
        self.norm = nn.LayerNorm(hidden_size, eps=1e-7)
        self.rel_embeddings = nn.Embedding(2 * buckets, hidden_size)
        self.rel_norm = nn.LayerNorm(hidden_size, eps=1e-7)
        self.layer = nn.ModuleList([EncoderLayer(hidden_size, num_heads, buckets) for _ in range(layers)])
        self.mix = nn.Parameter(torch.zeros(layers + 1))

    def forward(self, ids, speakers, mask):
        # a speaker's words are numbered by how often the speaker has changed before them
        change = (speakers[:, 1:] != speakers[:, :-1]).long()
        turns = F.pad(change, (1, 0)).cumsum(dim=1)
        x = self.word_embeddings(ids) + self.speaker_embeddings(speakers)
        x = x + 0.1 * torch.sin(turns.float() / 2.0)[..., None]
        x = self.norm(x) * mask[..., None]
        places = torch.arange(ids.shape[1])
        relative_pos = log_buckets(places[:, None] - places[None, :], self.buckets, self.farthest)
        rel_embeddings = self.rel_norm(self.rel_embeddings.weight)
        states = [x]
        for layer in self.layer:
            x = layer(x, mask, relative_pos, rel_embeddings)
            states.append(x)
        weights = torch.softmax(self.mix, dim=0)
        return sum(w * s for w, s in zip(weights, states)), turns


class SpanExtractor(nn.Module):
    """Start, end, width, and the words between weighed by a head finder."""

    def __init__(self, hidden_size, width_size, max_width):
        super().__init__()
        self.max_width = max_width
        self.width_embeddings = nn.Embedding(max_width, width_size)
        self.head = nn.Linear(hidden_size, 1)
        self.project = nn.Linear(3 * hidden_size + width_size, hidden_size)
        self.norm = nn.LayerNorm(hidden_size)

    def forward(self, x, mask):
        length = x.shape[1]
        starts = torch.arange(length).repeat_interleave(self.max_width)
        widths = torch.arange(self.max_width).repeat(length)
        ends = starts + widths
        inside = ends < length
        starts, widths, ends = starts[inside], widths[inside], ends[inside]
        valid = (starts[None] >= 0) & (ends[None] < mask.sum(-1, keepdim=True))

        places = torch.arange(length)[None, :]
        cover = (places >= starts[:, None]) & (places <= ends[:, None])
        head = self.head(x).squeeze(-1)
        head_probs = masked_softmax(head[:, None, :].expand(-1, len(starts), -1), cover[None], dim=-1)
        attended = torch.einsum("bsl,bld->bsd", head_probs, x)

        width = self.width_embeddings(widths)[None].expand(x.shape[0], -1, -1)
        reps = torch.cat([batched_select(x, starts), batched_select(x, ends), attended, width], dim=-1)
        reps = self.norm(torch.tanh(self.project(reps)) + attended)
        return reps, valid, starts, ends


class CorefNet(nn.Module):
    def __init__(self, vocab=90, hidden_size=48, num_heads=4, layers=2, buckets=6, farthest=32, max_width=4, keep=0.4):
        super().__init__()
        self.keep = keep
        self.encoder = Encoder(vocab, hidden_size, num_heads, layers, buckets, farthest)
        self.pooler = nn.Linear(2 * hidden_size, hidden_size)
        self.spans = SpanExtractor(hidden_size, 12, max_width)
        self.mention_hidden = nn.Linear(hidden_size, hidden_size)
        self.mention = nn.Linear(hidden_size, 1)
        self.left = nn.Linear(hidden_size, 32)
        self.right = nn.Linear(hidden_size, 32)
        self.biaffine = nn.Parameter(torch.zeros(33, 32))
        self.distance_embeddings = nn.Embedding(7, 16)
        self.pair = nn.Linear(17, 1)
        self.gate = nn.Linear(2 * hidden_size, hidden_size)

    def pool(self, x, mask):
        weight = mask.float()[..., None]
        mean = (x * weight).sum(1) / weight.sum(1).clamp(min=1e-6)
        deviation = ((x - mean[:, None]) ** 2 * weight).sum(1) / (weight.sum(1) - 1).clamp(min=1.0)
        return torch.tanh(self.pooler(torch.cat([mean, torch.sqrt(deviation + 1e-5)], dim=-1)))

    def prune(self, scores, valid, length):
        """The best spans' indices, in the order of the text."""
        count = int(self.keep * length)
        scores = scores.masked_fill(~valid, -1e4)
        _, index = torch.topk(scores, count, dim=1)
        index, _ = torch.sort(index, dim=1)
        return index, scores.gather(1, index)

    def pair_features(self, starts, ends, turns):
        gap = (starts[:, :, None] - ends[:, None, :]).clamp(min=0)
        bucket = torch.floor(torch.log2(gap.float() + 1.0) * 1.5 + 0.01).long().clamp(max=6)
        first = turns.gather(1, starts)
        same = (first[:, :, None] == first[:, None, :]).float()
        return torch.cat([self.distance_embeddings(bucket), same[..., None]], dim=-1)

    def antecedents(self, reps, scores, features, allowed):
        left = torch.tanh(self.left(reps))
        right = torch.tanh(self.right(reps))
        left = torch.cat([left, torch.ones_like(left[..., :1])], dim=-1)
        pairs = torch.einsum("bid,de,bje->bij", left, self.biaffine, right)
        pairs = pairs + self.pair(features).squeeze(-1)
        pairs = pairs + scores[:, :, None] + scores[:, None, :]
        pairs = pairs.masked_fill(~allowed, -1e4)
        dummy = pairs.new_zeros(pairs.shape[0], pairs.shape[1], 1)
        return torch.cat([dummy, pairs], dim=-1)

    def forward(self, ids, speakers, mask):
        mask = mask > 0
        x, turns = self.encoder(ids, speakers, mask)
        summary = self.pool(x, mask)
        x = (x + 0.5 * summary[:, None]) * mask[..., None]
        reps, valid, starts, ends = self.spans(x, mask)

        scores = self.mention(F.leaky_relu(self.mention_hidden(reps), 0.1)).squeeze(-1)
        scores = scores - 0.3 * torch.log1p((ends - starts).float())
        index, top_scores = self.prune(scores, valid, x.shape[1])
        reps = batched_select(reps, index)
        starts, ends = starts[index], ends[index]

        count = index.shape[1]
        order = torch.arange(count)
        allowed = (order[None, :] < order[:, None])[None].expand(len(index), -1, -1)
        features = self.pair_features(starts, ends, turns)
        for _ in range(2):
            logits = self.antecedents(reps, top_scores, features, allowed)
            probs = torch.softmax(logits, dim=-1)
            # what the antecedents say about a span; the dummy stands for the span itself
            expected = probs[..., :1] * reps + probs[..., 1:] @ reps
            gate = torch.sigmoid(self.gate(torch.cat([reps, expected], dim=-1)))
            reps = gate * reps + (1 - gate) * expected
        logits = self.antecedents(reps, top_scores, features, allowed)
        return torch.softmax(logits, dim=-1), top_scores, reps, summary


def build():
    """The net with the same weights on every run, and three texts of unequal length."""
    torch.manual_seed(31)
    net = CorefNet()
    for name, module in net.named_modules():
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.6)
        elif isinstance(module, nn.LayerNorm):
            nn.init.uniform_(module.weight, 0.6, 1.5)
            nn.init.normal_(module.bias, std=0.2)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=1.2 / math.sqrt(module.in_features))
    nn.init.normal_(net.biaffine, std=0.25)
    nn.init.normal_(net.encoder.mix, std=0.5)
    lengths = torch.tensor([22, 15, 18])
    mask = (torch.arange(22)[None] < lengths[:, None]).long()
    ids = torch.randint(1, 90, (3, 22)) * mask
    turn = (torch.rand(3, 22) < 0.3).long().cumsum(1)
    return net.eval(), (ids, (turn * 3 + torch.tensor([[0], [1], [2]])) % 4 * mask, mask)
