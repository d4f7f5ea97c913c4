"""MuZero for small boards of features in MindSpore: networks, batched search, targets and losses. The correct port."""

from __future__ import annotations

import numpy as np

import mindspore as ms
from mindspore import Tensor, nn, ops

VALUE_EPS = 0.01
DISCOUNT = 0.93
ABSENT = -1


def one_hot(index, depth):
    return (ops.arange(depth) == index.expand_dims(-1)).astype(ms.float32)


class Support:
    """Integers -size .. size that stand for transformed scalars."""

    def __init__(self, size):
        self.size = size
        self.bins = Tensor(np.arange(-size, size + 1, dtype=np.float32))

    @staticmethod
    def squash(x):
        return ops.sign(x) * (ops.sqrt(ops.abs(x) + 1.0) - 1.0) + VALUE_EPS * x

    @staticmethod
    def expand(y):
        magnitude = ops.abs(y)
        inner = ops.sqrt(1.0 + 4.0 * VALUE_EPS * (magnitude + 1.0 + VALUE_EPS)) - 1.0
        return ops.sign(y) * (ops.square(inner / (2.0 * VALUE_EPS)) - 1.0)

    def decode(self, logits):
        expected = ops.matmul(ops.softmax(logits, axis=-1), self.bins)
        return self.expand(expected)

    def encode(self, x):
        y = ops.clamp(self.squash(x), -float(self.size), float(self.size))
        floor = ops.floor(y)
        upper = (y - floor).expand_dims(-1)
        below = (floor + self.size).astype(ms.int32)
        depth = 2 * self.size + 1
        # an index past the last bin has no row, and its weight is zero then
        return one_hot(below, depth) * (1.0 - upper) + one_hot(below + 1, depth) * upper


def unit_range(state):
    """Min-max scaling of every sample."""
    lowest = state.min(axis=(1, 2, 3), keepdims=True)
    spread = state.max(axis=(1, 2, 3), keepdims=True) - lowest
    spread = spread + (spread < 1e-5).astype(state.dtype) * 1e-5
    return (state - lowest) / spread


def conv3(cin, cout, stride=1):
    return nn.Conv2d(cin, cout, 3, stride=stride, pad_mode="pad", padding=1, has_bias=False)


class ResBlock(nn.Cell):
    def __init__(self, width):
        super().__init__()
        self.conv1 = conv3(width, width)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv3(width, width)
        self.bn2 = nn.BatchNorm2d(width)

    def construct(self, x):
        y = ops.relu(self.bn1(self.conv1(x)))
        return ops.relu(x + self.bn2(self.conv2(y)))


class Stem(nn.Cell):
    """Three halvings: two strided convolutions and a pooling."""

    def __init__(self, planes, stem, width):
        super().__init__()
        self.conv1 = conv3(planes, stem, 2)
        self.bn1 = nn.BatchNorm2d(stem)
        self.block1 = ResBlock(stem)
        self.conv2 = conv3(stem, width, 2)
        self.bn2 = nn.BatchNorm2d(width)
        self.block2 = ResBlock(width)
        self.pool = nn.AvgPool2d(3, stride=2, pad_mode="pad", padding=1, count_include_pad=True)

    def construct(self, x):
        x = self.block1(ops.relu(self.bn1(self.conv1(x))))
        x = self.block2(ops.relu(self.bn2(self.conv2(x))))
        return self.pool(x)


class RepresentationNet(nn.Cell):
    def __init__(self, stack, colours, actions, stem, width, depth):
        super().__init__()
        self.actions = actions
        self.downsample = Stem(stack * colours + stack, stem, width)
        self.blocks = nn.CellList([ResBlock(width) for _ in range(depth)])

    def construct(self, frames, past_actions, history):
        b, t, _, h, w = frames.shape
        missing = t - history.reshape(b, 1)
        present = (ops.arange(t).reshape(1, t) >= missing).astype(frames.dtype).reshape(b, t, 1, 1)
        pixels = frames / 255.0 * present.expand_dims(2)
        marks = (past_actions.astype(frames.dtype) + 1.0) / self.actions
        marks = marks.reshape(b, t, 1, 1) * present
        planes = ops.broadcast_to(marks, (b, t, h, w))
        x = self.downsample(ops.cat((pixels.reshape(b, -1, h, w), planes), axis=1))
        for block in self.blocks:
            x = block(x)
        return unit_range(x)


