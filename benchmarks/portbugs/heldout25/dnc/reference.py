"""A differentiable neural computer for question streams (external memory, written-out LSTM controller), in PyTorch."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

# Statistics of the numeric side features over the training streams.
FEATURE_MEAN = (0.42, -0.17, 1.31, 0.08, 0.66)
FEATURE_STD = (0.83, 1.27, 0.49, 1.91, 0.72)

EPS = 1e-6


class DNCConfig:
    """The small model of the sweep."""

    vocab_size = 31
    num_features = 5
    embed_dim = 14
    feature_dim = 10
    max_steps = 40
    conv_kernel = 3
    conv_dilation = 2
    conv_groups = 4
    hidden_size = 22
    controller_layers = 2
    forget_bias = 1.0
    clip_value = 1.6
    memory_slots = 13
    word_size = 9
    read_heads = 3
    usage_budget = 0.18
    usage_ramp = 0.06
    answer_hidden = 26
    num_answers = 17


class Interface(NamedTuple):
    """What the controller tells the memory at one step."""

    read_keys: torch.Tensor  # (batch, heads, word)
    read_strengths: torch.Tensor  # (batch, heads)
    write_key: torch.Tensor  # (batch, word)
    write_strength: torch.Tensor  # (batch, 1)
    erase: torch.Tensor  # (batch, word)
    write: torch.Tensor  # (batch, word)
    free_gates: torch.Tensor  # (batch, heads)
    allocation_gate: torch.Tensor  # (batch, 1)
    write_gate: torch.Tensor  # (batch, 1)
    read_modes: torch.Tensor  # (batch, heads, 3): backward, content, forward


class AccessState(NamedTuple):
    """Everything the memory keeps from step to step."""

    memory: torch.Tensor  # (batch, slots, word)
    usage: torch.Tensor  # (batch, slots)
    write_weights: torch.Tensor  # (batch, slots)
    read_weights: torch.Tensor  # (batch, heads, slots)
    link: torch.Tensor  # (batch, slots, slots)
    precedence: torch.Tensor  # (batch, slots)
    reads: torch.Tensor  # (batch, heads, word)


def length_mask(lengths, steps):
    """(batch, steps), true where a step belongs to the stream."""
    return torch.arange(steps, device=lengths.device)[None, :] < lengths[:, None]


def oneplus(x):
    return 1 + F.softplus(x)


def hold(active, new, old):
    """The new state where the stream still runs, else the old one."""
    shape = (-1,) + (1,) * (new.ndim - 1)
    return torch.where(active.view(shape), new, old)


def sinusoid_table(steps, dim):
    """Interleaved sines and cosines, (steps, dim)."""
    position = np.arange(steps)[:, None]
    rate = np.exp(np.arange(0, dim, 2) * -(math.log(10000.0) / dim))
    table = np.zeros((steps, dim), dtype=np.float32)
    table[:, 0::2] = np.sin(position * rate)
    table[:, 1::2] = np.cos(position * rate)
    return torch.from_numpy(table)


def cosine_similarity(memory, keys):
    """(batch, slots, word) and (batch, heads, word) to (batch, heads, slots)."""
    dot = torch.einsum("bhw,bnw->bhn", keys, memory)
    key_norm = torch.sqrt(keys.pow(2).sum(dim=-1) + EPS)
    memory_norm = torch.sqrt(memory.pow(2).sum(dim=-1) + EPS)
    return dot / (key_norm.unsqueeze(2) * memory_norm.unsqueeze(1) + EPS)


def content_weights(memory, keys, strengths, slot_mask):
    """Softmax over the usable slots of the sharpened similarity."""
    logits = cosine_similarity(memory, keys) * strengths.unsqueeze(-1)
    logits = logits.masked_fill(~slot_mask.unsqueeze(1), float("-inf"))
    return torch.softmax(logits, dim=-1)


def update_usage(usage, write_weights, read_weights, free_gates):
    """The usage after the last step's write and reads."""
    written = usage + (1 - usage) * write_weights
    retention = torch.prod(1 - free_gates.unsqueeze(-1) * read_weights, dim=1)
    return written * retention


def allocation_weights(usage, slot_mask):
    """The least used slots first; a slot that is not there counts as full."""
    usage = EPS + (1 - EPS) * usage
    usage = torch.where(slot_mask, usage, torch.ones_like(usage))
    sorted_usage, order = torch.sort(usage, dim=-1, stable=True)
    product = torch.cumprod(sorted_usage, dim=-1)
    exclusive = torch.cat((torch.ones_like(product[:, :1]), product[:, :-1]), dim=-1)
    sorted_allocation = (1 - sorted_usage) * exclusive
    return torch.zeros_like(usage).scatter(-1, order, sorted_allocation)


