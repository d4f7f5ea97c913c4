"""MolGraph: directed message passing on padded batches of molecules, with attention, aggregators and several property heads."""
import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

def scatter_sum(src, index, size):
    return src.new_zeros((size,) + tuple(src.shape[1:])).index_add(0, index, src)

def scatter_max(src, index, size, valid):
    """Largest valid value per segment; zero where a segment has none."""
    shape = (-1,) + (1,) * (src.dim() - 1)
    src = src.masked_fill(~valid.view(shape), float("-inf"))
    idx = index.view(shape).expand_as(src)
    out = src.new_full((size,) + tuple(src.shape[1:]), float("-inf"))
    out = out.scatter_reduce(0, idx, src, reduce="amax", include_self=True)
    return torch.where(torch.isinf(out), torch.zeros_like(out), out)

def scatter_softmax(logits, index, size, valid):
    top = scatter_max(logits, index, size, valid)
    e = torch.exp(logits - top[index]) * valid.unsqueeze(-1).to(logits.dtype)
    return e / (scatter_sum(e, index, size)[index] + 1e-9)

class AtomEncoder(nn.Module):
    """One table for all categorical fields (with offsets), continuous fields, and the degree."""

    def __init__(self, cards, n_cont, dim, max_degree=4):
        super().__init__()
        self.max_degree, self.n_fields = max_degree, len(cards)
        self.register_buffer("offsets", torch.tensor([0] + list(cards[:-1])).cumsum(0), persistent=False)
        self.table = nn.Embedding(sum(cards), dim)
        self.cont = nn.Linear(n_cont, dim, bias=False)
        self.degree = nn.Embedding(max_degree + 1, dim)
        self.norm = nn.LayerNorm(dim)

    def forward(self, cats, cont, deg, mask):
        x = self.table(cats + self.offsets).sum(dim=2) / math.sqrt(self.n_fields)
        x = x + self.cont(cont) + self.degree(deg.long().clamp(max=self.max_degree))
        return self.norm(x) * mask.unsqueeze(-1)

