"""Handwriting synthesis and scoring (Graves, 2013) with a style encoder, in PyTorch."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

# Id 0 is the padding, the characters follow in this order.
ALPHABET = " abcdefghijklmnopqrstuvwxyzABCDEHIMST0123456789.,;'-?"
# Statistics of the pen's offsets over the training set, (x, y).
OFFSET_MEAN = (0.41, -0.07)
OFFSET_STD = (2.12, 1.37)
LOG_TWO_PI = math.log(2 * math.pi)


class HParams:
    """The small configuration."""

    hidden = 26
    num_layers = 3
    text_dim = 14
    class_dim = 6
    text_kernel = 3
    window_mixtures = 5
    kappa_scale = 0.32
    head_mixtures = 4
    head_hidden = 34
    rho_limit = 0.96
    log_sigma_range = (-4.0, 2.5)
    cell_clip = 3.0
    forget_bias = 1.0
    style_channels = (8, 12)
    style_groups = 4
    style_dim = 10
    # synthesis
    synth_steps = 13
    bias = 0.6
    stop_margin = 0.9
    # scoring
    length_power = 0.7
    coverage_weight = 0.3


def sequence_mask(lengths, maxlen):
    """(batch, maxlen), true in front of the end of the row."""
    return torch.arange(maxlen, device=lengths.device)[None, :] < lengths[:, None]


def character_classes(alphabet):
    """The class of each id: 0 padding, 1 space, 2 small letter, 3 capital, 4 digit, 5 punctuation."""
    classes = [0]
    for char in alphabet:
        if char == " ":
            classes.append(1)
        elif char.islower():
            classes.append(2)
        elif char.isupper():
            classes.append(3)
        elif char.isdigit():
            classes.append(4)
        else:
            classes.append(5)
    return torch.tensor(classes, dtype=torch.long)


def channel_shuffle(x, groups):
    """Mix the channels of (batch, channels, time) among the groups."""
    b, c, t = x.shape
    return x.view(b, groups, c // groups, t).transpose(1, 2).reshape(b, c, t)


def masked_statistics(x, mask):
    """Mean, deviation and maximum over the valid steps of (batch, channels, time)."""
    weight = mask.unsqueeze(1).to(x.dtype)
    count = weight.sum(dim=-1).clamp(min=1.0)
    mean = (x * weight).sum(dim=-1) / count
    var = ((x - mean.unsqueeze(-1)).pow(2) * weight).sum(dim=-1) / count
    peak = x.masked_fill(~mask.unsqueeze(1), float("-inf")).amax(dim=-1)
    return torch.cat([mean, torch.sqrt(var + 1e-5), peak], dim=-1)


def bivariate_log_density(x, y, params):
    """Log densities of the components at the points, (batch, time, mixtures)."""
    zx = (x - params["mu_x"]) * torch.exp(-params["log_sx"])
    zy = (y - params["mu_y"]) * torch.exp(-params["log_sy"])
    rho = params["rho"]
    one_minus = 1 - rho.pow(2)
    z = zx.pow(2) + zy.pow(2) - 2 * rho * zx * zy
    norm = LOG_TWO_PI + params["log_sx"] + params["log_sy"] + 0.5 * torch.log(one_minus)
    return -z / (2 * one_minus) - norm


def hold(new, old, alive):
    """New states where the row still goes on, the old ones behind its end."""
    return torch.where(alive.view(-1, *([1] * (new.ndim - 1))), new, old)


class PeepholeCell(nn.Module):
    """LSTM cell with peepholes; the cell's state is normalised on its way out."""

    def __init__(self, input_size, hidden, clip, forget_bias):
        super().__init__()
        self.clip = clip
        self.forget_bias = forget_bias
        self.x2h = nn.Linear(input_size, 4 * hidden)
        self.h2h = nn.Linear(hidden, 4 * hidden, bias=False)
        self.peep_i = nn.Parameter(torch.zeros(hidden))
        self.peep_f = nn.Parameter(torch.zeros(hidden))
        self.peep_o = nn.Parameter(torch.zeros(hidden))
        self.norm = nn.LayerNorm(hidden, eps=1e-2)

    def forward(self, x, h, c):
        i, f, g, o = (self.x2h(x) + self.h2h(h)).chunk(4, dim=-1)
        i = torch.sigmoid(i + self.peep_i * c)
        f = torch.sigmoid(f + self.peep_f * c + self.forget_bias)
        c = f * c + i * torch.tanh(g)
        c = c.clamp(-self.clip, self.clip)
        o = torch.sigmoid(o + self.peep_o * c)
        return o * torch.tanh(self.norm(c)), c


