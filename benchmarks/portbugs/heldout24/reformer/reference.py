"""A Reformer-like encoder of long documents (LSH and local attention, reversible streams) that classifies the document
and finds the span that answers a question, in PyTorch."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn


class ReformerConfig:
    """What the json of the small model says."""

    vocab_size = 97
    pad_token_id = 0
    hidden_size = 32
    embedding_eps, layer_norm_eps = 1e-3, 1e-6
    axial_pos_shape, axial_pos_dims = (7, 12), (10, 22)  # 84 positions, 32 channels
    attn_layers = ("local", "lsh", "local", "lsh", "lsh")
    num_heads, head_size = 3, 14
    lsh_chunk_length, local_chunk_length = 8, 9
    num_hashes, num_buckets, hash_seed = 4, (4, 6), 17
    ffn_size, ffn_chunk = 76, 20
    hidden_dropout = 0.05
    num_classes, class_hidden = 5, 27
    span_size, span_channels = 11, 6
    max_span, length_slope = 9, 0.35


MASK_VALUE = -1e9
SELF_MASK_VALUE = -1e5


def split_heads(x, num_heads, head_size):
    """(batch, length, heads * size) -> (batch, heads, length, size)."""
    return x.view(*x.shape[:-1], num_heads, head_size).transpose(2, 1)


def merge_heads(x):
    """(batch, heads, length, size) -> (batch, length, heads * size)."""
    x = x.permute(0, 2, 1, 3)
    return x.reshape(x.shape[0], x.shape[1], -1)


def split_length(x, chunk_length):
    """(batch, heads, length, ...) -> (batch, heads, chunks, chunk_length, ...)."""
    return x.reshape(x.shape[0], x.shape[1], -1, chunk_length, *x.shape[3:])


def look_back(chunks):
    """Put the chunk before in front of each chunk; the first one looks at the last."""
    previous = torch.cat([chunks[:, :, -1:], chunks[:, :, :-1]], dim=2)
    return torch.cat([previous, chunks], dim=3)


def look_around(chunks, fill):
    """The chunk before, the chunk and the chunk after; beyond the ends there is only the fill."""
    edge = torch.full_like(chunks[:, :, :1], fill)
    previous = torch.cat([edge, chunks[:, :, :-1]], dim=2)
    following = torch.cat([chunks[:, :, 1:], edge], dim=2)
    return torch.cat([previous, chunks, following], dim=3)


def length_and_dim_norm(vectors, eps=1e-6):
    """Root mean square norm, and then the scale of dot products."""
    variance = torch.mean(vectors**2, -1, keepdim=True)
    return vectors * torch.rsqrt(variance + eps) * vectors.shape[-1] ** -0.5


def apply_in_chunks(function, chunk_size, x):
    """Apply something that acts on every position alone, a part of the sequence at a time, to save memory."""
    return torch.cat([function(part) for part in x.split(chunk_size, dim=1)], dim=1)


class AxialPositionEmbeddings(nn.Module):
    """The position is a place on a grid: one table gives the first channels by row, one the others by column."""

    def __init__(self, cfg):
        super().__init__()
        self.shape = cfg.axial_pos_shape
        self.dims = cfg.axial_pos_dims
        self.weight_row = nn.Parameter(torch.zeros(self.shape[0], 1, self.dims[0]))
        self.weight_col = nn.Parameter(torch.zeros(1, self.shape[1], self.dims[1]))

    def forward(self, position_ids):
        n_cols = self.shape[1]
        needed = math.ceil(position_ids.shape[1] / n_cols)
        by_row = self.weight_row[:needed].expand(needed, n_cols, -1)
        by_col = self.weight_col.expand(needed, n_cols, -1)
        table = torch.cat([by_row, by_col], dim=-1).reshape(needed * n_cols, -1)
        return F.embedding(position_ids, table)


class ReformerEmbeddings(nn.Module):
    """Word, position and segment (0 padding, 1 question, 2 document)."""

    def __init__(self, cfg):
        super().__init__()
        self.word_embeddings = nn.Embedding(cfg.vocab_size, cfg.hidden_size, padding_idx=cfg.pad_token_id)
        self.position_embeddings = AxialPositionEmbeddings(cfg)
        self.segment_embeddings = nn.Embedding(3, cfg.hidden_size)
        self.norm = nn.LayerNorm(cfg.hidden_size, eps=cfg.embedding_eps)
        self.dropout = nn.Dropout(cfg.hidden_dropout)

    def forward(self, input_ids, segment_ids):
        position_ids = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
        x = self.word_embeddings(input_ids) + self.segment_embeddings(segment_ids)
        x = self.dropout(self.norm(x))
        return x + self.position_embeddings(position_ids)


class LSHSelfAttention(nn.Module):
    """Attention among those that fall into near buckets; queries and keys are shared."""

    def __init__(self, cfg, seed):
        super().__init__()
        self.chunk_length = cfg.lsh_chunk_length
        self.num_hashes = cfg.num_hashes
        self.num_buckets = cfg.num_buckets
        self.num_heads = cfg.num_heads
        self.head_size = cfg.head_size
        all_heads = cfg.num_heads * cfg.head_size
        self.query_key = nn.Linear(cfg.hidden_size, all_heads, bias=False)
        self.value = nn.Linear(cfg.hidden_size, all_heads, bias=False)
        self.dropout = nn.Dropout(cfg.hidden_dropout)
        generator = torch.Generator().manual_seed(seed)
        shape = (cfg.num_heads, cfg.head_size, cfg.num_hashes, sum(cfg.num_buckets) // 2)
        self.register_buffer("rotations", torch.randn(shape, generator=generator))

    def _hash_vectors(self, vectors, attention_mask):
        """Buckets (batch, heads, hashes * length): those of one round do not meet those of another."""
        batch = vectors.shape[0]
        rotated = torch.einsum("bmtd,mdhr->bmhtr", vectors, self.rotations)
        start, base, buckets = 0, 1, None
        for factor in self.num_buckets:
            part = rotated[..., start : start + factor // 2]
            start = start + factor // 2
            digit = torch.argmax(torch.cat([part, -part], dim=-1), dim=-1)
            buckets = digit if buckets is None else buckets + base * digit
            base = base * factor
        total = math.prod(self.num_buckets)
        # padding has a bucket of its own, behind the others
        padded = ~attention_mask[:, None, None, :].expand_as(buckets)
        buckets = buckets.masked_fill(padded, total)
        offsets = torch.arange(self.num_hashes, device=vectors.device) * (total + 1)
        return (buckets + offsets.view(1, 1, -1, 1)).reshape(batch, self.num_heads, -1)

    def _sort_by_bucket(self, length, buckets):
        """Stable order by bucket, and the way back."""
        places = torch.arange(self.num_hashes * length, device=buckets.device)
        scaled = length * buckets + (places % length)
        order = torch.argsort(scaled, dim=-1)
        undo = torch.empty_like(order).scatter_(-1, order, places.expand_as(order))
        return order, undo

    def _gather(self, vectors, index):
        return vectors.gather(2, index.unsqueeze(-1).expand(-1, -1, -1, vectors.shape[-1]))

    def _attend(self, query, key, value, place, attention_mask):
        batch, heads = query.shape[:2]
        key_place = look_back(place)
        logits = torch.matmul(query, key.transpose(-1, -2))
        # padding
        seen = attention_mask[:, None, :].expand(batch, heads, -1)
        seen = torch.gather(seen, 2, key_place.reshape(batch, heads, -1)).reshape(key_place.shape)
        logits = torch.where(seen.unsqueeze(-2), logits, torch.full_like(logits, MASK_VALUE))
        # itself, only if there is nobody else
        other = place.unsqueeze(-1) != key_place.unsqueeze(-2)
        logits = torch.where(other, logits, torch.full_like(logits, SELF_MASK_VALUE))
        normalizer = torch.logsumexp(logits, dim=-1, keepdim=True)
        probs = self.dropout(torch.exp(logits - normalizer))
        return torch.matmul(probs, value), normalizer.squeeze(-1)

    def forward(self, hidden, attention_mask):
        batch, length, _ = hidden.shape
        query_key = split_heads(self.query_key(hidden), self.num_heads, self.head_size)
        value = split_heads(self.value(hidden), self.num_heads, self.head_size)

        buckets = self._hash_vectors(query_key, attention_mask)
        order, undo = self._sort_by_bucket(length, buckets)
        place = order % length

        query_key = split_length(self._gather(query_key, place), self.chunk_length)
        value = split_length(self._gather(value, place), self.chunk_length)
        place = split_length(place, self.chunk_length)
        key = look_back(length_and_dim_norm(query_key))
        out, normalizer = self._attend(query_key, key, look_back(value), place, attention_mask)

        # back to the order of the sequence, round by round
        out = out.flatten(2, 3)
        normalizer = normalizer.flatten(2, 3)
        out = self._gather(out, undo).reshape(batch, self.num_heads, self.num_hashes, length, self.head_size)
        normalizer = normalizer.gather(2, undo).reshape(batch, self.num_heads, self.num_hashes, length, 1)
        weights = torch.exp(normalizer - torch.logsumexp(normalizer, dim=2, keepdim=True))
        return merge_heads((out * weights).sum(dim=2))


class LocalSelfAttention(nn.Module):
    """Attention to the chunk and to both of its neighbours, with a bias by distance."""

    def __init__(self, cfg):
        super().__init__()
        self.chunk_length = cfg.local_chunk_length
        self.num_heads = cfg.num_heads
        self.head_size = cfg.head_size
        all_heads = cfg.num_heads * cfg.head_size
        self.query = nn.Linear(cfg.hidden_size, all_heads, bias=False)
        self.key = nn.Linear(cfg.hidden_size, all_heads, bias=False)
        self.value = nn.Linear(cfg.hidden_size, all_heads, bias=False)
        self.distance_bias = nn.Parameter(torch.zeros(cfg.num_heads, 4 * cfg.local_chunk_length - 1))
        self.dropout = nn.Dropout(cfg.hidden_dropout)

    def _distance_bias(self):
        """(heads, 1, chunk, 3 * chunk): what the distance of a key from a query adds."""
        query_place = torch.arange(self.chunk_length)[:, None] + self.chunk_length
        key_place = torch.arange(3 * self.chunk_length)[None, :]
        distance = key_place - query_place  # -(2 * chunk - 1) ... 2 * chunk - 1
        return self.distance_bias[:, distance + 2 * self.chunk_length - 1].unsqueeze(1)

    def forward(self, hidden, attention_mask):
        batch, length, _ = hidden.shape
        query = split_heads(self.query(hidden), self.num_heads, self.head_size)
        key = split_heads(self.key(hidden), self.num_heads, self.head_size) / math.sqrt(self.head_size)
        value = split_heads(self.value(hidden), self.num_heads, self.head_size)

        query = split_length(query, self.chunk_length)
        key = look_around(split_length(key, self.chunk_length), 0.0)
        value = look_around(split_length(value, self.chunk_length), 0.0)
        logits = torch.matmul(query, key.transpose(-1, -2)) + self._distance_bias()

        seen = look_around(split_length(attention_mask[:, None, :], self.chunk_length), False)
        logits = logits.masked_fill(~seen.unsqueeze(-2), MASK_VALUE)
        normalizer = torch.logsumexp(logits, dim=-1, keepdim=True)
        probs = self.dropout(torch.exp(logits - normalizer))
        out = torch.matmul(probs, value)
        return merge_heads(out.reshape(batch, self.num_heads, length, self.head_size))


class ReformerAttention(nn.Module):
    """Norm, attention of one of the two kinds, output."""

    def __init__(self, cfg, index):
        super().__init__()
        self.layer_norm = nn.LayerNorm(cfg.hidden_size, eps=cfg.layer_norm_eps)
        if cfg.attn_layers[index] == "lsh":
            self.self_attention = LSHSelfAttention(cfg, cfg.hash_seed + index)
        else:
            self.self_attention = LocalSelfAttention(cfg)
        self.output = nn.Linear(cfg.num_heads * cfg.head_size, cfg.hidden_size, bias=False)
        self.dropout = nn.Dropout(cfg.hidden_dropout)

    def forward(self, hidden, attention_mask):
        hidden = self.self_attention(self.layer_norm(hidden), attention_mask)
        return self.dropout(self.output(hidden))


class ChunkedFeedForward(nn.Module):
    """Perceptron over parts of the sequence."""

    def __init__(self, cfg):
        super().__init__()
        self.chunk_size = cfg.ffn_chunk
        self.layer_norm = nn.LayerNorm(cfg.hidden_size, eps=cfg.layer_norm_eps)
        self.dense = nn.Linear(cfg.hidden_size, cfg.ffn_size)
        self.act = nn.GELU()
        self.output = nn.Linear(cfg.ffn_size, cfg.hidden_size)
        self.dropout = nn.Dropout(cfg.hidden_dropout)

    def _forward_chunk(self, x):
        return self.dropout(self.output(self.act(self.dense(self.layer_norm(x)))))

    def forward(self, x):
        return apply_in_chunks(self._forward_chunk, self.chunk_size, x)


class ReversibleLayer(nn.Module):
    """Y1 = X1 + attention(X2), Y2 = X2 + feed_forward(Y1)."""

    def __init__(self, cfg, index):
        super().__init__()
        self.attention = ReformerAttention(cfg, index)
        self.feed_forward = ChunkedFeedForward(cfg)

    def forward(self, stream_attn, stream_ffn, attention_mask):
        stream_attn = stream_attn + self.attention(stream_ffn, attention_mask)
        stream_ffn = stream_ffn + self.feed_forward(stream_attn)
        return stream_attn, stream_ffn


class ReformerEncoder(nn.Module):
    """Two streams that begin alike and are joined at the end."""

    def __init__(self, cfg):
        super().__init__()
        self.layers = nn.ModuleList([ReversibleLayer(cfg, index) for index in range(len(cfg.attn_layers))])
        self.layer_norm = nn.LayerNorm(2 * cfg.hidden_size, eps=cfg.layer_norm_eps)
        self.dropout = nn.Dropout(cfg.hidden_dropout)

    def forward(self, hidden, attention_mask):
        stream_attn, stream_ffn = hidden, hidden
        for layer in self.layers:
            stream_attn, stream_ffn = layer(stream_attn, stream_ffn, attention_mask)
        hidden = torch.cat([stream_attn, stream_ffn], dim=-1)
        return self.dropout(self.layer_norm(hidden))


class DocumentHead(nn.Module):
    """Class of the document from the first token and from a weighted mean over the document's tokens."""

    def __init__(self, cfg):
        super().__init__()
        width = 2 * cfg.hidden_size
        self.gate = nn.Linear(width, 1)
        self.dense = nn.Linear(2 * width, cfg.class_hidden)
        self.act = nn.LeakyReLU()
        self.dropout = nn.Dropout(cfg.hidden_dropout)
        self.out_proj = nn.Linear(cfg.class_hidden, cfg.num_classes)

    def forward(self, hidden, in_document):
        gate = self.gate(hidden).squeeze(-1)
        gate = gate.masked_fill(~in_document, float("-inf")).softmax(dim=-1)
        pooled = torch.einsum("bn,bnd->bd", gate, hidden)
        features = torch.cat([hidden[:, 0], pooled], dim=-1)
        return self.out_proj(self.dropout(self.act(self.dense(features))))


