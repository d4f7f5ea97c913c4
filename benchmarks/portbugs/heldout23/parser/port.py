"""The second-order dependency parser in MindSpore: the correct port."""

from __future__ import annotations

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

PAD_ID = 0
UNK_ID = 1
BUCKET_STARTS = [1, 2, 3, 5, 7, 10]
NEG = float(np.finfo(np.float32).min)


def zeros_parameter(name, *shape):
    return Parameter(ops.zeros(shape, ms.float32), name=name)


def with_ones(x):
    """Append the column that carries the bias."""
    ones = ops.ones(x.shape[:-1] + (1,), x.dtype)
    return ops.cat((x, ones), axis=-1)


def masked_softmax(logits, allowed):
    """Softmax over the heads; rows without any allowed head are zero."""
    prob = ops.softmax(ops.masked_fill(logits, ops.logical_not(allowed), NEG), axis=-1)
    return prob * allowed.astype(logits.dtype)


# ---------------------------------------------------------------- decoding, on the host


def walk_to_cycle(heads):
    """Follow the heads from every token; give the first closed walk, or nothing."""
    state = np.zeros(len(heads), np.int32)  # 0 new, -1 safe, otherwise the walk that came by
    state[0] = -1
    for start in range(1, len(heads)):
        node, trail = start, []
        while state[node] == 0:
            state[node] = start
            trail.append(node)
            node = int(heads[node])
        if state[node] == start:
            return trail[trail.index(node):]
        state[trail] = -1
    return None


def hangs_below(heads, cycle):
    """Boolean array: the tokens of the cycle and all that hang on them."""
    below = np.zeros(len(heads), bool)
    below[cycle] = True
    while True:
        grown = below | below[heads]
        grown[0] = False
        if (grown == below).all():
            return below
        below = grown


def open_cycle(scores, heads, cycle):
    """Re-attach one member of the cycle outside of it, where this costs least."""
    heads = heads.copy()
    below = hangs_below(heads, cycle)
    best, best_cost = None, np.inf
    for member in cycle:
        for head in np.flatnonzero(~below):
            cost = scores[member, heads[member]] - scores[member, head]
            if cost < best_cost:
                best, best_cost = (member, head), cost
    heads[best[0]] = best[1]
    return heads


def tree_heads(logits, lengths, greedy):
    """Greedy heads (batch, length) with at most one cycle per sentence opened."""
    logits, result = logits.asnumpy(), greedy.asnumpy().copy()
    for b, n in enumerate(lengths.asnumpy()):
        row = result[b, :n]
        cycle = walk_to_cycle(row)
        if cycle is not None:
            result[b, :n] = open_cycle(logits[b], row, cycle)
    return Tensor(result, ms.int32)


# ---------------------------------------------------------------- layers


class CharBiLSTM(nn.Cell):
    """Characters (batch, length, width) to word vectors; words without characters become zeros."""

    def __init__(self, num_chars, embed_size, hidden_size, out_size):
        super().__init__()
        self.hidden_size = hidden_size
        self.embed = nn.Embedding(num_chars, embed_size, padding_idx=PAD_ID)
        self.conv = nn.Conv1d(embed_size, embed_size, 3, pad_mode="pad", padding=2, dilation=2, has_bias=True)
        self.fw = nn.LSTMCell(embed_size, hidden_size)
        self.bw = nn.LSTMCell(embed_size, hidden_size)
        self.proj = nn.Dense(2 * hidden_size, out_size)

    def construct(self, chars):
        b, n, width = chars.shape
        chars = chars.reshape(b * n, width)
        real = chars != PAD_ID
        real_f = real.astype(ms.float32).expand_dims(-1)

        x = self.embed(chars) * real_f
        x = x + ops.tanh(self.conv(x.swapaxes(1, 2))).swapaxes(1, 2)

        zero = ops.zeros((b * n, self.hidden_size), x.dtype)
        state = (zero, zero)
        for t in range(width):
            h, c = self.fw(x[:, t], state)
            on = real[:, t : t + 1]
            state = (ops.where(on, h, state[0]), ops.where(on, c, state[1]))
        end_fw = state[0]

        state = (zero, zero)
        for t in range(width - 1, -1, -1):
            h, c = self.bw(x[:, t], state)
            gate = real_f[:, t]
            state = (state[0] + gate * (h - state[0]), state[1] + gate * (c - state[1]))

        out = self.proj(ops.cat((end_fw, state[0]), axis=1))
        out = out * real_f.max(axis=1)
        return out.reshape(b, n, -1)


class HighwayCell(nn.Cell):
    """One step of the highway LSTM."""

    def __init__(self, input_size, hidden_size):
        super().__init__()
        self.hidden_size = hidden_size
        self.input_linearity = nn.Dense(input_size, 6 * hidden_size, has_bias=False)
        self.state_linearity = nn.Dense(hidden_size, 5 * hidden_size)

    def construct(self, x, h, c):
        parts = self.input_linearity(x)
        through = parts[:, 5 * self.hidden_size :]
        pre = parts[:, : 5 * self.hidden_size] + self.state_linearity(h)
        i, f, g, o, r = ops.chunk(pre, 5, axis=1)
        c = ops.sigmoid(f) * c + ops.sigmoid(i) * ops.tanh(g)
        h = ops.sigmoid(o) * ops.tanh(c)
        r = ops.sigmoid(r)
        return r * h + (1.0 - r) * through, c


