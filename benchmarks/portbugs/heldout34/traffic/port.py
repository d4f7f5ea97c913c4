"""The session recommender in MindSpore: session graph, masked transformer, fusion, losses and ranking metrics."""

from __future__ import annotations

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

MINUTE, HOUR, DAY = 60, 3600, 86400
EDGES = np.array(
    [30, MINUTE, 3 * MINUTE, 5 * MINUTE, 10 * MINUTE, 30 * MINUTE, HOUR, 3 * HOUR, 12 * HOUR, DAY, 7 * DAY]
)

PAD = 0
FAR_BELOW = -1e9


def zeros_parameter(shape, name):
    return Parameter(Tensor(np.zeros(shape, np.float32)), name=name)


def to_buckets(seconds):
    """Which bucket a gap falls in, as a tensor of the same shape."""
    return Tensor(np.searchsorted(EDGES, seconds.asnumpy(), side="left").astype(np.int32))


def pauses(times, valid):
    """Seconds since the previous click (batch, length), with 0 where there is none."""
    first = ops.zeros_like(times[:, :1])
    return ops.cat((first, times[:, 1:] - times[:, :-1]), axis=1) * valid.astype(times.dtype)


def session_graphs(sessions):
    """Nodes (batch, n), the shares of incoming and of outgoing steps (batch, n, n) each, and each click's node."""
    unique = [np.unique(session, return_inverse=True) for session in sessions]
    batch, length = sessions.shape
    n = max(len(found) for found, _ in unique)
    nodes = np.full((batch, n), PAD, np.int32)
    steps = np.zeros((batch, n, n), np.float32)
    click_node = np.zeros((batch, length), np.int32)
    for row, (found, inverse) in enumerate(unique):
        nodes[row, : len(found)] = found
        click_node[row] = inverse
        clicks = int((sessions[row] != PAD).sum())
        np.add.at(steps[row], (inverse[: clicks - 1], inverse[1:clicks]), 1.0)
    received = np.maximum(steps.sum(axis=1, keepdims=True), 1.0)
    emitted = np.maximum(steps.sum(axis=2, keepdims=True), 1.0)
    incoming = (steps / received).transpose(0, 2, 1)
    outgoing = steps / emitted
    return Tensor(nodes), Tensor(incoming), Tensor(outgoing), Tensor(click_node)


class ClassicNorm(nn.Cell):
    """Layer norm that divides by the sample deviation."""

    def __init__(self, width):
        super().__init__()
        self.weight = Parameter(Tensor(np.ones(width, np.float32)), name="weight")
        self.bias = zeros_parameter((width,), "bias")

    def construct(self, x):
        centred = x - x.mean(axis=-1, keep_dims=True)
        deviation = x.std(axis=-1, ddof=1, keepdims=True)
        return centred / (deviation + 1e-6) * self.weight + self.bias


class GatedUpdate(nn.Cell):
    """A step of the gated graph network."""

    def __init__(self, width):
        super().__init__()
        self.width = width
        self.w_ih = zeros_parameter((3 * width, 2 * width), "w_ih")
        self.w_hh = zeros_parameter((3 * width, width), "w_hh")
        self.b_ih = zeros_parameter((3 * width,), "b_ih")
        self.b_hh = zeros_parameter((3 * width,), "b_hh")
        self.b_iah = zeros_parameter((width,), "b_iah")
        self.b_oah = zeros_parameter((width,), "b_oah")
        self.edge_in = nn.Dense(width, width)
        self.edge_out = nn.Dense(width, width)

    def construct(self, incoming, outgoing, state):
        w = self.width
        from_in = ops.bmm(incoming, self.edge_in(state)) + self.b_iah
        from_out = ops.bmm(outgoing, self.edge_out(state)) + self.b_oah
        message = ops.cat((from_in, from_out), axis=-1)
        gates_x = ops.matmul(message, self.w_ih.T) + self.b_ih
        gates_h = ops.matmul(state, self.w_hh.T) + self.b_hh
        both = ops.sigmoid(gates_x[..., : 2 * w] + gates_h[..., : 2 * w])
        reset, update = both[..., :w], both[..., w:]
        candidate = ops.tanh(gates_x[..., 2 * w :] + reset * gates_h[..., 2 * w :])
        return (1.0 - update) * candidate + update * state


