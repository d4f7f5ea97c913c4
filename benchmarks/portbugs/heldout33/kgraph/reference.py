"""Temporal knowledge graph completion (relational graph encoder, RotatE and ConvE, filtered ranking) in PyTorch."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

# The score of a candidate whose type the relation has never been seen with.
TYPE_FLOOR = -1e4


class Config:
    """The settings of the small run."""

    num_entities = 41
    num_relations = 6
    num_types = 4
    dim = 32
    num_bases = 3
    num_layers = 2
    dropout = 0.2
    horizon = 10.0
    decay_floor = 0.15
    memory_cap = 1.4
    filter_window = 1
    gamma = 6.0
    epsilon = 2.0
    temperature = 1.5
    regularization = 2e-3
    grid = (4, 8)  # of a vector as an image
    channels = 6
    label_smoothing = 0.1
    tie_tolerance = 1e-4
    hits = (1, 3, 10)


def with_inverses(quads, num_relations):
    """Append (o, r + R, s, t) for every (s, r, o, t)."""
    s, r, o, t = quads.unbind(dim=1)
    return torch.cat([quads, torch.stack([o, r + num_relations, s, t], dim=1)], dim=0)


def known_objects(queries, quads, num_entities, window=None):
    """(queries, entities): where the quads (those within the window of time) have the entity as the query's object."""
    same = (queries[:, None, :2] == quads[None, :, :2]).all(dim=-1)
    if window is not None:
        same = same & ((queries[:, None, 3] - quads[None, :, 3]).abs() <= window)
    mask = torch.zeros(queries.shape[0], num_entities, dtype=torch.bool, device=queries.device)
    row, fact = same.nonzero(as_tuple=True)
    mask[row, quads[fact, 2]] = True
    return mask


def observed_ranges(quads, entity_types, num_relations, num_types):
    """(2R, types): the types of objects that each relation has been seen with (a local closed world)."""
    seen = torch.zeros(2 * num_relations, num_types, dtype=torch.bool, device=quads.device)
    seen[quads[:, 1], entity_types[quads[:, 2]]] = True
    return seen


def standardise(scores):
    """Each query's scores with mean zero and deviation one."""
    return (scores - scores.mean(dim=1, keepdim=True)) / scores.std(dim=1, keepdim=True)


class TemporalDecay(nn.Module):
    """How much a fact of some age still counts; a relation and its inverse forget equally fast."""

    def __init__(self, num_relations, horizon, floor):
        super().__init__()
        self.num_relations = num_relations
        self.horizon = horizon
        self.floor = floor
        self.raw_rate = nn.Parameter(torch.zeros(num_relations))

    def forward(self, relation, age):
        rate = F.softplus(self.raw_rate)[relation % self.num_relations]
        return self.floor + (1 - self.floor) * torch.exp(-rate * age.float() / self.horizon)


class RelGraphConv(nn.Module):
    """Relational graph convolution whose kernels are mixtures of a few bases; entities without an edge have a loop of
    their own. The vectors of the relations move by the mean difference between the ends of their edges."""

    def __init__(self, dim_in, dim_out, num_kinds, num_bases, dropout):
        super().__init__()
        self.num_kinds = num_kinds
        self.bases = nn.Parameter(torch.zeros(num_bases, dim_in, dim_out))
        self.coefficients = nn.Parameter(torch.zeros(num_kinds, num_bases))
        self.loop = nn.Linear(dim_in, dim_out, bias=False)
        self.evolve_loop = nn.Linear(dim_in, dim_out, bias=False)
        self.norm = nn.LayerNorm(dim_out)
        self.act = nn.RReLU()
        self.dropout = nn.Dropout(dropout)
        self.relation = nn.Linear(dim_in, dim_out)

    def move_relations(self, x, relations, src, kind, dst, weight):
        shift = weight.unsqueeze(1) * (x[dst] - x[src])
        total = torch.zeros_like(relations).index_add(0, kind, shift)
        mass = weight.new_zeros(self.num_kinds).index_add(0, kind, weight)
        return relations + torch.tanh(self.relation(total / mass.clamp(min=1e-6).unsqueeze(1)))

    def forward(self, x, relations, edges, weight):
        src, kind, dst = edges
        n = x.shape[0]
        kernels = torch.einsum("kb,bio->kio", self.coefficients, self.bases)

        # every relation's messages are averaged by themselves: 1 / c_{i,r}
        slot = kind * n + dst
        count = torch.bincount(slot, minlength=self.num_kinds * n)
        norm = weight / count[slot].clamp(min=1)

        out = x.new_zeros(n, kernels.shape[-1])
        for k in range(self.num_kinds):
            chosen = (kind == k).nonzero().squeeze(1)
            if chosen.numel() == 0:
                continue
            messages = x[src[chosen]] @ kernels[k]
            out.index_add_(0, dst[chosen], messages * norm[chosen].unsqueeze(1))

        degree = torch.bincount(dst, minlength=n)
        out = out + torch.where((degree > 0).unsqueeze(1), self.loop(x), self.evolve_loop(x))
        out = self.dropout(self.act(self.norm(out)))
        return out, self.move_relations(x, relations, src, kind, dst, weight)