class SoftWindow(nn.Module):
    """Gaussian window over the characters; it only moves forward."""

    def __init__(self, hidden, mixtures, kappa_scale):
        super().__init__()
        self.kappa_scale = kappa_scale
        self.linear = nn.Linear(hidden, 3 * mixtures)

    def forward(self, h, kappa_prev, chars, char_mask):
        alpha, beta, delta = self.linear(h).chunk(3, dim=-1)
        alpha = F.softplus(alpha)
        beta = torch.exp(beta).clamp(min=0.01)
        kappa = kappa_prev + torch.exp(delta) * self.kappa_scale
        u = torch.arange(1, chars.shape[1] + 1, dtype=h.dtype, device=h.device)
        dist = kappa.unsqueeze(-1) - u
        phi = (alpha.unsqueeze(-1) * torch.exp(-beta.unsqueeze(-1) * dist.pow(2))).sum(dim=1)
        phi = phi * char_mask.to(phi.dtype)
        window = torch.einsum("bu,bud->bd", phi, chars)
        return window, kappa, phi


class TextEncoder(nn.Module):
    """Characters and their classes, with a convolution over the neighbours."""

    def __init__(self, num_ids, num_classes, text_dim, class_dim, kernel):
        super().__init__()
        self.text_dim = text_dim
        self.chars = nn.Embedding(num_ids, text_dim, padding_idx=0)
        self.classes = nn.Embedding(num_classes, class_dim)
        self.conv = nn.Conv1d(text_dim + class_dim, text_dim + class_dim, kernel, padding=kernel // 2)
        self.norm = nn.LayerNorm(text_dim + class_dim)
        self.register_buffer("class_table", character_classes(ALPHABET), persistent=False)

    def forward(self, text, mask):
        x = torch.cat([self.chars(text) * math.sqrt(self.text_dim), self.classes(self.class_table[text])], dim=-1)
        x = x * mask.unsqueeze(-1).to(x.dtype)
        near = F.gelu(self.conv(x.transpose(1, 2)).transpose(1, 2))
        return self.norm(x + near)


class StyleEncoder(nn.Module):
    """A vector of style from a reference sample, by convolutions and masked pooling."""

    def __init__(self, channels, groups, style_dim):
        super().__init__()
        c1, c2 = channels
        self.groups = groups
        self.conv1 = nn.Conv1d(3, c1, 5, padding=2)
        self.bn1 = nn.BatchNorm1d(c1, eps=1e-3)
        self.act1 = nn.LeakyReLU(0.1)
        self.conv2 = nn.Conv1d(c1, c2, 3, stride=2, padding=1)
        self.bn2 = nn.BatchNorm1d(c2, eps=1e-3)
        self.act2 = nn.LeakyReLU(0.1)
        self.conv3 = nn.Conv1d(c2, c2, 3, padding=2, dilation=2, groups=groups)
        self.norm3 = nn.GroupNorm(3, c2)
        self.proj = nn.Linear(3 * c2, style_dim)

    def forward(self, strokes, lengths):
        x = strokes.transpose(1, 2)
        mask = sequence_mask(lengths, x.shape[-1])
        x = x * mask.unsqueeze(1)
        x = self.act1(self.bn1(self.conv1(x)))
        x = x * mask.unsqueeze(1)

        x = self.act2(self.bn2(self.conv2(x)))
        lengths = torch.div(lengths - 1, 2, rounding_mode="floor") + 1
        mask = sequence_mask(lengths, x.shape[-1])
        x = x * mask.unsqueeze(1)

        mixed = channel_shuffle(self.conv3(x), self.groups)
        x = x + F.gelu(self.norm3(mixed))
        return torch.tanh(self.proj(masked_statistics(x, mask)))


class MixtureHead(nn.Module):
    """Parameters of the mixture over the next offset and the logit of the pen's lift."""

    def __init__(self, dim, hidden, mixtures, rho_limit, log_sigma_range):
        super().__init__()
        self.mixtures = mixtures
        self.rho_limit = rho_limit
        self.log_sigma_range = log_sigma_range
        self.norm = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, hidden)
        self.act = nn.GELU(approximate="tanh")
        self.fc2 = nn.Linear(hidden, 6 * mixtures + 1)

    def forward(self, features, bias=None):
        out = self.fc2(self.act(self.fc1(self.norm(features))))
        m = self.mixtures
        eos, pi, mu_x, mu_y, log_sx, log_sy, rho = torch.split(out, [1, m, m, m, m, m, m], dim=-1)
        low, high = self.log_sigma_range
        log_sx = log_sx.clamp(low, high)
        log_sy = log_sy.clamp(low, high)
        if bias is not None:
            pi = pi * (1 + bias)
            log_sx = log_sx - bias
            log_sy = log_sy - bias
        return {
            "eos": eos.squeeze(-1),
            "log_pi": F.log_softmax(pi, dim=-1),
            "mu_x": mu_x,
            "mu_y": mu_y,
            "log_sx": log_sx,
            "log_sy": log_sy,
            "rho": torch.tanh(rho) * self.rho_limit,
        }


