"""Semi-supervised node classification: graph convolutions, personalised propagation, correct and smooth (PyTorch)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

# Upper ends of the buckets of in-degrees (in edges, self loops not counted).
DEGREE_BOUNDS = (1, 2, 3, 5, 8, 12)
# How many nodes of the training graph have 0, 1, 2, ... incoming edges; for the mean of log(degree + 1).
DEGREE_HISTOGRAM = (3, 5, 9, 12, 14, 11, 8, 6, 4, 2, 1)

TRAIN, VALID, TEST = 0, 1, 2


class Config:
    """The small model's settings."""

    num_features, hidden, channels, num_classes = 30, 20, 24, 6
    feature_gain = 40.0
    block_norms = ("batch", "graph", "batch")
    head_groups, dropout = 6, 0.5
    edge_drop = 0.25
    appnp_steps, appnp_alpha = 5, 0.15
    sage_channels, cosine_scale = (18, 14), 8.0
    correct_steps, correct_alpha = 8, 0.8
    smooth_steps, smooth_alpha = 6, 0.7
    label_smoothing, focal_gamma, calibration_bins = 0.1, 2.0, 8
    distill_temperature = 2.5


def scatter_sum(values, index, size):
    """Sum the rows of values that share an index."""
    return values.new_zeros((size,) + values.shape[1:]).index_add(0, index, values)


def add_remaining_self_loops(edge_index, edge_weight, fill_value, num_nodes):
    """One self loop for every node, after the other edges; a node that has one keeps that one's weight."""
    is_loop = edge_index[0] == edge_index[1]
    loop_weight = edge_weight.new_full((num_nodes,), fill_value)
    loop_weight[edge_index[0, is_loop]] = edge_weight[is_loop]
    loops = torch.arange(num_nodes, device=edge_index.device).expand(2, -1)
    edge_index = torch.cat([edge_index[:, ~is_loop], loops], dim=1)
    edge_weight = torch.cat([edge_weight[~is_loop], loop_weight])
    return edge_index, edge_weight, ~is_loop


def symmetric_norm(edge_index, edge_weight, num_nodes):
    """D^-1/2 A D^-1/2 with the degree of the targets; nodes without edges get zero."""
    row, col = edge_index
    degree = scatter_sum(edge_weight, col, num_nodes)
    inv_sqrt = degree.pow(-0.5)
    inv_sqrt = inv_sqrt.masked_fill(inv_sqrt == float("inf"), 0.0)
    return inv_sqrt[row] * edge_weight * inv_sqrt[col]


def propagate(x, edge_index, weight):
    """Weighted sum of what comes in: messages go from row to col."""
    row, col = edge_index
    return scatter_sum(weight.unsqueeze(-1) * x[row], col, x.shape[0])


def build_csr(edge_index, num_nodes):
    """Incoming edges of node i are source[rowptr[i]:rowptr[i + 1]]."""
    row, col = edge_index
    order = torch.argsort(col, stable=True)
    counts = torch.bincount(col, minlength=num_nodes)
    rowptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    return rowptr, row[order]


def sample_neighbours(rowptr, source, nodes, uniform):
    """Neighbours (..., fanout) of nodes (...,), and which are real: all where they are few, else drawn by uniform."""
    fanout = uniform.shape[-1]
    start = rowptr[nodes].unsqueeze(-1)
    degree = rowptr[nodes + 1].unsqueeze(-1) - start
    position = torch.arange(fanout, device=nodes.device)
    drawn = torch.minimum((uniform * degree).long(), degree - 1)
    offset = torch.where(degree <= fanout, position, drawn)
    valid = position < degree
    picked = source[torch.where(valid, start + offset, 0)]
    return torch.where(valid, picked, 0), valid


class FeatureEncoder(nn.Module):
    """Gated projection of the word counts, plus embeddings of the degree and of the labels that are given as input."""
    def __init__(self, cfg):
        super().__init__()
        self.gain, self.num_classes = cfg.feature_gain, cfg.num_classes
        self.register_buffer("bounds", torch.tensor(DEGREE_BOUNDS), persistent=False)
        self.value = nn.Linear(cfg.num_features, cfg.hidden)
        self.gate = nn.Linear(cfg.num_features, cfg.hidden)
        self.degree_embedding = nn.Embedding(len(DEGREE_BOUNDS) + 1, cfg.hidden)
        self.label_embedding = nn.Embedding(cfg.num_classes + 1, cfg.hidden, padding_idx=cfg.num_classes)
        self.norm = nn.LayerNorm(cfg.hidden, eps=1e-3)

    def forward(self, x, degree, labels, label_known):
        x = torch.log1p(self.gain * x / x.sum(dim=-1, keepdim=True).clamp(min=1.0))
        h = self.value(x) * torch.sigmoid(self.gate(x))
        h = h + self.degree_embedding(torch.bucketize(degree, self.bounds))
        h = h + self.label_embedding(labels.masked_fill(~label_known, self.num_classes))
        return self.norm(h)


