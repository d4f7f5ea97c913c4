"""Text to audio codes in two stages (VALL-E / SoundStorm style) on a small residual-quantised codec, in PyTorch."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class Config:
    channels, strides, dilations, groups = 8, (2, 4), (1, 3), 4
    num_codebooks, bins, code_dim = 4, 24, 12
    ema_decay, laplace_eps = 0.99, 1.0
    text_vocab, text_kernel, text_layers = 30, 5, 2
    dim, ffn, num_heads, num_kv_heads, ar_depth, nar_depth = 32, 64, 4, 2, 2, 2
    rope_base, max_positions = 10000.0, 64
    label_smoothing, commit_weight = 0.1, 0.25
    max_new, min_new = 10, 3
    top_k, temperature, length_penalty = 12, 0.8, 0.7
    repetition_penalty, repetition_window = 1.6, 8


def length_mask(lengths, size):
    return torch.arange(size, device=lengths.device)[None, :] < lengths[:, None]


def delay_codes(codes, special):
    """Codebook k is written k steps later: (batch, K, T) -> (batch, K, T + K - 1)."""
    last = codes.shape[1] - 1
    return torch.stack([F.pad(codes[:, k], (k, last - k), value=special) for k in range(last + 1)], dim=1)


def undo_delay(grid, frames):
    return torch.stack([grid[:, k, k : k + frames] for k in range(grid.shape[1])], dim=1)


class CausalConv1d(nn.Module):  # weight-normalised
    def __init__(self, in_channels, out_channels, kernel):
        super().__init__()
        self.weight_g = nn.Parameter(torch.ones(out_channels, 1, 1))
        self.weight_v = nn.Parameter(torch.randn(out_channels, in_channels, kernel))
        self.bias = nn.Parameter(torch.zeros(out_channels))

    def forward(self, x):
        weight = self.weight_g * self.weight_v / self.weight_v.norm(dim=(1, 2), keepdim=True)
        return F.conv1d(F.pad(x, (weight.shape[-1] - 1, 0)), weight, self.bias)


class Snake(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1, channels, 1))

    def forward(self, x):
        return x + (self.alpha + 1e-9).reciprocal() * torch.sin(self.alpha * x).pow(2)


class ResidualUnit(nn.Sequential):
    def __init__(self, channels, dilation, groups):
        conv = nn.Conv1d(channels, channels, 3, padding=dilation, dilation=dilation)
        super().__init__(nn.GroupNorm(groups, channels), nn.ELU(), conv, nn.ELU(), nn.Conv1d(channels, channels, 1))

    def forward(self, x):
        return x + super().forward(x)


class EMACodebook(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.decay, self.eps, self.bins = cfg.ema_decay, cfg.laplace_eps, cfg.bins
        self.register_buffer("embed_sum", torch.randn(cfg.bins, cfg.code_dim))
        self.register_buffer("cluster_size", torch.ones(cfg.bins))

    def codebook(self):
        total = self.cluster_size.sum()
        smoothed = (self.cluster_size + self.eps) / (total + self.bins * self.eps) * total
        return self.embed_sum / smoothed.unsqueeze(1)

    def forward(self, x):
        codebook = self.codebook()
        flat = x.reshape(-1, x.shape[-1])
        dist = flat.pow(2).sum(1, keepdim=True) - 2 * flat @ codebook.t() + codebook.pow(2).sum(1)
        index = dist.argmin(dim=1)
        if self.training:
            onehot = F.one_hot(index, self.bins).to(flat.dtype)
            self.cluster_size.lerp_(onehot.sum(0), 1 - self.decay)
            self.embed_sum.lerp_(onehot.t() @ flat.detach(), 1 - self.decay)
        return F.embedding(index, codebook).view_as(x), index.view(x.shape[:-1])


class ResidualVQ(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.layers = nn.ModuleList(EMACodebook(cfg) for _ in range(cfg.num_codebooks))

    def forward(self, z, mask):
        """z is (batch, channels, frames); gives the quantised z, the codes (batch, K, frames) and the commitment."""
        x = z.transpose(1, 2)
        weight = mask.unsqueeze(-1).to(x.dtype)
        residual, quantised, codes, commit = x, torch.zeros_like(x), [], 0.0
        for layer in self.layers:
            nearest, index = layer(residual)
            commit = commit + ((residual - nearest.detach()).pow(2) * weight).sum() / (weight.sum() * x.shape[-1])
            quantised = quantised + nearest
            residual = residual - nearest.detach()
            codes.append(index)
        quantised = x + (quantised - x).detach()  # straight through
        return quantised.transpose(1, 2), torch.stack(codes, dim=1), commit / len(self.layers)

    def decode(self, codes):
        return sum(F.embedding(codes[:, k], layer.codebook()) for k, layer in enumerate(self.layers)).transpose(1, 2)


class Codec(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.hop, self.bins, width = math.prod(cfg.strides), cfg.bins, cfg.channels
        encoder, decoder = [CausalConv1d(1, width, 7)], [CausalConv1d(width, 1, 7), Snake(width)]
        for s, dilation in zip(cfg.strides, cfg.dilations):
            encoder += [ResidualUnit(width, dilation, cfg.groups), nn.ELU()]
            encoder += [nn.Conv1d(width, width * 2, 2 * s + 1, stride=s, padding=s)]
            decoder += [ResidualUnit(width, dilation, cfg.groups)]
            decoder += [nn.ConvTranspose1d(width * 2, width, 2 * s, stride=s, padding=s // 2), Snake(width * 2)]
            width *= 2
        self.encoder = nn.Sequential(*encoder, nn.ELU(), CausalConv1d(width, cfg.code_dim, 3))
        self.quantizer = ResidualVQ(cfg)
        self.decoder = nn.Sequential(CausalConv1d(cfg.code_dim, width, 5), *reversed(decoder))

    def forward(self, wav, wav_lens):
        inside = length_mask(wav_lens, wav.shape[-1]).unsqueeze(1).to(wav.dtype)
        z = self.encoder(wav * inside)
        lens = torch.div(wav_lens + self.hop - 1, self.hop, rounding_mode="floor")
        mask = length_mask(lens, z.shape[-1])
        quantised, codes, commit = self.quantizer(z, mask)
        recon = self.decoder(quantised * mask.unsqueeze(1).to(z.dtype)) * inside
        recon_loss = (recon - wav).abs().mul(inside).sum() / inside.sum()
        return codes.masked_fill(~mask.unsqueeze(1), self.bins), lens, recon, commit, recon_loss

    def decode(self, codes, lens):
        mask = length_mask(lens, codes.shape[-1]).unsqueeze(1)
        wav = self.decoder(self.quantizer.decode(codes.clamp(max=self.bins - 1)) * mask)
        return wav * mask.repeat_interleave(self.hop, dim=2)


class TextPrenet(nn.Module):
    """Embedding and convolutions; what is padding stays zero from layer to layer."""

    def __init__(self, cfg):
        super().__init__()
        dim, kernel = cfg.dim, cfg.text_kernel
        self.embed = nn.Embedding(cfg.text_vocab, dim)
        self.convs = nn.ModuleList()
        for _ in range(cfg.text_layers):
            conv = nn.Conv1d(dim, dim, kernel, padding=kernel // 2)
            self.convs.append(nn.Sequential(conv, nn.BatchNorm1d(dim), nn.ReLU(), nn.Dropout(0.5)))
        self.proj = nn.Linear(dim, dim)

    def forward(self, text, mask):
        pad = ~mask.unsqueeze(1)
        x = self.embed(text).transpose(1, 2).masked_fill(pad, 0.0)
        for conv in self.convs:
            x = conv(x).masked_fill(pad, 0.0)
        return self.proj(x.transpose(1, 2))


def apply_rotary(x, cos, sin):
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


class CachedAttention(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = cfg.num_heads, cfg.num_kv_heads, cfg.dim // cfg.num_heads
        self.qkv = nn.Linear(cfg.dim, (self.heads + 2 * self.kv_heads) * self.head_dim)
        self.out = nn.Linear(cfg.dim, cfg.dim)

    def forward(self, x, cos, sin, mask, past=None):
        qkv = self.qkv(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        q, k, v = qkv.split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        q, k = apply_rotary(q, cos, sin), apply_rotary(k, cos, sin)
        if past is not None:
            k, v = torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)
        present = (k, v)
        k, v = (t.repeat_interleave(self.heads // self.kv_heads, dim=1) for t in present)
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)
        weights = scores.masked_fill(~mask, float("-inf")).softmax(dim=-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2)), present


class ARBlock(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(cfg.dim, eps=1e-6), nn.RMSNorm(cfg.dim, eps=1e-6)
        self.attn = CachedAttention(cfg)
        self.w_in, self.w_out = nn.Linear(cfg.dim, 2 * cfg.ffn, bias=False), nn.Linear(cfg.ffn, cfg.dim, bias=False)

    def forward(self, x, cos, sin, mask, past=None):
        attended, present = self.attn(self.norm1(x), cos, sin, mask, past)
        x = x + attended
        gate, value = self.w_in(self.norm2(x)).chunk(2, dim=-1)
        return x + self.w_out(F.silu(gate) * value), present


class FirstStage(nn.Module):
    """Autoregressive over the first codebook, after the text; positions run on over the text's true length."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg, self.eos, self.bos, head_dim = cfg, cfg.bins, cfg.bins + 1, cfg.dim // cfg.num_heads
        self.embed = nn.Embedding(cfg.bins + 2, cfg.dim)
        inv_freq = 1.0 / cfg.rope_base ** (torch.arange(0, head_dim, 2).float() / head_dim)
        self.register_buffer("inv_freq", inv_freq, persistent=False)
        self.blocks = nn.ModuleList(ARBlock(cfg) for _ in range(cfg.ar_depth))
        self.norm = nn.RMSNorm(cfg.dim, eps=1e-6)
        self.head = nn.Linear(cfg.dim, cfg.bins + 1)

    def run(self, x, positions, mask, cache=None):
        angles = positions[:, None, :, None].float() * self.inv_freq
        presents = []
        for index, block in enumerate(self.blocks):
            x, present = block(x, angles.cos(), angles.sin(), mask, None if cache is None else cache[index])
            presents.append(present)
        return self.head(self.norm(x)), presents

    def prefix(self, text, text_mask, tokens):
        """The whole sequence, its positions, and who sees whom: text sees all text, audio also the audio before."""
        (b, n, _), length = text.shape, tokens.shape[1] + 1
        tokens = F.pad(tokens, (1, 0), value=self.bos)
        steps = torch.arange(n + length)
        audio_positions = text_mask.sum(1, keepdim=True) + torch.arange(length)
        positions = torch.cat((steps[:n].expand(b, n), audio_positions), dim=1)
        sees = (steps[None, :] <= steps[:, None]) | (steps[None, :] < n)
        valid = F.pad(text_mask, (0, length), value=True)
        return torch.cat((text, self.embed(tokens)), dim=1), positions, sees[None, None] & valid[:, None, None, :]

    def forward(self, text, text_mask, tokens, lens):
        logits = self.run(*self.prefix(text, text_mask, tokens))[0][:, text.shape[1] :]
        targets = F.pad(tokens, (0, 1), value=self.eos)
        inside = length_mask(lens + 1, targets.shape[1])
        wanted = targets.masked_fill(~inside, -100)
        loss = F.cross_entropy(logits.transpose(1, 2), wanted, label_smoothing=self.cfg.label_smoothing)
        hits = (logits.topk(self.cfg.top_k, dim=-1).indices == targets.unsqueeze(-1)).any(-1)
        return logits, loss, (hits & inside).sum() / inside.sum()

    def filter_logits(self, logits, history, step):
        """No end too early, a penalty on what was lately said, the temperature, and only the best k."""
        cfg = self.cfg
        if step < cfg.min_new:
            logits = logits.index_fill(1, torch.tensor([self.eos]), float("-inf"))
        said = torch.zeros_like(logits, dtype=torch.bool).scatter(1, history[:, -cfg.repetition_window :], True)
        punished = torch.where(logits > 0, logits / cfg.repetition_penalty, logits * cfg.repetition_penalty)
        logits = torch.where(said, punished, logits) / cfg.temperature
        return logits.masked_fill(logits < logits.topk(cfg.top_k, dim=-1).values[:, -1:], float("-inf"))

    @torch.no_grad()
    def generate(self, text, text_mask, prompt):
        """Greedy; gives the tokens after the prompt, their log-probabilities, their counts and the rows' scores."""
        x, positions, mask = self.prefix(text, text_mask, prompt)
        logits, cache = self.run(x, positions, mask)
        position, keys = positions[:, -1:], mask[:, :, -1:]
        history, finished, logps = prompt, torch.zeros(len(prompt), dtype=torch.bool), []
        for step in range(self.cfg.max_new):
            log_probs = F.log_softmax(self.filter_logits(logits[:, -1], history, step), dim=-1)
            logp, token = log_probs.max(dim=-1)
            token = token.masked_fill(finished, self.eos)
            logps.append(logp.masked_fill(finished, 0.0))
            history = torch.cat((history, token[:, None]), dim=1)
            finished = finished | (token == self.eos)
            position, keys = position + 1, F.pad(keys, (0, 1), value=True)
            logits, cache = self.run(self.embed(token[:, None]), position, keys, cache)
        tokens, logps = history[:, prompt.shape[1] :], torch.stack(logps, dim=1)
        counts = (tokens != self.eos).sum(1)
        spent = (counts + 1).clamp(max=self.cfg.max_new)  # the end counts too
        return tokens, logps, counts, logps.sum(1) / spent**self.cfg.length_penalty


