"""A text-to-SQL parser: relation-aware encoder of question and schema, grammar decoder with pointers, in PyTorch."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

# Kinds of relation for each pair of segments (q: question, c: columns, t: tables), in the order of the checkpoint.
QQ_MAX_DIST = 2
RELATION_GROUPS = (("qq", 2 * QQ_MAX_DIST + 1), ("qc", 3), ("qt", 3), ("cq", 3), ("cc", 5), ("ct", 4), ("tq", 3), ("tc", 4),
                   ("tt", 5))
CC_DEFAULT, CC_SELF, CC_FK_FORWARD, CC_FK_BACKWARD, CC_SAME_TABLE = range(5)
CT_DEFAULT, CT_PRIMARY, CT_BELONGS, CT_ANY = range(4)
TT_DEFAULT, TT_SELF, TT_FK_FORWARD, TT_FK_BACKWARD, TT_FK_BOTH = range(5)

NODES = ("stmt", "select", "agg", "from", "cond", "op", "order", "column", "table")
RULES = (
    "stmt -> select from", "stmt -> select from cond", "select -> agg", "select -> agg agg", "agg -> column",
    "agg -> count column", "agg -> max column", "from -> table", "from -> table table", "cond -> op column",
    "op -> eq", "op -> gt", "order -> column",
)
NEG = -1e9


class Config:
    vocab, word_dim, column_types = 61, 20, 5
    dim, heads, depth, ff_dim = 28, 4, 2, 40
    state_dim, attn_dim, rule_dim, node_dim, max_depth = 26, 18, 28, 16, 12


def relation_offsets():
    offsets, total = {}, 0
    for name, count in RELATION_GROUPS:
        offsets[name] = total
        total += count
    return offsets, total


def length_mask(lengths, size):
    return torch.arange(size, device=lengths.device) < lengths.unsqueeze(-1)


def column_column(column_table, foreign):
    """Relations of columns among themselves; the later assignment wins."""
    b, c = column_table.shape
    place = torch.arange(c)
    rel = torch.full((b, c, c), CC_DEFAULT, dtype=torch.long)
    same = (column_table[:, :, None] == column_table[:, None, :]) & (column_table[:, :, None] >= 0)
    rel[same] = CC_SAME_TABLE
    forward = foreign[:, :, None] == place[None, None, :]
    rel[forward.transpose(1, 2)] = CC_FK_BACKWARD
    rel[forward] = CC_FK_FORWARD
    rel[:, place, place] = CC_SELF
    return rel, forward


def column_table_relation(column_table, primary, num_tables):
    belongs = column_table[:, :, None] == torch.arange(num_tables)[None, None, :]
    rel = torch.full(belongs.shape, CT_DEFAULT, dtype=torch.long)
    rel[belongs] = CT_BELONGS
    rel[belongs & (primary[:, :, None] > 0)] = CT_PRIMARY
    rel[(column_table < 0)[:, :, None].expand_as(rel)] = CT_ANY
    return rel, belongs


def table_table(belongs, forward):
    own = belongs.float()
    links = own.transpose(1, 2) @ forward.float() @ own > 0
    back = links.transpose(1, 2)
    rel = torch.full(links.shape, TT_DEFAULT, dtype=torch.long)
    rel[links & ~back] = TT_FK_FORWARD
    rel[back & ~links] = TT_FK_BACKWARD
    rel[links & back] = TT_FK_BOTH
    place = torch.arange(links.shape[1])
    rel[:, place, place] = TT_SELF
    return rel


def build_relations(num_words, column_table, primary, foreign, q_col, q_tab):
    """(batch, length, length): the kind of relation that item i has to item j, over question, columns, tables."""
    offsets, _ = relation_offsets()
    b, num_tables = column_table.shape[0], q_tab.shape[2]
    word = torch.arange(num_words)
    dist = (word[None, :] - word[:, None]).clamp(-QQ_MAX_DIST, QQ_MAX_DIST) + QQ_MAX_DIST
    qq = dist.unsqueeze(0).expand(b, -1, -1)
    cc, forward = column_column(column_table, foreign)
    ct, belongs = column_table_relation(column_table, primary, num_tables)
    tt = table_table(belongs, forward)
    rows = [
        torch.cat([qq + offsets["qq"], q_col + offsets["qc"], q_tab + offsets["qt"]], dim=2),
        torch.cat([q_col.transpose(1, 2) + offsets["cq"], cc + offsets["cc"], ct + offsets["ct"]], dim=2),
        torch.cat([q_tab.transpose(1, 2) + offsets["tq"], ct.transpose(1, 2) + offsets["tc"], tt + offsets["tt"]], dim=2),
    ]
    return torch.cat(rows, dim=1)


class BiCellEncoder(nn.Module):
    """Two LSTM cells over padded sequences; a padded step leaves the state as it was."""

    def __init__(self, in_dim, hidden):
        super().__init__()
        self.hidden = hidden
        self.fwd = nn.LSTMCell(in_dim, hidden)
        self.bwd = nn.LSTMCell(in_dim, hidden)

    def run(self, cell, x, mask, order):
        h = c = x.new_zeros(x.shape[0], self.hidden)
        outs = [None] * x.shape[1]
        for t in order:
            new_h, new_c = cell(x[:, t], (h, c))
            keep = mask[:, t].unsqueeze(1)
            h = torch.where(keep, new_h, h)
            c = torch.where(keep, new_c, c)
            outs[t] = h * keep
        return torch.stack(outs, dim=1), h

    def forward(self, x, mask):
        length = x.shape[1]
        out_f, last_f = self.run(self.fwd, x, mask, range(length))
        out_b, last_b = self.run(self.bwd, x, mask, reversed(range(length)))
        return torch.cat([out_f, out_b], dim=-1), torch.cat([last_f, last_b], dim=-1)


class LocalMix(nn.Module):
    """Dilated grouped convolution over the question and a smoothed copy of it, as one residual branch."""

    def __init__(self, dim):
        super().__init__()
        self.conv = nn.Conv1d(dim, dim, 3, padding=2, dilation=2, groups=2)
        self.bn = nn.BatchNorm1d(dim)
        self.act = nn.LeakyReLU(0.1)
        self.pool = nn.AvgPool1d(3, stride=1, padding=1, count_include_pad=False)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x, mask):
        keep = mask.unsqueeze(-1).to(x.dtype)
        channels = (x * keep).transpose(1, 2)
        branch = self.act(self.bn(self.conv(channels))) + self.pool(channels)
        return (x + self.proj(branch.transpose(1, 2))) * keep


class RelationAttention(nn.Module):
    """Self-attention whose keys and values are shifted by the embedding of the pair's relation."""

    def __init__(self, dim, heads, num_relations):
        super().__init__()
        self.heads, self.head_dim = heads, dim // heads
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.out = nn.Linear(dim, dim)
        self.rel_k = nn.Embedding(num_relations, self.head_dim)
        self.rel_v = nn.Embedding(num_relations, self.head_dim)

    def split(self, x):
        return x.view(*x.shape[:2], self.heads, self.head_dim).transpose(1, 2)

    @staticmethod
    def relative_logits(query, key, rel_key):
        plain = torch.matmul(query, key.transpose(-2, -1))
        # (batch, length, heads, dim) x (batch, length, dim, length)
        shifted = torch.matmul(query.permute(0, 2, 1, 3), rel_key.transpose(-2, -1))
        return (plain + shifted.permute(0, 2, 1, 3)) / math.sqrt(query.shape[-1])

    @staticmethod
    def relative_values(weights, value, rel_value):
        plain = torch.matmul(weights, value)
        shifted = torch.matmul(weights.permute(0, 2, 1, 3), rel_value)
        return plain + shifted.permute(0, 2, 1, 3)

    def forward(self, x, relations, mask):
        b, n, _ = x.shape
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        logits = self.relative_logits(q, k, self.rel_k(relations))
        logits = logits.masked_fill(~mask[:, None, None, :], NEG)
        weights = F.softmax(logits, dim=-1)
        mixed = self.relative_values(weights, v, self.rel_v(relations))
        return self.out(mixed.transpose(1, 2).reshape(b, n, -1))