class SpanHead(nn.Module):
    """Probabilities of all spans up to a length, as a grid (start, length - 1), against that of no answer."""

    def __init__(self, cfg):
        super().__init__()
        width = 2 * cfg.hidden_size
        self.max_span = cfg.max_span
        self.qa_outputs = nn.Linear(width, 2)
        self.start_proj = nn.Linear(width, cfg.span_size)
        self.end_proj = nn.Linear(width, cfg.span_size)
        self.grid_conv = nn.Conv2d(3, cfg.span_channels, 3, padding=(2, 1), dilation=(2, 1))
        self.grid_norm = nn.GroupNorm(3, cfg.span_channels)
        self.act = nn.GELU()
        self.grid_mix = nn.Conv2d(cfg.span_channels, 1, 1)
        prior = -cfg.length_slope * torch.log(torch.arange(1, cfg.max_span + 1, dtype=torch.float32))
        self.register_buffer("length_prior", prior, persistent=False)

    def _windows(self, x, value=0.0):
        """(batch, length, ...) -> (batch, length, max_span, ...): what follows each place, itself first."""
        extra = x.new_full((x.shape[0], self.max_span - 1, *x.shape[2:]), value)
        windows = torch.cat([x, extra], dim=1).unfold(1, self.max_span, 1)
        return windows.movedim(-1, 2)

    def forward(self, hidden, in_document, max_answer):
        batch, length, _ = hidden.shape
        start, end = self.qa_outputs(hidden).unbind(dim=-1)
        no_answer = start[:, 0] + end[:, 0]

        widths = torch.arange(self.max_span, device=hidden.device)
        allowed = in_document.unsqueeze(-1) & self._windows(in_document, False)
        allowed = allowed & (widths[None, None, :] < max_answer[:, None, None])

        start_rep, end_rep = self.start_proj(hidden), self.end_proj(hidden)
        pair = torch.einsum("bnd,bnwd->bnw", start_rep, self._windows(end_rep)) / math.sqrt(start_rep.shape[-1])
        grid = torch.stack([start.unsqueeze(-1).expand_as(pair), self._windows(end), pair], dim=1)
        grid = grid * allowed.unsqueeze(1).to(grid.dtype)
        refined = self.grid_mix(self.act(self.grid_norm(self.grid_conv(grid)))).squeeze(1)
        scores = grid.sum(dim=1) + refined + self.length_prior
        scores = scores.masked_fill(~allowed, float("-inf"))

        joint = torch.cat([no_answer.unsqueeze(-1), scores.flatten(1)], dim=-1).softmax(dim=-1)
        spans = joint[:, 1:].reshape(batch, length, self.max_span)
        margin = scores.flatten(1).amax(dim=-1) - no_answer

        start_probs = spans.sum(dim=-1)
        end_probs = torch.zeros(batch, length + self.max_span - 1, dtype=spans.dtype)
        for width in range(self.max_span):
            end_probs[:, width : width + length] += spans[:, :, width]
        return spans, start_probs, end_probs[:, :length], margin


