"""Preference training of a small language model: DPO and KTO on pairs, PPO with a value head on rollouts."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

PAD, EOS = 0, 1
INVALID_LOGPROB = 1.0

MODEL_CONFIG = dict(
    vocab_size=64, hidden_size=48, intermediate_size=112, num_hidden_layers=3, num_attention_heads=6,
    num_key_value_heads=2, head_dim=16, rope_theta=1000000.0, rms_norm_eps=1e-5, sliding_window=4, value_hidden=96,
    summary_dropout_prob=0.1, num_objectives=5, gating_hidden=20, gating_temperature=2.0,
)
TRAINING_ARGUMENTS = dict(
    beta=0.3, label_smoothing=0.1, desirable_weight=1.0, undesirable_weight=1.33, temperature=0.7,
    missing_eos_penalty=1.0, kl_coef=0.05, gamma=0.99, lam=0.95, cliprange=0.2, cliprange_value=0.2, vf_coef=0.1,
    entropy_coef=0.01, kl_loss_coef=0.04,
)


def masked_mean(values, mask):
    """Mean of the values where the mask is set."""
    return (values * mask).sum() / mask.sum()


def masked_var(values, mask):
    """Unbiased variance of the values where the mask is set."""
    variance = masked_mean((values - masked_mean(values, mask)) ** 2, mask)
    return variance * mask.sum() / (mask.sum() - 1)


def masked_whiten(values, mask, shift_mean=True):
    """Whiten the values with the statistics of those where the mask is set."""
    mean, var = masked_mean(values, mask), masked_var(values, mask)
    whitened = (values - mean) * torch.rsqrt(var + 1e-8)
    if not shift_mean:
        whitened += mean
    return whitened


def first_true_indices(bools):
    """Index of the first true in each row, the length of the row if there is none."""
    row_len = bools.size(-1)
    zero_or_index = row_len * (~bools).long() + torch.arange(row_len, device=bools.device)
    return torch.min(zero_or_index, dim=-1).values.clamp(max=row_len)


def completion_mask(completion_ids):
    """Everything up to and with the first end of sequence."""
    eos_idx = first_true_indices(completion_ids == EOS)
    return (torch.arange(completion_ids.size(1)) <= eos_idx.unsqueeze(1)).long()


def create_position_ids(attention_mask):
    """Positions on the fly for batches with padding."""
    position_ids = attention_mask.long().cumsum(-1) - 1
    return position_ids.masked_fill(attention_mask == 0, 1)


def selective_log_softmax(logits, index):
    """Log-probabilities of the chosen tokens only."""
    return torch.gather(logits.log_softmax(-1), dim=-1, index=index.unsqueeze(-1)).squeeze(-1)


def rotate_half(x):
    """Rotates half the hidden dims of the input."""
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


def apply_rotary_pos_emb(q, k, cos, sin):
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return (q * cos) + (rotate_half(q) * sin), (k * cos) + (rotate_half(k) * sin)


class RMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps

    def forward(self, hidden_states):
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        return self.weight * (hidden_states * torch.rsqrt(variance + self.variance_epsilon))


class Attention(nn.Module):
    """Grouped-query attention; queries and keys are normalised per head."""

    def __init__(self, config):
        super().__init__()
        self.head_dim = config.head_dim
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        self.scaling = self.head_dim**-0.5
        self.q_proj = nn.Linear(config.hidden_size, config.num_attention_heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, config.num_key_value_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, config.num_key_value_heads * self.head_dim, bias=True)
        self.o_proj = nn.Linear(config.num_attention_heads * self.head_dim, config.hidden_size, bias=False)
        self.q_norm = RMSNorm(self.head_dim, eps=config.rms_norm_eps)
        self.k_norm = RMSNorm(self.head_dim, eps=config.rms_norm_eps)

    def forward(self, hidden_states, position_embeddings, attention_mask, past_key_value=None):
        input_shape = hidden_states.shape[:-1]
        hidden_shape = (*input_shape, -1, self.head_dim)
        query_states = self.q_norm(self.q_proj(hidden_states).view(hidden_shape)).transpose(1, 2)
        key_states = self.k_norm(self.k_proj(hidden_states).view(hidden_shape)).transpose(1, 2)
        value_states = self.v_proj(hidden_states).view(hidden_shape).transpose(1, 2)

        cos, sin = position_embeddings
        query_states, key_states = apply_rotary_pos_emb(query_states, key_states, cos, sin)
        if past_key_value is not None:
            key_states = torch.cat((past_key_value[0], key_states), dim=2)
            value_states = torch.cat((past_key_value[1], value_states), dim=2)
        present = (key_states, value_states)

        key_states = torch.repeat_interleave(key_states, self.num_key_value_groups, dim=1)
        value_states = torch.repeat_interleave(value_states, self.num_key_value_groups, dim=1)
        attn_weights = torch.matmul(query_states, key_states.transpose(2, 3)) * self.scaling
        attn_weights = attn_weights.masked_fill(~attention_mask, torch.finfo(attn_weights.dtype).min)
        attn_weights = F.softmax(attn_weights, dim=-1)
        attn_output = torch.matmul(attn_weights, value_states).transpose(1, 2)
        return self.o_proj(attn_output.reshape(*input_shape, -1)), present


class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.act_fn = nn.SiLU()

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nn.Module):
    def __init__(self, config, layer_idx):
        super().__init__()
        self.is_sliding = layer_idx % 2 == 1
        self.input_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(self, hidden_states, position_embeddings, full_mask, sliding_mask, past=None):
        mask = sliding_mask if self.is_sliding else full_mask
        attn_output, present = self.self_attn(self.input_layernorm(hidden_states), position_embeddings, mask, past)
        hidden_states = hidden_states + attn_output
        hidden_states = hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))
        return hidden_states, present


class DecoderModel(nn.Module):
    """The trunk: token ids to hidden states, and the keys and values of all layers."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, PAD)
        self.layers = nn.ModuleList([DecoderLayer(config, i) for i in range(config.num_hidden_layers)])
        self.norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        dims = torch.arange(0, config.head_dim, 2, dtype=torch.float32)
        self.register_buffer("inv_freq", 1.0 / config.rope_theta ** (dims / config.head_dim), persistent=False)

    def _make_masks(self, attention_mask, query_length):
        """Which keys each query may see, for full and for sliding attention: (batch, 1, queries, keys)."""
        key_length = attention_mask.shape[1]
        cache_position = torch.arange(key_length - query_length, key_length)
        kv_position = torch.arange(key_length)
        causal = kv_position[None, :] <= cache_position[:, None]
        window = kv_position[None, :] > cache_position[:, None] - self.config.sliding_window
        full_mask = causal[None, None] & attention_mask[:, None, None, :].bool()
        return full_mask, full_mask & window[None, None]

    def forward(self, input_ids, attention_mask, past_key_values=None):
        """attention_mask covers the cached tokens too."""
        query_length = input_ids.shape[1]
        position_ids = create_position_ids(attention_mask)[:, -query_length:]
        full_mask, sliding_mask = self._make_masks(attention_mask, query_length)
        freqs = position_ids[:, :, None].float() * self.inv_freq
        emb = torch.cat((freqs, freqs), dim=-1)
        position_embeddings = (emb.cos(), emb.sin())

        hidden_states = self.embed_tokens(input_ids)
        presents = []
        for layer, past in zip(self.layers, past_key_values or [None] * len(self.layers)):
            hidden_states, present = layer(hidden_states, position_embeddings, full_mask, sliding_mask, past)
            presents.append(present)
        return self.norm(hidden_states), presents


