"""A byte-level language model of two scales (global over patches, local inside a patch), in PyTorch.

The text is a stream of bytes in which several documents may be packed. Bytes are grouped in patches of a fixed size. The
global model reads one embedding per patch and gives each patch a state that knows all the patches before it; the local
model predicts the bytes of a patch one after another from that state and from the bytes of the same patch so far.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

# 256 bytes, and two ids that are no bytes
PAD = 256
END = 257
VOCAB = 258


@dataclass
class Config:
    """The small model of the repository's tests."""

    patch_size: int = 6
    dim: int = 96
    depth: int = 3
    num_heads: int = 6
    num_kv_heads: int = 2
    ffn_dim: int = 192
    rotary_base: float = 10000.0
    rotary_dim: int = 8
    norm_eps: float = 1e-6
    byte_dim: int = 16
    conv_kernel: int = 4
    conv_groups: int = 4
    local_dim: int = 48
    local_depth: int = 2
    local_heads: int = 4
    logit_cap: float = 20.0
    z_weight: float = 1e-4
    max_documents: int = 4
    new_bytes: int = 10


def document_ids(tokens):
    """The number of the document that each token belongs to; an end token belongs to the document that it ends."""
    ends = (tokens == END).long()
    return ends.cumsum(dim=1) - ends


def document_mask(docs):
    """Causal attention inside of each document: (batch, 1, length, length), true where a query may look."""
    length = docs.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=docs.device).tril()
    same = docs[:, :, None] == docs[:, None, :]
    return (causal & same)[:, None]


def rotary_tables(positions, dim, base):
    """Cosines and sines for each position and each pair of channels."""
    frequencies = base ** (-torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    angles = positions.to(torch.float32)[:, None] * frequencies[None, :]
    return angles.cos(), angles.sin()


def apply_rotary(x, cos, sin):
    """Rotate neighbouring pairs of the first channels of each head; the others stay.

    x is (batch, heads, length, channels), the tables are (length, pairs).
    """
    rotated, rest = x[..., : 2 * cos.shape[-1]], x[..., 2 * cos.shape[-1] :]
    even, odd = rotated[..., 0::2], rotated[..., 1::2]
    rotated = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)
    return torch.cat((rotated, rest), dim=-1)


