"""The tracker of beats in MindSpore: mel bands, a temporal convolutional net, a transformer, and the decoders."""

from __future__ import annotations

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

SAMPLE_RATE = 16000
FRAME_RATE = 20.0
PERIODS = np.arange(7, 17)  # frames from one beat to the next
LOWEST = float(np.finfo(np.float32).min)


def as_float(array):
    return Tensor(np.ascontiguousarray(array, np.float32))


def as_index(array):
    return Tensor(np.ascontiguousarray(array, np.int32))


def demo_clips(frames=96, bins=129, seed=7):
    """Noise with pulses; two of the three clips are padded."""
    rng = np.random.RandomState(seed)
    lengths = np.array([96, 71, 84], np.int64)
    labels = np.zeros((3, frames), np.int64)
    power = np.zeros((3, frames, bins), np.float32)
    periods, starts, meters, gains = (10.0, 8.5, 13.0), (3, 5, 2), (4, 3, 4), (1.0, 30.0, 0.02)
    for row in range(3):
        envelope = np.zeros(frames)
        for count, onset in enumerate(np.arange(starts[row], frames, periods[row])):
            onset = int(round(onset))
            first = count % meters[row] == 0
            labels[row, onset] = 2 if first else 1
            envelope[onset:] += (1.5 if first else 0.8) * np.exp(-0.5 * np.arange(frames - onset))
        noise = rng.gamma(2.0, 0.5, (frames, bins)) * np.exp(-np.arange(bins) / 40.0)
        power[row] = (noise * (0.05 + envelope[:, None]) * gains[row]).astype(np.float32)
    return power, lengths, labels