class StreamEncoder(nn.Module):
    """Tokens and numeric features of a stream to vectors, with a dilated convolution over the steps."""

    def __init__(self, cfg):
        super().__init__()
        dim = cfg.embed_dim + cfg.feature_dim
        self.embed_dim = cfg.embed_dim
        self.embed = nn.Embedding(cfg.vocab_size, cfg.embed_dim, padding_idx=0)
        self.feature = nn.Linear(cfg.num_features, cfg.feature_dim)
        reach = cfg.conv_dilation * (cfg.conv_kernel - 1) // 2
        self.conv = nn.Conv1d(
            dim, dim, cfg.conv_kernel, padding=reach, dilation=cfg.conv_dilation, groups=cfg.conv_groups
        )
        self.norm = nn.BatchNorm1d(dim, eps=1e-4)
        self.act = nn.CELU(alpha=0.5)
        self.register_buffer("mean", torch.tensor(FEATURE_MEAN), persistent=False)
        self.register_buffer("std", torch.tensor(FEATURE_STD), persistent=False)
        self.register_buffer("position", sinusoid_table(cfg.max_steps, dim), persistent=False)

    def forward(self, tokens, features, valid):
        steps = tokens.shape[1]
        words = self.embed(tokens) * math.sqrt(self.embed_dim)
        numbers = torch.tanh(self.feature((features - self.mean) / self.std))
        x = torch.cat((words, numbers), dim=-1)
        x = x + self.position[:steps].unsqueeze(0)
        keep = valid.unsqueeze(-1).to(x.dtype)
        x = x * keep
        y = self.act(self.norm(self.conv(x.transpose(1, 2)))).transpose(1, 2)
        return (x + y) * keep


class LSTMCell(nn.Module):
    """LSTM with layer norms on both products and on the cell."""

    def __init__(self, input_size, hidden_size, forget_bias):
        super().__init__()
        self.hidden_size = hidden_size
        self.forget_bias = forget_bias
        self.x2h = nn.Linear(input_size, 4 * hidden_size)
        self.h2h = nn.Linear(hidden_size, 4 * hidden_size, bias=False)
        self.norm_x = nn.LayerNorm(4 * hidden_size)
        self.norm_h = nn.LayerNorm(4 * hidden_size)
        self.norm_c = nn.LayerNorm(hidden_size, eps=1e-2)

    def forward(self, x, h, c):
        gates = self.norm_x(self.x2h(x)) + self.norm_h(self.h2h(h))
        i, f, g, o = gates.chunk(4, dim=-1)
        c = torch.sigmoid(f + self.forget_bias) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(self.norm_c(c))
        return h, c


class Controller(nn.Module):
    """A deep LSTM; every layer sees the input and the layer below, the outputs of all are joined."""

    def __init__(self, input_size, hidden_size, num_layers, forget_bias, clip_value):
        super().__init__()
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.lstms = nn.ModuleList(
            LSTMCell(input_size + (hidden_size if layer else 0), hidden_size, forget_bias)
            for layer in range(num_layers)
        )
        self.out = nn.Linear(num_layers * hidden_size, hidden_size)
        self.clip = nn.Hardtanh(-clip_value, clip_value)

    def initial_state(self, batch):
        zeros = self.out.weight.new_zeros(self.num_layers, batch, self.hidden_size)
        return zeros, zeros.clone()

    def forward(self, x, state):
        hidden, cell = state
        new_hidden, new_cell = [], []
        below = None
        for layer, lstm in enumerate(self.lstms):
            layer_in = x if below is None else torch.cat((x, below), dim=-1)
            h, c = lstm(layer_in, hidden[layer], cell[layer])
            new_hidden.append(h)
            new_cell.append(c)
            below = h
        out = self.clip(self.out(torch.cat(new_hidden, dim=-1)))
        return out, (torch.stack(new_hidden), torch.stack(new_cell))


class TemporalLinkage(nn.Module):
    """Which slot was written after which: link[b, i, j] is how far i was written right after j."""

    def forward(self, link, precedence, write_weights):
        w_i = write_weights.unsqueeze(2)
        w_j = write_weights.unsqueeze(1)
        link = (1 - w_i - w_j) * link + w_i * precedence.unsqueeze(1)
        slots = link.shape[-1]
        diagonal = torch.eye(slots, dtype=torch.bool, device=link.device)
        link = link.masked_fill(diagonal, 0.0)
        precedence = (1 - write_weights.sum(dim=-1, keepdim=True)) * precedence + write_weights
        return link, precedence

    @staticmethod
    def directional(link, read_weights):
        """Where the read heads go one write on and one write back, both (batch, heads, slots)."""
        forward = torch.einsum("bij,bhj->bhi", link, read_weights)
        backward = torch.einsum("bij,bhi->bhj", link, read_weights)
        return forward, backward