class SessionGraph(nn.Cell):
    """Graph steps, highway and soft attention in one."""

    def __init__(self, width, max_len, steps):
        super().__init__()
        self.steps = steps
        self.update = GatedUpdate(width)
        self.highway = nn.Dense(2 * width, width)
        self.place = nn.Embedding(max_len, width)
        self.age = nn.Embedding(len(EDGES) + 1, width)
        self.of_last = nn.Dense(width, width)
        self.of_click = nn.Dense(width, width)
        self.energy = nn.Dense(width, 1, has_bias=False)
        self.merge = nn.Dense(2 * width, width)

    def walk(self, items, embed):
        """The states of the clicks (batch, length, width) after the graph's steps."""
        nodes, incoming, outgoing, click_node = session_graphs(items.asnumpy())
        start = embed(nodes)
        state = start
        for _ in range(self.steps):
            state = self.update(incoming, outgoing, state)
        carry = ops.sigmoid(self.highway(ops.cat((start, state), axis=-1)))
        state = state + carry * (start - state)
        batch, n, width = state.shape
        flat = click_node + n * ops.arange(batch).astype(ms.int32).expand_dims(1)
        return ops.gather(state.reshape(batch * n, width), flat, 0)

    def construct(self, items, embed, ages):
        clicks = self.walk(items, embed)
        batch, length, width = clicks.shape
        valid = items != PAD
        count = valid.astype(ms.int32).sum(axis=1, keepdims=True)
        order = ops.arange(length).astype(ms.int32).expand_dims(0)
        is_last = (order == count - 1).astype(clicks.dtype)
        last = (clicks * is_last.expand_dims(-1)).sum(axis=1)
        place = ops.clamp(count - 1 - order, min=0)
        keys = clicks + self.place(place) + self.age(to_buckets(ages))
        hidden = ops.sigmoid(self.of_last(last).expand_dims(1) + self.of_click(keys))
        weight = self.energy(hidden).squeeze(-1) * valid.astype(clicks.dtype)
        pooled = ops.bmm(weight.expand_dims(1), clicks).squeeze(1)
        return self.merge(ops.cat((pooled, last), axis=-1)), last