def htk_filters(bands, n_fft, low_hz, high_hz):
    """Triangular filters (bins, bands), each divided by half its base."""
    def to_mel(hz):
        return 2595.0 * np.log10(1.0 + hz / 700.0)

    corners = 700.0 * (10.0 ** (np.linspace(to_mel(low_hz), to_mel(high_hz), bands + 2) / 2595.0) - 1.0)
    hz = np.linspace(0.0, SAMPLE_RATE / 2, n_fft // 2 + 1)
    filters = np.zeros((hz.size, bands))
    for m in range(bands):
        left, middle, right = corners[m : m + 3]
        up, down = (hz - left) / (middle - left), (right - hz) / (right - middle)
        filters[:, m] = np.clip(np.minimum(up, down), 0.0, None) * 2.0 / (right - left)
    return as_float(filters)


def statistics(x, weight, axis):
    """Weighted mean and unbiased deviation along an axis, which is kept."""
    count = weight.sum(axis=axis, keepdims=True)
    mean = (x * weight).sum(axis=axis, keepdims=True) / ops.clamp(count, min=1.0)
    squares = (ops.square(x - mean) * weight).sum(axis=axis, keepdims=True)
    return mean, ops.sqrt(squares / ops.clamp(count - 1.0, min=1.0))


def running_max(x, before, after, fill=LOWEST):
    """Maximum over a window about each place of the last axis."""
    size = x.shape[-1]
    padded = ops.pad(x, (before, after), value=fill)
    out = padded[..., :size]
    for shift in range(1, before + after + 1):
        out = ops.maximum(out, padded[..., shift : shift + size])
    return out


def neighbours(values, index):
    """What lies left of, at and right of the index; the ends stand in for what is beyond them."""
    size = values.shape[1]
    return [ops.gather_elements(values, 1, ops.clamp(index + d, 0, size - 1)) for d in (-1, 0, 1)]


def vertex(left, middle, right):
    """Where the parabola through three values has its top, from the middle one, within half a step."""
    bend = left - 2.0 * middle + right
    bend = ops.where(ops.abs(bend) < 1e-6, ops.full_like(bend, -1e-6), bend)
    return ops.clamp(0.5 * (left - right) / bend, -0.5, 0.5)


class MelFlux(nn.Cell):
    """Two maps (batch, 2, frames, bands): standardised level in decibels, and its rise."""

    def __init__(self, bands=24, n_fft=256, low_hz=60.0, high_hz=7600.0, top_db=60.0, lag=2):
        super().__init__()
        self.filters = htk_filters(bands, n_fft, low_hz, high_hz)
        self.top_db = top_db
        self.lag = lag

    def construct(self, power, alive):
        batch, frames, _ = power.shape
        weight = alive.astype(ms.float32).reshape(batch, frames, 1)
        energy = ops.clamp(ops.matmul(power, self.filters), min=1e-10)
        decibel = ops.log(energy) * (10.0 / np.log(10.0))
        loudest = ops.where(weight > 0, decibel, ops.full_like(decibel, LOWEST)).max(axis=(1, 2), keepdims=True)
        decibel = ops.clamp(decibel - loudest, min=-self.top_db)
        mean, deviation = statistics(decibel, weight, 1)
        level = (decibel - mean) / (deviation + 1e-3)

        around = running_max(level, 1, 1)
        rise = ops.relu(level[:, self.lag :] - around[:, : frames - self.lag])
        rise = ops.cat((ops.zeros_like(level[:, : self.lag]), rise), axis=1)
        return ops.stack((level, rise), axis=1) * weight.expand_dims(1)


class BandStem(nn.Cell):
    """Convolutions over bands (and a little time), until two bands are left."""

    def __init__(self, width):
        super().__init__()
        self.conv1 = nn.Conv2d(2, 8, 3, pad_mode="pad", padding=(1, 1, 0, 0))
        self.bn1 = nn.BatchNorm2d(8, eps=1e-3)
        self.conv2 = nn.Conv2d(8, 12, (1, 4), pad_mode="valid")
        self.bn2 = nn.BatchNorm2d(12, eps=0.001)
        self.conv3 = nn.Conv2d(12, 16, 3, pad_mode="pad", padding=(1, 1, 0, 0), has_bias=True)
        self.elu = nn.ELU()
        self.halve = nn.MaxPool2d((1, 2), stride=(1, 2))
        self.project = nn.Dense(32, width)

    def construct(self, maps):
        maps = self.halve(self.elu(self.bn1(self.conv1(maps))))
        maps = self.halve(self.elu(self.bn2(self.conv2(maps))))
        maps = self.elu(self.conv3(maps))
        batch, _, frames, _ = maps.shape
        return self.project(maps.transpose(0, 2, 1, 3).reshape(batch, frames, -1))


class TwinBlock(nn.Cell):
    """A pair of dilated convolutions and a pointwise one; gives the sum and the increment."""

    def __init__(self, width, kernel, dilation):
        super().__init__()
        self.near = nn.Conv1d(width, width, kernel, pad_mode="same", dilation=dilation, has_bias=True)
        self.far = nn.Conv1d(width, width, kernel, pad_mode="same", dilation=2 * dilation, has_bias=True)
        self.norm = nn.BatchNorm2d(2 * width, eps=1e-3)
        self.elu = nn.ELU()
        self.dropout = nn.Dropout1d(p=0.1)
        self.pointwise = nn.Conv1d(2 * width, width, 1, pad_mode="valid", has_bias=True)
        self.gain = Parameter(Tensor(np.ones(width, np.float32)), name="gain")

    def construct(self, x, weight):
        masked = x * weight
        pair = ops.cat((self.near(masked), self.far(masked)), axis=1)
        pair = self.norm(pair.expand_dims(2)).squeeze(2)
        increment = self.pointwise(self.dropout(self.elu(pair)))
        return x + increment * self.gain.reshape(1, -1, 1), increment


class DilatedStack(nn.Cell):
    """All blocks; also the mixture of their increments for the tempo, (batch, frames, width) both."""

    def __init__(self, width, kernel=5, dilations=(1, 2, 4, 8)):
        super().__init__()
        self.blocks = nn.CellList([TwinBlock(width, kernel, d) for d in dilations])
        self.mixture = Parameter(Tensor(np.zeros(len(dilations), np.float32)), name="mixture")

    def construct(self, x, alive):
        weight = alive.astype(ms.float32).expand_dims(1)
        x = x.swapaxes(1, 2)
        share = ops.softmax(self.mixture, axis=0)
        mixed = 0.0
        for number, block in enumerate(self.blocks):
            x, increment = block(x, weight)
            mixed = mixed + share[number] * increment
        return ops.elu(x).swapaxes(1, 2), mixed.swapaxes(1, 2)


class DistanceAttention(nn.Cell):
    """Self-attention in which a query also scores the signed distance to a key; reach limits the distance."""

    def __init__(self, width, heads, reach):
        super().__init__()
        self.heads, self.depth, self.reach = heads, width // heads, reach
        self.to_q = nn.Dense(width, width)
        self.to_kv = nn.Dense(width, 2 * width)
        self.to_p = nn.Dense(width, width, has_bias=False)
        self.merge = nn.Dense(width, width)
        self.bias_content = Parameter(Tensor(np.zeros((heads, self.depth), np.float32)), name="bias_content")
        self.bias_distance = Parameter(Tensor(np.zeros((heads, self.depth), np.float32)), name="bias_distance")

    def split(self, x):
        batch, frames, _ = x.shape
        return x.reshape(batch, frames, self.heads, self.depth).transpose(0, 2, 1, 3)

    def construct(self, x, distances, alive):
        batch, frames, width = x.shape
        query, kv = self.split(self.to_q(x)), self.to_kv(x)
        key, value = self.split(kv[..., :width]), self.split(kv[..., width:])
        place = self.split(self.to_p(distances).expand_dims(0))

        by_content = query + self.bias_content.reshape(1, self.heads, 1, self.depth)
        by_distance = query + self.bias_distance.reshape(1, self.heads, 1, self.depth)
        all_distances = ops.matmul(by_distance, place.swapaxes(2, 3))
        # the rows of the table run from the distance frames - 1 down to 1 - frames; distance is query minus key
        steps = np.arange(frames)
        apart = steps[:, None] - steps[None, :]
        row = as_index(np.broadcast_to(frames - 1 - apart, (batch, self.heads, frames, frames)))
        logits = ops.matmul(by_content, key.swapaxes(2, 3)) + ops.gather_elements(all_distances, 3, row)
        logits = logits * self.depth**-0.5

        visible = alive.reshape(batch, 1, 1, frames)
        if self.reach is not None:
            visible = ops.logical_and(visible, Tensor(np.abs(apart) <= self.reach))
        logits = ops.where(visible, logits, ops.full_like(logits, LOWEST))
        out = ops.matmul(ops.softmax(logits, axis=-1), value)
        return self.merge(out.transpose(0, 2, 1, 3).reshape(batch, frames, width))


class TransformerLayer(nn.Cell):
    """Pre-norm attention and a perceptron whose one half gates the other."""

    def __init__(self, width, heads, reach, ratio=2):
        super().__init__()
        self.hidden = ratio * width
        self.ln1 = nn.LayerNorm((width,), epsilon=1e-5)
        self.attention = DistanceAttention(width, heads, reach)
        self.ln2 = nn.LayerNorm((width,), epsilon=1e-5)
        self.widen = nn.Dense(width, 2 * self.hidden)
        self.gelu = nn.GELU(approximate=False)
        self.narrow = nn.Dense(self.hidden, width)

    def construct(self, x, distances, alive):
        x = x + self.attention(self.ln1(x), distances, alive)
        both = self.widen(self.ln2(x))
        return x + self.narrow(self.gelu(both[..., : self.hidden]) * both[..., self.hidden :])


class Transformer(nn.Cell):
    def __init__(self, width, heads=3, reaches=(None, 18)):
        super().__init__()
        self.layers = nn.CellList([TransformerLayer(width, heads, reach) for reach in reaches])
        self.ln = nn.LayerNorm((width,), epsilon=1e-5)

    @staticmethod
    def distance_table(frames, width):
        rates = 1000.0 ** (-np.arange(0, width, 2) / width)
        angle = np.arange(frames - 1, -frames, -1)[:, None] * rates[None, :]
        table = np.zeros((2 * frames - 1, width))
        table[:, 0::2] = np.sin(angle)
        table[:, 1::2] = np.cos(angle)
        return as_float(table)

    def construct(self, x, alive):
        distances = self.distance_table(x.shape[1], x.shape[2])
        for layer in self.layers:
            x = layer(x, distances, alive)
        return self.ln(x)


class PeriodHead(nn.Cell):
    """Which period the beat has, from a weighted mean of frames."""

    def __init__(self, width, classes):
        super().__init__()
        self.attend = nn.Dense(width, 1)
        self.fc1 = nn.Dense(width, 20)
        self.leaky = nn.LeakyReLU(alpha=0.01)
        self.dropout = nn.Dropout(p=0.3)
        self.fc2 = nn.Dense(20, classes)

    def construct(self, x, alive):
        score = self.attend(x)[..., 0]
        share = ops.softmax(ops.where(alive, score, ops.full_like(score, -1e4)), axis=1)
        summary = (share.expand_dims(2) * x).sum(axis=1)
        return ops.log_softmax(self.fc2(self.dropout(self.leaky(self.fc1(summary)))), -1)


class PeriodHistogram(nn.Cell):
    """Scores the periods by the autocorrelation of the activation; gives shares and beats per minute."""

    def __init__(self, center=110.0, spread=0.7):
        super().__init__()
        octaves = np.log2(60.0 * FRAME_RATE / PERIODS / center)
        self.prior = as_float(np.exp(-0.5 * (octaves / spread) ** 2))
        self.periods = as_index(PERIODS)

    def construct(self, act, log_probs, alive):
        weight = alive.astype(ms.float32)
        frames = act.shape[1]
        signal = (act - statistics(act, weight, 1)[0]) * weight
        count = weight.sum(axis=1)

        def correlation(lag):
            product = (signal[:, : frames - lag] * signal[:, lag:]).sum(axis=1)
            return product / ops.clamp(count - lag, min=1.0)

        power = correlation(0)
        comb = [(correlation(int(p)) + 0.5 * correlation(2 * int(p))) / power for p in PERIODS]
        histogram = ops.relu(ops.stack(comb, axis=1)) * self.prior + 0.02
        padded = ops.cat((histogram[:, :1], histogram, histogram[:, -1:]), axis=1)
        histogram = 0.25 * padded[:, :-2] + 0.5 * padded[:, 1:-1] + 0.25 * padded[:, 2:]
        shares = ops.softmax(ops.log(histogram) + 0.5 * log_probs, axis=1)
        best = ops.argmax(shares, 1).astype(ms.int32).expand_dims(1)
        period = ops.gather(self.periods, best, 0) + vertex(*neighbours(shares, best))
        return shares, 60.0 * FRAME_RATE / period[:, 0]


class PickPeaks(nn.Cell):
    """Peaks of the smoothed activation over their surroundings: times (-1 where there is none) and heights."""

    def __init__(self, count=10, before=9, after=4, wait=4, delta=0.02):
        super().__init__()
        self.count, self.before, self.after, self.wait, self.delta = count, before, after, wait, delta
        hann = np.hanning(7)[1:-1]
        self.taps = [float(tap) for tap in hann / hann.sum()]

    def construct(self, act, alive):
        batch, frames = act.shape
        padded = ops.cat((act[:, 2:3], act[:, 1:2], act, act[:, -2:-1], act[:, -3:-2]), axis=1)
        smooth = sum(tap * padded[:, i : i + frames] for i, tap in enumerate(self.taps))
        smooth = smooth * alive.astype(ms.float32)

        steps = as_index(np.arange(frames)).reshape(1, frames)
        lengths = alive.astype(ms.int32).sum(axis=1).astype(ms.int32).reshape(batch, 1)
        stop = ops.clamp(ops.minimum(steps + (self.after + 1), lengths), min=1)
        start = ops.minimum(ops.clamp(steps - self.before, min=0), stop - 1)
        sums = ops.cat((ops.zeros((batch, 1), ms.float32), ops.cumsum(smooth, 1)), axis=1)
        surroundings = ops.gather_elements(sums, 1, stop) - ops.gather_elements(sums, 1, start)
        threshold = surroundings / (stop - start).astype(ms.float32) + self.delta
        is_top = ops.logical_and(smooth == running_max(smooth, 3, 2, fill=-1.0), smooth >= threshold)
        is_top = ops.logical_and(is_top, alive)

        since = ops.full((batch,), self.wait, dtype=ms.int32)
        kept = []
        for t in range(frames):
            take = ops.logical_and(is_top[:, t], since >= self.wait)
            since = ops.where(take, ops.ones_like(since), since + 1)
            kept.append(take)
        height = smooth * ops.stack(kept, axis=1).astype(ms.float32)
        value, index = ops.topk(height, self.count)
        ordered = ops.where(value > 0, index.astype(ms.float32), ops.full_like(value, float(frames)))
        ordered, order = ops.sort(ordered, axis=1)
        top = vertex(*neighbours(smooth, ordered.astype(ms.int32)))
        seconds = (ordered + top) / FRAME_RATE
        seconds = ops.where(ordered < frames, seconds, ops.full_like(seconds, -1.0))
        return seconds, ops.gather_elements(value, 1, order)


class PeriodViterbi(nn.Cell):
    """States are (period, position), period by period; the first position of a period is reached from any last one."""

    def __init__(self, stiffness=40.0, beat_part=5):
        super().__init__()
        self.count = int(PERIODS.sum())
        ends = np.cumsum(PERIODS) - 1
        begins = ends - PERIODS + 1
        kind = np.repeat(np.arange(len(PERIODS)), PERIODS)
        position = np.arange(self.count) - begins[kind]
        self.ends, self.kind, self.position = as_index(ends), as_index(kind), as_index(position)
        self.near_beat = as_index(position < PERIODS[kind] / beat_part)
        self.parts = beat_part
        came_from = np.arange(self.count) - 1
        came_from[begins] = self.count + np.arange(len(PERIODS))
        self.came_from = as_index(came_from)
        # rows: the period left, columns: the period entered
        logits = -stiffness * np.abs(PERIODS[None, :] / PERIODS[:, None] - 1.0)
        self.turn = as_float(logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))
        self.log_period = as_float(np.log(PERIODS))

    def construct(self, act, shares, alive):
        batch, frames = act.shape
        act = ops.clamp(act, 1e-5, 1 - 1e-5)
        densities = ops.log(ops.stack(((1.0 - act) / (self.parts - 1), act), axis=-1))
        densities = ops.gather(densities, self.near_beat, 2)
        score = ops.gather(ops.log(shares) - self.log_period, self.kind, 1) + densities[:, 0]
        itself = ops.broadcast_to(as_index(np.arange(self.count)), (batch, self.count))
        evidence, back = [ops.logsumexp(score, 1)], []
        for t in range(1, frames):
            leaving = ops.gather(score, self.ends, 1).expand_dims(2) + self.turn
            entered, source = ops.max(leaving, axis=1)
            origin = ops.gather(self.ends, source.astype(ms.int32), 0)
            before = ops.gather(ops.cat((score, entered), axis=1), self.came_from, 1)
            link = ops.gather(ops.cat((itself, origin), axis=1), self.came_from, 1)
            going = alive[:, t : t + 1]
            score = ops.where(going, before + densities[:, t], score)
            back.append(ops.where(going, link, itself))
            evidence.append(ops.logsumexp(score, 1))

        best, state = ops.max(score, axis=1, keepdims=True)
        states = [state.astype(ms.int32)]
        for link in back[::-1]:
            states.append(ops.gather_elements(link, 1, states[-1]))
        path = ops.cat(states[::-1], axis=1)
        position = ops.gather(self.position, path, 0)
        starts = ops.cat((position[:, :1] == 0, position[:, 1:] < position[:, :-1]), axis=1)
        lengths = alive.astype(ms.float32).sum(axis=1)
        return path, ops.logical_and(starts, alive), best[:, 0] / lengths, ops.stack(evidence, 1) / lengths.expand_dims(1)


