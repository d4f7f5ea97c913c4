"""Small ResNet for tabular data (loan grades in five classes), MindSpore high-level API."""
import numpy as np
import mindspore as ms
import mindspore.dataset as ds
from mindspore import Tensor, nn, ops
from mindspore.common.initializer import initializer

SEED = 2024
N_ROWS = 150
N_TRAIN = 118
N_FEATURES = 16
N_SKEWED = 5
N_CLASSES = 5
BATCH = 32
EPOCHS = 3
WIDTH = 32
HIDDEN = 64

LR_WEIGHTS = 2e-4
LR_NORMS = 4e-4
GAMMA = 0.5
WEIGHT_DECAY = 5e-3
LABEL_SMOOTHING = 0.05
CLASS_WEIGHTS = [0.6, 0.8, 1.0, 1.5, 2.5]
FOCUS = 2.0


def make_table():
    rng = np.random.RandomState(SEED)
    x = rng.randn(N_ROWS, N_FEATURES).astype(np.float32)
    mix = rng.randn(N_FEATURES, N_CLASSES).astype(np.float32)
    score = x @ mix + 1.5 * np.tanh(x[:, ::-1] @ mix) + 0.5 * rng.randn(N_ROWS, N_CLASSES)
    score = score - np.array([0.0, 0.5, 1.0, 2.0, 3.0])
    y = score.argmax(axis=1).astype(np.int32)
    scale = rng.uniform(0.5, 20.0, size=N_FEATURES).astype(np.float32)
    shift = rng.uniform(-5.0, 5.0, size=N_FEATURES).astype(np.float32)
    table = x * scale + shift
    table[:, :N_SKEWED] = np.exp(0.8 * x[:, :N_SKEWED] + 2.0)
    return table.astype(np.float32), y


class LoanTable:
    def __init__(self, table, labels):
        self.table, self.labels = table, labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.table[i], self.labels[i]


def log_amounts(row):
    row = row.copy()
    row[..., :N_SKEWED] = np.log1p(row[..., :N_SKEWED])
    return row


class Standardize:
    def __init__(self, table):
        self.mean = table.mean(axis=0)
        self.std = table.std(axis=0) + 1e-6

    def __call__(self, row):
        return ((row - self.mean) / self.std).astype(np.float32)


def create_datasets():
    table, labels = make_table()
    standardize = Standardize(log_amounts(table[:N_TRAIN]))

    train = ds.GeneratorDataset(LoanTable(table[:N_TRAIN], labels[:N_TRAIN]),
                                column_names=["row", "grade"], shuffle=False)
    train = train.map(operations=[log_amounts, standardize], input_columns=["row"])
    train = train.batch(BATCH, drop_remainder=False)

    held_out = (standardize(log_amounts(table[N_TRAIN:])), labels[N_TRAIN:])
    return train, held_out


class Block(nn.Cell):
    def __init__(self, width, hidden):
        super().__init__()
        self.norm = nn.BatchNorm1d(width, eps=1e-5, momentum=0.9)
        self.fc1 = nn.Dense(width, hidden)
        self.act = nn.GELU(approximate=False)
        self.fc2 = nn.Dense(hidden, width, has_bias=False)

    def construct(self, x):
        return x + self.fc2(self.act(self.fc1(self.norm(x))))


class TabularResNet(nn.Cell):
    def __init__(self):
        super().__init__()
        self.stem = nn.Dense(N_FEATURES, WIDTH, has_bias=False)
        self.blocks = nn.SequentialCell(Block(WIDTH, HIDDEN), Block(WIDTH, HIDDEN))
        self.norm = nn.LayerNorm((WIDTH,), epsilon=1e-5)
        self.act = nn.GELU(approximate=False)
        self.head = nn.Dense(WIDTH, N_CLASSES)

    def construct(self, x):
        x = self.blocks(self.stem(x))
        return self.head(self.act(self.norm(x)))


class FocusedCrossEntropy(nn.Cell):
    """Cross entropy with class weights; easy rows count less, the focus itself is a constant."""

    def __init__(self):
        super().__init__()
        self.class_weights = Tensor(CLASS_WEIGHTS, ms.float32)

    def construct(self, logits, target):
        ce = ops.cross_entropy(logits, target, weight=self.class_weights, reduction="none",
                               label_smoothing=LABEL_SMOOTHING)
        probs = ops.softmax(logits, axis=1)
        p = ops.gather_elements(probs, 1, target.expand_dims(1)).squeeze(1)
        focus = ops.pow(1.0 - ops.stop_gradient(p), FOCUS)
        return (focus * ce).mean()


def create_optimizer(net, steps_per_epoch):
    milestones = [steps_per_epoch * (e + 1) for e in range(EPOCHS)]
    lr_weights = nn.piecewise_constant_lr(milestones, [LR_WEIGHTS * GAMMA ** e for e in range(EPOCHS)])
    lr_norms = nn.piecewise_constant_lr(milestones, [LR_NORMS * GAMMA ** e for e in range(EPOCHS)])

    weights = [p for p in net.trainable_params() if p.ndim > 1]
    norms = [p for p in net.trainable_params() if p.ndim <= 1]
    groups = [{"params": weights, "lr": lr_weights, "weight_decay": WEIGHT_DECAY},
              {"params": norms, "lr": lr_norms, "weight_decay": 0.0}]
    optimizer = nn.RMSProp(groups, learning_rate=LR_WEIGHTS, decay=0.99, epsilon=1e-8)
    # torch starts the mean square at zero, nn.RMSProp at one
    for square in optimizer.ms:
        square.set_data(initializer("zeros", square.shape, square.dtype))
    return optimizer


class PrintLoss(ms.train.Callback):
    def on_train_step_end(self, run_context):
        cb = run_context.original_args()
        loss = float(cb.net_outputs.asnumpy())
        print(f"epoch {cb.cur_epoch_num - 1} step {cb.cur_step_num - 1} loss {loss:.6f}", flush=True)


def main():
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_device("CPU")
    ms.set_seed(SEED)

    dataset, (rows, grades) = create_datasets()
    net = TabularResNet()
    criterion = FocusedCrossEntropy()
    optimizer = create_optimizer(net, dataset.get_dataset_size())
    model = ms.train.Model(net, loss_fn=criterion, optimizer=optimizer)
    model.train(EPOCHS, dataset, callbacks=[PrintLoss()], dataset_sink_mode=False)

    logits = model.predict(Tensor(rows))
    print(f"held-out rows: {float(criterion(logits, Tensor(grades)).asnumpy()):.6f}")


if __name__ == "__main__":
    main()
