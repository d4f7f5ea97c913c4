"""A small chat model in MindSpore: reads the turns so far, picks a word, and reads that as well."""
import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

VOCAB_SIZE = 90
MAX_SLOTS = 28
PAD_ID = 0
ASSISTANT_ROLE = 2
THETA = 2000.0
TRAINED_LENGTH = 48
LOW_FACTOR, HIGH_FACTOR = 1.0, 4.0
SCALE_FACTOR = 8.0
QUERY_PRE_SCALAR = 20.0
SCORE_CAP = 4.0
FINAL_CAP = 6.0
SLIDING_WINDOW = 5
RESIDUAL_SCALE = 0.8
REPETITION = 1.25
TEMPERATURE = 0.7
TOP_P = 0.8


# ---------------------------------------------------------------- helpers


def dense(d_in, d_out, has_bias=False):
    return nn.Dense(d_in, d_out, has_bias=has_bias)


def capped(x, cap):
    return ops.tanh(x / cap) * cap


def inverse_frequencies(dim):
    """Those that did not turn once in training are slowed down, the fast ones are left as they are."""
    inv = THETA ** (-np.arange(0, dim, 2, dtype=np.float32) / dim)
    turns = TRAINED_LENGTH * inv / (2 * np.pi)
    smooth = np.clip((turns - LOW_FACTOR) / (HIGH_FACTOR - LOW_FACTOR), 0, 1)
    return inv * (smooth + (1 - smooth) / SCALE_FACTOR)


def rotary_tables(positions, dim):
    """Cosines and sines (b, t, 1, dim / 2) of the places."""
    inv = Tensor(inverse_frequencies(dim), ms.float32)
    angle = positions.astype(ms.float32)[:, :, None, None] * inv
    return ops.cos(angle), ops.sin(angle)


def apply_rotary(x, tables):
    """x: (b, t, heads, d); the first channels are turned, as many as the tables have, the rest is kept."""
    cos, sin = tables
    half = cos.shape[-1]
    lo = x[..., :half]
    hi = x[..., half:2 * half]
    turned = ops.concat((lo * cos - hi * sin, lo * sin + hi * cos), axis=-1)
    return ops.concat((turned, x[..., 2 * half:]), axis=-1)


def write_slots(memory, new, slots):
    """memory (b, heads, slots, d) with the rows of new (b, heads, t, d) at the slots (b, t)."""
    hot = (slots.expand_dims(1) == ops.arange(memory.shape[2])[None, :, None]).astype(memory.dtype)
    free = 1.0 - hot.sum(-1, keepdims=True)
    return memory * free.expand_dims(1) + ops.matmul(hot.expand_dims(1), new)


def pick_row(x, index):
    """The row of (b, t, c) that each sample asks for."""
    index = index.reshape(-1, 1, 1).broadcast_to((x.shape[0], 1, x.shape[2]))
    return ops.gather_elements(x, 1, index).squeeze(1)


class RootNorm(nn.Cell):
    def __init__(self, width, epsilon=1e-5):
        super().__init__()
        self.scale = Parameter(ops.zeros((width,), ms.float32))
        self.epsilon = epsilon

    def construct(self, x):
        power = ops.mean(ops.square(x), -1, keep_dims=True)
        return x / ops.sqrt(power + self.epsilon) * (1.0 + self.scale)


# ---------------------------------------------------------------- layers


