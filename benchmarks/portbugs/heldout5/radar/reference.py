"""Rain in the next minutes from the last radar images, some of which are missing; the loss is part of the net."""
from typing import Tuple

import math

import torch
from torch import nn, Tensor
from torch.nn import functional as F

DBZ_MEAN, DBZ_STD = 14.0, 12.0
DBZ_MIN, DBZ_MAX = -8.0, 56.0
MARSHALL_A, MARSHALL_B = 200.0, 1.6
RAIN_DBZ = 18.0
SOFTNESS = 3.0
STEP_HOURS = 0.25
DAYS = 365.25
HARMONICS = 2
LEAD_DECAY = 0.85
MISS_COST = 2.5
SCALES = (3, 5)
TERMS = (1.0, 0.6, 0.4, 0.25)


# ---------------------------------------------------------------- layers


def conv2d(c_in: int, c_out: int, kernel: int = 3, stride: int = 1, bias: bool = True) -> nn.Conv2d:
    return nn.Conv2d(c_in, c_out, kernel, stride, kernel // 2, bias=bias)


def group_norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(channels // 4, channels, eps=1e-4)


class Factorised(nn.Module):
    """A convolution over space, then one over time that never sees the future."""

    def __init__(self, c_in: int, c_out: int, dilation: int = 1):
        super().__init__()
        self.dilation = dilation
        self.space = nn.Conv3d(c_in, c_out, (1, 3, 3), padding=(0, 1, 1))
        self.norm = group_norm(c_out)
        self.time = nn.Conv3d(c_out, c_out, (3, 1, 1), dilation=(dilation, 1, 1), bias=False)
        self.skip = nn.Conv3d(c_in, c_out, 1)

    def forward(self, x):
        y = F.silu(self.norm(self.space(x)))
        y = self.time(F.pad(y, (0, 0, 0, 0, 2 * self.dilation, 0)))
        return F.silu(y + self.skip(x))


class ConvGRU(nn.Module):
    def __init__(self, c_in: int, hidden: int):
        super().__init__()
        self.gates = conv2d(c_in + hidden, 2 * hidden)
        self.candidate = conv2d(c_in + hidden, hidden)

    def forward(self, x, h):
        update, reset = torch.sigmoid(self.gates(torch.cat([x, h], dim=1))).chunk(2, dim=1)
        new = torch.tanh(self.candidate(torch.cat([x, reset * h], dim=1)))
        return update * h + (1 - update) * new


class Clock(nn.Module):
    """The hours of the day and the days of the year as circles."""

    def __init__(self, width: int):
        super().__init__()
        self.hidden = nn.Linear(4 * HARMONICS, width)
        self.act = nn.GELU()
        self.out = nn.Linear(width, width)

    def forward(self, hour, day):
        phase = torch.stack([hour / 24, day / DAYS], dim=-1) * 2 * math.pi
        phase = phase[..., None] * torch.arange(1, HARMONICS + 1)
        waves = torch.cat([phase.sin(), phase.cos()], dim=-1).flatten(-2)
        return self.out(self.act(self.hidden(waves)))


class Pool(nn.Module):
    """Learned questions look at all the places of all the images that are there."""

    def __init__(self, channels: int, questions: int, heads: int):
        super().__init__()
        self.heads = heads
        self.questions = nn.Parameter(torch.zeros(questions, channels))
        self.key = nn.Linear(channels, channels, bias=False)
        self.value = nn.Linear(channels, channels)
        self.age = nn.Parameter(torch.zeros(heads))

    def forward(self, x, present):
        b, c, t, h, w = x.shape
        tokens = x.flatten(2).transpose(1, 2)
        k = self.key(tokens).view(b, -1, self.heads, c // self.heads).transpose(1, 2)
        v = self.value(tokens).view(b, -1, self.heads, c // self.heads).transpose(1, 2)
        q = self.questions.view(-1, self.heads, c // self.heads).transpose(0, 1)
        score = q @ k.transpose(2, 3) / math.sqrt(c // self.heads)
        ago = torch.arange(t - 1, -1, -1)[:, None].expand(t, h * w).reshape(-1)
        score = score - F.softplus(self.age)[:, None, None] * ago
        gone = (present == 0)[:, :, None].expand(b, t, h * w).reshape(b, 1, 1, -1)
        share = score.masked_fill(gone, -1e4).softmax(dim=-1)
        answer = (share @ v).permute(0, 2, 1, 3).flatten(1)
        return answer, share.view(b, self.heads, -1, t, h * w).sum(dim=-1).mean(dim=(1, 2))


# ---------------------------------------------------------------- rain


def normalised(dbz: Tensor) -> Tensor:
    return (dbz.clamp(DBZ_MIN, DBZ_MAX) - DBZ_MEAN) / DBZ_STD


def rain_rate(dbz: Tensor) -> Tensor:
    """Millimetres an hour, after Marshall and Palmer."""
    return (10 ** (dbz / 10) / MARSHALL_A) ** (1 / MARSHALL_B)


def filled(frames: Tensor, present: Tensor) -> Tuple[Tensor, Tensor]:
    """Missing images are replaced by the last one before; also how many steps old each one is."""
    b, t = present.shape
    steps = torch.arange(t).expand(b, t)
    source = torch.where(present > 0, steps, torch.full_like(steps, -1)).cummax(dim=1).values
    known = (source >= 0).float()
    index = source.clamp(min=0)[:, :, None, None].expand(frames.shape)
    out = frames.gather(1, index) * known[:, :, None, None]
    age = torch.where(source >= 0, steps - source, steps + 1)
    return out, age.float()


def shift(x: Tensor, flow: Tensor) -> Tensor:
    """Moves each image by whole and parts of pixels along a flow (b, 2) that is the same everywhere."""
    b, c, h, w = x.shape
    fy = torch.fft.fftfreq(h)[:, None]
    fx = torch.fft.fftfreq(w)[None, :]
    turn = flow[:, 0, None, None] * fy + flow[:, 1, None, None] * fx
    angle = -2 * math.pi * turn
    spectrum = torch.fft.fft2(x) * torch.complex(angle.cos(), angle.sin())[:, None]
    return torch.fft.ifft2(spectrum).real


class Loss(nn.Module):
    """Amount, place, pattern and edges; all count only where the radar sees, and less for later times."""

    def __init__(self):
        super().__init__()
        self.pools = nn.ModuleList([
            nn.AvgPool2d(size, 1, size // 2, count_include_pad=False) for size in SCALES
        ])

    def average(self, error: Tensor, seen: Tensor) -> Tensor:
        lead = LEAD_DECAY ** torch.arange(error.shape[1]).float()
        weight = seen * lead[:, None, None]
        return (error * weight).sum(dim=(1, 2, 3)) / weight.sum(dim=(1, 2, 3))

    def forward(self, pred, chance, target, coverage):
        b, n, h, w = pred.shape
        seen = coverage[:, None].expand(b, n, h, w)
        heavy = 1 + rain_rate(target).clamp(max=10.0)
        amount = self.average(heavy * F.smooth_l1_loss(pred, target, reduction="none", beta=4.0) / DBZ_STD, seen)

        wet = (target > RAIN_DBZ).float()
        cost = F.binary_cross_entropy_with_logits(chance, wet, reduction="none")
        place = self.average(cost * (1 + (MISS_COST - 1) * wet), seen)

        soft = torch.sigmoid((pred - RAIN_DBZ) / SOFTNESS)
        pattern = 0.0
        for pool in self.pools:
            ours, theirs = pool(soft * seen), pool(wet * seen)
            gap = ((ours - theirs) ** 2).sum(dim=(2, 3))
            worst = (ours**2 + theirs**2).sum(dim=(2, 3))
            pattern = pattern + (gap / (worst + 1e-3)).mean(dim=1)

        edges = 0.0
        for dim in (2, 3):
            both = seen.narrow(dim, 1, seen.shape[dim] - 1) * seen.narrow(dim, 0, seen.shape[dim] - 1)
            step = pred.diff(dim=dim).abs() - target.diff(dim=dim).abs()
            edges = edges + self.average((step / DBZ_STD) ** 2, both)
        terms = torch.stack([amount, place, pattern, edges], dim=1)
        return (terms * torch.tensor(TERMS)).sum(dim=1), terms


# ---------------------------------------------------------------- the net


class Nowcast(nn.Module):
    def __init__(self, channels: int = 12, hidden: int = 16, width: int = 20):
        super().__init__()
        self.clock = Clock(width)
        self.enter = nn.Sequential(conv2d(3, channels, 3, 2), nn.LeakyReLU(0.2), conv2d(channels, channels))
        self.mixers = nn.ModuleList([Factorised(channels, channels), Factorised(channels, hidden, 2)])
        self.film = nn.Linear(width, 2 * hidden)
        self.encoder = ConvGRU(hidden, hidden)
        self.pool = Pool(hidden, 3, 4)
        self.regime = nn.Sequential(nn.Linear(3 * hidden, width), nn.LayerNorm(width), nn.Tanh())
        self.lead = nn.Linear(2 * width, hidden)
        self.drift = nn.Linear(width, 2)
        self.decoder = ConvGRU(hidden, hidden)
        self.exit = nn.Sequential(conv2d(hidden, 4 * channels), nn.PixelShuffle(2), nn.ELU(), conv2d(channels, 3))
        self.loss = Loss()

    def encode(self, frames, present, coverage, when):
        b, t, h, w = frames.shape
        images, age = filled(normalised(frames), present)
        cover = coverage[:, None].expand(b, t, h, w)
        old = torch.log1p(age)[:, :, None, None].expand(b, t, h, w)
        x = self.enter(torch.stack([images * cover, cover, old], dim=2).flatten(0, 1))
        x = x.view(b, t, *x.shape[1:]).transpose(1, 2)
        for mixer in self.mixers:
            x = mixer(x)
        hours = when[:, :1] + STEP_HOURS * torch.arange(1 - t, 1)
        scale, offset = self.film(self.clock(hours, when[:, 1:].expand(b, t))).transpose(1, 2).chunk(2, dim=1)
        x = x * (1 + scale[..., None, None]) + offset[..., None, None]
        state = torch.zeros_like(x[:, :, 0])
        states = []
        for i in range(t):
            there = present[:, i, None, None, None]
            state = there * self.encoder(x[:, :, i], state) + (1 - there) * state
            states.append(state)
        return images[:, -1:], torch.stack(states, dim=2)

    def forward(self, frames, present, coverage, when, target):
        last, states = self.encode(frames, present, coverage, when)
        answer, share = self.pool(states, present)
        regime = self.regime(answer)
        drift = 3.0 * torch.tanh(self.drift(regime))
        state, image = states[:, :, -1], last
        preds, chances = [], []
        for i in range(target.shape[1]):
            hour = when[:, 0] + STEP_HOURS * (i + 1)
            lead = self.lead(torch.cat([regime, self.clock(hour, when[:, 1])], dim=1))
            image = shift(image, drift)
            near = F.avg_pool2d(image, 2)
            state = self.decoder(torch.relu(lead)[:, :, None, None] + near * state, state)
            change, gate, chance = self.exit(state).chunk(3, dim=1)
            image = image + torch.sigmoid(gate) * torch.tanh(change)
            preds.append(image)
            chances.append(chance + image)
        images, chance = torch.cat(preds, dim=1), torch.cat(chances, dim=1)
        loss, terms = self.loss(images * DBZ_STD + DBZ_MEAN, chance, target, coverage)
        return images, torch.sigmoid(chance), share, drift, loss, terms


def build():
    """The net with the same weights on every run, and three series of images with gaps."""
    torch.manual_seed(41)
    net = Nowcast()
    for name, module in net.named_modules():
        if isinstance(module, (nn.GroupNorm, nn.LayerNorm)):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.2)
        elif isinstance(module, (nn.Conv2d, nn.Conv3d, nn.Linear)):
            calm = name.endswith("candidate") or name in ("exit.3", "drift", "regime.0")
            nn.init.normal_(module.weight, std=(0.6 if calm else 1.2) / math.sqrt(module.weight[0].numel()))
    nn.init.normal_(net.pool.questions, std=1.0)
    nn.init.normal_(net.pool.age, std=0.5)
    b, past, ahead, h, w = 3, 6, 4, 20, 24
    t = torch.arange(past + ahead)[None, :, None, None]
    y, x = torch.arange(h)[:, None], torch.arange(w)[None, :]
    rain = torch.zeros(b, past + ahead, h, w)
    for _ in range(5):
        cy, cx, vy, vx, size, top = (torch.rand(6, b, 1, 1, 1) * torch.tensor([20, 24, 1.6, 2.4, 3, 35.0]).view(6, 1, 1, 1, 1))
        rain = rain + (top + 8) * torch.exp(-((y - cy - (vy - 0.6) * t) ** 2 + (x - cx - (vx - 0.8) * t) ** 2)
                                            / (2 * (size + 1.5) ** 2))
    dbz = rain - 5 + 2 * torch.randn(rain.shape)
    present = torch.ones(b, past)
    present[0, 0] = present[0, 3] = present[1, 2] = present[1, 5] = present[2, 0] = present[2, 1] = present[2, 4] = 0
    coverage = ((y - 10) ** 2 + (x - torch.tensor([12, 9, 15])[:, None, None]) ** 2 < 150).float()
    frames = dbz[:, :past] * present[:, :, None, None]
    when = torch.tensor([[22.75, 340.0], [7.5, 12.0], [15.25, 201.0]])
    return net.eval(), (frames, present, coverage, when, dbz[:, past:])
