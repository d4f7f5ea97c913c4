"""IntentBasket: next-basket recommendation with time-interval attention, target attention and multi-interest routing.

A history is a sequence of baskets (right padded), a basket is a padded set of items. Ranks one positive and sampled
negatives; returns the utilities, the training loss and the gains of a greedily built basket.
"""
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

N_ITEMS, N_CATS, N_USERS = 67, 13, 19
MAX_LEN, BASKET, N_CAND = 11, 4, 9
DIM, HEADS, INTERESTS = 24, 3, 5
NEG_INF = -2.0 ** 15 + 1


def squash(x, dim=-1, eps=1e-8):
    sq = x.pow(2).sum(dim=dim, keepdim=True)
    return sq / (1.0 + sq) * x / torch.sqrt(sq + eps)


def interval_steps(times, mask, span):
    """Personalised time intervals (TiSASRec): |t_i - t_j| in units of the user's own shortest gap, clipped."""
    diff = (times.unsqueeze(2) - times.unsqueeze(1)).abs()
    pair = mask.unsqueeze(2) & mask.unsqueeze(1)
    big = torch.where((diff > 0) & pair, diff, torch.full_like(diff, 10 ** 6))
    unit = big.amin(dim=(1, 2), keepdim=True)
    steps = torch.div(diff, unit, rounding_mode="floor")
    return steps.clamp(max=span)


