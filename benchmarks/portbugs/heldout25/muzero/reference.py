"""A MuZero-style planning net in PyTorch: representation, dynamics, prediction, a batched search, targets and losses."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class MuZeroConfig:
    num_frames: int = 4
    frame_channels: int = 3
    height: int = 20
    width: int = 28
    num_actions: int = 7
    stem_channels: int = 10
    hidden_channels: int = 14
    repr_blocks: int = 2
    dyn_blocks: int = 1
    pred_blocks: int = 1
    head_channels: int = 5
    policy_channels: int = 6
    policy_groups: int = 2
    fc_hidden: int = 24
    value_support: int = 8
    reward_support: int = 5
    num_simulations: int = 9
    discount: float = 0.93
    pb_c_base: float = 19652.0
    pb_c_init: float = 2.5
    exploration_fraction: float = 0.25
    temperature: float = 0.5
    unroll_steps: int = 5
    td_steps: int = 4
    value_weight: float = 0.25


def value_transform(x, eps=0.01):
    """h(x) = sign(x) (sqrt(|x| + 1) - 1) + eps x, see 'Observe and Look Further', appendix A."""
    return torch.sign(x) * (torch.sqrt(torch.abs(x) + 1.0) - 1.0) + eps * x


def inverse_value_transform(x, eps=0.01):
    root = torch.sqrt(1.0 + 4.0 * eps * (torch.abs(x) + 1.0 + eps))
    return torch.sign(x) * (((root - 1.0) / (2.0 * eps)) ** 2 - 1.0)


def support_to_scalar(logits, support_size):
    """The expected value under the softmax over -support_size .. support_size, back on the scale of the game."""
    probabilities = F.softmax(logits, dim=-1)
    support = torch.arange(-support_size, support_size + 1, dtype=logits.dtype, device=logits.device)
    return inverse_value_transform((probabilities * support).sum(dim=-1))


def scalar_to_support(x, support_size):
    """Two-hot vectors over the two integers around the transformed scalar."""
    x = value_transform(x).clamp(-support_size, support_size)
    low = x.floor()
    frac = (x - low).unsqueeze(-1)
    index = (low + support_size).long().unsqueeze(-1)
    target = torch.zeros(*x.shape, 2 * support_size + 1, dtype=x.dtype)
    target.scatter_(-1, index, 1.0 - frac)
    # at the upper end there is no bin above, and nothing to put there
    target.scatter_add_(-1, (index + 1).clamp(max=2 * support_size), frac)
    return target


def scale_hidden(state):
    """Each sample's hidden state to [0, 1]."""
    flat = state.flatten(1)
    low, high = flat.amin(dim=1, keepdim=True), flat.amax(dim=1, keepdim=True)
    span = high - low
    span = torch.where(span < 1e-5, span + 1e-5, span)
    return ((flat - low) / span).view_as(state)


def scale_gradient(tensor, scale):
    return tensor * scale + tensor.detach() * (1 - scale)


def conv3x3(in_channels, out_channels, stride=1):
    return nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)


