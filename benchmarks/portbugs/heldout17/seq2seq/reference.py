"""An abstractive summarizer in PyTorch: T5's relative bias, Pegasus' layers, a pointer-generator's copying: the reference."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

PAD, EOS, UNK, BOS = 0, 1, 2, 3
NEG = -1e9


class Config:
    vocab_size = 61
    max_oov = 5
    d_model = 48
    d_kv = 10
    num_heads = 4
    d_ff = 72
    d_pointer = 28
    d_gate = 20
    encoder_layers = 2
    decoder_layers = 3
    num_buckets = 12
    max_distance = 20
    num_beams = 3
    max_length = 11
    min_length = 3
    length_penalty = 0.8
    no_repeat_ngram = 2
    coverage_weight = 1.0
    dropout = 0.1


def shift_right(target, start):
    """The decoder's inputs: the target one place later."""
    shifted = target.new_zeros(target.shape)
    shifted[:, 1:] = target[:, :-1].clone()
    shifted[:, 0] = start
    return shifted


def relative_position_bucket(relative, bidirectional, num_buckets, max_distance):
    """T5's buckets: near places exactly, far ones by the logarithm of their distance."""
    buckets = torch.zeros_like(relative)
    if bidirectional:
        num_buckets //= 2
        buckets = buckets + (relative > 0).to(torch.long) * num_buckets
        relative = relative.abs()
    else:
        relative = -torch.min(relative, torch.zeros_like(relative))
    max_exact = num_buckets // 2
    is_small = relative < max_exact
    ratio = torch.log(relative.clamp(min=1).float() / max_exact) / math.log(max_distance / max_exact)
    large = max_exact + (ratio * (num_buckets - max_exact)).to(torch.long)
    large = torch.min(large, torch.full_like(large, num_buckets - 1))
    return buckets + torch.where(is_small, relative, large)


def reorder_cache(caches, rows):
    """The caches of the beams that go on; the cross-attention's are those of the same text."""
    return [
        {"self": tuple(part.index_select(0, rows) for part in cache["self"]), "cross": cache["cross"]}
        for cache in caches
    ]


class RMSNorm(nn.Module):
    def __init__(self, width, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        variance = x.pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + self.eps))


class Attention(nn.Module):
    """Attention over the tokens themselves or over a memory, with an optional table of relative biases."""

    def __init__(self, config, causal=False, relative=False):
        super().__init__()
        self.heads, self.d_kv = config.num_heads, config.d_kv
        self.causal = causal
        self.num_buckets, self.max_distance = config.num_buckets, config.max_distance
        inner = self.heads * self.d_kv
        self.q_proj = nn.Linear(config.d_model, inner)
        self.k_proj = nn.Linear(config.d_model, inner, bias=False)
        self.v_proj = nn.Linear(config.d_model, inner)
        self.o_proj = nn.Linear(inner, config.d_model)
        self.relative_bias = nn.Embedding(config.num_buckets, self.heads) if relative else None
        self.dropout = nn.Dropout(config.dropout)

    def split(self, x):
        return x.view(x.shape[0], x.shape[1], self.heads, self.d_kv)

    def project_memory(self, memory):
        return self.split(self.k_proj(memory)), self.split(self.v_proj(memory))

    def compute_bias(self, query_length, key_length, device):
        """(1, heads, queries, keys); the queries are the last places of the keys."""
        context = torch.arange(key_length, device=device)[:, None]
        memory = torch.arange(key_length, device=device)[None, :]
        buckets = relative_position_bucket(memory - context, not self.causal, self.num_buckets, self.max_distance)
        values = self.relative_bias(buckets).permute(2, 0, 1).unsqueeze(0)
        return values[:, :, -query_length:, :]

    def forward(self, x, mask=None, position_bias=None, past=None, memory_kv=None):
        batch, length, _ = x.shape
        query = self.split(self.q_proj(x)) * self.d_kv ** -0.5
        if memory_kv is not None:
            key, value = memory_kv
        else:
            key, value = self.split(self.k_proj(x)), self.split(self.v_proj(x))
            if past is not None:
                key = torch.cat([past[0], key], dim=1)
                value = torch.cat([past[1], value], dim=1)

        if position_bias is None:
            if self.relative_bias is not None:
                position_bias = self.compute_bias(length, key.shape[1], x.device)
            else:
                position_bias = x.new_zeros(1, self.heads, length, key.shape[1])
            if mask is not None:
                position_bias = position_bias + mask

        scores = torch.einsum("bqhd,bkhd->bhqk", query, key) + position_bias
        weights = self.dropout(F.softmax(scores, dim=-1))
        mixed = torch.einsum("bhqk,bkhd->bqhd", weights, value).reshape(batch, length, -1)
        return self.o_proj(mixed), (key, value), position_bias


