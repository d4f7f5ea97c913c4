"""The small speech recogniser in MindSpore: tables made beforehand, other helpers and names. A correct port."""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

RATE = 1600
CLIP = 2048
WINDOW = 80
STRIDE = 32
BANDS = 20
TOP_HERTZ = 800.0
DECADES = 8.0

VOCABULARY = 51
END = 28
START = 29
LANGUAGE = 30
TASK = 31
SILENCE = 32
LAST_SPECIAL = 33
FIRST_TIME = 34
LATEST_START = FIRST_TIME + 6
BLANK_TOKENS = [3, 11]
TIMING_HEADS = [(0, 1), (1, 0), (1, 3)]
SHARPNESS = 1.5
SMOOTHING = 5
MINUS_INFINITY = float("-inf")


# ---------------------------------------------------------------- features


def _mel_points(count):
    """Corners of the bands in hertz, equally far on Slaney's scale (the knee is at 400 Hz here)."""
    log_step = np.log(6.4) / 27.0
    spacing = 200.0 / 3
    knee = 400.0 / spacing
    top = knee + np.log(TOP_HERTZ / 400.0) / log_step
    mels = np.linspace(0.0, top, count)
    return np.where(mels < knee, mels * spacing, 400.0 * np.exp(log_step * (mels - knee)))


