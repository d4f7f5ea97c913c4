"""Infilling code generator under a pushdown grammar, in MindSpore (pynative): the correct port."""

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

SPECIAL = ["<pad>", "<bos>", "<eos>", "<fim_prefix>", "<fim_suffix>", "<fim_middle>"]
KEYWORDS = ["if", "while", "return"]
SYMBOLS = ["(", ")", "[", "]", "{", "}", ",", ";", "=", "."]
BINARY = ["+", "-", "*", "<", "=="]
NAMES = ["v%d" % i for i in range(12)]
NUMBERS = ["0", "1", "2", "8", "10", "64"]
WORDS = SPECIAL + KEYWORDS + SYMBOLS + BINARY + NAMES + NUMBERS
ID = {word: i for i, word in enumerate(WORDS)}
PAD, BOS, EOS, PREFIX, SUFFIX, MIDDLE = range(len(SPECIAL))

# symbols of the stack, 0 is the empty place
BLOCK, PAREN, INDEX, COND = 1, 2, 3, 4
TOPS = 5
POP = -1
STATES = ["statement", "target", "operand", "operator", "member", "head", "body", "done"]


def build_tables():
    """(states * tops, words) twice: the state that follows or -1, and what happens to the stack."""
    follow = np.full((len(STATES), TOPS, len(WORDS)), -1, np.int32)
    effect = np.zeros((len(STATES), TOPS, len(WORDS)), np.int32)

    def rule(state, words, then, act=0, tops=range(TOPS)):
        for top in tops:
            for word in words:
                follow[STATES.index(state), top, ID[word]] = STATES.index(then)
                effect[STATES.index(state), top, ID[word]] = act

    level = (0, BLOCK)  # where statements stand
    rule("statement", NAMES, "target", tops=level)
    rule("statement", ["if", "while"], "head", tops=level)
    rule("statement", ["return"], "operand", tops=level)
    rule("statement", ["}"], "statement", POP, tops=[BLOCK])
    rule("statement", ["<eos>"], "done", tops=[0])
    rule("target", ["="], "operand", tops=level)
    rule("target", ["("], "operand", PAREN, tops=level)
    rule("target", ["["], "operand", INDEX, tops=level)
    rule("head", ["("], "operand", COND, tops=level)
    rule("body", ["{"], "statement", BLOCK, tops=level)
    rule("operand", NAMES + NUMBERS, "operator")
    rule("operand", ["-"], "operand")
    rule("operand", ["("], "operand", PAREN)
    rule("operator", BINARY, "operand")
    rule("operator", ["."], "member")
    rule("operator", ["("], "operand", PAREN)
    rule("operator", ["["], "operand", INDEX)
    rule("operator", ["="], "operand", tops=level)
    rule("operator", [";"], "statement", tops=level)
    rule("operator", [","], "operand", tops=[PAREN])
    rule("operator", [")"], "operator", POP, tops=[PAREN])
    rule("operator", ["]"], "operator", POP, tops=[INDEX])
    rule("operator", [")"], "body", POP, tops=[COND])
    rule("member", NAMES, "operator")
    return follow.reshape(-1, len(WORDS)), effect.reshape(-1, len(WORDS))


class Grammar(nn.Cell):
    """The automaton. Its stack (batch, places) has the top at place 0 and moves as a whole."""

    def __init__(self):
        super().__init__()
        follow, effect = build_tables()
        self.follow = Tensor(follow)
        self.effect = Tensor(effect)

    def step(self, state, stack, word, live):
        """State and stack after a word, for the rows that are live."""
        row = state * TOPS + stack[:, 0]
        at = row * len(WORDS) + word
        follow = ops.gather(self.follow.reshape(-1), at, 0)
        effect = ops.gather(self.effect.reshape(-1), at, 0)
        live = ops.logical_and(live, follow >= 0)
        push = ops.logical_and(ops.logical_and(live, effect > 0), stack[:, -1] == 0)
        pop = ops.logical_and(live, effect == POP)
        pushed = ops.cat((effect.expand_dims(1), stack[:, :-1]), axis=1)
        popped = ops.cat((stack[:, 1:], ops.zeros_like(stack[:, :1])), axis=1)
        stack = ops.where(pop.expand_dims(1), popped, stack)
        stack = ops.where(push.expand_dims(1), pushed, stack)
        return ops.where(live, follow, state), stack

    def construct(self, state, stack, left, resume, closes):
        """(batch, words): may this word be the next one, with so many words left?"""
        row = state * TOPS + stack[:, 0]
        allowed = ops.gather(self.follow, row, 0) >= 0
        effect = ops.gather(self.effect, row, 0)
        extra = (stack > 0).astype(ms.int32).sum(axis=1) - closes
        may_end = ops.gather_elements(allowed.astype(ms.int32), 1, resume.expand_dims(1)).squeeze(1) > 0
        may_end = ops.logical_and(may_end, extra == 0)

        full = ops.logical_or(stack[:, -1] > 0, 2 * (extra + 1) >= left)
        forbidden = ops.logical_or(
            ops.logical_and(effect > 0, full.expand_dims(1)),
            ops.logical_and(effect == POP, (extra <= 0).expand_dims(1)),
        )
        allowed = ops.logical_and(allowed, ops.logical_not(forbidden)).astype(ms.int32)
        # the column of the end is not the table's: it asks for the suffix, or is the way out of a dead end
        others = ops.cat((allowed[:, :EOS], allowed[:, EOS + 1 :]), axis=1)
        end = ops.logical_or(may_end, others.sum(axis=1) == 0)
        allowed = ops.cat((allowed[:, :EOS], end.astype(ms.int32).expand_dims(1), allowed[:, EOS + 1 :]), axis=1)
        return allowed > 0


