"""Temporal knowledge graph completion (R-GCN encoder, RotatE and ConvE) in MindSpore: the correct port."""

from __future__ import annotations

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

PI = 3.141592653589793
RANGE_EPSILON = 2.0  # widens the range of the embeddings beyond gamma / width
RRELU_SLOPE = (1.0 / 8.0 + 1.0 / 3.0) / 2.0  # a randomised ReLU outside of training
OUT_OF_RANGE = -1e4
NEG_INF = float("-inf")


def zeros_parameter(shape, name):
    return Parameter(Tensor(np.zeros(shape, np.float32)), name=name)


def flip(quads, shift):
    """(s, r, o, t) -> (o, r + shift, s, t)."""
    s, r, o, t = ops.unstack(quads, axis=1)
    return ops.stack((o, r + shift, s, t), axis=1)


def one_hot(index, depth):
    return (index.expand_dims(-1) == ops.arange(depth)).astype(ms.float32)


def same_question(queries, quads):
    """(queries, quads): whether subject and relation agree."""
    agree = queries.expand_dims(1) == quads.expand_dims(0)
    return agree[..., :2].all(axis=-1)


def true_objects(queries, quads, num_entities, window=None):
    """(queries, entities) of booleans, all of time or only the quads around the time of the query."""
    match = same_question(queries, quads)
    if window is not None:
        distance = ops.abs(queries[:, 3].expand_dims(1) - quads[:, 3].expand_dims(0))
        match = ops.logical_and(match, distance <= window)
    return ops.matmul(match.astype(ms.float32), one_hot(quads[:, 2], num_entities)) > 0.5


def z_score(scores):
    centred = scores - scores.mean(axis=1, keep_dims=True)
    variance = (centred * centred).sum(axis=1, keepdims=True) / (scores.shape[1] - 1)
    return centred / ops.sqrt(variance)


class Forgetting(nn.Cell):
    """Weight of a fact by relation and age, never below the floor."""

    def __init__(self, num_relations, horizon, floor):
        super().__init__()
        self.num_relations = num_relations
        self.horizon = horizon
        self.floor = floor
        self.raw_rate = zeros_parameter((num_relations,), "raw_rate")

    def construct(self, relation, age):
        rate = ops.softplus(ops.gather(self.raw_rate, relation % self.num_relations, 0))
        fresh = ops.exp(-rate * age.astype(ms.float32) / self.horizon)
        return fresh * (1.0 - self.floor) + self.floor


class BasisConv(nn.Cell):
    """One step over the typed edges; messages are formed per basis and mixed per edge."""

    def __init__(self, width, num_kinds, num_bases, dropout):
        super().__init__()
        self.num_kinds = num_kinds
        self.bases = zeros_parameter((num_bases, width, width), "bases")
        self.coefficients = zeros_parameter((num_kinds, num_bases), "coefficients")
        self.loop = nn.Dense(width, width, has_bias=False)
        self.evolve_loop = nn.Dense(width, width, has_bias=False)
        self.norm = nn.LayerNorm([width], epsilon=1e-5)
        self.act = nn.LeakyReLU(alpha=RRELU_SLOPE)
        self.dropout = nn.Dropout(p=dropout)
        self.relation = nn.Dense(width, width)

    def construct(self, x, relations, src, kind, dst, weight, alive):
        """weight is zero, as alive is, for edges that are not there yet."""
        n = x.shape[0]
        slot = kind * n + dst
        count = ops.unsorted_segment_sum(alive, slot, self.num_kinds * n)
        norm = weight / ops.clamp(ops.gather(count, slot, 0), min=1.0)

        by_basis = ops.matmul(x.expand_dims(0), self.bases).swapaxes(0, 1)  # (n, bases, width)
        share = ops.gather(self.coefficients, kind, 0).expand_dims(-1)
        messages = (ops.gather(by_basis, src, 0) * share).sum(axis=1) * norm.expand_dims(1)
        received = ops.unsorted_segment_sum(messages, dst, n)

        degree = ops.unsorted_segment_sum(alive, dst, n)
        looped = ops.where((degree > 0).expand_dims(1), self.loop(x), self.evolve_loop(x))
        out = self.dropout(self.act(self.norm(received + looped)))

        shift = (ops.gather(x, dst, 0) - ops.gather(x, src, 0)) * weight.expand_dims(1)
        shift = ops.unsorted_segment_sum(shift, kind, self.num_kinds)
        mass = ops.unsorted_segment_sum(weight, kind, self.num_kinds)
        shift = shift / ops.clamp(mass, min=1e-6).expand_dims(1)
        return out, relations + ops.tanh(self.relation(shift))


