"""The retention language model in MindSpore: the correct port, with the perceptron inside the block and tables in the net."""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import mint, nn, ops

VOCAB = 61
WIDTH = 48
VALUE_WIDTH = 80
HEADS = 4
FFN_WIDTH = 104
DEPTH = 3
MAX_POSITIONS = 40
EPS = 1e-5
PAD = 0


def rotary_tables(head_dim, positions, base=1000.0, gamma=0.4, scale_base=24.0):
    """sin, cos and xPos scale for each position, the values of a pair side by side."""
    half = head_dim // 2
    frequency = 1.0 / (base ** np.linspace(0, 1, half))
    place = np.arange(positions, dtype=np.float64)
    angle = np.repeat(place[:, None] * frequency[None, :], 2, axis=1)
    ratio = (np.arange(0, head_dim, 2) + gamma * head_dim) / ((1 + gamma) * head_dim)
    zeta = np.repeat(ratio[None, :] ** (place[:, None] / scale_base), 2, axis=1)
    return tuple(ms.Tensor(table, ms.float32) for table in (np.sin(angle), np.cos(angle), zeta))


def decay_rates(heads, start=2.0, span=3.0):
    """What is left of a head's memory after one token."""
    return ms.Tensor(1 - 2.0 ** (-start - span * np.arange(heads) / heads), ms.float32)


def rotate_pairs(x):
    even, odd = x[..., 0::2], x[..., 1::2]
    return ops.stack((-odd, even), axis=-1).reshape(x.shape)


def rotate(x, sin, cos):
    return x * cos + rotate_pairs(x) * sin


class RMSNorm(nn.Cell):
    """Root mean square norm."""

    def __init__(self, dim, eps=EPS):
        super().__init__()
        self.eps = eps
        self.weight = ms.Parameter(ops.ones(dim), name="weight")

    def construct(self, x):
        variance = ops.square(x).mean(axis=-1, keep_dims=True)
        return x * ops.rsqrt(variance + self.eps) * self.weight


