"""The same training with cells of its own: `GradOperation` with sens, `HyperMap` and `AssignAdd`, and clipping."""

import mindspore as ms
import numpy as np
from mindspore import nn, ops

MICRO_BATCH, ACCUMULATE, UPDATES = 8, 4, 8
CLIP_NORM = 0.5


def make_batches():
    rng = np.random.default_rng(11)
    words = rng.integers(0, 40, (MICRO_BATCH * ACCUMULATE * UPDATES, 12))
    labels = (words < 20).sum(1) // 3
    for start in range(0, len(words), MICRO_BATCH):
        yield words[start : start + MICRO_BATCH], labels[start : start + MICRO_BATCH]


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(40, 16)
        self.norm = nn.LayerNorm((16,), epsilon=1e-5)
        self.fc1 = nn.Dense(16, 32)
        self.fc2 = nn.Dense(32, 5)

    def construct(self, words):
        x = self.norm(self.embedding(words)).mean(1)
        return self.fc2(ops.relu(self.fc1(x)))


_sum_op = ops.MultitypeFuncGraph("grad_sum_op")
_clear_op = ops.MultitypeFuncGraph("clear_op")


@_sum_op.register("Tensor", "Tensor")
def _add_grad(grad_sum, grad):
    return ops.AssignAdd()(grad_sum, grad)


@_clear_op.register("Tensor", "Tensor")
def _clear_grad(grad_sum, zero):
    return ops.Assign()(grad_sum, zero)


class TrainForwardBackward(nn.TrainOneStepCell):
    """One micro-batch: its gradients are added to those before."""

    def __init__(self, network, optimizer, grad_sum, sens=1.0):
        super().__init__(network, optimizer)
        self.grad_sum = grad_sum
        self.grad = ops.GradOperation(get_by_list=True, sens_param=True)
        self.sens = sens
        self.hyper_map = ops.HyperMap()

    def construct(self, *inputs):
        loss = self.network(*inputs)
        sens = ops.fill(loss.dtype, loss.shape, self.sens)
        grads = self.grad(self.network, self.weights)(*inputs, sens)
        return ops.depend(loss, self.hyper_map(ops.partial(_sum_op), self.grad_sum, grads))


class TrainOptim(nn.Cell):
    """What has been added up is clipped and used."""

    def __init__(self, optimizer, grad_sum, clip_norm):
        super().__init__(auto_prefix=False)
        self.optimizer = optimizer
        self.grad_sum = grad_sum
        self.clip_norm = clip_norm

    def construct(self):
        grads = ops.clip_by_global_norm(self.grad_sum, self.clip_norm)
        return self.optimizer(grads)


class TrainClear(nn.Cell):
    def __init__(self, grad_sum, zeros):
        super().__init__(auto_prefix=False)
        self.grad_sum = grad_sum
        self.zeros = zeros
        self.hyper_map = ops.HyperMap()

    def construct(self):
        return self.hyper_map(ops.partial(_clear_op), self.grad_sum, self.zeros)


def main():
    ms.set_seed(3)
    net = Net()
    optimizer = nn.Momentum(net.trainable_params(), learning_rate=0.5, momentum=0.9)
    grad_sum = optimizer.parameters.clone(prefix="grad_sum", init="zeros")
    zeros = optimizer.parameters.clone(prefix="zeros", init="zeros")
    net_with_loss = nn.WithLossCell(net, nn.CrossEntropyLoss())
    forward_backward = TrainForwardBackward(net_with_loss, optimizer, grad_sum, sens=1.0 / ACCUMULATE)
    optim = TrainOptim(optimizer, grad_sum, CLIP_NORM)
    clear = TrainClear(grad_sum, zeros)

    forward_backward.set_train()
    for number, (words, labels) in enumerate(make_batches(), 1):
        loss = forward_backward(ms.Tensor(words, ms.int32), ms.Tensor(labels, ms.int32))
        if number % ACCUMULATE == 0:
            optim()
            clear()
            print(f"update {number // ACCUMULATE}  loss {float(loss.asnumpy()):.5f}")


if __name__ == "__main__":
    main()