class MemoryAccess(nn.Module):
    """One step of the external memory: usage, allocation, write, links, reads."""

    def __init__(self, hidden_size, slots, word_size, heads, usage_ramp):
        super().__init__()
        self.slots, self.word_size, self.heads = slots, word_size, heads
        self.sizes = [heads * word_size, heads, word_size, 1, word_size, word_size, heads, 1, 1, 3 * heads]
        self.interface = nn.Linear(hidden_size, sum(self.sizes))
        self.linkage = TemporalLinkage()
        self.memory_init = nn.Parameter(torch.zeros(slots, word_size))
        # the slots start in a fixed order of usage, so that sorting is never a matter of taste
        self.register_buffer("usage_init", torch.linspace(0.0, usage_ramp, slots), persistent=False)

    def initial_state(self, batch):
        memory = self.memory_init.unsqueeze(0).expand(batch, -1, -1)
        usage = self.usage_init.unsqueeze(0).expand(batch, -1)
        return AccessState(
            memory=memory,
            usage=usage,
            write_weights=torch.zeros_like(usage),
            read_weights=memory.new_zeros(batch, self.heads, self.slots),
            link=memory.new_zeros(batch, self.slots, self.slots),
            precedence=torch.zeros_like(usage),
            reads=memory.new_zeros(batch, self.heads, self.word_size),
        )

    def parse(self, vector):
        parts = torch.split(vector, self.sizes, dim=-1)
        b = vector.shape[0]
        return Interface(
            read_keys=parts[0].view(b, self.heads, self.word_size),
            read_strengths=oneplus(parts[1]),
            write_key=parts[2],
            write_strength=oneplus(parts[3]),
            erase=torch.sigmoid(parts[4]),
            write=parts[5],
            free_gates=torch.sigmoid(parts[6]),
            allocation_gate=torch.sigmoid(parts[7]),
            write_gate=torch.sigmoid(parts[8]),
            read_modes=torch.softmax(parts[9].view(b, self.heads, 3), dim=-1),
        )

    def forward(self, hidden, state, slot_mask):
        face = self.parse(self.interface(hidden))

        usage = update_usage(state.usage, state.write_weights, state.read_weights, face.free_gates)
        allocation = allocation_weights(usage, slot_mask)
        lookup = content_weights(state.memory, face.write_key.unsqueeze(1), face.write_strength, slot_mask).squeeze(1)
        write_weights = face.write_gate * (
            face.allocation_gate * allocation + (1 - face.allocation_gate) * lookup
        )

        keep = 1 - write_weights.unsqueeze(-1) * face.erase.unsqueeze(1)
        memory = state.memory * keep + write_weights.unsqueeze(-1) * face.write.unsqueeze(1)

        link, precedence = self.linkage(state.link, state.precedence, write_weights)
        forward, backward = self.linkage.directional(link, state.read_weights)
        content = content_weights(memory, face.read_keys, face.read_strengths, slot_mask)
        read_weights = (
            face.read_modes[..., 0:1] * backward
            + face.read_modes[..., 1:2] * content
            + face.read_modes[..., 2:3] * forward
        )
        reads = read_weights @ memory
        return AccessState(memory, usage, write_weights, read_weights, link, precedence, reads)


class AnswerHead(nn.Module):
    """Answers from the controller's output and from what was read."""

    def __init__(self, hidden_size, heads, word_size, answer_hidden, num_answers):
        super().__init__()
        self.norm = nn.LayerNorm(hidden_size + heads * word_size)
        self.fc1 = nn.Linear(hidden_size + heads * word_size, answer_hidden)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(answer_hidden, num_answers)

    def forward(self, hidden, reads):
        x = torch.cat((hidden, reads.flatten(-2)), dim=-1)
        return self.fc2(self.act(self.fc1(self.norm(x))))


