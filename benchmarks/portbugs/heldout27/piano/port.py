"""Transcription of piano recordings to notes in MindSpore."""

from __future__ import annotations

import numpy as np

import mindspore as ms
from mindspore import Tensor, nn, ops

SAMPLE_RATE = 8000
WINDOW, FFT, HOP = 400, 512, 160
MEL_BINS, MEL_LOW, MEL_HIGH = 48, 30.0, 4000.0
POWER_FLOOR = 1e-10
LOWEST_NOTE, KEYS = 48, 24
VELOCITY_SCALE = 128
FRAMES_PER_SECOND = SAMPLE_RATE / HOP

# codes of the label roll
OFFSET, FRAME, ONSET = 1, 2, 3


def slaney_edges(low, high, count):
    """Frequencies at equal distances on Slaney's scale of mels."""
    linear, knee, step = 200.0 / 3, 1000.0, np.log(6.4) / 27.0

    def to_mel(hz):
        return hz / linear if hz < knee else knee / linear + np.log(hz / knee) / step

    mels = np.linspace(to_mel(low), to_mel(high), count)
    return np.where(mels < knee / linear, mels * linear, knee * np.exp(step * (mels - knee / linear)))


def mel_matrix():
    """(bins of the transform, mel bins); each triangle has unit area."""
    freqs = np.arange(FFT // 2 + 1) * SAMPLE_RATE / FFT
    edges = slaney_edges(MEL_LOW, MEL_HIGH, MEL_BINS + 2)
    width = np.diff(edges)
    ramps = freqs[:, None] - edges[None, :]
    triangles = np.minimum(ramps[:, :-2] / width[:-1], -ramps[:, 2:] / width[1:])
    return np.clip(triangles, 0, None) * 2.0 / (edges[2:] - edges[:-2])


def frame_mask(frames, size):
    """(batch, size, 1), one where a frame belongs to the recording."""
    inside = ops.arange(size).reshape(1, size, 1) < frames.reshape(-1, 1, 1)
    return inside.astype(ms.float32)


class LogMelSpectrogram(nn.Cell):
    """Waveform to decibels on the mel scale; the windowed transform is a product with two matrices."""

    def __init__(self):
        super().__init__()
        side = (FFT - WINDOW) // 2
        window = np.pad(np.hanning(WINDOW + 1)[:-1], (side, side))
        phase = 2.0 * np.pi / FFT * np.outer(np.arange(FFT), np.arange(FFT // 2 + 1))
        self.cosine = Tensor((np.cos(phase) * window[:, None]).astype(np.float32))
        self.sine = Tensor((np.sin(phase) * window[:, None]).astype(np.float32))
        self.mel = Tensor(mel_matrix().astype(np.float32))

    def construct(self, audio):
        padded = ops.pad(audio, (FFT // 2, FFT // 2), mode="reflect")
        count = (padded.shape[-1] - FFT) // HOP + 1
        index = np.arange(count)[:, None] * HOP + np.arange(FFT)[None, :]
        frames = ops.gather(padded, Tensor(index.astype(np.int32)), 1)
        power = ops.square(ops.matmul(frames, self.cosine)) + ops.square(ops.matmul(frames, self.sine))
        mel = ops.matmul(power, self.mel)
        return 10.0 * ops.log10(ops.clamp(mel, min=POWER_FLOOR))


class BidirectionalLSTM(nn.Cell):
    """One LSTM for each direction; the second gets every recording reversed within its own length."""

    def __init__(self, input_size, hidden_size):
        super().__init__()
        self.ahead = nn.LSTM(input_size, hidden_size, batch_first=True)
        self.back = nn.LSTM(input_size, hidden_size, batch_first=True)

    def construct(self, x, frames):
        ahead, _ = self.ahead(x)
        back, _ = self.back(ops.reverse_sequence(x, frames, seq_dim=1))
        back = ops.reverse_sequence(back, frames, seq_dim=1)
        return ops.cat((ahead, back), axis=-1)


class ConvBlock(nn.Cell):
    """Two masked convolutions and pooling over pairs of frequencies."""

    def __init__(self, in_channels, out_channels, dilation):
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, pad_mode="same")
        self.bn1 = nn.BatchNorm2d(out_channels, momentum=0.99)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, pad_mode="same", dilation=(dilation, 1))
        self.bn2 = nn.BatchNorm2d(out_channels, momentum=0.99)
        self.act = nn.GELU(approximate=False)
        self.pool = nn.AvgPool2d(kernel_size=(1, 2), stride=(1, 2))

    def construct(self, x, mask):
        x = self.act(self.bn1(self.conv1(x))) * mask
        x = self.act(self.bn2(self.conv2(x))) * mask
        return self.pool(x)


class AcousticStack(nn.Cell):
    """Logits (batch, frames, keys) from the spectrogram (batch, 1, frames, mel bins)."""

    def __init__(self, channels=(8, 12, 16), hidden=48, rnn_size=20, dilation=1):
        super().__init__()
        widths = (1,) + tuple(channels)
        self.blocks = nn.CellList([ConvBlock(i, o, dilation) for i, o in zip(widths[:-1], widths[1:])])
        self.fc = nn.Dense(widths[-1] * (MEL_BINS >> len(channels)), hidden, has_bias=False)
        self.bn = nn.BatchNorm1d(hidden, momentum=0.99)
        self.dropout = nn.Dropout(p=0.5)
        self.rnn = BidirectionalLSTM(hidden, rnn_size)
        self.head = nn.Dense(2 * rnn_size, KEYS)

    def construct(self, x, frames, mask):
        batch, _, size, _ = x.shape
        for block in self.blocks:
            x = block(x, mask.expand_dims(1))
        x = x.transpose(0, 2, 1, 3).reshape(batch * size, -1)
        x = ops.relu(self.bn(self.fc(x)))
        x = self.dropout(x).reshape(batch, size, -1)
        return self.head(self.rnn(x, frames))


class VelocityStack(nn.Cell):
    """A shallow stack for the loudness, with mean and maximum over the frequencies."""

    def __init__(self, width=16, rnn_size=20):
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, (3, 5), pad_mode="pad", padding=(1, 1, 2, 2))
        self.bn1 = nn.BatchNorm2d(width, momentum=0.99)
        self.pool = nn.AvgPool2d((1, 4), stride=(1, 4))
        self.conv2 = nn.Conv2d(width, 2 * width, 3, pad_mode="pad", padding=1)
        self.bn2 = nn.BatchNorm2d(2 * width, momentum=0.99)
        self.rnn = BidirectionalLSTM(2 * width, rnn_size)
        self.head = nn.Dense(2 * rnn_size, KEYS)

    def construct(self, x, frames, mask):
        x = self.pool(ops.relu(self.bn1(self.conv1(x))) * mask.expand_dims(1))
        x = ops.relu(self.bn2(self.conv2(x)))
        x = x.mean(axis=-1) + x.max(axis=-1)
        return self.head(self.rnn(x.swapaxes(1, 2), frames))


def soften(roll, radius=4):
    """Marks of single frames to triangles; where two overlap the higher one counts."""
    size = roll.shape[1]
    padded = ops.pad(roll, (0, 0, radius, radius))
    shifted = [
        padded[:, radius + d : radius + d + size] * (1.0 - abs(d) / radius) for d in range(1 - radius, radius)
    ]
    return ops.stack(shifted).max(axis=0)


def frame_weights(onset, frame, attack=3, peak=5.0):
    """Weights for the loss of the frames: high in a note's attack, then falling as 1 / time."""
    time = ops.arange(onset.shape[1]).astype(ms.float32).reshape(1, -1, 1)
    struck, _ = ops.cummax(ops.where(onset > 0, time, -1e6), axis=1)
    since_attack = time - struck - attack + 1
    weight = ops.clamp(peak / ops.clamp(since_attack, min=1.0), min=1.0)
    return ops.where(frame > 0, weight, ops.ones_like(weight))


class TranscriptionLoss(nn.Cell):
    """The losses of onsets, offsets, frames and velocities, then their weighted sum."""

    def __init__(self, weights=(1.0, 0.5, 1.0, 4.0)):
        super().__init__()
        self.weights = Tensor(np.array(weights, np.float32))

    @staticmethod
    def cross_entropy(prob, target, weight, mask):
        prob = ops.clamp(prob, 1e-6, 1.0 - 1e-6)
        loss = ops.binary_cross_entropy(prob, target, weight, reduction="none")
        return (loss * mask).sum() / (mask.sum() * KEYS)

    def construct(self, onset, offset, frame, velocity, labels, velocity_labels, mask):
        onset_roll = (labels == ONSET).astype(ms.float32)
        offset_roll = (labels == OFFSET).astype(ms.float32)
        frame_roll = (labels >= FRAME).astype(ms.float32)
        even = ops.ones_like(onset)

        onset_loss = self.cross_entropy(onset, soften(onset_roll), even, mask)
        offset_loss = self.cross_entropy(offset, soften(offset_roll), even, mask)
        frame_loss = self.cross_entropy(frame, frame_roll, frame_weights(onset_roll, frame_roll), mask)
        error = ops.square(velocity - velocity_labels.astype(ms.float32) / VELOCITY_SCALE)
        velocity_loss = (error * onset_roll).sum() / ops.clamp(onset_roll.sum(), min=1.0)

        losses = ops.stack((onset_loss, offset_loss, frame_loss, velocity_loss))
        return ops.cat((losses, (losses * self.weights).sum().reshape(1)))


class NoteDecoder(nn.Cell):
    """From rolls of probabilities to a table of notes, frame after frame for all keys at once."""

    def __init__(self, onset_threshold=0.45, offset_threshold=0.4, frame_threshold=0.3, reach=2, patience=2,
                 max_notes=32):
        super().__init__()
        self.onset_threshold = onset_threshold
        self.offset_threshold = offset_threshold
        self.frame_threshold = frame_threshold
        self.reach = reach
        self.patience = patience
        self.max_notes = max_notes

    def peaks(self, roll, threshold):
        """Peaks (monotonic within reach), and where between the frames each of them lies."""
        size, r = roll.shape[1], self.reach
        here = roll[:, r : size - r]
        found = here > threshold
        for i in range(r):
            left_in, left_out = roll[:, r - i : size - r - i], roll[:, r - i - 1 : size - r - i - 1]
            right_in, right_out = roll[:, r + i : size - r + i], roll[:, r + i + 1 : size - r + i + 1]
            found = ops.logical_and(found, ops.logical_and(left_in >= left_out, right_in >= right_out))
        rise = here - roll[:, r - 1 : size - r - 1]
        fall = here - roll[:, r + 1 : size - r + 1]
        shift = 0.5 * (rise - fall) / ops.clamp(ops.maximum(rise, fall), min=1e-6)
        found = found.astype(ms.float32)
        edges = (0, 0, r, r)
        return ops.pad(found, edges) > 0.5, ops.pad(shift * found, edges)

    def construct(self, onset, offset, frame, velocity, frames):
        batch, size, keys = onset.shape
        onset_peak, onset_shift = self.peaks(onset, self.onset_threshold)
        offset_peak, offset_shift = self.peaks(offset, self.offset_threshold)
        low = frame < self.frame_threshold
        level = ops.floor(velocity * VELOCITY_SCALE)

        # what does not depend on the notes that sound
        time = ops.arange(size).astype(ms.float32).reshape(1, size, 1)
        limit = frames.astype(ms.float32).reshape(batch, 1, 1)
        over = time >= limit
        struck = ops.logical_and(onset_peak, ops.logical_not(over))
        finish = ops.logical_or(ops.logical_or(offset_peak, struck), over)
        stop = ops.minimum(time + offset_shift, limit)

        sounding = ops.zeros((batch, keys), ms.bool_)
        born = ops.zeros((batch, keys), ms.float32)
        loud = ops.zeros((batch, keys), ms.float32)
        silence = ops.zeros((batch, keys), ms.float32)
        ends, records = [], []
        for t in range(size):
            hit = struck[:, t]
            silence = ops.where(low[:, t], silence + 1, ops.zeros_like(silence))
            end = ops.logical_and(sounding, ops.logical_or(finish[:, t], silence > self.patience))
            ends.append(end)
            records.append(ops.stack((born, stop[:, t], loud)))
            sounding = ops.logical_or(ops.logical_and(sounding, ops.logical_not(end)), hit)
            born = ops.where(hit, ops.full_like(born, t), born)
            loud = ops.where(hit, level[:, t], loud)
            silence = ops.where(hit, ops.zeros_like(silence), silence)
        ends.append(sounding)
        records.append(ops.stack((born, ops.broadcast_to(limit[:, 0], born.shape), loud)))
        return self.table(ops.stack(ends, axis=1), ops.stack(records, axis=2), onset_shift)

    def table(self, ends, records, onset_shift):
        """The marked records of (born, stop, loud) as rows of onset, offset, note and velocity, in order of time."""
        born, stop, loud = records.asnumpy()
        shift = onset_shift.asnumpy()
        table = np.full((len(shift), self.max_notes, 4), -1.0, np.float32)
        counts = []
        for b, marks in enumerate(ends.asnumpy()):
            times, keys = np.nonzero(marks)
            start = born[b, times, keys].astype(np.int64)
            order = np.lexsort((keys, start))[: self.max_notes]
            times, keys, start = times[order], keys[order], start[order]
            rows = (
                (start + shift[b, start, keys]) / FRAMES_PER_SECOND,
                stop[b, times, keys] / FRAMES_PER_SECOND,
                keys + LOWEST_NOTE,
                loud[b, times, keys],
            )
            table[b, : len(order)] = np.stack(rows, axis=-1)
            counts.append(len(order))
        return Tensor(table), Tensor(np.array(counts, np.int64))


class PianoTranscription(nn.Cell):
    """Acoustic stacks for onsets, offsets, frames and velocities, and two recurrent layers that join them."""

    def __init__(self, rnn_size=20):
        super().__init__()
        self.spectrogram = LogMelSpectrogram()
        self.bn0 = nn.BatchNorm2d(MEL_BINS, momentum=0.99)
        self.onset_stack = AcousticStack()
        self.offset_stack = AcousticStack()
        self.frame_stack = AcousticStack(dilation=2)
        self.velocity_stack = VelocityStack()
        self.onset_rnn = BidirectionalLSTM(2 * KEYS, rnn_size)
        self.onset_fc = nn.Dense(2 * rnn_size, KEYS)
        self.frame_rnn = BidirectionalLSTM(3 * KEYS, rnn_size)
        self.frame_fc = nn.Dense(2 * rnn_size, KEYS)
        self.loss = TranscriptionLoss()
        self.decode = NoteDecoder()

    def construct(self, audio, audio_lengths, labels, velocity_labels):
        mel = self.spectrogram(audio)
        frames = (audio_lengths // HOP + 1).astype(ms.int32)
        mask = frame_mask(frames, mel.shape[1])

        # the mel bins are the channels of this norm
        x = self.bn0(mel.swapaxes(1, 2).expand_dims(-1)).transpose(0, 3, 2, 1)
        x = x * mask.expand_dims(1)

        coarse_onset = ops.sigmoid(self.onset_stack(x, frames, mask))
        offset = ops.sigmoid(self.offset_stack(x, frames, mask)) * mask
        coarse_frame = ops.sigmoid(self.frame_stack(x, frames, mask))
        velocity = ops.sigmoid(self.velocity_stack(x, frames, mask)) * mask

        struck = ops.sqrt(coarse_onset) * ops.stop_gradient(velocity)
        joint = self.onset_rnn(ops.cat((coarse_onset, struck), axis=-1), frames)
        onset = ops.sigmoid(self.onset_fc(joint)) * mask

        hints = ops.stop_gradient(ops.cat((onset, offset), axis=-1))
        joint = self.frame_rnn(ops.cat((coarse_frame, hints), axis=-1), frames)
        frame = ops.sigmoid(self.frame_fc(joint)) * mask

        losses = self.loss(onset, offset, frame, velocity, labels, velocity_labels, mask)
        rolls = [ops.stop_gradient(roll) for roll in (onset, offset, frame, velocity)]
        notes, counts = self.decode(*rolls, frames)
        return onset, offset, frame, velocity, losses, notes, counts


def random_pieces(seconds=(0.56, 0.38, 0.47), seed=11):
    """Recordings made of decaying partials and noise: audio, lengths in samples, label roll and velocity roll."""
    rng = np.random.RandomState(seed)
    samples = int(max(seconds) * SAMPLE_RATE)
    shape = (len(seconds), samples // HOP + 1, KEYS)
    audio = np.zeros((len(seconds), samples))
    labels, velocity = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for b, length in enumerate(seconds):
        begin = 0.05
        while begin < length - 0.1:
            for key in rng.choice(KEYS, 2, replace=False):
                loud = rng.randint(30, 120)
                end = min(begin + rng.uniform(0.06, 0.2), length - 0.02)
                time = np.arange(int((end - begin) * SAMPLE_RATE)) / SAMPLE_RATE
                pitch = 440.0 * 2.0 ** ((key + LOWEST_NOTE - 69) / 12)
                tone = sum(np.sin(2 * np.pi * pitch * h * time) / h for h in range(1, 6)) * np.exp(-3.0 * time)
                start = int(begin * SAMPLE_RATE)
                audio[b, start : start + len(tone)] += 0.2 * loud / 128 * tone
                first, last = int(round(begin * SAMPLE_RATE / HOP)), int(round(end * SAMPLE_RATE / HOP))
                labels[b, first + 1 : last, key] = FRAME
                labels[b, first, key], labels[b, last, key] = ONSET, OFFSET
                velocity[b, first:last, key] = loud
            begin += rng.uniform(0.05, 0.12)
        size = int(length * SAMPLE_RATE)
        audio[b, :size] += 3e-3 * rng.randn(size)
    lengths = np.array([int(length * SAMPLE_RATE) for length in seconds])
    return audio.astype(np.float32), lengths, labels, velocity


def build():
    """The net for evaluation and a batch of three recordings."""
    net = PianoTranscription()
    net.set_train(False)
    return net, tuple(Tensor(array) for array in random_pieces())
