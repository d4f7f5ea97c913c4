"""Preference training of a small language model in MindSpore: DPO and KTO on pairs, PPO on rollouts."""

from __future__ import annotations

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

PAD_ID = 0
EOS_ID = 1
ROPE_BASE = 1.0e6
MAX_POSITIONS = 64
FILLER_LOGP = 1.0
LOWEST = float(np.finfo(np.float32).min)


def mean_over(values, mask):
    """Mean over the places that the mask keeps."""
    mask = mask.astype(ms.float32)
    return (values * mask).sum() / mask.sum()


def variance_over(values, mask):
    count = mask.astype(ms.float32).sum()
    spread = mean_over(ops.square(values - mean_over(values, mask)), mask)
    return spread * count / (count - 1)


def whiten_over(values, mask, keep_mean=False):
    """Zero mean (unless it is kept) and unit variance over the places that the mask keeps."""
    mean = mean_over(values, mask)
    white = (values - mean) * ops.rsqrt(variance_over(values, mask) + 1e-8)
    return white + mean if keep_mean else white


def answer_mask_of(ids):
    """One for each token of an answer up to the first EOS, zero after it."""
    is_eos = (ids == EOS_ID).astype(ms.int32)
    before = ops.cumsum(is_eos, 1) - is_eos
    return (before == 0).astype(ms.int32)


def positions_of(mask):
    """Positions that count only what the mask keeps; padding gets 1."""
    counted = ops.cumsum(mask, 1) - 1
    return ops.where(mask == 0, ops.ones_like(counted), counted)


def token_logps(logits, ids):
    """Log-probability of each token under the logits at its place: (batch, length)."""
    logps = ops.log_softmax(logits, axis=-1)
    return ops.gather_elements(logps, 2, ids.astype(ms.int32).expand_dims(-1)).squeeze(-1)


def rotary_tables(head_width, length=MAX_POSITIONS):
    """Cosines and sines for all positions, (length, head_width / 2) each."""
    rates = 1.0 / ROPE_BASE ** (np.arange(0, head_width, 2, dtype=np.float32) / head_width)
    angles = np.arange(length, dtype=np.float32)[:, None] * rates.astype(np.float32)[None]
    return Tensor(np.cos(angles)), Tensor(np.sin(angles))


def rotate(x, cos, sin):
    """Turn (batch, heads, length, head_width) by the angles (batch, 1, length, head_width / 2)."""
    half = x.shape[-1] // 2
    left, right = x[..., :half], x[..., half:]
    return ops.cat((left * cos - right * sin, right * cos + left * sin), axis=-1)


def spread_heads(x, groups):
    """Give each key or value head to all the query heads of its group."""
    b, heads, length, width = x.shape
    x = ops.broadcast_to(x.expand_dims(2), (b, heads, groups, length, width))
    return x.reshape(b, heads * groups, length, width)


class RootMeanSquareNorm(nn.Cell):
    def __init__(self, width, eps):
        super().__init__()
        self.eps = eps
        self.weight = Parameter(Tensor(np.ones(width, np.float32)), name="weight")

    def construct(self, x):
        return x * ops.rsqrt(ops.square(x).mean(axis=-1, keep_dims=True) + self.eps) * self.weight


class GroupedAttention(nn.Cell):
    """Grouped-query attention with normalised queries and keys, rotary positions and a cache."""

    def __init__(self, width, heads, kv_heads, head_width):
        super().__init__()
        self.heads, self.kv_heads, self.head_width = heads, kv_heads, head_width
        self.scale = head_width**-0.5
        self.wq = nn.Dense(width, heads * head_width, has_bias=False)
        self.wk = nn.Dense(width, kv_heads * head_width, has_bias=False)
        self.wv = nn.Dense(width, kv_heads * head_width)
        self.wo = nn.Dense(heads * head_width, width, has_bias=False)
        self.norm_q = RootMeanSquareNorm(head_width, eps=1e-5)
        self.norm_k = RootMeanSquareNorm(head_width, eps=1e-5)

    def construct(self, x, cos, sin, seen, cached=None):
        b, length, _ = x.shape
        query = self.norm_q(self.wq(x).reshape(b, length, self.heads, self.head_width)).swapaxes(1, 2)
        key = self.norm_k(self.wk(x).reshape(b, length, self.kv_heads, self.head_width)).swapaxes(1, 2)
        value = self.wv(x).reshape(b, length, self.kv_heads, self.head_width).swapaxes(1, 2)

        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        if cached is not None:
            key = ops.cat((cached[0], key), axis=2)
            value = ops.cat((cached[1], value), axis=2)
        groups = self.heads // self.kv_heads
        logits = ops.matmul(query, spread_heads(key, groups).swapaxes(2, 3)) * self.scale
        logits = ops.masked_fill(logits, ops.logical_not(seen), LOWEST)
        out = ops.matmul(ops.softmax(logits, axis=-1), spread_heads(value, groups))
        out = out.swapaxes(1, 2).reshape(b, length, self.heads * self.head_width)
        return self.wo(out), (key, value)


