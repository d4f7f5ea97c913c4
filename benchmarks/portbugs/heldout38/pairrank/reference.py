"""PairRank: two-tower text -> item retrieval with late interaction (PyTorch)."""
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, SEQ, HIDDEN, HEADS, EMB, FFN, OUT = 97, 11, 24, 3, 20, 44, 16
BATCH, HARD = 5, 2
N_CAT, N_HIST, DENSE, ITEM_DIM, FACETS = 61, 71, 6, 18, 3
PRICE_EDGES = [5.0, 10.0, 20.0, 50.0, 100.0]
SKIPLIST = [3, 4, 9, 17]


def relative_bucket(relative, num_buckets, max_distance):
    """T5 style bidirectional buckets: exact for small distances, logarithmic after."""
    num_buckets //= 2
    bucket = (relative > 0).long() * num_buckets
    relative = relative.abs()
    max_exact = num_buckets // 2
    scale = (num_buckets - max_exact) / math.log(max_distance / max_exact)
    large = max_exact + (torch.log(relative.clamp(min=1).float() / max_exact) * scale).long()
    large = torch.clamp(large, max=num_buckets - 1)
    return bucket + torch.where(relative < max_exact, relative, large)


class TextEmbeddings(nn.Module):
    def __init__(self, pad_id=1):
        super().__init__()
        self.pad_id = pad_id
        self.word = nn.Embedding(VOCAB, EMB, padding_idx=pad_id)
        self.position = nn.Embedding(SEQ + 2, EMB, padding_idx=pad_id)
        self.segment = nn.Embedding(2, EMB)
        self.norm = nn.LayerNorm(EMB, eps=1e-5)
        self.project = nn.Linear(EMB, HIDDEN)

    def forward(self, ids, segments, mask):
        # positions count real tokens only, and start after the padding index
        m = mask.long()
        positions = torch.cumsum(m, dim=1) * m + self.pad_id
        x = self.word(ids) * math.sqrt(EMB) + self.position(positions) + self.segment(segments)
        return self.project(self.norm(x)) * mask.unsqueeze(-1)


class TextAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.head_dim = HIDDEN // HEADS
        self.q = nn.Linear(HIDDEN, HIDDEN)
        self.k = nn.Linear(HIDDEN, HIDDEN)
        self.v = nn.Linear(HIDDEN, HIDDEN)
        self.mix = nn.Parameter(torch.eye(HEADS))
        self.out = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x, mask, bias):
        B, L, _ = x.shape
        q, k, v = (f(x).view(B, L, HEADS, self.head_dim).transpose(1, 2) for f in (self.q, self.k, self.v))
        att = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(self.head_dim) + bias
        att = att.masked_fill(~mask[:, None, None, :], torch.finfo(att.dtype).min)
        att = F.softmax(att, dim=-1)
        att = torch.einsum("bhqk,hg->bgqk", att, self.mix)      # talking heads
        y = torch.einsum("bhqk,bhkd->bqhd", att, v).reshape(B, L, HIDDEN)
        return self.out(y)


class LocalMixer(nn.Module):
    """Gated depthwise convolution over neighbouring tokens."""
    def __init__(self, kernel=3, dilation=2):
        super().__init__()
        self.expand = nn.Linear(HIDDEN, 2 * HIDDEN)
        self.depthwise = nn.Conv1d(HIDDEN, HIDDEN, kernel, padding=dilation * (kernel - 1) // 2,
                                   dilation=dilation, groups=HIDDEN)
        self.act = nn.SiLU()
        self.out = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x, mask):
        h = F.glu(self.expand(x), dim=-1)
        h = h.masked_fill(~mask.unsqueeze(-1), 0.0)
        h = self.depthwise(h.transpose(1, 2)).transpose(1, 2)
        return self.out(self.act(h))


class TextBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(HIDDEN, eps=1e-5)
        self.attn = TextAttention()
        self.norm2 = nn.LayerNorm(HIDDEN, eps=1e-5)
        self.local = LocalMixer()
        self.norm3 = nn.LayerNorm(HIDDEN, eps=1e-5)
        self.up = nn.Linear(HIDDEN, 2 * FFN, bias=False)
        self.act = nn.GELU()
        self.down = nn.Linear(FFN, HIDDEN)
        self.scale = nn.Parameter(torch.ones(3, HIDDEN))

    def forward(self, x, mask, bias):
        x = x + self.scale[0] * self.attn(self.norm1(x), mask, bias)
        x = x + self.scale[1] * self.local(self.norm2(x), mask)
        value, gate = self.up(self.norm3(x)).chunk(2, dim=-1)
        return x + self.scale[2] * self.down(value * self.act(gate))


class TokenPool(nn.Module):
    """Mean, max and learned-query pooling of the real tokens, concatenated."""
    def __init__(self):
        super().__init__()
        self.key = nn.Linear(HIDDEN, HIDDEN)
        self.query = nn.Parameter(torch.zeros(HEADS, HIDDEN // HEADS))
        self.out = nn.Linear(3 * HIDDEN, OUT)

    def forward(self, x, mask):
        B, L, D = x.shape
        m = mask.unsqueeze(-1).to(x.dtype)
        mean = (x * m).sum(1) / m.sum(1).clamp(min=1.0)
        peak = x.masked_fill(~mask.unsqueeze(-1), float("-inf")).amax(dim=1)
        k = torch.tanh(self.key(x)).view(B, L, HEADS, D // HEADS)
        logits = torch.einsum("blhd,hd->blh", k, self.query)
        logits = logits.masked_fill(~mask.unsqueeze(-1), float("-inf"))
        weights = F.softmax(logits, dim=1)
        picked = torch.einsum("blh,blhd->bhd", weights, x.view(B, L, HEADS, D // HEADS)).reshape(B, D)
        return self.out(torch.cat([mean, peak, picked], dim=-1))


class TextTower(nn.Module):
    def __init__(self, layers=3, buckets=12):
        super().__init__()
        self.embed = TextEmbeddings()
        self.rel = nn.Embedding(buckets, HEADS)
        place = torch.arange(SEQ)
        self.register_buffer("rel_index", relative_bucket(place[None] - place[:, None], buckets, 9), persistent=False)
        self.blocks = nn.ModuleList([TextBlock() for _ in range(layers)])
        self.layer_logits = nn.Parameter(torch.zeros(layers + 1))
        self.gamma = nn.Parameter(torch.ones(1))
        self.norm = nn.LayerNorm(HIDDEN, eps=1e-5)
        self.pool = TokenPool()
        self.token_head = nn.Linear(HIDDEN, OUT, bias=False)
        self.importance = nn.Linear(HIDDEN, 1)
        skip = torch.zeros(VOCAB, dtype=torch.bool)
        skip[SKIPLIST] = True
        self.register_buffer("skip", skip, persistent=False)

    def forward(self, ids, segments, mask):
        x = self.embed(ids, segments, mask)
        bias = self.rel(self.rel_index).permute(2, 0, 1).unsqueeze(0)
        states = [x]
        for block in self.blocks:
            x = block(x, mask, bias)
            states.append(x)
        # scalar mix over all depths, the embedding included
        w = F.softmax(self.layer_logits, dim=0)
        mixed = self.norm(self.gamma * sum(w[i] * s for i, s in enumerate(states)))
        pooled = F.normalize(self.pool(mixed, mask), dim=-1)
        keep = mask & ~self.skip[ids]
        tokens = F.normalize(self.token_head(mixed), dim=-1) * keep.unsqueeze(-1)
        weight = F.softplus(self.importance(mixed)).squeeze(-1) * keep
        return pooled, tokens, weight


class HashedBag(nn.Module):
    """Categories: two hash functions into one table, learned importance per id, weighted sqrtn combiner."""
    def __init__(self, buckets=23, prime=10007):
        super().__init__()
        self.buckets, self.prime = buckets, prime
        self.table = nn.Embedding(buckets, ITEM_DIM)
        self.importance = nn.Embedding(N_CAT, 2, padding_idx=0)
        self.register_buffer("coef", torch.tensor([[5741, 913], [7919, 2477]]), persistent=False)

    def forward(self, ids, confidence):
        slot = (ids.unsqueeze(-1) * self.coef[:, 0] + self.coef[:, 1]) % self.prime % self.buckets
        vec = (self.importance(ids).unsqueeze(-1) * self.table(slot)).sum(dim=-2)
        w = confidence * (ids != 0)
        out = (vec * w.unsqueeze(-1)).sum(dim=1) / w.pow(2).sum(dim=1, keepdim=True).clamp(min=1e-6).sqrt()
        return out, w.sum(dim=1) > 0


class HistoryBag(nn.Module):
    """Co-viewed items as a flat list with offsets: softmax attention inside each bag, oldest first."""
    def __init__(self, half_life=3.0):
        super().__init__()
        self.half_life = half_life
        self.table = nn.Embedding(N_HIST, ITEM_DIM)
        self.score = nn.Sequential(nn.Linear(ITEM_DIM, 10), nn.LeakyReLU(), nn.Linear(10, 1))

    def forward(self, flat, offsets):
        bags = offsets.shape[0]
        place = torch.arange(flat.shape[0], device=flat.device)
        segment = torch.searchsorted(offsets, place, right=True) - 1
        ends = torch.cat([offsets[1:], offsets.new_tensor([flat.shape[0]])])
        age = (ends[segment] - 1 - place).float()
        vec = self.table(flat)
        logit = self.score(vec).squeeze(-1) - math.log(2.0) * age / self.half_life
        top = logit.new_full((bags,), -1e9).scatter_reduce(0, segment, logit, "amax")
        e = torch.exp(logit - top[segment])
        z = torch.zeros(bags, dtype=e.dtype).index_add(0, segment, e)
        w = e / z[segment]
        out = torch.zeros(bags, ITEM_DIM, dtype=vec.dtype).index_add(0, segment, w.unsqueeze(-1) * vec)
        return out, z > 0


class DenseField(nn.Module):
    """Numeric features: signed log, batch norm, periodic embedding; plus a price bucket."""
    def __init__(self, freqs=4, sigma=0.3):
        super().__init__()
        self.norm = nn.BatchNorm1d(DENSE, eps=1e-3)
        steps = torch.arange(1, freqs + 1).float()
        self.register_buffer("freq", 2 * math.pi * sigma * steps, persistent=False)
        self.weight = nn.Parameter(torch.zeros(DENSE, 2 * freqs, ITEM_DIM))
        self.bias = nn.Parameter(torch.zeros(DENSE, ITEM_DIM))
        self.register_buffer("edges", torch.tensor(PRICE_EDGES), persistent=False)
        self.bucket = nn.Embedding(len(PRICE_EDGES) + 1, ITEM_DIM)

    def forward(self, dense):
        price = dense[:, 0].contiguous()
        x = self.norm(torch.sign(dense) * torch.log1p(dense.abs()))
        angle = x.unsqueeze(-1) * self.freq
        wave = torch.cat([torch.sin(angle), torch.cos(angle)], dim=-1)
        token = F.relu(torch.einsum("npf,pfd->npd", wave, self.weight) + self.bias).mean(dim=1)
        return token + self.bucket(torch.bucketize(price, self.edges, right=True))


class FacetAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.queries = nn.Parameter(torch.zeros(FACETS, OUT))
        self.kv = nn.Linear(ITEM_DIM, 2 * OUT)
        self.norm = nn.LayerNorm(OUT, eps=1e-5)

    def forward(self, fields, present):
        k, v = self.kv(fields).split(OUT, dim=-1)
        logits = torch.einsum("kd,nfd->nkf", self.queries, k) * OUT ** -0.5
        logits = logits.masked_fill(~present.unsqueeze(1), -1e4)
        facets = torch.einsum("nkf,nfd->nkd", F.softmax(logits, dim=-1), v)
        return self.norm(facets + self.queries)


class ItemTower(nn.Module):
    def __init__(self, fields=3, depth=2):
        super().__init__()
        self.category = HashedBag()
        self.history = HistoryBag()
        self.dense = DenseField()
        self.cross_u = nn.ModuleList([nn.Linear(fields * ITEM_DIM, 7, bias=False) for _ in range(depth)])
        self.cross_v = nn.ModuleList([nn.Linear(7, fields * ITEM_DIM) for _ in range(depth)])
        pairs = torch.triu_indices(fields, fields, offset=1)
        self.register_buffer("pairs", pairs, persistent=False)
        self.head = nn.Linear(fields * ITEM_DIM + pairs.shape[1], OUT)
        self.facets = FacetAttention()

    def forward(self, cats, confidence, flat, offsets, dense):
        cat_vec, cat_ok = self.category(cats, confidence)
        hist_vec, hist_ok = self.history(flat, offsets)
        x = torch.stack([cat_vec, hist_vec, self.dense(dense)], dim=1)
        present = torch.stack([cat_ok, hist_ok, torch.ones_like(cat_ok)], dim=1)
        inner = (torch.bmm(x, x.transpose(1, 2)) / math.sqrt(ITEM_DIM))[:, self.pairs[0], self.pairs[1]]
        x0 = cross = x.flatten(1)
        for u, v in zip(self.cross_u, self.cross_v):        # DCN-v2, low rank
            cross = x0 * v(u(cross)) + cross
        vec = self.head(torch.cat([cross, inner], dim=-1))
        facets = F.normalize(self.facets(x, present), dim=-1)
        # one facet is always alive, every present field adds another
        alive = torch.arange(FACETS)[None, :] <= present[:, :2].sum(dim=1, keepdim=True)
        return F.normalize(vec, dim=-1), facets, alive


class LateInteraction(nn.Module):
    """Weighted MaxSim of query tokens against item facets, mixed with the pooled cosine."""
    def __init__(self, chunk=4):
        super().__init__()
        self.chunk = chunk
        self.balance = nn.Parameter(torch.zeros(()))

    def forward(self, pooled, tokens, weight, vec, facets, alive):
        parts = []
        for start in range(0, facets.shape[0], self.chunk):
            block = facets[start:start + self.chunk]
            sim = torch.einsum("qld,nkd->qnlk", tokens, block)
            sim = sim.masked_fill(~alive[start:start + self.chunk][None, :, None, :], -1.0)
            best = sim.max(dim=-1).values
            score = (best * weight[:, None, :]).sum(-1) / weight.sum(-1, keepdim=True).clamp(min=1e-6)
            parts.append(score)
        late = torch.cat(parts, dim=1)
        a = torch.sigmoid(self.balance)
        return a * late + (1 - a) * pooled @ vec.t()


class Reranker(nn.Module):
    """Rescore the best items of every query with an MLP and add the result to their scores."""
    def __init__(self, depth=3):
        super().__init__()
        self.depth = depth
        self.hidden = nn.Linear(4 * OUT + 1, 13)
        self.act = nn.PReLU()
        self.out = nn.Linear(13, 1)

    def forward(self, scores, pooled, vec):
        top, index = scores.topk(self.depth, dim=1)
        item = vec[index]
        query = pooled.unsqueeze(1).expand_as(item)
        feats = torch.cat([query, item, query * item, (query - item).abs(), top.unsqueeze(-1)], dim=-1)
        delta = self.out(self.act(self.hidden(feats))).squeeze(-1)
        return scores.scatter_add(1, index, delta - delta.mean(dim=1, keepdim=True))


class ContrastiveLoss(nn.Module):
    """In-batch softmax with own hard negatives, logQ correction and false negative masking."""
    def __init__(self, smoothing=0.1, hard_weight=1.5, margin=0.35):
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))
        self.smoothing, self.hard_weight, self.margin = smoothing, hard_weight, margin

    def forward(self, scores, item_ids, popularity):
        B, H = scores.shape[0], scores.shape[1] // scores.shape[0] - 1
        logits = scores * self.log_scale.exp().clamp(max=100.0)
        own = B + torch.arange(B)[:, None] * H + torch.arange(H)[None, :]
        log_q = torch.log(popularity / popularity.sum())
        inbatch = logits[:, :B] - log_q[None, :B]
        hard = logits.gather(1, own) + math.log(self.hard_weight)
        same = item_ids[None, :B] == item_ids[:B, None]
        false_in = same & ~torch.eye(B, dtype=torch.bool)
        false_hard = (item_ids[own] == item_ids[:B, None]) | (
            scores.gather(1, own) > scores[:, :B].diagonal()[:, None] + self.margin)
        inbatch = inbatch.masked_fill(false_in, float("-inf"))
        hard = hard.masked_fill(false_hard, float("-inf"))
        logp = F.log_softmax(torch.cat([inbatch, hard], dim=1), dim=1)
        nll = -logp[:, :B].diagonal()
        valid = torch.isfinite(logp)
        smooth = -(logp.masked_fill(~valid, 0.0).sum(1) / valid.sum(1))
        forward_loss = ((1 - self.smoothing) * nll + self.smoothing * smooth).mean()
        back = logits[:, :B].masked_fill(false_in, float("-inf")).t()
        backward_loss = F.cross_entropy(back, torch.arange(B))
        return 0.5 * (forward_loss + backward_loss)


class PairRank(nn.Module):
    def __init__(self):
        super().__init__()
        self.text = TextTower()
        self.item = ItemTower()
        self.late = LateInteraction()
        self.rerank = Reranker()
        self.loss = ContrastiveLoss()

    def forward(self, ids, segments, mask, cats, confidence, flat, offsets, dense, item_ids, popularity):
        pooled, tokens, weight = self.text(ids, segments, mask.bool())
        vec, facets, alive = self.item(cats, confidence, flat, offsets, dense)
        scores = self.rerank(self.late(pooled, tokens, weight, vec, facets, alive), pooled, vec)
        loss = self.loss(scores, item_ids, popularity)
        return loss, scores, pooled, vec


def make_inputs():
    r = np.random.RandomState(11)
    lengths = np.array([11, 7, 9, 4, 10])
    mask = (np.arange(SEQ)[None] < lengths[:, None]).astype(np.int64)
    ids = np.where(mask == 1, r.randint(2, VOCAB, (BATCH, SEQ)), 1)
    ids[0, 3], ids[1, 2], ids[2, 5], ids[3, 3], ids[4, 7] = 3, 9, 17, 4, 9
    segments = ((np.arange(SEQ)[None] >= (lengths // 2)[:, None]) * mask).astype(np.int64)
    n = BATCH * (1 + HARD)
    cats = r.randint(1, N_CAT, (n, 5)) * (np.arange(5)[None] < r.randint(1, 6, (n, 1)))
    cats[6] = 0
    confidence = r.uniform(0.2, 1.0, (n, 5)).astype(np.float32)
    sizes = r.randint(1, 6, n)
    sizes[[2, 9]] = 0
    offsets = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    flat = r.randint(0, N_HIST, sizes.sum())
    dense = (r.randn(n, DENSE) * 3).astype(np.float32)
    dense[:, 0] = np.array([4, 5, 12, 20, 75, 100, 33, 7.5, 10, 260, 18, 50, 3, 20, 61], np.float32)
    item_ids = np.array([7, 12, 7, 30, 18, 44, 7, 9, 12, 51, 3, 30, 62, 25, 40])
    popularity = r.randint(1, 90, n).astype(np.float32)
    return ids, segments, mask, cats, confidence, flat, offsets, dense, item_ids, popularity


def randomize(net):
    fixed = {"mix": (torch.eye(HEADS), 0.35), "scale": (0.8, 0.2), "gamma": (0.8, 0.2), "log_scale": (1.9, 0.0)}
    with torch.no_grad():
        for mod in net.modules():
            for key, p in mod.named_parameters(recurse=False):
                mean, std = 0.0, 0.2
                if isinstance(mod, (nn.LayerNorm, nn.BatchNorm1d, nn.PReLU)):
                    mean, std = {"weight": (1.0, 0.25), "bias": (0.0, 0.2)}[key]
                elif key in fixed:
                    mean, std = fixed[key]
                elif isinstance(mod, nn.Embedding) or key in ("queries", "query", "layer_logits", "balance"):
                    std = 0.8
                elif p.dim() > 1 and key == "weight":
                    std = 1.2 / math.sqrt(p[0].numel() if p.shape[0] != DENSE else p.shape[1])
                p.copy_(mean + std * torch.randn(p.shape))
            if isinstance(mod, nn.PReLU):
                mod.weight.mul_(0.25)
            if isinstance(mod, nn.BatchNorm1d):
                mod.running_mean.normal_(0.0, 0.4)
                mod.running_var.uniform_(0.02, 1.3)


def build():
    torch.manual_seed(38)
    net = PairRank()
    randomize(net)
    return net.eval(), tuple(torch.from_numpy(a) for a in make_inputs())