class ScalarHead(nn.Cell):
    """Logits over a support, and the scalar that they mean."""

    def __init__(self, width, channels, cells, hidden, support):
        super().__init__()
        self.support = support
        self.conv = nn.Conv2d(width, channels, 1, pad_mode="valid", has_bias=True)
        self.bn = nn.BatchNorm2d(channels)
        self.fc1 = nn.Dense(channels * cells, hidden)
        self.norm = nn.LayerNorm((hidden,), epsilon=1e-3)
        self.act = nn.ELU()
        self.fc2 = nn.Dense(hidden, 2 * support.size + 1)

    def construct(self, state):
        x = ops.relu(self.bn(self.conv(state)))
        x = self.fc1(x.reshape(x.shape[0], -1))
        logits = self.fc2(self.act(self.norm(x)))
        return logits, self.support.decode(logits)


class PolicyHead(nn.Cell):
    def __init__(self, width, channels, groups, cells, hidden, actions):
        super().__init__()
        self.conv = nn.Conv2d(width, channels, 1, pad_mode="valid", has_bias=True)
        self.norm = nn.GroupNorm(groups, channels, eps=1e-5)
        self.act = nn.LeakyReLU(alpha=0.01)
        self.fc1 = nn.Dense(channels * cells, hidden)
        self.fc2 = nn.Dense(hidden, actions)

    def construct(self, state):
        x = self.act(self.norm(self.conv(state)))
        return self.fc2(self.act(self.fc1(ops.flatten(x))))


class DynamicsNet(nn.Cell):
    """State and action to the next state and the reward."""

    def __init__(self, width, actions, depth, cells, channels, hidden, support):
        super().__init__()
        self.actions = actions
        self.conv = conv3(width + actions, width)
        self.bn = nn.BatchNorm2d(width)
        self.blocks = nn.CellList([ResBlock(width) for _ in range(depth)])
        self.reward_head = ScalarHead(width, channels, cells, hidden, support)

    def construct(self, state, action):
        b, _, h, w = state.shape
        planes = ops.tile(one_hot(action, self.actions).reshape(b, self.actions, 1, 1), (1, 1, h, w))
        x = self.bn(self.conv(ops.cat((state, planes), axis=1)))
        x = ops.relu(x + state)
        for block in self.blocks:
            x = block(x)
        return (unit_range(x),) + self.reward_head(x)


class PredictionNet(nn.Cell):
    def __init__(self, width, actions, depth, cells, channels, policy_channels, groups, hidden, support):
        super().__init__()
        self.blocks = nn.CellList([ResBlock(width) for _ in range(depth)])
        self.value_head = ScalarHead(width, channels, cells, hidden, support)
        self.policy_head = PolicyHead(width, policy_channels, groups, cells, hidden, actions)

    def construct(self, state):
        for block in self.blocks:
            state = block(state)
        return (self.policy_head(state),) + self.value_head(state)


