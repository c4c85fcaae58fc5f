"""Compares many small random models of every family with `transformers`: logits of a text, the likeliest continuation, and
what comes of a folder that is trained further. What is not understood must be refused, not computed wrongly.

usage: python tests/parity/compare.py GRADUS LOGITS        (needs torch and transformers)

GRADUS is the command and LOGITS the example `logits`, both built. The exit code is 0 if every model gave what is
expected of it: the same numbers, or a refusal.
"""

import json
import logging
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

logging.getLogger("transformers").setLevel(logging.ERROR)
disable_progress_bar()

TEXT = "once upon a time there was a cat"
NEW_TOKENS = 40
CONTEXT = 80
# Difference of logits, relative to the largest of them.
TOLERANCE = 1e-4
# The likeliest token must be so by more than rounding.
SMALLEST_MARGIN = 1e-3

LLAMA_LIKE = dict(
    hidden_size=24,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=30,
    max_position_embeddings=CONTEXT,
)
SIZES = {
    "gpt2": dict(n_embd=24, n_layer=2, n_head=3, n_positions=CONTEXT),
    "llama": LLAMA_LIKE,
    "mistral": LLAMA_LIKE | dict(sliding_window=7),
    "qwen2": LLAMA_LIKE,
    "qwen3": LLAMA_LIKE | dict(head_dim=10),
}
SCALED = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)
SCALED |= dict(original_max_position_embeddings=32)
SLIDING = dict(use_sliding_window=True, sliding_window=6, max_window_layers=1)


def variants():
    """(name, family, choices of the model, keys put into its config.json or taken out if None, whether it is refused)"""
    for family in SIZES:
        yield f"{family}", family, {}, {}, False
        for tied in [True, False]:
            yield f"{family} tied {tied}", family, dict(tie_word_embeddings=tied), {}, False
        yield f"{family} one layer", family, {"n_layer" if family == "gpt2" else "num_hidden_layers": 1}, {}, False
        yield f"{family} unknown key", family, {}, dict(logit_scale=0.5), True
        yield f"{family} ends at a list", family, {}, dict(eos_token_id=[256, 3]), False
        yield f"{family} quantized", family, {}, dict(quantization_config=dict(load_in_8bit=True)), True
    rotary = [family for family in SIZES if family != "gpt2"]
    for family in rotary:
        for heads, kv_heads in [(1, 1), (2, 1), (4, 4), (6, 3)]:
            choices = dict(num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=8)
            yield f"{family} {heads} heads on {kv_heads}", family, choices, {}, False
        yield f"{family} epsilon", family, dict(rms_norm_eps=1e-2), {}, False
        yield f"{family} no epsilon", family, dict(rms_norm_eps=1e-6), dict(rms_norm_eps=None), False
        yield f"{family} theta", family, dict(rope_parameters=dict(rope_type="default", rope_theta=300.0)), {}, False
        for factor, low, high, original in [(8, 1, 4, 32), (2, 0.5, 2, 16), (32, 1, 4, 64), (1, 1, 4, 40), (4, 2, 9, 79)]:
            numbers = dict(factor=float(factor), low_freq_factor=float(low), high_freq_factor=float(high))
            scaling = dict(rope_type="llama3", rope_theta=500.0, original_max_position_embeddings=original) | numbers
            yield f"{family} llama3 {factor},{low},{high},{original}", family, dict(rope_parameters=scaling), {}, False
        older = dict(rope_parameters=None, rope_theta=500.0, rope_scaling=SCALED)
        yield f"{family} llama3 as before", family, {}, older, False
        nested = dict(rope_parameters=dict(full_attention=SCALED))
        yield f"{family} scaled by layer type", family, {}, nested, True
        for kind in ["linear", "dynamic", "yarn", "longrope", "proportional"]:
            scaling = dict(rope_type=kind, rope_theta=500.0, factor=4.0)
            yield f"{family} {kind}", family, {}, dict(rope_parameters=scaling), True
        yield f"{family} half turned", family, {}, dict(partial_rotary_factor=0.5), True
        yield f"{family} gelu", family, {}, dict(hidden_act="gelu"), True
        yield f"{family} biases it has not", family, {}, dict(mlp_bias=True), True
    for window in [1, 2, 5, 16, 31, 32, 33, 64, 500, None]:
        yield f"mistral window {window}", "mistral", dict(sliding_window=window), {}, False
        sliding = SLIDING | dict(sliding_window=window)
        for family in ["qwen2", "qwen3"]:
            yield f"{family} window {window}", family, sliding, {}, False
            yield f"{family} unused window {window}", family, sliding | dict(use_sliding_window=False), {}, False
    for family in ["qwen2", "qwen3"]:
        for layers in [0, 1, 2, 3, 28]:
            yield f"{family} window after {layers}", family, SLIDING | dict(max_window_layers=layers), {}, False
            unstated = dict(layer_types=None)
            yield f"{family} untyped, after {layers}", family, SLIDING | dict(max_window_layers=layers), unstated, False
        mixed = ["sliding_attention", "full_attention", "sliding_attention"]
        yield f"{family} mixed layers", family, SLIDING | dict(layer_types=mixed), {}, True
        yield f"{family} mrope", family, {}, dict(use_mrope=True), True
    yield "mistral layer types", "mistral", {}, dict(layer_types=["full_attention"] * 3), True
    yield "llama sliding", "llama", {}, dict(sliding_window=6), True
    for choices in [dict(attention_bias=True), dict(mlp_bias=True), dict(attention_bias=True, mlp_bias=True)]:
        yield f"llama {' '.join(choices)}", "llama", choices, {}, False
    yield "qwen3 attention_bias", "qwen3", dict(attention_bias=True), {}, False
    yield "qwen3 all", "qwen3", SLIDING | dict(attention_bias=True, rope_parameters=SCALED | dict(rope_theta=99.0)), {}, False
    yield "mistral odd width", "mistral", dict(hidden_size=23, head_dim=6), {}, False
    yield "qwen3 odd heads", "qwen3", {}, dict(head_dim=7), True
    yield "qwen2 heads of their own", "qwen2", {}, dict(head_dim=10), True
    for choices in [dict(activation_function="gelu"), dict(scale_attn_by_inverse_layer_idx=True)]:
        yield f"gpt2 {' '.join(choices)}", "gpt2", choices, {}, True
    yield "gpt2 inner", "gpt2", dict(n_inner=50), {}, False