class BondEncoder(nn.Module):
    def __init__(self, n_type, n_stereo, n_rbf, dim, cutoff=3.2):
        super().__init__()
        self.kind, self.stereo = nn.Embedding(n_type, dim), nn.Embedding(n_stereo, dim // 2)
        self.cutoff = cutoff
        centers = torch.linspace(0.5, cutoff, n_rbf)
        self.register_buffer("centers", centers, persistent=False)
        self.gamma = 0.5 / float(centers[1] - centers[0]) ** 2
        self.proj = nn.Linear(dim + dim // 2 + n_rbf, dim)
        self.act = nn.GELU()
        self.out = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim, eps=1e-3)

    def radial(self, d):
        env = 0.5 * (torch.cos(math.pi * d / self.cutoff) + 1.0) * (d < self.cutoff)
        return torch.exp(-self.gamma * (d.unsqueeze(-1) - self.centers) ** 2) * env.unsqueeze(-1)

    def forward(self, bonds, index, pos, mask):
        # bonds [B, E, 2] (type, stereo), index [B, E, 2], pos [B, N, 3]
        begin = torch.gather(pos, 1, index[..., :1].expand(-1, -1, 3))
        end = torch.gather(pos, 1, index[..., 1:].expand(-1, -1, 3))
        d = torch.sqrt(((begin - end) ** 2).sum(-1) + 1e-8)
        z = torch.cat([self.kind(bonds[..., 0]), self.stereo(bonds[..., 1]), self.radial(d)], dim=-1)
        z = self.out(self.act(self.proj(z))) * 0.2
        return self.norm(z) * mask.unsqueeze(-1)

class DirectedMessage(nn.Module):
    """D-MPNN: what reaches the source of a bond, without what came back over the same bond."""

    def __init__(self, dim, edim):
        super().__init__()
        self.inp = nn.Linear(dim + edim, dim)
        self.hid = nn.Linear(dim, dim, bias=False)

    def forward(self, h, e, m, g):
        msg = m * g["emask"].unsqueeze(-1)
        incoming = scatter_sum(msg, g["dst"], h.size(0))
        nb = incoming[g["src"]] - msg[g["rev"]]
        m0 = self.inp(torch.cat([h[g["src"]], e], dim=-1))
        return F.silu(m0 + self.hid(nb)) * g["emask"].unsqueeze(-1)

class NeighbourAttention(nn.Module):
    def __init__(self, dim, edim, heads):
        super().__init__()
        self.heads, self.dh = heads, dim // heads
        self.q = nn.Linear(dim, dim)
        self.kv = nn.Linear(dim + edim, 2 * dim)
        self.bias = nn.Linear(edim, heads, bias=False)
        self.leaky = nn.LeakyReLU()
        self.out = nn.Linear(dim, dim)

    def forward(self, h, e, g):
        n, src, dst, valid = h.size(0), g["src"], g["dst"], g["emask"] > 0
        q = self.q(h)[dst].view(-1, self.heads, self.dh)
        k, v = self.kv(torch.cat([h[src], e], dim=-1)).chunk(2, dim=-1)
        k, v = k.reshape(-1, self.heads, self.dh), v.reshape(-1, self.heads, self.dh)
        logits = (q * k).sum(-1) / math.sqrt(self.dh)
        logits = self.leaky(logits + self.bias(e))
        alpha = scatter_softmax(logits, dst, n, valid)
        out = scatter_sum(alpha.unsqueeze(-1) * v, dst, n)
        return self.out(out.reshape(n, -1))

class Aggregator(nn.Module):
    """Mean, max and deviation of the messages, each unscaled, amplified and attenuated by the degree."""

    def __init__(self, dim, out, delta=1.15):
        super().__init__()
        self.delta = delta
        self.lin = nn.Linear(9 * dim, out)

    def forward(self, m, g):
        n = g["deg"].size(0)
        deg = g["deg"].clamp(min=1.0).unsqueeze(-1)
        valid = g["emask"].unsqueeze(-1)
        mean = scatter_sum(m * valid, g["dst"], n) / deg
        std = torch.sqrt(scatter_sum((m - mean[g["dst"]]) ** 2 * valid, g["dst"], n) / deg + 1e-5)
        top = scatter_max(m, g["dst"], n, g["emask"] > 0)
        stats = torch.cat([mean, top, std], dim=-1)
        log_deg = torch.log(deg + 1.0)
        scalers = torch.cat([torch.ones_like(log_deg), log_deg / self.delta, self.delta / log_deg], dim=-1)
        return self.lin((stats.unsqueeze(1) * scalers.unsqueeze(-1)).flatten(1))

class GraphNorm(nn.Module):
    """Normalises over the atoms of each molecule; how much of the mean is taken away is learned."""

    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))
        self.mean_scale = nn.Parameter(torch.ones(dim))

    def forward(self, x, mask):
        (b, n), w = mask.shape, mask.unsqueeze(-1)
        x = x.view(b, n, -1)
        count = w.sum(1, keepdim=True).clamp(min=1.0)
        mean = (x * w).sum(1, keepdim=True) / count
        c = (x - self.mean_scale * mean) * w
        var = (c * c).sum(1, keepdim=True) / count
        return ((self.weight * c / torch.sqrt(var + self.eps) + self.bias) * w).view(b * n, -1)

class EdgeUpdate(nn.Module):
    def __init__(self, dim, edim):
        super().__init__()
        self.lin1 = nn.Linear(2 * dim + edim, edim)
        self.lin2 = nn.Linear(edim, edim)
        self.norm = nn.LayerNorm(edim)

    def forward(self, h, e, g):
        hs, hd = h[g["src"]], h[g["dst"]]
        z = torch.cat([hs + hd, (hs - hd).abs(), e], dim=-1)
        return self.norm(e + self.lin2(F.gelu(self.lin1(z)))) * g["emask"].unsqueeze(-1)

