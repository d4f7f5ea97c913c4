"""Temporal fusion transformer (Lim et al.) for interpretable multi-horizon forecasts of the sales of stores, in PyTorch.

The histories of a batch are aligned to the left and padded on the right up to ``encoder_steps``; the horizon follows from
there on.  A series may be new, that is, without any history.
"""

from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import rnn

# A median absolute deviation times this is a standard deviation, for a normal distribution.
MAD_TO_STD = 1.4826


class Config:
    """Settings of the small model."""

    encoder_steps, decoder_steps = 14, 6
    # categories: how many there are of each; zero is "unknown", or "none" for events
    static_categories = (("store", 9), ("format", 5))
    time_categories = (("weekday", 8), ("month", 13))
    num_events = 11
    static_reals, known_reals, observed_reals = ("area",), ("price", "temperature"), ("traffic",)
    hidden_size, hidden_continuous_size = 24, 10
    num_heads, lstm_layers, dropout = 4, 2, 0.1
    quantiles = (0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.98)
    prior_strength, min_scale, clip = 3.0, 0.05, 2.5


def embedding_size(n):
    """Rule of thumb for the width of the embedding of n categories."""
    return int(min(round(1.6 * n**0.56), 16)) if n > 2 else 1


def input_sizes(categories, reals, size):
    return {**{name: embedding_size(count) for name, count in categories}, **{name: size for name in reals}}


def length_mask(lengths, steps):
    """True where a step lies within the length: (batch, steps)."""
    return torch.arange(steps, device=lengths.device)[None, :] < lengths[:, None]


def masked_mean(x, mask, dim):
    """Mean over a dimension of what the mask leaves, zero if it leaves nothing."""
    mask = mask.to(x.dtype)
    return (x * mask).sum(dim=dim) / mask.sum(dim=dim).clamp(min=1.0)