class ValueHead(nn.Module):
    """A scalar for each token."""

    def __init__(self, config):
        super().__init__()
        self.dropout = nn.Dropout(config.summary_dropout_prob)
        self.dense = nn.Linear(config.hidden_size, config.value_hidden)
        self.norm = nn.LayerNorm(config.value_hidden)
        self.act = nn.GELU()
        self.summary = nn.Linear(config.value_hidden, 1)

    def forward(self, hidden_states):
        output = self.dense(self.dropout(hidden_states))
        return self.summary(self.act(self.norm(output))).squeeze(-1)


class RewardHead(nn.Module):
    """Mixture of objectives: the answer's rewards, weighted by a gate that reads the prompt."""

    def __init__(self, config):
        super().__init__()
        self.temperature = config.gating_temperature
        self.regression = nn.Linear(config.hidden_size, config.num_objectives, bias=False)
        self.reward_norm = nn.BatchNorm1d(config.num_objectives)
        self.gate_in = nn.Linear(config.hidden_size, config.gating_hidden)
        self.gate_act = nn.ReLU()
        self.gate_out = nn.Linear(config.gating_hidden, config.num_objectives)
        self.reward_transform = nn.Parameter(torch.eye(config.num_objectives))

    def forward(self, prompt_hidden, answer_hidden):
        rewards = self.reward_norm(self.regression(answer_hidden))
        gating = self.gate_out(self.gate_act(self.gate_in(prompt_hidden)))
        gating = F.softmax(gating / self.temperature, dim=1)
        rewards_adjusted = rewards @ self.reward_transform
        return torch.sum(gating * rewards_adjusted, dim=1)