class VirtualNode(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.BatchNorm1d(2 * dim, eps=1e-3), nn.ReLU(), nn.Linear(2 * dim, dim))

    def forward(self, h, vn, g):
        pooled = scatter_sum(h * g["amask"].view(-1, 1), g["batch"], vn.size(0))
        return vn + self.mlp(pooled / math.sqrt(g["n_atoms"]) + vn)

class Block(nn.Module):
    def __init__(self, dim, edim, heads):
        super().__init__()
        self.message = DirectedMessage(dim, edim)
        self.attn = NeighbourAttention(dim, edim, heads)
        self.agg = Aggregator(dim, dim)
        self.mix = nn.Linear(2 * dim, dim)
        self.cell = nn.GRUCell(dim, dim)
        self.norm = GraphNorm(dim)
        self.edge = EdgeUpdate(dim, edim)
        self.vnode = VirtualNode(dim)

    def forward(self, h, e, m, vn, g):
        x = h + vn[g["batch"]]
        m = self.message(x, e, m, g)
        upd = F.silu(self.mix(torch.cat([self.attn(x, e, g), self.agg(m, g)], dim=-1)))
        h = h + self.norm(self.cell(upd, x), g["amask"])
        return h, self.edge(h, e, g), m, self.vnode(h, vn, g)

class Set2Set(nn.Module):
    def __init__(self, dim, steps):
        super().__init__()
        self.dim, self.steps = dim, steps
        self.cell = nn.LSTMCell(2 * dim, dim)

    def forward(self, x, mask):
        hx, cx = x.new_zeros(x.size(0), self.dim), x.new_zeros(x.size(0), self.dim)
        q_star = x.new_zeros(x.size(0), 2 * self.dim)
        for _ in range(self.steps):
            hx, cx = self.cell(q_star, (hx, cx))
            score = torch.einsum("bnd,bd->bn", x, hx).masked_fill(mask == 0, -1e9)
            read = torch.einsum("bn,bnd->bd", torch.softmax(score, dim=-1), x)
            q_star = torch.cat([hx, read], dim=-1)
        return q_star

class AttentionPool(nn.Module):
    """Learned seeds, modulated by the molecule's descriptors, attend to the atoms."""

    def __init__(self, dim, n_desc, seeds):
        super().__init__()
        self.seeds = nn.Parameter(torch.randn(seeds, dim))
        self.desc = nn.Linear(n_desc, dim)
        self.key = nn.Linear(dim, dim, bias=False)
        self.value = nn.Linear(dim, dim)
        self.out = nn.Linear(seeds * dim, dim)

    def forward(self, x, desc, mask):
        query = self.seeds.unsqueeze(0) * (2.0 * torch.sigmoid(self.desc(desc))).unsqueeze(1)
        att = torch.einsum("bsd,bnd->bsn", query, self.key(x)) * x.size(-1) ** -0.5
        att = att.masked_fill((mask == 0).unsqueeze(1), -1e9).softmax(dim=-1)
        return self.out((att @ self.value(x)).transpose(1, 2).reshape(x.size(0), -1))

class RegressionHead(nn.Module):
    def __init__(self, dim, tasks):
        super().__init__()
        self.tasks = tasks
        self.lin = nn.Linear(dim, 32)
        self.bn = nn.BatchNorm1d(32)
        self.act = nn.GELU()
        self.out = nn.Linear(32, 2 * tasks)
        self.register_buffer("mean", torch.linspace(-1.0, 2.0, tasks), persistent=False)
        self.register_buffer("scale", torch.linspace(0.5, 1.7, tasks), persistent=False)

    def forward(self, z):
        y = self.out(self.act(self.bn(self.lin(z)))).view(-1, self.tasks, 2)
        mu, raw = y.unbind(-1)
        logvar = 3.0 - F.softplus(3.0 - raw)
        logvar = -4.0 + F.softplus(logvar + 4.0)
        return mu * self.scale + self.mean, logvar + 2.0 * torch.log(self.scale)

