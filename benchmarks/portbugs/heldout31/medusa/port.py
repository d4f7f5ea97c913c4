"""Speculative decoding with extra heads and a tree of guesses (Medusa) in MindSpore."""

from __future__ import annotations

import math

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

ms.set_context(mode=ms.PYNATIVE_MODE)

FLOAT_EPS = float(np.finfo(np.float32).eps)
LOWEST = float(np.finfo(np.float32).min)

VOCAB = 61
WIDTH = 48
PAD, EOS = 0, 2

# each path says which of its head's guesses is taken at every depth
PATHS = [
    (0,), (1,), (2,), (3,),
    (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0),
    (0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (2, 0, 0),
]


def ints(array):
    return Tensor(np.asarray(array, np.int32))


def take_nodes(x, nodes):
    """From (batch, heads, nodes, channels) those of (batch, kept), in that order."""
    index = nodes.reshape(nodes.shape[0], 1, -1, 1)
    index = ops.broadcast_to(index, (x.shape[0], x.shape[1], nodes.shape[1], x.shape[3]))
    return ops.gather_elements(x, 2, index)


def capped(x, limit):
    return ops.tanh(x / limit) * limit


class RootNorm(nn.Cell):
    """Divides by the root of the mean square."""

    def __init__(self, width, eps=1e-6):
        super().__init__()
        self.gain = Parameter(Tensor(np.ones(width, np.float32)), name="gain")
        self.eps = eps

    def construct(self, x):
        return x * ops.rsqrt(ops.square(x).mean(axis=-1, keep_dims=True) + self.eps) * self.gain


class Places(nn.Cell):
    """Rotary angles with frequencies stretched by parts; one cosine and one sine for each pair of channels."""

    def __init__(self, width, longest=64, theta=10000.0, factor=4.0, low=1.0, high=4.0, original=64):
        super().__init__()
        freq = 1.0 / theta ** (np.arange(0, width, 2) / width)
        turns = original * freq / (2 * np.pi)
        keep = np.clip((turns - low) / (high - low), 0.0, 1.0)
        freq = freq * (keep + (1.0 - keep) / factor)
        angles = np.arange(longest)[:, None] * freq[None, :]
        self.cos = Tensor(np.cos(angles).astype(np.float32))
        self.sin = Tensor(np.sin(angles).astype(np.float32))

    def construct(self, positions):
        cos = ops.gather(self.cos, positions, 0)
        sin = ops.gather(self.sin, positions, 0)
        return cos.expand_dims(1), sin.expand_dims(1)


def turn(x, cos, sin):
    """The first channels of a head are turned in pairs (i, i + half), the rest pass."""
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return ops.cat((a * cos - b * sin, b * cos + a * sin, rest), axis=-1)


class GroupedAttention(nn.Cell):
    def __init__(self, heads, kv_heads, channels, window=0, limit=6.0):
        super().__init__()
        self.heads, self.kv_heads, self.channels = heads, kv_heads, channels
        self.window = window
        self.limit = limit
        self.to_q = nn.Dense(WIDTH, heads * channels, has_bias=False)
        self.to_k = nn.Dense(WIDTH, kv_heads * channels, has_bias=False)
        self.to_v = nn.Dense(WIDTH, kv_heads * channels, has_bias=False)
        self.to_out = nn.Dense(heads * channels, WIDTH, has_bias=False)
        self.norm_q = RootNorm(channels, eps=FLOAT_EPS)
        self.norm_k = RootNorm(channels, eps=FLOAT_EPS)
        self.sink = Parameter(Tensor(np.zeros(heads, np.float32)), name="sink")

    def construct(self, x, angles, visible, offset, memory):
        batch, count, _ = x.shape
        cos, sin = angles
        q = self.norm_q(self.to_q(x).reshape(batch, count, self.heads, self.channels)).swapaxes(1, 2)
        k = self.norm_k(self.to_k(x).reshape(batch, count, self.kv_heads, self.channels)).swapaxes(1, 2)
        v = self.to_v(x).reshape(batch, count, self.kv_heads, self.channels).swapaxes(1, 2)
        q, k = turn(q, cos, sin), turn(k, cos, sin)
        fresh = (k, v)
        if memory is not None:
            k = ops.cat((memory[0], k), axis=2)
            v = ops.cat((memory[1], v), axis=2)

        # neighbouring heads of the queries share one of the keys
        groups = self.heads // self.kv_heads
        q = q.reshape(batch, self.kv_heads, groups, count, self.channels)
        logits = ops.matmul(q, k.expand_dims(2).swapaxes(-1, -2)).reshape(batch, self.heads, count, -1)
        logits = capped(logits / math.sqrt(self.channels), self.limit)
        if self.window:
            visible = ops.logical_and(visible, offset < self.window)
        logits = ops.masked_fill(logits, ops.logical_not(visible).expand_dims(1), LOWEST)

        sink = self.sink.reshape(1, self.heads, 1, 1)
        top = ops.maximum(logits.max(axis=-1, keepdims=True), sink)
        weights = ops.exp(logits - top)
        weights = weights / (weights.sum(axis=-1, keepdims=True) + ops.exp(sink - top))
        weights = weights.reshape(batch, self.kv_heads, groups, count, -1)
        out = ops.matmul(weights, v.expand_dims(2)).reshape(batch, self.heads, count, self.channels)
        return self.to_out(out.swapaxes(1, 2).reshape(batch, count, -1)), fresh


class Gated(nn.Cell):
    def __init__(self, hidden):
        super().__init__()
        self.gate = nn.Dense(WIDTH, hidden, has_bias=False)
        self.value = nn.Dense(WIDTH, hidden, has_bias=False)
        self.out = nn.Dense(hidden, WIDTH, has_bias=False)
        self.act = nn.GELU(approximate=False)

    def construct(self, x):
        return self.out(self.value(x) * self.act(self.gate(x)))


class Block(nn.Cell):
    def __init__(self, window, damp=0.45):
        super().__init__()
        self.damp = damp
        self.before = RootNorm(WIDTH)
        self.attention = GroupedAttention(6, 2, 12, window)
        self.between = RootNorm(WIDTH)
        self.feed = Gated(80)

    def construct(self, x, angles, visible, offset, memory):
        mixed, fresh = self.attention(self.before(x), angles, visible, offset, memory)
        x = x + self.damp * mixed
        x = x + self.damp * self.feed(self.between(x))
        return x, fresh


class Residual(nn.Cell):
    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(WIDTH, WIDTH)
        self.act = nn.SiLU()

    def construct(self, x):
        return x + self.act(self.dense(x))


class Guessers(nn.Cell):
    """All the heads; each adds its own vector to the state first."""

    def __init__(self, count, blocks):
        super().__init__()
        self.marks = Parameter(Tensor(np.zeros((count, WIDTH), np.float32)), name="marks")
        self.heads = nn.CellList([
            nn.SequentialCell([Residual() for _ in range(blocks)] + [nn.Dense(WIDTH, VOCAB, has_bias=False)])
            for _ in range(count)
        ])

    def construct(self, state):
        out = []
        for depth, head in enumerate(self.heads):
            out.append(head(state + self.marks[depth]))
        return ops.stack(out, axis=0)


class GuessTree(nn.Cell):
    """Nodes in the order of their depth, the root first; tables of numpy, made once."""

    def __init__(self, paths, width):
        super().__init__()
        self.width = width
        order = [()] + sorted(paths, key=lambda p: (len(p), p))
        where = {p: i for i, p in enumerate(order)}
        parent = [where[p[:-1]] if p else -1 for p in order]
        sees = np.zeros((len(order), len(order)), bool)
        for node in range(len(order)):
            at = node
            while at >= 0:
                sees[node, at] = True
                at = parent[at]
        self.depth = ints([len(p) for p in order])
        self.source = ints([0] + [1 + width * (len(p) - 1) + p[-1] for p in order[1:]])
        self.sees = Tensor(sees)

        leaves = [p for p in order if where[p] not in parent]
        self.reach = 1 + max(len(p) for p in leaves)
        walk = np.full((len(leaves), self.reach), -1)
        for row, p in enumerate(leaves):
            for stop in range(len(p) + 1):
                walk[row, stop] = where[p[:stop]]
        self.walk = ints(np.maximum(walk, 0))
        self.real = Tensor(walk >= 0)

    def construct(self, first, guess_logits, lengths):
        batch = first.shape[0]
        _, guesses = ops.topk(guess_logits, self.width, dim=-1)
        guesses = guesses.astype(ms.int32).transpose(1, 0, 2).reshape(batch, -1)
        pool = ops.cat((first.reshape(batch, 1), guesses), axis=1)
        tokens = ops.gather(pool, self.source, 1)
        positions = lengths.reshape(batch, 1) + self.depth.reshape(1, -1)
        return tokens, positions, ops.broadcast_to(self.sees.expand_dims(0), (batch,) + tuple(self.sees.shape))


class Judge(nn.Cell):
    """Typical acceptance: a guess passes if it is likely enough for how certain the model is."""

    def __init__(self, temperature=0.7, ceiling=0.15, alpha=0.55, fade=0.9):
        super().__init__()
        self.temperature = temperature
        self.ceiling, self.alpha, self.fade = ceiling, alpha, fade

    def construct(self, tokens, logits, walk, real, turn_number):
        batch, size = tokens.shape
        rows, reach = walk.shape
        probs = ops.softmax(logits / self.temperature, axis=-1)
        entropy = -(probs * ops.log(probs + 1e-5)).sum(axis=-1)
        ceiling = self.ceiling * self.fade**turn_number
        threshold = ops.clamp(self.alpha * ops.exp(-entropy), max=ceiling)

        # what every node says of the one that follows it on the path
        here, following = walk[:, :-1].reshape(-1), walk[:, 1:].reshape(-1)
        guesses = ops.gather(tokens, following, 1)
        chance = ops.gather_elements(ops.gather(probs, here, 1), 2, guesses.expand_dims(-1)).squeeze(-1)
        passed = ops.logical_and(chance > ops.gather(threshold, here, 1), real[:, 1:].reshape(1, -1))
        passed = passed.astype(ms.float32).reshape(batch, rows, reach - 1)
        passed = ops.cumprod(passed, dim=-1)
        count = passed.sum(axis=-1)
        likelihood = (ops.log(chance + 1e-9).reshape(batch, rows, reach - 1) * passed).sum(axis=-1)

        longest = count.max(axis=1, keepdims=True)
        best = ops.argmax(ops.masked_fill(likelihood, count < longest, LOWEST), dim=1).astype(ms.int32)
        pick = best.reshape(batch, 1)
        count = ops.gather_elements(count, 1, pick).reshape(batch).astype(ms.int32)
        return best, count, ops.gather_elements(likelihood, 1, pick).reshape(batch)


class Objective(nn.Cell):
    """Smoothed cross entropy, a mean over the tokens of an answer and then over the answers."""

    def __init__(self, smoothing=0.05, decay=0.8, weight=0.2, step=300, warmup=800):
        super().__init__()
        self.smoothing = smoothing
        ramp = weight * math.sin(min(step / warmup, 1.0) * math.pi / 2)
        self.scales = [1.0] + [ramp * decay ** (i + 1) for i in range(3)]

    def construct(self, all_logits, ids, lengths, begin):
        batch, size = ids.shape
        place = ops.arange(size).astype(ms.int32).reshape(1, size)
        answer = ops.logical_and(place >= begin.reshape(batch, 1), place < lengths.reshape(batch, 1))
        answer = answer.astype(ms.float32)
        losses = []
        for ahead, logits in enumerate(all_logits, start=1):
            log_probs = ops.log_softmax(logits[:, : size - ahead], axis=-1)
            hit = ops.gather_elements(log_probs, 2, ids[:, ahead:].expand_dims(-1)).squeeze(-1)
            cost = -(1.0 - self.smoothing) * hit - self.smoothing * log_probs.mean(axis=-1)
            counted = answer[:, ahead:]
            per_answer = (cost * counted).sum(axis=1) / ops.clamp(counted.sum(axis=1), min=1.0)
            losses.append(per_answer.mean())
        total = sum(scale * loss for scale, loss in zip(self.scales, losses))
        return total, ops.stack(losses)


def discourage(logits, seen, penalty):
    """Lower the logits of tokens that occurred."""
    lowered = ops.where(logits > 0, logits / penalty, logits * penalty)
    return ops.where(seen > 0, lowered, logits)


def mark(tokens, keep):
    """How often each token of the vocabulary is among the kept ones, (batch, vocabulary)."""
    hot = (tokens.expand_dims(-1) == ops.arange(VOCAB).astype(ms.int32)).astype(ms.float32)
    return (hot * keep.astype(ms.float32).expand_dims(-1)).sum(axis=1)


def store(memory, fresh, nodes, landing):
    """Put the nodes of the chosen path into their slots; landing is (batch, slots, path), one where it goes."""
    free = 1.0 - landing.sum(axis=-1)
    free = free.reshape(free.shape[0], 1, -1, 1)
    out = []
    for old, new in zip(memory, fresh):
        moved = tuple(ops.matmul(landing.expand_dims(1), take_nodes(x, nodes)) for x in new)
        out.append(tuple(o * free + m for o, m in zip(old, moved)))
    return out


class MedusaNet(nn.Cell):
    def __init__(self, depth=4, window=5, rounds=6, limit=9.0, penalty=1.3, length_power=0.9):
        super().__init__()
        self.rounds = rounds
        self.limit, self.penalty, self.length_power = limit, penalty, length_power
        self.table = nn.Embedding(VOCAB, WIDTH)
        self.table_norm = nn.LayerNorm((WIDTH,), epsilon=1e-5)
        self.places = Places(8)
        self.blocks = nn.CellList([Block(window if i % 2 == 0 else 0) for i in range(depth)])
        self.last_norm = RootNorm(WIDTH)
        self.to_vocab = nn.Dense(WIDTH, VOCAB, has_bias=False)
        self.guessers = Guessers(3, 2)
        self.tree = GuessTree(PATHS, 4)
        self.judge = Judge()
        self.objective = Objective()

    def run(self, tokens, positions, visible, key_positions, memory=None):
        x = self.table_norm(self.table(tokens))
        angles = self.places(positions)
        offset = positions.expand_dims(2) - key_positions.expand_dims(1)
        fresh = []
        for i, block in enumerate(self.blocks):
            x, pair = block(x, angles, visible, offset, memory[i] if memory is not None else None)
            fresh.append(pair)
        return self.last_norm(x), fresh

    def say(self, state):
        return capped(self.to_vocab(state), self.limit)

    def construct(self, ids, lengths, begin):
        ids, lengths, begin = (x.astype(ms.int32) for x in (ids, lengths, begin))
        batch, size = ids.shape
        reach = self.tree.reach
        slots = size + self.rounds * reach
        place = ops.broadcast_to(ops.arange(size).astype(ms.int32).reshape(1, size), (batch, size))
        real = place < lengths.reshape(batch, 1)
        causal = Tensor(np.tril(np.ones((1, size, size), bool)))
        states, fresh = self.run(ids, place, ops.logical_and(causal, real.expand_dims(1)), place)
        every = [self.say(states)] + list(self.guessers(states))
        loss, losses = self.objective(every, ids, lengths, begin)

        memory = [tuple(ops.pad(x, (0, 0, 0, slots - size)) for x in pair) for pair in fresh]
        written = ops.pad(ids * real.astype(ms.int32), (0, slots - size))
        seen = mark(ids, real)
        last = (lengths - 1).reshape(batch, 1, 1)
        state = ops.gather_elements(states, 1, ops.broadcast_to(last, (batch, 1, WIDTH))).squeeze(1)
        alive = ops.ones((batch,), ms.int32)
        total = ops.zeros((batch,), ms.float32)
        slot = ops.broadcast_to(ops.arange(slots).astype(ms.int32).reshape(1, slots), (batch, slots))
        step = ops.arange(reach).astype(ms.int32).reshape(1, reach)
        start = lengths
        by_tree, by_heads, moves = [], [], []
        for number in range(self.rounds):
            here = self.say(state)
            guess_logits = self.guessers(state)
            first = ops.argmax(discourage(here, seen, self.penalty), dim=-1).astype(ms.int32)
            first_log = ops.gather_elements(ops.log_softmax(here, axis=-1), 1, first.reshape(batch, 1)).reshape(batch)
            tokens, positions, sees = self.tree(first, guess_logits, lengths)

            kept = (slot < lengths.reshape(batch, 1)).expand_dims(1)
            kept = ops.broadcast_to(kept, (batch, tokens.shape[1], slots))
            visible = ops.cat((kept.astype(ms.int32), sees.astype(ms.int32)), axis=2) > 0
            nodes_state, fresh = self.run(tokens, positions, visible, ops.cat((slot, positions), axis=1), memory)
            logits = self.say(nodes_state)
            best, count, path_log = self.judge(tokens, logits, self.tree.walk, self.tree.real, number)

            path = ops.gather(self.tree.walk, best, 0)
            words = ops.gather_elements(tokens, 1, path)
            keep = (step <= count.reshape(batch, 1)).astype(ms.int32)
            stop = (words == EOS).astype(ms.int32) * keep
            keep = keep * (ops.cumsum(stop, 1) - stop == 0).astype(ms.int32) * alive.reshape(batch, 1)
            move = keep.sum(axis=1).astype(ms.int32)

            goal = (lengths.reshape(batch, 1) + step).expand_dims(1)
            landing = (slot.expand_dims(2) == goal).astype(ms.float32) * keep.expand_dims(1).astype(ms.float32)
            memory = store(memory, fresh, path, landing)
            written = written + (landing * words.expand_dims(1)).sum(axis=2).astype(ms.int32)
            seen = seen + mark(words, keep)

            tip = ops.gather_elements(path, 1, ops.clamp(move - 1, min=0).reshape(batch, 1)).reshape(batch, 1, 1)
            reached = ops.gather_elements(nodes_state, 1, ops.broadcast_to(tip, (batch, 1, WIDTH))).squeeze(1)
            state = ops.where(alive.reshape(batch, 1) > 0, reached, state)
            total = total + alive.astype(ms.float32) * (first_log + path_log)
            lengths = lengths + move
            alive = alive * (stop.sum(axis=1) == 0).astype(ms.int32)
            by_tree.append(logits)
            by_heads.append(guess_logits.swapaxes(0, 1))
            moves.append(move)

        made = (lengths - start).astype(ms.float32)
        return {
            "loss": loss,
            "losses": losses,
            "tokens": written,
            "advances": ops.stack(moves, axis=1),
            "tree_logits": ops.stack(by_tree, axis=1),
            "draft_logits": ops.stack(by_heads, axis=1),
            "scores": total / ops.pow((made + 5.0) / 6.0, self.length_power),
        }


def build():
    """The net (its weights come from the reference) and four prompts, padded at the right."""
    net = MedusaNet()
    net.set_train(False)
    rng = np.random.RandomState(7)
    lengths = np.array([14, 9, 17, 12], np.int64)
    ids = rng.randint(3, VOCAB, size=(4, 17)).astype(np.int64)
    ids[np.arange(17)[None, :] >= lengths[:, None]] = PAD
    begin = np.array([11, 3, 4, 7], np.int64)
    return net, (Tensor(ids), Tensor(lengths), Tensor(begin))