def pack_prompts(tokens, length, hole, spm, room):
    """numpy: the prompts around the holes, padded on the left, and where they are real."""
    prompts = []
    room = room - 4
    for i in range(len(tokens)):
        start, end = hole[i]
        before, behind = list(tokens[i, :start]), list(tokens[i, end : length[i]])
        behind = behind[: max(room // 3, room - len(before))]
        keep = room - len(behind)
        if len(before) > keep:
            before = before[-keep:]
        if spm[i]:
            prompt = [BOS, PREFIX, SUFFIX] + behind + [MIDDLE] + before
        else:
            prompt = [BOS, PREFIX] + before + [SUFFIX] + behind + [MIDDLE]
        prompts.append(prompt)
    size = max(map(len, prompts))
    ids = np.full((len(prompts), size), PAD, np.int32)
    for i, prompt in enumerate(prompts):
        ids[i, size - len(prompt) :] = prompt
    return ids, ids != PAD


class Memory:
    """What all layers keep: keys and values in fixed places, and the convolutions' last inputs."""

    def __init__(self, layers, batch, places, kv_heads, head_dim):
        self.places = places
        shape = (batch, places, kv_heads, head_dim)
        self.keys = [ops.zeros(shape, ms.float32) for _ in range(layers)]
        self.values = [ops.zeros(shape, ms.float32) for _ in range(layers)]
        self.tails = [None] * layers

    def write(self, layer, start, key, value):
        stop = start + key.shape[1]
        self.keys[layer][:, start:stop] = key
        self.values[layer][:, start:stop] = value
        return self.keys[layer], self.values[layer]

    def fan_out(self, times):
        """One row becomes that many, side by side."""
        self.keys = [x.repeat_interleave(times, 0) for x in self.keys]
        self.values = [x.repeat_interleave(times, 0) for x in self.values]
        self.tails = [x.repeat_interleave(times, 0) for x in self.tails]


class RMSNorm(nn.Cell):
    def __init__(self, width, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.weight = Parameter(Tensor(np.ones(width, np.float32)), name="weight")

    def construct(self, x):
        power = ops.square(x).mean(axis=-1, keep_dims=True)
        return x * ops.rsqrt(power + self.eps) * self.weight


class CausalConv(nn.Cell):
    """Depthwise over the present token and the few before it; the tail is kept for the next call."""

    def __init__(self, width, kernel):
        super().__init__()
        self.kernel = kernel
        self.conv = nn.Conv1d(width, width, kernel, pad_mode="pad", padding=kernel - 1, group=width, has_bias=True)
        self.act = nn.SiLU()

    def construct(self, x, real, tail):
        x = (x * real.astype(x.dtype).expand_dims(-1)).swapaxes(1, 2)
        if tail is None:
            y = self.conv(x)[:, :, : x.shape[2]]
            tail = x[:, :, -(self.kernel - 1) :]
        else:
            seen = ops.cat((tail, x), axis=2)
            y = (seen * self.conv.weight.reshape(1, -1, self.kernel)).sum(axis=2) + self.conv.bias
            y = y.expand_dims(2)
            tail = seen[:, :, 1:]
        return self.act(y).swapaxes(1, 2), tail


def rotary_tables(places, dim, base):
    """cos and sin (places, dim / 2)."""
    freq = 1.0 / np.power(np.float32(base), np.arange(0, dim, 2, dtype=np.float32) / dim)
    angle = np.arange(places, dtype=np.float32)[:, None] * freq[None, :]
    return Tensor(np.cos(angle).astype(np.float32)), Tensor(np.sin(angle).astype(np.float32))


def rotate(x, cos, sin):
    """x (batch, tokens, heads, channels): the leading channels turn in pairs (i, i + half)."""
    half = cos.shape[-1]
    a, b, rest = ops.split(x, [half, half, x.shape[-1] - 2 * half], axis=-1)
    return ops.cat((a * cos - b * sin, b * cos + a * sin, rest), axis=-1)


class Attention(nn.Cell):
    def __init__(self, width, heads, kv_heads, head_dim):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.qkv = nn.Dense(width, (heads + 2 * kv_heads) * head_dim)
        self.q_norm = RMSNorm(head_dim)
        self.k_norm = RMSNorm(head_dim)
        self.o_proj = nn.Dense(heads * head_dim, width)
        self.scale = 1.0 / np.sqrt(head_dim).item()

    def construct(self, x, cos, sin, bias, layer, start, memory):
        b, t, _ = x.shape
        h, g = self.heads, self.kv_heads
        q, k, v = ops.split(self.qkv(x).reshape(b, t, h + 2 * g, self.head_dim), [h, g, g], axis=2)
        q, k = rotate(self.q_norm(q), cos, sin), rotate(self.k_norm(k), cos, sin)
        keys, values = memory.write(layer, start, k, v)

        keys = keys.repeat_interleave(h // g, 2).transpose(0, 2, 3, 1)
        values = values.repeat_interleave(h // g, 2).transpose(0, 2, 1, 3)
        logits = ops.matmul(q.transpose(0, 2, 1, 3), keys) * self.scale + bias
        out = ops.matmul(ops.softmax(logits, axis=-1), values)
        return self.o_proj(out.transpose(0, 2, 1, 3).reshape(b, t, h * self.head_dim))


class GatedMlp(nn.Cell):
    def __init__(self, width, hidden):
        super().__init__()
        self.gate = nn.Dense(width, hidden, has_bias=False)
        self.up = nn.Dense(width, hidden, has_bias=False)
        self.down = nn.Dense(hidden, width)
        self.act = nn.SiLU()

    def construct(self, x):
        return self.down(self.act(self.gate(x)) * self.up(x))


class Layer(nn.Cell):
    def __init__(self, width, heads, kv_heads, head_dim, hidden, kernel):
        super().__init__()
        self.norm0 = RMSNorm(width)
        self.mixer = CausalConv(width, kernel)
        self.norm1 = RMSNorm(width)
        self.attn = Attention(width, heads, kv_heads, head_dim)
        self.norm2 = RMSNorm(width)
        self.mlp = GatedMlp(width, hidden)

    def construct(self, x, real, cos, sin, bias, index, start, memory):
        mixed, memory.tails[index] = self.mixer(self.norm0(x), real, memory.tails[index])
        x = x + mixed
        x = x + self.attn(self.norm1(x), cos, sin, bias, index, start, memory)
        return x + self.mlp(self.norm2(x))


class Backbone(nn.Cell):
    def __init__(self, width, windows, heads, kv_heads, head_dim, hidden, kernel, rotary_dim, rotary_base, places):
        super().__init__()
        self.windows = windows
        self.embed = nn.Embedding(len(WORDS), width)
        self.embed_norm = nn.LayerNorm((width,), epsilon=1e-3)
        self.layers = nn.CellList([Layer(width, heads, kv_heads, head_dim, hidden, kernel) for _ in windows])
        self.norm = nn.LayerNorm((width,), epsilon=1e-5)
        self.cos, self.sin = rotary_tables(places, rotary_dim, rotary_base)

    def bias(self, real, start, count, window):
        """(batch, 1, tokens, places): 0 where a token may look, hugely negative elsewhere."""
        query = np.arange(start, start + count)[:, None]
        key = np.arange(real.shape[1])[None, :]
        sees = key <= query
        if window:
            sees = np.logical_and(sees, query - key < window)
        sees = ops.logical_and(Tensor(sees[None, None]), real.reshape(real.shape[0], 1, 1, -1))
        return (1.0 - sees.astype(ms.float32)) * -1e9

    def construct(self, ids, position, real, start, memory):
        """ids (batch, tokens) go to the places from start on; real (batch, places) is false where nothing is."""
        count = ids.shape[1]
        x = self.embed_norm(self.embed(ids))
        cos = ops.gather(self.cos, position, 0).expand_dims(2)
        sin = ops.gather(self.sin, position, 0).expand_dims(2)
        biases = {window: self.bias(real, start, count, window) for window in set(self.windows)}
        here = real[:, start : start + count]
        for index, layer in enumerate(self.layers):
            x = layer(x, here, cos, sin, biases[self.windows[index]], index, start, memory)
        return self.norm(x)


class Reranker(nn.Cell):
    def __init__(self, width, hidden=32):
        super().__init__()
        self.fc1 = nn.Dense(width, hidden)
        self.bn = nn.BatchNorm1d(hidden)
        self.act = nn.LeakyReLU(alpha=0.01)
        self.fc2 = nn.Dense(hidden, 1)

    def construct(self, x):
        return self.fc2(self.act(self.bn(self.fc1(x)))).reshape(-1)


class InfillingGenerator(nn.Cell):
    """Programs with a hole to several candidates for it, the best one first."""

    def __init__(self, width=48, heads=6, kv_heads=2, head_dim=12, hidden=80, windows=(9, 0, 9), kernel=4,
                 rotary_dim=8, rotary_base=5000.0, room=30, steps=10, stack=4, beams=3):
        super().__init__()
        self.room, self.steps, self.stack, self.beams = room, steps, stack, beams
        self.kv_heads, self.head_dim = kv_heads, head_dim
        self.alpha, self.rate, self.cap = 0.6, 1.3, 3
        self.smoothing, self.z_weight = 0.1, 0.01
        self.decoder = Backbone(width, windows, heads, kv_heads, head_dim, hidden, kernel, rotary_dim, rotary_base,
                                room + steps)
        self.lm_head = nn.Dense(width, len(WORDS))
        self.ranker = Reranker(width)
        self.grammar = Grammar()
        self.content = Tensor(np.array([word in NAMES or word in NUMBERS for word in WORDS], np.float32))

    def penalise(self, logits, counts):
        """Content words that were seen before lose, each time anew."""
        times = ops.clamp(counts * self.content, max=self.cap)
        factor = ops.pow(self.rate, times)
        return ops.select(logits > 0, logits / factor, logits * factor)

    def loss(self, logits, ids, real):
        """Mean over the real words of each prompt: smoothed cross entropy and the squared log-partition."""
        logits, target = logits[:, :-1], ids[:, 1:]
        logp = ops.log_softmax(logits, axis=-1)
        hit = ops.gather_elements(logp, 2, target.expand_dims(2)).squeeze(2)
        loss = -(1.0 - self.smoothing) * hit - self.smoothing * logp.mean(axis=-1)
        loss = loss + self.z_weight * ops.square(ops.logsumexp(logits, -1))
        counted = ops.logical_and(ops.logical_and(real[:, 1:], real[:, :-1]), target > MIDDLE).astype(ms.float32)
        return (loss * counted).sum(axis=1) / ops.clamp(counted.sum(axis=1), min=1.0)

    def parse_prefix(self, tokens, start):
        """The automaton on the whole prefix, also on what the prompt has no room for."""
        state = ops.zeros(len(tokens), ms.int32)
        stack = ops.zeros((len(tokens), self.stack), ms.int32)
        for i in range(start.max()):
            state, stack = self.grammar.step(state, stack, Tensor(tokens[:, i]), Tensor(i < start))
        return state, stack

    @staticmethod
    def look_at_suffix(tokens, length, end):
        """The first word behind the hole, and how many of the brackets open there are closed behind it."""
        resume, closes = [], []
        for row, n, first in zip(tokens, length, end):
            behind = [WORDS[i] for i in row[first:n]]
            resume.append(ID[behind[0]] if behind else EOS)
            balance = sum(word in (")", "]", "}") for word in behind) - sum(word in ("(", "[", "{") for word in behind)
            closes.append(max(balance, 0))
        return Tensor(np.array(resume, np.int32)), Tensor(np.array(closes, np.int32))

    def splice(self, tokens, length, hole, words, count, done):
        """The programs with the best candidates in their holes."""
        filled = np.full((tokens.shape[0], tokens.shape[1] + self.steps), PAD, np.int32)
        for i, (start, end) in enumerate(hole):
            middle = words[i, : count[i] - 1] if done[i] else words[i, : count[i]]
            program = np.concatenate((tokens[i, :start], middle, tokens[i, end : length[i]]))
            filled[i, : program.size] = program
        return filled

    def construct(self, tokens, length, hole, spm):
        tokens, length, hole = (x.asnumpy().astype(np.int32) for x in (tokens, length, hole))
        batch, beams = len(tokens), self.beams
        prompts, present = pack_prompts(tokens, length, hole, spm.asnumpy(), self.room)
        state, stack = self.parse_prefix(tokens, hole[:, 0])
        resume, closes = self.look_at_suffix(tokens, length, hole[:, 1])

        # the prompt, with empty places behind it for what will be written
        size = prompts.shape[1]
        memory = Memory(len(self.decoder.windows), batch, size + self.steps, self.kv_heads, self.head_dim)
        ids = Tensor(prompts)
        position = Tensor(np.maximum(np.cumsum(present, axis=1) - 1, 0).astype(np.int32))
        real = Tensor(np.pad(present, ((0, 0), (0, self.steps))))
        hidden = self.decoder(ids, position, real, 0, memory)
        logits = self.lm_head(hidden)
        loss = self.loss(logits, ids, Tensor(present))
        hidden, first_logits = hidden[:, -1], logits[:, -1]

        # the best few first words open one candidate each
        onehot = ops.one_hot(ids, len(WORDS), Tensor(1.0, ms.float32), Tensor(0.0, ms.float32))
        counts = (onehot * Tensor(present.astype(np.float32)[..., None])).sum(axis=1)
        banned = ops.logical_not(self.grammar(state, stack, self.steps, resume, closes))
        logp = ops.log_softmax(first_logits.masked_fill(banned, -1e30), axis=-1)
        _, opening = ops.topk(self.penalise(first_logits, counts).masked_fill(banned, -1e30), beams)
        word_logp = [ops.gather_elements(logp, 1, opening).reshape(-1)]
        word = opening.reshape(-1).astype(ms.int32)
        words = [word]

        memory.fan_out(beams)
        state, stack, counts, resume, closes, hidden_sum = (
            x.repeat_interleave(beams, 0) for x in (state, stack, counts, resume, closes, hidden)
        )
        real = Tensor(np.repeat(real.asnumpy(), beams, axis=0))
        offset = Tensor(np.repeat(present.sum(axis=1), beams).astype(np.int32))
        live = ops.ones(batch * beams, ms.bool_)
        for step in range(1, self.steps):
            alive = live.astype(ms.float32).expand_dims(1)
            counts = counts + alive * ops.one_hot(word, len(WORDS), Tensor(1.0, ms.float32), Tensor(0.0, ms.float32))
            state, stack = self.grammar.step(state, stack, word, live)
            place = size + step - 1
            real[:, place] = live
            live = ops.logical_and(live, word != EOS)

            hidden = self.decoder(word.expand_dims(1), (offset + (step - 1)).expand_dims(1), real, place, memory)
            hidden = hidden.squeeze(1)
            logits = self.lm_head(hidden)
            banned = ops.logical_not(self.grammar(state, stack, self.steps - step, resume, closes))
            best = self.penalise(logits, counts).masked_fill(banned, -1e30).argmax(axis=-1).astype(ms.int32)
            logp = ops.log_softmax(logits.masked_fill(banned, -1e30), axis=-1)
            gained = ops.gather_elements(logp, 1, best.expand_dims(1)).squeeze(1)

            alive = live.astype(ms.float32)
            word_logp.append(gained * alive)
            hidden_sum = hidden_sum + hidden * alive.expand_dims(1)
            word = ops.where(live, best, ops.full_like(best, PAD))
            words.append(word)
        unfinished = ops.logical_and(live, word != EOS)

        words, word_logp = ops.stack(words, axis=1), ops.stack(word_logp, axis=1)
        count = (words != PAD).astype(ms.int32).sum(axis=1)
        size_norm = ops.pow((5.0 + count.astype(ms.float32)) / 6.0, self.alpha)
        score = word_logp.sum(axis=1) / size_norm - 1.5 * unfinished.astype(ms.float32)
        score = score + 0.5 * self.ranker(hidden_sum / count.astype(ms.float32).expand_dims(1))

        # best first, within each program
        order = np.argsort(-score.asnumpy().reshape(batch, beams), axis=1, kind="stable")
        order = Tensor((order + np.arange(batch)[:, None] * beams).astype(np.int32))
        score = ops.gather(score, order, 0)
        words, word_logp, count = (ops.gather(x, order, 0) for x in (words, word_logp, count))
        done = ops.logical_not(unfinished)[order[:, 0]]
        filled = self.splice(tokens, length, hole, words[:, 0].asnumpy(), count[:, 0].asnumpy(), done.asnumpy())
        return {"loss": loss, "first_logits": first_logits, "scores": score, "tokens": words,
                "token_logp": word_logp, "lengths": count, "filled": Tensor(filled)}


def build():
    """The net alone, for evaluation: weights and inputs come from the reference's dump."""
    net = InfillingGenerator()
    net.set_train(False)
    return net
