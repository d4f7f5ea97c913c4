"""The summarizer in MindSpore: encoder, decoder with cache, copying with coverage, and a beam search."""

from __future__ import annotations

import math
from dataclasses import dataclass

import mindspore as ms
import numpy as np
from mindspore import nn, ops
from mindspore.common.initializer import Normal

PAD_ID, EOS_ID, UNK_ID, BOS_ID = 0, 1, 2, 3
MINUS_INF = -1e9


@dataclass
class SummarizerConfig:
    vocab: int = 61
    oov: int = 5
    hidden: int = 48
    head_dim: int = 10
    heads: int = 4
    ffn: int = 72
    copy_dim: int = 28
    gate_dim: int = 20
    enc_depth: int = 2
    dec_depth: int = 3
    buckets: int = 12
    max_distance: int = 20
    beams: int = 3
    steps: int = 11
    min_steps: int = 3
    alpha: float = 0.8
    ngram: int = 2
    coverage_weight: float = 1.0
    drop: float = 0.1
    max_positions: int = 64


def bucket_table(config, bidirectional):
    """The bucket of each offset (key minus query) from -max_positions to max_positions."""
    offset = np.arange(-config.max_positions, config.max_positions + 1)
    count = config.buckets
    first = np.zeros_like(offset)
    if bidirectional:
        count //= 2
        first = np.where(offset > 0, count, 0)
        distance = np.abs(offset)
    else:
        distance = np.maximum(-offset, 0)
    exact = count // 2
    log_ratio = np.log(np.maximum(distance, 1) / exact) / math.log(config.max_distance / exact)
    far = np.minimum(exact + (log_ratio * (count - exact)).astype(np.int64), count - 1)
    return ms.Tensor((first + np.where(distance < exact, distance, far)).astype(np.int32))


def shift_tokens_right(labels):
    start = ops.full((labels.shape[0], 1), BOS_ID, dtype=labels.dtype)
    return ops.cat([start, labels[:, :-1]], axis=1)


class RootMeanSquareNorm(nn.Cell):
    def __init__(self, size, epsilon=1e-6):
        super().__init__()
        self.gamma = ms.Parameter(ops.ones((size,)), name="gamma")
        self.epsilon = epsilon

    def construct(self, x):
        return x * ops.rsqrt(ops.mean(ops.square(x), -1, True) + self.epsilon) * self.gamma


class RelativeBias(nn.Cell):
    """The biases that all layers of a stack share."""

    def __init__(self, config, bidirectional):
        super().__init__()
        self.zero = config.max_positions
        self.table = bucket_table(config, bidirectional)
        self.embedding = nn.Embedding(config.buckets, config.heads)

    def construct(self, queries, keys):
        # the queries are the newest tokens
        rows = ops.arange(keys - queries, keys).expand_dims(1)
        columns = ops.arange(keys).expand_dims(0)
        buckets = ops.gather(self.table, columns - rows + self.zero, 0)
        return self.embedding(buckets).transpose(2, 0, 1).expand_dims(0)


class MultiHeadAttention(nn.Cell):
    def __init__(self, config):
        super().__init__()
        inner = config.heads * config.head_dim
        self.heads = config.heads
        self.head_dim = config.head_dim
        self.query = nn.Dense(config.hidden, inner)
        self.key = nn.Dense(config.hidden, inner, has_bias=False)
        self.value = nn.Dense(config.hidden, inner)
        self.output = nn.Dense(inner, config.hidden)
        self.drop = nn.Dropout(p=config.drop)

    def to_heads(self, x):
        return x.reshape(x.shape[0], x.shape[1], self.heads, self.head_dim).swapaxes(1, 2)

    def keys_values(self, x):
        return self.to_heads(self.key(x)), self.to_heads(self.value(x))

    def construct(self, x, key, value, blocked, bias=None):
        scores = ops.matmul(self.to_heads(self.query(x)), key.swapaxes(2, 3)) / math.sqrt(self.head_dim)
        if bias is not None:
            scores = scores + bias
        scores = ops.masked_fill(scores, blocked, MINUS_INF)
        weights = self.drop(ops.softmax(scores, axis=-1))
        context = ops.matmul(weights, value).swapaxes(1, 2)
        return self.output(context.reshape(x.shape[0], x.shape[1], self.heads * self.head_dim))


