"""Serving a small language model in PyTorch: chunked prefill, cached decoding, speculation with a recurrent draft head."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn


class Config:
    """What config.json and generation_config.json say."""

    # transformer
    vocab_size = 53
    hidden_size = 32
    intermediate_size = 56
    num_attention_heads, num_key_value_heads = 4, 2
    head_dim = 16
    query_pre_attn_scalar = 10
    rms_norm_eps = 1e-5
    layer_types = ("sliding", "full", "sliding", "full")
    sliding_window = 5
    num_sink_tokens = 2
    attn_logit_softcapping = 6.0
    final_logit_softcapping = 5.0
    # rotary positions: the full layers are stretched by YaRN, the sliding ones keep the plain ones
    rope_local_theta = 1000.0
    rope_theta = 10000.0
    rope_scaling = {"factor": 16.0, "original_max_position_embeddings": 1024, "beta_fast": 32.0, "beta_slow": 1.0}
    # serving
    prefill_chunk = 5
    repetition_penalty = 1.4
    temperature = 0.7
    top_p = 0.9
    length_penalty = 0.6
    pad_token_id, eos_token_id = 0, 2
    num_draft_tokens, num_draft_blocks = 3, 2


def yarn_parameters(dim, theta, factor, original_max_position_embeddings, beta_fast, beta_slow):
    """Inverse frequencies between interpolation and extrapolation, and the factor of the attention's temperature."""

    def correction_dim(rotations):
        return dim * math.log(original_max_position_embeddings / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(correction_dim(beta_fast)), 0)
    high = min(math.ceil(correction_dim(beta_slow)), dim - 1)
    pos_freqs = theta ** (torch.arange(0, dim, 2).float() / dim)
    ramp = ((torch.arange(dim // 2).float() - low) / max(high - low, 0.001)).clamp(0, 1)
    extrapolation = 1 - ramp
    inv_freq = (1.0 / (factor * pos_freqs)) * (1 - extrapolation) + (1.0 / pos_freqs) * extrapolation
    return inv_freq, 0.1 * math.log(factor) + 1.0


class RotaryEmbedding(nn.Module):
    """Cosines and sines of the positions (batch, tokens), ready to be multiplied with heads."""

    def __init__(self, dim, theta, scaling=None):
        super().__init__()
        if scaling is None:
            inv_freq, attention_scaling = 1.0 / theta ** (torch.arange(0, dim, 2).float() / dim), 1.0
        else:
            inv_freq, attention_scaling = yarn_parameters(dim, theta, **scaling)
        self.register_buffer("inv_freq", inv_freq, persistent=False)
        self.attention_scaling = attention_scaling

    def forward(self, position_ids):
        freqs = position_ids[:, :, None].float() * self.inv_freq
        emb = torch.cat((freqs, freqs), dim=-1).unsqueeze(1)
        return emb.cos() * self.attention_scaling, emb.sin() * self.attention_scaling


def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


class StaticCache:
    """Keys and values in slots that are given once; what was rejected is written over later."""

    def __init__(self, cfg, batch, max_length):
        shape = (batch, cfg.num_key_value_heads, max_length, cfg.head_dim)
        self.keys = [torch.zeros(shape) for _ in cfg.layer_types]
        self.values = [torch.zeros(shape) for _ in cfg.layer_types]

    def update(self, layer_idx, key, value, slots):
        length = int(slots.max()) + 1
        index = slots[:, None, :, None].expand_as(key)
        self.keys[layer_idx].scatter_(2, index, key)
        self.values[layer_idx].scatter_(2, index, value)
        return self.keys[layer_idx][:, :, :length], self.values[layer_idx][:, :, :length]


def attention_masks(slots, pad, window, num_sinks):
    """For each type of layer, who may look where: (batch, 1, tokens, slots), true where one may."""
    query = slots[:, :, None]
    key = torch.arange(int(slots.max()) + 1)[None, None, :]
    first = pad[:, None, None]
    causal = (key <= query) & (key >= first)
    near, sink = (query - key) < window, key < first + num_sinks
    own = key == query  # a padded query looks at itself, so that no row is empty
    return {"full": (causal | own).unsqueeze(1), "sliding": ((causal & (near | sink)) | own).unsqueeze(1)}


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


class Attention(nn.Module):
    """Grouped queries, norms per head, capped scores; the heads of sliding layers have a learned sink."""

    def __init__(self, cfg, layer_idx):
        super().__init__()
        self.layer_idx = layer_idx
        self.head_dim = cfg.head_dim
        self.num_groups = cfg.num_attention_heads // cfg.num_key_value_heads
        self.scaling = cfg.query_pre_attn_scalar**-0.5
        self.softcap = cfg.attn_logit_softcapping
        q_size, kv_size = cfg.num_attention_heads * cfg.head_dim, cfg.num_key_value_heads * cfg.head_dim
        self.q_proj = nn.Linear(cfg.hidden_size, q_size)
        self.k_proj = nn.Linear(cfg.hidden_size, kv_size)
        self.v_proj = nn.Linear(cfg.hidden_size, kv_size)
        self.o_proj = nn.Linear(q_size, cfg.hidden_size, bias=False)
        self.q_norm = RMSNorm(cfg.head_dim, cfg.rms_norm_eps)
        self.k_norm = RMSNorm(cfg.head_dim, cfg.rms_norm_eps)
        sliding = cfg.layer_types[layer_idx] == "sliding"
        self.sinks = nn.Parameter(torch.zeros(cfg.num_attention_heads)) if sliding else None

    def forward(self, x, cos, sin, mask, slots, cache):
        b, t, _ = x.shape
        query = self.q_norm(self.q_proj(x).view(b, t, -1, self.head_dim)).transpose(1, 2)
        key = self.k_norm(self.k_proj(x).view(b, t, -1, self.head_dim)).transpose(1, 2)
        value = self.v_proj(x).view(b, t, -1, self.head_dim).transpose(1, 2)

        query = query * cos + rotate_half(query) * sin
        key = key * cos + rotate_half(key) * sin
        key, value = cache.update(self.layer_idx, key, value, slots)
        key, value = (kv.repeat_interleave(self.num_groups, dim=1) for kv in (key, value))

        scores = query @ key.transpose(2, 3) * self.scaling
        scores = self.softcap * torch.tanh(scores / self.softcap)
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        if self.sinks is not None:
            scores = torch.cat((scores, self.sinks.view(1, -1, 1, 1).expand(b, -1, t, 1)), dim=-1)
        probs = scores.softmax(dim=-1)[..., : key.shape[2]]
        return self.o_proj((probs @ value).transpose(1, 2).reshape(b, t, -1))


class MLP(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        dim, hidden = cfg.hidden_size, cfg.intermediate_size
        self.gate_proj = nn.Linear(dim, hidden, bias=False)
        self.up_proj = nn.Linear(dim, hidden, bias=False)
        self.act_fn = nn.SiLU()
        self.down_proj = nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nn.Module):
    def __init__(self, cfg, layer_idx):
        super().__init__()
        self.attention_type = cfg.layer_types[layer_idx]
        self.input_layernorm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        self.self_attn = Attention(cfg, layer_idx)
        self.post_attention_layernorm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        self.mlp = MLP(cfg)

    def forward(self, x, rotary, masks, slots, cache):
        cos, sin = rotary[self.attention_type]
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, masks[self.attention_type], slots, cache)
        return x + self.mlp(self.post_attention_layernorm(x))


class Model(nn.Module):
    """The transformer without its head; each token is told its slot in the cache."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.embed_tokens = nn.Embedding(cfg.vocab_size, cfg.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(cfg, i) for i in range(len(cfg.layer_types)))
        self.norm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        self.rotary_emb = RotaryEmbedding(cfg.head_dim, cfg.rope_theta, cfg.rope_scaling)
        self.rotary_emb_local = RotaryEmbedding(cfg.head_dim, cfg.rope_local_theta)

    def forward(self, input_ids, slots, pad, cache):
        x = self.embed_tokens(input_ids)
        position_ids = (slots - pad[:, None]).clamp(min=0)
        rotary = {"full": self.rotary_emb(position_ids), "sliding": self.rotary_emb_local(position_ids)}
        masks = attention_masks(slots, pad, self.cfg.sliding_window, self.cfg.num_sink_tokens)
        for layer in self.layers:
            x = layer(x, rotary, masks, slots, cache)
        return self.norm(x)


class DraftHead(nn.Module):
    """A recurrent net that guesses on from the last hidden state of the model, one token after the other."""

    def __init__(self, cfg):
        super().__init__()
        dim = cfg.hidden_size
        self.embed_norm = nn.LayerNorm(dim, eps=1e-5)
        self.embed_in = nn.Linear(dim, dim)
        self.state_in = nn.Linear(dim, dim, bias=False)
        self.init_state = nn.Parameter(torch.zeros(dim))
        self.fuse = nn.Linear(2 * dim, dim)
        self.blocks = nn.ModuleList(nn.Linear(dim, dim) for _ in range(cfg.num_draft_blocks))
        self.norm = RMSNorm(dim, cfg.rms_norm_eps)

    def forward(self, hidden, embed, state=None):
        if state is None:
            state = self.init_state.expand_as(hidden)
        state = torch.tanh(self.embed_in(self.embed_norm(embed)) + self.state_in(state))
        x = self.fuse(torch.cat((hidden, state), dim=-1))
        for block in self.blocks:
            x = x + F.silu(block(x))
        return self.norm(x), state


class RepetitionPenalty(nn.Module):
    def __init__(self, penalty):
        super().__init__()
        self.penalty = penalty

    def forward(self, logits, seen):
        return torch.where(seen, torch.where(logits < 0, logits * self.penalty, logits / self.penalty), logits)


class TopPFilter(nn.Module):
    """Only the likeliest tokens that make up the mass top_p keep their logits."""

    def __init__(self, top_p):
        super().__init__()
        self.top_p = top_p

    def forward(self, logits):
        sorted_logits, sorted_indices = torch.sort(logits, descending=False)
        cumulative = sorted_logits.softmax(dim=-1).cumsum(dim=-1)
        remove = cumulative <= 1 - self.top_p
        remove[..., -1] = False
        remove = remove.scatter(-1, sorted_indices, remove)
        return logits.masked_fill(remove, torch.finfo(logits.dtype).min)


def sample(probs, uniform):
    """The token at which the cumulated probabilities pass the given number."""
    return (probs.cumsum(dim=-1) <= uniform.unsqueeze(-1)).sum(dim=-1).clamp(max=probs.shape[-1] - 1)


class Verifier(nn.Module):
    """Speculative sampling: accept drafts with min(1, p / q), then sample from what is left, or from the bonus row."""

    def forward(self, target_probs, draft_probs, draft_ids, uniforms):
        index = draft_ids.unsqueeze(-1)
        p = target_probs[:, :-1].gather(-1, index).squeeze(-1)
        q = draft_probs.gather(-1, index).squeeze(-1)
        accept = uniforms[:, :-1] < (p / q.clamp(min=1e-9)).clamp(max=1.0)
        num_accepted = accept.long().cumprod(dim=1).sum(dim=1)

        left = (target_probs - F.pad(draft_probs, (0, 0, 0, 1))).clamp(min=0.0)
        left = left[torch.arange(left.shape[0]), num_accepted]
        left = left / left.sum(dim=-1, keepdim=True).clamp(min=1e-9)
        return num_accepted, left, sample(left, uniforms[:, -1])


class ServedLM(nn.Module):
    """Prompts (batch, tokens) padded on the left, and the numbers that sampling draws, to continuations and scores."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.model = Model(cfg)
        self.lm_head = nn.Linear(cfg.hidden_size, cfg.vocab_size, bias=False)
        self.draft = DraftHead(cfg)
        self.penalty = RepetitionPenalty(cfg.repetition_penalty)
        self.top_p = TopPFilter(cfg.top_p)
        self.verifier = Verifier()

    def compute_logits(self, hidden):
        cap = self.cfg.final_logit_softcapping
        return torch.tanh(self.lm_head(hidden) / cap) * cap

    def next_probs(self, hidden, seen):
        logits = self.penalty(self.compute_logits(hidden), seen)
        logits[..., self.cfg.pad_token_id] = torch.finfo(logits.dtype).min
        return self.top_p(logits / self.cfg.temperature).softmax(dim=-1)

    def one_hot(self, ids):
        return F.one_hot(ids, self.cfg.vocab_size).bool()

    def prefill(self, input_ids, pad, cache):
        """All hidden states of the prompts; the chunks only see each other through the cache."""
        slots = torch.arange(input_ids.shape[1]).expand_as(input_ids)
        chunks = zip(input_ids.split(self.cfg.prefill_chunk, dim=1), slots.split(self.cfg.prefill_chunk, dim=1))
        return torch.cat([self.model(ids, where, pad, cache) for ids, where in chunks], dim=1)

    def prompt_loss(self, hidden, input_ids, attention_mask):
        """Mean negative log-likelihood of each prompt after its first token."""
        log_probs = self.compute_logits(hidden[:, :-1]).log_softmax(dim=-1)
        nll = -log_probs.gather(-1, input_ids[:, 1:, None]).squeeze(-1)
        weight = attention_mask[:, :-1].to(nll.dtype)
        return (nll * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1.0)

    def speculate(self, hidden, token, seen, lengths, pad, cache, uniforms):
        """One round: draft, score all drafts in one pass of the model, verify, and say what to keep."""
        k = self.cfg.num_draft_tokens
        tokens, seens, draft_probs, state = [token], [seen], [], None
        for i in range(k):
            drafted, state = self.draft(hidden, self.model.embed_tokens(tokens[-1]), state)
            draft_probs.append(self.next_probs(drafted, seens[-1]))
            tokens.append(sample(draft_probs[-1], uniforms[:, i]))
            seens.append(seens[-1] | self.one_hot(tokens[-1]))
        draft_probs = torch.stack(draft_probs, dim=1)
        tokens = torch.stack(tokens, dim=1)

        slots = lengths[:, None] + torch.arange(k + 1)
        states = self.model(tokens, slots, pad, cache)
        target_probs = self.next_probs(states, torch.stack(seens, dim=1))
        num_accepted, left, last = self.verifier(target_probs, draft_probs, tokens[:, 1:], uniforms[:, k:])

        place = torch.arange(k + 1)[None, :]
        new = torch.cat((tokens[:, 1:], last[:, None]), dim=1)
        new = torch.where(place == num_accepted[:, None], last[:, None], new)
        new = new.masked_fill(place > num_accepted[:, None], self.cfg.pad_token_id)
        log_probs = target_probs.gather(-1, new.unsqueeze(-1)).squeeze(-1).clamp(min=1e-9).log()
        hidden = states[torch.arange(states.shape[0]), num_accepted]
        return new, log_probs, hidden, last, num_accepted, draft_probs, target_probs, left

    def finalize(self, tokens, log_probs):
        """Cut everything after the first end of sequence; the score is normalised by the length."""
        is_end = (tokens == self.cfg.eos_token_id).long()
        keep = (is_end.cumsum(dim=1) - is_end == 0) & (tokens != self.cfg.pad_token_id)
        scores = (log_probs * keep).sum(dim=1) / keep.sum(dim=1).float() ** self.cfg.length_penalty
        return tokens.masked_fill(~keep, self.cfg.pad_token_id), scores

    def forward(self, input_ids, attention_mask, decode_uniforms, draft_uniforms):
        """decode_uniforms is (batch, steps), draft_uniforms (batch, rounds, 2 * drafts + 1), both in [0, 1)."""
        batch, prompt_length = input_ids.shape
        steps, k = decode_uniforms.shape[1], self.cfg.num_draft_tokens
        max_new = steps + draft_uniforms.shape[1] * (k + 1)
        cache = StaticCache(self.cfg, batch, prompt_length + max_new)
        pad = prompt_length - attention_mask.sum(dim=1)
        states = self.prefill(input_ids, pad, cache)
        loss = self.prompt_loss(states, input_ids, attention_mask)
        seen = (self.one_hot(input_ids) & attention_mask[:, :, None].bool()).any(dim=1)

        # token by token
        output = torch.full((batch, max_new), self.cfg.pad_token_id)
        output_log_probs = torch.zeros(batch, max_new)
        lengths = torch.full((batch,), prompt_length)
        hidden, step_probs = states[:, -1], []
        for step in range(steps):
            if step > 0:
                hidden = self.model(token[:, None], lengths[:, None], pad, cache)[:, 0]
                lengths = lengths + 1
            probs = self.next_probs(hidden, seen)
            token = sample(probs, decode_uniforms[:, step])
            seen = seen | self.one_hot(token)
            output[:, step] = token
            output_log_probs[:, step] = probs.gather(-1, token[:, None]).squeeze(-1).clamp(min=1e-9).log()
            step_probs.append(probs)

        # by rounds of drafts; the newest token is not in the cache yet
        count, trace = torch.full((batch,), steps), []
        for uniforms in draft_uniforms.unbind(dim=1):
            round_ = self.speculate(hidden, token, seen, lengths, pad, cache, uniforms)
            new, log_probs, hidden, token, accepted = round_[:5]
            where = count[:, None] + torch.arange(k + 1)
            output.scatter_(1, where, new)
            output_log_probs.scatter_(1, where, log_probs)
            seen = seen | (self.one_hot(new) & (new != self.cfg.pad_token_id)[:, :, None]).any(dim=1)
            lengths, count = lengths + accepted + 1, count + accepted + 1
            trace.append(round_[4:])
        accepted, draft_probs, target_probs, left_probs = (torch.stack(column, dim=1) for column in zip(*trace))
        tokens, scores = self.finalize(output, output_log_probs)
        step_probs = torch.stack(step_probs, dim=1)
        return tokens, scores, loss, step_probs, accepted, draft_probs, target_probs, left_probs, hidden


def trained_like(net):
    """Values as after training, not as after the initialisation."""
    for module in net.modules():
        if isinstance(module, (RMSNorm, nn.LayerNorm)):
            nn.init.uniform_(module.weight, 0.5, 1.5)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=1.4 * module.in_features**-0.5)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        elif isinstance(module, Attention) and module.sinks is not None:
            nn.init.normal_(module.sinks, mean=1.0, std=0.8)
        if getattr(module, "bias", None) is not None:
            nn.init.normal_(module.bias, std=0.2)
    nn.init.normal_(net.draft.init_state, std=0.5)
    # the draft head has learned to follow the model
    net.draft.fuse.weight.data[:, : Config.hidden_size] += 1.5 * torch.eye(Config.hidden_size)
    for block in net.draft.blocks:
        block.weight.data *= 0.5
    return net


def build():
    """The net with the same weights on every run; three prompts, one so short that its first chunk is all padding."""
    torch.manual_seed(2461)
    net = trained_like(ServedLM(Config()))
    lengths = torch.tensor([14, 8, 11])
    attention_mask = (torch.arange(14)[None, :] >= 14 - lengths[:, None]).long()
    input_ids = torch.randint(3, Config.vocab_size, (3, 14)) * attention_mask
    decode_uniforms, draft_uniforms = torch.rand(3, 4), torch.rand(3, 3, 2 * Config.num_draft_tokens + 1)
    return net.eval(), (input_ids, attention_mask, decode_uniforms, draft_uniforms)
