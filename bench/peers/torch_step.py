"""One configuration's training step in PyTorch: torch_step.py NAME MODE SECONDS THREADS.

MODE is eager or compiled; compiled:SHARE keeps that share of the activations (activation_memory_budget); eager:checkpoint
and compiled:checkpoint compute every block again. A GPT-2 with its best settings for the CPU: fused attention and AdamW,
autocast for bf16, no dropout.
"""

import sys

import torch
import torch._functorch.config
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from measuring import peak_memory, rounds, tell

# vocabulary, width, layers, heads, sequence, batch
CONFIGURATIONS = {
    "reference": (788, 256, 6, 8, 128, 32),
    "11m": (4096, 320, 8, 8, 256, 8),
    "124m-64": (50257, 768, 12, 12, 64, 4),
    "124m-256": (50257, 768, 12, 12, 256, 4),
}


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.attention_projection = nn.Linear(width, width)
        self.feed_forward_norm = nn.LayerNorm(width)
        self.expansion = nn.Linear(width, 4 * width)
        self.contraction = nn.Linear(4 * width, width)

    def forward(self, x):
        batch, sequence, width = x.shape
        parts = self.queries_keys_values(self.attention_norm(x))
        parts = parts.view(batch, sequence, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + self.attention_projection(found.transpose(1, 2).reshape(batch, sequence, width))
        return x + self.contraction(F.gelu(self.expansion(self.feed_forward_norm(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, vocabulary, width, layers, heads, sequence, recompute):
        super().__init__()
        self.recompute = recompute
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.empty(sequence, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.positions
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def main():
    name, mode, seconds, threads = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
    _, configuration, precision = name.split("/")
    vocabulary, width, layers, heads, sequence, batch = CONFIGURATIONS[configuration]
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    mode, _, memory = mode.partition(":")
    model = Gpt2(vocabulary, width, layers, heads, sequence, recompute=memory == "checkpoint")
    if memory not in ("", "checkpoint"):
        torch._functorch.config.activation_memory_budget = float(memory)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    loss_of = torch.compile(model) if mode == "compiled" else model
    tokens, targets = (torch.randint(vocabulary, (batch, sequence)) for _ in range(2))

    def step():
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
            loss = loss_of(tokens, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    tell(name, rounds(step, seconds), peak_memory_bytes=peak_memory())


main()
