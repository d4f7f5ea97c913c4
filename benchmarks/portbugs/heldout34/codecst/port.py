"""The two-stage codec language model in MindSpore: codec, first codebook by AR, the other codebooks by NAR."""

from __future__ import annotations

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

NEG = -1e9

HPARAMS = dict(
    channels=8, strides=(2, 4), dilations=(1, 3), code_dim=12, n_q=4, bins=24,
    vocab=30, width=32, heads=4, kv_heads=2, hidden=64, depth=2, max_len=64,
    smoothing=0.1, max_new=10, min_new=3, top_k=12, temperature=0.8, penalty=1.6, window=8, length_power=0.7,
)


def param(shape, name, trainable=True):
    return Parameter(Tensor(np.ones(shape, np.float32)), name=name, requires_grad=trainable)


def sequence_mask(lengths, size):
    return ops.arange(size).reshape(1, size) < lengths.reshape(-1, 1)


def masked_mean(values, mask):
    mask = mask.astype(values.dtype)
    return (values * mask).sum() / mask.sum()


# ---- delay pattern: codebook k starts k steps late -------------------------------------------------------------------


def to_delayed(codes, filler):
    batch, n_q, frames = codes.shape
    steps = frames + n_q - 1
    frame = np.arange(steps)[None, :] - np.arange(n_q)[:, None]
    index = np.broadcast_to(np.clip(frame, 0, frames - 1), (batch, n_q, steps)).astype(np.int32)
    outside = (frame < 0) | (frame >= frames)
    return ops.masked_fill(ops.gather_elements(codes, 2, Tensor(index)), Tensor(outside), filler)


def from_delayed(grid, frames):
    batch, n_q, _ = grid.shape
    columns = np.arange(frames)[None, :] + np.arange(n_q)[:, None]
    index = np.broadcast_to(columns[None], (batch, n_q, frames)).astype(np.int32)
    return ops.gather_elements(grid, 2, Tensor(index))


# ---- codec -----------------------------------------------------------------------------------------------------------


class WNConv(nn.Cell):
    """Causal convolution with weight normalisation, magnitude and direction being kept apart."""

    def __init__(self, in_channels, out_channels, kernel):
        super().__init__()
        self.kernel = kernel
        self.weight_g = param((out_channels, 1, 1), "weight_g")
        self.weight_v = param((out_channels, in_channels, kernel), "weight_v")
        self.bias = param((out_channels,), "bias")

    def construct(self, x):
        length = ops.sqrt(ops.square(self.weight_v).sum(axis=(1, 2), keepdims=True))
        x = ops.pad(x, (self.kernel - 1, 0))
        return ops.conv1d(x, self.weight_v * (self.weight_g / length), self.bias)


class SnakeBeta(nn.Cell):
    def __init__(self, channels):
        super().__init__()
        self.alpha = param((1, channels, 1), "alpha")

    def construct(self, x):
        return x + ops.square(ops.sin(x * self.alpha)) / (self.alpha + 1e-9)


class ResBlock(nn.Cell):
    def __init__(self, channels, dilation):
        super().__init__()
        self.norm = nn.GroupNorm(4, channels)
        self.conv1 = nn.Conv1d(channels, channels, 3, pad_mode="same", dilation=dilation, has_bias=True)
        self.conv2 = nn.Conv1d(channels, channels, 1, has_bias=True)

    def construct(self, x):
        return x + self.conv2(ops.elu(self.conv1(ops.elu(self.norm(x)))))


class EncoderStage(nn.Cell):
    def __init__(self, channels, stride, dilation):
        super().__init__()
        self.block = ResBlock(channels, dilation)
        self.down = nn.Conv1d(channels, 2 * channels, 2 * stride + 1, stride=stride, pad_mode="pad", padding=stride,
                              has_bias=True)

    def construct(self, x):
        return self.down(ops.elu(self.block(x)))