class Scribe(nn.Module):
    """Stacked cells with a soft window: scores strokes against a text, and writes on from where they end."""

    def __init__(self, hp):
        super().__init__()
        self.hp = hp
        char_dim = hp.text_dim + hp.class_dim
        self.register_buffer("offset_mean", torch.tensor(OFFSET_MEAN), persistent=False)
        self.register_buffer("offset_std", torch.tensor(OFFSET_STD), persistent=False)
        self.text = TextEncoder(len(ALPHABET) + 1, 6, hp.text_dim, hp.class_dim, hp.text_kernel)
        self.style = StyleEncoder(hp.style_channels, hp.style_groups, hp.style_dim)
        self.style_h = nn.Linear(hp.style_dim, hp.num_layers * hp.hidden, bias=False)
        self.style_c = nn.Linear(hp.style_dim, hp.num_layers * hp.hidden)
        self.stack = nn.ModuleList()
        for index in range(hp.num_layers):
            size = 3 + char_dim + (hp.hidden if index > 0 else 0)
            self.stack.append(PeepholeCell(size, hp.hidden, hp.cell_clip, hp.forget_bias))
        self.window = SoftWindow(hp.hidden, hp.window_mixtures, hp.kappa_scale)
        self.head = MixtureHead(
            hp.num_layers * hp.hidden, hp.head_hidden, hp.head_mixtures, hp.rho_limit, hp.log_sigma_range
        )

    def normalise(self, strokes):
        offsets = (strokes[..., :2] - self.offset_mean) / self.offset_std
        return torch.cat([offsets, strokes[..., 2:]], dim=-1)

    def initial_state(self, style, chars):
        b = style.shape[0]
        hp = self.hp
        c = torch.tanh(self.style_c(style)).view(b, hp.num_layers, hp.hidden)
        h = torch.zeros_like(c)
        kappa = style.new_zeros(b, hp.window_mixtures)
        window = chars[:, 0]
        return h, c, kappa, window

    def step(self, x, state, style_h, chars, char_mask):
        """One point through the stack; style_h is (batch, layers, hidden)."""
        h_prev, c_prev, kappa, window = state
        hs, cs = [], []
        phi = None
        for index, cell in enumerate(self.stack):
            parts = [x, window] if index == 0 else [x, hs[-1], window]
            h, c = cell(torch.cat(parts, dim=-1), h_prev[:, index] + style_h[:, index], c_prev[:, index])
            hs.append(h)
            cs.append(c)
            if index == 0:
                window, kappa, phi = self.window(h, kappa, chars, char_mask)
        return (torch.stack(hs, dim=1), torch.stack(cs, dim=1), kappa, window), phi

    def teacher_forced(self, strokes, lengths, state, style_h, chars, char_mask):
        """Run over all points but the last; the states stop at the end of each row."""
        features, phis = [], []
        for t in range(strokes.shape[1] - 1):
            alive = t < lengths - 1
            new, phi = self.step(strokes[:, t], state, style_h, chars, char_mask)
            state = tuple(hold(n, o, alive) for n, o in zip(new, state))
            features.append(new[0].flatten(1))
            phis.append(phi * alive.unsqueeze(-1).to(phi.dtype))
        return torch.stack(features, dim=1), torch.stack(phis, dim=1), state

    def score(self, params, target, mask, phis, char_mask, text_lengths):
        """Log likelihoods of the points in the units of the pen, and a score for each row."""
        x, y, pen = target[..., 0:1], target[..., 1:2], target[..., 2]
        log_offsets = torch.logsumexp(params["log_pi"] + bivariate_log_density(x, y, params), dim=-1)
        log_offsets = log_offsets - torch.log(self.offset_std).sum()
        log_pen = -F.binary_cross_entropy_with_logits(params["eos"], pen, reduction="none")
        points = (log_offsets + log_pen) * mask.to(log_pen.dtype)

        count = mask.sum(dim=1).to(points.dtype)
        coverage = phis.sum(dim=1).clamp(1e-3, 1.0).log()
        coverage = (coverage * char_mask.to(coverage.dtype)).sum(dim=1) / text_lengths.to(coverage.dtype)
        rows = points.sum(dim=1) / count.pow(self.hp.length_power) + self.hp.coverage_weight * coverage
        return points, rows

    def synthesise(self, x, state, style_h, chars, char_mask, text_lengths):
        """Write on from the states, each time at the mean of the likeliest component."""
        finished = torch.zeros(x.shape[0], dtype=torch.bool, device=x.device)
        written, count = [], torch.zeros_like(text_lengths)
        for _ in range(self.hp.synth_steps):
            new, _ = self.step(x, state, style_h, chars, char_mask)
            state = tuple(hold(n, o, ~finished) for n, o in zip(new, state))
            params = self.head(state[0].flatten(1), bias=self.hp.bias)
            best = params["log_pi"].argmax(dim=-1, keepdim=True)
            dx = params["mu_x"].gather(1, best)
            dy = params["mu_y"].gather(1, best)
            pen = torch.sigmoid(params["eos"]).unsqueeze(-1)
            x = torch.cat([dx, dy, pen], dim=-1)
            spread = torch.exp(params["log_sx"].gather(1, best) + params["log_sy"].gather(1, best))
            emitted = torch.cat([x, spread], dim=-1)
            written.append(emitted * (~finished).unsqueeze(-1).to(emitted.dtype))
            count = count + (~finished).long()
            finished = finished | (state[2].mean(dim=-1) > text_lengths + self.hp.stop_margin)
        return torch.stack(written, dim=1), count

    def forward(self, strokes, stroke_lengths, text, text_lengths, sample, sample_lengths):
        """strokes and sample are (batch, time, 3): offsets and the pen's lift; text is (batch, characters)."""
        b = strokes.shape[0]
        strokes = self.normalise(strokes)
        char_mask = sequence_mask(text_lengths, text.shape[1])
        chars = self.text(text, char_mask)

        style = self.style(self.normalise(sample), sample_lengths)
        style_h = self.style_h(style).view(b, self.hp.num_layers, self.hp.hidden)
        state = self.initial_state(style, chars)

        features, phis, state = self.teacher_forced(strokes, stroke_lengths, state, style_h, chars, char_mask)
        params = self.head(features)
        mask = sequence_mask(stroke_lengths - 1, features.shape[1])
        points, rows = self.score(params, strokes[:, 1:], mask, phis, char_mask, text_lengths)

        # the first point that has not been read yet is the last of the row
        last = strokes[torch.arange(b), stroke_lengths - 1]
        written, count = self.synthesise(last, state, style_h, chars, char_mask, text_lengths)

        # how near the hand that wrote on is to the reference sample's
        own = self.style(written[..., :3], count)
        likeness = F.cosine_similarity(style, own, dim=-1)

        alive = sequence_mask(count, written.shape[1]).unsqueeze(-1).to(written.dtype)
        offsets = (written[..., :2] * self.offset_std + self.offset_mean) * alive
        path = torch.cat([offsets.cumsum(dim=1), written[..., 2:]], dim=-1)
        return points, rows, phis, path, likeness


