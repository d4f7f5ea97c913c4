"""MolGraph in MindSpore: directed message passing on padded batches of molecules (PyNative mode)."""
import math

import numpy as np
import mindspore as ms
from mindspore import nn, ops, Parameter, Tensor
from mindspore.common.initializer import initializer, Normal


def segment_sum(data, ids, num):
    return ops.unsorted_segment_sum(data, ids, num)


def segment_max(data, ids, num, keep):
    """Max over the kept rows of every segment, 0 for a segment without rows."""
    keep = keep.reshape((-1,) + (1,) * (data.ndim - 1))
    low = ops.masked_fill(data, ops.logical_not(keep), -1e30)
    top = ops.unsorted_segment_max(low, ids, num)
    return ops.where(top < -1e29, ops.zeros_like(top), top)


def segment_softmax(logits, ids, num, keep):
    shifted = logits - ops.gather(segment_max(logits, ids, num, keep), ids, 0)
    weight = ops.exp(shifted) * keep.expand_dims(-1).astype(logits.dtype)
    total = ops.gather(segment_sum(weight, ids, num), ids, 0)
    return weight / (total + 1e-9)


class AtomEncoder(nn.Cell):
    """Categorical fields share one table; field k starts at offsets[k]."""

    def __init__(self, cards, n_cont, dim, max_degree=4):
        super().__init__()
        self.max_degree = max_degree
        self.scale = 1.0 / math.sqrt(len(cards))
        starts = np.concatenate([[0], np.cumsum(cards)[:-1]])
        self.offsets = Tensor(starts, ms.int32)
        self.table = nn.Embedding(int(sum(cards)), dim)
        self.cont = nn.Dense(n_cont, dim, has_bias=False)
        self.degree = nn.Embedding(max_degree + 1, dim)
        self.norm = nn.LayerNorm((dim,), epsilon=1e-5)

    def construct(self, cats, cont, deg, mask):
        fields = self.table(cats + self.offsets)
        x = fields.sum(axis=2) * self.scale
        degree = ops.clamp(deg.astype(ms.int32), max=self.max_degree)
        x = x + self.cont(cont) + self.degree(degree)
        return self.norm(x) * mask.expand_dims(-1)


class RadialBasis(nn.Cell):
    """Gaussians on the bond length under a cosine envelope."""

    def __init__(self, num, cutoff):
        super().__init__()
        self.cutoff = cutoff
        centers = np.linspace(0.5, cutoff, num).astype(np.float32)
        self.centers = Tensor(centers)
        self.gamma = 0.5 / float(centers[1] - centers[0]) ** 2

    def construct(self, dist):
        envelope = 0.5 * (ops.cos(dist * (math.pi / self.cutoff)) + 1.0)
        envelope = envelope * (dist < self.cutoff).astype(dist.dtype)
        diff = dist.expand_dims(-1) - self.centers
        return ops.exp(-self.gamma * ops.square(diff)) * envelope.expand_dims(-1)


