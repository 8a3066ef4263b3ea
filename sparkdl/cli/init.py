"""``sparkdl init``: a script, a job file and a README to begin with."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from string import Template
from typing import Any

from sparkdl.cli import catalog, templates
from sparkdl.cli.arguments import add_conf, command_error
from sparkdl.cli.clusters import KINDS
from sparkdl.cli.schema import Table, read_table, table_of

_EXAMPLES = """\
examples:
  sparkdl init first
  sparkdl init iris --data iris.parquet --label species
  sparkdl init homes --data homes.csv --label price --features rooms,area --drop-nulls
  sparkdl init rides --data s3://lake/rides --label fare --in-place
  sparkdl init rides --table lake.rides --label fare --conf spark.sql.catalogImplementation=hive
  sparkdl init jobs --cluster yarn --data hdfs:///tables/homes --label price

Without --data or --table the script makes up rows, so that it runs at once. Files that exist are left alone.
For --table a Spark session is started, with --master and --conf if they are given.
"""
_LINE = 110


def register(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "init",
        help="write a script, a job file and a README to begin with",
        description="Write train.py, job.toml and README.md to a folder.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", nargs="?", type=Path, default=Path(), help="where to (here)")
    parser.add_argument("--cluster", choices=KINDS, default="local", help="what it is to run on (local)")
    parser.add_argument("--master", help="the cluster's address, for standalone and kubernetes")
    parser.add_argument("--data", metavar="FILE", help="file or folder to learn from: Parquet or CSV")
    parser.add_argument("--table", metavar="NAME", help="table to learn from, by the name that Spark knows")
    add_conf(parser, help="a Spark conf, such as those of a table's catalog; job.toml gets it, too")
    parser.add_argument("--label", metavar="COLUMN", help="column to predict")
    parser.add_argument(
        "--features", metavar="A,B", help="columns to learn from (all others, but lists and bytes)"
    )
    parser.add_argument("--task", choices=("classification", "regression"), help="what to predict")
    parser.add_argument("--drop-nulls", action="store_true", help="leave out rows that have nulls")
    parser.add_argument(
        "--in-place", action="store_true", help="train on the Parquet files where they lie, on numbers alone"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the files and say what comes next."""
    table = _table(args)
    conf = dict(args.conf)
    files = starter(table, args.cluster, args.master, nulls=args.drop_nulls, conf=conf)
    there = [name for name in files if (args.folder / name).exists()]
    if there:
        raise command_error(
            f"{args.folder}: {', '.join(there)} {'is' if len(there) == 1 else 'are'} there already: choose "
            "another folder, or move them away"
        )
    args.folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (args.folder / name).write_text(text, encoding="utf-8")
    if table is not None:
        classes = f" ({', '.join(table.classes[:5])}{', ...' if len(table.classes) > 5 else ''})"
        features = ", ".join(table.features)
        print(_line(f"{table.task} of {table.label}{classes if table.classes else ''} by {features}"))
        if table.csv is not None:
            print(
                _line(f"columns: {', '.join(f'{name} {kind}' for name, kind in table.csv.columns.items())}")
            )
        if table.note:
            print(_line(f"note: {table.note}"))
        for name, why in table.left_out:
            print(_line(f"left out: {name}, {why}"))
    print(f"wrote {', '.join(str(args.folder / name) for name in files)}; next:")
    if args.folder != Path():
        print(f"  cd {shlex.quote(str(args.folder))}")
    print("  sparkdl submit --conf-file job.toml")
    return 0


def _table(args: argparse.Namespace) -> Table | None:
    sources = [name for name in ("data", "table") if getattr(args, name) is not None]
    if not sources:
        for name in ("label", "features", "task", "drop_nulls"):
            if getattr(args, name):
                option = name.replace("_", "-")
                raise command_error(
                    f"--{option} needs --data, a file or folder of Parquet or CSV, or --table"
                )
        if args.in_place:
            raise command_error("--in-place needs --data: a file or folder of Parquet")
        return None
    if len(sources) == 2:
        raise command_error("--data names files, and --table a table that Spark knows: expected one of them")
    if args.table is not None and args.in_place:
        raise command_error(
            f"--in-place reads Parquet files, and --table {args.table!r} is a table: give the folder of its "
            "files by --data, or go without --in-place"
        )
    if args.label is None:
        raise command_error(f"--{sources[0]} needs --label: the column to predict")
    features = [name.strip() for name in args.features.split(",")] if args.features is not None else None
    chosen = args.label, features, args.task
    if args.table is None:
        return read_table(args.data, *chosen, nulls=args.drop_nulls, in_place=args.in_place)
    with catalog.opened(args.table, args.master, dict(args.conf)) as rows:
        return replace(table_of(rows, *chosen, nulls=args.drop_nulls), named=True)