def trained_like(net):
    """Values as after training, not as after the initialisation."""
    for name, parameter in net.named_parameters():
        if "peep" in name:
            nn.init.normal_(parameter, std=0.4)
        elif name.endswith(("x2h.weight", "h2h.weight")):
            nn.init.normal_(parameter, std=0.8 / math.sqrt(parameter.shape[1]))
        elif name.startswith(("style_h", "style_c", "style.proj", "head.fc", "style.conv")) and "weight" in name:
            nn.init.normal_(parameter, std=0.8 / math.sqrt(parameter[0].numel()))
    for module in net.modules():
        if isinstance(module, (nn.LayerNorm, nn.GroupNorm, nn.BatchNorm1d)):
            nn.init.uniform_(module.weight, 0.7, 1.3)
            nn.init.normal_(module.bias, std=0.15)
        if isinstance(module, nn.BatchNorm1d):
            nn.init.normal_(module.running_mean, std=0.2)
            nn.init.uniform_(module.running_var, 0.3, 1.2)
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.35)
    with torch.no_grad():
        net.text.chars.weight[0].zero_()


def build():
    """The net with seeded weights, and three rows of strokes, texts and reference samples."""
    torch.manual_seed(2013)
    net = Scribe(HParams())
    trained_like(net)
    net.eval()

    stroke_lengths = torch.tensor([16, 9, 12])
    text_lengths = torch.tensor([7, 11, 5])
    sample_lengths = torch.tensor([15, 22, 18])

    def pen(lengths):
        steps = int(lengths.max())
        points = torch.randn(len(lengths), steps, 2) * torch.tensor(OFFSET_STD) + torch.tensor(OFFSET_MEAN)
        lift = (torch.rand(len(lengths), steps, 1) < 0.25).float()
        return torch.cat([points, lift], dim=-1)

    strokes = pen(stroke_lengths)
    sample = pen(sample_lengths)
    text = torch.randint(1, len(ALPHABET) + 1, (3, 11))
    text = text * sequence_mask(text_lengths, 11)
    inputs = {
        "strokes": strokes,
        "stroke_lengths": stroke_lengths,
        "text": text,
        "text_lengths": text_lengths,
        "sample": sample,
        "sample_lengths": sample_lengths,
    }
    return net, inputs