class Dice(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.bn = nn.BatchNorm1d(dim, eps=1e-2, momentum=0.01)
        self.alpha = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        gate = torch.sigmoid(self.bn(flat)).reshape(x.shape)
        return gate * x + (1.0 - gate) * self.alpha * x


class ItemEncoder(nn.Module):
    def __init__(self, dim, cat_dim=10):
        super().__init__()
        self.item = nn.Embedding(N_ITEMS, dim, padding_idx=0)
        self.cat = nn.Embedding(N_CATS, cat_dim, padding_idx=0)
        self.proj = nn.Linear(dim + cat_dim, dim)
        ids = torch.arange(N_ITEMS)
        item2cat = 1 + (ids * 5 + ids // 7) % (N_CATS - 1)
        item2cat[0] = 0
        self.register_buffer("item2cat", item2cat, persistent=False)
        self.scale = math.sqrt(dim)

    def forward(self, ids):
        item, cat = self.item(ids), self.cat(self.item2cat[ids])
        x = torch.cat([item, cat], dim=-1)
        return torch.tanh(self.proj(x)) + item * self.scale * 0.25


class BasketPool(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.qty = nn.Parameter(torch.zeros(dim))
        self.key = nn.Linear(dim, 16)
        self.act = nn.LeakyReLU()
        self.score = nn.Linear(16, 1, bias=False)
        self.gate = nn.Linear(3 * dim, dim)
        self.norm = nn.LayerNorm(dim, eps=1e-6)

    def forward(self, x, qty, item_mask):
        x = x + torch.log1p(qty).unsqueeze(-1) * self.qty
        m = item_mask.unsqueeze(-1)
        logit = self.score(self.act(self.key(x))).squeeze(-1)
        weight = F.softmax(logit.masked_fill(~item_mask, NEG_INF), dim=2)
        weight = weight * item_mask.to(x.dtype)
        att = torch.einsum("btm,btmd->btd", weight, x)
        count = item_mask.sum(dim=2, keepdim=True).clamp(min=1)
        mean = (x * m).sum(dim=2) / count
        top = x.masked_fill(~m, NEG_INF).max(dim=2).values
        top = torch.where(item_mask.any(dim=2, keepdim=True), top, torch.zeros_like(top))
        gate = torch.sigmoid(self.gate(torch.cat([att, mean, top], dim=-1)))
        return self.norm(gate * att + (1.0 - gate) * mean)


class IntervalAttention(nn.Module):
    def __init__(self, dim, heads, max_len, span, n_buckets=7, n_exact=3):
        super().__init__()
        self.heads, self.head_dim = heads, dim // heads
        self.to_q = nn.Linear(dim, dim)
        self.to_kv = nn.Linear(dim, 2 * dim)
        self.interval_k = nn.Embedding(span + 1, dim)
        self.interval_v = nn.Embedding(span + 1, dim)
        self.pos_bias = nn.Embedding(n_buckets, heads)
        self.out = nn.Linear(dim, dim, bias=False)

        # relative distances: exact when near, logarithmic when far
        dist = (torch.arange(max_len)[:, None] - torch.arange(max_len)[None, :]).clamp(min=0)
        ratio = torch.log(dist.clamp(min=1).float() / n_exact) / math.log(max_len / n_exact)
        far = (n_exact + (ratio * (n_buckets - n_exact)).long()).clamp(max=n_buckets - 1)
        self.register_buffer("buckets", torch.where(dist < n_exact, dist, far), persistent=False)

    def forward(self, x, steps, mask):
        b, t, d = x.shape
        h, e = self.heads, self.head_dim
        q = self.to_q(x).view(b, t, h, e).transpose(1, 2)
        k, v = self.to_kv(x).view(b, t, 2, h, e).permute(2, 0, 3, 1, 4).unbind(0)
        rel_k = self.interval_k(steps).view(b, t, t, h, e)
        rel_v = self.interval_v(steps).view(b, t, t, h, e)

        score = torch.einsum("bhie,bhje->bhij", q, k) + torch.einsum("bhie,bijhe->bhij", q, rel_k)
        score = score / math.sqrt(e) + self.pos_bias(self.buckets[:t, :t]).permute(2, 0, 1)
        causal = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
        score = score.masked_fill(causal | ~mask[:, None, None, :], NEG_INF)
        attn = F.softmax(score, dim=-1)

        ctx = torch.einsum("bhij,bhje->bihe", attn, v) + torch.einsum("bhij,bijhe->bihe", attn, rel_v)
        return self.out(ctx.reshape(b, t, d))


class CausalMixer(nn.Module):
    def __init__(self, dim, kernel=3, dilation=2):
        super().__init__()
        self.conv = nn.Conv1d(dim, 2 * dim, kernel, padding=(kernel - 1) * dilation, dilation=dilation, groups=2)
        self.fc = nn.Linear(dim, dim)

    def forward(self, x):
        t = x.shape[1]
        y = self.conv(x.transpose(1, 2))[:, :, :t]
        y = F.glu(y, dim=1)
        return self.fc(y.transpose(1, 2))


class IntervalBlock(nn.Module):
    def __init__(self, dim, heads, max_len, span):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-5)
        self.attn = IntervalAttention(dim, heads, max_len, span)
        self.norm2 = nn.LayerNorm(dim, eps=1e-5)
        self.mixer = CausalMixer(dim)
        self.norm3 = nn.LayerNorm(dim, eps=1e-5)
        self.ffn = nn.Sequential(nn.Linear(dim, 40), nn.GELU(), nn.Linear(40, dim))

    def forward(self, x, steps, mask):
        # TiSASRec: queries are normalised, and the normalised queries are the residual
        q = self.norm1(x)
        x = q + self.attn(q, steps, mask)
        x = x * mask.unsqueeze(-1).to(x.dtype)
        x = x + self.mixer(self.norm2(x))
        x = x + self.ffn(self.norm3(x))
        return x * mask.unsqueeze(-1).to(x.dtype)


class TargetAttention(nn.Module):
    def __init__(self, dim, hidden=20):
        super().__init__()
        self.fc1 = nn.Linear(4 * dim, hidden)
        self.dice = Dice(hidden)
        self.fc2 = nn.Linear(hidden, 1)
        self.decay = nn.Parameter(torch.zeros(1))

    def forward(self, query, keys, times, mask):
        (b, c, d), t = query.shape, keys.shape[1]
        q = query.unsqueeze(2).expand(b, c, t, d)
        k = keys.unsqueeze(1).expand(b, c, t, d)
        feat = torch.cat([q, k, q - k, q * k], dim=-1)
        logit = self.fc2(self.dice(self.fc1(feat))).squeeze(-1)
        last = times.masked_fill(~mask, 0).max(dim=1, keepdim=True).values
        age = (last - times).clamp(min=0).float() / 24.0
        logit = logit - F.softplus(self.decay) * torch.log1p(age).unsqueeze(1)
        logit = logit.masked_fill(~mask.unsqueeze(1), NEG_INF)
        weight = F.softmax(logit, dim=-1)
        return torch.bmm(weight, keys), weight


class InterestRouting(nn.Module):
    """Behaviour-to-interest dynamic routing (MIND) with a fixed start of the routing logits."""

    def __init__(self, dim, n_interests, max_len, iters=3):
        super().__init__()
        self.n, self.iters = n_interests, iters
        self.bilinear = nn.Linear(dim, n_interests * dim, bias=False)
        self.fc = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim, eps=1e-3)
        k, t = torch.arange(n_interests).float()[:, None], torch.arange(max_len).float()[None, :]
        start = torch.sin((k + 1.0) * (t + 1.0) * 0.7) + 0.5 * torch.cos(t * 0.3 - k)
        self.register_buffer("start", start, persistent=False)

    def forward(self, x, mask):
        b, t, d = x.shape
        u = self.bilinear(x).view(b, t, self.n, d).transpose(1, 2)
        logit = self.start[:, :t].unsqueeze(0).expand(b, -1, -1)
        keep = mask.unsqueeze(1).to(x.dtype)
        for it in range(self.iters):
            weight = F.softmax(logit, dim=1) * keep
            caps = squash(torch.einsum("bkt,bktd->bkd", weight, u))
            if it < self.iters - 1:
                logit = logit + torch.einsum("bktd,bkd->bkt", u, caps)
        return self.norm(caps + F.relu(self.fc(caps)) * 0.1)

    def attend(self, caps, query, power=2.0):
        """Label-aware attention: candidates choose among the interests."""
        sim = torch.einsum("bcd,bkd->bck", query, caps) / math.sqrt(query.shape[-1])
        weight = F.softmax(sim.abs().pow(power) * sim.sign(), dim=-1)
        return torch.einsum("bck,bkd->bcd", weight, caps)


class FeatureCross(nn.Module):
    """Context fields -> attentional pairwise products, and a low-rank cross network over all fields."""

    def __init__(self, dim, n_dense=6, n_fields=6, small=7, rank=9, depth=2):
        super().__init__()
        self.user = nn.Embedding(N_USERS, dim)
        self.hour = nn.Embedding(8, dim)
        self.weekday = nn.Embedding(7, dim)
        self.dense = nn.Linear(n_dense, dim)
        self.pair_fc = nn.Linear(dim, 12)
        self.pair_h = nn.Linear(12, 1, bias=False)
        self.reduce = nn.Linear(dim, small)
        width = n_fields * small
        self.cross_v = nn.ModuleList([nn.Linear(width, rank, bias=False) for _ in range(depth)])
        self.cross_u = nn.ModuleList([nn.Linear(rank, width) for _ in range(depth)])
        self.out = nn.Linear(width + dim, dim)
        self.register_buffer("pairs", torch.triu_indices(n_fields, n_fields, offset=1), persistent=False)

    def forward(self, user, dense, last_time, last, avg):
        hour, weekday = (last_time % 24) // 3, (last_time // 24 + 4) % 7  # the epoch was a Thursday
        dense = (dense - dense.mean(dim=1, keepdim=True)) / (dense.std(dim=1, keepdim=True) + 1e-6)
        fields = torch.stack(
            [self.user(user), self.hour(hour), self.weekday(weekday), self.dense(dense), last, avg], dim=1)

        pairs = fields[:, self.pairs[0]] * fields[:, self.pairs[1]]
        weight = F.softmax(self.pair_h(F.relu(self.pair_fc(pairs))), dim=1)
        second = (weight * pairs).sum(dim=1)

        x = x0 = self.reduce(fields).flatten(1)
        for down, up in zip(self.cross_v, self.cross_u):
            x = x0 * up(torch.tanh(down(x))) + x
        return self.out(torch.cat([x, second], dim=-1))


class RepeatHead(nn.Module):
    """RepeatNet: the chance that a past item is bought again, spread over the vocabulary."""

    def __init__(self, dim):
        super().__init__()
        self.item_fc = nn.Linear(dim, 14)
        self.state_fc = nn.Linear(dim, 14, bias=False)
        self.v = nn.Linear(14, 1, bias=False)
        self.mode = nn.Linear(dim, 2)

    def forward(self, x, item_ids, basket_weight, state):
        b = x.shape[0]
        hid = torch.tanh(self.item_fc(x) + self.state_fc(state)[:, None, None, :])
        logit = self.v(hid).squeeze(-1) + torch.log(basket_weight.mean(dim=1) + 1e-6).unsqueeze(-1)
        ids = item_ids.reshape(b, -1)
        prob = F.softmax(logit.reshape(b, -1).masked_fill(ids.eq(0), NEG_INF), dim=-1)
        vocab = torch.zeros(b, N_ITEMS, dtype=x.dtype, device=x.device).scatter_add(1, ids, prob)
        mode = F.softmax(self.mode(state), dim=-1)
        return vocab, mode


class SampledScorer(nn.Module):
    def __init__(self, dim, tries=20):
        super().__init__()
        self.fuse = nn.Sequential(nn.Linear(4 * dim, 32), nn.ELU(alpha=0.5), nn.Linear(32, dim))
        self.log_temp = nn.Parameter(torch.zeros(()))
        # log-uniform sampler over popularity ranks (item ids start from 1)
        rank = torch.arange(N_ITEMS - 1).double()
        p = (torch.log(rank + 2) - torch.log(rank + 1)) / math.log(N_ITEMS)
        expected = -torch.expm1(tries * torch.log1p(-p))
        log_q = torch.cat([torch.zeros(1).double(), torch.log(expected)]).float()
        self.register_buffer("log_q", log_q, persistent=False)

    def forward(self, interest, local, cross, state, cand_vec, cand_ids):
        c = cand_vec.shape[1]
        ctx = torch.stack([cross, state], dim=1).flatten(1).unsqueeze(1).expand(-1, c, -1)
        user = self.fuse(torch.cat([interest, local, ctx], dim=-1))
        user, item = F.normalize(user, dim=-1), F.normalize(cand_vec, dim=-1)
        temp = self.log_temp.exp().clamp(0.05, 2.0)
        score = (user * item).sum(-1) / temp
        score = score - self.log_q[cand_ids]
        # sampled negatives that are the positive itself
        hit = cand_ids.eq(cand_ids[:, :1])
        hit[:, 0] = False
        return score.masked_fill(hit, NEG_INF), item


class IntentBasket(nn.Module):
    def __init__(self, dim=DIM, heads=HEADS, span=16, depth=2, picks=4, trade=0.6):
        super().__init__()
        self.span, self.picks, self.trade = span, picks, trade
        self.items = ItemEncoder(dim)
        self.pool = BasketPool(dim)
        self.position = nn.Embedding(MAX_LEN + 1, dim)
        self.blocks = nn.ModuleList([IntervalBlock(dim, heads, MAX_LEN, span) for _ in range(depth)])
        self.target = TargetAttention(dim)
        self.routing = InterestRouting(dim, INTERESTS, MAX_LEN)
        self.cross = FeatureCross(dim)
        self.repeat = RepeatHead(dim)
        self.scorer = SampledScorer(dim)

    def compose(self, utility, item):
        # greedy basket by maximal marginal relevance
        sim = torch.einsum("bid,bjd->bij", item, item)
        redundancy = torch.zeros_like(utility)
        taken = torch.zeros_like(utility, dtype=torch.bool)
        gains = []
        for _ in range(self.picks):
            value = self.trade * utility - (1.0 - self.trade) * redundancy
            best, idx = value.masked_fill(taken, NEG_INF).max(dim=1)
            gains.append(best)
            taken = taken.scatter(1, idx.unsqueeze(1), True)
            near = sim.gather(1, idx.view(-1, 1, 1).expand(-1, 1, sim.shape[2])).squeeze(1)
            redundancy = torch.maximum(redundancy, near)
        return torch.stack(gains, dim=1)

    def forward(self, item_ids, qty, times, user, dense, cand_ids):
        (b, t, _), item_mask = item_ids.shape, item_ids.ne(0)
        mask = item_mask.any(dim=2)
        length = mask.sum(dim=1)

        vec = self.items(item_ids)
        basket = self.pool(vec, qty, item_mask)
        # position 1 is the newest basket, 0 is padding
        pos = (length.unsqueeze(1) - torch.arange(t, device=item_ids.device)).clamp(min=0)
        x = basket + self.position(pos)
        x = x * mask.unsqueeze(-1).to(x.dtype)

        steps = interval_steps(times, mask, self.span)
        for block in self.blocks:
            x = block(x, steps, mask)

        last_idx = length - 1
        state = x.gather(1, last_idx.view(b, 1, 1).expand(-1, 1, x.shape[2])).squeeze(1)
        last_time = times.gather(1, last_idx.unsqueeze(1)).squeeze(1)
        avg = (basket * mask.unsqueeze(-1)).sum(dim=1) / length.unsqueeze(1)

        cand = self.items(cand_ids)
        local, weight = self.target(cand, x, times, mask)
        caps = self.routing(x, mask)
        interest = self.routing.attend(caps, cand)
        cross = self.cross(user, dense, last_time, state, avg)
        score, item = self.scorer(interest, local, cross, state, cand, cand_ids)

        log_prob = F.log_softmax(score, dim=1)
        loss = F.cross_entropy(score, torch.zeros(b, dtype=torch.long, device=x.device))

        vocab, mode = self.repeat(vec, item_ids, weight, state)
        again = vocab.gather(1, cand_ids)
        mixed = mode[:, :1] * again + mode[:, 1:] * log_prob.exp()
        utility = torch.log(mixed + 1e-4)
        return utility, loss, self.compose(utility, item)


def make_inputs(seed=5):
    rng = np.random.RandomState(seed)
    lengths, b = [11, 8, 6], 3
    items = np.zeros((b, MAX_LEN, BASKET), np.int64)
    times = np.zeros((b, MAX_LEN), np.int64)
    for i, n in enumerate(lengths):
        for j in range(n):
            m = rng.randint(1, BASKET + 1)
            items[i, j, :m] = rng.choice(np.arange(1, N_ITEMS), m, replace=False)
        times[i, :n] = 411000 + 37 * i + np.cumsum(rng.randint(9, 75, n))
    qty = np.where(items > 0, rng.randint(1, 6, items.shape), 0).astype(np.float32)
    user = rng.randint(0, N_USERS, b).astype(np.int64)
    dense = (rng.randn(b, 6) * 2 + 1).astype(np.float32)
    cand = rng.randint(1, N_ITEMS, (b, N_CAND)).astype(np.int64)
    cand[0, 3], cand[1, 5] = items[0, 10, 0], items[1, 6, 0]
    cand[1, 0], cand[2, 2] = items[1, 3, 0], items[2, 5, 0]
    cand[2, 7] = cand[2, 0]
    return items, qty, times, user, dense, cand


def build():
    torch.manual_seed(11)
    net = IntentBasket()
    with torch.no_grad():
        for mod in net.modules():
            if isinstance(mod, (nn.LayerNorm, nn.BatchNorm1d)):
                mod.weight.copy_(1.0 + 0.3 * torch.randn_like(mod.weight))
                mod.bias.copy_(0.2 * torch.randn_like(mod.bias))
            elif isinstance(mod, (nn.Linear, nn.Conv1d)):
                mod.weight.copy_(torch.randn_like(mod.weight) / mod.weight[0].numel() ** 0.5)
                if mod.bias is not None:
                    mod.bias.copy_(0.2 * torch.randn_like(mod.bias))
            elif isinstance(mod, nn.Embedding):
                mod.weight.mul_(0.6)
            if isinstance(mod, nn.BatchNorm1d):
                mod.running_mean.copy_(0.3 * torch.randn_like(mod.running_mean))
                mod.running_var.copy_(0.02 + 0.6 * torch.rand_like(mod.running_var) ** 2)
        net.pool.qty.copy_(0.5 * torch.randn_like(net.pool.qty))
        net.target.dice.alpha.copy_(0.3 * torch.randn_like(net.target.dice.alpha))
        net.target.decay.fill_(0.8)
        net.scorer.log_temp.fill_(-1.2)
    return net.eval(), tuple(torch.from_numpy(a) for a in make_inputs())