class SearchTrees:
    """One tree per sample; what the nodes hold is kept as (batch, nodes, ...) and written through one-hot marks."""

    def __init__(self, state, prior, value, capacity):
        batch, actions = prior.shape
        self.capacity = capacity
        self.states = [state]
        self.priors = [prior]
        self.children = ops.full((batch, capacity, actions), ABSENT, dtype=ms.int32)
        self.parents = [ops.full((batch,), ABSENT, dtype=ms.int32)]
        root = ops.tile(one_hot(Tensor([0], ms.int32), capacity), (batch, 1))
        self.reward = ops.zeros((batch, capacity), ms.float32)
        self.total = root * value.expand_dims(1)
        self.count = root
        self.low = ops.full((batch,), np.inf, dtype=ms.float32)
        self.high = ops.full((batch,), -np.inf, dtype=ms.float32)

    def pick(self, pages, node):
        """pages[node] for each sample, the pages being one tensor per node."""
        stacked = ops.stack(pages, axis=1)
        mark = one_hot(node, len(pages)).reshape((node.shape[0], len(pages)) + (1,) * (stacked.ndim - 2))
        return (stacked * mark.astype(stacked.dtype)).sum(axis=1).astype(stacked.dtype)

    def children_of(self, node):
        mark = one_hot(node, self.capacity).astype(ms.int32)
        return (self.children * mark.expand_dims(-1)).sum(axis=1).astype(ms.int32)

    def edges(self, node):
        """Counts and action values of the edges that leave a node."""
        child = self.children_of(node)
        exists = (child != ABSENT).astype(ms.float32)
        safe = ops.maximum(child, 0)
        count = ops.gather_elements(self.count, 1, safe)
        value = ops.gather_elements(self.total, 1, safe) / ops.maximum(count, 1.0)
        q = ops.gather_elements(self.reward, 1, safe) + DISCOUNT * value
        return count * exists, q * exists

    def rescale(self, q):
        low, high = self.low.reshape(-1, 1), self.high.reshape(-1, 1)
        return ops.where(high > low, (q - low) / (high - low), q)

    def scores(self, node, base, init):
        count, q = self.edges(node)
        own = (self.count * one_hot(node, self.capacity)).sum(axis=1, keepdims=True)
        rate = init + ops.log((own + base + 1.0) / base)
        explore = self.pick(self.priors, node) * rate * ops.sqrt(own) / (1.0 + count)
        exploit = ops.masked_fill(self.rescale(q), count == 0, 0.0)
        return explore + exploit

    def descend(self, legal, base, init):
        batch = legal.shape[0]
        node = ops.zeros((batch,), ms.int32)
        action = ops.zeros((batch,), ms.int32)
        moving = ops.ones((batch,), ms.bool_)
        while bool(moving.any()):
            allowed = ops.logical_or(legal, (node != 0).expand_dims(1))
            scores = ops.where(allowed, self.scores(node, base, init), Tensor(-np.inf, ms.float32))
            action = ops.where(moving, ops.argmax(scores, dim=1).astype(ms.int32), action)
            child = ops.gather_elements(self.children_of(node), 1, action.expand_dims(1)).squeeze(1)
            moving = ops.logical_and(moving, child != ABSENT)
            node = ops.where(moving, child, node)
        return node, action

    def attach(self, parent, action, state, prior, reward):
        new = len(self.states)
        self.states.append(state)
        self.priors.append(prior)
        self.parents.append(parent)
        here = one_hot(parent, self.capacity).expand_dims(2) * one_hot(action, self.children.shape[2]).expand_dims(1)
        self.children = ops.masked_fill(self.children, here > 0, new)
        mark = one_hot(Tensor([new], ms.int32), self.capacity)
        self.reward = self.reward + mark * reward.expand_dims(1)
        return new

    def propagate(self, leaf, value):
        node = ops.full(value.shape, leaf, dtype=ms.int32)
        while bool((node != ABSENT).any()):
            on_path = node != ABSENT
            # no mark at all for trees whose path has ended
            mark = one_hot(node, self.capacity)
            self.total = self.total + mark * value.expand_dims(1)
            self.count = self.count + mark
            reward = (self.reward * mark).sum(axis=1)
            mean = (self.total * mark).sum(axis=1) / ops.maximum((self.count * mark).sum(axis=1), 1.0)
            q = reward + DISCOUNT * mean
            inner = node > 0
            self.low = ops.where(inner, ops.minimum(self.low, q), self.low)
            self.high = ops.where(inner, ops.maximum(self.high, q), self.high)
            value = ops.where(on_path, reward + DISCOUNT * value, value)
            node = ops.where(on_path, self.pick(self.parents, ops.maximum(node, 0)), node)


def soft_cross_entropy(logits, target):
    return -(ops.log_softmax(logits, axis=-1) * target).sum(axis=-1)


