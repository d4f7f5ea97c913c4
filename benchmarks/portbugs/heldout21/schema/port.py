"""MindSpore port of the relation-aware text-to-SQL parser."""

from __future__ import annotations

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

MAX_DIST = 2
# sizes of the groups of relations, in the order of the checkpoint's tables
GROUPS = [("qq", 5), ("qc", 3), ("qt", 3), ("cq", 3), ("cc", 5), ("ct", 4), ("tq", 3), ("tc", 4), ("tt", 5)]
NUM_RELATIONS = sum(size for _, size in GROUPS)

NODE_TYPES = ["stmt", "select", "agg", "from", "cond", "op", "order", "column", "table"]
COLUMN_NODE, TABLE_NODE = 7, 8
RULE_HEADS = [0, 0, 1, 1, 2, 2, 2, 3, 3, 4, 5, 5, 6]
NEG = -1e9


def group_starts():
    starts = np.cumsum([0] + [size for _, size in GROUPS])
    return {name: int(start) for (name, _), start in zip(GROUPS, starts)}


def valid_positions(lengths, size):
    """(...,) -> (..., size)"""
    return ops.arange(size) < lengths.expand_dims(-1)


def choose(condition, value, otherwise):
    """An integer code where the condition holds."""
    return ops.where(condition, ops.full_like(otherwise, value), otherwise)


def schema_relations(column_table, primary, foreign, num_tables):
    """Codes among columns, between columns and tables, and among tables, without offsets."""
    nc = column_table.shape[1]
    of_row, of_col = column_table.expand_dims(2), column_table.expand_dims(1)
    starred = of_row < 0
    points_to = foreign.expand_dims(2) == ops.arange(nc)
    zeros = ops.zeros(points_to.shape, ms.int64)

    cc = choose(ops.logical_and(of_row == of_col, ops.logical_not(starred)), 4, zeros)
    cc = choose(points_to.swapaxes(1, 2), 3, cc)
    cc = choose(points_to, 2, cc)
    cc = choose(ops.eye(nc, nc, ms.bool_).expand_dims(0), 1, cc)

    inside = of_row == ops.arange(num_tables)
    key = ops.logical_and(inside, primary.expand_dims(2) > 0)
    ct = inside.astype(ms.int64) * 2 - key.astype(ms.int64)
    ct = choose(starred, 3, ct)

    own = inside.astype(ms.float32)
    linked = ops.matmul(ops.matmul(own.swapaxes(1, 2), points_to.astype(ms.float32)), own) > 0.5
    # 0 nothing, 2 there, 3 back, 4 both
    there, back = linked.astype(ms.int64), linked.swapaxes(1, 2).astype(ms.int64)
    tt = 2 * there + 3 * back - there * back
    tt = choose(ops.eye(num_tables, num_tables, ms.bool_).expand_dims(0), 1, tt)
    return cc, ct, tt


def relation_codes(num_words, column_table, primary, foreign, q_col, q_tab):
    start = group_starts()
    cc, ct, tt = schema_relations(column_table, primary, foreign, q_tab.shape[2])
    place = np.arange(num_words)
    steps = np.clip(place[None, :] - place[:, None], -MAX_DIST, MAX_DIST) + MAX_DIST
    qq = ops.tile(Tensor(steps, ms.int64).expand_dims(0), (q_col.shape[0], 1, 1))
    top = ops.cat((qq + start["qq"], q_col + start["qc"], q_tab + start["qt"]), axis=2)
    middle = ops.cat((q_col.swapaxes(1, 2) + start["cq"], cc + start["cc"], ct + start["ct"]), axis=2)
    bottom = ops.cat((q_tab.swapaxes(1, 2) + start["tq"], ct.swapaxes(1, 2) + start["tc"], tt + start["tt"]), axis=2)
    return ops.cat((top, middle, bottom), axis=1)