class ResidualBlock(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1 = conv3x3(channels, channels)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = conv3x3(channels, channels)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu(out + x)


class DownSample(nn.Module):
    """From frames to a board eight times smaller."""

    def __init__(self, in_channels, stem_channels, out_channels):
        super().__init__()
        self.conv1 = conv3x3(in_channels, stem_channels, stride=2)
        self.bn1 = nn.BatchNorm2d(stem_channels)
        self.block1 = ResidualBlock(stem_channels)
        self.conv2 = conv3x3(stem_channels, out_channels, stride=2)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.block2 = ResidualBlock(out_channels)
        self.pool = nn.AvgPool2d(3, stride=2, padding=1)

    def forward(self, x):
        x = self.block1(F.relu(self.bn1(self.conv1(x))))
        x = self.block2(F.relu(self.bn2(self.conv2(x))))
        return self.pool(x)


class Representation(nn.Module):
    """The last frames, with a plane for the action that followed each, as a hidden state."""

    def __init__(self, cfg):
        super().__init__()
        self.num_actions = cfg.num_actions
        planes = cfg.num_frames * cfg.frame_channels + cfg.num_frames
        self.downsample = DownSample(planes, cfg.stem_channels, cfg.hidden_channels)
        self.blocks = nn.ModuleList([ResidualBlock(cfg.hidden_channels) for _ in range(cfg.repr_blocks)])

    def forward(self, frames, past_actions, history):
        b, t, c, h, w = frames.shape
        # the newest frame is the last one; young games have less history than there is room
        valid = torch.arange(t)[None, :] >= t - history[:, None]
        frames = frames / 255.0
        frames = frames.masked_fill(~valid[:, :, None, None, None], 0.0)
        action_planes = (past_actions.to(frames.dtype) + 1.0) / self.num_actions
        action_planes = action_planes * valid.to(frames.dtype)
        action_planes = action_planes[:, :, None, None].expand(b, t, h, w)
        x = torch.cat((frames.reshape(b, t * c, h, w), action_planes), dim=1)
        x = self.downsample(x)
        for block in self.blocks:
            x = block(x)
        return scale_hidden(x)


class ScalarHead(nn.Module):
    """A reward or a value, as logits over its support and as a number."""

    def __init__(self, in_channels, channels, board, hidden, support_size):
        super().__init__()
        self.support_size = support_size
        self.conv = nn.Conv2d(in_channels, channels, 1)
        self.bn = nn.BatchNorm2d(channels)
        self.fc1 = nn.Linear(channels * board[0] * board[1], hidden)
        self.norm = nn.LayerNorm(hidden, eps=1e-3)
        self.act = nn.ELU()
        self.fc2 = nn.Linear(hidden, 2 * support_size + 1)

    def forward(self, state):
        x = F.relu(self.bn(self.conv(state)))
        x = self.fc1(x.flatten(1))
        logits = self.fc2(self.act(self.norm(x)))
        return logits, support_to_scalar(logits, self.support_size)


class PolicyHead(nn.Module):
    def __init__(self, in_channels, channels, groups, board, hidden, num_actions):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, channels, 1)
        self.norm = nn.GroupNorm(groups, channels)
        self.act = nn.LeakyReLU()
        self.fc1 = nn.Linear(channels * board[0] * board[1], hidden)
        self.fc2 = nn.Linear(hidden, num_actions)

    def forward(self, state):
        x = self.act(self.norm(self.conv(state)))
        x = self.act(self.fc1(x.flatten(1)))
        return self.fc2(x)


class Dynamics(nn.Module):
    """One imagined step: the next hidden state and the reward on the way there."""

    def __init__(self, cfg, board):
        super().__init__()
        self.num_actions = cfg.num_actions
        self.conv = conv3x3(cfg.hidden_channels + cfg.num_actions, cfg.hidden_channels)
        self.bn = nn.BatchNorm2d(cfg.hidden_channels)
        self.blocks = nn.ModuleList([ResidualBlock(cfg.hidden_channels) for _ in range(cfg.dyn_blocks)])
        self.reward_head = ScalarHead(cfg.hidden_channels, cfg.head_channels, board, cfg.fc_hidden, cfg.reward_support)

    def forward(self, state, action):
        b, _, h, w = state.shape
        planes = F.one_hot(action, self.num_actions).to(state.dtype)
        planes = planes[:, :, None, None].expand(b, self.num_actions, h, w)
        x = self.bn(self.conv(torch.cat((state, planes), dim=1)))
        x = F.relu(x + state)
        for block in self.blocks:
            x = block(x)
        reward_logits, reward = self.reward_head(x)
        return scale_hidden(x), reward_logits, reward


class Prediction(nn.Module):
    def __init__(self, cfg, board):
        super().__init__()
        self.blocks = nn.ModuleList([ResidualBlock(cfg.hidden_channels) for _ in range(cfg.pred_blocks)])
        self.value_head = ScalarHead(cfg.hidden_channels, cfg.head_channels, board, cfg.fc_hidden, cfg.value_support)
        self.policy_head = PolicyHead(
            cfg.hidden_channels, cfg.policy_channels, cfg.policy_groups, board, cfg.fc_hidden, cfg.num_actions
        )

    def forward(self, state):
        for block in self.blocks:
            state = block(state)
        value_logits, value = self.value_head(state)
        return self.policy_head(state), value_logits, value