class RelationalEncoder(nn.Module):
    """Vectors of all entities and relations (with the inverse ones) as of a moment."""

    def __init__(self, cfg):
        super().__init__()
        self.unseen = nn.Parameter(torch.zeros(cfg.dim))
        self.entities = nn.Embedding(cfg.num_entities, cfg.dim)
        self.relations = nn.Embedding(2 * cfg.num_relations, cfg.dim)
        self.norm = nn.LayerNorm(cfg.dim)
        self.decay = TemporalDecay(cfg.num_relations, cfg.horizon, cfg.decay_floor)
        self.layers = nn.ModuleList(
            RelGraphConv(cfg.dim, cfg.dim, 2 * cfg.num_relations, cfg.num_bases, cfg.dropout)
            for _ in range(cfg.num_layers)
        )
        self.gate = nn.Linear(cfg.dim, cfg.dim)

    def forward(self, quads, now):
        past = quads[quads[:, 3] < now]
        src, kind, dst, time = past.unbind(dim=1)
        weight = self.decay(kind, now - time)

        seen = torch.zeros(self.entities.num_embeddings, dtype=torch.bool, device=quads.device)
        seen[src] = True
        x = torch.where(seen.unsqueeze(1), self.entities.weight, self.unseen)
        x, relations = self.norm(x), self.relations.weight
        for layer in self.layers:
            update, relations = layer(x, relations, (src, kind, dst), weight)
            gate = torch.sigmoid(self.gate(x))
            x = gate * update + (1 - gate) * x
        return F.normalize(x, dim=-1), relations