class BiCellEncoder(nn.Cell):
    """Both directions of a recurrent layer over right-padded sequences."""

    def __init__(self, in_dim, hidden):
        super().__init__()
        self.hidden = hidden
        self.fwd, self.bwd = nn.LSTMCell(in_dim, hidden), nn.LSTMCell(in_dim, hidden)

    def construct(self, x, mask):
        batch, length = x.shape[:2]
        keep = mask.astype(x.dtype).expand_dims(-1)
        outputs, finals = [], []
        for cell, backward in ((self.fwd, False), (self.bwd, True)):
            h = c = ops.zeros((batch, self.hidden), x.dtype)
            seen = []
            for i in range(length):
                t = length - 1 - i if backward else i
                h_t, c_t = cell(x[:, t], (h, c))
                m = keep[:, t]
                h = m * h_t + (1 - m) * h
                c = m * c_t + (1 - m) * c
                seen.append(h * m)
            outputs.append(ops.stack(seen[::-1] if backward else seen, axis=1))
            finals.append(h)
        states, summary = ops.cat(outputs, axis=-1), ops.cat(finals, axis=-1)
        return states, summary


class LocalMix(nn.Cell):
    def __init__(self, dim):
        super().__init__()
        self.conv = nn.Conv1d(dim, dim, 3, pad_mode="pad", padding=2, dilation=2, group=2, has_bias=True)
        self.bn = nn.BatchNorm1d(dim, eps=1e-5)
        self.act = nn.LeakyReLU(alpha=0.1)
        self.pool = nn.AvgPool1d(3, stride=1, pad_mode="pad", padding=1, count_include_pad=False)
        self.proj = nn.Dense(dim, dim)

    def construct(self, x, mask):
        x = ops.masked_fill(x, ops.logical_not(mask).expand_dims(-1), 0.0)
        signal = x.transpose(0, 2, 1)
        convolved = self.conv(signal)
        # the norm takes (rows, channels)
        b, d, n = convolved.shape
        normed = self.bn(convolved.transpose(0, 2, 1).reshape(b * n, d)).reshape(b, n, d)
        smooth = self.pool(signal).transpose(0, 2, 1)
        x = x + self.proj(self.act(normed) + smooth)
        return ops.masked_fill(x, ops.logical_not(mask).expand_dims(-1), 0.0)


class RelationAttention(nn.Cell):
    def __init__(self, dim, heads, num_relations):
        super().__init__()
        self.heads, self.head_dim = heads, dim // heads
        self.scale = self.head_dim ** -0.5
        self.query, self.key, self.value, self.out = (nn.Dense(dim, dim) for _ in range(4))
        self.rel_k = nn.Embedding(num_relations, self.head_dim)
        self.rel_v = nn.Embedding(num_relations, self.head_dim)

    def construct(self, x, relations, blocked):
        b, n, d = x.shape
        by_head = (b, n, self.heads, self.head_dim)
        q = self.query(x).reshape(by_head).transpose(0, 2, 1, 3) * self.scale
        k = self.key(x).reshape(by_head).transpose(0, 2, 3, 1)
        v = self.value(x).reshape(by_head).transpose(0, 2, 1, 3)
        rel_k, rel_v = self.rel_k(relations), self.rel_v(relations)

        # queries against the relations: (b, h, i, 1, d) * (b, 1, i, j, d)
        scores = ops.matmul(q, k) + (q.expand_dims(3) * rel_k.expand_dims(1)).sum(-1)
        attn = ops.softmax(ops.masked_fill(scores, blocked, NEG), axis=-1)
        mixed = ops.matmul(attn, v) + (attn.expand_dims(-1) * rel_v.expand_dims(1)).sum(3)
        return self.out(mixed.swapaxes(1, 2).reshape(b, n, d))


