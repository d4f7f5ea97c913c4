"""The served language model in MindSpore: cached grouped attention, sampling, speculative rounds (the correct port)."""

from __future__ import annotations

import math

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

LOWEST = float(np.finfo(np.float32).min)
NORM_EPS = 1e-5
PAD_ID, EOS_ID = 0, 2
LOCAL_THETA, GLOBAL_THETA = 1e3, 1e4
YARN = dict(scale=16.0, trained_length=1024, fast=32.0, slow=1.0)


def plain_frequencies(width, theta):
    return theta ** -(np.arange(0, width, 2, dtype=np.float64) / width)


def yarn_frequencies(width, theta, scale, trained_length, fast, slow):
    """Slow components are interpolated, fast ones are left alone, with a ramp in between."""

    def component(turns):
        return width * math.log(trained_length / (turns * 2.0 * math.pi)) / (2.0 * math.log(theta))

    first = max(int(math.floor(component(fast))), 0)
    last = min(int(math.ceil(component(slow))), width - 1)
    ramp = np.clip((np.arange(width // 2) - first) / (last - first), 0.0, 1.0)
    plain = plain_frequencies(width, theta)
    return plain / scale * ramp + plain * (1.0 - ramp)


def turn(x, cos, sin):
    """Rotate the halves of the heads; x is (batch, tokens, heads, width)."""
    a, b = ops.chunk(x, 2, axis=-1)
    return ops.cat((a * cos - b * sin, b * cos + a * sin), axis=-1)


class PositionTable(nn.Cell):
    """Precomputed cosines and sines for as many positions as a sequence may have."""

    def __init__(self, frequencies, length, magnitude=1.0):
        super().__init__()
        angles = np.outer(np.arange(length), frequencies)
        self.cos = Tensor((np.cos(angles) * magnitude).astype(np.float32))
        self.sin = Tensor((np.sin(angles) * magnitude).astype(np.float32))

    def construct(self, positions):
        return ops.gather(self.cos, positions, 0).unsqueeze(2), ops.gather(self.sin, positions, 0).unsqueeze(2)


class RootNorm(nn.Cell):
    def __init__(self, width, eps=1e-6):
        super().__init__()
        self.weight = Parameter(Tensor(np.ones(width, np.float32)), name="weight")
        self.eps = eps

    def construct(self, x):
        return x / ops.sqrt((x * x).mean(axis=-1, keep_dims=True) + self.eps) * self.weight


class LayerStore:
    """The keys and values of one layer, (batch, slots, heads, width)."""

    def __init__(self, batch, slots, heads, width):
        self.key = ops.zeros((batch, slots, heads, width), ms.float32)
        self.value = ops.zeros((batch, slots, heads, width), ms.float32)
        self.rows = Tensor(np.arange(batch, dtype=np.int32).reshape(batch, 1))

    def write(self, slots, key, value):
        index = ops.stack((ops.broadcast_to(self.rows, slots.shape), slots), axis=-1)
        self.key = ops.tensor_scatter_update(self.key, index, key)
        self.value = ops.tensor_scatter_update(self.value, index, value)
        return self.key, self.value


class GroupedAttention(nn.Cell):
    """The queries of a group share one key; a sliding layer's softmax has a learned sink for each head."""

    def __init__(self, width, heads, kv_heads, head_width, scalar, cap, sliding):
        super().__init__()
        self.heads, self.kv_heads, self.head_width = heads, kv_heads, head_width
        self.scale = 1.0 / math.sqrt(scalar)
        self.cap = cap
        self.q_proj = nn.Dense(width, heads * head_width)
        self.k_proj = nn.Dense(width, kv_heads * head_width)
        self.v_proj = nn.Dense(width, kv_heads * head_width)
        self.o_proj = nn.Dense(heads * head_width, width, has_bias=False)
        self.q_norm = RootNorm(head_width, NORM_EPS)
        self.k_norm = RootNorm(head_width, NORM_EPS)
        self.sliding = sliding
        if sliding:
            self.sinks = Parameter(Tensor(np.zeros(heads, np.float32)), name="sinks")

    def normalise(self, scores):
        """Softmax over the slots; the sink only takes its share of the mass."""
        peak = ops.amax(scores, -1, True)
        if not self.sliding:
            weights = ops.exp(scores - peak)
            return weights / weights.sum(axis=-1, keepdims=True)
        sink = self.sinks.reshape(1, self.heads, 1, 1)
        peak = ops.maximum(peak, sink)
        weights = ops.exp(scores - peak)
        return weights / (weights.sum(axis=-1, keepdims=True) + ops.exp(sink - peak))

    def construct(self, x, rotary, bias, slots, store):
        b, t, _ = x.shape
        n, group = self.kv_heads, self.heads // self.kv_heads
        query = self.q_norm(self.q_proj(x).reshape(b, t, self.heads, self.head_width))
        key = self.k_norm(self.k_proj(x).reshape(b, t, n, self.head_width))
        value = self.v_proj(x).reshape(b, t, n, self.head_width)
        query, key = turn(query, *rotary), turn(key, *rotary)
        keys, values = store.write(slots, key, value)
        length = keys.shape[1]

        # fold the group into the queries' axis: one product for each head of the keys
        query = query.reshape(b, t, n, group, self.head_width).permute(0, 2, 3, 1, 4)
        scores = ops.matmul(query.reshape(b, n, group * t, -1), keys.permute(0, 2, 3, 1)) * self.scale
        scores = self.cap * ops.tanh(scores / self.cap)
        scores = scores.reshape(b, self.heads, t, length) + bias
        weights = self.normalise(scores).reshape(b, n, group * t, length)
        out = ops.matmul(weights, values.permute(0, 2, 1, 3))
        out = out.reshape(b, n, group, t, self.head_width).permute(0, 3, 1, 2, 4)
        return self.o_proj(out.reshape(b, t, -1))


class GatedMLP(nn.Cell):
    """Gate and value come from one projection, the gate's half first."""

    def __init__(self, width, hidden):
        super().__init__()
        self.gate_up = nn.Dense(width, 2 * hidden, has_bias=False)
        self.act = nn.SiLU()
        self.down = nn.Dense(hidden, width, has_bias=False)

    def construct(self, x):
        gate, up = ops.chunk(self.gate_up(x), 2, axis=-1)
        return self.down(self.act(gate) * up)


class Layer(nn.Cell):
    def __init__(self, width, hidden, sliding, **attention):
        super().__init__()
        self.sliding = sliding
        self.norm1 = RootNorm(width, NORM_EPS)
        self.attn = GroupedAttention(width, sliding=sliding, **attention)
        self.norm2 = RootNorm(width, NORM_EPS)
        self.mlp = GatedMLP(width, hidden)

    def construct(self, x, rotary, bias, slots, store):
        x = x + self.attn(self.norm1(x), rotary, bias, slots, store)
        return x + self.mlp(self.norm2(x))


class Trunk(nn.Cell):
    """Embedding, layers (sliding and full ones in turn) and the last norm."""

    def __init__(self, vocabulary, width, hidden, depth, window, sink_tokens, max_positions, head_width, **attention):
        super().__init__()
        self.window, self.sink_tokens = window, sink_tokens
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.CellList(
            [Layer(width, hidden, i % 2 == 0, head_width=head_width, **attention) for i in range(depth)]
        )
        self.norm = RootNorm(width, NORM_EPS)
        self.local_table = PositionTable(plain_frequencies(head_width, LOCAL_THETA), max_positions)
        self.global_table = PositionTable(
            yarn_frequencies(head_width, GLOBAL_THETA, **YARN), max_positions, 0.1 * math.log(YARN["scale"]) + 1.0
        )

    def biases(self, slots, pad, length):
        """What is added to the scores of full and of sliding layers, each (batch, 1, tokens, slots)."""
        at = slots.unsqueeze(2)
        other = ops.arange(length).astype(ms.int32).reshape(1, 1, length)
        start = pad.reshape(-1, 1, 1)
        full = ops.logical_and(other <= at, other >= start)
        close = ops.logical_or(at - other < self.window, other - start < self.sink_tokens)
        sliding = ops.logical_and(full, close)
        itself = other == at  # padded tokens have nothing else to look at
        return [
            ops.where(ops.logical_or(allowed, itself), 0.0, LOWEST).astype(ms.float32).unsqueeze(1)
            for allowed in (full, sliding)
        ]

    def construct(self, ids, slots, pad, stores):
        positions = ops.maximum(slots - pad.unsqueeze(1), 0)
        local, stretched = self.local_table(positions), self.global_table(positions)
        full_bias, sliding_bias = self.biases(slots, pad, stores[0].key.shape[1])
        x = self.embedding(ids)
        for layer, store in zip(self.layers, stores):
            if layer.sliding:
                x = layer(x, local, sliding_bias, slots, store)
            else:
                x = layer(x, stretched, full_bias, slots, store)
        return self.norm(x)


class Drafter(nn.Cell):
    """Guesses the hidden states of the coming tokens with a small recurrent net."""

    def __init__(self, width, blocks=2):
        super().__init__()
        self.embed_norm = nn.LayerNorm((width,), epsilon=1e-5)
        self.embed_in = nn.Dense(width, width)
        self.state_in = nn.Dense(width, width, has_bias=False)
        self.first_state = Parameter(Tensor(np.zeros(width, np.float32)), name="first_state")
        self.fuse = nn.Dense(2 * width, width)
        self.blocks = nn.CellList([nn.Dense(width, width) for _ in range(blocks)])
        self.norm = RootNorm(width, NORM_EPS)

    def start(self, batch):
        return ops.broadcast_to(self.first_state, (batch, self.first_state.shape[0]))

    def construct(self, hidden, embedded, state):
        state = ops.tanh(self.embed_in(self.embed_norm(embedded)) + self.state_in(state))
        x = self.fuse(ops.cat((hidden, state), axis=-1))
        for block in self.blocks:
            y = block(x)
            x = x + y * ops.sigmoid(y)
        return self.norm(x), state


class NextToken(nn.Cell):
    """Logits to the probabilities that are sampled from: penalty, temperature, nucleus."""

    def __init__(self, vocabulary, penalty, temperature, top_p):
        super().__init__()
        self.penalty, self.temperature, self.top_p = penalty, temperature, top_p
        banned = np.zeros(vocabulary, np.float32)
        banned[PAD_ID] = LOWEST
        self.banned = Tensor(banned)

    def construct(self, logits, counts):
        factor = ops.where(logits > 0, 1.0 / self.penalty, self.penalty)
        logits = ops.where(counts > 0, logits * factor, logits) + self.banned
        probs = ops.softmax(logits / self.temperature, axis=-1)
        ordered, _ = ops.sort(probs, axis=-1, descending=True)
        mass_before = ops.cumsum(ordered, -1) - ordered
        threshold = ops.where(mass_before < self.top_p, ordered, 2.0).min(axis=-1, keepdims=True)
        probs = ops.where(probs >= threshold, probs, 0.0)
        return probs / probs.sum(axis=-1, keepdims=True)


def draw(probs, number):
    passed = ops.cumsum(probs, -1) <= number.unsqueeze(-1)
    return ops.minimum(passed.astype(ms.int32).sum(axis=-1), probs.shape[-1] - 1).astype(ms.int32)


def pick(x, index):
    """x[..., index] for an index of every row."""
    return ops.gather_elements(x, x.ndim - 1, index.unsqueeze(-1)).squeeze(-1)


class Referee(nn.Cell):
    """Goes through the drafts until one is refused, and draws the token that comes after the accepted ones."""

    def construct(self, target, proposed, drafts, numbers):
        b, k = drafts.shape
        alive = ops.ones((b,), ms.int32)
        accepted = ops.zeros((b,), ms.int32)
        for i in range(k):
            p, q = pick(target[:, i], drafts[:, i]), pick(proposed[:, i], drafts[:, i])
            alive = alive * (numbers[:, i] * q < p).astype(ms.int32)
            accepted = accepted + alive
        rest = target[:, k]  # nothing was proposed after the last draft
        for i in range(k):
            refused_here = (accepted == i).unsqueeze(1)
            rest = ops.where(refused_here, ops.relu(target[:, i] - proposed[:, i]), rest)
        rest = rest / ops.clamp(rest.sum(axis=-1, keepdims=True), min=1e-9)
        return accepted, rest, draw(rest, numbers[:, k])


class LanguageServer(nn.Cell):
    """Left-padded prompts and the numbers of the sampler to tokens, scores and the distributions on the way."""

    def __init__(self, vocabulary=53, width=32, hidden=56, depth=4, heads=4, kv_heads=2, head_width=16, drafts=3):
        super().__init__()
        self.vocabulary, self.depth, self.drafts = vocabulary, depth, drafts
        self.kv_heads, self.head_width = kv_heads, head_width
        self.chunk = 5
        self.cap = 5.0
        self.length_power = 0.6
        self.trunk = Trunk(vocabulary, width, hidden, depth, window=5, sink_tokens=2, max_positions=64,
                           head_width=head_width, heads=heads, kv_heads=kv_heads, scalar=10, cap=6.0)
        self.lm_head = nn.Dense(width, vocabulary, has_bias=False)
        self.drafter = Drafter(width)
        self.next_token = NextToken(vocabulary, penalty=1.4, temperature=0.7, top_p=0.9)
        self.referee = Referee()

    def logits(self, hidden):
        return self.cap * ops.tanh(self.lm_head(hidden) / self.cap)

    def one_hot(self, ids):
        return ops.one_hot(ids, self.vocabulary, Tensor(1.0, ms.float32), Tensor(0.0, ms.float32))

    def read_prompts(self, ids, mask, pad, stores):
        """Chunk after chunk into the cache; returns the last hidden state and each prompt's mean loss."""
        b, n = ids.shape
        targets = ops.cat((ids[:, 1:], ops.zeros((b, 1), ms.int32)), axis=1)
        weights = ops.cat((mask[:, :-1], ops.zeros((b, 1), ms.int32)), axis=1).astype(ms.float32)
        total = ops.zeros((b,), ms.float32)
        for start in range(0, n, self.chunk):
            stop = min(start + self.chunk, n)
            slots = ops.broadcast_to(ops.arange(start, stop).astype(ms.int32), (b, stop - start))
            hidden = self.trunk(ids[:, start:stop], slots, pad, stores)
            logits = self.logits(hidden)
            nll = ops.logsumexp(logits, -1) - pick(logits, targets[:, start:stop])
            total = total + (nll * weights[:, start:stop]).sum(axis=1)
        return hidden[:, -1], total / ops.clamp(weights.sum(axis=1), min=1.0)

    def speculative_round(self, hidden, token, counts, filled, pad, stores, numbers):
        b, k = token.shape[0], self.drafts
        tokens, proposed = [token], []
        state, running = self.drafter.start(b), counts
        for i in range(k):
            guess, state = self.drafter(hidden, self.trunk.embedding(tokens[i]), state)
            proposed.append(self.next_token(self.logits(guess), running))
            tokens.append(draw(proposed[i], numbers[:, i]))
            running = running + self.one_hot(tokens[i + 1])
        tokens, proposed = ops.stack(tokens, axis=1), ops.stack(proposed, axis=1)

        # one pass over the newest token and all drafts; a row's rejected slots are taken again in the next round
        steps = ops.arange(k + 1).astype(ms.int32).unsqueeze(0)
        states = self.trunk(tokens, filled.unsqueeze(1) + steps, pad, stores)
        history = counts.unsqueeze(1) + ops.cumsum(self.one_hot(tokens), 1)
        target = self.next_token(self.logits(states), history)
        accepted, rest, last = self.referee(target, proposed, tokens[:, 1:], numbers[:, k:])

        border = accepted.unsqueeze(1)
        new = ops.cat((tokens[:, 1:], last.unsqueeze(1)), axis=1)
        new = ops.where(steps < border, new, ops.where(steps == border, last.unsqueeze(1), PAD_ID)).astype(ms.int32)
        log_probs = ops.log(ops.clamp(pick(target, new), min=1e-9))
        hidden = (states * (steps == border).astype(ms.float32).unsqueeze(2)).sum(axis=1)
        counts = counts + (self.one_hot(new) * (steps <= border).astype(ms.float32).unsqueeze(2)).sum(axis=1)
        return new, log_probs, hidden, last, counts, accepted, proposed, target, rest

    def close(self, tokens, log_probs, count):
        """Drops what follows the first end of sequence and scores what stays."""
        place = ops.arange(tokens.shape[1]).astype(ms.int32).unsqueeze(0)
        end = ops.where(tokens == EOS_ID, place, tokens.shape[1]).min(axis=1, keepdims=True)
        keep = ops.logical_and(place <= end, place < count.unsqueeze(1)).astype(ms.float32)
        score = (log_probs * keep).sum(axis=1) / ops.pow(keep.sum(axis=1), self.length_power)
        return tokens * keep.astype(ms.int32), score

    def construct(self, input_ids, attention_mask, decode_numbers, draft_numbers):
        ids, mask = input_ids.astype(ms.int32), attention_mask.astype(ms.int32)
        b, n = ids.shape
        steps, rounds = decode_numbers.shape[1], draft_numbers.shape[1]
        room = steps + rounds * (self.drafts + 1)
        stores = [LayerStore(b, n + room, self.kv_heads, self.head_width) for _ in range(self.depth)]
        pad = (n - mask.sum(axis=1)).astype(ms.int32)
        hidden, loss = self.read_prompts(ids, mask, pad, stores)
        counts = (self.one_hot(ids) * mask.astype(ms.float32).unsqueeze(2)).sum(axis=1)

        filled = ops.full((b,), n, dtype=ms.int32)
        tokens, log_probs, step_probs = [], [], []
        for step in range(steps):
            if tokens:
                hidden = self.trunk(tokens[-1].unsqueeze(1), filled.unsqueeze(1), pad, stores).squeeze(1)
                filled = filled + 1
            probs = self.next_token(self.logits(hidden), counts)
            token = draw(probs, decode_numbers[:, step])
            counts = counts + self.one_hot(token)
            tokens.append(token)
            log_probs.append(ops.log(ops.clamp(pick(probs, token), min=1e-9)))
            step_probs.append(probs)

        written = ops.pad(ops.stack(tokens, axis=1), (0, room - steps))
        written_log_probs = ops.pad(ops.stack(log_probs, axis=1), (0, room - steps))
        count = ops.full((b,), steps, dtype=ms.int32)
        offsets = ops.arange(self.drafts + 1).astype(ms.int32).unsqueeze(0)
        records = []
        for i in range(rounds):
            new, new_log_probs, hidden, token, counts, *record = self.speculative_round(
                hidden, token, counts, filled, pad, stores, draft_numbers[:, i]
            )
            where = count.unsqueeze(1) + offsets
            written = ops.tensor_scatter_elements(written, where, new, axis=1)
            written_log_probs = ops.tensor_scatter_elements(written_log_probs, where, new_log_probs, axis=1)
            advance = record[0] + 1
            filled, count = filled + advance, count + advance
            records.append(record)
        accepted, proposed, target, rest = (ops.stack(column, axis=1) for column in zip(*records))
        written, scores = self.close(written, written_log_probs, count)
        return written, scores, loss, ops.stack(step_probs, axis=1), accepted, proposed, target, rest, hidden


def build():
    """The net alone, for evaluation: weights and inputs come from the reference's dump."""
    net = LanguageServer()
    net.set_train(False)
    return net