class GatedFeedForward(nn.Cell):
    def __init__(self, width, hidden):
        super().__init__()
        self.gate = nn.Dense(width, hidden, has_bias=False)
        self.up = nn.Dense(width, hidden, has_bias=False)
        self.down = nn.Dense(hidden, width, has_bias=False)
        self.act = nn.SiLU()

    def construct(self, x):
        return self.down(self.act(self.gate(x)) * self.up(x))


class Block(nn.Cell):
    """Attention and feed-forward, each behind a norm."""

    def __init__(self, width, heads, kv_heads, head_width, hidden):
        super().__init__()
        self.norm_attn = RootMeanSquareNorm(width, eps=1e-5)
        self.attn = GroupedAttention(width, heads, kv_heads, head_width)
        self.norm_ffn = RootMeanSquareNorm(width, eps=1e-5)
        self.ffn = GatedFeedForward(width, hidden)

    def construct(self, x, cos, sin, seen, cached=None):
        attended, cached = self.attn(self.norm_attn(x), cos, sin, seen, cached)
        x = x + attended
        return x + self.ffn(self.norm_ffn(x)), cached


class Trunk(nn.Cell):
    """Token ids to hidden states; each second block looks back over a window only."""

    def __init__(self, vocab, width, heads, kv_heads, head_width, hidden, depth, window):
        super().__init__()
        self.window = window
        self.embedding = nn.Embedding(vocab, width, padding_idx=PAD_ID)
        self.blocks = nn.CellList([Block(width, heads, kv_heads, head_width, hidden) for _ in range(depth)])
        self.norm = RootMeanSquareNorm(width, eps=1e-5)
        self.cos, self.sin = rotary_tables(head_width)

    def construct(self, ids, mask, cache=None):
        """mask is (batch, cached and new tokens), one where a token is none of padding."""
        length, total = ids.shape[1], mask.shape[1]
        past = total - length
        distance = np.arange(past, total)[:, None] - np.arange(total)[None, :]
        kept = mask.astype(ms.bool_).reshape(-1, 1, 1, total)
        full = ops.logical_and(Tensor(distance >= 0), kept)
        near = ops.logical_and(Tensor((distance >= 0) & (distance < self.window)), kept)

        positions = positions_of(mask)[:, past:]
        cos = ops.gather(self.cos, positions, 0).expand_dims(1)
        sin = ops.gather(self.sin, positions, 0).expand_dims(1)

        x = self.embedding(ids)
        grown = []
        for i, block in enumerate(self.blocks):
            x, cached = block(x, cos, sin, near if i % 2 else full, None if cache is None else cache[i])
            grown.append(cached)
        return self.norm(x), grown


class ValueHead(nn.Cell):
    """A value for each token."""

    def __init__(self, width, hidden):
        super().__init__()
        self.dropout = nn.Dropout(p=0.1)
        self.dense = nn.Dense(width, hidden)
        self.norm = nn.LayerNorm((hidden,), epsilon=1e-5)
        self.act = nn.GELU(approximate=False)
        self.summary = nn.Dense(hidden, 1)

    def construct(self, x):
        x = self.norm(self.dense(self.dropout(x)))
        return self.summary(self.act(x))[..., 0]


class GatedReward(nn.Cell):
    """Several rewards of an answer, mixed by a gate on its prompt."""

    def __init__(self, width, objectives, hidden, temperature):
        super().__init__()
        self.temperature = temperature
        self.regression = nn.Dense(width, objectives, has_bias=False)
        self.norm = nn.BatchNorm1d(objectives)
        self.gate_in = nn.Dense(width, hidden)
        self.gate_out = nn.Dense(hidden, objectives)
        self.relu = nn.ReLU()
        self.transform = Parameter(Tensor(np.eye(objectives, dtype=np.float32)), name="transform")

    def construct(self, prompt, answer):
        rewards = ops.matmul(self.norm(self.regression(answer)), self.transform)
        gate = self.gate_out(self.relu(self.gate_in(prompt)))
        gate = ops.softmax(gate / self.temperature, axis=-1)
        return (gate * rewards).sum(axis=-1)


