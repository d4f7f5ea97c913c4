"""The multimodal Perceiver IO (audio, images, tags) in MindSpore: the correct port."""

from __future__ import annotations

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

RGB_MEAN = [0.4802, 0.4481, 0.3975]
RGB_STD = [0.2770, 0.2691, 0.2821]
LOWEST = float(np.finfo(np.float32).min)


def trainable(shape, name):
    return Parameter(Tensor(np.zeros(shape, np.float32)), name=name)


def grid_positions(*dims):
    """(cells, dims) numpy: coordinates in [-1, 1] of the cells of a grid, the last dim fastest."""
    axes = [np.linspace(-1.0, 1.0, n, dtype=np.float32) for n in dims]
    grids = np.meshgrid(*axes, indexing="ij")
    return np.stack([g.reshape(-1) for g in grids], axis=-1)


def fourier_width(bands, dims):
    return dims + 2 * dims * bands


class FourierEncoding:
    """[position, sines, cosines] for positions (..., dims)."""

    def __init__(self, bands, resolution):
        table = np.stack([np.linspace(1.0, r / 2.0, bands) for r in resolution])
        self.frequencies = Tensor(table.astype(np.float32))
        self.width = fourier_width(bands, len(resolution))

    def __call__(self, positions):
        angles = ops.expand_dims(positions, -1) * self.frequencies
        angles = angles.reshape(positions.shape[:-1] + (-1,)) * np.pi
        return ops.cat((positions, ops.sin(angles), ops.cos(angles)), axis=-1)

    def of_grid(self, *dims):
        """(1, cells, width)"""
        return self(Tensor(grid_positions(*dims)).expand_dims(0))


class AudioFrames(nn.Cell):
    """Normalises a waveform over its length, cuts it into windowed frames and projects them."""

    def __init__(self, samples, frame, hop, channels, bands):
        super().__init__()
        self.hop = hop
        self.count = (samples - frame) // hop + 1
        index = np.arange(self.count)[:, None] * hop + np.arange(frame)[None, :]
        self.index = Tensor(index.astype(np.int32))
        self.window = Tensor((0.5 - 0.5 * np.cos(2 * np.pi * np.arange(frame) / frame)).astype(np.float32))
        self.proj = nn.Dense(frame, channels)
        encoding = FourierEncoding(bands, (self.count,))
        self.places = encoding.of_grid(self.count)
        self.width = channels + encoding.width

    def construct(self, wave, length):
        batch, total = wave.shape
        length = length.reshape(-1, 1)
        inside = (ops.arange(total).reshape(1, -1) < length).astype(wave.dtype)
        mean = (wave * inside).sum(axis=1, keepdims=True) / length
        centred = (wave - mean) * inside
        deviation = ops.sqrt((centred * centred).sum(axis=1, keepdims=True) / length + 1e-5)
        wave = centred / deviation
        frames = ops.gather(wave, self.index, 1) * self.window
        tokens = ops.cat((self.proj(frames), ops.broadcast_to(self.places, (batch, -1, -1))), axis=-1)
        used = (length + self.hop - 1) // self.hop
        seen = ops.arange(self.count).reshape(1, -1) < used
        return tokens, seen, mean, deviation