class MuZeroNet(nn.Cell):
    def __init__(self, stack=4, colours=3, size=(20, 28), actions=7, stem=10, width=14, channels=5, policy_channels=6,
                 groups=2, hidden=24, value_size=8, reward_size=5, unroll=5, horizon=4, simulations=9):
        super().__init__()
        cells = -(-size[0] // 8) * -(-size[1] // 8)
        self.unroll_steps, self.horizon, self.simulations = unroll, horizon, simulations
        self.value_support, self.reward_support = Support(value_size), Support(reward_size)
        self.pb_c_base, self.pb_c_init = 19652.0, 2.5
        self.noise_share = 0.25
        self.temperature = 0.5
        self.powers = Tensor((DISCOUNT ** np.arange(horizon)).astype(np.float32))
        self.part_weights = Tensor(np.array([1.0, 0.25, 1.0], np.float32))
        self.representation = RepresentationNet(stack, colours, actions, stem, width, depth=2)
        self.dynamics = DynamicsNet(width, actions, 1, cells, channels, hidden, self.reward_support)
        self.prediction = PredictionNet(width, actions, 1, cells, channels, policy_channels, groups, hidden,
                                        self.value_support)

    def imagine(self, root, actions):
        policy, value_logits, value = self.prediction(root)
        policies, value_dists, values, reward_dists, rewards = [policy], [value_logits], [value], [], []
        state = root
        for k in range(self.unroll_steps):
            state, reward_logits, reward = self.dynamics(state, actions[:, k])
            policy, value_logits, value = self.prediction(state)
            policies.append(policy)
            value_dists.append(value_logits)
            values.append(value)
            reward_dists.append(reward_logits)
            rewards.append(reward)
        return [ops.stack(x, axis=1) for x in (policies, value_dists, values, reward_dists, rewards)]

    def targets(self, rewards, root_values, child_visits, lengths):
        steps, n = self.unroll_steps + 1, self.horizon
        end = lengths.reshape(-1, 1)
        at = np.arange(steps)
        window = Tensor((at[:, None] + np.arange(n)[None, :]).astype(np.int32))
        alive = Tensor(at.astype(np.int32)) < end
        paid = rewards * (ops.arange(rewards.shape[1]) < end).astype(ms.float32)
        returns = (ops.gather(paid, window, 1) * self.powers).sum(axis=-1)
        boot = ops.arange(n, n + steps)
        tail = root_values[:, n : n + steps] * (boot < end).astype(ms.float32)
        values = (returns + DISCOUNT**n * tail) * alive.astype(ms.float32)
        visits = child_visits.sum(axis=-1, keepdims=True)
        policies = child_visits / ops.maximum(visits, 1.0)
        return values, paid[:, : steps - 1], policies, alive

    def losses(self, policies, value_dists, reward_dists, targets):
        values, rewards, visit_shares, alive = targets
        for_policy = soft_cross_entropy(policies, visit_shares)
        for_value = soft_cross_entropy(value_dists, self.value_support.encode(values))
        for_reward = soft_cross_entropy(reward_dists, self.reward_support.encode(rewards))
        seen = alive.astype(ms.float32)
        policy_loss = (for_policy * seen).sum(axis=1) / ops.maximum(seen.sum(axis=1), 1.0)
        value_loss = for_value.mean(axis=1)
        parts = ops.stack((policy_loss, value_loss, for_reward.mean(axis=1)), axis=1)
        return parts * self.part_weights

    def noisy_prior(self, logits, legal, noise):
        prior = ops.softmax(ops.masked_fill(logits, ops.logical_not(legal), -np.inf), axis=-1)
        noise = noise * legal.astype(noise.dtype)
        noise = noise / noise.sum(axis=-1, keepdims=True)
        return (1.0 - self.noise_share) * prior + self.noise_share * noise

    def plan(self, root, logits, value, legal, noise):
        trees = SearchTrees(root, self.noisy_prior(logits, legal, noise), value, self.simulations + 1)
        for _ in range(self.simulations):
            parent, action = trees.descend(legal, self.pb_c_base, self.pb_c_init)
            state, _, reward = self.dynamics(trees.pick(trees.states, parent), action)
            leaf_logits, _, leaf_value = self.prediction(state)
            leaf = trees.attach(parent, action, state, ops.softmax(leaf_logits, axis=-1), reward)
            trees.propagate(leaf, leaf_value)
        count, q = trees.edges(ops.zeros((legal.shape[0],), ms.int32))
        root_value = trees.total[:, 0] / trees.count[:, 0]
        sharp = ops.pow(count, 1.0 / self.temperature)
        q = ops.where(count > 0, q, root_value.expand_dims(1))
        return sharp / sharp.sum(axis=1, keepdims=True), root_value, q * legal.astype(q.dtype)

    def construct(self, frames, past_actions, history, actions, legal, noise, rewards, root_values, child_visits, lengths,
                  weights):
        root = self.representation(frames, past_actions, history)
        policies, value_dists, values, reward_dists, step_rewards = self.imagine(root, actions)
        targets = self.targets(rewards, root_values, child_visits, lengths)
        parts = self.losses(policies, value_dists, reward_dists, targets)
        loss = (parts.sum(axis=1) * weights).sum() / weights.sum()
        priority = ops.abs(values[:, 0] - targets[0][:, 0])
        search_policy, search_value, search_q = self.plan(root, policies[:, 0], values[:, 0], legal, noise)
        return policies, values, step_rewards, parts, loss, priority, search_policy, search_value, search_q


def build():
    """The net alone, for evaluation: weights and inputs come from the reference's dump."""
    net = MuZeroNet()
    net.set_train(False)
    return net