class PairObjective(nn.Cell):
    """DPO and KTO from the log-ratios of policy and reference."""

    def __init__(self, beta=0.3, smoothing=0.1, good_weight=1.0, bad_weight=1.33):
        super().__init__()
        self.beta = beta
        self.smoothing = smoothing
        self.good_weight = good_weight
        self.bad_weight = bad_weight

    def construct(self, chosen, rejected, mismatched):
        margin = self.beta * (chosen - rejected)
        # softplus(-x) is -log sigmoid(x)
        dpo = (1 - self.smoothing) * ops.softplus(-margin) + self.smoothing * ops.softplus(margin)
        baseline = ops.clamp(mismatched.mean(), min=0.0)
        good = ops.sigmoid(self.beta * (baseline - chosen))
        bad = ops.sigmoid(self.beta * (rejected - baseline))
        return dpo, ops.cat((self.good_weight * good, self.bad_weight * bad))


class ClippedObjective(nn.Cell):
    """PPO's losses of the policy and of the values."""

    def __init__(self, clip=0.2, value_clip=0.2):
        super().__init__()
        self.clip = clip
        self.value_clip = value_clip

    def construct(self, logps, old_logps, advantages, mask, values, old_values, returns, value_mask):
        ratio = ops.exp(logps - old_logps)
        gain = advantages * ratio
        clipped_gain = advantages * ops.clamp(ratio, 1.0 - self.clip, 1.0 + self.clip)
        policy_loss = -mean_over(ops.minimum(gain, clipped_gain), mask)
        clipped = ops.clamp(values, old_values - self.value_clip, old_values + self.value_clip)
        errors = ops.maximum(ops.square(values - returns), ops.square(clipped - returns))
        return policy_loss, 0.5 * mean_over(errors, value_mask)


def generalised_advantages(rewards, values, mask, gamma, lam):
    """Whitened advantages, and returns, by a sweep from the last step to the first."""
    steps = rewards.shape[1]
    following = ops.cat((values[:, 1:], ops.zeros_like(values[:, :1])), axis=1)
    deltas = rewards + gamma * following - values
    running = ops.zeros_like(deltas[:, 0])
    advantages = [None] * steps
    for t in range(steps - 1, -1, -1):
        running = deltas[:, t] + gamma * lam * running
        advantages[t] = running
    advantages = ops.stack(advantages, axis=1)
    returns = advantages + values
    white = whiten_over(advantages, mask) * mask.astype(ms.float32)
    return white, returns


