"""The page about several machines: its commands and programs, as far as one machine can."""

from __future__ import annotations

import ast
import re
import shlex
import socket
import subprocess
import sys

import pytest
import yaml
from click import Context
from scripts import ROOT

PAGE = (ROOT / "docs" / "clusters.md").read_text()
FIRST = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)[0].splitlines()


def test_the_options_of_the_page_are_those_of_dask() -> None:
    from distributed.cli.dask_scheduler import main as scheduler
    from distributed.cli.dask_worker import main as worker

    (deployment,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    spec = yaml.safe_load(deployment)["spec"]
    pods = [spec[name]["spec"]["containers"][0]["args"] for name in ("worker", "scheduler")]
    lines = [shlex.split(line.rstrip(" &")) for line in FIRST if line.startswith("dask")] + pods
    assert len(lines) == 5
    for _, command, *arguments in lines:
        made = {"worker": worker, "scheduler": scheduler}[command]
        assert made.make_parser(Context(made)).parse_args(list(arguments))
    ports = spec["scheduler"]["service"]["ports"]
    assert {port["targetPort"] for port in ports} == {
        port["name"] for port in spec["scheduler"]["spec"]["containers"][0]["ports"]
    }


def test_the_programs_of_the_page_give_one_thread_to_a_worker() -> None:
    programs = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    made = [ast.unparse(ast.parse(each)) for each in programs]
    assert "'nthreads': 1" in made[0]
    assert "cores=1, processes=1" in made[1]


@pytest.mark.slow
def test_the_first_commands_of_the_page(tmp_path: object) -> None:
    from pathlib import Path

    from small_models import relus

    folder = Path(str(tmp_path))
    relus(folder / "zoo" / "a.onnx", 3)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
    started: list[subprocess.Popen[bytes]] = []
    try:
        for line in FIRST[1:]:
            words = shlex.split(line.replace("8786", port).rstrip(" &"))
            module = {"dask": ["-m", "dask"], "taso-mirage": ["-m", "taso_mirage.cli"]}[words[0]]
            more = (
                ["--effort", "quick"]
                if "optimize" in words
                else ["--rule", "attention.matmul_to_gemm"]
                if "verify" in words
                else []
            )
            command = [sys.executable, *module, *words[1:], *more]
            if line.endswith("&"):
                started.append(subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL, start_new_session=True))
                continue
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
    finally:
        for each in started:
            each.terminate()
            each.wait(600)
    assert (folder / "faster" / "a.onnx").exists()
