"""CodeEdit: a small tree-aware encoder-decoder that rewrites a buggy snippet.
The source is an AST in pre-order (token, sub-tokens, parent index). The encoder attends with relative
terms chosen by tree distance, the decoder produces the repaired token sequence from a mixture of a
vocabulary softmax and a copy distribution over the leaves (pointer-generator with coverage).
"""
import math
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

PAD, BOS, EOS, UNK = 0, 1, 2, 3
NEG = -1e9


def sinusoid_table(n_pos, dim):
    """[n_pos, dim], sine on the even channels and cosine on the odd ones."""
    pos = torch.arange(n_pos, dtype=torch.float32).unsqueeze(1)
    freq = torch.exp(torch.arange(0, dim, 2, dtype=torch.float32) * (-math.log(10000.0) / dim))
    table = torch.zeros(n_pos, dim)
    table[:, 0::2] = torch.sin(pos * freq)
    table[:, 1::2] = torch.cos(pos * freq)
    return table


def bucket_table(n_buckets, max_distance):
    """distance -> bucket for one direction: exact for short paths, logarithmic up to max_distance."""
    exact = n_buckets // 2
    table = list(range(exact))
    for d in range(exact, 2 * max_distance):
        ratio = math.log(d / exact) / math.log(max_distance / exact)
        table.append(min(exact + int(ratio * (n_buckets - exact)), n_buckets - 1))
    return torch.tensor(table)


class TreeRelations(nn.Module):
    """From parent indices: ancestor matrix, depth, sibling rank, leaf mask and distance buckets."""

    def __init__(self, n_buckets, max_distance):
        super().__init__()
        self.half = n_buckets // 2
        self.register_buffer("table", bucket_table(self.half, max_distance), persistent=False)

    def forward(self, parent, valid):
        b, n = parent.shape
        eye = torch.eye(n).unsqueeze(0).expand(b, n, n)
        rows = [eye[:, 0]]
        for i in range(1, n):
            done = torch.stack(rows, dim=1)                               # [b, i, n]
            index = parent[:, i].view(b, 1, 1).expand(b, 1, n)
            rows.append(done.gather(1, index).squeeze(1) + eye[:, i])
        anc = torch.stack(rows, dim=1)                                    # anc[b, i, j]: j is i or above i
        anc = anc * valid.unsqueeze(2)
        depth = (anc.sum(-1).long() - 1).clamp(min=0)
        lca = torch.matmul(anc, anc.transpose(1, 2)).long() - 1
        up = depth.unsqueeze(2) - lca
        down = depth.unsqueeze(1) - lca
        dist = (up + down).clamp(max=self.table.numel() - 1)
        order = torch.arange(n)
        later = order.unsqueeze(0) > order.unsqueeze(1)                   # key comes after query
        buckets = self.table[dist] + later.long().unsqueeze(0) * self.half
        buckets = buckets.masked_fill(~(valid.unsqueeze(1) & valid.unsqueeze(2)), 0)
        same = parent.unsqueeze(2) == parent.unsqueeze(1)
        earlier = (order.unsqueeze(0) < order.unsqueeze(1)) & (order > 0)  # the root is nobody's sibling
        rank = (same & earlier).sum(-1) * valid.long()
        leaf = (anc.sum(1) == 1) & valid
        return anc, depth, rank, leaf, buckets


class SubtokenComposer(nn.Module):
    """Sub-token ids [b, n, s] -> one vector per node, by a strided convolution and attention pooling."""

    def __init__(self, vocab, dim, stride=2):
        super().__init__()
        self.stride, self.embed = stride, nn.Embedding(vocab, dim)
        self.conv = nn.Conv2d(dim, dim, (1, 3), stride=(1, stride), padding=(0, 1))
        self.bn = nn.BatchNorm2d(dim, eps=1e-3)
        self.act = nn.LeakyReLU()
        self.score = nn.Linear(dim, 1)

    def forward(self, ids):
        mask = ids.ne(PAD)
        x = self.embed(ids) * mask.unsqueeze(-1).float()
        x = self.act(self.bn(self.conv(x.permute(0, 3, 1, 2))))           # [b, d, n, s']
        x = x.permute(0, 2, 3, 1)
        keep = mask[:, :, ::self.stride]
        weight = self.score(x).squeeze(-1).masked_fill(~keep, NEG).softmax(dim=-1)
        weight = weight * keep.float()
        return torch.einsum("bns,bnsd->bnd", weight, x)