def attend(q, k, v, mask):
    """Scaled dot products; without a mask each query looks at all keys."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return scores.softmax(dim=-1) @ v


def append_cache(cache, k, v):
    """Keys and values so far, with the new ones behind them."""
    if cache is None:
        return k, v
    return torch.cat((cache[0], k), dim=2), torch.cat((cache[1], v), dim=2)


class RMSNorm(nn.Module):
    """Root mean square normalisation with a gain."""

    def __init__(self, dim, eps):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + self.eps) * self.weight


class PatchEncoder(nn.Module):
    """The bytes of a patch as one vector: byte embeddings, a causal convolution, and a projection of all of them."""

    def __init__(self, cfg):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, cfg.byte_dim)
        self.norm = nn.LayerNorm(cfg.byte_dim)
        kernel, groups = cfg.conv_kernel, cfg.conv_groups
        self.conv = nn.Conv1d(cfg.byte_dim, cfg.byte_dim, kernel, padding=kernel - 1, groups=groups)
        self.act = nn.SiLU()
        self.proj = nn.Linear(cfg.patch_size * cfg.byte_dim, cfg.dim)
        self.start = nn.Parameter(torch.zeros(cfg.dim))

    def forward(self, patches, keep):
        """patches is (batch, slots, patch size); keep is false for bytes that are not to be seen.

        A slot of which nothing is to be seen gets the start vector.
        """
        b, n, p = patches.shape
        x = self.norm(self.embed(patches)) * keep.unsqueeze(-1).float()
        x = x.reshape(b * n, p, -1).transpose(1, 2)
        x = x + self.act(self.conv(x)[..., :p])
        x = self.proj(x.transpose(1, 2).reshape(b, n, -1))
        return torch.where(keep.any(dim=-1, keepdim=True), x, self.start)


class GroupedAttention(nn.Module):
    """Attention with rotary positions, normalised queries and keys, and fewer heads of keys and values."""

    def __init__(self, cfg):
        super().__init__()
        self.num_heads, self.num_kv_heads = cfg.num_heads, cfg.num_kv_heads
        self.head_dim = cfg.dim // cfg.num_heads
        self.wq = nn.Linear(cfg.dim, cfg.num_heads * self.head_dim, bias=False)
        self.wk = nn.Linear(cfg.dim, cfg.num_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(cfg.dim, cfg.num_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(cfg.num_heads * self.head_dim, cfg.dim, bias=False)
        self.q_norm = RMSNorm(self.head_dim, cfg.norm_eps)
        self.k_norm = RMSNorm(self.head_dim, cfg.norm_eps)

    def forward(self, x, cos, sin, mask, cache):
        b, length, _ = x.shape
        q = self.wq(x).view(b, length, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.wk(x).view(b, length, self.num_kv_heads, self.head_dim).transpose(1, 2)
        v = self.wv(x).view(b, length, self.num_kv_heads, self.head_dim).transpose(1, 2)
        q = apply_rotary(self.q_norm(q), cos, sin)
        k = apply_rotary(self.k_norm(k), cos, sin)
        k, v = append_cache(cache, k, v)

        groups = self.num_heads // self.num_kv_heads
        out = attend(q, k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1), mask)
        return self.wo(out.transpose(1, 2).reshape(b, length, -1)), (k, v)


class GatedFeedForward(nn.Module):
    """SwiGLU with one projection for the gate and the value."""

    def __init__(self, dim, hidden):
        super().__init__()
        self.w_in = nn.Linear(dim, 2 * hidden, bias=False)
        self.act = nn.SiLU()
        self.w_out = nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        gate, value = self.w_in(x).chunk(2, dim=-1)
        return self.w_out(self.act(gate) * value)


class GlobalBlock(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.attn_norm = RMSNorm(cfg.dim, cfg.norm_eps)
        self.attn = GroupedAttention(cfg)
        self.ffn_norm = RMSNorm(cfg.dim, cfg.norm_eps)
        self.ffn = GatedFeedForward(cfg.dim, cfg.ffn_dim)

    def forward(self, x, cos, sin, mask, cache):
        attended, cache = self.attn(self.attn_norm(x), cos, sin, mask, cache)
        x = x + attended
        return x + self.ffn(self.ffn_norm(x)), cache


class GlobalModel(nn.Module):
    """The transformer over patches. Slot i holds patch i - 1, so that its state may be used to predict patch i."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.encoder = PatchEncoder(cfg)
        self.blocks = nn.ModuleList([GlobalBlock(cfg) for _ in range(cfg.depth)])
        self.norm = RMSNorm(cfg.dim, cfg.norm_eps)

    def forward(self, patches, keep, mask, caches=None):
        """The states of the slots, and the caches with these slots in them."""
        x = self.encoder(patches, keep)
        first = 0 if caches is None else caches[0][0].shape[2]
        positions = torch.arange(first, first + x.shape[1])
        cos, sin = rotary_tables(positions, self.cfg.rotary_dim, self.cfg.rotary_base)
        new_caches = []
        for index, block in enumerate(self.blocks):
            x, cache = block(x, cos, sin, mask, None if caches is None else caches[index])
            new_caches.append(cache)
        return self.norm(x), new_caches


