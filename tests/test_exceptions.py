import inspect
import pickle
import re

import pytest

from sparkdl import exceptions
from sparkdl.exceptions import ConfigError, DataError, ModelError, NonFiniteError, SparkdlError, TaskError

CLASSES = [c for _, c in inspect.getmembers(exceptions, inspect.isclass) if issubclass(c, Exception)]


def test_the_tree_in_the_docstring_lists_exactly_the_classes():
    assert set(re.findall(r"\b[A-Z]\w+Error\b", exceptions.__doc__)) == {c.__name__ for c in CLASSES}


@pytest.mark.parametrize("cls", CLASSES)
def test_all_derive_from_the_base_class_and_survive_pickle(cls):
    assert issubclass(cls, SparkdlError)
    copy = pickle.loads(pickle.dumps(cls("what and why")))
    assert (type(copy), str(copy)) == (cls, "what and why")


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