class RelationLayer(nn.Cell):
    def __init__(self, dim, heads, hidden, num_relations):
        super().__init__()
        self.norm1 = nn.LayerNorm((dim,), epsilon=1e-5)
        self.attn = RelationAttention(dim, heads, num_relations)
        self.norm2 = nn.LayerNorm((dim,), epsilon=1e-5)
        self.ff = nn.SequentialCell(nn.Dense(dim, hidden), nn.GELU(approximate=False), nn.Dense(hidden, dim))

    def construct(self, x, relations, blocked):
        x = x + self.attn(self.norm1(x), relations, blocked)
        return x + self.ff(self.norm2(x))


class Alignment(nn.Cell):
    """Distribution over the columns for every item of the memory."""

    def __init__(self, dim, num_relations):
        super().__init__()
        self.scale = dim ** -0.5
        self.query, self.key = nn.Dense(dim, dim), nn.Dense(dim, dim)
        self.rel = nn.Embedding(num_relations, dim)

    def construct(self, memory, columns, relations, column_mask):
        q = self.query(memory)
        by_content = ops.matmul(q, self.key(columns).swapaxes(1, 2))
        by_relation = ops.matmul(self.rel(relations), q.expand_dims(-1)).squeeze(-1)
        scores = (by_content + by_relation) * self.scale
        scores = ops.masked_fill(scores, ops.logical_not(column_mask).expand_dims(1), NEG)
        return ops.softmax(scores, axis=-1)