class RelationLayer(nn.Module):
    def __init__(self, cfg, num_relations):
        super().__init__()
        self.norm1 = nn.LayerNorm(cfg.dim)
        self.attn = RelationAttention(cfg.dim, cfg.heads, num_relations)
        self.norm2 = nn.LayerNorm(cfg.dim)
        self.ff = nn.Sequential(nn.Linear(cfg.dim, cfg.ff_dim), nn.GELU(), nn.Linear(cfg.ff_dim, cfg.dim))

    def forward(self, x, relations, mask):
        x = x + self.attn(self.norm1(x), relations, mask)
        return x + self.ff(self.norm2(x))


class Alignment(nn.Module):
    """For each item of the memory, a distribution over columns; knows the relation of item and column."""

    def __init__(self, dim, num_relations):
        super().__init__()
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.rel = nn.Embedding(num_relations, dim)

    def forward(self, memory, columns, relations, column_mask):
        q, k = self.query(memory), self.key(columns)
        keys = k.unsqueeze(1) + self.rel(relations)
        logits = (q.unsqueeze(2) * keys).sum(-1) / math.sqrt(q.shape[-1])
        return F.softmax(logits.masked_fill(~column_mask.unsqueeze(1), NEG), dim=-1)


class SchemaEncoder(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        _, num_relations = relation_offsets()
        self.word_embed = nn.Embedding(cfg.vocab, cfg.word_dim, padding_idx=0)
        self.embed_norm = nn.LayerNorm(cfg.word_dim)
        self.type_embed = nn.Embedding(cfg.column_types, cfg.dim)
        self.question_rnn = BiCellEncoder(cfg.word_dim, cfg.dim // 2)
        self.column_rnn = BiCellEncoder(cfg.word_dim, cfg.dim // 2)
        self.table_rnn = BiCellEncoder(cfg.word_dim, cfg.dim // 2)
        self.local = LocalMix(cfg.dim)
        self.layers = nn.ModuleList([RelationLayer(cfg, num_relations) for _ in range(cfg.depth)])
        self.norm = nn.LayerNorm(cfg.dim)
        self.align = Alignment(cfg.dim, num_relations)

    def pool_words(self, rnn, ids, lengths):
        """(batch, items, words) -> (batch, items, dim): last states of both directions, zero for padded items."""
        b, n, w = ids.shape
        words = self.embed_norm(self.word_embed(ids)).reshape(b * n, w, -1)
        mask = length_mask(lengths.reshape(-1), w)
        _, last = rnn(words, mask)
        return last.reshape(b, n, -1)

    def forward(self, question_ids, question_len, column_ids, column_len, column_type, column_table, primary,
                foreign, table_ids, table_len, q_col, q_tab):
        lq, nc, nt = question_ids.shape[1], column_ids.shape[1], table_ids.shape[1]
        question_mask = length_mask(question_len, lq)
        column_mask, table_mask = column_len > 0, table_len > 0

        question, _ = self.question_rnn(self.embed_norm(self.word_embed(question_ids)), question_mask)
        question = self.local(question, question_mask)
        columns = self.pool_words(self.column_rnn, column_ids, column_len) + self.type_embed(column_type)
        tables = self.pool_words(self.table_rnn, table_ids, table_len)

        x = torch.cat([question, columns, tables], dim=1)
        mask = torch.cat([question_mask, column_mask, table_mask], dim=1)
        relations = build_relations(lq, column_table, primary, foreign, q_col, q_tab)
        for layer in self.layers:
            x = layer(x, relations, mask)
        memory = self.norm(x) * mask.unsqueeze(-1).to(x.dtype)
        _, columns, tables = memory.split([lq, nc, nt], dim=1)
        align = self.align(memory, columns, relations[:, :, lq:lq + nc], column_mask)
        return memory, mask, columns, tables, table_mask, align


class AdditiveAttention(nn.Module):
    def __init__(self, memory_dim, state_dim, attn_dim):
        super().__init__()
        self.memory = nn.Linear(memory_dim, attn_dim)
        self.state = nn.Linear(state_dim, attn_dim, bias=False)
        self.score = nn.Linear(attn_dim, 1, bias=False)

    def forward(self, state, memory, mask):
        hidden = torch.tanh(self.memory(memory) + self.state(state).unsqueeze(1))
        logits = self.score(hidden).squeeze(-1).masked_fill(~mask, NEG)
        weights = F.softmax(logits, dim=-1)
        return torch.bmm(weights.unsqueeze(1), memory).squeeze(1)


class Pointer(nn.Module):
    """Logits of a state over items, as a scaled product."""

    def __init__(self, state_dim, item_dim, attn_dim):
        super().__init__()
        self.query = nn.Linear(state_dim, attn_dim)
        self.key = nn.Linear(item_dim, attn_dim)

    def forward(self, state, items):
        query = self.query(state)
        return torch.bmm(self.key(items), query.unsqueeze(-1)).squeeze(-1) / math.sqrt(query.shape[-1])


def sinusoids(length, dim):
    position = torch.arange(length, dtype=torch.float32).unsqueeze(1)
    rate = torch.exp(torch.arange(0, dim, 2, dtype=torch.float32) * (-math.log(10000.0) / dim))
    table = torch.zeros(length, dim)
    table[:, 0::2] = torch.sin(position * rate)
    table[:, 1::2] = torch.cos(position * rate)
    return table


def tree_depths(parent):
    """Depth of each step's node in the tree of derivation; a step without a parent (-1) has depth 0."""
    depth = torch.zeros_like(parent)
    for t in range(1, parent.shape[1]):
        above = depth.gather(1, parent[:, t:t + 1].clamp(min=0)).squeeze(1) + 1
        depth[:, t] = torch.where(parent[:, t] >= 0, above, torch.zeros_like(above))
    return depth


class GrammarDecoder(nn.Module):
    """LSTM over the steps of the derivation (teacher forced), with rules, a column pointer and a table pointer."""

    def __init__(self, cfg):
        super().__init__()
        self.rule_embed = nn.Embedding(len(RULES), cfg.rule_dim)
        self.node_embed = nn.Embedding(len(NODES), cfg.node_dim)
        self.start = nn.Parameter(torch.zeros(cfg.rule_dim))
        self.init_h = nn.Linear(cfg.dim, cfg.state_dim)
        self.init_c = nn.Linear(cfg.dim, cfg.state_dim)
        self.cell = nn.LSTMCell(cfg.rule_dim + cfg.dim + cfg.state_dim + cfg.node_dim, cfg.state_dim)
        self.attend = AdditiveAttention(cfg.dim, cfg.state_dim, cfg.attn_dim)
        self.fuse = nn.Linear(cfg.state_dim + cfg.dim, cfg.state_dim)
        self.rule_out = nn.Linear(cfg.state_dim, len(RULES))
        self.column_pointer = Pointer(cfg.state_dim, cfg.dim, cfg.attn_dim)
        self.table_pointer = Pointer(cfg.state_dim, cfg.dim, cfg.attn_dim)
        self.cover = nn.Parameter(torch.ones(1))
        legal = torch.zeros(len(NODES), len(RULES), dtype=torch.bool)
        for r, rule in enumerate(RULES):
            legal[NODES.index(rule.split(" -> ")[0]), r] = True
        self.register_buffer("legal", legal, persistent=False)
        self.register_buffer("depth_table", sinusoids(cfg.max_depth, cfg.node_dim), persistent=False)

    def embed_action(self, node, action, columns, tables):
        """The embedding of what was done at a step: a rule's row, or the encoding of what was pointed at."""
        row = torch.arange(node.shape[0])
        is_column, is_table = node == NODES.index("column"), node == NODES.index("table")
        rule = self.rule_embed(action.masked_fill(is_column | is_table, 0))
        column = columns[row, action.masked_fill(~is_column, 0)]
        table = tables[row, action.masked_fill(~is_table, 0)]
        out = torch.where(is_column.unsqueeze(1), column, rule)
        return torch.where(is_table.unsqueeze(1), table, out)

    def forward(self, memory, mask, columns, tables, table_mask, align, node, action, parent, action_len):
        b, steps = node.shape
        row = torch.arange(b)
        weight = mask.unsqueeze(-1).to(memory.dtype)
        mean = (memory * weight).sum(1) / weight.sum(1)
        h, c = torch.tanh(self.init_h(mean)), self.init_c(mean)
        context = self.attend(h, memory, mask)
        covered = torch.zeros_like(tables[:, :, 0])
        active = length_mask(action_len, steps)
        depth = tree_depths(parent)
        places = self.node_embed(node) + self.depth_table[depth]

        states, rule_probs, column_probs, table_probs = [], [], [], []
        for t in range(steps):
            if t == 0:
                previous = self.start.unsqueeze(0).expand(b, -1)
                from_parent = torch.zeros_like(h)
            else:
                previous = self.embed_action(node[:, t - 1], action[:, t - 1], columns, tables)
                history = torch.stack(states, dim=1)
                from_parent = history[row, parent[:, t].clamp(min=0)]
                from_parent = from_parent * (parent[:, t] >= 0).unsqueeze(1)
            new_h, new_c = self.cell(torch.cat([previous, context, from_parent, places[:, t]], dim=-1), (h, c))
            live = active[:, t].unsqueeze(1)
            h, c = torch.where(live, new_h, h), torch.where(live, new_c, c)
            states.append(h)
            context = self.attend(h, memory, mask)
            fused = torch.tanh(self.fuse(torch.cat([h, context], dim=-1)))

            legal = self.legal[node[:, t]]
            rules = F.softmax(self.rule_out(fused).masked_fill(~legal, NEG), dim=-1)
            rule_probs.append(rules * legal * live)

            over_memory = F.softmax(self.column_pointer(h, memory).masked_fill(~mask, NEG), dim=-1)
            column_probs.append(torch.bmm(over_memory.unsqueeze(1), align).squeeze(1) * live)

            logits = self.table_pointer(fused, tables) - self.cover * covered
            over_tables = F.softmax(logits.masked_fill(~table_mask, NEG), dim=-1)
            chose_table = (node[:, t] == NODES.index("table")).unsqueeze(1) & live
            covered = covered + over_tables * chose_table
            table_probs.append(over_tables * live)
        return torch.stack(rule_probs, 1), torch.stack(column_probs, 1), torch.stack(table_probs, 1), active


class SchemaParser(nn.Module):
    """Question, schema and a derivation to the probabilities of its steps and its mean log-likelihood."""

    def __init__(self, cfg):
        super().__init__()
        self.encoder = SchemaEncoder(cfg)
        self.decoder = GrammarDecoder(cfg)

    def forward(self, question_ids, question_len, column_ids, column_len, column_type, column_table, primary,
                foreign, table_ids, table_len, q_col, q_tab, node, action, parent, action_len):
        encoded = self.encoder(question_ids, question_len, column_ids, column_len, column_type, column_table, primary,
                               foreign, table_ids, table_len, q_col, q_tab)
        rules, columns, tables, active = self.decoder(*encoded, node, action, parent, action_len)
        # one axis of actions: rules, then columns, then tables
        everything = torch.cat([rules, columns, tables], dim=-1)
        shift = torch.zeros_like(action)
        shift[node == NODES.index("column")] = rules.shape[-1]
        shift[node == NODES.index("table")] = rules.shape[-1] + columns.shape[-1]
        chosen = everything.gather(2, (action + shift).unsqueeze(-1)).squeeze(-1)
        score = torch.log(chosen.clamp(min=1e-8)) * active
        return encoded[0], rules, columns, tables, score.sum(1) / action_len


def trained_like(net):
    """Weights and running statistics such as training leaves them."""
    with torch.no_grad():
        for name, module in net.named_modules():
            if isinstance(module, (nn.Linear, nn.Conv1d)):
                module.weight.normal_(0.0, 1.3 / math.sqrt(module.weight[0].numel()))
                if module.bias is not None:
                    module.bias.normal_(0.0, 0.2)
            elif isinstance(module, nn.LSTMCell):
                for p in module.parameters():
                    p.normal_(0.0, 0.35)
            elif isinstance(module, nn.Embedding):
                module.weight.normal_(0.0, 0.02 if name.endswith("word_embed") else 0.8)
            elif isinstance(module, (nn.LayerNorm, nn.BatchNorm1d)):
                module.weight.uniform_(0.7, 1.4)
                module.bias.normal_(0.0, 0.2)
                if isinstance(module, nn.BatchNorm1d):
                    module.running_mean.normal_(0.0, 0.3)
                    module.running_var.uniform_(0.2, 0.9)
        net.encoder.word_embed.weight[0].zero_()
        net.decoder.start.normal_(0.0, 0.8)
        net.decoder.cover.fill_(2.5)
    return net


def build():
    """The net with the same weights on every run, and three questions on three schemas."""
    torch.manual_seed(1911)
    net = trained_like(SchemaParser(Config()))
    question_len = torch.tensor([11, 6, 8])
    question_ids = torch.randint(1, 61, (3, 11)) * length_mask(question_len, 11)
    column_len = torch.tensor([[1, 2, 5, 1, 3, 2, 4, 2], [1, 3, 2, 2, 1, 0, 0, 0], [1, 2, 4, 3, 5, 1, 0, 0]])
    column_ids = torch.randint(1, 61, (3, 8, 5)) * length_mask(column_len, 5)
    column_type = torch.tensor([[0, 2, 1, 1, 2, 3, 2, 4], [0, 2, 1, 3, 2, 0, 0, 0], [0, 2, 4, 1, 2, 1, 0, 0]])
    column_table = torch.tensor([[-1, 0, 0, 1, 1, 2, 3, 3], [-1, 0, 0, 1, 1, -1, -1, -1], [-1, 0, 1, 1, 2, 2, -1, -1]])
    primary = torch.tensor([[0, 1, 0, 1, 0, 1, 1, 0], [0, 1, 0, 1, 0, 0, 0, 0], [0, 1, 1, 0, 1, 0, 0, 0]])
    foreign = torch.tensor([[-1, -1, 3, -1, 1, 1, -1, 5], [-1, -1, -1, -1, 1, -1, -1, -1], [-1, -1, -1, 1, -1, 2, -1, -1]])
    table_len = torch.tensor([[1, 2, 2, 1, 0, 0], [2, 1, 0, 0, 0, 0], [1, 1, 2, 0, 0, 0]])
    table_ids = torch.randint(1, 61, (3, 6, 2)) * length_mask(table_len, 2)
    q_col = torch.randint(-3, 3, (3, 11, 8)).clamp(min=0) * length_mask(question_len, 11)[:, :, None] * (column_len > 0)[:, None]
    q_tab = torch.randint(-3, 3, (3, 11, 6)).clamp(min=0) * length_mask(question_len, 11)[:, :, None] * (table_len > 0)[:, None]
    node = torch.tensor([[0, 1, 2, 7, 2, 7, 3, 8, 8, 4], [0, 1, 2, 7, 3, 8, 0, 0, 0, 0], [0, 1, 2, 7, 3, 8, 8, 4, 0, 0]])
    action = torch.tensor([[1, 3, 5, 6, 4, 2, 8, 3, 1, 9], [0, 2, 6, 4, 7, 1, 0, 0, 0, 0], [1, 2, 4, 5, 8, 2, 0, 9, 0, 0]])
    parent = torch.tensor([[-1, 0, 1, 2, 1, 4, 0, 6, 6, 0], [-1, 0, 1, 2, 0, 4, 0, 0, 0, 0], [-1, 0, 1, 2, 0, 4, 4, 0, 0, 0]])
    action_len = torch.tensor([10, 6, 8])
    return net.eval(), (question_ids, question_len, column_ids, column_len, column_type, column_table, primary, foreign,
                        table_ids, table_len, q_col, q_tab, node, action, parent, action_len)