class GatedFeedForward(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.wi_0 = nn.Linear(config.d_model, config.d_ff)
        self.wi_1 = nn.Linear(config.d_model, config.d_ff)
        self.wo = nn.Linear(config.d_ff, config.d_model)
        self.act = nn.GELU(approximate="tanh")
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x):
        hidden = self.act(self.wi_0(x)) * self.wi_1(x)
        return self.wo(self.dropout(hidden))


class EncoderBlock(nn.Module):
    def __init__(self, config, relative):
        super().__init__()
        self.attn_norm = RMSNorm(config.d_model)
        self.self_attn = Attention(config, relative=relative)
        self.ff_norm = RMSNorm(config.d_model)
        self.ff = GatedFeedForward(config)

    def forward(self, x, mask, position_bias):
        attended, _, position_bias = self.self_attn(self.attn_norm(x), mask=mask, position_bias=position_bias)
        x = x + attended
        return x + self.ff(self.ff_norm(x)), position_bias


class DecoderBlock(nn.Module):
    def __init__(self, config, relative):
        super().__init__()
        self.attn_norm = RMSNorm(config.d_model)
        self.self_attn = Attention(config, causal=True, relative=relative)
        self.cross_norm = RMSNorm(config.d_model)
        self.cross_attn = Attention(config)
        self.ff_norm = RMSNorm(config.d_model)
        self.ff = GatedFeedForward(config)

    def forward(self, x, mask, position_bias, cross_mask, cache):
        attended, present, position_bias = self.self_attn(
            self.attn_norm(x), mask=mask, position_bias=position_bias, past=cache["self"]
        )
        x = x + attended
        attended, _, _ = self.cross_attn(self.cross_norm(x), mask=cross_mask, memory_kv=cache["cross"])
        x = x + attended
        x = x + self.ff(self.ff_norm(x))
        return x, position_bias, {"self": present, "cross": cache["cross"]}