class GatedMLP(nn.Cell):
    def __init__(self, config):
        super().__init__()
        self.gate = nn.Dense(config.hidden, config.ffn)
        self.up = nn.Dense(config.hidden, config.ffn)
        self.down = nn.Dense(config.ffn, config.hidden)
        self.activation = nn.GELU(approximate=True)
        self.drop = nn.Dropout(p=config.drop)

    def construct(self, x):
        return self.down(self.drop(self.activation(self.gate(x)) * self.up(x)))


class EncoderLayer(nn.Cell):
    def __init__(self, config):
        super().__init__()
        self.norm1 = RootMeanSquareNorm(config.hidden)
        self.attention = MultiHeadAttention(config)
        self.norm2 = RootMeanSquareNorm(config.hidden)
        self.mlp = GatedMLP(config)

    def construct(self, x, blocked, bias):
        normed = self.norm1(x)
        key, value = self.attention.keys_values(normed)
        x = x + self.attention(normed, key, value, blocked, bias)
        return x + self.mlp(self.norm2(x))


class DecoderLayer(nn.Cell):
    def __init__(self, config):
        super().__init__()
        self.norm1 = RootMeanSquareNorm(config.hidden)
        self.attention = MultiHeadAttention(config)
        self.norm2 = RootMeanSquareNorm(config.hidden)
        self.cross_attention = MultiHeadAttention(config)
        self.norm3 = RootMeanSquareNorm(config.hidden)
        self.mlp = GatedMLP(config)

    def construct(self, x, past, memory_kv, future, bias, padding):
        normed = self.norm1(x)
        key, value = self.attention.keys_values(normed)
        if past is not None:
            key = ops.cat([past[0], key], axis=2)
            value = ops.cat([past[1], value], axis=2)
        x = x + self.attention(normed, key, value, future, bias)
        x = x + self.cross_attention(self.norm2(x), memory_kv[0], memory_kv[1], padding)
        x = x + self.mlp(self.norm3(x))
        return x, (key, value)


class TextEncoder(nn.Cell):
    def __init__(self, config):
        super().__init__()
        self.bias = RelativeBias(config, bidirectional=True)
        self.layers = nn.CellList([EncoderLayer(config) for _ in range(config.enc_depth)])
        self.norm = RootMeanSquareNorm(config.hidden)

    def construct(self, x, padding):
        bias = self.bias(x.shape[1], x.shape[1])
        for layer in self.layers:
            x = layer(x, padding, bias)
        return self.norm(x)


class SummaryDecoder(nn.Cell):
    def __init__(self, config):
        super().__init__()
        self.bias = RelativeBias(config, bidirectional=False)
        self.layers = nn.CellList([DecoderLayer(config) for _ in range(config.dec_depth)])
        self.norm = RootMeanSquareNorm(config.hidden)

    def read(self, memory):
        """Keys and values of the text, for each layer's cross-attention."""
        return [layer.cross_attention.keys_values(memory) for layer in self.layers]

    def construct(self, x, past, memory_kv, padding):
        queries = x.shape[1]
        keys = queries if past is None else queries + past[0][0].shape[2]
        bias = self.bias(queries, keys)
        future = ops.arange(keys).expand_dims(0) > ops.arange(keys - queries, keys).expand_dims(1)
        present = []
        for i, layer in enumerate(self.layers):
            x, key_value = layer(x, None if past is None else past[i], memory_kv[i], future, bias, padding)
            present.append(key_value)
        return self.norm(x), present


