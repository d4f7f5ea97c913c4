"""The latent world model (categorical RSSM, imagined returns) in MindSpore: the correct port."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import nn, ops


def symlog(x):
    return ops.sign(x) * ops.log1p(ops.abs(x))


def symexp(x):
    return ops.sign(x) * (ops.exp(ops.abs(x)) - 1.0)


def one_hot(index, depth):
    return ops.one_hot(index.astype(ms.int32), depth, ms.Tensor(1.0, ms.float32), ms.Tensor(0.0, ms.float32))


def mix_uniform(logits, ratio=0.01):
    """Log-probabilities of the categorical with some of the uniform one mixed in."""
    classes = logits.shape[-1]
    probs = ops.softmax(logits, axis=-1)
    return ops.log((1.0 - ratio) * probs + ratio / classes)


def straight_through(logits):
    """One-hot of the most likely class; the gradient is that of the probabilities."""
    probs = ops.softmax(logits, axis=-1)
    hard = one_hot(ops.argmax(logits, dim=-1), logits.shape[-1])
    return ops.stop_gradient(hard - probs) + probs


def flatten_last(x):
    return x.reshape(x.shape[:-2] + (x.shape[-2] * x.shape[-1],))


def kl_divergence(p_logits, q_logits):
    """KL(p || q) of categoricals (..., variables, classes), summed over the variables."""
    p_log = ops.log_softmax(p_logits, axis=-1)
    q_log = ops.log_softmax(q_logits, axis=-1)
    return ops.sum(ops.exp(p_log) * (p_log - q_log), dim=(-2, -1))


def bce_with_logits(logits, labels):
    return ops.relu(logits) - logits * labels + ops.log1p(ops.exp(-ops.abs(logits)))


def quantile(x, q):
    """Linearly interpolated quantile of all values."""
    ordered, _ = ops.sort(x.reshape(-1))
    place = q * (ordered.shape[0] - 1)
    low = int(np.floor(place))
    high = min(low + 1, ordered.shape[0] - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


class TwoHot:
    """Numbers as mixtures of two neighbouring bins in symlog space."""

    def __init__(self, bins, low=-20.0, high=20.0):
        self.count = bins
        self.bins = ms.Tensor(np.linspace(low, high, bins).astype(np.float32))

    def mean(self, logits):
        return symexp(ops.sum(ops.softmax(logits, axis=-1) * self.bins, dim=-1))

    def encode(self, x):
        x = ops.expand_dims(symlog(x), -1)
        below = ops.sum((self.bins <= x).astype(ms.int32), dim=-1) - 1
        above = self.count - ops.sum((self.bins > x).astype(ms.int32), dim=-1)
        below = ops.clamp(below, 0, self.count - 1)
        above = ops.clamp(above, 0, self.count - 1)
        x = x.squeeze(-1)
        same = below == above
        to_below = ops.where(same, ops.ones_like(x), ops.abs(self.bins[below] - x))
        to_above = ops.where(same, ops.ones_like(x), ops.abs(self.bins[above] - x))
        total = to_below + to_above
        lower = ops.expand_dims(to_above / total, -1) * one_hot(below, self.count)
        upper = ops.expand_dims(to_below / total, -1) * one_hot(above, self.count)
        return lower + upper

    def log_prob(self, logits, x):
        return ops.sum(self.encode(x) * ops.log_softmax(logits, axis=-1), dim=-1)


class Down(nn.Cell):
    """Convolution to half the size, norm over the channels, SiLU."""

    def __init__(self, in_channels, channels):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, channels, 3, stride=2, pad_mode="pad", padding=1, has_bias=False)
        self.norm = nn.LayerNorm((channels,), epsilon=1e-3)
        self.act = nn.SiLU()

    def construct(self, x):
        x = self.norm(self.conv(x).transpose(0, 2, 3, 1))
        return self.act(x.transpose(0, 3, 1, 2))


class Up(nn.Cell):
    """Transposed convolution to twice the size, norm over the channels, SiLU."""

    def __init__(self, in_channels, channels):
        super().__init__()
        self.conv = nn.Conv2dTranspose(in_channels, channels, 4, stride=2, pad_mode="pad", padding=1, has_bias=False)
        self.norm = nn.LayerNorm((channels,), epsilon=1e-3)
        self.act = nn.SiLU()

    def construct(self, x):
        x = self.norm(self.conv(x).transpose(0, 2, 3, 1))
        return self.act(x.transpose(0, 3, 1, 2))


class ImageEncoder(nn.Cell):
    def __init__(self, in_channels, depths):
        super().__init__()
        widths = (in_channels,) + tuple(depths)
        self.stages = nn.CellList([Down(a, b) for a, b in zip(widths[:-1], widths[1:])])

    def construct(self, image):
        batch, steps, height, width, channels = image.shape
        x = (image - 0.5).reshape(batch * steps, height, width, channels).transpose(0, 3, 1, 2)
        for stage in self.stages:
            x = stage(x)
        return x.transpose(0, 2, 3, 1).reshape(batch, steps, -1)


class ImageDecoder(nn.Cell):
    def __init__(self, feat_size, depths, minres, out_channels):
        super().__init__()
        self.start = (-1, minres[0], minres[1], depths[0])
        self.project = nn.Dense(feat_size, minres[0] * minres[1] * depths[0])
        self.stages = nn.CellList([Up(a, b) for a, b in zip(depths[:-1], depths[1:])])
        self.to_image = nn.Conv2dTranspose(
            depths[-1], out_channels, 4, stride=2, pad_mode="pad", padding=1, has_bias=True
        )

    def construct(self, feat):
        batch, steps, _ = feat.shape
        x = self.project(feat).reshape(self.start).transpose(0, 3, 1, 2)
        for stage in self.stages:
            x = stage(x)
        x = self.to_image(x).transpose(0, 2, 3, 1)
        return x.reshape((batch, steps) + x.shape[1:]) + 0.5


class NormedDense(nn.Cell):
    """Linear without a bias, layer norm, SiLU."""

    def __init__(self, in_size, out_size):
        super().__init__()
        self.dense = nn.Dense(in_size, out_size, has_bias=False)
        self.norm = nn.LayerNorm((out_size,), epsilon=1e-3)
        self.act = nn.SiLU()

    def construct(self, x):
        return self.act(self.norm(self.dense(x)))


class Head(nn.Cell):
    def __init__(self, in_size, units, depth, out_size):
        super().__init__()
        self.hidden = nn.SequentialCell(*[NormedDense(in_size if i == 0 else units, units) for i in range(depth)])
        self.out = nn.Dense(units, out_size)

    def construct(self, x):
        return self.out(self.hidden(x))


class NormGRUCell(nn.Cell):
    """GRU with one projection, its three parts normalised together."""

    def __init__(self, in_size, size, update_bias=-1.0, eps=1e-3):
        super().__init__()
        self.update_bias = update_bias
        self.eps = eps
        self.proj = nn.Dense(in_size + size, 3 * size, has_bias=False)
        self.gamma = ms.Parameter(ops.ones((3 * size,)), name="gamma")
        self.beta = ms.Parameter(ops.zeros((3 * size,)), name="beta")

    def construct(self, x, h):
        gates = self.proj(ops.cat([x, h], axis=-1))
        mu = gates.mean(axis=-1, keep_dims=True)
        centred = gates - mu
        var = ops.square(centred).mean(axis=-1, keep_dims=True)
        gates = centred / ops.sqrt(var + self.eps) * self.gamma + self.beta
        reset, cand, update = ops.chunk(gates, 3, axis=-1)
        cand = ops.tanh(ops.sigmoid(reset) * cand)
        update = ops.sigmoid(update + self.update_bias)
        return update * cand + (1.0 - update) * h


class LatentDynamics(nn.Cell):
    """Recurrent state space model; a state is the tuple (stoch, deter, logits)."""

    def __init__(self, embed_size, num_actions, stoch=6, classes=5, deter=40, hidden=32):
        super().__init__()
        self.stoch, self.classes = stoch, classes
        self.feat_size = stoch * classes + deter
        self.img_in = NormedDense(stoch * classes + num_actions, hidden)
        self.cell = NormGRUCell(hidden, deter)
        self.img_out = NormedDense(deter, hidden)
        self.obs_out = NormedDense(deter + embed_size, hidden)
        self.prior_logits = nn.Dense(hidden, stoch * classes)
        self.post_logits = nn.Dense(hidden, stoch * classes)
        self.deter_init = ms.Parameter(ops.zeros((1, deter)), name="deter_init")

    def latent(self, x):
        logits = mix_uniform(x.reshape(x.shape[:-1] + (self.stoch, self.classes)))
        return straight_through(logits), logits

    def prior_of(self, deter):
        stoch, logits = self.latent(self.prior_logits(self.img_out(deter)))
        return stoch, deter, logits

    def initial(self, batch):
        return self.prior_of(ops.tile(ops.tanh(self.deter_init), (batch, 1)))

    def features(self, state):
        return ops.cat([flatten_last(state[0]), state[1]], axis=-1)

    def imagine_step(self, state, action):
        stoch, deter, _ = state
        x = self.img_in(ops.cat([flatten_last(stoch), action], axis=-1))
        deter = self.cell(x, deter)
        return self.prior_of(deter)

    def observe_step(self, state, action, embed, first):
        """One step with the image seen; where `first` is 1 the state and the action are of a new episode."""
        first = first.reshape(-1, 1)
        action = action * (1.0 - first)
        stoch0, deter0, _ = self.initial(first.shape[0])
        stoch = ops.where(ops.expand_dims(first, -1) > 0.5, stoch0, state[0])
        deter = ops.where(first > 0.5, deter0, state[1])
        prior = self.imagine_step((stoch, deter, None), action)
        stoch, logits = self.latent(self.post_logits(self.obs_out(ops.cat([prior[1], embed], axis=-1))))
        return (stoch, prior[1], logits), prior

    def construct(self, embed, action, first):
        state = self.initial(embed.shape[0])
        posts, priors = [], []
        for t in range(embed.shape[1]):
            state, prior = self.observe_step(state, action[:, t], embed[:, t], first[:, t])
            posts.append(state)
            priors.append(prior)
        post = tuple(ops.stack(part, axis=1) for part in zip(*posts))
        prior = tuple(ops.stack(part, axis=1) for part in zip(*priors))
        return post, prior


class WorldModel(nn.Cell):
    """Losses of the model, and of the actor and the critic on rollouts imagined from each step."""

    def __init__(self, size=(32, 48), channels=3, num_actions=4, depths=(8, 12, 16), units=28, bins=41):
        super().__init__()
        self.num_actions = num_actions
        self.horizon = 4
        self.free_nats = 3.5
        self.dyn_scale, self.rep_scale = 0.5, 0.1
        self.gamma, self.lam = 0.985, 0.9
        self.entropy_scale = 3e-3
        self.range_decay = 0.7
        self.range_old = (-0.4, 1.7)
        minres = (size[0] // 2 ** len(depths), size[1] // 2 ** len(depths))
        self.encoder = ImageEncoder(channels, depths)
        self.dynamics = LatentDynamics(minres[0] * minres[1] * depths[-1], num_actions)
        feat_size = self.dynamics.feat_size
        self.decoder = ImageDecoder(feat_size, tuple(reversed(depths)), minres, channels)
        self.reward_head = Head(feat_size, units, 2, bins)
        self.cont_head = Head(feat_size, units, 1, 1)
        self.actor = Head(feat_size, units, 2, num_actions)
        self.critic = Head(feat_size, units, 2, bins)
        self.slow_critic = Head(feat_size, units, 2, bins)
        self.twohot = TwoHot(bins)

    def kl_loss(self, post_logits, prior_logits):
        dyn = kl_divergence(ops.stop_gradient(post_logits), prior_logits)
        rep = kl_divergence(post_logits, ops.stop_gradient(prior_logits))
        loss = self.dyn_scale * ops.clamp(dyn, min=self.free_nats)
        loss = loss + self.rep_scale * ops.clamp(rep, min=self.free_nats)
        return loss, rep

    def rollout(self, state):
        """From every step of the batch `horizon` steps on by the actor; time comes first."""
        state = tuple(part.reshape((-1,) + part.shape[2:]) for part in state)
        feat = self.dynamics.features(state)
        feats, actions, policies = [feat], [], []
        for _ in range(self.horizon):
            policy = mix_uniform(self.actor(feat))
            action = straight_through(policy)
            state = self.dynamics.imagine_step(state, action)
            feat = self.dynamics.features(state)
            feats.append(feat)
            actions.append(action)
            policies.append(policy)
        return ops.stack(feats), ops.stack(actions), ops.stack(policies)

    def lambda_returns(self, reward, value, discount):
        """All are (horizon + 1, n), those of the start among them."""
        ret = value[-1]
        returns = []
        for t in range(self.horizon, 0, -1):
            ret = reward[t] + discount[t] * ((1.0 - self.lam) * value[t] + self.lam * ret)
            returns.insert(0, ret)
        return ops.stack(returns)

    def normalise(self, returns):
        low = self.range_decay * self.range_old[0] + (1.0 - self.range_decay) * quantile(returns, 0.05)
        high = self.range_decay * self.range_old[1] + (1.0 - self.range_decay) * quantile(returns, 0.95)
        return ops.clamp(high - low, min=1.0)

    def behaviour(self, post, terminal):
        feat, action, policy = self.rollout(post)
        reward = self.twohot.mean(self.reward_head(feat))
        cont = ops.sigmoid(self.cont_head(feat).squeeze(-1))
        cont = ops.cat([1.0 - terminal.reshape(1, -1), cont[1:]], axis=0)
        discount = self.gamma * cont
        value_logits = self.critic(feat)
        value = self.twohot.mean(value_logits)
        returns = self.lambda_returns(reward, value, discount)
        weights = ops.cumprod(ops.cat([ops.ones_like(discount[:1]), discount[:-1]], axis=0), 0)
        weights = ops.stop_gradient(weights[:-1])

        advantage = (returns - value[:-1]) / self.normalise(returns)
        log_pi = (policy * action).sum(-1)
        entropy = -(ops.exp(policy) * policy).sum(-1)
        actor_loss = -weights * (log_pi * ops.stop_gradient(advantage) + self.entropy_scale * entropy)

        slow_value = self.twohot.mean(self.slow_critic(feat[:-1]))
        critic_loss = -self.twohot.log_prob(value_logits[:-1], ops.stop_gradient(returns))
        critic_loss = critic_loss - self.twohot.log_prob(value_logits[:-1], ops.stop_gradient(slow_value))
        return returns, actor_loss, weights * critic_loss

    def construct(self, image, action, reward, is_first, is_terminal):
        first, terminal = is_first.astype(ms.float32), is_terminal.astype(ms.float32)
        taken = one_hot(action, self.num_actions)
        led_here = ops.cat([ops.zeros_like(taken[:, :1]), taken[:, :-1]], axis=1)
        post, prior = self.dynamics(self.encoder(image), led_here, first)
        kl_loss, kl_value = self.kl_loss(post[2], prior[2])

        feat = self.dynamics.features(post)
        recon = self.decoder(feat)
        image_loss = ops.square(recon - image).sum((2, 3, 4))
        reward_loss = -self.twohot.log_prob(self.reward_head(feat), reward)
        cont_loss = bce_with_logits(self.cont_head(feat).squeeze(-1), 1.0 - terminal)
        model_loss = (image_loss + reward_loss + cont_loss + kl_loss).mean()

        returns, actor_loss, critic_loss = self.behaviour(post, terminal)
        return (
            model_loss,
            actor_loss.mean(),
            critic_loss.mean(),
            recon,
            image_loss,
            reward_loss,
            cont_loss,
            kl_loss,
            kl_value,
            returns,
            actor_loss,
            critic_loss,
        )


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return WorldModel()
