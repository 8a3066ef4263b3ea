"""The same four tasks with sparkdl and its peers: runs the programs beside this file and counts their lines.

    python benchmarks/four_tasks/run.py --folder /tmp/four_tasks
    python benchmarks/four_tasks/run.py --folder /tmp/four_tasks --only sparkdl

The tasks: a table with strings and nulls as it is; the same with a module of one's own; a BERT of Hugging
Face saved without a pickle; a torch dataset of texts of different lengths with its collate function. Modules
and dataset are the same for all (``net.py``, ``words.py``). The data is made here. Prints a row for each
program: lines without blank ones, comments and docstrings; accuracy; seconds. The peers need ``lightning``,
``accelerate`` and ``ray[train]``.
"""

from __future__ import annotations

import argparse
import ast
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd

HERE = Path(__file__).parent
PROGRAMS = sorted(path.stem for path in HERE.glob("*_*.py"))


def lines_of(path: Path) -> int:
    """Count the lines of a program that are neither blank nor comment nor docstring."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    first = tree.body[0].end_lineno or 0 if ast.get_docstring(tree) else 0
    left = text.splitlines()[first:]
    return sum(bool(line.strip()) and not line.strip().startswith("#") for line in left)


def make_table(path: Path) -> None:
    draw = np.random.default_rng(0)
    n = 20_000
    table = pd.DataFrame(
        {
            "age": draw.integers(18, 80, n).astype(float),
            "job": draw.choice(["cook", "nurse", "clerk", "driver", "teacher"], n),
            "city": draw.choice([f"city{i}" for i in range(200)], n),
            "income": draw.gamma(2, 20_000, n),
            "member": draw.random(n) < 0.4,
        }
    )
    third = table.city.str[4:].astype(int) % 3 == 0
    score = (
        table.job.isin(["cook", "nurse"]) * 1.5 + third * 1.5 + (table.age > 50) + table.income / 60_000 - 2.4
    )
    table["bought"] = np.where(score + draw.normal(0, 0.4, n) > 0, "yes", "no")
    for column, every in (("age", 17), ("job", 13), ("income", 11)):
        table.loc[::every, column] = None
    table.to_parquet(path)


def make_texts(path: Path, tokenizer: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    rows = [
        (f"{kind} prices {way} in {month}", way)
        for kind in ("oil", "grain", "gold", "cocoa", "tin", "wool", "tea", "lead")
        for way in ("rose", "fell", "held steady")
        for month in ("May", "the spring", "the third quarter", "London", "June")
    ]
    pd.DataFrame(rows, columns=["text", "way"]).to_parquet(path)
    made = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    made.train_from_iterator([text for text, _ in rows], trainers.WordLevelTrainer(special_tokens=special))
    ends = [("[CLS]", 2), ("[SEP]", 3)]
    made.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=ends)
    PreTrainedTokenizerFast(tokenizer_object=made, pad_token="[PAD]").save_pretrained(tokenizer)


def main() -> None:
    parser = argparse.ArgumentParser(description="Run four tasks with sparkdl and its peers.")
    parser.add_argument("--folder", type=Path, required=True, help="for data and results")
    parser.add_argument("--only", default="", help="what the names of the programs begin with")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    table, texts, tokenizer = (args.folder / name for name in ("table.parquet", "texts.parquet", "tokenizer"))
    make_table(table)
    make_texts(texts, tokenizer)
    given = {
        "table": [table, args.folder / "of_table"],
        "module": [table, args.folder / "of_module"],
        "bert": [texts, tokenizer, args.folder / "of_bert"],
        "dataset": [],
    }
    print("| program | lines | result | seconds |", flush=True)
    for name in PROGRAMS:
        if not name.startswith(args.only):
            continue
        work = args.folder / name
        work.mkdir(exist_ok=True)
        begin = time.perf_counter()
        command = [sys.executable, str(HERE / f"{name}.py"), *map(str, given[name.partition("_")[2]])]
        own = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])  # net.py and words.py
        environment = {**os.environ, "PYTHONPATH": own.rstrip(os.pathsep)}
        done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False, env=environment)
        (work / "errors.txt").write_text(done.stdout + done.stderr, encoding="utf-8")
        said = [line for line in done.stdout.splitlines() if line.startswith("accuracy=")]
        result = said[-1] if said else f"failed, see {work}/errors.txt"
        seconds = time.perf_counter() - begin
        print(f"| {name} | {lines_of(HERE / f'{name}.py')} | {result} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