class GraphNorm(nn.Module):
    """Normalisation over the nodes of the graph that keeps a learned part of the mean."""
    def __init__(self, channels, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.mean_scale = nn.Parameter(torch.ones(channels))

    def forward(self, x):
        out = x - x.mean(dim=0, keepdim=True) * self.mean_scale
        var = out.pow(2).mean(dim=0, keepdim=True)
        return self.weight * out / (var + self.eps).sqrt() + self.bias


class GraphConv(nn.Module):
    """Graph convolution; dropped edges count neither in the sums nor in the degrees."""
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.lin = nn.Linear(in_channels, out_channels, bias=False)
        self.bias = nn.Parameter(torch.zeros(out_channels))

    def forward(self, x, edge_index, edge_weight, edge_mask):
        num_nodes = x.shape[0]
        keep = edge_mask | (edge_index[0] == edge_index[1])
        edge_index, weight, _ = add_remaining_self_loops(edge_index, edge_weight * keep, 1.0, num_nodes)
        return propagate(self.lin(x), edge_index, symmetric_norm(edge_index, weight, num_nodes)) + self.bias


class ConvBlock(nn.Module):
    def __init__(self, in_channels, out_channels, norm):
        super().__init__()
        self.conv = GraphConv(in_channels, out_channels)
        self.norm = nn.BatchNorm1d(out_channels) if norm == "batch" else GraphNorm(out_channels)
        self.skip = nn.Linear(in_channels, out_channels) if in_channels != out_channels else nn.Identity()
        self.act = nn.PReLU(out_channels, init=0.25)

    def forward(self, x, edge_index, edge_weight, edge_mask):
        h = self.norm(self.conv(x, edge_index, edge_weight, edge_mask))
        return self.act(h + self.skip(x))


class JumpingKnowledge(nn.Module):
    """Attention over the layers, whose scores come from a bidirectional LSTM along them."""
    def __init__(self, channels, num_layers):
        super().__init__()
        self.lstm = nn.LSTM(channels, (num_layers * channels) // 4, bidirectional=True, batch_first=True)
        self.att = nn.Linear(2 * ((num_layers * channels) // 4), 1)

    def forward(self, states):
        x = torch.stack(states, dim=1)
        alpha, _ = self.lstm(x)
        alpha = self.att(alpha).squeeze(-1).softmax(dim=-1)
        return (x * alpha.unsqueeze(-1)).sum(dim=1), alpha


class NodeHead(nn.Module):
    def __init__(self, channels, num_classes, groups, dropout):
        super().__init__()
        self.lin1 = nn.Linear(channels, channels)
        self.norm = nn.GroupNorm(groups, channels)
        self.act = nn.ELU(alpha=0.5)
        self.dropout = nn.Dropout(dropout)
        self.lin2 = nn.Linear(channels, num_classes)

    def forward(self, x):
        return self.lin2(self.dropout(self.act(self.norm(self.lin1(x)))))


class APPNP(nn.Module):
    """Personalised propagation of the predictions: a random walk that restarts at its own node."""
    def __init__(self, steps, alpha, edge_drop):
        super().__init__()
        self.steps, self.alpha, self.edge_drop = steps, alpha, edge_drop

    def forward(self, h, edge_index, edge_weight, edge_masks):
        num_nodes = h.shape[0]
        edge_index, weight, others = add_remaining_self_loops(edge_index, edge_weight, 1.0, num_nodes)
        norm = symmetric_norm(edge_index, weight, num_nodes)
        z, loops = h, norm.new_ones(num_nodes)
        for step in range(self.steps):
            # here edges are dropped like activations: after the normalisation, and the others are scaled up
            kept = edge_masks[step][others].to(norm.dtype) / (1.0 - self.edge_drop)
            z = propagate(z, edge_index, norm * torch.cat([kept, loops]))
            z = (1.0 - self.alpha) * z + self.alpha * h
        return z


class SageConv(nn.Module):
    """Mean and degree-scaled maximum over sampled neighbours, and the node itself."""
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.lin_neigh = nn.Linear(2 * in_channels, out_channels)
        self.lin_self = nn.Linear(in_channels, out_channels, bias=False)
        logs = sum(count * math.log(degree + 1) for degree, count in enumerate(DEGREE_HISTOGRAM))
        self.mean_log = logs / sum(DEGREE_HISTOGRAM)

    def forward(self, x, neighbours, valid, degree):
        """x (..., channels), neighbours (..., fanout, channels), valid (..., fanout), degree (...,)."""
        mask = valid.unsqueeze(-1)
        mean = (neighbours * mask).sum(dim=-2) / mask.sum(dim=-2).clamp(min=1)
        peak = neighbours.masked_fill(~mask, float("-inf")).amax(dim=-2)
        peak = peak.masked_fill(~valid.any(dim=-1, keepdim=True), 0.0)
        peak = peak * (torch.log(degree.to(x.dtype) + 1.0) / self.mean_log).unsqueeze(-1)
        out = self.lin_neigh(torch.cat([mean, peak], dim=-1)) + self.lin_self(x)
        return F.normalize(out, p=2.0, dim=-1)


class SampledHead(nn.Module):
    """GraphSAGE on the sampled tree below each seed; classes are prototypes, compared by the cosine."""
    def __init__(self, in_channels, channels, num_classes, scale):
        super().__init__()
        widths = (in_channels,) + tuple(channels)
        self.convs = nn.ModuleList(SageConv(a, b) for a, b in zip(widths[:-1], widths[1:]))
        self.act = nn.LeakyReLU(0.1)
        self.prototypes = nn.Parameter(torch.zeros(num_classes, widths[-1]))
        self.scale = scale

    def forward(self, x, edge_index, seeds, uniforms):
        rowptr, source = build_csr(edge_index, x.shape[0])
        degree = rowptr[1:] - rowptr[:-1]
        nodes, valids = [seeds], []
        for uniform in uniforms:
            picked, valid = sample_neighbours(rowptr, source, nodes[-1], uniform)
            nodes.append(picked)
            valids.append(valid)
        hidden = [x[index] for index in nodes]
        for layer, conv in enumerate(self.convs):
            above = []
            for hop in range(len(self.convs) - layer):
                h = conv(hidden[hop], hidden[hop + 1], valids[hop], degree[nodes[hop]])
                above.append(self.act(h) if layer < len(self.convs) - 1 else h)
            hidden = above
        return hidden[0], self.scale * F.linear(hidden[0], F.normalize(self.prototypes, dim=-1))


class LabelPropagation(nn.Module):
    """out <- post(alpha A out + (1 - alpha) start), so many times."""
    def __init__(self, steps, alpha, low, high):
        super().__init__()
        self.steps, self.alpha, self.low, self.high = steps, alpha, low, high

    def forward(self, start, edge_index, norm):
        out, rest = start, (1.0 - self.alpha) * start
        for _ in range(self.steps):
            out = (self.alpha * propagate(out, edge_index, norm) + rest).clamp(self.low, self.high)
        return out


class CorrectAndSmooth(nn.Module):
    """Spreads the errors on the training nodes, then the corrected predictions."""
    def __init__(self, cfg):
        super().__init__()
        self.correct_prop = LabelPropagation(cfg.correct_steps, cfg.correct_alpha, -1.0, 1.0)
        self.smooth_prop = LabelPropagation(cfg.smooth_steps, cfg.smooth_alpha, 0.0, 1.0)

    def forward(self, soft, labels, train, edge_index, edge_weight):
        norm = symmetric_norm(edge_index, edge_weight, soft.shape[0])  # no self loops are added here
        truth = F.one_hot(labels, soft.shape[1]).to(soft.dtype)
        # correct: the spread error gets the size of the mean one
        error = (truth - soft) * train.unsqueeze(-1)
        spread = self.correct_prop(error, edge_index, norm)
        sigma = error[train].abs().sum() / train.sum()
        scale = sigma / spread.abs().sum(dim=1, keepdim=True)
        scale[scale.isinf() | (scale > 1000)] = 1.0
        corrected = soft + scale * spread
        start = torch.where(train.unsqueeze(-1), truth, corrected)  # smooth: from the truth where it is known
        return corrected, self.smooth_prop(start, edge_index, norm)


class Evaluation(nn.Module):
    """Losses and scores of an epoch."""
    def __init__(self, cfg):
        super().__init__()
        self.smoothing, self.temperature, self.gamma = cfg.label_smoothing, cfg.distill_temperature, cfg.focal_gamma
        self.bins, self.num_classes = cfg.calibration_bins, cfg.num_classes
        self.register_buffer("class_weight", torch.ones(cfg.num_classes))

    def calibration(self, probs, labels):
        """Expected calibration error: the gap between confidence and accuracy, bin by bin."""
        confidence, predicted = probs.max(dim=-1)
        correct = (predicted == labels).to(probs.dtype)
        edges, ece = torch.linspace(0, 1, self.bins + 1), probs.new_zeros(())
        for low, high in zip(edges[:-1], edges[1:]):
            inside = (confidence > low) & (confidence <= high)
            if inside.any():
                share = inside.to(probs.dtype).mean()
                ece = ece + share * (correct[inside].mean() - confidence[inside].mean()).abs()
        return ece

    def forward(self, logits, smoothed, sage_logits, seeds, labels, split, edge_index, edge_weight):
        train, val, test = split == TRAIN, split == VALID, split == TEST
        probs, out = logits.softmax(dim=-1), {}
        out["train_loss"] = F.cross_entropy(
            logits[train], labels[train], weight=self.class_weight, label_smoothing=self.smoothing
        )
        log_p = F.log_softmax(logits[val], dim=-1).gather(1, labels[val].unsqueeze(1)).squeeze(1)
        out["val_focal"] = (-((1.0 - log_p.exp()) ** self.gamma) * log_p).mean()
        out["val_ece"] = self.calibration(probs[val], labels[val])
        student = F.log_softmax(sage_logits / self.temperature, dim=-1)
        teacher = (logits[seeds] / self.temperature).softmax(dim=-1)
        out["distill"] = F.kl_div(student, teacher, reduction="batchmean") * self.temperature**2
        row, col = edge_index
        degree = scatter_sum(edge_weight, col, logits.shape[0])
        scaled = probs / (degree + 1.0).sqrt().unsqueeze(-1)
        gaps = (scaled[row] - scaled[col]).pow(2).sum(dim=-1)
        out["smoothness"] = 0.5 * (edge_weight * gaps).sum() / edge_weight.sum()
        # soft macro F1 over the classes that occur
        final = smoothed[test] / smoothed[test].sum(dim=-1, keepdim=True).clamp(min=1e-8)
        truth = F.one_hot(labels[test], self.num_classes).to(final.dtype)
        f1 = 2 * (final * truth).sum(dim=0) / (final.sum(dim=0) + truth.sum(dim=0)).clamp(min=1e-8)
        out["test_f1"] = f1[truth.sum(dim=0) > 0].mean()
        return out


class PropagationNet(nn.Module):
    """From word counts and a weighted graph to the classes of the nodes."""
    def __init__(self, cfg):
        super().__init__()
        self.encoder = FeatureEncoder(cfg)
        widths = (cfg.hidden,) + (cfg.channels,) * len(cfg.block_norms)
        self.blocks = nn.ModuleList(map(ConvBlock, widths[:-1], widths[1:], cfg.block_norms))
        self.jump = JumpingKnowledge(cfg.channels, len(self.blocks))
        self.head = NodeHead(cfg.channels, cfg.num_classes, cfg.head_groups, cfg.dropout)
        self.appnp = APPNP(cfg.appnp_steps, cfg.appnp_alpha, cfg.edge_drop)
        self.log_scale = nn.Parameter(torch.zeros(1))
        self.sampled = SampledHead(cfg.channels, cfg.sage_channels, cfg.num_classes, cfg.cosine_scale)
        self.post = CorrectAndSmooth(cfg)
        self.evaluation = Evaluation(cfg)

    def forward(self, x, edge_index, edge_weight, edge_masks, labels, label_known, split, seeds, uniform1, uniform2):
        """edge_masks (blocks + steps, edges) says which edges each layer and each step of the propagation sees."""
        degree = torch.bincount(edge_index[1, edge_index[0] != edge_index[1]], minlength=x.shape[0])
        h = self.encoder(x, degree, labels, label_known)
        states = []
        for block, mask in zip(self.blocks, edge_masks):
            h = block(h, edge_index, edge_weight, mask)
            states.append(h)
        fused, layer_weights = self.jump(states)
        local = self.head(fused)
        logits = self.appnp(local, edge_index, edge_weight, edge_masks[len(self.blocks) :]) * self.log_scale.exp()
        embedding, sage_logits = self.sampled(fused, edge_index, seeds, (uniform1, uniform2))
        # the post-processing must not see the labels that went in
        usable = (split == TRAIN) & ~label_known
        corrected, smoothed = self.post(logits.softmax(dim=-1), labels, usable, edge_index, edge_weight)
        losses = self.evaluation(logits, smoothed, sage_logits, seeds, labels, split, edge_index, edge_weight)
        return {
            "local": local, "logits": logits, "layer_weights": layer_weights, "embedding": embedding,
            "sage_logits": sage_logits, "corrected": corrected, "smoothed": smoothed, **losses,
        }


def trained_like(net):
    """Values as after training, not as after the initialisation."""
    for module in net.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=module.in_features**-0.5)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.1)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.06)
            if module.padding_idx is not None:
                module.weight.data[module.padding_idx].zero_()
        elif isinstance(module, (nn.LayerNorm, nn.GroupNorm, nn.BatchNorm1d, GraphNorm)):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.2)
            if isinstance(module, nn.BatchNorm1d):
                nn.init.normal_(module.running_mean, std=0.2)
                nn.init.uniform_(module.running_var, 0.3, 0.9)
            elif isinstance(module, GraphNorm):
                nn.init.uniform_(module.mean_scale, 0.4, 1.1)
        elif isinstance(module, GraphConv):
            nn.init.normal_(module.bias, std=0.2)
        elif isinstance(module, nn.PReLU):
            nn.init.uniform_(module.weight, 0.05, 0.4)
    net.encoder.value.weight.data *= 0.4
    net.jump.att.weight.data *= 4.0
    net.head.lin2.weight.data *= 1.5
    nn.init.normal_(net.sampled.prototypes)
    net.log_scale.data.fill_(0.45)
    net.evaluation.class_weight.copy_(torch.tensor([0.6, 1.7, 0.9, 1.2, 2.1, 0.8]))
    return net


