"""A second-order graph-based dependency parser (biaffine arcs, trilinear siblings, mean-field inference), in PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

PAD, UNK, ROOT = 0, 1, 2

# A distance belongs to the bucket whose lower bound it has reached; zero is a bucket of its own.
DISTANCE_BOUNDS = (1, 2, 3, 5, 7, 10)


class Config:
    """What the ini file of the small model says."""

    n_words = 31
    n_pretrained = 53
    n_tags = 17
    n_chars = 29
    n_rels = 6
    # embeddings
    n_embed = 20
    n_tag_embed = 13
    n_char_embed = 9
    n_char_hidden = 7
    n_char_out = 12
    embed_dropout = 0.33
    # encoder
    n_lstm_hidden = 18
    n_lstm_layers = 2
    lstm_dropout = 0.33
    # scorers
    n_mlp_arc = 22
    n_mlp_sib = 15
    n_mlp_rel = 16
    n_sib_rank = 19
    sib_clip = 2.5
    mlp_dropout = 0.33
    negative_slope = 0.1
    # inference
    n_mfvi_rounds = 4


def masked_score(scores, mask):
    """Scores that no softmax or argmax will choose where the mask is false."""
    return scores.masked_fill(~mask, torch.finfo(scores.dtype).min)


def dependency_masks(mask):
    """From the mask of tokens (the root among them): who may depend, which arcs and which sibling triples may be.

    Returns (batch, dep), (batch, dep, head) and (batch, dep, head, sib).
    """
    length = mask.shape[1]
    dep_mask = mask.clone()
    dep_mask[:, 0] = False  # the root depends on nobody
    differs = ~torch.eye(length, dtype=torch.bool, device=mask.device)
    arc_mask = dep_mask.unsqueeze(2) & mask.unsqueeze(1) & differs
    # both dependents may have that head, and they are not the same token
    sib_mask = arc_mask.unsqueeze(3) & arc_mask.transpose(1, 2).unsqueeze(1)
    sib_mask = sib_mask & differs[None, :, None, :]
    return dep_mask, arc_mask, sib_mask


def find_cycle(heads):
    """The tokens of the first cycle, in the order of a walk from dependents to heads; an empty list if none."""
    done = {0}
    for start in range(1, len(heads)):
        path, node = [], start
        while node not in done and node not in path:
            path.append(node)
            node = heads[node]
        if node in path:
            return path[path.index(node):]
        done.update(path)
    return []


def descendants(heads, roots):
    """The tokens from which a walk along the heads meets one of the roots, the roots among them."""
    found = set(roots)
    for _ in range(len(heads)):
        size = len(found)
        found.update(node for node in range(1, len(heads)) if heads[node] in found)
        if len(found) == size:
            break
    return sorted(found)


def contract_cycle(scores, heads, cycle):
    """Treat the cycle as one token, and enter it by the arc that loses least against the arc it replaces."""
    length = scores.shape[0]
    members = torch.tensor(cycle)
    own = scores[members, torch.tensor([heads[node] for node in cycle])]
    gain = scores[members] - own.unsqueeze(1)
    outside = torch.ones(length, dtype=torch.bool)
    outside[descendants(heads, cycle)] = False
    gain = gain.masked_fill(~outside, float("-inf"))
    best = gain.argmax().item()
    heads = list(heads)
    heads[cycle[best // length]] = best % length
    return heads


class SharedDropout(nn.Module):
    """Dropout whose mask is the same for all tokens of a sentence."""

    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, x):
        if not self.training:
            return x
        mask = x.new_empty(x[:, 0].shape).bernoulli_(1 - self.p) / (1 - self.p)
        return x * mask.unsqueeze(1)


class CharBiLSTM(nn.Module):
    """A vector for each word from its characters, which are padded behind."""

    def __init__(self, n_chars, n_embed, n_hidden, n_out):
        super().__init__()
        self.n_hidden = n_hidden
        self.n_out = n_out
        self.embed = nn.Embedding(n_chars, n_embed, padding_idx=PAD)
        # characters two apart: vowels around a consonant
        self.conv = nn.Conv1d(n_embed, n_embed, kernel_size=3, padding=2, dilation=2)
        self.fw = nn.LSTMCell(n_embed, n_hidden)
        self.bw = nn.LSTMCell(n_embed, n_hidden)
        self.proj = nn.Linear(2 * n_hidden, n_out)

    def run(self, cell, x, keep, steps):
        h = x.new_zeros(x.shape[0], self.n_hidden)
        c = x.new_zeros(x.shape[0], self.n_hidden)
        for t in steps:
            h_new, c_new = cell(x[:, t], (h, c))
            alive = keep[:, t].unsqueeze(-1)
            h = torch.where(alive, h_new, h)
            c = torch.where(alive, c_new, c)
        return h

    def forward(self, chars):
        batch, length, width = chars.shape
        flat = chars.reshape(batch * length, width)
        keep = flat.ne(PAD)
        present = keep.any(dim=-1)
        flat, keep = flat[present], keep[present]

        x = self.embed(flat) * keep.unsqueeze(-1).to(self.embed.weight.dtype)
        x = x + torch.tanh(self.conv(x.transpose(1, 2)).transpose(1, 2))
        last_fw = self.run(self.fw, x, keep, range(width))
        last_bw = self.run(self.bw, x, keep, range(width - 1, -1, -1))
        hidden = self.proj(torch.cat((last_fw, last_bw), dim=-1))

        out = hidden.new_zeros(batch * length, self.n_out)
        out[present] = hidden
        return out.view(batch, length, self.n_out)


class HighwayLSTMCell(nn.Module):
    """LSTM with a gate that lets a projection of the input past the cell."""

    def __init__(self, n_in, n_hidden):
        super().__init__()
        self.n_hidden = n_hidden
        self.input_linearity = nn.Linear(n_in, 6 * n_hidden, bias=False)
        self.state_linearity = nn.Linear(n_hidden, 5 * n_hidden)

    def forward(self, x, state):
        h, c = state
        n = self.n_hidden
        projected_input = self.input_linearity(x)
        projected_state = self.state_linearity(h)
        gates = projected_input[:, : 5 * n] + projected_state
        input_gate = torch.sigmoid(gates[:, 0 * n:1 * n])
        forget_gate = torch.sigmoid(gates[:, 1 * n:2 * n])
        memory_init = torch.tanh(gates[:, 2 * n:3 * n])
        output_gate = torch.sigmoid(gates[:, 3 * n:4 * n])
        memory = input_gate * memory_init + forget_gate * c
        output = output_gate * torch.tanh(memory)
        highway_gate = torch.sigmoid(gates[:, 4 * n:5 * n])
        output = highway_gate * output + (1 - highway_gate) * projected_input[:, 5 * n:]
        return output, memory


class HighwayBiLSTM(nn.Module):
    """Layers of two directions each; a padded step leaves the state as it was and puts out zeros."""

    def __init__(self, n_in, n_hidden, n_layers):
        super().__init__()
        self.n_hidden = n_hidden
        self.fw, self.bw = nn.ModuleList(), nn.ModuleList()
        for _ in range(n_layers):
            self.fw.append(HighwayLSTMCell(n_in, n_hidden))
            self.bw.append(HighwayLSTMCell(n_in, n_hidden))
            n_in = 2 * n_hidden

    def one_direction(self, cell, x, mask, reverse):
        batch, length, _ = x.shape
        h = x.new_zeros(batch, self.n_hidden)
        c = x.new_zeros(batch, self.n_hidden)
        outputs = []
        for t in reversed(range(length)) if reverse else range(length):
            step = mask[:, t].unsqueeze(-1).to(x.dtype)
            h_new, c_new = cell(x[:, t], (h, c))
            outputs.append(h_new * step)
            h = h_new * step + h * (1 - step)
            c = c_new * step + c * (1 - step)
        if reverse:
            outputs.reverse()
        return torch.stack(outputs, dim=1)

    def forward(self, x, mask):
        for fw, bw in zip(self.fw, self.bw):
            x = torch.cat(
                (self.one_direction(fw, x, mask, False), self.one_direction(bw, x, mask, True)), dim=-1
            )
        return x


class MLP(nn.Module):
    """One layer for one role of a token."""

    def __init__(self, n_in, n_out, dropout, negative_slope):
        super().__init__()
        self.linear = nn.Linear(n_in, n_out)
        self.act = nn.LeakyReLU(negative_slope)
        self.dropout = SharedDropout(dropout)

    def forward(self, x):
        return self.dropout(self.act(self.linear(x)))


class Biaffine(nn.Module):
    """x W y for all pairs, with a column of ones where there is a bias: (batch, out, x, y), or (batch, x, y)."""

    def __init__(self, n_in, n_out=1, bias_x=True, bias_y=True, scale=0.0):
        super().__init__()
        self.n_in = n_in
        self.bias_x, self.bias_y = bias_x, bias_y
        self.scale = scale
        self.weight = nn.Parameter(torch.zeros(n_out, n_in + bias_x, n_in + bias_y))

    def forward(self, x, y):
        if self.bias_x:
            x = torch.cat((x, torch.ones_like(x[..., :1])), -1)
        if self.bias_y:
            y = torch.cat((y, torch.ones_like(y[..., :1])), -1)
        s = torch.einsum("bxi,oij,byj->boxy", x, self.weight, y)
        return s.squeeze(1) / self.n_in**self.scale


class Trilinear(nn.Module):
    """Scores of a dependent, a head and a sibling, of low rank and symmetric in the two dependents."""

    def __init__(self, n_in, rank, clip):
        super().__init__()
        self.w_dep = nn.Parameter(torch.zeros(n_in + 1, rank))
        self.w_head = nn.Parameter(torch.zeros(n_in, rank))
        self.w_sib = nn.Parameter(torch.zeros(n_in + 1, rank))
        self.clip = nn.Hardtanh(-clip, clip)

    def forward(self, dep, head, sib):
        dep = F.pad(dep, (0, 1), value=1.0) @ self.w_dep
        head = head @ self.w_head
        sib = F.pad(sib, (0, 1), value=1.0) @ self.w_sib
        s = torch.einsum("bdr,bhr,bsr->bdhs", dep, head, sib)
        s = (s + s.permute(0, 3, 2, 1)) / 2
        return self.clip(s)


class DistanceBias(nn.Module):
    """A learnt score for how far a head is from its dependent, and on which side."""

    def __init__(self, bounds):
        super().__init__()
        self.n_buckets = len(bounds) + 1
        self.register_buffer("bounds", torch.tensor(bounds), persistent=False)
        self.table = nn.Embedding(2 * self.n_buckets, 1)

    def forward(self, length):
        position = torch.arange(length, device=self.bounds.device)
        offset = position[None, :] - position[:, None]  # head minus dependent
        bucket = torch.bucketize(offset.abs(), self.bounds, right=True)
        bucket = bucket + self.n_buckets * (offset > 0).long()
        return self.table(bucket).squeeze(-1)


class MeanField(nn.Module):
    """Rounds of mean-field inference for the arcs, which hear from the arcs of their siblings."""

    def __init__(self, n_rounds):
        super().__init__()
        self.n_rounds = n_rounds

    def forward(self, s_arc, s_sib, arc_mask, sib_mask):
        s_sib = s_sib * sib_mask.to(s_sib.dtype)
        q = s_arc
        for _ in range(self.n_rounds):
            p = masked_score(q, arc_mask).softmax(dim=-1) * arc_mask.to(q.dtype)
            q = s_arc + torch.einsum("bsh,bdhs->bdh", p, s_sib)
        q = masked_score(q, arc_mask)
        return q, q.softmax(dim=-1) * arc_mask.to(q.dtype)


class SecondOrderParser(nn.Module):
    """Words, tags and characters of padded sentences to heads and the scores of their labels."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.word_embed = nn.Embedding(cfg.n_words, cfg.n_embed, padding_idx=PAD)
        self.pretrained = nn.Embedding(cfg.n_pretrained, cfg.n_embed, padding_idx=PAD)
        self.tag_embed = nn.Embedding(cfg.n_tags, cfg.n_tag_embed, padding_idx=PAD)
        self.char_embed = CharBiLSTM(cfg.n_chars, cfg.n_char_embed, cfg.n_char_hidden, cfg.n_char_out)
        n_input = cfg.n_embed + cfg.n_char_out + cfg.n_tag_embed
        self.embed_norm = nn.LayerNorm(n_input)
        self.embed_dropout = SharedDropout(cfg.embed_dropout)

        self.encoder = HighwayBiLSTM(n_input, cfg.n_lstm_hidden, cfg.n_lstm_layers)
        self.encoder_dropout = SharedDropout(cfg.lstm_dropout)
        n_encoded = 2 * cfg.n_lstm_hidden

        def mlp(n_out):
            return MLP(n_encoded, n_out, cfg.mlp_dropout, cfg.negative_slope)

        self.mlp_arc_d, self.mlp_arc_h = mlp(cfg.n_mlp_arc), mlp(cfg.n_mlp_arc)
        self.mlp_sib_d, self.mlp_sib_h, self.mlp_sib_s = (mlp(cfg.n_mlp_sib) for _ in range(3))
        self.mlp_rel_d, self.mlp_rel_h = mlp(cfg.n_mlp_rel), mlp(cfg.n_mlp_rel)
        self.arc_attn = Biaffine(cfg.n_mlp_arc, bias_x=True, bias_y=False)
        self.dist_bias = DistanceBias(DISTANCE_BOUNDS)
        self.sib_attn = Trilinear(cfg.n_mlp_sib, cfg.n_sib_rank, cfg.sib_clip)
        self.rel_attn = Biaffine(cfg.n_mlp_rel, cfg.n_rels, bias_x=True, bias_y=True, scale=0.5)
        self.mfvi = MeanField(cfg.n_mfvi_rounds)

    def embed(self, words, tags, chars):
        """The trained and the pretrained vector of a word are added; only the pretrained table knows rare words."""
        rare = words.ge(self.word_embed.num_embeddings)
        word = self.word_embed(words.masked_fill(rare, UNK)) + self.pretrained(words)
        x = torch.cat((word, self.char_embed(chars), self.tag_embed(tags)), dim=-1)
        return self.embed_dropout(self.embed_norm(x))

    @torch.no_grad()
    def decode(self, scores, mask, dep_mask):
        """The best head of every token; if they make a cycle, the first one is contracted, and that is all."""
        preds = scores.argmax(dim=-1).masked_fill(~dep_mask, 0)
        lengths = mask.sum(dim=1).tolist()
        for index, length in enumerate(lengths):
            heads = preds[index, :length].tolist()
            cycle = find_cycle(heads)
            if cycle:
                heads = contract_cycle(scores[index, :length, :length], heads, cycle)
                preds[index, :length] = torch.tensor(heads)
        return preds

    def forward(self, words, tags, chars):
        """words and tags are (batch, length), the root first; chars is (batch, length, characters)."""
        mask = words.ne(PAD)
        dep_mask, arc_mask, sib_mask = dependency_masks(mask)
        x = self.embed(words, tags, chars)
        x = self.encoder_dropout(self.encoder(x, mask))

        s_arc = self.arc_attn(self.mlp_arc_d(x), self.mlp_arc_h(x))
        s_arc = s_arc + self.dist_bias(x.shape[1])
        s_sib = self.sib_attn(self.mlp_sib_d(x), self.mlp_sib_h(x), self.mlp_sib_s(x))
        s_rel = self.rel_attn(self.mlp_rel_d(x), self.mlp_rel_h(x))

        logits, marginals = self.mfvi(s_arc, s_sib, arc_mask, sib_mask)
        heads = self.decode(logits, mask, dep_mask)

        index = heads[:, None, :, None].expand(-1, s_rel.shape[1], -1, -1)
        s_rel = s_rel.gather(-1, index).squeeze(-1).transpose(1, 2)
        s_rel = s_rel.masked_fill(~dep_mask.unsqueeze(-1), 0.0)
        return s_arc.masked_fill(~arc_mask, 0.0), marginals, heads, s_rel


