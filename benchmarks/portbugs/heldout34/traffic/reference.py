"""A recommender for anonymous sessions in PyTorch: a gated session graph (SR-GNN) beside a cloze transformer."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

# Upper edges of the buckets of time gaps, in seconds: from half a minute to a week.
GAP_EDGES = (30, 60, 180, 300, 600, 1800, 3600, 10800, 43200, 86400, 604800)


class Config:
    """The small model; item ids run from 1 to num_items by popularity, 0 is padding, num_items + 1 the mask token."""

    num_items = 64
    hidden_size = 32
    max_len = 12
    gnn_steps = 2
    num_blocks = 2
    num_heads = 4
    ffn_ratio = 4
    dropout = 0.2
    context_size = 16
    sigma = 12.0
    num_sampled = 20
    label_smoothing = 0.1
    cloze_weight = 0.3
    top_k = (3, 10, 20)


def build_session_graphs(sequences):
    """Padded sequences (batch, length) to nodes (batch, n), adjacency (batch, n, 2n) and aliases (batch, length).

    An edge counts how often the step was taken; the left half of the adjacency has the incoming edges, normalised by
    what each node receives, the right half the outgoing ones, normalised by what each node emits.
    """
    max_n_node = max(len(np.unique(sequence)) for sequence in sequences)
    nodes, adjacency, aliases = [], [], []
    for u_input in sequences:
        node = np.unique(u_input)
        nodes.append(node.tolist() + (max_n_node - len(node)) * [0])
        u_A = np.zeros((max_n_node, max_n_node), dtype=np.float32)
        for i in np.arange(len(u_input) - 1):
            if u_input[i + 1] == 0:
                break
            u = np.where(node == u_input[i])[0][0]
            v = np.where(node == u_input[i + 1])[0][0]
            u_A[u][v] += 1
        u_sum_in = np.sum(u_A, 0)
        u_sum_in[np.where(u_sum_in == 0)] = 1
        u_A_in = np.divide(u_A, u_sum_in)
        u_sum_out = np.sum(u_A, 1)
        u_sum_out[np.where(u_sum_out == 0)] = 1
        u_A_out = np.divide(u_A.transpose(), u_sum_out)
        adjacency.append(np.concatenate([u_A_in, u_A_out]).transpose())
        aliases.append([np.where(node == i)[0][0] for i in u_input])
    return np.array(nodes), np.array(adjacency), np.array(aliases)


def time_gaps(times, valid):
    """Seconds since the click before; 0 for the first click and for padding."""
    gaps = F.pad(times[:, 1:] - times[:, :-1], (1, 0))
    return gaps * valid


class LayerNorm(nn.Module):
    """Layer norm as in the annotated transformer."""
    def __init__(self, features, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))
        self.eps = eps

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        std = x.std(-1, keepdim=True)
        return self.weight * (x - mean) / (std + self.eps) + self.bias


class GapEmbedding(nn.Module):
    """An embedding of time gaps by bucket; a gap that equals an edge is in the bucket below it."""
    def __init__(self, dim):
        super().__init__()
        self.register_buffer("edges", torch.tensor(GAP_EDGES), persistent=False)
        self.table = nn.Embedding(len(GAP_EDGES) + 1, dim)

    def forward(self, gaps):
        return self.table(torch.bucketize(gaps, self.edges))


class GNNCell(nn.Module):
    """One gated update of all nodes from their neighbours."""
    def __init__(self, hidden_size):
        super().__init__()
        self.hidden_size = hidden_size
        self.w_ih = nn.Parameter(torch.zeros(3 * hidden_size, 2 * hidden_size))
        self.w_hh = nn.Parameter(torch.zeros(3 * hidden_size, hidden_size))
        self.b_ih = nn.Parameter(torch.zeros(3 * hidden_size))
        self.b_hh = nn.Parameter(torch.zeros(3 * hidden_size))
        self.b_iah = nn.Parameter(torch.zeros(hidden_size))
        self.b_oah = nn.Parameter(torch.zeros(hidden_size))
        self.linear_edge_in = nn.Linear(hidden_size, hidden_size)
        self.linear_edge_out = nn.Linear(hidden_size, hidden_size)

    def forward(self, A, hidden):
        n_node = A.shape[1]
        input_in = torch.matmul(A[:, :, :n_node], self.linear_edge_in(hidden)) + self.b_iah
        input_out = torch.matmul(A[:, :, n_node : 2 * n_node], self.linear_edge_out(hidden)) + self.b_oah
        inputs = torch.cat([input_in, input_out], 2)
        i_r, i_i, i_n = F.linear(inputs, self.w_ih, self.b_ih).chunk(3, 2)
        h_r, h_i, h_n = F.linear(hidden, self.w_hh, self.b_hh).chunk(3, 2)
        resetgate = torch.sigmoid(i_r + h_r)
        inputgate = torch.sigmoid(i_i + h_i)
        newgate = torch.tanh(i_n + resetgate * h_n)
        return newgate + inputgate * (hidden - newgate)


class SoftAttentionReadout(nn.Module):
    """The session from its clicks: attention by the last one, aware of the place from the end and of the age."""
    def __init__(self, cfg):
        super().__init__()
        hidden = cfg.hidden_size
        self.position = nn.Embedding(cfg.max_len, hidden)
        self.age = GapEmbedding(hidden)
        self.linear_one = nn.Linear(hidden, hidden)
        self.linear_two = nn.Linear(hidden, hidden)
        self.linear_three = nn.Linear(hidden, 1, bias=False)
        self.linear_transform = nn.Linear(2 * hidden, hidden)

    def forward(self, seq_hidden, valid, ages):
        lengths = valid.sum(dim=1)
        ht = seq_hidden[torch.arange(valid.shape[0]), lengths - 1]
        from_end = lengths[:, None] - 1 - torch.arange(valid.shape[1])[None, :]
        keyed = seq_hidden + self.position(from_end.clamp(min=0)) + self.age(ages)
        q1 = self.linear_one(ht).unsqueeze(1)
        alpha = self.linear_three(torch.sigmoid(q1 + self.linear_two(keyed)))
        a = torch.sum(alpha * seq_hidden * valid.unsqueeze(-1).to(seq_hidden.dtype), dim=1)
        return self.linear_transform(torch.cat([a, ht], dim=1)), ht


class GraphBranch(nn.Module):
    """The session graph: gated steps, a highway from the embeddings, and the readout."""
    def __init__(self, cfg):
        super().__init__()
        self.steps = cfg.gnn_steps
        self.cell = GNNCell(cfg.hidden_size)
        self.highway = nn.Linear(2 * cfg.hidden_size, cfg.hidden_size)
        self.readout = SoftAttentionReadout(cfg)

    def forward(self, items, embedding, ages):
        graphs = build_session_graphs(items.cpu().numpy())
        nodes, adjacency, aliases = (torch.from_numpy(array).to(items.device) for array in graphs)
        initial = embedding(nodes)
        hidden = initial
        for _ in range(self.steps):
            hidden = self.cell(adjacency, hidden)
        gate = torch.sigmoid(self.highway(torch.cat([initial, hidden], dim=-1)))
        hidden = gate * initial + (1 - gate) * hidden
        seq_hidden = torch.stack([hidden[i][aliases[i]] for i in range(len(aliases))])
        return self.readout(seq_hidden, items > 0, ages)


class MultiHeadAttention(nn.Module):
    """Attention in both directions, with a bias per head from the time between two clicks."""
    def __init__(self, hidden, heads, dropout):
        super().__init__()
        self.heads = heads
        self.d_k = hidden // heads
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(hidden, hidden)

    def forward(self, x, mask, interval_bias):
        b, length, _ = x.shape
        query, key, value = [
            layer(x).view(b, -1, self.heads, self.d_k).transpose(1, 2) for layer in (self.query, self.key, self.value)
        ]
        scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(self.d_k)
        scores = scores + interval_bias.permute(0, 3, 1, 2)
        scores = scores.masked_fill(mask == 0, -1e9)
        p_attn = self.dropout(F.softmax(scores, dim=-1))
        x = torch.matmul(p_attn, value).transpose(1, 2).contiguous().view(b, length, self.heads * self.d_k)
        return self.output(x)


class TransformerBlock(nn.Module):
    """Pre-norm attention and feed-forward."""
    def __init__(self, cfg):
        super().__init__()
        hidden, inner = cfg.hidden_size, cfg.ffn_ratio * cfg.hidden_size
        self.norm1 = LayerNorm(hidden)
        self.attention = MultiHeadAttention(hidden, cfg.num_heads, cfg.dropout)
        self.norm2 = LayerNorm(hidden)
        self.feed_forward = nn.Sequential(
            nn.Linear(hidden, inner), nn.GELU(), nn.Dropout(cfg.dropout), nn.Linear(inner, hidden)
        )
        self.dropout = nn.Dropout(cfg.dropout)

    def forward(self, x, mask, interval_bias):
        x = x + self.dropout(self.attention(self.norm1(x), mask, interval_bias))
        return x + self.dropout(self.feed_forward(self.norm2(x)))


class MaskedEncoder(nn.Module):
    """Clicks and mask tokens to vectors; items, places and gaps are added up."""
    def __init__(self, cfg):
        super().__init__()
        self.scale = math.sqrt(cfg.hidden_size)
        self.position = nn.Embedding(cfg.max_len + 1, cfg.hidden_size)
        self.gap = GapEmbedding(cfg.hidden_size)
        self.interval = GapEmbedding(cfg.num_heads)
        self.norm = LayerNorm(cfg.hidden_size)
        self.dropout = nn.Dropout(cfg.dropout)
        self.blocks = nn.ModuleList([TransformerBlock(cfg) for _ in range(cfg.num_blocks)])

    def forward(self, tokens, times, embedding):
        valid = tokens > 0
        x = embedding(tokens) * self.scale
        x = x + self.position(torch.arange(tokens.shape[1], device=tokens.device)).unsqueeze(0)
        x = x + self.gap(time_gaps(times, valid))
        x = self.dropout(self.norm(x))
        interval_bias = self.interval((times[:, :, None] - times[:, None, :]).abs())
        for block in self.blocks:
            x = block(x, valid[:, None, None, :], interval_bias)
        return x


class ContextEncoder(nn.Module):
    """What the session as a whole is like: its length, repeats and pace."""
    def __init__(self, size):
        super().__init__()
        self.bn = nn.BatchNorm1d(5)
        self.fc1 = nn.Linear(5, 2 * size)
        self.act = nn.LeakyReLU(0.1)
        self.fc2 = nn.Linear(2 * size, size)

    def forward(self, items, times, now):
        valid = items > 0
        lengths = valid.sum(dim=1)
        same = (items[:, :, None] == items[:, None, :]) & valid[:, None, :]
        earlier = torch.tril(same, diagonal=-1).any(dim=2) & valid
        gaps = time_gaps(times, valid).float()
        mean_gap = gaps.sum(dim=1) / (lengths - 1).clamp(min=1)
        idle = now - times[torch.arange(len(items)), lengths - 1]
        repeats = earlier.float().sum(dim=1) / lengths
        features = [lengths.float().log(), repeats, mean_gap.log1p(), gaps.amax(dim=1).log1p(), idle.float().log1p()]
        return self.fc2(self.act(self.fc1(self.bn(torch.stack(features, dim=1)))))


class FusionGate(nn.Module):
    """Weighs graph, sequence and last click channel by channel, then lets the context through a gate."""
    def __init__(self, hidden, context_size):
        super().__init__()
        self.weigh = nn.Linear(3 * hidden + context_size, 3 * hidden)
        self.softmax = nn.Softmax(dim=1)
        self.context_gate = nn.Linear(hidden + context_size, hidden)
        self.context_proj = nn.Linear(context_size, hidden)
        self.norm = nn.LayerNorm(hidden)

    def forward(self, graph, sequence, last, context):
        sources = torch.stack([graph, sequence, last], dim=1)
        weights = self.weigh(torch.cat([graph, sequence, last, context], dim=-1))
        weights = self.softmax(weights.view(sources.shape))
        fused = (weights * sources).sum(dim=1)
        gate = torch.sigmoid(self.context_gate(torch.cat([fused, context], dim=-1)))
        return self.norm(fused + gate * self.context_proj(context))


class SampledSoftmaxLoss(nn.Module):
    """Softmax over the target and shared negatives of a log-uniform sampler without replacement, corrected by log Q."""
    def __init__(self, cfg):
        super().__init__()
        self.sigma = cfg.sigma
        rank = torch.arange(cfg.num_items, dtype=torch.float64)
        prob = ((rank + 2).log() - (rank + 1).log()) / math.log(cfg.num_items + 1)
        log_q = torch.log(-torch.expm1(cfg.num_sampled * torch.log1p(-prob))).float()
        self.register_buffer("log_q", F.pad(log_q, (1, 0)), persistent=False)

    def forward(self, session, item_vectors, targets, negatives):
        true_logits = self.sigma * (session * item_vectors[targets]).sum(dim=-1)
        true_logits = true_logits - self.log_q[targets]
        sampled_logits = self.sigma * session @ item_vectors[negatives].t() - self.log_q[negatives]
        sampled_logits = sampled_logits.masked_fill(negatives[None, :] == targets[:, None], -1e9)
        logits = torch.cat([true_logits.unsqueeze(1), sampled_logits], dim=1)
        loss = -F.log_softmax(logits, dim=1)[:, 0]
        weight = (targets > 0).to(loss.dtype)
        return (loss * weight).sum() / weight.sum().clamp(min=1.0)


class ClozeHead(nn.Module):
    """The items behind the mask tokens, from all items by the tied embedding."""
    def __init__(self, cfg):
        super().__init__()
        self.classes = cfg.num_items + 1
        self.dense = nn.Linear(cfg.hidden_size, cfg.hidden_size)
        self.norm = LayerNorm(cfg.hidden_size)
        self.bias = nn.Parameter(torch.zeros(self.classes))
        self.criterion = nn.CrossEntropyLoss(ignore_index=0, label_smoothing=cfg.label_smoothing)

    def forward(self, encoded, labels, table):
        x = self.norm(torch.relu(self.dense(encoded)))
        logits = F.linear(x, table[: self.classes], self.bias)
        return self.criterion(logits.view(-1, self.classes), labels.reshape(-1))


class RankingMetrics(nn.Module):
    """Recall, MRR and NDCG at several k; seen items are not recommended again, but the target always competes."""
    def __init__(self, top_k):
        super().__init__()
        self.top_k = top_k

    def forward(self, scores, seen, targets):
        blocked = torch.zeros_like(scores, dtype=torch.bool).scatter(1, seen, True)
        blocked = blocked.scatter(1, targets[:, None], False)
        blocked[:, 0] = True
        top_scores, top_items = scores.masked_fill(blocked, float("-inf")).topk(max(self.top_k), dim=1)

        known = (targets > 0).float()
        hits = (top_items == targets[:, None]).float()
        rank = torch.arange(1, max(self.top_k) + 1, device=scores.device)
        rows = []
        for k in self.top_k:
            hit = hits[:, :k]
            recall = hit.sum(dim=1)
            mrr = (hit / rank[:k]).sum(dim=1)
            ndcg = (hit / torch.log2(rank[:k] + 1.0)).sum(dim=1)
            rows.append(torch.stack([(m * known).sum() / known.sum() for m in (recall, mrr, ndcg)]))
        return top_scores, top_items, torch.stack(rows)


class SessionRecommender(nn.Module):
    """Scores of all items for the next click, with both losses and the metrics."""
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.mask_token = cfg.num_items + 1
        self.item_embedding = nn.Embedding(cfg.num_items + 2, cfg.hidden_size)
        self.graph = GraphBranch(cfg)
        self.encoder = MaskedEncoder(cfg)
        self.context = ContextEncoder(cfg.context_size)
        self.fusion = FusionGate(cfg.hidden_size, cfg.context_size)
        self.sampled_loss = SampledSoftmaxLoss(cfg)
        self.cloze = ClozeHead(cfg)
        self.metrics = RankingMetrics(cfg.top_k)

    def encode_query(self, items, times, now, lengths):
        """The transformer's vector of a mask token that is put right behind the last click, at the time of asking."""
        rows = torch.arange(items.shape[0])
        tokens, stamps = F.pad(items, (0, 1)), F.pad(times, (0, 1))
        tokens[rows, lengths] = self.mask_token
        stamps[rows, lengths] = now
        return self.encoder(tokens, stamps, self.item_embedding)[rows, lengths]

    def forward(self, items, times, now, cloze_mask, targets, negatives):
        """items, times, cloze_mask (batch, length); now, targets (batch,), 0 is unknown; negatives (sampled,)."""
        valid = items > 0
        ages = (now[:, None] - times) * valid
        graph, last = self.graph(items, self.item_embedding, ages)
        sequence = self.encode_query(items, times, now, valid.sum(dim=1))
        context = self.context(items, times, now)
        session = F.normalize(self.fusion(graph, sequence, last, context), dim=-1)

        item_vectors = F.normalize(self.item_embedding.weight[: self.cfg.num_items + 1], dim=-1)
        loss = self.sampled_loss(session, item_vectors, targets, negatives)
        hidden = cloze_mask & valid
        encoded = self.encoder(items.masked_fill(hidden, self.mask_token), times, self.item_embedding)
        cloze_loss = self.cloze(encoded, items * hidden, self.item_embedding.weight)

        scores = self.cfg.sigma * session @ item_vectors.t()
        top_scores, top_items, metrics = self.metrics(scores, items, targets)
        loss = loss + self.cfg.cloze_weight * cloze_loss
        out = {"scores": scores[:, 1:], "top_scores": top_scores, "top_items": top_items, "metrics": metrics}
        return {**out, "cloze_loss": cloze_loss, "loss": loss}


