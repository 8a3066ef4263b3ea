"""What a job file asks of a cluster: cores, memory, GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.scripts import script_folder

from sparkdl.access.classic import task_resource_amounts
from sparkdl.cli.submit import command as submit
from sparkdl.cli.submit.job import Job, read_job_file
from sparkdl.exceptions import ConfigError

TABLE = """
[resources]
executors = 4
cores = 8
memory = "2g"
gpus = 2

[resources.task]
cores = 4
gpus = 0.5
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return script_folder(tmp_path, monkeypatch)


def confs(text: str, master: str, **job: Any) -> dict[str, str]:
    Path("job.toml").write_text(text)
    found = read_job_file(Path("job.toml")) | {"master": master, "script": "train.py"}
    return submit.plan(Job(**(found | job)), Path("there")).confs


def test_amounts_are_the_confs_of_the_master() -> None:
    standalone = confs(TABLE, "spark://head:7077")
    assert standalone["spark.cores.max"] == "32"
    assert "spark.executor.instances" not in standalone
    extra = TABLE.replace("gpus = 2", 'gpus = 2\ngpu-discovery = "/opt/gpus.sh"\noverhead = "6g"')
    yarn = confs(extra, "yarn")
    assert yarn["spark.executor.instances"] == "4"
    assert yarn["spark.executor.cores"] == "8"
    assert yarn["spark.executor.memory"] == "2g"
    assert yarn["spark.executor.memoryOverhead"] == "6g"
    assert yarn["spark.executor.resource.gpu.amount"] == "2"
    assert yarn["spark.executor.resource.gpu.discoveryScript"] == "/opt/gpus.sh"
    assert "spark.executor.resource.gpu.vendor" not in yarn
    assert yarn["spark.task.cpus"] == "4"
    pod = confs(extra + '\n[resources.driver]\nmemory = "3g"\noverhead = "1g"\ncores = 2', "k8s://https://h")
    assert pod["spark.executor.resource.gpu.vendor"] == "nvidia.com"
    assert (pod["spark.driver.memory"], pod["spark.driver.memoryOverhead"]) == ("3g", "1g")
    # The profile of the stages that train asks for the same share of a GPU.
    assert task_resource_amounts(pod) == {"gpu": 0.5}
    assert confs('[resources.driver]\nmemory = "3g"', "local[2]")["spark.driver.memory"] == "3g"


def test_a_task_has_a_gpu_of_its_own_by_default() -> None:
    found = confs("[resources]\ngpus = 1", "spark://head:7077")
    assert found["spark.task.resource.gpu.amount"] == "1"


def test_the_command_line_wins_and_what_the_site_says_does_not(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "spark-defaults.conf").write_text("spark.executor.memory 9g\nspark.executor.cores 3\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(folder))
    found = confs('[resources]\nmemory = "2g"\nexecutors = 2', "spark://h:1")
    assert found["spark.executor.memory"] == "2g"
    assert found["spark.cores.max"] == "6"
    over = confs('[resources]\nmemory = "2g"', "yarn", conf={"spark.executor.memory": "7g"})
    assert over["spark.executor.memory"] == "7g"


@pytest.mark.parametrize(
    ("text", "master", "problem"),
    [
        ("[resources]\ncoers = 4", "yarn", r"resources.coers is not known; expected executors, cores"),
        ("[resources.task]\nmemory = '1g'", "yarn", r"resources.task.memory is not known"),
        ("[resources.tasks]\ncores = 1", "yarn", r"resources.tasks is not known"),
        ("resources = 3", "yarn", r"resources is a int: expected a table"),
        ("[resources]\ncores = 'four'", "yarn", r"resources.cores is 'four': expected a whole number of at"),
        ("[resources]\ncores = true", "yarn", r"resources.cores is True: expected a whole number"),
        (
            "[resources]\nexecutors = 0",
            "yarn",
            r"resources.executors is 0: expected a whole number of at least 1",
        ),
        ("[resources]\ncores = 1.5", "yarn", r"resources.cores is 1.5: expected a whole"),
        ("[resources]\nmemory = 4", "yarn", r"resources.memory is 4: expected a size such as '4g'"),
        ("[resources]\nmemory = '4 GB'", "yarn", r"resources.memory is '4 GB': expected a size"),
        ("[resources]\ngpus = 1\ntask = {gpus = 0.7}", "yarn", r"task.gpus is 0.7: expected a whole number"),
        (
            "[resources]\ngpus = 1\ntask = {gpus = 2}",
            "yarn",
            r"task.gpus is 2: expected at most resources.gpus, 1",
        ),
        ("[resources]\ngpus = 1\ntask = {gpus = nan}", "yarn", r"task.gpus is nan: expected"),
        (
            "[resources]\ncores = 2\ntask = {cores = 4}",
            "yarn",
            r"task.cores is 4: expected at most resources.cores",
        ),
        ("[resources.task]\ngpus = 1", "yarn", r"task.gpus is given without resources.gpus: expected both"),
        ("[resources]\ngpus = 1", "yarn", r"resources.gpu-discovery is missing; expected the path"),
        ("[resources]\nexecutors = 2", "spark://h:1", r"resources.cores is missing; expected the cores of"),
        ("[resources]\noverhead = '1g'", "spark://h:1", r"resources.overhead .* only YARN and Kubernetes"),
        ("[resources]\ncores = 2", "local[2]", r"resources.cores with --master local\[2\]: expected nothing"),
        ("[resources]\nexecutors = 2", "local-cluster[2,1,1024]", r"says it in the master"),
        (
            "[resources]\ncores = 2\n[conf]\n'spark.executor.cores' = 3",
            "yarn",
            r"resources.cores is 2 and conf spark.executor.cores is '3': expected one of them",
        ),
    ],
)
def test_mistakes_name_key_found_and_expected(text: str, master: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as raised:
        confs(text, master)
    assert raised.value.code == "config-command"