class DecoderStage(nn.Cell):
    def __init__(self, channels, stride, dilation):
        super().__init__()
        self.snake = SnakeBeta(channels)
        self.up = nn.Conv1dTranspose(channels, channels // 2, 2 * stride, stride=stride, pad_mode="pad",
                                     padding=stride // 2, has_bias=True)
        self.block = ResBlock(channels // 2, dilation)

    def construct(self, x):
        return self.block(self.up(self.snake(x)))


class Codebook(nn.Cell):
    """The statistics of one codebook; the vectors are what they say they are."""

    def __init__(self, bins, dim):
        super().__init__()
        self.embed_sum = param((bins, dim), "embed_sum", False)
        self.cluster_size = param((bins,), "cluster_size", False)

    def construct(self):
        total = self.cluster_size.sum()
        counts = (self.cluster_size + 1.0) * (total / (total + self.cluster_size.shape[0]))
        return self.embed_sum / counts.expand_dims(1)


class NeuralCodec(nn.Cell):
    def __init__(self, hp):
        super().__init__()
        self.bins = hp["bins"]
        self.hop = int(np.prod(hp["strides"]))
        width = hp["channels"]
        self.enc_first = WNConv(1, width, 7)
        down, up = [], []
        for stride, dilation in zip(hp["strides"], hp["dilations"]):
            down.append(EncoderStage(width, stride, dilation))
            width = 2 * width
        self.enc_stages = nn.CellList(down)
        self.enc_last = WNConv(width, hp["code_dim"], 3)
        self.books = nn.CellList([Codebook(hp["bins"], hp["code_dim"]) for _ in range(hp["n_q"])])
        self.dec_first = WNConv(hp["code_dim"], width, 5)
        for stride, dilation in zip(hp["strides"][::-1], hp["dilations"][::-1]):
            up.append(DecoderStage(width, stride, dilation))
            width = width // 2
        self.dec_stages = nn.CellList(up)
        self.dec_snake = SnakeBeta(width)
        self.dec_last = WNConv(width, 1, 7)

    def encode(self, wav):
        x = self.enc_first(wav)
        for stage in self.enc_stages:
            x = stage(x)
        return self.enc_last(ops.elu(x))

    def synthesise(self, z):
        x = self.dec_first(z)
        for stage in self.dec_stages:
            x = stage(x)
        return self.dec_last(self.dec_snake(x))

    def quantise(self, z, mask):
        """(batch, frames, channels) to its sum of code vectors, the codes and the commitment loss."""
        residual, total, codes, commit = z, ops.zeros_like(z), [], 0.0
        for book in self.books:
            table = book()
            cross = ops.matmul(residual, table.T)
            distance = ops.square(table).sum(axis=1) - 2.0 * cross
            index = ops.argmin(distance, axis=-1)
            nearest = ops.gather(table, index, 0)
            error = ops.square(residual - ops.stop_gradient(nearest)).mean(axis=-1)
            commit = commit + masked_mean(error, mask)
            total = total + nearest
            residual = residual - ops.stop_gradient(nearest)
            codes.append(index.astype(ms.int32))
        total = z + ops.stop_gradient(total - z)
        return total, ops.stack(codes, axis=1), commit / len(self.books)

    def construct(self, wav, wav_lens):
        audible = sequence_mask(wav_lens, wav.shape[-1]).expand_dims(1)
        z = self.encode(wav * audible.astype(wav.dtype)).swapaxes(1, 2)
        lens = (wav_lens.astype(ms.int32) + self.hop - 1) // self.hop
        mask = sequence_mask(lens, z.shape[1])
        quantised, codes, commit = self.quantise(z, mask)
        quantised = quantised * mask.expand_dims(-1).astype(z.dtype)
        recon = self.synthesise(quantised.swapaxes(1, 2)) * audible.astype(wav.dtype)
        codes = ops.masked_fill(codes, ops.logical_not(mask.expand_dims(1)), self.bins)
        return codes, lens, recon, commit, masked_mean(ops.abs(recon - wav), audible)

    def to_wave(self, codes, lens):
        mask = sequence_mask(lens, codes.shape[-1]).astype(ms.float32).expand_dims(1)
        codes = ops.minimum(codes, self.bins - 1)
        z = 0.0
        for k, book in enumerate(self.books):
            z = z + ops.gather(book(), codes[:, k], 0)
        wav = self.synthesise(z.swapaxes(1, 2) * mask)
        return wav * mask.repeat_interleave(self.hop, 2)


# ---- text ------------------------------------------------------------------------------------------------------------


class TextEncoder(nn.Cell):
    def __init__(self, vocab, width):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.conv0 = nn.Conv1d(width, width, 5, pad_mode="pad", padding=2, has_bias=True)
        self.bn0 = nn.BatchNorm1d(width)
        self.conv1 = nn.Conv1d(width, width, 5, pad_mode="pad", padding=2, has_bias=True)
        self.bn1 = nn.BatchNorm1d(width)
        self.dropout = nn.Dropout(p=0.5)
        self.proj = nn.Dense(width, width)

    def construct(self, text, mask):
        mask = mask.expand_dims(1).astype(ms.float32)
        x = self.embed(text).swapaxes(1, 2) * mask
        x = self.dropout(ops.relu(self.bn0(self.conv0(x)))) * mask
        x = self.dropout(ops.relu(self.bn1(self.conv1(x)))) * mask
        return self.proj(x.swapaxes(1, 2))


# ---- first stage -----------------------------------------------------------------------------------------------------


class RootMeanSquare(nn.Cell):
    def __init__(self, width):
        super().__init__()
        self.weight = param((width,), "weight")

    def construct(self, x):
        return x * ops.rsqrt(ops.square(x).mean(axis=-1, keep_dims=True) + 1e-6) * self.weight


def rotary_tables(head_width, length, base=10000.0):
    """Cosines and sines, (length, head_width / 2)."""
    freq = base ** (-np.arange(0, head_width, 2) / head_width)
    angles = np.arange(length)[:, None] * freq[None, :]
    return Tensor(np.cos(angles), ms.float32), Tensor(np.sin(angles), ms.float32)


def rotate(x, cos, sin):
    pairs = x.reshape(x.shape[:-1] + (x.shape[-1] // 2, 2))
    first, second = pairs[..., 0], pairs[..., 1]
    return ops.stack((first * cos - second * sin, second * cos + first * sin), axis=-1).reshape(x.shape)


class DecoderLayer(nn.Cell):
    """Grouped-query attention with a cache, and a gated feed-forward."""

    def __init__(self, width, heads, kv_heads, hidden):
        super().__init__()
        self.heads, self.kv_heads, self.head_width = heads, kv_heads, width // heads
        self.attn_norm = RootMeanSquare(width)
        self.mlp_norm = RootMeanSquare(width)
        self.wq = nn.Dense(width, heads * self.head_width)
        self.wk = nn.Dense(width, kv_heads * self.head_width)
        self.wv = nn.Dense(width, kv_heads * self.head_width)
        self.wo = nn.Dense(width, width)
        self.w_in = nn.Dense(width, 2 * hidden, has_bias=False)
        self.w_out = nn.Dense(hidden, width, has_bias=False)

    def attention(self, x, cos, sin, mask, cache):
        b, length, width = x.shape
        query = self.wq(x).reshape(b, length, self.heads, -1).swapaxes(1, 2)
        key = self.wk(x).reshape(b, length, self.kv_heads, -1).swapaxes(1, 2)
        value = self.wv(x).reshape(b, length, self.kv_heads, -1).swapaxes(1, 2)
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        if cache is not None:
            key = ops.cat((cache[0], key), axis=2)
            value = ops.cat((cache[1], value), axis=2)
        # each key head serves a group of query heads
        query = query.reshape(b, self.kv_heads, self.heads // self.kv_heads, length, self.head_width)
        logits = ops.matmul(query, key.expand_dims(2).swapaxes(-1, -2)) * self.head_width**-0.5
        logits = ops.masked_fill(logits, ops.logical_not(mask.expand_dims(1)), NEG)
        out = ops.matmul(ops.softmax(logits, axis=-1), value.expand_dims(2))
        out = out.reshape(b, self.heads, length, self.head_width).swapaxes(1, 2).reshape(b, length, width)
        return self.wo(out), (key, value)

    def construct(self, x, cos, sin, mask, cache=None):
        out, cache = self.attention(self.attn_norm(x), cos, sin, mask, cache)
        x = x + out
        inner = self.w_in(self.mlp_norm(x))
        half = inner.shape[-1] // 2
        return x + self.w_out(ops.silu(inner[..., :half]) * inner[..., half:]), cache


class FirstCodebookLM(nn.Cell):
    """Text, then the codes of the first codebook, one after the other."""

    def __init__(self, hp):
        super().__init__()
        width = hp["width"]
        self.bos = hp["bins"] + 1
        self.embed = nn.Embedding(hp["bins"] + 2, width)
        self.cos, self.sin = rotary_tables(width // hp["heads"], hp["max_len"])
        self.layers = nn.CellList(
            [DecoderLayer(width, hp["heads"], hp["kv_heads"], hp["hidden"]) for _ in range(hp["depth"])]
        )
        self.norm = RootMeanSquare(width)
        self.head = nn.Dense(width, hp["bins"] + 1)

    def layout(self, text_mask, length):
        """Positions (batch, all) and the mask (batch, 1, all, all) of a text followed by that many codes."""
        b, n = text_mask.shape
        text_lens = text_mask.sum(axis=1).astype(ms.int32).reshape(b, 1)
        in_text = ops.broadcast_to(ops.arange(n).reshape(1, n).astype(ms.int32), (b, n))
        in_audio = text_lens + ops.arange(length).reshape(1, length).astype(ms.int32)
        allowed = np.tril(np.ones((n + length, n + length), bool))
        allowed[:, :n] = True
        valid = ops.cat((text_mask, ops.ones((b, length), ms.bool_)), axis=1)
        mask = ops.logical_and(Tensor(allowed)[None, None], valid.reshape(b, 1, 1, n + length))
        return ops.cat((in_text, in_audio), axis=1), mask

    def construct(self, x, positions, mask, caches=None):
        cos = ops.gather(self.cos, positions, 0).expand_dims(1)
        sin = ops.gather(self.sin, positions, 0).expand_dims(1)
        new_caches = []
        for i, layer in enumerate(self.layers):
            x, cache = layer(x, cos, sin, mask, caches[i] if caches else None)
            new_caches.append(cache)
        return self.head(self.norm(x)), new_caches

    def start(self, text, text_mask, codes):
        bos = ops.full((codes.shape[0], 1), self.bos, dtype=codes.dtype)
        codes = ops.cat((bos, codes), axis=1)
        positions, mask = self.layout(text_mask, codes.shape[1])
        logits, caches = self(ops.cat((text, self.embed(codes)), axis=1), positions, mask)
        return logits[:, text.shape[1] :], caches, positions[:, -1:], mask[:, :, -1:]


# ---- second stage ----------------------------------------------------------------------------------------------------


def sinusoids(length, width):
    rates = np.exp(np.arange(0, width, 2) * (-np.log(10000.0) / width))
    angles = np.arange(length)[:, None] * rates[None, :]
    table = np.zeros((length, width), np.float32)
    table[:, 0::2] = np.sin(angles)
    table[:, 1::2] = np.cos(angles)
    return Tensor(table)


class StyleNorm(nn.Cell):
    """Layer norm with gain and offset that the level gives."""

    def __init__(self, width):
        super().__init__()
        self.width = width
        self.to_style = nn.Dense(width, 2 * width)

    def construct(self, x, style):
        style = self.to_style(ops.silu(style))
        gain, offset = style[..., : self.width], style[..., self.width :]
        centred = x - x.mean(axis=-1, keep_dims=True)
        normed = centred / ops.sqrt(ops.square(centred).mean(axis=-1, keep_dims=True) + 1e-5)
        return normed * (1.0 + gain) + offset


class EncoderLayer(nn.Cell):
    def __init__(self, width, heads, hidden):
        super().__init__()
        self.heads = heads
        self.norm1 = StyleNorm(width)
        self.norm2 = StyleNorm(width)
        self.in_proj_weight = param((3 * width, width), "in_proj_weight")
        self.in_proj_bias = param((3 * width,), "in_proj_bias")
        self.out_proj = nn.Dense(width, width)
        self.fc1 = nn.Dense(width, hidden)
        self.fc2 = nn.Dense(hidden, width)

    def construct(self, x, style, keys):
        b, length, width = x.shape
        h = self.norm1(x, style)
        qkv = ops.matmul(h, self.in_proj_weight.T) + self.in_proj_bias
        q, k, v = qkv.reshape(b, length, 3, self.heads, width // self.heads).transpose(2, 0, 3, 1, 4)
        logits = ops.matmul(q, k.swapaxes(-1, -2)) / np.sqrt(width // self.heads).item()
        logits = logits + (1.0 - keys.astype(x.dtype)).reshape(b, 1, 1, length) * NEG
        out = ops.matmul(ops.softmax(logits, axis=-1), v).swapaxes(1, 2).reshape(b, length, width)
        x = x + self.out_proj(out)
        return x + self.fc2(ops.gelu(self.fc1(self.norm2(x, style)), approximate="none"))


class OtherCodebooks(nn.Cell):
    """Gives the logits of one codebook for all steps of the delayed grid."""

    def __init__(self, hp):
        super().__init__()
        width = hp["width"]
        self.n_q, self.bins = hp["n_q"], hp["bins"]
        self.embeds = nn.CellList([nn.Embedding(hp["bins"] + 1, width) for _ in range(hp["n_q"])])
        self.text_alpha = param((1,), "text_alpha")
        self.audio_alpha = param((1,), "audio_alpha")
        self.positions = sinusoids(hp["max_len"], width)
        self.level_embed = nn.Embedding(hp["n_q"] - 1, width)
        self.level_norm = nn.LayerNorm((width,), epsilon=1e-5)
        self.layers = nn.CellList([EncoderLayer(width, hp["heads"], hp["hidden"]) for _ in range(hp["depth"])])
        self.norm = StyleNorm(width)

    def construct(self, text, text_mask, grid, lens, level, prompt):
        n, steps = text.shape[1], grid.shape[2]
        audio = 0.0
        for k, embed in enumerate(self.embeds):
            codes = grid[:, k]
            if k >= level:  # of this codebook and those after it only the prompt is known
                known = Tensor(np.arange(steps) < prompt + k).reshape(1, steps)
                codes = ops.masked_fill(codes, ops.logical_not(known), self.bins)
            audio = audio + embed(codes)
        text = text + self.text_alpha * self.positions[:n]
        audio = audio + self.audio_alpha * self.positions[:steps]
        keys = ops.cat((text_mask, sequence_mask(lens + (self.n_q - 1), steps)), axis=1)
        style = self.level_norm(self.level_embed(Tensor([[level - 1]], ms.int32)))
        x = ops.cat((text, audio), axis=1)
        for layer in self.layers:
            x = layer(x, style, keys)
        x = self.norm(x, style)[:, n:]
        return ops.matmul(x, self.embeds[level].embedding_table[: self.bins].T)


# ---- the whole -------------------------------------------------------------------------------------------------------


class TextToAudio(nn.Cell):
    def __init__(self, hp):
        super().__init__()
        self.hp = hp
        self.eos = hp["bins"]
        self.codec = NeuralCodec(hp)
        self.text_encoder = TextEncoder(hp["vocab"], hp["width"])
        self.first = FirstCodebookLM(hp)
        self.others = OtherCodebooks(hp)
        never = np.zeros((1, hp["bins"] + 1), np.float32)
        never[0, self.eos] = -np.inf
        self.no_end = Tensor(never)

    def first_loss(self, logits, codes, lens):
        """Cross entropy with smoothed labels, and how often the code is among the best ones."""
        b, frames = codes.shape
        targets = ops.cat((codes, ops.full((b, 1), self.eos, dtype=codes.dtype)), axis=1).expand_dims(-1)
        inside = sequence_mask(lens + 1, frames + 1)
        logp = ops.log_softmax(logits, axis=-1)
        nll = -ops.gather_elements(logp, 2, targets).squeeze(-1)
        smooth = -logp.mean(axis=-1)
        eps = self.hp["smoothing"]
        loss = masked_mean((1.0 - eps) * nll + eps * smooth, inside)
        best = ops.topk(logits, self.hp["top_k"])[1]
        hits = (best == targets).astype(ms.float32).sum(axis=-1)
        return loss, masked_mean(hits, inside)

    def others_loss(self, text, text_mask, codes, lens, prompt):
        b, n_q, frames = codes.shape
        grid = to_delayed(codes, self.eos)
        wanted = ops.logical_and(sequence_mask(lens, frames), ops.arange(frames).reshape(1, frames) >= prompt)
        collected, losses = [], []
        for level in range(1, n_q):
            logits = self.others(text, text_mask, grid, lens, level, prompt)[:, level : level + frames]
            target = ops.minimum(codes[:, level], self.eos - 1)
            nll = -ops.gather_elements(ops.log_softmax(logits, axis=-1), 2, target.expand_dims(-1)).squeeze(-1)
            losses.append(masked_mean(nll, wanted))
            collected.append(logits)
        return ops.stack(collected, axis=1), ops.stack(losses).mean()

    def pick(self, logits, spoken, step):
        """The best code and its log-probability among those that the filters leave."""
        hp = self.hp
        if step < hp["min_new"]:
            logits = logits + self.no_end
        recent = ops.one_hot(spoken[:, -hp["window"] :], self.eos + 1, Tensor(1.0), Tensor(0.0)).sum(axis=1)
        lowered = ops.where(logits > 0, logits / hp["penalty"], logits * hp["penalty"])
        logits = ops.where(recent > 0, lowered, logits) / hp["temperature"]
        worst = ops.topk(logits, hp["top_k"])[0][:, -1:]
        logits = ops.masked_fill(logits, logits < worst, NEG)
        logp = ops.log_softmax(logits, axis=-1)
        return ops.argmax(logp, dim=-1).astype(ms.int32), logp.max(axis=-1)

    def speak(self, text, text_mask, prompt):
        b, given = prompt.shape
        logits, caches, position, keys = self.first.start(text, text_mask, prompt)
        spoken, done, logps = prompt, ops.zeros((b,), ms.bool_), []
        one_more = ops.ones((b, 1, 1, 1), ms.bool_)
        for step in range(self.hp["max_new"]):
            code, logp = self.pick(logits[:, -1], spoken, step)
            code = ops.where(done, ops.full_like(code, self.eos), code)
            logps.append(ops.where(done, ops.zeros_like(logp), logp))
            spoken = ops.cat((spoken, code.reshape(b, 1)), axis=1)
            done = ops.logical_or(done, code == self.eos)
            if step + 1 == self.hp["max_new"]:
                break
            position = position + 1
            keys = ops.cat((keys, one_more), axis=-1)
            logits, caches = self.first(self.first.embed(code.reshape(b, 1)), position, keys, caches)
        spoken, logps = spoken[:, given:], ops.stack(logps, axis=1)
        counts = (spoken != self.eos).sum(axis=1).astype(ms.int32)
        steps = ops.minimum(counts + 1, self.hp["max_new"]).astype(ms.float32)
        return spoken, logps, counts, logps.sum(axis=1) / ops.pow(steps, self.hp["length_power"])

    def complete(self, text, text_mask, codes, lens, prompt):
        """Codebook by codebook on the delayed grid, and back."""
        b, n_q, frames = codes.shape
        rows = list(to_delayed(codes, self.eos).unbind(1))
        at = ops.arange(rows[0].shape[1]).reshape(1, -1)
        for level in range(1, n_q):
            grid = ops.stack(rows, axis=1)
            best = ops.argmax(self.others(text, text_mask, grid, lens, level, prompt), dim=-1).astype(codes.dtype)
            wanted = ops.logical_and(at >= prompt + level, at < lens.reshape(b, 1) + level)
            rows[level] = ops.where(wanted, best, rows[level])
        return from_delayed(ops.stack(rows, axis=1), frames)

    def construct(self, wav, wav_lens, text, text_lens, prompt=5):
        text_mask = sequence_mask(text_lens, text.shape[1])
        memory = self.text_encoder(text.astype(ms.int32), text_mask)
        codes, lens, recon, commit, recon_loss = self.codec(wav, wav_lens)
        first_logits = self.first.start(memory, text_mask, codes[:, 0])[0]
        first_loss, accuracy = self.first_loss(first_logits, codes[:, 0], lens)
        other_logits, other_loss = self.others_loss(memory, text_mask, codes, lens, prompt)
        total = first_loss + other_loss + recon_loss + 0.25 * commit
        losses = ops.stack((total, first_loss, other_loss, recon_loss, commit, accuracy))

        said, logps, counts, scores = self.speak(memory, text_mask, codes[:, 0, :prompt])
        b, n_q, _ = codes.shape
        unknown = ops.full((b, n_q - 1, said.shape[1]), self.eos, dtype=codes.dtype)
        draft = ops.cat((codes[:, :, :prompt], ops.cat((said.expand_dims(1), unknown), axis=1)), axis=2)
        out_lens = counts + prompt
        spoken = self.complete(memory, text_mask, draft, out_lens, prompt)
        return {
            "codes": codes, "recon": recon, "ar": first_logits, "nar": other_logits, "losses": losses,
            "spoken": spoken, "logps": logps, "scores": scores, "wav": self.codec.to_wave(spoken, out_lens),
        }


def build():
    """The net alone, for evaluation: weights and inputs come from the reference's dump."""
    net = TextToAudio(HPARAMS)
    net.set_train(False)
    return net