class PreferenceLearner(nn.Cell):
    """One trunk with heads for tokens, values and rewards; the losses of pairs and of rollouts."""

    def __init__(self, vocab=64, width=48, heads=6, kv_heads=2, head_width=16, hidden=112, depth=3, window=4):
        super().__init__()
        self.trunk = Trunk(vocab, width, heads, kv_heads, head_width, hidden, depth, window)
        self.lm_head = nn.Dense(width, vocab, has_bias=False)
        self.value_head = ValueHead(width, 96)
        self.reward_head = GatedReward(width, objectives=5, hidden=20, temperature=2.0)
        self.pair_objective = PairObjective()
        self.ppo_objective = ClippedObjective()
        # sampling and rewards
        self.temperature = 0.7
        self.no_eos_penalty = 1.0
        self.kl_in_reward = 0.05
        self.gamma, self.lam = 0.99, 0.95
        # weights of the parts of the loss
        self.value_weight, self.entropy_weight, self.kl_weight = 0.1, 0.01, 0.04

    def pairs(self, prompts, chosen, rejected, reference_logps):
        """The prompts' keys and values serve three answers each: chosen, rejected and that of another prompt."""
        prompt_mask = (prompts != PAD_ID).astype(ms.int32)
        prompt_hidden, cache = self.trunk(prompts, prompt_mask)

        other = ops.cat((chosen[-1:], chosen[:-1]))
        answers = ops.cat((chosen, rejected, other))
        mask = answer_mask_of(answers)
        cache = [tuple(ops.tile(x, (3, 1, 1, 1)) for x in cached) for cached in cache]
        hidden, _ = self.trunk(answers, ops.cat((ops.tile(prompt_mask, (3, 1)), mask), axis=1), cache)

        first = ops.tile(prompt_hidden[:, -1:], (3, 1, 1))
        logits = self.lm_head(ops.cat((first, hidden[:, :-1]), axis=1))
        difference = token_logps(logits, answers) - reference_logps.reshape(-1, answers.shape[1])
        log_ratios = (difference * mask.astype(ms.float32)).sum(axis=1)
        n = prompts.shape[0]
        return self.pair_objective(log_ratios[:n], log_ratios[n : 2 * n], log_ratios[2 * n :])

    def rewards_of(self, scores, old_logps, ref_logps, last, value_mask):
        """A penalty on the KL at each token, and the score one step after the last token if there is room."""
        steps = Tensor(np.arange(old_logps.shape[1]), ms.int32).expand_dims(0)
        place = ops.clamp(last + 1, max=old_logps.shape[1] - 1).expand_dims(1)
        rewards = self.kl_in_reward * (ref_logps - old_logps)
        rewards = rewards + (steps == place).astype(ms.float32) * scores.expand_dims(1)
        return whiten_over(rewards, value_mask, keep_mean=True) * value_mask.astype(ms.float32)

    def rollouts(self, prompts, responses, old_logps, ref_logps, old_values):
        n, prompt_length = prompts.shape
        sequence = ops.cat((prompts, responses), axis=1)
        states, _ = self.trunk(sequence, (sequence != PAD_ID).astype(ms.int32))
        hidden = states[:, prompt_length - 1 : -1]
        logits = self.lm_head(hidden) / (self.temperature + 1e-7)

        last = (responses != PAD_ID).astype(ms.int32).sum(axis=1) - 1
        steps = Tensor(np.arange(responses.shape[1]), ms.int32).expand_dims(0)
        mask = steps <= last.expand_dims(1)
        value_mask = steps <= last.expand_dims(1) + 1
        logps = ops.where(mask, token_logps(logits, responses), FILLER_LOGP)
        old_logps = ops.where(mask, old_logps, FILLER_LOGP)
        ref_logps = ops.where(mask, ref_logps, FILLER_LOGP)
        old_values = old_values * value_mask.astype(ms.float32)
        values = self.value_head(hidden) * value_mask.astype(ms.float32)

        final = states[ops.arange(n), last + prompt_length]
        scores = self.reward_head(states[:, prompt_length - 1], final)
        ended = (responses == EOS_ID).any(axis=1)
        scores = scores - self.no_eos_penalty * ops.logical_not(ended).astype(ms.float32)
        rewards = self.rewards_of(scores, old_logps, ref_logps, last, value_mask)
        advantages, returns = generalised_advantages(rewards, old_values, mask, self.gamma, self.lam)

        policy_loss, value_loss = self.ppo_objective(
            logps, old_logps, advantages, mask, values, old_values, returns, value_mask
        )
        all_logps = ops.log_softmax(logits, axis=-1)
        entropy = mean_over(-(ops.exp(all_logps) * all_logps).sum(axis=-1), mask)
        gap = ref_logps - logps
        kl = mean_over(ops.exp(gap) - 1.0 - gap, mask)
        loss = policy_loss + self.value_weight * value_loss - self.entropy_weight * entropy + self.kl_weight * kl
        return scores, advantages, returns, values, policy_loss, value_loss, entropy, kl, loss

    def construct(self, prompts, chosen, rejected, reference_logps, responses, old_logps, ref_logps, old_values):
        dpo, kto = self.pairs(prompts, chosen, rejected, reference_logps)
        return (dpo, kto) + self.rollouts(prompts, responses, old_logps, ref_logps, old_values)


def example_batch(n=4, prompt_length=8, answer_length=7, response_length=6, vocab=64):
    """Pairs and rollouts: left-padded prompts, right-padded answers, numbers of the reference and of the old policy."""
    rng = np.random.RandomState(31)

    def finish(length, ends):
        ids = rng.randint(2, vocab, (n, length))
        for row, end in zip(ids, ends):
            row[end : end + 1] = EOS_ID
            row[end + 1 :] = PAD_ID
        return ids

    prompts = rng.randint(2, vocab, (n, prompt_length))
    prompts[np.arange(prompt_length)[None] < prompt_length - np.array([[8], [5], [3], [6]])] = PAD_ID
    chosen = finish(answer_length, (6, 3, 5, 4))
    rejected = finish(answer_length, (2, 6, 7, 3))
    responses = finish(response_length, (3, 6, 5, 2))
    reference_logps = rng.normal(-4.4, 0.4, (3, n, answer_length)).astype(np.float32)
    old_logps = rng.normal(-4.3, 0.4, (n, response_length)).astype(np.float32)
    ref_logps = (old_logps + rng.normal(0.0, 0.3, (n, response_length))).astype(np.float32)
    old_values = rng.normal(0.3, 0.6, (n, response_length)).astype(np.float32)
    return prompts, chosen, rejected, reference_logps, responses, old_logps, ref_logps, old_values


def build():
    """The net for evaluation, and a batch."""
    net = PreferenceLearner()
    net.set_train(False)
    return net, tuple(Tensor(array) for array in example_batch())