class SchemaEncoder(nn.Cell):
    def __init__(self, vocab, word_dim, column_types, dim, heads, depth, ff_dim):
        super().__init__()
        self.word_embed = nn.Embedding(vocab, word_dim, padding_idx=0)
        self.embed_norm = nn.LayerNorm((word_dim,), epsilon=1e-5)
        self.type_embed = nn.Embedding(column_types, dim)
        self.question_rnn, self.column_rnn, self.table_rnn = (BiCellEncoder(word_dim, dim // 2) for _ in range(3))
        self.local = LocalMix(dim)
        self.layers = nn.CellList([RelationLayer(dim, heads, ff_dim, NUM_RELATIONS) for _ in range(depth)])
        self.norm = nn.LayerNorm((dim,), epsilon=1e-5)
        self.align = Alignment(dim, NUM_RELATIONS)

    def embed(self, ids):
        return self.embed_norm(self.word_embed(ids))

    def summarize(self, rnn, ids, lengths):
        b, items, words = ids.shape
        flat = self.embed(ids.reshape(b * items, words))
        _, summary = rnn(flat, valid_positions(lengths.reshape(b * items), words))
        return summary.reshape(b, items, -1)

    def construct(self, question_ids, question_len, column_ids, column_len, column_type, column_table, primary,
                  foreign, table_ids, table_len, q_col, q_tab):
        n_words, n_cols = question_ids.shape[1], column_ids.shape[1]
        word_mask = valid_positions(question_len, n_words)
        column_mask, table_mask = column_len > 0, table_len > 0
        mask = ops.cat((word_mask, column_mask, table_mask), axis=1)

        words, _ = self.question_rnn(self.embed(question_ids), word_mask)
        words = self.local(words, word_mask)
        cols = self.summarize(self.column_rnn, column_ids, column_len) + self.type_embed(column_type)
        tabs = self.summarize(self.table_rnn, table_ids, table_len)
        x = ops.cat((words, cols, tabs), axis=1)

        relations = relation_codes(n_words, column_table, primary, foreign, q_col, q_tab)
        blocked = ops.logical_not(mask).expand_dims(1).expand_dims(1)
        for layer in self.layers:
            x = layer(x, relations, blocked)
        memory = self.norm(x) * mask.expand_dims(-1).astype(x.dtype)
        cols = memory[:, n_words:n_words + n_cols]
        tabs = memory[:, n_words + n_cols:]
        to_columns = relations[:, :, n_words:n_words + n_cols]
        align = self.align(memory, cols, to_columns, column_mask)
        return memory, mask, cols, tabs, table_mask, align


def weighted_rows(weights, rows):
    """(batch, n), (batch, n, d) -> (batch, d)"""
    return ops.bmm(weights.expand_dims(1), rows).squeeze(1)


def masked_softmax(scores, mask):
    return ops.softmax(ops.masked_fill(scores, ops.logical_not(mask), NEG), axis=-1)


class AdditiveAttention(nn.Cell):
    def __init__(self, memory_dim, state_dim, attn_dim):
        super().__init__()
        self.memory = nn.Dense(memory_dim, attn_dim)
        self.state = nn.Dense(state_dim, attn_dim, has_bias=False)
        self.score = nn.Dense(attn_dim, 1, has_bias=False)

    def construct(self, state, memory, mask):
        mixed = self.memory(memory) + self.state(state).expand_dims(1)
        scores = self.score(ops.tanh(mixed)).squeeze(-1)
        return weighted_rows(masked_softmax(scores, mask), memory)


class Pointer(nn.Cell):
    def __init__(self, state_dim, item_dim, attn_dim):
        super().__init__()
        self.query = nn.Dense(state_dim, attn_dim)
        self.key = nn.Dense(item_dim, attn_dim)
        self.scale = attn_dim ** -0.5

    def construct(self, state, items):
        q = self.query(state) * self.scale
        return (self.key(items) * q.expand_dims(1)).sum(-1)


def depth_sinusoids(length, dim):
    angles = np.arange(length)[:, None] / 10000.0 ** (np.arange(0, dim, 2)[None, :] / dim)
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(length, dim).astype(np.float32)


def tree_depths(parent):
    """Depth in the derivation's tree for every step; roots (-1) are at 0."""
    above = [ops.zeros_like(parent[:, 0])]
    for t in range(1, parent.shape[1]):
        known = ops.stack(above, axis=1)
        at_parent = ops.gather_elements(known, 1, ops.clamp(parent[:, t:t + 1], min=0)).squeeze(1)
        above.append(ops.where(parent[:, t] >= 0, at_parent + 1, ops.zeros_like(at_parent)))
    return ops.stack(above, axis=1)


def pick(rows, index):
    """(batch, n, d), (batch,) -> the row of each example."""
    where = index.reshape(-1, 1, 1).broadcast_to((rows.shape[0], 1, rows.shape[2]))
    return ops.gather_elements(rows, 1, where).squeeze(1)


class GrammarDecoder(nn.Cell):
    def __init__(self, dim, state_dim, attn_dim, rule_dim, node_dim, max_depth):
        super().__init__()
        self.rule_embed = nn.Embedding(len(RULE_HEADS), rule_dim)
        self.node_embed = nn.Embedding(len(NODE_TYPES), node_dim)
        self.start = Parameter(Tensor(np.zeros(rule_dim, np.float32)), name="start")
        self.init_h, self.init_c = nn.Dense(dim, state_dim), nn.Dense(dim, state_dim)
        self.cell = nn.LSTMCell(rule_dim + dim + state_dim + node_dim, state_dim)
        self.attend = AdditiveAttention(dim, state_dim, attn_dim)
        self.fuse = nn.Dense(state_dim + dim, state_dim)
        self.rule_out = nn.Dense(state_dim, len(RULE_HEADS))
        self.column_pointer = Pointer(state_dim, dim, attn_dim)
        self.table_pointer = Pointer(state_dim, dim, attn_dim)
        self.cover = Parameter(Tensor(np.ones(1, np.float32)), name="cover")
        self.legal = Tensor(np.arange(len(NODE_TYPES))[:, None] == np.array(RULE_HEADS)[None, :])
        self.depth_table = Tensor(depth_sinusoids(max_depth, node_dim))

    def last_action(self, node, action, cols, tabs):
        on_column, on_table, nothing = node == COLUMN_NODE, node == TABLE_NODE, ops.zeros_like(action)
        rule = self.rule_embed(ops.where(ops.logical_or(on_column, on_table), nothing, action))
        col = pick(cols, ops.where(on_column, action, nothing))
        tab = pick(tabs, ops.where(on_table, action, nothing))
        return ops.where(on_table.expand_dims(1), tab, ops.where(on_column.expand_dims(1), col, rule))

    def construct(self, memory, mask, cols, tabs, table_mask, align, node, action, parent, action_len):
        b, steps = node.shape
        present = mask.astype(memory.dtype)
        pooled = weighted_rows(present / present.sum(axis=1, keepdims=True), memory)
        h, c = ops.tanh(self.init_h(pooled)), self.init_c(pooled)
        context = self.attend(h, memory, mask)
        live = valid_positions(action_len, steps)
        frontier = self.node_embed(node) + self.depth_table[tree_depths(parent)]
        # the first row stands for "no parent"
        history = [ops.zeros_like(h)]
        covered = ops.zeros(table_mask.shape, memory.dtype)
        last = ops.broadcast_to(self.start.expand_dims(0), (b, self.start.shape[0]))

        rule_probs, column_probs, table_probs = [], [], []
        for t in range(steps):
            on, on_f = live[:, t:t + 1], live[:, t:t + 1].astype(memory.dtype)
            parent_state = pick(ops.stack(history, axis=1), parent[:, t] + 1)
            inputs = ops.cat((last, context, parent_state, frontier[:, t]), axis=1)
            h_t, c_t = self.cell(inputs, (h, c))
            h, c = ops.where(on, h_t, h), ops.where(on, c_t, c)
            history.append(h)
            context = self.attend(h, memory, mask)
            fused = ops.tanh(self.fuse(ops.cat((h, context), axis=1)))

            allowed = self.legal[node[:, t]]
            rules = masked_softmax(self.rule_out(fused), allowed)
            rule_probs.append(rules * allowed.astype(rules.dtype) * on_f)

            spread = masked_softmax(self.column_pointer(h, memory), mask)
            column_probs.append(weighted_rows(spread, align) * on_f)

            to_tables = masked_softmax(self.table_pointer(fused, tabs) - covered * self.cover, table_mask)
            table_probs.append(to_tables * on_f)
            took_table = (node[:, t:t + 1] == TABLE_NODE).astype(on_f.dtype) * on_f
            covered = covered + to_tables * took_table
            last = self.last_action(node[:, t], action[:, t], cols, tabs)
        return ops.stack(rule_probs, axis=1), ops.stack(column_probs, axis=1), ops.stack(table_probs, axis=1), live


class SchemaParser(nn.Cell):
    def __init__(self):
        super().__init__()
        self.encoder = SchemaEncoder(vocab=61, word_dim=20, column_types=5, dim=28, heads=4, depth=2, ff_dim=40)
        self.decoder = GrammarDecoder(dim=28, state_dim=26, attn_dim=18, rule_dim=28, node_dim=16, max_depth=12)

    def construct(self, question_ids, question_len, column_ids, column_len, column_type, column_table, primary,
                  foreign, table_ids, table_len, q_col, q_tab, node, action, parent, action_len):
        memory, mask, cols, tabs, table_mask, align = self.encoder(
            question_ids, question_len, column_ids, column_len, column_type, column_table, primary, foreign,
            table_ids, table_len, q_col, q_tab)
        rules, to_cols, to_tabs, live = self.decoder(
            memory, mask, cols, tabs, table_mask, align, node, action, parent, action_len)

        n_rules, n_cols = rules.shape[2], to_cols.shape[2]
        index = action + n_rules * (node == COLUMN_NODE).astype(action.dtype)
        index = index + (n_rules + n_cols) * (node == TABLE_NODE).astype(action.dtype)
        joined = ops.cat((rules, to_cols, to_tabs), axis=2)
        taken = ops.gather_elements(joined, 2, index.expand_dims(2)).squeeze(2)
        score = ops.log(ops.clamp(taken, min=1e-8)) * live.astype(taken.dtype)
        return memory, rules, to_cols, to_tabs, score.sum(axis=1) / action_len.astype(taken.dtype)


def build():
    """The net alone; weights and inputs are the reference's."""
    net = SchemaParser()
    net.set_train(False)
    return net