class DocumentReformer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.embeddings = ReformerEmbeddings(cfg)
        self.encoder = ReformerEncoder(cfg)
        self.document_head = DocumentHead(cfg)
        self.span_head = SpanHead(cfg)

    def _pad_to_multiple(self, input_ids, attention_mask):
        """All chunks must be full, those of both kinds of attention."""
        multiple = math.lcm(self.cfg.lsh_chunk_length, self.cfg.local_chunk_length)
        missing = -input_ids.shape[1] % multiple
        input_ids = F.pad(input_ids, (0, missing), value=self.cfg.pad_token_id)
        return input_ids, F.pad(attention_mask, (0, missing), value=False)

    def forward(self, input_ids, attention_mask, question_length, max_answer):
        """A question (with the class token first) and a document: (batch, length), the mask true for tokens;
        the lengths of the questions and the greatest allowed lengths of the answers, (batch,)."""
        length = input_ids.shape[1]
        input_ids, attention_mask = self._pad_to_multiple(input_ids, attention_mask)
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        segment_ids = 1 + (places[None, :] >= question_length[:, None]).long()
        segment_ids = segment_ids * attention_mask.long()

        hidden = self.embeddings(input_ids, segment_ids)
        hidden = self.encoder(hidden, attention_mask)[:, :length]
        in_document = segment_ids[:, :length] == 2

        class_logits = self.document_head(hidden, in_document)
        spans, start_probs, end_probs, margin = self.span_head(hidden, in_document, max_answer)
        return class_logits, spans, start_probs, end_probs, margin


