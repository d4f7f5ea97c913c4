"""MindSpore port of the two-head patch training (PyNative, dynamic loss scale, two micro batches per update)."""
import math

import numpy as np
import mindspore as ms
import mindspore.dataset as ds
from mindspore import nn, ops

SEED = 7
N_SAMPLES = 312
MICRO_BATCH = 16
ACCUM = 2
N_CLASSES = 5
N_TARGETS = 3
BASE_LR = 0.04
WARMUP = 3
MOMENTUM = 0.9
WEIGHT_DECAY = 0.02
MAX_NORM = 3.2
REG_WEIGHT = 0.5
SMOOTHING = 0.1
INIT_SCALE = 2.0 ** 24
GROWTH_INTERVAL = 3
CLASS_WEIGHTS = [0.5, 0.8, 1.0, 1.6, 2.4]
MEAN = np.array([3.0, -1.0], dtype=np.float32).reshape(2, 1, 1)
STD = np.array([2.0, 0.7], dtype=np.float32).reshape(2, 1, 1)


def make_data():
    rng = np.random.RandomState(SEED)
    labels = rng.choice(N_CLASSES, size=N_SAMPLES, p=[0.35, 0.25, 0.2, 0.12, 0.08])
    patterns = rng.randn(N_CLASSES, 2, 16, 16)
    amplitude = rng.uniform(0.5, 1.5, size=(N_SAMPLES, 1, 1, 1))
    x = 0.7 * amplitude * patterns[labels] + 0.6 * rng.randn(N_SAMPLES, 2, 16, 16)
    x = x * STD + MEAN
    targets = np.stack([amplitude[:, 0, 0, 0] * 2.0,
                        0.5 * labels - 1.0,
                        x[:, 0].mean(axis=(1, 2)) - 2.0], axis=1)
    targets += 0.1 * rng.randn(N_SAMPLES, N_TARGETS)
    # a broken sensor: one record holds a spike
    x[8 * MICRO_BATCH + 3, 1, 6, 9] = 1.0e21
    return x.astype(np.float32), labels.astype(np.int32), targets.astype(np.float32)


class PatchSource:
    def __init__(self):
        self.x, self.labels, self.targets = make_data()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        x = (self.x[i] - MEAN) / STD
        return x, self.labels[i], self.targets[i]


def make_loader():
    data = ds.GeneratorDataset(PatchSource(), ["image", "label", "target"], shuffle=False,
                               python_multiprocessing=False)
    return data.batch(MICRO_BATCH, drop_remainder=False)


def conv3x3(cin, cout, stride=1):
    return nn.Conv2d(cin, cout, 3, stride=stride, pad_mode="pad", padding=1, has_bias=True)


class PatchNet(nn.Cell):
    def __init__(self):
        super().__init__()
        self.conv1 = conv3x3(2, 12)
        self.conv2 = conv3x3(12, 24, stride=2)
        self.conv3 = conv3x3(24, 32, stride=2)
        self.norm = nn.LayerNorm((32,), epsilon=1e-5)
        self.cls_head = nn.Dense(32, N_CLASSES)
        self.reg_head = nn.Dense(32 + N_CLASSES, N_TARGETS)

    def construct(self, x):
        h = ops.relu(self.conv1(x))
        h = ops.relu(self.conv2(h))
        h = ops.relu(self.conv3(h))
        h = h.mean(axis=(2, 3))
        logits = self.cls_head(self.norm(h))
        probs = ops.stop_gradient(ops.softmax(logits, axis=1))
        values = self.reg_head(ops.cat((h, probs), axis=1))
        return logits, values


def lr_at(step, total):
    if step < WARMUP:
        return BASE_LR * (step + 1) / WARMUP
    return BASE_LR * 0.5 * (1.0 + math.cos(math.pi * (step - WARMUP) / (total - WARMUP)))


def make_optimizer(net, lrs):
    params = net.trainable_params()
    decay = [p for p in params if p.ndim > 1]
    no_decay = [p for p in params if p.ndim <= 1]
    groups = [{"params": decay, "weight_decay": WEIGHT_DECAY},
              {"params": no_decay, "weight_decay": 0.0}]
    return nn.SGD(groups, learning_rate=lrs[0], momentum=MOMENTUM, nesterov=True)


class TrainStep:
    """One call is one micro batch; with update=True the sum of the gradients goes into the optimizer."""

    def __init__(self, net, optimizer, scaler, lrs):
        self.net = net
        self.optimizer = optimizer
        self.scaler = scaler
        self.lrs = lrs
        self.step = 0
        self.weights = net.trainable_params()
        self.class_weights = ms.Tensor(CLASS_WEIGHTS, ms.float32)
        self.grad_fn = ms.value_and_grad(self.forward, None, self.weights, has_aux=True)
        self.acc = None

    def forward(self, x, labels, targets):
        logits, values = self.net(x)
        ce = ops.cross_entropy(logits, labels, weight=self.class_weights, label_smoothing=SMOOTHING)
        mse = ops.mse_loss(values, targets)
        loss = (ce + REG_WEIGHT * mse) / ACCUM
        return self.scaler.scale(loss), loss

    def accumulate(self, grads):
        if self.acc is None:
            self.acc = list(grads)
        else:
            self.acc = [a + g for a, g in zip(self.acc, grads)]

    def apply(self):
        # the schedule follows the batches, whether or not the update is skipped
        ops.assign(self.optimizer.learning_rate, ms.Tensor(self.lrs[self.step], ms.float32))
        self.step += 1

        finite = ms.amp.all_finite(self.acc)
        if finite:
            grads = self.scaler.unscale(tuple(self.acc))
            grads = ops.clip_by_global_norm(grads, MAX_NORM)
            by_name = {p.name: g for p, g in zip(self.weights, grads)}
            # the optimizer holds the parameters in the order of its groups
            self.optimizer(tuple(by_name[p.name] for p in self.optimizer.parameters))
        self.scaler.adjust(finite)
        self.acc = None

    def __call__(self, x, labels, targets, update):
        (_, loss), grads = self.grad_fn(x, labels, targets)
        self.accumulate(grads)
        if update:
            self.apply()
        return float(loss.asnumpy())


def main():
    ms.set_seed(SEED)
    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    loader = make_loader()
    n_micro = loader.get_dataset_size()
    total = math.ceil(n_micro / ACCUM)
    lrs = [lr_at(s, total) for s in range(total)]

    net = PatchNet()
    net.set_train()
    optimizer = make_optimizer(net, lrs)
    scaler = ms.amp.DynamicLossScaler(scale_value=INIT_SCALE, scale_factor=2, scale_window=GROWTH_INTERVAL)
    train_step = TrainStep(net, optimizer, scaler, lrs)

    step, step_loss = 0, 0.0
    for i, (x, labels, targets) in enumerate(loader.create_tuple_iterator(num_epochs=1)):
        update = (i + 1) % ACCUM == 0 or i + 1 == n_micro
        step_loss += train_step(x, labels, targets, update)
        if update:
            scale = float(scaler.scale_value.asnumpy())
            print(f"step {step} loss {step_loss:.6g} lr {lrs[step]:.5f} scale {scale:.0f}")
            step, step_loss = step + 1, 0.0


if __name__ == "__main__":
    main()