class PairLoss(nn.Module):
    """Direct preference optimisation with label smoothing, and Kahneman-Tversky optimisation on the same pairs."""

    def __init__(self, beta, label_smoothing, desirable_weight, undesirable_weight):
        super().__init__()
        self.beta = beta
        self.label_smoothing = label_smoothing
        self.desirable_weight, self.undesirable_weight = desirable_weight, undesirable_weight

    def forward(self, chosen_logratios, rejected_logratios, kl_logratios):
        logits = self.beta * (chosen_logratios - rejected_logratios)
        dpo_losses = -F.logsigmoid(logits) * (1 - self.label_smoothing) - F.logsigmoid(-logits) * self.label_smoothing
        # the KL term comes from mismatched prompts and answers
        kl = kl_logratios.mean().detach().clamp(min=0)
        chosen_losses = 1 - torch.sigmoid(self.beta * (chosen_logratios - kl))
        rejected_losses = 1 - torch.sigmoid(self.beta * (kl - rejected_logratios))
        kto_losses = torch.cat((self.desirable_weight * chosen_losses, self.undesirable_weight * rejected_losses))
        return dpo_losses, kto_losses


class PPOLoss(nn.Module):
    """Clipped surrogate objective, and the squared error of the values, clipped around those of the rollout."""

    def __init__(self, cliprange, cliprange_value):
        super().__init__()
        self.cliprange, self.cliprange_value = cliprange, cliprange_value

    def forward(self, logprobs, old_logprobs, advantages, mask, values, old_values, returns, value_mask):
        ratio = (logprobs - old_logprobs).exp()
        pg_losses = -advantages * ratio
        pg_losses2 = -advantages * ratio.clamp(1 - self.cliprange, 1 + self.cliprange)
        values_clipped = old_values + (values - old_values).clamp(-self.cliprange_value, self.cliprange_value)
        vf_losses = torch.max((values - returns) ** 2, (values_clipped - returns) ** 2)
        return masked_mean(torch.max(pg_losses, pg_losses2), mask), 0.5 * masked_mean(vf_losses, value_mask)


def compute_advantages(rewards, values, mask, gamma, lam):
    """Generalised advantage estimation, backwards through time; the advantages are whitened."""
    lastgaelam = 0
    advantages_reversed = []
    gen_length = rewards.shape[1]
    for t in reversed(range(gen_length)):
        nextvalues = values[:, t + 1] if t < gen_length - 1 else 0.0
        delta = rewards[:, t] + gamma * nextvalues - values[:, t]
        lastgaelam = delta + gamma * lam * lastgaelam
        advantages_reversed.append(lastgaelam)
    advantages = torch.stack(advantages_reversed[::-1], axis=1)
    returns = advantages + values
    advantages = masked_whiten(advantages, mask)
    return torch.masked_fill(advantages, mask == 0, 0), returns


