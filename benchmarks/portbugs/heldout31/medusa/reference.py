"""A small decoder with Medusa heads, whose guesses are verified over a tree.

One pass over the prompts gives the losses of the heads and fills the key/value cache; then come a few rounds of
speculative decoding (guess, verify the whole tree at once, keep the best path)."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

# Paths of ranks: (0, 1) is "the best guess of the first head, then the second best of the second head".
TREE_CHOICES = (
    (0,), (1,), (2,), (3,),
    (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0),
    (0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (2, 0, 0),
)


TINY = dict(
    vocab_size=61, dim=48, depth=4, num_heads=6, num_kv_heads=2, head_dim=12, rotary_dim=8, hidden_dim=80,
    window=5,  # of the sliding layers, which are the even ones
    residual_multiplier=0.45, attn_softcap=6.0, final_softcap=9.0,
    # rotary positions, with the frequencies stretched by parts
    rope_theta=10000.0, rope_factor=4.0, rope_low=1.0, rope_high=4.0, rope_original=64, max_positions=64,
    medusa_heads=3, medusa_layers=2, top_k=4,
    label_smoothing=0.05, head_decay=0.8, head_weight=0.2, train_step=300, warmup_steps=800,
    # decoding
    rounds=6, temperature=0.7, epsilon=0.15, alpha=0.55, epsilon_decay=0.9, repetition_penalty=1.3,
    length_penalty=0.9, eos_id=2, pad_id=0,
)


def stretched_frequencies(cfg):
    """Long waves are stretched by the factor, short ones stay, between them goes a ramp."""
    freqs = cfg.rope_theta ** (-torch.arange(0, cfg.rotary_dim, 2).float() / cfg.rotary_dim)
    wavelength = 2 * math.pi / freqs
    smooth = ((cfg.rope_original / wavelength - cfg.rope_low) / (cfg.rope_high - cfg.rope_low)).clamp(0.0, 1.0)
    return (1 - smooth) * freqs / cfg.rope_factor + smooth * freqs


class RotaryTable(nn.Module):
    """Cosines and sines for positions (batch, tokens)."""

    def __init__(self, cfg):
        super().__init__()
        angles = torch.outer(torch.arange(cfg.max_positions).float(), stretched_frequencies(cfg))
        angles = torch.cat((angles, angles), dim=-1)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, positions):
        return self.cos[positions].unsqueeze(1), self.sin[positions].unsqueeze(1)


def rotate_half(x):
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def apply_rotary(x, cos, sin):
    """Turn the leading channels of each head, leave the others."""
    width = cos.shape[-1]
    turned, rest = x[..., :width], x[..., width:]
    return torch.cat((turned * cos + rotate_half(turned) * sin, rest), dim=-1)


class Attention(nn.Module):
    """Grouped queries, norms of queries and keys, soft cap, a learned sink per head, perhaps a sliding window."""

    def __init__(self, cfg, sliding):
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = cfg.num_heads, cfg.num_kv_heads, cfg.head_dim
        self.window = cfg.window if sliding else None
        self.scale = cfg.head_dim**-0.5
        self.softcap = cfg.attn_softcap
        self.q_proj = nn.Linear(cfg.dim, cfg.num_heads * cfg.head_dim, bias=False)
        self.k_proj = nn.Linear(cfg.dim, cfg.num_kv_heads * cfg.head_dim, bias=False)
        self.v_proj = nn.Linear(cfg.dim, cfg.num_kv_heads * cfg.head_dim, bias=False)
        self.o_proj = nn.Linear(cfg.num_heads * cfg.head_dim, cfg.dim, bias=False)
        self.q_norm = nn.RMSNorm(cfg.head_dim)
        self.k_norm = nn.RMSNorm(cfg.head_dim)
        self.sinks = nn.Parameter(torch.zeros(cfg.num_heads))

    def forward(self, x, cos, sin, allowed, distance, past=None):
        """allowed and distance are (batch, queries, keys); past holds what was kept, (batch, heads, slots, channels).
        Returns the new keys and values alone: whether they are kept is decided later."""
        b, n, _ = x.shape
        q = self.q_norm(self.q_proj(x).view(b, n, self.num_heads, self.head_dim)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(b, n, self.num_kv_heads, self.head_dim)).transpose(1, 2)
        v = self.v_proj(x).view(b, n, self.num_kv_heads, self.head_dim).transpose(1, 2)
        q, k = apply_rotary(q, cos, sin), apply_rotary(k, cos, sin)

        keys, values = (k, v) if past is None else (torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2))
        groups = self.num_heads // self.num_kv_heads
        keys, values = keys.repeat_interleave(groups, dim=1), values.repeat_interleave(groups, dim=1)
        scores = torch.matmul(q, keys.transpose(-2, -1)) * self.scale
        scores = self.softcap * torch.tanh(scores / self.softcap)
        if self.window is not None:
            allowed = allowed & (distance < self.window)
        scores = scores.masked_fill(~allowed.unsqueeze(1), torch.finfo(scores.dtype).min)
        sinks = self.sinks.view(1, -1, 1, 1).expand(b, -1, n, 1)
        weights = torch.cat((scores, sinks), dim=-1).softmax(dim=-1)[..., :-1]

        out = torch.matmul(weights, values).transpose(1, 2).reshape(b, n, -1)
        return self.o_proj(out), (k, v)


class GatedMLP(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.gate_proj = nn.Linear(cfg.dim, cfg.hidden_dim, bias=False)
        self.up_proj = nn.Linear(cfg.dim, cfg.hidden_dim, bias=False)
        self.down_proj = nn.Linear(cfg.hidden_dim, cfg.dim, bias=False)
        self.act = nn.GELU()

    def forward(self, x):
        return self.down_proj(self.act(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nn.Module):
    def __init__(self, cfg, index):
        super().__init__()
        self.multiplier = cfg.residual_multiplier
        self.input_norm = nn.RMSNorm(cfg.dim, eps=1e-6)
        self.attn = Attention(cfg, sliding=index % 2 == 0)
        self.post_norm = nn.RMSNorm(cfg.dim, eps=1e-6)
        self.mlp = GatedMLP(cfg)

    def forward(self, x, cos, sin, allowed, distance, past=None):
        out, fresh = self.attn(self.input_norm(x), cos, sin, allowed, distance, past)
        x = x + out * self.multiplier
        x = x + self.mlp(self.post_norm(x)) * self.multiplier
        return x, fresh


class ResBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.linear, self.act = nn.Linear(dim, dim), nn.SiLU()

    def forward(self, x):
        return x + self.act(self.linear(x))


class Drafter(nn.Module):
    """The extra heads: head k guesses the token k + 2 places ahead of the state."""

    def __init__(self, cfg):
        super().__init__()
        self.depth_embed = nn.Parameter(torch.zeros(cfg.medusa_heads, cfg.dim))
        self.heads = nn.ModuleList()
        for _ in range(cfg.medusa_heads):
            blocks = [ResBlock(cfg.dim) for _ in range(cfg.medusa_layers)]
            self.heads.append(nn.Sequential(*blocks, nn.Linear(cfg.dim, cfg.vocab_size, bias=False)))

    def forward(self, hidden):
        return torch.stack([head(hidden + self.depth_embed[i]) for i, head in enumerate(self.heads)], dim=0)


class DraftTree(nn.Module):
    """The tables of a tree of guesses (node 0 is the token that is certain), and how to fill it."""

    def __init__(self, choices, top_k):
        super().__init__()
        choices = sorted(choices, key=lambda path: (len(path), path))
        number = {path: i + 1 for i, path in enumerate(choices)}
        size = len(choices) + 1
        mask = torch.eye(size, dtype=torch.bool)
        mask[:, 0] = True
        depth, pick = torch.zeros(size, dtype=torch.long), torch.zeros(size, dtype=torch.long)
        for path, node in number.items():
            depth[node] = len(path)
            pick[node] = 1 + (len(path) - 1) * top_k + path[-1]
            for cut in range(1, len(path)):
                mask[node, number[path[:cut]]] = True

        # one row for each leaf: the nodes from the root, -1 where the path has ended
        inner = {path[:-1] for path in choices}
        leaves = [path for path in choices if path not in inner]
        length = max(len(path) for path in choices) + 1
        retrieve = torch.full((len(leaves), length), -1, dtype=torch.long)
        for row, path in enumerate(leaves):
            for cut in range(len(path) + 1):
                retrieve[row, cut] = number[path[:cut]] if cut else 0

        self.top_k = top_k
        for name, table in dict(mask=mask, depth=depth, pick=pick, retrieve=retrieve).items():
            self.register_buffer(name, table, persistent=False)

    def forward(self, certain, head_logits, lengths):
        guesses = head_logits.topk(self.top_k, dim=-1).indices  # (heads, batch, k)
        pool = torch.cat((certain.unsqueeze(1), guesses.transpose(0, 1).flatten(1)), dim=1)
        tokens = pool[:, self.pick]
        positions = lengths.unsqueeze(1) + self.depth
        return tokens, positions, self.mask.expand(tokens.shape[0], -1, -1)


class TypicalVerifier(nn.Module):
    """Keeps the longest path whose tokens are all typical for the model."""

    def __init__(self, cfg):
        super().__init__()
        self.temperature, self.alpha = cfg.temperature, cfg.alpha
        self.epsilon, self.epsilon_decay = cfg.epsilon, cfg.epsilon_decay

    def forward(self, tokens, logits, retrieve, round_index):
        """The index of the best path, how many of its guesses are accepted, and the log-likelihood of these."""
        padded = retrieve < 0
        nodes = retrieve.clamp(min=0)
        logits = logits[:, nodes[:, :-1]]  # (batch, paths, length - 1, vocabulary)
        guesses = tokens[:, nodes[:, 1:]]
        probs = F.softmax(logits / self.temperature, dim=-1)
        guess_probs = probs.gather(-1, guesses.unsqueeze(-1)).squeeze(-1)

        entropy = -(probs * torch.log(probs + 1e-5)).sum(dim=-1)
        ceiling = self.epsilon * self.epsilon_decay**round_index
        threshold = torch.minimum(torch.full_like(entropy, ceiling), self.alpha * torch.exp(-entropy))
        typical = (guess_probs > threshold) & ~padded[:, 1:]
        accepted = typical.long().cumprod(dim=-1)
        count = accepted.sum(dim=-1)
        log_likelihood = (torch.log(guess_probs + 1e-9) * accepted).sum(dim=-1)
        longest = count == count.amax(dim=1, keepdim=True)
        best = log_likelihood.masked_fill(~longest, float("-inf")).argmax(dim=1)
        count = count.gather(1, best.unsqueeze(1)).squeeze(1)
        return best, count, log_likelihood.gather(1, best.unsqueeze(1)).squeeze(1)


class MedusaLoss(nn.Module):
    """Cross entropies of the model and its heads over the answers (each counts the same); further heads count less."""

    def __init__(self, cfg):
        super().__init__()
        self.smoothing, self.decay, self.weight = cfg.label_smoothing, cfg.head_decay, cfg.head_weight
        self.progress = min(cfg.train_step / cfg.warmup_steps, 1.0)

    def forward(self, base_logits, head_logits, input_ids, lengths, answer_start):
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        losses = []
        for k, logits in enumerate([base_logits, *head_logits]):
            shift = k + 1
            labels = input_ids[:, shift:]
            at = places[shift:].unsqueeze(0)
            weight = ((at >= answer_start.unsqueeze(1)) & (at < lengths.unsqueeze(1))).to(logits.dtype)
            logits = logits[:, :-shift].transpose(1, 2)
            nll = F.cross_entropy(logits, labels, reduction="none", label_smoothing=self.smoothing)
            losses.append(((nll * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1.0)).mean())
        losses = torch.stack(losses)
        scales = self.decay ** torch.arange(1, len(head_logits) + 1, device=losses.device)
        ramp = self.weight * math.sin(0.5 * math.pi * self.progress)
        return losses[0] + ramp * (losses[1:] * scales).sum(), losses


class KVCache:
    """Room for keys and values of every layer; a slot's number is the position of its token."""

    def __init__(self, layers, batch, cfg, slots):
        self.data = torch.zeros(layers, 2, batch, cfg.num_kv_heads, slots, cfg.head_dim)

    def prefill(self, fresh):
        for layer, (k, v) in enumerate(fresh):
            self.data[layer, :, :, :, : k.shape[2]] = torch.stack((k, v))

    def view(self, layer, span):
        return self.data[layer, 0, :, :, :span], self.data[layer, 1, :, :, :span]

    def commit(self, fresh, nodes, keep, lengths):
        """Copy the kept nodes (batch, length) of the tree behind what each row has."""
        for row in range(nodes.shape[0]):
            chosen, start = nodes[row][keep[row]], int(lengths[row])
            for layer, pair in enumerate(fresh):
                for which, tensor in enumerate(pair):
                    self.data[layer, which, row, :, start : start + len(chosen)] = tensor[row][:, chosen]


