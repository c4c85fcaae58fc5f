"""Checks that a model folder written by gradus opens in `transformers` and gives the same tokens and logits there.

usage: python tests/parity/check_trained.py FOLDER TEXT_FILE [LOGITS]        (needs torch and transformers)

FOLDER is the `model/` of a run. The beginning of TEXT_FILE, no more than the model's context takes, is given to both.
LOGITS is the program that prints our tokens and logits; by default it is run as `cargo run --example logits`.
The exit code is 0 if all is the same.
"""

import json
import logging
import subprocess
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

# Difference of logits, relative to the largest of them.
TOLERANCE = 1e-4


class Warnings(logging.Handler):
    """Keeps what transformers warns of: a folder that needs no excuses gives none."""

    def __init__(self):
        super().__init__(level=logging.WARNING)
        self.messages = []

    def emit(self, record):
        self.messages.append(record.getMessage())


def load(folder):
    warnings = Warnings()
    logging.getLogger("transformers").addHandler(warnings)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model, report = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    problems = [f"transformers warns: {message}" for message in warnings.messages]
    for kind in ["missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"]:
        if report.get(kind):
            problems.append(f"{kind}: {sorted(report[kind])}")
    return tokenizer, model.eval(), problems


def beginning(text, tokenizer, context):
    """Text that the context takes, found by halving: the first tokens of a text need not be those of its beginning."""
    text = text[: 8 * context]
    while len(tokenizer.encode(text, add_special_tokens=False)) > context:
        text = text[: len(text) // 2]
    return text


def main(folder, text_file, *program):
    tokenizer, model, problems = load(folder)
    text = beginning(Path(text_file).read_text(), tokenizer, model.config.max_position_embeddings)
    program = program or ["cargo", "run", "--quiet", "--example", "logits", "--"]
    ours = json.loads(subprocess.run([*program, folder, text], check=True, capture_output=True, text=True).stdout)

    ids = tokenizer.encode(text, add_special_tokens=False)
    if ids != ours["ids"]:
        problems.append(f"other tokens: {ids} in transformers, {ours['ids']} here")
    if tokenizer.decode(ids) != text:
        problems.append("the tokens are not decoded to the text")
    with torch.no_grad():
        logits = model(torch.tensor([ours["ids"]])).logits[0]
    largest = logits.abs().max().item()
    difference = (logits - torch.tensor(ours["logits"])).abs().max().item()
    if not difference <= TOLERANCE * largest:
        problems.append("the logits differ")
    print(
        f"{type(model).__name__}: {len(ids)} tokens, {logits.shape[1]} logits each up to {largest:.4f}; "
        f"largest difference {difference:.2e}, {difference / largest:.2e} of the largest"
    )
    for problem in problems:
        print(f"problem: {problem}")
    return 1 if problems else 0


if len(sys.argv) < 3:
    sys.exit(__doc__)
sys.exit(main(*sys.argv[1:]))