class DNC(nn.Module):
    """Streams of different length to answers at the steps that ask for one, and a penalty on the use of memory."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        dim = cfg.embed_dim + cfg.feature_dim
        self.encoder = StreamEncoder(cfg)
        self.controller = Controller(
            dim + cfg.read_heads * cfg.word_size, cfg.hidden_size, cfg.controller_layers, cfg.forget_bias,
            cfg.clip_value,
        )
        self.access = MemoryAccess(
            cfg.hidden_size, cfg.memory_slots, cfg.word_size, cfg.read_heads, cfg.usage_ramp
        )
        self.answer = AnswerHead(
            cfg.hidden_size, cfg.read_heads, cfg.word_size, cfg.answer_hidden, cfg.num_answers
        )

    @staticmethod
    def pick_answers(sequence, asked):
        """The entries at the asked steps, in order, padded with zeros to the largest number of questions."""
        counts = asked.sum(dim=1)
        picked = sequence.new_zeros(sequence.shape[0], int(counts.max()), *sequence.shape[2:])
        for b in range(sequence.shape[0]):
            steps = asked[b].nonzero(as_tuple=True)[0]
            picked[b, : len(steps)] = sequence[b, steps]
        return picked, length_mask(counts, picked.shape[1])

    def usage_penalty(self, usages, valid, slot_mask):
        """How far the mean usage of the usable slots exceeds the budget, averaged over each stream's steps."""
        slots = slot_mask.to(usages.dtype).unsqueeze(1)
        mean_usage = (usages * slots).sum(dim=-1) / slots.sum(dim=-1)
        excess = F.relu(mean_usage - self.cfg.usage_budget).pow(2)
        steps = valid.to(usages.dtype)
        return (excess * steps).sum(dim=1) / steps.sum(dim=1).clamp(min=1.0)

    def forward(self, tokens, features, lengths, asked, num_slots):
        """tokens (batch, steps), features (batch, steps, 5), lengths and num_slots (batch,), asked (batch, steps)."""
        batch, steps = tokens.shape
        valid = length_mask(lengths, steps)
        slot_mask = length_mask(num_slots, self.cfg.memory_slots)
        inputs = self.encoder(tokens, features, valid)

        controller_state = self.controller.initial_state(batch)
        state = self.access.initial_state(batch)
        hiddens, reads, usages = [], [], []
        for t in range(steps):
            active = valid[:, t]
            x = torch.cat((inputs[:, t], state.reads.flatten(1)), dim=-1)
            hidden, (new_h, new_c) = self.controller(x, controller_state)
            new_state = self.access(hidden, state, slot_mask)

            state = AccessState(*(hold(active, new, old) for new, old in zip(new_state, state)))
            old_h, old_c = controller_state
            running = active.view(1, -1, 1)
            controller_state = (torch.where(running, new_h, old_h), torch.where(running, new_c, old_c))
            hiddens.append(hidden)
            reads.append(state.reads)
            usages.append(state.usage)

        asked = asked & valid
        hidden_seq, asked_mask = self.pick_answers(torch.stack(hiddens, dim=1), asked)
        read_seq, _ = self.pick_answers(torch.stack(reads, dim=1), asked)
        logits = self.answer(hidden_seq, read_seq)
        logits = logits * asked_mask.unsqueeze(-1).to(logits.dtype)

        penalty = self.usage_penalty(torch.stack(usages, dim=1), valid, slot_mask)
        return logits, state.reads, penalty


def trained_like(net):
    """Values as after training, not as after the initialisation."""
    for module in net.modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.2)
        elif isinstance(module, nn.BatchNorm1d):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.3)
            nn.init.normal_(module.running_mean, std=0.3)
            nn.init.uniform_(module.running_var, 0.3, 1.7)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=1.4 * module.in_features**-0.5)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.3)
        elif isinstance(module, nn.Conv1d):
            nn.init.normal_(module.weight, std=module.weight[0].numel() ** -0.5)
            nn.init.normal_(module.bias, std=0.2)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.3)
            module.weight.data[0] = 0.0
    nn.init.normal_(net.access.memory_init, std=0.4)
    # a trained net writes rather more than not, and frees with care
    bias, sizes = net.access.interface.bias.data, net.access.sizes
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    bias[starts[6] : starts[6] + sizes[6]] -= 0.6
    bias[starts[8]] += 1.0
    net.access.interface.weight.data *= 1.3
    return net


def build():
    """The net with the same weights on every run, and three streams of different length."""
    torch.manual_seed(1412)
    net = trained_like(DNC(DNCConfig()))
    steps = 16
    lengths = torch.tensor([16, 9, 12])
    num_slots = torch.tensor([13, 8, 11])
    tokens = torch.randint(1, 31, (3, steps)) * length_mask(lengths, steps)
    features = torch.randn(3, steps, 5) * torch.tensor(FEATURE_STD) + torch.tensor(FEATURE_MEAN)
    asked = torch.rand(3, steps) < 0.45
    asked[:, 7] = True
    asked[1:, 14] = True  # a question in the padding is none
    asked[1, 15] = False
    return net.eval(), (tokens, features, lengths, asked, num_slots)