class Encoder(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.blocks = nn.ModuleList([EncoderBlock(config, i == 0) for i in range(config.encoder_layers)])
        self.final_norm = RMSNorm(config.d_model)

    def forward(self, x, keep):
        mask = (1.0 - keep[:, None, None, :].to(x.dtype)) * NEG
        position_bias = None
        for block in self.blocks:
            x, position_bias = block(x, mask, position_bias)
        return self.final_norm(x)


class Decoder(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.blocks = nn.ModuleList([DecoderBlock(config, i == 0) for i in range(config.decoder_layers)])
        self.final_norm = RMSNorm(config.d_model)

    def init_cache(self, memory):
        return [{"self": None, "cross": block.cross_attn.project_memory(memory)} for block in self.blocks]

    def forward(self, x, keep, caches):
        length = x.shape[1]
        past = 0 if caches[0]["self"] is None else caches[0]["self"][0].shape[1]
        allowed = torch.ones(past + length, past + length, device=x.device).tril()[past:]
        mask = ((1.0 - allowed) * NEG)[None, None]
        cross_mask = (1.0 - keep[:, None, None, :].to(x.dtype)) * NEG
        position_bias, presents = None, []
        for block, cache in zip(self.blocks, caches):
            x, position_bias, present = block(x, mask, position_bias, cross_mask, cache)
            presents.append(present)
        return self.final_norm(x), presents


class PointerHead(nn.Module):
    """Additive attention with coverage over the source, and the gate between writing and copying."""

    def __init__(self, config):
        super().__init__()
        self.memory_proj = nn.Linear(config.d_model, config.d_pointer, bias=False)
        self.state_proj = nn.Linear(config.d_model, config.d_pointer)
        self.coverage_proj = nn.Linear(1, config.d_pointer, bias=False)
        self.energy = nn.Linear(config.d_pointer, 1, bias=False)
        self.gate_in = nn.Linear(3 * config.d_model, config.d_gate)
        self.gate_act = nn.LeakyReLU()
        self.gate_out = nn.Linear(config.d_gate, 1)

    def forward(self, state, embedded, memory, features, keep, coverage):
        hidden = features + self.state_proj(state).unsqueeze(1) + self.coverage_proj(coverage.unsqueeze(2))
        energy = self.energy(torch.tanh(hidden)).squeeze(-1)
        attention = F.softmax(energy, dim=-1) * keep
        attention = attention / attention.sum(-1, keepdim=True)
        context = torch.bmm(attention.unsqueeze(1), memory).squeeze(1)
        gate = self.gate_out(self.gate_act(self.gate_in(torch.cat([context, state, embedded], dim=-1))))
        overlap = torch.min(attention, coverage).sum(-1)
        return torch.sigmoid(gate), attention, coverage + attention, overlap


class Summarizer(nn.Module):
    """Reads a text, scores a given summary, and writes one by a beam search."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.extended = config.vocab_size + config.max_oov
        self.shared = nn.Embedding(config.vocab_size, config.d_model, padding_idx=PAD)
        self.embed_norm = nn.LayerNorm(config.d_model, eps=1e-3)
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size)
        self.pointer = PointerHead(config)
        lengths = torch.arange(config.max_length + 2, dtype=torch.float32)
        self.register_buffer("penalties", ((5.0 + lengths) / 6.0) ** config.length_penalty, persistent=False)

    def embed(self, tokens):
        """Words that stand in the source only are unknown to the table."""
        tokens = tokens.masked_fill(tokens >= self.config.vocab_size, UNK)
        return self.dropout(self.embed_norm(self.shared(tokens)))

    def mix(self, state, gate, attention, source_extended):
        """The vocabulary's distribution, and the attention added at the words it points to."""
        vocabulary = F.softmax(self.lm_head(state), dim=-1) * gate
        extra = vocabulary.new_zeros(vocabulary.shape[0], self.config.max_oov)
        mixed = torch.cat([vocabulary, extra], dim=-1)
        return mixed.scatter_add(1, source_extended, (1.0 - gate) * attention)

    def score(self, memory, keep, source_extended, target):
        """The log-distribution at each place of a given summary, and the loss of each summary."""
        embedded = self.embed(shift_right(target, BOS))
        states, _ = self.decoder(embedded, keep, self.decoder.init_cache(memory))
        features = self.pointer.memory_proj(memory)
        coverage = torch.zeros_like(keep)
        steps, overlaps = [], []
        for t in range(target.shape[1]):
            gate, attention, coverage, overlap = self.pointer(
                states[:, t], embedded[:, t], memory, features, keep, coverage
            )
            steps.append(self.mix(states[:, t], gate, attention, source_extended))
            overlaps.append(overlap)
        log_probs = torch.log(torch.stack(steps, dim=1) + 1e-9)
        overlap = torch.stack(overlaps, dim=1)
        valid = (target != PAD).to(log_probs.dtype)
        nll = -log_probs.gather(2, target.unsqueeze(-1)).squeeze(-1)
        loss = ((nll + self.config.coverage_weight * overlap) * valid).sum(-1) / valid.sum(-1)
        return log_probs, loss

    def repeated_ngrams(self, tokens):
        """True for each word that would end an n-gram which the beam has already."""
        n, length = self.config.no_repeat_ngram, tokens.shape[1]
        counts = torch.zeros(tokens.shape[0], self.extended, dtype=torch.long, device=tokens.device)
        if length < n:
            return counts > 0
        windows = tokens.unfold(1, n, 1)
        suffix = tokens[:, length - n + 1:].unsqueeze(1)
        match = (windows[..., :-1] == suffix).all(-1)
        counts = counts.scatter_add(1, windows[..., -1], match.long())
        return counts > 0

    def beam_search(self, memory, keep, source_extended):
        config = self.config
        batch, beams, size = memory.shape[0], config.num_beams, self.extended
        memory = memory.repeat_interleave(beams, dim=0)
        keep = keep.repeat_interleave(beams, dim=0)
        source_extended = source_extended.repeat_interleave(beams, dim=0)
        features = self.pointer.memory_proj(memory)
        caches = self.decoder.init_cache(memory)
        coverage = torch.zeros_like(keep)

        tokens = torch.full((batch * beams, 1), BOS, dtype=torch.long, device=memory.device)
        scores = memory.new_full((batch, beams), NEG)
        scores[:, 0] = 0.0
        scores = scores.view(-1)
        finished = torch.zeros(batch * beams, dtype=torch.bool, device=memory.device)
        stay = memory.new_full((size,), NEG)
        stay[PAD] = 0.0
        offsets = torch.arange(batch, device=memory.device).unsqueeze(1) * beams

        for step in range(config.max_length):
            embedded = self.embed(tokens[:, -1:])
            states, caches = self.decoder(embedded, keep, caches)
            gate, attention, covered, _ = self.pointer(
                states[:, -1], embedded[:, -1], memory, features, keep, coverage
            )
            coverage = torch.where(finished.unsqueeze(-1), coverage, covered)
            log_probs = torch.log(self.mix(states[:, -1], gate, attention, source_extended) + 1e-9)
            log_probs = log_probs.masked_fill(self.repeated_ngrams(tokens), NEG)
            log_probs[:, [PAD, BOS]] = NEG
            if step < config.min_length:
                log_probs[:, EOS] = NEG
            log_probs = torch.where(finished.unsqueeze(-1), stay, log_probs)

            total = (scores.unsqueeze(-1) + log_probs).view(batch, beams * size)
            best, index = total.topk(beams, dim=-1)
            origin = torch.div(index, size, rounding_mode="floor")
            words = (index % size).view(-1)
            rows = (origin + offsets).view(-1)

            scores = best.view(-1)
            tokens = torch.cat([tokens.index_select(0, rows), words.unsqueeze(-1)], dim=-1)
            finished = finished.index_select(0, rows) | (words == EOS)
            coverage = coverage.index_select(0, rows)
            caches = reorder_cache(caches, rows)

        lengths = (tokens[:, 1:] != PAD).sum(-1)
        scores = (scores / self.penalties[lengths]).view(batch, beams)
        scores, order = scores.sort(dim=-1, descending=True)
        tokens = tokens.view(batch, beams, -1).gather(1, order.unsqueeze(-1).expand(-1, -1, tokens.shape[-1]))
        coverage = coverage.view(batch, beams, -1).gather(1, order.unsqueeze(-1).expand(-1, -1, coverage.shape[-1]))
        return tokens[:, 0, 1:], scores, coverage[:, 0]

    def forward(self, source, source_extended, target):
        keep = (source != PAD).float()
        memory = self.encoder(self.embed(source), keep)
        log_probs, loss = self.score(memory, keep, source_extended, target)
        summary, scores, coverage = self.beam_search(memory, keep, source_extended)
        return log_probs, loss, summary, scores, coverage


@torch.no_grad()
def init_weights(net):
    """Values as after training."""
    for name, module in net.named_modules():
        if isinstance(module, nn.Linear):
            fan_in = module.weight.shape[1]
            nn.init.normal_(module.weight, std=1.3 * fan_in ** -0.5)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.2)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=1.0 if name.endswith("relative_bias") else 0.08)
        elif isinstance(module, nn.LayerNorm):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.15)
        elif isinstance(module, RMSNorm):
            nn.init.uniform_(module.weight, 0.6, 1.4)
    net.lm_head.weight.mul_(1.8)
    net.lm_head.bias[EOS] += 2.0
    net.pointer.memory_proj.weight.mul_(0.5)
    net.pointer.state_proj.weight.mul_(0.5)
    net.pointer.energy.weight.mul_(2.2)
    # what is covered is attended less
    pushed = net.pointer.coverage_proj.weight.abs() * net.pointer.energy.weight.sign().t()
    net.pointer.coverage_proj.weight.copy_(-0.25 * pushed)