class GraphEncoder(nn.Cell):
    """Entities and relations as seen from the moment now."""

    def __init__(self, num_entities, num_relations, width, num_bases, depth, horizon, floor, dropout):
        super().__init__()
        self.num_entities = num_entities
        self.unseen = zeros_parameter((width,), "unseen")
        self.entities = nn.Embedding(num_entities, width)
        self.relations = nn.Embedding(2 * num_relations, width)
        self.norm = nn.LayerNorm((width,), epsilon=1e-5)
        self.decay = Forgetting(num_relations, horizon, floor)
        self.layers = nn.CellList([BasisConv(width, 2 * num_relations, num_bases, dropout) for _ in range(depth)])
        self.gate = nn.Dense(width, width)

    def construct(self, quads, now):
        src, kind, dst, time = ops.unstack(quads, axis=1)
        alive = (time < now).astype(ms.float32)
        age = now - time
        weight = self.decay(kind, age) * alive

        # every edge is there in both directions, so that the subjects are all the entities
        seen = ops.unsorted_segment_sum(alive, src, self.num_entities) > 0
        x = ops.where(seen.expand_dims(1), self.entities.embedding_table, self.unseen.expand_dims(0))
        x = self.norm(x)
        relations = self.relations.embedding_table
        for layer in self.layers:
            update, relations = layer(x, relations, src, kind, dst, weight, alive)
            gate = ops.sigmoid(self.gate(x))
            x = x + gate * (update - x)
        length = ops.sqrt((x * x).sum(axis=-1, keepdims=True))
        return x / length, relations


