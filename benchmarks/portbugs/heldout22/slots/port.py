"""Slot attention for clips of video in MindSpore: the correct port."""

from __future__ import annotations

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

LOWEST = float(np.finfo(np.float32).min)


def corner_distances(height, width):
    """(1, 4, height, width): how far each place is from the top, the left, the bottom and the right."""
    rows = np.linspace(0.0, 1.0, height, dtype=np.float32)
    cols = np.linspace(0.0, 1.0, width, dtype=np.float32)
    y = np.repeat(rows[:, None], width, axis=1)
    x = np.repeat(cols[None, :], height, axis=0)
    return np.stack([y, x, 1.0 - y, 1.0 - x])[None].astype(np.float32)


def place_table(height, width):
    """(height * width, 2): row and column of the middle of each pixel, as parts of the image."""
    index = np.arange(height * width)
    rows = (index // width + 0.5) / height
    cols = (index % width + 0.5) / width
    return Tensor(np.stack([rows, cols], axis=1).astype(np.float32))


def unit(x):
    """Vectors of length one along the last axis."""
    length = ops.sqrt((x * x).sum(axis=-1, keepdims=True))
    return x / ops.clamp(length, min=1e-12)


def conv(in_channels, out_channels, kernel, padding, **kwargs):
    return nn.Conv2d(in_channels, out_channels, kernel, pad_mode="pad", padding=padding, **kwargs)


def layer_norm(width):
    return nn.LayerNorm((width,), epsilon=1e-5)


class SidesEmbed(nn.Cell):
    """Soft position embedding."""

    def __init__(self, width, size):
        super().__init__()
        self.proj = nn.Dense(4, width)
        table = corner_distances(*size)
        self.table = Tensor(table.transpose(0, 2, 3, 1).reshape(-1, 4))
        self.size = size

    def construct(self, x):
        height, width = self.size
        places = self.proj(self.table)
        return x + places.swapaxes(0, 1).reshape(1, -1, height, width)


class FrameEncoder(nn.Cell):
    """Convolutions, places, and a perceptron on each place."""

    def __init__(self, image_size, channels, hidden):
        super().__init__()
        c1, c2, c3 = channels
        self.conv1 = conv(3, c1, 5, 2)
        self.bn1 = nn.BatchNorm2d(c1, eps=1e-3, momentum=0.9)
        self.conv2 = conv(c1, c2, 5, 2, stride=2, has_bias=True)
        self.norm2 = nn.GroupNorm(4, c2, eps=1e-5)
        self.conv3 = conv(c2, c3, 3, padding=2, dilation=2, group=2, has_bias=True)
        self.pos = SidesEmbed(c3, (image_size[0] // 2, image_size[1] // 2))
        self.norm = layer_norm(c3)
        self.fc1 = nn.Dense(c3, hidden)
        self.fc2 = nn.Dense(hidden, c3)

    def construct(self, frames):
        """(frames, 3, height, width) -> (frames, places, channels)"""
        x = 2.0 * frames - 1.0
        x = ops.relu(self.bn1(self.conv1(x)))
        x = ops.relu(self.norm2(self.conv2(x)))
        x = self.pos(ops.relu(self.conv3(x)))
        n, c, height, width = x.shape
        x = x.reshape(n, c, height * width).transpose(0, 2, 1)
        x = self.fc2(ops.relu(self.fc1(self.norm(x))))
        return x, (height, width)


class Corrector(nn.Cell):
    """Slot attention: the slots share each place among them, and take the mean of what they got."""

    def __init__(self, in_width, width, hidden, eps=1e-8):
        super().__init__()
        self.width = width
        self.eps = eps
        self.norm_inputs = nn.LayerNorm((in_width,), epsilon=1e-5)
        self.norm_slots = layer_norm(width)
        self.norm_mlp = layer_norm(width)
        self.to_q = nn.Dense(width, width, has_bias=False)
        self.to_k = nn.Dense(in_width, width, has_bias=False)
        self.to_v = nn.Dense(in_width, width, has_bias=False)
        self.gru = nn.GRUCell(width, width)
        self.fc1 = nn.Dense(width, hidden)
        self.fc2 = nn.Dense(hidden, width)

    def share(self, slots, keys, unused):
        """(batch, slots, places): the weights of each slot sum to one over the places."""
        query = self.to_q(self.norm_slots(slots))
        logits = ops.matmul(query, keys.swapaxes(1, 2)) / np.sqrt(self.width).item()
        logits = ops.masked_fill(logits, unused, LOWEST)
        shares = ops.softmax(logits, axis=1) + self.eps
        return shares / shares.sum(axis=2, keepdims=True)

    def construct(self, features, slots, slot_mask, turns):
        batch, count, width = slots.shape
        features = self.norm_inputs(features)
        keys = self.to_k(features)
        values = self.to_v(features)
        unused = ops.logical_not(slot_mask).expand_dims(2)
        weights = None
        state = slots.reshape(-1, width)
        for _ in range(turns):
            weights = self.share(state.reshape(batch, count, width), keys, unused)
            update = ops.matmul(weights, values)
            hidden = self.gru(update.reshape(-1, width), state)
            state = hidden + self.fc2(ops.relu(self.fc1(self.norm_mlp(hidden))))
        return state.reshape(batch, count, width), weights


class MaskedAttention(nn.Cell):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.scale = (width // heads) ** -0.5
        self.qkv = nn.Dense(width, 3 * width)
        self.proj = nn.Dense(width, width)

    def split_heads(self, x):
        b, length, width = x.shape
        return x.reshape(b, length, self.heads, width // self.heads).swapaxes(1, 2)

    def construct(self, x, key_mask):
        query, key, value = (self.split_heads(part) for part in ops.chunk(self.qkv(x), 3, axis=-1))
        logits = ops.matmul(query, key.swapaxes(2, 3)) * self.scale
        hidden_keys = ops.logical_not(key_mask)[:, None, None, :]
        weights = ops.softmax(ops.masked_fill(logits, hidden_keys, LOWEST), axis=-1)
        out = ops.matmul(weights, value).swapaxes(1, 2)
        return self.proj(out.reshape(x.shape))


class TransformerLayer(nn.Cell):
    def __init__(self, width, heads, hidden):
        super().__init__()
        self.norm1 = layer_norm(width)
        self.attn = MaskedAttention(width, heads)
        self.norm2 = layer_norm(width)
        self.fc1 = nn.Dense(width, hidden)
        self.act = nn.GELU(approximate=False)
        self.fc2 = nn.Dense(hidden, width)

    def construct(self, x, key_mask):
        x = x + self.attn(self.norm1(x), key_mask)
        x = x + self.fc2(self.act(self.fc1(self.norm2(x))))
        return x


class Predictor(nn.Cell):
    """A step from the last slots, out of a transformer over the slots of the last few frames."""

    def __init__(self, slot_width, width, heads, hidden, depth, window):
        super().__init__()
        self.window = window
        self.in_proj = nn.Dense(slot_width, width)
        self.time_embed = nn.Embedding(window, width)
        self.layers = nn.CellList([TransformerLayer(width, heads, hidden) for _ in range(depth)])
        self.norm = layer_norm(width)
        self.out_proj = nn.Dense(width, slot_width)

    def construct(self, past, past_mask, slot_mask):
        """past: a list of (batch, slots, channels), past_mask: a list of (batch,), the newest last."""
        past, past_mask = past[-self.window :], past_mask[-self.window :]
        n = len(past)
        batch, count, _ = past[0].shape
        ages = Tensor(np.arange(n)[::-1].copy(), ms.int32)
        x = self.in_proj(ops.stack(past, axis=1))
        x = x + self.time_embed(ages).reshape(1, n, 1, -1)
        x = x.reshape(batch, n * count, -1)
        visible = ops.logical_and(ops.stack(past_mask, axis=1)[:, :, None], slot_mask[:, None, :])
        visible = visible.reshape(batch, n * count)
        for layer in self.layers:
            x = layer(x, visible)
        newest = x[:, (n - 1) * count :]
        return past[-1] + self.out_proj(self.norm(newest))


class Matcher(nn.Cell):
    """Greedy matching of tracks and slots, as a matrix of zeros and ones (batch, tracks, slots)."""

    def __init__(self, slot_width, width, distance_weight):
        super().__init__()
        self.distance_weight = distance_weight
        self.proj_track = nn.Dense(slot_width, width)
        self.proj_slot = nn.Dense(slot_width, width)

    def greedy(self, score):
        batch, count, _ = score.shape
        chosen = ops.zeros_like(score)
        for _ in range(count):
            best = ops.argmax(score.reshape(batch, count * count), dim=1).astype(ms.int32)
            track = ops.one_hot(best // count, count, Tensor(1.0, ms.float32), Tensor(0.0, ms.float32))
            slot = ops.one_hot(best % count, count, Tensor(1.0, ms.float32), Tensor(0.0, ms.float32))
            chosen = chosen + track.expand_dims(2) * slot.expand_dims(1)
            taken = (track.expand_dims(2) + slot.expand_dims(1)) > 0
            score = ops.masked_fill(score, taken, LOWEST)
        return chosen

    def construct(self, tracks, slots, track_places, slot_places, slot_mask):
        score = ops.bmm(unit(self.proj_track(tracks)), unit(self.proj_slot(slots)).swapaxes(1, 2))
        apart = track_places.expand_dims(2) - slot_places.expand_dims(1)
        score = score - self.distance_weight * ops.sqrt(ops.square(apart).sum(axis=-1))
        used = slot_mask.astype(ms.int32)
        mixed = ops.not_equal(used.expand_dims(2), used.expand_dims(1))
        return self.greedy(ops.where(mixed, Tensor(-100.0, ms.float32), score))


class Painter(nn.Cell):
    """Spatial broadcast decoder."""

    def __init__(self, width, channels, size):
        super().__init__()
        c1, c2 = channels
        self.size = size
        self.pos = SidesEmbed(width, size)
        self.deconv1 = nn.Conv2dTranspose(width, c1, 4, stride=2, pad_mode="pad", padding=1, has_bias=True)
        self.conv2 = conv(c1, c2, 5, 2, has_bias=True)
        self.conv3 = conv(c2, 4, 3, 1, has_bias=True)

    def paint(self, slots):
        """(n, channels) -> (n, 4, height, width)"""
        height, width = self.size
        x = ops.tile(slots[:, :, None, None], (1, 1, height, width))
        x = ops.relu(self.deconv1(self.pos(x)))
        x = ops.interpolate(x, size=(4 * height, 4 * width), mode="bilinear", align_corners=False)
        return self.conv3(ops.relu(self.conv2(x)))

    def construct(self, slots, slot_mask):
        batch, frames, count, width = slots.shape
        painted = self.paint(slots.reshape(-1, width))
        height, width = painted.shape[2:]
        painted = painted.reshape(batch, frames, count, 4, height, width)
        colours, alpha = painted[:, :, :, :3], painted[:, :, :, 3]
        unused = ops.logical_not(slot_mask).reshape(batch, 1, count, 1, 1)
        alpha = ops.masked_fill(alpha, unused, LOWEST)
        masks = ops.softmax(alpha, axis=2)
        image = (ops.sigmoid(colours) * masks.expand_dims(3)).sum(axis=2)
        return image, masks


class Readout(nn.Cell):
    """Scores of the classes for each track."""

    def __init__(self, width, hidden, classes):
        super().__init__()
        self.norm = layer_norm(width)
        self.fc1 = nn.Dense(width, hidden)
        self.act = nn.LeakyReLU(alpha=0.1)
        self.fc2 = nn.Dense(hidden, classes)

    def construct(self, tracks, frame_mask, slot_mask):
        x = self.fc1(self.norm(tracks))
        x = ops.masked_fill(x, ops.logical_not(frame_mask)[:, :, None, None], LOWEST)
        x = self.fc2(self.act(x.max(axis=1)))
        return x * slot_mask.astype(x.dtype).expand_dims(-1)


class SlotVideoNet(nn.Cell):
    """Clips to images, masks, tracks and their places, scores, and the slots of the frame to come."""

    def __init__(self, image_size=(24, 32), width=28, turns=(3, 2)):
        super().__init__()
        self.turns = turns
        self.slots_mu = Parameter(Tensor(np.zeros((1, 1, width), np.float32)), name="slots_mu")
        self.slots_log_sigma = Parameter(Tensor(np.zeros((1, 1, width), np.float32)), name="slots_log_sigma")
        self.encoder = FrameEncoder(image_size, (16, 20, 26), 34)
        self.corrector = Corrector(26, width, 42)
        self.predictor = Predictor(width, 36, heads=3, hidden=52, depth=2, window=4)
        self.matcher = Matcher(width, 10, distance_weight=0.5)
        self.decoder = Painter(width, (22, 14), (6, 8))
        self.readout = Readout(width, 30, 9)

    def encode(self, video):
        batch, frames = video.shape[:2]
        x, (height, width) = self.encoder(video.reshape((batch * frames,) + video.shape[2:]))
        return x.reshape(batch, frames, height * width, -1), place_table(height, width)

    def first_slots(self, noise):
        sigma = ops.exp(self.slots_log_sigma)
        return self.slots_mu + sigma * noise

    def construct(self, video, frame_mask, slot_mask, noise):
        batch, frames = video.shape[:2]
        features, table = self.encode(video)
        guess = self.first_slots(noise)

        past, past_mask = [], []
        tracks, track_places = [], []
        known = known_places = places = None
        for t in range(frames):
            there = frame_mask[:, t]
            gate = there.reshape(batch, 1, 1)
            turns = self.turns[min(t, 1)]
            corrected, weights = self.corrector(features[:, t], guess, slot_mask, turns)
            slots = ops.where(gate, corrected, guess)
            seen = ops.matmul(weights, table)
            places = seen if places is None else ops.where(gate, seen, places)
            past.append(slots)
            past_mask.append(there)

            if t == 0:
                ordered, ordered_places = slots, places
                known, known_places = slots, places
            else:
                chosen = self.matcher(known, slots, known_places, places, slot_mask)
                ordered = ops.matmul(chosen, slots)
                ordered_places = ops.matmul(chosen, places)
                known = ops.where(gate, ordered, known)
                known_places = ops.where(gate, ordered_places, known_places)
            tracks.append(ordered)
            track_places.append(ordered_places)
            guess = self.predictor(past, past_mask, slot_mask)

        tracks = ops.stack(tracks, axis=1)
        track_places = ops.stack(track_places, axis=1)
        image, masks = self.decoder(tracks, slot_mask)
        scores = self.readout(tracks, frame_mask, slot_mask)

        keep = frame_mask.astype(tracks.dtype).reshape(batch, frames, 1, 1)
        used = slot_mask.astype(tracks.dtype).reshape(batch, 1, -1, 1)
        image = image * keep.expand_dims(-1)
        masks = masks * keep.expand_dims(-1)
        return image, masks, tracks * keep * used, track_places * keep, scores, guess


def build():
    """The net alone, for evaluation: weights and inputs come from the reference's dump."""
    net = SlotVideoNet()
    net.set_train(False)
    return net
