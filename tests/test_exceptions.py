import ast
import inspect
import pickle
import re
from pathlib import Path

import pytest

from sparkdl import exceptions
from sparkdl._spark.errors import task_error
from sparkdl.exceptions import (
    CheckpointError,
    ConfigError,
    DataError,
    ModelError,
    NonFiniteError,
    SparkdlError,
    TaskError,
)

ROOT = Path(__file__).parents[1]
CLASSES = [c for _, c in inspect.getmembers(exceptions, inspect.isclass) if issubclass(c, SparkdlError)]
CODES = [(cls, code) for cls in CLASSES for code in cls.codes]


def test_the_tree_in_the_docstring_lists_exactly_the_classes():
    assert set(re.findall(r"\b[A-Z]\w+Error\b", exceptions.__doc__)) == {c.__name__ for c in CLASSES}


@pytest.mark.parametrize(("cls", "code"), CODES)
def test_all_derive_from_the_base_class_and_survive_pickle(cls, code):
    assert issubclass(cls, SparkdlError)
    copy = pickle.loads(pickle.dumps(cls("what and why", code=code)))
    assert (type(copy), str(copy)) == (cls, f"what and why [docs/troubleshooting.md#{code}]")
    assert copy.code == code


def test_no_two_classes_share_a_code():
    assert len({code for _, code in CODES}) == len(CODES)


def test_every_code_has_a_section_and_every_section_a_code():
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    sections = re.findall(r"^### ([a-z-]+)$", page, re.MULTILINE)
    assert sorted(sections) == sorted(code for _, code in CODES)


def test_the_example_on_the_page_runs(capsys):
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    exec(re.search(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[1], {})
    message, code = capsys.readouterr().out.splitlines()
    assert message.endswith(f"[docs/troubleshooting.md#{code}]")


def test_every_code_is_raised_somewhere():
    used = {cls.codes[0] for cls in CLASSES}
    for path in (ROOT / "sparkdl").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and path.stem != "exceptions":
                used.add(node.value)
    assert {code for _, code in CODES} <= used


def test_a_code_belongs_to_its_class():
    with pytest.raises(ValueError, match="ConfigError has no code 'data-null'"):
        ConfigError("x", code="data-null")


@pytest.mark.parametrize(
    ("outer", "code"), [(DataError, "data-null"), (ModelError, "model"), (CheckpointError, "checkpoint")]
)
def test_an_error_that_quotes_another_has_one_link(outer, code):
    error = outer(f"column 'a': {DataError('null', code='data-null')}; skip such rows")
    assert str(error) == f"column 'a': null; skip such rows [docs/troubleshooting.md#{code}]"


def test_the_code_comes_back_from_a_task():
    raised = DataError("column 'age', row 17: null", code="data-null")
    report = (
        'Traceback (most recent call last):\n  File "/app.py", line 3, in f\n    g()\n'
        f"sparkdl.exceptions.DataError: {raised}\n\tat org.apache.spark.Worker.run(Worker.scala:1)"
    )
    error = task_error(RuntimeError(report), "training")
    assert (type(error), error.code) == (DataError, "data-null")
    assert str(error).count("docs/troubleshooting.md") == 1
    assert str(error).startswith("column 'age', row 17: null\n")


@pytest.mark.parametrize(
    ("report", "code"),
    [
        ('java.io.IOException: Cannot run program "./environment/bin/python": error=2', "task-environment"),
        ("SparkException: \nError from python worker:\n  No module named 'sparkdl'", "task-environment"),
        ("Traceback (most recent call last):\nModuleNotFoundError: No module named 'x'", "task-environment"),
        ("Traceback (most recent call last):\nZeroDivisionError: division by zero", "task-python"),
        ("org.apache.spark.SparkException: lost", "task"),
        ("Lost task 0.3: SparkException: Python worker exited unexpectedly (crashed)", "task-memory"),
        (
            "ExecutorLostFailure: Container killed on request. Exit code is 143 for exceeding memory limits",
            "task-memory",
        ),
    ],
)
def test_what_failed_in_a_task_has_a_code(report, code):
    error = task_error(RuntimeError(report), "training")
    assert (type(error), error.code) == (TaskError, code)


@pytest.mark.parametrize("cls", [ConfigError, DataError])
def test_bad_values_are_also_value_errors(cls):
    assert issubclass(cls, ValueError)


def test_non_finite_is_a_model_error_without_result_outside_of_a_fit():
    assert issubclass(NonFiniteError, ModelError)
    assert NonFiniteError("x").result is None


def test_task_error_keeps_the_remote_traceback():
    assert TaskError("x").remote_traceback == ""
    copy = pickle.loads(pickle.dumps(TaskError("x", "Traceback ...")))
    assert copy.remote_traceback == "Traceback ..."


def test_a_warning_has_a_link_and_survives_pickle():
    copy = pickle.loads(pickle.dumps(exceptions.SparkdlWarning("what and why", "model-output")))
    assert (str(copy), copy.code) == ("what and why [docs/troubleshooting.md#model-output]", "model-output")


@pytest.mark.parametrize("value", [True, False, 0, 1.0, "1", None, 1 << 80])
def test_options_that_are_integers_or_numbers(value):
    """Booleans are none, though Python has them as integers."""
    integer, number = value == 1 << 80, type(value) in (int, float)
    assert exceptions.is_integer(value, 1) == integer
    assert exceptions.is_number(value) == number
    if integer:
        assert exceptions.integer_option("Pad", "multiple", value, 1) == value
    else:
        with pytest.raises(ConfigError, match=r"Pad\(multiple=.*\): expected an integer of at least 1"):
            exceptions.integer_option("Pad", "multiple", value, 1)