class TimedAttention(nn.Cell):
    """Self-attention over the valid tokens; each head prefers some intervals of time."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Dense(width, 3 * width)
        self.drop = nn.Dropout(p=0.2)
        self.out = nn.Dense(width, width)

    def construct(self, x, valid, bias):
        batch, length, width = x.shape
        size = width // self.heads
        packed = self.qkv(x).reshape(batch, length, 3, self.heads, size).transpose(2, 0, 3, 1, 4)
        query, key, value = packed[0], packed[1], packed[2]
        logits = ops.matmul(query, key.swapaxes(-1, -2)) / size**0.5 + bias
        logits = ops.where(valid.reshape(batch, 1, 1, length), logits, Tensor(FAR_BELOW, ms.float32))
        mixed = ops.matmul(self.drop(ops.softmax(logits, axis=-1)), value)
        return self.out(mixed.swapaxes(1, 2).reshape(batch, length, width))


class Layer(nn.Cell):
    def __init__(self, width, heads, ratio):
        super().__init__()
        self.norm1 = ClassicNorm(width)
        self.attention = TimedAttention(width, heads)
        self.norm2 = ClassicNorm(width)
        self.up = nn.Dense(width, ratio * width)
        self.act = nn.GELU(approximate=False)
        self.down = nn.Dense(ratio * width, width)
        self.drop = nn.Dropout(p=0.2)

    def construct(self, x, valid, bias):
        x = x + self.drop(self.attention(self.norm1(x), valid, bias))
        return x + self.drop(self.down(self.drop(self.act(self.up(self.norm2(x))))))


class ClozeTransformer(nn.Cell):
    """Tokens with their times to vectors."""

    def __init__(self, width, max_len, heads, layers, ratio):
        super().__init__()
        self.width = width
        self.place = nn.Embedding(max_len + 1, width)
        self.pause = nn.Embedding(len(EDGES) + 1, width)
        self.interval = nn.Embedding(len(EDGES) + 1, heads)
        self.norm = ClassicNorm(width)
        self.drop = nn.Dropout(p=0.2)
        self.layers = nn.CellList([Layer(width, heads, ratio) for _ in range(layers)])

    def construct(self, tokens, times, embed):
        valid = tokens != PAD
        x = embed(tokens) * self.width**0.5
        x = x + self.place.embedding_table[: tokens.shape[1]]
        x = x + self.pause(to_buckets(pauses(times, valid)))
        x = self.drop(self.norm(x))
        between = ops.abs(times.expand_dims(2) - times.expand_dims(1))
        bias = self.interval(to_buckets(between)).transpose(0, 3, 1, 2)
        for layer in self.layers:
            x = layer(x, valid, bias)
        return x


class SessionStatistics(nn.Cell):
    """A vector of five figures about the session: clicks, share of repeats, mean and longest pause, idle time."""

    def __init__(self, size):
        super().__init__()
        self.norm = nn.BatchNorm1d(5)
        self.hidden = nn.Dense(5, 2 * size)
        self.act = nn.LeakyReLU(alpha=0.1)
        self.out = nn.Dense(2 * size, size)

    def construct(self, items, times, now):
        valid = (items != PAD).astype(ms.float32)
        clicks = valid.sum(axis=1)
        same = items.expand_dims(2) == items.expand_dims(1)
        before = ops.tril(ops.ones((items.shape[1], items.shape[1]), ms.float32), -1)
        repeated = ((same.astype(ms.float32) * before).sum(axis=2) > 0).astype(ms.float32) * valid
        pause = pauses(times, items != PAD).astype(ms.float32)
        latest = times.max(axis=1)
        columns = (
            ops.log(clicks),
            repeated.sum(axis=1) / clicks,
            ops.log1p(pause.sum(axis=1) / ops.maximum(clicks - 1, Tensor(1.0, ms.float32))),
            ops.log1p(pause.max(axis=1)),
            ops.log1p((now - latest).astype(ms.float32)),
        )
        return self.out(self.act(self.hidden(self.norm(ops.stack(columns, axis=1)))))


class GatedFusion(nn.Cell):
    """Three views of the session into one, channel by channel; the context comes in through a gate of its own."""

    def __init__(self, width, context):
        super().__init__()
        self.weigh = nn.Dense(3 * width + context, 3 * width)
        self.softmax = nn.Softmax(axis=1)
        self.gate = nn.Dense(width + context, width)
        self.inject = nn.Dense(context, width)
        self.norm = nn.LayerNorm((width,), epsilon=1e-5)

    def construct(self, graph, sequence, last, context):
        shares = self.weigh(ops.cat((graph, sequence, last, context), axis=1))
        shares = self.softmax(shares.reshape(graph.shape[0], 3, graph.shape[1]))
        fused = shares[:, 0] * graph + shares[:, 1] * sequence + shares[:, 2] * last
        opened = ops.sigmoid(self.gate(ops.cat((fused, context), axis=1)))
        return self.norm(fused + opened * self.inject(context))


class ClozeObjective(nn.Cell):
    """Cross entropy over all items at the hidden clicks; label 0 stands for a click that was not hidden."""

    def __init__(self, width, classes):
        super().__init__()
        self.bias = zeros_parameter((classes,), "bias")
        self.dense = nn.Dense(width, width)
        self.norm = ClassicNorm(width)
        self.loss = nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=0.1)

    def construct(self, encoded, labels, vectors):
        x = self.norm(ops.relu(self.dense(encoded)))
        logits = ops.matmul(x, vectors.T) + self.bias
        return self.loss(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1).astype(ms.int32))


def unit(x):
    return x / ops.maximum(ops.norm(x, dim=-1, keepdim=True), Tensor(1e-12, ms.float32))


def log_expected(num_items, draws):
    """The log of each item's chance to be among the draws (distinct, log-uniform by rank); entry 0 is for padding."""
    rank = np.arange(num_items, dtype=np.float64)
    chance = np.log((rank + 2) / (rank + 1)) / np.log(num_items + 1)
    drawn = 1.0 - (1.0 - chance) ** draws
    return Tensor(np.concatenate([[0.0], np.log(drawn)]).astype(np.float32))