class Retention(nn.Cell):
    """Multi-scale retention: without a state over the whole prompt, with a state for one token."""

    def __init__(self, width, value_width, heads):
        super().__init__()
        self.heads = heads
        self.width = width
        self.value_width = value_width
        self.head_dim = value_width // heads
        self.scaling = (width // heads) ** -0.5
        self.q_proj = nn.Dense(width, width)
        self.k_proj = nn.Dense(width, width)
        self.v_proj = nn.Dense(width, value_width)
        self.g_proj = nn.Dense(width, value_width)
        self.out_proj = nn.Dense(value_width, width)
        self.head_norm = nn.GroupNorm(heads, value_width, eps=EPS)

    def heads_first(self, x):
        batch, length, width = x.shape
        return x.reshape(batch, length, self.heads, width // self.heads).transpose(0, 2, 1, 3)

    def over_prompt(self, q, k, v, decay, norm):
        """All tokens at once; the state is what the last token would read."""
        scores = ops.matmul(q, k.swapaxes(-1, -2)) * decay
        total = ops.clamp(scores.abs().sum(axis=-1, keepdims=True), min=1.0, max=5e4)
        out = ops.matmul(scores / total, v)

        remembered = decay[:, :, -1, :].expand_dims(-1)
        memory = ops.matmul((k * remembered).swapaxes(-1, -2), v)
        return out, (memory, norm[:, :, -1:, :])

    def one_token(self, q, k, v, gamma, state):
        """The memory decays, takes the token in, and is read."""
        memory, norm = state
        new_norm = norm * gamma + 1
        kept = gamma * ops.sqrt(norm / new_norm)
        memory = memory * kept + ops.matmul(k.swapaxes(-1, -2), v) / ops.sqrt(new_norm)
        out = ops.matmul(q, memory)
        return out, (memory, new_norm)

    def construct(self, x, places, decay, norm=None, state=None):
        batch, length, _ = x.shape
        sin, cos, zeta = places
        q = self.heads_first(self.q_proj(x))
        k = self.heads_first(self.k_proj(x) * self.scaling)
        v = self.heads_first(self.v_proj(x))
        gate = ops.silu(self.g_proj(x))

        q = rotate(q, sin, cos) * zeta
        k = rotate(k, sin, cos) / zeta

        if state is None:
            out, state = self.over_prompt(q, k, v, decay, norm)
        else:
            out, state = self.one_token(q, k, v, decay, state)

        out = out.transpose(0, 2, 1, 3).reshape(batch * length, self.value_width)
        out = self.head_norm(out).reshape(batch, length, self.value_width)
        return self.out_proj(gate * out), state


class Block(nn.Cell):
    """Retention, then the gated perceptron; the shortcuts are scaled as in DeepNet."""

    def __init__(self, width, value_width, heads, ffn_width, depth):
        super().__init__()
        self.alpha = (2.0 * depth) ** 0.25
        self.retention_norm = RMSNorm(width)
        self.retention = Retention(width, value_width, heads)
        self.ffn_norm = RMSNorm(width)
        self.act = nn.GELU(approximate=False)
        self.fc1 = nn.Dense(width, ffn_width)
        self.gate = nn.Dense(width, ffn_width)
        self.sub_norm = nn.LayerNorm((ffn_width,), epsilon=EPS)
        self.fc2 = nn.Dense(ffn_width, width)

    def perceptron(self, x):
        hidden = self.act(self.fc1(x)) * self.gate(x)
        return self.fc2(self.sub_norm(hidden))

    def construct(self, x, places, decay, norm=None, state=None):
        y = self.retention_norm(x)
        y, state = self.retention(y, places, decay, norm, state)
        x = x * self.alpha + y
        y = self.ffn_norm(x)
        x = x * self.alpha + self.perceptron(y)
        return x, state


class RetNetLM(nn.Cell):
    """Reads a prompt with padding on the left and writes a few tokens greedily."""

    def __init__(self, new_tokens=4, penalty=1.4):
        super().__init__()
        self.new_tokens = new_tokens
        self.penalty = penalty
        self.embed_scale = math.sqrt(WIDTH)
        self.embedding = nn.Embedding(VOCAB, WIDTH, padding_idx=PAD)
        self.blocks = nn.CellList([Block(WIDTH, VALUE_WIDTH, HEADS, FFN_WIDTH, DEPTH) for _ in range(DEPTH)])
        self.final_norm = RMSNorm(WIDTH)
        self.lm_head = nn.Dense(WIDTH, VOCAB)
        self.sin, self.cos, self.zeta = rotary_tables(WIDTH // HEADS, MAX_POSITIONS)
        self.gamma = decay_rates(HEADS)

    def places(self, positions):
        """The rows of the tables, with an axis for the heads."""
        return tuple(table[positions].expand_dims(1) for table in (self.sin, self.cos, self.zeta))

    def prompt_decay(self, valid):
        """gamma ** distance for each key that a query sees, over the root of the sum; and the sum."""
        length = valid.shape[1]
        index = ops.arange(length).astype(ms.float32)
        distance = index[:, None] - index[None, :]
        decay = self.gamma[:, None, None] ** ops.relu(distance)
        decay = ops.select(distance >= 0, decay, ops.zeros_like(decay))
        decay = decay[None] * valid[:, None, None, :].astype(ms.float32)
        total = ops.clamp(decay.sum(axis=-1, keepdims=True), min=1.0)
        return decay / ops.sqrt(total), total

    def read_prompt(self, tokens, valid):
        """Logits of the whole prompt, and one state for each block."""
        positions = ops.clamp(ops.cumsum(valid, 1) - 1, min=0)
        x = self.embedding(tokens) * self.embed_scale
        x = x * valid.expand_dims(-1).astype(x.dtype)
        places = self.places(positions)
        decay, total = self.prompt_decay(valid)
        states = []
        for block in self.blocks:
            x, state = block(x, places, decay, total)
            states.append(state)
        return self.lm_head(self.final_norm(x)), states

    def write_token(self, token, positions, states):
        """Logits after one more token, and the states with it."""
        x = self.embedding(token.expand_dims(1)) * self.embed_scale
        places = self.places(positions.expand_dims(1))
        gamma = self.gamma.reshape(1, -1, 1, 1)
        new_states = []
        for block, state in zip(self.blocks, states):
            x, state = block(x, places, gamma, None, state)
            new_states.append(state)
        return self.lm_head(self.final_norm(x)).squeeze(1), new_states

    def choose(self, logits, seen):
        """The best token; those seen before are punished, padding is never chosen."""
        punished = mint.where(logits > 0, logits / self.penalty, logits * self.penalty)
        scores = mint.where(seen, punished, logits)
        never = ops.arange(VOCAB) == PAD
        scores = ops.masked_fill(scores, never, float(np.finfo(np.float32).min))
        return ops.argmax(scores, dim=-1)

    def construct(self, tokens, lengths):
        size = tokens.shape[1]
        vocabulary = ops.arange(VOCAB)
        valid = (ops.arange(size)[None, :] >= (size - lengths)[:, None]).astype(ms.int32)

        prompt_logits, states = self.read_prompt(tokens, valid)
        seen = (tokens.expand_dims(-1) == vocabulary).any(axis=1)
        seen = ops.logical_and(seen, vocabulary != PAD)

        logits = prompt_logits[:, -1]
        written = []
        for step in range(self.new_tokens):
            token = self.choose(logits, seen)
            seen = ops.logical_or(seen, token.expand_dims(-1) == vocabulary)
            logits, states = self.write_token(token, lengths + step, states)
            written.append(logits)
        return prompt_logits, ops.stack(written, axis=1)


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return RetNetLM()
