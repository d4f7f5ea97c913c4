"""A code generator that fills the middle and writes only what its grammar allows, in PyTorch."""

from functools import partial
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

PAD, BOS, EOS, FIM_PREFIX, FIM_SUFFIX, FIM_MIDDLE = range(6)
NAMES = tuple(f"v{i}" for i in range(12))
NUMBERS = ("0", "1", "2", "8", "10", "64")
OPERATORS = ("+", "-", "*", "<", "==")
VOCAB = ("<pad>", "<bos>", "<eos>", "<fim_prefix>", "<fim_suffix>", "<fim_middle>", "if", "while", "return")
VOCAB += ("(", ")", "[", "]", "{", "}", ",", ";", "=", ".") + OPERATORS + NAMES + NUMBERS
TOKEN_ID = {token: index for index, token in enumerate(VOCAB)}

# What the automaton waits for, and what lies on its stack.
STATEMENT, TARGET, OPERAND, OPERATOR, MEMBER, HEAD, BODY, DONE = range(8)
POP, BOTTOM, BLOCK, PAREN, INDEX, COND = range(-1, 5)
OUTSIDE, EVERYWHERE = (BOTTOM, BLOCK), (BOTTOM, BLOCK, PAREN, INDEX, COND)

# state, tops of the stack, tokens, action (0 none, POP, or the symbol to push), next state
RULES = (
    (STATEMENT, OUTSIDE, NAMES, 0, TARGET),
    (STATEMENT, OUTSIDE, ("if", "while"), 0, HEAD),
    (STATEMENT, OUTSIDE, ("return",), 0, OPERAND),
    (STATEMENT, (BLOCK,), ("}",), POP, STATEMENT),
    (STATEMENT, (BOTTOM,), ("<eos>",), 0, DONE),
    (TARGET, OUTSIDE, ("=",), 0, OPERAND),
    (TARGET, OUTSIDE, ("(",), PAREN, OPERAND),
    (TARGET, OUTSIDE, ("[",), INDEX, OPERAND),
    (HEAD, OUTSIDE, ("(",), COND, OPERAND),
    (BODY, OUTSIDE, ("{",), BLOCK, STATEMENT),
    (OPERAND, EVERYWHERE, NAMES + NUMBERS, 0, OPERATOR),
    (OPERAND, EVERYWHERE, ("-",), 0, OPERAND),
    (OPERAND, EVERYWHERE, ("(",), PAREN, OPERAND),
    (OPERATOR, EVERYWHERE, OPERATORS, 0, OPERAND),
    (OPERATOR, EVERYWHERE, (".",), 0, MEMBER),
    (OPERATOR, EVERYWHERE, ("(",), PAREN, OPERAND),
    (OPERATOR, EVERYWHERE, ("[",), INDEX, OPERAND),
    (OPERATOR, OUTSIDE, ("=",), 0, OPERAND),
    (OPERATOR, OUTSIDE, (";",), 0, STATEMENT),
    (OPERATOR, (PAREN,), (",",), 0, OPERAND),
    (OPERATOR, (PAREN,), (")",), POP, OPERATOR),
    (OPERATOR, (INDEX,), ("]",), POP, OPERATOR),
    (OPERATOR, (COND,), (")",), POP, BODY),
    (MEMBER, EVERYWHERE, NAMES, 0, OPERATOR),
)

SMALL = SimpleNamespace(
    dim=48, heads=6, kv_heads=2, head_dim=12, rotary_dim=8, rope_base=5000.0, hidden=80, conv_kernel=4,
    windows=(9, None, 9), max_prompt=30, max_new=10, max_depth=4, candidates=3, penalty=1.3, penalty_cap=3,
    length_alpha=0.6, unfinished_cost=1.5, rank_weight=0.5, label_smoothing=0.1, z_weight=0.01,
)


class Automaton(nn.Module):
    """The tables: next state (-1 where a token is not allowed) and action, by state, top of the stack and token."""

    def __init__(self):
        super().__init__()
        next_state, action = torch.full((8, 5, len(VOCAB)), -1), torch.zeros(8, 5, len(VOCAB), dtype=torch.long)
        for state, tops, tokens, act, after in RULES:
            for top in tops:
                columns = [TOKEN_ID[token] for token in tokens]
                next_state[state, top, columns] = after
                action[state, top, columns] = act
        self.register_buffer("next_state", next_state, persistent=False)
        self.register_buffer("action", action, persistent=False)

    @staticmethod
    def top(stack, depth):
        top = stack.gather(1, (depth - 1).clamp(min=0)[:, None]).squeeze(1)
        return torch.where(depth > 0, top, torch.full_like(top, BOTTOM))