def random_graph(num_nodes, labels):
    """Edges mostly inside the classes, most of them both ways; a few self loops, a few nodes without any edge."""
    chance = torch.where(labels[:, None] == labels[None, :], 0.45, 0.09)
    upper = torch.triu(torch.rand(num_nodes, num_nodes) < chance, diagonal=1)
    upper[-2:], upper[:, -2:] = False, False
    edges, loops = upper.nonzero().T, torch.tensor([3, 11, 17, 20, 36]).expand(2, -1)
    edge_index = torch.cat([edges, edges.flip(0)[:, torch.rand(edges.shape[1]) < 0.7], loops], dim=1)
    edge_index = edge_index[:, torch.randperm(edge_index.shape[1])]
    return edge_index, 0.3 + 1.5 * torch.rand(edge_index.shape[1])


def build():
    """The net with the same weights on every run, and one graph with its masks and samples."""
    torch.manual_seed(1910)
    cfg = Config()
    net = trained_like(PropagationNet(cfg))
    num_nodes = 54
    labels = torch.randint(0, cfg.num_classes, (num_nodes,))
    edge_index, edge_weight = random_graph(num_nodes, labels)
    x = torch.poisson(1.2 * torch.rand(num_nodes, cfg.num_features) ** 3) + 2.0 * (
        torch.arange(cfg.num_features)[None, :] % cfg.num_classes == labels[:, None]
    ) * (torch.rand(num_nodes, cfg.num_features) < 0.3)
    edge_masks = torch.rand(len(cfg.block_norms) + cfg.appnp_steps, edge_index.shape[1]) >= cfg.edge_drop
    split = torch.tensor([0, 1, 0, 2, 2, 0, 1, 2])[torch.arange(num_nodes) % 8]
    label_known = (split == TRAIN) & (torch.rand(num_nodes) < 0.4)
    seeds = torch.tensor([31, 4, 20, 8, 44, 53, 2, 15, 38, 47, 41, 27])
    uniforms = torch.rand(len(seeds), 5), torch.rand(len(seeds), 5, 3)
    return net.eval(), (x, edge_index, edge_weight, edge_masks, labels, label_known, split, seeds, *uniforms)