class NodeEmbedding(nn.Module):
    def __init__(self, vocab, sub_vocab, dim, max_depth, max_rank):
        super().__init__()
        self.dim, self.max_depth = dim, max_depth
        self.token = nn.Embedding(vocab, dim)
        self.subtokens = SubtokenComposer(sub_vocab, dim)
        self.depth = nn.Embedding(max_depth + 1, dim)
        self.norm = nn.LayerNorm(dim, eps=1e-3)
        self.register_buffer("rank_table", sinusoid_table(max_rank, dim), persistent=False)

    def forward(self, tokens, subs, depth, rank, valid):
        x = self.token(tokens) + self.subtokens(subs)
        x = x + self.depth(depth.clamp(max=self.max_depth))
        rank = self.rank_table[rank.clamp(max=self.rank_table.size(0) - 1)]
        x = x + rank / math.sqrt(self.dim)
        return self.norm(x) * valid.unsqueeze(-1).float()


class TreeAttention(nn.Module):
    """Self-attention with relative keys, relative values and a per-head bias by tree bucket."""

    def __init__(self, dim, heads, n_buckets):
        super().__init__()
        self.heads, self.dk = heads, dim // heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.rel_k, self.rel_v = nn.Embedding(n_buckets, self.dk), nn.Embedding(n_buckets, self.dk)
        self.rel_bias = nn.Embedding(n_buckets, heads)
        self.out = nn.Linear(dim, dim)

    def forward(self, x, buckets, valid):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, self.dk).permute(2, 0, 3, 1, 4)
        content = torch.einsum("bhid,bhjd->bhij", q, k)
        position = torch.einsum("bhid,bijd->bhij", q, self.rel_k(buckets))
        scores = (content + position) / math.sqrt(self.dk)
        scores = scores + self.rel_bias(buckets).permute(0, 3, 1, 2)
        scores = scores.masked_fill(~valid[:, None, None, :], NEG)
        attn = F.softmax(scores, dim=-1)
        ctx = torch.einsum("bhij,bhjd->bhid", attn, v)
        ctx = ctx + torch.einsum("bhij,bijd->bhid", attn, self.rel_v(buckets))
        return self.out(ctx.transpose(1, 2).reshape(b, n, d))


class EncoderLayer(nn.Module):
    def __init__(self, dim, heads, hidden, n_buckets):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = TreeAttention(dim, heads, n_buckets)
        self.norm2 = nn.LayerNorm(dim)
        self.ffn = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))

    def forward(self, x, buckets, valid):
        x = x + self.attn(self.norm1(x), buckets, valid)
        return x + self.ffn(self.norm2(x))