class CopyAttention(nn.Cell):
    """Additive attention over the source that knows what it has covered."""

    def __init__(self, config):
        super().__init__()
        self.from_memory = nn.Dense(config.hidden, config.copy_dim, has_bias=False)
        self.from_state = nn.Dense(config.hidden, config.copy_dim)
        self.from_coverage = nn.Dense(1, config.copy_dim, has_bias=False)
        self.score = nn.Dense(config.copy_dim, 1, has_bias=False)

    def construct(self, state, keys, keep, coverage):
        mixed = keys + self.from_state(state).expand_dims(1) + self.from_coverage(coverage.expand_dims(-1))
        energy = self.score(ops.tanh(mixed)).squeeze(-1)
        weights = ops.softmax(energy, axis=-1) * keep
        return weights / weights.sum(axis=-1, keepdims=True)


class WriteGate(nn.Cell):
    """The probability of writing a word rather than copying one."""

    def __init__(self, config):
        super().__init__()
        self.dense1 = nn.Dense(3 * config.hidden, config.gate_dim)
        self.activation = nn.LeakyReLU(alpha=0.01)
        self.dense2 = nn.Dense(config.gate_dim, 1)

    def construct(self, context, state, embedded):
        features = ops.cat([context, state, embedded], axis=-1)
        return ops.sigmoid(self.dense2(self.activation(self.dense1(features))))


