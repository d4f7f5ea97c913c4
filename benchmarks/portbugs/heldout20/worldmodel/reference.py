"""A latent world model in the manner of DreamerV3 (categorical RSSM, imagined returns), in PyTorch: the reference."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


# ----------------------------------------------------------------------------------------------------------- helpers


def symlog(x):
    return torch.sign(x) * torch.log(torch.abs(x) + 1.0)


def symexp(x):
    return torch.sign(x) * (torch.exp(torch.abs(x)) - 1.0)


def static_scan(fn, inputs, start):
    """Run `fn(prev, *inputs_t)` over the first axis; `fn` gives a tuple of dicts, which are stacked."""
    last = start
    outputs = None
    for index in range(inputs[0].shape[0]):
        last = fn(last, *[x[index] for x in inputs])
        if outputs is None:
            outputs = [{key: [value] for key, value in part.items()} for part in last]
        else:
            for store, part in zip(outputs, last):
                for key, value in part.items():
                    store[key].append(value)
    return [{key: torch.stack(value, 0) for key, value in part.items()} for part in outputs]


def swap(x):
    """(batch, time, ...) to (time, batch, ...) and back."""
    return x.permute([1, 0] + list(range(2, x.dim())))


def unimix(logits, ratio):
    """Logits of a categorical that has `ratio` of the uniform one mixed in."""
    probs = F.softmax(logits, dim=-1)
    probs = probs * (1.0 - ratio) + ratio / probs.shape[-1]
    return torch.log(probs)


def onehot_mode(logits):
    """The most likely class as one-hot, with the straight-through gradient of the probabilities."""
    probs = logits.softmax(-1)
    hard = F.one_hot(torch.argmax(logits, dim=-1), logits.shape[-1]).to(probs.dtype)
    return hard + probs - probs.detach()


def categorical_kl(left, right):
    """KL(left || right) of independent categoricals, summed over the variables."""
    left_log, right_log = F.log_softmax(left, -1), F.log_softmax(right, -1)
    return (left_log.exp() * (left_log - right_log)).sum(-1).sum(-1)


def lambda_return(reward, value, pcont, bootstrap, lam):
    """reward and pcont (horizon, n) of the states arrived at, value (horizon, n) of those left, bootstrap (n)."""
    next_values = torch.cat([value[1:], bootstrap[None]], 0)
    inputs = reward + pcont * next_values * (1 - lam)
    returns = []
    last = bootstrap
    for index in reversed(range(reward.shape[0])):
        last = inputs[index] + pcont[index] * lam * last
        returns.append(last)
    return torch.stack(returns[::-1], 0)


class DiscDist:
    """Two-hot distribution over bins in symlog space."""

    def __init__(self, logits, buckets):
        self.logits = logits
        self.probs = torch.softmax(logits, -1)
        self.buckets = buckets

    def mode(self):
        return symexp(torch.sum(self.probs * self.buckets, dim=-1))

    def log_prob(self, x):
        x = symlog(x)
        count = len(self.buckets)
        below = torch.sum((self.buckets <= x[..., None]).to(torch.int32), dim=-1) - 1
        above = count - torch.sum((self.buckets > x[..., None]).to(torch.int32), dim=-1)
        below = torch.clip(below, 0, count - 1)
        above = torch.clip(above, 0, count - 1)
        equal = below == above
        dist_to_below = torch.where(equal, 1, torch.abs(self.buckets[below] - x))
        dist_to_above = torch.where(equal, 1, torch.abs(self.buckets[above] - x))
        total = dist_to_below + dist_to_above
        weight_below = dist_to_above / total
        weight_above = dist_to_below / total
        target = (
            F.one_hot(below.long(), num_classes=count) * weight_below[..., None]
            + F.one_hot(above.long(), num_classes=count) * weight_above[..., None]
        )
        log_pred = self.logits - torch.logsumexp(self.logits, -1, keepdim=True)
        return (target * log_pred).sum(-1)


class RewardEMA:
    """Range of the returns between two percentiles, kept from step to step."""

    def __init__(self, alpha=0.3):
        self.alpha = alpha
        self.range = torch.tensor([0.05, 0.95])

    def __call__(self, x, ema_vals):
        x_quantile = torch.quantile(torch.flatten(x.detach()), self.range.to(x))
        vals = self.alpha * x_quantile + (1 - self.alpha) * ema_vals
        scale = torch.clip(vals[1] - vals[0], min=1.0)
        return vals[0], scale


# ---------------------------------------------------------------------------------------------------------- networks


class ImgChLayerNorm(nn.Module):
    def __init__(self, ch, eps=1e-3):
        super().__init__()
        self.norm = nn.LayerNorm(ch, eps=eps)

    def forward(self, x):
        x = x.permute(0, 2, 3, 1)
        x = self.norm(x)
        return x.permute(0, 3, 1, 2)


class ConvEncoder(nn.Module):
    def __init__(self, in_ch, depths):
        super().__init__()
        layers = []
        for depth in depths:
            layers.append(nn.Conv2d(in_ch, depth, kernel_size=3, stride=2, padding=1, bias=False))
            layers.append(ImgChLayerNorm(depth))
            layers.append(nn.SiLU())
            in_ch = depth
        self.layers = nn.Sequential(*layers)

    def forward(self, obs):
        # (batch, time, h, w, ch)
        obs = obs - 0.5
        x = obs.reshape((-1,) + tuple(obs.shape[-3:]))
        x = x.permute(0, 3, 1, 2)
        x = self.layers(x)
        # the channels come last in the embedding
        x = x.permute(0, 2, 3, 1)
        x = x.reshape([x.shape[0], -1])
        return x.reshape(list(obs.shape[:-3]) + [x.shape[-1]])


class ConvDecoder(nn.Module):
    def __init__(self, feat_size, depths, minres, out_ch):
        super().__init__()
        self.minres = minres
        self.in_ch = depths[0]
        self.linear_layer = nn.Linear(feat_size, minres[0] * minres[1] * depths[0])
        layers = []
        in_ch = depths[0]
        for index, depth in enumerate(list(depths[1:]) + [out_ch]):
            last = index == len(depths) - 1
            layers.append(nn.ConvTranspose2d(in_ch, depth, 4, 2, padding=1, bias=last))
            if not last:
                layers.append(ImgChLayerNorm(depth))
                layers.append(nn.SiLU())
            in_ch = depth
        self.layers = nn.Sequential(*layers)

    def forward(self, features):
        x = self.linear_layer(features)
        x = x.reshape([-1, self.minres[0], self.minres[1], self.in_ch])
        x = x.permute(0, 3, 1, 2)
        x = self.layers(x)
        mean = x.reshape(tuple(features.shape[:-1]) + tuple(x.shape[1:]))
        mean = mean.permute(0, 1, 3, 4, 2)
        return mean + 0.5


class MLP(nn.Module):
    def __init__(self, inp_dim, units, layers, out_dim):
        super().__init__()
        self.layers = nn.Sequential()
        for index in range(layers):
            self.layers.add_module(f"linear{index}", nn.Linear(inp_dim, units, bias=False))
            self.layers.add_module(f"norm{index}", nn.LayerNorm(units, eps=1e-3))
            self.layers.add_module(f"act{index}", nn.SiLU())
            inp_dim = units
        self.out = nn.Linear(units, out_dim)

    def forward(self, features):
        return self.out(self.layers(features))


class GRUCell(nn.Module):
    """GRU whose three parts come of one projection and are normalised together."""

    def __init__(self, inp_size, size, update_bias=-1.0, eps=1e-3):
        super().__init__()
        self.size = size
        self.update_bias = update_bias
        self.eps = eps
        self.linear = nn.Linear(inp_size + size, 3 * size, bias=False)
        self.gain = nn.Parameter(torch.ones(3 * size))
        self.shift = nn.Parameter(torch.zeros(3 * size))

    def forward(self, inputs, state):
        state = state[0]
        parts = self.linear(torch.cat([inputs, state], -1))
        mean = parts.mean(-1, keepdim=True)
        var = ((parts - mean) ** 2).mean(-1, keepdim=True)
        parts = (parts - mean) * torch.rsqrt(var + self.eps) * self.gain + self.shift
        reset, cand, update = torch.split(parts, [self.size] * 3, -1)
        reset = torch.sigmoid(reset)
        cand = torch.tanh(reset * cand)
        update = torch.sigmoid(update + self.update_bias)
        output = update * cand + (1 - update) * state
        return output, [output]


class RSSM(nn.Module):
    def __init__(self, embed, num_actions, stoch=6, discrete=5, deter=40, hidden=32, ratio=0.01):
        super().__init__()
        self.stoch = stoch
        self.discrete = discrete
        self.deter = deter
        self.num_actions = num_actions
        self.ratio = ratio
        self.img_in_layers = nn.Sequential(
            nn.Linear(stoch * discrete + num_actions, hidden, bias=False), nn.LayerNorm(hidden, eps=1e-3), nn.SiLU()
        )
        self.cell = GRUCell(hidden, deter)
        self.img_out_layers = nn.Sequential(
            nn.Linear(deter, hidden, bias=False), nn.LayerNorm(hidden, eps=1e-3), nn.SiLU()
        )
        self.obs_out_layers = nn.Sequential(
            nn.Linear(deter + embed, hidden, bias=False), nn.LayerNorm(hidden, eps=1e-3), nn.SiLU()
        )
        self.imgs_stat_layer = nn.Linear(hidden, stoch * discrete)
        self.obs_stat_layer = nn.Linear(hidden, stoch * discrete)
        self.W = nn.Parameter(torch.zeros(1, deter))

    def initial(self, batch_size):
        deter = torch.tanh(self.W).repeat(batch_size, 1)
        logit = self._stats(self.imgs_stat_layer(self.img_out_layers(deter)))
        return {"stoch": onehot_mode(logit), "deter": deter, "logit": logit}

    def _stats(self, x):
        logit = x.reshape(list(x.shape[:-1]) + [self.stoch, self.discrete])
        return unimix(logit, self.ratio)

    def get_feat(self, state):
        stoch = state["stoch"]
        stoch = stoch.reshape(list(stoch.shape[:-2]) + [self.stoch * self.discrete])
        return torch.cat([stoch, state["deter"]], -1)

    def img_step(self, prev_state, prev_action):
        prev_stoch = prev_state["stoch"]
        prev_stoch = prev_stoch.reshape(list(prev_stoch.shape[:-2]) + [self.stoch * self.discrete])
        x = self.img_in_layers(torch.cat([prev_stoch, prev_action], -1))
        x, deter = self.cell(x, [prev_state["deter"]])
        deter = deter[0]
        logit = self._stats(self.imgs_stat_layer(self.img_out_layers(x)))
        return {"stoch": onehot_mode(logit), "deter": deter, "logit": logit}

    def obs_step(self, prev_state, prev_action, embed, is_first):
        is_first = is_first[:, None]
        prev_action = prev_action * (1.0 - is_first)
        init_state = self.initial(len(is_first))
        state = {}
        for key, val in prev_state.items():
            is_first_r = torch.reshape(is_first, tuple(is_first.shape) + (1,) * (val.dim() - is_first.dim()))
            state[key] = val * (1.0 - is_first_r) + init_state[key] * is_first_r
        prior = self.img_step(state, prev_action)
        x = self.obs_out_layers(torch.cat([prior["deter"], embed], -1))
        logit = self._stats(self.obs_stat_layer(x))
        post = {"stoch": onehot_mode(logit), "deter": prior["deter"], "logit": logit}
        return post, prior

    def forward(self, embed, action, is_first):
        """embed (b, t, e), action (b, t, a): that which led to the step, is_first (b, t)."""
        start = self.initial(embed.shape[0])
        embed, action, is_first = swap(embed), swap(action), swap(is_first)
        post, prior = static_scan(
            lambda prev, act, emb, first: self.obs_step(prev[0], act, emb, first),
            (action, embed, is_first),
            (start, start),
        )
        post = {key: swap(value) for key, value in post.items()}
        prior = {key: swap(value) for key, value in prior.items()}
        return post, prior


# ------------------------------------------------------------------------------------------------------- world model


class Dreamer(nn.Module):
    """Model losses on a batch of sequences, and actor and critic losses on a rollout imagined from each step."""

    def __init__(
        self,
        size=(32, 48),
        channels=3,
        num_actions=4,
        depths=(8, 12, 16),
        units=28,
        horizon=4,
        bins=41,
        kl_scales=(0.5, 0.1, 3.5),
        gamma=0.985,
        lam=0.9,
        entropy=3e-3,
    ):
        super().__init__()
        self.num_actions = num_actions
        self.horizon = horizon
        self.dyn_scale, self.rep_scale, self.free = kl_scales
        self.gamma, self.lam, self.entropy = gamma, lam, entropy
        minres = (size[0] // 2 ** len(depths), size[1] // 2 ** len(depths))
        self.encoder = ConvEncoder(channels, depths)
        self.rssm = RSSM(minres[0] * minres[1] * depths[-1], num_actions)
        feat_size = self.rssm.stoch * self.rssm.discrete + self.rssm.deter
        self.heads = nn.ModuleDict(
            {
                "decoder": ConvDecoder(feat_size, depths[::-1], minres, channels),
                "reward": MLP(feat_size, units, 2, bins),
                "cont": MLP(feat_size, units, 1, 1),
            }
        )
        self.actor = MLP(feat_size, units, 2, num_actions)
        self.value = MLP(feat_size, units, 2, bins)
        self.slow_value = MLP(feat_size, units, 2, bins)
        self.reward_ema = RewardEMA()
        self.register_buffer("buckets", torch.linspace(-20.0, 20.0, steps=bins), persistent=False)
        self.register_buffer("ema_vals", torch.tensor([-0.4, 1.7]), persistent=False)

    def kl_loss(self, post, prior):
        rep_loss = categorical_kl(post["logit"], prior["logit"].detach())
        dyn_loss = categorical_kl(post["logit"].detach(), prior["logit"])
        value = rep_loss
        rep_loss = torch.clip(rep_loss, min=self.free)
        dyn_loss = torch.clip(dyn_loss, min=self.free)
        loss = self.dyn_scale * dyn_loss + self.rep_scale * rep_loss
        return loss, value

    def imagine(self, start):
        state = {key: value.reshape([-1] + list(value.shape[2:])) for key, value in start.items()}
        feats, actions, policies = [self.rssm.get_feat(state)], [], []
        for _ in range(self.horizon):
            policy = unimix(self.actor(feats[-1]), 0.01)
            action = onehot_mode(policy)
            state = self.rssm.img_step(state, action)
            feats.append(self.rssm.get_feat(state))
            actions.append(action)
            policies.append(policy)
        return torch.stack(feats, 0), torch.stack(actions, 0), torch.stack(policies, 0)

    def behaviour(self, post, is_terminal):
        feat, action, policy = self.imagine(post)
        reward = DiscDist(self.heads["reward"](feat), self.buckets).mode()
        cont = torch.sigmoid(self.heads["cont"](feat)).squeeze(-1)
        cont = torch.cat([1.0 - is_terminal.reshape(1, -1), cont[1:]], 0)
        discount = self.gamma * cont
        value_dist = DiscDist(self.value(feat), self.buckets)
        value = value_dist.mode()
        target = lambda_return(reward[1:], value[:-1], discount[1:], value[-1], self.lam)
        weights = torch.cumprod(torch.cat([torch.ones_like(discount[:1]), discount[:-1]], 0), 0).detach()

        offset, scale = self.reward_ema(target, self.ema_vals)
        normed_target = (target - offset) / scale
        normed_base = (value[:-1] - offset) / scale
        adv = normed_target - normed_base
        logpi = (policy * action).sum(-1)
        entropy = -(policy.exp() * policy).sum(-1)
        actor_loss = -weights[:-1] * (logpi * adv.detach() + self.entropy * entropy)
        value_dist = DiscDist(value_dist.logits[:-1], self.buckets)
        slow_target = DiscDist(self.slow_value(feat[:-1]), self.buckets).mode()
        value_loss = -value_dist.log_prob(target.detach()) - value_dist.log_prob(slow_target.detach())
        value_loss = weights[:-1] * value_loss
        return target, actor_loss, value_loss

    def forward(self, image, action, reward, is_first, is_terminal):
        is_first, is_terminal = is_first.to(image.dtype), is_terminal.to(image.dtype)
        onehot = F.one_hot(action, self.num_actions).to(image.dtype)
        prev_action = torch.cat([torch.zeros_like(onehot[:, :1]), onehot[:, :-1]], 1)
        embed = self.encoder(image)
        post, prior = self.rssm(embed, prev_action, is_first)
        kl_loss, kl_value = self.kl_loss(post, prior)

        feat = self.rssm.get_feat(post)
        recon = self.heads["decoder"](feat)
        image_loss = ((recon - image) ** 2).sum([2, 3, 4])
        reward_loss = -DiscDist(self.heads["reward"](feat), self.buckets).log_prob(reward)
        cont_logit = self.heads["cont"](feat).squeeze(-1)
        cont_loss = F.binary_cross_entropy_with_logits(cont_logit, 1.0 - is_terminal, reduction="none")
        model_loss = (image_loss + reward_loss + cont_loss + kl_loss).mean()

        target, actor_loss, value_loss = self.behaviour(post, is_terminal)
        return (
            model_loss,
            actor_loss.mean(),
            value_loss.mean(),
            recon,
            image_loss,
            reward_loss,
            cont_loss,
            kl_loss,
            kl_value,
            target,
            actor_loss,
            value_loss,
        )


def build():
    """The net with the same weights on every run, and a batch of sequences with resets and an end in them."""
    torch.manual_seed(29)
    net = Dreamer()
    for module in net.modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.15)
        elif isinstance(module, (nn.Linear, nn.ConvTranspose2d)) and module.bias is not None:
            nn.init.normal_(module.bias, std=0.1)
        elif isinstance(module, GRUCell):
            nn.init.uniform_(module.gain, 0.6, 1.4)
            nn.init.normal_(module.shift, std=0.2)
    with torch.no_grad():
        net.rssm.W.normal_(std=0.8)
        for layer in (net.rssm.imgs_stat_layer, net.rssm.obs_stat_layer, net.actor.out):
            layer.weight.mul_(3.0)
        for head, centre in ((net.heads["reward"], 0.3), (net.value, 0.9), (net.slow_value, 0.7)):
            head.out.bias.add_(-((net.buckets - centre) ** 2) / 3.0)
        net.heads["cont"].out.bias.fill_(1.3)
        net.heads["decoder"].layers[-1].weight.mul_(0.3)
    batch, time = 3, 7
    coarse = torch.rand(batch * time, 3, 4, 6)
    image = F.interpolate(coarse, size=(32, 48), mode="bilinear", align_corners=False)
    image = (image + 0.05 * torch.randn_like(image)).clamp(0, 1).reshape(batch, time, 3, 32, 48)
    image = image.permute(0, 1, 3, 4, 2).contiguous()
    action = torch.randint(0, 4, (batch, time))
    reward = torch.randn(batch, time) * 2.5
    is_first = torch.zeros(batch, time, dtype=torch.bool)
    is_first[0, 0] = is_first[1, 0] = is_first[1, 3] = is_first[2, 5] = True
    is_terminal = torch.zeros(batch, time, dtype=torch.bool)
    is_terminal[1, 2] = is_terminal[2, 4] = is_terminal[0, 6] = True
    return net.eval(), (image, action, reward, is_first, is_terminal)