class SinePosition(nn.Module):
    def __init__(self, dim, size):
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1))
        angles = torch.arange(size)[:, None] * torch.exp(torch.arange(0, dim, 2) * (-math.log(10000.0) / dim))
        self.register_buffer("table", torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1), persistent=False)

    def forward(self, x):
        return x + self.alpha * self.table[: x.shape[1]]


class AdaptiveNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim, elementwise_affine=False)
        self.proj = nn.Linear(dim, 2 * dim)

    def forward(self, x, level):
        scale, shift = self.proj(F.silu(level)).chunk(2, dim=-1)
        return self.norm(x) * (1 + scale) + shift


class NARBlock(nn.Module):
    def __init__(self, dim, heads, ffn):
        super().__init__()
        self.norm1, self.norm2 = AdaptiveNorm(dim), AdaptiveNorm(dim)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(dim, ffn), nn.GELU(), nn.Linear(ffn, dim))

    def forward(self, x, level, padding):
        h = self.norm1(x, level)
        x = x + self.attn(h, h, h, key_padding_mask=padding, need_weights=False)[0]
        return x + self.mlp(self.norm2(x, level))


class SecondStage(nn.Module):
    """All frames of one codebook at a time, on the delayed grid, from the codebooks before and the prompt."""

    def __init__(self, cfg):
        super().__init__()
        self.bins, self.books, dim = cfg.bins, cfg.num_codebooks, cfg.dim
        self.embeds = nn.ModuleList(nn.Embedding(cfg.bins + 1, dim) for _ in range(self.books))
        self.text_position = SinePosition(dim, cfg.max_positions)
        self.audio_position = SinePosition(dim, cfg.max_positions)
        self.level_embed, self.level_norm = nn.Embedding(self.books - 1, dim), nn.LayerNorm(dim)
        self.blocks = nn.ModuleList(NARBlock(dim, cfg.num_heads, cfg.ffn) for _ in range(cfg.nar_depth))
        self.norm = AdaptiveNorm(dim)

    def forward(self, text, text_mask, grid, lens, level, prompt_frames):
        """Logits (batch, steps, bins) of one codebook on the delayed grid; its head is its embedding."""
        steps, book = grid.shape[2], torch.arange(self.books)[:, None]
        known = (book < level) | (torch.arange(steps) - book < prompt_frames)
        shown = grid.masked_fill(~known, self.bins)
        audio = sum(embed(shown[:, k]) for k, embed in enumerate(self.embeds))
        x = torch.cat((self.text_position(text), self.audio_position(audio)), dim=1)
        keys = torch.cat((text_mask, length_mask(lens + self.books - 1, steps)), dim=1)
        style = self.level_norm(self.level_embed(torch.tensor([[level - 1]])))
        for block in self.blocks:
            x = block(x, style, ~keys)
        return F.linear(self.norm(x, style)[:, text.shape[1] :], self.embeds[level].weight[: self.bins])

    @torch.no_grad()
    def fill(self, text, text_mask, codes, lens, prompt_frames):
        grid = delay_codes(codes, self.bins)
        for level in range(1, self.books):
            best = self(text, text_mask, grid, lens, level, prompt_frames).argmax(dim=-1)
            frame = torch.arange(grid.shape[2])[None, :] - level
            wanted = (frame >= prompt_frames) & (frame < lens[:, None])
            grid[:, level] = torch.where(wanted, best, grid[:, level])
        return undo_delay(grid, codes.shape[2])