def make_inputs(config, generator):
    """Two texts of other lengths; some of their words repeat, some are not in the vocabulary."""
    batch, length, target_length = 2, 23, 9
    source_extended = torch.randint(4, 24, (batch, length), generator=generator)
    source_extended[0, [3, 11, 18]] = config.vocab_size
    source_extended[0, [7, 14]] = config.vocab_size + 1
    source_extended[1, [2, 9]] = config.vocab_size
    source_extended[1, 5] = config.vocab_size + 2
    source_extended[0, 22] = EOS
    source_extended[1, 16] = EOS
    source_extended[1, 17:] = PAD
    source = source_extended.masked_fill(source_extended >= config.vocab_size, UNK)
    target = torch.randint(4, config.vocab_size, (batch, target_length), generator=generator)
    target[0, 2], target[0, 5] = config.vocab_size, config.vocab_size + 1
    target[1, 1] = config.vocab_size + 2
    target[0, 4], target[1, 3] = source_extended[0, 5], source_extended[1, 6]
    target[0, 8], target[1, 6] = EOS, EOS
    target[1, 7:] = PAD
    return source, source_extended, target


def build():
    """The net with the same weights on every run, and two texts with their summaries."""
    torch.manual_seed(SEED)
    config = Config()
    net = Summarizer(config)
    init_weights(net)
    return net.eval(), make_inputs(config, torch.Generator().manual_seed(29))


SEED = 24
