#!/usr/bin/env python3
"""A Hessian-vector product of GPT-2 124M in PyTorch beside its gradient: `torch_hessian.py WAY [SEQUENCE]`, two threads.

WAY is `gradient`, `double` (reverse over reverse) or `func` (`torch.func`: jvp of grad). The batch and the vector are those of
`examples/hessian_cost.rs`; attention is written out, since PyTorch's fused one has no second derivatives on a CPU. Prints seconds (median of 5) and the peak
of the process, in MB, beyond what it held with weights and vector.
"""

import resource
import statistics
import sys
import time

import torch
from torch.func import functional_call, grad, jvp
from transformers import GPT2Config, GPT2LMHeadModel

REPLAYS = 5


def main():
    way, sequence = sys.argv[1], int((sys.argv[2:] or [256])[0])
    torch.set_num_threads(2)
    torch.manual_seed(1)
    config = GPT2Config(attn_implementation="eager", resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False)
    model = GPT2LMHeadModel(config)
    at = torch.arange(sequence + 1)
    text = at * at % config.vocab_size
    tokens, targets = text[None, :-1], text[1:]
    weights = dict(model.named_parameters())
    signs = torch.tensor([1.0, -1.0])
    vector = {name: signs[torch.arange(weight.numel()) * 7 % 5 % 2].view_as(weight) for name, weight in weights.items()}

    def loss(weights):
        logits = functional_call(model, weights, (tokens,)).logits
        return torch.nn.functional.cross_entropy(logits[0], targets)

    def gradient():
        return torch.autograd.grad(loss(weights), list(weights.values()))

    def double():
        first = torch.autograd.grad(loss(weights), list(weights.values()), create_graph=True)
        return torch.autograd.grad(first, list(weights.values()), list(vector.values()))

    def func():
        still = {name: weight.detach() for name, weight in weights.items()}
        return jvp(grad(loss), (still,), (vector,))[1]

    computed = {"gradient": gradient, "double": double, "func": func}[way]
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = []
    for _ in range(REPLAYS):
        started = time.perf_counter()
        computed()
        seconds.append(time.perf_counter() - started)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"{way:9} {statistics.median(seconds):8.3f} s  {(peak - held) / 1e3:8.1f} MB beyond {held / 1e3:.1f}", flush=True)


main()