def masked_median(x, mask):
    """The median over the last dimension of what the mask leaves, as ``torch.median`` has it; zero if it leaves nothing."""
    count = mask.sum(dim=-1, keepdim=True)
    ordered = x.masked_fill(~mask, float("inf")).sort(dim=-1).values
    middle = ordered.gather(-1, ((count - 1) // 2).clamp(min=0))
    return torch.where(count > 0, middle, torch.zeros_like(middle))


class SeriesScaler(nn.Module):
    """Robust centre and scale of each series' logarithms, shrunk to those of its group where the history is short."""

    def __init__(self, num_groups, prior_strength, min_scale):
        super().__init__()
        self.prior_strength, self.min_scale = prior_strength, min_scale
        self.register_buffer("group_center", torch.zeros(num_groups))
        self.register_buffer("group_scale", torch.ones(num_groups))

    def forward(self, target, mask, group):
        """The scaled target, and the centre and scale that the steps of the mask, which come first, give: (batch, 1)."""
        logs = torch.log1p(target)
        values = logs[:, : mask.shape[1]]
        median = masked_median(values, mask)
        deviation = masked_median((values - median).abs(), mask) * MAD_TO_STD
        count = mask.sum(dim=-1, keepdim=True).to(values.dtype)
        trust = count / (count + self.prior_strength)
        center = trust * median + (1.0 - trust) * self.group_center[group].unsqueeze(-1)
        scale = trust * deviation + (1.0 - trust) * self.group_scale[group].unsqueeze(-1)
        scale = scale.clamp(min=self.min_scale)
        return (logs - center) / scale, center, scale

    def inverse(self, scaled, center, scale):
        logs = scaled * scale.unsqueeze(-1) + center.unsqueeze(-1)
        return torch.expm1(logs).clamp(min=0.0)


class EventBag(nn.Module):
    """The mean embedding of the events of a day; there may be none."""

    def __init__(self, num_events, size):
        super().__init__()
        self.embedding = nn.Embedding(num_events, size, padding_idx=0)

    def forward(self, events):
        return masked_mean(self.embedding(events), (events != 0).unsqueeze(-1), dim=-2)


class TargetConv(nn.Module):
    """Causal convolution over the history of the target."""

    def __init__(self, size, kernel_size=3, dilation=2):
        super().__init__()
        self.conv = nn.Conv1d(1, size, kernel_size, padding=(kernel_size - 1) * dilation, dilation=dilation)

    def forward(self, x):
        return self.conv(x.unsqueeze(1))[..., : x.shape[-1]].transpose(1, 2)


class GatedLinearUnit(nn.Module):
    def __init__(self, input_size, hidden_size, dropout=0.0):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(input_size, hidden_size * 2)

    def forward(self, x):
        return F.glu(self.fc(self.dropout(x)), dim=-1)


class ResampleNorm(nn.Module):
    """Brings a skip connection to another width: interpolation of the features, a trained gate for each, and a norm."""

    def __init__(self, input_size, output_size):
        super().__init__()
        self.input_size, self.output_size = input_size, output_size
        self.mask = nn.Parameter(torch.zeros(output_size))
        self.norm = nn.LayerNorm(output_size)

    def forward(self, x):
        lead = x.shape[:-1]
        x = F.interpolate(x.reshape(-1, 1, self.input_size), size=self.output_size, mode="linear", align_corners=True)
        x = x.reshape(*lead, self.output_size) * torch.sigmoid(self.mask) * 2.0
        return self.norm(x)


class GateAddNorm(nn.Module):
    """GLU, skip connection (with a trained gate, if wanted), norm."""

    def __init__(self, size, trainable_add=False, dropout=0.0):
        super().__init__()
        self.glu = GatedLinearUnit(size, size, dropout)
        self.mask = nn.Parameter(torch.zeros(size)) if trainable_add else None
        self.norm = nn.LayerNorm(size)

    def forward(self, x, skip):
        if self.mask is not None:
            skip = skip * torch.sigmoid(self.mask) * 2.0
        return self.norm(self.glu(x) + skip)


class GatedResidualNetwork(nn.Module):
    def __init__(self, input_size, hidden_size, output_size, context_size=None, dropout=0.0):
        super().__init__()
        self.resample = ResampleNorm(input_size, output_size) if input_size != output_size else None
        self.fc1 = nn.Linear(input_size, hidden_size)
        self.elu = nn.ELU()
        self.context = nn.Linear(context_size, hidden_size, bias=False) if context_size is not None else None
        self.fc2 = nn.Linear(hidden_size, output_size)
        self.gate_norm = GateAddNorm(output_size, dropout=dropout)

    def forward(self, x, context=None):
        residual = x if self.resample is None else self.resample(x)
        x = self.fc1(x)
        if context is not None:
            x = x + self.context(context)
        x = self.fc2(self.elu(x))
        return self.gate_norm(x, residual)


class VariableSelectionNetwork(nn.Module):
    """Weighs the variables of a step; each has a residual network of its own."""

    def __init__(self, input_sizes, hidden_size, context_size=None, dropout=0.0):
        super().__init__()
        total, count = sum(input_sizes.values()), len(input_sizes)
        self.names = tuple(input_sizes)
        self.flattened_grn = GatedResidualNetwork(total, min(hidden_size, count), count, context_size, dropout)
        grn = partial(GatedResidualNetwork, output_size=hidden_size, dropout=dropout)
        self.single_variable_grns = nn.ModuleDict({n: grn(s, min(s, hidden_size)) for n, s in input_sizes.items()})
        self.softmax = nn.Softmax(dim=-1)

    def forward(self, variables, context=None):
        outputs = torch.stack([self.single_variable_grns[name](variables[name]) for name in self.names], dim=-1)
        flat = torch.cat([variables[name] for name in self.names], dim=-1)
        weights = self.softmax(self.flattened_grn(flat, context))
        return (outputs * weights.unsqueeze(-2)).sum(dim=-1), weights


class SequenceEncoder(nn.Module):
    """LSTM over the histories; a series without a history keeps the state that it starts from."""

    def __init__(self, size, layers, dropout=0.0):
        super().__init__()
        self.lstm = nn.LSTM(size, size, num_layers=layers, batch_first=True, dropout=dropout)

    def forward(self, x, state, lengths):
        packed = rnn.pack_padded_sequence(x, lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False)
        output, (hidden, cell) = self.lstm(packed, state)
        output, _ = rnn.pad_packed_sequence(output, batch_first=True, total_length=x.shape[1])
        new = (lengths == 0)[None, :, None]
        return output, (torch.where(new, state[0], hidden), torch.where(new, state[1], cell))


class InterpretableMultiHeadAttention(nn.Module):
    """Each head has its queries and keys; all share the values."""

    def __init__(self, hidden_size, num_heads, dropout=0.0):
        super().__init__()
        self.num_heads, self.head_size = num_heads, hidden_size // num_heads
        self.q_proj = nn.Linear(hidden_size, num_heads * self.head_size)
        self.k_proj = nn.Linear(hidden_size, num_heads * self.head_size)
        self.v_proj = nn.Linear(hidden_size, self.head_size)
        self.dropout = nn.Dropout(dropout)
        self.out_proj = nn.Linear(self.head_size, hidden_size, bias=False)

    def forward(self, q, k, v, mask):
        """mask is (batch, queries, keys), true where a query must not look."""
        b, nq, nk = q.shape[0], q.shape[1], k.shape[1]
        q = self.q_proj(q).view(b, nq, self.num_heads, self.head_size).transpose(1, 2)
        k = self.k_proj(k).view(b, nk, self.num_heads, self.head_size).transpose(1, 2)
        v = self.v_proj(v).unsqueeze(1)
        scores = torch.matmul(q, k.transpose(-2, -1)) / self.head_size**0.5
        scores = scores.masked_fill(mask.unsqueeze(1), -1e9)
        attn = self.dropout(scores.softmax(dim=-1))
        return self.out_proj(torch.matmul(attn, v).mean(dim=1)), attn


class QuantileHead(nn.Module):
    """The median and, from there outwards, positive steps to the other quantiles: they cannot cross."""

    def __init__(self, hidden_size, num_quantiles):
        super().__init__()
        self.middle = num_quantiles // 2
        self.fc = nn.Linear(hidden_size, hidden_size)
        self.act = nn.GELU()
        self.out = nn.Linear(hidden_size, num_quantiles)

    def forward(self, x):
        raw = self.out(self.act(self.fc(x)))
        median = raw[..., self.middle : self.middle + 1]
        up = F.softplus(raw[..., self.middle + 1 :]).cumsum(dim=-1)
        down = F.softplus(raw[..., : self.middle]).flip(-1).cumsum(dim=-1).flip(-1)
        return torch.cat((median - down, median, median + up), dim=-1)


def pinball(prediction, target, quantiles):
    """Quantile loss of each step and quantile: (batch, steps, quantiles)."""
    error = target.unsqueeze(-1) - prediction
    return torch.maximum((quantiles - 1.0) * error, quantiles * error)


class TemporalFusionTransformer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        d, c = cfg.hidden_size, cfg.hidden_continuous_size
        self.register_buffer("quantiles", torch.tensor(cfg.quantiles), persistent=False)
        # inputs
        self.scaler = SeriesScaler(dict(cfg.static_categories)["format"], cfg.prior_strength, cfg.min_scale)
        categories = cfg.static_categories + cfg.time_categories
        self.embeddings = nn.ModuleDict({name: nn.Embedding(count, embedding_size(count)) for name, count in categories})
        self.events = EventBag(cfg.num_events, embedding_size(cfg.num_events))
        self.known_norm, self.observed_norm = nn.BatchNorm1d(len(cfg.known_reals)), nn.BatchNorm1d(len(cfg.observed_reals))
        reals = cfg.static_reals + cfg.known_reals + ("relative_time",) + cfg.observed_reals + ("trend",)
        self.prescalers = nn.ModuleDict({name: nn.Linear(1, c) for name in reals})
        self.trend = nn.AvgPool1d(3, stride=1, padding=1, count_include_pad=False)
        self.target_conv = TargetConv(c)
        # variable selection
        static = input_sizes(cfg.static_categories, cfg.static_reals, c)
        known = input_sizes(cfg.time_categories + (("events", cfg.num_events),), cfg.known_reals + ("relative_time",), c)
        past = {**known, **input_sizes((), cfg.observed_reals + ("trend", "target"), c)}
        self.static_selection = VariableSelectionNetwork(static, d, dropout=cfg.dropout)
        self.encoder_selection = VariableSelectionNetwork(past, d, d, cfg.dropout)
        self.decoder_selection = VariableSelectionNetwork(known, d, d, cfg.dropout)
        # static context
        contexts = [GatedResidualNetwork(d, d, d, dropout=cfg.dropout) for _ in range(4)]
        self.context_selection, self.context_hidden, self.context_cell, self.context_enrichment = contexts
        # temporal part
        self.encoder = SequenceEncoder(d, cfg.lstm_layers, cfg.dropout)
        self.decoder = nn.LSTM(d, d, num_layers=cfg.lstm_layers, batch_first=True, dropout=cfg.dropout)
        self.post_lstm = GateAddNorm(d, dropout=cfg.dropout)
        self.enrichment = GatedResidualNetwork(d, d, d, d, cfg.dropout)
        self.attention = InterpretableMultiHeadAttention(d, cfg.num_heads, cfg.dropout)
        self.post_attention = GateAddNorm(d, trainable_add=True, dropout=cfg.dropout)
        self.feed_forward = GatedResidualNetwork(d, d, d, dropout=cfg.dropout)
        self.pre_output = GateAddNorm(d, trainable_add=True)
        self.head = QuantileHead(d, len(cfg.quantiles))

    def relative_time(self, lengths):
        """Steps from the start of the horizon, in histories: (batch, steps, 1)."""
        past = torch.arange(self.cfg.encoder_steps)[None, :] - lengths[:, None]
        future = torch.arange(self.cfg.decoder_steps)[None, :].expand(lengths.shape[0], -1)
        return (torch.cat((past, future), dim=1).float() / self.cfg.encoder_steps).unsqueeze(-1)

    def embed_static(self, static_cat, static_real):
        variables = {name: self.embeddings[name](static_cat[:, i]) for i, (name, _) in enumerate(self.cfg.static_categories)}
        return {**variables, "area": self.prescalers["area"](static_real)}

    def embed_known(self, time_cat, events, known_real, valid, lengths):
        """Variables that are known for history and horizon alike."""
        variables = {name: self.embeddings[name](time_cat[..., i]) for i, (name, _) in enumerate(self.cfg.time_categories)}
        variables["events"] = self.events(events)
        price = known_real[..., 0] / masked_mean(known_real[..., 0], valid, dim=1).unsqueeze(1) - 1.0
        reals = self.known_norm(torch.stack((price, known_real[..., 1]), dim=1)).transpose(1, 2)
        for i, name in enumerate(self.cfg.known_reals):
            variables[name] = self.prescalers[name](reals[..., i : i + 1])
        variables["relative_time"] = self.prescalers["relative_time"](self.relative_time(lengths))
        return variables

    def embed_observed(self, observed_real, history, mask):
        """Variables that only the history has; history is the scaled target."""
        history = history.clamp(-self.cfg.clip, self.cfg.clip).masked_fill(~mask, 0.0)
        reals = self.observed_norm(torch.log1p(observed_real).transpose(1, 2)).transpose(1, 2)
        trend = self.prescalers["trend"](self.trend(history.unsqueeze(1)).transpose(1, 2))
        return {"traffic": self.prescalers["traffic"](reals), "trend": trend, "target": self.target_conv(history)}

    def attention_mask(self, encoder_mask):
        """True where a step of the horizon must not look: at padding and at what comes after it."""
        steps = torch.arange(self.cfg.decoder_steps)
        later = (steps[None, :] > steps[:, None]).expand(encoder_mask.shape[0], -1, -1)
        return torch.cat((~encoder_mask[:, None, :].expand(-1, len(steps), -1), later), dim=-1)

    def attention_by_lag(self, attn, encoder_lengths, horizon_mask):
        """How much the horizon looks at the last step of the history, at the one before it, and so on: (batch, steps)."""
        attn = masked_mean(attn.mean(dim=1), horizon_mask.unsqueeze(-1), dim=1)
        places = encoder_lengths[:, None] - 1 - torch.arange(self.cfg.encoder_steps)[None, :]
        return attn[:, : self.cfg.encoder_steps].gather(1, places.clamp(min=0)) * (places >= 0)

    def forward(self, static_cat, static_real, time_cat, events, known_real, observed_real, target, encoder_lengths,
                decoder_lengths):
        cfg, n = self.cfg, self.cfg.encoder_steps
        encoder_mask, horizon_mask = length_mask(encoder_lengths, n), length_mask(decoder_lengths, cfg.decoder_steps)
        scaled, center, scale = self.scaler(target, encoder_mask, static_cat[:, 1])
        # variables and their selection
        static, static_weights = self.static_selection(self.embed_static(static_cat, static_real))
        valid = torch.cat((encoder_mask, horizon_mask), dim=1)
        known = self.embed_known(time_cat, events, known_real, valid, encoder_lengths)
        past = {name: value[:, :n] for name, value in known.items()}
        past.update(self.embed_observed(observed_real, scaled[:, :n], encoder_mask))
        future = {name: value[:, n:] for name, value in known.items()}
        context = self.context_selection(static).unsqueeze(1)
        past, past_weights = self.encoder_selection(past, context)
        future, future_weights = self.decoder_selection(future, context)
        # local processing
        starts = (self.context_hidden, self.context_cell)
        state = tuple(start(static).expand(cfg.lstm_layers, -1, -1).contiguous() for start in starts)
        encoded, state = self.encoder(past, state, encoder_lengths)
        decoded, _ = self.decoder(future, state)
        local = self.post_lstm(torch.cat((encoded, decoded), dim=1), torch.cat((past, future), dim=1))
        # static enrichment, attention
        enriched = self.enrichment(local, self.context_enrichment(static).unsqueeze(1))
        attended, attn = self.attention(enriched[:, n:], enriched, enriched, self.attention_mask(encoder_mask))
        attended = self.post_attention(attended, enriched[:, n:])
        output = self.pre_output(self.feed_forward(attended), local[:, n:])
        # quantiles, and how good they are
        quantiles = self.head(output)
        prediction = self.scaler.inverse(quantiles, center, scale)
        loss = masked_mean(pinball(quantiles, scaled[:, n:], self.quantiles).sum(dim=-1), horizon_mask, dim=1)
        risk = pinball(prediction, target[:, n:], self.quantiles) * horizon_mask.unsqueeze(-1)
        risk = 2.0 * risk.sum(dim=(0, 1)) / (target[:, n:] * horizon_mask).abs().sum()
        # what the net looked at
        lags = self.attention_by_lag(attn, encoder_lengths, horizon_mask)
        past_weights = masked_mean(past_weights, encoder_mask.unsqueeze(-1), dim=1)
        future_weights = masked_mean(future_weights, horizon_mask.unsqueeze(-1), dim=1)
        return prediction, loss, risk, lags, static_weights, past_weights, future_weights


@torch.no_grad()
def set_weights(net):
    """Weights and statistics of the size that they have after training."""
    for module in net.modules():
        if isinstance(module, (nn.Linear, nn.Conv1d)):
            for parameter in module.parameters():
                nn.init.normal_(parameter, std=1.3 * parameter[0].numel() ** -0.5 if parameter.ndim > 1 else 0.2)
        elif isinstance(module, nn.LSTM):
            for parameter in module.parameters():
                nn.init.normal_(parameter, std=0.35 if parameter.ndim > 1 else 0.2)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight)
        elif isinstance(module, (nn.LayerNorm, nn.BatchNorm1d)):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.2)
        elif isinstance(module, SeriesScaler):
            nn.init.uniform_(module.group_center, 1.0, 1.8)
            nn.init.uniform_(module.group_scale, 0.3, 0.7)
        if isinstance(module, (ResampleNorm, GateAddNorm)) and module.mask is not None:
            nn.init.normal_(module.mask, std=0.7)
    for norm, mean, var in ((net.known_norm, [0.02, 14.0], [0.012, 38.0]), (net.observed_norm, [4.6], [0.3])):
        norm.running_mean.copy_(torch.tensor(mean))
        norm.running_var.copy_(torch.tensor(var))
    net.events.embedding.weight[0] = 0.0
    net.head.out.bias[net.quantiles != 0.5] -= 0.9
    return net


