"""State of health of battery cells from short discharge windows: MindSpore port.

The first convolution block was trained on another fleet of cells and stays frozen.
"""
import numpy as np
import mindspore as ms
from mindspore import nn, ops
from mindspore.dataset import GeneratorDataset

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_device("CPU")

SEED = 7
N_TRAIN, N_VAL = 60, 24
WINDOW, CHANNELS = 40, 4          # time steps; voltage, current, temperature, capacity counter
BATCH = 16
EPOCHS = 3
LR = 4e-3
LR_GAMMA = 0.6                    # per epoch
BETAS = (0.9, 0.98)
WEIGHT_DECAY = 2e-2
GRAD_CLIP = 0.005                 # by value
LOSS_BETA = 0.5
AGED_WEIGHT = 3.0                 # aged cells are rare


def make_cells(n, rng):
    soh = 0.7 + 0.3 * rng.beta(3.0, 1.5, size=n)
    t = np.linspace(0.0, 1.0, WINDOW)
    x = np.empty((n, WINDOW, CHANNELS))
    for i in range(n):
        load = 1.0 + 0.3 * np.sin(2 * np.pi * (t * rng.uniform(1, 3) + rng.uniform()))
        resistance = 0.05 + 0.25 * (1.0 - soh[i])
        used = np.cumsum(load) / WINDOW / soh[i]
        x[i, :, 0] = 4.1 - 0.6 * used - resistance * load
        x[i, :, 1] = load
        x[i, :, 2] = 25.0 + 30.0 * resistance * np.cumsum(load ** 2) / WINDOW
        x[i, :, 3] = used
    x += rng.normal(size=x.shape) * np.array([0.01, 0.02, 0.2, 0.01])
    return x, soh


rng = np.random.RandomState(SEED)
x_train, soh_train = make_cells(N_TRAIN, rng)
x_val, soh_val = make_cells(N_VAL, rng)
x_mean, x_std = x_train.mean(axis=(0, 1)), x_train.std(axis=(0, 1))
y_mean, y_std = soh_train.mean(), soh_train.std()


class CellWindows:
    def __init__(self, x, soh):
        self.x = ((x - x_mean) / x_std).astype(np.float32)
        self.y = ((soh - y_mean) / y_std).astype(np.float32)
        self.w = np.where(soh < 0.85, AGED_WEIGHT, 1.0).astype(np.float32)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i], self.w[i]


class SohNet(nn.Cell):
    def __init__(self, hidden=24):
        super().__init__()
        self.stem = nn.SequentialCell(
            nn.Conv2d(1, 8, (5, 1), pad_mode="pad", padding=(2, 2, 0, 0), has_bias=False),
            nn.BatchNorm2d(8, momentum=0.9),
            nn.ReLU(),
        )
        self.mix = nn.SequentialCell(
            nn.Conv2d(8, 12, (5, 1), stride=(2, 1), pad_mode="pad", padding=(2, 2, 0, 0), has_bias=False),
            nn.BatchNorm2d(12, momentum=0.9),
            nn.ReLU(),
        )
        self.lstm = nn.LSTM(12 * CHANNELS, hidden, batch_first=True)
        self.head = nn.SequentialCell(nn.Dense(hidden, 16), nn.ReLU(), nn.Dense(16, 1))

    def construct(self, x):                            # (N, T, C)
        h = self.mix(self.stem(x.expand_dims(1)))      # (N, 12, T/2, C)
        h = h.transpose(0, 2, 1, 3)
        h = h.reshape(h.shape[0], h.shape[1], -1)      # (N, T/2, 12 * C)
        out, _ = self.lstm(h)
        return self.head(out[:, -1]).squeeze(-1)


def load_pretrained_stem(net):
    r = np.random.RandomState(11)
    conv, norm = net.stem[0], net.stem[1]
    conv.weight.set_data(ms.Tensor(r.normal(0, 0.45, (8, 1, 5, 1)), ms.float32))
    norm.gamma.set_data(ms.Tensor(r.uniform(0.7, 1.3, 8), ms.float32))
    norm.beta.set_data(ms.Tensor(r.normal(0, 0.2, 8), ms.float32))
    norm.moving_mean.set_data(ms.Tensor(r.normal(0, 0.3, 8), ms.float32))
    norm.moving_variance.set_data(ms.Tensor(r.uniform(0.5, 2.0, 8), ms.float32))


class NetWithWeightedLoss(nn.Cell):
    """Network and loss in one cell: (x, target, weight) -> scalar."""

    def __init__(self, net):
        super().__init__(auto_prefix=False)
        self.net = net
        self.smooth_l1 = nn.SmoothL1Loss(beta=LOSS_BETA, reduction="none")

    def construct(self, x, target, weight):
        pred = self.net(x)
        loss = self.smooth_l1(pred, target)
        focus = ops.stop_gradient(1.0 + ops.abs(pred - target))    # hard windows count more
        weight = weight * focus
        return (weight * loss).sum() / weight.sum()


class ClippedTrainStep(nn.TrainOneStepCell):
    """One step with the gradients clipped by value before the optimizer sees them."""

    def __init__(self, network, optimizer, clip_value):
        super().__init__(network, optimizer)
        self.clip_value = clip_value
        self.grad = ops.GradOperation(get_by_list=True)

    def clip(self, grads):
        return tuple(ops.clip_by_value(g, -self.clip_value, self.clip_value) for g in grads)

    def construct(self, *inputs):
        loss = self.network(*inputs)
        grads = self.grad(self.network, self.weights)(*inputs)
        grads = self.clip(grads)
        self.optimizer(grads)
        return loss


train_set = GeneratorDataset(CellWindows(x_train, soh_train), ["x", "y", "w"], shuffle=False)
train_set = train_set.batch(BATCH, drop_remainder=False)
val_set = GeneratorDataset(CellWindows(x_val, soh_val), ["x", "y", "w"], shuffle=False).batch(N_VAL)
steps_per_epoch = train_set.get_dataset_size()

ms.set_seed(SEED)
net = SohNet()
load_pretrained_stem(net)
for p in net.stem.get_parameters():
    p.requires_grad = False

params = net.trainable_params()
decay = [p for p in params if p.ndim > 1]
no_decay = [p for p in params if p.ndim <= 1]
learning_rate = nn.exponential_decay_lr(
    LR, LR_GAMMA, total_step=EPOCHS * steps_per_epoch, step_per_epoch=steps_per_epoch, decay_epoch=1
)
optimizer = nn.Adam(
    [
        {"params": decay, "weight_decay": WEIGHT_DECAY},
        {"params": no_decay, "weight_decay": 0.0},
    ],
    learning_rate=learning_rate,
    beta1=BETAS[0],
    beta2=BETAS[1],
    eps=1e-8,
)
train_step = ClippedTrainStep(NetWithWeightedLoss(net), optimizer, GRAD_CLIP)

step = 0
for epoch in range(EPOCHS):
    train_step.set_train(True)
    net.stem.set_train(False)                          # frozen: keeps its moving statistics
    for x, y, w in train_set.create_tuple_iterator(num_epochs=1):
        loss = train_step(x, y, w)
        print(f"step {step:2d} loss {float(loss.asnumpy()):.6f}")
        step += 1

    net.set_train(False)
    val = np.mean([np.abs((net(x) - y).asnumpy()).mean() for x, y, _ in val_set.create_tuple_iterator(num_epochs=1)])
    print(f"epoch {epoch} val mae {val * y_std:.5f}")
