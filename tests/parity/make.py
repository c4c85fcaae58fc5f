"""Makes the fixtures that tests/parity.rs compares with: tiny models of every family, of odd sizes and with random weights,
and what `transformers` computes for random tokens in f32: logits, loss, gradients and the likeliest continuation.

usage: python tests/parity/make.py        (needs torch, transformers and safetensors; writes to tests/fixtures)
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

FIXTURES = Path(__file__).parent.parent / "fixtures"
BATCH, SEQUENCE = 2, 11
IGNORED = -100
CONTEXT = 17
# The likeliest token must be so by more than rounding.
SMALLEST_MARGIN = 1e-3


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


def smaller(model_class, config_class, **choices):
    """A model of the kind of Llama, in the sizes that all of them have here."""
    sizes = dict(
        vocab_size=29,
        hidden_size=20,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=22,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5,
        bos_token_id=0,
        eos_token_id=0,
        attn_implementation="eager",
    )
    return model_class(config_class(**(sizes | choices)))


def llama3_rope():
    """Of five frequencies, one is fast, one between and three slow."""
    scaling = {"factor": 4.0, "low_freq_factor": 0.5, "high_freq_factor": 2.0, "original_max_position_embeddings": 16}
    return {"rope_type": "llama3", "rope_theta": 1000.0} | scaling


def randomise(model):
    """Weights far from their initial values, so that a mistake in any of them shows."""
    for name, weight in model.named_parameters():
        is_gain = weight.dim() == 1 and name.endswith("weight")
        with torch.no_grad():
            weight.copy_(1 + 0.2 * torch.randn_like(weight) if is_gain else 0.2 * torch.randn_like(weight))


def continued(model):
    """A beginning, and the likeliest tokens up to the context's end."""
    for _ in range(100):
        beginning = torch.randint(model.config.vocab_size, (3,))
        tokens, margins = beginning.tolist(), []
        while len(tokens) < CONTEXT:
            with torch.no_grad():
                logits = model(torch.tensor([tokens]), use_cache=False).logits[0, -1]
            best, second = logits.topk(2).values.tolist()
            margins.append(best - second)
            tokens.append(logits.argmax().item())
        if min(margins) > SMALLEST_MARGIN and len(set(tokens)) > 5:
            return torch.tensor(tokens)
    raise SystemExit("no continuation with a clear choice at every token")


def store(name, model, continues=False):
    randomise(model)
    vocabulary = model.config.vocab_size
    tokens = torch.randint(vocabulary, (BATCH, SEQUENCE))
    targets = torch.randint(vocabulary, (BATCH, SEQUENCE))
    targets[0, 4] = targets[1, -1] = IGNORED
    logits = model(tokens, use_cache=False).logits
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
    loss.backward()
    tensors = {"tokens": tokens.int(), "targets": targets.int(), "logits": logits.detach(), "loss": loss.detach()}
    for weight_name, weight in model.named_parameters():
        tensors[f"weight.{weight_name}"] = weight.detach()
        tensors[f"gradient.{weight_name}"] = weight.grad
    if continues:
        tensors["continued"] = continued(model).int()
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, FIXTURES / f"parity_{name}.safetensors")
    print(f"{name}: loss {loss.item():.4f}")


torch.manual_seed(1)
store("gpt2_tied", gpt2(tied=True))
store("gpt2_untied", gpt2(tied=False))
store("llama_tied", llama(tied=True, heads=5, kv_heads=1))
store("llama_untied", llama(tied=False, heads=4, kv_heads=2))
store("llama3", smaller(LlamaForCausalLM, LlamaConfig, rope_parameters=llama3_rope(), tie_word_embeddings=True), True)
biased = dict(attention_bias=True, mlp_bias=True, head_dim=6)
store("llama_biased", smaller(LlamaForCausalLM, LlamaConfig, **biased), True)
store("mistral", smaller(MistralForCausalLM, MistralConfig, sliding_window=4, head_dim=8, num_attention_heads=3), True)
sliding = dict(use_sliding_window=True, sliding_window=3, max_window_layers=1)
store("qwen2", smaller(Qwen2ForCausalLM, Qwen2Config, **sliding), True)
store("qwen3", smaller(Qwen3ForCausalLM, Qwen3Config, head_dim=6, tie_word_embeddings=True), True)
store("qwen3_sliding", smaller(Qwen3ForCausalLM, Qwen3Config, head_dim=14, attention_bias=True, **sliding), True)