class HighwayBiLSTM(nn.Cell):
    """Stack of forward and backward cells over a padded batch."""

    def __init__(self, input_size, hidden_size, num_layers):
        super().__init__()
        self.hidden_size = hidden_size
        sizes = [input_size] + [2 * hidden_size] * (num_layers - 1)
        self.fw = nn.CellList([HighwayCell(size, hidden_size) for size in sizes])
        self.bw = nn.CellList([HighwayCell(size, hidden_size) for size in sizes])

    def scan(self, cell, x, token_mask, order):
        h = c = ops.zeros((x.shape[0], self.hidden_size), x.dtype)
        steps = [None] * x.shape[1]
        for t in order:
            here = token_mask[:, t].expand_dims(1)
            new_h, new_c = cell(x[:, t], h, c)
            steps[t] = ops.masked_fill(new_h, ops.logical_not(here), 0.0)
            h = ops.where(here, new_h, h)
            c = ops.where(here, new_c, c)
        return ops.stack(steps, axis=1)

    def construct(self, x, token_mask):
        n = x.shape[1]
        for i in range(len(self.fw)):
            left = self.scan(self.fw[i], x, token_mask, range(n))
            right = self.scan(self.bw[i], x, token_mask, range(n - 1, -1, -1))
            x = ops.cat((left, right), axis=2)
        return x


class MLP(nn.Cell):
    def __init__(self, input_size, output_size, dropout):
        super().__init__()
        self.linear = nn.Dense(input_size, output_size)
        self.act = nn.LeakyReLU(alpha=0.1)
        self.dropout = nn.Dropout(p=dropout)

    def construct(self, x):
        return self.dropout(self.act(self.linear(x)))


class Biaffine(nn.Cell):
    """Bilinear scores of all pairs (batch, out, left, right), optional bias columns on either side."""

    def __init__(self, size, out, bias_left, bias_right, exponent=0.0):
        super().__init__()
        self.bias_left = bias_left
        self.bias_right = bias_right
        self.divisor = float(size) ** exponent
        self.weight = zeros_parameter("weight", out, size + int(bias_left), size + int(bias_right))

    def construct(self, left, right):
        left = with_ones(left) if self.bias_left else left
        right = with_ones(right) if self.bias_right else right
        inner = ops.matmul(left.expand_dims(1), self.weight)
        return ops.matmul(inner, right.expand_dims(1).swapaxes(2, 3)) / self.divisor


class Trilinear(nn.Cell):
    """Low-rank scores (batch, dependent, head, sibling)."""

    def __init__(self, size, rank):
        super().__init__()
        self.w_dep = zeros_parameter("w_dep", size + 1, rank)
        self.w_head = zeros_parameter("w_head", size, rank)
        self.w_sib = zeros_parameter("w_sib", size + 1, rank)
        self.clip = nn.Hardtanh(min_val=-2.5, max_val=2.5)

    def construct(self, dep, head, sib):
        b, n, _ = dep.shape
        dep = ops.matmul(dep, self.w_dep[:-1]) + self.w_dep[-1]
        sib = ops.matmul(sib, self.w_sib[:-1]) + self.w_sib[-1]
        head = ops.matmul(head, self.w_head)
        pairs = (dep.expand_dims(2) * head.expand_dims(1)).reshape(b, n * n, -1)
        cube = ops.matmul(pairs, sib.swapaxes(1, 2)).reshape(b, n, n, n)
        cube = 0.5 * (cube + cube.swapaxes(1, 3))
        return self.clip(cube)


class DistanceBias(nn.Cell):
    """Score of the signed distance between dependent (rows) and head (columns)."""

    def __init__(self):
        super().__init__()
        self.starts = np.array(BUCKET_STARTS)
        self.table = nn.Embedding(2 * (len(BUCKET_STARTS) + 1), 1)

    def construct(self, n):
        dep, head = np.mgrid[:n, :n]
        bucket = (np.abs(head - dep)[..., None] >= self.starts).sum(-1)
        bucket = np.where(head > dep, bucket + len(self.starts) + 1, bucket)
        return self.table(Tensor(bucket, ms.int32)).reshape(n, n)


class MeanField(nn.Cell):
    """Mean-field updates of the arcs with sibling factors."""

    def __init__(self, iterations):
        super().__init__()
        self.iterations = iterations

    def construct(self, arc, sib, arc_allowed, sib_allowed):
        sib = ops.where(sib_allowed, sib, ops.zeros_like(sib))
        q = arc
        for _ in range(self.iterations):
            prob = masked_softmax(q, arc_allowed)
            # sum over the siblings of what they say, weighted with their belief in the same head
            message = (sib * prob.swapaxes(1, 2).expand_dims(1)).sum(axis=-1)
            q = arc + message
        return ops.masked_fill(q, ops.logical_not(arc_allowed), NEG), masked_softmax(q, arc_allowed)