def penalise_repeats(logits, seen, penalty):
    """Tokens that occurred become less likely, whatever the sign of their logit."""
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


class MedusaLM(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.embed = nn.Embedding(cfg.vocab_size, cfg.dim)
        self.embed_norm = nn.LayerNorm(cfg.dim)
        self.rotary = RotaryTable(cfg)
        self.layers = nn.ModuleList(DecoderLayer(cfg, i) for i in range(cfg.depth))
        self.norm = nn.RMSNorm(cfg.dim, eps=1e-6)
        self.lm_head = nn.Linear(cfg.dim, cfg.vocab_size, bias=False)
        self.drafter = Drafter(cfg)
        self.tree = DraftTree(TREE_CHOICES, cfg.top_k)
        self.verifier = TypicalVerifier(cfg)
        self.criterion = MedusaLoss(cfg)

    def _backbone(self, tokens, positions, allowed, key_positions, cache=None, span=0):
        x = self.embed_norm(self.embed(tokens))
        cos, sin = self.rotary(positions)
        distance = positions.unsqueeze(2) - key_positions.unsqueeze(1)
        fresh = []
        for i, layer in enumerate(self.layers):
            past = None if cache is None else cache.view(i, span)
            x, pair = layer(x, cos, sin, allowed, distance, past)
            fresh.append(pair)
        return self.norm(x), fresh

    def _logits(self, hidden):
        return self.cfg.final_softcap * torch.tanh(self.lm_head(hidden) / self.cfg.final_softcap)

    def forward(self, input_ids, lengths, answer_start):
        cfg = self.cfg
        batch, total = input_ids.shape
        rows = torch.arange(batch)

        # the prompts, padded at the right: losses, and the first part of the cache
        positions = torch.arange(total).expand(batch, -1)
        allowed = (positions.unsqueeze(1) <= positions.unsqueeze(2)) & (positions < lengths.unsqueeze(1)).unsqueeze(1)
        hidden, fresh = self._backbone(input_ids, positions, allowed, positions)
        loss, losses = self.criterion(self._logits(hidden), self.drafter(hidden), input_ids, lengths, answer_start)

        length_of_path = self.tree.retrieve.shape[1]
        slots = total + cfg.rounds * length_of_path
        cache = KVCache(cfg.depth, batch, cfg, slots)
        cache.prefill(fresh)
        output = torch.full((batch, slots), cfg.pad_id)
        output[:, :total] = input_ids * (positions < lengths.unsqueeze(1))
        seen = torch.zeros(batch, cfg.vocab_size, dtype=torch.bool)
        for row in range(batch):
            seen[row, input_ids[row, : int(lengths[row])]] = True

        state = hidden[rows, lengths - 1]
        active = torch.ones(batch, dtype=torch.bool)
        log_prob = torch.zeros(batch)
        prompt_lengths = lengths
        traces, advances, drafts = [], [], []
        for round_index in range(cfg.rounds):
            base_logits, head_logits = self._logits(state), self.drafter(state)
            certain = penalise_repeats(base_logits, seen, cfg.repetition_penalty).argmax(dim=-1)
            certain_log_prob = base_logits.log_softmax(dim=-1).gather(1, certain.unsqueeze(1)).squeeze(1)

            tokens, positions, among = self.tree(certain, head_logits, lengths)
            span = int(lengths.max())
            kept_positions = torch.arange(span).expand(batch, -1)
            kept = (kept_positions < lengths.unsqueeze(1)).unsqueeze(1).expand(-1, tokens.shape[1], -1)
            allowed = torch.cat((kept, among), dim=2)
            key_positions = torch.cat((kept_positions, positions), dim=1)
            nodes_hidden, fresh = self._backbone(tokens, positions, allowed, key_positions, cache, span)
            logits = self._logits(nodes_hidden)
            best, count, path_log_prob = self.verifier(tokens, logits, self.tree.retrieve, round_index)

            # the certain token and the accepted guesses, up to the first end of sequence
            nodes = self.tree.retrieve[best].clamp(min=0)
            path_tokens = tokens.gather(1, nodes)
            keep = torch.arange(length_of_path) <= count.unsqueeze(1)
            ends = (path_tokens == cfg.eos_id) & keep
            before = ends.long().cumsum(dim=1) - ends.long()
            keep = keep & (before == 0) & active.unsqueeze(1)
            advance = keep.sum(dim=1)

            cache.commit(fresh, nodes, keep, lengths)
            for row in range(batch):
                new = path_tokens[row][keep[row]]
                output[row, int(lengths[row]) : int(lengths[row]) + len(new)] = new
                seen[row, new] = True
            last = nodes.gather(1, (advance - 1).clamp(min=0).unsqueeze(1)).squeeze(1)
            state = torch.where(active.unsqueeze(1), nodes_hidden[rows, last], state)
            log_prob = log_prob + torch.where(active, certain_log_prob + path_log_prob, torch.zeros_like(log_prob))
            lengths = lengths + advance
            active = active & ~ends.any(dim=1)
            traces.append(logits)
            drafts.append(head_logits.transpose(0, 1))
            advances.append(advance)

        scores = log_prob / ((5.0 + (lengths - prompt_lengths)) / 6.0) ** cfg.length_penalty
        return {
            "loss": loss, "losses": losses, "tokens": output, "advances": torch.stack(advances, dim=1),
            "tree_logits": torch.stack(traces, dim=1), "draft_logits": torch.stack(drafts, dim=1), "scores": scores,
        }


def trained_like(net):
    """Values as after training, not as after the initialisation."""
    for name, parameter in net.named_parameters():
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            nn.init.uniform_(parameter, 1.1, 2.1)
        elif name.endswith("norm.weight"):
            nn.init.uniform_(parameter, 0.6, 1.4)
        elif name.endswith("sinks"):
            nn.init.normal_(parameter, mean=0.5, std=0.8)
        elif name.endswith("depth_embed"):
            nn.init.normal_(parameter, std=0.5)
        elif name == "embed.weight":
            nn.init.normal_(parameter, std=0.01)
        elif parameter.ndim == 2:
            # the norms behind them leave the size of these to the weight decay
            gain = 0.0015 if name.endswith(("q_proj.weight", "k_proj.weight")) else 1.1
            nn.init.normal_(parameter, std=gain * parameter.shape[1] ** -0.5)
        else:
            nn.init.normal_(parameter, std=0.1)
    for k, head in enumerate(net.drafter.heads):
        head[-1].weight.data.mul_(0.6).add_(0.6 * net.lm_head.weight.data)
    return net


def build():
    """The net with the same weights on every run, and four padded prompts with the starts of their answers."""
    torch.set_num_threads(1)  # tensors this small gain nothing from more
    torch.manual_seed(0)
    cfg = SimpleNamespace(**TINY)
    net = trained_like(MedusaLM(cfg)).eval()
    rng = np.random.RandomState(7)
    lengths = np.array([14, 9, 17, 12], np.int64)
    input_ids = rng.randint(3, cfg.vocab_size, size=(4, 17)).astype(np.int64)
    input_ids[np.arange(17)[None, :] >= lengths[:, None]] = cfg.pad_id
    answer_start = np.array([11, 3, 4, 7], np.int64)
    return net, (torch.from_numpy(input_ids), torch.from_numpy(lengths), torch.from_numpy(answer_start))