class LocalBlock(nn.Module):
    """A plain block of the local model."""

    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.norm1 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x, mask, cache):
        b, length, dim = x.shape
        qkv = self.qkv(self.norm1(x)).view(b, length, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        k, v = append_cache(cache, k, v)
        out = attend(q, k, v, mask).transpose(1, 2).reshape(b, length, dim)
        x = x + self.proj(out)
        return x + self.mlp(self.norm2(x)), (k, v)


class LocalModel(nn.Module):
    """The transformer over the bytes of one patch, which sees the byte before and the context from the global model."""

    def __init__(self, cfg):
        super().__init__()
        self.logit_cap = cfg.logit_cap
        self.embed = nn.Embedding(VOCAB, cfg.local_dim)
        self.start = nn.Parameter(torch.zeros(cfg.local_dim))
        self.places = nn.Parameter(torch.zeros(cfg.patch_size, cfg.local_dim))
        self.blocks = nn.ModuleList([LocalBlock(cfg.local_dim, cfg.local_heads) for _ in range(cfg.local_depth)])
        self.norm = nn.LayerNorm(cfg.local_dim)
        self.head = nn.Linear(cfg.local_dim, VOCAB)

    def shifted(self, tokens):
        """Embeddings of the bytes of patches, with the start vector before them: (patches, bytes + 1, channels)."""
        start = self.start.expand(tokens.shape[0], 1, -1)
        return torch.cat((start, self.embed(tokens)), dim=1)

    def forward(self, x, context, mask, first=0, caches=None):
        """Logits for the places from `first` on; x are the embeddings of the bytes before them."""
        x = x + context + self.places[first : first + x.shape[1]]
        new_caches = []
        for index, block in enumerate(self.blocks):
            x, cache = block(x, mask, None if caches is None else caches[index])
            new_caches.append(cache)
        logits = self.head(self.norm(x))
        return self.logit_cap * torch.tanh(logits / self.logit_cap), new_caches


class ByteModel(nn.Module):
    """Both models, the losses, and greedy generation."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.global_model = GlobalModel(cfg)
        self.to_local = nn.Linear(cfg.dim, cfg.patch_size * cfg.local_dim)
        self.local_model = LocalModel(cfg)

    def context(self, states):
        """What each place of each patch gets from the global state: (batch, patches, patch size, local channels)."""
        b, n, _ = states.shape
        return self.to_local(states).view(b, n, self.cfg.patch_size, self.cfg.local_dim)

    def score(self, tokens, docs):
        """Logits for all the tokens of a stream whose length is a number of patches: (batch, length, vocabulary)."""
        b, length = tokens.shape
        p = self.cfg.patch_size
        n = length // p
        patches, patch_docs = tokens.view(b, n, p), docs.view(b, n, p)
        # a slot belongs to the document of the first byte that it is to predict, and sees that document only
        slot_docs = patch_docs[:, :, 0]
        previous = F.pad(patches, (0, 0, 1, 0), value=PAD)[:, :-1]
        previous_docs = F.pad(patch_docs, (0, 0, 1, 0), value=-1)[:, :-1]
        keep = previous_docs == slot_docs.unsqueeze(-1)
        states, _ = self.global_model(previous, keep, document_mask(slot_docs))

        # bytes of a document that begins inside the patch get no state
        context = self.context(states)
        context = context * (patch_docs == slot_docs.unsqueeze(-1)).unsqueeze(-1).to(context.dtype)

        x = self.local_model.shifted(patches.view(b * n, p)[:, :-1])
        mask = document_mask(patch_docs.view(b * n, p))
        logits, _ = self.local_model(x, context.view(b * n, p, -1), mask)
        return logits.view(b, length, VOCAB)

    def losses(self, logits, tokens, docs):
        """Bits per byte, the mean squared log of the partition, the training loss, and bits per byte by document.

        End tokens cost bits, but they are no bytes of the text; padding counts nowhere.
        """
        valid = (tokens != PAD).to(logits.dtype)
        is_byte = (tokens < 256).to(logits.dtype)
        log_z = logits.logsumexp(dim=-1)
        nats = (log_z - logits.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)) * valid
        bits_per_byte = nats.sum() / is_byte.sum() / math.log(2.0)
        z = (log_z.square() * valid).sum() / valid.sum()
        loss = nats.sum() / valid.sum() + self.cfg.z_weight * z
        shape = (tokens.shape[0], self.cfg.max_documents)
        document_nats = nats.new_zeros(shape).scatter_add(1, docs, nats)
        document_bytes = nats.new_zeros(shape).scatter_add(1, docs, is_byte)
        document_bits = document_nats / document_bytes.clamp(min=1.0) / math.log(2.0)
        return bits_per_byte, z, loss, document_bits

    def generate(self, prompts):
        """Greedy bytes after prompts of one length, the logits at each step, and the log probability of each text."""
        b, length = prompts.shape
        p = self.cfg.patch_size
        full = length // p * p

        # whole patches go through the global model at once; the slot before them is empty
        patches = F.pad(prompts[:, :full].view(b, -1, p), (0, 0, 1, 0), value=PAD)
        keep = patches != PAD
        slot_docs = torch.zeros(patches.shape[:2], dtype=torch.long)
        states, global_caches = self.global_model(patches, keep, document_mask(slot_docs))
        context = self.context(states[:, -1:])[:, 0]

        # the bytes of the patch that is not full yet
        current = prompts[:, full:]
        place = current.shape[1]
        x = self.local_model.shifted(current)
        mask = document_mask(torch.zeros(b, place + 1, dtype=torch.long))
        logits, local_caches = self.local_model(x, context[:, : place + 1], mask)
        logits = logits[:, -1]

        done, total = torch.zeros(b, dtype=torch.bool), torch.zeros(b)
        chosen, steps = [], []
        for step in range(self.cfg.new_bytes):
            steps.append(logits)
            allowed = logits.index_fill(1, torch.tensor([PAD]), -torch.inf)
            token = allowed.argmax(dim=-1)
            gain = allowed.log_softmax(dim=-1).gather(1, token[:, None])[:, 0]
            total = total + torch.where(done, 0.0, gain)
            token = torch.where(done, PAD, token)
            done = done | (token == END)
            chosen.append(token)
            if step + 1 == self.cfg.new_bytes:
                break

            current = torch.cat((current, token[:, None]), dim=1)
            place = current.shape[1]
            if place == p:
                # the patch is full: one step of the global model, and the local model starts anew
                keep = torch.ones(b, 1, p, dtype=torch.bool)
                states, global_caches = self.global_model(current[:, None], keep, None, global_caches)
                context = self.context(states)[:, 0]
                current, place, local_caches = current[:, :0], 0, None
                x = self.local_model.shifted(current)
            else:
                x = self.local_model.embed(token)[:, None]
            logits, local_caches = self.local_model(x, context[:, place : place + 1], None, place, local_caches)
            logits = logits[:, 0]

        return torch.stack(chosen, dim=1), torch.stack(steps, dim=1), total

    def forward(self, tokens, prompts):
        """tokens is (batch, length), a stream of documents with padding behind it; prompts is (texts, bytes)."""
        length = tokens.shape[1]
        tokens = F.pad(tokens, (0, -length % self.cfg.patch_size), value=PAD)
        docs = document_ids(tokens)
        logits = self.score(tokens, docs)
        bits_per_byte, z, loss, document_bits = self.losses(logits, tokens, docs)
        generated, steps, total = self.generate(prompts)
        return logits[:, :length], bits_per_byte, z, loss, document_bits, generated, steps, total


def trained_like(net):
    """Values as after training, not as after the initialisation."""
    for name, parameter in net.named_parameters():
        if name.endswith("start") or name.endswith("places"):
            nn.init.normal_(parameter, std=0.6)
    for module in net.modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.15)
        elif isinstance(module, RMSNorm):
            nn.init.uniform_(module.weight, 0.5, 1.6)
        elif isinstance(module, (nn.Linear, nn.Conv1d)):
            nn.init.normal_(module.weight, std=module.weight[0].numel() ** -0.5)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.1)
    nn.init.normal_(net.global_model.encoder.embed.weight, std=0.02)
    nn.init.normal_(net.local_model.embed.weight, std=0.8)
    net.local_model.head.weight.data *= 2.0
    for block in net.local_model.blocks:
        block.mlp[2].weight.data *= 2.5
    return net


def stream(documents, length):
    """Documents behind one another with end tokens between them, cut or padded to a length."""
    ids = []
    for index, document in enumerate(documents):
        ids += ([END] if index else []) + list(document.encode("utf-8"))
    return ids[:length] + [PAD] * (length - len(ids))


def build():
    """The net with the same weights on every run, three packed streams, and two prompts."""
    torch.manual_seed(1305)
    net = trained_like(ByteModel(Config()))
    tokens = [
        stream(["Two birds", "sat on a wall", "one was named Peter."], 45),
        stream(["Rain on the café", "fell all day."], 45),
        stream(["Over the hills and far away,", "Tom he was a piper's son."], 45),
    ]
    return net.eval(), (torch.tensor(tokens), torch.tensor([list(b"The quick brown"), list(b"A stitch in tim")]))