class PreferenceTrainer(nn.Module):
    """Policy, value head and reward head on one trunk, with the objectives of both stages."""

    def __init__(self, config, args):
        super().__init__()
        self.args = args
        self.model = DecoderModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.v_head = ValueHead(config)
        self.reward_head = RewardHead(config)
        self.pair_loss = PairLoss(args.beta, args.label_smoothing, args.desirable_weight, args.undesirable_weight)
        self.ppo_loss = PPOLoss(args.cliprange, args.cliprange_value)

    def preference_step(self, prompt_ids, chosen_ids, rejected_ids, reference_logps):
        """Losses of the pairs. Each prompt is encoded once for its chosen, its rejected and a mismatched answer."""
        prompt_mask = (prompt_ids != PAD).long()
        prompt_hidden, cache = self.model(prompt_ids, prompt_mask)

        answer_ids = torch.cat((chosen_ids, rejected_ids, torch.roll(chosen_ids, 1, dims=0)))
        answer_mask = completion_mask(answer_ids)
        cache = [(k.repeat(3, 1, 1, 1), v.repeat(3, 1, 1, 1)) for k, v in cache]
        attention_mask = torch.cat((prompt_mask.repeat(3, 1), answer_mask), dim=1)
        answer_hidden, _ = self.model(answer_ids, attention_mask, past_key_values=cache)

        # the last token of the prompt predicts the first one of the answer
        hidden = torch.cat((prompt_hidden[:, -1:].repeat(3, 1, 1), answer_hidden[:, :-1]), dim=1)
        per_token_logps = selective_log_softmax(self.lm_head(hidden), answer_ids)
        logratios = ((per_token_logps - reference_logps.flatten(0, 1)) * answer_mask).sum(-1)
        return self.pair_loss(*logratios.chunk(3))

    def ppo_step(self, queries, responses, old_logprobs, ref_logprobs, old_values):
        """Losses of the rollouts, with the rewards and advantages that they rest on."""
        args = self.args
        context_length, (batch, gen_length) = queries.shape[1], responses.shape
        query_responses = torch.cat((queries, responses), dim=1)
        hidden, _ = self.model(query_responses, (query_responses != PAD).long())
        response_hidden = hidden[:, context_length - 1 : -1]
        logits = self.lm_head(response_hidden) / (args.temperature + 1e-7)
        vpred = self.v_head(response_hidden)

        # everything after the end of the response is padding; the values have one more step
        sequence_lengths = first_true_indices(responses == PAD) - 1
        response_idxs = torch.arange(gen_length)
        padding_mask = response_idxs > sequence_lengths.unsqueeze(1)
        padding_mask_p1 = response_idxs > (sequence_lengths + 1).unsqueeze(1)
        logprobs = selective_log_softmax(logits, responses).masked_fill(padding_mask, INVALID_LOGPROB)
        old_logprobs = old_logprobs.masked_fill(padding_mask, INVALID_LOGPROB)
        ref_logprobs = ref_logprobs.masked_fill(padding_mask, INVALID_LOGPROB)
        old_values = old_values.masked_fill(padding_mask_p1, 0)
        vpred = vpred.masked_fill(padding_mask_p1, 0)

        # the score comes at the end of the response, the KL penalty at each token
        rows = torch.arange(batch)
        scores = self.reward_head(hidden[:, context_length - 1], hidden[rows, sequence_lengths + context_length])
        contain_eos = torch.any(responses == EOS, dim=-1)
        scores = torch.where(contain_eos, scores, scores - args.missing_eos_penalty)
        rewards = -args.kl_coef * (old_logprobs - ref_logprobs)
        actual_end = torch.where(sequence_lengths + 1 < gen_length, sequence_lengths + 1, sequence_lengths)
        rewards[rows, actual_end] += scores
        rewards = masked_whiten(rewards, ~padding_mask_p1, shift_mean=False).masked_fill(padding_mask_p1, 0)

        advantages, returns = compute_advantages(rewards, old_values, ~padding_mask, args.gamma, args.lam)
        pg_loss, vf_loss = self.ppo_loss(
            logprobs, old_logprobs, advantages, ~padding_mask, vpred, old_values, returns, ~padding_mask_p1
        )
        entropy = torch.logsumexp(logits, dim=-1) - torch.sum(F.softmax(logits, dim=-1) * logits, dim=-1)
        entropy = masked_mean(entropy, ~padding_mask)
        log_ratio = ref_logprobs - logprobs
        kl_loss = masked_mean(log_ratio.exp() - log_ratio - 1, ~padding_mask)
        loss = pg_loss + args.vf_coef * vf_loss - args.entropy_coef * entropy + args.kl_loss_coef * kl_loss
        return scores, advantages, returns, vpred, pg_loss, vf_loss, entropy, kl_loss, loss

    def forward(self, prompt_ids, chosen_ids, rejected_ids, reference_logps, responses, old_logprobs, ref_logprobs,
                old_values):
        preference = self.preference_step(prompt_ids, chosen_ids, rejected_ids, reference_logps)
        return preference + self.ppo_step(prompt_ids, responses, old_logprobs, ref_logprobs, old_values)