class BeatNet(nn.Cell):
    """(power, lengths, labels) to a dictionary of logits, tempo, peaks, decoded beats and the loss of each clip."""

    def __init__(self, width=24):
        super().__init__()
        self.mel = MelFlux()
        self.stem = BandStem(width)
        self.stack = DilatedStack(width)
        self.transformer = Transformer(width)
        self.beat_fc = nn.Dense(width, 2)
        self.period_head = PeriodHead(width, len(PERIODS))
        self.histogram = PeriodHistogram()
        self.pick = PickPeaks()
        self.viterbi = PeriodViterbi()

    @staticmethod
    def shifted_entropy(logits, target, alive, slack=1):
        """Binary cross entropy against the best logit within the slack; twice the slack about a beat is left out."""
        weight = alive.astype(ms.float32)
        best = running_max(logits, slack, slack)
        away = 1.0 - running_max(target, 2 * slack, 2 * slack)
        hits = (target * weight).sum(axis=1, keepdims=True)
        misses = (away * weight).sum(axis=1, keepdims=True)
        balance = misses / ops.clamp(hits, min=1.0)
        entropy = balance * target * ops.softplus(-best) + away * ops.softplus(best)
        return (entropy * weight).sum(axis=1) / (balance * hits + misses)[:, 0]

    def construct(self, power, lengths, labels):
        alive = as_index(np.arange(power.shape[1])).reshape(1, -1) < lengths.astype(ms.int32).reshape(-1, 1)
        weight = alive.astype(ms.float32)
        x, increments = self.stack(self.stem(self.mel(power, alive)), alive)
        logits = self.beat_fc(self.transformer(x, alive)) * weight.expand_dims(2)
        downbeat = logits[..., 1]
        beat = logits[..., 0] + downbeat
        log_probs = self.period_head(increments, alive)

        act = ops.sigmoid(beat) * weight
        down = ops.minimum(ops.sigmoid(downbeat) * weight, act)
        shares, bpm = self.histogram(act, log_probs, alive)
        seconds, heights = self.pick(act, alive)
        path, beats, log_p, evidence = self.viterbi(act, shares, alive)
        beats = beats.astype(ms.float32)
        usual, _ = statistics(down, beats, 1)
        downbeats = beats * (down > usual).astype(ms.float32)
        loss = self.shifted_entropy(beat, (labels > 0).astype(ms.float32), alive)
        loss = loss + 0.5 * self.shifted_entropy(downbeat, (labels == 2).astype(ms.float32), alive)
        return {
            "beat": beat, "downbeat": downbeat, "tempo_log_probs": log_probs, "tempo": shares, "bpm": bpm,
            "peak_seconds": seconds, "peak_strength": heights, "path": path, "beats": beats, "downbeats": downbeats,
            "log_p": log_p, "trellis": evidence, "loss": loss,
        }


def build():
    """The net for evaluation (weights come from the reference) and the three clips."""
    net = BeatNet()
    net.set_train(False)
    return net, tuple(Tensor(array) for array in demo_clips())
