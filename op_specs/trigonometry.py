"""Trigonometric and hyperbolic functions, elementwise."""

import numpy as np

from op_specs.arithmetic import real
from taso_mirage.operators.ops import op


@op(onnx="Sin", since=7)
def sin(xp, x):
    """x -> sin x"""
    return xp.map(np.sin, real(xp, x))


@op(onnx="Cos", since=7)
def cos(xp, x):
    """x -> cos x"""
    return xp.map(np.cos, real(xp, x))


@op(onnx="Tan", since=7)
def tan(xp, x):
    """x -> tan x"""
    return xp.map(np.tan, real(xp, x))


@op(onnx="Asin", since=7)
def asin(xp, x):
    """x -> arcsin x"""
    return xp.map(np.arcsin, real(xp, x))


@op(onnx="Acos", since=7)
def acos(xp, x):
    """x -> arccos x"""
    return xp.map(np.arccos, real(xp, x))


@op(onnx="Atan", since=7)
def atan(xp, x):
    """x -> arctan x"""
    return xp.map(np.arctan, real(xp, x))


@op(onnx="Sinh", since=9)
def sinh(xp, x):
    """x -> sinh x"""
    return xp.map(np.sinh, real(xp, x))


@op(onnx="Cosh", since=9)
def cosh(xp, x):
    """x -> cosh x"""
    return xp.map(np.cosh, real(xp, x))


@op(onnx="Asinh", since=9)
def asinh(xp, x):
    """x -> arsinh x"""
    return xp.map(np.arcsinh, real(xp, x))


@op(onnx="Acosh", since=9)
def acosh(xp, x):
    """x -> arcosh x"""
    return xp.map(np.arccosh, real(xp, x))


@op(onnx="Atanh", since=9)
def atanh(xp, x):
    """x -> artanh x"""
    return xp.map(np.arctanh, real(xp, x))


for each in (sin, cos, tan, asin, acos, atan, sinh, cosh, asinh, acosh, atanh):
    each.example("float32[2,3]")