class MinMaxStats:
    """The bounds of the values seen in each tree."""

    def __init__(self, batch):
        self.low = torch.full((batch,), float("inf"))
        self.high = torch.full((batch,), float("-inf"))

    def update(self, value, active):
        self.low = torch.where(active, torch.minimum(self.low, value), self.low)
        self.high = torch.where(active, torch.maximum(self.high, value), self.high)

    def normalize(self, value):
        low, high = self.low[:, None], self.high[:, None]
        return torch.where(high > low, (value - low) / (high - low), value)


class Tree:
    """As many trees as samples; node 0 is the root, simulation i writes node i + 1."""

    def __init__(self, root_state, root_prior, root_value, num_simulations):
        batch, num_actions = root_prior.shape
        size = num_simulations + 1
        self.batch_range = torch.arange(batch)
        self.states = root_state.new_zeros(batch, size, *root_state.shape[1:])
        self.prior = torch.zeros(batch, size, num_actions)
        self.children = torch.full((batch, size, num_actions), -1, dtype=torch.long)
        self.parents = torch.full((batch, size), -1, dtype=torch.long)
        self.reward = torch.zeros(batch, size)
        self.value_sum = torch.zeros(batch, size)
        self.visits = torch.zeros(batch, size)
        self.states[:, 0] = root_state
        self.prior[:, 0] = root_prior
        self.value_sum[:, 0] = root_value
        self.visits[:, 0] = 1.0

    def child_stats(self, node, discount):
        """Visits and action values of the children of a node: (batch, actions) each."""
        child = self.children[self.batch_range, node]
        known = child >= 0
        index = child.clamp(min=0)
        visits = self.visits.gather(1, index) * known
        mean = self.value_sum.gather(1, index) / self.visits.gather(1, index).clamp(min=1.0)
        q = (self.reward.gather(1, index) + discount * mean) * known
        return visits, q

    def add(self, new, parent, action, state, prior, reward):
        self.states[:, new] = state
        self.prior[:, new] = prior
        self.reward[:, new] = reward
        self.parents[:, new] = parent
        self.children[self.batch_range, parent, action] = new


def puct_scores(tree, node, stats, cfg):
    visits, q = tree.child_stats(node, cfg.discount)
    parent_visits = tree.visits[tree.batch_range, node].unsqueeze(1)
    pb_c = torch.log((parent_visits + cfg.pb_c_base + 1.0) / cfg.pb_c_base) + cfg.pb_c_init
    pb_c = pb_c * torch.sqrt(parent_visits) / (visits + 1.0)
    value_score = stats.normalize(q).masked_fill(visits == 0, 0.0)
    return pb_c * tree.prior[tree.batch_range, node] + value_score


def select_leaf(tree, legal, stats, cfg, max_depth):
    """Walk down each tree to an edge that has no node yet."""
    batch = legal.shape[0]
    node = torch.zeros(batch, dtype=torch.long)
    action = node
    walking = torch.ones(batch, dtype=torch.bool)
    for _ in range(max_depth):
        scores = puct_scores(tree, node, stats, cfg)
        blocked = (node == 0).unsqueeze(1) & ~legal
        best = scores.masked_fill(blocked, float("-inf")).argmax(dim=1)
        action = torch.where(walking, best, action)
        child = tree.children[tree.batch_range, node, action]
        walking = walking & (child >= 0)
        node = torch.where(walking, child, node)
    return node, action