class Pushdown(Automaton):
    """Reads one token; a token that the grammar has no rule for changes nothing."""

    def forward(self, config, token, active):
        state, stack, depth = config
        top = self.top(stack, depth)
        after, act = self.next_state[state, top, token], self.action[state, top, token]
        active = active & (after >= 0)
        push = active & (act > 0) & (depth < stack.shape[1])
        written = stack.scatter(1, depth.clamp(max=stack.shape[1] - 1)[:, None], act[:, None])
        stack = torch.where(push[:, None], written, stack)
        return torch.where(active, after, state), stack, depth + push.long() - (active & (act == POP)).long()


class GrammarMask(Automaton):
    """Which tokens may come next."""

    def forward(self, config, remaining, resume, target_depth):
        """resume is the first token of the suffix, target_depth the number of brackets that the suffix closes."""
        state, stack, depth = config
        top = self.top(stack, depth)
        legal, act = self.next_state[state, top] >= 0, self.action[state, top]
        fits = legal.gather(1, resume[:, None]).squeeze(1)
        # what opens must be closed again in the tokens that remain, and what the suffix closes is not ours to close
        surplus = depth - target_depth
        room = (depth < stack.shape[1]) & (2 * (surplus + 1) < remaining)
        legal = legal & ~((act > 0) & ~room[:, None])
        legal = legal & ~((act == POP) & (surplus <= 0)[:, None])
        legal[:, EOS] = fits & (surplus == 0)
        legal[:, EOS] |= ~legal.any(dim=1)
        return legal