def trained_like(net):
    """Values as after training, not as after the initialisation."""
    for module in net.modules():
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.3)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=module.in_features**-0.5)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.1)
        elif isinstance(module, (LayerNorm, nn.LayerNorm, nn.BatchNorm1d)):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.15)
    for name, parameter in net.graph.cell.named_parameters(recurse=False):
        nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5 if name.startswith("w_") else 0.2)
    nn.init.normal_(net.cloze.bias, std=0.3)
    nn.init.normal_(net.encoder.interval.table.weight, std=0.8)
    net.context.bn.running_mean.copy_(torch.tensor([1.6, 0.2, 5.5, 7.0, 6.0]))
    net.context.bn.running_var.copy_(torch.tensor([0.6, 0.03, 2.5, 4.0, 3.0]))
    return net


def build():
    """The net with the same weights on every run, and eight sessions of one to twelve clicks."""
    cfg = Config()
    torch.manual_seed(73)
    net = trained_like(SessionRecommender(cfg))
    lengths = torch.tensor([12, 7, 1, 9, 4, 12, 3, 8])
    valid = torch.arange(cfg.max_len)[None, :] < lengths[:, None]
    pool = torch.randint(1, cfg.num_items + 1, (8, 5))  # few items each, so that clicks recur
    items = torch.gather(pool, 1, torch.randint(0, 5, (8, cfg.max_len))) * valid
    pauses = torch.tensor([30, 60, 90, 180, 210, 300, 420, 600, 1200, 1800, 2700, 3600, 9000, 12600, 50000])
    times = torch.cumsum(pauses[torch.randint(0, len(pauses), (8, cfg.max_len))], dim=1)
    now = times[torch.arange(8), lengths - 1] + pauses[torch.randint(0, len(pauses), (8,))]
    times = times * valid
    cloze_mask = torch.rand(8, cfg.max_len) < 0.35
    negatives = torch.randperm(cfg.num_items)[: cfg.num_sampled] + 1
    # the second one was clicked before, the fourth is among the negatives, that of the seventh session is not known
    targets = torch.tensor([37, 10, 35, 12, 3, 46, 0, 25])
    return net.eval(), (items, times, now, cloze_mask, targets, negatives)