def starter(
    table: Table | None,
    cluster: str,
    master: str | None,
    *,
    nulls: bool = False,
    conf: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the files by name; ``table`` is what to learn from, ``None`` for rows that the script makes up.

    ``master`` is the cluster's address, an example of one by default; ``nulls`` leaves out rows with nulls.
    """
    master = master or templates.MASTERS.get(cluster, "local[*]" if cluster == "local" else cluster)
    title = "Train a classifier of made-up points"
    if table is not None:
        title = f"Predict {table.label} from {table.path if table.named else Path(table.path).name}"
    notes = ""
    if table is not None and not table.named and cluster != "local" and "://" not in table.path:
        notes = (
            f"\n\n`{_line(table.path)}` is a path of this machine: on a cluster, all machines must see it "
            "there, or `DATA` in `train.py` names a store that they reach, such as `hdfs://` or `s3a://`."
        )
    quoted = f"'{master}'" if "'" not in master else shlex.quote(master)
    values = {"title": _line(title), "cluster": cluster, "master": _line(quoted), "notes": notes}
    if table is not None and table.in_place:
        template, filled = templates.IN_PLACE, _in_place(table, nulls)
    else:
        template, filled = templates.SCRIPT, _script(table, nulls)
    filled |= {"title": f"{_escaped(title)}.", "begin": templates.BEGIN}
    job = Template(templates.JOBS[cluster]).safe_substitute(master=_toml(master))
    return {
        "train.py": template.substitute(filled),
        "job.toml": _with_confs(job, conf or {}),
        "README.md": templates.README.substitute(values),
    }


def _script(table: Table | None, nulls: bool) -> dict[str, str]:
    """Return the values for the script's template."""
    found = table or Table("", "place", "classification", ("inside", "outside"), ("x", "y"), (), rows=4000)
    constants = [] if table is None else [f"DATA = {_literal(found.path)}"]
    if found.csv is not None:
        entries = (f"    {_literal(name)}: {_literal(kind)},\n" for name, kind in found.csv.columns.items())
        constants += [f"COLUMNS = {{\n{''.join(entries)}}}", f"SEPARATOR = {_literal(found.csv.separator)}"]
    constants += [f"LABEL = {_literal(found.label)}", f"FEATURES = {_listed(found.features)}"]
    classes = found.task == "classification"
    read = templates.INVENT
    if table is not None:
        parts = {"label_type": "string" if classes else "double"}
        parts["drop"] = templates.DROP if nulls else ""
        parts["what"] = ": those without nulls" if nulls else ""
        parts["rows"] = "spark.table(DATA)" if table.named else "spark.read.parquet(DATA)"
        read = (templates.READ if table.csv is None else templates.READ_CSV).substitute(parts)
    typed = found.csv is not None
    return {
        "types": "\nfrom pyspark.sql.types import StructType" if typed else "",
        "spark_ml": "from pyspark.ml.evaluation import BinaryClassificationEvaluator\n" if classes else "",
        "model": "TorchClassificationModel" if classes else "TorchRegressionModel",
        "constants": "\n".join(constants),
        "read": read,
        "estimator": "TorchClassifier" if classes else "TorchRegressor",
        "score": templates.SCORE_CLASSES if classes else templates.SCORE_NUMBERS,
    }


def _in_place(table: Table, nulls: bool) -> dict[str, str]:
    """Return the values for the template of a script whose rows stay in their files."""
    constants = [f"DATA = {_literal(table.path)}"]
    constants += [f"LABEL = {_literal(table.label)}", f"FEATURES = {_listed(table.features)}"]
    found = {"reduce": "", "and_": "", "arrow": "", "filter": "", "given": ""}
    if nulls:
        found = {
            "reduce": ", reduce",
            "and_": "\nfrom operator import and_",
            "arrow": "import pyarrow.compute as pc\n",
            "filter": "    known = reduce(and_, (pc.field(n).is_valid() for n in [*FEATURES, LABEL]))\n",
            "given": ", filter=known",
        }
    if table.scale is not None:
        mean, deviation = table.scale
        constants += [f"MEAN, DEVIATION = {mean!r}, {deviation!r}  # of LABEL: the network begins there"]
        answer = "MEAN + DEVIATION * self.layers(x).squeeze(1)"
        parts = {"column": "Dataset", "outputs": "1", "answer": answer, "label": "LABEL", "kind": ""}
        parts |= {"metric": "MeanAbsoluteError", "arguments": "", "score": "mean_absolute_error"}
        parts["loss"] = "HuberLoss"
    else:
        constants.append(f"CLASSES = {len(table.classes)}")
        parts = {"column": "Column, Dataset", "outputs": "CLASSES", "answer": "self.layers(x)"}
        parts |= {"label": "classes", "kind": ".classification", "loss": "CrossEntropyLoss"}
        parts |= {"metric": "MulticlassAccuracy", "score": "accuracy"}
        parts["arguments"] = 'CLASSES, average="micro"'
        found["filter"] += '    classes = Column(LABEL, dtype="int64")\n'
    return found | parts | {"constants": "\n".join(constants)}


def _with_confs(job: str, conf: Mapping[str, str]) -> str:
    """Return a job file, whose last table is that of confs, with these in place of its own of such names."""
    lines = {f"{_toml(name)} = ": f"{_toml(value)}\n" for name, value in conf.items()}
    own = [line for line in job.splitlines(keepends=True) if not line.startswith(tuple(lines))]
    return "".join(own) + "".join(map("".join, lines.items()))


def _literal(text: str) -> str:
    return f'"{_escaped(text)}"'


def _escaped(text: str) -> str:
    """Return a text as it stands inside of quotes in Python: no file or column name becomes code."""
    return "".join(_escape(character) for character in text)


def _escape(character: str) -> str:
    if character in '\\"':
        return f"\\{character}"
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")


def _toml(text: str) -> str:
    """Return a text as a TOML string, quotes included."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _line(text: str) -> str:
    """Return a text as it stands in prose: on one line."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def _listed(names: tuple[str, ...]) -> str:
    """Return a list of strings as Python code, on one line if it fits."""
    line = f"[{', '.join(map(_literal, names))}]"
    if len(line) + len("FEATURES = ") <= _LINE:
        return line
    return "[\n" + "".join(f"    {_literal(name)},\n" for name in names) + "]"