class FimPacker(nn.Module):
    """Cuts the hole out of each document and lays the rest out as a prompt, padded on the left."""

    def __init__(self, max_prompt):
        super().__init__()
        self.max_prompt = max_prompt

    def forward(self, tokens, length, hole, spm):
        rows = []
        for row, n, (start, end), suffix_first in zip(*(x.tolist() for x in (tokens, length, hole, spm))):
            prefix, suffix = row[:start], row[end:n]
            budget = self.max_prompt - 4
            suffix = suffix[: max(budget // 3, budget - len(prefix))]
            prefix = prefix[max(len(prefix) - (budget - len(suffix)), 0) :]
            if suffix_first:
                rows.append([BOS, FIM_PREFIX, FIM_SUFFIX, *suffix, FIM_MIDDLE, *prefix])
            else:
                rows.append([BOS, FIM_PREFIX, *prefix, FIM_SUFFIX, *suffix, FIM_MIDDLE])
        width = max(len(row) for row in rows)
        ids = torch.tensor([[PAD] * (width - len(row)) + row for row in rows])
        return ids, ids != PAD


class Rotary(nn.Module):
    """Cosines and sines of the positions (batch, tokens)."""

    def __init__(self, dim, base):
        super().__init__()
        self.register_buffer("inv_freq", base ** -(torch.arange(0, dim, 2).float() / dim), persistent=False)

    def forward(self, positions):
        angle = positions[..., None].float() * self.inv_freq
        angle = torch.cat((angle, angle), dim=-1)
        return angle.cos()[:, None], angle.sin()[:, None]


def apply_rotary(x, cos, sin):
    """Turns the first channels of each head, the others have no position."""
    x, rest = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    first, second = x.chunk(2, dim=-1)
    return torch.cat((x * cos + torch.cat((-second, first), dim=-1) * sin, rest), dim=-1)


class ShortConv(nn.Module):
    """A causal depthwise convolution over the last few tokens; its state is what it saw last."""

    def __init__(self, dim, kernel):
        super().__init__()
        self.kernel = kernel
        self.conv = nn.Conv1d(dim, dim, kernel, padding=kernel - 1, groups=dim)

    def forward(self, x, valid, state):
        x = (x * valid[..., None].to(x.dtype)).transpose(1, 2)
        if state is None:
            y = self.conv(x)[..., : x.shape[-1]]
            window = F.pad(x, (self.kernel - 1, 0))
        else:
            window = torch.cat((state, x), dim=-1)
            y = (window * self.conv.weight[:, 0]).sum(dim=-1, keepdim=True) + self.conv.bias[:, None]
        return F.silu(y).transpose(1, 2), window[..., 1 - self.kernel :]


class GroupedAttention(nn.Module):
    """Several heads of queries share one head of keys and values."""

    def __init__(self, dim, heads, kv_heads, head_dim):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.q_proj = nn.Linear(dim, heads * head_dim)
        self.k_proj = nn.Linear(dim, kv_heads * head_dim)
        self.v_proj = nn.Linear(dim, kv_heads * head_dim)
        self.q_norm = nn.RMSNorm(head_dim, eps=1e-5)
        self.k_norm = nn.RMSNorm(head_dim, eps=1e-5)
        self.o_proj = nn.Linear(heads * head_dim, dim)

    def forward(self, x, rope, mask, cache):
        b, t, _ = x.shape
        q = self.q_norm(self.q_proj(x).view(b, t, self.heads, self.head_dim)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(b, t, self.kv_heads, self.head_dim)).transpose(1, 2)
        v = self.v_proj(x).view(b, t, self.kv_heads, self.head_dim).transpose(1, 2)
        q, k = apply_rotary(q, *rope), apply_rotary(k, *rope)
        if cache is not None:
            k, v = (torch.cat(pair, dim=2) for pair in zip(cache, (k, v)))
        q = q.reshape(b, self.kv_heads, self.heads // self.kv_heads, t, self.head_dim)
        scores = torch.einsum("bkgtd,bksd->bkgts", q, k) * self.head_dim**-0.5
        scores = scores.masked_fill(~mask[:, None, None], torch.finfo(scores.dtype).min)
        out = torch.einsum("bkgts,bksd->bkgtd", scores.softmax(dim=-1), v)
        out = out.reshape(b, self.heads, t, self.head_dim).transpose(1, 2).reshape(b, t, -1)
        return self.o_proj(out), (k, v)


class SwiGLU(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.gate_up = nn.Linear(dim, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, dim)

    def forward(self, x):
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class Block(nn.Module):
    def __init__(self, cfg, window):
        super().__init__()
        self.window = window
        self.norm0 = nn.RMSNorm(cfg.dim, eps=1e-5)
        self.mixer = ShortConv(cfg.dim, cfg.conv_kernel)
        self.norm1 = nn.RMSNorm(cfg.dim, eps=1e-5)
        self.attn = GroupedAttention(cfg.dim, cfg.heads, cfg.kv_heads, cfg.head_dim)
        self.norm2 = nn.RMSNorm(cfg.dim, eps=1e-5)
        self.mlp = SwiGLU(cfg.dim, cfg.hidden)

    def forward(self, x, rope, valid, cache):
        new, total = x.shape[1], valid.shape[1]
        q_index, k_index = torch.arange(total - new, total)[:, None], torch.arange(total)[None, :]
        mask = k_index <= q_index
        if self.window is not None:
            mask = mask & (k_index > q_index - self.window)
        mask = mask[None] & valid[:, None]
        kv, state = cache
        mixed, state = self.mixer(self.norm0(x), valid[:, -new:], state)
        x = x + mixed
        attended, kv = self.attn(self.norm1(x), rope, mask, kv)
        x = x + attended
        return x + self.mlp(self.norm2(x)), (kv, state)


class Decoder(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.embed = nn.Embedding(len(VOCAB), cfg.dim)
        self.embed_norm = nn.LayerNorm(cfg.dim, eps=1e-3)
        self.rotary = Rotary(cfg.rotary_dim, cfg.rope_base)
        self.blocks = nn.ModuleList(Block(cfg, window) for window in cfg.windows)
        self.norm = nn.LayerNorm(cfg.dim)

    def forward(self, ids, valid, caches):
        """ids are the new tokens, valid tells of all tokens, the cached ones as well."""
        positions = (valid.long().cumsum(dim=1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        x, rope = self.embed_norm(self.embed(ids)), self.rotary(positions)
        kept = []
        for block, cache in zip(self.blocks, caches):
            x, cache = block(x, rope, valid, cache)
            kept.append(cache)
        return self.norm(x), kept


class RepetitionPenalty(nn.Module):
    """Names and numbers become less likely with each time that they were seen; the rest of the syntax is free."""

    def __init__(self, penalty, cap):
        super().__init__()
        self.penalty, self.cap = penalty, cap
        self.register_buffer("applies", torch.tensor([t in NAMES + NUMBERS for t in VOCAB]), persistent=False)

    def forward(self, logits, counts):
        times = (counts * self.applies).clamp(max=self.cap)
        factor = self.penalty ** times.to(logits.dtype)
        return torch.where(logits > 0, logits / factor, logits * factor)


class Ranker(nn.Module):
    """How good a candidate looks, from the mean of its hidden states."""

    def __init__(self, dim):
        super().__init__()
        self.fc1 = nn.Linear(dim, 32)
        self.bn = nn.BatchNorm1d(32)
        self.act = nn.LeakyReLU(0.01)
        self.fc2 = nn.Linear(32, 1)

    def forward(self, pooled):
        return self.fc2(self.act(self.bn(self.fc1(pooled)))).squeeze(-1)


class CodeGenerator(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.fim = FimPacker(cfg.max_prompt)
        self.pushdown, self.grammar = Pushdown(), GrammarMask()
        self.decoder = Decoder(cfg)
        self.lm_head = nn.Linear(cfg.dim, len(VOCAB))
        self.penalty = RepetitionPenalty(cfg.penalty, cfg.penalty_cap)
        self.ranker = Ranker(cfg.dim)
        delta = torch.tensor([(token in "([{") - (token in ")]}") for token in VOCAB])
        self.register_buffer("bracket_delta", delta, persistent=False)

    def prompt_loss(self, logits, ids, valid):
        """Smoothed cross entropy and z-loss of the prompt's own tokens, per document; sentinels are no targets."""
        logits, target = logits[:, :-1], ids[:, 1:]
        loss = F.cross_entropy(logits.mT, target, reduction="none", label_smoothing=self.cfg.label_smoothing)
        loss = loss + self.cfg.z_weight * logits.logsumexp(dim=-1).square()
        weight = (valid[:, :-1] & valid[:, 1:] & (target > FIM_MIDDLE)).to(loss.dtype)
        return (loss * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1.0)

    def read_context(self, tokens, length, hole):
        """The automaton after the prefix, the first token of the suffix, and the brackets which the suffix closes."""
        batch, width = tokens.shape
        config = (tokens.new_zeros(batch), tokens.new_zeros(batch, self.cfg.max_depth), tokens.new_zeros(batch))
        for index in range(int(hole[:, 0].max())):
            config = self.pushdown(config, tokens[:, index], index < hole[:, 0])
        after = tokens.gather(1, hole[:, 1:].clamp(max=width - 1)).squeeze(1)
        resume = torch.where(hole[:, 1] < length, after, torch.full_like(after, EOS))
        place = torch.arange(width)[None, :]
        in_suffix = (place >= hole[:, 1:]) & (place < length[:, None])
        target_depth = (-(self.bracket_delta[tokens] * in_suffix).sum(dim=1)).clamp(min=0)
        return config, resume, target_depth

    def forward(self, tokens, length, hole, spm):
        """tokens (batch, width) padded on the right, hole (batch, 2) its start and end, spm: suffix first."""
        cfg, batch, k = self.cfg, tokens.shape[0], self.cfg.candidates
        lowest = torch.finfo(torch.float32).min
        ids, valid = self.fim(tokens, length, hole, spm)
        config, resume, target_depth = self.read_context(tokens, length, hole)
        hidden, caches = self.decoder(ids, valid, [(None, None)] * len(cfg.windows))
        logits = self.lm_head(hidden)
        loss = self.prompt_loss(logits, ids, valid)
        first_hidden, first_logits = hidden[:, -1], logits[:, -1]
        # the candidates differ in their first token, after that each is greedy
        counts = torch.zeros(batch, len(VOCAB), dtype=torch.long).scatter_add(1, ids, valid.long())
        legal = self.grammar(config, torch.full_like(length, cfg.max_new), resume, target_depth)
        logp = first_logits.masked_fill(~legal, lowest).log_softmax(dim=-1)
        first = self.penalty(first_logits, counts).masked_fill(~legal, lowest).topk(k, dim=-1).indices
        generated, token_logp = [first.reshape(-1)], [logp.gather(1, first).reshape(-1)]

        repeat = partial(torch.repeat_interleave, repeats=k, dim=0)
        caches = [((repeat(key), repeat(value)), repeat(state)) for (key, value), state in caches]
        config, hidden_sum = tuple(repeat(part) for part in config), repeat(first_hidden)
        valid, counts, resume, target_depth = repeat(valid), repeat(counts), repeat(resume), repeat(target_depth)
        token, done = generated[0], torch.zeros(batch * k, dtype=torch.bool)
        for step in range(1, cfg.max_new):
            config = self.pushdown(config, token, ~done)
            counts = counts.scatter_add(1, token[:, None], (~done).long()[:, None])
            valid = torch.cat((valid, ~done[:, None]), dim=1)
            done = done | (token == EOS)
            hidden, caches = self.decoder(token[:, None], valid, caches)
            hidden = hidden[:, 0]
            logits = self.lm_head(hidden)
            legal = self.grammar(config, torch.full_like(token, cfg.max_new - step), resume, target_depth)
            logp = logits.masked_fill(~legal, lowest).log_softmax(dim=-1)
            choice = self.penalty(logits, counts).masked_fill(~legal, lowest).argmax(dim=-1)
            token_logp.append(logp.gather(1, choice[:, None]).squeeze(1).masked_fill(done, 0.0))
            token = choice.masked_fill(done, PAD)
            hidden_sum = hidden_sum + hidden.masked_fill(done[:, None], 0.0)
            generated.append(token)
        done = done | (token == EOS)
        generated, token_logp = torch.stack(generated, dim=1), torch.stack(token_logp, dim=1)
        count = (generated != PAD).sum(dim=1)
        score = token_logp.sum(dim=1) / ((5.0 + count) / 6.0) ** cfg.length_alpha
        score = torch.where(done, score, score - cfg.unfinished_cost)
        score = score + cfg.rank_weight * self.ranker(hidden_sum / count[:, None])
        score, order = score.reshape(batch, k).sort(dim=1, descending=True)
        wide = order[..., None].expand(-1, -1, cfg.max_new)
        generated, token_logp = (x.reshape(batch, k, -1).gather(1, wide) for x in (generated, token_logp))
        count, done = (x.reshape(batch, k).gather(1, order) for x in (count, done))

        filled = torch.full((batch, tokens.shape[1] + cfg.max_new), PAD, dtype=torch.long)
        for row in range(batch):
            start, end = hole[row].tolist()
            middle = generated[row, 0, : int(count[row, 0]) - int(done[row, 0])]
            whole = torch.cat((tokens[row, :start], middle, tokens[row, end : length[row]]))
            filled[row, : len(whole)] = whole
        return {"loss": loss, "first_logits": first_logits, "scores": score, "tokens": generated,
                "token_logp": token_logp, "lengths": count, "filled": filled}


def trained_like(net):
    """Values as after training, not as after the initialisation."""
    for module in net.modules():
        if isinstance(module, (nn.RMSNorm, nn.LayerNorm, nn.BatchNorm1d)):
            nn.init.uniform_(module.weight, 0.6, 1.4)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=module.in_features**-0.5)
        elif isinstance(module, nn.Conv1d):
            nn.init.normal_(module.weight, std=0.5)
        if getattr(module, "bias", None) is not None:
            nn.init.normal_(module.bias, std=0.12)
    nn.init.normal_(net.decoder.embed.weight, std=0.04)
    nn.init.normal_(net.ranker.bn.running_mean, std=0.4)
    nn.init.uniform_(net.ranker.bn.running_var, 0.3, 1.5)
    # sharper than at first, and what ends and closes is likely, as in code
    net.lm_head.weight.data *= 1.4
    for token, bonus in (("<eos>", 1.0), (";", 1.5), (")", 1.5), ("]", 1.5), ("(", 1.0), (",", 1.0), ("==", -2.0)):
        net.lm_head.bias.data[TOKEN_ID[token]] += bonus
    return net


# the hole is between the bars; true where the suffix goes first
SOURCES = (
    ("v1 = v2 + 10 ; if ( v1 < v3 ) { v4 ( v1 , | 2 | ) ; v5 = v4 ; } return v5 ;", False),
    ("while ( v7 < 64 ) { v7 = v7 * 2 ; | v8 [ v7 ] = 0 ; | }", True),
    ("v0 = v9 . v3 ( v2 ) ; | return v0 + 1 ; |", False),
    ("v2 = 8 ; v6 = v2 [ 1 ] - v10 ; v11 = ( v2 + v6 ) * 10 ; if ( v11 == 0 ) { return | v6 - v2 | ; } v1 = v11 ;"
     " return v1 ;", True),
)


def build():
    """The net with the same weights on every run, and four programs with a hole each, two of them suffix first."""
    torch.manual_seed(2)
    net = trained_like(CodeGenerator(SMALL))
    words = [source.split() for source, _ in SOURCES]
    rows = [torch.tensor([TOKEN_ID[word] for word in row if word != "|"]) for row in words]
    bars = [[index for index, word in enumerate(row) if word == "|"] for row in words]
    tokens = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
    length, spm = torch.tensor([len(row) for row in rows]), torch.tensor([suffix_first for _, suffix_first in SOURCES])
    hole = torch.tensor([(start, end - 1) for start, end in bars])
    return net.eval(), (tokens, length, hole, spm)
