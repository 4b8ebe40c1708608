"""Options of `taso_mirage.optimize` of wrong kinds: InvalidOption names the option, before any
work."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from commandline import commands, run
from small_models import shortened

import taso_mirage
from taso_mirage import optimize_options as options
from taso_mirage.errors import InvalidModel, InvalidOption

QUICK: dict[str, Any] = {"measure": False, "kernels": "off", "budget": 0}


class Silent:
    """An object that cannot be printed."""

    def __repr__(self) -> str:
        raise ValueError

    __str__ = __repr__


WRONG = (5j, b"bytes", object(), io.StringIO(), np.zeros(2), [Silent()], Silent(), ("a", None), [b"a"])
NUMBERS = ("budget", "run_limit", "alpha")


@pytest.mark.parametrize("name", sorted(options.Options.__dataclass_fields__))
def test_no_value_of_a_wrong_kind_is_taken(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for value in WRONG:
        if name == "command" and isinstance(value, list | tuple | bytes):
            continue  # it is only repeated
        with pytest.raises(InvalidOption, match=f"^{name}="):
            taso_mirage.optimize(shortened(), **{**QUICK, name: value})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", [float("nan"), -1, -0.1, True, "5", None, 10**400, float("-inf")])
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_numbers(name: str, value: Any) -> None:
    with pytest.raises(InvalidOption, match=f"^{name}=.*it is a number of at least"):
        taso_mirage.optimize(shortened(), **{**QUICK, name: value})


@pytest.mark.parametrize("value", [1e300, 1e308, 10**305, 10**400])
@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_too_large_is_refused_for_its_size(name: str, value: Any) -> None:
    """Sums with such numbers are infinite, or have no float."""
    with pytest.raises(InvalidOption, match=rf"^{name}=.*at least \d, below 1e\+300 or infinite$"):
        taso_mirage.optimize(shortened(), **{**QUICK, name: value})


def test_numbers_of_every_command_have_limits() -> None:
    """No random numbers begin with a seed below 0, and counts are integers of the machine."""
    numbers = {
        (words, option.name): (option.type_descriptor.annotation, option.min, option.max)
        for words, command in commands().items()
        for option in command.params
        if getattr(getattr(option, "type_descriptor", None), "annotation", None) in (int, float)
    }
    assert len(numbers) >= 10
    assert {name for name, (_, least, _) in numbers.items() if least is None} == set()
    assert {name for name, (kind, _, most) in numbers.items() if kind is int and most is None} == set()


@pytest.mark.parametrize("option", [("--seed", "-1"), ("--seed", "1" + 30 * "0"), ("--typings", "1" + 30 * "0")])
def test_a_number_outside_of_its_limits_is_one_line(option: tuple[str, str]) -> None:
    assert option[0] in run("substitutions", "verify", *option, check=2).stderr


@pytest.mark.parametrize("value", ["false", "no", 0, 1, None, "True"])
@pytest.mark.parametrize("name", options.FLAGS)
def test_a_flag_is_no_text(name: str, value: Any) -> None:
    """`trust_kernels="false"` would be taken as true."""
    with pytest.raises(InvalidOption, match="give True or False"):
        taso_mirage.optimize(shortened(), **{**QUICK, name: value})


@pytest.mark.parametrize("name", ["output", "report", "certificate", "trace", "inputs", "rules"])
def test_no_path_has_a_zero_byte(name: str) -> None:
    with pytest.raises(InvalidOption, match=f"^{name}="):
        taso_mirage.optimize(shortened(), **{**QUICK, name: "a\0b"})


@pytest.mark.parametrize("model", [5, None, b"m.onnx", io.BytesIO(), np.zeros(2), {}, object, Silent()])
def test_a_model_of_a_wrong_kind(model: Any) -> None:
    with pytest.raises(InvalidOption, match="is no model; give"):
        taso_mirage.optimize(model, **QUICK)


@pytest.mark.parametrize("path", ["", "\0", "a" * 5000, "/dev/null", "."])
def test_a_path_of_no_file(path: str) -> None:
    with pytest.raises(InvalidModel):
        taso_mirage.optimize(path, **QUICK)
    with pytest.raises(InvalidModel):
        taso_mirage.optimize(onnx.ModelProto(), **QUICK)


@pytest.mark.parametrize(
    "given", [{5: 1}, {"x": None}, {"x": [1, 2]}, {"x": np.zeros((4, 4), object)}, {"x": Silent()}]
)
def test_inputs_of_a_wrong_kind(given: Any) -> None:
    with pytest.raises(InvalidOption, match="inputs"):
        taso_mirage.optimize(shortened(), inputs=given, **QUICK)