class Rotation(nn.Cell):
    """RotatE. The head is rotated onto the tail, or the tail back onto the head where heads are the candidates."""

    def __init__(self, num_relations, width, gamma):
        super().__init__()
        self.gamma = gamma
        self.half = width // 2
        self.embedding_range = (gamma + RANGE_EPSILON) / width
        self.phases = zeros_parameter((num_relations, width // 2), "phases")

    def turn(self, x, cos, sin):
        re, im = ops.split(x, self.half, axis=-1)
        return re * cos - im * sin, re * sin + im * cos

    def construct(self, head, relation, tail, backwards=False):
        phase = ops.gather(self.phases, relation, 0).expand_dims(1) * (PI / self.embedding_range)
        if backwards:
            phase = -phase
            head, tail = tail, head
        re, im = self.turn(head, ops.cos(phase), ops.sin(phase))
        re_tail, im_tail = ops.split(tail, self.half, axis=-1)
        distance = ops.sqrt(ops.square(re - re_tail) + ops.square(im - im_tail))
        return self.gamma - distance.sum(axis=-1)


class ConvDecoder(nn.Cell):
    """ConvE whose convolution goes round the edges of the image."""

    def __init__(self, num_entities, width, grid, channels, dropout):
        super().__init__()
        self.grid = grid
        h, w = grid
        self.bias = zeros_parameter((num_entities,), "bias")
        self.bn0 = nn.BatchNorm2d(1)
        self.conv = nn.Conv2d(1, channels, 3, pad_mode="valid", has_bias=True)
        self.bn1 = nn.BatchNorm2d(channels)
        self.fc = nn.Dense(channels * 2 * h * w, width)
        self.bn2 = nn.BatchNorm1d(width)
        self.relu = nn.ReLU()
        self.dropout = nn.Dropout(p=dropout)
        self.dropout2d = nn.Dropout2d(p=dropout)

    @staticmethod
    def wrap(x):
        x = ops.cat((x[:, :, -1:], x, x[:, :, :1]), axis=2)
        return ops.cat((x[:, :, :, -1:], x, x[:, :, :, :1]), axis=3)

    def construct(self, subject, relation, entities):
        b = subject.shape[0]
        image = ops.cat((subject.reshape(b, 1, *self.grid), relation.reshape(b, 1, *self.grid)), axis=2)
        x = self.dropout(self.bn0(image))
        x = self.conv(self.wrap(x))
        x = self.dropout2d(self.relu(self.bn1(x)))
        x = self.fc(x.reshape(b, -1))
        x = self.relu(self.bn2(self.dropout(x)))
        return ops.matmul(x, entities.T) + self.bias


class Recurrence(nn.Cell):
    """Leaky memory over the snapshots of the past of what the objects of each question were."""

    def __init__(self, num_entities, num_kinds, cap):
        super().__init__()
        self.num_entities = num_entities
        self.cap = cap
        self.leak = zeros_parameter((num_kinds,), "leak")
        self.gain = zeros_parameter((num_kinds,), "gain")

    def construct(self, questions, quads, now):
        _, kind, _, asked_at = ops.unstack(questions, axis=1)
        _, _, objects, time = ops.unstack(quads, axis=1)
        rate = ops.softplus(ops.gather(self.leak, kind, 0)).expand_dims(1)
        match = same_question(questions, quads).astype(ms.float32)
        objects = one_hot(objects, self.num_entities)

        steps = [int(t) for t in np.unique(time.asnumpy()) if t < int(now)]
        memory = ops.zeros((questions.shape[0], self.num_entities), ms.float32)
        previous = steps[0] if steps else int(now)
        for step in steps:
            gap = step - previous
            memory = memory * ops.exp(-rate * gap)
            at_step = (time == step).astype(ms.float32)
            memory = ops.minimum(memory + ops.matmul(match * at_step, objects), Tensor(self.cap, ms.float32))
            previous = step
        wait = (asked_at - previous).astype(ms.float32).expand_dims(1)
        memory = memory * ops.exp(-rate * wait)
        return ops.gather(self.gain, kind, 0).expand_dims(1) * ops.log1p(memory)


def self_adversarial_loss(positive, negative, is_fact, weight, temperature):
    """Both halves of the loss are means over the queries by their weights."""
    weight = weight / weight.sum()
    belief = ops.masked_fill(negative * temperature, is_fact, NEG_INF)
    belief = ops.stop_gradient(ops.softmax(belief, axis=1))
    per_query = ops.softplus(-positive) + (belief * ops.softplus(negative)).sum(axis=1)
    return 0.5 * (weight * per_query).sum()


def smoothed_bce(logits, truth, smoothing):
    labels = truth.astype(ms.float32) * (1.0 - smoothing) + smoothing / truth.shape[1]
    loss = ops.relu(logits) - logits * labels + ops.log1p(ops.exp(-ops.abs(logits)))
    return loss.mean()


def filtered_ranks(scores, targets, known, allowed, tolerance):
    """Mean rank of the target among its ties, without the other known answers; and the number of candidates."""
    is_target = targets.expand_dims(1) == ops.arange(scores.shape[1])
    removed = ops.logical_and(known, ops.logical_not(is_target))
    scores = ops.masked_fill(scores, ops.logical_not(allowed), OUT_OF_RANGE)
    target = ops.gather_elements(scores, 1, targets.expand_dims(1))
    scores = ops.masked_fill(scores, removed, NEG_INF)
    better = (scores > target + tolerance).astype(ms.float32).sum(axis=1)
    equal = (ops.abs(scores - target) <= tolerance).astype(ms.float32).sum(axis=1) - 1.0
    candidates = ops.logical_not(removed).astype(ms.float32).sum(axis=1)
    return 1.0 + better + equal / 2, candidates


def ranking_metrics(ranks, candidates, kinds, cutoffs):
    """MRR, the same with all relations alike, hits, and the adjusted mean rank index."""
    reciprocal = 1.0 / ranks
    kinds = kinds.asnumpy()
    per_kind = [reciprocal[Tensor(np.flatnonzero(kinds == k))].mean() for k in np.unique(kinds)]
    hits = [(ranks <= cutoff).astype(ms.float32).mean() for cutoff in cutoffs]
    by_chance = ((candidates + 1.0) / 2.0).mean()
    adjusted = 1.0 - (ranks.mean() - 1.0) / (by_chance - 1.0)
    return ops.stack([reciprocal.mean(), ops.stack(per_kind).mean(), *hits, adjusted])


class KnowledgeGraphNet(nn.Cell):
    """Scores of both sides of the queries by both decoders, the losses, and the ranks of the mixture."""

    def __init__(self, num_entities=41, num_relations=6, num_types=4, width=32, num_bases=3, depth=2, dropout=0.2,
                 horizon=10.0, floor=0.15, cap=1.4, window=1, gamma=6.0, temperature=1.5, regularization=2e-3,
                 grid=(4, 8), channels=6, smoothing=0.1, tolerance=1e-4, cutoffs=(1, 3, 10)):
        super().__init__()
        self.num_entities = num_entities
        self.num_relations = num_relations
        self.num_types = num_types
        self.window = window
        self.temperature = temperature
        self.regularization = regularization
        self.smoothing = smoothing
        self.tolerance = tolerance
        self.cutoffs = cutoffs
        self.mix = zeros_parameter((2 * num_relations,), "mix")
        self.encoder = GraphEncoder(num_entities, num_relations, width, num_bases, depth, horizon, floor, dropout)
        self.rotation = Rotation(num_relations, width, gamma)
        self.conv = ConvDecoder(num_entities, width, grid, channels, dropout)
        self.recurrence = Recurrence(num_entities, 2 * num_relations, cap)

    def rotation_loss(self, entities, queries, facts, negatives, weight):
        shift = self.num_relations
        s, r, o, _ = ops.unstack(queries, axis=1)
        head = ops.gather(entities, s, 0).expand_dims(1)
        tail = ops.gather(entities, o, 0).expand_dims(1)
        positive = self.rotation(head, r, tail).squeeze(1)

        wrong_tail, wrong_head = ops.unstack(negatives, axis=1)
        scores = self.rotation(head, r, ops.gather(entities, wrong_tail, 0))
        true_tail = true_objects(queries, facts, self.num_entities)
        true_tail = ops.gather_elements(true_tail.astype(ms.int32), 1, wrong_tail) > 0
        loss = self_adversarial_loss(positive, scores, true_tail, weight, self.temperature)

        scores = self.rotation(ops.gather(entities, wrong_head, 0), r, tail, backwards=True)
        true_head = true_objects(flip(queries, shift), flip(facts, shift), self.num_entities)
        true_head = ops.gather_elements(true_head.astype(ms.int32), 1, wrong_head) > 0
        loss = loss + self_adversarial_loss(positive, scores, true_head, weight, self.temperature)

        cubes = (ops.abs(entities) ** 3).sum() + (ops.abs(self.rotation.phases) ** 3).sum()
        return loss / 2 + self.regularization * cubes

    def construct(self, facts, queries, negatives, sample_weight, entity_types):
        quads = ops.cat((facts, flip(facts, self.num_relations)), axis=0)
        questions = ops.cat((queries, flip(queries, self.num_relations)), axis=0)
        subject, kind, answer, _ = ops.unstack(questions, axis=1)
        s, r, o, time = ops.unstack(queries, axis=1)
        now = time.min()
        entities, relations = self.encoder(quads, now)

        everyone = entities.expand_dims(0)
        tails = self.rotation(ops.gather(entities, s, 0).expand_dims(1), r, everyone)
        heads = self.rotation(everyone, r, ops.gather(entities, o, 0).expand_dims(1), backwards=True)
        rotated = ops.cat((tails, heads), axis=0)
        convolved = self.conv(ops.gather(entities, subject, 0), ops.gather(relations, kind, 0), entities)
        convolved = convolved + self.recurrence(questions, quads, now)

        rotation_loss = self.rotation_loss(entities, queries, facts, negatives, sample_weight)
        true_now = true_objects(questions, quads, self.num_entities, window=0)
        conv_loss = smoothed_bce(convolved, true_now, self.smoothing)

        share = ops.sigmoid(ops.gather(self.mix, kind, 0)).expand_dims(1)
        fused = share * z_score(rotated) + (1.0 - share) * z_score(convolved)

        # the types of objects that each relation had so far
        _, fact_kind, fact_object, fact_time = ops.unstack(quads, axis=1)
        past = (fact_time < now).astype(ms.float32).expand_dims(1)
        of_kind = one_hot(fact_kind, 2 * self.num_relations)
        of_type = one_hot(ops.gather(entity_types, fact_object, 0), self.num_types)
        ranges = ops.matmul(of_kind.T, of_type * past)
        allowed = ops.gather(ops.gather(ranges, kind, 0), entity_types, 1) > 0.5
        known = true_objects(questions, quads, self.num_entities, window=self.window)
        ranks, candidates = filtered_ranks(fused, answer, known, allowed, self.tolerance)
        metrics = ranking_metrics(ranks, candidates, kind, self.cutoffs)
        return rotated, convolved, fused, ops.stack([rotation_loss, conv_loss]), ranks, metrics


def build():
    """The net alone, for evaluation: weights and inputs come from the reference's dump."""
    net = KnowledgeGraphNet()
    net.set_train(False)
    return net