class GroupedAttention(nn.Cell):
    """Heads of queries share heads of keys; with a window, only what is near is seen, and the first word."""

    def __init__(self, width, heads, shared, dim, window=None):
        super().__init__()
        self.heads = heads
        self.shared = shared
        self.dim = dim
        self.window = window
        self.wq = dense(width, heads * dim, has_bias=True)
        self.wk = dense(width, shared * dim, has_bias=True)
        self.wv = dense(width, shared * dim)
        self.wo = dense(heads * dim, width)
        self.query_norm = RootNorm(dim)
        self.key_norm = RootNorm(dim)

    def visible(self, positions):
        """(b, 1, 1, t, slots): True where a query may look."""
        slots = ops.arange(MAX_SLOTS)
        distance = positions.expand_dims(-1) - slots
        seen = distance >= 0
        if self.window is not None:
            near = ops.logical_or(distance < self.window, slots == 0)
            seen = ops.logical_and(seen, near)
        return seen[:, None, None]

    def construct(self, x, positions, past):
        b, t, _ = x.shape
        tables = rotary_tables(positions, self.dim // 3 * 2)
        query = self.query_norm(self.wq(x).reshape(b, t, self.heads, self.dim))
        key = self.key_norm(self.wk(x).reshape(b, t, self.shared, self.dim))
        value = self.wv(x).reshape(b, t, self.shared, self.dim)
        query = apply_rotary(query, tables)
        key = apply_rotary(key, tables)
        keys = write_slots(past[0], key.swapaxes(1, 2), positions)
        values = write_slots(past[1], value.swapaxes(1, 2), positions)
        # queries in groups: (b, shared, group, t, dim)
        query = query.reshape(b, t, self.shared, -1, self.dim).transpose(0, 2, 3, 1, 4)
        score = ops.matmul(query, keys.expand_dims(2).swapaxes(-1, -2)) / math.sqrt(QUERY_PRE_SCALAR)
        score = capped(score, SCORE_CAP)
        score = ops.masked_fill(score, ops.logical_not(self.visible(positions)), float("-inf"))
        prob = ops.softmax(score, axis=-1)
        out = ops.matmul(prob, values.expand_dims(2))
        out = out.transpose(0, 3, 1, 2, 4).reshape(b, t, self.heads * self.dim)
        return self.wo(out), (keys, values)


class FeedForward(nn.Cell):
    def __init__(self, width, hidden):
        super().__init__()
        self.hidden = hidden
        self.w13 = dense(width, 2 * hidden)
        self.w2 = dense(hidden, width)

    def construct(self, x):
        both = self.w13(x)
        gate, up = ops.split(both, self.hidden, axis=-1)
        return self.w2(ops.silu(gate) * up)


class DecoderLayer(nn.Cell):
    """Norms before and behind each branch."""

    def __init__(self, width, heads, shared, dim, hidden, window=None):
        super().__init__()
        self.attention_norm = RootNorm(width)
        self.attention = GroupedAttention(width, heads, shared, dim, window)
        self.post_attention_norm = RootNorm(width)
        self.ffn_norm = RootNorm(width)
        self.feed_forward = FeedForward(width, hidden)
        self.post_ffn_norm = RootNorm(width)

    def construct(self, x, positions, past):
        mixed, past = self.attention(self.attention_norm(x), positions, past)
        x = x + RESIDUAL_SCALE * self.post_attention_norm(mixed)
        thought = self.feed_forward(self.ffn_norm(x))
        x = x + RESIDUAL_SCALE * self.post_ffn_norm(thought)
        return x, past


# ---------------------------------------------------------------- sampling


def discourage(logits, ids, present):
    """Words that were said already lose, whatever their sign; padding is never picked."""
    words = ops.arange(VOCAB_SIZE)
    said = ops.logical_and(ids.expand_dims(-1) == words, present.expand_dims(-1))
    said = ops.any(said, 1)
    lowered = ops.select(logits > 0, logits / REPETITION, logits * REPETITION)
    logits = ops.select(said, lowered, logits)
    return ops.masked_fill(logits, words == PAD_ID, float("-inf"))


def top_p(logits):
    """Probabilities of the fewest words that have TOP_P together."""
    probs = ops.softmax(logits / TEMPERATURE, axis=-1)
    ranked, order = ops.sort(probs, axis=-1, descending=True)
    mass_before = ops.cumsum(ranked, -1) - ranked
    kept = ranked * (mass_before < TOP_P).astype(ms.float32)
    rank = ops.argsort(order, axis=-1)
    kept = ops.gather_elements(kept, 1, rank)
    return kept / kept.sum(-1, keepdims=True)


# ---------------------------------------------------------------- the model


class Chat(nn.Cell):
    def __init__(self, width=48, depth=3, heads=6, shared=2, dim=12, hidden=80):
        super().__init__()
        self.width = width
        self.memory_shape = (shared, MAX_SLOTS, dim)
        self.tok_embeddings = nn.Embedding(VOCAB_SIZE, width)
        self.role_embeddings = nn.Embedding(3, width)
        self.layers = nn.CellList([
            DecoderLayer(width, heads, shared, dim, hidden, window=SLIDING_WINDOW if i % 2 == 0 else None)
            for i in range(depth)
        ])
        self.final_norm = RootNorm(width)
        self.reward = nn.SequentialCell(
            nn.LayerNorm((width,), epsilon=1e-5),
            dense(width, 2 * width, has_bias=True),
            nn.GELU(approximate=False),
            dense(2 * width, 2, has_bias=True),
        )

    def decode(self, tokens, roles, positions, memory):
        x = self.tok_embeddings(tokens) * self.width ** 0.5
        x = x + self.role_embeddings(roles)
        updated = []
        for layer, past in zip(self.layers, memory):
            x, past = layer(x, positions, past)
            updated.append(past)
        x = self.final_norm(x)
        logits = ops.matmul(x, self.tok_embeddings.embedding_table.T)
        return x, capped(logits, FINAL_CAP), updated

    def prompt_loss(self, logits, ids, roles, present):
        """How surprising the prompt was: each word, but the first, by those before it."""
        logp = ops.log_softmax(logits[:, :-1], axis=-1)
        picked = ops.gather_elements(logp, 2, ids[:, 1:, None]).squeeze(-1)
        counted = ops.logical_and(present[:, 1:], roles[:, 1:] != ASSISTANT_ROLE).astype(ms.float32)
        return -(picked * counted).sum(1) / ops.clamp(counted.sum(1), min=1.0)

    def construct(self, ids, roles, lengths):
        b, t = ids.shape
        empty = ops.zeros((b,) + self.memory_shape, ms.float32)
        memory = [(empty, empty) for _ in range(len(self.layers))]
        positions = ops.arange(t).expand_dims(0).broadcast_to((b, t))
        states, logits, memory = self.decode(ids, roles, positions, memory)
        present = positions < lengths.expand_dims(1)
        surprise = self.prompt_loss(logits, ids, roles, present)

        weight = present.astype(ms.float32).expand_dims(-1)
        average = (states * weight).sum(1) / lengths.expand_dims(1)
        final = pick_row(states, lengths - 1)
        reward = self.reward((average + final) * 0.5)

        first = pick_row(logits, lengths - 1)
        probs = top_p(discourage(first, ids, present))
        token = ops.argmax(probs, dim=-1).expand_dims(1)
        entropy = -(probs * ops.log(probs + 1e-6)).sum(-1)

        speaker = ops.full_like(token, ASSISTANT_ROLE)
        _, second, _ = self.decode(token, speaker, lengths.expand_dims(1), memory)
        return first, probs, second.squeeze(1), surprise, entropy, reward


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return Chat()
