"""Long documents with sliding windows and global tokens, an answer span and a document class, in PyTorch: the reference."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import List, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

MASK_VALUE = -10000.0


@dataclass
class LongformerConfig:
    vocab_size: int = 120
    hidden_size: int = 40
    num_attention_heads: int = 4
    intermediate_size: int = 72
    attention_window: List[int] = field(default_factory=lambda: [8, 16, 8])
    max_position_embeddings: int = 82
    type_vocab_size: int = 2
    relative_buckets: int = 12
    relative_max_distance: int = 12
    num_labels: int = 5
    pad_token_id: int = 1
    sep_token_id: int = 2
    layer_norm_eps: float = 1e-5
    dropout: float = 0.1


class AttentionState(NamedTuple):
    """What every layer has to know about the tokens."""

    code: torch.Tensor  # (batch, seq): negative for padding, 0 for local, positive for global tokens
    is_masked: torch.Tensor
    max_num_global: int
    global_nonzero: tuple  # where the global tokens stand
    slot_nonzero: tuple  # where they stand among the slots for global tokens
    no_slot_nonzero: tuple  # slots that are padding


def create_position_ids(input_ids, padding_idx):
    """Padding keeps padding_idx, the others count from padding_idx + 1, as in fairseq."""
    mask = input_ids.ne(padding_idx).int()
    return (torch.cumsum(mask, dim=1).type_as(mask) * mask).long() + padding_idx


def question_masks(input_ids, sep_token_id):
    """Tokens in front of the first separator are global; tokens after it belong to the document."""
    is_sep = (input_ids == sep_token_id).long()
    seen = is_sep.cumsum(dim=-1)
    in_question = seen == 0
    token_type_ids = ((seen - is_sep) > 0).long()
    return in_question, token_type_ids


def relative_buckets(relative_position, num_buckets, max_distance):
    """T5's buckets, in both directions: near places exactly, far ones in steps of the logarithm."""
    num_buckets //= 2
    bucket = (relative_position > 0).long() * num_buckets
    distance = relative_position.abs()
    max_exact = num_buckets // 2
    large = max_exact + (
        torch.log(distance.float().clamp(min=1) / max_exact) / math.log(max_distance / max_exact) * (num_buckets - max_exact)
    ).long()
    large = torch.minimum(large, torch.full_like(large, num_buckets - 1))
    return bucket + torch.where(distance < max_exact, distance, large)


class LongformerEmbeddings(nn.Module):
    def __init__(self, config: LongformerConfig):
        super().__init__()
        self.padding_idx = config.pad_token_id
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size, config.pad_token_id)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, input_ids, token_type_ids):
        position_ids = create_position_ids(input_ids, self.padding_idx)
        embeddings = self.word_embeddings(input_ids) + self.position_embeddings(position_ids)
        embeddings = embeddings + self.token_type_embeddings(token_type_ids)
        return self.dropout(self.LayerNorm(embeddings))


