"""Single operations in PyTorch: torch_kernels.py FAMILY MODE SECONDS THREADS, MODE eager or compiled, of convolutions eager or channels-last.

The names are those of `gradus bench --list`.
"""

import sys

import torch
import torch.nn.functional as F

from measuring import rounds, tell

TYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def matmul():
    for name, dtype in TYPES.items():
        for size in (128, 256, 512, 1024, 2048):
            a, b = (torch.randn(size, size, dtype=dtype) for _ in range(2))
            result = torch.empty(size, size, dtype=dtype)
            yield f"matmul/{name}/{size}", lambda: torch.mm(a, b, out=result)


def linear():
    for name, dtype in TYPES.items():
        x, weight = torch.randn(4096, 256, dtype=dtype), torch.randn(256, 1024, dtype=dtype)
        gradient = torch.randn(4096, 1024, dtype=dtype)
        # Into memory that is there already, as in a program that reuses it.
        y, x_gradient, weight_gradient = (torch.empty_like(like) for like in (gradient, x, weight))
        yield f"linear/{name}/forward", lambda: torch.mm(x, weight, out=y)
        yield f"linear/{name}/input-gradient", lambda: torch.mm(gradient, weight.T, out=x_gradient)
        yield f"linear/{name}/weight-gradient", lambda: torch.mm(x.T, gradient, out=weight_gradient)


def adamw():
    for name, count in (("2m", 2_359_296), ("124m", 124_439_808)):
        weight = torch.nn.Parameter(torch.randn(count) * 0.02)
        weight.grad = torch.randn(count)
        optimizer = torch.optim.AdamW([weight], lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
        yield f"adamw/{name}", optimizer.step


def layer_norm():
    for batch in (8, 16, 32):
        x = torch.randn(batch, 64, 512)
        gain, bias = torch.randn(512), torch.randn(512)
        yield f"layer-norm/forward/{batch}", lambda: F.layer_norm(x, (512,), gain, bias)
        operands = [operand.clone().requires_grad_() for operand in (x, gain, bias)]
        y = F.layer_norm(operands[0], (512,), *operands[1:])
        gradient = torch.randn_like(y)
        backward = lambda: torch.autograd.grad(y, operands, gradient, retain_graph=True)
        yield f"layer-norm/backward/{batch}", backward


def cross_entropy(compiled):
    logits, targets = torch.randn(256, 50257, requires_grad=True), torch.randint(50257, (256,))
    loss_of = torch.compile(F.cross_entropy) if compiled else F.cross_entropy
    yield "cross-entropy/256x50257", lambda: torch.autograd.grad(loss_of(logits, targets), logits)


def attention():
    for name, dtype in TYPES.items():
        for length in (256, 512, 1024):
            operands = [torch.randn(8, 8, length, 64, dtype=dtype, requires_grad=True) for _ in range(3)]
            gradient = torch.randn(8, 8, length, 64, dtype=dtype)

            def both():
                y = F.scaled_dot_product_attention(*operands, is_causal=True)
                return torch.autograd.grad(y, operands, gradient)

            yield f"attention/{name}/{length}", both


CONVOLUTIONS = [
    ("7x7-stride-2-3-to-64-at-224", 1, 3, 64, 224, 7, 2),
    ("3x3-64-at-56", 1, 64, 64, 56, 3, 1),
    ("3x3-stride-2-64-to-128-at-56", 1, 64, 128, 56, 3, 2),
    ("3x3-128-at-28", 1, 128, 128, 28, 3, 1),
    ("3x3-256-at-14", 1, 256, 256, 14, 3, 1),
    ("3x3-512-at-7", 1, 512, 512, 7, 3, 1),
    ("1x1-256-to-64-at-56", 1, 256, 64, 56, 1, 1),
    ("depthwise-3x3-128-at-56", 128, 128, 128, 56, 3, 1),
]


def convolutions(layout):
    """In one layout of memory; whoever reads the figures takes the better one of each row."""
    for name, groups, channels, filters, size, kernel, stride in CONVOLUTIONS:
        x = torch.randn(16, channels, size, size).to(memory_format=layout)
        weight = torch.randn(filters, channels // groups, kernel, kernel).to(memory_format=layout)
        convolve = lambda: F.conv2d(x, weight, stride=stride, padding=kernel // 2, groups=groups)
        gradient = torch.randn_like(convolve())

        def backward(mask):
            return torch.ops.aten.convolution_backward(gradient, x, weight, None, [stride] * 2, [kernel // 2] * 2, [1, 1],
                                                       False, [0, 0], groups, mask)

        yield f"conv/{name}/forward", convolve
        yield f"conv/{name}/input-gradient", lambda: backward([True, False, False])
        yield f"conv/{name}/weight-gradient", lambda: backward([False, True, False])


def kernels(family, mode):
    if family == "conv":
        return convolutions(torch.channels_last if mode == "channels-last" else torch.contiguous_format)
    if family == "cross-entropy":
        return cross_entropy(mode == "compiled")
    plain = {"matmul": matmul, "linear": linear, "adamw": adamw, "layer-norm": layer_norm, "attention": attention}
    return plain[family]()


def main():
    family, mode, seconds, threads = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    # A name and its work are used before the next ones are made, so that the work sees its own operands.
    for name, work in kernels(family, mode):
        tell(name, rounds(work, seconds))


main()