class SessionNet(nn.Cell):
    """Everything: scores of the items, what is recommended, metrics and losses."""

    def __init__(self, num_items=64, width=32, max_len=12, steps=2, layers=2, heads=4, ratio=4, context=16,
                 temperature=12.0, draws=20, cloze_weight=0.3, cutoffs=(3, 10, 20)):
        super().__init__()
        self.num_items = num_items
        self.temperature = temperature
        self.cloze_weight = cloze_weight
        self.cutoffs = cutoffs
        self.log_q = log_expected(num_items, draws)
        self.items = nn.Embedding(num_items + 2, width)
        self.graph = SessionGraph(width, max_len, steps)
        self.encoder = ClozeTransformer(width, max_len, heads, layers, ratio)
        self.statistics = SessionStatistics(context)
        self.fusion = GatedFusion(width, context)
        self.cloze = ClozeObjective(width, num_items + 1)

    def ask(self, items, times, now):
        """Append a mask token to each session, and read the transformer there."""
        tokens, stamps, at = items.asnumpy(), times.asnumpy(), now.asnumpy()
        tokens, stamps = np.pad(tokens, ((0, 0), (0, 1))), np.pad(stamps, ((0, 0), (0, 1)))
        ends = (tokens != PAD).sum(axis=1)
        for row, end in enumerate(ends):
            tokens[row, end] = self.num_items + 1
            stamps[row, end] = at[row]
        encoded = self.encoder(Tensor(tokens), Tensor(stamps), self.items)
        return ops.stack([encoded[row, int(end)] for row, end in enumerate(ends)])

    def sampled_loss(self, session, vectors, targets, negatives):
        """Softmax among the target and the sampled items; sessions whose target is unknown do not count."""
        positive = (session * vectors[targets]).sum(axis=1, keepdims=True) * self.temperature
        positive = positive - self.log_q[targets].expand_dims(1)
        others = ops.matmul(session, vectors[negatives].T) * self.temperature - self.log_q[negatives]
        clash = targets.expand_dims(1) == negatives.expand_dims(0)
        others = ops.masked_fill(others, clash, FAR_BELOW)
        nll = ops.logsumexp(ops.cat((positive, others), axis=1), 1) - positive.squeeze(1)
        known = (targets != PAD).astype(nll.dtype)
        return (nll * known).sum() / ops.clamp(known.sum(), min=1.0)

    def rank(self, scores, items, targets):
        """The best items that were not seen, and recall, MRR and NDCG for each cutoff."""
        ids = ops.arange(self.num_items + 1)
        seen = (items.expand_dims(2) == ids.reshape(1, 1, -1)).any(axis=1)
        is_target = targets.expand_dims(1) == ids.expand_dims(0)
        allowed = ops.logical_or(ops.logical_not(seen), is_target)
        allowed = ops.logical_and(allowed, (ids != PAD).expand_dims(0))
        values, best = ops.topk(ops.masked_fill(scores, ops.logical_not(allowed), -np.inf), max(self.cutoffs), dim=1)

        chosen = targets.asnumpy() != PAD
        hits = (best.asnumpy() == targets.asnumpy()[:, None])[chosen].astype(np.float32)
        table = []
        for cutoff in self.cutoffs:
            place = np.arange(1, cutoff + 1)
            found = hits[:, :cutoff]
            recall, mrr, ndcg = found.sum(axis=1), (found / place).sum(axis=1), (found / np.log2(place + 1)).sum(axis=1)
            table.append([recall.mean(), mrr.mean(), ndcg.mean()])
        return values, best, Tensor(np.array(table, np.float32))

    def construct(self, items, times, now, cloze_mask, targets, negatives):
        valid = items != PAD
        ages = (now.expand_dims(1) - times) * valid.astype(times.dtype)
        graph, last = self.graph(items, self.items, ages)
        sequence = self.ask(items, times, now)
        session = unit(self.fusion(graph, sequence, last, self.statistics(items, times, now)))

        table = self.items.embedding_table[: self.num_items + 1]
        vectors = unit(table)
        scores = ops.matmul(session, vectors.T) * self.temperature
        values, best, metrics = self.rank(scores, items, targets)

        hidden = ops.logical_and(cloze_mask, valid)
        encoded = self.encoder(ops.masked_fill(items, hidden, self.num_items + 1), times, self.items)
        cloze_loss = self.cloze(encoded, items * hidden.astype(items.dtype), table)
        loss = self.sampled_loss(session, vectors, targets, negatives) + self.cloze_weight * cloze_loss
        return {
            "scores": scores[:, 1:],
            "top_scores": values,
            "top_items": best,
            "metrics": metrics,
            "cloze_loss": cloze_loss,
            "loss": loss,
        }


def build():
    """The net alone, for evaluation: weights and inputs come from the reference's dump."""
    net = SessionNet()
    net.set_train(False)
    return net
