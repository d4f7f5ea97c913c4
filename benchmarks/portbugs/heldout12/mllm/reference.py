"""A small vision language model: a window-attention vision tower, patch mergers, and a text decoder with multimodal rotary
positions, grouped queries and a cache. PyTorch: the reference."""

from __future__ import annotations

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

IMAGE_MEAN = (0.48145466, 0.4578275, 0.40821073)
IMAGE_STD = (0.26862954, 0.26130258, 0.27577711)
VISION = SimpleNamespace(
    patch_size=4, in_channels=3, hidden_size=48, intermediate_size=96, num_heads=3, depth=4, table_size=6,
    spatial_merge_size=2, window_size=24, fullatt_block_indexes=(1, 3), deepstack_index=1, out_hidden_size=64,
)  # fmt: skip
TEXT = SimpleNamespace(
    vocab_size=120, hidden_size=64, intermediate_size=112, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, rope_theta=5000.0, mrope_section=[2, 3, 3], rms_norm_eps=1e-5,
)  # fmt: skip


class RMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps

    def forward(self, hidden_states):
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        return self.weight * (hidden_states * torch.rsqrt(variance + self.variance_epsilon))


def rotate_half(x):
    """Rotates half the hidden dims of the input."""
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


def apply_rotary_pos_emb_vision(q, k, cos, sin):
    cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def apply_multimodal_rotary_pos_emb(q, k, cos, sin, mrope_section, unsqueeze_dim=1):
    """Each section of the channels turns by the temporal, the height or the width position."""
    mrope_section = mrope_section * 2
    cos, sin = (
        torch.cat([m[i % 3] for i, m in enumerate(x.split(mrope_section, dim=-1))], dim=-1).unsqueeze(unsqueeze_dim)
        for x in (cos, sin)
    )
    return (q * cos) + (rotate_half(q) * sin), (k * cos) + (rotate_half(k) * sin)


class PatchEmbed(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.patch_size, self.in_channels = config.patch_size, config.in_channels
        self.proj = nn.Conv2d(config.in_channels, config.hidden_size, config.patch_size, stride=config.patch_size)
        self.register_buffer("mean", torch.tensor(IMAGE_MEAN).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(IMAGE_STD).view(1, -1, 1, 1), persistent=False)

    def forward(self, patches):
        pixels = patches.view(-1, self.in_channels, self.patch_size, self.patch_size)
        return self.proj((pixels - self.mean) / self.std).flatten(1)


class InterpolatedPositions(nn.Module):
    """A learned table of places, resized to the grid of each image."""

    def __init__(self, config):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.table_size, config.table_size, config.hidden_size))

    def forward(self, grid_thw):
        places = []
        for t, h, w in grid_thw:
            table = self.weight.permute(2, 0, 1).unsqueeze(0)
            table = F.interpolate(table, size=(h, w), mode="bilinear", align_corners=False)
            places.append(table.squeeze(0).permute(1, 2, 0).reshape(h * w, -1).repeat(t, 1))
        return torch.cat(places)


