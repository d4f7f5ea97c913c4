"""The differentiable neural computer in MindSpore: the correct port."""

from __future__ import annotations

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

FEATURE_MEAN = np.array([0.42, -0.17, 1.31, 0.08, 0.66], np.float32)
FEATURE_STD = np.array([0.83, 1.27, 0.49, 1.91, 0.72], np.float32)

DELTA = 1e-6
NEG_INF = -1e30


def mask_from_lengths(lengths, maximum):
    """(batch,) to a boolean (batch, maximum)."""
    return ops.arange(maximum).astype(ms.int32).expand_dims(0) < lengths.astype(ms.int32).expand_dims(1)


def time_signal(max_steps, dim):
    """Sine in the even channels, cosine in the odd ones."""
    pairs = np.arange(dim // 2)
    angle = np.arange(max_steps)[:, None] / np.power(10000.0, 2 * pairs / dim)[None, :]
    signal = np.stack([np.sin(angle), np.cos(angle)], axis=-1)
    return signal.reshape(max_steps, dim).astype(np.float32)


def keep_running(running, fresh, stale):
    """Streams that are over keep their state; the batch is the first axis."""
    flag = running.astype(fresh.dtype).reshape((fresh.shape[0],) + (1,) * (fresh.ndim - 1))
    return flag * fresh + (1 - flag) * stale


class InputEncoder(nn.Cell):
    """Words, numbers and the time signal, then a residual dilated convolution."""

    def __init__(self, vocab, num_features, embed_dim, feature_dim, max_steps):
        super().__init__()
        dim = embed_dim + feature_dim
        self.scale = embed_dim**0.5
        self.embed = nn.Embedding(vocab, embed_dim, padding_idx=0)
        self.feature = nn.Dense(num_features, feature_dim)
        self.conv = nn.Conv1d(dim, dim, 3, pad_mode="pad", padding=2, dilation=2, group=4, has_bias=True)
        self.norm = nn.BatchNorm1d(dim, eps=1e-4, momentum=0.9)
        self.act = nn.CELU(alpha=0.5)
        self.mean = Tensor(FEATURE_MEAN)
        self.std = Tensor(FEATURE_STD)
        self.signal = Tensor(time_signal(max_steps, dim))

    def construct(self, tokens, features, valid):
        b, t = tokens.shape
        words = self.embed(tokens.astype(ms.int32)) * self.scale
        numbers = ops.tanh(self.feature((features - self.mean) / self.std))
        x = ops.concat((words, numbers), axis=-1) + self.signal[:t]
        x = ops.masked_fill(x, ops.logical_not(valid).expand_dims(-1), 0.0)
        y = self.conv(x.swapaxes(1, 2)).swapaxes(1, 2)
        y = self.act(self.norm(y.reshape(b * t, -1))).reshape(b, t, -1)
        return ops.masked_fill(x + y, ops.logical_not(valid).expand_dims(-1), 0.0)


class NormLSTMCell(nn.Cell):
    """LSTM step with layer normalisation."""

    def __init__(self, input_size, hidden_size, forget_bias=1.0):
        super().__init__()
        self.hidden_size = hidden_size
        self.forget_bias = forget_bias
        self.x2h = nn.Dense(input_size, 4 * hidden_size)
        self.h2h = nn.Dense(hidden_size, 4 * hidden_size, has_bias=False)
        self.norm_x = nn.LayerNorm((4 * hidden_size,), epsilon=1e-5)
        self.norm_h = nn.LayerNorm((4 * hidden_size,), epsilon=1e-5)
        self.norm_c = nn.LayerNorm((hidden_size,), epsilon=1e-2)

    def construct(self, x, h, c):
        n = self.hidden_size
        pre = self.norm_x(self.x2h(x)) + self.norm_h(self.h2h(h))
        in_gate = ops.sigmoid(pre[:, :n])
        forget = ops.sigmoid(pre[:, n : 2 * n] + self.forget_bias)
        candidate = ops.tanh(pre[:, 2 * n : 3 * n])
        out_gate = ops.sigmoid(pre[:, 3 * n :])
        c = forget * c + in_gate * candidate
        h = out_gate * ops.tanh(self.norm_c(c))
        return h, c


class DeepController(nn.Cell):
    """Two or more LSTM layers with the input given to each; states are lists with one entry a layer."""

    def __init__(self, input_size, hidden_size, depth, clip):
        super().__init__()
        self.hidden_size = hidden_size
        self.depth = depth
        cells = [NormLSTMCell(input_size, hidden_size)]
        cells += [NormLSTMCell(input_size + hidden_size, hidden_size) for _ in range(depth - 1)]
        self.lstms = nn.CellList(cells)
        self.out = nn.Dense(depth * hidden_size, hidden_size)
        self.clip = clip

    def zero_state(self, batch):
        return [ops.zeros((batch, self.hidden_size), ms.float32) for _ in range(self.depth)]

    def construct(self, x, hs, cs):
        next_hs, next_cs = [], []
        feed = x
        for k in range(self.depth):
            h, c = self.lstms[k](feed, hs[k], cs[k])
            next_hs.append(h)
            next_cs.append(c)
            feed = ops.concat((x, h), axis=1)
        joined = ops.concat(next_hs, axis=1)
        return ops.clamp(self.out(joined), -self.clip, self.clip), next_hs, next_cs


def address_by_content(memory, keys, beta, usable):
    """memory (b, n, w), keys (b, k, w), beta (b, k), usable (b, n); returns (b, k, n)."""
    key_len = ops.sqrt(ops.square(keys).sum(axis=-1, keepdims=True) + DELTA)
    row_len = ops.sqrt(ops.square(memory).sum(axis=-1, keepdims=True) + DELTA)
    similarity = ops.matmul(keys, memory.swapaxes(1, 2))
    similarity = similarity / (ops.matmul(key_len, row_len.swapaxes(1, 2)) + DELTA)
    sharp = similarity * beta.expand_dims(2)
    sharp = ops.masked_fill(sharp, ops.logical_not(usable).expand_dims(1), NEG_INF)
    return ops.softmax(sharp, axis=-1)


def next_usage(usage, last_write, last_reads, free):
    """Written slots fill up, slots that were read and freed empty."""
    usage = usage + last_write - usage * last_write
    retain = ops.ones_like(usage)
    for head in range(last_reads.shape[1]):
        retain = retain * (1 - free[:, head : head + 1] * last_reads[:, head])
    return usage * retain


def allocate(usage, usable):
    """Allocation over the free list: the emptiest slot first."""
    usage = DELTA + (1 - DELTA) * usage
    usage = ops.masked_fill(usage, ops.logical_not(usable), 1.0)
    free_list = ops.argsort(usage, axis=-1)
    ascending = ops.gather_elements(usage, 1, free_list)
    running = ops.cumprod(ascending, 1)
    before = ops.concat((ops.ones_like(running[:, :1]), running[:, :-1]), axis=1)
    in_order = (1 - ascending) * before
    rank = ops.argsort(free_list, axis=-1)
    return ops.gather_elements(in_order, 1, rank)


class Links(nn.Cell):
    """The matrix of temporal links (to, from) and the precedence weights."""

    def __init__(self, slots):
        super().__init__()
        self.off_diagonal = Tensor(1.0 - np.eye(slots, dtype=np.float32))

    def construct(self, link, precedence, write):
        to = write.expand_dims(-1)
        frm = write.expand_dims(-2)
        link = (1 - to - frm) * link + ops.matmul(to, precedence.expand_dims(1))
        link = link * self.off_diagonal
        precedence = precedence * (1 - write.sum(axis=-1, keepdims=True)) + write
        return link, precedence


class ExternalMemory(nn.Cell):
    """Write and read heads. The state is a tuple: memory, usage, write, read, link, precedence, reads."""

    def __init__(self, hidden_size, slots, word, heads, ramp):
        super().__init__()
        self.slots, self.word, self.heads = slots, word, heads
        self.interface = nn.Dense(hidden_size, heads * word + 3 * word + 5 * heads + 3)
        self.linkage = Links(slots)
        self.memory_init = Parameter(Tensor(np.zeros((slots, word), np.float32)), name="memory_init")
        self.usage_init = Tensor(np.linspace(0.0, ramp, slots).astype(np.float32))

    def fresh(self, batch):
        n, w, r = self.slots, self.word, self.heads
        return (
            ops.tile(self.memory_init.expand_dims(0), (batch, 1, 1)),
            ops.tile(self.usage_init.expand_dims(0), (batch, 1)),
            ops.zeros((batch, n), ms.float32),
            ops.zeros((batch, r, n), ms.float32),
            ops.zeros((batch, n, n), ms.float32),
            ops.zeros((batch, n), ms.float32),
            ops.zeros((batch, r, w), ms.float32),
        )

    def cut(self, xi):
        """The interface vector in its parts, with their activations."""
        b = xi.shape[0]
        w, r = self.word, self.heads
        at = 0
        read_keys = xi[:, at : at + r * w].reshape(b, r, w)
        at += r * w
        read_beta = 1 + ops.softplus(xi[:, at : at + r])
        at += r
        write_key = xi[:, at : at + w]
        at += w
        write_beta = 1 + ops.softplus(xi[:, at : at + 1])
        at += 1
        erase = ops.sigmoid(xi[:, at : at + w])
        at += w
        value = xi[:, at : at + w]
        at += w
        free = ops.sigmoid(xi[:, at : at + r])
        at += r
        alloc_gate = ops.sigmoid(xi[:, at : at + 1])
        write_gate = ops.sigmoid(xi[:, at + 1 : at + 2])
        at += 2
        modes = ops.softmax(xi[:, at:].reshape(b, r, 3), axis=-1)
        return read_keys, read_beta, write_key, write_beta, erase, value, free, alloc_gate, write_gate, modes

    def write_to(self, memory, where, erase, value):
        where = where.expand_dims(2)
        memory = memory * (1 - ops.matmul(where, erase.expand_dims(1)))
        return memory + ops.matmul(where, value.expand_dims(1))

    def construct(self, hidden, state, usable):
        memory, usage, last_write, last_reads, link, precedence, _ = state
        read_keys, read_beta, write_key, write_beta, erase, value, free, alloc_gate, write_gate, modes = self.cut(
            self.interface(hidden)
        )

        usage = next_usage(usage, last_write, last_reads, free)
        by_key = address_by_content(memory, write_key.expand_dims(1), write_beta, usable)[:, 0]
        blend = alloc_gate * allocate(usage, usable) + (1 - alloc_gate) * by_key
        write = write_gate * blend
        memory = self.write_to(memory, write, erase, value)

        link, precedence = self.linkage(link, precedence, write)
        ahead = ops.matmul(last_reads, link.swapaxes(1, 2))
        behind = ops.matmul(last_reads, link)
        similar = address_by_content(memory, read_keys, read_beta, usable)
        choices = ops.stack((behind, similar, ahead), axis=2)
        read = (modes.expand_dims(-1) * choices).sum(axis=2)
        vectors = ops.matmul(read, memory)
        return memory, usage, write, read, link, precedence, vectors


class Answers(nn.Cell):
    """The perceptron for the answers."""

    def __init__(self, width, hidden, classes):
        super().__init__()
        self.norm = nn.LayerNorm((width,), epsilon=1e-5)
        self.fc1 = nn.Dense(width, hidden)
        self.act = nn.GELU(approximate=False)
        self.fc2 = nn.Dense(hidden, classes)

    def construct(self, x):
        return self.fc2(self.act(self.fc1(self.norm(x))))


class NeuralComputer(nn.Cell):
    """Streams to answers, the last reads, and the usage penalty of every stream."""

    def __init__(self, vocab=31, num_features=5, embed_dim=14, feature_dim=10, max_steps=40, hidden=22, depth=2,
                 clip=1.6, slots=13, word=9, heads=3, budget=0.18, ramp=0.06, answer_hidden=26, classes=17):
        super().__init__()
        self.slots = slots
        self.budget = budget
        self.encoder = InputEncoder(vocab, num_features, embed_dim, feature_dim, max_steps)
        self.controller = DeepController(embed_dim + feature_dim + heads * word, hidden, depth, clip)
        self.access = ExternalMemory(hidden, slots, word, heads, ramp)
        self.answer = Answers(hidden + heads * word, answer_hidden, classes)

    def question_steps(self, asked):
        """The steps of the questions in order, (batch, most), and which of them are real."""
        steps = asked.shape[1]
        counts = asked.astype(ms.int32).sum(axis=1)
        most = int(counts.max())
        place = ops.arange(steps).astype(ms.int32).expand_dims(0)
        place = ops.where(asked, place, place + steps)
        index = ops.argsort(place.astype(ms.float32), axis=1)[:, :most]
        return index, mask_from_lengths(counts, most)

    def penalty(self, usages, valid, usable):
        """usages (batch, steps, slots)."""
        there = usable.astype(usages.dtype)
        level = ops.matmul(usages, there.expand_dims(-1)).squeeze(-1) / there.sum(axis=1, keepdims=True)
        over = ops.square(ops.relu(level - self.budget))
        steps = valid.astype(usages.dtype)
        return (over * steps).sum(axis=1) / ops.clamp(steps.sum(axis=1), min=1.0)

    def construct(self, tokens, features, lengths, asked, num_slots):
        batch, steps = tokens.shape
        valid = mask_from_lengths(lengths, steps)
        usable = mask_from_lengths(num_slots, self.slots)
        stream = self.encoder(tokens, features, valid)

        hs, cs = self.controller.zero_state(batch), self.controller.zero_state(batch)
        state = self.access.fresh(batch)
        joined, usages = [], []
        for t in range(steps):
            running = valid[:, t]
            x = ops.concat((stream[:, t], state[-1].reshape(batch, -1)), axis=1)
            hidden, fresh_hs, fresh_cs = self.controller(x, hs, cs)
            fresh_state = self.access(hidden, state, usable)
            hs = [keep_running(running, a, b) for a, b in zip(fresh_hs, hs)]
            cs = [keep_running(running, a, b) for a, b in zip(fresh_cs, cs)]
            state = tuple(keep_running(running, a, b) for a, b in zip(fresh_state, state))
            joined.append(ops.concat((hidden, state[-1].reshape(batch, -1)), axis=1))
            usages.append(state[1])

        index, real = self.question_steps(ops.logical_and(asked.astype(ms.bool_), valid))
        sequence = ops.stack(joined, axis=1)
        index = ops.broadcast_to(index.expand_dims(-1), index.shape + (sequence.shape[-1],))
        blank = ops.logical_not(real).expand_dims(-1)
        chosen = ops.masked_fill(ops.gather_elements(sequence, 1, index), blank, 0.0)
        logits = ops.masked_fill(self.answer(chosen), blank, 0.0)
        return logits, state[-1], self.penalty(ops.stack(usages, axis=1), valid, usable)


def build():
    """The net alone, for evaluation: weights and inputs come from the reference's dump."""
    net = NeuralComputer()
    net.set_train(False)
    return net