def tokenizer():
    """Bytes, and an end of text."""
    vocabulary = {letter: id for id, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    made = Tokenizer(models.BPE(vocabulary | {"<|endoftext|>": 256}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<|endoftext|>"])
    return made


def make(folder, family, choices, changes):
    config = AutoConfig.for_model(family, **(SIZES[family] | dict(vocab_size=257, eos_token_id=256) | choices))
    model = AutoModelForCausalLM.from_config(config)
    torch.manual_seed(len(folder.name))
    for name, weight in model.named_parameters():
        with torch.no_grad():
            noise = torch.randn_like(weight)
            weight.copy_(1 + 0.2 * noise if weight.dim() == 1 and name.endswith("weight") else 0.3 * noise)
    model.save_pretrained(folder)
    tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(dict(eos_token="<|endoftext|>")))
    path = folder / "config.json"
    settings = json.loads(path.read_text()) | changes
    for key, value in changes.items():
        if value is None:
            del settings[key]
    path.write_text(json.dumps(settings))


def run(*command):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True)


def loaded(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def difference(model, printed):
    """The largest difference of logits, relative to the largest of them."""
    ours = json.loads(printed)
    with torch.no_grad():
        logits = model(torch.tensor([ours["ids"]]), use_cache=False).logits[0]
    return ((logits - torch.tensor(ours["logits"])).abs().max() / logits.abs().max()).item()


def continuation(model, ids):
    """The likeliest bytes, as long as the choice is clear and they are text."""
    new = []
    while len(new) < NEW_TOKENS:
        with torch.no_grad():
            logits = model(torch.tensor([ids + new]), use_cache=False).logits[0, -1]
        best, second = logits.topk(2).values.tolist()
        token = logits.argmax().item()
        if best - second < SMALLEST_MARGIN or token in [3, 256]:
            break
        new.append(token)
    return new


def compare(gradus, logits, folder):
    """(largest difference, tokens that were continued), or a sentence of what is wrong."""
    ours = run(logits, folder, TEXT)
    if ours.returncode != 0:
        return "refused: " + ours.stderr.strip().replace(str(folder), "")
    model = loaded(folder)
    largest = difference(model, ours.stdout)
    if not largest <= TOLERANCE:
        return f"logits differ by {largest:.1e} of the largest"
    expected = continuation(model, json.loads(ours.stdout)["ids"])
    count = len(expected)
    if count:
        options = ["--prompt", TEXT, "--temperature", "0", "--max-tokens", count]
        written = run(gradus, "generate", folder, *options).stdout
        text = tokenizer().decode(expected)
        # Bytes that are no text are written in their own way.
        length = next((place for place, letter in enumerate(text) if letter == "\ufffd"), len(text))
        if text[:length] not in written:
            return f"continued as {written!r} instead of {text!r}"
    return largest, count


def trained_further(gradus, logits, folder, scratch):
    """What is wrong with the folder of a model after a step, or its largest difference of logits."""
    corpus = scratch / "corpus.txt"
    corpus.write_text(f"{TEXT} and a dog on a mat .\n" * 100)
    out = scratch / f"{folder.name} further"
    options = ["--steps", 1, "--batch", 2, "--sequence", 16, "--learning-rate", "1e-4", "--out", out, "--quiet"]
    trained = run(gradus, "train", corpus, "--init", folder, *options)
    if trained.returncode != 0:
        return "not trained: " + trained.stderr.strip()
    before, after = [json.loads((path / "config.json").read_text()) for path in [folder, out / "model"]]
    changed = [key for key in before if before[key] != after.get(key)]
    if changed:
        return f"the keys {changed} have changed"
    return difference(loaded(out / "model"), run(logits, out / "model", TEXT).stdout)


def main(gradus, logits):
    wrong, same, refused, continued, worst = 0, 0, 0, 0, (0.0, "")
    with tempfile.TemporaryDirectory() as scratch:
        for number, (name, family, choices, changes, is_refused) in enumerate(variants()):
            folder = Path(scratch) / f"{number:03}"
            make(folder, family, choices, changes)
            result = compare(gradus, logits, folder)
            if not isinstance(result, str) and number % 9 == 0:
                further = trained_further(gradus, logits, folder, Path(scratch))
                is_fine = not isinstance(further, str) and further <= TOLERANCE
                result = result if is_fine else f"trained further: {further}"
            fits = isinstance(result, str) and result.startswith("refused") if is_refused else not isinstance(result, str)
            if not fits:
                wrong += 1
                print(f"WRONG {name}: {result}")
            elif is_refused:
                refused += 1
                print(f"refused {name}: {result[9:]}")
            else:
                same, continued, worst = same + 1, continued + result[1], max(worst, (result[0], name))
    print(f"{same} the same with {continued} tokens continued, {refused} refused, {wrong} wrong")
    print(f"largest difference of logits: {worst[0]:.1e} of the largest, in {worst[1]}")
    return 1 if wrong else 0


if len(sys.argv) != 3:
    sys.exit(__doc__)
sys.exit(main(*sys.argv[1:]))