class PointerSummarizer(nn.Cell):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.words = config.vocab + config.oov
        self.embedding = nn.Embedding(config.vocab, config.hidden, embedding_table=Normal(0.08))
        self.embedding_norm = nn.LayerNorm((config.hidden,), epsilon=1e-3)
        self.drop = nn.Dropout(p=config.drop)
        self.encoder = TextEncoder(config)
        self.decoder = SummaryDecoder(config)
        self.vocab_head = nn.Dense(config.hidden, config.vocab)
        self.copy_attention = CopyAttention(config)
        self.write_gate = WriteGate(config)

        penalty = ((5.0 + np.arange(config.steps + 2)) / 6.0) ** config.alpha
        self.penalty = ms.Tensor(penalty.astype(np.float32))
        never = np.zeros(self.words, dtype=bool)
        never[[PAD_ID, BOS_ID]] = True
        self.never = ms.Tensor(never)
        self.too_early = ms.Tensor(never | (np.arange(self.words) == EOS_ID))
        only_pad = np.full(self.words, MINUS_INF, dtype=np.float32)
        only_pad[PAD_ID] = 0.0
        self.only_pad = ms.Tensor(only_pad)

    def embed(self, ids):
        ids = ops.where(ids < self.config.vocab, ids, ops.full_like(ids, UNK_ID))
        return self.drop(self.embedding_norm(self.embedding(ids)))

    def copy_step(self, state, embedded, memory, keys, keep, coverage):
        """Attention and gate of one step, the coverage after it, and how much of it was covered before."""
        attention = self.copy_attention(state, keys, keep, coverage)
        context = ops.matmul(attention.expand_dims(1), memory).squeeze(1)
        gate = self.write_gate(context, state, embedded)
        overlap = ops.minimum(attention, coverage).sum(axis=-1)
        return attention, gate, coverage + attention, overlap

    def distribution(self, state, attention, gate, copy_ids):
        write = gate * ops.softmax(self.vocab_head(state), axis=-1)
        write = ops.pad(write, (0, self.config.oov))
        copied = (1.0 - gate) * attention
        return ops.tensor_scatter_elements(write, copy_ids, copied, axis=1, reduction="add")

    def teacher_forcing(self, memory, keep, padding, copy_ids, labels):
        embedded = self.embed(shift_tokens_right(labels))
        states, _ = self.decoder(embedded, None, self.decoder.read(memory), padding)
        keys = self.copy_attention.from_memory(memory)
        coverage = ops.zeros_like(keep)
        words, overlaps = [], []
        for t in range(labels.shape[1]):
            state = states[:, t]
            attention, gate, coverage, overlap = self.copy_step(
                state, embedded[:, t], memory, keys, keep, coverage
            )
            words.append(self.distribution(state, attention, gate, copy_ids))
            overlaps.append(overlap)
        log_probs = ops.log(ops.stack(words, axis=1) + 1e-9)
        nll = -ops.gather_elements(log_probs, 2, labels.expand_dims(-1)).squeeze(-1)
        penalised = nll + self.config.coverage_weight * ops.stack(overlaps, axis=1)
        real = (labels != PAD_ID).astype(ms.float32)
        return log_probs, (penalised * real).sum(axis=1) / real.sum(axis=1)

    def blocked_words(self, tokens):
        """Words that would complete an n-gram for the second time."""
        n, length = self.config.ngram, tokens.shape[1]
        seen = ops.zeros((tokens.shape[0], self.words), ms.float32)
        if length < n:
            return seen > 0
        count = length - n + 1
        same = ops.ones((tokens.shape[0], count), ms.bool_)
        for j in range(n - 1):
            newest = tokens[:, count + j].expand_dims(1)
            same = ops.logical_and(same, tokens[:, j:j + count] == newest)
        ends = tokens[:, n - 1:]
        seen = ops.tensor_scatter_elements(seen, ends, same.astype(ms.float32), axis=1, reduction="add")
        return seen > 0

    def search(self, memory, keep, copy_ids):
        config = self.config
        batch, beams = memory.shape[0], config.beams
        memory = ops.repeat_interleave(memory, beams, 0)
        keep = ops.repeat_interleave(keep, beams, 0)
        copy_ids = ops.repeat_interleave(copy_ids, beams, 0)
        padding = (keep == 0).expand_dims(1).expand_dims(1)
        memory_kv = self.decoder.read(memory)
        keys = self.copy_attention.from_memory(memory)

        tokens = ops.full((batch * beams, 1), BOS_ID, dtype=ms.int32)
        scores = ms.Tensor(np.tile([0.0] + [MINUS_INF] * (beams - 1), batch).astype(np.float32))
        done = ops.zeros((batch * beams,), ms.bool_)
        coverage = ops.zeros_like(keep)
        first_row = ms.Tensor(np.arange(batch)[:, None] * beams, ms.int32)
        past = None

        for step in range(config.steps):
            embedded = self.embed(tokens[:, -1:])
            states, past = self.decoder(embedded, past, memory_kv, padding)
            attention, gate, updated, _ = self.copy_step(
                states[:, -1], embedded[:, -1], memory, keys, keep, coverage
            )
            coverage = ops.where(done.expand_dims(1), coverage, updated)
            log_probs = ops.log(self.distribution(states[:, -1], attention, gate, copy_ids) + 1e-9)
            forbidden = self.too_early if step < config.min_steps else self.never
            forbidden = ops.logical_or(self.blocked_words(tokens), forbidden)
            log_probs = ops.masked_fill(log_probs, forbidden, MINUS_INF)
            log_probs = ops.where(done.expand_dims(1), self.only_pad, log_probs)

            candidates = (scores.expand_dims(1) + log_probs).reshape(batch, beams * self.words)
            best, index = ops.topk(candidates, beams, dim=-1)
            rows = (first_row + index // self.words).reshape(-1)
            chosen = (index % self.words).reshape(-1)

            scores = best.reshape(-1)
            tokens = ops.cat([tokens[rows], chosen.expand_dims(1)], axis=1)
            done = ops.logical_or(done[rows], chosen == EOS_ID)
            coverage = coverage[rows]
            past = [(key[rows], value[rows]) for key, value in past]

        lengths = (tokens[:, 1:] != PAD_ID).astype(ms.int32).sum(axis=1)
        scores = (scores / self.penalty[lengths]).reshape(batch, beams)
        scores, order = ops.topk(scores, beams, dim=-1)
        winner = (first_row + order[:, :1]).reshape(-1)
        return tokens[winner][:, 1:], scores, coverage[winner]

    def construct(self, source, source_extended, target):
        keep = (source != PAD_ID).astype(ms.float32)
        padding = (source == PAD_ID).expand_dims(1).expand_dims(1)
        memory = self.encoder(self.embed(source), padding)
        log_probs, loss = self.teacher_forcing(memory, keep, padding, source_extended, target)
        summary, scores, coverage = self.search(memory, keep, source_extended)
        return log_probs, loss, summary, scores, coverage


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    net = PointerSummarizer(SummarizerConfig())
    net.set_train(False)
    return net