def trained_like(net):
    """Values as after training, not as after the initialisation."""
    for module in net.modules():
        if isinstance(module, RMSNorm):
            nn.init.uniform_(module.weight, 0.6, 1.5)
        elif isinstance(module, (nn.LayerNorm, nn.BatchNorm1d)):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.2)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=module.in_features**-0.5)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.1)
    nn.init.normal_(net.model.embed_tokens.weight[1:], std=0.03)
    for layer in net.model.layers:
        layer.self_attn.o_proj.weight.data *= 0.3
        layer.mlp.down_proj.weight.data *= 0.3
    net.lm_head.weight.data *= 0.5
    net.v_head.dense.weight.data *= 0.03  # a narrow layer
    net.v_head.dense.bias.data *= 0.1
    nn.init.normal_(net.reward_head.reward_norm.running_mean, std=0.4)
    nn.init.uniform_(net.reward_head.reward_norm.running_var, 0.3, 1.6)
    net.reward_head.reward_transform.data += 0.3 * torch.randn_like(net.reward_head.reward_transform)
    return net


def make_batch(batch=4, prompt_length=8, answer_length=7, gen_length=6, vocab_size=64):
    """Left-padded prompts, right-padded answers and responses, and the numbers of the frozen policies."""
    rng = np.random.RandomState(31)
    prompts = rng.randint(2, vocab_size, (batch, prompt_length))
    for row, length in enumerate((8, 5, 3, 6)):
        prompts[row, : prompt_length - length] = PAD

    def ended(length, ends):
        tokens = rng.randint(2, vocab_size, (batch, length))
        for row, end in enumerate(ends):
            tokens[row, end : end + 1] = EOS
            tokens[row, end + 1 :] = PAD
        return tokens

    chosen = ended(answer_length, (6, 3, 5, 4))
    rejected = ended(answer_length, (2, 6, 7, 3))
    responses = ended(gen_length, (3, 6, 5, 2))
    reference_logps = rng.normal(-4.4, 0.4, (3, batch, answer_length)).astype(np.float32)
    old_logprobs = rng.normal(-4.3, 0.4, (batch, gen_length)).astype(np.float32)
    ref_logprobs = (old_logprobs + rng.normal(0.0, 0.3, (batch, gen_length))).astype(np.float32)
    old_values = rng.normal(0.3, 0.6, (batch, gen_length)).astype(np.float32)
    return prompts, chosen, rejected, reference_logps, responses, old_logprobs, ref_logprobs, old_values


def build():
    """The net with the same weights on every run, and a batch of pairs and rollouts."""
    torch.manual_seed(2024)
    with torch.no_grad():
        net = trained_like(PreferenceTrainer(SimpleNamespace(**MODEL_CONFIG), SimpleNamespace(**TRAINING_ARGUMENTS)))
    return net.eval(), tuple(torch.from_numpy(array) for array in make_batch())
