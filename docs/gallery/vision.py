# %% [markdown]
# # A vision model
#
# SqueezeNet of the onnx wheel, with random weights (nothing is downloaded). Run it in a checkout:
# `python docs/gallery/vision.py`, or cell by cell in an editor that knows `# %%`.

# %%
import sys

import numpy as np
import onnx
import onnxruntime

sys.path.insert(0, ".")  # the checkout: `models` is not part of the package

import models
import taso_mirage

model = models.build("light_squeezenet")
print(len(model.graph.node), "nodes")

# %% [markdown]
# `optimize` takes a model and returns one. With `return_result` it also returns a report. 15 seconds
# are few: give your own models the usual 60, or more. If no model is clearly faster, or the machine
# is busy, `optimize` returns the original, and `kept` says why.

# %%
faster, result = taso_mirage.optimize(model, budget=15, return_result=True)
print(len(faster.graph.node), "nodes")
print("changed:", result.changed, result.kept or "")

# %% [markdown]
# The names of the applied equations, and the number of places of each:

# %%
for name, count in result.equations.items():
    print(f"{count:4}  {name}")

# %% [markdown]
# Every output was compared with a float64 evaluation of the original. `bound` is the largest error
# that the criterion allows there.

# %%
for each in result.differences:
    print(f"{each.case}, {each.output}: error {each.error:.2g}, bound {each.bound:.2g}")
assert all(each.passed for each in result.differences)

# %% [markdown]
# The result is an ordinary model. Both give the same classes:

# %%
image = np.random.default_rng(0).normal(size=(1, 3, 224, 224)).astype(np.float32)


def classes(proto: onnx.ModelProto) -> np.ndarray:
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    (scores,) = session.run(None, {session.get_inputs()[0].name: image})
    return np.argsort(scores.ravel())[-5:]


print(classes(model), classes(faster))
assert set(classes(model)) == set(classes(faster))