def backup(tree, leaf, value, stats, cfg):
    """Carry the leaf's value up to the root, discounted, with the rewards on the way."""
    batch_range = tree.batch_range
    node = torch.full_like(batch_range, leaf)
    for _ in range(leaf + 1):
        active = node >= 0
        at = node.clamp(min=0)
        tree.value_sum[batch_range, at] += torch.where(active, value, torch.zeros_like(value))
        tree.visits[batch_range, at] += active.to(value.dtype)
        reward = tree.reward[batch_range, at]
        mean = tree.value_sum[batch_range, at] / tree.visits[batch_range, at]
        stats.update(reward + cfg.discount * mean, active & (node > 0))
        value = torch.where(active, reward + cfg.discount * value, value)
        node = torch.where(active, tree.parents[batch_range, at], node)


def make_targets(rewards, root_values, child_visits, lengths, cfg):
    """Values, rewards and policies to train the unrolled steps on; after its end a game is in an absorbing state."""
    values_out, rewards_out, policies_out, alive_out = [], [], [], []
    for step in range(cfg.unroll_steps + 1):
        bootstrap = step + cfg.td_steps
        value = root_values[:, bootstrap] * cfg.discount**cfg.td_steps * (bootstrap < lengths)
        for i in range(cfg.td_steps):
            played = (step + i < lengths).to(rewards.dtype)
            value = value + rewards[:, step + i] * cfg.discount**i * played
        alive = step < lengths
        values_out.append(torch.where(alive, value, torch.zeros_like(value)))
        alive_out.append(alive)
        policy = child_visits[:, step]
        policies_out.append(policy / policy.sum(dim=1, keepdim=True).clamp(min=1.0))
        if step > 0:
            rewards_out.append(rewards[:, step - 1] * (step - 1 < lengths).to(rewards.dtype))
    return tuple(torch.stack(x, dim=1) for x in (values_out, rewards_out, policies_out, alive_out))


def cross_entropy(logits, target):
    return -(target * F.log_softmax(logits, dim=-1)).sum(dim=-1)


class MuZero(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        board = (math.ceil(cfg.height / 8), math.ceil(cfg.width / 8))
        self.representation = Representation(cfg)
        self.dynamics = Dynamics(cfg, board)
        self.prediction = Prediction(cfg, board)

    def unroll(self, state, actions):
        predicted, received = [self.prediction(state)], []
        for step in range(actions.shape[1]):
            state, reward_logits, reward = self.dynamics(state, actions[:, step])
            predicted.append(self.prediction(state))
            received.append((reward_logits, reward))
            state = scale_gradient(state, 0.5)
        return tuple(torch.stack(x, dim=1) for x in (*zip(*predicted), *zip(*received)))

    def root_prior(self, logits, legal, noise):
        prior = F.softmax(logits.masked_fill(~legal, float("-inf")), dim=-1)
        noise = noise * legal
        noise = noise / noise.sum(dim=1, keepdim=True)
        frac = self.cfg.exploration_fraction
        return prior * (1 - frac) + noise * frac

    def search(self, root_state, logits, value, legal, noise):
        cfg = self.cfg
        tree = Tree(root_state, self.root_prior(logits, legal, noise), value, cfg.num_simulations)
        stats = MinMaxStats(legal.shape[0])
        for sim in range(cfg.num_simulations):
            parent, action = select_leaf(tree, legal, stats, cfg, sim + 1)
            state, _, reward = self.dynamics(tree.states[tree.batch_range, parent], action)
            leaf_logits, _, leaf_value = self.prediction(state)
            tree.add(sim + 1, parent, action, state, F.softmax(leaf_logits, dim=-1), reward)
            backup(tree, sim + 1, leaf_value, stats, cfg)

        visits, q = tree.child_stats(torch.zeros_like(tree.batch_range), cfg.discount)
        root_value = tree.value_sum[:, 0] / tree.visits[:, 0]
        policy = visits ** (1.0 / cfg.temperature)
        policy = policy / policy.sum(dim=1, keepdim=True)
        q = torch.where(visits > 0, q, root_value[:, None])
        return policy, root_value, q.masked_fill(~legal, 0.0)

    def losses(self, outputs, targets):
        policies, value_dists, _, reward_dists, _ = outputs
        target_values, target_rewards, target_policies, alive = targets
        cfg = self.cfg
        value_loss = cross_entropy(value_dists, scalar_to_support(target_values, cfg.value_support)).mean(dim=1)
        reward_loss = cross_entropy(reward_dists, scalar_to_support(target_rewards, cfg.reward_support)).mean(dim=1)
        # nothing is to be learned about what to do when the game is over
        policy_loss = (cross_entropy(policies, target_policies) * alive).sum(dim=1) / alive.sum(dim=1).clamp(min=1)
        return torch.stack((policy_loss, cfg.value_weight * value_loss, reward_loss), dim=1)

    def forward(self, frames, past_actions, history, actions, legal, noise, rewards, root_values, child_visits, lengths,
                weights):
        root_state = self.representation(frames, past_actions, history)
        outputs = self.unroll(root_state, actions)
        policies, _, values, _, step_rewards = outputs
        targets = make_targets(rewards, root_values, child_visits, lengths, self.cfg)
        parts = self.losses(outputs, targets)
        loss = (parts.sum(dim=1) * weights).sum() / weights.sum()
        priority = (values[:, 0] - targets[0][:, 0]).abs()
        search_policy, search_value, search_q = self.search(root_state, policies[:, 0], values[:, 0], legal, noise)
        return policies, values, step_rewards, parts, loss, priority, search_policy, search_value, search_q


def trained_like(net):
    """Values as after training, not as after the initialisation."""
    for name, module in net.named_modules():
        if isinstance(module, (nn.BatchNorm2d, nn.GroupNorm, nn.LayerNorm)):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.2)
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, std=0.15)
            nn.init.uniform_(module.running_var, 0.4, 1.5)
        elif isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.normal_(module.weight, std=1.3 * module.weight[0].numel() ** -0.5)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.15)
    for head in (net.dynamics.reward_head, net.prediction.value_head):
        # narrow activations before the norm, wide logits after it
        head.fc1.weight.data *= 0.12
        head.fc1.bias.data *= 0.2
        head.fc2.weight.data *= 2.0
    net.dynamics.reward_head.fc2.bias.data -= 0.22 * torch.arange(-5.0, 6.0)
    net.prediction.value_head.fc2.bias.data -= 0.1 * torch.arange(-8.0, 9.0)
    net.prediction.policy_head.fc2.weight.data *= 1.5
    return net