class OrdinalHead(nn.Module):
    """Toxicity classes in order: cut points that rise, and the probability of each class."""

    def __init__(self, dim, tasks, classes):
        super().__init__()
        self.score = nn.Linear(dim, tasks)
        self.first = nn.Parameter(torch.zeros(tasks, 1))
        self.steps = nn.Parameter(torch.zeros(tasks, classes - 2))

    def forward(self, z):
        cuts = torch.cat([self.first, self.first + torch.cumsum(F.softplus(self.steps), dim=-1)], dim=-1)
        below = torch.sigmoid(cuts.unsqueeze(0) - self.score(z).unsqueeze(-1))
        below = F.pad(F.pad(below, (1, 0)), (0, 1), value=1.0)
        return below[..., 1:] - below[..., :-1]

class ChargeHead(nn.Module):
    """Partial charges that sum to the molecule's charge (equalised by electronegativity and hardness)."""

    def __init__(self, dim):
        super().__init__()
        self.lin = nn.Linear(dim, 2)

    def forward(self, x, total, mask):
        chi, raw = self.lin(x).unbind(-1)
        soft = mask / (0.3 + F.softplus(raw))
        lam = (total + (chi * soft).sum(1)) / soft.sum(1).clamp(min=1e-6)
        return soft * (lam.unsqueeze(1) - chi)

class BondHead(nn.Module):
    def __init__(self, dim, edim, classes):
        super().__init__()
        self.pair = nn.Bilinear(dim, dim, 12)
        self.out = nn.Linear(12 + edim, classes)

    def forward(self, h, e, g, b):
        z = torch.cat([F.silu(self.pair(h[g["src"]], h[g["dst"]])), e], dim=-1)
        z = self.out(z).view(b, 2, -1, self.out.out_features)
        return F.log_softmax(z.mean(dim=1), dim=-1) * g["emask"].view(b, 2, -1)[:, 0].unsqueeze(-1)

class SpectrumHead(nn.Module):
    def __init__(self, dim, channels=6, coarse=9, bins=21):
        super().__init__()
        self.channels, self.bins = channels, bins
        self.lin = nn.Linear(dim, channels * coarse)
        self.conv1 = nn.Conv1d(channels, 10, 5, padding=2)
        self.act = nn.LeakyReLU(0.1)
        self.conv2 = nn.Conv1d(10, 1, 3, stride=2, padding=1)

    def forward(self, z):
        y = self.lin(z).view(z.size(0), self.channels, -1)
        y = F.interpolate(self.act(self.conv1(y)), size=2 * self.bins, mode="linear", align_corners=False)
        y = F.softplus(self.conv2(y)).squeeze(1)
        return y / y.sum(-1, keepdim=True)

