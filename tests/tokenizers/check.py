"""Checks that the tokenizers we write give the same ids and texts in `tokenizers` and `transformers`.

usage: TOKENIZER_FOLDERS=/tmp/t cargo test -p gradus-train --test tokenizer -- --ignored write_folders_to_check
       python tests/tokenizers/check.py [--store tests/fixtures] /tmp/t/*    (needs tokenizers and transformers)

Each folder holds tokenizer.json, tokenizer_config.json, text.txt and ids.json (the ids that we gave to the text).
--store writes tokenizer_FOLDER.json (tokenizer, text, ids and decoded text by the Python library) for the Rust test.
"""

import argparse
import json
import shutil
import tempfile
from pathlib import Path

import tokenizers
import transformers


def opened_by_transformers(folder):
    """As a user opens a model's folder: the model's kind is known and must not decide how text is cut."""
    for model in ("gpt2", "llama"):
        with tempfile.TemporaryDirectory() as copy:
            for name in ("tokenizer.json", "tokenizer_config.json"):
                shutil.copy(folder / name, copy)
            (Path(copy) / "config.json").write_text(json.dumps({"model_type": model}))
            yield f"AutoTokenizer, {model}", transformers.AutoTokenizer.from_pretrained(copy)
    yield "PreTrainedTokenizerFast", transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))


def check(folder):
    text = (folder / "text.txt").read_bytes().decode()
    ids = json.loads((folder / "ids.json").read_text())
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert library.encode(text, add_special_tokens=False).ids == ids, f"{folder}: tokenizers gives other ids"
    decoded = library.decode(ids, skip_special_tokens=False)
    assert decoded == text, f"{folder}: tokenizers decodes to another text"
    for name, opened in opened_by_transformers(folder):
        assert opened.encode(text, add_special_tokens=False) == ids, f"{folder}: {name} gives other ids"
        assert opened.decode(ids, clean_up_tokenization_spaces=False) == text, f"{folder}: {name}: another text"
    print(f"{folder}: {len(text.encode())} bytes, {len(ids)} ids, vocabulary {library.get_vocab_size()}: the same")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    return {"text": text, "ids": ids, "decoded": decoded, "tokenizer": tokenizer}


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--store", type=Path)
    arguments = parser.parse_args()
    for folder in arguments.folders:
        fixture = check(folder)
        if arguments.store:
            path = arguments.store / f"tokenizer_{folder.name}.json"
            path.write_text(json.dumps(fixture, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
