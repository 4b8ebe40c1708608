"""Matrix products."""

from taso_mirage.ops import op


@op(onnx="MatMul", since=1)
def matmul(xp, a, b):
    """(...,m,k), (...,k,n) -> (...,m,n); numpy's rule for vectors"""
    left = "k" if xp.rank(a) == 1 else "...mk"
    right = "k" if xp.rank(b) == 1 else "...kn"
    if xp.rank(a) == 1:
        return xp.contract(f"{left},{right}->" + ("" if right == "k" else "...n"), a, b)
    return xp.contract(f"{left},{right}->" + ("...m" if right == "k" else "...mn"), a, b)


matmul.example("float32[3,4]", "float32[4,5]")
matmul.example("float32[2,3,4]", "float32[4,5]")
matmul.example("float32[2,1,3,4]", "float32[5,4,2]")
matmul.example("float32[4]", "float32[2,4,3]")
matmul.example("float32[2,3,4]", "float32[4]")
matmul.example("float64[3,4]", "float64[4,2]")
matmul.example("int32[3,4]", "int32[4,2]")
