"""Makes the fixtures that tests/parity.rs compares with: tiny GPT-2 and Llama models of odd sizes with random weights,
and what `transformers` computes for random tokens in f32: logits, loss and gradients.

usage: python tests/parity/make.py        (needs torch, transformers and safetensors; writes to tests/fixtures)
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

FIXTURES = Path(__file__).parent.parent / "fixtures"
BATCH, SEQUENCE = 2, 11
IGNORED = -100


def gpt2(tied):
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=53,
            n_embd=36,
            n_layer=2,
            n_head=3,
            n_inner=50,
            n_positions=17,
            activation_function="gelu_new",
            layer_norm_epsilon=1e-5,
            bos_token_id=0,
            eos_token_id=0,
            tie_word_embeddings=tied,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            resid_pdrop=0.0,
            attn_implementation="eager",
        )
    )


def llama(tied, heads, kv_heads):
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=53,
            hidden_size=40,
            num_hidden_layers=2,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            intermediate_size=38,
            max_position_embeddings=17,
            rms_norm_eps=1e-5,
            rope_theta=10000.0,
            bos_token_id=0,
            eos_token_id=0,
            tie_word_embeddings=tied,
            attn_implementation="eager",
        )
    )


def randomise(model):
    """Weights far from their initial values, so that a mistake in any of them shows."""
    for name, weight in model.named_parameters():
        is_gain = weight.dim() == 1 and name.endswith("weight")
        with torch.no_grad():
            weight.copy_(1 + 0.2 * torch.randn_like(weight) if is_gain else 0.2 * torch.randn_like(weight))


def store(name, model):
    randomise(model)
    tokens = torch.randint(53, (BATCH, SEQUENCE))
    targets = torch.randint(53, (BATCH, SEQUENCE))
    targets[0, 4] = targets[1, -1] = IGNORED
    logits = model(tokens, use_cache=False).logits
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
    loss.backward()
    tensors = {"tokens": tokens.int(), "targets": targets.int(), "logits": logits.detach(), "loss": loss.detach()}
    for weight_name, weight in model.named_parameters():
        tensors[f"weight.{weight_name}"] = weight.detach()
        tensors[f"gradient.{weight_name}"] = weight.grad
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, FIXTURES / f"parity_{name}.safetensors")
    print(f"{name}: loss {loss.item():.4f}")


torch.manual_seed(1)
store("gpt2_tied", gpt2(tied=True))
store("gpt2_untied", gpt2(tied=False))
store("llama_tied", llama(tied=True, heads=5, kv_heads=1))
store("llama_untied", llama(tied=False, heads=4, kv_heads=2))