def trained_like(net):
    """Values as after training, not as after the initialisation."""
    for module in net.modules():
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
            if module.padding_idx is not None:
                module.weight.data[module.padding_idx] = 0.0
        elif isinstance(module, nn.LayerNorm):
            nn.init.uniform_(module.weight, 0.7, 1.3)
            nn.init.normal_(module.bias, std=0.2)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=1.2 * module.in_features**-0.5)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.2)
        elif isinstance(module, nn.Conv1d):
            nn.init.normal_(module.weight, std=module.weight[0].numel() ** -0.5)
            nn.init.normal_(module.bias, std=0.1)
        elif isinstance(module, nn.LSTMCell):
            for parameter in module.parameters():
                nn.init.normal_(parameter, std=0.6 * module.hidden_size**-0.5 if parameter.ndim == 2 else 0.2)
        elif isinstance(module, Biaffine):
            nn.init.normal_(module.weight, std=1.6 / module.n_in ** (1 - 0.6 * module.scale))
        elif isinstance(module, Trilinear):
            for parameter in (module.w_dep, module.w_head, module.w_sib):
                nn.init.normal_(parameter, std=1.3 * parameter.shape[0] ** -0.5)
    # characters have larger vectors than words, their summary a smaller one
    nn.init.normal_(net.char_embed.embed.weight, std=0.5)
    net.char_embed.proj.weight.data *= 0.05
    net.char_embed.proj.bias.data *= 0.1
    # near heads are likelier
    near = -0.25 * torch.arange(net.dist_bias.n_buckets).float()
    net.dist_bias.table.weight.data += 0.4 * torch.randn(2 * net.dist_bias.n_buckets, 1) + near.repeat(2)[:, None]
    return net


def build(seed=24):
    """The net with the same weights on every run, and three sentences of which two are padded."""
    torch.manual_seed(seed)
    cfg = Config()
    net = trained_like(SecondOrderParser(cfg))
    lengths = torch.tensor([11, 8, 10])
    mask = torch.arange(11)[None, :] < lengths[:, None]
    words = torch.randint(ROOT + 1, cfg.n_pretrained, (3, 11))
    tags = torch.randint(ROOT + 1, cfg.n_tags, (3, 11))
    chars = torch.randint(ROOT + 1, cfg.n_chars, (3, 11, 8))
    spelt = torch.randint(1, 9, (3, 11))
    words[:, 0], tags[:, 0], chars[:, 0], spelt[:, 0] = ROOT, ROOT, ROOT, 1
    spelt = spelt * mask
    chars = chars.masked_fill(torch.arange(8) >= spelt.unsqueeze(-1), PAD)
    return net.eval(), (words * mask, tags * mask, chars)