class VisionAttention(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.scaling = (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3, bias=True)
        self.proj = nn.Linear(dim, dim)

    def forward(self, hidden_states, cu_seqlens, position_embeddings):
        seq_length = hidden_states.shape[0]
        qkv = self.qkv(hidden_states).reshape(seq_length, 3, self.num_heads, -1)
        q, k, v = qkv.permute(1, 0, 2, 3).unbind(0)
        q, k = apply_rotary_pos_emb_vision(q, k, *position_embeddings)
        lengths = (cu_seqlens[1:] - cu_seqlens[:-1]).tolist()
        outputs = []
        for query, key, value in zip(*(torch.split(x.transpose(0, 1), lengths, dim=1) for x in (q, k, v))):
            weights = torch.matmul(query, key.transpose(1, 2)) * self.scaling
            outputs.append(torch.matmul(F.softmax(weights, dim=-1), value))
        return self.proj(torch.cat(outputs, dim=1).transpose(0, 1).reshape(seq_length, -1))


class VisionBlock(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.norm1 = nn.LayerNorm(config.hidden_size, eps=1e-6)
        self.attn = VisionAttention(config.hidden_size, config.num_heads)
        self.norm2 = nn.LayerNorm(config.hidden_size, eps=1e-6)
        self.fc1 = nn.Linear(config.hidden_size, config.intermediate_size)
        self.fc2 = nn.Linear(config.intermediate_size, config.hidden_size)
        self.ls1 = nn.Parameter(torch.ones(config.hidden_size))
        self.ls2 = nn.Parameter(torch.ones(config.hidden_size))

    def forward(self, hidden_states, cu_seqlens, position_embeddings):
        attended = self.attn(self.norm1(hidden_states), cu_seqlens, position_embeddings)
        hidden_states = hidden_states + attended * self.ls1
        hidden = self.fc1(self.norm2(hidden_states))
        return hidden_states + self.fc2(hidden * torch.sigmoid(1.702 * hidden)) * self.ls2


class PatchMerger(nn.Module):
    def __init__(self, config, use_postshuffle_norm=False):
        super().__init__()
        self.hidden_size = config.hidden_size * config.spatial_merge_size**2
        self.use_postshuffle_norm = use_postshuffle_norm
        self.ln_q = nn.LayerNorm(self.hidden_size if use_postshuffle_norm else config.hidden_size, eps=1e-6)
        self.linear_fc1 = nn.Linear(self.hidden_size, self.hidden_size)
        self.act_fn = nn.GELU()
        self.linear_fc2 = nn.Linear(self.hidden_size, config.out_hidden_size)

    def forward(self, x):
        x = self.ln_q(x.view(-1, self.hidden_size) if self.use_postshuffle_norm else x).view(-1, self.hidden_size)
        return self.linear_fc2(self.act_fn(self.linear_fc1(x)))


class VisionTower(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.spatial_merge_size = config.spatial_merge_size
        self.patch_size, self.window_size = config.patch_size, config.window_size
        self.fullatt_block_indexes = config.fullatt_block_indexes
        self.deepstack_index = config.deepstack_index
        self.patch_embed = PatchEmbed(config)
        self.pos_embed = InterpolatedPositions(config)
        dim = config.hidden_size // config.num_heads // 2
        self.register_buffer("inv_freq", 1.0 / (100.0 ** (torch.arange(0, dim, 2).float() / dim)), persistent=False)
        self.blocks = nn.ModuleList([VisionBlock(config) for _ in range(config.depth)])
        self.merger = PatchMerger(config)
        self.deepstack_merger = PatchMerger(config, use_postshuffle_norm=True)

    def group(self, x, grid_thw):
        """From rows of patches to the order in which the patches of a merged square lie side by side."""
        m, grouped = self.spatial_merge_size, []
        for (t, h, w), part in zip(grid_thw, x.split([t * h * w for t, h, w in grid_thw])):
            part = part.view(t, h // m, m, w // m, m, -1).permute(0, 1, 3, 2, 4, 5)
            grouped.append(part.reshape(t * h * w, -1))
        return torch.cat(grouped)

    def rot_pos_emb(self, grid_thw):
        pos_ids = []
        for t, h, w in grid_thw:
            rows, columns = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
            pos_ids.append(torch.stack([rows.flatten(), columns.flatten()], dim=-1).repeat(t, 1))
        pos_ids = self.group(torch.cat(pos_ids), grid_thw)
        table = torch.outer(torch.arange(max(max(h, w) for _, h, w in grid_thw)).float(), self.inv_freq)
        return table[pos_ids].flatten(1)

    def get_window_index(self, grid_thw):
        window_index, cu_window_seqlens, start = [], [0], 0
        size = self.window_size // self.spatial_merge_size // self.patch_size
        unit = self.spatial_merge_size**2
        for t, h, w in grid_thw:
            llm_h, llm_w = h // self.spatial_merge_size, w // self.spatial_merge_size
            index = torch.arange(t * llm_h * llm_w).reshape(t, llm_h, llm_w)
            pad_h, pad_w = -llm_h % size, -llm_w % size
            num_h, num_w = (llm_h + pad_h) // size, (llm_w + pad_w) // size
            padded = F.pad(index, (0, pad_w, 0, pad_h), "constant", -100)
            padded = padded.reshape(t, num_h, size, num_w, size).permute(0, 1, 3, 2, 4).reshape(-1, size * size)
            seqlens = (padded != -100).sum(1)
            window_index.append(padded[padded != -100] + start)
            cu_window_seqlens.extend((seqlens.cumsum(0) * unit + cu_window_seqlens[-1]).tolist())
            start += t * llm_h * llm_w
        return torch.cat(window_index), torch.unique_consecutive(torch.tensor(cu_window_seqlens))

    def forward(self, pixel_values, grid_thw):
        hidden_states = self.patch_embed(pixel_values) + self.pos_embed(grid_thw)
        hidden_states = self.group(hidden_states, grid_thw)
        rotary = self.rot_pos_emb(grid_thw)
        window_index, cu_window_seqlens = self.get_window_index(grid_thw)
        frames = torch.tensor([h * w for t, h, w in grid_thw for _ in range(t)])
        cu_seqlens = F.pad(frames.cumsum(0), (1, 0), value=0)

        unit, length = self.spatial_merge_size**2, hidden_states.shape[0]
        hidden_states = hidden_states.reshape(length // unit, unit, -1)[window_index].reshape(length, -1)
        rotary = rotary.reshape(length // unit, unit, -1)[window_index].reshape(length, -1)
        emb = torch.cat((rotary, rotary), dim=-1)
        position_embeddings = (emb.cos(), emb.sin())

        reverse = torch.argsort(window_index)
        for i, block in enumerate(self.blocks):
            bounds = cu_seqlens if i in self.fullatt_block_indexes else cu_window_seqlens
            hidden_states = block(hidden_states, bounds, position_embeddings)
            if i == self.deepstack_index:
                deepstack = self.deepstack_merger(hidden_states)[reverse]
        return self.merger(hidden_states)[reverse], deepstack


class TextAttention(nn.Module):
    def __init__(self, config, layer_idx: int):
        super().__init__()
        self.layer_idx, self.head_dim = layer_idx, config.head_dim
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        self.scaling = config.head_dim**-0.5
        self.mrope_section = config.mrope_section
        self.q_proj = nn.Linear(config.hidden_size, config.num_attention_heads * config.head_dim, bias=True)
        self.k_proj = nn.Linear(config.hidden_size, config.num_key_value_heads * config.head_dim, bias=True)
        self.v_proj = nn.Linear(config.hidden_size, config.num_key_value_heads * config.head_dim, bias=True)
        self.o_proj = nn.Linear(config.num_attention_heads * config.head_dim, config.hidden_size, bias=False)
        self.q_norm = RMSNorm(config.head_dim, eps=config.rms_norm_eps)
        self.k_norm = RMSNorm(config.head_dim, eps=config.rms_norm_eps)

    def forward(self, hidden_states, position_embeddings, attention_mask, past_key_values):
        bsz, q_len, _ = hidden_states.shape
        shape = (bsz, q_len, -1, self.head_dim)
        query = self.q_norm(self.q_proj(hidden_states).view(shape)).transpose(1, 2)
        key = self.k_norm(self.k_proj(hidden_states).view(shape)).transpose(1, 2)
        value = self.v_proj(hidden_states).view(shape).transpose(1, 2)
        query, key = apply_multimodal_rotary_pos_emb(query, key, *position_embeddings, self.mrope_section)
        if past_key_values[self.layer_idx] is not None:
            past_key, past_value = past_key_values[self.layer_idx]
            key, value = torch.cat([past_key, key], dim=-2), torch.cat([past_value, value], dim=-2)
        past_key_values[self.layer_idx] = (key, value)
        key, value = (x.repeat_interleave(self.num_key_value_groups, dim=1) for x in (key, value))
        weights = torch.matmul(query, key.transpose(2, 3)) * self.scaling + attention_mask
        output = torch.matmul(F.softmax(weights, dim=-1), value)
        return self.o_proj(output.transpose(1, 2).reshape(bsz, q_len, -1))


class DecoderLayer(nn.Module):
    def __init__(self, config, layer_idx: int):
        super().__init__()
        self.self_attn = TextAttention(config, layer_idx)
        self.gate_up_proj = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.input_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, x, position_embeddings, attention_mask, past_key_values):
        x = x + self.self_attn(self.input_layernorm(x), position_embeddings, attention_mask, past_key_values)
        gate, up = self.gate_up_proj(self.post_attention_layernorm(x)).chunk(2, dim=-1)
        return x + self.down_proj(up * F.silu(gate))


class TextModel(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([DecoderLayer(config, i) for i in range(config.num_hidden_layers)])
        self.norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        inv_freq = 1.0 / (config.rope_theta ** (torch.arange(0, config.head_dim, 2).float() / config.head_dim))
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def rotary_emb(self, position_ids):
        inv_freq = self.inv_freq[None, None, :, None].expand(3, position_ids.shape[1], -1, 1)
        freqs = (inv_freq @ position_ids[:, :, None, :].float()).transpose(2, 3)
        emb = torch.cat((freqs, freqs), dim=-1)
        return emb.cos(), emb.sin()

    def causal_mask(self, attention_mask, q_len, past):
        """What is added to the scores: nothing where a query may look, the least number elsewhere."""
        queries = torch.arange(past, past + q_len)[:, None]
        allowed = torch.arange(attention_mask.shape[1])[None, :] <= queries
        allowed = allowed[None, None] & attention_mask[:, None, None, :].bool()
        return torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min)

    def forward(self, inputs_embeds, position_ids, attention_mask, cache, visual_mask=None, deepstack=None):
        past = 0 if cache[0] is None else cache[0][0].shape[-2]
        mask = self.causal_mask(attention_mask, inputs_embeds.shape[1], past)
        position_embeddings = self.rotary_emb(position_ids)
        hidden_states = inputs_embeds
        for i, layer in enumerate(self.layers):
            hidden_states = layer(hidden_states, position_embeddings, mask, cache)
            if i == 0 and deepstack is not None:
                hidden_states = hidden_states.clone()
                hidden_states[visual_mask] += deepstack
        return self.norm(hidden_states)


class VisionLanguageModel(nn.Module):
    """Reads prompts with images and clips, then two given tokens one by one; the logits of both."""

    image_token_id = 3
    vision_start_token_id = 1
    temporal_stride = 2

    def __init__(self):
        super().__init__()
        self.spatial_merge_size = VISION.spatial_merge_size
        self.visual = VisionTower(VISION)
        self.language_model = TextModel(TEXT)
        self.lm_head = nn.Linear(TEXT.hidden_size, TEXT.vocab_size, bias=False)

    def get_rope_index(self, input_ids, grid_thw, attention_mask):
        """Text counts on in all three rows; an image counts its frames, rows and columns from where the text stopped."""
        position_ids = torch.ones(3, *input_ids.shape, dtype=torch.long)
        image_index, deltas = 0, []
        for b, ids in enumerate(input_ids):
            tokens = ids[attention_mask[b] == 1].tolist()
            parts, st = [], 0
            for _ in range(tokens.count(self.vision_start_token_id)):
                t, h, w = grid_thw[image_index]
                image_index += 1
                h, w = h // self.spatial_merge_size, w // self.spatial_merge_size
                text_len = tokens.index(self.image_token_id, st) - st
                base = parts[-1].max() + 1 if parts else 0
                parts.append(torch.arange(text_len).expand(3, -1) + base)
                frames = torch.arange(t) * self.temporal_stride
                places = torch.meshgrid(frames, torch.arange(h), torch.arange(w), indexing="ij")
                parts.append(torch.stack(places).flatten(1) + text_len + base)
                st += text_len + t * h * w
            base = parts[-1].max() + 1 if parts else 0
            parts.append(torch.arange(len(tokens) - st).expand(3, -1) + base)
            positions = torch.cat(parts, dim=1)
            position_ids[:, b, attention_mask[b] == 1] = positions
            deltas.append(positions.max() + 1 - len(ids))
        return position_ids, torch.stack(deltas).unsqueeze(1)

    def forward(self, input_ids, attention_mask, pixel_values, image_grid_thw, next_ids):
        grid_thw = image_grid_thw.tolist()
        image_embeds, deepstack = self.visual(pixel_values, grid_thw)
        inputs_embeds = self.language_model.embed_tokens(input_ids)
        visual_mask = input_ids == self.image_token_id
        inputs_embeds = inputs_embeds.masked_scatter(visual_mask.unsqueeze(-1).expand_as(inputs_embeds), image_embeds)
        position_ids, rope_deltas = self.get_rope_index(input_ids, grid_thw, attention_mask)

        cache = [None] * len(self.language_model.layers)
        hidden = self.language_model(inputs_embeds, position_ids, attention_mask, cache, visual_mask, deepstack)
        logits = self.lm_head(hidden).masked_fill(attention_mask[..., None] == 0, 0.0)

        steps = []
        for i in range(next_ids.shape[1]):
            attention_mask = torch.cat([attention_mask, attention_mask.new_ones(attention_mask.shape[0], 1)], dim=1)
            position = (cache[0][0].shape[-2] + rope_deltas).unsqueeze(0).expand(3, -1, -1)
            embeds = self.language_model.embed_tokens(next_ids[:, i : i + 1])
            hidden = self.language_model(embeds, position, attention_mask, cache)
            steps.append(self.lm_head(hidden[:, -1]))
        return logits, torch.stack(steps, dim=1)


def build():
    """The net with the same weights on every run; a prompt with two images, and a shorter one with a clip of two frames."""
    torch.manual_seed(47)
    net = VisionLanguageModel()
    for module in net.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            nn.init.normal_(module.weight, std=1.2 * module.weight[0].numel() ** -0.5)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.1)
        elif isinstance(module, (nn.LayerNorm, RMSNorm)):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            if isinstance(module, nn.LayerNorm):
                nn.init.normal_(module.bias, std=0.1)
        elif isinstance(module, VisionBlock):
            nn.init.uniform_(module.ls1, 0.3, 0.9)
            nn.init.uniform_(module.ls2, 0.3, 0.9)
        elif isinstance(module, InterpolatedPositions):
            nn.init.normal_(module.weight, std=0.5)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
    grid = torch.tensor([[1, 8, 12], [1, 4, 4], [2, 4, 6]])
    words = torch.randint(4, 120, (24,)).tolist()
    first = words[:3] + [1] + [3] * 24 + [2] + words[3:5] + [1] + [3] * 4 + [2] + words[5:9]
    second = words[9:12] + [1] + [3] * 12 + [2] + words[12:22]
    padding = len(first) - len(second)
    input_ids = torch.tensor([first, [0] * padding + second])
    attention_mask = torch.tensor([[1] * len(first), [0] * padding + [1] * len(second)])
    pixel_values = torch.rand(int(grid.prod(1).sum()), 48)
    return net.eval(), (input_ids, attention_mask, pixel_values, grid, torch.randint(4, 120, (2, 2)))
