"""Node classification on a weighted graph in MindSpore: convolutions, propagation, sampling, correct and smooth."""

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import initializer

DEGREE_STEPS = [1, 2, 3, 5, 8, 12]
TRAIN_DEGREE_COUNTS = [3, 5, 9, 12, 14, 11, 8, 6, 4, 2, 1]


def vector(size, fill, name):
    return Parameter(initializer(fill, (size,), ms.float32), name=name)


def gather_to(values, dst, n):
    """Sum of the rows of values for each target."""
    return ops.unsorted_segment_sum(values, dst, n)


def gcn_weights(src, dst, weight, n):
    """Edge weights over the square roots of the degrees of both ends."""
    degree = gather_to(weight, dst, n)
    inv = ops.where(degree > 0, ops.rsqrt(degree), ops.zeros_like(degree))
    return ops.gather(inv, src, 0) * weight * ops.gather(inv, dst, 0)


def one_hot(labels, classes):
    return ops.gather(ops.eye(classes, classes, ms.float32), labels, 0)


def unit_rows(x):
    """Rows of length one."""
    length = ops.sqrt((x * x).sum(axis=-1, keepdims=True))
    return x / ops.maximum(length, Tensor(1e-12, ms.float32))


class Graph:
    """Ends and weights of the edges, the list with one loop per node, in-degrees and incoming neighbours."""

    def __init__(self, edge_index, edge_weight, n):
        src, dst = edge_index.asnumpy().astype(np.int32)
        self.n = n
        self.np_src, self.np_dst = src, dst
        self.src, self.dst = Tensor(src), Tensor(dst)
        self.weight = edge_weight

        loop = np.flatnonzero(src == dst)
        other = np.flatnonzero(src != dst).astype(np.int32)
        nodes = np.arange(n, dtype=np.int32)
        own = np.ones(n, np.float32)
        own[src[loop]] = edge_weight.asnumpy()[loop]
        self.other = Tensor(other)
        self.own = Tensor(own)
        self.loop_src = Tensor(np.concatenate([src[other], nodes]))
        self.loop_dst = Tensor(np.concatenate([dst[other], nodes]))
        self.in_degree = np.bincount(dst[other], minlength=n)

        order = np.argsort(dst, kind="stable")
        self.sources = src[order]
        self.first = np.searchsorted(dst[order], np.arange(n + 1))

    def looped(self, keep=None):
        """Weights of the list with loops; keep (edges,) is zero for edges that are not there."""
        weight = ops.gather(self.weight, self.other, 0)
        if keep is not None:
            weight = weight * ops.gather(keep, self.other, 0)
        return ops.cat((weight, self.own))

    def spread(self, x, weight):
        """One step over the list with loops."""
        messages = ops.gather(x, self.loop_src, 0) * weight.expand_dims(-1)
        return gather_to(messages, self.loop_dst, self.n)

    def neighbours(self, nodes, uniform):
        """Up to uniform.shape[-1] of the incoming neighbours: all in their order, or random ones if there are more."""
        fanout = uniform.shape[-1]
        begin = self.first[nodes][..., None]
        count = self.first[nodes + 1][..., None] - begin
        slot = np.broadcast_to(np.arange(fanout), uniform.shape)
        real = slot < count
        random = np.floor(uniform * count.astype(np.float32)).astype(np.int64)
        slot = np.where(count > fanout, np.clip(random, 0, count - 1), slot)
        found = np.zeros(uniform.shape, np.int64)
        found[real] = self.sources[(begin + slot)[real]]
        return found, real


class InputLayer(nn.Cell):
    """Bag of words, degree and some known labels to the first state of each node."""

    def __init__(self, words, width, classes, gain):
        super().__init__()
        self.classes = classes
        self.gain = gain
        self.project = nn.Dense(words, 2 * width)  # value and gate
        self.degree_table = nn.Embedding(len(DEGREE_STEPS) + 1, width)
        self.label_table = nn.Embedding(classes + 1, width, padding_idx=classes)
        self.norm = nn.LayerNorm((width,), epsilon=1e-3)

    def construct(self, x, in_degree, labels, known):
        total = ops.clamp(x.sum(axis=1, keepdims=True), min=1.0)
        x = ops.log1p(self.gain * (x / total))
        value, gate = ops.chunk(self.project(x), 2, axis=-1)
        bucket = np.searchsorted(np.array(DEGREE_STEPS), in_degree, side="left")
        given = ops.where(known, labels.astype(ms.int32), Tensor(self.classes, ms.int32))
        h = value * ops.sigmoid(gate)
        h = h + self.degree_table(Tensor(bucket.astype(np.int32)))
        return self.norm(h + self.label_table(given))