def build():
    """The net with the same weights on every run, and three positions: one early in its game, two near the end."""
    torch.manual_seed(1911)
    cfg = MuZeroConfig()
    net = trained_like(MuZero(cfg))
    batch, span = 3, cfg.unroll_steps + cfg.td_steps
    coarse = torch.rand(batch, cfg.num_frames * cfg.frame_channels, 5, 7)
    frames = F.interpolate(coarse, size=(cfg.height, cfg.width), mode="bilinear")
    frames = (255.0 * frames).floor().view(batch, cfg.num_frames, cfg.frame_channels, cfg.height, cfg.width)
    past_actions = torch.randint(0, cfg.num_actions, (batch, cfg.num_frames))
    history = torch.tensor([2, 4, 3])
    actions = torch.randint(0, cfg.num_actions, (batch, cfg.unroll_steps))
    legal = torch.tensor([[1, 0, 1, 1, 0, 1, 1], [0, 1, 1, 0, 1, 1, 1], [1, 1, 0, 1, 1, 0, 0]]).bool()
    noise = F.normalize(torch.rand(batch, cfg.num_actions), p=1.0, dim=1)
    rewards = torch.randn(batch, span) * torch.tensor([[12.0], [2.0], [4.0]]) + torch.tensor([[25.0], [-1.0], [0.5]])
    root_values = torch.randn(batch, span + 1) * 5.0 + torch.tensor([[30.0], [6.0], [-4.0]])
    child_visits = torch.randint(0, 9, (batch, cfg.unroll_steps + 1, cfg.num_actions)).float()
    lengths = torch.tensor([12, 6, 3])
    weights = torch.tensor([0.8, 1.0, 0.45])
    game = (rewards, root_values, child_visits, lengths, weights)
    return net.eval(), (frames, past_actions, history, actions, legal, noise, *game)
