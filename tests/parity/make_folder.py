"""Makes the model folder that crates/cli/tests/models.rs works with: a tiny Llama in bf16 with random weights, a
tokenizer whose template puts <s> first, special tokens, a chat template and generation settings of its own; and
expected.json: what `transformers` makes of it in f32.

usage: python tests/parity/make_folder.py        (needs torch and transformers; writes to tests/fixtures/llama_folder)
"""

import json
import shutil
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

FOLDER = Path(__file__).parent.parent / "fixtures" / "llama_folder"
SPECIAL = ["<unk>", "<s>", "</s>", "<|im_end|>", "<pad>"]
WORDS = ["once", "upon", "a", "time", "there", "was", "the", "cat", "sat", "on", "mat"]
PROMPTS = ["once upon a time", "the cat", "caf\u00e9 \u2603 once", ""]
TEXT = "once upon a time there was a cat .\nthe cat sat on the mat : caf\u00e9 \u2603 !"
NEW_TOKENS = 40
# Greedy text is compared, so the likeliest token must be so by more than rounding.
SMALLEST_MARGIN = 1e-3


def tokenizer():
    """Byte pairs that fall back to bytes, with a sign for spaces: as Llama's."""
    vocabulary = {token: id for id, token in enumerate(SPECIAL + [f"<0x{byte:02X}>" for byte in range(256)])}
    merges = []
    for word in ["\u2581" + word for word in WORDS]:
        for letter in word:
            vocabulary.setdefault(letter, len(vocabulary))
        for end in range(2, len(word) + 1):
            if word[:end] not in vocabulary:
                vocabulary[word[:end]] = len(vocabulary)
                merges.append((word[: end - 1], word[end - 1]))
    made = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    strip = decoders.Strip(content=" ", left=1, right=0)
    made.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), strip]
    )
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", vocabulary["<s>"])]
    )
    return made


def write(name, value):
    (FOLDER / name).write_text(json.dumps(value, indent=2) + "\n")


def make():
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    made = tokenizer()
    made.save(str(FOLDER / "tokenizer.json"))
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    template = "{% for message in messages %}{{ message['content'] }}<|im_end|>{% endfor %}"
    rest = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 64, "clean_up_tokenization_spaces": False}
    write("tokenizer_config.json", names | {"extra_special_tokens": ["<|im_end|>"]} | rest)
    write("special_tokens_map.json", names | {"extra_special_tokens": ["<|im_end|>"]})
    (FOLDER / "chat_template.jinja").write_text(template)
    config = LlamaConfig(
        vocab_size=made.get_vocab_size() + 3,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=20,
        max_position_embeddings=64,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=4,
    )
    torch.manual_seed(3)
    model = LlamaForCausalLM(config)
    for name, weight in model.named_parameters():
        with torch.no_grad():
            noise = torch.randn_like(weight)
            weight.copy_(1 + 0.2 * noise if weight.dim() == 1 else 0.5 * noise)
    # Words are likelier than bytes, so that texts have both.
    model.lm_head.weight.data[len(SPECIAL) : len(SPECIAL) + 256] *= 0.5
    model.to(torch.bfloat16).save_pretrained(FOLDER)


def greedy(model, ids, stops):
    """The likeliest tokens, of those that the tokenizer knows, up to one of the stops."""
    known = model.config.vocab_size - 3
    new = []
    while len(new) < NEW_TOKENS:
        logits = model(torch.tensor([ids + new])).logits[0, -1, :known]
        best, second = logits.topk(2).values.tolist()
        assert best - second > SMALLEST_MARGIN, "choose another seed"
        token = logits.argmax().item()
        if token in stops:
            break
        new.append(token)
    return new


def expectations():
    model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()
    tokens = AutoTokenizer.from_pretrained(FOLDER)
    # A second end of text that the first prompt's continuation reaches half-way.
    reached = greedy(model, tokens(PROMPTS[0]).input_ids, [])
    stop = next(token for place, token in enumerate(reached) if place >= 12 and token not in reached[:place])
    settings = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "max_length": 64, "repetition_penalty": 1.1}
    write("generation_config.json", {"bos_token_id": 1, "eos_token_id": [2, stop], "pad_token_id": 4} | settings)
    texts = []
    for prompt in PROMPTS:
        ids = tokens(prompt).input_ids
        new = greedy(model, ids, [2, stop])
        before = tokens.decode(ids, skip_special_tokens=True)
        text = tokens.decode(ids + new, skip_special_tokens=True)
        assert text.startswith(before)
        texts.append({"prompt": prompt, "ids": ids, "new": len(new), "text": text[len(before) :]})
        print(f"{prompt!r}: {len(new)} tokens, {text[len(before):]!r}")
    assert texts[0]["new"] < NEW_TOKENS
    ids = torch.tensor([tokens(TEXT).input_ids + [2]])
    with torch.no_grad():
        loss = model(ids, labels=ids).loss.item()
    print(f"loss {loss}")
    write("expected.json", {"texts": texts, "text": TEXT, "loss": loss, "predicted": ids.shape[1] - 1, "stop": stop})


make()
expectations()