class BondEncoder(nn.Cell):
    def __init__(self, n_type, n_stereo, n_rbf, dim, cutoff=3.2):
        super().__init__()
        self.kind = nn.Embedding(n_type, dim)
        self.stereo = nn.Embedding(n_stereo, dim // 2)
        self.rbf = RadialBasis(n_rbf, cutoff)
        self.proj = nn.Dense(dim + dim // 2 + n_rbf, dim)
        self.act = nn.GELU(approximate=False)
        self.out = nn.Dense(dim, dim)
        self.norm = nn.LayerNorm((dim,), epsilon=1e-3)

    def construct(self, bonds, index, pos, mask):
        ends = []
        for side in range(2):
            at = index[:, :, side:side + 1].broadcast_to(index.shape[:2] + (3,))
            ends.append(ops.gather_elements(pos, 1, at))
        dist = ops.sqrt(ops.square(ends[0] - ends[1]).sum(axis=-1) + 1e-8)
        z = ops.cat((self.kind(bonds[:, :, 0]), self.stereo(bonds[:, :, 1]), self.rbf(dist)), axis=-1)
        z = self.out(self.act(self.proj(z))) * 0.2
        return self.norm(z) * mask.expand_dims(-1)


class DirectedMessage(nn.Cell):
    """Message along v->w from all bonds into v except w->v."""

    def __init__(self, dim, edim):
        super().__init__()
        self.inp = nn.Dense(dim + edim, dim)
        self.hid = nn.Dense(dim, dim, has_bias=False)

    def construct(self, h, e, m, graph):
        keep = graph["edge_mask"].expand_dims(-1)
        m = m * keep
        arriving = segment_sum(m, graph["dst"], h.shape[0])
        context = ops.gather(arriving, graph["src"], 0) - ops.gather(m, graph["rev"], 0)
        own = self.inp(ops.cat((ops.gather(h, graph["src"], 0), e), axis=-1))
        return ops.silu(own + self.hid(context)) * keep


class NeighbourAttention(nn.Cell):
    def __init__(self, dim, edim, heads):
        super().__init__()
        self.heads = heads
        self.head_dim = dim // heads
        self.q = nn.Dense(dim, dim)
        self.kv = nn.Dense(dim + edim, 2 * dim)
        self.bias = nn.Dense(edim, heads, has_bias=False)
        self.leaky = nn.LeakyReLU(alpha=0.01)
        self.out = nn.Dense(dim, dim)

    def construct(self, h, e, graph):
        num = h.shape[0]
        src, dst = graph["src"], graph["dst"]
        keep = graph["edge_mask"] > 0
        split = (-1, self.heads, self.head_dim)
        query = ops.gather(self.q(h), dst, 0).reshape(split)
        key, value = ops.chunk(self.kv(ops.cat((ops.gather(h, src, 0), e), axis=-1)), 2, axis=-1)
        key, value = key.reshape(split), value.reshape(split)
        score = (query * key).sum(axis=-1) / math.sqrt(self.head_dim)
        score = self.leaky(score + self.bias(e))
        alpha = segment_softmax(score, dst, num, keep)
        pooled = segment_sum(alpha.expand_dims(-1) * value, dst, num)
        return self.out(pooled.reshape(num, -1))


class Aggregator(nn.Cell):
    """PNA: mean / max / std with identity, amplification and attenuation."""

    def __init__(self, dim, out, delta=1.15):
        super().__init__()
        self.delta = delta
        self.lin = nn.Dense(9 * dim, out)

    def construct(self, m, graph):
        num = graph["deg"].shape[0]
        dst = graph["dst"]
        deg = ops.clamp(graph["deg"], min=1.0).expand_dims(-1)
        keep = graph["edge_mask"].expand_dims(-1)
        mean = segment_sum(m * keep, dst, num) / deg
        dev = ops.square(m - ops.gather(mean, dst, 0)) * keep
        std = ops.sqrt(segment_sum(dev, dst, num) / deg + 1e-5)
        top = segment_max(m, dst, num, graph["edge_mask"] > 0)
        stats = ops.cat((mean, top, std), axis=-1)
        log_deg = ops.log(deg + 1.0)
        amplified = stats * (log_deg / self.delta)
        attenuated = stats * (self.delta / log_deg)
        return self.lin(ops.cat((stats, amplified, attenuated), axis=-1))


class GraphNorm(nn.Cell):
    """Per-molecule normalisation with a learned share of the mean."""

    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.gamma = Parameter(initializer("ones", (dim,)), name="gamma")
        self.beta = Parameter(initializer("zeros", (dim,)), name="beta")
        self.mean_scale = Parameter(initializer("ones", (dim,)), name="mean_scale")

    def construct(self, x, mask):
        batch, num = mask.shape
        x = x.reshape(batch, num, -1)
        w = mask.expand_dims(-1)
        count = ops.clamp(w.sum(axis=1, keepdims=True), min=1.0)
        mean = (x * w).sum(axis=1, keepdims=True) / count
        centred = (x - self.mean_scale * mean) * w
        var = ops.square(centred).sum(axis=1, keepdims=True) / count
        y = self.gamma * centred * ops.rsqrt(var + self.eps) + self.beta
        return (y * w).reshape(batch * num, -1)


class EdgeUpdate(nn.Cell):
    def __init__(self, dim, edim):
        super().__init__()
        self.lin1 = nn.Dense(2 * dim + edim, edim)
        self.act = nn.GELU(approximate=False)
        self.lin2 = nn.Dense(edim, edim)
        self.norm = nn.LayerNorm((edim,), epsilon=1e-5)

    def construct(self, h, e, graph):
        left = ops.gather(h, graph["src"], 0)
        right = ops.gather(h, graph["dst"], 0)
        z = ops.cat((left + right, ops.abs(left - right), e), axis=-1)
        z = e + self.lin2(self.act(self.lin1(z)))
        return self.norm(z) * graph["edge_mask"].expand_dims(-1)


class VirtualNode(nn.Cell):
    def __init__(self, dim):
        super().__init__()
        self.mlp = nn.SequentialCell(
            nn.Dense(dim, 2 * dim),
            nn.BatchNorm1d(2 * dim, eps=1e-3),
            nn.ReLU(),
            nn.Dense(2 * dim, dim),
        )

    def construct(self, h, vn, graph):
        mask = graph["atom_mask"]
        pooled = (h.reshape(mask.shape + (-1,)) * mask.expand_dims(-1)).sum(axis=1)
        return vn + self.mlp(pooled / math.sqrt(mask.shape[1]) + vn)


class Block(nn.Cell):
    def __init__(self, dim, edim, heads):
        super().__init__()
        self.message = DirectedMessage(dim, edim)
        self.attn = NeighbourAttention(dim, edim, heads)
        self.agg = Aggregator(dim, dim)
        self.mix = nn.Dense(2 * dim, dim)
        self.cell = nn.GRUCell(dim, dim)
        self.norm = GraphNorm(dim)
        self.edge = EdgeUpdate(dim, edim)
        self.vnode = VirtualNode(dim)

    def construct(self, h, e, m, vn, graph):
        x = h + ops.gather(vn, graph["batch"], 0)
        m = self.message(x, e, m, graph)
        update = ops.cat((self.attn(x, e, graph), self.agg(m, graph)), axis=-1)
        update = ops.silu(self.mix(update))
        h = h + self.norm(self.cell(update, x), graph["atom_mask"])
        e = self.edge(h, e, graph)
        vn = self.vnode(h, vn, graph)
        return h, e, m, vn


class Set2Set(nn.Cell):
    def __init__(self, dim, steps):
        super().__init__()
        self.dim = dim
        self.steps = steps
        self.cell = nn.LSTMCell(2 * dim, dim)

    def construct(self, x, mask):
        batch = x.shape[0]
        hidden = ops.zeros((batch, self.dim), x.dtype)
        memory = ops.zeros((batch, self.dim), x.dtype)
        q_star = ops.zeros((batch, 2 * self.dim), x.dtype)
        for _ in range(self.steps):
            hidden, memory = self.cell(q_star, (hidden, memory))
            score = ops.bmm(x, hidden.expand_dims(-1)).squeeze(-1)
            score = ops.masked_fill(score, mask == 0, -1e9)
            att = ops.softmax(score, axis=-1)
            read = ops.bmm(att.expand_dims(1), x).squeeze(1)
            q_star = ops.cat((hidden, read), axis=-1)
        return q_star


class AttentionPool(nn.Cell):
    """Seed queries, gated by the descriptors, attend to the atoms."""

    def __init__(self, dim, n_desc, seeds):
        super().__init__()
        self.scale = dim ** -0.5
        self.seeds = Parameter(initializer(Normal(1.0), (seeds, dim)), name="seeds")
        self.desc = nn.Dense(n_desc, dim)
        self.key = nn.Dense(dim, dim, has_bias=False)
        self.value = nn.Dense(dim, dim)
        self.out = nn.Dense(seeds * dim, dim)

    def construct(self, x, desc, mask):
        gate = 2.0 * ops.sigmoid(self.desc(desc))
        query = self.seeds.expand_dims(0) * gate.expand_dims(1)
        att = ops.bmm(query, self.key(x).swapaxes(1, 2)) * self.scale
        att = ops.masked_fill(att, (mask == 0).expand_dims(1), -1e9)
        read = ops.bmm(ops.softmax(att, axis=-1), self.value(x))
        return self.out(read.swapaxes(1, 2).reshape(x.shape[0], -1))


class RegressionHead(nn.Cell):
    def __init__(self, dim, tasks):
        super().__init__()
        self.tasks = tasks
        self.trunk = nn.SequentialCell(
            nn.Dense(dim, 32),
            nn.BatchNorm1d(32, eps=1e-5),
            nn.GELU(approximate=False),
        )
        self.out = nn.Dense(32, 2 * tasks)
        self.mean = Tensor(np.linspace(-1.0, 2.0, tasks), ms.float32)
        self.std = Tensor(np.linspace(0.5, 1.7, tasks), ms.float32)

    def construct(self, z):
        y = self.out(self.trunk(z)).reshape(-1, self.tasks, 2)
        mu, raw = y[:, :, 0], y[:, :, 1]
        logvar = 3.0 - ops.softplus(3.0 - raw)
        logvar = -4.0 + ops.softplus(logvar + 4.0)
        mu = mu * self.std + self.mean
        return mu, logvar + 2.0 * ops.log(self.std)


class OrdinalHead(nn.Cell):
    """Ordered classes: probabilities are differences of rising sigmoids."""

    def __init__(self, dim, tasks, classes):
        super().__init__()
        self.score = nn.Dense(dim, tasks)
        self.first = Parameter(initializer("zeros", (tasks, 1)), name="first")
        self.steps = Parameter(initializer("zeros", (tasks, classes - 2)), name="steps")

    def construct(self, z):
        rise = ops.cumsum(ops.softplus(self.steps), -1)
        cuts = ops.cat((self.first, self.first + rise), axis=-1)
        below = ops.sigmoid(cuts.expand_dims(0) - self.score(z).expand_dims(-1))
        edge = below.shape[:2] + (1,)
        below = ops.cat((ops.zeros(edge, z.dtype), below, ops.ones(edge, z.dtype)), axis=-1)
        return below[:, :, 1:] - below[:, :, :-1]


class ChargeHead(nn.Cell):
    """Charge equalisation; the charges add up to the charge of the molecule."""

    def __init__(self, dim):
        super().__init__()
        self.lin = nn.Dense(dim, 2)

    def construct(self, x, total, mask):
        out = self.lin(x)
        chi, raw = out[:, :, 0], out[:, :, 1]
        soft = mask / (0.3 + ops.softplus(raw))
        lam = (total + (chi * soft).sum(axis=1)) / ops.clamp(soft.sum(axis=1), min=1e-6)
        return soft * (lam.expand_dims(1) - chi)


class BondHead(nn.Cell):
    def __init__(self, dim, edim, classes):
        super().__init__()
        self.classes = classes
        self.pair = nn.BiDense(dim, dim, 12)
        self.out = nn.Dense(12 + edim, classes)

    def construct(self, h, e, graph, batch):
        left = ops.gather(h, graph["src"], 0)
        right = ops.gather(h, graph["dst"], 0)
        z = ops.cat((ops.silu(self.pair(left, right)), e), axis=-1)
        z = self.out(z).reshape(batch, 2, -1, self.classes)
        logp = ops.log_softmax(z.mean(axis=1), axis=-1)
        keep = graph["edge_mask"].reshape(batch, 2, -1)[:, 0]
        return logp * keep.expand_dims(-1)


class SpectrumHead(nn.Cell):
    def __init__(self, dim, channels=6, coarse=9, bins=21):
        super().__init__()
        self.channels = channels
        self.bins = bins
        self.lin = nn.Dense(dim, channels * coarse)
        self.conv1 = nn.Conv1d(channels, 10, 5, pad_mode="pad", padding=2, has_bias=True)
        self.act = nn.LeakyReLU(alpha=0.1)
        self.conv2 = nn.Conv1d(10, 1, 3, stride=2, pad_mode="pad", padding=1, has_bias=True)

    def construct(self, z):
        y = self.lin(z).reshape(z.shape[0], self.channels, -1)
        y = self.act(self.conv1(y))
        y = ops.interpolate(y, size=2 * self.bins, mode="linear", align_corners=False)
        y = ops.softplus(self.conv2(y)).squeeze(1)
        return y / y.sum(axis=-1, keepdims=True)


def build_graph(index, atom_mask, bond_mask):
    """Flat directed edges: per molecule the given direction first, then the reversed one."""
    batch, num = atom_mask.shape
    bonds = index.shape[1]
    shift = (ops.arange(batch) * num).astype(ms.int32).reshape(batch, 1)
    begin = index[:, :, 0] + shift
    end = index[:, :, 1] + shift
    src = ops.cat((begin, end), axis=1).reshape(-1)
    dst = ops.cat((end, begin), axis=1).reshape(-1)
    order = np.arange(batch * 2 * bonds).reshape(batch, 2, bonds)
    rev = Tensor(order[:, ::-1].reshape(-1).copy(), ms.int32)
    edge_mask = ops.cat((bond_mask, bond_mask), axis=1).reshape(-1)
    owner = Tensor(np.repeat(np.arange(batch), num), ms.int32)
    deg = segment_sum(edge_mask, dst, batch * num)
    return {"src": src, "dst": dst, "rev": rev, "edge_mask": edge_mask,
            "atom_mask": atom_mask, "batch": owner, "deg": deg}


class MolGraph(nn.Cell):
    def __init__(self, cards=(20, 7, 6, 5), n_cont=3, n_desc=7, dim=24, edim=16, heads=3, depth=3, tasks=8):
        super().__init__()
        self.depth = depth
        self.atoms = AtomEncoder(cards, n_cont, dim)
        self.bonds = BondEncoder(6, 4, 10, edim)
        self.vn_init = Parameter(initializer("zeros", (dim,)), name="vn_init")
        self.m_init = nn.Dense(dim + edim, dim)
        self.blocks = nn.CellList([Block(dim, edim, heads) for _ in range(depth)])
        self.jump = Parameter(initializer("zeros", (depth + 1,)), name="jump")
        self.set2set = Set2Set(dim, 3)
        self.pool = AttentionPool(dim, n_desc, 4)
        self.fuse = nn.Dense(5 * dim, 2 * dim)
        self.fuse_norm = nn.LayerNorm((2 * dim,), epsilon=1e-5)
        self.regression = RegressionHead(2 * dim, tasks)
        self.tox = OrdinalHead(2 * dim, 3, 4)
        self.charge = ChargeHead(dim)
        self.bond_head = BondHead(dim, edim, 6)
        self.spectrum = SpectrumHead(2 * dim)
        self.task_weight = Parameter(initializer("zeros", (tasks,)), name="task_weight")

    def loss(self, mu, logvar, target, known):
        nll = 0.5 * (logvar + ops.square(target - mu) * ops.exp(-logvar)) * known
        count = known.sum(axis=0)
        per_task = nll.sum(axis=0) / ops.clamp(count, min=1.0)
        weighted = ops.exp(-self.task_weight) * per_task + self.task_weight
        present = (count > 0).astype(mu.dtype)
        return (weighted * present).sum() / present.sum()

    def construct(self, cats, cont, pos, amask, bonds, index, bmask, desc, total, target, known):
        batch, num = amask.shape
        graph = build_graph(index, amask, bmask)
        x = self.atoms(cats, cont, graph["deg"].reshape(batch, num), amask)
        e = self.bonds(bonds, index, pos, bmask)
        h = x.reshape(batch * num, -1)
        e = ops.cat((e, e), axis=1).reshape(-1, e.shape[-1])
        m = ops.silu(self.m_init(ops.cat((ops.gather(h, graph["src"], 0), e), axis=-1)))
        vn = ops.tile(self.vn_init.expand_dims(0), (batch, 1))

        states = [h]
        for block in self.blocks:
            h, e, m, vn = block(h, e, m, vn, graph)
            states.append(h)
        stack = ops.stack(states, axis=0)
        share = ops.softmax(self.jump, axis=0).reshape(-1, 1, 1)
        nodes = (share * stack).sum(axis=0).reshape(batch, num, -1)
        spread = ops.std(stack, axis=0, ddof=1).reshape(batch, num, -1)
        spread = (spread * amask.expand_dims(-1)).sum(axis=1) / amask.sum(axis=1, keepdims=True)

        pooled = (self.set2set(nodes, amask), self.pool(nodes, desc, amask), vn, spread)
        z = self.fuse_norm(ops.silu(self.fuse(ops.cat(pooled, axis=-1))))
        mu, logvar = self.regression(z)
        charge = self.charge(nodes, total, amask)
        logp = self.bond_head(nodes.reshape(batch * num, -1), e, graph, batch)
        return mu, logvar, self.tox(z), charge, logp, self.spectrum(z), self.loss(mu, logvar, target, known)


def make_inputs():
    """Five padded molecules (11 atoms, 13 bonds at most), the same arrays on every run."""
    rng = np.random.RandomState(7)
    b, n, ne = 5, 11, 13
    atoms, rings = (11, 7, 9, 8, 10), (3, 1, 2, 1, 2)
    cats = np.stack([rng.randint(1, c, (b, n)) for c in (20, 7, 6, 5)], -1)
    cont = rng.randn(b, n, 3)
    pos, amask, bmask = np.zeros((b, n, 3)), np.zeros((b, n)), np.zeros((b, ne))
    index, bonds = np.zeros((b, ne, 2), np.int64), np.zeros((b, ne, 2), np.int64)
    for i in range(b):
        amask[i, :atoms[i]] = 1
        pairs = [(max(0, j - 1 - rng.randint(0, 3)), j) for j in range(1, atoms[i])]
        while len(pairs) < atoms[i] - 1 + rings[i]:
            u, v = sorted(rng.choice(atoms[i], 2, replace=False).tolist())
            if (u, v) not in pairs:
                pairs.append((u, v))
        for j, (u, v) in enumerate(pairs):
            index[i, j] = (u, v) if rng.rand() < 0.6 else (v, u)
        for j in range(1, atoms[i]):
            step = rng.randn(3)
            pos[i, j] = pos[i, pairs[j - 1][0]] + 1.4 * step / np.linalg.norm(step)
        bmask[i, :len(pairs)] = 1
        bonds[i, :len(pairs), 0] = rng.randint(1, 6, len(pairs))
        bonds[i, :len(pairs), 1] = rng.randint(0, 4, len(pairs))
        cats[i, atoms[i]:], cont[i, atoms[i]:] = 0, 0
    desc, target, total = rng.randn(b, 7), rng.randn(b, 8) * 1.5, np.array([0.0, -1.0, 1.0, 0.0, 2.0])
    known = (rng.rand(b, 8) < 0.6) * np.array([1, 1, 1, 1, 0, 1, 1, 1])
    f = np.float32
    return (cats.astype(np.int32), cont.astype(f), pos.astype(f), amask.astype(f), bonds.astype(np.int32),
            index.astype(np.int32), bmask.astype(f), desc.astype(f), total.astype(f), target.astype(f), known.astype(f))


def build():
    ms.set_context(mode=ms.PYNATIVE_MODE)
    ms.set_seed(11)
    net = MolGraph()
    net.set_train(False)
    return net, tuple(Tensor(a) for a in make_inputs())