class TreeEncoder(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.relations = TreeRelations(cfg["buckets"], cfg["max_distance"])
        self.embed = NodeEmbedding(cfg["vocab"], cfg["sub_vocab"], cfg["dim"], cfg["max_depth"], cfg["max_rank"])
        self.layers = nn.ModuleList(
            EncoderLayer(cfg["dim"], cfg["heads"], cfg["hidden"], cfg["buckets"]) for _ in range(cfg["enc_layers"]))
        self.norm = nn.LayerNorm(cfg["dim"])

    def forward(self, tokens, subs, parent):
        valid = tokens.ne(PAD)
        anc, depth, rank, leaf, buckets = self.relations(parent, valid)
        x = self.embed(tokens, subs, depth, rank, valid)
        for layer in self.layers:
            x = layer(x, buckets, valid)
        return self.norm(x) * valid.unsqueeze(-1).float(), valid, leaf, anc


class FaultLocator(nn.Module):
    """Which node has to be edited: the node, its parent and the mean of its subtree are compared."""

    def __init__(self, dim, hidden):
        super().__init__()
        self.proj = nn.Linear(3 * dim, hidden)
        self.act = nn.LeakyReLU(0.1)
        self.score = nn.Linear(hidden, 1)

    def forward(self, memory, anc, parent, valid):
        b, n, d = memory.shape
        above = memory.gather(1, parent.unsqueeze(-1).expand(b, n, d))
        size = anc.sum(dim=1).clamp(min=1.0)                              # nodes below j, j included
        below = torch.matmul(anc.transpose(1, 2), memory) / size.unsqueeze(-1)
        h = self.act(self.proj(torch.cat([memory, above - memory, below], dim=-1)))
        logp = self.score(h).squeeze(-1).masked_fill(~valid, NEG).log_softmax(dim=-1)
        return logp.masked_fill(~valid, 0.0)


class CausalAttention(nn.Module):
    """Masked self-attention with a learned distance bias; keys and values of earlier steps are kept."""

    def __init__(self, dim, heads, window):
        super().__init__()
        self.heads, self.dk, self.window = heads, dim // heads, window
        self.q = nn.Linear(dim, dim)
        self.k = nn.Linear(dim, dim, bias=False)
        self.v = nn.Linear(dim, dim)
        self.distance = nn.Parameter(torch.zeros(heads, window + 1))
        self.out = nn.Linear(dim, dim)

    def forward(self, x, past=None):
        b, t, d = x.shape
        q, k, v = (p(x).view(b, t, self.heads, self.dk).transpose(1, 2) for p in (self.q, self.k, self.v))
        if past is not None:
            k = torch.cat([past[0], k], dim=2)
            v = torch.cat([past[1], v], dim=2)
        total = k.size(2)
        delta = torch.arange(total - t, total).unsqueeze(1) - torch.arange(total).unsqueeze(0)
        scores = q @ k.transpose(-1, -2) * self.dk ** -0.5
        scores = scores + self.distance[:, delta.clamp(0, self.window)]
        attn = scores.masked_fill(delta < 0, NEG).softmax(dim=-1)
        ctx = (attn @ v).transpose(1, 2).reshape(b, t, d)
        return self.out(ctx), (k, v)


class CrossAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.dk = heads, dim // heads
        self.q, self.k, self.v, self.out = (nn.Linear(dim, dim) for _ in range(4))
        self.head_gate = nn.Linear(dim, heads)

    def forward(self, x, memory, valid):
        b, t, d = x.shape
        n = memory.size(1)
        q = self.q(x).view(b, t, self.heads, self.dk)
        k = self.k(memory).view(b, n, self.heads, self.dk)
        v = self.v(memory).view(b, n, self.heads, self.dk)
        scores = torch.einsum("bthd,bnhd->bhtn", q, k) / math.sqrt(self.dk)
        attn = scores.masked_fill(~valid[:, None, None, :], NEG).softmax(dim=-1)
        ctx = torch.einsum("bhtn,bnhd->bthd", attn, v)
        ctx = ctx * torch.sigmoid(self.head_gate(x)).unsqueeze(-1)
        return self.out(ctx.reshape(b, t, d))


class DecoderLayer(nn.Module):
    def __init__(self, dim, heads, hidden, window):
        super().__init__()
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(dim), nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.self_attn, self.cross_attn = CausalAttention(dim, heads, window), CrossAttention(dim, heads)
        self.wi, self.wo = nn.Linear(dim, 2 * hidden), nn.Linear(hidden, dim)

    def forward(self, x, memory, valid, past=None):
        h, present = self.self_attn(self.norm1(x), past)
        x = x + h
        x = x + self.cross_attn(self.norm2(x), memory, valid)
        value, gate = self.wi(self.norm3(x)).chunk(2, dim=-1)
        return x + self.wo(value * F.silu(gate)), present


class CopyHead(nn.Module):
    """One output step: pointer over the leaves (with coverage), vocabulary softmax and their mixture."""

    def __init__(self, dim, att, vocab):
        super().__init__()
        self.vocab = vocab
        self.from_memory, self.from_state = nn.Linear(dim, att, bias=False), nn.Linear(dim, att)
        self.from_coverage = nn.Linear(1, att, bias=False)
        self.score = nn.Linear(att, 1, bias=False)
        self.mix = nn.Linear(2 * dim, dim)
        self.gate = nn.Linear(3 * dim, 1)
        self.out_bias = nn.Parameter(torch.zeros(vocab))

    def forward(self, state, emb, memory, leaf, coverage, src_ext, n_oov, weight):
        e = self.from_memory(memory) + self.from_state(state).unsqueeze(1)
        e = torch.tanh(e + self.from_coverage(coverage.unsqueeze(-1)))
        attn = self.score(e).squeeze(-1).masked_fill(~leaf, NEG).softmax(dim=-1)
        ctx = torch.bmm(attn.unsqueeze(1), memory).squeeze(1)
        logits = F.linear(torch.tanh(self.mix(torch.cat([state, ctx], dim=-1))), weight, self.out_bias)
        logits[:, PAD] = NEG
        p_gen = torch.sigmoid(self.gate(torch.cat([ctx, state, emb], dim=-1)))
        probs = F.pad(p_gen * F.softmax(logits, dim=-1), (0, n_oov))
        probs = probs.scatter_add(1, src_ext, (1.0 - p_gen) * attn)
        return probs, attn


class CodeEdit(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg, self.vocab, self.dim = cfg, cfg["vocab"], cfg["dim"]
        self.encoder = TreeEncoder(cfg)
        self.locator = FaultLocator(cfg["dim"], cfg["hidden"])
        self.position = nn.Embedding(cfg["max_target"], cfg["dim"])
        self.decoder = nn.ModuleList(
            DecoderLayer(cfg["dim"], cfg["heads"], cfg["hidden"], cfg["window"]) for _ in range(cfg["dec_layers"]))
        self.final_norm = nn.LayerNorm(cfg["dim"])
        self.head = CopyHead(cfg["dim"], cfg["att"], cfg["vocab"])

    def embed_target(self, ids, offset):
        known = torch.where(ids >= self.vocab, torch.full_like(ids, UNK), ids)
        pos = self.position(torch.arange(offset, offset + ids.size(1)))
        return self.encoder.embed.token(known) * math.sqrt(self.dim) + pos

    def run_decoder(self, emb, memory, valid, caches=None):
        x, presents = emb, []
        for layer, past in zip(self.decoder, caches or [None] * len(self.decoder)):
            x, present = layer(x, memory, valid, past)
            presents.append(present)
        return self.final_norm(x), presents

    def loss(self, probs, attns, coverages, target):
        """Label-smoothed NLL of the mixture (mass spread over the plain vocabulary) + coverage penalty."""
        smooth = self.cfg["smooth"]
        mask = target.ne(PAD).float()
        logp = torch.log(probs.clamp(min=1e-8))
        nll = -logp.gather(2, target.unsqueeze(-1)).squeeze(-1)
        uniform = -logp[:, :, 1:self.vocab].mean(dim=-1)                  # PAD is never produced
        token = (1.0 - smooth) * nll + smooth * uniform
        penalty = torch.minimum(attns, coverages).sum(dim=-1)
        n_tokens = mask.sum().clamp(min=1.0)
        token_loss = (token * mask).sum() / n_tokens
        cov_loss = ((penalty * mask).sum(1) / mask.sum(1).clamp(min=1.0)).mean()
        return token_loss + self.cfg["cov_weight"] * cov_loss, token * mask, cov_loss

    def teacher_forcing(self, memory, valid, leaf, src_ext, target, n_oov):
        b, t = target.shape
        table = self.encoder.embed.token.weight                           # tied output embedding
        bos = torch.full((b, 1), BOS, dtype=target.dtype)
        emb = self.embed_target(torch.cat([bos, target[:, :-1]], dim=1), 0)
        states, _ = self.run_decoder(emb, memory, valid)
        coverage = memory.new_zeros(b, memory.size(1))
        probs, attns, coverages = [], [], []
        for i in range(t):
            p, attn = self.head(states[:, i], emb[:, i], memory, leaf, coverage, src_ext, n_oov, table)
            probs, attns, coverages = probs + [p], attns + [attn], coverages + [coverage]
            coverage = coverage + attn
        return torch.stack(probs, 1), torch.stack(attns, 1), torch.stack(coverages, 1)

    def greedy(self, memory, valid, leaf, src_ext, n_oov):
        b, table = memory.size(0), self.encoder.embed.token.weight
        token = torch.full((b, 1), BOS, dtype=torch.long)
        alive = torch.ones(b, dtype=torch.bool)
        score, length = memory.new_zeros(b), memory.new_zeros(b)
        coverage = memory.new_zeros(b, memory.size(1))
        caches, output = None, []
        for step in range(self.cfg["steps"]):
            emb = self.embed_target(token, step)
            states, caches = self.run_decoder(emb, memory, valid, caches)
            p, attn = self.head(states[:, -1], emb[:, -1], memory, leaf, coverage, src_ext, n_oov, table)
            best, chosen = p.max(dim=-1)
            score = score + torch.log(best.clamp(min=1e-8)) * alive.float()
            length = length + alive.float()
            coverage = coverage + attn * alive.float().unsqueeze(1)
            chosen = torch.where(alive, chosen, torch.full_like(chosen, PAD))
            output.append(chosen)
            alive = alive & chosen.ne(EOS)
            token = chosen.unsqueeze(1)
        norm = ((5.0 + length) / 6.0) ** self.cfg["alpha"]
        return torch.stack(output, dim=1), score / norm, coverage

    def forward(self, tokens, subs, parent, src_ext, target, n_oov):
        memory, valid, leaf, anc = self.encoder(tokens, subs, parent)
        fault = self.locator(memory, anc, parent, valid)
        probs, attns, coverages = self.teacher_forcing(memory, valid, leaf, src_ext, target, n_oov)
        loss, token_loss, cov_loss = self.loss(probs, attns, coverages, target)
        ids, score, coverage = self.greedy(memory, valid, leaf, src_ext, n_oov)
        return loss, token_loss, cov_loss, probs, fault, ids, score, coverage


CFG = dict(vocab=53, sub_vocab=31, dim=24, heads=3, hidden=40, att=18, enc_layers=2, dec_layers=2, buckets=12,
           max_distance=9, max_depth=5, max_rank=4, max_target=16, window=4, smooth=0.1, cov_weight=0.7,
           steps=5, alpha=0.8)


def make_inputs(seed=11):
    rng = np.random.RandomState(seed)
    b, n, s, t, n_oov, vocab = 3, 13, 6, 9, 4, CFG["vocab"]
    tokens, parent, src_ext = (np.zeros((b, n), np.int64) for _ in range(3))
    subs, target = np.zeros((b, n, s), np.int64), np.zeros((b, t), np.int64)
    for i, (size, out) in enumerate(zip((13, 10, 11), (9, 6, 7))):
        tokens[i, :size] = rng.randint(4, vocab, size)
        for j in range(1, size):
            parent[i, j] = rng.randint(max(0, j - 4), j)
        for j in range(size):
            k = rng.randint(1, s + 1)
            subs[i, j, :k] = rng.randint(1, CFG["sub_vocab"], k)
        src_ext[i] = tokens[i]
        leaves = [j for j in range(1, size) if j not in parent[i, 1:size]]
        oov = rng.choice(n_oov, 2, replace=False)
        for j, o in zip(leaves, (oov[0], oov[1], oov[0])):                # one unknown name occurs twice
            tokens[i, j], src_ext[i, j] = UNK, vocab + o
        pool = np.concatenate([src_ext[i, leaves], rng.randint(4, vocab, 4)])
        target[i, :out - 1] = rng.choice(pool, out - 1)
        target[i, out - 1] = EOS
    return tokens, subs, parent, src_ext, target, n_oov


def build():
    torch.manual_seed(157)
    net = CodeEdit(CFG)
    with torch.no_grad():
        for name, p in net.named_parameters():
            if p.dim() == 1 and "norm" in name or ".bn." in name:
                p.copy_(torch.randn_like(p) * 0.25 + (1.0 if name.endswith("weight") else 0.0))
            elif p.dim() >= 2 and isinstance(net.get_submodule(name.rpartition(".")[0]), (nn.Linear, nn.Conv2d)):
                p.copy_(torch.randn_like(p) * 1.1 / math.sqrt(p[0].numel()))
            else:
                p.copy_(torch.randn_like(p) * 0.4)
        bn = net.encoder.embed.subtokens.bn
        bn.running_mean.copy_(torch.randn_like(bn.running_mean) * 0.2)
        bn.running_var.copy_(torch.rand_like(bn.running_var) ** 2 * 0.3 + 0.008)
    inputs = tuple(torch.from_numpy(a) if isinstance(a, np.ndarray) else a for a in make_inputs())
    return net.eval(), inputs