class CodecLM(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.codec, self.text_prenet = Codec(cfg), TextPrenet(cfg)
        self.ar, self.nar = FirstStage(cfg), SecondStage(cfg)

    def nar_loss(self, text, text_mask, codes, lens, prompt_frames):
        frames, levels = codes.shape[2], range(1, self.cfg.num_codebooks)
        grid = delay_codes(codes, self.cfg.bins)
        wanted = length_mask(lens, frames) & (torch.arange(frames) >= prompt_frames)
        all_logits, total = [], 0.0
        for level in levels:
            logits = self.nar(text, text_mask, grid, lens, level, prompt_frames)[:, level : level + frames]
            targets = codes[:, level].clamp(max=self.cfg.bins - 1)
            nll = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
            total = total + (nll * wanted).sum() / wanted.sum()
            all_logits.append(logits)
        return torch.stack(all_logits, dim=1), total / len(levels)

    def forward(self, wav, wav_lens, text, text_lens, prompt_frames=5):
        text_mask = length_mask(text_lens, text.shape[1])
        memory = self.text_prenet(text, text_mask)
        codes, lens, recon, commit, recon_loss = self.codec(wav, wav_lens)
        ar_logits, ar_loss, ar_accuracy = self.ar(memory, text_mask, codes[:, 0], lens)
        nar_logits, nar_loss = self.nar_loss(memory, text_mask, codes, lens, prompt_frames)
        loss = ar_loss + nar_loss + recon_loss + self.cfg.commit_weight * commit
        losses = torch.stack((loss, ar_loss, nar_loss, recon_loss, commit, ar_accuracy))

        prompt = codes[:, :, :prompt_frames]
        tokens, logps, counts, scores = self.ar.generate(memory, text_mask, prompt[:, 0])
        drafted = F.pad(prompt, (0, tokens.shape[1]), value=self.cfg.bins)
        drafted[:, 0, prompt_frames:] = tokens
        lens = counts + prompt_frames
        spoken = self.nar.fill(memory, text_mask, drafted, lens, prompt_frames)
        decoded = {"spoken": spoken, "logps": logps, "scores": scores, "wav": self.codec.decode(spoken, lens)}
        return {"codes": codes, "recon": recon, "ar": ar_logits, "nar": nar_logits, "losses": losses, **decoded}


def trained_like(net):
    for name, parameter in net.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter, std=0.1)
        elif "norm" in name or parameter.ndim < 2 or "alpha" in name or "weight_g" in name:
            nn.init.uniform_(parameter, 0.6, 1.4)
    for name, module in net.named_modules():
        if isinstance(module, nn.BatchNorm1d):
            nn.init.normal_(module.running_mean, std=0.3)
            nn.init.uniform_(module.running_var, 0.3, 1.2)
        elif isinstance(module, (nn.Linear, nn.Conv1d)):
            nn.init.normal_(module.weight, std=(0.4 if "norm" in name else 1.3) * module.weight[0].numel() ** -0.5)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.4)
    for k, layer in enumerate(net.codec.quantizer.layers):
        nn.init.uniform_(layer.cluster_size, 2.0, 30.0)
        layer.embed_sum.mul_(layer.cluster_size.unsqueeze(1) * 0.8**k)
    net.ar.head.bias.data[:-1] -= 2.2
    nn.init.normal_(net.nar.level_embed.weight, std=0.01)
    return net.eval()


def build():
    """The net with the same weights on every run, and three sentences of unlike lengths."""
    torch.manual_seed(123)
    net = trained_like(CodecLM(Config()))
    time = torch.arange(160) / 160
    tones = torch.sin(2 * math.pi * torch.tensor([[[5.0]], [[9.0]], [[14.0]]]) * time)
    wav = 0.5 * tones + 0.3 * torch.randn(3, 1, 160)
    text = torch.randint(1, 30, (3, 9))
    text_lens = torch.tensor([7, 9, 5])
    return net, (wav, torch.tensor([160, 107, 131]), text * length_mask(text_lens, 9), text_lens)