def trained_like(net):
    """Values as after training, not as after the initialisation."""
    for name, parameter in net.named_parameters():
        if "position_embeddings" in name:
            nn.init.normal_(parameter, std=0.5)
        elif "distance_bias" in name:
            nn.init.normal_(parameter, std=0.6)
    for name, module in net.named_modules():
        if isinstance(module, (nn.LayerNorm, nn.GroupNorm)):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.15)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.05)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=module.in_features**-0.5)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.1)
        elif isinstance(module, nn.Conv2d):
            nn.init.normal_(module.weight, std=module.weight[0].numel() ** -0.5)
            nn.init.normal_(module.bias, std=0.1)
    net.embeddings.word_embeddings.weight.data[net.cfg.pad_token_id] = 0.0
    net.span_head.qa_outputs.weight.data *= 1.5
    return net


def build():
    """The net with the same weights on every run, and three documents with their questions."""
    torch.manual_seed(2024)
    net = trained_like(DocumentReformer(ReformerConfig()))
    lengths = torch.tensor([65, 43, 58])
    question_length = torch.tensor([8, 11, 6])
    max_answer = torch.tensor([9, 7, 4])
    attention_mask = torch.arange(65)[None, :] < lengths[:, None]
    input_ids = torch.randint(3, 97, (3, 65))
    input_ids[:, 0] = 1
    input_ids = input_ids.masked_fill(~attention_mask, 0)
    return net.eval(), (input_ids, attention_mask, question_length, max_answer)