def sample(cfg, seed=7):
    """Five series of sales: two with a full or nearly full history, two with a part of it, and a new one."""
    rng = np.random.RandomState(seed)
    b, n, m = 5, cfg.encoder_steps, cfg.decoder_steps
    day = rng.randint(0, 300, (b, 1)) + np.arange(n + m)[None, :]
    static_cat = np.stack([rng.randint(1, count, b) for _, count in cfg.static_categories], axis=1)
    time_cat = np.stack((day % 7 + 1, day // 30 % 12 + 1), axis=-1)
    events = rng.randint(1, cfg.num_events, (b, n + m, 3)) * (rng.rand(b, n + m, 3) < 0.45)
    price = rng.uniform(1.0, 8.0, (b, 1)) * rng.choice([0.8, 0.9, 1.0, 1.1], (b, n + m))
    known_real = np.stack((price, 14.0 + 8.0 * np.sin(day / 58.0) + 2.0 * rng.randn(b, n + m)), axis=-1)
    observed_real = np.exp(4.6 + 0.5 * rng.randn(b, n, 1))
    level = rng.uniform(1.0, 1.9, (b, 1)) + 0.3 * np.sin(day * (2.0 * np.pi / 7.0))
    target = np.floor(np.expm1(level + 0.45 * rng.randn(b, n + m)) * 10.0).clip(0.0) / 10.0
    arrays = [static_cat, rng.randn(b, 1), time_cat, events, known_real, observed_real, target]
    arrays += [np.array([n, 9, 0, 12, 4]), np.array([m, m, 4, 5, m])]
    return [a.astype(np.int64 if a.dtype.kind in "iu" else np.float32) for a in arrays]


def build():
    """The net with the same weights on each run, and a batch."""
    torch.manual_seed(1912)
    net = set_weights(TemporalFusionTransformer(Config()))
    return net.eval(), tuple(torch.from_numpy(a) for a in sample(net.cfg))