class RotatE(nn.Module):
    """Relations as rotations in the complex plane; the first half of a vector is real, the second imaginary."""

    def __init__(self, num_relations, dim, gamma, epsilon):
        super().__init__()
        self.gamma = gamma
        self.embedding_range = (gamma + epsilon) / dim
        self.phases = nn.Parameter(torch.zeros(num_relations, dim // 2))

    def forward(self, head, relation, tail, mode):
        """head and tail are (batch, 1 or candidates, dim), relation (batch,)."""
        re_head, im_head = head.chunk(2, dim=-1)
        re_tail, im_tail = tail.chunk(2, dim=-1)
        # phases are uniform in [-pi, pi] where the parameters are in the range of the embeddings
        phase = self.phases[relation].unsqueeze(1) / (self.embedding_range / math.pi)
        re_rel, im_rel = torch.cos(phase), torch.sin(phase)
        if mode == "head-batch":
            re = re_rel * re_tail + im_rel * im_tail - re_head
            im = re_rel * im_tail - im_rel * re_tail - im_head
        else:
            re = re_head * re_rel - im_head * im_rel - re_tail
            im = re_head * im_rel + im_head * re_rel - im_tail
        distance = torch.stack([re, im], dim=0).norm(dim=0)
        return self.gamma - distance.sum(dim=-1)


class ConvE(nn.Module):
    """Subject and relation as one image, convolved and projected to a vector that all entities are compared with."""

    def __init__(self, cfg):
        super().__init__()
        self.grid = cfg.grid
        height, width = cfg.grid
        self.bias = nn.Parameter(torch.zeros(cfg.num_entities))
        self.bn0 = nn.BatchNorm2d(1)
        self.input_drop = nn.Dropout(cfg.dropout)
        self.conv = nn.Conv2d(1, cfg.channels, 3, padding=1, padding_mode="circular")
        self.bn1 = nn.BatchNorm2d(cfg.channels)
        self.feature_drop = nn.Dropout2d(cfg.dropout)
        self.fc = nn.Linear(cfg.channels * 2 * height * width, cfg.dim)
        self.hidden_drop = nn.Dropout(cfg.dropout)
        self.bn2 = nn.BatchNorm1d(cfg.dim)

    def forward(self, subject, relation, entities):
        x = torch.cat([subject.view(-1, 1, *self.grid), relation.view(-1, 1, *self.grid)], dim=2)
        x = self.input_drop(self.bn0(x))
        x = F.relu(self.bn1(self.conv(x)))
        x = self.feature_drop(x)
        x = self.fc(x.flatten(1))
        x = F.relu(self.bn2(self.hidden_drop(x)))
        return x @ entities.t() + self.bias


class HistoryPrior(nn.Module):
    """What happened before tends to happen again: a leaky, saturating memory of the query's objects."""

    def __init__(self, num_kinds, num_entities, cap):
        super().__init__()
        self.num_entities = num_entities
        self.cap = cap
        self.leak = nn.Parameter(torch.zeros(num_kinds))
        self.gain = nn.Parameter(torch.zeros(num_kinds))

    def forward(self, queries, quads, now):
        kind = queries[:, 1]
        keep = torch.exp(-F.softplus(self.leak[kind])).unsqueeze(1)
        state = keep.new_zeros(queries.shape[0], self.num_entities)
        past = quads[quads[:, 3] < now]
        last = None
        for time in past[:, 3].unique(sorted=True):
            if last is not None:
                state = state * keep ** (time - last)
            snapshot = past[past[:, 3] == time]
            hit = (queries[:, None, :2] == snapshot[None, :, :2]).all(dim=-1)
            state = state.index_add(1, snapshot[:, 2], hit.to(state.dtype)).clamp(max=self.cap)
            last = time
        if last is not None:
            state = state * keep ** (queries[:, 3:4] - last)
        return self.gain[kind].unsqueeze(1) * torch.log1p(state)


class SelfAdversarialLoss(nn.Module):
    """Negatives weigh as much as the model believes in them; those that are facts do not count."""

    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature

    def forward(self, positive, negative, is_fact, weight):
        logits = (negative * self.temperature).masked_fill(is_fact, float("-inf"))
        share = logits.softmax(dim=1).detach()
        negative_loss = -(share * F.logsigmoid(-negative)).sum(dim=1)
        positive_loss = -F.logsigmoid(positive)
        positive_loss = (weight * positive_loss).sum() / weight.sum()
        negative_loss = (weight * negative_loss).sum() / weight.sum()
        return (positive_loss + negative_loss) / 2


class FilteredRanking(nn.Module):
    """Ranks of the targets among what is not known to be true as well; ties share their mean rank."""

    def __init__(self, tolerance, hits):
        super().__init__()
        self.tolerance = tolerance
        self.hits = hits

    def forward(self, scores, targets, known, allowed, kinds):
        scores = scores.masked_fill(~allowed, TYPE_FLOOR)
        target = scores.gather(1, targets.unsqueeze(1))
        others = known.clone()
        others[torch.arange(targets.shape[0], device=targets.device), targets] = False
        scores = scores.masked_fill(others, float("-inf"))

        higher = (scores > target + self.tolerance).sum(dim=1)
        tied = ((scores - target).abs() <= self.tolerance).sum(dim=1) - 1
        ranks = 1.0 + higher + 0.5 * tied

        reciprocal = 1.0 / ranks
        macro = [reciprocal[kinds == kind].mean() for kind in kinds.unique()]
        candidates = (~others).sum(dim=1)
        expected = ((candidates + 1) / 2).mean()
        metrics = [reciprocal.mean(), torch.stack(macro).mean()]
        metrics += [(ranks <= k).float().mean() for k in self.hits]
        metrics.append(1 - (ranks.mean() - 1) / (expected - 1))
        return ranks, torch.stack(metrics)


class TemporalKGC(nn.Module):
    """Encoder, two decoders, their losses and the evaluation of their mixture."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        kinds = 2 * cfg.num_relations
        self.mix = nn.Parameter(torch.zeros(kinds))
        self.encoder = RelationalEncoder(cfg)
        self.rotate = RotatE(cfg.num_relations, cfg.dim, cfg.gamma, cfg.epsilon)
        self.conve = ConvE(cfg)
        self.history = HistoryPrior(kinds, cfg.num_entities, cfg.memory_cap)
        self.adversarial = SelfAdversarialLoss(cfg.temperature)
        self.ranking = FilteredRanking(cfg.tie_tolerance, cfg.hits)

    def rotate_loss(self, entities, queries, asked, quads, negatives, sample_weight):
        """Both sides of every query corrupted in turn; asked has the queries first and then their inverses."""
        s, r, o, _ = queries.unbind(dim=1)
        head, tail = entities[s].unsqueeze(1), entities[o].unsqueeze(1)
        positive = self.rotate(head, r, tail, "single").squeeze(1)
        is_fact = known_objects(asked, quads, entities.shape[0])
        losses = []
        for side, mode in enumerate(("tail-batch", "head-batch")):
            wrong = negatives[:, side]
            pair = (head, entities[wrong]) if mode == "tail-batch" else (entities[wrong], tail)
            negative = self.rotate(pair[0], r, pair[1], mode)
            mask = is_fact.chunk(2)[side].gather(1, wrong)
            losses.append(self.adversarial(positive, negative, mask, sample_weight))
        norms = entities.norm(p=3) ** 3 + self.rotate.phases.norm(p=3) ** 3
        return sum(losses) / len(losses) + self.cfg.regularization * norms

    def conve_loss(self, logits, asked, quads):
        """One against all, with smoothed labels: what is true at the moment asked about."""
        labels = known_objects(asked, quads, logits.shape[1], window=0).to(logits.dtype)
        labels = (1.0 - self.cfg.label_smoothing) * labels + self.cfg.label_smoothing / labels.shape[1]
        return F.binary_cross_entropy_with_logits(logits, labels)

    def forward(self, facts, queries, negatives, sample_weight, entity_types):
        """facts (later ones too) and queries are (subject, relation, object, time), negatives (queries, 2, count)."""
        cfg = self.cfg
        quads = with_inverses(facts, cfg.num_relations)
        asked = with_inverses(queries, cfg.num_relations)
        now = queries[:, 3].min()
        entities, relations = self.encoder(quads, now)

        s, r, o, _ = queries.unbind(dim=1)
        everybody = entities.unsqueeze(0)
        rotate_scores = torch.cat([
            self.rotate(entities[s].unsqueeze(1), r, everybody, "tail-batch"),
            self.rotate(everybody, r, entities[o].unsqueeze(1), "head-batch"),
        ])
        conve_scores = self.conve(entities[asked[:, 0]], relations[asked[:, 1]], entities)
        conve_scores = conve_scores + self.history(asked, quads, now)
        losses = torch.stack([
            self.rotate_loss(entities, queries, asked, quads, negatives, sample_weight),
            self.conve_loss(conve_scores, asked, quads),
        ])

        mix = torch.sigmoid(self.mix[asked[:, 1]]).unsqueeze(1)
        fused = mix * standardise(rotate_scores) + (1 - mix) * standardise(conve_scores)
        ranges = observed_ranges(quads[quads[:, 3] < now], entity_types, cfg.num_relations, cfg.num_types)
        allowed = ranges[asked[:, 1]][:, entity_types]
        known = known_objects(asked, quads, cfg.num_entities, cfg.filter_window)
        ranks, metrics = self.ranking(fused, asked[:, 2], known, allowed, asked[:, 1])
        return rotate_scores, conve_scores, fused, losses, ranks, metrics


def trained_like(net, cfg):
    """Values as after training, not as after the initialisation."""
    encoder, rotate, conve, history = net.encoder, net.rotate, net.conve, net.history
    nn.init.normal_(net.mix, std=0.8)
    nn.init.normal_(encoder.unseen, std=0.015)
    nn.init.normal_(encoder.entities.weight, std=0.02)
    nn.init.normal_(encoder.relations.weight, std=0.3)
    nn.init.normal_(encoder.decay.raw_rate, mean=0.3, std=0.7)
    for layer in encoder.layers:
        nn.init.normal_(layer.bases, std=cfg.dim**-0.5)
        nn.init.normal_(layer.coefficients, std=0.8)
    nn.init.uniform_(rotate.phases, -rotate.embedding_range, rotate.embedding_range)
    nn.init.normal_(conve.bias, std=0.3)
    nn.init.normal_(history.leak, mean=-3.0, std=0.5)
    nn.init.uniform_(history.gain, 0.5, 2.0)
    for module in net.modules():
        if isinstance(module, (nn.LayerNorm, nn.BatchNorm1d, nn.BatchNorm2d)):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.2)
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.3, 0.9)
        elif isinstance(module, (nn.Linear, nn.Conv2d)):
            nn.init.normal_(module.weight, std=module.weight[0].numel() ** -0.5)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.1)
    nn.init.uniform_(conve.bn0.running_var, 0.1, 0.2)
    return net


def make_facts(cfg):
    """Facts that repeat over time, and queries at times after now; the last entities turn up only then."""
    old = cfg.num_entities - 6
    types = torch.arange(cfg.num_entities) % cfg.num_types
    s = (torch.rand(64) ** 1.7 * old).long()
    r = torch.randint(cfg.num_relations, (64,))
    o = torch.randint(old, (64,))
    usual = (o // cfg.num_types * cfg.num_types + r % cfg.num_types) % old
    triples = torch.stack([s, r, torch.where(torch.rand(64) < 0.9, usual, o)], dim=1)
    past = torch.tensor([0, 1, 2, 5, 6, 9, 10, 14, 15, 19])
    later = torch.tensor([20, 21, 22, 25])

    new = torch.stack([torch.randint(old, (6,)), torch.randint(cfg.num_relations, (6,)), old + torch.arange(6)], dim=1)
    blocks = [torch.cat([triples, past[torch.randint(10, (64, 1))]], dim=1) for _ in range(3)]
    asked = torch.cat([torch.cat([triples[:9], triples[:9]]), new[:5]])
    blocks.append(torch.cat([asked, later[torch.randint(4, (asked.shape[0], 1))]], dim=1))
    siblings = asked.clone()
    siblings[:, 2] = torch.randint(old, (asked.shape[0],))
    blocks.append(torch.cat([siblings, later[torch.randint(4, (asked.shape[0], 1))]], dim=1))
    facts = torch.unique(torch.cat(blocks), dim=0)
    facts = facts[torch.randperm(facts.shape[0])]
    fresh = torch.unique(blocks[3], dim=0)
    return facts, fresh[torch.randperm(fresh.shape[0])[:14]], types


def build():
    """The net with the same weights on every run, a small graph, and fourteen queries about it."""
    torch.manual_seed(1956)
    cfg = Config()
    net = trained_like(TemporalKGC(cfg), cfg)
    facts, queries, types = make_facts(cfg)
    negatives = torch.randint(cfg.num_entities, (queries.shape[0], 2, 9))
    negatives[:, 0, 0], negatives[:, 1, 0] = queries[:, 2], queries[:, 0]  # samplers do draw facts at times
    sample_weight = torch.rand(queries.shape[0]) + 0.3
    return net.eval(), (facts, queries, negatives, sample_weight, types)