class DependencyParser(nn.Cell):
    """Gives arc scores, marginals, heads and label scores at these heads."""

    def __init__(self, words=31, pretrained=53, tags=17, chars=29, rels=6, word_size=20, tag_size=13, char_size=12,
                 hidden=18, layers=2, arc_size=22, sib_size=15, rel_size=16, rank=19, rounds=4, dropout=0.33):
        super().__init__()
        self.words_known = words
        self.word_embed = nn.Embedding(words, word_size, padding_idx=PAD_ID)
        self.pretrained = nn.Embedding(pretrained, word_size, padding_idx=PAD_ID)
        self.tag_embed = nn.Embedding(tags, tag_size, padding_idx=PAD_ID)
        self.char_embed = CharBiLSTM(chars, 9, 7, char_size)
        token_size = word_size + char_size + tag_size
        self.embed_norm = nn.LayerNorm((token_size,), epsilon=1e-5)
        self.embed_dropout = nn.Dropout(p=dropout)
        self.encoder = HighwayBiLSTM(token_size, hidden, layers)
        self.encoder_dropout = nn.Dropout(p=dropout)

        self.mlp_arc_d = MLP(2 * hidden, arc_size, dropout)
        self.mlp_arc_h = MLP(2 * hidden, arc_size, dropout)
        self.mlp_sib_d = MLP(2 * hidden, sib_size, dropout)
        self.mlp_sib_h = MLP(2 * hidden, sib_size, dropout)
        self.mlp_sib_s = MLP(2 * hidden, sib_size, dropout)
        self.mlp_rel_d = MLP(2 * hidden, rel_size, dropout)
        self.mlp_rel_h = MLP(2 * hidden, rel_size, dropout)
        self.arc_attn = Biaffine(arc_size, 1, bias_left=True, bias_right=False)
        self.dist_bias = DistanceBias()
        self.sib_attn = Trilinear(sib_size, rank)
        self.rel_attn = Biaffine(rel_size, rels, bias_left=True, bias_right=True, exponent=0.5)
        self.mfvi = MeanField(rounds)

    def token_vectors(self, words, tags, chars):
        known = ops.where(words < self.words_known, words, ops.full_like(words, UNK_ID))
        word = self.word_embed(known) + self.pretrained(words)
        vectors = ops.cat((word, self.char_embed(chars), self.tag_embed(tags)), axis=2)
        return self.embed_dropout(self.embed_norm(vectors))

    @staticmethod
    def permitted(token):
        """Masks of dependents (b, d), arcs (b, d, h) and sibling triples (b, d, h, s)."""
        b, n = token.shape
        is_dep = ops.logical_and(token, ops.arange(n) > 0)
        other = Tensor(~np.eye(n, dtype=bool))
        arcs = is_dep.reshape(b, n, 1) & token.reshape(b, 1, n) & other
        # arcs of the sibling to the same head, laid out as (b, 1, h, s)
        sib_arcs = arcs.swapaxes(1, 2).expand_dims(1)
        triples = arcs.expand_dims(3) & sib_arcs & other.reshape(1, n, 1, n)
        return is_dep, arcs, triples

    def construct(self, words, tags, chars):
        token = words != PAD_ID
        is_dep, arcs, triples = self.permitted(token)
        b, n = words.shape

        x = self.encoder(self.token_vectors(words, tags, chars), token)
        x = self.encoder_dropout(x)
        arc_d, arc_h = self.mlp_arc_d(x), self.mlp_arc_h(x)
        arc = self.arc_attn(arc_d, arc_h).squeeze(1) + self.dist_bias(n)
        sib = self.sib_attn(self.mlp_sib_d(x), self.mlp_sib_h(x), self.mlp_sib_s(x))
        rel = self.rel_attn(self.mlp_rel_d(x), self.mlp_rel_h(x))

        logits, marginals = self.mfvi(arc, sib, arcs, triples)
        greedy = ops.where(is_dep, ops.argmax(logits, dim=-1).astype(ms.int32), ops.zeros((b, n), ms.int32))
        heads = tree_heads(logits, token.astype(ms.int32).sum(axis=1), greedy)

        # (b, labels, d, h) -> (b, d, h, labels), then one row for each dependent
        by_pair = rel.transpose(0, 2, 3, 1)
        picked = ops.broadcast_to(heads.reshape(b, n, 1, 1), (b, n, 1, by_pair.shape[-1]))
        label = ops.gather_elements(by_pair, 2, picked).squeeze(2)
        label = label * is_dep.expand_dims(-1).astype(label.dtype)
        return arc * arcs.astype(arc.dtype), marginals, heads, label


def build():
    """The net alone, for evaluation: weights and inputs come from the reference's dump."""
    net = DependencyParser()
    net.set_train(False)
    return net