class ImageStem(nn.Cell):
    def __init__(self, size, patch, channels, groups, bands):
        super().__init__()
        self.conv = nn.Conv2d(3, channels, 5, stride=patch, pad_mode="pad", padding=2, has_bias=True)
        self.norm = nn.GroupNorm(groups, channels)
        self.act = nn.SiLU()
        grid = tuple(n // patch for n in size)
        encoding = FourierEncoding(bands, grid)
        self.places = encoding.of_grid(*grid)
        self.width = channels + encoding.width

    def construct(self, image):
        volume = self.act(self.norm(self.conv(image)))
        batch = volume.shape[0]
        tokens = volume.flatten(start_dim=2).swapaxes(1, 2)
        tokens = ops.cat((tokens, ops.tile(self.places, (batch, 1, 1))), axis=2)
        return tokens, ops.ones(tokens.shape[:2], ms.bool_)


class TagTokens(nn.Cell):
    def __init__(self, tags, length, channels, pos_channels):
        super().__init__()
        self.embed = nn.Embedding(tags + 1, channels, padding_idx=0)
        self.norm = nn.LayerNorm((channels,), epsilon=1e-5)
        self.pos = trainable((length, pos_channels), "pos")
        self.width = channels + pos_channels

    def construct(self, tags):
        batch, length = tags.shape
        places = self.pos[:length].expand_dims(0).broadcast_to((batch, -1, -1))
        return ops.cat((self.norm(self.embed(tags)), places), axis=-1), tags > 0


class Adapter(nn.Cell):
    """Fills a modality up to the common width; all tokens of a missing one are the mask token."""

    def __init__(self, width, common):
        super().__init__()
        self.padding = trainable((1, common - width), "padding")
        self.mask_token = trainable((1, 1, common), "mask_token")

    def construct(self, tokens, present):
        tokens = ops.cat((tokens, ops.tile(self.padding, tokens.shape[:2] + (1,))), axis=-1)
        flag = present.astype(tokens.dtype).reshape(-1, 1, 1)
        return tokens * flag + self.mask_token * (1.0 - flag)


class Preprocessor(nn.Cell):
    """The three modalities side by side, and which tokens may be seen."""

    def __init__(self, margin=3):
        super().__init__()
        audio = AudioFrames(105, 9, 6, channels=10, bands=5)
        image = ImageStem((14, 20), 2, 12, groups=3, bands=4)
        label = TagTokens(11, 4, 9, 5)
        self.modalities = nn.CellDict([["audio", audio], ["image", image], ["label", label]])
        self.width = max(audio.width, image.width, label.width) + margin
        self.adapters = nn.CellDict([[name, Adapter(m.width, self.width)] for name, m in self.modalities.items()])

    def construct(self, audio, audio_length, image, tags, present):
        audio_tokens, audio_seen, mean, deviation = self.modalities["audio"](audio, audio_length)
        image_tokens, image_seen = self.modalities["image"](image)
        tag_tokens, tag_seen = self.modalities["label"](tags)
        has_audio, has_image, has_tags = ops.unbind(present, 1)
        tokens = ops.cat(
            (self.adapters["audio"](audio_tokens, has_audio), self.adapters["image"](image_tokens, has_image),
             self.adapters["label"](tag_tokens, has_tags)),
            axis=1,
        )
        seen = []
        for valid, has in ((audio_seen, has_audio), (image_seen, has_image), (tag_seen, has_tags)):
            seen.append(ops.logical_or(valid, ops.logical_not(has).expand_dims(1)))
        return tokens, ops.cat([s.astype(ms.int32) for s in seen], axis=1), mean, deviation


class Attention(nn.Cell):
    def __init__(self, q_width, kv_width, qk_channels, v_channels, out_width, heads):
        super().__init__()
        self.heads, self.v_channels = heads, v_channels
        self.scale = (qk_channels // heads) ** -0.5
        self.query = nn.Dense(q_width, qk_channels)
        self.key = nn.Dense(kv_width, qk_channels)
        self.value = nn.Dense(kv_width, v_channels)
        self.output = nn.Dense(v_channels, out_width)

    def by_head(self, x):
        return x.reshape(x.shape[0], x.shape[1], self.heads, -1).swapaxes(1, 2)

    def construct(self, x, source, seen=None):
        q = self.by_head(self.query(x)) * self.scale
        k = self.by_head(self.key(source))
        v = self.by_head(self.value(source))
        logits = ops.BatchMatMul(transpose_b=True)(q, k)
        if seen is not None:
            hidden = (seen == 0).reshape(seen.shape[0], 1, 1, -1)
            logits = ops.masked_fill(logits, hidden, LOWEST)
        mixed = ops.matmul(ops.softmax(logits, axis=-1), v)
        mixed = mixed.transpose(0, 2, 1, 3).reshape(x.shape[0], -1, self.v_channels)
        return self.output(mixed)


class Mlp(nn.Cell):
    def __init__(self, width, hidden):
        super().__init__()
        self.dense1 = nn.Dense(width, hidden)
        self.act = nn.GELU(approximate=False)
        self.dense2 = nn.Dense(hidden, width)

    def construct(self, x):
        return self.dense2(self.act(self.dense1(x)))


class CrossLayer(nn.Cell):
    """Attention of x to a source, with or without the residual of x, then the perceptron."""

    def __init__(self, width, source_width, qk_channels, v_channels, out_width, heads, residual=True):
        super().__init__()
        self.residual = residual
        self.norm_q = nn.LayerNorm((width,), epsilon=1e-5)
        self.norm_kv = nn.LayerNorm((source_width,), epsilon=1e-5)
        self.attention = Attention(width, source_width, qk_channels, v_channels, out_width, heads)
        self.norm_mlp = nn.LayerNorm((out_width,), epsilon=1e-5)
        self.mlp = Mlp(out_width, 2 * out_width)

    def construct(self, x, source, seen=None):
        out = self.attention(self.norm_q(x), self.norm_kv(source), seen)
        if self.residual:
            out = x + out
        return out + self.mlp(self.norm_mlp(out))


class SelfLayer(nn.Cell):
    """A usual pre-norm transformer layer."""

    def __init__(self, width, heads):
        super().__init__()
        self.norm_q = nn.LayerNorm((width,), epsilon=1e-5)
        self.attention = Attention(width, width, width, width, width, heads)
        self.norm_mlp = nn.LayerNorm((width,), epsilon=1e-5)
        self.mlp = Mlp(width, 2 * width)

    def construct(self, latents):
        normed = self.norm_q(latents)
        latents = latents + self.attention(normed, normed)
        return latents + self.mlp(self.norm_mlp(latents))


class Encoder(nn.Cell):
    """The first block has a cross attention of its own, the later ones share the second."""

    def __init__(self, source_width, count=13, width=48, passes=3, depth=2):
        super().__init__()
        self.passes = passes
        self.latents = trainable((count, width), "latents")
        self.step_embed = trainable((passes, width), "step_embed")
        self.cross_attends = nn.CellList([CrossLayer(width, source_width, 24, 45, width, 3) for _ in range(2)])
        self.self_attends = nn.CellList([SelfLayer(width, 4) for _ in range(depth)])

    def construct(self, source, seen):
        z = ops.tile(self.latents.expand_dims(0), (source.shape[0], 1, 1))
        for i in range(self.passes):
            z = self.cross_attends[min(i, 1)](z, source, seen)
            z = z + self.step_embed[i]
            for layer in self.self_attends:
                z = layer(z)
        return z


class PointQuery(nn.Cell):
    """Queries for frames of the audio, asked for by number."""

    def __init__(self, frames, bands, common):
        super().__init__()
        self.frames = frames
        self.encoding = FourierEncoding(bands, (frames,))
        self.padding = trainable((1, common - self.encoding.width), "padding")

    def construct(self, points):
        position = points.astype(ms.float32) * (2.0 / self.frames) - 1.0
        query = self.encoding(position.expand_dims(-1))
        return ops.cat((query, ops.tile(self.padding, points.shape + (1,))), axis=-1)


class GridQuery(nn.Cell):
    def __init__(self, grid, bands, common):
        super().__init__()
        encoding = FourierEncoding(bands, grid)
        self.places = encoding.of_grid(*grid)
        self.padding = trainable((1, common - encoding.width), "padding")

    def construct(self, batch):
        fill = ops.tile(self.padding.expand_dims(0), (1, self.places.shape[1], 1))
        return ops.tile(ops.cat((self.places, fill), axis=2), (batch, 1, 1))


class TokenQuery(nn.Cell):
    def __init__(self, count, channels, common):
        super().__init__()
        self.tokens = trainable((count, channels), "tokens")
        self.padding = trainable((1, common - channels), "padding")

    def construct(self, batch):
        fill = ops.broadcast_to(self.padding, (self.tokens.shape[0], -1))
        return ops.tile(ops.cat((self.tokens, fill), axis=1).expand_dims(0), (batch, 1, 1))


class Decoder(nn.Cell):
    def __init__(self, frames, grid, latent_width=48, out_width=28):
        super().__init__()
        common = max(fourier_width(6, 1), fourier_width(3, 2), 11) + 2
        self.queries = nn.CellDict(
            [["audio", PointQuery(frames, 6, common)], ["image", GridQuery(grid, 3, common)],
             ["label", TokenQuery(3, 11, common)]]
        )
        self.cross_attend = CrossLayer(common, latent_width, 20, 32, out_width, 2, residual=False)

    def construct(self, latents, points):
        batch = latents.shape[0]
        ask_audio = self.queries["audio"](points)
        ask_image, ask_label = self.queries["image"](batch), self.queries["label"](batch)
        n_audio, n_image = ask_audio.shape[1], ask_image.shape[1]
        out = self.cross_attend(ops.cat((ask_audio, ask_image, ask_label), axis=1), latents)
        return out[:, :n_audio], out[:, n_audio : n_audio + n_image], out[:, n_audio + n_image :]


class WaveHead(nn.Cell):
    """Each answer is a hop of samples; frames that were not asked for stay silent."""

    def __init__(self, width, frames, hop):
        super().__init__()
        self.frames = frames
        self.proj = nn.Dense(width, hop)

    def construct(self, x, points, mean, deviation):
        hops = self.proj(x) * deviation.expand_dims(2) + mean.expand_dims(2)
        place = (points.expand_dims(-1) == ops.arange(self.frames)).astype(x.dtype)
        return ops.matmul(place.swapaxes(1, 2), hops).reshape(x.shape[0], -1)


class PixelHead(nn.Cell):
    def __init__(self, width, grid, patch):
        super().__init__()
        self.grid, self.patch = grid, patch
        self.proj = nn.Dense(width, 3 * patch * patch)
        self.refine = nn.Conv2d(3, 3, 3, pad_mode="pad", padding=2, dilation=2, has_bias=True)

    def construct(self, x):
        (rows, columns), p = self.grid, self.patch
        pixels = self.proj(x).reshape(-1, rows, columns, p, p, 3).transpose(0, 5, 1, 3, 2, 4)
        pixels = pixels.reshape(-1, 3, rows * p, columns * p)
        return pixels + self.refine(pixels)


class ClassHead(nn.Cell):
    def __init__(self, width, classes):
        super().__init__()
        self.score = nn.Dense(width, 1)
        self.proj = nn.Dense(width, classes)

    def construct(self, x):
        weight = ops.softmax(self.score(x), axis=1)
        return self.proj(ops.matmul(weight.swapaxes(1, 2), x).squeeze(1))


class MultimodalPerceiver(nn.Cell):
    """audio (b, 105), its length (b), image (b, 3, 14, 20), tags (b, 4), present (b, 3), asked frames (b, k)."""

    def __init__(self, frames=17, grid=(7, 10)):
        super().__init__()
        self.mean = Tensor(np.array(RGB_MEAN, np.float32).reshape(1, 3, 1, 1))
        self.std = Tensor(np.array(RGB_STD, np.float32).reshape(1, 3, 1, 1))
        self.preprocessor = Preprocessor()
        self.encoder = Encoder(self.preprocessor.width)
        self.decoder = Decoder(frames, grid)
        self.heads = nn.CellDict(
            [["audio", WaveHead(28, frames, 6)], ["image", PixelHead(28, grid, 2)], ["label", ClassHead(28, 7)]]
        )

    def construct(self, audio, audio_length, image, tags, present, points):
        image = (image - self.mean) / self.std
        source, seen, mean, deviation = self.preprocessor(audio, audio_length, image, tags, present)
        latents = self.encoder(source, seen)
        audio_out, image_out, label_out = self.decoder(latents, points)
        wave = self.heads["audio"](audio_out, points, mean, deviation)
        pixels = self.heads["image"](image_out) * self.std + self.mean
        return wave, pixels, self.heads["label"](label_out)


def build():
    """The net alone, for evaluation: weights and inputs come from the reference's dump."""
    net = MultimodalPerceiver()
    net.set_train(False)
    return net