class MolGraph(nn.Module):
    def __init__(self, cards=(20, 7, 6, 5), n_cont=3, n_desc=7, dim=24, edim=16, heads=3, depth=3, tasks=8):
        super().__init__()
        self.depth = depth
        self.atoms = AtomEncoder(cards, n_cont, dim)
        self.bonds = BondEncoder(6, 4, 10, edim)
        self.vn_init = nn.Parameter(torch.zeros(dim))
        self.m_init = nn.Linear(dim + edim, dim)
        self.blocks = nn.ModuleList([Block(dim, edim, heads) for _ in range(depth)])
        self.jump = nn.Parameter(torch.zeros(depth + 1))
        self.set2set = Set2Set(dim, 3)
        self.pool = AttentionPool(dim, n_desc, 4)
        self.fuse = nn.Linear(5 * dim, 2 * dim)
        self.fuse_norm = nn.LayerNorm(2 * dim)
        self.regression = RegressionHead(2 * dim, tasks)
        self.tox = OrdinalHead(2 * dim, 3, 4)
        self.charge = ChargeHead(dim)
        self.bond_head = BondHead(dim, edim, 6)
        self.spectrum = SpectrumHead(2 * dim)
        self.task_weight = nn.Parameter(torch.zeros(tasks))

    def graph(self, index, amask, bmask):
        """Both directions of every bond, numbered through the whole batch."""
        (b, n), ne = amask.shape, index.size(1)
        shift = (torch.arange(b, device=index.device) * n).view(b, 1)
        begin, end = index[..., 0] + shift, index[..., 1] + shift
        src = torch.cat([begin, end], dim=1).reshape(-1)
        dst = torch.cat([end, begin], dim=1).reshape(-1)
        rev = torch.arange(b * 2 * ne, device=index.device).view(b, 2 * ne).roll(ne, dims=1).reshape(-1)
        emask = torch.cat([bmask, bmask], dim=1).reshape(-1)
        batch = torch.arange(b, device=index.device).repeat_interleave(n)
        deg = scatter_sum(emask, dst, b * n)
        return dict(src=src, dst=dst, rev=rev, emask=emask, amask=amask, batch=batch, deg=deg, n_atoms=n)

    def loss(self, mu, logvar, target, known):
        """Gaussian likelihood over the labels that are known, tasks weighted by their learned uncertainty."""
        nll = 0.5 * (logvar + (target - mu) ** 2 * torch.exp(-logvar)) * known
        count = known.sum(0)
        per_task = nll.sum(0) / count.clamp(min=1.0)
        weighted = torch.exp(-self.task_weight) * per_task + self.task_weight
        return (weighted * (count > 0)).sum() / (count > 0).sum()

    def forward(self, cats, cont, pos, amask, bonds, index, bmask, desc, total, target, known):
        b, n = amask.shape
        g = self.graph(index, amask, bmask)
        x = self.atoms(cats, cont, g["deg"].view(b, n), amask)
        e = self.bonds(bonds, index, pos, bmask)
        h = x.view(b * n, -1)
        e = torch.cat([e, e], dim=1).view(-1, e.size(-1))
        m = F.silu(self.m_init(torch.cat([h[g["src"]], e], dim=-1)))
        vn, states = self.vn_init.unsqueeze(0).expand(b, -1), [h]
        for block in self.blocks:
            h, e, m, vn = block(h, e, m, vn, g)
            states.append(h)
        stack = torch.stack(states, dim=0).view(self.depth + 1, b, n, -1)
        nodes = torch.einsum("l,lbnd->bnd", torch.softmax(self.jump, dim=0), stack)
        spread = (stack.std(dim=0) * amask.unsqueeze(-1)).sum(1) / amask.sum(1, keepdim=True)
        z = torch.cat([self.set2set(nodes, amask), self.pool(nodes, desc, amask), vn, spread], dim=-1)
        z = self.fuse_norm(F.silu(self.fuse(z)))
        mu, logvar = self.regression(z)
        charge = self.charge(nodes, total, amask)
        logp = self.bond_head(nodes.reshape(b * n, -1), e, g, b)
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
    return (cats.astype(np.int64), cont.astype(f), pos.astype(f), amask.astype(f), bonds, index,
            bmask.astype(f), desc.astype(f), total.astype(f), target.astype(f), known.astype(f))

def build():
    torch.manual_seed(11)
    net = MolGraph()
    with torch.no_grad():
        for mod in net.modules():
            for name, p in mod.named_parameters(recurse=False):
                if p.dim() > 1 and name.startswith("weight") and not isinstance(mod, nn.Embedding):
                    gain = 0.45 if isinstance(mod, nn.RNNCellBase) else 0.9
                    p.copy_(torch.randn_like(p) * gain / math.sqrt(p[0].numel()))
                elif p.dim() > 1:
                    p.copy_(torch.randn_like(p) * 0.8)
                else:
                    p.copy_(0.4 * torch.randn_like(p) + float(name in ("weight", "mean_scale")))
            if isinstance(mod, nn.BatchNorm1d):
                mod.running_mean.copy_(0.4 * torch.randn_like(mod.running_mean))
                mod.running_var.copy_(0.06 + torch.rand_like(mod.running_var) ** 2)
    return net.eval(), tuple(torch.from_numpy(a) for a in make_inputs())