class GraphNorm(nn.Cell):
    """Over all nodes; how much of the mean goes is learned."""

    def __init__(self, width, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.gamma = vector(width, "ones", "gamma")
        self.beta = vector(width, "zeros", "beta")
        self.mean_scale = vector(width, "ones", "mean_scale")

    def construct(self, x):
        centred = x - self.mean_scale * ops.mean(x, 0, True)
        spread = ops.mean(ops.square(centred), 0, True)
        return self.gamma * centred * ops.rsqrt(spread + self.eps) + self.beta


class GraphLayer(nn.Cell):
    """Graph convolution with norm, shortcut and activation."""

    def __init__(self, width_in, width_out, norm):
        super().__init__()
        self.dense = nn.Dense(width_in, width_out, has_bias=False)
        self.bias = vector(width_out, "zeros", "bias")
        if norm == "graph":
            self.norm = GraphNorm(width_out)
        else:
            self.norm = nn.BatchNorm1d(width_out, eps=1e-5)
        self.shortcut = None
        if width_in != width_out:
            self.shortcut = nn.Dense(width_in, width_out)
        self.act = nn.PReLU(width_out)

    def construct(self, x, graph, mask):
        weight = graph.looped(mask.astype(ms.float32))
        weight = gcn_weights(graph.loop_src, graph.loop_dst, weight, graph.n)
        out = graph.spread(self.dense(x), weight) + self.bias
        out = self.norm(out)
        residual = x if self.shortcut is None else self.shortcut(x)
        return self.act(out + residual)


class LayerAttention(nn.Cell):
    """Jumping knowledge: a weighted mean of the layers' states, scored by an LSTM that runs both ways along them."""

    def __init__(self, width, layers):
        super().__init__()
        size = layers * width // 4
        self.rnn = nn.LSTM(width, size, bidirectional=True)
        self.score = nn.Dense(2 * size, 1)

    def construct(self, states):
        stacked = ops.stack(states, axis=0)  # (layers, nodes, width)
        seen, _ = self.rnn(stacked)
        share = ops.softmax(self.score(seen), axis=0)
        return (share * stacked).sum(axis=0), share.squeeze(-1).T


class Elu(nn.Cell):
    """nn.ELU has no alpha but 1."""

    def __init__(self, alpha=1.0):
        super().__init__()
        self.alpha = alpha

    def construct(self, x):
        return ops.relu(x) + self.alpha * (ops.exp(-ops.relu(-x)) - 1.0)


class Perceptron(nn.Cell):
    """Hidden layer in groups of four channels, then the classes."""

    def __init__(self, width, classes, drop):
        super().__init__()
        self.hidden = nn.Dense(width, width)
        self.norm = nn.GroupNorm(width // 4, width)
        self.act = Elu(alpha=0.5)
        self.drop = nn.Dropout(p=drop)
        self.out = nn.Dense(width, classes)

    def construct(self, x):
        x = self.norm(self.hidden(x).reshape(x.shape[0], -1, 1, 1)).reshape(x.shape[0], -1)
        return self.out(self.drop(self.act(x)))


class PersonalisedWalk(nn.Cell):
    """APPNP; each step has its own mask of edges."""

    def __init__(self, restart, drop):
        super().__init__()
        self.restart = restart
        self.keep = 1.0 - drop

    def construct(self, local, graph, masks):
        base = gcn_weights(graph.loop_src, graph.loop_dst, graph.looped(), graph.n)
        state = local
        for mask in masks:
            alive = ops.gather(mask.astype(ms.float32), graph.other, 0) / self.keep
            alive = ops.cat((alive, ops.ones(graph.n, ms.float32)))
            state = graph.spread(state, base * alive)
            state = state + self.restart * (local - state)
        return state


class SampleConv(nn.Cell):
    """GraphSAGE layer with the mean and the maximum; the maximum is scaled by the logarithm of the degree."""

    def __init__(self, width_in, width_out):
        super().__init__()
        self.from_others = nn.Dense(2 * width_in, width_out)
        self.from_self = nn.Dense(width_in, width_out, has_bias=False)
        counts = np.array(TRAIN_DEGREE_COUNTS, np.float64)
        self.typical = float((counts * np.log(np.arange(len(counts)) + 1)).sum() / counts.sum())

    def construct(self, x, others, real, degree):
        mask = Tensor(real.astype(np.float32)).expand_dims(-1)
        number = mask.sum(axis=-2)
        mean = (others * mask).sum(axis=-2) / ops.clamp(number, min=1.0)
        peak = ops.where(mask > 0, others, Tensor(-1e9, ms.float32)).max(axis=-2)
        peak = ops.where(number > 0, peak, ops.zeros_like(peak))
        stretch = (np.log(degree + 1.0) / self.typical).astype(np.float32)
        peak = peak * Tensor(stretch).expand_dims(-1)
        return unit_rows(self.from_others(ops.cat((mean, peak), axis=-1)) + self.from_self(x))


class SampledClassifier(nn.Cell):
    """Two GraphSAGE layers from the leaves of the sampled tree to the seeds; cosine to one prototype per class."""

    def __init__(self, width, widths, classes, scale):
        super().__init__()
        self.prototypes = Parameter(initializer("zeros", (classes, widths[-1]), ms.float32), name="prototypes")
        self.layers = nn.CellList([SampleConv(a, b) for a, b in zip((width,) + widths, widths)])
        self.act = nn.LeakyReLU(alpha=0.1)
        self.scale = scale

    def construct(self, x, graph, seeds, uniforms):
        degree = np.diff(graph.first)
        levels, real = [seeds.asnumpy()], []
        for uniform in uniforms:
            nodes, ok = graph.neighbours(levels[-1], uniform.asnumpy())
            levels.append(nodes)
            real.append(ok)

        hidden = [ops.gather(x, Tensor(nodes.astype(np.int32)), 0) for nodes in levels]
        while len(hidden) > 1:
            layer = len(levels) - len(hidden)
            last = layer == len(self.layers) - 1
            merged = []
            for i in range(len(hidden) - 1):
                out = self.layers[layer](hidden[i], hidden[i + 1], real[i], degree[levels[i]])
                merged.append(out if last else self.act(out))
            hidden = merged
        embedding = hidden[0]
        cosine = ops.matmul(embedding, unit_rows(self.prototypes).T)
        return embedding, self.scale * cosine


class CorrectThenSmooth(nn.Cell):
    """Post-processing without weights."""

    def __init__(self, correct=(8, 0.8), smooth=(6, 0.7)):
        super().__init__()
        self.correct_steps, self.correct_alpha = correct
        self.smooth_steps, self.smooth_alpha = smooth

    def construct(self, soft, labels, chosen, graph):
        n, classes = soft.shape
        weight = gcn_weights(graph.src, graph.dst, graph.weight, n).expand_dims(-1)
        target = one_hot(labels, classes)
        chosen = chosen.astype(ms.float32).expand_dims(-1)

        # residuals of the chosen nodes, spread over the graph
        residual = chosen * (target - soft)
        moved = residual
        for _ in range(self.correct_steps):
            moved = gather_to(weight * ops.gather(moved, graph.src, 0), graph.dst, n)
            moved = self.correct_alpha * moved + (1 - self.correct_alpha) * residual
            moved = ops.clip_by_value(moved, -1.0, 1.0)
        size = ops.abs(moved).sum(axis=1, keepdims=True)
        ratio = ops.abs(residual).sum() / chosen.sum() / size
        ratio = ops.where(ratio > 1000, ops.ones_like(ratio), ratio)
        corrected = soft + ratio * moved

        # known labels over the corrected scores, spread again
        seeded = chosen * target + (1 - chosen) * corrected
        out = seeded
        for _ in range(self.smooth_steps):
            arrived = gather_to(weight * ops.gather(out, graph.src, 0), graph.dst, n)
            out = self.smooth_alpha * arrived + (1 - self.smooth_alpha) * seeded
            out = ops.clip_by_value(out, 0.0, 1.0)
        return corrected, out


class Report(nn.Cell):
    """All losses and scores."""

    def __init__(self, classes, smoothing=0.1, heat=2.5, gamma=2.0, bins=8):
        super().__init__()
        self.classes, self.smoothing, self.heat, self.gamma, self.bins = classes, smoothing, heat, gamma, bins
        self.class_weight = Parameter(Tensor(np.ones(classes, np.float32)), name="class_weight", requires_grad=False)

    def smoothed_loss(self, log_p, target, chosen):
        """Cross entropy with weights of the classes and smoothed labels, over the chosen nodes."""
        weight = (target * self.class_weight).sum(axis=-1) * chosen
        hard = -(log_p * target).sum(axis=-1) * weight
        soft = -(log_p * self.class_weight).sum(axis=-1) * chosen
        hard, soft = hard.sum() / weight.sum(), soft.sum() / weight.sum()
        return (1.0 - self.smoothing) * hard + self.smoothing / self.classes * soft

    def focal(self, log_p, target, chosen):
        picked = (log_p * target).sum(axis=-1)
        each = -ops.pow(1.0 - ops.exp(picked), self.gamma) * picked
        return (each * chosen).sum() / chosen.sum()

    def calibration_gap(self, prob, labels, chosen):
        """Bin the confidence; what is right minus what was promised."""
        confidence = prob.max(axis=-1)
        right = (prob.argmax(axis=-1) == labels).astype(ms.float32)
        slot = ops.ceil(confidence * self.bins).astype(ms.int32) - 1
        gap = gather_to((right - confidence) * chosen, slot, self.bins)
        return ops.abs(gap).sum() / chosen.sum()

    def soft_f1(self, scores, target, chosen):
        share = scores / ops.clamp(scores.sum(axis=-1, keepdims=True), min=1e-8)
        share, target = share * chosen.expand_dims(-1), target * chosen.expand_dims(-1)
        hits = (share * target).sum(axis=0)
        count = target.sum(axis=0)
        f1 = 2 * hits / ops.clamp(share.sum(axis=0) + count, min=1e-8)
        present = (count > 0).astype(ms.float32)
        return (f1 * present).sum() / present.sum()

    def construct(self, logits, smoothed, sampled, seeds, labels, split, graph):
        train, val, test = [(split == part).astype(ms.float32) for part in (0, 1, 2)]
        log_p = ops.log_softmax(logits, -1)
        prob = ops.softmax(logits, -1)
        target = one_hot(labels, self.classes)

        student = ops.log_softmax(sampled / self.heat, -1)
        teacher = ops.softmax(ops.gather(logits, seeds, 0) / self.heat, -1)
        distance = (teacher * (ops.log(teacher) - student)).sum(axis=-1)

        degree = gather_to(graph.weight, graph.dst, graph.n)
        even = prob * ops.rsqrt(degree + 1.0).expand_dims(-1)
        jump = ops.square(ops.gather(even, graph.src, 0) - ops.gather(even, graph.dst, 0)).sum(axis=-1)
        return {
            "train_loss": self.smoothed_loss(log_p, target, train),
            "val_focal": self.focal(log_p, target, val),
            "val_ece": self.calibration_gap(prob, labels, val),
            "distill": distance.mean() * self.heat**2,
            "smoothness": (graph.weight * jump).sum() / (2.0 * graph.weight.sum()),
            "test_f1": self.soft_f1(smoothed, target, test),
        }


class NodeClassifier(nn.Cell):
    """The whole pipeline."""

    def __init__(self, words=30, first=20, width=24, classes=6, norms=("batch", "graph", "batch")):
        super().__init__()
        self.log_scale = vector(1, "zeros", "log_scale")
        self.inputs = InputLayer(words, first, classes, gain=40.0)
        sizes = [first] + [width] * len(norms)
        self.layers = nn.CellList([GraphLayer(sizes[i], sizes[i + 1], norm) for i, norm in enumerate(norms)])
        self.jump = LayerAttention(width, len(norms))
        self.perceptron = Perceptron(width, classes, drop=0.5)
        self.walk = PersonalisedWalk(restart=0.15, drop=0.25)
        self.sampled = SampledClassifier(width, (18, 14), classes, scale=8.0)
        self.post = CorrectThenSmooth()
        self.report = Report(classes)

    def construct(self, x, edge_index, edge_weight, edge_masks, labels, label_known, split, seeds, uniform1, uniform2):
        graph = Graph(edge_index, edge_weight, x.shape[0])
        h = self.inputs(x, graph.in_degree, labels, label_known)
        states = []
        for i, layer in enumerate(self.layers):
            h = layer(h, graph, edge_masks[i])
            states.append(h)
        fused, layer_weights = self.jump(states)

        local = self.perceptron(fused)
        logits = ops.exp(self.log_scale) * self.walk(local, graph, edge_masks[len(states):])
        embedding, sage_logits = self.sampled(fused, graph, seeds, (uniform1, uniform2))

        hidden_labels = ops.logical_and(split == 0, ops.logical_not(label_known))
        corrected, smoothed = self.post(ops.softmax(logits, axis=-1), labels, hidden_labels, graph)
        outputs = self.report(logits, smoothed, sage_logits, seeds, labels, split, graph)
        outputs.update(
            local=local, logits=logits, layer_weights=layer_weights, embedding=embedding, sage_logits=sage_logits,
            corrected=corrected, smoothed=smoothed,
        )
        return outputs


def build():
    """The net alone; the weights and the inputs are the reference's."""
    net = NodeClassifier()
    net.set_train(False)
    return net