class BandBias(nn.Module):
    """A learned score for each head and relative place within the widest window, shared by all layers."""

    def __init__(self, config: LongformerConfig):
        super().__init__()
        self.reach = max(config.attention_window) // 2
        self.bias = nn.Embedding(config.relative_buckets, config.num_attention_heads)
        offsets = torch.arange(-self.reach, self.reach + 1)
        buckets = relative_buckets(offsets, config.relative_buckets, config.relative_max_distance)
        self.register_buffer("buckets", buckets, persistent=False)

    def forward(self, windows):
        table = self.bias(self.buckets).transpose(0, 1)  # (heads, 2 * reach + 1)
        return [table[:, self.reach - window // 2 : self.reach + window // 2 + 1] for window in windows]


class LongformerSelfAttention(nn.Module):
    """Attention within a window, done in overlapping chunks, and to and from global tokens."""

    def __init__(self, config: LongformerConfig, layer_id: int):
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.head_dim = config.hidden_size // config.num_attention_heads
        self.embed_dim = config.hidden_size

        self.query = nn.Linear(config.hidden_size, self.embed_dim)
        self.key = nn.Linear(config.hidden_size, self.embed_dim)
        self.value = nn.Linear(config.hidden_size, self.embed_dim)
        self.query_global = nn.Linear(config.hidden_size, self.embed_dim)
        self.key_global = nn.Linear(config.hidden_size, self.embed_dim)
        self.value_global = nn.Linear(config.hidden_size, self.embed_dim)

        attention_window = config.attention_window[layer_id]
        self.one_sided_attn_window_size = w = attention_window // 2
        beginning = torch.ones(w, w + 1).tril().flip(dims=[0])
        self.register_buffer("beginning_mask", beginning.bool(), persistent=False)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, hidden_states, state: AttentionState, band_bias):
        w = self.one_sided_attn_window_size
        hidden_states = hidden_states.transpose(0, 1)
        seq_len, batch_size, embed_dim = hidden_states.size()

        split = (seq_len, batch_size, self.num_heads, self.head_dim)
        query = (self.query(hidden_states) / math.sqrt(self.head_dim)).view(split).transpose(0, 1)
        key = self.key(hidden_states).view(split).transpose(0, 1)
        value = self.value(hidden_states).view(split).transpose(0, 1)

        attn_scores = self._sliding_chunks_query_key_matmul(query, key, w)

        # padding and global tokens are no keys of the window
        remove = (state.code != 0)[:, :, None, None]
        float_mask = remove.type_as(query).masked_fill(remove, MASK_VALUE)
        diagonal_mask = self._sliding_chunks_query_key_matmul(torch.ones_like(float_mask), float_mask, w)
        attn_scores = attn_scores + diagonal_mask + band_bias[None, None]

        # the global keys come first: (batch, seq, heads, max_num_global + 2 * w + 1)
        global_key_scores = self._global_key_scores(query, key, state)
        attn_scores = torch.cat((global_key_scores, attn_scores), dim=-1)

        attn_probs = F.softmax(attn_scores, dim=-1, dtype=torch.float32)
        attn_probs = torch.masked_fill(attn_probs, state.is_masked[:, :, None, None], 0.0).type_as(attn_scores)
        attn_probs = self.dropout(attn_probs)

        attn_output = self._attn_output_with_global_keys(value, attn_probs, state)
        attn_output = attn_output.transpose(0, 1).reshape(seq_len, batch_size, embed_dim).contiguous()

        # global tokens attend to everything; what the window gave them is overwritten
        global_output = self._global_attn_output(hidden_states, state)
        nonzero_global = global_output[state.slot_nonzero[0], :, state.slot_nonzero[1]]
        attn_output[state.global_nonzero[::-1]] = nonzero_global.reshape(len(state.slot_nonzero[0]), -1)

        return attn_output.transpose(0, 1)

    @staticmethod
    def _pad_and_transpose_last_two_dims(x, padding):
        """Pads the rows and reads them with a longer stride afterwards."""
        x = F.pad(x, padding)
        return x.view(*x.size()[:-2], x.size(-1), x.size(-2))

    @staticmethod
    def _pad_and_diagonalize(x):
        """Shifts every row by one step more than the row before."""
        total, num_chunks, window_overlap, width = x.size()
        x = F.pad(x, (0, window_overlap + 1))
        x = x.view(total, num_chunks, -1)
        x = x[:, :, :-window_overlap]
        x = x.view(total, num_chunks, window_overlap, window_overlap + width)
        return x[:, :, :, :-1]

    @staticmethod
    def _chunk(x, window_overlap):
        """Overlapping chunks: their size is 2w, their stride is w."""
        x = x.reshape(x.size(0), x.size(1) // (window_overlap * 2), window_overlap * 2, x.size(2))
        chunk_size = list(x.size())
        chunk_size[1] = chunk_size[1] * 2 - 1
        chunk_stride = list(x.stride())
        chunk_stride[1] = chunk_stride[1] // 2
        return x.as_strided(size=chunk_size, stride=chunk_stride)

    def _mask_invalid_locations(self, scores):
        """Places in front of the first token and behind the last one."""
        w = self.one_sided_attn_window_size
        beginning_mask = self.beginning_mask[None, :, None, :]
        ending_mask = beginning_mask.flip(dims=(1, 3))
        beginning = scores[:, :w, :, : w + 1]
        scores[:, :w, :, : w + 1] = beginning.masked_fill(beginning_mask.expand(beginning.size()), -float("inf"))
        ending = scores[:, -w:, :, -(w + 1) :]
        scores[:, -w:, :, -(w + 1) :] = ending.masked_fill(ending_mask.expand(ending.size()), -float("inf"))

    def _sliding_chunks_query_key_matmul(self, query, key, w):
        batch_size, seq_len, num_heads, head_dim = query.size()
        chunks_count = seq_len // w - 1

        query = query.transpose(1, 2).reshape(batch_size * num_heads, seq_len, head_dim)
        key = key.transpose(1, 2).reshape(batch_size * num_heads, seq_len, head_dim)
        # (batch * heads, chunks, 2w, 2w), then the diagonals as columns: (batch * heads, chunks, 2w, 2w + 1)
        chunk_scores = torch.einsum("bcxd,bcyd->bcxy", self._chunk(query, w), self._chunk(key, w))
        diagonal_chunks = self._pad_and_transpose_last_two_dims(chunk_scores, padding=(0, 0, 0, 1))

        scores = diagonal_chunks.new_zeros(batch_size * num_heads, chunks_count + 1, w, w * 2 + 1)
        # the upper triangle: w previous tokens come from the chunk before
        scores[:, :-1, :, w:] = diagonal_chunks[:, :, :w, : w + 1]
        scores[:, -1, :, w:] = diagonal_chunks[:, -1, w:, : w + 1]
        scores[:, 1:, :, :w] = diagonal_chunks[:, :, -(w + 1) : -1, w + 1 :]
        scores[:, 0, 1:w, 1:w] = diagonal_chunks[:, 0, : w - 1, 1 - w :]

        scores = scores.view(batch_size, num_heads, seq_len, 2 * w + 1).transpose(2, 1)
        self._mask_invalid_locations(scores)
        return scores

    def _sliding_chunks_matmul_attn_probs_value(self, attn_probs, value, w):
        batch_size, seq_len, num_heads, head_dim = value.size()
        chunks_count = seq_len // w - 1

        chunked_probs = attn_probs.transpose(1, 2).reshape(batch_size * num_heads, seq_len // w, w, 2 * w + 1)
        value = value.transpose(1, 2).reshape(batch_size * num_heads, seq_len, head_dim)
        padded_value = F.pad(value, (0, 0, w, w), value=-1)

        # chunks of 3w tokens with a stride of w
        chunk_size = (batch_size * num_heads, chunks_count + 1, 3 * w, head_dim)
        stride = padded_value.stride()
        chunked_value = padded_value.as_strided(size=chunk_size, stride=(stride[0], w * stride[1], stride[1], stride[2]))

        chunked_probs = self._pad_and_diagonalize(chunked_probs)
        context = torch.einsum("bcwd,bcdh->bcwh", chunked_probs, chunked_value)
        return context.view(batch_size, num_heads, seq_len, head_dim).transpose(1, 2)

    def _global_key_scores(self, query, key, state):
        batch_size = key.shape[0]
        key_only_global = key.new_zeros(batch_size, state.max_num_global, self.num_heads, self.head_dim)
        key_only_global[state.slot_nonzero] = key[state.global_nonzero]
        scores = torch.einsum("blhd,bshd->blhs", query, key_only_global)
        scores = scores.transpose(1, 3)
        scores[state.no_slot_nonzero[0], state.no_slot_nonzero[1], :, :] = MASK_VALUE
        return scores.transpose(1, 3)

    def _attn_output_with_global_keys(self, value, attn_probs, state):
        num_global = state.max_num_global
        probs_only_global = attn_probs.narrow(-1, 0, num_global)
        value_only_global = value.new_zeros(value.shape[0], num_global, self.num_heads, self.head_dim)
        value_only_global[state.slot_nonzero] = value[state.global_nonzero]
        from_global = torch.matmul(probs_only_global.transpose(1, 2), value_only_global.transpose(1, 2)).transpose(1, 2)
        probs_window = attn_probs.narrow(-1, num_global, attn_probs.size(-1) - num_global).contiguous()
        w = self.one_sided_attn_window_size
        return from_global + self._sliding_chunks_matmul_attn_probs_value(probs_window, value, w)

    def _global_attn_output(self, hidden_states, state):
        seq_len, batch_size = hidden_states.shape[:2]
        num_global = state.max_num_global
        global_hidden = hidden_states.new_zeros(num_global, batch_size, self.embed_dim)
        global_hidden[state.slot_nonzero[::-1]] = hidden_states[state.global_nonzero[::-1]]

        query = self.query_global(global_hidden) / math.sqrt(self.head_dim)
        key = self.key_global(hidden_states)
        value = self.value_global(hidden_states)

        query = query.view(num_global, batch_size * self.num_heads, self.head_dim).transpose(0, 1)
        key = key.view(seq_len, batch_size * self.num_heads, self.head_dim).transpose(0, 1)
        value = value.view(seq_len, batch_size * self.num_heads, self.head_dim).transpose(0, 1)

        scores = torch.bmm(query, key.transpose(1, 2)).view(batch_size, self.num_heads, num_global, seq_len)
        scores = scores.masked_fill(state.is_masked[:, None, None, :], MASK_VALUE)
        probs = self.dropout(F.softmax(scores, dim=-1, dtype=torch.float32))
        output = torch.bmm(probs.view(batch_size * self.num_heads, num_global, seq_len), value)
        return output.view(batch_size, self.num_heads, num_global, self.head_dim)


class LongformerAttention(nn.Module):
    def __init__(self, config: LongformerConfig, layer_id: int):
        super().__init__()
        self.self_attn = LongformerSelfAttention(config, layer_id)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, hidden_states, state, band_bias):
        attn_output = self.self_attn(hidden_states, state, band_bias)
        return self.LayerNorm(self.dropout(self.dense(attn_output)) + hidden_states)


class LongformerLayer(nn.Module):
    def __init__(self, config: LongformerConfig, layer_id: int):
        super().__init__()
        self.attention = LongformerAttention(config, layer_id)
        self.intermediate = nn.Linear(config.hidden_size, config.intermediate_size)
        self.output = nn.Linear(config.intermediate_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, hidden_states, state, band_bias):
        attention_output = self.attention(hidden_states, state, band_bias)
        ff = self.output(F.gelu(self.intermediate(attention_output)))
        return self.LayerNorm(self.dropout(ff) + attention_output)


class LongformerEncoder(nn.Module):
    def __init__(self, config: LongformerConfig):
        super().__init__()
        self.windows = list(config.attention_window)
        self.band_bias = BandBias(config)
        self.layer = nn.ModuleList([LongformerLayer(config, i) for i in range(len(self.windows))])

    @staticmethod
    def _state(code):
        is_masked = code < 0
        is_global = code > 0
        num_global = is_global.long().sum(dim=1)
        max_num_global = int(num_global.max())
        in_slot = torch.arange(max_num_global, device=code.device) < num_global.unsqueeze(dim=-1)
        return AttentionState(
            code=code,
            is_masked=is_masked,
            max_num_global=max_num_global,
            global_nonzero=is_global.nonzero(as_tuple=True),
            slot_nonzero=in_slot.nonzero(as_tuple=True),
            no_slot_nonzero=(in_slot == 0).nonzero(as_tuple=True),
        )

    def forward(self, hidden_states, code):
        state = self._state(code)
        for layer, band_bias in zip(self.layer, self.band_bias(self.windows)):
            hidden_states = layer(hidden_states, state, band_bias)
        return hidden_states


class LongformerModel(nn.Module):
    def __init__(self, config: LongformerConfig):
        super().__init__()
        self.config = config
        self.embeddings = LongformerEmbeddings(config)
        self.encoder = LongformerEncoder(config)

    def _pad_to_window_size(self, input_ids, attention_mask, global_mask, token_type_ids):
        window = max(self.config.attention_window)
        padding_len = (window - input_ids.shape[1] % window) % window
        if padding_len > 0:
            input_ids = F.pad(input_ids, (0, padding_len), value=self.config.pad_token_id)
            attention_mask, global_mask, token_type_ids = (
                F.pad(mask, (0, padding_len), value=0) for mask in (attention_mask, global_mask, token_type_ids)
            )
        return padding_len, input_ids, attention_mask, global_mask, token_type_ids

    def forward(self, input_ids, attention_mask, global_mask, token_type_ids):
        padding_len, input_ids, attention_mask, global_mask, token_type_ids = self._pad_to_window_size(
            input_ids, attention_mask, global_mask, token_type_ids
        )
        # 0 is padding, 1 local and 2 global; then -1, 0 and 1
        merged = attention_mask * (global_mask + 1)
        hidden_states = self.embeddings(input_ids, token_type_ids)
        hidden_states = self.encoder(hidden_states, merged - 1)
        if padding_len > 0:
            hidden_states = hidden_states[:, :-padding_len]
        return hidden_states


class SpanHead(nn.Module):
    """Scores for the first token of the answer, and for the last one, given where the first may be."""

    def __init__(self, config: LongformerConfig):
        super().__init__()
        hidden = config.hidden_size
        self.conv = nn.Conv1d(hidden, hidden, 3, padding=2, dilation=2)
        self.act = nn.LeakyReLU()
        self.start = nn.Linear(hidden, 1)
        self.end_dense = nn.Linear(2 * hidden, hidden)
        self.end_norm = nn.LayerNorm(hidden, eps=config.layer_norm_eps)
        self.end = nn.Linear(hidden, 1)

    def forward(self, hidden_states, attention_mask, answer_mask):
        hidden_states = hidden_states * attention_mask.unsqueeze(-1).type_as(hidden_states)
        features = hidden_states + self.act(self.conv(hidden_states.transpose(1, 2))).transpose(1, 2)
        start_logits = self.start(features).squeeze(-1)
        weights = start_logits.masked_fill(~answer_mask, MASK_VALUE).softmax(dim=-1)
        start_state = torch.einsum("bs,bsh->bh", weights, features)
        start_state = start_state.unsqueeze(1).expand(-1, features.size(1), -1)
        end_states = torch.tanh(self.end_dense(torch.cat([features, start_state], dim=-1)))
        end_logits = self.end(self.end_norm(end_states)).squeeze(-1)
        return start_logits, end_logits


class ClassificationHead(nn.Module):
    def __init__(self, config: LongformerConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(config.dropout)
        self.out_proj = nn.Linear(config.hidden_size, config.num_labels)

    def forward(self, hidden_states):
        x = self.dropout(hidden_states[:, 0])  # <s>, which is global
        x = self.dropout(torch.tanh(self.dense(x)))
        return self.out_proj(x)


class LongformerForDocuments(nn.Module):
    """Question and document in, the answer's span and the document's class out."""

    def __init__(self, config: LongformerConfig):
        super().__init__()
        self.config = config
        self.longformer = LongformerModel(config)
        self.span = SpanHead(config)
        self.classifier = ClassificationHead(config)

    def forward(self, input_ids, attention_mask):
        in_question, token_type_ids = question_masks(input_ids, self.config.sep_token_id)
        hidden_states = self.longformer(input_ids, attention_mask, in_question.long(), token_type_ids)
        answer_mask = (token_type_ids == 1) & attention_mask.bool()
        start_logits, end_logits = self.span(hidden_states, attention_mask, answer_mask)
        return start_logits, end_logits, self.classifier(hidden_states)


def build():
    """The net with the same weights on every run, and three documents of 57, 43 and 34 tokens with their questions."""
    torch.manual_seed(4096)
    config = LongformerConfig()
    net = LongformerForDocuments(config)
    for name, module in net.named_modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.15)
        elif isinstance(module, (nn.Linear, nn.Conv1d)):
            fan_in = module.weight[0].numel()
            sharp = 1.6 if name.rsplit(".", 1)[-1].split("_")[0] in ("query", "key") else 1.0
            nn.init.normal_(module.weight, std=sharp * fan_in**-0.5)
            nn.init.normal_(module.bias, std=0.2)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.6)
            if module.padding_idx is not None:
                with torch.no_grad():
                    module.weight[module.padding_idx].zero_()

    seq_len, pad, sep = 57, config.pad_token_id, config.sep_token_id
    input_ids = torch.full((3, seq_len), pad, dtype=torch.long)
    for row, (question, total) in enumerate(((6, 57), (9, 43), (4, 34))):
        tokens = torch.randint(3, config.vocab_size, (total,))
        tokens[0] = 0
        tokens[question] = tokens[question + 1] = tokens[total - 1] = sep
        input_ids[row, :total] = tokens
    attention_mask = (input_ids != pad).long()
    return net.eval(), (input_ids, attention_mask)