def mel_matrix():
    """(bins, bands): triangles of area one."""
    centres = np.arange(WINDOW // 2 + 1) * RATE / WINDOW
    points = _mel_points(BANDS + 2)
    table = np.zeros((len(centres), BANDS))
    for band in range(BANDS):
        left, peak, right = points[band : band + 3]
        up = (centres - left) / (peak - left)
        down = (right - centres) / (right - peak)
        height = 2.0 / (right - left)
        table[:, band] = height * np.maximum(0.0, np.minimum(up, down))
    return table.astype(np.float32)


class LogMel(nn.Cell):
    """Waveform to log-mel bands; the window lies in the Fourier tables."""

    def __init__(self):
        super().__init__()
        n = np.arange(WINDOW)
        hann = np.sin(np.pi * n / WINDOW) ** 2
        turn = 2 * np.pi * np.outer(n, np.arange(WINDOW // 2 + 1)) / WINDOW
        self.bins = WINDOW // 2 + 1
        fourier = np.concatenate([hann[:, None] * np.cos(turn), hann[:, None] * np.sin(turn)], axis=1)
        self.fourier = Tensor(fourier.astype(np.float32))
        self.mels = Tensor(mel_matrix())
        starts = np.arange(CLIP // STRIDE) * STRIDE
        self.places = Tensor(starts[:, None] + n[None, :])

    def construct(self, wave):
        wave = ops.cat([wave, ops.zeros((wave.shape[0], CLIP - wave.shape[1]), wave.dtype)], axis=1)
        half = WINDOW // 2
        head = wave[:, 1 : half + 1].flip((1,))
        tail = wave[:, -half - 1 : -1].flip((1,))
        frames = ops.gather(ops.cat([head, wave, tail], axis=1), self.places, 1)
        spectrum = ops.matmul(frames, self.fourier)
        power = spectrum[..., : self.bins] ** 2 + spectrum[..., self.bins :] ** 2
        bands = ops.log10(ops.clamp(ops.matmul(power, self.mels), min=1e-10))
        loudest = bands.reshape(bands.shape[0], -1).max(axis=1)
        bands = ops.maximum(bands, loudest.reshape(-1, 1, 1) - DECADES)
        return (bands / 4.0 + 1.0).swapaxes(1, 2)


def sinusoid_table(length, width, longest=1000.0):
    half = width // 2
    rates = longest ** (-np.arange(half) / (half - 1))
    angles = np.outer(np.arange(length), rates)
    return Tensor(np.hstack([np.sin(angles), np.cos(angles)]).astype(np.float32))


# ---------------------------------------------------------------- layers


class Heads(nn.Cell):
    """The projections of one attention; `attend` takes keys and values that are projected already."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.scale = 1.0 / math.sqrt(width // heads)
        self.to_query = nn.Dense(width, width)
        self.to_key = nn.Dense(width, width, has_bias=False)
        self.to_value = nn.Dense(width, width)
        self.merge = nn.Dense(width, width)

    def split(self, x):
        return x.reshape(x.shape[0], x.shape[1], self.heads, -1).swapaxes(1, 2)

    def attend(self, x, keys, values, bias):
        query = self.split(self.to_query(x)) * self.scale
        scores = ops.matmul(query, self.split(keys).swapaxes(2, 3)) + bias
        mixed = ops.matmul(ops.softmax(scores, axis=-1), self.split(values))
        return self.merge(mixed.swapaxes(1, 2).reshape(x.shape)), scores


class SelfAttention(Heads):
    """Attention of a sequence to itself and to what the memory holds of it."""

    def construct(self, x, bias, memory=None):
        keys, values = self.to_key(x), self.to_value(x)
        if memory is not None:
            if memory["self"] is not None:
                past_keys, past_values = memory["self"]
                keys = ops.cat([past_keys, keys], axis=1)
                values = ops.cat([past_values, values], axis=1)
            memory["self"] = (keys, values)
        return self.attend(x, keys, values, bias)[0]


class CrossAttention(Heads):
    """Attention to the audio; its keys and values are made once."""

    def construct(self, x, audio, bias, memory):
        if memory["cross"] is None:
            memory["cross"] = (self.to_key(audio), self.to_value(audio))
        keys, values = memory["cross"]
        return self.attend(x, keys, values, bias)


class FeedForward(nn.Cell):
    def __init__(self, width):
        super().__init__()
        self.widen = nn.Dense(width, 2 * width)
        self.act = nn.GELU(approximate=False)
        self.narrow = nn.Dense(2 * width, width)

    def construct(self, x):
        return self.narrow(self.act(self.widen(x)))


class EncoderLayer(nn.Cell):
    def __init__(self, width, heads):
        super().__init__()
        self.norm_attention = nn.LayerNorm((width,), epsilon=1e-5)
        self.attention = SelfAttention(width, heads)
        self.norm_forward = nn.LayerNorm((width,), epsilon=1e-5)
        self.forward_net = FeedForward(width)

    def construct(self, x, bias):
        x = x + self.attention(self.norm_attention(x), bias)
        return x + self.forward_net(self.norm_forward(x))


class DecoderLayer(nn.Cell):
    def __init__(self, width, heads):
        super().__init__()
        self.norm_self = nn.LayerNorm((width,), epsilon=1e-5)
        self.self_attention = SelfAttention(width, heads)
        self.norm_cross = nn.LayerNorm((width,), epsilon=1e-5)
        self.cross_attention = CrossAttention(width, heads)
        self.norm_forward = nn.LayerNorm((width,), epsilon=1e-5)
        self.forward_net = FeedForward(width)

    def construct(self, x, bias, audio, audio_bias, memory):
        x = x + self.self_attention(self.norm_self(x), bias, memory)
        found, scores = self.cross_attention(self.norm_cross(x), audio, audio_bias, memory)
        x = x + found
        x = x + self.forward_net(self.norm_forward(x))
        return x, scores


def forbid(allowed):
    """0 where it is allowed, minus infinity elsewhere."""
    return ops.where(allowed, Tensor(0.0, ms.float32), Tensor(MINUS_INFINITY, ms.float32))


class Encoder(nn.Cell):
    def __init__(self, width, heads, depth):
        super().__init__()
        self.conv_in = nn.Conv1d(BANDS, width, 3, pad_mode="pad", padding=1, has_bias=True)
        self.conv_half = nn.Conv1d(width, width, 3, stride=2, pad_mode="pad", padding=1, has_bias=True)
        self.act = nn.GELU(approximate=False)
        self.count = CLIP // STRIDE // 2
        self.positions = sinusoid_table(self.count, width)
        self.layers = nn.CellList([EncoderLayer(width, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm((width,), epsilon=1e-5)

    def construct(self, mel, lengths):
        x = self.act(self.conv_half(self.act(self.conv_in(mel))))
        x = x.transpose(0, 2, 1) + self.positions
        frames = (lengths + STRIDE - 1) // STRIDE
        halved = (frames + 1) // 2
        inside = ops.arange(self.count).reshape(1, -1) < halved.reshape(-1, 1)
        bias = forbid(inside).reshape(-1, 1, 1, self.count)
        for layer in self.layers:
            x = layer(x, bias)
        return self.norm(x), inside, bias


class Decoder(nn.Cell):
    def __init__(self, width, heads, depth, context=24):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width)
        self.positions = Parameter(ops.zeros((context, width)), name="positions")
        self.layers = nn.CellList([DecoderLayer(width, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm((width,), epsilon=1e-5)

    def empty_memory(self):
        return [{"self": None, "cross": None} for _ in self.layers]

    def construct(self, tokens, audio, audio_bias, memory):
        known = memory[0]["self"]
        past = 0 if known is None else known[0].shape[1]
        new = tokens.shape[1]
        x = self.words(tokens) + self.positions[past : past + new]
        bias = np.triu(np.full((new, past + new), MINUS_INFINITY, np.float32), k=past + 1)
        maps = []
        for layer, slot in zip(self.layers, memory):
            x, scores = layer(x, Tensor(bias), audio, audio_bias, slot)
            maps.append(scores)
        logits = ops.matmul(self.norm(x), self.words.embedding_table.swapaxes(0, 1))
        return logits, maps


# ---------------------------------------------------------------- writing and timing


class TimeRules:
    """What may follow: timestamps in pairs, never falling, no blank after one, and time before doubtful text."""

    def __init__(self):
        ids = np.arange(VOCABULARY)
        self.ids = Tensor(ids)
        self.is_time = Tensor(ids >= FIRST_TIME)
        self.special = Tensor((ids >= START) & (ids <= LAST_SPECIAL))
        self.first = Tensor((ids < FIRST_TIME) | (ids > LATEST_START))
        self.plain_text = Tensor(ids < END)
        self.blank = Tensor(np.isin(ids, BLANK_TOKENS))

    def banned(self, written):
        """(batch, vocabulary) of what is banned after these tokens."""
        count = written.shape[1]
        if count == 0:
            return ops.logical_or(self.special, self.first).reshape(1, -1)
        timed = written >= FIRST_TIME
        closes = timed[:, count - 1]
        if count > 1:
            opened = ops.logical_and(closes, ops.logical_not(timed[:, count - 2]))
        else:
            opened = ops.zeros_like(closes)
        paired = ops.logical_xor(closes, opened)
        floor = ops.where(timed, written, ops.full_like(written, FIRST_TIME)).max(axis=1)
        floor = ops.where(opened, floor, floor + 1)
        parts = [
            ops.logical_and(paired.reshape(-1, 1), self.is_time),
            ops.logical_and(opened.reshape(-1, 1), self.plain_text),
            ops.logical_and(self.ids < floor.reshape(-1, 1), self.is_time),
            ops.logical_and(closes.reshape(-1, 1), self.blank),
        ]
        result = self.special
        for part in parts:
            result = ops.logical_or(result, part)
        return result

    def __call__(self, logits, written):
        logits = logits + forbid(ops.logical_not(self.banned(written)))
        chances = ops.log_softmax(logits, -1)
        all_times = ops.logsumexp(chances[:, FIRST_TIME:], -1)
        best_text = chances[:, :FIRST_TIME].max(axis=-1)
        text_out = ops.logical_and((all_times > best_text).reshape(-1, 1), ops.logical_not(self.is_time))
        return ops.where(text_out, Tensor(MINUS_INFINITY, ms.float32), logits)


def smooth(x, width):
    """Running median over the last axis, mirrored at the ends."""
    reach = width // 2
    left = x[..., 1 : reach + 1].flip((-1,))
    right = x[..., -reach - 1 : -1].flip((-1,))
    wide = ops.cat([left, x, right], axis=-1)
    shifted = ops.stack([wide[..., i : i + x.shape[-1]] for i in range(width)], axis=-1)
    return ops.sort(shifted, axis=-1)[0][..., reach]


class SpeechToText(nn.Cell):
    def __init__(self, width=32, heads=4, depth=2, steps=8):
        super().__init__()
        self.steps = steps
        self.features = LogMel()
        self.encoder = Encoder(width, heads, depth)
        self.decoder = Decoder(width, heads, depth)
        self.rules = TimeRules()

    def write(self, audio, audio_bias, prompt):
        """Greedy tokens, the mean of their log-probabilities, and the chance that nobody speaks."""
        memory = self.decoder.empty_memory()
        logits, _ = self.decoder(prompt, audio, audio_bias, memory)
        at_start = (prompt == START).astype(ms.float32).expand_dims(-1)
        silence = ops.softmax((logits * at_start).sum(axis=1), axis=-1)[:, SILENCE]
        alive = ops.ones((prompt.shape[0],), ms.float32)
        total = ops.zeros_like(alive)
        written = ops.zeros((prompt.shape[0], 0), ms.int64)
        for step in range(self.steps):
            ruled = self.rules(logits[:, -1], written)
            token = ruled.argmax(axis=-1)
            gain = ruled.max(axis=-1) - ops.logsumexp(ruled, -1)
            total = total + gain * alive
            token = ops.where(alive > 0, token, ops.full_like(token, END))
            alive = alive * (token != END).astype(ms.float32)
            column = token.reshape(-1, 1)
            written = column if step == 0 else ops.cat([written, column], axis=1)
            if step + 1 < self.steps:
                logits, _ = self.decoder(column, audio, audio_bias, memory)
        count = (written != END).astype(ms.float32).sum(axis=1)
        return written, total / (count + 1.0), silence

    def time(self, audio, audio_bias, inside, prompt, written):
        memory = self.decoder.empty_memory()
        before, maps_before = self.decoder(prompt, audio, audio_bias, memory)
        after, maps_after = self.decoder(written, audio, audio_bias, memory)
        guess = ops.cat([before[:, -1:], after[:, :-1]], axis=1)[..., : END + 1]
        target = ops.clamp(written, max=END)
        chances = ops.gather_elements(ops.softmax(guess, axis=-1), 2, target.expand_dims(-1)).squeeze(-1)
        picked = []
        for layer, head in TIMING_HEADS:
            picked.append(ops.cat([maps_before[layer][:, head], maps_after[layer][:, head]], axis=1))
        maps = ops.softmax(ops.stack(picked, axis=1) * SHARPNESS, axis=-1)
        centred = maps - maps.mean(axis=2, keep_dims=True)
        spread = ops.sqrt((centred**2).mean(axis=2, keep_dims=True))
        maps = smooth(centred / (spread + 1e-4), SMOOTHING)
        evidence = maps.mean(axis=1)[:, prompt.shape[1] :] * 2.0 + forbid(inside).expand_dims(1)
        middle = ops.matmul(ops.softmax(evidence, axis=-1), ops.arange(evidence.shape[-1]).astype(ms.float32))
        steps = [middle[:, 0]]
        for i in range(1, middle.shape[1]):
            steps.append(mint.maximum(steps[-1], middle[:, i]))
        return chances, ops.stack(steps, axis=1) * (2 * STRIDE / RATE)

    def construct(self, wave, lengths, prompt):
        audio, inside, bias = self.encoder(self.features(wave), lengths)
        written, average, silence = self.write(audio, bias, prompt)
        chances, times = self.time(audio, bias, inside, prompt, written)
        return audio, written, average, silence, chances, times


def build():
    """The net, and the same two waveforms, lengths and prompts as the reference's."""
    draw = np.random.RandomState(610)
    time = np.arange(1930) / RATE
    chirp = np.sin(2 * np.pi * (90 * time + 140 * time**2)) * (0.4 + 0.3 * np.sin(2 * np.pi * 3 * time))
    tones = 0.3 * np.sign(np.sin(2 * np.pi * 55 * time)) * (np.sin(2 * np.pi * 4 * time) > 0)
    wave = np.stack([chirp, tones]) + 0.02 * draw.randn(2, 1930)
    wave[1, 1409:] = 0.0
    prompt = np.array([[5, START, LANGUAGE, TASK], [START, 17, LANGUAGE, TASK]])
    inputs = Tensor(wave.astype(np.float32)), Tensor(np.array([1930, 1409])), Tensor(prompt)
    return SpeechToText().set_train(False), inputs
